//! Posts work requests under one lock.

use std::fmt;

use crate::engine::Cx;
use crate::sync::MutexGuard;
use rocade_transport::{
    DcDestination, Destination, Operands, PostError, QpState, SendWr, Sge, Srqn, Time,
    TransmitTrigger, Tso,
};
use rocade_wire::{Qkey, Qpn};

use super::ah::Ah;
use super::qp::QpOwner;
use crate::error::VerbsError;
use crate::faults::Verb;
use crate::memory::MemGuard;
use crate::state::{QpCore, QpInner};

/// The destination of a datagram (`ibv_send_wr.wr.ud`).
#[derive(Clone, Copy, Debug)]
pub struct Datagram<'a> {
    /// The address handle of the peer's device.
    pub ah: &'a Ah,
    /// The destination QP. 0xFFFFFF for the members of a multicast group.
    pub dest_qp: Qpn,
    /// The Q_Key of the destination. With the highest bit set, the sender's own Q_Key is sent
    /// instead.
    pub qkey: Qkey,
}

/// The destination of a DC initiator's request (`mlx5dv_wr_set_dc_addr`).
#[derive(Clone, Copy, Debug)]
pub struct ToDct<'a> {
    /// The address handle of the target's device.
    pub ah: &'a Ah,
    /// The DC target number.
    pub dct: Qpn,
    /// The DC access key.
    pub key: u64,
    /// The stream. An initiator without streams ignores it.
    pub stream: u16,
}

/// The locked send queue of a QP, in [`Qp::post_sends`](super::Qp::post_sends).
pub struct SendPoster<'a> {
    owner: &'a QpOwner,
    inner: &'a QpInner,
    mem: MemGuard<'a>,
    core: MutexGuard<'a, QpCore>,
    now: Time,
    posted: usize,
    bytes: u32,
    /// The error of a fault rule, for the first request.
    refused: Option<Box<VerbsError>>,
}

impl<'a> SendPoster<'a> {
    pub(super) fn new(owner: &'a QpOwner) -> Self {
        let (inner, engine) = (&*owner.inner, owner.engine());
        let refused = owner.enter(Verb::PostSend).err().map(Box::new);
        engine.use_opened_links();
        let now = engine.host.now();
        let mem = engine.tables.regions().read(now);
        let core = inner.lock();
        Self {
            owner,
            inner,
            mem,
            core,
            now,
            posted: 0,
            bytes: 0,
            refused,
        }
    }

    /// Returns the error of a fault rule once.
    #[inline]
    fn check(&mut self) -> Result<(), VerbsError> {
        match self.refused.take() {
            None => Ok(()),
            Some(refused) => Err(*refused),
        }
    }

    /// Queues a work request.
    ///
    /// # Errors
    /// [`VerbsError::Post`]. Requests that were queued before stay queued.
    pub fn push(&mut self, wr: &SendWr<'_>) -> Result<(), VerbsError> {
        self.check()?;
        self.post(wr, None)?;
        self.count(wr.sges);
        Ok(())
    }

    /// Queues a work request with the inline data `data`, which is copied now. Its `sges` are
    /// ignored.
    ///
    /// # Errors
    /// As [`SendPoster::push`].
    pub fn push_inline(&mut self, wr: &SendWr<'_>, data: &[u8]) -> Result<(), VerbsError> {
        self.check()?;
        self.post(wr, Some(data))?;
        self.posted += 1;
        Ok(())
    }

    /// Queues a work request with further operands.
    ///
    /// # Errors
    /// As [`SendPoster::push`].
    pub fn push_with(&mut self, wr: &SendWr<'_>, operands: Operands) -> Result<(), VerbsError> {
        self.push(wr)?;
        self.set_operands(operands);
        Ok(())
    }

    /// Sets the operands of the last queued work request.
    pub(super) fn set_operands(&mut self, operands: Operands) {
        self.core.qp.set_operands(operands);
    }

