//! Connected queue pairs and their builder.

use rocade_emulator::{
    AccessFlags, Connection, Counters, Gid, Mtu, Psn, Qp, QpAttr, QpAttrMask, QpCap, QpInitAttr,
    QpState, QpType, Qpn, SendPoster, Sge,
};

use crate::completion::{Completion, CompletionQueue};
use crate::cross_channel::CrossChannel;
use crate::device::{Context, ProtectionDomain};
use crate::endpoint::Endpoint;
use crate::error::{BuildError, Result, VerbsError};
use crate::events::ObjectId;
use crate::operation::Ends;
use crate::request::SendRequest;
use crate::shared_receives::SharedReceiveQueue;
use crate::slots::check_wr_id;
use crate::units::{AckTimeout, RnrRetry, RnrTimer};

/// A builder for queue pairs.
///
/// ```
/// # use std::time::Duration;
/// # use rocade_verbs::*;
/// # let list = DeviceList::new(Config::simulated(1))?;
/// # let (a, b) = (list.open("a")?.protection_domain()?, list.open("b")?.protection_domain()?);
/// # let (a_cq, b_cq) = (a.context().completion_queue(16)?, b.context().completion_queue(16)?);
/// let queue_pair = a
///     .queue_pair(&a_cq)
///     .depth(128, 16)
///     .max_inline(256)
///     .access(AccessFlags::REMOTE_READ)
///     .build()?;
/// assert_eq!(queue_pair.endpoint().gid, a.context().gids()[0].gid);
/// # Ok::<(), rocade_verbs::Error>(())
/// ```
#[derive(Debug, Clone)]
#[must_use = "a builder does nothing until `build` is called"]
pub struct QueuePairBuilder<'a> {
    pd: &'a ProtectionDomain,
    send_cq: &'a CompletionQueue,
    recv_cq: &'a CompletionQueue,
    srq: Option<&'a SharedReceiveQueue>,
    cap: QpCap,
    gid_index: u32,
    access: AccessFlags,
    psn: Option<Psn>,
    qp_type: QpType,
    pub(crate) cross_channel: Option<CrossChannel>,
}

impl<'a> QueuePairBuilder<'a> {
    pub(crate) fn new(pd: &'a ProtectionDomain, cq: &'a CompletionQueue) -> Self {
        let cap = QpCap {
            max_send_wr: 64,
            max_recv_wr: 64,
            max_send_sge: 4,
            max_recv_sge: 4,
            max_inline_data: 64,
        };
        let access = AccessFlags::LOCAL_WRITE
            | AccessFlags::REMOTE_WRITE
            | AccessFlags::REMOTE_READ
            | AccessFlags::REMOTE_ATOMIC
            | AccessFlags::FLUSH_GLOBAL;
        Self {
            pd,
            send_cq: cq,
            recv_cq: cq,
            srq: None,
            cap,
            gid_index: 0,
            access,
            psn: None,
            qp_type: QpType::Rc,
            cross_channel: None,
        }
    }

    /// Selects service UC: messages are not acknowledged and lost ones are not repeated. UC
    /// supports only SEND and WRITE.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use rocade_verbs::{
    /// #     AccessFlags, ConnectOptions, DeviceList, Config, SendRequest,
    /// # };
    /// # let list = DeviceList::new(Config::simulated(1))?;
    /// # let (a, b) = (list.open("a")?.protection_domain()?, list.open("b")?.protection_domain()?);
    /// # let (a_cq, b_cq) = (a.context().completion_queue(16)?, b.context().completion_queue(16)?);
    /// # let memory = b.register(1024, AccessFlags::LOCAL_WRITE)?;
    /// let (a, b) = (a.queue_pair(&a_cq).unreliable(), b.queue_pair(&b_cq).unreliable());
    /// let (a, b) = (a.build()?, b.build()?);
    /// b.post_recv(1, &[memory.sge(..)?])?;
    /// let (a_end, b_end) = (a.endpoint(), b.endpoint());
    /// let a = a.connect(b_end, &ConnectOptions::default())?;
    /// let _b = b.connect(a_end, &ConnectOptions::default())?;
    /// a.post_send(&SendRequest::send_inline(b"perhaps"))?;
    /// assert_eq!(b_cq.wait(Duration::from_secs(5))?.byte_len, 7);
    /// # Ok::<(), rocade_verbs::Error>(())
    /// ```
    pub const fn unreliable(mut self) -> Self {
        self.qp_type = QpType::Uc;
        self
    }

    /// Sets a separate completion queue for receives.
    pub const fn recv_cq(mut self, cq: &'a CompletionQueue) -> Self {
        self.recv_cq = cq;
        self
    }

