//! Two connected queue pairs in a simulated network.

use std::time::Duration;

use rocade_verbs::{
    AccessFlags, CompletionQueue, Config, ConnectOptions, Context, DeviceList, Error, MemoryRegion,
    QueuePair, Result, SendRequest, WcStatus,
};

/// Longer than all retries, in virtual time.
pub(crate) const MINUTE: Duration = Duration::from_secs(60);

pub(crate) struct End {
    pub(crate) context: Context,
    pub(crate) memory: MemoryRegion,
    pub(crate) cq: CompletionQueue,
    pub(crate) qp: QueuePair,
}

/// Connects the two devices of a simulation with these rules.
pub(crate) fn pair(seed: u64, rules: &str) -> Result<(End, End, DeviceList)> {
    let list = DeviceList::new(Config::simulated(seed).with_faults(rules)?)?;
    let (a, b) = connect(&list)?;
    Ok((a, b, list))
}

/// Connects two queue pairs of the devices.
pub(crate) fn connect(list: &DeviceList) -> Result<(End, End)> {
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ;
    let open = |name| {
        let context = list.open(name)?;
        let pd = context.protection_domain()?;
        let memory = pd.register(4 << 20, access)?;
        let cq = context.completion_queue(256)?;
        let qp = pd.queue_pair(&cq).build()?;
        Ok::<_, Error>(((context, memory, cq), qp))
    };
    let ((a, a_qp), (b, b_qp)) = (open("a")?, open("b")?);
    let (a_end, b_end) = (a_qp.endpoint(), b_qp.endpoint());
    let a_qp = a_qp.connect(b_end, &ConnectOptions::default())?;
    let b_qp = b_qp.connect(a_end, &ConnectOptions::default())?;
    let end = |(context, memory, cq), qp| End {
        context,
        memory,
        cq,
        qp,
    };
    Ok((end(a, a_qp), end(b, b_qp)))
}

/// Writes `len` bytes of the value 7 from A to B. Returns the duration in nanoseconds.
pub(crate) fn write(a: &End, b: &End, len: usize) -> Result<u64> {
    a.memory.write(0, &vec![7; len])?;
    let begin = a.context.clock_ns();
    let sges = [a.memory.sge(..len)?];
    a.qp.post_send(&SendRequest::write(&sges, b.memory.remote()))?;
    a.cq.wait(MINUTE)?;
    assert_eq!(b.memory.to_vec(..len)?, vec![7; len]);
    Ok(a.context.clock_ns() - begin)
}

/// Returns the status of a failed completion.
pub(crate) fn status<T, E>(result: Result<T, E>) -> WcStatus
where
    T: std::fmt::Debug,
    E: Into<Error>,
{
    match result.map_err(Into::into) {
        Err(Error::Completion(completion)) => completion.status,
        other => panic!("no failed completion: {other:?}"),
    }
}
