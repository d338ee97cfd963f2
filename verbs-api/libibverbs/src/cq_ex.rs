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
    args::{
        Handle, In, Out, member,
        slot::{self, Argument},
    },
    buffer::Purpose,
    cq::{self, CqObject, CqPlan, CqState},
    ffi::{self, Errno, ptr_verb},
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
pub(crate) extern "C" fn create_cq_ex(
    context: Handle<'_, ibv_context>,
    attr: In<'_, ibv_cq_init_attr_ex>,
) -> *mut ibv_cq_ex {
    ptr_verb(|| {
        let attr = attr.read()?;
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
            let domain = attr.parent_domain();
            let state = domain.get()?.inner();
            let buffer = state.buffer(domain, attr.cqe, Purpose::Cq)?;
            (Some(state.pd_ref()), buffer)
        };
        let plan = CqPlan {
            cqe: attr.cqe,
            cq_context: attr.cq_context,
            channel: attr.channel(),
            comp_vector: attr.comp_vector,
            single_threaded: flags & IBV_CREATE_CQ_ATTR_SINGLE_THREADED != 0,
            ignores_overrun: flags & IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN != 0,
            parent_domain,
            buffer,
        };
        cq::create(context, plan, install)
    })
}

/// Fills in the functions, also the readers of fields that were not requested. Such a call is a
/// program error, but must not crash.
//= CQX-03
fn install(c: &mut ibv_cq_ex) {
    c.start_poll = Some(slot::of_2(start_poll));
    c.next_poll = Some(slot::of_1(next_poll));
    c.end_poll = Some(slot::of_1(end_poll));
    c.read_opcode = Some(slot::of_1(read_opcode));
    c.read_vendor_err = Some(slot::of_1(read_vendor_err));
    c.read_byte_len = Some(slot::of_1(read_byte_len));
    c.read_imm_data = Some(slot::of_1(read_imm_data));
    c.read_qp_num = Some(slot::of_1(read_qp_num));
    c.read_src_qp = Some(slot::of_1(read_src_qp));
    c.read_wc_flags = Some(slot::of_1(read_wc_flags));
    c.read_slid = Some(slot::of_1(read_zero_u32));
    c.read_sl = Some(slot::of_1(read_sl));
    c.read_dlid_path_bits = Some(slot::of_1(read_zero_u8));
    c.read_completion_ts = Some(slot::of_1(read_completion_ts));
    c.read_cvlan = Some(slot::of_1(read_zero_u16));
    c.read_flow_tag = Some(slot::of_1(read_flow_tag));
    c.read_tm_info = Some(slot::of_2(read_tm_info));
    c.read_completion_wallclock_ns = Some(slot::of_1(read_completion_wallclock_ns));
}

/// An extended CQ whose polling session the calling thread has begun by `start_poll`, and not
/// ended. The functions for a session have a parameter of this type, because the program promises
/// that order.
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
struct Session<'a>(Handle<'a, ibv_cq_ex>);

// SAFETY: transparent over a handle, which is transparent over the pointer.
unsafe impl Argument<*mut ibv_cq_ex> for Session<'_> {}

impl<'a> Session<'a> {
    /// Takes the next completion and copies its ID and status to the C part. Returns `ENOENT` if
    /// the CQ is empty.
    fn advance(self, object: &CqObject) -> c_int {
        let state = object.inner();
        let Some(completion) = state.cq().poll_one() else {
            if trace::is_on() {
                data::empty_poll(self.0.addr() as u64);
            }
            return libc::ENOENT;
        };
        if trace::is_on() {
            data::polled(self.0.addr() as u64, &completion);
        }
        object.set_member(member!(ibv_cq_ex, wr_id), completion.wr_id);
        object.set_member(member!(ibv_cq_ex, status), completion.status.code());
        // SAFETY: the session belongs to this thread.
        unsafe { *state.current() = Some(completion) };
        0
    }

    /// Ends the session.
    fn end(self) -> Result<(), Errno> {
        let state = self.0.get()?.inner();
        // SAFETY: the session belongs to this thread.
        unsafe { *state.current() = None };
        // SAFETY: locked by `start_poll` of the same thread.
        unsafe { state.unlock() };
        Ok(())
    }

