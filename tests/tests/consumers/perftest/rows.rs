//! The options of perftest's programs, and a model of perftest's own checks, in the order in which
//! perftest makes them.

use std::fmt;

/// The measured operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Verb {
    Send,
    Write,
    Read,
    Atomic,
}

/// One of the eight programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Tool {
    pub(super) verb: Verb,
    pub(super) is_latency: bool,
}

impl Tool {
    pub(super) fn all() -> impl Iterator<Item = Self> {
        let verbs = [Verb::Send, Verb::Write, Verb::Read, Verb::Atomic];
        let both = |verb| [false, true].map(|is_latency| Self { verb, is_latency });
        verbs.into_iter().flat_map(both)
    }

    pub(super) fn program(self) -> &'static str {
        match (self.verb, self.is_latency) {
            (Verb::Send, false) => "ib_send_bw",
            (Verb::Send, true) => "ib_send_lat",
            (Verb::Write, false) => "ib_write_bw",
            (Verb::Write, true) => "ib_write_lat",
            (Verb::Read, false) => "ib_read_bw",
            (Verb::Read, true) => "ib_read_lat",
            (Verb::Atomic, false) => "ib_atomic_bw",
            (Verb::Atomic, true) => "ib_atomic_lat",
        }
    }
}

/// A transport service, which perftest selects by `-c`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Service {
    Rc,
    Uc,
    Ud,
    Xrc,
    Dc,
}

impl Service {
    pub(super) const ALL: [Self; 5] = [Self::Rc, Self::Uc, Self::Ud, Self::Xrc, Self::Dc];

    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Rc => "RC",
            Self::Uc => "UC",
            Self::Ud => "UD",
            Self::Xrc => "XRC",
            Self::Dc => "DC",
        }
    }
}

/// An option, in the order in which the options stand on a command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Choice {
    AllSizes,
    BothWays,
    Events,
    FourQps,
    PostList,
    Inline,
    Srq,
    Multicast,
}

impl Choice {
    pub(super) const ALL: [Self; 8] = [
        Self::AllSizes,
        Self::BothWays,
        Self::Events,
        Self::FourQps,
        Self::PostList,
        Self::Inline,
        Self::Srq,
        Self::Multicast,
    ];

    pub(super) fn words(self) -> &'static str {
        match self {
            Self::AllSizes => "-a",
            Self::BothWays => "-b",
            Self::Events => "-e",
            Self::FourQps => "-q 4",
            Self::PostList => "-l 4",
            Self::Inline => "-I 64",
            Self::Srq => "--use-srq",
            Self::Multicast => "-g",
        }
    }
}

/// The API for posting work requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Posts {
    /// `ibv_post_send`.
    Old,
    /// `ibv_wr_*`.
    New,
}

impl Posts {
    pub(super) const ALL: [Self; 2] = [Self::Old, Self::New];
}

/// The server or the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Server,
    Client,
}

/// A command line for both sides.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Row {
    pub(super) tool: Tool,
    pub(super) service: Service,
    /// The options in ascending order.
    pub(super) choices: Vec<Choice>,
    pub(super) posts: Posts,
    pub(super) iterations: u64,
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.tool.program(), self.arguments().join(" "))
    }
}

impl Row {
    pub(super) fn new(tool: Tool, service: Service, choices: &[Choice], posts: Posts) -> Self {
        let mut choices = choices.to_vec();
        choices.sort();
        // Multiples of the length of a post list.
        let is_long = choices.contains(&Choice::AllSizes);
        Self {
            tool,
            service,
            choices,
            posts,
            iterations: if is_long { 8 } else { 20 },
        }
    }

    pub(super) fn has(&self, choice: Choice) -> bool {
        self.choices.contains(&choice)
    }

