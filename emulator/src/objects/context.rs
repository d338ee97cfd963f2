//! An opened device and its asynchronous events.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use crate::sync::Mutex;
use rocade_wire::{Psn, Qpn};

use super::comp_channel::CompChannel;
use super::cq::{Cq, CqInitAttr};
use super::pd::Pd;
use super::xrcd::Xrcd;
use crate::engine::{Engine, Nic, Registration};
use crate::error::VerbsError;
use crate::faults::{Limit, Verb};
use crate::hca::{DeviceAttr, DeviceInfo, GidEntry, Hca, PortAttr};
use crate::state::{AsyncEvent, AsyncEvents, EventWaiter, XrcdInitAttr};
use crate::sys;

/// An opened device (`ibv_context`).
#[derive(Clone, Debug)]
#[doc(alias = "ibv_context")]
pub struct Context {
    pub(super) inner: Arc<ContextInner>,
}

#[derive(Debug)]
pub(crate) struct ContextInner {
    pub(super) engine: Arc<Nic>,
    pub(super) hca: Arc<Hca>,
    pub(super) events: Arc<AsyncEvents>,
    command: OwnedFd,
    /// Reserved QP numbers, which no queue pair gets.
    reserved: Mutex<BTreeSet<Qpn>>,
    pub(super) registration: Registration,
}

impl Drop for ContextInner {
    fn drop(&mut self) {
        for qpn in &*self.reserved.get_mut() {
            self.engine.presence.release_qp_num(*qpn);
        }
    }
}

impl Engine {
    /// Opens a device.
    ///
    /// # Errors
    /// [`VerbsError::NoDevice`] if there is none of that name, or a fault rule has removed it.
    #[doc(alias = "ibv_open_device")]
    pub fn open_device(&self, name: &str) -> Result<Context, VerbsError> {
        self.inner().intercept(Verb::OpenDevice, name, None)?;
        let hca = self.hca(name).filter(|hca| !hca.is_removed());
        let hca = hca.ok_or(VerbsError::NoDevice)?;
        Context::new(Arc::clone(self.inner()), Arc::clone(hca))
    }
}

impl ContextInner {
    /// Applies the fault rules to a verb of this device. The caller holds no lock.
    ///
    /// # Errors
    /// [`VerbsError::Injected`]. [`VerbsError::Removed`], but for verbs that destroy or post.
    #[inline]
    pub(super) fn enter(&self, verb: Verb) -> Result<(), VerbsError> {
        self.check_verb(verb)?;
        self.engine.intercept(verb, &self.hca.config.name, None)
    }

    /// Checks that the device is there, or that the verb does not need it.
    #[inline]
    pub(super) fn check_verb(&self, verb: Verb) -> Result<(), VerbsError> {
        if !verb.outlives_device() && self.events.is_removed() {
            return Err(self.removed());
        }
        Ok(())
    }

    /// Returns the error of calls for a device that was removed.
    #[cold]
    pub(super) fn removed(&self) -> VerbsError {
        VerbsError::Removed {
            device: self.hca.config.name.clone(),
        }
    }
}

impl Context {
    fn new(engine: Arc<Nic>, hca: Arc<Hca>) -> Result<Self, VerbsError> {
        let events = Arc::new(AsyncEvents::new(Arc::clone(&hca))?);
        let command = sys::never_readable_fd()?;
        let registration = engine
            .tables
            .inventory()
            .register(&hca, None, |number, text| {
                let _ = write!(text, "ctx ctxn={number}");
            });
        let inner = Arc::new(ContextInner {
            engine,
            hca,
            events,
            command,
            reserved: Mutex::default(),
            registration,
        });
        inner.engine.watch_network(&inner.events);
        inner.engine.begin_faults(&inner.events);
        Ok(Self { inner })
    }

    /// Returns an error if a fault rule has removed the device since it was opened.
    ///
    /// # Errors
    /// [`VerbsError::Removed`].
    pub fn check_present(&self) -> Result<(), VerbsError> {
        if self.inner.events.is_removed() {
            return Err(self.inner.removed());
        }
        Ok(())
    }

    /// Returns a random initial PSN. In a simulation its seed determines it.
    #[must_use]
    pub fn random_psn(&self) -> Psn {
        Psn::new(self.inner.engine.host.random_word() & 0x00ff_ffff)
    }

