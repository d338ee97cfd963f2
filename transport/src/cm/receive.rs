//! Handling of messages from peers.

use alloc::boxed::Box;

use rocade_wire::Mtu;
use rocade_wire::mad::{
    ApStatus, Apr, CmMessage, CmTimeout, CommId, Drep, Dreq, Lap, Mad, Mra, Rej, RejReason,
    Rejected, Rep, Req, Rtu, SidrRep, SidrReq, SidrStatus, TransactionId, TransportType,
};

use super::commands::refusal;
use super::conn::{Conn, ConnState, End};
use super::limits::{resending, service_ns, timewait_ns};
use super::refused::RequestHistory;
use super::{AdmissionStage, Cm, CmCounters, CmEvent, CmRoute};
use crate::time::Time;

/// Additional time for an answer that an MRA of this side announces.
//= CMA-06
const SERVICE_TIMEOUT: CmTimeout = CmTimeout::new(24);

impl Cm {
    /// Handles a datagram received on QP 1. Every datagram is counted.
    //= MAD-04
    //= MAD-07
    pub fn handle_mad(&mut self, now: Time, route: CmRoute, payload: &[u8]) {
        let Ok(Mad { tid, message, .. }) = Mad::parse(payload) else {
            return self.count(|counters| &mut counters.rx_malformed);
        };
        self.count(|counters| &mut counters.rx_messages);
        self.refused.free_expired(now);
        match message {
            CmMessage::Req(req) => self.on_req(now, route, tid, req),
            CmMessage::Mra(mra) => self.on_mra(now, route, &mra),
            CmMessage::Rej(rej) => self.on_rej(now, route, rej),
            CmMessage::Rep(rep) => self.on_rep(now, route, tid, rep),
            CmMessage::Rtu(rtu) => self.on_rtu(now, route, &rtu),
            CmMessage::Dreq(dreq) => self.on_dreq(now, route, tid, &dreq),
            CmMessage::Drep(drep) => self.on_drep(now, route, &drep),
            CmMessage::SidrReq(req) => self.on_sidr_req(route, tid, req),
            CmMessage::SidrRep(rep) => self.on_sidr_rep(now, route, rep),
            CmMessage::Lap(lap) => self.on_lap(route, tid, &lap),
            CmMessage::Apr(_) => self.count(unsolicited),
        }
        self.check_invariants();
    }

    /// Returns the connection that a message of this peer belongs to. A `remote_id` of 0 matches
    /// any.
    fn find(&mut self, route: CmRoute, id: CommId, remote_id: CommId) -> Option<&mut Conn> {
        let conn = self.conns.get_mut(&id)?;
        let fits = conn.route.remote == route.remote
            && (remote_id == CommId::new(0) || conn.remote_id == remote_id);
        fits.then_some(conn)
    }

    fn raise(&mut self, id: CommId, event: CmEvent) {
        // The program does not know of a request that is held.
        let is_known = |conn: &Conn| !conn.is_abandoned && conn.stage != AdmissionStage::Held;
        if self.conns.get(&id).is_some_and(is_known) {
            self.events.push_back(event);
        }
    }

    //= CM-ST-04
    fn on_req(&mut self, now: Time, route: CmRoute, tid: TransactionId, req: Req) {
        let name = (req.local_id, req.ca_guid.get(), route.remote);
        if let Some(&id) = self.by_remote_id.get(&name) {
            return self.on_duplicate_req(now, id, route, tid, &req);
        }
        let qp = (req.qpn, req.ca_guid.get(), route.remote);
        if let Some(&old) = self.by_remote_qp.get(&qp) {
            self.refuse(route, tid, &req, RejReason::StaleConnection);
            // This side did not notice that the peer had closed the old connection.
            let _ = self.disconnect(now, old, &[]);
            return;
        }
        if !self.admissions.contains_key(&req.service_id) {
            return self.refuse(route, tid, &req, RejReason::InvalidServiceId);
        }
        let service = req.transport;
        if matches!(service, TransportType::Rd | TransportType::Other(_)) {
            return self.refuse(route, tid, &req, RejReason::InvalidTransportType);
        }
        //= CM-REJ-B
        if Mtu::from_code(req.mtu).is_none() {
            return self.refuse(route, tid, &req, RejReason::InvalidMtu);
        }
        let fingerprint = self.refused.fingerprint(&req, route.remote);
        let history = self.refused.history(now, fingerprint);
        if !self.has_space(now, req.service_id, route.remote, history) {
            self.refused.note(now, fingerprint, false);
            return self.count(|counters| &mut counters.rx_dropped);
        }
        let (interval_ns, max_retries) = resending(req.local_response_timeout, req.max_cm_retries);
        let id = self.add(|_| Conn {
            end: match service {
                TransportType::Xrc => End::XrcTarget,
                _ => End::Regular,
            },
            remote_id: req.local_id,
            remote_guid: req.ca_guid,
            remote_qpn: req.qpn,
            service: req.service_id,
            interval_ns,
            max_retries,
            timewait_ns: timewait_ns(req.primary.ack_timeout),
            fingerprint,
            is_repeated: history == RequestHistory::Repeated,
            ..Conn::new(ConnState::ReqRcvd, route, tid)
        });
        self.by_remote_id.insert(name, id);
        self.by_remote_qp.insert(qp, id);
        self.admit_or_hold(now, id, route, Box::new(req));
    }

