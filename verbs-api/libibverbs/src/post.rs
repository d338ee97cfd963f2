//! Posting work requests.

use std::{
    ffi::{c_int, c_void},
    ptr,
};

use rocade_abi::{
    IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_ATOMIC_WRITE, IBV_WR_BIND_MW,
    IBV_WR_FLUSH, IBV_WR_LOCAL_INV, IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE,
    IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, IBV_WR_SEND_WITH_INV,
    IBV_WR_TSO, ibv_ah, ibv_qp, ibv_recv_wr, ibv_send_wr, ibv_sge,
};
use rocade_emulator::{
    Datagram, Lkey, Qkey, QpType, Qpn, Rkey, SendFlags, SendOp, SendPoster, SendWr, Sge, Srqn,
    ToDct, Tso, limits,
};

use crate::{
    ah::AhObject,
    diagnostics::Reason,
    ffi::{Errno, int_data_verb},
    mw,
    qp::{QpObject, QpState},
};

/// The scatter/gather entries that fit on the stack, which is the device's limit.
const MAX_SGE: usize = limits::MAX_SGE as usize;
/// The inline data that is collected on the stack, in bytes. Longer data uses the heap.
const STACK_INLINE: usize = 256;

/// Context op `post_send`: queues a chain of work requests. On failure `*bad_wr` is the first
/// request that is not queued.
//= PST-09
pub(crate) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
) -> c_int {
    int_data_verb(|| {
        // SAFETY: by contract a live QP.
        let state = unsafe { QpObject::borrow(qp.cast()) }?.inner();
        let posted = state.qp().post_sends(|poster| {
            // SAFETY: by contract readable work requests, with the lists and buffers they name.
            unsafe { each_of_chain(wr, bad_wr, |request| push_one(poster, state, request)) }
        });
        posted.map_err(|error| error.of_post(state.qp(), true))
    })
}

/// A work request with a pointer to the next one.
pub(crate) trait Chained {
    fn next(&self) -> *mut Self;
}

impl Chained for ibv_send_wr {
    #[inline]
    fn next(&self) -> *mut Self {
        self.next
    }
}

impl Chained for ibv_recv_wr {
    #[inline]
    fn next(&self) -> *mut Self {
        self.next
    }
}

/// Calls `push` with each request of a chain. On failure `*bad_wr` is the first request that is not
/// queued.
///
/// # Safety
/// The chain must consist of readable work requests. `bad_wr` must be NULL or writable.
//= PST-09
//= RC-WQE-13
#[inline]
pub(crate) unsafe fn each_of_chain<R: Chained>(
    first: *mut R,
    bad_wr: *mut *mut R,
    mut push: impl FnMut(&R) -> Result<(), Errno>,
) -> Result<(), Errno> {
    let mut current = first;
    while !current.is_null() {
        // SAFETY: same contract.
        let request = unsafe { &*current };
        if let Err(error) = push(request) {
            if !bad_wr.is_null() {
                // SAFETY: same contract.
                unsafe { bad_wr.write(current) };
            }
            return Err(error);
        }
        current = request.next();
    }
    Ok(())
}

/// Queues a chain of receives with `push`. On failure `*bad_wr` is the first request that is not
/// queued.
///
/// # Safety
/// As for [`each_of_chain`], with the lists that the requests name.
#[inline]
pub(crate) unsafe fn post_receives<E: Into<Errno>>(
    first: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
    mut push: impl FnMut(u64, &[Sge]) -> Result<(), E>,
) -> Result<(), Errno> {
    // SAFETY: same contract.
    unsafe {
        each_of_chain(first, bad_wr, |request| {
            with_sges(request.sg_list, request.num_sge, |sges| {
                push(request.wr_id, sges).map_err(Into::into)
            })
        })
    }
}

/// Context op `post_recv`: queues a chain of receives. On failure `*bad_wr` is the first request
/// that is not queued.
//= PST-09
pub(crate) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    int_data_verb(|| {
        // SAFETY: by contract a live QP.
        let state = unsafe { QpObject::borrow(qp.cast()) }?.inner();
        let mut poster = state.qp().recv_queue();
        // SAFETY: by contract readable work requests, and lists with as many entries as they say.
        let posted = unsafe { post_receives(wr, bad_wr, |wr_id, sges| poster.push(wr_id, sges)) };
        drop(poster);
        posted.map_err(|error| error.of_post(state.qp(), false))
    })
}

