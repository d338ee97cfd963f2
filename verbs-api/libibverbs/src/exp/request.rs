//! The operands of experimental work requests.

use rocade_abi::{
    IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_BIND_MW, IBV_WR_LOCAL_INV,
    IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, IBV_WR_SEND_WITH_INV,
    exp::send::{
        IBV_EXP_UMR_REPEAT, IBV_EXP_WR_CQE_WAIT, IBV_EXP_WR_EXT_MASKED_ATOMIC_CMP_AND_SWP,
        IBV_EXP_WR_EXT_MASKED_ATOMIC_FETCH_AND_ADD, IBV_EXP_WR_NOP, IBV_EXP_WR_RECV_ENABLE,
        IBV_EXP_WR_SEND_ENABLE, IBV_EXP_WR_UMR_FILL, IBV_EXP_WR_UMR_INVALIDATE, ibv_exp_cmp_swap,
        ibv_exp_fetch_add, ibv_exp_mem_region, ibv_exp_mem_repeat_block,
        ibv_exp_mkey_list_container, ibv_exp_send_wr, ibv_exp_send_wr_bind_mw,
        ibv_exp_send_wr_masked_atomics, ibv_exp_send_wr_umr,
    },
    ibv_ah, ibv_cq, ibv_mr, ibv_qp, ibv_send_wr, ibv_send_wr_qp_type, ibv_send_wr_tail, ibv_sge,
};

use super::send;
use crate::args::{Buffer, Chained, FromC, Handle, List, Request, View, members};

impl Chained for ibv_exp_send_wr {
    #[inline]
    fn next(&self) -> *mut Self {
        self.next
    }
}

members! {
    ibv_exp_send_wr_umr {
        modified_mr: ibv_mr,
        memory_objects: ibv_exp_mkey_list_container,
    }
    ibv_exp_mem_region { mr: ibv_mr }
    ibv_exp_mem_repeat_block { mr: ibv_mr }
}

/// The operands of a masked atomic.
pub(crate) enum MaskedOperands {
    /// Operands of a compare-and-swap.
    CmpSwap(ibv_exp_cmp_swap),
    /// Operands of a fetch-and-add.
    FetchAdd(ibv_exp_fetch_add),
}

