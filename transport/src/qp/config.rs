//! What a queue pair is told when it is created or modified.

use rocade_wire::{Gid, Mtu, Pkey, Qpn};

use crate::attr::{QpCap, QpType};
use crate::memory::{Accessor, PdTag};

/// Device limits that [`Qp::modify`](crate::Qp::modify) checks attributes against (QPV-03, QPV-09).
#[derive(Clone, Copy, Debug)]
pub struct QpLimits {
    /// READs and atomics a QP may have outstanding as requester.
    pub max_qp_init_rd_atom: u8,
    /// READs and atomics a QP can answer at a time.
    pub max_qp_rd_atom: u8,
    /// Physical ports.
    pub port_count: u8,
    /// Entries of the P_Key table.
    pub pkey_table_len: u16,
}

/// What is fixed when a QP is created.
#[derive(Clone, Copy, Debug)]
pub struct QpConfig {
    /// Its number.
    pub qp_num: Qpn,
    /// Its transport service; this crate has state machines for RC, UC, UD and XRC.
    pub qp_type: QpType,
    /// The protection domain that it belongs to.
    pub pd: PdTag,
    /// Its queue sizes, already granted.
    pub cap: QpCap,
    /// Every send completes with a CQE.
    pub sq_sig_all: bool,
    /// Device limits.
    pub limits: QpLimits,
}

impl QpConfig {
    /// As whom the QP accesses memory.
    #[inline]
    #[must_use]
    pub const fn accessor(&self) -> Accessor {
        Accessor {
            pd: self.pd,
            qpn: self.qp_num,
        }
    }
}

/// What the device knows and [`Qp::modify`](crate::Qp::modify) needs.
#[derive(Clone, Copy, Debug)]
pub struct ModifyContext {
    /// The GID that `ah_attr.sgid_index` selects, `None` where the entry is empty or absent.
    pub sgid: Option<Gid>,
    /// The P_Key that `pkey_index` selects.
    pub pkey: Pkey,
    /// The port's active MTU.
    pub active_mtu: Mtu,
    /// The same of the alternate path.
    pub alternate: AlternateContext,
    /// The call is one of the experimental verbs: a DC initiator has another state table then (DCS-09).
    pub experimental: bool,
}

/// What the device knows of the alternate path that [`Qp::modify`](crate::Qp::modify) loads.
#[derive(Clone, Copy, Debug)]
pub struct AlternateContext {
    /// The GID that `alt_ah_attr.sgid_index` selects, `None` where the entry is empty or absent.
    pub sgid: Option<Gid>,
    /// The P_Key that `alt_pkey_index` selects.
    pub pkey: Pkey,
    /// The active MTU of its port.
    pub active_mtu: Mtu,
}