/// # Safety
/// The list of `request`, and with inline data the buffers in it, must be readable.
pub(crate) unsafe fn push_send(
    poster: &mut SendPoster<'_>,
    state: &QpState,
    request: &ibv_send_wr,
) -> Result<(), Errno> {
    // SAFETY: same contract.
    unsafe { push_one(poster, state, request) }
}

/// Inlined form of [`push_send`], for loops.
///
/// # Safety
/// As for [`push_send`].
#[inline(always)]
unsafe fn push_one(
    poster: &mut SendPoster<'_>,
    state: &QpState,
    request: &ibv_send_wr,
) -> Result<(), Errno> {
    if request.opcode == IBV_WR_TSO && state.qp_type() == QpType::RawPacket {
        // SAFETY: same contract.
        return unsafe { push_tso(poster, state, request) };
    }
    // SAFETY: same contract, with the objects that it names.
    let op = unsafe { operation(request) }?;
    let flags = SendFlags::from_bits_truncate(request.send_flags);
    if state.qp_type() == QpType::Ud {
        // SAFETY: same contract.
        return unsafe { push_datagram(poster, state, request, (op, flags)) };
    }
    // SAFETY: same contract.
    unsafe {
        with_data(state, request, (op, flags), |wr, data| {
            Ok(match data {
                Some(data) => poster.push_inline(wr, data),
                None => poster.push(wr),
            }?)
        })
    }?;
    if state.qp_type() == QpType::XrcSend {
        poster.set_remote_srqn(Srqn::new(request.qp_type.remote_srqn));
    }
    Ok(())
}

