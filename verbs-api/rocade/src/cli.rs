//! The command line, and the help texts.

use std::ffi::OsString;
use std::net::IpAddr;
use std::path::PathBuf;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args, CommandFactory as _, Parser, Subcommand, ValueEnum, ValueHint};
use rocade_emulator::config::nearest;

const TOP_AFTER: &str = "\
Examples:
  rocade demo                               does it work here?
  rocade run -- ibv_devinfo                 what a verbs program sees
  rocade run -- ib_write_bw                 a server, and in another terminal:
  rocade run -- ib_write_bw 127.0.0.1       its client
  rocade devices                            devices and their GIDs
  rocade fault add drop nth=3               what does it do when a packet is lost?

Settings (flags win over variables, variables over the file):
  ROCADE_DEVICES      NAME=IFACE|ADDR[,..], several separated by ';'
  ROCADE_IP           ADDR[,ADDR..]: one device rocade0 with these addresses
  ROCADE_BROKER       auto, embedded, or the path of the rocade executable
  ROCADE_BROKER_IDLE_MS  a broker without clients ends after this time (60000)
  ROCADE_RUNTIME_DIR  directory of the broker's socket and lock files
  ROCADE_LINK         auto (default: shared memory between processes of a host, else UDP),
                      udp (always: what a capture of the loopback interface needs), shm
  ROCADE_PEERS        ADDR[/PREFIX][,..]: who may talk to the program's queue pairs (anybody)
  ROCADE_DCQCN        on: congestion control of RC, XRC and UC over UDP (off)
  ROCADE_IDENTITY     VENDOR:PART, what the devices say they are, e.g. 0x02c9:0x1017
  ROCADE_LIKE         rocade (default), rxe or mlx5: the kind of device whose names, limits and
                      habits the devices have, as `rocade run --like`
  ROCADE_PKEYS        PKEY[,..]: the P_Key table (0xffff)
  ROCADE_CAPTURE      a pcapng file that all packets are appended to, for Wireshark
  ROCADE_FAULT        what happens to packets: rules as for `rocade run --fault`, separated by ';'
  ROCADE_ICRC         how ICRCs are computed, for measurements: avx512, vpclmul256, pclmul128,
                      pmull, crc32, table (default: the best that the processor has)
  ROCADE_LOG          on standard error: off, error (default), warn, info, debug, trace,
                      or TARGET=LEVEL; unless off, a verb that fails says why
  ROCADE_CONFIG       configuration file; without it ./rocade.toml (read by this command),
                      ~/.config/rocade/rocade.toml, /etc/rocade/rocade.toml

Exit codes: 125 an error of rocade itself, 2 a wrong command line; `rocade run` has the exit code
of the program, 126 if it cannot be executed, 127 if it does not exist.";

const RUN_AFTER: &str = "\
Examples:
  rocade run -- ibv_rc_pingpong -g 0                       server (GID index 0 is IPv4)
  rocade run -- ibv_rc_pingpong -g 0 127.0.0.1             client on the same address
  rocade run --dev rocade0=lo -- ib_send_lat               only the loopback interface
  rocade run --dev rocade0=127.0.0.2 -- ib_read_bw         only this address
  rocade run --dev rocade0=::1 -- ibv_rc_pingpong -g 0     IPv6 at GID index 0
  rocade run --dev a=eth0 --dev b=127.0.0.2 -- ibv_devices two devices
  ROCADE_LINK=udp rocade run -- ib_write_bw                tcpdump on lo sees its packets
  ROCADE_LOG=debug rocade run -- ./my_program              with tracing on standard error
  rocade run --capture x.pcapng -- ./my_program            all its packets, for Wireshark
  rocade run --fault 'drop opcode=READ_RESPONSE nth=3' -- ./my_program

A rule is an action (drop, dup, delay by=5ms, reorder by=3, corrupt, ecn) and what packets have to
be like: opcode=NAME|CLASS, qpn=N, psn=N[..N], dir=tx|rx|both (tx), nth=N[..N], every=N, p=0.01
[seed=N]. A file that several programs capture into at a time has the packets of all of them.

--like gives the devices the habits of another kind, for programs that rely on them; what they can
do, and their packets, stay the same:
              rocade       rxe                          mlx5
  name        rocade0      rxe0                         mlx5_0
  vendor:part 0x526f:1     0xffffff:0                   0x02c9:0x1017 (ROCADE_IDENTITY wins)
  firmware    the version  0.0.0                        16.35.4030
  node GUID   526f:..      ..ff:fe..                    ..03:00..
  receives    GRH of UD    IBV_WC_GRH on all            GRH of UD
  max_sge, READs, CQE  32, 128, 4194304  32, 128, 32767  30, 16, 4194304
  inline      as asked     16 bytes per element         what is left of a 64-byte block

