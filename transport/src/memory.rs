//! Access to registered memory.

use rocade_wire::{AtomicEth, Lkey, Operation, Qpn, Rkey};

use crate::indirect::Fill;
use crate::masked::{MaskedOp, WideOperand};
use crate::window::{Bind, BindError};
use crate::wr::AccessFlags;

/// The reason why an access to registered memory was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AccessError {
    /// No region has this key, or the tag of the key is stale.
    BadKey,
    /// The key belongs to another protection domain.
    WrongPd,
    /// The key is for another QP.
    WrongQp,
    /// The region lacks the right.
    Permission,
    /// Not inside the region.
    OutOfRange,
    /// The memory is no longer mapped, or no longer with these rights. Only an access finds this
    /// out, not a check.
    Fault,
}

/// Kind of a local access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LocalAccess {
    /// Gather. Always allowed.
    Read,
    /// Scatter. Needs `LOCAL_WRITE`.
    Write,
}

/// The right that a remote access needs.
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
    /// Returns the right as an access flag.
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

/// An atomic operation on 8 aligned bytes, interpreted in host byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicOp {
    /// Stores `swap` if the value equals `compare`.
    CmpSwap {
        /// Expected value.
        compare: u64,
        /// New value.
        swap: u64,
    },
    /// Adds modulo 2^64.
    FetchAdd {
        /// Addend.
        add: u64,
    },
}

impl AtomicOp {
    /// Returns the operation of a request.
    pub(crate) fn of(operation: Operation, eth: &AtomicEth) -> Self {
        if operation == Operation::CmpSwap {
            Self::CmpSwap {
                compare: eth.compare,
                swap: eth.swap_add,
            }
        } else {
            Self::FetchAdd { add: eth.swap_add }
        }
    }

    /// Returns the new value of 8 bytes whose old value is `old`.
    #[must_use]
    pub const fn apply(self, old: u64) -> u64 {
        match self {
            Self::CmpSwap { compare, swap } if compare == old => swap,
            Self::CmpSwap { .. } => old,
            //= ATM-06
            Self::FetchAdd { add } => old.wrapping_add(add),
        }
    }
}

/// A protection domain, by the number that the owner of the memory gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PdTag(pub u32);

/// The accessor of memory, which a key is checked against.
///
/// The protection domain is normally that of the QP. For a message into a receive buffer it is that
/// of the receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accessor {
    /// The protection domain that the key has to belong to.
    pub pd: PdTag,
    /// The accessing QP: some keys are for a single QP.
    pub qpn: Qpn,
}

/// Structure of a range of registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// One segment that stays valid until the caller releases the memory. The copy may be deferred
    /// ([`Source`](crate::Source)).
    One,
    /// Several segments, or one that may change at any time. Only calls of [`Memory`] may copy it.
    Segments,
}

/// Registered memory.
///
/// Each call looks the key up again, so that a key that was invalidated or changed between two
/// packets is noticed. A call resolves its whole range before it moves the first byte. The
/// transport never requests an access of length zero. Copies, checks and atomics must have no other
/// side effects.
pub trait Memory {
    /// Checks a local buffer without touching it.
    ///
    /// # Errors
    /// [`AccessError`] if the key is not valid for this caller, or its region lacks the right or
    /// the range.
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
    /// [`AccessError`] if the key is not valid for this caller, or its region lacks the right or
    /// the range.
    fn check_remote(
        &self,
        who: Accessor,
        rkey: Rkey,
        va: u64,
        len: u64,
        access: RemoteAccess,
    ) -> Result<Extent, AccessError>;

    /// Checks a whole memory region without touching it: the key and the rights.
    ///
    /// # Errors
    /// [`AccessError`] if the key is not valid for this caller, or its region lacks the right.
    fn check_region(
        &self,
        who: Accessor,
        rkey: Rkey,
        access: RemoteAccess,
    ) -> Result<(), AccessError>;

    /// Copies from a local buffer.
    ///
    /// # Errors
    /// As [`Memory::check_local`]. `dst` is then unspecified.
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
    /// As [`Memory::check_local`]. Then nothing is written, except that [`AccessError::Fault`] may
    /// leave a part written.
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
    /// As [`Memory::check_remote`]. `dst` is then unspecified.
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
    /// As [`Memory::check_remote`]. Then nothing is written, except that [`AccessError::Fault`] may
    /// leave a part written.
    fn write_remote(
        &self,
        who: Accessor,
        rkey: Rkey,
        va: u64,
        src: &[u8],
    ) -> Result<(), AccessError>;

    /// Writes 8 bytes on the peer's behalf, as a single store. `va` is a multiple of 8.
    ///
    /// # Errors
    /// As [`Memory::check_remote`].
    fn store_remote(
        &self,
        who: Accessor,
        rkey: Rkey,
        va: u64,
        bytes: [u8; 8],
    ) -> Result<(), AccessError>;

    /// Executes an atomic and returns the original value in host byte order. `va` is a multiple of
    /// 8.
    ///
    /// # Errors
    /// As [`Memory::check_remote`].
    fn atomic_remote(
        &self,
        who: Accessor,
        rkey: Rkey,
        va: u64,
        op: AtomicOp,
    ) -> Result<u64, AccessError>;

    /// Executes a masked atomic on 2^`log_size` bytes and returns their original value.
    ///
    /// The operation is atomic with respect to all others of this device. The size is a supported
    /// one, and `va` is a multiple of it.
    ///
    /// # Errors
    /// As [`Memory::check_remote`].
    fn masked_remote(
        &self,
        who: Accessor,
        rkey: Rkey,
        va: u64,
        log_size: u8,
        op: &MaskedOp,
    ) -> Result<WideOperand, AccessError>;

    /// Binds a memory window, for all later accesses.
    ///
    /// # Errors
    /// [`BindError`] if a type 2 window is bound already, or the region does not allow the binding.
    /// The window has not changed.
    fn bind(&self, who: Accessor, bind: &Bind) -> Result<(), BindError>;

    /// Changes an indirect memory key, for all later accesses.
    ///
    /// # Errors
    /// [`BindError`] if the key is not free, or the list names keys that cannot be in it. The key
    /// has not changed.
    fn fill(&self, who: Accessor, fill: Fill) -> Result<(), BindError>;

    /// Invalidates a key, because the QP or its peer requests it.
    ///
    /// When this returns, no access through the key is in flight, and later ones fail.
    ///
    /// # Errors
    /// [`AccessError`] if the caller may not invalidate the key, or the key is not valid. The key
    /// has not changed.
    fn invalidate(&self, who: Accessor, rkey: Rkey) -> Result<(), AccessError>;
}
