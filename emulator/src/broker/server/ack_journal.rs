//! Processes the ACK journal of a client that is gone.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rocade_wire::icrc::IcrcFlow;
use rocade_wire::{Aeth, Bth, Syndrome};

use super::connections::Client;
use crate::journal::{AckDestination, PendingAck, read_acks};
use crate::link::sys::{SendOptions, send};
use crate::link::{LocalAddr, socket};

/// A client's ACK journal, and its process.
pub(super) struct RegisteredJournal {
    journal: OwnedFd,
    /// Readable when the process has ended, even if a child holds the connection. `None` if the
    /// system has no pidfds.
    process: Option<OwnedFd>,
}

impl RegisteredJournal {
    pub(super) const fn new(journal: OwnedFd, process: Option<OwnedFd>) -> Self {
        Self { journal, process }
    }

    /// Returns the journal's memory file.
    pub(super) const fn journal(&self) -> &OwnedFd {
        &self.journal
    }

    /// Returns the descriptor to poll.
    pub(super) fn process(&self) -> Option<BorrowedFd<'_>> {
        self.process.as_ref().map(AsFd::as_fd)
    }
}

impl Client {
    /// Sends the ACKs that a terminated client left pending. Returns the journal unless it was
    /// processed before, because a live process may still use the connections in it.
    pub(super) fn send_pending_acks(&mut self) -> Option<OwnedFd> {
        let registered_journal = self.registered_journal.take()?;
        for (destination, ack) in read_acks(&registered_journal.journal) {
            let pid = self.peer.pid;
            match send_ack(&destination, ack) {
                Ok(()) => tracing::info!(pid, ?destination, ?ack, "sent a pending ACK"),
                Err(error) => {
                    tracing::warn!(pid, %error, ?destination, "failed to send pending ACK")
                }
            }
        }
        Some(registered_journal.journal)
    }
}

/// Sends one ACK, from a new socket.
fn send_ack(destination: &AckDestination, ack: PendingAck) -> io::Result<()> {
    let AckDestination {
        local,
        peer,
        traffic_class,
        ..
    } = *destination;
    let to = local.peer(peer).ok_or(io::ErrorKind::InvalidInput)?;
    let socket = socket::open_send(local, 0, None)?;
    let port = socket::port_of(&socket)?;
    let packet =
        acknowledgement(destination, ack, local, port).ok_or(io::ErrorKind::InvalidInput)?;
    let options = SendOptions {
        tos: (traffic_class != 0).then_some(traffic_class),
        hop_limit: None,
        segment_len: None,
    };
    send(socket.as_fd(), &to, &packet, options).map(drop)
}

/// Builds the ACK packet like the transport would.
//= RC-ACK-07
fn acknowledgement(
    destination: &AckDestination,
    ack: PendingAck,
    local: LocalAddr,
    source_port: u16,
) -> Option<Vec<u8>> {
    let bth = Bth {
        //= BTH-03 RC-APM-02
        migreq: ack.migreq,
        pkey: destination.pkey,
        ..Bth::new(destination.opcode, destination.dest_qp, ack.psn)
    };
    let aeth = Aeth {
        //= RC-CRD-01
        syndrome: Syndrome::Ack(ack.credits),
        msn: ack.msn,
    };
    let mut packet = [&bth.to_bytes()[..], &aeth.to_bytes()[..]].concat();
    let flow = IcrcFlow::new(local.ip(), destination.peer, source_port)?;
    packet.extend(flow.compute(0, &packet).to_le_bytes());
    Some(packet)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use rocade_wire::{CreditCode, Msn, Opcode, Packet, Pkey, Psn, Qpn};

    use super::*;

    //= RC-APM-02 RC-CRD-01 type=test
    #[test]
    fn an_acknowledgement_is_a_whole_packet() {
        let destination = AckDestination {
            local: LocalAddr::new("127.0.0.2".parse().unwrap(), 0),
            peer: "127.0.0.3".parse().unwrap(),
            dest_qp: Qpn::new(0x12_3456),
            opcode: Opcode::new(0xb1),
            pkey: Pkey::DEFAULT,
            traffic_class: 0,
        };
        let ack = PendingAck {
            psn: Psn::new(77),
            msn: Msn::new(3),
            credits: CreditCode::new(9).unwrap(),
            migreq: false,
        };
        let bytes = acknowledgement(&destination, ack, destination.local, 50_000).unwrap();
        let packet = Packet::parse(&bytes).unwrap();
        assert_eq!(packet.bth().dest_qp, destination.dest_qp);
        assert_eq!(packet.bth().psn, ack.psn);
        assert_eq!(packet.bth().opcode, destination.opcode);
        assert!(!packet.bth().migreq);
        let aeth = packet.headers().aeth.unwrap();
        assert_eq!(aeth.msn, ack.msn);
        assert_eq!(aeth.syndrome, Syndrome::Ack(ack.credits));
        let flow = IcrcFlow::new(destination.local.ip(), destination.peer, 50_000).unwrap();
        let crc = flow.compute(0, packet.covered());
        assert_eq!(packet.icrc_bytes(), crc.to_le_bytes());
    }
}
