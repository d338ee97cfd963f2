//! What one side has sent in a life of its QP, and the judgement of what came of it.

use rocade_transport::testing::{Pair, Region, Side};
use rocade_transport::{AccessFlags, Completion, QpState, SendFlags, SendOp, SendWr, WcStatus};

use super::rng::{Rng, payload};

/// Longest message.
const MAX_LEN: u32 = 6000;
/// What a buffer holds where nothing was written.
const IDLE: u8 = 0xee;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Send,
    Write,
    WriteImm,
    Read,
    /// Adds 1 to the counter that all atomics share, so the value tells how many were executed.
    Add,
}

impl Kind {
    const fn takes_receive(self) -> bool {
        matches!(self, Self::Send | Self::WriteImm)
    }
}

/// A message has buffers of its own, so that everything can be looked at in the end.
#[derive(Clone, Copy, Debug)]
struct Message {
    kind: Kind,
    len: u32,
    local: Region,
    remote: Region,
}

/// How much of a message is in its buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Extent {
    /// A message without data, or with data that look like nothing, leaves no trace.
    Unknown,
    Nothing,
    Beginning,
    All,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Ledger {
    seed: u64,
    from: Side,
    messages: Vec<Message>,
    /// Messages before and after the upheaval.
    batches: Vec<usize>,
    counter: Region,
    posted: usize,
    /// Completions of sends, of all of them and of successful ones.
    sent: usize,
    succeeded: usize,
    error: Option<WcStatus>,
    /// The same for receives.
    received: usize,
    delivered: usize,
    receives_flushed: bool,
    /// The QP was reset or destroyed: what has no completion gets none.
    requests_forgotten: bool,
    receives_forgotten: bool,
    /// The memory of A and B when their lives ended.
    images: [Vec<Vec<u8>>; 2],
}

