//! Memory windows.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use rocade_transport::{Bind, SendFlags, SendOp, SendWr, WindowKind};
use rocade_wire::Rkey;

use super::pd::{Pd, PdInner};
use super::qp::Qp;
use crate::cells::User;
use crate::error::VerbsError;

/// A memory window (`ibv_mw`): a key that opens a part of a region to peers, until it is bound
/// elsewhere or invalidated. With the last handle it ends.
#[derive(Clone, Debug)]
#[doc(alias = "ibv_mw")]
pub struct Mw {
    inner: Arc<MwInner>,
}

#[derive(Debug)]
struct MwInner {
    pd: Arc<PdInner>,
    kind: WindowKind,
    /// The newest; those of binds that wait for their turn count.
    rkey: AtomicU32,
    /// The one of allocation.
    first_rkey: u32,
    alive: AtomicBool,
}

impl Pd {
    /// A free memory window.
    ///
    /// # Errors
    /// [`VerbsError::NoMemory`]: out of keys.
    #[doc(alias = "ibv_alloc_mw")]
    pub fn alloc_mw(&self, kind: WindowKind) -> Result<Mw, VerbsError> {
        let pd = Arc::clone(&self.inner);
        let regions = pd.context.engine.regions();
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
    /// Its kind.
    #[must_use]
    pub fn kind(&self) -> WindowKind {
        self.inner.kind
    }

    /// Its key: that of allocation, or that of the last [`Qp::bind_mw`]. The low byte of a type 2 window's key is
    /// whatever its owner chose when binding.
    #[must_use]
    pub fn rkey(&self) -> Rkey {
        Rkey::new(self.inner.rkey.load(Ordering::Acquire))
    }

    /// Its domain.
    #[must_use]
    pub fn pd(&self) -> Pd {
        Pd {
            inner: Arc::clone(&self.inner.pd),
        }
    }

    /// Is `rkey` a key that this window can have?
    //= KEY-04
    #[must_use]
    pub fn owns(&self, rkey: Rkey) -> bool {
        rkey.get() >> 8 == self.rkey().get() >> 8
    }

    /// Ends the window; where it is bound, peers are locked out (MW-10).
    ///
    /// # Errors
    /// [`VerbsError::InvalidArgument`] if it was ended before.
    #[doc(alias = "ibv_dealloc_mw")]
    pub fn destroy(&self) -> Result<(), VerbsError> {
        if self.inner.end() {
            Ok(())
        } else {
            Err(VerbsError::InvalidArgument("deallocated already"))
        }
    }
}

impl MwInner {
    fn end(&self) -> bool {
        let first = self.alive.swap(false, Ordering::AcqRel);
        if first {
            let key = self.rkey.load(Ordering::Acquire);
            self.pd.context.engine.regions().remove_window(key);
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
    /// Posts a bind of a type 1 window, and returns its new key: of use to peers once the bind
    /// has completed, or to be sent in a later message of this QP (MW-06). The key in `bind` does not count.
    ///
    /// # Errors
    /// [`VerbsError::InvalidArgument`]: a type 2 window; [`VerbsError::Post`].
    //= MW-01
    #[doc(alias = "ibv_bind_mw")]
    pub fn bind_mw(
        &self,
        mw: &Mw,
        wr_id: u64,
        flags: SendFlags,
        bind: Bind,
    ) -> Result<Rkey, VerbsError> {
        if mw.kind() != WindowKind::Type1 {
            return Err(VerbsError::InvalidArgument("mw type"));
        }
        // The order of the keys is that of the posts.
        let mut queue = self.send_queue();
        let rkey = mw.rkey().with_next_tag();
        queue.push(&SendWr {
            wr_id,
            op: SendOp::Bind(Bind { rkey, ..bind }),
            flags,
            sges: &[],
        })?;
        mw.inner.rkey.store(rkey.get(), Ordering::Release);
        Ok(rkey)
    }
}
