//! Shared receive queues.

use std::{ffi::c_int, sync::Arc};

use rocade_abi::{
    IBV_SRQ_INIT_ATTR_CQ, IBV_SRQ_INIT_ATTR_PD, IBV_SRQ_INIT_ATTR_RESERVED, IBV_SRQ_INIT_ATTR_TYPE,
    IBV_SRQ_INIT_ATTR_XRCD, IBV_SRQ_LIMIT, IBV_SRQ_MAX_WR, IBV_SRQT_BASIC, IBV_SRQT_TM,
    IBV_SRQT_XRC, ibv_context, ibv_pd, ibv_recv_wr, ibv_srq, ibv_srq_attr, ibv_srq_init_attr,
    ibv_srq_init_attr_ex,
};
use rocade_emulator::{Likeness, Pd, Srq, SrqInitAttr, VerbsError, limits};

use crate::{
    args::{Chain, Handle, In, InOut, Last, Out, zeroed},
    buffer::{Buffer, Purpose},
    context::ContextObject,
    cq,
    diagnostics::Reason,
    ffi::{Errno, int_data_verb, int_verb, ptr_verb},
    handle::{CHandle, objects},
    huge_pages,
    pd_mr::PdRef,
    post::post_receives,
};

/// A shared receive queue.
pub(crate) type SrqObject = CHandle<ibv_srq, SrqState>;

objects! {
    ibv_srq: ibv_srq, SrqState;
}

/// The Rust state of an `ibv_srq`.
pub(crate) struct SrqState {
    srq: Srq,
    _context: Arc<ContextObject>,
    _buffer: Option<Buffer>,
    _pd: PdRef,
}

impl SrqState {
    /// Returns the emulator's queue.
    pub(crate) const fn srq(&self) -> &Srq {
        &self.srq
    }
}

