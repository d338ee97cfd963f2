//! The messages that one side sends during one connection, and the checks of their effects.

use rocade_transport::testing::{Pair, Region, Side};
use rocade_transport::{Completion, QpState, SendFlags, SendWr, WcStatus};
use rocade_wire::Rkey;

use super::kinds::{FIELDS_START, IDLE, Kind, MAX_LEN, RIGHTS};
use super::rng::{Rng, payload};

/// A message with its own buffers, so that all effects can be checked at the end.
#[derive(Clone, Copy, Debug)]
struct Message {
    kind: Kind,
    len: u32,
    local: Region,
    remote: Region,
    /// The address and the key in the request.
    target: (u64, Rkey),
}

/// The part of a message that is in its buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Extent {
    /// The message leaves no trace, because it has no data, or its data equals [`IDLE`].
    Unknown,
    Nothing,
    Beginning,
    All,
}

/// The messages of one side during one connection.
#[derive(Debug)]
pub(super) struct RequestLog {
    seed: u64,
    from: Side,
    messages: Vec<Message>,
    /// The numbers of messages to post in each further batch, such as before and after the state
    /// change.
    batches: Vec<usize>,
    /// The shared words of [`Kind::Add`] and [`Kind::AddFields`].
    words: [Region; 2],
    posted: usize,
    /// The number of send completions, and of the successful ones.
    sent: usize,
    succeeded: usize,
    error: Option<WcStatus>,
    /// The number of receive completions, and of the successful ones.
    received: usize,
    delivered: usize,
    receives_flushed: bool,
    /// Set when the QP was reset or destroyed: outstanding requests then get no completion.
    requests_forgotten: bool,
    receives_forgotten: bool,
    /// The memory of A and B at the end of the connection.
    images: [Vec<Vec<u8>>; 2],
}

impl RequestLog {
    /// Draws the messages and registers their buffers.
    pub(super) fn new(seed: u64, from: Side, count: [usize; 2], pair: &Pair) -> Self {
        let mut rng = Rng::new(seed, 21 + from as u64);
        let seed = seed ^ (from as u64) << 60;
        let buffer = |side: Side| {
            let mem = &pair.node(side).mem;
            let region = mem.register(MAX_LEN, RIGHTS);
            mem.fill(&region, 0, &vec![IDLE; MAX_LEN as usize]);
            region
        };
        let words = [0, FIELDS_START].map(|start| {
            let mem = &pair.node(from.other()).mem;
            let word = mem.register(8, RIGHTS);
            mem.fill(&word, 0, &start.to_ne_bytes());
            word
        });
        let total: usize = count.iter().sum();
        let messages = (0..total)
            .map(|index| {
                let kind = rng.pick(&Kind::ALL);
                let limit = rng.pick(&[0, 64, MAX_LEN]);
                let len = kind.len(rng.range_u32(0, limit));
                let (local, remote) = (buffer(from), buffer(from.other()));
                let data = payload(seed, index as u64, len);
                let there = &pair.node(from.other()).mem;
                if kind.is_read() {
                    let mut all = data;
                    all.resize(MAX_LEN as usize, IDLE);
                    there.fill(&remote, 0, &kind.seen(all));
                } else if !kind.is_atomic() {
                    pair.node(from).mem.fill(&local, 0, &data);
                }
                let target = if kind.is_atomic() {
                    let word = &words[usize::from(kind == Kind::AddFields)];
                    (word.addr, word.rkey)
                } else {
                    kind.target(pair, from.other(), &remote, len)
                };
                Message {
                    kind,
                    len,
                    local,
                    remote,
                    target,
                }
            })
            .collect();
        Self {
            seed,
            from,
            messages,
            batches: count.to_vec(),
            words,
            posted: 0,
            sent: 0,
            succeeded: 0,
            error: None,
            received: 0,
            delivered: 0,
            receives_flushed: false,
            requests_forgotten: false,
            receives_forgotten: false,
            images: [Vec::new(), Vec::new()],
        }
    }

    fn receives(&self) -> impl Iterator<Item = &Message> {
        self.messages.iter().filter(|m| m.kind.takes_receive())
    }

    /// Posts a receive for each message that consumes one.
    pub(super) fn post_receives(&mut self, pair: &mut Pair) {
        for (wr_id, message) in self.receives().enumerate() {
            // A WRITE with immediate data does not touch the receive's buffer. A SEND writes into
            // the message's own buffer.
            let sges = [message.remote.sge()];
            let sges = if message.kind == Kind::Send {
                &sges[..]
            } else {
                &[]
            };
            pair.recv(self.from.other(), wr_id as u64, sges);
        }
    }

