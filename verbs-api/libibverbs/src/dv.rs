//! Direct verbs of devices with an mlx5 identity. `libmlx5.so.1` calls these functions through a
//! private table. Each has the name of the public function, because diagnostics print it.

pub(crate) mod dmabuf;
pub(crate) mod mkey;

use std::{ffi::c_int, sync::OnceLock};

use rocade_abi::{
    IBV_QP_INIT_ATTR_PD, IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, IBV_QPT_DRIVER, IBV_QPT_RC,
    ROCADE_MLX5_VERSION, ibv_ah, ibv_context, ibv_device, ibv_qp, ibv_qp_cap, ibv_qp_ex,
    ibv_qp_init_attr_ex,
    mlx5::{
        MLX5DV_CONTEXT_MASK_DC_ODP_CAPS, MLX5DV_CONTEXT_MASK_DCI_STREAMS,
        MLX5DV_CONTEXT_MASK_MAX_DC_RD_ATOM, MLX5DV_CONTEXT_MASK_NUM_LAG_PORTS, MLX5DV_DCTYPE_DCI,
        MLX5DV_DCTYPE_DCT, MLX5DV_QP_CREATE_HINTS, MLX5DV_QP_EX_WITH_MKEYS,
        MLX5DV_QP_INIT_ATTR_MASK_DC, MLX5DV_QP_INIT_ATTR_MASK_DCI_STREAMS,
        MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS, MLX5DV_QP_INIT_ATTR_MASK_SEND_OPS_FLAGS,
        mlx5dv_context, mlx5dv_context_attr, mlx5dv_context_dc_rd_atom, mlx5dv_dci_streams_caps,
        mlx5dv_qp_ex, mlx5dv_qp_init_attr,
    },
    rocade_mlx5_ops,
};
use rocade_emulator::{DciStreams, DctInitAttr, MAX_LOG_ERRORED, MAX_LOG_STREAMS, QpType, Qpn};

use crate::{
    args::{
        FromC, Handle, In, InOut, New, Out, View, member,
        slot::{self, Argument},
        zeroed,
    },
    context::ContextObject,
    cq,
    device::{self},
    diagnostics::Reason,
    exp::qp::ExpQpAttr,
    ffi::{Errno, int_verb, ptr_verb},
    qp::{self, QpState},
    qp_ex, query,
    trace::{dv as traced, remote},
    wr_batch::{Batch, DcRemote},
};

/// The vendor ID of mlx5 devices in `ibv_device_attr`, and their part IDs.
const VENDOR: u32 = 0x02c9;
const PARTS: [std::ops::RangeInclusive<u32>; 2] = [0x1011..=0x1025, 0xa2d0..=0xa2df];

/// READs and atomics that `mlx5dv_query_device` reports at most for DC, like ConnectX. Programs
/// post so many at once, to queues that are shorter than Rocade's own limit.
const MAX_DC_RD_ATOM: u32 = 16;

static OPS: rocade_mlx5_ops = rocade_mlx5_ops {
    version: ROCADE_MLX5_VERSION,
    unsupported: remote::trace_unsupported,
    is_supported: traced::mlx5dv_is_supported,
    open_device: traced::mlx5dv_open_device,
    query_device: traced::mlx5dv_query_device,
    create_qp: traced::mlx5dv_create_qp,
    qp_ex_from_ibv_qp_ex: traced::mlx5dv_qp_ex_from_ibv_qp_ex,
    dci_stream_id_reset: traced::mlx5dv_dci_stream_id_reset,
    map_ah_to_qp: traced::mlx5dv_map_ah_to_qp,
    create_mkey: traced::mlx5dv_create_mkey,
    destroy_mkey: traced::mlx5dv_destroy_mkey,
    reserved_qpn_alloc: traced::mlx5dv_reserved_qpn_alloc,
    reserved_qpn_dealloc: traced::mlx5dv_reserved_qpn_dealloc,
    reg_dmabuf_mr: traced::mlx5dv_reg_dmabuf_mr,
};

