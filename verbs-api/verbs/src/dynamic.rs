//! Dynamically connected (DC) transport: an initiator reaches many targets, and a target serves
//! many initiators.

use rocade_emulator::{
    AccessFlags, AddressVector, DciInit, DctInitAttr, Gid, Mtu, Qp, QpAttr, QpAttrMask, QpCap,
    QpInitAttr, QpState, QpType, Qpn, ToDct, VerbsError as RawError,
};
pub use rocade_transport::DciStreams;

use crate::completion::CompletionQueue;
use crate::cross_channel::CrossChannel;
use crate::datagram::AddressHandle;
use crate::device::ProtectionDomain;
use crate::error::{BuildError, Result, VerbsError};
use crate::events::ObjectId;
use crate::operation::Ends;
use crate::request::SendRequest;
use crate::shared_receives::SharedReceiveQueue;
use crate::slots::check_wr_id;

/// The number of a device's first port.
const PORT: u8 = 1;

/// The address of a DC target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DctAddress {
    /// The GID of the port. On RoCE it is an IP address.
    pub gid: Gid,
    /// The number of the target.
    pub number: Qpn,
    /// The access key of the target.
    pub key: u64,
}

/// A DC target (DCT). It accepts requests that carry its key. The requests of each initiator are
/// executed in order, exactly once.
///
/// The program sets up no connection. Receives come from a shared receive queue. Memory that
/// initiators read or write has to belong to the target's protection domain.
#[derive(Debug)]
#[doc(alias = "ibv_exp_dct")]
pub struct DynamicTarget {
    qp: Qp,
    /// Dropped after the target itself.
    ends: Ends,
    id: ObjectId,
    address: DctAddress,
}

/// A DC initiator (DCI). It sends reliably, and each request names its target.
///
/// Consecutive requests to the same target do not wait for each other. A request to another target
/// starts after all earlier requests are acknowledged.
///
/// ```
/// use std::time::Duration;
///
/// use rocade_verbs::{AccessFlags, DeviceList, Config, SendRequest};
///
/// let list = DeviceList::new(Config::simulated(1))?;
/// let (a, b) = (list.open("a")?.protection_domain()?, list.open("b")?.protection_domain()?);
/// let (a_cq, b_cq) = (a.context().completion_queue(16)?, b.context().completion_queue(16)?);
///
/// // Initiators need the number and the key of the target.
/// let receives = b.shared_receive_queue(16, 1)?;
/// let memory = b.register(64, AccessFlags::LOCAL_WRITE)?;
/// receives.post_recv(1, &[memory.sge(..)?])?;
/// let target = b.dynamic_target(&b_cq, &receives, AccessFlags::empty(), 0x1234)?;
///
/// let initiator = a.dynamic_initiator(&a_cq)?;
/// let address = a.address(target.address().gid)?;
/// initiator.post_send(&SendRequest::send_inline(b"hello"), &address, &target.address())?;
///
/// let received = b_cq.wait(Duration::from_secs(5))?;
/// assert_eq!(received.src_qp, initiator.number());
/// assert_eq!(memory.to_vec(..received.byte_len as usize)?, b"hello");
/// # Ok::<(), rocade_verbs::Error>(())
/// ```
#[derive(Debug)]
#[doc(alias = "IBV_EXP_QPT_DC_INI")]
pub struct DynamicInitiator {
    qp: Qp,
    /// Dropped after the initiator itself.
    ends: Ends,
    id: ObjectId,
}

//= DCS-10
fn attr(gid_index: u32, access: AccessFlags, mtu: Mtu) -> Result<QpAttr, BuildError> {
    Ok(QpAttr {
        qp_access_flags: access,
        port_num: PORT,
        path_mtu: mtu.code().into(),
        timeout: 14,
        retry_cnt: 7,
        rnr_retry: 7,
        max_rd_atomic: 16,
        min_rnr_timer: 12,
        ah_attr: AddressVector {
            sgid_index: u8::try_from(gid_index).map_err(|_| BuildError::NoGid(gid_index))?,
            is_global: true,
            port_num: PORT,
            ..AddressVector::default()
        },
        ..QpAttr::default()
    })
}

