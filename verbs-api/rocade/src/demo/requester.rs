//! The first process, which starts the second one and requests all operations.

use std::io::Read as _;
use std::net::IpAddr;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use rocade_emulator::config::Settings;
use rocade_verbs::{
    ConnectOptions, Endpoint, QueuePair, RemoteMemory, SendRequest, Sge, UnconnectedQueuePair,
};

use super::control_pipe::{ControlPipe, PeerCommand};
use super::report::{Report, Row};
use super::{
    ATOMICS, BULK_COUNT, BULK_LEN, COUNTER, LAST_PING, PART_LIMIT, PATIENCE, PING_LEN, PINGS,
    ROUNDS, Side, WINDOW, pattern,
};
use crate::error::CliError;
use crate::output;

/// The offset of the results of atomics in the small memory.
const RESULT: usize = 2048;

/// The second process, which is killed when this value is dropped.
struct Peer {
    child: Child,
}

impl Drop for Peer {
    fn drop(&mut self) {
        // After an orderly end the process has exited, and these calls fail without harm.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The connection and the memory of the peer.
struct Demo {
    side: Side,
    qp: QueuePair,
    pipe: ControlPipe<ChildStdout, ChildStdin>,
    peer_bulk: RemoteMemory,
    peer_small: RemoteMemory,
    /// The series of the last bulk messages.
    seed: u64,
}

/// Runs the demo and prints the results.
pub(super) fn run(addr: IpAddr, settings: &Settings) -> Result<(), CliError> {
    let begin = Instant::now();
    output::line(format_args!(
        "Rocade demo: two processes on {addr} exchange data over RoCEv2\n"
    ))?;
    // First, so that a configuration error is reported only once.
    let side = Side::new(addr, settings)?;
    let qp = side.queue_pair()?;
    let (mut peer, pipe) = start_peer(addr)?;
    let mut demo = connect(side, qp, pipe)?;
    output::line(format_args!(
        "  requester  pid {:<8} QP {:#08x}\n  responder  pid {:<8} QP {:#08x}   path MTU {} bytes\n",
        std::process::id(),
        demo.qp.qp_num().get(),
        peer.child.id(),
        demo.qp.peer().qp_num.get(),
        demo.qp.peer().mtu.bytes(),
    ))?;
    let mut report = Report::default();
    report.part("SEND", || demo.sends())?;
    report.part("WRITE", || demo.writes())?;
    report.part("READ", || demo.reads())?;
    report.part("CmpSwap", || demo.compare_swaps())?;
    report.part("FetchAdd", || demo.fetch_adds())?;
    report.part("SEND, ping-pong", || demo.ping_pong())?;
    tracing::debug!(counters = ?demo.qp.counters(), "requester");
    let counters = demo.side.devices.engine_counters();
    demo.pipe.command(PeerCommand::Quit)?;
    drop(demo);
    peer.child.wait().map_err(rocade_verbs::Error::from)?;
    report.print(begin.elapsed(), &counters)
}

fn start_peer(addr: IpAddr) -> Result<(Peer, ControlPipe<ChildStdout, ChildStdin>), CliError> {
    let failed = |error: std::io::Error| {
        CliError::new(format!(
            "failed to start the second process of the demo: {error}"
        ))
    };
    let exe = std::env::current_exe().map_err(failed)?;
    let mut child = Command::new(exe)
        .args(["demo", "--peer", "--ip", &addr.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    let pipes = child.stdout.take().zip(child.stdin.take());
    let peer = Peer { child };
    let (from, to) = pipes.ok_or_else(|| CliError::new("the second process has no pipes"))?;
    Ok((peer, ControlPipe::new(from, to)))
}

fn connect(
    side: Side,
    qp: UnconnectedQueuePair,
    mut pipe: ControlPipe<ChildStdout, ChildStdin>,
) -> Result<Demo, CliError> {
    let (from, to) = pipe.streams();
    let other: Endpoint = qp.endpoint().exchange(&mut *from, to)?;
    let mut memory = || {
        let mut bytes = [0; RemoteMemory::ENCODED_LEN];
        from.read_exact(&mut bytes)
            .map_err(rocade_verbs::Error::from)?;
        Ok::<_, CliError>(RemoteMemory::from_bytes(&bytes))
    };
    let (peer_bulk, peer_small) = (memory()?, memory()?);
    let qp = qp.connect(other, &ConnectOptions::default())?;
    pipe.expect_ok()?;
    Ok(Demo {
        side,
        qp,
        pipe,
        peer_bulk,
        peer_small,
        seed: 0,
    })
}

impl Demo {
    /// Sends small messages one after the other. Half of the round trip is the latency.
    fn ping_pong(&mut self) -> Result<Row, CliError> {
        self.side.post_ping_receives(&self.qp)?;
        self.pipe.command(PeerCommand::Pong)?;
        let begin = Instant::now();
        let mut ping = [0; PING_LEN];
        let mut number = 0;
        loop {
            pattern::fill(&mut ping, 0, number);
            let last = number + 1 == PINGS || begin.elapsed() >= PART_LIMIT;
            let imm = if last { LAST_PING } else { *b"more" };
            self.qp
                .post_send(&SendRequest::send_inline(&ping).imm(imm))?;
            let (_, answer) = self.side.take_ping(&self.qp)?;
            if answer != ping {
                return Err(CliError::new(format!(
                    "the data of answer {number} are wrong"
                )));
            }
            number += 1;
            if last {
                break;
            }
        }
        let took = begin.elapsed();
        self.pipe.expect_ok()?;
        self.drain_sends()?;
        Ok(Row::latency(
            PING_LEN,
            number,
            took / 2,
            "every byte, half a round trip",
        ))
    }

    /// Waits for the completion of the last ping, which may follow the answer.
    fn drain_sends(&self) -> Result<(), CliError> {
        self.qp
            .post_send(&SendRequest::read(&[], self.peer_small).wr_id(u64::MAX))?;
        while self.side.cq.wait(PATIENCE)?.wr_id != u64::MAX {}
        Ok(())
    }

    fn sends(&mut self) -> Result<Row, CliError> {
        self.rounds(|demo, seed| {
            demo.side.fill_bulk(seed)?;
            demo.pipe.command(PeerCommand::Receive(seed))?;
            let took = demo.bulk(|sges, _| SendRequest::send(sges))?;
            demo.pipe.expect_ok()?;
            Ok(took)
        })
    }

    fn writes(&mut self) -> Result<Row, CliError> {
        self.rounds(|demo, seed| {
            demo.side.fill_bulk(seed)?;
            let took = demo.bulk(|sges, to| SendRequest::write(sges, to))?;
            demo.pipe.command(PeerCommand::Check(seed))?;
            Ok(took)
        })
    }

    fn reads(&mut self) -> Result<Row, CliError> {
        self.rounds(|demo, seed| {
            demo.pipe.command(PeerCommand::Fill(seed))?;
            let took = demo.bulk(|sges, from| SendRequest::read(sges, from))?;
            match demo.side.check_bulk(seed)? {
                Some(problem) => Err(CliError::new(format!("READ: {problem}"))),
                None => Ok(took),
            }
        })
    }

    /// Runs up to [`ROUNDS`] rounds of bulk messages. `round` gets an unused seed, and returns the
    /// duration of the messages without the creation and the check of their bytes.
    fn rounds(
        &mut self,
        mut round: impl FnMut(&mut Self, u64) -> Result<Duration, CliError>,
    ) -> Result<Row, CliError> {
        let begin = Instant::now();
        let mut took = Duration::ZERO;
        let mut count = 0;
        while count < ROUNDS && begin.elapsed() < PART_LIMIT {
            self.seed += 1;
            took += round(self, self.seed)?;
            count += 1;
        }
        Ok(Row::bulk(
            BULK_LEN,
            count * BULK_COUNT as u64,
            took,
            "every byte",
        ))
    }

    /// Runs one round of bulk messages with [`WINDOW`] outstanding requests, and returns its
    /// duration.
    fn bulk(
        &self,
        request: impl for<'a> Fn(&'a [Sge], RemoteMemory) -> SendRequest<'a>,
    ) -> Result<Duration, CliError> {
        let begin = Instant::now();
        for index in 0..BULK_COUNT {
            if index >= WINDOW {
                self.side.cq.wait(PATIENCE)?;
            }
            let place = Side::place(index);
            let remote = self.peer_bulk.at(place.start as u64);
            let local = [self.side.bulk.sge(place)?];
            self.qp.post_send(&request(&local, remote))?;
        }
        self.side.cq.wait_for(WINDOW, PATIENCE)?;
        Ok(begin.elapsed())
    }

    /// Increments the counter by compare-and-swap. Every other operation compares with a wrong
    /// value and must change nothing.
    fn compare_swaps(&mut self) -> Result<Row, CliError> {
        let mut value = 0u64;
        let (count, took) = self.atomics(|demo, number| {
            let right = number % 2 == 0;
            let compare = if right { value } else { value.wrapping_add(7) };
            let found = demo
                .atomic(|result, at| SendRequest::compare_swap(result, at, compare, value + 1))?;
            if found != value {
                return Err(CliError::new(format!(
                    "CmpSwap returned {found}, not {value}"
                )));
            }
            value += u64::from(right);
            Ok(())
        })?;
        self.pipe.command(PeerCommand::Counter(value))?;
        Ok(Row::latency(8, count, took, "old values, and the last one"))
    }

    fn fetch_adds(&mut self) -> Result<Row, CliError> {
        /// A large value, so that the sum exceeds 64 bits.
        const ADD: u64 = 0x0123_4567_89ab_cdef;
        let mut sum = 0u64;
        let (count, took) = self.atomics(|demo, _| {
            let found = demo.atomic(|result, at| SendRequest::fetch_add(result, at, ADD))?;
            if found != sum {
                return Err(CliError::new(format!(
                    "FetchAdd returned {found:#x}, not {sum:#x}"
                )));
            }
            sum = sum.wrapping_add(ADD);
            Ok(())
        })?;
        self.pipe.command(PeerCommand::Counter(sum))?;
        Ok(Row::latency(8, count, took, "old values, and the sum"))
    }

    /// Repeats `one`, and returns the number of repetitions and the duration.
    fn atomics(
        &self,
        mut one: impl FnMut(&Self, u64) -> Result<(), CliError>,
    ) -> Result<(u64, Duration), CliError> {
        let begin = Instant::now();
        let mut count = 0;
        while count < ATOMICS && begin.elapsed() < PART_LIMIT {
            one(self, count)?;
            count += 1;
        }
        Ok((count, begin.elapsed()))
    }

    /// Executes one atomic operation on the peer's counter, and returns the result.
    fn atomic(
        &self,
        request: impl for<'a> Fn(&'a [Sge], RemoteMemory) -> SendRequest<'a>,
    ) -> Result<u64, CliError> {
        let result = [self.side.small.sge(RESULT..RESULT + 8)?];
        self.qp
            .post_send(&request(&result, self.peer_small.at(COUNTER as u64)))?;
        self.side.cq.wait(PATIENCE)?;
        Ok(self.side.small.load_u64(RESULT)?)
    }
}
