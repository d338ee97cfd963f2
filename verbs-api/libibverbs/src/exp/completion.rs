//! Completions.

use std::{ffi::c_int, ptr};

use rocade_abi::{
    exp::completion::{
        IBV_EXP_WC_DCT, IBV_EXP_WC_MASKED_COMP_SWAP, IBV_EXP_WC_MASKED_FETCH_ADD, IBV_EXP_WC_SRQ,
        IBV_EXP_WC_UMR, IBV_EXP_WC_WITH_TIMESTAMP, ibv_exp_wc,
    },
    ibv_cq, ibv_wc_tm_info,
};
use rocade_emulator::{Completion, WcOpcode, trace};

use super::dct;
use crate::{
    args::{Handle, ResizedList, slot::combined},
    cq::{self},
    ffi::{Errno, neg_data_verb},
    trace::{data, exp_data},
};

combined! {
    pub(crate) fn ibv_exp_poll_cq(
        cq: *mut ibv_cq, num_entries: c_int, wc: *mut ibv_exp_wc, wc_size: u32
    ) -> c_int = poll_cq [cq, num_entries, (wc, num_entries, wc_size)];
}

/// `ibv_exp_poll_cq`: writes completions of `wc_size` bytes each to `wc`. Returns their number, or
/// a negative number on failure.
//= XST-19
fn poll_cq(cq: Handle<'_, ibv_cq>, num_entries: c_int, wcs: ResizedList<'_, ibv_exp_wc>) -> c_int {
    neg_data_verb(|| {
        let state = cq.get()?.inner();
        if wcs.entry_len() == 0 {
            return Err(Errno::INVAL);
        }
        let max = cq::poll_capacity(state.cq(), num_entries, wcs.is_null())?;
        let is_traced = trace::is_on();
        let polled = state.cq().poll_with(max, |index, completion| {
            if is_traced {
                exp_data::polled(cq.addr() as u64, index, &completion);
            }
            // The place is not NULL, so the write cannot fail.
            let _ = wcs.at(index).write(&to_wc(&completion));
        });
        if is_traced && polled == 0 {
            data::empty_poll(cq.addr() as u64);
        }
        c_int::try_from(polled).map_err(|_| Errno::INVAL)
    })
}

/// Converts a completion to the experimental structure.
fn to_wc(completion: &Completion) -> ibv_exp_wc {
    //= DC-11 XCON-11
    let target = match completion.is_send() {
        true => None,
        false => dct::find(completion.qp_num.get()),
    };
    let (dct, srq) = target.unwrap_or((ptr::null_mut(), ptr::null_mut()));
    let valid = match target {
        Some(_) => IBV_EXP_WC_DCT | IBV_EXP_WC_SRQ,
        None => 0,
    };
    ibv_exp_wc {
        wr_id: completion.wr_id,
        status: completion.status.code(),
        exp_opcode: opcode(completion.opcode),
        vendor_err: completion.vendor_err,
        byte_len: completion.byte_len,
        imm_data: cq::imm_data(completion),
        qp_num: completion.qp_num.get(),
        src_qp: completion.src_qp.get(),
        reserved: 0,
        pkey_index: 0,
        slid: 0,
        sl: completion.sl,
        dlid_path_bits: 0,
        timestamp: completion.timestamp_ns,
        qp: ptr::null_mut(),
        srq,
        dct,
        //= XCON-11
        exp_wc_flags: u64::from(completion.wc_flags.bits()) | IBV_EXP_WC_WITH_TIMESTAMP | valid,
        tm_info: ibv_wc_tm_info { tag: 0, r#priv: 0 },
    }
}

//= XCON-10
const fn opcode(opcode: WcOpcode) -> u32 {
    match opcode {
        //= UMR-16
        WcOpcode::Umr => IBV_EXP_WC_UMR,
        //= XAT-24
        WcOpcode::MaskedCompSwap => IBV_EXP_WC_MASKED_COMP_SWAP,
        WcOpcode::MaskedFetchAdd => IBV_EXP_WC_MASKED_FETCH_ADD,
        plain => plain.code(),
    }
}
