//! Multicast groups, and the headers that datagrams report.

#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "tests: a failure may panic, sizes are small"
)]

mod common;

use std::net::{IpAddr, UdpSocket};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use common::datagrams::{
    GRH, QKEY, address, completions, create, send_to_group, to_rts, ud, wait, wr,
};
use common::{Side, engine};
use rocade_emulator::{
    AddressVector, Ah, BrokerMode, Datagram, DropReason, Engine, EngineConfig, Gid, LinkMode, Qkey,
    Qp, QpAttr, QpAttrMask, QpState, QpType, VerbsError, WcStatus,
};

/// The only engine with the address ::1.
static IPV6: LazyLock<Engine> = LazyLock::new(|| engine("::1"));

fn side(address: &str) -> Side {
    if address == "::1" {
        Side::on(IPV6.clone(), 1 << 16)
    } else {
        Side::new(address, 1 << 16)
    }
}

fn group(text: &str) -> Gid {
    Gid::from_ip(text.parse().unwrap())
}

/// Waits until `done` without polling.
fn until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !done() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::yield_now();
    }
}

//= MC-01 type=test
//= MC-03 type=test
//= MC-04 type=test
//= MC-05 type=test
//= MC-06 type=test
//= MC-07 type=test
//= MC-08 type=test
#[test]
fn a_group_gets_a_copy_each() {
    // The loopback interface has no route to IPv6 groups.
    let (a, b) = (
        Side::new("127.2.1.1", 1 << 16),
        Side::new("127.2.1.2", 1 << 16),
    );
    let group = Gid::from_ip("239.1.2.3".parse().unwrap());
    let sender = ud(&a);
    let members = [ud(&b), ud(&b), ud(&a)];
    let outsider = ud(&b);
    for qp in &members {
        qp.attach_mcast(group).unwrap();
        qp.attach_mcast(group).unwrap();
    }
    // One QP has no receive, and one has another Q_Key. Other members are not affected.
    let deaf = ud(&b);
    deaf.attach_mcast(group).unwrap();
    let foreign_socket = create(&b, QpType::Ud);
    to_rts(&foreign_socket, QKEY + 1);
    foreign_socket.attach_mcast(group).unwrap();
    let receivers = [(&members[0], &b), (&members[1], &b), (&members[2], &a)];
    for (index, (qp, side)) in receivers.iter().enumerate() {
        qp.recv_queue()
            .push(index as u64, &[side.sge(1000 * index, 100)])
            .unwrap();
    }
    outsider.recv_queue().push(7, &[b.sge(0, 100)]).unwrap();
    foreign_socket
        .recv_queue()
        .push(8, &[b.sge(0, 100)])
        .unwrap();
    let ah = a.pd.create_ah(&address(group)).unwrap();
    a.fill(0, b"all of you");
    send_to_group(&sender, &ah, QKEY, &wr(9, &[a.sge(0, 10)]));
    let mut at_a = completions(&a, 2);
    at_a.sort_by_key(|completion| completion.wr_id);
    assert_eq!((at_a[0].wr_id, at_a[1].wr_id), (2, 9));
    let mut at_b = completions(&b, 2);
    at_b.sort_by_key(|completion| completion.wr_id);
    for (wr_id, (completion, side)) in [(&at_b[0], &b), (&at_b[1], &b), (&at_a[0], &a)]
        .iter()
        .enumerate()
    {
        assert_eq!(
            (completion.wr_id, completion.status),
            (wr_id as u64, WcStatus::Success)
        );
        assert_eq!(completion.src_qp, sender.qp_num());
        assert_eq!(completion.byte_len as usize, GRH + 10);
        let bytes = side.bytes(1000 * wr_id, GRH + 10);
        assert_eq!(&bytes[GRH..], b"all of you");
        // The header contains the group's address.
        assert_eq!(bytes[GRH - 4..GRH], [239, 1, 2, 3]);
    }
    wait(&b, || deaf.counters().dropped(DropReason::NoReceive) == 1);
    wait(&b, || {
        foreign_socket.counters().dropped(DropReason::BadQkey) == 1
    });
    assert_eq!(outsider.counters().rx_packets, 0);
    // A QP that has left gets nothing, and the others stay members.
    members[0].detach_mcast(group).unwrap();
    members[0].recv_queue().push(20, &[b.sge(0, 100)]).unwrap();
    members[1].recv_queue().push(21, &[b.sge(0, 100)]).unwrap();
    send_to_group(&sender, &ah, QKEY, &wr(22, &[a.sge(0, 10)]));
    assert_eq!(b.completion().wr_id, 21);
    assert_eq!(members[0].counters().rx_packets, 1);
}

