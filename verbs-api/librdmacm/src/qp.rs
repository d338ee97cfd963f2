//! Queue pairs of IDs, and their CQs and completion channels.

use std::{ffi::c_int, mem::offset_of, ptr};

use rocade_abi::{
    IBV_QP_INIT_ATTR_PD, IBV_QP_INIT_ATTR_XRCD, IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPT_UD,
    IBV_QPT_XRC_RECV, IBV_QPT_XRC_SEND, ibv_comp_channel, ibv_context, ibv_cq, ibv_pd, ibv_qp,
    ibv_qp_init_attr, ibv_qp_init_attr_ex, rdma_cm_id, verbs_context,
};

use crate::{
    args::{Handle, InOut, Last, View, member, zeroed},
    connect::qp_to,
    devices,
    engine::verbs,
    ffi::{Errno, int_call, void_call},
    id::IdObject,
};

/// The size of a gather list entry, in bytes.
const SGE_BYTES: u32 = 16;

/// Creates a CQ and its completion channel for an ID. A size of 0 creates nothing.
///
/// # Errors
/// `EINVAL` for a size out of range, and the errno of the verbs.
pub(crate) fn make_cq(
    object: &IdObject,
    entries: u32,
) -> Result<(*mut ibv_comp_channel, *mut ibv_cq), Errno> {
    if entries == 0 {
        return Ok((ptr::null_mut(), ptr::null_mut()));
    }
    let verbs = verbs()?;
    let device = object.verbs();
    let channel = Errno::made(verbs.ibv_create_comp_channel(device))?;
    let entries = c_int::try_from(entries).map_err(|_| Errno::INVAL)?;
    // SAFETY: created above.
    let live = unsafe { Handle::new(channel) };
    let cq = verbs.ibv_create_cq(device, entries, object.as_c().cast(), live, 0);
    match Errno::made(cq) {
        Ok(cq) => Ok((channel, cq)),
        Err(errno) => {
            // SAFETY: created above.
            verbs.ibv_destroy_comp_channel(unsafe { Last::new(channel) });
            Err(errno)
        }
    }
}

/// Creates the CQs that are missing in the attributes.
//= LRC-05
fn make_cqs(object: &IdObject, attr: &mut ibv_qp_init_attr_ex) -> Result<(), Errno> {
    if attr.recv_cq.is_null() {
        if object.recv_cq().is_null() {
            let (channel, cq) = make_cq(object, attr.cap.max_recv_wr)?;
            object.set_member(member!(rdma_cm_id, recv_cq_channel), channel);
            object.set_member(member!(rdma_cm_id, recv_cq), cq);
        }
        attr.recv_cq = object.recv_cq().as_ptr();
    }
    if attr.send_cq.is_null() {
        if object.send_cq().is_null() {
            let (channel, cq) = make_cq(object, attr.cap.max_send_wr)?;
            object.set_member(member!(rdma_cm_id, send_cq_channel), channel);
            object.set_member(member!(rdma_cm_id, send_cq), cq);
        }
        attr.send_cq = object.send_cq().as_ptr();
    }
    // The engine requires both CQs. A QP with an empty send or receive queue never uses the CQ of
    // that queue.
    if attr.recv_cq.is_null() {
        attr.recv_cq = attr.send_cq;
    }
    if attr.send_cq.is_null() {
        attr.send_cq = attr.recv_cq;
    }
    Ok(())
}

/// Destroys the CQs that were created for an ID. If an XRC SRQ is left, the SRQ uses them.
///
/// # Errors
/// `EOPNOTSUPP` without Rocade's library of verbs.
//= LRC-06
pub(crate) fn end_cqs(object: &IdObject) -> Result<(), Errno> {
    let verbs = verbs()?;
    let qp_type = object.member(member!(rdma_cm_id, qp_type));
    if qp_type == IBV_QPT_XRC_RECV && !object.srq().is_null() {
        return Ok(());
    }
    let end = |channel: *mut ibv_comp_channel, cq: *mut ibv_cq| {
        // A CQ without a channel belongs to the SRQ or to the program.
        if !cq.is_null() && !channel.is_null() {
            // SAFETY: that of the ID, which forgets it.
            verbs.ibv_destroy_cq(unsafe { Last::new(cq) });
            // SAFETY: as above.
            verbs.ibv_destroy_comp_channel(unsafe { Last::new(channel) });
        }
    };
    end(object.recv_cq_channel().as_ptr(), object.recv_cq().as_ptr());
    object.set_member(member!(rdma_cm_id, recv_cq), ptr::null_mut());
    object.set_member(member!(rdma_cm_id, recv_cq_channel), ptr::null_mut());
    end(object.send_cq_channel().as_ptr(), object.send_cq().as_ptr());
    object.set_member(member!(rdma_cm_id, send_cq), ptr::null_mut());
    object.set_member(member!(rdma_cm_id, send_cq_channel), ptr::null_mut());
    Ok(())
}

