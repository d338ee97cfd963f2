//! Receive work queues, indirection tables of them, and RSS QPs.

use std::{ffi::c_int, ptr, sync::Arc};

use rocade_abi::{
    ibv_context, ibv_recv_wr, ibv_rwq_ind_table, ibv_rwq_ind_table_init_attr, ibv_rx_hash_conf,
    ibv_wq, ibv_wq_attr, ibv_wq_init_attr,
};
use rocade_emulator::{RSS_KEY_LEN, RxHash, Wq, WqState};

use crate::{
    context::ContextObject,
    cq,
    ffi::{self, Errno, int_data_verb, int_verb, ptr_verb},
    handle::CHandle,
    pd_mr::{PdObject, PdRef},
    post::post_receives,
};

type WqObject = CHandle<ibv_wq, WqStateOfC>;
/// An indirection table of receive WQs.
pub(crate) type TableObject = CHandle<ibv_rwq_ind_table, TableState>;

/// The Rust state of an `ibv_wq`.
struct WqStateOfC {
    wq: Wq,
    _context: Arc<ContextObject>,
    _pd: PdRef,
}

/// The Rust state of an `ibv_rwq_ind_table`.
pub(crate) struct TableState {
    queues: Vec<Wq>,
    pd_ref: PdRef,
    _context: Arc<ContextObject>,
}

impl TableState {
    /// Returns the table's WQs.
    pub(crate) fn queues(&self) -> &[Wq] {
        &self.queues
    }

    /// Returns a reference for a QP that is created with this table.
    pub(crate) fn pd_ref(&self) -> PdRef {
        self.pd_ref.clone()
    }
}

/// `IBV_WQT_RQ`, `IBV_WQ_ATTR_STATE`, `IBV_WQ_ATTR_CURR_STATE`.
const RECEIVE: u32 = 0;
const ATTR_STATE: u32 = 1;
const ATTR_CURRENT: u32 = 2;
/// `IBV_RX_HASH_FUNC_TOEPLITZ`.
pub(crate) const TOEPLITZ: u8 = 1;
/// The binary logarithm of the largest table size.
pub(crate) const MAX_LOG_TABLE: u32 = 9;

/// Context op `create_wq`.
pub(crate) unsafe extern "C" fn create_wq(
    context: *mut ibv_context,
    init: *mut ibv_wq_init_attr,
) -> *mut ibv_wq {
    ptr_verb(|| {
        // SAFETY: by contract an open context.
        let context = unsafe { ContextObject::share(context) }?;
        // SAFETY: by contract NULL or valid.
        let init = unsafe { init.as_mut() }.ok_or(Errno::INVAL)?;
        if init.wq_type != RECEIVE {
            return Err(Errno::INVAL);
        }
        if init.comp_mask != 0 && init.create_flags != 0 {
            return Err(Errno::OPNOTSUPP);
        }
        // SAFETY: by contract NULL or a live domain.
        let pd = unsafe { PdObject::borrow(init.pd) }?.inner();
        // SAFETY: by contract NULL or a live queue.
        let cq = unsafe { cq::optional(init.cq) }?.ok_or(Errno::INVAL)?;
        let wq = pd.pd().create_wq(&cq, init.max_wr, init.max_sge)?;
        WqObject::create(|_| {
            // SAFETY: the structure consists of integers, pointers, optional function pointers and
            // pthread objects, for all of which zero bytes are a value.
            let mut c: ibv_wq = unsafe { std::mem::zeroed() };
            c.context = context.as_c();
            c.wq_context = init.wq_context;
            c.pd = init.pd;
            c.cq = init.cq;
            c.wq_num = wq.number().get();
            c.handle = c.wq_num;
            c.wq_type = init.wq_type;
            c.post_recv = Some(post_wq_recv);
            let state = WqStateOfC {
                wq,
                _context: context,
                _pd: pd.pd_ref(),
            };
            Ok((c, state))
        })
    })
}

/// Context op `modify_wq`.
pub(crate) unsafe extern "C" fn modify_wq(wq: *mut ibv_wq, attr: *mut ibv_wq_attr) -> c_int {
    int_verb(|| {
        // SAFETY: by contract a live queue.
        let object = unsafe { WqObject::borrow(wq) }?;
        // SAFETY: by contract NULL or readable.
        let attr = unsafe { ffi::read(attr) }?;
        if attr.attr_mask & !(ATTR_STATE | ATTR_CURRENT) != 0 {
            return Err(Errno::OPNOTSUPP);
        }
        let queue = &object.inner().wq;
        if attr.attr_mask & ATTR_CURRENT != 0 && attr.curr_wq_state != queue.state() as u32 {
            return Err(Errno::INVAL);
        }
        if attr.attr_mask & ATTR_STATE != 0 {
            let to = match attr.wq_state {
                0 => WqState::Reset,
                1 => WqState::Rdy,
                2 => WqState::Err,
                _ => return Err(Errno::INVAL),
            };
            queue.modify(to)?;
            // SAFETY: the C part is alive. The program only reads this member.
            unsafe { (*object.c()).state = attr.wq_state };
        }
        Ok(())
    })
}

