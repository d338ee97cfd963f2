//! Send queues.

/// Limits of a send queue, fixed at creation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendLimits {
    pub(crate) max_wr: u32,
    pub(crate) max_sge: u32,
    pub(crate) max_inline: u32,
    pub(crate) sig_all: bool,
}

impl SendLimits {
    /// The same for one of several that share a queue, whose slots are counted elsewhere.
    pub(crate) const fn unbounded(self) -> Self {
        Self {
            max_wr: u32::MAX,
            ..self
        }
    }
}
