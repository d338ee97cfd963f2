//! Measures Rocade and, in the same run, the limits of the machine. Prints both and their ratio.
//!
//! ```sh
//! cargo build --release
//! cargo run --release -p rocade-perf                       # every row, medians of five runs
//! cargo run --release -p rocade-perf -- --row write_bw_4096 --row send_lat_8
//! cargo run --release -p rocade-perf -- --quick --runs 1
//! cargo run --release -p rocade-perf -- events             # programs that wait, beside TCP
//! cargo run --release -p rocade-perf -- busy               # the same beside busy loops
//! cargo run --release -p rocade-perf -- sweep --write      # over message sizes, with plots
//! ```
//!
//! Rocade's figures come from unmodified perftest programs in two processes under `rocade run`. The
//! floors are implemented here with plain sockets and shared memory. Everything runs in its own
//! network namespace if the user may create one.

mod child;
mod distance;
mod document;
mod figures;
mod plot;
mod probe;
mod rig;
mod rows;
mod sweep;
mod sys;
mod table;
mod ucx;

use std::{
    io::{self, Write as _},
    net::SocketAddr,
    path::PathBuf,
    process::ExitCode,
    time::Duration,
};

use clap::{Args, Parser, Subcommand};

use self::{
    child::Failure,
    probe::{connect, copy, offload, ping_pong, scale, stream},
    rig::{Link, Rig},
    rows::Row,
    sweep::Sweep,
    table::Measured,
};

/// Measures Rocade and the limits of the machine in one run.
#[derive(Debug, Parser)]
#[command(name = "rocade-perf")]
struct Cli {
    #[command(subcommand)]
    task: Option<Task>,
    #[command(flatten)]
    table: TableArgs,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Print the names of all rows.
    Rows,
    /// Bandwidth and latency over message sizes from 8 B to 4 MiB.
    Sweep(SweepArgs),
    /// Latency, system calls and context switches of programs that wait, beside TCP.
    Events(RowArgs),
    /// Latency beside 2, 4 and 8 busy loops, and that of TCP beside as many.
    Busy(RowArgs),
    /// UCX over Rocade beside UCX's own ways between two processes (`ucx_perftest` of ucx-utils).
    Ucx {
        #[command(flatten)]
        common: Common,
    },
    /// One process of a measurement, started by this program.
    #[command(hide = true)]
    Part {
        #[command(subcommand)]
        part: Part,
    },
}

#[derive(Debug, Args)]
pub(crate) struct Common {
    /// Runs per figure.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// Run a tenth of the iterations, as a check of the program.
    #[arg(long)]
    quick: bool,
    /// The `rocade` command to measure [default: $ROCADE_BIN, else target/release/rocade].
    #[arg(long)]
    rocade: Option<PathBuf>,
    /// Compute ICRCs with this backend in every row that does not name one.
    #[arg(long)]
    icrc: Option<String>,
    /// Put the results into docs/performance.md.
    #[arg(long)]
    write: bool,
}

#[derive(Debug, Args)]
struct RowArgs {
    /// Measure only this row. Can be given several times. `rocade-perf rows` lists the names.
    #[arg(long = "row")]
    rows: Vec<String>,
    #[command(flatten)]
    common: Common,
}

#[derive(Debug, Args)]
struct TableArgs {
    /// Leave out the rows in the guest.
    #[arg(long)]
    no_guest: bool,
    #[command(flatten)]
    args: RowArgs,
}

#[derive(Debug, Args)]
struct SweepArgs {
    /// Links to measure. Links that Rocade does not support are left out.
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["udp", "shm"])]
    links: Vec<Link>,
    #[command(flatten)]
    common: Common,
}

#[derive(Debug, Subcommand)]
enum Part {
    StreamSink {
        path: PathBuf,
        millis: u64,
    },
    Echo {
        wait: ping_pong::Wait,
        len: usize,
    },
    CopyConsumer {
        path: PathBuf,
        len: usize,
        count: u32,
        copies: usize,
    },
    WriteTarget {
        queue_pairs: u32,
    },
    WriteSource {
        queue_pairs: u32,
        messages: usize,
    },
    Idle {
        queue_pairs: u32,
    },
    Offload {
        what: offload::What,
        count: u32,
    },
    AcceptTcp,
    AcceptRdma,
    AskRdma {
        to: SocketAddr,
        count: u32,
    },
}

