//! Converts messages of peers into events.

use std::net::SocketAddr;

use rocade_transport::QpType;
use rocade_transport::Time;
use rocade_transport::cm::{CmEvent as CmOutcome, CmRoute, Unanswered};
use rocade_wire::Psn;
use rocade_wire::mad::{
    CmTimeout, CommId, IpCmHeader, Rej, Rep, Req, ServiceId, SidrRep, SidrReq, SidrStatus,
    TransportType,
};

use super::event::{CmEventKind, CmParam, ConnParam, QueuedEvent, UdParam};
use super::host::CmCore;
use super::id::{IdCore, IdKey, IdState, PeerEnd};
use super::messages::{ack_timeout, peer_of_request};
use super::resolve::hca_with;
use crate::engine::Host;
use crate::gsi::services::port_of;
use crate::notice::{self, Notice};

/// Returns the sender according to the header in front of the private data, or `None` if the packet
/// came from another address. With native InfiniBand addresses there is no such header.
//= CMA-04
fn source_of(private_data: &[u8], is_ib: bool, route: CmRoute) -> Option<SocketAddr> {
    if is_ib {
        return Some(SocketAddr::new(route.remote, 0));
    }
    let header = IpCmHeader::parse(private_data).ok()?;
    let is_so = header.src.to_canonical() == route.remote.to_canonical()
        && header.dst.to_canonical() == route.local.to_canonical();
    is_so.then(|| header.source())
}

/// Returns the message about a peer that does not answer.
fn no_reply(peer: SocketAddr, left_ns: u64) -> Notice {
    let (ip, port) = (peer.ip(), peer.port());
    let seconds = left_ns.div_ceil(1_000_000_000);
    Notice {
        call: "rdma_connect",
        what: format!(
            "{ip} does not answer the request for a connection to port {port}, which is repeated \
             for {seconds} s"
        ),
        remedy: format!(
            "a program with Rocade or a RoCE device must run there, and UDP port 4791 of {ip} must \
             be reachable. On that host `rocade broker status` shows addresses and ports"
        ),
    }
}

/// Length of the header in front of the application's private data.
//= CMA-05
const fn header_len(id: &IdCore) -> usize {
    if id.ib.is_some() { 0 } else { IpCmHeader::LEN }
}

impl CmCore {
    /// Handles an event of a connection.
    pub(super) fn react(&mut self, host: &Host, now: Time, event: CmOutcome) {
        let of = |id: CommId| self.by_conn.get(&id).copied();
        match event {
            CmOutcome::Request { id, route, req } => self.on_request(host, now, id, route, &req),
            CmOutcome::ServiceRequest { id, route, req } => {
                self.on_service_request(host, now, id, route, &req);
            }
            CmOutcome::Reply { id, rep } => {
                if let Some(key) = of(id) {
                    self.on_reply(host, key, &rep);
                }
            }
            CmOutcome::Ready { id } => {
                if let Some(key) = of(id) {
                    self.queue_event(key, CmEventKind::Established, 0, CmParam::None);
                }
            }
            CmOutcome::Rejected { id, rej } => {
                if let Some(key) = of(id) {
                    self.on_rejected(key, &rej);
                }
            }
            CmOutcome::RequestTimeout { id }
            | CmOutcome::ReplyTimeout { id }
            | CmOutcome::ServiceTimeout { id } => {
                if let Some(key) = of(id) {
                    self.unreachable(key, -libc::ETIMEDOUT, CmParam::None);
                }
            }
            CmOutcome::Disconnect { id } | CmOutcome::Disconnected { id } => {
                self.disconnected(of(id), 0);
            }
            //= EVT-03
            CmOutcome::DisconnectTimeout { id } => self.disconnected(of(id), -libc::ETIMEDOUT),
            CmOutcome::TimewaitExit { id } => {
                if let Some(key) = of(id) {
                    self.queue_event(key, CmEventKind::TimewaitExit, 0, CmParam::None);
                }
            }
            CmOutcome::ServiceReply { id, rep } => {
                if let Some(key) = of(id) {
                    self.on_service_reply(key, &rep);
                }
            }
        }
    }

