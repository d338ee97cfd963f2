//! Records of calls of the other libraries.

use std::ffi::c_int;

use super::{
    show::Outcome,
    sink::{self, begin_with, end},
};
use crate::args::{Buffer, slot::combined};

combined! {
    pub(crate) fn trace_begin(text: *const u8, len: usize) = begin_of [(text, len)];
    pub(crate) fn trace_end(failed: bool, errno: c_int, text: *const u8, len: usize)
        = end_of [failed, errno, (text, len)];
    pub(crate) fn trace_unsupported(name: *const u8, len: usize) = unsupported_of [(name, len)];
}

fn text_of(text: Buffer<'_>) -> String {
    String::from_utf8_lossy(&text.to_vec()).into_owned()
}

/// Records the begin of a call: its name, a tab and its arguments.
fn begin_of(text: Buffer<'_>) {
    begin_with(|| text_of(text));
}

/// Records a call of a function that Rocade does not offer.
fn unsupported_of(name: Buffer<'_>) {
    sink::unsupported(&text_of(name));
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
