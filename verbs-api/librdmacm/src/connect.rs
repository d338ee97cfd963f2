//! Connection setup and teardown.

use std::{
    ffi::{c_int, c_uint, c_void},
    ptr,
};

use libc::sockaddr;
use rocade_abi::{
    IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPT_UD, ibv_qp_attr, rdma_cm_id, rdma_conn_param,
};

use crate::{
    devices,
    engine::{ops, verbs},
    event::qp_to_error,
    ffi::{self, Errno, int_call},
    id::{IdObject, PS_TCP, copy_address},
};

/// The depth of READs and atomics that stands for the limit of the device.
//= LRC-09
const MAX_DEPTH: u8 = 0xff;
const REJ_CONSUMER: u16 = 28;
const REJ_VENDOR_OPTION: u16 = 35;
/// `IBV_EVENT_COMM_EST`.
const COMM_EST: c_uint = 4;

/// Returns the attributes that take the queue pair of an ID to a state, and their mask.
fn qp_attr(object: &IdObject, state: c_uint) -> Result<(ibv_qp_attr, c_int), Errno> {
    // SAFETY: all zeroes are valid attributes.
    let mut attr: ibv_qp_attr = unsafe { std::mem::zeroed() };
    attr.qp_state = state;
    let mut mask = 0;
    // SAFETY: a live ID, and room for the answers.
    Errno::check(unsafe { (ops()?.id_qp_attr)(object.raw, &raw mut attr, &raw mut mask) })?;
    Ok((attr, mask))
}

/// Modifies the queue pair of an ID to a state.
pub(crate) fn qp_to(
    id: *mut rdma_cm_id,
    state: c_uint,
    change: impl FnOnce(&mut ibv_qp_attr),
) -> Result<(), Errno> {
    // SAFETY: by contract a live ID.
    let object = unsafe { IdObject::borrow(id) }?;
    let (mut attr, mask) = qp_attr(object, state)?;
    change(&mut attr);
    // SAFETY: the C part is alive, and so is its QP.
    Errno::check(unsafe { (verbs()?.ibv_modify_qp)((*id).qp, &raw mut attr, mask) })
}

/// Modifies the queue pair of an ID to RTS. Given depths replace those that the peer sent.
//= CMA-10
pub(crate) fn qp_to_rts(
    id: *mut rdma_cm_id,
    responder_resources: Option<u8>,
    initiator_depth: Option<u8>,
) -> Result<(), Errno> {
    qp_to(id, IBV_QPS_INIT, |_| {})?;
    qp_to(id, IBV_QPS_RTR, |attr| {
        if let Some(depth) = responder_resources {
            attr.max_dest_rd_atomic = depth;
        }
    })?;
    qp_to(id, IBV_QPS_RTS, |attr| {
        if let Some(depth) = initiator_depth {
            attr.max_rd_atomic = depth;
        }
    })
}

/// `rdma_bind_addr`.
//= LRC-16
pub(crate) unsafe extern "C" fn rdma_bind_addr(id: *mut rdma_cm_id, addr: *mut sockaddr) -> c_int {
    int_call(|| {
        // SAFETY: by contract a live ID.
        let object = unsafe { IdObject::borrow(id) }?;
        // SAFETY: a live ID, and by contract an address.
        Errno::check(unsafe { (ops()?.id_bind)(object.raw, addr) })?;
        object.query()
    })
}

/// `rdma_resolve_addr`. The time limit is for a peer that the system has to ask for.
pub(crate) unsafe extern "C" fn rdma_resolve_addr(
    id: *mut rdma_cm_id,
    src: *mut sockaddr,
    dst: *mut sockaddr,
    timeout_ms: c_int,
) -> c_int {
    int_call(|| {
        // SAFETY: by contract a live ID.
        let object = unsafe { IdObject::borrow(id) }?;
        if dst.is_null() {
            return Err(Errno::INVAL);
        }
        // SAFETY: a live ID, and by contract addresses.
        Errno::check(unsafe { (ops()?.id_resolve_addr)(object.raw, src, dst, timeout_ms) })?;
        // SAFETY: by contract an address.
        if let Some(dst) = unsafe { copy_address(dst) } {
            // SAFETY: the C part is alive.
            unsafe { (*id).route.addr.dst_storage = dst };
        }
        object.complete()
    })
}

/// `rdma_resolve_route`.
pub(crate) unsafe extern "C" fn rdma_resolve_route(
    id: *mut rdma_cm_id,
    _timeout_ms: c_int,
) -> c_int {
    int_call(|| {
        // SAFETY: by contract a live ID.
        let object = unsafe { IdObject::borrow(id) }?;
        // SAFETY: a live ID.
        Errno::check(unsafe { (ops()?.id_resolve_route)(object.raw) })?;
        object.complete()
    })
}

/// `rdma_listen`.
pub(crate) unsafe extern "C" fn rdma_listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int {
    int_call(|| {
        // SAFETY: by contract a live ID.
        let object = unsafe { IdObject::borrow(id) }?;
        // SAFETY: a live ID.
        Errno::check(unsafe { (ops()?.id_listen)(object.raw, backlog) })?;
        object.query()
    })
}

