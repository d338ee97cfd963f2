//! Compares the dynamic symbols of a built library with a measured table, for tests.

use std::{
    collections::BTreeSet,
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

/// The prefix of version nodes that only Rocade has: those of its private interfaces and of its own
/// headers.
const OURS: &str = "ROCADE_";

/// A defined, versioned dynamic symbol.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct DynamicSymbol {
    /// Name.
    pub symbol: String,
    /// Version node.
    pub version: String,
    /// True for the default version (`@@`).
    pub default: bool,
    /// `FUNC` or `OBJECT`.
    pub kind: String,
    /// Size in bytes of an `OBJECT`. `None` for a function, whose size does not matter.
    pub object_size: Option<u64>,
}

/// Checks the exports of `lib<name>.so`, which it builds first. The library must have the SONAME
/// `lib<name>.so.1`. It must export exactly the symbols of
/// `tests/abi/symbols-exported-lib<name>.tsv` and the nodes of `symbols-versions-lib<name>.tsv`,
/// besides those that later releases have added. These are in `tests/abi/symbols-rdma-core-65.tsv`,
/// and for the private nodes in between in `symbols-private-nodes.tsv`. Skips the check if
/// `readelf` is not installed.
///
/// # Panics
/// On any difference, and if a file is missing.
pub fn assert_exports(crate_dir: &str, name: &str) {
    let library = built_library(name);
    let Some(symbols) = readelf(&library, &["--dyn-syms", "-W"]) else {
        rocade_skip::skip!(rocade_skip::Reason::Package("binutils".to_owned()));
    };
    let data = Path::new(crate_dir).join("../../tests/abi");
    let expected = measured_symbols(&read(&data.join(format!("symbols-exported-lib{name}.tsv"))));
    let actual = defined_symbols(&symbols);
    let mut later = later_symbols(&read(&data.join("symbols-rdma-core-65.tsv")), name);
    if name == "ibverbs" {
        later.extend(private_symbols(&read(
            &data.join("symbols-private-nodes.tsv"),
        )));
    }
    let nodes = measured_nodes(&read(&data.join(format!("symbols-versions-lib{name}.tsv"))));
    let lacks = |(symbol, version): &&(String, String)| {
        let is_it = |found: &DynamicSymbol| (&found.symbol, &found.version) == (symbol, version);
        !actual.iter().any(is_it)
    };
    let missing: Vec<_> = expected.difference(&actual).collect();
    let missing_later: Vec<_> = later.iter().filter(lacks).collect();
    assert!(missing_later.is_empty(), "missing {missing_later:?}");
    // Each private node has the symbols of all of them.
    let is_later = |found: &&DynamicSymbol| {
        let is_new = !nodes.contains(&found.version);
        let private = found.version.starts_with("IBVERBS_PRIVATE_");
        let of_node = |(symbol, version): &(String, String)| {
            *symbol == found.symbol && (private || *version == found.version)
        };
        is_new
            && (later.iter().any(of_node)
                || private && expected.iter().any(|e| e.symbol == found.symbol))
    };
    let surplus: Vec<_> = actual.difference(&expected).collect();
    let surplus: Vec<_> = surplus
        .into_iter()
        .filter(|found| !is_later(found))
        .collect();
    assert!(
        missing.is_empty() && surplus.is_empty(),
        "missing {missing:?}, surplus {surplus:?}"
    );

    let dynamic = readelf(&library, &["-d", "-W"]).unwrap_or_default();
    assert!(
        dynamic.contains(&format!("soname: [lib{name}.so.1]")),
        "wrong SONAME: {dynamic}"
    );

    let defined = readelf(&library, &["-V", "-W"]).unwrap_or_default();
    let defined = defined_nodes(&defined);
    let mut expected = nodes;
    expected.extend(later.into_iter().map(|(_, version)| version));
    assert_eq!(defined, expected, "version nodes");
}