/// Returns the function table for `libmlx5.so.1`.
pub(crate) extern "C" fn rocade_mlx5() -> *const rocade_mlx5_ops {
    &raw const OPS
}

/// Returns true if these are the IDs of an mlx5 device.
fn is_mlx5(vendor_id: u32, part_id: u32) -> bool {
    vendor_id == VENDOR && PARTS.iter().any(|parts| parts.contains(&part_id))
}

/// Returns true if the context's device has an mlx5 identity.
pub(crate) fn has_identity(context: &ContextObject) -> bool {
    let attr = context.context().device_attr();
    is_mlx5(attr.vendor_id, attr.vendor_part_id)
}

/// Checks that the context's device has an mlx5 identity.
///
/// # Errors
/// `EOPNOTSUPP` if it does not.
fn expect_mlx5(context: &ContextObject) -> Result<(), Errno> {
    if has_identity(context) {
        return Ok(());
    }
    let what = "the device has no mlx5 identity";
    let advice = "set identity to its vendor and part, e.g. 0x02c9:0x1017";
    Err(Errno::OPNOTSUPP.because(Reason::new(what, advice)))
}

pub(crate) extern "C" fn mlx5dv_is_supported(device: Handle<'_, ibv_device>) -> bool {
    let object = device.get();
    object.is_ok_and(|object| {
        let (vendor_id, part_id) = object.identity();
        is_mlx5(vendor_id, part_id)
    })
}

pub(crate) extern "C" fn mlx5dv_open_device(
    device: Handle<'_, ibv_device>,
    attr: In<'_, mlx5dv_context_attr>,
) -> *mut ibv_context {
    let is_supported = mlx5dv_is_supported(device);
    let checked = int_verb(|| {
        let attr = attr.optional();
        // Queues and commands that programs write themselves are not offered.
        let is_plain = attr.is_none_or(|attr| attr.flags == 0 && attr.comp_mask == 0);
        if is_plain && is_supported {
            Ok(())
        } else {
            Err(Errno::OPNOTSUPP)
        }
    });
    if checked != 0 {
        return std::ptr::null_mut();
    }
    device::ibv_open_device(device)
}

/// `mlx5dv_query_device`: fills in the requested members that Rocade has. Clears the other bits of
/// `comp_mask`.
//= DCU-08
pub(crate) extern "C" fn mlx5dv_query_device(
    context: Handle<'_, ibv_context>,
    attr: InOut<'_, mlx5dv_context>,
) -> c_int {
    int_verb(|| {
        let context = context.share_inherited()?;
        expect_mlx5(&context)?;
        let wanted = attr.head(member!(mlx5dv_context, comp_mask))?;
        let mut answer: mlx5dv_context = zeroed();
        answer.comp_mask = wanted
            & (MLX5DV_CONTEXT_MASK_DC_ODP_CAPS
                | MLX5DV_CONTEXT_MASK_NUM_LAG_PORTS
                | MLX5DV_CONTEXT_MASK_DCI_STREAMS
                | MLX5DV_CONTEXT_MASK_MAX_DC_RD_ATOM);
        if wanted & MLX5DV_CONTEXT_MASK_DC_ODP_CAPS != 0 {
            answer.dc_odp_caps = query::dc_odp_caps();
        }
        if wanted & MLX5DV_CONTEXT_MASK_NUM_LAG_PORTS != 0 {
            answer.num_lag_ports = 1;
        }
        if wanted & MLX5DV_CONTEXT_MASK_DCI_STREAMS != 0 {
            answer.dci_streams_caps = mlx5dv_dci_streams_caps {
                max_log_num_concurent: MAX_LOG_STREAMS,
                max_log_num_errored: MAX_LOG_ERRORED,
            };
        }
        attr.write(answer)?;
        if wanted & MLX5DV_CONTEXT_MASK_MAX_DC_RD_ATOM == 0 {
            return Ok(());
        }
        let limits = context.context().device_attr();
        let answer = mlx5dv_context_dc_rd_atom {
            max_dc_rd_atom: limits.max_qp_rd_atom.min(MAX_DC_RD_ATOM).into(),
            max_dc_init_rd_atom: limits.max_qp_init_rd_atom.min(MAX_DC_RD_ATOM).into(),
        };
        // SAFETY: a program that requests the member has a structure that includes it, by contract
        // writable.
        unsafe { Out::new(attr.as_ptr().add(1).cast()) }.write(answer)
    })
}

