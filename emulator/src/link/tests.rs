//! Live tests on loopback addresses of their own, so that tests run side by side.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use rocade_wire::Qpn;
use rocade_wire::icrc::IcrcFlow;

use super::socket::{self, Sharing};
use super::*;
use crate::steering::{ProcessSlot, steering_program};

/// Returns an address of 127.0.0.0/8 that no other test uses, in this process or another.
fn own_address() -> LocalAddr {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let [_, _, high, low] = std::process::id().to_be_bytes();
    let last = NEXT.fetch_add(1, Ordering::Relaxed);
    IpAddr::from(Ipv4Addr::new(127, high | 0x80, low, last)).into()
}

/// Waits until the link is readable and receives. Returns `None` if nothing arrives.
fn receive<'b>(link: &UdpLink, buf: &'b mut RxBuffer) -> Option<RxBatch<'b>> {
    let readable = |timeout| {
        let mut fds = [crate::sys::poll_readable(link.rx_fd())];
        crate::sys::poll(&mut fds, Some(timeout)).expect("poll") > 0
    };
    readable(Duration::from_secs(20)).then(|| link.recv(buf).expect("recv"))?
}

/// Returns a packet for this QP: 12 bytes of BTH, a body, and a valid ICRC for the flow.
fn packet(dest: Qpn, body: u8, len: usize, icrc: Option<(&IcrcFlow, u16)>) -> Vec<u8> {
    let mut packet = vec![body; len];
    packet[0] = 0x64;
    packet[5..8].copy_from_slice(&dest.get().to_be_bytes()[1..]);
    if let Some((flow, ip_id)) = icrc {
        let icrc = flow.compute(ip_id, &packet[..len - 4]);
        packet[len - 4..].copy_from_slice(&icrc.to_le_bytes());
    }
    packet
}

fn shared(fd: OwnedFd) -> SharedSocket {
    let key = ForwardKey::from_bytes([5; 16]);
    SharedSocket { fd, key }
}

fn group(local: LocalAddr, members: u8) -> Vec<UdpLink> {
    (0..members)
        .map(|slot| {
            let socket = socket::open_receive(local, Sharing::ReusePort).unwrap();
            if slot == 0 {
                let program = steering_program().encode();
                sys::attach_reuseport_cbpf(socket.as_fd(), &program).unwrap();
            }
            UdpLink::from_broker(local, ProcessSlot::new(slot), shared(socket.into())).unwrap()
        })
        .collect()
}

#[test]
fn segments_of_one_call_arrive_in_one_batch() {
    let (a, b) = (
        UdpLink::bind(own_address()).unwrap(),
        UdpLink::bind(own_address()).unwrap(),
    );
    let handle = a.tx_handle(Qpn::new(0x01_0010), 0).unwrap();
    b.set_receive_tos(true).unwrap();
    assert!((0xC000..=0xFFFF).contains(&handle.source_port));
    let data: Vec<u8> = (0..11).flat_map(|at| [at; 1000]).take(10_500).collect();
    a.send(handle, b.local(), 0x62, &data, 1000).unwrap();
    assert!(a.gso());

    let mut buf = RxBuffer::new();
    let batch = receive(&b, &mut buf).unwrap();
    assert_eq!(batch.segment_len, 1000);
    assert_eq!(batch.tos, Some(0x62));
    assert_eq!(batch.source.ip(), a.local());
    assert_eq!(batch.source.port(), handle.source_port);
    assert_eq!(batch.segments().len(), 11);
    let lens: Vec<_> = batch.segments().map(<[u8]>::len).collect();
    assert_eq!(lens, [[1000; 10].as_slice(), &[500]].concat());
    assert!(
        (0..)
            .zip(batch.segments())
            .all(|(at, s)| s.iter().all(|&x: &u8| x == at))
    );
    assert_eq!(batch.data, data);
    assert!(b.recv(&mut buf).unwrap().is_none());
}

#[test]
fn the_largest_call_arrives_whole() {
    let (a, b) = (
        UdpLink::bind(own_address()).unwrap(),
        UdpLink::bind(own_address()).unwrap(),
    );
    let handle = a.tx_handle(Qpn::new(0x01_0010), 0).unwrap();
    let data = vec![0x5A; MAX_SEND_LEN];
    let segment_len = MAX_SEND_LEN.div_ceil(MAX_SEGMENTS);
    a.send(handle, b.local(), 0, &data, segment_len).unwrap();
    let mut buf = RxBuffer::new();
    let batch = receive(&b, &mut buf).unwrap();
    assert_eq!(
        (batch.data.len(), batch.segments().len()),
        (MAX_SEND_LEN, MAX_SEGMENTS)
    );
    assert_eq!(batch.tos, None, "not enabled");

    let too_many = a
        .send(handle, b.local(), 0, &data, segment_len - 1)
        .unwrap_err();
    assert_eq!(too_many.kind(), io::ErrorKind::InvalidInput);
    let other_version = a
        .send(handle, Ipv6Addr::LOCALHOST.into(), 0, &data, 100)
        .unwrap_err();
    assert_eq!(other_version.kind(), io::ErrorKind::InvalidInput);
    assert_eq!(
        a.send(handle, b.local(), 0, &data, 0).unwrap_err().kind(),
        too_many.kind()
    );
}