/// Returns the extended table of a device of Rocade's `libibverbs.so.1`.
///
/// # Errors
/// `EINVAL` for NULL.
pub(crate) fn table_of(device: Handle<'_, ibv_context>) -> Result<&verbs_context, Errno> {
    let device = device.some().ok_or(Errno::INVAL)?.as_ptr();
    // SAFETY: a context of Rocade is a member of its extended table, which does not change.
    Ok(unsafe {
        &*device
            .byte_sub(offset_of!(verbs_context, context))
            .cast::<verbs_context>()
    })
}

/// Returns true if a domain belongs to a device.
///
/// # Safety
/// `pd` must be alive.
pub(crate) unsafe fn is_of(pd: *mut ibv_pd, device: Handle<'_, ibv_context>) -> bool {
    let context = member!(ibv_pd, context);
    // SAFETY: same contract.
    let context = unsafe { context.of(pd).read() };
    context == device.as_ptr()
}

/// Creates a queue pair with `ibv_create_qp` if that call suffices, and with the extended call
/// otherwise.
///
/// # Safety
/// Objects in the attributes must be NULL or alive.
unsafe fn create_qp_ex(
    object: &IdObject,
    attr: &mut ibv_qp_init_attr_ex,
) -> Result<*mut ibv_qp, Errno> {
    let verbs = verbs()?;
    if attr.comp_mask & !IBV_QP_INIT_ATTR_PD == 0 {
        // SAFETY: same contract.
        let mut short = *unsafe { View::new(*attr) }.short();
        // SAFETY: same contract.
        let (pd, place) = unsafe { (Handle::new(attr.pd), InOut::new(&raw mut short)) };
        let qp = Errno::made(verbs.ibv_create_qp(pd, place))?;
        attr.cap = short.cap;
        return Ok(qp);
    }
    let device = object.verbs();
    let create = table_of(device)?
        .create_qp_ex
        .ok_or(Errno(libc::EOPNOTSUPP))?;
    // SAFETY: an open device, and attributes of live objects.
    Errno::made(unsafe { create(device.as_ptr(), attr) })
}

