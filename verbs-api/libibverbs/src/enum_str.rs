//! Names of enumerators.

use std::ffi::{CStr, c_char, c_int};

const NODE_TYPES: [&CStr; 7] = [
    c"InfiniBand channel adapter",
    c"InfiniBand switch",
    c"InfiniBand router",
    c"iWARP NIC",
    c"usNIC",
    c"usNIC UDP",
    c"unspecified",
];

const PORT_STATES: [&CStr; 6] = [
    c"no state change (NOP)",
    c"down",
    c"init",
    c"armed",
    c"active",
    c"active defer",
];

const EVENT_TYPES: [&CStr; 21] = [
    c"CQ error",
    c"local work queue catastrophic error",
    c"invalid request local work queue error",
    c"local access violation work queue error",
    c"communication established",
    c"send queue drained",
    c"path migrated",
    c"path migration request error",
    c"local catastrophic error",
    c"port active",
    c"port error",
    c"LID change",
    c"P_Key change",
    c"SM change",
    c"SRQ catastrophic error",
    c"SRQ limit reached",
    c"last WQE reached",
    c"client reregistration",
    c"GID table change",
    c"WQ fatal",
    c"Device link speed change",
];

/// Opcodes of work requests. 12 and 13 have no name.
const WR_OPCODES: [&CStr; 16] = [
    c"rdma-write",
    c"rdma-write-with-imm",
    c"send",
    c"send-with-imm",
    c"rdma-read",
    c"atomic-cmp-and-swp",
    c"atomic-fetch-and-add",
    c"local-inv",
    c"bind-mw",
    c"send-with-inv",
    c"tso",
    c"driver1",
    c"unknown",
    c"unknown",
    c"flush",
    c"atomic-write",
];

const WC_STATUSES: [&CStr; 24] = [
    c"success",
    c"local length error",
    c"local QP operation error",
    c"local EE context operation error",
    c"local protection error",
    c"Work Request Flushed Error",
    c"memory management operation error",
    c"bad response error",
    c"local access error",
    c"remote invalid request error",
    c"remote access error",
    c"remote operation error",
    c"transport retry counter exceeded",
    c"RNR retry counter exceeded",
    c"local RDD violation error",
    c"remote invalid RD request",
    c"aborted error",
    c"invalid EE context number",
    c"invalid EE context state",
    c"fatal error",
    c"response timeout error",
    c"general error",
    c"TM error",
    c"TM software rendezvous",
];

fn lookup(table: &[&'static CStr], value: c_int, first: c_int) -> *const c_char {
    value
        .checked_sub(first)
        .and_then(|index| usize::try_from(index).ok())
        .and_then(|index| table.get(index))
        .map_or(c"unknown", |text| *text)
        .as_ptr()
}

/// `ibv_node_type_str`.
pub(crate) extern "C" fn ibv_node_type_str(node_type: c_int) -> *const c_char {
    lookup(&NODE_TYPES, node_type, 1)
}

/// `ibv_port_state_str`.
pub(crate) extern "C" fn ibv_port_state_str(state: c_int) -> *const c_char {
    lookup(&PORT_STATES, state, 0)
}

/// `ibv_event_type_str`.
pub(crate) extern "C" fn ibv_event_type_str(event: c_int) -> *const c_char {
    lookup(&EVENT_TYPES, event, 0)
}

/// `ibv_wc_status_str`.
pub(crate) extern "C" fn ibv_wc_status_str(status: c_int) -> *const c_char {
    lookup(&WC_STATUSES, status, 0)
}

/// `ibv_wr_opcode_str`, a private function of rdma-core 65.
pub(crate) extern "C" fn ibv_wr_opcode_str(opcode: c_int) -> *const c_char {
    lookup(&WR_OPCODES, opcode, 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(pointer: *const c_char) -> &'static CStr {
        // SAFETY: the functions of this module return static, terminated strings.
        unsafe { CStr::from_ptr(pointer) }
    }

    #[test]
    fn texts_of_first_last_and_unknown_values() {
        assert_eq!(text(ibv_node_type_str(1)), c"InfiniBand channel adapter");
        assert_eq!(text(ibv_node_type_str(-1)), c"unknown");
        assert_eq!(text(ibv_port_state_str(4)), c"active");
        assert_eq!(text(ibv_port_state_str(6)), c"unknown");
        assert_eq!(text(ibv_event_type_str(19)), c"WQ fatal");
        assert_eq!(text(ibv_event_type_str(20)), c"Device link speed change");
        assert_eq!(text(ibv_event_type_str(21)), c"unknown");
        assert_eq!(text(ibv_wr_opcode_str(0)), c"rdma-write");
        assert_eq!(text(ibv_wr_opcode_str(11)), c"driver1");
        assert_eq!(text(ibv_wr_opcode_str(13)), c"unknown");
        assert_eq!(text(ibv_wr_opcode_str(14)), c"flush");
        assert_eq!(text(ibv_wr_opcode_str(15)), c"atomic-write");
        assert_eq!(text(ibv_wr_opcode_str(16)), c"unknown");
        assert_eq!(text(ibv_wc_status_str(0)), c"success");
        assert_eq!(
            text(ibv_wc_status_str(12)),
            c"transport retry counter exceeded"
        );
        assert_eq!(text(ibv_wc_status_str(23)), c"TM software rendezvous");
        assert_eq!(text(ibv_wc_status_str(c_int::MIN)), c"unknown");
    }
}
