//! Structures that the program passes.

use std::{fmt, marker::PhantomData, ops::Deref, ptr};

use rocade_abi::{ibv_ah_attr, ibv_gid, ibv_qp_attr, ibv_xrcd_init_attr};

use crate::{args::Member, ffi::Errno};

/// Declares a pointer to a structure.
macro_rules! structure {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[repr(transparent)]
        pub(crate) struct $name<'a, T> {
            place: *mut T,
            call: PhantomData<&'a T>,
        }

        impl<T> Clone for $name<'_, T> {
            #[inline]
            fn clone(&self) -> Self {
                *self
            }
        }

        impl<T> Copy for $name<'_, T> {}

        impl<T> fmt::Debug for $name<'_, T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.place.fmt(f)
            }
        }

        impl<'a, T> $name<'a, T> {
            /// The NULL pointer.
            pub(crate) const NULL: Self = Self {
                place: ptr::null_mut(),
                call: PhantomData,
            };

            /// Makes an argument of a pointer.
            ///
            /// # Safety
            /// `place` must be as the type promises during `'a`.
            #[inline]
            pub(crate) const unsafe fn new(place: *mut T) -> Self {
                Self {
                    place,
                    call: PhantomData,
                }
            }

            /// Returns the pointer.
            #[inline]
            pub(crate) const fn as_ptr(self) -> *mut T {
                self.place
            }

            /// Returns true for NULL.
            #[inline]
            pub(crate) const fn is_null(self) -> bool {
                self.place.is_null()
            }

            /// Returns `None` for NULL.
            pub(crate) fn some(self) -> Option<Self> {
                (!self.is_null()).then_some(self)
            }
        }
    };
}

structure! {
    /// A structure that the call reads, or NULL.
    In
}
structure! {
    /// A place to which the call writes a result, or NULL.
    Out
}
structure! {
    /// A structure that the call reads and to which it writes results, or NULL.
    InOut
}

/// A structure without pointers.
///
/// # Safety
/// Each member must be an integer, or an array or structure of these.
pub(crate) unsafe trait Plain: Copy {}

/// Declares structures without pointers.
macro_rules! plain {
    ($($kind:ty),+ $(,)?) => { $(
        // SAFETY: integers, and arrays, structures and unions of them.
        unsafe impl Plain for $kind {}
    )+ };
}
plain!(ibv_ah_attr, ibv_gid, ibv_qp_attr, ibv_xrcd_init_attr);

impl<'a, T: Plain> InOut<'a, T> {
    /// Makes an argument of a structure of this library.
    pub(crate) const fn of(structure: &'a mut T) -> Self {
        Self {
            place: ptr::from_mut(structure),
            call: PhantomData,
        }
    }
}

impl<'a, T: Plain> In<'a, T> {
    /// Makes an argument of a structure of this library.
    pub(crate) const fn of(structure: &'a T) -> Self {
        Self {
            place: ptr::from_ref(structure).cast_mut(),
            call: PhantomData,
        }
    }
}

impl<'a, T: Copy> In<'a, T> {
    /// Reads the structure.
    ///
    /// # Errors
    /// `EINVAL` for NULL.
    #[inline]
    pub(crate) fn read(self) -> Result<View<'a, T>, Errno> {
        if self.place.is_null() {
            return Err(Errno::INVAL);
        }
        Ok(View {
            // SAFETY: not NULL, and readable by the promise of the type.
            value: unsafe { self.place.read() },
            call: PhantomData,
        })
    }

    /// Reads the structure. Returns `None` for NULL.
    #[inline]
    pub(crate) fn optional(self) -> Option<View<'a, T>> {
        self.read().ok()
    }
}

impl<'a, T: Copy> InOut<'a, T> {
    /// Reads the structure.
    ///
    /// # Errors
    /// `EINVAL` for NULL.
    #[inline]
    pub(crate) fn read(self) -> Result<View<'a, T>, Errno> {
        self.as_in().read()
    }

    /// Returns the structure for reading alone.
    #[inline]
    pub(crate) const fn as_in(self) -> In<'a, T> {
        In {
            place: self.place,
            call: PhantomData,
        }
    }

    /// Reads a member that each release of the structure has.
    ///
    /// # Errors
    /// `EINVAL` for NULL.
    pub(crate) fn head<M: Copy>(self, member: Member<T, M>) -> Result<M, Errno> {
        Ok(*self.part(member).read()?)
    }

    /// Writes a member that each release of the structure has.
    ///
    /// # Errors
    /// `EINVAL` for NULL.
    pub(crate) fn set<M: Copy>(self, member: Member<T, M>, value: M) -> Result<(), Errno> {
        self.part(member).write(value)
    }

    /// Returns a member that each release of the structure has. NULL without a structure.
    pub(crate) fn part<M>(self, member: Member<T, M>) -> InOut<'a, M> {
        let place = if self.place.is_null() {
            ptr::null_mut()
        } else {
            member.of(self.place)
        };
        InOut {
            place,
            call: PhantomData,
        }
    }

    /// Returns the place alone.
    #[inline]
    pub(crate) const fn out(self) -> Out<'a, T> {
        Out {
            place: self.place,
            call: PhantomData,
        }
    }

    /// Writes the structure.
    ///
    /// # Errors
    /// `EINVAL` for NULL.
    #[inline]
    pub(crate) fn write(self, value: T) -> Result<(), Errno> {
        self.out().write(value)
    }
}

impl<'a, T> Out<'a, T> {
    /// Makes an argument of a place in this library.
    pub(crate) const fn of(place: &'a mut T) -> Self {
        Self {
            place: ptr::from_mut(place),
            call: PhantomData,
        }
    }

    /// Writes a result.
    ///
    /// # Errors
    /// `EINVAL` for NULL.
    #[inline]
    pub(crate) fn write(self, value: T) -> Result<(), Errno> {
        if self.place.is_null() {
            return Err(Errno::INVAL);
        }
        // SAFETY: not NULL, and writable by the promise of the type.
        unsafe { self.place.write(value) };
        Ok(())
    }
}

/// A copy of a structure that the program has passed. What it names is as the program promised
/// during `'a`.
#[derive(Clone, Copy)]
pub(crate) struct View<'a, T> {
    value: T,
    call: PhantomData<&'a T>,
}

impl<T> View<'_, T> {
    /// Makes a view of a structure that this library has filled in.
    ///
    /// # Safety
    /// Each pointer in `value` must be as the function demands during the view's lifetime.
    #[inline]
    pub(crate) const unsafe fn new(value: T) -> Self {
        Self {
            value,
            call: PhantomData,
        }
    }
}

impl<T: Copy> View<'_, T> {
    /// Returns the view as an argument of another call.
    pub(crate) const fn as_in(&self) -> In<'_, T> {
        In {
            place: ptr::from_ref(&self.value).cast_mut(),
            call: PhantomData,
        }
    }

    /// Returns a view with changes of members that are no pointers.
    ///
    /// # Safety
    /// `change` must leave each pointer as it is, or set it to NULL.
    pub(crate) unsafe fn with(mut self, change: impl FnOnce(&mut T)) -> Self {
        change(&mut self.value);
        self
    }
}

impl<T> Deref for View<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T: fmt::Debug> fmt::Debug for View<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.value.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn null_is_invalid() {
        // SAFETY: NULL is allowed.
        let (source, target) =
            unsafe { (In::<u32>::new(ptr::null_mut()), Out::new(ptr::null_mut())) };
        assert_eq!(source.read().err(), Some(Errno::INVAL));
        assert_eq!(target.write(7u32), Err(Errno::INVAL));
    }
}
