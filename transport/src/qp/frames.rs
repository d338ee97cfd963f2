//! Entry points of raw packet QPs: sending and receiving frames.

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
    /// Queues a request of a raw packet QP that is cut into segments. `wr` is a SEND of the data
    /// after the header.
    ///
    /// # Errors
    /// [`PostError`] if the QP does not cut frames, its state or queue accepts no request, or the
    /// request is invalid. The request is not queued.
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

    /// Assembles the next frame in `frame`, and returns how to finish it. `None` if there is no
    /// frame to send.
    ///
    /// A frame longer than `max_frame_len` fails the send queue. Then call [`Qp::frames_sent`] or
    /// [`Qp::frames_failed`].
    pub fn next_frame(
        &mut self,
        now: Time,
        mem: &impl Memory,
        max_frame_len: usize,
        frame: &mut Vec<u8>,
    ) -> Option<FrameOrder> {
        if self.state != QpState::Rts {
            return None;
        }
        let (SendSide::Frames(sender), _, mut cx) = self.sides(now, mem) else {
            return None;
        };
        let next = sender.next(&mut cx, max_frame_len, frame);
        let result = next.map(|_| ());
        self.conclude_send(now, result);
        next.ok().flatten()
    }

    /// Notes that the frame of [`Qp::next_frame`] was sent, as `count` frames, or was lost on the
    /// way.
    pub fn frames_sent(&mut self, now: Time, count: u64) {
        if let (SendSide::Frames(sender), _, mut cx) = self.sides(now, &()) {
            sender.frame_sent(&mut cx, count);
        }
        self.note_drained();
    }

    /// Notes that the link does not accept the frame.
    pub fn frames_failed(&mut self, now: Time, status: WcStatus) {
        if let (SendSide::Frames(sender), _, mut cx) = self.sides(now, &()) {
            let result = sender.fail(&mut cx, status);
            self.conclude_send(now, result);
        }
    }

    /// Handles a frame that a flow rule steered to this QP.
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
