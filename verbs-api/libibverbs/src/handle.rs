//! A C object followed by the emulator's handle.

use std::{
    alloc::{self, Layout},
    cell::UnsafeCell,
    ffi::c_void,
    mem::{self, MaybeUninit},
    ptr::{self, NonNull},
};

use rocade_abi::ibv_qp_ex;

use crate::{
    args::{CObject, Last, Member},
    ffi::Errno,
    process,
    qp::QpObject,
};

/// The object behind a pointer to a C object of type `C`.
///
/// The program reads and writes the C part directly, so Rust code accesses it only through raw
/// pointers. The rest is private to this library.
#[repr(C)]
pub(crate) struct CHandle<C, R> {
    c: UnsafeCell<C>,
    /// The member that newer headers have after the structure: a function, or NULL.
    newer_op: UnsafeCell<*const c_void>,
    generation: process::Generation,
    inner: R,
}

/// Asserts that `wr_flush` of newer headers follows `wr_atomic_write`, the last member in Rocade's
/// headers. The mutex in front of them has 40 bytes on x86-64, and 48 on AArch64.
//= WRX-12
const _: () = {
    let last = 304 + size_of::<libc::pthread_mutex_t>();
    assert!(mem::offset_of!(ibv_qp_ex, wr_atomic_write) == last);
    assert!(mem::offset_of!(QpObject, newer_op) == last + 8);
};

/// The memory of a destroyed object.
pub(crate) struct Memory {
    place: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the memory is uninitialized, and only this value frees it.
unsafe impl Send for Memory {}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: it came from a box of this layout, whose content was dropped.
        unsafe { alloc::dealloc(self.place.as_ptr(), self.layout) };
    }
}

impl<C, R> CHandle<C, R> {
    /// Creates an object. `build` gets the address that the C object will have, for use as a
    /// cookie.
    pub(crate) fn create(
        build: impl FnOnce(*mut C) -> Result<(C, R), Errno>,
    ) -> Result<*mut C, Errno> {
        let mut place: Box<MaybeUninit<Self>> = Box::new_uninit();
        let address = place.as_mut_ptr();
        // `c` is the first member of a repr(C) structure, so both have the same address.
        let (c, inner) = build(address.cast())?;
        place.write(Self {
            c: UnsafeCell::new(c),
            newer_op: UnsafeCell::new(ptr::null()),
            generation: process::generation(),
            inner,
        });
        Ok(Box::into_raw(place).cast())
    }

    /// Returns the object behind `c`.
    ///
    /// # Errors
    /// `EINVAL` for NULL, `ENODEV` for an object that the parent process created before a `fork`.
    ///
    /// # Safety
    /// `c` must be NULL or come from [`Self::create`] of the same type, and not be destroyed during
    /// `'a`. As in any C API, the program guarantees that.
    pub(crate) unsafe fn borrow<'a>(c: *mut C) -> Result<&'a Self, Errno> {
        if c.is_null() {
            return Err(Errno::INVAL);
        }
        // SAFETY: `create` returned this pointer, so by contract it points at a live `Self`. All
        // parts that the program may write are inside `UnsafeCell`.
        let handle = unsafe { &*c.cast::<Self>() };
        if handle.generation == process::generation() {
            Ok(handle)
        } else {
            Err(Errno::NODEV)
        }
    }

    /// Destroys and frees the object if `close` succeeds. Leaves an inherited object alone, because
    /// threads that do not exist in this process may hold its locks.
    ///
    /// # Errors
    /// `EINVAL` for NULL, and any error of `close`.
    ///
    /// # Safety
    /// As for [`Self::borrow`]. After success, `c` must not be used any more.
    pub(crate) unsafe fn destroy(
        c: *mut C,
        close: impl FnOnce(&R) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        // SAFETY: same contract.
        let handle = match unsafe { Self::borrow(c) } {
            Ok(handle) => handle,
            Err(Errno::NODEV) => return Ok(()),
            Err(error) => return Err(error),
        };
        close(&handle.inner)?;
        // SAFETY: the pointer came from `Box::into_raw` in `create`, and by contract this is the
        // last use of it.
        drop(unsafe { Box::from_raw(c.cast::<Self>()) });
        Ok(())
    }

    /// Like [`Self::destroy`], but the returned value keeps the memory allocated. Returns `None`
    /// for an inherited object.
    ///
    /// # Errors
    /// As for [`Self::destroy`].
    ///
    /// # Safety
    /// As for [`Self::destroy`].
    pub(crate) unsafe fn destroy_keeping_memory(
        c: *mut C,
        close: impl FnOnce(&R) -> Result<(), Errno>,
    ) -> Result<Option<Memory>, Errno> {
        // SAFETY: same contract.
        let handle = match unsafe { Self::borrow(c) } {
            Ok(handle) => handle,
            Err(Errno::NODEV) => return Ok(None),
            Err(error) => return Err(error),
        };
        close(&handle.inner)?;
        let place = c.cast::<Self>();
        // SAFETY: by contract this is the last use of what is in it.
        unsafe { ptr::drop_in_place(place) };
        Ok(NonNull::new(place.cast()).map(|place| Memory {
            place,
            layout: Layout::new::<Self>(),
        }))
    }

    /// Returns the C part, which may only be accessed through the raw pointer.
    pub(crate) const fn c(&self) -> *mut C {
        self.c.get()
    }

    /// Sets the function that newer headers have after the structure.
    ///
    /// # Safety
    /// The caller must have the only pointer to the object.
    pub(crate) unsafe fn set_newer_op(&self, function: *const c_void) {
        // SAFETY: same contract.
        unsafe { self.newer_op.get().write(function) };
    }

