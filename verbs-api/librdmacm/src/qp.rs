//! Queue pairs of IDs, and their CQs and completion channels.

use std::{ffi::c_int, mem::offset_of, ptr};

use rocade_abi::{
    IBV_QP_INIT_ATTR_PD, IBV_QP_INIT_ATTR_XRCD, IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPT_UD,
    IBV_QPT_XRC_RECV, IBV_QPT_XRC_SEND, ibv_comp_channel, ibv_context, ibv_cq, ibv_pd, ibv_qp,
    ibv_qp_init_attr, ibv_qp_init_attr_ex, rdma_cm_id, verbs_context,
};

use crate::{
    connect::qp_to,
    devices,
    engine::verbs,
    ffi::{Errno, int_call, void_call},
    id::IdObject,
};

/// The size of a gather list entry, in bytes.
const SGE_BYTES: u32 = 16;

/// Creates a CQ and its completion channel for an ID. A size of 0 creates nothing.
pub(crate) fn make_cq(
    id: *mut rdma_cm_id,
    entries: u32,
) -> Result<(*mut ibv_comp_channel, *mut ibv_cq), Errno> {
    if entries == 0 {
        return Ok((ptr::null_mut(), ptr::null_mut()));
    }
    let verbs = verbs()?;
    // SAFETY: by contract a live ID with a device.
    let device = unsafe { (*id).verbs };
    // SAFETY: an open device.
    let channel = Errno::made(unsafe { (verbs.ibv_create_comp_channel)(device) })?;
    let entries = c_int::try_from(entries).map_err(|_| Errno::INVAL)?;
    // SAFETY: an open device and a live channel.
    let cq = unsafe { (verbs.ibv_create_cq)(device, entries, id.cast(), channel, 0) };
    match Errno::made(cq) {
        Ok(cq) => Ok((channel, cq)),
        Err(errno) => {
            // SAFETY: created above.
            unsafe { (verbs.ibv_destroy_comp_channel)(channel) };
            Err(errno)
        }
    }
}

/// Creates the CQs that are missing in the attributes.
//= LRC-05
fn make_cqs(id: *mut rdma_cm_id, attr: &mut ibv_qp_init_attr_ex) -> Result<(), Errno> {
    // SAFETY: by contract a live ID, whose members no other thread changes now.
    unsafe {
        if attr.recv_cq.is_null() {
            if (*id).recv_cq.is_null() {
                let (channel, cq) = make_cq(id, attr.cap.max_recv_wr)?;
                (*id).recv_cq_channel = channel;
                (*id).recv_cq = cq;
            }
            attr.recv_cq = (*id).recv_cq;
        }
        if attr.send_cq.is_null() {
            if (*id).send_cq.is_null() {
                let (channel, cq) = make_cq(id, attr.cap.max_send_wr)?;
                (*id).send_cq_channel = channel;
                (*id).send_cq = cq;
            }
            attr.send_cq = (*id).send_cq;
        }
        // The engine requires both CQs. A QP with an empty send or receive queue never uses the CQ
        // of that queue.
        if attr.recv_cq.is_null() {
            attr.recv_cq = attr.send_cq;
        }
        if attr.send_cq.is_null() {
            attr.send_cq = attr.recv_cq;
        }
    }
    Ok(())
}

/// Destroys the CQs that were created for an ID. If an XRC SRQ is left, the SRQ uses them.
//= LRC-06
pub(crate) fn end_cqs(id: *mut rdma_cm_id) -> Result<(), Errno> {
    let verbs = verbs()?;
    // SAFETY: by contract a live ID.
    if unsafe { (*id).qp_type == IBV_QPT_XRC_RECV && !(*id).srq.is_null() } {
        return Ok(());
    }
    // SAFETY: by contract a live ID, and its CQs and channels are alive.
    unsafe {
        for (channel, cq) in [
            (&raw mut (*id).recv_cq_channel, &raw mut (*id).recv_cq),
            (&raw mut (*id).send_cq_channel, &raw mut (*id).send_cq),
        ] {
            // A CQ without a channel belongs to the SRQ or to the program.
            if !(*cq).is_null() && !(*channel).is_null() {
                (verbs.ibv_destroy_cq)(*cq);
                (verbs.ibv_destroy_comp_channel)(*channel);
            }
            *cq = ptr::null_mut();
            *channel = ptr::null_mut();
        }
    }
    Ok(())
}

/// Returns the extended table of a device.
///
/// # Safety
/// `device` must be an open device of Rocade's `libibverbs.so.1`.
pub(crate) unsafe fn table_of<'a>(device: *mut ibv_context) -> &'a verbs_context {
    // SAFETY: by contract a context of Rocade, which is a member of its extended table.
    unsafe {
        &*device
            .byte_sub(offset_of!(verbs_context, context))
            .cast::<verbs_context>()
    }
}