    /// Tells the user that a connection is still tried. The program waits, and knows nothing.
    pub(super) fn announce_wait(&self, Unanswered { id, left_ns }: Unanswered) {
        let key = self.by_conn.get(&id);
        let peer = key.and_then(|key| self.ids.get(key)?.dst);
        if let Some(peer) = peer {
            notice::say(&no_reply(peer, left_ns));
        }
    }

    /// Returns the listener for a request.
    //= CMA-04
    fn listener_for(&self, service: ServiceId, route: CmRoute, qp_type: QpType) -> Option<IdKey> {
        let key = self.services.listener(service, route.local)?;
        let listener = self.ids.get(&key)?;
        let listens = listener.state == IdState::Listen;
        (listens && listener.qp_type == qp_type).then_some(key)
    }

    /// Makes an ID for a request, on the channel of its listener. Returns `None` if the request was
    /// rejected or ignored.
    fn new_request_id(
        &mut self,
        host: &Host,
        now: Time,
        conn: CommId,
        route: CmRoute,
        service: ServiceId,
        (private_data, qp_type): (&[u8], QpType),
    ) -> Option<(IdKey, IdCore)> {
        let found = self
            .listener_for(service, route, qp_type)
            .zip(hca_with(host, route.local));
        let found = found.and_then(|(key, hca)| {
            let is_ib = self.ids.get(&key)?.ib.is_some();
            let source = source_of(private_data, is_ib, route)?;
            Some((key, hca, source))
        });
        //= CMA-04
        let Some((key, hca, source)) = found else {
            self.cm.destroy(now, conn);
            return None;
        };
        let listener = self.ids.get_mut(&key)?;
        //= LRC-15
        if listener.pending >= listener.backlog {
            self.cm.ignore(now, conn);
            return None;
        }
        listener.pending += 1;
        let mut id = IdCore::new(
            std::sync::Arc::clone(&listener.channel),
            listener.port_space,
            listener.qp_type,
        );
        id.rq_psn = Psn::new(host.random_word());
        id.src = Some(SocketAddr::new(route.local, port_of(service)));
        id.dst = Some(source);
        id.ib = listener.ib;
        id.hca = Some(hca);
        id.conn = Some(conn);
        id.state = IdState::Connect;
        id.tos = listener.tos;
        id.ack_timeout = listener.ack_timeout;
        id.qkey = listener.qkey;
        Some((key, id))
    }

    fn announce(&mut self, listener: IdKey, id: IdCore, conn: CommId, param: CmParam) {
        let channel = std::sync::Arc::clone(&id.channel);
        let new = self.add(id);
        self.by_conn.insert(conn, new);
        channel.events.push(QueuedEvent {
            id: listener,
            kind: CmEventKind::ConnectRequest,
            status: 0,
            new_id: Some(new),
            param,
        });
    }

    //= EVT-02
    fn on_request(&mut self, host: &Host, now: Time, conn: CommId, route: CmRoute, req: &Req) {
        let qp_type = match req.transport {
            TransportType::Uc => QpType::Uc,
            TransportType::Xrc => QpType::XrcRecv,
            TransportType::Rc | TransportType::Rd | TransportType::Other(_) => QpType::Rc,
        };
        let about = (&req.private_data[..], qp_type);
        let Some((listener, mut id)) =
            self.new_request_id(host, now, conn, route, req.service_id, about)
        else {
            return;
        };
        host.note_flow_control((route.remote, req.qpn), req.ca_guid, req.flow_control);
        id.peer = Some(peer_of_request(req));
        id.remote_ece = req.ece;
        let param = ConnParam {
            //= CMA-05
            private_data: req.private_data[header_len(&id)..].to_vec(),
            responder_resources: req.initiator_depth,
            initiator_depth: req.responder_resources,
            flow_control: req.flow_control,
            retry_count: req.retry_count,
            rnr_retry_count: req.rnr_retry_count,
            srq: req.srq,
            qp_num: req.qpn,
        };
        self.announce(listener, id, conn, CmParam::Conn(param));
    }

    //= EVT-04
    fn on_service_request(
        &mut self,
        host: &Host,
        now: Time,
        conn: CommId,
        route: CmRoute,
        req: &SidrReq,
    ) {
        let about = (&req.private_data[..], QpType::Ud);
        let Some((listener, id)) =
            self.new_request_id(host, now, conn, route, req.service_id, about)
        else {
            return;
        };
        let param = UdParam {
            private_data: req.private_data[header_len(&id)..].to_vec(),
            address: id.address().unwrap_or_default(),
            qp_num: rocade_wire::Qpn::new(0),
            qkey: rocade_wire::Qkey::new(0),
        };
        self.announce(listener, id, conn, CmParam::Ud(param));
    }

