//! An XRC target that receives arbitrary packets, which name one of two shared receive queues, or
//! none.
//!
//! There must be no panic, no write outside of the protection domain of the named queue, and no
//! unbounded output. Each receive completes exactly once.

#[allow(dead_code, reason = "the initiator sends nothing")]
use std::collections::BTreeSet;
use std::sync::Arc;

use crate::program::{Regions, Source, packet};
use rocade_transport::testing::{Delivery, Pair, Side, TestDomain, TestMemory, TestSrq};
use rocade_transport::{PdTag, QpAttr, QpAttrMask, QpState, QpType, Srqn};
use rocade_wire::{Packet, Qpn, Service};

const OTHER: Srqn = Srqn::new(0x01_0002);
const OTHER_PROCESS: Srqn = Srqn::new(0x01_0003);
const ROOM: u32 = 8;

/// Runs one input.
pub fn run(input: &[u8]) {
    let mut source = Source(input);
    let domain = Arc::new(TestDomain::default());
    // One queue has the protection domain of the good region, the other one an unused one.
    let srqs = [TestMemory::PD, PdTag(77)].map(|pd| Arc::new(TestSrq::new(pd, ROOM)));
    domain.set(TestDomain::FIRST, Some(&srqs[0]));
    domain.set(OTHER, Some(&srqs[1]));
    domain.set_in_other_process(OTHER_PROCESS);
    let depth = source.byte() % 4;
    let mut pair = Pair::in_states(QpState::Rts, QpState::Rtr, |side, setup| {
        setup.config.qp_type = match side {
            Side::A => QpType::XrcSend,
            Side::B => QpType::XrcRecv,
        };
        setup.attr.path_mtu = 1;
        setup.attr.max_dest_rd_atomic = depth;
        if side == Side::B {
            setup.config.pd = PdTag(0);
            setup.domain = Some(Arc::clone(&domain));
        }
    });
    pair.stop_tracing();
    pair.set_network(|_| Delivery::Drop);
    let regions = Regions::new(&pair.node(Side::B).mem, TestMemory::PD);
    let (mut psn, mut next, mut open) = (0x10_0000, 0, BTreeSet::new());
    while !source.0.is_empty() {
        match source.byte() % 8 {
            0 => {
                let srq = &srqs[usize::from(source.byte() & 1)];
                let sges = regions.sges(&mut source);
                if srq.with(|srq| srq.post(next, &sges)).is_ok() {
                    open.insert(next);
                    next += 1;
                }
            }
            1 => pair.run_for(u64::from(source.byte()) << 16),
            _ => {
                let to = (Qpn::new(0x22), &mut psn);
                let bytes = packet(
                    &mut source,
                    Service::Xrc,
                    to,
                    &regions,
                    |source, headers| {
                        if let Some(eth) = &mut headers.xrceth {
                            eth.srqn = match source.byte() {
                                0..=0xbf => TestDomain::FIRST.get(),
                                0xc0..=0xdf => OTHER.get(),
                                0xe0..=0xef => OTHER_PROCESS.get(),
                                _ => source.word() & 0xff_ffff,
                            };
                        }
                    },
                );
                if Packet::parse(&bytes).is_ok() {
                    pair.inject(Side::B, &bytes);
                }
            }
        }
        settle(&mut pair, &mut open);
    }
    if pair.node(Side::B).qp.state() != QpState::Err {
        let none = QpAttr::default();
        pair.modify(Side::B, QpState::Err, QpAttrMask::empty(), &none);
    }
    settle(&mut pair, &mut open);
    // The receives that no message has consumed are still in their queue.
    let queued: usize = srqs.iter().map(|srq| srq.with(|srq| srq.queued())).sum();
    assert_eq!(open.len(), queued);
    regions.assert_untouched(&pair.node(Side::B).mem);
}

fn settle(pair: &mut Pair, open: &mut BTreeSet<u64>) {
    pair.drain_both();
    for completion in pair.take_completions(Side::B) {
        assert!(
            open.remove(&completion.wr_id),
            "{completion:?} completes twice"
        );
    }
}
