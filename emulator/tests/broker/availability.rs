//! Trouble of one program or of the broker itself does not affect other programs.

use std::fs;
use std::net::{IpAddr, UdpSocket};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use rocade_emulator::broker::{
    self, BrokerClient, BrokerConfig, BrokerError, PROTOCOL_VERSION, ServiceOutcome,
};
use rocade_emulator::config::{BrokerMode, EngineConfig};
use rocade_emulator::link::{ROCE_PORT, UdpLink};
use socket2::{Domain, SockAddr, Socket, Type};

use crate::processes::{PATIENCE, Stopped, wait_until};
use crate::sandbox::{self, Refused};
use crate::site::*;

fn connect(site: &Site) -> Socket {
    let socket = Socket::new(Domain::UNIX, Type::SEQPACKET, None).unwrap();
    let address = SockAddr::unix(socket_path(site)).unwrap();
    socket.connect(&address).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    let len = u8::try_from(12 + body.len()).unwrap();
    let [low, high] = PROTOCOL_VERSION.to_le_bytes();
    let head = [b'R', b'C', b'D', b'B', low, high, kind, 0, len, 0, 0, 0];
    [&head, body].concat()
}

/// Leases a slot, and keeps the connection open without reading from it.
fn lease(site: &Site) -> Socket {
    let mut socket = connect(site);
    // No previous slot, an empty name, and no rules.
    socket.send(&message(1, &[0; 5])).unwrap();
    assert!(read(&mut socket, &mut [0; 64]).unwrap() > 12);
    socket
}

/// A message that requests the sockets of an address from the first one on.
fn open_message(ip: IpAddr) -> Vec<u8> {
    let IpAddr::V4(ip) = ip else { panic!("{ip}") };
    let body = [&ip.to_ipv6_mapped().octets()[..], &[0; 5]].concat();
    message(2, &body)
}

#[test]
fn silent_connections_do_not_block_others() {
    let site = Site::new();
    let _first = ClientProcess::start(&site);
    let idle: Vec<_> = (0..320).map(|_| connect(&site)).collect();
    let mut second = ClientProcess::start(&site);
    let ip = own_address();
    second.open(ip);
    second.check(ip, 1);
    assert_eq!(leased(&site.status()), [(1, true), (2, true)]);
    // The broker closes idle connections after a while.
    for mut socket in idle {
        assert_eq!(read(&mut socket, &mut [0; 64]).unwrap_or(0), 0);
    }
}

#[test]
fn a_client_that_does_not_read_is_disconnected() {
    let site = Site::new();
    let mut first = ClientProcess::start(&site);
    let deaf = lease(&site);
    for _ in 0..50 {
        if deaf.send(&message(4, &[])).is_err() {
            break;
        }
    }
    let ip = own_address();
    first.open(ip);
    first.check(ip, 1);
    wait_until(|| {
        deaf.send(&message(4, &[]))
            .is_err_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
    });
}

#[test]
fn unread_descriptors_do_not_block_others() {
    let site = Site::new();
    // Without privileges, the limit on descriptors in flight is that of open files.
    let mut command = site.command("client");
    sandbox::limit(&mut command, &[(libc::RLIMIT_NOFILE, 1100)]);
    sandbox::without_privilege_over_limits(&mut command);
    let mut first = ClientProcess::spawn_as(command).ready();
    // Each of the last ones gets some 250 sockets.
    let deaf: Vec<_> = (0..252).map(|_| lease(&site)).collect();
    let ip = own_address();
    let (last, _) = deaf
        .split_last_chunk::<6>()
        .map(|(rest, last)| (last, rest))
        .unwrap();
    for socket in last {
        socket.send(&open_message(ip)).unwrap();
    }
    first.open(ip);
    let mut second = ClientProcess::start(&site);
    assert_eq!(second.slot, 254);
    second.open(ip);
    first.check(ip, 1);
    second.check(ip, 2);
}