    fn on_duplicate_req(
        &mut self,
        now: Time,
        id: CommId,
        route: CmRoute,
        tid: TransactionId,
        req: &Req,
    ) {
        self.count(|counters| &mut counters.rx_duplicates);
        let state = self.conns.get(&id).map(|conn| conn.state);
        if state == Some(ConnState::TimeWait) {
            self.refuse(route, tid, req, RejReason::StaleConnection);
        } else if matches!(state, Some(ConnState::ReqRcvd | ConnState::MraReqSent))
            // An MRA would delay the repetition that gives a held request its priority.
            && self.on_repeated_request(now, id)
        {
            self.ask_for_time(id, Rejected::Req);
        }
    }

    /// Refuses a request without keeping state.
    fn refuse(&mut self, route: CmRoute, tid: TransactionId, req: &Req, reason: RejReason) {
        self.count(|counters| &mut counters.rx_refused);
        let message = CmMessage::Rej(Rej {
            local_id: CommId::new(0),
            remote_id: req.local_id,
            rejected: Rejected::Req,
            reason,
            info_len: 0,
            info: [0; Rej::INFO_LEN],
            private_data: [0; Rej::PRIVATE_LEN],
        });
        self.send(route, tid, message);
    }

    /// Sends an MRA to a peer that repeats its message: the answer takes longer.
    //= CM-ST-04
    //= CM-ST-05
    fn ask_for_time(&mut self, id: CommId, received: Rejected) {
        let Some(conn) = self.conns.get_mut(&id) else {
            return;
        };
        conn.state = match received {
            Rejected::Req => ConnState::MraReqSent,
            _ => ConnState::MraRepSent,
        };
        let (route, tid) = (conn.route, conn.tid);
        let message = CmMessage::Mra(Mra {
            local_id: id,
            remote_id: conn.remote_id,
            received,
            service_timeout: SERVICE_TIMEOUT,
            private_data: [0; Mra::PRIVATE_LEN],
        });
        self.send(route, tid, message);
    }

    //= CM-ST-09
    fn on_mra(&mut self, now: Time, route: CmRoute, mra: &Mra) {
        let any = CommId::new(0);
        let remote_id = match mra.received {
            // The peer's communication ID is not known yet.
            Rejected::Req => any,
            _ => mra.local_id,
        };
        let Some(conn) = self.find(route, mra.remote_id, remote_id) else {
            return self.count(unsolicited);
        };
        conn.state = match (mra.received, conn.state) {
            (Rejected::Req, ConnState::ReqSent | ConnState::MraReqRcvd) => ConnState::MraReqRcvd,
            (Rejected::Rep, ConnState::RepSent | ConnState::MraRepRcvd) => ConnState::MraRepRcvd,
            _ => return self.count(unsolicited),
        };
        let wait_ns = service_ns(mra.service_timeout).saturating_add(conn.interval_ns);
        if mra.received == Rejected::Rep {
            // The MRA proves that the peer exists, and only needs time.
            self.set_stage(mra.remote_id, AdmissionStage::Settled);
        }
        self.arm(mra.remote_id, now.plus_ns(wait_ns));
    }

