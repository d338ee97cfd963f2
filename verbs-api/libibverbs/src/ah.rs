//! Address handles and multicast groups.

use std::{ffi::c_int, sync::Arc};

use rocade_abi::{
    IBV_WC_GRH, ibv_ah, ibv_ah_attr, ibv_context, ibv_gid, ibv_global_route, ibv_grh, ibv_pd,
    ibv_qp, ibv_wc,
};
use rocade_emulator::{Ah, Context, Grh};

use crate::{
    args::{Handle, In, Last, Out},
    context::ContextObject,
    diagnostics::Reason,
    explain,
    ffi::{Errno, int_verb, neg_verb, ptr_verb},
    handle::{CHandle, objects},
    pd_mr::PdRef,
    qp_attr::{address_from_c, gid_from_c},
};

/// An address handle.
pub(crate) type AhObject = CHandle<ibv_ah, AhState>;

objects! {
    ibv_ah: ibv_ah, AhState;
}

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

fn create(pd: Handle<'_, ibv_pd>, attr: &ibv_ah_attr) -> Result<*mut ibv_ah, Errno> {
    let state = pd.get()?.inner();
    AhObject::create(|_| {
        let ah = state
            .pd()
            .create_ah(&address_from_c(attr))
            .map_err(|error| Errno(error.errno()).because(explain::error(&error)))?;
        let c = ibv_ah {
            context: state.context().as_c(),
            pd: pd.as_ptr(),
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
pub(crate) extern "C" fn ibv_create_ah(
    pd: Handle<'_, ibv_pd>,
    attr: In<'_, ibv_ah_attr>,
) -> *mut ibv_ah {
    ptr_verb(|| {
        let attr = attr.read()?;
        create(pd, &attr)
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
pub(crate) extern "C" fn ibv_init_ah_from_wc(
    context: Handle<'_, ibv_context>,
    port_num: u8,
    wc: In<'_, ibv_wc>,
    grh: In<'_, ibv_grh>,
    attr: Out<'_, ibv_ah_attr>,
) -> c_int {
    neg_verb(|| {
        let context = context.get()?;
        let (wc, grh) = (wc.read()?, grh.read()?);
        let answer = sender(context.context(), port_num, &wc, &grh)?;
        attr.write(answer)?;
        Ok(0)
    })
}

/// `ibv_create_ah_from_wc`.
pub(crate) extern "C" fn ibv_create_ah_from_wc(
    pd: Handle<'_, ibv_pd>,
    wc: In<'_, ibv_wc>,
    grh: In<'_, ibv_grh>,
    port_num: u8,
) -> *mut ibv_ah {
    ptr_verb(|| {
        let state = pd.get()?.inner();
        let (wc, grh) = (wc.read()?, grh.read()?);
        let attr = sender(state.context().context(), port_num, &wc, &grh)?;
        create(pd, &attr)
    })
}

/// `ibv_destroy_ah`.
pub(crate) extern "C" fn ibv_destroy_ah(ah: Last<'_, ibv_ah>) -> c_int {
    int_verb(|| ah.destroy(|state| Ok(state.ah.destroy()?)))
}

/// `ibv_attach_mcast`. Ignores the LID, which Ethernet does not have.
//= MC-01
pub(crate) extern "C" fn ibv_attach_mcast(
    qp: Handle<'_, ibv_qp>,
    gid: In<'_, ibv_gid>,
    _lid: u16,
) -> c_int {
    int_verb(|| {
        let qp = qp.get()?.inner().qp();
        let group = gid_from_c(*gid.read()?);
        let attached = qp.attach_mcast(group);
        attached.map_err(|error| Errno(error.errno()).because(explain::error(&error)))
    })
}

/// `ibv_detach_mcast`.
//= MC-02
pub(crate) extern "C" fn ibv_detach_mcast(
    qp: Handle<'_, ibv_qp>,
    gid: In<'_, ibv_gid>,
    _lid: u16,
) -> c_int {
    int_verb(|| {
        let qp = qp.get()?.inner().qp();
        let group = gid_from_c(*gid.read()?);
        Ok(qp.detach_mcast(group)?)
    })
}
