//! Traced posts and polls of experimental verbs. Also `ibv_exp_modify_qp`, whose mask tells which
//! of its arguments exist.

use std::{ffi::c_int, fmt::Write as _, ptr};

use rocade_abi::{
    exp::{
        completion::{IBV_EXP_WC_MASKED_COMP_SWAP, IBV_EXP_WC_MASKED_FETCH_ADD},
        qp::{IBV_EXP_QP_DC_KEY, ibv_exp_qp_attr},
        send::{
            IBV_EXP_CALC_DATA_SIZE_64_BIT_LOC, IBV_EXP_SEND_EXT_ATOMIC_INLINE,
            IBV_EXP_SEND_WAIT_EN_LAST, IBV_EXP_SEND_WITH_CALC, ibv_exp_cmp_swap, ibv_exp_fetch_add,
            ibv_exp_send_wr,
        },
    },
    ibv_mr, ibv_qp, ibv_recv_wr,
};
use rocade_emulator::{
    Completion, QpType, WcOpcode,
    trace::{self, Kind, flag::EXPERIMENTAL, queue},
};

use super::{
    data::{self, accepted, data_of, number_of, pair, post_end},
    show::access,
    sink::is_on,
};
use crate::{
    args::{Chain, Handle, In, Out, Request, member},
    exp::{
        qp,
        request::MaskedOperands,
        send::{self, flags},
    },
    post,
};

/// `ibv_exp_post_send`.
pub(crate) extern "C" fn ibv_exp_post_send(
    qp: Handle<'_, ibv_qp>,
    wr: Chain<'_, ibv_exp_send_wr>,
    bad_wr: Out<'_, *mut ibv_exp_send_wr>,
) -> c_int {
    post_sends(qp, wr, bad_wr, false)
}

/// Posts sends. `locked` is as for [`send::exp_post_send`].
pub(crate) fn post_sends(
    qp: Handle<'_, ibv_qp>,
    wr: Chain<'_, ibv_exp_send_wr>,
    bad_wr: Out<'_, *mut ibv_exp_send_wr>,
    locked: bool,
) -> c_int {
    if !is_on() {
        return send::exp_post_send(qp, wr, bad_wr, locked);
    }
    let start = trace::now_ns();
    let qpn = number_of(qp);
    let qp_type = qp.get().ok().map(|qp| qp.inner().qp_type());
    let mut count = 0;
    wr.for_each(|request| {
        record(start, (qpn, qp_type), request);
        count += 1;
    });
    let mut bad = ptr::null_mut();
    let result = send::exp_post_send(qp, wr, Out::of(&mut bad), locked);
    let count = accepted(result, wr, (bad_wr, bad), count);
    let counts = pair(count, EXPERIMENTAL);
    post_end((queue::SEND, result), u64::from(qpn), counts, start);
    result
}

/// Posts the receives of a task.
pub(crate) fn post_receives(
    qp: Handle<'_, ibv_qp>,
    wr: Chain<'_, ibv_recv_wr>,
    bad_wr: Out<'_, *mut ibv_recv_wr>,
) -> c_int {
    if is_on() {
        data::post_recv(qp, wr, bad_wr)
    } else {
        post::post_recv(qp, wr, bad_wr)
    }
}

fn record(
    start: u64,
    (qpn, qp_type): (u32, Option<QpType>),
    request: Request<'_, ibv_exp_send_wr>,
) {
    let sges = data_of(request.sges());
    let (remote, rkey) = request.remote(qp_type == Some(QpType::Ud));
    let fields = [
        pair(qpn, request.exp_opcode),
        pair(flags(&request).bits(), sges.count),
        request.wr_id,
        pair(sges.len, request.ex),
        sges.addr,
        pair(sges.lkey, rkey),
        remote,
    ];
    let is_dynamic = qp_type == Some(QpType::DcInitiator);
    let operands = operands(request, is_dynamic);
    trace::write_at(start, Kind::PostSend, &fields, &operands);
}

