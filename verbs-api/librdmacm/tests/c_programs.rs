//! Runs C programs that are compiled with the installed headers and linked with the built
//! libraries.
//!
//! Each program in `tests/c` has several cases, and each test here runs one of them.
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
    &[
        "alternate",
        "processes",
        "reactors",
        "event_loops",
        "rsocket_waits",
    ],
);

rocade_tests::c_programs! {
    PROGRAMS;
    calls:
        a_channel_ends_under_a_waiter,
        a_call_comes_too_late_for_its_channel,
        a_channel_ends_while_a_call_begins,
        an_address_of_a_channel_is_not_used_again_soon,
        enhanced_establishment,
        //= LRC-01 type=test
        //= LRC-17 type=test
        //= LRC-22 type=test
        //= CMA-16 type=test
        addresses_of_infiniband,
        //= CMA-09 type=test
        a_path_from_elsewhere,
        //= LRC-14 type=test
        //= CMA-07 type=test
        options_are_checked,
        //= LRC-13 type=test
        addresses_by_hints,
        //= LRC-24 type=test
        //= CMA-11 type=test
        //= CM-FLD-06 type=test
        attributes_for_each_state,
        //= LRC-12 type=test
        channels_are_changed,
        //= LRC-02 type=test
        //= LRC-03 type=test
        //= LRC-04 type=test
        //= LRC-05 type=test
        //= LRC-06 type=test
        //= LRC-09 type=test
        //= LRC-10 type=test
        //= LRC-11 type=test
        //= LRC-23 type=test
        synchronous_calls_fail_as_events_say,
        //= EVT-07 type=test
        identifiers_outlive_no_event,
        //= LRC-18 type=test
        devices_stay_open,
        there_are_no_devices_where_asking_fails;
    later_releases:
        events_of_the_program,
        addresses_by_an_event;
    failures:
        each_call_fails_once,
        a_removed_device_ends_its_ids,
        a_device_that_is_back_has_new_ids,
        no_connection_over_a_port_that_is_down,
        events_of_a_device_are_none_of_a_connection;
    interposed:
        system_calls_of_rocade_are_its_own;
    flood:
        //= CM-ST-04 type=test
        forty_requests_do_not_block_others,
        sockets_during_a_flood,
        a_server_during_a_flood;
    rsockets:
        what_was_written_arrives,
        half_of_it_is_closed,
        threads_share_a_socket,
        errors_are_those_of_tcp,
        gids_are_addresses,
        no_call_has_to_wait,
        all_kinds_are_polled_together,
        who_waits_hears_of_the_end,
        pieces_and_peeks,
        options_are_kept,
        connections_leave_nothing,
        a_backlog_is_no_limit,
        who_accepts_is_cancelled,
        memory_is_written_directly,
        foreign_connections_do_no_harm,
        datagrams_arrive_whole,
        datagrams_of_others_are_ignored;
    repoll:
        levels_and_edges,
        all_kinds_in_one_set,
        errors_are_those_of_epoll,
        sets_change_under_a_waiter;
    rsocket_waits:
        a_blocked_thread_receives_by_udp,
        a_blocked_thread_receives_by_shm,
        two_blocked_threads_take_turns,
        waits_end_by_signals_and_in_time;
    rsocket_removal:
        datagram_sockets_tell_that_their_device_is_gone,
        streams_tell_that_their_device_is_gone;
    unreachable:
        //= QPC-05 type=test
        address_handles_need_a_route_and_an_answer,
        //= EVT-01 type=test
        a_silent_address_is_an_event_in_time,
        failed_connections_are_explained,
        a_forbidden_call_is_named_with_a_remedy;
    tutorials:
        //= EVT-06 type=test
        //= LRC-20 type=test
        a_receive_before_accepting,
        //= CMA-14 type=test
        //= CMA-15 type=test
        //= EVT-05 type=test
        //= LRC-25 type=test
        groups_by_name_and_by_address,
        a_path_loaded_after_connecting,
        //= LRC-07 type=test
        one_queue_for_many_connections,
        //= CM-FLD-09 type=test
        //= XRC-15 type=test
        targets_are_connected_by_address;
    alternate:
        //= RC-APM-03 RC-APM-04 RC-APM-05 type=test
        //= RC-APM-06 type=test
        //= AEV-06 type=test
        two_processes_by_udp,
        two_processes_by_shm;
    event_loops:
        level_triggered_by_udp,
        level_triggered_by_shm,
        edge_triggered_by_udp,
        edge_triggered_by_shm;
    reactors:
        clients_of_a_bound_reactor;
    processes:
        //= CM-ST-10 type=test
        a_client_that_is_killed_is_missed,
        a_client_that_leaves_without_a_word,
        a_server_that_is_killed_is_missed,
        a_server_comes_back,
        a_thousand_connections_though_a_tenth_is_lost;
}
