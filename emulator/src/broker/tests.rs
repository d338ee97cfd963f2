//! Tests of the broker's main loop with clients in this process.

use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rocade_transport::cm::CmRoute;
use rocade_wire::mad::{CmMessage, CommId, Mad, ServiceId, SidrReq, TransactionId};
use rocade_wire::{Pkey, Psn, Qpn};
use tempfile::TempDir;

use super::identity::ThisProcess;
use super::paths::Paths;
use super::protocol::{MAX_LEN, Request, Response};
use super::*;
use crate::fdpass;
use crate::gsi::services::{Binding, BoundTo};
use crate::gsi::{mad_of, packet};
use crate::journal::DomainKey;
use crate::link::{Arrival, ROCE_PORT, RxBuffer, UdpLink};

/// Timeout of waits that usually take milliseconds.
const PATIENCE: Duration = Duration::from_secs(30);

/// A broker that runs in a thread.
struct Running {
    config: BrokerConfig,
    thread: Option<JoinHandle<Result<(), BrokerError>>>,
    _dir: TempDir,
}

impl Running {
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let config = BrokerConfig {
            runtime_dir: Some(dir.path().to_owned()),
            ..BrokerConfig::default()
        };
        let thread = {
            let config = config.clone();
            thread::spawn(move || serve(&config))
        };
        wait_until(|| status(&config).is_ok());
        Self {
            config,
            thread: Some(thread),
            _dir: dir,
        }
    }

    fn client(&self) -> BrokerClient {
        BrokerClient::connect_or_start(&self.config).unwrap()
    }

    /// Waits until these slots are leased, and no others.
    fn wait_for_slots(&self, expected: &[u8]) {
        wait_until(|| {
            let slots = status(&self.config).unwrap().slots;
            let slots = slots.iter().map(|status| status.slot.get());
            slots.eq(expected.iter().copied())
        });
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Fails if the test has stopped the broker.
        let _ = stop(&self.config);
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap().unwrap();
        }
    }
}

