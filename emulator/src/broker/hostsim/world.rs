//! The simulated host: brokers, processes, and the schedule.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;

use rocade_transport::Time;

use super::super::client::view::View;
use super::super::protocol::{Request, VERSION, with_version};
use super::super::simulated::brokers::{Brokers, Marks};
use super::super::simulated::host::Host;
use super::super::simulated::identity::SimulatedProcess;
use super::super::sys;
use super::outside::Peer;
use super::process::{Notes, Outcome, Process, Report, Wait, outcome_of};
use super::step::{CLIENTS, Call, Step};

mod schedule;

/// Marks that have to be reached in a thousand seeds.
pub(super) const EXPECTED: [&str; 19] = [
    "an address is in use by the other directory",
    "a broker is killed",
    "a broker is stopped and given up",
    "a broker is told to end",
    "a directory is crowded",
    "a packet comes from another host",
    "a process is killed",
    "a process is killed while it waits",
    "a process ends before its child",
    "a process sees the end of a link",
    "a program of another user is refused",
    "a program connects and is silent",
    "a program of another version is refused",
    "a slot is leased again",
    "a slot is resumed",
    "a target outlives its process",
    "the peer of a killed process is told",
    "two processes have a link",
    "two processes share an address",
];

/// Time for which a host comes to rest.
const REST: Duration = Duration::from_secs(40);
/// Most rounds until then.
pub(super) const ROUNDS: usize = 20_000;
/// Time to the first service of a client that has lost its connection.
const FIRST_SERVICE: Duration = Duration::from_millis(50);
/// Time that passes while others are ready to run.
const MOMENT: Duration = Duration::from_millis(1);

/// A process of the host.
pub(super) struct Member {
    process: Process,
    pub(super) dir: u8,
    waits: Option<Wait>,
    pub(super) view: Option<View>,
    is_stopped: bool,
    /// Time at which it wants to be serviced again.
    service_at: Option<Time>,
    /// Number of disturbances when its call began.
    disturbed: u64,
    /// Time at which its call began.
    began: Time,
    /// Its last call. `None` while it connects.
    call: Option<Call>,
    pub(super) number: u32,
}

pub(super) struct World {
    pub(super) host: Arc<Host>,
    pub(super) notes: Arc<Notes>,
    pub(super) members: Vec<Option<Member>>,
    /// Processes that have ended, whose children keep their descriptors.
    pub(super) children: Vec<Member>,
    /// Another host.
    pub(super) peer: Peer,
    /// Connections of processes that were killed, and the brokers that have to end them.
    pub(super) farewells: Vec<(u32, u32)>,
    /// The locks that children of ended processes keep.
    pub(super) crowd: Vec<File>,
    /// Number of times that a process or broker was killed, stopped or told to end.
    pub(super) disturbances: u64,
    /// A process with a client was stopped.
    pub(super) has_stopped: bool,
    /// Slots that were leased, by directory.
    leased: BTreeSet<(u8, u8)>,
    /// Directories that a process has used.
    used: BTreeSet<u8>,
    /// Outcomes of the last call of each process, other than services.
    pub(super) results: BTreeMap<u8, String>,
    /// Dropped last, because the next host uses the same addresses then.
    pub(super) brokers: Brokers,
}

impl World {
    pub(super) fn new() -> Self {
        let brokers = Brokers::new().expect("a directory");
        Self {
            host: Arc::clone(&brokers.host),
            notes: Arc::default(),
            members: (0..CLIENTS).map(|_| None).collect(),
            brokers,
            children: Vec::new(),
            peer: Peer::new(),
            farewells: Vec::new(),
            crowd: Vec::new(),
            disturbances: 0,
            has_stopped: false,
            leased: BTreeSet::new(),
            used: BTreeSet::new(),
            results: BTreeMap::new(),
        }
    }

    /// Ends all processes. Returns how often what has happened.
    pub(super) fn end(mut self) -> Marks {
        // A client that waits for its broker does so no longer.
        self.members.clear();
        self.children.clear();
        self.brokers.marks
    }

    /// Takes all steps, then lets the host come to rest.
    ///
    /// # Errors
    /// A text that names the broken condition.
    pub(super) fn run(&mut self, steps: &[Step]) -> Result<(), String> {
        for (number, step) in steps.iter().enumerate() {
            self.take(*step)
                .and_then(|()| self.check())
                .map_err(|error| format!("step {number} ({step:?}): {error}"))?;
        }
        self.rest()?;
        self.check()?;
        self.check_at_rest()
    }

    pub(super) fn now(&self) -> Time {
        self.host.now()
    }

