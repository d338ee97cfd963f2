//! The action for jobs of GitHub (`action.yml`). Its main step runs as a runner starts it, and the
//! steps after it have nothing but what that step has exported. All of them run as an ordinary user
//! in a root directory that has the programs of the system only.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::fs::chown,
    path::{Path, PathBuf},
    process::Command,
};

use rocade_tests::{
    harness::{Finished, Process, Rig, free_port},
    or_skip,
    skip::Reason,
};

use crate::{LIMIT, UTILS};

/// The search path of a runner.
const PATH: &str = "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The package, as steps see it.
const PACKAGE: &str = "/job/package.tar.gz";

/// The user `nobody`.
const USER: u32 = 65_534;

/// Makes a root directory in an empty one, with the directory of the job in it, and runs a command
/// there as an ordinary user.
const CLEAN_ROOT: &str = r#"
set -e
mount --make-rprivate /
mount -t tmpfs -o mode=755 tmpfs "$1"
cd "$1"
mkdir usr etc proc sys dev tmp job old
chmod 1777 tmp
for name in bin sbin lib lib32 lib64; do
    if [ -L /$name ]; then cp -P /$name .
    elif [ -d /$name ]; then mkdir $name; mount --bind /$name $name
    fi
done
for name in usr etc; do mount --bind /$name $name; done
for name in proc sys dev; do mount --rbind /$name $name; done
mount --bind "$2" job
pivot_root . old
umount -l old
cd /job
shift 2
exec setpriv --reuid=65534 --regid=65534 --clear-groups --inh-caps=-all -- "$@"
"#;

/// The repository, which has `action.yml`.
fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// A job, whose directory is `/job` for its steps.
struct Job {
    rig: Rig,
    dir: PathBuf,
}

impl Job {
    /// Makes a package of the build, and a job.
    ///
    /// # Errors
    /// The reason why this machine has no clean root for it.
    fn new() -> Result<Self, Reason> {
        let rig = Rig::loopback(UTILS)?;
        let id = Command::new("id").arg("-u").output();
        if id.map_or(true, |output| output.stdout != b"0\n") {
            let reason = "a clean root directory needs root";
            return Err(Reason::Machine(reason.to_owned()));
        }
        let dir = rig.dir().join("job");
        for name in ["temp", "run", "action/.github", "empty"] {
            fs::create_dir_all(dir.join(name)).expect("the directory can be made");
        }
        let script = ".github/setup-rocade.sh";
        let copied = fs::copy(repository().join(script), dir.join("action").join(script));
        copied.expect("the script can be copied");
        let prefix = dir.join("rocade-0.0.0").display().to_string();
        let installed = rig.rocade(&["install", "--prefix", &prefix]);
        installed.expect_success();
        let path = dir.display().to_string();
        let words = ["tar", "-czf", "package.tar.gz", "rocade-0.0.0"];
        let words = [&["env", "-C", &path][..], &words].concat();
        rig.start_plain("tar", &words)
            .finish(LIMIT)
            .expect_success();
        fs::remove_dir_all(&prefix).expect("it was just made");
        for name in [".", "temp", "run"] {
            chown(dir.join(name), Some(USER), Some(USER)).expect("root changes owners");
        }
        Ok(Self { rig, dir })
    }

    /// Runs the main step with these inputs.
    fn set_up(&self, inputs: &[(&str, &str)]) -> Finished {
        let variables = [
            "RUNNER_TEMP=/job/temp",
            "GITHUB_ACTION_PATH=/job/action",
            "GITHUB_ENV=/job/env",
            "GITHUB_OUTPUT=/job/output",
            "GITHUB_PATH=/job/path",
        ];
        let mut variables = variables.map(str::to_owned).to_vec();
        variables.extend(inputs.iter().map(|(name, value)| format!("{name}={value}")));
        let words = [
            "bash",
            "-c",
            "bash \"$GITHUB_ACTION_PATH/.github/setup-rocade.sh\"",
        ];
        self.start("the action", &variables, &words).finish(LIMIT)
    }

    /// Starts a program of a later step.
    fn step(&self, words: &[&str]) -> Process {
        let mut exported = self.lines("env");
        let added = self.lines("path").concat();
        exported.push(format!("PATH={added}:{PATH}"));
        self.start(words[0], &exported, words)
    }

