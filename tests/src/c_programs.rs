//! C programs, compiled against the installed headers, and run with the built libraries.
//!
//! A program has several cases, chosen by its first argument. [`c_programs!`](crate::c_programs!)
//! makes a test of each case.

use std::{
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
    sync::{
        OnceLock,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use crate::{
    harness::Process,
    skip::{Reason, missing_command},
};

/// The time after which a case that hangs is killed with all its processes. A program sets a
/// shorter limit itself (`DEADLINE` in `rig.h`), which its children do not inherit.
const LIMIT: Duration = Duration::from_secs(200);

/// The exit status of a case that cannot run on this machine. Its standard error is the reason.
const SKIPPED: i32 = 77;

/// A further library of a program, which its source names in a line `/* link: … */`.
struct Link {
    library: String,
    header: PathBuf,
    package: String,
}

impl Link {
    /// Reads `/* link: LIBRARY HEADER PACKAGE */`.
    fn of(line: &str) -> Option<Self> {
        let words = line.strip_prefix("/* link: ")?.strip_suffix(" */")?;
        let mut words = words.split(' ').map(str::to_owned);
        Some(Self {
            library: words.next()?,
            header: words.next()?.into(),
            package: words.next()?,
        })
    }
}

/// The C programs of a package, and the libraries that they are linked with.
#[derive(Debug)]
pub struct Programs {
    /// The directory of the sources.
    pub sources: &'static str,
    /// The directory for libraries and executables.
    pub target: &'static str,
    /// The libraries by their linker names (`ibverbs`), which are also the arguments of `build`.
    pub libraries: &'static [&'static str],
    /// Builds a library, and returns its path.
    pub build: fn(&str) -> PathBuf,
    /// A header that must be installed, and its package.
    pub header: (&'static str, &'static str),
    /// The programs that have several processes, and therefore need a broker.
    pub with_broker: &'static [&'static str],
    directory: OnceLock<PathBuf>,
}

