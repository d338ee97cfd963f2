//! Masked atomics.

use rocade_abi::exp::send::{
    IBV_EXP_SEND_EXT_ATOMIC_INLINE, ibv_exp_cmp_swap, ibv_exp_fetch_add, ibv_exp_send_wr,
};
use rocade_emulator::{
    MASKED_SIZES, MaskedOp, Operands, QpType, Rkey, SendFlags, SendOp, SendPoster, SendWr, Srqn,
    ToDct, WideOperand,
};

use super::{request::MaskedOperands, send};
use crate::{args::Request, diagnostics::Reason, ffi::Errno, post, qp::QpState};

fn invalid(what: &str) -> Errno {
    Errno::INVAL.because(Reason::new(what, ""))
}

/// Queues a masked atomic.
//= XAT-10
pub(super) fn push(
    poster: &mut SendPoster<'_>,
    state: &QpState,
    request: Request<'_, ibv_exp_send_wr>,
    to: Option<ToDct<'_>>,
) -> Result<(), Errno> {
    let (masked, operands) = request.masked().ok_or(Errno::INVAL)?;
    //= XAT-12
    let log_size = u8::try_from(masked.log_arg_sz)
        .ok()
        .filter(|log_size| *log_size < 8 && MASKED_SIZES & 1 << log_size != 0);
    let log_size = log_size.ok_or_else(|| invalid("operands of this size are not supported"))?;
    //= XAT-06
    if 1 << log_size > state.exp_attr().max_atomic_arg {
        let what = "operands are longer than the queue pair's max_atomic_arg";
        return Err(invalid(what));
    }
    let inline = request.exp_send_flags & IBV_EXP_SEND_EXT_ATOMIC_INLINE != 0;
    let operand = |field: u64| -> Result<WideOperand, Errno> {
        //= XAT-13
        //= XDEC-13
        if log_size < 3 || log_size == 3 && inline {
            return Ok([field, 0, 0, 0]);
        }
        words(request, field, log_size)
    };
    let op = match operands {
        MaskedOperands::CmpSwap(ibv_exp_cmp_swap {
            compare_mask,
            compare_val,
            swap_val,
            swap_mask,
        }) => MaskedOp::CmpSwap {
            compare: operand(compare_val)?,
            compare_mask: operand(compare_mask)?,
            swap: operand(swap_val)?,
            swap_mask: operand(swap_mask)?,
        },
        MaskedOperands::FetchAdd(ibv_exp_fetch_add {
            add_val,
            field_boundary,
        }) => MaskedOp::FetchAdd {
            add: operand(add_val)?,
            boundary: operand(field_boundary)?,
        },
    };
    let wr = SendWr {
        wr_id: request.wr_id,
        op: SendOp::Masked {
            va: masked.remote_addr,
            rkey: Rkey::new(masked.rkey),
            log_size,
        },
        flags: send::flags(&request).difference(SendFlags::INLINE),
        sges: &[],
    };
    post::with_sges(request.sges(), |sges| {
        let (wr, op) = (SendWr { sges, ..wr }, Operands::Masked(op));
        match to {
            Some(to) => poster.push_dynamic_with(&wr, to, op)?,
            None => poster.push_with(&wr, op)?,
        }
        Ok(())
    })?;
    if state.qp_type() == QpType::XrcSend {
        poster.set_remote_srqn(Srqn::new(request.xrc_remote_srq_num));
    }
    Ok(())
}

/// Reads an operand of 2^`log_size` bytes from an address of the program.
///
/// # Errors
/// `EINVAL` for NULL.
//= XAT-14
fn words(
    request: Request<'_, ibv_exp_send_wr>,
    address: u64,
    log_size: u8,
) -> Result<WideOperand, Errno> {
    let address =
        usize::try_from(address).map_err(|_| invalid("an operand's address is out of range"))?;
    // SAFETY: by contract of the verb, the operands of this size are at addresses.
    let operand = unsafe { request.operand(address, 1 << log_size) };
    if operand.is_null() {
        return Err(invalid("an operand's address is NULL"));
    }
    let bytes = operand.to_vec();
    let mut words = [0; 4];
    for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        *word = bytes.try_into().map_or(0, u64::from_ne_bytes);
    }
    Ok(words)
}
