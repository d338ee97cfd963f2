//! How the transport reaches registered memory.

use rocade_wire::{Lkey, Qpn, Rkey};

use crate::indirect::Fill;
use crate::masked::{MaskedOp, Words};
use crate::window::{Bind, BindError};
use crate::wr::AccessFlags;

/// Why an access to registered memory was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AccessError {
    /// No region has this key, or its tag is stale (KEY-02).
    BadKey,
    /// The key belongs to another protection domain (PD-03).
    WrongPd,
    /// The key is for another QP (MW-03).
    WrongQp,
    /// The region lacks the right (MR-12, MR-13).
    Permission,
    /// Not inside the region (MR-11).
    OutOfRange,
    /// The memory is no longer mapped, or not with these rights (ODP-04). Only an access finds that, no
    /// check.
    Fault,
}

/// What a local access does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LocalAccess {
    /// Gather; always allowed (MR-03).
    Read,
    /// Scatter; needs `LOCAL_WRITE` (MR-12).
    Write,
}

/// The right a remote access needs (MR-13).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemoteAccess {
    /// RDMA READ.
    Read,
    /// RDMA WRITE.
    Write,
    /// Atomics.
    Atomic,
    /// FLUSH to global visibility.
    FlushGlobal,
    /// FLUSH to persistence.
    FlushPersistent,
}

impl RemoteAccess {
    /// The right as an access flag.
    #[inline]
    #[must_use]
    pub const fn right(self) -> AccessFlags {
        match self {
            Self::Read => AccessFlags::REMOTE_READ,
            Self::Write => AccessFlags::REMOTE_WRITE,
            Self::Atomic => AccessFlags::REMOTE_ATOMIC,
            Self::FlushGlobal => AccessFlags::FLUSH_GLOBAL,
            Self::FlushPersistent => AccessFlags::FLUSH_PERSISTENT,
        }
    }
}

/// An atomic operation on 8 aligned bytes, interpreted in host byte order (ATM-02).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicOp {
    /// Store `swap` if the value equals `compare`.
    CmpSwap {
        /// Expected value.
        compare: u64,
        /// New value.
        swap: u64,
    },
    /// Add modulo 2^64 (ATM-06).
    FetchAdd {
        /// Addend.
        add: u64,
    },
}

/// A protection domain, as whoever owns the memory numbers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PdTag(pub u32);

/// Who accesses memory: what a key is checked against. The domain is the QP's as a rule, and that of the
/// receive queue where a message goes into a receive buffer (PD-01).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accessor {
    /// The domain that the key has to be of.
    pub pd: PdTag,
    /// The QP on whose behalf it happens: some keys are for one QP only (MW-03).
    pub qpn: Qpn,
}

/// What a range of registered memory is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// One piece that stays what it is until the caller lets go of the memory: the copy may be left for
    /// later ([`Source`](crate::Source)).
    One,
    /// Several pieces, or one that may change at any moment: to be copied by [`Memory`]'s own calls.
    Pieces,
}

/// Registered memory.
///
/// Each call looks the key up again, so a key that was invalidated or changed between two
/// packets is noticed (MR-14). What a call names is resolved in full before its first byte moves.
/// Zero-length accesses are never asked for (RC-SEG-02, MR-11).
/// Copies, checks and atomics must be free of side effects but the one that they are for.
pub trait Memory {
    /// Checks a local buffer without touching it.
    ///
    /// # Errors
    /// The reason of the refusal.
    fn check_local(
        &self,
        who: Accessor,
        lkey: Lkey,
        addr: u64,
        len: u64,
        access: LocalAccess,
    ) -> Result<Extent, AccessError>;

    /// Checks a remote range without touching it.
    ///
    /// # Errors
    /// The reason of the refusal.
    fn check_remote(
        &self,
        who: Accessor,
        rkey: Rkey,
        va: u64,
        len: u64,
        access: RemoteAccess,
    ) -> Result<Extent, AccessError>;

    /// Checks a whole memory region without touching it: that the key is one's, and its rights.
    ///
    /// # Errors
    /// The reason of the refusal.
    fn check_region(
        &self,
        who: Accessor,
        rkey: Rkey,
        access: RemoteAccess,
    ) -> Result<(), AccessError>;

    /// Copies from a local buffer.
    ///
    /// # Errors
    /// As [`Memory::check_local`]; `dst` is then unspecified.
    fn read_local(
        &self,
        who: Accessor,
        lkey: Lkey,
        addr: u64,
        dst: &mut [u8],
    ) -> Result<(), AccessError>;

    /// Copies into a local buffer.
    ///
    /// # Errors
    /// As [`Memory::check_local`]; nothing is written then, but perhaps a part after
    /// [`AccessError::Fault`].
    fn write_local(
        &self,
        who: Accessor,
        lkey: Lkey,
        addr: u64,
        src: &[u8],
    ) -> Result<(), AccessError>;

    /// Copies from memory on the peer's behalf.
    ///
    /// # Errors
    /// As [`Memory::check_remote`]; `dst` is then unspecified.
    fn read_remote(
        &self,
        who: Accessor,
        rkey: Rkey,
        va: u64,
        dst: &mut [u8],
    ) -> Result<(), AccessError>;

    /// Copies into memory on the peer's behalf.
    ///
    /// # Errors
    /// As [`Memory::check_remote`]; nothing is written then, but perhaps a part after
    /// [`AccessError::Fault`].
    fn write_remote(
        &self,
        who: Accessor,
        rkey: Rkey,
        va: u64,
        src: &[u8],
    ) -> Result<(), AccessError>;

    /// Writes 8 bytes on the peer's behalf, so that nobody ever sees a part of them.
    ///
    /// # Errors
    /// As [`Memory::check_remote`]; `va` is a multiple of 8.
    fn store_remote(
        &self,
        who: Accessor,
        rkey: Rkey,
        va: u64,
        bytes: [u8; 8],
    ) -> Result<(), AccessError>;

    /// Executes an atomic and returns the original value, host byte order.
    ///
    /// # Errors
    /// As [`Memory::check_remote`]; `va` is a multiple of 8.
    fn atomic_remote(
        &self,
        who: Accessor,
        rkey: Rkey,
        va: u64,
        op: AtomicOp,
    ) -> Result<u64, AccessError>;

    /// Executes a masked atomic on 2^`log_size` bytes and returns their original value: atomic with respect to all others
    /// of this device.
    ///
    /// # Errors
    /// As [`Memory::check_remote`]; `va` is a multiple of the size, which is one that there is.
    fn masked_remote(
        &self,
        who: Accessor,
        rkey: Rkey,
        va: u64,
        log_size: u8,
        op: &MaskedOp,
    ) -> Result<Words, AccessError>;

    /// Binds a memory window, for all accesses from now on.
    ///
    /// # Errors
    /// Nothing has changed.
    fn bind(&self, who: Accessor, bind: &Bind) -> Result<(), BindError>;

    /// Changes an indirect memory key, for all accesses from now on.
    ///
    /// # Errors
    /// Nothing has changed (UMR-12).
    fn fill(&self, who: Accessor, fill: Fill) -> Result<(), BindError>;

    /// Makes a key invalid because the owner or, `remotely`, the peer has said so: when this returns, no access
    /// through it is in flight, and later ones fail.
    ///
    /// # Errors
    /// Nothing has changed (INV-01, INV-02).
    fn invalidate(&self, who: Accessor, rkey: Rkey, remotely: bool) -> Result<(), AccessError>;
}
