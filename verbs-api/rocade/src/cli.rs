//! The command line and the help texts.

use std::ffi::OsString;
use std::net::IpAddr;
use std::path::PathBuf;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args, CommandFactory as _, Parser, Subcommand, ValueEnum, ValueHint};
use rocade_emulator::config::nearest;

use crate::cdi::CdiCommand;
use crate::statistics::args::{ExporterArgs, StatArgs, TopArgs};
use crate::trace::args::TraceArgs;
use crate::units::UnitsArgs;

const TOP_EXAMPLES: &str = "\
Examples:
  rocade demo                               test this machine
  rocade doctor                             what works here, and what to do about the rest
  rocade run -- ibv_devinfo                 devices of a verbs program
  rocade run -- ib_write_bw                 a server, and in another terminal:
  rocade run -- ib_write_bw 127.0.0.1       its client
  rocade devices                            devices and their GIDs
  rocade fault add drop nth=3               test a program with a lost packet";

/// The end of the short help.
const TOP_MORE: &str = "`rocade --help` lists the settings and exit codes.";

const TOP_SETTINGS: &str = "\
Settings (flags override variables, and variables override the file):
  ROCADE_DEVICES      NAME=IFACE|ADDR[,..], separated by ';'
  ROCADE_IP           ADDR[,ADDR..]: one device rocade0 with these addresses
  ROCADE_BROKER       auto, embedded, or the path of the rocade executable
  ROCADE_BROKER_IDLE_MS
                      a broker without clients ends after this time (60000)
  ROCADE_RUNTIME_DIR  directory of the broker's socket and lock files
  ROCADE_LINK         auto (default: shared memory between processes of a host, else UDP),
                      udp (always: what a capture of the loopback interface needs), shm
  ROCADE_PEERS        ADDR[/PREFIX][,..]: peers that queue pairs accept packets from (default: all)
  ROCADE_DCQCN        on: congestion control of RC, XRC and UC over UDP (off)
  ROCADE_IDENTITY     VENDOR:PART, the vendor and part ID of the devices, e.g. 0x02c9:0x1017
  ROCADE_LIKE         rocade (default), rxe or mlx5: the kind of device to imitate, as with
                      `rocade run --like`
  ROCADE_PKEYS        PKEY[,..]: the P_Key table (0xffff)
  ROCADE_CAPTURE      a pcapng file for Wireshark, to which all packets are appended
  ROCADE_FAULT        fault rules, as for `rocade run --fault`, separated by ';'
  ROCADE_ICRC         the ICRC implementation, for measurements: avx512, vpclmul256, pclmul128,
                      pmull, crc32, table (default: the fastest one of the processor)
  ROCADE_LOG          on standard error: off, error (default), warn, info, debug, trace,
                      or TARGET=LEVEL. Unless off, a failing verb reports the reason
  ROCADE_CONFIG       configuration file (default: ./rocade.toml, for this command only,
                      ~/.config/rocade/rocade.toml, /etc/rocade/rocade.toml)

Exit codes: 125 for an error of rocade itself, 2 for an invalid command line. `rocade run` returns
the exit code of the program, 126 if it cannot be executed, or 127 if it does not exist.";

const RUN_AFTER: &str = "\
Examples:
  rocade run -- ibv_rc_pingpong -g 0                       server (GID index 0 is IPv4)
  rocade run -- ibv_rc_pingpong -g 0 127.0.0.1             client on the same address
  rocade run --dev rocade0=lo -- ib_send_lat               only the loopback interface
  rocade run --dev rocade0=127.0.0.2 -- ib_read_bw         only this address
  rocade run --dev rocade0=::1 -- ibv_rc_pingpong -g 0     IPv6 at GID index 0
  rocade run --dev a=eth0 --dev b=127.0.0.2 -- ibv_devices two devices
  ROCADE_LINK=udp rocade run -- ib_write_bw                packets are visible to tcpdump on lo
  ROCADE_LOG=debug rocade run -- ./my_program              with tracing on standard error
  rocade run --capture x.pcapng -- ./my_program            capture for Wireshark
  rocade run --fault 'drop opcode=READ_RESPONSE nth=3' -- ./my_program
  rocade run --fault recipe:lossy-1pct -- ./my_program     a recipe (`rocade fault recipes`)
  rocade run --chaos 42 -- ./my_program                    recipes that a seed draws

