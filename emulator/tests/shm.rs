//! Two and more processes that talk through shared memory: this test program starts itself again
//! as the peer. The figures that say which way packets went are the engine's counters.

#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "tests: a failure may panic, sizes are small"
)]

mod common;

use std::env;
use std::ffi::OsString;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use common::{Side, pattern};
use rocade_emulator::broker::{self, BrokerConfig, BrokerError};
use rocade_emulator::config::Settings;
use rocade_emulator::{
    BrokerMode, Engine, EngineConfig, Gid, ImmOrInv, LinkMode, Rkey, SendOp, WcOpcode, WcStatus,
};
use tempfile::TempDir;

const ROLE: &str = "ROCADE_TEST_ROLE";
const ADDRESS: &str = "ROCADE_TEST_ADDRESS";
const PATIENCE: Duration = Duration::from_secs(30);
const MEMORY: usize = 4 << 20;

/// Not a test: what the processes started by the tests run.
#[test]
fn child_process() {
    match env::var(ROLE).as_deref() {
        Ok("broker") => broker::serve(&BrokerConfig::from_env()).unwrap(),
        Ok("node") => run_node(),
        _ => {}
    }
}

fn engine(dir: &Path, address: IpAddr, link: LinkMode) -> Engine {
    let broker = BrokerMode::Auto(broker_config(dir));
    let config = EngineConfig::from_specs(&[format!("dev={address}")], broker).unwrap();
    Engine::new(EngineConfig { link, ..config }).unwrap()
}

fn broker_config(dir: &Path) -> BrokerConfig {
    let role: OsString = format!("{ROLE}=broker").into();
    let exe = env::current_exe().unwrap().into();
    let arguments = ["--exact", "child_process", "--nocapture"].map(OsString::from);
    BrokerConfig {
        runtime_dir: Some(dir.to_owned()),
        command: Some([vec!["env".into(), role, exe], arguments.to_vec()].concat()),
        start_timeout: PATIENCE,
        ..BrokerConfig::default()
    }
}

/// A process with queue pairs, driven by lines on its input; each is answered by one that begins
/// with '@'.
fn run_node() {
    let dir = env::var_os("ROCADE_RUNTIME_DIR").unwrap();
    let address: IpAddr = env::var(ADDRESS).unwrap().parse().unwrap();
    let link = Settings::from_env(|name| env::var_os(name)).unwrap().link();
    let engine = engine(Path::new(&dir), address, link);
    let mut sides: Vec<Side> = Vec::new();
    for line in std::io::stdin().lock().lines() {
        let line = line.unwrap();
        let words: Vec<_> = line.split(' ').collect();
        let number = |index: usize| words[index].parse::<u64>().unwrap();
        let size = |index: usize| number(index) as usize;
        match words[0] {
            "new" => {
                sides.push(Side::on(engine.clone(), MEMORY));
                let side = &sides[sides.len() - 1];
                let (qpn, rkey) = (side.qp.qp_num().get(), side.mr.rkey().get());
                println!("@{qpn} {rkey} {}", side.addr(0));
                continue;
            }
            "counters" => {
                let c = engine.counters();
                println!(
                    "@{} {} {} {}",
                    c.tx_packets, c.tx_shared, c.rx_packets, c.rx_shared
                );
                continue;
            }
            _ => {}
        }
        let side = &sides[size(1)];
        match words[0] {
            "connect" => {
                let gid = Gid::from_ip(words[3].parse().unwrap());
                side.to_rts(number(2) as u32, gid);
                println!("@connected");
            }
            "recv" => {
                side.qp
                    .recv_queue()
                    .push(number(2), &[side.sge(size(3), size(4))])
                    .unwrap();
                println!("@posted");
            }
            "fill" => {
                side.fill(size(2), &pattern(size(3), size(4)));
                println!("@filled");
            }
            "check" => {
                let good = side.bytes(size(2), size(3)) == pattern(size(3), size(4));
                println!("@{good}");
            }
            "send" => {
                side.send(
                    number(2),
                    SendOp::Send { imm: None },
                    &[side.sge(size(3), size(4))],
                );
                println!("@posted");
            }
            "poll" => {
                let wc = side.completion();
                println!("@{} {:?} {}", wc.wr_id, wc.status, wc.byte_len);
            }
            // Answers each of so many messages but the last, and exits on it if asked to.
            "converse" => {
                let count = number(2);
                let listen = || side.qp.recv_queue().push(0, &[side.sge(0, 8)]).unwrap();
                listen();
                println!("@listening");
                for message in 1..=count {
                    while side.completion().is_send {}
                    if message < count {
                        listen();
                        side.send(1, SendOp::Send { imm: None }, &[side.sge(8, 8)]);
                    } else if words[3] == "exit" {
                        std::process::exit(0);
                    } else if words[3] == "destroy" {
                        side.qp.destroy().unwrap();
                    }
                }
                println!("@heard");
            }
            "sleep" => {
                side.cq.req_notify(false).unwrap();
                // Said before: nothing is polled from here on.
                println!("@asleep");
                side.channel.get_event().unwrap();
                side.cq.ack_events(1);
                let wc = side.cq.poll_one().unwrap();
                println!("@{} {:?} {}", wc.wr_id, wc.status, wc.byte_len);
            }
            _ => panic!("{line}"),
        }
    }
}