/// Creates the queue pair of an ID.
///
/// # Errors
/// `EINVAL` if the ID has one, has no device, or if the attributes do not fit it, and the errno of
/// the verbs.
///
/// # Safety
/// Objects in the attributes must be NULL or alive.
//= LRC-05
pub(crate) unsafe fn make_qp(
    object: &IdObject,
    attr: &mut ibv_qp_init_attr_ex,
) -> Result<(), Errno> {
    let device = object.verbs();
    let qp_type = object.member(member!(rdma_cm_id, qp_type));
    if !object.qp().is_null() || device.is_null() {
        return Err(Errno::INVAL);
    }
    if attr.comp_mask & IBV_QP_INIT_ATTR_PD == 0 || attr.pd.is_null() {
        attr.comp_mask |= IBV_QP_INIT_ATTR_PD;
        attr.pd = object.pd().as_ptr();
    }
    // SAFETY: by contract a live domain.
    if attr.pd.is_null() || !unsafe { is_of(attr.pd, device) } {
        return Err(Errno::INVAL);
    }
    let differs =
        |own: *mut ibv_cq, given: *mut ibv_cq| !own.is_null() && !given.is_null() && own != given;
    if differs(object.send_cq().as_ptr(), attr.send_cq)
        || differs(object.recv_cq().as_ptr(), attr.recv_cq)
    {
        return Err(Errno::INVAL);
    }
    // Each request to an XRC target names its SRQ.
    if attr.srq.is_null() && !matches!(qp_type, IBV_QPT_XRC_RECV | IBV_QPT_XRC_SEND) {
        attr.srq = object.srq().as_ptr();
    }
    let has_domain = attr.comp_mask & IBV_QP_INIT_ATTR_XRCD != 0 && !attr.xrcd.is_null();
    if qp_type == IBV_QPT_XRC_RECV && !has_domain {
        attr.xrcd = devices::xrcd_of(device)?;
        attr.comp_mask |= IBV_QP_INIT_ATTR_XRCD;
    }
    // Grants inline data in the space of the gather list. Adapters grant as much, and programs rely
    // on it.
    let least = attr.cap.max_send_sge.saturating_mul(SGE_BYTES);
    attr.cap.max_inline_data = attr.cap.max_inline_data.max(least);
    make_cqs(object, attr)?;
    attr.qp_type = if attr.qp_type == 0 {
        qp_type
    } else {
        attr.qp_type
    };
    // SAFETY: same contract.
    let qp = unsafe { create_qp_ex(object, attr) }.inspect_err(|_| {
        let _ = end_cqs(object);
    })?;
    object.set_member(member!(rdma_cm_id, qp), qp);
    object.set_member(member!(rdma_cm_id, pd), attr.pd);
    let ready = if qp_type == IBV_QPT_UD {
        [IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS]
            .into_iter()
            .try_for_each(|state| qp_to(object, state, |_| {}))
    } else {
        qp_to(object, IBV_QPS_INIT, |_| {})
    };
    ready.inspect_err(|_| {
        let _ = end_qp(object);
    })
}

fn end_qp(object: &IdObject) -> Result<(), Errno> {
    if let Some(qp) = object.qp().some() {
        // SAFETY: that of the ID, which forgets it.
        let last = unsafe { Last::new(qp.as_ptr()) };
        Errno::check(verbs()?.ibv_destroy_qp(last))?;
        object.set_member(member!(rdma_cm_id, qp), ptr::null_mut());
    }
    end_cqs(object)
}

/// Converts attributes to their extended form.
pub(crate) fn extended(pd: *mut ibv_pd, attr: &ibv_qp_init_attr) -> ibv_qp_init_attr_ex {
    let mut ex: ibv_qp_init_attr_ex = zeroed();
    ex.qp_context = attr.qp_context;
    ex.send_cq = attr.send_cq;
    ex.recv_cq = attr.recv_cq;
    ex.srq = attr.srq;
    ex.cap = attr.cap;
    ex.qp_type = attr.qp_type;
    ex.sq_sig_all = attr.sq_sig_all;
    if !pd.is_null() {
        ex.comp_mask = IBV_QP_INIT_ATTR_PD;
        ex.pd = pd;
    }
    ex
}

/// `rdma_create_qp`.
pub(crate) extern "C" fn rdma_create_qp(
    id: Handle<'_, rdma_cm_id>,
    pd: Handle<'_, ibv_pd>,
    attr: InOut<'_, ibv_qp_init_attr>,
) -> c_int {
    int_call(|| {
        let mut ex = extended(pd.as_ptr(), &*attr.read()?);
        // SAFETY: it names what the arguments name.
        unsafe { make_qp(id.get()?, &mut ex) }?;
        attr.cap().write(ex.cap)
    })
}

/// `rdma_create_qp_ex`.
pub(crate) extern "C" fn rdma_create_qp_ex(
    id: Handle<'_, rdma_cm_id>,
    attr: InOut<'_, ibv_qp_init_attr_ex>,
) -> c_int {
    int_call(|| {
        let mut ex = *attr.read_known()?;
        // SAFETY: it names what the argument names.
        unsafe { make_qp(id.get()?, &mut ex) }?;
        attr.cap().write(ex.cap)
    })
}

/// `rdma_destroy_qp`.
//= LRC-06
pub(crate) extern "C" fn rdma_destroy_qp(id: Handle<'_, rdma_cm_id>) {
    void_call(|| end_qp(id.get()?));
}
