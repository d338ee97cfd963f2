//! The queues of a raw packet QP, which sends and receives whole frames unmodified.
//!
//! There is no peer, no packet headers and no sequence. The caller puts the frames on the link, and
//! fills in checksums and segments on request.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::completion::{CompleteTo, Completion, ImmOrInv, WcFlags, WcOpcode, WcStatus};
use crate::counters::DropReason;
use crate::cx::Cx;
use crate::error::PostError;
use crate::memory::Memory;
use crate::outputs::Fatal;
use crate::queue::{RecvSource, RecvWqe, SendLimits};
use crate::send_queue::SendQueue;
use crate::wr::{Destination, LocalData, SendFlags, SendOp, SendWr};

/// Most bytes behind the header of a segmentation request (`tso_caps.max_tso`).
pub const MAX_TSO: u32 = 1 << 18;
/// Longest header of a segmentation request.
pub const MAX_TSO_HEADER: u16 = 1024;
/// Least length of a header: that of Ethernet.
const MIN_HEADER: usize = 14;

/// Segmentation of a request into frames (`IBV_WR_TSO`).
#[derive(Clone, Copy, Debug)]
pub struct Tso<'a> {
    /// Headers of Ethernet, IP and TCP, as in the first frame.
    pub header: &'a [u8],
    /// Bytes behind the header in each frame but the last. Not 0.
    pub mss: u16,
}

/// Work that remains before a frame can be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameOrder {
    /// Length of the header and MSS: cut the data behind the header into segments of at most MSS
    /// bytes.
    pub segments: Option<(usize, usize)>,
    /// Fill in the checksums of IP, UDP and TCP.
    pub checksums: bool,
}

/// A received frame.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    /// From the Ethernet header to the end of the data, without FCS.
    pub bytes: &'a [u8],
    /// The frame is an IP packet with correct checksums.
    pub checksums_ok: bool,
    /// The tag of the flow that steered it here.
    pub flow_tag: u32,
}

#[derive(Debug)]
struct Template {
    header: Box<[u8]>,
    mss: u16,
}

#[derive(Debug)]
struct Wqe {
    wr_id: u64,
    flags: SendFlags,
    data: LocalData,
    len: u64,
    tso: Option<Box<Template>>,
}

impl Wqe {
    const fn wc_opcode(&self) -> WcOpcode {
        match self.tso {
            Some(_) => WcOpcode::Tso,
            None => WcOpcode::Send,
        }
    }
}

/// The send queue. A request is complete once its frames were sent.
#[derive(Debug)]
pub(crate) struct FrameSender {
    sq: SendQueue<Wqe>,
    /// SQD: start no work requests.
    draining: bool,
    /// The frames of the first request are being sent.
    started: bool,
}

impl FrameSender {
    pub(crate) const fn new(limits: SendLimits) -> Self {
        Self {
            sq: SendQueue::new(limits),
            draining: false,
            started: false,
        }
    }

    pub(crate) const fn set_draining(&mut self, draining: bool) {
        self.draining = draining;
    }

    pub(crate) const fn is_drained(&self) -> bool {
        !self.started
    }

    /// Asserts the conditions that hold between any two calls.
    #[cfg(debug_assertions)]
    pub(crate) fn check_invariants(&self) {
        let queued = self.sq.wqes.len();
        assert!(!self.started || queued > 0, "frames of no request");
        self.sq.account.check(queued);
    }

    /// Returns the number of incomplete work requests.
    pub(crate) fn queued(&self) -> usize {
        self.sq.wqes.len()
    }

    /// Removes the newest `count` work requests, none of which has been started.
    pub(crate) fn unpost(&mut self, count: usize) {
        self.sq.unpost(count, usize::from(self.started));
    }

    /// Undoes the posting of the newest work request, which was flushed when it was posted, and its
    /// completion.
    pub(crate) const fn unflush(&mut self, freed_wqes: u32) {
        self.sq.account.unflush(freed_wqes);
    }

    /// Frees WQEs whose completions the application has polled.
    pub(crate) const fn free_wqes(&mut self, freed_wqes: u32) {
        self.sq.account.free_wqes(freed_wqes);
    }

