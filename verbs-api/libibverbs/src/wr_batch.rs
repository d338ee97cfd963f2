//! The work requests of an extended queue pair between `wr_start` and `wr_complete`.
//!
//! `wr_complete` posts a batch to the emulator, all requests or none. From `wr_start` on, the
//! caller holds the batch's lock, so that batches of several threads do not mix.

use std::{cell::UnsafeCell, ops::Range};

use parking_lot::{RawMutex, lock_api::RawMutex as _};
use rocade_abi::{ibv_ah, ibv_qp_ex};
use rocade_emulator::{Qp, QpType, SendFlags, SendOp, SendPoster, SendWr, Sge, Srqn, Tso, trace};

use crate::{
    args::{FromC, Handle, member, slot::Argument},
    diagnostics::Reason,
    dv::mkey::KeyChange,
    ffi::{self, Errno},
    post,
    qp::{QpObject, QpState},
    trace::data,
};

/// The batch of a QP and its lock.
pub(crate) struct WrBatch {
    lock: RawMutex,
    staged: UnsafeCell<Staged>,
}

impl WrBatch {
    /// Begins a batch. Waits while another thread has one.
    pub(crate) fn start(&self) {
        self.lock.lock();
        // SAFETY: locked by this thread just now.
        unsafe { &mut *self.staged.get() }.clear();
    }
}

/// An extended queue pair whose batch the calling thread has begun by `wr_start`, and not ended.
/// Parameters of functions that may be called between `wr_start` and `wr_complete` have this type,
/// because the program promises that order.
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Batch<'a>(Handle<'a, ibv_qp_ex>);

impl FromC<*mut ibv_qp_ex> for Batch<'_> {
    #[inline]
    unsafe fn from_c(raw: *mut ibv_qp_ex) -> Self {
        // SAFETY: same contract.
        Self(unsafe { Handle::new(raw) })
    }
}

// SAFETY: transparent over a handle, which is transparent over the pointer.
unsafe impl Argument<*mut ibv_qp_ex> for Batch<'_> {}

impl<'a> Batch<'a> {
    /// Runs `f` on the queue pair and its batch.
    fn run<T>(
        self,
        f: impl FnOnce(&'a QpObject, &mut Staged) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let object = self.0.get()?;
        // SAFETY: this thread holds the lock, so no other reference exists.
        f(object, unsafe { &mut *object.inner().batch().staged.get() })
    }

    /// Runs `f` on the batch. Ignores a dead QP, because a builder cannot report errors.
    pub(crate) fn with(self, f: impl FnOnce(&QpState, &mut Staged)) {
        ffi::void_verb(|| {
            self.run(|object, staged| {
                f(object.inner(), staged);
                Ok(())
            })
        });
    }

    /// Begins a request with the current `wr_id` and `wr_flags` of the C part, which the program
    /// writes before it calls a builder.
    //= WRX-02
    pub(crate) fn begin(self, op: SendOp) {
        ffi::void_verb(|| {
            self.run(|object, staged| {
                let wr_id = object.member(member!(ibv_qp_ex, wr_id));
                let flags = object.member(member!(ibv_qp_ex, wr_flags));
                let flags = SendFlags::from_bits_truncate(flags).difference(SendFlags::INLINE);
                staged.begin(wr_id, flags, op);
                Ok(())
            })
        });
    }

    /// Begins the configuration of an indirect memory key, which `make` returns. The list must be
    /// inline in the request.
    //= UMU-03
    pub(crate) fn begin_change(self, make: impl FnOnce() -> Result<KeyChange, Errno>) {
        self.begin(SendOp::Fill);
        let change = || {
            let flags = self.0.get()?.member(member!(ibv_qp_ex, wr_flags));
            if SendFlags::from_bits_truncate(flags).contains(SendFlags::INLINE) {
                make()
            } else {
                Err(Errno::OPNOTSUPP)
            }
        };
        let made = change();
        self.with(|state, staged| match (made, staged.wrs.last_mut()) {
            (Ok(_), _) if !state.exp_attr().umr => staged.fail(Errno::INVAL),
            (Ok(change), Some(wr)) => wr.change = Some(Box::new(change)),
            (Ok(_), None) => staged.fail(Errno::INVAL),
            (Err(error), _) => staged.fail(error),
        });
    }

    /// Applies a setter to the configuration of the last request's key.
    //= UMU-07
    pub(crate) fn update_change(self, set: impl FnOnce(&mut KeyChange) -> Result<(), Errno>) {
        self.with(|_, staged| {
            let change = staged
                .wrs
                .last_mut()
                .and_then(|wr| wr.change.as_deref_mut());
            let done = change.ok_or(Errno::INVAL).and_then(set);
            if let Err(error) = done {
                staged.fail(error);
            }
        });
    }

    /// Sets the DC target of the last request.
    pub(crate) fn set_dc_remote(self, to: DcRemote) {
        self.with(|_, staged| staged.update_last(|wr| wr.dct = Some(to)));
    }

    /// Ends the batch, and posts all its requests or none.
    ///
    /// # Errors
    /// The first error of a builder, or that of the post.
    pub(crate) fn complete(self) -> Result<(), Errno> {
        let state = self.0.get()?.inner();
        let qp = state.qp();
        let start = trace::is_on().then(trace::now_ns);
        let outcome = self.run(|_, staged| {
            let outcome = staged.post(qp, state.qp_type());
            if let Some(start) = start {
                let result = outcome.err().map_or(0, |errno| errno.0);
                data::completed_batch(result, qp.qp_num().get(), staged.wrs.len(), start);
            }
            outcome
        });
        // SAFETY: this thread has locked it in `start`.
        unsafe { state.batch().lock.unlock() };
        outcome.map_err(|errno| errno.of_post(qp, true))
    }

    /// Ends the batch without posting it.
    ///
    /// # Errors
    /// `EINVAL` or `ENODEV` for a dead QP.
    pub(crate) fn abort(self) -> Result<(), Errno> {
        // SAFETY: this thread has locked it in `start`.
        unsafe { self.0.get()?.inner().batch().lock.unlock() };
        Ok(())
    }
}

impl Default for WrBatch {
    fn default() -> Self {
        Self {
            lock: RawMutex::INIT,
            staged: UnsafeCell::default(),
        }
    }
}

/// The location of a staged request's data.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Data {
    Sges(Range<usize>),
    Inline(Range<usize>),
}

