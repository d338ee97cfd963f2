//! The functions of an extended QP. Each builds a work request in the batch, or a part of one.

use std::ffi::{c_int, c_void};

use rocade_abi::{ibv_ah, ibv_data_buf, ibv_mw, ibv_mw_bind_info, ibv_qp_ex, ibv_sge};
use rocade_emulator::{Feth, Lkey, Rkey, SendOp, Sge};

use crate::{
    args::{
        Buffer, Handle, In, List,
        slot::{self, combined},
    },
    ffi::{self, Errno},
    mw, post,
    wr_batch::{Batch, Remote, Segments},
};

/// The length of the data of an ATOMIC WRITE in bytes.
const ATOMIC_WRITE_LEN: usize = 8;

/// Fills in the builders of all operations that the device executes, also of those that were not
/// requested. A hardware driver leaves the latter NULL.
//= WRX-13
pub(crate) fn install(c: &mut ibv_qp_ex) {
    c.wr_start = Some(slot::of_1(wr_start));
    c.wr_complete = Some(slot::of_1(wr_complete));
    c.wr_abort = Some(slot::of_1(wr_abort));
    c.wr_send = Some(slot::of_1(wr_send));
    c.wr_send_imm = Some(slot::of_2(wr_send_imm));
    c.wr_rdma_write = Some(slot::of_3(wr_rdma_write));
    c.wr_rdma_write_imm = Some(slot::of_4(wr_rdma_write_imm));
    c.wr_rdma_read = Some(slot::of_3(wr_rdma_read));
    c.wr_atomic_cmp_swp = Some(slot::of_5(wr_atomic_cmp_swp));
    c.wr_atomic_fetch_add = Some(slot::of_4(wr_atomic_fetch_add));
    c.wr_atomic_write = Some(c_atomic_write);
    c.wr_send_inv = Some(slot::of_2(wr_send_inv));
    c.wr_local_inv = Some(slot::of_2(wr_local_inv));
    c.wr_bind_mw = Some(slot::of_4(wr_bind_mw));
    c.wr_send_tso = Some(c_send_tso);
    c.wr_set_ud_addr = Some(slot::of_4(wr_set_ud_addr));
    c.wr_set_xrc_srqn = Some(slot::of_2(wr_set_xrc_srqn));
    c.wr_set_sge = Some(slot::of_4(wr_set_sge));
    c.wr_set_sge_list = Some(c_set_sge_list);
    c.wr_set_inline_data = Some(c_set_inline_data);
    c.wr_set_inline_data_list = Some(c_set_inline_data_list);
}

extern "C" fn wr_start(qp: Handle<'_, ibv_qp_ex>) {
    ffi::void_verb(|| {
        qp.get()?.inner().batch().start();
        Ok(())
    });
}

extern "C" fn wr_complete(qp: Batch<'_>) -> c_int {
    ffi::int_data_verb(|| qp.complete())
}

//= WRX-07
extern "C" fn wr_abort(qp: Batch<'_>) {
    ffi::void_verb(|| qp.abort());
}

extern "C" fn wr_send(qp: Batch<'_>) {
    qp.begin(SendOp::Send { imm: None });
}

extern "C" fn wr_send_imm(qp: Batch<'_>, imm_data: u32) {
    qp.begin(SendOp::Send {
        imm: Some(imm_data.to_ne_bytes()),
    });
}

extern "C" fn wr_send_inv(qp: Batch<'_>, invalidate_rkey: u32) {
    let rkey = Rkey::new(invalidate_rkey);
    qp.begin(SendOp::SendInv { rkey });
}

extern "C" fn wr_local_inv(qp: Batch<'_>, invalidate_rkey: u32) {
    let rkey = Rkey::new(invalidate_rkey);
    qp.begin(SendOp::Invalidate { rkey });
}

extern "C" fn wr_bind_mw(
    qp: Batch<'_>,
    mw: Handle<'_, ibv_mw>,
    rkey: u32,
    bind_info: In<'_, ibv_mw_bind_info>,
) {
    let op = bind_info
        .read()
        .and_then(|info| mw::bind_operation(mw, rkey, &info));
    match op {
        Ok(op) => qp.begin(op),
        Err(error) => qp.with(|_, staged| staged.fail(error)),
    }
}

extern "C" fn wr_rdma_write(qp: Batch<'_>, rkey: u32, va: u64) {
    qp.begin(SendOp::Write {
        va,
        rkey: Rkey::new(rkey),
        imm: None,
    });
}

extern "C" fn wr_rdma_write_imm(qp: Batch<'_>, rkey: u32, va: u64, imm_data: u32) {
    let imm = Some(imm_data.to_ne_bytes());
    qp.begin(SendOp::Write {
        va,
        rkey: Rkey::new(rkey),
        imm,
    });
}

extern "C" fn wr_rdma_read(qp: Batch<'_>, rkey: u32, va: u64) {
    qp.begin(SendOp::Read {
        va,
        rkey: Rkey::new(rkey),
    });
}

