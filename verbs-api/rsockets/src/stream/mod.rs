//! One side of a stream.

mod receive;
mod send;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use crate::{ConnData, ControlMessage, IOMAP_LEN, Iomap, SGE_LEN, Sge};

/// The number of entries of the local target list: the receive buffer has two halves.
pub const SGL_SLOTS: usize = 2;
/// The number of entries as it is encoded for peers.
const LIST_ENTRIES: u32 = 2;
const _: () = assert!(SGL_SLOTS == LIST_ENTRIES as usize);
/// The maximum number of bytes per message.
pub const MAX_TRANSFER: u32 = 65536;
/// The space in the send buffer from which on a stream is writable.
pub const SEND_LOW_WATER: u32 = 2048;
/// The maximum number of control messages in flight.
const CONTROLS: u16 = 4;
/// The maximum size of the first message of a long send. It is small so that the peer can start
/// early.
const FIRST_TRANSFER: u32 = 8192;

/// The queues and buffers of one side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// The number of entries of the send queue, more than 4.
    pub send_slots: u16,
    /// The number of messages that the peer may send before it has to wait for credits.
    pub recv_slots: u16,
    /// The size of the send buffer in bytes.
    pub send_buffer: u32,
    /// The size of the receive buffer in bytes, an even number.
    pub recv_buffer: u32,
    /// The address of the receive buffer.
    pub recv_addr: u64,
    /// The rkey of the receive buffer.
    pub recv_key: u32,
    /// The maximum size of inline data in bytes.
    pub inline: u32,
    /// The number of entries of the iomap list.
    pub iomaps: u16,
    /// Set on a big-endian host.
    pub big_endian: bool,
}

/// The local lists that the peer writes to.
pub trait Peers {
    /// Returns an entry of the target list.
    fn target(&self, slot: usize) -> Sge;
    /// Returns an entry of the iomap list.
    fn iomap(&self, index: u16) -> Iomap;
}

/// A protocol violation of the peer, which has ended the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Violation {
    /// More data than the receive buffer has room for.
    Overrun,
    /// More messages than credits, or more credits than the peer has receives.
    Credits,
    /// Data after the end of the stream.
    AfterEnd,
    /// No such entry in the iomap list.
    Iomap,
}

/// The way in which a stream ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// This side has disconnected.
    Ours,
    /// The peer has disconnected.
    Peers,
    /// The connection broke, or the peer violated the protocol.
    Failure,
}

/// The directions to shut down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// Stop reading.
    Read,
    /// Stop sending.
    Write,
    /// Stop both.
    Both,
}

/// The location of the bytes of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// There are no bytes.
    Nothing,
    /// Bytes of the stream and their number, sent as inline data.
    Here([u8; IOMAP_LEN], usize),
    /// The next bytes of the caller, sent as inline data.
    Callers(u32),
    /// The next bytes of the caller, to be copied to the send buffer first.
    Staged {
        /// The offset in the send buffer.
        at: u32,
        /// The number of bytes.
        len: u32,
    },
}

/// An RDMA WRITE. Writes have to be posted in order, each of them signalled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Write {
    /// The bytes to write.
    pub source: Source,
    /// The remote address.
    pub remote_addr: u64,
    /// The rkey of the remote address.
    pub rkey: u32,
    /// The immediate data in host byte order.
    pub imm: Option<u32>,
}

impl Write {
    /// Returns the number of the caller's bytes in this write.
    #[must_use]
    pub const fn taken(&self) -> u32 {
        match self.source {
            Source::Nothing | Source::Here(..) => 0,
            Source::Callers(len) | Source::Staged { len, .. } => len,
        }
    }
}

/// The error that no iomap has this offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoIomap;

/// A write in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sent {
    /// Data, which occupy this number of bytes in the send buffer.
    Data(u32),
    Control,
    /// The disconnect message.
    Disconnect,
}

/// One side of an established stream.
#[derive(Debug)]
pub struct Stream {
    config: Config,
    peer: ConnData,

    // Receiving.
    /// The number of unread bytes of each message that is not read completely.
    queue: VecDeque<u32>,
    /// The number of bytes that can be read.
    unread: u32,
    /// The offset of the next byte to read in the receive buffer.
    read_at: u32,
    /// The number of bytes that the peer may still write to the halves granted to it.
    granted: u32,
    /// The number of bytes that were read and not granted again.
    freed: u32,
    /// The offset of the half to grant next.
    grant_at: u32,
    /// The number of messages that were read completely.
    consumed: u16,
    /// The value of `consumed` that triggers a credit message.
    credits_due_at: u16,

