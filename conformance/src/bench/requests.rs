//! The rig as requester: its packets, and the expected responses.

use rocade_wire::{
    DcEth, Deth, Msn, NakCode, Opcode, Operation, Qkey, RnrTimer, Service, Syndrome, XrcEth,
};

use super::conn::{Conn, rc_packet};
use crate::{
    PacketBuilder,
    case::{CaseResult, equal, fail},
    peer::{DC_KEY, QKEY},
    rig::Received,
};

impl Conn<'_> {
    /// Returns request packet `index` of this operation. Packets to an XRC target name its only
    /// shared receive queue. Packets to a DC target belong to the session that index 0 starts.
    #[must_use]
    pub fn request(&self, operation: Operation, index: i32) -> PacketBuilder {
        let packet = self.rc_request(operation, index);
        let service = self.service();
        if service == Service::Rc {
            return packet;
        }
        packet.edit(|headers| {
            if let Some(opcode) = Opcode::of(service, operation) {
                headers.bth.opcode = opcode;
            }
            match service {
                Service::Xrc => {
                    headers.xrceth = Some(XrcEth {
                        resv: 0,
                        srqn: self.qp().srqn(),
                    });
                }
                Service::Dc => {
                    headers.dceth = Some(DcEth {
                        key: DC_KEY,
                        start: index == 0,
                        pmtu: 1,
                        stream_channel: 0,
                        dci: self.rig_qpn(),
                        session: u32::MAX,
                    });
                }
                Service::Ud => {
                    headers.deth = Some(Deth {
                        qkey: Qkey::new(QKEY),
                        resv: 0,
                        src_qp: self.rig_qpn(),
                    });
                }
                _ => {}
            }
        })
    }

    /// Returns request packet `index` of the service RC, regardless of the queue pair.
    #[must_use]
    pub fn rc_request(&self, operation: Operation, index: i32) -> PacketBuilder {
        rc_packet(operation, self.qp().qpn(), self.psn(index))
    }

    /// Sends request packet `index`, a SEND Only with AckReq.
    ///
    /// # Errors
    /// As for [`Conn::send`].
    pub fn send_only(&self, index: i32, payload: &[u8]) -> CaseResult {
        let packet = self.request(Operation::SendOnly, index);
        self.send(&packet.payload(payload).ack_req())
    }

    /// Returns a WRITE Only with AckReq, to `offset` of the first region.
    #[must_use]
    pub fn write(&self, index: i32, offset: u32, payload: &[u8]) -> PacketBuilder {
        let region = self.region();
        let len = u32::try_from(payload.len()).unwrap_or(u32::MAX);
        self.request(Operation::WriteOnly, index)
            .reth(region.va + u64::from(offset), region.rkey, len)
            .payload(payload)
            .ack_req()
    }

    /// Sends [`Conn::write`].
    ///
    /// # Errors
    /// As for [`Conn::send`].
    pub fn write_only(&self, index: i32, offset: u32, payload: &[u8]) -> CaseResult {
        self.send(&self.write(index, offset, payload))
    }

    /// Returns a READ request for `len` bytes from `offset` of the first region.
    #[must_use]
    pub fn read(&self, index: i32, offset: u32, len: u32) -> PacketBuilder {
        let region = self.region();
        self.request(Operation::ReadRequest, index)
            .reth(region.va + u64::from(offset), region.rkey, len)
            .ack_req()
    }

    /// Returns an atomic at `offset` of the first region: a CmpSwap if there is `compare`, else a
    /// FetchAdd.
    #[must_use]
    pub fn atomic(
        &self,
        index: i32,
        offset: u64,
        swap_add: u64,
        compare: Option<u64>,
    ) -> PacketBuilder {
        let region = self.region();
        let operation = match compare {
            Some(_) => Operation::CmpSwap,
            None => Operation::FetchAdd,
        };
        self.request(operation, index)
            .atomic(
                region.va + offset,
                region.rkey,
                swap_add,
                compare.unwrap_or(0),
            )
            .ack_req()
    }

    /// Sends a zero-length WRITE as request packet `index`, and expects its acknowledgement with
    /// this MSN. This shows that `index` was the expected PSN, and that no earlier packet was
    /// answered.
    ///
    /// # Errors
    /// Another response, or none.
    pub fn probe(&self, index: i32, msn: u32) -> CaseResult {
        self.write_only(index, 0, &[])?;
        self.expect_ack(index, msn)
    }

    /// Expects a positive acknowledgement of request packet `index` with this MSN.
    ///
    /// # Errors
    /// Another packet, or none.
    //= RC-ACK-07
    pub fn expect_ack(&self, index: i32, msn: u32) -> CaseResult {
        match self.expect_acknowledge(index, msn)? {
            Syndrome::Ack(_) => Ok(()),
            syndrome => fail(format!("{syndrome} instead of ACK")),
        }
    }

    /// Expects acknowledgements up to request packet `index`, the last one with this MSN.
    ///
    /// # Errors
    /// Another packet, or none.
    //= RC-ACK-02
    pub fn expect_ack_up_to(&self, index: i32, msn: u32) -> CaseResult {
        loop {
            let packet = self.receive()?;
            let syndrome = acknowledge(&packet)?;
            if !matches!(syndrome, Syndrome::Ack(_)) {
                return fail(format!("{syndrome} instead of ACK"));
            }
            match packet.headers.bth.psn.diff(self.psn(index)) {
                0 => return expect_msn(&packet, msn),
                1.. => return fail(format!("ACK of PSN {}, not sent", packet.headers.bth.psn)),
                _ => {}
            }
        }
    }

    /// Expects this NAK of request packet `index` with this MSN.
    ///
    /// # Errors
    /// Another packet, or none.
    pub fn expect_nak(&self, index: i32, code: NakCode, msn: u32) -> CaseResult {
        let syndrome = self.expect_acknowledge(index, msn)?;
        equal(syndrome, Syndrome::Nak(code), "syndrome")
    }

    /// Expects an RNR NAK of request packet `index` with this MSN.
    ///
    /// # Errors
    /// Another packet, or none.
    pub fn expect_rnr_nak(&self, index: i32, msn: u32) -> CaseResult<RnrTimer> {
        match self.expect_acknowledge(index, msn)? {
            Syndrome::RnrNak(timer) => Ok(timer),
            syndrome => fail(format!("{syndrome} instead of RNR NAK")),
        }
    }

    fn expect_acknowledge(&self, index: i32, msn: u32) -> CaseResult<Syndrome> {
        let packet = self.receive()?;
        let syndrome = acknowledge(&packet)?;
        let service = packet.headers.bth.opcode.service();
        equal(service, self.service(), "service of the answer")?;
        equal(packet.headers.bth.psn, self.psn(index), "PSN of the answer")?;
        expect_msn(&packet, msn)?;
        Ok(syndrome)
    }

    /// Expects the response to a READ with request packet `index`: these data, in packets of the
    /// path MTU, with this MSN.
    ///
    /// # Errors
    /// Other packets, or none.
    //= RC-PSN-06 RC-SEG-01 RC-ACK-04
    pub fn expect_read_response(&self, index: i32, data: &[u8], msn: u32) -> CaseResult {
        let pmtu = self.pmtu();
        let count = data.len().div_ceil(pmtu).max(1);
        for number in 0..count {
            let packet = self.receive()?;
            let expected = match (number == 0, number + 1 == count) {
                (true, true) => Operation::ReadResponseOnly,
                (true, false) => Operation::ReadResponseFirst,
                (false, true) => Operation::ReadResponseLast,
                (false, false) => Operation::ReadResponseMiddle,
            };
            let what = format!("READ response {number}");
            equal(
                packet.headers.bth.opcode.operation(),
                Some(expected),
                &format!("{what}: opcode"),
            )?;
            let psn = self
                .psn(index)
                .add(u32::try_from(number).unwrap_or(u32::MAX));
            equal(packet.headers.bth.psn, psn, &format!("{what}: PSN"))?;
            let part = &data[number * pmtu..data.len().min((number + 1) * pmtu)];
            if packet.payload != part {
                return fail(format!(
                    "{what}: {} bytes or wrong data, instead of {} bytes",
                    packet.payload.len(),
                    part.len()
                ));
            }
            if let Some(aeth) = packet.headers.aeth {
                if !matches!(aeth.syndrome, Syndrome::Ack(_)) {
                    return fail(format!("{what}: {}", aeth.syndrome));
                }
                //= RC-RSP-24
                let early = number + 1 < count && aeth.msn.next() == Msn::new(msn);
                if !early {
                    expect_msn(&packet, msn)?;
                }
            }
        }
        Ok(())
    }

    /// Expects the result of an atomic with request packet `index`.
    ///
    /// # Errors
    /// Another packet, or none.
    pub fn expect_atomic_ack(&self, index: i32, original: u64, msn: u32) -> CaseResult {
        let packet = self.receive()?;
        let bth = packet.headers.bth;
        equal(
            bth.opcode.operation(),
            Some(Operation::AtomicAcknowledge),
            "opcode",
        )?;
        equal(bth.psn, self.psn(index), "PSN of the answer")?;
        expect_msn(&packet, msn)?;
        let actual = packet.headers.atomic_ack.map(|ack| ack.original);
        equal(actual, Some(original), "original value")
    }
}

fn acknowledge(packet: &Received) -> CaseResult<Syndrome> {
    match (packet.headers.bth.opcode.operation(), packet.headers.aeth) {
        (Some(Operation::Acknowledge), Some(aeth)) => Ok(aeth.syndrome),
        _ => fail(format!("{} instead of ACKNOWLEDGE", packet.headers)),
    }
}

fn expect_msn(packet: &Received, msn: u32) -> CaseResult {
    let actual = packet.headers.aeth.map(|aeth| aeth.msn);
    equal(actual, Some(Msn::new(msn)), "RC-RSP-24: MSN")
}
