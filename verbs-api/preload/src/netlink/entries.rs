//! Attributes of RDMA resources.

use std::net::SocketAddr;

use super::abi::{attr, cmd};
use super::message::Message;
use super::resources::Resource;

/// The resource kinds in the order of the kernel's summary.
pub(super) const KINDS: [&str; 7] = ["pd", "cq", "qp", "cm_id", "mr", "ctx", "srq"];
/// The size of `struct __kernel_sockaddr_storage`.
const ADDRESS_LEN: usize = 128;

/// The objects that a command requests.
#[derive(Debug)]
pub(super) struct Table {
    pub(super) kind: &'static str,
    /// The attribute with all entries, and the attribute of each entry.
    pub(super) table: u16,
    pub(super) entry: u16,
    /// The attribute with which a request names one object, and the field of the object.
    pub(super) id: (u16, &'static str),
}

/// Returns the table of a command, or `None` if the command has none.
pub(super) const fn table(command: u16) -> Option<Table> {
    let (kind, table, id) = match command {
        cmd::RES_QP_GET => ("qp", attr::RES_QP, (attr::RES_LQPN, "lqpn")),
        cmd::RES_CM_ID_GET => ("cm_id", attr::RES_CM_ID, (attr::RES_CM_IDN, "cm_idn")),
        cmd::RES_CQ_GET => ("cq", attr::RES_CQ, (attr::RES_CQN, "cqn")),
        cmd::RES_MR_GET => ("mr", attr::RES_MR, (attr::RES_MRN, "mrn")),
        cmd::RES_PD_GET => ("pd", attr::RES_PD, (attr::RES_PDN, "pdn")),
        cmd::RES_CTX_GET => ("ctx", attr::RES_CTX, (attr::RES_CTXN, "ctxn")),
        cmd::RES_SRQ_GET => ("srq", attr::RES_SRQ, (attr::RES_SRQN, "srqn")),
        _ => return None,
    };
    Some(Table {
        kind,
        table,
        entry: table + 1,
        id,
    })
}

/// Fields that become attributes of 32, 64 and 8 bits.
const NUMBERS: [(&str, u16); 13] = [
    ("port", attr::PORT_INDEX),
    ("lqpn", attr::RES_LQPN),
    ("rqpn", attr::RES_RQPN),
    ("rq_psn", attr::RES_RQ_PSN),
    ("sq_psn", attr::RES_SQ_PSN),
    ("ps", attr::RES_PS),
    ("cqe", attr::RES_CQE),
    ("pdn", attr::RES_PDN),
    ("cqn", attr::RES_CQN),
    ("mrn", attr::RES_MRN),
    ("cm_idn", attr::RES_CM_IDN),
    ("ctxn", attr::RES_CTXN),
    ("srqn", attr::RES_SRQN),
];
const LONG_NUMBERS: [(&str, u16); 3] = [
    ("users", attr::RES_USECNT),
    ("iova", attr::RES_IOVA),
    ("mrlen", attr::RES_MRLEN),
];
const SHORT_NUMBERS: [(&str, u16); 3] = [
    ("mig", attr::RES_PATH_MIG_STATE),
    ("type", attr::RES_TYPE),
    ("state", attr::RES_STATE),
];

/// Adds the attributes of an object.
pub(super) fn put(message: &mut Message, resource: &Resource) {
    for (name, kind) in NUMBERS {
        if let Some(value) = resource.number(name) {
            message.put_u32(kind, value);
        }
    }
    for (name, kind) in LONG_NUMBERS {
        if let Some(value) = resource.number(name) {
            message.put_u64(kind, value);
        }
    }
    for (name, kind) in SHORT_NUMBERS {
        if let Some(value) = resource.number(name) {
            message.put_u8(kind, value);
        }
    }
    for (name, kind) in [("src", attr::RES_SRC_ADDR), ("dst", attr::RES_DST_ADDR)] {
        if let Some(address) = resource.number(name) {
            message.put(kind, &socket_address(address));
        }
    }
    message.put_u32(attr::RES_PID, resource.pid);
}

/// Returns a `struct sockaddr_in` or `sockaddr_in6`.
fn socket_address(address: SocketAddr) -> [u8; ADDRESS_LEN] {
    let mut bytes = [0; ADDRESS_LEN];
    let mut write = |at: usize, part: &[u8]| bytes[at..at + part.len()].copy_from_slice(part);
    write(2, &address.port().to_be_bytes());
    match address {
        SocketAddr::V4(address) => {
            write(0, &2_u16.to_ne_bytes());
            write(4, &address.ip().octets());
        }
        SocketAddr::V6(address) => {
            write(0, &10_u16.to_ne_bytes());
            write(8, &address.ip().octets());
            write(24, &address.scope_id().to_ne_bytes());
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_as_the_kernel_has_them() {
        let four = socket_address("1.2.3.4:258".parse().expect("an address"));
        assert_eq!(four[..8], [2, 0, 1, 2, 1, 2, 3, 4]);
        let six = socket_address("[::5]:1".parse().expect("an address"));
        assert_eq!((six[0], six[3], six[23]), (10, 1, 5));
    }
}
