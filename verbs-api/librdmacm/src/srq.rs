//! Shared receive queues of IDs.

use std::ffi::c_int;

use rocade_abi::{
    IBV_QPT_XRC_RECV, IBV_SRQ_INIT_ATTR_CQ, IBV_SRQ_INIT_ATTR_PD, IBV_SRQ_INIT_ATTR_TYPE,
    IBV_SRQ_INIT_ATTR_XRCD, IBV_SRQT_BASIC, IBV_SRQT_XRC, ibv_cq, ibv_pd, ibv_srq_attr,
    ibv_srq_init_attr, ibv_srq_init_attr_ex, rdma_cm_id,
};

use crate::{
    args::{Handle, InOut, View, member, zeroed},
    devices,
    engine::verbs,
    ffi::{Errno, int_call, void_call},
    id::IdObject,
    qp::{end_cqs, is_of, make_cq, table_of},
};

/// `rdma_create_srq`: creates an XRC SRQ if the ID is that of an XRC target.
//= LRC-07
pub(crate) extern "C" fn rdma_create_srq(
    id: Handle<'_, rdma_cm_id>,
    pd: Handle<'_, ibv_pd>,
    attr: InOut<'_, ibv_srq_init_attr>,
) -> c_int {
    int_call(|| {
        let asked = attr.read()?;
        let object = id.get()?;
        let srq_type = match object.member(member!(rdma_cm_id, qp_type)) {
            IBV_QPT_XRC_RECV => IBV_SRQT_XRC,
            _ => IBV_SRQT_BASIC,
        };
        let mut ex: ibv_srq_init_attr_ex = zeroed();
        ex.srq_context = asked.srq_context;
        ex.attr = asked.attr;
        ex.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD;
        ex.srq_type = srq_type;
        ex.pd = pd.as_ptr();
        // SAFETY: the domain of the argument, and no other object.
        make_srq(object, unsafe { View::new(ex) }, &mut ex)?;
        attr.attr().write(ex.attr)
    })
}

/// `rdma_create_srq_ex`. It writes the defaults of missing members back to the attributes.
//= LRC-07
pub(crate) extern "C" fn rdma_create_srq_ex(
    id: Handle<'_, rdma_cm_id>,
    attr: InOut<'_, ibv_srq_init_attr_ex>,
) -> c_int {
    int_call(|| {
        let given = attr.read_known()?;
        let mut ex = *given;
        let object = id.get()?;
        if ex.comp_mask & IBV_SRQ_INIT_ATTR_TYPE == 0 {
            return Err(Errno::INVAL);
        }
        let made = make_srq(object, given, &mut ex);
        attr.attr().write(ex.attr)?;
        attr.comp_mask().write(ex.comp_mask)?;
        attr.pd().write(ex.pd)?;
        attr.xrcd().write(ex.xrcd)?;
        attr.cq().write(ex.cq)?;
        made
    })
}

/// Creates the SRQ of an ID. `attr` begins as the given attributes and gets the defaults.
fn make_srq(
    object: &IdObject,
    given: View<'_, ibv_srq_init_attr_ex>,
    attr: &mut ibv_srq_init_attr_ex,
) -> Result<(), Errno> {
    *attr = *given;
    let device = object.verbs();
    if !object.srq().is_null() || device.is_null() {
        return Err(Errno::INVAL);
    }
    let pd = given.pd().some().unwrap_or_else(|| object.pd());
    attr.pd = pd.as_ptr();
    attr.comp_mask |= IBV_SRQ_INIT_ATTR_PD;
    if !is_of(pd, device) {
        return Err(Errno::INVAL);
    }
    if attr.srq_type == IBV_SRQT_XRC {
        complete_xrc(object, attr)?;
    }
    let create = table_of(device)?
        .create_srq_ex
        .ok_or(Errno(libc::EOPNOTSUPP))?;
    // SAFETY: an open device, and attributes of live objects: given ones, or those of the ID.
    let srq = Errno::made(unsafe { create(device.as_ptr(), attr) })?;
    object.set_member(member!(rdma_cm_id, srq), srq);
    if object.pd().is_null() {
        object.set_member(member!(rdma_cm_id, pd), attr.pd);
    }
    Ok(())
}

/// Fills in the XRC domain and the CQ that are missing in XRC attributes.
//= LRC-05
//= LRC-07
fn complete_xrc(object: &IdObject, attr: &mut ibv_srq_init_attr_ex) -> Result<(), Errno> {
    if attr.comp_mask & IBV_SRQ_INIT_ATTR_XRCD == 0 || attr.xrcd.is_null() {
        attr.xrcd = devices::xrcd_of(object.verbs())?;
    }
    if attr.comp_mask & IBV_SRQ_INIT_ATTR_CQ == 0 || attr.cq.is_null() {
        attr.cq = cq_for(object, &attr.attr)?;
    }
    attr.comp_mask |= IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
    Ok(())
}

/// Returns the receive CQ of an ID with room for a whole SRQ, and creates or resizes it if needed.
/// The CQ may exist already if the ID has an XRC target's QP, which does not use it.
fn cq_for(object: &IdObject, attr: &ibv_srq_attr) -> Result<*mut ibv_cq, Errno> {
    let entries = c_int::try_from(attr.max_wr).map_err(|_| Errno::INVAL)?;
    let Some(cq) = object.recv_cq().some() else {
        let (channel, cq) = make_cq(object, attr.max_wr)?;
        object.set_member(member!(rdma_cm_id, recv_cq_channel), channel);
        object.set_member(member!(rdma_cm_id, recv_cq), cq);
        return Ok(cq);
    };
    let has = cq.member(member!(ibv_cq, cqe));
    if has < Some(entries) {
        Errno::check(verbs()?.ibv_resize_cq(cq, entries))?;
    }
    Ok(cq.as_ptr())
}

/// `rdma_destroy_srq`.
//= LRC-07
pub(crate) extern "C" fn rdma_destroy_srq(id: Handle<'_, rdma_cm_id>) {
    void_call(|| {
        let object = id.get()?;
        if object.srq().is_null() {
            return Ok(());
        }
        object.end_srq(|srq| Errno::check(verbs()?.ibv_destroy_srq(srq)))?;
        if object.member(member!(rdma_cm_id, qp_type)) == IBV_QPT_XRC_RECV {
            end_cqs(object)?;
        }
        Ok(())
    });
}
