//! The engine: the state of a process that its devices share.
//!
//! Threads that poll a CQ receive inline. One background thread receives, fires timers and retries
//! while no thread polls (`state::driver_arbiter`). Both run the same code. Receiving locks a link,
//! then for each batch the QP table and the region table for reading, then one QP at a time. Lock
//! order everywhere: link, QP table, regions, QP, SRQ, CQ, shared memory link.

#![cfg_attr(not(test), warn(clippy::too_many_lines))]

mod ack_durability;
mod arrivals;
mod background;
mod cx;
mod device_faults;
mod dispatch;
mod event_loop;
mod event_wait;
pub(crate) mod failures;
mod fault_plan;
mod frames;
mod gsi;
mod hooked;
mod idle_policy;
mod idle_poll;
mod inline;
mod interventions;
mod inventory;
#[cfg(all(test, not(loom)))]
mod link_sides;
mod overrun;
mod parts;
mod peer_links;
mod peer_traits;
mod pending;
mod poll_policy;
mod poll_wait;
mod progress;
pub(crate) mod reach;
mod removal;
mod resources;
mod simulation;
mod statistics;
mod thread_polls;
mod transmission;
mod transmit;
mod xrc_shared;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use crate::sync::Mutex;
use rocade_transport::cm::CmCounters;
use rocade_transport::{AddressVector, PdTag, Time};
use rocade_wire::ip::flow_label_of_qpns;
use rocade_wire::{Gid, Qpn};

use crate::broker::BrokerLink;
use crate::clock::Clock;
use crate::cm::CmHost;
use crate::config::{BrokerMode, EngineConfig, Peers, ecn_capable};
use crate::counters::{AtomicCounters, EngineCounters};
use crate::error::VerbsError;
use crate::faults::{FaultPlan, FaultReport, FaultRule, Triggers};
use crate::hca::{DeviceFacts, DeviceInfo, Hca, Port};
use crate::journal::HitTally;
use crate::link::packet_hooks::PacketHooks;
use crate::link::sim::{SimLink, SimNetwork};
use crate::link::{AnyLink, Link as _, LinkError, LocalAddr, SocketOwner, UdpLink};
use crate::memory::{MemGuard, MrTable};
use crate::random::Randomness;
use crate::state::{
    AsyncEvents, LocalEndpoint, QpCore, QpInner, ServiceQueue, SrqNumber, SrqNumbers, TxRoute,
};
use crate::steering::{ProcessSlot, QpnAllocator};

pub(crate) use cx::Cx;
pub(crate) use event_loop::ChannelKind;
pub(crate) use inventory::Registration;
pub(crate) use parts::{
    Attachment, Faults, Host, KnownPeers, Links, Observers, Presence, Scheduler, Tables,
};
use pending::ServiceContext;
#[cfg(all(test, not(loom)))]
pub(crate) use pending::common;
use resources::ResourceSocket;
pub(crate) use thread_polls::note_completions;

/// The emulated hardware of one process.
///
/// An engine is cheap to make: sockets, the attachment to the broker and the background thread are
/// made with the first QP. It ends with its last handle and object.
#[derive(Clone, Debug)]
pub struct Engine {
    inner: Arc<Nic>,
}

/// The emulated hardware: its parts, and what needs several of them.
#[derive(Debug)]
pub(crate) struct Nic {
    pub(crate) host: Host,
    pub(crate) presence: Presence,
    pub(crate) tables: Tables,
    pub(crate) links: Links,
    pub(crate) scheduler: Scheduler,
    pub(crate) observers: Observers,
    pub(crate) faults: Faults,
    pub(crate) cm: CmHost,
}

