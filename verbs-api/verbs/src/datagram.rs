//! Datagrams: queue pairs that write to anybody, and where they write to.

use std::io;

use rocade_emulator::{
    AddressVector, Ah, Counters, Datagram, Gid, Grh, Psn, Qkey, Qp, QpAttr, QpAttrMask, QpCap,
    QpInitAttr, QpState, QpType, Qpn, Sge, VerbsError,
};

use crate::completion::{Completion, CompletionQueue};
use crate::device::ProtectionDomain;
use crate::error::{Error, Result};
use crate::events::ObjectId;
use crate::memory::MemoryRegion;
use crate::request::SendRequest;
use crate::shared_receives::SharedReceiveQueue;

/// The network header in front of each message that was received, in bytes: a receive has to have room for
/// it, and `byte_len` counts it.
pub const GRH_LEN: usize = 40;

/// The only port of a device.
const PORT: u8 = 1;

/// A queue pair for datagrams (UD): every message is one packet, to whomever it names, and may be lost.
///
/// ```
/// use std::time::Duration;
///
/// use rocade_verbs::{
///     AccessFlags, DatagramEnd, DeviceList, Config, GRH_LEN, SendRequest,
/// };
///
/// let list = DeviceList::new(Config::simulated(1))?;
/// let (a, b) = (list.open("a")?.protection_domain()?, list.open("b")?.protection_domain()?);
/// let (a_cq, b_cq) = (a.context().completion_queue(16)?, b.context().completion_queue(16)?);
/// let memory = b.register(1024, AccessFlags::LOCAL_WRITE)?;
///
/// // Who knows the Q_Key may write.
/// let (sender, receiver) = (a.datagram_queue_pair(&a_cq, 7)?, b.datagram_queue_pair(&b_cq, 7)?);
/// receiver.post_recv(1, &[memory.sge(..)?])?;
/// let end: DatagramEnd = receiver.end();
/// let address = a.address(end.gid)?;
/// sender.post_send(&SendRequest::send_inline(b"hello"), &address, &end)?;
///
/// let received = b_cq.wait(Duration::from_secs(5))?;
/// assert_eq!(received.src_qp, sender.end().qp_num);
/// let message = memory.to_vec(GRH_LEN, received.byte_len as usize - GRH_LEN)?;
/// assert_eq!(message, b"hello");
/// # Ok::<(), rocade_verbs::Error>(())
/// ```
#[derive(Debug)]
#[doc(alias = "ibv_qp")]
pub struct DatagramQueuePair {
    qp: Qp,
    id: ObjectId,
    end: DatagramEnd,
}

/// What somebody has to know to write to a queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DatagramEnd {
    /// GID of the port, which on RoCE is its IP address; or a multicast group.
    pub gid: Gid,
    /// Queue pair number; [`Qpn::MULTICAST`] for a group.
    pub qp_num: Qpn,
    /// Who does not know it is not listened to.
    pub qkey: u32,
}

impl DatagramEnd {
    /// All that are attached to a multicast group and have this Q_Key.
    #[must_use]
    pub const fn group(gid: Gid, qkey: u32) -> Self {
        Self {
            gid,
            qp_num: Qpn::MULTICAST,
            qkey,
        }
    }
}

/// How messages travel on the way of an [`AddressHandle`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[doc(alias = "ibv_global_route")]
pub struct AddressOptions {
    /// Which entry of the GID table, that is, which local address they come from; `None` is the first of the same IP version.
    pub gid_index: Option<u8>,
    /// IPv4 TOS or IPv6 traffic class.
    pub traffic_class: u8,
    /// IPv4 TTL or IPv6 hop limit; 0 means 64.
    pub hop_limit: u8,
    /// IPv6 flow label, 20 bits; 0 lets the device choose.
    pub flow_label: u32,
}