#[test]
fn a_single_datagram_arrives_as_it_was_sent() {
    let (a, b) = (
        UdpLink::bind(own_address()).unwrap(),
        UdpLink::bind(own_address()).unwrap(),
    );
    let handle = a.tx_handle(Qpn::new(0x01_0010), 3).unwrap();
    a.send(handle, b.local(), 0, b"header + payload", 4096)
        .unwrap();
    let mut buf = RxBuffer::new();
    let batch = receive(&b, &mut buf).unwrap();
    assert_eq!(
        (batch.data, batch.segment_len),
        (&b"header + payload"[..], 16)
    );
    assert_eq!(batch.segments().collect::<Vec<_>>(), [b"header + payload"]);
}

/// Returns a run whose segments hold their length in their first two bytes.
fn labelled(lens: &[u16]) -> Vec<u8> {
    let segment = |&len: &u16| {
        let rest = std::iter::repeat_n(0x5A, usize::from(len) - 2);
        len.to_be_bytes().into_iter().chain(rest)
    };
    lens.iter().flat_map(segment).collect()
}

#[test]
fn a_habit_changes_nothing_but_the_system_call() {
    let (a, b) = (
        UdpLink::bind(own_address()).unwrap(),
        UdpLink::bind(own_address()).unwrap(),
    );
    b.set_receive_tos(true).unwrap();
    let handle = a.tx_handle(Qpn::new(0x01_0010), 0).unwrap();
    let mut buf = RxBuffer::new();
    let mut exchange = |lens: &[u16], tos: u8| {
        let run = labelled(lens);
        a.send(handle, b.local(), tos, &run, lens[0].into())
            .unwrap();
        let batch = receive(&b, &mut buf).unwrap();
        assert_eq!((batch.data, batch.tos), (&run[..], Some(tos)), "{lens:?}");
        let found: Vec<_> = batch
            .segments()
            .map(|s| u16::try_from(s.len()).unwrap())
            .collect();
        assert_eq!(found, lens);
    };
    let all: [&[u16]; 9] = [
        &[24, 20],
        &[20],
        &[24],
        &[25],
        &[48],
        &[4096],
        &[24, 24, 24, 10],
        &[1000, 1000, 30],
        &[20, 16],
    ];
    for tos in [0, 0x62] {
        all.iter().for_each(|lens| exchange(lens, tos));
    }
    assert_eq!(a.default_segment_len(handle), 0);
    for _ in 0..100 {
        exchange(&[24, 20], 0);
    }
    assert_eq!(a.default_segment_len(handle), 24);
    for tos in [0, 0x62] {
        all.iter().for_each(|lens| exchange(lens, tos));
    }
}

#[test]
fn threads_do_not_cut_each_others_datagrams_while_a_habit_forms() {
    let (a, b) = (
        UdpLink::bind(own_address()).unwrap(),
        UdpLink::bind(own_address()).unwrap(),
    );
    let handle = a.tx_handle(Qpn::new(0x01_0010), 0).unwrap();
    let send = |lens: &[u16]| {
        let run = labelled(lens);
        match a.send(handle, b.local(), 0, &run, lens[0].into()) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            result => result.unwrap(),
        }
    };
    let mut buf = RxBuffer::new();
    let mut received = 0;
    let mut receive_all = || {
        while let Some(batch) = b.recv(&mut buf).unwrap() {
            for segment in batch.segments() {
                let label = u16::from_be_bytes([segment[0], segment[1]]);
                assert_eq!(usize::from(label), segment.len());
                received += 1;
            }
        }
    };
    std::thread::scope(|scope| {
        let talks = scope.spawn(|| {
            while a.default_segment_len(handle) == 0 {
                send(&[24, 20]);
            }
        });
        let others: Vec<_> = [&[30][..], &[300], &[2000, 2000, 5]]
            .map(|lens| {
                scope.spawn(|| {
                    for _ in 0..2000 {
                        send(lens);
                    }
                })
            })
            .into();
        while !talks.is_finished() || !others.iter().all(|thread| thread.is_finished()) {
            receive_all();
        }
    });
    receive_all();
    assert!(received > 100, "{received}");
    assert_eq!(a.default_segment_len(handle), 24);
}