/// A runtime directory and an address of its own; ends the broker in it.
struct Site {
    dir: TempDir,
    address: IpAddr,
}

impl Site {
    fn new() -> Self {
        Self {
            dir: tempfile::tempdir().unwrap(),
            address: own_address(),
        }
    }

    fn engine(&self, link: LinkMode) -> Engine {
        engine(self.dir.path(), self.address, link)
    }

    fn node(&self) -> Node {
        self.node_at(self.address, "auto")
    }

    fn node_at(&self, address: IpAddr, link: &str) -> Node {
        let mut command = Command::new(env::current_exe().unwrap());
        command
            .args(["--exact", "child_process", "--nocapture"])
            .env(ROLE, "node")
            .env("ROCADE_RUNTIME_DIR", self.dir.path())
            .env("ROCADE_LINK", link)
            .env(ADDRESS, address.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Node {
            child,
            input,
            output,
            address,
        }
    }

    fn kill_broker(&self) {
        let config = broker_config(self.dir.path());
        let pid = broker::status(&config).unwrap().pid;
        signal(pid, libc::SIGKILL);
        wait_until(|| {
            matches!(
                broker::status(&config),
                Err(BrokerError::NotRunning | BrokerError::Lost)
            )
        });
    }

    fn wait_for_clients(&self, count: usize) {
        let config = broker_config(self.dir.path());
        wait_until(|| {
            broker::status(&config)
                .is_ok_and(|s| s.slots.iter().filter(|slot| slot.connected).count() == count)
        });
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        // It may be gone by itself, or never have been there.
        let _ = broker::stop(&broker_config(self.dir.path()));
    }
}

struct Node {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    address: IpAddr,
}

/// A queue pair of a node.
#[derive(Clone, Copy)]
struct Remote {
    index: usize,
    qpn: u32,
    rkey: Rkey,
    addr: u64,
}

impl Node {
    fn say(&mut self, command: &str) {
        writeln!(self.input, "{command}").unwrap();
    }

