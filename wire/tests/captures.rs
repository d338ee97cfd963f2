//! Packets of the Linux kernel's RoCE device (`rdma_rxe`), recorded on the wire.
//!
//! Each must decode, encode to the same bytes, and carry the ICRC that Rocade computes.

#![expect(
    clippy::unwrap_used,
    reason = "the helpers of a test, too, fail by panicking"
)]

#[path = "captures/flush.rs"]
mod flush;
#[allow(dead_code, reason = "tests of other crates use the rest")]
#[path = "../../tests/captures/hardware/frames.rs"]
mod frames;
#[path = "captures/hardware.rs"]
mod hardware;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use etherparse::{NetSlice, SlicedPacket, TransportSlice};
use pcap_file::pcap::PcapReader;
use rocade_wire::icrc::{self, IcrcCheck, IcrcFlow};
use rocade_wire::ip::{self, Datagram};
use rocade_wire::mad::{
    CmMessage, CommId, IpCmHeader, Mad, RejReason, Rejected, ServiceId, SidrStatus,
};
use rocade_wire::{
    CreditCode, Headers, Operation, Packet, PrettyDatagram, Psn, Qkey, Qpn, Service, Syndrome,
};

/// Packets per folder. The test fails if a capture is missing or not read.
const PACKETS: [(&str, usize); 4] = [
    ("host", 8),
    ("linux-6.1-mtu1500", 1161),
    ("linux-6.1-mtu4200", 218),
    ("linux-6.12-mtu1500", 1165),
];

const ETHERNET_HEADER_LEN: usize = 14;
/// The EtherType of a tag of 802.1Q.
const VLAN: [u8; 2] = [0x81, 0x00];
const PROTOCOL_IGMP: u8 = 2;

fn captures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/captures")
}

fn pcaps(folder: &str) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = fs::read_dir(captures().join(folder))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == "pcap")
        })
        .collect();
    files.sort();
    files
}

/// Returns the RoCEv2 datagrams of a capture, from the IP header on, cut to the IP length.
fn datagrams(path: &Path) -> Vec<Vec<u8>> {
    let mut reader = PcapReader::new(File::open(path).unwrap()).unwrap();
    let mut datagrams = Vec::new();
    while let Some(record) = reader.next_packet() {
        let record = record.unwrap();
        let frame = &record.data;
        assert_eq!(
            frame.len(),
            usize::try_from(record.orig_len).unwrap(),
            "cut frame"
        );
        let tag_len = if frame[12..14] == VLAN { 4 } else { 0 };
        let (ethernet, ip) = frame.split_at(ETHERNET_HEADER_LEN + tag_len);
        let ip_len = match ethernet[12 + tag_len..] {
            // Multicast captures also contain the membership reports.
            [0x08, 0x00] if ip[9] == PROTOCOL_IGMP => continue,
            [0x08, 0x00] => usize::from(u16::from_be_bytes([ip[2], ip[3]])),
            [0x86, 0xdd] => 40 + usize::from(u16::from_be_bytes([ip[4], ip[5]])),
            ref other => panic!("ethertype {other:02x?} in {}", path.display()),
        };
        datagrams.push(ip[..ip_len].to_vec());
    }
    datagrams
}

/// Calls `visit` for every packet of every capture. Returns the number of packets.
fn for_each_packet(mut visit: impl FnMut(&Path, &[u8], &Datagram<'_>, &Packet<'_>)) -> usize {
    let mut total = 0;
    for (folder, expected) in PACKETS {
        let mut count = 0;
        for path in pcaps(folder) {
            for bytes in datagrams(&path) {
                let datagram = Datagram::parse(&bytes)
                    .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
                assert!(datagram.is_roce());
                let packet = Packet::parse(datagram.udp_payload)
                    .unwrap_or_else(|error| panic!("{}: {datagram}: {error}", path.display()));
                visit(&path, &bytes, &datagram, &packet);
                count += 1;
            }
        }
        assert_eq!(count, expected, "packets in {folder}");
        total += count;
    }
    assert_eq!(total, 2552);
    total
}