#[test]
fn segments_get_the_icrc_of_identification_0() {
    let (a, b) = (
        UdpLink::bind(own_address()).unwrap(),
        UdpLink::bind(own_address()).unwrap(),
    );
    let dest = Qpn::new(0x01_0010);
    let handle = a.tx_handle(dest, 0).unwrap();
    let flow = IcrcFlow::new(a.local(), b.local(), handle.source_port).unwrap();
    let run: Vec<u8> = (0..3u8)
        .flat_map(|id| packet(dest, id, 64, Some((&flow, id.into()))))
        .collect();
    a.set_gso(false);
    a.send(handle, b.local(), 0, &run, 64).unwrap();
    for id in 0..3 {
        let mut buf = RxBuffer::new();
        let batch = receive(&b, &mut buf).unwrap();
        assert_eq!(batch.data, packet(dest, id, 64, Some((&flow, 0))));
    }
    // A packet without a valid ICRC stays unchanged.
    let run = [packet(dest, 1, 64, None), packet(dest, 2, 64, None)].concat();
    a.send(handle, b.local(), 0, &run, 64).unwrap();
    for body in 1..3 {
        let mut buf = RxBuffer::new();
        assert_eq!(
            receive(&b, &mut buf).unwrap().data,
            packet(dest, body, 64, None)
        );
    }
}

#[test]
fn each_slot_gets_its_packets() {
    let local = own_address();
    let members = group(local, 5);
    let peer = UdpLink::bind(own_address()).unwrap();
    for link in &members {
        let slot = link.slot().unwrap();
        let dest = slot.qpn(0x1234);
        let run = [
            packet(dest, slot.get(), 100, None),
            packet(dest, slot.get(), 100, None),
        ];
        let handle = peer.tx_handle(dest, 0).unwrap();
        peer.send(handle, local.ip(), 0, &run.concat(), 100)
            .unwrap();
        let mut buf = RxBuffer::new();
        let batch = receive(link, &mut buf).unwrap();
        assert_eq!(batch.segments().collect::<Vec<_>>(), run.each_ref());
    }
    let mut buf = RxBuffer::new();
    assert!(
        members
            .iter()
            .all(|link| link.recv(&mut buf).unwrap().is_none())
    );
}

#[test]
fn packets_of_one_slot_share_a_source_port() {
    let link = UdpLink::bind(own_address()).unwrap();
    let handle = |qpn| link.tx_handle(Qpn::new(qpn), 0).unwrap();
    assert_eq!(handle(0x01_0010), handle(0x01_FFFF));
    let ports: std::collections::BTreeSet<_> =
        (0..16).map(|slot| handle(slot << 16).source_port).collect();
    assert_eq!(ports.len(), 8);
}

#[test]
fn a_packet_of_another_slot_is_forwarded_once() {
    let local = own_address();
    let members = group(local, 4);
    let peer = UdpLink::bind(own_address()).unwrap();
    let dest = ProcessSlot::new(2).qpn(0x77);
    let misrouted = packet(dest, 9, 200, None);
    let source = peer.local_addr().with_port(50_000);

    // Slot 3 has the packet of slot 2.
    members[3]
        .forward(ProcessSlot::new(2), source, &misrouted)
        .unwrap();
    let mut buf = RxBuffer::new();
    let batch = receive(&members[2], &mut buf).unwrap();
    assert_eq!(batch.source.ip(), local.ip());
    let forwarded = Arrival::Forwarded(source, &misrouted, 0);
    assert_eq!(members[2].arrival(batch.data), forwarded);
    assert_eq!(members[2].arrival(&misrouted), Arrival::Direct);

    // A wrapped packet with a wrong key or for another slot is forged. A link that is not shared
    // accepts none.
    let mut guessed = batch.data.to_vec();
    guessed[28] ^= 1;
    for (link, data) in [
        (&members[2], &guessed[..]),
        (&members[2], &batch.data[..28]),
        (&members[1], batch.data),
        (&peer, batch.data),
    ] {
        assert_eq!(link.arrival(data), Arrival::Forged);
    }
    // Wrapped packets, those of this process, and those for a third slot are not forwarded.
    for (slot, data) in [
        (2, batch.data),
        (3, &misrouted),
        (1, &misrouted),
        (2, &misrouted[..4]),
    ] {
        let refused = members[3]
            .forward(ProcessSlot::new(slot), source, data)
            .unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
    }
    let refused = peer
        .forward(ProcessSlot::new(2), source, &misrouted)
        .unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
}

