//! The functions of an extended QP. Each builds a work request in the batch, or a part of one.

use std::ffi::{c_int, c_void};

use rocade_abi::{ibv_ah, ibv_data_buf, ibv_mw, ibv_mw_bind_info, ibv_qp_ex, ibv_sge};
use rocade_emulator::{Feth, Lkey, Rkey, SendOp, Sge};

use crate::{
    ffi::{self, Errno},
    mw, post,
    qp::QpObject,
    wr_batch::{Remote, Segments, begin, with_batch},
};

/// Fills in the builders of all operations that the device executes, also of those that were not
/// requested. A hardware driver leaves the latter NULL.
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

unsafe extern "C" fn wr_start(qp: *mut ibv_qp_ex) {
    ffi::void_verb(|| {
        // SAFETY: by contract a live extended QP.
        unsafe { QpObject::borrow(qp) }?.inner().batch().start();
        Ok(())
    });
}

unsafe extern "C" fn wr_complete(qp: *mut ibv_qp_ex) -> c_int {
    ffi::int_data_verb(|| {
        // SAFETY: by contract a live extended QP.
        let state = unsafe { QpObject::borrow(qp) }?.inner();
        // SAFETY: by contract this thread started the batch, and the program's address handles are
        // alive.
        let outcome = unsafe { state.batch().complete(state.qp(), state.qp_type()) };
        outcome.map_err(|errno| errno.of_post(state.qp(), true))
    })
}

//= WRX-07
unsafe extern "C" fn wr_abort(qp: *mut ibv_qp_ex) {
    ffi::void_verb(|| {
        // SAFETY: by contract a live extended QP.
        let batch = unsafe { QpObject::borrow(qp) }?.inner().batch();
        // SAFETY: by contract this thread has started it.
        unsafe { batch.abort() };
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

/// Stages an ATOMIC WRITE. Copies the 8 bytes at once.
//= WRX-12
unsafe extern "C" fn wr_atomic_write(qp: *mut ibv_qp_ex, rkey: u32, va: u64, bytes: *const c_void) {
    const LEN: usize = 8;
    let rkey = Rkey::new(rkey);
    // SAFETY: by contract between `wr_start` and `wr_complete`.
    unsafe { begin(qp, SendOp::AtomicWrite { va, rkey }) };
    // SAFETY: as above.
    unsafe {
        with_batch(qp, |_, staged| {
            let start = staged.inline_len();
            if bytes.is_null() {
                return staged.fail(Errno::INVAL);
            }
            let Some(space) = staged.inline_space(start, LEN, LEN) else {
                return;
            };
            // SAFETY: by contract 8 bytes are readable. `space` belongs to the batch.
            post::copy_in(bytes.expose_provenance(), space);
            staged.set_inline(start);
        })
    };
}

/// `wr_flush` of newer headers: `placement` says what to flush. With `level` 1 it flushes the whole
/// MR instead of a range.
//= WRX-12
pub(crate) unsafe extern "C" fn wr_flush(
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

/// Stages a TSO request. Copies the header at once, like inline data.
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

unsafe extern "C" fn wr_set_xrc_srqn(qp: *mut ibv_qp_ex, srqn: u32) {
    // SAFETY: by contract between `wr_start` and `wr_complete`.
    unsafe { with_batch(qp, |_, staged| staged.set_srqn(srqn)) };
}

unsafe extern "C" fn wr_set_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    // SAFETY: by contract between `wr_start` and `wr_complete`.
    unsafe {
        with_batch(qp, |_, staged| {
            staged.set_sges(&[Sge {
                addr,
                len: length,
                lkey: Lkey::new(lkey),
            }]);
        });
    }
}

unsafe extern "C" fn wr_set_sge_list(qp: *mut ibv_qp_ex, num_sge: usize, list: *const ibv_sge) {
    // SAFETY: by contract between `wr_start` and `wr_complete`.
    unsafe {
        with_batch(qp, |_, staged| {
            let count = c_int::try_from(num_sge).unwrap_or(c_int::MAX);
            // SAFETY: by contract the list has `num_sge` entries.
            let copied = post::with_sges(list, count, |sges| {
                staged.set_sges(sges);
                Ok(())
            });
            if let Err(error) = copied {
                staged.fail(error);
            }
        });
    }
}

unsafe extern "C" fn wr_set_inline_data(qp: *mut ibv_qp_ex, addr: *mut c_void, length: usize) {
    let buffer = ibv_data_buf { addr, length };
    // SAFETY: by contract between `wr_start` and `wr_complete`, and the buffer is readable.
    unsafe { wr_set_inline_data_list(qp, 1, &raw const buffer) };
}

/// Copies the data at once.
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
            let start = staged.inline_len();
            for index in 0..num_buf {
                // SAFETY: by contract the list has `num_buf` entries.
                let buffer = list.add(index).read();
                let max = state.inline_limits().bytes;
                let Some(space) = staged.inline_space(start, buffer.length, max) else {
                    return;
                };
                // SAFETY: by contract the buffer is readable. `space` belongs to the batch.
                post::copy_in(buffer.addr.expose_provenance(), space);
            }
            staged.set_inline(start);
        });
    }
}