    pub(super) const fn owner(&self) -> &'a QpOwner {
        self.owner
    }

    /// Sets the XRC SRQ number of the peer for the last queued work request. An XRC initiator has
    /// to set it for each request.
    //= XRC-03
    pub fn set_remote_srqn(&mut self, srqn: Srqn) {
        self.core.qp.set_remote_srqn(srqn);
    }

    /// Queues a request of a raw packet QP that is cut into segments. `data` is what follows the
    /// header if it is copied now, and `wr` has no `sges` then.
    ///
    /// # Errors
    /// As [`SendPoster::push`].
    pub fn push_tso(
        &mut self,
        wr: &SendWr<'_>,
        tso: Tso<'_>,
        data: Option<&[u8]>,
    ) -> Result<(), VerbsError> {
        self.check()?;
        let mut posted = self.core.qp.post_tso(self.now, wr, tso, data);
        if posted == Err(PostError::QueueFull) && self.inner.reclaim_wqes(&mut self.core, true) {
            posted = self.core.qp.post_tso(self.now, wr, tso, data);
        }
        posted?;
        self.posted += 1;
        Ok(())
    }

    /// Queues a datagram. `data` is its content if it is copied now, and `wr` has no `sges` then.
    ///
    /// # Errors
    /// As [`SendPoster::push`]. [`VerbsError::InvalidArgument`] for an address handle that belongs
    /// to another domain or was destroyed.
    pub fn push_datagram(
        &mut self,
        wr: &SendWr<'_>,
        to: Datagram<'_>,
        data: Option<&[u8]>,
    ) -> Result<(), VerbsError> {
        self.check()?;
        let Datagram { ah, dest_qp, qkey } = to;
        //= UD-03
        let route = ah.route_to(&self.owner.pd, dest_qp, |route| {
            let QpCore { qp, tx, .. } = &mut *self.core;
            tx.learn(route, qp);
        })?;
        let to = Destination {
            route,
            dest_qp,
            qkey,
        };
        let mut posted = self.core.qp.post_datagram(self.now, wr, to, data);
        if posted == Err(PostError::QueueFull) && self.inner.reclaim_wqes(&mut self.core, true) {
            posted = self.core.qp.post_datagram(self.now, wr, to, data);
        }
        posted?;
        self.count(if data.is_none() { wr.sges } else { &[] });
        Ok(())
    }

    /// Queues a request of a DC initiator. `data` is its content if it is copied now, and `wr` has
    /// no `sges` then.
    ///
    /// # Errors
    /// As [`SendPoster::push_datagram`].
    //= DC-08
    pub fn push_dynamic(
        &mut self,
        wr: &SendWr<'_>,
        to: ToDct<'_>,
        data: Option<&[u8]>,
    ) -> Result<(), VerbsError> {
        self.check()?;
        let (local, remote) = to.ah.ends();
        if remote.is_multicast() {
            return Err(VerbsError::InvalidArgument("ah of a multicast group"));
        }
        let route = to.ah.route_to(&self.owner.pd, to.dct, |route| {
            let QpCore { qp, tx, .. } = &mut *self.core;
            tx.learn(route, qp);
        })?;
        let to = DcDestination {
            route,
            remote,
            local,
            dct: to.dct,
            key: to.key,
            stream: to.stream,
        };
        let mut posted = self.core.qp.post_dynamic(self.now, wr, to, data);
        if posted == Err(PostError::QueueFull) && self.inner.reclaim_wqes(&mut self.core, true) {
            posted = self.core.qp.post_dynamic(self.now, wr, to, data);
        }
        posted?;
        self.count(if data.is_none() { wr.sges } else { &[] });
        Ok(())
    }

    /// Queues a request of a DC initiator with further operands.
    ///
    /// # Errors
    /// As [`SendPoster::push_datagram`].
    //= XDEC-16
    pub fn push_dynamic_with(
        &mut self,
        wr: &SendWr<'_>,
        to: ToDct<'_>,
        operands: Operands,
    ) -> Result<(), VerbsError> {
        self.push_dynamic(wr, to, None)?;
        self.set_operands(operands);
        Ok(())
    }

    /// Counts a queued request with these buffers.
    #[inline]
    fn count(&mut self, sges: &[Sge]) {
        let bytes = match sges {
            [sge] => sge.len,
            _ => sges.iter().map(|sge| sge.len).fold(0, u32::saturating_add),
        };
        self.bytes = self.bytes.saturating_add(bytes);
        self.posted += 1;
    }

    #[inline]
    fn post(&mut self, wr: &SendWr<'_>, data: Option<&[u8]>) -> Result<(), PostError> {
        if self.core.qp.is_send_full() {
            self.inner.reclaim_wqes(&mut self.core, true);
        }
        let posted = self.core.qp.post_send(self.now, wr, data);
        if posted != Err(PostError::QueueFull) || !self.inner.reclaim_wqes(&mut self.core, true) {
            return posted;
        }
        self.core.qp.post_send(self.now, wr, data)
    }

    /// Removes everything that this poster has queued.
    pub fn rollback(&mut self) {
        self.core.qp.unpost_send(self.posted);
        self.posted = 0;
    }

    /// Transmits what was queued, or leaves it to the next transmission.
    #[inline]
    pub(super) fn transmit(mut self) {
        if self.posted == 0 {
            return;
        }
        let engine = self.owner.engine();
        if !engine.should_batch(self.inner.qp_num(), &mut self.core, self.bytes, self.now) {
            let cx = Cx::of_application(self.now, &self.mem);
            engine.flush_outputs(self.inner, &mut self.core, TransmitTrigger::Posted, cx);
        }
    }
}

