//! Commands that the owner of a connection gives.

use rocade_wire::Qpn;
use rocade_wire::mad::{
    CmMessage, CmTimeout, CommId, Drep, Dreq, Ece, Rej, RejReason, Rejected, Rep, Req, Rtu,
    SidrRep, SidrReq, SidrStatus, TransactionId, TransportType,
};

use super::conn::{Conn, ConnState, End};
use super::limits::timewait_ns;
use super::{Cm, CmError, CmRoute};
use crate::time::Time;

/// The time for which the answer to a service request is kept: longer than its sender repeats the
/// request.
const SIDR_KEPT_NS: u64 = 70_000_000_000;
/// Most answers that are kept. A repeated request whose answer was dropped counts as a new one.
const MAX_SIDR_KEPT: usize = 1_024;

/// Returns a private data field: `data`, cut to the size of the field and padded with zeros.
#[must_use]
pub fn private_data<const N: usize>(data: &[u8]) -> [u8; N] {
    let mut field = [0; N];
    for (to, from) in field.iter_mut().zip(data) {
        *to = *from;
    }
    field
}

impl Cm {
    fn conn(&mut self, id: CommId, allowed: &[ConnState]) -> Result<&mut Conn, CmError> {
        let conn = self.conns.get_mut(&id).ok_or(CmError::UnknownId)?;
        if allowed.contains(&conn.state) && !conn.is_abandoned {
            Ok(conn)
        } else {
            Err(CmError::WrongState)
        }
    }

    /// Requests a connection. The communication ID and the GUID of the message are filled in.
    ///
    /// `packet_life` is the longest time that a packet spends on the wire.
    //= CM-ST-01
    pub fn connect(
        &mut self,
        now: Time,
        route: CmRoute,
        packet_life: CmTimeout,
        req: Req,
    ) -> CommId {
        let config = self.config;
        let conn = |id| Conn {
            end: match req.transport {
                TransportType::Xrc => End::XrcInitiator,
                _ => End::Regular,
            },
            local_qpn: req.qpn,
            //= CMA-06
            //= CM-FLD-04
            interval_ns: 2 * packet_life.as_ns() + req.remote_response_timeout.as_ns(),
            max_retries: req.max_cm_retries,
            timewait_ns: timewait_ns(req.primary.ack_timeout),
            ..Conn::new(ConnState::ReqSent, route, config.tid(id))
        };
        let id = self.add(conn);
        let message = CmMessage::Req(Req {
            local_id: id,
            ca_guid: config.guid,
            ..req
        });
        self.send_until_answered(now, id, config.tid(id), message);
        id
    }

    /// Accepts a request. IDs and GUID of the message are filled in.
    ///
    /// # Errors
    /// [`CmError`]: there is no request to accept.
    //= CM-ST-02
    pub fn reply(&mut self, now: Time, id: CommId, rep: Rep) -> Result<(), CmError> {
        let guid = self.config.guid;
        let conn = self.conn(id, &[ConnState::ReqRcvd, ConnState::MraReqSent])?;
        conn.local_qpn = conn.end.qpn_in(&rep);
        let (tid, remote_id) = (conn.tid, conn.remote_id);
        let message = CmMessage::Rep(Rep {
            local_id: id,
            remote_id,
            ca_guid: guid,
            ..rep
        });
        self.enter(now, id, ConnState::RepSent);
        self.send_until_answered(now, id, tid, message);
        Ok(())
    }

    /// Confirms a connection that the peer has accepted.
    ///
    /// # Errors
    /// [`CmError`]: no REP was received.
    //= CM-ST-01
    pub fn ready(&mut self, now: Time, id: CommId, data: &[u8]) -> Result<(), CmError> {
        let conn = self.conn(id, &[ConnState::RepRcvd, ConnState::MraRepSent])?;
        let (tid, remote_id) = (conn.tid, conn.remote_id);
        let early_dreq = conn.early_dreq.take();
        let message = CmMessage::Rtu(Rtu {
            local_id: id,
            remote_id,
            private_data: private_data(data),
        });
        self.enter(now, id, ConnState::Established);
        self.send_and_keep(id, tid, message);
        if let Some(tid) = early_dreq {
            self.note_disconnect(now, id, tid);
        }
        Ok(())
    }

    /// Establishes a connection whose RTU was lost, because a packet of the peer's QP was received.
    ///
    /// # Errors
    /// [`CmError`]: no RTU is expected.
    //= CM-ST-02
    //= EVT-08
    pub fn established(&mut self, now: Time, id: CommId) -> Result<(), CmError> {
        self.conn(id, &[ConnState::RepSent, ConnState::MraRepRcvd])?;
        self.enter(now, id, ConnState::Established);
        Ok(())
    }

