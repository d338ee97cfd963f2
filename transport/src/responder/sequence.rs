//! The order of checks for a request, and the handling of duplicates.
//!
//! The order is PSN, opcode sequence, rights, resources, receive WQE, length.

use rocade_wire::{
    Headers, NakCode, Operation, OperationKind, Placement, Psn, Selectivity, Syndrome,
};

use super::{InProgress, Responder, fail_recv};
use crate::completion::WcStatus;
use crate::counters::DropReason;
use crate::cx::Cx;
use crate::event::QpEvent;
use crate::failure::{Failure, ReceiveBuffers, RefusedRequest, RemoteRange};
use crate::memory::Memory;
use crate::outputs::{Fatal, Outputs};
use crate::queue::{RecvSource, RecvWqe, SrqLookupError, Srqn};
use crate::segment::{MAX_MESSAGE_LEN, length_ok};
use crate::wr::AccessFlags;

/// The reason why a request is refused, and its NAK code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RequestRefusal {
    pub(super) nak: NakCode,
    /// Status of the receive WQE that the message has consumed.
    pub(super) status: WcStatus,
}

impl RequestRefusal {
    pub(super) const INVALID_REQUEST: Self = Self {
        nak: NakCode::InvalidRequest,
        status: WcStatus::RemInvReqErr,
    };
    /// The receive, which only a WRITE with immediate has, reports that memory of this side was not
    /// accessible.
    //= WCS-08
    pub(super) const ACCESS: Self = Self {
        nak: NakCode::RemoteAccess,
        status: WcStatus::LocAccessErr,
    };
    /// A SEND with invalidate names a key that cannot be invalidated.
    //= RC-ERR-J
    pub(super) const BAD_INVALIDATE: Self = Self {
        nak: NakCode::RemoteAccess,
        status: WcStatus::RemAccessErr,
    };
    /// Returns the refusal of a request whose shared receive queue is not valid.
    const fn of_srqn(why: SrqLookupError) -> Self {
        match why {
            //= XRC-06
            SrqLookupError::Unknown => Self::ACCESS,
            //= XRC-03
            SrqLookupError::Changed | SrqLookupError::OtherProcess => Self::INVALID_REQUEST,
        }
    }

    //= RC-RSP-10
    pub(super) const TOO_LONG: Self = Self {
        nak: NakCode::InvalidRequest,
        status: WcStatus::LocLenErr,
    };
    //= RC-RSP-12
    pub(super) const BAD_RECEIVE_BUFFER: Self = Self {
        nak: NakCode::RemoteOperational,
        status: WcStatus::LocProtErr,
    };
}

impl Responder {
    /// Handles a request packet whose service, addresses and keys are those of the connection.
    #[inline]
    pub(crate) fn handle_request<H: Memory>(
        &mut self,
        cx: &mut Cx<'_, H>,
        headers: &Headers,
        payload: &[u8],
    ) -> Result<(), Fatal> {
        let result = self.take_request(cx, headers, payload);
        if result.is_err() {
            if let Some(operation) = headers.bth.opcode.operation() {
                cx.out.op_counters.add_refused(operation);
            }
            if let Some(refused) = cx.out.events.refused() {
                refused.add_packet(headers, payload.len());
            }
        }
        result
    }

