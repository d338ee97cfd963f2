//! Socket addresses of the program.

use std::{ffi::c_int, marker::PhantomData};

use libc::{sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage};
use rocade_abi::{AF_IB, sockaddr_ib};

use crate::{
    args::{Buffer, bytes_of, bytes_of_mut, zeroed},
    ffi::Errno,
};

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
        let len = address_len(family.into()).unwrap_or(0);
        // SAFETY: an address is as long as its family demands.
        let bytes = unsafe { Buffer::new(self.place.cast(), len) };
        Ok(bytes.sockaddr().unwrap_or(Sockaddr::Other))
    }
}

impl Buffer<'_> {
    /// Copies the socket address in the buffer. `None` if it is shorter than its family demands.
    pub(crate) fn sockaddr(self) -> Option<Sockaddr> {
        Some(match c_int::from(self.get::<u16>(0)?) {
            libc::AF_INET => Sockaddr::V4(self.get(0)?),
            libc::AF_INET6 => Sockaddr::V6(self.get(0)?),
            AF_IB => Sockaddr::Ib(self.get(0)?),
            _ => Sockaddr::Other,
        })
    }
}

impl Sockaddr {
    /// Returns the address in a storage. `None` for another family.
    pub(crate) fn to_storage(&self) -> Option<sockaddr_storage> {
        let bytes = match self {
            Self::V4(v4) => bytes_of(v4),
            Self::V6(v6) => bytes_of(v6),
            Self::Ib(ib) => bytes_of(ib),
            Self::Other => return None,
        };
        let mut storage: sockaddr_storage = zeroed();
        bytes_of_mut(&mut storage)[..bytes.len()].copy_from_slice(bytes);
        Some(storage)
    }
}

/// Returns the length of an address of a family.
pub(crate) const fn address_len(family: c_int) -> Option<usize> {
    match family {
        libc::AF_INET => Some(size_of::<sockaddr_in>()),
        libc::AF_INET6 => Some(size_of::<sockaddr_in6>()),
        AF_IB => Some(size_of::<sockaddr_ib>()),
        _ => None,
    }
}
