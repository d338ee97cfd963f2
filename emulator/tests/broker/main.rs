//! The broker and its clients as separate processes. This test program starts itself again in the
//! role given by `ROCADE_TEST_ROLE`.

#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "in helpers of tests a panic is the report, and sizes are small"
)]

use std::env;
use std::fs;
use std::net::IpAddr;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Child;
use std::time::Duration;

use rocade_emulator::broker::{
    self, BrokerClient, BrokerConfig, BrokerError, RefusalCode, ServiceOutcome,
};
use rocade_emulator::faults::FaultRule;
use rocade_emulator::link::{Arrival, RxBuffer, UdpLink};
use rocade_emulator::steering::ProcessSlot;
use socket2::{Domain, SockAddr, Socket, Type};

mod availability;
#[path = "../common/mod.rs"]
mod common;
mod inherited;
mod isolation;
#[path = "../common/processes.rs"]
mod processes;
#[path = "../common/sandbox.rs"]
mod sandbox;
mod site;
mod versions;

use processes::{PATIENCE, ROLE, wait_until};
use site::*;

/// The entry point of the processes that the tests start. It is no test itself.
#[test]
fn child_process() {
    if env::var_os(ROLE).is_some() {
        processes::limit_life();
    }
    match env::var(ROLE).as_deref() {
        Ok("broker") => run_broker(),
        Ok("client") => run_client(),
        Ok("foreign-user") => run_foreign_user(),
        Ok("opener") => inherited::run_opener(),
        Ok("deadline") => inherited::run_deadline(),
        Ok("squatter") => isolation::run_squatter(),
        Ok("squatted-tmp") => isolation::run_in_squatted_tmp(),
        _ => {}
    }
}

#[test]
fn each_process_gets_a_slot_and_its_packets() {
    let site = Site::new();
    let (a, b) = (own_address(), own_address());
    let mut clients: Vec<_> = (0..3).map(|_| ClientProcess::start(&site)).collect();
    assert_eq!(
        clients.iter().map(|client| client.slot).collect::<Vec<_>>(),
        [1, 2, 3]
    );
    // In an order in which sockets are made before their clients exist.
    for client in clients.iter_mut().rev() {
        client.open(a);
    }
    clients[1].open(b);
    for (client, tag) in clients.iter_mut().zip(10..) {
        client.check(a, tag);
    }
    clients[1].check(b, 99);

    let status = site.status();
    assert_eq!(leased(&status), [(1, true), (2, true), (3, true)]);
    assert_eq!(status.slots[2].pid, clients[2].child.id());
    assert!(!status.slots[0].name.is_empty());
    let mut addresses: Vec<_> = status
        .addresses
        .iter()
        .map(|x| (x.local.ip(), x.sockets, x.users))
        .collect();
    addresses.sort();
    assert_eq!(addresses, [(a, 4, 3), (b, 3, 1)]);
    assert!(status.to_string().contains("slot   3 pid"), "{status}");
}

#[test]
fn clients_that_start_at_once_start_one_broker() {
    let site = Site::new();
    let clients: Vec<_> = (0..6).map(|_| ClientProcess::spawn(&site)).collect();
    let clients: Vec<_> = clients.into_iter().map(ClientProcess::ready).collect();
    let mut slots: Vec<_> = clients.iter().map(|client| client.slot).collect();
    slots.sort_unstable();
    assert_eq!(slots, [1, 2, 3, 4, 5, 6]);
    assert_eq!(site.status().slots.len(), 6);
    assert_eq!(
        site.log().matches("broker begins").count(),
        1,
        "{}",
        site.log()
    );
}

#[test]
fn the_slot_of_a_crashed_client_is_leased_again_with_an_empty_socket() {
    let site = Site::new();
    let ip = own_address();
    let mut first = ClientProcess::start(&site);
    let mut second = ClientProcess::start(&site);
    first.open(ip);
    second.open(ip);
    // Packets that the first client never reads, from before and after its end.
    send(ip, 1, 66);
    first.crash();
    site.wait_for(|status| leased(status) == [(2, true)]);
    send(ip, 1, 67);

    let mut third = ClientProcess::start(&site);
    assert_eq!(third.slot, 1);
    third.open(ip);
    third.check(ip, 3);
    second.check(ip, 2);
}

