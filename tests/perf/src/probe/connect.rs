//! Connections opened and closed one after the other: by the connection manager, and by TCP.

use std::{
    io::Read,
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use rocade_verbs::{
    CompletionQueue, DeviceList, Listener, PeerOptions, ProtectionDomain, Route,
    UnconnectedQueuePair,
};

use crate::{
    child::{self, Failure, Peer},
    figures::float,
    rig::{Link, Rig},
};

const LIMIT: Duration = Duration::from_secs(60);

/// Returns 10^3 connections per second by TCP: connect, accept, and close on both sides.
pub(crate) fn by_tcp(count: u32) -> Result<f64, Failure> {
    let acceptor = Peer::part(&["accept-tcp"])?;
    let port: u16 = acceptor.value(LIMIT)?;
    let connect = || -> std::io::Result<()> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        // The other side has accepted and closed the connection.
        stream.read_exact(&mut [0]).or(Ok(()))
    };
    rate(count, || connect().map_err(text))
}

/// Runs the accepting process: prints its port, and accepts until it is killed.
pub(crate) fn accept_tcp() -> Result<(), Failure> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(text)?;
    println!("{}", listener.local_addr().map_err(text)?.port());
    loop {
        drop(listener.accept().map_err(text)?);
    }
}

/// Returns 10^3 connections per second by the connection manager, with a new QP on each side.
pub(crate) fn by_manager(rig: &Rig, count: u32) -> Result<f64, Failure> {
    let start = |words: &[&str]| {
        let mut command: Command = child::part_command()?;
        rig.engine_environment(&mut command, Link::Udp);
        command.args(words);
        Peer::start(command, Stdio::inherit())
    };
    let acceptor = start(&["accept-rdma"])?;
    let address = acceptor.line(LIMIT)?;
    let asker = start(&["ask-rdma", address.trim(), &count.to_string()])?;
    let rate = asker.value(LIMIT)?;
    asker.finish(LIMIT)?;
    Ok(rate)
}

/// Runs the accepting process: prints its address, and accepts until it is killed.
pub(crate) fn accept_rdma() -> Result<(), Failure> {
    let (list, end) = open()?;
    let any = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0);
    let listener = Listener::bind(&list, any).map_err(text)?;
    let port = listener.local_addr().map_err(text)?.port();
    println!("{}", SocketAddr::new(end.address, port));
    loop {
        let request = listener.wait(LIMIT).map_err(text)?;
        let options = PeerOptions::default();
        let connection = request.accept(end.queue_pair()?, &options, LIMIT);
        let connection = connection.map_err(text)?;
        connection.wait_disconnect(LIMIT).map_err(text)?;
    }
}

/// Runs the connecting process, which prints the rate.
pub(crate) fn ask_rdma(to: SocketAddr, count: u32) -> Result<(), Failure> {
    let (list, end) = open()?;
    let rate = rate(count, || {
        let route = Route::to(&list, to).map_err(text)?;
        let options = PeerOptions::default();
        let connection = route.connect(end.queue_pair()?, &options, LIMIT);
        connection.map_err(text)?.disconnect(LIMIT).map_err(text)
    })?;
    println!("{rate}");
    Ok(())
}

/// The objects that all connections of a process use.
struct End {
    pd: ProtectionDomain,
    cq: CompletionQueue,
    address: IpAddr,
}

impl End {
    fn queue_pair(&self) -> Result<UnconnectedQueuePair, Failure> {
        let builder = self.pd.queue_pair(&self.cq).depth(1, 1).max_sges(1);
        builder.build().map_err(text)
    }
}

fn open() -> Result<(DeviceList, End), Failure> {
    let list = DeviceList::from_env().map_err(text)?;
    let context = list.open_first().map_err(text)?;
    let pd = context.protection_domain().map_err(text)?;
    let cq = context.completion_queue(16).map_err(text)?;
    let gids = context.gids();
    let own = gids.iter().map(|entry| entry.gid.to_ip());
    let address = own
        .into_iter()
        .find(IpAddr::is_ipv4)
        .ok_or("no IPv4 address")?;
    Ok((list, End { pd, cq, address }))
}

/// Returns the rate in 10^3 per second, after a tenth of the count as warm-up.
fn rate(count: u32, mut once: impl FnMut() -> Result<(), Failure>) -> Result<f64, Failure> {
    for _ in 0..count / 10 {
        once()?;
    }
    let began = Instant::now();
    for _ in 0..count {
        once()?;
    }
    Ok(float(count.into()) / began.elapsed().as_secs_f64() / 1e3)
}

fn text(error: impl ToString) -> Failure {
    error.to_string()
}
