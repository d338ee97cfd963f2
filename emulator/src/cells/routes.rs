//! The ways that datagrams take: between an address handle and the link.
//!
//! A route is a combination of local address, remote address, traffic class, hop limit and slot, the process
//! at the other end. It is made when the first datagram is posted for it, and shared by all address
//! handles and queue pairs that mean the same; a queue pair keeps those that it uses, so that an address
//! handle may go while its datagrams wait. Whether it leads through shared memory is for the broker to
//! say, and posting must not wait for that: the background thread asks, and until then there is no room on the route.
//! When a channel comes or goes later, the route changes at once: datagrams may overtake each other.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::{Mutex, RwLock};
use rocade_transport::{AddressVector, RouteTag};
use rocade_wire::Qpn;

use super::uplink::{Path, Uplink};
use crate::link::LocalAddr;
use crate::link::shm::ShmChannel;
use crate::steering::Slot;

/// Routes that a queue pair remembers before it forgets those that it does not need.
const REMEMBERED: usize = 64;

/// What a route leads to, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    local: LocalAddr,
    to: IpAddr,
    traffic_class: u8,
    hop_limit: u8,
    slot: Slot,
}

/// A way that datagrams take.
#[derive(Debug)]
pub(crate) struct Route {
    tag: RouteTag,
    /// Any QP of the process at the other end.
    dest: Qpn,
    uplink: Arc<Uplink>,
    by_udp: Path,
    channel: RwLock<Option<Arc<ShmChannel>>>,
    /// Whether there is a channel has been asked.
    is_ready: AtomicBool,
}

impl Route {
    /// Its name.
    pub(crate) const fn tag(&self) -> RouteTag {
        self.tag
    }

    /// Where it leads to, and from which address.
    pub(crate) const fn ends(&self) -> (&Arc<Uplink>, Qpn, IpAddr) {
        (&self.uplink, self.dest, self.by_udp.to)
    }

    /// There is, or is not, a channel: it is known now.
    pub(crate) fn lead(&self, channel: Option<Arc<ShmChannel>>) {
        if let Some(channel) = channel {
            self.channel.write().get_or_insert(channel);
        }
        self.is_ready.store(true, Ordering::Release);
    }
}

/// The routes of a process.
#[derive(Debug, Default)]
pub(crate) struct Routes {
    known: Mutex<HashMap<Key, Weak<Route>>>,
    /// So many names were given.
    names: AtomicU64,
    /// Those for which nobody has asked the broker yet.
    new: Mutex<Vec<Weak<Route>>>,
}

impl Routes {
    fn all(&self) -> Vec<Arc<Route>> {
        self.known
            .lock()
            .values()
            .filter_map(Weak::upgrade)
            .collect()
    }

    /// The route from an address to a QP of a peer; made where it is not in use yet. The sockets of the
    /// uplink for this hop limit are open. Where it is not ready `at_once`, somebody has to ask for its channel: true
    /// where that is new.
    ///
    /// # Errors
    /// Those of [`Uplink::path_of`].
    pub(crate) fn to(
        &self,
        uplink: &Arc<Uplink>,
        dest: Qpn,
        av: &AddressVector,
        at_once: bool,
    ) -> std::io::Result<(Arc<Route>, bool)> {
        let key = Key {
            local: uplink.link.local_addr(),
            to: av.dgid.to_ip(),
            traffic_class: av.traffic_class,
            hop_limit: av.hop_limit,
            slot: Slot::of(dest),
        };
        let mut known = self.known.lock();
        if let Some(route) = known.get(&key).and_then(Weak::upgrade) {
            return Ok((route, false));
        }
        known.retain(|_, route| route.strong_count() > 0);
        let name = self.names.fetch_add(1, Ordering::Relaxed) + 1;
        let route = Arc::new(Route {
            tag: RouteTag(name),
            dest,
            uplink: Arc::clone(uplink),
            by_udp: uplink.path_of(dest, key.to, av, None)?,
            channel: RwLock::default(),
            is_ready: AtomicBool::new(at_once),
        });
        known.insert(key, Arc::downgrade(&route));
        drop(known);
        if !at_once {
            self.new.lock().push(Arc::downgrade(&route));
        }
        Ok((route, !at_once))
    }

