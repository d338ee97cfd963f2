//! Checks that apply to every packet of a conforming device.

use rocade_wire::{Bth, Operation, Packet, Pkey, RocadeProbe, Service};

/// Checks the fields that do not depend on the state of the connection. The error names the rule.
/// `service` is that of the connection.
pub(super) fn check(packet: &Packet<'_>, service: Service) -> Result<(), String> {
    let bth = packet.bth();
    let Some(operation) = bth.opcode.operation() else {
        return Err(format!("OPC-36: sent the reserved {}", bth.opcode));
    };
    if bth.opcode.service() != service && !is_own(operation) && !is_probe(packet) {
        let sent = bth.opcode;
        return Err(format!(
            "BTH-15: sent {sent} on a queue pair of {service:?}"
        ));
    }
    let pad = Bth::pad_for(packet.payload().len());
    let ends_message = operation.is_last() || operation.is_only();
    let may_solicit = ends_message && (operation.is_send() || operation.has_imm());
    let rules = [
        (
            bth.pad_count == pad,
            "BTH-04: the pad is not (-length) mod 4",
        ),
        (
            packet.pad().iter().all(|&b| b == 0),
            "ICRC-10: the pad is not zero",
        ),
        (
            bth.pkey == Pkey::DEFAULT,
            "RC-ACK-07: not the default P_Key",
        ),
        (
            !bth.fecn && !bth.becn,
            "BTH-07, BTH-08: FECN or BECN is set",
        ),
        (bth.resv6 == 0, "BTH-09: reserved bits are not zero"),
        (bth.resv7 == 0, "BTH-12: reserved bits are not zero"),
        (
            !bth.solicited || may_solicit,
            "BTH-02: SE where no event can be solicited",
        ),
        (
            !(bth.ack_req && operation.is_response()),
            "RC-ACK-07: AckReq in a response",
        ),
        (
            payload_fits(operation, packet.payload().len()),
            "section 3: payload of this operation",
        ),
    ];
    match rules.iter().find(|(holds, _)| !holds) {
        Some((_, rule)) => Err(format!("{rule}, in {packet}")),
        None => Ok(()),
    }
}

/// Returns true for an operation of Rocade's own, which belongs to no service.
fn is_own(operation: Operation) -> bool {
    matches!(
        operation,
        Operation::WideAtomicAcknowledge | Operation::MaskedCmpSwap | Operation::MaskedFetchAdd
    )
}

/// Returns true for the datagram that Rocade sends to find out whether the other side is Rocade.
fn is_probe(packet: &Packet<'_>) -> bool {
    let qkey = packet.headers().deth.map(|deth| deth.qkey.get());
    packet.bth().opcode.operation() == Some(Operation::SendOnly)
        && qkey == Some(RocadeProbe::QKEY)
        && RocadeProbe::from_payload(packet.payload()).is_some()
}

/// Returns true if some path MTU allows this length.
fn payload_fits(operation: Operation, len: usize) -> bool {
    (8..=12).any(|power| operation.payload_rule().allows(len, 1 << power))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(edit: impl FnOnce(&mut [u8])) -> Result<(), String> {
        // ACKNOWLEDGE, default P_Key, AETH and ICRC.
        let mut bytes = [0; 20];
        bytes[0] = 0x11;
        bytes[2] = 0xff;
        bytes[3] = 0xff;
        edit(&mut bytes);
        check(&Packet::parse(&bytes).unwrap(), Service::Rc)
    }

    #[test]
    fn a_clean_packet_passes() {
        assert_eq!(verdict(|_| {}), Ok(()));
    }

    #[test]
    fn each_rule_is_checked() {
        for (at, value, rule) in [
            (0, 0x15, "OPC-36"),
            (0, 0xa4, "BTH-15"),
            (1, 0x80, "BTH-02"),
            (3, 0x01, "RC-ACK-07"),
            (4, 0x80, "BTH-07"),
            (4, 0x01, "BTH-09"),
            (8, 0x80, "RC-ACK-07"),
            (8, 0x01, "BTH-12"),
        ] {
            let error = verdict(|bytes| bytes[at] = value).unwrap_err();
            assert!(error.starts_with(rule), "{error}");
        }
    }
}
