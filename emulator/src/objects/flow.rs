//! Flows: what leads frames to raw packet QPs.

use std::sync::Arc;

use super::qp::QpInner;
use crate::error::VerbsError;
use crate::raw::{FlowAttr, FlowId, RawPart};

/// A flow (`ibv_flow`). It ends with `destroy`, or with its only handle.
#[derive(Debug)]
#[doc(alias = "ibv_flow")]
pub struct Flow {
    qp: Arc<QpInner>,
    id: FlowId,
}

impl Flow {
    pub(super) fn new(qp: Arc<QpInner>, attr: FlowAttr) -> Result<Self, VerbsError> {
        let raw = Self::raw(&qp).ok_or(VerbsError::InvalidArgument("not a raw packet QP"))?;
        let id = qp.engine().add_flow(&qp, &raw.port, attr)?;
        Ok(Self { qp, id })
    }

    fn raw(qp: &QpInner) -> Option<&RawPart> {
        qp.raw().filter(|_| qp.is_alive())
    }

    /// Ends it: no frame comes by it any more.
    ///
    /// # Errors
    /// [`VerbsError::InvalidArgument`] if it has ended before.
    #[doc(alias = "ibv_destroy_flow")]
    pub fn destroy(&self) -> Result<(), VerbsError> {
        if self.end() {
            Ok(())
        } else {
            Err(VerbsError::InvalidArgument("destroyed already"))
        }
    }

    fn end(&self) -> bool {
        let engine = self.qp.engine();
        let raw = self.qp.raw();
        raw.is_some_and(|raw| engine.remove_flow(&raw.port, self.id))
    }
}

impl Drop for Flow {
    fn drop(&mut self) {
        self.end();
    }
}
