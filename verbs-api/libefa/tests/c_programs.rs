//! C programs, compiled against the installed headers and run with the built libraries.
//!
//! Each program of `tests/c` has several cases. Each test here runs one case.
#![cfg(target_os = "linux")]

use rocade_tests::c_programs::Programs;

static PROGRAMS: Programs = Programs::new(
    (
        concat!(env!("CARGO_MANIFEST_DIR"), "/tests/c"),
        env!("CARGO_TARGET_TMPDIR"),
    ),
    &["efa", "ibverbs"],
    rocade_symbols::verify::built_library,
    ("/usr/include/infiniband/verbs.h", "libibverbs-dev"),
    &[],
);

rocade_tests::c_programs! {
    PROGRAMS;
    counters:
        values_in_memory_of_the_program,
        values_in_memory_of_a_descriptor,
        memory_that_goes_away,
        mistakes;
}
