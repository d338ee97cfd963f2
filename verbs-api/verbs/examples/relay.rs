//! A sum that goes through a chain of devices while nobody computes.
//!
//! ```sh
//! cargo run --package rocade-verbs --example relay
//! ```
//! Each member of the chain waits for what comes from the left, adds its own number and sends the sum to the right. The
//! requests for all that are posted before the first number leaves: a *managed* queue pair holds the send that computes,
//! and a *master* waits for the receive and then releases it. From then on the program only waits for the last completion.

use std::time::Duration;

use rocade_verbs::{
    AccessFlags, BrokerMode, Calc, CalcOp, CompletionQueue, ConnectOptions, CrossChannel,
    DeviceList, EngineConfig, InGroup, ManagedQueue, MemoryRegion, ProtectionDomain, QueuePair,
    Result, SendRequest,
};

const PATIENCE: Duration = Duration::from_secs(60);
const SUM: Calc = Calc {
    op: CalcOp::Add,
    located: false,
};
const MASTER: CrossChannel = CrossChannel {
    is_master: true,
    managed_send: false,
    managed_recv: false,
    sends_untaken: false,
    receives_untaken: false,
};

/// One of the chain: its number at the beginning of its memory, and behind it what comes from the left.
struct Member {
    pd: ProtectionDomain,
    memory: MemoryRegion,
    arrivals: CompletionQueue,
    departures: CompletionQueue,
}

impl Member {
    fn new(pd: ProtectionDomain, number: u64) -> Result<Self> {
        let memory = pd.register(16, AccessFlags::LOCAL_WRITE)?;
        memory.write(0, &number.to_be_bytes())?;
        let arrivals = pd.context().completion_queue(16)?;
        arrivals.allow_waits();
        let departures = pd.context().completion_queue(16)?;
        Ok(Self {
            pd,
            memory,
            arrivals,
            departures,
        })
    }
}

/// The queue pair from one member to the next, and that at which it arrives.
fn connect(from: &Member, to: &Member) -> Result<(QueuePair, QueuePair)> {
    let sends = CrossChannel {
        managed_send: true,
        ..MASTER
    };
    let right = from.pd.queue_pair(&from.departures).cross_channel(sends);
    let left = to.pd.queue_pair(&to.departures).recv_cq(&to.arrivals);
    let (right, left) = (right.build()?, left.build()?);
    left.post_recv(1, &[to.memory.sge(8..16)?])?;
    let (right_end, left_end) = (right.endpoint(), left.endpoint());
    let right = right.connect(left_end, &ConnectOptions::default())?;
    let left = left.connect(right_end, &ConnectOptions::default())?;
    Ok((right, left))
}

fn main() -> Result<()> {
    let names = ["a=127.0.0.97", "b=127.0.0.98", "c=127.0.0.99"];
    let list = DeviceList::new(EngineConfig::from_specs(&names, BrokerMode::Embedded)?)?;
    let member = |name, number| Member::new(list.open(name)?.protection_domain()?, number);
    let (a, b, c) = (member("a", 3)?, member("b", 20)?, member("c", 100)?);
    let (a_right, _b_left) = connect(&a, &b)?;
    let (b_right, _c_left) = connect(&b, &c)?;

    // The middle: a master, connected to itself because it sends nothing.
    let decisions = b.pd.context().completion_queue(16)?;
    let master = b.pd.queue_pair(&decisions).cross_channel(MASTER).build()?;
    let own_end = master.endpoint();
    let master = master.connect(own_end, &ConnectOptions::default())?;
    let (own, sum) = (b.memory.sge(0..8)?, b.memory.sge(8..16)?);
    b_right.post_calc(&SendRequest::send(&[own, sum]), SUM)?;
    master.post_wait(7, &b.arrivals, 1, InGroup::Last)?;
    master.post_enable(&b_right, ManagedQueue::Send, 0, InGroup::Last)?;
    assert!(c.arrivals.poll().is_none(), "nothing has moved yet");

    // The first number leaves, and all the rest happens by itself.
    a_right.post_send(&SendRequest::send(&[a.memory.sge(0..8)?]))?;
    let first = a.pd.context().completion_queue(16)?;
    let starter = a.pd.queue_pair(&first).cross_channel(MASTER).build()?;
    let own_end = starter.endpoint();
    let starter = starter.connect(own_end, &ConnectOptions::default())?;
    starter.post_enable(&a_right, ManagedQueue::Send, 0, InGroup::Last)?;

    c.arrivals.wait(PATIENCE)?;
    let arrived = c.memory.to_vec(8, 8)?;
    println!("c has {} and gets {:?}", 100, arrived);
    assert_eq!(arrived, 23_u64.to_be_bytes());
    assert_eq!(decisions.wait(PATIENCE)?.wr_id, 7);
    Ok(())
}
