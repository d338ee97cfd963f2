//! The broker under a service manager: `rocade broker units`, socket activation, notices.
#![expect(clippy::unwrap_used, reason = "in a test")]

#[allow(dead_code, reason = "each test program uses a part of it")]
mod build;

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use build::{Build, LIMIT, Limited as _, assert_refused, finish_within, text};
use rocade_skip::Reason;
use rustix::event::{PollFd, PollFlags, poll};
use socket2::{Domain, SockAddr, Socket, Type};

/// Passes standard input as the socket of a service manager, and becomes the broker.
const PASS: &str = "exec 3<&0 </dev/null; export LISTEN_PID=$$ LISTEN_FDS=1; exec \"$@\"";

/// A runtime directory, whose broker a service manager starts.
struct Service {
    build: Build,
    dir: tempfile::TempDir,
}

impl Service {
    fn new() -> Self {
        Self {
            build: Build::new(),
            // The name of a socket is short, and that of a build directory may not be.
            dir: tempfile::tempdir().unwrap(),
        }
    }

    fn runtime_dir(&self) -> PathBuf {
        self.dir.path().join("run")
    }

    /// Listens where programs look for the broker of this directory.
    fn listen(&self, kind: Type, suffix: &str) -> Socket {
        let uid = rustix::process::geteuid().as_raw();
        let dir = self.runtime_dir();
        let name = format!("\0rocade/broker/{uid}:{}{suffix}", dir.display());
        let listener = Socket::new(Domain::UNIX, kind, None).unwrap();
        listener.bind(&SockAddr::unix(name).unwrap()).unwrap();
        listener.listen(8).unwrap();
        listener
    }

    fn rocade(&self, args: &[&str]) -> Command {
        let mut command = self.build.rocade(args);
        command.env("ROCADE_RUNTIME_DIR", self.runtime_dir());
        command
    }

    fn command(&self) -> Command {
        let mut command = Command::new("sh");
        command
            .args(["-c", PASS, "sh"])
            .arg(self.build.path("rocade"));
        command.args(["broker", "serve"]);
        command
            .env_clear()
            .env("ROCADE_RUNTIME_DIR", self.runtime_dir());
        command.env("NOTIFY_SOCKET", self.notices());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn start(&self, listener: &Socket) -> Child {
        let passed = OwnedFd::from(listener.try_clone().unwrap());
        self.command().stdin(passed).spawn().unwrap()
    }

    fn notices(&self) -> PathBuf {
        self.dir.path().join("notices")
    }
}

/// Returns the next notice.
fn notice(socket: &UnixDatagram) -> String {
    let mut buffer = [0; 100];
    let len = socket.recv(&mut buffer).expect("a notice");
    text(&buffer[..len])
}

#[test]
fn a_broker_serves_the_program_for_which_it_was_started() {
    let service = Service::new();
    let listener = service.listen(Type::SEQPACKET, "");
    let notices = UnixDatagram::bind(service.notices()).unwrap();
    notices.set_read_timeout(Some(LIMIT)).unwrap();

    // It connects to the service manager, which starts the broker then.
    let mut first = service.rocade(&["broker", "status", "--json"]);
    first.stdout(Stdio::piped());
    let program = build::start(&mut first).unwrap();
    let mut waiting = [PollFd::new(&listener, PollFlags::IN)];
    let limit = LIMIT.try_into().unwrap();
    assert_eq!(poll(&mut waiting, Some(&limit)), Ok(1));
    let broker = service.start(&listener);
    let pid = broker.id();
    let answered = finish_within(program, &first, LIMIT).unwrap();
    assert!(answered.status.success(), "{answered:?}");
    let status: serde_json::Value = serde_json::from_slice(&answered.stdout).unwrap();
    assert_eq!(status["pid"], pid, "{status}");
    assert_eq!(notice(&notices), "READY=1");

    // Later programs find the socket in the runtime directory.
    let mut files = fs::read_dir(service.runtime_dir()).unwrap();
    assert!(files.any(|file| {
        let name = file.unwrap().file_name();
        name.to_string_lossy().ends_with("broker.sock")
    }));
    let stopped = service.rocade(&["broker", "stop"]).run();
    assert!(stopped.status.success(), "{stopped:?}");
    assert_eq!(notice(&notices), "STOPPING=1");
    let ended = finish_within(broker, &service.command(), LIMIT).unwrap();
    assert!(ended.status.success(), "{ended:?}");
}

#[test]
fn a_socket_that_programs_would_not_find_is_refused() {
    let service = Service::new();
    for (kind, suffix, reason) in [
        (Type::STREAM, "", "SOCK_SEQPACKET"),
        (
            Type::SEQPACKET,
            ".other",
            "ListenSequentialPacket=@rocade/broker/",
        ),
    ] {
        let listener = service.listen(kind, suffix);
        let broker = service.start(&listener);
        let ended = finish_within(broker, &service.command(), LIMIT).unwrap();
        assert_refused(&ended, 125, &[reason]);
    }
}

/// Runs systemd-analyze, which prints nothing if all is well.
fn analyze(args: &[&str], runtime: &Path, unit: &Path) -> (bool, String) {
    let mut command = Command::new("systemd-analyze");
    command
        .args(args)
        .arg(unit)
        .env("XDG_RUNTIME_DIR", runtime)
        .env("SYSTEMD_COLORS", "0");
    let output = command.run();
    (output.status.success(), text(&output.stderr))
}

#[test]
fn units_are_valid_and_locked_down() {
    let build = Build::new();
    let dirs = [("user", None), ("system", Some("--system"))];
    for (name, option) in dirs {
        let dir = build.path(name);
        let words = ["broker", "units", dir.to_str().unwrap()];
        let words: Vec<&str> = words.into_iter().chain(option).collect();
        let written = build.rocade(&words).run();
        assert!(written.status.success(), "{written:?}");
        assert!(text(&written.stdout).contains("rocade-broker.socket"));
    }
    if Command::new("systemd-analyze")
        .arg("--version")
        .output()
        .is_err()
    {
        rocade_skip::skip!(Reason::Package("systemd".to_owned()));
    }
    for (name, _) in dirs {
        // The page may not be installed.
        let verify = [&format!("--{name}"), "--man=no", "verify"];
        for unit in ["rocade-broker.socket", "rocade-broker.service"] {
            let result = analyze(&verify, &build.path("work"), &build.path(name).join(unit));
            assert_eq!(result, (true, String::new()), "{name} {unit}");
        }
    }
    // A scale from 0 to 100, on which services without any limits have more than 90.
    for (name, most) in [("user", 70), ("system", 20)] {
        let threshold = format!("--threshold={most}");
        let scope = format!("--{name}");
        let security = [&*scope, "security", "--offline=true", &*threshold];
        let unit = build.path(name).join("rocade-broker.service");
        let (is_below, errors) = analyze(&security, &build.path("work"), &unit);
        assert!(is_below, "{name}: {errors}");
    }
}
