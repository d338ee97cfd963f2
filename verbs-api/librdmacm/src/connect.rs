//! Connection setup and teardown.

use std::{
    ffi::{c_int, c_uint},
    ptr,
};

use rocade_abi::{
    IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPT_UD, ibv_qp, ibv_qp_attr, rdma_cm_id,
    rdma_conn_param,
};

use crate::{
    args::{Address, Buffer, Handle, In, InOut, Out, View, member, zeroed},
    devices,
    engine::verbs,
    event::qp_to_error,
    ffi::{Errno, int_call},
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
    let mut attr: ibv_qp_attr = zeroed();
    attr.qp_state = state;
    let mut mask = 0;
    object
        .raw
        .qp_attr(InOut::of(&mut attr), Out::of(&mut mask))?;
    Ok((attr, mask))
}

/// Modifies the queue pair of an ID to a state.
///
/// # Errors
/// The errno of the engine, or of the verb.
pub(crate) fn qp_to(
    object: &IdObject,
    state: c_uint,
    change: impl FnOnce(&mut ibv_qp_attr),
) -> Result<(), Errno> {
    let (mut attr, mask) = qp_attr(object, state)?;
    change(&mut attr);
    Errno::check(verbs()?.ibv_modify_qp(object.qp(), In::of(&attr), mask))
}

/// Modifies the queue pair of an ID to RTS. Given depths replace those that the peer sent.
///
/// # Errors
/// As for [`qp_to`].
//= CMA-10
pub(crate) fn qp_to_rts(
    object: &IdObject,
    responder_resources: Option<u8>,
    initiator_depth: Option<u8>,
) -> Result<(), Errno> {
    qp_to(object, IBV_QPS_INIT, |_| {})?;
    qp_to(object, IBV_QPS_RTR, |attr| {
        if let Some(depth) = responder_resources {
            attr.max_dest_rd_atomic = depth;
        }
    })?;
    qp_to(object, IBV_QPS_RTS, |attr| {
        if let Some(depth) = initiator_depth {
            attr.max_rd_atomic = depth;
        }
    })
}

/// `rdma_bind_addr`.
//= LRC-16
pub(crate) extern "C" fn rdma_bind_addr(id: Handle<'_, rdma_cm_id>, addr: Address<'_>) -> c_int {
    int_call(|| {
        let object = id.get()?;
        object.raw.bind(addr)?;
        object.query()
    })
}

/// `rdma_resolve_addr`. The time limit is for a peer that the system has to ask for.
pub(crate) extern "C" fn rdma_resolve_addr(
    id: Handle<'_, rdma_cm_id>,
    src: Address<'_>,
    dst: Address<'_>,
    timeout_ms: c_int,
) -> c_int {
    int_call(|| {
        let object = id.get()?;
        let dst = dst.some().ok_or(Errno::INVAL)?;
        object.raw.resolve_addr(src, dst, timeout_ms)?;
        if let Some(dst) = copy_address(dst)? {
            object.set_member(member!(rdma_cm_id, route.addr.dst_storage), dst);
        }
        object.complete()
    })
}

/// `rdma_resolve_route`.
pub(crate) extern "C" fn rdma_resolve_route(
    id: Handle<'_, rdma_cm_id>,
    _timeout_ms: c_int,
) -> c_int {
    int_call(|| {
        let object = id.get()?;
        object.raw.resolve_route()?;
        object.complete()
    })
}

/// `rdma_listen`.
pub(crate) extern "C" fn rdma_listen(id: Handle<'_, rdma_cm_id>, backlog: c_int) -> c_int {
    int_call(|| {
        let object = id.get()?;
        object.raw.listen(backlog)?;
        object.query()
    })
}

/// Checks the depths of a connection against the limits of the device.
//= LRC-09
fn check_depths(object: &IdObject, param: Option<&rdma_conn_param>) -> Result<(), Errno> {
    if object.member(member!(rdma_cm_id, ps)) != PS_TCP {
        return Ok(());
    }
    let Some(param) = param else {
        return if object.qp().is_null() {
            Err(Errno::INVAL)
        } else {
            Ok(())
        };
    };
    let device = devices::of(object.verbs())?;
    let exceeds = |asked: u8, most: u8| asked != MAX_DEPTH && asked > most;
    if exceeds(param.responder_resources, device.max_responder_resources)
        || exceeds(param.initiator_depth, device.max_initiator_depth)
    {
        return Err(Errno::INVAL);
    }
    Ok(())
}

/// Returns the parameters that are sent to the peer.
fn complete_param<'a>(
    object: &IdObject,
    param: Option<&rdma_conn_param>,
    (responder_resources, initiator_depth): (u8, u8),
    private_data: &'a [u8],
) -> Result<View<'a, rdma_conn_param>, Errno> {
    let (srq, qp_num) = (member!(ibv_qp, srq), member!(ibv_qp, qp_num));
    let own = object.qp().some().map(|qp| {
        let srq = qp.member(srq).is_some_and(|srq| !srq.is_null());
        (srq, qp.member(qp_num).unwrap_or(0))
    });
    let param = rdma_conn_param {
        private_data: ptr::null(),
        private_data_len: 0,
        responder_resources,
        initiator_depth,
        flow_control: param.map_or(0, |param| param.flow_control),
        retry_count: param.map_or(7, |param| param.retry_count),
        rnr_retry_count: param.map_or(7, |param| param.rnr_retry_count),
        srq: own.map_or_else(|| param.map_or(0, |param| param.srq), |(srq, _)| srq.into()),
        qp_num: own.map_or_else(
            || param.map_or(0, |param| param.qp_num),
            |(_, qp_num)| qp_num,
        ),
    };
    View::with_private(param, private_data)
}

