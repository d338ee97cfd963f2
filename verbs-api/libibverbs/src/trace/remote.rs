//! Records of calls of `librdmacm`.

use std::ffi::c_int;

use super::{
    show::Outcome,
    sink::{begin_with, end},
};
use crate::args::{Buffer, slot::combined};

combined! {
    pub(crate) fn trace_begin(text: *const u8, len: usize) = begin_of [(text, len)];
    pub(crate) fn trace_end(failed: bool, errno: c_int, text: *const u8, len: usize)
        = end_of [failed, errno, (text, len)];
}

fn text_of(text: Buffer<'_>) -> String {
    String::from_utf8_lossy(&text.to_vec()).into_owned()
}

/// Records the begin of a call: its name, a tab and its arguments.
fn begin_of(text: Buffer<'_>) {
    begin_with(|| text_of(text));
}

/// Records the end of the thread's last call.
fn end_of(failed: bool, errno: c_int, text: Buffer<'_>) {
    let outcome = Outcome {
        failed,
        errno,
        text: text_of(text),
    };
    end(outcome, |_| ());
}
