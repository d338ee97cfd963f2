//! UD queue pairs of datagram sockets, and their routes to peers.

use std::{
    net::{IpAddr, SocketAddr},
    ptr,
    time::{Duration, Instant},
};

use rocade_abi::{
    IBV_ACCESS_LOCAL_WRITE, IBV_QPT_UD, IBV_SEND_INLINE, IBV_WC_SUCCESS, IBV_WR_SEND, ibv_ah,
    ibv_ah_attr, ibv_context, ibv_gid, ibv_pd, ibv_qp, ibv_qp_init_attr, ibv_recv_wr, ibv_send_wr,
    ibv_send_wr_remote, ibv_send_wr_ud,
};
use rocade_rsockets::datagram::MAX_LEN;

use super::{
    cm::Id,
    memory::Buffer,
    options::Options,
    queue::{self, Queue},
};
use crate::{
    args::{Handle, In, Last, Out, zeroed},
    engine::verbs,
    ffi::Errno,
    id::PS_UDP,
    qp::{extended, make_qp, rdma_destroy_qp},
};

/// The Q_Key of the port space.
const QKEY: u32 = 0x0123_4567;
/// The length of the GRH that precedes each received datagram.
const GRH_LEN: usize = 40;
/// The length of a buffer slot for one datagram.
const SLOT: usize = GRH_LEN + MAX_LEN;
/// The `wr_id` bit of receive work requests.
const RECV: u64 = 1 << 63;
/// The maximum number of send slots, and of receive slots.
const MAX_SLOTS: u32 = 4096;
/// The number of GID table entries that are searched.
const GIDS: i32 = 256;

/// The protection domain of an endpoint.
#[derive(Clone, Copy)]
pub(super) struct Domain(*mut ibv_pd);

/// The queue pair for one local address.
pub(super) struct Endpoint {
    pub(super) local: IpAddr,
    qp: *mut ibv_qp,
    pub(super) queue: Queue,
    send: Buffer,
    recv: Buffer,
    free: Vec<usize>,
    send_slots: usize,
    inline: usize,
    pd: *mut ibv_pd,
    // The last member, because the ID must outlive its queue pair.
    id: Id,
}

// SAFETY: objects of libibverbs, which any thread may use.
unsafe impl Send for Endpoint {}

/// Returns the number of slots for a buffer size in bytes. Each datagram occupies one slot.
fn slots(asked: u16, bytes: u32) -> u32 {
    let fit = bytes / u32::try_from(MAX_LEN).unwrap_or(1);
    u32::from(asked).min(fit).clamp(1, MAX_SLOTS)
}

impl Endpoint {
    pub(super) fn new(local: IpAddr, options: &Options) -> Result<Self, Errno> {
        let id = Id::new(Handle::NULL, 0, PS_UDP)?;
        id.bind(SocketAddr::new(local, 0))?;
        let (device, pd) = (id.device()?, id.pd()?.as_ptr());
        // SAFETY: that of the ID, which this endpoint keeps.
        let domain = unsafe { Handle::new(pd) };
        let send_slots = slots(options.send_slots, options.send_buffer);
        let recv_slots = slots(options.recv_slots, options.recv_buffer);
        let queue = Queue::new(device, send_slots + recv_slots)?;
        let bytes = |slots: u32, len: usize| usize::try_from(slots).unwrap_or(0) * len;
        let send = Buffer::new(domain, bytes(send_slots, MAX_LEN), 0)?;
        let recv = Buffer::new(domain, bytes(recv_slots, SLOT), IBV_ACCESS_LOCAL_WRITE)?;
        let inline = options.inline.min(1024);
        let mut attr: ibv_qp_init_attr = zeroed();
        attr.send_cq = queue.cq;
        attr.recv_cq = queue.cq;
        attr.qp_type = IBV_QPT_UD;
        attr.sq_sig_all = 1;
        attr.cap.max_send_wr = send_slots;
        attr.cap.max_recv_wr = recv_slots;
        attr.cap.max_send_sge = 1;
        attr.cap.max_recv_sge = 1;
        attr.cap.max_inline_data = inline.into();
        // SAFETY: it names the queue of this endpoint.
        unsafe { make_qp(id.object()?, &mut extended(ptr::null_mut(), &attr)) }?;
        let send_slots = usize::try_from(send_slots).unwrap_or(0);
        let endpoint = Self {
            local,
            qp: id.object()?.qp().as_ptr(),
            queue,
            send,
            recv,
            free: (0..send_slots).collect(),
            send_slots,
            inline: inline.into(),
            pd,
            id,
        };
        for slot in 0..usize::try_from(recv_slots).unwrap_or(0) {
            endpoint.post_recv(slot)?;
        }
        Ok(endpoint)
    }

    pub(super) fn qpn(&self) -> u32 {
        // SAFETY: alive as long as `self`.
        unsafe { (*self.qp).qp_num }
    }

    pub(super) const fn domain(&self) -> Domain {
        Domain(self.pd)
    }

    pub(super) fn can_send(&self) -> bool {
        !self.free.is_empty()
    }

    fn post_recv(&self, slot: usize) -> Result<(), Errno> {
        let len = u32::try_from(SLOT).unwrap_or(0);
        let mut sge = queue::sge(self.recv.addr(slot * SLOT), len, self.recv.lkey());
        let mut wr = ibv_recv_wr {
            wr_id: RECV | slot as u64,
            next: ptr::null_mut(),
            sg_list: &raw mut sge,
            num_sge: 1,
        };
        // SAFETY: a live queue pair.
        unsafe { queue::post_recv(self.qp, &mut wr) }
    }

