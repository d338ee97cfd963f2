//! Work that packets of shared memory leave to other threads.

use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use super::*;
use crate::config::EngineConfig;
use crate::engine::Engine;
use crate::sys;

/// Returns true if an eventfd was written since the last call.
pub(in super::super) fn was_woken(wake: &OwnedFd) -> bool {
    let mut set = sys::PollSet::default();
    let entry = set.add(wake.as_raw_fd());
    set.wait_uncancelled(Some(Duration::ZERO)).expect("polled");
    let woken = set.is_ready(entry);
    sys::eventfd_clear(wake.as_fd());
    woken
}

/// Makes an engine without threads that has both ends of a link.
pub(in super::super) fn engine_with_link(config: EngineConfig) -> (Engine, [Arc<AnyPeerLink>; 2]) {
    let engine = Engine::new(config).expect("an engine");
    let inner = engine.inner();
    let ends = [1, 2].map(|last| LocalAddr::from(IpAddr::from([10, 0, 0, last])));
    let wake = inner.scheduler.peer_wake_fd.as_fd();
    let links = AnyPeerLink::within(ends[0], ends[1], ProcessSlot::EMBEDDED, wake).expect("a link");
    let links = links.map(Arc::new);
    inner
        .links
        .change_peer_links(|peer_links| peer_links.extend(links.iter().cloned()));
    (engine, links)
}

/// A thread that receives from a link may find datagrams to QP 1 in the socket. It holds a lock, so
/// another thread has to handle them: the background thread, or a poller that sleeps.
#[test]
fn datagrams_that_were_only_queued_wake_the_other_threads() {
    let (engine, [link, _]) = engine_with_link(EngineConfig::simulated(1));
    let inner = engine.inner();
    let background = inner.scheduler.service_queue.wake_fd();
    was_woken(background);
    let sleepers = inner.scheduler.service_queue.sleepers();
    let sleeper = sleepers.begin().expect("a descriptor");
    let is_woken = |sleeper: &crate::state::Sleeper| {
        let mut set = sys::PollSet::default();
        let entry = set.add(sleeper.wake_fd());
        set.wait_uncancelled(Some(Duration::ZERO)).expect("polled");
        set.is_ready(entry)
    };
    inner.receive_udp_before(&link, Caller::Application);
    assert!(!was_woken(background), "nothing has arrived");
    assert!(!is_woken(&sleeper));
    inner.cm.put(link.local(), link.peer(), &[0; 256]);
    inner.receive_udp_before(&link, Caller::Application);
    assert!(was_woken(background));
    assert!(is_woken(&sleeper));
    assert!(sleepers.end(sleeper));
}
