//! Texts of the structures of experimental verbs and of the older ones for XRC.

use std::fmt::Write as _;

use rocade_abi::exp::{
    cross_channel::{
        IBV_EXP_CQ_ATTR_CQ_CAP_FLAGS, IBV_EXP_CQ_INIT_ATTR_FLAGS, IBV_EXP_CQ_MODERATION,
        ibv_exp_cq_attr, ibv_exp_cq_init_attr, ibv_exp_task,
    },
    dct::{ibv_exp_arm_attr, ibv_exp_dct, ibv_exp_dct_attr, ibv_exp_dct_init_attr},
    device::ibv_exp_device_attr,
    qp::{
        IBV_EXP_QP_INIT_ATTR_ATOMICS_ARG, IBV_EXP_QP_INIT_ATTR_CREATE_FLAGS,
        IBV_EXP_QP_INIT_ATTR_INL_RECV, IBV_EXP_QP_INIT_ATTR_MAX_INL_KLMS, ibv_exp_qp_attr,
        ibv_exp_qp_init_attr,
    },
    send::ibv_exp_mkey_list_container,
    umr::{
        ibv_exp_create_mr_in, ibv_exp_mkey_attr, ibv_exp_mkey_list_container_attr,
        ibv_exp_reg_mr_in,
    },
};

use super::ibv::sizes;
use super::show::{Done, Shown, Target, access, opaque};
use crate::xrc_compat::{ibv_xrc_domain, ibv_xrc_qp_init_attr};

opaque!(
    ibv_exp_arm_attr,
    ibv_exp_device_attr,
    ibv_exp_mkey_list_container,
    ibv_exp_qp_attr,
    ibv_exp_task,
    ibv_xrc_domain,
    ibv_xrc_qp_init_attr,
);

/// The names of the flags of a new experimental QP, from bit 2 on.
const CREATE_FLAGS: [&str; 8] = [
    "CROSS_CHANNEL",
    "MANAGED_SEND",
    "MANAGED_RECV",
    "?",
    "IGNORE_SQ_OVERFLOW",
    "IGNORE_RQ_OVERFLOW",
    "ATOMIC_BE_REPLY",
    "UMR",
];

/// Returns the names of flags, of which the first has bit `from`.
fn flag_names(flags: u32, from: u32, names: &[&str]) -> String {
    let set = (from..).zip(names).filter(|(bit, _)| flags >> bit & 1 != 0);
    let set: Vec<&str> = set.map(|(_, name)| *name).collect();
    match set.is_empty() {
        true => format!("{flags:#x}"),
        false => set.join("|"),
    }
}

impl Target for ibv_exp_qp_init_attr {
    fn content(shown: Shown<'_, Self>, text: &mut String) {
        text.push('{');
        sizes(shown.qp_type, &shown.cap, text);
        let (send, recv) = (shown.send_cq.addr(), shown.recv_cq.addr());
        let _ = write!(text, ", send_cq={send:#x}, recv_cq={recv:#x}");
        if !shown.srq.is_null() {
            let _ = write!(text, ", srq={:#x}", shown.srq.addr());
        }
        let mut item = |bit: u32, name: &str, value: &dyn std::fmt::Display| {
            if shown.comp_mask & bit != 0 {
                let _ = write!(text, ", {name}={value}");
            }
        };
        let flags = flag_names(shown.exp_create_flags, 2, &CREATE_FLAGS);
        item(
            IBV_EXP_QP_INIT_ATTR_CREATE_FLAGS,
            "exp_create_flags",
            &flags,
        );
        let inline = &shown.max_inl_recv;
        item(IBV_EXP_QP_INIT_ATTR_INL_RECV, "max_inl_recv", inline);
        let operand = &shown.max_atomic_arg;
        item(IBV_EXP_QP_INIT_ATTR_ATOMICS_ARG, "max_atomic_arg", operand);
        let entries = &shown.max_inl_send_klms;
        item(
            IBV_EXP_QP_INIT_ATTR_MAX_INL_KLMS,
            "max_inl_send_klms",
            entries,
        );
        text.push('}');
    }
}