    // Sending.
    targets: [Sge; SGL_SLOTS],
    /// The index of the target being written to.
    target: usize,
    /// The index of the target that the peer grants next.
    filling: usize,
    /// The number of list entries that the peer has written and this side has not read.
    granted_entries: usize,
    /// The number of messages sent that require a credit.
    sent: u16,
    /// The limit of `sent` that the peer's credits allow.
    limit: u16,
    slots: u16,
    controls: u16,
    /// The offset behind the last byte in the send buffer.
    stage_at: u32,
    staged: u32,
    outstanding: VecDeque<Sent>,
    /// The entry of the peer's target list to write next.
    peers_slot: u32,
    /// The peer's iomaps.
    iomaps: Vec<Iomap>,

    // Ending.
    /// Cleared when the peer announces that it sends no more data.
    peer_sends: bool,
    /// Set while the program reads.
    reads: bool,
    writes: bool,
    pending_control: Option<ControlMessage>,
    sent_control: Option<ControlMessage>,
    end: Option<End>,
}

impl Stream {
    /// Creates a newly established stream. The peer can write to the first half of the receive
    /// buffer.
    #[must_use]
    pub fn new(config: Config, peer: ConnData) -> Self {
        let half = config.recv_buffer / 2;
        let mut targets = [Sge::default(); SGL_SLOTS];
        targets[0] = peer.data_buf;
        Self {
            config,
            peer,
            queue: VecDeque::new(),
            unread: 0,
            read_at: 0,
            granted: half,
            freed: half,
            grant_at: half,
            consumed: 0,
            credits_due_at: config.recv_slots / 2,
            targets,
            target: 0,
            filling: 1,
            granted_entries: 0,
            sent: 0,
            limit: peer.credits,
            slots: config.send_slots.saturating_sub(CONTROLS).max(1),
            controls: 0,
            stage_at: 0,
            staged: 0,
            outstanding: VecDeque::new(),
            peers_slot: 1 % peer.target_sgl.length.max(1),
            iomaps: vec![Iomap::default(); config.iomaps.into()],
            peer_sends: true,
            reads: true,
            writes: true,
            pending_control: None,
            sent_control: None,
            end: None,
        }
    }

    /// Returns the private data for the peer. `targets` is the address of the local lists.
    #[must_use]
    pub const fn conn_data(config: &Config, targets: u64, targets_key: u32) -> ConnData {
        ConnData {
            big_endian: config.big_endian,
            credits: config.recv_slots,
            iomaps: config.iomaps,
            target_sgl: Sge {
                addr: targets,
                key: targets_key,
                length: LIST_ENTRIES,
            },
            data_buf: Sge {
                addr: config.recv_addr,
                key: config.recv_key,
                length: config.recv_buffer / 2,
            },
        }
    }

    /// Returns the size of the lists in bytes.
    #[must_use]
    pub fn lists_len(iomaps: u16) -> usize {
        SGL_SLOTS * SGE_LEN + usize::from(iomaps) * IOMAP_LEN
    }

    /// Returns the way in which the stream ended, if it did. Received data can still be read.
    #[must_use]
    pub const fn end(&self) -> Option<End> {
        self.end
    }

    /// Returns true if the program may send.
    #[must_use]
    pub const fn writes(&self) -> bool {
        self.writes
    }

    /// Returns the number of entries of the peer's iomap list.
    #[must_use]
    pub const fn peers_iomaps(&self) -> u16 {
        self.peer.iomaps
    }

    /// Shuts down the stream. [`Self::next_control`] then returns the message for the peer.
    pub fn shutdown(&mut self, how: How) {
        if self.end.is_some() {
            self.reads &= how == How::Write;
            self.writes &= how == How::Read;
            return;
        }
        if how != How::Write {
            self.stop_reading();
        }
        if how != How::Read {
            self.writes = false;
        }
        // The peer gets a message if this side stops sending, or stops both directions. It gets
        // none if this side only stops reading.
        if !self.writes {
            let all = !self.reads || !self.peer_sends;
            let word = if all {
                ControlMessage::Disconnect
            } else {
                ControlMessage::Shutdown
            };
            if self.sent_control != Some(word)
                && self.sent_control != Some(ControlMessage::Disconnect)
            {
                self.pending_control = Some(word);
            }
        }
    }

    /// Returns true if all messages are completed, or the stream has ended.
    #[must_use]
    pub fn all_sent(&self) -> bool {
        self.end.is_some() || (self.outstanding.is_empty() && self.pending_control.is_none())
    }

    /// Returns true if all data are completed, or the stream has ended. Control messages may be in
    /// flight.
    #[must_use]
    pub fn all_data_sent(&self) -> bool {
        let is_data = |sent: &Sent| matches!(sent, Sent::Data(_));
        self.end.is_some() || !self.outstanding.iter().any(is_data)
    }

    /// Returns true if no write is in flight.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        self.outstanding.is_empty()
    }

    /// Ends the stream after the end of the connection, unless the stream has ended already.
    pub fn ended(&mut self, end: End) {
        if self.end.is_none() {
            self.end = Some(end);
        }
    }
}
