//! Event channels of the connection manager, and calls that come too late for them.
//!
//! Programs end a channel while a thread of theirs is on its way to the next event (rping does: its thread acknowledges the
//! last event and calls again, and the acknowledgement is what the end has waited for). Such a call finds that there is no
//! channel any more, or is waited for; and one that sleeps goes on sleeping, as in read(2) of a descriptor that another
//! thread closes.

use std::{ffi::c_int, ptr, sync::atomic::Ordering, thread};

use rocade_abi::{rocade_cm_channel, rocade_cm_event};
use rocade_emulator::{EventWaiter, cm::CmChannel};

use crate::{
    cancel::{self, Taken},
    cm::event_to_c,
    ffi::{self, Errno, int_verb},
    process,
};

/// A call that uses a channel, which is not freed meanwhile.
struct Visit<'a> {
    place: &'a rocade_cm_channel,
    channel: &'a CmChannel,
}

impl<'a> Visit<'a> {
    /// `None` where there is no channel any more.
    fn begin(place: &'a rocade_cm_channel) -> Result<Option<Self>, Errno> {
        check(place)?;
        // Here and at the end: a change, then a look at the other's. So one of both sees the other.
        place.inside.fetch_add(1, Ordering::SeqCst);
        let channel: *const CmChannel = place.channel.load(Ordering::SeqCst).cast();
        // SAFETY: NULL, or made by `rdma_create_event_channel` and not freed while this call is counted.
        let Some(channel) = (unsafe { channel.as_ref() }) else {
            place.inside.fetch_sub(1, Ordering::SeqCst);
            return Ok(None);
        };
        Ok(Some(Self { place, channel }))
    }
}

impl Drop for Visit<'_> {
    fn drop(&mut self) {
        self.place.inside.fetch_sub(1, Ordering::SeqCst);
    }
}

/// `ENODEV` for a channel of the parent's.
fn check(place: &rocade_cm_channel) -> Result<(), Errno> {
    if place.generation.load(Ordering::Relaxed) == process::generation().number() {
        Ok(())
    } else {
        Err(Errno::NODEV)
    }
}

/// # Safety
/// `place` must be NULL, or have a channel that is not freed during `'a`.
pub(crate) unsafe fn borrow<'a>(place: *const rocade_cm_channel) -> Result<&'a CmChannel, Errno> {
    // SAFETY: same contract.
    let place = unsafe { place.as_ref() }.ok_or(Errno::INVAL)?;
    check(place)?;
    let channel: *const CmChannel = place.channel.load(Ordering::SeqCst).cast();
    // SAFETY: same contract.
    unsafe { channel.as_ref() }.ok_or(Errno(libc::EBADF))
}

pub(crate) unsafe extern "C" fn rdma_create_event_channel(
    place: *const rocade_cm_channel,
    fd: *mut c_int,
) -> c_int {
    int_verb(|| {
        // SAFETY: by contract a place that stays.
        let place = unsafe { place.as_ref() }.ok_or(Errno::INVAL)?;
        let made = Box::new(CmChannel::new(process::host()?.engine())?);
        // SAFETY: by contract writable.
        unsafe { ffi::write(fd, made.fd()) }?;
        let generation = process::generation().number();
        place.generation.store(generation, Ordering::Relaxed);
        place
            .channel
            .store(Box::into_raw(made).cast(), Ordering::SeqCst);
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn rdma_destroy_event_channel(place: *const rocade_cm_channel) {
    int_verb(|| {
        // SAFETY: by contract a place that stays.
        let place = unsafe { place.as_ref() }.ok_or(Errno::INVAL)?;
        if check(place).is_err() {
            // The parent's: its locks may be held by threads that do not exist here.
            return Ok(());
        }
        // SAFETY: by contract it has a channel, which nobody else frees.
        let fd = unsafe { borrow(place) }?.fd();
        // SAFETY: no pointers.
        let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
        let fails = flags >= 0 && flags & libc::O_NONBLOCK != 0;
        place.fails.store(fails, Ordering::SeqCst);
        let channel = place.channel.swap(ptr::null_mut(), Ordering::SeqCst);
        // They sleep, or return, soon.
        while place.inside.load(Ordering::SeqCst) > 0 {
            thread::yield_now();
        }
        // SAFETY: it came from `Box::into_raw`, and nobody uses it any more.
        drop(unsafe { Box::from_raw(channel.cast::<CmChannel>()) });
        Ok(())
    });
}

/// A cancellation point, as read(2) is.
pub(crate) unsafe extern "C-unwind" fn rdma_get_cm_event(
    place: *const rocade_cm_channel,
    event: *mut rocade_cm_event,
) -> c_int {
    let visit = || {
        // SAFETY: by contract a place that stays.
        let place = unsafe { place.as_ref() }.ok_or(Errno::INVAL)?;
        match Visit::begin(place)? {
            None if place.fails.load(Ordering::SeqCst) => Err(Errno(libc::EBADF)),
            visit => Ok(visit),
        }
    };
    let prepare = || match visit()? {
        Some(visit) => Ok(visit.channel.begin_wait()),
        None => Ok(EventWaiter::never()?),
    };
    let take = || {
        let Some(visit) = visit()? else {
            return Ok(Taken::Never);
        };
        let Some(taken) = visit.channel.take_event()? else {
            return Ok(Taken::Nothing);
        };
        let c = event_to_c(taken)?;
        // SAFETY: by contract writable.
        unsafe { ffi::write(event, c) }?;
        Ok(Taken::Event)
    };
    cancel::blocking(prepare, take)
}
