//! What a queue pair is like while it works, and what of it may change.

pub use rocade_emulator::QpCap;
pub use rocade_emulator::cm::Ece;
use rocade_emulator::{AccessFlags, Mtu, Psn, Qp, QpAttr, QpAttrMask, QpState};

use crate::error::Result;
use crate::queue_pair::{ConnectOptions, QueuePair, UnconnectedQueuePair};
use crate::units::{AckTimeout, Rate, RnrRetry, RnrTimer};

/// What a queue pair is like; see [`QueuePair::attributes`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[doc(alias = "ibv_qp_attr")]
pub struct QueuePairAttributes {
    /// Its state.
    pub state: QpState,
    /// Whether requests that were begun are still under way, where it is [paused](QueuePair::pause).
    pub is_draining: bool,
    /// What it was connected with, or has been given since.
    pub options: ConnectOptions,
    /// READs and atomics of the peer in flight.
    pub max_dest_rd_atomic: u8,
    /// Path MTU.
    pub mtu: Mtu,
    /// What the peer may do in memory that allows it too.
    pub access: AccessFlags,
    /// PSN of the first packet that it sent.
    pub send_psn: Psn,
    /// PSN of the first packet that it expected.
    pub recv_psn: Psn,
    /// Its partition: an index of the [table](crate::Context::pkeys).
    pub pkey_index: u16,
    /// Its address: an index of the [table](crate::Context::gids) of its port.
    pub gid_index: u8,
    /// Its port, from 1 on.
    pub port: u8,
    /// Limit of what it sends, or `None` without one.
    pub rate_limit: Option<Rate>,
    /// How much its queues hold.
    pub capacity: QpCap,
}

fn change(qp: &Qp, attr: &QpAttr, mask: QpAttrMask) -> Result<()> {
    Ok(qp.modify(attr, mask)?)
}

impl QueuePair {
    /// What it is like now.
    #[must_use]
    #[doc(alias = "ibv_query_qp")]
    //= QPS-06
    pub fn attributes(&self) -> QueuePairAttributes {
        let (attr, capacity) = self.raw().query();
        let mtu = u8::try_from(attr.path_mtu).ok().and_then(Mtu::from_code);
        QueuePairAttributes {
            state: QpState::from_code(attr.qp_state).unwrap_or(QpState::Err),
            is_draining: attr.sq_draining,
            options: ConnectOptions {
                timeout: AckTimeout::from_code(attr.timeout),
                retry_cnt: attr.retry_cnt,
                rnr_retry: RnrRetry::from_code(attr.rnr_retry),
                min_rnr_timer: RnrTimer::from_code(attr.min_rnr_timer),
                max_rd_atomic: attr.max_rd_atomic,
                traffic_class: attr.ah_attr.traffic_class,
                hop_limit: attr.ah_attr.hop_limit,
            },
            max_dest_rd_atomic: attr.max_dest_rd_atomic,
            mtu: mtu.unwrap_or_else(|| self.peer().mtu),
            access: attr.qp_access_flags,
            send_psn: Psn::new(attr.sq_psn),
            recv_psn: Psn::new(attr.rq_psn),
            pkey_index: attr.pkey_index,
            gid_index: attr.ah_attr.sgid_index,
            port: attr.port_num,
            rate_limit: Rate::from_kbps(attr.rate_limit),
            capacity,
        }
    }

    /// What the peer may do from now on, in registered memory that allows it too.
    ///
    /// # Errors
    /// [`Error::Verbs`](crate::Error::Verbs) after a failure.
    #[doc(alias = "ibv_modify_qp")]
    //= QPT-16 QPT-17
    pub fn set_access(&self, access: AccessFlags) -> Result<()> {
        let attr = QpAttr {
            qp_access_flags: access,
            ..QpAttr::default()
        };
        change(self.raw(), &attr, QpAttrMask::ACCESS_FLAGS)
    }

