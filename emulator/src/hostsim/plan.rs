//! The plan of a seed: processes, their connections, and what happens to them.

use super::memory::MOST_MESSAGES;
use super::services::Service;
use crate::random::Random;
use crate::simulated_host::SLOW_GROUPS;
use crate::simulated_host::schedule::SlowPlaces;

/// Processes of a host that start at the begin.
pub(super) const PROCESSES: usize = 3;
/// The process that starts later, if a plan has it.
pub(super) const SUCCESSOR: usize = PROCESSES;

/// Returns the number of the address of a process.
pub(super) const fn address_of(process: usize) -> u8 {
    if process == 1 { 1 } else { 0 }
}

/// Times for which a process is stopped, in ns. The last one is longer than all retries of queue
/// pairs.
const STOPS_NS: [u64; 3] = [5_000_000, 50_000_000, 2_000_000_000];

/// The manner in which a program gets its completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// Polls all the time.
    Poll,
    /// Waits for events of a completion channel.
    Events,
    /// Sleeps for a while, then polls.
    Nap,
    /// Waits for the descriptor of a non-blocking channel, in an event loop of its own.
    Loop,
    /// Waits for the descriptor of a channel, and receives meanwhile, as the sockets of
    /// librdmacm do.
    Descriptors,
}

/// The end of a connection that the connection manager makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// The second end rejects it.
    Reject,
    /// The end with this number disconnects, and the other one is told.
    Disconnect(usize),
    /// Both disconnect.
    DisconnectBoth,
}

/// A connection between two processes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Connection {
    pub(super) service: Service,
    pub(super) processes: [usize; 2],
    pub(super) modes: [Mode; 2],
    /// Number of messages that each end sends.
    pub(super) messages: [u32; 2],
    /// Length of each message.
    pub(super) len: usize,
    /// Most messages that are sent or expected at a time.
    pub(super) depth: u32,
    /// The local ACK timeout.
    pub(super) timeout: u8,
    /// The second end answers each message with one of its own.
    pub(super) answers: bool,
    /// Operations beside SENDs. 0 is none.
    pub(super) mix: u32,
    /// Only every second message gets a completion.
    pub(super) spares_completions: bool,
    /// Peers access the memory of an end by a window, if the service has them.
    pub(super) windows: bool,
    /// By an indirect key, in place of a window.
    pub(super) is_indirect: bool,
    /// Receives come from a queue that the ends of a process share.
    pub(super) pools: bool,
    /// A third process makes the targets of XRC, if it has the address of the end.
    pub(super) is_kept: bool,
    /// This process receives by the target as well.
    pub(super) keeper_receives: bool,
    pub(super) ending: Ending,
    /// A second thread of an end takes completions, too.
    pub(super) is_assisted: [bool; 2],
    /// An end keeps its queue pair until the other one is done, too.
    pub(super) lingers: bool,
}

/// An event that the processes do not bring about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Act {
    Kill(usize),
    KillBroker,
    /// A user stops the broker.
    EndBroker,
    /// A thread with this number, among those of connections, gets no processor for a while.
    Freeze(usize),
    /// A program exits in the middle of its work.
    Exit(usize),
    /// A process is stopped for so many nanoseconds, and continues.
    Stop(usize, u64),
    /// [`SUCCESSOR`] starts.
    Start,
}

/// A process that is killed soon after it has received.
#[derive(Clone, Copy, Debug)]
pub(super) struct Strike {
    /// The sender: a connection, and the number of its end.
    pub(super) sender: (usize, usize),
    /// Number of messages that the process receives before.
    pub(super) messages: u32,
    /// Number of turns in which it lives on.
    pub(super) turns: u64,
    /// Visit of a place at which it dies after these turns.
    pub(super) visit: Option<Visit>,
}

/// Number of groups of places in the code, of which each has a few.
const PLACE_GROUPS: u32 = 128;

/// Places in the code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PlaceSet {
    /// All places of a group, below [`PLACE_GROUPS`].
    Group(u32),
    /// The place with this hash.
    One(u32),
}

/// The end of a turn at a place, when a process is killed or a thread gets no processor. Without
/// it, most of that happens where threads are often.
#[derive(Clone, Copy, Debug)]
pub(super) struct Visit {
    pub(super) places: PlaceSet,
    /// Number of turns that end there, up to this one.
    pub(super) number: u64,
}