extern "C" fn wr_atomic_cmp_swp(qp: Batch<'_>, rkey: u32, va: u64, compare: u64, swap: u64) {
    qp.begin(SendOp::CmpSwap {
        va,
        rkey: Rkey::new(rkey),
        compare,
        swap,
    });
}

extern "C" fn wr_atomic_fetch_add(qp: Batch<'_>, rkey: u32, va: u64, add: u64) {
    qp.begin(SendOp::FetchAdd {
        va,
        rkey: Rkey::new(rkey),
        add,
    });
}

/// Stages an ATOMIC WRITE. Copies the 8 bytes at once.
//= WRX-12
fn wr_atomic_write(qp: Batch<'_>, rkey: u32, va: u64, bytes: Buffer<'_>) {
    const LEN: usize = ATOMIC_WRITE_LEN;
    let rkey = Rkey::new(rkey);
    qp.begin(SendOp::AtomicWrite { va, rkey });
    qp.with(|_, staged| {
        let start = staged.inline_len();
        if bytes.is_null() {
            return staged.fail(Errno::INVAL);
        }
        let Some(space) = staged.inline_space(start, LEN, LEN) else {
            return;
        };
        bytes.copy_to(space);
        staged.set_inline(start);
    });
}

/// `wr_flush` of newer headers: `placement` says what to flush. With `level` 1 it flushes the whole
/// MR instead of a range.
//= WRX-12
pub(crate) extern "C" fn wr_flush(
    qp: Batch<'_>,
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
    qp.begin(op);
    if is_wrong {
        qp.with(|_, staged| staged.fail(Errno::INVAL));
    }
}

/// Stages a TSO request. Copies the header at once, like inline data.
fn wr_send_tso(qp: Batch<'_>, header: Buffer<'_>, mss: u16) {
    qp.begin(SendOp::Send { imm: None });
    qp.with(|state, staged| match post::tso_header(state, header) {
        Ok(header) => staged.set_segments(Segments { header, mss }),
        Err(error) => staged.fail(error),
    });
}

//= WRX-03
extern "C" fn wr_set_ud_addr(qp: Batch<'_>, ah: Handle<'_, ibv_ah>, qpn: u32, qkey: u32) {
    qp.with(|_, staged| {
        staged.set_remote(Remote {
            ah: ah.as_ptr(),
            qpn,
            qkey,
        })
    });
}

extern "C" fn wr_set_xrc_srqn(qp: Batch<'_>, srqn: u32) {
    qp.with(|_, staged| staged.set_srqn(srqn));
}

extern "C" fn wr_set_sge(qp: Batch<'_>, lkey: u32, addr: u64, length: u32) {
    qp.with(|_, staged| {
        staged.set_sges(&[Sge {
            addr,
            len: length,
            lkey: Lkey::new(lkey),
        }]);
    });
}

#[inline]
fn wr_set_sge_list(qp: Batch<'_>, list: List<'_, ibv_sge>) {
    qp.with(|_, staged| {
        let copied = post::with_sges(list, |sges| {
            staged.set_sges(sges);
            Ok(())
        });
        if let Err(error) = copied {
            staged.fail(error);
        }
    });
}

#[inline]
fn wr_set_inline_data(qp: Batch<'_>, buffer: Buffer<'_>) {
    set_inline_data(qp, Some([buffer].into_iter()));
}

#[inline]
fn wr_set_inline_data_list(qp: Batch<'_>, list: List<'_, ibv_data_buf>) {
    let is_wrong = list.is_null() && list.count() > 0;
    set_inline_data(qp, (!is_wrong).then(|| list.buffers()));
}

combined! {
    fn c_atomic_write(qp: *mut ibv_qp_ex, rkey: u32, va: u64, bytes: *const c_void)
        = wr_atomic_write [qp, rkey, va, (bytes, ATOMIC_WRITE_LEN)];
    fn c_send_tso(qp: *mut ibv_qp_ex, header: *mut c_void, len: u16, mss: u16)
        = wr_send_tso [qp, (header, len), mss];
    fn c_set_sge_list(qp: *mut ibv_qp_ex, count: usize, list: *const ibv_sge)
        = wr_set_sge_list [qp, (list, count)];
    fn c_set_inline_data(qp: *mut ibv_qp_ex, addr: *mut c_void, len: usize)
        = wr_set_inline_data [qp, (addr, len)];
    fn c_set_inline_data_list(qp: *mut ibv_qp_ex, count: usize, list: *const ibv_data_buf)
        = wr_set_inline_data_list [qp, (list, count)];
}

/// Copies the data at once.
//= WRX-05
#[inline]
fn set_inline_data<'a>(qp: Batch<'_>, buffers: Option<impl Iterator<Item = Buffer<'a>>>) {
    qp.with(|state, staged| {
        let Some(buffers) = buffers else {
            return staged.fail(Errno::INVAL);
        };
        let start = staged.inline_len();
        for buffer in buffers {
            let max = state.inline_limits().bytes;
            let Some(space) = staged.inline_space(start, buffer.len(), max) else {
                return;
            };
            buffer.copy_to(space);
        }
        staged.set_inline(start);
    });
}