    /// Reserves a queue pair number for a connection without a queue pair. No queue pair of these
    /// addresses gets it until it is released or the context ends.
    ///
    /// # Errors
    /// [`VerbsError::NoMemory`] if all numbers are in use.
    #[doc(alias = "mlx5dv_reserved_qpn_alloc")]
    pub fn reserve_qp_num(&self) -> Result<Qpn, VerbsError> {
        let qpn = self.inner.engine.allocate_qp_num()?;
        self.inner.reserved.lock().insert(qpn);
        Ok(qpn)
    }

    /// Releases a reserved queue pair number.
    ///
    /// # Errors
    /// [`VerbsError::InvalidArgument`] if this context has not reserved it.
    #[doc(alias = "mlx5dv_reserved_qpn_dealloc")]
    pub fn release_qp_num(&self, qpn: Qpn) -> Result<(), VerbsError> {
        if !self.inner.reserved.lock().remove(&qpn) {
            return Err(VerbsError::InvalidArgument("the number is not reserved"));
        }
        self.inner.engine.presence.release_qp_num(qpn);
        Ok(())
    }

    /// Name and location of the device.
    #[must_use]
    pub fn device(&self) -> DeviceInfo {
        self.inner.hca.info()
    }

    /// Identity and limits.
    #[must_use]
    #[doc(alias = "ibv_query_device")]
    pub fn device_attr(&self) -> DeviceAttr {
        let ContextInner { engine, hca, .. } = &*self.inner;
        let mut attr = hca.device_attr();
        engine.faults.lower_limits(hca, &mut attr);
        attr
    }

    /// The clock of completion timestamps, in nanoseconds.
    #[must_use]
    pub fn clock_ns(&self) -> u64 {
        self.inner.engine.host.now().as_ns()
    }

    /// Converts a completion timestamp to nanoseconds since 1970 (`CLOCK_REALTIME`).
    ///
    /// The offset between both clocks is that of the engine's creation, for all devices and CQs. So
    /// converted timestamps have the order of the timestamps, and repeat themselves. A time of day
    /// that is set later has no effect.
    #[must_use]
    pub fn wallclock_ns(&self, timestamp_ns: u64) -> u64 {
        self.inner.engine.host.clock().unix_ns(timestamp_ns)
    }

    /// Returns the state of port `port` (1-based).
    ///
    /// # Errors
    /// [`VerbsError::InvalidArgument`] if there is no such port.
    #[doc(alias = "ibv_query_port")]
    pub fn port_attr(&self, port: u8) -> Result<PortAttr, VerbsError> {
        self.inner.enter(Verb::QueryPort)?;
        let hca = &self.inner.hca;
        let port = hca.port(port);
        let port = port.ok_or(VerbsError::InvalidArgument("port_num"))?;
        Ok(hca.port_attr(port))
    }

    /// The current GID table of port 1. A GID of 0 marks an empty entry.
    #[must_use]
    #[doc(alias = "ibv_query_gid_table")]
    pub fn gid_entries(&self) -> Arc<[GidEntry]> {
        self.inner
            .hca
            .ports()
            .next()
            .map_or_else(Arc::default, |port| port.gids())
    }

    /// Returns the current GID table of a port (1-based).
    ///
    /// # Errors
    /// [`VerbsError::InvalidArgument`] if there is no such port. [`VerbsError::Removed`] if the
    /// device was removed.
    #[doc(alias = "ibv_query_gid_table")]
    pub fn gid_entries_of(&self, port: u8) -> Result<Arc<[GidEntry]>, VerbsError> {
        self.check_present()?;
        let port = self.inner.hca.port(port);
        let port = port.ok_or(VerbsError::InvalidArgument("port_num"))?;
        Ok(port.gids())
    }

    /// Returns an entry of the P_Key table in host byte order.
    ///
    /// # Errors
    /// [`VerbsError::InvalidArgument`] beyond the table.
    #[doc(alias = "ibv_query_pkey")]
    pub fn pkey(&self, index: u16) -> Result<u16, VerbsError> {
        self.inner.enter(Verb::QueryPkey)?;
        self.inner
            .hca
            .pkey(index)
            .map(rocade_wire::Pkey::get)
            .ok_or(VerbsError::InvalidArgument("pkey_index"))
    }

    /// Allocates a protection domain.
    ///
    /// # Errors
    /// [`VerbsError::NoMemory`] if a fault rule has lowered the limit of the device, which is not
    /// reachable otherwise.
    #[doc(alias = "ibv_alloc_pd")]
    pub fn alloc_pd(&self) -> Result<Pd, VerbsError> {
        self.inner.enter(Verb::AllocPd)?;
        let ContextInner { engine, hca, .. } = &*self.inner;
        engine.check_count(hca, Limit::MaxPd)?;
        Ok(Pd::new(Arc::clone(&self.inner)))
    }

