//! The extended completion queue: polls one completion at a time, and reads selected fields.

use std::ffi::c_int;

use rocade_abi::{
    IBV_CQ_INIT_ATTR_MASK_FLAGS, IBV_CQ_INIT_ATTR_MASK_PD, IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN,
    IBV_CREATE_CQ_ATTR_SINGLE_THREADED, IBV_WC_EX_WITH_COMPLETION_TIMESTAMP,
    IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK, IBV_WC_EX_WITH_CVLAN, IBV_WC_EX_WITH_FLOW_TAG,
    IBV_WC_EX_WITH_TM_INFO, IBV_WC_STANDARD_FLAGS, ibv_context, ibv_cq_ex, ibv_cq_init_attr_ex,
    ibv_poll_cq_attr, ibv_wc_tm_info,
};
use rocade_emulator::{Completion, trace};

use crate::{
    buffer::Purpose,
    cq::{self, CqObject, CqPlan, CqState},
    ffi::{self, Errno, ptr_verb},
    pd_mr::PdObject,
    trace::data,
};

/// The fields that `wc_flags` may request.
const SUPPORTED_FIELDS: u64 = IBV_WC_STANDARD_FLAGS
    | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP
    | IBV_WC_EX_WITH_CVLAN
    | IBV_WC_EX_WITH_FLOW_TAG
    | IBV_WC_EX_WITH_TM_INFO
    | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;

/// Context op `create_cq_ex`.
//= CQX-05
pub(crate) unsafe extern "C" fn create_cq_ex(
    context: *mut ibv_context,
    attr: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    ptr_verb(|| {
        // SAFETY: by contract NULL or readable.
        let attr = unsafe { ffi::read(attr) }?;
        let known_members = IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD;
        if attr.comp_mask & !known_members != 0 {
            return Err(Errno::INVAL);
        }
        if attr.wc_flags & !SUPPORTED_FIELDS != 0 {
            return Err(Errno::OPNOTSUPP);
        }
        let flags = if attr.comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS == 0 {
            0
        } else {
            attr.flags
        };
        if flags & !(IBV_CREATE_CQ_ATTR_SINGLE_THREADED | IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN) != 0 {
            return Err(Errno::INVAL);
        }
        let (parent_domain, buffer) = if attr.comp_mask & IBV_CQ_INIT_ATTR_MASK_PD == 0 {
            (None, None)
        } else {
            let domain = attr.parent_domain;
            // SAFETY: by contract NULL or a live domain.
            let state = unsafe { PdObject::borrow(domain) }?.inner();
            // SAFETY: as above. The CQ keeps the domain in use.
            let buffer = unsafe { state.buffer(domain, attr.cqe, Purpose::Cq) }?;
            (Some(state.pd_ref()), buffer)
        };
        let plan = CqPlan {
            cqe: attr.cqe,
            cq_context: attr.cq_context,
            channel: attr.channel,
            comp_vector: attr.comp_vector,
            single_threaded: flags & IBV_CREATE_CQ_ATTR_SINGLE_THREADED != 0,
            ignores_overrun: flags & IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN != 0,
            parent_domain,
            buffer,
        };
        // SAFETY: by contract an open context and NULL or a live channel.
        unsafe { cq::create(context, plan, install) }
    })
}

/// Fills in the functions, also the readers of fields that were not requested. Such a call is a
/// program error, but must not crash.
//= CQX-03
fn install(c: &mut ibv_cq_ex) {
    c.start_poll = Some(start_poll);
    c.next_poll = Some(next_poll);
    c.end_poll = Some(end_poll);
    c.read_opcode = Some(read_opcode);
    c.read_vendor_err = Some(read_vendor_err);
    c.read_byte_len = Some(read_byte_len);
    c.read_imm_data = Some(read_imm_data);
    c.read_qp_num = Some(read_qp_num);
    c.read_src_qp = Some(read_src_qp);
    c.read_wc_flags = Some(read_wc_flags);
    c.read_slid = Some(read_zero_u32);
    c.read_sl = Some(read_sl);
    c.read_dlid_path_bits = Some(read_zero_u8);
    c.read_completion_ts = Some(read_completion_ts);
    c.read_cvlan = Some(read_zero_u16);
    c.read_flow_tag = Some(read_flow_tag);
    c.read_tm_info = Some(read_tm_info);
    c.read_completion_wallclock_ns = Some(read_completion_wallclock_ns);
}

