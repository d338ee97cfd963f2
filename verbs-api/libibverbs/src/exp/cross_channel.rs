//! Cross-channel operations: requests that wait, release and compute, and task lists.

use std::{
    ffi::{c_int, c_void},
    ptr,
};

use parking_lot::{Mutex, MutexGuard};
use rocade_abi::{
    exp::{
        cross_channel::{
            IBV_EXP_CQ_ATTR_CQ_CAP_FLAGS, IBV_EXP_CQ_CAP_FLAGS, IBV_EXP_CQ_CREATE_CROSS_CHANNEL,
            IBV_EXP_CQ_IGNORE_OVERRUN, IBV_EXP_CQ_INIT_ATTR_FLAGS, IBV_EXP_CQ_MODERATION,
            IBV_EXP_TASK_RECV, IBV_EXP_TASK_SEND, ibv_exp_cq_attr, ibv_exp_cq_init_attr,
            ibv_exp_task,
        },
        send::{
            IBV_EXP_CALC_DATA_SIZE_64_BIT, IBV_EXP_CALC_DATA_SIZE_64_BIT_LOC,
            IBV_EXP_CALC_DATA_TYPE_FLOAT, IBV_EXP_CALC_DATA_TYPE_INT, IBV_EXP_CALC_DATA_TYPE_UINT,
            IBV_EXP_CALC_OP_ADD, IBV_EXP_CALC_OP_BAND, IBV_EXP_CALC_OP_BOR, IBV_EXP_CALC_OP_BXOR,
            IBV_EXP_CALC_OP_MAXLOC, IBV_EXP_SEND_WAIT_EN_LAST, IBV_EXP_WR_CQE_WAIT,
            IBV_EXP_WR_RECV_ENABLE, ibv_exp_send_wr,
        },
    },
    ibv_comp_channel, ibv_context, ibv_cq, ibv_recv_wr,
};
use rocade_emulator::{Calc, CalcOp, SendFlags, SendPoster, ToDct};

use super::send;
use crate::{
    cq::{self, CqObject},
    diagnostics::Reason,
    ffi::{self, Errno, int_verb},
    post,
    qp::{QpObject, QpState},
};

fn invalid(what: &str) -> Errno {
    Errno::INVAL.because(Reason::new(what, ""))
}

/// `ibv_exp_create_cq`.
//= XST-16
//= XCON-14
pub(crate) unsafe extern "C" fn ibv_exp_create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    comp_vector: c_int,
    attr: *mut ibv_exp_cq_init_attr,
) -> *mut ibv_cq {
    let mut flags = 0;
    let checked = int_verb(|| {
        // SAFETY: by contract NULL or readable.
        let Some(attr) = (unsafe { attr.as_ref() }) else {
            return Ok(());
        };
        if attr.comp_mask & IBV_EXP_CQ_INIT_ATTR_FLAGS != 0 {
            flags = attr.flags;
        }
        //= XCON-20
        if attr.comp_mask & !IBV_EXP_CQ_INIT_ATTR_FLAGS != 0
            || flags & !IBV_EXP_CQ_CREATE_CROSS_CHANNEL != 0
        {
            return Err(invalid("comp_mask or flags have unknown bits"));
        }
        Ok(())
    });
    if checked != 0 {
        return ptr::null_mut();
    }
    // SAFETY: same contract.
    let made = unsafe { cq::ibv_create_cq(context, cqe, cq_context, channel, comp_vector) };
    if flags != 0 && !made.is_null() {
        // SAFETY: created above.
        let object = unsafe { CqObject::borrow(made.cast()) };
        object
            .iter()
            .for_each(|object| object.inner().cq().allow_waits());
    }
    made
}

