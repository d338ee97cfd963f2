//! Processes that lose registered memory by munmap, mprotect or truncating the file behind it.
//! Accesses of the process or of a peer then end in a protection error of that queue pair, and
//! other queue pairs go on. The tests cover UDP and shared memory, and all kinds of signal
//! handlers.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

use rocade_emulator::{Gid, LinkMode, Mr, SendOp, Sge, WcStatus};

use crate::common::{ALL_ACCESS, Side, pattern};
use crate::node::{Node, Remote, Site};

/// Length of the memory that gets lost, so that a message of it takes several runs of packets.
const LEN: usize = 256 << 10;
/// Length of the remaining memory if only the end is lost.
const STAYS: usize = LEN / 2 + 4096;

/// A process that loses memory at the tests' command.
#[derive(Default)]
pub(crate) struct Victim {
    lost: Option<(Mr, Option<File>)>,
}

/// Number of faults that Rocade has not caught, and that a handler of this program has seen.
static SEEN: AtomicUsize = AtomicUsize::new(0);

extern "C" fn note(_: libc::c_int) {
    SEEN.fetch_add(1, Ordering::Relaxed);
    // SAFETY: ends the process.
    unsafe { libc::_exit(3) };
}

impl Victim {
    pub(crate) fn obey(&mut self, sides: &[Side], words: &[&str]) -> String {
        let number = |index: usize| words[index].parse::<usize>().unwrap();
        match words[0] {
            // The index of the QP.
            "map" => {
                let (mr, file) = map(&sides[number(1)], words[2] == "truncate");
                let answer = format!("{} {}", mr.rkey().get(), mr.addr());
                self.lost = Some((mr, file));
                answer
            }
            "lose" => {
                self.lose(words[1], number(2));
                "lost".into()
            }
            "handler" => {
                use_handlers(words[1]);
                "set".into()
            }
            // QP index, work request ID, offset, length.
            "recv" => {
                let sge = self.sge(number(3), number(4));
                let side = &sides[number(1)];
                side.qp.recv_queue().push(number(2) as u64, &[sge]).unwrap();
                "posted".into()
            }
            "send" => {
                let sge = self.sge(number(3), number(4));
                let op = SendOp::Send { imm: None };
                sides[number(1)].send(number(2) as u64, op, &[sge]);
                "posted".into()
            }
            // QP index, work request ID, address, key, length.
            "read" | "add" => {
                let va = words[3].parse().unwrap();
                let rkey = rocade_emulator::Rkey::new(words[4].parse().unwrap());
                let op = if words[0] == "read" {
                    SendOp::Read { va, rkey }
                } else {
                    SendOp::FetchAdd { va, rkey, add: 1 }
                };
                let sge = self.sge(0, number(5));
                sides[number(1)].send(number(2) as u64, op, &[sge]);
                "posted".into()
            }
            other => panic!("{other}"),
        }
    }

    fn sge(&self, offset: usize, len: usize) -> Sge {
        let (mr, _) = self.lost.as_ref().unwrap();
        Sge {
            addr: mr.addr() + offset as u64,
            len: len as u32,
            lkey: mr.lkey(),
        }
    }

    /// Loses the memory behind the first `left` bytes.
    fn lose(&self, how: &str, left: usize) {
        let (mr, file) = self.lost.as_ref().unwrap();
        let start = ptr::with_exposed_provenance_mut(mr.addr() as usize + left);
        let len = LEN - left;
        // SAFETY: memory that `map` has made, and only the device uses.
        let result = unsafe {
            match how {
                "unmap" => libc::munmap(start, len),
                "protect" => libc::mprotect(start, len, libc::PROT_NONE),
                "readonly" => libc::mprotect(start, len, libc::PROT_READ),
                "truncate" => libc::ftruncate(
                    file.as_ref().unwrap().as_raw_fd(),
                    left.cast_signed() as i64,
                ),
                _ => panic!("{how}"),
            }
        };
        assert_eq!(result, 0);
    }
}

