//! The rig as responder: the requests it expects, and its answers.

use rocade_wire::{CreditCode, Msn, NakCode, Opcode, Operation, Reth, RnrTimer, Syndrome};

use super::conn::{Conn, rc_packet};
use crate::{
    PacketBuilder,
    case::{CaseResult, equal, fail},
    rig::Received,
};

impl Conn<'_> {
    /// The next packet is request `index` of the peer, with this operation.
    ///
    /// # Errors
    /// Another packet, or none.
    pub fn expect_request(&self, operation: Operation, index: i32) -> CaseResult<Received> {
        let packet = self.receive()?;
        let bth = packet.headers.bth;
        equal(bth.opcode.operation(), Some(operation), "opcode")?;
        equal(bth.psn, self.peer_psn(index), "PSN of the request")?;
        if !packet.headers.agrees_with_opcode() {
            return fail(format!("wrong extension headers in {}", packet.headers));
        }
        Ok(packet)
    }

    /// The next packets are the requests from index `first`, with these operations.
    ///
    /// # Errors
    /// Other packets, or none.
    pub fn expect_requests(
        &self,
        first: i32,
        operations: &[Operation],
    ) -> CaseResult<Vec<Received>> {
        (first..)
            .zip(operations)
            .map(|(index, &operation)| self.expect_request(operation, index))
            .collect()
    }

    /// The next packet is request `index`, a READ with this RETH.
    ///
    /// # Errors
    /// Another packet, or none.
    pub fn expect_read_request(&self, index: i32, reth: Reth) -> CaseResult {
        let packet = self.expect_request(Operation::ReadRequest, index)?;
        equal(packet.headers.reth, Some(reth), "RETH")
    }

    /// The answer with the PSN of request `index`.
    #[must_use]
    pub fn answer(&self, operation: Operation, index: i32) -> PacketBuilder {
        let packet = rc_packet(operation, self.qp().qpn(), self.peer_psn(index));
        match Opcode::of(self.service(), operation) {
            Some(opcode) => packet.edit(|headers| headers.bth.opcode = opcode),
            None => packet,
        }
    }

    /// Sends an acknowledgement of any kind for request `index`.
    ///
    /// # Errors
    /// As [`Conn::send`].
    pub fn acknowledge(&self, index: i32, syndrome: Syndrome, msn: u32) -> CaseResult {
        let answer = self.answer(Operation::Acknowledge, index);
        self.send(&answer.aeth(syndrome, Msn::new(msn)))
    }

    /// Acknowledges up to request `index`.
    ///
    /// # Errors
    /// As [`Conn::send`].
    pub fn ack(&self, index: i32, msn: u32) -> CaseResult {
        self.acknowledge(index, POSITIVE, msn)
    }

    /// Refuses request `index`.
    ///
    /// # Errors
    /// As [`Conn::send`].
    pub fn nak(&self, index: i32, code: NakCode, msn: u32) -> CaseResult {
        self.acknowledge(index, Syndrome::Nak(code), msn)
    }

    /// Is not ready to receive request `index`.
    ///
    /// # Errors
    /// As [`Conn::send`].
    pub fn rnr_nak(&self, index: i32, timer: RnrTimer, msn: u32) -> CaseResult {
        self.acknowledge(index, Syndrome::RnrNak(timer), msn)
    }

    /// Sends one packet of a READ response, with AETH where the operation has one.
    ///
    /// # Errors
    /// As [`Conn::send`].
    pub fn read_response(
        &self,
        operation: Operation,
        index: i32,
        data: &[u8],
        msn: u32,
    ) -> CaseResult {
        let answer = self.answer(operation, index).payload(data);
        self.send(&if operation == Operation::ReadResponseMiddle {
            answer
        } else {
            answer.aeth(POSITIVE, Msn::new(msn))
        })
    }
}

/// What Rocade and most devices answer: an ACK without credits.
pub(crate) const POSITIVE: Syndrome = Syndrome::Ack(CreditCode::INVALID);
