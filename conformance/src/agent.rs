//! A device with verbs, driven by the program `agent/agent.c` on its machine.
//!
//! An order is a line of words, and so is the answer: `ok …`, `none`, or `unable WHY`.
//! docs/conformance.md lists them.

mod manager;

use std::{
    cell::RefCell,
    fmt::{self, Write as _},
    io::{self, BufRead, BufReader, Read, Write},
    net::{IpAddr, SocketAddr, TcpStream},
    process::{Child, Command, Stdio},
    rc::Rc,
    str::{FromStr, SplitWhitespace},
    sync::mpsc::{self, Receiver, RecvTimeoutError},
    thread,
    time::Duration,
};

use rocade_wire::{Qpn, Rkey, Service};

use crate::{
    Feature, Peer, PeerQp, QpSpec,
    peer::{
        Buffer, Completion, Event, PeerManager, ReceivesFrom, Region, Rights, State, Status,
        Unable, WindowBind, Work, WorkOp,
    },
    report::Device,
};

/// The time limit for an answer. The device may have to wait for hardware.
const PATIENCE: Duration = Duration::from_secs(20);

/// The connection to an agent.
struct Link {
    orders: Box<dyn Write>,
    answers: Receiver<String>,
    child: Option<Child>,
    /// The reason why the agent is no longer used.
    is_lost: Option<Unable>,
}

impl Link {
    fn new(orders: Box<dyn Write>, answers: impl Read + Send + 'static) -> Self {
        let (sender, receiver) = mpsc::channel();
        thread::spawn(move || {
            for line in BufReader::new(answers).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Self {
            orders,
            answers: receiver,
            child: None,
            is_lost: None,
        }
    }

    fn ask(&mut self, order: &str) -> Result<String, Unable> {
        if let Some(why) = &self.is_lost {
            return Err(why.clone());
        }
        let name = order.split_whitespace().next().unwrap_or_default();
        let sent = self.orders.write_all(format!("{order}\n").as_bytes());
        let sent = sent.and_then(|()| self.orders.flush());
        // The order cannot be written to an agent that ended. Its last answer tells why it ended.
        let answer = self.answers.recv_timeout(PATIENCE).map_err(|error| {
            Unable(match (error, sent) {
                (_, Err(error)) => format!("the agent ended before {name}: {error}"),
                (RecvTimeoutError::Disconnected, Ok(())) => {
                    format!("the agent ended before it answered {name}")
                }
                (RecvTimeoutError::Timeout, Ok(())) => {
                    format!("the agent does not answer {name} within {PATIENCE:?}")
                }
            })
        });
        answer.inspect_err(|why| self.is_lost = Some(why.clone()))
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // The agent ends when its input ends.
        self.orders = Box::new(io::sink());
        if let Some(child) = &mut self.child {
            if self.is_lost.is_some() {
                let _dead = child.kill();
            }
            let _status = child.wait();
        }
    }
}

/// A device with a running agent.
pub struct Agent {
    link: Rc<RefCell<Link>>,
    name: String,
    address: IpAddr,
    features: Vec<String>,
}

impl fmt::Debug for Agent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Agent")
            .field("name", &self.name)
            .field("address", &self.address)
            .field("features", &self.features)
            .finish_non_exhaustive()
    }
}

impl Agent {
    /// Starts the agent by a shell command line, and sends the orders to its standard input. The
    /// device has `address`. An agent that was given a token wants the same one here.
    ///
    /// # Errors
    /// The agent cannot be started, refuses the token, or has no such device.
    pub fn start(command: &str, address: IpAddr, token: Option<&str>) -> Result<Self, Unable> {
        let child = Command::new("sh")
            .args(["-c", command])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let mut child = child.map_err(|error| Unable(format!("{command}: {error}")))?;
        let (Some(orders), Some(answers)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(Unable(format!("{command}: no pipes")));
        };
        let mut link = Link::new(Box::new(orders), answers);
        link.child = Some(child);
        Self::greet(link, address, token)
    }

    /// Connects to an agent that listens at a TCP port, and that wants a token.
    ///
    /// # Errors
    /// The connection fails, or the agent refuses the token or has no such device.
    pub fn connect(to: SocketAddr, address: IpAddr, token: Option<&str>) -> Result<Self, Unable> {
        let connect = || {
            let stream = TcpStream::connect(to)?;
            stream.set_nodelay(true)?;
            Ok((stream.try_clone()?, stream))
        };
        let (answers, orders) =
            connect().map_err(|error: io::Error| Unable(format!("{to}: {error}")))?;
        Self::greet(Link::new(Box::new(orders), answers), address, token)
    }

