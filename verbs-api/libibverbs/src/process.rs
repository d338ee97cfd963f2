//! The engine of the process, `fork` and logging.
//!
//! A forked child has none of the parent's threads, and shares its sockets. So the child starts an
//! engine of its own on first use. It never touches the parent's objects: each object holds the
//! [`Generation`] of the process that created it.

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
    config::{ConfigError, Settings, unknown_variables, variable},
    notice, trace,
};
use rocade_sysfs_view::{CharDevices, ENV_COUNTERS, ENV_FIRST_NUMBER, Tree};
use tracing_subscriber::{
    filter::Targets,
    fmt::{format::Writer, time::FormatTime},
    layer::SubscriberExt as _,
};

use crate::{
    cancel,
    channel::ChannelState,
    context::ContextObject,
    device::DeviceObject,
    diagnostics::{self, Reason},
    explain,
    ffi::Errno,
    import::Importable,
    late_calls::LiveObjects,
};

/// The number of `fork`s between the process that loaded the library and this one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Generation(u32);

static GENERATION: AtomicU32 = AtomicU32::new(0);
static STATE: AtomicPtr<ProcessState> = AtomicPtr::new(ptr::null_mut());
static AT_FORK: Once = Once::new();

/// The state of one process.
struct ProcessState {
    generation: Generation,
    host: OnceLock<Result<Host, (Errno, Reason)>>,
    /// The diagnostics printed so far.
    printed: Mutex<Vec<String>>,
    /// Number of failed queue pairs.
    failures: AtomicU32,
    importable: Mutex<Importable>,
    channels: Mutex<LiveObjects<ChannelState>>,
    contexts: Mutex<LiveObjects<ContextObject>>,
}

/// The engine and its devices.
pub(crate) struct Host {
    engine: Engine,
    devices: Vec<&'static DeviceObject>,
}

impl Host {
    /// Returns the engine.
    pub(crate) const fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Returns all devices by their index, including those that are removed at present. They live
    /// as long as the process.
    pub(crate) fn devices(&self) -> &[&'static DeviceObject] {
        &self.devices
    }

    /// Returns the devices of the device list, in its order.
    pub(crate) fn present_devices(&self) -> Vec<&'static DeviceObject> {
        let present = self.engine.devices();
        let is_present = |device: &&&DeviceObject| {
            let index = device.info().index;
            present.iter().any(|info| info.index == index)
        };
        self.devices.iter().filter(is_present).copied().collect()
    }

    /// Returns the current sysfs files of the devices.
    pub(crate) fn tree(&self) -> Tree {
        Tree::of_attributes(&self.engine.facts(), first_number())
    }
}

/// Returns the number of the first `uverbsN`.
fn first_number() -> u32 {
    let number = variable(ENV_FIRST_NUMBER).and_then(|n| n.into_string().ok());
    number.and_then(|n| n.parse().ok()).unwrap_or(0)
}

impl Generation {
    /// Returns the generation as a number, for other libraries.
    pub(crate) const fn number(self) -> u32 {
        self.0
    }
}

/// Returns the generation of this process.
pub(crate) fn generation() -> Generation {
    // Relaxed: only a forked child changes it, before it starts any other thread.
    Generation(GENERATION.load(Ordering::Relaxed))
}

/// Returns the engine of this process, which the first call creates.
///
/// # Errors
/// The errno of the failure to configure or create it. Every call returns the same one.
pub(crate) fn host() -> Result<&'static Host, Errno> {
    let host = state().host.get_or_init(start).as_ref();
    host.map_err(|(errno, reason)| errno.because(reason.clone()))
}

/// Returns the importable objects of this process.
pub(crate) fn importable() -> &'static Mutex<Importable> {
    &state().importable
}

/// Returns the completion channels of this process.
pub(crate) fn channels() -> &'static Mutex<LiveObjects<ChannelState>> {
    &state().channels
}

/// Returns the open devices of this process.
pub(crate) fn contexts() -> &'static Mutex<LiveObjects<ContextObject>> {
    &state().contexts
}

