//! The functions of libc that this library wraps.

use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

/// A function of libc, which is looked up on first use. Concurrent lookups are harmless.
#[derive(Debug)]
pub(crate) struct Next {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Next {
    pub(crate) const fn new(name: &'static CStr) -> Self {
        Self {
            name,
            found: AtomicPtr::new(std::ptr::null_mut()),
        }
    }

    /// Returns the function's address, or NULL if no library behind this one has it.
    #[inline]
    pub(crate) fn address(&self) -> *mut c_void {
        let found = self.found.load(Ordering::Relaxed);
        if !found.is_null() {
            return found;
        }
        // SAFETY: a terminated name. The handle selects the libraries behind this one.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.found.store(found, Ordering::Relaxed);
        found
    }
}

/// Sets the errno of a function that the system does not have.
pub(crate) fn not_there() {
    // SAFETY: the address of this thread's errno.
    unsafe { *libc::__errno_location() = libc::ENOSYS };
}

/// Exports functions that call libc's functions of the same name with redirected paths.
///
/// `fn name(path path, int flags) -> int = -1;`: parameters marked `path` are redirected. The value
/// behind `=` is returned if libc does not have the function.
#[macro_export]
macro_rules! redirect_functions {
    (by $redirect:ident: $(
        fn $name:ident ( $($head:ident : $head_type:ty ,)* [ $path:ident ] $(, $tail:ident : $tail_type:ty)* )
            -> $result:ty = $missing:expr;
    )*) => { $(
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn $name(
            $($head: $head_type,)* $path: *const ::std::ffi::c_char $(, $tail: $tail_type)*
        ) -> $result {
            $crate::next!($name: fn($($head_type,)* *const ::std::ffi::c_char $(, $tail_type)*) -> $result, next, $missing);
            /// A separate function, because its stack frame holds a path, and a signal handler has
            /// little stack.
            #[cold]
            #[inline(never)]
            unsafe fn redirected(
                next: unsafe extern "C" fn($($head_type,)* *const ::std::ffi::c_char $(, $tail_type)*) -> $result,
                $($head: $head_type,)* $path: *const ::std::ffi::c_char $(, $tail: $tail_type)*
            ) -> $result {
                // SAFETY: the caller's contract is that of libc's function.
                unsafe {
                    let redirected = $crate::paths::$redirect($path);
                    next($($head,)* redirected.as_ptr() $(, $tail)*)
                }
            }
            // SAFETY: the caller keeps the contract of libc's function, which is the same.
            unsafe {
                if $crate::paths::may_be_ours($path) {
                    redirected(next $(, $head)*, $path $(, $tail)*)
                } else {
                    next($($head,)* $path $(, $tail)*)
                }
            }
        }
    )* };
}

/// Binds `$next` to libc's function `$name`, or returns `$missing`.
#[macro_export]
macro_rules! next {
    ($name:ident : fn($($argument:ty),* $(,)?) -> $result:ty, $next:ident, $missing:expr) => {
        static NEXT: $crate::next::Next = $crate::next::Next::new(
            match ::std::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => panic!("not a name"),
            },
        );
        let address = NEXT.address();
        if address.is_null() {
            $crate::next::not_there();
            return $missing;
        }
        // SAFETY: libc's function of this name has this type.
        let $next = unsafe {
            ::std::mem::transmute::<*mut ::std::ffi::c_void, unsafe extern "C" fn($($argument),*) -> $result>(address)
        };
    };
}
