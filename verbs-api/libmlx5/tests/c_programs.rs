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
    &["mlx5", "ibverbs"],
    rocade_symbols::verify::built_library,
    ("/usr/include/infiniband/mlx5dv.h", "libibverbs-dev"),
    &[],
);

rocade_tests::c_programs! {
    PROGRAMS;
    direct:
        a_device_of_another_kind_refuses,
        a_region_of_a_descriptor,
        a_read_without_a_limit,
        dynamic_connections_count,
        sizes_and_failures_of_later_releases;
}
