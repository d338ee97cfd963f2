//! Writes results between the marks in `docs/performance.md`.

use std::{fs, process::Command, thread};

use crate::{child::Failure, distance, rig};

/// The document with the results.
const FILE: &str = "docs/performance.md";

/// Replaces the contents of the block `name` by `text`.
pub(crate) fn replace(name: &str, text: &str) -> Result<(), Failure> {
    let path = rig::root().join(FILE);
    let error = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let old = fs::read_to_string(&path).map_err(|e| error(&e))?;
    let new = replaced(&old, name, text).ok_or_else(|| error(&format!("no block {name:?}")))?;
    fs::write(&path, new).map_err(|e| error(&e))
}

/// Writes a plot into the directory of the document.
pub(crate) fn write_plot(name: &str, svg: &str) -> Result<(), Failure> {
    let path = rig::root().join("docs").join(name);
    fs::write(&path, svg).map_err(|error| format!("{}: {error}", path.display()))
}

fn replaced(old: &str, name: &str, text: &str) -> Option<String> {
    let (begin, end) = (
        format!("<!-- begin {name} -->"),
        format!("<!-- end {name} -->"),
    );
    let (head, rest) = old.split_once(&begin)?;
    let (_, tail) = rest.split_once(&end)?;
    Some(format!("{head}{begin}\n{}\n{end}{tail}", text.trim_end()))
}

/// Returns the circumstances of this run: date, processor, cores and their distance, memory,
/// kernel, command line.
pub(crate) fn circumstances() -> String {
    let said = |program: &str, arguments: &[&str]| {
        let output = Command::new(program).args(arguments).output();
        output.map_or_else(
            |_| "unknown".to_owned(),
            |output| String::from_utf8_lossy(&output.stdout).trim().to_owned(),
        )
    };
    let field = |file: &str, name: &str| {
        let text = fs::read_to_string(file).unwrap_or_default();
        let line = text.lines().find(|line| line.starts_with(name));
        let value = line.and_then(|line| line.split_once(':'));
        value.map_or_else(
            || "unknown".to_owned(),
            |(_, value)| value.trim().to_owned(),
        )
    };
    let cores = thread::available_parallelism().map_or(0, usize::from);
    let rmem = fs::read_to_string("/proc/sys/net/core/rmem_max").unwrap_or_default();
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').next().unwrap_or_default();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    format!(
        "Date: {date}. Processor: {cpu}, {cores} cores. Kernel: {kernel}. `rmem_max`: {rmem}. \
         Load at the start: {load}. Perftest: {perftest}. Distance: {distance}.\n\n\
         Command: `cargo run --release -p rocade-perf -- {arguments}`\n",
        date = said("date", &["-u", "+%Y-%m-%d %H:%M UTC"]),
        cpu = field("/proc/cpuinfo", "model name"),
        kernel = said("uname", &["-srm"]),
        rmem = rmem.trim(),
        perftest = said("ib_write_bw", &["--version"]).trim_start_matches("Version: "),
        distance = distance::introduction(),
        arguments = arguments.join(" "),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_block_changes() {
        let old = "a\n<!-- begin x -->\nold\n<!-- end x -->\nb\n";
        let new = "a\n<!-- begin x -->\nnew\n<!-- end x -->\nb\n";
        assert_eq!(replaced(old, "x", "new\n").as_deref(), Some(new));
        assert_eq!(replaced(old, "y", "new"), None);
    }
}
