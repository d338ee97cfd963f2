//! One direction of traffic: posts messages and checks all their effects.

use std::collections::VecDeque;

use rocade_transport::testing::{Pair, Region, Side};
use rocade_transport::{
    AccessFlags, Completion, ImmOrInv, SendFlags, SendOp, SendWr, Sge, Time, WcOpcode, WcStatus,
};

use super::rng::{Rng, payload};

/// The longest message in bytes.
pub const MAX_LEN: u32 = 70_000;
/// The number of 64-bit words that atomics address.
const COUNTERS: usize = 4;
/// The value of every byte of a buffer that no message may access at that time.
const IDLE: u8 = 0xee;
const MAX_SGES: u64 = 8;

/// The kinds of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// SEND.
    Send,
    /// SEND with immediate.
    SendImm,
    /// RDMA WRITE.
    Write,
    /// RDMA WRITE with immediate.
    WriteImm,
    /// RDMA READ.
    Read,
    /// Fetch and add, or compare and swap.
    Atomic,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 6] = [
        Self::Send,
        Self::SendImm,
        Self::Write,
        Self::WriteImm,
        Self::Read,
        Self::Atomic,
    ];

    const fn takes_receive(self) -> bool {
        matches!(self, Self::Send | Self::SendImm | Self::WriteImm)
    }

    const fn has_imm(self) -> bool {
        matches!(self, Self::SendImm | Self::WriteImm)
    }

    const fn opcode(self, cmp_swap: bool) -> WcOpcode {
        match self {
            Self::Send | Self::SendImm => WcOpcode::Send,
            Self::Write | Self::WriteImm => WcOpcode::RdmaWrite,
            Self::Read => WcOpcode::RdmaRead,
            Self::Atomic if cmp_swap => WcOpcode::CompSwap,
            Self::Atomic => WcOpcode::FetchAdd,
        }
    }
}

/// The traffic of a flow.
#[derive(Clone, Debug)]
pub struct Work {
    /// The kinds to choose from.
    pub kinds: Vec<Kind>,
    /// The number of messages.
    pub messages: u64,
    /// The longest message in bytes.
    pub max_len: u32,
    /// The maximum number of outstanding work requests.
    pub window: u64,
    /// The length of the receive queue.
    pub receives: u64,
    /// The number of consumed receives after which the receiver posts new ones. Until then it may
    /// become "receiver not ready".
    pub receive_batch: u64,
    /// The delay in nanoseconds before the receiver posts new receives.
    pub receive_lag_ns: u64,
    /// Unsignaled work requests per 1000.
    pub unsignaled: u64,
    /// Fenced work requests per 1000.
    pub fenced: u64,
}

#[derive(Clone, Copy, Debug)]
struct Message {
    index: u64,
    kind: Kind,
    len: u32,
    signaled: bool,
    /// The value that an atomic must return.
    original: u64,
    cmp_swap: bool,
}

/// The sender and the receiver of one direction.
#[derive(Debug)]
pub struct Flow {
    seed: u64,
    rng: Rng,
    from: Side,
    work: Work,
    /// One buffer of each kind per outstanding message.
    local: Vec<Region>,
    remote: Vec<Region>,
    receive_buffers: Vec<Region>,
    counters: Region,
    /// The values of the counters after all posted atomics.
    model: [u64; COUNTERS],
    atomics: u64,
    posted: u64,
    /// Messages that are posted and have not completed.
    pending: VecDeque<Message>,
    completed: u64,
    receives_posted: u64,
    receives_done: u64,
    /// The time at which receives are posted next.
    receives_due: Option<Time>,
    /// Messages that must consume a receive, in order.
    to_receive: VecDeque<Message>,
}

impl Flow {
    /// Creates a flow from `from` to its peer, and registers its buffers.
    pub fn new(seed: u64, from: Side, work: Work, pair: &Pair) -> Self {
        let access = AccessFlags::LOCAL_WRITE
            | AccessFlags::REMOTE_READ
            | AccessFlags::REMOTE_WRITE
            | AccessFlags::REMOTE_ATOMIC;
        let register = |side: Side, count: u64| -> Vec<Region> {
            (0..count)
                .map(|_| {
                    let region = pair.node(side).mem.register(work.max_len.max(8), access);
                    pair.node(side)
                        .mem
                        .fill(&region, 0, &vec![IDLE; region.len as usize]);
                    region
                })
                .collect()
        };
        Self {
            seed: seed ^ (from as u64) << 60,
            rng: Rng::new(seed, 3 + from as u64),
            from,
            local: register(from, work.window),
            remote: register(from.other(), work.window),
            receive_buffers: register(from.other(), work.receives),
            counters: pair.node(from.other()).mem.register(64, access),
            model: [0; COUNTERS],
            atomics: 0,
            posted: 0,
            pending: VecDeque::new(),
            completed: 0,
            receives_posted: 0,
            receives_done: 0,
            receives_due: Some(Time::ZERO),
            to_receive: VecDeque::new(),
            work,
        }
    }

