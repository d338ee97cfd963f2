//! One-line printers of messages.

use core::fmt;

use super::{CmMessage, Mad, TransportType};

impl fmt::Display for TransportType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rc => f.write_str("RC"),
            Self::Uc => f.write_str("UC"),
            Self::Rd => f.write_str("RD"),
            Self::Xrc => f.write_str("XRC"),
            Self::Other(other) => write!(f, "transport {other}"),
        }
    }
}

/// Prints a message, e.g. `CM RTU id=0x01020304 to=0x05060708`. Private data are left out.
impl fmt::Display for CmMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Req(m) => write!(
                f,
                "CM REQ id={} service={} {} qpn={} psn={} {} > {}",
                m.local_id,
                m.service_id,
                m.transport,
                m.qpn,
                m.starting_psn,
                m.primary.local_gid,
                m.primary.remote_gid
            ),
            Self::Mra(m) => write!(
                f,
                "CM MRA id={} to={} received={} timeout={}",
                m.local_id,
                m.remote_id,
                m.received,
                m.service_timeout.code()
            ),
            Self::Rej(m) => write!(
                f,
                "CM REJ id={} to={} rejected={} reason={}",
                m.local_id, m.remote_id, m.rejected, m.reason
            ),
            Self::Rep(m) => write!(
                f,
                "CM REP id={} to={} qpn={} psn={}",
                m.local_id, m.remote_id, m.qpn, m.starting_psn
            ),
            Self::Rtu(m) => write!(f, "CM RTU id={} to={}", m.local_id, m.remote_id),
            Self::Dreq(m) => write!(
                f,
                "CM DREQ id={} to={} qpn={}",
                m.local_id, m.remote_id, m.remote_qpn
            ),
            Self::Drep(m) => write!(f, "CM DREP id={} to={}", m.local_id, m.remote_id),
            Self::SidrReq(m) => write!(
                f,
                "CM SIDR_REQ id={} service={}",
                m.request_id, m.service_id
            ),
            Self::SidrRep(m) => write!(
                f,
                "CM SIDR_REP to={} status={} qpn={} qkey={}",
                m.request_id, m.status, m.qpn, m.qkey
            ),
            Self::Lap(m) => write!(
                f,
                "CM LAP id={} to={} {} > {}",
                m.local_id, m.remote_id, m.alternate.local_gid, m.alternate.remote_gid
            ),
            Self::Apr(m) => write!(
                f,
                "CM APR id={} to={} status={}",
                m.local_id, m.remote_id, m.status
            ),
        }
    }
}

impl fmt::Display for Mad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} tid={}", self.message, self.tid)
    }
}