    /// Returns the value that the agent stated as `NAME=VALUE`.
    fn fact(&self, name: &str) -> &str {
        let mut facts = self.features.iter().filter_map(|word| word.split_once('='));
        let fact = facts.find(|(key, _)| *key == name);
        fact.map_or("", |(_, value)| value)
    }

    fn greet(mut link: Link, address: IpAddr, token: Option<&str>) -> Result<Self, Unable> {
        if let Some(token) = token {
            let order = format!("token {token}");
            let answer = link.ask(&order).and_then(accepted);
            answer.map_err(|why| Unable(format!("the agent refuses: {why}")))?;
        }
        let answer = accepted(link.ask(&format!("hello {address}"))?)?;
        let mut words = answer.split_whitespace().map(str::to_owned);
        let name = words.next().unwrap_or_default();
        Ok(Self {
            link: Rc::new(RefCell::new(link)),
            name,
            address,
            features: words.collect(),
        })
    }
}

impl Peer for Agent {
    fn name(&self) -> &str {
        &self.name
    }

    fn address(&self) -> IpAddr {
        self.address
    }

    fn device(&self) -> Device {
        Device {
            address: self.address.to_string(),
            driver: self.fact("driver").to_owned(),
            kernel: self.fact("kernel").to_owned(),
            suite: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }

    fn lost(&self) -> Option<String> {
        self.link.borrow().is_lost.clone().map(|unable| unable.0)
    }

    fn can(&self, feature: Feature) -> bool {
        self.features.iter().any(|name| name == feature.name())
    }

    fn open(&self, spec: &QpSpec) -> Result<Box<dyn PeerQp>, Unable> {
        let answer = accepted(self.link.borrow_mut().ask(&open_order(spec))?)?;
        let lens = spec.regions.iter().map(|region| region.len);
        Ok(Box::new(AgentQp::described(&self.link, &answer, lens)?))
    }

    fn manager(&self) -> Result<Box<dyn PeerManager>, Unable> {
        Ok(Box::new(manager::AgentManager::open(&self.link)?))
    }
}

/// Returns the text after `ok`.
fn accepted(answer: String) -> Result<String, Unable> {
    let (word, rest) = answer.split_once(' ').unwrap_or((&answer, ""));
    match word {
        "ok" => Ok(rest.to_owned()),
        "unable" => Err(Unable(rest.to_owned())),
        _ => Err(Unable(format!("the agent answered: {answer}"))),
    }
}

struct Tokens<'a>(SplitWhitespace<'a>);

impl Tokens<'_> {
    fn number<T: FromStr>(&mut self) -> Result<T, Unable> {
        let word = self.0.next().unwrap_or_default();
        word.parse()
            .map_err(|_| Unable(format!("the agent answered {word:?} instead of a number")))
    }
}

fn bits(rights: Rights) -> u32 {
    let all = [rights.write, rights.read, rights.atomic, rights.flush];
    all.iter()
        .enumerate()
        .map(|(bit, &has)| u32::from(has) << bit)
        .sum()
}

fn place(buffer: Buffer) -> String {
    let bad_key = u32::from(buffer.bad_key);
    format!(
        "{} {} {} {bad_key}",
        buffer.region, buffer.offset, buffer.len
    )
}

/// Returns the number of a state in the verbs API, of those that a queue pair can be opened in.
const fn state_code(state: State) -> u32 {
    match state {
        State::Init => 1,
        State::Rtr => 2,
        _ => 3,
    }
}

fn open_order(spec: &QpSpec) -> String {
    let service = match spec.service {
        Service::Uc => "uc",
        Service::Ud => "ud",
        Service::Xrc => "xrc",
        Service::Dc => "dc",
        _ => "rc",
    };
    let from = match spec.receives_from {
        ReceivesFrom::Own => "own",
        ReceivesFrom::Shared => "shared",
        ReceivesFrom::Xrc => "xrc",
    };
    let mut order = format!("open {service} {from} {}", spec.rig_addr);
    let numbers = [
        spec.rig_qpn.get(),
        spec.rq_psn.get(),
        spec.sq_psn.get(),
        spec.pmtu.code().into(),
        bits(spec.rights),
        spec.max_dest_rd_atomic.into(),
        spec.max_rd_atomic.into(),
        spec.min_rnr_timer.code().into(),
        spec.ack_timeout.code().into(),
        spec.retry_cnt.into(),
        spec.rnr_retry.into(),
        state_code(spec.state),
        spec.cq_depth,
    ];
    for number in numbers {
        let _ = write!(order, " {number}");
    }
    let _ = write!(order, " {}", spec.regions.len());
    for region in &spec.regions {
        let [foreign, bindable] = [region.foreign_pd, region.bindable].map(u32::from);
        let rights = bits(region.rights) | u32::from(region.read_only) << 4;
        let _ = write!(order, " {} {rights} {foreign} {bindable}", region.len);
    }
    let _ = write!(order, " {}", spec.receives.len());
    for buffer in &spec.receives {
        let _ = write!(order, " {}", place(*buffer));
    }
    order
}

