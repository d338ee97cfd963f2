//! Rules that let verbs fail or last, and end or stop the process at a verb.

use std::fmt;
use std::time::Duration;

use super::conditions::Conditions;
use super::errno::Errno;
use super::{RuleError, each_word};
use crate::link::fault::{Ending, duration_ns, rule_error, unknown, write_duration};

/// Longest delay of a verb in nanoseconds.
const MAX_SLOW_NS: u64 = 3_600_000_000_000;

macro_rules! verbs {
    ($($verb:ident $name:literal,)*) => {
        /// A verb, or a call of the connection manager.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[expect(missing_docs, reason = "named as the function, see `Verb::name`")]
        pub enum Verb {
            $($verb,)*
        }

        impl Verb {
            /// All verbs.
            pub const ALL: &[Self] = &[$(Self::$verb,)*];

            /// Returns the name of the function without the prefix `ibv_` or `rdma_`.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$verb => $name,)*
                }
            }
        }
    };
}

verbs! {
    OpenDevice "open_device",
    QueryPort "query_port",
    QueryPkey "query_pkey",
    AllocPd "alloc_pd",
    DeallocPd "dealloc_pd",
    CreateCompChannel "create_comp_channel",
    CreateCq "create_cq",
    ResizeCq "resize_cq",
    ModifyCq "modify_cq",
    ReqNotifyCq "req_notify_cq",
    DestroyCq "destroy_cq",
    OpenXrcd "open_xrcd",
    CloseXrcd "close_xrcd",
    AllocDm "alloc_dm",
    FreeDm "free_dm",
    RegMr "reg_mr",
    RegDmMr "reg_dm_mr",
    AllocNullMr "alloc_null_mr",
    ReregMr "rereg_mr",
    DeregMr "dereg_mr",
    AdviseMr "advise_mr",
    AllocMw "alloc_mw",
    BindMw "bind_mw",
    DeallocMw "dealloc_mw",
    CreateAh "create_ah",
    DestroyAh "destroy_ah",
    CreateSrq "create_srq",
    ModifySrq "modify_srq",
    DestroySrq "destroy_srq",
    PostSrqRecv "post_srq_recv",
    CreateQp "create_qp",
    OpenQp "open_qp",
    ModifyQp "modify_qp",
    DestroyQp "destroy_qp",
    PostSend "post_send",
    PostRecv "post_recv",
    AttachMcast "attach_mcast",
    DetachMcast "detach_mcast",
    CreateFlow "create_flow",
    DestroyFlow "destroy_flow",
    CreateWq "create_wq",
    ModifyWq "modify_wq",
    DestroyWq "destroy_wq",
    CreateId "create_id",
    BindAddr "bind_addr",
    ResolveAddr "resolve_addr",
    ResolveRoute "resolve_route",
    Listen "listen",
    Connect "connect",
    Accept "accept",
    Reject "reject",
    Disconnect "disconnect",
    JoinMulticast "join_multicast",
}

impl Verb {
    /// Returns true if the verb succeeds although the device was removed: it destroys an object,
    /// for which the kernel makes an exception, or a provider executes it in user space.
    pub(crate) const fn outlives_device(self) -> bool {
        matches!(
            self,
            Self::DeallocPd
                | Self::ReqNotifyCq
                | Self::DestroyCq
                | Self::CloseXrcd
                | Self::FreeDm
                | Self::DeregMr
                | Self::BindMw
                | Self::DeallocMw
                | Self::DestroyAh
                | Self::DestroySrq
                | Self::PostSrqRecv
                | Self::DestroyQp
                | Self::PostSend
                | Self::PostRecv
                | Self::DestroyFlow
                | Self::DestroyWq
        )
    }

    fn from_name(name: &str) -> Option<Self> {
        let plain = name
            .strip_prefix("ibv_")
            .or_else(|| name.strip_prefix("rdma_"));
        let plain = plain.unwrap_or(name);
        Self::ALL.iter().copied().find(|verb| verb.name() == plain)
    }
}

/// The effect of a rule on a verb.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VerbEffect {
    /// Fails without any other effect.
    Fail(Errno),
    /// Lasts longer by this time in nanoseconds.
    Slow(u64),
    /// Ends or stops the process before the verb has any effect.
    End(Ending),
}

