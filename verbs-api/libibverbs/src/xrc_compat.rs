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
    args::{Handle, In, InOut, Last, Out, member, members, zeroed},
    ffi::{Errno, int_verb, ptr_verb},
    handle::{CHandle, objects},
    qp::{self},
    qp_ex, srq, xrcd,
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

objects! {
    ibv_xrc_domain: ibv_xrc_domain, Opened;
}

/// The `ibv_xrcd` behind a legacy XRC domain.
pub(crate) struct Opened(*mut ibv_xrcd);

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

impl Registration {
    /// Returns the QP, which lives while it is registered, and until its events are acknowledged.
    const fn handle(&self) -> Handle<'_, ibv_qp> {
        // SAFETY: it is registered, or the program has not acknowledged its event.
        unsafe { Handle::new(self.0) }
    }
}

/// Acknowledges an event of a receive QP with this number.
pub(crate) fn ack_event(number: u32) {
    let found = registered().get(&number).copied();
    if let Some(registration) = found
        && let Ok(object) = registration.handle().get()
    {
        object.inner().qp().ack_async_events(1);
    }
}

impl Opened {
    /// Returns the `ibv_xrcd`, which lives as long as the legacy domain.
    const fn handle(&self) -> Handle<'_, ibv_xrcd> {
        // SAFETY: only the end of the legacy domain closes it.
        unsafe { Handle::new(self.0) }
    }
}

