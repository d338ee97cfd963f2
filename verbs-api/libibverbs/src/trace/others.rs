//! Structures of which `libibverbs` alone shows something, or nothing but the address.

use std::fmt::Write as _;

use rocade_abi::{
    ibv_alloc_dm_attr, ibv_async_event, ibv_buf, ibv_comp_cntr, ibv_comp_cntr_caps,
    ibv_comp_cntr_init_attr, ibv_cq_init_attr_ex, ibv_device_attr, ibv_device_attr_ex, ibv_dm,
    ibv_flow, ibv_flow_attr, ibv_gid_entry, ibv_grh, ibv_modify_cq_attr, ibv_mr_init_attr,
    ibv_mw_bind, ibv_parent_domain_init_attr, ibv_port_attr, ibv_qp_attach_comp_cntr_attr,
    ibv_qp_open_attr, ibv_qp_rate_limit_attr, ibv_query_device_ex_input, ibv_rwq_ind_table,
    ibv_rwq_ind_table_init_attr, ibv_sge, ibv_srq_attr, ibv_td, ibv_td_init_attr, ibv_values_ex,
    ibv_wq, ibv_wq_attr, ibv_wq_init_attr, ibv_xrcd_init_attr,
};

use super::show::{Done, Shown, Target, opaque};

opaque!(
    ibv_alloc_dm_attr,
    ibv_buf,
    ibv_comp_cntr,
    ibv_comp_cntr_caps,
    ibv_comp_cntr_init_attr,
    ibv_device_attr,
    ibv_device_attr_ex,
    ibv_dm,
    ibv_flow,
    ibv_flow_attr,
    ibv_gid_entry,
    ibv_grh,
    ibv_modify_cq_attr,
    ibv_mr_init_attr,
    ibv_mw_bind,
    ibv_parent_domain_init_attr,
    ibv_qp_attach_comp_cntr_attr,
    ibv_qp_open_attr,
    ibv_qp_rate_limit_attr,
    ibv_query_device_ex_input,
    ibv_rwq_ind_table,
    ibv_rwq_ind_table_init_attr,
    ibv_sge,
    ibv_srq_attr,
    ibv_td,
    ibv_td_init_attr,
    ibv_values_ex,
    ibv_wq,
    ibv_wq_attr,
    ibv_wq_init_attr,
    ibv_xrcd_init_attr,
);

impl Target for ibv_cq_init_attr_ex {
    fn content(shown: Shown<'_, Self>, text: &mut String) {
        let (cqe, channel) = (shown.cqe, shown.channel.addr());
        let _ = write!(text, "{{cqe={cqe}, channel={channel:#x}}}");
    }
}

impl Target for ibv_port_attr {
    fn stored(done: Done<'_, Self>, _name: &str, text: &mut String) {
        let state = done.state;
        let _ = write!(text, " {{state={state}}}");
    }
}

/// The names of asynchronous events.
const EVENTS: [&str; 20] = [
    "CQ_ERR",
    "QP_FATAL",
    "QP_REQ_ERR",
    "QP_ACCESS_ERR",
    "COMM_EST",
    "SQ_DRAINED",
    "PATH_MIG",
    "PATH_MIG_ERR",
    "DEVICE_FATAL",
    "PORT_ACTIVE",
    "PORT_ERR",
    "LID_CHANGE",
    "PKEY_CHANGE",
    "SM_CHANGE",
    "SRQ_ERR",
    "SRQ_LIMIT_REACHED",
    "QP_LAST_WQE_REACHED",
    "CLIENT_REREGISTER",
    "GID_CHANGE",
    "WQ_FATAL",
];

impl Target for ibv_async_event {
    fn stored(done: Done<'_, Self>, _name: &str, text: &mut String) {
        let name = usize::try_from(done.event_type).ok();
        let name = name.and_then(|number| EVENTS.get(number)).unwrap_or(&"?");
        let _ = write!(text, " event={name}");
    }
}
