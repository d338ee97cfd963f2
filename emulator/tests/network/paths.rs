//! A connection with two paths, after the interface of one goes down.

use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle};

use rocade_emulator::{
    AsyncEventKind, BrokerMode, Connection, Engine, EngineConfig, LinkMode, QpAttr, QpAttrMask,
};

use super::common::{ALL_ACCESS, Side};
use super::hosts::wait_for;
use super::sandbox::own_network;
use super::two_paths::{ARMED, MIGRATED, REARM, migration_of, rearm, talk, wait_until};
use super::{ip, without_ipv6};

/// 134 ms. The awaited timeouts do not depend on a busy machine.
const TIMEOUT: u8 = 15;

/// A job for one of two hosts with two interfaces each. Sockets are opened in the namespace of the
/// thread that runs it.
type Job = Box<dyn FnOnce() + Send>;

/// Makes a device with both interfaces.
fn device(first: &str, second: &str) -> Arc<Side> {
    wait_for(first);
    wait_for(second);
    let specs = [format!("dev={first}+{second}")];
    let config = EngineConfig::from_specs(&specs, BrokerMode::Embedded).unwrap();
    let engine = Engine::new(EngineConfig {
        link: LinkMode::Udp,
        ..config
    });
    Arc::new(Side::on(engine.unwrap(), 1 << 20))
}

/// The other host, with the interfaces `v1` and `w1`.
struct Neighbour {
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

impl Neighbour {
    /// Makes the host, with the other ends of its interfaces in this thread's host.
    fn new() -> Self {
        let (jobs, todo) = channel::<Job>();
        let (say_who, who) = channel();
        let thread = thread::spawn(move || {
            assert!(own_network());
            without_ipv6();
            // SAFETY: a system call without arguments.
            say_who.send(unsafe { libc::gettid() }).unwrap();
            todo.iter().for_each(|job| job());
        });
        let tid = who.recv().unwrap();
        without_ipv6();
        ip(&format!(
            "link set lo up\n\
             link add v0 type veth peer name v1\nlink set v1 netns {tid}\n\
             link add w0 type veth peer name w1\nlink set w1 netns {tid}\n\
             addr add 192.0.2.1/24 dev v0\nlink set v0 up\n\
             addr add 198.51.100.1/24 dev w0\nlink set w0 up\n"
        ));
        let neighbour = Self {
            jobs: Some(jobs),
            thread: Some(thread),
        };
        neighbour.run(|| {
            ip("link set lo up\n\
                addr add 192.0.2.2/24 dev v1\nlink set v1 up\n\
                addr add 198.51.100.2/24 dev w1\nlink set w1 up\n");
        });
        neighbour
    }

    /// Runs a job there, and waits for it.
    fn run<R: Send + 'static>(&self, job: impl FnOnce() -> R + Send + 'static) -> R {
        let (say, done) = channel();
        let job: Job = Box::new(move || say.send(job()).unwrap());
        self.jobs.as_ref().unwrap().send(job).unwrap();
        done.recv().expect("the other host is well")
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(ended.is_ok() || thread::panicking());
        }
    }
}

fn arm(there: &Neighbour, (a, b): (&Arc<Side>, &Arc<Side>), port: u8, seed: usize) {
    rearm(a, b, port, TIMEOUT);
    let (own, peer) = (Arc::clone(b), Arc::clone(a));
    there.run(move || rearm(&own, &peer, port, TIMEOUT));
    assert_eq!((migration_of(a), migration_of(b)), (REARM, REARM));
    talk(a, b, seed);
    assert_eq!((migration_of(a), migration_of(b)), (ARMED, ARMED));
}

fn connect(side: &Side, peer: &Side) {
    let connection = Connection {
        timeout: TIMEOUT,
        retry_cnt: 3,
        ..side.connection(peer.qp.qp_num().get(), peer.gid())
    };
    side.qp.connect(ALL_ACCESS, &connection).unwrap();
}

/// Checks that the side is on the path over this port. It has reported that once, besides events of
/// the port that it has left.
fn assert_moved(side: &Side, port: u8) {
    wait_until("migrated", || migration_of(side) == MIGRATED);
    assert_eq!(side.qp.query().0.port_num, port);
    let mut moves = 0;
    wait_until("told", || {
        while let Some(event) = side.context.take_async_event().unwrap() {
            side.context.ack_async_event(&event);
            match event.kind {
                AsyncEventKind::PathMig => moves += 1,
                AsyncEventKind::PortErr | AsyncEventKind::PortActive => {}
                other => panic!("{other:?}"),
            }
        }
        moves > 0
    });
    assert_eq!(moves, 1);
}

//= RC-APM-05 RC-APM-06 RC-APM-10 type=test
//= AEV-08 type=test
#[test]
fn a_path_whose_interface_goes_down_is_replaced() {
    if !own_network() {
        rocade_skip::skip!("cannot make a network namespace");
    }
    let there = Neighbour::new();
    let a = device("v0", "w0");
    let b = there.run(|| device("v1", "w1"));
    connect(&a, &b);
    let (own, peer) = (Arc::clone(&b), Arc::clone(&a));
    there.run(move || connect(&own, &peer));
    let both = (&a, &b);
    arm(&there, both, 2, 1);
    ip("link set v0 down\n");
    for seed in 2..8 {
        let (from, to) = if seed % 2 == 0 { (&a, &b) } else { (&b, &a) };
        talk(from, to, seed);
    }
    assert_moved(&a, 2);
    assert_moved(&b, 2);
    // The interface comes back, and is now the alternate path.
    ip("link set v0 up\n");
    wait_for("v0");
    there.run(|| wait_for("v1"));
    arm(&there, both, 1, 8);
    let attr = QpAttr {
        path_mig_state: MIGRATED,
        ..QpAttr::default()
    };
    b.qp.modify(&attr, QpAttrMask::PATH_MIG_STATE).unwrap();
    assert_moved(&b, 1);
    talk(&b, &a, 9);
    assert_moved(&a, 1);
}
