//! The format of records: words in the order of the processor.
//!
//! Word 0 is the kind (6 bits), [`SHORT`], [`ALONE`], and the mask of the present fields (8 bits,
//! from bit 8). The length of the text in bytes (13 bits, from bit 16) follows. Bit 63 is set.
//!
//! A long record has the ID of its thread (31 bits, from bit 32), and word 1 is the time. A short
//! one has the number of its writer (11 bits, from bit 29) and the nanoseconds since the record
//! before of this writer (22 bits with a sign, from bit 40). [`Kind::Writer`] ties both.
//!
//! Present fields follow, then the text, padded with zeroes. A field that is absent has the value
//! that it had in the record before of this writer and kind. So records of a loop are short.

use std::collections::HashMap;

/// The most words before the fields.
pub(super) const HEAD: usize = 2;
/// The most fields of a record.
pub const MAX_FIELDS: usize = 8;
/// The longest text in bytes. The rest is cut off.
pub(super) const MAX_TEXT: usize = 4096;
/// Set in the first word of each complete record.
const COMPLETE: u64 = 1 << 63;
const KIND: u64 = 0x3f;
const SHORT: u64 = 1 << 6;
/// Absent fields are 0, and later records do not depend on this one. A signal handler has written
/// it while its thread wrote another one.
const ALONE: u64 = 1 << 7;
const TEXT: u64 = 0x1fff;
const WRITER_SHIFT: u32 = 29;
/// Writers with higher numbers have only long records.
const MAX_WRITER: u32 = 0x7ff;
const SINCE_SHIFT: u32 = 40;
const SINCE_BITS: u32 = 22;

/// The kind of a record. `a:b` is a field with `a` in the upper and `b` in the lower 32 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Begin of the records of a thread: the number of the writer. Earlier records of a thread with
    /// this ID are those of another one. Not for readers of a ring.
    Writer = 1,
    /// Begin of a ring: the process ID, and the command line as text.
    Process,
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
    /// A post of one send that was queued, written at its end: as [`Kind::PostSend`], and the
    /// nanoseconds. Readers of a ring get a [`Kind::PostSend`] and a [`Kind::PostEnd`].
    PostedSend,
    /// A post of one receive that was queued: as [`Kind::PostRecv`], and the nanoseconds.
    PostedRecv,
    /// The end of a post: [`queue`]`:errno`, QP or SRQ,
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
    /// send CQ, receive CQ, `sq_sig_all`.
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

/// The queues of [`Kind::PostEnd`].
pub mod queue {
    /// The sends of a QP.
    pub const SEND: u32 = 0;
    /// The receives of a QP.
    pub const RECV: u32 = 1;
    /// An SRQ.
    pub const SHARED: u32 = 2;
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
    pub(super) const ALL: [Self; 17] = [
        Self::Writer,
        Self::Process,
        Self::Enter,
        Self::Exit,
        Self::PostSend,
        Self::PostRecv,
        Self::PostedSend,
        Self::PostedRecv,
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

/// Writer of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Origin {
    pub(super) thread: u32,
    pub(super) writer: u32,
    /// The time of the record before.
    pub(super) last_ns: u64,
}

/// Returns the first words of a record, of which the second is absent in short ones.
pub(super) fn head(
    origin: Option<Origin>,
    (kind, time_ns): (Kind, u64),
    mask: u8,
    text: usize,
) -> (u64, Option<u64>) {
    let sizes = u64::from(mask) << 8 | (text as u64 & TEXT) << 16;
    let all = COMPLETE | sizes | kind as u64;
    let thread = |thread| u64::from(thread) << 32;
    let Some(origin) = origin else {
        return (all | ALONE | thread(crate::sys::thread_id()), Some(time_ns));
    };
    let since = time_ns.wrapping_sub(origin.last_ns).cast_signed();
    let bound = 1 << (SINCE_BITS - 1);
    if origin.writer > MAX_WRITER || !(-bound..bound).contains(&since) {
        return (all | thread(origin.thread), Some(time_ns));
    }
    let since = since.cast_unsigned() & ((1 << SINCE_BITS) - 1);
    let writer = u64::from(origin.writer) << WRITER_SHIFT;
    (all | SHORT | writer | since << SINCE_SHIFT, None)
}

/// Returns the number of words of the record with this first word. `None` if it is not complete
/// yet.
pub(super) fn words_of(head: u64) -> Option<usize> {
    let first = if head & SHORT == 0 { HEAD } else { 1 };
    let fields = mask_of(head).count_ones() as usize;
    let text = text_of(head).div_ceil(8);
    (head & COMPLETE != 0).then_some(first + fields + text)
}

fn mask_of(head: u64) -> u8 {
    u8::try_from(head >> 8 & 0xff).unwrap_or(0)
}

fn text_of(head: u64) -> usize {
    usize::try_from(head >> 16 & TEXT).unwrap_or(0)
}

/// State of a writer, on which its next record depends.
#[derive(Debug, Default)]
struct Writer {
    last_ns: u64,
    /// The fields of its last record of each kind.
    fields: [[u64; MAX_FIELDS]; Kind::ALL.len()],
}

/// Reads the records of a ring in their order.
#[derive(Debug, Default)]
pub(super) struct Decoder {
    /// By the IDs of their threads.
    writers: HashMap<u32, Writer>,
    /// The threads of the numbers of writers.
    threads: HashMap<u64, u32>,
}

impl Decoder {
    /// Reads the next record, of whole words. Returns what it tells to readers of a ring.
    pub(super) fn parse(&mut self, words: &[u64]) -> impl Iterator<Item = Record> + use<> {
        let (first, second) = match self.parse_one(words) {
            Some(record) => split(record),
            None => (None, None),
        };
        first.into_iter().chain(second)
    }

