//! Names of connection manager events.

use std::ffi::{CStr, c_char, c_int};

/// Names in the order of `enum rdma_cm_event_type`.
const NAMES: [&CStr; 20] = [
    c"RDMA_CM_EVENT_ADDR_RESOLVED",
    c"RDMA_CM_EVENT_ADDR_ERROR",
    c"RDMA_CM_EVENT_ROUTE_RESOLVED",
    c"RDMA_CM_EVENT_ROUTE_ERROR",
    c"RDMA_CM_EVENT_CONNECT_REQUEST",
    c"RDMA_CM_EVENT_CONNECT_RESPONSE",
    c"RDMA_CM_EVENT_CONNECT_ERROR",
    c"RDMA_CM_EVENT_UNREACHABLE",
    c"RDMA_CM_EVENT_REJECTED",
    c"RDMA_CM_EVENT_ESTABLISHED",
    c"RDMA_CM_EVENT_DISCONNECTED",
    c"RDMA_CM_EVENT_DEVICE_REMOVAL",
    c"RDMA_CM_EVENT_MULTICAST_JOIN",
    c"RDMA_CM_EVENT_MULTICAST_ERROR",
    c"RDMA_CM_EVENT_ADDR_CHANGE",
    c"RDMA_CM_EVENT_TIMEWAIT_EXIT",
    c"RDMA_CM_EVENT_ADDRINFO_RESOLVED",
    c"RDMA_CM_EVENT_ADDRINFO_ERROR",
    c"RDMA_CM_EVENT_USER",
    c"RDMA_CM_EVENT_INTERNAL",
];

/// Returns the name of an event without its prefix.
pub(crate) fn name(event: u32) -> &'static str {
    let name = usize::try_from(event)
        .ok()
        .and_then(|index| NAMES.get(index));
    let name = name.and_then(|name| name.to_str().ok()).unwrap_or("?");
    name.strip_prefix("RDMA_CM_EVENT_").unwrap_or(name)
}

/// `rdma_event_str`: returns a static string, also for unknown values.
pub(crate) extern "C" fn rdma_event_str(event: c_int) -> *const c_char {
    usize::try_from(event)
        .ok()
        .and_then(|index| NAMES.get(index))
        .map_or(c"UNKNOWN EVENT", |name| *name)
        .as_ptr()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(event: c_int) -> &'static CStr {
        // SAFETY: the function returns a pointer to a static, terminated string.
        unsafe { CStr::from_ptr(rdma_event_str(event)) }
    }

    #[test]
    fn names_known_and_unknown_events() {
        assert_eq!(text(9), c"RDMA_CM_EVENT_ESTABLISHED");
        assert_eq!(text(15), c"RDMA_CM_EVENT_TIMEWAIT_EXIT");
        assert_eq!(text(18), c"RDMA_CM_EVENT_USER");
        assert_eq!(text(20), c"UNKNOWN EVENT");
        assert_eq!(text(-1), c"UNKNOWN EVENT");
    }
}
