//! Packet sockets: whole frames from and to a network interface. All `unsafe` code of raw packets
//! is in this file, whose functions are safe to call with any argument.
//!
//! Uses raw system calls for sending and receiving. The functions of the C library are cancellation
//! points, and the callers hold locks.

use std::ffi::c_int;
use std::fmt;
use std::io;
use std::mem::{self, MaybeUninit};
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr;

use socket2::{Domain, Type};

use super::frame;
use crate::failure::{NO_ADDRESS, named};

/// Options of linux/if_packet.h.
const PACKET_ADD_MEMBERSHIP: c_int = 1;
const PACKET_DROP_MEMBERSHIP: c_int = 2;
const PACKET_AUXDATA: c_int = 8;
const PACKET_VNET_HDR: c_int = 15;
/// `sll_pkttype` of a frame that leaves the interface.
const PACKET_OUTGOING: u8 = 4;
/// `tp_status`: the VLAN tag is valid, and its type is valid.
const VLAN_VALID: u32 = 1 << 4;
const VLAN_TPID_VALID: u32 = 1 << 6;
const VLAN_TPID: u16 = 0x8100;
/// Types of interfaces: Ethernet, loopback.
const ARPHRD_ETHER: u16 = 1;
const ARPHRD_LOOPBACK: u16 = 772;
/// `virtio_net_hdr`: the checksum is left to the device.
const NEEDS_CSUM: u8 = 1;

/// Space to reinsert a VLAN tag.
const TAG_ROOM: usize = 4;
/// Length of the addresses at the beginning of a frame.
const ADDRESSES: usize = 12;
/// Longest frame from the kernel, including merged segments.
const LONGEST: usize = 128 << 10;
/// Requested receive buffer, large enough for bursts.
const RECEIVE_BUFFER: c_int = 16 << 20;

/// The header before each frame (`virtio_net_hdr`), in host byte order.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct VnetHeader {
    flags: u8,
    gso_type: u8,
    hdr_len: u16,
    gso_size: u16,
    csum_start: u16,
    csum_offset: u16,
}

/// `tpacket_auxdata`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct AuxData {
    status: u32,
    len: u32,
    snaplen: u32,
    mac: u16,
    net: u16,
    vlan_tci: u16,
    vlan_tpid: u16,
}

/// `packet_mreq`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Request {
    ifindex: c_int,
    kind: u16,
    len: u16,
    address: [u8; 8],
}

/// A control message buffer, aligned as `cmsghdr` needs it.
#[repr(C, align(8))]
struct CmsgBuf([u8; 128]);

/// Frames that an interface additionally accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Membership {
    /// Frames to this multicast address.
    Group([u8; 6]),
    /// All frames (promiscuous mode).
    All,
    /// All multicast frames.
    AllGroups,
    /// Frames to this address.
    Address([u8; 6]),
}

/// Properties of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Interface {
    /// The MAC address.
    pub(crate) mac: [u8; 6],
    /// True if each sent frame is received again.
    pub(crate) is_loopback: bool,
}

/// A packet socket bound to an interface.
#[derive(Debug)]
pub(crate) struct PacketSocket {
    fd: OwnedFd,
    ifindex: c_int,
}

/// A buffer for one frame.
pub(crate) struct FrameBuffer(Box<[u8]>);

impl fmt::Debug for FrameBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FrameBuffer").finish_non_exhaustive()
    }
}

impl Default for FrameBuffer {
    fn default() -> Self {
        Self(vec![0; TAG_ROOM + LONGEST].into())
    }
}

/// A received frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ReceivedFrame {
    place: Range<usize>,
    /// True if the interface has sent the frame.
    pub(crate) is_outgoing: bool,
    /// Length of the data per segment, if the frame consists of several merged segments.
    pub(crate) segment_len: Option<usize>,
}

impl FrameBuffer {
    /// Returns the bytes of a frame.
    pub(crate) fn frame(&self, received_frame: &ReceivedFrame) -> &[u8] {
        self.0.get(received_frame.place.clone()).unwrap_or(&[])
    }
}

fn socklen<T>() -> libc::socklen_t {
    libc::socklen_t::try_from(size_of::<T>()).unwrap_or(0)
}

