//! Completion queues whose descriptors tokio waits for, edge-triggered.
#![expect(clippy::unwrap_used, reason = "in a test")]

use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::Duration;

use rocade_verbs::{
    AccessFlags, Completion, CompletionQueue, Config, ConnectOptions, DeviceList, MemoryRegion,
    ProtectionDomain, QueuePair, SendRequest, UnconnectedQueuePair, WcOpcode, WcStatus,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

const ROUNDS: usize = 300;
const LIMIT: Duration = Duration::from_secs(60);

struct Node {
    pd: ProtectionDomain,
    cq: CompletionQueue,
    memory: MemoryRegion,
}

impl Node {
    fn new(list: &DeviceList, name: &str) -> Self {
        let pd = list.open(name).unwrap().protection_domain().unwrap();
        let cq = pd.context().completion_queue(64).unwrap();
        let memory = pd.register(4096, AccessFlags::LOCAL_WRITE).unwrap();
        Self { pd, cq, memory }
    }

    fn queue_pair(&self) -> UnconnectedQueuePair {
        self.pd.queue_pair(&self.cq).build().unwrap()
    }

    fn receive_next(&self, qp: &QueuePair) {
        qp.post_recv(0, &[self.memory.sge(..64).unwrap()]).unwrap();
    }

    fn send_next(&self, qp: &QueuePair) {
        let sge = [self.memory.sge(64..128).unwrap()];
        qp.post_send(&SendRequest::send(&sge)).unwrap();
    }

    /// Waits for the next completion.
    async fn next(&self, fd: &AsyncFd<BorrowedFd<'_>>) -> Completion {
        loop {
            self.cq.arm().unwrap();
            if let Some(completion) = self.cq.poll() {
                assert_eq!(completion.status, WcStatus::Success);
                return completion;
            }
            let mut ready = fd.readable().await.unwrap();
            self.cq.drain_events().unwrap();
            ready.clear_ready();
        }
    }

    /// Answers each message, or begins and answers all but the last one.
    async fn run(&self, qp: &QueuePair, begins: bool) {
        let fd = self.cq.as_fd();
        // SAFETY: the queue keeps its descriptor open, and outlives this registration.
        let fd = unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) }.unwrap();
        if begins {
            self.send_next(qp);
        }
        let (mut received, mut sent) = (0, 0);
        while received < ROUNDS || sent < ROUNDS {
            if self.next(&fd).await.opcode != WcOpcode::Recv {
                sent += 1;
                continue;
            }
            received += 1;
            self.receive_next(qp);
            if !begins || received < ROUNDS {
                self.send_next(qp);
            }
        }
    }
}

#[test]
fn tokio_waits_for_completions() {
    let specs = ["a=127.0.45.1", "b=127.0.45.2"].map(str::to_owned);
    let list = DeviceList::new(Config::from_specs(&specs).unwrap()).unwrap();
    let (a, b) = (Node::new(&list, "a"), Node::new(&list, "b"));
    let (a_qp, b_qp) = (a.queue_pair(), b.queue_pair());
    let (a_end, b_end) = (a_qp.endpoint(), b_qp.endpoint());
    let a_qp = a_qp.connect(b_end, &ConnectOptions::default()).unwrap();
    let b_qp = b_qp.connect(a_end, &ConnectOptions::default()).unwrap();
    for (node, qp) in [(&a, &a_qp), (&b, &b_qp)] {
        for _ in 0..4 {
            node.receive_next(qp);
        }
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let both = async { tokio::join!(a.run(&a_qp, true), b.run(&b_qp, false)) };
        tokio::time::timeout(LIMIT, both).await.unwrap();
    });
}
