//! A completion queue with its channel, and the verbs of the data path.

use std::{
    ffi::{c_int, c_void},
    mem::MaybeUninit,
    os::fd::RawFd,
    ptr,
};

use rocade_abi::{
    IBV_SEND_INLINE, ibv_ah, ibv_comp_channel, ibv_context, ibv_cq, ibv_qp, ibv_recv_wr,
    ibv_send_wr, ibv_send_wr_rdma, ibv_send_wr_remote, ibv_send_wr_ud, ibv_sge, ibv_wc,
};

use super::sys;
use crate::{
    args::{Handle, New, Out, member},
    engine::{self, verbs},
    ffi::Errno,
};

/// The maximum number of completions per call of `ibv_poll_cq`.
const BATCH: usize = 16;
const BATCH_INT: c_int = 16;

/// A CQ, and its channel with a descriptor for notifications.
pub(super) struct Queue {
    cq: New<ibv_cq>,
    channel: New<ibv_comp_channel>,
    armed: bool,
    /// The reason why no event can come any more, because the device is gone.
    failure: Option<Errno>,
}

impl Queue {
    pub(super) fn new(device: Handle<'_, ibv_context>, entries: u32) -> Result<Self, Errno> {
        let verbs = verbs()?;
        let entries = i32::try_from(entries).map_err(|_| Errno::INVAL)?;
        let mut queue = Self {
            cq: New::NULL,
            channel: verbs.ibv_create_comp_channel(device)?,
            armed: false,
            failure: None,
        };
        sys::set_nonblocking(queue.fd(), true)?;
        let channel = queue.channel.handle();
        queue.cq = verbs.ibv_create_cq(device, entries, ptr::null_mut(), channel, 0)?;
        Ok(queue)
    }

    /// Returns the CQ.
    pub(super) const fn cq(&self) -> Handle<'_, ibv_cq> {
        self.cq.handle()
    }

    /// Returns the channel's descriptor, which becomes readable with a completion after
    /// [`Self::arm`].
    pub(super) fn fd(&self) -> RawFd {
        let channel = self.channel.handle();
        channel.member(member!(ibv_comp_channel, fd)).unwrap_or(-1)
    }

    /// Returns the descriptor for poll(2). It is -1, which poll(2) ignores, once
    /// [`Self::take_event`] has failed, because the other one then stays readable.
    pub(super) fn fd_to_poll(&self) -> RawFd {
        match self.failure {
            Some(_) => -1,
            None => self.fd(),
        }
    }

    pub(super) const fn is_armed(&self) -> bool {
        self.armed
    }

    /// Requests a notification for the next completion. The caller then has to poll for earlier
    /// completions.
    pub(super) fn arm(&mut self) {
        let asked = member!(ibv_context, ops.req_notify_cq);
        if let Some(Some(ask)) = self.cq().context().member(asked) {
            // SAFETY: a live CQ.
            self.armed = unsafe { ask(self.cq().as_ptr(), 0) } == 0;
        }
    }

    /// Like [`Self::arm`], for a thread that is going to sleep in [`engine::poll`].
    pub(super) fn arm_to_sleep(&mut self) {
        if let Ok(ops) = engine::ops() {
            // SAFETY: a live CQ with a channel.
            self.armed = unsafe { (ops.req_notify_to_poll)(self.cq().as_ptr()) } == 0;
        }
    }

    /// Returns the reason why neither completions nor events can come any more, once
    /// [`Self::take_event`] has failed.
    pub(super) const fn failure(&self) -> Option<Errno> {
        self.failure
    }

    /// Takes the event of the channel, if there is one.
    pub(super) fn take_event(&mut self) {
        let Ok(verbs) = verbs() else { return };
        let (mut cq, mut context) = (ptr::null_mut(), ptr::null_mut::<c_void>());
        let answers = (Out::of(&mut cq), Out::of(&mut context));
        if verbs.ibv_get_cq_event(self.channel.handle(), answers.0, answers.1) == 0 {
            // The channel's only CQ.
            verbs.ibv_ack_cq_events(self.cq(), 1);
            self.armed = false;
            return;
        }
        let reason = Errno::last();
        if ![libc::EAGAIN, libc::EINTR].contains(&reason.0) {
            self.failure = Some(reason);
        }
    }

    /// Polls the CQ until it is empty, and returns the number of completions.
    pub(super) fn take(&mut self, mut each: impl FnMut(&ibv_wc)) -> usize {
        let cq = self.cq();
        let Some(Some(poll)) = cq.context().member(member!(ibv_context, ops.poll_cq)) else {
            return 0;
        };
        let mut found = [const { MaybeUninit::<ibv_wc>::uninit() }; BATCH];
        let mut taken = 0;
        loop {
            // SAFETY: a live CQ, and room for so many.
            let count = unsafe { poll(cq.as_ptr(), BATCH_INT, found.as_mut_ptr().cast()) };
            let count = usize::try_from(count).unwrap_or(0).min(BATCH);
            for wc in &found[..count] {
                // SAFETY: this number of completions was written.
                each(unsafe { wc.assume_init_ref() });
            }
            taken += count;
            if count < BATCH {
                break;
            }
        }
        if taken > 0 && self.armed {
            self.take_event();
        }
        taken
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        let Ok(verbs) = verbs() else { return };
        // The queue pair is destroyed, and all events are acknowledged.
        if !self.cq().is_null() {
            verbs.ibv_destroy_cq(self.cq.take());
        }
        verbs.ibv_destroy_comp_channel(self.channel.take());
    }
}

