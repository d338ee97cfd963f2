//! Cross-channel operations: queues that wait for each other without the application.
//!
//! A work request can wait until a CQ has a given number of completions
//! ([`SendOp::Wait`](crate::SendOp::Wait)). It can also release work requests of another queue
//! ([`SendOp::Enable`](crate::SendOp::Enable)). A managed queue executes only released work
//! requests, as its [`Gate`] records. A work request can also send the result of a calculation
//! ([`Calc`]).

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::fmt;
use core::sync::atomic::{AtomicU32, Ordering};

use rocade_wire::Qpn;

use crate::memory::{AccessError, Accessor, Memory};
use crate::wr::{LocalData, Operands};

/// The condition that a [`SendOp::Wait`](crate::SendOp::Wait) waits for.
pub trait Condition: fmt::Debug + Send + Sync {
    /// Returns true if the condition holds. If not, the queue pair `who` has to be polled again
    /// once it holds.
    fn holds_for(&self, who: Qpn) -> bool;
}

/// The action of a [`SendOp::Enable`](crate::SendOp::Enable).
pub trait Release: fmt::Debug + Send + Sync {
    /// Releases the work requests.
    fn release(&self);
}

/// The position up to which a managed queue may execute. Positions count work requests posted since
/// the queue was reset, modulo 2^32.
#[derive(Debug, Default)]
pub struct Gate {
    posted: AtomicU32,
    released: AtomicU32,
}

impl Gate {
    /// Returns the number of work requests posted since the queue was reset.
    #[must_use]
    pub fn posted(&self) -> u32 {
        self.posted.load(Ordering::Relaxed)
    }

    /// Allows at least the work requests before `position` to be executed.
    //= XCE-04
    pub fn release_to(&self, position: u32) {
        let further = |released| is_before(released, position).then_some(position);
        // Fails if the position was reached before.
        let _ = self
            .released
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, further);
    }

    /// Returns true if the oldest of `waiting` posted work requests may be executed.
    pub(crate) fn is_open(&self, waiting: usize) -> bool {
        let waiting = u32::try_from(waiting).unwrap_or(u32::MAX);
        let position = self.posted().wrapping_sub(waiting);
        waiting > 0 && is_before(position, self.released.load(Ordering::Acquire))
    }

    /// Counts one more posted work request.
    pub fn note_posted(&self) {
        self.posted.fetch_add(1, Ordering::Relaxed);
    }

    /// Discounts work requests whose posting was undone.
    pub(crate) fn note_unposted(&self, count: u32) {
        self.posted.fetch_sub(count, Ordering::Relaxed);
    }

    //= XCE-06
    pub(crate) fn reset(&self) {
        self.posted.store(0, Ordering::Relaxed);
        self.released.store(0, Ordering::Release);
    }
}

/// Cross-channel settings of one queue.
#[derive(Clone, Debug)]
pub(crate) struct CrossChannelQueue {
    /// The queue executes only work requests released here.
    pub(crate) gate: Option<Arc<Gate>>,
    /// WQEs are in use until the application has polled their completions. If false, until they are
    /// executed or, for receives, consumed by a message.
    pub(crate) counts_wqes: bool,
}

/// Cross-channel settings of the queues of a queue pair.
#[derive(Clone, Debug, Default)]
pub struct Managed {
    /// The gate of the send queue, which executes only released work requests.
    pub send: Option<Arc<Gate>>,
    /// The gate of the receive queue, of which only released work requests can be consumed.
    pub recv: Option<Arc<Gate>>,
    /// No completions of the send queue are polled: its WQEs are free once executed.
    pub sends_untaken: bool,
    /// No completions of the receive queue are polled: its WQEs are free once consumed by a
    /// message.
    pub receives_untaken: bool,
}

/// Returns true if a position is before another one.
const fn is_before(position: u32, other: u32) -> bool {
    let ahead = other.wrapping_sub(position);
    ahead != 0 && ahead <= u32::MAX / 2
}

