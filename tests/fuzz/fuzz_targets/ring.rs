//! Records in the ring of a link through shared memory, whose other end writes anything anywhere.

#![no_main]

use libfuzzer_sys::fuzz_target;
use rocade_emulator::fuzzing::ring_records;

fuzz_target!(|input: &[u8]| ring_records(input));
