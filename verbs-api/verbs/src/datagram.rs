//! UD queue pairs and address handles.

use std::io;

use rocade_emulator::{
    AddressVector, Ah, Counters, Datagram, Gid, Grh, Psn, Qkey, Qp, QpAttr, QpAttrMask, QpCap,
    QpInitAttr, QpState, QpType, Qpn, Sge, VerbsError as RawError,
};

use crate::completion::{Completion, CompletionQueue};
use crate::device::ProtectionDomain;
use crate::error::{BuildError, RegionError, Result, VerbsError};
use crate::events::ObjectId;
use crate::memory::MemoryRegion;
use crate::operation::Ends;
use crate::request::SendRequest;
use crate::shared_receives::SharedReceiveQueue;
use crate::slots::check_wr_id;

/// The length in bytes of the network header in front of each received message. Receive buffers
/// need room for it, and `byte_len` includes it.
pub const GRH_LEN: usize = 40;

/// The number of a device's first port.
const PORT: u8 = 1;

/// A UD queue pair: every message is one packet to the destination that its request names, and may
/// be lost.
///
/// ```
/// use std::time::Duration;
///
/// use rocade_verbs::{
///     AccessFlags, Config, DeviceList, GRH_LEN, SendRequest, UdAddress,
/// };
///
/// let list = DeviceList::new(Config::simulated(1))?;
/// let (a, b) = (list.open("a")?.protection_domain()?, list.open("b")?.protection_domain()?);
/// let (a_cq, b_cq) = (a.context().completion_queue(16)?, b.context().completion_queue(16)?);
/// let memory = b.register(1024, AccessFlags::LOCAL_WRITE)?;
///
/// // The receiver accepts messages that carry its Q_Key.
/// let (sender, receiver) = (a.datagram_queue_pair(&a_cq, 7)?, b.datagram_queue_pair(&b_cq, 7)?);
/// receiver.post_recv(1, &[memory.sge(..)?])?;
/// let to: UdAddress = receiver.address();
/// let address = a.address(to.gid)?;
/// sender.post_send(&SendRequest::send_inline(b"hello"), &address, &to)?;
///
/// let received = b_cq.wait(Duration::from_secs(5))?;
/// assert_eq!(received.src_qp, sender.address().qp_num);
/// let message = memory.to_vec(GRH_LEN..GRH_LEN + received.byte_len as usize - GRH_LEN)?;
/// assert_eq!(message, b"hello");
/// # Ok::<(), rocade_verbs::Error>(())
/// ```
#[derive(Debug)]
#[doc(alias = "ibv_qp")]
pub struct DatagramQueuePair {
    qp: Qp,
    /// Dropped after the queue pair itself.
    ends: Ends,
    id: ObjectId,
    address: UdAddress,
}

/// The address of a UD queue pair or multicast group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UdAddress {
    /// The GID of the port, or of the multicast group. On RoCE it is an IP address.
    pub gid: Gid,
    /// The queue pair number, or [`Qpn::MULTICAST`] for a multicast group.
    pub qp_num: Qpn,
    /// The Q_Key. Messages with another Q_Key are dropped.
    pub qkey: u32,
}

impl UdAddress {
    /// Returns the address of all queue pairs that are attached to a multicast group and have this
    /// Q_Key.
    #[must_use]
    pub const fn group(gid: Gid, qkey: u32) -> Self {
        Self {
            gid,
            qp_num: Qpn::MULTICAST,
            qkey,
        }
    }
}

/// Options of an [`AddressHandle`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[doc(alias = "ibv_global_route")]
pub struct AddressOptions {
    /// The source address, as an index of the GID table. `None` is the first address of the same IP
    /// version.
    pub gid_index: Option<u8>,
    /// The IPv4 TOS or IPv6 traffic class.
    pub traffic_class: u8,
    /// The IPv4 TTL or IPv6 hop limit. 0 means 64.
    pub hop_limit: u8,
    /// The IPv6 flow label, 20 bits. With 0 the device chooses it.
    pub flow_label: u32,
}

