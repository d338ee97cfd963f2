//! Completion counters of rdma-core 65.

use std::{ffi::c_int, sync::Arc};

use rocade_abi::{
    IBV_COMP_CNTR_TYPE_BYTES, IBV_COMP_CNTR_TYPE_WRS, ibv_comp_cntr, ibv_comp_cntr_caps,
    ibv_comp_cntr_init_attr, ibv_context, ibv_qp, ibv_qp_attach_comp_cntr_attr,
};
use rocade_emulator::{CompCounter, CountedOps, CounterUnit, CounterValue, limits};

use crate::{
    args::{Handle, In, Last, Out, Resized},
    context::ContextObject,
    diagnostics::Reason,
    ffi::{Errno, int_data_verb, int_verb, ptr_verb},
    handle::{CHandle, objects},
    mapping::Mapping,
};

/// A completion counter.
pub(crate) type CounterObject = CHandle<ibv_comp_cntr, CounterState>;

objects! {
    ibv_comp_cntr: ibv_comp_cntr, CounterState;
}

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
pub(crate) fn ibv_query_comp_cntr_caps(
    context: Handle<'_, ibv_context>,
    caps: Resized<'_, ibv_comp_cntr_caps>,
) -> c_int {
    int_verb(|| {
        context.get()?;
        let all = ibv_comp_cntr_caps {
            max_value: u64::MAX,
            max_counters: limits::MAX_COMP_COUNTERS,
            supported_qp_attach_ops: CountedOps::all().bits(),
        };
        caps.write(&all)
    })
}

/// `ibv_create_comp_cntr`: returns a counter of work requests or of bytes. Both values are 0.
///
/// EOPNOTSUPP for another type, or any flag. ENOMEM above the device's limit.
pub(crate) extern "C" fn ibv_create_comp_cntr(
    context: Handle<'_, ibv_context>,
    attr: In<'_, ibv_comp_cntr_init_attr>,
) -> *mut ibv_comp_cntr {
    ptr_verb(|| {
        let context = context.share()?;
        let unit = unit(&*attr.read()?)?;
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
pub(crate) extern "C" fn ibv_destroy_comp_cntr(counter: Last<'_, ibv_comp_cntr>) -> c_int {
    int_verb(|| counter.destroy(|state| Ok(state.counter.destroy()?)))
}

/// Calls `f` with a counter.
fn with(
    counter: Handle<'_, ibv_comp_cntr>,
    f: impl FnOnce(&CompCounter) -> Result<(), Errno>,
) -> Result<(), Errno> {
    f(&counter.get()?.inner().counter)
}

/// `ibv_set_comp_cntr`.
pub(crate) extern "C" fn ibv_set_comp_cntr(
    counter: Handle<'_, ibv_comp_cntr>,
    value: u64,
) -> c_int {
    let set = |counter: &CompCounter| {
        counter.set(CounterValue::Completed, value);
        Ok(())
    };
    int_data_verb(|| with(counter, set))
}

/// `ibv_set_err_comp_cntr`.
pub(crate) extern "C" fn ibv_set_err_comp_cntr(
    counter: Handle<'_, ibv_comp_cntr>,
    value: u64,
) -> c_int {
    let set = |counter: &CompCounter| {
        counter.set(CounterValue::Failed, value);
        Ok(())
    };
    int_data_verb(|| with(counter, set))
}

/// `ibv_inc_comp_cntr`.
pub(crate) extern "C" fn ibv_inc_comp_cntr(
    counter: Handle<'_, ibv_comp_cntr>,
    amount: u64,
) -> c_int {
    let add = |counter: &CompCounter| {
        counter.add(CounterValue::Completed, amount);
        Ok(())
    };
    int_data_verb(|| with(counter, add))
}

/// `ibv_inc_err_comp_cntr`.
pub(crate) extern "C" fn ibv_inc_err_comp_cntr(
    counter: Handle<'_, ibv_comp_cntr>,
    amount: u64,
) -> c_int {
    let add = |counter: &CompCounter| {
        counter.add(CounterValue::Failed, amount);
        Ok(())
    };
    int_data_verb(|| with(counter, add))
}

/// `ibv_read_comp_cntr`. Like `ibv_poll_cq` it lets the device work, so that a program may wait by
/// reading.
pub(crate) extern "C" fn ibv_read_comp_cntr(
    counter: Handle<'_, ibv_comp_cntr>,
    value: Out<'_, u64>,
) -> c_int {
    let read = |counter: &CompCounter| value.write(counter.read(CounterValue::Completed));
    int_data_verb(|| with(counter, read))
}

/// `ibv_read_err_comp_cntr`. Lets the device work, too.
pub(crate) extern "C" fn ibv_read_err_comp_cntr(
    counter: Handle<'_, ibv_comp_cntr>,
    value: Out<'_, u64>,
) -> c_int {
    let read = |counter: &CompCounter| value.write(counter.read(CounterValue::Failed));
    int_data_verb(|| with(counter, read))
}

/// `ibv_qp_attach_comp_cntr`: counts operations of a QP until it is destroyed.
///
/// EINVAL without an operation, for a counter of another context, and if the QP is not in RESET or
/// INIT. EOPNOTSUPP for an unknown operation or field. EBUSY if an operation has a counter already.
pub(crate) extern "C" fn ibv_qp_attach_comp_cntr(
    qp: Handle<'_, ibv_qp>,
    counter: Handle<'_, ibv_comp_cntr>,
    attr: In<'_, ibv_qp_attach_comp_cntr_attr>,
) -> c_int {
    int_verb(|| {
        let state = qp.get()?.inner();
        let counter = &counter.get()?.inner().counter;
        let attr = attr.read()?;
        let kinds = CountedOps::from_bits(attr.op_mask);
        let kinds = kinds.ok_or_else(|| not_offered("attr.op_mask has an unknown operation"))?;
        if attr.comp_mask != 0 {
            return Err(not_offered("attr.comp_mask must be 0"));
        }
        Ok(state.qp().attach_counter(counter, kinds)?)
    })
}
