//! Steering: the top 8 bits of BTH.DestQP are a *slot* and select the process that gets a packet.
//!
//! Several processes share one IP address and UDP port 4791. Each has one socket of a
//! `SO_REUSEPORT` group. A classic BPF program on the group ([`steering_program`]) selects the
//! socket by the slot bits of the destination QP number. For messages to QP 1, it uses the slot
//! bits of the communication ID. A QP number therefore consists of 8 slot bits and 16 bits that are
//! unique inside the process ([`QpnAllocator`]).

use core::fmt;

use rocade_wire::Qpn;

mod cbpf;
mod gsi;
mod qpn_alloc;

pub use cbpf::{DEST_QP_SLOT_OFFSET, Insn, Program, steering_program};
pub use qpn_alloc::QpnAllocator;

/// Number of bits of a QP number below the slot.
const SLOT_SHIFT: u32 = 16;

/// The part of the QP number space that belongs to one process, given by DestQP bits 23:16. It is
/// also the index of the process's socket in each `SO_REUSEPORT` group.
///
/// Slot 0 is the broker's ([`ProcessSlot::BROKER`]), with QP0 and QP1. Slots 1 to 255 are leased to
/// processes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProcessSlot(u8);

impl ProcessSlot {
    /// Slot 0, the broker's own. QP0 and QP1 (GSI) are addressed here.
    pub const BROKER: Self = Self(0);

    /// The slot of a process that uses an address exclusively, without a broker.
    pub const EMBEDDED: Self = Self(1);

    /// Creates a slot from its number, 0 (the broker) to 255.
    #[must_use]
    pub const fn new(number: u8) -> Self {
        Self(number)
    }

    /// Returns the slot's number.
    #[must_use]
    pub const fn get(self) -> u8 {
        self.0
    }

    /// Returns the index of this slot's socket in the `SO_REUSEPORT` group.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// Returns the slot of a QP number: its bits 23:16.
    #[must_use]
    pub const fn of(qpn: Qpn) -> Self {
        let [_, slot, _, _] = qpn.get().to_be_bytes();
        Self(slot)
    }

    /// Returns the slot of a packet's (a UDP payload's) destination QP, or `None` if the packet is
    /// too short.
    #[must_use]
    pub fn of_packet(packet: &[u8]) -> Option<Self> {
        let at = usize::try_from(DEST_QP_SLOT_OFFSET).ok()?;
        packet.get(at).copied().map(Self)
    }

    /// Returns the slot to which the kernel steers a datagram. This is the slot of the destination
    /// QP or, for messages to QP 1, of the receiver's communication ID. Slot 0 if there is no such
    /// ID.
    #[must_use]
    pub fn of_datagram(payload: &[u8]) -> Option<Self> {
        let byte = |at: u32| payload.get(usize::try_from(at).ok()?).copied();
        let half = |at| Some(u32::from(byte(at)?) << 8 | u32::from(byte(at + 1)?));
        let slot = byte(DEST_QP_SLOT_OFFSET)?;
        if slot != 0 {
            return Some(Self(slot));
        }
        let is_cm = half(DEST_QP_SLOT_OFFSET + 1)? == 1
            && u32::from(byte(0)?) == gsi::OPCODE
            && u32::from(byte(gsi::CLASS_AT)?) == gsi::CLASS_CM;
        if !is_cm {
            return Some(Self::BROKER);
        }
        match half(gsi::ATTRIBUTE_AT)? {
            gsi::SIDR_REP => byte(gsi::FIRST_ID_AT).map(Self),
            gsi::MRA..=gsi::DREP | gsi::LAP | gsi::APR => byte(gsi::SECOND_ID_AT).map(Self),
            _ => Some(Self::BROKER),
        }
    }

    /// Returns the QP number with these low 16 bits in this slot.
    #[must_use]
    pub const fn qpn(self, low: u16) -> Qpn {
        Qpn::new(((self.0 as u32) << SLOT_SHIFT) | low as u32)
    }

    /// Returns all slots that a process can lease, lowest first.
    pub fn leasable() -> impl Iterator<Item = Self> {
        (1..=u8::MAX).map(Self)
    }
}

impl fmt::Debug for ProcessSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Slot({})", self.0)
    }
}

impl fmt::Display for ProcessSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// Returns the slot of a QP number, like [`ProcessSlot::of`].
#[must_use]
pub const fn slot_of(qpn: Qpn) -> ProcessSlot {
    ProcessSlot::of(qpn)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slot_is_the_top_byte_of_the_qp_number() {
        assert_eq!(slot_of(Qpn::new(0x12_3456)), ProcessSlot::new(0x12));
        assert_eq!(slot_of(Qpn::new(1)), ProcessSlot::BROKER);
        assert_eq!(ProcessSlot::new(0xAB).qpn(0xCDEF), Qpn::new(0xAB_CDEF));
        assert_eq!(ProcessSlot::leasable().count(), 255);
        assert_eq!(ProcessSlot::leasable().next(), Some(ProcessSlot::new(1)));
    }
}
