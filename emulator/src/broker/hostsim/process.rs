//! A simulated process with a client of the broker: a thread that runs only while the schedule
//! waits for it.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::fmt::Write as _;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rocade_transport::Time;
use rocade_wire::Qpn;
use rocade_wire::mad::ServiceId;

use super::super::client::view::View;
use super::super::identity::Identity;
use super::super::machine::Machine;
use super::super::simulated::brokers::{ADDRESSES, address_of};
use super::super::simulated::handover::{Receiver, Sender, channel};
use super::super::simulated::host::Host;
use super::super::simulated::identity::SimulatedProcess;
use super::super::{BrokerClient, BrokerConfig, BrokerError, ServiceOutcome};
use super::life::Life;
use super::links::End;
use super::step::{Call, NAMES};
use crate::gsi::services::{Binding, BoundTo, Conflict};
use crate::journal::{DomainKey, JournalSlot};
use crate::link::LocalAddr;
use crate::steering::ProcessSlot;
use crate::sync::Mutex;

/// Facts that clients of a host tell the schedule and each other, beside the system.
#[derive(Debug, Default)]
pub(super) struct Notes {
    /// The processes that have created the targets, by number.
    pub(super) targets: Mutex<BTreeMap<u32, (DomainKey, u32)>>,
    /// The processes that talk to another host, by the number of the connection.
    pub(super) talks: Mutex<BTreeMap<u32, u32>>,
    /// Acknowledgements that processes have not sent yet, which outlive the processes.
    pub(super) acks: Mutex<Vec<JournalSlot>>,
    /// The addresses and slots of the processes in the directory of the one that runs.
    pub(super) users: Mutex<Vec<(LocalAddr, ProcessSlot)>>,
    /// The ends of shared-memory links that processes have, when they report it.
    pub(super) links: Mutex<Vec<End>>,
    /// Broken conditions that processes have seen.
    pub(super) complaints: Mutex<Vec<String>>,
}

/// An order of the schedule. A process that can get none any longer is dead.
#[derive(Debug)]
enum Order {
    Call(Call),
    GoOn,
}

/// A message to the schedule from a process that stops running.
#[derive(Debug)]
pub(super) enum Report {
    Waits(Wait),
    /// The call has returned. `None` if the process has ended because it could not connect.
    Returned(Result<Outcome, BrokerError>, Option<View>),
}

/// The outcome of a call that has not failed.
#[derive(Clone, Copy, Debug)]
pub(super) enum Outcome {
    Done,
    /// The port belongs to another process.
    Conflict(Conflict),
    /// The client is serviced, and wants it again after this time, if any.
    Serviced(Option<Duration>),
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Wait {
    pub(super) fd: Option<RawFd>,
    pub(super) until: Time,
}

#[derive(Debug)]
struct SimulatedMachine {
    host: Arc<Host>,
    process: SimulatedProcess,
    line: Arc<Line>,
}

/// A process' end of the line to the schedule.
#[derive(Debug)]
struct Line {
    orders: Receiver<Order>,
    reports: Sender<Report>,
}

impl Line {
    /// Reports, and returns the next order. `None` if the process is dead.
    fn report(&self, report: Report) -> Option<Order> {
        self.reports.send(report).then(|| self.orders.receive())?
    }
}

impl SimulatedMachine {
    fn wait(&self, fd: Option<RawFd>, time: Duration) -> Result<(), BrokerError> {
        let until = self.host.now().plus(time);
        match self.line.report(Report::Waits(Wait { fd, until })) {
            Some(Order::GoOn) => Ok(()),
            // Any error that is not transient ends the call.
            _ => Err(BrokerError::Forked),
        }
    }
}

impl Machine for SimulatedMachine {
    fn now(&self) -> Time {
        self.host.now()
    }

    fn sleep(&self, time: Duration) -> Result<(), BrokerError> {
        self.wait(None, time)
    }

    fn until_readable(&self, fd: BorrowedFd<'_>, time: Duration) -> Result<(), BrokerError> {
        self.wait(Some(fd.as_raw_fd()), time)
    }

    fn process(&self) -> &dyn Identity {
        &self.process
    }

    fn start_broker(&self, _: &[CString], _: &[CString], _: BorrowedFd<'_>) -> io::Result<OwnedFd> {
        self.process.start_broker()
    }
}

/// A process, seen by the schedule.
pub(super) struct Process {
    orders: Option<Sender<Order>>,
    reports: Receiver<Report>,
    thread: Option<JoinHandle<()>>,
}

impl Process {
    /// Starts a process that connects to the broker. Returns its first report.
    pub(super) fn start(
        host: &Arc<Host>,
        notes: &Arc<Notes>,
        process: SimulatedProcess,
        config: BrokerConfig,
    ) -> (Self, Report) {
        let (orders, received) = channel();
        let (told, reports) = channel();
        let line = Arc::new(Line {
            orders: received,
            reports: told,
        });
        let machine = SimulatedMachine {
            host: Arc::clone(host),
            process,
            line: Arc::clone(&line),
        };
        let life = Life::new(machine.process.number, host, notes);
        let thread = thread::spawn(move || live(machine, life, &config, &line));
        let process = Self {
            orders: Some(orders),
            reports,
            thread: Some(thread),
        };
        let report = process.report();
        (process, report)
    }