impl<'a> Request<'a, ibv_exp_send_wr> {
    /// Returns the scatter/gather list.
    pub(crate) const fn sges(self) -> List<'a, ibv_sge> {
        let request = self.get();
        // SAFETY: the list has as many entries as the request says.
        unsafe { List::new(request.sg_list, request.num_sge) }
    }

    /// Returns true if the request stays on this host.
    pub(crate) const fn is_local(self) -> bool {
        matches!(
            self.get().exp_opcode,
            IBV_WR_LOCAL_INV
                | IBV_WR_BIND_MW
                | IBV_EXP_WR_SEND_ENABLE
                | IBV_EXP_WR_RECV_ENABLE
                | IBV_EXP_WR_CQE_WAIT
                | IBV_EXP_WR_NOP
                | IBV_EXP_WR_UMR_FILL
                | IBV_EXP_WR_UMR_INVALIDATE
        )
    }

    /// Returns the remote address and key, or the remote QP of a datagram and 0. Zeroes without
    /// these.
    pub(crate) fn remote(self, is_datagram: bool) -> (u64, u32) {
        if let Some((masked, _)) = self.masked() {
            return (masked.remote_addr, masked.rkey);
        }
        let opcode = self.get().exp_opcode;
        let is_send = matches!(
            opcode,
            IBV_WR_SEND | IBV_WR_SEND_WITH_IMM | IBV_WR_SEND_WITH_INV
        );
        if self.is_local() || is_send && !is_datagram {
            return (0, 0);
        }
        let wr = self.get().wr;
        // SAFETY: all members of the union are integers and pointers, for which any bytes are a
        // value. The memory is the program's.
        let (ud, atomic, rdma) = unsafe { (wr.ud, wr.atomic, wr.rdma) };
        match opcode {
            _ if is_datagram => (ud.remote_qpn.into(), 0),
            IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD => {
                (atomic.remote_addr, atomic.rkey)
            }
            _ => (rdma.remote_addr, rdma.rkey),
        }
    }

    /// Returns the address handle of a DC target.
    ///
    /// # Safety
    /// The request must be posted to a DC initiator. Others need not name a target.
    pub(super) const unsafe fn dc_address(self) -> Handle<'a, ibv_ah> {
        // SAFETY: in a request to a DC initiator, the program has set this member.
        unsafe { Handle::new(self.get().dc.ah) }
    }

    /// Returns the CQ of a wait, and the number of completions. `None` for another operation.
    pub(crate) fn wait(self) -> Option<(Handle<'a, ibv_cq>, i32)> {
        if self.get().exp_opcode != IBV_EXP_WR_CQE_WAIT {
            return None;
        }
        // SAFETY: all members of the union are integers and pointers. The opcode says that the
        // program has set this one.
        Some(unsafe {
            let wait = self.get().task.cqe_wait;
            (Handle::new(wait.cq), wait.cq_count)
        })
    }

    /// Returns the queue pair whose requests are released, and their number. `None` for another
    /// operation.
    pub(crate) fn enable(self) -> Option<(Handle<'a, ibv_qp>, i32)> {
        let opcode = self.get().exp_opcode;
        if !matches!(opcode, IBV_EXP_WR_SEND_ENABLE | IBV_EXP_WR_RECV_ENABLE) {
            return None;
        }
        // SAFETY: as for `wait`.
        Some(unsafe {
            let enable = self.get().task.wqe_enable;
            (Handle::new(enable.qp), enable.wqe_count)
        })
    }

    /// Returns the new layout of a key. `None` for another operation.
    pub(crate) fn umr(self) -> Option<View<'a, ibv_exp_send_wr_umr>> {
        let opcode = self.get().exp_opcode;
        if !matches!(opcode, IBV_EXP_WR_UMR_FILL | IBV_EXP_WR_UMR_INVALIDATE) {
            return None;
        }
        // SAFETY: as for `wait`, for the pointers in it, too.
        Some(unsafe { View::new(self.get().ext_op.umr) })
    }

    /// Returns a masked atomic and its operands. `None` for another operation.
    pub(crate) fn masked(self) -> Option<(&'a ibv_exp_send_wr_masked_atomics, MaskedOperands)> {
        let swaps = match self.get().exp_opcode {
            IBV_EXP_WR_EXT_MASKED_ATOMIC_CMP_AND_SWP => true,
            IBV_EXP_WR_EXT_MASKED_ATOMIC_FETCH_AND_ADD => false,
            _ => return None,
        };
        // SAFETY: as for `wait`. The operands are integers, for which any bytes are a value.
        Some(unsafe {
            let masked = &self.get().ext_op.masked_atomics;
            let operands = if swaps {
                MaskedOperands::CmpSwap(masked.op.cmp_swap)
            } else {
                MaskedOperands::FetchAdd(masked.op.fetch_add)
            };
            (masked, operands)
        })
    }

    /// Returns an operand of a masked atomic, of `len` bytes at an address of the program.
    ///
    /// # Safety
    /// The request must be a masked atomic, whose operands have that length and are not inline.
    pub(super) unsafe fn operand(self, address: usize, len: usize) -> Buffer<'a> {
        // SAFETY: same contract.
        unsafe { Buffer::new(std::ptr::with_exposed_provenance(address), len) }
    }

    /// Returns the window of a bind with its rights. `None` for another operation.
    pub(super) fn bind(self) -> Option<ibv_exp_send_wr_bind_mw> {
        let is_bind = self.get().exp_opcode == IBV_WR_BIND_MW;
        // SAFETY: as for `wait`.
        is_bind.then(|| unsafe { self.get().bind_mw.bind_mw })
    }

    /// Converts the request to the plain structure, with rights of 32 bits for a bind. An opcode
    /// without a plain form stays as it is.
    fn convert(self, mw_access_flags: Option<u32>) -> View<'a, ibv_send_wr> {
        let request = self.get();
        let bind_mw = match (self.bind(), mw_access_flags) {
            (Some(asked), Some(mw_access_flags)) => ibv_send_wr_tail {
                bind_mw: rocade_abi::ibv_send_wr_bind_mw {
                    mw: asked.mw,
                    rkey: asked.rkey,
                    bind_info: rocade_abi::ibv_mw_bind_info {
                        mr: asked.bind_info.mr,
                        addr: asked.bind_info.addr,
                        length: asked.bind_info.length,
                        mw_access_flags,
                    },
                },
            },
            _ => ibv_send_wr_tail {
                // SAFETY: all members of the union are integers and pointers, for which any bytes
                // are a value.
                tso: unsafe { request.bind_mw.tso },
            },
        };
        let plain = ibv_send_wr {
            wr_id: request.wr_id,
            next: std::ptr::null_mut(),
            sg_list: request.sg_list,
            num_sge: request.num_sge,
            opcode: request.exp_opcode,
            send_flags: send::flags(request).bits(),
            imm_data: request.ex,
            wr: request.wr,
            qp_type: ibv_send_wr_qp_type {
                remote_srqn: request.xrc_remote_srq_num,
            },
            bind_mw,
        };
        // SAFETY: it names what the request names.
        unsafe { View::new(plain) }
    }

    /// Converts a request that is no bind to the plain structure.
    pub(super) fn plain(self) -> View<'a, ibv_send_wr> {
        self.convert(None)
    }

    /// Converts a bind to the plain structure, with rights of 32 bits.
    pub(super) fn plain_bind(self, mw_access_flags: u32) -> Option<View<'a, ibv_send_wr>> {
        self.bind().map(|_| self.convert(Some(mw_access_flags)))
    }
}

