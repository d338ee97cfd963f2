//! Text of the attributes of `ibv_modify_qp`.

use std::fmt::Write as _;
use std::net::Ipv6Addr;

use rocade_abi::ibv_qp_attr;

use super::show::access;
use crate::args::gid_bytes;

/// The names of QP states.
const STATES: [&str; 7] = ["RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"];

/// Appends the members of `attr` that `mask` names.
pub(crate) fn qp_attr(attr: &ibv_qp_attr, mask: u32, text: &mut String) {
    let mut separator = "{";
    let mut item = |bit: u32, name: &str, value: &dyn std::fmt::Display| {
        if mask & bit != 0 {
            let _ = write!(text, "{separator}{name}={value}");
            separator = ", ";
        }
    };
    let state = usize::try_from(attr.qp_state).ok();
    let state = state.and_then(|state| STATES.get(state)).unwrap_or(&"?");
    let mut rights = String::new();
    access(u64::from(attr.qp_access_flags), &mut rights);
    let gid = Ipv6Addr::from(gid_bytes(&attr.ah_attr.grh.dgid));
    let mtu = 128u32.checked_shl(attr.path_mtu).unwrap_or(0);
    item(1, "qp_state", state);
    item(1 << 4, "pkey_index", &attr.pkey_index);
    item(1 << 5, "port_num", &attr.port_num);
    item(1 << 3, "qp_access_flags", &rights);
    item(1 << 6, "qkey", &format!("{:#x}", attr.qkey));
    item(1 << 7, "dgid", &gid);
    item(1 << 7, "sgid_index", &attr.ah_attr.grh.sgid_index);
    item(1 << 8, "path_mtu", &mtu);
    item(
        1 << 20,
        "dest_qp_num",
        &format!("{:#08x}", attr.dest_qp_num),
    );
    item(1 << 12, "rq_psn", &format!("{:#x}", attr.rq_psn));
    item(1 << 16, "sq_psn", &format!("{:#x}", attr.sq_psn));
    item(1 << 9, "timeout", &attr.timeout);
    item(1 << 10, "retry_cnt", &attr.retry_cnt);
    item(1 << 11, "rnr_retry", &attr.rnr_retry);
    item(1 << 15, "min_rnr_timer", &attr.min_rnr_timer);
    item(1 << 13, "max_rd_atomic", &attr.max_rd_atomic);
    item(1 << 17, "max_dest_rd_atomic", &attr.max_dest_rd_atomic);
    text.push_str(if separator == "{" { "{}" } else { "}" });
}