/// Like [`push_send`], but queues with `push`. Its second argument is the data of an inline
/// request.
///
/// # Safety
/// As for [`push_send`].
pub(crate) unsafe fn push_as(
    state: &QpState,
    request: &ibv_send_wr,
    push: impl FnOnce(&SendWr<'_>, Option<&[u8]>) -> Result<(), Errno>,
) -> Result<(), Errno> {
    // SAFETY: same contract.
    let op = unsafe { operation(request) }?;
    let flags = SendFlags::from_bits_truncate(request.send_flags);
    // SAFETY: same contract.
    unsafe { with_data(state, request, (op, flags), push) }
}

/// Calls `push` with the buffers of `request`, or with a copy of the inline data.
///
/// # Safety
/// As for [`push_send`].
#[inline(always)]
unsafe fn with_data(
    state: &QpState,
    request: &ibv_send_wr,
    (op, flags): (SendOp, SendFlags),
    push: impl FnOnce(&SendWr<'_>, Option<&[u8]>) -> Result<(), Errno>,
) -> Result<(), Errno> {
    let wr_id = request.wr_id;
    if flags.contains(SendFlags::INLINE) {
        let wr = SendWr {
            wr_id,
            op,
            flags,
            sges: &[],
        };
        // SAFETY: same contract.
        unsafe { with_inline_data(request, state.inline_limits(), |data| push(&wr, Some(data))) }
    } else {
        let push = |sges: &[Sge]| {
            let wr = SendWr {
                wr_id,
                op,
                flags,
                sges,
            };
            push(&wr, None)
        };
        // SAFETY: same contract.
        unsafe { with_sges(request.sg_list, request.num_sge, push) }
    }
}

/// # Safety
/// As for [`push_send`]. The address handle must be alive.
unsafe fn push_datagram(
    poster: &mut SendPoster<'_>,
    state: &QpState,
    request: &ibv_send_wr,
    (op, flags): (SendOp, SendFlags),
) -> Result<(), Errno> {
    // SAFETY: all members of the union are integers and a pointer, for which any bytes are a value.
    // The type of the QP says which one the program has set.
    let remote = unsafe { request.wr.ud };
    // SAFETY: by contract NULL or a live address handle.
    let to = unsafe { datagram(remote.ah, remote.remote_qpn, remote.remote_qkey) }?;
    // SAFETY: same contract.
    unsafe {
        with_data(state, request, (op, flags), |wr, data| {
            Ok(poster.push_datagram(wr, to, data)?)
        })
    }
}

/// # Safety
/// As for [`push_send`]. The header must be NULL or readable.
unsafe fn push_tso(
    poster: &mut SendPoster<'_>,
    state: &QpState,
    request: &ibv_send_wr,
) -> Result<(), Errno> {
    // SAFETY: all members of the union are integers and pointers, for which any bytes are a value.
    // The opcode says which one the program has set.
    let asked = unsafe { request.bind_mw.tso };
    // SAFETY: same contract.
    let header = unsafe { tso_header(state, asked.hdr, asked.hdr_sz) }?;
    let tso = Tso {
        header: &header,
        mss: asked.mss,
    };
    let op = SendOp::Send { imm: None };
    let flags = SendFlags::from_bits_truncate(request.send_flags);
    // SAFETY: same contract.
    unsafe {
        with_data(state, request, (op, flags), |wr, data| {
            Ok(poster.push_tso(wr, tso, data)?)
        })
    }
}

/// Copies the header of a request that is cut into segments.
///
/// # Errors
/// `EINVAL` without a header, or if it is longer than the QP's limit.
///
/// # Safety
/// `header` must be NULL or readable for `len` bytes.
pub(crate) unsafe fn tso_header(
    state: &QpState,
    header: *const c_void,
    len: u16,
) -> Result<Vec<u8>, Errno> {
    let len = usize::from(len);
    if header.is_null() || len > state.max_tso_header() {
        let max = state.max_tso_header();
        let what = format!("the header has {len} bytes, the limit of the queue pair is {max}");
        let advice = "request more with IBV_QP_INIT_ATTR_MAX_TSO_HEADER in ibv_create_qp_ex";
        return Err(Errno::INVAL.because(Reason::new(what, advice)));
    }
    let mut copy = vec![0; len];
    // SAFETY: by contract readable. The copy is local.
    unsafe { copy_in(header.expose_provenance(), &mut copy) };
    Ok(copy)
}

/// Queues a request of a DC initiator to the target `to`.
///
/// # Errors
/// As for [`push_send`].
///
/// # Safety
/// As for [`push_send`].
pub(crate) unsafe fn push_dynamic(
    poster: &mut SendPoster<'_>,
    state: &QpState,
    request: &ibv_send_wr,
    to: ToDct<'_>,
) -> Result<(), Errno> {
    // SAFETY: same contract.
    unsafe {
        push_as(state, request, |wr, data| {
            Ok(poster.push_dynamic(wr, to, data)?)
        })
    }
}

/// Returns the destination that an address handle and two numbers name.
///
/// # Errors
/// `EINVAL` without address handle.
///
/// # Safety
/// `ah` must be NULL or a live address handle, and stay alive for `'a`.
pub(crate) unsafe fn datagram<'a>(
    ah: *mut ibv_ah,
    qpn: u32,
    qkey: u32,
) -> Result<Datagram<'a>, Errno> {
    // SAFETY: same contract.
    let ah = unsafe { AhObject::borrow(ah) }?.inner().ah();
    Ok(Datagram {
        ah,
        dest_qp: Qpn::new(qpn),
        qkey: Qkey::new(qkey),
    })
}

/// Returns the DC target that an address handle, a number and a key name.
///
/// # Errors
/// `EINVAL` without address handle.
///
/// # Safety
/// As for [`datagram`].
pub(crate) unsafe fn target<'a>(
    ah: *mut ibv_ah,
    dctn: u32,
    key: u64,
    stream: u16,
) -> Result<ToDct<'a>, Errno> {
    // SAFETY: same contract.
    let ah = unsafe { AhObject::borrow(ah) }?.inner().ah();
    Ok(ToDct {
        ah,
        dct: Qpn::new(dctn),
        key,
        stream,
    })
}

/// Returns the operation of a C work request. Fails with `EOPNOTSUPP` for operations that the
/// device lacks, and with `EINVAL` for unknown ones.
///
/// # Safety
/// The objects that `request` names must be NULL or live.
//= PST-10
#[inline(always)]
unsafe fn operation(request: &ibv_send_wr) -> Result<SendOp, Errno> {
    match request.opcode {
        IBV_WR_SEND => Ok(SendOp::Send { imm: None }),
        IBV_WR_RDMA_WRITE => {
            // SAFETY: all members of the union are integers, for which any bytes are a value. The
            // opcode says that the program has set this one.
            let rdma = unsafe { request.wr.rdma };
            Ok(SendOp::Write {
                va: rdma.remote_addr,
                rkey: Rkey::new(rdma.rkey),
                imm: None,
            })
        }
        // SAFETY: same contract.
        _ => unsafe { other_operation(request) },
    }
}