    /// Polls the CQ, and calls `each` with every received datagram.
    pub(super) fn progress(&mut self, mut each: impl FnMut(&[u8])) -> usize {
        let mut again = Vec::new();
        let (recv, free) = (&self.recv, &mut self.free);
        let mut bytes = [0; MAX_LEN];
        let taken = self.queue.take(|wc| {
            let slot = usize::try_from(wc.wr_id & !RECV).unwrap_or(0);
            if wc.wr_id & RECV == 0 {
                free.push(slot);
                return;
            }
            if wc.status != IBV_WC_SUCCESS {
                return;
            }
            let len = usize::try_from(wc.byte_len).unwrap_or(0);
            let len = len.saturating_sub(GRH_LEN).min(MAX_LEN);
            // SAFETY: as many bytes are writable.
            let got = unsafe { recv.get(slot * SLOT + GRH_LEN, bytes.as_mut_ptr(), len) };
            if got.is_ok() {
                each(&bytes[..len]);
            }
            again.push(slot);
        });
        for slot in again {
            // If posting fails, the queue has one receive less.
            let _ = self.post_recv(slot);
        }
        taken
    }

    /// Sends a datagram with its header.
    pub(super) fn send(
        &mut self,
        handle: &AddressHandle,
        route: &DatagramRoute,
        bytes: &[u8],
    ) -> Result<(), Errno> {
        let slot = self.free.pop().ok_or(Errno(libc::EAGAIN))?;
        let len = u32::try_from(bytes.len()).map_err(|_| Errno(libc::EMSGSIZE))?;
        let mut wr: ibv_send_wr = zeroed();
        let mut sge = if bytes.len() <= self.inline {
            wr.send_flags = IBV_SEND_INLINE;
            queue::sge(bytes.as_ptr().expose_provenance() as u64, len, 0)
        } else {
            let place = slot * MAX_LEN;
            self.send.write(place, bytes);
            queue::sge(self.send.addr(place), len, self.send.lkey())
        };
        wr.wr_id = slot as u64;
        wr.sg_list = &raw mut sge;
        wr.num_sge = 1;
        wr.opcode = IBV_WR_SEND;
        wr.wr = ibv_send_wr_remote {
            ud: ibv_send_wr_ud {
                ah: handle.0,
                remote_qpn: route.qpn,
                remote_qkey: QKEY,
            },
        };
        // SAFETY: the queue pair and the address handle are alive. The bytes are on the stack or in
        // `send`.
        let posted = unsafe { queue::post_send(self.qp, &mut wr) };
        if posted.is_err() {
            self.free.push(slot);
        }
        posted
    }

    /// Waits at most one second until all sends have completed, unless the device is gone.
    pub(super) fn drain(&mut self) {
        let until = Instant::now() + Duration::from_secs(1);
        while self.free.len() < self.send_slots
            && self.queue.failure().is_none()
            && Instant::now() < until
        {
            self.progress(|_| ());
            std::thread::yield_now();
        }
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        rdma_destroy_qp(self.id.handle());
    }
}

/// The route to a peer's queue pair.
pub(super) struct DatagramRoute {
    pub(super) qpn: u32,
    /// The maximum length of a datagram with its header.
    pub(super) most: usize,
    attr: ibv_ah_attr,
}

impl DatagramRoute {
    /// Resolves the route with the connection manager.
    pub(super) fn find(local: IpAddr, peer: IpAddr, qpn: u32) -> Result<Self, Errno> {
        /// An arbitrary port: resolving does not contact the peer.
        const PORT: u16 = 1;
        let id = Id::new(Handle::NULL, 0, PS_UDP)?;
        let source = SocketAddr::new(local, 0);
        id.resolve_addr(Some(source), SocketAddr::new(peer, PORT))?;
        id.resolve_route()?;
        let path = id.route().ok_or(Errno::NODEV)?;
        let mut attr: ibv_ah_attr = zeroed();
        attr.is_global = 1;
        attr.port_num = 1;
        attr.sl = path.sl;
        attr.grh.dgid = path.dgid;
        attr.grh.flow_label = u32::from_be(path.flow_label);
        attr.grh.hop_limit = path.hop_limit;
        attr.grh.traffic_class = path.traffic_class;
        attr.grh.sgid_index = gid_index(id.device()?, path.sgid)?;
        Ok(Self {
            qpn,
            most: (128_usize << path.mtu.min(5)).min(MAX_LEN),
            attr,
        })
    }
}

/// Returns the index of a GID in the table of the first port.
fn gid_index(device: Handle<'_, ibv_context>, wanted: ibv_gid) -> Result<u8, Errno> {
    let verbs = verbs()?;
    for index in 0..GIDS {
        let mut gid = ibv_gid { raw: [0; 16] };
        if verbs.ibv_query_gid(device, 1, index, Out::of(&mut gid)) != 0 {
            break;
        }
        // SAFETY: each is 16 bytes.
        if unsafe { gid.raw == wanted.raw } {
            return u8::try_from(index).map_err(|_| Errno::INVAL);
        }
    }
    Err(Errno(libc::EADDRNOTAVAIL))
}

/// An address handle.
pub(super) struct AddressHandle(*mut ibv_ah);

// SAFETY: an object of libibverbs, which any thread may use.
unsafe impl Send for AddressHandle {}

impl AddressHandle {
    pub(super) fn new(domain: Domain, route: &DatagramRoute) -> Result<Self, Errno> {
        // SAFETY: the domain of an endpoint, which is alive.
        let pd = unsafe { Handle::new(domain.0) };
        let made = verbs()?.ibv_create_ah(pd, In::of(&route.attr));
        Ok(Self(Errno::made(made)?))
    }
}

impl Drop for AddressHandle {
    fn drop(&mut self) {
        if let Ok(verbs) = verbs() {
            // SAFETY: created above.
            verbs.ibv_destroy_ah(unsafe { Last::new(self.0) });
        }
    }
}