/// The way to a device or to a multicast group. It may go before what was posted with it has left.
///
/// ```
/// # use std::time::Duration;
/// # use rocade_verbs::*;
/// # let list = DeviceList::new(Config::simulated(1))?;
/// # let (a, b) = (list.open("a")?.protection_domain()?, list.open("b")?.protection_domain()?);
/// # let (a_cq, b_cq) = (a.context().completion_queue(16)?, b.context().completion_queue(16)?);
/// let options = AddressOptions {
///     hop_limit: 3,
///     ..AddressOptions::default()
/// };
/// let address = a.address_with(b.context().gids()[0].gid, &options)?;
/// assert_eq!(address.options().hop_limit, 3);
/// # Ok::<(), rocade_verbs::Error>(())
/// ```
#[derive(Debug, Clone)]
#[doc(alias = "ibv_ah")]
pub struct AddressHandle {
    raw: Ah,
}

impl AddressHandle {
    pub(crate) fn new(pd: &ProtectionDomain, to: Gid, options: &AddressOptions) -> Result<Self> {
        let same_family = |gid: Gid| gid.to_ip().is_ipv4() == to.to_ip().is_ipv4();
        let gids = pd.context().gids();
        let own = gids.iter().find(|entry| same_family(entry.gid));
        let first = || {
            let index = own.ok_or(Error::NoGid(0))?.index;
            u8::try_from(index).map_err(|_| Error::NoGid(index))
        };
        let address = AddressVector {
            dgid: to,
            sgid_index: options.gid_index.map_or_else(first, Ok)?,
            traffic_class: options.traffic_class,
            hop_limit: options.hop_limit,
            flow_label: options.flow_label,
            is_global: true,
            port_num: PORT,
            ..AddressVector::default()
        };
        Ok(Self {
            raw: pd.raw().create_ah(&address)?,
        })
    }

    pub(crate) const fn raw(&self) -> &Ah {
        &self.raw
    }

    /// How messages travel there.
    #[must_use]
    pub fn options(&self) -> AddressOptions {
        let address = self.raw.address();
        AddressOptions {
            gid_index: Some(address.sgid_index),
            traffic_class: address.traffic_class,
            hop_limit: address.hop_limit,
            flow_label: address.flow_label,
        }
    }

    /// Where it leads.
    #[must_use]
    pub fn gid(&self) -> Gid {
        self.raw.address().dgid
    }
}

impl ProtectionDomain {
    /// The way back to who has sent a message: `received` is its completion, and it is in `memory` from `offset` on, network header
    /// and all. `qkey` is what the sender listens to, which no message tells.
    ///
    /// # Errors
    /// [`Error::OutOfRange`]; [`Error::Verbs`]: a completion of no datagram, or the message was for none of the device's
    /// addresses (EINVAL), or there is no network header (EPROTONOSUPPORT).
    #[doc(alias = "ibv_create_ah_from_wc")]
    #[doc(alias = "ibv_init_ah_from_wc")]
    //= GRH-05
    pub fn sender_of(
        &self,
        received: &Completion,
        (memory, offset): (&MemoryRegion, usize),
        qkey: u32,
    ) -> Result<(AddressHandle, DatagramEnd)> {
        if !received.has_grh {
            return Err(VerbsError::InvalidArgument("a completion of no datagram").into());
        }
        let mut bytes = [0; GRH_LEN];
        memory.read(offset, &mut bytes)?;
        let none = || VerbsError::Io(io::Error::from_raw_os_error(libc::EPROTONOSUPPORT));
        let header = Grh::of(&bytes).ok_or_else(none)?;
        let back = header.way_back(PORT, &self.context().gids());
        let back = back.ok_or(VerbsError::InvalidArgument("a message for somebody else"))?;
        let end = DatagramEnd {
            gid: back.dgid,
            qp_num: received.src_qp,
            qkey,
        };
        let raw = self.raw().create_ah(&back)?;
        Ok((AddressHandle { raw }, end))
    }
}

