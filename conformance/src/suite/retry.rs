//! The peer as requester after gaps, RNR NAKs and timeouts.

use std::time::{Duration, Instant};

use rocade_wire::{Msn, NakCode, Operation, RnrTimer};

use super::{
    pattern,
    requester::{READ, SEND, WRITE, connect, post, post_read, reth},
};
use crate::{
    Bench, Case, CaseResult, QpSpec,
    bench::POSITIVE,
    case::{equal, fail},
    peer::{Buffer, State, Status, Work, ack_timeout, rnr_timer},
    rig::Received,
};

pub(super) const CASES: &[Case] = &[
    Case::requester("RC-REQ-05", "go-back-n", go_back_n),
    Case::requester(
        "RC-REQ-05",
        "nak-acknowledges-what-is-before",
        nak_acknowledges,
    ),
    Case::requester("RC-REQ-16", "resumes-within-a-message", resume_within),
    Case::requester("RC-REQ-16", "repeats-the-same-atomic", repeat_atomic),
    Case::requester("RC-REQ-05", "repeated-nak-is-heeded", repeated_nak).should(),
    Case::requester(
        "RC-REQ-18",
        "timeouts-and-naks-share-retry-cnt",
        retries_shared,
    ),
    Case::requester("RC-REQ-18", "no-retry-if-retry-cnt-is-0", no_retry),
    Case::requester(
        "RC-REQ-17",
        "progress-reloads-the-counter",
        counter_reloaded,
    ),
    Case::requester(
        "RC-REQ-17",
        "progress-reloads-the-rnr-counter",
        rnr_counter_reloaded,
    ),
    Case::requester("RC-REQ-06", "waits-after-an-rnr-nak", rnr_wait),
    Case::requester("RC-REQ-06", "resumes-with-the-refused-packet", rnr_resume),
    Case::requester("RC-REQ-06", "no-retry-if-rnr-retry-is-0", |b| {
        rnr_exceeded(b, 0)
    }),
    Case::requester("RC-TMR-05", "as-many-as-rnr-retry", |b| rnr_exceeded(b, 2)),
    Case::requester("RC-TMR-05", "seven-is-infinite", rnr_forever),
    Case::requester("RC-REQ-19", "rnr-wait-is-not-cut-short", rnr_not_cut).should(),
    Case::requester(
        "RC-REQ-04",
        "acknowledgement-beyond-a-read",
        ack_beyond_read,
    ),
    Case::requester("RC-REQ-04", "acknowledgement-of-a-read", ack_of_read),
    Case::requester(
        "RC-REQ-04",
        "acknowledgement-beyond-an-atomic",
        ack_beyond_atomic,
    ),
    Case::requester("RC-REQ-12", "read-response-with-a-gap", read_gap),
    Case::requester(
        "RC-REQ-12",
        "first-read-response-missing",
        read_gap_at_start,
    ),
    Case::requester("RC-TMR-01", "no-timeout-if-0", no_timeout),
    Case::requester("RC-TMR-03", "resends-from-the-oldest", timeout_resends),
    Case::requester(
        "RC-TMR-06",
        "retry-cnt-plus-one-transmissions",
        timeout_exceeded,
    ),
];

//= RC-REQ-05 RC-REQ-16 type=test
fn go_back_n(bench: &Bench<'_>) -> CaseResult {
    let conn = connect(bench, QpSpec::default())?;
    for id in 0..4 {
        post(&conn, id, WRITE, 100)?;
    }
    let sent = conn.expect_requests(0, &[Operation::WriteOnly; 4])?;
    conn.nak(1, NakCode::PsnSequence, 1)?;
    let again = conn.expect_requests(1, &[Operation::WriteOnly; 3])?;
    for (first, second) in sent[1..].iter().zip(&again) {
        same(first, second)?;
    }
    conn.ack(3, 4)?;
    for id in 0..4 {
        conn.expect_completion(id, Status::Success)?;
    }
    conn.expect_silence()
}

/// Checks that a packet is a retransmission of another one. AckReq may differ.
//= RC-REQ-16 type=test
fn same(first: &Received, second: &Received) -> CaseResult {
    let mut headers = second.headers;
    headers.bth.ack_req = first.headers.bth.ack_req;
    equal(headers, first.headers, "headers of a repetition")?;
    if first.payload == second.payload {
        Ok(())
    } else {
        fail("a retransmission with other data")
    }
}

