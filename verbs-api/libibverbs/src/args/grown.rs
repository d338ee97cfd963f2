//! Structures to which later releases have added members at the end.

use std::{mem::offset_of, ptr};

use rocade_abi::{
    IBV_QP_INIT_ATTR_CREATE_FLAGS, IBV_QP_INIT_ATTR_IND_TABLE, IBV_QP_INIT_ATTR_MAX_TSO_HEADER,
    IBV_QP_INIT_ATTR_PD, IBV_QP_INIT_ATTR_RX_HASH, IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
    IBV_QP_INIT_ATTR_XRCD, IBV_REG_MR_MASK_ADDR, IBV_REG_MR_MASK_BUF, IBV_REG_MR_MASK_FD,
    IBV_REG_MR_MASK_FD_OFFSET, IBV_REG_MR_MASK_IOVA, IBV_SRQ_INIT_ATTR_CQ, IBV_SRQ_INIT_ATTR_PD,
    IBV_SRQ_INIT_ATTR_TYPE, IBV_SRQ_INIT_ATTR_XRCD, ibv_mr_init_attr, ibv_qp_init_attr_ex,
    ibv_srq_init_attr_ex,
};

use crate::{
    args::{In, InOut, View, zero::Zero, zeroed},
    ffi::Errno,
};

/// A structure whose end a program may not have. The bits of `comp_mask` say how far it goes.
///
/// # Safety
/// [`Self::MASK`] must be the offset of a [`Self::Mask`]. A program that sets the bits in `mask`
/// must have a structure of [`Self::len`] bytes at least.
pub(crate) unsafe trait Grown: Zero + Copy {
    /// The type of `comp_mask`.
    type Mask: Copy;
    /// The offset of `comp_mask`, which each release has.
    const MASK: usize;

    /// Returns the length in bytes that the bits of a `comp_mask` imply.
    fn len(mask: Self::Mask) -> usize;
}

/// Returns the size of a member.
const fn size_of_member<T, M>(_: fn(&T) -> &M) -> usize {
    size_of::<M>()
}

/// Implements [`Grown`]: the last member of each release before the bits, and each bit with its
/// member.
macro_rules! grown {
    ($($structure:ty, $mask:ty { $($bit:ident: $member:ident),+ $(,)? })+) => { $(
        // SAFETY: `comp_mask` has this type. A bit of it says that the program has its member.
        unsafe impl Grown for $structure {
            type Mask = $mask;
            const MASK: usize = offset_of!($structure, comp_mask);

            fn len(mask: $mask) -> usize {
                let mut len = Self::MASK + size_of::<$mask>();
                $( if mask & $bit != 0 {
                    let size = size_of_member(|all: &Self| &all.$member);
                    len = len.max(offset_of!($structure, $member) + size);
                } )+
                len
            }
        }
    )+ };
}

grown! {
    ibv_mr_init_attr, u64 {
        IBV_REG_MR_MASK_IOVA: iova,
        IBV_REG_MR_MASK_ADDR: addr,
        IBV_REG_MR_MASK_FD: fd,
        IBV_REG_MR_MASK_FD_OFFSET: fd_offset,
        IBV_REG_MR_MASK_BUF: buf,
    }
    ibv_qp_init_attr_ex, u32 {
        IBV_QP_INIT_ATTR_PD: pd,
        IBV_QP_INIT_ATTR_XRCD: xrcd,
        IBV_QP_INIT_ATTR_CREATE_FLAGS: create_flags,
        IBV_QP_INIT_ATTR_MAX_TSO_HEADER: max_tso_header,
        IBV_QP_INIT_ATTR_IND_TABLE: rwq_ind_tbl,
        IBV_QP_INIT_ATTR_RX_HASH: rx_hash_conf,
        IBV_QP_INIT_ATTR_SEND_OPS_FLAGS: send_ops_flags,
    }
    ibv_srq_init_attr_ex, u32 {
        IBV_SRQ_INIT_ATTR_TYPE: srq_type,
        IBV_SRQ_INIT_ATTR_PD: pd,
        IBV_SRQ_INIT_ATTR_XRCD: xrcd,
        IBV_SRQ_INIT_ATTR_CQ: cq,
    }
}

impl<'a, T: Grown> In<'a, T> {
    /// Reads the members that the program has, as `comp_mask` says. The others are 0.
    ///
    /// # Errors
    /// `EINVAL` for NULL.
    pub(crate) fn read_known(self) -> Result<View<'a, T>, Errno> {
        let place = self.as_ptr();
        if place.is_null() {
            return Err(Errno::INVAL);
        }
        // SAFETY: not NULL, and each release has this member.
        let mask = unsafe { place.byte_add(T::MASK).cast::<T::Mask>().read() };
        let len = T::len(mask).min(size_of::<T>());
        let mut copy: T = zeroed();
        // SAFETY: the program has that many bytes, and so has the copy.
        unsafe { ptr::copy_nonoverlapping(place.cast::<u8>(), (&raw mut copy).cast(), len) };
        // SAFETY: its pointers are NULL, or set by the program.
        Ok(unsafe { View::new(copy) })
    }
}

impl<'a, T: Grown> InOut<'a, T> {
    /// Reads the members that the program has, as `comp_mask` says. The others are 0.
    ///
    /// # Errors
    /// `EINVAL` for NULL.
    pub(crate) fn read_known(self) -> Result<View<'a, T>, Errno> {
        self.as_in().read_known()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_that_the_mask_does_not_name_are_not_read() {
        let mut whole: ibv_qp_init_attr_ex = zeroed();
        whole.comp_mask = IBV_QP_INIT_ATTR_CREATE_FLAGS;
        (
            whole.create_flags,
            whole.max_tso_header,
            whole.send_ops_flags,
        ) = (1, 2, 3);
        // SAFETY: a structure without pointers.
        let place = unsafe { In::new(&raw mut whole) };
        let read = place.read_known().expect("not NULL");
        assert_eq!((read.create_flags, read.max_tso_header), (1, 0));
        assert_eq!(read.send_ops_flags, 0);
    }
}
