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
            IBV_EXP_CALC_OP_MAXLOC, IBV_EXP_SEND_WAIT_EN_LAST, IBV_EXP_WR_RECV_ENABLE,
            ibv_exp_send_wr,
        },
    },
    ibv_comp_channel, ibv_context, ibv_cq, ibv_qp, ibv_qp_ex, ibv_recv_wr,
};
use rocade_emulator::{Calc, CalcOp, SendFlags, SendPoster, ToDct};

use super::send;
use crate::{
    args::{Chain, Chained, Handle, In, Out, Request, member},
    cq::{self},
    diagnostics::Reason,
    ffi::{Errno, int_verb},
    post,
    qp::QpState,
    trace::exp_data,
};

fn invalid(what: &str) -> Errno {
    Errno::INVAL.because(Reason::new(what, ""))
}

/// `ibv_exp_create_cq`.
//= XST-16
//= XCON-14
pub(crate) extern "C" fn ibv_exp_create_cq(
    context: Handle<'_, ibv_context>,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: Handle<'_, ibv_comp_channel>,
    comp_vector: c_int,
    attr: In<'_, ibv_exp_cq_init_attr>,
) -> *mut ibv_cq {
    let mut flags = 0;
    let checked = int_verb(|| {
        let Some(attr) = attr.optional() else {
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
    let made = cq::ibv_create_cq(context, cqe, cq_context, channel, comp_vector);
    if flags != 0 && !made.is_null() {
        // SAFETY: created above.
        let object = unsafe { Handle::new(made) }.get();
        object
            .iter()
            .for_each(|object| object.inner().cq().allow_waits());
    }
    made
}

/// `ibv_exp_modify_cq`.
//= XST-17
//= XCON-14
pub(crate) extern "C" fn ibv_exp_modify_cq(
    cq: Handle<'_, ibv_cq>,
    attr: In<'_, ibv_exp_cq_attr>,
    mask: c_int,
) -> c_int {
    int_verb(|| {
        let state = cq.get()?.inner();
        let attr = attr.read()?;
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
//= XCW-05
//= XCE-01
pub(super) fn push(
    poster: &mut SendPoster<'_>,
    request: Request<'_, ibv_exp_send_wr>,
) -> Result<(), Errno> {
    let head = (request.wr_id, send::flags(&request) & !SendFlags::INLINE);
    let last = request.exp_send_flags & IBV_EXP_SEND_WAIT_EN_LAST != 0;
    if let Some((cq, count)) = request.wait() {
        let state = cq.get()?.inner();
        let count = u32::try_from(count).map_err(|_| invalid("cq_count is negative"))?;
        return Ok(poster.push_wait(head, state.cq(), count, last)?);
    }
    let (qp, count) = request.enable().ok_or(Errno::INVAL)?;
    let state = qp.get()?.inner();
    let count = u32::try_from(count).map_err(|_| invalid("wqe_count is negative"))?;
    let is_recv = request.exp_opcode == IBV_EXP_WR_RECV_ENABLE;
    Ok(poster.push_enable(head, (state.qp(), is_recv), count, last)?)
}

/// Queues a send that computes.
pub(super) fn push_calc(
    poster: &mut SendPoster<'_>,
    state: &QpState,
    request: Request<'_, ibv_exp_send_wr>,
    to: Option<ToDct<'_>>,
) -> Result<(), Errno> {
    let calc = calc(&request)?;
    let plain = request.plain();
    post::push_as(state, Request::of(&plain), |wr, data| {
        Ok(poster.push_calc(wr, to, calc, data)?)
    })
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

impl Chained for ibv_exp_task {
    fn next(&self) -> *mut Self {
        self.next
    }
}

impl<'a> Request<'a, ibv_exp_task> {
    /// Returns the queue pair to which the task posts.
    const fn qp(self) -> Handle<'a, ibv_qp> {
        // SAFETY: NULL, or a live queue pair, by the promise of a chain.
        unsafe { Handle::new(self.get().item.qp) }
    }

    /// Returns the send requests. NULL for another task.
    fn sends(self) -> Chain<'a, ibv_exp_send_wr> {
        let is_send = self.get().task_type == IBV_EXP_TASK_SEND;
        let first = if is_send {
            self.get().item.requests
        } else {
            ptr::null_mut()
        };
        // SAFETY: by the promise of a chain. The type says that they are sends.
        unsafe { Chain::new(first.cast()) }
    }

    /// Returns the receive requests. NULL for another task.
    fn receives(self) -> Chain<'a, ibv_recv_wr> {
        let is_recv = self.get().task_type == IBV_EXP_TASK_RECV;
        let first = if is_recv {
            self.get().item.requests
        } else {
            ptr::null_mut()
        };
        // SAFETY: as above, for receives.
        unsafe { Chain::new(first.cast()) }
    }
}

/// `ibv_exp_post_task`.
//= XST-18
//= XCT-01
//= XCT-03
pub(crate) extern "C" fn ibv_exp_post_task(
    context: Handle<'_, ibv_context>,
    task: Chain<'_, ibv_exp_task>,
    bad: Out<'_, *mut ibv_exp_task>,
) -> c_int {
    let tasks = lock_tasks();
    let posted = task.each(bad, |task| match exp_post_task(context, task) {
        0 => Ok(()),
        errno => Err(Errno(errno)),
    });
    drop(tasks);
    posted.err().map_or(0, |errno| errno.0)
}

fn exp_post_task(context: Handle<'_, ibv_context>, task: Request<'_, ibv_exp_task>) -> c_int {
    let checked = int_verb(|| {
        let object = task.qp().get()?;
        //= XCT-02
        if task.comp_mask != 0 {
            return Err(invalid("comp_mask is not 0"));
        }
        if object.member(member!(ibv_qp_ex, qp_base.context)) != context.as_ptr() {
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
        return exp_data::post_sends(task.qp(), task.sends(), Out::of(&mut bad), true);
    }
    let mut bad: *mut ibv_recv_wr = ptr::null_mut();
    exp_data::post_receives(task.qp(), task.receives(), Out::of(&mut bad))
}
