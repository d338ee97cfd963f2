#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| rocade_fuzz_targets::qp::run(input));
