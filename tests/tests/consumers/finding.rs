//! Programs that do not look for libraries where `rocade run` puts them.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use rocade_tests::{
    harness::Rig,
    or_skip,
    skip::{Reason, missing_command},
};

use crate::LIMIT;

const LIBRARIES: [&str; 5] = ["libibverbs", "librdmacm", "libmlx5", "libefa", "libmana"];
/// A device that no default gives.
const DEVICE: [&str; 2] = ["--dev", "odd0=127.0.0.4"];
const SEEN: &str = "device odd0\n1 devices\n";

/// A rig, and the development files whose libraries have names without version.
fn rig() -> Result<Rig, Reason> {
    if let Some(reason) = missing_command(&[("gcc", "gcc")]) {
        return Err(reason);
    }
    if system_library("libibverbs.so").is_none() {
        return Err(Reason::Package("libibverbs-dev".to_owned()));
    }
    Rig::loopback(&[])
}

/// The path of a library of the system.
fn system_library(name: &str) -> Option<PathBuf> {
    let triplet = format!("/usr/lib/{}-linux-gnu", std::env::consts::ARCH);
    let places = [triplet, "/usr/lib64".to_owned(), "/usr/lib".to_owned()];
    let mut paths = places.iter().map(|dir| Path::new(dir).join(name));
    paths.find(|path| path.is_file())
}

/// Compiles a program.
fn compile(source: &str, target: &str, options: &[&str]) {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("interop/view");
    let mut gcc = Command::new("gcc");
    gcc.args(["-Wall", "-Wextra", "-Werror", "-o", target])
        .arg(sources.join(source))
        .args(options);
    assert!(gcc.status().is_ok_and(|status| status.success()), "gcc");
}

fn libdir(rig: &Rig) -> String {
    let printed = rig.rocade(&["libdir"]).expect_success();
    printed.trim_end().to_owned()
}

/// NCCL, UCCL and NVSHMEM try the name without version first. With a development package the system
/// has one.
#[test]
fn names_without_version_are_rocades() {
    let rig = or_skip!(rig());
    let look = rig.dir().join("look").to_string_lossy().into_owned();
    compile("look.c", &look, &["-ldl"]);
    let libdir = libdir(&rig);
    for library in LIBRARIES {
        let name = format!("{library}.so");
        let options = [&DEVICE, &["--view", "none"][..]].concat();
        let output = rig.start_with("look", &options, &[&look, &name]);
        let output = output.finish(LIMIT).expect_success();
        let line = format!("library {libdir}/{name}\n");
        assert!(output.contains(&line), "{output}");
        assert!(library != "libibverbs" || output.contains(SEEN), "{output}");
    }
}

/// A program that was linked with these libraries runs with those of the system.
#[test]
fn linking_with_the_directory_makes_ordinary_programs() {
    let rig = or_skip!(rig());
    let look = rig.dir().join("look").to_string_lossy().into_owned();
    let dir = format!("-L{}", libdir(&rig));
    let linked = ["-libverbs", "-lrdmacm", "-ldl"];
    let options = [&["-DLINKED", &*dir, "-Wl,--no-as-needed"], &linked[..]].concat();
    compile("look.c", &look, &options);
    let output = rig.start_plain("look", &[&look]).finish(LIMIT);
    let output = output.expect_success();
    assert!(output.contains("/libibverbs.so.1\n"), "{output}");
    assert!(output.contains("0 devices\n"), "{output}");
    let output = rig.start_with("look", &DEVICE, &[&look]);
    let output = output.finish(LIMIT).expect_success();
    assert!(output.contains(SEEN), "{output}");
}