impl Visit {
    fn draw(below: &mut impl FnMut(usize) -> usize) -> Self {
        let group = u32::try_from(below(PLACE_GROUPS as usize)).unwrap_or(0);
        Self {
            places: PlaceSet::Group(group),
            number: [1, 1, 2, 5, 20][below(5)],
        }
    }

    /// Returns true if the place with this hash is one of these.
    pub(super) const fn is_at(self, hash: u32) -> bool {
        match self.places {
            PlaceSet::Group(group) => hash % PLACE_GROUPS == group,
            PlaceSet::One(one) => hash == one,
        }
    }

    /// Returns the visit before which one less is left, or `None` if this was it.
    pub(super) fn after_one(self) -> Option<Self> {
        let number = self.number - 1;
        (number > 0).then_some(Self { number, ..self })
    }
}

/// An event at a place that a drawn plan does not have.
#[derive(Clone, Copy, Debug)]
pub(super) enum EventAtPlace {
    /// A process is killed.
    Death(Visit),
    /// A thread gets no processor for a while.
    Freeze(Visit),
}

impl EventAtPlace {
    pub(super) fn added_to(self, plan: &Plan) -> Plan {
        let mut plan = plan.clone();
        match self {
            Self::Death(visit) => plan.death = Some(visit),
            Self::Freeze(visit) => plan.freeze = Some(visit),
        }
        plan
    }

    /// Returns the argument of `cargo xtask hostsim` that adds the event of a plan. One that was
    /// drawn has none.
    pub(super) fn argument_of(plan: &Plan) -> String {
        let text = |name, visit: Option<Visit>| match visit {
            Some(Visit {
                places: PlaceSet::One(place),
                number,
            }) => format!(" --event {name},{place},{number}"),
            _ => String::new(),
        };
        text("death", plan.death) + &text("freeze", plan.freeze)
    }

    pub(super) fn parse(text: &str) -> Option<Self> {
        let (name, visit) = text.split_once(',')?;
        let (place, number) = visit.split_once(',')?;
        let places = PlaceSet::One(place.parse().ok()?);
        let number = number.parse().ok()?;
        let visit = Visit { places, number };
        match name {
            "death" => Some(Self::Death(visit)),
            "freeze" => Some(Self::Freeze(visit)),
            _ => None,
        }
    }
}

/// Draws the slow places of a plan. Half of the plans have none.
fn draw_slow(below: &mut impl FnMut(usize) -> usize) -> SlowPlaces {
    if below(2) == 0 {
        return SlowPlaces::NONE;
    }
    SlowPlaces {
        groups: SLOW_GROUPS,
        group: u32::try_from(below(SLOW_GROUPS as usize)).unwrap_or(0),
    }
}

/// The plan of a seed.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) seed: u64,
    /// All packets go over UDP.
    pub(super) udp: bool,
    /// Process 1 is on a host of its own.
    pub(super) is_apart: bool,
    /// Percentage of packets that are lost.
    pub(super) loss: usize,
    /// Turns are short, as on a machine with idle processors.
    pub(super) is_quick: bool,
    pub(super) connections: Vec<Connection>,
    pub(super) strike: Option<Strike>,
    /// A process that is killed right after it has sent so many datagrams.
    pub(super) last_datagram: Option<(usize, u64)>,
    /// The visit of a place at which a process is killed.
    pub(super) death: Option<Visit>,
    /// The visit at which a thread gets no processor for a while.
    pub(super) freeze: Option<Visit>,
    /// The places at which threads are slow.
    pub(super) slow: SlowPlaces,
    /// Events, by the turn at which they happen.
    pub(super) acts: Vec<(u64, Act)>,
}

impl Connection {
    /// Returns true if a message of an end gets a completion.
    pub(super) fn is_signaled(&self, end: usize, number: u32) -> bool {
        let is_last = number + 1 == self.messages[end];
        // One that waits for all before it to complete needs each.
        !self.spares_completions || self.depth < 2 || !number.is_multiple_of(2) || is_last
    }

