//! Operations of QPs that sockets lack, compared with plain operations with the same result. Both
//! ends are in one process, over UDP, and a single thread polls them.

use std::{
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use rocade_verbs::{
    AccessFlags, CompletionQueue, Config, ConnectOptions, CrossChannel, DeviceList, ManagedQueue,
    ProtectionDomain, QueuePair, SendRequest, TaskGroup,
};

use crate::{
    child::{self, Failure, Peer},
    figures::float,
    rig::{Link, Rig},
};

const LIMIT: Duration = Duration::from_secs(60);
const PATIENCE: Duration = Duration::from_secs(10);
/// The bytes of a gathered message, and of each of its segments.
const GATHERED: usize = 64 << 10;
const SEGMENT: usize = 1 << 10;
/// The number of messages in flight.
const WINDOW: u32 = 16;
const KEY: u64 = 0x7065_7266;
const MASTER: CrossChannel = CrossChannel {
    is_master: true,
    managed_send: false,
    managed_recv: false,
    sends_untaken: false,
    receives_untaken: false,
};

/// The repeated operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum What {
    /// A memory window of 4 KiB is bound and invalidated: 10^3 per second.
    Bind,
    /// A memory region of 4 KiB is registered and deregistered: 10^3 per second.
    Register,
    /// WRITEs of 64 KiB from 64 segments behind one indirect key: Gbit/s.
    Gather,
    /// WRITEs of 64 KiB from one segment: Gbit/s.
    Contiguous,
    /// WRITEs of 64 B over DC, each to the next of 16 targets: 10^6 per second.
    Switch,
    /// WRITEs of 64 B over DC to one target: 10^6 per second.
    Stay,
    /// A message and its reply, which was posted before and is released by a WAIT and an ENABLE:
    /// microseconds.
    Chain,
    /// A message and its reply, which is posted when the completion has been polled: microseconds.
    Cpu,
}

/// Measures in a separate process.
pub(crate) fn measure(rig: &Rig, what: What, count: u32) -> Result<f64, Failure> {
    let mut command: Command = child::part_command()?;
    rig.engine_environment(&mut command, Link::Udp);
    let name = clap::ValueEnum::to_possible_value(&what).ok_or("no name")?;
    command.args(["offload", name.get_name(), &count.to_string()]);
    let part = Peer::start(command, Stdio::inherit())?;
    let figure = part.value(LIMIT)?;
    part.finish(LIMIT)?;
    Ok(figure)
}

/// Runs the separate process.
pub(crate) fn run(what: What, count: u32) -> Result<(), Failure> {
    let specs = ["here=127.0.81.1", "there=127.0.81.2"];
    let config = Config::from_specs(&specs).map_err(text)?;
    let list = DeviceList::new(config).map_err(text)?;
    let open = |name| {
        let nic = list.open(name).map_err(text)?;
        nic.protection_domain().map_err(text)
    };
    let (here, there) = (open("here")?, open("there")?);
    let figure = match what {
        What::Bind => bind(&here, &there, count),
        What::Register => register(&here, count),
        What::Gather | What::Contiguous => write(&here, &there, what == What::Gather, count),
        What::Switch => dynamic(&here, &there, 16, count),
        What::Stay => dynamic(&here, &there, 1, count),
        What::Chain | What::Cpu => answers(&here, &there, what == What::Chain, count),
    };
    println!("{}", figure?);
    Ok(())
}

/// Returns two connected QPs. The second one has cross-channel support if `cross` is given.
fn pair(
    (here, cq): (&ProtectionDomain, &CompletionQueue),
    (there, sends, receives): (&ProtectionDomain, &CompletionQueue, &CompletionQueue),
    cross_channel: Option<CrossChannel>,
) -> Result<(QueuePair, QueuePair), Failure> {
    let a = here.queue_pair(cq).depth(128, 128).build().map_err(text)?;
    let b = there.queue_pair(sends).recv_cq(receives).depth(128, 128);
    let b = match cross_channel {
        Some(how) => b.cross_channel(how),
        None => b,
    };
    let b = b.build().map_err(text)?;
    let (a_end, b_end) = (a.endpoint(), b.endpoint());
    let options = ConnectOptions::default();
    let a = a.connect(b_end, &options).map_err(text)?;
    let b = b.connect(a_end, &options).map_err(text)?;
    Ok((a, b))
}

