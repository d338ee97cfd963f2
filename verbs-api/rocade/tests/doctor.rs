//! `rocade doctor` on this machine, and on machines that lack something.
#![expect(clippy::unwrap_used, reason = "in a test")]

#[allow(dead_code, reason = "each test program uses a part of it")]
mod build;

use std::fs;
use std::net::UdpSocket;
use std::path::Path;
use std::process::{Command, Output};

use build::{Build, Limited as _, text};
use serde_json::Value;

/// Returns the check of this name in the output of `--json`.
fn check(output: &Output, name: &str) -> Value {
    let report: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {output:?}"));
    let checks = report["checks"].as_array().unwrap();
    let found = checks.iter().find(|check| check["name"] == name);
    found
        .unwrap_or_else(|| panic!("no {name} in {report:#}"))
        .clone()
}

/// Fails unless the check has this status, and finding and advice contain these parts.
fn assert_check(output: &Output, name: &str, status: &str, parts: &[&str]) {
    let check = check(output, name);
    assert_eq!(check["status"], status, "{check:#}");
    let all = format!("{} {}", check["finding"], check["advice"]);
    for part in parts {
        assert!(all.contains(part), "{part:?} is not in {check:#}");
    }
}

fn doctor(build: &Build, ip: &str) -> Command {
    build.rocade(&["doctor", "--json", "--ip", ip])
}

#[test]
fn an_ordinary_machine_has_no_problem() {
    let build = Build::with_libraries();
    let output = build.rocade(&["doctor", "--ip", "127.0.45.1"]).run();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let shown = text(&output.stdout);
    for (name, part) in [
        ("system", "Linux "),
        ("settings", "the defaults"),
        ("libraries", "rocade-libs"),
        ("copies", ""),
        ("devices", "rocade0 (127.0.45.1)"),
        ("sockets", "UDP with GSO and GRO"),
        ("steering", "the kernel delivers"),
        ("shared memory", "between processes"),
        ("broker", ""),
        ("port 4791", "free"),
        ("limits", "open files"),
        ("host devices", ""),
    ] {
        let mut lines = shown.lines();
        let line = lines.find(|line| line.get(9..).is_some_and(|rest| rest.starts_with(name)));
        let line = line.unwrap_or_else(|| panic!("no {name} in {shown}"));
        assert!(line.contains(part), "{part:?} is not in {line:?}");
    }
    assert!(
        shown.lines().last().unwrap().starts_with("no problem"),
        "{shown}"
    );
}

#[test]
fn a_port_that_another_program_has_is_a_problem() {
    let build = Build::with_libraries();
    let _holder = UdpSocket::bind("127.0.45.2:4791").unwrap();
    let output = doctor(&build, "127.0.45.2").run();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let owner = format!("taken by process {} (", std::process::id());
    assert_check(&output, "port 4791", "problem", &[&owner, "--ip 127.0.0.2"]);
    // Another address is free.
    let output = doctor(&build, "127.0.45.3").run();
    assert_check(&output, "port 4791", "ok", &["free"]);
}

#[test]
fn missing_libraries_are_a_problem_with_the_cure() {
    let build = Build::new();
    let output = doctor(&build, "127.0.45.4").run();
    assert_eq!(output.status.code(), Some(1));
    let parts = ["libibverbs.so", "cargo build --release"];
    assert_check(&output, "libraries", "problem", &parts);
}

#[test]
fn wrong_settings_are_a_problem_and_the_rest_is_checked() {
    let build = Build::with_libraries();
    let run = |name: &str, value: &str| {
        let mut command = build.rocade(&["doctor", "--json"]);
        command.env(name, value).run()
    };
    let output = run("ROCADE_LINK", "fast");
    assert_eq!(output.status.code(), Some(1));
    assert_check(&output, "settings", "problem", &["ROCADE_LINK", "fast"]);
    assert_check(&output, "limits", "ok", &["open files"]);
    let output = run("ROCADE_LGO", "debug");
    let parts = ["ROCADE_LGO", "did you mean ROCADE_LOG?"];
    assert_check(&output, "settings", "warning", &parts);
    let output = run("ROCADE_RUNTIME_DIR", "/etc/passwd");
    assert_check(
        &output,
        "broker",
        "problem",
        &["/etc/passwd", "only you can"],
    );
}

