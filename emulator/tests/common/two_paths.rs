//! Two sides with two ports each, for tests of path migration.

use std::time::{Duration, Instant};

use rocade_emulator::{AddressVector, QpAttr, QpAttrMask, QpState, SendOp, WcStatus};

use super::common::{Side, pattern};

pub(crate) const MIGRATED: u32 = 0;
pub(crate) const REARM: u32 = 1;
pub(crate) const ARMED: u32 = 2;

/// Loads the alternate path over this port of both ends.
pub(crate) fn rearm(side: &Side, peer: &Side, port: u8, timeout: u8) {
    let attr = QpAttr {
        qp_state: QpState::Rts.code(),
        alt_ah_attr: AddressVector {
            dgid: peer.context.gid_entries_of(port).unwrap()[0].gid,
            hop_limit: 64,
            is_global: true,
            port_num: port,
            ..AddressVector::default()
        },
        alt_port_num: port,
        alt_timeout: timeout,
        path_mig_state: REARM,
        ..QpAttr::default()
    };
    let mask = QpAttrMask::ALT_PATH | QpAttrMask::PATH_MIG_STATE;
    side.qp.modify(&attr, mask).unwrap();
}

pub(crate) fn migration_of(side: &Side) -> u32 {
    side.qp.query().0.path_mig_state
}

pub(crate) fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < Duration::from_secs(20), "not yet: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Transfers WRITE, SEND and READ messages of several packets each, and compares every byte.
pub(crate) fn talk(a: &Side, b: &Side, seed: usize) {
    let len = 20_000;
    let rkey = b.mr.rkey();
    let data = pattern(len, seed);
    a.fill(0, &data);
    let va = b.addr(200_000);
    let write = SendOp::Write {
        va,
        rkey,
        imm: None,
    };
    a.send(1, write, &[a.sge(0, len)]);
    b.qp.recv_queue().push(3, &[b.sge(600_000, len)]).unwrap();
    a.send(2, SendOp::Send { imm: None }, &[a.sge(0, len)]);
    a.send(4, SendOp::Read { va, rkey }, &[a.sge(400_000, len)]);
    for wr_id in [1, 2, 4] {
        let completion = a.completion();
        assert_eq!(
            (completion.wr_id, completion.status),
            (wr_id, WcStatus::Success)
        );
    }
    assert_eq!(b.completion().status, WcStatus::Success);
    assert_eq!(b.bytes(200_000, len), data);
    assert_eq!(a.bytes(400_000, len), data);
    assert_eq!(b.bytes(600_000, len), data);
    assert!(a.cq.poll_one().is_none() && b.cq.poll_one().is_none());
}