fn window_words(bind: &WindowBind) -> String {
    format!(
        "{} {} {} {} {} {}",
        bind.rkey.get(),
        bind.region,
        bind.offset,
        bind.len,
        bits(bind.rights),
        u32::from(bind.zero_based)
    )
}

/// Returns the words of a request, or `None` if standard verbs lack the operation.
fn operation(op: &WorkOp) -> Option<String> {
    let imm = |imm: [u8; 4]| u32::from_be_bytes(imm);
    Some(match *op {
        WorkOp::Send { imm: None } => "send".to_owned(),
        WorkOp::Send { imm: Some(data) } => format!("send-imm {}", imm(data)),
        WorkOp::SendInv { rkey } => format!("send-inv {}", rkey.get()),
        WorkOp::Invalidate { rkey } => format!("invalidate {}", rkey.get()),
        WorkOp::Bind(bind) => format!("bind {}", window_words(&bind)),
        WorkOp::Write {
            va,
            rkey,
            imm: None,
        } => format!("write {va} {}", rkey.get()),
        WorkOp::Write {
            va,
            rkey,
            imm: Some(data),
        } => format!("write-imm {va} {} {}", rkey.get(), imm(data)),
        WorkOp::Read { va, rkey } => format!("read {va} {}", rkey.get()),
        WorkOp::CmpSwap {
            va,
            rkey,
            compare,
            swap,
        } => format!("cmp-swap {va} {} {compare} {swap}", rkey.get()),
        WorkOp::FetchAdd { va, rkey, add } => format!("fetch-add {va} {} {add}", rkey.get()),
        WorkOp::Masked { .. } | WorkOp::Flush { .. } | WorkOp::AtomicWrite { .. } => return None,
    })
}

struct AgentQp {
    link: Rc<RefCell<Link>>,
    handle: u32,
    qpn: Qpn,
    srqn: u32,
    regions: Vec<Region>,
}

impl Drop for AgentQp {
    fn drop(&mut self) {
        let _closed = self.ask("close", "");
    }
}

impl AgentQp {
    /// Reads the answer to an order that creates a queue pair, with regions of these lengths.
    fn described(
        link: &Rc<RefCell<Link>>,
        answer: &str,
        lens: impl Iterator<Item = usize>,
    ) -> Result<Self, Unable> {
        let mut words = Tokens(answer.split_whitespace());
        let (handle, qpn, srqn) = (words.number()?, words.number()?, words.number()?);
        let mut regions = Vec::new();
        for len in lens {
            regions.push(Region {
                va: words.number()?,
                rkey: Rkey::new(words.number()?),
                len,
            });
        }
        Ok(Self {
            link: Rc::clone(link),
            handle,
            qpn: Qpn::new(qpn),
            srqn,
            regions,
        })
    }

    fn ask(&self, order: &str, rest: &str) -> Result<String, Unable> {
        let order = format!("{order} {} {rest}", self.handle);
        self.link.borrow_mut().ask(&order)
    }

    fn order(&self, order: &str, rest: &str) -> Result<String, Unable> {
        accepted(self.ask(order, rest)?)
    }

    /// Returns the answer to an order that must not fail.
    fn must(&self, order: &str, rest: &str) -> String {
        match self.order(order, rest) {
            Ok(answer) => answer,
            Err(unable) => panic!("{order}: {unable}"),
        }
    }

    fn poll(&self, order: &str) -> Option<String> {
        match self.ask(order, "") {
            Ok(answer) if answer == "none" => None,
            Ok(answer) => match accepted(answer) {
                Ok(words) => Some(words),
                Err(unable) => panic!("{order}: {unable}"),
            },
            Err(unable) => panic!("{order}: {unable}"),
        }
    }
}