    /// Posts the next batch, if one is left.
    pub(super) fn post_batch(&mut self, pair: &mut Pair) {
        if self.batches.is_empty() {
            return;
        }
        let end = self.posted + self.batches.remove(0);
        while self.posted < end {
            let index = self.posted;
            let Message {
                kind,
                len,
                local,
                target,
                ..
            } = self.messages[index];
            let wr = SendWr {
                wr_id: index as u64,
                op: kind.op(target, len),
                flags: SendFlags::SIGNALED,
                sges: &[local.part(0, len)][usize::from(kind == Kind::Flush)..],
            };
            pair.try_send(self.from, &wr).expect("there is room");
            if let Some(operands) = kind.operands() {
                pair.node_mut(self.from).qp.set_operands(operands);
            }
            self.posted += 1;
        }
    }

    /// Checks a completion of the sender.
    pub(super) fn sent(&mut self, pair: &Pair, completion: &Completion) {
        let index = self.sent;
        assert_eq!(
            completion.wr_id, index as u64,
            "each once, in order: {completion:?}"
        );
        assert!(index < self.posted, "{completion:?}");
        self.sent += 1;
        let opcode = self.messages[index].kind.opcode();
        match (completion.status, self.error) {
            (WcStatus::Success, None) => {
                assert_eq!(completion.opcode, opcode, "{completion:?}");
                self.succeeded += 1;
            }
            (WcStatus::WrFlushErr, _) => {
                self.error.get_or_insert(WcStatus::WrFlushErr);
            }
            // The only possible error is a peer that does not respond.
            (WcStatus::RetryExcErr, None) => self.error = Some(completion.status),
            (_, before) => panic!("{completion:?} after {before:?}"),
        }
        if completion.status == WcStatus::Success {
            self.check_success(pair, index);
        }
    }

    /// Checks what a success completion guarantees to the sender.
    fn check_success(&self, pair: &Pair, index: usize) {
        let message = &self.messages[index];
        let done = self.extent(pair, index);
        assert!(
            matches!(done, Extent::All | Extent::Unknown),
            "{index} {message:?}: {done:?}"
        );
        if message.kind.is_atomic() {
            let original = pair.node(self.from).mem.bytes(&message.local, 0..8);
            let before = message.kind.word_after(self.count_of(message.kind, index));
            assert_eq!(original, before.to_ne_bytes(), "executed once each");
        }
    }

    /// Returns the number of messages of this kind among the first `end`.
    fn count_of(&self, kind: Kind, end: usize) -> u64 {
        let same = self.messages[..end].iter().filter(|m| m.kind == kind);
        same.count() as u64
    }

    /// Returns the numbers of completions so far, of the sender and of the receiver.
    pub(super) const fn progress(&self) -> (usize, usize) {
        (self.sent, self.received)
    }

    /// Checks a completion of the receiver.
    pub(super) fn received(&mut self, pair: &Pair, completion: &Completion) {
        assert_eq!(
            completion.wr_id, self.received as u64,
            "each once, in order"
        );
        self.received += 1;
        if completion.status == WcStatus::WrFlushErr {
            self.receives_flushed = true;
            return;
        }
        assert_eq!(completion.status, WcStatus::Success);
        assert!(
            !self.receives_flushed,
            "a receive succeeds after a flushed one"
        );
        let nth = self.delivered;
        let (index, message) = self
            .messages
            .iter()
            .enumerate()
            .filter(|(_, m)| m.kind.takes_receive())
            .nth(nth)
            .expect("a message for each receive");
        assert_eq!(completion.byte_len, message.len, "message {index}");
        let done = self.extent(pair, index);
        assert!(
            matches!(done, Extent::All | Extent::Unknown),
            "{index}: {done:?}"
        );
        self.delivered += 1;
    }