/// Reassembles a datagram from the output of the decoder.
fn encode(datagram: &Datagram<'_>, headers: &Headers, payload: &[u8], pad: &[u8]) -> Vec<u8> {
    let mut udp_payload = vec![0; headers.len()];
    headers.emit(&mut udp_payload).unwrap();
    udp_payload.extend(payload);
    udp_payload.extend(pad);
    let flow = IcrcFlow::new(datagram.src, datagram.dst, datagram.src_port).unwrap();
    let icrc = flow.compute(datagram.ip_id, &udp_payload);
    udp_payload.extend(icrc.to_le_bytes());
    let datagram = Datagram {
        udp_payload: &udp_payload,
        ..*datagram
    };
    let mut out = vec![0; datagram.len()];
    datagram.emit(&mut out).unwrap();
    out
}

#[test]
//= ENC-01 type=test
//= OPC-35 type=test
fn packets_decode_and_encode_to_the_same_bytes() {
    for_each_packet(|path, bytes, datagram, packet| {
        assert!(packet.headers().agrees_with_opcode());
        let again = encode(datagram, packet.headers(), packet.payload(), packet.pad());
        assert_eq!(again, bytes, "{}: {datagram}", path.display());
        let printed = PrettyDatagram(bytes).to_string();
        assert!(
            !printed.contains('\n') && !printed.contains("BAD_ICRC"),
            "{printed}"
        );
    });
}

/// Compares IP and UDP fields with those of an independent parser.
#[test]
fn another_parser_reads_the_same_from_ip_and_udp() {
    for_each_packet(|path, bytes, datagram, _| {
        let theirs = SlicedPacket::from_ip(bytes).unwrap();
        let (src, dst, ttl, id): (IpAddr, IpAddr, _, _) = match theirs.net {
            Some(NetSlice::Ipv4(ip)) => {
                let ip = ip.header();
                assert_eq!(ip.dont_fragment(), datagram.dont_fragment);
                let addresses = (ip.source_addr().into(), ip.destination_addr().into());
                (addresses.0, addresses.1, ip.ttl(), ip.identification())
            }
            Some(NetSlice::Ipv6(ip)) => {
                let ip = ip.header();
                assert_eq!(ip.flow_label().value(), datagram.flow_label);
                let addresses = (ip.source_addr().into(), ip.destination_addr().into());
                (addresses.0, addresses.1, ip.hop_limit(), 0)
            }
            ref other => panic!("{other:?} in {}", path.display()),
        };
        let ours = (datagram.src, datagram.dst, datagram.ttl, datagram.ip_id);
        assert_eq!((src, dst, ttl, id), ours, "{}", path.display());
        let Some(TransportSlice::Udp(udp)) = theirs.transport else {
            panic!("no UDP in {}", path.display());
        };
        assert_eq!(
            (udp.source_port(), udp.destination_port(), udp.checksum()),
            (datagram.src_port, datagram.dst_port, datagram.udp_checksum)
        );
        assert_eq!(udp.payload(), datagram.udp_payload);
    });
}

#[test]
//= ICRC-08 type=test
//= ICRC-13 type=test
fn icrc_is_right_and_the_identification_is_found() {
    let mut solved = 0;
    for_each_packet(|path, bytes, datagram, packet| {
        let context = format!("{}: {datagram}", path.display());
        let on_wire = packet.icrc_bytes();
        assert_eq!(
            icrc::datagram(bytes).map(u32::to_le_bytes),
            Some(on_wire),
            "{context}"
        );
        let flow = IcrcFlow::new(datagram.src, datagram.dst, datagram.src_port).unwrap();
        let right = IcrcCheck::Ok {
            ip_id: datagram.ip_id,
        };
        assert_eq!(
            flow.check(datagram.ip_id, packet.covered(), on_wire),
            right,
            "{context}"
        );
        assert_eq!(flow.check(0, packet.covered(), on_wire), right, "{context}");
        solved += usize::from(datagram.ip_id != 0);

        let other_flow = IcrcFlow::new(datagram.src, datagram.dst, datagram.src_port ^ 1).unwrap();
        let check = other_flow.check(datagram.ip_id, packet.covered(), on_wire);
        assert_eq!(check, IcrcCheck::Bad, "{context}");
    });
    // One IPv4 packet came from an ordinary UDP socket, which leaves the Identification 0.
    assert_eq!(solved, 2240 - 1);
}

