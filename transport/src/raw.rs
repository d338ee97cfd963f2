//! The queues of a raw packet QP: whole frames leave and come as they are. No peer, no packet headers, no
//! sequence: whoever drives the QP puts the frames on the link, and finishes them where that is asked for.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::completion::{CompleteTo, Completion, ImmOrInv, WcFlags, WcOpcode, WcStatus};
use crate::counters::DropReason;
use crate::cx::Cx;
use crate::error::PostError;
use crate::memory::Memory;
use crate::outputs::Fatal;
use crate::queue::{RecvSource, RecvWqe, SendLimits};
use crate::wr::{Destination, LocalData, SendFlags, SendOp, SendWr};

/// Most bytes behind the header of a request that is to be cut into segments (`tso_caps.max_tso`).
pub const MAX_TSO: u32 = 1 << 18;
/// Longest header of one.
pub const MAX_TSO_HEADER: u16 = 1024;
/// A header has at least that of Ethernet.
const MIN_HEADER: usize = 14;

/// How a request is cut into frames (`IBV_WR_TSO`).
#[derive(Clone, Copy, Debug)]
pub struct Tso<'a> {
    /// Headers of Ethernet, IP and TCP, as they are to be in the first frame.
    pub header: &'a [u8],
    /// Bytes behind the header in each frame but the last, not 0.
    pub mss: u16,
}

/// What is to be done to a frame before it leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameOrder {
    /// Cut what is behind the header of so many bytes into segments of so many: length of the header, MSS.
    pub segments: Option<(usize, usize)>,
    /// Fill in the checksums of IP, UDP and TCP.
    pub checksums: bool,
}

/// A frame that has come.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    /// From the Ethernet header to the end of the data, without FCS.
    pub bytes: &'a [u8],
    /// It is an IP packet, and its checksums are right.
    pub checksums_ok: bool,
    /// The tag of the flow that it belongs to.
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

/// The send queue. A request is complete when its frames have left.
#[derive(Debug)]
pub(crate) struct FrameSender {
    limits: SendLimits,
    sq: VecDeque<Wqe>,
    /// Slots in use: those of `sq`, and those whose completion the application has not taken.
    used: u32,
    /// Work requests that are complete without a completion, since the last one.
    silent: u32,
    /// SQD: start nothing (RC-STA-06).
    draining: bool,
    /// The frames of the first request are leaving.
    started: bool,
}

