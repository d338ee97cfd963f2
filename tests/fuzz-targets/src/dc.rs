//! A DC initiator and a DC target that receive arbitrary packets while the initiator works.
//!
//! There must be no panic and no write without access rights. Each work request completes exactly
//! once.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::program::{Regions, Source, packet, send_wr};
use rocade_transport::testing::{Delivery, Fabric, NodeId, TestMemory};
use rocade_transport::{DciStreams, SendOp};
use rocade_wire::{Packet, Qkey, Qpn, RocadeProbe, Service};

const KEY: u64 = 0x1234;

/// Runs one input.
pub fn run(input: &[u8]) {
    let mut source = Source(input);
    let mut run = Run::new(&mut source);
    while !source.0.is_empty() {
        run.command(&mut source);
    }
    run.end();
}

struct Run {
    fabric: Fabric,
    dci: NodeId,
    dct: NodeId,
    regions: [Regions; 2],
    psns: [u32; 2],
    open: [BTreeSet<u64>; 2],
    next: u64,
}

impl Run {
    fn new(source: &mut Source<'_>) -> Self {
        let streams = (source.byte() & 1 == 1).then_some(DciStreams {
            log_concurrent: 1,
            log_errored: 1,
        });
        let mut fabric = Fabric::default();
        let dci = fabric.add_initiator(1, streams, |setup| setup.attr.path_mtu = 1);
        let dct = fabric.add_target(2, KEY, |setup| setup.attr.path_mtu = 1);
        let nodes = [dci, dct];
        let regions = nodes.map(|id| Regions::new(&fabric.node(id).mem, TestMemory::PD));
        Self {
            fabric,
            dci,
            dct,
            regions,
            psns: [0xff_fff0; 2],
            open: [BTreeSet::new(), BTreeSet::new()],
            next: 0,
        }
    }

    fn command(&mut self, source: &mut Source<'_>) {
        match source.byte() % 8 {
            0 | 1 => self.post(source),
            2 => self.receive(source),
            3 => self.fabric.run_for(u64::from(source.byte()) << 16),
            4 => {
                let lost = source.byte() & 1 == 1;
                self.fabric.set_network(move |_| {
                    if lost {
                        Delivery::Drop
                    } else {
                        Delivery::Deliver
                    }
                });
            }
            command => self.packet(source, usize::from(command & 1)),
        }
        self.settle();
    }

    fn post(&mut self, source: &mut Source<'_>) {
        let mut to = self.fabric.to(self.dci, self.dct, KEY);
        to.stream = u16::from(source.byte() % 4);
        if source.byte() >= 0xf0 {
            to.key ^= u64::from(source.word());
        }
        let sges = self.regions[0].sges(source);
        let wr = send_wr(source, self.next, &self.regions[1], &sges);
        if matches!(wr.op, SendOp::Invalidate { .. }) {
            return;
        }
        let posted = self.fabric.try_post(self.dci, to, wr.wr_id, wr.op, wr.sges);
        if posted.is_ok() {
            self.open[0].insert(self.next);
            self.next += 1;
        }
    }

    fn receive(&mut self, source: &mut Source<'_>) {
        let sges = self.regions[1].sges(source);
        let node = self.fabric.node(self.dct);
        let Some(srq) = &node.srq else { return };
        if srq.with(|srq| srq.post(self.next, &sges)).is_ok() {
            self.open[1].insert(self.next);
            self.next += 1;
        }
    }

    fn packet(&mut self, source: &mut Source<'_>, to: usize) {
        let id = [self.dci, self.dct][to];
        let (own, other) = (
            self.fabric.node(id),
            self.fabric.node([self.dct, self.dci][to]),
        );
        let (number, from, dci) = (
            own.qp.qp_num(),
            other.ip,
            self.fabric.node(self.dci).qp.qp_num(),
        );
        let is_probe = source.byte() >= 0xe0;
        let service = if is_probe { Service::Ud } else { Service::Dc };
        let destination = (number, &mut self.psns[to]);
        let regions = &self.regions[1];
        let bytes = packet(source, service, destination, regions, |source, headers| {
            if let Some(eth) = &mut headers.dceth {
                eth.key = if source.byte() < 0xf0 {
                    KEY
                } else {
                    u64::from(source.word())
                };
                let flags = source.byte();
                eth.start = flags & 1 == 1;
                eth.pmtu = if flags < 0xc0 { 1 } else { flags & 7 };
                eth.stream_channel = flags >> 1 & 1;
                eth.dci = if flags & 4 == 0 {
                    dci
                } else {
                    Qpn::new(source.number())
                };
                eth.session = (u32::MAX - 2).wrapping_add(source.number());
            }
            if let Some(eth) = &mut headers.dcreth {
                eth.session = (u32::MAX - 2).wrapping_add(source.number());
            }
            if let Some(deth) = &mut headers.deth {
                deth.qkey = Qkey::new(RocadeProbe::QKEY);
                deth.src_qp = dci;
            }
        });
        if Packet::parse(&bytes).is_ok() {
            let elsewhere = source.byte() >= 0xf0;
            let source = if elsewhere {
                IpAddr::from([10, 0, 0, 9])
            } else {
                from
            };
            self.fabric.inject(source, id, &bytes);
        }
    }

    fn settle(&mut self) {
        self.fabric.clear_trace();
        for (id, open) in [self.dci, self.dct].into_iter().zip(&mut self.open) {
            for completion in self.fabric.take_completions(id) {
                assert!(
                    open.remove(&completion.wr_id),
                    "{completion:?} completes twice"
                );
            }
        }
    }

    /// Without a peer every outstanding request fails eventually.
    fn end(mut self) {
        self.fabric.set_network(|_| Delivery::Drop);
        self.fabric.run();
        self.settle();
        assert!(
            self.open[0].is_empty(),
            "requests without a completion: {:?}",
            self.open[0]
        );
        for (id, regions) in [self.dci, self.dct].into_iter().zip(&self.regions) {
            regions.assert_untouched(&self.fabric.node(id).mem);
        }
    }
}