#[test]
fn clients_survive_the_broker_and_the_next_one_takes_over() {
    let site = Site::new();
    let (ip, other) = (own_address(), own_address());
    let mut clients: Vec<_> = (0..3).map(|_| ClientProcess::start(&site)).collect();
    clients.iter_mut().for_each(|client| client.open(ip));
    clients[2].open(other);
    let old_pid = site.kill_broker();

    // The clients do not notice, and everything goes on.
    for (client, tag) in clients.iter_mut().zip(20..) {
        client.check(ip, tag);
    }
    // A new client starts a new broker, and requests an address while the others reconnect.
    let mut fourth = ClientProcess::start(&site);
    assert_eq!(fourth.slot, 4);
    assert_ne!(site.status().pid, old_pid);
    fourth.say(&format!("open {ip}"));
    clients.iter_mut().for_each(|client| client.say("resume"));
    clients
        .iter_mut()
        .for_each(|client| assert_eq!(client.answer(), "resumed"));
    assert_eq!(fourth.answer(), "opened");
    clients.push(fourth);
    assert_eq!(
        leased(&site.status()),
        [(1, true), (2, true), (3, true), (4, true)]
    );
    for (client, tag) in clients.iter_mut().zip(30..) {
        client.check(ip, tag);
    }
    clients[2].check(other, 35);
    // The new broker frees the slots of ended clients like the old one.
    clients.remove(1).crash();
    site.wait_for(|status| leased(status) == [(1, true), (3, true), (4, true)]);
    let mut fifth = ClientProcess::start(&site);
    assert_eq!(fifth.slot, 2);
    fifth.open(ip);
    fifth.check(ip, 40);
    fifth.open(other);
    fifth.check(other, 41);
    clients[1].check(other, 42);
}

#[test]
fn clients_find_a_new_broker_by_themselves() {
    let site = Site::new();
    let ip = own_address();
    let mut clients: Vec<_> = (0..2).map(|_| ClientProcess::start(&site)).collect();
    clients.iter_mut().for_each(|client| client.open(ip));
    let old_pid = site.kill_broker();
    clients.iter_mut().for_each(|client| client.say("resume"));
    clients
        .iter_mut()
        .for_each(|client| assert_eq!(client.answer(), "resumed"));
    let status = site.wait_for(|status| leased(status) == [(1, true), (2, true)]);
    assert_ne!(status.pid, old_pid);
    assert_eq!(status.addresses.len(), 1);
    assert_eq!(
        (status.addresses[0].sockets, status.addresses[0].users),
        (3, 2)
    );
    assert_eq!(
        site.log().matches("broker begins").count(),
        2,
        "{}",
        site.log()
    );

    // A request for an address is enough to find it, too.
    site.kill_broker();
    let other = own_address();
    clients[1].say("resume");
    clients[0].open(other);
    clients[0].check(other, 5);
    clients[0].check(ip, 6);
    assert_eq!(clients[1].answer(), "resumed");
    clients[1].check(ip, 7);
}

#[test]
fn the_highest_client_dies_with_the_broker() {
    let site = Site::new();
    let ip = own_address();
    let mut clients: Vec<_> = (0..3).map(|_| ClientProcess::start(&site)).collect();
    clients.iter_mut().for_each(|client| client.open(ip));
    let last = clients.pop().unwrap();
    site.kill_broker();
    last.crash();
    let mut clients: Vec<_> = clients
        .into_iter()
        .map(|mut client| {
            assert_eq!(client.ask("resume"), "resumed");
            client
        })
        .collect();
    let mut new = ClientProcess::start(&site);
    assert_eq!(new.slot, 3);
    new.open(ip);
    clients.push(new);
    for (client, tag) in clients.iter_mut().zip(50..) {
        client.check(ip, tag);
    }
}

