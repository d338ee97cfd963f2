//! The one engine of the process, `fork`, logging.
//!
//! A `fork`ed child has none of the parent's threads and shares its sockets with it, so it starts
//! with an engine of its own, made when first needed. What the parent had made is never touched
//! there: each object remembers the [`Generation`] of the process that made it.

use std::{
    ptr,
    sync::{
        Once, OnceLock,
        atomic::{AtomicPtr, AtomicU32, Ordering},
    },
};

use parking_lot::Mutex;
use rocade_emulator::{
    Engine,
    config::{ConfigError, Settings, unknown_variables},
};
use rocade_view::{CharDevices, ENV_COUNTERS, ENV_FIRST_NUMBER, Tree};
use tracing_subscriber::fmt::{format::Writer, time::FormatTime};

use crate::{
    cancel,
    channel::ChannelState,
    complaint::{self, Reason},
    context::ContextObject,
    device::DeviceObject,
    explain,
    ffi::Errno,
    import::Offers,
    late::Places,
};

/// Counts the `fork`s between the process that loaded the library and this one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Generation(u32);

static GENERATION: AtomicU32 = AtomicU32::new(0);
static STATE: AtomicPtr<State> = AtomicPtr::new(ptr::null_mut());
static AT_FORK: Once = Once::new();

/// What belongs to one process.
struct State {
    generation: Generation,
    host: OnceLock<Result<Host, (Errno, Reason)>>,
    /// What was complained of.
    said: Mutex<Vec<String>>,
    offers: Mutex<Offers>,
    channels: Mutex<Places<ChannelState>>,
    contexts: Mutex<Places<ContextObject>>,
}

/// The engine and the devices it offers.
pub(crate) struct Host {
    engine: Engine,
    devices: Vec<&'static DeviceObject>,
}

impl Host {
    /// The engine.
    pub(crate) const fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The devices in the order in which programs see them; they live as long as the process.
    pub(crate) fn devices(&self) -> &[&'static DeviceObject] {
        &self.devices
    }

    /// The files of the devices as they are now, as a view shows them.
    pub(crate) fn tree(&self) -> Tree {
        Tree::of_attributes(&self.engine.facts(), first_number())
    }
}

/// The number of the first `uverbsN`.
fn first_number() -> u32 {
    let number = std::env::var(ENV_FIRST_NUMBER).ok();
    number.and_then(|n| n.parse().ok()).unwrap_or(0)
}

impl Generation {
    /// For other libraries.
    pub(crate) const fn number(self) -> u32 {
        self.0
    }
}

/// The generation of this process.
pub(crate) fn generation() -> Generation {
    // Relaxed: only the child of a fork changes it, before any other of its threads exists.
    Generation(GENERATION.load(Ordering::Relaxed))
}

/// The engine of this process; made at the first call.
///
/// # Errors
/// The errno of the failure to configure or make it, the same at each call.
pub(crate) fn host() -> Result<&'static Host, Errno> {
    let host = state().host.get_or_init(start).as_ref();
    host.map_err(|(errno, reason)| errno.because(reason.clone()))
}

/// What can be imported in this process.
pub(crate) fn offers() -> &'static Mutex<Offers> {
    &state().offers
}

/// The completion channels of this process.
pub(crate) fn channels() -> &'static Mutex<Places<ChannelState>> {
    &state().channels
}

/// The open devices of this process.
pub(crate) fn contexts() -> &'static Mutex<Places<ContextObject>> {
    &state().contexts
}

/// What this process has complained of.
pub(crate) fn said() -> &'static Mutex<Vec<String>> {
    &state().said
}

/// The state of this process, replaced in a child. States are never freed: there is one per
/// generation, and a child must not run the destructors of its parent's.
fn state() -> &'static State {
    let current = generation();
    loop {
        let found = STATE.load(Ordering::Acquire);
        // SAFETY: only leaked boxes are stored here, so a non-NULL pointer is valid for ever.
        if let Some(state) = unsafe { found.as_ref() }
            && state.generation == current
        {
            return state;
        }
        let fresh = Box::into_raw(Box::new(State {
            generation: current,
            host: OnceLock::new(),
            said: Mutex::default(),
            offers: Mutex::default(),
            channels: Mutex::default(),
            contexts: Mutex::default(),
        }));
        let swap = STATE.compare_exchange(found, fresh, Ordering::AcqRel, Ordering::Acquire);
        if swap.is_err() {
            // SAFETY: nobody else has seen this box.
            drop(unsafe { Box::from_raw(fresh) });
        }
    }
}

