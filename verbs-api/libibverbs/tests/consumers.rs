//! Every program and library of the distribution loads with Rocade's libraries in place of the
//! original ones.
#![cfg(target_os = "linux")]

use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
};

const LIBRARIES: [&str; 5] = ["ibverbs", "rdmacm", "mlx5", "efa", "mana"];

fn table(name: &str) -> Vec<Vec<String>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/abi")
        .join(name);
    let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let rows = text.lines().skip(1);
    rows.map(|row| row.split('\t').map(str::to_owned).collect())
        .collect()
}

/// Returns symbol and version node of all exports of a Rocade library.
fn exports(name: &str) -> BTreeSet<(String, String)> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../lib{name}"));
    let read = |table: &str| {
        let path = directory.join(table);
        fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
    };
    let exports = rocade_symbols::exports(&read("exports.tsv"));
    let exports = exports.expect("the table that the library is built from");
    let nodes = rocade_symbols::versions(&read("versions.tsv")).expect("the other table");
    let rows = rocade_symbols::with_repeated(exports, &nodes);
    rows.into_iter()
        .map(|row| (row.symbol, row.version))
        .collect()
}

#[test]
fn all_that_is_needed_is_there() {
    assert_all_exported("symbols-needed.tsv", 300);
}

/// The programs of rdma-core 65, its Python modules, perftest, and libraries of other vendors. Such
/// a library registers itself in the private node of its release.
#[test]
fn all_that_a_later_release_needs_is_there() {
    assert_all_exported("symbols-needed-65.tsv", 250);
}

/// Asserts that Rocade exports all rows of a measured table, which has more than `least`.
fn assert_all_exported(measured: &str, least: usize) {
    let ours = LIBRARIES.map(|name| (format!("lib{name}.so.1"), exports(name)));
    let needed = table(measured);
    assert!(needed.len() > least, "{}", needed.len());
    let is_there = |row: &&Vec<String>| {
        let [library, symbol, version, _packages] = &row[..] else {
            panic!("four columns: {row:?}");
        };
        let (_, exports) = ours
            .iter()
            .find(|(soname, _)| soname == library)
            .unwrap_or_else(|| panic!("{library}"));
        exports.contains(&(symbol.clone(), version.clone()))
    };
    let missing: Vec<_> = needed.iter().filter(|row| !is_there(row)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

/// Returns a directory with Rocade's libraries under the names that the loader looks for.
fn libraries() -> PathBuf {
    let directory =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("load-{}", std::process::id()));
    fs::create_dir_all(&directory).expect("a directory of this test");
    for name in LIBRARIES {
        let library = rocade_symbols::verify::built_library(name);
        symlink(library, directory.join(format!("lib{name}.so.1"))).expect("a new name");
    }
    directory
}

#[test]
fn what_is_installed_resolves_all_symbols() {
    let directory = libraries();
    let mut found = 0;
    for row in table("binaries.tsv") {
        let [package, binary] = &row[..] else {
            panic!("two columns: {row:?}");
        };
        let path = Path::new("/").join(binary);
        if !path.is_file() {
            continue;
        }
        let output = Command::new("ldd")
            .arg("-r")
            .arg(&path)
            .env("LD_LIBRARY_PATH", &directory)
            .output()
            .expect("ldd is part of the C library");
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&text);
        let ours = |line: &&str| {
            let of_ours = [
                "ibv_", "rdma_", "mlx5dv_", "efadv_", "manadv_", "IBVERBS_", "RDMACM_", "MLX5_",
            ];
            (line.contains("undefined symbol") || line.contains("no version information"))
                && of_ours.iter().any(|part| line.contains(part))
        };
        let bad: Vec<_> = text.lines().filter(ours).collect();
        assert!(bad.is_empty(), "{package}: {}: {bad:?}", path.display());
        found += usize::from(text.contains(&*directory.to_string_lossy()));
    }
    fs::remove_dir_all(&directory).expect("made above");
    println!("{found} binaries load our libraries");
}