fn map(side: &Side, shared: bool) -> (Mr, Option<File>) {
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    let file = shared.then(|| {
        let file = tempfile::tempfile().unwrap();
        file.set_len(LEN as u64).unwrap();
        file
    });
    let (flags, fd) = match &file {
        Some(file) => (libc::MAP_SHARED, file.as_raw_fd()),
        None => (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1),
    };
    // SAFETY: a new mapping.
    let start = unsafe { libc::mmap(ptr::null_mut(), LEN, rights, flags, fd, 0) };
    assert_ne!(start, libc::MAP_FAILED);
    for (at, byte) in pattern(LEN, 5).into_iter().enumerate() {
        // SAFETY: inside the mapping.
        unsafe { start.cast::<u8>().add(at).write(byte) };
    }
    let addr = start.expose_provenance() as u64;
    // SAFETY: only the device uses it.
    let mr = unsafe { side.pd.reg_mr(addr, LEN, addr, ALL_ACCESS) }.unwrap();
    (mr, file)
}

fn use_handlers(whose: &str) {
    match whose {
        "ours" => {}
        "theirs" => {
            for signal in [libc::SIGSEGV, libc::SIGBUS] {
                // SAFETY: the handler only counts and exits.
                unsafe { libc::signal(signal, note as *const () as usize) };
            }
        }
        "blocked" => {
            // SAFETY: a sigset is plain data that sigfillset initialises.
            unsafe {
                let mut all = std::mem::zeroed();
                libc::sigfillset(&raw mut all);
                libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, ptr::null_mut());
            }
        }
        _ => panic!("{whose}"),
    }
}

/// A process that loses memory, and this process as its peer.
struct Case {
    site: Site,
    node: Node,
    link: LinkMode,
    how: &'static str,
    handlers: &'static str,
    /// Number of QPs of the node.
    qps: usize,
    healthy: Option<(Side, Remote)>,
}

impl Case {
    fn new(link: LinkMode, how: &'static str, handlers: &'static str) -> Self {
        let site = Site::new();
        let name = match link {
            LinkMode::Udp => "udp",
            _ => "shm",
        };
        let node = site.node_at(site.address, name);
        let mut case = Self {
            site,
            node,
            link,
            how,
            handlers,
            qps: 0,
            healthy: None,
        };
        let side = case.connect();
        case.healthy = Some(side);
        case
    }

    fn connect(&mut self) -> (Side, Remote) {
        let engine = match &self.healthy {
            Some((side, _)) => side.engine.clone(),
            None => self.site.engine(self.link),
        };
        let side = Side::on(engine, 2 * LEN);
        let remote = self.node.new_qp_with(16 << 10, self.qps);
        side.to_rts(remote.qpn, Gid::from_ip(self.site.address));
        self.node.connect_back(&side, remote);
        self.qps += 1;
        (side, remote)
    }

    /// Makes a connection, and memory of the node that is going to be lost. `remote` contains its
    /// address and key.
    fn doomed(&mut self) -> (Side, Remote) {
        let (side, mut remote) = self.connect();
        let answer = self
            .node
            .ask(&format!("victim map {} {}", remote.index, self.how));
        let (rkey, addr) = answer.split_once(' ').unwrap();
        remote.rkey = rocade_emulator::Rkey::new(rkey.parse().unwrap());
        remote.addr = addr.parse().unwrap();
        // At first all memory is accessible.
        let read = SendOp::Read {
            va: remote.addr,
            rkey: remote.rkey,
        };
        side.send(1, read, &[side.sge(0, LEN)]);
        assert_eq!(side.completion().status, WcStatus::Success);
        assert!(side.bytes(0, LEN) == pattern(LEN, 5));
        self.node.ask(&format!("victim handler {}", self.handlers));
        (side, remote)
    }

    fn lose(&mut self, left: usize) {
        self.node.ask(&format!("victim lose {} {left}", self.how));
    }

    /// The peer runs `op` on the lost memory.
    fn peer_does(&mut self, left: usize, op: impl Fn(Remote) -> SendOp, len: usize) {
        let (side, remote) = self.doomed();
        self.lose(left);
        side.send(9, op(remote), &[side.sge(LEN, len)]);
        let done = side.completion();
        let what = format!("{:?} {} {len} bytes, {left} left", op(remote), self.how);
        assert_eq!(
            (done.wr_id, done.status),
            (9, WcStatus::RemAccessErr),
            "{what}"
        );
        self.others_go_on();
    }

