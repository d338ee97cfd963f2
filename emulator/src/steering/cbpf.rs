//! The classic BPF program that steers datagrams, built from typed instructions.
//!
//! For `SO_ATTACH_REUSEPORT_CBPF` the kernel runs the program over the UDP *payload* and takes its
//! result as an index into the group. An index beyond the group makes the kernel fall back to
//! hashing the 4-tuple. A load beyond the payload ends the program with result 0.

use core::fmt;

use super::gsi;

/// Offset of DestQP bits 23:16 (the slot) in the BTH, which begins the UDP payload.
pub const DEST_QP_SLOT_OFFSET: u32 = 5;

// Instruction codes: class | size | mode, from <linux/bpf_common.h>.
const BPF_LD_H_ABS: u16 = 0x28;
const BPF_LD_B_ABS: u16 = 0x30;
const BPF_JEQ_K: u16 = 0x15;
const BPF_JGE_K: u16 = 0x35;
const BPF_RET_A: u16 = 0x16;
const BPF_RET_K: u16 = 0x06;

/// An instruction. Only the required ones exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Insn {
    /// Loads the byte at this offset of the UDP payload into the accumulator.
    LoadByte(u32),
    /// Loads the two bytes at this offset, in network byte order.
    LoadHalf(u32),
    /// Skips instructions if the accumulator equals `value`.
    SkipIfEqual {
        /// The value to compare with.
        value: u32,
        /// Number of instructions to skip.
        skip: u8,
    },
    /// Skips instructions unless the accumulator equals `value`.
    SkipUnlessEqual {
        /// The value to compare with.
        value: u32,
        /// Number of instructions to skip.
        skip: u8,
    },
    /// Skips instructions if the accumulator is at least `value`.
    SkipIfAtLeast {
        /// The value to compare with.
        value: u32,
        /// Number of instructions to skip.
        skip: u8,
    },
    /// Returns the accumulator.
    ReturnAccumulator,
    /// Returns a constant.
    Return(u32),
}

impl Insn {
    /// Returns the kernel's encoding of the instruction: code, jump-true, jump-false and operand.
    #[must_use]
    pub const fn encode(self) -> libc::sock_filter {
        let (code, jt, jf, k) = match self {
            Self::LoadByte(offset) => (BPF_LD_B_ABS, 0, 0, offset),
            Self::LoadHalf(offset) => (BPF_LD_H_ABS, 0, 0, offset),
            Self::SkipIfEqual { value, skip } => (BPF_JEQ_K, skip, 0, value),
            Self::SkipUnlessEqual { value, skip } => (BPF_JEQ_K, 0, skip, value),
            Self::SkipIfAtLeast { value, skip } => (BPF_JGE_K, skip, 0, value),
            Self::ReturnAccumulator => (BPF_RET_A, 0, 0, 0),
            Self::Return(value) => (BPF_RET_K, 0, 0, value),
        };
        libc::sock_filter { code, jt, jf, k }
    }

    /// Returns the number of instructions that it may skip.
    const fn skips(self) -> usize {
        match self {
            Self::SkipIfEqual { skip, .. }
            | Self::SkipUnlessEqual { skip, .. }
            | Self::SkipIfAtLeast { skip, .. } => skip as usize,
            _ => 0,
        }
    }
}

impl fmt::Display for Insn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LoadByte(offset) => write!(f, "ldb [{offset}]"),
            Self::LoadHalf(offset) => write!(f, "ldh [{offset}]"),
            Self::SkipIfEqual { value, skip } => write!(f, "jeq #{value:#x}, +{skip}"),
            Self::SkipUnlessEqual { value, skip } => write!(f, "jne #{value:#x}, +{skip}"),
            Self::SkipIfAtLeast { value, skip } => write!(f, "jge #{value:#x}, +{skip}"),
            Self::ReturnAccumulator => write!(f, "ret a"),
            Self::Return(value) => write!(f, "ret #{value}"),
        }
    }
}

/// A program without backward jumps. `Display` prints one numbered instruction per line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    insns: Vec<Insn>,
}