impl<'a> View<'a, ibv_exp_send_wr_umr> {
    /// Returns the entries of the list of memory, none if they have another type than that of the
    /// layout.
    ///
    /// # Safety
    /// Entries of a repeated layout, or others without `repeats`, must have type `T`.
    unsafe fn entries<T: Copy + 'a>(&self, repeats: bool) -> impl Iterator<Item = View<'a, T>> {
        let is_it = (self.umr_type == IBV_EXP_UMR_REPEAT) == repeats;
        let count = if is_it { self.num_mrs } else { 0 };
        // SAFETY: the list has that many entries of this type.
        let list: List<'a, T> = unsafe { FromC::from_c((self.mem_list.cast::<T>(), count)) };
        // SAFETY: each names NULL or a live key, and lists with an entry per dimension.
        list.iter().map(|entry| unsafe { View::new(entry) })
    }

    /// Returns the keys of a list.
    pub(super) fn regions(&self) -> impl Iterator<Item = View<'a, ibv_exp_mem_region>> {
        // SAFETY: the type of the entries of a list.
        unsafe { self.entries(false) }
    }

    /// Returns the blocks of a repeated layout.
    pub(super) fn blocks(&self) -> impl Iterator<Item = View<'a, ibv_exp_mem_repeat_block>> {
        // SAFETY: the type of the entries of a repeated layout.
        unsafe { self.entries(true) }
    }

    /// Returns how often the first dimension is repeated. `None` for NULL, and for another layout.
    pub(super) fn repeats(&self) -> Option<u64> {
        let count = (self.umr_type == IBV_EXP_UMR_REPEAT).into();
        // SAFETY: with this type, there is one entry for each dimension.
        let list = unsafe { List::new(self.repeat_count, count) };
        list.get(0).map(|count| count as u64)
    }
}

impl View<'_, ibv_exp_mem_repeat_block> {
    /// Returns the length and the stride of the first dimension. `None` if one is NULL.
    pub(super) fn first_dimension(&self) -> Option<(u64, u64)> {
        // SAFETY: one entry for each dimension.
        let (len, stride) = unsafe { (List::new(self.byte_count, 1), List::new(self.stride, 1)) };
        Some((len.get(0)? as u64, stride.get(0)? as u64))
    }
}
