//! The rig's connection manager, which sends the messages of a case, and the manager of the peer.

use std::cell::Cell;
use std::net::IpAddr;
use std::time::Instant;

use rocade_wire::mad::{
    CmMessage, CmPath, CmTimeout, CommId, Dreq, Ece, Failover, GSI_QKEY, IpCmHeader, Mad, Rej,
    RejReason, Rejected, Rep, Req, Rtu, ServiceId, SidrReq, SidrStatus, TransactionId,
    TransportType,
};
use rocade_wire::{Deth, Gid, Guid, Opcode, Operation, Pkey, Psn, Qkey, Qpn, Service};

use crate::{
    Bench, CaseResult, PacketBuilder,
    case::{CaseError, equal, fail},
    peer::{ManagerEvent, PeerManager},
};

/// Event types, by the numbers of `rdma_cm_event_type`.
pub(super) const REQUEST: u32 = 4;
pub(super) const RESPONSE: u32 = 5;
pub(super) const UNREACHABLE: u32 = 7;
pub(super) const REJECTED: u32 = 8;
pub(super) const ESTABLISHED: u32 = 9;
pub(super) const DISCONNECTED: u32 = 10;

/// The port space TCP.
pub(super) const TCP: u16 = 0x0106;
/// A service without a listener, for the fence.
pub(super) const UNUSED_SERVICE: ServiceId = ServiceId::new(0x7777_7777_0000_0001);
pub(super) const RIG_GUID: Guid = Guid::new(0x0200_c0ff_ee00_0001);

/// The connection managers of the rig and the peer.
pub(super) struct Dialog<'b> {
    pub(super) bench: &'b Bench<'b>,
    pub(super) manager: Box<dyn PeerManager>,
    /// The rig's communication ID and transaction ID of the case.
    pub(super) id: CommId,
    pub(super) tid: TransactionId,
    /// The rig's queue pair.
    pub(super) qpn: Qpn,
    pub(super) psn: Cell<u32>,
}

impl<'b> Dialog<'b> {
    pub(super) fn new(bench: &'b Bench<'b>) -> CaseResult<Self> {
        let manager = bench
            .peer()
            .manager()
            .map_err(|unable| CaseError::Skipped(unable.to_string()))?;
        bench.rig().expect(Qpn::GSI, Service::Ud);
        let fresh = bench.rig().new_qpn();
        Ok(Self {
            bench,
            manager,
            id: CommId::new(0x4200_0000 | fresh.get()),
            tid: TransactionId::new(0x1234_5678_0000_0000 | u64::from(fresh.get())),
            qpn: fresh,
            psn: Cell::new(0),
        })
    }

    pub(super) fn listen(&self, datagrams: bool) -> CaseResult<ServiceId> {
        let port = self.manager.listen(datagrams);
        let port = port.map_err(|unable| CaseError::Skipped(unable.to_string()))?;
        Ok(ServiceId::of_port(
            if datagrams { 0x0111 } else { TCP },
            port,
        ))
    }

    pub(super) fn send_bytes(&self, mad: &[u8]) -> CaseResult {
        let opcode = Opcode::of(Service::Ud, Operation::SendOnly);
        let opcode = opcode.ok_or_else(|| CaseError::Failed("no such opcode".to_owned()))?;
        let psn = Psn::new(self.psn.replace(self.psn.get() + 1));
        let packet = PacketBuilder::new(opcode, Qpn::GSI, psn).payload(mad);
        self.bench.rig().send(&packet.edit(|headers| {
            headers.deth = Some(Deth {
                qkey: GSI_QKEY,
                src_qp: Qpn::GSI,
                resv: 0,
            });
        }))
    }

    pub(super) fn send(&self, message: CmMessage) -> CaseResult {
        self.send_bytes(&Mad::new(self.tid, message).to_bytes())
    }

    /// Returns the peer's next message, and its transaction ID.
    pub(super) fn receive(&self) -> CaseResult<(TransactionId, CmMessage)> {
        let deadline = self.bench.patience();
        let Some(packet) = self.bench.rig().receive(Qpn::GSI, deadline)? else {
            return fail("no message from the peer's manager");
        };
        let deth = packet.headers.deth;
        //= MAD-01 type=test
        let ends = deth.map(|deth| (deth.src_qp, deth.qkey));
        equal(ends, Some((Qpn::GSI, GSI_QKEY)), "source QP and Q_Key")?;
        match Mad::parse(&packet.payload) {
            Ok(mad) => Ok((mad.tid, mad.message)),
            Err(error) => fail(format!("the peer sent no message: {error}")),
        }
    }

