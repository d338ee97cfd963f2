//! Counters of operations that are attached to a QP.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, Ordering};

use rocade_wire::Rkey;

use super::{PMTU, read, register, register_filled, send, write};
use crate::testing::{Delivery, Pair, Side};
use crate::{
    CountedOps, OpCounter, QpAttr, QpAttrMask, QpState, QpType, SendFlags, SendOp, SendWr, Sge,
};

/// A counter whose values are operations, bytes and failures.
#[derive(Debug, Default)]
struct Counter([AtomicU64; 3]);

impl OpCounter for Counter {
    fn add(&self, operations: u64, bytes: u64) {
        self.0[0].fetch_add(operations, Ordering::Relaxed);
        self.0[1].fetch_add(bytes, Ordering::Relaxed);
    }

    fn add_failed(&self) {
        self.0[2].fetch_add(1, Ordering::Relaxed);
    }
}

impl Counter {
    fn values(&self) -> [u64; 3] {
        [0, 1, 2].map(|index| self.0[index].load(Ordering::Relaxed))
    }
}

fn attach(pair: &mut Pair, side: Side, kinds: CountedOps) -> Arc<Counter> {
    let counter = Arc::new(Counter::default());
    let shared: Arc<dyn OpCounter> = Arc::clone(&counter) as _;
    assert!(pair.node_mut(side).qp.attach_counter(kinds, &shared));
    counter
}

/// Attaches a counter for each operation to both QPs, in the order of the bits.
fn attach_all(pair: &mut Pair) -> [[Arc<Counter>; 6]; 2] {
    [Side::A, Side::B].map(|side| {
        [0, 1, 2, 3, 4, 5].map(|bit| attach(pair, side, CountedOps::from_bits_retain(1 << bit)))
    })
}

fn values(counters: &[Arc<Counter>; 6]) -> [[u64; 3]; 6] {
    [0, 1, 2, 3, 4, 5].map(|index| counters[index].values())
}

const NONE: [u64; 3] = [0; 3];

fn post(pair: &mut Pair, flags: SendFlags, op: SendOp, sges: &[Sge]) {
    let wr = SendWr {
        wr_id: 1,
        op,
        flags,
        sges,
    };
    pair.try_send(Side::A, &wr).expect("the send is accepted");
}

/// Lengths of one packet, of several, and zero. With and without a completion.
#[test]
fn both_sides_count_what_has_completed() {
    for flags in [SendFlags::SIGNALED, SendFlags::empty()] {
        let mut pair = Pair::default();
        let [a, b] = attach_all(&mut pair);
        let src = register_filled(&pair, Side::A, 4 * PMTU, 1);
        let dst = register(&pair, Side::B, 4 * PMTU);
        let place = register(&pair, Side::B, 4 * PMTU);
        for len in [0, 100, 3 * PMTU] {
            pair.recv(Side::B, 1, &[place.sge()]);
            post(&mut pair, flags, send(), &[src.part(0, len)]);
            post(&mut pair, flags, write(&dst), &[src.part(0, len)]);
            post(&mut pair, flags, read(&dst), &[src.part(0, len)]);
        }
        pair.run();
        let bytes = u64::from(100 + 3 * PMTU);
        let all = [3, bytes, 0];
        assert_eq!(values(&a), [all, NONE, all, NONE, all, NONE]);
        assert_eq!(values(&b), [NONE, all, NONE, all, NONE, all]);
    }
}

/// A WRITE with immediate data is an operation of the peer, and completes a receive.
#[test]
fn a_write_with_immediate_counts_twice_and_an_atomic_not_at_all() {
    let mut pair = Pair::default();
    let [a, b] = attach_all(&mut pair);
    let src = register(&pair, Side::A, 8);
    let dst = register(&pair, Side::B, 8);
    pair.recv(Side::B, 1, &[]);
    let (va, rkey) = (dst.addr, dst.rkey);
    let imm = Some([1; 4]);
    pair.send(Side::A, 1, SendOp::Write { va, rkey, imm }, &[src.sge()]);
    pair.send(
        Side::A,
        2,
        SendOp::FetchAdd { va, rkey, add: 1 },
        &[src.sge()],
    );
    pair.run();
    let one = [1, 8, 0];
    assert_eq!(values(&a), [NONE, NONE, NONE, NONE, one, NONE]);
    assert_eq!(values(&b), [NONE, one, NONE, NONE, NONE, one]);
}

