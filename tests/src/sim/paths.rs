//! Two paths between a pair, one of which dies now and then: what is sent goes on on the other.

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

/// A pair that changes its path, again and again.
#[derive(Debug)]
pub struct Paths {
    rng: Rng,
    /// Everything is lost that has this address at an end.
    dead: Rc<Cell<Option<IpAddr>>>,
    /// When so many messages are through, something happens to the path.
    due: u64,
    /// Messages between two such times, at most.
    distance: u64,
    /// A migration is under way.
    under_way: bool,
    /// How late a packet may come.
    lifetime_ns: u64,
    /// After a migration: when both sides may take up the other path again.
    rearm_at: Option<Time>,
    /// How often a side has migrated.
    pub migrations: u64,
}

impl Paths {
    /// Both sides get a second port; to be called before the pair is made.
    pub fn prepare(setup: &mut Setup) {
        setup.config.limits.port_count = 2;
    }

    /// The alternate path of both sides is ready. Packets come up to `lifetime_ns` late.
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

    /// Which address is dead, for the network.
    #[must_use]
    pub fn dead(&self) -> Rc<Cell<Option<IpAddr>>> {
        Rc::clone(&self.dead)
    }

    /// Looks at the pair after a step, when so many messages are through. Nothing happens any more after `last`.
    ///
    /// # Panics
    /// If a side reports something else than a migration.
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
        // When nothing of the path before is on its way any more. It would ask whoever is ready first to come back, and
        // the other one, which is not ready then, could not follow (RC-APM-04, RC-APM-05).
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

/// A single change of paths, while something else happens to the connection.
#[derive(Clone, Copy, Debug)]
pub struct PathChange {
    /// When, in virtual time; not before both sides are ready.
    pub at_ns: u64,
    /// Who asks for it; else the path in use dies.
    pub asked_by: Option<Side>,
}

impl PathChange {
    /// A random one, within this time.
    #[must_use]
    pub fn swarm(seed: u64, span_ns: u64) -> Self {
        let mut rng = Rng::new(seed, 13);
        Self {
            at_ns: rng.below(span_ns),
            asked_by: rng.pick(&[None, None, Some(Side::A), Some(Side::B)]),
        }
    }
}

/// A detour under way.
#[derive(Debug)]
pub(super) struct PathChangeRun {
    path_change: PathChange,
    dead: Rc<Cell<Option<IpAddr>>>,
    has_begun: bool,
}

impl PathChangeRun {
    /// The alternate path of both sides is ready. Everything is lost that has the address at an end that `dead` says.
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

    /// Both sides are on the first path; there is one more change of paths to come.
    pub(super) fn begin_anew(&mut self, pair: &mut Pair) {
        Side::BOTH.iter().for_each(|side| rearm(pair, *side));
        self.dead.set(None);
        self.has_begun = false;
    }

    /// Looks at the pair after a step.
    pub(super) fn step(&mut self, pair: &mut Pair) {
        let is_due = !self.has_begun && pair.now().as_ns() >= self.path_change.at_ns;
        let is_armed = |side| pair.node(side).qp.query().path_mig_state == ARMED;
        if !is_due || !Side::BOTH.into_iter().all(is_armed) {
            return;
        }
        match self.path_change.asked_by {
            None => self.dead.set(Some(pair.node(Side::A).qp.local())),
            Some(side) if pair.node(side).qp.state() == QpState::Rts => ask(pair, side),
            // In another state it is not the time to ask.
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

/// Loads the path that is not in use.
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