    /// Reads from the current completion. Returns 0 outside of a session.
    fn current(self, read: impl FnOnce(&CqState, &Completion) -> u64) -> u64 {
        let Ok(object) = self.0.get() else {
            return 0;
        };
        let state = object.inner();
        // SAFETY: the session belongs to this thread.
        let completion = unsafe { &*state.current() };
        completion
            .as_ref()
            .map_or(0, |completion| read(state, completion))
    }

    /// Like [`Self::current`], for 32-bit fields.
    fn current_u32(self, read: impl FnOnce(&Completion) -> u32) -> u32 {
        let value = self.current(|_, completion| u64::from(read(completion)));
        u32::try_from(value).unwrap_or(0)
    }
}

/// `ibv_start_poll`: a failure begins no session.
//= CQX-01
extern "C" fn start_poll(cq: Handle<'_, ibv_cq_ex>, attr: In<'_, ibv_poll_cq_attr>) -> c_int {
    ffi::status_verb(|| {
        let object = cq.get()?;
        let state = object.inner();
        if attr.read()?.comp_mask != 0 {
            return Err(Errno::INVAL);
        }
        state.lock();
        let status = Session(cq).advance(object);
        if status != 0 {
            // SAFETY: locked above.
            unsafe { state.unlock() };
        }
        Ok(status)
    })
}

/// `ibv_next_poll`.
//= CQX-02
extern "C" fn next_poll(cq: Session<'_>) -> c_int {
    ffi::status_verb(|| Ok(cq.advance(cq.0.get()?)))
}

/// `ibv_end_poll`.
extern "C" fn end_poll(cq: Session<'_>) {
    ffi::void_verb(|| cq.end());
}

extern "C" fn read_opcode(cq: Session<'_>) -> u32 {
    cq.current_u32(|completion| completion.opcode.code())
}

extern "C" fn read_vendor_err(cq: Session<'_>) -> u32 {
    cq.current_u32(|completion| completion.vendor_err)
}

extern "C" fn read_byte_len(cq: Session<'_>) -> u32 {
    cq.current_u32(|completion| completion.byte_len)
}

extern "C" fn read_imm_data(cq: Session<'_>) -> u32 {
    cq.current_u32(cq::imm_data)
}

extern "C" fn read_qp_num(cq: Session<'_>) -> u32 {
    cq.current_u32(|completion| completion.qp_num.get())
}

extern "C" fn read_src_qp(cq: Session<'_>) -> u32 {
    cq.current_u32(|completion| completion.src_qp.get())
}

extern "C" fn read_wc_flags(cq: Session<'_>) -> u32 {
    cq.current_u32(|completion| completion.wc_flags.bits())
}

/// Reads the flow tag of a received raw packet.
extern "C" fn read_flow_tag(cq: Session<'_>) -> u32 {
    cq.current_u32(cq::flow_tag)
}

/// Reads the LID, which RoCE does not have.
extern "C" fn read_zero_u32(_cq: Session<'_>) -> u32 {
    0
}

extern "C" fn read_sl(cq: Session<'_>) -> u8 {
    let sl = cq.current(|_, completion| u64::from(completion.sl));
    u8::try_from(sl).unwrap_or(0)
}

/// Reads the path bits, which are 0.
extern "C" fn read_zero_u8(_cq: Session<'_>) -> u8 {
    0
}

/// Reads the VLAN tag. None is stripped from packets.
extern "C" fn read_zero_u16(_cq: Session<'_>) -> u16 {
    0
}

/// Reads the tag matching data. No receive queue matches tags.
extern "C" fn read_tm_info(_cq: Session<'_>, info: Out<'_, ibv_wc_tm_info>) {
    let _ = info.write(ibv_wc_tm_info { tag: 0, r#priv: 0 });
}

/// Reads the completion timestamp in ticks of the device clock, which are nanoseconds.
extern "C" fn read_completion_ts(cq: Session<'_>) -> u64 {
    cq.current(|_, completion| completion.timestamp_ns)
}

/// Reads the completion timestamp as time of day, in nanoseconds since 1970.
extern "C" fn read_completion_wallclock_ns(cq: Session<'_>) -> u64 {
    cq.current(|state, completion| state.wallclock_ns(completion.timestamp_ns))
}