    fn draw(below: &mut impl FnMut(usize) -> usize) -> Self {
        let service = Service::DRAWN[below(Service::DRAWN.len())];
        let traits = service.traits();
        let first = below(PROCESSES);
        let modes = [
            Mode::Poll,
            Mode::Poll,
            Mode::Events,
            Mode::Events,
            Mode::Nap,
            Mode::Loop,
            Mode::Descriptors,
        ];
        // ACKs are delayed after eight answers in a row.
        let answers = below(3) == 0 && traits.is_reliable;
        let (least, most) = if answers { (8, 14) } else { (0, 12) };
        let len = [8, 64, 1024, 2500][below(4)];
        Self {
            service,
            processes: [first, (first + 1 + below(PROCESSES - 1)) % PROCESSES],
            modes: [modes[below(7)], modes[below(7)]],
            messages: [least + below(most), least + below(most)]
                .map(|count| u32::try_from(count).unwrap_or(0).min(MOST_MESSAGES)),
            len: traits.longest.min(len),
            depth: u32::try_from(1 + below(5)).unwrap_or(1),
            timeout: [14, 14, 12][below(3)],
            answers,
            mix: u32::try_from(below(16)).unwrap_or(0),
            spares_completions: below(3) == 0,
            windows: below(3) == 0 && traits.has_windows,
            is_indirect: below(2) == 0,
            pools: below(2) == 0 && traits.may_pool,
            is_kept: below(2) == 0,
            keeper_receives: below(2) == 0,
            ending: [
                Ending::Disconnect(0),
                Ending::Disconnect(1),
                Ending::DisconnectBoth,
                Ending::Reject,
            ][below(4)],
            is_assisted: [below(4) == 0, below(4) == 0],
            lingers: below(2) == 0,
        }
    }
}

