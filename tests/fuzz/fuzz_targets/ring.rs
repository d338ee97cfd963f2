//! Records in a ring of the shared-memory link, into which the other side writes arbitrary bytes.

#![no_main]

use libfuzzer_sys::fuzz_target;
use rocade_emulator::fuzzing::ring_records;

fuzz_target!(|input: &[u8]| ring_records(input));
