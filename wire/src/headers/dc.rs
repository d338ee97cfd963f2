//! Headers of the dynamically connected transport, in an encoding that is specific to Rocade
//! (docs/dc.md).

use super::eth::be64;
use crate::Qpn;

/// DC extended transport header: follows the BTH of every DC request, and names its session.
//= DCW-04
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub struct DcEth {
    /// The access key of the target.
    pub key: u64,
    /// The packet is the first of the session.
    pub start: bool,
    /// Code of the path MTU, 1 to 5. 3 bits.
    pub pmtu: u8,
    /// Index among the initiator's concurrent sessions, 0 if there is only one. 4 bits.
    pub stream_channel: u8,
    /// QP number of the initiator, to which responses go.
    pub dci: Qpn,
    /// Number of the session, counted by the initiator modulo 2^32.
    pub session: u32,
}

impl DcEth {
    /// Bytes on the wire.
    pub const LEN: usize = 16;

    /// Reads the header.
    #[inline]
    #[must_use]
    pub const fn from_bytes(b: &[u8; Self::LEN]) -> Self {
        Self {
            key: be64(b, 0),
            start: b[8] & 0x80 != 0,
            pmtu: b[8] >> 4 & 7,
            stream_channel: b[8] & 0x0f,
            dci: Qpn::new(u32::from_be_bytes([0, b[9], b[10], b[11]])),
            session: u32::from_be_bytes([b[12], b[13], b[14], b[15]]),
        }
    }

    /// Writes the header.
    #[inline]
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        out[..8].copy_from_slice(&self.key.to_be_bytes());
        out[8..12].copy_from_slice(&self.dci.get().to_be_bytes());
        out[8] = u8::from(self.start) << 7 | (self.pmtu & 7) << 4 | self.stream_channel & 0x0f;
        out[12..].copy_from_slice(&self.session.to_be_bytes());
        out
    }
}

/// DC response header: follows the BTH of every DC response.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub struct DcRespEth {
    /// Number of the session of the request.
    pub session: u32,
}

impl DcRespEth {
    /// Bytes on the wire.
    pub const LEN: usize = 4;

    /// Reads the header.
    #[inline]
    #[must_use]
    pub const fn from_bytes(b: &[u8; Self::LEN]) -> Self {
        Self {
            session: u32::from_be_bytes(*b),
        }
    }

    /// Writes the header.
    #[inline]
    #[must_use]
    pub const fn to_bytes(&self) -> [u8; Self::LEN] {
        self.session.to_be_bytes()
    }
}

/// Probe that a process sends before the first DC packet to an address, and its answer.
///
/// Both are the payload of an ordinary datagram (UD SEND Only) between the two queue pairs. Any
/// device other than Rocade drops it, because no queue pair has the Q_Key.
//= DCW-18
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum RocadeProbe {
    /// Asks whether the receiver is Rocade.
    Request,
    /// Confirms that the sender is Rocade.
    Reply,
}

impl RocadeProbe {
    /// Bytes of the payload.
    pub const LEN: usize = 8;

    /// The Q_Key of the datagrams. Its highest bit is set, so that no unprivileged program can use
    /// it.
    pub const QKEY: u32 = 0xdc52_6f63;

    const MAGIC: [u8; 6] = *b"RocDC\x01";

    /// Reads the payload. `None` if it is anything else.
    #[must_use]
    pub fn from_payload(payload: &[u8]) -> Option<Self> {
        let (magic, [kind, 0]) = payload.split_first_chunk::<6>()? else {
            return None;
        };
        match kind {
            0 if *magic == Self::MAGIC => Some(Self::Request),
            1 if *magic == Self::MAGIC => Some(Self::Reply),
            _ => None,
        }
    }

    /// The payload.
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        out[..6].copy_from_slice(&Self::MAGIC);
        out[6] = u8::from(self == Self::Reply);
        out
    }
}

impl DcRespEth {
    /// Code of a NAK: the session does not exist, and the packet does not start one.
    //= DCW-11
    pub const NAK_NO_SESSION: u8 = 0x1e;

    /// Code of a NAK: there is no room for another session.
    pub const NAK_NO_RESOURCES: u8 = 0x1d;
}
