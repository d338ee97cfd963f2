//! Queue pairs.

use std::{
    ffi::{c_int, c_uint, c_void},
    ptr,
    sync::{Arc, OnceLock},
};

use rocade_abi::{
    IBV_QP_STATE, IBV_QPS_RESET, IBV_QPT_XRC_RECV, ibv_ece, ibv_pd, ibv_qp, ibv_qp_attr,
    ibv_qp_cap, ibv_qp_ex, ibv_qp_init_attr, ibv_qp_init_attr_ex, ibv_qp_rate_limit_attr, ibv_xrcd,
};
use rocade_emulator::{
    DciInit, DciStreams, Mtu, Pd, Qp, QpAttr, QpAttrMask, QpInitAttr, QpType, RxHash, VerbsError,
    Xrcd, cm::Ece,
};

use crate::{
    args::{Handle, In, InOut, Last, New, Out, View, member, zeroed},
    buffer::{Buffer, Purpose},
    context::ContextObject,
    cq,
    diagnostics::Reason,
    dv::Builders,
    exp::qp::ExpQpAttr,
    explain::{self, Modify},
    ffi::{Errno, int_verb, ptr_verb},
    handle::{CHandle, objects},
    huge_pages,
    pd_mr::PdRef,
    post::InlineLimits,
    qp_attr::{attr_from_c, attr_to_c, cap_from_c, cap_to_c},
    rss::TableState,
    wr_batch::WrBatch,
    wr_build,
};

/// A queue pair. Each one is created as an extended QP, which begins with the plain one.
pub(crate) type QpObject = CHandle<ibv_qp_ex, QpState>;

objects! {
    ibv_qp: ibv_qp_ex, QpState;
    ibv_qp_ex: ibv_qp_ex, QpState;
}

/// The Rust state of an `ibv_qp`.
pub(crate) struct QpState {
    qp: Qp,
    inline_limits: InlineLimits,
    batch: WrBatch,
    has_wr_table: bool,
    qp_type: QpType,
    context: Arc<ContextObject>,
    /// The longest header of a TSO request, in bytes.
    max_tso_header: u16,
    _buffer: Option<Buffer>,
    /// The indirection table of an RSS QP.
    _table: Option<PdRef>,
    /// The protection domain, which an XRC target does not have.
    _pd: Option<PdRef>,
    /// The attributes of a QP that an experimental verb created.
    exp_attr: OnceLock<ExpQpAttr>,
    /// The builders of `libmlx5`.
    builders: Builders,
}

impl QpState {
    /// Creates the state of a QP without inline data, extended functions or a protection domain.
    fn new(qp: Qp, qp_type: QpType, context: &Arc<ContextObject>) -> Self {
        Self {
            qp,
            inline_limits: InlineLimits {
                entries: 0,
                bytes: 0,
            },
            batch: WrBatch::default(),
            has_wr_table: false,
            qp_type,
            context: Arc::clone(context),
            max_tso_header: 0,
            _buffer: None,
            _table: None,
            _pd: None,
            exp_attr: OnceLock::new(),
            builders: Builders::default(),
        }
    }

    /// Returns the emulator's queue pair.
    pub(crate) const fn qp(&self) -> &Qp {
        &self.qp
    }

    /// Returns the QP's context.
    pub(crate) const fn context(&self) -> &Arc<ContextObject> {
        &self.context
    }

    /// Returns the QP's transport service type.
    pub(crate) const fn qp_type(&self) -> QpType {
        self.qp_type
    }

    /// Returns the builders of `libmlx5` for this QP.
    pub(crate) const fn builders(&self) -> &Builders {
        &self.builders
    }

    /// Returns the longest header of a TSO request in bytes, or 0 if the QP has no TSO.
    pub(crate) const fn max_tso_header(&self) -> usize {
        self.max_tso_header as usize
    }

    /// Returns the QP's experimental attributes.
    pub(crate) fn exp_attr(&self) -> ExpQpAttr {
        self.exp_attr.get().copied().unwrap_or(ExpQpAttr::NONE)
    }

    /// Sets the experimental attributes of a new QP.
    pub(crate) fn set_exp_attr(&self, exp_attr: ExpQpAttr) {
        let _ = self.exp_attr.set(exp_attr);
    }