/// Takes the next completion and copies its ID and status to the C part. Returns `ENOENT` if the CQ
/// is empty.
///
/// # Safety
/// `cq` must be a live extended CQ whose polling session belongs to the caller.
unsafe fn advance(cq: *mut ibv_cq_ex, state: &CqState) -> c_int {
    let Some(completion) = state.cq().poll_one() else {
        if trace::is_on() {
            data::empty_poll(cq.addr() as u64);
        }
        return libc::ENOENT;
    };
    if trace::is_on() {
        data::polled(cq.addr() as u64, &completion);
    }
    // SAFETY: the C part is alive. Only the polling session writes these members.
    unsafe { (*cq).wr_id = completion.wr_id };
    // SAFETY: as above.
    unsafe { (*cq).status = completion.status.code() };
    // SAFETY: the session belongs to the caller.
    unsafe { *state.current() = Some(completion) };
    0
}

/// `ibv_start_poll`: a failure begins no session.
//= CQX-01
unsafe extern "C" fn start_poll(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    ffi::status_verb(|| {
        // SAFETY: by contract a live CQ.
        let state = unsafe { CqObject::borrow(cq) }?.inner();
        // SAFETY: by contract NULL or readable.
        if unsafe { ffi::read(attr) }?.comp_mask != 0 {
            return Err(Errno::INVAL);
        }
        state.lock();
        // SAFETY: the session has just begun.
        let status = unsafe { advance(cq, state) };
        if status != 0 {
            // SAFETY: locked above.
            unsafe { state.unlock() };
        }
        Ok(status)
    })
}

/// `ibv_next_poll`.
//= CQX-02
unsafe extern "C" fn next_poll(cq: *mut ibv_cq_ex) -> c_int {
    ffi::status_verb(|| {
        // SAFETY: by contract a live CQ.
        let state = unsafe { CqObject::borrow(cq) }?.inner();
        // SAFETY: by contract within the caller's session.
        Ok(unsafe { advance(cq, state) })
    })
}

/// `ibv_end_poll`.
unsafe extern "C" fn end_poll(cq: *mut ibv_cq_ex) {
    ffi::void_verb(|| {
        // SAFETY: by contract a live CQ.
        let state = unsafe { CqObject::borrow(cq) }?.inner();
        // SAFETY: by contract within the caller's session.
        unsafe { *state.current() = None };
        // SAFETY: locked by `start_poll` of the same thread.
        unsafe { state.unlock() };
        Ok(())
    });
}

/// Reads from the current completion. Returns 0 outside of a session.
///
/// # Safety
/// `cq` must be a live extended CQ whose polling session belongs to the caller.
unsafe fn current(cq: *mut ibv_cq_ex, read: impl FnOnce(&Completion) -> u64) -> u64 {
    // SAFETY: by contract a live CQ.
    let Ok(object) = (unsafe { CqObject::borrow(cq) }) else {
        return 0;
    };
    // SAFETY: by contract only the caller uses the session.
    let completion = unsafe { &*object.inner().current() };
    completion.as_ref().map_or(0, read)
}

/// Like [`current`], for 32-bit fields.
///
/// # Safety
/// As for [`current`].
unsafe fn current_u32(cq: *mut ibv_cq_ex, read: impl FnOnce(&Completion) -> u32) -> u32 {
    // SAFETY: same contract.
    let value = unsafe { current(cq, |completion| u64::from(read(completion))) };
    u32::try_from(value).unwrap_or(0)
}

