//! Fault rules for devices and ports: applies those that are in force, and raises what has changed.
//! The removal of a device is in `removal.rs`.

use std::sync::{Arc, Weak};

use rocade_wire::Pkey;

use super::{Nic, Tables};
use crate::faults::{DeviceFault, DeviceRule, DueFault, FaultRule, OpenRule, Subject};
use crate::hca::{Hca, Port};
use crate::link::packet_hooks::Blocked;
use crate::state::{AsyncEventKind, AsyncEvents, EventElement};

/// The events and the blocked addresses that follow from the rules in force.
#[derive(Default)]
struct Outcome {
    events: Vec<(Arc<Hca>, u8, AsyncEventKind)>,
    blocked: Vec<Blocked>,
    /// The devices that are removed now, or are back.
    removals: Vec<(Arc<Hca>, bool)>,
}

/// Returns the first rule in force that removes the device.
fn removal_of<'r>(hca: &Hca, rules: &'r [OpenRule]) -> Option<&'r DeviceRule> {
    in_force(rules).find(|rule| {
        rule.fault == DeviceFault::Remove && rule.conditions.select(&hca.config.name, None)
    })
}

/// Returns all addresses of a port, blocked for this reason.
fn block_port(port: &Port, why: &str) -> Vec<Blocked> {
    let gids = port.gids();
    let addresses = gids.iter().filter(|entry| !entry.gid.is_zero());
    let addresses = addresses.map(|entry| entry.gid.to_ip());
    let addresses = addresses.chain(port.config.addrs.iter().copied());
    let block = |address| Blocked {
        address,
        why: why.to_owned(),
    };
    addresses.map(block).collect()
}

/// Returns the rules for devices among those that are in force.
fn in_force(rules: &[OpenRule]) -> impl Iterator<Item = &DeviceRule> + Clone {
    rules.iter().filter_map(|rule| match &rule.rule {
        FaultRule::Device(device) if rule.is_open => Some(device),
        _ => None,
    })
}

impl Tables {
    /// Returns the events of those who have opened a device.
    pub(super) fn opened_contexts(&self, hca: &Arc<Hca>) -> Vec<Arc<AsyncEvents>> {
        let opened = self.opened.lock();
        let all = opened.iter().filter_map(Weak::upgrade);
        all.filter(|events| Arc::ptr_eq(events.hca(), hca))
            .collect()
    }

    /// Changes the P_Key table of a device. Its queue pairs use the new keys, because they name
    /// them by index.
    fn refresh_pkeys(&self, hca: &Arc<Hca>, rules: &[OpenRule], outcome: &mut Outcome) {
        let changes: Vec<_> = in_force(rules)
            .filter(|rule| rule.conditions.select(&hca.config.name, None))
            .filter_map(|rule| match rule.fault {
                DeviceFault::Pkey(index, pkey) => Some((index, pkey)),
                _ => None,
            })
            .collect();
        if !hca.override_pkeys(&changes) {
            return;
        }
        let qps: Vec<_> = self.qps.read().iter().cloned().collect();
        for qp in qps.iter().filter(|qp| std::ptr::eq(qp.hca(), &**hca)) {
            let pkey = |index| hca.pkey(index).unwrap_or(Pkey::DEFAULT);
            qp.lock().qp.select_pkeys(pkey);
        }
        for port in hca.ports() {
            let event = (Arc::clone(hca), port.number, AsyncEventKind::PkeyChange);
            outcome.events.push(event);
        }
    }
}

impl Nic {
    /// Records that a rule for devices has begun, for each device or port that it selects.
    pub(super) fn note_device_rule(&self, due: &DueFault, rule: &DeviceRule) {
        let of_ports = !rule.fault.is_of_device();
        for hca in &self.host.hcas {
            let name = &hca.config.name;
            let ports = hca.ports().map(|port| Some(port.number));
            let subjects: Vec<_> = if of_ports {
                ports.collect()
            } else {
                vec![None]
            };
            for port in subjects {
                if rule.conditions.select(name, port) {
                    let subject = Subject::Device(name.clone(), port);
                    self.faults
                        .plan
                        .tally()
                        .hit(due.key, self.host.now(), subject);
                }
            }
        }
    }

    /// Applies the rules for devices that are in force, and raises an event for each change.
    pub(super) fn refresh_devices(&self, rules: &[OpenRule]) {
        if !rules
            .iter()
            .any(|rule| matches!(rule.rule, FaultRule::Device(_)))
            && !self.links.hooks.has_blocked()
            && !self.host.hcas.iter().any(|hca| hca.is_overridden())
        {
            return;
        }
        let mut outcome = Outcome::default();
        for hca in &self.host.hcas {
            let rule = removal_of(hca, rules);
            outcome.blocked.extend(rule.iter().flat_map(|rule| {
                let why = rule.to_string();
                hca.ports().flat_map(move |port| block_port(port, &why))
            }));
            if hca.set_removed(rule.is_some()) {
                outcome.removals.push((Arc::clone(hca), rule.is_some()));
            }
            self.tables.refresh_pkeys(hca, rules, &mut outcome);
            for port in hca.ports() {
                refresh_port(hca, port, rules, &mut outcome);
            }
        }
        if outcome.removals.iter().any(|(_, is_removed)| !is_removed) {
            // A QP that was being made at the removal, before packets pass again.
            self.detach_removed();
        }
        // A port that is down loses packets before it says so, and one that is up has none to lose.
        self.links.hooks.block(outcome.blocked);
        for (hca, is_removed) in &outcome.removals {
            tracing::info!(device = hca.config.name, is_removed, "by a fault rule");
            if *is_removed {
                self.remove_device(hca);
            }
        }
        for (hca, port, kind) in &outcome.events {
            let name = &hca.config.name;
            tracing::info!(
                device = name,
                port,
                ?kind,
                "a fault rule has changed a port"
            );
            for events in self.tables.opened_contexts(hca) {
                events.raise_of_port(*kind, EventElement::Port(*port));
            }
        }
        if !outcome.events.is_empty() || !outcome.removals.is_empty() {
            self.observers.publisher.note_network();
            self.scheduler.wake_background();
        }
    }
}

/// Applies the rules in force to a port.
fn refresh_port(hca: &Arc<Hca>, port: &Port, rules: &[OpenRule], outcome: &mut Outcome) {
    let mine = || {
        in_force(rules).filter(|rule| rule.conditions.select(&hca.config.name, Some(port.number)))
    };
    let mut raise = |kind| outcome.events.push((Arc::clone(hca), port.number, kind));

    let edits = mine().filter_map(|rule| match rule.fault {
        DeviceFault::Gid(edit) => Some(edit),
        _ => None,
    });
    //= AEV-08
    if port.edit_gids(edits.collect()) {
        raise(AsyncEventKind::GidChange);
    }
    let speed = mine().find_map(|rule| match rule.fault {
        DeviceFault::Speed(gbit) => Some(gbit),
        _ => None,
    });
    if port.set_gbit(speed) {
        raise(AsyncEventKind::DeviceSpeedChange);
    }
    let down = mine().find(|rule| rule.fault == DeviceFault::PortDown);
    if port.hold_down(down.is_some()) {
        raise(if down.is_some() {
            AsyncEventKind::PortErr
        } else {
            AsyncEventKind::PortActive
        });
    }
    let block = |address, why: String| Blocked { address, why };
    if let Some(rule) = down {
        outcome.blocked.extend(block_port(port, &rule.to_string()));
    }
    let gone = port.taken_addresses().into_iter();
    let gone = gone.map(|address| block(address, format!("{address} is no GID by a fault rule")));
    outcome.blocked.extend(gone);
}
