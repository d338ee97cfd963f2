//! The device list of the connection manager.

use std::ffi::c_int;

use rocade_abi::ibv_context;

/// `rdma_get_devices`: fails, and says so in the count too: there are programs that look at nothing
/// else.
pub(crate) unsafe extern "C" fn rdma_get_devices(num_devices: *mut c_int) -> *mut *mut ibv_context {
    // SAFETY: by contract NULL or writable.
    if let Some(count) = unsafe { num_devices.as_mut() } {
        *count = 0;
    }
    #[cfg(not(test))]
    crate::unsupported("rdma_get_devices");
    std::ptr::null_mut()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_leaves_no_devices() {
        let mut count = 77;
        // SAFETY: a writable count.
        assert!(unsafe { rdma_get_devices(&raw mut count) }.is_null());
        assert_eq!(count, 0);
        // SAFETY: NULL is allowed.
        assert!(unsafe { rdma_get_devices(std::ptr::null_mut()) }.is_null());
    }
}