fn advance(qp: &Qp, attr: &QpAttr, steps: &[QpState]) -> Result<(), VerbsError> {
    for next in steps {
        let rule = rocade_emulator::transition_rule(qp.qp_type(), qp.state(), *next);
        let mask = rule.map_or(QpAttrMask::STATE, |rule| rule.required | QpAttrMask::STATE);
        let attr = QpAttr {
            qp_state: next.code(),
            ..*attr
        };
        qp.modify(&attr, mask)?;
    }
    Ok(())
}

impl DynamicTarget {
    pub(crate) fn new(
        pd: &ProtectionDomain,
        cq: &CompletionQueue,
        receives: &SharedReceiveQueue,
        access: AccessFlags,
        key: u64,
    ) -> Result<Self, BuildError> {
        let entry = pd
            .context()
            .gids()
            .first()
            .copied()
            .ok_or(BuildError::NoGid(0))?;
        let mtu = pd.context().port()?.active_mtu;
        let id = ObjectId::next();
        let qp = pd.raw().create_dct(DctInitAttr {
            cq: cq.raw().clone(),
            srq: receives.raw().clone(),
            key,
            cookie: id.cookie(),
            has_dct_events: true,
        })?;
        let attr = attr(entry.index, access, mtu)?;
        advance(&qp, &attr, &[QpState::Init, QpState::Rtr])?;
        let address = DctAddress {
            gid: entry.gid,
            number: qp.qp_num(),
            key,
        };
        let ends = Ends::new(id, cq, cq).with_shared(&qp, Some(receives), cq)?;
        Ok(Self {
            qp,
            ends,
            id,
            address,
        })
    }

    /// Returns its identifier in [events](crate::Context::poll_event).
    #[must_use]
    pub const fn id(&self) -> ObjectId {
        self.id
    }

    /// Returns the address that initiators need.
    #[must_use]
    pub const fn address(&self) -> DctAddress {
        self.address
    }

    /// Returns the number of packets with a wrong key since the target was created.
    #[must_use]
    #[doc(alias = "ibv_exp_query_dct")]
    pub fn key_violations(&self) -> u32 {
        // The status exists for every DC target.
        let status = self.qp.dct_status();
        status.map_or(0, |status| status.key_violations)
    }

    /// Requests one event
    /// ([`AsyncEventKind::DctKeyViolation`](crate::AsyncEventKind::DctKeyViolation)) for the next
    /// packet with a wrong key.
    #[doc(alias = "ibv_exp_arm_dct")]
    pub fn arm(&self) {
        let armed = self.qp.arm_dct();
        debug_assert!(armed.is_ok(), "every DC target can be armed: {armed:?}");
    }

    /// Closes the target. It accepts no new initiators, and gives connected ones up to a second to
    /// disconnect. Dropping the target closes it at once.
    ///
    /// # Errors
    /// [`VerbsError`] if closing fails. The target is gone nevertheless.
    #[doc(alias = "ibv_exp_destroy_dct")]
    pub fn close(self) -> Result<(), VerbsError> {
        if let Some(shared) = self.ends.shared()
            && shared.is_awaited()
        {
            // Destroying would drop completions that no future has taken.
            self.qp.drain_sessions();
            shared.settle();
        }
        Ok(self.qp.destroy()?)
    }
}

