//! One side of a stream.

mod receive;
mod send;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use crate::{ConnData, Control, IOMAP_LEN, Iomap, SGE_LEN, Sge};

/// Entries of our list of targets: the peer has two halves of a buffer.
pub const SGL_SLOTS: usize = 2;
/// The same number, as peers are told.
const LIST_ENTRIES: u32 = 2;
const _: () = assert!(SGL_SLOTS == LIST_ENTRIES as usize);
/// Most bytes of one message.
pub const MAX_TRANSFER: u32 = 65536;
/// Room in the send buffer that makes a stream writable.
pub const SEND_LOW_WATER: u32 = 2048;
/// Control messages that may be on their way.
const CONTROLS: u16 = 4;
/// The first message of a long send: the peer shall have something to do soon.
const FIRST_TRANSFER: u32 = 8192;

/// What a side has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// Entries of the send queue; more than 4.
    pub send_slots: u16,
    /// Messages that the peer may send before it has to wait for credits.
    pub recv_slots: u16,
    /// Bytes of the send buffer.
    pub send_buffer: u32,
    /// Bytes of the receive buffer; even.
    pub recv_buffer: u32,
    /// Address of the receive buffer.
    pub recv_addr: u64,
    /// Its rkey.
    pub recv_key: u32,
    /// Bytes that a work request may carry itself.
    pub inline: u32,
    /// Entries of the list of iomaps.
    pub iomaps: u16,
    /// This host is big-endian.
    pub big_endian: bool,
}

/// Our memory that the peer writes into.
pub trait Peers {
    /// An entry of the list of targets.
    fn target(&self, slot: usize) -> Sge;
    /// An entry of the list of iomaps.
    fn iomap(&self, index: u16) -> Iomap;
}

/// The peer has broken the protocol; the stream has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Violation {
    /// More data than there is room for.
    Overrun,
    /// More messages than credits, or credits for more than it has receives.
    Credits,
    /// Data after its end.
    AfterEnd,
    /// No such entry in the list of iomaps.
    Iomap,
}

/// How a stream has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// We have said so.
    Ours,
    /// The peer has said so.
    Peers,
    /// The connection broke, or the peer broke the protocol.
    Failure,
}

/// What is to be shut down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// Nothing more is read.
    Read,
    /// Nothing more is sent.
    Write,
    /// Both.
    Both,
}

/// Where the bytes of a write are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// There are none.
    Nothing,
    /// Here, so many, for a work request that carries them.
    Here([u8; IOMAP_LEN], usize),
    /// The next so many of the caller's, for a work request that carries them.
    Callers(u32),
    /// The next so many of the caller's, to be copied to this place of the send buffer first.
    Staged {
        /// Place in the send buffer.
        at: u32,
        /// Bytes.
        len: u32,
    },
}

/// An RDMA WRITE. They have to be posted in the order in which they are given, each signalled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Write {
    /// What is written.
    pub source: Source,
    /// To where.
    pub remote_addr: u64,
    /// Key of that.
    pub rkey: u32,
    /// With this immediate data, in host byte order.
    pub imm: Option<u32>,
}

impl Write {
    /// How many of the caller's bytes it takes.
    #[must_use]
    pub const fn taken(&self) -> u32 {
        match self.source {
            Source::Nothing | Source::Here(..) => 0,
            Source::Callers(len) | Source::Staged { len, .. } => len,
        }
    }
}

/// There is no iomap at that offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoIomap;

/// What is on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sent {
    /// Bytes of the send buffer that are free again afterwards.
    Data(u32),
    Control,
    /// The last message.
    Disconnect,
}

/// One side of an established stream.
#[derive(Debug)]
pub struct Stream {
    config: Config,
    peer: ConnData,

    // Receiving.
    /// Bytes of messages that have not been read to their end.
    queue: VecDeque<u32>,
    /// Bytes that can be read.
    unread: u32,
    /// Place of the first of them.
    read_at: u32,
    /// Bytes that the peer may still write into what it has.
    granted: u32,
    /// Bytes that were read and not lent again.
    freed: u32,
    /// The half that is lent next.
    lend_at: u32,
    /// Messages that were read to their end.
    consumed: u16,
    /// When so many are, the peer is told.
    tell_at: u16,

    // Sending.
    targets: [Sge; SGL_SLOTS],
    /// The one that is written into.
    target: usize,
    /// The one that the peer fills next.
    filling: usize,
    /// Entries that it has written, and we have not looked at.
    lent: usize,
    /// Messages that count.
    sent: u16,
    /// May be so many.
    limit: u16,
    slots: u16,
    controls: u16,
    /// Place behind the last byte in the send buffer.
    stage_at: u32,
    staged: u32,
    outstanding: VecDeque<Sent>,
    /// Entry of the peer's list of targets that we fill next.
    peers_slot: u32,
    /// The peer's iomaps.
    iomaps: Vec<Iomap>,

    // Ending.
    /// The peer has not said that it sends nothing more.
    peer_sends: bool,
    /// The program reads.
    reads: bool,
    writes: bool,
    to_say: Option<Control>,
    said: Option<Control>,
    end: Option<End>,
}

impl Stream {
    /// A stream that has just been established. The first half of the receive buffer is the peer's already.
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
            lend_at: half,
            consumed: 0,
            tell_at: config.recv_slots / 2,
            targets,
            target: 0,
            filling: 1,
            lent: 0,
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
            to_say: None,
            said: None,
            end: None,
        }
    }

    /// What the peer is told when the connection is made. `targets` is the address of our lists.
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

    /// Bytes of the lists for that.
    #[must_use]
    pub fn lists_len(iomaps: u16) -> usize {
        SGL_SLOTS * SGE_LEN + usize::from(iomaps) * IOMAP_LEN
    }

    /// How the stream has ended, if it has. What has arrived can still be read.
    #[must_use]
    pub const fn end(&self) -> Option<End> {
        self.end
    }

    /// The program may send.
    #[must_use]
    pub const fn writes(&self) -> bool {
        self.writes
    }

    /// Entries of the peer's list of iomaps.
    #[must_use]
    pub const fn peers_iomaps(&self) -> u16 {
        self.peer.iomaps
    }

    /// Shuts down. A message about it is the next of [`Self::next_control`].
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
        // The peer has to be told that nothing is sent, or else that all is over. That we only do not read is our business.
        if !self.writes {
            let all = !self.reads || !self.peer_sends;
            let word = if all {
                Control::Disconnect
            } else {
                Control::Shutdown
            };
            if self.said != Some(word) && self.said != Some(Control::Disconnect) {
                self.to_say = Some(word);
            }
        }
    }

    /// All that was to be sent has arrived, or never will.
    #[must_use]
    pub fn all_sent(&self) -> bool {
        self.end.is_some() || (self.outstanding.is_empty() && self.to_say.is_none())
    }

    /// All data have arrived, or never will; messages that are none need not have.
    #[must_use]
    pub fn all_data_sent(&self) -> bool {
        let is_data = |sent: &Sent| matches!(sent, Sent::Data(_));
        self.end.is_some() || !self.outstanding.iter().any(is_data)
    }

    /// Nothing is on its way.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        self.outstanding.is_empty()
    }

    /// The connection has ended without a word: broken, or the peer has gone.
    pub fn ended(&mut self, end: End) {
        if self.end.is_none() {
            self.end = Some(end);
        }
    }
}
