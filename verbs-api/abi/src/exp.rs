//! Mirrors of Rocade's header of experimental verbs (`infiniband/verbs_exp.h`). Each of its files
//! has a module.

pub mod base;
pub mod completion;
pub mod cross_channel;
pub mod dct;
pub mod device;
pub mod qp;
pub mod send;
pub mod umr;

use crate::layout::Layout;

/// Returns all aggregates of the header, by module.
#[must_use]
pub fn layouts() -> [&'static [Layout]; 7] {
    [
        device::LAYOUTS,
        qp::LAYOUTS,
        send::LAYOUTS,
        umr::LAYOUTS,
        completion::LAYOUTS,
        cross_channel::LAYOUTS,
        dct::LAYOUTS,
    ]
}

/// Returns all enumerators of the header as (name, value).
#[must_use]
//= XST-20..21
pub fn enumerators() -> [&'static [(&'static str, u64)]; 8] {
    [
        base::ENUMERATORS,
        device::ENUMERATORS,
        qp::ENUMERATORS,
        send::ENUMERATORS,
        umr::ENUMERATORS,
        completion::ENUMERATORS,
        cross_channel::ENUMERATORS,
        dct::ENUMERATORS,
    ]
}

/// Defines constants and the table that the layout test reads.
macro_rules! constants {
    ($( $ty:ty, $doc:literal: { $( $name:ident = $value:expr ),+ $(,)? } )+) => {
        $($( #[doc = $doc] pub const $name: $ty = $value; )+)+

        /// All constants of this module, as (name, value).
        pub(crate) const ENUMERATORS: &[(&str, u64)] = &[$($( (stringify!($name), $name as u64), )+)+];
    };
}
use constants;
