//! Endpoints: IDs that are created and resolved in one call. The calls of such an ID wait for their
//! events.

use std::{ffi::c_int, ptr};

use rocade_abi::{ibv_pd, ibv_qp_init_attr, rdma_addrinfo, rdma_cm_id};

use crate::{
    addrinfo::RAI_PASSIVE,
    args::{Handle, In, InOut, Last, Out, View, member},
    connect::{rdma_bind_addr, rdma_resolve_addr, rdma_resolve_route},
    event,
    ffi::{Errno, int_call, void_call},
    id::{self, qp_type_of, set_option},
    qp::{extended, make_qp, rdma_destroy_qp},
    srq::rdma_destroy_srq,
};

/// `RDMA_OPTION_IB`, `RDMA_OPTION_IB_PATH`.
const LEVEL_IB: c_int = 1;
const IB_PATH: c_int = 1;
/// The time limit of address and route resolution, in milliseconds.
//= LRC-04
const RESOLVE_MS: c_int = 2000;

/// `rdma_create_ep`.
//= LRC-04
//= LRC-11
pub(crate) extern "C" fn rdma_create_ep(
    id: Out<'_, *mut rdma_cm_id>,
    info: In<'_, rdma_addrinfo>,
    pd: Handle<'_, ibv_pd>,
    attr: InOut<'_, ibv_qp_init_attr>,
) -> c_int {
    int_call(|| {
        let info = info.read()?;
        if id.is_null() {
            return Err(Errno::INVAL);
        }
        let ps = u32::try_from(info.ai_port_space).map_err(|_| Errno::INVAL)?;
        let qp_type = u32::try_from(info.ai_qp_type).map_err(|_| Errno::INVAL)?;
        let of_ps = qp_type_of(ps).ok_or(Errno::INVAL)?;
        let qp_type = if qp_type == 0 { of_ps } else { qp_type };
        let new = id::create(Handle::NULL, ptr::null_mut(), ps, qp_type)?;
        match prepare(new.handle(), &info, pd, attr, qp_type) {
            Ok(()) => id.write(new.into_c()),
            Err(errno) => {
                rdma_destroy_qp(new.handle());
                id::destroy(new.into_last())?;
                Err(errno)
            }
        }
    })
}

fn prepare(
    id: Handle<'_, rdma_cm_id>,
    info: &View<'_, rdma_addrinfo>,
    pd: Handle<'_, ibv_pd>,
    place: InOut<'_, ibv_qp_init_attr>,
    qp_type: u32,
) -> Result<(), Errno> {
    let object = id.get()?;
    let attr = place.read().ok();
    if info.ai_flags & RAI_PASSIVE != 0 {
        check(rdma_bind_addr(id, info.src()))?;
        if !pd.is_null() {
            object.set_member(member!(rdma_cm_id, pd), pd.as_ptr());
        }
        object.state.lock().qp_init_attr = attr.map(|attr| ibv_qp_init_attr { qp_type, ..*attr });
        return Ok(());
    }
    check(rdma_resolve_addr(id, info.src(), info.dst(), RESOLVE_MS))?;
    if info.ai_route_len > 0 {
        set_option(object, (LEVEL_IB, IB_PATH), info.route())?;
        object.complete()?;
    } else {
        check(rdma_resolve_route(id, RESOLVE_MS))?;
    }
    if let Some(attr) = attr {
        place.qp_type().write(qp_type)?;
        let cap = make_qp(object, extended(pd, attr, qp_type))?;
        place.cap().write(cap)?;
    }
    object.state.lock().connect = info.private().to_vec();
    Ok(())
}

fn check(code: c_int) -> Result<(), Errno> {
    if code == 0 {
        Ok(())
    } else {
        Err(Errno::last())
    }
}

/// `rdma_destroy_ep`.
//= LRC-23
pub(crate) extern "C" fn rdma_destroy_ep(id: Last<'_, rdma_cm_id>) {
    rdma_destroy_qp(id.handle());
    rdma_destroy_srq(id.handle());
    void_call(|| id::destroy(id));
}

/// `rdma_get_request`.
//= LRC-03
pub(crate) extern "C" fn rdma_get_request(
    listen: Handle<'_, rdma_cm_id>,
    id: Out<'_, *mut rdma_cm_id>,
) -> c_int {
    int_call(|| {
        let object = listen.get()?;
        let (sync, attr) = {
            let state = object.state.lock();
            (state.sync, state.qp_init_attr)
        };
        if !sync || id.is_null() {
            return Err(Errno::INVAL);
        }
        object.forget_event();
        let (event, told) = object.next_event()?;
        let result = match told.status {
            0 if told.event == event::CONNECT_REQUEST => Ok(()),
            0 => Err(Errno::INVAL),
            _ if told.event == event::REJECTED => Err(Errno(libc::ECONNREFUSED)),
            status => Err(Errno(status.abs())),
        };
        // SAFETY: the ID of an event lives until the event is acknowledged.
        let new = unsafe { Handle::<rdma_cm_id>::new(told.id) };
        let result = result.and_then(|()| {
            let Some(attr) = attr else { return Ok(()) };
            // SAFETY: the objects of `rdma_create_ep`, which the program keeps.
            let attr = unsafe { View::new(attr) };
            make_qp(new.get()?, extended(object.pd(), attr, attr.qp_type)).map(|_| ())
        });
        if let Err(errno) = result {
            object.set_member(member!(rdma_cm_id, event), event);
            return Err(errno);
        }
        new.get()?.set_member(member!(rdma_cm_id, event), event);
        id.write(told.id)
    })
}
