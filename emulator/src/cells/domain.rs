//! XRC domains: which shared receive queues belong together (XRC-01).

use std::collections::HashMap;
use std::sync::Arc;

use rocade_transport::{Completion, ReceiveDomain, SharedReceives, Srqn};

use super::srq::SrqInner;
use crate::error::VerbsError;
use crate::sync::{Mutex, RwLock};

/// The file that a domain is known by: device and inode (XRCL-04).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileId {
    /// `st_dev`.
    pub device: u64,
    /// `st_ino`.
    pub inode: u64,
}

/// Which XRC domain to open (`ibv_xrcd_init_attr`).
#[derive(Clone, Copy, Debug, Default)]
#[doc(alias = "ibv_xrcd_init_attr")]
pub struct XrcdInitAttr {
    /// That of a file, which everybody gets who names the file; `None` for one of its own.
    pub file: Option<FileId>,
    /// Make it if it is not there.
    pub create: bool,
    /// Only if it is not there.
    pub exclusive: bool,
}

/// What all openings of a domain share.
#[derive(Debug)]
pub(crate) struct Domain {
    /// The device that it is of, and the file that names it.
    key: Option<(u32, FileId)>,
    srqs: RwLock<HashMap<Srqn, Arc<SrqInner>>>,
}

/// The domains of a process that files name, and how often each is open.
#[derive(Debug, Default)]
pub(crate) struct Domains {
    named: Mutex<Vec<(Arc<Domain>, u32)>>,
}

impl Domains {
    /// One lock for check and creation.
    //= XRCL-03
    pub(crate) fn open(&self, device: u32, init: XrcdInitAttr) -> Result<Arc<Domain>, VerbsError> {
        let Some(file) = init.file else {
            //= XRCL-02
            return Ok(Arc::new(Domain::new(None)));
        };
        let key = Some((device, file));
        let mut named = self.named.lock();
        match named.iter_mut().find(|(domain, _)| domain.key == key) {
            Some(_) if init.exclusive => Err(VerbsError::InvalidArgument(
                "the file has an XRC domain already",
            )),
            Some((domain, openings)) => {
                *openings += 1;
                Ok(Arc::clone(domain))
            }
            None if init.create => {
                let domain = Arc::new(Domain::new(key));
                named.push((Arc::clone(&domain), 1));
                Ok(domain)
            }
            None => Err(VerbsError::WouldBlock),
        }
    }

    pub(crate) fn close(&self, domain: &Arc<Domain>) {
        self.named.lock().retain_mut(|(other, openings)| {
            if Arc::ptr_eq(other, domain) {
                *openings -= 1;
            }
            *openings > 0
        });
    }
}

impl Domain {
    fn new(key: Option<(u32, FileId)>) -> Self {
        Self {
            key,
            srqs: RwLock::default(),
        }
    }

    pub(crate) fn add(&self, srq: &Arc<SrqInner>) {
        self.srqs.write().insert(srq.srqn(), Arc::clone(srq));
    }

    /// Lets go of a queue that is destroyed and whose receives have all completed.
    pub(crate) fn retire(&self, srqn: Srqn) {
        let mut srqs = self.srqs.write();
        if srqs.get(&srqn).is_some_and(|srq| srq.is_over()) {
            // Dropped after the lock: it may be the last reference.
            let over = srqs.remove(&srqn);
            drop(srqs);
            drop(over);
        }
    }

    /// The queue whose receives these completions are of, destroyed or not.
    fn of(&self, srqn: Srqn) -> Option<Arc<SrqInner>> {
        self.srqs.read().get(&srqn).cloned()
    }

    /// Reserves room for completions in the CQ of a queue; returns for how many.
    pub(crate) fn reserve(&self, srqn: Srqn, count: usize) -> usize {
        self.of(srqn).map_or(count, |srq| srq.reserve(count))
    }

    /// Hands completions to the CQ of a queue; returns how many are lost.
    pub(crate) fn complete<'c>(
        &self,
        srqn: Srqn,
        run: impl Iterator<Item = &'c Completion>,
        reserved: &mut usize,
    ) -> usize {
        match self.of(srqn) {
            Some(srq) => srq.complete(run, reserved),
            // It is kept until the last of them: there is none.
            None => {
                *reserved -= run.count().min(*reserved);
                0
            }
        }
    }
}

impl ReceiveDomain for Domain {
    //= XRC-06
    fn find(&self, srqn: Srqn) -> Option<Arc<dyn SharedReceives>> {
        let srq = self.of(srqn).filter(|srq| srq.is_alive())?;
        Some(srq)
    }

    fn forget(&self, srqn: Srqn) {
        if let Some(srq) = self.of(srqn) {
            srq.forget();
        }
    }
}