    /// Returns the limits for inline data.
    pub(crate) const fn inline_limits(&self) -> InlineLimits {
        self.inline_limits
    }

    /// Notes why a transition was refused, and returns its errno.
    #[cold]
    fn refused(&self, attr: &QpAttr, mask: QpAttrMask, error: &VerbsError) -> Errno {
        let context = self.context.context();
        let port = match attr.ah_attr.port_num {
            0 => 1,
            port => port,
        };
        let gids = context.gid_entries_of(port).unwrap_or_default();
        let modify = Modify {
            qp_type: self.qp_type,
            from: self.qp.state(),
            attr,
            mask,
            active_mtu: context
                .port_attr(port)
                .map_or(Mtu::Mtu4096, |port| port.active_mtu),
            gids: gids.iter().map(|entry| entry.gid).collect(),
        };
        let reason = modify.refused(error);
        Errno(error.errno()).because(reason).of_qp(&self.qp, "")
    }

    /// Returns the batch between `wr_start` and `wr_complete`.
    pub(crate) const fn batch(&self) -> &WrBatch {
        &self.batch
    }
}

/// Creates a QP and writes the granted sizes to `granted`. `fill_in` adds the functions of an
/// extended QP.
///
/// # Errors
/// `EINVAL` without CQs or with an unknown type, and any error of the emulator.
//= QPC-01
//= QPC-02
pub(crate) fn create(
    pd: Handle<'_, ibv_pd>,
    init: &View<'_, ibv_qp_init_attr>,
    granted: Out<'_, ibv_qp_cap>,
    max_tso_header: u16,
    fill_in: Option<fn(&mut ibv_qp_ex)>,
) -> Result<New<ibv_qp>, Errno> {
    let qp_type = QpType::from_code(init.qp_type).ok_or_else(|| {
        Errno::INVAL.because(explain::qp_type_missing(&format!("{}", init.qp_type)))
    })?;
    if qp_type == QpType::XrcRecv {
        let what = "an XRC target belongs to an XRC domain";
        let advice = "ibv_create_qp_ex with IBV_QP_INIT_ATTR_XRCD";
        return Err(Errno::INVAL.because(Reason::new(what, advice)));
    }
    let place = (init, granted);
    create_as(pd, place, max_tso_header, fill_in, qp_type, |pd, attr| {
        pd.create_qp(attr)
    })
}

/// Creates a DC initiator. Ignores its SRQ, as mlx5 does.
///
/// # Errors
/// As for [`create`].
//= DC-05
pub(crate) fn create_initiator(
    init: &View<'_, ibv_qp_init_attr_ex>,
    granted: Out<'_, ibv_qp_cap>,
    with_table: bool,
    streams: Option<DciStreams>,
) -> Result<New<ibv_qp>, Errno> {
    // SAFETY: changes no other pointer.
    let short = unsafe { init.short().with(|short| short.srq = ptr::null_mut()) };
    let table: Option<fn(&mut ibv_qp_ex)> = if with_table {
        Some(wr_build::install)
    } else {
        None
    };
    let make = |pd: &Pd, attr| pd.create_dci(attr, DciInit { streams });
    let place = (&short, granted);
    create_as(init.pd(), place, 0, table, QpType::DcInitiator, make)
}

