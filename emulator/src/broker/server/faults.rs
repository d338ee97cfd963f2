//! Fault rules: the current list, and its distribution to the clients.

use std::os::fd::AsFd as _;
use std::time::Duration;

use super::super::protocol::{
    FaultUpdate, FaultyProcess, MAX_RULE_LEN, NumberedRule, RefusalCode, Response, RuleForClient,
    RuleInProcess, WhichRule,
};
use super::super::sys;
use super::error::RequestRefusal;
use super::{Client, Server};
use crate::faults::{FaultRule, MAX_RULES};
use crate::journal::{Report, read_report};

/// Interval of checks whether a client that missed an update reads again.
pub(super) const TELL_AGAIN: Duration = Duration::from_millis(50);

/// The rules that apply to all clients.
#[derive(Debug)]
pub(super) struct FaultTable {
    rules: Vec<NumberedRule>,
    last_id: u32,
    /// Number of changes of the rules.
    generation: u32,
}

/// The fault rules of one client.
#[derive(Debug, Default)]
pub(super) struct ClientFaults {
    /// The rules that the client was started with, and their indexes.
    own: Vec<(u8, NumberedRule)>,
    /// Generation of the list that the client was last sent, 0 for none.
    sent_generation: u32,
}

impl FaultTable {
    pub(super) const fn new() -> Self {
        Self {
            rules: Vec::new(),
            last_id: 0,
            generation: 1,
        }
    }

    fn number(&mut self, text: String) -> NumberedRule {
        self.last_id += 1;
        let id = self.last_id;
        NumberedRule { id, text }
    }

    /// Registers a client with its own rules. If no rules apply to a new client, it needs no
    /// update.
    pub(super) fn register(&mut self, faults: Vec<String>, is_new: bool) -> ClientFaults {
        let own: Vec<_> = (0..)
            .zip(faults)
            .filter(|(_, text)| !text.is_empty())
            .map(|(index, text)| (index, self.number(text)))
            .collect();
        let knows_all = is_new && own.is_empty() && self.rules.is_empty();
        ClientFaults {
            sent_generation: if knows_all { self.generation } else { 0 },
            own,
        }
    }

    fn changed(&mut self) {
        // Never 0, which means that no list was sent.
        self.generation = self.generation.checked_add(1).unwrap_or(1);
    }

    fn update_for(&self, client: &ClientFaults) -> FaultUpdate {
        let own = client.own.iter().map(|(index, rule)| RuleForClient {
            id: rule.id,
            which: WhichRule::Own(*index),
        });
        let others = self.rules.iter().map(|rule| RuleForClient {
            id: rule.id,
            which: WhichRule::Text(rule.text.clone()),
        });
        FaultUpdate {
            generation: self.generation,
            rules: own.chain(others).take(MAX_RULES).collect(),
        }
    }
}

impl Client {
    /// Returns true if the client needs an update.
    pub(super) fn is_outdated(&self, table: &FaultTable) -> bool {
        self.slot.is_some() && !self.gone && self.faults.sent_generation != table.generation
    }

    fn report(&self) -> Report {
        let journal = self
            .registered_journal
            .as_ref()
            .map(|registered_journal| registered_journal.journal());
        journal.map(read_report).unwrap_or_default()
    }

    fn faulty_process(&self, table: &FaultTable) -> Option<FaultyProcess> {
        let report = self.report();
        let rule = |rule: &NumberedRule, own| RuleInProcess {
            rule: rule.clone(),
            own,
            hits: (report.hits.iter())
                .find(|(id, _)| *id == rule.id)
                .map_or(0, |(_, hits)| *hits),
        };
        let own = self.faults.own.iter().map(|(_, of)| rule(of, true));
        let others = table.rules.iter().map(|of| rule(of, false));
        let never_told = report.generation == 0 && self.faults.own.is_empty();
        let knows = self.faults.sent_generation == table.generation;
        Some(FaultyProcess {
            slot: self.slot?,
            pid: self.peer.pid,
            name: self.name.clone(),
            is_up_to_date: knows
                && (never_told && table.rules.is_empty() || report.generation == table.generation),
            rules: own.chain(others).take(MAX_RULES).collect(),
        })
    }
}

impl Server {
    pub(super) fn add_fault(&mut self, text: &str) -> Result<Response, RequestRefusal> {
        let rule = FaultRule::parse(text)
            .map_err(|error| RequestRefusal::new(RefusalCode::Malformed, error.to_string()))?;
        let text = rule.to_string();
        if text.len() > MAX_RULE_LEN {
            let why = format!("a rule has at most {MAX_RULE_LEN} bytes");
            return Err(RequestRefusal::new(RefusalCode::Limit, why));
        }
        let own = self.clients.iter().map(|client| client.faults.own.len());
        if self.faults.rules.len() + own.max().unwrap_or(0) >= MAX_RULES {
            let why =
                format!("there are {MAX_RULES} rules already; `rocade fault clear` makes room");
            return Err(RequestRefusal::new(RefusalCode::Limit, why));
        }
        let rule = self.faults.number(text);
        let id = rule.id;
        tracing::info!(%rule, "added a fault rule");
        self.faults.rules.push(rule);
        self.faults.changed();
        self.send_fault_updates();
        Ok(Response::FaultAdded(id))
    }

    pub(super) fn clear_faults(&mut self, id: Option<u32>) -> Response {
        let goes = |rule: &NumberedRule| id.is_none_or(|id| id == rule.id);
        let mut count = self.faults.rules.extract_if(.., |rule| goes(rule)).count();
        for client in &mut self.clients {
            count += client
                .faults
                .own
                .extract_if(.., |(_, rule)| goes(rule))
                .count();
        }
        if count > 0 {
            self.faults.changed();
            self.send_fault_updates();
        }
        Response::FaultsCleared(u16::try_from(count).unwrap_or(u16::MAX))
    }

    pub(super) fn fault_rules(&self) -> Response {
        Response::FaultRules(self.faults.rules.clone())
    }

    pub(super) fn faults_from(&self, slot: u8) -> Response {
        let clients = self.clients.iter().filter(|client| !client.gone);
        let with_slot = clients.filter_map(|client| Some((client.slot?, client)));
        let next = with_slot
            .filter(|(own, _)| own.get() >= slot)
            .min_by_key(|(own, _)| *own);
        Response::FaultsOf(next.and_then(|(_, client)| client.faulty_process(&self.faults)))
    }

    /// Sends the rules to all outdated clients, except those with unread messages, which get them
    /// later.
    pub(super) fn send_fault_updates(&mut self) {
        for index in 0..self.clients.len() {
            let client = &self.clients[index];
            if client.is_outdated(&self.faults) && !sys::has_unread(client.connection.as_fd()) {
                self.send_fault_update(index);
            }
        }
    }

    /// Sends the rules to a client unless it is up to date. A new client gets its rules before its
    /// first packet.
    pub(super) fn send_fault_update(&mut self, index: usize) {
        let (client, table) = (&mut self.clients[index], &self.faults);
        if client.is_outdated(table) {
            let update = Response::FaultUpdate(table.update_for(&client.faults));
            if client.try_send(&update, &[]).is_ok() {
                client.faults.sent_generation = table.generation;
            }
        }
    }
}