    /// Queues a work request.
    pub(crate) fn post(
        &mut self,
        wr: &SendWr<'_>,
        to: Option<Destination>,
        tso: Option<Tso<'_>>,
        inline: Option<&[u8]>,
    ) -> Result<(), PostError> {
        //= PST-10
        if !matches!(wr.op, SendOp::Send { imm: None }) {
            return Err(PostError::UnsupportedOpcode);
        }
        if to.is_some() {
            return Err(PostError::NoDestination);
        }
        if let Some(Tso { header, mss }) = tso {
            let fits = (MIN_HEADER..=usize::from(MAX_TSO_HEADER)).contains(&header.len());
            if !fits || mss == 0 {
                return Err(PostError::BadSegmentation);
            }
        }
        let len = self.sq.admit(wr, inline, None)?;
        let mut data = LocalData::EMPTY;
        data.set(wr, inline);
        self.sq.push(Wqe {
            wr_id: wr.wr_id,
            flags: wr.flags,
            data,
            len,
            tso: tso.map(|Tso { header, mss }| {
                let header = header.into();
                Box::new(Template { header, mss })
            }),
        });
        Ok(())
    }

    /// Assembles the next request in `frame`, and returns how to finish it. `None` if there is
    /// none.
    ///
    /// A frame longer than `max_frame_len` does not fit the link and is an error.
    pub(crate) fn next<H: Memory>(
        &mut self,
        cx: &mut Cx<'_, H>,
        max_frame_len: usize,
        frame: &mut Vec<u8>,
    ) -> Result<Option<FrameOrder>, Fatal> {
        if self.draining || self.started {
            return Ok(None);
        }
        let Some(wqe) = self.sq.wqes.front() else {
            return Ok(None);
        };
        let most = match &wqe.tso {
            Some(_) => MAX_TSO as usize,
            None => max_frame_len,
        };
        let Some(len) = usize::try_from(wqe.len).ok().filter(|len| *len <= most) else {
            //= WCS-01
            return self.fail(cx, WcStatus::LocLenErr).map(|()| None);
        };
        frame.clear();
        let mut segments = None;
        if let Some(template) = &wqe.tso {
            frame.extend_from_slice(&template.header);
            segments = Some((template.header.len(), usize::from(template.mss)));
        } else if len < MIN_HEADER {
            return self.fail(cx, WcStatus::LocLenErr).map(|()| None);
        }
        let start = frame.len();
        frame.resize(start + len, 0);
        let gathered = match len {
            0 => Ok(()),
            _ => wqe.data.gather(cx.memory(), 0, &mut frame[start..]),
        };
        if gathered.is_err() {
            return self.fail(cx, WcStatus::LocProtErr).map(|()| None);
        }
        self.started = true;
        Ok(Some(FrameOrder {
            segments,
            checksums: wqe.flags.contains(SendFlags::IP_CSUM),
        }))
    }

    /// Completes the request that [`Self::next`] has returned: its `count` frames were sent.
    pub(crate) fn frame_sent<H>(&mut self, cx: &mut Cx<'_, H>, count: u64) {
        if !core::mem::take(&mut self.started) {
            // It was flushed meanwhile.
            return;
        }
        cx.out.counters.traffic().tx_packets += count;
        if let Some(wqe) = self.sq.wqes.pop_front() {
            let len = u32::try_from(wqe.len).unwrap_or(u32::MAX);
            let send = SendOp::Send { imm: None };
            cx.out.op_counters.add_sent(&send, len);
            let of = (wqe.wr_id, wqe.wc_opcode());
            self.sq.account.complete(cx, wqe.flags, of, 0);
        }
    }

    /// Fails the first request, which cannot be sent. The send queue enters the error state.
    pub(crate) fn fail<H>(&mut self, cx: &mut Cx<'_, H>, status: WcStatus) -> Result<(), Fatal> {
        self.started = false;
        if let Some(wqe) = self.sq.wqes.pop_front() {
            self.report(cx, &wqe, status);
        }
        Err(Fatal)
    }

