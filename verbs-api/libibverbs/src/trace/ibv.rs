//! Texts of the structures of verbs. `libibverbs` and `librdmacm` share this file.

use std::fmt::Write as _;
use std::net::Ipv6Addr;

use rocade_abi::{
    ibv_ah, ibv_ah_attr, ibv_comp_channel, ibv_context, ibv_cq, ibv_cq_ex, ibv_device, ibv_ece,
    ibv_gid, ibv_mr, ibv_mw, ibv_pd, ibv_qp, ibv_qp_attr, ibv_qp_ex, ibv_qp_init_attr,
    ibv_qp_init_attr_ex, ibv_srq, ibv_srq_init_attr, ibv_srq_init_attr_ex, ibv_wc, ibv_xrcd,
};

use crate::args::gid_bytes;

use super::show::{Done, Shown, Target, opaque};

opaque!(
    ibv_ah,
    ibv_context,
    ibv_cq,
    ibv_cq_ex,
    ibv_device,
    ibv_pd,
    ibv_srq,
    ibv_wc,
    ibv_xrcd
);

impl Target for ibv_qp {
    fn identity(&self, text: &mut String) {
        let _ = write!(text, " {{qp_num={:#08x}}}", self.qp_num);
    }
}

impl Target for ibv_qp_ex {
    fn identity(&self, text: &mut String) {
        self.qp_base.identity(text);
    }
}

impl Target for ibv_mr {
    fn identity(&self, text: &mut String) {
        let Self { lkey, rkey, .. } = self;
        let _ = write!(text, " {{lkey={lkey:#x}, rkey={rkey:#x}}}");
    }
}

impl Target for ibv_mw {
    fn identity(&self, text: &mut String) {
        let _ = write!(text, " {{rkey={:#x}}}", self.rkey);
    }
}

impl Target for ibv_comp_channel {
    fn identity(&self, text: &mut String) {
        let _ = write!(text, " {{fd={}}}", self.fd);
    }
}

impl Target for ibv_ece {
    fn content(shown: Shown<'_, Self>, text: &mut String) {
        let Self {
            vendor_id, options, ..
        } = *shown;
        let _ = write!(text, "{{vendor_id={vendor_id:#x}, options={options:#x}}}");
    }
}

impl Target for ibv_gid {
    fn stored(done: Done<'_, Self>, name: &str, text: &mut String) {
        let _ = write!(text, " {name}={}", Ipv6Addr::from(gid_bytes(&done)));
    }
}

impl Target for ibv_ah_attr {
    fn content(shown: Shown<'_, Self>, text: &mut String) {
        let gid = Ipv6Addr::from(gid_bytes(&shown.grh.dgid));
        let index = shown.grh.sgid_index;
        let _ = write!(text, "{{dgid={gid}, sgid_index={index}}}");
    }
}

/// Appends the type and the sizes of a new QP.
pub(super) fn sizes(qp_type: u32, cap: &rocade_abi::ibv_qp_cap, text: &mut String) {
    let name = match qp_type {
        2 => "RC",
        3 => "UC",
        4 => "UD",
        8 => "RAW_PACKET",
        9 => "XRC_SEND",
        10 => "XRC_RECV",
        32 => "DC_INI",
        0xff => "DRIVER",
        _ => "?",
    };
    let _ = write!(
        text,
        "qp_type={name}, max_send_wr={}, max_recv_wr={}, max_inline_data={}",
        cap.max_send_wr, cap.max_recv_wr, cap.max_inline_data
    );
}

impl Target for ibv_qp_init_attr {
    fn content(shown: Shown<'_, Self>, text: &mut String) {
        text.push('{');
        sizes(shown.qp_type, &shown.cap, text);
        let (send, recv) = (shown.send_cq.addr(), shown.recv_cq.addr());
        let _ = write!(text, ", send_cq={send:#x}, recv_cq={recv:#x}");
        if !shown.srq.is_null() {
            let _ = write!(text, ", srq={:#x}", shown.srq.addr());
        }
        let _ = write!(text, ", sq_sig_all={}}}", shown.sq_sig_all);
    }
}

impl Target for ibv_qp_init_attr_ex {
    fn content(shown: Shown<'_, Self>, text: &mut String) {
        text.push('{');
        sizes(shown.qp_type, &shown.cap, text);
        let (send, recv) = (shown.send_cq.addr(), shown.recv_cq.addr());
        let _ = write!(text, ", send_cq={send:#x}, recv_cq={recv:#x}}}");
    }
}

impl Target for ibv_srq_init_attr {
    fn content(shown: Shown<'_, Self>, text: &mut String) {
        let _ = write!(text, "{{max_wr={}}}", shown.attr.max_wr);
    }
}

impl Target for ibv_srq_init_attr_ex {
    fn content(shown: Shown<'_, Self>, text: &mut String) {
        let _ = write!(text, "{{max_wr={}}}", shown.attr.max_wr);
    }
}

impl Target for ibv_qp_attr {}