impl fmt::Debug for SendPoster<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendPoster")
            .field("posted", &self.posted)
            .finish_non_exhaustive()
    }
}

/// The locked receive queue of a QP.
pub struct RecvPoster<'a> {
    owner: &'a QpOwner,
    inner: &'a QpInner,
    core: Option<MutexGuard<'a, QpCore>>,
    /// The error of a fault rule, for the first receive.
    refused: Option<Box<VerbsError>>,
}

impl<'a> RecvPoster<'a> {
    pub(super) fn new(owner: &'a QpOwner) -> Self {
        let inner = &*owner.inner;
        let refused = owner.enter(Verb::PostRecv).err().map(Box::new);
        Self {
            owner,
            inner,
            core: Some(inner.lock()),
            refused,
        }
    }

    /// Queues a receive.
    ///
    /// # Errors
    /// [`VerbsError::Post`]. Receives that were queued before stay queued.
    #[inline]
    pub fn push(&mut self, wr_id: u64, sges: &[Sge]) -> Result<(), VerbsError> {
        if let Some(refused) = self.refused.take() {
            return Err(*refused);
        }
        if let Some(core) = &mut self.core {
            // The time matters only if the receive is flushed at once.
            let now = match core.qp.state() {
                QpState::Err => self.owner.engine().host.now(),
                _ => Time::ZERO,
            };
            if core.qp.is_recv_full() {
                self.inner.reclaim_wqes(core, false);
            }
            core.qp.post_recv(now, wr_id, sges)?;
        }
        Ok(())
    }
}

impl RecvPoster<'_> {
    /// Flushes the outputs after a post. In ERR the receives were flushed at once, and a peer may
    /// wait for their credits.
    #[cold]
    fn flush(&mut self) {
        // The regions have to be locked first.
        self.core = None;
        let engine = self.owner.engine();
        let now = engine.host.now();
        let mem = engine.tables.regions().read(now);
        let core = &mut self.inner.lock();
        let trigger = match core.qp.state() {
            QpState::Err => TransmitTrigger::Other,
            _ => core.qp.coalescer().credit_trigger(),
        };
        let cx = Cx::of_application(now, &mem);
        engine.flush_outputs(self.inner, core, trigger, cx);
    }
}

impl Drop for RecvPoster<'_> {
    #[inline]
    fn drop(&mut self) {
        let has_output = self
            .core
            .as_ref()
            .is_some_and(|core| core.qp.state() == QpState::Err || core.qp.has_unsent_credits());
        if has_output {
            self.flush();
        }
    }
}

impl fmt::Debug for RecvPoster<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecvPoster").finish_non_exhaustive()
    }
}
