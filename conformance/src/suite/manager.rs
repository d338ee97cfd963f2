//! The connection manager: hand-made messages that are valid, invalid, late or repeated, and the
//! events of the device's owner.
//!
//! Every message of the rig has an unused communication ID. After a message that must not be
//! answered, the rig sends one that must be answered: a request for a service without a listener.

mod dialog;

use rocade_wire::mad::{
    CmMessage, CmTimeout, CommId, Drep, Dreq, IpCmHeader, Mad, Mra, Rej, RejReason, Rejected, Req,
    ServiceId, SidrRep, SidrReq, SidrStatus, TransactionId, TransportType,
};
use rocade_wire::{Gid, Pkey, Qkey, Qpn};

use crate::{
    Bench, Case, CaseResult,
    case::{CaseError, equal, fail},
    peer::PeerManager,
};
use dialog::{
    DISCONNECTED, Dialog, ESTABLISHED, OWN_QPN, REJECTED, REQUEST, RESPONSE, UNREACHABLE,
    UNUSED_SERVICE,
};

pub(super) const CASES: &[Case] = &[
    Case::responder("CM-ST-02", "request-reply-ready", made),
    Case::responder("CM-ST-04", "a-repeated-request-is-one", repeated),
    Case::responder("CM-ST-04", "nobody-listens", no_listener),
    Case::responder("CMA-04", "a-header-of-another-version", other_header),
    Case::responder("CMA-04", "the-header-names-somebody-else", other_source),
    Case::responder("CM-REJ", "what-the-owner-rejects", rejected),
    Case::responder("CM-ST-06", "who-is-unknown-may-disconnect", unknown_dreq),
    Case::responder("CM-ST-06", "a-dreq-names-the-queue-pair", dreq),
    Case::responder("CM-ST-08", "a-reply-is-rejected", rejected_reply),
    Case::responder("CM-ST-12", "a-service-is-found", service),
    Case::responder("MAD-04", "of-another-class-or-version", other_class),
    Case::responder("MAD-07", "what-nobody-has-asked-for", unsolicited),
    Case::responder("CM-ST-07", "an-unanswered-reply-is-repeated", repeats_reply),
    Case::responder("CM-ST-07", "a-reply-is-given-up", gives_up),
    Case::responder("CM-ST-04", "the-queue-pair-is-still-connected", stale),
    Case::responder("CM-ST-03", "both-disconnect", both_disconnect),
    Case::responder("CM-ST-10", "destroyed-before-it-answers", destroyed_asked),
    Case::responder("CM-ST-10", "destroyed-while-connected", destroyed_connected),
    Case::requester("CM-ST-10", "destroyed-while-it-asks", destroyed_asking),
    Case::requester("CM-ST-01", "asks-and-says-it-is-ready", asks),
    Case::requester("CM-ST-05", "a-repeated-reply", repeated_reply),
    Case::requester("CM-ST-09", "told-to-wait", told_to_wait),
    Case::requester("CM-ST-03", "disconnects", disconnects),
];

//= CM-ST-02 type=test
//= CM-REP type=test
fn made(bench: &Bench<'_>) -> CaseResult {
    let dialog = Dialog::new(bench)?;
    dialog.ask(dialog.listen(false)?)?;
    let event = dialog.event(REQUEST)?;
    //= CMA-05 type=test
    equal(event.private_data.len(), 56, "length of the private data")?;
    equal(&event.private_data[..4], b"rig\0", "private data")?;
    dialog.accept()?;
    let (tid, rep) = dialog.receive_rep()?;
    equal(tid, dialog.tid, "transaction")?;
    equal(rep.remote_id, dialog.id, "remote ID")?;
    equal(rep.local_id.get() != 0, true, "a local ID")?;
    equal(rep.qpn, OWN_QPN, "QP")?;
    equal(rep.ca_guid.get() != 0, true, "a GUID")?;
    //= CM-FLD-02 type=test
    let depths = (rep.responder_resources, rep.initiator_depth);
    equal(depths, (2, 3), "depths: the other way round")?;
    equal(&rep.private_data[..5], b"peer\0", "private data")?;
    dialog.no_event()?;
    dialog.send(dialog.rtu(rep.local_id))?;
    dialog.event(ESTABLISHED)?;
    // A repeated RTU causes no event.
    dialog.send(dialog.rtu(rep.local_id))?;
    dialog.no_event()
}

