//! Ping-pong between two processes that exchange their endpoints over TCP.
//!
//! ```sh
//! cargo build --release                  # the processes share an address through the broker
//! cargo run --release --package rocade-verbs --example rc_pingpong &
//! cargo run --release --package rocade-verbs --example rc_pingpong 127.0.0.1
//! ```
//! The first process waits for a TCP connection from the second. Otherwise they are equal. Devices
//! come from the environment: `ROCADE_IP=127.0.0.2`, for example.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use rocade_verbs::{AccessFlags, ConnectOptions, DeviceList, Result, SendRequest};

/// The TCP port of the endpoint exchange.
const PORT: u16 = 18_515;
/// The length of a message in bytes.
const LEN: usize = 4096;
const ROUND_TRIPS: u32 = 1000;
/// The limit of each wait, so that the program ends when its peer does not.
const PATIENCE: Duration = Duration::from_secs(20);

/// Listens on IPv6, which includes IPv4, or on IPv4 if the host has no IPv6.
fn listen() -> std::io::Result<TcpListener> {
    let any = [
        IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        IpAddr::V4(Ipv4Addr::UNSPECIFIED),
    ];
    TcpListener::bind(&any.map(|ip| SocketAddr::new(ip, PORT))[..])
}

fn main() -> Result<()> {
    let peer = std::env::args().nth(1);
    let context = DeviceList::from_env()?.open_first()?;
    let pd = context.protection_domain()?;
    let cq = context.completion_queue(16)?;
    let outgoing = pd.register(LEN, AccessFlags::empty())?;
    let incoming = pd.register(LEN, AccessFlags::LOCAL_WRITE)?;

    let qp = pd.queue_pair(&cq).build()?;
    // Posted before the peer can send, because the peer would otherwise have to retry.
    qp.post_recv(0, &[incoming.sge(..)?])?;
    println!("{}: {:?}", context.device().name, qp.endpoint());

    let stream = match &peer {
        Some(host) => TcpStream::connect((host.as_str(), PORT))?,
        None => listen()?.accept()?.0,
    };
    stream.set_read_timeout(Some(PATIENCE))?;
    let other = qp.endpoint().exchange(&stream, &stream)?;
    let qp = qp.connect(other, &ConnectOptions::default())?;

    let begin = Instant::now();
    let mut to_receive = ROUND_TRIPS;
    let mut to_send = ROUND_TRIPS;
    let mut my_turn = peer.is_some();
    while to_receive > 0 || to_send > 0 {
        if my_turn && to_send > 0 {
            outgoing.write(0, &to_send.to_be_bytes())?;
            qp.post_send(&SendRequest::send(&[outgoing.sge(..)?]).wr_id(to_send.into()))?;
            to_send -= 1;
            my_turn = false;
        }
        if to_receive > 0 {
            // Skips completions of sends.
            while cq.wait(PATIENCE)?.is_send {}
            let mut number = [0; 4];
            incoming.read(0, &mut number)?;
            assert_eq!(
                u32::from_be_bytes(number),
                to_receive,
                "messages arrive in order"
            );
            qp.post_recv(0, &[incoming.sge(..)?])?;
            to_receive -= 1;
            my_turn = true;
        }
    }
    // The waiting side sends the last message, and has to wait for its completion.
    while peer.is_none() {
        let completion = cq.wait(PATIENCE)?;
        if completion.is_send && completion.wr_id == 1 {
            break;
        }
    }
    let each = begin.elapsed() / (2 * ROUND_TRIPS);
    println!("{ROUND_TRIPS} round trips of {LEN} bytes, {each:?} each way");
    Ok(())
}