/// `mlx5dv_create_qp`: creates DC initiators, DC targets and ordinary QPs.
pub(crate) extern "C" fn mlx5dv_create_qp(
    context: Handle<'_, ibv_context>,
    init: InOut<'_, ibv_qp_init_attr_ex>,
    dv: In<'_, mlx5dv_qp_init_attr>,
) -> *mut ibv_qp {
    ptr_verb(|| {
        expect_mlx5(context.get()?)?;
        let granted = init.cap();
        let init = &init.read_known()?;
        let dv = dv.optional();
        let has = |bit: u64| dv.is_some_and(|dv| dv.comp_mask & bit != 0);
        let flags = dv.filter(|_| has(MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS));
        let flags = flags.map_or(0, |dv| dv.create_flags) & !MLX5DV_QP_CREATE_HINTS;
        let known = MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS
            | MLX5DV_QP_INIT_ATTR_MASK_DC
            | MLX5DV_QP_INIT_ATTR_MASK_SEND_OPS_FLAGS
            | MLX5DV_QP_INIT_ATTR_MASK_DCI_STREAMS;
        let ops = dv.filter(|_| has(MLX5DV_QP_INIT_ATTR_MASK_SEND_OPS_FLAGS));
        let ops = ops.map_or(0, |dv| dv.send_ops_flags);
        if flags != 0 || has(!known) || ops & !MLX5DV_QP_EX_WITH_MKEYS != 0 {
            return Err(Errno::OPNOTSUPP.because(qp_ex::not_offered("a flag of mlx5dv_create_qp")));
        }
        let is_driver = init.qp_type == IBV_QPT_DRIVER;
        match dv.filter(|_| has(MLX5DV_QP_INIT_ATTR_MASK_DC)) {
            None if !is_driver => create_plain(context, (init, granted), ops != 0),
            Some(dv) if is_driver => {
                let dc = &dv.dc_init_attr;
                match dc.dc_type {
                    //= DCU-01
                    MLX5DV_DCTYPE_DCI => {
                        let [log_concurrent, log_errored, ..] = dc.dct_access_key.to_ne_bytes();
                        let streams = DciStreams {
                            log_concurrent,
                            log_errored,
                        };
                        let wants = has(MLX5DV_QP_INIT_ATTR_MASK_DCI_STREAMS);
                        create_dci((init, granted), wants.then_some(streams))
                    }
                    MLX5DV_DCTYPE_DCT => create_dct((init, granted), dc.dct_access_key),
                    _ => Err(Errno::INVAL),
                }
            }
            _ => Err(Errno::INVAL.because(Reason::new(
                "IBV_QPT_DRIVER and MLX5DV_QP_INIT_ATTR_MASK_DC require each other",
                "",
            ))),
        }
        .map(New::into_c)
    })
}

/// The attributes of a new QP, and the place of its granted sizes.
type Init<'a> = (&'a View<'a, ibv_qp_init_attr_ex>, Out<'a, ibv_qp_cap>);

/// Creates an ordinary QP, on RC optionally with builders for indirect memory keys.
//= UMU-01
fn create_plain(
    context: Handle<'_, ibv_context>,
    (init, granted): Init<'_>,
    with_mkeys: bool,
) -> Result<New<ibv_qp>, Errno> {
    if with_mkeys && init.qp_type != IBV_QPT_RC {
        return Err(Errno::OPNOTSUPP.because(qp_ex::not_offered("memory keys of this QP type")));
    }
    let qp = qp_ex::create(context, init, granted)?;
    if with_mkeys {
        let state = qp.get()?.inner();
        state.set_exp_attr(ExpQpAttr {
            umr: true,
            ..ExpQpAttr::NONE
        });
    }
    Ok(qp)
}