#[derive(Debug)]
struct StagedWr {
    wr_id: u64,
    op: SendOp,
    flags: SendFlags,
    data: Data,
    /// The destination of a datagram.
    to: Option<Remote>,
    /// The SRQ of an XRC initiator's request.
    srqn: Option<Srqn>,
    /// The target of a DC initiator's request.
    dct: Option<DcRemote>,
    /// The header and segment size of a TSO request.
    tso: Option<Box<Segments>>,
    /// The new configuration of an indirect memory key.
    change: Option<Box<KeyChange>>,
}

impl StagedWr {
    /// Returns the operands of direct verbs, for a trace.
    #[cold]
    fn operands(&self) -> String {
        let mut text = String::new();
        if let Some(change) = &self.change {
            text += &format!(", {change}");
        }
        if let Some(to) = self.dct {
            let (dctn, key) = (to.dctn, to.key);
            text += &format!(", dct_number={dctn:#08x}, dct_access_key={key:#x}");
            if to.stream != 0 {
                text += &format!(", stream_id={}", to.stream);
            }
        }
        text
    }
}

/// The arguments of `mlx5dv_wr_set_dc_addr`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DcRemote {
    pub(crate) ah: *mut ibv_ah,
    pub(crate) dctn: u32,
    pub(crate) key: u64,
    pub(crate) stream: u16,
}

/// The arguments of `wr_send_tso`.
#[derive(Debug)]
pub(crate) struct Segments {
    pub(crate) header: Vec<u8>,
    pub(crate) mss: u16,
}

/// The arguments of `wr_set_ud_addr`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Remote {
    pub(crate) ah: *mut ibv_ah,
    pub(crate) qpn: u32,
    pub(crate) qkey: u32,
}

/// The work requests since `wr_start`. The vectors keep their capacity between batches.
#[derive(Debug, Default)]
pub(crate) struct Staged {
    wrs: Vec<StagedWr>,
    sges: Vec<Sge>,
    inline: Vec<u8>,
    /// The first error, which `wr_complete` returns.
    error: Option<Errno>,
}

impl Staged {
    fn clear(&mut self) {
        self.wrs.clear();
        self.sges.clear();
        self.inline.clear();
        self.error = None;
    }

    pub(crate) fn fail(&mut self, error: Errno) {
        self.error.get_or_insert(error);
    }

    /// Begins a request of length 0, which setters may give data.
    //= WRX-04
    fn begin(&mut self, wr_id: u64, flags: SendFlags, op: SendOp) {
        self.wrs.push(StagedWr {
            wr_id,
            op,
            flags,
            data: Data::Sges(0..0),
            to: None,
            srqn: None,
            dct: None,
            tso: None,
            change: None,
        });
    }

    /// Sets a property of the last request.
    fn update_last(&mut self, set: impl FnOnce(&mut StagedWr)) {
        match self.wrs.last_mut() {
            Some(wr) => set(wr),
            // A setter was called before any builder.
            None => self.fail(Errno::INVAL),
        }
    }

    /// Makes the last request a TSO request.
    pub(crate) fn set_segments(&mut self, segments: Segments) {
        self.update_last(|wr| wr.tso = Some(Box::new(segments)));
    }

    /// Sets the SRQ number of the last request.
    pub(crate) fn set_srqn(&mut self, srqn: u32) {
        self.update_last(|wr| wr.srqn = Some(Srqn::new(srqn)));
    }

    /// Sets the UD destination of the last request.
    pub(crate) fn set_remote(&mut self, to: Remote) {
        self.update_last(|wr| wr.to = Some(to));
    }

    /// Sets the scatter/gather list of the last request.
    pub(crate) fn set_sges(&mut self, sges: &[Sge]) {
        let start = self.sges.len();
        self.sges.extend_from_slice(sges);
        let end = self.sges.len();
        self.update_last(|wr| wr.data = Data::Sges(start..end));
    }