    fn report(&self) -> Report {
        self.reports.receive().expect("the process lives")
    }

    fn order(&self, order: Order) -> Report {
        let orders = self.orders.as_ref().expect("it lives");
        assert!(orders.send(order), "it lives");
        self.report()
    }

    pub(super) fn call(&self, call: Call) -> Report {
        self.order(Order::Call(call))
    }

    pub(super) fn go_on(&self) -> Report {
        self.order(Order::GoOn)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(ended.is_ok() || thread::panicking(), "a process panicked");
        }
    }
}

fn live(machine: SimulatedMachine, mut life: Life, config: &BrokerConfig, line: &Line) {
    let client = match BrokerClient::connect_on(Arc::new(machine), config, Vec::new()) {
        Ok(client) => client,
        Err(error) => {
            line.reports.send(Report::Returned(Err(error), None));
            return;
        }
    };
    let mut result = Ok(Outcome::Done);
    while let Some(Order::Call(call)) = line.report(Report::Returned(result, Some(client.view()))) {
        result = life.perform(&client, call);
        if matches!(result, Err(BrokerError::Forked)) {
            return;
        }
    }
}

/// Performs a call.
pub(super) fn perform(
    client: &BrokerClient,
    call: Call,
    targets: &mut u32,
) -> Result<Outcome, BrokerError> {
    match call {
        Call::Open(address) => client.socket_for(address_of(address)).map(drop)?,
        Call::Service => {
            return Ok(Outcome::Serviced(match client.service() {
                ServiceOutcome::Retry(time) => Some(time),
                _ => None,
            }));
        }
        Call::Bind(name) => {
            if let Err(conflict) = client.bind_service(binding(name), false)? {
                return Ok(Outcome::Conflict(conflict));
            }
        }
        Call::Release(name) => client.release_service(binding(name))?,
        Call::OpenDomain(name) => {
            if !client.view().domains.contains_key(&domain(name)) {
                drop(client.open_domain(domain(name), true, false)?);
            }
        }
        Call::CloseDomain(name) => client.close_domain(domain(name))?,
        Call::NewTarget(name) => {
            if client.view().domains.contains_key(&domain(name)) {
                *targets += 1;
                client.new_target(domain(name), target(client, *targets))?;
            }
        }
        Call::CloseTarget(name) => {
            client.close_target(domain(name), target(client, *targets))?;
        }
        // Only simulated processes make these calls.
        Call::OpenTarget(_)
        | Call::Talk(_)
        | Call::Link(_)
        | Call::ReportLinks
        | Call::ShareTarget(_)
        | Call::JoinTarget(_)
        | Call::OpenAndTalk(_) => {}
    }
    Ok(Outcome::Done)
}

fn target(client: &BrokerClient, number: u32) -> Qpn {
    Qpn::new(u32::from(client.slot().get()) << 16 | 0x100 | number)
}

/// Returns the address of another host.
pub(super) fn peer_address() -> LocalAddr {
    address_of(ADDRESSES)
}

pub(super) fn binding(name: u8) -> Binding {
    Binding {
        service: ServiceId::of_port(0x106, 7000 + u16::from(name)),
        to: BoundTo::AnyV4,
        reuse: false,
        listens: true,
    }
}

pub(super) const fn domain(name: u8) -> DomainKey {
    DomainKey {
        guid: 1,
        device: 2,
        inode: name as u64,
    }
}

/// Returns what a call has returned, without what depends on time.
pub(super) fn outcome_of(result: &Result<Outcome, BrokerError>) -> String {
    match result {
        Ok(Outcome::Conflict(conflict)) => format!("{conflict:?}"),
        Ok(_) => "no error".to_owned(),
        Err(BrokerError::Refused { code, .. }) => format!("{code:?}"),
        Err(error) => error.to_string(),
    }
}

/// Returns what a process has, with `#` and a number for each file.
pub(super) fn text_of(view: &View) -> String {
    let mut text = format!("slot {}", view.slot);
    let mut add = |what: &str, number: u8, files: &[u64]| {
        let _ = write!(text, ", {what} {number}");
        files.iter().for_each(|file| {
            let _ = write!(text, " #{file}");
        });
    };
    for address in 0..ADDRESSES {
        if let Some(sockets) = view.sockets.get(&address_of(address)) {
            add("address", address, sockets);
        }
    }
    for name in 0..NAMES {
        if let Some(memory) = view.domains.get(&domain(name)) {
            add("domain", name, &[*memory]);
        }
        if view.ports.contains(&binding(name)) {
            add("port", name, &[]);
        }
    }
    text
}