/// Returns true if a counter modulo 2^32 has reached a value.
#[must_use]
pub const fn has_reached(counter: u32, value: u32) -> bool {
    !is_before(counter, value)
}

/// A calculation on the elements that a work request names. Elements are big-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Calc {
    /// The operation.
    pub op: CalcOp,
    /// Elements are 16 bytes, a value and its location. Otherwise 8 bytes.
    pub located: bool,
}

/// An operation on two values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CalcOp {
    /// Sum modulo 2^64.
    Add,
    /// Sum of doubles.
    AddFloat,
    /// The greater value, unsigned. The first of equal values.
    MaxLoc,
    /// Bitwise and.
    And,
    /// Bitwise exclusive or.
    Xor,
    /// Bitwise or.
    Or,
}

impl Calc {
    /// Returns the length of an element, and of the result, in bytes.
    //= XDEC-07
    #[must_use]
    pub const fn element_len(self) -> usize {
        if self.located { 16 } else { 8 }
    }

    /// Returns the result over all elements of `data`. `len` is in bytes, a multiple of the element
    /// length.
    pub(crate) fn reduce<M: Memory>(
        self,
        data: &LocalData,
        len: u32,
        (mem, who): (&M, Accessor),
    ) -> Result<[u8; 16], AccessError> {
        let mut reduction = Reduction::new(self);
        for offset in (0..len).step_by(self.element_len()) {
            let mut element = [0; 16];
            let element = &mut element[..self.element_len()];
            data.gather((mem, who), offset, element)?;
            reduction.add(element);
        }
        Ok(reduction.result())
    }
}

/// A calculation on elements that arrive one after another: those that a READ returns.
#[derive(Clone, Copy, Debug)]
pub struct Reduction {
    calc: Calc,
    /// Value and location of the result so far.
    so_far: Option<(u64, u64)>,
}

impl Reduction {
    /// Starts a calculation without elements.
    #[must_use]
    pub const fn new(calc: Calc) -> Self {
        Self { calc, so_far: None }
    }

    /// Returns the length of an element, and of the result, in bytes.
    pub(crate) const fn element_len(&self) -> usize {
        self.calc.element_len()
    }

    /// Adds elements. An incomplete element at the end is ignored.
    pub(crate) fn add(&mut self, elements: &[u8]) {
        for bytes in elements.chunks_exact(self.calc.element_len()) {
            let mut element = [0; 16];
            element[..bytes.len()].copy_from_slice(bytes);
            let [value, location] = halves(element);
            self.so_far = Some(match self.so_far {
                None => (value, location),
                //= XCC-05
                Some((best, at)) if self.calc.op == CalcOp::MaxLoc => {
                    if value > best {
                        (value, location)
                    } else {
                        (best, at)
                    }
                }
                Some((sum, at)) => (self.calc.op.of(sum, value), at),
            });
        }
    }

    /// Returns the result. Its first [`Calc::element_len`] bytes count.
    //= XCC-03
    pub(crate) fn result(&self) -> [u8; 16] {
        let (value, location) = self.so_far.unwrap_or_default();
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&value.to_be_bytes());
        bytes[8..].copy_from_slice(&location.to_be_bytes());
        bytes
    }
}

fn halves(element: [u8; 16]) -> [u64; 2] {
    let number = u128::from_be_bytes(element);
    #[expect(clippy::cast_possible_truncation, reason = "the lower half")]
    [(number >> 64) as u64, number as u64]
}

impl CalcOp {
    fn of(self, a: u64, b: u64) -> u64 {
        match self {
            Self::Add => a.wrapping_add(b),
            Self::AddFloat => (f64::from_bits(a) + f64::from_bits(b)).to_bits(),
            Self::MaxLoc => a.max(b),
            Self::And => a & b,
            Self::Xor => a ^ b,
            Self::Or => a | b,
        }
    }
}

