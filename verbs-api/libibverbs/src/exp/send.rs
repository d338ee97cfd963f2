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
    ibv_qp, ibv_send_wr,
};
use rocade_emulator::{AccessFlags, QpType, SendFlags, SendPoster};

use super::{atomics, cross_channel, umr};
use crate::{
    args::{Chain, Handle, Out, Request, View},
    diagnostics::Reason,
    ffi::{Errno, int_data_verb},
    post,
    qp::QpState,
};

/// The bit of a DC key that requests the initiator's own key instead.
//= DCK-02
const OWN_KEY: u64 = 1 << 63;

/// Posts send work requests, for `ibv_exp_post_send` and tasks. On failure `*bad_wr` is the first
/// request that is not queued. `locked` says that the caller holds the lock of
/// `cross_channel::lock_tasks`.
//= XST-08
pub(crate) fn exp_post_send(
    qp: Handle<'_, ibv_qp>,
    wr: Chain<'_, ibv_exp_send_wr>,
    bad_wr: Out<'_, *mut ibv_exp_send_wr>,
    locked: bool,
) -> c_int {
    int_data_verb(|| {
        let state = qp.get()?.inner();
        //= XCT-03
        let counts = state.exp_attr().cross_channel != 0 && !locked;
        let _tasks = counts.then(cross_channel::lock_tasks);
        // Queried before the send queue is locked.
        let own_key = if state.qp_type() == QpType::DcInitiator {
            state.qp().query().0.dc_key
        } else {
            0
        };
        let posted = state
            .qp()
            .post_sends(|poster| wr.each(bad_wr, |request| push(poster, state, request, own_key)));
        posted.map_err(|error| error.of_post(state.qp(), true))
    })
}

fn push(
    poster: &mut SendPoster<'_>,
    state: &QpState,
    request: Request<'_, ibv_exp_send_wr>,
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
        // SAFETY: the queue pair is a DC initiator.
        let ah = unsafe { request.dc_address() };
        post::target(ah, dc.dct_number, key, 0).map(Some)
    };
    //= XCC-01
    if request.exp_send_flags & IBV_EXP_SEND_WITH_CALC != 0 {
        return cross_channel::push_calc(poster, state, request, to()?);
    }
    //= XCON-02
    match request.exp_opcode {
        IBV_EXP_WR_UMR_FILL | IBV_EXP_WR_UMR_INVALIDATE => umr::push(poster, state, request),
        IBV_EXP_WR_SEND_ENABLE | IBV_EXP_WR_RECV_ENABLE | IBV_EXP_WR_CQE_WAIT => {
            cross_channel::push(poster, request)
        }
        //= NOP-01
        IBV_EXP_WR_NOP => Ok(poster.push_nop(request.wr_id, flags(&request) & !SendFlags::INLINE)?),
        IBV_EXP_WR_EXT_MASKED_ATOMIC_CMP_AND_SWP | IBV_EXP_WR_EXT_MASKED_ATOMIC_FETCH_AND_ADD => {
            atomics::push(poster, state, request, to()?)
        }
        // Requests that stay on this host.
        IBV_WR_LOCAL_INV => post::push_send(poster, state, Request::of(&request.plain())),
        IBV_WR_BIND_MW => post::push_send(poster, state, Request::of(&bind(request)?)),
        _ => match to()? {
            Some(to) => post::push_dynamic(poster, state, Request::of(&request.plain()), to),
            None => post::push_send(poster, state, Request::of(&request.plain())),
        },
    }
}

/// Returns the flags of a request that mean the same in both structures.
//= XCON-03
pub(crate) fn flags(request: &ibv_exp_send_wr) -> SendFlags {
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

/// Converts a bind to the plain structure, where its rights must fit into 32 bits.
//= XDEC-15
//= XCON-22
fn bind(request: Request<'_, ibv_exp_send_wr>) -> Result<View<'_, ibv_send_wr>, Errno> {
    let asked = request.bind().ok_or(Errno::INVAL)?.bind_info;
    let mut rights = umr::rights(asked.exp_mw_access_flags)?;
    let zero_based = asked.exp_mw_access_flags & IBV_EXP_ACCESS_MW_ZERO_BASED != 0;
    rights.set(
        AccessFlags::ZERO_BASED,
        zero_based || rights.contains(AccessFlags::ZERO_BASED),
    );
    request.plain_bind(rights.bits()).ok_or(Errno::INVAL)
}