impl Engine {
    /// Makes an engine with these devices.
    ///
    /// # Errors
    /// [`VerbsError::Io`] if file descriptors are exhausted.
    pub fn new(config: EngineConfig) -> Result<Self, VerbsError> {
        if let Some(way) = config.icrc {
            way.select();
        }
        let sim = config.simulation.map(|sim| Arc::new(SimNetwork::new(sim)));
        let clock = match &sim {
            None => Clock::new(),
            Some(network) => Clock::simulated(network.time()),
        };
        let seed = config.simulation.map_or(0, |simulation| simulation.seed);
        let plan = FaultPlan::new(config.faults, seed);
        let triggers = Triggers::new(seed, Arc::clone(plan.tally()));
        triggers.replace(plan.trigger_rules());
        let hooks = PacketHooks::new(
            plan.packet_rules(),
            Arc::clone(plan.tally()),
            config.capture,
            config.simulation,
            clock.unix_ns(0),
        );
        let hcas = (0u32..)
            .zip(config.devices)
            .map(|(index, device)| Arc::new(Hca::new(device, index)))
            .collect();
        Ok(Self {
            inner: Arc::new(Nic {
                host: Host {
                    hcas,
                    broker_mode: config.broker,
                    link_mode: config.link,
                    peers: config.peers,
                    known_peers: KnownPeers::default(),
                    dcqcn: config.dcqcn,
                    clock,
                    sim,
                    random: Randomness::new(config.simulation.map(|sim| sim.seed)),
                },
                presence: Presence::default(),
                tables: Tables::default(),
                links: Links::new(hooks),
                scheduler: Scheduler::new()?,
                observers: Observers::default(),
                faults: Faults {
                    plan,
                    triggers,
                    refreshing: Mutex::default(),
                },
                cm: CmHost::default(),
            }),
        })
    }

    /// The devices, in the order of the configuration, without those that a rule has removed.
    #[must_use]
    pub fn devices(&self) -> Vec<DeviceInfo> {
        self.inner
            .host
            .present_hcas()
            .map(|hca| hca.info())
            .collect()
    }

    /// The attributes of these devices, in the same order.
    #[must_use]
    pub fn facts(&self) -> Vec<DeviceFacts> {
        self.inner
            .host
            .present_hcas()
            .map(|hca| hca.facts())
            .collect()
    }

    /// Keeps the counter files of the devices up to date, with state and GIDs of their ports. The
    /// files are `NAME/infiniband/NAME/ports/1/{counters,hw_counters}/*` below `dir`, and must
    /// exist.
    pub fn publish_counters(&self, dir: PathBuf) {
        self.inner
            .observers
            .publisher
            .start(dir, &self.inner.host.hcas);
    }

    /// The device of that name.
    pub(crate) fn hca(&self, name: &str) -> Option<&Arc<Hca>> {
        self.inner
            .host
            .hcas
            .iter()
            .find(|hca| hca.config.name == name)
    }

    pub(crate) const fn inner(&self) -> &Arc<Nic> {
        &self.inner
    }

    /// Returns the statistics of the engine.
    #[must_use]
    pub fn counters(&self) -> EngineCounters {
        self.inner.observers.counters.with(&self.inner.host.hcas)
    }

    /// Returns what the fault rules have done: how often, when, and to which object.
    #[must_use]
    pub fn fault_report(&self) -> FaultReport {
        self.inner.faults.plan.tally().report()
    }

    /// Returns the counters of the connection manager.
    #[must_use]
    pub fn cm_counters(&self) -> CmCounters {
        self.inner.cm.counters()
    }
}

impl Host {
    /// Returns 32 random bits.
    pub(crate) fn random_word(&self) -> u32 {
        self.random.word()
    }

    /// Returns a random number below `limit`, which must not be 0.
    pub(crate) fn random_below(&self, limit: usize) -> usize {
        self.random.below(limit)
    }

    pub(crate) fn now(&self) -> Time {
        self.clock.now()
    }

    pub(crate) const fn clock(&self) -> &Clock {
        &self.clock
    }

    /// The peers that may communicate with this process.
    pub(crate) const fn peers(&self) -> &Peers {
        &self.peers
    }

    /// Returns true if congestion control is on.
    pub(crate) const fn controls_congestion(&self) -> bool {
        self.dcqcn
    }
}

