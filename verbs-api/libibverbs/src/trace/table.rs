//! The table from which traced functions are made. `libibverbs` and `librdmacm` share this file.

/// Makes a traced function per row: ABI, rule of failures, the verb, name and signature.
macro_rules! traced {
    ($(
        $abi:tt $rule:ident $path:path => $name:ident($($arg:ident: $kind:ty),*) $(-> $ret:ty)?;
    )+) => { $(
        #[allow(unused_unsafe, reason = "some verbs are no unsafe functions")]
        #[allow(clippy::too_many_arguments, reason = "as the verb")]
        pub(crate) unsafe extern $abi fn $name($($arg: $kind),*) $(-> $ret)? {
            if !is_on() {
                // SAFETY: by contract the arguments are as their types promise.
                return unsafe { $path($($crate::args::FromC::from_c($arg)),*) };
            }
            begin(stringify!($name), |_text| {
                let _first = true;
                $(
                    // SAFETY: by contract an argument of the verb.
                    let _first = unsafe {
                        $crate::trace::show::argument(stringify!($arg), &$arg, _first, _text)
                    };
                )*
            });
            // SAFETY: as above.
            let result = unsafe { $path($($crate::args::FromC::from_c($arg)),*) };
            let rule = $crate::trace::show::Rule::$rule;
            // SAFETY: the verb has filled in its results.
            let outcome = unsafe { $crate::trace::show::outcome(&result, rule) };
            end(outcome, |_text| {
                $(
                    // SAFETY: as above.
                    unsafe { $crate::trace::show::result(stringify!($arg), &$arg, rule, _text) };
                )*
            });
            result
        }
    )+ };
}
pub(super) use traced;