fn parsed<T>(result: Result<T, Unable>) -> T {
    match result {
        Ok(value) => value,
        Err(unable) => panic!("{unable}"),
    }
}

fn completion(words: &str) -> Result<Completion, Unable> {
    let mut words = Tokens(words.split_whitespace());
    let id = words.number()?;
    let status = Status::from_code(words.number()?);
    let receive = words.number::<u32>()? != 0;
    let byte_len = words.number()?;
    let (with, value): (u32, u32) = (words.number()?, words.number()?);
    Ok(Completion {
        id,
        status,
        receive,
        byte_len,
        imm: (with == 1).then(|| value.to_be_bytes()),
        invalidated: (with == 2).then(|| Rkey::new(value)),
    })
}

impl PeerQp for AgentQp {
    fn qpn(&self) -> Qpn {
        self.qpn
    }

    fn srqn(&self) -> u32 {
        self.srqn
    }

    fn region(&self, index: usize) -> Region {
        self.regions[index]
    }

    fn read_memory(&self, region: usize, offset: usize, len: usize) -> Vec<u8> {
        let text = self.must("read", &format!("{region} {offset} {len}"));
        let digits = text.trim().as_bytes().chunks(2);
        digits
            .map(|pair| {
                let pair = std::str::from_utf8(pair).unwrap_or_default();
                u8::from_str_radix(pair, 16).unwrap_or_else(|_| panic!("no bytes: {text}"))
            })
            .collect()
    }

    fn write_memory(&self, region: usize, offset: usize, data: &[u8]) {
        let mut rest = format!("{region} {offset} ");
        for byte in data {
            let _ = write!(rest, "{byte:02x}");
        }
        self.must("write", &rest);
    }

    fn deregister(&self, region: usize) -> Result<(), Unable> {
        self.order("deregister", &region.to_string()).map(drop)
    }

    fn window(&self) -> Result<Rkey, Unable> {
        let answer = self.order("window", "")?;
        Tokens(answer.split_whitespace()).number().map(Rkey::new)
    }

    fn type_1_window(&self) -> Result<Rkey, Unable> {
        let answer = self.order("window-1", "")?;
        Tokens(answer.split_whitespace()).number().map(Rkey::new)
    }

    fn bind_type_1(&self, id: u64, bind: &WindowBind) -> Result<Rkey, Unable> {
        let answer = self.order("bind-1", &format!("{id} {}", window_words(bind)))?;
        Tokens(answer.split_whitespace()).number().map(Rkey::new)
    }

    fn sibling(&self, rig_qpn: Qpn) -> Result<Box<dyn PeerQp>, Unable> {
        let answer = self.order("sibling", &rig_qpn.get().to_string())?;
        let lens = self.regions.iter().map(|region| region.len);
        Ok(Box::new(Self::described(&self.link, &answer, lens)?))
    }

    fn rearm(&self, to: IpAddr) -> Result<(), Unable> {
        self.order("rearm", &to.to_string()).map(drop)
    }

    fn join(&self, group: IpAddr) -> Result<(), Unable> {
        self.order("join", &group.to_string()).map(drop)
    }

    fn leave(&self, group: IpAddr) -> Result<(), Unable> {
        self.order("leave", &group.to_string()).map(drop)
    }

    fn limit(&self, limit: u32) -> Result<(), Unable> {
        self.order("limit", &limit.to_string()).map(drop)
    }

    fn reset(&self) -> Result<(), Unable> {
        self.order("reset", "").map(drop)
    }

    fn drain(&self, notify: bool) -> Result<(), Unable> {
        let notify = u32::from(notify).to_string();
        self.order("drain", &notify).map(drop)
    }

    fn resume(&self) -> Result<(), Unable> {
        self.order("resume", "").map(drop)
    }

    fn destroy(&self) -> Result<(), Unable> {
        self.order("destroy", "").map(drop)
    }

    fn post_recv(&self, id: u64, buffer: Buffer) -> Result<(), Unable> {
        let rest = format!("{id} {}", place(buffer));
        self.order("receive", &rest).map(drop)
    }

    fn post_send(&self, work: &Work) -> Result<(), Unable> {
        let operation = operation(&work.op)
            .ok_or_else(|| Unable(format!("standard verbs cannot post {:?}", work.op)))?;
        let flags = [work.signaled, work.solicited, work.fence];
        let [signaled, solicited, fence] = flags.map(u32::from);
        let flags = format!("{signaled} {solicited} {fence}");
        let rest = format!("{} {flags} {} {operation}", work.id, place(work.buffer));
        self.order("send", &rest).map(drop)
    }