#[test]
//= ENC-02 type=test
//= ENC-07 type=test
//= BTH-02 type=test
//= BTH-11 type=test
fn fields_are_in_the_places_where_rxe_puts_them() {
    for_each_packet(|path, _, datagram, packet| {
        let context = format!("{}: {datagram}", path.display());
        // The answers in `host` are not from rxe.
        if path.starts_with(captures().join("host")) {
            return;
        }
        let bth = packet.bth();
        let operation = bth
            .opcode
            .operation()
            .expect("rxe sends defined codes only");
        assert!(datagram.dont_fragment && datagram.ttl == 64, "{context}");
        assert_eq!(
            (datagram.flow_label, datagram.src_port >= 0xc000),
            (0, true),
            "{context}"
        );
        assert!(!bth.migreq && !bth.fecn && !bth.becn, "{context}");
        assert_eq!(
            (bth.tver, bth.resv6, bth.resv7, bth.pkey.get()),
            (0, 0, 0, 0xffff)
        );
        let rc = bth.opcode.service() == Service::Rc;
        assert!(rc || datagram.udp_checksum == 0, "{context}");
        if bth.solicited {
            assert!(operation.is_last() || operation.is_only(), "{context}");
        }
        if bth.ack_req {
            assert!(
                rc && operation.is_request() || bth.dest_qp == Qpn::GSI,
                "{context}"
            );
        }
        assert!(packet.pad().iter().all(|&byte| byte == 0), "{context}");
        assert!(
            (packet.payload().len() + packet.pad().len()).is_multiple_of(4),
            "{context}"
        );
        if let Some(aeth) = packet.headers().aeth {
            assert!(!matches!(aeth.syndrome, Syndrome::Reserved(_)), "{context}");
            //= RXE-50 type=test
            if let Syndrome::Ack(credits) = aeth.syndrome {
                assert_eq!(credits, CreditCode::INVALID, "rxe sets no limit: {context}");
            }
        }
        // The path MTU is at least 256: the payload must be allowed for one of the five.
        let rule = operation.payload_rule();
        let fits = [256, 512, 1024, 2048, 4096]
            .into_iter()
            .any(|mtu_bytes| rule.allows(packet.payload().len(), mtu_bytes));
        assert!(fits, "{context}");
    });
}

#[test]
fn every_kind_of_packet_that_rxe_sends_is_there() {
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    for_each_packet(|_, _, _, packet| *seen.entry(packet.bth().opcode.name()).or_default() += 1);
    let names: Vec<&str> = seen.keys().copied().collect();
    assert_eq!(
        names,
        [
            "RC ACKNOWLEDGE",
            "RC ATOMIC_ACKNOWLEDGE",
            "RC ATOMIC_WRITE",
            "RC CMP_SWAP",
            "RC FETCH_ADD",
            "RC RDMA_READ_REQUEST",
            "RC RDMA_READ_RESPONSE_FIRST",
            "RC RDMA_READ_RESPONSE_LAST",
            "RC RDMA_READ_RESPONSE_MIDDLE",
            "RC RDMA_READ_RESPONSE_ONLY",
            "RC RDMA_WRITE_FIRST",
            "RC RDMA_WRITE_LAST",
            "RC RDMA_WRITE_LAST_IMM",
            "RC RDMA_WRITE_MIDDLE",
            "RC RDMA_WRITE_ONLY",
            "RC RDMA_WRITE_ONLY_IMM",
            "RC SEND_FIRST",
            "RC SEND_LAST",
            "RC SEND_LAST_IMM",
            "RC SEND_LAST_INV",
            "RC SEND_MIDDLE",
            "RC SEND_ONLY",
            "RC SEND_ONLY_IMM",
            "RC SEND_ONLY_INV",
            "UC RDMA_WRITE_FIRST",
            "UC RDMA_WRITE_LAST",
            "UC RDMA_WRITE_LAST_IMM",
            "UC RDMA_WRITE_MIDDLE",
            "UC RDMA_WRITE_ONLY_IMM",
            "UC SEND_FIRST",
            "UC SEND_LAST",
            "UC SEND_MIDDLE",
            "UC SEND_ONLY",
            "UD SEND_ONLY",
            "UD SEND_ONLY_IMM",
        ]
    );
}

