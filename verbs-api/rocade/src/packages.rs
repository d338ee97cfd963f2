//! The Debian packages of well-known programs that use RDMA.

use std::ffi::OsStr;

/// Programs by package, beside those that [`debian_package`] knows by the beginning of their names.
const PROGRAMS: [(&str, &[&str]); 13] = [
    (
        "infiniband-diags",
        &[
            "dump_fts",
            "ibaddr",
            "ibhosts",
            "iblinkinfo",
            "ibnetdiscover",
            "ibnodes",
            "ibping",
            "ibportstate",
            "ibqueryerrors",
            "ibroute",
            "ibstat",
            "ibstatus",
            "ibswitches",
            "ibsysstat",
            "ibtracert",
            "perfquery",
            "saquery",
            "sminfo",
            "smpdump",
            "smpquery",
            "vendstat",
        ],
    ),
    (
        "rdmacm-utils",
        &[
            "cmtime",
            "mckey",
            "rcopy",
            "rdma_client",
            "rdma_server",
            "rdma_xclient",
            "rdma_xserver",
            "riostream",
            "rping",
            "rstream",
            "ucmatose",
            "udaddy",
            "udpong",
        ],
    ),
    ("perftest", &["run_perftest_loopback"]),
    ("ibacm", &["ib_acme", "ibacm"]),
    ("srptools", &["ibsrpdm", "srp_daemon"]),
    ("opensm", &["opensm"]),
    ("qperf", &["qperf"]),
    ("fio", &["fio"]),
    (
        "ucx-utils",
        &["ucx_info", "ucx_perftest", "ucx_read_profile"],
    ),
    ("openmpi-bin", &["mpiexec", "mpirun", "ompi_info"]),
    ("iproute2", &["ip", "rdma", "ss"]),
    ("nvme-cli", &["nvme"]),
    ("iperf3", &["iperf3"]),
];

/// Beginnings of the names of the programs of a package.
const FAMILIES: [(&str, &str); 4] = [
    ("ibv_", "ibverbs-utils"),
    ("ib_", "perftest"),
    ("raw_ethernet_", "perftest"),
    ("fi_", "libfabric-bin"),
];

/// Returns the Debian package of a well-known program.
pub(crate) fn debian_package(program: &OsStr) -> Option<&'static str> {
    let name = program.to_str()?;
    let by_name = PROGRAMS.iter().find(|(_, names)| names.contains(&name));
    let family = || {
        let found = FAMILIES.iter().find(|(begin, _)| name.starts_with(begin));
        found.map(|(_, package)| *package)
    };
    by_name.map(|(package, _)| *package).or_else(family)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_that_users_miss_have_a_package() {
        for (program, package) in [
            ("ibv_devinfo", "ibverbs-utils"),
            ("ib_write_bw", "perftest"),
            ("ib_acme", "ibacm"),
            ("rping", "rdmacm-utils"),
            ("ibstat", "infiniband-diags"),
            ("qperf", "qperf"),
            ("fio", "fio"),
            ("fi_pingpong", "libfabric-bin"),
            ("ucx_perftest", "ucx-utils"),
        ] {
            assert_eq!(debian_package(program.as_ref()), Some(package), "{program}");
        }
        assert_eq!(debian_package("my_program".as_ref()), None);
    }
}