/// Responses that were lost are sent again, and a request that was repeated is not executed again.
#[test]
fn a_repeated_request_counts_once() {
    let mut pair = Pair::default();
    let [a, b] = attach_all(&mut pair);
    let src = register(&pair, Side::A, 3 * PMTU);
    let dst = register(&pair, Side::B, 3 * PMTU);
    let mut lost = 0;
    pair.set_network(move |packet| {
        lost += u32::from(packet.from == Side::B);
        if packet.from == Side::B && lost <= 3 {
            Delivery::Drop
        } else {
            Delivery::Deliver
        }
    });
    pair.send(Side::A, 1, write(&dst), &[src.sge()]);
    pair.send(Side::A, 2, read(&dst), &[src.sge()]);
    pair.run();
    let once = [1, u64::from(3 * PMTU), 0];
    assert_eq!(values(&a), [NONE, NONE, once, NONE, once, NONE]);
    assert_eq!(values(&b), [NONE, NONE, NONE, once, NONE, once]);
}

#[test]
fn failures_are_counted_apart() {
    for op in [2, 4] {
        let mut pair = Pair::default();
        let [a, b] = attach_all(&mut pair);
        let src = register(&pair, Side::A, 8);
        let (va, rkey, imm) = (0, Rkey::new(0xdead), None);
        let request = match op {
            2 => SendOp::Read { va, rkey },
            _ => SendOp::Write { va, rkey, imm },
        };
        pair.recv(Side::A, 7, &[]);
        pair.recv(Side::B, 8, &[]);
        pair.send(Side::A, 1, request, &[src.sge()]);
        pair.send(Side::A, 2, send(), &[]);
        pair.run();
        // The request was refused, and the rest was flushed, of both queues and both sides.
        let failed = [0, 0, 1];
        let mut requester = [failed, failed, NONE, NONE, NONE, NONE];
        requester[op] = failed;
        let mut responder = [NONE, failed, NONE, NONE, NONE, NONE];
        responder[op + 1] = failed;
        assert_eq!(values(&a), requester);
        assert_eq!(values(&b), responder);
    }
}

/// Services without acknowledgements: a WRITE of which a packet was lost is none.
#[test]
fn unreliable_connections_count() {
    let mut pair = Pair::new(|_, setup| setup.config.qp_type = QpType::Uc);
    let [a, b] = attach_all(&mut pair);
    let src = register(&pair, Side::A, 3 * PMTU);
    let dst = register(&pair, Side::B, 3 * PMTU);
    pair.recv(Side::B, 1, &[]);
    pair.send(Side::A, 1, send(), &[]);
    pair.send(Side::A, 2, write(&dst), &[src.sge()]);
    pair.run();
    let mut packets = 0;
    pair.set_network(move |_| {
        packets += 1;
        if packets == 2 {
            Delivery::Drop
        } else {
            Delivery::Deliver
        }
    });
    pair.send(Side::A, 3, write(&dst), &[src.sge()]);
    pair.run();
    let (one, len) = ([1, 0, 0], u64::from(3 * PMTU));
    assert_eq!(values(&a), [one, NONE, NONE, NONE, [2, 2 * len, 0], NONE]);
    assert_eq!(values(&b), [NONE, one, NONE, NONE, NONE, [1, len, 0]]);
}

#[test]
fn each_operation_has_one_counter_that_survives_a_reset() {
    let mut pair = Pair::default();
    let counter = attach(&mut pair, Side::A, CountedOps::SEND | CountedOps::RECV);
    let other: Arc<dyn OpCounter> = Arc::new(Counter::default());
    let qp = &mut pair.node_mut(Side::A).qp;
    assert!(!qp.attach_counter(CountedOps::RECV | CountedOps::RDMA_READ, &other));
    assert!(qp.attach_counter(CountedOps::RDMA_READ, &other));
    pair.recv(Side::A, 1, &[]);
    let (none, attr) = (QpAttrMask::empty(), QpAttr::default());
    pair.modify(Side::A, QpState::Err, none, &attr);
    pair.run_for(1);
    assert_eq!(counter.values(), [0, 0, 1]);
    pair.modify(Side::A, QpState::Reset, none, &attr);
    let qp = &mut pair.node_mut(Side::A).qp;
    assert!(!qp.attach_counter(CountedOps::SEND, &other));
    assert_eq!(Arc::strong_count(&counter), 3);
    qp.abandon();
    assert_eq!(Arc::strong_count(&counter), 1);
}
