//! The format of records: words in the order of the processor.
//!
//! Word 0 is the kind (6 bits), [`FIRST`] and [`ALONE`], the mask of the present fields (8 bits,
//! from bit 8) and the length of the text in bytes (16 bits, from bit 16). The thread (31 bits, from
//! bit 32) follows, and bit 63, which is set. Word 1 is the time. Present fields follow, then the
//! text, padded with zeroes.
//!
//! A field that is absent has the value that it had in the record before of this thread and kind.
//! So records of a loop are short.

use std::collections::HashMap;

/// The words before the fields.
pub(super) const HEAD: usize = 2;
/// The most fields of a record.
pub const MAX_FIELDS: usize = 8;
/// The longest text in bytes. The rest is cut off.
pub(super) const MAX_TEXT: usize = 4096;
/// Set in the first word of each complete record.
const COMPLETE: u64 = 1 << 63;
const KIND: u64 = 0x3f;
/// The first record of its thread and kind: absent fields are 0.
const FIRST: u64 = 1 << 6;
/// Absent fields are 0, and later records do not depend on this one. It was written by a signal
/// handler while its thread wrote another one.
const ALONE: u64 = 1 << 7;

/// The kind of a record. `a:b` is a field with `a` in the upper and `b` in the lower 32 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Begin of a ring: the process ID, and the command line as text.
    Process = 1,
    /// Begin of a call: its name, a tab and its arguments.
    Enter,
    /// End of the thread's last call: failed, errno, and the result as text.
    Exit,
    /// A send that is posted now: `QP:opcode`, `flags:SGEs`, ID, `length:immediate`, address,
    /// `lkey:rkey`, remote address (or the remote QP of a datagram). Further operands as text, with
    /// a comma before each.
    PostSend,
    /// A receive that is posted now: `QP or 0:SGEs`, SRQ or 0, ID, length, address, `lkey:0`.
    PostRecv,
    /// The end of a post: `queue:errno` (send 0, receive 1, SRQ 2), QP or SRQ,
    /// `number of queued requests:`[`flag::EXPERIMENTAL`], nanoseconds.
    PostEnd,
    /// A polled completion: CQ, ID, `status:opcode`, `QP:source QP`, `length:immediate`,
    /// `vendor error:flags`, `empty polls before:position in its poll`, with
    /// [`flag::EXPERIMENTAL`].
    Completion,
    /// Polls of a thread that found nothing: CQ, number.
    EmptyPolls,
    /// A requested event of a CQ: CQ, `solicited:result`,
    /// nanoseconds.
    ReqNotify,
    /// The attributes of a QP that a call has set: QP, mask, `state:path MTU`, `remote QP:sq_psn`,
    /// send CQ, receive CQ.
    Qp,
    /// A packet that this process sends: `own QP:remote QP`, `PSN:what`, [`super::fold`] of the
    /// destination, and the AETH if it has one. `what` is the operation code, [`flag`]s from bit 8,
    /// and the length in bytes from bit 16.
    Sent,
    /// A packet that this process has received: as [`Kind::Sent`], but `own QP:0`.
    Received,
    /// Effect of a fault rule on a packet: as [`Kind::Sent`], and the words as text.
    Note,
    /// The retransmission timer of a QP has expired: `QP:expiries so far`.
    Timeout,
}

/// Flags in records.
pub mod flag {
    /// The verb of a post or a poll is experimental, and so are its opcodes.
    pub const EXPERIMENTAL: u32 = 1 << 31;
    /// The packet of a [`super::Kind::Note`] was received by this process, and not sent.
    pub const RECEIVED: u32 = 1;
    /// The packet requests an acknowledgement.
    pub const ACK_REQ: u32 = 2;
}

impl Kind {
    pub(super) const ALL: [Self; 14] = [
        Self::Process,
        Self::Enter,
        Self::Exit,
        Self::PostSend,
        Self::PostRecv,
        Self::PostEnd,
        Self::Completion,
        Self::EmptyPolls,
        Self::ReqNotify,
        Self::Qp,
        Self::Sent,
        Self::Received,
        Self::Note,
        Self::Timeout,
    ];
}