//= CM-ST-04 type=test
fn repeated(bench: &Bench<'_>) -> CaseResult {
    let dialog = Dialog::new(bench)?;
    let service = dialog.listen(false)?;
    dialog.ask(service)?;
    dialog.event(REQUEST)?;
    dialog.ask(service)?;
    match dialog.receive()?.1 {
        CmMessage::Mra(mra) => {
            equal(mra.remote_id, dialog.id, "remote ID")?;
            equal(mra.received, Rejected::Req, "what was received")?;
        }
        other => return fail(format!("{other} instead of an MRA")),
    }
    dialog.no_event()?;
    dialog.accept()?;
    let (_, rep) = dialog.receive_rep()?;
    // The manager repeats the REP by itself, and does not answer a repeated REQ.
    dialog.ask(service)?;
    dialog.no_event()?;
    dialog.send(dialog.rtu(rep.local_id))?;
    dialog.event(ESTABLISHED).map(drop)
}

//= CM-ST-04 type=test
fn no_listener(bench: &Bench<'_>) -> CaseResult {
    let dialog = Dialog::new(bench)?;
    dialog.ask(UNUSED_SERVICE)?;
    let rej = dialog.receive_rej(Rejected::Req, RejReason::InvalidServiceId)?;
    equal(rej.local_id, CommId::new(0), "local ID")
}

//= CMA-04 type=test
fn other_header(bench: &Bench<'_>) -> CaseResult {
    let dialog = Dialog::new(bench)?;
    let mut req = dialog.req(dialog.listen(false)?, b"");
    req.private_data[0] = 0x10;
    dialog.send(CmMessage::Req(req))?;
    dialog.receive_rej(Rejected::Req, RejReason::Consumer)?;
    dialog.no_event()
}

//= CMA-04 type=test
fn other_source(bench: &Bench<'_>) -> CaseResult {
    let dialog = Dialog::new(bench)?;
    let mut req = dialog.req(dialog.listen(false)?, b"");
    req.private_data[19] ^= 0x40;
    dialog.send(CmMessage::Req(req))?;
    dialog.receive_rej(Rejected::Req, RejReason::Consumer)?;
    dialog.no_event()
}

//= CM-REJ type=test
fn rejected(bench: &Bench<'_>) -> CaseResult {
    let dialog = Dialog::new(bench)?;
    dialog.ask(dialog.listen(false)?)?;
    dialog.event(REQUEST)?;
    dialog.done(dialog.manager.reject(b"peer"))?;
    let rej = dialog.receive_rej(Rejected::Req, RejReason::Consumer)?;
    equal(&rej.private_data[..5], b"peer\0", "private data")?;
    // The RTU comes too late.
    dialog.send(dialog.rtu(rej.local_id))?;
    dialog.no_event()
}

//= CM-ST-06 type=test
fn unknown_dreq(bench: &Bench<'_>) -> CaseResult {
    let dialog = Dialog::new(bench)?;
    // The unknown ID resembles that of an earlier connection of the same process.
    let once = dialog.connected()?;
    let unknown = CommId::new(once.get() ^ 0x0055_5555);
    dialog.send(dialog.dreq(unknown, OWN_QPN))?;
    match dialog.receive()? {
        (tid, CmMessage::Drep(drep)) => {
            equal(tid, dialog.tid, "transaction")?;
            equal((drep.local_id, drep.remote_id), (unknown, dialog.id), "IDs")?;
        }
        (_, other) => return fail(format!("{other} instead of a DREP")),
    }
    dialog.no_event()
}

