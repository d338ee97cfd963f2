//! DC initiators and DC targets, the two ends of dynamic connections.

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
use crate::error::VerbsError;
use crate::state::{DctEvents, QpResources};

/// Longest time that the destruction of a target waits for its initiators to disconnect.
//= DCW-16
const GRACE: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(1);

/// The further attributes of a DC initiator.
#[derive(Clone, Copy, Debug, Default)]
pub struct DciInit {
    /// The streams, if it has any.
    pub streams: Option<DciStreams>,
}

/// The attributes of a new DC target.
#[derive(Clone, Debug)]
#[doc(alias = "ibv_exp_dct_init_attr")]
pub struct DctInitAttr {
    /// The CQ of its receives.
    pub cq: Cq,
    /// The SRQ of its receives. Their buffers are memory of the target's protection domain.
    pub srq: Srq,
    /// The DC access key that initiators have to send.
    pub key: u64,
    /// Identifies the target in events.
    pub cookie: u64,
    /// True: its events are those of a DC target ([`EventElement::Dct`](crate::EventElement::Dct)).
    /// False: they are those of a queue pair.
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
        check_cap(pd.context.hca.config.like, &cap)?;
        check_cqs(&pd, &init)?;
        let config = config(&pd, QpType::DcInitiator, cap, init.sq_sig_all);
        let parts = QpResources {
            cqs: Some((init.send_cq.inner, init.recv_cq.inner)),
            ..QpResources::default()
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
        let parts = QpResources {
            cqs: Some((Arc::clone(&init.cq.inner), init.cq.inner)),
            srq: Some(Arc::clone(&srq)),
            dct: Some(if init.has_dct_events {
                DctEvents::OfTarget
            } else {
                DctEvents::OfQp
            }),
            ..QpResources::default()
        };
        let receives = Receives::Shared(srq);
        //= DCT-11
        let inner = create(&pd, config, receives, init.cookie, parts, |qp| {
            qp.set_up_target(init.key);
        })?;
        Ok(Self::held(inner, pd, None))
    }

    /// Arms the DC target: the next packet with a wrong key raises an event, once.
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

    /// Returns the status of a DC target beyond [`Qp::query`].
    ///
    /// # Errors
    /// [`VerbsError::InvalidArgument`] for any other queue pair.
    //= DCT-07
    #[doc(alias = "ibv_exp_query_dct")]
    pub fn dct_status(&self) -> Result<DctStatus, VerbsError> {
        let status = self.inner().lock().qp.target_status();
        status.ok_or(VerbsError::InvalidArgument("not a DC target"))
    }

    /// Resets a stream of a DC initiator that is in error, so that it accepts requests again.
    ///
    /// # Errors
    /// [`VerbsError::InvalidArgument`] if it is not in error.
    //= DC-40
    #[doc(alias = "mlx5dv_dci_stream_id_reset")]
    pub fn reset_stream(&self, stream: u16) -> Result<(), VerbsError> {
        if self.inner().lock().qp.reset_stream(stream) {
            Ok(())
        } else {
            Err(VerbsError::InvalidArgument("the stream is not in error"))
        }
    }

    /// Makes a DC target reject new sessions, and waits up to a second until the present ones have
    /// ended. In a simulation it does not wait. Other queue pairs have no sessions.
    //= DCT-09 DCW-16
    pub fn drain_sessions(&self) {
        self.inner().lock().qp.drain_sessions();
        let deadline = Instant::now() + GRACE;
        let is_simulated = self.pd().inner.context.engine.host.is_simulated();
        let busy = || self.dct_status().is_ok_and(|status| status.sessions > 0);
        while !is_simulated && busy() && Instant::now() < deadline {
            thread::sleep(PAUSE);
        }
    }
}

/// Returns a session number that is higher than that of any earlier initiator, and lower than that
/// of later ones. This includes initiators of other processes with the same QP number.
//= DCW-07
fn first_session(pd: &PdInner) -> u32 {
    let engine = &pd.context.engine;
    let us = if engine.host.is_simulated() {
        engine.host.now().as_ns() / 1_000
    } else {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH);
        unix.map_or(0, |unix| u64::try_from(unix.as_micros()).unwrap_or(0))
    };
    // Sessions are compared modulo 2^32.
    u32::try_from(us & u64::from(u32::MAX)).unwrap_or(0)
}
