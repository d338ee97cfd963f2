//! Types for the pointers that a program passes. `libibverbs` and `librdmacm` share this module.
//!
//! An exported function is a safe `extern "C" fn` whose parameters have these types. Each is one
//! pointer (`repr(transparent)`), so C calls the function as its header declares it. Rust code
//! makes a value only by an unsafe call, or from a reference, so the compiler checks the function.
//!
//! # What a type promises
//! The program promises the following to every function of the C API, for the duration of the call,
//! which is the lifetime of the type:
//!
//! | type | promise |
//! |---|---|
//! | [`Handle`] | NULL, or an object of this type, which no call destroys meanwhile |
//! | [`Last`] | like [`Handle`], and no thread uses the object after a successful call |
//! | [`In`] | NULL, or a readable structure, which no thread writes meanwhile |
//! | [`Out`] | NULL, or a place for a structure, whose content may be uninitialized |
//! | [`InOut`] | both of [`In`] and [`Out`] |
//! | [`Chain`] | NULL, or work requests that link to each other, with all that they name |
//! | [`Address`] | NULL, or a socket address as long as its family demands |
//! | [`Text`] | NULL, or a terminated string, which no thread writes meanwhile |
//!
//! A structure is aligned as its type demands. A pointer in it is a promise of its own: the
//! accessors of [`View`] (`views.rs`) return it as a [`Handle`], and only where `comp_mask` has
//! its bit. No type makes a reference to memory that another thread may write: structures are
//! copied, and results are written through the pointer.
//!
//! A function table has a raw pointer in each signature. [`slot`] converts functions for it.

#![allow(
    dead_code,
    unused_imports,
    unused_macros,
    reason = "each of the two libraries uses a part of the types"
)]

use std::ffi::c_char;

use libc::sockaddr;

mod address;
mod chain;
mod grown;
mod list;
mod member;
mod object;
pub(crate) mod slot;
mod structure;
mod views;
mod zero;

pub(crate) use address::{Address, Sockaddr};
pub(crate) use chain::{Chain, Chained, Request};
pub(crate) use list::{AnyBytes, Buffer, List, Text};
pub(crate) use member::{Member, member};
pub(crate) use object::{CObject, Handle, Last, New};
pub(crate) use structure::{In, InOut, Out, View};
pub(crate) use views::members;
pub(crate) use zero::zeroed;

/// Converts an argument from the type that C declares.
pub(crate) trait FromC<Raw> {
    /// Converts `raw`.
    ///
    /// # Safety
    /// `raw` must be as the type promises (see the [module](self)).
    unsafe fn from_c(raw: Raw) -> Self;
}

impl<T> FromC<T> for T {
    #[inline]
    unsafe fn from_c(raw: T) -> T {
        raw
    }
}

/// Converts an argument to the type that C declares.
pub(crate) trait IntoC<Raw> {
    /// Returns what C gets.
    fn into_c(self) -> Raw;
}

impl<T> IntoC<T> for T {
    fn into_c(self) -> T {
        self
    }
}

impl IntoC<*const sockaddr> for Address<'_> {
    fn into_c(self) -> *const sockaddr {
        self.as_ptr()
    }
}

/// Implements [`FromC`], [`IntoC`] and [`slot::Argument`] for types that are one pointer.
macro_rules! pointer {
    ($($name:ident <- $($raw:ident)+;)+) => { $( $(
        pointer!(@one $name, $raw);
    )+ )+ };
    (@one $name:ident, mut) => {
        pointer!(@impl $name, *mut T);
    };
    (@one $name:ident, const) => {
        pointer!(@impl $name, *const T);
    };
    (@impl $name:ident, $raw:ty) => {
        impl<T> FromC<$raw> for $name<'_, T> {
            #[inline]
            unsafe fn from_c(raw: $raw) -> Self {
                // SAFETY: same contract.
                unsafe { Self::new(raw as *mut T) }
            }
        }

        impl<T> IntoC<$raw> for $name<'_, T> {
            fn into_c(self) -> $raw {
                self.as_ptr()
            }
        }

        // SAFETY: the type is transparent, and has one member that is not empty, a pointer.
        unsafe impl<T> slot::Argument<$raw> for $name<'_, T> {}
    };
}

impl FromC<*const sockaddr> for Address<'_> {
    #[inline]
    unsafe fn from_c(raw: *const sockaddr) -> Self {
        // SAFETY: same contract.
        unsafe { Self::new(raw) }
    }
}

impl FromC<*mut sockaddr> for Address<'_> {
    #[inline]
    unsafe fn from_c(raw: *mut sockaddr) -> Self {
        // SAFETY: same contract.
        unsafe { Self::new(raw) }
    }
}

impl FromC<*const c_char> for Text<'_> {
    #[inline]
    unsafe fn from_c(raw: *const c_char) -> Self {
        // SAFETY: same contract.
        unsafe { Self::new(raw) }
    }
}

pointer! {
    Handle <- mut const;
    Last <- mut;
    In <- mut const;
    Out <- mut;
    InOut <- mut;
    Chain <- mut;
}