//= RC-REQ-05 type=test
fn nak_acknowledges(bench: &Bench<'_>) -> CaseResult {
    let conn = connect(bench, QpSpec::default())?;
    post(&conn, 1, SEND, 8)?;
    post(&conn, 2, SEND, 8)?;
    conn.expect_requests(0, &[Operation::SendOnly; 2])?;
    conn.nak(1, NakCode::PsnSequence, 1)?;
    conn.expect_completion(1, Status::Success)?;
    conn.expect_request(Operation::SendOnly, 1)?;
    conn.expect_no_completion()
}

//= RC-REQ-16 type=test
fn resume_within(bench: &Bench<'_>) -> CaseResult {
    let conn = connect(bench, QpSpec::default())?;
    post(&conn, 1, WRITE, 1000)?;
    let operations = [
        Operation::WriteFirst,
        Operation::WriteMiddle,
        Operation::WriteMiddle,
        Operation::WriteLast,
    ];
    let sent = conn.expect_requests(0, &operations)?;
    conn.nak(2, NakCode::PsnSequence, 0)?;
    let again = conn.expect_requests(2, &operations[2..])?;
    same(&sent[2], &again[0])?;
    same(&sent[3], &again[1])?;
    conn.ack(3, 1)?;
    conn.expect_completion(1, Status::Success)?;
    Ok(())
}

//= RC-REQ-16 type=test
fn repeat_atomic(bench: &Bench<'_>) -> CaseResult {
    let conn = connect(bench, QpSpec::default())?;
    let reth = reth(0, 8);
    let op = crate::peer::WorkOp::FetchAdd {
        va: reth.va,
        rkey: reth.rkey,
        add: 3,
    };
    conn.post_send(&Work::new(1, op, Buffer::new(2048, 8)))?;
    let first = conn.expect_request(Operation::FetchAdd, 0)?;
    conn.nak(0, NakCode::PsnSequence, 0)?;
    same(&first, &conn.expect_request(Operation::FetchAdd, 0)?)
}

//= RC-REQ-17 RC-REQ-18 type=test
fn retries_shared(bench: &Bench<'_>) -> CaseResult {
    let spec = QpSpec {
        ack_timeout: ack_timeout(TIMEOUT),
        retry_cnt: 2,
        ..QpSpec::default()
    };
    let conn = connect(bench, spec)?;
    post(&conn, 1, SEND, 8)?;
    let first = conn.expect_request(Operation::SendOnly, 0)?;
    // One retry is due to the NAK, and one to the timeout after it.
    conn.nak(0, NakCode::PsnSequence, 0)?;
    for _ in 0..2 {
        same(&first, &conn.expect_request(Operation::SendOnly, 0)?)?;
    }
    conn.expect_completion(1, Status::RetryExcErr)?;
    conn.expect_state(State::Err)?;
    conn.expect_silence()
}

/// A responder that clears its NAK state when it answers a duplicate repeats the NAK.
//= RC-REQ-05 RC-DUP-08 type=test
fn repeated_nak(bench: &Bench<'_>) -> CaseResult {
    // 8.6 s.
    let timeout = ack_timeout(21);
    let conn = connect(
        bench,
        QpSpec {
            ack_timeout: timeout,
            ..QpSpec::default()
        },
    )?;
    post(&conn, 1, SEND, 8)?;
    conn.expect_request(Operation::SendOnly, 0)?;
    let start = Instant::now();
    for _ in 0..2 {
        conn.nak(0, NakCode::PsnSequence, 0)?;
        conn.expect_request(Operation::SendOnly, 0)?;
    }
    conn.ack(0, 1)?;
    conn.expect_completion(1, Status::Success)?;
    let took = start.elapsed();
    if took.as_nanos() >= u128::from(timeout.as_ns().unwrap_or(0)) {
        return fail(format!(
            "ignored: the request was retransmitted by timeout, after {took:?}"
        ));
    }
    Ok(())
}

//= RC-REQ-18 type=test
fn no_retry(bench: &Bench<'_>) -> CaseResult {
    let conn = connect(
        bench,
        QpSpec {
            retry_cnt: 0,
            ..QpSpec::default()
        },
    )?;
    post(&conn, 1, SEND, 8)?;
    conn.expect_request(Operation::SendOnly, 0)?;
    conn.nak(0, NakCode::PsnSequence, 0)?;
    conn.expect_completion(1, Status::RetryExcErr)?;
    conn.expect_silence()
}

