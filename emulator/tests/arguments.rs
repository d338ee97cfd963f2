//! Wrong arguments cause the documented errno or completion status, and no other effect.

#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    clippy::mem_forget,
    reason = "tests: a failure may panic, sizes are small, a region is leaked on purpose"
)]

mod common;

use common::{ALL_ACCESS, Side, connect, engine, pair};
use rocade_emulator::{
    AccessFlags, AsyncEventKind, EventElement, QpAttr, QpAttrMask, QpCap, QpInitAttr, QpState,
    QpType, Rkey, SendFlags, SendOp, SendWr, Sge, VerbsError, WcStatus,
};

fn errno<T: std::fmt::Debug>(result: Result<T, VerbsError>) -> i32 {
    result.unwrap_err().errno()
}

//= MR-02 type=test
//= MR-04 type=test
//= MR-06 type=test
//= MR-08 type=test
#[test]
fn registration() {
    let context = engine("127.2.0.1").open_device("dev").unwrap();
    let pd = context.alloc_pd().unwrap();
    let memory = vec![0u8; 4096].leak();
    let addr = memory.as_ptr() as u64;
    let write = AccessFlags::LOCAL_WRITE;
    let reg = |addr, len, access| {
        // SAFETY: leaked memory, or the call fails.
        unsafe { pd.reg_mr(addr, len, addr, access) }
    };
    assert!(reg(addr, 0, write).is_ok() && reg(addr + 7, 0, write).is_ok());
    assert_eq!(errno(reg(u64::MAX - 10, 100, write)), libc::EINVAL, "wraps");
    assert_eq!(errno(reg(16, 100, write)), libc::EFAULT, "not mapped");
    let constant: &'static [u8; 4096] = &[7; 4096];
    let read_only = constant.as_ptr() as u64;
    assert_eq!(errno(reg(read_only, 64, write)), libc::EFAULT, "read-only");
    assert!(reg(read_only, 64, AccessFlags::empty()).is_ok());
    assert_eq!(
        errno(reg(addr, 64, AccessFlags::REMOTE_WRITE)),
        libc::EINVAL
    );
    assert_eq!(
        errno(reg(addr, 64, AccessFlags::REMOTE_ATOMIC)),
        libc::EINVAL
    );
    assert_eq!(
        errno(reg(addr, 64, AccessFlags::FLUSH_PERSISTENT)),
        libc::EOPNOTSUPP
    );
    let unknown = AccessFlags::from_bits_retain(1 << 15);
    assert_eq!(errno(reg(addr, 64, unknown)), libc::EINVAL);
    let optional = AccessFlags::from_bits_retain(1 << 29);
    assert!(
        reg(addr, 64, optional).is_ok(),
        "unknown optional rights are ignored"
    );
}

//= DST-01 type=test
//= DST-02 type=test
//= CQ-09 type=test
//= DST-06 type=test
#[test]
fn objects_in_use_are_busy_and_end_cleanly() {
    let side = Side::new("127.2.0.2", 4096);
    assert_eq!(errno(side.pd.destroy()), libc::EBUSY);
    assert_eq!(errno(side.cq.destroy()), libc::EBUSY);
    assert_eq!(errno(side.channel.destroy()), libc::EBUSY);
    side.qp.destroy().unwrap();
    assert_eq!(errno(side.qp.destroy()), libc::EINVAL);
    side.cq.destroy().unwrap();
    assert_eq!(
        errno(side.pd.destroy()),
        libc::EBUSY,
        "the region still exists"
    );
    side.mr.destroy().unwrap();
    side.pd.destroy().unwrap();
}

//= QPC-01 type=test
//= CQ-01 type=test
#[test]
fn creation_limits() {
    let side = Side::new("127.2.0.3", 64);
    assert_eq!(errno(side.context.create_cq(0, None, 0, 0)), libc::EINVAL);
    assert_eq!(
        errno(side.context.create_cq(u32::MAX, None, 0, 0)),
        libc::EINVAL
    );
    assert_eq!(errno(side.context.create_cq(1, None, 99, 0)), libc::EINVAL);
    let init = |cap, qp_type| QpInitAttr {
        send_cq: side.cq.clone(),
        recv_cq: side.cq.clone(),
        srq: None,
        cap,
        qp_type,
        sq_sig_all: false,
        cookie: 0,
    };
    let huge = QpCap {
        max_send_wr: 1 << 30,
        ..QpCap::default()
    };
    assert_eq!(
        errno(side.pd.create_qp(init(huge, QpType::Rc))),
        libc::EINVAL
    );
    let huge = QpCap {
        max_recv_sge: 10_000,
        ..QpCap::default()
    };
    assert_eq!(
        errno(side.pd.create_qp(init(huge, QpType::Rc))),
        libc::EINVAL
    );
    // DC targets are made with `create_dct`.
    let target = side.pd.create_qp(init(QpCap::default(), QpType::DcTarget));
    assert_eq!(errno(target), libc::EINVAL);
    assert_eq!(errno(side.context.port_attr(2).map(drop)), libc::EINVAL);
    assert_eq!(errno(side.context.pkey(1)), libc::EINVAL);
    assert_eq!(errno(side.engine.open_device("nosuch")), libc::ENODEV);
}

