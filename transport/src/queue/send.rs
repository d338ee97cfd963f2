//! The limits of send queues.

use crate::error::PostError;
use crate::wr::{SendOp, SendWr, total_len};

/// Limits of a send queue, fixed at creation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendLimits {
    pub(crate) max_wr: u32,
    pub(crate) max_sge: u32,
    pub(crate) max_inline: u32,
    pub(crate) sig_all: bool,
}

impl SendLimits {
    /// Returns the limits for one of several stream channels that share a queue, whose WQEs are
    /// counted elsewhere.
    pub(crate) const fn unbounded(self) -> Self {
        Self {
            max_wr: u32::MAX,
            ..self
        }
    }

    /// Checks whether a work request can be queued while `used` WQEs are in use, and returns its
    /// length in bytes. `inline` is its inline data, if any.
    #[inline]
    pub(crate) fn admit(
        &self,
        wr: &SendWr<'_>,
        inline: Option<&[u8]>,
        used: u32,
    ) -> Result<u64, PostError> {
        //= RC-WQE-03
        let is_full = used >= self.max_wr;
        if wr.op.is_common() {
            let total = match inline {
                None if wr.sges.len() > self.max_sge as usize => {
                    return Err(PostError::TooManySges);
                }
                None => total_len(wr.sges),
                Some(data) if data.len() > self.max_inline as usize => {
                    return Err(PostError::BadInline);
                }
                Some(data) => data.len() as u64,
            };
            return if is_full {
                Err(PostError::QueueFull)
            } else {
                Ok(total)
            };
        }
        let total = self.length_of(wr, inline)?;
        if is_full {
            return Err(PostError::QueueFull);
        }
        Ok(total)
    }

    /// Returns the length in bytes of a work request other than a plain SEND or WRITE.
    fn length_of(&self, wr: &SendWr<'_>, inline: Option<&[u8]>) -> Result<u64, PostError> {
        let is_atomic_write = matches!(wr.op, SendOp::AtomicWrite { .. });
        let total = match inline {
            _ if wr.op.is_local() => 0,
            None if wr.sges.len() > self.max_sge as usize => return Err(PostError::TooManySges),
            None => total_len(wr.sges),
            //= RC-WQE-06
            Some(_) if wr.op.has_result() => return Err(PostError::BadInline),
            Some(data) if data.len() > self.max_inline as usize && !is_atomic_write => {
                return Err(PostError::BadInline);
            }
            Some(data) => data.len() as u64,
        };
        //= ATM-05
        //= XAT-07
        let needed = wr.op.atomic_len().map_or(0, u64::from);
        if total < needed || is_atomic_write && total != 8 {
            return Err(PostError::AtomicBuffer);
        }
        Ok(total)
    }
}
