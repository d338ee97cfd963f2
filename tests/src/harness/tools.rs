//! Command lines of the programs under test, and parsers of their output.
//!
//! The programs run under `stdbuf`, so that the output of a program is complete when it is killed.

use std::time::Duration;

use super::{Device, Finished, Process, Rig, free_port};

/// The time that a server may take to come up on a busy machine.
const START: Duration = Duration::from_secs(30);

/// A server and a client of `ibv_rc_pingpong`.
#[derive(Clone, Debug)]
pub struct Pingpong {
    /// `ibv_rc_pingpong`, or the program for another transport.
    pub program: &'static str,
    /// Arguments for both sides, in addition to device, GID index and port.
    pub arguments: Vec<String>,
    /// The GID indices of server and client.
    pub gid_index: [u8; 2],
    /// The devices of server and client.
    pub devices: [Device; 2],
}

impl Pingpong {
    /// A pair of `ibv_rc_pingpong` over the first GID of loopback.
    #[must_use]
    pub fn new(arguments: &[&str]) -> Self {
        Self::of("ibv_rc_pingpong", arguments)
    }

    /// Like [`Pingpong::new`], but with another program.
    #[must_use]
    pub fn of(program: &'static str, arguments: &[&str]) -> Self {
        Self {
            program,
            arguments: arguments.iter().map(|&word| word.to_owned()).collect(),
            gid_index: [0, 0],
            devices: [Device::on("lo"), Device::on("lo")],
        }
    }

    fn words(&self, side: usize, port: u16) -> Vec<String> {
        let fixed = format!(
            "stdbuf -oL {} -d rocade0 -g {} -p {port}",
            self.program, self.gid_index[side]
        );
        fixed
            .split(' ')
            .map(str::to_owned)
            .chain(self.arguments.iter().cloned())
            .collect()
    }

    /// Starts a server and waits until it listens. Its QP exists then.
    ///
    /// # Panics
    /// If it does not come up.
    pub fn start_server(&self, rig: &Rig, port: u16) -> Process {
        let words = self.words(0, port);
        let mut server = rig.start("pingpong server", &self.devices[0], &as_strs(&words));
        server.wait_listening(port, START);
        server
    }

    /// Starts a client of the server at `host`.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn start_client(&self, rig: &Rig, host: &str, port: u16) -> Process {
        let mut words = self.words(1, port);
        words.push(host.to_owned());
        rig.start("pingpong client", &self.devices[1], &as_strs(&words))
    }

    /// Runs both sides to their end, and returns the outputs of server and client.
    ///
    /// # Panics
    /// If one of them fails, or does not end within `limit`.
    pub fn run(&self, rig: &Rig, limit: Duration) -> [String; 2] {
        let port = free_port();
        let server = self.start_server(rig, port);
        let client = self.start_client(rig, "127.0.0.1", port);
        finish_pair(server, client, limit)
    }
}

/// A server and a client of one of perftest's programs over RC.
#[derive(Clone, Debug)]
pub struct Perftest {
    /// The name of the program, such as `ib_write_bw`.
    pub program: String,
    /// Arguments for both sides, in addition to device, GID index and port.
    pub arguments: Vec<String>,
    /// The GID indices of server and client.
    pub gid_index: [u8; 2],
    /// The devices of server and client.
    pub devices: [Device; 2],
}

impl Perftest {
    /// A pair of `program` over the first GID of loopback.
    #[must_use]
    pub fn new(program: &str, arguments: &[&str]) -> Self {
        Self {
            program: program.to_owned(),
            arguments: arguments.iter().map(|&word| word.to_owned()).collect(),
            gid_index: [0, 0],
            devices: [Device::on("lo"), Device::on("lo")],
        }
    }

    fn words(&self, side: usize, port: u16) -> Vec<String> {
        let fixed = format!(
            "stdbuf -oL {} -d rocade0 -F -x {} -p {port}",
            self.program, self.gid_index[side]
        );
        fixed
            .split(' ')
            .map(str::to_owned)
            .chain(self.arguments.iter().cloned())
            .collect()
    }

    /// Starts a server and waits until it listens.
    ///
    /// # Panics
    /// If it does not come up.
    pub fn start_server(&self, rig: &Rig, port: u16) -> Process {
        let words = self.words(0, port);
        let name = format!("{} server", self.program);
        let mut server = rig.start(&name, &self.devices[0], &as_strs(&words));
        server.wait_listening(port, START);
        server
    }

