//! The processes that the tests start: brokers, clients and processes of other users.

use std::env;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rocade_emulator::broker::{
    self, BrokerClient, BrokerConfig, BrokerError, BrokerStatus, ServiceOutcome,
};
use rocade_emulator::link::{Arrival, ROCE_PORT, RxBuffer, UdpLink};
use socket2::{Domain, SockAddr, Socket, Type};
use tempfile::TempDir;

use crate::processes::{PATIENCE, ROLE, broker_config, kill, wait_until};

pub(crate) const RECOVERY_MS: &str = "ROCADE_TEST_RECOVERY_MS";

pub(crate) fn run_broker() {
    let mut config = BrokerConfig::from_env();
    if let Some(ms) = env::var(RECOVERY_MS)
        .ok()
        .and_then(|value| value.parse().ok())
    {
        config.recovery_timeout = Duration::from_millis(ms);
    }
    println!("broker begins");
    broker::serve(&config).unwrap();
    println!("broker ends");
}

/// Reads commands from its input, and answers each with one line that begins with '@'.
pub(crate) fn run_client() {
    let dir = env::var_os("ROCADE_RUNTIME_DIR").unwrap();
    let client = match BrokerClient::connect_or_start(&broker_config(Path::new(&dir))) {
        Ok(client) => client,
        Err(error) => return println!("@error {error}"),
    };
    println!("@slot {}", client.slot());
    let mut links: Vec<UdpLink> = Vec::new();
    for line in std::io::stdin().lock().lines() {
        let line = line.unwrap();
        match line.split_once(' ').unwrap_or((&line, "")) {
            ("open", ip) => {
                let ip: IpAddr = ip.parse().unwrap();
                match client.socket_for(ip) {
                    Ok(fd) => {
                        links.push(UdpLink::from_broker(ip, client.slot(), fd).unwrap());
                        println!("@opened");
                    }
                    Err(error) => println!("@error {error}; {}", error.remedy()),
                }
            }
            ("descriptors", free) => {
                limit_descriptors(free.parse().unwrap());
                println!("@limited");
            }
            ("close", _) => {
                open_descriptors().for_each(|fd| {
                    // SAFETY: takes no pointers. The client expects that it fails from now on.
                    unsafe { libc::close(fd) };
                });
                println!("@closed");
            }
            ("disturb", _) => {
                open_descriptors().for_each(|fd| {
                    let text = b"hello";
                    // SAFETY: the buffer is readable for that length.
                    unsafe {
                        libc::send(fd, text.as_ptr().cast(), text.len(), libc::MSG_NOSIGNAL);
                    };
                });
                println!("@disturbed");
            }
            ("receive", ip) => {
                let link = links
                    .iter()
                    .find(|link| link.local().to_string() == ip)
                    .unwrap();
                println!("@got {}", receive_tag(link));
            }
            ("service", _) => {
                client.service();
                println!("@served");
            }
            ("stop", _) => {
                broker::stop(&broker_config(Path::new(&dir))).unwrap();
                println!("@stopped");
            }
            ("resume", _) => {
                resume(&client);
                println!("@resumed");
            }
            _ => panic!("{line}"),
        }
    }
}

/// Returns the descriptors of this process, less the standard ones.
fn open_descriptors() -> impl Iterator<Item = i32> {
    // SAFETY: asks only, and takes no pointers.
    (3..256).filter(|fd| unsafe { libc::fcntl(*fd, libc::F_GETFD) } >= 0)
}

/// Sets the limit of descriptors, so that so many more can be opened.
fn limit_descriptors(free: usize) {
    let open: Vec<i32> = open_descriptors().collect();
    let mut unused = (3..).filter(|fd| !open.contains(fd));
    let limit = unused.nth(free).unwrap();
    let limit = libc::rlimit {
        rlim_cur: libc::rlim_t::try_from(limit).unwrap(),
        rlim_max: 1024,
    };
    // SAFETY: the pointer is to a live rlimit.
    let set = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
    assert_eq!(set, 0);
}

