//! C programs, compiled against the installed headers, run with the built libraries.
//!
//! Each program of `tests/c` has several cases; each test here runs one.
#![cfg(target_os = "linux")]

use rocade_tests::c_programs::Programs;

static PROGRAMS: Programs = Programs::new(
    (
        concat!(env!("CARGO_MANIFEST_DIR"), "/tests/c"),
        env!("CARGO_TARGET_TMPDIR"),
    ),
    &["rdmacm", "ibverbs"],
    rocade_symbols::verify::built_library,
    ("/usr/include/rdma/rdma_cma.h", "librdmacm-dev"),
    &["processes"],
);

rocade_tests::c_programs! {
    PROGRAMS;
    calls:
        enhanced_establishment,
        addresses_of_infiniband,
        a_path_from_elsewhere,
        options_are_checked,
        addresses_by_hints,
        attributes_for_each_state,
        channels_are_changed,
        synchronous_calls_fail_as_events_say,
        identifiers_outlive_no_event;
    tutorials:
        a_receive_before_accepting,
        groups_by_name_and_by_address,
        one_queue_for_many_connections;
    processes:
        a_client_that_is_killed_is_missed,
        a_client_that_leaves_without_a_word,
        a_server_that_is_killed_is_missed,
        a_server_comes_back;
}
