//! Posting work requests under one lock.

use std::fmt;

use parking_lot::MutexGuard;
use rocade_transport::{
    Cause, DcDestination, Destination, Operands, PostError, QpState, SendWr, Sge, Srqn, Time, Tso,
};
use rocade_wire::{Qkey, Qpn};

use super::ah::Ah;
use super::qp::QpOwner;
use crate::cells::{Driver, QpCore, QpInner};
use crate::error::VerbsError;
use crate::memory::MemGuard;

/// Where a datagram goes (`ibv_send_wr.wr.ud`).
#[derive(Clone, Copy, Debug)]
pub struct Datagram<'a> {
    /// The way to the peer's device.
    pub ah: &'a Ah,
    /// The QP there; 0xFFFFFF for the members of a multicast group.
    pub dest_qp: Qpn,
    /// Its Q_Key; with the highest bit set, the sender's own is sent instead (UD-04).
    pub qkey: Qkey,
}

/// Where a request of a DC initiator goes (`mlx5dv_wr_set_dc_addr`).
#[derive(Clone, Copy, Debug)]
pub struct ToDct<'a> {
    /// The way to the target's device.
    pub ah: &'a Ah,
    /// The target there.
    pub dct: Qpn,
    /// Its access key.
    pub key: u64,
    /// The stream; an initiator that has none does not look at it.
    pub stream: u16,
}

/// The locked send queue of a QP. What was posted is transmitted when the poster is dropped, or waits for
/// more for a moment.
pub struct SendPoster<'a> {
    owner: &'a QpOwner,
    inner: &'a QpInner,
    mem: MemGuard<'a>,
    core: MutexGuard<'a, QpCore>,
    now: Time,
    posted: usize,
    bytes: u32,
}

impl<'a> SendPoster<'a> {
    pub(super) fn new(owner: &'a QpOwner) -> Self {
        let (inner, engine) = (&*owner.inner, owner.engine());
        let now = engine.now();
        let mem = engine.regions().read(now);
        let core = inner.lock();
        Self {
            owner,
            inner,
            mem,
            core,
            now,
            posted: 0,
            bytes: 0,
        }
    }

    /// Queues a work request.
    ///
    /// # Errors
    /// [`VerbsError::Post`]; what was queued before stays queued (RC-WQE-13).
    pub fn push(&mut self, wr: &SendWr<'_>) -> Result<(), VerbsError> {
        self.post(wr, None)?;
        self.count(wr.sges);
        Ok(())
    }

    /// Queues a work request whose data is `data`, copied now; its `sges` are ignored
    /// (RC-WQE-06).
    ///
    /// # Errors
    /// As [`SendPoster::push`].
    pub fn push_inline(&mut self, wr: &SendWr<'_>, data: &[u8]) -> Result<(), VerbsError> {
        self.post(wr, Some(data))?;
        self.posted += 1;
        Ok(())
    }

    /// Queues a work request whose operation has operands besides.
    ///
    /// # Errors
    /// As [`SendPoster::push`].
    pub fn push_with(&mut self, wr: &SendWr<'_>, operands: Operands) -> Result<(), VerbsError> {
        self.push(wr)?;
        self.equip(operands);
        Ok(())
    }

    /// The work request that was queued just now has these operands.
    pub(super) fn equip(&mut self, operands: Operands) {
        self.core.qp.equip(operands);
    }