    //= EVT-01
    fn on_reply(&mut self, host: &Host, key: IdKey, rep: &Rep) {
        let Some(id) = self.ids.get_mut(&key) else {
            return;
        };
        //= CM-FLD-09
        let of_target = id.qp_type == QpType::XrcSend;
        let qp_num = if of_target { rep.eecn } else { rep.qpn };
        if let Some(peer) = id.dst {
            host.note_flow_control((peer.ip(), qp_num), rep.ca_guid, rep.flow_control);
        }
        id.remote_ece = rep.ece;
        id.peer = Some(PeerEnd {
            qpn: qp_num,
            sq_psn: rep.starting_psn,
            mtu: id.mtu().code(),
            //= CM-FLD-02
            responder_resources: rep.initiator_depth,
            initiator_depth: rep.responder_resources,
            //= CM-FLD-06
            timeout: ack_timeout(CmTimeout::ack_timeout(
                id.packet_life(),
                rep.target_ack_delay,
            )),
            retry_count: id.retry_count,
            //= CMA-11
            rnr_retry_count: rep.rnr_retry_count,
            hop_limit: id.hop_limit(),
            traffic_class: id.tos,
            flow_label: id.flow_label(),
        });
        let param = ConnParam {
            private_data: rep.private_data.to_vec(),
            responder_resources: rep.initiator_depth,
            initiator_depth: rep.responder_resources,
            flow_control: rep.flow_control,
            retry_count: 0,
            rnr_retry_count: rep.rnr_retry_count,
            srq: rep.srq,
            qp_num,
        };
        self.queue_event(key, CmEventKind::ConnectResponse, 0, CmParam::Conn(param));
    }

    fn on_rejected(&mut self, key: IdKey, rej: &Rej) {
        if let Some(id) = self.ids.get_mut(&key) {
            id.state = IdState::Disconnect;
        }
        let param = ConnParam {
            private_data: rej.private_data.to_vec(),
            ..ConnParam::default()
        };
        let status = i32::from(rej.reason.code());
        self.queue_event(key, CmEventKind::Rejected, status, CmParam::Conn(param));
    }

    fn unreachable(&mut self, key: IdKey, status: i32, param: CmParam) {
        if let Some(id) = self.ids.get_mut(&key) {
            id.state = IdState::Disconnect;
        }
        self.queue_event(key, CmEventKind::Unreachable, status, param);
    }

    /// Reports the end of a connection, once.
    //= EVT-03
    fn disconnected(&mut self, key: Option<IdKey>, status: i32) {
        let Some(key) = key else { return };
        let Some(id) = self.ids.get_mut(&key) else {
            return;
        };
        if id.state == IdState::Connect {
            id.state = IdState::Disconnect;
            self.queue_event(key, CmEventKind::Disconnected, status, CmParam::None);
        }
    }

    //= CMA-12
    //= EVT-04
    fn on_service_reply(&mut self, key: IdKey, rep: &SidrRep) {
        let Some(id) = self.ids.get_mut(&key) else {
            return;
        };
        id.remote_ece = rep.ece;
        let param = CmParam::Ud(UdParam {
            private_data: rep.private_data.to_vec(),
            address: id.address().unwrap_or_default(),
            qp_num: rep.qpn,
            qkey: rep.qkey,
        });
        if rep.status == SidrStatus::Success {
            id.qkey = Some(rep.qkey);
            self.queue_event(key, CmEventKind::Established, 0, param);
        } else {
            self.unreachable(key, i32::from(rep.status.code()), param);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_that_does_not_answer_is_named_with_the_time_left() {
        let notice = no_reply("192.0.2.7:7174".parse().unwrap(), 64_000_000_001);
        assert_eq!(notice.call, "rdma_connect");
        for part in ["192.0.2.7 does not answer", "port 7174", "65 s"] {
            assert!(notice.what.contains(part), "{notice:?}");
        }
        assert!(
            notice.remedy.contains("UDP port 4791 of 192.0.2.7"),
            "{notice:?}"
        );
    }
}