    /// Makes the queue pair an XRC initiator, whose peer is an XRC
    /// [target](crate::XrcDomain::target). It only sends. Each request names a shared receive queue
    /// of the peer ([`SendRequest::to_queue`]).
    #[doc(alias = "IBV_QPT_XRC_SEND")]
    pub const fn xrc_initiator(mut self) -> Self {
        self.qp_type = QpType::XrcSend;
        self
    }

    /// Makes the queue pair take its receives from a shared receive queue. Receives can then only
    /// be posted to that queue.
    pub const fn shared_receives(mut self, srq: &'a SharedReceiveQueue) -> Self {
        self.srq = Some(srq);
        self
    }

    /// Sets the maximum number of outstanding sends and receives. Both are 64 by default.
    pub const fn depth(mut self, sends: u32, receives: u32) -> Self {
        self.cap.max_send_wr = sends;
        self.cap.max_recv_wr = receives;
        self
    }

    /// Sets the maximum number of scatter/gather entries of a request, 4 by default.
    pub const fn max_sges(mut self, entries: u32) -> Self {
        self.cap.max_send_sge = entries;
        self.cap.max_recv_sge = entries;
        self
    }

    /// Sets the maximum length of inline data in bytes, 64 by default.
    pub const fn max_inline(mut self, bytes: u32) -> Self {
        self.cap.max_inline_data = bytes;
        self
    }

    /// Sets the local address, as an index of the first port's GID table, 0 by default.
    pub const fn gid_index(mut self, index: u32) -> Self {
        self.gid_index = index;
        self
    }

    /// Sets the access that the peer has to registered memory that allows it too. By default the
    /// peer may use WRITE, READ, atomics and FLUSH.
    pub const fn access(mut self, access: AccessFlags) -> Self {
        self.access = access;
        self
    }

    /// Sets the PSN of the first packet sent. By default it is random, so that the peer does not
    /// accept late packets of an earlier connection.
    pub const fn psn(mut self, psn: Psn) -> Self {
        self.psn = Some(psn);
        self
    }

    /// Creates the queue pair in state INIT, ready for receives to be posted.
    ///
    /// # Errors
    /// - [`BuildError::NoGid`] if the GID table has no such entry.
    /// - [`BuildError::Verbs`] if a size is above the device's limit, or if the local address
    ///   cannot be used. The text names the process that holds the port.
    pub fn build(self) -> Result<UnconnectedQueuePair, BuildError> {
        let context = self.pd.context();
        gid_at(context, self.gid_index)?;
        let id = ObjectId::next();
        let qp = self.pd.raw().create_qp(QpInitAttr {
            send_cq: self.send_cq.raw().clone(),
            recv_cq: self.recv_cq.raw().clone(),
            srq: self.srq.map(|srq| srq.raw().clone()),
            cap: self.cap,
            qp_type: self.qp_type,
            sq_sig_all: false,
            cookie: id.cookie(),
        })?;
        if let Some(how) = self.cross_channel {
            qp.enable_cross_channel(how.raw())?;
        }
        let ends = Ends::new(id, self.send_cq, self.recv_cq);
        let ends = ends.with_shared(&qp, self.srq, self.recv_cq)?;
        UnconnectedQueuePair::new(
            context,
            (qp, ends),
            id,
            self.gid_index,
            (self.access, self.psn),
        )
    }
}

/// Returns an entry of the GID table, and its index as attributes encode it.
fn gid_at(context: &Context, index: u32) -> Result<(Gid, u8), BuildError> {
    let gids = context.gids();
    let entry = gids
        .iter()
        .find(|entry| entry.index == index && !entry.gid.is_zero());
    let gid = entry.ok_or(BuildError::NoGid(index))?.gid;
    let sgid_index = u8::try_from(index).map_err(|_| BuildError::NoGid(index))?;
    Ok((gid, sgid_index))
}

/// Options of a connection. The defaults suit peers on one machine or network.
///
/// ```
/// use std::time::Duration;
///
/// use rocade_verbs::{AckTimeout, ConnectOptions, RnrRetry};
///
/// let options = ConnectOptions {
///     timeout: AckTimeout::at_least(Duration::from_millis(1)),
///     rnr_retry: RnrRetry::Times(3),
///     ..ConnectOptions::default()
/// };
/// assert_eq!(options.retry_cnt, 7);
/// # Ok::<(), rocade_verbs::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectOptions {
    /// The time without an acknowledgement after which a request is sent again. It is 67 ms by
    /// default.
    pub timeout: AckTimeout,
    /// The number of retries after a timeout or a sequence error, 0 to 7. It is 7 by default.
    pub retry_cnt: u8,
    /// The number of retries while the peer has no receive posted, without limit by default.
    pub rnr_retry: RnrRetry,
    /// The time that the peer waits before it retries while this side has no receive posted. It is
    /// 0.64 ms by default.
    pub min_rnr_timer: RnrTimer,
    /// The number of READs and atomics in flight in each direction, 16 by default.
    pub max_rd_atomic: u8,
    /// The IPv4 TOS or IPv6 traffic class.
    pub traffic_class: u8,
    /// The IPv4 TTL or IPv6 hop limit. 0 means 64.
    pub hop_limit: u8,
}