//= RC-REQ-17 type=test
fn counter_reloaded(bench: &Bench<'_>) -> CaseResult {
    let conn = connect(
        bench,
        QpSpec {
            retry_cnt: 1,
            ..QpSpec::default()
        },
    )?;
    for id in 0..3 {
        post(&conn, id, SEND, 8)?;
    }
    conn.expect_requests(0, &[Operation::SendOnly; 3])?;
    // Each NAK acknowledges one more message.
    for index in [0, 1, 2] {
        conn.nak(index, NakCode::PsnSequence, index.unsigned_abs())?;
        for again in index..3 {
            conn.expect_request(Operation::SendOnly, again)?;
        }
    }
    conn.ack(2, 3)?;
    for id in 0..3 {
        conn.expect_completion(id, Status::Success)?;
    }
    Ok(())
}

//= RC-REQ-17 RC-TMR-05 type=test
fn rnr_counter_reloaded(bench: &Bench<'_>) -> CaseResult {
    let conn = connect(
        bench,
        QpSpec {
            rnr_retry: 1,
            ..QpSpec::default()
        },
    )?;
    for index in 0..3 {
        post(&conn, 7, SEND, 8)?;
        conn.expect_request(Operation::SendOnly, index)?;
        conn.rnr_nak(index, rnr_timer(1), index.unsigned_abs())?;
        conn.expect_request(Operation::SendOnly, index)?;
        conn.ack(index, index.unsigned_abs() + 1)?;
        conn.expect_completion(7, Status::Success)?;
    }
    Ok(())
}

fn duration(timer: RnrTimer) -> Duration {
    Duration::from_nanos(timer.as_ns())
}

//= RC-REQ-06 type=test
fn rnr_wait(bench: &Bench<'_>) -> CaseResult {
    let conn = connect(bench, QpSpec::default())?;
    post(&conn, 1, SEND, 8)?;
    let first = conn.expect_request(Operation::SendOnly, 0)?;
    // 10.24 ms, 40.96 ms.
    for code in [20, 24] {
        let timer = rnr_timer(code);
        let refused = Instant::now();
        conn.rnr_nak(0, timer, 0)?;
        let again = conn.expect_request(Operation::SendOnly, 0)?;
        same(&first, &again)?;
        let waited = again.at.duration_since(refused);
        if waited < duration(timer) {
            return fail(format!(
                "retransmitted after {waited:?}, less than {:?}",
                duration(timer)
            ));
        }
    }
    conn.ack(0, 1)?;
    conn.expect_completion(1, Status::Success)?;
    Ok(())
}

//= RC-REQ-06 type=test
fn rnr_resume(bench: &Bench<'_>) -> CaseResult {
    let conn = connect(bench, QpSpec::default())?;
    let reth = reth(0, 300);
    let imm = Some(*b"1234");
    post(&conn, 1, SEND, 8)?;
    let op = crate::peer::WorkOp::Write {
        va: reth.va,
        rkey: reth.rkey,
        imm,
    };
    post(&conn, 2, op, 300)?;
    let operations = [
        Operation::SendOnly,
        Operation::WriteFirst,
        Operation::WriteLastImm,
    ];
    let sent = conn.expect_requests(0, &operations)?;
    // The NAK acknowledges the previous message, and the first packet of this one.
    conn.rnr_nak(2, rnr_timer(1), 1)?;
    conn.expect_completion(1, Status::Success)?;
    same(&sent[2], &conn.expect_request(Operation::WriteLastImm, 2)?)?;
    conn.ack(2, 2)?;
    conn.expect_completion(2, Status::Success)?;
    Ok(())
}

//= RC-TMR-05 RC-REQ-06 type=test
fn rnr_exceeded(bench: &Bench<'_>, rnr_retry: u8) -> CaseResult {
    let conn = connect(
        bench,
        QpSpec {
            rnr_retry,
            ..QpSpec::default()
        },
    )?;
    post(&conn, 1, SEND, 8)?;
    for _ in 0..rnr_retry {
        conn.expect_request(Operation::SendOnly, 0)?;
        conn.rnr_nak(0, rnr_timer(1), 0)?;
    }
    conn.expect_request(Operation::SendOnly, 0)?;
    conn.expect_no_completion()?;
    conn.rnr_nak(0, rnr_timer(1), 0)?;
    conn.expect_completion(1, Status::RnrRetryExcErr)?;
    conn.expect_state(State::Err)?;
    conn.expect_silence()
}

