//! Experimental queue pairs.

use std::{
    ffi::{c_int, c_void},
    ptr,
};

use rocade_abi::{
    IBV_QP_INIT_ATTR_PD, IBV_QP_INIT_ATTR_XRCD,
    exp::qp::{
        IBV_EXP_QP_CREATE_ATOMIC_BE_REPLY, IBV_EXP_QP_CREATE_CROSS_CHANNEL,
        IBV_EXP_QP_CREATE_IGNORE_RQ_OVERFLOW, IBV_EXP_QP_CREATE_IGNORE_SQ_OVERFLOW,
        IBV_EXP_QP_CREATE_MANAGED_RECV, IBV_EXP_QP_CREATE_MANAGED_SEND, IBV_EXP_QP_CREATE_UMR,
        IBV_EXP_QP_DC_KEY, IBV_EXP_QP_INIT_ATTR_ATOMICS_ARG, IBV_EXP_QP_INIT_ATTR_CREATE_FLAGS,
        IBV_EXP_QP_INIT_ATTR_INL_RECV, IBV_EXP_QP_INIT_ATTR_MAX_INL_KLMS, IBV_EXP_QP_INIT_ATTR_PD,
        IBV_EXP_QP_INIT_ATTR_QPG, IBV_EXP_QP_INIT_ATTR_XRCD, IBV_EXP_QPG_NONE, ibv_exp_qp_attr,
        ibv_exp_qp_init_attr,
    },
    ibv_context, ibv_qp, ibv_qp_attr, ibv_qp_ex, ibv_qp_init_attr, ibv_qp_init_attr_ex,
};
use rocade_emulator::{CrossChannel, limits};

use crate::{
    args::{Handle, In, InOut, Out, View, member, zeroed},
    diagnostics::Reason,
    ffi::{Errno, int_verb, ptr_verb, set_errno},
    qp::{self},
    qp_ex,
};

/// The experimental attributes of a QP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ExpQpAttr {
    /// True if the QP may change indirect keys.
    pub(crate) umr: bool,
    /// The longest list of keys in a work request.
    pub(crate) max_inline_entries: u32,
    /// The longest operand of masked atomics in bytes.
    pub(crate) max_atomic_arg: u32,
    /// The cross-channel flags in `exp_create_flags`.
    pub(crate) cross_channel: u32,
    /// True if atomics return the original value in big-endian byte order.
    pub(crate) big_endian: bool,
}

impl ExpQpAttr {
    /// The attributes of a QP that no experimental verb created.
    pub(crate) const NONE: Self = Self {
        umr: false,
        max_inline_entries: 0,
        max_atomic_arg: 0,
        cross_channel: 0,
        big_endian: false,
    };
}

/// All members of `ibv_exp_qp_init_attr` that this library knows.
//= XCON-06
const KNOWN_MEMBERS: u32 = IBV_EXP_QP_INIT_ATTR_PD
    | IBV_EXP_QP_INIT_ATTR_XRCD
    | IBV_EXP_QP_INIT_ATTR_CREATE_FLAGS
    | IBV_EXP_QP_INIT_ATTR_INL_RECV
    | IBV_EXP_QP_INIT_ATTR_QPG
    | IBV_EXP_QP_INIT_ATTR_ATOMICS_ARG
    | IBV_EXP_QP_INIT_ATTR_MAX_INL_KLMS;

/// The creation flags that do not concern cross-channel operations.
const OTHERS: u32 = IBV_EXP_QP_CREATE_ATOMIC_BE_REPLY | IBV_EXP_QP_CREATE_UMR;

/// The creation flags of cross-channel operations.
const CROSS: u32 = IBV_EXP_QP_CREATE_CROSS_CHANNEL
    | IBV_EXP_QP_CREATE_MANAGED_SEND
    | IBV_EXP_QP_CREATE_MANAGED_RECV
    | IBV_EXP_QP_CREATE_IGNORE_SQ_OVERFLOW
    | IBV_EXP_QP_CREATE_IGNORE_RQ_OVERFLOW;