#[test]
fn a_broker_that_was_started_under_small_limits_is_replaced() {
    let site = Site::new();
    let mut command = site.command("client");
    let limits = [(libc::RLIMIT_NOFILE, 24), (libc::RLIMIT_FSIZE, 1 << 20)];
    sandbox::limit(&mut command, &limits);
    sandbox::without_privilege_over_limits(&mut command);
    let mut poor = ClientProcess::spawn_as(command).ready();
    let ip = own_address();
    poor.open(ip);
    let before = site.status().pid;

    let mut others: Vec<_> = (0..12).map(|_| ClientProcess::start(&site)).collect();
    let after = site.status().pid;
    assert_ne!(before, after);
    let limits = fs::read_to_string(format!("/proc/{after}/limits")).unwrap();
    let open_files = limits
        .lines()
        .find(|line| line.starts_with("Max open files"));
    assert!(!open_files.unwrap().contains(" 24 "), "{limits}");
    assert_eq!(poor.ask("resume"), "resumed");
    others.iter_mut().for_each(|client| client.open(ip));
    others.push(poor);
    for (client, tag) in others.iter_mut().zip(1..) {
        client.check(ip, tag);
    }
}

#[test]
fn a_broker_without_descriptors_reports_it() {
    let site = Site::new();
    // All of them have the same small limit, so that a new broker has no more descriptors.
    let poor = || {
        let mut command = site.command("client");
        sandbox::limit(&mut command, &[(libc::RLIMIT_NOFILE, 24)]);
        sandbox::without_privilege_over_limits(&mut command);
        ClientProcess::spawn_as(command)
    };
    let mut clients = Vec::new();
    let refusal = loop {
        let mut client = poor();
        let said = client.answer();
        if said.starts_with("error") {
            break said;
        }
        clients.push(client);
        assert!(clients.len() < 24, "no limit in sight");
    };
    assert!(refusal.contains("ulimit -n"), "{refusal}");
    assert!(clients.len() > 2, "{}", clients.len());
    // One client has ended, so that there is room for exactly one.
    clients.pop().unwrap().crash();
    let last = loop {
        let mut client = poor();
        let said = client.answer();
        if !said.starts_with("error") {
            break client;
        }
    };
    // A program with a higher limit replaces the broker.
    clients.push(last);
    let before = broker::status(&site.config).map_or(0, |status| status.pid);
    let mut rich = ClientProcess::start(&site);
    for client in &mut clients {
        assert_eq!(client.ask("resume"), "resumed");
    }
    assert_ne!(site.status().pid, before);
    let ip = own_address();
    rich.open(ip);
    rich.check(ip, 1);
}

#[test]
fn an_unused_address_is_free_at_once() {
    let site = Site::new();
    let ip = own_address();
    let mut one = ClientProcess::start(&site);
    let mut other = ClientProcess::start(&site);
    one.open(ip);
    other.open(ip);
    one.crash();
    site.wait_for(|status| leased(status) == [(2, true)]);
    assert_eq!(site.status().addresses.len(), 1);
    other.crash();
    // The broker itself stays for a minute.
    site.wait_for(|status| status.addresses.is_empty());
    wait_until(|| UdpLink::bind(ip).is_ok());
}

#[test]
fn a_broker_that_dies_again_and_again_does_not_keep_an_address_from_us() {
    let site = Site::new();
    let client = BrokerClient::connect_or_start(&site.config).unwrap();
    client.socket_for(own_address()).unwrap();
    for _ in 0..5 {
        let pid = site.kill_broker();
        let killer = {
            let config = site.config.clone();
            thread::spawn(move || kill_the_next(&config, pid))
        };
        let ip = own_address();
        let link = UdpLink::from_broker(ip, client.slot(), client.socket_for(ip).unwrap()).unwrap();
        killer.join().unwrap();
        wait_until(|| {
            client.service();
            broker::status(&site.config).is_ok()
        });
        send(ip, client.slot().get(), 9);
        assert_eq!(receive_tag(&link), 9);
    }
}

/// Kills the successor of this broker as soon as it runs.
fn kill_the_next(config: &BrokerConfig, before: u32) {
    let begin = Instant::now();
    while begin.elapsed() < PATIENCE {
        if let Ok(status) = broker::status(config)
            && status.pid != before
        {
            // The process may have ended already.
            let pid = libc::pid_t::try_from(status.pid).unwrap();
            // SAFETY: takes no pointers.
            unsafe { libc::kill(pid, libc::SIGKILL) };
            return;
        }
    }
    panic!("no new broker");
}

