//! Address handles and multicast groups.

use std::{ffi::c_int, sync::Arc};

use rocade_abi::{
    IBV_WC_GRH, ibv_ah, ibv_ah_attr, ibv_context, ibv_gid, ibv_global_route, ibv_grh, ibv_pd,
    ibv_qp, ibv_wc,
};
use rocade_emulator::{Ah, Context, Grh};

use crate::{
    context::ContextObject,
    diagnostics::Reason,
    explain,
    ffi::{self, Errno, int_verb, neg_verb, ptr_verb},
    handle::CHandle,
    pd_mr::{PdObject, PdRef},
    qp::QpObject,
    qp_attr::{address_from_c, gid_from_c},
};

/// An address handle.
pub(crate) type AhObject = CHandle<ibv_ah, AhState>;

/// The Rust state of an `ibv_ah`.
pub(crate) struct AhState {
    ah: Ah,
    _context: Arc<ContextObject>,
    _pd: PdRef,
}

impl AhState {
    /// Returns the emulator's address handle.
    pub(crate) const fn ah(&self) -> &Ah {
        &self.ah
    }
}

/// # Safety
/// `pd` must be NULL or a live domain.
unsafe fn create(pd: *mut ibv_pd, attr: &ibv_ah_attr) -> Result<*mut ibv_ah, Errno> {
    // SAFETY: same contract.
    let state = unsafe { PdObject::borrow(pd) }?.inner();
    AhObject::create(|_| {
        let ah = state
            .pd()
            .create_ah(&address_from_c(attr))
            .map_err(|error| Errno(error.errno()).because(explain::error(&error)))?;
        let c = ibv_ah {
            context: state.context().as_c(),
            pd,
            handle: 0,
        };
        let state = AhState {
            ah,
            _context: Arc::clone(state.context()),
            _pd: state.pd_ref(),
        };
        Ok((c, state))
    })
}

/// `ibv_create_ah`.
pub(crate) unsafe extern "C" fn ibv_create_ah(
    pd: *mut ibv_pd,
    attr: *mut ibv_ah_attr,
) -> *mut ibv_ah {
    ptr_verb(|| {
        // SAFETY: by contract NULL or readable.
        let attr = unsafe { ffi::read(attr) }?;
        // SAFETY: by contract a live domain.
        unsafe { create(pd, &attr) }
    })
}

/// Returns the address of the sender of the message whose GRH is `grh`.
///
/// # Errors
/// - `EINVAL` without a GRH, or if its destination is none of the device's GIDs.
/// - `EPROTONOSUPPORT` if the header is neither IPv4 nor IPv6.
//= GRH-05
fn sender(context: &Context, port: u8, wc: &ibv_wc, grh: &ibv_grh) -> Result<ibv_ah_attr, Errno> {
    let gids = context.gid_entries_of(port)?;
    if wc.wc_flags & IBV_WC_GRH == 0 {
        let what = "the completion has no GRH: IBV_WC_GRH is not set";
        return Err(Errno::INVAL.because(Reason::new(what, "")));
    }
    let header = Grh::of(&grh_bytes(grh)).ok_or_else(|| {
        let what = "the GRH is no IP header";
        Errno(libc::EPROTONOSUPPORT).because(Reason::new(what, ""))
    })?;
    let back = header.reply_address(port, &gids).ok_or_else(|| {
        let what = format!("no GID of the device is {}", header.to());
        Errno::INVAL.because(Reason::new(what, ""))
    })?;
    Ok(ibv_ah_attr {
        grh: ibv_global_route {
            dgid: ibv_gid {
                raw: back.dgid.octets(),
            },
            flow_label: back.flow_label,
            sgid_index: back.sgid_index,
            hop_limit: back.hop_limit,
            traffic_class: back.traffic_class,
        },
        dlid: wc.slid,
        // RoCE completions have no SL.
        sl: 0,
        src_path_bits: wc.dlid_path_bits,
        static_rate: 0,
        is_global: 1,
        port_num: port,
    })
}

fn grh_bytes(grh: &ibv_grh) -> [u8; 40] {
    let mut bytes = [0; 40];
    bytes[..4].copy_from_slice(&grh.version_tclass_flow.to_ne_bytes());
    bytes[4..6].copy_from_slice(&grh.paylen.to_ne_bytes());
    bytes[6] = grh.next_hdr;
    bytes[7] = grh.hop_limit;
    bytes[8..24].copy_from_slice(&gid_from_c(grh.sgid).octets());
    bytes[24..].copy_from_slice(&gid_from_c(grh.dgid).octets());
    bytes
}

/// `ibv_init_ah_from_wc`: 0, or -1 and errno.
pub(crate) unsafe extern "C" fn ibv_init_ah_from_wc(
    context: *mut ibv_context,
    port_num: u8,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    attr: *mut ibv_ah_attr,
) -> c_int {
    neg_verb(|| {
        // SAFETY: by contract an open context.
        let context = unsafe { ContextObject::borrow(context) }?;
        // SAFETY: by contract NULL or readable.
        let (wc, grh) = unsafe { (ffi::read(wc)?, ffi::read(grh)?) };
        let answer = sender(context.context(), port_num, &wc, &grh)?;
        // SAFETY: by contract NULL or writable.
        unsafe { ffi::write(attr, answer) }?;
        Ok(0)
    })
}

/// `ibv_create_ah_from_wc`.
pub(crate) unsafe extern "C" fn ibv_create_ah_from_wc(
    pd: *mut ibv_pd,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    port_num: u8,
) -> *mut ibv_ah {
    ptr_verb(|| {
        // SAFETY: by contract a live domain.
        let state = unsafe { PdObject::borrow(pd) }?.inner();
        // SAFETY: by contract NULL or readable.
        let (wc, grh) = unsafe { (ffi::read(wc)?, ffi::read(grh)?) };
        let attr = sender(state.context().context(), port_num, &wc, &grh)?;
        // SAFETY: as above.
        unsafe { create(pd, &attr) }
    })
}

/// `ibv_destroy_ah`.
pub(crate) unsafe extern "C" fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int {
    // SAFETY: by contract a live address handle that is not used afterwards.
    int_verb(|| unsafe { AhObject::destroy(ah, |state| Ok(state.ah.destroy()?)) })
}

/// `ibv_attach_mcast`. Ignores the LID, which Ethernet does not have.
//= MC-01
pub(crate) unsafe extern "C" fn ibv_attach_mcast(
    qp: *mut ibv_qp,
    gid: *const ibv_gid,
    _lid: u16,
) -> c_int {
    int_verb(|| {
        // SAFETY: by contract a live QP.
        let qp = unsafe { QpObject::borrow(qp.cast()) }?.inner().qp();
        // SAFETY: by contract NULL or readable.
        let group = gid_from_c(unsafe { ffi::read(gid) }?);
        let attached = qp.attach_mcast(group);
        attached.map_err(|error| Errno(error.errno()).because(explain::error(&error)))
    })
}

/// `ibv_detach_mcast`.
//= MC-02
pub(crate) unsafe extern "C" fn ibv_detach_mcast(
    qp: *mut ibv_qp,
    gid: *const ibv_gid,
    _lid: u16,
) -> c_int {
    int_verb(|| {
        // SAFETY: by contract a live QP.
        let qp = unsafe { QpObject::borrow(qp.cast()) }?.inner().qp();
        // SAFETY: by contract NULL or readable.
        let group = gid_from_c(unsafe { ffi::read(gid) }?);
        Ok(qp.detach_mcast(group)?)
    })
}
