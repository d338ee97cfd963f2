//! Completion event channels.

use std::{
    ffi::{c_int, c_uint, c_void},
    ptr,
    sync::{Arc, Weak},
};

use rocade_abi::{ibv_comp_channel, ibv_context, ibv_cq, ibv_cq_ex};
use rocade_emulator::{CompChannel, EventWaiter};

use crate::{
    args::{Handle, Last, Out, member},
    cancel::{self, Poll},
    context::ContextObject,
    ffi::{Errno, int_verb, ptr_verb, void_verb},
    handle::{CHandle, objects},
    late_calls, process,
};

/// A completion event channel.
pub(crate) type ChannelObject = CHandle<ibv_comp_channel, Arc<ChannelState>>;

objects! {
    ibv_comp_channel: ibv_comp_channel, Arc<ChannelState>;
}

/// The Rust state of an `ibv_comp_channel`.
pub(crate) struct ChannelState {
    channel: CompChannel,
    _context: Arc<ContextObject>,
}

impl ChannelState {
    /// Returns the emulator's channel.
    pub(crate) const fn channel(&self) -> &CompChannel {
        &self.channel
    }
}

/// `ibv_create_comp_channel`.
pub(crate) extern "C" fn ibv_create_comp_channel(
    context: Handle<'_, ibv_context>,
) -> *mut ibv_comp_channel {
    ptr_verb(|| {
        let context = context.share()?;
        let channel = context.context().create_comp_channel()?;
        ChannelObject::create(|address| {
            let c = ibv_comp_channel {
                context: context.as_c(),
                fd: channel.fd(),
                refcnt: 0,
            };
            let state = Arc::new(ChannelState {
                channel,
                _context: context,
            });
            process::channels().lock().begin(address.addr(), &state);
            Ok((c, state))
        })
    })
}

/// `ibv_destroy_comp_channel`: fails with `EBUSY` while a CQ uses it.
//= DST-06
pub(crate) extern "C" fn ibv_destroy_comp_channel(channel: Last<'_, ibv_comp_channel>) -> c_int {
    int_verb(|| {
        let addr = channel.addr();
        let close = |state: &Arc<ChannelState>| {
            state.channel.destroy()?;
            let nonblocking = late_calls::is_nonblocking(state.channel.fd());
            process::channels().lock().end(addr, nonblocking);
            Ok(())
        };
        // Only late calls use it afterwards, and those check `late_calls` first.
        if let Some(memory) = channel.destroy_keeping_memory(close)? {
            process::channels().lock().keep(addr, memory);
        }
        Ok(())
    })
}

/// `ibv_get_cq_event`: blocks like read(2), or fails with `EAGAIN` if the descriptor is
/// non-blocking. A call on a channel that was already destroyed does not access its memory.
//= CQ-08
//= CQ-14
pub(crate) extern "C-unwind" fn ibv_get_cq_event(
    channel: Handle<'_, ibv_comp_channel>,
    cq: Out<'_, *mut ibv_cq>,
    cq_context: Out<'_, *mut c_void>,
) -> c_int {
    let state = || {
        process::channels()
            .lock()
            .find(channel.addr(), || Ok(Arc::clone(channel.get()?.inner())))
    };
    let prepare = || {
        if cq.is_null() || cq_context.is_null() {
            return Err(Errno::INVAL);
        }
        match state()? {
            Some(state) => Ok((state.channel.begin_wait(), Arc::downgrade(&state))),
            None => Ok((EventWaiter::never()?, Weak::new())),
        }
    };
    let take = |found: &Weak<ChannelState>| {
        let Some(state) = process::channels().lock().again(channel.addr(), found)? else {
            return Ok(Poll::Closed);
        };
        let Some(cookie) = state.channel.take_event()? else {
            return Ok(Poll::Empty);
        };
        let address = usize::try_from(cookie).unwrap_or(0);
        let source: *mut ibv_cq_ex = ptr::with_exposed_provenance_mut(address);
        // SAFETY: the cookie is the address of the CQ, which lives until this event is
        // acknowledged.
        let source_cq: Handle<'_, ibv_cq_ex> = unsafe { Handle::new(source) };
        let context = source_cq.get()?.member(member!(ibv_cq_ex, cq_context));
        cq.write(source.cast())?;
        cq_context.write(context)?;
        Ok(Poll::Event)
    };
    cancel::blocking(prepare, take)
}

/// `ibv_ack_cq_events`.
pub(crate) extern "C" fn ibv_ack_cq_events(cq: Handle<'_, ibv_cq>, nevents: c_uint) {
    void_verb(|| {
        cq.get()?.inner().cq().ack_events(nevents);
        Ok(())
    });
}