#[test]
fn a_stopped_broker_is_not_waited_for() {
    let site = Site::new();
    // The calls before and after that meet this timeout on a busy machine too.
    let config = BrokerConfig {
        start_timeout: Duration::from_secs(3),
        ..site.config.clone()
    };
    let _starter = BrokerClient::connect_or_start(&site.config).unwrap();
    let client = BrokerClient::connect_or_start(&config).unwrap();
    let ip = own_address();
    let link = UdpLink::from_broker(ip, client.slot(), client.socket_for(ip).unwrap()).unwrap();
    let pid = site.status().pid;
    let stopped = Stopped::new(pid);
    let error = client.socket_for(own_address()).unwrap_err();
    assert!(matches!(error, BrokerError::Silent { .. }), "{error}");
    for part in [format!("process {pid}"), "SIGSTOP".to_owned()] {
        assert!(error.to_string().contains(&part), "{error}");
    }
    // The background thread calls this. Most calls take less time than an answer may take. On a
    // busy machine one call may take longer.
    let mut quick = 0;
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(5) {
        let before = Instant::now();
        let outcome = client.service();
        quick += u32::from(before.elapsed() < Duration::from_millis(1500));
        let ServiceOutcome::Retry(time) = outcome else {
            panic!("{outcome:?}")
        };
        thread::sleep(time.min(Duration::from_millis(50)));
    }
    assert!(quick > 3, "{quick}");
    send(ip, client.slot().get(), 3);
    assert_eq!(receive_tag(&link), 3);
    // A new program has a deadline.
    let error = BrokerClient::connect_or_start(&config).unwrap_err();
    assert!(matches!(error, BrokerError::Silent { .. }), "{error}");

    drop(stopped);
    resume(&client);
    client.socket_for(own_address()).unwrap();
    send(ip, client.slot().get(), 4);
    assert_eq!(receive_tag(&link), 4);
}

fn sandboxed(site: &Site, refused: Refused) -> ClientProcess {
    let mut command: Command = site.command("client");
    sandbox::sandbox(&mut command, refused);
    ClientProcess::spawn_as(command).ready()
}

fn share_an_address_in_a_sandbox(refused: Refused) {
    let site = Site::new();
    let (ip, other) = (own_address(), own_address());
    let mut clients: Vec<_> = (0..3).map(|_| sandboxed(&site, refused)).collect();
    for client in clients.iter_mut().rev() {
        client.open(ip);
    }
    clients[2].open(other);
    for (client, tag) in clients.iter_mut().zip(1..) {
        client.check(ip, tag);
    }
    clients[2].check(other, 9);
    // The next broker takes over the state of this one.
    site.kill_broker();
    send(ip, clients[0].slot, 20);
    clients.iter_mut().for_each(|client| client.say("resume"));
    for client in &mut clients {
        assert_eq!(client.answer(), "resumed");
    }
    assert_eq!(clients[0].ask(&format!("receive {ip}")), "got 20");
    let mut fourth = sandboxed(&site, refused);
    fourth.open(ip);
    clients.push(fourth);
    for (client, tag) in clients.iter_mut().zip(30..) {
        client.check(ip, tag);
    }
    // Packets for no process do no harm.
    let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
    for slot in [0, 200] {
        sender.send_to(&[slot; 64], (ip, ROCE_PORT)).unwrap();
    }
    sender.send_to(&[1, 2, 3], (ip, ROCE_PORT)).unwrap();
    clients[1].check(ip, 40);
}

#[test]
fn processes_share_an_address_where_the_kernel_refuses_to_steer() {
    share_an_address_in_a_sandbox(sandbox::STRICT);
    share_an_address_in_a_sandbox(sandbox::UNKNOWN);
}

#[test]
fn processes_share_an_address_where_ports_cannot_be_shared() {
    share_an_address_in_a_sandbox(sandbox::NO_GROUPS);
}

#[test]
fn an_address_of_an_interface_that_is_not_up_is_that_interfaces() {
    let test = || {
        // SAFETY: takes no pointers, and changes this thread only.
        if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
            return Err("no network namespace".to_owned());
        }
        for command in [
            "link set lo up",
            "link add v0 mtu 1500 type veth peer name v1",
            "addr add 10.78.0.1/24 dev v0",
        ] {
            // A child has the namespace of the thread that starts it.
            let status = Command::new("ip").args(command.split(' ')).status();
            if !status.is_ok_and(|status| status.success()) {
                return Err(format!("`ip {command}` failed"));
            }
        }
        let config = EngineConfig::from_specs(&["dev=10.78.0.1"], BrokerMode::Embedded).unwrap();
        let device = &config.devices[0];
        assert_eq!(device.port.ifname.as_deref(), Some("v0"));
        assert_eq!(device.port.netdev_mtu, 1500);
        Ok(())
    };
    let tested = thread::scope(|scope| scope.spawn(test).join().unwrap());
    if let Err(reason) = tested {
        rocade_skip::skip!("no such interface: {reason}");
    }
}
