//! Lines, tables and timelines of records of one or two processes.

use rocade_emulator::trace::{Kind, MAX_FIELDS, Record};

use super::args::TraceFilter;
use super::event::Event;
use super::model::Model;
use super::perfetto::Timeline;
use super::print;
use super::source::Entry;
use super::summary::Summary;
use super::timeline::read;

/// The number and the address of a QP.
type End = (u64, u64);

const REQUESTER: End = (0x11, 0xa);
const RESPONDER: End = (0x22, 0xb);

const WRITE_ONLY: u64 = 0x0a;
const ACKNOWLEDGE: u64 = 0x11;
const ACK: u64 = 0x1f00_0000;
/// The AETH of a NAK: remote access error.
const ACCESS_NAK: u64 = 0x6200_0000;

const SUCCESS: u64 = 0;
const REM_ACCESS_ERR: u64 = 10;

/// Returns a record. The process has the number of its QP.
fn entry(time_ns: u64, (pid, _): End, kind: Kind, given: &[u64]) -> Entry {
    let mut fields = [0; MAX_FIELDS];
    fields[..given.len()].copy_from_slice(given);
    let pid = u32::try_from(pid).expect("a number");
    let record = Record {
        kind,
        time_ns,
        thread: pid,
        fields,
        text: String::new(),
    };
    Entry { pid, record }
}

/// Moves a QP to RTS.
fn connected(time_ns: u64, own: End, remote: End, sq_sig_all: bool) -> Entry {
    let mask = 1 | 1 << 20;
    let of_remote = remote.0 << 32;
    let fields = [own.0, mask, 3 << 32, of_remote, 1, 1, sq_sig_all.into()];
    entry(time_ns, own, Kind::Qp, &fields)
}

/// Posts a WRITE of 64 bytes. All have the same ID.
fn write(time_ns: u64, signaled: bool) -> [Entry; 2] {
    let flags = if signaled { 2 } else { 0 };
    let (qpn, _) = REQUESTER;
    let fields = [qpn << 32, flags << 32, 7, 64 << 32, 0, 0, 0];
    [
        entry(time_ns, REQUESTER, Kind::PostSend, &fields),
        entry(time_ns, REQUESTER, Kind::PostEnd, &[0, qpn, 1 << 32, 1]),
    ]
}

fn sent(time_ns: u64, from: End, to: End, psn: u64, (code, aeth): (u64, u64)) -> Entry {
    let fields = [from.0 << 32 | to.0, psn << 32 | code, to.1, aeth];
    entry(time_ns, from, Kind::Sent, &fields)
}

fn received(time_ns: u64, own: End, psn: u64, (code, aeth): (u64, u64)) -> Entry {
    let fields = [own.0 << 32, psn << 32 | code, own.1, aeth];
    entry(time_ns, own, Kind::Received, &fields)
}

/// Polls the completion of a WRITE.
fn polled(time_ns: u64, status: u64) -> Entry {
    let fields = [1, 7, status << 32 | 1, REQUESTER.0 << 32, 0, 0, 0];
    entry(time_ns, REQUESTER, Kind::Completion, &fields)
}

fn events(records: impl IntoIterator<Item = Entry>) -> (Model, Vec<Event>) {
    let mut model = Model::default();
    let mut events = Vec::new();
    for record in records {
        events.extend(model.take(&record));
    }
    (model, events)
}

/// Returns count and failures of the WRITEs in the table.
fn counted(events: &[Event]) -> (u32, u32) {
    let mut summary = Summary::default();
    events.iter().for_each(|event| summary.add(event));
    let text = summary.text();
    let mut rows = text.lines().map(|row| row.split_whitespace());
    let mut row = rows
        .find_map(|mut row| (row.next() == Some("RDMA_WRITE")).then_some(row))
        .unwrap_or_else(|| panic!("no WRITE: {text}"));
    let mut number = || row.next().and_then(|word| word.parse().ok());
    (number().expect("a count"), number().expect("failures"))
}

/// Returns name, begin and end of all slices of requests, by their depths and times.
fn slices(model: &Model, events: &[Event]) -> Vec<(usize, u64, u64, String)> {
    let mut bytes = Vec::new();
    let mut timeline = Timeline::new(&mut bytes);
    for event in events {
        timeline.add(event).expect("written");
    }
    timeline.unfinished(model, |_| 9_999).expect("written");
    timeline.finish().expect("written");
    let (tracks, _) = read(&bytes);
    let requests = tracks
        .values()
        .filter(|track| track.name.ends_with("requests"));
    let mut found: Vec<_> = requests
        .flat_map(|track| &track.slices)
        .map(|one| {
            let end = one.end_ns.expect("an end");
            (one.depth, one.begin_ns, end, one.name.clone())
        })
        .collect();
    found.sort_unstable();
    found
}