fn create_as(
    pd: Handle<'_, ibv_pd>,
    (init, place): (&View<'_, ibv_qp_init_attr>, Out<'_, ibv_qp_cap>),
    max_tso_header: u16,
    fill_in: Option<fn(&mut ibv_qp_ex)>,
    qp_type: QpType,
    make: impl FnOnce(&Pd, QpInitAttr) -> Result<Qp, VerbsError>,
) -> Result<New<ibv_qp>, Errno> {
    let pd_state = pd.get()?.inner();
    let send_cq = cq::optional(init.send_cq())?.ok_or_else(no_cq)?;
    let recv_cq = if qp_type == QpType::XrcSend {
        // It receives nothing.
        None
    } else {
        cq::optional(init.recv_cq())?
    };
    //= DC-05
    let may_lack = matches!(qp_type, QpType::XrcSend | QpType::DcInitiator);
    let instead = may_lack.then(|| send_cq.clone());
    let recv_cq = recv_cq.or(instead).ok_or_else(no_cq)?;
    let srq = match init.srq().some() {
        Some(srq) => Some(srq.get()?.inner().srq().clone()),
        None => None,
    };
    let cap = cap_from_c(&init.cap);
    let sq_sig_all = init.sq_sig_all != 0;
    let entries = cap.max_send_wr.saturating_add(cap.max_recv_wr);
    let buffer = pd_state.buffer(pd, entries, Purpose::Qp)?;
    huge_pages::check(pd_state.context(), huge_pages::Kind::Qp)?;
    let like = pd_state.context().context().device().like;
    create_object(|address| {
        let cookie = address.expose_provenance() as u64;
        let attr = QpInitAttr {
            send_cq,
            recv_cq,
            srq,
            cap,
            qp_type,
            sq_sig_all,
            cookie,
        };
        let qp = make(pd_state.pd(), attr).map_err(|error| {
            let reason = explain::create_qp(&cap, qp_type, like, &error);
            Errno(error.errno()).because(reason)
        })?;
        let granted = qp.query().1;
        place.write(cap_to_c(&granted))?;
        let mut c = c_part(pd_state.context(), init.qp_context, &qp, init.qp_type);
        c.qp_base.pd = pd.as_ptr();
        c.qp_base.send_cq = init.send_cq;
        c.qp_base.recv_cq = init.recv_cq;
        c.qp_base.srq = init.srq;
        if let Some(fill_in) = fill_in {
            fill_in(&mut c);
        }
        let state = QpState {
            inline_limits: InlineLimits {
                entries: usize::try_from(granted.max_send_sge).unwrap_or(0),
                bytes: usize::try_from(granted.max_inline_data).unwrap_or(0),
            },
            has_wr_table: fill_in.is_some(),
            max_tso_header,
            _buffer: buffer,
            _pd: Some(pd_state.pd_ref()),
            ..QpState::new(qp, qp_type, pd_state.context())
        };
        Ok((c, state))
    })
}

/// Creates an RSS QP, which spreads frames over the WQs of a table. It has no queues of its own.
///
/// # Errors
/// Any error of the emulator.
pub(crate) fn create_rss(
    pd: Handle<'_, ibv_pd>,
    qp_context: *mut c_void,
    table: &TableState,
    hash: RxHash,
) -> Result<New<ibv_qp>, Errno> {
    let pd_state = pd.get()?.inner();
    create_object(|address| {
        let cookie = address.expose_provenance() as u64;
        let qp = pd_state.pd().create_rss_qp(table.queues(), hash, cookie)?;
        let qp_type = QpType::RawPacket;
        let mut c = c_part(pd_state.context(), qp_context, &qp, qp_type.code());
        c.qp_base.pd = pd.as_ptr();
        let state = QpState {
            _table: Some(table.pd_ref()),
            _pd: Some(pd_state.pd_ref()),
            ..QpState::new(qp, qp_type, pd_state.context())
        };
        Ok((c, state))
    })
}

/// Creates the C object of a DC target that is used as a QP. `make` creates the target with the
/// given cookie.
///
/// # Errors
/// Any error of the emulator.
//= DCU-02 DCU-05
pub(crate) fn create_dct(
    init: &View<'_, ibv_qp_init_attr_ex>,
    granted: Out<'_, ibv_qp_cap>,
    make: impl FnOnce(&Pd, u64) -> Result<Qp, VerbsError>,
) -> Result<New<ibv_qp>, Errno> {
    let pd_state = init.pd().get()?.inner();
    create_object(|address| {
        let qp = make(pd_state.pd(), address.expose_provenance() as u64)?;
        granted.write(cap_to_c(&qp.query().1))?;
        //= DCU-04
        let mut c = c_part(pd_state.context(), init.qp_context, &qp, init.qp_type);
        c.qp_base.pd = init.pd;
        c.qp_base.send_cq = init.send_cq;
        c.qp_base.recv_cq = init.recv_cq;
        c.qp_base.srq = init.srq;
        let state = QpState {
            _pd: Some(pd_state.pd_ref()),
            ..QpState::new(qp, QpType::DcTarget, pd_state.context())
        };
        Ok((c, state))
    })
}