    /// Returns how much of a message has arrived in its buffer.
    fn extent(&self, pair: &Pair, index: usize) -> Extent {
        let message = &self.messages[index];
        let (side, region) = match message.kind {
            Kind::Add | Kind::AddFields | Kind::Flush => return Extent::Unknown,
            Kind::Read | Kind::ReadIndirect => (self.from, &message.local),
            _ => (self.from.other(), &message.remote),
        };
        let mut bytes = pair.node(side).mem.all(region);
        if !message.kind.is_read() {
            bytes = message.kind.seen(bytes);
        }
        let len = message.len as usize;
        let data = payload(self.seed, index as u64, message.len);
        let idle = |bytes: &[u8]| bytes.iter().all(|byte| *byte == IDLE);
        assert!(idle(&bytes[len..]), "message {index} is {len} bytes long");
        if idle(&data) {
            return Extent::Unknown;
        }
        if bytes[..len] == data {
            return Extent::All;
        }
        let same = bytes.iter().zip(&data).take_while(|(a, b)| a == b).count();
        // The data may contain bytes equal to IDLE. Only the bytes after the common beginning
        // count.
        assert!(
            idle(&bytes[same..]),
            "message {index}: bytes other than its data"
        );
        if idle(&bytes) {
            Extent::Nothing
        } else {
            assert_ne!(message.kind, Kind::Store, "message {index} is torn");
            Extent::Beginning
        }
    }

    /// Checks after the end that every request and receive is accounted for, while `left` receives
    /// remain in a shared receive queue. Returns the numbers of completed and of incomplete
    /// messages.
    pub(super) fn judge(&self, pair: &Pair, left: usize) -> (usize, usize) {
        if !self.requests_forgotten {
            assert_eq!(
                self.sent, self.posted,
                "a completion per request: {:?}",
                self.error
            );
        }
        let delivered_at_least = self.messages[..self.succeeded]
            .iter()
            .filter(|m| m.kind.takes_receive())
            .count();
        if !self.receives_forgotten {
            assert!(
                self.delivered >= delivered_at_least,
                "acknowledged, but not received"
            );
        }
        let receiver = pair.node(self.from.other());
        if receiver.qp.state() == QpState::Err {
            let posted = self.receives().count();
            assert_eq!(self.received + left, posted, "a completion per receive");
        }
        let (mut open, mut last_touched) = (None, 0);
        for (index, message) in self.messages.iter().enumerate() {
            let extent = self.extent(pair, index);
            if message.kind.is_read() {
                continue;
            }
            // Execution is in order: no message after an incomplete one may have an effect.
            let touched = matches!(extent, Extent::Beginning | Extent::All);
            assert!(
                !(touched && open.is_some()),
                "message {index} before {open:?}"
            );
            if touched {
                last_touched = index;
            }
            if matches!(extent, Extent::Nothing | Extent::Beginning) {
                open.get_or_insert(index);
            }
        }
        let least = self.succeeded.max(last_touched);
        let most = open.unwrap_or(self.posted).min(self.posted);
        for (kind, word) in [Kind::Add, Kind::AddFields].into_iter().zip(&self.words) {
            let bytes = receiver.mem.all(word);
            let value = u64::from_ne_bytes(bytes.try_into().expect("8 bytes"));
            let mut possible = self.count_of(kind, least)..=self.count_of(kind, most);
            assert!(
                possible.any(|count| kind.word_after(count) == value),
                "{kind:?}: {value:#x} after {least} to {most} messages"
            );
        }
        (self.succeeded, self.posted - self.succeeded)
    }

    /// Returns a copy of the message buffers of `side`, and of the shared words if `side` is the
    /// receiver.
    fn memory(&self, pair: &Pair, side: Side) -> Vec<Vec<u8>> {
        let mem = &pair.node(side).mem;
        let ours = side == self.from;
        let buffers = self.messages.iter();
        let mut image: Vec<_> = buffers
            .map(|m| mem.all(if ours { &m.local } else { &m.remote }))
            .collect();
        if !ours {
            image.extend(self.words.iter().map(|word| mem.all(word)));
        }
        image
    }

    /// Records that `side` was reset or destroyed: from now on this connection may have no effect
    /// there.
    pub(super) fn close(&mut self, pair: &Pair, side: Side) {
        if side == self.from {
            self.requests_forgotten = true;
        } else {
            self.receives_forgotten = true;
        }
        self.images[side as usize] = self.memory(pair, side);
    }

    /// Checks that the connection has had no effect since [`close`](Self::close).
    pub(super) fn check_closed(&self, pair: &Pair) {
        for side in Side::BOTH {
            let same = self.memory(pair, side) == self.images[side as usize];
            assert!(
                same,
                "an effect at {side:?} after its connection was closed"
            );
        }
    }
}