    pub(super) const fn owner(&self) -> &'a QpOwner {
        self.owner
    }

    /// The work request that was queued just now goes to the XRC SRQ `srqn` of the peer. Each of an XRC initiator
    /// names one.
    //= XRC-03
    pub fn aim(&mut self, srqn: Srqn) {
        self.core.qp.aim(srqn);
    }

    /// Queues a request of a raw packet QP that is cut into segments; `data` is what follows the header, where it is
    /// copied now, and `wr` has none then.
    ///
    /// # Errors
    /// As [`SendPoster::push`].
    pub fn push_tso(
        &mut self,
        wr: &SendWr<'_>,
        tso: Tso<'_>,
        data: Option<&[u8]>,
    ) -> Result<(), VerbsError> {
        let mut posted = self.core.qp.post_tso(self.now, wr, tso, data);
        if posted == Err(PostError::QueueFull) && self.inner.reclaim_slots(&mut self.core, true) {
            posted = self.core.qp.post_tso(self.now, wr, tso, data);
        }
        posted?;
        self.posted += 1;
        Ok(())
    }

    /// Queues a datagram; `data` is its data where it is copied now, and `wr` has none then.
    ///
    /// # Errors
    /// As [`SendPoster::push`]; [`VerbsError::InvalidArgument`] for an address handle of another domain
    /// (UD-03), or one that was destroyed.
    pub fn push_datagram(
        &mut self,
        wr: &SendWr<'_>,
        to: Datagram<'_>,
        data: Option<&[u8]>,
    ) -> Result<(), VerbsError> {
        let Datagram { ah, dest_qp, qkey } = to;
        //= UD-03
        let route = ah.lead(&self.owner.pd, dest_qp, |route| {
            let QpCore { qp, tx, .. } = &mut *self.core;
            tx.learn(route, qp);
        })?;
        let to = Destination {
            route,
            dest_qp,
            qkey,
        };
        let mut posted = self.core.qp.post_datagram(self.now, wr, to, data);
        if posted == Err(PostError::QueueFull) && self.inner.reclaim_slots(&mut self.core, true) {
            posted = self.core.qp.post_datagram(self.now, wr, to, data);
        }
        posted?;
        self.count(if data.is_none() { wr.sges } else { &[] });
        Ok(())
    }

    /// Queues a request of a DC initiator; `data` is its data where it is copied now, and `wr` has none then.
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
        let (local, remote) = to.ah.ends();
        if remote.is_multicast() {
            return Err(VerbsError::InvalidArgument("ah of a multicast group"));
        }
        let route = to.ah.lead(&self.owner.pd, to.dct, |route| {
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
        if posted == Err(PostError::QueueFull) && self.inner.reclaim_slots(&mut self.core, true) {
            posted = self.core.qp.post_dynamic(self.now, wr, to, data);
        }
        posted?;
        self.count(if data.is_none() { wr.sges } else { &[] });
        Ok(())
    }

    /// Likewise, one whose operation has operands besides.
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
        self.equip(operands);
        Ok(())
    }

    /// One more is queued, with these buffers.
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
            self.inner.reclaim_slots(&mut self.core, true);
        }
        let posted = self.core.qp.post_send(self.now, wr, data);
        if posted != Err(PostError::QueueFull) || !self.inner.reclaim_slots(&mut self.core, true) {
            return posted;
        }
        self.core.qp.post_send(self.now, wr, data)
    }

    /// Takes back everything this poster has queued (WRX-06).
    pub fn rollback(&mut self) {
        self.core.qp.unpost_send(self.posted);
        self.posted = 0;
    }
}

impl Drop for SendPoster<'_> {
    fn drop(&mut self) {
        if self.posted == 0 {
            return;
        }
        let engine = self.owner.engine();
        if !engine.may_wait(self.inner.qp_num(), &mut self.core, self.bytes, self.now) {
            engine.drain(
                self.inner,
                &mut self.core,
                &self.mem,
                Cause::Posted,
                self.now,
                Driver::Application,
            );
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
}

impl<'a> RecvPoster<'a> {
    pub(super) fn new(owner: &'a QpOwner) -> Self {
        let inner = &*owner.inner;
        Self {
            owner,
            inner,
            core: Some(inner.lock()),
        }
    }

    /// Queues a receive.
    ///
    /// # Errors
    /// [`VerbsError::Post`]; what was queued before stays queued.
    #[inline]
    pub fn push(&mut self, wr_id: u64, sges: &[Sge]) -> Result<(), VerbsError> {
        if let Some(core) = &mut self.core {
            // Time counts where the receive is flushed at once, and only there.
            let now = match core.qp.state() {
                QpState::Err => self.owner.engine().now(),
                _ => Time::ZERO,
            };
            if core.qp.is_recv_full() {
                self.inner.reclaim_slots(core, false);
            }
            core.qp.post_recv(now, wr_id, sges)?;
        }
        Ok(())
    }
}

impl RecvPoster<'_> {
    /// In ERR the receives were flushed at once (RC-STA-02), and a peer may wait for them (RC-ACK-06).
    #[cold]
    fn spread_news(&mut self) {
        // The regions' lock comes first.
        self.core = None;
        let engine = self.owner.engine();
        let now = engine.now();
        let mem = engine.regions().read(now);
        let core = &mut self.inner.lock();
        let cause = match core.qp.state() {
            QpState::Err => Cause::Other,
            _ => core.qp.pace().cause_of_credit(),
        };
        engine.drain(self.inner, core, &mem, cause, now, Driver::Application);
    }
}

impl Drop for RecvPoster<'_> {
    #[inline]
    fn drop(&mut self) {
        let has_news = self
            .core
            .as_ref()
            .is_some_and(|core| core.qp.state() == QpState::Err || core.qp.owes_credit());
        if has_news {
            self.spread_news();
        }
    }
}

impl fmt::Debug for RecvPoster<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecvPoster").finish_non_exhaustive()
    }
}
