//! Send queues.

/// Limits of a send queue, fixed at creation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendLimits {
    pub(crate) max_wr: u32,
    pub(crate) max_sge: u32,
    pub(crate) max_inline: u32,
    pub(crate) sig_all: bool,
}
