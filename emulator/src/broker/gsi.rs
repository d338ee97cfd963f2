//! Finds the process for a datagram to QP 1, which all processes of an address share.
//!
//! A request for a service without a listener goes to any process, which rejects it. But some
//! programs stop listening for a moment between two connections of the same peer. Others tell their
//! peers the port before they listen. If a listener ended just now, or a process has bound the
//! port, the request is delayed a little. So it is while a new broker waits for the processes of
//! its predecessor, of which one may listen.

#![deny(clippy::disallowed_methods)]

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use rocade_transport::Time;
use rocade_wire::mad::{CmMessage, CommId, Mad, Req, ServiceId, SidrReq};
use rocade_wire::{Packet, Qpn};

use crate::gsi::mad_of;
use crate::gsi::services::Services;
use crate::link::LocalAddr;
use crate::steering::ProcessSlot;

/// The recipients of a packet to QP 1.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum GsiTargets {
    /// The processes with these slots.
    Slots(Vec<ProcessSlot>),
    /// No process listens for the service just now.
    NoListener(ServiceId),
}

/// Returns the CM message of a packet to QP 1, or `None` if there is none.
pub(super) fn message_of(packet: &[u8]) -> Option<CmMessage> {
    let packet = Packet::parse(packet).ok()?;
    let mad = Mad::parse(mad_of(&packet)?).ok()?;
    Some(mad.message)
}

/// Returns the processes that a message to this address is for. A DREQ to a process that is gone is
/// answered by any other process, unless the process may be one that has not come back yet
/// (`is_recovering`).
pub(super) fn gsi_targets(
    message: &CmMessage,
    local: IpAddr,
    services: &Services<ProcessSlot>,
    users: &BTreeSet<ProcessSlot>,
    is_recovering: bool,
) -> GsiTargets {
    let anybody = || users.first().copied().filter(|_| !is_recovering);
    let one = match message {
        CmMessage::Req(Req { service_id, .. }) | CmMessage::SidrReq(SidrReq { service_id, .. }) => {
            let listener = services.listener(*service_id, local);
            let Some(listener) = listener else {
                return GsiTargets::NoListener(*service_id);
            };
            Some(listener)
        }
        //= CM-ST-08
        CmMessage::Rej(rej) if rej.remote_id == CommId::new(0) => {
            let listeners = services.listeners();
            return GsiTargets::Slots(users.intersection(&listeners).copied().collect());
        }
        message => {
            let slot = ProcessSlot::of(Qpn::new(message.receiver_id().get() >> 8));
            let owner = Some(slot).filter(|slot| users.contains(slot));
            //= CM-ST-06
            owner.or_else(|| {
                let answers = matches!(message, CmMessage::Dreq(_));
                answers.then(anybody).flatten()
            })
        }
    };
    GsiTargets::Slots(one.into_iter().collect())
}

/// Time for which the broker remembers a service whose listener ended.
const REMEMBERED: Duration = Duration::from_secs(2);
/// Time that a request waits for the next listener. It is longer than a program lacks CPU time on a
/// busy machine, and shorter than the requester's retry interval (4.6 s).
const PATIENCE: Duration = Duration::from_secs(2);
/// Most requests that wait at once.
const MAX_WAITING: usize = 64;

/// The port spaces of TCP and UDP.
const IP_SPACES: [u16; 2] = [0x0106, 0x0111];

/// Returns the services of one port. A program that accepted connections may receive datagrams next
/// (perftest with `-R -c UD`).
fn of_one_port(service: ServiceId) -> impl Iterator<Item = ServiceId> {
    let [.., port1, port0] = service.get().to_be_bytes();
    let port = u16::from_be_bytes([port1, port0]);
    let spaces = IP_SPACES.map(|space| ServiceId::of_port(space, port));
    let others = spaces.contains(&service).then_some(spaces);
    let others = others.into_iter().flatten();
    [service]
        .into_iter()
        .chain(others.filter(move |other| *other != service))
}

/// A request that waits for a listener.
#[derive(Debug)]
pub(super) struct DeferredRequest {
    pub(super) local: LocalAddr,
    pub(super) service: ServiceId,
    pub(super) source: SocketAddr,
    pub(super) packet: Vec<u8>,
    until: Time,
}

/// Services whose listener ended just now, and delayed requests.
#[derive(Debug, Default)]
pub(super) struct RecentlyReleasedPorts {
    /// The broker waits for processes of its predecessor, which may have any port.
    pub(super) is_recovering: bool,
    services: BTreeMap<ServiceId, Time>,
    deferred: Vec<DeferredRequest>,
}

impl RecentlyReleasedPorts {
    /// Notes that a listener ended.
    pub(super) fn remember(&mut self, service: ServiceId, now: Time) {
        self.services.retain(|_, until| *until > now);
        self.services.insert(service, now.plus(REMEMBERED));
    }