#[test]
//= ENC-04 type=test
//= ENC-05 type=test
fn source_ports_follow_from_the_queue_pairs() {
    for name in [
        "rc-pingpong-ipv4",
        "rc-pingpong-ipv6",
        "uc-pingpong-ipv4",
        "vec-send-inv",
    ] {
        let path = captures().join(format!("linux-6.1-mtu1500/{name}.pcap"));
        let mut qpns: BTreeMap<IpAddr, Qpn> = BTreeMap::new();
        let mut ports = BTreeSet::new();
        for bytes in datagrams(&path) {
            let datagram = Datagram::parse(&bytes).unwrap();
            let packet = Packet::parse(datagram.udp_payload).unwrap();
            qpns.insert(datagram.dst, packet.bth().dest_qp);
            ports.insert(datagram.src_port);
        }
        let [one, other] = qpns.into_values().collect::<Vec<_>>().try_into().unwrap();
        let port = ip::source_port_of_flow_label(ip::flow_label_of_qpns(one, other));
        assert_eq!(ports, BTreeSet::from([port]), "{name}");
    }
}

#[test]
//= BTH-13 type=test
fn sequence_numbers_wrap() {
    let path = captures().join("linux-6.1-mtu1500/vec-psn-wrap.pcap");
    let sends: Vec<Psn> = datagrams(&path)
        .iter()
        .filter_map(|bytes| {
            let datagram = Datagram::parse(bytes).unwrap();
            let packet = Packet::parse(datagram.udp_payload).unwrap();
            let operation = packet.bth().opcode.operation().unwrap();
            operation.is_send().then_some(packet.bth().psn)
        })
        .collect();
    assert_eq!(sends, [0xff_fffe, 0xff_ffff, 0].map(Psn::new));
    assert!(sends.windows(2).all(|pair| pair[1].diff(pair[0]) == 1));
}

#[test]
//= ETH-12 type=test
fn atomic_write() {
    let path = captures().join("linux-6.12-mtu1500/vec-atomic-write.pcap");
    let datagrams = datagrams(&path);
    let packets: Vec<Packet<'_>> = datagrams
        .iter()
        .map(|bytes| Packet::parse(Datagram::parse(bytes).unwrap().udp_payload).unwrap())
        .collect();
    let [request, response] = packets.as_slice() else {
        panic!("{} packets", packets.len())
    };
    assert_eq!(
        request.bth().opcode.operation(),
        Some(Operation::AtomicWrite)
    );
    assert_eq!(request.headers().reth.map(|reth| reth.dma_len), Some(8));
    assert_eq!(request.payload().len(), 8);
    assert_eq!(
        response.bth().opcode.operation(),
        Some(Operation::ReadResponseOnly)
    );
    assert!(response.payload().is_empty());
}

/// Returns the messages of the communication manager in a capture.
fn mads(name: &str) -> Vec<Mad> {
    let path = captures().join(name);
    let of = |bytes: &Vec<u8>| {
        let datagram = Datagram::parse(bytes).unwrap();
        let packet = Packet::parse(datagram.udp_payload).unwrap();
        (packet.bth().dest_qp == Qpn::GSI).then(|| Mad::parse(packet.payload()).unwrap())
    };
    datagrams(&path).iter().filter_map(of).collect()
}

#[test]
//= MAD-01 type=test
//= MAD-02 type=test
//= CM-REQ-09 type=test
//= CM-REJ type=test
//= CM-REP type=test
//= CM-SIDRQ type=test
//= CM-SIDRP type=test
fn messages_decode_and_encode_to_the_same_bytes() {
    let mut kinds: BTreeMap<u16, usize> = BTreeMap::new();
    for_each_packet(|path, _, datagram, packet| {
        if packet.bth().dest_qp != Qpn::GSI {
            return;
        }
        let mad = Mad::parse(packet.payload())
            .unwrap_or_else(|error| panic!("{}: {datagram}: {error}", path.display()));
        assert_eq!(mad.to_bytes(), packet.payload(), "{mad}");
        assert_eq!(
            packet.headers().deth.unwrap().qkey,
            rocade_wire::mad::GSI_QKEY
        );
        assert!(datagram.to_string().contains(&mad.to_string()));
        *kinds.entry(mad.message.attribute()).or_default() += 1;
    });
    let kinds: Vec<u16> = kinds.into_keys().collect();
    assert_eq!(kinds, [0x10, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18]);
}