//= QPT-31 type=test
//= QPS-03 type=test
//= QPV-03 type=test
#[test]
fn modify_qp() {
    let side = Side::new("127.2.0.4", 64);
    let init = QpAttr {
        qp_state: QpState::Init.code(),
        port_num: 1,
        ..QpAttr::default()
    };
    let full =
        QpAttrMask::STATE | QpAttrMask::PKEY_INDEX | QpAttrMask::PORT | QpAttrMask::ACCESS_FLAGS;
    let modify = |attr: &QpAttr, mask| side.qp.modify(attr, mask);
    let rts = QpAttr {
        qp_state: QpState::Rts.code(),
        ..init
    };
    assert_eq!(
        errno(modify(&rts, QpAttrMask::STATE)),
        libc::EINVAL,
        "RESET to RTS"
    );
    let missing = full - QpAttrMask::PORT;
    assert_eq!(
        errno(modify(&init, missing)),
        libc::EINVAL,
        "a required attribute is missing"
    );
    let extra = full | QpAttrMask::SQ_PSN;
    assert_eq!(
        errno(modify(&init, extra)),
        libc::EINVAL,
        "an attribute too many"
    );
    let port = QpAttr {
        port_num: 2,
        ..init
    };
    assert_eq!(errno(modify(&port, full)), libc::EINVAL, "no such port");
    let pkey = QpAttr {
        pkey_index: 1,
        ..init
    };
    assert_eq!(
        errno(modify(&pkey, full)),
        libc::EINVAL,
        "beyond the P_Key table"
    );
    assert_eq!(side.qp.state(), QpState::Reset, "nothing has changed");
    modify(&init, full).unwrap();
    assert_eq!(side.qp.state(), QpState::Init);
}

//= PST-01 type=test
//= PST-09 type=test
//= RC-WQE-06 type=test
#[test]
fn posting() {
    let side = Side::new("127.2.0.5", 4096);
    fn wr(sges: &[Sge]) -> SendWr<'_> {
        let op = SendOp::Send { imm: None };
        SendWr {
            wr_id: 1,
            op,
            flags: SendFlags::SIGNALED,
            sges,
        }
    }
    let sge = side.sge(0, 8);
    assert_eq!(
        errno(side.qp.post_sends(|queue| queue.push(&wr(&[sge])))),
        libc::EINVAL,
        "RESET"
    );
    assert_eq!(
        errno(side.qp.recv_queue().push(1, &[sge])),
        libc::EINVAL,
        "RESET"
    );
    // No peer answers at that address, so that requests stay in the queue.
    side.to_rts(
        0x1234,
        "::ffff:127.2.0.99"
            .parse::<std::net::Ipv6Addr>()
            .map(gid)
            .unwrap(),
    );
    let five = [sge; 5];
    assert_eq!(
        errno(side.qp.post_sends(|queue| queue.push(&wr(&five)))),
        libc::EINVAL,
        "too many SGEs"
    );
    assert_eq!(
        errno(side.qp.recv_queue().push(1, &five)),
        libc::EINVAL,
        "too many SGEs"
    );
    let long = [0; 257];
    assert_eq!(
        errno(
            side.qp
                .post_sends(|queue| queue.push_inline(&wr(&[]), &long))
        ),
        libc::EINVAL
    );
    let read = SendOp::Read {
        va: 0,
        rkey: Rkey::new(1),
    };
    let inline_read = SendWr {
        op: read,
        ..wr(&[])
    };
    assert_eq!(
        errno(
            side.qp
                .post_sends(|queue| queue.push_inline(&inline_read, &[0; 8]))
        ),
        libc::EINVAL
    );
    let short = [side.sge(0, 7)];
    let add = SendOp::FetchAdd {
        va: 0,
        rkey: Rkey::new(1),
        add: 1,
    };
    let atomic = SendWr {
        op: add,
        ..wr(&short)
    };
    assert_eq!(
        errno(side.qp.post_sends(|queue| queue.push(&atomic))),
        libc::EINVAL,
        "7 bytes"
    );
    for _ in 0..128 {
        side.qp.post_sends(|queue| queue.push(&wr(&[sge]))).unwrap();
        side.qp.recv_queue().push(1, &[sge]).unwrap();
    }
    assert_eq!(
        errno(side.qp.post_sends(|queue| queue.push(&wr(&[sge])))),
        libc::ENOMEM,
        "full"
    );
    assert_eq!(
        errno(side.qp.recv_queue().push(1, &[sge])),
        libc::ENOMEM,
        "full"
    );
}

fn gid(ip: std::net::Ipv6Addr) -> rocade_emulator::Gid {
    rocade_emulator::Gid::from_ip(ip.into())
}

