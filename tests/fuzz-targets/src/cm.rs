//! A connection manager that receives arbitrary messages, while its owner issues arbitrary
//! commands.

use rocade_transport::Time;
use rocade_transport::cm::{Cm, CmConfig, CmEvent, CmRoute, refusal};
use rocade_wire::Guid;
use rocade_wire::mad::{CmMessage, CommId, Mad, RejReason, Rep, ServiceId, SidrStatus};

const SERVICE: u64 = 0x0106_1d2f;
/// The number of connections that the owner remembers.
const KNOWN: usize = 16;

/// Runs one input.
pub fn run(input: &[u8]) {
    let mut cm = Cm::new(CmConfig {
        guid: Guid::new(7),
        prefix: 3,
        seed: 0,
    });
    cm.listen(ServiceId::new(SERVICE));
    let mut now = Time::from_ns(1);
    let mut known: Vec<CommId> = Vec::new();
    let mut rest = input;
    while let Some((&[command, which, ..], _)) = rest.split_first_chunk::<2>() {
        rest = &rest[2..];
        let id = known.get(usize::from(which) % KNOWN).copied();
        match command % 12 {
            0 => now = now.plus_ns(u64::from(which) << 26),
            1..=4 => {
                let len = rest.len().min(usize::from(which));
                let (fields, after) = rest.split_at(len);
                rest = after;
                receive(&mut cm, now, command, id, fields);
            }
            5 => {
                if let Some(id) = id {
                    let _ = cm.reply(now, id, plain_rep());
                }
            }
            6 => drop(id.map(|id| cm.ready(now, id, &[]))),
            7 => drop(id.map(|id| cm.disconnect(now, id, &[]))),
            8 => drop(id.map(|id| cm.reply_to_disconnect(now, id, &[]))),
            9 => drop(id.map(|id| cm.reject(now, id, RejReason::Consumer, &[], &[]))),
            10 => drop(id.map(|id| cm.reply_service(now, id, refusal(SidrStatus::NoQp)))),
            _ => drop(id.map(|id| cm.destroy(now, id))),
        }
        if cm.next_timeout().is_some_and(|at| at <= now) {
            cm.handle_timeout(now);
        }
        while let Some(event) = cm.poll_event() {
            if let CmEvent::Request { id, .. } | CmEvent::ServiceRequest { id, .. } = event {
                known.insert(0, id);
                known.truncate(KNOWN);
            }
        }
        while let Some(sent) = cm.poll_transmit() {
            assert!(Mad::parse(&sent.mad[..]).is_ok(), "a sent MAD parses");
        }
    }
    // All state machines must end.
    let far = now.plus_ns(1 << 62);
    for id in known {
        cm.destroy(now, id);
    }
    for _ in 0..20_000 {
        let Some(at) = cm.next_timeout().filter(|at| *at < far) else {
            break;
        };
        cm.handle_timeout(at);
        while cm.poll_transmit().is_some() || cm.poll_event().is_some() {}
    }
}

/// Returns a REP whose fields are 0.
fn plain_rep() -> Rep {
    let mut mad = [0; Mad::LEN];
    mad[..4].copy_from_slice(&[1, 7, 2, 3]);
    mad[17] = 0x13;
    match Mad::parse(&mad).map(|mad| mad.message) {
        Ok(CmMessage::Rep(rep)) => rep,
        other => panic!("{other:?}"),
    }
}

/// Delivers a message with these bytes as fields. `command` selects the message, and `id` the
/// connection.
fn receive(cm: &mut Cm, now: Time, command: u8, id: Option<CommId>, fields: &[u8]) {
    let mut mad = [0; Mad::LEN];
    mad[..4].copy_from_slice(&[1, 7, 2, 3]);
    mad[17] = 0x10 + command / 12 % 12;
    mad[32..40].copy_from_slice(&SERVICE.to_be_bytes());
    let len = fields.len().min(Mad::DATA_LEN);
    mad[24..24 + len].copy_from_slice(&fields[..len]);
    if let Some(id) = id {
        mad[28..32].copy_from_slice(&id.get().to_be_bytes());
    }
    if mad[17] == 0x10 {
        mad[32..40].copy_from_slice(&SERVICE.to_be_bytes());
    }
    let route = CmRoute {
        local: [10, 0, 0, 1].into(),
        remote: [10, 0, 0, 2].into(),
    };
    cm.handle_mad(now, route, &mad);
}
