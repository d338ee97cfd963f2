//! The places of the checkout, and the way to call cargo.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

/// The checkout.
#[derive(Debug)]
pub(crate) struct Workspace {
    root: PathBuf,
}

impl Workspace {
    /// Finds the checkout from the place of this package.
    ///
    /// # Errors
    /// A reason to print, where the workspace is not there (a binary that was moved).
    pub(crate) fn locate() -> Result<Self, String> {
        let package = env::var_os("CARGO_MANIFEST_DIR")
            .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
        let root = package
            .ancestors()
            .nth(2)
            .filter(|root| root.join("tests/xtask").is_dir())
            .ok_or_else(|| format!("no workspace around {}", package.display()))?;
        Ok(Self {
            root: root.to_owned(),
        })
    }

    /// The root of the checkout.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// The directory for build results.
    pub(crate) fn target(&self) -> PathBuf {
        env::var_os("CARGO_TARGET_DIR")
            .map_or_else(|| self.root.join("target"), |dir| self.root.join(dir))
    }

    /// A cargo command that runs in the root, without the variables that this process got from its
    /// own cargo.
    pub(crate) fn cargo(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        command.args(args);
        self.clean(&mut command);
        command
    }

    /// Makes a command run in the root, without what belongs to the package `xtask` only.
    pub(crate) fn clean(&self, command: &mut Command) {
        command.current_dir(&self.root);
        for (name, _) in env::vars_os() {
            let Some(name) = name.to_str() else { continue };
            if name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_") {
                command.env_remove(name);
            }
        }
        command
            .env_remove("CARGO_BIN_NAME")
            .env_remove("CARGO_CRATE_NAME");
    }

    /// The version of the workspace's packages.
    pub(crate) fn version(&self) -> Option<String> {
        self.shared("version")
    }

    /// The oldest compiler of the workspace's packages, as `1.89`.
    pub(crate) fn rust_version(&self) -> Option<String> {
        self.shared("rust-version")
    }

    /// A property that all packages share.
    fn shared(&self, key: &str) -> Option<String> {
        let manifest = std::fs::read_to_string(self.root.join("Cargo.toml")).ok()?;
        let (_, section) = manifest.split_once("[workspace.package]")?;
        let mut values = section
            .lines()
            .filter_map(|line| line.strip_prefix(key)?.strip_prefix(" = "));
        Some(values.next()?.trim_matches('"').to_owned())
    }

    /// Directories of the workspace's members, relative to the root, in the order of Cargo.toml.
    pub(crate) fn members(&self) -> Vec<String> {
        let manifest = std::fs::read_to_string(self.root.join("Cargo.toml")).unwrap_or_default();
        let list = manifest
            .split_once("members = [")
            .map_or("", |(_, rest)| rest);
        let list = list.split_once(']').map_or(list, |(list, _)| list);
        list.split(',')
            .map(|entry| entry.trim().trim_matches('"').to_owned())
            .filter(|entry| !entry.is_empty())
            .collect()
    }
}

/// Returns true in a CI job.
pub(crate) fn in_ci() -> bool {
    env::var_os("CI").is_some_and(|value| !value.is_empty() && value != "false" && value != "0")
}

/// The target that the compiler itself runs on.
pub(crate) fn host_triple() -> Option<String> {
    let output = Command::new("rustc").arg("-vV").output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    text.lines()
        .find_map(|line| line.strip_prefix("host: ").map(str::to_owned))
}
