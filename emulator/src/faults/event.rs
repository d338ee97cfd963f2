//! Rules that raise asynchronous events, without their cause.

use std::fmt;

use super::conditions::Conditions;
use super::{RuleError, each_word};
use crate::link::fault::{rule_error, unknown};

/// The kind of object that an event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventClass {
    /// Completion queues.
    Cq,
    /// Queue pairs.
    Qp,
    /// Shared receive queues.
    Srq,
    /// Ports.
    Port,
    /// The device.
    Device,
}

/// An asynchronous event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventName {
    /// The name of the `ibv_event_type` without `IBV_EVENT_`.
    pub name: &'static str,
    /// The value of the `ibv_event_type`.
    pub code: u32,
    /// The kind of object.
    pub class: EventClass,
}

const fn event(name: &'static str, code: u32, class: EventClass) -> EventName {
    EventName { name, code, class }
}

/// The events of rdma-core (`enum ibv_event_type`).
const EVENTS: [EventName; 20] = [
    event("CQ_ERR", 0, EventClass::Cq),
    event("QP_FATAL", 1, EventClass::Qp),
    event("QP_REQ_ERR", 2, EventClass::Qp),
    event("QP_ACCESS_ERR", 3, EventClass::Qp),
    event("COMM_EST", 4, EventClass::Qp),
    event("SQ_DRAINED", 5, EventClass::Qp),
    event("PATH_MIG", 6, EventClass::Qp),
    event("PATH_MIG_ERR", 7, EventClass::Qp),
    event("DEVICE_FATAL", 8, EventClass::Device),
    event("PORT_ACTIVE", 9, EventClass::Port),
    event("PORT_ERR", 10, EventClass::Port),
    event("LID_CHANGE", 11, EventClass::Port),
    event("PKEY_CHANGE", 12, EventClass::Port),
    event("SM_CHANGE", 13, EventClass::Port),
    event("SRQ_ERR", 14, EventClass::Srq),
    event("SRQ_LIMIT_REACHED", 15, EventClass::Srq),
    event("QP_LAST_WQE_REACHED", 16, EventClass::Qp),
    event("CLIENT_REREGISTER", 17, EventClass::Port),
    event("GID_CHANGE", 18, EventClass::Port),
    event("DEVICE_SPEED_CHANGE", 20, EventClass::Port),
];

/// A rule that raises an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventRule {
    /// The event.
    pub event: EventName,
    /// The time and the objects.
    pub conditions: Conditions,
}

impl EventRule {
    /// Parses the words behind `event`.
    ///
    /// # Errors
    /// [`RuleError`] for the first invalid word, or if the type is missing.
    pub(super) fn parse(text: &str) -> Result<Self, RuleError> {
        const KEYS: [&str; 9] = [
            "type", "dev", "port", "qpn", "at", "every", "times", "p", "seed",
        ];
        let (mut found, mut conditions) = (None, Conditions::default());
        each_word(text, &KEYS, |word, key, value| {
            if key != "type" {
                return conditions.set(word, key, value).map(drop);
            }
            let plain = value.strip_prefix("IBV_EVENT_").unwrap_or(value);
            found = EVENTS.iter().find(|event| event.name == plain).copied();
            if found.is_none() {
                let names: Vec<_> = EVENTS.iter().map(|event| event.name).collect();
                return rule_error(word, unknown("event", value, &names), names.join(", "));
            }
            Ok(())
        })?;
        conditions.check(text)?;
        let Some(event) = found else {
            return rule_error(text, "the type is missing", "type=PORT_ERR");
        };
        let of_qps = matches!(event.class, EventClass::Port | EventClass::Device);
        if conditions.qpn.is_some() && of_qps {
            return rule_error(text, "the event is not about queue pairs", "no qpn=");
        }
        if conditions.port.is_some() && event.class != EventClass::Port {
            return rule_error(text, "the event is not about ports", "no port=");
        }
        Ok(Self { event, conditions })
    }
}

impl fmt::Display for EventRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "event type={}{}", self.event.name, self.conditions)
    }
}