The program is executed in place of this command: signals, exit code and terminal are its own.
Without options there is one device per interface that is up, loopback last; `rocade devices`
shows them. Programs that are set-user-ID or statically linked ignore the drop-in libraries.
What a driver would show under /dev/infiniband and /sys/class/infiniband is there for the program
and its children, and for nobody else; --view says how.";

const DEVICES_AFTER: &str = "\
Examples:
  rocade devices                            the devices that a program will see
  rocade devices --dev rocade0=lo           what this option would make of it
  rocade devices --json | jq '.devices[].gids[0].gid'

The GIDs of a device are its IPv4 addresses, then IPv6, then link-local IPv6, or the order that
--dev gives. MTU is the active MTU of the port: the largest of 256, 512, 1024, 2048 and 4096 bytes
that fits into the interface's MTU.";

const DEMO_AFTER: &str = "\
Examples:
  rocade demo                               on the loopback interface
  rocade demo --ip ::1                      over IPv6
  ROCADE_LINK=udp rocade demo               over UDP, where tcpdump sees it
  ROCADE_LOG=debug rocade demo              with tracing on standard error

The command starts itself a second time; the two processes share one address through the broker.
SEND, WRITE, READ, compare-and-swap and fetch-and-add go from the first to the second, and every
byte is checked. It takes a few seconds.";

const LADDER_AFTER: &str = "\
Examples:
  rocade run --capture x.pcapng -- ./my_program && rocade ladder x.pcapng      x.html
  rocade ladder --qp 0x11 -o x.svg x.pcapng                 one conversation, as a picture
  tcpdump -i eth0 -w y.pcap udp port 4791                   works too: rocade ladder y.pcap

Each conversation of two queue pairs is a ladder: time goes down, arrows are packets, and what was
lost, damaged, refused (NAK) or sent again is marked and told in words. Long stretches without
incident are left out unless --all is given.";

const LIBDIR_AFTER: &str = "\
Examples:
  LD_LIBRARY_PATH=$(rocade libdir) ibv_devinfo
  ls -l $(rocade libdir)

`rocade run` does this for you. The directory holds lib{ibverbs,rdmacm,mlx5,efa,mana}.so.1.";

const BROKER_AFTER: &str = "\
Examples:
  rocade broker status                      who uses which address and slot
  rocade broker status --json               the same for programs
  rocade broker stop                        end it; programs that run keep their traffic
  rocade broker serve                       in the foreground, e.g. under a service manager

The broker lets several processes share one address and UDP port 4791. Programs start it when they
need it, it is not on the data path, and it ends by itself a while after its last client. There is
one per user and network namespace.";

const FAULT_AFTER: &str = "\
Examples:
  rocade fault add drop opcode=READ_RESPONSE nth=3    in all programs, those that run and those to come
  rocade fault add 'delay by=2ms p=1%; ecn every=100' two rules
  rocade fault list                                   rules, and what they have hit in which process
  rocade fault clear 2                                one of them
  rocade fault clear                                  all, those of `rocade run --fault` too

Rules are those of `rocade run --fault` (its --help has them all). They hold for programs of the same
user and network namespace that have a broker, from then on; positions (nth, every) count from there.
They end with the broker: some time after the last program (ROCADE_BROKER_IDLE_MS), or when it is
stopped.";

const INSTALL_AFTER: &str = "\
Examples:
  cargo install --path verbs-api/rocade && rocade install    for yourself, beside the command
  sudo target/release/rocade install --prefix /usr/local     for everybody
  rocade install --prefix /tmp/x && /tmp/x/bin/rocade demo   to try it

The libraries are taken from beside the command (a build directory), else built from its sources.
They go to lib/rocade, where the command finds them; the system's own libraries stay as they are.";

const UNINSTALL_AFTER: &str = "\
Examples:
  rocade uninstall                          what belongs to this command
  rocade uninstall --prefix /usr/local      another installation

Exactly the files that `rocade install` has put there are removed, and the directories it has made
if they are empty.";

const COMPLETIONS_AFTER: &str = "\
Examples:
  source <(rocade completions bash)         in this shell
  rocade completions fish > ~/.config/fish/completions/rocade.fish

`rocade install` puts them where shells look for them.";

const MAN_AFTER: &str = "\
Examples:
  rocade man | man -l -                     rocade(1)
  rocade man run | man -l -                 rocade-run(1)

`rocade install` puts the pages where man(1) looks for them.";

/// An RDMA NIC in userspace: runs unmodified RDMA programs without RDMA hardware.
///
/// Rocade speaks RoCEv2 over UDP port 4791 and offers the verbs API of rdma-core. It needs no
/// kernel module and no privilege.
#[derive(Debug, Parser)]
#[command(name = "rocade", version, after_help = TOP_AFTER, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

/// The command line of this process. Ends the process where it is wrong (status 2) or asks for help.
pub(crate) fn parse() -> Cli {
    Cli::try_parse().unwrap_or_else(|mut error| {
        suggest(&mut error);
        error.exit()
    })
}