//= MC-01 type=test
//= MC-02 type=test
#[test]
fn groups_are_left_before_the_end() {
    let a = Side::new("127.2.1.3", 4096);
    let group = Gid::from_ip("239.1.2.4".parse().unwrap());
    let qp = ud(&a);
    assert_eq!(
        qp.attach_mcast(a.gid()).unwrap_err().errno(),
        22,
        "no group"
    );
    let v6 = Gid::from_ip("ff11::1".parse().unwrap());
    assert_eq!(
        qp.attach_mcast(v6).unwrap_err().errno(),
        22,
        "no address of IPv6"
    );
    assert_eq!(
        a.qp.attach_mcast(group).unwrap_err().errno(),
        22,
        "an RC QP"
    );
    assert_eq!(
        qp.detach_mcast(group).unwrap_err().errno(),
        22,
        "not attached"
    );
    qp.attach_mcast(group).unwrap();
    assert!(matches!(qp.destroy(), Err(VerbsError::Busy(_))));
    qp.detach_mcast(group).unwrap();
    assert_eq!(qp.detach_mcast(group).unwrap_err().errno(), 22);
    qp.destroy().unwrap();
    // A dropped QP leaves the group.
    let other = ud(&a);
    other.attach_mcast(group).unwrap();
    assert!(kernel_groups().contains("040201EF"));
    drop(other);
    let deadline = Instant::now() + Duration::from_secs(20);
    while kernel_groups().contains("040201EF") {
        assert!(Instant::now() < deadline, "the socket stays open");
        std::thread::yield_now();
    }
}

/// Returns the groups that the kernel announces to the network. The file is read in one call. The
/// kernel counts lines between reads, so that a second read misses one if another test has left a
/// group meanwhile.
fn kernel_groups() -> String {
    let mut text = vec![0; 1 << 20];
    let mut igmp = std::fs::File::open("/proc/net/igmp").unwrap();
    let length = std::io::Read::read(&mut igmp, &mut text).unwrap();
    text.truncate(length);
    String::from_utf8(text).unwrap()
}

/// Sends one datagram to `qp` of `b`, and returns the header in front of it.
fn header_of(from: &Side, sender: &Qp, ah: &Ah, b: &Side, qp: &Qp) -> Vec<u8> {
    qp.recv_queue().push(1, &[b.sge(1000, 100)]).unwrap();
    let to = Datagram {
        ah,
        dest_qp: qp.qp_num(),
        qkey: Qkey::new(QKEY),
    };
    let sges = [from.sge(0, 8)];
    sender
        .post_sends(|queue| queue.push_datagram(&wr(2, &sges), to, None))
        .unwrap();
    if std::ptr::eq(from, b) {
        assert_eq!(completions(b, 2).iter().filter(|c| c.wr_id == 1).count(), 1);
    } else {
        assert_eq!(from.completion().status, WcStatus::Success);
        assert_eq!(b.completion().wr_id, 1);
    }
    b.bytes(1000, GRH)
}

/// Returns traffic class and hop limit of the 40 bytes.
fn class_and_limit(header: &[u8]) -> (u8, u8) {
    if header[0] >> 4 == 6 {
        (header[0] << 4 | header[1] >> 4, header[7])
    } else {
        assert_eq!(header[20] >> 4, 4);
        (header[21], header[28])
    }
}

/// The receiver sees the values of the address handle, over any link.
//= ENC-08 type=test
//= UD-08 type=test
//= GRH-02 type=test
//= GRH-03 type=test
#[test]
fn headers_say_what_the_address_handle_did() {
    let rows = [
        (LinkMode::Udp, "127.2.2.1", "127.2.2.2"),
        (LinkMode::Udp, "::1", "::1"),
        (LinkMode::Shm, "127.2.2.3", "127.2.2.3"),
    ];
    for (link, a, b) in rows {
        let of = |address: &str| {
            if address == "::1" {
                return IPV6.clone();
            }
            let specs = [format!("dev={address}")];
            let config = EngineConfig::from_specs(&specs, BrokerMode::Embedded).unwrap();
            Engine::new(EngineConfig { link, ..config }).unwrap()
        };
        let shared = link == LinkMode::Shm;
        let a_side = Side::on(of(a), 1 << 16);
        let b_side = if a == b {
            Side::on(a_side.engine.clone(), 1 << 16)
        } else {
            Side::on(of(b), 1 << 16)
        };
        let (sender, receiver) = (ud(&a_side), ud(&b_side));
        for (traffic_class, hop_limit) in [(0, 0), (0xb8, 17), (0x04, 1), (0, 64), (0xfc, 255)] {
            let vector = AddressVector {
                traffic_class,
                hop_limit,
                ..address(b_side.gid())
            };
            let ah = a_side.pd.create_ah(&vector).unwrap();
            let header = header_of(&a_side, &sender, &ah, &b_side, &receiver);
            let limit = if hop_limit == 0 { 64 } else { hop_limit };
            assert_eq!(
                class_and_limit(&header),
                (traffic_class, limit),
                "{link:?} {a}"
            );
        }
        let counters = b_side.engine.counters();
        assert_eq!(counters.rx_shared > 0, shared, "{counters:?}");
    }
}

