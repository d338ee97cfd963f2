//! The findings of a message of the connection manager.

use rocade_wire::mad::{CmMessage, CmPath, Rep, Req};

use super::{Basis, Finding};

use Basis::{Habit, Rule};

const RULE: Basis = Rule("HW-09");

/// Adds what the fields of a REQ or REP show.
//= HW-09
pub(super) fn findings(message: &CmMessage, all: &mut Vec<Finding>) {
    all.push(Finding::new(
        RULE,
        "message of the connection manager, 256 bytes",
    ));
    match message {
        CmMessage::Req(req) => request(req, all),
        CmMessage::Rep(rep) => reply(rep, all),
        _ => {}
    }
}

/// Adds a field that has one of the values of the rule, or another one, which is a habit of the
/// sender or the choice of its program.
fn field(all: &mut Vec<Finding>, name: &str, value: impl Into<u64>, known: &[u64]) {
    let value = value.into();
    let basis = if known.contains(&value) { RULE } else { Habit };
    all.push(Finding::new(basis, format!("{name} {value}")));
}

fn request(req: &Req, all: &mut Vec<Finding>) {
    let CmPath {
        local_lid,
        remote_lid,
        packet_rate,
        hop_limit,
        ack_timeout,
        ..
    } = req.primary;
    field(
        all,
        "REQ: responder resources",
        req.responder_resources,
        &[16],
    );
    field(all, "REQ: initiator depth", req.initiator_depth, &[16]);
    field(all, "REQ: max CM retries", req.max_cm_retries, &[15]);
    field(all, "REQ: hop limit", hop_limit, &[64]);
    field(all, "REQ: local LID", local_lid, &[0xffff]);
    field(all, "REQ: remote LID", remote_lid, &[0xffff]);
    field(all, "REQ: packet rate", packet_rate, &[0, 7]);
    field(all, "REQ: local ACK timeout", ack_timeout.code(), &[18, 19]);
    field(
        all,
        "REQ: end-to-end flow control",
        u8::from(req.flow_control),
        &[0],
    );
}

fn reply(rep: &Rep, all: &mut Vec<Finding>) {
    field(
        all,
        "REP: responder resources",
        rep.responder_resources,
        &[16],
    );
    field(all, "REP: initiator depth", rep.initiator_depth, &[16]);
    field(
        all,
        "REP: target ACK delay",
        rep.target_ack_delay.code(),
        &[16],
    );
    field(
        all,
        "REP: end-to-end flow control",
        u8::from(rep.flow_control),
        &[0],
    );
}
