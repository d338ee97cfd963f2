//! The sending half of a stream.

use super::{
    CONTROLS, End, FIRST_TRANSFER, MAX_TRANSFER, NoIomap, SEND_LOW_WATER, SGL_SLOTS, Sent, Source,
    Stream, Write,
};
use crate::{ControlMessage, IOMAP_LEN, Iomap, Message, SGE_LEN, Sge};

impl Stream {
    /// Returns true if data can be sent.
    #[must_use]
    pub fn can_send(&self) -> bool {
        self.can_stage()
            && self.writes
            && self.sent != self.limit
            && self.targets[self.target].length > 0
    }

    /// Returns true if a work request with data can be posted.
    fn can_stage(&self) -> bool {
        let enough = SEND_LOW_WATER.min(self.config.send_buffer);
        self.end.is_none() && self.slots > 0 && self.config.send_buffer - self.staged >= enough
    }

    /// Returns the length of the next message of a send, after `before` bytes of the same call.
    fn step(before: usize, left: usize) -> u32 {
        let before = u32::try_from(before).unwrap_or(u32::MAX);
        let most = before.clamp(FIRST_TRANSFER, MAX_TRANSFER);
        u32::try_from(left).unwrap_or(u32::MAX).min(most)
    }

    /// Returns the location of the next message's bytes: inline data, or space in the send buffer.
    /// The message is shortened at the end of the buffer.
    fn stage(&mut self, len: u32) -> Source {
        if len <= self.config.inline {
            return Source::Callers(len);
        }
        let free = self.config.send_buffer - self.staged;
        let at = self.stage_at;
        let len = len.min(free).min(self.config.send_buffer - at);
        self.staged += len;
        self.stage_at = (at + len) % self.config.send_buffer;
        Source::Staged { at, len }
    }

    const fn staged_bytes(source: Source) -> u32 {
        match source {
            Source::Staged { len, .. } => len,
            _ => 0,
        }
    }

    /// Sends some of the caller's `left` bytes, after `before` bytes of the same call. Returns
    /// `None` if it cannot send now.
    pub fn send(&mut self, before: usize, left: usize) -> Option<Write> {
        if left == 0 || !self.can_send() {
            return None;
        }
        let len = Self::step(before, left).min(self.targets[self.target].length);
        let source = self.stage(len);
        let target = &mut self.targets[self.target];
        let mut write = Write {
            source,
            remote_addr: target.addr,
            rkey: target.key,
            imm: None,
        };
        let len = write.taken();
        write.imm = Some(Message::Data(len).imm());
        target.addr = target.addr.wrapping_add(len.into());
        target.length -= len;
        if target.length == 0 {
            self.target = (self.target + 1) % SGL_SLOTS;
        }
        self.post_data(Self::staged_bytes(source), true);
        Some(write)
    }

    fn post_data(&mut self, staged: u32, counts: bool) {
        self.slots -= 1;
        if counts {
            self.sent = self.sent.wrapping_add(1);
        }
        self.outstanding.push_back(Sent::Data(staged));
    }

    /// Writes some of the `left` bytes to the peer's iomaps, at this offset.
    ///
    /// # Errors
    /// The peer has no iomap at this offset.
    pub fn send_direct(
        &mut self,
        before: usize,
        left: usize,
        offset: u64,
    ) -> Result<Option<Write>, NoIomap> {
        let inside = |map: &&Iomap| {
            let ahead = offset.checked_sub(map.offset);
            ahead.is_some_and(|ahead| ahead < map.sge.length.into())
        };
        let map = *self.iomaps.iter().find(inside).ok_or(NoIomap)?;
        if left == 0 || !self.writes || !self.can_stage() {
            return Ok(None);
        }
        let ahead = offset - map.offset;
        let space = u64::from(map.sge.length) - ahead;
        let len = Self::step(before, left).min(u32::try_from(space).unwrap_or(u32::MAX));
        let source = self.stage(len);
        self.post_data(Self::staged_bytes(source), false);
        Ok(Some(Write {
            source,
            remote_addr: map.sge.addr.wrapping_add(ahead),
            rkey: map.sge.key,
            imm: None,
        }))
    }

