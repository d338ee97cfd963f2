//! Tests of the command from a user's view. The libraries are empty files here: the tests check
//! which directory and which variables the program gets.
#![expect(clippy::unwrap_used, reason = "in a test")]

mod build;

use std::collections::BTreeMap;
use std::fs;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use build::{Build, LIBRARIES, LIMIT, Limited as _, assert_refused, finish_within, start, text};

/// Returns the variables that env(1) printed.
fn variables(output: &Output) -> BTreeMap<String, String> {
    assert!(output.status.success(), "{output:?}");
    let lines = text(&output.stdout);
    let pairs = lines.lines().filter_map(|line| line.split_once('='));
    pairs
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

fn canonical(path: impl AsRef<Path>) -> PathBuf {
    fs::canonicalize(path).unwrap()
}

/// Checks the limit that all programs of these tests have.
#[test]
fn a_program_that_hangs_is_named_with_its_output() {
    let mut hangs = Command::new("sh");
    hangs.args(["-c", "echo begun; sleep 1000 & wait"]);
    let error = hangs.run_within(Duration::from_secs(3)).unwrap_err();
    assert!(error.contains("echo begun; sleep 1000"), "{error}");
    assert!(error.contains(r#"stdout: "begun\n""#), "{error}");
}

#[test]
fn alone_it_prints_its_help() {
    let output = Build::new().rocade(&[]).run();
    assert!(output.status.success());
    let help = text(&output.stdout);
    for part in ["run ", "devices", "libdir", "broker", "Examples:"] {
        assert!(help.contains(part), "{part:?} is not in: {help}");
    }
}

#[test]
fn a_program_gets_libraries_and_devices() {
    let build = Build::with_libraries();
    let args = [
        "run",
        "--dev",
        "a=127.0.0.2",
        "--dev",
        "b=127.0.0.3",
        "--",
        "env",
    ];
    let output = build
        .rocade(&args)
        .env("LD_LIBRARY_PATH", "/opt/other")
        .env("ROCADE_IP", "127.0.0.9")
        .run();
    let seen = variables(&output);
    let libraries = canonical(build.path("rocade-libs"));
    assert_eq!(
        seen["LD_LIBRARY_PATH"],
        format!("{}:/opt/other", libraries.display())
    );
    assert_eq!(seen["ROCADE_DEVICES"], "a=127.0.0.2;b=127.0.0.3");
    assert!(
        !seen.contains_key("ROCADE_IP"),
        "the flag wins over the variable"
    );
    assert_eq!(
        canonical(&seen["ROCADE_BROKER"]),
        canonical(build.path("rocade"))
    );

    let printed = text(&build.rocade(&["libdir"]).run().stdout);
    assert_eq!(canonical(printed.trim_end()), libraries);
    for library in LIBRARIES {
        let found = fs::read_to_string(libraries.join(format!("{library}.so.1"))).unwrap();
        assert_eq!(found, library);
    }
}

#[test]
fn the_file_of_the_directory_is_handed_down() {
    let build = Build::with_libraries();
    let file = build.path("work/rocade.toml");
    fs::write(
        &file,
        "devices = [\"mine=127.0.0.2\"]\nbroker = \"embedded\"\n",
    )
    .unwrap();
    let seen = variables(&build.rocade(&["run", "env"]).run());
    assert_eq!(canonical(&seen["ROCADE_CONFIG"]), canonical(&file));
    assert!(!seen.contains_key("ROCADE_DEVICES"));
    assert!(
        !seen.contains_key("ROCADE_BROKER"),
        "it would win over the file"
    );

    let table = build.rocade(&["devices"]).run();
    assert!(text(&table.stdout).contains("mine"), "{table:?}");
    let table = build.rocade(&["devices", "--ip", "127.0.0.4"]).run();
    assert!(text(&table.stdout).contains("127.0.0.4"), "{table:?}");
    assert!(!text(&table.stdout).contains("mine"), "{table:?}");
}

#[test]
fn exit_code_and_signal_are_those_of_the_program() {
    let build = Build::with_libraries();
    let exit = build
        .rocade(&["run", "--", "sh", "-c", "exit 42"])
        .run()
        .status;
    assert_eq!(exit.code(), Some(42));
    let killed = build
        .rocade(&["run", "--", "sh", "-c", "kill -9 $$"])
        .run()
        .status;
    assert_eq!(killed.signal(), Some(9));
}

#[test]
fn what_cannot_be_run_is_said() {
    let build = Build::with_libraries();
    let run = |program: &str| build.rocade(&["run", "--", program]).run();
    assert_refused(&run("no-such-program"), 127, &["no-such-program"]);
    assert_refused(
        &run("ib_no_such"),
        127,
        &["ib_no_such", "apt-get install perftest"],
    );
    assert_refused(
        &run("fi_no_such"),
        127,
        &["fi_no_such", "apt-get install libfabric-bin"],
    );
    fs::write(build.path("work/notes.txt"), "not executable").unwrap();
    assert_refused(
        &run("./notes.txt"),
        126,
        &["./notes.txt", "not an executable"],
    );
    assert_refused(&run("notes.txt"), 127, &["./notes.txt"]);
}

#[test]
fn missing_libraries_come_with_the_cure() {
    let build = Build::new();
    let cure = ["libibverbs.so", "cargo build --release"];
    assert_refused(&build.rocade(&["libdir"]).run(), 125, &cure);
    assert_refused(&build.rocade(&["run", "true"]).run(), 125, &cure);
}

#[test]
fn a_broken_configuration_is_refused_before_the_program_starts() {
    let build = Build::with_libraries();
    let output = build.rocade(&["run", "--dev", "lo", "--", "env"]).run();
    assert_refused(&output, 125, &["--dev", "\"lo\"", "rocade0=lo", "allowed"]);
    assert!(output.stdout.is_empty());

    let output = build
        .rocade(&["devices"])
        .env("ROCADE_DEVICES", "a=no-such-if0")
        .run();
    assert_refused(&output, 125, &["ROCADE_DEVICES", "no-such-if0", "allowed"]);

    let output = build.rocade(&["devices"]).env("ROCADE_LOG", "x=y").run();
    assert_refused(&output, 125, &["ROCADE_LOG", "debug"]);

    let output = build
        .rocade(&["devices"])
        .env("ROCADE_CONFIG", "/no/such.toml")
        .run();
    assert_refused(&output, 125, &["/no/such.toml", "cannot read it"]);

    let both = ["run", "--dev", "a=lo", "--ip", "::1", "--", "env"];
    assert_refused(&build.rocade(&both).run(), 2, &["--dev", "--ip"]);
}

#[test]
fn misspelt_words_of_the_command_line_get_the_nearest_known_one() {
    let build = Build::with_libraries();
    for (args, wrong, right) in [
        (&["devcies"][..], "devcies", "devices"),
        (&["brocker", "status"], "brocker", "broker"),
        (&["broker", "statsu"], "statsu", "status"),
        (&["devices", "--dve", "a=lo"], "--dve", "--dev"),
        (&["run", "--dve", "a=lo", "--", "env"], "--dve", "--dev"),
        (&["run", "--pi=::1", "env"], "--pi", "--ip"),
        (&["demo", "--i=::1"], "--i", "--ip"),
    ] {
        let output = build.rocade(args).run();
        assert_refused(&output, 2, &[wrong, "similar", right]);
        assert!(output.stdout.is_empty(), "{output:?}");
    }
}

#[test]
fn misspelt_variables_are_named_once() {
    let build = Build::with_libraries();
    let output = build
        .rocade(&["run", "--", "env"])
        .env("ROCADE_LGO", "debug")
        .run();
    let error = text(&output.stderr);
    assert!(
        error.contains("ROCADE_LGO") && error.contains("did you mean ROCADE_LOG?"),
        "{error}"
    );
    // The libraries in the program do not repeat the warning.
    assert_eq!(variables(&output)["ROCADE_WARNED"], "ROCADE_LGO");

    let output = build.rocade(&["devices"]).env("ROCADE_LOG", "debgu").run();
    assert_refused(
        &output,
        125,
        &["ROCADE_LOG", "debgu", "did you mean debug?"],
    );
    let output = build
        .rocade(&["run", "--", "env"])
        .env("ROCADE_LOG", "debgu")
        .run();
    assert_refused(
        &output,
        125,
        &["ROCADE_LOG", "debgu", "did you mean debug?"],
    );
    assert!(output.stdout.is_empty());
}

#[test]
fn devices_lists_the_gids_in_order() {
    let args = ["devices", "--dev", "rocade0=127.0.0.1,127.0.0.7"];
    let output = Build::new().rocade(&args).run();
    assert!(output.status.success(), "{output:?}");
    let table = text(&output.stdout);
    let first = table.find("::ffff:127.0.0.1").unwrap();
    let second = table.find("::ffff:127.0.0.7").unwrap();
    assert!(
        first < second && table.contains("ACTIVE") && table.contains("4096"),
        "{table}"
    );
}

/// Stops the broker that a test has started, also if the test fails.
struct StopBroker<'a>(&'a Build);

impl Drop for StopBroker<'_> {
    fn drop(&mut self) {
        let mut stop = self.0.rocade(&["broker", "stop"]);
        let _ = stop.run_within(LIMIT);
    }
}

#[test]
fn the_demo_moves_data_through_a_broker_that_can_be_asked_and_stopped() {
    let build = Build::new();
    let _stop = StopBroker(&build);
    let asked = build.rocade(&["broker", "status"]).run();
    assert_refused(&asked, 1, &["no broker is running"]);

    for (link, way) in [("", "through shared memory"), ("udp", "over UDP port 4791")] {
        let output = build
            .rocade(&["demo", "--ip", "127.0.21.1"])
            .env("ROCADE_LINK", link)
            .run();
        let shown = text(&output.stdout);
        assert!(output.status.success(), "{shown}{}", text(&output.stderr));
        for part in [
            "SEND",
            "WRITE",
            "READ",
            "CmpSwap",
            "FetchAdd",
            "All data arrived correctly",
            way,
            "What next",
        ] {
            assert!(shown.contains(part), "{part:?} is not in: {shown}");
        }
    }

    // The broker stays for a while. The address is free as soon as the broker has noticed that no
    // process uses it.
    let status = || text(&build.rocade(&["broker", "status"]).run().stdout);
    let deadline = Instant::now() + Duration::from_secs(20);
    while status().contains("127.0.21.1") {
        assert!(Instant::now() < deadline, "{}", status());
    }
    assert!(status().contains("pid "), "{}", status());
    let stopped = build.rocade(&["broker", "stop"]).run();
    assert!(
        text(&stopped.stdout).contains("stopped the broker"),
        "{stopped:?}"
    );
    let asked = build.rocade(&["broker", "status"]).run();
    assert_refused(&asked, 1, &["no broker is running"]);
}

#[test]
fn a_closed_pipe_is_no_accident() {
    let build = Build::new();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut devices = build.rocade(&["devices", "--ip", "127.0.0.2"]);
    let child = start(devices.stdout(writer)).unwrap();
    let output = finish_within(child, &devices, LIMIT).unwrap();
    assert_refused(&output, 141, &[]);
    assert!(output.stderr.is_empty(), "{output:?}");
}

/// Returns the lines of the command's standard error.
fn complaints(output: &Output) -> Vec<String> {
    text(&output.stderr).lines().map(str::to_owned).collect()
}

#[test]
fn an_address_that_another_program_has_is_said_once_and_with_a_remedy() {
    let build = Build::new();
    let runtime_dir = build.path("run");
    let demo = |ip: &str, name: &str, value: &str| {
        let mut demo = build.rocade(&["demo", "--ip", ip]);
        demo.env("ROCADE_RUNTIME_DIR", &runtime_dir)
            .env("ROCADE_BROKER_IDLE_MS", "1000");
        demo.env(name, value).run()
    };
    let _holder = std::net::UdpSocket::bind("127.0.21.2:4791").unwrap();
    for (name, value) in [("ROCADE_LINK", "auto"), ("ROCADE_BROKER", "embedded")] {
        let output = demo("127.0.21.2", name, value);
        let process = format!("taken by process {} (", std::process::id());
        let remedy = "another address (--ip 127.0.0.2)";
        assert_refused(
            &output,
            125,
            &["UDP port 4791 of 127.0.21.2", &process, remedy],
        );
        assert_eq!(complaints(&output).len(), 1, "{output:?}");
    }
    // A peer list that excludes the demo's own peer.
    let output = demo("127.0.21.3", "ROCADE_PEERS", "192.0.2.0/24");
    assert_refused(&output, 125, &["127.0.21.3", "ROCADE_PEERS"]);
    assert_eq!(complaints(&output).len(), 1, "{output:?}");
}

#[test]
fn a_broker_that_cannot_be_had_is_said_with_a_remedy() {
    let build = Build::new();
    let demo = |name: &str, value: &Path| {
        let mut demo = build.rocade(&["demo", "--ip", "127.0.21.4"]);
        // Another test may have a broker in the default directory.
        demo.env("ROCADE_RUNTIME_DIR", build.path("run"));
        demo.env(name, value).run()
    };
    let output = demo("ROCADE_BROKER", Path::new("/bin/true"));
    let parts = ["`/bin/true broker serve` ended at once", "must be the path"];
    assert_refused(&output, 125, &parts);
    let output = demo("ROCADE_BROKER", Path::new("/no/such/rocade"));
    assert_refused(
        &output,
        125,
        &["Tried: /no/such/rocade", "set ROCADE_BROKER to"],
    );

    let long = build.path(&"x".repeat(120));
    for (dir, reason, remedy) in [
        (long.as_path(), "too long", "to a path of at most 80 bytes"),
        (
            Path::new("/etc/passwd"),
            "Not a directory",
            "only you can write to",
        ),
        (
            Path::new("/proc/rocade"),
            "No such file",
            "only you can write to",
        ),
    ] {
        let parts = ["the runtime directory", reason, remedy];
        assert_refused(&demo("ROCADE_RUNTIME_DIR", dir), 125, &parts);
        let mut serve = build.rocade(&["broker", "serve"]);
        let serve = serve.env("ROCADE_RUNTIME_DIR", dir).run();
        // A directory is created here, and not asked for a socket.
        let parts = ["the runtime directory", remedy];
        assert_refused(&serve, 125, &parts);
    }
}

#[test]
fn a_program_that_changes_the_user_is_told_to_stand_in_front() {
    let build = Build::with_libraries();
    for (name, advice) in [
        ("sudo", "sudo rocade run -- CMD"),
        ("doas", "doas rocade run -- CMD"),
    ] {
        let file = compile(&build, name, &[]);
        let mut run = build.rocade(&["run", "--", file.to_str().unwrap(), "ibv_devinfo"]);
        let output = run.run();
        assert_refused(&output, 0, &["warning", "another user", advice]);
    }
}

#[test]
fn a_limit_of_the_size_of_files_is_an_error_and_no_silent_end() {
    let build = Build::with_libraries();
    let limited = |words: &str| {
        let script = format!(
            "ulimit -f 0; exec {} {words}",
            build.path("rocade").display()
        );
        let mut shell = Command::new("sh");
        shell.args(["-c", &script]).current_dir(build.path("work"));
        shell.run()
    };
    let file = build.path("completions");
    let output = limited(&format!("completions bash > {}", file.display()));
    assert_refused(&output, 125, &["standard output", "File too large"]);
    // The program itself gets the signal as without `rocade run`.
    let output = limited("run --view none -- sh -c 'echo x > limited'");
    assert_eq!(output.status.signal(), Some(libc_sigxfsz()), "{output:?}");
    let output = limited("run -- true");
    assert!(output.status.success(), "{output:?}");
    let said = complaints(&output).join("\n");
    assert_eq!(said.matches("rocade:").count(), 1, "{said}");
    assert_refused(
        &output,
        0,
        &["will find nothing in /dev/infiniband", "ulimit -f"],
    );
}

/// The number of the signal, the same on all processors that Rocade supports.
const fn libc_sigxfsz() -> i32 {
    25
}

/// Builds a C program with the compiler that links Rust programs, too.
fn compile(build: &Build, name: &str, options: &[&str]) -> PathBuf {
    let source = build.path("program.c");
    fs::write(&source, "int main(void) { return 0; }").unwrap();
    let program = build.path(name);
    let built = Command::new("cc")
        .args(options)
        .arg("-o")
        .arg(&program)
        .arg(&source)
        .run();
    assert!(built.status.success(), "{built:?}");
    program
}

#[test]
fn a_program_that_will_not_see_rocade_is_run_with_a_warning() {
    let build = Build::with_libraries();
    let run = |program: &Path| {
        let program = program.to_str().unwrap();
        build.rocade(&["run", "--", program]).run()
    };
    let plain = run(&compile(&build, "plain", &[]));
    assert!(
        plain.status.success() && plain.stderr.is_empty(),
        "{plain:?}"
    );

    let file = compile(&build, "static", &["-static"]);
    assert_refused(
        &run(&file),
        0,
        &["warning", "static is statically linked", "dynamically"],
    );
    let script = build.path("script");
    fs::write(&script, format!("#!{}\n", file.display())).unwrap();
    fs::set_permissions(&script, Permissions::from_mode(0o755)).unwrap();
    assert_refused(
        &run(&script),
        0,
        &["which runs", "script", "statically linked"],
    );

    // A directory that is searched first. With a run path it would be searched last.
    let own = build.path("own");
    fs::create_dir(&own).unwrap();
    let rpath = |option: &str| format!("-Wl,{option},-rpath,$ORIGIN/own");
    let file = compile(&build, "rpath", &[&rpath("--disable-new-dtags")]);
    assert!(run(&file).stderr.is_empty(), "there is no library yet");
    fs::write(own.join("libibverbs.so.1"), "").unwrap();
    assert_refused(&run(&file), 0, &["DT_RPATH", "/own first", "LD_PRELOAD"]);
    let file = compile(&build, "runpath", &[&rpath("--enable-new-dtags")]);
    assert!(run(&file).stderr.is_empty());
}

#[test]
fn a_program_for_another_c_library_is_not_given_the_preload_library() {
    let build = Build::with_libraries();
    let linker = match std::env::consts::ARCH {
        "aarch64" => "/lib/ld-linux-aarch64.so.1",
        _ => "/lib64/ld-linux-x86-64.so.2",
    };
    let musl = build.path("ld-musl-x86_64.so.1");
    std::os::unix::fs::symlink(linker, &musl).unwrap();
    let option = format!("-Wl,--dynamic-linker={}", musl.display());
    let program = compile(&build, "musl", &[&option]);
    let run = |view: &str| {
        let program = program.to_str().unwrap();
        let args = ["run", "--view", view, "--", program];
        build.rocade(&args).run()
    };
    assert_refused(&run("preload"), 125, &["another C library", "--view none"]);
    assert_refused(&run("none"), 0, &["is for another C library", "ld-musl"]);
}

#[test]
fn programs_of_other_machines_are_named_as_such() {
    let build = Build::with_libraries();
    let program = compile(&build, "program", &[]);
    // EI_CLASS is the word size, and e_machine the processor.
    for (class, machine, part) in [(1, 40, "for ARM (32 bits)"), (2, 22, "processor type 22")] {
        let mut bytes = fs::read(&program).unwrap();
        (bytes[4], bytes[18]) = (class, machine);
        let other = build.path(&format!("other{machine}"));
        fs::write(&other, bytes).unwrap();
        fs::set_permissions(&other, Permissions::from_mode(0o755)).unwrap();
        // Only the warning matters here, not the execution.
        let output = build.rocade(&["run", "--", other.to_str().unwrap()]).run();
        let error = text(&output.stderr);
        assert!(
            error.contains(part) && error.contains("use a build"),
            "{error}"
        );
    }
}

#[test]
fn programs_get_the_usual_signals() {
    // Rust programs ignore SIGPIPE, and the programs that they execute must not inherit that.
    let build = Build::with_libraries();
    let status = build
        .rocade(&["run", "--", "sh", "-c", "kill -PIPE $$"])
        .run()
        .status;
    assert_eq!(status.signal(), Some(13));
}

/// Parses the JSON output of a command.
fn json(output: &Output) -> serde_json::Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

#[test]
fn devices_and_status_have_a_form_for_programs() {
    let build = Build::new();
    let args = [
        "devices",
        "--json",
        "--dev",
        "a=127.0.0.7,::1",
        "--dev",
        "b=127.0.0.8",
    ];
    let devices = json(&build.rocade(&args).run());
    let first = &devices["devices"][0];
    assert_eq!(first["name"], "a");
    assert_eq!(first["interface"], "lo");
    assert_eq!(first["state"], "ACTIVE");
    assert_eq!(first["mtu_bytes"], 4096);
    assert_eq!(first["gids"][1]["index"], 1);
    assert_eq!(first["gids"][1]["gid"], "::1");
    assert_eq!(first["gids"][0]["address"], "127.0.0.7");
    assert_eq!(devices["devices"][1]["name"], "b");

    let runtime_dir = build.path("run");
    let status = || {
        let mut command = build.rocade(&["broker", "status", "--json"]);
        command.env("ROCADE_RUNTIME_DIR", &runtime_dir).run()
    };
    let asked = status();
    assert_refused(&asked, 1, &["no broker is running"]);
    assert_eq!(json(&asked), serde_json::json!({ "running": false }));
    let mut serve = build.rocade(&["broker", "serve"]);
    let mut broker = start(serve.env("ROCADE_RUNTIME_DIR", &runtime_dir)).unwrap();
    let pid = broker.id();
    let answer = loop {
        let asked = status();
        assert!(broker.try_wait().unwrap().is_none(), "the broker has ended");
        if asked.status.success() {
            break json(&asked);
        }
    };
    let stop = build
        .rocade(&["broker", "stop"])
        .env("ROCADE_RUNTIME_DIR", &runtime_dir)
        .run();
    assert!(stop.status.success());
    let ended = finish_within(broker, &serve, LIMIT).unwrap();
    assert!(ended.status.success());
    assert_eq!(answer["running"], true);
    assert_eq!(answer["pid"], pid);
    assert_eq!(answer["clients"], serde_json::json!([]));
}

#[test]
fn shells_can_read_the_completions() {
    let build = Build::new();
    for (shell, part) in [
        ("bash", "_rocade"),
        ("zsh", "#compdef rocade"),
        ("fish", "complete -c rocade"),
    ] {
        let output = build.rocade(&["completions", shell]).run();
        let script = text(&output.stdout);
        assert!(output.status.success() && script.contains(part), "{script}");
        for word in ["devices", "broker", "install"] {
            assert!(script.contains(word), "no {word} for {shell}");
        }
    }
    // bash is always installed, and tests its completion script.
    let script = "source $0; COMP_WORDS=(rocade dev); COMP_CWORD=1; \
                  _rocade rocade dev rocade; echo \"${COMPREPLY[@]}\"";
    let generated = build.rocade(&["completions", "bash"]).run();
    fs::write(build.path("completions"), &generated.stdout).unwrap();
    let output = Command::new("bash")
        .args(["-c", script])
        .arg(build.path("completions"))
        .run();
    assert_eq!(text(&output.stdout).trim(), "devices", "{output:?}");
    assert_refused(&build.rocade(&["completions", "fihs"]).run(), 2, &["fish"]);
}

/// The screen of a newcomer has commands and examples. The settings are one step away.
#[test]
fn settings_are_in_the_long_help() {
    let build = Build::new();
    let outputs = [&[][..], &["-h"], &["--help"]].map(|words| {
        let output = build.rocade(words).run();
        assert!(output.status.success(), "{output:?}");
        text(&output.stdout).to_owned()
    });
    for output in &outputs {
        assert!(output.contains("doctor") && output.contains("rocade run -- ibv_devinfo"));
    }
    let [bare, short, long] = &outputs;
    assert!(!bare.contains("ROCADE_DEVICES") && bare.contains("`rocade --help`"));
    assert_eq!(bare, short);
    for part in ["ROCADE_DEVICES", "ROCADE_CONFIG", "Exit codes: 125"] {
        assert!(long.contains(part), "{part}");
    }
}

#[test]
fn manual_pages_say_what_help_says() {
    let build = Build::new();
    // The manual is available despite an invalid configuration.
    let page = build.rocade(&["man"]).env("ROCADE_LINK", "x").run();
    let page = text(&page.stdout);
    for part in [
        ".TH ROCADE 1",
        "ROCADE_DEVICES",
        "Exit codes",
        "rocade\\-run(1)",
    ] {
        assert!(page.contains(part), "{part:?} is not in {page}");
    }
    let page = build.rocade(&["man", "broker", "status"]).run();
    assert!(
        text(&page.stdout).contains("rocade\\-broker\\-status"),
        "{page:?}"
    );
    assert_refused(
        &build.rocade(&["man", "x"]).run(),
        2,
        &["rocade-x.1", "rocade-run"],
    );
}

#[test]
fn commands_for_kubernetes_are_a_program_of_their_own() {
    let build = Build::new();
    let output = build.rocade(&["k8s", "device-plugin"]).run();
    let dir = build.path("");
    let dir = dir.to_string_lossy();
    let parts = [
        "rocade-k8s is not installed",
        dir.trim_end_matches('/'),
        "cargo build --release -p rocade-k8s",
    ];
    assert_refused(&output, 125, &parts);

    // Another process writes it, because one that a test forks meanwhile could keep it open.
    let script = "printf '#!/bin/sh\necho \"$@\"\nexit 7\n' > \"$0\" && chmod +x \"$0\"";
    let mut write = Command::new("sh");
    let written = write
        .args(["-c", script])
        .arg(build.path("rocade-k8s"))
        .run();
    assert!(written.status.success(), "{written:?}");
    let args = ["k8s", "device-plugin", "--count", "3", "--help"];
    let output = build.rocade(&args).run();
    assert_eq!(text(&output.stdout), "device-plugin --count 3 --help\n");
    assert_eq!(output.status.code(), Some(7));
}
