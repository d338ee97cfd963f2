//! The measurements: floors (limits of the machine) and Rocade.

pub(crate) mod connect;
pub(crate) mod copy;
pub(crate) mod echo;
pub(crate) mod exchange;
pub(crate) mod guest;
pub(crate) mod offload;
pub(crate) mod perftest;
pub(crate) mod ping_pong;
pub(crate) mod scale;
pub(crate) mod stream;
pub(crate) mod sum;
pub(crate) mod tally;

use self::{
    exchange::Exchange, guest::Provider, offload::What, perftest::Perftest, ping_pong::Wait,
    stream::Flow, tally::Event,
};
use crate::{
    child::Failure,
    rig::{Link, Rig},
};

const BITS_PER_GBIT: f64 = 8.0 / 1e9;

/// A measurement that returns one figure.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Probe {
    /// A raw UDP stream: Gbit/s of payload.
    Stream {
        segment_len: u16,
        segments: u16,
        flow: Flow,
    },
    /// A raw UDP stream: 10^6 datagrams per second.
    StreamRate {
        segment_len: u16,
        segments: u16,
        flow: Flow,
    },
    /// A raw UDP ping-pong: microseconds for half a round trip.
    PingPong { wait: Wait, len: usize },
    /// A memcpy of 1 MiB blocks between two processes: Gbit/s.
    Copy { copies: usize },
    /// A copy of 4 KiB with its ICRC, computed by the named backend: Gbit/s.
    Sum { way: &'static str },
    /// A copy of 4 KiB: Gbit/s.
    BareCopy,
    /// A program of perftest on Rocade.
    Perftest(Perftest, Link),
    /// WRITEs of 64 KiB over this many QPs in turn: Gbit/s.
    RoundRobin { queue_pairs: u32 },
    /// The memory per idle QP: KiB.
    IdleQp,
    /// TCP connections opened and closed: 10^3 per second.
    TcpConnections,
    /// Connections opened and closed by the connection manager: 10^3 per second.
    Connections,
    /// An operation that only QPs have, or the plain operation with the same result.
    Offload { what: What, count: u32 },
    /// A program of perftest in the guest.
    InGuest(Perftest, Provider),
    /// Messages to and fro beside this number of busy loops: microseconds per direction.
    Exchange(Exchange, u32),
    /// System calls or context switches of both processes per message.
    Tally(Event, Exchange),
}

impl Probe {
    /// Performs a single measurement.
    pub(crate) fn measure(&self, rig: &Rig) -> Result<f64, Failure> {
        match *self {
            Self::Stream {
                segment_len,
                segments,
                flow,
            } => stream::bytes_per_second(segment_len, segments, flow, rig.duration())
                .map(|bytes| bytes * BITS_PER_GBIT),
            Self::StreamRate {
                segment_len,
                segments,
                flow,
            } => stream::bytes_per_second(segment_len, segments, flow, rig.duration())
                .map(|bytes| bytes / f64::from(segment_len) / 1e6),
            Self::PingPong { wait, len } => {
                ping_pong::half_round_trip(wait, len, rig.count(20_000))
            }
            Self::Copy { copies } => copy::bytes_per_second(1 << 20, rig.count(5000), copies)
                .map(|bytes| bytes * BITS_PER_GBIT),
            Self::Sum { way } => sum::bytes_per_second(way).map(|bytes| bytes * BITS_PER_GBIT),
            Self::BareCopy => Ok(sum::copied_per_second() * BITS_PER_GBIT),
            Self::Perftest(program, link) => program.measure(rig, link),
            Self::RoundRobin { queue_pairs } => {
                scale::round_robin(rig, queue_pairs).map(|bytes| bytes * BITS_PER_GBIT)
            }
            Self::IdleQp => scale::idle_kib(rig),
            Self::TcpConnections => connect::by_tcp(rig.count(10_000)),
            Self::Connections => connect::by_manager(rig, rig.count(5_000)),
            Self::Offload { what, count } => offload::measure(rig, what, rig.count(count)),
            Self::Exchange(exchange, loops) => exchange.micros(rig, loops),
            Self::Tally(event, exchange) => tally::measure(rig, event, exchange),
            Self::InGuest(program, provider) => {
                rig.guest()?
                    .measure(&program, provider, rig.count(program.iterations))
            }
        }
    }
}
