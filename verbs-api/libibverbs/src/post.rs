//! Posting work requests.

use std::ffi::c_int;

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
    args::{Buffer, Chain, Handle, List, Out, Request},
    diagnostics::Reason,
    ffi::{Errno, int_data_verb},
    mw,
    qp::QpState,
};

/// The scatter/gather entries that fit on the stack, which is the device's limit.
const MAX_SGE: usize = limits::MAX_SGE as usize;
/// The inline data that is collected on the stack, in bytes. Longer data uses the heap.
const STACK_INLINE: usize = 256;

/// Context op `post_send`: queues a chain of work requests. On failure `*bad_wr` is the first
/// request that is not queued.
//= PST-09
pub(crate) extern "C" fn post_send(
    qp: Handle<'_, ibv_qp>,
    wr: Chain<'_, ibv_send_wr>,
    bad_wr: Out<'_, *mut ibv_send_wr>,
) -> c_int {
    int_data_verb(|| {
        let state = qp.get()?.inner();
        let posted = state
            .qp()
            .post_sends(|poster| wr.each(bad_wr, |request| push_one(poster, state, request)));
        posted.map_err(|error| error.of_post(state.qp(), true))
    })
}

/// Queues a chain of receives with `push`. On failure `*bad_wr` is the first request that is not
/// queued.
#[inline]
pub(crate) fn post_receives<E: Into<Errno>>(
    first: Chain<'_, ibv_recv_wr>,
    bad_wr: Out<'_, *mut ibv_recv_wr>,
    mut push: impl FnMut(u64, &[Sge]) -> Result<(), E>,
) -> Result<(), Errno> {
    first.each(bad_wr, |request| {
        with_sges(request.list(), |sges| {
            push(request.wr_id, sges).map_err(Into::into)
        })
    })
}

/// Context op `post_recv`: queues a chain of receives. On failure `*bad_wr` is the first request
/// that is not queued.
//= PST-09
pub(crate) extern "C" fn post_recv(
    qp: Handle<'_, ibv_qp>,
    wr: Chain<'_, ibv_recv_wr>,
    bad_wr: Out<'_, *mut ibv_recv_wr>,
) -> c_int {
    int_data_verb(|| {
        let state = qp.get()?.inner();
        let mut poster = state.qp().recv_queue();
        let posted = post_receives(wr, bad_wr, |wr_id, sges| poster.push(wr_id, sges));
        drop(poster);
        posted.map_err(|error| error.of_post(state.qp(), false))
    })
}

/// Queues a request.
///
/// # Errors
/// `EINVAL` or `EOPNOTSUPP` for a malformed request, and any error of the emulator.
pub(crate) fn push_send(
    poster: &mut SendPoster<'_>,
    state: &QpState,
    request: Request<'_, ibv_send_wr>,
) -> Result<(), Errno> {
    push_one(poster, state, request)
}

/// Inlined form of [`push_send`], for loops.
#[inline(always)]
fn push_one(
    poster: &mut SendPoster<'_>,
    state: &QpState,
    request: Request<'_, ibv_send_wr>,
) -> Result<(), Errno> {
    if request.opcode == IBV_WR_TSO && state.qp_type() == QpType::RawPacket {
        return push_tso(poster, state, request);
    }
    let op = operation(request)?;
    let flags = SendFlags::from_bits_truncate(request.send_flags);
    if state.qp_type() == QpType::Ud {
        return push_datagram(poster, state, request, (op, flags));
    }
    with_data(state, request, (op, flags), |wr, data| {
        Ok(match data {
            Some(data) => poster.push_inline(wr, data),
            None => poster.push(wr),
        }?)
    })?;
    if state.qp_type() == QpType::XrcSend {
        poster.set_remote_srqn(Srqn::new(request.qp_type.remote_srqn));
    }
    Ok(())
}

/// Like [`push_send`], but queues with `push`. Its second argument is the data of an inline
/// request.
pub(crate) fn push_as(
    state: &QpState,
    request: Request<'_, ibv_send_wr>,
    push: impl FnOnce(&SendWr<'_>, Option<&[u8]>) -> Result<(), Errno>,
) -> Result<(), Errno> {
    let op = operation(request)?;
    let flags = SendFlags::from_bits_truncate(request.send_flags);
    with_data(state, request, (op, flags), push)
}

/// Calls `push` with the buffers of `request`, or with a copy of the inline data.
#[inline(always)]
fn with_data(
    state: &QpState,
    request: Request<'_, ibv_send_wr>,
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
        with_inline_data(request, state.inline_limits(), |data| push(&wr, Some(data)))
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
        with_sges(request.list(), push)
    }
}

