//! The queue pair of a stream, with its buffers.

use std::time::{Duration, Instant};

use rocade_abi::{
    IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_WRITE, IBV_QPT_RC, IBV_WC_SUCCESS, IBV_WC_WITH_IMM,
    IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM, ibv_qp, ibv_qp_init_attr, ibv_send_wr,
    ibv_send_wr_rdma, rdma_cm_id,
};
use rocade_rsockets::{
    Config, ConnData, End, IOMAP_LEN, Iomap, Peers, SGE_LEN, SGL_SLOTS, Sge, Source, Stream, Write,
};

use super::{
    cm::Id,
    iov::{Source as Callers, Target},
    memory::Buffer,
    options::Options,
    queue::{self, Data, Queue, To},
};
use crate::{
    args::{Handle, View, zeroed},
    ffi::Errno,
    qp::{extended, make_qp, rdma_destroy_qp},
};

/// The `wr_id` bit of receive work requests.
const RECV: u64 = 1 << 63;
/// Receives in addition to those for data, so that control messages always find a receive.
const SPARE_RECVS: u16 = 16;
/// Limits of the queue sizes.
const MIN_SLOTS: u16 = 16;
const MAX_SLOTS: u16 = 16_384 - SPARE_RECVS;
/// The maximum size of inline data.
const MAX_INLINE: usize = 1024;
/// The number of empty polls between two checks of the clock.
const POLLS_PER_CLOCK_CHECK: u32 = 64;
/// The time without a message of the peer after which a keepalive is sent.
pub(super) const KEEPALIVE_AFTER: Duration = Duration::from_secs(5);

/// The queue pair of a connection, with its CQ and buffers.
pub(super) struct StreamQp {
    id: *mut rdma_cm_id,
    qp: *mut ibv_qp,
    pub(super) queue: Queue,
    /// The receive buffer, followed by the lists of the peer's buffers.
    recv: Lists,
    send: Buffer,
    config: Config,
    stream: Option<Stream>,
    /// Set once the connection is established.
    open: bool,
    last_received: Instant,
    /// The number of empty polls.
    empty_polls: u32,
}

// SAFETY: objects of libibverbs, which any thread may use.
unsafe impl Send for StreamQp {}

/// Memory that the peer writes to.
struct Lists {
    buffer: Buffer,
    /// The offset of the lists.
    at: usize,
}

impl Peers for Lists {
    fn target(&self, slot: usize) -> Sge {
        let at = self.at + slot * SGE_LEN;
        Sge::from_bytes(self.buffer.read(at), cfg!(target_endian = "big"))
    }

    fn iomap(&self, index: u16) -> Iomap {
        let at = self.at + SGL_SLOTS * SGE_LEN + usize::from(index) * IOMAP_LEN;
        Iomap::from_bytes(self.buffer.read(at), cfg!(target_endian = "big"))
    }
}