/// Context op `destroy_wq`.
pub(crate) unsafe extern "C" fn destroy_wq(wq: *mut ibv_wq) -> c_int {
    // SAFETY: by contract a live queue that is not used afterwards.
    int_verb(|| unsafe { WqObject::destroy(wq, |state| Ok(state.wq.destroy()?)) })
}

/// Op `post_recv` of a WQ.
unsafe extern "C" fn post_wq_recv(
    wq: *mut ibv_wq,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    int_data_verb(|| {
        // SAFETY: by contract a live queue.
        let state = unsafe { WqObject::borrow(wq) }?.inner();
        let mut poster = state.wq.recv_queue();
        // SAFETY: by contract readable work requests, and lists with as many entries as they say.
        unsafe { post_receives(wr, bad_wr, |wr_id, sges| poster.push(wr_id, sges)) }
    })
}

/// Context op `create_rwq_ind_table`.
pub(crate) unsafe extern "C" fn create_rwq_ind_table(
    context: *mut ibv_context,
    init: *mut ibv_rwq_ind_table_init_attr,
) -> *mut ibv_rwq_ind_table {
    ptr_verb(|| {
        // SAFETY: by contract an open context.
        let context = unsafe { ContextObject::share(context) }?;
        // SAFETY: by contract NULL or readable.
        let init = unsafe { ffi::read(init) }?;
        if init.comp_mask != 0 || init.log_ind_tbl_size > MAX_LOG_TABLE || init.ind_tbl.is_null() {
            return Err(Errno::INVAL);
        }
        let mut queues = Vec::new();
        for index in 0..1usize << init.log_ind_tbl_size {
            // SAFETY: by contract there are as many entries.
            let entry = unsafe { init.ind_tbl.add(index).read() };
            // SAFETY: by contract NULL or a live queue.
            queues.push(unsafe { WqObject::borrow(entry) }?.inner().wq.clone());
        }
        queues.iter().for_each(|queue| queue.set_in_use(true));
        TableObject::create(|_| {
            let number = queues.first().map_or(0, |queue| queue.number().get());
            let number = ffi::to_int(number);
            let c = ibv_rwq_ind_table {
                context: context.as_c(),
                ind_tbl_handle: number,
                ind_tbl_num: number,
                comp_mask: 0,
            };
            let state = TableState {
                queues,
                pd_ref: PdRef::default(),
                _context: context,
            };
            Ok((c, state))
        })
    })
}

/// Context op `destroy_rwq_ind_table`: fails with `EBUSY` while a QP uses the table.
pub(crate) unsafe extern "C" fn destroy_rwq_ind_table(table: *mut ibv_rwq_ind_table) -> c_int {
    int_verb(|| {
        // SAFETY: by contract a live table that is not used afterwards.
        unsafe {
            TableObject::destroy(table, |state| {
                state
                    .pd_ref
                    .check("table of work queues, by a queue pair")?;
                state
                    .queues
                    .iter()
                    .for_each(|queue| queue.set_in_use(false));
                Ok(())
            })
        }
    })
}

/// Converts the hash configuration of a program.
///
/// # Errors
/// `EINVAL` for another function than Toeplitz, or a key of another length.
///
/// # Safety
/// The key must be NULL or readable for its length.
pub(crate) unsafe fn rx_hash(conf: &ibv_rx_hash_conf) -> Result<RxHash, Errno> {
    let is_whole = usize::from(conf.rx_hash_key_len) == RSS_KEY_LEN && !conf.rx_hash_key.is_null();
    if conf.rx_hash_function != TOEPLITZ || !is_whole {
        return Err(Errno::INVAL);
    }
    let mut key = [0; RSS_KEY_LEN];
    // SAFETY: by contract readable. The copy is local and has the same length.
    unsafe { ptr::copy_nonoverlapping(conf.rx_hash_key, key.as_mut_ptr(), RSS_KEY_LEN) };
    let fields = u32::try_from(conf.rx_hash_fields_mask).map_err(|_| Errno::OPNOTSUPP)?;
    Ok(RxHash { key, fields })
}