/// Lists the rows, until the reader has seen enough.
fn list_rows() {
    let mut out = io::stdout().lock();
    for row in rows::all().chain(rows::events()).chain(rows::busy()) {
        if writeln!(out, "{:<20} {} / {}", row.name, row.what, row.against).is_err() {
            return;
        }
    }
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match cli.task {
        Some(Task::Part { part }) => run_part(part).map(|()| ExitCode::SUCCESS),
        Some(Task::Rows) => {
            list_rows();
            Ok(ExitCode::SUCCESS)
        }
        Some(Task::Sweep(args)) => isolated(|| run_sweep(&args)),
        Some(Task::Ucx { common }) => isolated(|| run_ucx(&common)),
        Some(Task::Events(args)) => isolated(|| run_rows("events", rows::events(), &args)),
        Some(Task::Busy(args)) => isolated(|| run_rows("busy", rows::busy(), &args)),
        None => isolated(|| run_table(&cli.table)),
    };
    result.unwrap_or_else(|failure| {
        eprintln!("rocade-perf: {failure}");
        ExitCode::from(2)
    })
}

fn isolated(work: impl FnOnce() -> Result<ExitCode, Failure>) -> Result<ExitCode, Failure> {
    rig::isolate().map_or_else(work, |code| Ok(ExitCode::from(code)))
}

/// Measures the main table.
fn run_table(args: &TableArgs) -> Result<ExitCode, Failure> {
    let in_guest = |row: &&Row| row.name.starts_with("guest_");
    let rows = rows::all().filter(|row| !(args.no_guest && in_guest(row)));
    run_rows("table", rows, &args.args)
}

/// Measures the rows of a block of the document. The exit status is 1 if a row falls short or was
/// disturbed.
fn run_rows(
    block: &str,
    rows: impl Iterator<Item = &'static Row>,
    args: &RowArgs,
) -> Result<ExitCode, Failure> {
    let rows = select(rows.copied().collect(), &args.rows)?;
    let rig = Rig::new(&args.common)?;
    let circumstances = document::circumstances();
    eprintln!("{circumstances}");
    let measured: Vec<Measured> = rows
        .into_iter()
        .map(|row| Measured::new(&rig, row, args.common.runs))
        .collect();
    println!("{}", table::terminal(&measured));
    if args.common.write {
        let text = format!("{circumstances}\n{}", table::markdown(&measured));
        document::replace(block, &text)?;
    }
    let short = measured.iter().any(Measured::is_short);
    Ok(if short {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

fn run_sweep(args: &SweepArgs) -> Result<ExitCode, Failure> {
    let rig = Rig::new(&args.common)?;
    let circumstances = document::circumstances();
    let sweep = Sweep::new(&rig, &args.links, args.common.runs)?;
    println!("{}", sweep.markdown());
    if args.common.write {
        document::write_plot("performance-bandwidth.svg", &sweep.bandwidth_svg())?;
        document::write_plot("performance-latency.svg", &sweep.latency_svg())?;
        let text = format!("{circumstances}\n{}", sweep.markdown());
        document::replace("sweep", &text)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn run_ucx(common: &Common) -> Result<ExitCode, Failure> {
    rig::require("ucx_perftest", "ucx-utils")?;
    let rig = Rig::new(common)?;
    let circumstances = document::circumstances();
    let table = ucx::markdown(&rig, common.runs)?;
    println!("{table}");
    if common.write {
        document::replace("ucx", &format!("{circumstances}\n{table}"))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the rows with these names, or all of them without a name.
fn select(mut rows: Vec<Row>, names: &[String]) -> Result<Vec<Row>, Failure> {
    let unknown = |name: &&String| rows.iter().all(|row| row.name != **name);
    if let Some(unknown) = names.iter().find(unknown) {
        return Err(format!(
            "no row {unknown:?} here; `rocade-perf rows` lists them"
        ));
    }
    rows.retain(|row| names.is_empty() || names.iter().any(|name| name == row.name));
    Ok(rows)
}

fn run_part(part: Part) -> Result<(), Failure> {
    match part {
        Part::StreamSink { path, millis } => stream::sink(&path, Duration::from_millis(millis)),
        Part::Echo { wait, len } => ping_pong::echo(wait, len),
        Part::CopyConsumer {
            path,
            len,
            count,
            copies,
        } => copy::consume(&path, len, count, copies),
        Part::WriteTarget { queue_pairs } => scale::target(queue_pairs),
        Part::WriteSource {
            queue_pairs,
            messages,
        } => scale::source(queue_pairs, messages),
        Part::Idle { queue_pairs } => scale::idle(queue_pairs),
        Part::Offload { what, count } => offload::run(what, count),
        Part::AcceptTcp => connect::accept_tcp(),
        Part::AcceptRdma => connect::accept_rdma(),
        Part::AskRdma { to, count } => connect::ask_rdma(to, count),
    }
}
