//! C programs, compiled against the installed verbs headers and run with the built library.
//!
//! Each program of `tests/c` has several cases. Each test here runs one case.
#![cfg(target_os = "linux")]

use rocade_tests::c_programs::Programs;

static PROGRAMS: Programs = Programs::new(
    (
        concat!(env!("CARGO_MANIFEST_DIR"), "/tests/c"),
        env!("CARGO_TARGET_TMPDIR"),
    ),
    &["ibverbs"],
    rocade_symbols::verify::built_library,
    ("/usr/include/infiniband/verbs.h", "libibverbs-dev"),
    &[
        "cross_channel",
        "cross_channel_more",
        "dc",
        "dc_extended",
        "migration_processes",
        "xrc_compat",
        "processes",
        "shared_xrc",
        "environment",
        "barrier_and_lock",
        "comp_cntr",
        "stalled",
        "event_loops",
        "event_libraries",
        "threads",
        "shared_channel",
        "device_processes",
        "peer_failures",
    ],
);

/// The examples for users, whose cases are their first arguments.
static EXAMPLES: Programs = Programs::new(
    (
        concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples"),
        env!("CARGO_TARGET_TMPDIR"),
    ),
    &["ibverbs"],
    rocade_symbols::verify::built_library,
    ("/usr/include/infiniband/verbs.h", "libibverbs-dev"),
    &[],
);

rocade_tests::c_programs! {
    EXAMPLES;
    dmabuf:
        memfd,
        udmabuf,
        heap;
}