    pub(super) fn arguments(&self) -> Vec<String> {
        let mut line = format!("-c {} -n {}", self.service.word(), self.iterations);
        for choice in &self.choices {
            line = format!("{line} {}", choice.words());
        }
        if !self.has(Choice::AllSizes) && self.tool.verb != Verb::Atomic {
            line = format!("{line} -s {}", self.size());
        }
        if self.tool.is_latency {
            // Print cycles: to convert them, perftest would calibrate the clock for 0.2 s per line.
            line.push_str(" -C");
        }
        if self.posts == Posts::Old {
            line.push_str(" --use_old_post_send");
        }
        line.split(' ').map(str::to_owned).collect()
    }

    /// Returns the service that perftest uses: always UD for multicast.
    fn effective_service(&self) -> Service {
        if self.has(Choice::Multicast) {
            Service::Ud
        } else {
            self.service
        }
    }

    /// Returns the message size in bytes, unless all sizes are tested.
    fn size(&self) -> u64 {
        if self.tool.verb == Verb::Atomic {
            8
        } else if self.has(Choice::Inline) {
            64
        } else if self.effective_service() == Service::Ud {
            1024
        } else if self.tool.is_latency {
            4096
        } else if self.service == Service::Uc {
            // The receiver waits for all messages, so none may be lost: the messages must fit into
            // a socket's buffer.
            16384
        } else {
            65536
        }
    }

    /// Returns the rows that perftest prints: size and number of messages.
    pub(super) fn expected(&self) -> Vec<(u64, u64)> {
        let qps = if self.has(Choice::FourQps) { 4 } else { 1 };
        let messages = self.iterations * qps;
        if !self.has(Choice::AllSizes) {
            return vec![(self.size(), messages)];
        }
        // Up to 8 MiB, or the path MTU.
        let is_ud = self.effective_service() == Service::Ud;
        let powers = 1..=if is_ud { 12 } else { 23 };
        powers.map(|power| (1 << power, messages)).collect()
    }

    /// Returns perftest's error message if it refuses this command line.
    pub(super) fn refusal(&self) -> Option<&'static str> {
        let as_they_stand = self.choices.iter().find_map(|&choice| self.refused(choice));
        self.refused_service()
            .or(as_they_stand)
            .or_else(|| self.refused_together())
    }

    /// Returns the error that perftest reports while it parses `-c`.
    fn refused_service(&self) -> Option<&'static str> {
        match (self.service, self.tool.verb) {
            (Service::Uc, Verb::Read | Verb::Atomic) => {
                Some("UC connection not possible in READ/ATOMIC verbs")
            }
            (Service::Ud, Verb::Write | Verb::Read | Verb::Atomic) => {
                Some("UD connection only possible in SEND verb")
            }
            _ => None,
        }
    }

    /// Returns the error that perftest reports while it parses the options, one after the other.
    fn refused(&self, choice: Choice) -> Option<&'static str> {
        let (verb, is_latency) = (self.tool.verb, self.tool.is_latency);
        match choice {
            Choice::BothWays if is_latency => Some("Bidirectional is only available in BW test"),
            Choice::Events if verb == Verb::Write => {
                Some("Events feature not available on WRITE verb")
            }
            Choice::FourQps if is_latency => Some("Multiple QPs only available on bw tests"),
            Choice::Inline if matches!(verb, Verb::Read | Verb::Atomic) => {
                Some("Inline feature not available on READ/Atomic verbs")
            }
            Choice::Multicast if verb != Verb::Send => {
                Some("MultiCast feature only available on SEND verb")
            }
            _ => None,
        }
    }

    /// Returns the error that perftest reports after it has parsed all options.
    fn refused_together(&self) -> Option<&'static str> {
        let verb = self.tool.verb;
        let (is_multicast, is_dc) = (
            self.has(Choice::Multicast),
            self.effective_service() == Service::Dc,
        );
        if self.has(Choice::AllSizes) && verb == Verb::Atomic {
            Some("Message size cannot be changed for Atomic tests")
        } else if self.has(Choice::Srq) && verb != Verb::Send {
            Some("Using SRQ only avavilible in SEND tests.")
        } else if self.has(Choice::PostList) && self.tool.is_latency {
            Some("Post list is supported in BW tests only")
        } else if is_multicast && self.has(Choice::BothWays) {
            Some("Bidirectional mode not supported in multicast")
        } else if is_multicast && self.has(Choice::FourQps) {
            Some("Only 1 QP supported in multicast")
        } else if is_dc && self.posts == Posts::Old {
            Some("DC does not support old post send flow")
        } else {
            None
        }
    }

    /// Returns true if perftest sends more messages than it has posted receives for, over a service
    /// that drops them. Its shared receive queue has only as many receives as one of the four QPs
    /// gets messages.
    pub(super) fn loses(&self) -> bool {
        matches!(self.effective_service(), Service::Uc | Service::Ud)
            && self.has(Choice::Srq)
            && self.has(Choice::FourQps)
    }

    /// Returns true if a side creates a receive CQ that it never destroys. With `-e` that CQ has a
    /// completion channel, which then cannot be destroyed (`EBUSY`), and perftest ends with status
    /// 1 after a successful run.
    ///
    /// Over DC perftest destroys the receive CQ only in its SEND programs, and there only in the
    /// client.
    pub(super) fn leaves_cq(&self, side: Side) -> bool {
        if self.effective_service() != Service::Dc || !self.has(Choice::Events) {
            return false;
        }
        // A server that only receives has targets and no initiator. The server of ib_atomic_lat
        // destroys nothing at all.
        let both_ways = self.has(Choice::BothWays) || self.tool.is_latency;
        let is_atomic_lat = self.tool.verb == Verb::Atomic && self.tool.is_latency;
        match self.tool.verb {
            Verb::Send => side == Side::Server,
            _ => side == Side::Client || (both_ways && !is_atomic_lat),
        }
    }
}

