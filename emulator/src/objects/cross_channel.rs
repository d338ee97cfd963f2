//! Cross-channel operations: queue pairs that wait for each other without the application.

use std::sync::Arc;

use rocade_transport::{
    Calc, CrossChannelQueues, Managed, Operands, PostError, Reduction, SendFlags, SendOp, SendWr,
    Sge,
};

use super::cq::Cq;
use super::poster::{SendPoster, ToDct};
use super::qp::Qp;
use crate::error::VerbsError;
use crate::state::{CompletionWait, CrossChannelState, ManagedQueue, SendRelease};

/// The role of a queue pair in cross-channel operations (`ibv_exp_qp_create_flags`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[doc(alias = "IBV_EXP_QP_CREATE_CROSS_CHANNEL")]
pub struct CrossChannel {
    /// The QP may carry WAIT, ENABLE and compute requests.
    pub is_master: bool,
    /// The send queue executes only released requests.
    pub managed_send: bool,
    /// The receive queue has only released receives.
    pub managed_recv: bool,
    /// The application does not poll the completions of its sends: their WQEs are free when they
    /// are executed.
    pub sends_untaken: bool,
    /// The application does not poll the completions of its receives.
    pub receives_untaken: bool,
}

impl Cq {
    /// Allows work requests to wait for its completions (`IBV_EXP_CQ_CREATE_CROSS_CHANNEL`).
    //= XCH-03
    pub fn allow_waits(&self) {
        self.inner.allow_waits();
    }

    /// Returns true if work requests may wait for its completions.
    #[must_use]
    pub fn allows_waits(&self) -> bool {
        self.inner.allows_waits()
    }

    /// Switches overrun detection off: a completion that finds no room replaces the oldest one
    /// (`IBV_EXP_CQ_IGNORE_OVERRUN`).
    //= XCH-04
    pub fn ignore_overrun(&self) {
        self.inner.ignore_overrun();
    }
}

impl Qp {
    /// Enables cross-channel operations. To be called once, before anything is posted.
    ///
    /// # Errors
    /// [`VerbsError::InvalidArgument`] for a UD queue pair, a DC initiator with streams, or a
    /// managed receive queue of a QP with an SRQ. Also if it was already called.
    //= XCH-02
    pub fn enable_cross_channel(&self, how: CrossChannel) -> Result<(), VerbsError> {
        let inner = self.inner();
        let shares = inner.has_srq();
        let (qp_type, has_streams) = {
            let qp = &inner.lock().qp;
            (qp.config().qp_type, qp.has_streams())
        };
        let queues = qp_type.traits().cross_channel;
        if has_streams {
            return Err(VerbsError::InvalidArgument(
                "a DC initiator with streams has no common order of requests",
            ));
        }
        if queues == CrossChannelQueues::None {
            return Err(VerbsError::InvalidArgument("qp_type"));
        }
        //= XDEC-09
        let has_receives = queues == CrossChannelQueues::Both;
        if how.managed_recv && (shares || !has_receives) {
            return Err(VerbsError::InvalidArgument(
                "a managed receive queue cannot be shared",
            ));
        }
        let service_queue = self.owner().engine().scheduler.service_queue();
        let send = how
            .managed_send
            .then(|| ManagedQueue::new(Some((Arc::clone(service_queue), inner.qp_num()))));
        let recv = how.managed_recv.then(|| ManagedQueue::new(None));
        let gate = |queue: &Option<Arc<ManagedQueue>>| queue.as_ref().map(|q| Arc::clone(q.gate()));
        let managed = Managed {
            send: gate(&send),
            recv: gate(&recv),
            sends_untaken: how.sends_untaken,
            receives_untaken: how.receives_untaken,
        };
        let part = CrossChannelState {
            is_master: how.is_master,
            send,
            recv,
        };
        if self.owner().cross_channel.set(Box::new(part)).is_err() {
            return Err(VerbsError::InvalidArgument(
                "cross-channel operations are already enabled",
            ));
        }
        inner.manage(managed);
        Ok(())
    }
}

const NO_MASTER: VerbsError =
    VerbsError::InvalidArgument("the queue pair is not a cross-channel master");