rocade_tests::c_programs! {
    PROGRAMS;
    stalled:
        a_handler_that_lasts_by_udp,
        a_handler_that_lasts_by_shm,
        a_debugger_by_udp,
        a_debugger_by_shm,
        no_processor_by_udp,
        no_processor_by_shm;
    event_loops:
        poll_waits,
        select_waits,
        epoll_waits_by_level,
        epoll_waits_by_edge,
        epoll_waits_by_edge_for_one_event,
        epoll_waits_once,
        io_uring_waits,
        a_child_has_copies,
        a_blocking_channel_is_readable_with_events_only,
        a_channel_that_blocks_again,
        a_channel_without_a_request;
    event_libraries:
        libev_waits,
        libuv_waits;
    shared_channel:
        sends_complete_before_replies_by_udp,
        sends_complete_before_replies_by_shm,
        sends_complete_before_long_replies;
    threads:
        polling_by_udp,
        polling_by_shm,
        waiting_by_udp,
        waiting_by_shm;
    datagrams:
        an_answer_finds_its_way,
        a_header_of_ipv6_is_read,
        address_handles_are_checked,
        batches_of_datagrams,
        groups_are_joined_and_left,
        own_datagrams_can_be_kept_out;
    explained:
        refused_keys_are_named,
        refused_requests_are_explained,
        silent_peers_are_explained,
        many_failures_have_an_end,
        nobody_reads_the_explanations;
    semantics:
        failed_batch_leaves_nothing,
        failed_chain_keeps_its_head,
        inline_elements_are_counted,
        migration_states_are_checked,
        operations_of_other_types_are_invalid,
        flags_of_extended_qps_are_checked,
        queues_of_other_contexts_are_refused,
        domains_in_use_are_busy,
        gid_table_fits_or_fails,
        raw_clock_stamps_completions,
        command_descriptor_is_one,
        a_missing_answer_costs_no_event,
        //= DST-09 type=test
        a_device_closed_before_its_objects;
    environment:
        sockets_are_made_without_the_c_library,
        a_denied_timer_is_called_a_timer,
        a_handler_of_faults_costs_speed,
        files_may_not_grow,
        a_capture_may_not_grow,
        what_is_busy_names_its_users;
    failures:
        verbs_fail_with_their_errno,
        posts_fail_and_name_the_request,
        limits_are_reported_and_kept,
        a_completion_fails,
        a_datagram_fails_into_sqe,
        a_batch_fails,
        late_completions_have_late_events,
        held_completions_go_with_their_qp,
        a_receiver_is_not_ready_for_a_time,
        events_come_to_a_program_that_sleeps,
        a_process_is_killed,
        a_process_is_stopped;
    device_failures:
        a_port_goes_down_and_up,
        a_port_stays_down,
        tables_and_speed_change,
        a_multicast_group_stops_with_the_port,
        the_files_of_a_port_follow,
        a_removed_device_answers_with_eio,
        a_removed_device_comes_back;
    peer_failures:
        a_peer_crashes_by_udp,
        a_peer_crashes_by_shm,
        a_peer_hangs_by_udp,
        a_peer_hangs_by_shm;
    device_processes:
        a_port_down_stops_udp,
        a_port_down_stops_shm,
        a_port_comes_back_by_shm,
        a_removed_device_is_silent_by_udp,
        a_removed_device_is_silent_by_shm;
    misuse:
        what_is_in_use_does_not_end,
        an_overrun_ends_all_queues,
        each_state_takes_what_it_should,
        limits_are_kept,
        keys_of_others_open_nothing,
        a_flood_without_receiver;
    lifetimes:
        an_address_of_a_channel_is_not_used_again_soon,
        a_registration_leaves_no_mapping;
    flush:
        flushed_and_announced,
        what_is_not_allowed;
    migration:
        a_device_has_two_ports,
        a_path_that_fails_is_left,
        a_program_asks_for_a_migration;
    migration_processes:
        //= RC-APM-03 RC-APM-10 type=test
        asked_for_by_udp,
        asked_for_by_shm,
        //= RC-APM-05 RC-APM-06 type=test
        a_dead_path_is_left_by_udp,
        a_dead_path_is_left_by_shm,
        //= RC-APM-07 AEV-06 type=test
        a_path_of_no_use_by_udp,
        a_path_of_no_use_by_shm,
        //= RC-APM-02 type=test
        packets_say_how_it_is_by_udp,
        packets_say_how_it_is_by_shm;
    attributes:
        rates_are_noted,
        a_static_rate_reads_back,
        enhancements_are_none,
        the_gid_table_has_an_end,
        partitions_are_apart,
        the_identity_is_configured,
        a_device_is_like_rxe,
        a_device_is_like_mlx5,
        //= DCU-08 type=test
        limits_of_dynamic_connections,
        huge_pages_that_are_not_there,
        huge_pages_of_other_devices;
    hardware:
        a_refused_write_ends_its_receive,
        a_refused_write_as_rxe_reports_it,
        a_bind_takes_the_tag_alone,
        a_wrong_bind_is_explained,
        windows_end_on_their_own_queue_pair,
        shared_queues_of_nothing,
        immediates_need_no_elements,
        polls_for_nothing,
        regions_of_no_bytes,
        only_valid_members_are_read,
        limits_of_rocade,
        limits_like_rxe,
        limits_like_mlx5,
        events_are_for_later_completions,
        events_of_mlx5_are_for_earlier_completions,
        no_completion_is_missed_like_mlx5,
        gids_like_mlx5;
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
        the_time_of_day_is_that_of_the_timestamp,
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
        //= NUL-01 type=test
        null_regions_of_a_benchmark,
        memory_on_demand,
        addresses_of_peers;
    later_releases:
        regions_by_attributes,
        regions_of_a_descriptor,
        buffers_of_the_library,
        a_buffer_is_no_file,
        a_port_has_a_speed,
        private_nodes_have_the_same_calls,
        drivers_of_other_devices_are_ignored,
        names_of_enumerators,
        what_is_not_supported_says_so;
    comp_cntr:
        each_operation_has_a_counter,
        bytes_are_counted,
        failures_are_counted_apart,
        a_counter_of_many_queue_pairs,
        unreliable_connections_count,
        datagrams_count,
        targets_of_xrc_count,
        values_are_set_and_wrap_around,
        mistakes_are_refused,
        a_device_has_a_limit,
        memory_that_others_use_by_udp,
        memory_that_others_use_by_shm;
    srq:
        sizes_and_limits,
        chains_of_receives,
        in_use_is_busy,
        events_name_their_object,
        extended_creation;
    xrc:
        //= XRC-14 type=test
        domains_and_files,
        messages_go_to_the_queue_they_name,
        mistakes_are_refused;
    xrc_compat:
        //= XRCL-07 XRCL-08 XRCL-09 type=test
        //= XRCL-10 XRCL-11 type=test
        //= XRCL-06 XRCL-12 type=test
        who_dies_leaves_the_others_working,
        //= XRCL-14 type=test
        events_go_to_all_who_are_registered,
        //= XRCL-01 XRCL-02 XRCL-03 type=test
        //= XRCL-04 XRCL-05 XDEC-06 type=test
        domains_of_files;
    shared_xrc:
        //= XRC-11 type=test
        who_dies_leaves_the_others_working_by_udp,
        //= XRC-11 type=test
        who_dies_leaves_the_others_working_by_shm,
        //= XRC-11 type=test
        who_has_answered_may_die,
        a_stream_to_all_queues_by_udp,
        a_stream_to_all_queues_by_shm,
        //= XRC-16 type=test
        any_process_changes_the_target,
        a_death_under_traffic,
        //= QPV-08 type=test
        a_shared_target_has_one_path,
        //= XRC-06 type=test
        a_number_of_another_domain_opens_nothing;
    experimental:
        //= XCON-04 type=test
        //= XCON-05 type=test
        //= XCON-15 type=test
        //= XST-01 type=test
        //= XDEC-01 type=test
        //= XDEC-11 type=test
        a_device_says_what_it_can_do;
    masked:
        //= XAT-10 type=test
        //= XAT-13 type=test
        //= XAT-16 type=test
        //= XDEC-13 type=test
        words_and_halves_of_words,
        //= XAT-14 type=test
        //= XAT-18 type=test
        operands_of_several_words,
        //= XAT-01 XAT-02 XAT-03 type=test
        //= XAT-04 XAT-05 XAT-06 type=test
        //= XAT-12 type=test
        //= XAT-15 type=test
        //= XST-03 type=test
        sizes_and_mistakes,
        //= XAT-23 type=test
        a_lock,
        //= XAT-05 type=test
        //= XAT-25 type=test
        results_may_be_big_endian;
    umr:
        //= UMR-01 type=test
        //= UMR-10 type=test
        //= UMR-15 type=test
        //= UMR-16 type=test
        a_list_in_every_operation,
        //= UMR-30 type=test
        //= UMR-35 type=test
        a_column_of_a_matrix,
        //= UMR-07 type=test
        //= UMR-11 type=test
        //= XST-12 type=test
        lists_beyond_the_request,
        //= UMR-02 type=test
        //= UMR-03 type=test
        //= UMR-04 type=test
        //= UMR-06 type=test
        //= UMR-12 type=test
        //= UMR-25 type=test
        //= UMR-30 type=test
        //= XCON-19 type=test
        //= XCON-20 type=test
        //= XCON-23 type=test
        //= XDEC-14 type=test
        //= XST-05..07 type=test
        //= XST-10..11 type=test
        mistakes_are_refused,
        //= UMR-08 type=test
        //= UMR-18 type=test
        //= XST-19 type=test
        keys_end_and_are_invalidated,
        //= XCON-22 type=test
        //= XDEC-12 type=test
        rights_of_64_bits;
    cross_channel:
        //= XCW-02..04 type=test
        //= XCW-07 XCW-08 XCW-09 type=test
        //= XCW-10 type=test
        //= XDEC-08 type=test
        //= XDEC-10 type=test
        waits_count_completions,
        //= XCE-01 XCE-02 XCE-03 type=test
        //= XCE-04 XCE-05 type=test
        //= XCE-07 type=test
        //= XCE-08 type=test
        //= XDEC-09 type=test
        managed_queues_execute_what_is_released,
        //= XCH-02..03 type=test
        //= XCW-05 type=test
        //= XCT-01..02 type=test
        //= XCON-14 type=test
        //= XCON-18 type=test
        //= XST-16..18 type=test
        mistakes_are_refused,
        //= XCH-01 type=test
        //= XCC-01 XCC-02 XCC-03 type=test
        //= XCC-04 XCC-05 XCC-06 type=test
        //= XDEC-07 type=test
        //= XST-02 type=test
        sends_compute,
        //= XCH-04..06 type=test
        without_polling,
        //= XCT-03..05 type=test
        eight_processes_sum_up_by_udp,
        //= XCT-03..05 type=test
        eight_processes_sum_up_by_shm,
        eight_processes_find_the_greatest;
    cross_channel_more:
        //= XCH-02 XCE-01 XCE-05 type=test
        //= XCW-01 XCC-01 NOP-01 type=test
        unreliable_queues_take_part,
        //= XCC-01 XCC-02 XCC-03 type=test
        //= XCC-04 XCC-05 XCC-06 type=test
        reads_compute,
        //= XCT-01..03 type=test
        a_list_with_a_mistake,
        //= XCT-03 XCW-04 type=test
        lists_are_posted_as_a_whole,
        //= XCE-07 XCW-05 XCW-07 type=test
        //= XDEC-10 type=test
        deadlocks_are_the_programs_own;
    dc_extended:
        //= DC-04 XDEC-16 XAT-06 type=test
        //= XAT-13 XAT-14 XAT-15 type=test
        //= XAW-07 type=test
        masked_atomics,
        //= DC-04 XDEC-16 UMR-16 type=test
        //= UMR-18 UMR-19 NOP-01 type=test
        operations_of_this_side,
        //= XCH-02 XDEC-16 XCE-01 type=test
        //= XCW-01 XCC-01 type=test
        initiators_take_part,
        //= DC-09 DCT-09 DCW-16 type=test
        targets_that_are_gone;
    dc:
        //= DC-04 DC-08 DC-10 type=test
        //= DC-11 DC-12 type=test
        //= DCT-01 DCS-01 DCS-02 type=test
        //= DCS-03 DCS-04 DCS-10 type=test
        //= XCON-08 XCON-11 XST-14 type=test
        every_operation,
        //= DC-02 DC-05 DCT-02 type=test
        //= DCT-03 DCT-06 DCT-07 type=test
        //= DCT-10 DCU-07 XCON-12 type=test
        //= XST-15 type=test
        attributes_and_mistakes,
        //= DCK-02 DCK-03 DCK-04 type=test
        //= DCK-06 XCON-09 XCON-13 type=test
        //= XDEC-05 type=test
        keys_and_events,
        //= DC-01 DC-06 DCT-11 type=test
        all_to_all_of_sixteen_by_udp,
        //= DC-01 DC-06 DCT-11 type=test
        all_to_all_of_sixteen_by_shm;
    dc_attacks:
        //= DC-03 DC-09 DCT-09 type=test
        //= DCW-16 type=test
        targets_come_and_go,
        //= DCK-01 DCK-03 DCK-04 type=test
        //= DCK-07 DCT-07 DCT-08 type=test
        a_storm_of_forged_keys,
        //= DCT-09 DCK-06 type=test
        destroying_waits_for_events,
        //= DC-09 DC-13 DC-14 type=test
        //= DCT-05 XAT-15 AEV-11 type=test
        //= XCON-13 type=test
        what_a_target_refuses,
        //= AEV-11 type=test
        unread_events,
        //= DCW-06 DCW-09 DCW-17 type=test
        packets_of_unknown_senders;
    barrier_and_lock:
        //= XCT-03 XCT-04 XCT-05 type=test
        //= XCW-01 XCE-01 type=test
        a_barrier_of_eight_by_udp,
        //= XCT-03 XCT-04 XCT-05 type=test
        //= XCW-01 XCE-01 type=test
        a_barrier_of_eight_by_shm,
        //= XAT-17 XAT-23 type=test
        a_lock_of_eight_by_udp,
        //= XAT-17 XAT-23 type=test
        a_lock_of_eight_by_shm;
    calc:
        //= XCC-01 XCC-02 XCC-03 type=test
        //= XCC-04 XCC-05 XCC-06 type=test
        //= XCON-16 XDEC-07 type=test
        every_operation_on_every_type,
        //= XCC-01 XCC-02 XCC-04 type=test
        nothing_else;
    cross_channel_edges:
        //= XCH-05 XCW-07 type=test
        what_counts,
        //= XCW-01 XCW-08 type=test
        a_wait_behind_a_slow_send,
        //= XCW-01 XCW-02 XCW-05 type=test
        counts_go_round,
        //= XCW-07 XCW-08 XDEC-10 type=test
        waits_for_oneself,
        //= XCE-07 XCE-08 XDEC-10 type=test
        chains_in_a_circle,
        //= XCE-02 XCE-05 XCE-06 type=test
        releases_of_what_is_not_there,
        //= XCT-01 XCT-02 XCW-03 type=test
        a_queue_that_is_full;
    umr_more:
        //= UMR-21 UMR-32 UMR-36 type=test
        layouts_of_nothing_and_of_overlaps,
        //= UMR-03 XDEC-14 type=test
        keys_of_keys_down_to_the_last,
        //= UMR-08 UMR-12 UMR-13 type=test
        //= UMR-24 type=test
        keys_of_what_is_not_ours,
        //= UMR-08 UMR-17 UMR-18 type=test
        changes_under_a_reader,
        //= UMR-07 UMR-11 type=test
        lists_are_taken_at_once;
    events:
        restarts_after_a_signal,
        fails_after_a_signal_without_restart,
        each_handler_has_its_effect,
        each_event_is_an_edge,
        a_copy_sets_the_mode,
        every_waiter_gets_its_event,
        events_go_with_their_cq,
        reading_the_descriptor_does_no_harm,
        //= CQ-14 type=test
        a_call_comes_too_late,
        a_sleeping_call_outlives_many_others,
        the_end_comes_while_a_call_begins;
    cancel:
        waiting_for_a_completion_event,
        waiting_for_an_asynchronous_event,
        waiting_with_asynchronous_type,
        no_event_is_lost,
        posting_and_polling,
        other_verbs_are_no_cancellation_points,
        nor_are_they_where_they_log,
        a_thread_may_refuse;
    domains:
        allocators_are_called,
        what_was_made_can_be_imported,
        what_is_no_device_cannot;
    processes:
        no_verb_is_a_cancellation_point;
}
