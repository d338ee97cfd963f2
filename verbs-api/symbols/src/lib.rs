//! Generates the versioned symbol table of a drop-in library, from its `build.rs`.
//!
//! A program linked against the distribution's library refers to `symbol@NODE`, so the version node
//! of a symbol is part of the ABI. For a `cdylib`, `rustc` writes a version script without nodes.
//! This crate adds two things, which work with stable cargo, any number of codegen units and `lld`:
//!
//! - a second version script, which declares the nodes and their parents but lists no symbols,
//! - for every export a one-instruction trampoline in `global_asm!`, which jumps to the
//!   implementation, with a `.symver` directive in the same object.
//!
//! # Input
//! Two tables with tab-separated columns and a header line, in the directory of the crate:
//!
//! * `exports.tsv`: `symbol`, `version`, `default` (`yes`/`no`), `impl`. The last column is the
//!   path of a Rust function, one of the stubs of [`Stub`], or `data` (one zero byte).
//! * `versions.tsv`: `version`, `parent` (may be empty), `repeats` (may be missing). The last
//!   column lists the nodes whose symbols this node has as well, separated by commas.
//!
//! # Use
//! ```no_run
//! // build.rs
//! rocade_symbols::build("libibverbs.so.1");
//! ```
//! and in `lib.rs`, not in test builds, where there is no version script:
//! ```text
//! #[cfg(not(test))]
//! mod exports {
//!     include!(concat!(env!("OUT_DIR"), "/exports.rs"));
//! }
//! ```
#![forbid(unsafe_code)]

mod emit;
mod table;
pub mod verify;

use std::{env, fs, path::PathBuf};

pub use emit::{exports_rs, version_script};
pub use table::{
    Export, Implementation, Stub, TableError, VersionNode, exports, versions, with_repeated,
};

/// Reads the tables of the crate that is being built, and writes `exports.rs` and `exports.map`
/// into its `OUT_DIR`. Passes the link arguments of the `cdylib` to cargo.
///
/// # Panics
/// If a table cannot be read or is malformed, because a build script has no better way to fail.
pub fn build(soname: &str) {
    let crate_dir = PathBuf::from(variable("CARGO_MANIFEST_DIR"));
    let out_dir = PathBuf::from(variable("OUT_DIR"));
    let read = |name: &str| {
        let path = crate_dir.join(name);
        println!("cargo:rerun-if-changed={}", path.display());
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    };
    let export_table =
        exports(&read("exports.tsv")).unwrap_or_else(|error| panic!("exports.tsv: {error}"));
    let version_table =
        versions(&read("versions.tsv")).unwrap_or_else(|error| panic!("versions.tsv: {error}"));

    let export_table = with_repeated(export_table, &version_table);
    let map = out_dir.join("exports.map");
    let write = |path: &PathBuf, text: String| {
        fs::write(path, text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    };
    write(&map, version_script(&version_table));
    let arch = variable("CARGO_CFG_TARGET_ARCH");
    let code = exports_rs(&export_table, &arch).unwrap_or_else(|error| panic!("{error}"));
    write(&out_dir.join("exports.rs"), code);

    println!(
        "cargo:rustc-cdylib-link-arg=-Wl,--version-script={}",
        map.display()
    );
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,{soname}");
    if arch != "x86_64" {
        // GNU ld rejects a second version script. On x86-64, lld is rustc's default linker.
        println!("cargo:rustc-cdylib-link-arg=-fuse-ld=lld");
    }
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| panic!("{name} is not set: run this from build.rs"))
}