    /// Sets the data of the last request to the inline bytes from `start` on.
    pub(crate) fn set_inline(&mut self, start: usize) {
        let end = self.inline.len();
        self.update_last(|wr| wr.data = Data::Inline(start..end));
    }

    /// Returns the number of inline bytes in the batch.
    pub(crate) const fn inline_len(&self) -> usize {
        self.inline.len()
    }

    /// Returns space for `len` more bytes of inline data of the last request.
    pub(crate) fn inline_space(
        &mut self,
        start: usize,
        len: usize,
        max: usize,
    ) -> Option<&mut [u8]> {
        let filled = self.inline.len();
        if len > max.saturating_sub(filled - start) {
            self.fail(Errno::INVAL);
            return None;
        }
        self.inline.resize(filled + len, 0);
        self.inline.get_mut(filled..)
    }

    /// Posts all requests to the emulator, or none.
    //= WRX-06
    fn post(&self, qp: &Qp, qp_type: QpType) -> Result<(), Errno> {
        if let Some(error) = self.error {
            return Err(error);
        }
        let names_srq = qp_type == QpType::XrcSend;
        //= WRX-11
        qp.post_sends(|poster| {
            for wr in &self.wrs {
                //= WRX-04 XRC-03
                if names_srq && wr.srqn.is_none() && !is_local(&wr.op) {
                    poster.rollback();
                    let what = "a request of an XRC initiator has no SRQ number";
                    let advice = "call ibv_wr_set_xrc_srqn for each request";
                    return Err(Errno::INVAL.because(Reason::new(what, advice)));
                }
                let posted = self.post_one(poster, qp.qp_num().get(), wr);
                //= WRX-08 WRX-09
                if let Err(error) = posted {
                    poster.rollback();
                    return Err(error);
                }
            }
            Ok(())
        })
    }

    fn post_one(&self, poster: &mut SendPoster<'_>, qpn: u32, wr: &StagedWr) -> Result<(), Errno> {
        let (sges, data, inline) = match &wr.data {
            Data::Sges(range) => {
                let sges = self.sges.get(range.clone()).unwrap_or(&[]);
                (sges, None, SendFlags::empty())
            }
            Data::Inline(range) => {
                let data = self.inline.get(range.clone()).unwrap_or(&[]);
                (&[][..], Some(data), SendFlags::INLINE)
            }
        };
        let request = SendWr {
            wr_id: wr.wr_id,
            op: wr.op,
            flags: wr.flags | inline,
            sges,
        };
        if trace::is_on() {
            let (remote, inline) = (wr.to.map(|to| to.qpn), data.map_or(0, <[u8]>::len));
            data::staged(qpn, &request, inline, remote, &wr.operands());
        }
        if let Some(change) = wr.change.as_deref() {
            return Ok(poster.push_with(&request, change.operands()?)?);
        }
        if let Some(to) = wr.dct {
            // SAFETY: the program keeps the address handle until the batch ends.
            let ah = unsafe { Handle::new(to.ah) };
            let to = post::target(ah, to.dctn, to.key, to.stream)?;
            poster.push_dynamic(&request, to, data)?;
            return Ok(());
        }
        if let Some(Segments { header, mss }) = wr.tso.as_deref() {
            let tso = Tso { header, mss: *mss };
            return Ok(poster.push_tso(&request, tso, data)?);
        }
        match (wr.to, data) {
            (Some(Remote { ah, qpn, qkey }), data) => {
                // SAFETY: as above.
                let ah = unsafe { Handle::new(ah) };
                let to = post::datagram(ah, qpn, qkey)?;
                poster.push_datagram(&request, to, data)?;
            }
            (None, None) => poster.push(&request)?,
            (None, Some(data)) => poster.push_inline(&request, data)?,
        }
        if let Some(srqn) = wr.srqn {
            poster.set_remote_srqn(srqn);
        }
        Ok(())
    }
}

/// Returns true for a request that sends nothing, and so needs no address.
const fn is_local(op: &SendOp) -> bool {
    matches!(
        op,
        SendOp::Bind(_) | SendOp::Invalidate { .. } | SendOp::Fill
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_error_stays() {
        let mut staged = Staged::default();
        staged.set_sges(&[]);
        staged.fail(Errno::NODEV);
        assert_eq!(staged.error, Some(Errno::INVAL));
        staged.clear();
        assert_eq!(staged.error, None);
    }

    #[test]
    fn inline_data_of_one_request_is_bounded_and_that_of_the_next_starts_anew() {
        let mut staged = Staged::default();
        staged.begin(1, SendFlags::empty(), SendOp::Send { imm: None });
        assert_eq!(
            staged.inline_space(0, 6, 8).map(|space| space.len()),
            Some(6)
        );
        assert!(staged.inline_space(0, 3, 8).is_none());
        assert_eq!(staged.error, Some(Errno::INVAL));
        staged.begin(2, SendFlags::empty(), SendOp::Send { imm: None });
        assert_eq!(
            staged.inline_space(6, 8, 8).map(|space| space.len()),
            Some(8)
        );
    }
}
