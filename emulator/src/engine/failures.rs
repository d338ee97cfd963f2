//! Reports the first failure of each queue pair, with what is known of its keys, so that the
//! program can be told in words.

use std::net::IpAddr;
use std::sync::OnceLock;

use rocade_transport::{
    AccessError, AccessFlags, Accessor, Failure, LocalAccess, Memory, QpAttr, QpType, Sge, WcStatus,
};
use rocade_wire::{NakCode, Qpn};

use crate::memory::MemGuard;
use crate::state::{QpCore, QpInner};

/// The first failure of a queue pair.
#[derive(Debug)]
pub struct FailureReport<'a> {
    /// The queue pair.
    pub qp_num: Qpn,
    /// Its transport service.
    pub qp_type: QpType,
    /// The address of its peer, if it has a single one.
    pub peer: Option<IpAddr>,
    /// Its attributes.
    pub attr: QpAttr,
    /// The failure.
    pub failure: &'a Failure,
    /// The key that was refused, if one was.
    pub key: Option<RefusedKey>,
}

/// A key of this process that was refused, with the refused access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefusedKey {
    /// The key.
    pub key: u32,
    /// Address of the access.
    pub addr: u64,
    /// Length of the access in bytes.
    pub len: u64,
    /// The reason.
    pub error: AccessError,
    /// Address, length and rights of the memory region that has the key.
    pub region: Option<(u64, u64, AccessFlags)>,
}

static REPORTER: OnceLock<fn(&FailureReport<'_>)> = OnceLock::new();

/// Sets the function that is called for the first failure of each queue pair of this process. It
/// must not call verbs, block or panic. Only the first call has an effect.
pub fn report_failures_to(reporter: fn(&FailureReport<'_>)) {
    let _ = REPORTER.set(reporter);
}

/// Reports a failure.
#[cold]
pub(super) fn report(inner: &QpInner, core: &QpCore, mem: &MemGuard<'_>, failure: &Failure) {
    tracing::debug!(qp_num = ?inner.qp_num(), ?failure, "the queue pair has failed");
    let Some(reporter) = REPORTER.get() else {
        return;
    };
    let config = core.qp.config();
    let attr = core.qp.query();
    let is_connected = attr.ah_attr.is_global && !attr.ah_attr.dgid.is_zero();
    reporter(&FailureReport {
        qp_num: inner.qp_num(),
        qp_type: config.qp_type,
        peer: is_connected.then(|| attr.ah_attr.dgid.to_ip()),
        attr,
        failure,
        key: refused_key(mem, config.accessor(), failure),
    });
}

/// Returns the key that led to the failure.
fn refused_key(mem: &MemGuard<'_>, own: Accessor, failure: &Failure) -> Option<RefusedKey> {
    match failure {
        Failure::Send(send) if send.status == WcStatus::LocProtErr => {
            let access = if send.op.has_result() {
                LocalAccess::Write
            } else {
                LocalAccess::Read
            };
            refused_buffer(mem, own, &send.sges, access)
        }
        Failure::Send(_) => None,
        Failure::Receive(buffers) => {
            refused_buffer(mem, buffers.who, &buffers.sges, LocalAccess::Write)
        }
        Failure::Request(request) => {
            if let (WcStatus::LocProtErr, Some(buffers)) = (request.status, &request.receive) {
                return refused_buffer(mem, buffers.who, &buffers.sges, LocalAccess::Write);
            }
            let (target, access) = (request.target?, request.access()?);
            let checked = mem.check_remote(request.who, target.rkey, target.va, target.len, access);
            let error = match checked {
                Err(error) => error,
                // The key is right, so the memory must be gone.
                Ok(_) if request.nak == NakCode::RemoteAccess => AccessError::Fault,
                Ok(_) => return None,
            };
            let key = target.rkey.get();
            Some(RefusedKey {
                key,
                addr: target.va,
                len: target.len,
                error,
                region: mem.describe(key),
            })
        }
    }
}

/// Returns the buffer whose key is refused. If none is, the memory of the first is gone.
fn refused_buffer(
    mem: &MemGuard<'_>,
    who: Accessor,
    sges: &[Sge],
    access: LocalAccess,
) -> Option<RefusedKey> {
    let check = |sge: &Sge| {
        mem.check_local(who, sge.lkey, sge.addr, sge.len.into(), access)
            .err()
            .map(|error| (*sge, error))
    };
    let used = sges.iter().filter(|sge| sge.len > 0);
    let refused = used.clone().find_map(check);
    let (sge, error) = refused.or_else(|| Some((*used.clone().next()?, AccessError::Fault)))?;
    Some(RefusedKey {
        key: sge.lkey.get(),
        addr: sge.addr,
        len: sge.len.into(),
        error,
        region: mem.describe(sge.lkey.get()),
    })
}
