//! `rocade install` and `rocade uninstall`.
#![expect(clippy::unwrap_used, reason = "in a test")]

#[allow(dead_code, reason = "each test program uses a part of it")]
mod build;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use build::{Build, LIBRARIES, Limited as _, assert_refused, text};

/// Returns a build with libraries that have symbols, as Cargo creates them.
fn with_symbols() -> Build {
    let build = Build::new();
    let source = build.path("library.c");
    fs::write(
        &source,
        "static int local_name; int *verb(void) { return &local_name; }",
    )
    .unwrap();
    let first = build.path(&format!("{}.so", LIBRARIES[0]));
    let mut cc = Command::new("cc");
    cc.args(["-g", "-shared", "-fPIC", "-o"])
        .arg(&first)
        .arg(&source);
    assert!(cc.run().status.success());
    for library in &LIBRARIES[1..] {
        fs::copy(&first, build.path(&format!("{library}.so"))).unwrap();
    }
    for name in ["librocade_preload.so", "librocade_notice.so"] {
        fs::copy(&first, build.path(name)).unwrap();
    }
    build
}

/// Returns everything below a directory. Directories have a slash at the end.
fn tree(root: &Path) -> BTreeSet<String> {
    fn walk(dir: &Path, root: &Path, found: &mut BTreeSet<String>) {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(root).unwrap().display().to_string();
            if path.is_dir() {
                found.insert(format!("{name}/"));
                walk(&path, root, found);
            } else {
                found.insert(name);
            }
        }
    }
    let mut found = BTreeSet::new();
    walk(root, root, &mut found);
    found
}

#[test]
fn an_installation_works_and_goes_without_a_trace() {
    let build = with_symbols();
    let prefix = build.path("prefix");
    let args = ["install", "--prefix", prefix.to_str().unwrap()];
    // The second run installs over the first.
    for _ in 0..2 {
        let output = build.rocade(&args).run();
        assert!(output.status.success(), "{output:?}");
        assert!(text(&output.stdout).contains("export PATH="), "{output:?}");
    }
    let installed = tree(&prefix);
    for path in [
        "bin/rocade",
        "lib/rocade/libibverbs.so.1",
        "include/infiniband/verbs_exp.h",
        "include/infiniband/verbs_xrc.h",
        "include/infiniband/verbs_exp/device.h",
        "lib/rocade/libmana.so.1",
        "lib/rocade/libibverbs.so",
        "lib/rocade/librdmacm.so",
        "lib/rocade/libmlx5.so",
        "lib/rocade/libefa.so",
        "lib/rocade/libmana.so",
        "lib/rocade/librocade_preload.so",
        "lib/rocade/librocade_notice.so",
        "share/man/man1/rocade.1",
        "share/man/man1/rocade-run.1",
        "share/bash-completion/completions/rocade",
        "share/zsh/site-functions/_rocade",
        "share/fish/vendor_completions.d/rocade.fish",
    ] {
        assert!(installed.contains(path), "no {path} in {installed:?}");
    }
    assert!(
        !installed
            .iter()
            .any(|path| path.contains(".rocade-install") || path.ends_with(".new"))
    );

    // One file, so that a program that loads both names has one library.
    for library in LIBRARIES {
        let unversioned = prefix.join(format!("lib/rocade/{library}.so"));
        let target = fs::read_link(unversioned).unwrap();
        assert_eq!(target, Path::new(&format!("{library}.so.1")));
    }

    // Stripped: the local symbol and the line tables are removed, and the exported function is
    // there.
    let has = |path: &Path, word: &[u8]| {
        fs::read(path)
            .unwrap()
            .windows(word.len())
            .any(|w| w == word)
    };
    let built = build.path("libibverbs.so");
    let library = prefix.join("lib/rocade/libibverbs.so.1");
    assert!(has(&built, b"local_name") && has(&built, b".debug_info"));
    assert!(!has(&library, b"local_name") && !has(&library, b".debug_info"));
    assert!(has(&library, b"verb"));
    let len = |path: &Path| fs::metadata(path).unwrap().len();
    assert!(len(&prefix.join("bin/rocade")) < len(&build.path("rocade")));

    // The installed command finds the installed libraries.
    let command = prefix.join("bin/rocade");
    let output = Command::new(&command).arg("libdir").env_clear().run();
    let libdir = fs::canonicalize(prefix.join("lib/rocade")).unwrap();
    assert_eq!(text(&output.stdout).trim_end(), libdir.to_str().unwrap());

    // It installs its libraries elsewhere, but not over itself.
    let other = build.path("other");
    let install = |prefix: &Path| {
        let mut install = Command::new(&command);
        install.args(["install", "--prefix"]).arg(prefix);
        install.run()
    };
    let output = install(&other);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(tree(&other), installed);
    let refused = install(&prefix);
    assert_refused(&refused, 125, &["this command is the one", "--prefix DIR"]);
    assert_eq!(tree(&prefix), installed);

    // The command finds its own installation.
    let output = Command::new(&command).arg("uninstall").env_clear().run();
    assert!(output.status.success(), "{output:?}");
    assert!(!prefix.exists(), "{:?}", tree(&prefix));
    let gone = build
        .rocade(&["uninstall", "--prefix", prefix.to_str().unwrap()])
        .run();
    assert_refused(&gone, 1, &["nothing is installed below"]);
}

