//! Devices, opened devices and protection domains.

use std::fmt;
use std::fs::File;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rocade_emulator::faults::FaultReport;
use rocade_emulator::{AccessFlags, Context as RawContext, Engine, Gid, Pd as RawPd, Pkey, Psn};

use crate::completion::CompletionQueue;
use crate::config::Config;
use crate::datagram::{AddressHandle, AddressOptions, DatagramQueuePair, DatagramQueuePairBuilder};
use crate::domain::ThreadDomain;
use crate::dynamic::{DynamicInitiator, DynamicInitiatorBuilder, DynamicTarget};
use crate::error::{BuildError, DeviceListError, OpenError, Result, VerbsError};
use crate::facts::{DeviceAttr, DeviceInfo, EngineCounters, GidEntry, PortAttr};
use crate::indirect::IndirectKey;
use crate::queue_pair::QueuePairBuilder;
use crate::shared_receives::SharedReceiveQueue;
use crate::simulation::Simulator;
use crate::window::{MemoryWindow, Type1Window};
use crate::xrc::XrcDomain;

/// The number of a device's first port.
pub(crate) const PORT: u8 = 1;

/// The devices of this process, and the engine behind them.
///
/// A list is cheap to create: the engine opens sockets and starts its background thread for the
/// first queue pair. A process may have several lists, for example one per emulated host in a test.
///
/// ```
/// use rocade_verbs::{Config, DeviceList, OpenError};
///
/// let list = DeviceList::new(Config::simulated(1))?;
/// let names: Vec<_> = list.devices().into_iter().map(|device| device.name).collect();
/// assert_eq!(names, ["a", "b"]);
/// assert!(matches!(list.open("c"), Err(OpenError::NoDevice(_))));
/// # Ok::<(), rocade_verbs::Error>(())
/// ```
#[derive(Clone)]
#[doc(alias = "ibv_get_device_list")]
pub struct DeviceList {
    engine: Engine,
    /// The executor of a simulated network.
    simulator: Option<Arc<Simulator>>,
}

impl DeviceList {
    /// Returns the devices that the environment and the configuration file describe. By default
    /// there is one per network interface. See [`rocade_emulator::config`].
    ///
    /// # Errors
    /// [`DeviceListError::Config`] if a setting is wrong. The error's text is meant for the user.
    pub fn from_env() -> Result<Self, DeviceListError> {
        Ok(Self::new(Config::from_env()?)?)
    }

    /// Returns the devices of `config`.
    ///
    /// # Errors
    /// [`VerbsError`] if the engine rejects the configuration.
    pub fn new(config: Config) -> Result<Self, VerbsError> {
        let engine = Engine::new(config.into_engine())?;
        let simulator = Simulator::of(&engine);
        Ok(Self { engine, simulator })
    }

    pub(crate) const fn simulator(&self) -> Option<&Arc<Simulator>> {
        self.simulator.as_ref()
    }

    pub(crate) const fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Returns name, GUID and interface of each device, in order.
    #[must_use]
    #[doc(alias = "ibv_get_device_name")]
    #[doc(alias = "ibv_get_device_guid")]
    #[doc(alias = "ibv_get_device_index")]
    pub fn devices(&self) -> Vec<DeviceInfo> {
        let devices = self.engine.devices().into_iter();
        devices.map(DeviceInfo::of).collect()
    }

    /// Opens the device called `name`.
    ///
    /// # Errors
    /// [`OpenError::NoDevice`] if there is no device with this name.
    #[doc(alias = "ibv_open_device")]
    pub fn open(&self, name: &str) -> Result<Context, OpenError> {
        if self.devices().iter().all(|device| device.name != name) {
            return Err(OpenError::NoDevice(name.to_owned()));
        }
        Ok(Context {
            raw: self.engine.open_device(name)?,
            list: self.clone(),
        })
    }

    /// Returns the packet statistics of the engine, by the link that each packet took.
    #[must_use]
    pub fn engine_counters(&self) -> EngineCounters {
        EngineCounters::of(&self.engine.counters())
    }

    /// Returns what the fault rules of this process have done: how often, when, and to which
    /// object. On the simulated network, a seed gives the same report again.
    #[must_use]
    pub fn fault_report(&self) -> FaultReport {
        self.engine.fault_report()
    }

    /// Opens the first device.
    ///
    /// # Errors
    /// [`OpenError::NoDevice`] if the list is empty.
    pub fn open_first(&self) -> Result<Context, OpenError> {
        let devices = self.devices();
        let first = devices
            .first()
            .ok_or_else(|| OpenError::NoDevice(String::new()))?;
        self.open(&first.name)
    }
}

