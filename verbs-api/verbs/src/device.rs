//! Devices, and what is made from an opened one.

use std::fmt;
use std::fs::File;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rocade_emulator::{
    AccessFlags, Context as RawContext, DeviceAttr, DeviceInfo, Engine, EngineCounters, Gid,
    GidEntry, Pd as RawPd, Pkey, PortAttr, Psn,
};

use crate::completion::CompletionQueue;
use crate::config::Config;
use crate::datagram::{AddressHandle, AddressOptions, DatagramQueuePair, DatagramQueuePairBuilder};
use crate::domain::ThreadDomain;
use crate::dynamic::{DynamicInitiator, DynamicInitiatorBuilder, DynamicTarget};
use crate::error::{Error, Result};
use crate::indirect::IndirectKey;
use crate::queue_pair::QueuePairBuilder;
use crate::shared_receives::SharedReceiveQueue;
use crate::window::{MemoryWindow, SharedWindow};
use crate::xrc::XrcDomain;

/// The first port of a device.
pub(crate) const PORT: u8 = 1;

/// The devices of this process, and the engine behind them.
///
/// Making it costs little: sockets and the background thread come with the first queue pair. A
/// process may have several, for example one per emulated host in a test.
///
/// ```
/// use rocade_verbs::{Config, DeviceList, Error};
///
/// let list = DeviceList::new(Config::simulated(1))?;
/// let names: Vec<_> = list.devices().into_iter().map(|device| device.name).collect();
/// assert_eq!(names, ["a", "b"]);
/// assert!(matches!(list.open("c"), Err(Error::NoDevice(_))));
/// # Ok::<(), rocade_verbs::Error>(())
/// ```
#[derive(Clone)]
#[doc(alias = "ibv_get_device_list")]
pub struct DeviceList {
    engine: Engine,
}

impl DeviceList {
    /// The devices that the environment and the configuration file describe, by default one per
    /// network interface; see [`rocade_emulator::config`].
    ///
    /// # Errors
    /// [`Error::Config`] with a text for the user.
    pub fn from_env() -> Result<Self> {
        Self::new(Config::from_env()?)
    }

    /// The given devices.
    ///
    /// # Errors
    /// [`Error::Verbs`] if the engine refuses the configuration.
    pub fn new(config: Config) -> Result<Self> {
        Ok(Self {
            engine: Engine::new(config.into_engine())?,
        })
    }

    pub(crate) const fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Name, GUID and interface of each device, in order.
    #[must_use]
    #[doc(alias = "ibv_get_device_name")]
    #[doc(alias = "ibv_get_device_guid")]
    #[doc(alias = "ibv_get_device_index")]
    pub fn devices(&self) -> Vec<DeviceInfo> {
        self.engine.devices()
    }

    /// Opens the device with this name.
    ///
    /// # Errors
    /// [`Error::NoDevice`].
    #[doc(alias = "ibv_open_device")]
    pub fn open(&self, name: &str) -> Result<Context> {
        if self.devices().iter().all(|device| device.name != name) {
            return Err(Error::NoDevice(name.to_owned()));
        }
        Ok(Context {
            raw: self.engine.open_device(name)?,
        })
    }

    /// Statistics of the engine behind the devices: how many packets, and which way they went.
    #[must_use]
    pub fn engine_counters(&self) -> EngineCounters {
        self.engine.counters()
    }

