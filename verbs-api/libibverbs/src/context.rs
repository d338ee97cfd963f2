//! Open devices and the function tables inside them.

use std::{
    cell::UnsafeCell,
    mem::offset_of,
    os::fd::{AsRawFd, OwnedFd},
    ptr,
    sync::Arc,
};

use rocade_abi::{VERBS_ABI_IS_EXTENDED, ibv_context, ibv_context_ops, verbs_context};
use rocade_emulator::Context;

use crate::{
    args::{CObject, Handle, Last, member, object_of, slot, zeroed},
    cq, cq_ex,
    device::DeviceObject,
    dm, domain,
    ffi::Errno,
    flow, import, late_calls, mr, mw, post, process, qp, qp_ex, query, rss, srq, trace, xrcd,
};

/// The object behind an `ibv_context`. The program's pointer is the address of the last member of
/// `c`. Objects made from the context keep it alive beyond `ibv_close_device`, because their inline
/// verbs call through its tables.
#[repr(C)]
pub(crate) struct ContextObject {
    c: UnsafeCell<verbs_context>,
    generation: process::Generation,
    context: Context,
    device: &'static DeviceObject,
    /// For an imported context, the descriptor that it was imported by.
    _import_fd: Option<OwnedFd>,
}

// SAFETY: after construction the C part is only read, through raw pointers. The rest is `Sync`.
unsafe impl Sync for ContextObject {}
// SAFETY: nothing in it is bound to a thread.
unsafe impl Send for ContextObject {}

impl std::fmt::Debug for ContextObject {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ContextObject")
            .field("device", self.device)
            .finish_non_exhaustive()
    }
}

impl ContextObject {
    /// Returns the device that the context was opened on.
    pub(crate) const fn device(&self) -> &DeviceObject {
        self.device
    }

    /// Returns the emulator's context.
    pub(crate) const fn context(&self) -> &Context {
        &self.context
    }

    /// Returns the pointer that the program has.
    pub(crate) const fn as_c(&self) -> *mut ibv_context {
        member!(verbs_context, context).of(self.c.get())
    }
}

// SAFETY: programs have pointers to this type from `into_program` only, which returns the address
// of the member `context` of `c`, the first member.
unsafe impl CObject for ibv_context {
    type Object = ContextObject;
    const OFFSET: usize = offset_of!(verbs_context, context);

    fn check(object: &ContextObject) -> Result<(), Errno> {
        if object.generation == process::generation() {
            Ok(())
        } else {
            Err(Errno::NODEV)
        }
    }
}

impl Handle<'_, ibv_context> {
    /// Returns the context, with shared ownership.
    ///
    /// # Errors
    /// `EINVAL` for NULL, `ENODEV` if it was opened before a `fork`.
    pub(crate) fn share(self) -> Result<Arc<ContextObject>, Errno> {
        self.get()?;
        self.share_inherited()
    }

    /// Like [`Self::share`], but also for a context opened before a `fork`. For functions that do
    /// not use the engine.
    ///
    /// # Errors
    /// `EINVAL` for NULL.
    pub(crate) fn share_inherited(self) -> Result<Arc<ContextObject>, Errno> {
        if self.is_null() {
            return Err(Errno::INVAL);
        }
        let object = object_of(self.as_ptr()).cast_const();
        // SAFETY: the pointer comes from `Arc::into_raw`, and the program's reference is held.
        unsafe { Arc::increment_strong_count(object) };
        // SAFETY: the count just taken belongs to the new `Arc`.
        Ok(unsafe { Arc::from_raw(object) })
    }
}

/// Opens `device`.
///
/// # Errors
/// The errno of the emulator's error.
pub(crate) fn open(device: &'static DeviceObject) -> Result<*mut ibv_context, Errno> {
    let context = process::host()?.engine().open_device(&device.info().name)?;
    let object = make(device, context, None);
    import::register_device(&object);
    Ok(into_program(object))
}

/// Returns a second context for the device that `object` has opened, with a duplicate of its
/// descriptor. Each asynchronous event is delivered once, to either context.
pub(crate) fn open_imported(object: &ContextObject, fd: OwnedFd) -> *mut ibv_context {
    into_program(make(object.device, object.context.clone(), Some(fd)))
}

fn make(
    device: &'static DeviceObject,
    context: Context,
    import_fd: Option<OwnedFd>,
) -> Arc<ContextObject> {
    let mut c = tables();
    if trace::sink::is_on() {
        trace::ops::install(&mut c);
    }
    c.context.device = device.as_c();
    let own = context.command_fd();
    c.context.cmd_fd = import_fd.as_ref().map_or(own, AsRawFd::as_raw_fd);
    c.context.async_fd = context.async_fd();
    c.context.num_comp_vectors = query::NUM_COMP_VECTORS;
    c.context.abi_compat = VERBS_ABI_IS_EXTENDED;
    let generation = process::generation();
    Arc::new(ContextObject {
        c: UnsafeCell::new(c),
        generation,
        context,
        device,
        _import_fd: import_fd,
    })
}