/// Like [`operation`], for all but plain SEND and WRITE.
///
/// # Safety
/// As for [`operation`].
unsafe fn other_operation(request: &ibv_send_wr) -> Result<SendOp, Errno> {
    let imm = Some(request.imm_data.to_ne_bytes());
    // SAFETY: all members of the union are integers, for which any bytes are a value. The opcode
    // says which one the program has set.
    let rdma = unsafe { request.wr.rdma };
    // SAFETY: as above.
    let atomic = unsafe { request.wr.atomic };
    let (va, rkey) = (rdma.remote_addr, Rkey::new(rdma.rkey));
    Ok(match request.opcode {
        IBV_WR_SEND_WITH_IMM => SendOp::Send { imm },
        IBV_WR_RDMA_WRITE_WITH_IMM => SendOp::Write { va, rkey, imm },
        IBV_WR_RDMA_READ => SendOp::Read { va, rkey },
        IBV_WR_ATOMIC_CMP_AND_SWP => SendOp::CmpSwap {
            va: atomic.remote_addr,
            rkey: Rkey::new(atomic.rkey),
            compare: atomic.compare_add,
            swap: atomic.swap,
        },
        IBV_WR_ATOMIC_FETCH_AND_ADD => SendOp::FetchAdd {
            va: atomic.remote_addr,
            rkey: Rkey::new(atomic.rkey),
            add: atomic.compare_add,
        },
        IBV_WR_SEND_WITH_INV => SendOp::SendInv {
            rkey: Rkey::new(request.imm_data),
        },
        IBV_WR_LOCAL_INV => SendOp::Invalidate {
            rkey: Rkey::new(request.imm_data),
        },
        IBV_WR_BIND_MW => {
            // SAFETY: as for the other unions, and the opcode says that it is this member.
            let bind = unsafe { &request.bind_mw.bind_mw };
            // SAFETY: same contract.
            unsafe { mw::bind_operation(bind.mw, bind.rkey, &bind.bind_info) }?
        }
        IBV_WR_ATOMIC_WRITE => SendOp::AtomicWrite { va, rkey },
        // `ibv_send_wr` has no members for the operands of a FLUSH. `ibv_wr_flush` takes them.
        IBV_WR_FLUSH => return Err(not_an_operation(Errno::OPNOTSUPP, request)),
        // This includes TSO, which RC does not have.
        _ => return Err(not_an_operation(Errno::INVAL, request)),
    })
}

#[cold]
fn not_an_operation(errno: Errno, request: &ibv_send_wr) -> Errno {
    let what = format!("Rocade does not support opcode {}", request.opcode);
    errno.because(Reason::new(what, ""))
}

/// Converts a scatter/gather entry.
pub(crate) const fn to_sge(sge: ibv_sge) -> Sge {
    Sge {
        addr: sge.addr,
        len: sge.length,
        lkey: Lkey::new(sge.lkey),
    }
}

/// Calls `f` with a copy of a scatter/gather list.
///
/// # Errors
/// `EINVAL` for a count out of range or a missing list, and any error of `f`.
///
/// # Safety
/// `list` must have `count` readable entries.
#[inline(always)]
pub(crate) unsafe fn with_sges<T>(
    list: *const ibv_sge,
    count: c_int,
    f: impl FnOnce(&[Sge]) -> Result<T, Errno>,
) -> Result<T, Errno> {
    let (one, all);
    let sges: &[Sge] = if count == 1 && !list.is_null() {
        // SAFETY: by contract there is one entry.
        one = [to_sge(unsafe { list.read() })];
        &one
    } else if count == 0 {
        &[]
    } else {
        // SAFETY: same contract.
        all = unsafe { all_sges(list, count) }?;
        all.0.get(..all.1).unwrap_or(&[])
    };
    // Called in one place, so that the compiler inlines it once.
    f(sges)
}

