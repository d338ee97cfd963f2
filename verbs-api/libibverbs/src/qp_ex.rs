//! The extended queue pair: work requests built by function calls between `wr_start` and
//! `wr_complete`.
//!
//! A batch is collected here and handed to the emulator in `wr_complete`, all or nothing. The
//! lock of the batch is held in between, so batches of several threads do not mix (WRX-02).

use std::{
    cell::UnsafeCell,
    ffi::{c_int, c_void},
    ops::Range,
};

use parking_lot::{RawMutex, lock_api::RawMutex as _};
use rocade_abi::{
    IBV_QP_CREATE_BLOCK_SELF_MCAST_LB, IBV_QP_CREATE_CVLAN_STRIPPING,
    IBV_QP_CREATE_PCI_WRITE_END_PADDING, IBV_QP_CREATE_SCATTER_FCS, IBV_QP_CREATE_SOURCE_QPN,
    IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP, IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD,
    IBV_QP_EX_WITH_ATOMIC_WRITE, IBV_QP_EX_WITH_BIND_MW, IBV_QP_EX_WITH_FLUSH,
    IBV_QP_EX_WITH_LOCAL_INV, IBV_QP_EX_WITH_RDMA_READ, IBV_QP_EX_WITH_RDMA_WRITE,
    IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM, IBV_QP_EX_WITH_SEND, IBV_QP_EX_WITH_SEND_WITH_IMM,
    IBV_QP_EX_WITH_SEND_WITH_INV, IBV_QP_EX_WITH_TSO, IBV_QP_INIT_ATTR_CREATE_FLAGS,
    IBV_QP_INIT_ATTR_IND_TABLE, IBV_QP_INIT_ATTR_MAX_TSO_HEADER, IBV_QP_INIT_ATTR_PD,
    IBV_QP_INIT_ATTR_RX_HASH, IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, IBV_QP_INIT_ATTR_XRCD,
    IBV_QP_OPEN_ATTR_CONTEXT, IBV_QP_OPEN_ATTR_NUM, IBV_QP_OPEN_ATTR_RESERVED,
    IBV_QP_OPEN_ATTR_TYPE, IBV_QP_OPEN_ATTR_XRCD, IBV_QPT_RAW_PACKET, IBV_QPT_UD, IBV_QPT_XRC_RECV,
    ibv_ah, ibv_context, ibv_data_buf, ibv_mw, ibv_mw_bind_info, ibv_qp, ibv_qp_ex,
    ibv_qp_init_attr, ibv_qp_init_attr_ex, ibv_qp_open_attr, ibv_sge,
};
use rocade_emulator::{
    Feth, Lkey, MAX_TSO_HEADER, Qp, QpCap, QpType, Qpn, Rkey, SendFlags, SendOp, SendPoster,
    SendWr, Sge, Srqn, Tso, Xrcd,
};

use crate::{
    complaint::Reason,
    context::ContextObject,
    dv::mkey::KeyChange,
    ffi::{self, Errno, ptr_verb},
    mw, post,
    qp::{self, QpObject, QpState},
    qp_attr::cap_to_c,
    rss::{self, TableObject},
};

/// Operations of the builder that a queue pair of this type executes (WRX-01).
pub(crate) fn supported_ops(qp_type: u32) -> u64 {
    const SEND: u64 = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
    const WRITE: u64 = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM;
    const ANSWERED: u64 = IBV_QP_EX_WITH_RDMA_READ
        | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
        | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;
    //= MW-09
    const LOCAL: u64 = IBV_QP_EX_WITH_LOCAL_INV | IBV_QP_EX_WITH_BIND_MW;
    match QpType::from_code(qp_type) {
        //= UD-01
        Some(QpType::Ud) => SEND,
        //= UC-01
        Some(QpType::Uc) => SEND | WRITE | LOCAL,
        //= XRC-01
        Some(QpType::XrcRecv) => 0,
        //= WRX-12
        Some(QpType::Rc | QpType::XrcSend) => {
            SEND | WRITE
                | ANSWERED
                | LOCAL
                | IBV_QP_EX_WITH_SEND_WITH_INV
                | IBV_QP_EX_WITH_ATOMIC_WRITE
                | IBV_QP_EX_WITH_FLUSH
        }
        //= PST-10
        Some(QpType::RawPacket) => IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_TSO,
        //= XRC-12
        _ => SEND | WRITE | ANSWERED | LOCAL | IBV_QP_EX_WITH_SEND_WITH_INV,
    }
}