/// Linux has no route for IPv6 groups on the loopback interface. The packets get there all the
/// same.
//= MC-01 type=test
//= MC-03 type=test
//= MC-05 type=test
#[test]
fn groups_of_ipv6_on_the_loopback_interface() {
    let (a, b) = (side("::1"), side("::1"));
    // The first and the last of these are tunnelled through one IPv4 group.
    let groups = ["ff1e::7:9", "ff01::1", "ff1e::9:7"].map(group);
    let sender = ud(&a);
    let members = groups.map(|group| {
        let qp = ud(&b);
        qp.attach_mcast(group).unwrap();
        qp
    });
    for (index, group) in groups.into_iter().enumerate() {
        let vector = AddressVector {
            traffic_class: 0x20,
            hop_limit: 5 + index as u8,
            ..address(group)
        };
        let ah = a.pd.create_ah(&vector).unwrap();
        members[index]
            .recv_queue()
            .push(7, &[b.sge(0, 100)])
            .unwrap();
        a.fill(0, b"all of you");
        send_to_group(&sender, &ah, QKEY, &wr(9, &[a.sge(0, 10)]));
        assert_eq!(a.completion().wr_id, 9);
        let received = b.completion();
        assert_eq!(
            (received.wr_id, received.qp_num),
            (7, members[index].qp_num())
        );
        assert_eq!(received.src_qp, sender.qp_num());
        assert_eq!(received.sl, 0x9);
        let header = b.bytes(0, GRH + 10);
        assert_eq!(header[24..40], group.octets());
        assert_eq!(header[8..24], a.gid().octets());
        assert_eq!(class_and_limit(&header), (0x20, 5 + index as u8));
        assert_eq!(&header[GRH..], b"all of you");
    }
    for (qp, group) in members.iter().zip(groups) {
        assert_eq!(qp.counters().rx_packets, 1);
        qp.detach_mcast(group).unwrap();
    }
}

/// Each address handle has its own hop limit, in whatever order the handles were made.
//= ENC-08 type=test
#[test]
fn groups_get_the_hop_limit_of_the_handle() {
    let a = Side::new("127.2.2.4", 1 << 16);
    let group = group("239.1.3.1");
    let (sender, member) = (ud(&a), ud(&a));
    member.attach_mcast(group).unwrap();
    let limits = [9, 64, 1, 200, 0];
    let handles = limits.map(|hop_limit| {
        let vector = AddressVector {
            hop_limit,
            ..address(group)
        };
        a.pd.create_ah(&vector).unwrap()
    });
    for (hop_limit, ah) in limits.into_iter().zip(&handles) {
        member.recv_queue().push(1, &[a.sge(100, 100)]).unwrap();
        send_to_group(&sender, ah, QKEY, &wr(2, &[a.sge(0, 10)]));
        completions(&a, 2);
        let limit = if hop_limit == 0 { 64 } else { hop_limit };
        assert_eq!(class_and_limit(&a.bytes(100, GRH)), (0, limit));
    }
}

//= MC-07 type=test
#[test]
fn a_qp_that_blocks_loopback_gets_no_copy() {
    for (ip, name) in [("127.2.2.5", "239.1.3.2"), ("::1", "ff1e::3:2")] {
        let a = side(ip);
        let group = group(name);
        let (quiet, other) = (ud(&a), ud(&a));
        assert_eq!(
            a.qp.block_own_multicast().unwrap_err().errno(),
            22,
            "an RC QP"
        );
        quiet.block_own_multicast().unwrap();
        for qp in [&quiet, &other] {
            qp.attach_mcast(group).unwrap();
            qp.recv_queue().push(1, &[a.sge(1000, 100)]).unwrap();
        }
        other.recv_queue().push(2, &[a.sge(1000, 100)]).unwrap();
        let ah = a.pd.create_ah(&address(group)).unwrap();
        // Packets of the first QP go to the other one only, and packets of the other one to both.
        send_to_group(&quiet, &ah, QKEY, &wr(9, &[a.sge(0, 10)]));
        let got = completions(&a, 2);
        assert!(
            got.iter()
                .any(|c| (c.wr_id, c.qp_num) == (1, other.qp_num()))
        );
        send_to_group(&other, &ah, QKEY, &wr(9, &[a.sge(0, 10)]));
        let got = completions(&a, 3);
        assert!(
            got.iter()
                .any(|c| (c.wr_id, c.qp_num) == (1, quiet.qp_num()))
        );
        assert!(
            got.iter()
                .any(|c| (c.wr_id, c.qp_num) == (2, other.qp_num()))
        );
        assert_eq!(quiet.counters().rx_packets, 1);
        // The first QP accepts packets that it sends to its own QP number.
        let to_itself = a.pd.create_ah(&address(a.gid())).unwrap();
        header_of(&a, &other, &to_itself, &a, &quiet);
    }
}

fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Each join opens a socket, and each leave closes it.
//= MC-06 type=test
#[test]
fn a_thousand_times_in_and_out() {
    let a = Side::new("127.2.2.6", 1 << 16);
    let names = ["239.1.3.3", "239.1.3.4"].map(group);
    let qp = ud(&a);
    qp.attach_mcast(names[0]).unwrap();
    let before = open_descriptors();
    for _ in 0..1000 {
        qp.attach_mcast(names[1]).unwrap();
        qp.detach_mcast(names[1]).unwrap();
    }
    // Other tests of this process open some sockets too, but not a thousand.
    until("the sockets stay open", || {
        open_descriptors() < before + 500
    });
    let ah = a.pd.create_ah(&address(names[0])).unwrap();
    qp.recv_queue().push(1, &[a.sge(100, 100)]).unwrap();
    send_to_group(&qp, &ah, QKEY, &wr(2, &[a.sge(0, 10)]));
    completions(&a, 2);
}

/// A group has as many members as the device reports, and no more. Each member gets a copy.
//= MC-01 type=test
//= MC-03 type=test
#[test]
fn groups_have_a_limit() {
    let a = Side::new("127.2.2.7", 1 << 16);
    // `max_mcast_qp_attach`.
    let limit = 256;
    let group = group("239.1.3.5");
    let members: Vec<_> = (0..300).map(|_| ud(&a)).collect();
    for (index, qp) in members.iter().enumerate() {
        match qp.attach_mcast(group) {
            Ok(()) => assert!(index < limit),
            Err(error) => {
                assert!(index >= limit);
                assert!(matches!(error, VerbsError::NoMemory(_)));
                assert_eq!(error.errno(), 12);
            }
        }
    }
    members[7].detach_mcast(group).unwrap();
    members[limit].attach_mcast(group).unwrap();
    let ah = a.pd.create_ah(&address(group)).unwrap();
    for qp in &members {
        qp.recv_queue().push(1, &[a.sge(100, 100)]).unwrap();
    }
    send_to_group(&members[0], &ah, QKEY, &wr(2, &[a.sge(0, 10)]));
    let got = completions(&a, limit + 1);
    assert_eq!(got.iter().filter(|c| c.wr_id == 1).count(), limit);
    let got_one = |qp: &&Qp| qp.counters().rx_packets == 1;
    assert_eq!(members.iter().filter(got_one).count(), limit);
}