impl Default for ConnectOptions {
    fn default() -> Self {
        Self {
            timeout: AckTimeout::default(),
            retry_cnt: 7,
            rnr_retry: RnrRetry::default(),
            min_rnr_timer: RnrTimer::default(),
            max_rd_atomic: 16,
            traffic_class: 0,
            hop_limit: 0,
        }
    }
}

/// A queue pair without a peer (state INIT). It has an endpoint, and receives can be posted to it.
///
/// ```
/// # use std::time::Duration;
/// # use rocade_verbs::*;
/// # let list = DeviceList::new(Config::simulated(1))?;
/// # let (a, b) = (list.open("a")?.protection_domain()?, list.open("b")?.protection_domain()?);
/// # let (a_cq, b_cq) = (a.context().completion_queue(16)?, b.context().completion_queue(16)?);
/// # let inbox = b.register(64, AccessFlags::LOCAL_WRITE)?;
/// let (here, there) = (a.queue_pair(&a_cq).build()?, b.queue_pair(&b_cq).build()?);
/// // A receive that is posted now is ready for the first message.
/// there.post_recv(1, &[inbox.sge(..)?])?;
/// let (here_end, there_end) = (here.endpoint(), there.endpoint());
/// let here = here.connect(there_end, &ConnectOptions::default())?;
/// let there = there.connect(here_end, &ConnectOptions::default())?;
/// assert_eq!(there.peer().qp_num, here.qp_num());
/// # Ok::<(), rocade_verbs::Error>(())
/// ```
#[derive(Debug)]
pub struct UnconnectedQueuePair {
    qp: Qp,
    /// Dropped after the queue pair itself.
    ends: Ends,
    id: ObjectId,
    endpoint: Endpoint,
    sgid_index: u8,
}

impl UnconnectedQueuePair {
    /// Moves the queue pair from RESET to INIT.
    pub(crate) fn new(
        context: &Context,
        (qp, ends): (Qp, Ends),
        id: ObjectId,
        gid_index: u32,
        (access, psn): (AccessFlags, Option<Psn>),
    ) -> Result<Self, BuildError> {
        let (gid, sgid_index) = gid_at(context, gid_index)?;
        qp.to_init(access)?;
        let endpoint = Endpoint {
            gid,
            qp_num: qp.qp_num(),
            psn: psn.unwrap_or_else(|| context.random_psn()),
            mtu: context.port()?.active_mtu,
        };
        Ok(Self {
            qp,
            ends,
            id,
            endpoint,
            sgid_index,
        })
    }

    pub(crate) const fn raw(&self) -> &Qp {
        &self.qp
    }

    /// Returns its identifier in [events](crate::Context::poll_event).
    #[must_use]
    pub const fn id(&self) -> ObjectId {
        self.id
    }

    /// Returns the endpoint that the peer needs to connect to this queue pair.
    #[must_use]
    pub const fn endpoint(&self) -> Endpoint {
        self.endpoint
    }

    /// Posts a receive. Messages that arrive before a receive is posted have to be repeated by the
    /// peer.
    ///
    /// # Errors
    /// [`VerbsError`] if the queue is full, if there are too many entries, or if the queue pair
    /// uses a shared receive queue.
    #[doc(alias = "ibv_post_recv")]
    pub fn post_recv(&self, wr_id: u64, sges: &[Sge]) -> Result<(), VerbsError> {
        check_wr_id(wr_id)?;
        self.post_own_recv(wr_id, sges)
    }

