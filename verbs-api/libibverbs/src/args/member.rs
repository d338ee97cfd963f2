//! Members of structures that others read and write, too.

use std::marker::PhantomData;

/// A member of a structure.
pub(crate) struct Member<C, T> {
    offset: usize,
    member: PhantomData<fn(&C) -> &T>,
}

impl<C, T> Clone for Member<C, T> {
    #[inline]
    fn clone(&self) -> Self {
        *self
    }
}

impl<C, T> Copy for Member<C, T> {}

impl<C, T> Member<C, T> {
    /// Names a member. [`member`] makes the arguments.
    ///
    /// # Safety
    /// `offset` must be that of the member that the function returns.
    pub(crate) const unsafe fn new(offset: usize, _: fn(&C) -> &T) -> Self {
        Self {
            offset,
            member: PhantomData,
        }
    }

    /// Returns the place of the member in the structure at `c`.
    #[inline]
    pub(crate) const fn of(self, c: *mut C) -> *mut T {
        c.wrapping_byte_add(self.offset).cast()
    }
}

/// Names a member of a structure.
macro_rules! member {
    ($c:ty, $($member:ident).+) => {
        // SAFETY: the same member.
        unsafe {
            $crate::args::Member::<$c, _>::new(
                std::mem::offset_of!($c, $($member).+),
                |c| &c.$($member).+,
            )
        }
    };
}
pub(crate) use member;
