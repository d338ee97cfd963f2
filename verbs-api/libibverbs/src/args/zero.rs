//! Structures that begin as zeroes.

use rocade_abi::{
    exp::{
        dct::ibv_exp_dct,
        device::ibv_exp_device_attr,
        qp::{ibv_exp_qp_attr, ibv_exp_qp_init_attr},
    },
    ibv_ah_attr, ibv_cq_ex, ibv_device, ibv_device_attr, ibv_device_attr_ex, ibv_mr_init_attr,
    ibv_odp_caps, ibv_port_attr, ibv_qp_attr, ibv_qp_ex, ibv_qp_init_attr, ibv_qp_init_attr_ex,
    ibv_qp_open_attr, ibv_sa_path_rec, ibv_send_wr, ibv_srq, ibv_srq_init_attr_ex, ibv_wq,
    mlx5::{mlx5dv_context, mlx5dv_qp_ex},
    rdma_addrinfo, rdma_cm_id, rocade_cm_route, verbs_context,
};

/// A structure for which zero bytes are a value.
///
/// # Safety
/// Each member must be an integer, a pointer, an optional function, a pthread object, or an array,
/// structure or union of these.
pub(crate) unsafe trait Zero: Sized {}

/// Returns a structure of zeroes.
pub(crate) const fn zeroed<T: Zero>() -> T {
    // SAFETY: zero bytes are a value of the type.
    unsafe { std::mem::zeroed() }
}

/// Implements [`Zero`] for structures of C headers, which have such members only.
macro_rules! zero {
    ($($kind:ty),+ $(,)?) => { $(
        // SAFETY: a structure of a C header without references and enumerations.
        unsafe impl Zero for $kind {}
    )+ };
}

zero! {
    ibv_ah_attr,
    ibv_cq_ex,
    ibv_device,
    ibv_device_attr,
    ibv_device_attr_ex,
    ibv_exp_dct,
    ibv_exp_device_attr,
    ibv_exp_qp_attr,
    ibv_exp_qp_init_attr,
    ibv_mr_init_attr,
    ibv_odp_caps,
    ibv_port_attr,
    ibv_qp_attr,
    ibv_qp_ex,
    ibv_qp_init_attr,
    ibv_qp_init_attr_ex,
    ibv_qp_open_attr,
    ibv_sa_path_rec,
    ibv_send_wr,
    ibv_srq,
    ibv_srq_init_attr_ex,
    ibv_wq,
    libc::Dl_info,
    libc::addrinfo,
    libc::msghdr,
    libc::sigset_t,
    libc::sockaddr_in,
    libc::sockaddr_in6,
    libc::sockaddr_storage,
    libc::stat,
    mlx5dv_context,
    mlx5dv_qp_ex,
    rdma_addrinfo,
    rdma_cm_id,
    rocade_cm_route,
    verbs_context,
}
