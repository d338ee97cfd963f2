//! Thread domains and parent domains.

use rocade_emulator::VerbsError;

use crate::device::{Context, ProtectionDomain};
use crate::error::Result;

/// Says that what is made with it is used by one thread at a time.
///
/// The promise costs nothing to give, and nothing breaks where it is not kept: the objects of this device
/// are safe to share, with locks that are cheap as long as nobody else wants them.
#[derive(Debug, Clone)]
#[doc(alias = "ibv_td")]
pub struct ThreadDomain {
    context: Context,
}

impl Context {
    /// A new thread domain.
    ///
    /// # Errors
    /// None so far.
    #[doc(alias = "ibv_alloc_td")]
    pub fn thread_domain(&self) -> Result<ThreadDomain> {
        Ok(ThreadDomain {
            context: self.clone(),
        })
    }
}

impl ProtectionDomain {
    /// A second handle on this domain, and maybe a thread domain with it: what is made by either belongs to the same
    /// domain and can be used together.
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
    /// [`Error::Verbs`](crate::Error::Verbs) for a thread domain of another opening of the device.
    #[doc(alias = "ibv_alloc_parent_domain")]
    pub fn parent_domain(&self, thread: Option<&ThreadDomain>) -> Result<Self> {
        if thread.is_some_and(|thread| !self.raw().is_of(thread.context.raw())) {
            return Err(VerbsError::InvalidArgument("td").into());
        }
        let mut parent = self.clone();
        parent.thread = thread.cloned();
        Ok(parent)
    }

    /// The thread domain of a parent domain that has one.
    #[must_use]
    pub const fn thread_domain(&self) -> Option<&ThreadDomain> {
        self.thread.as_ref()
    }
}