/// Creates the C object of an XRC target. `make` creates or opens the target with the given cookie.
/// The target has no protection domain and no CQs.
///
/// # Errors
/// Any error of the emulator.
//= XRC-01
pub(crate) fn target(
    xrcd: Handle<'_, ibv_xrcd>,
    qp_context: *mut c_void,
    make: impl FnOnce(&Xrcd, u64) -> Result<Qp, VerbsError>,
) -> Result<New<ibv_qp>, Errno> {
    let xrcd = xrcd.get()?.inner();
    create_object(|address| {
        let qp = make(xrcd.xrcd(), address.expose_provenance() as u64)?;
        let mut c = c_part(xrcd.context(), qp_context, &qp, IBV_QPT_XRC_RECV);
        // An opened target may be in any state.
        c.qp_base.state = qp.state().code();
        Ok((c, QpState::new(qp, QpType::XrcRecv, xrcd.context())))
    })
}

/// Creates the object of a QP (see [`CHandle::create`]).
fn create_object(
    build: impl FnOnce(*mut ibv_qp_ex) -> Result<(ibv_qp_ex, QpState), Errno>,
) -> Result<New<ibv_qp>, Errno> {
    let object = QpObject::create(build)?;
    // SAFETY: just created. An extended QP begins with the plain one.
    Ok(unsafe { New::of(object.cast()) })
}

/// Returns the C part of a new QP, in RESET and without the objects that it uses.
fn c_part(context: &ContextObject, qp_context: *mut c_void, qp: &Qp, qp_type: u32) -> ibv_qp_ex {
    let mut c: ibv_qp_ex = zeroed();
    c.qp_base.context = context.as_c();
    c.qp_base.qp_context = qp_context;
    c.qp_base.qp_num = qp.qp_num().get();
    c.qp_base.handle = c.qp_base.qp_num;
    c.qp_base.state = IBV_QPS_RESET;
    c.qp_base.qp_type = qp_type;
    c
}

fn no_cq() -> Errno {
    Errno::INVAL.because(Reason::new("send_cq or recv_cq is NULL", ""))
}

/// `ibv_create_qp`.
pub(crate) extern "C" fn ibv_create_qp(
    pd: Handle<'_, ibv_pd>,
    init: InOut<'_, ibv_qp_init_attr>,
) -> *mut ibv_qp {
    ptr_verb(|| Ok(create(pd, &init.read()?, init.cap(), 0, None)?.into_c()))
}

/// `ibv_qp_to_qp_ex`: returns NULL unless the QP was created with `send_ops_flags`.
//= WRX-01
pub(crate) extern "C" fn ibv_qp_to_qp_ex(qp: Handle<'_, ibv_qp>) -> *mut ibv_qp_ex {
    ptr_verb(|| {
        let object = qp.get()?;
        if object.inner().has_wr_table {
            Ok(object.c())
        } else if object.inner().qp_type() == QpType::DcTarget {
            // A DC target sends nothing, but programs call this anyway.
            Err(Errno::INVAL)
        } else {
            let what = "the queue pair was created without IBV_QP_INIT_ATTR_SEND_OPS_FLAGS";
            let reason = Reason::new(what, "create it with ibv_create_qp_ex and send_ops_flags");
            Err(Errno::INVAL.because(reason).of_qp(object.inner().qp(), ":"))
        }
    })
}

/// `ibv_modify_qp`.
pub(crate) extern "C" fn ibv_modify_qp(
    qp: Handle<'_, ibv_qp>,
    attr: In<'_, ibv_qp_attr>,
    attr_mask: c_int,
) -> c_int {
    int_verb(|| {
        let attr = attr.read()?;
        modify(qp, &attr, attr_mask.cast_unsigned(), None, false)
    })
}

/// Modifies a QP. `dc_key` is the own key of a DC initiator. If the change is `experimental`, the
/// initiator follows a state table of its own.
///
/// # Errors
/// Any error of the emulator.
//= DCS-09
pub(crate) fn modify(
    qp: Handle<'_, ibv_qp>,
    attr: &ibv_qp_attr,
    bits: u32,
    dc_key: Option<u64>,
    experimental: bool,
) -> Result<(), Errno> {
    let object = qp.get()?;
    let known = QpAttrMask::from_bits(bits);
    let known = known.filter(|mask| !mask.contains(QpAttrMask::DC_KEY));
    let mut mask = known.ok_or_else(|| {
        let what = format!("attr_mask {bits:#x} has unknown bits");
        Errno::INVAL.because(Reason::new(what, ""))
    })?;
    let mut attr_of_mask = attr_from_c(attr, bits)?;
    if let Some(dc_key) = dc_key {
        attr_of_mask.dc_key = dc_key;
        mask |= QpAttrMask::DC_KEY;
    }
    let state = object.inner();
    let outcome = state.qp.modify_by(&attr_of_mask, mask, experimental);
    outcome.map_err(|error| state.refused(&attr_of_mask, mask, &error))?;
    if bits & IBV_QP_STATE != 0 {
        object.set_member(member!(ibv_qp_ex, qp_base.state), attr.qp_state);
    }
    Ok(())
}