A rule is an action (drop, dup, delay by=5ms, reorder by=3, corrupt, ecn, link rate=1gbit ..,
spray paths=2 by=9us, partition, mute) and conditions for packets: opcode=NAME|CLASS, qpn=N,
psn=N[..N], size=N[..N], dir=tx|rx|both (tx), nth=N[..N], every=N, p=0.01 [seed=N]. Other rules:
  fail verb=reg_mr errno=ENOMEM, slow verb=any by=5ms, limit max_qp=4 memlock=64K
  complete status=RETRY_EXC_ERR, late by=5ms, burst count=8 by=1ms, shuffle by=9us, overrun
  qp-error after=64K, rnr, event type=PORT_ERR, kill, stop
All of them take a time: at=2s for=500ms every=1s (docs/failures.md).
Several programs can capture into one file at the same time.

--like imitates the names, limits and reported values of another kind of device, for programs that
rely on them. The operations and packets stay the same:
              rocade       rxe                          mlx5
  name        rocade0      rxe0                         mlx5_0
  vendor:part 0x526f:1     0xffffff:0                   0x02c9:0x1017 (or ROCADE_IDENTITY)
  firmware    the version  0.0.0                        16.35.4030
  node GUID   526f:..      ..ff:fe..                    ..03:00..
  receives    GRH on UD    IBV_WC_GRH on all            GRH on UD
  max_sge, READs, CQE  32, 128, 4194304  32, 128, 32767  30, 16, 4194304
  inline      as requested 16 bytes per element         rest of a 64-byte block

The program replaces this command, so signals, exit code and terminal are those of the program.
Without options there is one device per interface that is up, loopback last (see `rocade devices`).
Statically linked programs ignore the drop-in libraries. Programs that miss them are warned of.
Only the program and its children see the files of the devices in /dev/infiniband and
/sys/class/infiniband. --view selects the way to show them.";

const DEVICES_AFTER: &str = "\
Examples:
  rocade devices                            the devices that a program will see
  rocade devices --dev rocade0=lo           the effect of this option
  rocade devices --json | jq '.devices[].gids[0].gid'

The GIDs of a device are its IPv4 addresses, then IPv6, then link-local IPv6, or in the order of
--dev. MTU is the active MTU of the port: the largest of 256, 512, 1024, 2048 and 4096 bytes
that fits into the interface's MTU.";

const DEMO_AFTER: &str = "\
Examples:
  rocade demo                               on the loopback interface
  rocade demo --ip ::1                      over IPv6
  ROCADE_LINK=udp rocade demo               over UDP, visible to tcpdump
  ROCADE_LOG=debug rocade demo              with tracing on standard error

The command starts a second process, and both share one address through the broker.
SEND, WRITE, READ, compare-and-swap and fetch-and-add go from the first to the second, and every
byte is checked. It takes a few seconds.";

const DOCTOR_AFTER: &str = "\
Examples:
  rocade doctor                             about ten lines: ok, warning or problem
  rocade doctor --dev rocade0=eth0          for these devices only
  rocade doctor --json | jq -r '.checks[] | select(.status != \"ok\") | .finding'
  rocade doctor >/dev/null || exit 1        in a script
  rocade doctor ~/venv/lib                  files that would not use Rocade
  rocade doctor engine-1.0-cp311-abi3-manylinux_2_28_x86_64.whl

Each line has a finding, and below it what to do. A warning means slower, or not for all programs.
Exit codes: 0 if there is no problem, 1 if something will not work.
The command changes nothing and may run beside programs.

With files it reads how each loads libibverbs: by its name (ok), by a path, by dlmopen, a copy under
another name as in wheels (a warning: with a view by mounts `rocade run` replaces them), or not at
all because the library is inside (a problem). Directories and wheels are searched for such files.";

const LADDER_AFTER: &str = "\
Examples:
  rocade run --capture x.pcapng -- ./my_program && rocade ladder x.pcapng      x.html
  rocade ladder --qp 0x11 -o x.svg x.pcapng                 one conversation as a picture
  tcpdump -i eth0 -w y.pcap udp port 4791                   a capture for rocade ladder y.pcap

Each conversation of two queue pairs is a ladder: time goes down, and arrows are packets. Lost,
damaged, refused (NAK) and retransmitted packets are marked and described. Long sequences without
incidents are omitted, unless --all is given. Datagrams of several packets (GSO) are cut.";

const EXPLAIN_AFTER: &str = "\
Examples:
  tcpdump -i eth0 -s 0 -w y.pcap udp port 4791 && rocade explain y.pcap
  rocade explain --packets y.pcap                           each packet, with its findings
  rocade explain --json y.pcap                              in JSON, for programs

