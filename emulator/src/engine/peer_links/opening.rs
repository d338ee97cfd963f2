//! The beginning of a shared memory link, which a queue pair uses once the peer receives from it.
//!
//! Each process that has added a link to those that its threads receive from opens its end, and
//! wakes the peer. A thread of the peer may have made the link, and get no processor before it
//! has added it: the others do not know the link then, and would leave its packets unread. Until
//! the peer has opened its end, queue pairs use UDP.

use crate::sync::atomic::{AtomicUsize, Ordering};
use std::os::fd::AsFd as _;
use std::sync::Arc;

use super::Nic;
use crate::config::LinkMode;
use crate::link::peer_link::{AnyPeerLink, PeerLink as _};
use crate::state::QpInner;
use crate::sync::Mutex;

/// Links whose peers may not receive from them yet.
#[derive(Debug, Default)]
pub(crate) struct Unopened {
    links: Mutex<Vec<Arc<AnyPeerLink>>>,
    /// Number of `links`, read without the lock.
    count: AtomicUsize,
}

impl Unopened {
    fn add(&self, peer_link: Arc<AnyPeerLink>) {
        let mut links = self.links.lock();
        links.push(peer_link);
        self.count.store(links.len(), Ordering::Release);
    }

    /// Returns the number of links.
    #[cfg(all(test, not(loom)))]
    pub(super) fn len(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// Returns true if there are none.
    #[inline]
    fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// Returns the links that `is_open`. Forgets those that have ended.
    fn opened(&self, is_open: impl Fn(&AnyPeerLink) -> bool) -> Vec<Arc<AnyPeerLink>> {
        let mut links = self.links.lock();
        links.retain(|peer_link| !peer_link.has_ended());
        self.count.store(links.len(), Ordering::Release);
        let opened = links.iter().filter(|peer_link| is_open(peer_link));
        opened.cloned().collect()
    }

    /// Removes links that are in use now.
    fn remove(&self, used: &[Arc<AnyPeerLink>]) {
        let mut links = self.links.lock();
        links.retain(|peer_link| !used.iter().any(|used| Arc::ptr_eq(used, peer_link)));
        self.count.store(links.len(), Ordering::Release);
    }
}

impl Nic {
    /// Returns true if queue pairs may use the link. With [`LinkMode::Shm`] there is no other way
    /// for their packets.
    pub(super) fn may_use(&self, peer_link: &AnyPeerLink) -> bool {
        peer_link.is_open() || self.host.link_mode == LinkMode::Shm
    }

    /// Opens the ends of links that were added, and uses each once the peer has opened its own.
    pub(super) fn open_peer_links(&self, added: Vec<Arc<AnyPeerLink>>) {
        // The thread has to announce its sleep on more links, and so has an event loop. Peers use
        // the links only after that.
        self.resume_loop();
        self.scheduler.wake_background();
        for peer_link in added {
            // Added first, because the peer wakes this process only once.
            self.links.unopened.add(Arc::clone(&peer_link));
            peer_link.open();
        }
        self.use_opened_links();
    }

    /// Uses the links that peers have opened. Takes a nanosecond if all links are in use.
    ///
    /// The background thread does so when a peer wakes it. Posts and the first packets of a peer do
    /// so as well, because what follows the peer's connection would begin over UDP otherwise.
    #[inline]
    pub(crate) fn use_opened_links(&self) {
        if !self.links.unopened.is_empty() {
            self.move_to_opened_links();
        }
    }

    #[cold]
    fn move_to_opened_links(&self) {
        let opened = self
            .links
            .unopened
            .opened(|peer_link| self.may_use(peer_link));
        for peer_link in &opened {
            self.move_qps_to(peer_link);
        }
        // Only now, so that another thread that posts meanwhile does the same before.
        self.links.unopened.remove(&opened);
    }

    /// Takes the wake-up by peers of shared memory links.
    pub(in crate::engine) fn clear_peer_wake(&self) {
        crate::sys::eventfd_clear(self.scheduler.peer_wake_fd.as_fd());
        self.use_opened_links();
    }

    /// Makes queue pairs and routes without a shared memory link that match this one use it.
    pub(in crate::engine) fn move_qps_to(&self, peer_link: &Arc<AnyPeerLink>) {
        for inner in self.tables.qps.read().iter() {
            inner.lock().tx.attach_peer_link(peer_link);
        }
        self.links.routes.attach_peer_link(peer_link);
    }

    /// Checks for a shared memory link again after a QP has got a path without one.
    pub(crate) fn attach_peer_links(&self, inner: &QpInner) {
        let peer_links = self.links.peer_links.read().clone();
        let usable =
            |peer_link: &&Arc<AnyPeerLink>| !peer_link.has_ended() && self.may_use(peer_link);
        for peer_link in peer_links.iter().filter(usable) {
            inner.lock().tx.attach_peer_link(peer_link);
        }
    }
}
