//! Send work requests.

use std::ffi::c_int;

use rocade_abi::{
    IBV_WR_BIND_MW, IBV_WR_LOCAL_INV,
    exp::base::IBV_EXP_ACCESS_MW_ZERO_BASED,
    exp::send::{
        IBV_EXP_SEND_IP_CSUM, IBV_EXP_SEND_WITH_CALC, IBV_EXP_WR_CQE_WAIT,
        IBV_EXP_WR_EXT_MASKED_ATOMIC_CMP_AND_SWP, IBV_EXP_WR_EXT_MASKED_ATOMIC_FETCH_AND_ADD,
        IBV_EXP_WR_NOP, IBV_EXP_WR_RECV_ENABLE, IBV_EXP_WR_SEND_ENABLE, IBV_EXP_WR_UMR_FILL,
        IBV_EXP_WR_UMR_INVALIDATE, ibv_exp_send_wr,
    },
    ibv_mw_bind_info, ibv_qp, ibv_send_wr, ibv_send_wr_bind_mw, ibv_send_wr_qp_type,
    ibv_send_wr_tail,
};
use rocade_emulator::{AccessFlags, QpType, SendFlags, SendPoster};

use super::{atomics, cross_channel, umr};
use crate::{
    diagnostics::Reason,
    ffi::{Errno, int_data_verb},
    post::{self, Chained},
    qp::{QpObject, QpState},
};

/// The bit of a DC key that requests the initiator's own key instead.
//= DCK-02
const OWN_KEY: u64 = 1 << 63;

/// `ibv_exp_post_send`: on failure `*bad_wr` is the first request that is not queued.
//= XST-08
pub(crate) unsafe extern "C" fn ibv_exp_post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_exp_send_wr,
    bad_wr: *mut *mut ibv_exp_send_wr,
) -> c_int {
    // SAFETY: same contract.
    unsafe { post(qp, wr, bad_wr, false) }
}

/// Like [`ibv_exp_post_send`]. `locked` says that the caller holds the lock of
/// `cross_channel::lock_posting`.
///
/// # Safety
/// As for [`ibv_exp_post_send`].
pub(super) unsafe fn post(
    qp: *mut ibv_qp,
    wr: *mut ibv_exp_send_wr,
    bad_wr: *mut *mut ibv_exp_send_wr,
    locked: bool,
) -> c_int {
    int_data_verb(|| {
        // SAFETY: by contract a live QP.
        let state = unsafe { QpObject::borrow(qp.cast()) }?.inner();
        //= XCT-03
        let counts = state.exp_attr().cross_channel != 0 && !locked;
        let _tasks = counts.then(cross_channel::lock_tasks);
        // Queried before the send queue is locked.
        let own_key = match state.qp_type() {
            QpType::DcInitiator => state.qp().query().0.dc_key,
            _ => 0,
        };
        let posted = state.qp().post_sends(|poster| {
            // SAFETY: by contract readable work requests, with the lists, buffers and objects
            // they name.
            unsafe {
                post::each_of_chain(wr, bad_wr, |request| push(poster, state, request, own_key))
            }
        });
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
/// The objects that `request` names must be readable or live.
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
    // Only requests of a DC initiator name a target. For other QPs, the member `dc` is not read.
    let to = || {
        if state.qp_type() != QpType::DcInitiator {
            return Ok(None);
        }
        let dc = request.dc;
        //= DCK-02
        let key = match dc.dct_access_key & OWN_KEY {
            0 => dc.dct_access_key,
            _ => own_key,
        };
        // SAFETY: same contract.
        unsafe { post::target(dc.ah, dc.dct_number, key, 0) }.map(Some)
    };
    //= XCC-01
    if request.exp_send_flags & IBV_EXP_SEND_WITH_CALC != 0 {
        // SAFETY: same contract.
        return unsafe { cross_channel::push_calc(poster, state, request, to()?) };
    }
    //= XCON-02
    match request.exp_opcode {
        IBV_EXP_WR_UMR_FILL | IBV_EXP_WR_UMR_INVALIDATE => {
            // SAFETY: same contract.
            unsafe { umr::push(poster, state, request) }
        }
        IBV_EXP_WR_SEND_ENABLE | IBV_EXP_WR_RECV_ENABLE | IBV_EXP_WR_CQE_WAIT => {
            // SAFETY: same contract.
            unsafe { cross_channel::push(poster, request) }
        }
        //= NOP-01
        IBV_EXP_WR_NOP => Ok(poster.push_nop(request.wr_id, flags(request) & !SendFlags::INLINE)?),
        IBV_EXP_WR_EXT_MASKED_ATOMIC_CMP_AND_SWP | IBV_EXP_WR_EXT_MASKED_ATOMIC_FETCH_AND_ADD => {
            // SAFETY: same contract.
            unsafe { atomics::push(poster, state, request, to()?) }
        }
        // Requests that stay on this host. SAFETY: same contract.
        IBV_WR_LOCAL_INV => unsafe { post::push_send(poster, state, &plain(request)) },
        // SAFETY: same contract.
        IBV_WR_BIND_MW => unsafe { post::push_send(poster, state, &bind(request)?) },
        // SAFETY: same contract.
        _ => match to()? {
            // SAFETY: same contract.
            Some(to) => unsafe { post::push_dynamic(poster, state, &plain(request), to) },
            // SAFETY: same contract.
            None => unsafe { post::push_send(poster, state, &plain(request)) },
        },
    }
}

/// Returns the flags of a request that mean the same in both structures.
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

/// Converts a request to the plain structure. An opcode without a plain form stays as it is.
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
        // The rights of a window are converted by `bind`.
        bind_mw: ibv_send_wr_tail {
            // SAFETY: all members of the union are integers and pointers, for which any bytes are a
            // value.
            tso: unsafe { request.bind_mw.tso },
        },
    }
}

/// Converts a bind to the plain structure, where its rights must fit into 32 bits.
//= XDEC-15
//= XCON-22
fn bind(request: &ibv_exp_send_wr) -> Result<ibv_send_wr, Errno> {
    // SAFETY: all members of the union are integers and pointers, for which any bytes are a value.
    let asked = unsafe { request.bind_mw.bind_mw };
    let info = asked.bind_info;
    let mut rights = umr::rights(info.exp_mw_access_flags)?;
    let zero_based = info.exp_mw_access_flags & IBV_EXP_ACCESS_MW_ZERO_BASED != 0;
    rights.set(
        AccessFlags::ZERO_BASED,
        zero_based || rights.contains(AccessFlags::ZERO_BASED),
    );
    Ok(ibv_send_wr {
        bind_mw: ibv_send_wr_tail {
            bind_mw: ibv_send_wr_bind_mw {
                mw: asked.mw,
                rkey: asked.rkey,
                bind_info: ibv_mw_bind_info {
                    mr: info.mr,
                    addr: info.addr,
                    length: info.length,
                    mw_access_flags: rights.bits(),
                },
            },
        },
        ..plain(request)
    })
}