/// Runs a script, in which `$0` is the command.
fn script(build: &Build, text: &str, ip: &str) -> Output {
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("{text}; exec $0 doctor --json --ip {ip}")]);
    shell
        .arg(build.path("rocade"))
        .current_dir(build.path("work"));
    shell
        .env_clear()
        .env("PATH", "/usr/bin:/bin:/usr/sbin:/sbin");
    shell.run()
}

#[test]
fn low_limits_are_named_with_the_command_that_raises_them() {
    let build = Build::with_libraries();
    let output = script(&build, "ulimit -n 200", "127.0.45.5");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let parts = ["at most 200 open files", "ulimit -n 1024"];
    assert_check(&output, "limits", "warning", &parts);
    let output = script(&build, "ulimit -n 40", "127.0.45.5");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert_check(&output, "limits", "problem", &["at most 40 open files"]);
    let output = script(&build, "ulimit -f 100", "127.0.45.5");
    assert_check(&output, "limits", "warning", &["ulimit -f unlimited"]);
}

/// Runs the command inside `unshare` or another program, if the system allows that.
fn inside(build: &Build, words: &[&str], text: &str) -> Option<Output> {
    let allowed = Command::new(words[0])
        .args(&words[1..])
        .arg("true")
        .output();
    if !allowed.is_ok_and(|output| output.status.success()) {
        return None;
    }
    let mut command = Command::new(words[0]);
    let exec = format!("{text}; exec $0 doctor --json");
    command.args(&words[1..]).args(["sh", "-c", &exec]);
    command
        .arg(build.path("rocade"))
        .current_dir(build.path("work"));
    command
        .env_clear()
        .env("PATH", "/usr/bin:/bin:/usr/sbin:/sbin");
    Some(command.run())
}

#[test]
fn a_machine_without_dev_shm_is_warned_for_other_libraries() {
    let build = Build::with_libraries();
    let text = "mount -t tmpfs -o ro none /dev/shm";
    let Some(output) = inside(&build, &["unshare", "-r", "-m"], text) else {
        rocade_skip::skip!("cannot make a mount namespace");
    };
    let parts = ["/dev/shm", "Rocade does not need it", "NCCL"];
    assert_check(&output, "shared memory", "warning", &parts);
}

#[test]
fn a_machine_without_a_network_has_no_device() {
    let build = Build::with_libraries();
    let Some(output) = inside(&build, &["unshare", "-r", "-n"], ":") else {
        rocade_skip::skip!("cannot make a network namespace");
    };
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert_check(&output, "devices", "problem", &["ip link set lo up"]);
}

/// Root in most containers has some capabilities, but not that to mount.
#[test]
fn a_machine_without_mounts_says_which_programs_miss_rocade() {
    let build = Build::with_libraries();
    let words = ["setpriv", "--bounding-set=-sys_admin", "--no-new-privs"];
    let is_root =
        fs::metadata("/proc/self").is_ok_and(|me| std::os::unix::fs::MetadataExt::uid(&me) == 0);
    let Some(output) = inside(&build, &words, ":").filter(|_| is_root) else {
        rocade_skip::skip!("cannot give up a capability");
    };
    // The preload library of this build is an empty file.
    let check = check(&output, "view");
    let finding = check["finding"].as_str().unwrap();
    assert!(finding.contains("capabilities"), "{check:#}");
    assert_eq!(output.status.code(), Some(0), "{check:#}");
}

#[test]
fn two_rocades_are_named() {
    let build = Build::with_libraries();
    let other = build.path("home/.local/bin");
    fs::create_dir_all(&other).unwrap();
    fs::write(other.join("rocade"), "").unwrap();
    let output = doctor(&build, "127.0.45.6").run();
    let path = other.join("rocade").display().to_string();
    let parts = ["another Rocade", path.as_str(), "uninstall"];
    assert_check(&output, "copies", "warning", &parts);
}

#[test]
fn nothing_is_left_behind() {
    let build = Build::with_libraries();
    doctor(&build, "127.0.45.7").run();
    assert!(!build.path("home").exists());
    assert_eq!(fs::read_dir(build.path("work")).unwrap().count(), 0);
}

/// A program that loads a library by the name in the text, if it is called with an argument.
const OPENS: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
int main(int count, char **words)
{
    return count > 1 && dlopen("NAME", RTLD_NOW) ? 1 : 0;
}
"#;

