//! Prints on standard error why a verb fails, which an errno cannot express.
//!
//! [`record`] and [`Errno::because`] store the reason where an error becomes an errno. [`emit`],
//! called by `ffi`, prints it where the errno leaves the library: the verb, the queue pair, the
//! reason, the remedy. Each reason of a verb is printed once per process. `ROCADE_LOG=off` silences
//! all of it.

use std::{
    cell::RefCell,
    fmt::Write as _,
    io, ptr,
    sync::{
        OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use rocade_emulator::{
    FailureReport, PostError, Qp, VerbsError,
    cm::CmEvent,
    config::{ENV_LOG, variable},
    notice::{FAULT_REPORT, Notice},
};

use crate::{explain, explain_event, explain_failure, ffi::Errno, process};

/// The most reasons that one process prints.
const MAX_REASONS: usize = 20;

/// The most failed queue pairs that one process explains.
const MAX_FAILURES: u32 = 20;

/// Functions that programs call to test whether something exists. Their "does not exist" is not
/// printed.
const PROBES: [&str; 3] = ["query_", "set_ece", "read_sysfs_file"];

/// The public names of functions that share an implementation or have an internal name.
const ALIASES: [(&str, &str); 3] = [
    ("reg_mr_iova2", "ibv_reg_mr"),
    ("query_port_slot", "ibv_query_port"),
    ("with_batch", "ibv_wr_start"),
];

/// The beginnings of names that are public without the prefix `ibv_`.
const OTHER_PREFIXES: [&str; 6] = [
    "rdma_", "mlx5dv_", "efadv_", "verbs_", "_verbs_", "execute_",
];

/// The cause of a failure, and its remedy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Reason {
    /// The cause, without the number of the object, so that it is printed once for all objects.
    pub(crate) what: String,
    /// The remedy, or empty.
    pub(crate) advice: String,
}

impl Reason {
    pub(crate) fn new(what: impl Into<String>, advice: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            advice: advice.into(),
        }
    }
}

/// The reason noted for an errno that has not left the library yet.
struct PendingReason {
    errno: Errno,
    object: String,
    detail: Detail,
}

enum Detail {
    /// Formatted only when it is printed, which is rare.
    Error(VerbsError),
    Explained(Reason),
}

thread_local! {
    static PENDING: RefCell<Option<PendingReason>> = const { RefCell::new(None) };
}

/// Notes `error` as the reason for `errno`. Ignores expected errors: an empty event queue, a full
/// send queue.
pub(crate) fn record(errno: Errno, error: VerbsError) {
    if !is_ordinary(&error) {
        keep(errno, Detail::Error(error));
    }
}

const fn is_ordinary(error: &VerbsError) -> bool {
    matches!(
        error,
        VerbsError::WouldBlock | VerbsError::NoData | VerbsError::Post(PostError::QueueFull)
    )
}

fn keep(errno: Errno, detail: Detail) {
    let pending = PendingReason {
        errno,
        object: String::new(),
        detail,
    };
    // Destructors of an ending thread may call verbs after its thread-local storage is gone.
    let _ = PENDING.try_with(|place| place.replace(Some(pending)));
}

impl Errno {
    /// Notes `reason` for this errno, and returns it.
    pub(crate) fn because(self, reason: Reason) -> Self {
        keep(self, Detail::Explained(reason));
        self
    }

    /// Adds the number and the state of `qp` to the reason noted for this errno of a refused work
    /// request, and returns it. The caller must hold no lock of the QP.
    pub(crate) fn of_post(self, qp: &Qp, is_send: bool) -> Self {
        if is_expected("post_", self) {
            return self;
        }
        let pending = PENDING.try_with(RefCell::take).ok().flatten();
        match pending.map(|pending| pending.detail) {
            Some(Detail::Error(error)) => {
                let reason = explain::post_error(qp.state(), is_send, &error);
                keep(self, Detail::Explained(reason));
            }
            Some(printed) => keep(self, printed),
            None => {}
        }
        self.of_qp(qp, ":")
    }

    /// Adds the number of `qp` and `separator` to the reason noted for this errno, and returns it.
    pub(crate) fn of_qp(self, qp: &Qp, separator: &str) -> Self {
        let _ = PENDING.try_with(|place| {
            if let Some(pending) = place.borrow_mut().as_mut() {
                pending.object = format!("QP {:#08x}{separator} ", qp.qp_num().get());
            }
        });
        self
    }
}

/// Prints why the verb whose closure has the type name `closure` fails with `errno`.
#[cold]
pub(crate) fn emit(closure: &str, errno: Errno) {
    let pending = PENDING.try_with(RefCell::take).ok().flatten();
    let name = function_name(closure);
    if is_expected(name, errno) || is_silenced() {
        return;
    }
    let verb = verb_name(name);
    // A reason with another errno is from a failure that the verb handled.
    let pending = pending.filter(|pending| pending.errno == errno);
    let (object, reason) = match pending {
        Some(PendingReason { object, detail, .. }) => match detail {
            Detail::Error(error) => (object, explain::error(&error)),
            Detail::Explained(reason) => (object, reason),
        },
        None => (String::new(), explain::errno(errno)),
    };
    print_reason(&verb, &object, &reason);
}