/// Returns how often per second `each` runs, divided by `unit`.
fn rate(
    count: u32,
    unit: f64,
    mut each: impl FnMut() -> Result<(), Failure>,
) -> Result<f64, Failure> {
    for _ in 0..count / 10 {
        each()?;
    }
    let began = Instant::now();
    for _ in 0..count {
        each()?;
    }
    Ok(f64::from(count) / began.elapsed().as_secs_f64() / unit)
}

fn bind(here: &ProtectionDomain, there: &ProtectionDomain, count: u32) -> Result<f64, Failure> {
    let cq = here.context().completion_queue(16).map_err(text)?;
    let other = there.context().completion_queue(16).map_err(text)?;
    let (qp, _peer) = pair((here, &cq), (there, &other, &other), None)?;
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::MW_BIND;
    let memory = here.register(4096, access).map_err(text)?;
    let window = here.memory_window().map_err(text)?;
    rate(count, 1e3, || {
        let (bind, lent) = window
            .bind_request(&memory, .., AccessFlags::REMOTE_WRITE)
            .map_err(text)?;
        let requests = [bind.unsignaled(), SendRequest::invalidate(lent.rkey)];
        qp.post_sends(&requests).map_err(text)?;
        cq.wait(PATIENCE).map(drop).map_err(text)
    })
}

fn register(here: &ProtectionDomain, count: u32) -> Result<f64, Failure> {
    rate(count, 1e3, || {
        let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
        here.register(4096, access).map(drop).map_err(text)
    })
}

fn write(
    here: &ProtectionDomain,
    there: &ProtectionDomain,
    gathers: bool,
    count: u32,
) -> Result<f64, Failure> {
    let cq = here.context().completion_queue(64).map_err(text)?;
    let other = there.context().completion_queue(16).map_err(text)?;
    let (qp, _peer) = pair((here, &cq), (there, &other, &other), None)?;
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
    let target = there.register(GATHERED, access).map_err(text)?;
    let memory = here.register(2 * GATHERED, access).map_err(text)?;
    let segments = GATHERED / SEGMENT;
    let key = here.indirect_key(64, access).map_err(text)?;
    let data = if gathers {
        // Every other segment of the memory, in reverse order.
        let of = |index: usize| memory.sge(2 * index * SEGMENT..(2 * index + 1) * SEGMENT);
        let list: Result<Vec<_>, _> = (0..segments).rev().map(of).collect();
        let change = key.list(&list.map_err(text)?).map_err(text)?;
        qp.post_send(&SendRequest::map_key(&change)).map_err(text)?;
        cq.wait(PATIENCE).map_err(text)?;
        key.sge(..GATHERED as u64).map_err(text)?
    } else {
        memory.sge(..GATHERED).map_err(text)?
    };
    let data = [data];
    let request = SendRequest::write(&data, target.remote());
    let per_second = windowed(&cq, count, |_| qp.post_send(&request).map_err(text))?;
    Ok(per_second * float(GATHERED as u64) * 8.0 / 1e9)
}

/// Returns the requests per second with [`WINDOW`] of them in flight.
fn windowed(
    cq: &CompletionQueue,
    count: u32,
    mut post: impl FnMut(u32) -> Result<(), Failure>,
) -> Result<f64, Failure> {
    let warm_up = count / 10;
    let mut began = Instant::now();
    let mut done = 0;
    for number in 0..warm_up + count {
        while number >= done + WINDOW {
            cq.wait(PATIENCE).map_err(text)?;
            done += 1;
        }
        if number == warm_up {
            began = Instant::now();
        }
        post(number)?;
    }
    while done < warm_up + count {
        cq.wait(PATIENCE).map_err(text)?;
        done += 1;
    }
    Ok(f64::from(count) / began.elapsed().as_secs_f64())
}