/// Serves the connection like an engine, until it is a new one.
pub(crate) fn resume(client: &BrokerClient) {
    let begin = Instant::now();
    loop {
        wait_readable(client.control_fd());
        if client.service() == ServiceOutcome::Reconnected {
            return;
        }
        assert!(begin.elapsed() < PATIENCE, "no new broker");
    }
}

pub(crate) fn wait_readable(fd: i32) {
    let mut entry = libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    let timeout_ms = i32::try_from(PATIENCE.as_millis()).unwrap();
    // SAFETY: one live entry.
    let ready = unsafe { libc::poll(&raw mut entry, 1, timeout_ms) };
    assert_eq!(ready, 1, "nothing to read");
}

pub(crate) fn receive_tag(link: &UdpLink) -> u8 {
    let mut buf = RxBuffer::new();
    loop {
        if let Some(batch) = link.recv(&mut buf).unwrap() {
            return match link.arrival(batch.data) {
                Arrival::Forwarded(_, packet, _) => packet[12],
                _ => batch.data[12],
            };
        }
        wait_readable(link.rx_fd().as_raw_fd());
    }
}

pub(crate) fn run_foreign_user() {
    let path = env::var_os("ROCADE_TEST_SOCKET").unwrap();
    let socket = Socket::new(Domain::UNIX, Type::SEQPACKET, None).unwrap();
    socket.connect(&SockAddr::unix(path).unwrap()).unwrap();
    // Status, version 3.
    let _ = socket.send(&[b'R', b'C', b'D', b'B', 3, 0, 4, 0, 12, 0, 0, 0]);
    let answer = (&socket).read(&mut [0; 100]);
    println!("@answer {:?}", answer.unwrap_or(0));
}

/// A temporary runtime directory. Dropping it stops the broker in it.
pub(crate) struct Site {
    pub(crate) dir: TempDir,
    pub(crate) config: BrokerConfig,
}

impl Site {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let config = broker_config(dir.path());
        Self { dir, config }
    }

    pub(crate) fn status(&self) -> BrokerStatus {
        broker::status(&self.config).unwrap()
    }

    /// Waits until the broker's status meets a condition.
    pub(crate) fn wait_for(&self, what: impl Fn(&BrokerStatus) -> bool) -> BrokerStatus {
        let begin = Instant::now();
        loop {
            let status = self.status();
            if what(&status) {
                return status;
            }
            assert!(begin.elapsed() < PATIENCE, "{status}");
            thread::sleep(Duration::from_millis(2));
        }
    }

    pub(crate) fn kill_broker(&self) -> u32 {
        let pid = self.status().pid;
        kill(pid, libc::SIGKILL);
        wait_until(|| {
            matches!(
                broker::status(&self.config),
                Err(BrokerError::NotRunning | BrokerError::Lost)
            )
        });
        pid
    }

    pub(crate) fn log(&self) -> String {
        let files = fs::read_dir(self.dir.path())
            .unwrap()
            .flatten()
            .map(|entry| entry.path());
        let logs = files.filter(|path| path.extension().is_some_and(|ext| ext == "log"));
        logs.map(|path| fs::read_to_string(path).unwrap()).collect()
    }

    pub(crate) fn command(&self, role: &str) -> Command {
        self.command_of(&env::current_exe().unwrap(), role)
    }

    /// Like [`Site::command`], but with this test program at another place.
    pub(crate) fn command_of(&self, program: &Path, role: &str) -> Command {
        let mut command = Command::new(program);
        command.args(["--exact", "child_process", "--nocapture"]);
        command
            .env(ROLE, role)
            .env("ROCADE_RUNTIME_DIR", self.dir.path());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        command
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        if let Ok(outcome) = broker::stop(&self.config) {
            wait_until(|| !alive(outcome.pid));
        }
    }
}

