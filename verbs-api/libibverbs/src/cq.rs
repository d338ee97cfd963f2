//! Completion queues.

use std::{
    cell::UnsafeCell,
    ffi::{c_int, c_void},
    sync::Arc,
};

use parking_lot::lock_api::RawMutex as _;
use rocade_abi::{
    IBV_CQ_ATTR_MODERATE, ibv_comp_channel, ibv_context, ibv_cq, ibv_cq_ex, ibv_modify_cq_attr,
    ibv_wc,
};
use rocade_emulator::{Completion, Cq, CqInitAttr, ImmOrInv};

use crate::{
    args::{Handle, In, Last, member, zeroed},
    buffer::Buffer,
    context::ContextObject,
    diagnostics::Reason,
    ffi::{Errno, int_data_verb, int_verb, neg_data_verb, ptr_verb, to_int},
    handle::{CHandle, objects},
    huge_pages,
    pd_mr::PdRef,
};

/// A completion queue. Each one is created as an extended CQ, which begins with the plain one.
pub(crate) type CqObject = CHandle<ibv_cq_ex, CqState>;

objects! {
    ibv_cq: ibv_cq_ex, CqState;
    ibv_cq_ex: ibv_cq_ex, CqState;
}

/// The Rust state of an `ibv_cq`.
pub(crate) struct CqState {
    cq: Cq,
    context: Arc<ContextObject>,
    _buffer: Option<Buffer>,
    _parent_domain: Option<PdRef>,
    /// Held from `start_poll` to `end_poll`, unless the CQ is single-threaded.
    lock: parking_lot::RawMutex,
    locked: bool,
    /// The completion that the readers of the extended CQ access. Belongs to the holder of `lock`.
    current: UnsafeCell<Option<Completion>>,
}

impl CqState {
    /// Returns the emulator's queue.
    pub(crate) const fn cq(&self) -> &Cq {
        &self.cq
    }

    /// Converts a completion timestamp to nanoseconds since 1970.
    pub(crate) fn wallclock_ns(&self, timestamp_ns: u64) -> u64 {
        self.context.context().wallclock_ns(timestamp_ns)
    }

    /// Begins a polling session.
    //= CQX-04
    pub(crate) fn lock(&self) {
        if self.locked {
            self.lock.lock();
        }
    }

    /// Ends a polling session.
    ///
    /// # Safety
    /// Only after [`Self::lock`] by the same thread.
    pub(crate) unsafe fn unlock(&self) {
        if self.locked {
            // SAFETY: locked by the caller's contract.
            unsafe { self.lock.unlock() };
        }
    }

    /// Returns the place of the session's completion. Dereferenced only within a polling session.
    pub(crate) const fn current(&self) -> *mut Option<Completion> {
        self.current.get()
    }
}

/// The parameters of a new CQ.
pub(crate) struct CqPlan<'a> {
    pub(crate) cqe: u32,
    pub(crate) cq_context: *mut c_void,
    pub(crate) channel: Handle<'a, ibv_comp_channel>,
    pub(crate) comp_vector: u32,
    pub(crate) single_threaded: bool,
    pub(crate) ignores_overrun: bool,
    pub(crate) parent_domain: Option<PdRef>,
    /// Memory from the program's allocator.
    pub(crate) buffer: Option<Buffer>,
}

/// Creates a CQ. `fill_in` may add to the C part.
///
/// # Errors
/// `EINVAL` for sizes and vectors out of range, and any error of the emulator.
//= CQ-01
pub(crate) fn create(
    context: Handle<'_, ibv_context>,
    plan: CqPlan<'_>,
    fill_in: impl FnOnce(&mut ibv_cq_ex),
) -> Result<*mut ibv_cq_ex, Errno> {
    let context = context.share()?;
    huge_pages::check(&context, huge_pages::Kind::Cq)?;
    let channel = match plan.channel.some() {
        Some(channel) => Some(channel.get()?.inner().channel()),
        None => None,
    };
    CqObject::create(|address| {
        let cookie = address.expose_provenance() as u64;
        let cq = context.context().create_cq_with(CqInitAttr {
            cqe: plan.cqe,
            channel,
            vector: plan.comp_vector,
            cookie,
            ignores_overrun: plan.ignores_overrun,
        })?;
        let mut c: ibv_cq_ex = zeroed();
        c.context = context.as_c();
        c.channel = plan.channel.as_ptr();
        c.cq_context = plan.cq_context;
        c.cqe = to_int(cq.capacity());
        fill_in(&mut c);
        let state = CqState {
            cq,
            context,
            _buffer: plan.buffer,
            _parent_domain: plan.parent_domain,
            lock: parking_lot::RawMutex::INIT,
            locked: !plan.single_threaded,
            current: UnsafeCell::new(None),
        };
        Ok((c, state))
    })
}

/// `ibv_create_cq`.
pub(crate) extern "C" fn ibv_create_cq(
    context: Handle<'_, ibv_context>,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: Handle<'_, ibv_comp_channel>,
    comp_vector: c_int,
) -> *mut ibv_cq {
    ptr_verb(|| {
        let plan = CqPlan {
            cqe: u32::try_from(cqe).map_err(|_| Errno::INVAL)?,
            cq_context,
            channel,
            comp_vector: u32::try_from(comp_vector).map_err(|_| Errno::INVAL)?,
            single_threaded: false,
            ignores_overrun: false,
            parent_domain: None,
            buffer: None,
        };
        create(context, plan, |_| ()).map(<*mut ibv_cq_ex>::cast)
    })
}

