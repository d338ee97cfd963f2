//! Regions of descriptors, with the flags of mlx5.

use std::ffi::c_int;

use rocade_abi::{MLX5DV_REG_DMABUF_ACCESS_DATA_DIRECT, ibv_mr, ibv_pd};
use rocade_emulator::AccessFlags;

use crate::{
    args::Handle,
    diagnostics::Reason,
    dv::expect_mlx5,
    ffi::{Errno, ptr_verb},
    mr_ex,
};

/// `mlx5dv_reg_dmabuf_mr`: `ibv_reg_dmabuf_mr` with a further word of flags.
///
/// EOPNOTSUPP for a device without mlx5 identity, and for the data-direct engine, which Rocade does
/// not have. EINVAL for an unknown flag.
pub(crate) extern "C" fn mlx5dv_reg_dmabuf_mr(
    pd: Handle<'_, ibv_pd>,
    offset: u64,
    length: usize,
    iova: u64,
    fd: c_int,
    access: c_int,
    mlx5_access: c_int,
) -> *mut ibv_mr {
    ptr_verb(|| {
        expect_mlx5(pd.get()?.inner().context())?;
        match mlx5_access.cast_unsigned() {
            0 => {}
            MLX5DV_REG_DMABUF_ACCESS_DATA_DIRECT => {
                let what = "the device has no data-direct engine";
                return Err(Errno::OPNOTSUPP.because(Reason::new(what, "use mlx5_access 0")));
            }
            _ => return Err(Errno::INVAL),
        }
        let access = AccessFlags::from_bits_retain(access.cast_unsigned());
        mr_ex::register_fd(pd, fd, (offset, length, iova), access)
    })
}
