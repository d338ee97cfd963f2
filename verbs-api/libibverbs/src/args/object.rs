//! Objects that the library has created.

use std::{fmt, marker::PhantomData, mem, ptr};

use crate::{args::Member, ffi::Errno};

/// A C type whose pointers in a program come from this library.
///
/// # Safety
/// Each pointer that the library has given to programs as this type must be [`Self::OFFSET`] bytes
/// behind the start of a [`Self::Object`]. Parts that programs write must be in `UnsafeCell`.
pub(crate) unsafe trait CObject: Sized {
    /// The Rust object behind the C part.
    type Object: 'static;
    /// The offset of the C part in the object, in bytes.
    const OFFSET: usize = 0;

    /// Returns whether this process may use an object.
    ///
    /// # Errors
    /// `ENODEV` for an object that the parent process created before a `fork`.
    fn check(object: &Self::Object) -> Result<(), Errno>;
}

/// Returns the place of the object behind a C part.
#[inline]
pub(crate) const fn object_of<C: CObject>(place: *mut C) -> *mut C::Object {
    place.wrapping_byte_sub(C::OFFSET).cast()
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

    /// Reads a member of the C part. `None` for NULL.
    #[inline]
    pub(crate) fn member<T: Copy>(self, member: Member<C, T>) -> Option<T> {
        if self.is_null() {
            return None;
        }
        // SAFETY: the object lives during `'a`, and no thread writes the member meanwhile.
        Some(unsafe { member.of(self.place).read() })
    }
}

impl<'a, C: CObject> Handle<'a, C> {
    /// Returns the object.
    ///
    /// # Errors
    /// `EINVAL` for NULL, `ENODEV` for an object that the parent process created before a `fork`.
    #[inline]
    pub(crate) fn get(self) -> Result<&'a C::Object, Errno> {
        let object = self.get_inherited()?;
        C::check(object)?;
        Ok(object)
    }

    /// Returns the object, even if the parent process created it before a `fork`.
    ///
    /// # Errors
    /// `EINVAL` for NULL.
    #[inline]
    pub(crate) fn get_inherited(self) -> Result<&'a C::Object, Errno> {
        if self.is_null() {
            return Err(Errno::INVAL);
        }
        // SAFETY: an object that lives during `'a`, by the promise of the type.
        Ok(unsafe { &*object_of(self.place) })
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

/// An object that the program does not know, or not yet.
#[derive(Debug)]
#[must_use]
pub(crate) struct New<C> {
    place: *mut C,
}

// SAFETY: any thread may use and destroy the object, by contract of `New::of`.
unsafe impl<C> Send for New<C> {}
// SAFETY: as above.
unsafe impl<C> Sync for New<C> {}

impl<C> New<C> {
    /// No object.
    pub(crate) const NULL: Self = Self {
        place: ptr::null_mut(),
    };

    /// Makes a value of a pointer.
    ///
    /// # Safety
    /// `place` must be an object of this type, to which no other code has a pointer. Any thread
    /// must be allowed to use it.
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

    /// Returns a handle of an object that is never destroyed.
    pub(crate) const fn forever(self) -> Handle<'static, C> {
        Handle {
            place: self.place,
            call: PhantomData,
        }
    }

    /// Returns the pointer for the program.
    pub(crate) fn into_c(self) -> *mut C {
        self.place
    }

    /// Takes the object for its destruction, and leaves NULL.
    pub(crate) const fn take(&mut self) -> Last<'static, C> {
        Last {
            place: mem::replace(&mut self.place, ptr::null_mut()),
            call: PhantomData,
        }
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
        self.handle().get()
    }
}
