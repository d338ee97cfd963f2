//! The transmit side of a queue pair: where its packets go, and what has not left yet.

use std::sync::Arc;

use rocade_transport::{AddressVector, Qp, RouteTag, Time};
use rocade_wire::{Msn, Psn};

use super::agenda::Listed;
use super::routes::{Route, Ways};
use super::uplink::{Path, Uplink};
use crate::broker::{Bequest, Creditor, Debt};
use crate::link::MAX_SEGMENTS;
use crate::link::shm::ShmChannel;

/// The transmit side of a QP.
#[derive(Debug, Default)]
pub(crate) struct TxState {
    pub(crate) route: Option<(Arc<Uplink>, Path)>,
    /// The one that is taken when the other fails.
    alternate: Option<Box<(Arc<Uplink>, Path)>>,
    /// Those of its datagrams.
    pub(crate) ways: Option<Box<Ways>>,
    /// Nothing has been sent through the channel of the route yet, but perhaps over UDP.
    pub(crate) enters_channel: bool,
    /// The peer has sent something through it.
    peer_has_entered: bool,
    /// When the pending timer entry of this QP is due.
    pub(crate) timer: Option<Time>,
    /// A run of packets that the socket had no room for.
    pub(crate) blocked: Option<Box<Blocked>>,
    /// The last acknowledgement that was promised to the peer, and is not seen yet.
    pub(crate) quiet: Option<Psn>,
    /// What the QP has written into the last will.
    pub(crate) bequest: Option<Bequest>,
    /// Why it has to be looked at again.
    pub(crate) listed: Listed,
    /// From where packets are taken.
    ear: Ear,
}

/// To whom a QP listens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Ear {
    /// To its peer, which uses one way.
    #[default]
    Peer,
    /// An XRC initiator, to whoever has its peer's address: the target may be in another process with each message.
    Anybody,
    /// A datagram QP, to anybody but itself: of what it sends to a group it wants no copy.
    Others,
    /// A target that is in another process now: to nobody.
    Nobody,
}

#[derive(Debug)]
pub(crate) struct Blocked {
    pub(crate) bytes: Box<[u8]>,
    pub(crate) segment_len: usize,
    pub(crate) route: RouteTag,
    /// Its speed is limited.
    pub(crate) is_paced: bool,
    /// The ICRCs are there, as UDP needs them.
    pub(crate) sealed: bool,
}

impl TxState {
    /// Another way from now on. What there was no room for on the old one is lost on it.
    pub(crate) fn set_path(&mut self, uplink: Arc<Uplink>, path: Path) {
        self.blocked = None;
        self.quiet = None;
        self.enters_channel = path.channel.is_some();
        self.peer_has_entered = false;
        self.route = Some((uplink, path));
        self.bequest = None;
    }

    /// The path that a migration leads to.
    pub(crate) fn set_alternate(&mut self, uplink: Arc<Uplink>, path: Path) {
        self.alternate = Some(Box::new((uplink, path)));
    }

    /// The alternate path is the one from now on.
    #[cold]
    pub(crate) fn migrate(&mut self) {
        if let Some(alternate) = self.alternate.take() {
            let (uplink, path) = *alternate;
            self.set_path(uplink, path);
        }
    }

    /// Datagrams of `qp` may take this route from now on.
    pub(crate) fn learn(&mut self, route: &Arc<Route>, qp: &Qp) {
        let blocked = self.blocked.as_ref().map(|blocked| blocked.route);
        let ways = self.ways.get_or_insert_default();
        ways.learn(route, || qp.queued_routes().chain(blocked));
    }

    /// A DC target answers from there.
    pub(crate) fn answer_from(&mut self, uplink: Arc<Uplink>, av: AddressVector) {
        self.ways.get_or_insert_default().answer_from(uplink, av);
    }

    /// A route of an answer that is not known yet, and from where it begins.
    #[cold]
    pub(crate) fn unknown_answer(&self, tag: RouteTag) -> Option<&(Arc<Uplink>, AddressVector)> {
        let ways = self.ways.as_ref().filter(|ways| !ways.knows(tag))?;
        ways.answers()
    }