    /// Sends a request that must be answered, and fails unless its answer is the next message.
    pub(super) fn fence(&self) -> CaseResult {
        let request_id = CommId::new(0x4300_0000 | self.bench.rig().new_qpn().get());
        self.send(CmMessage::SidrReq(SidrReq {
            request_id,
            pkey: Pkey::DEFAULT,
            service_id: UNUSED_SERVICE,
            private_data: [0; SidrReq::PRIVATE_LEN],
        }))?;
        let CmMessage::SidrRep(rep) = self.receive()?.1 else {
            return fail("an answer to a message that must not be answered");
        };
        equal(
            (rep.request_id, rep.status),
            (request_id, SidrStatus::ServiceIdNotSupported),
            "the fence",
        )
    }

    /// Returns the next event of the owner, which must be of this type.
    pub(super) fn event(&self, kind: u32) -> CaseResult<ManagerEvent> {
        let deadline = self.bench.patience();
        loop {
            if let Some(event) = self.manager.poll_event() {
                equal(event.kind, kind, "event")?;
                return Ok(event);
            }
            if Instant::now() >= deadline {
                return fail(format!("no event {kind}"));
            }
            std::thread::yield_now();
        }
    }

    pub(super) fn no_event(&self) -> CaseResult {
        self.fence()?;
        match self.manager.poll_event() {
            None => Ok(()),
            Some(event) => fail(format!("an event: {event:?}")),
        }
    }

    pub(super) fn header(&self) -> IpCmHeader {
        IpCmHeader {
            src_port: 40_000,
            src: self.bench.rig().local(),
            dst: self.bench.peer().address(),
        }
    }

    pub(super) fn path(&self) -> CmPath {
        let gid = |ip: IpAddr| Gid::from_ip(ip);
        CmPath {
            local_gid: gid(self.bench.rig().local()),
            remote_gid: gid(self.bench.peer().address()),
            packet_rate: 3,
            hop_limit: 1,
            subnet_local: true,
            ack_timeout: CmTimeout::new(8),
            ..CmPath::NONE
        }
    }

    pub(super) fn req(&self, service_id: ServiceId, text: &[u8]) -> Req {
        let mut private_data = [0; Req::PRIVATE_LEN];
        private_data[..IpCmHeader::LEN].copy_from_slice(&self.header().to_bytes());
        private_data[IpCmHeader::LEN..][..text.len()].copy_from_slice(text);
        Req {
            local_id: self.id,
            ece: Ece::NONE,
            service_id,
            ca_guid: RIG_GUID,
            qkey: Qkey::new(0),
            qpn: self.qpn,
            responder_resources: 3,
            eecn: 0,
            initiator_depth: 2,
            remote_eecn: 0,
            remote_response_timeout: CmTimeout::new(20),
            transport: TransportType::Rc,
            flow_control: false,
            starting_psn: Psn::new(0xff_fffe),
            local_response_timeout: CmTimeout::new(20),
            retry_count: 7,
            pkey: Pkey::DEFAULT,
            mtu: 3,
            rdc_exists: false,
            rnr_retry_count: 6,
            max_cm_retries: 15,
            srq: false,
            primary: self.path(),
            alternate: CmPath::NONE,
            sap_supported: false,
            private_data,
        }
    }

    pub(super) fn ask(&self, service: ServiceId) -> CaseResult {
        self.send(CmMessage::Req(self.req(service, b"rig")))
    }

    pub(super) fn rep(&self, to: CommId) -> CmMessage {
        let mut private_data = [0; Rep::PRIVATE_LEN];
        private_data[..3].copy_from_slice(b"rig");
        CmMessage::Rep(Rep {
            local_id: self.id,
            remote_id: to,
            qkey: Qkey::new(0),
            qpn: self.qpn,
            eecn: Qpn::new(0),
            ece: Ece::NONE,
            starting_psn: Psn::new(5),
            responder_resources: 1,
            initiator_depth: 1,
            target_ack_delay: CmTimeout::new(0),
            failover: Failover::NotSupported,
            flow_control: false,
            rnr_retry_count: 7,
            srq: false,
            ca_guid: RIG_GUID,
            private_data,
        })
    }