impl StreamQp {
    /// Creates the queue pair of an ID that has a device.
    pub(super) fn new(id: &Id, options: &Options) -> Result<Self, Errno> {
        let (device, pd) = (id.device()?, id.pd()?);
        let send_slots = options.send_slots.clamp(MIN_SLOTS, MAX_SLOTS);
        let recv_slots = options.recv_slots.clamp(MIN_SLOTS, MAX_SLOTS);
        let recvs = recv_slots + SPARE_RECVS;
        let queue = Queue::new(device, u32::from(send_slots) + u32::from(recvs))?;
        let recv_buffer = options.recv_buffer & !1;
        // The lists consist of 64-bit numbers.
        let at = usize::try_from(recv_buffer.next_multiple_of(8)).map_err(|_| Errno::INVAL)?;
        let len = at + Stream::lists_len(options.iomaps);
        let access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
        let recv = Lists {
            buffer: Buffer::new(pd, len, access)?,
            at,
        };
        let send_len = usize::try_from(options.send_buffer).map_err(|_| Errno::INVAL)?;
        let send = Buffer::new(pd, send_len, 0)?;
        let inline = usize::from(options.inline).min(MAX_INLINE);
        let config = Config {
            send_slots,
            recv_slots,
            send_buffer: options.send_buffer,
            recv_buffer,
            recv_addr: recv.buffer.addr(0),
            recv_key: recv.buffer.rkey(),
            inline: u32::try_from(inline).unwrap_or(0),
            iomaps: options.iomaps,
            big_endian: cfg!(target_endian = "big"),
        };
        let mut attr: ibv_qp_init_attr = zeroed();
        attr.send_cq = queue.cq().as_ptr();
        attr.recv_cq = queue.cq().as_ptr();
        attr.qp_type = IBV_QPT_RC;
        attr.sq_sig_all = 1;
        attr.cap.max_send_wr = send_slots.into();
        attr.cap.max_recv_wr = recvs.into();
        attr.cap.max_send_sge = 1;
        attr.cap.max_recv_sge = 1;
        attr.cap.max_inline_data = u32::try_from(inline.max(IOMAP_LEN)).unwrap_or(0);
        // SAFETY: it names the queue of this socket.
        let attr = unsafe { View::new(attr) };
        make_qp(id.object()?, extended(Handle::NULL, attr, attr.qp_type))?;
        let stream_qp = Self {
            id: id.as_ptr(),
            qp: id.object()?.qp().as_ptr(),
            queue,
            recv,
            send,
            config,
            stream: None,
            open: false,
            last_received: Instant::now(),
            empty_polls: 0,
        };
        queue::post_empty_recvs(stream_qp.qp(), RECV, recvs.into())?;
        Ok(stream_qp)
    }