/// Flags that there are, and that this device does not have.
const KNOWN_CREATE_FLAGS: u32 = IBV_QP_CREATE_SCATTER_FCS
    | IBV_QP_CREATE_CVLAN_STRIPPING
    | IBV_QP_CREATE_SOURCE_QPN
    | IBV_QP_CREATE_PCI_WRITE_END_PADDING;

/// Slot `create_qp_ex`.
//= WRX-01
pub(crate) unsafe extern "C" fn create_qp_ex(
    context: *mut ibv_context,
    init: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    ptr_verb(|| {
        // SAFETY: by contract NULL or valid.
        let init = unsafe { init.as_mut() }.ok_or(Errno::INVAL)?;
        // SAFETY: same contract.
        unsafe { create(context, init) }
    })
}

/// Makes a queue pair, and writes the granted sizes back to `init`.
///
/// # Errors
/// `EINVAL` for what nobody knows or is missing, `EOPNOTSUPP` for what is not offered, and what the emulator
/// says.
///
/// # Safety
/// `context`, and what `init` names, must be NULL or alive.
pub(crate) unsafe fn create(
    context: *mut ibv_context,
    init: &mut ibv_qp_init_attr_ex,
) -> Result<*mut ibv_qp, Errno> {
    // SAFETY: same contract.
    unsafe { ContextObject::borrow(context) }?;
    let members = init.comp_mask;
    let known = IBV_QP_INIT_ATTR_PD
        | IBV_QP_INIT_ATTR_XRCD
        | IBV_QP_INIT_ATTR_CREATE_FLAGS
        | IBV_QP_INIT_ATTR_MAX_TSO_HEADER
        | IBV_QP_INIT_ATTR_IND_TABLE
        | IBV_QP_INIT_ATTR_RX_HASH
        | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    if members & !known != 0 {
        let what = format!("comp_mask asks for {:#x} too", members & !known);
        return Err(Errno::OPNOTSUPP.because(not_offered(&what)));
    }
    let is_target = init.qp_type == IBV_QPT_XRC_RECV;
    let needed = if is_target {
        IBV_QP_INIT_ATTR_XRCD
    } else {
        IBV_QP_INIT_ATTR_PD
    };
    if members & needed == 0 {
        return Err(Errno::INVAL);
    }
    let flags = match members & IBV_QP_INIT_ATTR_CREATE_FLAGS {
        0 => 0,
        _ => init.create_flags,
    };
    //= MC-07
    let blocks_own = flags & IBV_QP_CREATE_BLOCK_SELF_MCAST_LB != 0;
    if blocks_own && init.qp_type != IBV_QPT_UD {
        let what = "IBV_QP_CREATE_BLOCK_SELF_MCAST_LB, which only datagram queue pairs have";
        return Err(Errno::INVAL.because(Reason::new(what, "")));
    }
    let others = flags & !IBV_QP_CREATE_BLOCK_SELF_MCAST_LB;
    if others != 0 {
        //= QPC-02
        let is_known = others & !KNOWN_CREATE_FLAGS == 0;
        let errno = if is_known {
            Errno::OPNOTSUPP
        } else {
            Errno::INVAL
        };
        let what = format!("create_flags are {:#x}", init.create_flags);
        return Err(errno.because(not_offered(&what)));
    }
    let with_table = members & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS != 0;
    let extra = init.send_ops_flags & !supported_ops(init.qp_type);
    if with_table && extra != 0 {
        let what = format!("send_ops_flags ask for {extra:#x} too");
        return Err(Errno::OPNOTSUPP.because(not_offered(&what)));
    }
    if is_target {
        // SAFETY: same contract.
        let qp = unsafe { qp::target(init.xrcd, init.qp_context, Xrcd::create_target) }?;
        init.cap = cap_to_c(&QpCap::default());
        return Ok(qp);
    }
    if members & IBV_QP_INIT_ATTR_IND_TABLE != 0 {
        // SAFETY: same contract.
        return unsafe { create_rss(init) };
    }
    let max_tso_header = max_tso_header(init)?;
    let mut short = ibv_qp_init_attr {
        qp_context: init.qp_context,
        send_cq: init.send_cq,
        recv_cq: init.recv_cq,
        srq: init.srq,
        cap: init.cap,
        qp_type: init.qp_type,
        sq_sig_all: init.sq_sig_all,
    };
    let table: Option<fn(&mut ibv_qp_ex)> = if with_table { Some(install) } else { None };
    // SAFETY: same contract.
    let qp = unsafe { qp::create(init.pd, &mut short, max_tso_header, table) }?;
    init.cap = short.cap;
    if blocks_own {
        // SAFETY: made just now, and nobody else has it.
        let state = unsafe { QpObject::borrow(qp.cast()) }?.inner();
        state.qp().block_own_multicast()?;
    }
    if with_table {
        // SAFETY: made just now, and nobody else has it.
        unsafe { QpObject::borrow(qp.cast())?.set_newer(wr_flush as *const c_void) };
    }
    Ok(qp)
}