//= DCU-01
fn create_dci(
    (init, granted): Init<'_>,
    streams: Option<DciStreams>,
) -> Result<New<ibv_qp>, Errno> {
    let known = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    if init.comp_mask & IBV_QP_INIT_ATTR_PD == 0 || init.comp_mask & !known != 0 {
        return Err(Errno::INVAL);
    }
    let with_table = init.comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS != 0;
    let extra = init.send_ops_flags & !qp_ex::supported_ops(QpType::DcInitiator.code());
    if with_table && extra != 0 {
        let what = format!("send_ops_flags have the unsupported bits {extra:#x}");
        return Err(Errno::OPNOTSUPP.because(qp_ex::not_offered(&what)));
    }
    qp::create_initiator(init, granted, with_table, streams)
}

//= DCU-02 DCU-04
fn create_dct((init, granted): Init<'_>, key: u64) -> Result<New<ibv_qp>, Errno> {
    let sends = init.comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS != 0 && init.send_ops_flags != 0;
    if init.comp_mask & IBV_QP_INIT_ATTR_PD == 0 || sends {
        return Err(Errno::INVAL);
    }
    let cq = cq::optional(init.recv_cq())?.ok_or(Errno::INVAL)?;
    let srq = init.srq().get()?.inner().srq().clone();
    qp::create_dct(init, granted, |pd, cookie| {
        pd.create_dct(DctInitAttr {
            cq,
            srq,
            key,
            cookie,
            has_dct_events: false,
        })
    })
}

/// The `mlx5dv_qp_ex` of a QP, created on first use.
#[derive(Debug, Default)]
pub(crate) struct Builders(OnceLock<Box<DvQp>>);

/// The object behind an `mlx5dv_qp_ex`.
#[repr(C)]
struct DvQp {
    c: mlx5dv_qp_ex,
    qp: *mut ibv_qp_ex,
}

impl std::fmt::Debug for DvQp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DvQp").finish_non_exhaustive()
    }
}

// SAFETY: it does not change after construction. The pointer is only passed to functions whose
// callers guarantee that it is live.
unsafe impl Sync for DvQp {}
// SAFETY: as above.
unsafe impl Send for DvQp {}

impl Builders {
    fn of(&self, qp: *mut ibv_qp_ex) -> *mut mlx5dv_qp_ex {
        let made = self.0.get_or_init(|| {
            let mut c: mlx5dv_qp_ex = zeroed();
            c.wr_set_dc_addr = Some(slot::of_4(wr_set_dc_addr));
            c.wr_set_dc_addr_stream = Some(slot::of_5(wr_set_dc_addr_stream));
            c.wr_mr_list = Some(mkey::c_mr_list);
            c.wr_mr_interleaved = Some(mkey::c_mr_interleaved);
            c.wr_mkey_configure = Some(mkey::c_mkey_configure);
            c.wr_set_mkey_access_flags = Some(slot::of_2(mkey::wr_set_mkey_access_flags));
            c.wr_set_mkey_layout_list = Some(mkey::c_set_mkey_layout_list);
            c.wr_set_mkey_layout_interleaved = Some(mkey::c_set_mkey_layout_interleaved);
            Box::new(DvQp { c, qp })
        });
        std::ptr::from_ref::<DvQp>(made).cast_mut().cast()
    }
}

pub(crate) extern "C" fn mlx5dv_qp_ex_from_ibv_qp_ex(
    qp: Handle<'_, ibv_qp_ex>,
) -> *mut mlx5dv_qp_ex {
    // Programs also call it for QPs that send nothing.
    if qp.is_null() {
        return std::ptr::null_mut();
    }
    ptr_verb(|| {
        let object = qp.get()?;
        Ok(object.inner().builders().of(qp.as_ptr()))
    })
}