    /// Sends an iomap entry to the peer. Returns `None` if it cannot send now.
    pub fn send_iomap(&mut self, index: u16, map: Iomap) -> Option<Write> {
        if index >= self.peer.iomaps || !self.can_send() {
            return None;
        }
        let list = &self.peer.target_sgl;
        let lists = u64::from(list.length) * SGE_LEN as u64;
        let remote_addr = list.addr + lists + u64::from(index) * IOMAP_LEN as u64;
        let rkey = list.key;
        self.post_data(0, true);
        Some(Write {
            source: Source::Here(map.to_bytes(self.peer.big_endian), IOMAP_LEN),
            remote_addr,
            rkey,
            imm: Some(Message::Iomap(index).imm()),
        })
    }

    /// Returns the next control message. The caller has to ask for it after everything that changes
    /// the stream.
    pub fn next_control(&mut self) -> Option<Write> {
        if self.end.is_some() || self.controls == CONTROLS {
            return None;
        }
        if let Some(word) = self.pending_control.take() {
            self.sent_control = Some(word);
            return Some(self.control_write(word));
        }
        let is_over = self.sent_control == Some(ControlMessage::Disconnect) || !self.peer_sends;
        if is_over {
            return None;
        }
        let half = self.config.recv_buffer / 2;
        let due = self.consumed.wrapping_sub(self.credits_due_at) < 0x8000;
        if self.freed >= half {
            return Some(self.grant_buffer(half));
        }
        due.then(|| self.grant(Source::Nothing, 0))
    }

    fn control_write(&mut self, word: ControlMessage) -> Write {
        self.controls += 1;
        self.outstanding.push_back(match word {
            ControlMessage::Disconnect => Sent::Disconnect,
            ControlMessage::KeepAlive | ControlMessage::Shutdown => Sent::Control,
        });
        Write {
            source: Source::Nothing,
            remote_addr: 0,
            rkey: 0,
            imm: Some(Message::Control(word).imm()),
        }
    }

    /// Grants half of the receive buffer to the peer.
    fn grant_buffer(&mut self, half: u32) -> Write {
        let sge = Sge {
            addr: self.config.recv_addr + u64::from(self.grant_at),
            key: self.config.recv_key,
            length: half,
        };
        self.freed -= half;
        self.granted += half;
        self.grant_at = if self.grant_at == 0 { half } else { 0 };
        let mut bytes = [0; IOMAP_LEN];
        bytes[..SGE_LEN].copy_from_slice(&sge.to_bytes(self.peer.big_endian));
        let slot = self.peers_slot;
        self.peers_slot = (slot + 1) % self.peer.target_sgl.length;
        let to = self.peer.target_sgl.addr + u64::from(slot) * SGE_LEN as u64;
        self.grant(Source::Here(bytes, SGE_LEN), to)
    }

    fn grant(&mut self, source: Source, remote_addr: u64) -> Write {
        self.credits_due_at = self.consumed.wrapping_add(self.config.recv_slots / 2);
        self.controls += 1;
        self.outstanding.push_back(Sent::Control);
        let limit = self.consumed.wrapping_add(self.config.recv_slots);
        Write {
            source,
            remote_addr,
            rkey: self.peer.target_sgl.key,
            imm: Some(Message::Credits(limit).imm()),
        }
    }

    /// Returns a keepalive message, unless other messages are in flight.
    pub fn keep_alive(&mut self) -> Option<Write> {
        if self.end.is_some() || !self.outstanding.is_empty() {
            return None;
        }
        Some(self.control_write(ControlMessage::KeepAlive))
    }

    /// Handles the completion of the oldest work request.
    pub fn completed(&mut self) {
        match self.outstanding.pop_front() {
            Some(Sent::Data(staged)) => {
                self.slots += 1;
                self.staged -= staged;
            }
            Some(Sent::Control) => self.controls -= 1,
            Some(Sent::Disconnect) => {
                self.controls -= 1;
                self.ended(End::Ours);
            }
            None => {}
        }
    }
}
