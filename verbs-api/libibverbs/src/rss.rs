//! Receive work queues, indirection tables of them, and RSS QPs.

use std::{ffi::c_int, sync::Arc};

use rocade_abi::{
    ibv_context, ibv_qp_init_attr_ex, ibv_recv_wr, ibv_rwq_ind_table, ibv_rwq_ind_table_init_attr,
    ibv_wq, ibv_wq_attr, ibv_wq_init_attr,
};
use rocade_emulator::{RSS_KEY_LEN, RxHash, Wq, WqState};

use crate::{
    args::{Chain, Handle, In, InOut, Last, Out, View, member, slot, zeroed},
    context::ContextObject,
    cq,
    ffi::{self, Errno, int_data_verb, int_verb, ptr_verb},
    handle::{CHandle, objects},
    pd_mr::PdRef,
    post::post_receives,
};

type WqObject = CHandle<ibv_wq, WqStateOfC>;
/// An indirection table of receive WQs.
pub(crate) type TableObject = CHandle<ibv_rwq_ind_table, TableState>;

objects! {
    ibv_wq: ibv_wq, WqStateOfC;
    ibv_rwq_ind_table: ibv_rwq_ind_table, TableState;
}

/// The Rust state of an `ibv_wq`.
pub(crate) struct WqStateOfC {
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
pub(crate) extern "C" fn create_wq(
    context: Handle<'_, ibv_context>,
    init: InOut<'_, ibv_wq_init_attr>,
) -> *mut ibv_wq {
    ptr_verb(|| {
        let context = context.share()?;
        let init = init.read()?;
        if init.wq_type != RECEIVE {
            return Err(Errno::INVAL);
        }
        if init.comp_mask != 0 && init.create_flags != 0 {
            return Err(Errno::OPNOTSUPP);
        }
        let pd = init.pd().get()?.inner();
        let cq = cq::optional(init.cq())?.ok_or(Errno::INVAL)?;
        let wq = pd.pd().create_wq(&cq, init.max_wr, init.max_sge)?;
        WqObject::create(|_| {
            let mut c: ibv_wq = zeroed();
            c.context = context.as_c();
            c.wq_context = init.wq_context;
            c.pd = init.pd;
            c.cq = init.cq;
            c.wq_num = wq.number().get();
            c.handle = c.wq_num;
            c.wq_type = init.wq_type;
            c.post_recv = Some(slot::of_3(post_wq_recv));
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
pub(crate) extern "C" fn modify_wq(wq: Handle<'_, ibv_wq>, attr: In<'_, ibv_wq_attr>) -> c_int {
    int_verb(|| {
        let object = wq.get()?;
        let attr = attr.read()?;
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
            object.set_member(member!(ibv_wq, state), attr.wq_state);
        }
        Ok(())
    })
}

/// Context op `destroy_wq`.
pub(crate) extern "C" fn destroy_wq(wq: Last<'_, ibv_wq>) -> c_int {
    int_verb(|| wq.destroy(|state| Ok(state.wq.destroy()?)))
}

/// Op `post_recv` of a WQ.
extern "C" fn post_wq_recv(
    wq: Handle<'_, ibv_wq>,
    wr: Chain<'_, ibv_recv_wr>,
    bad_wr: Out<'_, *mut ibv_recv_wr>,
) -> c_int {
    int_data_verb(|| {
        let state = wq.get()?.inner();
        let mut poster = state.wq.recv_queue();
        post_receives(wr, bad_wr, |wr_id, sges| poster.push(wr_id, sges))
    })
}

/// Context op `create_rwq_ind_table`.
pub(crate) extern "C" fn create_rwq_ind_table(
    context: Handle<'_, ibv_context>,
    init: In<'_, ibv_rwq_ind_table_init_attr>,
) -> *mut ibv_rwq_ind_table {
    ptr_verb(|| {
        let context = context.share()?;
        let init = init.read()?;
        if init.comp_mask != 0 || init.log_ind_tbl_size > MAX_LOG_TABLE || init.ind_tbl.is_null() {
            return Err(Errno::INVAL);
        }
        let queues: Result<Vec<Wq>, Errno> = init
            .queues()
            .map(|queue| Ok(queue.get()?.inner().wq.clone()))
            .collect();
        let queues = queues?;
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
pub(crate) extern "C" fn destroy_rwq_ind_table(table: Last<'_, ibv_rwq_ind_table>) -> c_int {
    int_verb(|| {
        table.destroy(|state| {
            state
                .pd_ref
                .check("table of work queues, by a queue pair")?;
            state
                .queues
                .iter()
                .for_each(|queue| queue.set_in_use(false));
            Ok(())
        })
    })
}

/// Converts the hash configuration of a program.
///
/// # Errors
/// `EINVAL` for another function than Toeplitz, or a key of another length.
pub(crate) fn rx_hash(init: &View<'_, ibv_qp_init_attr_ex>) -> Result<RxHash, Errno> {
    let conf = &init.rx_hash_conf;
    let source = init.rx_hash_key();
    let is_whole = source.len() == RSS_KEY_LEN && !source.is_null();
    if conf.rx_hash_function != TOEPLITZ || !is_whole {
        return Err(Errno::INVAL);
    }
    let mut key = [0; RSS_KEY_LEN];
    source.copy_to(&mut key);
    let fields = u32::try_from(conf.rx_hash_fields_mask).map_err(|_| Errno::OPNOTSUPP)?;
    Ok(RxHash { key, fields })
}