/// Compiles a C program or library.
fn compile(source: &str, target: &Path, options: &[&str]) {
    fs::create_dir_all(target.parent().unwrap()).unwrap();
    let file = target.with_extension("c");
    fs::write(&file, source).unwrap();
    let mut cc = Command::new("cc");
    cc.arg("-o").arg(target).arg(&file).args(options);
    let built = cc.run();
    assert!(built.status.success(), "{built:?}");
    fs::remove_file(file).unwrap();
}

/// Returns the check of the only file whose name ends with this.
fn check_of(report: &Value, name: &str) -> Value {
    let checks = report["checks"].as_array().unwrap();
    let ends = |check: &&Value| check["name"].as_str().unwrap().ends_with(name);
    let found: Vec<_> = checks.iter().filter(ends).collect();
    assert_eq!(found.len(), 1, "{name}: {report:#}");
    found[0].clone()
}

/// Makes a directory with files that load libibverbs in all ways.
fn engine(dir: &Path) {
    let main = "int main(void) { return 0; }";
    let verbs = "const char *text = \"/sys/class/infiniband_verbs\";";
    let warning = "const char *warn = \"libibverbs: Warning: no\";";
    compile(main, &dir.join("plain"), &[]);
    compile(&format!("{verbs}{main}"), &dir.join("static"), &["-static"]);
    let inside = format!("{verbs}{warning}");
    compile(&inside, &dir.join("libinside.so"), &["-shared", "-fPIC"]);
    let copy = dir.join("engine.libs/libibverbs-abcdef12.so.1");
    let soname = "-Wl,-soname,libibverbs-abcdef12.so.1";
    let verb = "int verb(void) { return 0; }";
    compile(verb, &copy, &["-shared", "-fPIC", soname]);
    let uses = "int verb(void); int use(void) { return verb(); }";
    let path = copy.to_str().unwrap();
    let own = "-Wl,-rpath,$ORIGIN/engine.libs";
    compile(
        uses,
        &dir.join("_engine.so"),
        &["-shared", "-fPIC", path, own],
    );
    for (name, library) in [
        ("by-name", "libibverbs.so.1"),
        ("by-path", "/opt/x/libibverbs.so.1"),
    ] {
        compile(&OPENS.replace("NAME", library), &dir.join(name), &["-ldl"]);
    }
    let apart = OPENS
        .replace("NAME", "libibverbs.so.1")
        .replace("dlopen(", "dlmopen(LM_ID_NEWLM, ");
    compile(&apart, &dir.join("apart"), &["-ldl"]);
    // Two libraries of the usual name, in a directory that one program searches first.
    let soname = "-Wl,-soname,libibverbs.so.1";
    let library = dir.join("lib/libibverbs.so.1");
    compile(verb, &library, &["-shared", "-fPIC", soname]);
    let program = "int verb(void); int main(void) { return verb(); }";
    let path = library.to_str().unwrap();
    for (name, tags) in [
        ("rpath", "--disable-new-dtags"),
        ("runpath", "--enable-new-dtags"),
    ] {
        let search = format!("-Wl,{tags},-rpath,$ORIGIN/lib");
        compile(program, &dir.join(name), &[path, &search]);
    }
}

/// The files of [`engine`], with status and a part of the finding or the advice.
const FILES: [(&str, &str, &str); 10] = [
    ("/static", "problem", "statically linked"),
    ("/libinside.so", "problem", "has a libibverbs inside"),
    ("libibverbs-abcdef12.so.1", "warning", "another libibverbs"),
    (
        "/_engine.so",
        "warning",
        "its own copy, libibverbs-abcdef12.so.1",
    ),
    ("/by-name", "ok", "by its name"),
    ("/by-path", "warning", "opens /opt/x/libibverbs.so.1"),
    ("/apart", "warning", "dlmopen"),
    ("lib/libibverbs.so.1", "warning", "LD_LIBRARY_PATH="),
    ("/rpath", "warning", "DT_RPATH"),
    ("/runpath", "ok", "by its name"),
];