/// Checks the depths of a connection against the limits of the device.
//= LRC-09
fn check_depths(id: *mut rdma_cm_id, param: Option<&rdma_conn_param>) -> Result<(), Errno> {
    // SAFETY: by contract a live ID.
    let (ps, qp, device) = unsafe { ((*id).ps, (*id).qp, (*id).verbs) };
    if ps != PS_TCP {
        return Ok(());
    }
    let Some(param) = param else {
        return if qp.is_null() {
            Err(Errno::INVAL)
        } else {
            Ok(())
        };
    };
    let device = devices::of(device)?;
    let exceeds = |asked: u8, most: u8| asked != MAX_DEPTH && asked > most;
    if exceeds(param.responder_resources, device.max_responder_resources)
        || exceeds(param.initiator_depth, device.max_initiator_depth)
    {
        return Err(Errno::INVAL);
    }
    Ok(())
}

/// Builds the connection parameters that are sent to the peer.
fn complete_param(
    id: *mut rdma_cm_id,
    param: Option<&rdma_conn_param>,
    (responder_resources, initiator_depth): (u8, u8),
    private_data: &[u8],
) -> Result<rdma_conn_param, Errno> {
    // SAFETY: by contract a live ID, and so is its QP.
    let own = unsafe { (*id).qp.as_ref() };
    let private_data_len = u8::try_from(private_data.len()).map_err(|_| Errno::INVAL)?;
    Ok(rdma_conn_param {
        private_data: private_data.as_ptr().cast::<c_void>(),
        private_data_len,
        responder_resources,
        initiator_depth,
        flow_control: param.map_or(0, |param| param.flow_control),
        retry_count: param.map_or(7, |param| param.retry_count),
        rnr_retry_count: param.map_or(7, |param| param.rnr_retry_count),
        srq: own.map_or_else(
            || param.map_or(0, |param| param.srq),
            |qp| (!qp.srq.is_null()).into(),
        ),
        qp_num: own.map_or_else(|| param.map_or(0, |param| param.qp_num), |qp| qp.qp_num),
    })
}

/// Returns the private data of the connection parameters.
///
/// # Safety
/// The private data must be readable for their length.
unsafe fn private_of(param: Option<&rdma_conn_param>) -> &[u8] {
    match param {
        Some(param) if param.private_data_len > 0 && !param.private_data.is_null() => {
            // SAFETY: by contract.
            unsafe {
                std::slice::from_raw_parts(
                    param.private_data.cast::<u8>(),
                    param.private_data_len.into(),
                )
            }
        }
        _ => &[],
    }
}

/// `rdma_connect`.
//= LRC-09
//= LRC-11
pub(crate) unsafe extern "C" fn rdma_connect(
    id: *mut rdma_cm_id,
    param: *mut rdma_conn_param,
) -> c_int {
    int_call(|| {
        // SAFETY: by contract a live ID.
        let object = unsafe { IdObject::borrow(id) }?;
        // SAFETY: by contract NULL or valid.
        let param = unsafe { param.as_ref() };
        check_depths(id, param)?;
        // SAFETY: by contract a live ID.
        let limits = devices::of(unsafe { (*id).verbs }).ok();
        let or_limit = |asked: Option<u8>, most: Option<u8>| match asked {
            Some(asked) if asked != MAX_DEPTH => asked,
            _ => most.unwrap_or(0),
        };
        let responder_resources = or_limit(
            param.map(|param| param.responder_resources),
            limits.map(|device| device.max_responder_resources),
        );
        let initiator_depth = or_limit(
            param.map(|param| param.initiator_depth),
            limits.map(|device| device.max_initiator_depth),
        );
        let data = {
            let mut state = object.state.lock();
            state.responder_resources = responder_resources;
            state.initiator_depth = initiator_depth;
            // SAFETY: by contract readable.
            [state.connect.as_slice(), unsafe { private_of(param) }].concat()
        };
        let depths = (responder_resources, initiator_depth);
        let param = complete_param(id, param, depths, &data)?;
        // SAFETY: a live ID, and private data that outlive the call.
        Errno::check(unsafe { (ops()?.id_connect)(object.raw, &raw const param) })?;
        object.state.lock().connect.clear();
        object.complete()
    })
}