//= CM-ST-06 type=test
//= CM-ST-03 type=test
fn dreq(bench: &Bench<'_>) -> CaseResult {
    let dialog = Dialog::new(bench)?;
    let peers = dialog.connected()?;
    dialog.send(dialog.dreq(peers, Qpn::new(OWN_QPN.get() + 1)))?;
    dialog.no_event()?;
    dialog.send(dialog.dreq(peers, OWN_QPN))?;
    dialog.event(DISCONNECTED)?;
    // The owner sends the DREP.
    dialog.no_event()?;
    dialog.done(dialog.manager.disconnect())?;
    for again in [true, false] {
        match dialog.receive()?.1 {
            CmMessage::Drep(drep) => {
                equal((drep.local_id, drep.remote_id), (peers, dialog.id), "IDs")?;
            }
            other => return fail(format!("{other} instead of a DREP")),
        }
        if again {
            dialog.send(dialog.dreq(peers, OWN_QPN))?;
        }
    }
    Ok(())
}

//= CM-ST-08 type=test
fn rejected_reply(bench: &Bench<'_>) -> CaseResult {
    let dialog = Dialog::new(bench)?;
    dialog.ask(dialog.listen(false)?)?;
    dialog.event(REQUEST)?;
    dialog.accept()?;
    let (_, rep) = dialog.receive_rep()?;
    let peers = rep.local_id;
    // A REJ of another host, which does not have both IDs.
    let third_host = CmMessage::Rej(Rej {
        local_id: CommId::new(dialog.id.get() + 1),
        remote_id: peers,
        rejected: Rejected::Rep,
        reason: RejReason::Consumer,
        info_len: 0,
        info: [0; Rej::INFO_LEN],
        private_data: [0; Rej::PRIVATE_LEN],
    });
    dialog.send(third_host)?;
    dialog.no_event()?;
    dialog.send(dialog.rej(peers, Rejected::Rep, RejReason::Consumer))?;
    let event = dialog.event(REJECTED)?;
    equal(event.status, 28, "status")?;
    equal(&event.private_data[..3], b"no\0", "private data")?;
    dialog.send(dialog.rtu(peers))?;
    dialog.no_event()
}

//= CM-ST-12 type=test
fn service(bench: &Bench<'_>) -> CaseResult {
    let dialog = Dialog::new(bench)?;
    let mut private_data = [0; SidrReq::PRIVATE_LEN];
    private_data[..IpCmHeader::LEN].copy_from_slice(&dialog.header().to_bytes());
    private_data[IpCmHeader::LEN] = 7;
    let question = CmMessage::SidrReq(SidrReq {
        request_id: dialog.id,
        pkey: Pkey::DEFAULT,
        service_id: dialog.listen(true)?,
        private_data,
    });
    dialog.send(question.clone())?;
    let event = dialog.event(REQUEST)?;
    equal(event.private_data.len(), 180, "length of the private data")?;
    equal(event.private_data[0], 7, "private data")?;
    // The owner gets no event of a repeated request.
    dialog.send(question.clone())?;
    dialog.no_event()?;
    dialog.accept()?;
    let receive = || -> CaseResult<SidrRep> {
        match dialog.receive()? {
            (tid, CmMessage::SidrRep(rep)) => {
                equal(tid, dialog.tid, "transaction")?;
                Ok(rep)
            }
            (_, other) => fail(format!("{other} instead of a SIDR_REP")),
        }
    };
    let first = receive()?;
    equal(
        (first.request_id, first.status, first.qpn),
        (dialog.id, SidrStatus::Success, OWN_QPN),
        "answer",
    )?;
    equal(first.qkey, Qkey::new(0x0123_4567), "Q_Key")?;
    dialog.send(question)?;
    equal(receive()?, first, "the same answer")?;
    dialog.no_event()
}

//= MAD-04 type=test
fn other_class(bench: &Bench<'_>) -> CaseResult {
    let dialog = Dialog::new(bench)?;
    let req = CmMessage::Req(dialog.req(dialog.listen(false)?, b""));
    let right = Mad::new(dialog.tid, req).to_bytes();
    for (at, value) in [(0, 2), (1, 3), (2, 1), (3, 1), (3, 0x83), (17, 0x30)] {
        let mut wrong = right;
        wrong[at] = value;
        dialog.send_bytes(&wrong)?;
    }
    // Messages that are too short or too long.
    dialog.send_bytes(&right[..252])?;
    dialog.send_bytes(&[&right[..], &[0; 4]].concat())?;
    dialog.no_event()?;
    dialog.send_bytes(&right)?;
    dialog.event(REQUEST).map(drop)
}