#[test]
fn files_that_would_not_use_rocade_are_named_with_the_remedy() {
    let build = Build::with_libraries();
    let dir = build.path("engine");
    engine(&dir);
    let run = |path: &Path| {
        let mut command = build.rocade(&["doctor", "--json", path.to_str().unwrap()]);
        let output = command.run();
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        (output.status.code(), report)
    };
    let (code, report) = run(&dir);
    assert_eq!(code, Some(1));
    for (name, status, part) in FILES {
        let check = check_of(&report, name);
        assert_eq!(check["status"], status, "{check:#}");
        let all = format!("{} {}", check["finding"], check["advice"]);
        assert!(all.contains(part), "{part:?} is not in {check:#}");
    }
    let count = report["checks"].as_array().unwrap().len();
    assert_eq!(count, FILES.len(), "{report:#}");

    let (code, report) = run(&dir.join("plain"));
    assert_eq!(code, Some(0));
    assert_eq!(report["checks"][0]["finding"], "uses no verbs (1 files)");
    let (code, _) = run(&dir.join("by-path"));
    assert_eq!(code, Some(0), "a warning is no problem");
    let missing = build.rocade(&["doctor", "no-such-file"]).run();
    build::assert_refused(&missing, 125, &["no-such-file"]);
}

#[test]
fn wheels_are_searched() {
    let build = Build::with_libraries();
    let dir = build.path("engine");
    engine(&dir);
    let wheel = build.path("engine-1.0-py3-none-any.whl");
    let script = "import shutil, sys; shutil.make_archive(sys.argv[1], 'zip', sys.argv[2])";
    let mut python = Command::new("python3");
    python
        .args(["-c", script])
        .arg(&wheel)
        .arg(build.path("engine"));
    if !python.output().is_ok_and(|output| output.status.success()) {
        rocade_skip::skip!(rocade_skip::Reason::Package("python3".to_owned()));
    }
    let made = build.path("engine-1.0-py3-none-any.whl.zip");
    fs::rename(&made, &wheel).unwrap();
    let path = wheel.to_str().unwrap();
    let output = build.rocade(&["doctor", "--json", path]).run();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    for (name, status, part) in FILES {
        // The directories around a file of a wheel are unknown.
        if name == "/rpath" || part == "LD_LIBRARY_PATH=" {
            continue;
        }
        let check = check_of(&report, name.trim_start_matches('/'));
        assert_eq!(check["status"], status, "{check:#}");
        let finding = check["finding"].as_str().unwrap();
        assert!(finding.contains(part), "{part:?} is not in {check:#}");
    }
    fs::write(&wheel, "no archive").unwrap();
    let output = build.rocade(&["doctor", path]).run();
    let shown = text(&output.stdout);
    assert!(shown.contains("no zip archive"), "{shown}");
}

#[test]
fn a_run_says_which_program_will_not_use_rocade() {
    let build = Build::with_libraries();
    let dir = build.path("engine");
    engine(&dir);
    let run = |program: &str| {
        let path = dir.join(program);
        let args = ["run", "--view", "none", "--", path.to_str().unwrap()];
        let output = build.rocade(&args).run();
        text(&output.stderr)
    };
    // The linker of a test has put the path into the needs of the first two.
    assert!(run("rpath").contains("DT_RPATH"), "{}", run("rpath"));
    assert_eq!(run("by-name"), "");
    assert_eq!(run("plain"), "");
    assert_eq!(run("by-path"), "", "there is no such file");
    let there = dir.join("lib/libibverbs.so.1");
    let source = OPENS.replace("NAME", there.to_str().unwrap());
    compile(&source, &dir.join("opens"), &["-ldl"]);
    let said = run("opens");
    let opens = format!("opens {}", there.display());
    assert!(
        said.contains(&opens) && said.contains("LD_PRELOAD="),
        "{said}"
    );

    // An interpreter with a package that has its own library.
    let prefix = build.path("venv");
    let packages = prefix.join("lib/python3.11/site-packages/engine.libs");
    fs::create_dir_all(&packages).unwrap();
    compile(
        "int main(void) { return 0; }",
        &prefix.join("bin/python3"),
        &[],
    );
    let python = || {
        let path = prefix.join("bin/python3");
        let args = ["run", "--view", "none", "--", path.to_str().unwrap()];
        text(&build.rocade(&args).run().stderr)
    };
    assert_eq!(python(), "");
    let copy = packages.join("libibverbs-abcdef12.so.1.14.44.0");
    fs::write(&copy, "").unwrap();
    let said = python();
    let parts = ["package with its own libibverbs", copy.to_str().unwrap()];
    assert!(parts.iter().all(|part| said.contains(part)), "{said}");
    assert_eq!(said.lines().count(), 2, "{said}");
}
