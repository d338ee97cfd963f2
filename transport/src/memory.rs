//! How the transport reaches registered memory.

use rocade_wire::{Lkey, Rkey};

/// Why an access to registered memory was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AccessError {
    /// No region has this key, or its tag is stale (KEY-02).
    BadKey,
    /// The key belongs to another protection domain (PD-03).
    WrongPd,
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

/// Registered memory as one QP sees it: every key is checked against the QP's protection domain.
///
/// Each call looks the key up again, so a region that was deregistered or changed between two
/// packets is noticed (MR-14). Zero-length accesses are never asked for (RC-SEG-02, MR-11).
/// Implementations must be free of side effects other than the copy itself.
pub trait Memory {
    /// Checks a local buffer without touching it.
    ///
    /// # Errors
    /// The reason of the refusal.
    fn check_local(
        &self,
        lkey: Lkey,
        addr: u64,
        len: u64,
        access: LocalAccess,
    ) -> Result<(), AccessError>;

    /// Checks a remote range without touching it.
    ///
    /// # Errors
    /// The reason of the refusal.
    fn check_remote(
        &self,
        rkey: Rkey,
        va: u64,
        len: u64,
        access: RemoteAccess,
    ) -> Result<(), AccessError>;

    /// Copies from a local buffer.
    ///
    /// # Errors
    /// As [`Memory::check_local`]; `dst` is then unspecified.
    fn read_local(&self, lkey: Lkey, addr: u64, dst: &mut [u8]) -> Result<(), AccessError>;

    /// Copies into a local buffer.
    ///
    /// # Errors
    /// As [`Memory::check_local`]; nothing is written then, but perhaps a part after
    /// [`AccessError::Fault`].
    fn write_local(&self, lkey: Lkey, addr: u64, src: &[u8]) -> Result<(), AccessError>;

    /// Copies from memory on the peer's behalf.
    ///
    /// # Errors
    /// As [`Memory::check_remote`]; `dst` is then unspecified.
    fn read_remote(&self, rkey: Rkey, va: u64, dst: &mut [u8]) -> Result<(), AccessError>;

    /// Copies into memory on the peer's behalf.
    ///
    /// # Errors
    /// As [`Memory::check_remote`]; nothing is written then, but perhaps a part after
    /// [`AccessError::Fault`].
    fn write_remote(&self, rkey: Rkey, va: u64, src: &[u8]) -> Result<(), AccessError>;

    /// Executes an atomic and returns the original value, host byte order.
    ///
    /// # Errors
    /// As [`Memory::check_remote`]; `va` is a multiple of 8.
    fn atomic_remote(&self, rkey: Rkey, va: u64, op: AtomicOp) -> Result<u64, AccessError>;
}
