//! Completion counters of rdma-core 65.

use std::{ffi::c_int, sync::Arc};

use rocade_abi::{
    IBV_COMP_CNTR_TYPE_BYTES, IBV_COMP_CNTR_TYPE_WRS, ibv_comp_cntr, ibv_comp_cntr_caps,
    ibv_comp_cntr_init_attr, ibv_context, ibv_qp, ibv_qp_attach_comp_cntr_attr,
};
use rocade_emulator::{CompCounter, CountedOps, CounterUnit, CounterValue, limits};

use crate::{
    context::ContextObject,
    diagnostics::Reason,
    ffi::{self, Errno, int_data_verb, int_verb, ptr_verb},
    handle::CHandle,
    mapping::Mapping,
    qp::QpObject,
};

/// A completion counter.
pub(crate) type CounterObject = CHandle<ibv_comp_cntr, CounterState>;

/// The Rust state of an `ibv_comp_cntr`.
pub(crate) struct CounterState {
    counter: CompCounter,
    /// Memory of descriptors that has the values. It ends after the counter.
    _memory: [Option<Mapping>; 2],
    _context: Arc<ContextObject>,
}

/// Returns the error for an attribute that is not offered.
fn not_offered(what: &str) -> Errno {
    Errno::OPNOTSUPP.because(Reason::new(what, ""))
}

/// `ibv_query_comp_cntr_caps`, which passes the size of its structure. Counters of this device
/// count every operation, up to the largest `uint64_t`, after which they continue with 0.
pub(crate) unsafe extern "C" fn ibv_query_comp_cntr_caps(
    context: *mut ibv_context,
    caps: *mut ibv_comp_cntr_caps,
    caps_size: usize,
) -> c_int {
    int_verb(|| {
        // SAFETY: by contract NULL or an open context.
        unsafe { ContextObject::borrow(context) }?;
        let all = ibv_comp_cntr_caps {
            max_value: u64::MAX,
            max_counters: limits::MAX_COMP_COUNTERS,
            supported_qp_attach_ops: CountedOps::all().bits(),
        };
        // SAFETY: by contract NULL or writable for `caps_size` bytes.
        unsafe { ffi::write_prefix(caps, &all, caps_size) }
    })
}

/// `ibv_create_comp_cntr`: returns a counter of work requests or of bytes. Both values are 0.
///
/// EOPNOTSUPP for another type, or any flag. ENOMEM above the device's limit.
pub(crate) unsafe extern "C" fn ibv_create_comp_cntr(
    context: *mut ibv_context,
    attr: *mut ibv_comp_cntr_init_attr,
) -> *mut ibv_comp_cntr {
    ptr_verb(|| {
        // SAFETY: by contract NULL or an open context.
        let context = unsafe { ContextObject::share(context) }?;
        // SAFETY: by contract NULL or readable.
        let unit = unit(&unsafe { ffi::read(attr) }?)?;
        let counter = context.context().comp_counter(unit)?;
        object(context, counter, [None, None])
    })
}

/// Returns the unit that the attributes of a new counter ask for.
///
/// # Errors
/// `EOPNOTSUPP` for another type, or any flag.
pub(crate) fn unit(attr: &ibv_comp_cntr_init_attr) -> Result<CounterUnit, Errno> {
    let unit = match attr.r#type {
        IBV_COMP_CNTR_TYPE_WRS => CounterUnit::WorkRequests,
        IBV_COMP_CNTR_TYPE_BYTES => CounterUnit::Bytes,
        _ => return Err(not_offered("cc_attr.type is unknown")),
    };
    if attr.comp_mask != 0 || attr.flags != 0 {
        return Err(not_offered("cc_attr.comp_mask and flags must be 0"));
    }
    Ok(unit)
}

/// Returns the C object of a counter. `memory` stays mapped as long as the counter is there.
pub(crate) fn object(
    context: Arc<ContextObject>,
    counter: CompCounter,
    memory: [Option<Mapping>; 2],
) -> Result<*mut ibv_comp_cntr, Errno> {
    CounterObject::create(|_| {
        let c = ibv_comp_cntr {
            context: context.as_c(),
            handle: 0,
        };
        let state = CounterState {
            counter,
            _memory: memory,
            _context: context,
        };
        Ok((c, state))
    })
}

/// `ibv_destroy_comp_cntr`: EBUSY while the counter is attached to a QP.
pub(crate) unsafe extern "C" fn ibv_destroy_comp_cntr(counter: *mut ibv_comp_cntr) -> c_int {
    // SAFETY: by contract a live counter that is not used afterwards.
    int_verb(|| unsafe { CounterObject::destroy(counter, |state| Ok(state.counter.destroy()?)) })
}