    /// Connects to the peer: moves the queue pair from INIT through RTR to RTS. The peer has to
    /// connect to this side's [`endpoint`](Self::endpoint) too.
    ///
    /// This sends no packet. Requests that arrive before the peer has connected rely on retries, so
    /// programs should synchronize before the first request.
    ///
    /// # Errors
    /// [`VerbsError`] if an option is out of range, or if there is no route to the peer.
    #[doc(alias = "ibv_modify_qp")]
    pub fn connect(
        self,
        peer: Endpoint,
        options: &ConnectOptions,
    ) -> Result<QueuePair, VerbsError> {
        let mtu = if peer.mtu.bytes() < self.endpoint.mtu.bytes() {
            peer.mtu
        } else {
            self.endpoint.mtu
        };
        let connection = Connection {
            sgid_index: self.sgid_index,
            path_mtu: mtu,
            rq_psn: peer.psn,
            sq_psn: self.endpoint.psn,
            max_rd_atomic: options.max_rd_atomic,
            max_dest_rd_atomic: options.max_rd_atomic,
            min_rnr_timer: options.min_rnr_timer.code(),
            timeout: options.timeout.code(),
            retry_cnt: options.retry_cnt,
            rnr_retry: options.rnr_retry.code(),
            hop_limit: options.hop_limit,
            traffic_class: options.traffic_class,
            ..Connection::to(peer.gid, peer.qp_num)
        };
        self.qp.to_rtr(&connection)?;
        self.qp.to_rts(&connection)?;
        Ok(self.with_peer(peer))
    }

    fn with_peer(self, peer: Endpoint) -> QueuePair {
        QueuePair {
            qp: self.qp,
            ends: self.ends,
            peer,
        }
    }

    pub(crate) const fn ends(&self) -> &Ends {
        &self.ends
    }

    pub(crate) fn post_own_recv(&self, wr_id: u64, sges: &[Sge]) -> Result<(), VerbsError> {
        Ok(self.qp.recv_queue().push(wr_id, sges)?)
    }

    /// Moves the queue pair through RTR to RTS, with the attributes that the connection manager
    /// provides.
    pub(crate) fn follow(
        self,
        steps: impl Fn(QpState) -> Result<(QpAttr, QpAttrMask), VerbsError>,
    ) -> Result<QueuePair, VerbsError> {
        let (attr, mask) = steps(QpState::Rtr)?;
        self.qp.modify(&attr, mask)?;
        let code = u8::try_from(attr.path_mtu).unwrap_or(0);
        let mut peer = Endpoint {
            gid: attr.ah_attr.dgid,
            qp_num: Qpn::new(attr.dest_qp_num),
            psn: Psn::new(attr.rq_psn),
            mtu: Mtu::from_code(code).unwrap_or(self.endpoint.mtu),
        };
        peer.mtu = peer.mtu.min(self.endpoint.mtu);
        let (attr, mask) = steps(QpState::Rts)?;
        self.qp.modify(&attr, mask)?;
        Ok(self.with_peer(peer))
    }
}

/// A connected queue pair (RC, UC or XRC, state RTS).
///
/// Dropping it does not notify the peer. RC requests of the peer then time out.
///
/// ```
/// # use std::time::Duration;
/// # use rocade_verbs::*;
/// # let list = DeviceList::new(Config::simulated(1))?;
/// # let (a, b) = (list.open("a")?.protection_domain()?, list.open("b")?.protection_domain()?);
/// # let (a_cq, b_cq) = (a.context().completion_queue(16)?, b.context().completion_queue(16)?);
/// # let (a_qp, b_qp) = (a.queue_pair(&a_cq).build()?, b.queue_pair(&b_cq).build()?);
/// # let (a_end, b_end) = (a_qp.endpoint(), b_qp.endpoint());
/// # let a_qp = a_qp.connect(b_end, &ConnectOptions::default())?;
/// # let b_qp = b_qp.connect(a_end, &ConnectOptions::default())?;
/// # let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ;
/// let (here, there) = (a.register(4096, access)?, b.register(4096, access)?);
/// here.write(0, b"over RoCEv2")?;
/// a_qp.post_sends(&[
///     SendRequest::write(&[here.sge(..11)?], there.remote()).unsignaled(),
///     SendRequest::read(&[here.sge(100..111)?], there.remote()),
/// ])?;
/// a_cq.wait(Duration::from_secs(1))?;
/// assert_eq!(here.to_vec(100..111)?, b"over RoCEv2");
/// # Ok::<(), rocade_verbs::Error>(())
/// ```
#[derive(Debug)]
#[doc(alias = "ibv_qp")]
pub struct QueuePair {
    qp: Qp,
    /// Dropped after the queue pair itself.
    ends: Ends,
    peer: Endpoint,
}

impl QueuePair {
    /// Connects two queue pairs of this process to each other.
    ///
    /// # Errors
    /// As [`UnconnectedQueuePair::connect`].
    pub fn connect_pair(
        a: UnconnectedQueuePair,
        b: UnconnectedQueuePair,
        options: &ConnectOptions,
    ) -> Result<(Self, Self), VerbsError> {
        let (a_end, b_end) = (a.endpoint(), b.endpoint());
        Ok((a.connect(b_end, options)?, b.connect(a_end, options)?))
    }

