//! The timeline as prost reads it, with the messages of Perfetto's schema.

use prost::Message as _;
use rocade_emulator::trace::{Kind, MAX_FIELDS, Record};

use super::event::{At, Call, Completion, Event, PacketSeen, QpId, Request, Timing, What};
use super::model::Model;
use super::perfetto::Timeline;
use super::source::Entry;
use super::timeline::read;

#[derive(prost::Message)]
struct Trace {
    #[prost(message, repeated, tag = "1")]
    packet: Vec<TracePacket>,
}

#[derive(prost::Message)]
struct TracePacket {
    #[prost(uint64, optional, tag = "8")]
    timestamp: Option<u64>,
    #[prost(uint32, optional, tag = "10")]
    trusted_packet_sequence_id: Option<u32>,
    #[prost(message, optional, tag = "11")]
    track_event: Option<TrackEvent>,
    #[prost(message, optional, tag = "60")]
    track_descriptor: Option<TrackDescriptor>,
}

#[derive(prost::Message)]
struct TrackDescriptor {
    #[prost(uint64, optional, tag = "1")]
    uuid: Option<u64>,
    #[prost(string, optional, tag = "2")]
    name: Option<String>,
    #[prost(message, optional, tag = "3")]
    process: Option<ProcessDescriptor>,
    #[prost(message, optional, tag = "4")]
    thread: Option<ThreadDescriptor>,
    #[prost(uint64, optional, tag = "5")]
    parent_uuid: Option<u64>,
    #[prost(message, optional, tag = "8")]
    counter: Option<CounterDescriptor>,
}

#[derive(prost::Message)]
struct ProcessDescriptor {
    #[prost(int32, optional, tag = "1")]
    pid: Option<i32>,
    #[prost(string, optional, tag = "6")]
    process_name: Option<String>,
}

#[derive(prost::Message)]
struct ThreadDescriptor {
    #[prost(int32, optional, tag = "1")]
    pid: Option<i32>,
    #[prost(int32, optional, tag = "2")]
    tid: Option<i32>,
}

#[derive(prost::Message)]
struct CounterDescriptor {}

#[derive(prost::Message)]
struct TrackEvent {
    #[prost(message, repeated, tag = "4")]
    debug_annotations: Vec<DebugAnnotation>,
    #[prost(int32, optional, tag = "9")]
    r#type: Option<i32>,
    #[prost(uint64, optional, tag = "11")]
    track_uuid: Option<u64>,
    #[prost(string, repeated, tag = "22")]
    categories: Vec<String>,
    #[prost(string, optional, tag = "23")]
    name: Option<String>,
    #[prost(int64, optional, tag = "30")]
    counter_value: Option<i64>,
    #[prost(fixed64, repeated, tag = "47")]
    flow_ids: Vec<u64>,
    #[prost(fixed64, repeated, tag = "48")]
    terminating_flow_ids: Vec<u64>,
}

#[derive(prost::Message)]
struct DebugAnnotation {
    #[prost(string, optional, tag = "6")]
    string_value: Option<String>,
    #[prost(string, optional, tag = "10")]
    name: Option<String>,
}

const FLOW: u64 = 1 << 40;

const QP: QpId = QpId { pid: 40, qpn: 0x11 };

fn at(time_ns: u64) -> At {
    At {
        pid: 40,
        thread: 41,
        time_ns,
    }
}

fn packet(received: bool, flow: u64) -> What {
    What::Packet(PacketSeen {
        qp: QP,
        remote_qpn: 0x12,
        received,
        opcode: 4,
        psn: 7,
        len: 300,
        flow: Some(flow),
        in_flight: 1,
        window: 3,
    })
}

fn written() -> Vec<u8> {
    let call = Call {
        begin_ns: 1_000,
        end_ns: 1_500,
        depth: 0,
        name: "ibv_alloc_pd".to_owned(),
        arguments: "context=0x1".to_owned(),
        failed: true,
        errno: 12,
        result: "NULL".to_owned(),
    };
    let request = Request {
        wr_id: 5,
        opcode: Some(2),
        len: 300,
        flags: 2,
        text: "{wr_id=0x5}".to_owned(),
    };
    let timing = Timing {
        posted_ns: 2_000,
        total: 900,
        queue: 100,
        answer: 700,
        poll: 100,
        ..Timing::default()
    };
    let completion = Completion {
        qp: QP,
        cq: 1,
        wr_id: 5,
        status: 0,
        opcode: 0,
        byte_len: 0,
        vendor_err: 0,
        empty_polls: 0,
        is_experimental: false,
        in_flight: 0,
        unsignaled: Vec::new(),
        request: Some((request, timing)),
    };
    let all = [
        (900, What::Process("./program".to_owned())),
        (1_500, What::Call(call)),
        (2_100, packet(false, FLOW)),
        (2_150, packet(true, FLOW)),
        (2_900, What::Completion(completion)),
    ];
    let mut bytes = Vec::new();
    let mut timeline = Timeline::new(&mut bytes);
    for (time_ns, what) in all {
        let at = at(time_ns);
        timeline.add(&Event { at, what }).unwrap();
    }
    timeline.finish().unwrap();
    bytes
}

