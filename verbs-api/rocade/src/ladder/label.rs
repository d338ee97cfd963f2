//! Labels of packets: the operation, or the message of the connection manager.

use std::fmt::Write as _;

use rocade_wire::mad::{ApStatus, CmMessage, Rejected, ServiceId, SidrStatus};
use rocade_wire::{Headers, NakCode, Operation, Syndrome};

use super::read::Seen;

/// Returns the label at the arrow of a packet.
pub(super) fn label(seen: &Seen) -> String {
    match &seen.message {
        Some(message) => message_label(message),
        None => packet_label(&seen.headers, seen.payload_len),
    }
}

/// Returns the first words of a label. Packets with equal names may share an arrow.
pub(super) fn name(seen: &Seen) -> String {
    match &seen.message {
        Some(message) => message_name(message).to_owned(),
        None => operation_name(&seen.headers),
    }
}

/// Returns true if a message of the connection manager is a reply.
pub(super) const fn is_reply(message: &CmMessage) -> bool {
    !matches!(
        message,
        CmMessage::Req(_)
            | CmMessage::Rtu(_)
            | CmMessage::Dreq(_)
            | CmMessage::SidrReq(_)
            | CmMessage::Lap(_)
    )
}

/// Returns true if a message of the connection manager is a rejection.
pub(super) fn is_refusal(message: &CmMessage) -> bool {
    match message {
        CmMessage::Rej(_) => true,
        CmMessage::SidrRep(m) => m.status != SidrStatus::Success,
        CmMessage::Apr(m) => m.status != ApStatus::Loaded,
        _ => false,
    }
}

fn operation_name(headers: &Headers) -> String {
    let name = headers.bth.opcode.name();
    let name = name.strip_prefix("RC ").unwrap_or(name);
    let name = name.strip_prefix("RDMA_").unwrap_or(name);
    let is_ack = headers.bth.opcode.operation() == Some(Operation::Acknowledge);
    match headers.aeth.map(|aeth| aeth.syndrome).filter(|_| is_ack) {
        Some(syndrome) => syndrome_words(syndrome),
        None => name.to_owned(),
    }
}

fn packet_label(headers: &Headers, payload_len: usize) -> String {
    let bth = &headers.bth;
    let mut text = operation_name(headers);
    // Writing to a string does not fail.
    let _ = write!(text, "  psn {}", bth.psn.get());
    if let Some(reth) = headers.reth {
        let _ = write!(text, "  of {} B", reth.dma_len);
    }
    if payload_len > 0 {
        let _ = write!(text, "  {payload_len} B");
    }
    if let Some(aeth) = headers.aeth {
        let _ = write!(text, "  msn {}", aeth.msn);
    }
    if let Some(imm) = headers.imm {
        let _ = write!(text, "  imm {:#x}", u32::from_be_bytes(imm.0));
    }
    if bth.ack_req && headers.reth.is_none_or(|_| payload_len > 0) && headers.atomic.is_none() {
        text.push_str("  wants ACK");
    }
    text
}

fn syndrome_words(syndrome: Syndrome) -> String {
    match syndrome {
        Syndrome::Ack(_) => "ACK".to_owned(),
        Syndrome::Nak(NakCode::PsnSequence) => "NAK: PSN sequence error".to_owned(),
        Syndrome::Nak(code) => {
            format!("NAK: {}", code.to_string().to_lowercase().replace('_', " "))
        }
        Syndrome::RnrNak(_) => "RNR NAK: no receive posted".to_owned(),
        other => other.to_string(),
    }
}

const fn message_name(message: &CmMessage) -> &'static str {
    match message {
        CmMessage::Req(_) => "REQ",
        CmMessage::Mra(_) => "MRA",
        CmMessage::Rej(_) => "REJ",
        CmMessage::Rep(_) => "REP",
        CmMessage::Rtu(_) => "RTU",
        CmMessage::Dreq(_) => "DREQ",
        CmMessage::Drep(_) => "DREP",
        CmMessage::SidrReq(_) => "SIDR_REQ",
        CmMessage::SidrRep(_) => "SIDR_REP",
        CmMessage::Lap(_) => "LAP",
        CmMessage::Apr(_) => "APR",
    }
}

fn message_label(message: &CmMessage) -> String {
    let name = message_name(message);
    match message {
        CmMessage::Req(m) => {
            let service = service_words(m.service_id);
            format!("{name}  {}  QP {}  {service}", m.transport, m.qpn)
        }
        CmMessage::Rep(m) => format!("{name}  QP {}", m.qpn),
        CmMessage::Mra(m) => format!(
            "{name} of {}  up to {} ms",
            subject(m.received, "LAP"),
            m.service_timeout.as_ns() / 1_000_000
        ),
        CmMessage::Rej(m) => {
            let subject = subject(m.rejected, "another message");
            format!("{name} of {subject}  reason {}", m.reason)
        }
        CmMessage::Dreq(m) => format!("{name}  QP {}", m.remote_qpn),
        CmMessage::SidrReq(m) => format!("{name}  {}", service_words(m.service_id)),
        CmMessage::SidrRep(m) if m.status == SidrStatus::Success => {
            format!("{name}  QP {}  Q_Key {}", m.qpn, m.qkey)
        }
        CmMessage::SidrRep(m) => format!("{name}  status {}", m.status),
        CmMessage::Apr(m) => format!("{name}  status {}", m.status),
        CmMessage::Rtu(_) | CmMessage::Drep(_) | CmMessage::Lap(_) => name.to_owned(),
    }
}

const fn subject(message: Rejected, third: &'static str) -> &'static str {
    match message {
        Rejected::Req => "REQ",
        Rejected::Rep => "REP",
        _ => third,
    }
}

/// Returns the port, if `rdma_cm` derived the service ID from one.
fn service_words(service: ServiceId) -> String {
    let port = service.get() & 0xffff;
    match service.get() >> 16 {
        0x0002 => format!("IPoIB port {port}"),
        0x0106 => format!("TCP port {port}"),
        0x0111 => format!("UDP port {port}"),
        0x013f => format!("IB port {port}"),
        _ => format!("service {service}"),
    }
}