/// Returns compatible sets of options that together contain each option of a program, so that few
/// runs are necessary.
fn sets(tool: Tool) -> &'static [&'static [Choice]] {
    use Choice::{AllSizes, BothWays, Events, FourQps, Inline, PostList, Srq};
    match (tool.verb, tool.is_latency) {
        (Verb::Send, false) => &[
            &[AllSizes, PostList, Inline],
            &[BothWays, FourQps],
            &[Events, Srq],
        ],
        (Verb::Send, true) => &[&[AllSizes, Inline], &[Events, Srq]],
        (Verb::Write, false) => &[&[AllSizes, PostList, Inline], &[BothWays, FourQps]],
        (Verb::Write, true) => &[&[AllSizes, Inline]],
        (Verb::Read, false) => &[&[AllSizes, PostList], &[BothWays, FourQps], &[Events]],
        (Verb::Read, true) => &[&[AllSizes], &[Events]],
        (Verb::Atomic, false) => &[&[BothWays, FourQps], &[Events, PostList]],
        (Verb::Atomic, true) => &[&[Events]],
    }
}

/// Returns the program that runs all sizes for a service and a link, given by its index. The
/// programs for bandwidth compute for 5 s then, because they measure the CPU clock for each size,
/// so each of them does it once.
fn goes_through_all_sizes(service: Service, link: usize) -> &'static str {
    let of_links = match service {
        Service::Rc => ["ib_send_bw", "ib_write_lat"],
        // WRITE, because a lost packet over UDP then costs no receive.
        Service::Uc => ["ib_write_bw", "ib_send_lat"],
        Service::Ud => ["ib_send_lat", "ib_send_lat"],
        Service::Xrc => ["ib_read_lat", "ib_write_lat"],
        Service::Dc => ["ib_read_bw", "ib_read_lat"],
    };
    of_links[link]
}

