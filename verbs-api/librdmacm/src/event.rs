//! Events: converts those of the engine for the program, and updates the ID and its queue pair
//! first.

use std::{
    ffi::{c_int, c_uint},
    ptr,
};

use rocade_abi::{
    IBV_QPS_ERR, ROCADE_CM_PRIVATE_LEN, ibv_qp_attr, rdma_cm_event, rdma_cm_event_param,
    rdma_cm_id, rdma_conn_param, rdma_event_channel, rdma_ud_param, rocade_cm_event,
};

use crate::{
    args::{Buffer, Handle, In, Last, New, Out, member, zeroed},
    connect,
    engine::{EngineId, ops, verbs},
    ffi::{Errno, int_call, set_errno},
    id::{IdObject, migrate},
    multicast,
};

/// `enum rdma_cm_event_type`.
pub(crate) const ADDR_RESOLVED: c_uint = 0;
pub(crate) const ADDR_ERROR: c_uint = 1;
pub(crate) const ROUTE_RESOLVED: c_uint = 2;
pub(crate) const ROUTE_ERROR: c_uint = 3;
pub(crate) const CONNECT_REQUEST: c_uint = 4;
pub(crate) const CONNECT_RESPONSE: c_uint = 5;
pub(crate) const CONNECT_ERROR: c_uint = 6;
pub(crate) const UNREACHABLE: c_uint = 7;
pub(crate) const REJECTED: c_uint = 8;
pub(crate) const ESTABLISHED: c_uint = 9;
pub(crate) const DISCONNECTED: c_uint = 10;
pub(crate) const DEVICE_REMOVAL: c_uint = 11;
pub(crate) const MULTICAST_JOIN: c_uint = 12;
pub(crate) const MULTICAST_ERROR: c_uint = 13;
pub(crate) const TIMEWAIT_EXIT: c_uint = 15;
pub(crate) const ADDRINFO_RESOLVED: c_uint = 16;
pub(crate) const USER: c_uint = 18;

/// The reason code of a rejection by the consumer.
const REJ_CONSUMER: u16 = 28;
/// QP attribute mask.
const IBV_QP_STATE: c_int = 1;

/// An event, and the data that outlive it. The program has a pointer to the first member.
#[repr(C)]
struct EventObject {
    c: rdma_cm_event,
    /// The ID whose events count this one. In a forked child the ID belongs to the parent.
    owner: *const IdObject,
    /// The multicast group that was joined, or 0.
    group: u64,
    private_data: [u8; ROCADE_CM_PRIVATE_LEN],
}

/// `rdma_get_cm_event`: waits, or fails with `EAGAIN` if the descriptor is non-blocking. It is a
/// cancellation point, as read(2) is: no frame may own a value with a destructor while it waits.
pub(crate) extern "C-unwind" fn rdma_get_cm_event(
    channel: Handle<'_, rdma_event_channel>,
    event: Out<'_, *mut rdma_cm_event>,
) -> c_int {
    if event.is_null() {
        set_errno(libc::EINVAL);
        return -1;
    }
    let found = channel
        .get()
        .and_then(|channel| Ok((channel.raw().as_ptr(), ops()?)));
    let (raw, ops) = match found {
        Ok(found) => found,
        Err(errno) => {
            set_errno(errno.0);
            return -1;
        }
    };
    let mut told = std::mem::MaybeUninit::<rocade_cm_event>::uninit();
    loop {
        // SAFETY: a live channel, and room for the event.
        if unsafe { (ops.channel_get_event)(raw, told.as_mut_ptr()) } != 0 {
            return -1;
        }
        // SAFETY: an event was written.
        let told = unsafe { told.assume_init() };
        let mut made = ptr::null_mut();
        let status = int_call(|| {
            made = make(&told)?;
            Ok(())
        });
        if status != 0 {
            return -1;
        }
        if !made.is_null() {
            // Not NULL.
            let _ = event.write(made);
            return 0;
        }
    }
}

