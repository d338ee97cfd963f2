//! Tests against other users, other brokers, and senders of forged datagrams.

use std::ffi::{CStr, CString, OsStr};
use std::fs::{self, Permissions};
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rocade_emulator::broker::{self, BrokerClient, BrokerConfig, BrokerError};
use rocade_emulator::link::{ROCE_PORT, UdpLink};
use rocade_emulator::{BrokerMode, Engine, EngineConfig, LinkMode, SendOp, WcStatus};
use rocade_wire::icrc::IcrcFlow;
use socket2::{Domain, SockAddr, Socket, Type};

use crate::common::{Side, connect};
use crate::processes::{EXE, kill, wait_until};
use crate::site::*;

fn engine(site: &Site, ip: IpAddr) -> Engine {
    let broker = BrokerMode::Auto(site.config.clone());
    let config = EngineConfig::from_specs(&[format!("dev={ip}")], broker).unwrap();
    let link = LinkMode::Udp;
    Engine::new(EngineConfig { link, ..config }).unwrap()
}

/// The next packet of `victim`'s peer, as an attacker can forge it that has seen the queue pair
/// numbers: a message of eight bytes.
fn forged_packet(victim: &Side, peer: &Side, source: SocketAddr) -> Vec<u8> {
    let dest = victim.qp.qp_num().get().to_be_bytes();
    let psn = peer.qp.qp_num().get().to_be_bytes();
    let mut packet = vec![0x04, 0x40, 0xFF, 0xFF, 0];
    packet.extend(&dest[1..]);
    packet.push(0x80);
    packet.extend(&psn[1..]);
    packet.extend(b"forged!!");
    let to = victim.gid().to_ip();
    let flow = IcrcFlow::new(source.ip(), to, source.port()).unwrap();
    let icrc = flow.compute(0, &packet);
    packet.extend(icrc.to_le_bytes());
    packet
}

/// The wrapper of packets that a process forwards to another, with zeros instead of the secret.
fn wrap(version: u8, packet: &[u8], source: SocketAddr) -> Vec<u8> {
    let IpAddr::V4(ip) = source.ip() else {
        panic!("{source}")
    };
    let mut datagram = vec![0xFF, 0x52, 0xF0, version, 4, packet[5]];
    datagram.extend(source.port().to_be_bytes());
    datagram.extend(ip.to_ipv6_mapped().octets());
    datagram.extend([0; 4]);
    if version >= 2 {
        datagram.extend([0; 16]);
    }
    datagram.extend(packet);
    datagram
}

#[test]
fn a_forwarded_packet_cannot_be_forged() {
    let site = Site::new();
    let victim = Side::on(engine(&site, own_address()), 4096);
    let peer = Side::on(engine(&site, own_address()), 4096);
    connect(&victim, &peer);
    let (to, source) = (victim.gid().to_ip(), peer.gid().to_ip());
    victim.qp.recv_queue().push(1, &[victim.sge(0, 8)]).unwrap();

    // Any user may send from the victim's address.
    let attacker = UdpSocket::bind((to, 0)).unwrap();
    let attacker_high = (0xC000..=u16::MAX).find_map(|port| UdpSocket::bind((to, port)).ok());
    let source = SocketAddr::new(source, 50_000);
    let packet = forged_packet(&victim, &peer, source);
    for socket in [&attacker, &attacker_high.unwrap()] {
        for version in 0..4 {
            let datagram = wrap(version, &packet, source);
            socket.send_to(&datagram, (to, ROCE_PORT)).unwrap();
        }
    }
    peer.fill(0, b"genuine!");
    peer.send(2, SendOp::Send { imm: None }, &[peer.sge(0, 8)]);
    let received = victim.completion();
    assert_eq!((received.wr_id, received.status), (1, WcStatus::Success));
    assert_eq!(victim.bytes(0, 8), b"genuine!");
    assert_eq!(peer.completion().status, WcStatus::Success);
    wait_until(|| victim.engine.counters().rx_forged == 8);
}