    /// Rejects a request or a reply.
    ///
    /// # Errors
    /// [`CmError`]: there is nothing to reject.
    pub fn reject(
        &mut self,
        now: Time,
        id: CommId,
        reason: RejReason,
        info: &[u8],
        data: &[u8],
    ) -> Result<(), CmError> {
        const REJECTABLE: [ConnState; 8] = [
            ConnState::ReqSent,
            ConnState::MraReqRcvd,
            ConnState::ReqRcvd,
            ConnState::MraReqSent,
            ConnState::RepRcvd,
            ConnState::MraRepSent,
            ConnState::RepSent,
            ConnState::MraRepRcvd,
        ];
        let conn = self.conn(id, &REJECTABLE)?;
        //= CM-REJ
        let (rejected, next) = match conn.state {
            ConnState::ReqRcvd | ConnState::MraReqSent => (Rejected::Req, ConnState::Idle),
            ConnState::RepRcvd | ConnState::MraRepSent => (Rejected::Rep, ConnState::Idle),
            ConnState::RepSent | ConnState::MraRepRcvd => {
                (Rejected::LapOrOther, ConnState::TimeWait)
            }
            _ => (Rejected::LapOrOther, ConnState::Idle),
        };
        let (route, tid) = (conn.route, conn.tid);
        let message = CmMessage::Rej(Rej {
            local_id: id,
            remote_id: conn.remote_id,
            rejected,
            reason,
            info_len: u8::try_from(info.len().min(Rej::INFO_LEN)).unwrap_or(0),
            info: private_data(info),
            private_data: private_data(data),
        });
        self.send(route, tid, message);
        self.enter(now, id, next);
        Ok(())
    }

    /// Disconnects: sends a DREQ and waits for the DREP.
    ///
    /// # Errors
    /// [`CmError`]: there is no connection.
    //= CM-ST-03
    pub fn disconnect(&mut self, now: Time, id: CommId, data: &[u8]) -> Result<(), CmError> {
        let conn = self.conn(id, &[ConnState::Established])?;
        let (remote_id, remote_qpn) = (conn.remote_id, conn.remote_qpn);
        let message = dreq(id, remote_id, remote_qpn, data);
        let tid = self.config.tid(id);
        self.enter(now, id, ConnState::DreqSent);
        self.send_until_answered(now, id, tid, message);
        Ok(())
    }

    /// Answers the peer's DREQ.
    ///
    /// # Errors
    /// [`CmError`]: no DREQ was received.
    //= CM-ST-03
    pub fn reply_to_disconnect(
        &mut self,
        now: Time,
        id: CommId,
        data: &[u8],
    ) -> Result<(), CmError> {
        let conn = self.conn(id, &[ConnState::DreqRcvd])?;
        let (route, tid, remote_id) = (conn.route, conn.tid, conn.remote_id);
        let message = CmMessage::Drep(Drep {
            local_id: id,
            remote_id,
            private_data: private_data(data),
        });
        self.enter(now, id, ConnState::TimeWait);
        self.send(route, tid, message);
        Ok(())
    }

    /// Requests the QP of a service. The ID of the message is filled in.
    ///
    /// The request is sent again every `interval_ns`, at most `retries` times.
    //= CM-ST-12
    pub fn request_service(
        &mut self,
        now: Time,
        route: CmRoute,
        interval_ns: u64,
        retries: u8,
        req: SidrReq,
    ) -> CommId {
        let id = self.add(|_| Conn {
            interval_ns,
            max_retries: retries,
            ..Conn::new(ConnState::SidrReqSent, route, TransactionId::new(0))
        });
        let message = CmMessage::SidrReq(SidrReq {
            request_id: id,
            ..req
        });
        self.send_until_answered(now, id, self.config.tid(id), message);
        id
    }

    /// Answers a request for the QP of a service. ID and service of the message are filled in.
    ///
    /// # Errors
    /// [`CmError`]: there is no request to answer.
    //= CM-ST-12
    pub fn reply_service(&mut self, now: Time, id: CommId, rep: SidrRep) -> Result<(), CmError> {
        let conn = self.conn(id, &[ConnState::SidrReqRcvd])?;
        let tid = conn.tid;
        let message = CmMessage::SidrRep(SidrRep {
            request_id: conn.remote_id,
            service_id: conn.service,
            ..rep
        });
        self.enter(now, id, ConnState::SidrReplied);
        self.send_and_keep(id, tid, message);
        self.arm(id, now.plus_ns(SIDR_KEPT_NS));
        self.replied.push_back(id);
        if self.replied.len() > MAX_SIDR_KEPT {
            let oldest = self.replied.pop_front();
            let is_kept = |id: &CommId| {
                let conn = self.conns.get(id);
                conn.is_some_and(|conn| conn.state == ConnState::SidrReplied)
            };
            if let Some(oldest) = oldest.filter(is_kept) {
                self.enter(now, oldest, ConnState::Idle);
            }
        }
        Ok(())
    }

