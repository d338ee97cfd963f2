//! Send work requests.

use rocade_emulator::{Bind, Feth, Operands, Rkey, SendFlags, SendOp, SendWr, Sge, Srqn};

use crate::endpoint::RemoteMemory;

/// To global visibility, of a range.
const FLUSH_RANGE: Feth = Feth::from_raw(1);
/// Likewise, of the region.
const FLUSH_REGION: Feth = Feth::from_raw(1 | 1 << 4);

/// What a send queue is asked to do.
///
/// Each request is signaled, that is, it completes visibly also on success, unless
/// [`unsignaled`](Self::unsignaled) says otherwise.
///
/// ```
/// # use std::time::Duration;
/// # use rocade_verbs::*;
/// # let list = DeviceList::new(Config::simulated(1))?;
/// # let (a, b) = (list.open("a")?.protection_domain()?, list.open("b")?.protection_domain()?);
/// # let (a_cq, b_cq) = (a.context().completion_queue(16)?, b.context().completion_queue(16)?);
/// # let (a_qp, b_qp) = (a.queue_pair(&a_cq).build()?, b.queue_pair(&b_cq).build()?);
/// # let (a_end, b_end) = (a_qp.endpoint(), b_qp.endpoint());
/// # let a_qp = a_qp.connect(b_end, &ConnectOptions::default())?;
/// # let b_qp = b_qp.connect(a_end, &ConnectOptions::default())?;
/// # let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_ATOMIC;
/// let (result, counter) = (a.register(8, access)?, b.register(8, access)?);
/// counter.store_u64(0, 40)?;
/// a_qp.post_send(&SendRequest::fetch_add(&[result.sge(..)?], counter.remote(), 2).wr_id(9))?;
/// assert_eq!(a_cq.wait(Duration::from_secs(1))?.wr_id, 9);
/// assert_eq!((result.load_u64(0)?, counter.load_u64(0)?), (40, 42));
/// # Ok::<(), rocade_verbs::Error>(())
/// ```
#[derive(Debug, Clone, Copy)]
#[must_use = "a request does nothing until it is posted"]
#[doc(alias = "ibv_send_wr")]
pub struct SendRequest<'a> {
    wr_id: u64,
    op: SendOp,
    flags: SendFlags,
    sges: &'a [Sge],
    inline: Option<&'a [u8]>,
    queue: Option<Srqn>,
    operands: Option<&'a Operands>,
}

impl<'a> SendRequest<'a> {
    const fn new(op: SendOp, sges: &'a [Sge], inline: Option<&'a [u8]>) -> Self {
        Self {
            wr_id: 0,
            op,
            flags: SendFlags::SIGNALED,
            sges,
            inline,
            queue: None,
            operands: None,
        }
    }

    pub(crate) const fn with_operands(op: SendOp, sges: &'a [Sge], operands: &'a Operands) -> Self {
        let mut request = Self::new(op, sges, None);
        request.operands = Some(operands);
        request
    }

    /// Does nothing but complete in its turn; with a [fence](Self::fence) once all READs and atomics before it are complete.
    //= NOP-01
    #[doc(alias = "IBV_EXP_WR_NOP")]
    pub const fn nop() -> Self {
        Self::new(SendOp::Nop, &[], None)
    }

    /// Sends the bytes of `sges` to a receive buffer of the peer.
    pub const fn send(sges: &'a [Sge]) -> Self {
        Self::new(SendOp::Send { imm: None }, sges, None)
    }

    /// Sends the bytes of `sges`, and makes one of the peer's keys invalid before its receive completes: that of a
    /// [`MemoryWindow`](crate::MemoryWindow), which it has given to us.
    pub const fn send_invalidating(sges: &'a [Sge], rkey: Rkey) -> Self {
        Self::new(SendOp::SendInv { rkey }, sges, None)
    }

    /// Takes a key back that was given to the peer, once all requests before this one are complete: no access
    /// through it is in flight then. It has to be that of a [`MemoryWindow`](crate::MemoryWindow).
    pub const fn invalidate(rkey: Rkey) -> Self {
        Self::new(SendOp::Invalidate { rkey }, &[], None)
    }

    pub(crate) const fn bind(bind: Bind) -> Self {
        Self::new(SendOp::Bind(bind), &[], None)
    }

    /// Sends `data`, which is copied when the request is posted and need not be registered.
    pub const fn send_inline(data: &'a [u8]) -> Self {
        Self::new(SendOp::Send { imm: None }, &[], Some(data))
    }

    /// Writes the bytes of `sges` to the peer's memory.
    pub const fn write(sges: &'a [Sge], to: RemoteMemory) -> Self {
        Self::new(
            SendOp::Write {
                va: to.addr,
                rkey: to.rkey,
                imm: None,
            },
            sges,
            None,
        )
    }

    /// Writes `data`, which is copied when the request is posted, to the peer's memory.
    pub const fn write_inline(data: &'a [u8], to: RemoteMemory) -> Self {
        Self::new(
            SendOp::Write {
                va: to.addr,
                rkey: to.rkey,
                imm: None,
            },
            &[],
            Some(data),
        )
    }