/// A queue pair that spreads frames over the receive work queues of a table.
///
/// # Safety
/// What `init` names must be NULL or alive.
unsafe fn create_rss(init: &mut ibv_qp_init_attr_ex) -> Result<*mut ibv_qp, Errno> {
    let has_hash = init.comp_mask & IBV_QP_INIT_ATTR_RX_HASH != 0;
    if !has_hash || init.qp_type != IBV_QPT_RAW_PACKET {
        return Err(Errno::INVAL);
    }
    // SAFETY: same contract.
    let hash = unsafe { rss::rx_hash(&init.rx_hash_conf) }?;
    // SAFETY: same contract.
    let table = unsafe { TableObject::borrow(init.rwq_ind_tbl) }?.inner();
    // SAFETY: same contract.
    let qp = unsafe { qp::spreading(init.pd, init.qp_context, table, hash) }?;
    init.cap = cap_to_c(&QpCap::default());
    Ok(qp)
}

/// Longest header of requests that are cut into segments.
fn max_tso_header(init: &ibv_qp_init_attr_ex) -> Result<u16, Errno> {
    if init.comp_mask & IBV_QP_INIT_ATTR_MAX_TSO_HEADER == 0 || init.max_tso_header == 0 {
        return Ok(0);
    }
    if init.qp_type != IBV_QPT_RAW_PACKET {
        let what = "max_tso_header, which only raw packet queue pairs have";
        return Err(Errno::OPNOTSUPP.because(Reason::new(what, "")));
    }
    if init.max_tso_header > MAX_TSO_HEADER {
        let what = format!(
            "max_tso_header is {}, the limit is {MAX_TSO_HEADER}",
            init.max_tso_header
        );
        return Err(Errno::INVAL.because(Reason::new(what, "")));
    }
    Ok(init.max_tso_header)
}

/// Slot `open_qp`: another handle on an XRC target (XRC-11).
//= XRC-11
pub(crate) unsafe extern "C" fn open_qp(
    context: *mut ibv_context,
    attr: *mut ibv_qp_open_attr,
) -> *mut ibv_qp {
    ptr_verb(|| {
        // SAFETY: by contract an open context.
        unsafe { ContextObject::borrow(context) }?;
        // SAFETY: by contract NULL or readable.
        let attr = unsafe { ffi::read(attr) }?;
        let needed = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE;
        let is_complete = attr.comp_mask & needed == needed;
        if !is_complete
            || attr.comp_mask >= IBV_QP_OPEN_ATTR_RESERVED
            || attr.qp_type != IBV_QPT_XRC_RECV
        {
            return Err(Errno::INVAL);
        }
        let qp_context = if attr.comp_mask & IBV_QP_OPEN_ATTR_CONTEXT == 0 {
            std::ptr::null_mut()
        } else {
            attr.qp_context
        };
        let number = Qpn::new(attr.qp_num);
        let open = |xrcd: &Xrcd, cookie| xrcd.open_target(number, cookie);
        // SAFETY: by contract NULL or a live XRC domain.
        unsafe { qp::target(attr.xrcd, qp_context, open) }
    })
}

pub(crate) fn not_offered(what: &str) -> Reason {
    Reason::new(format!("{what}, which Rocade does not offer yet"), "")
}

/// Fills in the builders of all operations the device executes, also of those that were not asked for: a
/// real driver leaves them NULL.
//= WRX-13
pub(crate) fn install(c: &mut ibv_qp_ex) {
    c.wr_start = Some(wr_start);
    c.wr_complete = Some(wr_complete);
    c.wr_abort = Some(wr_abort);
    c.wr_send = Some(wr_send);
    c.wr_send_imm = Some(wr_send_imm);
    c.wr_rdma_write = Some(wr_rdma_write);
    c.wr_rdma_write_imm = Some(wr_rdma_write_imm);
    c.wr_rdma_read = Some(wr_rdma_read);
    c.wr_atomic_cmp_swp = Some(wr_atomic_cmp_swp);
    c.wr_atomic_fetch_add = Some(wr_atomic_fetch_add);
    c.wr_atomic_write = Some(wr_atomic_write);
    c.wr_send_inv = Some(wr_send_inv);
    c.wr_local_inv = Some(wr_local_inv);
    c.wr_bind_mw = Some(wr_bind_mw);
    c.wr_send_tso = Some(wr_send_tso);
    c.wr_set_ud_addr = Some(wr_set_ud_addr);
    c.wr_set_xrc_srqn = Some(wr_set_xrc_srqn);
    c.wr_set_sge = Some(wr_set_sge);
    c.wr_set_sge_list = Some(wr_set_sge_list);
    c.wr_set_inline_data = Some(wr_set_inline_data);
    c.wr_set_inline_data_list = Some(wr_set_inline_data_list);
}