impl Program {
    /// Creates a program. Returns `None` if it is empty, longer than the limit (4096), jumps beyond
    /// its end, or does not end with a return.
    #[must_use]
    pub fn new(insns: Vec<Insn>) -> Option<Self> {
        let returns = matches!(
            insns.last(),
            Some(Insn::ReturnAccumulator | Insn::Return(_))
        );
        let mut places = insns.iter().enumerate();
        let stays =
            places.all(|(at, insn)| insn.skips() == 0 || at + 1 + insn.skips() < insns.len());
        (returns && stays && insns.len() <= 4096).then_some(Self { insns })
    }

    /// Returns the instructions in order.
    #[must_use]
    pub fn insns(&self) -> &[Insn] {
        &self.insns
    }

    /// Returns the kernel's encoding of the program.
    #[must_use]
    pub fn encode(&self) -> Vec<libc::sock_filter> {
        self.insns.iter().map(|insn| insn.encode()).collect()
    }

    /// Runs the program on a UDP payload like the kernel.
    #[must_use]
    pub fn run(&self, payload: &[u8]) -> u32 {
        let load = |offset: u32, len: usize| {
            let at = usize::try_from(offset).ok()?;
            let bytes = payload.get(at..)?.get(..len)?;
            Some(
                bytes
                    .iter()
                    .fold(0, |all, &byte| all << 8 | u32::from(byte)),
            )
        };
        let mut accumulator = 0;
        let mut insns = self.insns.iter();
        while let Some(&insn) = insns.next() {
            let (loaded, skips) = match insn {
                Insn::LoadByte(offset) => (load(offset, 1), false),
                Insn::LoadHalf(offset) => (load(offset, 2), false),
                Insn::SkipIfEqual { value, .. } => (Some(accumulator), accumulator == value),
                Insn::SkipUnlessEqual { value, .. } => (Some(accumulator), accumulator != value),
                Insn::SkipIfAtLeast { value, .. } => (Some(accumulator), accumulator >= value),
                Insn::ReturnAccumulator => return accumulator,
                Insn::Return(value) => return value,
            };
            let Some(loaded) = loaded else { return 0 };
            accumulator = loaded;
            if skips {
                insns = insns.as_slice().get(insn.skips()..).unwrap_or(&[]).iter();
            }
        }
        0
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, insn) in self.insns.iter().enumerate() {
            writeln!(f, "{number}: {insn}")?;
        }
        Ok(())
    }
}

