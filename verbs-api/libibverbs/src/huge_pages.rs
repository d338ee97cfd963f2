//! Objects in huge pages, for which programs ask an mlx5 device by its variables
//! `MLX_CQ_ALLOC_TYPE`, `MLX_QP_ALLOC_TYPE` and `MLX_SRQ_ALLOC_TYPE`.
//!
//! Rocade's objects are in ordinary memory. With `HUGE`, an object is refused as on mlx5 if this
//! process gets no huge pages. The other values need none.

use std::ffi::OsStr;

use crate::{context::ContextObject, diagnostics::Reason, dv, ffi::Errno, mapping};

/// A kind of object by the name in its variable.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    Cq,
    Qp,
    Srq,
}

impl Kind {
    const fn variable(self) -> &'static str {
        match self {
            Self::Cq => "MLX_CQ_ALLOC_TYPE",
            Self::Qp => "MLX_QP_ALLOC_TYPE",
            Self::Srq => "MLX_SRQ_ALLOC_TYPE",
        }
    }
}

/// Checks that an object of this kind can be created.
///
/// # Errors
/// `ENOMEM` if the device has an mlx5 identity, the variable is `HUGE`, and this process gets no
/// huge page.
pub(crate) fn check(context: &ContextObject, kind: Kind) -> Result<(), Errno> {
    let name = kind.variable();
    let is_asked = dv::has_identity(context) && needs_huge(std::env::var_os(name).as_deref());
    if !is_asked || mapping::has_huge_page() {
        return Ok(());
    }
    let what = format!("{name} is HUGE, and this process gets no huge pages");
    let advice = "as root, reserve some (sysctl vm.nr_hugepages=64), or set it to PREFER_HUGE";
    Err(Errno(libc::ENOMEM).because(Reason::new(what, advice)))
}

fn needs_huge(value: Option<&OsStr>) -> bool {
    value.is_some_and(|value| value == "HUGE")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_value_needs_huge_pages() {
        assert!(needs_huge(Some(OsStr::new("HUGE"))));
        for value in ["", "huge", "PREFER_HUGE", "ANON", "CONTIG", "ALL"] {
            assert!(!needs_huge(Some(OsStr::new(value))), "{value}");
        }
        assert!(!needs_huge(None));
    }
}
