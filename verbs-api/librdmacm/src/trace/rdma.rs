//! Texts of the structures of `librdmacm`.

use std::fmt::Write as _;

use rocade_abi::{
    rdma_addrinfo, rdma_cm_event, rdma_cm_id, rdma_cm_join_mc_attr_ex, rdma_conn_param,
    rdma_event_channel,
};

use super::show::{Shown, Target, opaque};
use crate::event_str;

opaque!(rdma_cm_id, rdma_cm_join_mc_attr_ex);

impl Target for rdma_event_channel {
    fn identity(&self, text: &mut String) {
        let _ = write!(text, " {{fd={}}}", self.fd);
    }
}

impl Target for rdma_conn_param {
    fn content(shown: Shown<'_, Self>, text: &mut String) {
        let _ = write!(
            text,
            "{{private_data_len={}, responder_resources={}, initiator_depth={}, retry_count={}, \
             rnr_retry_count={}}}",
            shown.private_data_len,
            shown.responder_resources,
            shown.initiator_depth,
            shown.retry_count,
            shown.rnr_retry_count
        );
    }
}

impl Target for rdma_addrinfo {
    fn identity(&self, text: &mut String) {
        let passive = if self.ai_flags & 1 == 0 {
            ""
        } else {
            ", RAI_PASSIVE"
        };
        let port_space = self.ai_port_space;
        let _ = write!(text, " {{port_space={port_space:#x}{passive}}}");
    }
}

impl Target for rdma_cm_event {
    fn identity(&self, text: &mut String) {
        let name = event_str::name(self.event);
        let id = self.id.addr();
        let status = self.status;
        let _ = write!(text, " {{event={name}, status={status}, id={id:#x}}}");
    }
}