impl Ledger {
    /// Draws the messages and registers their buffers.
    pub(super) fn new(seed: u64, from: Side, count: [usize; 2], pair: &Pair) -> Self {
        let mut rng = Rng::new(seed, 21 + from as u64);
        let access = AccessFlags::LOCAL_WRITE
            | AccessFlags::REMOTE_READ
            | AccessFlags::REMOTE_WRITE
            | AccessFlags::REMOTE_ATOMIC;
        let seed = seed ^ (from as u64) << 60;
        let buffer = |side: Side| {
            let mem = &pair.node(side).mem;
            let region = mem.register(MAX_LEN, access);
            mem.fill(&region, 0, &vec![IDLE; MAX_LEN as usize]);
            region
        };
        let total: usize = count.iter().sum();
        let messages = (0..total)
            .map(|index| {
                let kinds = [
                    Kind::Send,
                    Kind::Write,
                    Kind::WriteImm,
                    Kind::Read,
                    Kind::Add,
                ];
                let kind = rng.pick(&kinds);
                let limit = rng.pick(&[0, 64, MAX_LEN]);
                let len = if kind == Kind::Add {
                    8
                } else {
                    rng.range_u32(0, limit)
                };
                let (local, remote) = (buffer(from), buffer(from.other()));
                let data = payload(seed, index as u64, len);
                match kind {
                    Kind::Read => pair.node(from.other()).mem.fill(&remote, 0, &data),
                    Kind::Add => {}
                    _ => pair.node(from).mem.fill(&local, 0, &data),
                }
                Message {
                    kind,
                    len,
                    local,
                    remote,
                }
            })
            .collect();
        Self {
            seed,
            from,
            messages,
            batches: count.to_vec(),
            counter: pair.node(from.other()).mem.register(8, access),
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

    /// Posts a receive per message that takes one.
    pub(super) fn post_receives(&mut self, pair: &mut Pair) {
        for (wr_id, message) in self.receives().enumerate() {
            // WRITE with immediate does not touch the receive's buffer; that of a SEND is its own.
            let sges = [message.remote.sge()];
            let sges = if message.kind == Kind::Send {
                &sges[..]
            } else {
                &[]
            };
            pair.recv(self.from.other(), wr_id as u64, sges);
        }
    }

    /// Posts the next batch; nothing where all were posted, or the QP takes none.
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
                remote,
            } = self.messages[index];
            let (va, rkey) = (remote.addr, remote.rkey);
            let imm = Some([7; 4]);
            let op = match kind {
                Kind::Send => SendOp::Send { imm: None },
                Kind::Write => SendOp::Write {
                    va,
                    rkey,
                    imm: None,
                },
                Kind::WriteImm => SendOp::Write { va, rkey, imm },
                Kind::Read => SendOp::Read { va, rkey },
                Kind::Add => SendOp::FetchAdd {
                    va: self.counter.addr,
                    rkey: self.counter.rkey,
                    add: 1,
                },
            };
            let wr = SendWr {
                wr_id: index as u64,
                op,
                flags: SendFlags::SIGNALED,
                sges: &[local.part(0, len)],
            };
            pair.try_send(self.from, &wr).expect("there is room");
            self.posted += 1;
        }
    }

    /// A completion of the sender.
    pub(super) fn sent(&mut self, pair: &Pair, completion: &Completion) {
        let index = self.sent;
        assert_eq!(
            completion.wr_id, index as u64,
            "each once, in order: {completion:?}"
        );
        assert!(index < self.posted, "{completion:?}");
        self.sent += 1;
        match (completion.status, self.error) {
            (WcStatus::Success, None) => self.succeeded += 1,
            (WcStatus::WrFlushErr, _) => {
                self.error.get_or_insert(WcStatus::WrFlushErr);
            }
            // The only thing that can go wrong here is a peer that is gone.
            (WcStatus::RetryExcErr, None) => self.error = Some(completion.status),
            (_, before) => panic!("{completion:?} after {before:?}"),
        }
        if completion.status == WcStatus::Success {
            self.check_success(pair, index);
        }
    }

    /// What the sender may rely on once a message is complete.
    fn check_success(&self, pair: &Pair, index: usize) {
        let message = &self.messages[index];
        let done = self.extent(pair, index);
        assert!(
            matches!(done, Extent::All | Extent::Unknown),
            "{index} {message:?}: {done:?}"
        );
        if message.kind == Kind::Add {
            let before = &self.messages[..index];
            let adds = before.iter().filter(|m| m.kind == Kind::Add).count();
            let original = pair.node(self.from).mem.bytes(&message.local, 0..8);
            assert_eq!(original, (adds as u64).to_ne_bytes(), "executed once each");
        }
    }

    /// Completions so far, of the sender and of the receiver.
    pub(super) const fn progress(&self) -> (usize, usize) {
        (self.sent, self.received)
    }

    /// A completion of the receiver.
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
        assert!(!self.receives_flushed, "nothing is received after the end");
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

    /// How much of a message has arrived where it belongs.
    fn extent(&self, pair: &Pair, index: usize) -> Extent {
        let message = &self.messages[index];
        let (side, region) = match message.kind {
            Kind::Add => return Extent::Unknown,
            Kind::Read => (self.from, &message.local),
            _ => (self.from.other(), &message.remote),
        };
        let bytes = pair.node(side).mem.all(region);
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
        // Data may look like IDLE: the rest is what counts.
        assert!(
            idle(&bytes[same..]),
            "message {index}: something else than its data"
        );
        if idle(&bytes) {
            Extent::Nothing
        } else {
            Extent::Beginning
        }
    }

    /// After the end: everything is accounted for. Gives the numbers of messages done and cut off.
    pub(super) fn judge(&self, pair: &Pair) -> (usize, usize) {
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
            assert_eq!(self.received, posted, "a completion per receive");
        }
        let (mut open, mut last_touched) = (None, 0);
        for (index, message) in self.messages.iter().enumerate() {
            let extent = self.extent(pair, index);
            if message.kind == Kind::Read {
                continue;
            }
            // Execution is in order: behind a message that is not complete there is nothing.
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
        let counter = receiver.mem.all(&self.counter);
        let value = u64::from_ne_bytes(counter.try_into().expect("8 bytes"));
        let adds = |messages: &[Message]| {
            let count = messages.iter().filter(|m| m.kind == Kind::Add).count();
            count as u64
        };
        let possible = adds(&self.messages[..self.succeeded.max(last_touched)])
            ..=adds(&self.messages[..open.unwrap_or(self.posted).min(self.posted)]);
        assert!(
            possible.contains(&value),
            "{value} atomics, not {possible:?}"
        );
        (self.succeeded, self.posted - self.succeeded)
    }

    /// What this side has of the messages: buffers, and the counter where it is here.
    fn memory(&self, pair: &Pair, side: Side) -> Vec<Vec<u8>> {
        let mem = &pair.node(side).mem;
        let ours = side == self.from;
        let buffers = self.messages.iter();
        let mut image: Vec<_> = buffers
            .map(|m| mem.all(if ours { &m.local } else { &m.remote }))
            .collect();
        if !ours {
            image.push(mem.all(&self.counter));
        }
        image
    }

    /// The QP of this side is reset: from now on nothing of this life may have an effect there.
    pub(super) fn close(&mut self, pair: &Pair, side: Side) {
        if side == self.from {
            self.requests_forgotten = true;
        } else {
            self.receives_forgotten = true;
        }
        self.images[side as usize] = self.memory(pair, side);
    }

    /// Nothing of a life that is over has had any effect later.
    pub(super) fn check_closed(&self, pair: &Pair) {
        for side in Side::BOTH {
            let same = self.memory(pair, side) == self.images[side as usize];
            assert!(same, "an effect at {side:?} after the end of its life");
        }
    }
}