    fn report<H>(&mut self, cx: &mut Cx<'_, H>, wqe: &Wqe, status: WcStatus) {
        let of = (wqe.wr_id, wqe.wc_opcode());
        self.sq.account.report(cx, of, status, 0);
    }

    /// Completes all requests with `WR_FLUSH_ERR`, including unsignaled ones.
    pub(crate) fn flush<H>(&mut self, cx: &mut Cx<'_, H>) {
        self.started = false;
        while let Some(wqe) = self.sq.wqes.pop_front() {
            self.report(cx, &wqe, WcStatus::WrFlushErr);
        }
    }

    /// Drops everything without completions.
    pub(crate) fn reset(&mut self) {
        *self = Self::new(self.sq.account.limits);
    }
}

/// The receive queue: each frame consumes a receive.
#[derive(Debug)]
pub(crate) struct FrameReceiver {
    receives: RecvSource,
    /// A receive that was taken for a frame that did not fit. The next frame uses it.
    spare: Option<RecvWqe>,
}

impl FrameReceiver {
    pub(crate) const fn new(receives: RecvSource) -> Self {
        Self {
            receives,
            spare: None,
        }
    }

    /// Returns the number of incomplete receives.
    pub(crate) fn queued(&self) -> usize {
        self.receives.len() + usize::from(self.spare.is_some())
    }

    /// Returns the source of receives.
    pub(crate) const fn receives(&self) -> &RecvSource {
        &self.receives
    }

    pub(crate) const fn receives_mut(&mut self) -> &mut RecvSource {
        &mut self.receives
    }

    /// Delivers a frame, or drops it. Any host may send any frame, so no frame moves the QP to ERR.
    pub(crate) fn take<H: Memory>(
        &mut self,
        cx: &mut Cx<'_, H>,
        frame: &Frame<'_>,
    ) -> Result<(), Fatal> {
        let Some(wqe) = self.spare.take().or_else(|| self.receives.take()) else {
            cx.out.counters.drop_packet(DropReason::NoReceive);
            return Ok(());
        };
        if wqe.data.len() < frame.bytes.len() as u64 {
            cx.out.counters.drop_packet(DropReason::TooLong);
            self.spare = Some(wqe);
            return Ok(());
        }
        let (to, wr_id) = (CompleteTo::RecvCq, wqe.wr_id);
        let placed = match frame.bytes {
            [] => Ok(()),
            bytes => wqe.scatter(cx.memory(), 0, bytes),
        };
        if placed.is_err() {
            //= RC-RSP-12
            let completion = cx.completion(to, wr_id, WcStatus::LocProtErr, WcOpcode::Recv);
            cx.out.completions.push_back(completion);
            return Err(Fatal);
        }
        cx.out.counters.traffic().rx_packets += 1;
        let mut wc_flags = WcFlags::empty();
        wc_flags.set(WcFlags::IP_CSUM_OK, frame.checksums_ok);
        let completion = Completion {
            byte_len: u32::try_from(frame.bytes.len()).unwrap_or(u32::MAX),
            imm_or_inv: ImmOrInv::FlowTag(frame.flow_tag),
            wc_flags,
            ..cx.completion(to, wr_id, WcStatus::Success, WcOpcode::Recv)
        };
        cx.out.completions.push_back(completion);
        Ok(())
    }

    /// Completes all receives with `WR_FLUSH_ERR`.
    pub(crate) fn flush<H>(&mut self, cx: &mut Cx<'_, H>) {
        while let Some(wqe) = self.spare.take().or_else(|| self.receives.take_own()) {
            let (to, status) = (CompleteTo::RecvCq, WcStatus::WrFlushErr);
            let completion = cx.completion(to, wqe.wr_id, status, WcOpcode::Recv);
            cx.out.completions.push_back(completion);
        }
    }

    /// Drops everything without completions.
    pub(crate) fn reset(&mut self) {
        if let Some(wqe) = self.spare.take() {
            self.receives.forget(wqe.srqn);
        }
        self.receives.reset();
    }
}
