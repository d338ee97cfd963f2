//! Registered memory: keys, access checks, and the only copies to and from it.

mod access;
mod guard;
mod mapping;
mod table;

pub(crate) use access::Readable;
pub(crate) use guard::Fault;
pub(crate) use mapping::is_mapped;
pub(crate) use table::{MemGuard, MrTable, Region};

#[cfg(test)]
mod tests;
