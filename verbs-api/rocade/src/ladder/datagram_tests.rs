//! Tests with datagrams, and with messages of the connection manager.

use std::borrow::Cow;
use std::fs::File;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use pcap_file::pcapng::PcapNgBlock as _;
use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::pcapng::blocks::section_header::{SectionHeaderBlock, SectionHeaderOption};
use pcap_file::{DataLink, Endianness};
use rocade_wire::icrc::IcrcFlow;
use rocade_wire::ip::Datagram;
use rocade_wire::mad::{
    CmMessage, CmTimeout, CommId, Dreq, GSI_QKEY, Mad, Mra, Rej, RejReason, Rejected, Rtu,
    ServiceId, SidrRep, SidrReq, SidrStatus, TransactionId,
};
use rocade_wire::{Opcode, Operation, Pkey, Qkey, Qpn, Service};

use super::pair::{Conversation, conversations};
use super::read::read;
use super::{Facts, html};

/// The address that both processes share.
const HOST: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(127, 0, 0, 2));
const PORT: u16 = 0xC000;
pub(super) const CLIENT: &str = "client (pid 1)";
pub(super) const SERVER: &str = "server (pid 2)";

/// Returns a UD datagram, or a UC packet without a DETH.
pub(super) fn packet(service: Service, psn: u32, from: u32, to: u32, payload: &[u8]) -> Vec<u8> {
    let opcode = Opcode::of(service, Operation::SendOnly).unwrap();
    let mut bytes = vec![opcode.get(), 0, 0xff, 0xff];
    bytes.extend(to.to_be_bytes());
    bytes.extend(psn.to_be_bytes());
    if service == Service::Ud {
        bytes.extend(GSI_QKEY.get().to_be_bytes());
        bytes.extend(from.to_be_bytes());
    }
    bytes.extend(payload);
    let icrc = IcrcFlow::new(HOST, HOST, PORT).unwrap().compute(0, &bytes);
    bytes.extend(icrc.to_le_bytes());
    let datagram = Datagram {
        src: HOST,
        dst: HOST,
        ip_id: 0,
        dont_fragment: true,
        flow_label: 0,
        tos: 0,
        ttl: 64,
        src_port: PORT,
        dst_port: 4791,
        udp_checksum: 0,
        udp_payload: &bytes,
    };
    let mut ip = vec![0; datagram.len()];
    datagram.emit(&mut ip).unwrap();
    ip
}

/// Writes packets like a capture of two processes: one section of sent and one of received packets.
pub(super) fn write(path: &Path, packets: &[(&str, &str, Vec<u8>)]) {
    let mut file = File::create(path).unwrap();
    let mut time = Duration::from_secs(1);
    for (sender, receiver, ip) in packets {
        for (process, flags) in [(sender, 2), (receiver, 1)] {
            let header = SectionHeaderBlock {
                endianness: Endianness::Big,
                options: vec![SectionHeaderOption::UserApplication("Rocade 1 in x".into())],
                ..SectionHeaderBlock::default()
            };
            let mut writer = PcapNgWriter::with_section_header(file, header).unwrap();
            let interface = InterfaceDescriptionBlock {
                linktype: DataLink::RAW,
                snaplen: 0,
                options: vec![
                    InterfaceDescriptionOption::IfDescription(Cow::Borrowed(process)),
                    InterfaceDescriptionOption::IfTsResol(9),
                ],
            };
            writer.write_block(&interface.into_block()).unwrap();
            time += Duration::from_micros(10);
            let block = EnhancedPacketBlock {
                interface_id: 0,
                timestamp: time,
                original_len: u32::try_from(ip.len()).unwrap(),
                data: ip.into(),
                options: vec![EnhancedPacketOption::Flags(flags)],
            };
            writer.write_block(&block.into_block()).unwrap();
            file = writer.into_inner();
        }
    }
}

pub(super) fn mad(tid: u64, message: CmMessage) -> Vec<u8> {
    Mad::new(TransactionId::new(tid), message)
        .to_bytes()
        .to_vec()
}

