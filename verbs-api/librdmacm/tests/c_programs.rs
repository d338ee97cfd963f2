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
    rsockets:
        what_was_written_arrives,
        half_of_it_is_closed,
        threads_share_a_socket,
        errors_are_those_of_tcp,
        nobody_has_to_wait,
        all_kinds_are_polled_together,
        who_waits_hears_of_the_end,
        pieces_and_peeks,
        options_are_kept,
        connections_leave_nothing,
        a_backlog_is_no_limit,
        memory_is_written_directly,
        strangers_do_no_harm,
        datagrams_arrive_whole,
        datagrams_of_others_are_ignored;
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
