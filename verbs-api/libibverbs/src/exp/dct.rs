//! Targets of the dynamically connected transport (DC).

use std::{
    collections::HashMap,
    ffi::c_int,
    sync::{
        Arc, LazyLock,
        atomic::{AtomicUsize, Ordering},
    },
};

use parking_lot::Mutex;
use rocade_abi::{
    exp::dct::{
        IBV_EXP_DCT_OOO_RW_DATA_PLACEMENT, IBV_EXP_DCT_STATE_ACTIVE, IBV_EXP_DCT_STATE_DRAINED,
        IBV_EXP_DCT_STATE_DRAINING, ibv_exp_arm_attr, ibv_exp_dct, ibv_exp_dct_attr,
        ibv_exp_dct_init_attr,
    },
    ibv_context, ibv_srq,
};
use rocade_emulator::{
    AccessFlags, AddressVector, DctInitAttr, Qp, QpAttr, QpAttrMask, QpState as State,
};

use crate::{
    args::{Handle, In, InOut, Last, member, zeroed},
    context::ContextObject,
    cq,
    diagnostics::Reason,
    ffi::{Errno, int_verb, ptr_verb},
    handle::{CHandle, objects},
    pd_mr::PdRef,
};

/// A target.
pub(crate) type DctObject = CHandle<ibv_exp_dct, DctState>;

objects! {
    ibv_exp_dct: ibv_exp_dct, DctState;
}

/// The Rust state of an `ibv_exp_dct`.
pub(crate) struct DctState {
    qp: Qp,
    _context: Arc<ContextObject>,
    _pd: PdRef,
}

impl DctState {
    /// Returns the emulator's target.
    pub(crate) const fn qp(&self) -> &Qp {
        &self.qp
    }
}

/// The live targets by number: the addresses of the target and of its SRQ, for completions.
static TARGETS: LazyLock<Mutex<HashMap<u32, (usize, usize)>>> = LazyLock::new(Mutex::default);
static TARGET_COUNT: AtomicUsize = AtomicUsize::new(0);

/// Returns the program's pointers to the target with this number and to its SRQ.
//= DC-11
pub(super) fn find(number: u32) -> Option<(*mut ibv_exp_dct, *mut ibv_srq)> {
    if TARGET_COUNT.load(Ordering::Acquire) == 0 {
        return None;
    }
    let (dct, srq) = TARGETS.lock().get(&number).copied()?;
    Some((
        std::ptr::with_exposed_provenance_mut(dct),
        std::ptr::with_exposed_provenance_mut(srq),
    ))
}

fn invalid(what: &str) -> Errno {
    Errno::INVAL.because(Reason::new(what, ""))
}

/// Returns the attributes for the transitions to INIT and RTR.
//= DCT-02 DCT-06
fn attributes(init: &ibv_exp_dct_init_attr) -> Result<QpAttr, Errno> {
    if init.comp_mask != 0 || init.create_flags & !IBV_EXP_DCT_OOO_RW_DATA_PLACEMENT != 0 {
        return Err(invalid("comp_mask or create_flags has unknown bits"));
    }
    let rights = AccessFlags::LOCAL_WRITE
        | AccessFlags::REMOTE_WRITE
        | AccessFlags::REMOTE_READ
        | AccessFlags::REMOTE_ATOMIC;
    let access = AccessFlags::from_bits(init.access_flags).filter(|flags| rights.contains(*flags));
    let Some(qp_access_flags) = access else {
        return Err(invalid(
            "access_flags has bits that DC targets do not support",
        ));
    };
    if init.flow_label >= 1 << 20 {
        return Err(invalid("flow_label has more than 20 bits"));
    }
    Ok(QpAttr {
        qp_access_flags,
        pkey_index: init.pkey_index.into(),
        port_num: init.port,
        path_mtu: init.mtu,
        min_rnr_timer: init.min_rnr_timer,
        //= DCT-03 DCT-04
        ah_attr: AddressVector {
            sgid_index: init.gid_index,
            flow_label: init.flow_label,
            hop_limit: init.hop_limit,
            traffic_class: init.tclass,
            is_global: true,
            port_num: init.port,
            ..AddressVector::default()
        },
        ..QpAttr::default()
    })
}

fn activate(qp: &Qp, attr: &QpAttr) -> Result<(), Errno> {
    let step = |next: State, mask| {
        let attr = QpAttr {
            qp_state: next.code(),
            ..*attr
        };
        qp.modify(&attr, QpAttrMask::STATE | mask)
    };
    let init = QpAttrMask::PKEY_INDEX | QpAttrMask::PORT | QpAttrMask::ACCESS_FLAGS;
    step(State::Init, init)?;
    let rtr = QpAttrMask::AV | QpAttrMask::PATH_MTU | QpAttrMask::MIN_RNR_TIMER;
    Ok(step(State::Rtr, rtr)?)
}