    fn answer(&mut self) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            assert!(
                self.output.read_line(&mut line).unwrap() > 0,
                "the node has ended"
            );
            if let Some((_, answer)) = line.split_once('@') {
                return answer.trim_end().to_owned();
            }
        }
    }

    fn ask(&mut self, command: &str) -> String {
        self.say(command);
        self.answer()
    }

    fn new_qp(&mut self, index: usize) -> Remote {
        let answer = self.ask("new");
        let numbers: Vec<u64> = answer
            .split(' ')
            .map(|word| word.parse().unwrap())
            .collect();
        let rkey = Rkey::new(numbers[1] as u32);
        Remote {
            index,
            qpn: numbers[0] as u32,
            rkey,
            addr: numbers[2],
        }
    }

    /// Connects the node's next queue pair, which has this index, with ours: ours first.
    fn connect(&mut self, side: &Side, index: usize) -> Remote {
        let remote = self.new_qp(index);
        side.to_rts(remote.qpn, Gid::from_ip(self.address));
        self.connect_back(side, remote);
        remote
    }

    fn connect_back(&mut self, side: &Side, remote: Remote) {
        let (qpn, ip) = (side.qp.qp_num().get(), side.gid().to_ip());
        assert_eq!(
            self.ask(&format!("connect {} {qpn} {ip}", remote.index)),
            "connected"
        );
    }

    /// Packets sent, those of them through shared memory, received, those ...
    fn counters(&mut self) -> [u64; 4] {
        let answer = self.ask("counters");
        let numbers: Vec<_> = answer
            .split(' ')
            .map(|word| word.parse().unwrap())
            .collect();
        numbers.try_into().unwrap()
    }

    fn signal(&self, number: i32) {
        signal(self.child.id(), number);
    }

    /// Stops all of its threads.
    fn stop(&self) {
        self.signal(libc::SIGSTOP);
        let tasks = format!("/proc/{}/task", self.child.id());
        wait_until(|| {
            fs::read_dir(&tasks).unwrap().flatten().all(|task| {
                let stat = fs::read_to_string(task.path().join("stat")).unwrap();
                stat.rsplit_once(") ")
                    .is_some_and(|(_, rest)| rest.starts_with('T'))
            })
        });
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // Both fail where the test has done it.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn signal(pid: u32, number: i32) {
    let pid = libc::pid_t::try_from(pid).unwrap();
    assert!(pid > 1);
    // SAFETY: takes no pointers.
    assert_eq!(unsafe { libc::kill(pid, number) }, 0);
}

fn wait_until(mut condition: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !condition() {
        assert!(begin.elapsed() < PATIENCE, "waited too long");
        thread::sleep(Duration::from_millis(2));
    }
}

/// An address that no other test has: others than those of the broker's tests.
fn own_address() -> IpAddr {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let [_, _, high, low] = std::process::id().to_be_bytes();
    let last = NEXT.fetch_add(1, Ordering::Relaxed);
    Ipv4Addr::new(127, high | 0x80, low, last).into()
}

fn write(side: &Side, remote: Remote, wr_id: u64, from: usize, to: usize, len: usize) {
    let op = SendOp::Write {
        va: remote.addr + to as u64,
        rkey: remote.rkey,
        imm: None,
    };
    side.send(wr_id, op, &[side.sge(from, len)]);
}

fn assert_success(side: &Side, wr_id: u64) {
    let wc = side.completion();
    assert_eq!((wc.wr_id, wc.status), (wr_id, WcStatus::Success));
}

/// All packets of both went through shared memory. The last acknowledgements may be on their way,
/// and the counters are not read at one instant.
fn assert_all_shared(ours: &Engine, node: &mut Node) {
    assert!(ours.counters().tx_packets > 0);
    wait_until(|| {
        let c = ours.counters();
        (c.tx_shared, c.rx_shared) == (c.tx_packets, c.rx_packets)
    });
    wait_until(|| {
        let [tx, tx_shared, rx, rx_shared] = node.counters();
        (tx_shared, rx_shared) == (tx, rx)
    });
}

