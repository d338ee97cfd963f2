//! Creates extended QPs, whose work requests are built by function calls (`wr_build.rs`), and opens
//! XRC targets.

use std::ffi::c_void;

use rocade_abi::{
    IBV_QP_CREATE_BLOCK_SELF_MCAST_LB, IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP,
    IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD, IBV_QP_EX_WITH_ATOMIC_WRITE, IBV_QP_EX_WITH_BIND_MW,
    IBV_QP_EX_WITH_FLUSH, IBV_QP_EX_WITH_LOCAL_INV, IBV_QP_EX_WITH_RDMA_READ,
    IBV_QP_EX_WITH_RDMA_WRITE, IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM, IBV_QP_EX_WITH_SEND,
    IBV_QP_EX_WITH_SEND_WITH_IMM, IBV_QP_EX_WITH_SEND_WITH_INV, IBV_QP_EX_WITH_TSO,
    IBV_QP_INIT_ATTR_CREATE_FLAGS, IBV_QP_INIT_ATTR_IND_TABLE, IBV_QP_INIT_ATTR_MAX_TSO_HEADER,
    IBV_QP_INIT_ATTR_PD, IBV_QP_INIT_ATTR_RX_HASH, IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
    IBV_QP_INIT_ATTR_XRCD, IBV_QP_OPEN_ATTR_CONTEXT, IBV_QP_OPEN_ATTR_NUM,
    IBV_QP_OPEN_ATTR_RESERVED, IBV_QP_OPEN_ATTR_TYPE, IBV_QP_OPEN_ATTR_XRCD, IBV_QPT_RAW_PACKET,
    IBV_QPT_UD, IBV_QPT_XRC_RECV, ibv_context, ibv_qp, ibv_qp_ex, ibv_qp_init_attr,
    ibv_qp_init_attr_ex, ibv_qp_open_attr,
};
use rocade_emulator::{MAX_TSO_HEADER, QpCap, QpType, Qpn, Xrcd};

use crate::{
    context::ContextObject,
    diagnostics::Reason,
    ffi::{self, Errno, ptr_verb},
    qp::{self, QpObject},
    qp_attr::cap_to_c,
    rss::{self, TableObject},
    wr_build,
};

/// Returns the operations of the builder that a QP of this type executes.
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

/// Context op `create_qp_ex`.
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

/// Creates a QP, and writes the granted sizes back to `init`.
///
/// # Errors
/// `EINVAL` for missing members, `EOPNOTSUPP` for unsupported or unknown ones, and any error of the
/// emulator.
///
/// # Safety
/// `context` and the objects that `init` names must be NULL or alive.
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
        let what = format!("comp_mask has the unsupported bits {:#x}", members & !known);
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
        return Err(Errno::OPNOTSUPP.because(Reason::new(what, "")));
    }
    //= QPC-02
    let others = flags & !IBV_QP_CREATE_BLOCK_SELF_MCAST_LB;
    if others != 0 {
        let what = format!("create_flags are {:#x}", init.create_flags);
        return Err(Errno::OPNOTSUPP.because(not_offered(&what)));
    }
    let with_table = members & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS != 0;
    let extra = init.send_ops_flags & !supported_ops(init.qp_type);
    if with_table && extra != 0 {
        let what = format!("send_ops_flags have the unsupported bits {extra:#x}");
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
    let table: Option<fn(&mut ibv_qp_ex)> = if with_table {
        Some(wr_build::install)
    } else {
        None
    };
    // SAFETY: same contract.
    let qp = unsafe { qp::create(init.pd, &mut short, max_tso_header, table) }?;
    init.cap = short.cap;
    if blocks_own {
        // SAFETY: created above, and only this thread has it.
        let state = unsafe { QpObject::borrow(qp.cast()) }?.inner();
        state.qp().block_own_multicast()?;
    }
    if with_table {
        // SAFETY: created above, and only this thread has it.
        unsafe { QpObject::borrow(qp.cast())?.set_newer_op(wr_build::wr_flush as *const c_void) };
    }
    Ok(qp)
}

/// Creates an RSS QP, which spreads frames over the WQs of a table.
///
/// # Safety
/// The objects that `init` names must be NULL or alive.
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
    let qp = unsafe { qp::create_rss(init.pd, init.qp_context, table, hash) }?;
    init.cap = cap_to_c(&QpCap::default());
    Ok(qp)
}

/// Returns the longest header of a TSO request in bytes.
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

/// Context op `open_qp`: opens another handle on an XRC target.
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
    Reason::new(format!("{what}, which Rocade does not support"), "")
}
