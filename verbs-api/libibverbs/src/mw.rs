//! Memory windows.

use std::{
    ffi::{c_int, c_uint},
    sync::Arc,
};

use rocade_abi::{
    IBV_ACCESS_ZERO_BASED, IBV_MW_TYPE_1, IBV_MW_TYPE_2, ibv_mw, ibv_mw_bind, ibv_mw_bind_info,
    ibv_pd, ibv_qp,
};
use rocade_emulator::{AccessFlags, Bind, Lkey, Mw, Rkey, SendFlags, SendOp, WindowKind};

use crate::{
    args::{Handle, In, Last, View, member},
    context::ContextObject,
    diagnostics::Reason,
    ffi::{Errno, int_data_verb, int_verb, ptr_verb},
    handle::{CHandle, objects},
    pd_mr::PdRef,
};

/// A memory window.
pub(crate) type MwObject = CHandle<ibv_mw, MwState>;

objects! {
    ibv_mw: ibv_mw, MwState;
}

/// The Rust state of an `ibv_mw`.
pub(crate) struct MwState {
    mw: Mw,
    _context: Arc<ContextObject>,
    _pd: PdRef,
}

/// Context op `alloc_mw`.
pub(crate) extern "C" fn alloc_mw(pd: Handle<'_, ibv_pd>, mw_type: c_uint) -> *mut ibv_mw {
    ptr_verb(|| {
        let state = pd.get()?.inner();
        let kind = match mw_type {
            IBV_MW_TYPE_1 => WindowKind::Type1,
            IBV_MW_TYPE_2 => WindowKind::Type2,
            _ => {
                return Err(invalid(
                    "mw_type is unknown",
                    "use IBV_MW_TYPE_1 or IBV_MW_TYPE_2",
                ));
            }
        };
        let mw = state.pd().alloc_mw(kind)?;
        let context = Arc::clone(state.context());
        MwObject::create(|_| {
            let c = ibv_mw {
                context: context.as_c(),
                pd: pd.as_ptr(),
                rkey: mw.rkey().get(),
                handle: 0,
                mw_type,
            };
            Ok((
                c,
                MwState {
                    mw,
                    _context: context,
                    _pd: state.pd_ref(),
                },
            ))
        })
    })
}

/// Context op `dealloc_mw`.
//= MW-10
pub(crate) extern "C" fn dealloc_mw(mw: Last<'_, ibv_mw>) -> c_int {
    int_verb(|| mw.destroy(|state| Ok(state.mw.destroy()?)))
}

fn invalid(what: &str, advice: &str) -> Errno {
    Errno::INVAL.because(Reason::new(what, advice))
}

fn to_bind(rkey: Rkey, info: &View<'_, ibv_mw_bind_info>) -> Result<Bind, Errno> {
    let lkey = if info.mr().is_null() {
        Lkey::new(0)
    } else {
        let mr = info.mr().get()?.inner().mr();
        if !mr.is_plain() {
            //= NUL-01
            let what = "a window needs a region of the program's memory";
            return Err(invalid(what, "bind it to a region of ibv_reg_mr"));
        }
        mr.lkey()
    };
    Ok(Bind {
        rkey,
        lkey,
        va: info.addr,
        len: info.length,
        access: AccessFlags::from_bits_retain(info.mw_access_flags),
    })
}

/// Context op `bind_mw`, for type 1 windows. The new key is in `mw->rkey`.
//= MW-01
//= MW-05
pub(crate) extern "C" fn bind_mw(
    qp: Handle<'_, ibv_qp>,
    mw: Handle<'_, ibv_mw>,
    bind: In<'_, ibv_mw_bind>,
) -> c_int {
    int_data_verb(|| {
        let state = qp.get()?.inner();
        let object = mw.get()?;
        let bind = bind.read().map_err(|_| invalid("mw_bind is NULL", ""))?;
        let info = &bind.info();
        if info.mw_access_flags & IBV_ACCESS_ZERO_BASED != 0 {
            let what = "a type 1 window cannot have IBV_ACCESS_ZERO_BASED";
            return Err(invalid(what, "use a type 2 window"));
        }
        if info.mr.is_null() && (info.addr != 0 || info.length != 0) {
            let what = "bind_info.mr is NULL, but addr or length is not 0";
            return Err(invalid(what, "only a bind of 0 bytes has no region"));
        }
        let request = to_bind(Rkey::new(0), info)?;
        let flags = SendFlags::from_bits_truncate(bind.send_flags);
        let window = &object.inner().mw;
        let posted = state.qp().bind_mw(window, bind.wr_id, flags, request);
        let rkey = posted.map_err(|error| Errno::from(error).of_post(state.qp(), true))?;
        object.set_member(member!(ibv_mw, rkey), rkey.get());
        Ok(())
    })
}

/// Returns the operation of a bind by work request, for type 2 windows.
///
/// The window keeps the index of its key. `rkey` provides the tag, the low byte.
///
/// # Errors
/// `EINVAL` if there is no window, or if it is of type 1.
//= MW-02
//= KEY-04
pub(crate) fn bind_operation(
    mw: Handle<'_, ibv_mw>,
    rkey: u32,
    info: &View<'_, ibv_mw_bind_info>,
) -> Result<SendOp, Errno> {
    if mw.is_null() {
        return Err(invalid("bind_mw.mw is NULL", ""));
    }
    let window = &mw.get()?.inner().mw;
    if window.kind() != WindowKind::Type2 {
        let advice = "bind it with ibv_bind_mw, or allocate it as IBV_MW_TYPE_2";
        return Err(invalid(
            "a work request cannot bind a type 1 window",
            advice,
        ));
    }
    let bind = to_bind(window.rkey().with_tag(rkey), info)?;
    Ok(SendOp::Bind(bind))
}