/// Creates an SRQ, and writes the granted sizes to `granted`.
///
/// # Errors
/// `EINVAL` for sizes out of range, and any error of the emulator.
//= SRQ-01
fn create(
    pd: Handle<'_, ibv_pd>,
    srq_context: *mut std::ffi::c_void,
    (attr, granted): (ibv_srq_attr, Out<'_, ibv_srq_attr>),
    make: impl FnOnce(&Pd, SrqInitAttr) -> Result<Srq, VerbsError>,
) -> Result<*mut ibv_srq, Errno> {
    let pd_state = pd.get()?.inner();
    huge_pages::check(pd_state.context(), huge_pages::Kind::Srq)?;
    let buffer = pd_state.buffer(pd, attr.max_wr, Purpose::Srq)?;
    SrqObject::create(|address| {
        let init = SrqInitAttr {
            max_wr: attr.max_wr,
            max_sge: attr.max_sge,
            cookie: address.expose_provenance() as u64,
        };
        let like = pd_state.context().context().device().like;
        let srq = make(pd_state.pd(), init).map_err(|error| refused(like, &attr, error))?;
        let sizes = srq.query();
        granted.write(ibv_srq_attr {
            max_wr: sizes.max_wr,
            max_sge: sizes.max_sge,
            ..attr
        })?;
        let mut c: ibv_srq = zeroed();
        c.context = pd_state.context().as_c();
        c.srq_context = srq_context;
        c.pd = pd.as_ptr();
        c.handle = srq.number();
        let state = SrqState {
            srq,
            _context: Arc::clone(pd_state.context()),
            _buffer: buffer,
            _pd: pd_state.pd_ref(),
        };
        Ok((c, state))
    })
}

#[cold]
fn refused(like: Likeness, attr: &ibv_srq_attr, error: VerbsError) -> Errno {
    let least = like.least_srq_size();
    let (asked, least, limit) = match error {
        VerbsError::InvalidArgument("max_wr") => (attr.max_wr, least, limits::MAX_SRQ_WR),
        VerbsError::InvalidArgument("max_sge") => (attr.max_sge, 0, like.max_srq_sge()),
        error => return error.into(),
    };
    let what = format!("{error}: {asked}; allowed: {least} to {limit}");
    Errno(error.errno()).because(Reason::new(what, "`ibv_devinfo -v` shows the limits"))
}

/// `ibv_create_srq`.
pub(crate) extern "C" fn ibv_create_srq(
    pd: Handle<'_, ibv_pd>,
    init: InOut<'_, ibv_srq_init_attr>,
) -> *mut ibv_srq {
    ptr_verb(|| {
        let asked = init.read()?;
        let sizes = (asked.attr, init.attr());
        create(pd, asked.srq_context, sizes, Pd::create_srq)
    })
}

/// Context op `create_srq_ex`. Fails with `EINVAL` for missing or unknown members and types, and
/// with `EOPNOTSUPP` for types that the device lacks.
pub(crate) extern "C" fn create_srq_ex(
    context: Handle<'_, ibv_context>,
    init: InOut<'_, ibv_srq_init_attr_ex>,
) -> *mut ibv_srq {
    ptr_verb(|| {
        context.get()?;
        let place = init.attr();
        let init = init.read_known()?;
        let has = |member| init.comp_mask & member != 0;
        if init.comp_mask >= IBV_SRQ_INIT_ATTR_RESERVED || !has(IBV_SRQ_INIT_ATTR_PD) {
            return Err(Errno::INVAL);
        }
        let srq_type = if has(IBV_SRQ_INIT_ATTR_TYPE) {
            init.srq_type
        } else {
            IBV_SRQT_BASIC
        };
        let sizes = (init.attr, place);
        match srq_type {
            IBV_SRQT_BASIC => create(init.pd(), init.srq_context, sizes, Pd::create_srq),
            IBV_SRQT_XRC if has(IBV_SRQ_INIT_ATTR_XRCD) && has(IBV_SRQ_INIT_ATTR_CQ) => {
                let xrcd = init.xrcd().get()?.inner().xrcd();
                let cq = cq::optional(init.cq())?.ok_or(Errno::INVAL)?;
                let make = |pd: &Pd, attr| xrcd.create_srq(pd, &cq, attr);
                create(init.pd(), init.srq_context, sizes, make)
            }
            IBV_SRQT_TM => Err(Errno::OPNOTSUPP),
            _ => Err(Errno::INVAL),
        }
    })
}

/// `ibv_modify_srq`: sets both attributes or none.
//= SRQ-02
//= SRQ-03
pub(crate) extern "C" fn ibv_modify_srq(
    srq: Handle<'_, ibv_srq>,
    attr: In<'_, ibv_srq_attr>,
    attr_mask: c_int,
) -> c_int {
    int_verb(|| {
        let srq = srq.get()?.inner().srq();
        let attr = attr.read()?;
        let mask = attr_mask.cast_unsigned();
        if mask & !(IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT) != 0 {
            let what = format!("srq_attr_mask {mask:#x} has unknown bits");
            return Err(Errno::INVAL.because(Reason::new(what, "")));
        }
        let max_wr = (mask & IBV_SRQ_MAX_WR != 0).then_some(attr.max_wr);
        let limit = (mask & IBV_SRQ_LIMIT != 0).then_some(attr.srq_limit);
        Ok(srq.modify(max_wr, limit)?)
    })
}

/// `ibv_query_srq`.
//= SRQ-08
pub(crate) extern "C" fn ibv_query_srq(
    srq: Handle<'_, ibv_srq>,
    attr: Out<'_, ibv_srq_attr>,
) -> c_int {
    int_verb(|| {
        let queue = srq.get()?.inner().srq();
        queue.check_present()?;
        let current = queue.query();
        let answer = ibv_srq_attr {
            max_wr: current.max_wr,
            max_sge: current.max_sge,
            srq_limit: current.srq_limit,
        };
        attr.write(answer)
    })
}

/// `ibv_destroy_srq`: fails with `EBUSY` while QPs use it.
//= DST-03
pub(crate) extern "C" fn ibv_destroy_srq(srq: Last<'_, ibv_srq>) -> c_int {
    int_verb(|| srq.destroy(|state| Ok(state.srq.destroy()?)))
}

/// Context op `get_srq_num`.
//= SRQ-10
pub(crate) extern "C" fn get_srq_num(srq: Handle<'_, ibv_srq>, number: Out<'_, u32>) -> c_int {
    int_verb(|| {
        let srq = srq.get()?.inner().srq();
        number.write(srq.number())
    })
}

/// Context op `post_srq_recv`: queues a chain of receives. On failure `*bad_wr` is the first
/// request that is not queued.
//= SRQ-06
//= PST-09
pub(crate) extern "C" fn post_srq_recv(
    srq: Handle<'_, ibv_srq>,
    wr: Chain<'_, ibv_recv_wr>,
    bad_wr: Out<'_, *mut ibv_recv_wr>,
) -> c_int {
    int_data_verb(|| {
        let srq = srq.get()?.inner().srq();
        let mut poster = srq.recv_queue();
        post_receives(wr, bad_wr, |wr_id, sges| poster.push(wr_id, sges))
    })
}