/// Returns the experimental attributes that `init` requests.
///
/// # Errors
/// `EINVAL` for unknown bits and for values above the device's limits. `EOPNOTSUPP` for attributes
/// that Rocade does not offer.
//= XCON-20
//= XCON-07
fn exp_attr(init: &ibv_exp_qp_init_attr) -> Result<ExpQpAttr, Errno> {
    let has = |member: u32| init.comp_mask & member != 0;
    if init.comp_mask & !KNOWN_MEMBERS != 0 {
        let unknown = init.comp_mask & !KNOWN_MEMBERS;
        let what = format!("comp_mask has the unknown bits {unknown:#x}");
        return Err(Errno::INVAL.because(Reason::new(what, "")));
    }
    let flags = if has(IBV_EXP_QP_INIT_ATTR_CREATE_FLAGS) {
        init.exp_create_flags
    } else {
        0
    };
    if flags & !(CROSS | OTHERS) != 0 {
        let what = format!("exp_create_flags {flags:#x} has unknown bits");
        return Err(Errno::INVAL.because(Reason::new(what, "")));
    }
    //= XCON-23
    if has(IBV_EXP_QP_INIT_ATTR_QPG) && init.qpg.qpg_type != IBV_EXP_QPG_NONE {
        return Err(Errno::OPNOTSUPP.because(qp_ex::not_offered("a group of queue pairs")));
    }
    let mut exp_attr = ExpQpAttr {
        umr: flags & IBV_EXP_QP_CREATE_UMR != 0,
        cross_channel: flags & CROSS,
        //= XAT-05
        big_endian: flags & IBV_EXP_QP_CREATE_ATOMIC_BE_REPLY != 0,
        ..ExpQpAttr::NONE
    };
    //= UMR-04
    if has(IBV_EXP_QP_INIT_ATTR_MAX_INL_KLMS) {
        exp_attr.max_inline_entries = init.max_inl_send_klms;
        if exp_attr.max_inline_entries > limits::MAX_INLINE_ENTRIES {
            let what = format!(
                "max_inl_send_klms is above the limit of {}",
                limits::MAX_INLINE_ENTRIES
            );
            return Err(Errno::INVAL.because(Reason::new(what, "")));
        }
    }
    //= XAT-06
    if has(IBV_EXP_QP_INIT_ATTR_ATOMICS_ARG) {
        exp_attr.max_atomic_arg = init.max_atomic_arg;
    }
    Ok(exp_attr)
}

/// `ibv_exp_create_qp`.
//= XST-05
pub(crate) extern "C" fn ibv_exp_create_qp(
    context: Handle<'_, ibv_context>,
    init: InOut<'_, ibv_exp_qp_init_attr>,
) -> *mut ibv_qp {
    let mut asked = ExpQpAttr::NONE;
    let checked = int_verb(|| {
        asked = exp_attr(&*init.read()?)?;
        Ok(())
    });
    if checked != 0 {
        return ptr::null_mut();
    }
    ptr_verb(|| {
        let asked_of = init.read()?;
        let qp = qp_ex::create(context, &extended(&asked_of), init.cap())?;
        if asked_of.comp_mask & IBV_EXP_QP_INIT_ATTR_INL_RECV != 0 {
            // `max_inl_recv` is a hint, which Rocade does not use.
            init.max_inl_recv().write(0)?;
        }
        let state = qp.get()?.inner();
        state.set_exp_attr(asked);
        if asked.big_endian {
            state.qp().set_big_endian_results();
        }
        if asked.cross_channel != 0
            && let Err(error) = state
                .qp()
                .enable_cross_channel(cross_channel(asked.cross_channel))
        {
            qp::ibv_destroy_qp(qp.into_last());
            return Err(error.into());
        }
        Ok(qp.into_c())
    })
}

/// Returns the plain attributes of an experimental QP.
fn extended<'a>(init: &View<'a, ibv_exp_qp_init_attr>) -> View<'a, ibv_qp_init_attr_ex> {
    let mut plain: ibv_qp_init_attr_ex = zeroed();
    plain.qp_context = init.qp_context;
    plain.send_cq = init.send_cq;
    plain.recv_cq = init.recv_cq;
    plain.srq = init.srq;
    plain.cap = init.cap;
    plain.qp_type = init.qp_type;
    plain.sq_sig_all = init.sq_sig_all;
    if init.comp_mask & IBV_EXP_QP_INIT_ATTR_PD != 0 {
        plain.comp_mask |= IBV_QP_INIT_ATTR_PD;
        plain.pd = init.pd;
    }
    if init.comp_mask & IBV_EXP_QP_INIT_ATTR_XRCD != 0 {
        plain.comp_mask |= IBV_QP_INIT_ATTR_XRCD;
        plain.xrcd = init.xrcd;
    }
    // SAFETY: it names what the program's structure names.
    unsafe { View::new(plain) }
}

//= XCH-02
//= XCH-06
const fn cross_channel(flags: u32) -> CrossChannel {
    CrossChannel {
        is_master: flags & IBV_EXP_QP_CREATE_CROSS_CHANNEL != 0,
        managed_send: flags & IBV_EXP_QP_CREATE_MANAGED_SEND != 0,
        managed_recv: flags & IBV_EXP_QP_CREATE_MANAGED_RECV != 0,
        sends_untaken: flags & IBV_EXP_QP_CREATE_IGNORE_SQ_OVERFLOW != 0,
        receives_untaken: flags & IBV_EXP_QP_CREATE_IGNORE_RQ_OVERFLOW != 0,
    }
}