/// Returns the function's name from the type name of its closure, such as
/// `ibverbs::cq::poll_cq::{{closure}}`. Strips the prefix `ibv_`, or `_ibv_` of what an inline
/// function calls.
fn function_name(closure: &str) -> &str {
    let mut parts = closure.rsplit("::");
    let name = parts.find(|part| !part.starts_with('{')).unwrap_or(closure);
    let stripped = name.strip_prefix("_ibv_");
    stripped
        .or_else(|| name.strip_prefix("ibv_"))
        .unwrap_or(name)
}

/// Returns the public name of the function.
fn verb_name(name: &str) -> String {
    let alias = ALIASES.iter().find(|(own, _)| *own == name);
    match alias {
        Some((_, known)) => (*known).to_owned(),
        None if OTHER_PREFIXES.iter().any(|prefix| name.starts_with(prefix)) => name.to_owned(),
        None => format!("ibv_{name}"),
    }
}

/// Returns true if this failure of the function is expected, and so not printed.
fn is_expected(name: &str, Errno(code): Errno) -> bool {
    match code {
        libc::ENOMEM => name.starts_with("post_") || name.starts_with("wr_"),
        libc::EAGAIN | libc::EINTR => matches!(
            name,
            "get_cq_event" | "get_async_event" | "rdma_get_cm_event"
        ),
        libc::EOPNOTSUPP | libc::ENODATA | libc::ENOENT => {
            PROBES.iter().any(|probe| name.starts_with(probe))
        }
        // Programs call it to test whether a QP has builders.
        libc::EINVAL => name == "qp_to_qp_ex",
        _ => false,
    }
}

/// Prints a message of the engine, unless that would block: the engine has work to do.
pub(crate) fn print_notice(notice: &Notice) {
    if !is_silenced() && takes_text() {
        let Notice { call, what, remedy } = notice;
        if *call == FAULT_REPORT {
            return print(&format!("{call}: {what}"));
        }
        print_reason(call, "", &Reason::new(what, remedy));
    }
}

/// Prints a line once per process.
pub(crate) fn print_reason(verb: &str, object: &str, reason: &Reason) {
    let key = format!("{verb}: {}", reason.what);
    let mut printed = process::printed().lock();
    if printed.len() >= MAX_REASONS || printed.contains(&key) {
        return;
    }
    printed.push(key);
    let last = printed.len() == MAX_REASONS;
    drop(printed);
    let mut text = format!("{verb}: {object}{}", reason.what);
    if !reason.advice.is_empty() {
        // Writing to a String cannot fail.
        let _ = write!(text, "\n  {}", reason.advice);
    }
    if last {
        text.push_str("\n  further reasons of this process are not shown");
    }
    print(&text);
}

/// Prints why a connection could not be made. Does nothing for other events.
pub(crate) fn explain_event(event: &CmEvent) {
    if let Some((call, object, reason)) = explain_event::event(event)
        && !is_silenced()
    {
        print_reason(call, &object, &reason);
    }
}

/// Prints the first failure of a queue pair. Called by any thread, with locks of the engine held.
pub(crate) fn explain_failure(report: &FailureReport<'_>) {
    if is_silenced() {
        return;
    }
    let number = process::count_failure();
    if number >= MAX_FAILURES {
        return;
    }
    let reason = explain_failure::failure(report);
    let mut text = format!("QP {:#08x}: {}", report.qp_num.get(), reason.what);
    if !reason.advice.is_empty() {
        // Writing to a String cannot fail.
        let _ = write!(text, "\n  {}", reason.advice);
    }
    if number + 1 == MAX_FAILURES {
        text.push_str("\n  further failed queue pairs of this process are not shown");
    }
    if takes_text() {
        print(&text);
    }
}

/// Returns true if standard error takes a line without blocking.
fn takes_text() -> bool {
    let mut poll = libc::pollfd {
        fd: 2,
        events: libc::POLLOUT,
        revents: 0,
    };
    let now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let no_mask = ptr::null::<libc::sigset_t>();
    // SAFETY: one entry and a time, both on the stack. The kernel changes neither's lifetime. The C
    // library's poll(2) would be a cancellation point.
    let ready = unsafe {
        libc::syscall(
            libc::SYS_ppoll,
            &raw mut poll,
            1usize,
            &raw const now,
            no_mask,
            0usize,
        )
    };
    // A pipe without a reader has POLLERR as well. Writing to it would end the program.
    ready == 1 && poll.revents == libc::POLLOUT
}

/// Prints a warning, unless diagnostics are silenced.
pub(crate) fn warn(text: &str) {
    if !is_silenced() {
        print(&format!("warning: {text}"));
    }
}