/// The batch of a QP and the lock around it.
pub(crate) struct WrBatch {
    lock: RawMutex,
    staged: UnsafeCell<Staged>,
}

impl Default for WrBatch {
    fn default() -> Self {
        Self {
            lock: RawMutex::INIT,
            staged: UnsafeCell::default(),
        }
    }
}

/// Where the data of a staged request is.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Data {
    Sges(Range<usize>),
    Inline(Range<usize>),
}

#[derive(Debug)]
struct StagedWr {
    wr_id: u64,
    op: SendOp,
    flags: SendFlags,
    data: Data,
    /// Of a datagram.
    to: Option<Remote>,
    /// Of a request of an XRC initiator.
    srqn: Option<Srqn>,
    /// Of a request of a DC initiator.
    dct: Option<DcRemote>,
    /// Of one that is cut into segments.
    tso: Option<Box<Segments>>,
    /// Of one that changes an indirect memory key.
    change: Option<Box<KeyChange>>,
}

/// What `mlx5dv_wr_set_dc_addr` was given.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DcRemote {
    pub(crate) ah: *mut ibv_ah,
    pub(crate) dctn: u32,
    pub(crate) key: u64,
    pub(crate) stream: u16,
}

/// What `wr_send_tso` was given.
#[derive(Debug)]
struct Segments {
    header: Vec<u8>,
    mss: u16,
}

/// What `wr_set_ud_addr` was given.
#[derive(Debug, Clone, Copy)]
struct Remote {
    ah: *mut ibv_ah,
    qpn: u32,
    qkey: u32,
}

/// Work requests since `wr_start`; the vectors keep their room from batch to batch.
#[derive(Debug, Default)]
struct Staged {
    wrs: Vec<StagedWr>,
    sges: Vec<Sge>,
    inline: Vec<u8>,
    /// The first error, which `wr_complete` reports (WRX-06).
    error: Option<Errno>,
}

impl Staged {
    fn clear(&mut self) {
        self.wrs.clear();
        self.sges.clear();
        self.inline.clear();
        self.error = None;
    }

    fn fail(&mut self, error: Errno) {
        self.error.get_or_insert(error);
    }

    /// Begins a request without data: a request that gets none has length 0 (WRX-04).
    //= WRX-04
    fn begin(&mut self, wr_id: u64, flags: SendFlags, op: SendOp) {
        self.wrs.push(StagedWr {
            wr_id,
            op,
            flags,
            data: Data::Sges(0..0),
            to: None,
            srqn: None,
            dct: None,
            tso: None,
            change: None,
        });
    }

    /// The last request goes to this DC target.
    fn set_dct(&mut self, to: DcRemote) {
        match self.wrs.last_mut() {
            Some(wr) => wr.dct = Some(to),
            None => self.fail(Errno::INVAL),
        }
    }

    /// The last request is cut into segments.
    fn set_segments(&mut self, segments: Segments) {
        match self.wrs.last_mut() {
            Some(wr) => wr.tso = Some(Box::new(segments)),
            None => self.fail(Errno::INVAL),
        }
    }

    /// The last request goes to this shared receive queue.
    fn set_srqn(&mut self, srqn: u32) {
        match self.wrs.last_mut() {
            Some(wr) => wr.srqn = Some(Srqn::new(srqn)),
            None => self.fail(Errno::INVAL),
        }
    }

    /// The last request goes there.
    fn set_remote(&mut self, to: Remote) {
        match self.wrs.last_mut() {
            Some(wr) => wr.to = Some(to),
            None => self.fail(Errno::INVAL),
        }
    }

    fn set_data(&mut self, data: Data) {
        match self.wrs.last_mut() {
            Some(wr) => wr.data = data,
            // A setter without a builder before it.
            None => self.fail(Errno::INVAL),
        }
    }