/// `ibv_exp_modify_qp`: returns 0 or a positive errno.
//= XST-06
pub(crate) extern "C" fn ibv_exp_modify_qp(
    qp: Handle<'_, ibv_qp>,
    attr: In<'_, ibv_exp_qp_attr>,
    exp_attr_mask: u64,
) -> c_int {
    let mut plain = None;
    let checked = int_verb(|| {
        let attr = attr.read()?;
        let key = (exp_attr_mask & IBV_EXP_QP_DC_KEY != 0).then_some(attr.dct_key);
        let mask = c_int::try_from(exp_attr_mask & !IBV_EXP_QP_DC_KEY);
        match mask {
            Ok(mask) if attr.comp_mask == 0 => {
                plain = Some((to_plain(&attr), mask.cast_unsigned(), key));
            }
            _ => {
                let what = format!(
                    "exp_attr_mask {exp_attr_mask:#x} has unknown bits, or comp_mask is not 0"
                );
                return Err(Errno::INVAL.because(Reason::new(what, "")));
            }
        }
        Ok(())
    });
    match plain {
        //= XCON-09
        Some((attr, mask, key)) => int_verb(|| qp::modify(qp, &attr, mask, key, true)),
        None => checked,
    }
}

/// `ibv_exp_query_qp`: returns all attributes, whatever the mask.
//= XST-07
pub(crate) extern "C" fn ibv_exp_query_qp(
    qp: Handle<'_, ibv_qp>,
    attr: Out<'_, ibv_exp_qp_attr>,
    _exp_attr_mask: u64,
    init: Out<'_, ibv_exp_qp_init_attr>,
) -> c_int {
    if attr.is_null() {
        set_errno(libc::EINVAL);
        return libc::EINVAL;
    }
    let mut plain: ibv_qp_attr = zeroed();
    let mut plain_init: ibv_qp_init_attr = zeroed();
    let failed = qp::ibv_query_qp(qp, Out::of(&mut plain), 0, Out::of(&mut plain_init));
    if failed != 0 {
        return failed;
    }
    int_verb(|| {
        let mut answer = from_plain(&plain);
        let object = qp.get()?;
        answer.dct_key = object.inner().qp().query().0.dc_key;
        attr.write(answer)?;
        let Some(place) = init.some() else {
            return Ok(());
        };
        let mut init = init_from_plain(&plain_init, object.inner().exp_attr());
        init.pd = object.member(member!(ibv_qp_ex, qp_base.pd));
        if !init.pd.is_null() {
            init.comp_mask |= IBV_EXP_QP_INIT_ATTR_PD;
        }
        place.write(init)
    })
}

fn init_from_plain(plain: &ibv_qp_init_attr, exp_attr: ExpQpAttr) -> ibv_exp_qp_init_attr {
    let mut init: ibv_exp_qp_init_attr = zeroed();
    init.qp_context = plain.qp_context.cast::<c_void>();
    init.send_cq = plain.send_cq;
    init.recv_cq = plain.recv_cq;
    init.srq = plain.srq;
    init.cap = plain.cap;
    init.qp_type = plain.qp_type;
    init.sq_sig_all = plain.sq_sig_all;
    init.comp_mask = IBV_EXP_QP_INIT_ATTR_CREATE_FLAGS
        | IBV_EXP_QP_INIT_ATTR_ATOMICS_ARG
        | IBV_EXP_QP_INIT_ATTR_MAX_INL_KLMS;
    init.exp_create_flags = exp_attr.cross_channel;
    if exp_attr.umr {
        init.exp_create_flags |= IBV_EXP_QP_CREATE_UMR;
    }
    if exp_attr.big_endian {
        init.exp_create_flags |= IBV_EXP_QP_CREATE_ATOMIC_BE_REPLY;
    }
    init.max_atomic_arg = exp_attr.max_atomic_arg;
    init.max_inl_send_klms = exp_attr.max_inline_entries;
    init
}

/// Copies the members that two structures have in common.
macro_rules! copy_members {
    ($from:ident, $to:ident) => {{
        copy_members!($from, $to:
            qp_state cur_qp_state path_mtu path_mig_state qkey rq_psn sq_psn dest_qp_num
            qp_access_flags cap ah_attr alt_ah_attr pkey_index alt_pkey_index en_sqd_async_notify
            sq_draining max_rd_atomic max_dest_rd_atomic min_rnr_timer port_num timeout retry_cnt
            rnr_retry alt_port_num alt_timeout)
    }};
    ($from:ident, $to:ident: $($member:ident)+) => {{
        $( $to.$member = $from.$member; )+
    }};
}

/// Returns the attributes that plain structures have.
pub(crate) fn to_plain(attr: &ibv_exp_qp_attr) -> ibv_qp_attr {
    let mut plain: ibv_qp_attr = zeroed();
    copy_members!(attr, plain);
    plain
}

fn from_plain(plain: &ibv_qp_attr) -> ibv_exp_qp_attr {
    let mut attr: ibv_exp_qp_attr = zeroed();
    copy_members!(plain, attr);
    attr
}