impl Presence {
    pub(crate) fn release_qp_num(&self, qpn: Qpn) {
        if let Some(attachment) = &mut *self.attachment.lock() {
            attachment.qp_numbers.release(qpn);
        }
    }

    fn broker_link(&self) -> Option<Arc<BrokerLink>> {
        self.attachment
            .lock()
            .as_ref()
            .and_then(|attachment| attachment.broker.clone())
    }
}

impl Tables {
    pub(crate) const fn regions(&self) -> &MrTable {
        &self.regions
    }

    /// Returns the QP of this number, if there is one.
    pub(crate) fn qp(&self, qpn: Qpn) -> Option<Arc<QpInner>> {
        self.qps.read().get(qpn).cloned()
    }

    pub(crate) fn next_pd(&self) -> PdTag {
        PdTag(self.next_pd.fetch_add(1, Ordering::Relaxed))
    }

    pub(crate) fn add_qp(&self, qp: Arc<QpInner>) {
        self.qps.write().insert(qp);
    }
}

impl Links {
    /// The addresses of the groups that a QP is attached to.
    pub(crate) fn groups_of(&self, qpn: Qpn) -> Vec<String> {
        self.groups.of(qpn)
    }
}

impl Scheduler {
    /// Records that the application polls a CQ.
    #[inline]
    pub(crate) fn polled(&self) {
        self.arbiter.note_poll();
    }

    fn wake_background(&self) {
        self.service_queue.wake_thread();
        // A sleeping poller may wait for the same change.
        self.service_queue.sleepers().wake_all();
    }

    /// The work queue of the background thread.
    pub(crate) const fn service_queue(&self) -> &Arc<ServiceQueue> {
        &self.service_queue
    }
}

impl Observers {
    fn count(&self, counter: impl FnOnce(&AtomicCounters) -> &AtomicU64) {
        counter(&self.counters).fetch_add(1, Ordering::Relaxed);
    }
}

impl Nic {
    /// Allocates a QP number. The first one attaches to the broker.
    pub(crate) fn allocate_qp_num(self: &Arc<Self>) -> Result<Qpn, VerbsError> {
        self.with_attachment(|attachment| {
            let pick = |count| self.host.random.below(count);
            attachment.qp_numbers.allocate_with(pick)
        })?
        .ok_or(VerbsError::NoMemory("QP numbers"))
    }

    /// Returns the link of a local address from which datagrams with this hop limit can be sent to
    /// any slot without opening another socket.
    pub(crate) fn datagram_endpoint(
        self: &Arc<Self>,
        local: LocalAddr,
        hop_limit: u8,
    ) -> Result<Arc<LocalEndpoint>, VerbsError> {
        self.with_attachment(|_| ())?;
        let endpoint = self.endpoint_for(local)?;
        endpoint.link.open_paths(hop_limit)?;
        Ok(endpoint)
    }

    /// Allocates an SRQ number, which no other process on the addresses has. The first number
    /// attaches to the broker.
    pub(crate) fn allocate_srq_num(self: &Arc<Self>) -> Result<SrqNumber, VerbsError> {
        self.with_attachment(|attachment| {
            let slot = attachment.qp_numbers.slot();
            let numbers = &mut attachment.srq_numbers;
            let numbers = numbers.get_or_insert_with(|| SrqNumbers::new(slot));
            numbers.allocate()
        })?
        .ok_or(VerbsError::NoMemory("SRQ numbers"))
    }

    fn with_attachment<R>(
        self: &Arc<Self>,
        f: impl FnOnce(&mut Attachment) -> R,
    ) -> Result<R, VerbsError> {
        let mut attachment = self.presence.attachment.lock();
        let attachment = match &mut *attachment {
            Some(attachment) => attachment,
            none => none.insert(self.attach()?),
        };
        Ok(f(attachment))
    }