    pub(super) fn mark(&mut self, mark: &'static str) {
        self.brokers.mark(mark);
    }

    pub(super) fn take(&mut self, step: Step) -> Result<(), String> {
        match step {
            Step::Connect { client, dir } => self.connect(client, dir)?,
            Step::Call { client, call } => self.call(client, call)?,
            Step::GoOn { client } => drop(self.go_on(client)?),
            Step::Turn { broker } => {
                if let Some(broker) = self.index_of(broker) {
                    self.brokers.turn(broker)?;
                }
            }
            Step::Work { rounds } => {
                for _ in 0..rounds {
                    self.work()?;
                }
            }
            Step::Advance => self.advance(),
            Step::Kill { client } => self.kill(client),
            Step::EndWithChild { client } => self.end_with_child(client),
            Step::EndChildren => self.end_children(),
            Step::OtherUser { dir } => self.connect_as_another_user(dir),
            Step::Stop { client } => self.stop(client, true),
            Step::Continue { client } => self.stop(client, false),
            Step::KillBroker { broker } => {
                if let Some(broker) = self.index_of(broker) {
                    self.mark("a broker is killed");
                    self.disturbances += 1;
                    self.brokers.end_broker(broker);
                }
            }
            Step::StopBroker { broker } => self.stop_broker(broker, true),
            Step::ContinueBroker { broker } => self.stop_broker(broker, false),
            Step::EndBroker { dir } => {
                if self.brokers.tell_to_end_in(dir) {
                    self.disturbances += 1;
                    self.mark("a broker is told to end");
                }
            }
            Step::OtherVersion { dir } => {
                if self.brokers.tell(dir, &other_version()) {
                    self.mark("a program of another version is refused");
                }
            }
            Step::Silent { dir } => self.be_silent(dir),
            Step::Packet { address, slot } => self.send_packet(address, slot),
            Step::Crowd => self.crowd()?,
        }
        self.brokers.start_brokers();
        Ok(())
    }

    fn index_of(&self, broker: u8) -> Option<usize> {
        usize::from(broker).checked_rem(self.brokers.list.len())
    }

    fn connect(&mut self, client: u8, dir: u8) -> Result<(), String> {
        if self.members[usize::from(client)].is_some() {
            return Ok(());
        }
        self.used.insert(dir);
        let process = SimulatedProcess::new(&self.host, dir).expect("a process");
        let number = process.number;
        let (process, report) = Process::start(
            &self.host,
            &self.notes,
            process,
            self.brokers.config_of(dir),
        );
        self.members[usize::from(client)] = Some(Member {
            process,
            dir,
            waits: None,
            view: None,
            is_stopped: false,
            service_at: None,
            disturbed: self.disturbances,
            began: self.now(),
            call: None,
            number,
        });
        self.note(client, report)
    }

    pub(super) fn call(&mut self, client: u8, call: Call) -> Result<(), String> {
        let (disturbances, now) = (self.disturbances, self.now());
        let Some(member) = &mut self.members[usize::from(client)] else {
            return Ok(());
        };
        if member.is_stopped || member.waits.is_some() {
            return Ok(());
        }
        member.disturbed = disturbances;
        (member.began, member.call) = (now, Some(call));
        if call.opens_address() || matches!(call, Call::Link(_)) {
            let dir = member.dir;
            self.note_users(dir);
        }
        let Some(member) = &self.members[usize::from(client)] else {
            return Ok(());
        };
        let report = member.process.call(call);
        self.note(client, report)
    }

    /// Returns true if the process waits for something that has come.
    fn is_ready(&self, member: &Member) -> bool {
        let Some(wait) = member.waits.filter(|_| !member.is_stopped) else {
            return false;
        };
        let has_input = wait.fd.is_some_and(is_readable);
        has_input || wait.until <= self.now()
    }

    /// Returns false if it cannot go on.
    fn go_on(&mut self, client: u8) -> Result<bool, String> {
        let member = self.members[usize::from(client)].as_ref();
        let Some(member) = member.filter(|member| self.is_ready(member)) else {
            return Ok(false);
        };
        let report = member.process.go_on();
        self.note(client, report)?;
        Ok(true)
    }