//= MAD-07 type=test
fn unsolicited(bench: &Bench<'_>) -> CaseResult {
    let dialog = Dialog::new(bench)?;
    let peers = dialog.connected()?;
    let unknown = CommId::new(peers.get() ^ 0x0055_5555);
    for to in [unknown, CommId::new(0), CommId::new(u32::MAX)] {
        dialog.send(dialog.rep(to))?;
        dialog.send(dialog.rtu(to))?;
        dialog.send(dialog.rej(to, Rejected::Rep, RejReason::Consumer))?;
        dialog.send(CmMessage::Drep(Drep {
            local_id: dialog.id,
            remote_id: to,
            private_data: [0; Drep::PRIVATE_LEN],
        }))?;
        dialog.send(CmMessage::Mra(Mra {
            local_id: dialog.id,
            remote_id: to,
            received: Rejected::Req,
            service_timeout: CmTimeout::new(31),
            private_data: [0; Mra::PRIVATE_LEN],
        }))?;
    }
    // The existing connection is not affected: its next event is its end.
    dialog.send(CmMessage::Drep(Drep {
        local_id: dialog.id,
        remote_id: peers,
        private_data: [0; Drep::PRIVATE_LEN],
    }))?;
    dialog.no_event()?;
    dialog.send(dialog.dreq(peers, OWN_QPN))?;
    dialog.event(DISCONNECTED).map(drop)
}

/// A request whose reply is repeated after a short time.
fn impatient(dialog: &Dialog<'_>, retries: u8) -> CaseResult {
    let service = dialog.listen(false)?;
    let req = Req {
        local_response_timeout: CmTimeout::new(14),
        max_cm_retries: retries,
        ..dialog.req(service, b"rig")
    };
    dialog.send(CmMessage::Req(req))?;
    dialog.event(REQUEST)?;
    dialog.accept()
}

//= CM-ST-07 MAD-07 type=test
fn repeats_reply(bench: &Bench<'_>) -> CaseResult {
    let dialog = Dialog::new(bench)?;
    impatient(&dialog, 15)?;
    let first = dialog.receive_rep()?;
    equal(dialog.receive_rep()?, first.clone(), "the reply again")?;
    dialog.send(dialog.rtu(first.1.local_id))?;
    dialog.event(ESTABLISHED).map(drop)
}

//= CM-ST-07 type=test
fn gives_up(bench: &Bench<'_>) -> CaseResult {
    let dialog = Dialog::new(bench)?;
    impatient(&dialog, 2)?;
    let first = dialog.receive_rep()?;
    for _ in 0..2 {
        equal(dialog.receive_rep()?, first.clone(), "the reply again")?;
    }
    let event = dialog.event(UNREACHABLE)?;
    equal(event.status, -110, "status")?;
    dialog.send(dialog.rtu(first.1.local_id))?;
    dialog.no_event()
}

/// A queue pair can have only one connection, so a new one makes the peer's state of the first one
/// stale.
//= CM-ST-04 type=test
fn stale(bench: &Bench<'_>) -> CaseResult {
    let dialog = Dialog::new(bench)?;
    let peers = dialog.connected()?;
    let service = dialog.listen(false)?;
    let again = Req {
        local_id: CommId::new(dialog.id.get() ^ 0x0100_0000),
        ..dialog.req(service, b"rig")
    };
    let its_id = again.local_id;
    dialog.send(CmMessage::Req(again))?;
    let (mut is_rejected, mut is_ended) = (false, false);
    while !(is_rejected && is_ended) {
        match dialog.receive()?.1 {
            CmMessage::Rej(rej) => {
                let what = (rej.remote_id, rej.rejected, rej.reason.code());
                equal(what, (its_id, Rejected::Req, 10), "rejection")?;
                is_rejected = true;
            }
            CmMessage::Dreq(dreq) => {
                equal((dreq.local_id, dreq.remote_id), (peers, dialog.id), "IDs")?;
                // Without a DREP, the peer would repeat its DREQ.
                dialog.send(CmMessage::Drep(Drep {
                    local_id: dialog.id,
                    remote_id: peers,
                    private_data: [0; Drep::PRIVATE_LEN],
                }))?;
                is_ended = true;
            }
            other => return fail(format!("{other} instead of a REJ and a DREQ")),
        }
    }
    Ok(())
}