/// Functions of libc that libraries for sockets define, rdma-core's `librspreload` among them, to
/// take over the sockets of a program. `ppoll` is not in this list: it is a cancellation point.
const TAKEN_OVER: [&str; 46] = [
    "accept",
    "accept4",
    "bind",
    "close",
    "connect",
    "dup",
    "dup2",
    "dup3",
    "epoll_create",
    "epoll_create1",
    "epoll_ctl",
    "epoll_pwait",
    "epoll_wait",
    "eventfd",
    "fcntl",
    "fcntl64",
    "getpeername",
    "getsockname",
    "getsockopt",
    "ioctl",
    "listen",
    "pipe",
    "pipe2",
    "poll",
    "pselect",
    "read",
    "readv",
    "recv",
    "recvfrom",
    "recvmmsg",
    "recvmsg",
    "select",
    "send",
    "sendfile",
    "sendfile64",
    "sendmmsg",
    "sendmsg",
    "sendto",
    "setsockopt",
    "shutdown",
    "socket",
    "socketpair",
    "splice",
    "vmsplice",
    "write",
    "writev",
];

/// Checks that `lib<name>.so` makes its system calls by itself: it imports no function that a
/// library for sockets may have taken over. Builds the library first. Skips the check if `readelf`
/// is not installed.
///
/// # Panics
/// If it imports any.
pub fn assert_own_system_calls(name: &str) {
    let Some(symbols) = readelf(&built_library(name), &["--dyn-syms", "-W"]) else {
        rocade_skip::skip!(rocade_skip::Reason::Package("binutils".to_owned()));
    };
    let imported = imported_symbols(&symbols);
    assert!(imported.contains("malloc"), "no imports: {symbols}");
    let taken_over: Vec<&&str> = TAKEN_OVER
        .iter()
        .filter(|name| imported.contains(**name))
        .collect();
    assert!(taken_over.is_empty(), "imports {taken_over:?}");
}

/// Returns the names of undefined symbols in the output of `readelf --dyn-syms`.
fn imported_symbols(output: &str) -> BTreeSet<&str> {
    let undefined = output.lines().filter_map(|line| {
        let (_, name) = line.split_once(" UND ")?;
        name.split('@').next()
    });
    undefined.map(str::trim).collect()
}

/// Returns the symbols and nodes of a library in rdma-core 65.
fn later_symbols(table: &str, name: &str) -> BTreeSet<(String, String)> {
    let library = format!("lib{name}");
    let rows = table.lines().skip(1).map(|line| {
        let columns: Vec<&str> = line.split('\t').collect();
        let [library, version, symbol] = columns.as_slice() else {
            panic!("malformed row: {line}");
        };
        (*library, ((*symbol).to_owned(), (*version).to_owned()))
    });
    let rows = rows.filter(|(of, _)| *of == library);
    rows.map(|(_, symbol)| symbol).collect()
}

/// Returns the symbols of the private nodes between the two measured releases, and these nodes.
fn private_symbols(table: &str) -> BTreeSet<(String, String)> {
    let rows = table.lines().skip(1).map(|line| {
        let row = line.split_once('\t');
        let (version, symbol) = row.unwrap_or_else(|| panic!("malformed row: {line}"));
        (symbol.to_owned(), version.to_owned())
    });
    rows.collect()
}

