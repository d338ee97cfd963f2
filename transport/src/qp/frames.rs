//! The entry points of raw packets: frames in, frames out.

use alloc::vec::Vec;

use super::Qp;
use super::side::{RecvSide, SendSide};
use crate::attr::QpState;
use crate::completion::WcStatus;
use crate::counters::DropReason;
use crate::error::PostError;
use crate::memory::Memory;
use crate::raw::{Frame, FrameOrder, Tso};
use crate::time::Time;
use crate::wr::SendWr;

impl Qp {
    /// Queues a request that is cut into segments, of a raw packet QP: `wr` is a SEND of what follows the header.
    ///
    /// # Errors
    /// The request is not queued.
    pub fn post_tso(
        &mut self,
        now: Time,
        wr: &SendWr<'_>,
        tso: Tso<'_>,
        inline: Option<&[u8]>,
    ) -> Result<(), PostError> {
        self.may_post()?;
        self.send.post_tso(wr, tso, inline)?;
        self.flush_posted(now);
        Ok(())
    }

    /// Puts the next frame together in `frame`, and says how it is to be finished; `None` where there is none to
    /// be sent. One that is longer than `longest` ends the send queue. Then comes [`Qp::frames_left`] or
    /// [`Qp::frames_failed`].
    pub fn next_frame(
        &mut self,
        now: Time,
        mem: &impl Memory,
        longest: usize,
        frame: &mut Vec<u8>,
    ) -> Option<FrameOrder> {
        if self.state != QpState::Rts {
            return None;
        }
        let (SendSide::Frames(sender), _, mut cx) = self.sides(now, mem) else {
            return None;
        };
        let next = sender.next(&mut cx, longest, frame);
        let result = next.map(|_| ());
        self.conclude_send(now, result);
        next.ok().flatten()
    }

    /// What [`Qp::next_frame`] has told has left, `count` frames of it; or it was lost on the way.
    pub fn frames_left(&mut self, now: Time, count: u64) {
        if let (SendSide::Frames(sender), _, mut cx) = self.sides(now, &()) {
            sender.left(&mut cx, count);
        }
        self.note_drained();
    }

    /// The link does not take it.
    pub fn frames_failed(&mut self, now: Time, status: WcStatus) {
        if let (SendSide::Frames(sender), _, mut cx) = self.sides(now, &()) {
            let result = sender.fail(&mut cx, status);
            self.conclude_send(now, result);
        }
    }

    /// Handles a frame that a flow has led here.
    pub fn handle_frame(&mut self, now: Time, mem: &impl Memory, frame: &Frame<'_>) {
        if !self.state.receives() {
            self.out.counters.drop_packet(DropReason::State);
            return;
        }
        let (_, RecvSide::Frames(receiver), mut cx) = self.sides(now, mem) else {
            self.out.counters.drop_packet(DropReason::WrongService);
            return;
        };
        let result = receiver.take(&mut cx, frame);
        self.conclude(now, result);
    }
}
