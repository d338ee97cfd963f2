//! Addresses that peers exchange before they connect: endpoints and remote memory.

use std::io::{Read, Write};
use std::ops::RangeBounds;

use rocade_emulator::{Gid, Mtu, Psn, Qpn, Rkey};

use crate::error::{ExchangeError, MalformedError, RangeError, Result};
use crate::range::resolve_u64;

/// One end of a connection. A peer connects to this end with it.
///
/// ```
/// # use std::time::Duration;
/// # use rocade_verbs::*;
/// # let list = DeviceList::new(Config::simulated(1))?;
/// # let (a, b) = (list.open("a")?.protection_domain()?, list.open("b")?.protection_domain()?);
/// # let (a_cq, b_cq) = (a.context().completion_queue(16)?, b.context().completion_queue(16)?);
/// let queue_pair = a.queue_pair(&a_cq).build()?;
/// let bytes = queue_pair.endpoint().to_bytes();
/// // Any channel can carry the bytes, such as a file or an environment variable.
/// let peer = b.queue_pair(&b_cq).build()?;
/// let peer = peer.connect(Endpoint::from_bytes(&bytes)?, &ConnectOptions::default())?;
/// assert_eq!(peer.peer(), queue_pair.endpoint());
/// # Ok::<(), rocade_verbs::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Endpoint {
    /// The GID of the port. On RoCE it is an IP address.
    pub gid: Gid,
    /// The queue pair number.
    pub qp_num: Qpn,
    /// The PSN of the first packet that this end sends.
    pub psn: Psn,
    /// The active MTU of the port. The path MTU is the smaller one of both ends.
    pub mtu: Mtu,
}

impl Endpoint {
    /// The length of the encoded form in bytes.
    pub const ENCODED_LEN: usize = 25;

    /// Encodes the endpoint: GID (16 bytes), queue pair number and PSN (32 bits each, big-endian)
    /// and MTU code (one byte).
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::ENCODED_LEN] {
        let mut bytes = [0; Self::ENCODED_LEN];
        bytes[..16].copy_from_slice(&self.gid.octets());
        bytes[16..20].copy_from_slice(&self.qp_num.get().to_be_bytes());
        bytes[20..24].copy_from_slice(&self.psn.get().to_be_bytes());
        bytes[24] = self.mtu.code();
        bytes
    }

    /// Decodes the output of [`to_bytes`](Self::to_bytes).
    ///
    /// # Errors
    /// [`MalformedError`] if a field is out of range.
    pub fn from_bytes(bytes: &[u8; Self::ENCODED_LEN]) -> Result<Self, MalformedError> {
        let (gid, rest) = bytes
            .split_first_chunk()
            .ok_or(MalformedError("endpoint"))?;
        let mtu = Mtu::from_code(bytes[24]).ok_or(MalformedError("endpoint: MTU"))?;
        Ok(Self {
            gid: Gid::new(*gid),
            qp_num: Qpn::new(be32(rest, 0, "endpoint: queue pair number", 24)?),
            psn: Psn::new(be32(rest, 4, "endpoint: PSN", 24)?),
            mtu,
        })
    }

    /// Sends this endpoint to the peer and receives the peer's endpoint.
    ///
    /// Any byte stream will do: a TCP connection (`exchange(&stream, &stream)`) or a pair of pipes.
    ///
    /// # Errors
    /// - [`ExchangeError::Io`] if the stream fails.
    /// - [`ExchangeError::Malformed`] if the peer does not send an endpoint.
    pub fn exchange(
        &self,
        mut from_peer: impl Read,
        mut to_peer: impl Write,
    ) -> Result<Self, ExchangeError> {
        to_peer.write_all(&self.to_bytes())?;
        to_peer.flush()?;
        let mut bytes = [0; Self::ENCODED_LEN];
        from_peer.read_exact(&mut bytes)?;
        Ok(Self::from_bytes(&bytes)?)
    }
}

/// Registered memory of the peer: its address, length and remote key.
///
/// ```
/// use rocade_verbs::{AccessFlags, Config, DeviceList, RemoteMemory};
///
/// let domain = DeviceList::new(Config::simulated(1))?.open("a")?.protection_domain()?;
/// let memory = domain.register(4096, AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE)?;
/// let bytes = memory.remote().to_bytes();
/// let second_half = RemoteMemory::from_bytes(&bytes).at(2048);
/// assert_eq!(second_half.len, 2048);
/// assert_eq!(second_half.slice(8..16)?.addr, memory.remote().at(2056).addr);
/// # Ok::<(), rocade_verbs::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemoteMemory {
    /// The address of the first byte, as the peer's region numbers it.
    pub addr: u64,
    /// The remote key.
    pub rkey: Rkey,
    /// The length in bytes from `addr` to the end of the region.
    pub len: u64,
}