#[test]
fn a_group_is_left_alone_while_a_client_that_does_not_answer_may_have_sockets_of_it() {
    let site = Site::new();
    let ip = own_address();
    let mut stopped = ClientProcess::start(&site);
    stopped.open(ip);
    stopped.signal(libc::SIGSTOP);
    site.kill_broker();

    let mut command = site.config.command.clone().unwrap();
    command.insert(1, format!("{RECOVERY_MS}=50").into());
    let config = BrokerConfig {
        command: Some(command),
        ..site.config.clone()
    };
    let client = BrokerClient::connect_or_start(&config).unwrap();
    assert_eq!(client.slot(), ProcessSlot::new(2));
    assert_eq!(leased(&site.status()), [(1, false), (2, true)]);
    assert_eq!(site.status().slots[0].pid, stopped.child.id());
    let error = client.socket_for(ip).unwrap_err();
    let BrokerError::Refused {
        code: RefusalCode::AddressInUse,
        text,
    } = &error
    else {
        panic!("{error:?}");
    };
    assert!(
        text.contains(&format!("process {}", stopped.child.id())),
        "{text}"
    );
    // Other addresses are free. This one is free as soon as the client continues.
    client.socket_for(own_address()).unwrap();
    stopped.signal(libc::SIGCONT);
    assert_eq!(stopped.ask("resume"), "resumed");
    let link = UdpLink::from_broker(ip, client.slot(), client.socket_for(ip).unwrap()).unwrap();
    send(ip, 2, 77);
    assert_eq!(receive_tag(&link), 77);
    stopped.check(ip, 78);
}

#[test]
fn a_broker_without_clients_ends() {
    let site = Site::new();
    let config = BrokerConfig {
        idle_timeout: Duration::from_millis(50),
        ..site.config.clone()
    };
    let client = BrokerClient::connect_or_start(&config).unwrap();
    let pid = site.status().pid;
    drop(client);
    wait_until(|| !alive(pid));
    assert!(matches!(
        broker::status(&config),
        Err(BrokerError::NotRunning)
    ));
    assert!(matches!(
        broker::stop(&config),
        Err(BrokerError::NotRunning)
    ));
    assert_eq!(site.log().matches("broker ends").count(), 1);
    let client = BrokerClient::connect_or_start(&config).unwrap();
    assert_ne!(site.status().pid, pid);
    drop(client);
}

#[test]
fn stop_says_how_many_clients_there_are_and_they_go_on() {
    let site = Site::new();
    let client = BrokerClient::connect_or_start(&site.config).unwrap();
    assert_eq!(client.service(), ServiceOutcome::Connected);
    let ip = own_address();
    let link = UdpLink::from_broker(ip, client.slot(), client.socket_for(ip).unwrap()).unwrap();
    let pid = site.status().pid;
    let outcome = broker::stop(&site.config).unwrap();
    assert_eq!((outcome.pid, outcome.clients), (pid, 1));
    resume(&client);
    let status = site.status();
    assert_ne!(status.pid, pid);
    assert_eq!(leased(&status), [(1, true)]);
    send(ip, 1, 4);
    assert_eq!(receive_tag(&link), 4);
    assert_eq!(client.service(), ServiceOutcome::Connected);
}

#[test]
fn a_second_broker_does_not_start() {
    let site = Site::new();
    let _client = BrokerClient::connect_or_start(&site.config).unwrap();
    assert!(matches!(
        broker::serve(&site.config),
        Err(BrokerError::AlreadyRunning)
    ));
    assert_eq!(leased(&site.status()), [(1, true)]);
}

/// Notifications that arrive together with an answer are delivered to the reader of the control fd.
#[test]
fn notifications_beside_an_answer_are_handled() {
    let site = Site::new();
    let client = BrokerClient::connect_or_start(&site.config).unwrap();
    let rule = FaultRule::parse("drop opcode=CNP").unwrap();
    for _ in 0..3 {
        broker::add_fault(&site.config, &rule).unwrap();
        client.socket_for(own_address()).unwrap();
        wait_readable(client.control_fd());
        assert_eq!(client.service(), ServiceOutcome::Connected);
    }
}