    /// It leads there.
    pub(crate) fn learn_answer(&mut self, tag: RouteTag, route: &Arc<Route>) {
        let blocked = self.blocked.as_ref().map(|blocked| blocked.route);
        let ways = self.ways.get_or_insert_default();
        ways.learn_answer(tag, route, blocked);
    }

    /// May anything be sent on a route yet?
    #[inline]
    pub(crate) fn is_ready(&self, tag: RouteTag) -> bool {
        tag == RouteTag::OWN || self.ways.as_ref().is_none_or(|ways| ways.is_ready(tag))
    }

    /// Is there anywhere to send to?
    pub(crate) const fn leads_anywhere(&self) -> bool {
        self.route.is_some() || self.ways.is_some()
    }

    /// Takes a channel that leads where the path does, unless there is one already.
    pub(crate) fn offer_channel(&mut self, channel: &Arc<ShmChannel>) {
        if let Some((uplink, path)) = &mut self.route {
            self.enters_channel |= path.offer(uplink, channel);
        }
        if let Some((uplink, path)) = self.alternate.as_deref_mut() {
            path.offer(uplink, channel);
        }
    }

    /// Goes back to UDP where the peer is gone.
    pub(crate) fn drop_ended_channel(&mut self) {
        if let Some((_, path)) = &mut self.route {
            path.channel.take_if(|channel| channel.has_ended());
            self.peer_has_entered &= path.channel.is_some() || self.ear == Ear::Nobody;
        }
        if let Some((_, path)) = self.alternate.as_deref_mut() {
            path.channel.take_if(|channel| channel.has_ended());
        }
    }

    /// Packets may come from any process with the peer's address.
    pub(crate) const fn hear_anybody(&mut self) {
        self.ear = Ear::Anybody;
    }

    /// Of what the QP sends to a group it gets no copy.
    pub(crate) const fn hear_others(&mut self) {
        self.ear = Ear::Others;
    }

    /// Is that so?
    pub(crate) fn hears_only_others(&self) -> bool {
        self.ear == Ear::Others
    }

    /// No packets are taken, until they are again.
    pub(crate) const fn set_deaf(&mut self, is_deaf: bool) {
        self.ear = if is_deaf { Ear::Nobody } else { Ear::Peer };
        // Where that is so, nobody has to look at the ear for each packet.
        self.peer_has_entered = is_deaf;
    }

    /// Are there none taken now?
    pub(crate) fn is_deaf(&self) -> bool {
        self.ear == Ear::Nobody
    }

    /// A packet has come through a channel. False where the peer uses another one.
    #[inline]
    pub(crate) fn hears_from(&mut self, channel: &ShmChannel) -> bool {
        if let Some((_, path)) = &self.route
            && let Some(own) = &path.channel
            && !own.has_ended()
        {
            // Both sides may have asked for a channel at the same time: then there are two.
            let is_own = own.is_parallel_to(channel);
            self.peer_has_entered |= is_own;
            return match self.ear {
                Ear::Peer => is_own || self.alternate.is_some() && self.may_migrate_to(channel),
                Ear::Anybody | Ear::Others => true,
                Ear::Nobody => false,
            };
        }
        self.ear != Ear::Nobody
    }

    /// May the peer use this channel to tell of a migration?
    #[cold]
    fn may_migrate_to(&self, channel: &ShmChannel) -> bool {
        let alternate = self.alternate.as_ref();
        let own = alternate.and_then(|route| route.1.live_channel());
        own.is_none_or(|own| own.is_parallel_to(channel))
    }

    /// Is the peer in a channel, and nothing that comes over UDP from it? Anybody could send that.
    #[inline]
    pub(crate) fn refuses_udp(&self) -> bool {
        self.peer_has_entered && self.refuses_it()
    }

    /// Of the alternate path too there is a channel, if there is one.
    #[cold]
    fn stays_in_channels(&self) -> bool {
        let alternate = self.alternate.as_ref();
        alternate.is_none_or(|route| route.1.live_channel().is_some())
    }

