//! The record of what the rules have done: how often, when, and to which object.

use std::fmt;
use std::time::Duration;

use crate::sync::Mutex;
use rocade_transport::Time;
use rocade_wire::Qpn;

use super::schedule::RuleKey;

/// Most occurrences that are recorded with their time. Later ones only count.
const MAX_OCCURRENCES: usize = 4096;
/// Most rules that are reported, including those that were removed.
const MAX_REPORTED: usize = 256;
/// Most objects of a rule that are counted one by one.
pub const MAX_OBJECTS: usize = 4;

/// Longest wait for the lock when the process exits.
const EXIT_PATIENCE: Duration = Duration::from_millis(5);

/// A receiver of the rules' hit counts.
pub(crate) trait HitCounter: fmt::Debug + Send {
    /// Starts counting for a list of rules, with the present counts.
    fn begin(&self, hits: &mut dyn Iterator<Item = u64>);

    /// Sets the count of the rule at `index`.
    fn count(&self, index: usize, hits: u64);
}

/// A place for the report that outlives the process.
pub(crate) trait ReportKeeper: fmt::Debug + Send {
    /// Stores all of the rule at `index` of the report.
    fn add(&self, index: usize, rule: &ReportedRule);

    /// Stores the counts and times of the rule at `index`, which has been applied to the object at
    /// `object`, or to one that is not counted by itself.
    fn update(&self, index: usize, rule: &ReportedRule, object: Option<usize>);
}

/// The object that a rule was applied to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    /// A packet that was sent or received, with the destination QP of its BTH.
    Packet {
        /// True if this process has sent the packet.
        sent: bool,
        /// The destination QP.
        dest: Qpn,
    },
    /// A queue pair of this process.
    Qp(Qpn),
    /// A port of a device, from 1, or the whole device if `None`.
    Device(String, Option<u8>),
    /// Another object, in words.
    Other(String),
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Packet { sent: true, dest } => write!(f, "packet to QP {:#08x}", dest.get()),
            Self::Packet { sent: false, dest } => {
                write!(f, "packet received by QP {:#08x}", dest.get())
            }
            Self::Qp(qpn) => write!(f, "QP {:#08x}", qpn.get()),
            Self::Device(device, Some(port)) => write!(f, "{device} port {port}"),
            Self::Device(device, None) => f.write_str(device),
            Self::Other(text) => f.write_str(text),
        }
    }
}

/// One application of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Occurrence {
    /// The index of the rule in the report.
    pub rule: usize,
    /// Nanoseconds since the process opened its first device.
    pub at_ns: u64,
    /// The object.
    pub subject: Subject,
}

/// A rule, and how often it was applied.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReportedRule {
    /// The text of the rule.
    pub text: String,
    /// Number of applications.
    pub hits: u64,
    /// The first application, in nanoseconds since the process opened its first device.
    pub first_ns: Option<u64>,
    /// The last application, in nanoseconds since the process opened its first device.
    pub last_ns: Option<u64>,
    /// The first objects, at most [`MAX_OBJECTS`], and the number of applications to each.
    pub objects: Vec<(Subject, u64)>,
    /// Number of applications to other objects.
    pub other_hits: u64,
}

impl ReportedRule {
    fn new(text: &str) -> Self {
        Self {
            text: text.to_owned(),
            ..Self::default()
        }
    }

    /// Counts an application. Returns the index of its object, if that is counted by itself.
    fn count(&mut self, at_ns: u64, subject: &Subject) -> Option<usize> {
        self.hits += 1;
        self.first_ns.get_or_insert(at_ns);
        self.last_ns = Some(at_ns);
        let known = self.objects.iter().position(|(known, _)| known == subject);
        let index = match known {
            Some(index) => index,
            None if self.objects.len() < MAX_OBJECTS => {
                self.objects.push((subject.clone(), 0));
                self.objects.len() - 1
            }
            None => {
                self.other_hits += 1;
                return None;
            }
        };
        self.objects[index].1 += 1;
        Some(index)
    }
}

