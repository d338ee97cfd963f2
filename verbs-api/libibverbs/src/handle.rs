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
    args::{CObject, Last, Member, object_of},
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

    /// Returns whether this process has created the object.
    ///
    /// # Errors
    /// `ENODEV` for an object that the parent process created before a `fork`.
    #[inline]
    pub(crate) fn check(&self) -> Result<(), Errno> {
        if self.generation == process::generation() {
            Ok(())
        } else {
            Err(Errno::NODEV)
        }
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
        // SAFETY: programs have pointers to this type from `CHandle::create` only, whose first
        // member is the C part, in an `UnsafeCell`.
        unsafe impl $crate::args::CObject for $c {
            type Object = $crate::handle::CHandle<$part, $state>;

            #[inline]
            fn check(object: &Self::Object) -> Result<(), $crate::ffi::Errno> {
                object.check()
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
    /// Calls `close` with the state of the object. Returns false for an inherited object, because
    /// threads that do not exist in this process may hold its locks.
    ///
    /// # Errors
    /// `EINVAL` for NULL, and any error of `close`.
    fn close(&self, close: impl FnOnce(&C::State) -> Result<(), Errno>) -> Result<bool, Errno> {
        match self.handle().get() {
            Ok(object) => close(&object.inner).map(|()| true),
            Err(Errno::NODEV) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Destroys and frees the object if `close` succeeds. Leaves an inherited object alone.
    ///
    /// # Errors
    /// `EINVAL` for NULL, and any error of `close`.
    pub(crate) fn destroy(
        self,
        close: impl FnOnce(&C::State) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        if self.close(close)? {
            // SAFETY: the pointer came from `Box::into_raw` in `create`, and no thread uses the
            // object any more.
            drop(unsafe { Box::from_raw(object_of(self.as_ptr())) });
        }
        Ok(())
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
        if !self.close(close)? {
            return Ok(None);
        }
        let place = object_of(self.as_ptr());
        // SAFETY: no thread uses what is in it any more.
        unsafe { ptr::drop_in_place(place) };
        Ok(NonNull::new(place.cast()).map(|place| Memory {
            place,
            layout: Layout::new::<C::Object>(),
        }))
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
    use crate::args::{Handle, member};

    /// A C type of these tests.
    #[derive(Debug)]
    #[repr(C)]
    struct Part {
        number: u32,
    }

    objects! {
        Part: Part, Rc<Cell<u32>>;
    }

    fn create(cookie: &mut *mut Part, counter: &Rc<Cell<u32>>) -> *mut Part {
        let made = CHandle::create(|address| {
            *cookie = address;
            Ok((Part { number: 7 }, Rc::clone(counter)))
        });
        made.expect("nothing fails")
    }

    /// Ends the object with this answer of its end.
    fn end(c: *mut Part, answer: Result<(), Errno>) -> Result<(), Errno> {
        // SAFETY: the callers use an object until an end has succeeded.
        unsafe { Last::new(c) }.destroy(|_| answer)
    }

    #[test]
    fn the_cookie_is_the_address_of_the_object() {
        let (mut cookie, counter) = (ptr::null_mut(), Rc::new(Cell::new(3)));
        let c = create(&mut cookie, &counter);
        assert_eq!(c, cookie);
        // SAFETY: created above and not destroyed yet.
        let handle = unsafe { Handle::new(c) };
        assert_eq!(handle.get().expect("live object").inner().get(), 3);
        assert_eq!(handle.member(member!(Part, number)), Some(7));
        assert_eq!(end(c, Ok(())), Ok(()));
    }

    #[test]
    fn null_is_invalid_and_a_refused_end_keeps_the_object() {
        let null = Handle::<'_, Part>::NULL.get();
        assert_eq!(null.err(), Some(Errno::INVAL));

        let counter = Rc::new(Cell::new(0));
        let c = create(&mut ptr::null_mut(), &counter);
        let refused = end(c, Err(Errno::INVAL));
        assert_eq!(
            (refused, Rc::strong_count(&counter)),
            (Err(Errno::INVAL), 2)
        );
        let ended = end(c, Ok(()));
        assert_eq!((ended, Rc::strong_count(&counter)), (Ok(()), 1));
    }
}
