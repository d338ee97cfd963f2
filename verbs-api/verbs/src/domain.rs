//! Thread domains and parent domains.

use rocade_emulator::VerbsError as RawError;

use crate::device::{Context, ProtectionDomain};
use crate::error::{Result, VerbsError};

/// A thread domain: a hint that one thread at a time uses the objects made with it.
///
/// The hint changes nothing. All objects of the device are safe to share between threads, and their
/// locks are cheap without contention.
#[derive(Debug, Clone)]
#[doc(alias = "ibv_td")]
pub struct ThreadDomain {
    context: Context,
}

impl Context {
    /// Allocates a thread domain.
    ///
    /// # Errors
    /// None at present.
    #[doc(alias = "ibv_alloc_td")]
    pub fn thread_domain(&self) -> Result<ThreadDomain, VerbsError> {
        Ok(ThreadDomain {
            context: self.clone(),
        })
    }
}

impl ProtectionDomain {
    /// Creates a parent domain: a second handle on this protection domain, with an optional thread
    /// domain. Objects made through either handle belong to the same domain and work together.
    ///
    /// ```
    /// # use rocade_verbs::{AccessFlags, DeviceList, Config};
    /// # let list = DeviceList::new(Config::simulated(1))?;
    /// # let a = list.open("a")?.protection_domain()?;
    /// let of_this_thread = a.context().thread_domain()?;
    /// let parent = a.parent_domain(Some(&of_this_thread))?;
    /// let cq = a.context().completion_queue(16)?;
    /// let qp = parent.queue_pair(&cq).build()?;
    /// let memory = a.register(64, AccessFlags::LOCAL_WRITE)?;
    /// qp.post_recv(1, &[memory.sge(..)?])?;
    /// # Ok::<(), rocade_verbs::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`VerbsError`] if the thread domain belongs to another [`Context`].
    #[doc(alias = "ibv_alloc_parent_domain")]
    pub fn parent_domain(&self, thread: Option<&ThreadDomain>) -> Result<Self, VerbsError> {
        if thread.is_some_and(|thread| !self.raw().is_of(thread.context.raw())) {
            return Err(
                RawError::InvalidArgument("the thread domain belongs to another context").into(),
            );
        }
        let mut parent = self.clone();
        parent.thread = thread.cloned();
        Ok(parent)
    }

    /// Returns the thread domain, or `None` if the domain was made without one.
    #[must_use]
    pub const fn thread_domain(&self) -> Option<&ThreadDomain> {
        self.thread.as_ref()
    }
}