#[test]
fn what_others_have_put_there_stays() {
    let build = with_symbols();
    let prefix = build.path("prefix");
    let path = prefix.to_str().unwrap();
    for file in ["lib/rocade/notes", "share/man/man1/other.1", "bin/other"] {
        fs::create_dir_all(prefix.join(file).parent().unwrap()).unwrap();
        fs::write(prefix.join(file), "").unwrap();
    }
    fs::create_dir_all(prefix.join("share/zsh")).unwrap();
    let before = tree(&prefix);
    for command in ["install", "uninstall"] {
        let output = build.rocade(&[command, "--prefix", path]).run();
        assert!(output.status.success(), "{output:?}");
    }
    assert_eq!(tree(&prefix), before);

    // A foreign command is not replaced, and no file is changed.
    fs::write(prefix.join("bin/rocade"), "theirs").unwrap();
    let before = tree(&prefix);
    let refused = build.rocade(&["install", "--prefix", path]).run();
    assert_refused(
        &refused,
        125,
        &["bin/rocade", "was not installed by", "--prefix"],
    );
    assert_eq!(tree(&prefix), before);
    assert_eq!(
        fs::read_to_string(prefix.join("bin/rocade")).unwrap(),
        "theirs"
    );
}

#[test]
fn beside_the_command_only_the_rest_is_installed() {
    let build = with_symbols();
    // `cargo install` puts the executable into DIR/bin. It does not belong to this installation and
    // must not be removed.
    let bin = build.path("home/bin");
    fs::create_dir_all(&bin).unwrap();
    fs::rename(build.path("rocade"), bin.join("rocade")).unwrap();
    for library in LIBRARIES {
        let name = format!("{library}.so");
        fs::rename(build.path(&name), bin.join(&name)).unwrap();
    }
    for name in ["librocade_preload.so", "librocade_notice.so"] {
        fs::rename(build.path(name), bin.join(name)).unwrap();
    }
    let run = |word: &str| {
        Command::new(bin.join("rocade"))
            .arg(word)
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .run()
    };
    let before = tree(&build.path("home"));
    let output = run("install");
    assert!(output.status.success(), "{output:?}");
    assert!(build.path("home/lib/rocade/libibverbs.so.1").is_file());
    let output = run("uninstall");
    assert!(
        text(&output.stdout).contains("cargo uninstall"),
        "{output:?}"
    );
    assert_eq!(tree(&build.path("home")), before);
}

#[test]
fn a_damaged_list_removes_nothing() {
    let build = with_symbols();
    let prefix = build.path("prefix");
    fs::create_dir_all(prefix.join("lib/rocade")).unwrap();
    fs::write(build.path("treasure"), "").unwrap();
    for line in ["../treasure", "/etc/passwd", "lib/../../treasure"] {
        fs::write(prefix.join("lib/rocade/installed"), format!("{line}\n")).unwrap();
        let output = build
            .rocade(&["uninstall", "--prefix", prefix.to_str().unwrap()])
            .run();
        assert_refused(&output, 125, &["damaged", line]);
    }
    assert!(build.path("treasure").is_file());
}
