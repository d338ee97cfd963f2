//! Queue pairs of IDs, and their CQs and completion channels.

use std::{ffi::c_int, mem::offset_of, ptr};

use rocade_abi::{
    IBV_QP_INIT_ATTR_PD, IBV_QP_INIT_ATTR_XRCD, IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPT_UD,
    IBV_QPT_XRC_RECV, IBV_QPT_XRC_SEND, ibv_comp_channel, ibv_context, ibv_cq, ibv_pd, ibv_qp,
    ibv_qp_cap, ibv_qp_init_attr, ibv_qp_init_attr_ex, rdma_cm_id, verbs_context,
};

use crate::{
    args::{FromC, Handle, InOut, Last, New, View, member, zeroed},
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
    let channel = verbs.ibv_create_comp_channel(device)?;
    let entries = c_int::try_from(entries).map_err(|_| Errno::INVAL)?;
    let context = object.as_c().cast();
    match verbs.ibv_create_cq(device, entries, context, channel.handle(), 0) {
        Ok(cq) => Ok((channel.into_c(), cq.into_c())),
        Err(errno) => {
            verbs.ibv_destroy_comp_channel(channel.into_last());
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
    let end_cq = |cq: Last<'_, ibv_cq>| {
        verbs.ibv_destroy_cq(cq);
        Ok(())
    };
    let end_channel = |channel: Last<'_, ibv_comp_channel>| {
        verbs.ibv_destroy_comp_channel(channel);
        Ok(())
    };
    // A CQ without a channel belongs to the SRQ or to the program.
    if !object.recv_cq().is_null() && !object.recv_cq_channel().is_null() {
        object.end_recv_cq(end_cq)?;
        object.end_recv_cq_channel(end_channel)?;
    }
    object.set_member(member!(rdma_cm_id, recv_cq), ptr::null_mut());
    object.set_member(member!(rdma_cm_id, recv_cq_channel), ptr::null_mut());
    if !object.send_cq().is_null() && !object.send_cq_channel().is_null() {
        object.end_send_cq(end_cq)?;
        object.end_send_cq_channel(end_channel)?;
    }
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
pub(crate) fn is_of(pd: Handle<'_, ibv_pd>, device: Handle<'_, ibv_context>) -> bool {
    !pd.is_null() && pd.context().addr() == device.addr()
}

/// Creates a queue pair with `ibv_create_qp` if that call suffices, and with the extended call
/// otherwise. Returns it with its sizes.
fn create_qp_ex(
    object: &IdObject,
    attr: &View<'_, ibv_qp_init_attr_ex>,
) -> Result<(New<ibv_qp>, ibv_qp_cap), Errno> {
    if attr.comp_mask & !IBV_QP_INIT_ATTR_PD == 0 {
        let mut short = *attr.short();
        // SAFETY: it names the objects of `attr`.
        let place = unsafe { InOut::new(&raw mut short) };
        let qp = verbs()?.ibv_create_qp(attr.pd(), place)?;
        return Ok((qp, short.cap));
    }
    let mut ex = **attr;
    let device = object.verbs();
    let create = table_of(device)?
        .create_qp_ex
        .ok_or(Errno(libc::EOPNOTSUPP))?;
    // SAFETY: an open device, and attributes of live objects.
    let qp: Result<New<ibv_qp>, Errno> =
        unsafe { FromC::from_c(create(device.as_ptr(), &raw mut ex)) };
    Ok((qp?, ex.cap))
}

/// Creates the queue pair of an ID, and returns its sizes.
///
/// # Errors
/// `EINVAL` if the ID has one, has no device, or if the attributes do not fit it, and the errno of
/// the verbs.
//= LRC-05
pub(crate) fn make_qp(
    object: &IdObject,
    given: View<'_, ibv_qp_init_attr_ex>,
) -> Result<ibv_qp_cap, Errno> {
    let device = object.verbs();
    let qp_type = object.member(member!(rdma_cm_id, qp_type));
    if !object.qp().is_null() || device.is_null() {
        return Err(Errno::INVAL);
    }
    let mut attr = *given;
    let pd = given.pd().some().unwrap_or_else(|| object.pd());
    attr.comp_mask |= IBV_QP_INIT_ATTR_PD;
    attr.pd = pd.as_ptr();
    if !is_of(pd, device) {
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
    make_cqs(object, &mut attr)?;
    attr.qp_type = if attr.qp_type == 0 {
        qp_type
    } else {
        attr.qp_type
    };
    // SAFETY: the objects of the given attributes, of the ID and of the device.
    let attr = unsafe { View::new(attr) };
    let (qp, cap) = create_qp_ex(object, &attr).inspect_err(|_| {
        let _ = end_cqs(object);
    })?;
    object.set_member(member!(rdma_cm_id, qp), qp.into_c());
    object.set_member(member!(rdma_cm_id, pd), pd.as_ptr());
    let ready = if qp_type == IBV_QPT_UD {
        [IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS]
            .into_iter()
            .try_for_each(|state| qp_to(object, state, |_| {}))
    } else {
        qp_to(object, IBV_QPS_INIT, |_| {})
    };
    ready.inspect_err(|_| {
        let _ = end_qp(object);
    })?;
    Ok(cap)
}

fn end_qp(object: &IdObject) -> Result<(), Errno> {
    object.end_qp(|qp| Errno::check(verbs()?.ibv_destroy_qp(qp)))?;
    end_cqs(object)
}

/// Converts attributes to their extended form, with a domain unless it is NULL.
pub(crate) fn extended<'a>(
    pd: Handle<'a, ibv_pd>,
    attr: View<'a, ibv_qp_init_attr>,
    qp_type: u32,
) -> View<'a, ibv_qp_init_attr_ex> {
    let mut ex: ibv_qp_init_attr_ex = zeroed();
    ex.qp_context = attr.qp_context;
    ex.send_cq = attr.send_cq;
    ex.recv_cq = attr.recv_cq;
    ex.srq = attr.srq;
    ex.cap = attr.cap;
    ex.qp_type = qp_type;
    ex.sq_sig_all = attr.sq_sig_all;
    if !pd.is_null() {
        ex.comp_mask = IBV_QP_INIT_ATTR_PD;
        ex.pd = pd.as_ptr();
    }
    // SAFETY: the objects of the arguments.
    unsafe { View::new(ex) }
}

/// `rdma_create_qp`.
pub(crate) extern "C" fn rdma_create_qp(
    id: Handle<'_, rdma_cm_id>,
    pd: Handle<'_, ibv_pd>,
    attr: InOut<'_, ibv_qp_init_attr>,
) -> c_int {
    int_call(|| {
        let given = attr.read()?;
        let cap = make_qp(id.get()?, extended(pd, given, given.qp_type))?;
        attr.cap().write(cap)
    })
}

/// `rdma_create_qp_ex`.
pub(crate) extern "C" fn rdma_create_qp_ex(
    id: Handle<'_, rdma_cm_id>,
    attr: InOut<'_, ibv_qp_init_attr_ex>,
) -> c_int {
    int_call(|| {
        let given = attr.read_known()?;
        let cap = make_qp(id.get()?, given)?;
        attr.cap().write(cap)
    })
}

/// `rdma_destroy_qp`.
//= LRC-06
pub(crate) extern "C" fn rdma_destroy_qp(id: Handle<'_, rdma_cm_id>) {
    void_call(|| end_qp(id.get()?));
}