For each sender, the findings of its packets are listed: rules of real NICs (HW-01 to HW-12), habits
that other implementations have, and what neither explains. The exit code is 1 if there is anything
that neither explains.";

const LIBDIR_AFTER: &str = "\
Examples:
  LD_LIBRARY_PATH=$(rocade libdir) ibv_devinfo
  ls -l $(rocade libdir)

`rocade run` sets the variable. The directory holds lib{ibverbs,rdmacm,mlx5,efa,mana}.so.1.";

const BROKER_AFTER: &str = "\
Examples:
  rocade broker status                      processes, addresses and slots
  rocade broker status --json               in JSON, for programs
  rocade broker stop                        running programs keep their connections
  rocade broker serve                       in the foreground, e.g. under a service manager
  rocade broker units ~/.config/systemd/user    units of systemd, with socket activation

The broker lets several processes share one address and UDP port 4791. Programs start it on demand.
It is not on the data path, and ends some time after its last client. There is one broker per user
and network namespace.";

const FAULT_AFTER: &str = "\
Examples:
  rocade fault add drop opcode=READ_RESPONSE nth=3    in all current and future programs
  rocade fault add 'delay by=2ms p=1%; ecn every=100' two rules
  rocade fault add fail verb=reg_mr errno=ENOMEM      the next registrations fail
  rocade fault list                                   rules, and their hits per process
  rocade fault add recipe:lossy-1pct,p=3%             a recipe (`rocade fault recipes` lists them)
  rocade fault clear 2                                one rule
  rocade fault clear                                  all, also those of `rocade run --fault`

The rules are those of `rocade run --fault` (see its --help). They apply from now on to programs of
the same user and network namespace that use the broker. Positions (nth, every) count from now on.
The rules end with the broker: some time after the last program (ROCADE_BROKER_IDLE_MS), or when it
is stopped.";

const MINIMIZE_AFTER: &str = "\
Examples:
  rocade fault minimize --chaos 42 -- ./my_test
  rocade fault minimize --fault 'recipe:lossy-1pct; recipe:rnr-storm' -- ./my_test
  rocade fault minimize --timeout 10 --repeat 3 --chaos 7,count=12 -- ./my_test

The program runs once with all rules, once with none, and then with fewer and fewer of them. It fails
if its exit code is not 0, if a signal ends it, or if it runs longer than --timeout. Progress goes to
standard error, and the command that repeats the failure to standard output.";

const K8S_AFTER: &str = "\
Examples:
  rocade k8s --help                         the commands for Kubernetes
  rocade k8s device-plugin                  offer the devices to the kubelet of this node

This executes rocade-k8s beside this command, or else in PATH, with the same arguments. It is a
program of its own, because few users need it: cargo build --release -p rocade-k8s";

const INSTALL_AFTER: &str = "\
Examples:
  cargo install --path verbs-api/rocade && rocade install    for this user, next to the command
  sudo target/release/rocade install --prefix /usr/local     for all users
  rocade install --prefix /tmp/x && /tmp/x/bin/rocade demo   for a trial

The libraries next to the command (in a build directory) are installed, or else built from its
sources. They are installed in lib/rocade, where the command finds them. The system's own libraries
are not changed.";

const UNINSTALL_AFTER: &str = "\
Examples:
  rocade uninstall                          the installation of this command
  rocade uninstall --prefix /usr/local      another installation

This removes exactly the files that `rocade install` has installed, and the directories that it has
created if they are empty.";

const COMPLETIONS_AFTER: &str = "\
Examples:
  source <(rocade completions bash)         in this shell
  rocade completions fish > ~/.config/fish/completions/rocade.fish

`rocade install` installs them in the directories that shells search.";

const MAN_AFTER: &str = "\
Examples:
  rocade man | man -l -                     rocade(1)
  rocade man run | man -l -                 rocade-run(1)

`rocade install` installs the pages in the directory that man(1) searches.";

/// An RDMA NIC in userspace: runs unmodified RDMA programs without RDMA hardware.
///
/// Rocade speaks RoCEv2 over UDP port 4791 and offers the verbs API of rdma-core. It needs no
/// kernel module and no privilege.
#[derive(Debug, Parser)]
#[command(name = "rocade", version, after_help = format!("{TOP_EXAMPLES}\n\n{TOP_MORE}"))]
#[command(after_long_help = format!("{TOP_EXAMPLES}\n\n{TOP_SETTINGS}"), max_term_width = 100)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