    fn take_request<H: Memory>(
        &mut self,
        cx: &mut Cx<'_, H>,
        headers: &Headers,
        payload: &[u8],
    ) -> Result<(), Fatal> {
        let psn = headers.bth.psn;
        //= RC-PSN-02
        //= RC-RSP-02
        match psn.diff(self.epsn) {
            0 => {}
            1.. => {
                self.handle_gap(cx.out);
                return Ok(());
            }
            _ => {
                self.handle_duplicate(cx, headers);
                return Ok(());
            }
        }
        //= RC-DUP-08
        self.nak_outstanding = false;
        let checked = self.check(headers);
        let operation = match checked {
            Ok(operation) => operation,
            Err(refusal) => return Err(self.refuse(cx, psn, refusal, None)),
        };
        if let RecvSource::ByHeader(named) = &mut self.receives {
            let begins = operation.is_first() || operation.is_only();
            let takes = operation.takes_receive();
            let srqn = headers.xrceth.map_or(Srqn::NONE, |eth| Srqn::new(eth.srqn));
            match named.select_srq(srqn, begins, takes) {
                //= XRC-04
                Ok(pd) => cx.who.pd = pd,
                // The process that owns the queue receives the packet, too. Here it had no effect.
                Err(SrqLookupError::OtherProcess) => return Ok(()),
                Err(why) => return Err(self.refuse(cx, psn, RequestRefusal::of_srqn(why), None)),
            }
        }
        let wqe = if operation.takes_receive() {
            let wqe = match self.withholds_receives {
                true => {
                    self.withheld = self.withheld.saturating_add(1);
                    None
                }
                false => self.receives.take(),
            };
            let Some(wqe) = wqe else {
                //= XRC-07
                //= RC-RSP-06
                //= RC-ERR-B
                self.schedule_nak(psn, Syndrome::RnrNak(self.attr.min_rnr_timer), cx.out);
                return Ok(());
            };
            Some(wqe)
        } else {
            None
        };
        //= RC-RSP-07
        if !length_ok(cx.peer, operation, headers, payload) {
            let refusal = RequestRefusal::INVALID_REQUEST;
            return Err(self.refuse(cx, psn, refusal, wqe));
        }
        cx.out.counters.traffic().rx_packets += 1;
        self.execute(cx, operation, headers, payload, wqe)
    }

    /// Checks the opcode sequence, the QP's access flags, and READ and atomic resources.
    fn check(&self, headers: &Headers) -> Result<Operation, RequestRefusal> {
        //= OPC-36
        let operation = headers
            .bth
            .opcode
            .operation()
            .ok_or(RequestRefusal::INVALID_REQUEST)?;
        if !self.sequence_ok(operation) {
            return Err(RequestRefusal::INVALID_REQUEST);
        }
        //= RC-RSP-04
        let needed = match operation.kind() {
            OperationKind::Read => AccessFlags::REMOTE_READ,
            OperationKind::Atomic | OperationKind::MaskedAtomic => AccessFlags::REMOTE_ATOMIC,
            //= ETH-09 ETH-13
            OperationKind::Flush => flush_rights(headers).ok_or(RequestRefusal::INVALID_REQUEST)?,
            //= ETH-12
            OperationKind::Write | OperationKind::AtomicWrite => AccessFlags::REMOTE_WRITE,
            OperationKind::Send
            | OperationKind::Disconnect
            | OperationKind::ReadResponse
            | OperationKind::Acknowledge
            | OperationKind::AtomicResponse
            | OperationKind::Cnp => AccessFlags::empty(),
        };
        //= RC-LIM-04
        if !self.attr.access.contains(needed) {
            return Err(RequestRefusal::INVALID_REQUEST);
        }
        //= RC-RSP-05
        if operation.kind().is_answered()
            && self.outstanding_resources() >= usize::from(self.attr.max_dest_rd_atomic)
        {
            return Err(RequestRefusal::INVALID_REQUEST);
        }
        Ok(operation)
    }

    /// Returns true if the operation may follow the previous packet.
    //= RC-RSP-03 RC-SEQ-01 RC-SEQ-02
    //= RC-SEQ-03
    fn sequence_ok(&self, operation: Operation) -> bool {
        let continues = operation.is_middle() || operation.is_last();
        match self.current {
            InProgress::None => !continues,
            InProgress::Send { .. } => operation.is_send() && continues,
            InProgress::Write { .. } => operation.is_write() && continues,
        }
    }

    //= RC-RSP-20
    fn handle_gap(&mut self, out: &mut Outputs) {
        if self.nak_outstanding {
            out.counters.drop_packet(DropReason::OutOfSequence);
        } else {
            self.schedule_nak(self.epsn, Syndrome::Nak(NakCode::PsnSequence), out);
        }
    }