/// Returns the `ibv_xrcd` behind a legacy XRC domain.
fn plain(domain: Handle<'_, ibv_xrc_domain>) -> Result<Handle<'_, ibv_xrcd>, Errno> {
    Ok(domain.get()?.inner().handle())
}

/// Finds a QP of the domain that this process is registered with.
fn find(domain: Handle<'_, ibv_xrc_domain>, number: u32) -> Result<Registration, Errno> {
    let xrcd = plain(domain)?.get()?.inner().xrcd();
    let found = registered().get(&number).copied();
    let registration = found.ok_or(Errno::INVAL)?;
    //= XRCL-08
    if registration.handle().get()?.inner().qp().is_target_of(xrcd) {
        Ok(registration)
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
pub(crate) extern "C" fn ibv_open_xrc_domain(
    context: Handle<'_, ibv_context>,
    fd: c_int,
    oflag: c_int,
) -> *mut ibv_xrc_domain {
    ptr_verb(|| {
        let oflags = if fd == -1 { libc::O_CREAT } else { oflag };
        if oflags & !(libc::O_CREAT | libc::O_EXCL) != 0 {
            return Err(Errno::INVAL);
        }
        let init = ibv_xrcd_init_attr {
            comp_mask: IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS,
            fd,
            oflags,
        };
        let xrcd = xrcd::open_xrcd(context, In::of(&init));
        if xrcd.is_null() {
            return Err(last_errno());
        }
        DomainObject::create(|address| {
            let c = ibv_xrc_domain {
                context: context.as_ptr(),
                handle: address.addr() as u64,
            };
            Ok((c, Opened(xrcd)))
        })
    })
}

/// `ibv_close_xrc_domain`: fails with `EBUSY` while the domain has SRQs or registered QPs.
//= XRCL-05
pub(crate) extern "C" fn ibv_close_xrc_domain(domain: Last<'_, ibv_xrc_domain>) -> c_int {
    int_verb(|| {
        domain.destroy(|opened| {
            // SAFETY: no other object uses its `ibv_xrcd`.
            errno_of(xrcd::close_xrcd(unsafe { Last::new(opened.0) }))
        })
    })
}

/// `ibv_create_xrc_srq`: the `handle` of the structure is the SRQ number.
//= XRCL-06
pub(crate) extern "C" fn ibv_create_xrc_srq(
    pd: Handle<'_, ibv_pd>,
    domain: Handle<'_, ibv_xrc_domain>,
    cq: Handle<'_, ibv_cq>,
    init: InOut<'_, ibv_srq_init_attr>,
) -> *mut ibv_srq {
    ptr_verb(|| {
        let asked = init.read()?;
        let context = context_of(domain)?;
        let mut all: ibv_srq_init_attr_ex = zeroed();
        all.srq_context = asked.srq_context;
        all.attr = asked.attr;
        all.comp_mask = IBV_SRQ_INIT_ATTR_TYPE
            | IBV_SRQ_INIT_ATTR_PD
            | IBV_SRQ_INIT_ATTR_XRCD
            | IBV_SRQ_INIT_ATTR_CQ;
        all.srq_type = IBV_SRQT_XRC;
        (all.pd, all.cq) = (pd.as_ptr(), cq.as_ptr());
        all.xrcd = plain(domain)?.as_ptr();
        // SAFETY: all that it names are arguments of this call.
        let place = unsafe { InOut::new(&raw mut all) };
        let srq = srq::create_srq_ex(context, place);
        if srq.is_null() {
            return Err(last_errno());
        }
        init.attr().write(all.attr)?;
        Ok(srq)
    })
}

/// `ibv_create_xrc_rcv_qp`: uses only the domain of the attributes. Registers this process with the
/// QP.
//= XRCL-07
pub(crate) extern "C" fn ibv_create_xrc_rcv_qp(
    init: In<'_, ibv_xrc_qp_init_attr>,
    number: Out<'_, u32>,
) -> c_int {
    int_verb(|| {
        let init = init.read()?;
        let place = number.some().ok_or(Errno::INVAL)?;
        let xrcd = plain(init.xrc_domain())?;
        // Locked before the QP exists, so that its first event finds it.
        let mut all = registered();
        let qp = qp::target(xrcd, init.qp_context, Xrcd::create_target)?;
        let number = qp.get()?.inner().qp().qp_num().get();
        place.write(number)?;
        all.insert(number, Registration(qp.into_c()));
        Ok(())
    })
}

/// `ibv_modify_xrc_rcv_qp`.
//= XRCL-08
pub(crate) extern "C" fn ibv_modify_xrc_rcv_qp(
    domain: Handle<'_, ibv_xrc_domain>,
    number: u32,
    attr: In<'_, ibv_qp_attr>,
    mask: c_int,
) -> c_int {
    int_verb(|| {
        let qp = find(domain, number)?;
        errno_of(qp::ibv_modify_qp(qp.handle(), attr, mask))
    })
}

/// `ibv_query_xrc_rcv_qp`.
//= XRCL-09
pub(crate) extern "C" fn ibv_query_xrc_rcv_qp(
    domain: Handle<'_, ibv_xrc_domain>,
    number: u32,
    attr: Out<'_, ibv_qp_attr>,
    mask: c_int,
    init: Out<'_, ibv_qp_init_attr>,
) -> c_int {
    int_verb(|| {
        let qp = find(domain, number)?;
        errno_of(qp::ibv_query_qp(qp.handle(), attr, mask, init))
    })
}

/// `ibv_reg_xrc_rcv_qp`: registers this process, which has no effect if it created the QP or is
/// registered already.
//= XRCL-10 XDEC-06
pub(crate) extern "C" fn ibv_reg_xrc_rcv_qp(
    domain: Handle<'_, ibv_xrc_domain>,
    number: u32,
) -> c_int {
    int_verb(|| {
        let xrcd = plain(domain)?;
        if registered().contains_key(&number) {
            return find(domain, number).map(drop);
        }
        let context = context_of(domain)?;
        let mut open: ibv_qp_open_attr = zeroed();
        open.comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE;
        open.qp_num = number;
        open.xrcd = xrcd.as_ptr();
        open.qp_type = IBV_QPT_XRC_RECV;
        let mut all = registered();
        // SAFETY: it names the domain of this call.
        let place = unsafe { In::new(&raw mut open) };
        let qp = qp_ex::open_qp(context, place);
        if qp.is_null() {
            return Err(last_errno());
        }
        if let Some(Registration(earlier)) = all.insert(number, Registration(qp)) {
            // Another thread registered first: its handle stays.
            all.insert(number, Registration(earlier));
            // SAFETY: only this thread has the handle.
            qp::ibv_destroy_qp(unsafe { Last::new(qp) });
        }
        Ok(())
    })
}

/// `ibv_unreg_xrc_rcv_qp`: waits until the QP's events are acknowledged. The last process to
/// unregister destroys the QP.
//= XRCL-11
pub(crate) extern "C" fn ibv_unreg_xrc_rcv_qp(
    domain: Handle<'_, ibv_xrc_domain>,
    number: u32,
) -> c_int {
    int_verb(|| {
        let qp = find(domain, number)?;
        qp.handle().get()?.inner().qp().destroy()?;
        registered().remove(&number);
        // SAFETY: no call can find the QP any more, and it was closed.
        unsafe { Last::new(qp.0) }.destroy(|_| Ok(()))
    })
}

/// Returns the context of a legacy XRC domain.
fn context_of(domain: Handle<'_, ibv_xrc_domain>) -> Result<Handle<'_, ibv_context>, Errno> {
    let context = domain.get()?.member(member!(ibv_xrc_domain, context));
    // SAFETY: the program closes it after its domains.
    Ok(unsafe { Handle::new(context) })
}

members! {
    ibv_xrc_qp_init_attr { xrc_domain: ibv_xrc_domain }
}
