//! The life of a simulated process: what it does with its client of the broker.

use std::os::fd::AsFd;
use std::sync::Arc;

use rocade_transport::cm::{CmRoute, ConnRecord, ConnRecordKind};
use rocade_wire::mad::CommId;
use rocade_wire::{CreditCode, Msn, Opcode, Pkey, Psn, Qpn};

use super::super::simulated::brokers::address_of;
use super::super::simulated::host::Host;
use super::super::{BrokerClient, BrokerError};
use super::links::Links;
use super::process::{self, Notes, Outcome, domain, peer_address};
use super::step::Call;
use crate::journal::{AckDestination, ConnectionJournal, PendingAck};
use crate::link::{LocalAddr, socket};

/// The acknowledgement of an RC queue pair.
pub(super) const ACKNOWLEDGE: Opcode = Opcode::new(0x11);

/// State of a process, beside its client.
pub(super) struct Life {
    number: u32,
    host: Arc<Host>,
    notes: Arc<Notes>,
    connections: Option<ConnectionJournal>,
    /// The targets that it has open, by domain.
    own_targets: Vec<(u8, Qpn)>,
    links: Links,
}

impl Life {
    pub(super) fn new(number: u32, host: &Arc<Host>, notes: &Arc<Notes>) -> Self {
        Self {
            number,
            host: Arc::clone(host),
            notes: Arc::clone(notes),
            connections: None,
            own_targets: Vec::new(),
            links: Links::default(),
        }
    }

    /// Performs a call.
    pub(super) fn perform(
        &mut self,
        client: &BrokerClient,
        call: Call,
    ) -> Result<Outcome, BrokerError> {
        match call {
            Call::Open(address) => {
                self.open(client, address_of(address))?;
                self.links.enable(client)?;
                let users = self.notes.users.lock().clone();
                self.links.ask(client, address, &users)?;
            }
            Call::NewTarget(name) => self.new_target(client, name)?,
            Call::OpenTarget(name) => self.open_target(client, name)?,
            Call::CloseTarget(name) => {
                if let Some(at) = self.own_targets.iter().position(|(of, _)| *of == name) {
                    let (_, qpn) = self.own_targets.remove(at);
                    client.close_target(domain(name), qpn)?;
                }
            }
            Call::Talk(address) => self.talk(client, address_of(address)),
            Call::Link(number) => {
                let users = self.notes.users.lock().clone();
                self.links.ask(client, number, &users)?;
            }
            Call::ReportLinks => {
                // Another call may have received some.
                self.links.take_offers(client);
                self.notes.links.lock().extend(self.links.report());
            }
            Call::Service => {
                let outcome = process::perform(client, call, &mut 0)?;
                self.links.take_offers(client);
                return Ok(outcome);
            }
            Call::ShareTarget(name) => {
                self.open(client, address_of(name))?;
                process::perform(client, Call::OpenDomain(name), &mut 0)?;
                self.new_target(client, name)?;
            }
            Call::JoinTarget(name) => {
                self.open(client, address_of(name))?;
                self.open_target(client, name)?;
            }
            Call::OpenAndTalk(address) => {
                self.open(client, address_of(address))?;
                self.talk(client, address_of(address));
            }
            Call::CloseDomain(name) => {
                self.own_targets.retain(|(of, _)| *of != name);
                return process::perform(client, call, &mut 0);
            }
            _ => return process::perform(client, call, &mut 0),
        }
        Ok(Outcome::Done)
    }

    /// Opens an address. Its socket has to be empty, because packets before were for others.
    fn open(&self, client: &BrokerClient, local: LocalAddr) -> Result<(), BrokerError> {
        let is_new = !client.view().sockets.contains_key(&local);
        let socket = client.socket_for(local)?;
        let stale = is_new && socket::discard_received(socket.fd.as_fd()) > 0;
        if stale {
            let complaint = format!("{} gets a socket with packets of others", client.slot());
            self.notes.complaints.lock().push(complaint);
        }
        Ok(())
    }

    fn new_target(&mut self, client: &BrokerClient, name: u8) -> Result<(), BrokerError> {
        if !client.view().domains.contains_key(&domain(name)) {
            return Ok(());
        }
        let number = self.host.number() & 0xffff;
        let qpn = Qpn::new(u32::from(client.slot().get()) << 16 | number);
        let created = (domain(name), self.number);
        self.notes.targets.lock().insert(qpn.get(), created);
        if client.new_target(domain(name), qpn)? {
            self.own_targets.push((name, qpn));
        }
        Ok(())
    }

    /// Opens the newest target that another process has created, if it is still there.
    fn open_target(&mut self, client: &BrokerClient, name: u8) -> Result<(), BrokerError> {
        process::perform(client, Call::OpenDomain(name), &mut 0)?;
        let targets = self.notes.targets.lock().clone();
        let of_others = targets.into_iter().filter(|(number, (key, _))| {
            *key == domain(name) && !self.own_targets.contains(&(name, Qpn::new(*number)))
        });
        let newest = of_others.max_by_key(|(number, _)| number & 0xffff);
        if let Some((number, _)) = newest
            && client.open_target(domain(name), Qpn::new(number))?
        {
            self.own_targets.push((name, Qpn::new(number)));
        }
        Ok(())
    }

    /// Notes a connection to another host in the journals, and an acknowledgement that it is owed.
    fn talk(&mut self, client: &BrokerClient, local: LocalAddr) {
        let Some(journal) = client.journal() else {
            return;
        };
        if !client.view().sockets.contains_key(&local) {
            return;
        }
        let number = self.host.number();
        let peer = peer_address().ip();
        let destination = AckDestination {
            local,
            peer,
            dest_qp: Qpn::new(number),
            opcode: ACKNOWLEDGE,
            pkey: Pkey::DEFAULT,
            traffic_class: 0,
        };
        let Some(mut ack) = journal.allocate_slot(&destination) else {
            return;
        };
        ack.record(PendingAck {
            psn: Psn::new(number),
            msn: Msn::new(1),
            credits: CreditCode::INVALID,
            migreq: true,
        });
        let record = ConnRecord {
            route: CmRoute {
                local: local.ip(),
                remote: peer,
            },
            own_id: CommId::new(u32::from(client.slot().get()) << 24 | number),
            peer_id: CommId::new(number),
            peer_qpn: Qpn::new(number),
            kind: ConnRecordKind::Established,
        };
        if self.connections.is_none() {
            self.connections = ConnectionJournal::new(journal);
        }
        if let Some(connections) = &mut self.connections {
            connections.write(record.own_id, Some(record));
            self.notes.acks.lock().push(ack);
            self.notes.talks.lock().insert(number, self.number);
        }
    }
}