#[test]
fn a_process_without_broker_takes_nothing_that_was_passed_on() {
    let [a, b] = [(); 2].map(|()| own_address().to_string());
    let (victim, peer) = crate::common::pair(&a, &b, 4096);
    victim.qp.recv_queue().push(1, &[victim.sge(0, 8)]).unwrap();
    let to = victim.gid().to_ip();
    let source = SocketAddr::new(peer.gid().to_ip(), 50_000);
    let packet = forged_packet(&victim, &peer, source);
    let attacker = UdpSocket::bind((to, 0)).unwrap();
    attacker
        .send_to(&wrap(2, &packet, source), (to, ROCE_PORT))
        .unwrap();
    wait_until(|| victim.engine.counters().rx_forged == 1);
    assert!(victim.cq.poll_one().is_none());
}

#[test]
fn two_brokers_of_one_network_namespace_do_not_share_an_address() {
    let (one, other) = (Site::new(), Site::new());
    let ip = own_address();
    let mut first = ClientProcess::start(&one);
    let mut second = ClientProcess::start(&other);
    first.open(ip);
    let refusal = second.ask(&format!("open {ip}"));
    let dir = one.dir.path().display();
    for part in [
        format!("process {}", one.status().pid),
        format!("set ROCADE_RUNTIME_DIR={dir} for all"),
    ] {
        assert!(refusal.contains(&part), "{refusal}");
    }
    first.check(ip, 1);
    // The same holds while the first broker has ended and its client is alive.
    one.kill_broker();
    let refusal = second.ask(&format!("open {ip}"));
    assert!(refusal.contains("is taken"), "{refusal}");
    assert_eq!(first.ask("resume"), "resumed");
    let refusal = second.ask(&format!("open {ip}"));
    assert!(
        refusal.contains(&format!("process {}", one.status().pid)),
        "{refusal}"
    );
    first.check(ip, 2);
    // After the client has ended, the second broker gets the address.
    first.crash();
    one.wait_for(|status| status.addresses.is_empty());
    second.open(ip);
    second.check(ip, 3);
}

/// Mounts an empty directory over this one, in a mount namespace of the calling process.
fn hide(directory: &CStr) -> io::Result<()> {
    let (tmpfs, mode) = (c"tmpfs".as_ptr(), c"mode=1777".as_ptr());
    // SAFETY: a system call with NUL-terminated texts.
    done(unsafe { libc::mount(tmpfs, directory.as_ptr(), tmpfs, 0, mode.cast()) })
}

/// Moves the calling process into new namespaces: one of mounts, and those of `more`.
fn leave(more: i32) -> io::Result<()> {
    let (none, private) = (std::ptr::null(), libc::MS_REC | libc::MS_PRIVATE);
    // SAFETY: system calls with NUL-terminated texts.
    unsafe {
        done(libc::unshare(libc::CLONE_NEWNS | more))?;
        done(libc::mount(none, c"/".as_ptr(), none, private, none.cast()))
    }
}