    /// Notes what a process has told.
    fn note(&mut self, client: u8, report: Report) -> Result<(), String> {
        let now = self.now();
        let Some(member) = &mut self.members[usize::from(client)] else {
            return Ok(());
        };
        let (result, view) = match report {
            Report::Waits(wait) => {
                member.waits = Some(wait);
                return Ok(());
            }
            Report::Returned(result, view) => (result, view),
        };
        if !matches!(result, Ok(Outcome::Serviced(_))) {
            self.results.insert(client, outcome_of(&result));
        }
        member.waits = None;
        let (dir, disturbed) = (member.dir, member.disturbed);
        let (lasted, call) = (now.since(member.began), member.call);
        let was_connected = member.view.as_ref().map(|view| view.is_connected);
        let is_connected = view.as_ref().is_some_and(|view| view.is_connected);
        let leased = (was_connected.is_none()).then(|| view.as_ref().map(|view| view.slot));
        member.view.clone_from(&view);
        if let Ok(Outcome::Serviced(again)) = &result {
            member.service_at = again.map(|time| now.plus(time));
        } else if !is_connected {
            // The call has lost the connection.
            let soon = now.plus(FIRST_SERVICE);
            member.service_at = Some(member.service_at.map_or(soon, |at| at.min(soon)));
        }
        if view.is_none()
            && let Some(ended) = self.members[usize::from(client)].take()
        {
            self.host.processes.lock().end(ended.number);
        }
        if let Some(slot) = leased.flatten()
            && !self.leased.insert((dir, slot.get()))
        {
            self.mark("a slot is leased again");
        }
        if was_connected == Some(false) && is_connected {
            self.mark("a slot is resumed");
        }
        self.check_complaints(call, view.as_ref())?;
        match result {
            Ok(_) => Ok(()),
            Err(error) => self.check_error(&error, disturbed, lasted),
        }
    }

    /// Returns true if something that is stopped now, or was disturbed since, may be the reason of
    /// a failed call.
    pub(super) fn is_disturbed(&self, since: u64) -> bool {
        let mut members = self.members.iter().flatten();
        self.disturbances > since
            || self.brokers.list.iter().any(|broker| broker.is_stopped)
            // They may keep sockets that no broker has.
            || !self.children.is_empty()
            || members.any(|member| member.is_stopped)
    }

    /// Returns true if processes use several directories.
    pub(super) fn has_several_dirs(&self) -> bool {
        self.used.len() > 1
    }

    fn kill(&mut self, client: u8) {
        let Some(member) = self.members[usize::from(client)].take() else {
            return;
        };
        self.expect_farewells(&member);
        self.disturbances += 1;
        self.mark("a process is killed");
        if member.waits.is_some() {
            self.mark("a process is killed while it waits");
        }
        self.host.processes.lock().end(member.number);
        drop(member);
        // What it has started before.
        self.brokers.start_brokers();
    }

    fn stop(&mut self, client: u8, is_stopped: bool) {
        self.has_stopped |= is_stopped;
        if let Some(member) = &mut self.members[usize::from(client)] {
            self.disturbances += u64::from(member.is_stopped != is_stopped);
            member.is_stopped = is_stopped;
            self.host.processes.lock().stop(member.number, is_stopped);
        }
    }

    fn stop_broker(&mut self, broker: u8, is_stopped: bool) {
        if let Some(broker) = self.index_of(broker) {
            let broker = &mut self.brokers.list[broker];
            self.disturbances += u64::from(broker.is_stopped != is_stopped);
            broker.is_stopped = is_stopped;
            let number = broker.number();
            self.host.processes.lock().stop(number, is_stopped);
        }
    }

    /// The processes that have a slot.
    pub(super) fn clients(&self) -> impl Iterator<Item = (&Member, &View)> {
        let members = self.members.iter().flatten();
        members.filter_map(|member| Some((member, member.view.as_ref()?)))
    }

    pub(super) fn view_of(&self, client: u8) -> Option<&View> {
        self.members[usize::from(client)].as_ref()?.view.as_ref()
    }

    pub(super) fn waiting(&self) -> usize {
        let members = self.members.iter().flatten();
        members.filter(|member| member.waits.is_some()).count()
    }

    /// Returns true if a process waits for the sockets of an address.
    pub(super) fn is_opening(&self) -> bool {
        let mut members = self.members.iter().flatten();
        members.any(|one| one.waits.is_some() && one.call.is_some_and(Call::opens_address))
    }

    pub(super) fn note_shared(&mut self) {
        self.mark("two processes share an address");
    }
}

/// Returns the first message of a program with another version of the protocol.
pub(super) fn other_version() -> Vec<u8> {
    let hello = Request::Hello {
        resume: None,
        name: "newer".to_owned(),
        faults: Vec::new(),
    };
    with_version(hello.encode(), VERSION + 1)
}

pub(super) fn is_readable(fd: RawFd) -> bool {
    let mut waiting = [libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    }];
    sys::poll(&mut waiting, Some(Duration::ZERO)).is_ok_and(|ready| ready > 0)
}