impl SendPoster<'_> {
    /// Queues a request that only completes in its turn (`IBV_EXP_WR_NOP`).
    ///
    /// # Errors
    /// As [`SendPoster::push`].
    //= NOP-01
    pub fn push_nop(&mut self, wr_id: u64, flags: SendFlags) -> Result<(), VerbsError> {
        self.push(&local(wr_id, SendOp::Nop, flags))
    }

    /// Queues a request that blocks later ones until `cq` has had `count` completions more than
    /// those of all previous groups of waits (`IBV_EXP_WR_CQE_WAIT`). `last` ends a group.
    ///
    /// # Errors
    /// As [`SendPoster::push`]. [`VerbsError::InvalidArgument`] unless the queue pair is a master
    /// and the CQ allows waits.
    //= XCH-02
    //= XCW-02
    pub fn push_wait(
        &mut self,
        (wr_id, flags): (u64, SendFlags),
        cq: &Cq,
        count: u32,
        last: bool,
    ) -> Result<(), VerbsError> {
        self.check_master()?;
        //= XCH-03
        //= XDEC-08
        if !cq.allows_waits() {
            return Err(VerbsError::InvalidArgument("cq does not allow waits"));
        }
        if !Arc::ptr_eq(&cq.context, &self.owner().pd.context) {
            return Err(VerbsError::InvalidArgument("cq of another device"));
        }
        //= XCW-05
        if i32::try_from(count).is_err() {
            return Err(VerbsError::InvalidArgument("cq_count"));
        }
        let planned = cq.inner.plan_count(count, last);
        self.push(&local(wr_id, SendOp::Wait, flags))?;
        let until = planned.commit();
        self.set_operands(Operands::Wait(Arc::new(CompletionWait::new(
            &cq.inner, until,
        ))));
        Ok(())
    }

    /// Queues a request that releases work requests of the send queue of `qp`, or if `is_recv` of
    /// its receive queue (`IBV_EXP_WR_SEND_ENABLE`, `IBV_EXP_WR_RECV_ENABLE`). It releases `count`
    /// more than all previous groups of releases, or with 0 all that are posted. `last` ends a
    /// group.
    ///
    /// # Errors
    /// As [`SendPoster::push`]. [`VerbsError::InvalidArgument`] unless this queue pair is a master,
    /// that queue is managed, and enough requests are posted.
    //= XCE-01
    //= XCE-02
    pub fn push_enable(
        &mut self,
        (wr_id, flags): (u64, SendFlags),
        (qp, is_recv): (&Qp, bool),
        count: u32,
        last: bool,
    ) -> Result<(), VerbsError> {
        self.check_master()?;
        //= XCE-07
        let part = qp.owner().cross_channel.get();
        let queue = part.and_then(|part| match is_recv {
            true => part.recv.as_ref(),
            false => part.send.as_ref(),
        });
        let queue = queue.ok_or(VerbsError::InvalidArgument("the queue is not managed"))?;
        let planned = queue
            .plan_count(count, last)
            .ok_or(VerbsError::InvalidArgument("wqe_count"))?;
        self.push(&local(wr_id, SendOp::Enable, flags))?;
        let releasing = SendRelease {
            queue: Arc::clone(queue),
            until: planned.commit(),
        };
        self.set_operands(Operands::Enable(Arc::new(releasing)));
        Ok(())
    }

    /// Queues a SEND or WRITE of the result computed from the elements that `wr` names
    /// (`IBV_EXP_SEND_WITH_CALC`). `data` contains the elements if they are copied now. A READ
    /// reads as many elements as its buffers have room for, and writes the result to their
    /// beginning. A DC initiator sends the request `to` a target.
    ///
    /// # Errors
    /// As [`SendPoster::push`]. [`VerbsError::InvalidArgument`] unless the queue pair is a master,
    /// and the length is a multiple of the element size. Also if the operation is not SEND, READ or
    /// WRITE without immediate data.
    //= XCC-01
    pub fn push_calc(
        &mut self,
        wr: &SendWr<'_>,
        to: Option<ToDct<'_>>,
        calc: Calc,
        data: Option<&[u8]>,
    ) -> Result<(), VerbsError> {
        self.check_master()?;
        let operands = if let SendOp::Send { .. } | SendOp::Write { imm: None, .. } = wr.op {
            Operands::Calc(calc)
        } else if let SendOp::Read { .. } = wr.op {
            Operands::Reduce(Reduction::new(calc))
        } else {
            return Err(VerbsError::Post(PostError::UnsupportedOpcode));
        };
        let len = |sge: &Sge| u64::from(sge.len);
        let total = data.map_or_else(|| wr.sges.iter().map(len).sum(), |data| data.len() as u64);
        //= XCC-04
        if total == 0 || !total.is_multiple_of(calc.element_len() as u64) {
            return Err(VerbsError::InvalidArgument(
                "the length is not a multiple of the element size",
            ));
        }
        match (to, data) {
            (Some(to), data) => self.push_dynamic(wr, to, data)?,
            (None, Some(data)) => self.push_inline(wr, data)?,
            (None, None) => self.push(wr)?,
        }
        self.set_operands(operands);
        Ok(())
    }

    fn check_master(&self) -> Result<(), VerbsError> {
        let cross = self.owner().cross_channel.get();
        let is_master = cross.is_some_and(|part| part.is_master);
        if is_master { Ok(()) } else { Err(NO_MASTER) }
    }
}

const fn local(wr_id: u64, op: SendOp, flags: SendFlags) -> SendWr<'static> {
    SendWr {
        wr_id,
        op,
        flags,
        sges: &[],
    }
}