#[test]
fn an_address_in_use_names_its_owner() {
    let local = own_address();
    let _link = UdpLink::bind(local).unwrap();
    let error = UdpLink::bind(local).unwrap_err();
    let LinkError::InUse {
        owner: SocketOwner::Process { pid, .. },
        ..
    } = &error
    else {
        panic!("{error:?}");
    };
    assert_eq!(*pid, std::process::id());
    assert!(
        error.to_string().contains(&format!("process {pid}")),
        "{error}"
    );
    assert_eq!(io::Error::from(error).kind(), io::ErrorKind::AddrInUse);
}

#[test]
fn unusable_addresses_are_refused() {
    for text in ["0.0.0.0", "::", "239.1.2.3", "ff02::1", "fe80::1"] {
        let error = UdpLink::bind(text.parse::<IpAddr>().unwrap()).unwrap_err();
        assert!(
            matches!(error, LinkError::Unusable { .. }),
            "{text}: {error}"
        );
    }
    // Reserved for documentation, and assigned to no machine.
    let error = UdpLink::bind(IpAddr::from([203, 0, 113, 77])).unwrap_err();
    assert!(matches!(error, LinkError::NotLocal { .. }), "{error}");
}

#[test]
fn only_members_of_a_group_are_taken_from_the_broker() {
    let local = own_address();
    let lonely = UdpSocket::bind(local.with_port(ROCE_PORT)).unwrap();
    assert!(UdpLink::from_broker(local, ProcessSlot::new(1), shared(lonely.into())).is_err());
    let other = socket::open_receive(own_address(), Sharing::ReusePort).unwrap();
    assert!(UdpLink::from_broker(local, ProcessSlot::new(1), shared(other.into())).is_err());
}

#[test]
fn a_full_receive_buffer_is_counted() {
    let (a, b) = (
        UdpLink::bind(own_address()).unwrap(),
        UdpLink::bind(own_address()).unwrap(),
    );
    b.set_receive_buffer(4096).unwrap();
    assert!(b.receive_buffer().unwrap() <= 8192);
    let handle = a.tx_handle(Qpn::new(0x01_0010), 0).unwrap();
    for _ in 0..64 {
        a.send(handle, b.local(), 0, &[7; 1000], 1000).unwrap();
    }
    let mut buf = RxBuffer::new();
    let before = Instant::now();
    while b.recv(&mut buf).unwrap().is_some() {
        assert!(before.elapsed() < Duration::from_secs(60));
    }
    a.send(handle, b.local(), 0, &[8; 1000], 1000).unwrap();
    let batch = receive(&b, &mut buf).unwrap();
    assert_eq!(batch.data[0], 8);
    assert!(b.receive_overflows().unwrap() > 0);
}

#[test]
fn ipv6_loopback() {
    // There is one IPv6 loopback address, and other programs may have its port now.
    let local = LocalAddr::from(IpAddr::from(Ipv6Addr::LOCALHOST));
    let link = match UdpLink::bind(local) {
        Ok(link) => link,
        Err(error @ (LinkError::InUse { .. } | LinkError::NotLocal { .. })) => {
            rocade_skip::skip!("no place on ::1: {error}");
        }
        Err(error) => panic!("{error}"),
    };
    link.set_receive_tos(true).unwrap();
    let handle = link.tx_handle(Qpn::new(0x01_0010), 9).unwrap();
    let data: Vec<u8> = (0..5).flat_map(|at| [at; 1000]).collect();
    link.send(handle, link.local(), 0x22, &data, 1000).unwrap();
    let mut buf = RxBuffer::new();
    let batch = receive(&link, &mut buf).unwrap();
    assert_eq!(
        (batch.data, batch.segment_len, batch.tos),
        (&data[..], 1000, Some(0x22))
    );
    assert_eq!(batch.source, local.with_port(handle.source_port));
}

#[test]
fn local_addresses_are_normalised() {
    let mapped: IpAddr = "::ffff:127.0.0.2".parse().unwrap();
    assert_eq!(LocalAddr::from(mapped).ip(), IpAddr::from([127, 0, 0, 2]));
    let link_local = LocalAddr::new("fe80::1".parse().unwrap(), 5);
    assert_eq!(link_local.to_string(), "fe80::1%5");
    assert_eq!(
        link_local.peer("fe80::2".parse().unwrap()),
        "[fe80::2%5]:4791".parse().ok()
    );
    assert_eq!(
        link_local.peer("2001:db8::2".parse().unwrap()),
        "[2001:db8::2]:4791".parse().ok()
    );
    assert_eq!(
        LocalAddr::new("2001:db8::1".parse().unwrap(), 5).scope_id(),
        0
    );
    assert_eq!(LocalAddr::from(link_local.with_port(9)), link_local);
}