/// The builders of a QP whose batch the calling thread has begun by `wr_start`, and not ended (see
/// [`Batch`]).
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct DvBatch<'a>(Handle<'a, mlx5dv_qp_ex>);

// SAFETY: transparent over a handle, which is transparent over the pointer.
unsafe impl Argument<*mut mlx5dv_qp_ex> for DvBatch<'_> {}

impl FromC<*mut mlx5dv_qp_ex> for DvBatch<'_> {
    unsafe fn from_c(raw: *mut mlx5dv_qp_ex) -> Self {
        // SAFETY: same contract.
        Self(unsafe { Handle::new(raw) })
    }
}

impl<'a> DvBatch<'a> {
    /// Returns the batch.
    fn batch(self) -> Batch<'a> {
        // SAFETY: the pointer comes from `mlx5dv_qp_ex_from_ibv_qp_ex`, so it is the first member
        // of a live `DvQp`.
        let qp = unsafe { (*self.0.as_ptr().cast::<DvQp>()).qp };
        // SAFETY: that of the builders, whose batch this thread has begun.
        unsafe { Batch::from_c(qp) }
    }
}

//= DCU-06 XDEC-03
extern "C" fn wr_set_dc_addr(mqp: DvBatch<'_>, ah: Handle<'_, ibv_ah>, dctn: u32, key: u64) {
    wr_set_dc_addr_stream(mqp, ah, dctn, key, 0);
}

//= DC-40
extern "C" fn wr_set_dc_addr_stream(
    mqp: DvBatch<'_>,
    ah: Handle<'_, ibv_ah>,
    dctn: u32,
    key: u64,
    stream: u16,
) {
    let ah = ah.as_ptr();
    mqp.batch().set_dc_remote(DcRemote {
        ah,
        dctn,
        key,
        stream,
    });
}

/// `mlx5dv_dci_stream_id_reset`: lets a stream in error accept requests again.
//= DC-40
pub(crate) extern "C" fn mlx5dv_dci_stream_id_reset(
    qp: Handle<'_, ibv_qp>,
    stream_id: u16,
) -> c_int {
    int_verb(|| {
        let state: &QpState = qp.get()?.inner();
        Ok(state.qp().reset_stream(stream_id)?)
    })
}

/// `mlx5dv_reserved_qpn_alloc`: reserves a number that no QP gets, for connections that share a QP
/// such as a DC target.
pub(crate) extern "C" fn mlx5dv_reserved_qpn_alloc(
    context: Handle<'_, ibv_context>,
    qpn: Out<'_, u32>,
) -> c_int {
    int_verb(|| {
        let object = context.get()?;
        expect_mlx5(object)?;
        if qpn.is_null() {
            return Err(Errno::INVAL);
        }
        let number = object.context().reserve_qp_num()?;
        qpn.write(number.get())
    })
}

/// `mlx5dv_reserved_qpn_dealloc`: fails with `EINVAL` for a number that is not reserved.
pub(crate) extern "C" fn mlx5dv_reserved_qpn_dealloc(
    context: Handle<'_, ibv_context>,
    qpn: u32,
) -> c_int {
    int_verb(|| {
        let object = context.get()?;
        Ok(object.context().release_qp_num(Qpn::new(qpn))?)
    })
}

/// `mlx5dv_map_ah_to_qp`: a hint that a remote QP's packets come from this address, which Rocade
/// does not need.
pub(crate) extern "C" fn mlx5dv_map_ah_to_qp(ah: Handle<'_, ibv_ah>, _qp_num: u32) -> c_int {
    int_verb(|| {
        ah.get()?;
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_of_mlx5_are_known_by_vendor_and_part() {
        assert!(is_mlx5(0x02c9, 0x1017) && is_mlx5(0x02c9, 0xa2d6));
        assert!(!is_mlx5(0x02c9, 0x1003) && !is_mlx5(0x15b3, 0x1017) && !is_mlx5(0x526f, 1));
    }
}
