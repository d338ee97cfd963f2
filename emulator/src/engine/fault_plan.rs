//! The execution of fault rules at their times.

use std::sync::{Arc, Weak};

use super::{Faults, Nic, ack_durability};
use crate::config::BrokerMode;
use crate::faults::{Conditions, DueFault, EventClass, EventRule, FaultRule, Phase, Subject};
use crate::journal::{AckJournal, FaultJournal};
use crate::notice;
use crate::state::{AsyncEventKind, AsyncEvents, EventElement};

/// The line above the report that a process prints when it exits.
const REPORT_HEADING: &str = "times are in seconds since the first device was opened";

impl Faults {
    /// Keeps the report of the rules in the journal, which the broker has.
    pub(super) fn keep_fault_report(&self, ack_journal: &Arc<AckJournal>) {
        if let Some(keeper) = FaultJournal::new(Arc::clone(ack_journal)) {
            self.plan.tally().keep_in(keeper);
        }
    }
}

impl Nic {
    /// Starts the clock of the fault rules when the first device is opened.
    pub(crate) fn begin_faults(self: &Arc<Self>, events: &Arc<AsyncEvents>) {
        let mut opened = self.tables.opened.lock();
        opened.retain(|other| other.strong_count() > 0);
        opened.push(Arc::downgrade(events));
        drop(opened);
        self.faults.plan.begin(self.host.now());
        if !self.faults.plan.own_rules().is_empty() {
            self.begin_fault_report();
        }
        // Rules for the beginning are in force before the program uses the device.
        self.execute_due_faults();
        if events.hca().is_removed() {
            // The rule began before the device was in the list.
            events.remove();
        }
        if self.faults.plan.next_due().is_some() {
            if let Err(error) = self.start_background() {
                tracing::warn!("failed to start a thread, fault rules may come late: {error}");
            }
            self.scheduler.wake_background();
        }
    }

    /// Lets the process tell what its rules have done, even if it makes no QP.
    fn begin_fault_report(self: &Arc<Self>) {
        ack_durability::release_at_exit(self);
        if matches!(self.host.broker_mode, BrokerMode::Auto(_))
            && let Err(error) = self.with_attachment(|_| ())
        {
            // The first QP tries again, and tells.
            tracing::debug!(%error, "failed to reach the broker, which keeps no report");
        }
    }

    /// Tells what the rules have done, when the process exits.
    pub(super) fn tell_faults_at_exit(&self) {
        if let Some(ack_journal) = self.presence.ack_journal.get() {
            ack_journal.note_exit();
        }
        if let Some(report) = self.faults.plan.tally().report_at_exit() {
            let mut text = REPORT_HEADING.to_owned();
            for line in report.to_string().lines() {
                text.push('\n');
                text.push_str(line);
            }
            notice::tell_faults(text);
        }
    }

    /// Installs the rules that apply at present.
    pub(super) fn refresh_faults(&self) {
        // Otherwise an older state of the plan might be installed after a newer one.
        let _turn = self.faults.refreshing.lock();
        let rules = self.faults.plan.trigger_rules();
        self.refresh_devices(&rules);
        self.replace_triggers(rules);
        self.links.hooks.set_rules(self.faults.plan.packet_rules());
    }

    /// Executes the rules that are due.
    pub(super) fn execute_due_faults(&self) {
        let mut any = false;
        while let Some(due) = self.faults.plan.take_due(self.host.now()) {
            any = true;
            self.execute(&due);
        }
        if any {
            self.refresh_faults();
        }
    }

    fn execute(&self, due: &DueFault) {
        match (&due.rule, due.phase) {
            (FaultRule::Event(rule), Phase::Begin) => self.raise_by_rule(due, rule),
            (FaultRule::Process(rule), Phase::Begin) => {
                let subject = Subject::Other("process".to_owned());
                self.faults
                    .plan
                    .tally()
                    .hit(due.key, self.host.now(), subject);
                self.links.hooks.flush();
                rule.ending.execute();
            }
            (FaultRule::Device(rule), Phase::Begin) => self.note_device_rule(due, rule),
            _ => {}
        }
    }

    fn raise_by_rule(&self, due: &DueFault, rule: &EventRule) {
        let Some(kind) = AsyncEventKind::from_code(rule.event.code) else {
            return;
        };
        let class = rule.event.class;
        match class {
            EventClass::Port | EventClass::Device => self.raise_of_devices(due, rule, kind),
            EventClass::Qp | EventClass::Cq | EventClass::Srq => {
                let qps: Vec<_> = self.tables.qps.read().iter().cloned().collect();
                for qp in qps {
                    if !selects(&rule.conditions, &qp) {
                        continue;
                    }
                    match class {
                        EventClass::Cq => qp.raise_of_cqs(kind),
                        EventClass::Srq => qp.raise_of_srq(kind),
                        _ => qp.raise_kind(kind),
                    }
                    let subject = Subject::Qp(qp.qp_num());
                    self.faults
                        .plan
                        .tally()
                        .hit(due.key, self.host.now(), subject);
                }
            }
        }
    }

    fn raise_of_devices(&self, due: &DueFault, rule: &EventRule, kind: AsyncEventKind) {
        let opened: Vec<_> = self
            .tables
            .opened
            .lock()
            .iter()
            .filter_map(Weak::upgrade)
            .collect();
        for events in opened {
            let (hca, conditions) = (events.hca(), &rule.conditions);
            let name = &hca.config.name;
            let tally = |port| {
                let subject = Subject::Device(name.clone(), port);
                self.faults
                    .plan
                    .tally()
                    .hit(due.key, self.host.now(), subject);
            };
            if rule.event.class == EventClass::Device {
                if conditions.select(name, None) {
                    events.raise_of_port(kind, EventElement::Device);
                    tally(None);
                }
                continue;
            }
            for port in hca
                .ports()
                .filter(|port| conditions.select(name, Some(port.number)))
            {
                events.raise_of_port(kind, EventElement::Port(port.number));
                tally(Some(port.number));
            }
        }
    }
}

fn selects(conditions: &Conditions, qp: &crate::state::QpInner) -> bool {
    conditions.select(&qp.hca().config.name, None)
        && conditions.qpn.is_none_or(|qpn| qpn == qp.qp_num())
}
