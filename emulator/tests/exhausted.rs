//! A process without file descriptors: a verb that fails has no partial effect.
//!
//! The limit applies to the whole process, so that there is only one test here.

#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "tests: a failure may panic, sizes are small"
)]

mod common;

use std::thread;
use std::time::Duration;

use common::{ALL_ACCESS, Side, pair};
use rocade_emulator::{AddressVector, QpAttr, QpAttrMask, QpState, SendOp, VerbsError, WcStatus};

fn set_descriptor_limit(limit: libc::rlimit) {
    // SAFETY: the pointer is to a live rlimit.
    let result = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
    assert_eq!(
        result, 0,
        "lowering and restoring a limit is always allowed"
    );
}

/// Calls `f` while no descriptor can be opened. The limit is below the descriptors in use, so that
/// it works whatever the background threads open and close meanwhile. It must not be lower than the
/// number of descriptors that they poll at once.
fn without_descriptors<T>(f: impl FnOnce() -> T) -> T {
    const IN_USE: libc::c_int = 8;
    for descriptor in 0..IN_USE {
        // SAFETY: asks only, and takes no pointers.
        let flags = unsafe { libc::fcntl(descriptor, libc::F_GETFD) };
        assert!(flags >= 0, "{descriptor} is free");
    }
    with_descriptor_limit(IN_USE as libc::rlim_t, f)
}

fn with_descriptor_limit<T>(descriptors: libc::rlim_t, f: impl FnOnce() -> T) -> T {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the pointer is to a live rlimit.
    let result = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    assert_eq!(result, 0);
    set_descriptor_limit(libc::rlimit {
        rlim_cur: descriptors,
        ..limit
    });
    let result = f();
    set_descriptor_limit(limit);
    result
}

/// The attributes as an application sees them.
fn image(side: &Side) -> String {
    format!("{:?}", side.qp.query())
}

/// Checks that the call fails without a descriptor and changes nothing, and that it succeeds with
/// one.
fn all_or_nothing(side: &Side, modify: impl Fn() -> Result<(), VerbsError>) {
    let before = image(side);
    let error = without_descriptors(&modify).unwrap_err();
    assert!(matches!(error, VerbsError::Io(_)), "{error:?}");
    assert_eq!(error.errno(), libc::EMFILE);
    assert_eq!(image(side), before);
    modify().unwrap();
    assert_ne!(image(side), before);
}

fn write(from: &Side, to: &Side, data: &[u8]) {
    from.fill(0, data);
    let op = SendOp::Write {
        va: to.addr(64),
        rkey: to.mr.rkey(),
        imm: None,
    };
    from.send(1, op, &[from.sge(0, data.len())]);
    assert_eq!(from.completion().status, WcStatus::Success);
    assert_eq!(to.bytes(64, data.len()), data);
}

//= QPS-02 type=test
#[test]
fn a_queue_pair_that_gets_no_socket_stays_as_it_is() {
    let (a, b) = pair("127.2.9.1", "127.2.9.2", 4096);
    // The address is in use already. The socket to another slot of the peer does not exist yet.
    let qp = Side::on(a.engine.clone(), 4096);
    qp.qp.to_init(ALL_ACCESS).unwrap();
    let elsewhere = b.qp.qp_num().get() ^ 0x01_0000;
    let connection = qp.connection(elsewhere, b.gid());
    all_or_nothing(&qp, || qp.qp.to_rtr(&connection));

    // Another hop limit needs another socket.
    write(&a, &b, b"before");
    let sqd = QpAttr {
        qp_state: QpState::Sqd.code(),
        ..QpAttr::default()
    };
    a.qp.modify(&sqd, QpAttrMask::STATE).unwrap();
    let nearer = QpAttr {
        ah_attr: AddressVector {
            hop_limit: 7,
            ..connection.address()
        },
        ..QpAttr::default()
    };
    all_or_nothing(&a, || a.qp.modify(&nearer, QpAttrMask::AV));
    let rts = QpAttr {
        qp_state: QpState::Rts.code(),
        ..QpAttr::default()
    };
    a.qp.modify(&rts, QpAttrMask::STATE).unwrap();
    write(&a, &b, b"after");
    write(&b, &a, b"back");

    // A process that gives up its right to open descriptors still gets its packets.
    with_descriptor_limit(0, || {
        for _ in 0..3 {
            thread::sleep(Duration::from_millis(20));
            write(&a, &b, b"still there?");
        }
    });
}
