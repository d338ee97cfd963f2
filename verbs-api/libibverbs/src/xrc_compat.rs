//! The legacy XRC verbs of Rocade's header `infiniband/verbs_xrc.h`. Programs refer to receive QPs
//! by number, and register a process with a QP instead of opening it.

use std::{
    collections::BTreeMap,
    ffi::{c_int, c_void},
    sync::{Mutex, MutexGuard, PoisonError},
};

use rocade_abi::{
    IBV_QP_OPEN_ATTR_NUM, IBV_QP_OPEN_ATTR_TYPE, IBV_QP_OPEN_ATTR_XRCD, IBV_QPT_XRC_RECV,
    IBV_SRQ_INIT_ATTR_CQ, IBV_SRQ_INIT_ATTR_PD, IBV_SRQ_INIT_ATTR_TYPE, IBV_SRQ_INIT_ATTR_XRCD,
    IBV_SRQT_XRC, IBV_XRCD_INIT_ATTR_FD, IBV_XRCD_INIT_ATTR_OFLAGS, ibv_context, ibv_cq, ibv_pd,
    ibv_qp, ibv_qp_attr, ibv_qp_cap, ibv_qp_init_attr, ibv_qp_open_attr, ibv_srq,
    ibv_srq_init_attr, ibv_srq_init_attr_ex, ibv_xrcd, ibv_xrcd_init_attr,
};
use rocade_emulator::Xrcd;

use crate::{
    ffi::{self, Errno, int_verb, ptr_verb},
    handle::CHandle,
    qp::{self, QpObject},
    qp_ex, srq,
    xrcd::{self, XrcdObject},
};

/// The flag in the type of an event of a receive QP. The event's element then holds the QP number.
//= XRCL-14
pub(crate) const EVENT_FLAG: u32 = 0x8000_0000;

/// `struct ibv_xrc_domain`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_xrc_domain {
    context: *mut ibv_context,
    handle: u64,
}

/// `struct ibv_xrc_qp_init_attr`: the attributes of a QP, and its XRC domain.
#[repr(C)]
#[derive(Clone, Copy)]
//= XRCL-12
pub(crate) struct ibv_xrc_qp_init_attr {
    qp_context: *mut c_void,
    send_cq: *mut ibv_cq,
    recv_cq: *mut ibv_cq,
    srq: *mut ibv_srq,
    cap: ibv_qp_cap,
    qp_type: u32,
    sq_sig_all: c_int,
    xrc_domain: *mut ibv_xrc_domain,
}

type DomainObject = CHandle<ibv_xrc_domain, Opened>;

/// The `ibv_xrcd` behind a legacy XRC domain.
struct Opened(*mut ibv_xrcd);

/// A receive QP that this process is registered with.
#[derive(Clone, Copy)]
struct Registration(*mut ibv_qp);

// SAFETY: any thread may use the object behind the pointer.
unsafe impl Send for Registration {}

/// The registered receive QPs by number. A process registers at most once with each.
static REGISTERED: Mutex<BTreeMap<u32, Registration>> = Mutex::new(BTreeMap::new());

fn registered() -> MutexGuard<'static, BTreeMap<u32, Registration>> {
    REGISTERED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the number of a QP that the program refers to by number only.
pub(crate) fn number_of(qp: *mut ibv_qp) -> Option<u32> {
    let all = registered();
    all.iter()
        .find(|(_, registration)| registration.0 == qp)
        .map(|(number, _)| *number)
}

/// Acknowledges an event of a receive QP with this number.
pub(crate) fn ack_event(number: u32) {
    let found = registered().get(&number).copied();
    if let Some(Registration(qp)) = found
        // SAFETY: the QP lives until its events are acknowledged.
        && let Ok(object) = unsafe { QpObject::borrow(qp.cast()) }
    {
        object.inner().qp().ack_async_events(1);
    }
}

/// Returns the `ibv_xrcd` behind a legacy XRC domain.
///
/// # Safety
/// `domain` must be NULL or a live domain.
unsafe fn plain(domain: *mut ibv_xrc_domain) -> Result<*mut ibv_xrcd, Errno> {
    // SAFETY: same contract.
    Ok(unsafe { DomainObject::borrow(domain) }?.inner().0)
}