    /// Returns true if all messages were sent, completed and received.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.posted == self.work.messages && self.pending.is_empty() && self.to_receive.is_empty()
    }

    /// The number of messages that have completed at the sender.
    #[must_use]
    pub const fn completed(&self) -> u64 {
        self.completed
    }

    /// The time at which the receiver posts the next receives.
    #[must_use]
    pub const fn receives_due(&self) -> Option<Time> {
        self.receives_due
    }

    /// The sending side.
    #[must_use]
    pub const fn from(&self) -> Side {
        self.from
    }

    /// Posts as many messages as the window allows, and receives if they are due.
    pub fn post(&mut self, pair: &mut Pair) {
        let missing = self.work.receives - (self.receives_posted - self.receives_done);
        if missing < self.work.receive_batch {
            self.receives_due = None;
        } else if self.receives_due.is_none() {
            self.receives_due = Some(pair.now().plus_ns(self.work.receive_lag_ns));
        }
        let due = self.receives_due.is_some_and(|time| time <= pair.now());
        while due && self.receives_posted - self.receives_done < self.work.receives {
            let buffer = *slot(&self.receive_buffers, self.receives_posted);
            let sges = split(&mut self.rng, buffer.sge());
            pair.recv(self.from.other(), self.receives_posted, &sges);
            self.receives_posted += 1;
        }
        while self.posted < self.work.messages && (self.pending.len() as u64) < self.work.window {
            let message = self.draw();
            self.post_one(pair, message);
        }
    }

    fn draw(&mut self) -> Message {
        let kind = self.rng.pick(&self.work.kinds);
        let last = self.posted + 1 == self.work.messages;
        let window_end = self.pending.len() as u64 + 1 == self.work.window;
        let len = match (kind, self.rng.below(4)) {
            (Kind::Atomic, _) => 8,
            (_, 0) => self.rng.range_u32(0, self.work.max_len.min(64)),
            (_, 1) => {
                let multiple = 256 * self.rng.range_u32(1, 20) + self.rng.range_u32(0, 2);
                (multiple - 1).min(self.work.max_len)
            }
            _ => self.rng.range_u32(0, self.work.max_len),
        };
        Message {
            index: self.posted,
            kind,
            len,
            signaled: last || window_end || !self.rng.chance(self.work.unsignaled),
            original: 0,
            cmp_swap: self.rng.chance(500),
        }
    }

    fn post_one(&mut self, pair: &mut Pair, mut message: Message) {
        let index = message.index;
        let (local, remote) = (*slot(&self.local, index), *slot(&self.remote, index));
        let (here, there) = (&pair.node(self.from).mem, &pair.node(self.from.other()).mem);
        // No packet may have touched the buffers since their previous message completed.
        assert!(is_idle(&here.all(&local)), "message {index}: local buffer");
        assert!(
            is_idle(&there.all(&remote)),
            "message {index}: remote buffer"
        );
        let data = payload(self.seed, index, message.len);
        let imm = message.kind.has_imm().then(|| imm_of(index));
        let (va, rkey) = (remote.addr, remote.rkey);
        let op = match message.kind {
            Kind::Send | Kind::SendImm => SendOp::Send { imm },
            Kind::Write | Kind::WriteImm => SendOp::Write { va, rkey, imm },
            Kind::Read => SendOp::Read { va, rkey },
            Kind::Atomic => self.draw_atomic(&mut message),
        };
        match message.kind {
            Kind::Read => there.fill(&remote, 0, &data),
            Kind::Atomic => {}
            _ => here.fill(&local, 0, &data),
        }
        let mut flags = SendFlags::empty();
        flags.set(SendFlags::SIGNALED, message.signaled);
        flags.set(SendFlags::FENCE, self.rng.chance(self.work.fenced));
        let sges = split(&mut self.rng, local.part(0, message.len));
        pair.try_send(
            self.from,
            &SendWr {
                wr_id: index,
                op,
                flags,
                sges: &sges,
            },
        )
        .expect("there is room in the send queue");
        self.posted += 1;
        self.pending.push_back(message);
        if message.kind.takes_receive() {
            self.to_receive.push_back(message);
        }
    }

    fn draw_atomic(&mut self, message: &mut Message) -> SendOp {
        let place = usize::try_from(self.rng.below(COUNTERS as u64)).expect("small");
        let (va, rkey) = (self.counters.addr + 8 * place as u64, self.counters.rkey);
        let value = &mut self.model[place];
        message.original = *value;
        self.atomics += 1;
        if message.cmp_swap {
            let hit = self.rng.chance(700);
            let (compare, swap) = (if hit { *value } else { !*value }, self.rng.next());
            *value = if hit { swap } else { *value };
            SendOp::CmpSwap {
                va,
                rkey,
                compare,
                swap,
            }
        } else {
            let add = self.rng.next();
            *value = value.wrapping_add(add);
            SendOp::FetchAdd { va, rkey, add }
        }
    }

    /// Checks a completion of the sender.
    pub fn sent(&mut self, pair: &Pair, completion: &Completion) {
        assert_eq!(completion.status, WcStatus::Success, "{completion:?}");
        loop {
            let message = self
                .pending
                .pop_front()
                .expect("a completion per work request");
            self.check_sent(pair, &message);
            self.completed += 1;
            if message.index == completion.wr_id {
                assert!(message.signaled);
                assert_eq!(completion.opcode, message.kind.opcode(message.cmp_swap));
                break;
            }
            assert!(
                !message.signaled,
                "message {} has no completion",
                message.index
            );
        }
    }

    fn check_sent(&self, pair: &Pair, message: &Message) {
        let index = message.index;
        let (local, remote) = (*slot(&self.local, index), *slot(&self.remote, index));
        let (here, there) = (&pair.node(self.from).mem, &pair.node(self.from.other()).mem);
        let len = message.len as usize;
        match message.kind {
            Kind::Read => {
                let data = payload(self.seed, index, message.len);
                assert!(
                    here.bytes(&local, 0..len) == data,
                    "READ {index} of {len} bytes"
                );
            }
            Kind::Write => {
                let data = payload(self.seed, index, message.len);
                assert!(
                    there.bytes(&remote, 0..len) == data,
                    "WRITE {index} of {len} bytes"
                );
            }
            Kind::Atomic => {
                assert_eq!(here.bytes(&local, 0..8), message.original.to_ne_bytes());
            }
            _ => {}
        }
        assert!(is_idle(&here.bytes(&local, len..local.len as usize)));
        assert!(is_idle(&there.bytes(&remote, len..remote.len as usize)));
        here.fill(&local, 0, &vec![IDLE; len]);
        there.fill(&remote, 0, &vec![IDLE; len]);
    }

    /// Checks a completion of the receiver.
    pub fn received(&mut self, pair: &Pair, completion: &Completion) {
        assert_eq!(completion.status, WcStatus::Success, "{completion:?}");
        let message = self
            .to_receive
            .pop_front()
            .expect("one receive per message");
        let index = message.index;
        assert_eq!(
            completion.wr_id, self.receives_done,
            "receives complete in posting order"
        );
        assert_eq!(completion.byte_len, message.len, "message {index}");
        let imm = if message.kind.has_imm() {
            ImmOrInv::Imm(imm_of(index))
        } else {
            ImmOrInv::None
        };
        assert_eq!(completion.imm_or_inv, imm, "message {index}");
        let there = &pair.node(self.from.other()).mem;
        let buffer = *slot(&self.receive_buffers, self.receives_done);
        let len = message.len as usize;
        let data = payload(self.seed, index, message.len);
        let touched = if message.kind == Kind::WriteImm {
            assert_eq!(completion.opcode, WcOpcode::RecvRdmaWithImm);
            let remote = *slot(&self.remote, index);
            assert!(
                there.bytes(&remote, 0..len) == data,
                "WRITE+imm {index} of {len} bytes"
            );
            0
        } else {
            assert_eq!(completion.opcode, WcOpcode::Recv);
            assert!(
                there.bytes(&buffer, 0..len) == data,
                "SEND {index} of {len} bytes"
            );
            len
        };
        assert!(is_idle(&there.bytes(&buffer, touched..buffer.len as usize)));
        there.fill(&buffer, 0, &vec![IDLE; len]);
        self.receives_done += 1;
    }

    /// Checks after the end that memory matches the model.
    pub fn check_end(&self, pair: &Pair) {
        let there = &pair.node(self.from.other()).mem;
        let bytes = there.all(&self.counters);
        for (chunk, value) in bytes.chunks(8).zip(self.model) {
            assert_eq!(chunk, value.to_ne_bytes());
        }
        assert_eq!(
            there.atomics(),
            self.atomics,
            "atomics execute exactly once"
        );
        for region in self.remote.iter().chain(&self.receive_buffers) {
            assert!(is_idle(&there.all(region)), "a write after the end");
        }
    }
}

fn slot(regions: &[Region], index: u64) -> &Region {
    let count = regions.len() as u64;
    &regions[usize::try_from(index % count).expect("below the length")]
}

/// Compares slices as a whole, which is fast in unoptimised builds too.
fn is_idle(bytes: &[u8]) -> bool {
    bytes == vec![IDLE; bytes.len()]
}

fn imm_of(index: u64) -> [u8; 4] {
    let [a, b, c, d, ..] = index.to_le_bytes();
    [a, b, c, d]
}

/// Splits `whole` into up to [`MAX_SGES`] entries, some of them empty.
fn split(rng: &mut Rng, whole: Sge) -> Vec<Sge> {
    let mut cuts: Vec<u32> = (1..rng.range(1, MAX_SGES))
        .map(|_| rng.range_u32(0, whole.len))
        .chain([0, whole.len])
        .collect();
    cuts.sort_unstable();
    cuts.windows(2)
        .map(|ends| Sge {
            addr: whole.addr + u64::from(ends[0]),
            len: ends[1] - ends[0],
            ..whole
        })
        .collect()
}