impl fmt::Debug for DeviceList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<String> = self
            .devices()
            .into_iter()
            .map(|device| device.name)
            .collect();
        f.debug_tuple("DeviceList").field(&names).finish()
    }
}

/// An opened device.
///
/// ```
/// use rocade_verbs::{Config, DeviceList, Mtu};
///
/// let context = DeviceList::new(Config::simulated(1))?.open("a")?;
/// assert!(context.port()?.active);
/// assert_eq!(context.port()?.active_mtu, Mtu::Mtu1024);
/// assert_eq!(context.gids()[0].gid.to_string(), "::ffff:10.0.0.1");
/// # Ok::<(), rocade_verbs::Error>(())
/// ```
#[derive(Clone)]
#[doc(alias = "ibv_context")]
pub struct Context {
    raw: RawContext,
    list: DeviceList,
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.raw.fmt(f)
    }
}

impl Context {
    pub(crate) const fn raw(&self) -> &RawContext {
        &self.raw
    }

    pub(crate) const fn simulator(&self) -> Option<&Arc<Simulator>> {
        self.list.simulator()
    }

    /// Returns the devices of which this one was opened.
    pub(crate) const fn list(&self) -> &DeviceList {
        &self.list
    }

    pub(crate) fn random_psn(&self) -> Psn {
        self.raw.random_psn()
    }

    /// Returns name, GUID and interface of the device.
    #[must_use]
    pub fn device(&self) -> DeviceInfo {
        DeviceInfo::of(self.raw.device())
    }

    /// Returns identity and limits of the device.
    #[must_use]
    #[doc(alias = "ibv_query_device")]
    #[doc(alias = "ibv_query_device_ex")]
    pub fn attributes(&self) -> DeviceAttr {
        DeviceAttr::of(&self.raw.device_attr())
    }

    /// Returns the state of the device's first port.
    ///
    /// # Errors
    /// [`VerbsError`] if the device was removed, for which a fault rule is the only cause.
    #[doc(alias = "ibv_query_port")]
    pub fn port(&self) -> Result<PortAttr, VerbsError> {
        Ok(PortAttr::of(&self.raw.port_attr(PORT)?))
    }

    /// Returns the state of a port. Ports count from 1. The
    /// [attributes](Self::attributes) hold the number of ports.
    ///
    /// # Errors
    /// [`VerbsError`] if there is no such port, or if the device was removed.
    #[doc(alias = "ibv_query_port")]
    pub fn port_at(&self, port: u8) -> Result<PortAttr, VerbsError> {
        Ok(PortAttr::of(&self.raw.port_attr(port)?))
    }

    /// Returns the GID table of a port. Ports count from 1.
    ///
    /// # Errors
    /// [`VerbsError`] if there is no such port, or if the device was removed.
    #[doc(alias = "ibv_query_gid_table")]
    pub fn gids_of(&self, port: u8) -> Result<Vec<GidEntry>, VerbsError> {
        Ok(GidEntry::all(&self.raw.gid_entries_of(port)?))
    }

    /// Returns the GID table of the first port, made from its current IP addresses. A GID of 0 is
    /// an empty entry.
    #[must_use]
    #[doc(alias = "ibv_query_gid")]
    #[doc(alias = "ibv_query_gid_ex")]
    #[doc(alias = "ibv_query_gid_table")]
    pub fn gids(&self) -> Vec<GidEntry> {
        GidEntry::all(&self.raw.gid_entries())
    }

    /// Returns the P_Key table: the partitions that queue pairs may belong to, by index.
    /// `ROCADE_PKEYS` or the [configuration](Config::with_pkeys) sets it. By default it has one
    /// entry, 0xffff.
    #[must_use]
    #[doc(alias = "ibv_query_pkey")]
    #[doc(alias = "ibv_get_pkey_index")]
    pub fn pkeys(&self) -> Vec<Pkey> {
        let entries = (0..).map_while(|index| self.raw.pkey(index).ok());
        entries.map(Pkey::new).collect()
    }

    /// Creates a completion queue for at least `entries` completions. `entries` is at least 1.
    ///
    /// # Errors
    /// [`VerbsError`] if `entries` is 0 or above the device's limit, or if no file descriptor is
    /// free.
    #[doc(alias = "ibv_create_cq")]
    #[doc(alias = "ibv_create_cq_ex")]
    pub fn completion_queue(&self, entries: u32) -> Result<CompletionQueue, VerbsError> {
        CompletionQueue::new(self, entries, false)
    }

