//! Automatic path migration: two paths between a pair, one of which fails now and then.

use std::cell::Cell;
use std::net::IpAddr;
use std::rc::Rc;

use rocade_transport::testing::{Pair, Setup, Side, context};
use rocade_transport::{AddressVector, QpAttr, QpAttrMask, QpEvent, QpState, Time};
use rocade_wire::Gid;

use super::rng::Rng;

const MIGRATED: u32 = 0;
const REARM: u32 = 1;
const ARMED: u32 = 2;

/// A pair whose path changes repeatedly.
#[derive(Debug)]
pub struct Paths {
    rng: Rng,
    /// The address whose packets are all lost.
    dead: Rc<Cell<Option<IpAddr>>>,
    /// The number of completed messages at which the path changes next.
    due: u64,
    /// The maximum number of messages between two path changes.
    distance: u64,
    /// A migration is in progress.
    under_way: bool,
    /// The maximum time that a packet is in flight.
    lifetime_ns: u64,
    /// The time after a migration at which both sides may rearm.
    rearm_at: Option<Time>,
    /// The number of migrations, counted per side.
    pub migrations: u64,
}

impl Paths {
    /// Gives both sides a second port. Must be called before the pair is created.
    pub fn prepare(setup: &mut Setup) {
        setup.config.limits.port_count = 2;
    }

    /// Loads and arms the alternate path of both sides. Packets are at most `lifetime_ns` in
    /// flight.
    #[must_use]
    pub fn new(seed: u64, distance: u64, lifetime_ns: u64, pair: &mut Pair) -> Self {
        let mut rng = Rng::new(seed, 9);
        Side::BOTH.iter().for_each(|side| rearm(pair, *side));
        Self {
            due: rng.range(1, distance),
            rng,
            dead: Rc::default(),
            distance,
            under_way: false,
            lifetime_ns,
            rearm_at: None,
            migrations: 0,
        }
    }

    /// Returns the address whose packets the network must drop.
    #[must_use]
    pub fn dead(&self) -> Rc<Cell<Option<IpAddr>>> {
        Rc::clone(&self.dead)
    }

    /// Examines the pair after a step, when `completed` messages have completed. Nothing changes
    /// after message `last`.
    ///
    /// # Panics
    /// If a side reports an event other than a migration.
    pub fn step(&mut self, pair: &mut Pair, completed: u64, last: u64) {
        for side in Side::BOTH {
            for event in pair.take_events(side) {
                assert_eq!(event, QpEvent::PathMig);
                self.migrations += 1;
            }
        }
        let states = Side::BOTH.map(|side| pair.node(side).qp.query().path_mig_state);
        let locals = Side::BOTH.map(|side| pair.node(side).qp.local());
        if self.under_way && states == [MIGRATED; 2] {
            self.under_way = false;
            self.dead.set(None);
            self.due = completed + self.rng.range(1, self.distance);
            self.rearm_at = Some(pair.now().plus_ns(self.lifetime_ns));
        }
        // Rearms after all packets of the previous path have left the network. A late packet would
        // make the side that is armed first migrate back, while the other side, not yet armed,
        // could not follow.
        if completed < last && self.rearm_at.take_if(|at| *at <= pair.now()).is_some() {
            Side::BOTH.iter().for_each(|side| rearm(pair, *side));
        }
        if self.under_way || states != [ARMED; 2] || completed < self.due || completed >= last {
            return;
        }
        self.under_way = true;
        match self.rng.below(3) {
            0 => {
                let side = Side::BOTH[usize::from(self.rng.chance(500))];
                ask(pair, side);
            }
            _ => self.dead.set(Some(locals[0])),
        }
    }
}

/// A single path change during another state change of the connection.
#[derive(Clone, Copy, Debug)]
pub struct PathChange {
    /// The earliest virtual time. The change waits until both sides are armed.
    pub at_ns: u64,
    /// The side that requests the migration. With `None`, the path in use fails.
    pub asked_by: Option<Side>,
}

impl PathChange {
    /// Draws a random path change within `span_ns`.
    #[must_use]
    pub fn swarm(seed: u64, span_ns: u64) -> Self {
        let mut rng = Rng::new(seed, 13);
        Self {
            at_ns: rng.below(span_ns),
            asked_by: rng.pick(&[None, None, Some(Side::A), Some(Side::B)]),
        }
    }
}

/// A path change in progress.
#[derive(Debug)]
pub(super) struct PathChangeRun {
    path_change: PathChange,
    dead: Rc<Cell<Option<IpAddr>>>,
    has_begun: bool,
}

impl PathChangeRun {
    /// Loads and arms the alternate path of both sides. The network must drop all packets from and
    /// to the address in `dead`.
    pub(super) fn new(
        path_change: PathChange,
        dead: &Rc<Cell<Option<IpAddr>>>,
        pair: &mut Pair,
    ) -> Self {
        let mut path_change_run = Self {
            path_change,
            dead: Rc::clone(dead),
            has_begun: true,
        };
        path_change_run.begin_anew(pair);
        path_change_run
    }

    /// Prepares another path change, after both sides were connected again on the primary path.
    pub(super) fn begin_anew(&mut self, pair: &mut Pair) {
        Side::BOTH.iter().for_each(|side| rearm(pair, *side));
        self.dead.set(None);
        self.has_begun = false;
    }

    /// Examines the pair after a step.
    pub(super) fn step(&mut self, pair: &mut Pair) {
        let is_due = !self.has_begun && pair.now().as_ns() >= self.path_change.at_ns;
        let is_armed = |side| pair.node(side).qp.query().path_mig_state == ARMED;
        if !is_due || !Side::BOTH.into_iter().all(is_armed) {
            return;
        }
        match self.path_change.asked_by {
            None => self.dead.set(Some(pair.node(Side::A).qp.local())),
            Some(side) if pair.node(side).qp.state() == QpState::Rts => ask(pair, side),
            // A migration can only be requested in RTS.
            Some(_) => return,
        }
        self.has_begun = true;
    }
}

fn ask(pair: &mut Pair, side: Side) {
    let attr = QpAttr {
        path_mig_state: MIGRATED,
        ..QpAttr::default()
    };
    pair.modify(side, QpState::Rts, QpAttrMask::PATH_MIG_STATE, &attr);
}

/// Loads and arms the path that is not in use.
fn rearm(pair: &mut Pair, side: Side) {
    let is_first = pair.node(side).qp.local() == side.ip();
    let (local, remote) = if is_first {
        (side.alternate_ip(), side.other().alternate_ip())
    } else {
        (side.ip(), side.other().ip())
    };
    let port = if is_first { 2 } else { 1 };
    let attr = QpAttr {
        alt_ah_attr: AddressVector {
            dgid: Gid::from_ip(remote),
            is_global: true,
            port_num: port,
            ..AddressVector::default()
        },
        alt_port_num: port,
        alt_timeout: pair.node(side).qp.query().timeout,
        path_mig_state: REARM,
        ..QpAttr::default()
    };
    let now = pair.now();
    let mask = QpAttrMask::ALT_PATH | QpAttrMask::PATH_MIG_STATE;
    let qp = &mut pair.node_mut(side).qp;
    qp.modify(now, &attr, mask, &context(local))
        .expect("a path that fits");
}