#[test]
fn all_operations_and_sizes() {
    let site = Site::new();
    let side = Side::on(site.engine(LinkMode::Auto), MEMORY);
    let mut node = site.node();
    let remote = node.connect(&side, 0);
    for (wr_id, len) in (0..).zip([0, 1, 3, 8, 63, 64, 65, 1023, 1024, 1025, 70_000, 1 << 20]) {
        side.fill(0, &pattern(len, len));
        node.ask(&format!("recv 0 {wr_id} 0 {}", len.max(1)));
        side.send(wr_id, SendOp::Send { imm: None }, &[side.sge(0, len)]);
        assert_eq!(node.ask("poll 0"), format!("{wr_id} Success {len}"));
        assert_eq!(node.ask(&format!("check 0 0 {len} {len}")), "true");
        assert_success(&side, wr_id);

        write(&side, remote, wr_id, 0, 1 << 20, len);
        assert_success(&side, wr_id);
        assert_eq!(
            node.ask(&format!("check 0 {} {len} {len}", 1 << 20)),
            "true"
        );

        let op = SendOp::Read {
            va: remote.addr + (1 << 20),
            rkey: remote.rkey,
        };
        side.send(wr_id, op, &[side.sge(2 << 20, len)]);
        let read = side.completion();
        assert_eq!(
            (read.status, read.opcode),
            (WcStatus::Success, WcOpcode::RdmaRead)
        );
        assert_eq!(side.bytes(2 << 20, len), pattern(len, len));
    }
    node.ask("recv 0 77 0 8");
    let op = SendOp::Write {
        va: remote.addr + 16,
        rkey: remote.rkey,
        imm: Some([1, 2, 3, 4]),
    };
    side.fill(0, &41u64.to_ne_bytes());
    side.send(1, op, &[side.sge(0, 8)]);
    assert_eq!(node.ask("poll 0"), "77 Success 8");
    assert_success(&side, 1);
    let (va, rkey) = (remote.addr + 16, remote.rkey);
    side.send(2, SendOp::FetchAdd { va, rkey, add: 1 }, &[side.sge(8, 8)]);
    assert_success(&side, 2);
    assert_eq!(side.bytes(8, 8), 41u64.to_ne_bytes());
    side.send(
        3,
        SendOp::CmpSwap {
            va,
            rkey,
            compare: 42,
            swap: 9,
        },
        &[side.sge(8, 8)],
    );
    assert_success(&side, 3);
    assert_eq!(side.bytes(8, 8), 42u64.to_ne_bytes());
    // And the other way.
    side.qp
        .recv_queue()
        .push(5, &[side.sge(0, 1 << 20)])
        .unwrap();
    node.ask(&format!("fill 0 0 {} 3", 1 << 20));
    node.ask(&format!("send 0 6 0 {}", 1 << 20));
    let received = side.completion();
    assert_eq!((received.wr_id, received.byte_len), (5, 1 << 20));
    assert_eq!(received.imm_or_inv, ImmOrInv::None);
    assert_eq!(side.bytes(0, 1 << 20), pattern(1 << 20, 3));
    assert_eq!(node.ask("poll 0"), format!("6 Success {}", 1 << 20));
    assert_all_shared(&side.engine, &mut node);
}

#[test]
fn a_sleeping_peer_is_woken_by_each_message() {
    let site = Site::new();
    let side = Side::on(site.engine(LinkMode::Auto), MEMORY);
    let mut node = site.node();
    node.connect(&side, 0);
    for wr_id in 0..20 {
        node.ask(&format!("recv 0 {wr_id} 0 100"));
        assert_eq!(node.ask("sleep 0"), "asleep");
        side.send(wr_id, SendOp::Send { imm: None }, &[side.sge(0, 64)]);
        assert_eq!(node.answer(), format!("{wr_id} Success 64"));
        // We sleep too, until the acknowledgement.
        side.cq.req_notify(false).unwrap();
        if side.cq.poll_one().is_none() {
            side.channel.get_event().unwrap();
            side.cq.ack_events(1);
            assert_success(&side, wr_id);
        }
    }
    assert_all_shared(&side.engine, &mut node);
}

#[test]
fn the_variable_and_the_peer_decide_which_way() {
    for (ours, theirs) in [
        (LinkMode::Udp, "auto"),
        (LinkMode::Auto, "udp"),
        (LinkMode::Udp, "udp"),
    ] {
        let site = Site::new();
        let side = Side::on(site.engine(ours), MEMORY);
        let mut node = site.node_at(site.address, theirs);
        let remote = node.connect(&side, 0);
        write(&side, remote, 1, 0, 0, 100_000);
        assert_success(&side, 1);
        assert_eq!(
            (side.engine.counters().tx_shared, node.counters()[1]),
            (0, 0)
        );
    }
    let site = Site::new();
    let side = Side::on(site.engine(LinkMode::Shm), MEMORY);
    let mut node = site.node_at(site.address, "shm");
    let remote = node.connect(&side, 0);
    write(&side, remote, 1, 0, 0, 100_000);
    assert_success(&side, 1);
    assert_all_shared(&side.engine, &mut node);
}

#[test]
fn shm_only_does_not_reach_a_peer_without() {
    let site = Site::new();
    let side = Side::on(site.engine(LinkMode::Shm), MEMORY);
    let mut node = site.node_at(site.address, "udp");
    let remote = node.connect(&side, 0);
    write(&side, remote, 1, 0, 0, 8);
    assert_eq!(side.completion().status, WcStatus::RetryExcErr);
}