fn dynamic(
    here: &ProtectionDomain,
    there: &ProtectionDomain,
    targets: u32,
    count: u32,
) -> Result<f64, Failure> {
    let cq = here.context().completion_queue(64).map_err(text)?;
    let other = there.context().completion_queue(16).map_err(text)?;
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
    let memory = there.register(4096, access).map_err(text)?;
    let receives = there.shared_receive_queue(16, 1).map_err(text)?;
    let make = |_| there.dynamic_target(&other, &receives, AccessFlags::REMOTE_WRITE, KEY);
    let targets: Result<Vec<_>, _> = (0..targets).map(make).collect();
    let targets = targets.map_err(text)?;
    let addresses: Vec<_> = targets.iter().map(|target| target.address()).collect();
    let initiator = here.dynamic_initiator(&cq).map_err(text)?;
    let gid = addresses.first().ok_or("no target")?.gid;
    let address = here.address(gid).map_err(text)?;
    let payload = [0x5a; 64];
    let request = SendRequest::write_inline(&payload, memory.remote());
    let mut next = addresses.iter().cycle();
    let per_second = windowed(&cq, count, |_| {
        let to = next.next().ok_or("no target")?;
        initiator.post_send(&request, &address, to).map_err(text)
    })?;
    Ok(per_second / 1e6)
}

/// Returns the microseconds from a message to the completion of its reply.
fn answers(
    here: &ProtectionDomain,
    there: &ProtectionDomain,
    chained: bool,
    count: u32,
) -> Result<f64, Failure> {
    const BATCH: u32 = 32;
    let cq = here.context().completion_queue(256).map_err(text)?;
    let arrivals = there.context().completion_queue(256).map_err(text)?;
    let departures = there.context().completion_queue(256).map_err(text)?;
    let decisions = there.context().completion_queue(256).map_err(text)?;
    arrivals.allow_waits();
    let managed = CrossChannel {
        managed_send: true,
        ..MASTER
    };
    let end = (there, &departures, &arrivals);
    let (a, b) = pair((here, &cq), end, chained.then_some(managed))?;
    let master = there.queue_pair(&decisions).depth(128, 1);
    let master = master.cross_channel(MASTER).build().map_err(text)?;
    let own_end = master.endpoint();
    let master = master
        .connect(own_end, &ConnectOptions::default())
        .map_err(text)?;
    let word = |pd: &ProtectionDomain| pd.register(8, AccessFlags::LOCAL_WRITE).map_err(text);
    let (a_word, b_word) = (word(here)?, word(there)?);
    let text8 = [1; 8];
    let (ask, answer) = (
        SendRequest::send_inline(&text8).unsignaled(),
        SendRequest::send_inline(&text8),
    );
    let mut spent = Duration::ZERO;
    for batch in 0..=count / BATCH {
        for _ in 0..BATCH {
            let place = [a_word.sge(..).map_err(text)?];
            a.post_recv(0, &place).map_err(text)?;
            let place = [b_word.sge(..).map_err(text)?];
            b.post_recv(0, &place).map_err(text)?;
            if chained {
                b.post_send(&answer).map_err(text)?;
                master
                    .post_wait(1, &arrivals, 1, TaskGroup::Last)
                    .map_err(text)?;
                master
                    .post_enable(&b, ManagedQueue::Send, 1, TaskGroup::Last)
                    .map_err(text)?;
            }
        }
        let began = Instant::now();
        for number in 0..BATCH {
            // The last message is signaled, and its completion frees the entries of all messages.
            let last = number + 1 == BATCH;
            let signaled = SendRequest::send_inline(&text8).wr_id(2);
            a.post_send(if last { &signaled } else { &ask })
                .map_err(text)?;
            if !chained {
                arrivals.wait(PATIENCE).map_err(text)?;
                b.post_send(&answer).map_err(text)?;
            }
            while cq.wait(PATIENCE).map_err(text)?.wr_id != 0 {}
        }
        // The first batch is a warm-up.
        spent += began.elapsed() * u32::from(batch > 0);
        for _ in 0..BATCH {
            departures.wait(PATIENCE).map_err(text)?;
            if chained {
                arrivals.wait(PATIENCE).map_err(text)?;
                decisions.wait(PATIENCE).map_err(text)?;
            }
        }
    }
    let rounds = (count / BATCH) * BATCH;
    Ok(spent.as_secs_f64() * 1e6 / f64::from(rounds.max(1)))
}

fn text(error: impl ToString) -> Failure {
    error.to_string()
}