    fn parse_one(&mut self, words: &[u64]) -> Option<Record> {
        let (&head, mut rest) = words.split_first()?;
        let mut kinds = Kind::ALL.into_iter();
        let kind = kinds.find(|known| *known as u64 == head & KIND)?;
        let is_short = head & SHORT != 0;
        let mut time_ns = 0;
        let thread = if is_short {
            let number = head >> WRITER_SHIFT & u64::from(MAX_WRITER);
            *self.threads.get(&number)?
        } else {
            (time_ns, rest) = rest.split_first().map(|(first, rest)| (*first, rest))?;
            u32::try_from((head & !COMPLETE) >> 32).unwrap_or(0)
        };
        let mut alone = Writer::default();
        let writer = match head & ALONE {
            0 => self.writers.entry(thread).or_default(),
            _ => &mut alone,
        };
        if kind == Kind::Writer {
            *writer = Writer::default();
        }
        if is_short {
            let unused = u64::BITS - SINCE_BITS;
            let since = (head >> SINCE_SHIFT << unused).cast_signed() >> unused;
            time_ns = writer.last_ns.wrapping_add_signed(since);
        }
        writer.last_ns = time_ns;
        let fields = writer.fields.get_mut(kind.index())?;
        for (index, field) in (0..).zip(fields.iter_mut()) {
            if mask_of(head) >> index & 1 != 0 {
                (*field, rest) = rest.split_first().map(|(first, rest)| (*first, rest))?;
            }
        }
        let fields = *fields;
        if kind == Kind::Writer {
            self.threads.insert(fields[0], thread);
            return None;
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
            fields,
            text,
        })
    }
}

/// Returns the begin and the end of a post that is in one record. Other records stay.
fn split(mut record: Record) -> (Option<Record>, Option<Record>) {
    let (kind, took, queue, id) = match record.kind {
        Kind::PostedSend => (Kind::PostSend, 7, queue::SEND, record.high(0).into()),
        Kind::PostedRecv if record.field(1) != 0 => {
            (Kind::PostRecv, 6, queue::SHARED, record.field(1))
        }
        Kind::PostedRecv => (Kind::PostRecv, 6, queue::RECV, record.high(0).into()),
        _ => return (Some(record), None),
    };
    let took_ns = std::mem::take(&mut record.fields[took]);
    record.kind = kind;
    let (is_queued, one) = (u64::from(queue) << 32, 1 << 32);
    let end = Record {
        kind: Kind::PostEnd,
        time_ns: record.time_ns.saturating_add(took_ns),
        thread: record.thread,
        fields: [is_queued, id, one, took_ns, 0, 0, 0, 0],
        text: String::new(),
    };
    (Some(record), Some(end))
}