/// `ibv_query_qp`: returns all attributes, whatever the mask.
//= QPC-04
pub(crate) extern "C" fn ibv_query_qp(
    qp: Handle<'_, ibv_qp>,
    attr: Out<'_, ibv_qp_attr>,
    _attr_mask: c_int,
    init: Out<'_, ibv_qp_init_attr>,
) -> c_int {
    int_verb(|| {
        let object = qp.get()?;
        object.inner().qp.check_present()?;
        let (current, cap) = object.inner().qp.query();
        attr.write(attr_to_c(&current, &cap))?;
        let base = object.member(member!(ibv_qp_ex, qp_base));
        if !init.is_null() {
            let value = ibv_qp_init_attr {
                qp_context: base.qp_context,
                send_cq: base.send_cq,
                recv_cq: base.recv_cq,
                srq: base.srq,
                cap: cap_to_c(&cap),
                qp_type: base.qp_type,
                sq_sig_all: c_int::from(object.inner().qp.sq_sig_all()),
            };
            init.write(value)?;
        }
        object.set_member(member!(ibv_qp_ex, qp_base.state), current.qp_state);
        Ok(())
    })
}

/// `ibv_destroy_qp`.
pub(crate) extern "C" fn ibv_destroy_qp(qp: Last<'_, ibv_qp>) -> c_int {
    int_verb(|| qp.destroy(|state| Ok(state.qp.destroy()?)))
}

/// `ibv_query_qp_data_in_order`: returns 0, because Rocade guarantees no order.
pub(crate) extern "C" fn ibv_query_qp_data_in_order(
    _qp: Handle<'_, ibv_qp>,
    _op: c_uint,
    _flags: u32,
) -> c_int {
    0
}

/// Context op `modify_qp_rate_limit`: paces to the rate. Ignores the hints on bursts and packet
/// sizes.
//= QPS-05
pub(crate) extern "C" fn modify_qp_rate_limit(
    qp: Handle<'_, ibv_qp>,
    attr: In<'_, ibv_qp_rate_limit_attr>,
) -> c_int {
    int_verb(|| {
        let state = qp.get()?.inner();
        let attr = attr.read()?;
        let hints = attr.max_burst_sz != 0 || attr.typical_pkt_sz != 0;
        if attr.comp_mask != 0 || (hints && attr.rate_limit == 0) {
            return Err(Errno::INVAL);
        }
        state.qp.check_present()?;
        Ok(state.qp.set_rate_limit(attr.rate_limit)?)
    })
}

/// `ibv_query_ece`: returns the vendor of the device and no options, because there is nothing to
/// negotiate.
pub(crate) extern "C" fn ibv_query_ece(qp: Handle<'_, ibv_qp>, ece: Out<'_, ibv_ece>) -> c_int {
    int_verb(|| {
        let offer = qp.get()?.inner().qp.ece();
        let value = ibv_ece {
            vendor_id: offer.vendor_id,
            options: offer.options,
            comp_mask: 0,
        };
        ece.write(value)
    })
}

/// `ibv_set_ece`, in any state: accepts the peer's options and ignores them. A vendor ID of 0
/// means that the peer does not support ECE (`EOPNOTSUPP`).
pub(crate) extern "C" fn ibv_set_ece(qp: Handle<'_, ibv_qp>, ece: In<'_, ibv_ece>) -> c_int {
    int_verb(|| {
        let state = qp.get()?.inner();
        let offered = ece.read()?;
        state.qp.set_ece(Ece {
            vendor_id: offered.vendor_id,
            options: offered.options,
        })?;
        match offered.comp_mask {
            0 => Ok(()),
            _ => Err(Errno::INVAL),
        }
    })
}
