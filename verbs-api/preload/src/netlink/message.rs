//! Netlink messages: parses requests and builds replies.

use super::abi::{
    NLM_F_ACK_TLVS, NLM_F_CAPPED, NLM_F_MULTI, NLMSG_DONE, NLMSG_ERROR, NLMSGERR_ATTR_MSG,
};

/// `struct nlmsghdr`: length, type, flags, sequence number, port.
pub(super) const HEADER_LEN: usize = 16;
/// `struct nlattr`: length and type.
const ATTR_HEADER_LEN: usize = 4;
/// The bits of an attribute's type without its flags.
const ATTR_TYPE_MASK: u16 = 0x3fff;

/// Returns a length with its padding.
const fn aligned(len: usize) -> usize {
    len.saturating_add(3) & !3
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    let bytes = bytes.get(at..)?.first_chunk()?;
    Some(u16::from_ne_bytes(*bytes))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..)?.first_chunk()?;
    Some(u32::from_ne_bytes(*bytes))
}

/// A message from a program.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request<'a> {
    pub(super) kind: u16,
    pub(super) flags: u16,
    pub(super) seq: u32,
    header: &'a [u8; HEADER_LEN],
    attributes: &'a [u8],
}

impl<'a> Request<'a> {
    /// Returns the first message in `bytes`, and the bytes behind it. Returns `None` if there is no
    /// complete message.
    fn first(bytes: &'a [u8]) -> Option<(Self, &'a [u8])> {
        let header: &[u8; HEADER_LEN] = bytes.first_chunk()?;
        let len = usize::try_from(u32_at(bytes, 0)?).ok()?;
        let attributes = bytes.get(HEADER_LEN..len)?;
        let rest = bytes.get(aligned(len)..).unwrap_or_default();
        let request = Self {
            kind: u16_at(bytes, 4)?,
            flags: u16_at(bytes, 6)?,
            seq: u32_at(bytes, 8)?,
            header,
            attributes,
        };
        Some((request, rest))
    }

    /// Returns the payload of the last attribute of this type. The kernel also takes the last one.
    pub(super) fn attribute(&self, kind: u16) -> Option<&'a [u8]> {
        let mut left = self.attributes;
        let mut found = None;
        while let (Some(len), Some(its_kind)) = (u16_at(left, 0), u16_at(left, 2)) {
            let len = usize::from(len);
            let Some(payload) = left.get(ATTR_HEADER_LEN..len) else {
                break;
            };
            if its_kind & ATTR_TYPE_MASK == kind {
                found = Some(payload);
            }
            left = left.get(aligned(len)..).unwrap_or_default();
        }
        found
    }

    /// Returns a 32-bit attribute, or `None` if it is missing or too short.
    pub(super) fn number(&self, kind: u16) -> Option<u32> {
        u32_at(self.attribute(kind)?, 0)
    }

    /// Returns true if all bits of `flags` are set.
    pub(super) const fn has(&self, flags: u16) -> bool {
        self.flags & flags == flags
    }
}

/// Returns the messages in a datagram, up to the first incomplete one.
pub(super) fn requests(bytes: &[u8]) -> impl Iterator<Item = Request<'_>> {
    let mut left = bytes;
    std::iter::from_fn(move || {
        let (request, rest) = Request::first(left)?;
        left = rest;
        Some(request)
    })
}

/// A message under construction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Message(Vec<u8>);

impl Message {
    /// Creates a message without a payload, in reply to `request`.
    pub(super) fn reply(request: &Request<'_>, port_id: u32, kind: u16, flags: u16) -> Self {
        let mut bytes = vec![0; 4];
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(flags.to_ne_bytes());
        bytes.extend(request.seq.to_ne_bytes());
        bytes.extend(port_id.to_ne_bytes());
        Self(bytes)
    }

    /// Creates an acknowledgement, or an error if `errno` is not 0.
    pub(super) fn acknowledgement(
        request: &Request<'_>,
        port_id: u32,
        errno: i32,
        word: Option<&str>,
    ) -> Self {
        let flags = NLM_F_CAPPED | if word.is_some() { NLM_F_ACK_TLVS } else { 0 };
        let mut message = Self::reply(request, port_id, NLMSG_ERROR, flags);
        message.0.extend(errno.saturating_neg().to_ne_bytes());
        message.0.extend(request.header);
        if let Some(word) = word {
            message.put_text(NLMSGERR_ATTR_MSG, word);
        }
        message
    }