    /// Room for `len` more bytes of inline data of the last request.
    fn inline_room(&mut self, start: usize, len: usize, max: usize) -> Option<&mut [u8]> {
        let filled = self.inline.len();
        if len > max.saturating_sub(filled - start) {
            self.fail(Errno::INVAL);
            return None;
        }
        self.inline.resize(filled + len, 0);
        self.inline.get_mut(filled..)
    }

    /// Hands everything to the emulator, or nothing (WRX-06).
    ///
    /// # Safety
    /// The address handles of datagrams must be alive.
    //= WRX-06
    unsafe fn post(&self, qp: &Qp) -> Result<(), Errno> {
        if let Some(error) = self.error {
            return Err(error);
        }
        //= WRX-11
        let mut poster = qp.send_queue();
        for wr in &self.wrs {
            // SAFETY: same contract.
            let posted = unsafe { self.post_one(&mut poster, wr) };
            //= WRX-08 WRX-09
            if let Err(error) = posted {
                poster.rollback();
                return Err(error);
            }
        }
        Ok(())
    }

    /// # Safety
    /// As for [`Self::post`].
    unsafe fn post_one(&self, poster: &mut SendPoster<'_>, wr: &StagedWr) -> Result<(), Errno> {
        let (sges, data, inline) = match &wr.data {
            Data::Sges(range) => {
                let sges = self.sges.get(range.clone()).unwrap_or(&[]);
                (sges, None, SendFlags::empty())
            }
            Data::Inline(range) => {
                let data = self.inline.get(range.clone()).unwrap_or(&[]);
                (&[][..], Some(data), SendFlags::INLINE)
            }
        };
        let request = SendWr {
            wr_id: wr.wr_id,
            op: wr.op,
            flags: wr.flags | inline,
            sges,
        };
        if let Some(change) = wr.change.as_deref() {
            return Ok(poster.push_with(&request, change.operands()?)?);
        }
        if let Some(to) = wr.dct {
            // SAFETY: same contract.
            let to = unsafe { post::target(to.ah, to.dctn, to.key, to.stream) }?;
            poster.push_dynamic(&request, to, data)?;
            return Ok(());
        }
        if let Some(Segments { header, mss }) = wr.tso.as_deref() {
            let tso = Tso { header, mss: *mss };
            return Ok(poster.push_tso(&request, tso, data)?);
        }
        match (wr.to, data) {
            (Some(Remote { ah, qpn, qkey }), data) => {
                // SAFETY: same contract.
                let to = unsafe { post::datagram(ah, qpn, qkey) }?;
                poster.push_datagram(&request, to, data)?;
            }
            (None, None) => poster.push(&request)?,
            (None, Some(data)) => poster.push_inline(&request, data)?,
        }
        if let Some(srqn) = wr.srqn {
            poster.aim(srqn);
        }
        Ok(())
    }
}

/// Runs `f` on the batch of `qp`; a builder cannot report anything, so a dead QP is ignored.
///
/// # Safety
/// `qp` must be a live extended QP whose batch the calling thread has locked by `wr_start`.
unsafe fn with_batch(qp: *mut ibv_qp_ex, f: impl FnOnce(&QpState, &mut Staged)) {
    ffi::void_verb(|| {
        // SAFETY: same contract.
        let state = unsafe { QpObject::borrow(qp) }?.inner();
        // SAFETY: the lock is held by this thread, so nobody else has a reference.
        f(state, unsafe { &mut *state.batch().staged.get() });
        Ok(())
    });
}

/// Begins a request with `wr_id` and `wr_flags` as they are in the C part now (WRX-02).
///
/// # Safety
/// As for [`with_batch`].
//= WRX-02
unsafe fn begin(qp: *mut ibv_qp_ex, op: SendOp) {
    // SAFETY: same contract; the program writes these members before it calls a builder.
    let (wr_id, flags) = unsafe { ((*qp).wr_id, (*qp).wr_flags) };
    let flags = SendFlags::from_bits_truncate(flags).difference(SendFlags::INLINE);
    // SAFETY: same contract.
    unsafe { with_batch(qp, |_, staged| staged.begin(wr_id, flags, op)) };
}

