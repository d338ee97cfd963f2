//! XRC domains: the sets of shared receive queues that XRC targets deliver to.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Weak};

use rocade_transport::{Completion, ReceiveDomain, SharedReceives, Srqn};
use rocade_wire::Qpn;

use super::events::AsyncEvents;
use super::srq::SrqInner;
use crate::error::VerbsError;
use crate::journal::{DomainKey, DomainMemory, TargetRecord};
use crate::steering::ProcessSlot;
use crate::sync::modelled::{Mutex, RwLock};
use crate::sync::rank;

/// The file that identifies a domain: device and inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileId {
    /// `st_dev`.
    pub device: u64,
    /// `st_ino`.
    pub inode: u64,
}

/// The XRC domain to open (`ibv_xrcd_init_attr`).
#[derive(Clone, Copy, Debug, Default)]
#[doc(alias = "ibv_xrcd_init_attr")]
pub struct XrcdInitAttr {
    /// The file that identifies the domain. Processes that open the same file share the domain,
    /// while `None` opens a private one.
    pub file: Option<FileId>,
    /// Create the domain if it does not exist.
    pub create: bool,
    /// Fail if the domain exists.
    pub exclusive: bool,
}

/// The state that all openings of a domain share.
pub(crate) struct Domain {
    /// The index of the device and the file that identify the domain.
    key: Option<(u32, FileId)>,
    srqs: RwLock<HashMap<Srqn, Arc<SrqInner>>>,
    shared: Option<SharedDomain>,
}

/// Prints the numbers of the queues only: each queue refers back to its domain.
impl fmt::Debug for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut srqs: Vec<Srqn> = self.srqs.read().keys().copied().collect();
        srqs.sort_unstable();
        f.debug_struct("Domain")
            .field("key", &self.key)
            .field("srqs", &srqs)
            .field("shared", &self.shared)
            .finish()
    }
}

/// The state that a domain shares with other processes.
#[derive(Debug)]
pub(crate) struct SharedDomain {
    /// The key of the domain at the broker.
    pub(crate) key: DomainKey,
    pub(crate) memory: Arc<DomainMemory>,
    /// The slot of this process.
    pub(crate) slot: ProcessSlot,
    /// The openers in this process. Targets of other processes get the device of one of them.
    pub(crate) openers: Mutex<Vec<Weak<AsyncEvents>>>,
}

/// The file-backed domains of a process, each with its open count.
#[derive(Debug, Default)]
pub(crate) struct Domains {
    named: Mutex<Vec<(Arc<Domain>, u32)>, rank::Domains>,
}

impl Domains {
    /// Opens a domain. One lock covers lookup and creation. `share` asks the broker, if there is
    /// one.
    //= XRCL-03
    pub(crate) fn open(
        &self,
        events: &Arc<AsyncEvents>,
        init: XrcdInitAttr,
        share: impl FnOnce(DomainKey) -> Result<Option<(DomainMemory, ProcessSlot)>, VerbsError>,
    ) -> Result<Arc<Domain>, VerbsError> {
        let Some(file) = init.file else {
            //= XRCL-02
            return Ok(Arc::new(Domain::new(None, None)));
        };
        let device = events.hca();
        let key = Some((device.index, file));
        let mut named = self.named.lock();
        if let Some((domain, openings)) = named.iter_mut().find(|(domain, _)| domain.key == key) {
            if init.exclusive {
                return Err(VerbsError::InvalidArgument(
                    "the file already has an XRC domain",
                ));
            }
            *openings += 1;
            domain.opened_by(events);
            return Ok(Arc::clone(domain));
        }
        //= XRCL-04
        let shared_key = DomainKey {
            guid: device.config.guid.get(),
            device: file.device,
            inode: file.inode,
        };
        let shared = share(shared_key)?.map(|(memory, slot)| SharedDomain {
            key: shared_key,
            memory: Arc::new(memory),
            slot,
            openers: Mutex::default(),
        });
        if shared.is_none() && !init.create {
            return Err(VerbsError::WouldBlock);
        }
        let domain = Arc::new(Domain::new(key, shared));
        domain.opened_by(events);
        named.push((Arc::clone(&domain), 1));
        Ok(domain)
    }