impl Target for ibv_exp_dct {
    fn identity(&self, text: &mut String) {
        let _ = write!(text, " {{dct_num={:#08x}}}", self.dct_num);
    }
}

impl Target for ibv_exp_dct_init_attr {
    fn content(shown: Shown<'_, Self>, text: &mut String) {
        let _ = write!(
            text,
            "{{cq={:#x}, srq={:#x}, dc_key={:#x}, access_flags=",
            shown.cq.addr(),
            shown.srq.addr(),
            shown.dc_key
        );
        access(u64::from(shown.access_flags), text);
        let mtu = 128u32.checked_shl(shown.mtu).unwrap_or(0);
        let _ = write!(text, ", mtu={mtu}, gid_index={}}}", shown.gid_index);
    }
}

impl Target for ibv_exp_dct_attr {
    fn stored(done: Done<'_, Self>, _name: &str, text: &mut String) {
        let state = usize::from(done.state);
        let state = ["ACTIVE", "DRAINING", "DRAINED"].get(state).unwrap_or(&"?");
        let violations = done.key_violations;
        let _ = write!(text, " {{state={state}, key_violations={violations}}}");
    }
}

impl Target for ibv_exp_create_mr_in {
    fn content(shown: Shown<'_, Self>, text: &mut String) {
        const FLAGS: [&str; 3] = ["SIGNATURE_EN", "INDIRECT_KLMS", "FIXED_BUFFER_SIZE"];
        let attr = &shown.attr;
        let flags = flag_names(attr.create_flags, 0, &FLAGS);
        let _ = write!(
            text,
            "{{pd={:#x}, max_klm_list_size={}, create_flags={flags}, exp_access_flags=",
            shown.pd.addr(),
            attr.max_klm_list_size
        );
        access(attr.exp_access_flags, text);
        text.push('}');
    }
}

impl Target for ibv_exp_reg_mr_in {
    fn content(shown: Shown<'_, Self>, text: &mut String) {
        let (pd, addr, length) = (shown.pd.addr(), shown.addr.addr(), shown.length);
        let _ = write!(
            text,
            "{{pd={pd:#x}, addr={addr:#x}, length={length}, exp_access="
        );
        access(shown.exp_access, text);
        text.push('}');
    }
}

impl Target for ibv_exp_mkey_attr {
    fn stored(done: Done<'_, Self>, _name: &str, text: &mut String) {
        let _ = write!(text, " {{max_klm_list_size={}}}", done.max_klm_list_size);
    }
}

impl Target for ibv_exp_mkey_list_container_attr {
    fn content(shown: Shown<'_, Self>, text: &mut String) {
        let (pd, entries) = (shown.pd.addr(), shown.max_klm_list_size);
        let _ = write!(text, "{{pd={pd:#x}, max_klm_list_size={entries}}}");
    }
}

impl Target for ibv_exp_cq_init_attr {
    fn content(shown: Shown<'_, Self>, text: &mut String) {
        let flags = match shown.comp_mask & IBV_EXP_CQ_INIT_ATTR_FLAGS {
            0 => String::new(),
            _ => format!("flags={}", flag_names(shown.flags, 0, &["CROSS_CHANNEL"])),
        };
        let _ = write!(text, "{{{flags}}}");
    }
}

impl Target for ibv_exp_cq_attr {
    fn content(shown: Shown<'_, Self>, text: &mut String) {
        let mut items = Vec::new();
        if shown.comp_mask & IBV_EXP_CQ_MODERATION != 0 {
            let asked = &shown.moderation;
            items.push(format!("cq_count={}", asked.cq_count));
            items.push(format!("cq_period={}", asked.cq_period));
        }
        if shown.comp_mask & IBV_EXP_CQ_ATTR_CQ_CAP_FLAGS != 0 {
            let names = flag_names(shown.cq_cap_flags, 0, &["IGNORE_OVERRUN"]);
            items.push(format!("cq_cap_flags={names}"));
        }
        let _ = write!(text, "{{{}}}", items.join(", "));
    }
}