/// Finds a QP of the domain that this process is registered with.
///
/// # Safety
/// `domain` must be NULL or a live domain.
unsafe fn find(domain: *mut ibv_xrc_domain, number: u32) -> Result<*mut ibv_qp, Errno> {
    // SAFETY: same contract. The `ibv_xrcd` lives as long.
    let xrcd = unsafe { XrcdObject::borrow(plain(domain)?) }?
        .inner()
        .xrcd();
    let found = registered().get(&number).copied();
    let Registration(qp) = found.ok_or(Errno::INVAL)?;
    // SAFETY: the QP lives as long as it is registered.
    let state = unsafe { QpObject::borrow(qp.cast()) }?.inner();
    //= XRCL-08
    if state.qp().is_target_of(xrcd) {
        Ok(qp)
    } else {
        Err(Errno::INVAL)
    }
}

fn errno_of(code: c_int) -> Result<(), Errno> {
    if code == 0 { Ok(()) } else { Err(Errno(code)) }
}

fn last_errno() -> Errno {
    Errno(
        std::io::Error::last_os_error()
            .raw_os_error()
            .unwrap_or(libc::EIO),
    )
}

/// `ibv_open_xrc_domain`: opens the domain of the inode behind `fd`, or a private one for -1.
//= XRCL-01 XRCL-02 XRCL-03
//= XRCL-04 XDEC-06
pub(crate) unsafe extern "C" fn ibv_open_xrc_domain(
    context: *mut ibv_context,
    fd: c_int,
    oflag: c_int,
) -> *mut ibv_xrc_domain {
    ptr_verb(|| {
        let oflags = if fd == -1 { libc::O_CREAT } else { oflag };
        if oflags & !(libc::O_CREAT | libc::O_EXCL) != 0 {
            return Err(Errno::INVAL);
        }
        let mut init = ibv_xrcd_init_attr {
            comp_mask: IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS,
            fd,
            oflags,
        };
        // SAFETY: by contract an open context, and a local structure.
        let xrcd = unsafe { xrcd::open_xrcd(context, &raw mut init) };
        if xrcd.is_null() {
            return Err(last_errno());
        }
        DomainObject::create(|address| {
            let c = ibv_xrc_domain {
                context,
                handle: address.addr() as u64,
            };
            Ok((c, Opened(xrcd)))
        })
    })
}

/// `ibv_close_xrc_domain`: fails with `EBUSY` while the domain has SRQs or registered QPs.
//= XRCL-05
pub(crate) unsafe extern "C" fn ibv_close_xrc_domain(domain: *mut ibv_xrc_domain) -> c_int {
    int_verb(|| {
        // SAFETY: by contract a live domain that is not used afterwards. No other object uses its
        // `ibv_xrcd`.
        unsafe { DomainObject::destroy(domain, |opened| errno_of(xrcd::close_xrcd(opened.0))) }
    })
}

/// `ibv_create_xrc_srq`: the `handle` of the structure is the SRQ number.
//= XRCL-06
pub(crate) unsafe extern "C" fn ibv_create_xrc_srq(
    pd: *mut ibv_pd,
    domain: *mut ibv_xrc_domain,
    cq: *mut ibv_cq,
    init: *mut ibv_srq_init_attr,
) -> *mut ibv_srq {
    ptr_verb(|| {
        // SAFETY: by contract NULL or valid.
        let init = unsafe { init.as_mut() }.ok_or(Errno::INVAL)?;
        // SAFETY: by contract NULL or a live domain.
        let context = unsafe { DomainObject::borrow(domain) }?;
        // SAFETY: the C part is alive, and the program does not write it.
        let context = unsafe { (*context.c()).context };
        // SAFETY: the structure consists of integers and pointers, for which zero bytes are a
        // value.
        let mut all: ibv_srq_init_attr_ex = unsafe { std::mem::zeroed() };
        all.srq_context = init.srq_context;
        all.attr = init.attr;
        all.comp_mask = IBV_SRQ_INIT_ATTR_TYPE
            | IBV_SRQ_INIT_ATTR_PD
            | IBV_SRQ_INIT_ATTR_XRCD
            | IBV_SRQ_INIT_ATTR_CQ;
        all.srq_type = IBV_SRQT_XRC;
        (all.pd, all.cq) = (pd, cq);
        // SAFETY: by contract NULL or a live domain.
        all.xrcd = unsafe { plain(domain) }?;
        // SAFETY: by contract all of it is NULL or alive.
        let srq = unsafe { srq::create_srq_ex(context, &raw mut all) };
        if srq.is_null() {
            return Err(last_errno());
        }
        init.attr = all.attr;
        Ok(srq)
    })
}