    /// The peer sends `len` bytes into lost memory.
    fn peer_sends(&mut self, left: usize, len: usize) {
        let (side, remote) = self.doomed();
        let index = remote.index;
        self.node.ask(&format!("victim recv {index} 5 0 {LEN}"));
        self.lose(left);
        side.send(9, SendOp::Send { imm: None }, &[side.sge(0, len)]);
        assert_eq!(side.completion().status, WcStatus::RemOpErr, "{len} {left}");
        let answer = self.node.ask(&format!("poll {index}"));
        assert!(answer.starts_with("5 LocProtErr"), "{answer}");
        self.others_go_on();
    }

    /// The node sends lost memory after accessible memory.
    fn node_sends(&mut self, left: usize, len: usize) {
        let (side, remote) = self.doomed();
        let index = remote.index;
        for at in [0, LEN] {
            let sge = side.sge(at, LEN);
            side.qp.recv_queue().push(at as u64, &[sge]).unwrap();
        }
        self.lose(left);
        self.node.ask(&format!("fill {index} 0 3000 1"));
        self.node.ask(&format!("send {index} 1 0 3000"));
        self.node.ask(&format!("victim send {index} 2 0 {len}"));
        assert_eq!(self.node.ask(&format!("poll {index}")), "1 Success 3000");
        let answer = self.node.ask(&format!("poll {index}"));
        assert!(answer.starts_with("2 LocProtErr"), "{answer}: {len} {left}");
        assert_eq!(side.completion().status, WcStatus::Success);
        assert!(side.bytes(0, 3000) == pattern(3000, 1));
        self.others_go_on();
    }

    /// The node requests the result of an operation into lost memory.
    fn node_gets(&mut self, what: &str, left: usize, len: usize) {
        let (side, remote) = self.doomed();
        let (index, va, rkey) = (remote.index, side.addr(0), side.mr.rkey().get());
        self.lose(left);
        self.node
            .ask(&format!("victim {what} {index} 2 {va} {rkey} {len}"));
        let answer = self.node.ask(&format!("poll {index}"));
        assert!(
            answer.starts_with("2 LocProtErr"),
            "{answer}: {what} {len} {left}"
        );
        self.others_go_on();
    }

    fn others_go_on(&mut self) {
        let (side, remote) = self.healthy.as_ref().unwrap();
        side.fill(0, &pattern(9000, 3));
        crate::write(side, *remote, 4, 0, 50, 9000);
        crate::assert_success(side, 4);
        assert_eq!(self.node.ask("check 0 50 9000 3"), "true");
        self.node.ask("send 0 7 50 9000");
        // Posted perhaps after the message has arrived. Then the sender retries.
        side.qp.recv_queue().push(6, &[side.sge(0, 9000)]).unwrap();
        assert_eq!(side.completion().status, WcStatus::Success);
        assert_eq!(self.node.ask("poll 0"), "7 Success 9000");
    }

    fn everything(&mut self) {
        let read = |remote: Remote| SendOp::Read {
            va: remote.addr,
            rkey: remote.rkey,
        };
        let write = |remote: Remote| SendOp::Write {
            va: remote.addr,
            rkey: remote.rkey,
            imm: None,
        };
        let add = |remote: Remote| SendOp::FetchAdd {
            va: remote.addr,
            rkey: remote.rkey,
            add: 1,
        };
        let readable = self.how == "readonly";
        let all = [(0, 8), (STAYS, LEN), (0, 100), (0, 5000)];
        // If the kernel copies, the lengths in between make no difference.
        let count = if self.handlers == "ours" { 4 } else { 2 };
        for (left, len) in all.into_iter().take(count) {
            self.peer_does(left, write, len);
            self.peer_sends(left, len);
            self.node_gets("read", left, len);
            if !readable {
                self.peer_does(left, read, len);
                self.node_sends(left, len);
            }
        }
        self.peer_does(0, add, 8);
        self.node_gets("add", 0, 8);
    }
}

