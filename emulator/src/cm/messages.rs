//! Conversions between the attributes of both ends and the messages of a connection.

use rocade_transport::QpType;
use rocade_transport::cm::{CmRoute, private_data};
use rocade_wire::mad::{CmPath, CmTimeout, CommId, Failover, Rep, Req, ServiceId, TransportType};
use rocade_wire::{Guid, Pkey, Qkey, Qpn};

use super::event::ConnParam;
use super::id::{IdCore, MAX_CM_RETRIES, PeerEnd, RESPONSE_TIMEOUT};

impl IdCore {
    /// Makes a REQ.
    //= CMA-02
    //= CM-FLD-02
    pub(super) fn request(
        &self,
        route: CmRoute,
        service_id: ServiceId,
        param: &ConnParam,
        private_data: [u8; Req::PRIVATE_LEN],
    ) -> Req {
        //= CM-FLD-09
        //= XRC-15
        let is_xrc = matches!(self.qp_type, QpType::XrcSend | QpType::XrcRecv);
        // An XRC initiator has no responder, so the fields that describe one stay 0.
        let unless_xrc = |value: u8| if is_xrc { 0 } else { value };
        Req {
            local_id: CommId::new(0),
            ece: self.local_ece,
            service_id,
            ca_guid: Guid::new(0),
            qkey: Qkey::new(0),
            qpn: param.qp_num,
            responder_resources: unless_xrc(param.responder_resources),
            eecn: 0,
            initiator_depth: param.initiator_depth,
            remote_eecn: 0,
            remote_response_timeout: RESPONSE_TIMEOUT,
            transport: self.qp_type.traits().transport.unwrap_or(TransportType::Rc),
            flow_control: param.flow_control,
            //= CM-FLD-08
            starting_psn: self.rq_psn,
            local_response_timeout: RESPONSE_TIMEOUT,
            retry_count: unless_xrc(param.retry_count.min(7)),
            pkey: Pkey::DEFAULT,
            mtu: self.mtu().code(),
            rdc_exists: false,
            rnr_retry_count: unless_xrc(param.rnr_retry_count.min(7)),
            max_cm_retries: MAX_CM_RETRIES,
            srq: param.srq && !is_xrc,
            primary: self.path(route.local, route.remote),
            alternate: CmPath::NONE,
            sap_supported: false,
            private_data,
        }
    }

    /// Makes a REP, whose private data is the application's alone.
    //= CMA-03
    pub(super) fn reply(&self, param: &ConnParam) -> Rep {
        //= CM-FLD-09
        let is_target = self.qp_type == QpType::XrcRecv;
        let (qpn, eecn) = match param.qp_num {
            target if is_target => (Qpn::new(0), target),
            qpn => (qpn, Qpn::new(0)),
        };
        Rep {
            local_id: CommId::new(0),
            remote_id: CommId::new(0),
            qkey: Qkey::new(0),
            qpn,
            eecn,
            ece: self.local_ece,
            starting_psn: self.rq_psn,
            responder_resources: param.responder_resources,
            initiator_depth: if is_target { 0 } else { param.initiator_depth },
            target_ack_delay: self.ack_delay(),
            failover: Failover::NotSupported,
            flow_control: param.flow_control && !is_target,
            rnr_retry_count: param.rnr_retry_count.min(7),
            srq: param.srq || is_target,
            ca_guid: Guid::new(0),
            private_data: private_data(&param.private_data),
        }
    }
}

/// The longest ACK timeout that a peer can request: 17 s. 0 would be for ever.
const MAX_ACK_TIMEOUT: CmTimeout = CmTimeout::new(22);

/// Returns the ACK timeout of a queue pair whose peer requests `asked`.
//= CMA-10
pub(super) const fn ack_timeout(asked: CmTimeout) -> CmTimeout {
    if asked.code() == 0 || asked.code() > MAX_ACK_TIMEOUT.code() {
        MAX_ACK_TIMEOUT
    } else {
        asked
    }
}

/// Returns the attributes of the sender of a REQ.
pub(super) fn peer_of_request(req: &Req) -> PeerEnd {
    PeerEnd {
        qpn: req.qpn,
        sq_psn: req.starting_psn,
        mtu: req.mtu,
        //= CM-FLD-02
        responder_resources: req.initiator_depth,
        initiator_depth: req.responder_resources,
        timeout: ack_timeout(req.primary.ack_timeout),
        retry_count: req.retry_count,
        rnr_retry_count: req.rnr_retry_count,
        hop_limit: req.primary.hop_limit,
        traffic_class: req.primary.traffic_class,
        flow_label: req.primary.flow_label,
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    //= CMA-10 type=test
    #[test]
    fn no_queue_pair_waits_for_hours() {
        let codes: [u8; 32] = std::array::from_fn(|code| {
            let asked = CmTimeout::new(u8::try_from(code).unwrap());
            ack_timeout(asked).code()
        });
        assert_eq!((codes[0], codes[31]), (22, 22));
        for (asked, code) in (1..=22).zip(&codes[1..]) {
            assert_eq!(asked, *code);
        }
    }
}
