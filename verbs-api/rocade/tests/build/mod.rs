//! Runs the command in a separate build directory.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

pub(crate) const LIBRARIES: [&str; 5] = ["libibverbs", "librdmacm", "libmlx5", "libefa", "libmana"];

/// A build directory with the command, and an empty home directory.
pub(crate) struct Build {
    dir: tempfile::TempDir,
}

impl Build {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        // A link instead of a copy. A newly written file may still be open in a child that another
        // test forks, and then cannot be executed.
        fs::hard_link(env!("CARGO_BIN_EXE_rocade"), dir.path().join("rocade")).unwrap();
        fs::create_dir(dir.path().join("work")).unwrap();
        Self { dir }
    }

    pub(crate) fn with_libraries() -> Self {
        let build = Self::new();
        for library in LIBRARIES {
            fs::write(build.path(&format!("{library}.so")), library).unwrap();
        }
        fs::write(build.path("librocade_preload.so"), "preload").unwrap();
        build
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Returns the command `rocade ARGS` in the directory `work`, without settings of the machine.
    pub(crate) fn rocade(&self, args: &[&str]) -> Command {
        let mut command = Command::new(self.path("rocade"));
        command
            .args(args)
            .current_dir(self.path("work"))
            .env_clear();
        command
            .env("PATH", "/usr/bin:/bin")
            .env("HOME", self.path("home"));
        command
    }
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Fails unless the command ended with `code` and an error text that contains all `parts`.
pub(crate) fn assert_refused(output: &Output, code: i32, parts: &[&str]) {
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{error}");
    for part in parts {
        assert!(error.contains(part), "{part:?} is not in: {error}");
    }
}
