//! The attributes of a device that imitates another one.

use super::DeviceAttr;
use crate::config::Likeness;

/// The flags that rxe reports: `BAD_PKEY_CNTR | BAD_QKEY_CNTR | AUTO_PATH_MIG | CHANGE_PHY_PORT |
/// UD_AV_PORT_ENFORCE | PORT_ACTIVE_EVENT | SYS_IMAGE_GUID | RC_RNR_NAK_GEN | SRQ_RESIZE |
/// MEM_WINDOW | MEM_MGT_EXTENSIONS | MEM_WINDOW_TYPE_2B`.
const RXE_CAP_FLAGS: u32 = 0x0122_3c76;
/// Most memory regions, and most memory windows, of rxe.
const RXE_MAX_MR: u32 = 0x7_ffff;

/// Changes the reported attributes. No limit exceeds that of Rocade.
pub(super) fn report(like: Likeness, attr: &mut DeviceAttr) {
    //= RXE-21
    attr.max_sge = like.max_sge();
    attr.max_sge_rd = like.max_sge();
    attr.max_srq_sge = like.max_srq_sge();
    attr.max_cqe = like.max_cqe();
    attr.max_qp_rd_atom = like.max_rd_atom().into();
    attr.max_qp_init_rd_atom = like.max_rd_atom().into();
    match like {
        Likeness::Rocade => {}
        Likeness::Rxe => {
            attr.fw_ver = "0.0.0";
            attr.hw_ver = 0;
            attr.device_cap_flags = RXE_CAP_FLAGS;
            attr.max_mr = RXE_MAX_MR;
            attr.max_mw = RXE_MAX_MR;
            attr.atomic_cap = 1;
            attr.completion_timestamp_mask = 0;
            attr.hca_core_clock_khz = 0;
            attr.max_dm_size = 0;
        }
        Likeness::Mlx5 => {
            attr.fw_ver = "16.35.4030";
            attr.hw_ver = 0;
            attr.atomic_cap = 1;
        }
    }
}
