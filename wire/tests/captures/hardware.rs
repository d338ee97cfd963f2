//! Frames of real NICs: two recorded files, and frames with the fields of others.

use std::collections::BTreeMap;

use rocade_wire::mad::{CmTimeout, Failover, GSI_QKEY};
use rocade_wire::{MaskedEth, Opcode, Pkey};

use super::frames::{CONVERSATIONS, Frame, Place, frames, message};
use super::*;

/// Recorded files, and the number of their packets.
const FILES: [(&str, usize); 2] = [
    ("mellanox-ack-credits", 1),
    ("mellanox-cm-send-ack-vlan", 5),
];

fn recorded(name: &str) -> Vec<Vec<u8>> {
    datagrams(&captures().join(format!("hardware/{name}.pcap")))
}

/// Calls `visit` for every frame of every conversation.
fn for_each_frame(mut visit: impl FnMut(&'static str, &Frame, &Datagram<'_>, &Packet<'_>)) {
    for (conversation, count) in CONVERSATIONS {
        let all = frames(conversation);
        assert_eq!(all.len(), count, "{conversation}");
        for frame in all {
            let bytes = frame.datagram(Place::ANY);
            let datagram = Datagram::parse(&bytes).unwrap();
            let packet = Packet::parse(datagram.udp_payload).unwrap();
            visit(conversation, &frame, &datagram, &packet);
        }
    }
}

/// Checks that a datagram is read in whole, has a right ICRC, and is written as it was.
fn is_read_and_written(bytes: &[u8]) {
    let datagram = Datagram::parse(bytes).unwrap();
    assert!(datagram.is_roce());
    let packet = Packet::parse(datagram.udp_payload).unwrap();
    let context = PrettyDatagram(bytes).to_string();
    assert!(packet.headers().agrees_with_opcode(), "{context}");
    let rule = packet.bth().opcode.payload_rule().unwrap();
    assert!(rule.allows(packet.payload().len(), 1024), "{context}");
    assert!(!context.contains("BAD_ICRC"), "{context}");
    let icrc = icrc::datagram(bytes).map(u32::to_le_bytes);
    assert_eq!(icrc, Some(packet.icrc_bytes()), "{context}");
    let again = encode(&datagram, packet.headers(), packet.payload(), packet.pad());
    assert_eq!(again, bytes, "{context}");
    if packet.bth().dest_qp == Qpn::GSI {
        let mad = Mad::parse(packet.payload()).unwrap();
        assert_eq!(mad.to_bytes(), packet.payload(), "{mad}");
    }
}

//= HW-10 type=test
#[test]
fn recorded_frames_of_hardware_are_read_in_whole() {
    for (name, count) in FILES {
        let datagrams = recorded(name);
        assert_eq!(datagrams.len(), count, "{name}");
        datagrams
            .iter()
            .for_each(|bytes| is_read_and_written(bytes));
    }
}

#[test]
fn frames_with_the_fields_of_hardware_are_read_in_whole() {
    for_each_frame(|_, frame, _, _| is_read_and_written(&frame.datagram(Place::ANY)));
}

/// Checks that the table has the fields of the recorded files.
#[test]
fn the_table_and_the_files_agree() {
    for (conversation, file) in [
        ("ack-credits", "mellanox-ack-credits"),
        ("send-ack-vlan", "mellanox-cm-send-ack-vlan"),
    ] {
        let all = frames(conversation);
        for (frame, bytes) in all.iter().zip(recorded(file)) {
            let datagram = Datagram::parse(&bytes).unwrap();
            let packet = Packet::parse(datagram.udp_payload).unwrap();
            assert_eq!(*packet.bth(), frame.bth, "{datagram}");
            let own = frame.packet(Place::ANY);
            let own = Packet::parse(&own).unwrap();
            assert_eq!(packet.headers(), own.headers(), "{datagram}");
            assert_eq!(packet.payload().len(), own.payload().len(), "{datagram}");
            let ip = (datagram.tos, datagram.ip_id, datagram.src_port);
            assert_eq!(ip, (frame.tos, frame.ip_id, frame.src_port), "{datagram}");
        }
    }
}

/// Checks every field that has one value, or one per NIC, in all frames.
//= HW-01 HW-02 HW-03 type=test
//= HW-05 HW-06 type=test
#[test]
fn fields_are_those_that_the_rules_say() {
    let mut ports: BTreeMap<&str, BTreeSet<u16>> = BTreeMap::new();
    for_each_frame(|conversation, frame, datagram, packet| {
        let (bth, context) = (packet.bth(), format!("{conversation} {datagram}"));
        let is_cnp = bth.opcode == Opcode::CNP;
        assert_eq!(bth.migreq, !is_cnp, "{context}");
        assert_eq!(datagram.tos, if is_cnp { 0xc2 } else { 0x02 }, "{context}");
        assert!(datagram.dont_fragment && datagram.ttl == 64, "{context}");
        assert_eq!((datagram.udp_checksum, bth.pkey), (0, Pkey::DEFAULT));
        assert_eq!(
            (bth.fecn, bth.becn, bth.tver),
            (false, is_cnp, 0),
            "{context}"
        );
        assert_eq!((bth.solicited, bth.resv7), (false, 0), "{context}");
        let is_huawei = conversation == "send-imm";
        let is_request = bth.opcode.operation().unwrap().is_request();
        // A reserved bit, which the ICRC masks.
        let reserved = if is_huawei && is_request { 0x10 } else { 0 };
        assert_eq!(bth.resv6, reserved, "{context}");
        if is_huawei {
            // The port is the sender's QPN, the destination of the other end.
            let own = if frame.from_a { 0x45 } else { 0x48 };
            assert_eq!((datagram.src_port, datagram.ip_id), (own, 0), "{context}");
        } else if is_cnp {
            assert_eq!(
                (datagram.src_port, bth.psn.get(), bth.ack_req),
                (0, 0, false)
            );
            assert_eq!(packet.payload(), [0; 16]);
            assert_eq!(datagram.udp_payload.len() + 8, 40);
        } else {
            assert!(datagram.src_port >= 0xc000, "{context}");
            ports
                .entry(conversation)
                .or_default()
                .insert(datagram.src_port);
        }
    });
    // One port for a connection, in both directions, and for its messages.
    assert_eq!(ports.len(), 5);
    assert!(ports.values().all(|ports| ports.len() == 1), "{ports:?}");
}

/// Checks that the credits are those of receives, and never "no limit".
//= HW-04 HW-07 type=test
#[test]
fn acknowledgements_tell_of_few_credits() {
    let mut codes: BTreeMap<&str, BTreeSet<u8>> = BTreeMap::new();
    let mut msns = Vec::new();
    for_each_frame(|conversation, _, _, packet| {
        let Some(aeth) = packet.headers().aeth else {
            return;
        };
        if let Syndrome::Ack(code) = aeth.syndrome {
            codes.entry(conversation).or_default().insert(code.code());
        }
        if conversation == "send-ack-vlan" {
            msns.push(aeth.msn.get());
        }
    });
    let all: Vec<(&str, Vec<u8>)> = codes
        .into_iter()
        .map(|(conversation, codes)| (conversation, codes.into_iter().collect()))
        .collect();
    let expected: [(&str, &[u8]); 5] = [
        ("ack-credits", &[0x0d]),
        ("masked-cas", &[0]),
        ("send-ack-vlan", &[0]),
        ("send-imm", &[5, 6]),
        ("vf-ack-cnp", &[0]),
    ];
    assert_eq!(all, expected.map(|(name, codes)| (name, codes.to_vec())));
    assert_eq!(msns, [2, 4], "one for two messages");
}

/// Checks the header of 44 bytes and the operands behind it.
//= HW-11 XAW-10 type=test
#[test]
fn a_masked_compare_and_swap_has_44_bytes() {
    let mut count = 0;
    for_each_frame(|_, frame, datagram, packet| {
        if packet.bth().opcode.get() != 0x18 {
            return;
        }
        count += 1;
        assert_eq!(datagram.udp_payload.len(), 12 + 44 + 4);
        let bytes = &datagram.udp_payload[12..];
        let word = |at: usize| u64::from_be_bytes(*bytes[at..].first_chunk().unwrap());
        let operands = ["swap", "compare", "swap_mask", "compare_mask"];
        let expected = operands.map(|name| frame.field(name).unwrap());
        assert_eq!([12, 20, 28, 36].map(word), expected);
        let va = Place::ANY.va + frame.field("va").unwrap();
        let masked = MaskedEth {
            va,
            rkey: Place::ANY.rkey,
            log_size: 3,
            resv: [0; 3],
        };
        assert_eq!(packet.headers().masked, Some(masked));
        assert_eq!(word(0), va);
        let text = packet.to_string();
        assert!(text.starts_with("RC MASKED_CMP_SWAP "), "{text}");
    });
    assert_eq!(count, 3 + 14);
}

/// Checks the values of a REQ and a REP, those of the REQ against a recorded one.
//= HW-09 type=test
#[test]
fn messages_of_the_connection_manager() {
    let datagrams = recorded("mellanox-cm-send-ack-vlan");
    let mut psns = Vec::new();
    let mut mads = datagrams.iter().filter_map(|bytes| {
        let datagram = Datagram::parse(bytes).unwrap();
        let packet = Packet::parse(datagram.udp_payload).unwrap();
        if packet.bth().dest_qp != Qpn::GSI {
            return None;
        }
        psns.push(packet.bth().psn.get());
        assert_eq!(packet.headers().deth.unwrap().qkey, GSI_QKEY);
        assert_eq!(packet.payload().len(), 256);
        assert!(!packet.bth().ack_req && !packet.bth().solicited);
        Some(Mad::parse(packet.payload()).unwrap())
    });
    let (Some(CmMessage::Req(theirs)), CmMessage::Req(own)) =
        (mads.next().map(|mad| mad.message), message("REQ"))
    else {
        panic!("no REQ")
    };
    let Some(CmMessage::Rtu(_)) = mads.next().map(|mad| mad.message) else {
        panic!("no RTU")
    };
    assert!(mads.next().is_none());
    for (req, rate, timeout) in [(&theirs, 0, 18), (&own, 7, 19)] {
        assert_eq!((req.responder_resources, req.initiator_depth), (16, 16));
        assert_eq!(
            (req.max_cm_retries, req.flow_control, req.srq),
            (15, false, false)
        );
        let path = &req.primary;
        assert_eq!(
            (path.hop_limit, path.local_lid, path.remote_lid),
            (64, 0xffff, 0xffff)
        );
        assert_eq!((path.packet_rate, path.ack_timeout.code()), (rate, timeout));
        assert_eq!(req.remote_response_timeout, CmTimeout::new(22));
        assert_eq!(req.local_response_timeout, CmTimeout::new(22));
        assert_eq!((req.pkey, req.mtu), (Pkey::DEFAULT, 3));
        let header = IpCmHeader::parse(&req.private_data).unwrap();
        assert!(header.src.is_ipv4());
    }
    let CmMessage::Rep(rep) = message("REP") else {
        panic!("no REP")
    };
    assert_eq!(rep.target_ack_delay, CmTimeout::new(16));
    assert_eq!(
        (rep.failover, rep.flow_control),
        (Failover::Accepted, false)
    );
    assert_eq!(psns[1], psns[0] + 1);
    // Each side counts its messages, those of all connections.
    let gsi = |from_a: bool| {
        let of = frames("masked-cas").into_iter();
        let of = of.filter(|frame| frame.bth.dest_qp == Qpn::GSI && frame.from_a == from_a);
        of.map(|frame| frame.bth.psn.get()).collect::<Vec<_>>()
    };
    assert_eq!(gsi(true), [0x70b, 0x70c, 0x70d]);
    assert_eq!(gsi(false), [0x453, 0x454]);
}

/// Checks that ConnectX derives its source port from the flow label as Linux does.
//= HW-03 ENC-04 type=test
#[test]
fn the_source_port_follows_from_the_flow_label() {
    let datagrams = recorded("mellanox-cm-send-ack-vlan");
    let first = Datagram::parse(&datagrams[0]).unwrap();
    let mad = Mad::parse(Packet::parse(first.udp_payload).unwrap().payload()).unwrap();
    let CmMessage::Req(req) = mad.message else {
        panic!("no REQ")
    };
    let port = ip::source_port_of_flow_label(req.primary.flow_label);
    assert_eq!((req.primary.flow_label, port), (0x5_ba59, 0xfa4f));
    for bytes in &datagrams {
        assert_eq!(Datagram::parse(bytes).unwrap().src_port, port);
    }
}

/// Checks the gaps between the repetitions of a request, which no fixed timeout has.
//= HW-08 type=test
#[test]
fn repetitions_become_rarer() {
    let all = frames("masked-cas-retry");
    let requests = || all.iter().filter(|frame| frame.bth.opcode.get() == 0x18);
    let times: Vec<f64> = requests().map(|frame| frame.ms).collect();
    let gaps: Vec<f64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert_eq!(gaps.len(), 13);
    assert!(
        gaps[3..].windows(2).all(|pair| pair[1] > pair[0]),
        "{gaps:?}"
    );
    assert!(gaps[0] < 4.0 && gaps[12] > 3_000.0, "{gaps:?}");
    let psns: BTreeSet<u32> = requests().map(|frame| frame.bth.psn.get()).collect();
    let ids: BTreeSet<u16> = requests().map(|frame| frame.ip_id).collect();
    assert_eq!((psns.len(), ids.len()), (1, 14));
}