/// `rdma_accept`.
//= LRC-10
pub(crate) unsafe extern "C" fn rdma_accept(
    id: *mut rdma_cm_id,
    param: *mut rdma_conn_param,
) -> c_int {
    int_call(|| {
        // SAFETY: by contract a live ID.
        let object = unsafe { IdObject::borrow(id) }?;
        // SAFETY: by contract NULL or valid.
        let param = unsafe { param.as_ref() };
        check_depths(id, param)?;
        // SAFETY: by contract a live ID, and so is its QP.
        let (device, qp, qp_type) = unsafe { ((*id).verbs, (*id).qp.as_ref(), (*id).qp_type) };
        let device = devices::of(device)?;
        let (responder_resources, initiator_depth) = {
            let state = object.state.lock();
            let of = |asked: Option<u8>, request: u8, most: u8| match asked {
                Some(asked) if asked != MAX_DEPTH => asked,
                _ => request.min(most),
            };
            (
                of(
                    param.map(|param| param.responder_resources),
                    state.responder_resources,
                    device.max_responder_resources,
                ),
                of(
                    param.map(|param| param.initiator_depth),
                    state.initiator_depth,
                    device.max_initiator_depth,
                ),
            )
        };
        let is_datagram = qp_type == IBV_QPT_UD;
        //= EVT-06
        if qp.is_some() && !is_datagram {
            qp_to_rts(id, Some(responder_resources), Some(initiator_depth))?;
        }
        // SAFETY: by contract readable.
        let data = unsafe { private_of(param) };
        let depths = (responder_resources, initiator_depth);
        let param = complete_param(id, param, depths, data)?;
        // SAFETY: a live ID, and private data that outlive the call.
        let accepted = Errno::check(unsafe {
            (ops()?.id_accept)(object.raw, object.cookie(), &raw const param)
        });
        if let Err(errno) = accepted {
            let _ = qp_to_error(id);
            return Err(errno);
        }
        if is_datagram {
            //= LRC-02
            if object.state.lock().sync {
                object.forget_event();
            }
            return Ok(());
        }
        object.complete()
    })
}

/// `rdma_establish`, for programs that create the queue pair themselves.
//= LRC-24
pub(crate) unsafe extern "C" fn rdma_establish(id: *mut rdma_cm_id) -> c_int {
    int_call(|| {
        // SAFETY: by contract a live ID.
        let object = unsafe { IdObject::borrow(id) }?;
        // SAFETY: the C part is alive.
        if unsafe { !(*id).qp.is_null() } {
            return Err(Errno::INVAL);
        }
        // SAFETY: a live ID.
        Errno::check(unsafe { (ops()?.id_establish)(object.raw) })
    })
}

/// # Safety
/// As for `rdma_reject`.
unsafe fn reject(id: *mut rdma_cm_id, reason: u16, data: *const c_void, len: u8) -> c_int {
    int_call(|| {
        // SAFETY: by contract a live ID.
        let object = unsafe { IdObject::borrow(id) }?;
        let data = if len == 0 { ptr::null() } else { data };
        // SAFETY: a live ID, and by contract readable private data.
        Errno::check(unsafe { (ops()?.id_reject)(object.raw, reason, data, len) })
    })
}

/// `rdma_reject`.
//= LRC-19
pub(crate) unsafe extern "C" fn rdma_reject(
    id: *mut rdma_cm_id,
    data: *const c_void,
    len: u8,
) -> c_int {
    // SAFETY: same contract.
    unsafe { reject(id, REJ_CONSUMER, data, len) }
}

/// `rdma_reject_ece`: rejects a request because of its vendor options (ECE).
//= LRC-19
pub(crate) unsafe extern "C" fn rdma_reject_ece(
    id: *mut rdma_cm_id,
    data: *const c_void,
    len: u8,
) -> c_int {
    // SAFETY: same contract.
    unsafe { reject(id, REJ_VENDOR_OPTION, data, len) }
}

/// `rdma_disconnect`.
//= LRC-20
pub(crate) unsafe extern "C" fn rdma_disconnect(id: *mut rdma_cm_id) -> c_int {
    int_call(|| {
        // SAFETY: by contract a live ID.
        let object = unsafe { IdObject::borrow(id) }?;
        qp_to_error(id)?;
        // SAFETY: a live ID.
        Errno::check(unsafe { (ops()?.id_disconnect)(object.raw) })?;
        object.complete()
    })
}

/// `rdma_notify`: reports that the queue pair received a packet of its peer (`IBV_EVENT_COMM_EST`).
//= EVT-08
pub(crate) unsafe extern "C" fn rdma_notify(id: *mut rdma_cm_id, event: c_uint) -> c_int {
    int_call(|| {
        // SAFETY: by contract a live ID.
        let object = unsafe { IdObject::borrow(id) }?;
        if event != COMM_EST {
            return Ok(());
        }
        // SAFETY: a live ID.
        Errno::check(unsafe { (ops()?.id_notify)(object.raw) })
    })
}

/// `rdma_init_qp_attr`.
//= LRC-24
pub(crate) unsafe extern "C" fn rdma_init_qp_attr(
    id: *mut rdma_cm_id,
    attr: *mut ibv_qp_attr,
    mask: *mut c_int,
) -> c_int {
    int_call(|| {
        // SAFETY: by contract a live ID.
        let object = unsafe { IdObject::borrow(id) }?;
        // SAFETY: by contract NULL or readable.
        let state = unsafe { attr.as_ref() }.ok_or(Errno::INVAL)?.qp_state;
        let (found, bits) = qp_attr(object, state)?;
        // SAFETY: by contract writable.
        unsafe { ffi::write(attr, found) }?;
        // SAFETY: by contract writable.
        unsafe { ffi::write(mask, bits) }
    })
}
