//! The packets of the UDP link on the wire. A TUN device in its own network namespace shows each IP
//! datagram byte by byte, in both directions. Needs root, and is skipped without.

#![expect(
    clippy::unwrap_used,
    reason = "in helpers of tests a panic is the report"
)]

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::process::Command;
use std::thread;

use rocade_emulator::link::{LocalAddr, ROCE_PORT, RxBuffer, UdpLink, UdpTxHandle};
use rocade_wire::Qpn;
use rocade_wire::icrc::{self, IcrcFlow};
use rocade_wire::ip::Datagram;

const PATIENCE_MS: i32 = 30_000;

/// A device that reads outgoing packets and injects incoming ones.
struct Tun {
    device: File,
}

impl Tun {
    /// Moves this thread into a new network namespace with one device. Returns the reason if that
    /// is not possible.
    fn new(mtu: u32) -> Result<Self, String> {
        // SAFETY: takes no pointers, and changes this thread only.
        if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
            return Err(format!(
                "no network namespace: {}",
                io::Error::last_os_error()
            ));
        }
        let device = File::options()
            .read(true)
            .write(true)
            .open("/dev/net/tun")
            .map_err(|error| format!("no TUN device: {error}"))?;
        // struct ifreq: the name, then the flags.
        let mut request = [0u8; 40];
        request[..4].copy_from_slice(b"tun0");
        let flags = libc::c_short::try_from(libc::IFF_TUN | libc::IFF_NO_PI).unwrap();
        request[16..18].copy_from_slice(&flags.to_ne_bytes());
        // SAFETY: TUNSETIFF takes a struct ifreq, and the buffer is as large as that.
        if unsafe { libc::ioctl(device.as_raw_fd(), libc::TUNSETIFF, request.as_mut_ptr()) } != 0 {
            return Err(format!("no TUN device: {}", io::Error::last_os_error()));
        }
        for command in [
            "link set lo up".to_owned(),
            format!("link set tun0 up mtu {mtu}"),
            "addr add 10.77.0.1/24 dev tun0".to_owned(),
            "addr add fd77::1/64 dev tun0 nodad".to_owned(),
            "addr add fe80::77:1/64 dev tun0 nodad".to_owned(),
        ] {
            // A child has the namespace of the thread that starts it.
            let status = Command::new("ip").args(command.split(' ')).status();
            if !status.is_ok_and(|status| status.success()) {
                return Err(format!("`ip {command}` failed"));
            }
        }
        // The kernel accepts IPv6 packets to a new address once its local route exists, which it
        // adds in the background.
        for local in [
            "fd770000000000000000000000000001",
            "fe800000000000000000000000770001",
        ] {
            wait_until("a local route", || has_local_route(local));
        }
        Ok(Self { device })
    }

    /// Returns the next outgoing RoCEv2 datagram.
    fn next(&mut self) -> Vec<u8> {
        let mut bytes = vec![0; 65536];
        loop {
            wait_readable(self.device.as_raw_fd());
            let len = self.device.read(&mut bytes).unwrap();
            if Datagram::parse(&bytes[..len]).is_ok_and(|datagram| datagram.is_roce()) {
                bytes.truncate(len);
                return bytes;
            }
        }
    }

    fn inject(&mut self, datagram: &Datagram<'_>) {
        let mut bytes = vec![0; datagram.len()];
        let len = datagram.emit(&mut bytes).unwrap();
        self.device.write_all(&bytes[..len]).unwrap();
    }
}

/// Returns true if this thread's namespace delivers packets to this address (32 hexadecimal
/// digits).
fn has_local_route(address: &str) -> bool {
    const RTF_LOCAL: u32 = 0x8000_0000;
    let routes = std::fs::read_to_string("/proc/thread-self/net/ipv6_route").unwrap();
    routes.lines().any(|line| {
        let fields: Vec<_> = line.split_ascii_whitespace().collect();
        let flags = fields
            .get(8)
            .and_then(|flags| u32::from_str_radix(flags, 16).ok());
        fields.first() == Some(&address) && flags.is_some_and(|flags| flags & RTF_LOCAL != 0)
    })
}

fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let start = std::time::Instant::now();
    while !condition() {
        let waited = start.elapsed().as_millis();
        assert!(
            waited < u128::from(PATIENCE_MS.unsigned_abs()),
            "{what} does not appear"
        );
        thread::sleep(std::time::Duration::from_millis(1));
    }
}

