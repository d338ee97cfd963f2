//! The fast path for parsing the most frequent packets, which have few headers.

use crate::{Aeth, Bth, CreditCode, ExtHeaders, ICRC_LEN, Msn, Operation, Packet, Reth};

/// Length of the bytes that the fast path reads: BTH, and the syndrome after it. No packet is
/// shorter.
const HEAD_LEN: usize = Packet::MIN_LEN;

/// A packet on the fast path: a SEND or WRITE Only, a SEND or WRITE Middle, all without pad, or a
/// positive Acknowledge.
///
/// Its service adds no headers of its own to it. TVer is 0. No other field has been checked, not
/// even the service.
#[derive(Clone, Copy, Debug)]
pub struct FastPathPacket<'a> {
    /// The unparsed bytes: fields are decoded on access, and most callers access few.
    head: [u8; HEAD_LEN],
    operation: Operation,
    bytes: &'a [u8],
}

impl<'a> FastPathPacket<'a> {
    /// Length of an Acknowledge: BTH, AETH, ICRC.
    const ACK_LEN: usize = 20;
    /// Length of BTH and RETH.
    const WRITE_HEAD_LEN: usize = Bth::LEN + Reth::LEN;

    /// Parses a UDP payload. `None` if it needs [`Packet::parse`].
    #[inline]
    #[must_use]
    pub fn parse(udp_payload: &'a [u8]) -> Option<Self> {
        Self::read(udp_payload.first_chunk()?, udp_payload, true)
    }

    /// Parses a packet in memory that another process may change at the same time.
    ///
    /// `head` is a copy of its first bytes, and of `udp_payload` only the length is used. `None`
    /// for a WRITE Only, too, because its RETH is not in the copy.
    #[inline(always)]
    #[must_use]
    pub fn parse_in_place(head: &[u8; HEAD_LEN], udp_payload: &'a [u8]) -> Option<Self> {
        Self::read(head, udp_payload, false)
    }

    // Inlined: only the code for the fields that the caller uses is left.
    #[inline(always)]
    fn read(head: &[u8; HEAD_LEN], udp_payload: &'a [u8], stays: bool) -> Option<Self> {
        let bth = bth_of(head);
        //= BTH-04 BTH-05 ENC-16
        if bth.pad_count != 0 || bth.tver != 0 || udp_payload.len() < Packet::MIN_LEN {
            return None;
        }
        let operation = bth.opcode.operation()?;
        let ext = bth.opcode.ext()?;
        #[expect(
            clippy::wildcard_enum_match_arm,
            reason = "the slow path takes every other operation"
        )]
        match operation {
            //= OPC-32 OPC-35
            Operation::SendOnly | Operation::SendMiddle | Operation::WriteMiddle
                if ext.is_empty() => {}
            Operation::Acknowledge if ext == ExtHeaders::AETH => {
                let syndrome = head[Bth::LEN];
                let positive = syndrome >> 5 == 0;
                if !positive || udp_payload.len() != Self::ACK_LEN {
                    return None;
                }
            }
            Operation::WriteOnly
                if stays
                    && ext == ExtHeaders::RETH
                    && udp_payload.len() >= Self::WRITE_HEAD_LEN + ICRC_LEN => {}
            _ => return None,
        }
        Some(Self {
            head: *head,
            operation,
            bytes: udp_payload,
        })
    }

    /// The base transport header.
    #[inline(always)]
    #[must_use]
    pub const fn bth(&self) -> Bth {
        bth_of(&self.head)
    }

    /// Returns the operation.
    #[inline]
    #[must_use]
    pub const fn operation(&self) -> Operation {
        self.operation
    }

    /// Returns the credits and the MSN of a positive Acknowledge. Undefined for any other packet.
    #[inline]
    #[must_use]
    pub const fn credits(&self) -> (CreditCode, Msn) {
        let [.., syndrome, a, b, c] = self.head;
        let msn = Aeth::from_bytes(&[syndrome, a, b, c]).msn;
        (CreditCode::from_low_bits(syndrome), msn)
    }

    /// Returns the RETH of a WRITE Only.
    #[inline]
    #[must_use]
    pub fn reth(&self) -> Option<Reth> {
        let of_write = self.operation == Operation::WriteOnly;
        let reth = self.bytes.get(Bth::LEN..)?.first_chunk()?;
        of_write.then(|| Reth::from_bytes(reth))
    }

    /// Returns the payload, or the AETH of an Acknowledge.
    #[inline]
    #[must_use]
    pub fn body(&self) -> &'a [u8] {
        let head_len = if self.operation == Operation::WriteOnly {
            Self::WRITE_HEAD_LEN
        } else {
            Bth::LEN
        };
        &self.covered()[head_len..]
    }

    /// Returns everything before the ICRC.
    #[inline]
    #[must_use]
    pub fn covered(&self) -> &'a [u8] {
        &self.bytes[..self.bytes.len() - ICRC_LEN]
    }

    /// Returns the ICRC as received.
    #[inline]
    #[must_use]
    pub fn icrc_bytes(&self) -> [u8; ICRC_LEN] {
        self.bytes.last_chunk().copied().unwrap_or([0; ICRC_LEN])
    }
}