    fn attach(self: &Arc<Self>) -> Result<Attachment, VerbsError> {
        let attachment = match &self.host.broker_mode {
            BrokerMode::Embedded => Attachment {
                broker: None,
                qp_numbers: QpnAllocator::new(ProcessSlot::EMBEDDED),
                srq_numbers: None,
            },
            BrokerMode::Auto(config) => {
                let own_rules = self
                    .faults
                    .plan
                    .own_rules()
                    .iter()
                    .map(FaultRule::to_string);
                let broker = BrokerLink::connect(config, own_rules.collect())?;
                self.take_faults(&broker);
                self.share(&broker);
                if let Some(ack_journal) = broker.client().journal() {
                    self.faults.keep_fault_report(&ack_journal);
                    self.observers.publisher.keep_page(Arc::clone(&ack_journal));
                    // There is only one attachment, so this succeeds.
                    let _ = self.presence.ack_journal.set(ack_journal);
                }
                let qp_numbers = QpnAllocator::new(broker.slot());
                Attachment {
                    broker: Some(Arc::new(broker)),
                    qp_numbers,
                    srq_numbers: None,
                }
            }
        };
        self.links.hooks.start();
        self.start_background()?;
        // The background thread may run already, and has more to wait for.
        self.scheduler.wake_background();
        ack_durability::release_at_exit(self);
        Ok(attachment)
    }

    /// Installs the broker's current fault rules if they have changed.
    fn take_faults(&self, broker: &BrokerLink) {
        if let Some(update) = broker.client().take_faults() {
            let (ids, rules) = update.rules_with(self.faults.plan.own_rules());
            let ack_journal = broker.client().journal();
            let hit_counter = ack_journal
                .map(|ack_journal| HitTally::new(ack_journal, update.generation, ids) as _);
            tracing::info!(rules = rules.len(), "installing fault rules");
            self.faults
                .plan
                .replace(rules, hit_counter, self.host.now());
            self.refresh_faults();
        }
    }

    /// Starts the background thread if there is none yet. A simulation has none.
    fn start_background(self: &Arc<Self>) -> io::Result<()> {
        let mut started = self.scheduler.has_background.lock();
        if !*started && self.host.sim.is_none() {
            if self.observers.publisher.has_files() {
                match ResourceSocket::open() {
                    Ok(socket) => drop(self.observers.resources.set(Arc::new(socket))),
                    Err(error) => {
                        tracing::debug!(%error, "failed to listen: `rdma resource` does not show the objects of this process")
                    }
                }
            }
            background::start(self)?;
            *started = true;
        }
        Ok(())
    }

    /// Removes a QP that was alive.
    pub(crate) fn end_qp(&self, inner: &QpInner) {
        let qpn = inner.qp_num();
        self.faults.triggers.forget(qpn);
        // Dropped after the lock is released, because it may be the last reference except the
        // caller's.
        let removed = self.tables.qps.write().remove(qpn);
        let was_listed = removed.is_some();
        drop(removed);
        self.leave_groups(qpn);
        self.end_flows(inner);
        self.flush_before_close(inner);
        inner.stop();
        if was_listed {
            self.keep_counters(inner);
        }
        self.tables.regions.free_windows_of(qpn);
        self.presence.release_qp_num(qpn);
        inner.release_queues();
    }

    /// Returns the link of a local address, and opens it on first use.
    pub(crate) fn endpoint_for(&self, local: LocalAddr) -> Result<Arc<LocalEndpoint>, VerbsError> {
        let find = |endpoints: &[Arc<LocalEndpoint>]| {
            endpoints
                .iter()
                .find(|endpoint| endpoint.link.local_addr() == local)
                .cloned()
        };
        if let Some(endpoint) = find(&self.links.endpoints.read()) {
            return Ok(endpoint);
        }
        // One thread at a time opens links, because the broker may take long. The other threads go
        // on receiving meanwhile.
        let _opening = self.links.opening.lock();
        if let Some(endpoint) = find(&self.links.endpoints.read()) {
            return Ok(endpoint);
        }
        let link: AnyLink = match (&self.host.sim, self.presence.broker_link()) {
            (Some(network), _) => AnyLink::Sim(SimLink::new(local, Arc::clone(network))),
            (None, None) => self.with_marks(bind_alone(local)?).into(),
            (None, Some(broker)) => self.with_marks(broker.open(local)??).into(),
        };
        let mut hcas = self.host.hcas.iter();
        let hca = hcas.find(|hca| hca.has_address(local.ip()));
        let endpoint = Arc::new(LocalEndpoint::new(link, hca.cloned()));
        self.links.endpoints.write().push(Arc::clone(&endpoint));
        // The background thread has one more descriptor to wait for, and so has an event loop.
        self.scheduler.close_loop();
        self.scheduler.wake_background();
        Ok(endpoint)
    }

