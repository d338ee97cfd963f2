//! Packet capture: writes all packets of a process, in both directions, to a pcapng file for
//! Wireshark.
//!
//! The sending or receiving thread copies the packet into a bounded queue, and a writer thread
//! empties the queue. Packets that do not fit are counted and reported in the file (interface
//! statistics). Packets in shared memory have no IP header and no ICRC. The capture computes both
//! as UDP would have sent them.
//!
//! Several processes may write to one file. Each appends whole sections, and a pcapng file may have
//! any number of sections.

mod file;
#[cfg(test)]
mod tests;

use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::sync::{Mutex, rank};
use rocade_wire::icrc::IcrcFlow;
use rocade_wire::ip::Datagram;
use rocade_wire::{Bth, ICRC_LEN};

use super::ROCE_PORT;
use super::fault::PacketDirection;
use crate::inherited::spawn_thread;
use file::Sections;
pub use file::prepare;

/// Most bytes in the queue.
const MAX_WAITING: usize = 8 << 20;
/// Queue length at which the writer is woken at once.
const MANY: usize = MAX_WAITING / 4;
/// Otherwise the writer collects packets for this time. A killed process may lose these.
const GATHER: Duration = Duration::from_millis(2);
/// Bytes before the IP header (Ethernet).
const ETHERNET_LEN: usize = 14;
/// Estimated size of a record without its packet.
const RECORD_LEN: usize = 128;
/// UDP source port of packets without one, to which the slot bits of the QP are added. Both ends of
/// a shared-memory link show the same port.
const PORT_OF_SHARED: u16 = 0xC000;

/// The transport of a packet. Each is an interface of the capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Medium {
    /// UDP.
    Udp,
    /// Shared memory.
    Shared,
    /// The simulated network.
    Sim,
}

impl Medium {
    const ALL: [Self; 3] = [Self::Udp, Self::Shared, Self::Sim];

    const fn name(self) -> &'static str {
        match self {
            Self::Udp => "rocade-udp",
            Self::Shared => "rocade-shm",
            Self::Sim => "rocade-sim",
        }
    }
}

/// A packet and its metadata.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CapturedPacket<'a> {
    pub(crate) medium: Medium,
    pub(crate) direction: PacketDirection,
    /// Nanoseconds since 1970.
    pub(crate) unix_ns: u64,
    pub(crate) source: IpAddr,
    pub(crate) destination: IpAddr,
    /// UDP source port and IPv4 Identification. `None` for shared memory, whose ICRC is computed.
    pub(crate) udp: Option<(u16, u16)>,
    /// IPv4 TOS or IPv6 traffic class.
    pub(crate) tos: u8,
    /// BTH to ICRC.
    pub(crate) payload: &'a [u8],
    /// A comment, or empty.
    pub(crate) note: &'a str,
}

/// The metadata of a queued packet.
#[derive(Debug)]
struct Record {
    medium: Medium,
    direction: PacketDirection,
    unix_ns: u64,
    /// End of the packet's frame. The frame begins at the end of the previous one.
    end: usize,
    note: String,
}

/// Packets that wait to be written.
#[derive(Debug, Default)]
struct Queue {
    records: Vec<Record>,
    frames: Vec<u8>,
    counts: Counts,
    ended: bool,
}

/// Counts since the capture began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    seen: u64,
    lost: u64,
}

impl Queue {
    fn len(&self) -> usize {
        self.frames.len() + self.records.len() * RECORD_LEN
    }

    /// Queues a packet. Returns false if there is no room.
    fn push(&mut self, seen: &CapturedPacket<'_>) -> bool {
        self.counts.seen += 1;
        if self.len() + seen.payload.len() + seen.note.len() > MAX_WAITING
            || !append_frame(&mut self.frames, seen)
        {
            self.counts.lost += 1;
            return false;
        }
        self.records.push(Record {
            medium: seen.medium,
            direction: seen.direction,
            unix_ns: seen.unix_ns,
            end: self.frames.len(),
            note: seen.note.to_owned(),
        });
        true
    }
}

/// A capture of this process, which ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Capture {
    shared: Arc<CaptureShared>,
    /// The process that started the capture. A forked child has a copy of the queue, but no writer.
    process: u32,
    writer: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct CaptureShared {
    queue: Mutex<Queue>,
    /// Locked while the queue is emptied and written, so that chunks stay in order.
    file: Mutex<Sections, rank::CaptureFile>,
}

impl Capture {
    /// Starts capturing into a file, after its present content.
    ///
    /// # Errors
    /// Errors of opening, or `InvalidData` if the file exists and is not a pcapng file.
    pub(crate) fn start(path: &Path) -> io::Result<Self> {
        let shared = Arc::new(CaptureShared {
            queue: Mutex::default(),
            file: Mutex::new(Sections::open(path)?),
        });
        Ok(Self {
            writer: start_writer(&shared)?,
            shared,
            process: std::process::id(),
        })
    }

