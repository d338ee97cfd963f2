//! XRC domains: which shared receive queues and target queue pairs belong together (XRC-01).

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use parking_lot::{Mutex, RwLock};
use rocade_transport::{Completion, PdTag, ReceiveDomain, SharedReceives, Srqn};
use rocade_wire::Qpn;

use super::context::ContextInner;
use super::cq::Cq;
use super::pd::{Pd, PdInner};
use super::qp::Qp;
use super::srq::{Srq, SrqInitAttr, SrqInner};
use crate::error::VerbsError;

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

/// An opened XRC domain (`ibv_xrcd`).
#[derive(Clone, Debug)]
#[doc(alias = "ibv_xrcd")]
pub struct Xrcd {
    owner: Arc<XrcdOwner>,
}

/// What all handles from one `open` share: with the last one it is closed.
#[derive(Debug)]
struct XrcdOwner {
    inner: Arc<XrcdInner>,
}

impl Drop for XrcdOwner {
    fn drop(&mut self) {
        self.inner.close();
    }
}

/// One opening of a domain.
#[derive(Debug)]
pub(crate) struct XrcdInner {
    context: Arc<ContextInner>,
    pub(super) domain: Arc<Domain>,
    /// Objects that were made or opened through it.
    pub(super) children: AtomicU32,
    open: AtomicBool,
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
    fn open(&self, device: u32, init: XrcdInitAttr) -> Result<Arc<Domain>, VerbsError> {
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

    fn close(&self, domain: &Arc<Domain>) {
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

    pub(super) fn add(&self, srq: &Arc<SrqInner>) {
        self.srqs.write().insert(srq.srqn(), Arc::clone(srq));
    }

    /// Lets go of a queue that is destroyed and whose receives have all completed.
    pub(super) fn retire(&self, srqn: Srqn) {
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
    pub(super) fn reserve(&self, srqn: Srqn, count: usize) -> usize {
        self.of(srqn).map_or(count, |srq| srq.reserve(count))
    }

    /// Hands completions to the CQ of a queue; returns how many are lost.
    pub(super) fn complete<'c>(
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

impl Xrcd {
    pub(super) fn open(context: Arc<ContextInner>, init: XrcdInitAttr) -> Result<Self, VerbsError> {
        let domain = context.engine.domains().open(context.hca.index, init)?;
        Ok(Self {
            owner: Arc::new(XrcdOwner {
                inner: Arc::new(XrcdInner {
                    context,
                    domain,
                    children: AtomicU32::new(0),
                    open: AtomicBool::new(true),
                }),
            }),
        })
    }

    pub(super) fn inner(&self) -> &Arc<XrcdInner> {
        &self.owner.inner
    }

    /// A new shared receive queue of the domain, whose receives complete in `cq` and name memory of `pd`. What
    /// initiators of the domain's targets read and write is memory of `pd` too (XRC-04).
    ///
    /// # Errors
    /// As [`Pd::create_srq`]; [`VerbsError::InvalidArgument`] if the three are not of one device.
    #[doc(alias = "ibv_create_srq_ex")]
    pub fn create_srq(&self, pd: &Pd, cq: &Cq, init: SrqInitAttr) -> Result<Srq, VerbsError> {
        Srq::of_xrcd(self, pd, cq, init)
    }

    /// A new target: a queue pair in RESET that receives for the domain's queues, and cannot send. `cookie` comes back
    /// in events.
    ///
    /// # Errors
    /// [`VerbsError::Broker`], [`VerbsError::Link`] if the process cannot join its addresses;
    /// [`VerbsError::NoMemory`] out of QP numbers.
    //= XRC-01
    #[doc(alias = "ibv_create_qp_ex")]
    pub fn create_target(&self, cookie: u64) -> Result<Qp, VerbsError> {
        let inner = self.inner();
        let nobody = Arc::new(PdInner {
            context: Arc::clone(&inner.context),
            id: NO_PD,
            children: AtomicU32::new(0),
        });
        Qp::new_target(nobody, inner, cookie)
    }

    /// Another handle on a target of the domain, with a cookie of its own. The target lives until the last one is
    /// destroyed, and its events go to all.
    ///
    /// # Errors
    /// [`VerbsError::InvalidArgument`] if there is no such target in the domain.
    //= XRC-11
    #[doc(alias = "ibv_open_qp")]
    pub fn open_target(&self, qp_num: Qpn, cookie: u64) -> Result<Qp, VerbsError> {
        Qp::open_target(self.inner(), qp_num, cookie)
    }

    /// Closes the domain; with the last opening it ends.
    ///
    /// # Errors
    /// [`VerbsError::Busy`] while there are objects that were made or opened through this handle (DST-05);
    /// [`VerbsError::InvalidArgument`] if it was closed before.
    //= DST-05
    //= XRCL-05
    #[doc(alias = "ibv_close_xrcd")]
    pub fn close(&self) -> Result<(), VerbsError> {
        let inner = self.inner();
        if inner.children.load(Ordering::Acquire) > 0 {
            return Err(VerbsError::Busy("XRC domain"));
        }
        if inner.close() {
            Ok(())
        } else {
            Err(VerbsError::InvalidArgument("closed already"))
        }
    }
}

/// The protection domain of targets: no memory is in it.
const NO_PD: PdTag = PdTag(0);

impl XrcdInner {
    pub(super) const fn context(&self) -> &Arc<ContextInner> {
        &self.context
    }

    fn close(&self) -> bool {
        let first = self.open.swap(false, Ordering::AcqRel);
        if first {
            self.context.engine.domains().close(&self.domain);
        }
        first
    }
}
