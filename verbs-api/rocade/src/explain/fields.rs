//! The findings of one packet: each field of its headers.

use rocade_wire::{CreditCode, Opcode, Operation, Pkey, Qpn, Service, Syndrome};

use super::messages;
use super::{Basis, Finding};
use crate::ladder::read::Seen;

use Basis::{Habit, Rule, Unknown};

/// The ECN bits of a traffic class.
const ECN: u8 = 3;
const ECT_0: u8 = 2;
const CE: u8 = 3;
/// Traffic class of notifications.
const CNP_TOS: u8 = 0xc2;

/// Returns what each field of a packet shows.
pub(super) fn findings(seen: &Seen) -> Vec<Finding> {
    let mut all = vec![icrc(seen)];
    let mut add = |basis, text: &str| all.push(Finding::new(basis, text));
    if seen.headers.bth.opcode == Opcode::CNP {
        notification(seen, &mut add);
    } else {
        ip(seen, &mut add);
        transport(seen, &mut add);
    }
    if seen.outside.vlan.is_some() {
        add(Rule("HW-10"), "802.1Q tag");
    }
    if seen.outside.udp_checksum == 0 {
        add(Rule("HW-02"), "no UDP checksum");
    } else {
        add(Habit, "UDP checksum");
    }
    operation(seen, &mut add);
    all.extend(acknowledgement(seen));
    if let Some(message) = &seen.message {
        messages::findings(message, &mut all);
    }
    all
}

fn icrc(seen: &Seen) -> Finding {
    if seen.bad_icrc {
        Finding::new(Unknown, "wrong ICRC")
    } else {
        Finding::new(Habit, "right ICRC, as the standard says")
    }
}

//= HW-05
fn notification(seen: &Seen, add: &mut impl FnMut(Basis, &str)) {
    let (bth, outside) = (&seen.headers.bth, &seen.outside);
    let is_as_known = bth.becn
        && !bth.fecn
        && !bth.migreq
        && !bth.ack_req
        && bth.psn.get() == 0
        && bth.pkey == Pkey::DEFAULT
        && seen.payload_len == 16;
    if is_as_known {
        add(
            Rule("HW-05"),
            "CNP with BECN, PSN 0 and 16 bytes, without MigReq",
        );
    } else {
        add(Unknown, "CNP with other fields than BECN");
    }
    match (outside.tos, outside.src_port) {
        (CNP_TOS, 0) => add(Rule("HW-05"), "CNP with TOS 0xc2 and source port 0"),
        (tos, port) => {
            let text = format!("CNP with TOS {tos:#04x} and source port {port:#06x}");
            add(Habit, &text);
        }
    }
}

//= HW-02
fn ip(seen: &Seen, add: &mut impl FnMut(Basis, &str)) {
    let outside = &seen.outside;
    match outside.tos & ECN {
        ECT_0 => add(Rule("HW-02"), "ECN-capable, ECT(0)"),
        0 => add(Habit, "not ECN-capable, as rxe and Rocade"),
        CE => add(Habit, "marked by the network, CE"),
        _ => add(Unknown, "ECT(1)"),
    }
    if outside.tos >> 2 != 0 {
        add(Habit, &format!("DSCP {}", outside.tos >> 2));
    }
    match outside.ttl {
        64 => add(Rule("HW-02"), "TTL 64"),
        ttl => add(Habit, &format!("TTL {ttl}, perhaps behind routers")),
    }
    if outside.dont_fragment {
        add(Rule("HW-02"), "DF");
    } else {
        add(Unknown, "no DF");
    }
}