impl Programs {
    /// Describes the programs of a package. Nothing is built before the first use.
    #[must_use]
    pub const fn new(
        (sources, target): (&'static str, &'static str),
        libraries: &'static [&'static str],
        build: fn(&str) -> PathBuf,
        header: (&'static str, &'static str),
        with_broker: &'static [&'static str],
    ) -> Self {
        Self {
            sources,
            target,
            libraries,
            build,
            header,
            with_broker,
            directory: OnceLock::new(),
        }
    }

    /// Returns a package that has to be installed before the program can be compiled.
    #[must_use]
    pub fn missing(&self, program: &str) -> Option<Reason> {
        let (header, package) = self.header;
        let lacks = |header: &Path, package: &str| {
            (!header.is_file()).then(|| Reason::Package(package.to_owned()))
        };
        missing_command(&[(&compiler(), "gcc")])
            .or_else(|| lacks(Path::new(header), package))
            .or_else(|| {
                let mut links = self.links(program).into_iter();
                links.find_map(|link| lacks(&link.header, &link.package))
            })
    }

    fn source(&self, program: &str) -> PathBuf {
        Path::new(self.sources).join(format!("{program}.c"))
    }

    fn links(&self, program: &str) -> Vec<Link> {
        let source = std::fs::read_to_string(self.source(program)).expect("the source is there");
        source.lines().map_while(Link::of).collect()
    }

    /// The directory of the programs and of the libraries, which have the names that the loader
    /// looks for.
    fn directory(&self) -> &Path {
        self.directory.get_or_init(|| {
            // Different packages have programs of the same name, and their tests run in parallel.
            // It is short, because the names of sockets in it have at most 107 bytes.
            let directory = format!("c-{}", self.libraries.join("-"));
            let directory = Path::new(self.target).join(directory);
            std::fs::create_dir_all(&directory).expect("the directory can be created");
            for name in self.libraries {
                let library = (self.build)(name);
                make(&directory.join(format!("lib{name}.so.1")), |link| {
                    symlink(&library, link).expect("the link can be created");
                });
            }
            directory
        })
    }

    /// Compiles `<program>.c` against the built libraries.
    ///
    /// # Panics
    /// If the compiler complains.
    #[must_use]
    pub fn compile(&self, program: &str) -> PathBuf {
        let source = self.source(program);
        let libraries = self.libraries.iter();
        let libraries = libraries.map(|name| self.directory().join(format!("lib{name}.so.1")));
        let executable = self.directory().join(program);
        make(&executable, |executable| {
            let output = Command::new(compiler())
                .args(["-std=gnu11", "-O1", "-pthread"])
                // For debuggers, which take a fifth of the time to compile.
                .args(std::env::var_os("CI").is_none().then_some("-g"))
                .arg("-I")
                .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../verbs-api/include"))
                .args(["-Wall", "-Wextra", "-Werror", "-o"])
                .args([executable, &source])
                .args(libraries)
                .args(
                    self.links(program)
                        .iter()
                        .map(|link| format!("-l{}", link.library)),
                )
                .output()
                .expect("gcc runs");
            let stderr = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{}: {stderr}", source.display());
        });
        executable
    }

    /// Builds the `rocade` command into the directory of the library, as the broker of programs
    /// that have several processes. Returns `embedded` for the other programs.
    fn broker(&self, program: &str) -> PathBuf {
        if !self.with_broker.contains(&program) {
            return "embedded".into();
        }
        let library = (self.build)("ibverbs");
        let profile_dir = library.parent().expect("the library is in a directory");
        if std::env::var_os("ROCADE_TEST_BUILT").is_some() {
            return profile_dir.join("rocade");
        }
        let mut build = Command::new(std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned()));
        build.args(["build", "--quiet", "--package", "rocade", "--target-dir"]);
        build.arg(profile_dir.join(".."));
        if profile_dir.ends_with("release") {
            build.arg("--release");
        }
        let status = build.status().expect("cargo runs");
        assert!(status.success(), "cargo build --package rocade");
        profile_dir.join("rocade")
    }

    /// Runs a case of a program, with an IP address that no other program uses.
    ///
    /// # Panics
    /// If the case fails, or does not end in time.
    pub fn run(&self, program: &str, executable: &Path, case: &str) {
        static RUNS: AtomicU32 = AtomicU32::new(0);
        let run = RUNS.fetch_add(1, Ordering::Relaxed);
        // More numbers than cases: the broker of a case outlives it for a moment.
        let number = (std::process::id() << 9) | (run & 511);
        let broker = self.broker(program);
        let [_, high, middle, low] = (number << 1 | 1).to_be_bytes();
        let ip = format!("127.{}.{middle}.{low}", high | 0x80);
        let mut command = Command::new(executable);
        command
            .args([case, &ip])
            .env("LD_LIBRARY_PATH", self.directory())
            .env("ROCADE_IP", &ip)
            .env("ROCADE_BROKER", broker)
            .env("ROCADE_RUNTIME_DIR", self.directory())
            .env("ROCADE_BROKER_IDLE_MS", "100");
        // A file, because a process that the case leaves behind would keep a pipe open.
        let log = format!("{program}-{}-{run}.log", std::process::id());
        let log = self.directory().join(log);
        let finished = Process::start(case, command, &log).finish(LIMIT);
        let _ = std::fs::remove_file(&log);
        if finished.status.code() == Some(SKIPPED) {
            crate::skip!("{}", finished.output.trim());
        }
        finished.expect_success();
    }
}

/// The C compiler: `$CC`, or else gcc.
fn compiler() -> String {
    std::env::var("CC").unwrap_or_else(|_| "gcc".to_owned())
}

/// Makes a file under another name and renames it, because another test run may be using the old
/// file.
fn make(place: &Path, make: impl FnOnce(&Path)) {
    let beside = place.with_extension(format!("new-{}", std::process::id()));
    make(&beside);
    std::fs::rename(&beside, place).expect("the file can be renamed");
}

/// Defines a module per program, and in it a test per case.
#[macro_export]
macro_rules! c_programs {
    ($all:expr; $( $program:ident: $( $case:ident ),+ $(,)?; )+) => { $(
        mod $program {
            use super::*;

            fn executable() -> &'static ::std::path::Path {
                static EXECUTABLE: ::std::sync::OnceLock<::std::path::PathBuf> =
                    ::std::sync::OnceLock::new();
                EXECUTABLE.get_or_init(|| $all.compile(stringify!($program)))
            }

            $(
                #[test]
                fn $case() {
                    if let Some(reason) = $all.missing(stringify!($program)) {
                        $crate::skip!(reason);
                    }
                    $all.run(stringify!($program), executable(), stringify!($case));
                }
            )+
        }
    )+ };
}