/// Returns the rows of a service over a link, given by its index. Each option of each program
/// occurs on both links and with both ways to post. All sizes occur with each service on both
/// links, and with each program on one link.
pub(super) fn short(service: Service, link: usize) -> Vec<Row> {
    let mut rows = Vec::new();
    for (n, tool) in Tool::all().enumerate() {
        let groups: &[&[Choice]] = if service == Service::Ud && tool.verb == Verb::Send {
            &[&[Choice::Multicast]]
        } else {
            &[]
        };
        let all_sizes = goes_through_all_sizes(service, link) == tool.program();
        for (m, set) in sets(tool).iter().chain(groups).enumerate() {
            let left = set.iter().filter(|&&c| all_sizes || c != Choice::AllSizes);
            let choices: Vec<Choice> = left.copied().collect();
            let posts = if service == Service::Dc {
                Posts::New
            } else {
                Posts::ALL[(n + m + link) % 2]
            };
            if !choices.is_empty() {
                rows.push(Row::new(tool, service, &choices, posts));
            }
        }
    }
    rows.retain(|row| row.refusal().is_none());
    rows
}

/// Returns one row for each reason to refuse.
pub(super) fn refusals() -> Vec<Row> {
    let mut rows: Vec<Row> = full().filter(|row| row.refusal().is_some()).collect();
    // Rows with fewer options come first.
    rows.sort_by_key(|row| (row.refusal(), row.tool.program(), row.choices.len()));
    rows.dedup_by_key(|row| (row.refusal(), row.tool));
    rows
}

/// Returns every program with every service, both ways to post, and every option, alone and in
/// pairs.
pub(super) fn full() -> impl Iterator<Item = Row> {
    let none = std::iter::once(Vec::new());
    let alone = Choice::ALL.map(|choice| vec![choice]);
    let pairs = Choice::ALL.into_iter().flat_map(|a| {
        let later = Choice::ALL.into_iter().filter(move |&b| b > a);
        later.map(move |b| vec![a, b])
    });
    let sets: Vec<Vec<Choice>> = none.chain(alone).chain(pairs).collect();
    let all = Tool::all().flat_map(move |tool| {
        let sets = sets.clone();
        Service::ALL.into_iter().flat_map(move |service| {
            let rows = sets.clone().into_iter();
            rows.flat_map(move |choices| {
                Posts::ALL.map(|posts| Row::new(tool, service, &choices, posts))
            })
        })
    });
    all.filter(|row| !row.loses())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Checks that the short table has every option that perftest accepts, on each link, and all
    /// sizes, which take long, on one link.
    #[test]
    fn the_short_table_has_every_choice_of_every_tool() {
        let alone = full().filter(|row| row.choices.len() == 1 && row.refusal().is_none());
        // With other services `-g` uses UD all the same.
        let wanted: BTreeSet<_> = alone
            .filter(|row| row.service == Service::Ud || !row.has(Choice::Multicast))
            .map(|row| (row.tool, row.service, row.choices[0]))
            .collect();
        let mut found = BTreeSet::new();
        for link in 0..2 {
            for row in Service::ALL.map(|service| short(service, link)).concat() {
                for &choice in &row.choices {
                    found.insert((row.tool, row.service, choice, row.posts, link));
                }
            }
        }
        let missing = |tool: Tool, service: Service, choice: Choice| {
            let is = |f: &(Tool, Service, Choice, Posts, usize)| f.2 == choice;
            if choice == Choice::AllSizes {
                let of_tool = found.iter().any(|f| is(f) && f.0 == tool);
                let on = |link| found.iter().any(|f| is(f) && f.1 == service && f.4 == link);
                return !(of_tool && on(0) && on(1));
            }
            let mine =
                |f: &&(Tool, Service, Choice, Posts, usize)| is(f) && f.0 == tool && f.1 == service;
            let links = [0, 1].map(|link| found.iter().filter(mine).any(|f| f.4 == link));
            let posts = Posts::ALL.map(|way| found.iter().filter(mine).any(|f| f.3 == way));
            links != [true; 2] || posts != [service != Service::Dc, true]
        };
        for (tool, service, choice) in wanted {
            assert!(
                !missing(tool, service, choice),
                "{tool:?} {service:?} {choice:?}"
            );
        }
    }
}
