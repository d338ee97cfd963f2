//! Probe datagrams, by which queue pairs find out whether the peer is Rocade. Any other device
//! drops them (docs/dc.md).

use rocade_wire::{Bth, Deth, Opcode, Operation, Packet, Psn, Qkey, Qpn, RocadeProbe, Service};

use crate::peer::Peer;
use crate::transmit::{Head, TxBuffer};

/// Appends a probe or its answer. Returns false if there is no room.
pub(crate) fn push_probe(peer: &Peer, from: Qpn, probe: RocadeProbe, tx: &mut TxBuffer) -> bool {
    let payload = probe.to_bytes();
    let mut head = Head::new(Bth {
        opcode: Opcode::new(Service::Ud.base() | Operation::SendOnly.low_bits()),
        pkey: peer.pkey,
        ..Bth::new(Opcode::new(0), peer.qpn, Psn::new(0))
    });
    let deth = Deth {
        qkey: Qkey::new(RocadeProbe::QKEY),
        resv: 0,
        src_qp: from,
    };
    head.push(&deth.to_bytes());
    tx.fits(head.segment_len(payload.len()))
        && tx
            .push(&head, payload.len(), |room| {
                room.copy_from_slice(&payload);
                Ok::<(), ()>(())
            })
            .is_ok()
}

/// Returns the probe or answer in a datagram, and the QP number of its sender.
//= DCW-18
pub(crate) fn probe_of(packet: &Packet<'_>) -> Option<(RocadeProbe, Qpn)> {
    let headers = packet.headers();
    let deth = headers.deth?;
    let is_plain = headers.bth.opcode.operation() == Some(Operation::SendOnly);
    if !is_plain || deth.qkey.get() != RocadeProbe::QKEY {
        return None;
    }
    Some((RocadeProbe::from_payload(packet.payload())?, deth.src_qp))
}
