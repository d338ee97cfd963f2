//! UD queue pairs of datagram sockets, and their routes to peers.

use std::{
    net::{IpAddr, SocketAddr},
    time::{Duration, Instant},
};

use rocade_abi::{
    IBV_ACCESS_LOCAL_WRITE, IBV_QPT_UD, IBV_WC_SUCCESS, IBV_WR_SEND, ibv_ah, ibv_ah_attr,
    ibv_context, ibv_gid, ibv_pd, ibv_qp, ibv_qp_init_attr, ibv_send_wr,
};
use rocade_rsockets::datagram::MAX_LEN;

use super::{
    cm::Id,
    memory::Buffer,
    options::Options,
    queue::{self, Data, Queue, To},
};
use crate::{
    args::{Handle, In, New, Out, Room, View, gid_bytes, member, zeroed},
    devices,
    engine::verbs,
    ffi::Errno,
    id::{IdObject, PS_UDP},
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

/// The queue pair for one local address.
pub(super) struct Endpoint {
    pub(super) local: IpAddr,
    pub(super) queue: Queue,
    send: Buffer,
    recv: Buffer,
    free: Vec<usize>,
    send_slots: usize,
    inline: usize,
    // The last member, because the ID must outlive its queue pair.
    id: Id,
}

/// Returns the number of slots for a buffer size in bytes. Each datagram occupies one slot.
fn slots(asked: u16, bytes: u32) -> u32 {
    let fit = bytes / u32::try_from(MAX_LEN).unwrap_or(1);
    u32::from(asked).min(fit).clamp(1, MAX_SLOTS)
}

impl Endpoint {
    pub(super) fn new(local: IpAddr, options: &Options) -> Result<Self, Errno> {
        let id = Id::new(Handle::NULL, 0, PS_UDP)?;
        id.bind(SocketAddr::new(local, 0))?;
        let (device, domain) = (id.device()?, id.pd()?);
        let send_slots = slots(options.send_slots, options.send_buffer);
        let recv_slots = slots(options.recv_slots, options.recv_buffer);
        let queue = Queue::new(device, send_slots + recv_slots)?;
        let bytes = |slots: u32, len: usize| usize::try_from(slots).unwrap_or(0) * len;
        let send = Buffer::new(domain, bytes(send_slots, MAX_LEN), 0)?;
        let recv = Buffer::new(domain, bytes(recv_slots, SLOT), IBV_ACCESS_LOCAL_WRITE)?;
        let inline = options.inline.min(1024);
        let mut attr: ibv_qp_init_attr = zeroed();
        attr.send_cq = queue.cq().as_ptr();
        attr.recv_cq = queue.cq().as_ptr();
        attr.qp_type = IBV_QPT_UD;
        attr.sq_sig_all = 1;
        attr.cap.max_send_wr = send_slots;
        attr.cap.max_recv_wr = recv_slots;
        attr.cap.max_send_sge = 1;
        attr.cap.max_recv_sge = 1;
        attr.cap.max_inline_data = inline.into();
        // SAFETY: it names the queue of this endpoint.
        let attr = unsafe { View::new(attr) };
        make_qp(id.object()?, extended(Handle::NULL, attr, attr.qp_type))?;
        let send_slots = usize::try_from(send_slots).unwrap_or(0);
        let endpoint = Self {
            local,
            queue,
            send,
            recv,
            free: (0..send_slots).collect(),
            send_slots,
            inline: inline.into(),
            id,
        };
        for slot in 0..usize::try_from(recv_slots).unwrap_or(0) {
            endpoint.post_recv(slot)?;
        }
        Ok(endpoint)
    }

    pub(super) fn qpn(&self) -> u32 {
        self.qp().member(member!(ibv_qp, qp_num)).unwrap_or(0)
    }

    /// Returns the queue pair, which lives as long as this value. NULL in a forked child.
    fn qp(&self) -> Handle<'_, ibv_qp> {
        self.id.object().map_or(Handle::NULL, IdObject::qp)
    }

    /// Returns the protection domain, which is that of the device.
    pub(super) fn domain(&self) -> Result<Handle<'static, ibv_pd>, Errno> {
        Ok(devices::of(self.id.device()?)?.pd)
    }

    pub(super) fn can_send(&self) -> bool {
        !self.free.is_empty()
    }

    fn post_recv(&self, slot: usize) -> Result<(), Errno> {
        let len = u32::try_from(SLOT).unwrap_or(0);
        let sge = queue::sge(self.recv.addr(slot * SLOT), len, self.recv.lkey());
        queue::post_recv(self.qp(), RECV | slot as u64, sge)
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
            let got = recv.get(slot * SLOT + GRH_LEN, Room::of(&mut bytes[..len]));
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
        let data = if bytes.len() <= self.inline {
            Data::Inline(bytes)
        } else {
            let place = slot * MAX_LEN;
            self.send.write(place, bytes);
            Data::Registered(queue::sge(self.send.addr(place), len, self.send.lkey()))
        };
        wr.wr_id = slot as u64;
        wr.opcode = IBV_WR_SEND;
        let to = To::Datagram(handle.0.handle(), route.qpn, QKEY);
        let posted = queue::post_send(self.qp(), &wr, data, to);
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
        if gid_bytes(&gid) == gid_bytes(&wanted) {
            return u8::try_from(index).map_err(|_| Errno::INVAL);
        }
    }
    Err(Errno(libc::EADDRNOTAVAIL))
}

/// An address handle.
pub(super) struct AddressHandle(New<ibv_ah>);

impl AddressHandle {
    pub(super) fn new(pd: Handle<'_, ibv_pd>, route: &DatagramRoute) -> Result<Self, Errno> {
        Ok(Self(verbs()?.ibv_create_ah(pd, In::of(&route.attr))?))
    }
}

impl Drop for AddressHandle {
    fn drop(&mut self) {
        if let Ok(verbs) = verbs() {
            verbs.ibv_destroy_ah(self.0.take());
        }
    }
}
