//! Address handles and multicast: not offered yet.

use std::ffi::c_int;

use rocade_abi::{ibv_ah, ibv_ah_attr, ibv_context, ibv_gid, ibv_grh, ibv_pd, ibv_qp, ibv_wc};

use crate::ffi::{Errno, int_verb, ptr_verb};

/// `ibv_create_ah`.
pub(crate) unsafe extern "C" fn ibv_create_ah(
    _pd: *mut ibv_pd,
    _attr: *mut ibv_ah_attr,
) -> *mut ibv_ah {
    ptr_verb(|| Err(Errno::OPNOTSUPP))
}

/// `ibv_init_ah_from_wc`.
pub(crate) unsafe extern "C" fn ibv_init_ah_from_wc(
    _context: *mut ibv_context,
    _port_num: u8,
    _wc: *mut ibv_wc,
    _grh: *mut ibv_grh,
    _attr: *mut ibv_ah_attr,
) -> c_int {
    int_verb(|| Err(Errno::OPNOTSUPP))
}

/// `ibv_create_ah_from_wc`.
pub(crate) unsafe extern "C" fn ibv_create_ah_from_wc(
    _pd: *mut ibv_pd,
    _wc: *mut ibv_wc,
    _grh: *mut ibv_grh,
    _port_num: u8,
) -> *mut ibv_ah {
    ptr_verb(|| Err(Errno::OPNOTSUPP))
}

/// `ibv_destroy_ah`.
pub(crate) unsafe extern "C" fn ibv_destroy_ah(_ah: *mut ibv_ah) -> c_int {
    int_verb(|| Err(Errno::OPNOTSUPP))
}

/// `ibv_attach_mcast` and `ibv_detach_mcast`.
pub(crate) unsafe extern "C" fn ibv_mcast(
    _qp: *mut ibv_qp,
    _gid: *const ibv_gid,
    _lid: u16,
) -> c_int {
    int_verb(|| Err(Errno::OPNOTSUPP))
}
