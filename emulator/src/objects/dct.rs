//! The two ends of dynamic connections.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rocade_transport::{
    DciStreams, DctStatus, MAX_LOG_ERRORED, MAX_LOG_STREAMS, QpCap, QpType, Receives,
};

use super::cq::Cq;
use super::pd::PdInner;
use super::qp::{Qp, QpInitAttr, check_cap, check_cqs, config, create};
use super::srq::Srq;
use crate::cells::{DctEvents, QpParts};
use crate::error::VerbsError;

/// So long a target that is destroyed waits for its initiators to leave.
//= DCW-16
const GRACE: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(1);

/// What only a DC initiator is created with.
#[derive(Clone, Copy, Debug, Default)]
pub struct DciInit {
    /// Its streams, if it has any.
    pub streams: Option<DciStreams>,
}

/// What a DC target is created with.
#[derive(Clone, Debug)]
#[doc(alias = "ibv_exp_dct_init_attr")]
pub struct DctInitAttr {
    /// Where receives complete.
    pub cq: Cq,
    /// Where they come from; their buffers are memory of the target's domain (DC-12).
    pub srq: Srq,
    /// The access key that initiators have to name.
    pub key: u64,
    /// Comes back in events.
    pub cookie: u64,
    /// Its events are those of a target ([`EventElement::Dct`](crate::EventElement::Dct)), else those of a queue pair.
    pub has_dct_events: bool,
}

impl Qp {
    //= DC-05
    pub(super) fn new_initiator(
        pd: Arc<PdInner>,
        init: QpInitAttr,
        dc: DciInit,
    ) -> Result<Self, VerbsError> {
        if init.srq.is_some() {
            return Err(VerbsError::InvalidArgument("srq"));
        }
        let is_too_much = |streams: &DciStreams| {
            streams.log_concurrent > MAX_LOG_STREAMS || streams.log_errored > MAX_LOG_ERRORED
        };
        if dc.streams.as_ref().is_some_and(is_too_much) {
            return Err(VerbsError::InvalidArgument("dci_streams"));
        }
        let cap = QpCap {
            max_recv_wr: 0,
            max_recv_sge: 0,
            ..init.cap
        };
        check_cap(&cap)?;
        check_cqs(&pd, &init)?;
        let config = config(&pd, QpType::DcInitiator, cap, init.sq_sig_all);
        let parts = QpParts {
            cqs: Some((init.send_cq.inner, init.recv_cq.inner)),
            ..QpParts::default()
        };
        let first = first_session(&pd);
        let inner = create(&pd, config, Receives::Own, init.cookie, parts, |qp| {
            qp.set_up_initiator(first, dc.streams);
        })?;
        Ok(Self::held(inner, pd, None))
    }

    //= DCT-01
    pub(super) fn new_dct(pd: Arc<PdInner>, init: DctInitAttr) -> Result<Self, VerbsError> {
        let srq = Arc::clone(init.srq.inner());
        //= DCT-02
        if !srq.is_for(&pd.context.events) {
            return Err(VerbsError::InvalidArgument("srq"));
        }
        if !Arc::ptr_eq(&init.cq.context, &pd.context) {
            return Err(VerbsError::InvalidArgument("cq"));
        }
        let config = config(&pd, QpType::DcTarget, QpCap::default(), false);
        //= DCT-10
        let parts = QpParts {
            cqs: Some((Arc::clone(&init.cq.inner), init.cq.inner)),
            srq: Some(Arc::clone(&srq)),
            dct: Some(if init.has_dct_events {
                DctEvents::OfTarget
            } else {
                DctEvents::OfQp
            }),
            ..QpParts::default()
        };
        let receives = Receives::Shared(srq);
        //= DCT-11
        let inner = create(&pd, config, receives, init.cookie, parts, |qp| {
            qp.set_up_target(init.key);
        })?;
        Ok(Self::held(inner, pd, None))
    }

    /// The next packet with a wrong key for this DC target raises an event, once.
    ///
    /// # Errors
    /// [`VerbsError::InvalidArgument`] for any other queue pair.
    //= DCK-04
    #[doc(alias = "ibv_exp_arm_dct")]
    pub fn arm_dct(&self) -> Result<(), VerbsError> {
        self.dct_status()?;
        self.inner().lock().qp.arm();
        Ok(())
    }

    /// What there is to be known of a DC target besides [`Qp::query`].
    ///
    /// # Errors
    /// [`VerbsError::InvalidArgument`] for any other queue pair.
    //= DCT-07
    #[doc(alias = "ibv_exp_query_dct")]
    pub fn dct_status(&self) -> Result<DctStatus, VerbsError> {
        let status = self.inner().lock().qp.target_status();
        status.ok_or(VerbsError::InvalidArgument("not a DC target"))
    }

    /// A stream of a DC initiator that is in error takes requests again.
    ///
    /// # Errors
    /// [`VerbsError::InvalidArgument`] where it is not in error.
    //= DC-40
    #[doc(alias = "mlx5dv_dci_stream_id_reset")]
    pub fn reset_stream(&self, stream: u16) -> Result<(), VerbsError> {
        if self.inner().lock().qp.reset_stream(stream) {
            Ok(())
        } else {
            Err(VerbsError::InvalidArgument("a stream that is not in error"))
        }
    }

    /// A DC target that is destroyed takes no new sessions, and gives those that there are the time to end.
    //= DCT-09 DCW-16
    pub(super) fn drain_sessions(&self) {
        self.inner().lock().qp.drain_sessions();
        let deadline = Instant::now() + GRACE;
        let is_simulated = self.pd().inner.context.engine.is_simulated();
        let busy = || self.dct_status().is_ok_and(|status| status.sessions > 0);
        while !is_simulated && busy() && Instant::now() < deadline {
            thread::sleep(PAUSE);
        }
    }
}

/// Higher than that of any initiator before, even of another process with the same number, and not of one that will be.
//= DCW-07
fn first_session(pd: &PdInner) -> u32 {
    let engine = &pd.context.engine;
    let us = if engine.is_simulated() {
        engine.now().as_ns() / 1_000
    } else {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH);
        unix.map_or(0, |unix| u64::try_from(unix.as_micros()).unwrap_or(0))
    };
    // Modulo 2^32, as sessions are compared.
    u32::try_from(us & u64::from(u32::MAX)).unwrap_or(0)
}