fn check(result: c_int) -> io::Result<()> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl PacketSocket {
    /// Opens a socket for sending, or for receiving all frames of the interface.
    ///
    /// # Errors
    /// `PermissionDenied` without `CAP_NET_RAW`.
    pub(crate) fn open(ifindex: u32, receives: bool) -> io::Result<Self> {
        let all = u16::try_from(libc::ETH_P_ALL).unwrap_or(0).to_be();
        let protocol = if receives { all } else { 0 };
        let kind = Type::RAW.cloexec().nonblocking();
        // Created without a protocol, because frames of other interfaces would arrive before bind.
        let fd = crate::sys::socket(Domain::PACKET, kind, None)
            .map_err(named("failed to create a packet socket"))?;
        let fd = OwnedFd::from(fd);
        let ifindex = c_int::try_from(ifindex).unwrap_or(0);
        let socket = Self { fd, ifindex };
        if receives {
            socket.set(libc::SOL_PACKET, PACKET_VNET_HDR, &1)?;
            socket.set(libc::SOL_PACKET, PACKET_AUXDATA, &1)?;
            let forced = socket.set(libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, &RECEIVE_BUFFER);
            if forced.is_err() {
                socket.set(libc::SOL_SOCKET, libc::SO_RCVBUF, &RECEIVE_BUFFER)?;
            }
        }
        // SAFETY: the structure consists of integers, for which zero is a value.
        let mut address: libc::sockaddr_ll = unsafe { mem::zeroed() };
        address.sll_family = libc::sa_family_t::try_from(libc::AF_PACKET).unwrap_or(0);
        address.sll_protocol = protocol;
        address.sll_ifindex = ifindex;
        let len = socklen::<libc::sockaddr_ll>();
        // SAFETY: the address lives across the call, and `len` is its length.
        let bound = unsafe {
            libc::syscall(
                libc::SYS_bind,
                socket.fd.as_raw_fd(),
                &raw const address,
                len,
            )
        };
        check(c_int::try_from(bound).unwrap_or(-1))?;
        Ok(socket)
    }

    /// Returns the descriptor, to wait for frames.
    pub(crate) fn fd(&self) -> c_int {
        self.fd.as_raw_fd()
    }

    /// Returns the bound interface, or `None` if it has no Ethernet frames.
    pub(crate) fn interface(&self) -> io::Result<Option<Interface>> {
        // SAFETY: the structure consists of integers, for which zero is a value.
        let mut address: libc::sockaddr_ll = unsafe { mem::zeroed() };
        let mut len = socklen::<libc::sockaddr_ll>();
        // SAFETY: both pointers are to live locals, and `len` is the length of the address.
        let result = unsafe {
            libc::getsockname(self.fd.as_raw_fd(), (&raw mut address).cast(), &raw mut len)
        };
        check(result).map_err(named(NO_ADDRESS))?;
        let is_loopback = address.sll_hatype == ARPHRD_LOOPBACK;
        if !is_loopback && address.sll_hatype != ARPHRD_ETHER {
            return Ok(None);
        }
        let mac = address.sll_addr.first_chunk().copied();
        Ok(mac.map(|mac| Interface { mac, is_loopback }))
    }

    fn set<T>(&self, level: c_int, name: c_int, value: &T) -> io::Result<()> {
        // SAFETY: `value` is a live object of exactly the stated size, which the kernel only reads.
        let result = unsafe {
            libc::setsockopt(
                self.fd.as_raw_fd(),
                level,
                name,
                ptr::from_ref(value).cast(),
                socklen::<T>(),
            )
        };
        check(result)
    }

    /// Adds or removes a membership. The kernel counts them.
    pub(crate) fn set_membership(&self, membership: Membership, joins: bool) -> io::Result<()> {
        let (kind, address) = match membership {
            Membership::Group(address) => (0, address),
            Membership::All => (1, [0; 6]),
            Membership::AllGroups => (2, [0; 6]),
            Membership::Address(address) => (3, address),
        };
        let mut padded = [0; 8];
        padded[..6].copy_from_slice(&address);
        let request = Request {
            ifindex: self.ifindex,
            kind,
            len: 6,
            address: padded,
        };
        let name = if joins {
            PACKET_ADD_MEMBERSHIP
        } else {
            PACKET_DROP_MEMBERSHIP
        };
        self.set(libc::SOL_PACKET, name, &request)
    }

    /// Sends a frame without blocking.
    ///
    /// # Errors
    /// `WouldBlock` if there is no room, EMSGSIZE if the frame is too long for the interface.
    pub(crate) fn send(&self, frame: &[u8]) -> io::Result<()> {
        // SAFETY: `frame` is readable for its length, and there is no address.
        let sent = unsafe {
            libc::syscall(
                libc::SYS_sendto,
                self.fd.as_raw_fd(),
                frame.as_ptr(),
                frame.len(),
                libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
                ptr::null::<libc::sockaddr>(),
                0,
            )
        };
        if sent < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }

    /// Receives a frame without blocking, with its tag and checksum in place. Returns `None` if
    /// there is none.
    ///
    /// # Errors
    /// Errors of recvmsg(2), such as `NetworkDown`. The socket stays usable.
    pub(crate) fn receive(&self, buffer: &mut FrameBuffer) -> io::Result<Option<ReceivedFrame>> {
        let mut header = VnetHeader::default();
        // SAFETY: the structure consists of integers, for which zero is a value.
        let mut from: libc::sockaddr_ll = unsafe { mem::zeroed() };
        let mut control = MaybeUninit::<CmsgBuf>::uninit();
        let room = &mut buffer.0[TAG_ROOM..];
        let mut iovecs = [
            libc::iovec {
                iov_base: (&raw mut header).cast(),
                iov_len: size_of::<VnetHeader>(),
            },
            libc::iovec {
                iov_base: room.as_mut_ptr().cast(),
                iov_len: room.len(),
            },
        ];
        // SAFETY: msghdr is plain old data for which zero is a valid value.
        let mut msg: libc::msghdr = unsafe { mem::zeroed() };
        msg.msg_name = (&raw mut from).cast();
        msg.msg_namelen = socklen::<libc::sockaddr_ll>();
        msg.msg_iov = iovecs.as_mut_ptr();
        msg.msg_iovlen = iovecs.len();
        msg.msg_control = control.as_mut_ptr().cast();
        msg.msg_controllen = size_of::<CmsgBuf>();
        // SAFETY: every pointer in `msg` is to a live local or to the buffer, which is exclusively
        // borrowed, each with its true length.
        let received = unsafe {
            libc::syscall(
                libc::SYS_recvmsg,
                self.fd.as_raw_fd(),
                &raw mut msg,
                libc::MSG_DONTWAIT,
            )
        };
        let Ok(received) = usize::try_from(received) else {
            let error = io::Error::last_os_error();
            return match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(None),
                _ => Err(error),
            };
        };
        let len = received.saturating_sub(size_of::<VnetHeader>());
        let bytes = &mut buffer.0[TAG_ROOM..TAG_ROOM + len.min(LONGEST)];
        if header.flags & NEEDS_CSUM != 0 {
            let (start, offset) = (header.csum_start.into(), header.csum_offset.into());
            if start < bytes.len() {
                frame::complete_checksum(bytes, start, offset);
            }
        }
        let mut place = TAG_ROOM..TAG_ROOM + bytes.len();
        if let Some((tpid, tci)) = tag(&msg)
            && bytes.len() >= ADDRESSES
        {
            buffer.0.copy_within(TAG_ROOM..TAG_ROOM + ADDRESSES, 0);
            let [a, b] = tpid.to_be_bytes();
            let [c, d] = tci.to_be_bytes();
            buffer.0[ADDRESSES..ADDRESSES + 4].copy_from_slice(&[a, b, c, d]);
            place.start = 0;
        }
        let segment_len = usize::from(header.gso_size);
        Ok(Some(ReceivedFrame {
            place,
            is_outgoing: from.sll_pkttype == PACKET_OUTGOING,
            segment_len: (header.gso_type != 0 && segment_len > 0).then_some(segment_len),
        }))
    }
}

/// Returns the VLAN tag that the kernel has removed from a frame.
fn tag(msg: &libc::msghdr) -> Option<(u16, u16)> {
    // SAFETY: the kernel has filled in `msg`, and its buffer is alive.
    let mut control = unsafe { libc::CMSG_FIRSTHDR(msg) };
    // SAFETY: NULL, or a header inside the buffer.
    while let Some(head) = unsafe { control.as_ref() } {
        // The message of PACKET_AUXDATA has the same number as the option.
        if head.cmsg_level == libc::SOL_PACKET && head.cmsg_type == PACKET_AUXDATA {
            // SAFETY: the kernel writes a whole structure there.
            let aux = unsafe { libc::CMSG_DATA(control).cast::<AuxData>().read_unaligned() };
            if aux.status & VLAN_VALID == 0 {
                return None;
            }
            let said = aux.status & VLAN_TPID_VALID != 0;
            let tpid = if said { aux.vlan_tpid } else { VLAN_TPID };
            return Some((tpid, aux.vlan_tci));
        }
        // SAFETY: as above.
        control = unsafe { libc::CMSG_NXTHDR(msg, control) };
    }
    None
}
