//! Messages between the broker and its clients, with arbitrary contents.

#![no_main]

use libfuzzer_sys::fuzz_target;
use rocade_emulator::fuzzing::broker_messages;

/// The length of the header: magic, version, kind, length.
const HEADER_LEN: usize = 12;

fuzz_target!(|input: &[u8]| {
    let Some((&[kind, fds], body)) = input.split_first_chunk::<2>() else {
        return;
    };
    let fds = usize::from(fds % 20);
    broker_messages(input, fds);
    // The input with a correct header before it.
    let len = u32::try_from(HEADER_LEN + body.len()).unwrap_or(u32::MAX);
    let version = rocade_emulator::broker::PROTOCOL_VERSION.to_le_bytes();
    let kind = u16::from(kind).to_le_bytes();
    let message = [b"RCDB", &version[..], &kind, &len.to_le_bytes(), body].concat();
    broker_messages(&message, fds);
});
