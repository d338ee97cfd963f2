//! Steps of a simulated host.

pub(super) use super::super::simulated::brokers::{ADDRESSES, DIRS};
use crate::random::Random;

/// Number of processes at a time.
pub(super) const CLIENTS: u8 = 5;
/// Number of ports of the connection manager, and of shared domains.
pub(super) const NAMES: u8 = 2;

/// One step. A step that cannot be taken does nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// A new process connects to the broker of a directory.
    Connect {
        client: u8,
        dir: u8,
    },
    /// A process calls its client.
    Call {
        client: u8,
        call: Call,
    },
    /// A process that waits goes on, if what it waits for has come.
    GoOn {
        client: u8,
    },
    /// A broker takes a turn, if it has input or its time has come.
    Turn {
        broker: u8,
    },
    /// All that is ready runs, so often.
    Work {
        rounds: u8,
    },
    /// Time passes.
    Advance,
    Kill {
        client: u8,
    },
    /// A process ends, and a child of it keeps all of its descriptors.
    EndWithChild {
        client: u8,
    },
    /// The children of processes that have ended end as well.
    EndChildren,
    Stop {
        client: u8,
    },
    Continue {
        client: u8,
    },
    KillBroker {
        broker: u8,
    },
    StopBroker {
        broker: u8,
    },
    ContinueBroker {
        broker: u8,
    },
    /// A user stops the broker of a directory.
    EndBroker {
        dir: u8,
    },
    /// A program of another version greets the broker of a directory.
    OtherVersion {
        dir: u8,
    },
    /// A program of another user connects to the broker of a directory.
    OtherUser {
        dir: u8,
    },
    /// A program connects to the broker of a directory, and sends nothing.
    Silent {
        dir: u8,
    },
    /// Another host sends a packet to a slot of an address.
    Packet {
        address: u8,
        slot: u8,
    },
    /// Children of processes that have ended keep the first slots of a directory.
    Crowd,
}

/// A call of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
    Open(u8),
    Service,
    Bind(u8),
    Release(u8),
    OpenDomain(u8),
    CloseDomain(u8),
    NewTarget(u8),
    CloseTarget(u8),
    /// Opens a target of another process.
    OpenTarget(u8),
    /// Talks to another host from an address.
    Talk(u8),
    /// Asks for a shared-memory link to the slot of another process with an address of both.
    Link(u8),
    /// Tells which links it has.
    ReportLinks,
    /// Opens an address and a domain, and creates a target there.
    ShareTarget(u8),
    /// Opens an address, and a target of another process there.
    JoinTarget(u8),
    /// Opens an address, and talks to another host from there.
    OpenAndTalk(u8),
}

impl Call {
    pub(super) fn draw(random: &mut Random) -> Self {
        let name = below(random, NAMES);
        match below(random, 12) {
            0..=3 => Self::Open(below(random, ADDRESSES)),
            4 | 5 => Self::Service,
            6 => Self::Bind(name),
            7 => Self::Release(name),
            8 => Self::OpenDomain(name),
            9 => Self::CloseDomain(name),
            10 => Self::NewTarget(name),
            _ => Self::CloseTarget(name),
        }
    }

    /// Draws a call of processes that share targets and talk to another host.
    fn draw_sharing(random: &mut Random) -> Self {
        let name = below(random, NAMES);
        match below(random, 10) {
            0..=2 => Self::ShareTarget(name),
            3..=5 => Self::JoinTarget(name),
            6 | 7 => Self::OpenAndTalk(name),
            8 => Self::CloseTarget(name),
            _ => Self::CloseDomain(name),
        }
    }

    /// Returns true if the call may open an address.
    pub(super) const fn opens_address(self) -> bool {
        matches!(
            self,
            Self::Open(_) | Self::ShareTarget(_) | Self::JoinTarget(_) | Self::OpenAndTalk(_)
        )
    }
}

/// Draws a number below `limit`.
pub(super) fn below(random: &mut Random, limit: u8) -> u8 {
    u8::try_from(random.next() % u64::from(limit)).unwrap_or(0)
}

impl Step {
    pub(super) fn draw(random: &mut Random) -> Self {
        let client = below(random, CLIENTS);
        let broker = below(random, 3);
        // The second directory is the exception.
        let dir = below(random, 5) / 4 % DIRS;
        match below(random, 125) {
            0..=7 => Self::Connect { client, dir },
            8..=39 => Self::Call {
                client,
                call: Call::draw(random),
            },
            40..=61 => Self::Work {
                rounds: 1 + below(random, 8),
            },
            62..=68 => Self::GoOn { client },
            69..=77 => Self::Turn { broker },
            78..=87 => Self::Advance,
            88..=89 | 104..=107 => Self::Kill { client },
            90 => Self::Stop { client },
            91 => Self::Continue { client },
            92 | 93 => Self::KillBroker { broker },
            94 => Self::StopBroker { broker },
            95 | 96 => Self::ContinueBroker { broker },
            97 => Self::EndBroker { dir },
            98 | 99 => Self::OtherVersion { dir },
            100 => Self::Silent { dir },
            108..=111 => Self::Call {
                client,
                call: Call::OpenTarget(below(random, NAMES)),
            },
            112..=115 => Self::Call {
                client,
                call: Call::Talk(below(random, ADDRESSES)),
            },
            116 | 117 => Self::EndWithChild { client },
            118 => Self::EndChildren,
            119 | 120 => Self::OtherUser { dir },
            121..=124 => Self::Call {
                client,
                call: Call::Link(below(random, CLIENTS)),
            },
            _ => Self::draw_packet(random),
        }
    }

    /// Draws a step of a host whose processes share targets and talk to another host, until they
    /// are killed.
    pub(super) fn draw_sharing(random: &mut Random) -> Self {
        let client = below(random, CLIENTS);
        let broker = below(random, 2);
        match below(random, 100) {
            0..=11 => Self::Connect { client, dir: 0 },
            12..=41 => Self::Call {
                client,
                call: Call::draw_sharing(random),
            },
            42..=69 => Self::Work {
                rounds: 1 + below(random, 8),
            },
            70..=74 => Self::GoOn { client },
            75..=79 => Self::Turn { broker },
            80..=86 => Self::Advance,
            87..=93 => Self::Kill { client },
            94 => Self::Stop { client },
            95 | 96 => Self::Continue { client },
            97 => Self::KillBroker { broker },
            _ => Self::draw_packet(random),
        }
    }

    fn draw_packet(random: &mut Random) -> Self {
        Self::Packet {
            address: below(random, ADDRESSES),
            slot: 1 + below(random, 4),
        }
    }
}