    /// Closes one opening. With the last one the domain is removed unless it `has_own_targets`, and
    /// `ends` notifies the broker.
    pub(crate) fn close(
        &self,
        domain: &Arc<Domain>,
        has_own_targets: impl FnOnce() -> bool,
        ends: impl FnOnce(),
    ) {
        let mut named = self.named.lock();
        let found = named
            .iter()
            .position(|(other, _)| Arc::ptr_eq(other, domain));
        if let Some(at) = found {
            let openings = &mut named[at].1;
            *openings = openings.saturating_sub(1);
            if *openings == 0 && !has_own_targets() {
                named.swap_remove(at);
                ends();
            }
        }
    }

    /// Removes a closed domain that no longer `has_own_targets`, after one of its targets has
    /// ended.
    pub(crate) fn reconsider(
        &self,
        domain: &Arc<Domain>,
        has_own_targets: impl FnOnce() -> bool,
        ends: impl FnOnce(),
    ) {
        let mut named = self.named.lock();
        let is_closed =
            |(other, openings): &(Arc<Domain>, u32)| Arc::ptr_eq(other, domain) && *openings == 0;
        if let Some(at) = named.iter().position(is_closed)
            && !has_own_targets()
        {
            named.swap_remove(at);
            ends();
        }
    }

    /// Finds the shared domain that has a target of this number, and the target's shared record.
    pub(crate) fn find_target(&self, qpn: Qpn) -> Option<(Arc<Domain>, TargetRecord)> {
        let named = self.named.lock();
        named.iter().find_map(|(domain, _)| {
            let record = domain.shared.as_ref()?.memory.find(qpn)?;
            Some((Arc::clone(domain), record))
        })
    }
}

impl Domain {
    fn new(key: Option<(u32, FileId)>, shared: Option<SharedDomain>) -> Self {
        Self {
            key,
            srqs: RwLock::default(),
            shared,
        }
    }

    /// The state shared with other processes, if there are any.
    pub(crate) const fn shared(&self) -> Option<&SharedDomain> {
        self.shared.as_ref()
    }

    fn opened_by(&self, events: &Arc<AsyncEvents>) {
        if let Some(shared) = &self.shared {
            let mut openers = shared.openers.lock();
            openers.retain(|other| other.strong_count() > 0);
            openers.push(Arc::downgrade(events));
        }
    }

    pub(crate) fn add(&self, srq: &Arc<SrqInner>) {
        self.srqs.write().insert(srq.srqn(), Arc::clone(srq));
    }

    /// Removes a queue that is destroyed and whose receives have all completed.
    pub(crate) fn retire(&self, srqn: Srqn) {
        let mut srqs = self.srqs.write();
        if srqs.get(&srqn).is_some_and(|srq| srq.is_over()) {
            // Dropped after the lock is released, because it may be the last reference.
            let over = srqs.remove(&srqn);
            drop(srqs);
            drop(over);
        }
    }

    /// Returns the queue of this number, destroyed or not.
    fn of(&self, srqn: Srqn) -> Option<Arc<SrqInner>> {
        self.srqs.read().get(&srqn).cloned()
    }

    /// Reserves space for completions in the CQ of a queue. Returns for how many.
    pub(crate) fn reserve(&self, srqn: Srqn, count: usize) -> usize {
        self.of(srqn).map_or(count, |srq| srq.reserve(count))
    }

    /// Hands completions to the CQ of a queue. Returns how many are lost.
    pub(crate) fn complete<'c>(
        &self,
        srqn: Srqn,
        run: impl Iterator<Item = &'c Completion>,
        reserved: &mut usize,
    ) -> usize {
        match self.of(srqn) {
            Some(srq) => srq.complete(run, reserved),
            // A queue is kept until its last completion, so this one has none to report.
            None => {
                *reserved -= run.count().min(*reserved);
                0
            }
        }
    }
}

impl ReceiveDomain for Domain {
    //= XRC-06
    fn find(&self, srqn: Srqn) -> Option<Arc<dyn SharedReceives>> {
        let srq = self.of(srqn).filter(|srq| srq.is_alive())?;
        Some(srq)
    }

    //= XRC-06
    fn is_in_other_process(&self, srqn: Srqn) -> bool {
        // The number of an SRQ contains the slot of its process.
        let slot = ProcessSlot::of(Qpn::new(srqn.get()));
        let is_of_other =
            |shared: &SharedDomain| slot != shared.slot && shared.memory.is_member(slot);
        self.shared.as_ref().is_some_and(is_of_other)
    }

    fn forget(&self, srqn: Srqn) {
        if let Some(srq) = self.of(srqn) {
            srq.forget();
        }
    }
}