    /// The routes that nobody has asked for a channel for.
    pub(crate) fn take_new(&self) -> Vec<Arc<Route>> {
        let new = std::mem::take(&mut *self.new.lock());
        new.iter().filter_map(Weak::upgrade).collect()
    }

    /// Leads the routes through a new channel that have none.
    pub(crate) fn offer(&self, channel: &Arc<ShmChannel>) {
        for route in self.all() {
            let Path { to, slot, .. } = route.by_udp;
            if channel.leads(route.uplink.link.local_addr(), to, slot) {
                route
                    .channel
                    .write()
                    .get_or_insert_with(|| Arc::clone(channel));
            }
        }
    }

    /// Leads the routes back to UDP whose channel has ended.
    pub(crate) fn leave_ended(&self) {
        for route in self.all() {
            route.channel.write().take_if(|channel| channel.has_ended());
        }
    }
}

/// The routes that the datagrams of a queue pair take.
#[derive(Debug, Default)]
pub(crate) struct Ways {
    ways: HashMap<RouteTag, Way>,
    /// Of a DC target: from where it answers, and with which traffic class and the like.
    answers: Option<(Arc<Uplink>, AddressVector)>,
    /// The way that was taken last is a socket.
    by_socket: bool,
}

#[derive(Debug)]
struct Way {
    route: Arc<Route>,
    path: Path,
}

impl Ways {
    /// Remembers a route. Where there are many, `needed` tells which others have to stay.
    pub(crate) fn learn<I: Iterator<Item = RouteTag>>(
        &mut self,
        route: &Arc<Route>,
        needed: impl FnOnce() -> I,
    ) {
        if self.ways.contains_key(&route.tag) {
            return;
        }
        let many = REMEMBERED.max(self.ways.capacity() / 2);
        if self.ways.len() >= many {
            let mut stay = HashMap::new();
            for tag in needed() {
                if let Some(way) = self.ways.remove(&tag) {
                    stay.insert(tag, way);
                }
            }
            stay.reserve(stay.len());
            self.ways = stay;
        }
        let way = Way {
            path: route.by_udp.clone(),
            route: Arc::clone(route),
        };
        self.ways.insert(route.tag, way);
    }

    /// Answers leave from there, from now on.
    pub(crate) fn answer_from(&mut self, uplink: Arc<Uplink>, av: AddressVector) {
        self.answers = Some((uplink, av));
    }

    /// From where answers leave.
    pub(crate) const fn answers(&self) -> Option<&(Arc<Uplink>, AddressVector)> {
        self.answers.as_ref()
    }

    /// Is it known where this leads to?
    pub(crate) fn knows(&self, tag: RouteTag) -> bool {
        self.ways.contains_key(&tag)
    }

    /// Remembers under this name the route of an answer: they can be asked for again, but for the one that is `needed`.
    pub(crate) fn learn_answer(
        &mut self,
        tag: RouteTag,
        route: &Arc<Route>,
        needed: Option<RouteTag>,
    ) {
        if self.ways.len() >= REMEMBERED {
            self.ways.retain(|tag, _| Some(*tag) == needed);
        }
        let way = Way {
            path: route.by_udp.clone(),
            route: Arc::clone(route),
        };
        self.ways.insert(tag, way);
    }

    /// Did the last run leave through a socket?
    pub(crate) const fn use_socket(&self) -> bool {
        self.by_socket
    }

    /// May anything be sent on it yet?
    pub(crate) fn is_ready(&self, tag: RouteTag) -> bool {
        let way = self.ways.get(&tag);
        way.is_none_or(|way| way.route.is_ready.load(Ordering::Acquire))
    }

    /// The way of that name, through the channel of its route if it has one now.
    pub(crate) fn get(&mut self, tag: RouteTag) -> Option<(&Arc<Uplink>, &mut Path)> {
        let Way { route, path } = self.ways.get_mut(&tag)?;
        let current = route.channel.read();
        let same = match (&*current, &path.channel) {
            (Some(new), Some(old)) => Arc::ptr_eq(new, old),
            (None, None) => true,
            _ => false,
        };
        if !same {
            path.channel.clone_from(&current);
        }
        drop(current);
        self.by_socket = path.channel.is_none();
        Some((&route.uplink, path))
    }
}