    /// Opens the first device.
    ///
    /// # Errors
    /// [`Error::NoDevice`] if there is none.
    pub fn open_first(&self) -> Result<Context> {
        let devices = self.devices();
        let first = devices
            .first()
            .ok_or_else(|| Error::NoDevice(String::new()))?;
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
#[derive(Debug, Clone)]
#[doc(alias = "ibv_context")]
pub struct Context {
    raw: RawContext,
}

impl Context {
    pub(crate) const fn raw(&self) -> &RawContext {
        &self.raw
    }

    pub(crate) fn random_psn(&self) -> Psn {
        self.raw.random_psn()
    }

    /// Name, GUID and interface.
    #[must_use]
    pub fn device(&self) -> DeviceInfo {
        self.raw.device()
    }

    /// Identity and limits of the device.
    #[must_use]
    #[doc(alias = "ibv_query_device")]
    #[doc(alias = "ibv_query_device_ex")]
    pub fn attributes(&self) -> DeviceAttr {
        self.raw.device_attr()
    }

    /// State of the device's first port.
    ///
    /// # Errors
    /// None that can happen here: the port exists.
    #[doc(alias = "ibv_query_port")]
    pub fn port(&self) -> Result<PortAttr> {
        Ok(self.raw.port_attr(PORT)?)
    }

    /// State of any port, from 1 on; how many there are is in the [attributes](Self::attributes).
    ///
    /// # Errors
    /// [`Error::Verbs`] if there is no such port.
    #[doc(alias = "ibv_query_port")]
    pub fn port_at(&self, port: u8) -> Result<PortAttr> {
        Ok(self.raw.port_attr(port)?)
    }

    /// The GID table of any port.
    ///
    /// # Errors
    /// [`Error::Verbs`] if there is no such port.
    #[doc(alias = "ibv_query_gid_table")]
    pub fn gids_of(&self, port: u8) -> Result<Arc<[GidEntry]>> {
        Ok(self.raw.gid_entries_of(port)?)
    }

    /// The GID table of the first port: its IP addresses, as they are now. A GID of 0 is an empty entry.
    #[must_use]
    #[doc(alias = "ibv_query_gid")]
    #[doc(alias = "ibv_query_gid_ex")]
    #[doc(alias = "ibv_query_gid_table")]
    pub fn gids(&self) -> Arc<[GidEntry]> {
        self.raw.gid_entries()
    }

    /// The P_Key table: the partitions that queue pairs may belong to, each by its index. `ROCADE_PKEYS` or the
    /// [configuration](Config::with_pkeys) makes it; by default it has one entry, 0xffff.
    #[must_use]
    #[doc(alias = "ibv_query_pkey")]
    #[doc(alias = "ibv_get_pkey_index")]
    pub fn pkeys(&self) -> Vec<Pkey> {
        let entries = (0..).map_while(|index| self.raw.pkey(index).ok());
        entries.map(Pkey::new).collect()
    }

    /// A new completion queue with room for `entries` completions, at least 1.
    ///
    /// # Errors
    /// [`Error::Verbs`] if `entries` is 0 or above the limit, or without file descriptors.
    #[doc(alias = "ibv_create_cq")]
    #[doc(alias = "ibv_create_cq_ex")]
    pub fn completion_queue(&self, entries: u32) -> Result<CompletionQueue> {
        CompletionQueue::new(&self.raw, entries, false)
    }

    /// The same, for a program that counts its completions itself: where there is no room, a completion
    /// takes that of the oldest one, which is lost. An ordinary queue is broken from then on, and with it
    /// all its queue pairs.
    ///
    /// # Errors
    /// As [`completion_queue`](Self::completion_queue).
    #[doc(alias = "IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN")]
    pub fn overwriting_completion_queue(&self, entries: u32) -> Result<CompletionQueue> {
        CompletionQueue::new(&self.raw, entries, true)
    }

    /// The clock of [`Completion::timestamp_ns`](crate::Completion::timestamp_ns), in nanoseconds.
    #[must_use]
    #[doc(alias = "ibv_query_rt_values_ex")]
    pub fn clock_ns(&self) -> u64 {
        self.raw.clock_ns()
    }

    /// When that was, as the time of day.
    #[must_use]
    #[doc(alias = "ibv_wc_read_completion_wallclock_ns")]
    pub fn time_of(&self, timestamp_ns: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_nanos(self.raw.wallclock_ns(timestamp_ns))
    }

    /// A new XRC domain, which nobody else knows.
    ///
    /// # Errors
    /// None so far.
    #[doc(alias = "ibv_open_xrcd")]
    pub fn xrc_domain(&self) -> Result<XrcDomain> {
        XrcDomain::new(self)
    }

    /// The XRC domain that a file names: every process of this user that opens it by that file, on the same device, has
    /// the same one. It needs a broker; without one it is the process's own.
    ///
    /// # Errors
    /// [`Error::Io`] if the file cannot be looked at; [`Error::Verbs`] if the process cannot join the others.
    #[doc(alias = "ibv_open_xrcd")]
    pub fn shared_xrc_domain(&self, file: &File) -> Result<XrcDomain> {
        XrcDomain::of_file(self, file)
    }

    /// A new protection domain.
    ///
    /// # Errors
    /// [`Error::Verbs`] at the limit of the device.
    #[doc(alias = "ibv_alloc_pd")]
    pub fn protection_domain(&self) -> Result<ProtectionDomain> {
        Ok(ProtectionDomain {
            context: self.clone(),
            raw: self.raw.alloc_pd()?,
            thread: None,
        })
    }
}

/// Queue pairs and memory regions of one protection domain can be used together.
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
    /// Of a parent domain, its part.
    pub(crate) thread: Option<ThreadDomain>,
}

impl ProtectionDomain {
    /// The device it belongs to.
    #[must_use]
    pub const fn context(&self) -> &Context {
        &self.context
    }

    pub(crate) const fn raw(&self) -> &RawPd {
        &self.raw
    }

    /// A new memory window, which lends no memory yet.
    ///
    /// # Errors
    /// [`Error::Verbs`] if keys run out.
    #[doc(alias = "ibv_alloc_mw")]
    pub fn memory_window(&self) -> Result<MemoryWindow> {
        MemoryWindow::new(self)
    }