//= RC-TMR-05 type=test
fn rnr_forever(bench: &Bench<'_>) -> CaseResult {
    let conn = connect(
        bench,
        QpSpec {
            rnr_retry: 7,
            ..QpSpec::default()
        },
    )?;
    post(&conn, 1, SEND, 8)?;
    for _ in 0..20 {
        conn.expect_request(Operation::SendOnly, 0)?;
        conn.rnr_nak(0, rnr_timer(1), 0)?;
    }
    conn.expect_request(Operation::SendOnly, 0)?;
    conn.ack(0, 1)?;
    conn.expect_completion(1, Status::Success)?;
    Ok(())
}

//= RC-REQ-19 RXE-51 type=test
fn rnr_not_cut(bench: &Bench<'_>) -> CaseResult {
    let conn = connect(
        bench,
        QpSpec {
            rnr_retry: 1,
            // A sequence NAK during the wait does not even count as a retry.
            retry_cnt: 0,
            ..QpSpec::default()
        },
    )?;
    post(&conn, 1, SEND, 8)?;
    post(&conn, 2, SEND, 8)?;
    conn.expect_requests(0, &[Operation::SendOnly; 2])?;
    let timer = rnr_timer(24);
    let refused = Instant::now();
    conn.rnr_nak(0, timer, 0)?;
    // The packets that rxe sends for the second message, and repetitions.
    for _ in 0..3 {
        conn.nak(0, NakCode::PsnSequence, 0)?;
        conn.rnr_nak(0, rnr_timer(1), 0)?;
    }
    let again = conn.expect_request(Operation::SendOnly, 0)?;
    let waited = again.at.duration_since(refused);
    if waited < duration(timer) {
        return fail(format!(
            "retransmitted after {waited:?}, less than {:?}",
            duration(timer)
        ));
    }
    conn.expect_request(Operation::SendOnly, 1)?;
    conn.ack(1, 2)?;
    conn.expect_completion(1, Status::Success)?;
    conn.expect_completion(2, Status::Success)?;
    Ok(())
}

//= RC-REQ-04 type=test
fn ack_beyond_read(bench: &Bench<'_>) -> CaseResult {
    let conn = connect(bench, QpSpec::default())?;
    post(&conn, 1, SEND, 8)?;
    post_read(&conn, 2, 300)?;
    post(&conn, 3, SEND, 8)?;
    conn.expect_request(Operation::SendOnly, 0)?;
    conn.expect_read_request(1, reth(0, 300))?;
    conn.expect_request(Operation::SendOnly, 3)?;
    conn.ack(3, 3)?;
    conn.expect_completion(1, Status::Success)?;
    conn.expect_read_request(1, reth(0, 300))?;
    conn.expect_request(Operation::SendOnly, 3)?;
    conn.expect_no_completion()?;
    let data = pattern(300);
    conn.read_response(Operation::ReadResponseFirst, 1, &data[..256], 2)?;
    conn.read_response(Operation::ReadResponseLast, 2, &data[256..], 2)?;
    conn.expect_completion(2, Status::Success)?;
    conn.expect_memory(2048, &data)?;
    conn.ack(3, 3)?;
    conn.expect_completion(3, Status::Success)?;
    Ok(())
}

//= RC-REQ-04 type=test
fn ack_of_read(bench: &Bench<'_>) -> CaseResult {
    let conn = connect(bench, QpSpec::default())?;
    post_read(&conn, 1, 300)?;
    conn.expect_read_request(0, reth(0, 300))?;
    conn.ack(1, 1)?;
    conn.expect_read_request(0, reth(0, 300))?;
    conn.expect_no_completion()
}

//= RC-REQ-04 type=test
fn ack_beyond_atomic(bench: &Bench<'_>) -> CaseResult {
    let conn = connect(bench, QpSpec::default())?;
    let reth = reth(0, 8);
    let op = crate::peer::WorkOp::FetchAdd {
        va: reth.va,
        rkey: reth.rkey,
        add: 3,
    };
    conn.post_send(&Work::new(1, op, Buffer::new(2048, 8)))?;
    post(&conn, 2, SEND, 8)?;
    let first = conn.expect_request(Operation::FetchAdd, 0)?;
    conn.expect_request(Operation::SendOnly, 1)?;
    conn.ack(1, 2)?;
    same(&first, &conn.expect_request(Operation::FetchAdd, 0)?)?;
    conn.expect_request(Operation::SendOnly, 1)?;
    conn.expect_no_completion()?;
    let answer = conn.answer(Operation::AtomicAcknowledge, 0);
    conn.send(&answer.aeth(POSITIVE, Msn::new(1)).atomic_ack(5))?;
    conn.expect_completion(1, Status::Success)?;
    conn.expect_memory(2048, &5u64.to_ne_bytes())
}