    /// Delays a request. Returns false if it is to be answered at once.
    pub(super) fn wait(
        &mut self,
        services: &Services<ProcessSlot>,
        (local, service): (LocalAddr, ServiceId),
        source: SocketAddr,
        packet: &[u8],
        now: Time,
    ) -> bool {
        let released_ports =
            |service: &ServiceId| self.services.get(service).is_some_and(|until| *until > now);
        let expected = self.is_recovering
            || of_one_port(service)
                .any(|service| released_ports(&service) || services.is_bound(service, local.ip()));
        if !expected || self.deferred.len() >= MAX_WAITING {
            return false;
        }
        self.deferred.push(DeferredRequest {
            local,
            service,
            source,
            packet: packet.to_vec(),
            until: now.plus(PATIENCE),
        });
        true
    }

    /// Takes the requests that have a listener now, or whose time is up.
    pub(super) fn ready(
        &mut self,
        services: &Services<ProcessSlot>,
        now: Time,
    ) -> Vec<DeferredRequest> {
        let is_recovering = self.is_recovering;
        let is_ready = |deferred: &mut DeferredRequest| {
            !is_recovering && deferred.until <= now
                || services
                    .listener(deferred.service, deferred.local.ip())
                    .is_some()
        };
        self.deferred.extract_if(.., is_ready).collect()
    }

