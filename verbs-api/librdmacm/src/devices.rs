//! The devices of the process, which stay open after their first use.
//!
//! A device may be removed, and come back. Its context then stays dead, and IDs that are bound to
//! the device afterwards get another one.

use std::{ffi::c_int, ptr};

use parking_lot::Mutex;
use rocade_abi::{
    IBV_XRCD_INIT_ATTR_FD, IBV_XRCD_INIT_ATTR_OFLAGS, ibv_context, ibv_device, ibv_device_attr,
    ibv_pd, ibv_xrcd, ibv_xrcd_init_attr,
};

use crate::{
    args::{Handle, Last, Out, array_for_c, zeroed},
    engine,
    ffi::{Errno, ptr_call},
    qp::table_of,
};

/// An open device.
#[derive(Clone, Copy)]
pub(crate) struct Device {
    /// `ibv_get_device_index`.
    place: c_int,
    /// The context, which is never closed.
    pub(crate) verbs: Handle<'static, ibv_context>,
    /// The default protection domain of IDs, which is never freed.
    pub(crate) pd: Handle<'static, ibv_pd>,
    /// The default XRC domain of IDs, or NULL before its first use.
    xrcd: *mut ibv_xrcd,
    /// READs and atomics that a QP may have outstanding as requester and as responder.
    pub(crate) max_initiator_depth: u8,
    pub(crate) max_responder_resources: u8,
}

// SAFETY: the pointers are to objects of libibverbs, which any thread may use.
unsafe impl Send for Device {}

/// The open devices, and the fork generation that opened them.
#[derive(Default)]
struct Devices {
    generation: Option<u32>,
    open: Vec<Device>,
    /// The devices that were removed after they were opened. IDs may still have them.
    removed: Vec<Device>,
}

static DEVICES: Mutex<Devices> = Mutex::new(Devices {
    generation: None,
    open: Vec::new(),
    removed: Vec::new(),
});

impl Devices {
    /// Opens all devices on first use in this process, and those that are back later.
    fn refresh(&mut self) -> Result<(), Errno> {
        let generation = engine::generation()?;
        if self.generation != Some(generation) {
            self.open = open_listed(&[])?;
            self.removed.clear();
            self.generation = Some(generation);
        }
        let ops = engine::ops()?;
        // SAFETY: an open device, which is never closed.
        let is_gone = |device: &Device| unsafe { (ops.is_removed)(device.verbs.as_ptr()) };
        let (gone, open) = self.open.iter().copied().partition(is_gone);
        self.open = open;
        self.removed.extend::<Vec<_>>(gone);
        let is_open = |gone: &Device| self.open.iter().any(|device| device.place == gone.place);
        if !self.removed.iter().all(is_open) {
            let back = open_listed(&self.open)?;
            self.open.extend(back);
            self.open.sort_by_key(|device| device.place);
        }
        Ok(())
    }

    fn find(&self, is_it: impl Fn(&Device) -> bool) -> Option<Device> {
        let mut all = self.open.iter().chain(self.removed.iter().rev());
        all.find(|device| is_it(device)).copied()
    }
}

/// Returns all devices, in the order of the list.
///
/// # Errors
/// The error of opening a device.
pub(crate) fn all() -> Result<Vec<Device>, Errno> {
    let mut devices = DEVICES.lock();
    devices.refresh()?;
    Ok(devices.open.clone())
}

/// Returns the device with this index, or `None` for -1. If it is removed at present, returns what
/// was opened before.
///
/// # Errors
/// As for [`all`]. `ENODEV` if there is no such device.
pub(crate) fn at(place: c_int) -> Result<Option<Device>, Errno> {
    if place < 0 {
        return Ok(None);
    }
    let mut devices = DEVICES.lock();
    devices.refresh()?;
    let found = devices.find(|device| device.place == place);
    found.map(Some).ok_or(Errno::NODEV)
}

/// Returns the device of a context.
///
/// # Errors
/// `ENODEV` if the context does not belong to an open Rocade device.
pub(crate) fn of(verbs: Handle<'_, ibv_context>) -> Result<Device, Errno> {
    let mut devices = DEVICES.lock();
    devices.refresh()?;
    let found = devices.find(|device| device.verbs.addr() == verbs.addr());
    found.ok_or(Errno::NODEV)
}

/// Returns the default XRC domain of IDs, which belongs to this process and has no file.
///
/// # Errors
/// `ENODEV` if the context does not belong to an open Rocade device, or the error of opening the
/// XRC domain.
//= LRC-05
pub(crate) fn xrcd_of(verbs: Handle<'_, ibv_context>) -> Result<*mut ibv_xrcd, Errno> {
    all()?;
    let mut devices = DEVICES.lock();
    let mut open = devices.open.iter_mut();
    let device = open.find(|device| device.verbs.addr() == verbs.addr());
    let device = device.ok_or(Errno::NODEV)?;
    if device.xrcd.is_null() {
        let open = table_of(verbs)?.open_xrcd.ok_or(Errno(libc::EOPNOTSUPP))?;
        let mut attr = ibv_xrcd_init_attr {
            comp_mask: IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS,
            fd: -1,
            oflags: libc::O_CREAT,
        };
        // SAFETY: an open device, and attributes.
        device.xrcd = Errno::made(unsafe { open(verbs.as_ptr(), &raw mut attr) })?;
    }
    Ok(device.xrcd)
}

/// Opens the devices of the list that are not among `open`.
fn open_listed(open: &[Device]) -> Result<Vec<Device>, Errno> {
    let verbs = engine::verbs()?;
    let mut count = 0;
    let list = verbs.ibv_get_device_list(Out::of(&mut count))?;
    let others = list.devices(count).filter_map(|device| {
        let place = verbs.ibv_get_device_index(device);
        let is_open = open.iter().any(|device| device.place == place);
        (!is_open).then(|| open_one(place, device))
    });
    let opened = others.collect();
    verbs.ibv_free_device_list(list);
    opened
}

fn open_one(place: c_int, device: Handle<'_, ibv_device>) -> Result<Device, Errno> {
    let verbs = engine::verbs()?;
    let open = verbs.ibv_open_device(device)?.forever();
    let mut attr: ibv_device_attr = zeroed();
    Errno::check(verbs.ibv_query_device(open, Out::of(&mut attr)))?;
    let pd = verbs.ibv_alloc_pd(open)?.forever();
    let byte = |count: c_int| u8::try_from(count).unwrap_or(u8::MAX);
    Ok(Device {
        place,
        verbs: open,
        pd,
        xrcd: ptr::null_mut(),
        max_initiator_depth: byte(attr.max_qp_init_rd_atom),
        max_responder_resources: byte(attr.max_qp_rd_atom),
    })
}

/// `rdma_get_devices`: returns an array that ends with NULL. The devices stay open.
//= LRC-18
pub(crate) extern "C" fn rdma_get_devices(num_devices: Out<'_, c_int>) -> *mut *mut ibv_context {
    ptr_call(|| {
        let found = all();
        let len = found.as_ref().map_or(0, Vec::len);
        // The place may be NULL.
        let _ = num_devices.write(c_int::try_from(len).unwrap_or(0));
        let found = found?;
        let contexts = found.iter().map(|device| device.verbs.as_ptr());
        Errno::made(array_for_c(contexts))
    })
}

/// `rdma_free_devices`: frees the array and leaves the devices open.
//= LRC-18
pub(crate) extern "C" fn rdma_free_devices(list: Last<'_, *mut ibv_context>) {
    // SAFETY: by contract NULL or from `rdma_get_devices`.
    unsafe { libc::free(list.as_ptr().cast()) };
}
