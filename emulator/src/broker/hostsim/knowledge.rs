//! Comparison of what a broker knows of its clients with what they have.

use std::collections::BTreeSet;

use rocade_wire::Qpn;

use super::super::client::view::View;
use super::super::server::view::{DomainView, TargetView, View as ServerView};
use super::world::{Member, World};
use crate::gsi::services::Binding;
use crate::journal::DomainKey;
use crate::steering::ProcessSlot;

/// The clients of a broker.
type Clients<'w> = [(&'w Member, &'w View)];

impl World {
    /// Checks that a broker knows what its clients have, and no more.
    ///
    /// # Errors
    /// A text that names what differs.
    pub(super) fn check_knowledge(
        &self,
        known: &ServerView,
        own: &Clients<'_>,
    ) -> Result<(), String> {
        let mut slots: Vec<_> = own.iter().map(|(_, view)| view.slot).collect();
        let mut theirs = known.slots.clone();
        slots.sort_unstable();
        theirs.sort_unstable();
        if slots != theirs {
            return Err(format!("the broker has clients {theirs:?}, not {slots:?}"));
        }
        let crowd = |slot: &ProcessSlot| slot.index() <= self.crowd.len();
        if let Some(slot) = known.orphans.iter().find(|slot| !crowd(slot)) {
            return Err(format!("the broker waits for a process with {slot}"));
        }
        for (_, view) in own {
            if known.journals.get(&view.slot) != view.journal.as_ref() {
                return Err(format!("the broker has another journal of {}", view.slot));
            }
        }
        check_ports(known, own, self.has_stopped)?;
        check_domains(known, own)?;
        self.check_targets(known, own)
    }

    fn check_targets(&self, known: &ServerView, own: &Clients<'_>) -> Result<(), String> {
        let mut all = BTreeSet::new();
        for (key, domain) in &known.domains {
            for (qpn, target) in &domain.targets {
                all.insert((*key, *qpn));
                self.check_target((*key, *qpn), domain, target, own)?;
            }
        }
        let mut had = own.iter().flat_map(|(_, view)| &view.targets);
        had.find(|target| !all.contains(target))
            .map_or(Ok(()), |lost| Err(format!("the broker has lost {lost:?}")))
    }

    fn check_target(
        &self,
        id: (DomainKey, Qpn),
        domain: &DomainView,
        target: &TargetView,
        own: &Clients<'_>,
    ) -> Result<(), String> {
        if !target.is_found {
            return Err(format!("processes find another record of {id:?}"));
        }
        let mut openers = target.openers.iter();
        if target.openers.is_empty() {
            return Err(format!("{id:?} is open in no process, and stays"));
        }
        if let Some(dead) = openers.find(|slot| !domain.members.contains(slot)) {
            return Err(format!("{id:?} is open in {dead}, which is no member"));
        }
        for (member, view) in own {
            let (slot, is_opener) = (view.slot, target.openers.contains(&view.slot));
            let is_open = view.targets.contains(&id);
            if is_open != is_opener {
                return Err(format!(
                    "{id:?} is open in {slot}: {is_open}, not {is_opener}"
                ));
            }
            let has_its_slot = ProcessSlot::of(id.1) == slot;
            let (_, creator) = self.notes.targets.lock()[&id.1.get()];
            if has_its_slot && creator != member.number {
                return Err(format!("{slot} is leased, but {id:?} of another one lives"));
            }
            if has_its_slot && is_open && target.owner != Some(slot) {
                return Err(format!("{id:?} is lost to {:?}", target.owner));
            }
        }
        match target.owner.filter(|owner| !domain.members.contains(owner)) {
            Some(dead) => Err(format!("{dead} is dead and has {id:?}")),
            None => Ok(()),
        }
    }
}

/// Checks the ports. A new broker waits for clients of another one for a short time only, so after
/// a stop (`has_stopped`) another client may have got a port.
fn check_ports(known: &ServerView, own: &Clients<'_>, has_stopped: bool) -> Result<(), String> {
    for (_, view) in own {
        let of_it = known.ports.iter().filter(|(slot, _)| *slot == view.slot);
        let theirs: Vec<_> = of_it.map(|(_, port)| *port).collect();
        let is_taken =
            |port: &Binding| has_stopped && known.ports.iter().any(|(_, other)| other == port);
        let is_lost = |port: &&Binding| !theirs.contains(port) && !is_taken(port);
        if let Some(lost) = view.ports.iter().find(is_lost) {
            return Err(format!("{} has lost its port {lost:?}", view.slot));
        }
        if let Some(more) = theirs.iter().find(|port| !view.ports.contains(port)) {
            return Err(format!("{} has given back its port {more:?}", view.slot));
        }
    }
    let is_dead = |slot| !own.iter().any(|(_, view)| view.slot == slot);
    match known.ports.iter().find(|(slot, _)| is_dead(*slot)) {
        Some((slot, port)) => Err(format!("{slot} is dead and has the port {port:?}")),
        None => Ok(()),
    }
}

fn check_domains(known: &ServerView, own: &Clients<'_>) -> Result<(), String> {
    for (key, domain) in &known.domains {
        let has = |view: &View| view.domains.contains_key(key);
        let members: BTreeSet<_> = (own.iter().filter(|(_, view)| has(view)))
            .map(|(_, view)| view.slot)
            .collect();
        if domain.members != members {
            let theirs = &domain.members;
            return Err(format!("{key:?} is shared by {theirs:?}, not {members:?}"));
        }
        check_memory(*key, domain)?;
    }
    let mut had = own.iter().flat_map(|(_, view)| view.domains.keys());
    had.find(|key| !known.domains.contains_key(key))
        .map_or(Ok(()), |lost| Err(format!("the broker has lost {lost:?}")))
}

/// Checks that processes see the members and targets that the broker knows, and no others.
fn check_memory(key: DomainKey, domain: &DomainView) -> Result<(), String> {
    let (members, seen) = (&domain.members, &domain.in_memory);
    if seen != members {
        return Err(format!(
            "processes see {seen:?} in {key:?}, not {members:?}"
        ));
    }
    let targets: BTreeSet<_> = domain.targets.keys().copied().collect();
    if domain.records != targets {
        let records = &domain.records;
        return Err(format!(
            "processes find {records:?} in {key:?}, not {targets:?}"
        ));
    }
    Ok(())
}