    pub(super) fn rtu(&self, to: CommId) -> CmMessage {
        CmMessage::Rtu(Rtu {
            local_id: self.id,
            remote_id: to,
            private_data: [0; Rtu::PRIVATE_LEN],
        })
    }

    pub(super) fn dreq(&self, to: CommId, remote_qpn: Qpn) -> CmMessage {
        CmMessage::Dreq(Dreq {
            local_id: self.id,
            remote_id: to,
            remote_qpn,
            private_data: [0; Dreq::PRIVATE_LEN],
        })
    }

    pub(super) fn rej(&self, to: CommId, rejected: Rejected, reason: RejReason) -> CmMessage {
        let mut private_data = [0; Rej::PRIVATE_LEN];
        private_data[..2].copy_from_slice(b"no");
        CmMessage::Rej(Rej {
            local_id: self.id,
            remote_id: to,
            rejected,
            reason,
            info_len: 0,
            info: [0; Rej::INFO_LEN],
            private_data,
        })
    }

    pub(super) fn accept(&self) -> CaseResult {
        self.done(self.manager.accept(OWN_QPN, b"peer"))
    }

    pub(super) fn done(&self, outcome: Result<(), crate::peer::Unable>) -> CaseResult {
        outcome.map_err(|unable| CaseError::Failed(unable.to_string()))
    }

    pub(super) fn receive_rep(&self) -> CaseResult<(TransactionId, Rep)> {
        match self.receive()? {
            (tid, CmMessage::Rep(rep)) => Ok((tid, rep)),
            (_, other) => fail(format!("{other} instead of a REP")),
        }
    }

    pub(super) fn receive_rej(&self, rejected: Rejected, reason: RejReason) -> CaseResult<Rej> {
        match self.receive()? {
            (tid, CmMessage::Rej(rej)) => {
                //= MAD-05 type=test
                equal(tid, self.tid, "transaction")?;
                equal(rej.remote_id, self.id, "whose")?;
                equal((rej.rejected, rej.reason), (rejected, reason), "rejection")?;
                Ok(rej)
            }
            (_, other) => fail(format!("{other} instead of a REJ")),
        }
    }

    /// Establishes a connection that the rig requests, and returns the peer's communication ID.
    pub(super) fn connected(&self) -> CaseResult<CommId> {
        self.ask(self.listen(false)?)?;
        self.event(REQUEST)?;
        self.accept()?;
        let (_, rep) = self.receive_rep()?;
        self.send(self.rtu(rep.local_id))?;
        self.event(ESTABLISHED)?;
        Ok(rep.local_id)
    }

    /// Returns a connection request of the peer.
    pub(super) fn asked(&self) -> CaseResult<(TransactionId, Req)> {
        let to = (self.bench.rig().local(), 7_471).into();
        let asked = self.manager.connect(to, OWN_QPN, b"peer");
        asked.map_err(|unable| CaseError::Skipped(unable.to_string()))?;
        match self.receive()? {
            (tid, CmMessage::Req(req)) => Ok((tid, req)),
            (_, other) => fail(format!("{other} instead of a REQ")),
        }
    }

    /// Sends a message that answers one of the peer's.
    pub(super) fn answer(&self, tid: TransactionId, message: CmMessage) -> CaseResult {
        self.send_bytes(&Mad::new(tid, message).to_bytes())
    }

    /// Expects the peer's RTU for its request.
    pub(super) fn receive_rtu(&self, tid: TransactionId, id: CommId) -> CaseResult {
        match self.receive()? {
            (told, CmMessage::Rtu(rtu)) => {
                equal(told, tid, "transaction")?;
                equal((rtu.local_id, rtu.remote_id), (id, self.id), "IDs")
            }
            (_, other) => fail(format!("{other} instead of an RTU")),
        }
    }
}

/// The QP number that the peer's owner announces.
pub(super) const OWN_QPN: Qpn = Qpn::new(0x0001_2345);