impl Plan {
    /// Draws the plan of a seed.
    pub(super) fn draw(seed: u64) -> Self {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9).wrapping_add(0x51ed));
        let mut below = |limit: usize| {
            let number = random.next() % limit as u64;
            usize::try_from(number).unwrap_or(0)
        };
        match below(8) {
            0 | 1 => Self::draw_last_words(seed, &mut below),
            2 => Self::draw_early_end(seed, &mut below),
            3 => Self::draw_successor(seed, &mut below),
            _ => Self::draw_any(seed, &mut below),
        }
    }

    /// Returns the number of the host of a process.
    pub(super) const fn host_of(&self, process: usize) -> u8 {
        (process == 1 && self.is_apart) as u8
    }

    /// Returns the number of datagrams after which a process is killed.
    pub(super) fn datagrams_of(&self, process: usize) -> u64 {
        let own = self.last_datagram.filter(|(number, _)| *number == process);
        own.map_or(u64::MAX, |(_, count)| count)
    }

    /// Draws a plan for connections to which nothing happens.
    fn without_events(
        seed: u64,
        below: &mut impl FnMut(usize) -> usize,
        connections: Vec<Connection>,
    ) -> Self {
        Self {
            seed,
            udp: below(2) == 0,
            is_apart: below(4) == 0,
            loss: 0,
            is_quick: below(2) == 0,
            connections,
            strike: None,
            last_datagram: None,
            death: None,
            freeze: None,
            slow: draw_slow(below),
            acts: Vec::new(),
        }
    }

    /// Draws a plan in which a process takes a message that it may answer, so that its ACK is
    /// delayed, and is killed or destroys its queue pair.
    fn draw_last_words(seed: u64, below: &mut impl FnMut(usize) -> usize) -> Self {
        let mut connection = Connection::draw(below);
        connection.service = [Service::Rc, Service::Rc, Service::Cm, Service::Dc][below(4)];
        let traits = connection.service.traits();
        connection.windows &= traits.has_windows;
        connection.len = traits.longest.min([8, 64, 2500][below(3)]);
        connection.answers = true;
        connection.mix = 0;
        connection.pools = false;
        connection.is_assisted = [below(4) > 0, below(4) > 0];
        let answers = 8 + below(6);
        connection.messages = [answers + below(3), answers]
            .map(|count| u32::try_from(count).unwrap_or(0).min(MOST_MESSAGES));
        let kind = below(8);
        let last_datagram = (kind == 1).then(|| (connection.processes[1], 5 + below(30) as u64));
        let strike = (kind > 1).then(|| {
            let within = [1, 1, 10, 40][below(4)];
            let sender = below(2);
            // The ACK of the last message is delayed longest.
            let messages = match below(2) {
                0 => connection.messages[sender],
                _ => u32::try_from(8 + below(6)).unwrap_or(8),
            };
            Strike {
                sender: (0, sender),
                messages,
                turns: below(within) as u64,
                visit: (kind > 5).then(|| Visit::draw(below)),
            }
        });
        let plan = Self {
            strike,
            last_datagram,
            ..Self::without_events(seed, below, vec![connection])
        };
        // Threads are slow in most of them.
        match plan.slow {
            SlowPlaces::NONE => Self {
                slow: draw_slow(below),
                ..plan
            },
            _ => plan,
        }
    }

    /// Draws a plan in which a process or the broker is killed while a connection is made.
    fn draw_early_end(seed: u64, below: &mut impl FnMut(usize) -> usize) -> Self {
        let mut connection = Connection::draw(below);
        connection.service = [Service::Cm, Service::Cm, Service::Stream, Service::Xrc][below(4)];
        connection.windows &= connection.service.traits().has_windows;
        connection.pools = false;
        connection.messages = [0; 2].map(|_| u32::try_from(below(3)).unwrap_or(0));
        let victim = connection.processes[below(2)];
        let last_datagram = (below(2) == 0).then(|| (victim, 1 + below(12) as u64));
        let mut acts = Vec::new();
        if last_datagram.is_none() {
            acts.push((20 + below(400) as u64, Act::Kill(victim)));
        }
        if below(3) == 0 {
            let end = [Act::KillBroker, Act::EndBroker][below(2)];
            acts.push((20 + below(400) as u64, end));
        }
        acts.sort_by_key(|(at, _)| *at);
        Self {
            last_datagram,
            acts,
            ..Self::without_events(seed, below, vec![connection])
        }
    }

    /// Draws a plan in which a process is killed, and another one starts at its address.
    fn draw_successor(seed: u64, below: &mut impl FnMut(usize) -> usize) -> Self {
        let mut connections = vec![Connection::draw(below), Connection::draw(below)];
        // The target of an XRC connection has another creator, which is killed.
        let is_kept = connections[0].service == Service::Xrc;
        let of_victim = if is_kept { 0 } else { 2 };
        connections[0].is_kept = true;
        connections[0].processes = [[of_victim, 1], [1, of_victim]][below(2)];
        let peer = [0, 1][below(2)];
        connections[1].processes = [[SUCCESSOR, peer], [peer, SUCCESSOR]][below(2)];
        let killed_at = 20 + below(1_000);
        let mut acts = vec![(killed_at, Act::Kill(2))];
        acts.push((killed_at + below(300), Act::Start));
        if below(3) == 0 {
            acts.push((20 + below(1_500), Act::KillBroker));
        }
        acts.sort_by_key(|(at, _)| *at);
        let acts = acts.into_iter().map(|(at, act)| (at as u64, act));
        Self {
            acts: acts.collect(),
            ..Self::without_events(seed, below, connections)
        }
    }

    /// Draws a plan in which anything happens.
    fn draw_any(seed: u64, mut below: &mut impl FnMut(usize) -> usize) -> Self {
        let udp = below(3) == 0;
        // Seven retries are enough, but for one seed of a million.
        let loss = [0, 0, 0, 2][below(4)];
        let is_quick = below(2) == 0;
        let connections = (0..1 + below(3)).map(|_| Connection::draw(&mut below));
        let connections: Vec<_> = connections.collect();
        let strike = (below(3) == 0).then(|| {
            let sender = (below(connections.len()), below(2));
            let least = if connections[sender.0].answers { 8 } else { 1 };
            let within = [2, 10, 40][below(3)];
            Strike {
                sender,
                messages: u32::try_from(least + below(12)).unwrap_or(1),
                turns: below(within) as u64,
                visit: None,
            }
        });
        let acts = (0..below(4)).map(|_| {
            let act = match below(10) {
                0..=2 => Act::Kill(below(PROCESSES)),
                3 => Act::Exit(below(PROCESSES)),
                4 => [Act::KillBroker, Act::EndBroker][below(2)],
                5 | 6 => Act::Stop(below(PROCESSES), STOPS_NS[below(STOPS_NS.len())]),
                _ => Act::Freeze(below(2 * connections.len())),
            };
            // Most of it happens while messages are under way.
            let within = [100, 500, 2_000][below(3)];
            let at = 20 + below(within);
            (at as u64, act)
        });
        let mut acts: Vec<_> = acts.collect();
        acts.sort_by_key(|(at, _)| *at);
        let death = (below(4) == 0).then(|| Visit::draw(&mut below));
        let freeze = (below(4) == 0).then(|| Visit::draw(&mut below));
        let slow = draw_slow(&mut below);
        Self {
            seed,
            udp,
            is_apart: below(4) == 0,
            loss,
            is_quick,
            connections,
            strike,
            last_datagram: None,
            death,
            freeze,
            slow,
            acts,
        }
    }

    /// Returns simpler plans, the simplest first.
    pub(super) fn simpler(&self) -> Vec<Self> {
        let mut plans = Vec::new();
        let mut try_with = |change: &dyn Fn(&mut Self)| {
            let mut plan = self.clone();
            change(&mut plan);
            plans.push(plan);
        };
        for index in 0..self.connections.len() {
            if self.connections.len() > 1 {
                try_with(&|plan| {
                    plan.connections.remove(index);
                    plan.strike = plan.strike.filter(|strike| strike.sender.0 != index);
                    if let Some(strike) = &mut plan.strike
                        && strike.sender.0 > index
                    {
                        strike.sender.0 -= 1;
                    }
                });
            }
        }
        if self.is_apart {
            try_with(&|plan| plan.is_apart = false);
        }
        if self.loss > 0 {
            try_with(&|plan| plan.loss = 0);
        }
        if self.last_datagram.is_some() {
            try_with(&|plan| plan.last_datagram = None);
        }
        if self.death.is_some() {
            try_with(&|plan| plan.death = None);
        }
        if self.freeze.is_some() {
            try_with(&|plan| plan.freeze = None);
        }
        if self.slow != SlowPlaces::NONE {
            try_with(&|plan| plan.slow = SlowPlaces::NONE);
        }
        if self.strike.is_some_and(|strike| strike.visit.is_some()) {
            try_with(&|plan| {
                if let Some(strike) = &mut plan.strike {
                    strike.visit = None;
                }
            });
        }
        if self.strike.is_some() {
            try_with(&|plan| plan.strike = None);
        }
        let is_start = |index: &usize| self.acts[*index].1 == Act::Start;
        for index in (0..self.acts.len()).filter(|index| !is_start(index)) {
            try_with(&|plan| {
                plan.acts.remove(index);
            });
        }
        for (index, connection) in self.connections.iter().enumerate() {
            for end in 0..2 {
                if connection.messages[end] > 0 {
                    try_with(&|plan| plan.connections[index].messages[end] /= 2);
                    try_with(&|plan| plan.connections[index].messages[end] -= 1);
                }
                if connection.modes[end] != Mode::Poll {
                    try_with(&|plan| plan.connections[index].modes[end] = Mode::Poll);
                }
            }
            if connection.service != Service::Rc {
                try_with(&|plan| plan.connections[index].service = Service::Rc);
            }
            if connection.windows && connection.is_indirect {
                try_with(&|plan| plan.connections[index].is_indirect = false);
            }
            if connection.windows {
                try_with(&|plan| plan.connections[index].windows = false);
            }
            if connection.pools {
                try_with(&|plan| plan.connections[index].pools = false);
            }
            if connection.is_kept && connection.service == Service::Xrc {
                try_with(&|plan| plan.connections[index].is_kept = false);
            }
            if connection.keeper_receives && connection.is_kept {
                try_with(&|plan| plan.connections[index].keeper_receives = false);
            }
            if connection.is_assisted != [false; 2] {
                try_with(&|plan| plan.connections[index].is_assisted = [false; 2]);
            }
            if connection.answers {
                try_with(&|plan| plan.connections[index].answers = false);
            }
            if connection.mix > 0 {
                try_with(&|plan| plan.connections[index].mix = 0);
            }
            if connection.spares_completions {
                try_with(&|plan| plan.connections[index].spares_completions = false);
            }
            if connection.len > 8 {
                try_with(&|plan| plan.connections[index].len = 8);
            }
        }
        plans
    }
}