/// Replaces the data and the length of a request with a calculation by the result of that
/// calculation.
//= XCC-01
//= XCC-06
pub(crate) fn compute<M: Memory>(
    operands: &mut Option<Box<Operands>>,
    (data, len): (&mut LocalData, &mut u32),
    memory: (&M, Accessor),
) -> Result<(), AccessError> {
    let Some(&Operands::Calc(calc)) = operands.as_deref() else {
        return Ok(());
    };
    let result = calc.reduce(data, *len, memory)?;
    let result = &result[..calc.element_len()];
    data.set_inline(result);
    *len = u32::try_from(result.len()).unwrap_or(0);
    *operands = None;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TestMemory;

    //= XCE-04 type=test
    //= XCE-06 type=test
    #[test]
    fn a_gate_opens_for_what_was_released() {
        let gate = Gate::default();
        assert!(!gate.is_open(0));
        for _ in 0..3 {
            gate.note_posted();
        }
        assert!(!gate.is_open(3));
        gate.release_to(2);
        assert!(gate.is_open(3) && gate.is_open(2) && !gate.is_open(1));
        gate.release_to(1);
        assert!(gate.is_open(2), "the gate never closes");
        gate.note_unposted(1);
        assert!(!gate.is_open(0), "no request waits");
        gate.reset();
        gate.note_posted();
        assert!(!gate.is_open(1));
    }

    #[test]
    fn counters_wrap() {
        let gate = Gate::default();
        gate.posted.store(u32::MAX, Ordering::Relaxed);
        gate.released.store(u32::MAX - 1, Ordering::Relaxed);
        gate.note_posted();
        gate.note_posted();
        gate.release_to(0);
        assert!(gate.is_open(2) && !gate.is_open(1));
        assert!(has_reached(1, u32::MAX));
        assert!(!has_reached(u32::MAX, 1));
        assert!(has_reached(7, 7));
    }

    fn reduced(op: CalcOp, located: bool, elements: &[u64]) -> [u64; 2] {
        let bytes: alloc::vec::Vec<u8> = elements.iter().flat_map(|e| e.to_be_bytes()).collect();
        let mut data = LocalData::EMPTY;
        data.set_inline(&bytes);
        let who = Accessor {
            pd: crate::PdTag(0),
            qpn: Qpn::new(0),
        };
        let len = u32::try_from(bytes.len()).unwrap();
        let result = Calc { op, located }.reduce(&data, len, (&TestMemory::new(), who));
        halves(result.unwrap())
    }

    //= XCC-02 type=test
    //= XCC-03 type=test
    #[test]
    fn elements_are_reduced() {
        let of = |op, elements: &[u64]| reduced(op, false, elements)[0];
        assert_eq!(of(CalcOp::Add, &[1, u64::MAX, 5]), 5);
        assert_eq!(of(CalcOp::And, &[0b1110, 0b0111]), 0b0110);
        assert_eq!(of(CalcOp::Or, &[0b1000, 0b0001]), 0b1001);
        assert_eq!(of(CalcOp::Xor, &[0b1100, 0b0101, 1]), 0b1000);
        assert_eq!(of(CalcOp::MaxLoc, &[3, u64::MAX, 9]), u64::MAX);
        let [a, b] = [1.5f64, -4.25].map(f64::to_bits);
        assert_eq!(f64::from_bits(of(CalcOp::AddFloat, &[a, b])), -2.75);
        assert_eq!(of(CalcOp::Add, &[7]), 7);
    }

    //= XCC-04 type=test
    //= XCC-05 type=test
    #[test]
    fn the_first_of_the_greatest_says_where() {
        let elements = [4, 100, 9, 101, 9, 102, 1, 103];
        assert_eq!(reduced(CalcOp::MaxLoc, true, &elements), [9, 101]);
        assert_eq!(reduced(CalcOp::Add, true, &elements), [23, 100]);
    }
}
