//! The echo of this package, `c/echo.c`: one program over the connection manager and over TCP.

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use crate::{child::Failure, rig};

/// The way in which both processes wait for a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wake {
    /// In `epoll_wait`, for non-blocking descriptors.
    Epoll,
    /// In `ibv_get_cq_event` or `recv`.
    Block,
}

impl Wake {
    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::Epoll => "epoll",
            Self::Block => "block",
        }
    }
}

/// Compiles the program into `dir`, against the libraries of this `rocade` command.
pub(crate) fn compile(rocade: &Path, dir: &Path) -> Result<PathBuf, Failure> {
    rig::require("gcc", "gcc")?;
    let libraries = Command::new(rocade).arg("libdir").output();
    let libraries = libraries.map_err(|error| format!("{}: {error}", rocade.display()))?;
    let libraries = String::from_utf8_lossy(&libraries.stdout).trim().to_owned();
    let (source, program) = (rig::root().join("tests/perf/c/echo.c"), dir.join("echo"));
    let mut command = Command::new("gcc");
    command.args(["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-I"]);
    command.arg(rig::root().join("verbs-api/include"));
    command.arg("-o").args([&program, &source]);
    command.args(["-L", &libraries, "-lrdmacm", "-libverbs"]);
    let output = command.output().map_err(|error| format!("gcc: {error}"))?;
    if output.status.success() {
        return Ok(program);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let error = said.lines().find(|line| line.contains("error"));
    Err(format!(
        "{}\n  the headers are in: apt-get install librdmacm-dev libibverbs-dev",
        error.or_else(|| said.lines().last()).unwrap_or_default()
    ))
}

/// Returns the last arguments of the client, which stops at the first of the two limits.
pub(super) fn client_words(count: u32, limit: Duration) -> Vec<String> {
    vec![count.to_string(), limit.as_millis().to_string()]
}

/// Parses the output of the client.
pub(super) fn micros(output: &str) -> Result<f64, Failure> {
    let figure = output
        .split_whitespace()
        .next()
        .and_then(|word| word.parse().ok());
    let figure: Option<f64> = figure;
    figure
        .filter(|figure| figure.is_finite() && *figure > 0.0)
        .ok_or_else(|| format!("no figure in the output of echo: {output:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_microseconds() {
        assert!((micros("36.769 4180\n").expect("a figure") - 36.769).abs() < 1e-9);
        for output in ["", "-nan 100\n", "0.000 100\n"] {
            assert!(micros(output).is_err(), "{output:?}");
        }
    }
}