/// `ibv_create_xrc_rcv_qp`: uses only the domain of the attributes. Registers this process with the
/// QP.
//= XRCL-07
pub(crate) unsafe extern "C" fn ibv_create_xrc_rcv_qp(
    init: *mut ibv_xrc_qp_init_attr,
    number: *mut u32,
) -> c_int {
    int_verb(|| {
        // SAFETY: by contract NULL or readable.
        let init = unsafe { ffi::read(init) }?;
        // SAFETY: by contract NULL or writable.
        let number = unsafe { number.as_mut() }.ok_or(Errno::INVAL)?;
        // SAFETY: by contract NULL or a live domain.
        let xrcd = unsafe { plain(init.xrc_domain) }?;
        // Locked before the QP exists, so that its first event finds it.
        let mut all = registered();
        // SAFETY: the `ibv_xrcd` lives as long as the legacy domain.
        let qp = unsafe { qp::target(xrcd, init.qp_context, Xrcd::create_target) }?;
        // SAFETY: created above.
        *number = unsafe { (*qp).qp_num };
        all.insert(*number, Registration(qp));
        Ok(())
    })
}

/// `ibv_modify_xrc_rcv_qp`.
//= XRCL-08
pub(crate) unsafe extern "C" fn ibv_modify_xrc_rcv_qp(
    domain: *mut ibv_xrc_domain,
    number: u32,
    attr: *mut ibv_qp_attr,
    mask: c_int,
) -> c_int {
    int_verb(|| {
        // SAFETY: by contract NULL or a live domain.
        let qp = unsafe { find(domain, number) }?;
        // SAFETY: registered. The attributes are by contract NULL or readable.
        errno_of(unsafe { qp::ibv_modify_qp(qp, attr, mask) })
    })
}

/// `ibv_query_xrc_rcv_qp`.
//= XRCL-09
pub(crate) unsafe extern "C" fn ibv_query_xrc_rcv_qp(
    domain: *mut ibv_xrc_domain,
    number: u32,
    attr: *mut ibv_qp_attr,
    mask: c_int,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    int_verb(|| {
        // SAFETY: by contract NULL or a live domain.
        let qp = unsafe { find(domain, number) }?;
        // SAFETY: registered. The structures are by contract NULL or writable.
        errno_of(unsafe { qp::ibv_query_qp(qp, attr, mask, init) })
    })
}

/// `ibv_reg_xrc_rcv_qp`: registers this process, which has no effect if it created the QP or is
/// registered already.
//= XRCL-10 XDEC-06
pub(crate) unsafe extern "C" fn ibv_reg_xrc_rcv_qp(
    domain: *mut ibv_xrc_domain,
    number: u32,
) -> c_int {
    int_verb(|| {
        // SAFETY: by contract NULL or a live domain.
        let xrcd = unsafe { plain(domain) }?;
        if registered().contains_key(&number) {
            // SAFETY: same contract.
            return unsafe { find(domain, number) }.map(drop);
        }
        // SAFETY: the C part is alive, and the program does not write it.
        let context = unsafe { (*DomainObject::borrow(domain)?.c()).context };
        // SAFETY: the structure consists of integers and pointers, for which zero bytes are a
        // value.
        let mut open: ibv_qp_open_attr = unsafe { std::mem::zeroed() };
        open.comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE;
        open.qp_num = number;
        open.xrcd = xrcd;
        open.qp_type = IBV_QPT_XRC_RECV;
        let mut all = registered();
        // SAFETY: both live, and a local structure.
        let qp = unsafe { qp_ex::open_qp(context, &raw mut open) };
        if qp.is_null() {
            return Err(last_errno());
        }
        if let Some(Registration(earlier)) = all.insert(number, Registration(qp)) {
            // Another thread registered first: its handle stays.
            all.insert(number, Registration(earlier));
            // SAFETY: only this thread has the handle.
            unsafe { qp::ibv_destroy_qp(qp) };
        }
        Ok(())
    })
}

/// `ibv_unreg_xrc_rcv_qp`: waits until the QP's events are acknowledged. The last process to
/// unregister destroys the QP.
//= XRCL-11
pub(crate) unsafe extern "C" fn ibv_unreg_xrc_rcv_qp(
    domain: *mut ibv_xrc_domain,
    number: u32,
) -> c_int {
    int_verb(|| {
        // SAFETY: by contract NULL or a live domain.
        let qp = unsafe { find(domain, number) }?;
        // SAFETY: registered. Its events stay acknowledgeable until it is destroyed.
        let state = unsafe { QpObject::borrow(qp.cast()) }?.inner();
        state.qp().destroy()?;
        registered().remove(&number);
        // SAFETY: no call can find the QP any more, and it was closed.
        unsafe { QpObject::destroy(qp.cast(), |_| Ok(())) }
    })
}
