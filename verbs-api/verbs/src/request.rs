//! Send work requests.

use rocade_emulator::{Bind, Feth, Operands, Rkey, SendFlags, SendOp, SendWr, Sge, Srqn};

use crate::endpoint::RemoteMemory;

/// Flush to global visibility, selecting a range.
const FLUSH_RANGE: Feth = Feth::from_raw(1);
/// Flush to global visibility, selecting the whole region.
const FLUSH_REGION: Feth = Feth::from_raw(1 | 1 << 4);

/// A send work request.
///
/// Each request is signaled: it also generates a completion on success, unless it is made
/// [`unsignaled`](Self::unsignaled).
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
/// # let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
/// # let access = access | AccessFlags::REMOTE_ATOMIC;
/// let (result, counter) = (a.register(8, access)?, b.register(8, access)?);
/// counter.store_u64(0, 40)?;
/// let sges = [result.sge(..)?];
/// a_qp.post_send(&SendRequest::fetch_add(&sges, counter.remote(), 2).wr_id(9))?;
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

    /// A NOP: it does nothing, and completes in order. With a [fence](Self::fence) it completes
    /// after all earlier READs and atomics.
    //= NOP-01
    #[doc(alias = "IBV_EXP_WR_NOP")]
    pub const fn nop() -> Self {
        Self::new(SendOp::Nop, &[], None)
    }

    /// A SEND of the bytes of `sges` to a receive buffer of the peer.
    pub const fn send(sges: &'a [Sge]) -> Self {
        Self::new(SendOp::Send { imm: None }, sges, None)
    }

    /// A SEND with invalidate. It invalidates `rkey` at the peer before the peer's receive
    /// completes. `rkey` belongs to a [`MemoryWindow`](crate::MemoryWindow) that the peer has bound
    /// for this side.
    pub const fn send_invalidating(sges: &'a [Sge], rkey: Rkey) -> Self {
        Self::new(SendOp::SendInv { rkey }, sges, None)
    }

    /// A local invalidate: invalidates the key of a bound [`MemoryWindow`](crate::MemoryWindow). It
    /// runs after all earlier requests have completed. When it completes, no access through the key
    /// is in flight.
    pub const fn invalidate(rkey: Rkey) -> Self {
        Self::new(SendOp::Invalidate { rkey }, &[], None)
    }

    pub(crate) const fn bind(bind: Bind) -> Self {
        Self::new(SendOp::Bind(bind), &[], None)
    }

    /// A SEND of `data`. Posting copies `data`, which need not be registered.
    pub const fn send_inline(data: &'a [u8]) -> Self {
        Self::new(SendOp::Send { imm: None }, &[], Some(data))
    }

    /// A WRITE of the bytes of `sges` to the peer's memory.
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

    /// A WRITE of `data` to the peer's memory. Posting copies `data`, which need not be registered.
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

    /// A READ of the peer's memory into `sges`.
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

    /// An atomic compare-and-swap. It replaces the 8 bytes at `at` by `swap` if they equal
    /// `compare`.
    ///
    /// The old value is written to `result`, one entry of 8 bytes. All values are numbers in the
    /// byte order of the machine that holds them.
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

    /// An atomic fetch-and-add: adds `add`, modulo 2^64, to the 8 bytes at `at`. The old value is
    /// written to `result`, as by [`compare_swap`](Self::compare_swap).
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

    /// An ATOMIC WRITE of 8 bytes to `at`, a multiple of 8. Posting copies `data`.
    ///
    /// A reader at the peer sees the 8 old or the 8 new bytes, never a mixture. All earlier
    /// requests are executed before, so the 8 bytes may announce the data that they wrote. RC, XRC
    /// and DC support it.
    ///
    /// The peer reads a number sent as [`to_ne_bytes`](u64::to_ne_bytes) with
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

    /// A FLUSH: completes when earlier writes to `range` are visible to every process on the peer's
    /// host.
    ///
    /// The acknowledgement of a WRITE only confirms that the data has arrived. The region and the
    /// peer's queue pair have to allow `FLUSH_GLOBAL`. The peer rejects a range of 2 GiB or more as
    /// an invalid request. RC, XRC and DC support FLUSH.
    //= WRX-12
    #[doc(alias = "ibv_wr_flush")]
    pub fn flush(range: RemoteMemory) -> Self {
        Self::flush_of(range, range.len, FLUSH_RANGE)
    }

    /// A [`flush`](Self::flush) of the whole region that `region` is a part of.
    //= WRX-12
    #[doc(alias = "ibv_wr_flush")]
    pub fn flush_region(region: RemoteMemory) -> Self {
        Self::flush_of(region, 0, FLUSH_REGION)
    }

    fn flush_of(place: RemoteMemory, len: u64, feth: Feth) -> Self {
        let op = SendOp::Flush {
            va: place.addr,
            rkey: place.rkey,
            // A length above 32 bits stays too long, so the peer rejects it.
            len: u32::try_from(len).unwrap_or(u32::MAX),
            feth,
        };
        Self::new(op, &[], None)
    }

    /// Sets the `wr_id` that the completion carries. It is 0 by default.
    pub const fn wr_id(mut self, wr_id: u64) -> Self {
        self.wr_id = wr_id;
        self
    }

    /// Adds immediate data to a SEND or WRITE: four bytes that the peer's receive completion
    /// carries unchanged. A WRITE with immediate data consumes a receive of the peer. Other
    /// operations ignore it.
    pub const fn imm(mut self, data: [u8; 4]) -> Self {
        if let SendOp::Send { imm } | SendOp::Write { imm, .. } = &mut self.op {
            *imm = Some(data);
        }
        self
    }

    /// Sets the number of the peer's shared receive queue, its
    /// [number](crate::SharedReceiveQueue::number). Every XRC request needs it, even if it consumes
    /// no receive. Other services ignore it.
    #[doc(alias = "remote_srqn")]
    pub const fn to_queue(mut self, number: u32) -> Self {
        self.queue = Some(Srqn::new(number));
        self
    }

    pub(crate) const fn id(&self) -> u64 {
        self.wr_id
    }

    /// Requests the completion on success.
    pub(crate) const fn signaled(mut self) -> Self {
        self.flags = self.flags.union(SendFlags::SIGNALED);
        self
    }

    /// Suppresses the completion on success.
    pub const fn unsignaled(mut self) -> Self {
        self.flags = self.flags.difference(SendFlags::SIGNALED);
        self
    }

    /// Sets the solicited event flag, so that the peer's receive completion is a solicited one.
    pub const fn solicited(mut self) -> Self {
        self.flags = self.flags.union(SendFlags::SOLICITED);
        self
    }

    /// Sets the fence flag: the request starts after all earlier READs and atomics have completed.
    pub const fn fence(mut self) -> Self {
        self.flags = self.flags.union(SendFlags::FENCE);
        self
    }

    /// Returns the shared receive queue that the request names.
    pub(crate) const fn queue(&self) -> Option<Srqn> {
        self.queue
    }

    /// Returns the operands of an operation that has more than `SendOp` holds.
    pub(crate) const fn operands(&self) -> Option<&'a Operands> {
        self.operands
    }

    /// Returns the emulator's form of the request, and the inline data.
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
