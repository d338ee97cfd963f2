//! Writes the records of calls, and the table from which traced functions are made.

use std::{io, sync::Once};

use rocade_emulator::{
    config::variable,
    trace::{self, ENV_TRACE_DIR, Kind},
};

use super::show::Outcome;
use crate::{cancel::uncancelled, ffi::set_errno, process};

static REPORTED: Once = Once::new();

/// Returns true if this process is traced. Decides it in the first call.
#[inline]
pub(crate) fn is_on() -> bool {
    if trace::is_undecided() {
        decide();
    }
    trace::is_on()
}

#[cold]
fn decide() {
    kept(|| {
        process::watch_forks();
        let Some(dir) = variable(ENV_TRACE_DIR).filter(|dir| !dir.is_empty()) else {
            trace::forgo();
            return;
        };
        if let Err(error) = trace::start(dir.as_ref()) {
            REPORTED.call_once(|| {
                crate::diagnostics::warn(&format!("failed to trace this process: {error}"));
            });
        }
    });
}

/// Runs `f` uncancelled, and restores errno.
pub(super) fn kept<T>(f: impl FnOnce() -> T) -> T {
    let before = io::Error::last_os_error().raw_os_error().unwrap_or(0);
    let result = uncancelled(f);
    set_errno(before);
    result
}

/// Records the begin of a call. `arguments` appends them to a text that begins with the name.
#[inline(never)]
pub(crate) fn begin(name: &str, arguments: impl FnOnce(&mut String)) {
    begin_with(|| {
        let mut text = String::with_capacity(160);
        text.push_str(name);
        text.push('\t');
        arguments(&mut text);
        text
    });
}

/// Records the begin of a call: its name, a tab and its arguments.
pub(super) fn begin_with(text: impl FnOnce() -> String) {
    kept(|| trace::write(Kind::Enter, &[], &text()));
}

/// Records the end of the thread's last call. `more` appends what it has returned by pointers.
#[inline(never)]
pub(crate) fn end(outcome: Outcome, more: impl FnOnce(&mut String)) {
    kept(|| {
        let Outcome {
            failed,
            errno,
            mut text,
        } = outcome;
        if !failed {
            more(&mut text);
        }
        trace::write(
            Kind::Exit,
            &[u64::from(failed), u64::from(errno.unsigned_abs())],
            &text,
        );
    });
}

/// Records a call of a function that Rocade does not offer.
#[cold]
pub(crate) fn unsupported(name: &str) {
    if is_on() {
        begin(name, |text| text.push_str(".."));
        let outcome = Outcome {
            failed: true,
            errno: libc::EOPNOTSUPP,
            text: "unsupported".to_owned(),
        };
        end(outcome, |_| ());
    }
}