fn start() -> Result<Host, (Errno, Reason)> {
    AT_FORK.call_once(|| {
        // SAFETY: the handler only increments an atomic, which is allowed in a forked child.
        let failed = unsafe { libc::pthread_atfork(None, None, Some(child_after_fork)) };
        if failed != 0 {
            tracing::warn!(
                errno = failed,
                "no fork handler: children share the parent's engine"
            );
        }
    });
    let misconfigured = |error: ConfigError| {
        let reason = Reason::new(error.to_string(), "`rocade devices` checks it");
        (Errno::INVAL, reason)
    };
    let settings = Settings::load().map_err(misconfigured)?;
    start_logging(&settings);
    let config = settings.resolve_here().map_err(misconfigured)?;
    let engine =
        Engine::new(config).map_err(|error| (Errno(error.errno()), explain::error(&error)))?;
    if let Some(dir) = std::env::var_os(ENV_COUNTERS) {
        engine.publish_counters(dir.into());
    }
    let infos = engine.devices();
    let first = first_number();
    let devices = infos
        .into_iter()
        .map(|info| DeviceObject::leak(&info, &CharDevices::numbered(first, info.index).verbs))
        .collect();
    Ok(Host { engine, devices })
}

extern "C" fn child_after_fork() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

/// Installs a subscriber on standard error with the filter that the settings ask for: without one,
/// errors only. What is misspelt is named.
fn start_logging(settings: &Settings) {
    let mut filter = settings.log();
    complaint::silence(filter);
    for unknown in unknown_variables(std::env::vars_os()) {
        complaint::warn(&unknown.text);
    }
    if let Err(error) = settings.check_log() {
        complaint::warn(&error.to_string());
        filter = None;
    }
    match tracing_subscriber::EnvFilter::try_new(filter.unwrap_or("error")) {
        Ok(parsed) => {
            let subscriber = tracing_subscriber::fmt()
                .with_env_filter(parsed)
                .with_timer(Pid)
                .with_writer(|| cancel::Stderr)
                // It would panic where standard error takes no more.
                .log_internal_errors(false)
                .finish();
            // A child inherits the subscriber of its parent.
            let _ = tracing::subscriber::set_global_default(subscriber);
        }
        Err(error) => complaint::warn(&format!(
            "log filter {}: {error}",
            filter.unwrap_or_default()
        )),
    }
}

/// The process and the time in front of each line: several processes share a terminal.
struct Pid;

impl FormatTime for Pid {
    fn format_time(&self, w: &mut Writer<'_>) -> std::fmt::Result {
        write!(w, "rocade[{}] ", std::process::id())?;
        tracing_subscriber::fmt::time::SystemTime.format_time(w)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forked_child_has_a_state_of_its_own() {
        AT_FORK.call_once(|| {
            // SAFETY: the handler only increments an atomic.
            let failed = unsafe { libc::pthread_atfork(None, None, Some(child_after_fork)) };
            assert_eq!(failed, 0);
        });
        let parent = generation();
        let inherited = ptr::from_ref(state());
        // SAFETY: the child calls only async-signal-safe code, an allocation and `_exit`.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let fresh = generation() != parent && !ptr::eq(inherited, state());
            // SAFETY: leaves the child without running any destructors.
            unsafe { libc::_exit(i32::from(!fresh)) };
        }
        assert!(pid > 0, "fork failed");
        let mut status = -1;
        // SAFETY: `pid` is our child and `status` is writable.
        let waited = unsafe { libc::waitpid(pid, &raw mut status, 0) };
        assert_eq!((waited, status), (pid, 0));
        assert_eq!(generation(), parent);
    }
}