    pub(crate) const fn raw(&self) -> &Qp {
        &self.qp
    }

    pub(crate) const fn ends(&self) -> &Ends {
        &self.ends
    }

    /// Posts a request of an operation.
    pub(crate) fn post_own(&self, request: &SendRequest<'_>) -> Result<(), VerbsError> {
        self.qp.post_sends(|queue| push(queue, request))
    }

    pub(crate) fn post_own_recv(&self, wr_id: u64, sges: &[Sge]) -> Result<(), VerbsError> {
        Ok(self.qp.recv_queue().push(wr_id, sges)?)
    }

    /// Returns its identifier in [events](crate::Context::poll_event).
    #[must_use]
    pub const fn id(&self) -> ObjectId {
        self.ends.owner()
    }

    /// Returns the queue pair number.
    #[must_use]
    pub fn qp_num(&self) -> Qpn {
        self.qp.qp_num()
    }

    /// Returns the endpoint of the peer.
    #[must_use]
    pub const fn peer(&self) -> Endpoint {
        self.peer
    }

    /// Returns the state: RTS, SQD while [paused](Self::pause), or ERR after a request has failed.
    #[must_use]
    #[doc(alias = "ibv_query_qp")]
    pub fn state(&self) -> QpState {
        self.qp.state()
    }

    /// Returns the number of packets, retransmissions and drops so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.qp.counters()
    }

    /// Posts a send request.
    ///
    /// # Errors
    /// [`VerbsError`] if the queue is full, or if the request exceeds a limit that the queue pair
    /// was built with. Wrong keys and addresses show in the completion instead.
    #[doc(alias = "ibv_post_send")]
    pub fn post_send(&self, request: &SendRequest<'_>) -> Result<(), VerbsError> {
        self.post_sends(std::slice::from_ref(request))
    }

    /// Posts several send requests at once, so that their packets can share datagrams.
    ///
    /// # Errors
    /// As [`post_send`](Self::post_send), for the first request that fails. The requests before it
    /// stay posted.
    pub fn post_sends(&self, requests: &[SendRequest<'_>]) -> Result<(), VerbsError> {
        self.qp.post_sends(|queue| {
            requests
                .iter()
                .try_for_each(|request| push_checked(queue, request))
        })
    }

    /// Posts several send requests, either all or none.
    ///
    /// # Errors
    /// As [`post_send`](Self::post_send), for the first request that fails. None is posted then.
    #[doc(alias = "ibv_qp_to_qp_ex")]
    #[doc(alias = "ibv_wr_start")]
    #[doc(alias = "ibv_wr_complete")]
    #[doc(alias = "ibv_wr_abort")]
    //= WRX-06
    pub fn post_batch(&self, requests: &[SendRequest<'_>]) -> Result<(), VerbsError> {
        self.qp.post_sends(|queue| {
            let posted = requests
                .iter()
                .try_for_each(|request| push_checked(queue, request));
            if posted.is_err() {
                queue.rollback();
            }
            posted
        })
    }

    /// Posts a receive.
    ///
    /// # Errors
    /// [`VerbsError`] if the queue is full, if there are too many entries, or if the queue pair
    /// uses a shared receive queue.
    #[doc(alias = "ibv_post_recv")]
    pub fn post_recv(&self, wr_id: u64, sges: &[Sge]) -> Result<(), VerbsError> {
        check_wr_id(wr_id)?;
        self.post_own_recv(wr_id, sges)
    }

    /// Returns true if the completion belongs to this queue pair. Several queue pairs can share a
    /// completion queue.
    #[must_use]
    pub fn owns(&self, completion: &Completion) -> bool {
        completion.qp_num == self.qp_num()
    }
}

fn push_checked(queue: &mut SendPoster<'_>, request: &SendRequest<'_>) -> Result<(), VerbsError> {
    check_wr_id(request.id())?;
    push(queue, request)
}

fn push(queue: &mut SendPoster<'_>, request: &SendRequest<'_>) -> Result<(), VerbsError> {
    match (request.parts(), request.operands()) {
        ((wr, Some(data)), _) => queue.push_inline(&wr, data)?,
        ((wr, None), Some(operands)) => queue.push_with(&wr, operands.clone())?,
        ((wr, None), None) => queue.push(&wr)?,
    }
    if let Some(srqn) = request.queue() {
        queue.set_remote_srqn(srqn);
    }
    Ok(())
}