    /// A new window for the peers of all queue pairs of this domain, which is not bound yet.
    ///
    /// # Errors
    /// [`Error::Verbs`] if keys run out.
    #[doc(alias = "ibv_alloc_mw")]
    #[doc(alias = "IBV_MW_TYPE_1")]
    pub fn shared_window(&self) -> Result<SharedWindow> {
        SharedWindow::new(self)
    }

    /// A new key for up to `entries` pieces of other keys, none of which it has yet, that allows no more than `rights`.
    ///
    /// # Errors
    /// [`Error::Verbs`] for no entries or too many, or if keys run out.
    pub fn indirect_key(&self, entries: u32, rights: AccessFlags) -> Result<IndirectKey> {
        IndirectKey::new(self, entries, rights)
    }

    /// A new shared receive queue with room for `depth` receives of up to `max_sges` scatter/gather entries.
    ///
    /// # Errors
    /// [`Error::Verbs`] if one of them is 0 or above the limit.
    #[doc(alias = "ibv_create_srq")]
    pub fn shared_receive_queue(&self, depth: u32, max_sges: u32) -> Result<SharedReceiveQueue> {
        SharedReceiveQueue::new(self, depth, max_sges)
    }

    /// The way to a device with this GID, or to a multicast group, for datagrams: from the first address of its
    /// IP version.
    ///
    /// # Errors
    /// [`Error::NoGid`] without one; [`Error::Verbs`] if it leads nowhere.
    #[doc(alias = "ibv_create_ah")]
    pub fn address(&self, to: Gid) -> Result<AddressHandle> {
        AddressHandle::new(self, to, &AddressOptions::default())
    }

    /// Likewise, with everything that a way can have.
    ///
    /// # Errors
    /// As [`address`](Self::address); [`Error::Verbs`] also if the local address is none, or of the other IP version.
    #[doc(alias = "ibv_create_ah")]
    pub fn address_with(&self, to: Gid, options: &AddressOptions) -> Result<AddressHandle> {
        AddressHandle::new(self, to, options)
    }

    /// A target of dynamic connections: initiators that know `key` may do what `access` says, and write messages that take
    /// receives of `receives` and complete in `cq`.
    ///
    /// # Errors
    /// [`Error::NoGid`]; [`Error::Verbs`] if the device's first address cannot be used, or the queues are not of this device.
    #[doc(alias = "ibv_exp_create_dct")]
    pub fn dynamic_target(
        &self,
        cq: &CompletionQueue,
        receives: &SharedReceiveQueue,
        access: AccessFlags,
        key: u64,
    ) -> Result<DynamicTarget> {
        DynamicTarget::new(self, cq, receives, access, key)
    }

    /// An initiator of dynamic connections, ready to send. 64 requests of up to 4 entries may be outstanding.
    ///
    /// # Errors
    /// [`Error::NoGid`]; [`Error::Verbs`] if the device's addresses cannot be used.
    pub fn dynamic_initiator(&self, cq: &CompletionQueue) -> Result<DynamicInitiator> {
        self.dynamic_initiator_builder(cq).build()
    }

    /// Starts to describe an initiator of dynamic connections.
    pub const fn dynamic_initiator_builder<'a>(
        &'a self,
        cq: &'a CompletionQueue,
    ) -> DynamicInitiatorBuilder<'a> {
        DynamicInitiatorBuilder::new(self, cq)
    }

    /// A queue pair for datagrams that listens to who knows `qkey`, ready to send and receive. 64 sends and
    /// receives of up to 4 entries may be outstanding.
    ///
    /// # Errors
    /// [`Error::NoGid`]; [`Error::Verbs`] if the device's addresses cannot be used, or `qkey` has its
    /// highest bit set and the process is not privileged.
    #[doc(alias = "ibv_create_qp")]
    pub fn datagram_queue_pair(
        &self,
        cq: &CompletionQueue,
        qkey: u32,
    ) -> Result<DatagramQueuePair> {
        self.datagram_queue_pair_builder(cq, qkey).build()
    }

    /// Starts to describe a queue pair for datagrams.
    #[doc(alias = "ibv_create_qp")]
    pub const fn datagram_queue_pair_builder<'a>(
        &'a self,
        cq: &'a CompletionQueue,
        qkey: u32,
    ) -> DatagramQueuePairBuilder<'a> {
        DatagramQueuePairBuilder::new(self, cq, qkey)
    }

    /// Starts to describe a connected queue pair: of service RC, unless the builder says otherwise.
    #[doc(alias = "ibv_create_qp")]
    #[doc(alias = "ibv_create_qp_ex")]
    pub fn queue_pair<'a>(&'a self, cq: &'a CompletionQueue) -> QueuePairBuilder<'a> {
        QueuePairBuilder::new(self, cq)
    }
}