    /// Reads the peer's memory into `sges`.
    pub const fn read(sges: &'a [Sge], from: RemoteMemory) -> Self {
        Self::new(
            SendOp::Read {
                va: from.addr,
                rkey: from.rkey,
            },
            sges,
            None,
        )
    }

    /// Replaces the 8 bytes at `at` by `swap` if they are `compare`; what was there comes back
    /// into `result`, one entry of 8 bytes. Both are numbers in the machines' own byte order.
    pub const fn compare_swap(
        result: &'a [Sge],
        at: RemoteMemory,
        compare: u64,
        swap: u64,
    ) -> Self {
        let op = SendOp::CmpSwap {
            va: at.addr,
            rkey: at.rkey,
            compare,
            swap,
        };
        Self::new(op, result, None)
    }

    /// Adds `add` to the 8 bytes at `at`, modulo 2^64; what was there comes back into `result`.
    pub const fn fetch_add(result: &'a [Sge], at: RemoteMemory, add: u64) -> Self {
        Self::new(
            SendOp::FetchAdd {
                va: at.addr,
                rkey: at.rkey,
                add,
            },
            result,
            None,
        )
    }

    /// Replaces the 8 bytes at `at`, a multiple of 8, by `data`, which is copied when the request is posted: who looks at
    /// them there sees the old ones or the new ones, and never parts of both. All requests before this one are executed by
    /// then, so the 8 bytes may announce what these have written. Of RC, XRC and DC.
    ///
    /// With a number's [`to_ne_bytes`](u64::to_ne_bytes) the peer finds it by
    /// [`load_u64`](crate::MemoryRegion::load_u64).
    //= WRX-12
    #[doc(alias = "ibv_wr_atomic_write")]
    pub const fn atomic_write(data: &'a [u8; 8], at: RemoteMemory) -> Self {
        let op = SendOp::AtomicWrite {
            va: at.addr,
            rkey: at.rkey,
        };
        Self::new(op, &[], Some(data))
    }

    /// Completes when everybody on the peer's host can see what was written to `range` before: an acknowledged WRITE says
    /// only that it has arrived. Of RC, XRC and DC. The region and the peer's queue pair have to allow
    /// `FLUSH_GLOBAL`; a range of 2 GiB or more is an invalid request.
    //= WRX-12
    #[doc(alias = "ibv_wr_flush")]
    pub fn flush(range: RemoteMemory) -> Self {
        Self::flush_of(range, range.len, FLUSH_RANGE)
    }

    /// [`flush`](Self::flush) for all of the region that `region` is in.
    //= WRX-12
    #[doc(alias = "ibv_wr_flush")]
    pub fn flush_region(region: RemoteMemory) -> Self {
        Self::flush_of(region, 0, FLUSH_REGION)
    }

    fn flush_of(place: RemoteMemory, len: u64, feth: Feth) -> Self {
        let op = SendOp::Flush {
            va: place.addr,
            rkey: place.rkey,
            // What is too long stays so: the peer refuses it.
            len: u32::try_from(len).unwrap_or(u32::MAX),
            feth,
        };
        Self::new(op, &[], None)
    }

    /// Sets the number that the completion carries; 0 by default.
    pub const fn wr_id(mut self, wr_id: u64) -> Self {
        self.wr_id = wr_id;
        self
    }

    /// Adds immediate data to a SEND or WRITE, four bytes that the peer's receive completion
    /// carries unchanged. A WRITE with immediate data consumes a receive request of the peer.
    /// Other operations have none: it is ignored.
    pub const fn imm(mut self, data: [u8; 4]) -> Self {
        if let SendOp::Send { imm } | SendOp::Write { imm, .. } = &mut self.op {
            *imm = Some(data);
        }
        self
    }

    /// Names the shared receive queue of the peer, by its [number](crate::SharedReceiveQueue::number): with XRC each
    /// request does, one that takes no receive as well. Other services ignore it.
    #[doc(alias = "remote_srqn")]
    pub const fn to_queue(mut self, number: u32) -> Self {
        self.queue = Some(Srqn::new(number));
        self
    }

    /// Asks for no completion on success.
    pub const fn unsignaled(mut self) -> Self {
        self.flags = self.flags.difference(SendFlags::SIGNALED);
        self
    }

    /// Makes the peer's completion a solicited one.
    pub const fn solicited(mut self) -> Self {
        self.flags = self.flags.union(SendFlags::SOLICITED);
        self
    }

    /// Starts only when READs and atomics posted before have completed.
    pub const fn fence(mut self) -> Self {
        self.flags = self.flags.union(SendFlags::FENCE);
        self
    }

    /// The shared receive queue that it names.
    pub(crate) const fn queue(&self) -> Option<Srqn> {
        self.queue
    }

    /// What its operation has besides.
    pub(crate) const fn operands(&self) -> Option<&'a Operands> {
        self.operands
    }

    /// The request as the emulator takes it, and its inline data.
    pub(crate) fn parts(&self) -> (SendWr<'a>, Option<&'a [u8]>) {
        let inline = if self.inline.is_some() {
            SendFlags::INLINE
        } else {
            SendFlags::empty()
        };
        let flags = self.flags.union(inline);
        let wr = SendWr {
            wr_id: self.wr_id,
            op: self.op,
            flags,
            sges: self.sges,
        };
        (wr, self.inline)
    }
}
