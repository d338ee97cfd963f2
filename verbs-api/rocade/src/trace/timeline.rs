//! Reads a timeline that [`super::perfetto`] has written.

use std::collections::BTreeMap;

use super::perfetto::field;
use super::proto::{Fields, Value};

/// A slice of a track. `end_ns` is `None` for an instant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Slice {
    pub(super) name: String,
    pub(super) category: String,
    pub(super) begin_ns: u64,
    pub(super) end_ns: Option<u64>,
    /// The slices around it.
    pub(super) depth: usize,
    pub(super) words: Vec<(String, String)>,
    pub(super) flow: Option<u64>,
    pub(super) ends_flow: bool,
}

/// A track and what is on it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Track {
    pub(super) name: String,
    pub(super) parent: u64,
    pub(super) pid: u64,
    pub(super) thread: u64,
    pub(super) slices: Vec<Slice>,
    /// Times and values of a counter.
    pub(super) values: Vec<(u64, u64)>,
}

/// All tracks by their identifiers.
pub(super) type Tracks = BTreeMap<u64, Track>;

/// Reads a timeline. Returns the tracks, and false if the end of the file is missing.
pub(super) fn read(bytes: &[u8]) -> (Tracks, bool) {
    let mut tracks = Tracks::new();
    let mut fields = Fields::of(bytes);
    let mut open: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
    let mut events = Vec::new();
    for (number, packet) in fields.by_ref() {
        if number != field::TRACE_PACKET {
            continue;
        }
        let mut time_ns = 0;
        for (number, value) in Fields::of(packet.bytes()) {
            match number {
                field::TIMESTAMP => time_ns = value.number(),
                field::TRACK_DESCRIPTOR => describe(&mut tracks, value),
                field::TRACK_EVENT => events.push((time_ns, value)),
                _ => {}
            }
        }
    }
    // A slice is written as it ends, so that its parts follow it with earlier times.
    events.sort_by_key(|(time_ns, _)| *time_ns);
    for (time_ns, event) in events {
        add(&mut tracks, &mut open, time_ns, event);
    }
    (tracks, fields.is_at_end())
}

fn describe(tracks: &mut Tracks, description: Value<'_>) {
    let mut track = Track::default();
    let mut uuid = 0;
    for (number, value) in Fields::of(description.bytes()) {
        match number {
            field::UUID => uuid = value.number(),
            field::TRACK_NAME => track.name = value.text(),
            field::PARENT => track.parent = value.number(),
            field::PROCESS => {
                for (number, value) in Fields::of(value.bytes()) {
                    match number {
                        field::PID => track.pid = value.number(),
                        field::PROCESS_NAME => track.name = value.text(),
                        _ => {}
                    }
                }
            }
            field::THREAD => {
                for (number, value) in Fields::of(value.bytes()) {
                    if number == field::TID {
                        track.thread = value.number();
                    }
                }
            }
            _ => {}
        }
    }
    tracks.insert(uuid, track);
}

fn add(tracks: &mut Tracks, open: &mut BTreeMap<u64, Vec<usize>>, time_ns: u64, event: Value<'_>) {
    let (mut kind, mut uuid, mut counter) = (0, 0, 0);
    let mut slice = Slice {
        name: String::new(),
        category: String::new(),
        begin_ns: time_ns,
        end_ns: None,
        depth: 0,
        words: Vec::new(),
        flow: None,
        ends_flow: false,
    };
    for (number, value) in Fields::of(event.bytes()) {
        match number {
            field::TYPE => kind = value.number(),
            field::TRACK => uuid = value.number(),
            field::NAME => slice.name = value.text(),
            field::CATEGORY => slice.category = value.text(),
            field::COUNTER_VALUE => counter = value.number(),
            field::FLOW | field::END_OF_FLOW => {
                slice.flow = Some(value.number());
                slice.ends_flow = number == field::END_OF_FLOW;
            }
            field::ANNOTATION => slice.words.push(words(value)),
            _ => {}
        }
    }
    let Some(track) = tracks.get_mut(&uuid) else {
        return;
    };
    let open = open.entry(uuid).or_default();
    match kind {
        field::SLICE_BEGIN => {
            slice.depth = open.len();
            open.push(track.slices.len());
            track.slices.push(slice);
        }
        field::SLICE_END => {
            let ended = open.pop().and_then(|index| track.slices.get_mut(index));
            if let Some(slice) = ended {
                slice.end_ns = Some(time_ns);
            }
        }
        field::COUNTER_TYPE => track.values.push((time_ns, counter)),
        _ => track.slices.push(slice),
    }
}

fn words(annotation: Value<'_>) -> (String, String) {
    let mut words = (String::new(), String::new());
    for (number, value) in Fields::of(annotation.bytes()) {
        match number {
            field::ANNOTATION_NAME => words.0 = value.text(),
            field::ANNOTATION_STRING => words.1 = value.text(),
            _ => {}
        }
    }
    words
}
