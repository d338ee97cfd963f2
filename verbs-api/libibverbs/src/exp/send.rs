//! Send work requests.

use std::ffi::c_int;

use rocade_abi::{
    IBV_WR_BIND_MW, IBV_WR_LOCAL_INV,
    exp::send::{
        IBV_EXP_SEND_IP_CSUM, IBV_EXP_SEND_WITH_CALC, IBV_EXP_WR_CQE_WAIT,
        IBV_EXP_WR_EXT_MASKED_ATOMIC_CMP_AND_SWP, IBV_EXP_WR_EXT_MASKED_ATOMIC_FETCH_AND_ADD,
        IBV_EXP_WR_NOP, IBV_EXP_WR_RECV_ENABLE, IBV_EXP_WR_SEND_ENABLE, IBV_EXP_WR_UMR_FILL,
        IBV_EXP_WR_UMR_INVALIDATE, ibv_exp_send_wr,
    },
    ibv_qp, ibv_send_wr, ibv_send_wr_qp_type,
};
use rocade_emulator::{QpType, SendFlags, SendPoster};

use super::{atomics, cross, umr};
use crate::{
    complaint::Reason,
    ffi::{Errno, int_data_verb},
    post::{self, Chained},
    qp::{QpObject, QpState},
};

/// The bit of a DC key that says that it is for the initiator's own to be sent.
//= DCK-02
const OWN_KEY: u64 = 1 << 63;

/// `ibv_exp_post_send`: on failure `*bad_wr` is the first request that is not queued.
//= XST-08
pub(crate) unsafe extern "C" fn ibv_exp_post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_exp_send_wr,
    bad_wr: *mut *mut ibv_exp_send_wr,
) -> c_int {
    int_data_verb(|| {
        // SAFETY: by contract a live QP.
        let state = unsafe { QpObject::borrow(qp.cast()) }?.inner();
        // Before the queue is locked.
        let own_key = match state.qp_type() {
            QpType::DcInitiator => state.qp().query().0.dc_key,
            _ => 0,
        };
        let mut poster = state.qp().send_queue();
        // SAFETY: by contract readable work requests, with the lists, buffers and objects they name.
        let posted = unsafe {
            post::each_of_chain(wr, bad_wr, |request| {
                push(&mut poster, state, request, own_key)
            })
        };
        drop(poster);
        posted.map_err(|error| error.of_post(state.qp(), true))
    })
}

impl Chained for ibv_exp_send_wr {
    #[inline]
    fn next(&self) -> *mut Self {
        self.next
    }
}

/// # Safety
/// What `request` names must be readable, or live.
unsafe fn push(
    poster: &mut SendPoster<'_>,
    state: &QpState,
    request: &ibv_exp_send_wr,
    own_key: u64,
) -> Result<(), Errno> {
    //= XCON-20
    if request.comp_mask != 0 {
        return Err(Errno::INVAL.because(Reason::new("comp_mask is not 0", "")));
    }
    //= XCC-01
    if request.exp_send_flags & IBV_EXP_SEND_WITH_CALC != 0 {
        // SAFETY: same contract.
        return unsafe { cross::push_calc(poster, state, request) };
    }
    //= XCON-02
    match request.exp_opcode {
        IBV_EXP_WR_UMR_FILL | IBV_EXP_WR_UMR_INVALIDATE => {
            // SAFETY: same contract.
            unsafe { umr::push(poster, state, request) }
        }
        IBV_EXP_WR_SEND_ENABLE | IBV_EXP_WR_RECV_ENABLE | IBV_EXP_WR_CQE_WAIT => {
            // SAFETY: same contract.
            unsafe { cross::push(poster, request) }
        }
        //= NOP-01
        IBV_EXP_WR_NOP => Ok(poster.push_nop(request.wr_id, flags(request) & !SendFlags::INLINE)?),
        IBV_EXP_WR_EXT_MASKED_ATOMIC_CMP_AND_SWP | IBV_EXP_WR_EXT_MASKED_ATOMIC_FETCH_AND_ADD => {
            // SAFETY: same contract.
            unsafe { atomics::push(poster, state, request) }
        }
        // What concerns this side alone.
        IBV_WR_LOCAL_INV | IBV_WR_BIND_MW => {
            // SAFETY: same contract.
            unsafe { post::push_send(poster, state, &plain(request)) }
        }
        _ if state.qp_type() == QpType::DcInitiator => {
            let dc = request.dc;
            //= DCK-02
            let key = match dc.dct_access_key & OWN_KEY {
                0 => dc.dct_access_key,
                _ => own_key,
            };
            // SAFETY: same contract.
            let to = unsafe { post::target(dc.ah, dc.dct_number, key, 0) }?;
            // SAFETY: same contract.
            unsafe { post::push_dynamic(poster, state, &plain(request), to) }
        }
        // SAFETY: same contract.
        _ => unsafe { post::push_send(poster, state, &plain(request)) },
    }
}

/// The flags of a request that mean the same in both forms.
//= XCON-03
pub(super) fn flags(request: &ibv_exp_send_wr) -> SendFlags {
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the plain flags are the lower half"
    )]
    let mut flags = SendFlags::from_bits_truncate(request.exp_send_flags as u32);
    flags.remove(SendFlags::IP_CSUM);
    if request.exp_send_flags & IBV_EXP_SEND_IP_CSUM != 0 {
        flags |= SendFlags::IP_CSUM;
    }
    flags
}

/// The plain form of a request, for operations that have one; others have an opcode that is no plain one.
pub(super) fn plain(request: &ibv_exp_send_wr) -> ibv_send_wr {
    ibv_send_wr {
        wr_id: request.wr_id,
        next: std::ptr::null_mut(),
        sg_list: request.sg_list,
        num_sge: request.num_sge,
        opcode: request.exp_opcode,
        send_flags: flags(request).bits(),
        imm_data: request.ex,
        wr: request.wr,
        qp_type: ibv_send_wr_qp_type {
            remote_srqn: request.xrc_remote_srq_num,
        },
        bind_mw: request.bind_mw,
    }
}
