//! Registered memory: keys, access checks, and the only copies to and from it.

mod access;
mod device;
mod guard;
mod mapping;
mod placed;
mod segments;
mod table;
mod view;
mod word;

pub(crate) use access::Readable;
pub(crate) use device::DeviceMemory;
#[cfg(all(test, not(loom)))]
pub(crate) use guard::kernel::CALLS as KERNEL_CALLS;
pub(crate) use guard::{Fault, are_blocked as are_faults_blocked};
pub(crate) use mapping::{ADDRESSES, is_mapped, populate};
pub(crate) use table::{MemGuard, MrTable, Region, RemoveError};
pub(crate) use word::Word;

#[cfg(test)]
mod tests;