/// Parses the command line of this process. Ends the process on an error (status 2) or a request
/// for help.
pub(crate) fn parse() -> Cli {
    Cli::try_parse().unwrap_or_else(|mut error| {
        suggest(&mut error);
        error.exit()
    })
}

/// Suggests a similar option for an unknown one. The parser's own measure of similarity fails for
/// words as short as `--dev`.
fn suggest(error: &mut clap::Error) {
    let Some(ContextValue::String(wrong)) = error.get(ContextKind::InvalidArg) else {
        return;
    };
    if error.kind() != ErrorKind::UnknownArgument {
        return;
    }
    let mut command = Cli::command();
    command.build();
    let mut place = &command;
    for word in std::env::args().skip(1) {
        match place.find_subcommand(&word) {
            Some(inner) => place = inner,
            None => break,
        }
    }
    let options: Vec<&str> = place
        .get_arguments()
        .filter_map(|arg| arg.get_long())
        .collect();
    if let Some(near) = nearest(wrong.trim_start_matches('-'), &options) {
        let value = ContextValue::String(format!("--{near}"));
        error.insert(ContextKind::SuggestedArg, value);
        // The usage would be that of the parser's own suggestion.
        error.remove(ContextKind::Usage);
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Test the installation: two processes exchange data over RoCEv2 and check it
    Demo(DemoArgs),
    /// Run a program with Rocade's devices
    Run(RunArgs),
    /// Show the devices that a program will see
    Devices(DevicesArgs),
    /// Print the directory of the drop-in libraries
    #[command(after_help = LIBDIR_AFTER)]
    Libdir,
    /// Tell what works on this machine, and what to do about the rest
    Doctor(DoctorArgs),
    /// Draw a capture as a packet ladder (HTML or SVG)
    Ladder(LadderArgs),
    /// Explain the packets of a capture, of any NIC, by what real NICs are known to send
    Explain(ExplainArgs),
    /// Print the verbs, work requests and packets of a program, and how long they took
    Trace(TraceArgs),
    /// Show what running programs have sent, received, repeated and dropped
    Stat(StatArgs),
    /// Show running programs and queue pairs by their rates, in a terminal
    Top(TopArgs),
    /// Serve the statistics of running programs to Prometheus
    Exporter(ExporterArgs),
    /// Add fault rules to running programs
    #[command(subcommand, after_help = FAULT_AFTER)]
    Fault(FaultCommand),
    /// Control the broker, which lets processes share an address
    #[command(subcommand, after_help = BROKER_AFTER)]
    Broker(BrokerCommand),
    /// Put Rocade into containers (podman, docker, Kubernetes) by a specification of CDI
    #[command(subcommand)]
    Cdi(CdiCommand),
    /// Offer Rocade's devices to pods of Kubernetes
    #[command(after_help = K8S_AFTER, disable_help_flag = true)]
    K8s {
        /// The arguments of rocade-k8s
        #[arg(
            value_name = "ARG",
            trailing_var_arg = true,
            allow_hyphen_values = true
        )]
        args: Vec<OsString>,
    },
    /// Install the command, its libraries, manual pages and completions
    #[command(after_help = INSTALL_AFTER)]
    Install(PrefixArgs),
    /// Remove the files that `rocade install` has installed
    #[command(after_help = UNINSTALL_AFTER)]
    Uninstall(PrefixArgs),
    /// Print a script that completes this command in a shell
    #[command(after_help = COMPLETIONS_AFTER)]
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Print a manual page
    #[command(after_help = MAN_AFTER)]
    Man {
        /// The subcommand [default: the command itself]
        command: Vec<String>,
    },
}

/// The devices of a program.
#[derive(Debug, Args)]
pub(crate) struct DeviceArgs {
    /// A device with all addresses of an interface, or with single addresses (can be repeated).
    /// `none`: no RDMA device at all
    #[arg(long = "dev", value_name = "NAME=IFACE|ADDR[,..]")]
    pub(crate) dev: Vec<String>,

    /// One device rocade0 with this address, or several separated by commas
    #[arg(long, value_name = "ADDR", conflicts_with = "dev")]
    pub(crate) ip: Option<String>,

    /// The kind of device to imitate: rocade, rxe or mlx5
    #[arg(long, value_name = "KIND")]
    pub(crate) like: Option<String>,
}