    /// Starts a client of the server at `host`.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn start_client(&self, rig: &Rig, host: &str, port: u16) -> Process {
        let mut words = self.words(1, port);
        words.push(host.to_owned());
        rig.start(
            &format!("{} client", self.program),
            &self.devices[1],
            &as_strs(&words),
        )
    }

    /// Runs both sides to their end, and returns the outputs of server and client.
    ///
    /// # Panics
    /// If one of them fails, or does not end within `limit`, or the client prints no result.
    pub fn run(&self, rig: &Rig, limit: Duration) -> [String; 2] {
        let port = free_port();
        let server = self.start_server(rig, port);
        let client = self.start_client(rig, "127.0.0.1", port);
        let outputs = finish_pair(server, client, limit);
        assert!(
            has_result(&outputs[1]),
            "{} printed no result\n{}",
            self.program,
            outputs[1]
        );
        outputs
    }
}

/// Waits for both sides. If one fails, the message shows both outputs, because the cause may be on
/// the other side. Also fails if Rocade printed a diagnostic, which a report of fault rules is not.
fn finish_pair(server: Process, client: Process, limit: Duration) -> [String; 2] {
    let good = |side: &Finished| side.status.success();
    let client = client.finish(limit);
    let server = if good(&client) {
        server.finish(limit)
    } else {
        // The server may wait for a client that never connected.
        server.finish_or_kill(Duration::from_secs(2))
    };
    assert!(
        good(&server) && good(&client),
        "server: {}\n{}\nclient: {}\n{}",
        server.status,
        server.output,
        client.status,
        client.output
    );
    if std::env::var_os("ROCADE_LOG").is_none() {
        for side in [&server, &client] {
            let is_warning =
                |line: &str| line.starts_with("rocade") && !line.contains("]: fault rules: ");
            let has_warning = side.output.lines().any(is_warning);
            assert!(!has_warning, "{}", side.output);
        }
    }
    [server.output, client.output]
}

fn as_strs(words: &[String]) -> Vec<&str> {
    words.iter().map(String::as_str).collect()
}

/// Returns true if perftest printed a row of its table: numbers only, below the row that begins
/// with `#bytes`.
#[must_use]
pub fn has_result(output: &str) -> bool {
    !perftest_rows(output).is_empty()
}

/// Returns the rows of perftest's table: bytes per message, and number of messages.
#[must_use]
pub fn perftest_rows(output: &str) -> Vec<(u64, u64)> {
    let rows = output
        .lines()
        .skip_while(|line| !line.trim_start().starts_with("#bytes"))
        .skip(1);
    rows.take_while(|line| !line.contains("---"))
        .filter_map(|line| {
            let fields: Vec<_> = line.split_whitespace().collect();
            let numbers =
                fields.len() > 2 && fields.iter().all(|field| field.parse::<f64>().is_ok());
            let number = |at: usize| fields.get(at)?.parse().ok();
            Some((number(0)?, number(1)?)).filter(|_| numbers)
        })
        .collect()
}

/// Returns the GID table that `ibv_devinfo -v` prints, in order of the index.
#[must_use]
pub fn devinfo_gids(output: &str) -> Vec<String> {
    let lines = output
        .lines()
        .filter_map(|line| line.trim().strip_prefix("GID["));
    lines
        .filter_map(|line| line.split_once("]:"))
        .map(|(_, gid)| gid.split(',').next().unwrap_or_default().trim().to_owned())
        .collect()
}

/// Returns the QP numbers after `local address:` (`remote` false) or `remote address:`, as pingpong
/// and perftest print them.
#[must_use]
pub fn qp_numbers(output: &str, remote: bool) -> Vec<u32> {
    let head = if remote {
        "remote address:"
    } else {
        "local address:"
    };
    let lines = output
        .lines()
        .filter(|line| line.trim_start().starts_with(head));
    lines
        .filter_map(|line| {
            let (_, number) = line.split_once("QPN 0x")?;
            let digits: String = number.chars().take_while(char::is_ascii_hexdigit).collect();
            u32::from_str_radix(&digits, 16).ok()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_perftest_results() {
        let table = " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n \
                     65536      1000             4321.00            4300.12               0.068802\n---\n";
        assert_eq!(perftest_rows(table), [(65536, 1000)]);
        assert!(has_result(table));
        assert!(!has_result(
            " #bytes     #iterations\n Completion with error at client\n---\n 1 2 3\n"
        ));
    }

    #[test]
    fn reads_addresses() {
        let text = "  local address:  LID 0x0000, QPN 0x030011, PSN 0x629273, GID ::\n \
                    remote address: LID 0000 QPN 0x0412 PSN 0x1\n";
        assert_eq!(qp_numbers(text, false), [0x03_0011]);
        assert_eq!(qp_numbers(text, true), [0x0412]);
    }

    #[test]
    fn reads_the_gid_table() {
        let text =
            "\t\t\tGID[  0]:\t\t::ffff:127.0.0.1, RoCE v2\n\t\t\tGID[  1]:\t\t::1, RoCE v2\n";
        assert_eq!(devinfo_gids(text), ["::ffff:127.0.0.1", "::1"]);
    }
}
