//! Import verbs: create another handle on a device, PD, MR or device memory of this process.
//!
//! With a kernel driver, processes pass each other the descriptor of an open device. A device of
//! Rocade lives in one process, with its memory, so another process cannot import it. Within the
//! process, the inode behind a descriptor identifies the device, even after a dup(2).

use std::{
    collections::HashMap,
    ffi::c_int,
    fs::File,
    mem::ManuallyDrop,
    os::{
        fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd},
        unix::fs::MetadataExt as _,
    },
    ptr,
    sync::{Arc, Weak},
};

use rocade_abi::{ibv_context, ibv_dm, ibv_mr, ibv_pd};
use rocade_emulator::{Dm, Mr, Pd};

use crate::{
    args::{Handle, Last},
    context::{self, ContextObject},
    diagnostics::Reason,
    dm::{self},
    ffi::{Errno, ptr_verb, void_verb},
    mr::{self},
    pd_mr::{self, PdRef, WeakPdRef},
    process,
};

/// The importable objects, by the handle in their C object.
#[derive(Default)]
pub(crate) struct Importable {
    devices: Vec<(FileKey, Weak<ContextObject>)>,
    domains: HashMap<u32, (Pd, WeakPdRef)>,
    regions: HashMap<u32, Mr>,
    memories: HashMap<u32, Dm>,
    /// The last handle assigned to device memory.
    last_dm_handle: u32,
}

/// Device and inode of an open file.
type FileKey = (u64, u64);

/// Runs `f` on the importable objects of this process. A forked child inherits none.
fn with_importable<R>(f: impl FnOnce(&mut Importable) -> R) -> R {
    f(&mut process::importable().lock())
}

fn file_key(fd: RawFd) -> Result<FileKey, Errno> {
    if fd < 0 {
        return Err(Errno(libc::EBADF));
    }
    // SAFETY: the descriptor is only read, and stays open.
    let file = ManuallyDrop::new(unsafe { File::from_raw_fd(fd) });
    let known = file.metadata();
    let known = known.map_err(|error| Errno(error.raw_os_error().unwrap_or(libc::EBADF)))?;
    Ok((known.dev(), known.ino()))
}

/// Makes a new context importable.
pub(crate) fn register_device(context: &Arc<ContextObject>) {
    let Ok(key) = file_key(context.context().command_fd()) else {
        return;
    };
    with_importable(|importable| {
        importable
            .devices
            .retain(|(_, other)| other.strong_count() > 0);
        importable.devices.push((key, Arc::downgrade(context)));
    });
}

/// Makes a new PD importable.
pub(crate) fn register_domain(pd: &Pd, pd_ref: &PdRef) {
    let handle = pd.handle();
    let entry = (pd.clone(), pd_ref.downgrade());
    with_importable(|importable| importable.domains.insert(handle, entry));
}

/// Removes a deallocated PD.
pub(crate) fn unregister_domain(pd: &Pd) {
    with_importable(|importable| importable.domains.remove(&pd.handle()));
}

/// Makes a new MR importable.
pub(crate) fn register_region(mr: &Mr) {
    with_importable(|importable| importable.regions.insert(mr.lkey().get(), mr.clone()));
}

/// Removes a deregistered MR.
pub(crate) fn unregister_region(mr: &Mr) {
    with_importable(|importable| importable.regions.remove(&mr.lkey().get()));
}

/// Makes new device memory importable. Returns its handle.
pub(crate) fn register_memory(dm: &Dm) -> u32 {
    with_importable(|importable| {
        importable.last_dm_handle += 1;
        importable
            .memories
            .insert(importable.last_dm_handle, dm.clone());
        importable.last_dm_handle
    })
}

/// Removes freed device memory.
pub(crate) fn unregister_memory(handle: u32) {
    with_importable(|importable| importable.memories.remove(&handle));
}

fn unknown(what: &str, handle: u32) -> Errno {
    let what = format!("there is no {what} with handle {handle} on this device");
    Errno::INVAL.because(Reason::new(what, ""))
}

/// `ibv_import_device`: the new context owns the descriptor.
pub(crate) extern "C" fn ibv_import_device(cmd_fd: c_int) -> *mut ibv_context {
    ptr_verb(|| {
        let key = file_key(cmd_fd)?;
        let found = with_importable(|importable| {
            let mut devices = importable.devices.iter();
            devices.find_map(|(known, context)| context.upgrade().filter(|_| *known == key))
        });
        let found = found.ok_or_else(|| {
            let what = format!("descriptor {cmd_fd} is not of an open device of this process");
            let advice = "a device of another process cannot be imported: it exists only there";
            Errno::INVAL.because(Reason::new(what, advice))
        })?;
        // SAFETY: by contract the caller passes ownership of the descriptor.
        let fd = unsafe { OwnedFd::from_raw_fd(cmd_fd) };
        debug_assert_eq!(fd.as_raw_fd(), cmd_fd);
        Ok(context::open_imported(&found, fd))
    })
}

/// `ibv_import_pd`.
pub(crate) extern "C" fn ibv_import_pd(
    context: Handle<'_, ibv_context>,
    pd_handle: u32,
) -> *mut ibv_pd {
    ptr_verb(|| {
        let context = context.share()?;
        let found = with_importable(|importable| {
            let (pd, pd_ref) = importable.domains.get(&pd_handle)?;
            Some((pd.clone(), pd_ref.upgrade()?))
        });
        let found = found.filter(|(pd, _)| pd.is_of(context.context()));
        let (pd, pd_ref) = found.ok_or_else(|| unknown("protection domain", pd_handle))?;
        pd_mr::imported(pd, pd_ref, context)
    })
}

/// `ibv_unimport_pd`: destroys the handle, not the PD.
pub(crate) extern "C" fn ibv_unimport_pd(pd: Last<'_, ibv_pd>) {
    void_verb(|| pd.destroy(|_| Ok(())));
}

/// `ibv_import_mr`: the address of the imported MR is unknown.
pub(crate) extern "C" fn ibv_import_mr(pd: Handle<'_, ibv_pd>, mr_handle: u32) -> *mut ibv_mr {
    ptr_verb(|| {
        let state = pd.get()?.inner();
        let found = with_importable(|importable| importable.regions.get(&mr_handle).cloned());
        let found = found.filter(|mr| mr.is_of(state.pd()));
        let mr = found.ok_or_else(|| unknown("region", mr_handle))?;
        mr::imported(pd, state, mr)
    })
}

/// `ibv_unimport_mr`: destroys the handle, not the MR.
pub(crate) extern "C" fn ibv_unimport_mr(mr: Last<'_, ibv_mr>) {
    void_verb(|| mr.destroy(|_| Ok(())));
}

/// `ibv_import_dm`.
pub(crate) extern "C" fn ibv_import_dm(
    context: Handle<'_, ibv_context>,
    dm_handle: u32,
) -> *mut ibv_dm {
    ptr_verb(|| {
        let context = context.share()?;
        let found = with_importable(|importable| importable.memories.get(&dm_handle).cloned());
        let found = found.filter(|dm| dm.is_from(context.context()));
        let memory = found.ok_or_else(|| unknown("device memory", dm_handle))?;
        dm::new_dm(memory, context, dm_handle)
    })
}

/// `ibv_unimport_dm`: destroys the handle, not the memory.
pub(crate) extern "C" fn ibv_unimport_dm(dm: Last<'_, ibv_dm>) {
    void_verb(|| dm.destroy(|_| Ok(())));
}

/// The `addr` of an imported MR.
pub(crate) const NO_ADDRESS: *mut std::ffi::c_void = ptr::null_mut();