    #[cold]
    fn refuses_it(&self) -> bool {
        match self.ear {
            Ear::Peer => self.has_live_channel() && self.stays_in_channels(),
            Ear::Anybody | Ear::Others => false,
            Ear::Nobody => true,
        }
    }

    fn has_live_channel(&self) -> bool {
        let channel = self
            .route
            .as_ref()
            .and_then(|(_, path)| path.channel.as_ref());
        channel.is_some_and(|channel| !channel.has_ended() && !channel.has_hung_up())
    }

    /// Forgets route and unsent packets.
    pub(crate) fn reset(&mut self) {
        self.route = None;
        self.alternate = None;
        self.ways = None;
        self.blocked = None;
        self.quiet = None;
        self.bequest = None;
    }

    pub(crate) const fn take_timer(&mut self) {
        self.timer = None;
    }

    /// Waits a run of packets for room?
    pub(crate) const fn is_blocked(&self) -> bool {
        self.blocked.is_some()
    }

    /// Segments that a run may have. A link that does not cut them itself cuts those of datagrams all the same.
    pub(crate) fn max_segments(&self) -> usize {
        let one_by_one = self.route.as_ref().is_some_and(|(uplink, path)| {
            let by_channel = path.channel.as_ref().is_some_and(|c| !c.has_ended());
            !by_channel && !uplink.link.gso()
        });
        if one_by_one { 1 } else { MAX_SEGMENTS }
    }

    /// Is sending a system call?
    pub(crate) fn uses_socket(&self) -> bool {
        self.route
            .as_ref()
            .is_some_and(|(_, path)| path.channel.is_none())
    }

    /// The same of the last run of a DC initiator, whose runs take different ways.
    pub(crate) fn ways_use_socket(&self) -> bool {
        self.ways.as_ref().is_some_and(|ways| ways.use_socket())
    }

    /// Who gets the acknowledgements of a QP.
    pub(crate) fn creditor(&self, qp: &Qp) -> Option<Creditor> {
        let (uplink, path) = self.route.as_ref()?;
        Some(Creditor {
            local: uplink.link.local_addr(),
            peer: path.to,
            dest_qp: qp.dest_qp(),
            opcode: qp.ack_terms().opcode,
            pkey: qp.pkey(),
            traffic_class: path.traffic_class,
        })
    }

    /// The QP holds back what it has to acknowledge, or nothing any more.
    #[inline]
    pub(crate) fn write_down(&mut self, qp: &Qp) {
        let Some(bequest) = &mut self.bequest else {
            return;
        };
        match qp.owed_ack() {
            Some(owed) => bequest.owe(debt_of(qp, owed)),
            // What there was no room for has not left yet.
            None if self.blocked.is_some() => {}
            None => bequest.settle(),
        }
    }

    /// The QP will not hold anything for a while, or leaves by another way.
    pub(crate) fn forget_will(&mut self) {
        self.bequest = None;
    }

    /// The peer sees an acknowledgement that was promised, and is woken for it.
    pub(crate) fn announce_quiet_ack(&mut self) {
        if self.quiet.take().is_some()
            && let Some((_, path)) = &self.route
            && let Some(channel) = &path.channel
        {
            channel.keep_promise();
        }
    }
}

/// An acknowledgement of a QP, as it would send it now.
pub(crate) fn debt_of(qp: &Qp, (psn, msn): (Psn, Msn)) -> Debt {
    let terms = qp.ack_terms();
    Debt {
        psn,
        msn,
        credits: terms.credits,
        migreq: terms.migreq,
    }
}

/// The way of a run: that to the peer, or one of those that datagrams take.
#[inline]
pub(crate) fn way<'w>(
    own: &'w mut Option<(Arc<Uplink>, Path)>,
    ways: &'w mut Option<Box<Ways>>,
    tag: RouteTag,
) -> Option<(&'w Arc<Uplink>, &'w mut Path)> {
    if tag == RouteTag::OWN {
        own.as_mut().map(|(uplink, path)| (&*uplink, path))
    } else {
        ways.as_mut()?.get(tag)
    }
}