/// The bytes of a request.
pub(super) enum Data<'a> {
    /// None.
    Nothing,
    /// Bytes that are copied during the call.
    Inline(&'a [u8]),
    /// A part of a registered buffer.
    Registered(ibv_sge),
}

/// The destination of a send.
pub(super) enum To<'a> {
    /// Memory of the peer.
    Memory(ibv_send_wr_rdma),
    /// A queue pair: the address handle, its number and its Q_Key.
    Datagram(Handle<'a, ibv_ah>, u32, u32),
}

/// Posts one send. `wr` has its other members.
pub(super) fn post_send(
    qp: Handle<'_, ibv_qp>,
    wr: &ibv_send_wr,
    data: Data<'_>,
    to: To<'_>,
) -> Result<(), Errno> {
    let mut wr = *wr;
    let (mut sge, flags, count) = match data {
        Data::Nothing => (sge(0, 0, 0), 0, 0),
        Data::Inline(bytes) => {
            let addr = bytes.as_ptr().expose_provenance() as u64;
            let len = u32::try_from(bytes.len()).map_err(|_| Errno(libc::EMSGSIZE))?;
            (sge(addr, len, 0), IBV_SEND_INLINE, 1)
        }
        Data::Registered(sge) => (sge, 0, 1),
    };
    (wr.next, wr.send_flags) = (ptr::null_mut(), flags);
    (wr.sg_list, wr.num_sge) = (&raw mut sge, count);
    wr.wr = match to {
        To::Memory(rdma) => ibv_send_wr_remote { rdma },
        To::Datagram(ah, remote_qpn, remote_qkey) => ibv_send_wr_remote {
            ud: ibv_send_wr_ud {
                ah: ah.as_ptr(),
                remote_qpn,
                remote_qkey,
            },
        },
    };
    let post = qp.context().member(member!(ibv_context, ops.post_send));
    let post = post.flatten().ok_or(Errno::INVAL)?;
    let mut bad = ptr::null_mut();
    // SAFETY: a live queue pair, and one request, of which all pointers are set here: to a list of
    // one entry, to borrowed bytes or with a key, and to a live address handle.
    Errno::check(unsafe { post(qp.as_ptr(), &raw mut wr, &raw mut bad) })
}

/// Posts `count` receives without buffers.
pub(super) fn post_empty_recvs(
    qp: Handle<'_, ibv_qp>,
    wr_id: u64,
    count: usize,
) -> Result<(), Errno> {
    let template = ibv_recv_wr {
        wr_id,
        next: ptr::null_mut(),
        sg_list: ptr::null_mut(),
        num_sge: 0,
    };
    let mut wrs = [template; BATCH];
    let mut left = count;
    while left > 0 {
        let now = left.min(BATCH);
        post_recvs(qp, &mut wrs[..now])?;
        left -= now;
    }
    Ok(())
}

/// Posts a receive into a registered buffer.
pub(super) fn post_recv(qp: Handle<'_, ibv_qp>, wr_id: u64, mut sge: ibv_sge) -> Result<(), Errno> {
    let wr = ibv_recv_wr {
        wr_id,
        next: ptr::null_mut(),
        sg_list: &raw mut sge,
        num_sge: 1,
    };
    post_recvs(qp, &mut [wr])
}

/// Posts receives, each without buffers or with a list of the caller, and links them.
fn post_recvs(qp: Handle<'_, ibv_qp>, wrs: &mut [ibv_recv_wr]) -> Result<(), Errno> {
    let mut first = ptr::null_mut();
    for wr in wrs.iter_mut().rev() {
        wr.next = first;
        first = ptr::from_mut(wr);
    }
    let post = qp.context().member(member!(ibv_context, ops.post_recv));
    let post = post.flatten().ok_or(Errno::INVAL)?;
    let mut bad = ptr::null_mut();
    // SAFETY: a live queue pair. The requests link to each other, and their lists outlive the call.
    Errno::check(unsafe { post(qp.as_ptr(), first, &raw mut bad) })
}

/// Returns an entry of a gather list.
pub(super) fn sge(addr: u64, length: u32, lkey: u32) -> ibv_sge {
    ibv_sge { addr, length, lkey }
}