/// Writes `text` to standard error with one system call, after `rocade` and the process ID.
fn print(text: &str) {
    let line = format!("rocade[{}]: {text}\n", std::process::id());
    // SAFETY: the buffer has that length. The C library's write(2) would be a cancellation point,
    // which verbs that do not block must not be.
    let _ = unsafe { libc::syscall(libc::SYS_write, 2, line.as_ptr(), line.len()) };
}

/// Prints that the library does not offer `function`, and sets `errno`.
pub(crate) fn unsupported(function: &str) {
    let errno = Errno::OPNOTSUPP;
    crate::trace::sink::unsupported(function);
    emit(function, errno);
    crate::ffi::set_errno(errno.0);
}

static SILENCED: AtomicBool = AtomicBool::new(false);

/// Sets whether the log filter of the settings is `off`.
pub(crate) fn silence(filter: Option<&str>) {
    SILENCED.store(filter.is_some_and(is_off), Ordering::Relaxed);
}

fn is_off(filter: &str) -> bool {
    filter.trim().eq_ignore_ascii_case("off")
}

/// Returns true if diagnostics are off. The variable also counts before the settings are read, or
/// if that fails.
fn is_silenced() -> bool {
    static BY_VARIABLE: OnceLock<bool> = OnceLock::new();
    let by_variable = || {
        let value = variable(ENV_LOG);
        value.is_some_and(|value| value.to_str().is_some_and(is_off))
    };
    SILENCED.load(Ordering::Relaxed) || *BY_VARIABLE.get_or_init(by_variable)
}

/// Returns the system's text for this errno.
pub(crate) fn name_of(Errno(code): Errno) -> String {
    io::Error::from_raw_os_error(code).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verbs_are_named_as_programs_know_them() {
        for (closure, verb) in [
            ("ibverbs::qp::ibv_modify_qp::{{closure}}", "ibv_modify_qp"),
            ("ibverbs::post::post_send::{{closure}}", "ibv_post_send"),
            (
                "ibverbs::wr_build::wr_complete::{{closure}}",
                "ibv_wr_complete",
            ),
            (
                "ibverbs::mr::ibv_reg_mr_iova2::{{closure}}::{{closure}}",
                "ibv_reg_mr",
            ),
            (
                "ibverbs::query::query_port_slot::{{closure}}",
                "ibv_query_port",
            ),
            ("ibv_create_srq", "ibv_create_srq"),
            ("ibverbs::cm::rdma_create_id::{{closure}}", "rdma_create_id"),
            (
                "ibverbs::dv::mkey::mlx5dv_create_mkey::{{closure}}",
                "mlx5dv_create_mkey",
            ),
            (
                "ibverbs::efa::efadv_create_comp_cntr::{{closure}}",
                "efadv_create_comp_cntr",
            ),
            (
                "ibverbs::exp::send::exp_post_send::{{closure}}",
                "ibv_exp_post_send",
            ),
            ("_ibv_query_gid_ex", "ibv_query_gid_ex"),
            ("verbs_open_device", "verbs_open_device"),
            (
                "_verbs_init_and_alloc_context",
                "_verbs_init_and_alloc_context",
            ),
        ] {
            assert_eq!(verb_name(function_name(closure)), verb);
        }
    }

    #[test]
    fn the_name_of_a_closure_is_that_of_its_function() {
        fn name<F: FnOnce()>(_: F) -> &'static str {
            std::any::type_name::<F>()
        }
        assert_eq!(
            function_name(name(|| ())),
            "the_name_of_a_closure_is_that_of_its_function"
        );
    }

    #[test]
    fn what_programs_do_every_day_is_quiet() {
        let quiet = |verb, code| is_expected(function_name(verb), Errno(code));
        assert!(quiet("ibv_get_cq_event", libc::EAGAIN));
        assert!(quiet("ibv_post_send", libc::ENOMEM));
        assert!(quiet("ibv_wr_complete", libc::ENOMEM));
        assert!(quiet("ibv_query_ece", libc::EOPNOTSUPP));
        assert!(quiet("ibv_query_gid_ex", libc::ENODATA));
        assert!(quiet("ibv_qp_to_qp_ex", libc::EINVAL));
        assert!(!quiet("ibv_post_send", libc::EINVAL));
        assert!(!quiet("ibv_create_cq", libc::ENOMEM));
        assert!(!quiet("ibv_create_srq", libc::EOPNOTSUPP));
        // The device could not be opened, for lack of a thread or a file: printed.
        assert!(!quiet("ibv_open_device", libc::EAGAIN));
        assert!(!quiet("ibv_get_device_list", libc::ENOENT));
        assert!(is_off("off") && is_off(" OFF ") && !is_off("error"));
    }

    #[test]
    fn a_reason_belongs_to_its_errno() {
        let reason = Reason::new("it is Monday", "wait");
        assert_eq!(Errno::NODEV.because(reason), Errno::NODEV);
        let pending = PENDING.take().expect("recorded just now");
        assert_eq!(pending.errno, Errno::NODEV);
        record(Errno(libc::EAGAIN), VerbsError::WouldBlock);
        assert!(PENDING.take().is_none());
    }
}
