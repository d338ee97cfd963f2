//! The table from which traced functions are made. `libibverbs` and `librdmacm` share this file.

/// Makes a traced function per row: ABI, rule of failures, the verb, name and signature.
///
/// Between verb and name, a row may have a list of the verb's arguments. Two arguments of C that
/// belong together, such as a pointer and its length, are a tuple there, which becomes one
/// argument.
macro_rules! traced {
    ($(
        $abi:tt $rule:ident $path:path $([$($given:expr),*])?
            => $name:ident($($arg:ident: $kind:ty),*) $(-> $ret:ty)?;
    )+) => { $(
        #[allow(unused_unsafe, reason = "some verbs are no unsafe functions")]
        #[allow(clippy::too_many_arguments, reason = "as the verb")]
        pub(crate) unsafe extern $abi fn $name($($arg: $kind),*) $(-> $ret)? {
            if !is_on() {
                return $crate::trace::table::call!(
                    $path, [$($arg),*], $([$($given),*])?
                );
            }
            begin(stringify!($name), |_text| {
                let _first = true;
                $(
                    // SAFETY: by contract an argument of the verb.
                    let value = unsafe { $crate::trace::show::Shown::new(&$arg) };
                    let _first =
                        $crate::trace::show::argument(stringify!($arg), value, _first, _text);
                )*
            });
            let result = $crate::trace::table::call!($path, [$($arg),*], $([$($given),*])?);
            let rule = $crate::trace::show::Rule::$rule;
            // SAFETY: the verb has filled in its results.
            let outcome = unsafe { $crate::trace::show::outcome(&result, rule) };
            end(outcome, |_text| {
                $(
                    // SAFETY: as above.
                    let value = unsafe { $crate::trace::show::Done::of(&$arg, rule) };
                    $crate::trace::show::result(stringify!($arg), value, _text);
                )*
            });
            result
        }
    )+ };
}
pub(super) use traced;

/// Calls a verb with the arguments of a row, or with those that are given instead.
macro_rules! call {
    ($path:path, [$($arg:expr),*], [$($given:expr),*]) => {
        $crate::trace::table::call!($path, [$($given),*],)
    };
    ($path:path, [$($arg:expr),*],) => {
        // SAFETY: by contract of the exported function, each argument is as its type promises. A
        // tuple is what the header of the function declares as pointer and length.
        unsafe { $path($($crate::args::FromC::from_c($arg)),*) }
    };
}
pub(super) use call;
