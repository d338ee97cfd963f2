//! Socket addresses of the program.

use std::{ffi::c_int, marker::PhantomData};

use libc::{sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage};
use rocade_abi::{AF_IB, sockaddr_ib};

use crate::{args::slot::Argument, ffi::Errno};

/// A socket address as long as its family demands, at any alignment, or NULL.
#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Address<'a> {
    place: *const sockaddr,
    call: PhantomData<&'a sockaddr>,
}

/// A copy of a socket address.
pub(crate) enum Sockaddr {
    /// `AF_INET`.
    V4(sockaddr_in),
    /// `AF_INET6`.
    V6(sockaddr_in6),
    /// `AF_IB`.
    Ib(sockaddr_ib),
    /// Another family.
    Other,
}

// SAFETY: transparent over the pointer.
unsafe impl Argument<*const sockaddr> for Address<'_> {}
// SAFETY: as above.
unsafe impl Argument<*mut sockaddr> for Address<'_> {}

impl<'a> Address<'a> {
    /// The NULL pointer.
    pub(crate) const NULL: Self = Self {
        place: std::ptr::null(),
        call: PhantomData,
    };

    /// Makes an argument of an address of this library.
    pub(crate) const fn of(storage: &'a sockaddr_storage) -> Self {
        Self {
            place: std::ptr::from_ref(storage).cast(),
            call: PhantomData,
        }
    }

    /// Makes an argument of a pointer.
    ///
    /// # Safety
    /// `place` must be as the type promises during its lifetime.
    pub(crate) const unsafe fn new(place: *const sockaddr) -> Self {
        Self {
            place,
            call: PhantomData,
        }
    }

    /// Returns `None` for NULL.
    pub(crate) fn some(self) -> Option<Self> {
        (!self.place.is_null()).then_some(self)
    }

    /// Returns the pointer.
    pub(crate) const fn as_ptr(self) -> *const sockaddr {
        self.place
    }

    /// Copies the address.
    ///
    /// # Errors
    /// `EINVAL` for NULL.
    pub(crate) fn read(self) -> Result<Sockaddr, Errno> {
        if self.place.is_null() {
            return Err(Errno::INVAL);
        }
        // SAFETY: not NULL. Each address begins with its family.
        let family = unsafe { self.place.cast::<u16>().read_unaligned() };
        let place = self.place;
        Ok(match c_int::from(family) {
            // SAFETY: the family says that it is this type.
            libc::AF_INET => Sockaddr::V4(unsafe { place.cast::<sockaddr_in>().read_unaligned() }),
            libc::AF_INET6 => {
                // SAFETY: as above.
                let v6 = unsafe { place.cast::<sockaddr_in6>().read_unaligned() };
                Sockaddr::V6(v6)
            }
            // SAFETY: as above.
            AF_IB => Sockaddr::Ib(unsafe { place.cast::<sockaddr_ib>().read_unaligned() }),
            _ => Sockaddr::Other,
        })
    }
}