#[test]
fn what_has_not_ended_is_drawn_until_the_process_ends() {
    let entry = |time_ns, kind, given: &[u64], text: &str| {
        let mut fields = [0; MAX_FIELDS];
        fields[..given.len()].copy_from_slice(given);
        Entry {
            pid: 40,
            record: Record {
                kind,
                time_ns,
                thread: 41,
                fields,
                text: text.to_owned(),
            },
        }
    };
    let mut model = Model::default();
    let of_qp = u64::from(QP.qpn) << 32;
    // RTS, and the number of the remote QP.
    let connected = [0x11, 1 | 1 << 20, 3 << 32, 0x12 << 32, 1, 1];
    let posted = [of_qp | 2, 2 << 32, 5, 300 << 32, 0, 0, 0];
    for record in [
        entry(1_000, Kind::Qp, &connected, ""),
        entry(2_000, Kind::PostSend, &posted, ""),
        entry(2_100, Kind::PostEnd, &[0, 0x11, 1 << 32, 100], ""),
        // A datagram, and its packet.
        entry(
            2_110,
            Kind::PostSend,
            &[0x21 << 32 | 2, 2 << 32, 6, 300 << 32, 0, 0, 0x22],
            "",
        ),
        entry(2_120, Kind::Sent, &[0x21 << 32 | 0x22, 0x64, 1], ""),
        entry(2_130, Kind::PostEnd, &[0, 0x21, 1 << 32, 100], ""),
        entry(2_200, Kind::Enter, &[], "ibv_get_cq_event\tchannel=0x1"),
    ] {
        model.take(&record);
    }
    let mut bytes = Vec::new();
    let mut timeline = Timeline::new(&mut bytes);
    timeline.unfinished(&model, |_| 9_000).unwrap();
    timeline.finish().unwrap();
    let (tracks, _) = read(&bytes);
    let slices = tracks.values().flat_map(|track| &track.slices);
    let mut open: Vec<_> = slices
        .map(|slice| (slice.begin_ns, slice.end_ns, slice.name.as_str()))
        .collect();
    open.sort_unstable();
    let expected = [
        (2_000, Some(9_000), "SEND, not complete"),
        (2_200, Some(9_000), "ibv_get_cq_event, not returned"),
    ];
    assert_eq!(open, expected);
}

#[test]
fn another_decoder_reads_the_timeline() {
    let trace = Trace::decode(&*written()).unwrap();
    let sequence = |packet: &TracePacket| packet.trusted_packet_sequence_id == Some(1);
    assert!(trace.packet.iter().all(sequence));
    let tracks: Vec<&TrackDescriptor> = trace
        .packet
        .iter()
        .filter_map(|packet| packet.track_descriptor.as_ref())
        .collect();
    let process = tracks.iter().find(|track| track.process.is_some()).unwrap();
    let described = process.process.as_ref().unwrap();
    assert_eq!(described.pid, Some(40));
    assert_eq!(described.process_name.as_deref(), Some("./program"));
    let thread = tracks.iter().find_map(|track| track.thread.as_ref());
    assert_eq!(thread.unwrap().tid, Some(41));
    let others = tracks.iter().filter(|track| track.process.is_none());
    assert!(others.clone().count() >= 5, "{tracks:?}");
    assert!(
        others
            .clone()
            .all(|track| track.parent_uuid == process.uuid)
    );
    let counters = others.filter(|track| track.counter.is_some());
    assert_eq!(counters.count(), 2);

    let events: Vec<(u64, &TrackEvent)> = trace
        .packet
        .iter()
        .filter_map(|packet| Some((packet.timestamp?, packet.track_event.as_ref()?)))
        .collect();
    let named = |name: &str| {
        let found = events
            .iter()
            .find(|(_, event)| event.name.as_deref() == Some(name));
        *found.unwrap_or_else(|| panic!("{name} is missing"))
    };
    let (begin, call) = named("ibv_alloc_pd");
    assert_eq!((begin, call.r#type), (1_000, Some(1)));
    let words = &call.debug_annotations[1];
    assert_eq!(words.name.as_deref(), Some("result"));
    assert_eq!(words.string_value.as_deref(), Some("NULL ENOMEM"));
    let (begin, send) = named("SEND");
    assert_eq!(begin, 2_000);
    let ends = events
        .iter()
        .filter(|(_, event)| event.r#type == Some(2) && event.track_uuid == send.track_uuid);
    assert_eq!(ends.map(|(time, _)| *time).max(), Some(2_900));
    let (begin, _) = named("wire and peer");
    assert_eq!(begin, 2_100);
    assert_eq!(named("RC SEND_ONLY sent").1.flow_ids, [FLOW]);
    assert_eq!(
        named("RC SEND_ONLY received").1.terminating_flow_ids,
        [FLOW]
    );
    let window = events
        .iter()
        .filter(|(_, event)| event.counter_value == Some(3));
    assert_eq!(window.count(), 1);
}

#[test]
fn the_reader_finds_what_was_written_and_notices_a_missing_end() {
    let bytes = written();
    let (tracks, is_whole) = read(&bytes);
    assert!(is_whole);
    let send = tracks
        .values()
        .flat_map(|track| &track.slices)
        .find(|slice| slice.name == "SEND")
        .unwrap();
    assert_eq!((send.begin_ns, send.end_ns), (2_000, Some(2_900)));
    assert_eq!(send.depth, 0);
    let parts = tracks.values().flat_map(|track| &track.slices);
    let inner: Vec<&str> = parts
        .filter(|slice| slice.depth == 1)
        .map(|slice| slice.name.as_str())
        .collect();
    assert_eq!(inner, ["queue", "wire and peer", "poll"]);
    let (_, is_whole) = read(&bytes[..bytes.len() - 3]);
    assert!(!is_whole);
    assert!(read(b"no timeline").0.is_empty());
}