    /// Creates the message at the end of a dump.
    pub(super) fn done(request: &Request<'_>, port_id: u32) -> Self {
        let mut message = Self::reply(request, port_id, NLMSG_DONE, NLM_F_MULTI);
        message.0.extend(0_i32.to_ne_bytes());
        message
    }

    /// Adds an attribute. A payload that is too long for an attribute is skipped.
    pub(super) fn put(&mut self, kind: u16, payload: &[u8]) {
        let Ok(len) = u16::try_from(ATTR_HEADER_LEN + payload.len()) else {
            return;
        };
        self.0.extend(len.to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(payload);
        self.0.resize(aligned(self.0.len()), 0);
    }

    pub(super) fn put_u8(&mut self, kind: u16, value: u8) {
        self.put(kind, &[value]);
    }

    pub(super) fn put_u32(&mut self, kind: u16, value: u32) {
        self.put(kind, &value.to_ne_bytes());
    }

    pub(super) fn put_u64(&mut self, kind: u16, value: u64) {
        self.put(kind, &value.to_ne_bytes());
    }

    /// Adds a string with its terminator.
    pub(super) fn put_text(&mut self, kind: u16, text: &str) {
        self.put(kind, format!("{text}\0").as_bytes());
    }

    /// Adds an attribute that contains those that `fill` adds.
    pub(super) fn put_nested(&mut self, kind: u16, fill: impl FnOnce(&mut Self)) {
        let mut inner = Self(Vec::new());
        fill(&mut inner);
        self.put(kind, &inner.0);
    }

    pub(super) const fn len(&self) -> usize {
        self.0.len()
    }

    /// Sets the length, and returns the message.
    pub(super) fn finish(mut self) -> Vec<u8> {
        let len = u32::try_from(self.0.len()).unwrap_or(u32::MAX);
        if let Some(place) = self.0.first_chunk_mut() {
            *place = len.to_ne_bytes();
        }
        self.0
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Builds a request like a program.
    pub(in crate::netlink) fn request(
        kind: u16,
        flags: u16,
        attributes: &[(u16, &[u8])],
    ) -> Vec<u8> {
        let none = [0; HEADER_LEN];
        let head = Request {
            kind,
            flags,
            seq: 7,
            header: &none,
            attributes: &[],
        };
        let mut message = Message::reply(&head, 0, kind, flags);
        for (kind, payload) in attributes {
            message.put(*kind, payload);
        }
        message.finish()
    }

    #[test]
    fn what_is_put_in_comes_out() {
        let mut bytes = request(5121, 0x305, &[(1, &[1, 0, 0, 0]), (2, b"abcde\0")]);
        let first_len = bytes.len();
        bytes.extend(request(5122, 1, &[]));
        let found: Vec<_> = requests(&bytes).collect();
        assert_eq!(found.len(), 2);
        assert_eq!(
            (found[0].kind, found[0].flags, found[0].seq),
            (5121, 0x305, 7)
        );
        assert_eq!(found[0].number(1), Some(1));
        assert_eq!(found[0].attribute(2), Some(&b"abcde\0"[..]));
        assert_eq!(found[0].attribute(3), None);
        assert_eq!(first_len % 4, 0);
        assert_eq!(found[1].kind, 5122);
    }

    #[test]
    fn broken_lengths_end_the_list() {
        let good = request(5121, 1, &[(1, &[1, 0, 0, 0])]);
        for len in [0_u32, 1, 15, 25, u32::MAX] {
            let mut bytes = good.clone();
            bytes[..4].copy_from_slice(&len.to_ne_bytes());
            assert_eq!(requests(&bytes).count(), 0, "{len}");
        }
        for len in [0_u16, 3, 9, u16::MAX] {
            let mut bytes = good.clone();
            bytes[16..18].copy_from_slice(&len.to_ne_bytes());
            let found = requests(&bytes).next().expect("the message is complete");
            assert_eq!(found.attribute(1), None, "{len}");
        }
        for len in 0..good.len() {
            assert_eq!(requests(&good[..len]).count(), 0, "{len}");
        }
    }
}
