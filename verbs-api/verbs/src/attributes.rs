//! Attributes of queue pairs, and the calls that change them.

use rocade_emulator::{AccessFlags, Mtu, Psn, Qp, QpAttr, QpAttrMask, QpState};
pub use rocade_transport::QpCap;
pub use rocade_wire::mad::Ece;

use crate::error::{Result, VerbsError};
use crate::queue_pair::{ConnectOptions, QueuePair, UnconnectedQueuePair};
use crate::units::{AckTimeout, Rate, RnrRetry, RnrTimer};

/// The attributes of a queue pair, as [`QueuePair::attributes`] returns them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[doc(alias = "ibv_qp_attr")]
pub struct QueuePairAttributes {
    /// The state of the queue pair.
    pub state: QpState,
    /// True while a [paused](QueuePair::pause) queue pair still executes requests that it had
    /// started.
    pub is_draining: bool,
    /// The options of the connection, with later changes.
    pub options: ConnectOptions,
    /// The number of READs and atomics that the peer may have in flight.
    pub max_dest_rd_atomic: u8,
    /// The path MTU.
    pub mtu: Mtu,
    /// The access that the peer has to memory whose region allows it too.
    pub access: AccessFlags,
    /// The PSN of the first packet that this queue pair sent.
    pub send_psn: Psn,
    /// The PSN of the first packet that this queue pair expected.
    pub recv_psn: Psn,
    /// The partition, as an index of the [P_Key table](crate::Context::pkeys).
    pub pkey_index: u16,
    /// The local address, as an index of the port's [GID table](crate::Context::gids).
    pub gid_index: u8,
    /// The port number, from 1 on.
    pub port: u8,
    /// The rate limit of sent data, or `None` for no limit.
    pub rate_limit: Option<Rate>,
    /// The capacity of the queues.
    pub capacity: QpCap,
}

fn change(qp: &Qp, attr: &QpAttr, mask: QpAttrMask) -> Result<(), VerbsError> {
    Ok(qp.modify(attr, mask)?)
}

impl QueuePair {
    /// Returns the current attributes.
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

    /// Sets the access that the peer has from now on to registered memory that allows it too.
    ///
    /// # Errors
    /// [`VerbsError`] in state ERR.
    #[doc(alias = "ibv_modify_qp")]
    //= QPT-16 QPT-17
    pub fn set_access(&self, access: AccessFlags) -> Result<(), VerbsError> {
        let attr = QpAttr {
            qp_access_flags: access,
            ..QpAttr::default()
        };
        change(self.raw(), &attr, QpAttrMask::ACCESS_FLAGS)
    }

    /// Sets the time that the peer of an RC queue pair waits before it repeats a request for which
    /// no receive was posted.
    ///
    /// # Errors
    /// [`VerbsError`] for other services, and in state ERR.
    #[doc(alias = "ibv_modify_qp")]
    //= QPT-16
    pub fn set_min_rnr_timer(&self, timer: RnrTimer) -> Result<(), VerbsError> {
        let attr = QpAttr {
            min_rnr_timer: timer.code(),
            ..QpAttr::default()
        };
        change(self.raw(), &attr, QpAttrMask::MIN_RNR_TIMER)
    }

    /// Stops the send queue until [`resume`](Self::resume) is called (state SQD).
    ///
    /// Requests that the queue pair has started are completed first. Requests posted meanwhile
    /// wait. The queue pair continues to serve the peer's requests. After the last started request,
    /// the context reports the event
    /// [`AsyncEventKind::SqDrained`](crate::AsyncEventKind::SqDrained), and
    /// [`is_draining`](QueuePairAttributes::is_draining) turns false.
    ///
    /// # Errors
    /// [`VerbsError`] if the state is not RTS.
    #[doc(alias = "IBV_QPS_SQD")]
    //= QPT-19 RC-STA-06
    pub fn pause(&self) -> Result<(), VerbsError> {
        let attr = QpAttr {
            qp_state: QpState::Sqd.code(),
            en_sqd_async_notify: true,
            ..QpAttr::default()
        };
        let mask = QpAttrMask::STATE | QpAttrMask::EN_SQD_ASYNC_NOTIFY;
        change(self.raw(), &attr, mask)
    }

    /// Restarts the send queue after a [pause](Self::pause).
    ///
    /// # Errors
    /// [`VerbsError`] in state ERR.
    //= QPT-20 QPT-21
    pub fn resume(&self) -> Result<(), VerbsError> {
        let attr = QpAttr {
            qp_state: QpState::Rts.code(),
            ..QpAttr::default()
        };
        change(self.raw(), &attr, QpAttrMask::STATE)
    }

    /// Moves the queue pair to state ERR. All posted and future requests complete with
    /// [`WcStatus::Flushed`](crate::WcStatus::Flushed), and the queue pair stops answering
    /// the peer.
    ///
    /// # Errors
    /// [`VerbsError`] if the state cannot change to ERR. Every state can.
    #[doc(alias = "IBV_QPS_ERR")]
    //= QPS-02
    pub fn set_error(&self) -> Result<(), VerbsError> {
        let attr = QpAttr {
            qp_state: QpState::Err.code(),
            ..QpAttr::default()
        };
        change(self.raw(), &attr, QpAttrMask::STATE)
    }

    /// Returns the enhanced connection establishment (ECE) options in use: none.
    #[must_use]
    #[doc(alias = "ibv_query_ece")]
    pub fn ece(&self) -> Ece {
        self.raw().ece()
    }
}

impl UnconnectedQueuePair {
    /// Returns the enhanced connection establishment (ECE) options that this side offers: the
    /// device's vendor ID, and no options.
    #[must_use]
    #[doc(alias = "ibv_query_ece")]
    pub fn ece(&self) -> Ece {
        self.raw().ece()
    }

    /// Records the ECE options that the peer offers. Rocade uses none of them.
    ///
    /// # Errors
    /// [`VerbsError`] with EOPNOTSUPP if the vendor ID is 0, which means
    /// that the peer does not support ECE.
    #[doc(alias = "ibv_set_ece")]
    pub fn set_ece(&self, offered: Ece) -> Result<(), VerbsError> {
        Ok(self.raw().set_ece(offered)?)
    }

    /// Sets the partition, as an index of the [P_Key table](crate::Context::pkeys). It is 0 by
    /// default. The peer has to belong to the same partition.
    ///
    /// # Errors
    /// [`VerbsError`] if the table has no entry with this index.
    #[doc(alias = "IBV_QP_PKEY_INDEX")]
    //= QPT-05
    pub fn set_pkey_index(&self, index: u16) -> Result<(), VerbsError> {
        let attr = QpAttr {
            pkey_index: index,
            ..QpAttr::default()
        };
        change(self.raw(), &attr, QpAttrMask::PKEY_INDEX)
    }
}