/// A client process.
pub(crate) struct ClientProcess {
    pub(crate) child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    pub(crate) slot: u8,
}

impl ClientProcess {
    pub(crate) fn start(site: &Site) -> Self {
        Self::spawn(site).ready()
    }

    pub(crate) fn spawn(site: &Site) -> Self {
        Self::spawn_as(site.command("client"))
    }

    pub(crate) fn spawn_as(command: Command) -> Self {
        Self::try_spawn(command).unwrap()
    }

    /// Returns the error if the system does not allow it.
    pub(crate) fn try_spawn(mut command: Command) -> std::io::Result<Self> {
        let mut child = command.spawn()?;
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Ok(Self {
            child,
            input,
            output,
            slot: 0,
        })
    }

    pub(crate) fn ready(mut self) -> Self {
        self.slot = self
            .answer()
            .strip_prefix("slot ")
            .unwrap()
            .parse()
            .unwrap();
        self
    }

    pub(crate) fn answer(&mut self) -> String {
        answer(&mut self.output)
    }

    pub(crate) fn say(&mut self, command: &str) {
        writeln!(self.input, "{command}").unwrap();
    }

    pub(crate) fn ask(&mut self, command: &str) -> String {
        self.say(command);
        self.answer()
    }

    pub(crate) fn open(&mut self, ip: IpAddr) {
        assert_eq!(self.ask(&format!("open {ip}")), "opened");
    }

    /// Sends a packet to the slot, and checks that the client receives it.
    pub(crate) fn check(&mut self, ip: IpAddr, tag: u8) {
        send(ip, self.slot, tag);
        assert_eq!(self.ask(&format!("receive {ip}")), format!("got {tag}"));
    }

    pub(crate) fn signal(&self, signal: i32) {
        kill(self.child.id(), signal);
    }

    pub(crate) fn crash(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for ClientProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn answer(output: &mut impl BufRead) -> String {
    loop {
        let mut line = String::new();
        assert_ne!(
            output.read_line(&mut line).unwrap(),
            0,
            "the client has ended"
        );
        // The test harness prints its own lines before.
        if let Some((_, answer)) = line.trim_end().split_once('@') {
            return answer.to_owned();
        }
    }
}

/// Returns an address of 127.0.0.0/8 that no other test uses, in this process or another.
pub(crate) fn own_address() -> IpAddr {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let [_, _, high, low] = std::process::id().to_be_bytes();
    let last = NEXT.fetch_add(1, Ordering::Relaxed);
    Ipv4Addr::new(127, (high & 0x3F) | 0x40, low, last).into()
}

pub(crate) fn send(ip: IpAddr, slot: u8, tag: u8) {
    let mut packet = [tag; 64];
    packet[5] = slot;
    let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
    sender.send_to(&packet, (ip, ROCE_PORT)).unwrap();
}

/// Reads once. Retries if the process was stopped meanwhile.
pub(crate) fn read(socket: &mut Socket, buf: &mut [u8]) -> std::io::Result<usize> {
    loop {
        match socket.read(buf) {
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

pub(crate) fn alive(pid: u32) -> bool {
    // A zombie waiting for init counts as dead.
    fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| {
        !stat
            .rsplit_once(") ")
            .is_some_and(|(_, rest)| rest.starts_with('Z'))
    })
}

pub(crate) fn leased(status: &BrokerStatus) -> Vec<(u8, bool)> {
    status
        .slots
        .iter()
        .map(|slot| (slot.slot.get(), slot.connected))
        .collect()
}

pub(crate) fn socket_path(site: &Site) -> std::path::PathBuf {
    let files = fs::read_dir(site.dir.path())
        .unwrap()
        .flatten()
        .map(|entry| entry.path());
    files
        .into_iter()
        .find(|path| path.extension().is_some_and(|ext| ext == "sock"))
        .unwrap()
}