/// Begins a change of an indirect memory key, which `make` describes. The list is in the request, and has to be.
///
/// # Safety
/// As for [`with_batch`].
//= UMU-03
pub(crate) unsafe fn begin_change(
    qp: *mut ibv_qp_ex,
    make: impl FnOnce() -> Result<KeyChange, Errno>,
) {
    // SAFETY: same contract.
    let flags = unsafe { (*qp).wr_flags };
    // SAFETY: same contract.
    unsafe { begin(qp, SendOp::Fill) };
    let made = if SendFlags::from_bits_truncate(flags).contains(SendFlags::INLINE) {
        make()
    } else {
        Err(Errno::OPNOTSUPP)
    };
    // SAFETY: same contract.
    unsafe {
        with_batch(qp, |state, staged| match (made, staged.wrs.last_mut()) {
            (Ok(_), _) if !state.extras().umr => staged.fail(Errno::INVAL),
            (Ok(change), Some(wr)) => wr.change = Some(Box::new(change)),
            (Ok(_), None) => staged.fail(Errno::INVAL),
            (Err(error), _) => staged.fail(error),
        });
    }
}

/// Goes on with it.
///
/// # Safety
/// As for [`with_batch`].
//= UMU-07
pub(crate) unsafe fn go_on_with_change(
    qp: *mut ibv_qp_ex,
    set: impl FnOnce(&mut KeyChange) -> Result<(), Errno>,
) {
    // SAFETY: same contract.
    unsafe {
        with_batch(qp, |_, staged| {
            let change = staged
                .wrs
                .last_mut()
                .and_then(|wr| wr.change.as_deref_mut());
            let done = change.ok_or(Errno::INVAL).and_then(set);
            if let Err(error) = done {
                staged.fail(error);
            }
        });
    }
}

unsafe extern "C" fn wr_start(qp: *mut ibv_qp_ex) {
    ffi::void_verb(|| {
        // SAFETY: by contract a live extended QP.
        let batch = unsafe { QpObject::borrow(qp) }?.inner().batch();
        batch.lock.lock();
        // SAFETY: locked by this thread just now.
        unsafe { &mut *batch.staged.get() }.clear();
        Ok(())
    });
}

unsafe extern "C" fn wr_complete(qp: *mut ibv_qp_ex) -> c_int {
    ffi::int_data_verb(|| {
        // SAFETY: by contract a live extended QP.
        let state = unsafe { QpObject::borrow(qp) }?.inner();
        let batch = state.batch();
        // SAFETY: by contract this thread holds the lock, and the program's address handles are alive.
        let outcome = unsafe { (*batch.staged.get()).post(state.qp()) };
        // SAFETY: as above.
        unsafe { batch.lock.unlock() };
        outcome.map_err(|errno| errno.of_post(state.qp(), true))
    })
}

//= WRX-07
unsafe extern "C" fn wr_abort(qp: *mut ibv_qp_ex) {
    ffi::void_verb(|| {
        // SAFETY: by contract a live extended QP.
        let batch = unsafe { QpObject::borrow(qp) }?.inner().batch();
        // SAFETY: by contract this thread holds the lock; the next `wr_start` clears the batch.
        unsafe { batch.lock.unlock() };
        Ok(())
    });
}

unsafe extern "C" fn wr_send(qp: *mut ibv_qp_ex) {
    // SAFETY: by contract between `wr_start` and `wr_complete`.
    unsafe { begin(qp, SendOp::Send { imm: None }) };
}

unsafe extern "C" fn wr_send_imm(qp: *mut ibv_qp_ex, imm_data: u32) {
    // SAFETY: by contract between `wr_start` and `wr_complete`.
    unsafe {
        begin(
            qp,
            SendOp::Send {
                imm: Some(imm_data.to_ne_bytes()),
            },
        )
    };
}

unsafe extern "C" fn wr_send_inv(qp: *mut ibv_qp_ex, invalidate_rkey: u32) {
    let rkey = Rkey::new(invalidate_rkey);
    // SAFETY: by contract between `wr_start` and `wr_complete`.
    unsafe { begin(qp, SendOp::SendInv { rkey }) };
}

unsafe extern "C" fn wr_local_inv(qp: *mut ibv_qp_ex, invalidate_rkey: u32) {
    let rkey = Rkey::new(invalidate_rkey);
    // SAFETY: by contract between `wr_start` and `wr_complete`.
    unsafe { begin(qp, SendOp::Invalidate { rkey }) };
}

unsafe extern "C" fn wr_bind_mw(
    qp: *mut ibv_qp_ex,
    mw: *mut ibv_mw,
    rkey: u32,
    bind_info: *const ibv_mw_bind_info,
) {
    // SAFETY: by contract NULL or readable.
    let info = unsafe { bind_info.as_ref() }.ok_or(Errno::INVAL);
    // SAFETY: by contract window and region are live.
    let op = info.and_then(|info| unsafe { mw::bind_operation(mw, rkey, info) });
    match op {
        // SAFETY: by contract between `wr_start` and `wr_complete`.
        Ok(op) => unsafe { begin(qp, op) },
        // SAFETY: as above.
        Err(error) => unsafe { with_batch(qp, |_, staged| staged.fail(error)) },
    }
}

