//! Functions that call the implementation in `libibverbs.so.1`.

use std::{ffi::c_int, ptr, sync::OnceLock};

use rocade_abi::{
    ROCADE_MLX5_VERSION, ibv_ah, ibv_context, ibv_device, ibv_mr, ibv_pd, ibv_qp, ibv_qp_ex,
    ibv_qp_init_attr_ex,
    mlx5::{
        mlx5dv_context, mlx5dv_context_attr, mlx5dv_mkey, mlx5dv_mkey_init_attr, mlx5dv_qp_ex,
        mlx5dv_qp_init_attr,
    },
    rocade_mlx5_ops,
};

use crate::{
    library::{self, function},
    unsupported,
};

/// Returns the private table, or `None` if the process uses another `libibverbs.so.1` than
/// Rocade's.
fn ops() -> Option<&'static rocade_mlx5_ops> {
    static OPS: OnceLock<Option<&'static rocade_mlx5_ops>> = OnceLock::new();
    *OPS.get_or_init(|| {
        let library = library::find();
        if library.is_null() {
            return None;
        }
        // SAFETY: a handle of dlopen. Only Rocade's library has this function, with this type.
        let ops: extern "C" fn() -> *const rocade_mlx5_ops =
            unsafe { function(library, c"rocade_mlx5".as_ptr()) }?;
        // SAFETY: the table is a static of the library, which is never unloaded.
        let ops = unsafe { ops().as_ref() }?;
        (ops.version == ROCADE_MLX5_VERSION).then_some(ops)
    })
}

/// Records a call of a function that Rocade does not offer, if the process is traced.
pub(crate) fn trace_unsupported(function: &str) {
    if let Some(ops) = ops() {
        // SAFETY: a readable text.
        unsafe { (ops.unsupported)(function.as_ptr(), function.len()) };
    }
}

/// Defines functions that call those of the table, and fail if there is no table.
macro_rules! forward {
    ($( $name:ident = $op:ident($($arg:ident: $ty:ty),*) -> $result:ty, else $otherwise:expr; )+) => {
        $(
            #[doc = concat!("`", stringify!($name), "`.")]
            pub(crate) unsafe extern "C" fn $name($($arg: $ty),*) -> $result {
                match ops() {
                    // SAFETY: same contract.
                    Some(ops) => unsafe { (ops.$op)($($arg),*) },
                    None => {
                        unsupported(stringify!($name));
                        $otherwise
                    }
                }
            }
        )+
    };
}

forward! {
    mlx5dv_is_supported = is_supported(device: *mut ibv_device) -> bool, else false;
    mlx5dv_open_device = open_device(
        device: *mut ibv_device, attr: *mut mlx5dv_context_attr
    ) -> *mut ibv_context, else ptr::null_mut();
    mlx5dv_query_device = query_device(
        context: *mut ibv_context, attr: *mut mlx5dv_context
    ) -> c_int, else libc::EOPNOTSUPP;
    mlx5dv_create_qp = create_qp(
        context: *mut ibv_context, init: *mut ibv_qp_init_attr_ex, dv: *mut mlx5dv_qp_init_attr
    ) -> *mut ibv_qp, else ptr::null_mut();
    mlx5dv_qp_ex_from_ibv_qp_ex = qp_ex_from_ibv_qp_ex(
        qp: *mut ibv_qp_ex
    ) -> *mut mlx5dv_qp_ex, else ptr::null_mut();
    mlx5dv_dci_stream_id_reset = dci_stream_id_reset(
        qp: *mut ibv_qp, stream_id: u16
    ) -> c_int, else libc::EOPNOTSUPP;
    mlx5dv_create_mkey = create_mkey(
        attr: *mut mlx5dv_mkey_init_attr
    ) -> *mut mlx5dv_mkey, else ptr::null_mut();
    mlx5dv_destroy_mkey = destroy_mkey(
        mkey: *mut mlx5dv_mkey
    ) -> c_int, else libc::EOPNOTSUPP;
    mlx5dv_reserved_qpn_alloc = reserved_qpn_alloc(
        context: *mut ibv_context, qpn: *mut u32
    ) -> c_int, else libc::EOPNOTSUPP;
    mlx5dv_reserved_qpn_dealloc = reserved_qpn_dealloc(
        context: *mut ibv_context, qpn: u32
    ) -> c_int, else libc::EOPNOTSUPP;
    mlx5dv_map_ah_to_qp = map_ah_to_qp(
        ah: *mut ibv_ah, qp_num: u32
    ) -> c_int, else libc::EOPNOTSUPP;
    mlx5dv_reg_dmabuf_mr = reg_dmabuf_mr(
        pd: *mut ibv_pd, offset: u64, length: usize, iova: u64, fd: c_int, access: c_int,
        mlx5_access: c_int
    ) -> *mut ibv_mr, else ptr::null_mut();
}

/// `_mlx5dv_get_export_sizes`: nothing can be exported, so all sizes are 0.
pub(crate) unsafe extern "C" fn get_export_sizes(sizes: *mut u8, sizes_len: usize) {
    if !sizes.is_null() {
        // SAFETY: by contract the caller's structure has this length.
        unsafe { sizes.write_bytes(0, sizes_len) };
    }
}
