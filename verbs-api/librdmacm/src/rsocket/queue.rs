//! A completion queue with its channel, and the verbs of the data path.

use std::{
    ffi::{c_int, c_void},
    mem::MaybeUninit,
    os::fd::RawFd,
    ptr,
};

use rocade_abi::{
    ibv_comp_channel, ibv_context, ibv_cq, ibv_qp, ibv_recv_wr, ibv_send_wr, ibv_sge, ibv_wc,
};

use super::sys;
use crate::{
    args::{Handle, Last, Out},
    engine::{self, verbs},
    ffi::Errno,
};

/// The maximum number of completions per call of `ibv_poll_cq`.
const BATCH: usize = 16;
const BATCH_INT: c_int = 16;

/// A CQ, and its channel with a descriptor for notifications.
pub(super) struct Queue {
    pub(super) cq: *mut ibv_cq,
    channel: *mut ibv_comp_channel,
    armed: bool,
    /// The reason why no event can come any more, because the device is gone.
    failure: Option<Errno>,
}

// SAFETY: objects of libibverbs, which any thread may use.
unsafe impl Send for Queue {}

impl Queue {
    pub(super) fn new(device: Handle<'_, ibv_context>, entries: u32) -> Result<Self, Errno> {
        let verbs = verbs()?;
        let entries = i32::try_from(entries).map_err(|_| Errno::INVAL)?;
        let mut queue = Self {
            cq: ptr::null_mut(),
            channel: ptr::null_mut(),
            armed: false,
            failure: None,
        };
        queue.channel = Errno::made(verbs.ibv_create_comp_channel(device))?;
        sys::set_nonblocking(queue.fd(), true)?;
        let channel = queue.channel();
        let cq = verbs.ibv_create_cq(device, entries, ptr::null_mut(), channel, 0);
        queue.cq = Errno::made(cq)?;
        Ok(queue)
    }

    fn channel(&self) -> Handle<'_, ibv_comp_channel> {
        // SAFETY: alive as long as `self`, or NULL.
        unsafe { Handle::new(self.channel) }
    }

    /// Returns the channel's descriptor, which becomes readable with a completion after
    /// [`Self::arm`].
    pub(super) fn fd(&self) -> RawFd {
        // SAFETY: a live channel.
        unsafe { (*self.channel).fd }
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
        // SAFETY: a live CQ, whose context has the table of verbs.
        let asked = unsafe { (*(*self.cq).context).ops.req_notify_cq };
        if let Some(ask) = asked {
            // SAFETY: a live CQ.
            self.armed = unsafe { ask(self.cq, 0) } == 0;
        }
    }

    /// Like [`Self::arm`], for a thread that is going to sleep in [`engine::poll`].
    pub(super) fn arm_to_sleep(&mut self) {
        if let Ok(ops) = engine::ops() {
            // SAFETY: a live CQ with a channel.
            self.armed = unsafe { (ops.req_notify_to_poll)(self.cq) } == 0;
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
        if verbs.ibv_get_cq_event(self.channel(), answers.0, answers.1) == 0 {
            // SAFETY: the channel's only CQ.
            verbs.ibv_ack_cq_events(unsafe { Handle::new(self.cq) }, 1);
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
        // SAFETY: a live CQ, whose context has the table of verbs.
        let Some(poll) = (unsafe { (*(*self.cq).context).ops.poll_cq }) else {
            return 0;
        };
        let mut found = [const { MaybeUninit::<ibv_wc>::uninit() }; BATCH];
        let mut taken = 0;
        loop {
            // SAFETY: a live CQ, and room for so many.
            let count = unsafe { poll(self.cq, BATCH_INT, found.as_mut_ptr().cast()) };
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
        // SAFETY: created in `new`. The queue pair is destroyed, and all events are acknowledged.
        let (cq, channel) = unsafe { (Last::new(self.cq), Last::new(self.channel)) };
        if !self.cq.is_null() {
            verbs.ibv_destroy_cq(cq);
        }
        if !self.channel.is_null() {
            verbs.ibv_destroy_comp_channel(channel);
        }
    }
}

/// Posts one send.
///
/// # Safety
/// The queue pair must be alive, and the memory of the request readable.
pub(super) unsafe fn post_send(qp: *mut ibv_qp, wr: &mut ibv_send_wr) -> Result<(), Errno> {
    let mut bad = ptr::null_mut();
    // SAFETY: by contract.
    let post = unsafe { (*(*qp).context).ops.post_send }.ok_or(Errno::INVAL)?;
    // SAFETY: by contract.
    Errno::check(unsafe { post(qp, wr, &raw mut bad) })
}

/// Posts `count` receives without buffers.
///
/// # Safety
/// The queue pair must be alive.
pub(super) unsafe fn post_empty_recvs(
    qp: *mut ibv_qp,
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
        for at in 0..now {
            wrs[at].next = if at + 1 < now {
                &raw mut wrs[at + 1]
            } else {
                ptr::null_mut()
            };
        }
        // SAFETY: by contract a live queue pair, and the list outlives the call.
        unsafe { post_recv(qp, &mut wrs[0]) }?;
        left -= now;
    }
    Ok(())
}

/// Posts receives.
///
/// # Safety
/// The queue pair and the memory of the request must be alive.
pub(super) unsafe fn post_recv(qp: *mut ibv_qp, wr: &mut ibv_recv_wr) -> Result<(), Errno> {
    let mut bad = ptr::null_mut();
    // SAFETY: by contract.
    let post = unsafe { (*(*qp).context).ops.post_recv }.ok_or(Errno::INVAL)?;
    // SAFETY: by contract.
    Errno::check(unsafe { post(qp, wr, &raw mut bad) })
}

/// Returns an entry of a gather list.
pub(super) fn sge(addr: u64, length: u32, lkey: u32) -> ibv_sge {
    ibv_sge { addr, length, lkey }
}
