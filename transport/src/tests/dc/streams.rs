//! Initiators with streams.

use super::*;

/// Checks that a stream whose target does not answer delays no other stream.
//= DC-40 type=test
#[test]
fn streams_go_on_side_by_side() {
    let (mut fabric, dci, dcts) = with_streams(2, 2);
    let a = region(&fabric, dci, 64);
    let regions: Vec<_> = dcts.iter().map(|dct| region(&fabric, *dct, 64)).collect();
    fabric.node_mut(dcts[1]).is_dead = true;
    for wr_id in 0..12u64 {
        let n = usize::try_from(wr_id % 4).unwrap();
        let stream = u16::try_from(wr_id % 4).unwrap();
        let to = fabric.to(dci, dcts[n], KEY + wr_id % 4);
        let to = DcDestination { stream, ..to };
        fabric.post(dci, to, wr_id, write(&regions[n], 0), &[a.part(0, 8)]);
    }
    fabric.run_for(MS);
    let mut done = statuses(&fabric.take_completions(dci));
    done.sort_by_key(|(wr_id, _)| *wr_id);
    let expected: Vec<_> = (0..12)
        .filter(|n| n % 4 != 1)
        .map(|n| (n, WcStatus::Success))
        .collect();
    assert_eq!(done, expected);
    fabric.run();
    // The stream is in error, the initiator is not.
    let flushed = WcStatus::WrFlushErr;
    assert_eq!(
        statuses(&fabric.take_completions(dci)),
        [(1, WcStatus::RetryExcErr), (5, flushed), (9, flushed)]
    );
    assert_eq!(fabric.node(dci).qp.state(), QpState::Rts);
    let to = DcDestination {
        stream: 1,
        ..fabric.to(dci, dcts[0], KEY)
    };
    fabric.post(dci, to, 20, write(&regions[0], 0), &[a.part(0, 8)]);
    let same_channel = DcDestination { stream: 5, ..to };
    fabric.post(
        dci,
        same_channel,
        21,
        write(&regions[0], 0),
        &[a.part(0, 8)],
    );
    fabric.run();
    let ok = WcStatus::Success;
    assert_eq!(
        statuses(&fabric.take_completions(dci)),
        [(20, flushed), (21, ok)]
    );
    assert!(!fabric.node_mut(dci).qp.reset_stream(2));
    assert!(fabric.node_mut(dci).qp.reset_stream(1));
    fabric.post(dci, to, 22, write(&regions[0], 0), &[a.part(0, 8)]);
    fabric.run();
    assert_eq!(statuses(&fabric.take_completions(dci)), [(22, ok)]);
}

//= DC-40 type=test
#[test]
fn too_many_streams_in_error_are_the_end() {
    let (mut fabric, dci, dcts) = with_streams(1, 1);
    let a = region(&fabric, dci, 64);
    let b = region(&fabric, dcts[0], 64);
    let bad = SendOp::Write {
        va: b.addr,
        rkey: a.rkey,
        imm: None,
    };
    for stream in 1..3 {
        assert_eq!(fabric.node(dci).qp.state(), QpState::Rts);
        let to = DcDestination {
            stream,
            ..fabric.to(dci, dcts[0], KEY)
        };
        let beyond = SendOp::Write {
            va: b.addr + 60,
            rkey: b.rkey,
            imm: None,
        };
        let op = if stream == 1 {
            beyond
        } else {
            SendOp::Write {
                va: 1,
                rkey: b.rkey,
                imm: None,
            }
        };
        let _ = bad;
        fabric.post(dci, to, stream.into(), op, &[a.part(0, 8)]);
        fabric.run();
        let expected = [(u64::from(stream), WcStatus::RemAccessErr)];
        assert_eq!(statuses(&fabric.take_completions(dci)), expected);
    }
    assert_eq!(fabric.node(dci).qp.state(), QpState::Err);
    let (mut fabric, dci, _) = star(1);
    assert!(!fabric.node_mut(dci).qp.reset_stream(1));
}

/// Checks that a request that its own memory refuses before the first packet holds up no other
/// stream of its stream channel. Nothing else would call for the next request.
//= DC-40 DCW-12 type=test
#[test]
fn a_stream_that_fails_unsent_lets_its_channel_go_on() {
    let (mut fabric, dci, dcts) = with_streams(1, 2);
    let a = region(&fabric, dci, 64);
    let b = region(&fabric, dcts[0], 64);
    // Streams 0, 2 and 4 share a stream channel. Their requests wait for the first answer of the
    // target.
    for (wr_id, sge) in [(0, a.part(60, 8)), (2, a.part(62, 8)), (4, a.part(0, 8))] {
        let stream = u16::try_from(wr_id).unwrap();
        let to = DcDestination {
            stream,
            ..fabric.to(dci, dcts[0], KEY)
        };
        fabric.post(dci, to, wr_id, write(&b, 0), &[sge]);
    }
    fabric.run_for(MS);
    let refused = WcStatus::LocProtErr;
    assert_eq!(
        statuses(&fabric.take_completions(dci)),
        [(0, refused), (2, refused), (4, WcStatus::Success)]
    );
    assert_eq!(fabric.node(dci).qp.state(), QpState::Rts);
}

/// Checks that the last session of a stream channel ends on the wire, too, if it fails before a
/// packet.
//= DCW-12 type=test
#[test]
fn a_stream_that_fails_unsent_leaves_no_packet_behind() {
    let (mut fabric, dci, dcts) = with_streams(1, 2);
    let a = region(&fabric, dci, 64);
    let b = region(&fabric, dcts[0], 64);
    let to = fabric.to(dci, dcts[0], KEY);
    fabric.post(dci, to, 1, write(&b, 0), &[a.part(60, 8)]);
    fabric.run();
    let expected = [(1, WcStatus::LocProtErr)];
    assert_eq!(statuses(&fabric.take_completions(dci)), expected);
    assert_eq!(count(&fabric, "DISCONNECT"), 1);
    let qp = &fabric.node(dci).qp;
    assert!(!qp.has_work_to_send(crate::AckPlacement::First));
}

/// Checks that sessions between the same two ends in several stream channels are separate.
//= DC-40 type=test
#[test]
fn streams_to_one_target_do_not_mix() {
    let (mut fabric, dci, dcts) = with_streams(2, 2);
    let a = region(&fabric, dci, 64);
    let b = region(&fabric, dcts[0], 8);
    let (va, rkey) = (b.addr, b.rkey);
    for n in 0..40u16 {
        let to = DcDestination {
            stream: n % 7,
            ..fabric.to(dci, dcts[0], KEY)
        };
        let add = SendOp::FetchAdd { va, rkey, add: 1 };
        fabric.post(dci, to, n.into(), add, &[a.part(0, 8)]);
    }
    fabric.run();
    let done = fabric.take_completions(dci);
    assert!(done.len() == 40 && done.iter().all(|c| c.status == WcStatus::Success));
    assert_eq!(
        fabric.node(dct_memory(&dcts)).mem.bytes(&b, 0..8),
        40u64.to_ne_bytes()
    );
}

fn dct_memory(dcts: &[NodeId]) -> NodeId {
    dcts[0]
}
