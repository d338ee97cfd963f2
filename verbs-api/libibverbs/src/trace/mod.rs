//! Traced verbs, for `rocade trace`.
//!
//! Exported verbs are those of [`calls`], which call the real ones. Inline verbs call through the
//! function tables of a context, in which [`ops::install`] puts traced functions if the process is
//! traced as the context is opened. So data-path verbs cost nothing without a trace.

mod attr;
pub(crate) mod calls;
pub(crate) mod data;
pub(crate) mod dv;
pub(crate) mod exp;
pub(crate) mod exp_data;
mod exp_show;
mod ibv;
pub(crate) mod ops;
mod others;
pub(crate) mod remote;
mod show;
pub(crate) mod sink;
mod table;

pub(crate) use show::access as access_names;