    /// Opens the links of these addresses. One is enough to succeed. If all fail, the last error is
    /// returned.
    fn open_any(&self, addresses: impl Iterator<Item = LocalAddr>) -> Result<(), VerbsError> {
        let mut result = Err(VerbsError::NoDevice);
        for local in addresses {
            match self.endpoint_for(local) {
                Ok(_) => result = Ok(()),
                Err(error) => {
                    tracing::warn!(%error, %local, "failed to open this address: packets to it will not arrive");
                    if result.is_err() {
                        result = Err(error);
                    }
                }
            }
        }
        result
    }

    /// Opens all addresses of a device that can be opened, because packets may come to any of them.
    pub(crate) fn listen_on(&self, hca: &Hca) -> Result<(), VerbsError> {
        let gids: Vec<_> = hca.ports().map(Port::gids).collect();
        let gids = gids.iter().flat_map(|gids| gids.iter());
        let known = gids.filter(|entry| !entry.gid.is_zero());
        let opened = self.open_any(known.map(|entry| hca.local_addr(entry.gid.to_ip())));
        opened.map_err(|error| match error {
            VerbsError::NoDevice => VerbsError::NoData,
            error => error,
        })
    }

    /// Returns the route from an address of `hca` to a QP of a peer, and opens it on first use.
    /// `own` is the QP that is connected to it, if it is known.
    pub(crate) fn open_tx_route(
        &self,
        hca: &Hca,
        sgid: Gid,
        av: &AddressVector,
        (own, dest): (Option<Qpn>, Qpn),
    ) -> Result<(Arc<LocalEndpoint>, TxRoute), VerbsError> {
        let endpoint = self.endpoint_for(hca.local_addr(sgid.to_ip()))?;
        let to = av.dgid.to_ip();
        let peer_link = self.peer_link_to(&endpoint, dest, to);
        let mut av = *av;
        //= ENC-10
        if self.host.controls_congestion() {
            av.traffic_class = ecn_capable(av.traffic_class);
        }
        //= ENC-05
        let flow = match (av.flow_label, own) {
            (0, own) => own.map(|own| flow_label_of_qpns(own, dest)),
            (label, _) => Some(label),
        };
        let tx_route = endpoint.tx_route_to(dest, to, (&av, flow), peer_link)?;
        Ok((endpoint, tx_route))
    }

    /// Makes a link report the header fields of received packets, if they are needed.
    fn with_marks(&self, link: UdpLink) -> UdpLink {
        if self.links.shows_headers.load(Ordering::Acquire) {
            // If the system does not report them, datagram QPs report defaults.
            let _ = link.report_headers();
        } else if self.host.dcqcn {
            // If the system does not report them, there are no CE marks.
            let _ = link.set_receive_tos(true);
        }
        link
    }

    /// Makes datagram QPs report the headers of packets from now on.
    //= UD-08
    pub(crate) fn show_headers(&self) {
        if self.links.shows_headers.load(Ordering::Acquire) {
            return;
        }
        let _opening = self.links.opening.lock();
        for endpoint in self.links.endpoints.read().iter() {
            if let Err(error) = endpoint.link.report_headers() {
                tracing::debug!(%error, "failed to enable header reports: datagrams show default headers");
            }
        }
        // Set last, because a thread that sees it does not wait for the links.
        self.links.shows_headers.store(true, Ordering::Release);
    }