    /// Creates a completion queue that overwrites its oldest completion on overrun.
    ///
    /// It suits programs that bound the number of outstanding completions themselves. An overrun of
    /// an ordinary queue moves the queue and all its queue pairs to the error state.
    ///
    /// # Errors
    /// As [`completion_queue`](Self::completion_queue).
    #[doc(alias = "IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN")]
    pub fn completion_queue_ignoring_overrun(
        &self,
        entries: u32,
    ) -> Result<CompletionQueue, VerbsError> {
        CompletionQueue::new(self, entries, true)
    }

    /// Returns the current time, in nanoseconds, of the clock that
    /// [`Completion::timestamp_ns`](crate::Completion::timestamp_ns) uses.
    #[must_use]
    #[doc(alias = "ibv_query_rt_values_ex")]
    pub fn clock_ns(&self) -> u64 {
        self.raw.clock_ns()
    }

    /// Converts a completion's timestamp to the time of day.
    #[must_use]
    #[doc(alias = "ibv_wc_read_completion_wallclock_ns")]
    pub fn time_of(&self, timestamp_ns: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_nanos(self.raw.wallclock_ns(timestamp_ns))
    }

    /// Creates an XRC domain that is private to this process.
    ///
    /// # Errors
    /// [`VerbsError`] if the device was removed.
    #[doc(alias = "ibv_open_xrcd")]
    pub fn xrc_domain(&self) -> Result<XrcDomain, VerbsError> {
        XrcDomain::new(self)
    }

    /// Opens the XRC domain that `file` identifies. Every process of the same user that opens the
    /// same file on the same device shares this domain.
    ///
    /// Sharing needs a broker. Without a broker the domain is private to this process.
    ///
    /// # Errors
    /// [`VerbsError`] if the file's metadata cannot be read, or if the process cannot join the
    /// shared domain.
    #[doc(alias = "ibv_open_xrcd")]
    pub fn shared_xrc_domain(&self, file: &File) -> Result<XrcDomain, VerbsError> {
        XrcDomain::of_file(self, file)
    }

    /// Allocates a protection domain.
    ///
    /// # Errors
    /// [`VerbsError`] at the device's limit.
    #[doc(alias = "ibv_alloc_pd")]
    pub fn protection_domain(&self) -> Result<ProtectionDomain, VerbsError> {
        Ok(ProtectionDomain {
            context: self.clone(),
            raw: self.raw.alloc_pd()?,
            thread: None,
        })
    }
}

/// A protection domain: its queue pairs can use its memory regions, and no others.
///
/// ```
/// use rocade_verbs::{AccessFlags, Config, DeviceList};
///
/// let domain = DeviceList::new(Config::simulated(1))?.open("a")?.protection_domain()?;
/// let memory = domain.register(4096, AccessFlags::LOCAL_WRITE)?;
/// let cq = domain.context().completion_queue(16)?;
/// let queue_pair = domain.queue_pair(&cq).depth(8, 8).build()?;
/// assert_eq!((memory.len(), cq.entries() >= 16), (4096, true));
/// # drop(queue_pair);
/// # Ok::<(), rocade_verbs::Error>(())
/// ```
#[derive(Debug, Clone)]
#[doc(alias = "ibv_pd")]
pub struct ProtectionDomain {
    context: Context,
    raw: RawPd,
    /// The thread domain, if this is a parent domain that was given one.
    pub(crate) thread: Option<ThreadDomain>,
}

impl ProtectionDomain {
    /// Returns the opened device that the domain belongs to.
    #[must_use]
    pub const fn context(&self) -> &Context {
        &self.context
    }

    pub(crate) const fn raw(&self) -> &RawPd {
        &self.raw
    }

    /// Allocates an unbound memory window of type 2, which one queue pair at a time can bind.
    ///
    /// # Errors
    /// [`VerbsError`] if no key is free.
    #[doc(alias = "ibv_alloc_mw")]
    pub fn memory_window(&self) -> Result<MemoryWindow, VerbsError> {
        MemoryWindow::new(self)
    }

    /// Allocates an unbound memory window of type 1, which serves the peers of all queue pairs of
    /// this domain.
    ///
    /// # Errors
    /// [`VerbsError`] if no key is free.
    #[doc(alias = "ibv_alloc_mw")]
    #[doc(alias = "IBV_MW_TYPE_1")]
    pub fn type1_window(&self) -> Result<Type1Window, VerbsError> {
        Type1Window::new(self)
    }

    /// Creates a key for up to `entries` segments of other keys. The key is empty at first, and
    /// grants at most `rights`.
    ///
    /// # Errors
    /// [`VerbsError`] if `entries` is 0 or above the limit, or if no key is free.
    pub fn indirect_key(
        &self,
        entries: u32,
        rights: AccessFlags,
    ) -> Result<IndirectKey, VerbsError> {
        IndirectKey::new(self, entries, rights)
    }

