//! `rocade trace show`: draws a timeline as one page that needs no network.

use std::io;
use std::path::Path;
use std::process::ExitCode;

use serde_json::{Value, json};

use super::args::ShowArgs;
use super::timeline::{Slice, Track, Tracks, read};
use crate::error::CliError;
use crate::output;

/// The page, in which data and title are replaced.
const PAGE: &str = include_str!("page.html");
/// The most slices of a page. A browser would be slow with more.
const MAX_SLICES: usize = 200_000;

pub(super) fn run(args: &ShowArgs) -> Result<ExitCode, CliError> {
    let shown = args.file.display();
    let explain = |error: io::Error| CliError::new(format!("failed to read {shown}: {error}"));
    let bytes = std::fs::read(&args.file).map_err(explain)?;
    let (tracks, is_whole) = read(&bytes);
    if tracks.is_empty() {
        return Err(
            CliError::new(format!("{shown} has no timeline of rocade trace"))
                .hint("write one: rocade trace --perfetto x.pftrace -- CMD..."),
        );
    }
    let name = args.file.file_name().unwrap_or_default().to_string_lossy();
    let (text, count, left_out) = page(&name, &tracks);
    let out = match &args.output {
        Some(out) if out == Path::new("-") => {
            output::print(&text)?;
            return Ok(ExitCode::SUCCESS);
        }
        Some(out) => out.clone(),
        None => args.file.with_extension("html"),
    };
    std::fs::write(&out, text)
        .map_err(|error| CliError::new(format!("failed to write {}: {error}", out.display())))?;
    let out = out.display();
    output::line(format_args!("{out}: {count} slices and packets"))?;
    if left_out > 0 {
        output::line(format_args!(
            "the last {left_out} slices are left out, because a browser would be slow with them"
        ))?;
    }
    if !is_whole {
        output::line("the end of the timeline is missing")?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the page, the number of its slices, and of those that are left out.
fn page(name: &str, tracks: &Tracks) -> (String, usize, usize) {
    let begins = |track: &Track| {
        let slices = track.slices.iter().map(|slice| slice.begin_ns);
        let values = track.values.iter().map(|(time_ns, _)| *time_ns);
        slices.chain(values).min()
    };
    let begin = tracks.values().filter_map(begins).min().unwrap_or(0);
    let mut all: Vec<u64> = tracks
        .values()
        .flat_map(|track| track.slices.iter().map(|slice| slice.begin_ns))
        .collect();
    all.sort_unstable();
    let last = all.get(MAX_SLICES).copied().unwrap_or(u64::MAX);
    let processes = tracks.iter().filter(|(_, track)| track.pid != 0);
    let data: Vec<Value> = processes
        .map(|(uuid, process)| {
            let of_process = tracks.values().filter(|track| track.parent == *uuid);
            let mut rows: Vec<&Track> = of_process.collect();
            rows.sort_by_key(|track| order(track));
            let rows: Vec<Value> = rows
                .into_iter()
                .map(|track| row(track, begin, last))
                .collect();
            json!({"pid": process.pid, "name": process.name, "rows": rows})
        })
        .collect();
    // A `<` in a text could end the script.
    let data = Value::from(data).to_string().replace('<', "\\u003c");
    let title = name.replace('&', "&amp;").replace('<', "&lt;");
    let text = PAGE.replace("TITLE", &title).replace("\"DATA\"", &data);
    let left_out = all.len().saturating_sub(MAX_SLICES);
    (text, all.len() - left_out, left_out)
}

/// Returns the place of a track in its process: threads, then queue pairs with their requests,
/// packets and counters.
fn order(track: &Track) -> (bool, String, usize) {
    let name = &track.name;
    let kinds = ["requests", "packets", "in flight", "window"];
    let kind = kinds.iter().position(|kind| name.ends_with(kind));
    let kind = kind.unwrap_or(kinds.len());
    let qp = name.trim_end_matches(kinds.get(kind).copied().unwrap_or(""));
    (track.thread == 0, qp.to_owned(), kind)
}

fn row(track: &Track, begin: u64, last: u64) -> Value {
    let name = match track.thread {
        0 => track.name.clone(),
        thread => format!("thread {thread}"),
    };
    let slices = track.slices.iter().filter(|slice| slice.begin_ns < last);
    let slices: Vec<Value> = slices.map(|one| slice(one, begin)).collect();
    let values = track.values.iter().filter(|(time_ns, _)| *time_ns < last);
    let values: Vec<Value> = values
        .map(|(time_ns, value)| json!([time_ns - begin, value]))
        .collect();
    json!({"name": name, "slices": slices, "values": values})
}

/// Returns a slice as begin, length (null for an instant), depth, name, category, words, flow, and
/// whether it is the end of the flow.
fn slice(slice: &Slice, begin: u64) -> Value {
    let length = slice.end_ns.map(|end| end.saturating_sub(slice.begin_ns));
    let words: Vec<String> = slice
        .words
        .iter()
        .map(|(name, value)| format!("{name}: {value}"))
        .collect();
    json!([
        slice.begin_ns - begin,
        length,
        slice.depth,
        slice.name,
        slice.category,
        words.join("\n"),
        slice.flow,
        slice.ends_flow,
    ])
}
