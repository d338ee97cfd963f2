use super::*;
use crate::{
    BrokerMode, Engine, EngineConfig, Qp, QpAttr, QpAttrMask, QpCap, QpInitAttr, QpState, QpType,
};

fn bring(qp: &Qp, state: QpState, mask: QpAttrMask) {
    let attr = QpAttr {
        qp_state: state.code(),
        port_num: 1,
        ..QpAttr::default()
    };
    qp.modify(&attr, QpAttrMask::STATE | mask).expect("a state");
}

#[test]
fn an_event_that_no_one_takes_keeps_neither_its_queue_nor_the_channel() {
    let specs = ["dev=127.4.0.90".to_owned()];
    let config = EngineConfig::from_specs(&specs, BrokerMode::Embedded).expect("a device");
    let engine = Engine::new(config).expect("an engine");
    let context = engine.open_device("dev").expect("a device");
    let pd = context.alloc_pd().expect("a domain");
    for is_dropped_before in [false, true] {
        let channel = context.create_comp_channel().expect("a channel");
        let cq = context.create_cq(4, Some(&channel), 0, 0).expect("a CQ");
        let init = QpInitAttr {
            send_cq: cq.clone(),
            recv_cq: cq.clone(),
            srq: None,
            cap: QpCap {
                max_send_wr: 1,
                max_recv_wr: 1,
                ..QpCap::default()
            },
            qp_type: QpType::Rc,
            sq_sig_all: false,
            cookie: 0,
        };
        let qp = pd.create_qp(init).expect("a queue pair");
        let access = QpAttrMask::PKEY_INDEX | QpAttrMask::PORT | QpAttrMask::ACCESS_FLAGS;
        bring(&qp, QpState::Init, access);
        qp.recv_queue().push(0, &[]).expect("space");
        cq.req_notify(false).expect("a channel");
        let of_channel = Arc::downgrade(&channel.inner);
        let of_cq = Arc::downgrade(&cq.inner);
        let mut channel = Some(channel);
        if is_dropped_before {
            channel = None;
        }
        // The receive is flushed, which is an event.
        bring(&qp, QpState::Err, QpAttrMask::empty());
        let has_event = |channel: &CompChannel| channel.inner.events.len() == 1;
        assert!(channel.as_ref().is_none_or(has_event));
        drop((qp, cq, channel));
        assert!(of_channel.upgrade().is_none(), "{is_dropped_before}");
        assert!(of_cq.upgrade().is_none(), "{is_dropped_before}");
    }
}
