//! Traced data-path verbs: posts, polls and requests for events. Also `ibv_modify_qp`, whose mask
//! tells which of its arguments exist.

use std::{
    cell::Cell,
    ffi::{c_int, c_uint},
    ptr,
};

use rocade_abi::{
    IBV_QP_DEST_QPN, IBV_QP_PATH_MTU, IBV_QP_SQ_PSN, IBV_QP_STATE, IBV_SEND_INLINE,
    IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_BIND_MW, IBV_WR_LOCAL_INV,
    IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, IBV_WR_SEND_WITH_INV, ibv_cq, ibv_qp, ibv_qp_attr,
    ibv_qp_ex, ibv_recv_wr, ibv_send_wr, ibv_sge, ibv_srq, ibv_wc,
};
use rocade_emulator::{
    Completion, QpType, SendOp, SendWr,
    trace::{self, Kind, queue},
};

use super::{
    attr::qp_attr,
    show::{Rule, Shown, argument, outcome},
    sink::{begin, end, is_on, kept},
};
use crate::{
    args::{Chain, Chained, FromC, Handle, In, List, Out, member},
    cq, post,
    qp::{self, QpObject},
    srq,
};

/// The empty polls after which a record tells so, because the program may never find anything.
const MANY_POLLS: u32 = 1 << 16;

thread_local! {
    /// The polls of this thread that found nothing since its last record.
    static EMPTY: Cell<u32> = const { Cell::new(0) };
}