    /// Sets the time that the peer of an RC queue pair waits while there is no receive.
    ///
    /// # Errors
    /// [`Error::Verbs`](crate::Error::Verbs) for any other service, and after a failure.
    #[doc(alias = "ibv_modify_qp")]
    //= QPT-16
    pub fn set_min_rnr_timer(&self, timer: RnrTimer) -> Result<()> {
        let attr = QpAttr {
            min_rnr_timer: timer.code(),
            ..QpAttr::default()
        };
        change(self.raw(), &attr, QpAttrMask::MIN_RNR_TIMER)
    }

    /// Begins no request any more until it is [resumed](Self::resume) (state SQD); those that were begun end first, and what is
    /// posted meanwhile waits. The peer is served as before. Once all is quiet there is an event
    /// ([`AsyncEventKind::SqDrained`](crate::AsyncEventKind::SqDrained)), and
    /// [`is_draining`](QueuePairAttributes::is_draining) is false.
    ///
    /// # Errors
    /// [`Error::Verbs`](crate::Error::Verbs) unless its state is RTS.
    #[doc(alias = "IBV_QPS_SQD")]
    //= QPT-19 RC-STA-06
    pub fn pause(&self) -> Result<()> {
        let attr = QpAttr {
            qp_state: QpState::Sqd.code(),
            en_sqd_async_notify: true,
            ..QpAttr::default()
        };
        let mask = QpAttrMask::STATE | QpAttrMask::EN_SQD_ASYNC_NOTIFY;
        change(self.raw(), &attr, mask)
    }

    /// Goes on after a [pause](Self::pause).
    ///
    /// # Errors
    /// [`Error::Verbs`](crate::Error::Verbs) after a failure.
    //= QPT-20 QPT-21
    pub fn resume(&self) -> Result<()> {
        let attr = QpAttr {
            qp_state: QpState::Rts.code(),
            ..QpAttr::default()
        };
        change(self.raw(), &attr, QpAttrMask::STATE)
    }

    /// Ends it (state ERR): whatever is posted, or will be, completes with
    /// [`WcStatus::WrFlushErr`](crate::WcStatus::WrFlushErr), and the peer is answered no longer.
    ///
    /// # Errors
    /// None that can happen here: any state leads there.
    #[doc(alias = "IBV_QPS_ERR")]
    //= QPS-02
    pub fn stop(&self) -> Result<()> {
        let attr = QpAttr {
            qp_state: QpState::Err.code(),
            ..QpAttr::default()
        };
        change(self.raw(), &attr, QpAttrMask::STATE)
    }

    /// What it offers for both ends to agree on beside the standard, which is nothing.
    #[must_use]
    #[doc(alias = "ibv_query_ece")]
    pub fn ece(&self) -> Ece {
        self.raw().ece()
    }
}

impl UnconnectedQueuePair {
    /// What it offers for both ends to agree on beside the standard: the vendor of its device, and no options.
    #[must_use]
    #[doc(alias = "ibv_query_ece")]
    pub fn ece(&self) -> Ece {
        self.raw().ece()
    }

    /// Takes note of what the peer offers, of which nothing is used.
    ///
    /// # Errors
    /// [`Error::Verbs`](crate::Error::Verbs) (EOPNOTSUPP) for a vendor of 0: the peer does not know of this.
    #[doc(alias = "ibv_set_ece")]
    pub fn set_ece(&self, offered: Ece) -> Result<()> {
        Ok(self.raw().set_ece(offered)?)
    }

    /// Makes it a member of a partition: an index of the [table](crate::Context::pkeys), 0 by default. The peer
    /// has to be a member of the same one.
    ///
    /// # Errors
    /// [`Error::Verbs`](crate::Error::Verbs) beyond the table.
    #[doc(alias = "IBV_QP_PKEY_INDEX")]
    //= QPT-05
    pub fn set_pkey_index(&self, index: u16) -> Result<()> {
        let attr = QpAttr {
            pkey_index: index,
            ..QpAttr::default()
        };
        change(self.raw(), &attr, QpAttrMask::PKEY_INDEX)
    }
}
