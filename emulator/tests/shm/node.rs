//! The processes that the tests start: their commands and what they do.

use std::env;
use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};

use crate::common::{Side, pattern};
use crate::gone::Victim;
use crate::processes::{ROLE, Stopped, broker_config, kill, wait_until};
use rocade_emulator::broker::{self, BrokerError};
use rocade_emulator::config::Settings;
use rocade_emulator::{
    BrokerMode, Engine, EngineConfig, Gid, LinkMode, QpAttr, QpAttrMask, QpState, Rkey, SendOp,
    WcStatus,
};
use tempfile::TempDir;

pub(crate) const ADDRESS: &str = "ROCADE_TEST_ADDRESS";
pub(crate) const MEMORY: usize = 4 << 20;

pub(crate) fn engine(dir: &Path, address: IpAddr, link: LinkMode) -> Engine {
    let broker = BrokerMode::Auto(broker_config(dir));
    let config = EngineConfig::from_specs(&[format!("dev={address}")], broker).unwrap();
    Engine::new(EngineConfig { link, ..config }).unwrap()
}

/// A process with queue pairs. It reads commands from its input, and answers each with one line
/// that begins with '@'.
pub(crate) fn run_node() {
    let dir = env::var_os("ROCADE_RUNTIME_DIR").unwrap();
    let address: IpAddr = env::var(ADDRESS).unwrap().parse().unwrap();
    let link = Settings::from_env(|name| env::var_os(name)).unwrap().link();
    let engine = engine(Path::new(&dir), address, link);
    let mut sides: Vec<Side> = Vec::new();
    let mut victim = Victim::default();
    for line in std::io::stdin().lock().lines() {
        let line = line.unwrap();
        let words: Vec<_> = line.split(' ').collect();
        let number = |index: usize| words[index].parse::<u64>().unwrap();
        let size = |index: usize| number(index) as usize;
        match words[0] {
            "new" => {
                let memory = words.get(1).map_or(MEMORY, |_| size(1));
                sides.push(Side::on(engine.clone(), memory));
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
            "leave" => leave_child(),
            "victim" => {
                println!("@{}", victim.obey(&sides, &words[1..]));
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
            // Answers each of `count` messages except the last, and then ends as told.
            "converse" => {
                let count = number(2);
                let listen = || side.qp.recv_queue().push(0, &[side.sge(0, 8)]).unwrap();
                listen();
                println!("@listening");
                for message in 1..=count {
                    while side.completion().is_send() {}
                    if message < count {
                        listen();
                        side.send(1, SendOp::Send { imm: None }, &[side.sge(8, 8)]);
                    } else {
                        end(side, words[3]);
                    }
                }
                println!("@heard");
            }
            "sleep" => {
                side.cq.req_notify(false).unwrap();
                // Printed before it sleeps, and nothing is polled afterwards.
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

/// Kills this process, whose child lives on until the end of the input.
fn leave_child() -> ! {
    // SAFETY: the child only reads, with all descriptors open, and ends.
    unsafe {
        if libc::fork() == 0 {
            let mut byte = 0u8;
            while libc::read(0, (&raw mut byte).cast(), 1) > 0 {}
            libc::_exit(0);
        }
    }
    println!("@leaving");
    loop {
        kill(std::process::id(), libc::SIGKILL);
    }
}

/// Ends a queue pair, or the process, in one of many ways.
fn end(side: &Side, way: &str) {
    let to = |state: QpState| {
        let attr = QpAttr {
            qp_state: state.code(),
            ..QpAttr::default()
        };
        side.qp.modify(&attr, QpAttrMask::STATE).unwrap();
    };
    match way {
        "stay" => {}
        "error" => to(QpState::Err),
        "reset" => to(QpState::Reset),
        "destroy" => side.qp.destroy().unwrap(),
        "exit" => std::process::exit(0),
        "abort" => {
            let none = libc::rlimit {
                rlim_cur: 0,
                rlim_max: 0,
            };
            // SAFETY: the limits are valid for the call. No core dump is needed.
            assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_CORE, &none) }, 0);
            std::process::abort()
        }
        "exec" => panic!("{}", Command::new("true").exec()),
        // SAFETY: the process ends here, and nothing of it is used any more.
        "_exit" => unsafe { libc::_exit(0) },
        "orphan" => {
            // SAFETY: the child only sleeps, with all descriptors open, and ends by itself.
            unsafe {
                if libc::fork() == 0 {
                    libc::sleep(2);
                    libc::_exit(0);
                }
            }
            kill(std::process::id(), libc::SIGKILL);
        }
        "term" => kill(std::process::id(), libc::SIGTERM),
        "kill" => kill(std::process::id(), libc::SIGKILL),
        _ => panic!("{way}"),
    }
}

/// A temporary runtime directory with an address. Dropping it stops the broker in it.
pub(crate) struct Site {
    pub(crate) dir: TempDir,
    pub(crate) address: IpAddr,
}

impl Site {
    pub(crate) fn new() -> Self {
        Self {
            dir: tempfile::tempdir().unwrap(),
            address: own_address(),
        }
    }

    pub(crate) fn engine(&self, link: LinkMode) -> Engine {
        engine(self.dir.path(), self.address, link)
    }

    pub(crate) fn node(&self) -> Node {
        self.node_at(self.address, "auto")
    }

    pub(crate) fn node_at(&self, address: IpAddr, link: &str) -> Node {
        self.node_in(address, link, |_| {})
    }

    /// Starts a node whose command is prepared by `prepare`.
    pub(crate) fn node_in(
        &self,
        address: IpAddr,
        link: &str,
        prepare: impl FnOnce(&mut Command),
    ) -> Node {
        let mut command = Command::new(env::current_exe().unwrap());
        command
            .args(["--exact", "child_process", "--nocapture"])
            .env(ROLE, "node")
            .env("ROCADE_RUNTIME_DIR", self.dir.path())
            .env("ROCADE_LINK", link)
            .env(ADDRESS, address.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        prepare(&mut command);
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

    pub(crate) fn kill_broker(&self) {
        let config = broker_config(self.dir.path());
        let pid = broker::status(&config).unwrap().pid;
        kill(pid, libc::SIGKILL);
        wait_until(|| {
            matches!(
                broker::status(&config),
                Err(BrokerError::NotRunning | BrokerError::Lost)
            )
        });
    }

    pub(crate) fn wait_for_clients(&self, count: usize) {
        let config = broker_config(self.dir.path());
        wait_until(|| {
            broker::status(&config)
                .is_ok_and(|s| s.slots.iter().filter(|slot| slot.connected).count() == count)
        });
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        // The broker may have ended already, or never have existed.
        let _ = broker::stop(&broker_config(self.dir.path()));
    }
}

pub(crate) struct Node {
    pub(crate) child: Child,
    pub(crate) input: ChildStdin,
    pub(crate) output: BufReader<ChildStdout>,
    pub(crate) address: IpAddr,
}

/// A queue pair of a node.
#[derive(Clone, Copy)]
pub(crate) struct Remote {
    pub(crate) index: usize,
    pub(crate) qpn: u32,
    pub(crate) rkey: Rkey,
    pub(crate) addr: u64,
}

impl Node {
    pub(crate) fn say(&mut self, command: &str) {
        writeln!(self.input, "{command}").unwrap();
    }

    pub(crate) fn answer(&mut self) -> String {
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

    pub(crate) fn ask(&mut self, command: &str) -> String {
        self.say(command);
        self.answer()
    }

    pub(crate) fn new_qp(&mut self, index: usize) -> Remote {
        self.new_qp_with(MEMORY, index)
    }

    /// Makes a queue pair with this much memory.
    pub(crate) fn new_qp_with(&mut self, memory: usize, index: usize) -> Remote {
        let answer = self.ask(&format!("new {memory}"));
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

    /// Connects the node's next queue pair, which has this index, with this side's. This side
    /// connects first.
    pub(crate) fn connect(&mut self, side: &Side, index: usize) -> Remote {
        let remote = self.new_qp(index);
        side.to_rts(remote.qpn, Gid::from_ip(self.address));
        self.connect_back(side, remote);
        remote
    }

    pub(crate) fn connect_back(&mut self, side: &Side, remote: Remote) {
        let (qpn, ip) = (side.qp.qp_num().get(), side.gid().to_ip());
        assert_eq!(
            self.ask(&format!("connect {} {qpn} {ip}", remote.index)),
            "connected"
        );
    }

    /// Returns the packets sent, those of them through shared memory, the packets received, and
    /// those of them through shared memory.
    pub(crate) fn counters(&mut self) -> [u64; 4] {
        let answer = self.ask("counters");
        let numbers: Vec<_> = answer
            .split(' ')
            .map(|word| word.parse().unwrap())
            .collect();
        numbers.try_into().unwrap()
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    pub(crate) fn signal(&self, number: i32) {
        kill(self.child.id(), number);
    }

    /// Stops the node until the result is dropped.
    pub(crate) fn stop(&self) -> Stopped {
        Stopped::new(self.child.id())
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // Both fail if the test has done it already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns an address that no other test uses, including the broker's tests.
pub(crate) fn own_address() -> IpAddr {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let [_, _, high, low] = std::process::id().to_be_bytes();
    let last = NEXT.fetch_add(1, Ordering::Relaxed);
    Ipv4Addr::new(127, high | 0x80, low, last).into()
}

pub(crate) fn write(side: &Side, remote: Remote, wr_id: u64, from: usize, to: usize, len: usize) {
    let op = SendOp::Write {
        va: remote.addr + to as u64,
        rkey: remote.rkey,
        imm: None,
    };
    side.send(wr_id, op, &[side.sge(from, len)]);
}

pub(crate) fn assert_success(side: &Side, wr_id: u64) {
    let wc = side.completion();
    assert_eq!((wc.wr_id, wc.status), (wr_id, WcStatus::Success));
}

/// Checks that all packets of both went through shared memory. The last ACKs may be in flight, and
/// the counters are not read at one instant.
pub(crate) fn assert_all_shared(ours: &Engine, node: &mut Node) {
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