    fn wake_writer(&self) {
        if let Some(writer) = &self.writer {
            writer.thread().unpark();
        }
    }

    /// Queues a copy of a packet, if there is room.
    pub(crate) fn record(&self, seen: &CapturedPacket<'_>) {
        let mut queue = self.shared.queue.lock();
        let before = queue.len();
        queue.push(seen);
        let len = queue.len();
        drop(queue);
        if before == 0 || (before < MANY && len >= MANY) {
            self.wake_writer();
        }
    }

    /// Writes the queue to the file, and returns when done.
    pub(crate) fn flush(&self) {
        if self.process == std::process::id() {
            self.shared.write_some();
        }
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            return;
        }
        self.shared.queue.lock().ended = true;
        self.wake_writer();
        match self.writer.take() {
            // The writer does not panic. If it did, its unwritten packets would be lost.
            Some(writer) => drop(writer.join()),
            None => self.shared.write_some(),
        }
    }
}

/// Starts the writer thread. A simulated process (`hostsim`) has none, and writes when it ends.
fn start_writer(shared: &Arc<CaptureShared>) -> io::Result<Option<JoinHandle<()>>> {
    #[cfg(all(any(test, feature = "simulated-host"), not(loom)))]
    if crate::sync::turn::own().is_some() {
        return Ok(None);
    }
    let own = Arc::clone(shared);
    spawn_thread("rocade-capture", move || own.write_all()).map(Some)
}

impl CaptureShared {
    /// Runs the writer thread.
    fn write_all(&self) {
        loop {
            let queue = self.queue.lock();
            let (len, ended) = (queue.len(), queue.ended);
            drop(queue);
            if ended {
                self.write_some();
                return;
            }
            match len {
                0 => thread::park(),
                len if len < MANY => {
                    thread::park_timeout(GATHER);
                    self.write_some();
                }
                _ => self.write_some(),
            }
        }
    }

    fn write_some(&self) {
        let mut file = self.file.lock();
        let mut queue = self.queue.lock();
        let records = std::mem::take(&mut queue.records);
        let frames = std::mem::take(&mut queue.frames);
        let counts = queue.counts;
        drop(queue);
        file.append(&records, &frames, counts);
    }
}

/// Appends the whole Ethernet frame. Returns false if the packet is too long for IP.
fn append_frame(frames: &mut Vec<u8>, seen: &CapturedPacket<'_>) -> bool {
    let CapturedPacket {
        source: src,
        destination: dst,
        payload: udp_payload,
        ..
    } = *seen;
    let (src_port, ip_id) = seen.udp.unwrap_or_else(|| (shared_port(udp_payload), 0));
    let datagram = Datagram {
        src,
        dst,
        ip_id,
        dont_fragment: true,
        flow_label: 0,
        tos: seen.tos,
        ttl: 64,
        src_port,
        dst_port: ROCE_PORT,
        udp_checksum: 0,
        udp_payload,
    };
    let datagram = Datagram {
        // Optional for IPv4. Linux leaves it out on the loopback interface as well.
        udp_checksum: if src.is_ipv6() {
            datagram.compute_udp_checksum()
        } else {
            0
        },
        ..datagram
    };
    let begin = frames.len();
    frames.extend(mac(dst));
    frames.extend(mac(src));
    frames.extend(if src.is_ipv4() {
        [0x08, 0x00]
    } else {
        [0x86, 0xdd]
    });
    frames.resize(begin + ETHERNET_LEN + datagram.len(), 0);
    let ip = &mut frames[begin + ETHERNET_LEN..];
    if datagram.emit(ip).is_err() {
        frames.truncate(begin);
        return false;
    }
    if seen.udp.is_none()
        && let Some((covered, _)) = udp_payload.split_last_chunk::<ICRC_LEN>()
        && let Some(flow) = IcrcFlow::new(src, dst, src_port)
    {
        let icrc = flow.compute(0, covered).to_le_bytes();
        let end = frames.len();
        frames[end - ICRC_LEN..].copy_from_slice(&icrc);
    }
    true
}

fn shared_port(udp_payload: &[u8]) -> u16 {
    let bth = udp_payload.first_chunk().map(Bth::from_bytes);
    let slot = bth.map_or(0, |bth| bth.dest_qp.get() >> 16 & 0xff);
    PORT_OF_SHARED | u16::try_from(slot).unwrap_or(0)
}

/// Returns a locally administered MAC address that contains the end of the IP address.
fn mac(ip: IpAddr) -> [u8; 6] {
    let (a, b, c, d) = match ip {
        IpAddr::V4(ip) => ip.octets().into(),
        IpAddr::V6(ip) => {
            let [.., a, b, c, d] = ip.octets();
            (a, b, c, d)
        }
    };
    [0x02, 0x00, a, b, c, d]
}
