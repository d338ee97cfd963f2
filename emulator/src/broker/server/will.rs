//! Processes the ACK journal of a client that is gone.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rocade_wire::icrc::IcrcFlow;
use rocade_wire::{Aeth, Bth, Syndrome};

use super::super::sys;
use super::super::will::{self, Creditor, Debt};
use super::connections::Client;
use crate::link::sys::{SendOptions, send};
use crate::link::{LocalAddr, socket};

/// A client's ACK journal, and its process.
pub(super) struct Deposit {
    will: OwnedFd,
    /// A pidfd. Readable when the process has ended, even if a child holds the connection. `None`
    /// if the system has no pidfds.
    process: Option<OwnedFd>,
}

impl Deposit {
    pub(super) fn new(will: OwnedFd, pid: u32) -> Self {
        let process = sys::open_process(pid)
            .inspect_err(|error| tracing::debug!(%error, pid, "failed to watch a client's process"))
            .ok();
        Self { will, process }
    }

    /// Returns the journal's memory file.
    pub(super) const fn will(&self) -> &OwnedFd {
        &self.will
    }

    /// Returns the pidfd to poll.
    pub(super) fn process(&self) -> Option<BorrowedFd<'_>> {
        self.process.as_ref().map(AsFd::as_fd)
    }
}

impl Client {
    /// Sends the ACKs that a terminated client left pending. Returns the journal unless it was
    /// processed before, because a live process may still use the connections in it.
    pub(super) fn carry_out_will(&mut self) -> Option<OwnedFd> {
        let deposit = self.deposit.take()?;
        for (creditor, debt) in will::read(&deposit.will) {
            let pid = self.peer.pid;
            match pay(&creditor, debt) {
                Ok(()) => tracing::info!(pid, ?creditor, ?debt, "sent a pending ACK"),
                Err(error) => tracing::warn!(pid, %error, ?creditor, "failed to send pending ACK"),
            }
        }
        Some(deposit.will)
    }
}

/// Sends one ACK, from a new socket.
fn pay(creditor: &Creditor, debt: Debt) -> io::Result<()> {
    let Creditor {
        local,
        peer,
        traffic_class,
        ..
    } = *creditor;
    let to = local.peer(peer).ok_or(io::ErrorKind::InvalidInput)?;
    let socket = socket::open_send(local, 0, None)?;
    let source = socket.local_addr()?.as_socket();
    let port = source.ok_or(io::ErrorKind::InvalidInput)?.port();
    let packet = acknowledgement(creditor, debt, local, port).ok_or(io::ErrorKind::InvalidInput)?;
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
    creditor: &Creditor,
    debt: Debt,
    local: LocalAddr,
    source_port: u16,
) -> Option<Vec<u8>> {
    let bth = Bth {
        //= BTH-03 RC-APM-02
        migreq: debt.migreq,
        pkey: creditor.pkey,
        ..Bth::new(creditor.opcode, creditor.dest_qp, debt.psn)
    };
    let aeth = Aeth {
        //= RC-CRD-01
        syndrome: Syndrome::Ack(debt.credits),
        msn: debt.msn,
    };
    let mut packet = [&bth.to_bytes()[..], &aeth.to_bytes()[..]].concat();
    let flow = IcrcFlow::new(local.ip(), creditor.peer, source_port)?;
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
        let creditor = Creditor {
            local: LocalAddr::new("127.0.0.2".parse().unwrap(), 0),
            peer: "127.0.0.3".parse().unwrap(),
            dest_qp: Qpn::new(0x12_3456),
            opcode: Opcode::new(0xb1),
            pkey: Pkey::DEFAULT,
            traffic_class: 0,
        };
        let debt = Debt {
            psn: Psn::new(77),
            msn: Msn::new(3),
            credits: CreditCode::new(9).unwrap(),
            migreq: false,
        };
        let bytes = acknowledgement(&creditor, debt, creditor.local, 50_000).unwrap();
        let packet = Packet::parse(&bytes).unwrap();
        assert_eq!(packet.bth().dest_qp, creditor.dest_qp);
        assert_eq!(packet.bth().psn, debt.psn);
        assert_eq!(packet.bth().opcode, creditor.opcode);
        assert!(!packet.bth().migreq);
        let aeth = packet.headers().aeth.unwrap();
        assert_eq!(aeth.msn, debt.msn);
        assert_eq!(aeth.syndrome, Syndrome::Ack(debt.credits));
        let flow = IcrcFlow::new(creditor.local.ip(), creditor.peer, 50_000).unwrap();
        let crc = flow.compute(0, packet.covered());
        assert_eq!(packet.icrc_bytes(), crc.to_le_bytes());
    }
}