/// `ibv_exp_modify_cq`.
//= XST-17
//= XCON-14
pub(crate) unsafe extern "C" fn ibv_exp_modify_cq(
    cq: *mut ibv_cq,
    attr: *mut ibv_exp_cq_attr,
    mask: c_int,
) -> c_int {
    int_verb(|| {
        // SAFETY: by contract a live CQ.
        let state = unsafe { CqObject::borrow(cq.cast()) }?.inner();
        // SAFETY: by contract NULL or readable.
        let attr = unsafe { ffi::read(attr) }?;
        let mask = u32::try_from(mask).map_err(|_| Errno::INVAL)?;
        let has_flags = attr.comp_mask & IBV_EXP_CQ_ATTR_CQ_CAP_FLAGS != 0;
        let sets_flags = mask & IBV_EXP_CQ_CAP_FLAGS != 0;
        //= XST-17
        if sets_flags && !has_flags {
            return Err(invalid("comp_mask has no IBV_EXP_CQ_ATTR_CQ_CAP_FLAGS"));
        }
        let flags = if sets_flags { attr.cq_cap_flags } else { 0 };
        if mask & !(IBV_EXP_CQ_MODERATION | IBV_EXP_CQ_CAP_FLAGS) != 0
            || attr.comp_mask & !(IBV_EXP_CQ_MODERATION | IBV_EXP_CQ_ATTR_CQ_CAP_FLAGS) != 0
            || flags & !IBV_EXP_CQ_IGNORE_OVERRUN != 0
        {
            return Err(invalid("a mask or cq_cap_flags have unknown bits"));
        }
        if mask & IBV_EXP_CQ_MODERATION != 0 {
            let asked = attr.moderation;
            state.cq().moderate(asked.cq_count, asked.cq_period)?;
        }
        if flags != 0 {
            state.cq().ignore_overrun();
        }
        Ok(())
    })
}

/// Queues a wait or release request.
///
/// # Safety
/// The CQ or QP that it names must be alive.
//= XCW-05
//= XCE-01
pub(super) unsafe fn push(
    poster: &mut SendPoster<'_>,
    request: &ibv_exp_send_wr,
) -> Result<(), Errno> {
    let head = (request.wr_id, send::flags(request) & !SendFlags::INLINE);
    let last = request.exp_send_flags & IBV_EXP_SEND_WAIT_EN_LAST != 0;
    if request.exp_opcode == IBV_EXP_WR_CQE_WAIT {
        // SAFETY: all members of the union are integers and pointers. The opcode says which one is
        // set.
        let wait = unsafe { request.task.cqe_wait };
        // SAFETY: by contract NULL, which is refused, or a live CQ.
        let state = unsafe { CqObject::borrow(wait.cq.cast()) }?.inner();
        let count = u32::try_from(wait.cq_count).map_err(|_| invalid("cq_count is negative"))?;
        return Ok(poster.push_wait(head, state.cq(), count, last)?);
    }
    // SAFETY: as above.
    let enable = unsafe { request.task.wqe_enable };
    // SAFETY: by contract NULL, which is refused, or a live queue pair.
    let state = unsafe { QpObject::borrow(enable.qp.cast()) }?.inner();
    let count = u32::try_from(enable.wqe_count).map_err(|_| invalid("wqe_count is negative"))?;
    let is_recv = request.exp_opcode == IBV_EXP_WR_RECV_ENABLE;
    Ok(poster.push_enable(head, (state.qp(), is_recv), count, last)?)
}

/// Queues a send that computes.
///
/// # Safety
/// As for [`post::push_send`].
pub(super) unsafe fn push_calc(
    poster: &mut SendPoster<'_>,
    state: &QpState,
    request: &ibv_exp_send_wr,
    to: Option<ToDct<'_>>,
) -> Result<(), Errno> {
    let calc = calc(request)?;
    let plain = send::plain(request);
    // SAFETY: same contract.
    unsafe {
        post::push_as(state, &plain, |wr, data| {
            Ok(poster.push_calc(wr, to, calc, data)?)
        })
    }
}