/// Returns the steering program of all groups. The slot bits of BTH.DestQP select the socket. For
/// messages to QP 1 with a receiver's communication ID, the slot bits of that ID do. It is the
/// kernel's version of [`ProcessSlot::of_datagram`](super::ProcessSlot::of_datagram).
#[must_use]
pub fn steering_program() -> Program {
    use Insn::{LoadByte, LoadHalf, Return, ReturnAccumulator};
    let equal = |value, skip| Insn::SkipIfEqual { value, skip };
    let unless = |value, skip| Insn::SkipUnlessEqual { value, skip };
    let at_least = |value, skip| Insn::SkipIfAtLeast { value, skip };
    Program {
        insns: vec![
            /* 0 */ LoadByte(DEST_QP_SLOT_OFFSET),
            /* 1 */ equal(0, 1),
            /* 2 */ ReturnAccumulator,
            /* 3 */ LoadHalf(DEST_QP_SLOT_OFFSET + 1),
            /* 4 */ unless(1, 10),
            /* 5 */ LoadByte(0),
            /* 6 */ unless(gsi::OPCODE, 8),
            /* 7 */ LoadByte(gsi::CLASS_AT),
            /* 8 */ unless(gsi::CLASS_CM, 6),
            /* 9 */ LoadHalf(gsi::ATTRIBUTE_AT),
            /* 10 */ equal(gsi::SIDR_REP, 5),
            /* 11 */ at_least(gsi::APR + 1, 3),
            /* 12 */ at_least(gsi::LAP, 5),
            /* 13 */ at_least(gsi::DREP + 1, 1),
            /* 14 */ at_least(gsi::MRA, 3),
            /* 15 */ Return(0),
            /* 16 */ LoadByte(gsi::FIRST_ID_AT),
            /* 17 */ ReturnAccumulator,
            /* 18 */ LoadByte(gsi::SECOND_ID_AT),
            /* 19 */ ReturnAccumulator,
        ],
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rocade_wire::Qpn;

    use super::*;
    use crate::steering::{ProcessSlot, slot_of};

    #[test]
    fn listing() {
        let listing = steering_program().to_string();
        let begin = "0: ldb [5]\n1: jeq #0x0, +1\n2: ret a\n3: ldh [6]\n4: jne #0x1, +10\n";
        assert!(listing.starts_with(begin), "{listing}");
        assert!(listing.ends_with("13: jge #0x17, +1\n14: jge #0x11, +3\n15: ret #0\n16: ldb [44]\n17: ret a\n18: ldb [48]\n19: ret a\n"));
        assert!(Program::new(steering_program().insns).is_some());
    }

    #[test]
    fn encoding_is_the_kernels() {
        let code: Vec<_> = steering_program()
            .encode()
            .iter()
            .map(|i| (i.code, i.jt, i.jf, i.k))
            .collect();
        let begin = [
            (0x30, 0, 0, 5),
            (0x15, 1, 0, 0),
            (0x16, 0, 0, 0),
            (0x28, 0, 0, 6),
            (0x15, 0, 10, 1),
        ];
        assert_eq!(code[..5], begin);
        assert_eq!(code[14], (0x35, 3, 0, 0x11));
        assert_eq!(Insn::Return(7).encode().code, 0x06);
    }

    #[test]
    fn short_payload_goes_to_the_broker() {
        assert_eq!(steering_program().run(&[0xFF; 5]), 0);
        assert_eq!(steering_program().run(&[]), 0);
    }

    #[test]
    fn program_must_return() {
        assert_eq!(Program::new(vec![]), None);
        assert_eq!(Program::new(vec![Insn::LoadByte(0)]), None);
        let too_far = Insn::SkipIfEqual { value: 0, skip: 1 };
        assert_eq!(Program::new(vec![too_far, Insn::Return(0)]), None);
        let constant = Program::new(vec![Insn::Return(3)]).unwrap();
        assert_eq!(constant.run(&[]), 3);
        assert_eq!(constant.to_string(), "0: ret #3\n");
    }

    proptest! {
        #[test]
        fn result_is_the_slot_of_the_destination(
            mut payload in proptest::collection::vec(any::<u8>(), 8..64),
            qpn in 0u32..1 << 24,
        ) {
            payload[5..8].copy_from_slice(&qpn.to_be_bytes()[1..]);
            prop_assume!(qpn != 1);
            prop_assert_eq!(
                steering_program().run(&payload),
                u32::from(slot_of(Qpn::new(qpn)).get())
            );
        }

        /// The kernel and [`ProcessSlot::of_datagram`] select the same slot for a message to QP 1.
        #[test]
        fn messages_to_qp_1_go_to_the_owner_of_the_connection(
            mut payload in proptest::collection::vec(any::<u8>(), 0..64),
            attribute in 0x0e_u8..0x1d,
            as_is in 0..5_usize,
        ) {
            let fields: [(usize, &[u8]); 4] = [
                (0, &[0x64]),
                (5, &[0, 0, 1]),
                (21, &[7]),
                (36, &[0, attribute]),
            ];
            for (index, (at, bytes)) in fields.into_iter().enumerate() {
                if index != as_is && let Some(field) = payload.get_mut(at..at + bytes.len()) {
                    field.copy_from_slice(bytes);
                }
            }
            let slot = ProcessSlot::of_datagram(&payload).unwrap_or(ProcessSlot::BROKER);
            prop_assert_eq!(steering_program().run(&payload), u32::from(slot.get()));
            if as_is == 4 && payload.len() >= 49 {
                let named = match attribute {
                    0x11..=0x16 | 0x19 | 0x1a => payload[48],
                    0x18 => payload[44],
                    _ => 0,
                };
                prop_assert_eq!(slot.get(), named);
            }
        }
    }
}
