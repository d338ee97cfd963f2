//! Hands the records of calls to `libibverbs`.

use super::show::Outcome;
use crate::engine::ops;

/// Returns true if this process is traced.
#[inline]
pub(crate) fn is_on() -> bool {
    ops().is_ok_and(|ops| (ops.trace_is_on)())
}

/// Records the begin of a call. `arguments` appends them to a text that begins with the name.
#[inline(never)]
pub(crate) fn begin(name: &str, arguments: impl FnOnce(&mut String)) {
    let Ok(ops) = ops() else { return };
    let mut text = String::with_capacity(160);
    text.push_str(name);
    text.push('\t');
    arguments(&mut text);
    // SAFETY: a readable text.
    unsafe { (ops.trace_begin)(text.as_ptr(), text.len()) };
}

/// Records the end of the thread's last call. `more` appends what it has returned by pointers.
#[inline(never)]
pub(crate) fn end(outcome: Outcome, more: impl FnOnce(&mut String)) {
    let Ok(ops) = ops() else { return };
    let Outcome {
        failed,
        errno,
        mut text,
    } = outcome;
    if !failed {
        more(&mut text);
    }
    // SAFETY: a readable text.
    unsafe { (ops.trace_end)(failed, errno, text.as_ptr(), text.len()) };
}
