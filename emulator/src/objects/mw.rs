//! Memory windows.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use rocade_transport::{Bind, SendFlags, SendOp, SendWr, WindowKind};
use rocade_wire::Rkey;

use super::pd::{Pd, PdInner};
use super::qp::Qp;
use crate::error::VerbsError;
use crate::faults::Verb;
use crate::state::User;

/// A memory window (`ibv_mw`): a key that gives peers access to a part of a region, until it is
/// bound elsewhere or invalidated. It ends with the last handle.
#[derive(Clone, Debug)]
#[doc(alias = "ibv_mw")]
pub struct Mw {
    inner: Arc<MwInner>,
}

#[derive(Debug)]
struct MwInner {
    pd: Arc<PdInner>,
    kind: WindowKind,
    /// The newest key, including binds that are posted but not executed.
    rkey: AtomicU32,
    /// The key given at allocation.
    first_rkey: u32,
    alive: AtomicBool,
}

impl Pd {
    /// Allocates a free memory window.
    ///
    /// # Errors
    /// [`VerbsError::NoMemory`] if it is out of keys.
    #[doc(alias = "ibv_alloc_mw")]
    pub fn alloc_mw(&self, kind: WindowKind) -> Result<Mw, VerbsError> {
        self.inner.context.enter(Verb::AllocMw)?;
        let pd = Arc::clone(&self.inner);
        let regions = pd.context.engine.tables.regions();
        let rkey = regions
            .insert_window(kind, pd.id)
            .ok_or(VerbsError::NoMemory("memory keys"))?;
        pd.users.add(User::Mw(rkey));
        Ok(Mw {
            inner: Arc::new(MwInner {
                pd,
                kind,
                rkey: AtomicU32::new(rkey),
                first_rkey: rkey,
                alive: AtomicBool::new(true),
            }),
        })
    }
}

impl Mw {
    /// The kind of window.
    #[must_use]
    pub fn kind(&self) -> WindowKind {
        self.inner.kind
    }

    /// The key: that of allocation, or that of the last [`Qp::bind_mw`]. The application chooses
    /// the low byte of a type 2 window's key when it binds the window.
    #[must_use]
    pub fn rkey(&self) -> Rkey {
        Rkey::new(self.inner.rkey.load(Ordering::Acquire))
    }

    /// The protection domain.
    #[must_use]
    pub fn pd(&self) -> Pd {
        Pd {
            inner: Arc::clone(&self.inner.pd),
        }
    }

    /// Frees the window. If it is bound, peers lose access.
    ///
    /// # Errors
    /// [`VerbsError::InvalidArgument`] if it was already freed.
    #[doc(alias = "ibv_dealloc_mw")]
    pub fn destroy(&self) -> Result<(), VerbsError> {
        self.inner.pd.context.enter(Verb::DeallocMw)?;
        if self.inner.end() {
            Ok(())
        } else {
            Err(VerbsError::InvalidArgument("already deallocated"))
        }
    }
}

impl MwInner {
    fn end(&self) -> bool {
        let first = self.alive.swap(false, Ordering::AcqRel);
        if first {
            let key = self.rkey.load(Ordering::Acquire);
            self.pd.context.engine.tables.regions().remove_window(key);
            self.pd.users.remove(User::Mw(self.first_rkey));
        }
        first
    }
}

impl Drop for MwInner {
    fn drop(&mut self) {
        self.end();
    }
}

impl Qp {
    /// Posts a bind of a type 1 window, and returns its new key. Peers can use the key once the
    /// bind has completed, and a later message of this QP may contain it. The key in `bind` is
    /// ignored.
    ///
    /// # Errors
    /// [`VerbsError::InvalidArgument`] for a type 2 window. [`VerbsError::Post`].
    //= MW-01
    #[doc(alias = "ibv_bind_mw")]
    pub fn bind_mw(
        &self,
        mw: &Mw,
        wr_id: u64,
        flags: SendFlags,
        bind: Bind,
    ) -> Result<Rkey, VerbsError> {
        self.owner().enter(Verb::BindMw)?;
        if mw.kind() != WindowKind::Type1 {
            return Err(VerbsError::InvalidArgument("mw type"));
        }
        // The keys have the order of the posts.
        self.post_sends(|queue| {
            let rkey = mw.rkey().with_next_tag();
            queue.push(&SendWr {
                wr_id,
                op: SendOp::Bind(Bind { rkey, ..bind }),
                flags,
                sges: &[],
            })?;
            mw.inner.rkey.store(rkey.get(), Ordering::Release);
            Ok(rkey)
        })
    }
}