/// Returns a message of a kind, with all other fields zero.
fn blank(attribute: u16) -> CmMessage {
    let mut bytes = [0; Mad::LEN];
    bytes[..4].copy_from_slice(&[1, 7, 2, 3]);
    bytes[16..18].copy_from_slice(&attribute.to_be_bytes());
    Mad::parse(&bytes).unwrap().message
}

pub(super) fn req(local_id: u32, qpn: u32, service: ServiceId) -> CmMessage {
    let CmMessage::Req(mut req) = blank(0x10) else {
        panic!("no REQ");
    };
    req.local_id = CommId::new(local_id);
    req.qpn = Qpn::new(qpn);
    req.service_id = service;
    CmMessage::Req(req)
}

pub(super) fn rep(remote_id: u32, qpn: u32) -> CmMessage {
    let CmMessage::Rep(mut rep) = blank(0x13) else {
        panic!("no REP");
    };
    rep.remote_id = CommId::new(remote_id);
    rep.qpn = Qpn::new(qpn);
    CmMessage::Rep(rep)
}

fn labels(conversation: &Conversation) -> Vec<String> {
    let of = |arrow: &super::pair::Arrow| super::label::label(&arrow.seen);
    conversation.arrows.iter().map(of).collect()
}

/// Several programs number the datagrams of one QP 1 independently. None of them is a
/// retransmission.
#[test]
fn messages_of_the_connection_manager_have_names_and_ends() {
    let (id, none) = (CommId::new(7), CommId::new(0));
    let messages = [
        (true, req(7, 0x11, ServiceId::of_port(0x0106, 7471))),
        (
            false,
            CmMessage::Mra(Mra {
                local_id: none,
                remote_id: id,
                received: Rejected::Req,
                service_timeout: CmTimeout::new(13),
                private_data: [0; Mra::PRIVATE_LEN],
            }),
        ),
        (false, rep(7, 0x22)),
        (
            true,
            CmMessage::Rtu(Rtu {
                local_id: id,
                remote_id: none,
                private_data: [0; Rtu::PRIVATE_LEN],
            }),
        ),
        (
            true,
            CmMessage::Dreq(Dreq {
                local_id: id,
                remote_id: none,
                remote_qpn: Qpn::new(0x22),
                private_data: [0; Dreq::PRIVATE_LEN],
            }),
        ),
        (false, blank(0x16)),
        (true, req(8, 0x12, ServiceId::new(0x1234_5678_9abc))),
        (
            false,
            CmMessage::Rej(Rej {
                local_id: none,
                remote_id: CommId::new(8),
                rejected: Rejected::Req,
                reason: RejReason::InvalidServiceId,
                info_len: 0,
                info: [0; Rej::INFO_LEN],
                private_data: [0; Rej::PRIVATE_LEN],
            }),
        ),
        (
            true,
            CmMessage::SidrReq(SidrReq {
                request_id: id,
                pkey: Pkey::new(0xffff),
                service_id: ServiceId::of_port(0x0111, 9),
                private_data: [0; SidrReq::PRIVATE_LEN],
            }),
        ),
        (false, sidr_rep(SidrStatus::Success)),
        (false, sidr_rep(SidrStatus::Rejected)),
    ];
    let mut packets: Vec<_> = messages
        .into_iter()
        .zip(1..)
        .map(|((is_client, message), n)| {
            let ends = if is_client {
                (CLIENT, SERVER)
            } else {
                (SERVER, CLIENT)
            };
            // Each program has its own first number, and the client's numbers decrease.
            let psn = if is_client { 9000 - n } else { n };
            let ip = packet(Service::Ud, psn, 1, 1, &mad(n.into(), message));
            (ends.0, ends.1, ip)
        })
        .collect();
    // Data of the connection, which have no response.
    packets.push((CLIENT, SERVER, packet(Service::Uc, 5, 0, 0x22, &[1; 8])));
    packets.push((CLIENT, SERVER, packet(Service::Uc, 5, 0, 0x22, &[2; 8])));
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.pcapng");
    write(&path, &packets);
    let capture = read(&path).unwrap();
    let facts = Facts::of(&path, &capture);
    let all = conversations(capture.packets, true);
    assert_eq!(all.len(), 2, "{all:#?}");
    let names = |of: &Conversation| of.ends.each_ref().map(|end| end.full_name());
    assert_eq!(
        names(&all[0]),
        [
            "127.0.0.2  QP 0x000001  client (pid 1)",
            "127.0.0.2  QP 0x000001  server (pid 2)"
        ]
    );
    assert_eq!(
        names(&all[1]),
        [
            "127.0.0.2  QP 0x000011  client (pid 1)",
            "127.0.0.2  QP 0x000022  server (pid 2)"
        ],
        "the messages of the connection manager say whose flow it is"
    );
    assert_eq!(
        labels(&all[0]),
        [
            "REQ  RC  QP 0x000011  TCP port 7471",
            "MRA of REQ  up to 32 ms",
            "REP  QP 0x000022",
            "RTU",
            "DREQ  QP 0x000022",
            "DREP",
            "REQ  RC  QP 0x000012  service 0x0000123456789abc",
            "REJ of REQ  reason 8 InvalidServiceId",
            "SIDR_REQ  UDP port 9",
            "SIDR_REP  QP 0x000033  Q_Key 0x01234567",
            "SIDR_REP  status 2 Rejected",
        ]
    );
    for conversation in &all {
        assert_eq!(conversation.count(|marks| marks.again), 0);
        assert_eq!(conversation.count(|marks| marks.lost), 0);
    }
    let to_server = all[0].arrows.iter().map(|arrow| arrow.forward);
    assert_eq!(
        to_server.collect::<Vec<_>>(),
        [
            true, false, false, true, true, false, true, false, true, false, false
        ]
    );
    let lines = all[0].incident_lines();
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(
        lines[0].ends_with("REJ of REQ  reason 8 InvalidServiceId"),
        "{lines:?}"
    );
    let drawing = html(&facts, &all, 2, false);
    for part in [
        "CM, client (pid 1)",
        "requester, client (pid 1)",
        "2 refused by the CM",
    ] {
        assert!(drawing.contains(part), "{part} is missing");
    }
    assert_eq!(drawing.matches("sent again").count(), 1, "only the legend");
}

