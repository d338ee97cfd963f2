//! Many QPs: the rate over all of them in turn, and the memory of an idle one.

use std::{
    fs,
    io::{BufRead, Read, Write},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use rocade_verbs::{
    AccessFlags, CompletionQueue, ConnectOptions, DeviceList, Endpoint, ProtectionDomain,
    QueuePair, RemoteMemory, SendRequest, UnconnectedQueuePair,
};

use crate::{
    child::{self, Failure, Peer},
    figures::float,
    rig::{Link, Rig},
};

const LIMIT: Duration = Duration::from_secs(60);
const MESSAGE_LEN: usize = 64 << 10;
/// The number of messages in flight over all QPs together: the default depth of perftest's send
/// queue.
const IN_FLIGHT: usize = 128;
/// The entries in each queue of an idle QP.
const IDLE_DEPTH: u32 = 16;

/// Returns the bytes per second of 64 KiB WRITEs to another process, over `queue_pairs` QPs in
/// turn.
pub(crate) fn round_robin(rig: &Rig, queue_pairs: u32) -> Result<f64, Failure> {
    let start = |words: &[&str]| {
        let mut command: Command = child::part_command()?;
        rig.engine_environment(&mut command, Link::Udp);
        command.args(words);
        Peer::start(command, Stdio::inherit())
    };
    let count = queue_pairs.to_string();
    let messages = rig.count(20_000).to_string();
    let mut target = start(&["write-target", &count])?;
    let mut source = start(&["write-source", &count, &messages])?;
    let target_says = target.line(LIMIT)?;
    let source_says = source.line(LIMIT)?;
    target.say(&source_says)?;
    source.say(&target_says)?;
    // Both sides are connected before the transfer begins.
    target.line(LIMIT)?;
    source.line(LIMIT)?;
    source.say("go")?;
    let rate = source.value(LIMIT)?;
    source.finish(LIMIT)?;
    target.finish(LIMIT)?;
    Ok(rate)
}

/// Returns the KiB of resident memory per idle connected QP with 16 entries in each queue.
pub(crate) fn idle_kib(rig: &Rig) -> Result<f64, Failure> {
    let mut command = child::part_command()?;
    rig.engine_environment(&mut command, Link::Udp);
    command.args(["idle", "2000"]);
    let part = Peer::start(command, Stdio::inherit())?;
    let kib = part.value(LIMIT)?;
    part.finish(LIMIT)?;
    Ok(kib)
}

/// Runs the process whose memory is written. It sleeps until its input ends.
pub(crate) fn target(queue_pairs: u32) -> Result<(), Failure> {
    let pd = open()?;
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
    let memory = pd.register(MESSAGE_LEN, access).map_err(text)?;
    let cq = pd.context().completion_queue(1).map_err(text)?;
    let qps = make(&pd, &cq, queue_pairs, 1)?;
    let _qps = connect(qps, &memory.remote().to_bytes())?;
    let mut rest = Vec::new();
    std::io::stdin().read_to_end(&mut rest).map_err(text)?;
    Ok(())
}

/// Runs the process that writes.
pub(crate) fn source(queue_pairs: u32, messages: usize) -> Result<(), Failure> {
    let pd = open()?;
    let memory = pd
        .register(MESSAGE_LEN, AccessFlags::empty())
        .map_err(text)?;
    let cq = pd.context().completion_queue(1024).map_err(text)?;
    let depth = u32::try_from(IN_FLIGHT).map_err(text)?;
    let qps = make(&pd, &cq, queue_pairs, depth)?;
    let own = RemoteMemory::to_bytes(&memory.remote());
    let (qps, peer) = connect(qps, &own)?;
    read_line()?;
    let data = [memory.sge(..).map_err(text)?];
    let write = SendRequest::write(&data, peer);
    let warm_up = qps.len() + messages / 10;
    let mut began = Instant::now();
    let mut done = 0;
    for (number, qp) in qps.iter().cycle().take(warm_up + messages).enumerate() {
        while number >= done + IN_FLIGHT {
            cq.wait(LIMIT).map_err(text)?;
            done += 1;
        }
        if number == warm_up {
            began = Instant::now();
        }
        qp.post_send(&write).map_err(text)?;
    }
    while done < warm_up + messages {
        cq.wait(LIMIT).map_err(text)?;
        done += 1;
    }
    let bytes = float(messages as u64 * MESSAGE_LEN as u64);
    println!("{}", bytes / began.elapsed().as_secs_f64());
    Ok(())
}

/// Runs the process that only has idle QPs, which are connected in pairs.
pub(crate) fn idle(queue_pairs: u32) -> Result<(), Failure> {
    let pd = open()?;
    let cq = pd.context().completion_queue(16).map_err(text)?;
    let pairs = |count: u32| -> Result<Vec<QueuePair>, Failure> {
        // A vector that grows leaves its former memory behind.
        let mut made = Vec::with_capacity(usize::try_from(count).map_err(text)?);
        for _ in 0..count / 2 {
            let (a, b) = (single(&pd, &cq, IDLE_DEPTH)?, single(&pd, &cq, IDLE_DEPTH)?);
            let (a_end, b_end) = (a.endpoint(), b.endpoint());
            let options = ConnectOptions::default();
            made.push(a.connect(b_end, &options).map_err(text)?);
            made.push(b.connect(a_end, &options).map_err(text)?);
        }
        Ok(made)
    };
    // The first QPs allocate sockets, threads and tables.
    let first = pairs(2)?;
    let before = resident_kib()?;
    let rest = pairs(queue_pairs)?;
    let after = resident_kib()?;
    println!(
        "{}",
        float(after.saturating_sub(before)) / float(rest.len() as u64)
    );
    drop((first, rest));
    Ok(())
}

fn open() -> Result<ProtectionDomain, Failure> {
    let devices = DeviceList::from_env().map_err(text)?;
    let context = devices.open_first().map_err(text)?;
    context.protection_domain().map_err(text)
}

fn single(
    pd: &ProtectionDomain,
    cq: &CompletionQueue,
    depth: u32,
) -> Result<UnconnectedQueuePair, Failure> {
    let builder = pd
        .queue_pair(cq)
        .depth(depth, depth)
        .max_sges(1)
        .max_inline(0);
    builder.build().map_err(text)
}

fn make(
    pd: &ProtectionDomain,
    cq: &CompletionQueue,
    count: u32,
    depth: u32,
) -> Result<Vec<UnconnectedQueuePair>, Failure> {
    (0..count).map(|_| single(pd, cq, depth)).collect()
}

/// Prints the connection data for the peer, reads the peer's, connects all QPs in order, and prints
/// "connected".
fn connect(
    qps: Vec<UnconnectedQueuePair>,
    memory: &[u8; RemoteMemory::ENCODED_LEN],
) -> Result<(Vec<QueuePair>, RemoteMemory), Failure> {
    let mut said: Vec<u8> = memory.to_vec();
    for qp in &qps {
        said.extend(qp.endpoint().to_bytes());
    }
    let hex: String = said.iter().map(|byte| format!("{byte:02x}")).collect();
    println!("{hex}");
    let heard = from_hex(&read_line()?)?;
    let (memory, ends) = heard.split_first_chunk().ok_or("the peer says nothing")?;
    let memory = RemoteMemory::from_bytes(memory);
    let (ends, _) = ends.as_chunks::<{ Endpoint::ENCODED_LEN }>();
    let options = ConnectOptions::default();
    let mut connected = Vec::new();
    for (qp, end) in qps.into_iter().zip(ends) {
        let end = Endpoint::from_bytes(end).map_err(text)?;
        connected.push(qp.connect(end, &options).map_err(text)?);
    }
    println!("connected");
    std::io::stdout().flush().map_err(text)?;
    Ok((connected, memory))
}

fn read_line() -> Result<String, Failure> {
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line).map_err(text)?;
    Ok(line.trim().to_owned())
}

fn from_hex(line: &str) -> Result<Vec<u8>, Failure> {
    let (pairs, _) = line.as_bytes().as_chunks::<2>();
    let byte = |pair: &[u8; 2]| {
        let digits = std::str::from_utf8(pair).map_err(text)?;
        u8::from_str_radix(digits, 16).map_err(text)
    };
    pairs.iter().map(byte).collect()
}

/// Returns the resident memory of this process in KiB.
fn resident_kib() -> Result<u64, Failure> {
    let status = fs::read_to_string("/proc/self/status").map_err(text)?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let number = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    number.ok_or_else(|| "no VmRSS in /proc/self/status".to_owned())
}

fn text(error: impl ToString) -> Failure {
    error.to_string()
}