/// Runs the test in a thread that may change its namespace.
fn with_tun(mtu: u32, test: impl FnOnce(&mut Tun) + Send) {
    let ran = thread::scope(|scope| {
        let run = || Tun::new(mtu).map(|mut tun| test(&mut tun));
        match scope.spawn(run).join() {
            Ok(ran) => ran,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    });
    if let Err(reason) = ran {
        rocade_skip::skip!("{reason}");
    }
}

fn wait_readable(fd: i32) {
    let mut entry = libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one live entry.
    let ready = unsafe { libc::poll(&raw mut entry, 1, PATIENCE_MS) };
    assert_eq!(ready, 1, "nothing to read");
}

fn wait_link(link: &UdpLink) {
    let fd: BorrowedFd<'_> = link.rx_fd();
    wait_readable(fd.as_raw_fd());
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

const DEST: Qpn = Qpn::new(0x02_0011);

/// A run of packets, each with the ICRC for the Identification that the link promises.
fn run(flow: &IcrcFlow, lens: &[usize]) -> Vec<u8> {
    let mut run = Vec::new();
    for (index, len) in (0u16..).zip(lens) {
        let start = run.len();
        run.resize(start + len - 4, index.to_be_bytes()[1]);
        run[start] = 0x04;
        run[start + 5..start + 8].copy_from_slice(&DEST.get().to_be_bytes()[1..]);
        let icrc = flow.compute(index, &run[start..]);
        run.extend(icrc.to_le_bytes());
    }
    run
}

fn flow(link: &UdpLink, to: IpAddr, handle: UdpTxHandle) -> IcrcFlow {
    IcrcFlow::new(link.local(), to, handle.source_port).unwrap()
}

/// Checks that the ICRC in the packet covers its real headers.
fn assert_valid(bytes: &[u8]) {
    let (_, icrc) = bytes.split_last_chunk::<4>().unwrap();
    assert_eq!(icrc::datagram(bytes), Some(u32::from_le_bytes(*icrc)));
}

//= ENC-02 type=test
//= ENC-03 type=test
//= ENC-07 type=test
#[test]
fn single_ipv4_datagrams_have_identification_0_and_df() {
    with_tun(1500, |tun| {
        let link = UdpLink::bind(ip("10.77.0.1")).unwrap();
        let to = ip("10.77.0.2");
        // One hop limit has its own sockets, another one is passed with each send.
        let cases = [(0, 0, 64), (0xB9, 0, 64), (0xB9, 7, 7), (0, 255, 255)];
        for (traffic_class, hop_limit, ttl) in cases {
            let handle = link.tx_handle(DEST, hop_limit).unwrap();
            let packet = run(&flow(&link, to, handle), &[100]);
            link.send(handle, to, traffic_class, &packet, packet.len())
                .unwrap();
            let bytes = tun.next();
            let datagram = Datagram::parse(&bytes).unwrap();
            assert_eq!((datagram.ip_id, datagram.dont_fragment), (0, true));
            assert_eq!((datagram.tos, datagram.ttl), (traffic_class, ttl));
            assert_eq!(
                (datagram.src_port, datagram.dst_port),
                (handle.source_port, ROCE_PORT)
            );
            assert!((0xC000..=0xFFFF).contains(&datagram.src_port));
            assert!(datagram.udp_checksum == 0 || datagram.udp_checksum_is_valid());
            assert_eq!(datagram.udp_payload, packet);
            assert_valid(&bytes);
        }
    });
}

#[test]
fn segments_of_one_call_are_numbered_from_0() {
    with_tun(1500, |tun| {
        let link = UdpLink::bind(ip("10.77.0.1")).unwrap();
        let to = ip("10.77.0.2");
        let handle = link.tx_handle(DEST, 0).unwrap();
        for count in [2, 5, 40, 64] {
            let mut lens = vec![1000; count];
            lens[count - 1] = 48;
            let data = run(&flow(&link, to, handle), &lens);
            link.send(handle, to, 0x02, &data, 1000).unwrap();
            for (index, len) in (0u16..).zip(lens) {
                let bytes = tun.next();
                let datagram = Datagram::parse(&bytes).unwrap();
                assert_eq!((datagram.ip_id, datagram.dont_fragment), (index, true));
                assert_eq!((datagram.udp_payload.len(), datagram.tos), (len, 0x02));
                assert_valid(&bytes);
            }
        }
        assert!(link.gso());
    });
}

#[test]
fn a_conversation_looks_the_same_on_the_wire_when_it_has_become_a_habit() {
    with_tun(1500, |tun| {
        let link = UdpLink::bind(ip("10.77.0.1")).unwrap();
        let to = ip("10.77.0.2");
        let handle = link.tx_handle(DEST, 255).unwrap();
        for round in 0..100 {
            for lens in [&[24, 20][..], &[if round % 2 == 0 { 20 } else { 500 }]] {
                let data = run(&flow(&link, to, handle), lens);
                link.send(handle, to, 0, &data, lens[0]).unwrap();
                for (index, &len) in (0u16..).zip(lens) {
                    let bytes = tun.next();
                    let datagram = Datagram::parse(&bytes).unwrap();
                    assert_eq!((datagram.ip_id, datagram.ttl), (index, 255));
                    assert_eq!(datagram.udp_payload.len(), len);
                    assert_valid(&bytes);
                }
            }
        }
    });
}

#[test]
fn without_segmentation_all_have_identification_0_and_a_good_icrc() {
    with_tun(1500, |tun| {
        let link = UdpLink::bind(ip("10.77.0.1")).unwrap();
        let to = ip("10.77.0.2");
        let handle = link.tx_handle(DEST, 0).unwrap();
        let data = run(&flow(&link, to, handle), &[500, 500, 100]);
        link.set_gso(false);
        link.send(handle, to, 0, &data, 500).unwrap();
        for len in [500, 500, 100] {
            let bytes = tun.next();
            let datagram = Datagram::parse(&bytes).unwrap();
            assert_eq!((datagram.ip_id, datagram.udp_payload.len()), (0, len));
            assert_valid(&bytes);
        }
    });
}

#[test]
fn packets_beyond_the_mtu_are_refused_not_fragmented() {
    with_tun(1500, |tun| {
        for (local, to) in [("10.77.0.1", ip("10.77.0.2")), ("fd77::1", ip("fd77::2"))] {
            let link = UdpLink::bind(ip(local)).unwrap();
            let handle = link.tx_handle(DEST, 0).unwrap();
            for (len, segment_len) in [(1480, 1480), (4000, 1480)] {
                let error = link
                    .send(handle, to, 0, &vec![0; len], segment_len)
                    .unwrap_err();
                assert_eq!(error.raw_os_error(), Some(libc::EMSGSIZE), "{error}");
            }
            assert!(link.gso(), "the MTU is no reason to give up segmentation");
            // The largest packet that fits.
            let overhead = if to.is_ipv4() { 28 } else { 48 };
            let len = 1500 - overhead;
            link.send(handle, to, 0, &run(&flow(&link, to, handle), &[len]), len)
                .unwrap();
            assert_eq!(tun.next().len(), 1500);
        }
    });
}

//= ENC-08 type=test
#[test]
fn ipv6_datagrams() {
    with_tun(1500, |tun| {
        let link = UdpLink::bind(ip("fd77::1")).unwrap();
        let to = ip("fd77::2");
        for (hop_limit, gso) in [(0, true), (9, true), (9, false), (12, true), (12, false)] {
            link.set_gso(gso);
            let handle = link.tx_handle(DEST, hop_limit).unwrap();
            let data = run(&flow(&link, to, handle), &[1000, 1000, 500]);
            link.send(handle, to, 0x8A, &data, 1000).unwrap();
            for len in [1000, 1000, 500] {
                let bytes = tun.next();
                let datagram = Datagram::parse(&bytes).unwrap();
                assert_eq!((datagram.src, datagram.dst), (link.local(), to));
                assert_eq!(datagram.ttl, if hop_limit == 0 { 64 } else { hop_limit });
                assert_eq!((datagram.tos, datagram.udp_payload.len()), (0x8A, len));
                assert!(datagram.udp_checksum_is_valid());
                assert_valid(&bytes);
            }
        }
    });
}

#[test]
fn link_local_addresses_need_and_use_their_interface() {
    with_tun(1500, |tun| {
        // SAFETY: a C string.
        let index = unsafe { libc::if_nametoindex(c"tun0".as_ptr()) };
        let local = LocalAddr::new(ip("fe80::77:1"), index);
        let link = UdpLink::bind(local).unwrap();
        assert_eq!(link.local_addr(), local);
        let to = ip("fe80::77:2");
        let handle = link.tx_handle(DEST, 0).unwrap();
        link.send(handle, to, 0, &run(&flow(&link, to, handle), &[64]), 64)
            .unwrap();
        let bytes = tun.next();
        let datagram = Datagram::parse(&bytes).unwrap();
        assert_eq!((datagram.src, datagram.dst), (link.local(), to));
        assert_valid(&bytes);

        tun.inject(&incoming(to, link.local(), &[0x11; 40]));
        wait_link(&link);
        let mut buf = RxBuffer::new();
        let batch = link.recv(&mut buf).unwrap().unwrap();
        assert_eq!(LocalAddr::from(batch.source), LocalAddr::new(to, index));
    });
}

fn incoming(src: IpAddr, dst: IpAddr, udp_payload: &[u8]) -> Datagram<'_> {
    Datagram {
        src,
        dst,
        ip_id: 0x1234,
        dont_fragment: true,
        flow_label: 0,
        tos: 0x8B,
        ttl: 17,
        src_port: 4791,
        dst_port: ROCE_PORT,
        udp_checksum: 0,
        udp_payload,
    }
}

//= ENC-06 type=test
#[test]
fn datagrams_without_udp_checksum_are_received() {
    with_tun(1500, |tun| {
        for (local, from) in [("10.77.0.1", ip("10.77.0.2")), ("fd77::1", ip("fd77::2"))] {
            let link = UdpLink::bind(ip(local)).unwrap();
            link.set_receive_tos(true).unwrap();
            let payload = [0x44; 60];
            let mut datagram = incoming(from, link.local(), &payload);
            if from.is_ipv6() {
                datagram.ip_id = 0;
            }
            tun.inject(&datagram);
            wait_link(&link);
            let mut buf = RxBuffer::new();
            let batch = link.recv(&mut buf).unwrap().unwrap();
            assert_eq!((batch.data, batch.tos), (&payload[..], Some(0x8B)));
            assert_eq!(batch.source, (from, 4791).into());
            assert_eq!(batch.segments().count(), 1);
        }
    });
}
