//! A sum that goes along a chain of hosts while nobody computes.
//!
//! ```sh
//! cargo run --package rocade-verbs --example relay
//! ```
//! Each member of the chain has a number. The first sends its own to the right; each that follows waits for what comes from the
//! left, adds its own and sends the sum on; the last has the total. Usually each of them would sleep, wake up, add, and send. Here
//! all that is posted before the first number leaves, and the NICs do the rest:
//!
//! * the queue pair to the *right* is managed: it holds the send that adds up until somebody releases it;
//! * the *master* waits for the completion of the receive, then releases that send. It sends nothing itself, and is connected to itself.
//!
//! A barrier or an allreduce is made of the same three steps, with several rounds instead of one.

use std::time::Duration;

use rocade_verbs::{
    AccessFlags, Calc, CalcOp, CompletionQueue, Config, ConnectOptions, CrossChannel, DeviceList,
    InGroup, ManagedQueue, MemoryRegion, ProtectionDomain, QueuePair, Result, SendRequest, Task,
    post_tasks,
};

const PATIENCE: Duration = Duration::from_secs(60);
const NUMBERS: [u64; 5] = [3, 20, 100, 4000, 50_000];
/// Of all 8-byte numbers that a send names, the sum. They are big-endian, and so is the sum.
const SUM: Calc = Calc {
    op: CalcOp::Add,
    located: false,
};

/// One of the chain. Its number is at the beginning of its memory, and behind it what comes from the left.
struct Member {
    pd: ProtectionDomain,
    memory: MemoryRegion,
    /// What has come from the left: the master waits for its completions.
    arrivals: CompletionQueue,
    departures: CompletionQueue,
    decisions: CompletionQueue,
    master: QueuePair,
}

impl Member {
    fn new(pd: ProtectionDomain, number: u64) -> Result<Self> {
        let memory = pd.register(16, AccessFlags::LOCAL_WRITE)?;
        memory.write(0, &number.to_be_bytes())?;
        let arrivals = pd.context().completion_queue(16)?;
        arrivals.allow_waits();
        let departures = pd.context().completion_queue(16)?;
        let decisions = pd.context().completion_queue(16)?;
        let role = CrossChannel {
            is_master: true,
            ..CrossChannel::default()
        };
        let master = pd.queue_pair(&decisions).cross_channel(role).build()?;
        let own_end = master.endpoint();
        let master = master.connect(own_end, &ConnectOptions::default())?;
        Ok(Self {
            pd,
            memory,
            arrivals,
            departures,
            decisions,
            master,
        })
    }
}

/// The queue pair from one member to the next, and the one at which it arrives.
fn connect(from: &Member, to: &Member) -> Result<(QueuePair, QueuePair)> {
    // It computes, and sends what is released to it.
    let role = CrossChannel {
        is_master: true,
        managed_send: true,
        ..CrossChannel::default()
    };
    let right = from.pd.queue_pair(&from.departures).cross_channel(role);
    let left = to.pd.queue_pair(&to.departures).recv_cq(&to.arrivals);
    let (right, left) = (right.build()?, left.build()?);
    left.post_recv(1, &[to.memory.sge(8..16)?])?;
    let (right_end, left_end) = (right.endpoint(), left.endpoint());
    let right = right.connect(left_end, &ConnectOptions::default())?;
    let left = left.connect(right_end, &ConnectOptions::default())?;
    Ok((right, left))
}

fn main() -> Result<()> {
    let specs = (1..=NUMBERS.len()).map(|n| format!("member{n}=127.0.73.{n}"));
    let specs: Vec<String> = specs.collect();
    let list = DeviceList::new(Config::from_specs(&specs)?)?;
    let members = (1..).zip(NUMBERS).map(|(n, number)| {
        let device = list.open(&format!("member{n}"))?;
        Member::new(device.protection_domain()?, number)
    });
    let members: Vec<Member> = members.collect::<Result<_>>()?;
    let links = members.windows(2).map(|pair| connect(&pair[0], &pair[1]));
    let links: Vec<_> = links.collect::<Result<_>>()?;

    // All but the first and the last: a list of tasks says what is to happen once something has arrived.
    for (member, (right, _)) in members.iter().zip(&links).skip(1) {
        let both = [member.memory.sge(0..8)?, member.memory.sge(8..16)?];
        let posted = post_tasks(&[
            Task::Calc(right, &SendRequest::send(&both), SUM),
            Task::Wait {
                master: &member.master,
                wr_id: 7,
                cq: &member.arrivals,
                count: 1,
                group: InGroup::Last,
            },
            // 0: all that is there, which is that one send.
            Task::Enable {
                master: &member.master,
                of: right,
                which: ManagedQueue::Send,
                count: 0,
                group: InGroup::Last,
            },
        ]);
        posted.map_err(|(_, error)| error)?;
    }
    let (first, last) = (&members[0], &members[NUMBERS.len() - 1]);
    assert!(last.arrivals.poll().is_none(), "nothing has moved yet");

    // The first number leaves. From here on the program only waits.
    let (right, _) = &links[0];
    right.post_send(&SendRequest::send(&[first.memory.sge(0..8)?]))?;
    let master = &first.master;
    master.post_enable(right, ManagedQueue::Send, 0, InGroup::Last)?;

    last.arrivals.wait(PATIENCE)?;
    let arrived = last.memory.to_vec(8, 8)?.try_into().expect("8 bytes");
    let total = u64::from_be_bytes(arrived) + NUMBERS[NUMBERS.len() - 1];
    println!("{NUMBERS:?}: {total}");
    assert_eq!(total, NUMBERS.iter().sum::<u64>());
    // The wait of each member in between is over, which its completion says.
    for member in &members[1..NUMBERS.len() - 1] {
        assert_eq!(member.decisions.wait(PATIENCE)?.wr_id, 7);
    }
    Ok(())
}