/// The applications of the rules of an engine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FaultReport {
    /// The rules, including removed ones, in the order in which they were added.
    pub rules: Vec<ReportedRule>,
    /// The first applications, in order.
    pub occurrences: Vec<Occurrence>,
}

/// Counts the applications of rules.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    state: Mutex<TallyState>,
}

#[derive(Debug, Default)]
struct TallyState {
    report: FaultReport,
    /// The keys of the rules of the report.
    keys: Vec<RuleKey>,
    /// The rules in force, in the order in which the counter knows them.
    in_force: Vec<RuleKey>,
    counter: Option<Box<dyn HitCounter>>,
    keeper: Option<Box<dyn ReportKeeper>>,
    /// The time at which the process opened its first device.
    begun: Option<Time>,
}

impl TallyState {
    fn index(&self, key: RuleKey) -> Option<usize> {
        self.keys.iter().position(|known| *known == key)
    }

    fn hits(&self, key: RuleKey) -> u64 {
        let index = self.index(key);
        index.map_or(0, |index| self.report.rules[index].hits)
    }
}

impl Tally {
    /// Sets the time that the times of the report count from.
    pub(super) fn begin(&self, now: Time) {
        self.state.lock().begun.get_or_insert(now);
    }

    /// Sets the rules in force, and the receiver of their counts.
    pub(super) fn set_rules(
        &self,
        rules: &[(RuleKey, String)],
        counter: Option<Box<dyn HitCounter>>,
    ) {
        let mut state = self.state.lock();
        let state = &mut *state;
        for (key, text) in rules {
            if state.index(*key).is_none() && state.keys.len() < MAX_REPORTED {
                let rule = ReportedRule::new(text);
                if let Some(keeper) = &state.keeper {
                    keeper.add(state.keys.len(), &rule);
                }
                state.keys.push(*key);
                state.report.rules.push(rule);
            }
        }
        state.in_force = rules.iter().map(|(key, _)| *key).collect();
        if let Some(counter) = &counter {
            counter.begin(&mut state.in_force.iter().map(|key| state.hits(*key)));
        }
        state.counter = counter;
    }

    /// Sets the place that keeps the report, and stores what has happened so far.
    pub(crate) fn keep_in(&self, keeper: Box<dyn ReportKeeper>) {
        let mut state = self.state.lock();
        for (index, rule) in state.report.rules.iter().enumerate() {
            keeper.add(index, rule);
        }
        state.keeper = Some(keeper);
    }

    /// Returns the report of a process that exits, if there were rules and it has opened a device.
    /// Another thread may hold the lock, and then there is none.
    pub(crate) fn report_at_exit(&self) -> Option<FaultReport> {
        let state = self.state.try_lock_for(EXIT_PATIENCE)?;
        let is_worth_telling = state.begun.is_some() && !state.report.rules.is_empty();
        is_worth_telling.then(|| state.report.clone())
    }

    /// Records that a rule was applied.
    pub(crate) fn hit(&self, key: RuleKey, now: Time, subject: Subject) {
        let mut state = self.state.lock();
        let state = &mut *state;
        let Some(index) = state.index(key) else {
            return;
        };
        let at_ns = now.ns_since(state.begun.unwrap_or(now));
        let rule = &mut state.report.rules[index];
        let object = rule.count(at_ns, &subject);
        let hits = rule.hits;
        if let Some(keeper) = &state.keeper {
            keeper.update(index, rule, object);
        }
        if state.report.occurrences.len() < MAX_OCCURRENCES {
            state.report.occurrences.push(Occurrence {
                rule: index,
                at_ns,
                subject,
            });
        }
        let place = state.in_force.iter().position(|known| *known == key);
        if let (Some(counter), Some(place)) = (&state.counter, place) {
            counter.count(place, hits);
        }
    }

    /// Returns what has happened so far.
    pub(crate) fn report(&self) -> FaultReport {
        self.state.lock().report.clone()
    }
}