#[inline(always)]
const fn bth_of(head: &[u8; HEAD_LEN]) -> Bth {
    match head.first_chunk() {
        Some(bth) => Bth::from_bytes(bth),
        None => Bth::from_bytes(&[0; Bth::LEN]),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use std::vec::Vec;

    use super::*;
    use crate::{Opcode, Service, Syndrome};

    proptest! {
        /// Checks that it returns the same as the slow path, or `None`.
        #[test]
        fn reads_what_packet_reads(
            mut bytes in prop::collection::vec(any::<u8>(), 0..60),
            (service, operation) in (0..8u8, 0..20u8),
            flags: u8,
            aeth: u8,
        ) {
            if let [first, second, ..] = bytes.as_mut_slice() {
                *first = service << 5 | operation;
                *second &= flags;
            }
            if let Some(syndrome) = bytes.get_mut(Bth::LEN) {
                *syndrome &= aeth;
            }
            let packet = Packet::parse(&bytes);
            match FastPathPacket::parse(&bytes) {
                Some(short) => {
                    let packet = packet.unwrap();
                    prop_assert_eq!(&short.bth(), packet.bth());
                    prop_assert_eq!(Some(short.operation()), packet.bth().opcode.operation());
                    prop_assert_eq!(short.covered(), packet.covered());
                    prop_assert_eq!(short.icrc_bytes(), packet.icrc_bytes());
                    match packet.headers().aeth {
                        Some(aeth) => {
                            let (credits, msn) = short.credits();
                            prop_assert_eq!(Syndrome::Ack(credits), aeth.syndrome);
                            prop_assert_eq!(msn, aeth.msn);
                        }
                        None => prop_assert_eq!(short.body(), packet.payload()),
                    }
                    prop_assert_eq!(short.reth(), packet.headers().reth);
                }
                None => if let Ok(packet) = packet {
                    let operation = packet.bth().opcode.operation();
                    let of_data = matches!(
                        operation,
                        Some(Operation::SendOnly | Operation::SendMiddle
                            | Operation::WriteMiddle | Operation::WriteOnly)
                    );
                    let usual = match operation {
                        Some(Operation::WriteOnly) => ExtHeaders::RETH,
                        _ => ExtHeaders::empty(),
                    };
                    let has_more_headers = packet.bth().opcode.ext() != Some(usual);
                    prop_assert!(!of_data || has_more_headers || packet.bth().pad_count > 0);
                    let ack = packet.headers().aeth.map(|aeth| aeth.syndrome);
                    let is_plain_ack = operation == Some(Operation::Acknowledge)
                        && matches!(ack, Some(Syndrome::Ack(_)))
                        && packet.bth().opcode.ext() == Some(ExtHeaders::AETH)
                        && packet.payload().is_empty()
                        && packet.bth().pad_count == 0;
                    prop_assert!(!is_plain_ack);
                }
            }
        }
    }

    /// Checks that packets of other services are parsed only if their layout is the same.
    ///
    /// The extension header of XRC, UD or RD after the BTH is no payload.
    //= OPC-32 OPC-35 type=test
    #[test]
    fn headers_of_other_services_are_no_payload() {
        let mut taken = Vec::new();
        for code in (0..=u8::MAX).map(Opcode::new) {
            let bytes = [&[code.get(), 0][..], &[0; 18]].concat();
            let Some(short) = FastPathPacket::parse(&bytes) else {
                continue;
            };
            taken.push(code);
            let packet = Packet::parse(&bytes).expect("the slow path reads it too");
            let is_ack = short.operation() == Operation::Acknowledge;
            assert_eq!(packet.headers().aeth.is_some(), is_ack, "{code}");
            assert!(is_ack || packet.payload() == short.body(), "{code}");
        }
        let of = |service, operation| Opcode::of(service, operation).expect("defined");
        let expected = [
            of(Service::Rc, Operation::SendMiddle),
            of(Service::Rc, Operation::SendOnly),
            of(Service::Rc, Operation::WriteMiddle),
            of(Service::Rc, Operation::Acknowledge),
            of(Service::Uc, Operation::SendMiddle),
            of(Service::Uc, Operation::SendOnly),
            of(Service::Uc, Operation::WriteMiddle),
            of(Service::Xrc, Operation::Acknowledge),
        ];
        assert_eq!(taken, expected);
        let is_write = |code: &Opcode| {
            let bytes = [&[code.get(), 0][..], &[0; 30]].concat();
            assert!(FastPathPacket::parse(&bytes[..31]).is_none_or(|short| short.reth().is_none()));
            let head = bytes.first_chunk().unwrap();
            assert!(
                FastPathPacket::parse_in_place(head, &bytes).is_none_or(|it| it.reth().is_none())
            );
            FastPathPacket::parse(&bytes).is_some_and(|short| short.reth().is_some())
        };
        let writes: Vec<_> = (0..=u8::MAX).map(Opcode::new).filter(is_write).collect();
        let expected = [Service::Rc, Service::Uc].map(|service| of(service, Operation::WriteOnly));
        assert_eq!(writes, expected);
    }

    #[test]
    fn the_copy_of_the_head_counts() {
        let mut bytes: Vec<u8> = (0..40).collect();
        let mut head = [0; HEAD_LEN];
        head[0] = 7;
        assert!(FastPathPacket::parse_in_place(&head, &bytes).is_some());
        head[0] = 6;
        bytes[0] = 7;
        assert!(FastPathPacket::parse_in_place(&head, &bytes).is_none());
    }
}
