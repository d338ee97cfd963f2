//! Masked atomics.

use std::ptr;

use rocade_abi::exp::send::{
    IBV_EXP_SEND_EXT_ATOMIC_INLINE, IBV_EXP_WR_EXT_MASKED_ATOMIC_CMP_AND_SWP, ibv_exp_cmp_swap,
    ibv_exp_fetch_add, ibv_exp_send_wr,
};
use rocade_emulator::{
    MASKED_SIZES, MaskedOp, Operands, QpType, Rkey, SendFlags, SendOp, SendPoster, SendWr, Srqn,
    ToDct, WideOperand,
};

use super::send;
use crate::{diagnostics::Reason, ffi::Errno, post, qp::QpState};

fn invalid(what: &str) -> Errno {
    Errno::INVAL.because(Reason::new(what, ""))
}

/// Queues a masked atomic.
///
/// # Safety
/// The list of `request` must be readable, and so must operands that are addresses.
//= XAT-10
pub(super) unsafe fn push(
    poster: &mut SendPoster<'_>,
    state: &QpState,
    request: &ibv_exp_send_wr,
    to: Option<ToDct<'_>>,
) -> Result<(), Errno> {
    // SAFETY: the opcode says that it is this member.
    let masked = unsafe { &request.ext_op.masked_atomics };
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
        // SAFETY: same contract.
        unsafe { words(field, log_size) }
    };
    let op = if request.exp_opcode == IBV_EXP_WR_EXT_MASKED_ATOMIC_CMP_AND_SWP {
        // SAFETY: integers, for which any bytes are a value. The opcode says that it is this
        // member.
        let ibv_exp_cmp_swap {
            compare_mask,
            compare_val,
            swap_val,
            swap_mask,
        } = unsafe { masked.op.cmp_swap };
        MaskedOp::CmpSwap {
            compare: operand(compare_val)?,
            compare_mask: operand(compare_mask)?,
            swap: operand(swap_val)?,
            swap_mask: operand(swap_mask)?,
        }
    } else {
        // SAFETY: integers, as above.
        let ibv_exp_fetch_add {
            add_val,
            field_boundary,
        } = unsafe { masked.op.fetch_add };
        MaskedOp::FetchAdd {
            add: operand(add_val)?,
            boundary: operand(field_boundary)?,
        }
    };
    let wr = SendWr {
        wr_id: request.wr_id,
        op: SendOp::Masked {
            va: masked.remote_addr,
            rkey: Rkey::new(masked.rkey),
            log_size,
        },
        flags: send::flags(request).difference(SendFlags::INLINE),
        sges: &[],
    };
    // SAFETY: same contract.
    unsafe {
        post::with_sges(request.sg_list, request.num_sge, |sges| {
            let (wr, op) = (SendWr { sges, ..wr }, Operands::Masked(op));
            match to {
                Some(to) => poster.push_dynamic_with(&wr, to, op)?,
                None => poster.push_with(&wr, op)?,
            }
            Ok(())
        })
    }?;
    if state.qp_type() == QpType::XrcSend {
        poster.set_remote_srqn(Srqn::new(request.xrc_remote_srq_num));
    }
    Ok(())
}

/// Reads an operand of 2^`log_size` bytes from an address of the program.
///
/// # Errors
/// `EINVAL` for NULL.
///
/// # Safety
/// 2^`log_size` bytes at `address` must be readable.
//= XAT-14
unsafe fn words(address: u64, log_size: u8) -> Result<WideOperand, Errno> {
    let address =
        usize::try_from(address).map_err(|_| invalid("an operand's address is out of range"))?;
    if address == 0 {
        return Err(invalid("an operand's address is NULL"));
    }
    let source: *const u64 = ptr::with_exposed_provenance(address);
    let mut words = [0; 4];
    for (index, word) in words.iter_mut().enumerate().take(1 << (log_size - 3)) {
        // SAFETY: same contract.
        *word = unsafe { source.add(index).read_unaligned() };
    }
    Ok(words)
}
