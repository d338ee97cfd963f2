//! A function that is not implemented fails as its callers expect.

use std::{collections::BTreeMap, fs, path::Path};

use rocade_symbols::{Implementation, Stub};

/// Returns the text of a file, by its path from this crate.
fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the stub for each way to report a failure.
fn stub_of(failure: &str) -> Stub {
    match failure {
        "errno" => Stub::Int,
        "-1" => Stub::Negative,
        "-errno" => Stub::NegativeErrno,
        "NULL" => Stub::Pointer,
        "0" => Stub::Zero,
        "none" => Stub::Void,
        other => panic!("unknown: {other}"),
    }
}

/// Errors are negative where a good result is positive: a descriptor, a count, a depth.
#[test]
fn stubs_have_the_failure_value_of_their_prototype() {
    let measured = read("../../tests/abi/results-65.tsv");
    let failures: BTreeMap<(&str, &str), &str> = measured
        .lines()
        .skip(1)
        .map(|row| match row.split('\t').collect::<Vec<_>>()[..] {
            [library, symbol, _, failure] => ((library, symbol), failure),
            _ => panic!("malformed row: {row}"),
        })
        .collect();
    let mut checked = 0;
    for library in ["libibverbs", "libmlx5", "libefa", "libmana", "librdmacm"] {
        let exports = rocade_symbols::exports(&read(&format!("../{library}/exports.tsv")));
        for export in exports.expect("the table that the library is built from") {
            let Implementation::Stub(stub) = export.implementation else {
                continue;
            };
            let symbol = &*export.symbol;
            let failure = failures.get(&(library, symbol));
            let failure = failure.unwrap_or_else(|| panic!("{symbol} was never looked up"));
            assert_eq!(stub, stub_of(failure), "{symbol}");
            checked += 1;
        }
    }
    assert!(checked > 200, "only {checked} stubs");
}
