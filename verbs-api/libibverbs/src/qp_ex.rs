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
    IBV_QPT_UD, IBV_QPT_XRC_RECV, ibv_context, ibv_qp, ibv_qp_cap, ibv_qp_ex, ibv_qp_init_attr_ex,
    ibv_qp_open_attr,
};
use rocade_emulator::{MAX_TSO_HEADER, QpCap, QpType, Qpn, Xrcd};

use crate::{
    args::{Handle, In, InOut, New, Out, View, slot},
    diagnostics::Reason,
    ffi::{Errno, ptr_verb},
    qp,
    qp_attr::cap_to_c,
    rss::{self},
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
        Some(QpType::DcInitiator | QpType::DcTarget) | None => {
            SEND | WRITE | ANSWERED | LOCAL | IBV_QP_EX_WITH_SEND_WITH_INV
        }
    }
}

/// Context op `create_qp_ex`.
//= WRX-01
pub(crate) extern "C" fn create_qp_ex(
    context: Handle<'_, ibv_context>,
    init: InOut<'_, ibv_qp_init_attr_ex>,
) -> *mut ibv_qp {
    ptr_verb(|| Ok(create(context, &init.read_known()?, init.cap())?.into_c()))
}

/// Creates a QP, and writes the granted sizes to `granted`.
///
/// # Errors
/// `EINVAL` for missing members, `EOPNOTSUPP` for unsupported or unknown ones, and any error of the
/// emulator.
pub(crate) fn create(
    context: Handle<'_, ibv_context>,
    init: &View<'_, ibv_qp_init_attr_ex>,
    granted: Out<'_, ibv_qp_cap>,
) -> Result<New<ibv_qp>, Errno> {
    context.get()?;
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
        let qp = qp::target(init.xrcd(), init.qp_context, Xrcd::create_target)?;
        granted.write(cap_to_c(&QpCap::default()))?;
        return Ok(qp);
    }
    if members & IBV_QP_INIT_ATTR_IND_TABLE != 0 {
        return create_rss(init, granted);
    }
    let max_tso_header = max_tso_header(init)?;
    let table: Option<fn(&mut ibv_qp_ex)> = if with_table {
        Some(wr_build::install)
    } else {
        None
    };
    let qp = qp::create(init.pd(), &init.short(), granted, max_tso_header, table)?;
    if blocks_own {
        qp.get()?.inner().qp().block_own_multicast()?;
    }
    if with_table {
        let flush = slot::of_6(wr_build::wr_flush) as *const c_void;
        // SAFETY: created above, and only this thread has it.
        unsafe { qp.get()?.set_newer_op(flush) };
    }
    Ok(qp)
}

/// Creates an RSS QP, which spreads frames over the WQs of a table.
fn create_rss(
    init: &View<'_, ibv_qp_init_attr_ex>,
    granted: Out<'_, ibv_qp_cap>,
) -> Result<New<ibv_qp>, Errno> {
    let has_hash = init.comp_mask & IBV_QP_INIT_ATTR_RX_HASH != 0;
    if !has_hash || init.qp_type != IBV_QPT_RAW_PACKET {
        return Err(Errno::INVAL);
    }
    let hash = rss::rx_hash(init)?;
    let table = init.rwq_ind_tbl().get()?.inner();
    let qp = qp::create_rss(init.pd(), init.qp_context, table, hash)?;
    granted.write(cap_to_c(&QpCap::default()))?;
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
pub(crate) extern "C" fn open_qp(
    context: Handle<'_, ibv_context>,
    attr: In<'_, ibv_qp_open_attr>,
) -> *mut ibv_qp {
    ptr_verb(|| {
        context.get()?;
        let attr = attr.read()?;
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
        Ok(qp::target(attr.xrcd(), qp_context, open)?.into_c())
    })
}

pub(crate) fn not_offered(what: &str) -> Reason {
    Reason::new(format!("{what}, which Rocade does not support"), "")
}
