//! Tests that descriptors are closed. A program of its own, because other tests open some.
#![expect(clippy::unwrap_used, reason = "in a test")]

use std::thread;
use std::time::{Duration, Instant};

use rocade_verbs::{Config, ConnectOptions, DeviceList, SendRequest};

const ROUNDS: usize = 20;

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Connects two queue pairs, whose receiver gets an event that no one takes, and drops all.
fn round(list: &DeviceList) {
    let [a, b] = ["a", "b"].map(|name| {
        let pd = list.open(name).unwrap().protection_domain().unwrap();
        let cq = pd.context().completion_queue(16).unwrap();
        let qp = pd.queue_pair(&cq).build().unwrap();
        (cq, qp)
    });
    let ends = [a.1.endpoint(), b.1.endpoint()];
    let options = ConnectOptions::default();
    let sender = a.1.connect(ends[1], &options).unwrap();
    let receiver = b.1.connect(ends[0], &options).unwrap();
    receiver.post_recv(1, &[]).unwrap();
    b.0.arm().unwrap();
    sender.post_send(&SendRequest::send(&[])).unwrap();
    a.0.wait(Duration::from_secs(20)).unwrap();
}

#[test]
fn an_event_that_no_one_takes_keeps_no_descriptor_open() {
    let specs = ["a=127.0.11.61".to_owned(), "b=127.0.11.62".to_owned()];
    let list = DeviceList::new(Config::from_specs(&specs).unwrap()).unwrap();
    round(&list);
    let before = descriptors();
    for _ in 0..ROUNDS {
        round(&list);
    }
    // A few are opened when they are needed, and a background thread may still have some.
    let begin = Instant::now();
    while descriptors() >= before + ROUNDS && begin.elapsed() < Duration::from_secs(30) {
        thread::sleep(Duration::from_millis(10));
    }
    let after = descriptors();
    assert!(
        after < before + ROUNDS,
        "{before} descriptors, then {after}"
    );
}
