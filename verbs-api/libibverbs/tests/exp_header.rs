//! The header of experimental verbs: each file compiles alone, as C and as C++, and matches its
//! Rust mirror.
#![cfg(target_os = "linux")]

use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use rocade_abi::exp;
use rocade_tests::skip::{Reason, missing_command};

fn include() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../include")
}

/// Returns the reason why the test cannot compile, if a tool or header is missing.
fn missing() -> Option<Reason> {
    let header = Path::new("/usr/include/infiniband/verbs.h");
    missing_command(&[("gcc", "gcc"), ("g++", "g++")])
        .or_else(|| (!header.is_file()).then(|| Reason::Package("libibverbs-dev".to_owned())))
}

/// Compiles `text` as C and as C++.
fn compile(name: &str, text: &str) {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("exp-header");
    fs::create_dir_all(&directory).expect("a directory of this test");
    let source = directory.join(name).with_extension("c");
    fs::write(&source, text).expect("a file of our own");
    for (compiler, language, standard) in [
        ("gcc", "c", "gnu11"),
        ("gcc", "c", "gnu17"),
        ("g++", "c++", "gnu++11"),
        ("g++", "c++", "gnu++20"),
    ] {
        let output = Command::new(compiler)
            .args([
                "-Wall",
                "-Wextra",
                "-Werror",
                "-fsyntax-only",
                "-x",
                language,
            ])
            .arg(format!("-std={standard}"))
            .arg("-I")
            .arg(include())
            .arg(&source)
            .output()
            .expect("the compiler runs");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{name}, {standard}: {stderr}");
    }
}

//= XDEC-02 type=test
#[test]
fn each_file_compiles_alone() {
    if let Some(reason) = missing() {
        rocade_tests::skip!(reason);
    }
    compile("verbs_exp", "#include <infiniband/verbs_exp.h>\n");
    compile("verbs_xrc", "#include <infiniband/verbs_xrc.h>\n");
    let as_of_old = "#define ROCADE_XRC_LEGACY\n#include <infiniband/verbs_xrc.h>\n";
    compile("verbs_xrc_legacy", as_of_old);
    let parts = fs::read_dir(include().join("infiniband/verbs_exp")).expect("the directory");
    for part in parts {
        let name = part.expect("an entry").file_name();
        let name = name.to_str().expect("a plain name");
        compile(name, &format!("#include <infiniband/verbs_exp/{name}>\n"));
    }
}

//= XCON-01 type=test
//= XCON-02 type=test
//= XCON-03 type=test
//= XCON-06 type=test
//= XCON-07 type=test
//= XCON-10 type=test
//= XCON-11 type=test
//= XCON-16 type=test
//= XCON-17 type=test
//= XCON-22 type=test
//= XST-02 XST-03 XST-04 type=test
//= XST-05 type=test
//= XST-08 type=test
//= XST-09 XST-13 type=test
//= XST-19..21 type=test
#[test]
fn the_mirror_is_the_header() {
    if let Some(reason) = missing() {
        rocade_tests::skip!(reason);
    }
    let mut text = "#include <infiniband/verbs_exp.h>\n\
                    #ifndef __cplusplus\n#define static_assert _Static_assert\n#endif\n"
        .to_owned();
    for mirror in exp::layouts().into_iter().flatten() {
        let (name, size) = (mirror.name, mirror.size);
        let _ = writeln!(text, "static_assert(sizeof({name}) == {size}, \"{name}\");");
        for field in mirror.fields {
            let (member, offset, size) = (field.name, field.offset, field.size);
            let what = format!("{name}.{member}");
            let _ = writeln!(
                text,
                "static_assert(offsetof({name}, {member}) == {offset}, \"{what}\");\n\
                 static_assert(sizeof((({name} *)0)->{member}) == {size}, \"{what}\");"
            );
        }
    }
    for (name, value) in exp::enumerators().into_iter().flatten() {
        let _ = writeln!(
            text,
            "static_assert((unsigned long long){name} == {value}ULL, \"{name}\");"
        );
    }
    compile("mirror", &text);
}

/// All names in the rules exist, with their values, and all functions are exported.
//= XCON-02 XCON-03 XCON-04 type=test
//= XCON-05 XCON-06 XCON-07 type=test
//= XCON-08 XCON-09 XCON-10 type=test
//= XCON-11 XCON-12 XCON-13 type=test
//= XCON-14 XCON-15 XCON-16 type=test
//= XCON-17 XCON-18 XCON-19 type=test
//= XCON-22..23 type=test
//= XST-01 XST-02 XST-03 type=test
//= XST-04 XST-05 XST-06 type=test
//= XST-07 XST-08 XST-09 type=test
//= XST-10 XST-11 XST-12 type=test
//= XST-13 XST-14 XST-15 type=test
//= XST-16 XST-17 XST-18 type=test
//= XST-19 XST-20 XST-21 type=test
//= XDEC-04 type=test
//= XDEC-05 type=test
//= XDEC-15 type=test
#[test]
fn every_name_of_the_rules_is_there() {
    if let Some(reason) = missing() {
        rocade_tests::skip!(reason);
    }
    let mut text = "#include <infiniband/verbs_exp.h>\n\
                    #ifndef __cplusplus\n#define static_assert _Static_assert\n#endif\n"
        .to_owned();
    let table = include_str!("exp_names.tsv");
    let lines = table.lines().filter(|line| !line.starts_with('#'));
    let mut calls = Vec::new();
    for (row, line) in lines.enumerate() {
        let mut fields = line.split('\t');
        let (kind, name) = (fields.next(), fields.next().expect("a name"));
        let rest = fields.next().unwrap_or_default();
        let _ = match kind {
            Some("value") => writeln!(
                text,
                "static_assert((unsigned long long){name} == {rest}ULL, \"{name}\");"
            ),
            Some("struct") => rest.split(' ').try_for_each(|member| {
                writeln!(
                    text,
                    "static_assert(sizeof(((struct {name} *)0)->{member}) > 0, \"{name}\");"
                )
            }),
            Some("enum") => writeln!(text, "static_assert(sizeof(enum {name}) > 0, \"{name}\");"),
            Some("call") => {
                calls.push(name);
                writeln!(
                    text,
                    "static inline void *call{row}(void)\n{{\n\treturn (void *){name};\n}}"
                )
            }
            other => panic!("{other:?}: {line}"),
        };
    }
    compile("names", &text);
    assert!(calls.len() >= 20);
    // Two functions are inline in the header.
    let inline = ["ibv_exp_get_async_event", "ibv_exp_ack_async_event"];
    let exported = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("exports.tsv"));
    let exported = exported.expect("the list of what is exported");
    for call in calls.into_iter().filter(|call| !inline.contains(call)) {
        let is_it = |line: &str| line.split('\t').next() == Some(call);
        assert!(exported.lines().any(is_it), "{call} is not exported");
    }
}