fn wait_until(condition: impl Fn() -> bool) {
    let begin = Instant::now();
    while !condition() {
        assert!(begin.elapsed() < PATIENCE, "it does not happen");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Returns an address that no other test uses.
fn own_address() -> IpAddr {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let [_, _, high, low] = std::process::id().to_be_bytes();
    let last = NEXT.fetch_add(1, Ordering::Relaxed);
    Ipv4Addr::new(127, (high & 0x1f) | 0x80, low, last).into()
}

/// Builds a request for a service, as it leaves a port of `from`.
fn request(from: IpAddr, to: IpAddr, service_id: ServiceId) -> Vec<u8> {
    let route = CmRoute {
        local: from,
        remote: to,
    };
    let message = CmMessage::SidrReq(SidrReq {
        request_id: CommId::new(0x0900_0001),
        pkey: Pkey::DEFAULT,
        service_id,
        private_data: [0; SidrReq::PRIVATE_LEN],
    });
    let mad = Mad::new(TransactionId::new(1), message);
    packet(ROCE_PORT, Psn::new(0), route, &mad.to_bytes())
        .unwrap()
        .to_vec()
}

/// Waits for the next message that is forwarded to a link.
fn next_message(link: &UdpLink) -> CmMessage {
    let mut buffer = RxBuffer::new();
    loop {
        if let Some(batch) = link.recv(&mut buffer).unwrap() {
            let Arrival::Forwarded(_, inner, _) = link.arrival(batch.data) else {
                panic!("not from the broker")
            };
            let packet = rocade_wire::Packet::parse(inner).unwrap();
            return Mad::parse(mad_of(&packet).unwrap()).unwrap().message;
        }
        let mut set = crate::sys::PollSet::default();
        let entry = set.add(link.rx_fd().as_raw_fd());
        set.wait(Some(PATIENCE)).unwrap();
        assert!(set.is_ready(entry), "nothing comes");
    }
}

/// The QP numbers of a living target begin with the slot of its creator. While other processes have
/// the target open, no process gets that slot.
//= XRC-11 type=test
#[test]
fn the_slot_of_a_living_target_is_not_leased() {
    let _no_starts = crate::sys::STARTS.read();
    let broker = Running::start();
    let key = DomainKey {
        guid: 1,
        device: 2,
        inode: 3,
    };
    let maker = broker.client();
    assert_eq!(maker.slot(), ProcessSlot::new(1));
    let target = Qpn::new(0x01_1234);
    maker.open_domain(key, true, true).unwrap().unwrap();
    assert!(maker.new_target(key, target).unwrap());
    let other = broker.client();
    other.open_domain(key, false, false).unwrap().unwrap();
    assert!(other.open_target(key, target).unwrap());

    drop(maker);
    broker.wait_for_slots(&[2]);
    let third = broker.client();
    assert_eq!(
        third.slot(),
        ProcessSlot::new(3),
        "its slot is the target's"
    );
    assert!(other.close_target(key, target).unwrap(), "it is gone");
    assert_eq!(broker.client().slot(), ProcessSlot::new(1));
}

/// A program that stops listening between two connections does not lose the request in between.
#[test]
fn a_request_waits_for_a_listener_that_has_just_gone() {
    let _no_starts = crate::sys::STARTS.read();
    let broker = Running::start();
    let (here, there) = (own_address(), own_address());
    let client = broker.client();
    let socket = client.socket_for(here).unwrap();
    let link = UdpLink::from_broker(here, client.slot(), socket).unwrap();
    let [service, other] = [7471, 7472].map(|port| ServiceId::of_port(0x111, port));
    let binding = Binding {
        service,
        to: BoundTo::Ip(here),
        reuse: false,
        listens: true,
    };
    assert_eq!(client.bind_service(binding, false).unwrap(), Ok(binding));
    client.release_service(binding).unwrap();

    let sender = UdpSocket::bind((there, 0)).unwrap();
    let ask = |service| {
        let request = request(there, here, service);
        sender.send_to(&request, (here, ROCE_PORT)).unwrap();
    };
    let asked = |message: CmMessage| match message {
        CmMessage::SidrReq(SidrReq { service_id, .. }) => service_id,
        other => panic!("{other:?}"),
    };
    ask(service);
    // The service never had a listener, so the request is rejected at once.
    ask(other);
    assert_eq!(asked(next_message(&link)), other);
    assert_eq!(client.bind_service(binding, false).unwrap(), Ok(binding));
    assert_eq!(asked(next_message(&link)), service);
}

/// Opens a connection with the first message of a client that has this slot, or none. Returns the
/// connection, the slot and the new lock file.
fn greet(
    config: &BrokerConfig,
    resume: Option<(ProcessSlot, BorrowedFd<'_>)>,
) -> (OwnedFd, ProcessSlot, Option<OwnedFd>) {
    let connection = start::connect(&Paths::new(config), &ThisProcess).unwrap();
    let request = Request::Hello {
        resume: resume.map(|(slot, _)| slot),
        name: "resumes".to_owned(),
        faults: Vec::new(),
    };
    let proof: Vec<_> = resume.into_iter().map(|(_, lock)| lock).collect();
    fdpass::send(connection.as_fd(), &request.encode(), &proof).unwrap();
    loop {
        let mut set = crate::sys::PollSet::default();
        let entry = set.add(connection.as_raw_fd());
        set.wait(Some(PATIENCE)).unwrap();
        assert!(set.is_ready(entry), "no answer");
        let mut bytes = vec![0; MAX_LEN];
        let (len, fds) = fdpass::receive(connection.as_fd(), &mut bytes).unwrap();
        if let Response::Leased { slot, .. } = Response::decode(&bytes[..len], fds.len()).unwrap() {
            return (connection, slot, fds.into_iter().next());
        }
    }
}

/// A client may resume its slot before the broker notices that the earlier connection has ended.
/// The slot is listed once, and the end of the earlier connection does not free it.
#[test]
fn a_resumed_slot_is_listed_once() {
    let _no_starts = crate::sys::STARTS.read();
    let broker = Running::start();
    let (first, slot, lock) = greet(&broker.config, None);
    let lock = lock.expect("a lock file");
    for earlier in [Some(first), None] {
        let (again, resumed, _) = greet(&broker.config, Some((slot, lock.as_fd())));
        assert_eq!(resumed, slot);
        let slots = || status(&broker.config).unwrap().slots;
        let own = std::process::id();
        let is_listed = |slots: &[SlotStatus]| {
            let [only] = slots else { return false };
            (only.slot, only.pid, only.connected) == (slot, own, true)
        };
        assert!(is_listed(&slots()), "{:?}", slots());
        drop(earlier);
        // The broker handles the end of the earlier connection before the next request.
        let other = broker.client();
        assert_ne!(other.slot(), slot, "leased while its client lives");
        drop(other);
        wait_until(|| is_listed(&slots()));
        drop(again);
    }
}
