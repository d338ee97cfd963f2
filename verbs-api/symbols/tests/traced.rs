//! `rocade trace` shows the calls of all exported functions, except those of a list with reasons.

use std::{collections::BTreeSet, fs, path::Path};

use rocade_symbols::{Implementation, Stub};

/// Functions that a trace does not show, and why.
const EXCEPTIONS: [(&str, &str); 12] = [
    ("ibv_event_type_str", "returns a text"),
    ("ibv_node_type_str", "returns a text"),
    ("ibv_port_state_str", "returns a text"),
    ("ibv_wc_status_str", "returns a text"),
    ("ibv_wr_opcode_str", "returns a text"),
    ("rdma_event_str", "returns a text"),
    (
        "ibv_exp_poll_cq",
        "the function itself records completions, as programs poll in a loop",
    ),
    ("rocade_cm", "returns the private table of librdmacm"),
    ("rocade_efa", "returns the private table of libefa"),
    ("rocade_mlx5", "returns the private table of libmlx5"),
    (
        "_mlx5dv_get_export_sizes",
        "writes zeroes, as nothing can be exported",
    ),
    (
        "manadv_*",
        "fails, in a library that does not load libibverbs",
    ),
];

/// The directories with rows of traced functions.
const ROWS: [&str; 2] = ["../libibverbs/src/trace", "../librdmacm/src/trace"];

/// Returns the text of a file, by its path from this crate.
fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn here(path: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Returns the names of traced functions: those of rows, and those that are written out.
fn traced() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for directory in ROWS {
        for entry in fs::read_dir(here(directory)).expect("a directory") {
            let text = read(&entry.expect("readable").path());
            for mark in ["=> ", "extern \"C\" fn "] {
                let found = text.split(mark).skip(1).filter_map(|rest| {
                    let (name, _) = rest.split_once('(')?;
                    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
                    name.chars().all(is_name).then(|| name.to_owned())
                });
                names.extend(found);
            }
        }
    }
    names
}

/// Returns true if an exception names the function.
fn is_exception(symbol: &str) -> bool {
    EXCEPTIONS
        .iter()
        .any(|(name, _)| match name.strip_suffix('*') {
            Some(prefix) => symbol.starts_with(prefix),
            None => *name == symbol,
        })
}

/// Functions that Rocade does not offer record their calls themselves, if they tell so by their
/// result.
const fn tells(stub: Stub) -> bool {
    !matches!(stub, Stub::Zero | Stub::Void)
}

#[test]
fn each_exported_function_is_traced_or_an_exception() {
    let rows = traced();
    let mut missing = Vec::new();
    let mut checked = 0;
    for library in ["libibverbs", "libmlx5", "libefa", "libmana", "librdmacm"] {
        let table = read(&here(&format!("../{library}/exports.tsv")));
        for export in rocade_symbols::exports(&table).expect("the table of the library") {
            let symbol = export.symbol.as_str();
            let is_traced = match &export.implementation {
                // `_ibv_query_gid_ex` has the row of `ibv_query_gid_ex`.
                Implementation::Function(path) => {
                    let name = path.rsplit("::").next().unwrap_or_default();
                    // The two libraries call the functions of rows in libibverbs.
                    let calls_rows = matches!(library, "libmlx5" | "libefa");
                    rows.contains(name) && (calls_rows || path.starts_with("crate::trace::"))
                }
                Implementation::Stub(stub) => library != "libmana" && tells(*stub),
                Implementation::Data => true,
            };
            let does_nothing =
                matches!(export.implementation, Implementation::Stub(stub) if !tells(stub));
            if !is_traced && !does_nothing && !is_exception(symbol) {
                missing.push(format!("{library}: {symbol}"));
            }
            assert!(
                !(is_traced && is_exception(symbol)),
                "{symbol} is traced, so it is no exception"
            );
            checked += 1;
        }
    }
    assert!(missing.is_empty(), "not traced: {missing:#?}");
    assert!(checked > 450, "only {checked} functions");
}
