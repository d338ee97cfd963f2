//! C programs, compiled against the installed verbs headers, run with the built library.
//!
//! Each program of `tests/c` has several cases; each test here runs one.
#![cfg(target_os = "linux")]

use std::{
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
    sync::{
        OnceLock,
        atomic::{AtomicU32, Ordering},
    },
};

use rocade_tests::skip::{Reason, missing_command};

/// What compiling needs and is not here.
fn missing() -> Option<Reason> {
    let header = Path::new("/usr/include/infiniband/verbs.h");
    missing_command(&[("gcc", "gcc")])
        .or_else(|| (!header.is_file()).then(|| Reason::Package("libibverbs-dev".to_owned())))
}

/// Where the programs and, under the name a loader looks for, the library are.
fn directory() -> &'static Path {
    static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();
    DIRECTORY.get_or_init(|| {
        let library = rocade_symbols::verify::built_library("ibverbs");
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("c-programs");
        std::fs::create_dir_all(&directory).expect("a directory of our own");
        make(&directory.join("libibverbs.so.1"), |link| {
            symlink(&library, link).expect("a new name");
        });
        directory
    })
}

/// Makes a file beside its place and moves it there: another run of the tests may be using the old one.
fn make(place: &Path, make: impl FnOnce(&Path)) {
    let beside = place.with_extension(format!("new-{}", std::process::id()));
    make(&beside);
    std::fs::rename(&beside, place).expect("the same directory");
}

/// Compiles `tests/c/<program>.c` against the built library.
fn compile(program: &str) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/c/{program}.c"));
    let library = directory().join("libibverbs.so.1");
    let executable = directory().join(program);
    make(&executable, |executable| {
        let output = Command::new("gcc")
            .args(["-std=gnu11", "-O1", "-g", "-pthread"])
            .arg("-I")
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../include"))
            .args(["-Wall", "-Wextra", "-Werror", "-o"])
            .args([executable, &source, &library])
            .output()
            .expect("gcc runs");
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: {complaint}", source.display());
    });
    executable
}

/// The `rocade` command, built into the directory of the library, to be the broker of programs that
/// have several processes. Others have none.
fn broker(program: &str) -> PathBuf {
    if program != "processes" {
        return "embedded".into();
    }
    let library = rocade_symbols::verify::built_library("ibverbs");
    let profile_dir = library.parent().expect("the library is in a directory");
    let mut build = Command::new(std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned()));
    build.args(["build", "--quiet", "--package", "rocade", "--target-dir"]);
    build.arg(profile_dir.join(".."));
    if profile_dir.ends_with("release") {
        build.arg("--release");
    }
    let status = build.status().expect("cargo runs");
    assert!(status.success(), "cargo build --package rocade");
    profile_dir.join("rocade")
}

/// Runs a case of a program, at an address that no other program uses.
fn run(program: &str, executable: &Path, case: &str) {
    static RUNS: AtomicU32 = AtomicU32::new(0);
    let number = (std::process::id() << 6) | (RUNS.fetch_add(1, Ordering::Relaxed) & 63);
    let broker = broker(program);
    let [_, high, middle, low] = (number << 1 | 1).to_be_bytes();
    let output = Command::new(executable)
        .arg(case)
        .env("LD_LIBRARY_PATH", directory())
        .env("ROCADE_IP", format!("127.{}.{middle}.{low}", high | 0x80))
        .env("ROCADE_BROKER", broker)
        .env("ROCADE_RUNTIME_DIR", directory())
        .env("ROCADE_BROKER_IDLE_MS", "100")
        .output()
        .expect("the program runs");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{case}: {}\n{text}", output.status);
}

/// A module per program, a test per case.
macro_rules! programs {
    ($( $program:ident: $( $case:ident ),+ $(,)?; )+) => { $(
        mod $program {
            use super::*;

            fn executable() -> &'static Path {
                static EXECUTABLE: OnceLock<PathBuf> = OnceLock::new();
                EXECUTABLE.get_or_init(|| compile(stringify!($program)))
            }

            $(
                #[test]
                fn $case() {
                    if let Some(reason) = missing() {
                        rocade_tests::skip!(reason);
                    }
                    run(stringify!($program), executable(), stringify!($case));
                }
            )+
        }
    )+ };
}

programs! {
    datagrams:
        an_answer_finds_its_way,
        a_header_of_ipv6_is_read,
        address_handles_are_checked,
        batches_of_datagrams,
        groups_are_joined_and_left;
    semantics:
        failed_batch_leaves_nothing,
        failed_chain_keeps_its_head,
        inline_elements_are_counted,
        migration_states_are_checked,
        operations_of_other_types_are_invalid,
        flags_of_extended_qps_are_checked,
        domains_in_use_are_busy,
        gid_table_fits_or_fails,
        raw_clock_stamps_completions,
        command_descriptor_is_one,
        a_missing_answer_costs_no_event;
    attributes:
        rates_are_noted,
        enhancements_are_none,
        the_gid_table_has_an_end,
        partitions_are_apart,
        the_identity_is_configured;
    batches:
        every_operation_in_one_batch,
        a_request_without_data_is_empty,
        inline_data_is_copied_at_once,
        an_aborted_batch_leaves_nothing,
        states_decide_about_batches,
        a_batch_that_is_too_long_is_refused,
        threads_post_both_ways;
    queues:
        resizing_under_traffic,
        solicited_arming,
        events_are_moderated,
        every_field_of_an_extended_queue,
        an_overrun_may_be_ignored;
    memory:
        windows_of_type_1,
        windows_of_type_2,
        windows_by_builders,
        binds_that_fail,
        regions_change,
        regions_change_under_traffic,
        device_memory,
        null_regions,
        memory_on_demand,
        addresses_of_peers;
    srq:
        sizes_and_limits,
        chains_of_receives,
        in_use_is_busy,
        events_name_their_object,
        extended_creation;
    xrc:
        domains_and_files,
        messages_go_to_the_queue_they_name,
        mistakes_are_refused;
    experimental:
        //= XCON-04 type=test
        //= XCON-05 type=test
        //= XCON-15 type=test
        //= XST-01 type=test
        //= XDEC-01 type=test
        a_device_says_what_it_can_do;
    events:
        restarts_after_a_signal,
        fails_after_a_signal_without_restart,
        each_event_is_an_edge,
        a_copy_sets_the_mode,
        every_waiter_gets_its_event,
        events_go_with_their_cq,
        reading_the_descriptor_does_no_harm;
    cancel:
        waiting_for_a_completion_event,
        waiting_for_an_asynchronous_event,
        waiting_with_asynchronous_type,
        no_event_is_lost,
        posting_and_polling,
        other_verbs_are_no_cancellation_points,
        nor_are_they_where_they_log,
        a_thread_may_refuse;
    processes:
        no_verb_is_a_cancellation_point;
}
