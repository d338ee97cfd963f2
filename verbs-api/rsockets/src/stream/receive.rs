//! The receiving half of a stream.

use super::{End, Peers, SGL_SLOTS, Stream, Violation};
use crate::{ControlMessage, Message, SGE_LEN};

impl Stream {
    /// Handles immediate data in host byte order. They came with a write of `len` bytes, which are
    /// in place.
    ///
    /// # Errors
    /// The peer has violated the protocol, and the stream has ended.
    pub fn received(&mut self, imm: u32, len: u32, peers: &impl Peers) -> Result<(), Violation> {
        let outcome = match Message::parse(imm) {
            Message::Data(len) => self.received_data(len),
            Message::Credits(limit) => self.received_credits(limit, len, peers),
            Message::Iomap(index) => self.received_iomap(index, peers),
            Message::Control(ControlMessage::Disconnect) => {
                self.peer_sends = false;
                self.ended(End::Peers);
                Ok(())
            }
            Message::Control(ControlMessage::Shutdown) => {
                self.peer_sends = false;
                if !self.writes {
                    self.ended(End::Peers);
                }
                Ok(())
            }
            Message::Control(ControlMessage::KeepAlive) | Message::Unknown(_) => Ok(()),
        };
        if outcome.is_err() {
            self.ended(End::Failure);
        }
        outcome
    }

    fn received_data(&mut self, len: u32) -> Result<(), Violation> {
        if self.end.is_some() {
            // The peer sent the data before it received the shutdown.
            return Ok(());
        }
        if !self.peer_sends {
            return Err(Violation::AfterEnd);
        }
        if len > self.granted {
            return Err(Violation::Overrun);
        }
        if self.queue.len() >= usize::from(self.config.recv_slots) {
            return Err(Violation::Credits);
        }
        self.granted -= len;
        if len == 0 {
            self.consumed = self.consumed.wrapping_add(1);
            return Ok(());
        }
        self.queue.push_back(len);
        self.unread += len;
        if !self.reads {
            self.consume(len);
        }
        Ok(())
    }

    fn received_credits(
        &mut self,
        limit: u16,
        len: u32,
        peers: &impl Peers,
    ) -> Result<(), Violation> {
        if limit.wrapping_sub(self.sent) > self.peer.credits {
            return Err(Violation::Credits);
        }
        self.limit = limit;
        // An entry is read only after the message that announces it. Before that message the peer
        // may still be writing the entry.
        self.granted_entries = SGL_SLOTS.min(self.granted_entries + len as usize / SGE_LEN);
        while self.granted_entries > 0 && self.targets[self.filling].length == 0 {
            self.targets[self.filling] = peers.target(self.filling);
            self.filling = (self.filling + 1) % SGL_SLOTS;
            self.granted_entries -= 1;
        }
        Ok(())
    }

    fn received_iomap(&mut self, index: u16, peers: &impl Peers) -> Result<(), Violation> {
        let Some(entry) = self.iomaps.get_mut(usize::from(index)) else {
            return Err(Violation::Iomap);
        };
        *entry = peers.iomap(index);
        // The message used one of the peer's credits.
        self.consumed = self.consumed.wrapping_add(1);
        Ok(())
    }

    /// Returns the number of bytes that can be read.
    #[must_use]
    pub const fn unread(&self) -> u32 {
        self.unread
    }

    /// Returns true if there are no bytes to read, and no more can arrive.
    #[must_use]
    pub const fn at_end(&self) -> bool {
        self.unread == 0 && (!self.peer_sends || !self.reads || self.end.is_some())
    }

    /// Returns true if the peer sends no more data, or this side has stopped reading.
    #[must_use]
    pub const fn reading_is_over(&self) -> bool {
        !self.peer_sends || !self.reads || self.end.is_some()
    }

    /// Returns offset and length of up to `most` contiguous bytes in the receive buffer, after the
    /// first `skip` unread bytes.
    #[must_use]
    pub fn readable(&self, skip: u32, most: usize) -> (u32, u32) {
        let left = self.unread.saturating_sub(skip);
        let at = (self.read_at + skip.min(self.unread)) % self.config.recv_buffer;
        let contiguous = left.min(self.config.recv_buffer - at);
        (at, contiguous.min(u32::try_from(most).unwrap_or(u32::MAX)))
    }

    /// Marks the first `len` unread bytes as read.
    pub fn consume(&mut self, len: u32) {
        let len = len.min(self.unread);
        self.unread -= len;
        self.freed += len;
        self.read_at = (self.read_at + len) % self.config.recv_buffer;
        let mut left = len;
        while let Some(first) = self.queue.front_mut() {
            if *first > left {
                *first -= left;
                break;
            }
            left -= *first;
            self.queue.pop_front();
            self.consumed = self.consumed.wrapping_add(1);
        }
    }

    pub(super) fn stop_reading(&mut self) {
        self.reads = false;
        self.consume(self.unread);
    }
}
