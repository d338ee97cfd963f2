//! FLUSH as Linux 6.12 sends it, with an ICRC that covers the packet twice.

use rocade_wire::{NakCode, Placement, Selectivity};

use super::*;

const CAPTURE: &str = "linux-6.12-flush/vec-flush.pcap";

/// Returns the ICRC that rxe computes: that of the packet, continued with the packet.
fn covered_twice(datagram: &Datagram<'_>, packet: &Packet<'_>) -> [u8; 4] {
    let flow = IcrcFlow::new(datagram.src, datagram.dst, datagram.src_port).unwrap();
    let once = flow.compute(datagram.ip_id, packet.covered());
    let mut crc = crc32fast::Hasher::new_with_initial(once);
    crc.update(packet.covered());
    crc.finalize().to_le_bytes()
}

/// Calls `visit` for every packet of the capture.
fn for_each(mut visit: impl FnMut(&[u8], &Datagram<'_>, &Packet<'_>)) {
    let datagrams = datagrams(&captures().join(CAPTURE));
    assert_eq!(datagrams.len(), 16);
    for bytes in datagrams {
        let datagram = Datagram::parse(&bytes).unwrap();
        let packet = Packet::parse(datagram.udp_payload).unwrap();
        visit(&bytes, &datagram, &packet);
    }
}

/// Checks that only the FLUSHes deviate, and only in the ICRC.
#[test]
//= RXE-17 type=test
fn the_icrc_of_a_flush_covers_the_packet_twice() {
    for_each(|bytes, datagram, packet| {
        assert!(packet.headers().agrees_with_opcode(), "{datagram}");
        let mut again = encode(datagram, packet.headers(), packet.payload(), packet.pad());
        let flow = IcrcFlow::new(datagram.src, datagram.dst, datagram.src_port).unwrap();
        let check = flow.check(datagram.ip_id, packet.covered(), packet.icrc_bytes());
        let is_bad = PrettyDatagram(bytes).to_string().contains("BAD_ICRC");
        if packet.bth().opcode.operation() == Some(Operation::Flush) {
            assert_eq!((check, is_bad), (IcrcCheck::Bad, true), "{datagram}");
            let icrc = covered_twice(datagram, packet);
            assert_eq!(packet.icrc_bytes(), icrc, "{datagram}");
            let at = again.len() - icrc.len();
            again[at..].copy_from_slice(&icrc);
        } else {
            let ip_id = datagram.ip_id;
            assert_eq!((check, is_bad), (IcrcCheck::Ok { ip_id }, false));
        }
        assert_eq!(again, bytes, "{datagram}");
    });
}

/// Checks the headers of both types and both levels, and rxe's answers.
#[test]
//= ETH-13 RXE-65 type=test
fn flushes_of_both_types_and_both_levels() {
    let mut flushes = BTreeMap::new();
    let mut answers = Vec::new();
    let mut written = None;
    for_each(|_, datagram, packet| {
        let headers = packet.headers();
        let reth = headers.reth.map(|reth| (reth.va, reth.rkey, reth.dma_len));
        match packet.bth().opcode.operation().unwrap() {
            Operation::WriteOnly => written = reth,
            Operation::Flush => {
                let feth = headers.feth.unwrap();
                assert!(packet.payload().is_empty() && packet.bth().ack_req);
                // rxe names the range also for a whole region.
                assert_eq!(reth, written);
                let kind = (feth.placement(), feth.selectivity());
                flushes.insert(datagram.src_port, kind);
            }
            // Those of the WRITEs have the first PSN.
            operation if packet.bth().psn != Psn::new(0x20_0000) => {
                let kind = flushes[&datagram.src_port];
                let syndrome = headers.aeth.unwrap().syndrome;
                assert!(packet.payload().is_empty());
                answers.push((kind, operation, syndrome));
            }
            _ => {}
        }
    });
    let levels = [Selectivity::Range, Selectivity::MemoryRegion];
    let read = |level| {
        let syndrome = Syndrome::Ack(CreditCode::INVALID);
        let kind = (Placement::GLOBAL_VISIBILITY, level);
        (kind, Operation::ReadResponseOnly, syndrome)
    };
    // The memory is not persistent, so the region lacks the right.
    let nak = |level| {
        let syndrome = Syndrome::Nak(NakCode::InvalidRequest);
        let kind = (Placement::PERSISTENCE, level);
        (kind, Operation::Acknowledge, syndrome)
    };
    let [range, region] = levels;
    assert_eq!(
        answers,
        [read(range), read(region), nak(range), nak(region)]
    );
}