/// An address handle: the route to a device or to a multicast group. It may be dropped before the
/// requests posted with it have been sent.
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
    pub(crate) fn new(
        pd: &ProtectionDomain,
        to: Gid,
        options: &AddressOptions,
    ) -> Result<Self, BuildError> {
        let same_family = |gid: Gid| gid.to_ip().is_ipv4() == to.to_ip().is_ipv4();
        let gids = pd.context().gids();
        let own = gids.iter().find(|entry| same_family(entry.gid));
        let first = || {
            let index = own.ok_or(BuildError::NoGid(0))?.index;
            u8::try_from(index).map_err(|_| BuildError::NoGid(index))
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

    /// Returns the options of the route.
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

    /// Returns the destination GID.
    #[must_use]
    pub fn gid(&self) -> Gid {
        self.raw.address().dgid
    }
}

impl ProtectionDomain {
    /// Creates an address handle for replies to the sender of a message.
    ///
    /// `received` is the completion of the message, and the message with its network header starts
    /// at `offset` of `memory`. `qkey` is the sender's Q_Key, which messages do not carry.
    ///
    /// # Errors
    /// - [`RegionError::OutOfRange`] if the network header is not inside `memory`.
    /// - [`RegionError::Verbs`] with EINVAL if the completion is not one of a datagram, or if the
    ///   message was not sent to an address of this device.
    /// - [`RegionError::Verbs`] with EPROTONOSUPPORT if there is no network header at `offset`.
    #[doc(alias = "ibv_create_ah_from_wc")]
    #[doc(alias = "ibv_init_ah_from_wc")]
    //= GRH-05
    pub fn address_of_sender(
        &self,
        received: &Completion,
        (memory, offset): (&MemoryRegion, usize),
        qkey: u32,
    ) -> Result<(AddressHandle, UdAddress), RegionError> {
        if !received.has_grh {
            return Err(RawError::InvalidArgument(
                "the completion is not one of a received datagram",
            )
            .into());
        }
        let mut bytes = [0; GRH_LEN];
        memory.read(offset, &mut bytes)?;
        let none = || RawError::Io(io::Error::from_raw_os_error(libc::EPROTONOSUPPORT));
        let header = Grh::of(&bytes).ok_or_else(none)?;
        let back = header.reply_address(PORT, &self.context().raw().gid_entries());
        let back = back.ok_or(RawError::InvalidArgument(
            "the message was not sent to an address of this device",
        ))?;
        let address = UdAddress {
            gid: back.dgid,
            qp_num: received.src_qp,
            qkey,
        };
        let raw = self.raw().create_ah(&back)?;
        Ok((AddressHandle { raw }, address))
    }
}

/// A builder for UD queue pairs.
#[derive(Debug, Clone)]
#[must_use = "a builder does nothing until `build` is called"]
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

    /// Sets a separate completion queue for receives.
    pub const fn recv_cq(mut self, cq: &'a CompletionQueue) -> Self {
        self.recv_cq = cq;
        self
    }

    /// Makes the queue pair take its receives from a shared receive queue. Receives can then only
    /// be posted to that queue.
    //= QPC-03
    pub const fn shared_receives(mut self, srq: &'a SharedReceiveQueue) -> Self {
        self.srq = Some(srq);
        self
    }

    /// Sets the maximum number of outstanding sends and receives. Both are 64 by default.
    pub const fn depth(mut self, sends: u32, receives: u32) -> Self {
        (self.cap.max_send_wr, self.cap.max_recv_wr) = (sends, receives);
        self
    }

    /// Sets the partition, as an index of the [P_Key table](crate::Context::pkeys). It is 0 by
    /// default.
    #[doc(alias = "IBV_QP_PKEY_INDEX")]
    pub const fn pkey_index(mut self, index: u16) -> Self {
        self.pkey_index = index;
        self
    }

    /// Creates the queue pair in state RTS, ready to send and receive.
    ///
    /// # Errors
    /// - [`BuildError::NoGid`] if the device has no address.
    /// - [`BuildError::Verbs`] if a size is above the device's limit, the device's addresses cannot
    ///   be used, or there is no such partition.
    /// - [`BuildError::Verbs`] if the Q_Key has its highest bit set and the process is not
    ///   privileged.
    pub fn build(self) -> Result<DatagramQueuePair, BuildError> {
        let gid = self
            .pd
            .context()
            .gids()
            .first()
            .ok_or(BuildError::NoGid(0))?
            .gid;
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
        let address = UdAddress {
            gid,
            qp_num: qp.qp_num(),
            qkey: self.qkey,
        };
        let ends = Ends::new(id, self.send_cq, self.recv_cq);
        Ok(DatagramQueuePair {
            ends: ends.with_shared(&qp, self.srq, self.recv_cq)?,
            qp,
            id,
            address,
        })
    }
}

impl DatagramQueuePair {
    /// Returns its identifier in [events](crate::Context::poll_event).
    #[must_use]
    pub const fn id(&self) -> ObjectId {
        self.id
    }

    /// Returns the address that peers need to send to this queue pair.
    #[must_use]
    pub const fn address(&self) -> UdAddress {
        self.address
    }

    /// Returns the state: RTS, SQE after a send request has failed, or ERR.
    #[must_use]
    #[doc(alias = "ibv_query_qp")]
    pub fn state(&self) -> QpState {
        self.qp.state()
    }

