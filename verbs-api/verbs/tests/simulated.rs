//! Programs in a simulated network: faults, virtual time, and repeatable runs with the same seed.

use std::time::{Duration, Instant};

use rocade_verbs::{
    AccessFlags, Completion, CompletionQueue, Config, ConnectOptions, DeviceList, MemoryRegion,
    ProtectionDomain, QueuePair, Result, SendRequest, WaitError, WcStatus,
};

const MINUTE: Duration = Duration::from_secs(60);

struct End {
    memory: MemoryRegion,
    cq: CompletionQueue,
    qp: QueuePair,
}

/// Connects the two devices of a simulation.
fn pair(config: Config) -> Result<(End, End, DeviceList)> {
    let list = DeviceList::new(config)?;
    let access = AccessFlags::LOCAL_WRITE
        | AccessFlags::REMOTE_WRITE
        | AccessFlags::REMOTE_READ
        | AccessFlags::REMOTE_ATOMIC;
    let open = |name| -> Result<(ProtectionDomain, MemoryRegion, CompletionQueue)> {
        let pd = list.open(name)?.protection_domain()?;
        let memory = pd.register(1 << 20, access)?;
        let cq = pd.context().completion_queue(256)?;
        Ok((pd, memory, cq))
    };
    let ((a_pd, a, a_cq), (b_pd, b, b_cq)) = (open("a")?, open("b")?);
    let (a_qp, b_qp) = (
        a_pd.queue_pair(&a_cq).build()?,
        b_pd.queue_pair(&b_cq).build()?,
    );
    let (a_end, b_end) = (a_qp.endpoint(), b_qp.endpoint());
    let a_qp = a_qp.connect(b_end, &ConnectOptions::default())?;
    let b_qp = b_qp.connect(a_end, &ConnectOptions::default())?;
    let end = |memory, cq, qp| End { memory, cq, qp };
    Ok((end(a, a_cq, a_qp), end(b, b_cq, b_qp), list))
}

/// Executes WRITEs, READs, SENDs and atomics. Returns the final counters of both ends as text.
fn work(config: Config) -> Result<String> {
    let (a, b, list) = pair(config)?;
    for round in 0..20_u8 {
        let data = vec![round; 30_000];
        a.memory.write(0, &data)?;
        a.qp.post_send(&SendRequest::write(
            &[a.memory.sge(..30_000)?],
            b.memory.remote(),
        ))?;
        a.cq.wait(MINUTE)?;
        assert_eq!(b.memory.to_vec(..30_000)?, data);
        a.qp.post_send(&SendRequest::read(
            &[a.memory.sge(100_000..130_000)?],
            b.memory.remote(),
        ))?;
        b.qp.post_recv(1, &[b.memory.sge(200_000..230_000)?])?;
        a.qp.post_send(&SendRequest::send(&[a.memory.sge(..30_000)?]))?;
        a.cq.wait_for(2, MINUTE)?;
        assert_eq!(a.memory.to_vec(100_000..100_000 + 30_000)?, data);
        b.cq.wait(MINUTE)?;
        assert_eq!(b.memory.to_vec(200_000..200_000 + 30_000)?, data);
    }
    let counters = (a.qp.counters(), b.qp.counters());
    let ends = (a.qp.qp_num(), b.qp.qp_num());
    Ok(format!(
        "{counters:?} {ends:?} {:?}",
        list.engine_counters()
    ))
}

const RULES: &str = "drop p=2%; dup p=2%; delay by=70us p=3%; reorder by=2 p=2%; corrupt p=1%";

#[test]
fn a_seed_repeats_itself() -> Result<()> {
    let run = |seed| work(Config::simulated(seed).with_faults(RULES).expect("rules"));
    let seeds = [1, 2, 3, 0xfeed_f00d];
    let results = seeds.map(run);
    for (seed, first) in seeds.into_iter().zip(&results) {
        let first = first.as_ref().expect("the work succeeds");
        assert_eq!(*first, run(seed)?, "seed {seed}");
        let nothing_lost = work(Config::simulated(seed))?;
        assert_ne!(*first, nothing_lost);
    }
    assert_ne!(results[0].as_ref().ok(), results[1].as_ref().ok());
    Ok(())
}

/// Timeouts of seconds take no real time.
#[test]
fn time_is_virtual() -> Result<()> {
    let begin = Instant::now();
    // The network drops all acknowledgements of the first 3 s. In real time the retries would
    // exceed the time limit.
    let config = Config::simulated(5)
        .with_faults("drop opcode=ACK nth=1..6")
        .expect("rules");
    let (a, b, _list) = pair(config)?;
    a.qp.post_send(&SendRequest::write(
        &[a.memory.sge(..8)?],
        b.memory.remote(),
    ))?;
    a.cq.wait(MINUTE)?;
    assert_eq!(a.qp.counters().timeouts, 6);
    // The peer never answers. The work request fails after all retries, unless the wait times out
    // before.
    let config = Config::simulated(5).with_faults("drop").expect("rules");
    let (a, b, _list) = pair(config)?;
    a.qp.post_send(&SendRequest::write(
        &[a.memory.sge(..8)?],
        b.memory.remote(),
    ))?;
    assert!(matches!(
        a.cq.wait(Duration::from_millis(100)),
        Err(WaitError::TimedOut)
    ));
    let failed = a.cq.wait(MINUTE);
    assert!(
        matches!(
            failed,
            Err(WaitError::Completion(Completion {
                status: WcStatus::RetryExceeded,
                ..
            }))
        ),
        "{failed:?}"
    );
    // After that, nothing happens.
    assert!(matches!(a.cq.wait(MINUTE), Err(WaitError::TimedOut)));
    assert!(begin.elapsed() < MINUTE, "{:?}", begin.elapsed());
    Ok(())
}

/// A program that polls gets the same results as one that waits.
#[test]
fn polling_drives_the_simulation() -> Result<()> {
    let (a, b, _list) = pair(Config::simulated(9))?;
    a.memory.write(0, b"polled")?;
    a.qp.post_send(&SendRequest::write(
        &[a.memory.sge(..6)?],
        b.memory.remote(),
    ))?;
    let mut polls = 0;
    let done: Completion = loop {
        match a.cq.poll() {
            Some(completion) => break completion,
            None => polls += 1,
        }
        assert!(polls < 100, "no completion after 100 polls");
    };
    assert_eq!(done.status, WcStatus::Success);
    assert_eq!(b.memory.to_vec(..6)?, b"polled");
    Ok(())
}

/// A simulation can be captured, in virtual time, for `rocade ladder`.
#[test]
fn simulations_can_be_captured() -> Result<()> {
    let dir = std::env::temp_dir().join(format!("rocade-sim-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("the directory is created");
    let captured = [1, 2].map(|n| {
        let file = dir.join(format!("{n}.pcapng"));
        let config = Config::simulated(11)
            .with_faults("drop nth=5")
            .expect("rules");
        work(config.with_capture(&file)).expect("the work succeeds");
        std::fs::metadata(&file).expect("the capture file").len()
    });
    std::fs::remove_dir_all(&dir).expect("the directory is removable");
    assert!(captured[0] > 100_000, "{captured:?}");
    Ok(())
}
