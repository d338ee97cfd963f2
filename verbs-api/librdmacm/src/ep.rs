//! Endpoints: IDs that are created and resolved in one call. The calls of such an ID wait for their
//! events.

use std::{ffi::c_int, ptr};

use rocade_abi::{ibv_pd, ibv_qp_init_attr, rdma_addrinfo, rdma_cm_event, rdma_cm_id};

use crate::{
    addrinfo::{RAI_PASSIVE, private_prefix},
    connect::{rdma_bind_addr, rdma_resolve_addr, rdma_resolve_route},
    event::{self, rdma_get_cm_event},
    ffi::{Errno, int_call, void_call},
    id::{self, IdObject, qp_type_of, rdma_set_option},
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
pub(crate) unsafe extern "C" fn rdma_create_ep(
    id: *mut *mut rdma_cm_id,
    info: *mut rdma_addrinfo,
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> c_int {
    int_call(|| {
        // SAFETY: by contract NULL or valid.
        let info = unsafe { info.as_ref() }.ok_or(Errno::INVAL)?;
        if id.is_null() {
            return Err(Errno::INVAL);
        }
        let ps = u32::try_from(info.ai_port_space).map_err(|_| Errno::INVAL)?;
        let qp_type = u32::try_from(info.ai_qp_type).map_err(|_| Errno::INVAL)?;
        let of_ps = qp_type_of(ps).ok_or(Errno::INVAL)?;
        let qp_type = if qp_type == 0 { of_ps } else { qp_type };
        let new = id::create(ptr::null_mut(), ptr::null_mut(), ps, qp_type)?;
        // SAFETY: by contract valid attributes and domain.
        let made = unsafe { prepare(new, info, pd, attr, qp_type) };
        match made {
            Ok(()) => {
                // SAFETY: not NULL, and by contract writable.
                unsafe { id.write(new) };
                Ok(())
            }
            Err(errno) => {
                // SAFETY: created above, and not returned to the program.
                unsafe { rdma_destroy_qp(new) };
                // SAFETY: as above.
                unsafe { id::destroy(new) }?;
                Err(errno)
            }
        }
    })
}

/// # Safety
/// `id` must be alive. `pd` and `attr` must be NULL or alive.
unsafe fn prepare(
    id: *mut rdma_cm_id,
    info: &rdma_addrinfo,
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
    qp_type: u32,
) -> Result<(), Errno> {
    // SAFETY: created just now.
    let object = unsafe { IdObject::borrow(id) }?;
    // SAFETY: by contract NULL or valid.
    let attr = unsafe { attr.as_mut() };
    if info.ai_flags & RAI_PASSIVE != 0 {
        // SAFETY: a live ID, and by contract an address.
        check(unsafe { rdma_bind_addr(id, info.ai_src_addr) })?;
        if !pd.is_null() {
            // SAFETY: the C part is alive.
            unsafe { (*id).pd = pd };
        }
        object.state.lock().qp_init_attr = attr.map(|attr| ibv_qp_init_attr { qp_type, ..*attr });
        return Ok(());
    }
    // SAFETY: a live ID, and by contract addresses.
    check(unsafe { rdma_resolve_addr(id, info.ai_src_addr, info.ai_dst_addr, RESOLVE_MS) })?;
    if info.ai_route_len > 0 {
        // SAFETY: a live ID, and by contract a route of the given length.
        check(unsafe { rdma_set_option(id, LEVEL_IB, IB_PATH, info.ai_route, info.ai_route_len) })?;
        object.complete()?;
    } else {
        // SAFETY: a live ID.
        check(unsafe { rdma_resolve_route(id, RESOLVE_MS) })?;
    }
    if let Some(attr) = attr {
        attr.qp_type = qp_type;
        let mut ex = extended(pd, attr);
        make_qp(id, &mut ex)?;
        attr.cap = ex.cap;
    }
    // SAFETY: by contract readable for their length.
    object.state.lock().connect = unsafe { private_prefix(info) };
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
pub(crate) unsafe extern "C" fn rdma_destroy_ep(id: *mut rdma_cm_id) {
    // SAFETY: by contract a live ID.
    unsafe { rdma_destroy_qp(id) };
    // SAFETY: as above.
    unsafe { rdma_destroy_srq(id) };
    // SAFETY: it is not used afterwards.
    void_call(|| unsafe { id::destroy(id) });
}

/// `rdma_get_request`.
//= LRC-03
pub(crate) unsafe extern "C" fn rdma_get_request(
    listen: *mut rdma_cm_id,
    id: *mut *mut rdma_cm_id,
) -> c_int {
    int_call(|| {
        // SAFETY: by contract a live ID.
        let object = unsafe { IdObject::borrow(listen) }?;
        let (sync, attr) = {
            let state = object.state.lock();
            (state.sync, state.qp_init_attr)
        };
        if !sync || id.is_null() {
            return Err(Errno::INVAL);
        }
        object.forget_event();
        let mut event: *mut rdma_cm_event = ptr::null_mut();
        // SAFETY: the C part is alive, and its channel belongs to the ID.
        check(unsafe { rdma_get_cm_event((*listen).channel, &raw mut event) })?;
        // SAFETY: an event was written.
        let told = unsafe { event.read() };
        let result = match told.status {
            0 if told.event == event::CONNECT_REQUEST => Ok(()),
            0 => Err(Errno::INVAL),
            _ if told.event == event::REJECTED => Err(Errno(libc::ECONNREFUSED)),
            status => Err(Errno(status.abs())),
        };
        let result = result.and_then(|()| {
            let Some(attr) = attr else { return Ok(()) };
            // SAFETY: the C part is alive.
            let mut ex = extended(unsafe { (*listen).pd }, &attr);
            make_qp(told.id, &mut ex)
        });
        if let Err(errno) = result {
            // SAFETY: the C part is alive.
            unsafe { (*listen).event = event };
            return Err(errno);
        }
        // SAFETY: the new ID is alive, and `id` is writable by contract.
        unsafe {
            (*told.id).event = event;
            id.write(told.id);
        }
        Ok(())
    })
}