fn done(result: i32) -> io::Result<()> {
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Starts the program in a mount namespace in which this directory is empty. Only root can.
fn without(command: &mut Command, directory: &'static CStr) {
    // SAFETY: system calls only.
    unsafe {
        command.pre_exec(move || {
            leave(0)?;
            hide(directory)
        });
    }
}

/// The place of this test program in [`alone_in_tmp`].
const PROGRAM: &CStr = c"/tmp/program";

/// Starts this test program as [`PROGRAM`] in a mount namespace with an otherwise empty /tmp, and
/// in its own network namespace. Only root can.
///
/// The program is bound to another place, because the build directory may be below /tmp.
fn alone_in_tmp(command: &mut Command) {
    let program = std::env::current_exe().unwrap().into_os_string();
    let program = CString::new(program.into_vec()).unwrap();
    let slash = program.to_bytes().iter().rposition(|byte| *byte == b'/');
    let (directory, name) = program.to_bytes().split_at(slash.unwrap() + 1);
    let directory = CString::new(directory).unwrap();
    let name = CString::new(name).unwrap();
    // SAFETY: system calls only, on texts that were made before.
    unsafe {
        command.pre_exec(move || {
            // The broker's name contains the network namespace, which parallel tests share.
            leave(libc::CLONE_NEWNET)?;
            done(libc::chdir(directory.as_ptr()))?;
            hide(c"/tmp")?;
            let flags = libc::O_CREAT | libc::O_CLOEXEC;
            done(libc::open(PROGRAM.as_ptr(), flags, 0o700).min(0))?;
            let (none, bind) = (std::ptr::null(), libc::MS_BIND);
            done(libc::mount(
                name.as_ptr(),
                PROGRAM.as_ptr(),
                none,
                bind,
                none.cast(),
            ))?;
            done(libc::chdir(c"/".as_ptr()))
        });
    }
}

/// Returns the started process, or the reason why this machine allows no mount namespace.
///
/// # Panics
/// If it cannot be started for another reason.
fn in_mount_namespace(command: Command) -> Result<ClientProcess, String> {
    ClientProcess::try_spawn(command).map_err(|error| {
        let refusals = [libc::EPERM, libc::EACCES, libc::ENOSYS, libc::ENOSPC];
        let is_refused = error.raw_os_error().is_some_and(|e| refusals.contains(&e));
        assert!(is_refused, "{error}");
        format!("no mount namespace: {error}")
    })
}

#[test]
fn two_brokers_do_not_share_an_address_where_sockets_cannot_be_listed() {
    if !is_root() {
        rocade_skip::skip!("needs root");
    }
    let sites = [(); 2].map(|()| Site::new());
    let clients = sites.each_ref().map(|site| {
        let mut command = site.command("client");
        // A container may restrict /proc further.
        command.env(EXE, std::env::current_exe().unwrap());
        without(&mut command, c"/proc");
        in_mount_namespace(command)
    });
    let (first, second) = match clients {
        [Ok(first), Ok(second)] => (first, second),
        [Err(reason), _] | [_, Err(reason)] => rocade_skip::skip!("{reason}"),
    };
    let (mut first, mut second) = (first.ready(), second.ready());
    let ip = own_address();
    first.open(ip);
    let refusal = second.ask(&format!("open {ip}"));
    let dir = sites[0].dir.path().display();
    let advice = format!("set ROCADE_RUNTIME_DIR={dir} for all");
    assert!(refusal.contains(&advice), "{refusal}");
    first.check(ip, 1);
    // The brokers do not see /proc either, and the test cannot find them by the usual file name.
    for client in [&mut first, &mut second] {
        assert_eq!(client.ask("stop"), "stopped");
    }
}

#[test]
fn of_two_brokers_that_want_an_address_at_once_one_gets_it() {
    let sites = [(); 2].map(|()| Site::new());
    let mut clients = sites.each_ref().map(ClientProcess::start);
    for tag in 0..5 {
        let ip = own_address();
        clients
            .iter_mut()
            .for_each(|client| client.say(&format!("open {ip}")));
        let answers = clients.each_mut().map(|client| client.answer());
        let winners: Vec<_> = (0..2).filter(|at| answers[*at] == "opened").collect();
        let [winner] = winners[..] else {
            panic!("{answers:?}")
        };
        clients[winner].check(ip, tag);
        assert!(answers[1 - winner].contains("is taken"), "{answers:?}");
    }
}

#[test]
fn a_lone_process_blocks_the_broker_and_is_named_in_the_error() {
    let site = Site::new();
    let ip = own_address();
    let alone = UdpLink::bind(ip).unwrap();
    let mut client = ClientProcess::start(&site);
    let refusal = client.ask(&format!("open {ip}"));
    let pid = format!("process {}", std::process::id());
    assert!(refusal.contains(&pid), "{refusal}");
    drop(alone);
    client.open(ip);
    let error = UdpLink::bind(ip).unwrap_err().to_string();
    let broker = format!("process {}", site.status().pid);
    assert!(error.contains(&broker), "{error}");
}

/// Binds names in the abstract namespace, and listens there or not.
pub(crate) fn run_squatter() {
    let names = std::env::var("ROCADE_TEST_NAMES").unwrap();
    let sockets: Vec<_> = (0..)
        .zip(names.split(' '))
        .map(|(number, name)| {
            let socket = Socket::new(Domain::UNIX, Type::SEQPACKET, None).unwrap();
            socket
                .bind(&SockAddr::unix(format!("\0{name}")).unwrap())
                .unwrap();
            if number % 2 == 0 {
                socket.listen(1).unwrap();
            }
            socket
        })
        .collect();
    println!("@squatting");
    let _ = io::stdin().read_line(&mut String::new());
    drop(sockets);
}

/// Starts a process of another user that has bound these names.
fn squatter(site: &Site, names: &[String]) -> ClientProcess {
    let mut command = site.command("squatter");
    command
        .env("ROCADE_TEST_NAMES", names.join(" "))
        .uid(65_534);
    let mut process = ClientProcess::spawn_as(command);
    assert_eq!(process.answer(), "squatting");
    process
}

fn is_root() -> bool {
    // SAFETY: takes no pointers.
    (unsafe { libc::geteuid() }) == 0
}

#[test]
fn other_users_cannot_keep_an_address_or_a_broker_from_us() {
    if !is_root() {
        rocade_skip::skip!("needs root, to become another user");
    }
    let (one, other) = (Site::new(), Site::new());
    let ip = own_address();
    // The squatter listens at the first name, but not at the second one.
    let names = [0, 1].map(|index| format!("rocade/address/{ip}/{index}"));
    let broker = [0, 0].map(|_| format!("rocade/broker/0:{}", one.dir.path().display()));
    let _squatter = squatter(&one, &[&names[..], &broker[..1]].concat());
    let mut first = ClientProcess::start(&one);
    first.open(ip);
    first.check(ip, 1);
    // The first broker has the address all the same.
    let mut second = ClientProcess::start(&other);
    let refusal = second.ask(&format!("open {ip}"));
    let pid = format!("process {}", one.status().pid);
    assert!(refusal.contains(&pid), "{refusal}");
}

/// Runs in a mount namespace whose /tmp contains a directory of another user.
pub(crate) fn run_in_squatted_tmp() {
    let squatted = Path::new("/tmp/rocade-0");
    fs::create_dir(squatted).unwrap();
    fs::set_permissions(squatted, Permissions::from_mode(0o777)).unwrap();
    chown(squatted, Some(65_534), None).unwrap();
    let config = BrokerConfig {
        runtime_dir: None,
        ..crate::processes::broker_config(squatted)
    };
    let clients = [(); 2].map(|()| BrokerClient::connect_or_start(&config).unwrap());
    let slots = clients.each_ref().map(|client| client.slot().get());
    let pid = broker::status(&config).unwrap().pid;
    // A program with another environment finds the same broker.
    fs::create_dir("/tmp/run").unwrap();
    // SAFETY: this test program has one other thread now, which waits for this one.
    unsafe { std::env::set_var("XDG_RUNTIME_DIR", "/tmp/run") };
    let same = broker::status(&config).unwrap().pid == pid;
    let nothing_there = fs::read_dir(squatted).unwrap().next().is_none();
    let modes: Vec<_> = fs::read_dir("/tmp")
        .unwrap()
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().starts_with("rocade-0-"))
        .map(|entry| format!("{:o}", entry.metadata().unwrap().mode() & 0o777))
        .collect();
    broker::stop(&config).unwrap();
    println!("@{slots:?} {same} {nothing_there} {}", modes.join(" "));
}