    /// Returns the number of packets and drops so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.qp.counters()
    }

    /// Replaces the Q_Key. From now on the queue pair accepts only messages with the new Q_Key.
    ///
    /// # Errors
    /// [`VerbsError`] in state ERR, or with EPERM if `qkey` has its highest bit set and the
    /// process is not privileged.
    #[doc(alias = "IBV_QP_QKEY")]
    //= QPT-18 QPV-05
    pub fn set_qkey(&mut self, qkey: u32) -> Result<(), VerbsError> {
        let attr = QpAttr {
            qkey,
            ..QpAttr::default()
        };
        self.qp.modify(&attr, QpAttrMask::QKEY)?;
        self.address.qkey = qkey;
        Ok(())
    }

    /// Moves the queue pair from SQE back to RTS after a send request has failed.
    ///
    /// # Errors
    /// [`VerbsError`] in state ERR.
    pub fn recover(&self) -> Result<(), VerbsError> {
        let attr = QpAttr {
            qp_state: QpState::Rts.code(),
            ..QpAttr::default()
        };
        Ok(self.qp.modify(&attr, QpAttrMask::STATE)?)
    }

    /// Posts a SEND to the queue pair or multicast group `to`, over the route `address`.
    ///
    /// # Errors
    /// [`VerbsError`]:
    /// - The queue is full.
    /// - UD does not support the operation.
    /// - The address handle belongs to another protection domain, or its GID differs from that of
    ///   `to`.
    #[doc(alias = "ibv_post_send")]
    pub fn post_send(
        &self,
        request: &SendRequest<'_>,
        address: &AddressHandle,
        to: &UdAddress,
    ) -> Result<(), VerbsError> {
        check_wr_id(request.id())?;
        self.post_own(request, address, to)
    }

    pub(crate) const fn ends(&self) -> &Ends {
        &self.ends
    }

    /// Posts a request of an operation.
    pub(crate) fn post_own(
        &self,
        request: &SendRequest<'_>,
        address: &AddressHandle,
        to: &UdAddress,
    ) -> Result<(), VerbsError> {
        if address.gid() != to.gid {
            return Err(RawError::InvalidArgument("the address handle has another GID").into());
        }
        let (wr, inline) = request.parts();
        let to = Datagram {
            ah: &address.raw,
            dest_qp: to.qp_num,
            qkey: Qkey::new(to.qkey),
        };
        Ok(self
            .qp
            .post_sends(|queue| queue.push_datagram(&wr, to, inline))?)
    }

    /// Posts a receive. Its buffers need [`GRH_LEN`] bytes more than the longest message.
    ///
    /// # Errors
    /// [`VerbsError`] if the queue is full, if there are too many entries, or if the queue pair
    /// uses a shared receive queue.
    #[doc(alias = "ibv_post_recv")]
    pub fn post_recv(&self, wr_id: u64, sges: &[Sge]) -> Result<(), VerbsError> {
        check_wr_id(wr_id)?;
        self.post_own_recv(wr_id, sges)
    }

    pub(crate) fn post_own_recv(&self, wr_id: u64, sges: &[Sge]) -> Result<(), VerbsError> {
        Ok(self.qp.recv_queue().push(wr_id, sges)?)
    }

    /// Attaches the queue pair to a multicast group: it receives a copy of every message that is
    /// sent to the group.
    ///
    /// # Errors
    /// [`VerbsError`]:
    /// - `group` is not a multicast GID, or the device has no address of its IP version.
    /// - The limit of attachments is reached, or the network interface cannot join the group.
    #[doc(alias = "ibv_attach_mcast")]
    pub fn attach(&self, group: Gid) -> Result<(), VerbsError> {
        Ok(self.qp.attach_mcast(group)?)
    }

    /// Detaches the queue pair from a multicast group.
    ///
    /// # Errors
    /// [`VerbsError`] if it is not attached to the group.
    #[doc(alias = "ibv_detach_mcast")]
    pub fn detach(&self, group: Gid) -> Result<(), VerbsError> {
        Ok(self.qp.detach_mcast(group)?)
    }

    /// Suppresses copies of the queue pair's own messages to multicast groups that it is attached
    /// to.
    #[doc(alias = "IBV_QP_CREATE_BLOCK_SELF_MCAST_LB")]
    pub fn block_own_multicast(&self) {
        let blocked = self.qp.block_own_multicast();
        debug_assert!(blocked.is_ok(), "every QP of UD can do that: {blocked:?}");
    }

    /// Returns true if the completion belongs to this queue pair. Several queue pairs can share a
    /// completion queue.
    #[must_use]
    pub fn owns(&self, completion: &Completion) -> bool {
        completion.qp_num == self.address.qp_num
    }
}