    fn poll_completion(&self) -> Option<Completion> {
        self.poll("poll").map(|words| parsed(completion(&words)))
    }

    fn poll_event(&self) -> Option<Event> {
        let words = self.poll("event")?;
        let code = Tokens(words.split_whitespace()).number();
        Some(Event::from_code(parsed(code)))
    }

    fn state(&self) -> State {
        let words = self.must("state", "");
        let code = Tokens(words.split_whitespace()).number();
        State::from_code(parsed(code))
    }

    fn to_error(&self) -> Result<(), Unable> {
        self.order("error", "").map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peer::RegionSpec;

    #[test]
    fn an_order_has_all_of_a_specification() {
        let spec = QpSpec {
            rig_addr: IpAddr::from([192, 0, 2, 1]),
            rig_qpn: Qpn::new(0x11),
            regions: vec![RegionSpec {
                bindable: true,
                ..RegionSpec::new(64)
            }],
            receives: vec![Buffer {
                bad_key: true,
                ..Buffer::new(8, 16)
            }],
            ..QpSpec::default()
        };
        let expected = "open rc own 192.0.2.1 17 16777214 16777213 1 15 4 4 14 0 3 3 3 \
                        256 1 64 15 0 1 1 0 8 16 1";
        assert_eq!(open_order(&spec), expected);
    }

    #[test]
    fn answers_are_read() {
        assert_eq!(accepted("ok 1 2".to_owned()), Ok("1 2".to_owned()));
        assert_eq!(accepted("ok".to_owned()), Ok(String::new()));
        let why = Unable("no memory".to_owned());
        assert_eq!(accepted("unable no memory".to_owned()), Err(why));
        assert!(accepted("none".to_owned()).is_err());
        let read = completion("7 0 1 12 1 258").unwrap();
        assert_eq!((read.id, read.status), (7, Status::Success));
        assert_eq!((read.receive, read.byte_len), (true, 12));
        assert_eq!(read.imm, Some([0, 0, 1, 2]));
        assert_eq!(read.invalidated, None);
        let read = completion("7 10 0 12 2 258").unwrap();
        assert_eq!(read.status, Status::RemAccessErr);
        assert_eq!(read.invalidated, Some(Rkey::new(258)));
        assert!(completion("7 0 1 12").is_err());
    }

    /// An agent in `sh` that has one fixed answer.
    #[test]
    fn an_agent_says_what_the_device_has() {
        let address = IpAddr::from([192, 0, 2, 2]);
        let agent = Agent::start(
            "read hello && echo ok mlx5_9 flush kernel=6.12.9 && cat > /dev/null",
            address,
            None,
        );
        let agent = agent.unwrap();
        assert_eq!((agent.name(), agent.address()), ("mlx5_9", address));
        assert!(agent.can(Feature::Flush) && !agent.can(Feature::Own));
        let device = agent.device();
        assert_eq!((&*device.kernel, &*device.driver), ("6.12.9", ""));
        let gone = Agent::start("true", address, None).unwrap_err();
        assert!(gone.0.starts_with("the agent ended"), "{gone}");
        let unable = Agent::start("read hello && echo unable no device", address, None);
        assert_eq!(unable.unwrap_err(), Unable("no device".to_owned()));
    }

    #[test]
    fn a_token_comes_before_the_greeting() {
        let address = IpAddr::from([192, 0, 2, 2]);
        let script = "read token && [ \"$token\" = 'token abc' ] && echo ok || echo unable wrong; \
            read hello && echo ok mlx5_9 && cat > /dev/null";
        assert!(Agent::start(script, address, Some("abc")).is_ok());
        let refused = Agent::start(script, address, Some("abd")).unwrap_err();
        assert_eq!(refused.0, "the agent refuses: wrong");
    }

    #[test]
    fn the_last_answer_of_an_agent_that_ended_is_read() {
        let mut child = Command::new("sh")
            .args(["-c", "echo unable no device"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (orders, answers) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        child.wait().unwrap();
        let mut link = Link::new(Box::new(orders), answers);
        let answer = link.ask("hello").unwrap();
        assert_eq!(answer, "unable no device");
        let gone = link.ask("hello").unwrap_err();
        assert!(gone.0.starts_with("the agent ended"), "{gone}");
    }
}
