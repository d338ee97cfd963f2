//! Functions with typed parameters as entries of function tables.

/// A parameter that C passes as a `Raw`.
///
/// # Safety
/// `Self` must be `Raw` or `repr(transparent)` over it, so that both are passed alike.
pub(crate) unsafe trait Argument<Raw> {}

/// Implements [`Argument`] for types that functions and tables declare alike.
macro_rules! plain {
    ($($kind:ty),+) => { $(
        // SAFETY: the same type.
        unsafe impl Argument<$kind> for $kind {}
    )+ };
}
plain!(bool, u8, u16, u32, u64, usize, i32, i64, isize);
// SAFETY: the same type.
unsafe impl<T> Argument<*mut T> for *mut T {}
// SAFETY: the same type.
unsafe impl<T> Argument<*const T> for *const T {}

/// Defines a conversion for each number of parameters.
macro_rules! conversions {
    ($($name:ident($($typed:ident: $raw:ident),+);)+) => { $(
        /// Converts a function to the type that a function table declares.
        #[inline]
        pub(crate) const fn $name<$($typed: Argument<$raw>, $raw,)+ R>(
            function: unsafe extern "C" fn($($typed),+) -> R,
        ) -> unsafe extern "C" fn($($raw),+) -> R {
            // SAFETY: both types are pointers to functions of the same ABI. Each parameter is
            // passed alike. The caller of an unsafe function keeps the promises of its types.
            unsafe { std::mem::transmute(function) }
        }
    )+ };
}

/// Like [`of_2`], for a cancellation point, which unwinds.
pub(crate) const fn of_2_unwind<A: Argument<RA>, RA, B: Argument<RB>, RB, R>(
    function: unsafe extern "C-unwind" fn(A, B) -> R,
) -> unsafe extern "C-unwind" fn(RA, RB) -> R {
    // SAFETY: as for the other conversions.
    unsafe { std::mem::transmute(function) }
}

conversions! {
    of_1(A: RA);
    of_2(A: RA, B: RB);
    of_3(A: RA, B: RB, C: RC);
    of_4(A: RA, B: RB, C: RC, D: RD);
    of_5(A: RA, B: RB, C: RC, D: RD, E: RE);
    of_6(A: RA, B: RB, C: RC, D: RD, E: RE, F: RF);
    of_7(A: RA, B: RB, C: RC, D: RD, E: RE, F: RF, G: RG);
}

/// Defines functions for tables, in which two arguments of C that belong together, such as a
/// pointer and its length, become one argument. The list after the name of the real function has
/// them as a tuple.
macro_rules! combined {
    ($(
        $vis:vis fn $name:ident($($arg:ident: $kind:ty),*) $(-> $ret:ty)?
            = $path:path [$($given:expr),*];
    )+) => { $(
        #[allow(unused_unsafe, reason = "the arguments decide")]
        $vis unsafe extern "C" fn $name($($arg: $kind),*) $(-> $ret)? {
            // SAFETY: by contract of the table, each argument is as its type promises. A tuple is
            // what the header of the function declares as pointer and length.
            $path($( unsafe { $crate::args::FromC::from_c($given) } ),*)
        }
    )+ };
}
pub(crate) use combined;