    fn start(&self, name: &str, variables: &[String], words: &[&str]) -> Process {
        let own = [
            format!("PATH={PATH}"),
            // The broker of the job ends with it, and leaves nothing.
            "XDG_RUNTIME_DIR=/job/run".to_owned(),
            "ROCADE_BROKER_IDLE_MS=500".to_owned(),
        ];
        let (dir, root) = (self.dir.display(), self.dir.join("empty"));
        let (dir, root) = (dir.to_string(), root.display().to_string());
        let clean = ["unshare", "--mount", "sh", "-c", CLEAN_ROOT, "sh"];
        let all: Vec<&str> = clean
            .into_iter()
            .chain([&*root, &*dir, "env", "-i"])
            .chain(own.iter().chain(variables).map(String::as_str))
            .chain(words.iter().copied())
            .collect();
        self.rig.start_plain(name, &all)
    }

    /// Returns the lines that the main step has written for the runner.
    fn lines(&self, file: &str) -> Vec<String> {
        let text = fs::read_to_string(self.dir.join(file)).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    fn outputs(&self) -> BTreeMap<String, String> {
        let lines = self.lines("output").into_iter();
        lines
            .map(|line| {
                let (name, value) = line.split_once('=').expect("NAME=VALUE");
                (name.to_owned(), value.to_owned())
            })
            .collect()
    }
}

/// Returns the words that follow `before` in a text, up to the first other character.
fn words_after(text: &str, before: &str) -> BTreeSet<String> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    let parts = text.split(before).skip(1);
    parts
        .map(|part| part.chars().take_while(|c| is_part(*c)).collect())
        .collect()
}

#[test]
fn later_steps_have_the_device_without_rocade_run() {
    let job = or_skip!(Job::new());
    job.set_up(&[
        ("INPUT_VERSION", PACKAGE),
        ("INPUT_DEVICE_NAME", "rxe_0"),
        ("INPUT_INTERFACE", ""),
        (
            "INPUT_FAULT",
            "drop opcode=ACK nth=1\ndrop opcode=ACK nth=3\n",
        ),
    ])
    .expect_success();
    let outputs = job.outputs();
    for (name, value) in [
        ("device", "rxe_0"),
        ("gid-index", "0"),
        ("address", "127.0.0.1"),
        // Without a default route.
        ("interface", "lo"),
    ] {
        assert_eq!(outputs[name], value, "{outputs:?}");
    }
    let fault = "ROCADE_FAULT=drop opcode=ACK nth=1;drop opcode=ACK nth=3".to_owned();
    assert!(job.lines("env").contains(&fault), "{:?}", job.lines("env"));

    let port = free_port().to_string();
    let words = [
        "ibv_rc_pingpong",
        "-d",
        "rxe_0",
        "-g",
        "0",
        "-n",
        "50",
        "-p",
        &port,
    ];
    let mut server = job.step(&words);
    server.wait_listening(port.parse().unwrap(), LIMIT);
    let client = job.step(&[&words[..], &["127.0.0.1"]].concat());
    for side in [client, server] {
        let output = side.finish(LIMIT).expect_success();
        assert!(output.contains("50 iters in"), "{output}");
    }
    // The command is in the search path of later steps, and shows a view to those that need it.
    let words = ["rocade", "run", "--", "ls", "/sys/class/infiniband"];
    let shown = job.step(&words).finish(LIMIT).expect_success();
    assert!(shown.lines().any(|line| line == "rxe_0"), "{shown}");

    // What action.yml promises is what the step gives, and each input reaches it.
    let text = fs::read_to_string(repository().join("action.yml")).unwrap();
    let promised = words_after(&text, "steps.rocade.outputs.");
    assert_eq!(promised, outputs.into_keys().collect());
    let script = fs::read_to_string(repository().join(".github/setup-rocade.sh")).unwrap();
    let read: BTreeSet<String> = words_after(&script, "${INPUT_");
    for input in ["interface", "device-name", "version", "fault"] {
        let name = input.to_uppercase().replace('-', "_");
        assert!(text.contains(&format!("INPUT_{name}: ${{{{ inputs.{input} }}}}")));
        assert!(read.contains(&name), "{name} is not in {read:?}");
    }
}

#[test]
fn mistakes_are_errors_of_the_job() {
    let job = or_skip!(Job::new());
    for (inputs, part) in [
        (
            &[("INPUT_VERSION", "9.9.9")][..],
            "the repository is unknown",
        ),
        (
            &[("INPUT_VERSION", "/nonexistent.tar.gz")],
            "no package of Rocade",
        ),
        (
            &[("INPUT_VERSION", PACKAGE), ("INPUT_INTERFACE", "no0")],
            "no0",
        ),
    ] {
        let output = job.set_up(inputs).expect_failure();
        assert!(output.contains("::error title=rocade::"), "{output}");
        assert!(output.contains(part), "{part:?} is not in {output}");
    }
}