/// Packets to a group's address that are no multicast packets do no harm.
//= MC-03 type=test
//= MC-08 type=test
#[test]
fn nonsense_to_a_group_is_dropped() {
    for (ip, name) in [("127.2.2.8", "239.1.3.6"), ("::1", "ff1e::3:6")] {
        let a = side(ip);
        let group_gid = group(name);
        let (sender, member) = (ud(&a), ud(&a));
        member.attach_mcast(group_gid).unwrap();
        member.recv_queue().push(1, &[a.sge(100, 100)]).unwrap();
        let ip: IpAddr = ip.parse().unwrap();
        // Here IPv6 groups are tunnelled through an IPv4 group.
        let (from, to) = if ip.is_ipv4() {
            (ip, name.parse().unwrap())
        } else {
            let to = IpAddr::from([239, 255, 0xff, 0x1b]);
            (IpAddr::from([127, 0, 0, 1]), to)
        };
        let seen = || {
            let c = a.engine.counters();
            c.rx_malformed + c.rx_bad_icrc + c.rx_forged + c.rx_unknown_qp
        };
        let before = seen();
        let socket = UdpSocket::bind((from, 0)).unwrap();
        let mut packet = vec![0x64, 0, 0xff, 0xff, 0, 0xff, 0xff, 0xff, 0, 0, 0, 0];
        packet.extend([0, 0, 0x12, 0x34, 0, 0, 0, 9]);
        packet.extend([7; 12]);
        for len in 0..packet.len() {
            socket.send_to(&packet[..len], (to, 4791)).unwrap();
        }
        let mut wrapped = vec![0xff, 0x52, 0xf1, 1, 0xc0, 0, 0, 0];
        wrapped.extend(a.gid().octets());
        wrapped.extend(group_gid.octets());
        for len in 0..packet.len() {
            let datagram = [&wrapped, &packet[..len]].concat();
            socket.send_to(&datagram, (to, 4791)).unwrap();
        }
        wait(&a, || seen() >= before + 40);
        assert_eq!(member.counters().rx_packets, 0);
        // A packet to a QP number does not go to the group's address.
        let vector = a.pd.create_ah(&address(group_gid)).unwrap();
        let to = Datagram {
            ah: &vector,
            dest_qp: member.qp_num(),
            qkey: Qkey::new(QKEY),
        };
        let sges = [a.sge(0, 10)];
        sender
            .post_sends(|queue| queue.push_datagram(&wr(5, &sges), to, None))
            .unwrap();
        assert_eq!(a.completion().wr_id, 5);
        wait(&a, || {
            member.counters().dropped(DropReason::WrongAddress) == 1
        });
        send_to_group(&sender, &vector, QKEY, &wr(2, &sges));
        assert_eq!(completions(&a, 2).len(), 2);
        assert_eq!(member.counters().rx_packets, 1);
    }
}

/// Groups use UDP even in a mode that only allows shared memory, which has exactly two ends.
//= MC-03 type=test
#[test]
fn groups_have_udp_whatever_the_link() {
    let config = EngineConfig::from_specs(&["dev=127.2.2.9".to_owned()], BrokerMode::Embedded);
    let config = EngineConfig {
        link: LinkMode::Shm,
        ..config.unwrap()
    };
    let a = Side::on(Engine::new(config).unwrap(), 1 << 16);
    let group = group("239.1.3.7");
    let (sender, member) = (ud(&a), ud(&a));
    member.attach_mcast(group).unwrap();
    member.recv_queue().push(1, &[a.sge(100, 100)]).unwrap();
    let ah = a.pd.create_ah(&address(group)).unwrap();
    send_to_group(&sender, &ah, QKEY, &wr(2, &[a.sge(0, 10)]));
    completions(&a, 2);
    assert_eq!(a.engine.counters().tx_shared, 0);
}

/// Each port of a device joins for its own queue pairs, so that there is one copy per port.
//= MC-03 type=test
#[test]
fn each_port_joins_for_its_own() {
    let specs = ["dev=127.2.2.10+127.2.2.11".to_owned()];
    let config = EngineConfig::from_specs(&specs, BrokerMode::Embedded).unwrap();
    let a = Side::on(Engine::new(config).unwrap(), 1 << 16);
    let group = group("239.1.3.8");
    let members = [1, 2].map(|port_num| {
        let qp = create(&a, QpType::Ud);
        let to = |state: QpState, mask| {
            let attr = QpAttr {
                qp_state: state.code(),
                port_num,
                qkey: QKEY,
                ..QpAttr::default()
            };
            qp.modify(&attr, QpAttrMask::STATE | mask).unwrap();
        };
        let init = QpAttrMask::PKEY_INDEX | QpAttrMask::PORT | QpAttrMask::QKEY;
        to(QpState::Init, init);
        to(QpState::Rtr, QpAttrMask::empty());
        qp.attach_mcast(group).unwrap();
        qp.attach_mcast(group).unwrap();
        for wr_id in [1, 2] {
            let sge = a.sge(1000 * usize::from(port_num), 100);
            qp.recv_queue().push(wr_id, &[sge]).unwrap();
        }
        qp
    });
    let sender = ud(&a);
    for (port_num, wr_id) in [(1, 1), (2, 2)] {
        let vector = AddressVector {
            port_num,
            ..address(group)
        };
        let ah = a.pd.create_ah(&vector).unwrap();
        send_to_group(&sender, &ah, QKEY, &wr(9, &[a.sge(0, 10)]));
        let got = completions(&a, 3);
        assert_eq!(got.iter().filter(|c| c.wr_id == wr_id).count(), 2);
        assert_eq!(got.iter().filter(|c| c.wr_id == 9).count(), 1);
    }
    for qp in &members {
        assert_eq!(qp.counters().rx_packets, 2);
        qp.detach_mcast(group).unwrap();
        assert_eq!(qp.detach_mcast(group).unwrap_err().errno(), 22);
        qp.destroy().unwrap();
    }
}