    /// Reads a member of the C part.
    pub(crate) fn member<T: Copy>(&self, member: Member<C, T>) -> T {
        // SAFETY: the member is in the C part, which is alive. The program does not write it
        // during a call.
        unsafe { member.of(self.c.get()).read() }
    }

    /// Writes a member of the C part.
    pub(crate) fn set_member<T: Copy>(&self, member: Member<C, T>, value: T) {
        // SAFETY: the member is in the C part, which is alive. The program must not use it in
        // another thread during the call, which documents the write.
        unsafe { member.of(self.c.get()).write(value) };
    }

    /// Returns the Rust part.
    pub(crate) const fn inner(&self) -> &R {
        &self.inner
    }
}

/// Declares the C types whose objects are [`CHandle`]s, each with its C part and its Rust state.
macro_rules! objects {
    ($($c:ty: $part:ty, $state:ty;)+) => { $(
        // SAFETY: programs have pointers to this type from `CHandle::create` only.
        unsafe impl $crate::args::CObject for $c {
            type Object = $crate::handle::CHandle<$part, $state>;

            #[inline]
            unsafe fn borrow<'a>(
                c: *mut Self,
            ) -> Result<&'a Self::Object, $crate::ffi::Errno> {
                // SAFETY: same contract.
                unsafe { $crate::handle::CHandle::borrow(c.cast()) }
            }
        }

        impl $crate::handle::Boxed for $c {
            type Part = $part;
            type State = $state;
        }
    )+ };
}
pub(crate) use objects;

/// A C type whose objects are [`CHandle`]s.
pub(crate) trait Boxed: CObject<Object = CHandle<Self::Part, Self::State>> {
    /// The C part, which begins with the C type.
    type Part: 'static;
    /// The Rust state.
    type State: 'static;
}

impl<C: Boxed> Last<'_, C> {
    /// Destroys and frees the object if `close` succeeds. Leaves an inherited object alone.
    ///
    /// # Errors
    /// `EINVAL` for NULL, and any error of `close`.
    pub(crate) fn destroy(
        self,
        close: impl FnOnce(&C::State) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        // SAFETY: NULL or a live object, which no thread uses after success.
        unsafe { CHandle::<C::Part, C::State>::destroy(self.as_ptr().cast(), close) }
    }

    /// Like [`Self::destroy`], but the returned value keeps the memory allocated. Returns `None`
    /// for an inherited object.
    ///
    /// # Errors
    /// As for [`Self::destroy`].
    pub(crate) fn destroy_keeping_memory(
        self,
        close: impl FnOnce(&C::State) -> Result<(), Errno>,
    ) -> Result<Option<Memory>, Errno> {
        // SAFETY: as for `destroy`.
        unsafe { CHandle::<C::Part, C::State>::destroy_keeping_memory(self.as_ptr().cast(), close) }
    }
}

/// C programs use objects from any thread, so the emulator's handles must allow that. The state of
/// a polling session or a batch has a lock of its own.
const _: () = {
    const fn shared<T: Send + Sync>() {}
    shared::<rocade_emulator::Context>();
    shared::<rocade_emulator::Pd>();
    shared::<rocade_emulator::Mr>();
    shared::<rocade_emulator::CompChannel>();
    shared::<rocade_emulator::Cq>();
    shared::<rocade_emulator::Qp>();
    shared::<rocade_emulator::Ah>();
    shared::<rocade_emulator::Srq>();
};

impl<C, R> std::fmt::Debug for CHandle<C, R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CHandle")
            .field("generation", &self.generation)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, rc::Rc};

    use super::*;

    #[test]
    fn the_cookie_is_the_address_of_the_object() {
        let mut cookie = ptr::null_mut::<u32>();
        let c = CHandle::create(|address| {
            cookie = address;
            Ok((7u32, "inner"))
        })
        .expect("nothing fails");
        assert_eq!(c, cookie);
        // SAFETY: created above and not destroyed yet.
        let handle = unsafe { CHandle::<u32, &str>::borrow(c) }.expect("live object");
        assert_eq!(*handle.inner(), "inner");
        // SAFETY: the C part is live, and only this test uses it.
        assert_eq!(unsafe { *handle.c() }, 7);
        // SAFETY: last use.
        let destroyed = unsafe { CHandle::<u32, &str>::destroy(c, |_| Ok(())) };
        assert_eq!(destroyed, Ok(()));
    }

    #[test]
    fn null_is_invalid_and_a_refused_end_keeps_the_object() {
        // SAFETY: NULL is allowed.
        let null = unsafe { CHandle::<u32, Rc<Cell<u32>>>::borrow(ptr::null_mut()) };
        assert_eq!(null.err(), Some(Errno::INVAL));

        let counter = Rc::new(Cell::new(0));
        let c = CHandle::create(|_| Ok((0u32, Rc::clone(&counter)))).expect("nothing fails");
        // SAFETY: created above and not destroyed yet.
        let refused = unsafe { CHandle::<u32, Rc<Cell<u32>>>::destroy(c, |_| Err(Errno::INVAL)) };
        assert_eq!(
            (refused, Rc::strong_count(&counter)),
            (Err(Errno::INVAL), 2)
        );
        // SAFETY: the refusal kept it alive. Last use.
        let ended = unsafe { CHandle::<u32, Rc<Cell<u32>>>::destroy(c, |_| Ok(())) };
        assert_eq!((ended, Rc::strong_count(&counter)), (Ok(()), 1));
    }
}
