//! Saved READs and atomics, to answer duplicates.

use rocade_wire::{Operation, Psn, Reth, Rkey};

use super::Responder;
use super::ack_policy::Response;
use crate::masked::WideOperand;
use crate::memory::PdTag;
use crate::peer::Peer;

/// A READ or atomic that was executed.
#[derive(Clone, Copy, Debug)]
pub(super) enum Saved {
    Read {
        psn: Psn,
        packets: u32,
        /// `None` if another process has executed it.
        pd: Option<PdTag>,
        rkey: Rkey,
        va: u64,
        len: u32,
    },
    Atomic {
        psn: Psn,
        operation: Operation,
        original: u64,
    },
    /// A masked atomic on more than 8 bytes.
    Wide {
        psn: Psn,
        operation: Operation,
        log_size: u8,
        original: WideOperand,
    },
}

impl Responder {
    /// Saves a request. The newest evicts the oldest.
    //= RC-DUP-05
    pub(super) fn save(&mut self, saved: Saved) {
        let limit = usize::from(self.attr.max_dest_rd_atomic);
        if limit == 0 {
            // The request was refused.
            return;
        }
        while self.saved.len() >= limit {
            self.saved.pop_front();
        }
        self.saved.push_back(saved);
    }

    /// Returns the number of READs and atomics whose responses are not all sent yet.
    pub(super) fn outstanding_resources(&self) -> usize {
        self.queue
            .iter()
            .filter(|response| response.is_new_resource())
            .count()
    }

    /// Returns the PSN up to which a duplicate SEND or WRITE packet may be acknowledged.
    ///
    /// That is everything executed, up to a READ or atomic that follows the packet. The requester
    /// cannot have received its response yet.
    //= RC-DUP-02
    pub(super) fn acknowledge_duplicate(&self, duplicate: Psn) -> Psn {
        let last = self.epsn.sub(1);
        self.saved
            .iter()
            .map(|saved| match *saved {
                Saved::Read { psn, .. } | Saved::Atomic { psn, .. } | Saved::Wide { psn, .. } => {
                    psn
                }
            })
            .filter(|psn| psn.diff(duplicate) > 0 && psn.diff(self.epsn) < 0)
            .map(|psn| psn.sub(1))
            .fold(
                last,
                |nearest, psn| if psn.diff(nearest) < 0 { psn } else { nearest },
            )
    }

    /// Returns the response to a duplicate READ, if it repeats a saved one or its tail. `named` is
    /// the protection domain of the XRC SRQ in the request.
    //= RC-DUP-03
    pub(super) fn replay_read(
        &self,
        peer: &Peer,
        psn: Psn,
        reth: &Reth,
        named: Option<PdTag>,
    ) -> Option<Response> {
        let repeated = self.saved.iter().find_map(|saved| {
            let Saved::Read {
                psn: first,
                packets,
                pd,
                rkey,
                va,
                len,
            } = *saved
            else {
                return None;
            };
            let skipped_packets = psn.sub(first.get()).get();
            if skipped_packets >= packets || reth.rkey != rkey {
                return None;
            }
            let skipped = skipped_packets * peer.pmtu_bytes();
            let is_tail =
                reth.va == va.wrapping_add(u64::from(skipped)) && reth.dma_len == len - skipped;
            pd.or(named).filter(|_| is_tail)
        });
        //= RC-DUP-07
        let end = psn.add(peer.packets(reth.dma_len));
        let running = self
            .queue
            .iter()
            .any(|response| response.read_end(peer) == Some(end));
        repeated.filter(|_| !running).map(|pd| Response::Read {
            psn,
            pd,
            rkey: reth.rkey,
            va: reth.va,
            left: reth.dma_len,
            first: true,
            msn: self.msn,
            replay: true,
        })
    }

    /// Returns the response to a duplicate atomic: the saved value. The atomic is never executed a
    /// second time.
    //= RC-DUP-04
    pub(super) fn replay_atomic(&self, psn: Psn, operation: Operation) -> Option<Response> {
        // The newest first: after 2^24 packets an old one may have the same PSN.
        self.saved.iter().rev().find_map(|saved| match *saved {
            Saved::Atomic {
                psn: p,
                operation: o,
                original,
            } if p == psn && o == operation => {
                Some(Response::of_atomic(psn, o, original, self.msn, true))
            }
            Saved::Wide {
                psn: p,
                operation: o,
                log_size,
                original,
            } if p == psn && o == operation => Some(Response::Wide {
                psn,
                log_size,
                original,
                msn: self.msn,
                replay: true,
            }),
            Saved::Read { .. } | Saved::Atomic { .. } | Saved::Wide { .. } => None,
        })
    }
}