//= RC-REQ-12 type=test
fn read_gap(bench: &Bench<'_>) -> CaseResult {
    let conn = connect(bench, QpSpec::default())?;
    let data = pattern(1000);
    post_read(&conn, 1, 1000)?;
    conn.expect_read_request(0, reth(0, 1000))?;
    conn.read_response(Operation::ReadResponseFirst, 0, &data[..256], 1)?;
    conn.read_response(Operation::ReadResponseMiddle, 2, &data[512..768], 1)?;
    conn.expect_read_request(1, reth(256, 744))?;
    // Responses that were in flight are ignored.
    conn.read_response(Operation::ReadResponseLast, 3, &data[768..], 1)?;
    conn.expect_no_completion()?;
    conn.read_response(Operation::ReadResponseFirst, 1, &data[256..512], 1)?;
    conn.read_response(Operation::ReadResponseMiddle, 2, &data[512..768], 1)?;
    conn.read_response(Operation::ReadResponseLast, 3, &data[768..], 1)?;
    conn.expect_completion(1, Status::Success)?;
    conn.expect_memory(2048, &data)
}

//= RC-REQ-12 type=test
fn read_gap_at_start(bench: &Bench<'_>) -> CaseResult {
    let conn = connect(bench, QpSpec::default())?;
    let data = pattern(300);
    conn.post_send(&Work::new(1, READ, Buffer::new(2048, 300)))?;
    conn.expect_read_request(0, reth(0, 300))?;
    conn.read_response(Operation::ReadResponseLast, 1, &data[256..], 1)?;
    conn.expect_read_request(0, reth(0, 300))?;
    conn.read_response(Operation::ReadResponseFirst, 0, &data[..256], 1)?;
    conn.read_response(Operation::ReadResponseLast, 1, &data[256..], 1)?;
    conn.expect_completion(1, Status::Success)?;
    conn.expect_memory(2048, &data)
}

//= RC-TMR-01 type=test
fn no_timeout(bench: &Bench<'_>) -> CaseResult {
    let conn = connect(
        bench,
        QpSpec {
            retry_cnt: 0,
            ..QpSpec::default()
        },
    )?;
    post(&conn, 1, SEND, 8)?;
    conn.expect_request(Operation::SendOnly, 0)?;
    std::thread::sleep(Duration::from_millis(50));
    conn.expect_silence()?;
    conn.ack(0, 1)?;
    conn.expect_completion(1, Status::Success)?;
    Ok(())
}

/// 8.4 ms.
const TIMEOUT: u8 = 11;

//= RC-TMR-03 type=test
fn timeout_resends(bench: &Bench<'_>) -> CaseResult {
    let spec = QpSpec {
        // 0.27 s, so that the answer arrives before the retries end on a busy machine, too.
        ack_timeout: ack_timeout(16),
        retry_cnt: 7,
        ..QpSpec::default()
    };
    let conn = connect(bench, spec)?;
    post(&conn, 1, SEND, 8)?;
    post(&conn, 2, WRITE, 8)?;
    let operations = [Operation::SendOnly, Operation::WriteOnly];
    let sent = conn.expect_requests(0, &operations)?;
    let again = conn.expect_requests(0, &operations)?;
    same(&sent[0], &again[0])?;
    same(&sent[1], &again[1])?;
    conn.ack(1, 2)?;
    conn.expect_completion(1, Status::Success)?;
    conn.expect_completion(2, Status::Success)?;
    Ok(())
}

//= RC-TMR-06 type=test
fn timeout_exceeded(bench: &Bench<'_>) -> CaseResult {
    for retry_cnt in [0, 3] {
        let spec = QpSpec {
            ack_timeout: ack_timeout(TIMEOUT),
            retry_cnt,
            ..QpSpec::default()
        };
        let conn = connect(bench, spec)?;
        let posted = Instant::now();
        post(&conn, 1, SEND, 8)?;
        let first = conn.expect_request(Operation::SendOnly, 0)?;
        for _ in 0..retry_cnt {
            same(&first, &conn.expect_request(Operation::SendOnly, 0)?)?;
        }
        conn.expect_completion(1, Status::RetryExcErr)?;
        let timeout = ack_timeout(TIMEOUT).as_ns().unwrap_or(0);
        let least = Duration::from_nanos(timeout) * (u32::from(retry_cnt) + 1);
        let took = posted.elapsed();
        //= RC-TMR-01
        if took < least {
            return fail(format!("given up after {took:?}, less than {least:?}"));
        }
        conn.expect_state(State::Err)?;
        conn.expect_silence()?;
    }
    Ok(())
}
