//! Datagrams to QP 1, which all processes of an address share: whose they are.

use std::collections::BTreeSet;
use std::net::IpAddr;

use rocade_wire::mad::{CmMessage, CommId, Mad};
use rocade_wire::{Packet, Qpn};

use crate::cm::gsi::mad_of;
use crate::cm::services::Services;
use crate::steering::Slot;

/// The processes that a packet to QP 1 of this address is for. Who asks for a service that nobody has, or
/// ends a connection of somebody who is gone, is answered by whoever is there.
pub(super) fn recipients(
    packet: &[u8],
    local: IpAddr,
    services: &Services<Slot>,
    users: &BTreeSet<Slot>,
) -> Vec<Slot> {
    let Ok(packet) = Packet::parse(packet) else {
        return Vec::new();
    };
    let Some(Ok(mad)) = mad_of(&packet).map(|mad| Mad::parse(mad)) else {
        return Vec::new();
    };
    let anybody = || users.first().copied();
    let one = match &mad.message {
        CmMessage::Req(req) => services.listener(req.service_id, local).or_else(anybody),
        CmMessage::SidrReq(req) => services.listener(req.service_id, local).or_else(anybody),
        //= CM-ST-08
        CmMessage::Rej(rej) if rej.remote_id == CommId::new(0) => {
            return users.intersection(&services.listeners()).copied().collect();
        }
        message => {
            let slot = Slot::of(Qpn::new(message.receiver_id().get() >> 8));
            let owner = Some(slot).filter(|slot| users.contains(slot));
            //= CM-ST-06
            owner.or_else(|| {
                let answers = matches!(message, CmMessage::Dreq(_));
                answers.then(anybody).flatten()
            })
        }
    };
    one.into_iter().collect()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use rocade_wire::mad::{
        Dreq, GSI_QKEY, Rej, RejReason, Rejected, Rtu, ServiceId, SidrReq, TransactionId,
    };
    use rocade_wire::{Bth, Deth, Headers, Opcode, Operation, Pkey, Psn, Qkey, Service};

    use super::*;
    use crate::cm::services::{Binding, BoundTo};

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
        assert!(services.bind(Slot::new(5), binding));
        let users = BTreeSet::from([3, 5, 7].map(Slot::new));
        let of = |local, message| recipients(&packet(GSI_QKEY, message), local, &services, &users);
        let ask = |service_id| {
            CmMessage::SidrReq(SidrReq {
                request_id: CommId::new(0x0900_0001),
                pkey: Pkey::DEFAULT,
                service_id,
                private_data: [0; 216],
            })
        };
        let slots = |numbers: &[u8]| -> Vec<Slot> {
            numbers.iter().map(|number| Slot::new(*number)).collect()
        };
        assert_eq!(of(here, ask(service)), slots(&[5]));
        assert_eq!(of(there, ask(service)), slots(&[3]));
        assert_eq!(of(here, ask(ServiceId::new(1))), slots(&[3]));
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
        assert_eq!(of(here, dreq), slots(&[3]));
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
        assert!(recipients(&wrong, here, &services, &users).is_empty());
        assert!(recipients(&wrong[..100], here, &services, &users).is_empty());
    }
}
