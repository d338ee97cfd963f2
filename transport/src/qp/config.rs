//! Configuration of a queue pair at creation and in `modify_qp`.

use rocade_wire::{Gid, Mtu, Pkey, Qpn};

use crate::attr::{QpCap, QpType};
use crate::memory::{Accessor, PdTag};

/// Device limits that [`Qp::modify`](crate::Qp::modify) checks attributes against.
#[derive(Clone, Copy, Debug)]
pub struct QpLimits {
    /// READs and atomics that a QP may have outstanding as requester.
    pub max_qp_init_rd_atom: u8,
    /// READs and atomics that a QP can have outstanding as responder.
    pub max_qp_rd_atom: u8,
    /// Physical ports.
    pub port_count: u8,
    /// Entries of the P_Key table.
    pub pkey_table_len: u16,
}

/// Fixed properties of a queue pair.
#[derive(Clone, Copy, Debug)]
pub struct QpConfig {
    /// The QP number.
    pub qp_num: Qpn,
    /// The transport service.
    pub qp_type: QpType,
    /// The protection domain that it belongs to.
    pub pd: PdTag,
    /// The queue sizes, already granted.
    pub cap: QpCap,
    /// Every send work request generates a completion.
    pub sq_sig_all: bool,
    /// Device limits.
    pub limits: QpLimits,
}

impl QpConfig {
    /// Returns the accessor as which the QP accesses memory.
    #[inline]
    #[must_use]
    pub const fn accessor(&self) -> Accessor {
        Accessor {
            pd: self.pd,
            qpn: self.qp_num,
        }
    }
}

/// Device state that [`Qp::modify`](crate::Qp::modify) needs.
#[derive(Clone, Copy, Debug)]
pub struct ModifyContext {
    /// The GID that `ah_attr.sgid_index` selects. `None` if the entry is empty or absent.
    pub sgid: Option<Gid>,
    /// The P_Key that `pkey_index` selects.
    pub pkey: Pkey,
    /// The port's active MTU.
    pub active_mtu: Mtu,
    /// The corresponding values for the alternate path.
    pub alternate: AlternateContext,
    /// The call is an experimental verb, for which a DC initiator has a different state table.
    pub experimental: bool,
}

/// Device state for an alternate path that [`Qp::modify`](crate::Qp::modify) loads.
#[derive(Clone, Copy, Debug)]
pub struct AlternateContext {
    /// The GID that `alt_ah_attr.sgid_index` selects. `None` if the entry is empty or absent.
    pub sgid: Option<Gid>,
    /// The P_Key that `alt_pkey_index` selects.
    pub pkey: Pkey,
    /// The active MTU of the port.
    pub active_mtu: Mtu,
}