/// Builds `lib<name>.so` into the target directory and profile of the running test, and returns its
/// path. `cargo test` does not build a `cdylib` for its own integration tests.
///
/// With `ROCADE_TEST_BUILT`, which `cargo xtask test` sets, everything is built already.
///
/// # Panics
/// If the test does not run from a cargo target directory, or the build fails.
#[must_use]
pub fn built_library(name: &str) -> PathBuf {
    let exe = env::current_exe().expect("a running test has a path");
    let profile_dir = exe
        .ancestors()
        .nth(2)
        .expect("tests live in <target>/<profile>/deps");
    let library = profile_dir.join(format!("lib{name}.so"));
    if env::var_os("ROCADE_TEST_BUILT").is_some() {
        assert!(library.is_file(), "{} is not built", library.display());
        return library;
    }
    let target_dir = profile_dir
        .parent()
        .expect("a profile lives in a target directory");
    let profile = match profile_dir.file_name().and_then(|name| name.to_str()) {
        Some("debug") | None => "dev",
        Some(other) => other,
    };
    let cargo = env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let package = format!("rocade-lib{name}");
    let status = Command::new(cargo)
        .args([
            "build",
            "--quiet",
            "--package",
            &package,
            "--profile",
            profile,
            "--target-dir",
        ])
        .arg(target_dir)
        .status()
        .expect("cargo runs");
    assert!(status.success(), "cargo build --package {package}");
    library
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn readelf(library: &Path, arguments: &[&str]) -> Option<String> {
    let output = Command::new("readelf")
        .args(arguments)
        .arg(library)
        .output()
        .ok()?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "readelf {}: {stderr}",
        library.display()
    );
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Returns the rows of a measured table of symbols.
fn measured_symbols(table: &str) -> BTreeSet<DynamicSymbol> {
    let mut symbols = BTreeSet::new();
    for line in table.lines().skip(1) {
        let columns: Vec<&str> = line.split('\t').collect();
        let [symbol, version, default, kind, _bind, size] = columns.as_slice() else {
            panic!("malformed row: {line}");
        };
        symbols.insert(DynamicSymbol {
            symbol: (*symbol).to_owned(),
            version: (*version).to_owned(),
            default: *default == "yes",
            kind: (*kind).to_owned(),
            object_size: if *kind == "OBJECT" {
                size.parse().ok()
            } else {
                None
            },
        });
    }
    symbols
}

/// Returns the defined symbols in the output of `readelf --dyn-syms -W`.
fn defined_symbols(listing: &str) -> BTreeSet<DynamicSymbol> {
    let mut symbols = BTreeSet::new();
    for line in listing.lines() {
        let columns: Vec<&str> = line.split_whitespace().collect();
        let [
            _,
            _,
            size,
            kind,
            "GLOBAL" | "WEAK",
            "DEFAULT",
            section,
            versioned,
        ] = columns.as_slice()
        else {
            continue;
        };
        if *section == "UND" || *section == "ABS" || versioned.contains(OURS) {
            continue;
        }
        let (symbol, version, default) = match versioned.split_once("@@") {
            Some((symbol, version)) => (symbol, version, true),
            None => {
                let (symbol, version) = versioned.split_once('@').unwrap_or((versioned, ""));
                (symbol, version, false)
            }
        };
        symbols.insert(DynamicSymbol {
            symbol: symbol.to_owned(),
            version: version.to_owned(),
            default,
            kind: (*kind).to_owned(),
            object_size: if *kind == "OBJECT" {
                size.parse().ok()
            } else {
                None
            },
        });
    }
    symbols
}

/// Returns the node names of a measured table, without the base version.
fn measured_nodes(table: &str) -> BTreeSet<String> {
    let rows = table
        .lines()
        .skip(1)
        .map(|line| line.split('\t').collect::<Vec<_>>());
    rows.filter(|row| row.get(3) == Some(&"0"))
        .filter_map(|row| row.get(1).map(|name| (*name).to_owned()))
        .collect()
}

/// Returns the node names in the definition section of `readelf -V`, without the base version.
fn defined_nodes(listing: &str) -> BTreeSet<String> {
    let definitions = listing
        .split("Version definition section")
        .nth(1)
        .unwrap_or_default();
    let definitions = definitions
        .split("Version needs section")
        .next()
        .unwrap_or_default();
    definitions
        .lines()
        .filter(|line| line.contains("Index:") && !line.contains("Flags: BASE"))
        .filter_map(|line| line.rsplit("Name: ").next())
        .map(|name| name.trim().to_owned())
        .filter(|name| !name.starts_with(OURS))
        .collect()
}