/// All 255 slots of an address are used by one process each. Another process gets an error that
/// says why, and a slot after one of them has ended.
#[test]
fn three_hundred_processes_on_one_address() {
    const SLOTS: usize = 255;
    let site = Site::new();
    let ip = own_address();
    // The first client starts the broker.
    let mut clients = vec![ClientProcess::start(&site)];
    let all = (1..300).map(|_| ClientProcess::spawn(&site));
    let (mut in_time, mut late) = (Vec::new(), Vec::new());
    for mut client in all.collect::<Vec<_>>() {
        match client.answer().split_once(' ').unwrap() {
            ("slot", slot) => {
                client.slot = slot.parse().unwrap();
                in_time.push(client);
            }
            (_, error) => {
                assert!(error.contains("all 255 slots are in use"), "{error}");
                late.push(client);
            }
        }
    }
    clients.append(&mut in_time);
    assert_eq!((clients.len(), late.len()), (SLOTS, 300 - SLOTS));
    clients.sort_by_key(|client| client.slot);
    assert!(clients.iter().map(|client| client.slot).eq(1..=255));
    for client in &mut clients {
        client.open(ip);
    }
    for client in &mut clients {
        client.check(ip, client.slot ^ 0x55);
    }
    clients.swap_remove(100).crash();
    site.wait_for(|status| leased(status).len() == SLOTS - 1);
    let mut next = ClientProcess::start(&site);
    assert_eq!(next.slot, 101);
    next.open(ip);
    next.check(ip, 7);
}

/// The kernel cuts a message with more descriptors than the receiver may have.
#[test]
fn a_client_that_may_open_no_further_file_is_told_the_limit() {
    let site = Site::new();
    let mut client = ClientProcess::start(&site);
    for free in [0, 1, 2] {
        assert_eq!(client.ask(&format!("descriptors {free}")), "limited");
        let refusal = client.ask(&format!("open {}", own_address()));
        for part in ["Too many open files", "raise its limit (ulimit -n 1024)"] {
            assert!(refusal.contains(part), "{free}: {refusal}");
        }
    }
    // With a higher limit, the same process gets what it wants.
    assert_eq!(client.ask("descriptors 100"), "limited");
    client.open(own_address());
}

#[test]
fn a_client_whose_descriptors_were_closed_or_written_to_is_told_so() {
    let site = Site::new();
    for (accident, cause) in [
        ("close", "Bad file descriptor"),
        ("disturb", "the connection to the broker was disturbed"),
    ] {
        let mut client = ClientProcess::start(&site);
        client.ask(accident);
        // Its answer is there when the broker has closed the connection.
        site.wait_for(|status| !status.slots.iter().any(|slot| slot.connected));
        let refusal = client.ask(&format!("open {}", own_address()));
        for part in [cause, "has closed descriptors that it did not open"] {
            assert!(refusal.contains(part), "{accident}: {refusal}");
        }
    }
}

#[test]
fn addresses_that_cannot_be_had_are_refused_with_a_reason() {
    let site = Site::new();
    let client = BrokerClient::connect_or_start(&site.config).unwrap();
    let ip = own_address();
    let _alone = UdpLink::bind(ip).unwrap();
    let cases = [
        (ip, RefusalCode::AddressInUse, "is taken"),
        (
            IpAddr::from([203, 0, 113, 77]),
            RefusalCode::AddressUnusable,
            "not an address of",
        ),
        (
            IpAddr::from([239, 1, 1, 1]),
            RefusalCode::AddressUnusable,
            "cannot be",
        ),
    ];
    for (ip, expected, reason) in cases {
        let error = client.socket_for(ip).unwrap_err();
        let BrokerError::Refused { code, text } = &error else {
            panic!("{error:?}")
        };
        assert_eq!(*code, expected);
        assert!(text.contains(reason), "{text}");
    }
    // Without the broker, its address cannot be bound.
    let ip = own_address();
    client.socket_for(ip).unwrap();
    let error = UdpLink::bind(ip).unwrap_err();
    assert!(error.to_string().contains("use the broker"), "{error}");
    assert!(
        site.status()
            .addresses
            .iter()
            .map(|x| x.local.ip())
            .eq([ip])
    );
}