    /// Returns the time at which the next delayed request expires. None does while the broker waits
    /// for processes of its predecessor.
    pub(super) fn deadline(&self) -> Option<Time> {
        let ends = self.deferred.iter().map(|deferred| deferred.until);
        ends.min().filter(|_| !self.is_recovering)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use rocade_wire::mad::{Dreq, GSI_QKEY, Rej, RejReason, Rejected, Rtu, TransactionId};
    use rocade_wire::{Bth, Deth, Headers, Opcode, Operation, Pkey, Psn, Qkey, Service};

    use super::*;
    use crate::gsi::services::{Binding, BoundTo};

    fn packet(qkey: Qkey, message: CmMessage) -> Vec<u8> {
        let opcode = Opcode::of(Service::Ud, Operation::SendOnly).expect("there is");
        let mut headers = Headers::new(Bth::new(opcode, Qpn::GSI, Psn::new(0)));
        headers.deth = Some(Deth {
            qkey,
            src_qp: Qpn::GSI,
            resv: 0,
        });
        let mut packet = vec![0; headers.len()];
        headers.emit(&mut packet).expect("it fits");
        packet.extend(Mad::new(TransactionId::new(1), message).to_bytes());
        packet.extend([0; 4]);
        packet
    }

    //= UD-16 type=test
    #[test]
    fn each_message_finds_its_process() {
        let service = ServiceId::of_port(0x106, 7471);
        let (here, there): (IpAddr, IpAddr) = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
        let mut services = Services::default();
        let binding = Binding {
            service,
            to: BoundTo::Ip(here),
            reuse: false,
            listens: true,
        };
        assert!(services.bind(ProcessSlot::new(5), binding));
        let users = BTreeSet::from([3, 5, 7].map(ProcessSlot::new));
        let told = |local, message, is_recovering| {
            let read = message_of(&packet(GSI_QKEY, message)).unwrap();
            gsi_targets(&read, local, &services, &users, is_recovering)
        };
        let of = |local, message| told(local, message, false);
        let ask = |service_id| {
            CmMessage::SidrReq(SidrReq {
                request_id: CommId::new(0x0900_0001),
                pkey: Pkey::DEFAULT,
                service_id,
                private_data: [0; 216],
            })
        };
        let slots = |numbers: &[u8]| {
            GsiTargets::Slots(
                numbers
                    .iter()
                    .map(|number| ProcessSlot::new(*number))
                    .collect(),
            )
        };
        assert_eq!(of(here, ask(service)), slots(&[5]));
        assert_eq!(of(there, ask(service)), GsiTargets::NoListener(service));
        let other = ServiceId::new(1);
        assert_eq!(of(here, ask(other)), GsiTargets::NoListener(other));
        let rtu = |to| {
            CmMessage::Rtu(Rtu {
                local_id: CommId::new(1),
                remote_id: CommId::new(to),
                private_data: [0; 224],
            })
        };
        assert_eq!(of(here, rtu(0x0700_0123)), slots(&[7]));
        assert_eq!(of(here, rtu(0x0600_0123)), slots(&[]));
        let dreq = CmMessage::Dreq(Dreq {
            local_id: CommId::new(1),
            remote_id: CommId::new(0x0600_0123),
            remote_qpn: Qpn::new(1),
            private_data: [0; 220],
        });
        assert_eq!(of(here, dreq.clone()), slots(&[3]));
        assert_eq!(told(here, dreq, true), slots(&[]), "its process may return");
        let gives_up = CmMessage::Rej(Rej {
            local_id: CommId::new(1),
            remote_id: CommId::new(0),
            rejected: Rejected::LapOrOther,
            reason: RejReason::Timeout,
            info_len: 8,
            info: [0; 72],
            private_data: [0; 148],
        });
        assert_eq!(of(here, gives_up), slots(&[5]));
        let wrong = packet(Qkey::new(7), rtu(0x0700_0123));
        assert_eq!(message_of(&wrong), None);
        let right = packet(GSI_QKEY, rtu(0x0700_0123));
        assert!(message_of(&right).is_some());
        assert_eq!(message_of(&right[..100]), None);
    }

    /// The process with the port for connections may receive datagrams there next, and vice versa.
    #[test]
    fn a_request_waits_for_the_owner_of_the_port_in_the_other_space() {
        let [tcp, udp] = IP_SPACES.map(|space| ServiceId::of_port(space, 7471));
        let local: LocalAddr = IpAddr::from([10, 0, 0, 1]).into();
        let source = "10.0.0.2:49152".parse().unwrap();
        let now = Time::from_ns(1);
        for (has, asked, waits) in [
            (tcp, udp, true),
            (udp, tcp, true),
            (tcp, ServiceId::of_port(IP_SPACES[1], 7472), false),
            (ServiceId::of_port(0x013f, 7471), udp, false),
            (tcp, ServiceId::of_port(0x013f, 7471), false),
        ] {
            let (mut released_ports, mut services) =
                (RecentlyReleasedPorts::default(), Services::default());
            let wait = |released_ports: &mut RecentlyReleasedPorts,
                        services: &Services<ProcessSlot>| {
                released_ports.wait(services, (local, asked), source, &[1], now)
            };
            assert!(!wait(&mut released_ports, &services));
            released_ports.remember(has, now);
            assert_eq!(
                wait(&mut released_ports, &services),
                waits,
                "{has:?} {asked:?}"
            );
            let binding = Binding {
                service: has,
                to: BoundTo::AnyV4,
                reuse: false,
                listens: true,
            };
            assert!(services.bind(ProcessSlot::new(3), binding));
            let mut released_ports = RecentlyReleasedPorts::default();
            assert_eq!(
                wait(&mut released_ports, &services),
                waits,
                "{has:?} {asked:?}"
            );
        }
    }

    #[test]
    fn a_request_waits_while_processes_of_an_earlier_broker_may_listen() {
        let local: LocalAddr = IpAddr::from([10, 0, 0, 1]).into();
        let asked = (local, ServiceId::of_port(0x106, 7471));
        let source = "10.0.0.2:49152".parse().unwrap();
        let now = Time::from_ns(1);
        let (mut waiting, services) = (RecentlyReleasedPorts::default(), Services::default());
        waiting.is_recovering = true;
        assert!(waiting.wait(&services, asked, source, &[1], now));
        let late = now.plus(PATIENCE);
        assert!(waiting.ready(&services, late).is_empty());
        waiting.is_recovering = false;
        assert_eq!(waiting.ready(&services, late).len(), 1);
        assert!(!waiting.wait(&services, asked, source, &[1], now));
    }

    #[test]
    fn a_request_waits_for_a_listener_that_returns() {
        let service = ServiceId::of_port(0x106, 7471);
        let other = ServiceId::of_port(0x106, 7472);
        let local: LocalAddr = IpAddr::from([10, 0, 0, 1]).into();
        let source = "10.0.0.2:49152".parse().unwrap();
        let now = Time::from_ns(1);
        let (mut released_ports, mut services) =
            (RecentlyReleasedPorts::default(), Services::default());
        assert!(!released_ports.wait(&services, (local, service), source, &[1], now));
        released_ports.remember(service, now);
        assert!(!released_ports.wait(&services, (local, other), source, &[1], now));
        assert!(!released_ports.wait(
            &services,
            (local, service),
            source,
            &[1],
            now.plus(REMEMBERED)
        ));
        assert!(released_ports.wait(&services, (local, service), source, &[1], now));
        assert_eq!(released_ports.deadline(), Some(now.plus(PATIENCE)));
        assert!(released_ports.ready(&services, now).is_empty());
        let late = released_ports.ready(&services, now.plus(PATIENCE));
        assert_eq!((late.len(), &late[0].packet[..]), (1, &[1][..]));
        assert!(released_ports.wait(&services, (local, service), source, &[2], now));
        let binding = Binding {
            service,
            to: BoundTo::AnyV4,
            reuse: false,
            listens: true,
        };
        assert!(services.bind(ProcessSlot::new(3), binding));
        let ready = released_ports.ready(&services, now);
        assert_eq!((ready.len(), ready[0].source), (1, source));
        assert_eq!(released_ports.deadline(), None);
        // The process that has bound the port may be about to listen.
        let bound = Binding {
            service: other,
            listens: false,
            ..binding
        };
        assert!(services.bind(ProcessSlot::new(3), bound));
        assert!(released_ports.wait(&services, (local, other), source, &[4], now));
        assert!(released_ports.ready(&services, now).is_empty());
        assert!(services.listen(ProcessSlot::new(3), bound));
        assert_eq!(released_ports.ready(&services, now).len(), 1);
        for _ in 0..MAX_WAITING {
            assert!(released_ports.wait(&services, (local, service), source, &[3], now));
        }
        assert!(!released_ports.wait(&services, (local, service), source, &[3], now));
    }
}
