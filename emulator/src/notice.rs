//! Messages to the user about what happens outside of a call.
//!
//! A program waits for an event and has no error to print. The library or the command that contains
//! the engine prints the message, if it has set a printer.

use std::sync::OnceLock;

/// A message to the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// The call that the program made, such as `rdma_connect`, or [`WARNING`].
    pub call: &'static str,
    /// The object and the cause.
    pub what: String,
    /// The remedy for the user, or an empty text.
    pub remedy: String,
}

/// Stands for the call in a message that belongs to none.
pub const WARNING: &str = "warning";

/// Stands for the call in the report of the fault rules, which is printed when the process exits.
pub const FAULT_REPORT: &str = "fault rules";

static PRINTER: OnceLock<fn(&Notice)> = OnceLock::new();

/// Sets the function that prints the messages of this process. The first call counts. The function
/// must not block, because the engine calls it, and must not call the engine.
pub fn set_printer(printer: fn(&Notice)) {
    let _ = PRINTER.set(printer);
}

/// Prints a message, or traces it if there is no printer.
pub(crate) fn say(notice: &Notice) {
    match PRINTER.get() {
        Some(printer) => printer(notice),
        None => {
            let Notice { call, what, remedy } = notice;
            tracing::warn!(call, remedy, "{what}");
        }
    }
}

/// Warns the user, in a message without a call and a remedy.
#[cold]
pub(crate) fn notice(text: &str) {
    say(&Notice {
        call: WARNING,
        what: text.to_owned(),
        remedy: String::new(),
    });
}

/// Prints the report of the fault rules, if there is a printer.
pub(crate) fn tell_faults(report: String) {
    if let Some(printer) = PRINTER.get() {
        printer(&Notice {
            call: FAULT_REPORT,
            what: report,
            remedy: String::new(),
        });
    }
}