    /// Attaches a QP of a port of `hca` to a multicast group. Attaching twice has no further
    /// effect.
    pub(crate) fn attach_to_group(
        &self,
        (hca, port): (&Arc<Hca>, u8),
        group: Gid,
        qpn: Qpn,
    ) -> Result<(), VerbsError> {
        let at = (hca, port);
        if self
            .links
            .groups
            .attach(&self.links.endpoints, at, group, qpn)?
        {
            // The background thread has one more descriptor to wait for, and so has an event loop.
            self.scheduler.close_loop();
            self.scheduler.wake_background();
        }
        Ok(())
    }

    /// Detaches a QP. Returns false if it was not attached.
    pub(crate) fn detach_from_group(&self, hca: &Arc<Hca>, group: Gid, qpn: Qpn) -> bool {
        let left = self
            .links
            .groups
            .detach(&self.links.endpoints, hca, group, qpn);
        if left == Some(true) {
            // The background thread still waits for the socket, and keeps it open until it is
            // woken. So may an event loop.
            self.scheduler.close_loop();
            self.scheduler.wake_background();
        }
        left.is_some()
    }

    /// Detaches a QP that ends from all groups.
    fn leave_groups(&self, qpn: Qpn) {
        if self.links.groups.forget(&self.links.endpoints, qpn) {
            self.scheduler.close_loop();
            self.scheduler.wake_background();
        }
    }

    /// Subscribes an opened device to changes of its interfaces. There are no events if no device
    /// has an interface, or if the system does not report changes.
    pub(crate) fn watch_network(self: &Arc<Self>, events: &Arc<AsyncEvents>) {
        let any = self.host.hcas.iter().any(|hca| hca.has_interface());
        if any && self.observers.network.subscribe(events, &self.host.hcas) {
            self.observers.publisher.note_network();
            if let Err(error) = self.start_background() {
                tracing::warn!(
                    "failed to watch network interfaces, there will be no events: {error}"
                );
            }
            self.scheduler.wake_background();
        }
    }

    /// Schedules an update of counter files and page, after traffic or another change of a QP.
    #[inline]
    pub(crate) fn note_change(&self) {
        if self.observers.publisher.is_clean()
            && let Some(due) = self.observers.publisher.note_traffic()
        {
            self.scheduler.service_queue.wake_thread_by(due);
        }
    }

    /// Records that the application stops polling, and lets the background thread take over.
    pub(crate) fn leave_inline(&self) {
        self.serve(ServiceContext::Poll);
        if self.scheduler.arbiter.note_app_sleep() {
            self.scheduler.wake_background();
        }
    }

    /// Calls `f` with a locked QP, if it exists.
    fn with_qp(&self, qpn: Qpn, f: impl FnOnce(&QpInner, &mut QpCore, &MemGuard<'_>)) {
        let Some(inner) = self.tables.qps.read().get(qpn).cloned() else {
            return;
        };
        let mem = self.tables.regions().read(self.host.now());
        let mut core = inner.lock();
        f(&inner, &mut core, &mem);
    }
}

/// Binds a link without a broker. An engine of this process that has just ended may still use the
/// address, until its background thread notices.
fn bind_alone(local: LocalAddr) -> Result<UdpLink, LinkError> {
    // A count and no duration: while the process does not run, its background thread does not run
    // either.
    const ATTEMPTS: u32 = 500;
    const PAUSE: Duration = Duration::from_millis(1);
    let is_own = |owner: &SocketOwner| matches!(owner, SocketOwner::Process { pid, .. } if *pid == std::process::id());
    for _ in 0..ATTEMPTS {
        match UdpLink::bind(local) {
            Err(LinkError::InUse { owner, .. }) if is_own(&owner) => thread::sleep(PAUSE),
            result => return result,
        }
    }
    UdpLink::bind(local)
}

impl Drop for Nic {
    fn drop(&mut self) {
        // The background thread finds that the engine is gone.
        self.scheduler.wake_background();
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
