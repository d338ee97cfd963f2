//! Objects that the library has created.

use std::{fmt, marker::PhantomData, ptr};

use crate::ffi::Errno;

/// A C type whose pointers in a program come from this library.
///
/// # Safety
/// [`Self::borrow`] must be sound for each pointer that the library has given to programs as this
/// type.
pub(crate) unsafe trait CObject: Sized {
    /// The Rust object behind the C part.
    type Object: 'static;

    /// Returns the object behind `c`.
    ///
    /// # Errors
    /// `EINVAL` for NULL, `ENODEV` for an object that the parent process created before a `fork`.
    ///
    /// # Safety
    /// `c` must be NULL, or an object of this library that lives during `'a`.
    unsafe fn borrow<'a>(c: *mut Self) -> Result<&'a Self::Object, Errno>;
}

/// An object that the program names, or NULL.
#[repr(transparent)]
pub(crate) struct Handle<'a, C> {
    place: *mut C,
    call: PhantomData<&'a C>,
}

impl<C> Clone for Handle<'_, C> {
    #[inline]
    fn clone(&self) -> Self {
        *self
    }
}

impl<C> Copy for Handle<'_, C> {}

impl<C> fmt::Debug for Handle<'_, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.place.fmt(f)
    }
}

impl<'a, C> Handle<'a, C> {
    /// The NULL pointer.
    pub(crate) const NULL: Self = Self {
        place: ptr::null_mut(),
        call: PhantomData,
    };

    /// Makes a handle of a pointer.
    ///
    /// # Safety
    /// `place` must be NULL, or an object of this type that lives during `'a`.
    #[inline]
    pub(crate) const unsafe fn new(place: *mut C) -> Self {
        Self {
            place,
            call: PhantomData,
        }
    }

    /// Returns the pointer, which may outlive the handle but not the object.
    #[inline]
    pub(crate) const fn as_ptr(self) -> *mut C {
        self.place
    }

    /// Returns the address.
    #[inline]
    pub(crate) fn addr(self) -> usize {
        self.place.addr()
    }

    /// Returns true for NULL.
    #[inline]
    pub(crate) const fn is_null(self) -> bool {
        self.place.is_null()
    }

    /// Returns `None` for NULL.
    #[inline]
    pub(crate) fn some(self) -> Option<Self> {
        (!self.is_null()).then_some(self)
    }
}

impl<'a, C: CObject> Handle<'a, C> {
    /// Returns the object.
    ///
    /// # Errors
    /// `EINVAL` for NULL, `ENODEV` for an object that the parent process created before a `fork`.
    #[inline]
    pub(crate) fn get(self) -> Result<&'a C::Object, Errno> {
        // SAFETY: NULL, or an object that lives during `'a`.
        unsafe { C::borrow(self.place) }
    }
}

/// An object that the call destroys if it succeeds, or NULL.
#[repr(transparent)]
pub(crate) struct Last<'a, C> {
    place: *mut C,
    call: PhantomData<&'a C>,
}

impl<C> fmt::Debug for Last<'_, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.place.fmt(f)
    }
}

impl<C> Last<'_, C> {
    /// Makes a handle of a pointer.
    ///
    /// # Safety
    /// `place` must be NULL, or an object of this type that no other code uses from now on, unless
    /// the call fails.
    #[inline]
    pub(crate) const unsafe fn new(place: *mut C) -> Self {
        Self {
            place,
            call: PhantomData,
        }
    }

    /// Returns the pointer.
    #[inline]
    pub(crate) const fn as_ptr(&self) -> *mut C {
        self.place
    }

    /// Returns the address.
    pub(crate) fn addr(&self) -> usize {
        self.place.addr()
    }

    /// Returns a handle for calls before the object is destroyed.
    #[inline]
    pub(crate) const fn handle(&self) -> Handle<'_, C> {
        Handle {
            place: self.place,
            call: PhantomData,
        }
    }
}

/// An object that was just created, and that the program does not know yet.
#[derive(Debug)]
#[must_use]
pub(crate) struct New<C> {
    place: *mut C,
}

impl<C> New<C> {
    /// Makes a value of a pointer.
    ///
    /// # Safety
    /// `place` must be an object of this type, to which no other code has a pointer.
    pub(crate) const unsafe fn of(place: *mut C) -> Self {
        Self { place }
    }

    /// Returns a handle for calls before the program knows the object.
    pub(crate) const fn handle(&self) -> Handle<'_, C> {
        Handle {
            place: self.place,
            call: PhantomData,
        }
    }

    /// Returns the pointer for the program.
    pub(crate) fn into_c(self) -> *mut C {
        self.place
    }

    /// Returns the object for its destruction.
    pub(crate) const fn into_last(self) -> Last<'static, C> {
        Last {
            place: self.place,
            call: PhantomData,
        }
    }
}

impl<C: CObject> New<C> {
    /// Returns the object.
    ///
    /// # Errors
    /// None, but the function is that of each handle.
    pub(crate) fn get(&self) -> Result<&C::Object, Errno> {
        // SAFETY: alive, because only this value refers to it.
        unsafe { C::borrow(self.place) }
    }
}