/// A builder for DC initiators.
///
/// ```
/// # use std::time::Duration;
/// # use rocade_verbs::*;
/// # let list = DeviceList::new(Config::simulated(1))?;
/// # let (a, b) = (list.open("a")?.protection_domain()?, list.open("b")?.protection_domain()?);
/// # let (a_cq, b_cq) = (a.context().completion_queue(16)?, b.context().completion_queue(16)?);
/// # let receives = b.shared_receive_queue(16, 1)?;
/// # let memory = b.register(64, AccessFlags::LOCAL_WRITE)?;
/// # receives.post_recv(1, &[memory.sge(..)?])?;
/// # let target = b.dynamic_target(&b_cq, &receives, AccessFlags::empty(), 0x1234)?;
/// # let address = a.address(target.address().gid)?;
/// // An initiator whose requests wait, and one that releases them.
/// let (held, master) = (CrossChannel { managed_send: true, ..Default::default() },
///     CrossChannel { is_master: true, ..Default::default() });
/// let held = a.dynamic_initiator_builder(&a_cq).cross_channel(held).build()?;
/// let master = a.dynamic_initiator_builder(&a_cq).cross_channel(master).build()?;
/// held.post_send(&SendRequest::send_inline(b"now"), &address, &target.address())?;
/// assert!(a_cq.poll().is_none());
/// master.post_enable(&held, ManagedQueue::Send, 1, TaskGroup::Last)?;
/// assert_eq!(b_cq.wait(Duration::from_secs(5))?.byte_len, 3);
/// # Ok::<(), rocade_verbs::Error>(())
/// ```
#[derive(Debug, Clone)]
#[must_use = "a builder does nothing until `build` is called"]
pub struct DynamicInitiatorBuilder<'a> {
    pd: &'a ProtectionDomain,
    cq: &'a CompletionQueue,
    cap: QpCap,
    cross_channel: Option<CrossChannel>,
    streams: Option<DciStreams>,
}

impl<'a> DynamicInitiatorBuilder<'a> {
    pub(crate) const fn new(pd: &'a ProtectionDomain, cq: &'a CompletionQueue) -> Self {
        Self {
            pd,
            cq,
            cap: QpCap {
                max_send_wr: 64,
                max_recv_wr: 0,
                max_send_sge: 4,
                max_recv_sge: 0,
                max_inline_data: 64,
            },
            cross_channel: None,
            streams: None,
        }
    }

    /// Sets the maximum number of outstanding requests, and of scatter/gather entries of each. They
    /// are 64 and 4 by default.
    pub const fn depth(mut self, requests: u32, entries: u32) -> Self {
        (self.cap.max_send_wr, self.cap.max_send_sge) = (requests, entries);
        self
    }

    /// Enables the cross-channel operations of `how`. An initiator has no receives to manage.
    #[doc(alias = "IBV_EXP_QP_CREATE_CROSS_CHANNEL")]
    //= XCH-02
    pub const fn cross_channel(mut self, how: CrossChannel) -> Self {
        self.cross_channel = Some(how);
        self
    }

    /// Adds streams, for [`DynamicInitiator::post_send_on`]. A stream does not wait for the others,
    /// and an error on one does not stop the others. An initiator with streams cannot enable
    /// cross-channel operations.
    #[doc(alias = "mlx5dv_dci_streams")]
    pub const fn streams(mut self, streams: DciStreams) -> Self {
        self.streams = Some(streams);
        self
    }

    /// Creates the initiator in state RTS, ready to send.
    ///
    /// # Errors
    /// - [`BuildError::NoGid`] if the device has no address.
    /// - [`BuildError::Verbs`] if a size is above the device's limit, the options contradict each
    ///   other, or the device's addresses cannot be used.
    pub fn build(self) -> Result<DynamicInitiator, BuildError> {
        let context = self.pd.context();
        let entry = context
            .gids()
            .first()
            .copied()
            .ok_or(BuildError::NoGid(0))?;
        let mtu = context.port()?.active_mtu;
        let id = ObjectId::next();
        let init = QpInitAttr {
            send_cq: self.cq.raw().clone(),
            recv_cq: self.cq.raw().clone(),
            srq: None,
            cap: self.cap,
            qp_type: QpType::DcInitiator,
            sq_sig_all: false,
            cookie: id.cookie(),
        };
        let streams = self.streams;
        let qp = self.pd.raw().create_dci(init, DciInit { streams })?;
        if let Some(how) = self.cross_channel {
            qp.enable_cross_channel(how.raw())?;
        }
        let attr = attr(entry.index, AccessFlags::empty(), mtu)?;
        advance(&qp, &attr, &[QpState::Init, QpState::Rtr, QpState::Rts])?;
        let ends = Ends::new(id, self.cq, self.cq);
        Ok(DynamicInitiator { qp, ends, id })
    }
}

