//! Warnings for the user of a program, which the library prints whatever the log level.

use std::sync::OnceLock;

static HANDLER: OnceLock<fn(&str)> = OnceLock::new();

/// Sets the function that prints warnings. The first one counts. Without one they go to the log.
pub fn handle_notices(handler: fn(&str)) {
    HANDLER.get_or_init(|| handler);
}

/// Warns the user. The caller says it once.
#[cold]
pub(crate) fn notice(text: &str) {
    match HANDLER.get() {
        Some(handler) => handler(text),
        None => tracing::warn!("{text}"),
    }
}