/// The peer's address is nobody's before it connects: so the first to connect has no channel yet.
#[test]
fn a_queue_pair_moves_to_the_channel_that_its_peer_asks_for() {
    let site = Site::new();
    let side = Side::on(site.engine(LinkMode::Auto), MEMORY);
    let mut node = site.node_at(own_address(), "auto");
    let remote = node.new_qp(0);
    side.to_rts(remote.qpn, Gid::from_ip(node.address));
    node.connect_back(&side, remote);
    node.ask("recv 0 1 0 100");
    side.qp.recv_queue().push(1, &[side.sge(0, 100)]).unwrap();
    // The other side has its channel, and our background thread takes it by and by.
    node.ask("send 0 2 0 100");
    assert_eq!(side.completion().wr_id, 1);
    assert_eq!(node.ask("poll 0"), "2 Success 100");
    wait_until(|| {
        let before = side.engine.counters().tx_shared;
        write(&side, remote, 3, 0, 0, 8);
        assert_success(&side, 3);
        side.engine.counters().tx_shared > before
    });
}

/// The same while requests and responses of both sides are on their way.
#[test]
fn queue_pairs_move_in_mid_stream_without_loss() {
    const LEN: usize = 70_000;
    let site = Site::new();
    let engine = site.engine(LinkMode::Auto);
    let mut moved = 0;
    for _ in 0..20 {
        let side = Side::on(engine.clone(), MEMORY);
        let mut node = site.node_at(own_address(), "auto");
        let remote = node.new_qp(0);
        side.to_rts(remote.qpn, Gid::from_ip(node.address));
        side.fill(0, &pattern(LEN, 1));
        node.ask(&format!("fill 0 {} {LEN} 2", 1 << 20));
        let before = engine.counters();
        node.connect_back(&side, remote);
        for wr_id in 0..120 {
            // Streams of WRITEs, and READs in between.
            if wr_id % 24 != 23 {
                write(&side, remote, wr_id, 0, 0, LEN);
                continue;
            }
            let op = SendOp::Read {
                va: remote.addr + (1 << 20),
                rkey: remote.rkey,
            };
            side.send(wr_id, op, &[side.sge(1 << 20, LEN)]);
        }
        for wr_id in 0..120 {
            assert_success(&side, wr_id);
        }
        assert_eq!(side.bytes(1 << 20, LEN), pattern(LEN, 2));
        assert_eq!(node.ask(&format!("check 0 0 {LEN} 1")), "true");
        let after = engine.counters();
        let sent = after.tx_packets - before.tx_packets;
        let shared = after.tx_shared - before.tx_shared;
        moved += u32::from(0 < shared && shared < sent);
        println!("{:?} shared {shared} of {sent}", side.qp.counters());
    }
    println!("{moved} queue pairs moved in mid-stream");
}

