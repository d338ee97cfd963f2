//! Floors: half round trips of one datagram between two processes, with three ways to wait for it.

use std::{
    io::{self, ErrorKind},
    net::{Ipv4Addr, SocketAddr, UdpSocket},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use clap::ValueEnum;

use crate::{
    child::{Failure, Peer},
    figures,
};

const LIMIT: Duration = Duration::from_secs(20);
/// A datagram on the loopback interface that takes longer than this is lost.
const LOST: Duration = Duration::from_secs(2);
/// The length of RoCEv2's UDP payload for a SEND of 8 bytes: BTH 12, data 8, ICRC 4.
pub(crate) const SMALL_LEN: usize = 24;

/// The way in which an end waits for the datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Wait {
    /// Spins on a non-blocking receive.
    Spin,
    /// Spins on memory that is written by another thread, which blocks in receive.
    Memory,
    /// Blocks in receive.
    Block,
}

impl Wait {
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Spin => "spin",
            Self::Memory => "memory",
            Self::Block => "block",
        }
    }
}

/// Returns the median half round trip in microseconds over `count` round trips.
pub(crate) fn half_round_trip(wait: Wait, len: usize, count: u32) -> Result<f64, Failure> {
    let echo = Peer::part(&["echo", wait.word(), &len.to_string()])?;
    let port: u16 = echo.value(LIMIT)?;
    let mut halves =
        trips(wait, len, count, port).map_err(|error| format!("{}: {error}", wait.word()))?;
    figures::median(&mut halves).ok_or_else(|| "no round trip".to_owned())
}

fn trips(wait: Wait, len: usize, count: u32, port: u16) -> io::Result<Vec<f64>> {
    let mut end = End::new(wait, len, LOST)?;
    let to = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let warm_up = count / 10;
    let mut halves = Vec::new();
    for event in 0..count + warm_up {
        let began = Instant::now();
        end.send(to)?;
        end.receive()?;
        if event >= warm_up {
            halves.push(began.elapsed().as_secs_f64() * 1e6 / 2.0);
        }
    }
    Ok(halves)
}

/// Runs the other process: prints its port and returns every datagram, until it is killed or
/// receives none for a while.
pub(crate) fn echo(wait: Wait, len: usize) -> Result<(), Failure> {
    let serve = || -> io::Result<()> {
        let mut end = End::new(wait, len, LIMIT)?;
        println!("{}", end.socket.local_addr()?.port());
        loop {
            let from = end.receive()?;
            end.send(from)?;
        }
    };
    match serve() {
        Err(error) if error.kind() != ErrorKind::TimedOut => Err(error.to_string()),
        _ => Ok(()),
    }
}

/// One end of the ping-pong. The sockets are not connected, like those of RoCEv2.
#[derive(Debug)]
struct End {
    wait: Wait,
    socket: UdpSocket,
    buffer: Vec<u8>,
    /// For [`Wait::Memory`]: the port of the sender in the low 16 bits, and the number of received
    /// datagrams above.
    arrived: Arc<AtomicU64>,
    seen: u64,
    limit: Duration,
}

impl End {
    fn new(wait: Wait, len: usize, limit: Duration) -> io::Result<Self> {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        let arrived = Arc::new(AtomicU64::new(0));
        match wait {
            Wait::Spin => socket.set_nonblocking(true)?,
            Wait::Block => socket.set_read_timeout(Some(limit))?,
            Wait::Memory => {
                let (socket, arrived) = (socket.try_clone()?, Arc::clone(&arrived));
                let mut buffer = vec![0; len];
                // The thread ends with the process.
                thread::spawn(move || {
                    for count in 1u64.. {
                        let Ok((_, from)) = socket.recv_from(&mut buffer) else {
                            return;
                        };
                        arrived.store(count << 16 | u64::from(from.port()), Ordering::Release);
                    }
                });
            }
        }
        Ok(Self {
            wait,
            socket,
            buffer: vec![0; len],
            arrived,
            seen: 0,
            limit,
        })
    }

    fn send(&self, to: SocketAddr) -> io::Result<()> {
        self.socket.send_to(&self.buffer, to).map(drop)
    }

    /// Waits for a datagram and returns its source.
    fn receive(&mut self) -> io::Result<SocketAddr> {
        if self.wait == Wait::Block {
            let (_, from) = self
                .socket
                .recv_from(&mut self.buffer)
                .map_err(|error| match error.kind() {
                    ErrorKind::WouldBlock => ErrorKind::TimedOut.into(),
                    _ => error,
                })?;
            return Ok(from);
        }
        let mut spins = 0u32;
        let mut deadline = None;
        loop {
            if let Some(from) = self.poll()? {
                return Ok(from);
            }
            std::hint::spin_loop();
            spins = spins.wrapping_add(1);
            // The clock is read rarely, so that it does not affect the measurement.
            if spins.is_multiple_of(1 << 12) {
                let now = Instant::now();
                if now > *deadline.get_or_insert(now + self.limit) {
                    return Err(ErrorKind::TimedOut.into());
                }
            }
        }
    }

    fn poll(&mut self) -> io::Result<Option<SocketAddr>> {
        if self.wait == Wait::Memory {
            let now = self.arrived.load(Ordering::Acquire);
            if now == self.seen {
                return Ok(None);
            }
            self.seen = now;
            let [low, high, ..] = now.to_le_bytes();
            let port = u16::from_le_bytes([low, high]);
            return Ok(Some((Ipv4Addr::LOCALHOST, port).into()));
        }
        match self.socket.recv_from(&mut self.buffer) {
            Ok((_, from)) => Ok(Some(from)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }
}
