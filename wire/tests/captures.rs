//! Packets of the Linux kernel's RoCE device (`rdma_rxe`), recorded on the wire: each must decode,
//! encode to the same bytes, and carry the ICRC that we compute.

#![expect(
    clippy::unwrap_used,
    reason = "the helpers of a test, too, fail by panicking"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use etherparse::{NetSlice, SlicedPacket, TransportSlice};
use pcap_file::pcap::PcapReader;
use rocade_wire::icrc::{self, IcrcCheck, IcrcFlow};
use rocade_wire::ip::{self, Datagram};
use rocade_wire::{Headers, Operation, Packet, PrettyDatagram, Psn, Qpn, Service, Syndrome};

/// Packets per folder; a capture that is missing or not read must not pass unnoticed.
const PACKETS: [(&str, usize); 4] = [
    ("host", 8),
    ("linux-6.1-mtu1500", 1161),
    ("linux-6.1-mtu4200", 218),
    ("linux-6.12-mtu1500", 1165),
];

const ETHERNET_HEADER_LEN: usize = 14;
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

/// The RoCEv2 datagrams of a capture, from the IP header on, cut to the IP length.
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
        let (ethernet, ip) = frame.split_at(ETHERNET_HEADER_LEN);
        let ip_len = match ethernet[12..] {
            // Multicast captures hold the membership reports as well.
            [0x08, 0x00] if ip[9] == PROTOCOL_IGMP => continue,
            [0x08, 0x00] => usize::from(u16::from_be_bytes([ip[2], ip[3]])),
            [0x86, 0xdd] => 40 + usize::from(u16::from_be_bytes([ip[4], ip[5]])),
            ref other => panic!("ethertype {other:02x?} in {}", path.display()),
        };
        datagrams.push(ip[..ip_len].to_vec());
    }
    datagrams
}

/// Calls `visit` for every packet of every capture; returns how many there were.
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

/// Puts a datagram together again from what the decoder made of it.
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

/// What a parser that is not ours says of IP and UDP.
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
        // The answers in `host` are not rxe's.
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
        }
        // The path MTU is 256 at least: what the code allows is not more than one of the five.
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