fn sidr_rep(status: SidrStatus) -> CmMessage {
    let CmMessage::SidrRep(mut rep) = blank(0x18) else {
        panic!("no SIDR_REP");
    };
    rep = SidrRep {
        status,
        qpn: Qpn::new(0x33),
        qkey: Qkey::new(0x0123_4567),
        ..rep
    };
    CmMessage::SidrRep(rep)
}

/// A capture without process names, and datagrams whose numbers decrease.
#[test]
fn datagrams_name_the_queue_pair_that_sends_them() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.pcapng");
    let packets: Vec<_> = [
        (3, 0x31, 0x32),
        (2, 0x31, 0x32),
        (2, 0x32, 0x31),
        (2, 0x31, 0x32),
    ]
    .into_iter()
    .map(|(psn, from, to)| ("", "", packet(Service::Ud, psn, from, to, &[1; 8])))
    .collect();
    write(&path, &packets);
    let mut capture = read(&path).unwrap();
    capture
        .packets
        .iter_mut()
        .for_each(|seen| seen.process = None);
    let all = conversations(capture.packets, true);
    assert_eq!(all.len(), 1);
    let names = all[0].ends.each_ref().map(|end| end.full_name());
    assert_eq!(names, ["127.0.0.2  QP 0x000031", "127.0.0.2  QP 0x000032"]);
    assert_eq!(all[0].arrows.len(), 4);
    assert_eq!(all[0].count(|marks| marks.again), 0);
}
