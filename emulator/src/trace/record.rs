//! The format of records: words in the order of the processor.
//!
//! Word 0 is the kind (8 bits), the number of fields (8 bits) and the length of the text in bytes
//! (16 bits, from bit 16). The thread (31 bits, from bit 32) follows, and bit 63, which is set.
//! Word 1 is the time. Fields follow, then the text, padded with zeroes.

/// The words before the fields.
pub(super) const HEAD: usize = 2;
/// The longest text in bytes. The rest is cut off.
pub(super) const MAX_TEXT: usize = 4096;
/// Set in the first word of each complete record.
const COMPLETE: u64 = 1 << 63;

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
    /// A packet: `own QP:remote QP`, `PSN:what`, [`super::fold`] of the destination, and the AETH
    /// if it has one. `what` is the operation code, [`flag`]s from bit 8, and the length in bytes
    /// from bit 16.
    Packet,
    /// Effect of a fault rule on a packet: as [`Kind::Packet`], and the words as text.
    Note,
    /// The retransmission timer of a QP has expired: `QP:expiries so far`.
    Timeout,
}

/// Flags in records.
pub mod flag {
    /// The verb of a post or a poll is experimental, and so are its opcodes.
    pub const EXPERIMENTAL: u32 = 1 << 31;
    /// The packet was received by this process, and not sent.
    pub const RECEIVED: u32 = 1;
    /// The packet requests an acknowledgement.
    pub const ACK_REQ: u32 = 2;
}

impl Kind {
    const ALL: [Self; 13] = [
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
        Self::Packet,
        Self::Note,
        Self::Timeout,
    ];
}

/// A record that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Kind.
    pub kind: Kind,
    /// Nanoseconds since 1970.
    pub time_ns: u64,
    /// The ID of the thread.
    pub thread: u32,
    /// The fields, as many as the kind has.
    pub fields: Vec<u64>,
    /// The text, or empty.
    pub text: String,
}

impl Record {
    /// Returns a field, or 0 if there is none.
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

/// Returns the first word of a record.
pub(super) fn head(kind: Kind, thread: u32, fields: usize, text: usize) -> u64 {
    let sizes = (fields as u64 & 0xff) << 8 | (text as u64 & 0xffff) << 16;
    COMPLETE | u64::from(thread) << 32 | sizes | kind as u64
}

/// Returns the number of words of a record.
pub(super) const fn words(fields: usize, text: usize) -> usize {
    HEAD + fields + text.div_ceil(8)
}

/// Returns the number of words of the record with this first word. `None` if it is not complete
/// yet.
pub(super) fn words_of(head: u64) -> Option<usize> {
    (head & COMPLETE != 0).then(|| words(fields_of(head), text_of(head)))
}

fn fields_of(head: u64) -> usize {
    usize::try_from(head >> 8 & 0xff).unwrap_or(0)
}

fn text_of(head: u64) -> usize {
    usize::try_from(head >> 16 & 0xffff).unwrap_or(0)
}

/// Reads a record of whole words. `None` if its kind is unknown.
pub(super) fn parse(words: &[u64]) -> Option<Record> {
    let (&[head, time_ns], rest) = words.split_first_chunk()?;
    let kind = u8::try_from(head & 0xff).ok()?;
    let kind = Kind::ALL.into_iter().find(|known| *known as u8 == kind)?;
    let fields = rest.get(..fields_of(head))?;
    let text = rest.get(fields.len()..)?;
    let bytes: Vec<u8> = text.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let text = bytes.get(..text_of(head))?;
    Some(Record {
        kind,
        time_ns,
        thread: u32::try_from((head & !COMPLETE) >> 32).unwrap_or(0),
        fields: fields.to_vec(),
        text: String::from_utf8_lossy(text).into_owned(),
    })
}