    /// Creates a shared receive queue for `depth` receives of up to `max_sges` scatter/gather
    /// entries each.
    ///
    /// # Errors
    /// [`VerbsError`] if one of the sizes is 0 or above the device's limit.
    #[doc(alias = "ibv_create_srq")]
    pub fn shared_receive_queue(
        &self,
        depth: u32,
        max_sges: u32,
    ) -> Result<SharedReceiveQueue, VerbsError> {
        SharedReceiveQueue::new(self, depth, max_sges)
    }

    /// Creates an address handle for datagrams to the device or multicast group with the GID `to`.
    /// The source is the first local address of the same IP version.
    ///
    /// # Errors
    /// - [`BuildError::NoGid`] if the device has no address of this IP version.
    /// - [`BuildError::Verbs`] if there is no route to `to`.
    #[doc(alias = "ibv_create_ah")]
    pub fn address(&self, to: Gid) -> Result<AddressHandle, BuildError> {
        AddressHandle::new(self, to, &AddressOptions::default())
    }

    /// Creates an address handle with the given options.
    ///
    /// # Errors
    /// - As [`address`](Self::address).
    /// - [`BuildError::Verbs`] also if the local address does not exist or has the other IP
    ///   version.
    #[doc(alias = "ibv_create_ah")]
    pub fn address_with(
        &self,
        to: Gid,
        options: &AddressOptions,
    ) -> Result<AddressHandle, BuildError> {
        AddressHandle::new(self, to, options)
    }

    /// Creates a DC target. Initiators whose requests carry `key` may access memory as far as
    /// `access` allows. Their messages consume receives of `receives` and complete in `cq`.
    ///
    /// # Errors
    /// - [`BuildError::NoGid`] if the device has no address.
    /// - [`BuildError::Verbs`] if its first address cannot be used, or if the queues belong to
    ///   another device.
    #[doc(alias = "ibv_exp_create_dct")]
    pub fn dynamic_target(
        &self,
        cq: &CompletionQueue,
        receives: &SharedReceiveQueue,
        access: AccessFlags,
        key: u64,
    ) -> Result<DynamicTarget, BuildError> {
        DynamicTarget::new(self, cq, receives, access, key)
    }

    /// Creates a DC initiator in state RTS. It holds up to 64 outstanding requests of up to 4
    /// scatter/gather entries.
    ///
    /// # Errors
    /// - [`BuildError::NoGid`] if the device has no address.
    /// - [`BuildError::Verbs`] if its first address cannot be used.
    pub fn dynamic_initiator(&self, cq: &CompletionQueue) -> Result<DynamicInitiator, BuildError> {
        self.dynamic_initiator_builder(cq).build()
    }

    /// Returns a builder for a DC initiator.
    pub const fn dynamic_initiator_builder<'a>(
        &'a self,
        cq: &'a CompletionQueue,
    ) -> DynamicInitiatorBuilder<'a> {
        DynamicInitiatorBuilder::new(self, cq)
    }

    /// Creates a UD queue pair in state RTS. It accepts datagrams that carry `qkey`, and holds up
    /// to 64 outstanding sends and receives of up to 4 scatter/gather entries.
    ///
    /// # Errors
    /// - [`BuildError::NoGid`] if the device has no address.
    /// - [`BuildError::Verbs`] if its first address cannot be used, or if `qkey` has its highest
    ///   bit set and the process is not privileged.
    #[doc(alias = "ibv_create_qp")]
    pub fn datagram_queue_pair(
        &self,
        cq: &CompletionQueue,
        qkey: u32,
    ) -> Result<DatagramQueuePair, BuildError> {
        self.datagram_queue_pair_builder(cq, qkey).build()
    }

    /// Returns a builder for a UD queue pair.
    #[doc(alias = "ibv_create_qp")]
    pub const fn datagram_queue_pair_builder<'a>(
        &'a self,
        cq: &'a CompletionQueue,
        qkey: u32,
    ) -> DatagramQueuePairBuilder<'a> {
        DatagramQueuePairBuilder::new(self, cq, qkey)
    }

    /// Returns a builder for a connected queue pair, of service RC by default.
    #[doc(alias = "ibv_create_qp")]
    #[doc(alias = "ibv_create_qp_ex")]
    pub fn queue_pair<'a>(&'a self, cq: &'a CompletionQueue) -> QueuePairBuilder<'a> {
        QueuePairBuilder::new(self, cq)
    }
}