fn transport(seen: &Seen, add: &mut impl FnMut(Basis, &str)) {
    let bth = &seen.headers.bth;
    //= HW-01
    if bth.migreq {
        add(Rule("HW-01"), "MigReq 1");
    } else {
        add(Habit, "MigReq 0, as rxe, or with path migration armed");
    }
    //= HW-02
    if bth.pkey == Pkey::DEFAULT {
        add(Rule("HW-02"), "P_Key 0xffff");
    } else {
        add(Habit, &format!("P_Key {:#06x}", bth.pkey.get()));
    }
    //= HW-06
    match (
        bth.resv6,
        bth.opcode.operation().is_some_and(Operation::is_request),
    ) {
        (0, _) => {}
        (0x10, true) => add(Rule("HW-06"), "reserved bit 0x10 of a request"),
        (bits, _) => add(
            Unknown,
            &format!("reserved bits {bits:#04x} after the P_Key"),
        ),
    }
    if bth.resv7 != 0 {
        add(
            Unknown,
            &format!("reserved bits {:#04x} beside AckReq", bth.resv7),
        );
    }
    if bth.fecn || bth.becn {
        add(Unknown, "FECN or BECN outside of a CNP");
    }
    if bth.tver != 0 {
        add(Unknown, &format!("transport version {}", bth.tver));
    }
    if !seen.outside.pad_is_zero {
        add(Unknown, "a pad that is not zero");
    }
}

fn operation(seen: &Seen, add: &mut impl FnMut(Basis, &str)) {
    let bth = &seen.headers.bth;
    let Some(operation) = bth.opcode.operation() else {
        add(Unknown, &format!("opcode {:#04x}", bth.opcode.get()));
        return;
    };
    let fits = (8..=12).any(|power| {
        let rule = operation.payload_rule();
        rule.allows(seen.payload_len, 1 << power)
    });
    if !fits {
        let len = seen.payload_len;
        add(Unknown, &format!("{} with {len} bytes", bth.opcode));
    }
    match (bth.opcode.service(), operation) {
        //= HW-11
        (Service::Rc, Operation::MaskedCmpSwap) => {
            add(
                Rule("HW-11"),
                "masked compare-and-swap of 8 bytes, opcode 0x18",
            );
            match seen.outside.masks {
                Some([swap, compare]) if swap == compare => {
                    add(
                        Rule("HW-11"),
                        "two equal masks, which leave their order open",
                    );
                }
                Some([first, second]) => {
                    let masks = format!("{first:#x} and {second:#x}");
                    add(
                        Unknown,
                        &format!("masks that differ: {masks}, please report them"),
                    );
                }
                None => add(
                    Unknown,
                    "masked compare-and-swap without 32 bytes of operands",
                ),
            }
        }
        //= HW-12
        (Service::Rc, Operation::MaskedFetchAdd) => {
            add(Unknown, "opcode 0x19, perhaps HW-12: please report it");
        }
        (Service::Dc | Service::Manufacturer, _) => {
            add(Habit, &format!("{}, which only Rocade sends", bth.opcode));
        }
        _ => {}
    }
    if bth.dest_qp == Qpn::GSI && seen.message.is_none() {
        add(
            Unknown,
            "datagram to QP 1 that is no message of the connection manager",
        );
    }
}

//= HW-04
fn acknowledgement(seen: &Seen) -> Option<Finding> {
    let operation = seen.headers.bth.opcode.operation()?;
    Some(match seen.headers.aeth?.syndrome {
        Syndrome::Ack(code) if code == CreditCode::INVALID => Finding::new(
            Habit,
            "credits without a limit, as rxe, or for a shared receive queue",
        ),
        Syndrome::Ack(code) if operation == Operation::Acknowledge => Finding::new(
            Rule("HW-04"),
            format!("ACK with credit code {}", code.code()),
        ),
        Syndrome::Ack(code) => {
            let text = format!("READ or atomic response with credit code {}", code.code());
            Finding::new(Rule("HW-04"), text)
        }
        Syndrome::Reserved(code) => {
            Finding::new(Unknown, format!("reserved AETH syndrome {code:#04x}"))
        }
        nak => Finding::new(Habit, format!("{nak}, as the standard says")),
    })
}