/// Returns the whole requests among slices: begin, end and name.
fn whole(slices: &[(usize, u64, u64, String)]) -> Vec<(u64, u64, &str)> {
    let outer = slices.iter().filter(|(depth, ..)| *depth == 0);
    outer
        .map(|(_, begin, end, name)| (*begin, *end, name.as_str()))
        .collect()
}

/// Returns the last line.
fn line(events: &[Event]) -> String {
    let filter = TraceFilter::default();
    let mut lines = events.iter().map(|event| print::text(event, &filter));
    lines.next_back().flatten().expect("a line")
}

#[test]
fn unsignaled_requests_end_with_the_next_completion() {
    let mut records = vec![connected(50, REQUESTER, RESPONDER, false)];
    for (number, begin) in (0..4).zip([100, 200, 300, 400]) {
        records.extend(write(begin, number == 2));
        let packet = (WRITE_ONLY, 0);
        records.push(sent(begin + 10, REQUESTER, RESPONDER, number, packet));
    }
    records.push(received(500, REQUESTER, 3, (ACKNOWLEDGE, ACK)));
    records.push(polled(600, SUCCESS));
    let (model, events) = events(records);
    assert_eq!(counted(&events), (3, 0));
    let slices = slices(&model, &events);
    let expected = [
        (100, 600, "RDMA_WRITE, unsignaled"),
        (200, 600, "RDMA_WRITE, unsignaled"),
        (300, 600, "RDMA_WRITE"),
    ];
    assert_eq!(whole(&slices), expected);
    let line = line(&events);
    assert!(line.contains("(2 unsignaled requests before)"), "{line}");
}

/// Returns the events of a WRITE that the peer answers 200 ns after its arrival.
fn answered(aeth: u64, status: u64) -> (Model, Vec<Event>) {
    let mut records = vec![
        connected(50, REQUESTER, RESPONDER, false),
        connected(60, RESPONDER, REQUESTER, false),
    ];
    records.extend(write(100, true));
    let (packet, answer) = ((WRITE_ONLY, 0), (ACKNOWLEDGE, aeth));
    records.extend([
        sent(1_100, REQUESTER, RESPONDER, 5, packet),
        received(1_400, RESPONDER, 5, packet),
        sent(1_600, RESPONDER, REQUESTER, 5, answer),
        received(2_000, REQUESTER, 5, answer),
        polled(2_500, status),
    ]);
    events(records)
}

#[test]
fn wire_and_peer_are_told_apart_if_both_ends_are_traced() {
    for (aeth, status) in [(ACK, SUCCESS), (ACCESS_NAK, REM_ACCESS_ERR)] {
        let (model, events) = answered(aeth, status);
        let line = line(&events);
        let parts = "after 2.4 us: queue 1.0 us, wire 0.7 us, peer 0.2 us, poll 0.5 us";
        assert!(line.ends_with(parts), "{line}");
        let slices = slices(&model, &events);
        let inner: Vec<_> = slices
            .iter()
            .filter(|(depth, ..)| *depth == 1)
            .map(|(_, begin, end, name)| (*begin, *end, name.as_str()))
            .collect();
        let expected = [
            (100, 1_100, "queue"),
            (1_100, 1_400, "wire"),
            (1_400, 1_600, "peer"),
            (1_600, 2_000, "wire"),
            (2_000, 2_500, "poll"),
        ];
        assert_eq!(inner, expected, "status {status}");
    }
}

#[test]
fn before_a_failure_only_answered_requests_have_succeeded() {
    let mut records = vec![connected(50, REQUESTER, RESPONDER, false)];
    for (number, begin) in (0..3).zip([100, 200, 300]) {
        records.extend(write(begin, false));
        let packet = (WRITE_ONLY, 0);
        records.push(sent(begin + 10, REQUESTER, RESPONDER, number, packet));
    }
    records.push(received(500, REQUESTER, 0, (ACKNOWLEDGE, ACK)));
    records.push(polled(600, REM_ACCESS_ERR));
    let (model, events) = events(records);
    assert_eq!(counted(&events), (2, 1));
    let slices = slices(&model, &events);
    let expected = [
        (100, 600, "RDMA_WRITE, unsignaled"),
        (200, 600, "RDMA_WRITE REM_ACCESS_ERR"),
        (300, 9_999, "RDMA_WRITE, not complete"),
    ];
    assert_eq!(whole(&slices), expected);
}

#[test]
fn all_requests_of_a_queue_pair_may_be_signaled() {
    let mut records = vec![connected(50, REQUESTER, RESPONDER, true)];
    records.extend(write(100, false));
    records.extend(write(200, true));
    records.extend([polled(300, SUCCESS), polled(400, SUCCESS)]);
    let (model, events) = events(records);
    assert_eq!(counted(&events), (2, 0));
    let slices = slices(&model, &events);
    let expected = [(100, 300, "RDMA_WRITE"), (200, 400, "RDMA_WRITE")];
    assert_eq!(whole(&slices), expected);
}