/// `ibv_exp_create_dct`: NULL and errno on failure.
//= XST-14 DCT-01
pub(crate) extern "C" fn ibv_exp_create_dct(
    context: Handle<'_, ibv_context>,
    init: In<'_, ibv_exp_dct_init_attr>,
) -> *mut ibv_exp_dct {
    ptr_verb(|| {
        let context = context.share()?;
        let init = init.read()?;
        let attr = attributes(&init)?;
        let pd = init.pd().get()?.inner();
        if !Arc::ptr_eq(pd.context(), &context) {
            return Err(invalid("pd belongs to another context"));
        }
        let cq = cq::optional(init.cq())?.ok_or_else(|| invalid("cq is NULL"))?;
        let srq = init.srq().get()?.inner().srq().clone();
        DctObject::create(|address| {
            let cookie = address.expose_provenance();
            let qp = pd.pd().create_dct(DctInitAttr {
                cq,
                srq,
                key: init.dc_key,
                cookie: cookie as u64,
                has_dct_events: true,
            })?;
            activate(&qp, &attr)?;
            let mut c: ibv_exp_dct = zeroed();
            c.context = context.as_c();
            c.dct_num = qp.qp_num().get();
            c.handle = c.dct_num;
            c.pd = init.pd;
            c.srq = init.srq;
            c.cq = init.cq;
            let names = (cookie, init.srq.expose_provenance());
            TARGETS.lock().insert(c.dct_num, names);
            TARGET_COUNT.fetch_add(1, Ordering::AcqRel);
            let state = DctState {
                qp,
                _context: Arc::clone(&context),
                _pd: pd.pd_ref(),
            };
            Ok((c, state))
        })
    })
}

/// `ibv_exp_destroy_dct`.
//= DCT-09
pub(crate) extern "C" fn ibv_exp_destroy_dct(dct: Last<'_, ibv_exp_dct>) -> c_int {
    int_verb(|| {
        dct.destroy(|state| {
            let number = state.qp.qp_num().get();
            state.qp.destroy()?;
            if TARGETS.lock().remove(&number).is_some() {
                TARGET_COUNT.fetch_sub(1, Ordering::AcqRel);
            }
            Ok(())
        })
    })
}

/// `ibv_exp_query_dct`.
//= DCT-07 XST-15
pub(crate) extern "C" fn ibv_exp_query_dct(
    dct: Handle<'_, ibv_exp_dct>,
    attr: InOut<'_, ibv_exp_dct_attr>,
) -> c_int {
    int_verb(|| {
        let object = dct.get()?;
        if attr.head(member!(ibv_exp_dct_attr, comp_mask))? != 0 {
            return Err(invalid("comp_mask is not 0"));
        }
        let qp = object.inner().qp();
        let status = qp.dct_status()?;
        let (current, _) = qp.query();
        let address = current.ah_attr;
        let answer = ibv_exp_dct_attr {
            dc_key: status.key,
            port: current.port_num,
            access_flags: current.qp_access_flags.bits(),
            min_rnr_timer: current.min_rnr_timer,
            tclass: address.traffic_class,
            flow_label: address.flow_label,
            mtu: current.path_mtu,
            pkey_index: u8::try_from(current.pkey_index).unwrap_or(u8::MAX),
            gid_index: address.sgid_index,
            hop_limit: address.hop_limit,
            key_violations: status.key_violations,
            //= XCON-12
            state: match (status.is_draining, status.sessions) {
                (false, _) => IBV_EXP_DCT_STATE_ACTIVE,
                (true, 0) => IBV_EXP_DCT_STATE_DRAINED,
                (true, _) => IBV_EXP_DCT_STATE_DRAINING,
            },
            srq: object.member(member!(ibv_exp_dct, srq)),
            cq: object.member(member!(ibv_exp_dct, cq)),
            pd: object.member(member!(ibv_exp_dct, pd)),
            comp_mask: 0,
        };
        attr.write(answer)
    })
}

/// `ibv_exp_arm_dct`.
//= DCK-04 DCK-06
pub(crate) extern "C" fn ibv_exp_arm_dct(
    dct: Handle<'_, ibv_exp_dct>,
    attr: In<'_, ibv_exp_arm_attr>,
) -> c_int {
    int_verb(|| {
        let object = dct.get()?;
        if attr.read()?.comp_mask != 0 {
            return Err(invalid("comp_mask is not 0"));
        }
        Ok(object.inner().qp().arm_dct()?)
    })
}