    /// Returns the queue pair.
    const fn qp(&self) -> Handle<'_, ibv_qp> {
        // SAFETY: alive as long as `self`, which destroys it.
        unsafe { Handle::new(self.qp) }
    }

    /// Returns the private data for the peer.
    pub(super) fn conn_data(&self) -> ConnData {
        Stream::conn_data(
            &self.config,
            self.recv.buffer.addr(self.recv.at),
            self.recv.buffer.rkey(),
        )
    }

    /// Starts the stream with the private data of the peer.
    pub(super) fn start(&mut self, peer: ConnData) {
        self.stream = Some(Stream::new(self.config, peer));
    }

    /// Handles the establishment of the connection: messages are received and sent from now on.
    pub(super) fn open(&mut self) {
        self.open = true;
        self.last_received = Instant::now();
        self.flush();
    }

    /// Returns the stream, once the connection is established.
    pub(super) const fn stream(&self) -> Option<&Stream> {
        if self.open {
            self.stream.as_ref()
        } else {
            None
        }
    }

    pub(super) const fn stream_mut(&mut self) -> Option<&mut Stream> {
        if self.open {
            self.stream.as_mut()
        } else {
            None
        }
    }

    /// Handles the end of the connection.
    pub(super) fn ended(&mut self, end: End) {
        self.progress();
        if let Some(stream) = &mut self.stream {
            stream.ended(end);
        }
    }

    /// Polls the CQ, and returns the number of completions.
    pub(super) fn progress(&mut self) -> usize {
        let Some(stream) = self.stream.as_mut().filter(|_| self.open) else {
            return 0;
        };
        let mut again = 0;
        let recv = &self.recv;
        let taken = self.queue.take(|wc| {
            let succeeded = wc.status == IBV_WC_SUCCESS;
            if wc.wr_id & RECV == 0 {
                stream.completed();
            } else if succeeded {
                again += 1;
                if wc.wc_flags & IBV_WC_WITH_IMM != 0 {
                    // If the message is invalid, `received` has ended the stream.
                    let _ = stream.received(u32::from_be(wc.imm_data), wc.byte_len, recv);
                }
            }
            if !succeeded {
                stream.ended(End::Failure);
            }
        });
        if taken == 0 {
            self.empty_polls = self.empty_polls.wrapping_add(1);
            // A thread that only polls has to send keepalives, too.
            if self.empty_polls.is_multiple_of(POLLS_PER_CLOCK_CHECK) {
                self.keep_alive();
            }
            return 0;
        }
        self.last_received = Instant::now();
        if again > 0
            && queue::post_empty_recvs(self.qp(), RECV, again).is_err()
            && let Some(stream) = &mut self.stream
        {
            stream.ended(End::Failure);
        }
        self.flush();
        taken
    }

    /// Posts all due control messages.
    pub(super) fn flush(&mut self) {
        while let Some(write) = self.stream_mut().and_then(Stream::next_control) {
            self.post(&write, None);
        }
    }

    /// Sends a keepalive if the peer has been silent for too long.
    pub(super) fn keep_alive(&mut self) {
        if self.last_received.elapsed() < KEEPALIVE_AFTER {
            return;
        }
        if let Some(write) = self.stream_mut().and_then(Stream::keep_alive) {
            self.post(&write, None);
        }
    }

    /// Posts a write of the stream, with bytes of the caller. A failed post ends the stream.
    pub(super) fn post(&mut self, write: &Write, caller: Option<&mut Callers<'_>>) {
        if self.try_post(write, caller).is_err()
            && let Some(stream) = &mut self.stream
        {
            stream.ended(End::Failure);
        }
    }

    fn try_post(&mut self, write: &Write, caller: Option<&mut Callers<'_>>) -> Result<(), Errno> {
        let mut here = [0_u8; MAX_INLINE];
        let data = match &write.source {
            Source::Nothing => Data::Nothing,
            Source::Here(bytes, len) => Data::Inline(bytes.get(..*len).ok_or(Errno::INVAL)?),
            Source::Callers(len) => {
                let len = usize::try_from(*len).map_err(|_| Errno::INVAL)?;
                let place = here.get_mut(..len).ok_or(Errno::INVAL)?;
                caller.ok_or(Errno::INVAL)?.copy(place);
                Data::Inline(&here[..len])
            }
            Source::Staged { at, len } => {
                let place = usize::try_from(*at).map_err(|_| Errno::INVAL)?;
                let bytes = usize::try_from(*len).map_err(|_| Errno::INVAL)?;
                caller
                    .ok_or(Errno::INVAL)?
                    .stage(&self.send, place, bytes)?;
                Data::Registered(queue::sge(self.send.addr(place), *len, self.send.lkey()))
            }
        };
        let mut wr: ibv_send_wr = zeroed();
        wr.opcode = IBV_WR_RDMA_WRITE;
        if let Some(imm) = write.imm {
            wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
            wr.imm_data = imm.to_be();
        }
        let to = To::Memory(ibv_send_wr_rdma {
            remote_addr: write.remote_addr,
            rkey: write.rkey,
        });
        queue::post_send(self.qp(), &wr, data, to)
    }

    /// Copies received bytes to the caller, and returns their number. Unless `look_only` is set,
    /// they count as read.
    pub(super) fn copy_out(&mut self, to: &mut Target<'_>, look_only: bool) -> usize {
        let mut done = 0;
        while to.left() > 0 {
            let Some(stream) = self.stream_mut() else {
                break;
            };
            let skip = if look_only { done } else { 0 };
            let (at, len) = stream.readable(u32::try_from(skip).unwrap_or(u32::MAX), to.left());
            if len == 0 {
                break;
            }
            if !look_only {
                stream.consume(len);
            }
            let place = usize::try_from(at).unwrap_or(0);
            let len = usize::try_from(len).unwrap_or(0);
            if to.unstage(&self.recv.buffer, place, len).is_err() {
                break;
            }
            done += len;
            if !look_only {
                self.flush();
            }
        }
        done
    }
}

impl Drop for StreamQp {
    fn drop(&mut self) {
        // SAFETY: the ID outlives `self`, which owns the queue pair.
        rdma_destroy_qp(unsafe { Handle::new(self.id) });
    }
}