unsafe extern "C" fn wr_rdma_write(qp: *mut ibv_qp_ex, rkey: u32, va: u64) {
    // SAFETY: by contract between `wr_start` and `wr_complete`.
    unsafe {
        begin(
            qp,
            SendOp::Write {
                va,
                rkey: Rkey::new(rkey),
                imm: None,
            },
        )
    };
}

unsafe extern "C" fn wr_rdma_write_imm(qp: *mut ibv_qp_ex, rkey: u32, va: u64, imm_data: u32) {
    let imm = Some(imm_data.to_ne_bytes());
    // SAFETY: by contract between `wr_start` and `wr_complete`.
    unsafe {
        begin(
            qp,
            SendOp::Write {
                va,
                rkey: Rkey::new(rkey),
                imm,
            },
        )
    };
}

unsafe extern "C" fn wr_rdma_read(qp: *mut ibv_qp_ex, rkey: u32, va: u64) {
    // SAFETY: by contract between `wr_start` and `wr_complete`.
    unsafe {
        begin(
            qp,
            SendOp::Read {
                va,
                rkey: Rkey::new(rkey),
            },
        )
    };
}

unsafe extern "C" fn wr_atomic_cmp_swp(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    va: u64,
    compare: u64,
    swap: u64,
) {
    // SAFETY: by contract between `wr_start` and `wr_complete`.
    unsafe {
        begin(
            qp,
            SendOp::CmpSwap {
                va,
                rkey: Rkey::new(rkey),
                compare,
                swap,
            },
        )
    };
}

unsafe extern "C" fn wr_atomic_fetch_add(qp: *mut ibv_qp_ex, rkey: u32, va: u64, add: u64) {
    // SAFETY: by contract between `wr_start` and `wr_complete`.
    unsafe {
        begin(
            qp,
            SendOp::FetchAdd {
                va,
                rkey: Rkey::new(rkey),
                add,
            },
        )
    };
}

/// Copies the 8 bytes at once.
//= WRX-12
unsafe extern "C" fn wr_atomic_write(qp: *mut ibv_qp_ex, rkey: u32, va: u64, bytes: *const c_void) {
    const LEN: usize = 8;
    let rkey = Rkey::new(rkey);
    // SAFETY: by contract between `wr_start` and `wr_complete`.
    unsafe { begin(qp, SendOp::AtomicWrite { va, rkey }) };
    // SAFETY: as above.
    unsafe {
        with_batch(qp, |_, staged| {
            let start = staged.inline.len();
            if bytes.is_null() {
                return staged.fail(Errno::INVAL);
            }
            let Some(room) = staged.inline_room(start, LEN, LEN) else {
                return;
            };
            // SAFETY: by contract 8 bytes are readable; `room` is ours.
            post::copy_in(bytes.expose_provenance(), room);
            staged.set_data(Data::Inline(start..start + LEN));
        })
    };
}

/// `wr_flush` of newer headers: what `placement` says, of a range or with `level` 1 of the whole region.
//= WRX-12
unsafe extern "C" fn wr_flush(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    va: u64,
    len: usize,
    placement: u8,
    level: u8,
) {
    let feth = u32::from(placement & 0x0f) | u32::from(level & 3) << 4;
    let is_wrong = placement == 0 || placement > 3 || level > 1 || len >= 1 << 31;
    let op = SendOp::Flush {
        va,
        rkey: Rkey::new(rkey),
        len: u32::try_from(len).unwrap_or(0),
        feth: Feth::from_raw(feth),
    };
    // SAFETY: by contract between `wr_start` and `wr_complete`.
    unsafe { begin(qp, op) };
    if is_wrong {
        // SAFETY: as above.
        unsafe { with_batch(qp, |_, staged| staged.fail(Errno::INVAL)) };
    }
}

/// Copies the header at once, as inline data is.
unsafe extern "C" fn wr_send_tso(qp: *mut ibv_qp_ex, hdr: *mut c_void, hdr_sz: u16, mss: u16) {
    // SAFETY: by contract between `wr_start` and `wr_complete`.
    unsafe { begin(qp, SendOp::Send { imm: None }) };
    // SAFETY: as above.
    unsafe {
        with_batch(qp, |state, staged| {
            // SAFETY: by contract NULL, or readable for its length.
            match post::tso_header(state, hdr, hdr_sz) {
                Ok(header) => staged.set_segments(Segments { header, mss }),
                Err(error) => staged.fail(error),
            }
        });
    }
}