    //= CM-ST-01
    //= CM-ST-05
    fn on_rep(&mut self, now: Time, route: CmRoute, tid: TransactionId, rep: Rep) {
        let id = rep.remote_id;
        let Some(conn) = self.find(route, id, CommId::new(0)) else {
            return self.count(unsolicited);
        };
        let is_known = conn.remote_id == rep.local_id;
        match conn.state {
            ConnState::ReqSent | ConnState::MraReqRcvd => {}
            ConnState::RepRcvd | ConnState::MraRepSent if is_known => {
                self.count(|counters| &mut counters.rx_duplicates);
                return self.ask_for_time(id, Rejected::Rep);
            }
            ConnState::Established if is_known => {
                self.count(|counters| &mut counters.rx_duplicates);
                // Repeats the RTU, on the side that has sent one.
                return self.send_again(id);
            }
            _ => return self.count(unsolicited),
        }
        conn.remote_id = rep.local_id;
        conn.remote_guid = rep.ca_guid;
        conn.remote_qpn = conn.end.qpn_in(&rep);
        conn.tid = tid;
        conn.resend = None;
        let (name, qp) = (conn.remote_name(), conn.remote_qp());
        self.by_remote_id.insert(name, id);
        self.by_remote_qp.insert(qp, id);
        self.enter(now, id, ConnState::RepRcvd);
        let rep = Box::new(rep);
        self.raise(id, CmEvent::Reply { id, rep });
    }

    //= CM-ST-02
    fn on_rtu(&mut self, now: Time, route: CmRoute, rtu: &Rtu) {
        let id = rtu.remote_id;
        let Some(conn) = self.find(route, id, rtu.local_id) else {
            return self.count(unsolicited);
        };
        match conn.state {
            ConnState::RepSent | ConnState::MraRepRcvd => {
                // A repeated REP needs no answer.
                conn.resend = None;
                self.note_confirmed(id);
                self.enter(now, id, ConnState::Established);
                self.raise(id, CmEvent::Ready { id });
            }
            ConnState::Established => self.count(|counters| &mut counters.rx_duplicates),
            _ => self.count(unsolicited),
        }
    }

    //= CM-ST-08
    fn on_rej(&mut self, now: Time, route: CmRoute, rej: Rej) {
        let found = match (rej.timeout_guid(), rej.rejected) {
            (Some(guid), _) => {
                let name = (rej.local_id, guid.get(), route.remote);
                self.by_remote_id.get(&name).copied()
            }
            (None, Rejected::Req) => Some(rej.remote_id),
            (None, _) => Some(rej.remote_id).filter(|_| rej.local_id != CommId::new(0)),
        };
        let remote_id = match rej.rejected {
            Rejected::Req => CommId::new(0),
            _ => rej.local_id,
        };
        let found = found.filter(|id| self.find(route, *id, remote_id).is_some());
        let Some(id) = found else {
            return self.count(unsolicited);
        };
        let Some(conn) = self.conns.get_mut(&id) else {
            return;
        };
        let next = match conn.state {
            ConnState::ReqSent
            | ConnState::MraReqRcvd
            | ConnState::RepSent
            | ConnState::MraRepRcvd
            | ConnState::ReqRcvd
            | ConnState::MraReqSent => {
                if rej.reason == RejReason::StaleConnection {
                    ConnState::TimeWait
                } else {
                    ConnState::Idle
                }
            }
            ConnState::DreqSent
            | ConnState::RepRcvd
            | ConnState::MraRepSent
            | ConnState::Established => ConnState::TimeWait,
            _ => return self.count(unsolicited),
        };
        let rej = Box::new(rej);
        self.raise(id, CmEvent::Rejected { id, rej });
        self.enter(now, id, next);
    }

    //= CM-ST-03
    //= CM-ST-06
    fn on_dreq(&mut self, now: Time, route: CmRoute, tid: TransactionId, dreq: &Dreq) {
        let id = dreq.remote_id;
        let Some(conn) = self.find(route, id, dreq.local_id) else {
            self.count(unsolicited);
            return self.send_drep(route, tid, dreq);
        };
        if conn.local_qpn != dreq.remote_qpn {
            return self.count(unsolicited);
        }
        match conn.state {
            ConnState::Established
            | ConnState::RepSent
            | ConnState::MraRepRcvd
            | ConnState::DreqSent => {
                if conn.is_abandoned {
                    conn.tid = tid;
                    conn.resend = None;
                    // No owner is left to answer.
                    self.send_drep(route, tid, dreq);
                    return self.enter(now, id, ConnState::TimeWait);
                }
                self.note_disconnect(now, id, tid);
            }
            // The owner confirms the connection first. The peer may be gone, and not repeat it.
            ConnState::RepRcvd | ConnState::MraRepSent => conn.early_dreq = Some(tid),
            ConnState::TimeWait => {
                self.on_peer_disconnected(id);
                self.count(|counters| &mut counters.rx_duplicates);
                self.send_drep(route, tid, dreq);
            }
            ConnState::DreqRcvd => self.count(|counters| &mut counters.rx_duplicates),
            ConnState::Idle => self.send_drep(route, tid, dreq),
            _ => self.count(unsolicited),
        }
    }