impl Kind {
    /// Returns the place of this kind among all.
    pub(super) const fn index(self) -> usize {
        self as usize - 1
    }
}

/// A record that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Kind.
    pub kind: Kind,
    /// Nanoseconds of the system's monotonic clock.
    pub time_ns: u64,
    /// The ID of the thread.
    pub thread: u32,
    /// The fields. Those that the kind does not have are 0.
    pub fields: [u64; MAX_FIELDS],
    /// The text, or empty.
    pub text: String,
}

impl Record {
    /// Returns a field.
    #[must_use]
    pub fn field(&self, index: usize) -> u64 {
        self.fields.get(index).copied().unwrap_or(0)
    }

    /// Returns the upper half of a field.
    #[must_use]
    pub fn high(&self, index: usize) -> u32 {
        u32::try_from(self.field(index) >> 32).unwrap_or(0)
    }

    /// Returns the lower half of a field.
    #[must_use]
    pub fn low(&self, index: usize) -> u32 {
        u32::try_from(self.field(index) & 0xffff_ffff).unwrap_or(0)
    }
}

/// How a record depends on those before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    First,
    Next,
    Alone,
}

/// Returns the first word of a record.
pub(super) fn head((kind, order): (Kind, Order), thread: u32, mask: u8, text: usize) -> u64 {
    let order = match order {
        Order::First => FIRST,
        Order::Next => 0,
        Order::Alone => ALONE,
    };
    let sizes = u64::from(mask) << 8 | (text as u64 & 0xffff) << 16;
    COMPLETE | u64::from(thread) << 32 | sizes | order | kind as u64
}

/// Returns the number of words of a record.
pub(super) const fn words(mask: u8, text: usize) -> usize {
    HEAD + mask.count_ones() as usize + text.div_ceil(8)
}

/// Returns the number of words of the record with this first word. `None` if it is not complete
/// yet.
pub(super) fn words_of(head: u64) -> Option<usize> {
    (head & COMPLETE != 0).then(|| words(mask_of(head), text_of(head)))
}

fn mask_of(head: u64) -> u8 {
    u8::try_from(head >> 8 & 0xff).unwrap_or(0)
}

fn text_of(head: u64) -> usize {
    usize::try_from(head >> 16 & 0xffff).unwrap_or(0)
}

/// Reads the records of a ring in their order.
#[derive(Debug, Default)]
pub(super) struct Decoder {
    /// The fields of the last record of each thread and kind.
    last: HashMap<(u32, u64), [u64; MAX_FIELDS]>,
}

impl Decoder {
    /// Reads the next record, of whole words. `None` if its kind is unknown.
    pub(super) fn parse(&mut self, words: &[u64]) -> Option<Record> {
        let (&[head, time_ns], mut rest) = words.split_first_chunk()?;
        let kind = Kind::ALL
            .into_iter()
            .find(|known| *known as u64 == head & KIND)?;
        let thread = u32::try_from((head & !COMPLETE) >> 32).unwrap_or(0);
        let mut alone = [0; MAX_FIELDS];
        let fields = match head & ALONE {
            0 => self.last.entry((thread, head & KIND)).or_default(),
            _ => &mut alone,
        };
        if head & FIRST != 0 {
            fields.fill(0);
        }
        let present = (0..MAX_FIELDS).filter(|index| mask_of(head) >> index & 1 != 0);
        for index in present {
            let (word, after) = rest.split_first()?;
            *fields.get_mut(index)? = *word;
            rest = after;
        }
        let text = match text_of(head) {
            0 => String::new(),
            len => {
                let bytes: Vec<u8> = rest.iter().flat_map(|word| word.to_ne_bytes()).collect();
                String::from_utf8_lossy(bytes.get(..len)?).into_owned()
            }
        };
        Some(Record {
            kind,
            time_ns,
            thread,
            fields: *fields,
            text,
        })
    }
}
