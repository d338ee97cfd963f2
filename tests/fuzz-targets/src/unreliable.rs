//! UC and UD QPs that receive arbitrary packets and commands.
//!
//! The first byte of the input selects the service, and the rest is a program. There must be no
//! panic, no write without access rights, and no response. Each work request completes exactly
//! once, at the latest when the queues are flushed.

use std::collections::BTreeSet;

use crate::program::{Regions, Source, packet, send_wr};
use rocade_transport::testing::{Delivery, Pair, Side, TestMemory};
use rocade_transport::{Destination, QpAttr, QpAttrMask, QpState, QpType, RouteTag, WcStatus};
use rocade_wire::{Packet, Qkey, Qpn, Service};

const QKEY: u32 = 0x1111_1111;
const TO_B: Qpn = Qpn::new(0x22);

/// Runs one input.
pub fn run(input: &[u8]) {
    let mut source = Source(input);
    let is_ud = source.byte() & 1 == 1;
    let mut run = Run::new(is_ud);
    while !source.0.is_empty() {
        run.command(&mut source);
    }
    run.end();
}

struct Run {
    pair: Pair,
    is_ud: bool,
    /// The memory regions of A, which sends, and of B, which receives.
    regions: [Regions; 2],
    psn: u32,
    /// The outstanding work requests: A's sends, B's receives.
    open: [BTreeSet<u64>; 2],
    next: u64,
}

impl Run {
    fn new(is_ud: bool) -> Self {
        let mut pair = Pair::new(|_, setup| {
            setup.config.qp_type = if is_ud { QpType::Ud } else { QpType::Uc };
            // Datagrams are as long as the port allows.
            setup.attr.path_mtu = if is_ud { 5 } else { 1 };
            setup.attr.qkey = QKEY;
        });
        pair.stop_tracing();
        let regions = Side::BOTH.map(|side| Regions::new(&pair.node(side).mem, TestMemory::PD));
        Self {
            pair,
            is_ud,
            regions,
            psn: 0x10_0000,
            open: [BTreeSet::new(), BTreeSet::new()],
            next: 0,
        }
    }

    fn command(&mut self, source: &mut Source<'_>) {
        match source.byte() % 8 {
            0 => self.send(source),
            1 => self.receive(source),
            2 => self.pair.run_for(source.word().into()),
            3 => {
                let lost = source.byte() & 1 == 1;
                self.pair.set_network(move |_| {
                    if lost {
                        Delivery::Drop
                    } else {
                        Delivery::Deliver
                    }
                });
            }
            _ => self.packet(source),
        }
        self.settle();
    }

    fn send(&mut self, source: &mut Source<'_>) {
        let sges = self.regions[0].sges(source);
        let wr = send_wr(source, self.next, &self.regions[1], &sges);
        let now = self.pair.now();
        let qp = &mut self.pair.node_mut(Side::A).qp;
        let posted = if self.is_ud {
            let to = Destination {
                route: RouteTag(source.byte().into()),
                dest_qp: TO_B,
                qkey: Qkey::new(if source.byte() < 0xf0 {
                    QKEY
                } else {
                    source.word()
                }),
            };
            qp.post_datagram(now, &wr, to, None)
        } else {
            qp.post_send(now, &wr, None)
        };
        if posted.is_ok() {
            self.open[0].insert(self.next);
            self.next += 1;
        }
    }

    fn receive(&mut self, source: &mut Source<'_>) {
        let sges = self.regions[1].sges(source);
        let now = self.pair.now();
        let qp = &mut self.pair.node_mut(Side::B).qp;
        if qp.post_recv(now, self.next, &sges).is_ok() {
            self.open[1].insert(self.next);
            self.next += 1;
        }
    }

    fn packet(&mut self, source: &mut Source<'_>) {
        let service = if self.is_ud { Service::Ud } else { Service::Uc };
        let to = (TO_B, &mut self.psn);
        let bytes = packet(source, service, to, &self.regions[1], |source, headers| {
            if let Some(deth) = &mut headers.deth {
                let is_right = source.byte() < 0xe0;
                deth.qkey = Qkey::new(if is_right { QKEY } else { source.word() });
                deth.src_qp = Qpn::new(source.number());
            }
        });
        if Packet::parse(&bytes).is_ok() {
            self.pair.inject(Side::B, &bytes);
        }
    }

    fn settle(&mut self) {
        self.pair.drain_both();
        for (side, open) in Side::BOTH.into_iter().zip(&mut self.open) {
            for completion in self.pair.take_completions(side) {
                assert!(
                    open.remove(&completion.wr_id),
                    "{completion:?} completes twice"
                );
            }
        }
        let sent = self.pair.node(Side::B).qp.counters().tx_packets;
        assert_eq!(sent, 0, "the responder sends nothing");
        if self.pair.node(Side::A).qp.state() == QpState::Sqe {
            let none = QpAttr::default();
            self.pair
                .modify(Side::A, QpState::Rts, QpAttrMask::empty(), &none);
        }
    }

    fn end(mut self) {
        for side in Side::BOTH {
            let is_up = self.pair.node(side).qp.state() != QpState::Err;
            if is_up {
                let none = QpAttr::default();
                self.pair
                    .modify(side, QpState::Err, QpAttrMask::empty(), &none);
            }
        }
        self.pair.drain_both();
        for (side, open) in Side::BOTH.into_iter().zip(&mut self.open) {
            for completion in self.pair.take_completions(side) {
                assert!(
                    open.remove(&completion.wr_id),
                    "{completion:?} completes twice"
                );
                let is_over = matches!(
                    completion.status,
                    WcStatus::Success | WcStatus::WrFlushErr | WcStatus::LocProtErr
                );
                assert!(is_over, "{completion:?}");
            }
            assert!(open.is_empty(), "requests without a completion: {open:?}");
            assert_eq!(self.pair.node(side).qp.next_timeout(), None);
        }
        for (side, regions) in Side::BOTH.into_iter().zip(&self.regions) {
            regions.assert_untouched(&self.pair.node(side).mem);
        }
    }
}
