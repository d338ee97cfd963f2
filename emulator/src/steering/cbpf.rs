//! The classic BPF program that steers datagrams, built from typed instructions.
//!
//! For `SO_ATTACH_REUSEPORT_CBPF` the kernel runs the program over the UDP *payload* and takes its
//! result as an index into the group. An index beyond the group makes the kernel fall back to
//! hashing the 4-tuple, and a load beyond the payload ends the program with result 0.

use core::fmt;

/// Offset of DestQP bits 23:16 (the slot) in the BTH, and so in the UDP payload.
pub const DEST_QP_SLOT_OFFSET: u32 = 5;

// Instruction codes: class | size | mode, from <linux/bpf_common.h>.
const BPF_LD_B_ABS: u16 = 0x30;
const BPF_RET_A: u16 = 0x16;
const BPF_RET_K: u16 = 0x06;

/// One instruction of the few this crate needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Insn {
    /// Load the byte at this offset of the UDP payload into the accumulator.
    LoadByte(u32),
    /// Return the accumulator.
    ReturnAccumulator,
    /// Return a constant.
    Return(u32),
}

impl Insn {
    /// The kernel's form of the instruction: code, jump-true, jump-false and operand.
    #[must_use]
    pub const fn encode(self) -> libc::sock_filter {
        let (code, k) = match self {
            Self::LoadByte(offset) => (BPF_LD_B_ABS, offset),
            Self::ReturnAccumulator => (BPF_RET_A, 0),
            Self::Return(value) => (BPF_RET_K, value),
        };
        libc::sock_filter {
            code,
            jt: 0,
            jf: 0,
            k,
        }
    }
}

impl fmt::Display for Insn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LoadByte(offset) => write!(f, "ldb [{offset}]"),
            Self::ReturnAccumulator => write!(f, "ret a"),
            Self::Return(value) => write!(f, "ret #{value}"),
        }
    }
}

/// A straight-line program. Its `Display` is a listing, one numbered instruction per line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    insns: Vec<Insn>,
}

impl Program {
    /// Makes a program, or `None` if it is empty, longer than a program may be (4096), or does
    /// not end with a return.
    #[must_use]
    pub fn new(insns: Vec<Insn>) -> Option<Self> {
        let returns = matches!(
            insns.last(),
            Some(Insn::ReturnAccumulator | Insn::Return(_))
        );
        (returns && insns.len() <= 4096).then_some(Self { insns })
    }

    /// The instructions in order.
    #[must_use]
    pub fn insns(&self) -> &[Insn] {
        &self.insns
    }

    /// The program in the form the kernel takes.
    #[must_use]
    pub fn encode(&self) -> Vec<libc::sock_filter> {
        self.insns.iter().map(|insn| insn.encode()).collect()
    }

    /// Runs the program over a UDP payload as the kernel would.
    #[must_use]
    pub fn run(&self, payload: &[u8]) -> u32 {
        let mut accumulator = 0;
        for insn in &self.insns {
            match *insn {
                Insn::LoadByte(offset) => {
                    let byte = usize::try_from(offset).ok().and_then(|at| payload.get(at));
                    let Some(&byte) = byte else { return 0 };
                    accumulator = u32::from(byte);
                }
                Insn::ReturnAccumulator => return accumulator,
                Insn::Return(value) => return value,
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

/// The program on every group: the slot bits of BTH.DestQP select the socket.
#[must_use]
pub fn steering_program() -> Program {
    Program {
        insns: vec![Insn::LoadByte(DEST_QP_SLOT_OFFSET), Insn::ReturnAccumulator],
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rocade_wire::Qpn;

    use super::*;
    use crate::steering::slot_of;

    #[test]
    fn listing() {
        assert_eq!(steering_program().to_string(), "0: ldb [5]\n1: ret a\n");
    }

    #[test]
    fn encoding_is_the_kernels() {
        let code: Vec<_> = steering_program()
            .encode()
            .iter()
            .map(|i| (i.code, i.jt, i.jf, i.k))
            .collect();
        assert_eq!(code, [(0x30, 0, 0, 5), (0x16, 0, 0, 0)]);
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
            prop_assert_eq!(
                steering_program().run(&payload),
                u32::from(slot_of(Qpn::new(qpn)).get())
            );
        }
    }
}
