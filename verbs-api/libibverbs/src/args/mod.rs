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
//! | [`Handle`] | NULL, or an object of this type, which no call destroys meanwhile. No thread writes |
//! | | a member that the call reads. |
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
//! A pointer and its length are two arguments in C, and one in Rust: [`Buffer`], [`Room`],
//! [`List`], [`Places`], [`Answer`], [`Resized`], [`ResizedList`], [`Scattered`]. They are made of
//! a tuple, which a row of `trace/calls.rs`, `trace/ops.rs` or [`slot::combined`] names.
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
mod bytes;
mod chain;
mod grown;
mod list;
mod member;
mod object;
mod sized;
pub(crate) mod slot;
mod structure;
mod views;
mod zero;

pub(crate) use address::{Address, Sockaddr, address_len};
pub(crate) use bytes::{
    AnyBytes, Buffer, Bytes, Reads, Room, Writes, any_bytes, bytes_of, bytes_of_mut, gid_bytes,
};
pub(crate) use chain::{Chain, Chained, Request};
pub(crate) use list::{List, Text, array_for_c, for_c};
pub(crate) use member::{Member, member};
pub(crate) use object::{CObject, Handle, Last, New, object_of};
pub(crate) use sized::{Answer, Length, Places, Pointer, Resized, ResizedList, Scattered};
pub(crate) use structure::{In, InOut, Out, Plain, View};
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

/// Implements [`FromC`], [`IntoC`] and [`slot::Argument`] for types that are one pointer.
macro_rules! pointer {
    ($($name:ident<$life:lifetime $(, $param:ident)?>: $target:ty;)+) => { $(
        impl<$($param,)? P: Pointer<Target = $target>> FromC<P> for $name<'_ $(, $param)?> {
            #[inline]
            unsafe fn from_c(raw: P) -> Self {
                // SAFETY: same contract.
                unsafe { Self::new(raw.place()) }
            }
        }

        impl<$($param)?> IntoC<*mut $target> for $name<'_ $(, $param)?> {
            fn into_c(self) -> *mut $target {
                self.as_ptr().place()
            }
        }

        impl<$($param)?> IntoC<*const $target> for $name<'_ $(, $param)?> {
            fn into_c(self) -> *const $target {
                self.as_ptr().place()
            }
        }

        // SAFETY: the type is transparent, and has one member that is not empty, a pointer.
        unsafe impl<$($param,)? P: Pointer<Target = $target>> slot::Argument<P>
            for $name<'_ $(, $param)?> {}
    )+ };
}

pointer! {
    Address<'_>: sockaddr;
    Chain<'_, T>: T;
    Handle<'_, T>: T;
    In<'_, T>: T;
    InOut<'_, T>: T;
    Last<'_, T>: T;
    Out<'_, T>: T;
    Text<'_>: c_char;
}
