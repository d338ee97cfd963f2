//! Flows, which steer frames to raw packet QPs.

use std::sync::Arc;

use super::qp::QpOwner;
use crate::error::VerbsError;
use crate::faults::Verb;
use crate::raw::{FlowAttr, FlowId};

/// A flow (`ibv_flow`). It ends with `destroy`, or when it is dropped.
#[derive(Debug)]
#[doc(alias = "ibv_flow")]
pub struct Flow {
    qp: Arc<QpOwner>,
    id: FlowId,
}

impl Flow {
    pub(super) fn new(qp: Arc<QpOwner>, attr: FlowAttr) -> Result<Self, VerbsError> {
        let raw = qp.inner.raw().filter(|_| qp.inner.is_alive());
        let raw = raw.ok_or(VerbsError::InvalidArgument("not a raw packet QP"))?;
        let id = qp.engine().add_flow(&qp.inner, &raw.port, attr)?;
        Ok(Self { qp, id })
    }

    /// Destroys the flow, which stops steering frames.
    ///
    /// # Errors
    /// [`VerbsError::InvalidArgument`] if it was already destroyed.
    #[doc(alias = "ibv_destroy_flow")]
    pub fn destroy(&self) -> Result<(), VerbsError> {
        self.qp.enter(Verb::DestroyFlow)?;
        if self.end() {
            Ok(())
        } else {
            Err(VerbsError::InvalidArgument("already destroyed"))
        }
    }

    fn end(&self) -> bool {
        let raw = self.qp.inner.raw();
        raw.is_some_and(|raw| self.qp.engine().remove_flow(&raw.port, self.id))
    }
}

impl Drop for Flow {
    fn drop(&mut self) {
        self.end();
    }
}