#[derive(Debug, Args)]
#[command(after_help = DEVICES_AFTER)]
pub(crate) struct DevicesArgs {
    #[command(flatten)]
    pub(crate) devices: DeviceArgs,

    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
#[command(after_help = DOCTOR_AFTER)]
pub(crate) struct DoctorArgs {
    #[command(flatten)]
    pub(crate) devices: DeviceArgs,

    #[command(flatten)]
    pub(crate) output: OutputArgs,

    /// Examine these programs, libraries, wheels and directories instead of the machine
    #[arg(value_name = "FILE|DIR", value_hint = ValueHint::AnyPath, conflicts_with_all = ["dev", "ip", "like"])]
    pub(crate) files: Vec<PathBuf>,

    /// Be the program that looks for the files of this device
    #[arg(long, hide = true, value_name = "DEVICE")]
    pub(crate) seen: Option<String>,
}

/// The format of the output.
#[derive(Debug, Args)]
pub(crate) struct OutputArgs {
    /// Print JSON, for programs
    #[arg(long)]
    pub(crate) json: bool,
}

/// The directory of an installation.
#[derive(Debug, Args)]
pub(crate) struct PrefixArgs {
    /// The directory [default: the one with this command in its bin, or else /usr/local for root
    /// and ~/.local for other users]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) prefix: Option<PathBuf>,
}

/// A shell with completions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Shell {
    /// bash
    Bash,
    /// zsh
    Zsh,
    /// fish
    Fish,
}

#[derive(Debug, Args)]
#[command(after_help = RUN_AFTER)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) devices: DeviceArgs,

    /// Capture all packets of the program and its children into this file (pcapng)
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) capture: Option<PathBuf>,

    /// Apply a fault rule, e.g. 'drop opcode=READ_RESPONSE nth=3' (can be repeated)
    #[arg(long, value_name = "RULE")]
    pub(crate) fault: Vec<String>,

    /// Apply recipes that this seed draws, and print each. Keys: within=10s, count=6,
    /// only=NAME+NAME, without=NAME+NAME
    #[arg(long, value_name = "SEED[,KEY=VALUE..]")]
    pub(crate) chaos: Option<String>,

    /// End the program with the process that has started this one
    #[arg(long, hide = true)]
    pub(crate) end_with_parent: bool,

    /// The way to show /dev/infiniband and /sys/class/infiniband* to the program [default: the
    /// first one that the system allows]
    #[arg(long, value_name = "WAY")]
    pub(crate) view: Option<ViewMethod>,

    /// Show the host's RDMA devices next to Rocade's, instead of hiding them
    #[arg(long)]
    pub(crate) show_host: bool,

    /// The program and its arguments
    #[arg(value_name = "CMD", required = true, trailing_var_arg = true, value_hint = ValueHint::CommandWithArguments)]
    pub(crate) command: Vec<OsString>,
}

#[derive(Debug, Args)]
#[command(after_help = LADDER_AFTER)]
pub(crate) struct LadderArgs {
    /// A capture of RoCEv2 packets (pcapng or pcap)
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) file: PathBuf,

    /// The output file: SVG if it ends with .svg, else HTML, or `-` for standard output [default:
    /// FILE with .html]
    #[arg(short, long, value_name = "OUT", value_hint = ValueHint::FilePath)]
    pub(crate) output: Option<PathBuf>,

    /// Only the conversation of this queue pair (0x11 or decimal)
    #[arg(long, value_name = "QPN", value_parser = qp_number)]
    pub(crate) qp: Option<u32>,

    /// All conversations and all packets
    #[arg(long)]
    pub(crate) all: bool,
}

/// The arguments of `rocade explain`.
#[derive(Debug, Args)]
#[command(after_help = EXPLAIN_AFTER)]
pub(crate) struct ExplainArgs {
    /// A capture of RoCEv2 packets (pcapng or pcap)
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) file: PathBuf,

    /// Each packet, too
    #[arg(long)]
    pub(crate) packets: bool,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Parses a QP number, decimal or hexadecimal.
pub(crate) fn qp_number(text: &str) -> Result<u32, String> {
    let number = match text.strip_prefix("0x") {
        Some(hex) => u32::from_str_radix(hex, 16),
        None => text.parse(),
    };
    match number {
        Ok(number) if number < 1 << 24 => Ok(number),
        _ => Err("a queue pair number is below 2^24, e.g. 17 or 0x11".to_owned()),
    }
}

/// The way in which a program sees the devices in the file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ViewMethod {
    /// Mounts in the program's own mount namespace (as root, or with a user namespace)
    Namespace,
    /// A preloaded library that redirects the program's file functions
    Preload,
    /// No view
    None,
}