fn push_datagram(
    poster: &mut SendPoster<'_>,
    state: &QpState,
    request: Request<'_, ibv_send_wr>,
    (op, flags): (SendOp, SendFlags),
) -> Result<(), Errno> {
    // SAFETY: called for UD queue pairs only.
    let (ah, qpn, qkey) = unsafe { request.datagram() };
    let to = datagram(ah, qpn, qkey)?;
    with_data(state, request, (op, flags), |wr, data| {
        Ok(poster.push_datagram(wr, to, data)?)
    })
}

fn push_tso(
    poster: &mut SendPoster<'_>,
    state: &QpState,
    request: Request<'_, ibv_send_wr>,
) -> Result<(), Errno> {
    let (header, mss) = request.tso().ok_or(Errno::INVAL)?;
    let header = tso_header(state, header)?;
    let tso = Tso {
        header: &header,
        mss,
    };
    let op = SendOp::Send { imm: None };
    let flags = SendFlags::from_bits_truncate(request.send_flags);
    with_data(state, request, (op, flags), |wr, data| {
        Ok(poster.push_tso(wr, tso, data)?)
    })
}

/// Copies the header of a request that is cut into segments.
///
/// # Errors
/// `EINVAL` without a header, or if it is longer than the QP's limit.
pub(crate) fn tso_header(state: &QpState, header: Buffer<'_>) -> Result<Vec<u8>, Errno> {
    let len = header.len();
    if header.is_null() || len > state.max_tso_header() {
        let max = state.max_tso_header();
        let what = format!("the header has {len} bytes, the limit of the queue pair is {max}");
        let advice = "request more with IBV_QP_INIT_ATTR_MAX_TSO_HEADER in ibv_create_qp_ex";
        return Err(Errno::INVAL.because(Reason::new(what, advice)));
    }
    Ok(header.to_vec())
}

/// Queues a request of a DC initiator to the target `to`.
///
/// # Errors
/// As for [`push_send`].
pub(crate) fn push_dynamic(
    poster: &mut SendPoster<'_>,
    state: &QpState,
    request: Request<'_, ibv_send_wr>,
    to: ToDct<'_>,
) -> Result<(), Errno> {
    push_as(state, request, |wr, data| {
        Ok(poster.push_dynamic(wr, to, data)?)
    })
}

/// Returns the destination that an address handle and two numbers name.
///
/// # Errors
/// `EINVAL` without address handle.
pub(crate) fn datagram(ah: Handle<'_, ibv_ah>, qpn: u32, qkey: u32) -> Result<Datagram<'_>, Errno> {
    Ok(Datagram {
        ah: ah.get()?.inner().ah(),
        dest_qp: Qpn::new(qpn),
        qkey: Qkey::new(qkey),
    })
}

/// Returns the DC target that an address handle, a number and a key name.
///
/// # Errors
/// `EINVAL` without address handle.
pub(crate) fn target(
    ah: Handle<'_, ibv_ah>,
    dctn: u32,
    key: u64,
    stream: u16,
) -> Result<ToDct<'_>, Errno> {
    Ok(ToDct {
        ah: ah.get()?.inner().ah(),
        dct: Qpn::new(dctn),
        key,
        stream,
    })
}

/// Returns the operation of a C work request. Fails with `EOPNOTSUPP` for operations that the
/// device lacks, and with `EINVAL` for unknown ones.
//= PST-10
#[inline(always)]
fn operation(request: Request<'_, ibv_send_wr>) -> Result<SendOp, Errno> {
    match request.opcode {
        IBV_WR_SEND => Ok(SendOp::Send { imm: None }),
        IBV_WR_RDMA_WRITE => {
            let rdma = request.rdma();
            Ok(SendOp::Write {
                va: rdma.remote_addr,
                rkey: Rkey::new(rdma.rkey),
                imm: None,
            })
        }
        _ => other_operation(request),
    }
}

