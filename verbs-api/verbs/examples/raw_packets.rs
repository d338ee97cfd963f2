//! Raw Ethernet frames: a handmade frame, and a TCP stream that the device segments.
//!
//! ```sh
//! sudo -E cargo run --package rocade-verbs --example raw_packets
//! ```
//! The loopback interface returns the frames, and two flows steer them to the sending queue pair.

use std::time::Duration;

use rocade_verbs::flow::{FlowAttr, FlowSpec, Masked, PortFields};
use rocade_verbs::{AccessFlags, Config, DeviceList, Result, VerbsErrorKind};

const PATIENCE: Duration = Duration::from_secs(60);
const UDP: u8 = 17;
const TCP: u8 = 6;
/// The length of the Ethernet and IPv4 headers.
const IP_END: usize = 14 + 20;
const UDP_END: usize = IP_END + 8;
const TCP_END: usize = IP_END + 20;

/// Returns the headers of a frame to a port of a nonexistent host. The device fills in the
/// checksums.
fn headers(protocol: u8, port: u16, data_len: u16) -> Vec<u8> {
    let own_len = if protocol == UDP { 8 } else { 20 };
    let len: u16 = own_len + data_len;
    let mut bytes = vec![0; 12];
    bytes.extend([8, 0, 0x45, 0]);
    bytes.extend((20 + len).to_be_bytes());
    bytes.extend([0, 7, 0, 0, 64, protocol, 0, 0]);
    bytes.extend([198, 51, 100, 1, 198, 51, 100, 2]);
    bytes.extend(9_u16.to_be_bytes());
    bytes.extend(port.to_be_bytes());
    if protocol == UDP {
        bytes.extend(len.to_be_bytes());
        bytes.extend([0, 0]);
    } else {
        bytes.extend([0, 0, 0, 100, 0, 0, 0, 0, 0x50, 0x18, 1, 0, 0, 0, 0, 0]);
    }
    bytes
}

/// Returns a match for frames to this destination port.
fn to_port(port: u16) -> Masked<PortFields> {
    let fields = |dst_port| PortFields {
        dst_port,
        ..PortFields::default()
    };
    Masked::new(fields(port), fields(0xffff))
}

fn only(spec: FlowSpec) -> FlowAttr {
    FlowAttr::matching(vec![spec])
}

fn main() -> Result<()> {
    let specs = ["dev=127.0.0.116"];
    let list = DeviceList::new(Config::from_specs(&specs)?)?;
    let pd = list.open("dev")?.protection_domain()?;
    let sends = pd.context().completion_queue(16)?;
    let receives = pd.context().completion_queue(16)?;
    let qp = match pd.raw_queue_pair(&sends, &receives) {
        Err(error) if error.kind() == VerbsErrorKind::NotPermitted => {
            println!("raw packets need CAP_NET_RAW: {error}");
            return Ok(());
        }
        qp => qp?,
    };
    let memory = pd.register(16 << 10, AccessFlags::LOCAL_WRITE)?;
    let sge = |n: usize| memory.sge(8192 + 2048 * n..8192 + 2048 * (n + 1));

    let _datagrams = qp.flow(only(FlowSpec::Udp(to_port(7101))))?;
    qp.post_recv(0, &[sge(0)?])?;
    let mut frame = headers(UDP, 7101, 5);
    frame.extend(b"hello");
    memory.write(0, &frame)?;
    qp.send(1, &[memory.sge(..frame.len())?], true)?;
    sends.wait(PATIENCE)?;
    let received = receives.wait(PATIENCE)?.byte_len as usize;
    let data = memory.to_vec(8192 + UDP_END..8192 + UDP_END + received - UDP_END)?;
    println!("received a frame with {:?}", String::from_utf8_lossy(&data));

    let _stream = qp.flow(only(FlowSpec::Tcp(to_port(7102))))?;
    for n in 0..3 {
        qp.post_recv(n, &[sge(usize::try_from(n).unwrap_or(0))?])?;
    }
    let text: Vec<u8> = (0..250_u8).collect();
    memory.write(0, &text)?;
    let front = headers(TCP, 7102, 0);
    qp.send_segments(2, (&front, 100), &[memory.sge(..text.len())?])?;
    sends.wait(PATIENCE)?;
    let mut stream = Vec::new();
    for n in 0..3 {
        let len = receives.wait(PATIENCE)?.byte_len as usize;
        stream.extend(
            memory.to_vec(8192 + 2048 * n + TCP_END..8192 + 2048 * n + TCP_END + len - TCP_END)?,
        );
    }
    assert_eq!(stream, text);
    println!("received {} bytes in 3 segments", stream.len());
    Ok(())
}
