//! A simulated process with a client of the broker: a thread that runs only while the schedule
//! waits for it.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rocade_transport::Time;
use rocade_wire::Qpn;
use rocade_wire::mad::ServiceId;

use super::super::client::view::View;
use super::super::machine::Machine;
use super::super::{BrokerClient, BrokerConfig, BrokerError, ServiceOutcome};
use super::handover::{Receiver, Sender, channel};
use super::step::Call;
use crate::gsi::services::{Binding, BoundTo};
use crate::journal::DomainKey;
use crate::link::LocalAddr;
use crate::sync::Mutex;

/// State that all processes of a host share.
#[derive(Debug, Default)]
pub(super) struct Host {
    pub(super) now_ns: AtomicU64,
    /// Brokers that clients have started: the ends of their liveness sockets, and the directory.
    pub(super) started: Mutex<Vec<(OwnedFd, u8)>>,
    pub(super) has_stopped_broker: AtomicBool,
}

impl Host {
    pub(super) fn now(&self) -> Time {
        Time::from_ns(self.now_ns.load(Ordering::Relaxed))
    }
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
    Returned(Result<Serviced, BrokerError>, Option<View>),
}

/// The outcome of a call of [`BrokerClient::service`]: the time after which the client wants the
/// next one, if any. `None` for all other calls.
pub(super) type Serviced = Option<Option<Duration>>;

#[derive(Clone, Copy, Debug)]
pub(super) struct Wait {
    pub(super) fd: Option<RawFd>,
    pub(super) until: Time,
}

#[derive(Debug)]
struct SimulatedMachine {
    host: Arc<Host>,
    dir: u8,
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

    fn is_stopped(&self, _: u32) -> bool {
        self.host.has_stopped_broker.load(Ordering::Relaxed)
    }

    fn start_broker(&self, _: &[CString], _: &[CString], _: BorrowedFd<'_>) -> io::Result<OwnedFd> {
        let (own, theirs) = std::os::unix::net::UnixStream::pair()?;
        self.host.started.lock().push((theirs.into(), self.dir));
        Ok(own.into())
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
    pub(super) fn start(host: &Arc<Host>, dir: u8, config: BrokerConfig) -> (Self, Report) {
        let (orders, received) = channel();
        let (told, reports) = channel();
        let line = Arc::new(Line {
            orders: received,
            reports: told,
        });
        let machine = SimulatedMachine {
            host: Arc::clone(host),
            dir,
            line: Arc::clone(&line),
        };
        let thread = thread::spawn(move || live(machine, &config, &line));
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

fn live(machine: SimulatedMachine, config: &BrokerConfig, line: &Line) {
    let client = match BrokerClient::connect_on(Arc::new(machine), config, Vec::new()) {
        Ok(client) => client,
        Err(error) => {
            line.reports.send(Report::Returned(Err(error), None));
            return;
        }
    };
    let mut targets = 0;
    let mut result = Ok(None);
    while let Some(Order::Call(call)) = line.report(Report::Returned(result, Some(client.view()))) {
        result = perform(&client, call, &mut targets);
        if matches!(result, Err(BrokerError::Forked)) {
            return;
        }
    }
}

/// Performs a call.
fn perform(client: &BrokerClient, call: Call, targets: &mut u32) -> Result<Serviced, BrokerError> {
    match call {
        Call::Open(address) => client.socket_for(address_of(address)).map(drop)?,
        Call::Service => {
            return Ok(Some(match client.service() {
                ServiceOutcome::Retry(time) => Some(time),
                _ => None,
            }));
        }
        Call::Bind(name) => drop(client.bind_service(binding(name), false)?),
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
    }
    Ok(None)
}

fn target(client: &BrokerClient, number: u32) -> Qpn {
    Qpn::new(u32::from(client.slot().get()) << 16 | 0x100 | number)
}

/// Returns an address that no other test uses.
pub(super) fn address_of(address: u8) -> LocalAddr {
    let [_, _, high, low] = std::process::id().to_be_bytes();
    std::net::IpAddr::from([127, (high & 0x1f) | 0xc0, low, 200 + address]).into()
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
