//! Rules that lower limits of a device.

use std::fmt;

use super::conditions::Conditions;
use super::{RuleError, each_word};
use crate::link::fault::{bytes, rule_error};

macro_rules! limits {
    ($($limit:ident $name:literal,)*) => {
        /// A limit of a device, with the name that `ibv_device_attr` gives it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        #[expect(missing_docs, reason = "named as the attribute, see `Limit::name`")]
        pub enum Limit {
            $($limit,)*
        }

        impl Limit {
            /// All limits.
            pub const ALL: &[Self] = &[$(Self::$limit,)*];

            /// Returns the name of the attribute.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$limit => $name,)*
                }
            }
        }
    };
}

limits! {
    MaxQp "max_qp",
    MaxQpWr "max_qp_wr",
    MaxSge "max_sge",
    MaxCq "max_cq",
    MaxCqe "max_cqe",
    MaxMr "max_mr",
    MaxMrSize "max_mr_size",
    MaxPd "max_pd",
    MaxSrq "max_srq",
    MaxSrqWr "max_srq_wr",
    Memlock "memlock",
}

/// A rule that lowers limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitRule {
    /// The limits, and their new values in objects, entries or bytes.
    pub limits: Vec<(Limit, u64)>,
    /// The time and the device.
    pub conditions: Conditions,
}

/// The conditions of these rules.
const CONDITIONS: [&str; 5] = ["dev", "at", "for", "every", "times"];

impl LimitRule {
    /// Parses the words behind `limit`.
    ///
    /// # Errors
    /// [`RuleError`] for the first invalid word, or if there is no limit.
    pub(super) fn parse(text: &str) -> Result<Self, RuleError> {
        let names = Limit::ALL.iter().map(|limit| limit.name());
        let keys: Vec<_> = names.chain(CONDITIONS).collect();
        let (mut limits, mut conditions) = (Vec::new(), Conditions::default());
        each_word(text, &keys, |word, key, value| {
            let Some(limit) = Limit::ALL.iter().find(|limit| limit.name() == key) else {
                return conditions.set(word, key, value).map(drop);
            };
            match bytes(value) {
                Some(value) => limits.push((*limit, value)),
                None => return rule_error(word, "it is not a number", "a number, e.g. 4 or 64K"),
            }
            Ok(())
        })?;
        conditions.check(text)?;
        if limits.is_empty() {
            let names: Vec<_> = Limit::ALL.iter().map(|limit| limit.name()).collect();
            return rule_error(text, "the limit is missing", names.join("=.., ") + "=..");
        }
        Ok(Self { limits, conditions })
    }
}

impl fmt::Display for LimitRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("limit")?;
        for (limit, value) in &self.limits {
            write!(f, " {}={value}", limit.name())?;
        }
        self.conditions.fmt(f)
    }
}