/// Calls `f` with an event, its private data and the new ID of a connection request, and
/// acknowledges the event. `None` for NULL.
pub(crate) fn consume<T>(
    event: Last<'_, rdma_cm_event>,
    f: impl FnOnce(&rdma_cm_event, Buffer<'_>, Option<New<rdma_cm_id>>) -> T,
) -> Option<T> {
    let place = event.as_ptr();
    if place.is_null() {
        return None;
    }
    // SAFETY: an event that lives until it is acknowledged.
    let copy = unsafe { place.read() };
    // SAFETY: both parameter structures begin with the private data and their length.
    let param = unsafe { copy.param.conn };
    // SAFETY: the private data is in the event.
    let private = unsafe { Buffer::new(param.private_data, param.private_data_len.into()) };
    let is_request = copy.event == CONNECT_REQUEST;
    // SAFETY: the ID of a request belongs to the one who takes the event.
    let new = is_request.then(|| unsafe { New::of(copy.id) });
    let result = f(&copy, private, new);
    rdma_ack_cm_event(event);
    Some(result)
}

/// Converts an event for the program. Returns NULL if the program does not get this event.
fn make(told: &rocade_cm_event) -> Result<*mut rdma_cm_event, Errno> {
    let address = usize::try_from(told.cookie).unwrap_or(0);
    let owner: *const IdObject = ptr::with_exposed_provenance(address);
    // SAFETY: the cookie of the engine's event is the address of an ID, which lives until its
    // events are acknowledged.
    let object = unsafe { owner.as_ref() }.ok_or(Errno::INVAL)?;
    let mut event = Box::new(EventObject {
        c: rdma_cm_event {
            id: object.as_c(),
            listen_id: ptr::null_mut(),
            event: told.kind,
            status: told.status,
            param: rdma_cm_event_param {
                conn: conn_param(told),
            },
        },
        owner,
        group: 0,
        private_data: told.private_data,
    });
    if told.is_ud {
        event.c.param.ud = ud_param(told);
    }
    if told.private_data_len > 0 {
        // Both parameter structures begin with the pointer to the private data.
        event.c.param.ud.private_data = event.private_data.as_ptr().cast();
    }
    let is_news = match told.kind {
        CONNECT_REQUEST => match new_id(told, object) {
            Ok(id) => {
                event.c.listen_id = event.c.id;
                event.c.id = id;
                true
            }
            Err(errno) => {
                tell_refusal(errno);
                false
            }
        },
        ADDR_RESOLVED | ROUTE_RESOLVED => {
            object.query()?;
            if told.kind == ROUTE_RESOLVED {
                object.show_path();
            }
            true
        }
        CONNECT_RESPONSE => {
            respond(object, &mut event.c);
            true
        }
        MULTICAST_JOIN => {
            multicast::joined(object, &mut event.c, &told.private_data);
            event.group = multicast::token_of(&told.private_data);
            true
        }
        USER => {
            event.c.param.arg = told.argument;
            true
        }
        REJECTED => {
            let is_news = !object.state.lock().connect_error;
            // An error of the QP does not hide the rejection from the program.
            let _ = qp_to_error(object);
            is_news
        }
        DISCONNECTED => !object.state.lock().connect_error,
        _ => true,
    };
    if !is_news {
        object.complete_one();
        return Ok(ptr::null_mut());
    }
    Ok(Box::into_raw(event).cast())
}

/// Reports that a connection request was dropped because its ID could not be created.
fn tell_refusal(errno: Errno) {
    let line = format!(
        "rocade[{}]: failed to create the ID of a connection request, which is dropped: errno {}\n",
        std::process::id(),
        errno.0
    );
    // SAFETY: the buffer has that length.
    let _ = unsafe { libc::syscall(libc::SYS_write, 2, line.as_ptr(), line.len()) };
}

/// Creates the ID of a connection request.
fn new_id(told: &rocade_cm_event, listener: &IdObject) -> Result<*mut rdma_cm_id, Errno> {
    let channel = listener.member(member!(rdma_cm_id, channel));
    let context = listener.member(member!(rdma_cm_id, context));
    let ps = listener.member(member!(rdma_cm_id, ps));
    let qp_type = listener.member(member!(rdma_cm_id, qp_type));
    // SAFETY: the engine gives the ID to the one who takes the event.
    let raw = unsafe { EngineId::new(told.new_id) };
    let id = IdObject::create(|_| Ok(raw), channel, context, (ps, qp_type))?;
    let object = id.get()?;
    {
        let mut state = object.state.lock();
        state.initiator_depth = told.initiator_depth;
        state.responder_resources = told.responder_resources;
    }
    object.query()?;
    object.show_path();
    if listener.state.lock().sync {
        // NULL gives it its own channel.
        migrate(object, Handle::NULL)?;
    }
    Ok(id.into_c())
}

/// Handles the peer's REP: takes the queue pair of the ID, if it has one, to RTS, and sends RTU.
//= EVT-06
fn respond(object: &IdObject, event: &mut rdma_cm_event) {
    if object.qp().is_null() {
        return;
    }
    let done = connect::qp_to_rts(object, None, None).and_then(|()| object.raw.establish());
    match done {
        Ok(()) => event.event = ESTABLISHED,
        Err(errno) => {
            event.event = CONNECT_ERROR;
            event.status = -errno.0;
            object.state.lock().connect_error = true;
            let _ = qp_to_error(object);
            let _ = object.raw.reject(REJ_CONSUMER, Buffer::of(&[]));
        }
    }
}

/// Modifies the queue pair of an ID, if it has one, to ERR.
///
/// # Errors
/// The errno of the verb.
pub(crate) fn qp_to_error(object: &IdObject) -> Result<(), Errno> {
    let Some(qp) = object.qp().some() else {
        return Ok(());
    };
    let mut attr: ibv_qp_attr = zeroed();
    attr.qp_state = IBV_QPS_ERR;
    Errno::check(verbs()?.ibv_modify_qp(qp, In::of(&attr), IBV_QP_STATE))
}

fn conn_param(told: &rocade_cm_event) -> rdma_conn_param {
    rdma_conn_param {
        private_data: ptr::null(),
        private_data_len: told.private_data_len,
        responder_resources: told.responder_resources,
        initiator_depth: told.initiator_depth,
        flow_control: told.flow_control,
        retry_count: told.retry_count,
        rnr_retry_count: told.rnr_retry_count,
        srq: told.srq,
        qp_num: told.qp_num,
    }
}

fn ud_param(told: &rocade_cm_event) -> rdma_ud_param {
    rdma_ud_param {
        private_data: ptr::null(),
        private_data_len: told.private_data_len,
        ah_attr: told.ah_attr,
        qp_num: told.qp_num,
        qkey: told.qkey,
    }
}

/// `rdma_write_cm_event`: EINVAL for another kind of event than `RDMA_CM_EVENT_USER`.
pub(crate) extern "C" fn rdma_write_cm_event(
    id: Handle<'_, rdma_cm_id>,
    kind: c_uint,
    status: c_int,
    argument: u64,
) -> c_int {
    int_call(|| {
        if kind != USER {
            return Err(Errno::INVAL);
        }
        id.get()?.raw.write_event(kind, status, argument)
    })
}

/// `rdma_ack_cm_event`.
//= EVT-07
pub(crate) extern "C" fn rdma_ack_cm_event(event: Last<'_, rdma_cm_event>) -> c_int {
    int_call(|| {
        if event.as_ptr().is_null() {
            return Err(Errno::INVAL);
        }
        // SAFETY: by contract an event that was handed out and is not used afterwards.
        let event = unsafe { Box::from_raw(event.as_ptr().cast::<EventObject>()) };
        // SAFETY: the owner lives until its events are acknowledged.
        let owner = unsafe { &*event.owner };
        multicast::acknowledged(owner, event.group);
        owner.complete_one();
        Ok(())
    })
}
