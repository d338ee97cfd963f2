//! Shared receive queues of IDs.

use std::{ffi::c_int, ptr};

use rocade_abi::{
    IBV_QPT_XRC_RECV, IBV_SRQ_INIT_ATTR_CQ, IBV_SRQ_INIT_ATTR_PD, IBV_SRQ_INIT_ATTR_TYPE,
    IBV_SRQ_INIT_ATTR_XRCD, IBV_SRQT_BASIC, IBV_SRQT_XRC, ibv_cq, ibv_pd, ibv_srq_attr,
    ibv_srq_init_attr, ibv_srq_init_attr_ex, rdma_cm_id,
};

use crate::{
    devices,
    engine::verbs,
    ffi::{Errno, int_call, void_call},
    id::IdObject,
    qp::{end_cqs, make_cq, table_of},
};

/// `rdma_create_srq`: creates an XRC SRQ if the ID is that of an XRC target.
//= LRC-07
pub(crate) unsafe extern "C" fn rdma_create_srq(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    attr: *mut ibv_srq_init_attr,
) -> c_int {
    int_call(|| {
        // SAFETY: by contract NULL or valid.
        let attr = unsafe { attr.as_mut() }.ok_or(Errno::INVAL)?;
        // SAFETY: by contract a live ID.
        unsafe { IdObject::borrow(id) }?;
        // SAFETY: the C part is alive.
        let srq_type = match unsafe { (*id).qp_type } {
            IBV_QPT_XRC_RECV => IBV_SRQT_XRC,
            _ => IBV_SRQT_BASIC,
        };
        // SAFETY: all zeroes are valid attributes.
        let mut ex: ibv_srq_init_attr_ex = unsafe { std::mem::zeroed() };
        ex.srq_context = attr.srq_context;
        ex.attr = attr.attr;
        ex.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD;
        ex.srq_type = srq_type;
        ex.pd = pd;
        make_srq(id, &mut ex)?;
        attr.attr = ex.attr;
        Ok(())
    })
}

/// `rdma_create_srq_ex`. It writes the defaults of missing members back to the attributes.
//= LRC-07
pub(crate) unsafe extern "C" fn rdma_create_srq_ex(
    id: *mut rdma_cm_id,
    attr: *mut ibv_srq_init_attr_ex,
) -> c_int {
    int_call(|| {
        // SAFETY: by contract NULL or valid.
        let attr = unsafe { attr.as_mut() }.ok_or(Errno::INVAL)?;
        // SAFETY: by contract a live ID.
        unsafe { IdObject::borrow(id) }?;
        if attr.comp_mask & IBV_SRQ_INIT_ATTR_TYPE == 0 {
            return Err(Errno::INVAL);
        }
        make_srq(id, attr)
    })
}

/// Creates the SRQ of a live ID.
fn make_srq(id: *mut rdma_cm_id, attr: &mut ibv_srq_init_attr_ex) -> Result<(), Errno> {
    // SAFETY: the C part is alive.
    let (own, device, srq) = unsafe { ((*id).pd, (*id).verbs, (*id).srq) };
    if !srq.is_null() || device.is_null() {
        return Err(Errno::INVAL);
    }
    if attr.comp_mask & IBV_SRQ_INIT_ATTR_PD == 0 || attr.pd.is_null() {
        attr.pd = own;
        attr.comp_mask |= IBV_SRQ_INIT_ATTR_PD;
    }
    // SAFETY: by contract a live domain.
    if attr.pd.is_null() || unsafe { (*attr.pd).context } != device {
        return Err(Errno::INVAL);
    }
    if attr.srq_type == IBV_SRQT_XRC {
        complete_xrc(id, attr)?;
    }
    // SAFETY: an open device of Rocade's libibverbs.
    let create = unsafe { table_of(device) }
        .create_srq_ex
        .ok_or(Errno(libc::EOPNOTSUPP))?;
    // SAFETY: an open device, and attributes of live objects.
    let srq = Errno::made(unsafe { create(device, attr) })?;
    // SAFETY: the C part is alive.
    unsafe {
        (*id).srq = srq;
        if (*id).pd.is_null() {
            (*id).pd = attr.pd;
        }
    }
    Ok(())
}

/// Fills in the XRC domain and the CQ that are missing in XRC attributes.
//= LRC-05
//= LRC-07
fn complete_xrc(id: *mut rdma_cm_id, attr: &mut ibv_srq_init_attr_ex) -> Result<(), Errno> {
    if attr.comp_mask & IBV_SRQ_INIT_ATTR_XRCD == 0 || attr.xrcd.is_null() {
        // SAFETY: by contract a live ID.
        attr.xrcd = devices::xrcd_of(unsafe { (*id).verbs })?;
    }
    if attr.comp_mask & IBV_SRQ_INIT_ATTR_CQ == 0 || attr.cq.is_null() {
        attr.cq = cq_for(id, &attr.attr)?;
    }
    attr.comp_mask |= IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
    Ok(())
}

/// Returns the receive CQ of an ID with room for a whole SRQ, and creates or resizes it if needed.
/// The CQ may exist already if the ID has an XRC target's QP, which does not use it.
fn cq_for(id: *mut rdma_cm_id, attr: &ibv_srq_attr) -> Result<*mut ibv_cq, Errno> {
    let entries = c_int::try_from(attr.max_wr).map_err(|_| Errno::INVAL)?;
    // SAFETY: by contract a live ID, whose members no other thread changes now.
    unsafe {
        let cq = (*id).recv_cq;
        if cq.is_null() {
            let (channel, cq) = make_cq(id, attr.max_wr)?;
            (*id).recv_cq_channel = channel;
            (*id).recv_cq = cq;
        } else if (*cq).cqe < entries {
            Errno::check((verbs()?.ibv_resize_cq)(cq, entries))?;
        }
        Ok((*id).recv_cq)
    }
}

/// `rdma_destroy_srq`.
//= LRC-07
pub(crate) unsafe extern "C" fn rdma_destroy_srq(id: *mut rdma_cm_id) {
    void_call(|| {
        // SAFETY: by contract a live ID.
        unsafe { IdObject::borrow(id) }?;
        // SAFETY: the C part is alive.
        let (srq, qp_type) = unsafe { ((*id).srq, (*id).qp_type) };
        if srq.is_null() {
            return Ok(());
        }
        // SAFETY: a live SRQ.
        Errno::check(unsafe { (verbs()?.ibv_destroy_srq)(srq) })?;
        // SAFETY: the C part is alive.
        unsafe { (*id).srq = ptr::null_mut() };
        if qp_type == IBV_QPT_XRC_RECV {
            end_cqs(id)?;
        }
        Ok(())
    });
}
