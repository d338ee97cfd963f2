//! The device list.

use std::{
    ffi::{c_char, c_int, c_void},
    ptr,
};

use rocade_abi::{IBV_NODE_CA, IBV_TRANSPORT_IB, ibv_context, ibv_device};
use rocade_emulator::DeviceInfo;

use crate::{
    args::{CObject, Handle, Last, Out, array_for_c, zeroed},
    context,
    ffi::{Errno, fill, int_verb, neg_verb, ptr_verb},
    process,
};

/// A device in the device list. It lives as long as the process.
#[repr(C)]
pub(crate) struct DeviceObject {
    c: ibv_device,
    /// Provider libraries look for their driver table after the public part, to recognize their own
    /// devices. NULL matches none of them.
    driver: *const c_void,
    info: DeviceInfo,
}

// SAFETY: it does not change after construction, and its only pointer is NULL.
unsafe impl Sync for DeviceObject {}
// SAFETY: as above.
unsafe impl Send for DeviceObject {}

impl std::fmt::Debug for DeviceObject {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DeviceObject")
            .field("info", &self.info)
            .finish_non_exhaustive()
    }
}

impl DeviceObject {
    /// Creates a device that is never freed. `verbs` is the name of its character device.
    pub(crate) fn leak(info: &DeviceInfo, verbs: &str) -> &'static Self {
        let mut c: ibv_device = zeroed();
        c.node_type = IBV_NODE_CA;
        c.transport_type = IBV_TRANSPORT_IB;
        fill(&mut c.name, &info.name);
        fill(&mut c.dev_name, verbs);
        fill(
            &mut c.dev_path,
            &format!("/sys/class/infiniband_verbs/{verbs}"),
        );
        fill(
            &mut c.ibdev_path,
            &format!("/sys/class/infiniband/{}", info.name),
        );
        Box::leak(Box::new(Self {
            c,
            driver: ptr::null(),
            info: info.clone(),
        }))
    }

    /// Returns the emulator's description of the device.
    pub(crate) const fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// Returns the vendor ID and part ID that the device reports.
    pub(crate) const fn identity(&self) -> (u32, u32) {
        let identity = &self.info.identity;
        (identity.vendor_id, identity.part_id)
    }

    /// Returns the pointer that the program gets.
    pub(crate) const fn as_c(&'static self) -> *mut ibv_device {
        ptr::from_ref(self).cast_mut().cast()
    }
}

// SAFETY: programs have pointers to this type from the device list only. Devices are immutable.
unsafe impl CObject for ibv_device {
    type Object = DeviceObject;

    fn check(_: &DeviceObject) -> Result<(), Errno> {
        Ok(())
    }
}

impl Handle<'_, ibv_device> {
    /// Returns the device, which lives as long as the process.
    ///
    /// # Errors
    /// `EINVAL` for NULL.
    fn leaked(self) -> Result<&'static DeviceObject, Errno> {
        // SAFETY: NULL, or a device of the list, which is never freed.
        let forever: Handle<'static, ibv_device> = unsafe { Handle::new(self.as_ptr()) };
        forever.get()
    }
}

/// `ibv_get_device_list`: returns a NULL-terminated array, which `ibv_free_device_list` frees. A
/// device that a fault rule has removed is not in it.
pub(crate) extern "C" fn ibv_get_device_list(num_devices: Out<'_, c_int>) -> *mut *mut ibv_device {
    // The place may be NULL.
    let _ = num_devices.write(0);
    ptr_verb(|| {
        let devices = process::host()?.present_devices();
        let list = array_for_c(devices.iter().map(|device| device.as_c()));
        if list.is_null() {
            return Err(Errno(libc::ENOMEM));
        }
        let _ = num_devices.write(c_int::try_from(devices.len()).unwrap_or(c_int::MAX));
        Ok(list)
    })
}

/// `ibv_free_device_list`: frees the array, not the devices.
pub(crate) extern "C" fn ibv_free_device_list(list: Last<'_, *mut ibv_device>) {
    // SAFETY: by contract NULL or an array from `ibv_get_device_list`, which came from calloc.
    unsafe { libc::free(list.as_ptr().cast()) };
}

/// `ibv_get_device_name`.
pub(crate) extern "C" fn ibv_get_device_name(device: Handle<'_, ibv_device>) -> *const c_char {
    match device.get() {
        Ok(device) => device.c.name.as_ptr(),
        Err(_) => ptr::null(),
    }
}

/// `ibv_get_device_guid`: returns the node GUID in network byte order, or 0 for NULL.
pub(crate) extern "C" fn ibv_get_device_guid(device: Handle<'_, ibv_device>) -> u64 {
    device
        .get()
        .map_or(0, |device| device.info.guid.get().to_be())
}

/// `ibv_get_device_index`: returns -1 for NULL.
pub(crate) extern "C" fn ibv_get_device_index(device: Handle<'_, ibv_device>) -> c_int {
    neg_verb(|| {
        let device = device.get()?;
        c_int::try_from(device.info.index).map_err(|_| Errno::INVAL)
    })
}

/// `ibv_open_device`.
pub(crate) extern "C" fn ibv_open_device(device: Handle<'_, ibv_device>) -> *mut ibv_context {
    ptr_verb(|| context::open(device.leaked()?))
}

/// `ibv_close_device`.
pub(crate) extern "C" fn ibv_close_device(context: Last<'_, ibv_context>) -> c_int {
    int_verb(|| context::close(&context))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_word_behind_the_public_part_is_null() {
        assert_eq!(
            std::mem::offset_of!(DeviceObject, driver),
            size_of::<ibv_device>()
        );
    }

    #[test]
    fn null_is_no_device() {
        let name = ibv_get_device_name(Handle::NULL);
        let (guid, index) = (
            ibv_get_device_guid(Handle::NULL),
            ibv_get_device_index(Handle::NULL),
        );
        assert!(name.is_null());
        assert_eq!((guid, index), (0, -1));
    }
}