/// Copies a list of one or more entries. Returns the array and the number of entries.
///
/// # Safety
/// As for [`with_sges`].
#[inline(never)]
unsafe fn all_sges(list: *const ibv_sge, count: c_int) -> Result<([Sge; MAX_SGE], usize), Errno> {
    let count = usize::try_from(count).map_err(|_| Errno::INVAL)?;
    let mut sges = [Sge::default(); MAX_SGE];
    if count > MAX_SGE || list.is_null() {
        let what = format!(
            "num_sge is {count}, or sg_list is NULL. The device's limit is {MAX_SGE} entries"
        );
        return Err(Errno::INVAL.because(Reason::new(what, "")));
    }
    for (index, sge) in sges.iter_mut().enumerate().take(count) {
        // SAFETY: by contract there are `count` entries.
        *sge = to_sge(unsafe { list.add(index).read() });
    }
    Ok((sges, count))
}

/// The limits of a QP for inline data.
#[derive(Debug, Clone, Copy)]
pub(crate) struct InlineLimits {
    /// Entries of the scatter/gather list.
    pub(crate) entries: usize,
    /// Bytes of data.
    pub(crate) bytes: usize,
}

/// Calls `f` with a copy of the data that the list of `request` names.
///
/// # Errors
/// `EINVAL` for more entries or bytes than `limits` allows, and any error of `f`.
///
/// # Safety
/// The list must have `num_sge` readable entries that name readable buffers.
unsafe fn with_inline_data<T>(
    request: &ibv_send_wr,
    limits: InlineLimits,
    f: impl FnOnce(&[u8]) -> Result<T, Errno>,
) -> Result<T, Errno> {
    let count = usize::try_from(request.num_sge).map_err(|_| Errno::INVAL)?;
    let max_len = limits.bytes;
    if count > limits.entries || (count > 0 && request.sg_list.is_null()) {
        return Err(Errno::INVAL);
    }
    let mut stack = [0; STACK_INLINE];
    let mut heap = Vec::new();
    let space: &mut [u8] = if max_len <= STACK_INLINE {
        &mut stack
    } else {
        heap.resize(max_len, 0);
        &mut heap
    };
    let mut filled = 0;
    for index in 0..count {
        // SAFETY: by contract there are `count` entries.
        let sge = unsafe { request.sg_list.add(index).read() };
        let len = usize::try_from(sge.length).map_err(|_| Errno::INVAL)?;
        if len > max_len - filled {
            let what = format!("more inline data than max_inline_data, {max_len} bytes");
            let advice =
                "request more in ibv_create_qp (cap.max_inline_data), or do not send inline";
            return Err(Errno::INVAL.because(Reason::new(what, advice)));
        }
        let source = usize::try_from(sge.addr).map_err(|_| Errno::INVAL)?;
        let target = space.get_mut(filled..filled + len).ok_or(Errno::INVAL)?;
        // SAFETY: by contract the entry names `len` readable bytes of the program. `target` is
        // local and has as many.
        unsafe { copy_in(source, target) };
        filled += len;
    }
    f(space.get(..filled).unwrap_or(&[]))
}

/// Copies from an address of the program.
///
/// # Safety
/// `target.len()` bytes at `source` must be readable and not be inside `target`.
pub(crate) unsafe fn copy_in(source: usize, target: &mut [u8]) {
    if target.is_empty() {
        return;
    }
    let source: *const u8 = ptr::with_exposed_provenance(source);
    // SAFETY: same contract.
    unsafe { ptr::copy_nonoverlapping(source, target.as_mut_ptr(), target.len()) };
}

#[cfg(test)]
mod tests {
    use rocade_abi::{ibv_send_wr_atomic, ibv_send_wr_rdma, ibv_send_wr_remote};

    use super::*;

    fn operation(request: &ibv_send_wr) -> Result<SendOp, Errno> {
        // SAFETY: no request here names an object.
        unsafe { super::operation(request) }
    }

    fn request(opcode: u32) -> ibv_send_wr {
        // SAFETY: zero bytes are a value for all members.
        let mut wr: ibv_send_wr = unsafe { std::mem::zeroed() };
        wr.opcode = opcode;
        wr
    }