/// Returns the diagnostics that this process printed.
pub(crate) fn printed() -> &'static Mutex<Vec<String>> {
    &state().printed
}

/// Counts a failed queue pair. Returns the number of earlier ones.
pub(crate) fn count_failure() -> u32 {
    state().failures.fetch_add(1, Ordering::Relaxed)
}

/// Returns the state of this process, creating it in a forked child. States are never freed: there
/// is one per generation, and a child must not run destructors of its parent's objects.
fn state() -> &'static ProcessState {
    let current = generation();
    loop {
        let found = STATE.load(Ordering::Acquire);
        // SAFETY: only leaked boxes are stored here, so a non-NULL pointer is valid forever.
        if let Some(state) = unsafe { found.as_ref() }
            && state.generation == current
        {
            return state;
        }
        let fresh = Box::into_raw(Box::new(ProcessState {
            generation: current,
            host: OnceLock::new(),
            printed: Mutex::default(),
            failures: AtomicU32::new(0),
            importable: Mutex::default(),
            channels: Mutex::default(),
            contexts: Mutex::default(),
        }));
        let swap = STATE.compare_exchange(found, fresh, Ordering::AcqRel, Ordering::Acquire);
        if swap.is_err() {
            // SAFETY: no other thread has seen this box.
            drop(unsafe { Box::from_raw(fresh) });
        }
    }
}

/// Counts the forks of this process from now on.
pub(crate) fn watch_forks() {
    AT_FORK.call_once(|| {
        // SAFETY: the handler only increments an atomic, which is allowed in a forked child.
        let failed = unsafe { libc::pthread_atfork(None, None, Some(child_after_fork)) };
        if failed != 0 {
            tracing::warn!(
                errno = failed,
                "failed to register a fork handler: a forked child would use the parent's engine"
            );
        }
    });
}

fn start() -> Result<Host, (Errno, Reason)> {
    watch_forks();
    let misconfigured = |error: ConfigError| {
        let remedy = match error.remedy() {
            "" => "`rocade devices` checks it",
            remedy => remedy,
        };
        (Errno::INVAL, Reason::new(error.to_string(), remedy))
    };
    let settings = Settings::load().map_err(misconfigured)?;
    start_logging(&settings);
    rocade_emulator::report_failures_to(diagnostics::explain_failure);
    let config = settings.resolve_here().map_err(misconfigured)?;
    let engine =
        Engine::new(config).map_err(|error| (Errno(error.errno()), explain::error(&error)))?;
    if let Some(dir) = variable(ENV_COUNTERS) {
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
    trace::forget_after_fork();
}

/// Installs a log subscriber on standard error, with the filter of the settings. The default filter
/// is `error`. Warns of unknown settings and invalid filters.
fn start_logging(settings: &Settings) {
    diagnostics::silence(settings.log());
    notice::set_printer(diagnostics::print_notice);
    for unknown in unknown_variables(std::env::vars_os()) {
        diagnostics::warn(&unknown.text);
    }
    let filter = settings.log_filter().unwrap_or_else(|error| {
        diagnostics::warn(&error.to_string());
        None
    });
    let filter = filter.unwrap_or_default();
    let targets = Targets::new()
        .with_default(filter.default_level())
        .with_targets(filter.targets().iter().cloned());
    let subscriber = tracing_subscriber::fmt()
        // Without it, each trace that the targets refuse would cost more than one comparison.
        .with_max_level(filter.max_level())
        .with_timer(Pid)
        .with_writer(|| cancel::Stderr)
        // Another crate of the same program may ask for colours.
        .with_ansi(false)
        // An internal error message would panic if standard error is full or closed.
        .log_internal_errors(false)
        .finish()
        .with(targets);
    // A child inherits the subscriber of its parent.
    let _ = tracing::subscriber::set_global_default(subscriber);
}

/// Puts the process ID and the time in front of each line, because several processes share a
/// terminal.
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
        // SAFETY: `pid` is a child of this process and `status` is writable.
        let waited = unsafe { libc::waitpid(pid, &raw mut status, 0) };
        assert_eq!((waited, status), (pid, 0));
        assert_eq!(generation(), parent);
    }
}