    /// Drops a request that the program has not fetched, without an answer. Its sender will repeat
    /// it.
    //= LRC-15
    pub fn ignore(&mut self, now: Time, id: CommId) {
        let waits = [
            ConnState::ReqRcvd,
            ConnState::MraReqSent,
            ConnState::SidrReqRcvd,
        ];
        if let Ok(conn) = self.conn(id, &waits) {
            let (state, fingerprint) = (conn.state, conn.fingerprint);
            if state != ConnState::SidrReqRcvd {
                self.refused.note(now, fingerprint, false);
            }
            self.counters.rx_dropped += 1;
            self.abandon(now, id, ConnState::Idle);
        }
    }

    /// Destroys a connection that its owner no longer uses, and sends the peer the message that its
    /// state requires.
    //= CM-ST-10
    pub fn destroy(&mut self, now: Time, id: CommId) {
        let guid = self.config.guid.get().to_be_bytes();
        let Some(conn) = self.conns.get(&id) else {
            return;
        };
        if conn.is_abandoned {
            return;
        }
        let (state, route, remote_id) = (conn.state, conn.route, conn.remote_id);
        let next = match state {
            ConnState::ReqSent | ConnState::MraReqRcvd => {
                // `reject` cannot fail in these states.
                let _ = self.reject(now, id, RejReason::Timeout, &guid, &[]);
                ConnState::Idle
            }
            ConnState::ReqRcvd
            | ConnState::MraReqSent
            | ConnState::RepRcvd
            | ConnState::MraRepSent
            | ConnState::RepSent
            | ConnState::MraRepRcvd => {
                let _ = self.reject(now, id, RejReason::Consumer, &[], &[]);
                match state {
                    ConnState::RepSent | ConnState::MraRepRcvd => ConnState::TimeWait,
                    _ => ConnState::Idle,
                }
            }
            // Other handles may keep the XRC target open. It goes on receiving.
            ConnState::Established if conn.end == End::XrcTarget => ConnState::Idle,
            ConnState::Established => {
                let message = dreq(id, remote_id, conn.remote_qpn, &[]);
                let tid = self.config.tid(id);
                self.send(route, tid, message);
                if let Some(conn) = self.conns.get_mut(&id) {
                    conn.is_disconnecting = true;
                }
                ConnState::TimeWait
            }
            ConnState::DreqRcvd => {
                let _ = self.reply_to_disconnect(now, id, &[]);
                ConnState::TimeWait
            }
            ConnState::SidrReqRcvd => {
                let _ = self.reply_service(now, id, refusal(SidrStatus::Rejected));
                ConnState::SidrReplied
            }
            // The message is still repeated until the peer answers.
            ConnState::DreqSent | ConnState::TimeWait | ConnState::SidrReplied => state,
            ConnState::SidrReqSent | ConnState::Idle => ConnState::Idle,
        };
        self.abandon(now, id, next);
    }

    /// Reports no more events of the connection. Its state is kept as long as the peer may send
    /// messages about it.
    fn abandon(&mut self, now: Time, id: CommId, next: ConnState) {
        if let Some(conn) = self.conns.get_mut(&id) {
            conn.is_abandoned = true;
            if conn.state != next || next == ConnState::Idle {
                self.enter(now, id, next);
            }
        }
    }
}

fn dreq(local_id: CommId, remote_id: CommId, remote_qpn: Qpn, data: &[u8]) -> CmMessage {
    CmMessage::Dreq(Dreq {
        local_id,
        remote_id,
        remote_qpn,
        private_data: private_data(data),
    })
}

/// Returns a SIDR_REP without a QP.
#[must_use]
pub fn refusal(status: SidrStatus) -> SidrRep {
    SidrRep {
        request_id: CommId::new(0),
        status,
        info_len: 0,
        ece: Ece::NONE,
        qpn: Qpn::new(0),
        service_id: rocade_wire::mad::ServiceId::new(0),
        qkey: rocade_wire::Qkey::new(0),
        info: [0; SidrRep::INFO_LEN],
        private_data: [0; SidrRep::PRIVATE_LEN],
    }
}