    #[test]
    fn immediate_data_keeps_its_byte_order() {
        let mut wr = request(IBV_WR_RDMA_WRITE_WITH_IMM);
        wr.imm_data = 0x0102_0304u32.to_be();
        wr.wr = ibv_send_wr_remote {
            rdma: ibv_send_wr_rdma {
                remote_addr: 0x1000,
                rkey: 7,
            },
        };
        let expected = SendOp::Write {
            va: 0x1000,
            rkey: Rkey::new(7),
            imm: Some([1, 2, 3, 4]),
        };
        assert_eq!(operation(&wr), Ok(expected));
    }

    #[test]
    fn atomics_take_their_own_operands() {
        let mut wr = request(IBV_WR_ATOMIC_CMP_AND_SWP);
        let atomic = ibv_send_wr_atomic {
            remote_addr: 8,
            compare_add: 1,
            swap: 2,
            rkey: 3,
        };
        wr.wr = ibv_send_wr_remote { atomic };
        let rkey = Rkey::new(3);
        assert_eq!(
            operation(&wr),
            Ok(SendOp::CmpSwap {
                va: 8,
                rkey,
                compare: 1,
                swap: 2
            })
        );
        wr.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
        assert_eq!(
            operation(&wr),
            Ok(SendOp::FetchAdd {
                va: 8,
                rkey,
                add: 1
            })
        );
    }

    //= RC-WQE-09 type=test
    #[test]
    fn keys_to_invalidate_are_numbers_of_this_machine() {
        let mut wr = request(IBV_WR_SEND_WITH_INV);
        wr.imm_data = 0x0102_0304;
        let rkey = Rkey::new(0x0102_0304);
        assert_eq!(operation(&wr), Ok(SendOp::SendInv { rkey }));
        wr.opcode = IBV_WR_LOCAL_INV;
        assert_eq!(operation(&wr), Ok(SendOp::Invalidate { rkey }));
    }

    #[test]
    fn unknown_opcodes_are_invalid_and_known_ones_unsupported() {
        assert_eq!(operation(&request(IBV_WR_FLUSH)), Err(Errno::OPNOTSUPP));
        // Without a window.
        assert_eq!(operation(&request(IBV_WR_BIND_MW)), Err(Errno::INVAL));
        assert_eq!(operation(&request(99)), Err(Errno::INVAL));
    }

    #[test]
    fn lists_out_of_range_are_invalid() {
        let sge = ibv_sge {
            addr: 1,
            length: 2,
            lkey: 3,
        };
        let count = |list: *const ibv_sge, count| {
            // SAFETY: no more than one entry is read from a list that has one.
            unsafe { with_sges(list, count, |sges| Ok(sges.len())) }
        };
        assert_eq!(count(&raw const sge, 1), Ok(1));
        assert_eq!(count(ptr::null(), 0), Ok(0));
        assert_eq!(count(ptr::null(), 1), Err(Errno::INVAL));
        assert_eq!(count(&raw const sge, -1), Err(Errno::INVAL));
        assert_eq!(count(&raw const sge, 33), Err(Errno::INVAL));
    }

    #[test]
    fn inline_data_is_collected_in_order_and_bounded() {
        let limits = |entries, bytes| InlineLimits { entries, bytes };
        let data = [1u8, 2, 3, 4];
        let address = data.as_ptr().expose_provenance() as u64;
        let mut list = [
            ibv_sge {
                addr: address + 2,
                length: 2,
                lkey: 0,
            },
            ibv_sge {
                addr: address,
                length: 1,
                lkey: 0,
            },
        ];
        let mut wr = request(IBV_WR_SEND);
        wr.sg_list = list.as_mut_ptr();
        wr.num_sge = 2;
        // SAFETY: the list names parts of `data`.
        let collected = unsafe { with_inline_data(&wr, limits(2, 3), |data| Ok(data.to_vec())) };
        assert_eq!(collected, Ok(vec![3, 4, 1]));
        // SAFETY: as above.
        let refused = unsafe { with_inline_data(&wr, limits(2, 2), |data| Ok(data.to_vec())) };
        assert_eq!(refused, Err(Errno::INVAL));
        // SAFETY: as above.
        let refused = unsafe { with_inline_data(&wr, limits(1, 3), |data| Ok(data.to_vec())) };
        assert_eq!(refused, Err(Errno::INVAL));
    }
}