/// Puts two numbers into a field.
pub(super) fn pair(high: u32, low: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

/// Records the end of a post. `queue` is a QP number, or the address of an SRQ. `count` has the
/// number of queued requests in its upper half.
pub(super) fn post_end((kind, errno): (u32, c_int), queue: u64, count: u64, start: u64) {
    let end = trace::now_ns();
    let fields = [
        pair(kind, errno.unsigned_abs()),
        queue,
        count,
        end.saturating_sub(start),
    ];
    trace::write_at(end, Kind::PostEnd, &fields, "");
}

/// The requests of a call that posts.
struct Posts {
    kind: Kind,
    start: u64,
    count: u32,
    /// The first request, until there are others.
    first: [u64; FIELDS],
}

/// The fields of a request.
const FIELDS: usize = 7;

impl Posts {
    const fn new(kind: Kind, start: u64) -> Self {
        Self {
            kind,
            start,
            count: 0,
            first: [0; FIELDS],
        }
    }

    /// Adds a request. All but a single one are recorded before they are posted.
    fn add(&mut self, fields: [u64; FIELDS]) {
        match self.count {
            0 => self.first = fields,
            1 => {
                trace::write_at(self.start, self.kind, &self.first, "");
                trace::write_at(self.start, self.kind, &fields, "");
            }
            _ => trace::write_at(self.start, self.kind, &fields, ""),
        }
        self.count += 1;
    }

    /// Records the end of the call. `queued` tells how many of all requests are queued.
    fn end(self, (queue, id): (u32, u64), result: c_int, queued: impl FnOnce(u32) -> u32) {
        let queued = queued(self.count);
        if self.count == 1 && result == 0 {
            let took = trace::now_ns().saturating_sub(self.start);
            let mut fields = [0; FIELDS + 1];
            fields[..FIELDS].copy_from_slice(&self.first);
            let kind = match self.kind {
                Kind::PostSend => {
                    fields[FIELDS] = took;
                    Kind::PostedSend
                }
                _ => {
                    fields[FIELDS - 1] = took;
                    Kind::PostedRecv
                }
            };
            trace::write_at(self.start, kind, &fields, "");
            return;
        }
        if self.count == 1 {
            trace::write_at(self.start, self.kind, &self.first, "");
        }
        post_end((queue, result), id, pair(queued, 0), self.start);
    }
}

/// The data of a work request.
#[derive(Clone, Copy, Default)]
pub(super) struct DataRange {
    pub(super) count: u32,
    pub(super) len: u32,
    pub(super) addr: u64,
    pub(super) lkey: u32,
}

pub(super) fn data_of(list: List<'_, ibv_sge>) -> DataRange {
    let mut sges = list.iter();
    let Some(first) = sges.next() else {
        return DataRange::default();
    };
    let len = sges.fold(first.length, |sum, sge| sum.wrapping_add(sge.length));
    DataRange {
        count: list.count().unsigned_abs(),
        len,
        addr: first.addr,
        lkey: first.lkey,
    }
}

/// Context op `post_send`.
pub(super) extern "C" fn post_send(
    qp: Handle<'_, ibv_qp>,
    wr: Chain<'_, ibv_send_wr>,
    bad_wr: Out<'_, *mut ibv_send_wr>,
) -> c_int {
    let start = trace::now_ns();
    let qpn = number_of(qp);
    let is_ud = qp.get().is_ok_and(|qp| qp.inner().qp_type() == QpType::Ud);
    let mut posts = Posts::new(Kind::PostSend, start);
    wr.for_each(|request| {
        let data = data_of(request.list());
        let (remote, rkey) = match request.opcode {
            _ if is_ud => {
                // SAFETY: a UD queue pair.
                let (_, remote_qpn, _) = unsafe { request.datagram() };
                (u64::from(remote_qpn), 0)
            }
            IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD => {
                (request.atomic().remote_addr, request.atomic().rkey)
            }
            IBV_WR_SEND | IBV_WR_SEND_WITH_IMM | IBV_WR_SEND_WITH_INV | IBV_WR_LOCAL_INV
            | IBV_WR_BIND_MW => (0, 0),
            _ => (request.rdma().remote_addr, request.rdma().rkey),
        };
        posts.add([
            pair(qpn, request.opcode),
            pair(request.send_flags, data.count),
            request.wr_id,
            pair(data.len, request.imm_data),
            data.addr,
            pair(data.lkey, rkey),
            remote,
        ]);
    });
    let mut bad = ptr::null_mut();
    let result = post::post_send(qp, wr, Out::of(&mut bad));
    posts.end((queue::SEND, u64::from(qpn)), result, |all| {
        accepted(result, wr, (bad_wr, bad), all)
    });
    result
}

/// Returns the number of a queue pair, or 0 for one of the parent process.
pub(super) fn number_of(qp: Handle<'_, ibv_qp>) -> u32 {
    qp.get().map_or(0, |qp| qp.inner().qp().qp_num().get())
}

/// Returns the number of queued requests of a post, and tells the program the first one that is not
/// queued.
pub(super) fn accepted<R: Chained>(
    result: c_int,
    chain: Chain<'_, R>,
    (bad_wr, bad): (Out<'_, *mut R>, *mut R),
    all: u32,
) -> u32 {
    if result == 0 {
        return all;
    }
    if bad.is_null() {
        return 0;
    }
    let _ = bad_wr.write(bad);
    let (mut count, mut is_before) = (0, true);
    chain.for_each(|request| {
        is_before = is_before && !ptr::eq(request.get(), bad);
        count += u32::from(is_before);
    });
    count
}

/// Records a request that `ibv_wr_complete` posts. `remote_qpn` is that of a datagram. `operands`
/// are those that plain requests do not have.
#[cold]
pub(crate) fn staged(
    qpn: u32,
    wr: &SendWr<'_>,
    inline: usize,
    remote_qpn: Option<u32>,
    operands: &str,
) {
    let (opcode, mut remote, rkey, imm) = of_op(&wr.op);
    if let Some(qpn) = remote_qpn {
        remote = u64::from(qpn);
    }
    let sum = wr
        .sges
        .iter()
        .fold(0u32, |sum, sge| sum.wrapping_add(sge.len));
    let len = sum.wrapping_add(u32::try_from(inline).unwrap_or(0));
    let first = wr.sges.first();
    let count = u32::try_from(wr.sges.len()).unwrap_or(0);
    let mut flags = wr.flags.bits();
    if inline > 0 {
        flags |= IBV_SEND_INLINE;
    }
    let fields = [
        pair(qpn, opcode),
        pair(flags, count),
        wr.wr_id,
        pair(len, imm),
        first.map_or(0, |sge| sge.addr),
        pair(first.map_or(0, |sge| sge.lkey.get()), rkey),
        remote,
    ];
    trace::write(Kind::PostSend, &fields, operands);
}

/// Returns operation code, remote address, rkey and immediate data.
fn of_op(op: &SendOp) -> (u32, u64, u32, u32) {
    let (va, rkey) = op.remote().map_or((0, 0), |(va, rkey)| (va, rkey.get()));
    if let SendOp::Send { imm: Some(imm) } | SendOp::Write { imm: Some(imm), .. } = op {
        return (op.code() + 1, va, rkey, u32::from_ne_bytes(*imm));
    }
    if let SendOp::SendInv { rkey } = op {
        return (op.code(), 0, rkey.get(), 0);
    }
    (op.code(), va, rkey, 0)
}

/// Records the end of `ibv_wr_complete`, which queues all requests or none.
#[cold]
pub(crate) fn completed_batch(result: c_int, qpn: u32, count: usize, start: u64) {
    let count = u32::try_from(count).unwrap_or(0);
    let accepted = if result == 0 { count } else { 0 };
    let counts = pair(accepted, 0);
    post_end((queue::SEND, result), u64::from(qpn), counts, start);
}

/// Adds receives to a post.
fn add_receives(posts: &mut Posts, (qpn, srq): (u32, u64), first: Chain<'_, ibv_recv_wr>) {
    first.for_each(|request| {
        let data = data_of(request.list());
        posts.add([
            pair(qpn, data.count),
            srq,
            request.wr_id,
            u64::from(data.len),
            data.addr,
            pair(data.lkey, 0),
            0,
        ]);
    });
}

/// Context op `post_recv`.
pub(super) extern "C" fn post_recv(
    qp: Handle<'_, ibv_qp>,
    wr: Chain<'_, ibv_recv_wr>,
    bad_wr: Out<'_, *mut ibv_recv_wr>,
) -> c_int {
    let mut posts = Posts::new(Kind::PostRecv, trace::now_ns());
    let qpn = number_of(qp);
    add_receives(&mut posts, (qpn, 0), wr);
    let mut bad = ptr::null_mut();
    let result = post::post_recv(qp, wr, Out::of(&mut bad));
    posts.end((queue::RECV, u64::from(qpn)), result, |all| {
        accepted(result, wr, (bad_wr, bad), all)
    });
    result
}

/// Context op `post_srq_recv`.
pub(super) extern "C" fn post_srq_recv(
    srq: Handle<'_, ibv_srq>,
    wr: Chain<'_, ibv_recv_wr>,
    bad_wr: Out<'_, *mut ibv_recv_wr>,
) -> c_int {
    let mut posts = Posts::new(Kind::PostRecv, trace::now_ns());
    let id = srq.addr() as u64;
    add_receives(&mut posts, (0, id), wr);
    let mut bad = ptr::null_mut();
    let result = srq::post_srq_recv(srq, wr, Out::of(&mut bad));
    posts.end((queue::SHARED, id), result, |all| {
        accepted(result, wr, (bad_wr, bad), all)
    });
    result
}

/// Context op `poll_cq`.
///
/// # Safety
/// `wc` must be NULL or have `num_entries` entries.
pub(super) unsafe extern "C" fn poll_cq(
    cq: Handle<'_, ibv_cq>,
    num_entries: c_int,
    wc: *mut ibv_wc,
) -> c_int {
    let before = trace::last_ns();
    // SAFETY: same contract.
    let polled = unsafe { cq::poll_cq(cq, num_entries, wc) };
    let id = cq.addr() as u64;
    match usize::try_from(polled) {
        Ok(0) | Err(_) => empty_poll(id),
        Ok(count) => {
            // SAFETY: the poll has written as many.
            let all: List<'_, ibv_wc> = unsafe { FromC::from_c((wc, count)) };
            // A poll that has received the packet of a completion has read the clock for it.
            let now = match trace::last_ns() {
                last if last != before => last,
                _ => trace::now_ns(),
            };
            for (position, wc) in (0..).zip(all.iter()) {
                let fields = [
                    id,
                    wc.wr_id,
                    pair(wc.status, wc.opcode),
                    pair(wc.qp_num, wc.src_qp),
                    pair(wc.byte_len, wc.imm_data),
                    pair(wc.vendor_err, wc.wc_flags),
                    pair(take_empty(), position),
                ];
                trace::write_at(now, Kind::Completion, &fields, "");
            }
        }
    }
    polled
}

fn take_empty() -> u32 {
    EMPTY.try_with(Cell::take).unwrap_or(0)
}

/// Counts a poll that found nothing.
#[cold]
pub(crate) fn empty_poll(cq: u64) {
    let count = EMPTY.try_with(|empty| {
        empty.set(empty.get().wrapping_add(1));
        empty.get()
    });
    if count == Ok(MANY_POLLS) {
        trace::write(Kind::EmptyPolls, &[cq, u64::from(take_empty())], "");
    }
}

/// Records a completion of an extended CQ.
#[cold]
pub(crate) fn polled(cq: u64, completion: &Completion) {
    completed((cq, completion), completion.opcode.code(), 0);
}

/// Records a completion of a CQ. `position` is that in its poll.
pub(super) fn completed((cq, completion): (u64, &Completion), opcode: u32, position: u32) {
    let fields = [
        cq,
        completion.wr_id,
        pair(completion.status.code(), opcode),
        pair(completion.qp_num.get(), completion.src_qp.get()),
        pair(completion.byte_len, cq::imm_data(completion)),
        pair(completion.vendor_err, completion.wc_flags.bits()),
        pair(take_empty(), position),
    ];
    trace::write(Kind::Completion, &fields, "");
}

/// Context op `req_notify_cq`.
pub(super) extern "C" fn req_notify_cq(cq: Handle<'_, ibv_cq>, solicited_only: c_int) -> c_int {
    let start = trace::now_ns();
    let result = cq::req_notify_cq(cq, solicited_only);
    let id = cq.addr() as u64;
    let words = pair(solicited_only.unsigned_abs(), result.unsigned_abs());
    let end = trace::now_ns();
    let fields = [id, words, end.saturating_sub(start)];
    trace::write_at(end, Kind::ReqNotify, &fields, "");
    result
}

/// `ibv_modify_qp`.
pub(crate) extern "C" fn ibv_modify_qp(
    qp: Handle<'_, ibv_qp>,
    attr: In<'_, ibv_qp_attr>,
    attr_mask: c_int,
) -> c_int {
    if !is_on() {
        return qp::ibv_modify_qp(qp, attr, attr_mask);
    }
    let attributes = (attr.optional().map(|attr| *attr), attr_mask.cast_unsigned());
    modify("ibv_modify_qp", qp, attributes, "", || {
        qp::ibv_modify_qp(qp, attr, attr_mask)
    })
}

/// Calls a function that modifies a QP. `more` are attributes that plain structures do not have.
pub(super) fn modify(
    name: &str,
    qp: Handle<'_, ibv_qp>,
    (attr, mask): (Option<ibv_qp_attr>, c_uint),
    more: &str,
    call: impl FnOnce() -> c_int,
) -> c_int {
    begin(name, |text| {
        let place = qp.as_ptr();
        // SAFETY: NULL or a live QP.
        argument("qp", unsafe { Shown::new(&place) }, true, text);
        text.push_str(", attr=");
        match &attr {
            Some(attr) => qp_attr(attr, mask, text),
            None => text.push_str("NULL"),
        }
        text.push_str(more);
    });
    let result = call();
    if result == 0
        && let (Ok(qp), Some(attr)) = (qp.get(), &attr)
    {
        kept(|| record_attributes(qp, attr, mask));
    }
    // SAFETY: a number.
    end(unsafe { outcome(&result, Rule::Errno) }, |_| ());
    result
}

/// Records what ties packets to work requests.
fn record_attributes(qp: &QpObject, attr: &ibv_qp_attr, mask: u32) {
    let wanted = IBV_QP_STATE | IBV_QP_DEST_QPN | IBV_QP_PATH_MTU | IBV_QP_SQ_PSN;
    if mask & wanted != 0 {
        let fields = [
            u64::from(qp.inner().qp().qp_num().get()),
            u64::from(mask),
            pair(attr.qp_state, attr.path_mtu),
            pair(attr.dest_qp_num, attr.sq_psn),
            qp.member(member!(ibv_qp_ex, qp_base.send_cq)).addr() as u64,
            qp.member(member!(ibv_qp_ex, qp_base.recv_cq)).addr() as u64,
            u64::from(qp.inner().qp().sq_sig_all()),
        ];
        trace::write(Kind::Qp, &fields, "");
    }
}
