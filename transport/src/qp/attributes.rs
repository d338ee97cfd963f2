//! Storage of the attributes of a queue pair. Rarely used attributes are allocated on first use.

use alloc::boxed::Box;

use crate::attr::{AddressVector, QpAttr, QpAttrMask, QpCap};
use crate::wr::AccessFlags;

/// Attributes as in [`QpAttr`], without those that the QP keeps elsewhere: its state and its queue
/// sizes.
#[derive(Debug, Default)]
pub(super) struct Attributes {
    pub(super) path_mtu: u32,
    pub(super) path_mig_state: u32,
    pub(super) qkey: u32,
    pub(super) rq_psn: u32,
    pub(super) sq_psn: u32,
    pub(super) dest_qp_num: u32,
    pub(super) qp_access_flags: AccessFlags,
    pub(super) rate_limit: u32,
    pub(super) ah_attr: AddressVector,
    pub(super) pkey_index: u16,
    pub(super) en_sqd_async_notify: bool,
    pub(super) max_rd_atomic: u8,
    pub(super) max_dest_rd_atomic: u8,
    pub(super) min_rnr_timer: u8,
    pub(super) port_num: u8,
    pub(super) timeout: u8,
    pub(super) retry_cnt: u8,
    pub(super) rnr_retry: u8,
    rare: Option<Box<RareAttributes>>,
}

/// Rarely used attributes.
#[derive(Clone, Copy, Debug, Default)]
struct RareAttributes {
    alternate: AlternatePath,
    dc_key: u64,
}

/// The attributes of an alternate path. Without one, the port is 0.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct AlternatePath {
    pub(super) ah_attr: AddressVector,
    pub(super) pkey_index: u16,
    pub(super) port_num: u8,
    pub(super) timeout: u8,
}

impl Attributes {
    /// Copies the attributes that the mask names.
    //= QPS-06
    pub(super) fn store(&mut self, new: &QpAttr, mask: QpAttrMask) {
        macro_rules! take {
            ($($bit:ident => $field:ident;)*) => {
                $(if mask.contains(QpAttrMask::$bit) { self.$field = new.$field; })*
            };
        }
        take! {
            EN_SQD_ASYNC_NOTIFY => en_sqd_async_notify;
            ACCESS_FLAGS => qp_access_flags;
            PKEY_INDEX => pkey_index;
            PORT => port_num;
            QKEY => qkey;
            AV => ah_attr;
            PATH_MTU => path_mtu;
            TIMEOUT => timeout;
            RETRY_CNT => retry_cnt;
            RNR_RETRY => rnr_retry;
            RQ_PSN => rq_psn;
            MAX_QP_RD_ATOMIC => max_rd_atomic;
            MIN_RNR_TIMER => min_rnr_timer;
            SQ_PSN => sq_psn;
            MAX_DEST_RD_ATOMIC => max_dest_rd_atomic;
            PATH_MIG_STATE => path_mig_state;
            DEST_QPN => dest_qp_num;
            RATE_LIMIT => rate_limit;
        }
        if mask.contains(QpAttrMask::ALT_PATH) {
            self.rare.get_or_insert_default().alternate = AlternatePath {
                ah_attr: new.alt_ah_attr,
                pkey_index: new.alt_pkey_index,
                port_num: new.alt_port_num,
                timeout: new.alt_timeout,
            };
        }
        if mask.contains(QpAttrMask::DC_KEY) {
            self.rare.get_or_insert_default().dc_key = new.dc_key;
        }
    }

    /// Returns the alternate path.
    pub(super) fn alternate(&self) -> AlternatePath {
        let rare = self.rare.as_ref();
        rare.map_or_else(AlternatePath::default, |rare| rare.alternate)
    }

    /// Makes the alternate path the primary one. There is no alternate path afterwards.
    pub(super) fn take_alternate(&mut self) {
        let Some(rare) = &mut self.rare else { return };
        let alternate = core::mem::take(&mut rare.alternate);
        self.ah_attr = alternate.ah_attr;
        self.pkey_index = alternate.pkey_index;
        self.port_num = alternate.port_num;
        self.timeout = alternate.timeout;
    }

    /// Returns all attributes. Those that the QP keeps elsewhere have the values of a new QP.
    pub(super) fn all(&self, cap: QpCap) -> QpAttr {
        let alternate = self.alternate();
        QpAttr {
            qp_state: 0,
            cur_qp_state: 0,
            path_mtu: self.path_mtu,
            path_mig_state: self.path_mig_state,
            qkey: self.qkey,
            rq_psn: self.rq_psn,
            sq_psn: self.sq_psn,
            dest_qp_num: self.dest_qp_num,
            qp_access_flags: self.qp_access_flags,
            cap,
            ah_attr: self.ah_attr,
            alt_ah_attr: alternate.ah_attr,
            pkey_index: self.pkey_index,
            alt_pkey_index: alternate.pkey_index,
            en_sqd_async_notify: self.en_sqd_async_notify,
            sq_draining: false,
            max_rd_atomic: self.max_rd_atomic,
            max_dest_rd_atomic: self.max_dest_rd_atomic,
            min_rnr_timer: self.min_rnr_timer,
            port_num: self.port_num,
            timeout: self.timeout,
            retry_cnt: self.retry_cnt,
            rnr_retry: self.rnr_retry,
            alt_port_num: alternate.port_num,
            alt_timeout: alternate.timeout,
            rate_limit: self.rate_limit,
            dc_key: self.rare.as_ref().map_or(0, |rare| rare.dc_key),
        }
    }
}
