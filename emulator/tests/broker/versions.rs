//! Brokers and programs of different versions.

use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::{fs, thread};

use rocade_emulator::broker::{self, BrokerClient};
use socket2::{Domain, SockAddr, Socket, Type};

use crate::processes::{PATIENCE, wait_until};
use crate::site::*;

fn message(version: u16, kind: u16, body: &[u8]) -> Vec<u8> {
    let len = u32::try_from(12 + body.len()).unwrap();
    let mut message = b"RCDB".to_vec();
    message.extend(version.to_le_bytes());
    message.extend(kind.to_le_bytes());
    message.extend(len.to_le_bytes());
    message.extend(body);
    message
}

fn text(text: &str) -> Vec<u8> {
    let len = u16::try_from(text.len()).unwrap();
    [&len.to_le_bytes(), text.as_bytes()].concat()
}

/// An older broker of version 2, which rejects other versions in its own version.
fn old_broker(site: &Site) -> thread::JoinHandle<()> {
    let netns = fs::metadata("/proc/thread-self/ns/net").unwrap().ino();
    let path = site.dir.path().join(format!("net-{netns}.broker.sock"));
    let listener = Socket::new(Domain::UNIX, Type::SEQPACKET, None).unwrap();
    listener.bind(&SockAddr::unix(&path).unwrap()).unwrap();
    listener.listen(8).unwrap();
    thread::spawn(move || {
        loop {
            let (mut client, _) = listener.accept().unwrap();
            let mut buf = [0; 512];
            let Ok(len @ 12..) = client.read(&mut buf) else {
                continue;
            };
            let (version, kind) = (buf[4], buf[6]);
            let (answer, stop) = match (version, kind) {
                (2, 5) => (message(2, 105, &[9, 0, 0, 0, 4, 0]), true),
                (2, _) => panic!("{:?}", &buf[..len]),
                _ => {
                    let body = [&[1, 0], &text("this broker is version 0.0.9")[..]].concat();
                    (message(2, 199, &body), false)
                }
            };
            client.send(&answer).unwrap();
            if stop {
                fs::remove_file(&path).unwrap();
                return;
            }
        }
    })
}

#[test]
fn an_older_broker_is_named_and_can_be_stopped() {
    let site = Site::new();
    let broker = old_broker(&site);
    let error = BrokerClient::connect_or_start(&site.config).unwrap_err();
    let error = error.to_string();
    assert!(
        error.contains("version") && error.contains("0.0.9"),
        "{error}"
    );
    let error = broker::status(&site.config).unwrap_err().to_string();
    assert!(error.contains("version"), "{error}");

    let stopped = broker::stop(&site.config).unwrap();
    assert_eq!((stopped.pid, stopped.clients), (9, 4));
    broker.join().unwrap();
    assert_eq!(ClientProcess::start(&site).slot, 1);
}

#[test]
fn programs_of_other_versions_are_told_and_can_stop_the_broker() {
    for version in [1, 2, 99] {
        let site = Site::new();
        let mut client = ClientProcess::start(&site);
        let pid = site.status().pid;
        let path = socket_path(&site);
        let ask = |kind, body: &[u8]| {
            let mut socket = Socket::new(Domain::UNIX, Type::SEQPACKET, None).unwrap();
            socket.connect(&SockAddr::unix(&path).unwrap()).unwrap();
            socket.set_read_timeout(Some(PATIENCE)).unwrap();
            socket.send(&message(version, kind, body)).unwrap();
            let mut buf = vec![0; 2048];
            let len = read(&mut socket, &mut buf).unwrap();
            buf.truncate(len);
            buf
        };
        // Hello, whose format may change between versions.
        let answer = ask(1, &[0, 1, 0, b'x', 0]);
        assert_eq!(answer[..8], message(version, 199, &[])[..8]);
        let reason = String::from_utf8_lossy(&answer[16..]);
        assert!(reason.contains("`rocade broker stop`"), "{reason}");
        // The format of these messages never changes.
        let pid_and_clients = [&pid.to_le_bytes()[..], &[1, 0]].concat();
        assert_eq!(ask(5, &[]), message(version, 105, &pid_and_clients));
        wait_until(|| !alive(pid));
        assert_eq!(client.ask("resume"), "resumed");
    }
}