/// Calls `f` with a counter.
///
/// # Safety
/// `counter` must be NULL or live.
unsafe fn with(
    counter: *mut ibv_comp_cntr,
    f: impl FnOnce(&CompCounter) -> Result<(), Errno>,
) -> Result<(), Errno> {
    // SAFETY: same contract.
    f(&unsafe { CounterObject::borrow(counter) }?.inner().counter)
}

/// `ibv_set_comp_cntr`.
pub(crate) unsafe extern "C" fn ibv_set_comp_cntr(
    counter: *mut ibv_comp_cntr,
    value: u64,
) -> c_int {
    let set = |counter: &CompCounter| {
        counter.set(CounterValue::Completed, value);
        Ok(())
    };
    // SAFETY: by contract NULL or live.
    int_data_verb(|| unsafe { with(counter, set) })
}

/// `ibv_set_err_comp_cntr`.
pub(crate) unsafe extern "C" fn ibv_set_err_comp_cntr(
    counter: *mut ibv_comp_cntr,
    value: u64,
) -> c_int {
    let set = |counter: &CompCounter| {
        counter.set(CounterValue::Failed, value);
        Ok(())
    };
    // SAFETY: by contract NULL or live.
    int_data_verb(|| unsafe { with(counter, set) })
}

/// `ibv_inc_comp_cntr`.
pub(crate) unsafe extern "C" fn ibv_inc_comp_cntr(
    counter: *mut ibv_comp_cntr,
    amount: u64,
) -> c_int {
    let add = |counter: &CompCounter| {
        counter.add(CounterValue::Completed, amount);
        Ok(())
    };
    // SAFETY: by contract NULL or live.
    int_data_verb(|| unsafe { with(counter, add) })
}

/// `ibv_inc_err_comp_cntr`.
pub(crate) unsafe extern "C" fn ibv_inc_err_comp_cntr(
    counter: *mut ibv_comp_cntr,
    amount: u64,
) -> c_int {
    let add = |counter: &CompCounter| {
        counter.add(CounterValue::Failed, amount);
        Ok(())
    };
    // SAFETY: by contract NULL or live.
    int_data_verb(|| unsafe { with(counter, add) })
}

/// `ibv_read_comp_cntr`. Like `ibv_poll_cq` it lets the device work, so that a program may wait by
/// reading.
pub(crate) unsafe extern "C" fn ibv_read_comp_cntr(
    counter: *mut ibv_comp_cntr,
    value: *mut u64,
) -> c_int {
    // SAFETY: by contract NULL or writable.
    let read =
        |counter: &CompCounter| unsafe { ffi::write(value, counter.read(CounterValue::Completed)) };
    // SAFETY: by contract NULL or live.
    int_data_verb(|| unsafe { with(counter, read) })
}

/// `ibv_read_err_comp_cntr`. Lets the device work, too.
pub(crate) unsafe extern "C" fn ibv_read_err_comp_cntr(
    counter: *mut ibv_comp_cntr,
    value: *mut u64,
) -> c_int {
    let read =
        // SAFETY: by contract NULL or writable.
        |counter: &CompCounter| unsafe { ffi::write(value, counter.read(CounterValue::Failed)) };
    // SAFETY: by contract NULL or live.
    int_data_verb(|| unsafe { with(counter, read) })
}

/// `ibv_qp_attach_comp_cntr`: counts operations of a QP until it is destroyed.
///
/// EINVAL without an operation, for a counter of another context, and if the QP is not in RESET or
/// INIT. EOPNOTSUPP for an unknown operation or field. EBUSY if an operation has a counter already.
pub(crate) unsafe extern "C" fn ibv_qp_attach_comp_cntr(
    qp: *mut ibv_qp,
    counter: *mut ibv_comp_cntr,
    attr: *mut ibv_qp_attach_comp_cntr_attr,
) -> c_int {
    int_verb(|| {
        // SAFETY: by contract NULL or a live QP.
        let state = unsafe { QpObject::borrow(qp.cast()) }?.inner();
        // SAFETY: by contract NULL or live.
        let counter = &unsafe { CounterObject::borrow(counter) }?.inner().counter;
        // SAFETY: by contract NULL or readable.
        let attr = unsafe { ffi::read(attr) }?;
        let kinds = CountedOps::from_bits(attr.op_mask);
        let kinds = kinds.ok_or_else(|| not_offered("attr.op_mask has an unknown operation"))?;
        if attr.comp_mask != 0 {
            return Err(not_offered("attr.comp_mask must be 0"));
        }
        Ok(state.qp().attach_counter(counter, kinds)?)
    })
}