    /// Tells the owner that the peer ends the connection. Its answer has the transaction `tid`.
    pub(super) fn note_disconnect(&mut self, now: Time, id: CommId, tid: TransactionId) {
        if let Some(conn) = self.conns.get_mut(&id) {
            conn.tid = tid;
            conn.resend = None;
        }
        self.enter(now, id, ConnState::DreqRcvd);
        self.raise(id, CmEvent::Disconnect { id });
    }

    fn send_drep(&mut self, route: CmRoute, tid: TransactionId, dreq: &Dreq) {
        let message = CmMessage::Drep(Drep {
            local_id: dreq.remote_id,
            remote_id: dreq.local_id,
            private_data: [0; Drep::PRIVATE_LEN],
        });
        self.send(route, tid, message);
    }

    fn on_drep(&mut self, now: Time, route: CmRoute, drep: &Drep) {
        let id = drep.remote_id;
        match self.find(route, id, drep.local_id).map(|conn| conn.state) {
            Some(ConnState::DreqSent | ConnState::DreqRcvd) => {
                self.enter(now, id, ConnState::TimeWait);
                self.raise(id, CmEvent::Disconnected { id });
            }
            Some(ConnState::TimeWait) => {
                self.on_peer_disconnected(id);
                self.count(|counters| &mut counters.rx_duplicates);
            }
            _ => self.count(unsolicited),
        }
    }

    /// Notes that the peer has ended the connection, too.
    fn on_peer_disconnected(&mut self, id: CommId) {
        if let Some(conn) = self.conns.get_mut(&id) {
            conn.is_disconnecting = false;
            self.changed.insert(id);
        }
    }

    //= CM-ST-12
    fn on_sidr_req(&mut self, route: CmRoute, tid: TransactionId, req: SidrReq) {
        let name = (req.request_id, route.remote);
        if let Some(&id) = self.by_request.get(&name) {
            self.count(|counters| &mut counters.rx_duplicates);
            // Repeats the answer, if there is one.
            return self.send_again(id);
        }
        if !self.admissions.contains_key(&req.service_id) {
            self.count(|counters| &mut counters.rx_refused);
            let message = CmMessage::SidrRep(SidrRep {
                request_id: req.request_id,
                service_id: req.service_id,
                ..refusal(SidrStatus::ServiceIdNotSupported)
            });
            return self.send(route, tid, message);
        }
        let id = self.add(|_| Conn {
            remote_id: req.request_id,
            service: req.service_id,
            ..Conn::new(ConnState::SidrReqRcvd, route, tid)
        });
        self.by_request.insert(name, id);
        let req = Box::new(req);
        self.raise(id, CmEvent::ServiceRequest { id, route, req });
    }

    //= CM-ST-12
    fn on_sidr_rep(&mut self, now: Time, route: CmRoute, rep: SidrRep) {
        let id = rep.request_id;
        match self.find(route, id, CommId::new(0)).map(|conn| conn.state) {
            Some(ConnState::SidrReqSent) => {
                let rep = Box::new(rep);
                self.raise(id, CmEvent::ServiceReply { id, rep });
                self.enter(now, id, ConnState::Idle);
            }
            _ => self.count(unsolicited),
        }
    }

    /// Refuses a LAP: alternate paths cannot be loaded on RoCE.
    //= CM-ST-11
    fn on_lap(&mut self, route: CmRoute, tid: TransactionId, lap: &Lap) {
        let conn = self.find(route, lap.remote_id, lap.local_id);
        let Some(conn) = conn.filter(|conn| conn.state == ConnState::Established) else {
            return self.count(unsolicited);
        };
        //= CM-APR-S
        let status = if conn.local_qpn == lap.remote_qpn {
            ApStatus::NotSupported
        } else {
            ApStatus::QpnMismatch
        };
        self.count(|counters| &mut counters.rx_refused);
        let message = CmMessage::Apr(Apr {
            local_id: lap.remote_id,
            remote_id: lap.local_id,
            info_len: 0,
            status,
            info: [0; Apr::INFO_LEN],
            private_data: [0; Apr::PRIVATE_LEN],
        });
        self.send(route, tid, message);
    }
}

const fn unsolicited(counters: &mut CmCounters) -> &mut u64 {
    &mut counters.rx_unsolicited
}
