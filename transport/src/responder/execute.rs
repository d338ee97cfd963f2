//! Execution of a request that passed the checks.

use core::sync::atomic::{Ordering, fence};

use rocade_wire::{Headers, Operation, Placement, Psn, Reth, Selectivity};

use super::ack_policy::Response;
use super::resources::Saved;
use super::sequence::RequestRefusal;
use super::{InProgress, RecvDetail, Responder, complete_recv};
use crate::completion::{ImmOrInv, WcOpcode};
use crate::cx::Cx;
use crate::masked::{self, MaskedOp};
use crate::memory::{Accessor, AtomicOp, Memory, RemoteAccess};
use crate::outputs::Fatal;
use crate::queue::RecvWqe;
use crate::segment::MAX_MESSAGE_LEN;

/// Results of execution besides memory effects.
struct Executed {
    /// Number of PSNs that the request uses.
    psns: u32,
    /// A receive WQE that is now complete.
    received: Option<(RecvWqe, RecvDetail)>,
    /// Length of an RDMA WRITE that is now complete.
    written: Option<u32>,
}

impl Executed {
    const PACKET: Self = Self {
        psns: 1,
        received: None,
        written: None,
    };
}

impl Responder {
    pub(super) fn execute<H: Memory>(
        &mut self,
        cx: &mut Cx<'_, H>,
        operation: Operation,
        headers: &Headers,
        payload: &[u8],
        wqe: Option<RecvWqe>,
    ) -> Result<(), Fatal> {
        let psn = headers.bth.psn;
        let result = if operation.is_send() {
            self.execute_send(cx.memory(), operation, headers, payload, wqe)
        } else if operation.is_write() {
            self.execute_write(cx.memory(), operation, headers, payload, wqe)
        } else if operation == Operation::AtomicWrite {
            self.execute_store(cx.memory(), headers, payload)
                .map_err(|refusal| (refusal, None))
        } else if operation == Operation::Flush {
            self.execute_flush(cx.memory(), headers)
                .map_err(|refusal| (refusal, None))
        } else if let Some(reth) = headers.reth {
            self.execute_read(cx, psn, reth)
                .map_err(|refusal| (refusal, None))
        } else if operation.is_masked_atomic() {
            self.execute_masked(cx.memory(), operation, headers, payload)
                .map_err(|refusal| (refusal, None))
        } else {
            self.execute_atomic(cx.memory(), operation, headers)
                .map_err(|refusal| (refusal, None))
        };
        let executed = match result {
            Ok(executed) => executed,
            Err((refusal, wqe)) => return Err(self.refuse(cx, psn, refusal, wqe)),
        };
        //= RC-RSP-24
        // READ and atomic requests also count as `only` packets.
        if operation.is_last() || operation.is_only() {
            self.msn = self.msn.next();
            cx.out.counters.traffic().rx_messages += 1;
        }
        //= RC-RSP-23
        self.epsn = psn.add(executed.psns);
        if let Some(len) = executed.written {
            cx.out.op_counters.add_remote_write(len);
        }
        if let Some((wqe, detail)) = executed.received {
            complete_recv(cx, &wqe, detail);
            self.note_received(psn);
        }
        if operation.kind().is_answered() {
            self.queue_response();
        } else if headers.bth.ack_req {
            //= RC-ACK-01
            self.schedule_ack(psn);
        }
        Ok(())
    }

    fn execute_send(
        &mut self,
        (mem, who): (&impl Memory, Accessor),
        operation: Operation,
        headers: &Headers,
        payload: &[u8],
        wqe: Option<RecvWqe>,
    ) -> Result<Executed, (RequestRefusal, Option<RecvWqe>)> {
        let current = core::mem::replace(&mut self.current, InProgress::None);
        let (wqe, received) = match (wqe, current) {
            (Some(wqe), _) => (wqe, 0),
            (None, InProgress::Send { wqe, received }) => (wqe, received),
            (None, _) => return Err((RequestRefusal::INVALID_REQUEST, None)),
        };
        let len = len_u32(payload);
        let total = u64::from(received) + u64::from(len);
        //= RC-RSP-10, MTU-04
        if total > wqe.data.len().min(u64::from(MAX_MESSAGE_LEN)) {
            return Err((RequestRefusal::TOO_LONG, Some(wqe)));
        }
        //= RC-RSP-12
        if len > 0 && wqe.scatter((mem, who), received, payload).is_err() {
            return Err((RequestRefusal::BAD_RECEIVE_BUFFER, Some(wqe)));
        }
        let received = received + len;
        if !(operation.is_last() || operation.is_only()) {
            self.current = InProgress::Send { wqe, received };
            return Ok(Executed::PACKET);
        }
        if operation.has_inv() {
            //= INV-03 ETH-07
            let key = headers.ieth.map(|ieth| ieth.0);
            //= RC-ERR-J
            if key.is_none_or(|rkey| mem.invalidate(who, rkey).is_err()) {
                return Err((RequestRefusal::BAD_INVALIDATE, Some(wqe)));
            }
        }
        let detail = recv_detail(WcOpcode::Recv, received, headers);
        Ok(Executed {
            received: Some((wqe, detail)),
            ..Executed::PACKET
        })
    }