/// A rule for verbs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerbRule {
    /// The verbs. All of them if empty.
    pub verbs: Vec<Verb>,
    /// The effect.
    pub effect: VerbEffect,
    /// The calls of these verbs, the device and the QP.
    pub conditions: Conditions,
}

/// The conditions of rules for verbs.
const CONDITIONS: [&str; 9] = [
    "nth", "p", "seed", "dev", "qpn", "at", "for", "every", "times",
];

impl VerbRule {
    /// The first words of these rules.
    pub(super) const ACTIONS: [&str; 2] = ["fail", "slow"];

    /// Parses a rule whose first word is one of [`VerbRule::ACTIONS`], `kill` or `stop`.
    ///
    /// # Errors
    /// [`RuleError`] for the first invalid word, or if the verb, the error or the time is missing.
    pub(super) fn parse(text: &str) -> Result<Self, RuleError> {
        let action = text.split_whitespace().next().unwrap_or_default();
        let parameter = match action {
            "fail" => Some("errno"),
            "slow" => Some("by"),
            _ => None,
        };
        let keys: Vec<_> = ["verb"]
            .into_iter()
            .chain(parameter)
            .chain(CONDITIONS)
            .collect();
        let (mut verbs, mut effect) = (None, Ending::from_name(action).map(VerbEffect::End));
        let mut conditions = Conditions::default();
        each_word(text, &keys, |word, key, value| {
            match key {
                "verb" => verbs = Some(read_verbs(word, value)?),
                "errno" => effect = Some(VerbEffect::Fail(Errno::parse(word, value)?)),
                "by" => match duration_ns(value) {
                    Some(ns @ 1..=MAX_SLOW_NS) => effect = Some(VerbEffect::Slow(ns)),
                    _ => return rule_error(word, "it is not a duration", "1ns to 3600s, e.g. 5ms"),
                },
                _ => drop(conditions.set(word, key, value)?),
            }
            Ok(())
        })?;
        conditions.check(text)?;
        let Some(verbs) = verbs else {
            return rule_error(text, "the verb is missing", "verb=reg_mr, or verb=any");
        };
        let Some(effect) = effect else {
            return match action {
                "fail" => rule_error(text, "the error is missing", "errno=ENOMEM"),
                _ => rule_error(text, "the duration is missing", "by=5ms"),
            };
        };
        Ok(Self {
            verbs,
            effect,
            conditions,
        })
    }

    /// Returns true if the rule is for this verb.
    #[must_use]
    pub fn is_for(&self, verb: Verb) -> bool {
        self.verbs.is_empty() || self.verbs.contains(&verb)
    }
}

fn read_verbs(word: &str, value: &str) -> Result<Vec<Verb>, RuleError> {
    if value == "any" {
        return Ok(Vec::new());
    }
    let read = |name: &str| match Verb::from_name(name) {
        Some(verb) => Ok(verb),
        None => {
            let names: Vec<_> = Verb::ALL.iter().map(|verb| verb.name()).collect();
            let allowed = format!("any, {}", names.join(", "));
            rule_error(word, unknown("verb", name, &names), allowed)
        }
    };
    value.split(',').map(read).collect()
}

impl fmt::Display for VerbRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.effect {
            VerbEffect::Fail(_) => "fail",
            VerbEffect::Slow(_) => "slow",
            VerbEffect::End(ending) => ending.name(),
        })?;
        f.write_str(" verb=")?;
        if self.verbs.is_empty() {
            f.write_str("any")?;
        }
        for (index, verb) in self.verbs.iter().enumerate() {
            write!(f, "{}{}", if index == 0 { "" } else { "," }, verb.name())?;
        }
        match self.effect {
            VerbEffect::Fail(errno) => write!(f, " errno={errno}")?,
            VerbEffect::Slow(ns) => {
                f.write_str(" by=")?;
                write_duration(f, ns)?;
            }
            VerbEffect::End(_) => {}
        }
        self.conditions.fmt(f)
    }
}

/// The effects of all rules on a call.
#[derive(Clone, Debug, Default)]
pub(crate) struct VerbVerdict {
    /// Time that the call lasts in addition.
    pub(crate) slow: Duration,
    /// The first failure, and its rule.
    pub(crate) fail: Option<(Errno, String)>,
    /// The first end of the process.
    pub(crate) end: Option<Ending>,
}
