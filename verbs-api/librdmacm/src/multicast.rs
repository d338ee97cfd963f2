//! Multicast groups of IDs.

use std::ffi::{c_int, c_void};

use libc::sockaddr_storage;
use rocade_abi::{ibv_gid, rdma_cm_event, rdma_cm_id, rdma_cm_join_mc_attr_ex};

use crate::{
    args::{self, Address, Handle, In, address_len},
    engine::verbs,
    event::MULTICAST_ERROR,
    ffi::{Errno, int_call},
    id::{IdObject, copy_address},
};

/// `RDMA_CM_JOIN_MC_ATTR_ADDRESS`, `RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS`.
const ATTR_ADDRESS: u32 = 1;
const ATTR_JOIN_FLAGS: u32 = 2;
/// `RDMA_MC_JOIN_FLAG_FULLMEMBER`, `RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER`.
const FULL_MEMBER: u32 = 0;
const SEND_ONLY: u32 = 1;

/// A group that an ID has joined or is joining.
pub(crate) struct Group {
    /// Identifies the group in events. Never 0.
    token: u64,
    address: sockaddr_storage,
    context: *mut c_void,
    is_send_only: bool,
    /// The GID that the queue pair is attached to.
    attached: Option<ibv_gid>,
    /// Set while the program has the event of the group and has not acknowledged it.
    is_unacknowledged: bool,
}

/// Returns the token of the group that an event is about.
pub(crate) fn token_of(private_data: &[u8]) -> u64 {
    private_data
        .first_chunk()
        .map_or(0, |bytes| u64::from_ne_bytes(*bytes))
}

/// Returns the bytes of an address that identify it.
fn bytes_of(address: &sockaddr_storage) -> &[u8] {
    let len = address_len(address.ss_family.into()).unwrap_or(0);
    args::bytes_of(address).get(..len).unwrap_or_default()
}

/// Handles a completed join: attaches the queue pair, and fills in the program's context.
//= EVT-05
//= CMA-15
pub(crate) fn joined(object: &IdObject, event: &mut rdma_cm_event, private_data: &[u8]) {
    let token = token_of(private_data);
    // SAFETY: the event has datagram parameters.
    let mut ud = unsafe { event.param.ud };
    let mgid = ud.ah_attr.grh.dgid;
    let qp = object.qp();
    let mut state = object.state.lock();
    let Some(group) = state.groups.iter_mut().find(|group| group.token == token) else {
        return;
    };
    ud.private_data = group.context;
    ud.private_data_len = 0;
    event.param.ud = ud;
    group.is_unacknowledged = true;
    if qp.is_null() || group.is_send_only {
        return;
    }
    let attached =
        verbs().and_then(|verbs| Errno::check(verbs.ibv_attach_mcast(qp, In::of(&mgid), 0)));
    match attached {
        Ok(()) => group.attached = Some(mgid),
        Err(errno) => {
            event.event = MULTICAST_ERROR;
            event.status = -errno.0;
        }
    }
}

/// Handles the acknowledgement of a group's event.
pub(crate) fn acknowledged(object: &IdObject, token: u64) {
    if token == 0 {
        return;
    }
    let mut state = object.state.lock();
    if let Some(group) = state.groups.iter_mut().find(|group| group.token == token) {
        group.is_unacknowledged = false;
    }
}

fn join(
    id: Handle<'_, rdma_cm_id>,
    addr: Address<'_>,
    is_send_only: bool,
    context: *mut c_void,
) -> Result<(), Errno> {
    let object = id.get()?;
    let address = copy_address(addr)?.ok_or(Errno::INVAL)?;
    let token = {
        let mut state = object.state.lock();
        let last = state.groups.iter().map(|group| group.token).max();
        let token = last.unwrap_or(0) + 1;
        state.groups.push(Group {
            token,
            address,
            context,
            is_send_only,
            attached: None,
            is_unacknowledged: false,
        });
        token
    };
    let asked = object.raw.join(addr, token);
    if let Err(errno) = asked {
        let mut state = object.state.lock();
        state.groups.retain(|group| group.token != token);
        return Err(errno);
    }
    object.complete()
}

/// `rdma_join_multicast`.
pub(crate) extern "C" fn rdma_join_multicast(
    id: Handle<'_, rdma_cm_id>,
    addr: Address<'_>,
    context: *mut c_void,
) -> c_int {
    int_call(|| join(id, addr, false, context))
}

/// `rdma_join_multicast_ex`.
//= LRC-25
pub(crate) extern "C" fn rdma_join_multicast_ex(
    id: Handle<'_, rdma_cm_id>,
    attr: In<'_, rdma_cm_join_mc_attr_ex>,
    context: *mut c_void,
) -> c_int {
    int_call(|| {
        let attr = attr.read()?;
        if attr.comp_mask & !(ATTR_ADDRESS | ATTR_JOIN_FLAGS) != 0 {
            return Err(Errno(libc::ENOTSUP));
        }
        if attr.comp_mask & ATTR_ADDRESS == 0 {
            return Err(Errno::INVAL);
        }
        let flags = if attr.comp_mask & ATTR_JOIN_FLAGS == 0 {
            FULL_MEMBER
        } else {
            attr.join_flags
        };
        if !matches!(flags, FULL_MEMBER | SEND_ONLY) {
            return Err(Errno::INVAL);
        }
        join(id, attr.addr(), flags == SEND_ONLY, context)
    })
}

/// `rdma_leave_multicast`.
//= LRC-25
pub(crate) extern "C" fn rdma_leave_multicast(
    id: Handle<'_, rdma_cm_id>,
    addr: Address<'_>,
) -> c_int {
    int_call(|| {
        let object = id.get()?;
        let address = copy_address(addr)?.ok_or(Errno::INVAL)?;
        let found = {
            let state = object.state.lock();
            let mut groups = state.groups.iter();
            let group = groups.find(|group| bytes_of(&group.address) == bytes_of(&address));
            group.map(|group| (group.token, group.attached))
        };
        let (token, attached) = found.ok_or(Errno(libc::EADDRNOTAVAIL))?;
        if let Some(mgid) = attached
            && let Some(qp) = object.qp().some()
        {
            Errno::check(verbs()?.ibv_detach_mcast(qp, In::of(&mgid), 0))?;
        }
        object.raw.leave(token)?;
        // In synchronous mode the ID holds the event until the next call.
        if object.state.lock().sync {
            object.forget_event();
        }
        object.wait_until(|| {
            let state = object.state.lock();
            let mut groups = state.groups.iter();
            !groups.any(|group| group.token == token && group.is_unacknowledged)
        });
        let mut state = object.state.lock();
        state.groups.retain(|group| group.token != token);
        Ok(())
    })
}