//= XCC-02
fn calc(request: &ibv_exp_send_wr) -> Result<Calc, Errno> {
    const BITWISE: [u32; 3] = [
        IBV_EXP_CALC_DATA_TYPE_INT,
        IBV_EXP_CALC_DATA_TYPE_UINT,
        IBV_EXP_CALC_DATA_TYPE_FLOAT,
    ];
    let asked = request.op;
    let op = match (asked.calc_op, asked.data_type) {
        (IBV_EXP_CALC_OP_ADD, IBV_EXP_CALC_DATA_TYPE_INT | IBV_EXP_CALC_DATA_TYPE_UINT) => {
            CalcOp::Add
        }
        (IBV_EXP_CALC_OP_ADD, IBV_EXP_CALC_DATA_TYPE_FLOAT) => CalcOp::AddFloat,
        (IBV_EXP_CALC_OP_MAXLOC, IBV_EXP_CALC_DATA_TYPE_UINT) => CalcOp::MaxLoc,
        (IBV_EXP_CALC_OP_BAND, any) if BITWISE.contains(&any) => CalcOp::And,
        (IBV_EXP_CALC_OP_BXOR, any) if BITWISE.contains(&any) => CalcOp::Xor,
        (IBV_EXP_CALC_OP_BOR, any) if BITWISE.contains(&any) => CalcOp::Or,
        _ => return Err(invalid("the operands do not support this operation")),
    };
    let located = match asked.data_size {
        IBV_EXP_CALC_DATA_SIZE_64_BIT => false,
        IBV_EXP_CALC_DATA_SIZE_64_BIT_LOC => true,
        _ => return Err(invalid("op.calc.data_size is unknown")),
    };
    Ok(Calc { op, located })
}

/// Serializes task lists, and chains of requests of cross-channel QPs. Their wait and release
/// counts depend on what was posted before.
static POST_LOCK: Mutex<()> = Mutex::new(());

/// Locks [`POST_LOCK`], so that only the caller posts cross-channel requests.
pub(super) fn lock_tasks() -> MutexGuard<'static, ()> {
    POST_LOCK.lock()
}

/// `ibv_exp_post_task`.
//= XST-18
//= XCT-01
//= XCT-03
pub(crate) unsafe extern "C" fn ibv_exp_post_task(
    context: *mut ibv_context,
    task: *mut ibv_exp_task,
    bad: *mut *mut ibv_exp_task,
) -> c_int {
    let mut current = task;
    let tasks = lock_tasks();
    let failed = loop {
        // SAFETY: by contract the list consists of readable tasks.
        let Some(task) = (unsafe { current.as_ref() }) else {
            break 0;
        };
        // SAFETY: by contract with the requests and objects that they name.
        let failed = unsafe { exp_post_task(context, task) };
        if failed != 0 {
            break failed;
        }
        current = task.next;
    };
    drop(tasks);
    //= XCT-02
    if failed != 0 && !bad.is_null() {
        // SAFETY: by contract writable.
        unsafe { bad.write(current) };
    }
    failed
}

/// # Safety
/// The objects that `task` names must be readable or live.
unsafe fn exp_post_task(context: *mut ibv_context, task: &ibv_exp_task) -> c_int {
    let checked = int_verb(|| {
        // SAFETY: by contract NULL, which is refused, or a live queue pair.
        let object = unsafe { QpObject::borrow(task.item.qp.cast()) }?;
        //= XCT-02
        if task.comp_mask != 0 {
            return Err(invalid("comp_mask is not 0"));
        }
        // SAFETY: the C part of the QP is alive, and this member does not change.
        if unsafe { (*object.c()).qp_base.context } != context {
            return Err(invalid("the queue pair belongs to another context"));
        }
        match task.task_type {
            IBV_EXP_TASK_SEND | IBV_EXP_TASK_RECV => Ok(()),
            _ => Err(invalid("task_type is unknown")),
        }
    });
    if checked != 0 {
        return checked;
    }
    if task.task_type == IBV_EXP_TASK_SEND {
        let mut bad = ptr::null_mut();
        // SAFETY: same contract.
        return unsafe { send::post(task.item.qp, task.item.requests.cast(), &raw mut bad, true) };
    }
    let mut bad: *mut ibv_recv_wr = ptr::null_mut();
    // SAFETY: same contract.
    unsafe { post::post_recv(task.item.qp, task.item.requests.cast(), &raw mut bad) }
}