unsafe extern "C" fn read_opcode(cq: *mut ibv_cq_ex) -> u32 {
    // SAFETY: by contract within the caller's session.
    unsafe { current_u32(cq, |completion| completion.opcode.code()) }
}

unsafe extern "C" fn read_vendor_err(cq: *mut ibv_cq_ex) -> u32 {
    // SAFETY: by contract within the caller's session.
    unsafe { current_u32(cq, |completion| completion.vendor_err) }
}

unsafe extern "C" fn read_byte_len(cq: *mut ibv_cq_ex) -> u32 {
    // SAFETY: by contract within the caller's session.
    unsafe { current_u32(cq, |completion| completion.byte_len) }
}

unsafe extern "C" fn read_imm_data(cq: *mut ibv_cq_ex) -> u32 {
    // SAFETY: by contract within the caller's session.
    unsafe { current_u32(cq, cq::imm_data) }
}

unsafe extern "C" fn read_qp_num(cq: *mut ibv_cq_ex) -> u32 {
    // SAFETY: by contract within the caller's session.
    unsafe { current_u32(cq, |completion| completion.qp_num.get()) }
}

unsafe extern "C" fn read_src_qp(cq: *mut ibv_cq_ex) -> u32 {
    // SAFETY: by contract within the caller's session.
    unsafe { current_u32(cq, |completion| completion.src_qp.get()) }
}

unsafe extern "C" fn read_wc_flags(cq: *mut ibv_cq_ex) -> u32 {
    // SAFETY: by contract within the caller's session.
    unsafe { current_u32(cq, |completion| completion.wc_flags.bits()) }
}

/// Reads the flow tag of a received raw packet.
unsafe extern "C" fn read_flow_tag(cq: *mut ibv_cq_ex) -> u32 {
    // SAFETY: by contract within the caller's session.
    unsafe { current_u32(cq, cq::flow_tag) }
}

/// Reads the LID, which RoCE does not have.
unsafe extern "C" fn read_zero_u32(_cq: *mut ibv_cq_ex) -> u32 {
    0
}

unsafe extern "C" fn read_sl(cq: *mut ibv_cq_ex) -> u8 {
    // SAFETY: by contract within the caller's session.
    let sl = unsafe { current(cq, |completion| u64::from(completion.sl)) };
    u8::try_from(sl).unwrap_or(0)
}

/// Reads the path bits, which are 0.
unsafe extern "C" fn read_zero_u8(_cq: *mut ibv_cq_ex) -> u8 {
    0
}

/// Reads the VLAN tag. None is stripped from packets.
unsafe extern "C" fn read_zero_u16(_cq: *mut ibv_cq_ex) -> u16 {
    0
}

/// Reads the tag matching data. No receive queue matches tags.
unsafe extern "C" fn read_tm_info(_cq: *mut ibv_cq_ex, info: *mut ibv_wc_tm_info) {
    // SAFETY: by contract NULL or writable.
    let _ = unsafe { ffi::write(info, ibv_wc_tm_info { tag: 0, r#priv: 0 }) };
}

/// Reads the completion timestamp in ticks of the device clock, which are nanoseconds.
unsafe extern "C" fn read_completion_ts(cq: *mut ibv_cq_ex) -> u64 {
    // SAFETY: by contract within the caller's session.
    unsafe { current(cq, |completion| completion.timestamp_ns) }
}

/// Reads the completion timestamp as time of day, in nanoseconds since 1970.
unsafe extern "C" fn read_completion_wallclock_ns(cq: *mut ibv_cq_ex) -> u64 {
    // SAFETY: by contract a live extended CQ.
    let Ok(object) = (unsafe { CqObject::borrow(cq) }) else {
        return 0;
    };
    let wallclock = |completion: &Completion| object.inner().wallclock_ns(completion.timestamp_ns);
    // SAFETY: by contract within the caller's session.
    unsafe { current(cq, wallclock) }
}
