//! Cross-channel operations: a chain of hosts computes a sum without the programs.
//!
//! ```sh
//! cargo run --package rocade-verbs --example cross_channel
//! ```
//! Each member of the chain has a number. The first member sends its number to the right. Each
//! later member waits for the value from the left, adds its own number and sends the sum on. The
//! last member has the total. Usually each program would sleep, wake up, add and send. Here the
//! program posts all requests in advance, and the NICs execute them:
//!
//! - The queue pair to the *right* is managed: it holds the adding send until a master releases it.
//! - The *master* waits for the completion of the receive, then releases that send. It sends
//!   nothing itself, and is connected to itself.
//!
//! A barrier or an allreduce consists of the same three steps, with several rounds instead of one.

use std::time::Duration;

use rocade_verbs::{
    AccessFlags, Calc, CalcOp, CompletionQueue, Config, ConnectOptions, CrossChannel, DeviceList,
    ManagedQueue, MemoryRegion, ProtectionDomain, QueuePair, Result, SendRequest, Task, TaskGroup,
    post_tasks,
};

const PATIENCE: Duration = Duration::from_secs(60);
const NUMBERS: [u64; 5] = [3, 20, 100, 4000, 50_000];
/// The sum of all 8-byte numbers that a send names. The numbers and the sum are big-endian.
const SUM: Calc = Calc {
    op: CalcOp::Add,
    located: false,
};

/// A member of the chain. Its memory holds its number, followed by the value from the left.
struct Member {
    pd: ProtectionDomain,
    memory: MemoryRegion,
    /// Completions of the receive from the left. The master waits for them.
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

/// Connects two members. Returns the sending queue pair of `from` and the receiving one of `to`.
fn connect(from: &Member, to: &Member) -> Result<(QueuePair, QueuePair)> {
    // The sending queue pair computes, and sends what the master releases.
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

    // Every member between the first and the last gets a list of tasks to execute after the value
    // from the left has arrived.
    for (member, (right, _)) in members.iter().zip(&links).skip(1) {
        let both = [member.memory.sge(0..8)?, member.memory.sge(8..16)?];
        let posted = post_tasks(&[
            Task::Calc(right, &SendRequest::send(&both), SUM),
            Task::Wait {
                master: &member.master,
                wr_id: 7,
                cq: &member.arrivals,
                count: 1,
                group: TaskGroup::Last,
            },
            // 0 releases all posted requests, here that one send.
            Task::Enable {
                master: &member.master,
                of: right,
                which: ManagedQueue::Send,
                count: 0,
                group: TaskGroup::Last,
            },
        ]);
        posted?;
    }
    let (first, last) = (&members[0], &members[NUMBERS.len() - 1]);
    assert!(
        last.arrivals.poll().is_none(),
        "the last member has received nothing yet"
    );

    // Releases the first number. From here on the program only waits.
    let (right, _) = &links[0];
    right.post_send(&SendRequest::send(&[first.memory.sge(0..8)?]))?;
    let master = &first.master;
    master.post_enable(right, ManagedQueue::Send, 0, TaskGroup::Last)?;

    last.arrivals.wait(PATIENCE)?;
    let arrived = last.memory.to_vec(8..16)?.try_into().expect("8 bytes");
    let total = u64::from_be_bytes(arrived) + NUMBERS[NUMBERS.len() - 1];
    println!("{NUMBERS:?}: {total}");
    assert_eq!(total, NUMBERS.iter().sum::<u64>());
    // The wait of each member in between has completed.
    for member in &members[1..NUMBERS.len() - 1] {
        assert_eq!(member.decisions.wait(PATIENCE)?.wr_id, 7);
    }
    Ok(())
}