    fn handle_duplicate<H>(&mut self, cx: &mut Cx<'_, H>, headers: &Headers) {
        cx.out.counters.rare().duplicate_requests += 1;
        let psn = headers.bth.psn;
        let Some(operation) = headers.bth.opcode.operation() else {
            //= OPC-36
            cx.out.counters.drop_packet(DropReason::Duplicate);
            return;
        };
        if operation.is_send() || operation.is_write() {
            //= RC-DUP-01
            let psn = self.acknowledge_duplicate(psn);
            self.schedule_ack(psn);
            return;
        }
        let named = match (&mut self.receives, headers.xrceth) {
            (RecvSource::ByHeader(named), Some(eth)) if operation == Operation::ReadRequest => {
                match named.look_up(Srqn::new(eth.srqn)) {
                    Err(SrqLookupError::OtherProcess) => return,
                    found => found.ok(),
                }
            }
            _ => None,
        };
        let replay = match operation.kind() {
            _ if !self.may_replay() => None,
            OperationKind::Read => headers
                .reth
                .and_then(|reth| self.replay_read(cx.peer, psn, &reth, named)),
            OperationKind::Atomic
            | OperationKind::MaskedAtomic
            | OperationKind::Flush
            | OperationKind::AtomicWrite => self.replay_atomic(psn, operation),
            OperationKind::Send
            | OperationKind::Write
            | OperationKind::Disconnect
            | OperationKind::ReadResponse
            | OperationKind::Acknowledge
            | OperationKind::AtomicResponse
            | OperationKind::Cnp => None,
        };
        match replay {
            Some(response) => self.schedule(response),
            //= RC-ERR-D
            None => cx.out.counters.drop_packet(DropReason::Duplicate),
        }
    }

    /// Refuses a request with a NAK and reports the error: by the receive WQE that the message has
    /// consumed, else by an event. The QP goes to ERR.
    //= RC-ERR-A
    pub(super) fn refuse<H>(
        &mut self,
        cx: &mut Cx<'_, H>,
        psn: Psn,
        refusal: RequestRefusal,
        wqe: Option<RecvWqe>,
    ) -> Fatal {
        //= RC-RSP-22
        self.schedule_nak(psn, Syndrome::Nak(refusal.nak), cx.out);
        let (held, target) = match core::mem::replace(&mut self.current, InProgress::None) {
            InProgress::Send { wqe, .. } => (Some(wqe), None),
            InProgress::Write { rkey, va, len, .. } => {
                let len = u64::from(len);
                (wqe, Some(RemoteRange { rkey, va, len }))
            }
            InProgress::None => (wqe, None),
        };
        self.explain(cx, refusal, target, held.as_ref());
        if let Some(wqe) = held {
            fail_recv(cx, &wqe, refusal.status);
        } else {
            //= AEV-02 AEV-03
            cx.out.events.push(match refusal.nak {
                NakCode::RemoteAccess => QpEvent::AccessErr,
                NakCode::PsnSequence
                | NakCode::InvalidRequest
                | NakCode::RemoteOperational
                | NakCode::InvalidRdRequest
                | NakCode::Reserved(_) => QpEvent::ReqErr,
            });
        }
        Fatal
    }
}

impl Responder {
    /// Keeps what explains a refusal. What the packet says is added later.
    fn explain<H>(
        &self,
        cx: &mut Cx<'_, H>,
        refusal: RequestRefusal,
        target: Option<RemoteRange>,
        receive: Option<&RecvWqe>,
    ) {
        let who = cx.who;
        let path_mtu = cx.peer.pmtu_bytes();
        let resources = (self.outstanding_resources(), self.attr.max_dest_rd_atomic);
        cx.out.events.explain(|| {
            Failure::Request(RefusedRequest {
                nak: refusal.nak,
                status: refusal.status,
                operation: None,
                target,
                payload_len: 0,
                path_mtu,
                rights: self.attr.access,
                resources,
                receive: receive.map(|wqe| ReceiveBuffers::of(wqe, who)),
                who,
            })
        });
    }
}

/// Returns the rights that a FLUSH needs, of the QP and of the region. `None` if the FLUSH is not a
/// defined one.
//= ETH-09 ETH-13
fn flush_rights(headers: &Headers) -> Option<AccessFlags> {
    let (feth, reth) = (headers.feth?, headers.reth?);
    let placement = feth.placement();
    let known = Placement::GLOBAL_VISIBILITY | Placement::PERSISTENCE;
    let is_defined = !placement.is_empty()
        && placement.difference(known).is_empty()
        && match feth.selectivity() {
            Selectivity::Range => reth.dma_len < MAX_MESSAGE_LEN,
            Selectivity::MemoryRegion => true,
            Selectivity::Reserved(_) => false,
        }
        && !headers.bth.solicited;
    let mut rights = AccessFlags::empty();
    rights.set(
        AccessFlags::FLUSH_GLOBAL,
        placement.contains(Placement::GLOBAL_VISIBILITY),
    );
    rights.set(
        AccessFlags::FLUSH_PERSISTENT,
        placement.contains(Placement::PERSISTENCE),
    );
    is_defined.then_some(rights)
}