#[test]
fn packets_for_another_process_can_be_forwarded() {
    let site = Site::new();
    let ip = own_address();
    let clients = [(); 2].map(|()| BrokerClient::connect_or_start(&site.config).unwrap());
    let links = clients.each_ref().map(|client| {
        UdpLink::from_broker(ip, client.slot(), client.socket_for(ip).unwrap()).unwrap()
    });
    let mut packet = [9; 64];
    packet[5] = 2;
    let source = "192.0.2.1:55555".parse().unwrap();
    links[0]
        .forward(ProcessSlot::new(2), source, &packet)
        .unwrap();
    let mut buf = RxBuffer::new();
    wait_readable(links[1].rx_fd().as_raw_fd());
    let batch = links[1].recv(&mut buf).unwrap().unwrap();
    let forwarded = Arrival::Forwarded(source, &packet[..], 0);
    assert_eq!(links[1].arrival(batch.data), forwarded);
}

#[test]
fn garbage_does_not_harm_the_broker() {
    let site = Site::new();
    let client = BrokerClient::connect_or_start(&site.config).unwrap();
    let ip = own_address();
    let link = UdpLink::from_broker(ip, client.slot(), client.socket_for(ip).unwrap()).unwrap();
    let path = socket_path(&site);
    let connect = || {
        let socket = Socket::new(Domain::UNIX, Type::SEQPACKET, None).unwrap();
        socket.connect(&SockAddr::unix(&path).unwrap()).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket
    };
    let header = |kind: u8, len: u8| vec![b'R', b'C', b'D', b'B', 3, 0, kind, 0, len, 0, 0, 0];
    let mut messages = vec![
        b"GET / HTTP/1.0\r\n\r\n".to_vec(),
        vec![0; 100_000],
        header(77, 12),
        header(4, 13),
        // Open and Restore before Hello.
        [header(2, 33), vec![0; 21]].concat(),
        [header(3, 49), vec![0; 37]].concat(),
        // A resume without a proof.
        [header(1, 15), vec![1, 0, 0]].concat(),
        [header(1, 15), vec![0, 200, 0]].concat(),
    ];
    let mut other_version = header(4, 12);
    other_version[4] = 1;
    messages.push(other_version);
    let mut seed = 1u32;
    messages.extend((0..100).map(|len| {
        let mut next = || {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            seed.to_be_bytes()[0]
        };
        let body: Vec<u8> = (0..len).map(|_| next()).collect();
        if len % 2 == 0 {
            body
        } else {
            [header(next() % 9, 12 + len), body].concat()
        }
    }));
    for message in messages {
        let mut socket = connect();
        socket.send(&message).unwrap();
        // An answer or none, then the end of the connection, unless it happened to be a valid
        // request.
        let mut buf = [0; 4096];
        let answer = read(&mut socket, &mut buf).unwrap_or(0);
        if answer > 0 && buf[6] == 199 {
            assert_eq!(read(&mut socket, &mut buf).unwrap_or(0), 0, "{message:?}");
        }
    }
    let status = site.wait_for(|status| leased(status) == [(1, true)]);
    assert_eq!(status.addresses.len(), 1);
    send(ip, 1, 11);
    assert_eq!(receive_tag(&link), 11);
}

#[test]
fn other_users_are_refused() {
    // SAFETY: takes no pointers.
    if unsafe { libc::geteuid() } != 0 {
        rocade_skip::skip!("needs root, to become another user");
    }
    let site = Site::new();
    let _client = BrokerClient::connect_or_start(&site.config).unwrap();
    let path = socket_path(&site);
    // Permissions as open as only a careless administrator sets them.
    fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).unwrap();
    fs::set_permissions(site.dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let run = |uid| {
        let mut command = site.command("foreign-user");
        let child = command.env("ROCADE_TEST_SOCKET", &path).uid(uid).spawn();
        let output = match child.and_then(Child::wait_with_output) {
            Ok(output) => output,
            Err(error) => return Err(error),
        };
        Ok(answer(&mut &output.stdout[..]))
    };
    let foreign_socket = match run(65_534) {
        Ok(foreign_socket) => foreign_socket,
        Err(error) => rocade_skip::skip!("cannot become somebody else: {error}"),
    };
    assert_eq!(foreign_socket, "answer 0");
    assert_ne!(run(0).unwrap(), "answer 0");
    fs::set_permissions(site.dir.path(), fs::Permissions::from_mode(0o700)).unwrap();
}