#[derive(Debug, Args)]
#[command(after_help = DEMO_AFTER)]
pub(crate) struct DemoArgs {
    /// The address that both processes share
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1")]
    pub(crate) ip: IpAddr,

    /// Be the second process, which uses its standard input and output to communicate with the
    /// first
    #[arg(long, hide = true)]
    pub(crate) peer: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum FaultCommand {
    /// Add rules, separated by semicolons
    Add {
        /// An action, and conditions for packets
        #[arg(value_name = "RULE", required = true)]
        rule: Vec<String>,
    },
    /// Show the rules, and the number of packets that they hit in each process
    List(FaultListArgs),
    /// Show how often each rule was applied, when and to what, also in processes that have ended
    Report(OutputArgs),
    /// Show the recipes, which are named lists of rules, or explain one
    Recipes(RecipeArgs),
    /// Find the smallest set of rules with which a program fails
    #[command(after_help = MINIMIZE_AFTER)]
    Minimize(MinimizeArgs),
    /// Remove rules
    Clear {
        /// The numbers of the rules [default: all]
        #[arg(value_name = "ID")]
        ids: Vec<u32>,
    },
}

#[derive(Debug, Args)]
pub(crate) struct FaultListArgs {
    /// Show the recipes instead, as `rocade fault recipes` does
    #[arg(long)]
    pub(crate) recipes: bool,

    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
pub(crate) struct RecipeArgs {
    /// The recipe to explain [default: a table of all]
    #[arg(value_name = "NAME")]
    pub(crate) name: Option<String>,

    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
pub(crate) struct MinimizeArgs {
    #[command(flatten)]
    pub(crate) devices: DeviceArgs,

    /// A rule or recipe that may be needed (can be repeated)
    #[arg(long, value_name = "RULE")]
    pub(crate) fault: Vec<String>,

    /// Recipes that this seed draws, as for `rocade run --chaos`
    #[arg(long, value_name = "SEED[,KEY=VALUE..]")]
    pub(crate) chaos: Option<String>,

    /// Seconds after which the program counts as hanging, which is a failure
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    pub(crate) timeout: u64,

    /// Runs with the same rules, of which one has to fail
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    pub(crate) repeat: u32,

    /// Most runs of the program
    #[arg(long, value_name = "COUNT", default_value_t = 100)]
    pub(crate) runs: u32,

    /// Seconds after which no further run begins
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    pub(crate) time: u64,

    /// Show the output of the program
    #[arg(long)]
    pub(crate) show: bool,

    /// The program and its arguments
    #[arg(value_name = "CMD", required = true, trailing_var_arg = true, value_hint = ValueHint::CommandWithArguments)]
    pub(crate) command: Vec<OsString>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum BrokerCommand {
    /// Run the broker in the foreground until it is stopped or has had no client for some time
    Serve,
    /// Show whether a broker is running, its addresses and its clients
    Status(OutputArgs),
    /// Stop the broker
    Stop,
    /// Write units of systemd that start the broker when a program connects
    Units(UnitsArgs),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn flags_after_the_program_are_its_own() {
        let cli = Cli::try_parse_from(["rocade", "run", "--dev", "a=lo", "--", "x", "--ip", "-h"]);
        let Some(Command::Run(args)) = cli.unwrap().command else {
            panic!("not run")
        };
        assert_eq!(args.devices.dev, ["a=lo"]);
        assert_eq!(args.command, ["x", "--ip", "-h"]);

        let cli = Cli::try_parse_from(["rocade", "run", "x", "--dev", "y"]).unwrap();
        let Some(Command::Run(args)) = cli.command else {
            panic!("not run")
        };
        assert!(args.devices.dev.is_empty());
        assert_eq!(args.command, ["x", "--dev", "y"]);
    }

    #[test]
    fn run_wants_a_program_and_one_way_to_name_devices() {
        assert!(Cli::try_parse_from(["rocade", "run"]).is_err());
        let both = ["rocade", "run", "--dev", "a=lo", "--ip", "::1", "--", "x"];
        assert!(Cli::try_parse_from(both).is_err());
    }

    #[test]
    fn every_level_has_examples() {
        let mut top = Cli::command();
        top.build();
        for command in top.get_subcommands().filter(|c| c.get_name() != "help") {
            let help = command.clone().render_help().to_string();
            assert!(help.contains("Examples:"), "{help}");
        }
        assert!(top.render_help().to_string().contains("Examples:"));
    }
}