    /// Makes a completion channel.
    ///
    /// # Errors
    /// [`VerbsError::Io`] if file descriptors are exhausted.
    #[doc(alias = "ibv_create_comp_channel")]
    pub fn create_comp_channel(&self) -> Result<CompChannel, VerbsError> {
        self.inner.enter(Verb::CreateCompChannel)?;
        CompChannel::new(Arc::clone(&self.inner))
    }

    /// Makes a completion queue of `cqe` entries. `cookie` identifies it in events.
    ///
    /// # Errors
    /// [`VerbsError::InvalidArgument`] if `cqe` is 0 or above the limit, if there is no such
    /// completion vector, or if the channel belongs to another context.
    #[doc(alias = "ibv_create_cq")]
    pub fn create_cq(
        &self,
        cqe: u32,
        channel: Option<&CompChannel>,
        vector: u32,
        cookie: u64,
    ) -> Result<Cq, VerbsError> {
        self.create_cq_with(CqInitAttr {
            cqe,
            channel,
            vector,
            cookie,
            ignores_overrun: false,
        })
    }

    /// Makes a completion queue with all attributes.
    ///
    /// # Errors
    /// As [`Context::create_cq`].
    #[doc(alias = "ibv_create_cq_ex")]
    pub fn create_cq_with(&self, attr: CqInitAttr<'_>) -> Result<Cq, VerbsError> {
        self.inner.enter(Verb::CreateCq)?;
        let ContextInner { engine, hca, .. } = &*self.inner;
        engine.check_count(hca, Limit::MaxCq)?;
        engine.check_size(hca, Limit::MaxCqe, attr.cqe.into(), "cqe")?;
        Cq::new(Arc::clone(&self.inner), attr)
    }

    /// Opens an XRC domain.
    ///
    /// # Errors
    /// For the domain of a file: [`VerbsError::WouldBlock`] (EAGAIN) if it does not exist and
    /// `create` is not set. [`VerbsError::InvalidArgument`] if it exists and `exclusive` is set.
    #[doc(alias = "ibv_open_xrcd")]
    pub fn open_xrcd(&self, init: XrcdInitAttr) -> Result<Xrcd, VerbsError> {
        self.inner.enter(Verb::OpenXrcd)?;
        Xrcd::open(Arc::clone(&self.inner), init)
    }

    /// The descriptor that is readable while an asynchronous event is pending.
    #[must_use]
    pub fn async_fd(&self) -> RawFd {
        self.inner.events.queue().raw_fd()
    }

    /// A descriptor that represents the context, like the command descriptor of a driver. It can be
    /// duplicated, and never becomes readable or writable.
    #[must_use]
    pub fn command_fd(&self) -> RawFd {
        self.inner.command.as_raw_fd()
    }

    /// Waits for an asynchronous event.
    ///
    /// # Errors
    /// [`VerbsError::WouldBlock`] if the descriptor is non-blocking and no event is pending.
    /// [`VerbsError::Io`] (`EINTR`) after a signal.
    #[doc(alias = "ibv_get_async_event")]
    pub fn next_async_event(&self) -> Result<AsyncEvent, VerbsError> {
        let waiter = self.begin_async_wait();
        loop {
            if let Some(event) = self.take_async_event()? {
                return Ok(event);
            }
            waiter.wait()?;
        }
    }

    /// Returns the waiter for the first step of [`Context::next_async_event`], like
    /// [`CompChannel::begin_wait`].
    #[must_use]
    pub fn begin_async_wait(&self) -> EventWaiter {
        self.inner.engine.leave_inline();
        self.inner.events.queue().waiter()
    }

    /// Takes an asynchronous event, or returns `None` if the caller has to wait.
    ///
    /// # Errors
    /// As [`Context::next_async_event`].
    pub fn take_async_event(&self) -> Result<Option<AsyncEvent>, VerbsError> {
        self.inner.events.queue().pop(|event| {
            if let Some(acks) = &event.acks {
                acks.delivered();
            }
        })
    }

    /// Acknowledges an event. Destroying its object waits for that.
    #[doc(alias = "ibv_ack_async_event")]
    pub fn ack_async_event(&self, event: &AsyncEvent) {
        if let Some(acks) = &event.acks {
            acks.ack(1);
        }
    }
}