/// Creates a queue pair with `ibv_create_qp` if that call suffices, and with the extended call
/// otherwise.
fn create_qp_ex(id: *mut rdma_cm_id, attr: &mut ibv_qp_init_attr_ex) -> Result<*mut ibv_qp, Errno> {
    let verbs = verbs()?;
    if attr.comp_mask & !IBV_QP_INIT_ATTR_PD == 0 {
        let mut short = ibv_qp_init_attr {
            qp_context: attr.qp_context,
            send_cq: attr.send_cq,
            recv_cq: attr.recv_cq,
            srq: attr.srq,
            cap: attr.cap,
            qp_type: attr.qp_type,
            sq_sig_all: attr.sq_sig_all,
        };
        // SAFETY: a live domain, and attributes of live objects.
        let qp = Errno::made(unsafe { (verbs.ibv_create_qp)(attr.pd, &raw mut short) })?;
        attr.cap = short.cap;
        return Ok(qp);
    }
    // SAFETY: by contract a live ID with a device.
    let device = unsafe { (*id).verbs };
    // SAFETY: an open device of Rocade's libibverbs.
    let create = unsafe { table_of(device) }
        .create_qp_ex
        .ok_or(Errno(libc::EOPNOTSUPP))?;
    // SAFETY: an open device, and attributes of live objects.
    Errno::made(unsafe { create(device, attr) })
}

/// Creates the queue pair of an ID.
//= LRC-05
pub(crate) fn make_qp(id: *mut rdma_cm_id, attr: &mut ibv_qp_init_attr_ex) -> Result<(), Errno> {
    // SAFETY: by contract a live ID.
    unsafe { IdObject::borrow(id) }?;
    // SAFETY: the C part is alive.
    let (qp, device, qp_type) = unsafe { ((*id).qp, (*id).verbs, (*id).qp_type) };
    if !qp.is_null() || device.is_null() {
        return Err(Errno::INVAL);
    }
    if attr.comp_mask & IBV_QP_INIT_ATTR_PD == 0 || attr.pd.is_null() {
        attr.comp_mask |= IBV_QP_INIT_ATTR_PD;
        // SAFETY: the C part is alive.
        attr.pd = unsafe { (*id).pd };
    }
    // SAFETY: the C part is alive, and by contract the protection domain is alive.
    unsafe {
        if attr.pd.is_null() || (*attr.pd).context != device {
            return Err(Errno::INVAL);
        }
        let differs = |own: *mut ibv_cq, given: *mut ibv_cq| {
            !own.is_null() && !given.is_null() && own != given
        };
        if differs((*id).send_cq, attr.send_cq) || differs((*id).recv_cq, attr.recv_cq) {
            return Err(Errno::INVAL);
        }
        // Each request to an XRC target names its SRQ.
        if attr.srq.is_null() && !matches!(qp_type, IBV_QPT_XRC_RECV | IBV_QPT_XRC_SEND) {
            attr.srq = (*id).srq;
        }
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
    make_cqs(id, attr)?;
    attr.qp_type = if attr.qp_type == 0 {
        qp_type
    } else {
        attr.qp_type
    };
    let qp = create_qp_ex(id, attr).inspect_err(|_| {
        let _ = end_cqs(id);
    })?;
    // SAFETY: the C part is alive.
    unsafe {
        (*id).qp = qp;
        (*id).pd = attr.pd;
    }
    let ready = if qp_type == IBV_QPT_UD {
        [IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS]
            .into_iter()
            .try_for_each(|state| qp_to(id, state, |_| {}))
    } else {
        qp_to(id, IBV_QPS_INIT, |_| {})
    };
    ready.inspect_err(|_| {
        // SAFETY: created above, and not returned to the program.
        let _ = unsafe { end_qp(id) };
    })
}

/// # Safety
/// `id` must be alive.
unsafe fn end_qp(id: *mut rdma_cm_id) -> Result<(), Errno> {
    // SAFETY: by contract a live ID, whose QP is alive.
    unsafe {
        let qp = (*id).qp;
        if !qp.is_null() {
            Errno::check((verbs()?.ibv_destroy_qp)(qp))?;
            (*id).qp = ptr::null_mut();
        }
    }
    end_cqs(id)
}

/// Converts attributes to their extended form.
pub(crate) fn extended(pd: *mut ibv_pd, attr: &ibv_qp_init_attr) -> ibv_qp_init_attr_ex {
    // SAFETY: all zeroes are valid attributes.
    let mut ex: ibv_qp_init_attr_ex = unsafe { std::mem::zeroed() };
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
pub(crate) unsafe extern "C" fn rdma_create_qp(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> c_int {
    int_call(|| {
        // SAFETY: by contract NULL or valid.
        let attr = unsafe { attr.as_mut() }.ok_or(Errno::INVAL)?;
        let mut ex = extended(pd, attr);
        make_qp(id, &mut ex)?;
        attr.cap = ex.cap;
        Ok(())
    })
}

/// `rdma_create_qp_ex`.
pub(crate) unsafe extern "C" fn rdma_create_qp_ex(
    id: *mut rdma_cm_id,
    attr: *mut ibv_qp_init_attr_ex,
) -> c_int {
    int_call(|| {
        // SAFETY: by contract NULL or valid.
        let attr = unsafe { attr.as_mut() }.ok_or(Errno::INVAL)?;
        let mut ex = *attr;
        make_qp(id, &mut ex)?;
        attr.cap = ex.cap;
        Ok(())
    })
}

/// `rdma_destroy_qp`.
//= LRC-06
pub(crate) unsafe extern "C" fn rdma_destroy_qp(id: *mut rdma_cm_id) {
    void_call(|| {
        // SAFETY: by contract a live ID.
        unsafe { IdObject::borrow(id) }?;
        // SAFETY: by contract a live ID.
        unsafe { end_qp(id) }
    });
}