/// Returns the private data of the connection parameters.
fn private_of(param: Option<&View<'_, rdma_conn_param>>) -> Vec<u8> {
    param.map_or_else(Vec::new, |param| param.private().to_vec())
}

/// `rdma_connect`.
//= LRC-09
//= LRC-11
pub(crate) extern "C" fn rdma_connect(
    id: Handle<'_, rdma_cm_id>,
    param: In<'_, rdma_conn_param>,
) -> c_int {
    int_call(|| {
        let object = id.get()?;
        let param = param.optional();
        check_depths(object, param.as_deref())?;
        let limits = devices::of(object.verbs()).ok();
        let or_limit = |asked: Option<u8>, most: Option<u8>| match asked {
            Some(asked) if asked != MAX_DEPTH => asked,
            _ => most.unwrap_or(0),
        };
        let responder_resources = or_limit(
            param.as_ref().map(|param| param.responder_resources),
            limits.map(|device| device.max_responder_resources),
        );
        let initiator_depth = or_limit(
            param.as_ref().map(|param| param.initiator_depth),
            limits.map(|device| device.max_initiator_depth),
        );
        let data = {
            let mut state = object.state.lock();
            state.responder_resources = responder_resources;
            state.initiator_depth = initiator_depth;
            [state.connect.as_slice(), &private_of(param.as_ref())].concat()
        };
        let depths = (responder_resources, initiator_depth);
        let param = complete_param(object, param.as_deref(), depths, &data)?;
        object.raw.connect(param.as_in())?;
        object.state.lock().connect.clear();
        object.complete()
    })
}

/// `rdma_accept`.
//= LRC-10
pub(crate) extern "C" fn rdma_accept(
    id: Handle<'_, rdma_cm_id>,
    param: In<'_, rdma_conn_param>,
) -> c_int {
    int_call(|| {
        let object = id.get()?;
        let param = param.optional();
        check_depths(object, param.as_deref())?;
        let device = devices::of(object.verbs())?;
        let (responder_resources, initiator_depth) = {
            let state = object.state.lock();
            let of = |asked: Option<u8>, request: u8, most: u8| match asked {
                Some(asked) if asked != MAX_DEPTH => asked,
                _ => request.min(most),
            };
            (
                of(
                    param.as_ref().map(|param| param.responder_resources),
                    state.responder_resources,
                    device.max_responder_resources,
                ),
                of(
                    param.as_ref().map(|param| param.initiator_depth),
                    state.initiator_depth,
                    device.max_initiator_depth,
                ),
            )
        };
        let is_datagram = object.member(member!(rdma_cm_id, qp_type)) == IBV_QPT_UD;
        //= EVT-06
        if !object.qp().is_null() && !is_datagram {
            qp_to_rts(object, Some(responder_resources), Some(initiator_depth))?;
        }
        let data = private_of(param.as_ref());
        let depths = (responder_resources, initiator_depth);
        let param = complete_param(object, param.as_deref(), depths, &data)?;
        let accepted = object.raw.accept(object.cookie(), param.as_in());
        if let Err(errno) = accepted {
            let _ = qp_to_error(object);
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
pub(crate) extern "C" fn rdma_establish(id: Handle<'_, rdma_cm_id>) -> c_int {
    int_call(|| {
        let object = id.get()?;
        if !object.qp().is_null() {
            return Err(Errno::INVAL);
        }
        object.raw.establish()
    })
}

fn reject(id: Handle<'_, rdma_cm_id>, reason: u16, data: Buffer<'_>) -> c_int {
    int_call(|| id.get()?.raw.reject(reason, data))
}

/// `rdma_reject`.
//= LRC-19
pub(crate) fn rdma_reject(id: Handle<'_, rdma_cm_id>, data: Buffer<'_>) -> c_int {
    reject(id, REJ_CONSUMER, data)
}

/// `rdma_reject_ece`: rejects a request because of its vendor options (ECE).
//= LRC-19
pub(crate) fn rdma_reject_ece(id: Handle<'_, rdma_cm_id>, data: Buffer<'_>) -> c_int {
    reject(id, REJ_VENDOR_OPTION, data)
}

/// `rdma_disconnect`.
//= LRC-20
pub(crate) extern "C" fn rdma_disconnect(id: Handle<'_, rdma_cm_id>) -> c_int {
    int_call(|| {
        let object = id.get()?;
        qp_to_error(object)?;
        object.raw.disconnect()?;
        object.complete()
    })
}

/// `rdma_notify`: reports that the queue pair received a packet of its peer (`IBV_EVENT_COMM_EST`).
//= EVT-08
pub(crate) extern "C" fn rdma_notify(id: Handle<'_, rdma_cm_id>, event: c_uint) -> c_int {
    int_call(|| {
        let object = id.get()?;
        if event != COMM_EST {
            return Ok(());
        }
        object.raw.notify()
    })
}

/// `rdma_init_qp_attr`.
//= LRC-24
pub(crate) extern "C" fn rdma_init_qp_attr(
    id: Handle<'_, rdma_cm_id>,
    attr: InOut<'_, ibv_qp_attr>,
    mask: Out<'_, c_int>,
) -> c_int {
    int_call(|| {
        let object = id.get()?;
        let (found, bits) = qp_attr(object, attr.read()?.qp_state)?;
        attr.write(found)?;
        mask.write(bits)
    })
}