/// `ibv_destroy_cq`: waits until all events are acknowledged. Fails with `EBUSY` while a QP uses
/// it.
//= CQ-09
pub(crate) extern "C" fn ibv_destroy_cq(cq: Last<'_, ibv_cq>) -> c_int {
    int_verb(|| cq.destroy(|state| Ok(state.cq.destroy()?)))
}

/// `ibv_resize_cq`.
//= CQ-04
pub(crate) extern "C" fn ibv_resize_cq(cq: Handle<'_, ibv_cq>, cqe: c_int) -> c_int {
    int_verb(|| {
        let object = cq.get()?;
        let state = object.inner();
        state
            .cq
            .resize(u32::try_from(cqe).map_err(|_| Errno::INVAL)?)?;
        let actual = to_int(state.cq.capacity());
        object.set_member(member!(ibv_cq_ex, cqe), actual);
        Ok(())
    })
}

/// Context op `modify_cq`: the moderation of events.
//= CQ-10
pub(crate) extern "C" fn modify_cq(
    cq: Handle<'_, ibv_cq>,
    attr: In<'_, ibv_modify_cq_attr>,
) -> c_int {
    int_verb(|| {
        let state = cq.get()?.inner();
        let attr = attr.read()?;
        if attr.attr_mask & !IBV_CQ_ATTR_MODERATE != 0 {
            return Err(Errno::INVAL);
        }
        if attr.attr_mask != 0 {
            let asked = attr.moderate;
            state.cq.moderate(asked.cq_count, asked.cq_period)?;
        }
        Ok(())
    })
}

/// Context op `req_notify_cq`.
pub(crate) extern "C" fn req_notify_cq(cq: Handle<'_, ibv_cq>, solicited_only: c_int) -> c_int {
    int_data_verb(|| {
        let object = cq.get()?;
        if object.member(member!(ibv_cq_ex, channel)).is_null() {
            // Without a channel the event has no receiver. Hardware drivers do not fail either.
            return Ok(());
        }
        Ok(object.inner().cq.req_notify(solicited_only != 0)?)
    })
}

/// Context op `poll_cq`: returns the number of completions written to `wc`, or a negative number on
/// failure.
//= CQ-03
///
/// # Safety
/// `wc` must be NULL or have `num_entries` entries.
pub(crate) unsafe extern "C" fn poll_cq(
    cq: Handle<'_, ibv_cq>,
    num_entries: c_int,
    wc: *mut ibv_wc,
) -> c_int {
    neg_data_verb(|| {
        let state = cq.get()?.inner();
        let max = poll_capacity(&state.cq, num_entries, wc.is_null())?;
        let polled = state.cq.poll_with(max, |index, completion| {
            // SAFETY: by contract `wc` has `num_entries` entries, and `index` is below that.
            unsafe { wc.add(index).write(to_wc(&completion)) };
        });
        c_int::try_from(polled).map_err(|_| Errno::INVAL)
    })
}

/// Returns for how many completions a poll has capacity. A negative number stands for 0, as in
/// hardware drivers, whose loops over the array end at once.
///
/// # Errors
/// `EINVAL` if the array is NULL and there are completions. An empty CQ needs no array.
//= CQ-03
pub(crate) fn poll_capacity(cq: &Cq, num_entries: c_int, is_null: bool) -> Result<usize, Errno> {
    let max = usize::try_from(num_entries).unwrap_or(0);
    match is_null {
        true if max > 0 && !cq.is_empty() => {
            let what = "wc is NULL, but the completion queue is not empty";
            Err(Errno::INVAL.because(Reason::new(what, "")))
        }
        true => Ok(0),
        false => Ok(max),
    }
}

/// Converts a completion to C.
fn to_wc(completion: &Completion) -> ibv_wc {
    ibv_wc {
        wr_id: completion.wr_id,
        status: completion.status.code(),
        opcode: completion.opcode.code(),
        vendor_err: completion.vendor_err,
        byte_len: completion.byte_len,
        imm_data: imm_data(completion),
        qp_num: completion.qp_num.get(),
        src_qp: completion.src_qp.get(),
        wc_flags: completion.wc_flags.bits(),
        pkey_index: 0,
        slid: 0,
        sl: completion.sl,
        dlid_path_bits: 0,
    }
}

/// Returns the immediate data as it lies in memory (network byte order), or the invalidated key as
/// a number.
pub(crate) const fn imm_data(completion: &Completion) -> u32 {
    match completion.imm_or_inv {
        ImmOrInv::None | ImmOrInv::FlowTag(_) => 0,
        ImmOrInv::Imm(bytes) => u32::from_ne_bytes(bytes),
        ImmOrInv::Inv(rkey) => rkey.get(),
    }
}

/// Returns the flow tag of a received raw packet.
pub(crate) const fn flow_tag(completion: &Completion) -> u32 {
    match completion.imm_or_inv {
        ImmOrInv::FlowTag(tag) => tag,
        _ => 0,
    }
}

/// Returns the CQ behind a pointer, or `None` for NULL.
///
/// # Errors
/// `ENODEV` for a CQ of the parent process.
pub(crate) fn optional(cq: Handle<'_, ibv_cq>) -> Result<Option<Cq>, Errno> {
    match cq.some() {
        Some(cq) => Ok(Some(cq.get()?.inner().cq.clone())),
        None => Ok(None),
    }
}