/// Like [`operation`], for all but plain SEND and WRITE.
fn other_operation(request: Request<'_, ibv_send_wr>) -> Result<SendOp, Errno> {
    let imm = Some(request.imm_data.to_ne_bytes());
    let rdma = request.rdma();
    let atomic = request.atomic();
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
            let (mw, rkey, info) = request.bind().ok_or(Errno::INVAL)?;
            mw::bind_operation(mw, rkey, &info)?
        }
        IBV_WR_ATOMIC_WRITE => SendOp::AtomicWrite { va, rkey },
        // `ibv_send_wr` has no members for the operands of a FLUSH. `ibv_wr_flush` takes them.
        IBV_WR_FLUSH => return Err(not_an_operation(Errno::OPNOTSUPP, &request)),
        // This includes TSO, which RC does not have.
        _ => return Err(not_an_operation(Errno::INVAL, &request)),
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
#[inline(always)]
pub(crate) fn with_sges<T>(
    list: List<'_, ibv_sge>,
    f: impl FnOnce(&[Sge]) -> Result<T, Errno>,
) -> Result<T, Errno> {
    let (one, all);
    let sges: &[Sge] = if list.count() == 1
        && let Some(sge) = list.get(0)
    {
        one = [to_sge(sge)];
        &one
    } else if list.count() == 0 {
        &[]
    } else {
        all = all_sges(list)?;
        all.0.get(..all.1).unwrap_or(&[])
    };
    // Called in one place, so that the compiler inlines it once.
    f(sges)
}

/// Copies a list of one or more entries. Returns the array and the number of entries.
#[inline(never)]
fn all_sges(list: List<'_, ibv_sge>) -> Result<([Sge; MAX_SGE], usize), Errno> {
    let count = usize::try_from(list.count()).map_err(|_| Errno::INVAL)?;
    let mut sges = [Sge::default(); MAX_SGE];
    if count > MAX_SGE || list.is_null() {
        let what = format!(
            "num_sge is {count}, or sg_list is NULL. The device's limit is {MAX_SGE} entries"
        );
        return Err(Errno::INVAL.because(Reason::new(what, "")));
    }
    for (sge, entry) in sges.iter_mut().zip(list.iter()) {
        *sge = to_sge(entry);
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
fn with_inline_data<T>(
    request: Request<'_, ibv_send_wr>,
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
        let data = request.inline(index).ok_or(Errno::INVAL)?;
        let len = data.len();
        if len > max_len - filled {
            let what = format!("more inline data than max_inline_data, {max_len} bytes");
            let advice =
                "request more in ibv_create_qp (cap.max_inline_data), or do not send inline";
            return Err(Errno::INVAL.because(Reason::new(what, advice)));
        }
        if data.is_null() && len > 0 {
            return Err(Errno::INVAL.because(Reason::new("inline data are at NULL", "")));
        }
        let target = space.get_mut(filled..filled + len).ok_or(Errno::INVAL)?;
        data.copy_to(target);
        filled += len;
    }
    f(space.get(..filled).unwrap_or(&[]))
}

#[cfg(test)]
mod tests {
    use rocade_abi::{IBV_SEND_INLINE, ibv_send_wr_atomic, ibv_send_wr_rdma, ibv_send_wr_remote};

    use super::*;
    use crate::args::zeroed;

    fn operation(request: &ibv_send_wr) -> Result<SendOp, Errno> {
        // SAFETY: no request here names an object.
        super::operation(unsafe { Request::new(request) })
    }

    fn request(opcode: u32) -> ibv_send_wr {
        let mut wr: ibv_send_wr = zeroed();
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
            let list = unsafe { List::new(list, count) };
            with_sges(list, |sges| Ok(sges.len()))
        };
        assert_eq!(count(&raw const sge, 1), Ok(1));
        assert_eq!(count(std::ptr::null(), 0), Ok(0));
        assert_eq!(count(std::ptr::null(), 1), Err(Errno::INVAL));
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
        wr.send_flags = IBV_SEND_INLINE;
        let collect = |entries, bytes| {
            // SAFETY: the list names parts of `data`.
            let request = unsafe { Request::new(&wr) };
            with_inline_data(request, limits(entries, bytes), |data| Ok(data.to_vec()))
        };
        assert_eq!(collect(2, 3), Ok(vec![3, 4, 1]));
        assert_eq!(collect(2, 2), Err(Errno::INVAL));
        assert_eq!(collect(1, 3), Err(Errno::INVAL));
    }
}
