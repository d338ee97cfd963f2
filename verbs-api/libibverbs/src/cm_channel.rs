//! Event channels of the connection manager, and calls on channels that were destroyed.
//!
//! Programs destroy a channel while another thread is about to wait for its next event. For
//! example, the thread of rping acknowledges the last event and calls again, and the destroy waits
//! for that acknowledgement only. If the destroy comes first, the late call finds no channel.
//! Otherwise the destroy waits for the call to leave the channel. A thread that sleeps on the
//! channel keeps sleeping, as in read(2) from a descriptor that another thread closes.

use std::{ffi::c_int, ptr, sync::atomic::Ordering, thread};

use rocade_abi::{rocade_cm_channel, rocade_cm_event};
use rocade_emulator::{EventWaiter, cm::CmChannel};

use crate::{
    args::{CObject, Handle, Out},
    cancel::{self, Poll},
    cm::event_to_c,
    diagnostics,
    ffi::{Errno, int_verb},
    late_calls, process,
};

/// A call that uses a channel. The channel is not freed before the call ends.
struct ChannelGuard<'a> {
    place: &'a rocade_cm_channel,
    channel: &'a CmChannel,
}

impl<'a> ChannelGuard<'a> {
    /// Enters the channel. Returns `None` if it was destroyed.
    fn begin(place: &'a rocade_cm_channel) -> Result<Option<Self>, Errno> {
        check(place)?;
        // This call and the destroy each write first and then read the other's write. So at least
        // one sees the other.
        place.active_calls.fetch_add(1, Ordering::SeqCst);
        let channel: *const CmChannel = place.channel.load(Ordering::SeqCst).cast();
        // SAFETY: NULL, or made by `rdma_create_event_channel` and not freed while this call is
        // counted.
        let Some(channel) = (unsafe { channel.as_ref() }) else {
            place.active_calls.fetch_sub(1, Ordering::SeqCst);
            return Ok(None);
        };
        Ok(Some(Self { place, channel }))
    }
}

impl Drop for ChannelGuard<'_> {
    fn drop(&mut self) {
        self.place.active_calls.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Returns `ENODEV` for a channel that was made before a `fork`.
fn check(place: &rocade_cm_channel) -> Result<(), Errno> {
    if place.generation.load(Ordering::Relaxed) == process::generation().number() {
        Ok(())
    } else {
        Err(Errno::NODEV)
    }
}

// SAFETY: `librdmacm` has made the place, which stays. All members are atomics.
unsafe impl CObject for rocade_cm_channel {
    type Object = Self;

    fn check(_: &Self) -> Result<(), Errno> {
        // Its functions differ in what they do with an inherited channel.
        Ok(())
    }
}

/// Returns the channel at a place, which no call frees meanwhile.
///
/// # Errors
/// `EINVAL` for NULL, `ENODEV` if it was made before a `fork`, `EBADF` after its destruction.
pub(crate) fn borrow(place: Handle<'_, rocade_cm_channel>) -> Result<&CmChannel, Errno> {
    let place = place.get()?;
    check(place)?;
    let channel: *const CmChannel = place.channel.load(Ordering::SeqCst).cast();
    // SAFETY: NULL, or a channel that no call frees meanwhile, by the promise of a handle.
    unsafe { channel.as_ref() }.ok_or(Errno(libc::EBADF))
}

pub(crate) extern "C" fn rdma_create_event_channel(
    place: Handle<'_, rocade_cm_channel>,
    fd: Out<'_, c_int>,
) -> c_int {
    int_verb(|| {
        let place = place.get()?;
        let made = Box::new(CmChannel::new(process::host()?.engine())?);
        fd.write(made.fd())?;
        let generation = process::generation().number();
        place.generation.store(generation, Ordering::Relaxed);
        place
            .channel
            .store(Box::into_raw(made).cast(), Ordering::SeqCst);
        Ok(())
    })
}

pub(crate) extern "C" fn rdma_destroy_event_channel(handle: Handle<'_, rocade_cm_channel>) {
    int_verb(|| {
        let place = handle.get()?;
        if check(place).is_err() {
            // Inherited from the parent process: threads that do not exist here may hold its locks.
            return Ok(());
        }
        let fd = borrow(handle)?.fd();
        let nonblocking = late_calls::is_nonblocking(fd);
        place.nonblocking.store(nonblocking, Ordering::SeqCst);
        let channel = place.channel.swap(ptr::null_mut(), Ordering::SeqCst);
        // These calls sleep or return soon.
        while place.active_calls.load(Ordering::SeqCst) > 0 {
            thread::yield_now();
        }
        // SAFETY: it came from `Box::into_raw`, and no call uses it any more.
        let channel = unsafe { Box::from_raw(channel.cast::<CmChannel>()) };
        channel.end();
        drop(channel);
        Ok(())
    });
}

/// Takes the next event. A cancellation point, like read(2).
pub(crate) extern "C-unwind" fn rdma_get_cm_event(
    place: Handle<'_, rocade_cm_channel>,
    event: Out<'_, rocade_cm_event>,
) -> c_int {
    let enter = || {
        let place = place.get()?;
        match ChannelGuard::begin(place)? {
            None if place.nonblocking.load(Ordering::SeqCst) => Err(Errno(libc::EBADF)),
            guard => Ok(guard),
        }
    };
    let prepare = || match enter()? {
        Some(guard) => Ok((guard.channel.begin_wait(), ())),
        None => Ok((EventWaiter::never()?, ())),
    };
    let take = |(): &()| {
        let Some(guard) = enter()? else {
            return Ok(Poll::Closed);
        };
        let Some(taken) = guard.channel.take_event()? else {
            return Ok(Poll::Empty);
        };
        diagnostics::explain_event(&taken);
        let c = event_to_c(taken)?;
        event.write(c)?;
        Ok(Poll::Event)
    };
    let waiting = place.get().ok().map(|place| &place.waiting_calls);
    waiting.inspect(|waiting| _ = waiting.fetch_add(1, Ordering::SeqCst));
    let status = cancel::blocking(prepare, take);
    waiting.inspect(|waiting| _ = waiting.fetch_sub(1, Ordering::SeqCst));
    status
}