#[test]
//= CM-FLD-08 type=test
//= CMA-02 type=test
fn a_connection_of_rping() {
    let mads = mads("linux-6.12-mtu1500/cm-rping-ipv4.pcap");
    let [req, rep, rtu, dreq, drep] = mads.as_slice() else {
        panic!("{} messages", mads.len())
    };
    let CmMessage::Req(req) = &req.message else {
        panic!("{req}")
    };
    assert_eq!(req.service_id, ServiceId::of_port(0x0106, 7174));
    assert_eq!(req.remote_response_timeout.code(), 20);
    assert_eq!(req.max_cm_retries, 15);
    assert_eq!(req.primary.ack_timeout.code(), 17);
    let header = IpCmHeader::parse(&req.private_data).unwrap();
    assert_eq!(header.src, IpAddr::from([192, 168, 77, 3]));
    assert_eq!(header.dst, IpAddr::from([192, 168, 77, 2]));
    assert_eq!(req.primary.local_gid.to_ip(), header.src);
    let CmMessage::Rep(rep) = &rep.message else {
        panic!("{rep}")
    };
    assert_eq!(rep.remote_id, req.local_id);
    // Each side begins with the PSN that the other one has named.
    let path = captures().join("linux-6.12-mtu1500/cm-rping-ipv4.pcap");
    let mut first_psns = BTreeMap::new();
    for bytes in datagrams(&path) {
        let datagram = Datagram::parse(&bytes).unwrap();
        let bth = *Packet::parse(datagram.udp_payload).unwrap().bth();
        let operation = bth.opcode.operation().unwrap();
        if bth.dest_qp != Qpn::GSI && (operation.is_send() || operation == Operation::ReadRequest) {
            first_psns.entry(bth.dest_qp).or_insert(bth.psn);
        }
    }
    assert_eq!(first_psns.get(&req.qpn), Some(&req.starting_psn));
    assert_eq!(first_psns.get(&rep.qpn), Some(&rep.starting_psn));
    let to_passive = |mad: &Mad| mad.message.receiver_id() == rep.local_id;
    assert!(matches!(rtu.message, CmMessage::Rtu(_)) && to_passive(rtu));
    let CmMessage::Dreq(dreq) = &dreq.message else {
        panic!("{dreq}")
    };
    let (of_receiver, ids) = if dreq.remote_id == rep.local_id {
        (rep.qpn, (dreq.remote_id, dreq.local_id))
    } else {
        (req.qpn, (dreq.remote_id, dreq.local_id))
    };
    assert_eq!(dreq.remote_qpn, of_receiver);
    let CmMessage::Drep(drep) = &drep.message else {
        panic!("{drep}")
    };
    assert_eq!((drep.local_id, drep.remote_id), ids);
}

#[test]
//= CM-ST-07 type=test
//= CM-REJ-A type=test
fn rejections() {
    let of_no_listener = mads("linux-6.1-mtu1500/cm-rej-no-listener.pcap");
    let Some(CmMessage::Rej(rej)) = of_no_listener.last().map(|mad| &mad.message) else {
        panic!("{of_no_listener:?}")
    };
    assert_eq!(rej.reason, RejReason::InvalidServiceId);
    assert_eq!(
        (rej.rejected, rej.local_id),
        (Rejected::Req, CommId::new(0))
    );
    let unanswered = mads("host/host-cm-req-unanswered.pcap");
    let (Some(CmMessage::Req(req)), Some(CmMessage::Rej(rej))) = (
        unanswered.first().map(|mad| &mad.message),
        unanswered.last().map(|mad| &mad.message),
    ) else {
        panic!("{unanswered:?}")
    };
    assert_eq!(rej.timeout_guid(), Some(req.ca_guid));
    assert_eq!(
        (rej.local_id, rej.remote_id),
        (req.local_id, CommId::new(0))
    );
    assert_eq!(rej.rejected, Rejected::LapOrOther);
}

#[test]
//= CMA-12 type=test
fn a_datagram_service() {
    let mads = mads("linux-6.1-mtu1500/cm-udaddy-sidr.pcap");
    let [CmMessage::SidrReq(req), CmMessage::SidrRep(rep)] = [&mads[0].message, &mads[1].message]
    else {
        panic!("{mads:?}")
    };
    assert_eq!(req.request_id, rep.request_id);
    assert_eq!(req.service_id, rep.service_id);
    assert_eq!(
        (rep.status, rep.qkey),
        (SidrStatus::Success, Qkey::new(0x0123_4567))
    );
}