impl RemoteMemory {
    /// The length of the encoded form in bytes.
    pub const ENCODED_LEN: usize = 20;

    /// Returns the memory without its first `offset` bytes. This side does not check the offset:
    /// the peer rejects accesses beyond the end.
    #[must_use]
    pub const fn at(self, offset: u64) -> Self {
        Self {
            addr: self.addr.wrapping_add(offset),
            rkey: self.rkey,
            len: self.len.saturating_sub(offset),
        }
    }

    /// Returns a part of the memory. `..` is all of it.
    ///
    /// # Errors
    /// [`RangeError`] if the range is not inside the memory.
    pub fn slice(self, range: impl RangeBounds<u64>) -> Result<Self, RangeError> {
        let (offset, len) = resolve_u64(&range, self.len)?;
        Ok(Self {
            len,
            ..self.at(offset)
        })
    }

    /// Encodes address (64 bits), key (32 bits) and length (64 bits), big-endian.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::ENCODED_LEN] {
        let mut bytes = [0; Self::ENCODED_LEN];
        bytes[..8].copy_from_slice(&self.addr.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.rkey.get().to_be_bytes());
        bytes[12..].copy_from_slice(&self.len.to_be_bytes());
        bytes
    }

    /// Decodes the output of [`to_bytes`](Self::to_bytes).
    #[must_use]
    pub fn from_bytes(bytes: &[u8; Self::ENCODED_LEN]) -> Self {
        let [a0, a1, a2, a3, a4, a5, a6, a7, k0, k1, k2, k3, len @ ..] = *bytes;
        Self {
            addr: u64::from_be_bytes([a0, a1, a2, a3, a4, a5, a6, a7]),
            rkey: Rkey::new(u32::from_be_bytes([k0, k1, k2, k3])),
            len: u64::from_be_bytes(len),
        }
    }
}

/// Reads a big-endian number of at most `bits` bits from the 4 bytes at `at`.
fn be32(bytes: &[u8], at: usize, what: &'static str, bits: u32) -> Result<u32, MalformedError> {
    let field = bytes
        .get(at..at + 4)
        .and_then(|field| field.try_into().ok());
    let value = field.map(u32::from_be_bytes).ok_or(MalformedError(what))?;
    if value >> bits == 0 {
        Ok(value)
    } else {
        Err(MalformedError(what))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint() -> Endpoint {
        Endpoint {
            gid: Gid::from_ip("2001:db8::7".parse().unwrap()),
            qp_num: Qpn::new(0x0a_1234),
            psn: Psn::new(0xff_ffff),
            mtu: Mtu::Mtu1024,
        }
    }

    #[test]
    fn endpoints_survive_encoding() {
        assert_eq!(
            Endpoint::from_bytes(&endpoint().to_bytes()).unwrap(),
            endpoint()
        );
    }

    #[test]
    fn nonsense_is_refused() {
        for (at, value) in [(16, 1), (20, 1), (24, 0), (24, 6)] {
            let mut bytes = endpoint().to_bytes();
            bytes[at] = value;
            assert!(Endpoint::from_bytes(&bytes).is_err(), "byte {at}");
        }
    }

    #[test]
    fn exchange_sends_one_and_receives_the_other() {
        let peer = Endpoint {
            qp_num: Qpn::new(9),
            ..endpoint()
        };
        let mut sent = Vec::new();
        let received = endpoint()
            .exchange(&peer.to_bytes()[..], &mut sent)
            .unwrap();
        assert_eq!(received, peer);
        assert_eq!(sent, endpoint().to_bytes());
        assert!(endpoint().exchange(&[0u8; 3][..], Vec::new()).is_err());
    }

    #[test]
    fn remote_memory_survives_encoding() {
        let memory = RemoteMemory {
            addr: u64::MAX - 4,
            rkey: Rkey::new(0x1234_5678),
            len: 99,
        };
        assert_eq!(RemoteMemory::from_bytes(&memory.to_bytes()), memory);
        assert_eq!(memory.at(100).len, 0);
        assert_eq!(
            memory.slice(..4).unwrap(),
            RemoteMemory { len: 4, ..memory }
        );
        assert_eq!(memory.slice(95..).unwrap(), memory.at(95));
        assert!(memory.slice(95..100).is_err());
    }
}