/// Names the option that was probably meant, where our measure of similarity finds one: the parser's own
/// fails for words as short as `--dev`.
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
        // It is that of the parser's own suggestion.
        error.remove(ContextKind::Usage);
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Show that it works: two processes exchange data over RoCEv2 and check it
    Demo(DemoArgs),
    /// Run a program with Rocade's devices
    Run(RunArgs),
    /// Show the devices that a program will see
    Devices(DevicesArgs),
    /// Print the directory of the drop-in libraries
    #[command(after_help = LIBDIR_AFTER)]
    Libdir,
    /// Draw a capture as a packet ladder (HTML or SVG)
    Ladder(LadderArgs),
    /// Let something happen to packets of programs that run already
    #[command(subcommand, after_help = FAULT_AFTER)]
    Fault(FaultCommand),
    /// Look after the broker, which lets processes share an address
    #[command(subcommand, after_help = BROKER_AFTER)]
    Broker(BrokerCommand),
    /// Install the command, its libraries, manual pages and completions
    #[command(after_help = INSTALL_AFTER)]
    Install(PrefixArgs),
    /// Remove what `rocade install` has installed
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
        /// A subcommand; without one, the page of the command itself
        command: Vec<String>,
    },
}

/// Which devices there shall be.
#[derive(Debug, Args)]
pub(crate) struct DeviceArgs {
    /// A device: all addresses of an interface, or single addresses; repeat for several devices
    #[arg(long = "dev", value_name = "NAME=IFACE|ADDR[,..]")]
    pub(crate) dev: Vec<String>,

    /// One device rocade0 with this address, or several separated by commas
    #[arg(long, value_name = "ADDR", conflicts_with = "dev")]
    pub(crate) ip: Option<String>,

    /// The kind of device that they are like: rocade, rxe or mlx5
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

/// How an answer is printed.
#[derive(Debug, Args)]
pub(crate) struct OutputArgs {
    /// Print JSON, for programs
    #[arg(long)]
    pub(crate) json: bool,
}

/// Where an installation is.
#[derive(Debug, Args)]
pub(crate) struct PrefixArgs {
    /// The directory [default: the one that has this command in its bin; else /usr/local for root,
    /// ~/.local for others]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) prefix: Option<PathBuf>,
}

/// A shell that completes commands.
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

    /// Let something happen to packets, e.g. 'drop opcode=READ_RESPONSE nth=3'; repeat for several
    /// rules
    #[arg(long, value_name = "RULE")]
    pub(crate) fault: Vec<String>,

    /// How the program is shown /dev/infiniband and /sys/class/infiniband*; by default the first of
    /// these that the system allows
    #[arg(long, value_name = "WAY")]
    pub(crate) view: Option<ViewWay>,

    /// Show RDMA devices of the host beside Rocade's, instead of hiding them
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

    /// Where the drawing goes: .svg, anything else is HTML; `-` for standard output [default: FILE
    /// with .html]
    #[arg(short, long, value_name = "OUT", value_hint = ValueHint::FilePath)]
    pub(crate) output: Option<PathBuf>,

    /// Only the conversation of this queue pair (0x11, or decimal)
    #[arg(long, value_name = "QPN", value_parser = qp_number)]
    pub(crate) qp: Option<u32>,

    /// All conversations and all packets, however many
    #[arg(long)]
    pub(crate) all: bool,
}

/// A QP number, decimal or hexadecimal.
fn qp_number(text: &str) -> Result<u32, String> {
    let number = match text.strip_prefix("0x") {
        Some(hex) => u32::from_str_radix(hex, 16),
        None => text.parse(),
    };
    match number {
        Ok(number) if number < 1 << 24 => Ok(number),
        _ => Err("a queue pair number is below 2^24, e.g. 17 or 0x11".to_owned()),
    }
}

/// How a program sees the devices in the file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ViewWay {
    /// Mounts in a mount namespace of its own (as root, or with a user namespace)
    Namespace,
    /// A library that leads the program's file functions there
    Preload,
    /// Not at all
    None,
}

#[derive(Debug, Args)]
#[command(after_help = DEMO_AFTER)]
pub(crate) struct DemoArgs {
    /// The address that both processes share
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1")]
    pub(crate) ip: IpAddr,

    /// Be the second process, which talks to the first one over its standard input and output
    #[arg(long, hide = true)]
    pub(crate) peer: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum FaultCommand {
    /// Add a rule, or several separated by ';'
    Add {
        /// An action and what packets have to be like
        #[arg(value_name = "RULE", required = true)]
        rule: Vec<String>,
    },
    /// Show the rules, and how many packets they have hit in which process
    List(OutputArgs),
    /// Remove rules
    Clear {
        /// Their numbers; without any, all
        #[arg(value_name = "ID")]
        ids: Vec<u32>,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum BrokerCommand {
    /// Run the broker in the foreground until it is stopped or has had no client for a while
    Serve,
    /// Show whether a broker runs, its addresses and its clients
    Status(OutputArgs),
    /// End the broker
    Stop,
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