/// Converts an address handle and a target to the emulator's form, and checks that their GIDs
/// agree.
pub(crate) fn dct_destination<'a>(
    address: &'a AddressHandle,
    to: &DctAddress,
    stream: u16,
) -> Result<ToDct<'a>, VerbsError> {
    if address.gid() != to.gid {
        return Err(RawError::InvalidArgument("the address handle has another GID").into());
    }
    Ok(ToDct {
        ah: address.raw(),
        dct: to.number,
        key: to.key,
        stream,
    })
}

impl DynamicInitiator {
    pub(crate) const fn raw(&self) -> &Qp {
        &self.qp
    }

    /// Returns its identifier in [events](crate::Context::poll_event).
    #[must_use]
    pub const fn id(&self) -> ObjectId {
        self.id
    }

    /// Returns its number, which completions at targets carry as `src_qp`.
    #[must_use]
    pub fn number(&self) -> Qpn {
        self.qp.qp_num()
    }

    /// Returns the state: RTS, or ERR after a request has failed. In ERR, posted requests are
    /// flushed.
    #[must_use]
    #[doc(alias = "ibv_query_qp")]
    pub fn state(&self) -> QpState {
        self.qp.state()
    }

    /// Posts a request to the target `to`, over the route `address`.
    ///
    /// # Errors
    /// [`VerbsError`] if the queue is full, if the address handle belongs to another protection
    /// domain, or if its GID differs from that of `to`.
    #[doc(alias = "ibv_exp_post_send")]
    #[doc(alias = "mlx5dv_wr_set_dc_addr")]
    pub fn post_send(
        &self,
        request: &SendRequest<'_>,
        address: &AddressHandle,
        to: &DctAddress,
    ) -> Result<(), VerbsError> {
        self.post_send_on(0, request, address, to)
    }

    /// Posts a request to a target on one of the [streams](DynamicInitiatorBuilder::streams). An
    /// initiator without streams ignores `stream`.
    ///
    /// # Errors
    /// As [`post_send`](Self::post_send).
    #[doc(alias = "mlx5dv_wr_set_dc_addr_stream")]
    pub fn post_send_on(
        &self,
        stream: u16,
        request: &SendRequest<'_>,
        address: &AddressHandle,
        to: &DctAddress,
    ) -> Result<(), VerbsError> {
        check_wr_id(request.id())?;
        self.post_own(stream, request, address, to)
    }

    pub(crate) const fn ends(&self) -> &Ends {
        &self.ends
    }

    /// Posts a request of an operation.
    pub(crate) fn post_own(
        &self,
        stream: u16,
        request: &SendRequest<'_>,
        address: &AddressHandle,
        to: &DctAddress,
    ) -> Result<(), VerbsError> {
        let to = dct_destination(address, to, stream)?;
        self.qp
            .post_sends(|queue| match (request.parts(), request.operands()) {
                ((wr, None), Some(operands)) => queue.push_dynamic_with(&wr, to, operands.clone()),
                ((wr, inline), _) => queue.push_dynamic(&wr, to, inline),
            })?;
        Ok(())
    }

    /// Resets a stream that has failed, so that it accepts requests again.
    ///
    /// # Errors
    /// [`VerbsError`] if the stream has not failed.
    #[doc(alias = "mlx5dv_dci_stream_id_reset")]
    //= DC-40
    pub fn reset_stream(&self, stream: u16) -> Result<(), VerbsError> {
        Ok(self.qp.reset_stream(stream)?)
    }
}
