//! Recovery of a batch of packets whose payload cannot be read any more.

use alloc::vec::Vec;

use rocade_wire::{Bth, Operation, Psn};

use super::Qp;
use crate::attr::QpState;
use crate::memory::AccessError;
use crate::time::Time;
use crate::transmit::{Source, TxBuffer};

/// Payloads that could not be read so far.
#[derive(Default)]
struct Lost {
    payloads: Vec<(Source, Psn)>,
    /// No more requests may be sent, and no more responses.
    requests: bool,
    responses: bool,
}

impl Lost {
    fn add(&mut self, source: Source, psn: Psn) {
        match source {
            Source::Local(_) => self.requests = true,
            Source::Remote { replay, .. } => {
                self.responses = true;
                // The QP enters ERR: nothing is sent after the NAK.
                self.requests |= !replay;
            }
        }
        self.payloads.push((source, psn));
    }
}

impl Qp {
    /// Recovers part of a batch in `tx` from [`Qp::poll_transmit`], when a deferred payload can no
    /// longer be read.
    ///
    /// Calls `read` again for each deferred payload, with its place. Calls `send` for each packet
    /// that may still be sent, in order: a segment without ICRC, to be sent alone. After a lost
    /// request only responses are sent, and no responses after a lost one. The work request, or the
    /// READ, of a lost payload fails.
    pub fn recover_partial_batch(
        &mut self,
        now: Time,
        tx: &mut TxBuffer,
        mut read: impl FnMut(Source, &mut [u8]) -> Result<(), AccessError>,
        mut send: impl FnMut(&mut [u8]),
    ) {
        let mut lost = Lost::default();
        tx.for_each_segment(|segment, deferred| {
            let Some(bth) = segment.first_chunk().map(Bth::from_bytes) else {
                return;
            };
            let is_response = bth.opcode.operation().is_some_and(Operation::is_response);
            let stays = if is_response {
                lost.responses
            } else {
                lost.requests
            };
            if stays {
                return;
            }
            if let Some(payload) = deferred
                && read(payload.source, &mut segment[payload.range()]).is_err()
            {
                lost.add(payload.source, bth.psn);
            } else {
                send(segment);
            }
        });
        for (source, psn) in lost.payloads {
            self.payload_lost(now, source, psn);
        }
    }

    /// Fails the work request or the READ that the packet `psn` is part of.
    ///
    /// The QP may have entered ERR in the same batch, because a later payload was found unreadable
    /// first. The requester then still needs the NAK, with the PSN of this packet.
    fn payload_lost(&mut self, now: Time, source: Source, psn: Psn) {
        if self.state == QpState::Reset {
            return;
        }
        let has_failed = self.state == QpState::Err;
        match source {
            Source::Local(_) if has_failed => {}
            Source::Local(_) => {
                let (send, _, mut cx) = self.sides(now, &());
                let result = send.fail_request(&mut cx, psn);
                self.conclude_send(now, result);
            }
            Source::Remote { replay, .. } => {
                let (_, recv, mut cx) = self.sides(now, &());
                let result = recv.fail_response(&mut cx, psn, (replay, has_failed));
                if !has_failed {
                    self.conclude(now, result);
                }
            }
        }
    }
}