fn everything(link: LinkMode, how: &'static str) {
    Case::new(link, how, "ours").everything();
}

//= ODP-04 type=test
#[test]
fn unmapped_over_udp() {
    everything(LinkMode::Udp, "unmap");
}

//= ODP-04 type=test
#[test]
fn unmapped_in_shared_memory() {
    everything(LinkMode::Shm, "unmap");
}

/// With an MTU of 1024: one packet, full and short. Then several packets, the last of which is
/// full, short, or so short that it is copied before the others.
//= RC-RSP-22 type=test
#[test]
fn a_read_of_any_length_is_refused() {
    for link in [LinkMode::Udp, LinkMode::Shm] {
        let mut case = Case::new(link, "unmap", "ours");
        for (left, len) in [
            (0, 8),
            (0, 1024),
            (0, 4096),
            (0, 5000),
            (0, 5128),
            (0, 8200),
            (4096, 5128),
            (STAYS, 180 * 1024 + 8),
        ] {
            let read = |remote: Remote| SendOp::Read {
                va: remote.addr,
                rkey: remote.rkey,
            };
            case.peer_does(left, read, len);
            case.node_sends(left, len);
        }
    }
}

#[test]
fn protected_over_udp() {
    everything(LinkMode::Udp, "protect");
}

#[test]
fn protected_in_shared_memory() {
    everything(LinkMode::Shm, "protect");
}

#[test]
fn read_only_over_udp() {
    everything(LinkMode::Udp, "readonly");
}

#[test]
fn read_only_in_shared_memory() {
    everything(LinkMode::Shm, "readonly");
}

#[test]
fn truncated_over_udp() {
    everything(LinkMode::Udp, "truncate");
}

#[test]
fn truncated_in_shared_memory() {
    everything(LinkMode::Shm, "truncate");
}

#[test]
fn the_program_has_put_its_own_handlers_in_the_place_of_ours() {
    for link in [LinkMode::Udp, LinkMode::Shm] {
        Case::new(link, "unmap", "theirs").everything();
        Case::new(link, "truncate", "theirs").everything();
    }
}

#[test]
fn the_program_blocks_the_signals() {
    for link in [LinkMode::Udp, LinkMode::Shm] {
        Case::new(link, "unmap", "blocked").everything();
        Case::new(link, "truncate", "blocked").everything();
    }
}

/// Memory is lost during streams of messages into it and out of it.
fn in_mid_flow(link: LinkMode, how: &'static str) {
    const COUNT: u64 = 60;
    let mut case = Case::new(link, how, "ours");
    for reads in [false, true] {
        let (side, remote) = case.doomed();
        let (va, rkey) = (remote.addr, remote.rkey);
        for wr_id in 0..COUNT {
            let op = if reads {
                SendOp::Read { va, rkey }
            } else {
                SendOp::Write {
                    va,
                    rkey,
                    imm: None,
                }
            };
            side.send(wr_id, op, &[side.sge(0, LEN)]);
            if wr_id == COUNT / 2 {
                case.node.say(&format!("victim lose {how} {STAYS}"));
            }
        }
        assert_eq!(case.node.answer(), "lost");
        let mut failed = None;
        for wr_id in 0..COUNT {
            let wc = side.completion();
            assert_eq!(wc.wr_id, wr_id);
            match wc.status {
                WcStatus::Success if failed.is_none() => {}
                WcStatus::RemAccessErr if failed.is_none() => failed = Some(wr_id),
                WcStatus::WrFlushErr if failed.is_some() => {}
                other => panic!("{wr_id}: {other:?}, failed: {failed:?}"),
            }
        }
        // All may have been complete when the memory was lost. Then the next request fails.
        if failed.is_none() {
            side.send(COUNT, SendOp::Read { va, rkey }, &[side.sge(0, LEN)]);
            assert_eq!(side.completion().status, WcStatus::RemAccessErr);
        }
        case.others_go_on();
    }
}

#[test]
fn lost_in_mid_flow() {
    for link in [LinkMode::Udp, LinkMode::Shm] {
        in_mid_flow(link, "unmap");
        in_mid_flow(link, "truncate");
    }
}