#[test]
fn a_squatted_default_directory_does_not_lock_out_other_users() {
    if !is_root() {
        rocade_skip::skip!("needs root, to become another user");
    }
    let site = Site::new();
    let program = Path::new(OsStr::from_bytes(PROGRAM.to_bytes()));
    let mut command = site.command_of(program, "squatted-tmp");
    command
        .env_remove("ROCADE_RUNTIME_DIR")
        .env_remove("XDG_RUNTIME_DIR");
    alone_in_tmp(&mut command);
    let mut process = match in_mount_namespace(command) {
        Ok(process) => process,
        Err(reason) => rocade_skip::skip!("{reason}"),
    };
    assert_eq!(process.answer(), "[1, 2] true true 700");
}

/// The directory tree of a container or of chroot(1) may lack devices.
#[test]
fn a_broker_starts_without_dev_null() {
    if !is_root() {
        rocade_skip::skip!("needs root, to hide /dev");
    }
    let site = Site::new();
    let mut command = site.command("client");
    without(&mut command, c"/dev");
    let client = match in_mount_namespace(command) {
        Ok(client) => client,
        Err(reason) => rocade_skip::skip!("{reason}"),
    };
    client.ready().open(own_address());
}

#[test]
fn programs_get_in_after_the_runtime_directory_was_deleted() {
    let site = Site::new();
    let ip = own_address();
    let mut first = ClientProcess::start(&site);
    first.open(ip);
    let pid = site.status().pid;
    fs::remove_dir_all(site.dir.path()).unwrap();

    let mut second = ClientProcess::start(&site);
    assert_eq!((second.slot, site.status().pid), (2, pid));
    second.open(ip);
    assert!(socket_path(&site).exists());
    // Everything works as before, with the next broker too.
    assert_eq!(first.ask("service"), "served");
    site.kill_broker();
    let mut third = ClientProcess::start(&site);
    assert_eq!(third.slot, 3);
    for client in [&mut first, &mut second] {
        assert_eq!(client.ask("resume"), "resumed");
    }
    third.open(ip);
    let mut clients = [first, second, third];
    for (client, tag) in clients.iter_mut().zip(10..) {
        client.check(ip, tag);
    }
    assert_eq!(leased(&site.status()), [(1, true), (2, true), (3, true)]);
}