/// Returns the operands that plain requests do not have.
fn operands(request: Request<'_, ibv_exp_send_wr>, is_dynamic: bool) -> String {
    let mut text = String::new();
    let has = |flag| request.exp_send_flags & flag != 0;
    if let Some((masked, values)) = request.masked() {
        let len = 1u32.checked_shl(masked.log_arg_sz).unwrap_or(0);
        // Longer operands are at addresses.
        let is_inline = len < 8 || len == 8 && has(IBV_EXP_SEND_EXT_ATOMIC_INLINE);
        let at = if is_inline { "" } else { "*" };
        let _ = write!(text, ", operands of {len} bytes");
        let mut item = |name: &str, value: u64| {
            let _ = write!(text, ", {name}={at}{value:#x}");
        };
        match values {
            MaskedOperands::CmpSwap(ibv_exp_cmp_swap {
                compare_mask,
                compare_val,
                swap_val,
                swap_mask,
            }) => {
                item("compare_val", compare_val);
                item("compare_mask", compare_mask);
                item("swap_val", swap_val);
                item("swap_mask", swap_mask);
            }
            MaskedOperands::FetchAdd(ibv_exp_fetch_add {
                add_val,
                field_boundary,
            }) => {
                item("add_val", add_val);
                item("field_boundary", field_boundary);
            }
        }
    } else if let Some((cq, count)) = request.wait() {
        let _ = write!(text, ", cq={:#x}, cq_count={count}", cq.addr());
    } else if let Some((qp, count)) = request.enable() {
        let _ = write!(text, ", qp={:#08x}, wqe_count={count}", number_of(qp));
    } else if let Some(umr) = request.umr() {
        let kind = usize::try_from(umr.umr_type).ok();
        let kind = kind.and_then(|kind| ["MR_LIST", "REPEAT", "MR_LIST_FIXED_SIZE"].get(kind));
        let key = umr.modified_mr();
        let lkey = key.get().map_or(0, |key| key.member(member!(ibv_mr, lkey)));
        let _ = write!(
            text,
            ", {} of {}, modified_mr={:#x} {{lkey={lkey:#x}}}, base_addr={:#x}, exp_access=",
            kind.unwrap_or(&"?"),
            umr.num_mrs,
            key.addr(),
            umr.base_addr
        );
        access(umr.exp_access, &mut text);
    }
    if has(IBV_EXP_SEND_WITH_CALC) {
        calc(&request, &mut text);
    }
    if is_dynamic && !request.is_local() {
        let dc = &request.dc;
        let (number, key) = (dc.dct_number, dc.dct_access_key);
        let _ = write!(text, ", dct_number={number:#08x}, dct_access_key={key:#x}");
    }
    if has(IBV_EXP_SEND_WAIT_EN_LAST) {
        text.push_str(", WAIT_EN_LAST");
    }
    text
}

/// Appends the operation of a computing send.
fn calc(request: &ibv_exp_send_wr, text: &mut String) {
    let name = |names: &[&'static str], code: u32| {
        let found = usize::try_from(code)
            .ok()
            .and_then(|code| names.get(code).copied());
        found.unwrap_or("?")
    };
    let asked = &request.op;
    let op = name(&["ADD", "MAXLOC", "BAND", "BXOR", "BOR"], asked.calc_op);
    let data_type = name(&["INT", "UINT", "FLOAT"], asked.data_type);
    let located = if asked.data_size == IBV_EXP_CALC_DATA_SIZE_64_BIT_LOC {
        ", 64_BIT_LOC"
    } else {
        ""
    };
    let _ = write!(text, ", WITH_CALC {op} {data_type}{located}");
}

/// Records a completion of `ibv_exp_poll_cq`.
#[cold]
pub(crate) fn polled(cq: u64, position: usize, completion: &Completion) {
    let opcode = match completion.opcode {
        WcOpcode::MaskedCompSwap => IBV_EXP_WC_MASKED_COMP_SWAP,
        WcOpcode::MaskedFetchAdd => IBV_EXP_WC_MASKED_FETCH_ADD,
        plain => plain.code(),
    };
    let position = u32::try_from(position).unwrap_or(0);
    data::completed((cq, completion), opcode, position | EXPERIMENTAL);
}

/// `ibv_exp_modify_qp`.
pub(crate) extern "C" fn ibv_exp_modify_qp(
    qp: Handle<'_, ibv_qp>,
    attr: In<'_, ibv_exp_qp_attr>,
    exp_attr_mask: u64,
) -> c_int {
    let call = || qp::ibv_exp_modify_qp(qp, attr, exp_attr_mask);
    if !is_on() {
        return call();
    }
    let (values, mut more) = (attr.optional(), String::new());
    if let Some(values) = values
        .as_deref()
        .filter(|_| exp_attr_mask & IBV_EXP_QP_DC_KEY != 0)
    {
        let _ = write!(more, ", dct_key={:#x}", values.dct_key);
    }
    let mask = u32::try_from(exp_attr_mask & 0xffff_ffff).unwrap_or(0);
    let attributes = (values.as_deref().map(qp::to_plain), mask);
    data::modify("ibv_exp_modify_qp", qp, attributes, &more, call)
}