/// Returns the program's reference to the context, which [`close`] takes back.
fn into_program(object: Arc<ContextObject>) -> *mut ibv_context {
    let c = object.as_c();
    process::contexts().lock().begin(c.addr(), &object);
    let _ = Arc::into_raw(object);
    c
}

/// Closes a context: takes back the program's reference.
///
/// # Errors
/// `EINVAL` for NULL.
//= DST-09
pub(crate) fn close(context: &Last<'_, ibv_context>) -> Result<(), Errno> {
    match context.handle().get() {
        Ok(object) => {
            let nonblocking = late_calls::is_nonblocking(object.context().async_fd());
            // SAFETY: `open` left this reference with the program, which returns it now.
            let object = unsafe { Arc::from_raw(ptr::from_ref(object)) };
            let mut contexts = process::contexts().lock();
            contexts.end(context.addr(), nonblocking);
            contexts.keep(context.addr(), Arc::downgrade(&object));
            drop(contexts);
            // After the lock is released, because this may destroy the device.
            drop(object);
        }
        // Inherited from the parent process, whose locks and sockets this process must not use.
        Err(Errno::NODEV) => {}
        Err(error) => return Err(error),
    }
    Ok(())
}

/// Fills the tables through which inline verbs call. If an op is `None`, the inline function fails
/// with `EOPNOTSUPP`. The ops that inline functions call unchecked are always filled.
fn tables() -> verbs_context {
    let mut c: verbs_context = zeroed();
    c.sz = size_of::<verbs_context>();
    c.query_port = Some(query::c_query_port);
    c.query_device_ex = Some(query::c_query_device_ex);
    c.query_rt_values = Some(slot::of_2(query::query_rt_values));
    c.create_cq_ex = Some(slot::of_2(cq_ex::create_cq_ex));
    c.modify_cq = Some(slot::of_2(cq::modify_cq));
    c.create_qp_ex = Some(slot::of_2(qp_ex::create_qp_ex));
    c.alloc_dm = Some(slot::of_2(dm::alloc_dm));
    c.free_dm = Some(slot::of_1(dm::free_dm));
    c.reg_dm_mr = Some(slot::of_5(mr::reg_dm_mr));
    c.alloc_null_mr = Some(slot::of_1(mr::alloc_null_mr));
    c.advise_mr = Some(mr::c_advise_mr);
    c.create_wq = Some(slot::of_2(rss::create_wq));
    c.modify_wq = Some(slot::of_2(rss::modify_wq));
    c.destroy_wq = Some(slot::of_1(rss::destroy_wq));
    c.create_rwq_ind_table = Some(slot::of_2(rss::create_rwq_ind_table));
    c.destroy_rwq_ind_table = Some(slot::of_1(rss::destroy_rwq_ind_table));
    c.ibv_create_flow = Some(slot::of_2(flow::create_flow));
    c.ibv_destroy_flow = Some(slot::of_1(flow::destroy_flow));
    c.modify_qp_rate_limit = Some(slot::of_2(qp::modify_qp_rate_limit));
    c.alloc_td = Some(slot::of_2(domain::alloc_td));
    c.dealloc_td = Some(slot::of_1(domain::dealloc_td));
    c.alloc_parent_domain = Some(slot::of_2(domain::alloc_parent_domain));
    c.create_srq_ex = Some(slot::of_2(srq::create_srq_ex));
    c.open_xrcd = Some(slot::of_2(xrcd::open_xrcd));
    c.close_xrcd = Some(slot::of_1(xrcd::close_xrcd));
    c.open_qp = Some(slot::of_2(qp_ex::open_qp));
    c.get_srq_num = Some(slot::of_2(srq::get_srq_num));
    let ops: &mut ibv_context_ops = &mut c.context.ops;
    ops.poll_cq = Some(slot::of_3(cq::poll_cq));
    ops.req_notify_cq = Some(slot::of_2(cq::req_notify_cq));
    ops.post_send = Some(slot::of_3(post::post_send));
    ops.post_recv = Some(slot::of_3(post::post_recv));
    ops.alloc_mw = Some(slot::of_2(mw::alloc_mw));
    ops.bind_mw = Some(slot::of_3(mw::bind_mw));
    ops.dealloc_mw = Some(slot::of_1(mw::dealloc_mw));
    ops.post_srq_recv = Some(slot::of_3(srq::post_srq_recv));
    c
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_that_are_called_unchecked_are_filled() {
        let c = tables();
        assert!(c.close_xrcd.is_some());
        let ops = c.context.ops;
        assert!(ops.poll_cq.is_some() && ops.req_notify_cq.is_some());
        assert!(ops.post_send.is_some() && ops.post_recv.is_some() && ops.post_srq_recv.is_some());
        assert!(ops.bind_mw.is_some() && ops.dealloc_mw.is_some());
        assert_eq!(c.sz, 648);
    }
}