fn receive_dreq(dialog: &Dialog<'_>) -> CaseResult<(TransactionId, Dreq)> {
    match dialog.receive()? {
        (tid, CmMessage::Dreq(dreq)) => Ok((tid, dreq)),
        (_, other) => fail(format!("{other} instead of a DREQ")),
    }
}

//= CM-ST-03 type=test
fn both_disconnect(bench: &Bench<'_>) -> CaseResult {
    let dialog = Dialog::new(bench)?;
    let peers = dialog.connected()?;
    dialog.done(dialog.manager.disconnect())?;
    let (_, dreq) = receive_dreq(&dialog)?;
    equal((dreq.local_id, dreq.remote_id), (peers, dialog.id), "IDs")?;
    // The two DREQs cross, and the owner sends the DREP.
    dialog.send(dialog.dreq(peers, OWN_QPN))?;
    dialog.event(DISCONNECTED)?;
    dialog.done(dialog.manager.disconnect())?;
    match dialog.receive()?.1 {
        CmMessage::Drep(drep) => equal((drep.local_id, drep.remote_id), (peers, dialog.id), "IDs"),
        other => fail(format!("{other} instead of a DREP")),
    }
}

fn new_manager(bench: &Bench<'_>) -> CaseResult<Box<dyn PeerManager>> {
    let manager = bench.peer().manager();
    manager.map_err(|unable| CaseError::Skipped(unable.to_string()))
}

//= CM-ST-10 type=test
fn destroyed_asked(bench: &Bench<'_>) -> CaseResult {
    let mut dialog = Dialog::new(bench)?;
    dialog.ask(dialog.listen(false)?)?;
    dialog.event(REQUEST)?;
    dialog.manager = new_manager(bench)?;
    dialog
        .receive_rej(Rejected::Req, RejReason::Consumer)
        .map(drop)
}

//= CM-ST-10 type=test
fn destroyed_connected(bench: &Bench<'_>) -> CaseResult {
    let mut dialog = Dialog::new(bench)?;
    let peers = dialog.connected()?;
    dialog.manager = new_manager(bench)?;
    let (_, dreq) = receive_dreq(&dialog)?;
    equal(
        (dreq.local_id, dreq.remote_id, dreq.remote_qpn),
        (peers, dialog.id, dialog.qpn),
        "connection",
    )?;
    dialog.send(CmMessage::Drep(Drep {
        local_id: dialog.id,
        remote_id: peers,
        private_data: [0; Drep::PRIVATE_LEN],
    }))
}

//= CM-ST-07 CM-ST-10 type=test
fn destroyed_asking(bench: &Bench<'_>) -> CaseResult {
    let mut dialog = Dialog::new(bench)?;
    let (tid, req) = dialog.asked()?;
    dialog.manager = new_manager(bench)?;
    match dialog.receive()? {
        (told, CmMessage::Rej(rej)) => {
            equal(told, tid, "transaction")?;
            let ids = (rej.local_id, rej.remote_id);
            equal(ids, (req.local_id, CommId::new(0)), "IDs")?;
            equal(rej.reason, RejReason::Timeout, "reason")?;
            equal(rej.info_len, 8, "length of the information")?;
            equal(rej.timeout_guid(), Some(req.ca_guid), "GUID")
        }
        (_, other) => fail(format!("{other} instead of a REJ")),
    }
}