/// Sends once and returns the status of the sender's completion, and of the receiver's if there is
/// one.
fn statuses(
    a: &Side,
    b: &Side,
    op: SendOp,
    local: Sge,
    receive: Option<Sge>,
) -> (WcStatus, Option<WcStatus>) {
    if let Some(sge) = receive {
        b.qp.recv_queue().push(2, &[sge]).unwrap();
    }
    a.send(1, op, &[local]);
    let sent = a.completion();
    (sent.status, receive.map(|_| b.completion().status))
}

//= PD-03 type=test
//= MR-12 type=test
//= RC-REQ-14 type=test
#[test]
fn local_keys() {
    let send = SendOp::Send { imm: None };
    let bad = |f: fn(&Side) -> Sge, addresses: (&str, &str)| {
        let (a, b) = pair(addresses.0, addresses.1, 4096);
        let sge = f(&a);
        assert_eq!(statuses(&a, &b, send, sge, None).0, WcStatus::LocProtErr);
        assert_eq!(a.qp.state(), QpState::Err);
    };
    bad(
        |a| Sge {
            lkey: rocade_emulator::Lkey::new(0x00de_ad00),
            ..a.sge(0, 8)
        },
        ("127.2.1.1", "127.2.1.2"),
    );
    bad(
        |a| Sge {
            len: 5000,
            ..a.sge(0, 8)
        },
        ("127.2.1.3", "127.2.1.4"),
    );
    bad(
        |a| {
            let other = a.context.alloc_pd().unwrap();
            // SAFETY: leaked memory.
            let mr = unsafe { other.reg_mr(a.addr(0), 64, a.addr(0), ALL_ACCESS) }.unwrap();
            let lkey = mr.lkey();
            std::mem::forget(mr);
            Sge {
                lkey,
                ..a.sge(0, 8)
            }
        },
        ("127.2.1.5", "127.2.1.6"),
    );
}

//= RC-RSP-10 type=test
//= RC-RSP-12 type=test
#[test]
fn receive_buffers() {
    let send = SendOp::Send { imm: None };
    let (a, b) = pair("127.2.2.1", "127.2.2.2", 4096);
    let result = statuses(&a, &b, send, a.sge(0, 100), Some(b.sge(0, 99)));
    assert_eq!(result, (WcStatus::RemInvReqErr, Some(WcStatus::LocLenErr)));

    let (a, b) = pair("127.2.2.3", "127.2.2.4", 4096);
    let bad = Sge {
        lkey: rocade_emulator::Lkey::new(0x7700),
        ..b.sge(0, 100)
    };
    let result = statuses(&a, &b, send, a.sge(0, 100), Some(bad));
    assert_eq!(result, (WcStatus::RemOpErr, Some(WcStatus::LocProtErr)));
}

//= RC-RSP-08 type=test
//= RC-ERR-C type=test
//= AEV-03 type=test
#[test]
fn remote_keys() {
    let (a, b) = pair("127.2.3.1", "127.2.3.2", 4096);
    let op = SendOp::Write {
        va: b.addr(4090),
        rkey: b.mr.rkey(),
        imm: None,
    };
    assert_eq!(
        statuses(&a, &b, op, a.sge(0, 7), None).0,
        WcStatus::RemAccessErr
    );
    let event = b.context.next_async_event().unwrap();
    assert_eq!(event.kind, AsyncEventKind::QpAccessErr);
    b.context.ack_async_event(&event);
    assert_eq!(b.qp.state(), QpState::Err);
    assert_eq!(event.element, EventElement::Qp(9));

    let (a, b) = pair("127.2.3.3", "127.2.3.4", 4096);
    b.mr.destroy().unwrap();
    let op = SendOp::Read {
        va: b.addr(0),
        rkey: b.mr.rkey(),
    };
    assert_eq!(
        statuses(&a, &b, op, a.sge(0, 8), None).0,
        WcStatus::RemAccessErr
    );

    let (a, b) = pair("127.2.3.5", "127.2.3.6", 4096);
    let op = SendOp::FetchAdd {
        va: b.addr(4),
        rkey: b.mr.rkey(),
        add: 1,
    };
    assert_eq!(
        statuses(&a, &b, op, a.sge(0, 8), None).0,
        WcStatus::RemInvReqErr
    );
}

//= CQ-02 type=test
//= RC-ERR-G type=test
#[test]
fn completion_queue_overflow() {
    let (a, b) = (Side::new("127.2.4.1", 4096), Side::new("127.2.4.2", 4096));
    a.cq.resize(2).unwrap();
    connect(&a, &b);
    for wr_id in 0..3 {
        b.qp.recv_queue().push(wr_id, &[b.sge(0, 8)]).unwrap();
    }
    for wr_id in 0..3 {
        a.send(wr_id, SendOp::Send { imm: None }, &[a.sge(0, 8)]);
    }
    for _ in 0..3 {
        assert_eq!(b.completion().status, WcStatus::Success);
    }
    let mut kinds = Vec::new();
    while !kinds.contains(&AsyncEventKind::QpFatal) {
        let event = a.context.next_async_event().unwrap();
        a.context.ack_async_event(&event);
        kinds.push(event.kind);
    }
    assert!(kinds.contains(&AsyncEventKind::CqErr));
    assert_eq!(a.qp.state(), QpState::Err);
}