//= WRX-03
unsafe extern "C" fn wr_set_ud_addr(qp: *mut ibv_qp_ex, ah: *mut ibv_ah, qpn: u32, qkey: u32) {
    // SAFETY: by contract between `wr_start` and `wr_complete`.
    unsafe { with_batch(qp, |_, staged| staged.set_remote(Remote { ah, qpn, qkey })) };
}

/// The request that the batch has got last goes to this DC target.
///
/// # Safety
/// As for [`with_batch`].
pub(crate) unsafe fn set_dc_remote(qp: *mut ibv_qp_ex, to: DcRemote) {
    // SAFETY: same contract.
    unsafe { with_batch(qp, |_, staged| staged.set_dct(to)) };
}

unsafe extern "C" fn wr_set_xrc_srqn(qp: *mut ibv_qp_ex, srqn: u32) {
    // SAFETY: by contract between `wr_start` and `wr_complete`.
    unsafe { with_batch(qp, |_, staged| staged.set_srqn(srqn)) };
}

unsafe extern "C" fn wr_set_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    // SAFETY: by contract between `wr_start` and `wr_complete`.
    unsafe {
        with_batch(qp, |_, staged| {
            let start = staged.sges.len();
            staged.sges.push(Sge {
                addr,
                len: length,
                lkey: Lkey::new(lkey),
            });
            staged.set_data(Data::Sges(start..start + 1));
        });
    }
}

unsafe extern "C" fn wr_set_sge_list(qp: *mut ibv_qp_ex, num_sge: usize, list: *const ibv_sge) {
    // SAFETY: by contract between `wr_start` and `wr_complete`.
    unsafe {
        with_batch(qp, |_, staged| {
            let count = c_int::try_from(num_sge).unwrap_or(c_int::MAX);
            let start = staged.sges.len();
            // SAFETY: by contract the list has `num_sge` entries.
            let copied = post::with_sges(list, count, |sges| {
                staged.sges.extend_from_slice(sges);
                Ok(())
            });
            match copied {
                Ok(()) => staged.set_data(Data::Sges(start..start + num_sge)),
                Err(error) => staged.fail(error),
            }
        });
    }
}

unsafe extern "C" fn wr_set_inline_data(qp: *mut ibv_qp_ex, addr: *mut c_void, length: usize) {
    let buffer = ibv_data_buf { addr, length };
    // SAFETY: by contract between `wr_start` and `wr_complete`, and the buffer is readable.
    unsafe { wr_set_inline_data_list(qp, 1, &raw const buffer) };
}

/// Copies at once (WRX-05).
//= WRX-05
unsafe extern "C" fn wr_set_inline_data_list(
    qp: *mut ibv_qp_ex,
    num_buf: usize,
    list: *const ibv_data_buf,
) {
    // SAFETY: by contract between `wr_start` and `wr_complete`.
    unsafe {
        with_batch(qp, |state, staged| {
            if list.is_null() && num_buf > 0 {
                return staged.fail(Errno::INVAL);
            }
            let start = staged.inline.len();
            for index in 0..num_buf {
                // SAFETY: by contract the list has `num_buf` entries.
                let buffer = list.add(index).read();
                let max = state.inline_limits().bytes;
                let Some(room) = staged.inline_room(start, buffer.length, max) else {
                    return;
                };
                // SAFETY: by contract the buffer is readable; `room` is ours.
                post::copy_in(buffer.addr.expose_provenance(), room);
            }
            let end = staged.inline.len();
            staged.set_data(Data::Inline(start..end));
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_error_stays() {
        let mut staged = Staged::default();
        staged.set_data(Data::Sges(0..0));
        staged.fail(Errno::NODEV);
        assert_eq!(staged.error, Some(Errno::INVAL));
        staged.clear();
        assert_eq!(staged.error, None);
    }

    #[test]
    fn inline_data_of_one_request_is_bounded_and_that_of_the_next_starts_anew() {
        let mut staged = Staged::default();
        staged.begin(1, SendFlags::empty(), SendOp::Send { imm: None });
        assert_eq!(staged.inline_room(0, 6, 8).map(|room| room.len()), Some(6));
        assert!(staged.inline_room(0, 3, 8).is_none());
        assert_eq!(staged.error, Some(Errno::INVAL));
        staged.begin(2, SendFlags::empty(), SendOp::Send { imm: None });
        assert_eq!(staged.inline_room(6, 8, 8).map(|room| room.len()), Some(8));
    }
}
