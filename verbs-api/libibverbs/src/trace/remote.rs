//! Records of calls of `librdmacm`.

use std::{ffi::c_int, slice};

use super::{
    show::Outcome,
    sink::{begin_with, end},
};

/// # Safety
/// `text` must be readable.
unsafe fn text_of(text: *const u8, len: usize) -> String {
    // SAFETY: same contract.
    let bytes = unsafe { slice::from_raw_parts(text, len) };
    String::from_utf8_lossy(bytes).into_owned()
}

/// Records the begin of a call: its name, a tab and its arguments.
pub(crate) unsafe extern "C" fn trace_begin(text: *const u8, len: usize) {
    // SAFETY: by contract readable.
    begin_with(|| unsafe { text_of(text, len) });
}

/// Records the end of the thread's last call.
pub(crate) unsafe extern "C" fn trace_end(failed: bool, errno: c_int, text: *const u8, len: usize) {
    let outcome = Outcome {
        failed,
        errno,
        // SAFETY: by contract readable.
        text: unsafe { text_of(text, len) },
    };
    end(outcome, |_| ());
}
