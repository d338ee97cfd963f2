//! The rig as responder: the expected requests, and its responses.

use rocade_wire::{CreditCode, Msn, NakCode, Opcode, Operation, Reth, RnrTimer, Syndrome};

use super::conn::{Conn, rc_packet};
use crate::{
    PacketBuilder,
    case::{CaseResult, equal, fail},
    rig::Received,
};

impl Conn<'_> {
    /// Expects request `index` of the peer, with this operation.
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

    /// Expects requests from index `first` on, with these operations.
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

    /// Expects request `index`, a READ with this RETH.
    ///
    /// # Errors
    /// Another packet, or none.
    pub fn expect_read_request(&self, index: i32, reth: Reth) -> CaseResult {
        let packet = self.expect_request(Operation::ReadRequest, index)?;
        equal(packet.headers.reth, Some(reth), "RETH")
    }

    /// Returns a response with the PSN of request `index`.
    #[must_use]
    pub fn answer(&self, operation: Operation, index: i32) -> PacketBuilder {
        let packet = rc_packet(operation, self.qp().qpn(), self.peer_psn(index));
        match Opcode::of(self.service(), operation) {
            Some(opcode) => packet.edit(|headers| headers.bth.opcode = opcode),
            None => packet,
        }
    }

    /// Sends an acknowledgement with this syndrome for request `index`.
    ///
    /// # Errors
    /// As for [`Conn::send`].
    pub fn acknowledge(&self, index: i32, syndrome: Syndrome, msn: u32) -> CaseResult {
        let answer = self.answer(Operation::Acknowledge, index);
        self.send(&answer.aeth(syndrome, Msn::new(msn)))
    }

    /// Acknowledges the requests up to `index`.
    ///
    /// # Errors
    /// As for [`Conn::send`].
    pub fn ack(&self, index: i32, msn: u32) -> CaseResult {
        self.acknowledge(index, POSITIVE, msn)
    }

    /// Sends a NAK for request `index`.
    ///
    /// # Errors
    /// As for [`Conn::send`].
    pub fn nak(&self, index: i32, code: NakCode, msn: u32) -> CaseResult {
        self.acknowledge(index, Syndrome::Nak(code), msn)
    }

    /// Sends an RNR NAK for request `index`.
    ///
    /// # Errors
    /// As for [`Conn::send`].
    pub fn rnr_nak(&self, index: i32, timer: RnrTimer, msn: u32) -> CaseResult {
        self.acknowledge(index, Syndrome::RnrNak(timer), msn)
    }

    /// Sends one packet of a READ response, with an AETH if the operation has one.
    ///
    /// # Errors
    /// As for [`Conn::send`].
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

/// The syndrome that Rocade and most devices send: an ACK without credits.
pub(crate) const POSITIVE: Syndrome = Syndrome::Ack(CreditCode::INVALID);