#[test]
fn clients_keep_their_slots_when_directory_and_broker_are_gone() {
    let site = Site::new();
    let ip = own_address();
    let mut clients: Vec<_> = (0..2).map(|_| ClientProcess::start(&site)).collect();
    clients.iter_mut().for_each(|client| client.open(ip));
    let pid = site.status().pid;
    kill(pid, libc::SIGKILL);
    wait_until(|| !alive(pid));
    fs::remove_dir_all(site.dir.path()).unwrap();
    clients.iter_mut().for_each(|client| client.say("resume"));
    for client in &mut clients {
        assert_eq!(client.answer(), "resumed");
    }
    let mut third = ClientProcess::start(&site);
    third.open(ip);
    clients.push(third);
    for (client, tag) in clients.iter_mut().zip(20..) {
        client.check(ip, tag);
    }
    let mut slots: Vec<_> = clients.iter().map(|client| client.slot).collect();
    slots.dedup();
    assert_eq!(slots, [1, 2, 3]);
}

#[test]
fn an_unused_broker_does_not_recreate_its_directory() {
    let site = Site::new();
    let config = BrokerConfig {
        // The broker must still run when it is asked.
        idle_timeout: Duration::from_secs(5),
        ..site.config.clone()
    };
    drop(BrokerClient::connect_or_start(&config).unwrap());
    let pid = site.wait_for(|status| status.slots.is_empty()).pid;
    fs::remove_dir_all(site.dir.path()).unwrap();
    wait_until(|| !alive(pid));
    assert!(!site.dir.path().exists());
}

#[test]
fn a_broker_by_hand_does_not_start_beside_one_whose_directory_was_deleted() {
    let site = Site::new();
    let _client = BrokerClient::connect_or_start(&site.config).unwrap();
    fs::remove_dir_all(site.dir.path()).unwrap();
    assert!(matches!(
        broker::serve(&site.config),
        Err(BrokerError::AlreadyRunning)
    ));
}