/// What a queue pair for datagrams shall be like; [`build`](Self::build) makes it.
#[derive(Debug, Clone)]
#[must_use = "nothing exists until it is built"]
pub struct DatagramQueuePairBuilder<'a> {
    pd: &'a ProtectionDomain,
    send_cq: &'a CompletionQueue,
    recv_cq: &'a CompletionQueue,
    srq: Option<&'a SharedReceiveQueue>,
    cap: QpCap,
    qkey: u32,
    pkey_index: u16,
}

impl<'a> DatagramQueuePairBuilder<'a> {
    pub(crate) const fn new(pd: &'a ProtectionDomain, cq: &'a CompletionQueue, qkey: u32) -> Self {
        Self {
            pd,
            send_cq: cq,
            recv_cq: cq,
            srq: None,
            cap: QpCap {
                max_send_wr: 64,
                max_recv_wr: 64,
                max_send_sge: 4,
                max_recv_sge: 4,
                max_inline_data: 64,
            },
            qkey,
            pkey_index: 0,
        }
    }

    /// Receives complete in another queue than sends.
    pub const fn recv_cq(mut self, cq: &'a CompletionQueue) -> Self {
        self.recv_cq = cq;
        self
    }

    /// Takes its receives from a queue that others use too. Receives cannot be posted to the queue pair then.
    //= QPC-03
    pub const fn shared_receives(mut self, srq: &'a SharedReceiveQueue) -> Self {
        self.srq = Some(srq);
        self
    }

    /// How many sends and receives may be outstanding; 64 each by default.
    pub const fn depth(mut self, sends: u32, receives: u32) -> Self {
        (self.cap.max_send_wr, self.cap.max_recv_wr) = (sends, receives);
        self
    }

    /// Its partition: an index of the [table](crate::Context::pkeys); 0 by default.
    #[doc(alias = "IBV_QP_PKEY_INDEX")]
    pub const fn pkey_index(mut self, index: u16) -> Self {
        self.pkey_index = index;
        self
    }

    /// Makes it, ready to send and receive.
    ///
    /// # Errors
    /// [`Error::NoGid`]; [`Error::Verbs`] if a size is above the limit, the device's addresses cannot be used, there is
    /// no such partition, or the Q_Key has its highest bit set and the process is not privileged.
    pub fn build(self) -> Result<DatagramQueuePair> {
        let gid = self.pd.context().gids().first().ok_or(Error::NoGid(0))?.gid;
        let id = ObjectId::next();
        let qp = self.pd.raw().create_qp(QpInitAttr {
            send_cq: self.send_cq.raw().clone(),
            recv_cq: self.recv_cq.raw().clone(),
            srq: self.srq.map(|srq| srq.raw().clone()),
            cap: self.cap,
            qp_type: QpType::Ud,
            sq_sig_all: false,
            cookie: id.cookie(),
        })?;
        let modify = |state: QpState, more| {
            let attr = QpAttr {
                qp_state: state.code(),
                port_num: PORT,
                qkey: self.qkey,
                pkey_index: self.pkey_index,
                sq_psn: Psn::new(0).get(),
                ..QpAttr::default()
            };
            qp.modify(&attr, QpAttrMask::STATE | more)
        };
        let init = QpAttrMask::PKEY_INDEX | QpAttrMask::PORT | QpAttrMask::QKEY;
        modify(QpState::Init, init)?;
        modify(QpState::Rtr, QpAttrMask::empty())?;
        modify(QpState::Rts, QpAttrMask::SQ_PSN)?;
        let end = DatagramEnd {
            gid,
            qp_num: qp.qp_num(),
            qkey: self.qkey,
        };
        Ok(DatagramQueuePair { qp, id, end })
    }
}

impl DatagramQueuePair {
    /// Its name in [events](crate::Context::poll_event).
    #[must_use]
    pub const fn id(&self) -> ObjectId {
        self.id
    }

    /// What others need to write to it.
    #[must_use]
    pub const fn end(&self) -> DatagramEnd {
        self.end
    }