    fn execute_write(
        &mut self,
        (mem, who): (&impl Memory, Accessor),
        operation: Operation,
        headers: &Headers,
        payload: &[u8],
        wqe: Option<RecvWqe>,
    ) -> Result<Executed, (RequestRefusal, Option<RecvWqe>)> {
        let (rkey, va, total, received) = if let Some(Reth { va, rkey, dma_len }) = headers.reth {
            //= RC-RSP-08
            let access = RemoteAccess::Write;
            if dma_len > 0
                && mem
                    .check_remote(who, rkey, va, u64::from(dma_len), access)
                    .is_err()
            {
                return Err((RequestRefusal::ACCESS, wqe));
            }
            (rkey, va, dma_len, 0)
        } else if let InProgress::Write {
            rkey,
            va,
            len,
            received,
        } = self.current
        {
            (rkey, va, len, received)
        } else {
            return Err((RequestRefusal::INVALID_REQUEST, wqe));
        };
        let len = len_u32(payload);
        let ends = operation.is_last() || operation.is_only();
        let after = u64::from(received) + u64::from(len);
        //= RC-RSP-09
        if after > u64::from(total) || ends != (after == u64::from(total)) {
            return Err((RequestRefusal::INVALID_REQUEST, wqe));
        }
        //= MR-14
        // The data is in memory before any later request is handled.
        //= ORD-05
        let at = va.wrapping_add(u64::from(received));
        if len > 0 && mem.write_remote(who, rkey, at, payload).is_err() {
            return Err((RequestRefusal::ACCESS, wqe));
        }
        if ends {
            self.current = InProgress::None;
            let received = wqe.map(|wqe| {
                //= RC-WQE-07
                (wqe, recv_detail(WcOpcode::RecvRdmaWithImm, total, headers))
            });
            return Ok(Executed {
                received,
                written: Some(total),
                ..Executed::PACKET
            });
        }
        self.current = InProgress::Write {
            rkey,
            va,
            len: total,
            received: received + len,
        };
        Ok(Executed::PACKET)
    }

    fn execute_read<H: Memory>(
        &mut self,
        cx: &mut Cx<'_, H>,
        psn: Psn,
        reth: Reth,
    ) -> Result<Executed, RequestRefusal> {
        let Reth { va, rkey, dma_len } = reth;
        let access = RemoteAccess::Read;
        //= RC-SEG-02
        if dma_len > 0
            && cx
                .host
                .check_remote(cx.who, rkey, va, u64::from(dma_len), access)
                .is_err()
        {
            return Err(RequestRefusal::ACCESS);
        }
        let packets = cx.peer.packets(dma_len);
        self.save(Saved::Read {
            psn,
            packets,
            pd: Some(cx.who.pd),
            rkey,
            va,
            len: dma_len,
        });
        Ok(Executed {
            psns: packets,
            ..Executed::PACKET
        })
    }

    fn execute_atomic(
        &mut self,
        (mem, who): (&impl Memory, Accessor),
        operation: Operation,
        headers: &Headers,
    ) -> Result<Executed, RequestRefusal> {
        let eth = headers.atomic.ok_or(RequestRefusal::INVALID_REQUEST)?;
        mem.check_remote(who, eth.rkey, eth.va, 8, RemoteAccess::Atomic)
            .map_err(|_| RequestRefusal::ACCESS)?;
        //= RC-RSP-11
        //= ATM-01
        if !eth.va.is_multiple_of(8) {
            return Err(RequestRefusal::INVALID_REQUEST);
        }
        let original = mem
            .atomic_remote(who, eth.rkey, eth.va, AtomicOp::of(operation, &eth))
            .map_err(|_| RequestRefusal::ACCESS)?;
        self.save(Saved::Atomic {
            psn: headers.bth.psn,
            operation,
            original,
        });
        Ok(Executed::PACKET)
    }

    //= ORD-07
    //= ETH-12 RC-RSP-25
    fn execute_store(
        &mut self,
        (mem, who): (&impl Memory, Accessor),
        headers: &Headers,
        payload: &[u8],
    ) -> Result<Executed, RequestRefusal> {
        let reth = headers.reth.ok_or(RequestRefusal::INVALID_REQUEST)?;
        let bytes = payload
            .try_into()
            .map_err(|_| RequestRefusal::INVALID_REQUEST)?;
        if reth.dma_len != 8 || !reth.va.is_multiple_of(8) {
            return Err(RequestRefusal::INVALID_REQUEST);
        }
        mem.store_remote(who, reth.rkey, reth.va, bytes)
            .map_err(|_| RequestRefusal::ACCESS)?;
        self.save_done(headers, Operation::AtomicWrite);
        Ok(Executed::PACKET)
    }