/// Clock ticks (10 ms) of processor time that a process has used.
fn cpu_ticks(pid: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let (_, rest) = stat.rsplit_once(") ").unwrap();
    let fields: Vec<_> = rest.split(' ').collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

/// Connected, and after traffic.
#[test]
fn a_waiting_process_with_a_channel_uses_no_processor_time() {
    let site = Site::new();
    let mut node = site.node();
    let side = Side::on(site.engine(LinkMode::Auto), MEMORY);
    let remote = node.connect(&side, 0);
    for wr_id in 0..20 {
        write(&side, remote, wr_id, 0, 0, 1 << 20);
    }
    for wr_id in 0..20 {
        assert_success(&side, wr_id);
    }
    assert_all_shared(&side.engine, &mut node);
    // What follows the last packets: stepping back and coming forward, a few times.
    thread::sleep(Duration::from_millis(20));
    let before = cpu_ticks(node.child.id());
    thread::sleep(Duration::from_secs(2));
    let used = cpu_ticks(node.child.id()) - before;
    assert!(used <= 1, "{used} ticks");
}

#[test]
fn peers_with_and_without_shared_memory_at_a_time() {
    let site = Site::new();
    let engine = site.engine(LinkMode::Auto);
    let (a, b) = (
        Side::on(engine.clone(), MEMORY),
        Side::on(engine.clone(), MEMORY),
    );
    let (mut shared, mut udp) = (site.node(), site.node_at(site.address, "udp"));
    let (remote_a, remote_b) = (shared.connect(&a, 0), udp.connect(&b, 0));
    a.fill(0, &pattern(1 << 20, 1));
    b.fill(0, &pattern(1 << 20, 2));
    for wr_id in 0..8 {
        write(&a, remote_a, wr_id, 0, 0, 1 << 20);
        write(&b, remote_b, wr_id, 0, 0, 1 << 20);
    }
    // Polling one CQ receives for the other as well.
    for wr_id in 0..8 {
        assert_success(&a, wr_id);
        assert_success(&b, wr_id);
    }
    assert_eq!(shared.ask(&format!("check 0 0 {} 1", 1 << 20)), "true");
    assert_eq!(udp.ask(&format!("check 0 0 {} 2", 1 << 20)), "true");
    let c = engine.counters();
    assert!(0 < c.tx_shared && c.tx_shared < c.tx_packets, "{c:?}");
}

/// The peer acknowledges our message and is killed before we look: we have sent it successfully.
#[test]
fn the_last_acknowledgement_of_a_dying_peer_counts() {
    let site = Site::new();
    let engine = site.engine(LinkMode::Auto);
    for _ in 0..20 {
        let side = Side::on(engine.clone(), MEMORY);
        let mut node = site.node();
        node.connect(&side, 0);
        node.ask("recv 0 1 0 8");
        side.send(1, SendOp::Send { imm: None }, &[side.sge(0, 8)]);
        assert_eq!(node.ask("poll 0"), "1 Success 8");
        // Its completion comes first, then the acknowledgement.
        while node.counters()[0] == 0 {}
        drop(node);
        assert_success(&side, 1);
    }
}

/// Sends so many messages to a node that answers all but the last; returns with that one sent.
fn converse(side: &Side, node: &mut Node, count: u64, ending: &str) {
    assert_eq!(
        node.ask(&format!("converse 0 {count} {ending}")),
        "listening"
    );
    for message in 1..=count {
        if message < count {
            side.qp.recv_queue().push(0, &[side.sge(0, 8)]).unwrap();
        }
        side.send(message, SendOp::Send { imm: None }, &[side.sge(8, 8)]);
        // The answer and the acknowledgement, in any order.
        for _ in 0..if message < count { 2 } else { 1 } {
            assert_eq!(side.completion().status, WcStatus::Success, "{message}");
        }
    }
    let counters = side.qp.counters();
    assert_eq!(counters.retransmitted_packets, 0, "{ending}: {counters:?}");
}

/// In a conversation acknowledgements leave together with the answers. One to which there is no
/// answer leaves all the same: before long, and before the process exits.
#[test]
fn the_last_acknowledgement_of_a_conversation_leaves() {
    for link in ["udp", "auto"] {
        let site = Site::new();
        let engine = site.engine(LinkMode::Auto);
        for ending in ["exit", "stay", "destroy"] {
            for _ in 0..10 {
                let side = Side::on(engine.clone(), MEMORY);
                let mut node = site.node_at(site.address, link);
                node.connect(&side, 0);
                converse(&side, &mut node, 50, ending);
                if ending == "exit" {
                    assert!(node.child.wait().unwrap().success());
                } else {
                    assert_eq!(node.answer(), "heard");
                }
            }
        }
    }
}

#[test]
fn a_killed_peer_is_noticed_and_its_slot_is_used_again() {
    let site = Site::new();
    let engine = site.engine(LinkMode::Auto);
    let side = Side::on(engine.clone(), MEMORY);
    let mut node = site.node();
    let remote = node.connect(&side, 0);
    for wr_id in 0..100 {
        write(&side, remote, wr_id, 0, 0, 1 << 20);
    }
    assert_success(&side, 0);
    node.signal(libc::SIGKILL);
    let mut next = 1;
    let failed = loop {
        let wc = side.completion();
        assert_eq!(wc.wr_id, next);
        next += 1;
        if wc.status != WcStatus::Success {
            break wc;
        }
    };
    assert_eq!(failed.status, WcStatus::RetryExcErr);
    assert_eq!(side.completion().status, WcStatus::WrFlushErr);
    drop(node);
    site.wait_for_clients(1);

    let before = engine.counters();
    let mut second = site.node();
    let side = Side::on(engine.clone(), MEMORY);
    let again = second.connect(&side, 0);
    assert_eq!(again.qpn >> 16, remote.qpn >> 16, "the same slot");
    write(&side, again, 1, 0, 0, 1 << 20);
    assert_success(&side, 1);
    let c = engine.counters();
    assert_eq!(
        c.tx_packets - before.tx_packets,
        c.tx_shared - before.tx_shared
    );
    wait_until(|| {
        let [tx, tx_shared, rx, rx_shared] = second.counters();
        (tx_shared, rx_shared) == (tx, rx)
    });
}

#[test]
fn a_peer_that_does_not_take_its_packets_fills_the_ring_and_all_arrives_later() {
    const QPS: usize = 16;
    let site = Site::new();
    let engine = site.engine(LinkMode::Auto);
    let mut node = site.node();
    let sides: Vec<_> = (0..QPS).map(|_| Side::on(engine.clone(), MEMORY)).collect();
    let remotes: Vec<_> = sides
        .iter()
        .enumerate()
        .map(|(index, side)| node.connect(side, index))
        .collect();
    for (index, side) in sides.iter().enumerate() {
        side.fill(0, &pattern(1 << 20, index));
    }
    node.stop();
    for (side, remote) in sides.iter().zip(&remotes) {
        write(side, *remote, 1, 0, 0, 1 << 20);
        assert!(side.cq.poll_one().is_none());
    }
    // The ring has room for some 1000 packets, and each queue pair would have liked to send 128. What
    // waits for room counts as sent.
    let c = engine.counters();
    assert!((900..2000).contains(&c.tx_shared), "{c:?}");
    node.signal(libc::SIGCONT);
    for side in &sides {
        assert_success(side, 1);
    }
    for index in 0..QPS {
        assert_eq!(
            node.ask(&format!("check {index} 0 {} {index}", 1 << 20)),
            "true"
        );
    }
}

#[test]
fn channels_survive_the_broker() {
    let site = Site::new();
    let engine = site.engine(LinkMode::Auto);
    let side = Side::on(engine.clone(), MEMORY);
    let mut node = site.node();
    let remote = node.connect(&side, 0);
    site.kill_broker();
    for wr_id in 0..10 {
        write(&side, remote, wr_id, 0, 0, 1 << 20);
        assert_success(&side, wr_id);
    }
    // Both find or start a new broker; QPs to a peer with a channel need none, and a new peer gets
    // its channel from the new broker.
    site.wait_for_clients(2);
    let second = Side::on(engine.clone(), MEMORY);
    let remote = node.connect(&second, 1);
    write(&second, remote, 1, 0, 0, 100_000);
    assert_success(&second, 1);
    let mut other = site.node();
    let third = Side::on(engine.clone(), MEMORY);
    let remote = other.connect(&third, 0);
    write(&third, remote, 1, 0, 0, 100_000);
    assert_success(&third, 1);
    assert_all_shared(&engine, &mut node);
    assert_all_shared(&engine, &mut other);
}

#[test]
fn one_peer_in_both_directions_at_once_with_a_sleeping_one_beside() {
    let site = Site::new();
    let engine = site.engine(LinkMode::Auto);
    let (a, b) = (
        Side::on(engine.clone(), MEMORY),
        Side::on(engine.clone(), MEMORY),
    );
    let (mut busy, mut quiet) = (site.node(), site.node());
    let remote = busy.connect(&a, 0);
    quiet.connect(&b, 0);
    quiet.ask("recv 0 9 0 8");
    assert_eq!(quiet.ask("sleep 0"), "asleep");
    for wr_id in 0..16 {
        a.qp.recv_queue()
            .push(100 + wr_id, &[a.sge(1 << 20, 1 << 20)])
            .unwrap();
        busy.ask(&format!("send 0 {wr_id} {} {}", 1 << 20, 1 << 20));
        write(&a, remote, wr_id, 0, 0, 1 << 20);
    }
    b.send(1, SendOp::Send { imm: None }, &[b.sge(0, 8)]);
    assert_eq!(quiet.answer(), "9 Success 8");
    assert_success(&b, 1);
    let mut ids: Vec<_> = (0..32)
        .map(|_| {
            let wc = a.completion();
            assert_eq!(wc.status, WcStatus::Success);
            wc.wr_id
        })
        .collect();
    ids.sort_unstable();
    assert!(ids.into_iter().eq((0..16).chain(100..116)));
    for wr_id in 0..16 {
        assert_eq!(busy.ask("poll 0"), format!("{wr_id} Success {}", 1 << 20));
    }
}