//= CM-ST-01 type=test
fn asks(bench: &Bench<'_>) -> CaseResult {
    let dialog = Dialog::new(bench)?;
    let (tid, req) = dialog.asked()?;
    //= CMA-01 type=test
    equal(req.service_id, ServiceId::new(0x0106_1d2f), "service")?;
    equal((req.transport, req.qpn), (TransportType::Rc, OWN_QPN), "QP")?;
    //= CMA-02 type=test
    match IpCmHeader::parse(&req.private_data) {
        Ok(header) => equal(
            (header.src, header.dst),
            (bench.peer().address(), bench.rig().local()),
            "addresses of the header",
        )?,
        Err(error) => return fail(error.to_string()),
    }
    let text = &req.private_data[IpCmHeader::LEN..][..5];
    equal(text, b"peer\0", "private data")?;
    let gids = (req.primary.local_gid, req.primary.remote_gid);
    let own = Gid::from_ip(bench.peer().address());
    equal(gids, (own, Gid::from_ip(bench.rig().local())), "path")?;
    dialog.answer(tid, dialog.rep(req.local_id))?;
    let event = dialog.event(RESPONSE)?;
    equal(event.private_data.len(), 196, "length of the private data")?;
    equal(&event.private_data[..4], b"rig\0", "private data")?;
    dialog.done(dialog.manager.establish())?;
    dialog.receive_rtu(tid, req.local_id)
}

//= CM-ST-05 type=test
fn repeated_reply(bench: &Bench<'_>) -> CaseResult {
    let dialog = Dialog::new(bench)?;
    let (tid, req) = dialog.asked()?;
    let rep = dialog.rep(req.local_id);
    dialog.answer(tid, rep.clone())?;
    dialog.event(RESPONSE)?;
    // The REP is repeated before the owner is ready, so the manager sends an MRA.
    dialog.answer(tid, rep.clone())?;
    match dialog.receive()?.1 {
        CmMessage::Mra(mra) => equal(mra.received, Rejected::Rep, "what was received")?,
        other => return fail(format!("{other} instead of an MRA")),
    }
    dialog.done(dialog.manager.establish())?;
    dialog.receive_rtu(tid, req.local_id)?;
    // A repeated REP shows that the RTU was lost.
    dialog.answer(tid, rep)?;
    dialog.receive_rtu(tid, req.local_id)?;
    dialog.no_event()
}

//= CM-ST-09 type=test
fn told_to_wait(bench: &Bench<'_>) -> CaseResult {
    let dialog = Dialog::new(bench)?;
    let (tid, req) = dialog.asked()?;
    dialog.answer(
        tid,
        CmMessage::Mra(Mra {
            local_id: dialog.id,
            remote_id: req.local_id,
            received: Rejected::Req,
            service_timeout: CmTimeout::new(20),
            private_data: [0; Mra::PRIVATE_LEN],
        }),
    )?;
    dialog.no_event()?;
    dialog.answer(
        tid,
        dialog.rej(req.local_id, Rejected::Req, RejReason::from_code(26)),
    )?;
    let event = dialog.event(REJECTED)?;
    equal(event.status, 26, "status")
}

//= CM-ST-03 type=test
fn disconnects(bench: &Bench<'_>) -> CaseResult {
    let dialog = Dialog::new(bench)?;
    let (tid, req) = dialog.asked()?;
    dialog.answer(tid, dialog.rep(req.local_id))?;
    dialog.event(RESPONSE)?;
    dialog.done(dialog.manager.establish())?;
    dialog.receive_rtu(tid, req.local_id)?;
    dialog.done(dialog.manager.disconnect())?;
    let (tid, dreq) = match dialog.receive()? {
        (tid, CmMessage::Dreq(dreq)) => (tid, dreq),
        (_, other) => return fail(format!("{other} instead of a DREQ")),
    };
    equal(
        (dreq.local_id, dreq.remote_id, dreq.remote_qpn),
        (req.local_id, dialog.id, dialog.qpn),
        "connection",
    )?;
    dialog.no_event()?;
    dialog.answer(
        tid,
        CmMessage::Drep(Drep {
            local_id: dialog.id,
            remote_id: dreq.local_id,
            private_data: [0; Drep::PRIVATE_LEN],
        }),
    )?;
    dialog.event(DISCONNECTED).map(drop)
}