    /// Its state: RTS, SQE after a request of its own could not be sent, or ERR.
    #[must_use]
    #[doc(alias = "ibv_query_qp")]
    pub fn state(&self) -> QpState {
        self.qp.state()
    }

    /// Packets and drops so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.qp.counters()
    }

    /// Listens to who knows another Q_Key from now on, and nobody else.
    ///
    /// # Errors
    /// [`Error::Verbs`] after a failure, or if `qkey` has its highest bit set and the process is not privileged (EPERM).
    #[doc(alias = "IBV_QP_QKEY")]
    //= QPT-18 QPV-05
    pub fn set_qkey(&mut self, qkey: u32) -> Result<()> {
        let attr = QpAttr {
            qkey,
            ..QpAttr::default()
        };
        self.qp.modify(&attr, QpAttrMask::QKEY)?;
        self.end.qkey = qkey;
        Ok(())
    }

    /// Goes on after a request could not be sent (SQE to RTS).
    ///
    /// # Errors
    /// [`Error::Verbs`] in ERR.
    pub fn recover(&self) -> Result<()> {
        let attr = QpAttr {
            qp_state: QpState::Rts.code(),
            ..QpAttr::default()
        };
        Ok(self.qp.modify(&attr, QpAttrMask::STATE)?)
    }

    /// Posts a SEND to a queue pair, or all of a group: `to` says which, of those that `address` leads to.
    ///
    /// # Errors
    /// [`Error::Verbs`] if the queue is full, the request is none that datagrams have, or the address is of
    /// another protection domain or leads elsewhere.
    #[doc(alias = "ibv_post_send")]
    pub fn post_send(
        &self,
        request: &SendRequest<'_>,
        address: &AddressHandle,
        to: &DatagramEnd,
    ) -> Result<()> {
        if address.gid() != to.gid {
            return Err(VerbsError::InvalidArgument("the address leads elsewhere").into());
        }
        let (wr, inline) = request.parts();
        let to = Datagram {
            ah: &address.raw,
            dest_qp: to.qp_num,
            qkey: Qkey::new(to.qkey),
        };
        Ok(self.qp.send_queue().push_datagram(&wr, to, inline)?)
    }

    /// Posts a receive: [`GRH_LEN`] bytes more than the longest message.
    ///
    /// # Errors
    /// [`Error::Verbs`] if the queue is full or there are too many entries, or receives are posted to a shared
    /// queue.
    #[doc(alias = "ibv_post_recv")]
    pub fn post_recv(&self, wr_id: u64, sges: &[Sge]) -> Result<()> {
        Ok(self.qp.recv_queue().push(wr_id, sges)?)
    }

    /// Gets a copy of what is sent to a multicast group, too, from now on.
    ///
    /// # Errors
    /// [`Error::Verbs`] if it is none, or the network cannot be told.
    #[doc(alias = "ibv_attach_mcast")]
    pub fn attach(&self, group: Gid) -> Result<()> {
        Ok(self.qp.attach_mcast(group)?)
    }

    /// No longer.
    ///
    /// # Errors
    /// [`Error::Verbs`] if it is not attached.
    #[doc(alias = "ibv_detach_mcast")]
    pub fn detach(&self, group: Gid) -> Result<()> {
        Ok(self.qp.detach_mcast(group)?)
    }

    /// Of what it sends itself to a group that it is attached to, it gets no copy from now on.
    ///
    /// # Errors
    /// None; they are those of the emulator.
    #[doc(alias = "IBV_QP_CREATE_BLOCK_SELF_MCAST_LB")]
    pub fn block_own_multicast(&self) -> Result<()> {
        Ok(self.qp.block_own_multicast()?)
    }

    /// Whether a completion is one of this queue pair, where several share a completion queue.
    #[must_use]
    pub fn owns(&self, completion: &Completion) -> bool {
        completion.qp_num == self.end.qp_num
    }
}