impl FrameSender {
    pub(crate) const fn new(limits: SendLimits) -> Self {
        Self {
            limits,
            sq: VecDeque::new(),
            used: 0,
            silent: 0,
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

    /// Work requests that are not complete.
    pub(crate) fn queued(&self) -> usize {
        self.sq.len()
    }

    /// Removes the newest `count` work requests, of which none has been started.
    pub(crate) fn unpost(&mut self, count: usize) {
        let started = usize::from(self.started);
        let keep = self.sq.len().saturating_sub(count).max(started);
        self.used -= u32::try_from(self.sq.len() - keep).unwrap_or(self.used);
        self.sq.truncate(keep);
    }

    /// The newest one, flushed when it was posted, is taken back with its completion.
    pub(crate) const fn unflush(&mut self, slots: u32) {
        self.used -= 1;
        self.silent = slots - 1;
    }

    /// The application has taken the completions of so many slots.
    pub(crate) const fn free_slots(&mut self, slots: u32) {
        self.used = self.used.saturating_sub(slots);
    }

    /// Queues a work request (PST-09, PST-10).
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
        let len = self.limits.admit(wr, inline, self.used)?;
        self.used += 1;
        let mut data = LocalData::EMPTY;
        data.set(wr, inline);
        self.sq.push_back(Wqe {
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

    /// Puts the next request together in `frame`, and says what is to be done to it; `None` where there is
    /// none. A frame longer than `longest` has no place on the link.
    pub(crate) fn next<H: Memory>(
        &mut self,
        cx: &mut Cx<'_, H>,
        longest: usize,
        frame: &mut Vec<u8>,
    ) -> Result<Option<FrameOrder>, Fatal> {
        if self.draining || self.started {
            return Ok(None);
        }
        let Some(wqe) = self.sq.front() else {
            return Ok(None);
        };
        let most = match &wqe.tso {
            Some(_) => MAX_TSO as usize,
            None => longest,
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

    /// The frames of the request that [`Self::next`] has told have left, `count` of them.
    pub(crate) fn left<H>(&mut self, cx: &mut Cx<'_, H>, count: u64) {
        if !core::mem::take(&mut self.started) {
            // Flushed meanwhile.
            return;
        }
        cx.out.counters.tx_packets += count;
        if let Some(wqe) = self.sq.pop_front() {
            //= RC-WQE-02
            if self.limits.sig_all || wqe.flags.contains(SendFlags::SIGNALED) {
                self.report(cx, &wqe, WcStatus::Success);
            } else {
                self.silent += 1;
            }
        }
    }

    /// The first request cannot be sent: that ends the send queue.
    pub(crate) fn fail<H>(&mut self, cx: &mut Cx<'_, H>, status: WcStatus) -> Result<(), Fatal> {
        self.started = false;
        if let Some(wqe) = self.sq.pop_front() {
            self.report(cx, &wqe, status);
        }
        Err(Fatal)
    }

    fn report<H>(&mut self, cx: &mut Cx<'_, H>, wqe: &Wqe, status: WcStatus) {
        let slots = core::mem::take(&mut self.silent) + 1;
        let completion = Completion {
            slots,
            ..cx.completion(CompleteTo::SendCq, wqe.wr_id, status, wqe.wc_opcode())
        };
        cx.out.completions.push_back(completion);
    }

    /// Completes all with `WR_FLUSH_ERR`, unsignaled ones too (RC-STA-01).
    pub(crate) fn flush<H>(&mut self, cx: &mut Cx<'_, H>) {
        self.started = false;
        while let Some(wqe) = self.sq.pop_front() {
            self.report(cx, &wqe, WcStatus::WrFlushErr);
        }
    }

    /// Forgets everything without completions (RC-STA-04).
    pub(crate) fn reset(&mut self) {
        *self = Self::new(self.limits);
    }
}

/// The receive queue: each frame takes a receive.
#[derive(Debug)]
pub(crate) struct FrameReceiver {
    receives: RecvSource,
    /// A receive that was taken for a frame that did not fit: the next one takes it.
    spare: Option<RecvWqe>,
}

impl FrameReceiver {
    pub(crate) const fn new(receives: RecvSource) -> Self {
        Self {
            receives,
            spare: None,
        }
    }

    /// Receives that are not complete.
    pub(crate) fn queued(&self) -> usize {
        self.receives.len() + usize::from(self.spare.is_some())
    }

    /// Where its receives come from.
    pub(crate) const fn receives(&self) -> &RecvSource {
        &self.receives
    }

    pub(crate) const fn receives_mut(&mut self) -> &mut RecvSource {
        &mut self.receives
    }

    /// Takes a frame, or drops it: anybody may send any, so none is a reason to end the QP.
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
        cx.out.counters.rx_packets += 1;
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

    /// Completes all receives with `WR_FLUSH_ERR` (RC-STA-01).
    pub(crate) fn flush<H>(&mut self, cx: &mut Cx<'_, H>) {
        while let Some(wqe) = self.spare.take().or_else(|| self.receives.take_own()) {
            let (to, status) = (CompleteTo::RecvCq, WcStatus::WrFlushErr);
            let completion = cx.completion(to, wqe.wr_id, status, WcOpcode::Recv);
            cx.out.completions.push_back(completion);
        }
    }

    /// Forgets everything without completions (RC-STA-04).
    pub(crate) fn reset(&mut self) {
        if let Some(wqe) = self.spare.take() {
            self.receives.forget(wqe.srqn);
        }
        self.receives.reset();
    }
}