    /// Executes a FLUSH. Earlier writes are already in memory, so a fence is enough to make them
    /// globally visible.
    //= ORD-06
    //= ETH-13 RC-RSP-25
    fn execute_flush(
        &mut self,
        (mem, who): (&impl Memory, Accessor),
        headers: &Headers,
    ) -> Result<Executed, RequestRefusal> {
        let (Some(reth), Some(feth)) = (headers.reth, headers.feth) else {
            return Err(RequestRefusal::INVALID_REQUEST);
        };
        let is_range = feth.selectivity() == Selectivity::Range && reth.dma_len > 0;
        let kinds = [
            (Placement::GLOBAL_VISIBILITY, RemoteAccess::FlushGlobal),
            (Placement::PERSISTENCE, RemoteAccess::FlushPersistent),
        ];
        for (_, access) in kinds.into_iter().filter(|k| feth.placement().contains(k.0)) {
            let checked = if is_range {
                let len = u64::from(reth.dma_len);
                let checked = mem.check_remote(who, reth.rkey, reth.va, len, access);
                checked.map(|_| ())
            } else {
                mem.check_region(who, reth.rkey, access)
            };
            checked.map_err(|_| RequestRefusal::ACCESS)?;
        }
        fence(Ordering::SeqCst);
        self.save_done(headers, Operation::Flush);
        Ok(Executed::PACKET)
    }

    /// Saves a request that was executed and is answered without data.
    //= RC-DUP-04
    fn save_done(&mut self, headers: &Headers, operation: Operation) {
        self.save(Saved::Atomic {
            psn: headers.bth.psn,
            operation,
            original: 0,
        });
    }

    //= XAW-07
    fn execute_masked(
        &mut self,
        (mem, who): (&impl Memory, Accessor),
        operation: Operation,
        headers: &Headers,
        payload: &[u8],
    ) -> Result<Executed, RequestRefusal> {
        let eth = headers.masked.ok_or(RequestRefusal::INVALID_REQUEST)?;
        let log_size = eth.log_size;
        if !masked::is_size(log_size) {
            return Err(RequestRefusal::INVALID_REQUEST);
        }
        let len = 1 << log_size;
        mem.check_remote(who, eth.rkey, eth.va, len, RemoteAccess::Atomic)
            .map_err(|_| RequestRefusal::ACCESS)?;
        //= XAT-15
        //= XDEC-16
        if !eth.va.is_multiple_of(len) {
            return Err(RequestRefusal::INVALID_REQUEST);
        }
        let swaps = matches!(
            operation,
            Operation::MaskedCmpSwap | Operation::XrcMaskedCmpSwap
        );
        let op =
            MaskedOp::from_wire(swaps, log_size, payload).ok_or(RequestRefusal::INVALID_REQUEST)?;
        let original = mem
            .masked_remote(who, eth.rkey, eth.va, log_size, &op)
            .map_err(|_| RequestRefusal::ACCESS)?;
        let psn = headers.bth.psn;
        self.save(if log_size > 3 {
            Saved::Wide {
                psn,
                operation,
                log_size,
                original,
            }
        } else {
            Saved::Atomic {
                psn,
                operation,
                original: original[0],
            }
        });
        Ok(Executed::PACKET)
    }

    /// Queues the response to the READ or atomic just saved, with the MSN that counts it.
    //= RC-ACK-03
    fn queue_response(&mut self) {
        let msn = self.msn;
        let response = match self.saved.back() {
            Some(&Saved::Read {
                psn,
                pd: Some(pd),
                rkey,
                va,
                len,
                ..
            }) => Response::Read {
                psn,
                pd,
                rkey,
                va,
                left: len,
                first: true,
                msn,
                replay: false,
            },
            Some(&Saved::Atomic {
                psn,
                operation,
                original,
            }) => Response::of_atomic(psn, operation, original, msn, false),
            Some(&Saved::Wide {
                psn,
                log_size,
                original,
                ..
            }) => Response::Wide {
                psn,
                log_size,
                original,
                msn,
                replay: false,
            },
            Some(Saved::Read { pd: None, .. }) | None => return,
        };
        self.schedule(response);
    }
}

//= WCO-02
fn recv_detail(opcode: WcOpcode, byte_len: u32, headers: &Headers) -> RecvDetail {
    RecvDetail {
        opcode,
        byte_len,
        imm_or_inv: match (headers.imm, headers.ieth) {
            (Some(imm), _) => ImmOrInv::Imm(imm.0),
            //= RC-WQE-09
            (None, Some(ieth)) => ImmOrInv::Inv(ieth.0),
            (None, None) => ImmOrInv::None,
        },
        solicited: headers.bth.solicited,
    }
}

/// Returns the length of a payload, which is less than 64 KiB.
pub(super) fn len_u32(payload: &[u8]) -> u32 {
    u32::try_from(payload.len()).unwrap_or(u32::MAX)
}
