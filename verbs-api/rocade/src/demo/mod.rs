//! `rocade demo`: two processes exchange data over RoCEv2 and check every byte.
//!
//! The command starts a second process of itself. The first process is the requester of all
//! operations. The second process receives, checks what arrived, and reports over a pipe. Both use
//! the safe Rust API for their NIC, and the broker lets them share one address.

mod control_pipe;
mod pattern;
mod peer;
mod report;
mod requester;

use std::net::IpAddr;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use rocade_emulator::config::{BrokerMode, EngineConfig, Settings};
use rocade_verbs::{
    AccessFlags, BuildError, Completion, CompletionQueue, DeviceList, MemoryRegion,
    ProtectionDomain, QueuePair, UnconnectedQueuePair,
};

use crate::cli::DemoArgs;
use crate::error::CliError;

/// The size of a bulk message in bytes.
const BULK_LEN: usize = 64 << 10;
/// The number of bulk messages per round. Each message has its own memory, so that all can be
/// checked.
const BULK_COUNT: usize = 256;
/// The number of bulk rounds of each operation.
const ROUNDS: u64 = 8;
/// The maximum number of outstanding bulk requests.
const WINDOW: usize = 16;
/// The size of a ping-pong message in bytes.
const PING_LEN: usize = 64;
/// The number of receive buffers of the ping-pong, which lie at the start of the small memory.
const PING_BUFFERS: usize = 4;
/// The immediate data of the last ping.
const LAST_PING: [u8; 4] = *b"last";
/// The offset of the atomic counter in the peer's small memory.
const COUNTER: usize = 1024;
/// The number of ping-pong round trips.
const PINGS: u64 = 20_000;
/// The number of atomic operations of each kind.
const ATOMICS: u64 = 10_000;
/// The time limit of a part. On a slow machine, a part ends early.
const PART_LIMIT: Duration = Duration::from_millis(1200);
/// The time limit for one completion.
const PATIENCE: Duration = Duration::from_secs(5);

/// The NIC objects of one process, before the connection.
struct Side {
    devices: DeviceList,
    pd: ProtectionDomain,
    cq: CompletionQueue,
    /// Memory for the bulk messages of a round.
    bulk: MemoryRegion,
    /// Memory for small messages and for the results of atomics.
    small: MemoryRegion,
}

impl Side {
    fn new(addr: IpAddr, settings: &Settings) -> Result<Self, CliError> {
        let mut broker = settings.broker_config();
        if broker.command.is_none()
            && let Ok(exe) = std::env::current_exe()
        {
            broker.command = Some(vec![exe.into(), "broker".into(), "serve".into()]);
        }
        let device = Settings::from_flags(&[], Some(&addr.to_string()))?;
        let config = EngineConfig {
            broker: BrokerMode::Auto(broker),
            link: settings.link(),
            peers: settings.peers(),
            capture: settings.capture().map(Path::to_owned),
            faults: settings.faults().to_vec(),
            ..device.resolve_here()?
        };
        let devices = DeviceList::new(config.into())?;
        let pd = devices.open_first()?.protection_domain()?;
        let cq = pd
            .context()
            .completion_queue(2 * u32::try_from(BULK_COUNT).unwrap_or(u32::MAX))?;
        let access = AccessFlags::LOCAL_WRITE
            | AccessFlags::REMOTE_WRITE
            | AccessFlags::REMOTE_READ
            | AccessFlags::REMOTE_ATOMIC;
        let bulk = pd.register(BULK_COUNT * BULK_LEN, access)?;
        let small = pd.register(4096, access)?;
        Ok(Self {
            devices,
            pd,
            cq,
            bulk,
            small,
        })
    }

    fn queue_pair(&self) -> Result<UnconnectedQueuePair, BuildError> {
        let depth = u32::try_from(BULK_COUNT).unwrap_or(u32::MAX);
        self.pd.queue_pair(&self.cq).depth(depth, depth).build()
    }

    /// Posts the receives of the ping-pong. They stay posted, so that only pings can be sent
    /// afterwards.
    fn post_ping_receives(&self, qp: &QueuePair) -> Result<(), CliError> {
        for buffer in 0..PING_BUFFERS {
            qp.post_recv(buffer as u64, &[self.small.sge(ping_place(buffer))?])?;
        }
        Ok(())
    }

    /// Waits for the next ping, and returns its completion and bytes. Posts the receive again, and
    /// skips completions of sends.
    fn take_ping(&self, qp: &QueuePair) -> Result<(Completion, [u8; PING_LEN]), CliError> {
        loop {
            let completion = self.cq.wait(PATIENCE)?;
            if completion.is_send {
                continue;
            }
            let place = ping_place(usize::try_from(completion.wr_id).unwrap_or(0));
            let mut data = [0; PING_LEN];
            self.small.read(place.start, &mut data)?;
            qp.post_recv(completion.wr_id, &[self.small.sge(place)?])?;
            return Ok((completion, data));
        }
    }

    /// Waits for the completions of `count` receives, and skips those of sends.
    fn take_receives(&self, count: usize) -> Result<(), CliError> {
        let mut received = 0;
        while received < count {
            received += usize::from(!self.cq.wait(PATIENCE)?.is_send);
        }
        Ok(())
    }

    /// Fills the bulk memory with the messages of the series `seed`.
    fn fill_bulk(&self, seed: u64) -> Result<(), CliError> {
        let mut data = vec![0; BULK_LEN];
        for index in 0..BULK_COUNT {
            pattern::fill(&mut data, seed, index as u64);
            self.bulk.write(Self::place(index).start, &data)?;
        }
        Ok(())
    }

    /// Returns an error text if the bulk memory does not contain the series `seed`.
    fn check_bulk(&self, seed: u64) -> Result<Option<String>, CliError> {
        let mut expected = vec![0; BULK_LEN];
        let mut found = vec![0; BULK_LEN];
        for index in 0..BULK_COUNT {
            pattern::fill(&mut expected, seed, index as u64);
            self.bulk.read(Self::place(index).start, &mut found)?;
            if let Some(at) = expected.iter().zip(&found).position(|(a, b)| a != b) {
                return Ok(Some(format!("byte {at} of message {index} is wrong")));
            }
        }
        Ok(None)
    }

    /// Returns the range of bulk message `index`.
    const fn place(index: usize) -> std::ops::Range<usize> {
        index * BULK_LEN..(index + 1) * BULK_LEN
    }
}

/// `rocade demo`.
pub(crate) fn run(args: &DemoArgs, settings: &Settings) -> Result<ExitCode, CliError> {
    let done = if args.peer {
        peer::run(args.ip, settings)
    } else {
        requester::run(args.ip, settings)
    };
    done.map(|()| ExitCode::SUCCESS)
}

/// Returns the range of a ping-pong receive buffer in the small memory.
const fn ping_place(buffer: usize) -> std::ops::Range<usize> {
    buffer * PING_LEN..(buffer + 1) * PING_LEN
}
