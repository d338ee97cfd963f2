//! Fault rules that wait for an occasion, where it occurs: a verb, a completion, a packet of a QP,
//! an object beyond a limit.

use std::thread;

use rocade_transport::{QpCap, Time};
use rocade_wire::{Packet, Qpn};

use super::{Faults, Nic};
use crate::error::VerbsError;
use crate::faults::{HookPoint, Limit, Verb};
use crate::hca::{DeviceAttr, Hca};
use crate::link::Segments;
use crate::state::{QpCore, QpInner};

/// Time between two looks at an ACK that waits for space.
const UNSAFE_ACK_NS: u64 = 1_000_000;

/// Bytes of a page, in which locked memory is counted.
const PAGE: u64 = 4096;

impl Faults {
    /// Forgets the bytes that a QP has sent.
    pub(crate) fn forget_sent(&self, qpn: Qpn) {
        self.triggers.forget(qpn);
    }

    /// Returns the limit of a device: `usual`, or less if a rule demands.
    pub(crate) fn lowered(&self, hca: &Hca, limit: Limit, usual: u64) -> u64 {
        let lowered = self.triggers.limit(&hca.config.name, limit);
        lowered.map_or(usual, |lowered| lowered.min(usual))
    }

    /// Lowers the attributes of a device as rules demand.
    pub(crate) fn lower_limits(&self, hca: &Hca, attr: &mut DeviceAttr) {
        let lower32 = |value: &mut u32, limit| {
            *value = u32::try_from(self.lowered(hca, limit, u64::from(*value))).unwrap_or(*value);
        };
        lower32(&mut attr.max_qp, Limit::MaxQp);
        lower32(&mut attr.max_qp_wr, Limit::MaxQpWr);
        lower32(&mut attr.max_sge, Limit::MaxSge);
        lower32(&mut attr.max_cq, Limit::MaxCq);
        lower32(&mut attr.max_cqe, Limit::MaxCqe);
        lower32(&mut attr.max_mr, Limit::MaxMr);
        lower32(&mut attr.max_pd, Limit::MaxPd);
        lower32(&mut attr.max_srq, Limit::MaxSrq);
        lower32(&mut attr.max_srq_wr, Limit::MaxSrqWr);
        attr.max_mr_size = self.lowered(hca, Limit::MaxMrSize, attr.max_mr_size);
    }

    /// Counts the payload of packets that a QP sends. Returns a remark for the capture if a rule
    /// lets the QP fail behind them.
    #[cold]
    pub(super) fn fails_after(
        &self,
        inner: &QpInner,
        segments: Segments<'_>,
        now: Time,
    ) -> Option<String> {
        let payload = |segment: &[u8]| match Packet::parse(segment) {
            Ok(packet) if is_request(&packet) => packet.payload().len() as u64,
            _ => 0,
        };
        let bytes = segments.map(payload).sum();
        let device = &inner.hca().config.name;
        let rule = self.triggers.on_sent(now, device, inner.qp_num(), bytes)?;
        Some(format!("its QP fails ({rule})"))
    }

    /// Lets a QP that is about to receive withhold its receives as the rules demand.
    #[cold]
    pub(super) fn withhold_receives(&self, inner: &QpInner, core: &mut QpCore) {
        let device = &inner.hca().config.name;
        let withhold = self.triggers.withholds_receives(device, inner.qp_num());
        core.qp.withhold_receives(withhold);
    }
}

impl Nic {
    /// Applies the rules for verbs before `verb` has any effect: may take its time, and may end the
    /// process. The caller holds no lock.
    ///
    /// # Errors
    /// [`VerbsError::Injected`] if a rule lets the verb fail.
    #[inline]
    pub(crate) fn intercept(
        &self,
        verb: Verb,
        device: &str,
        qpn: Option<Qpn>,
    ) -> Result<(), VerbsError> {
        if self.faults.triggers.await_any(HookPoint::Verb) {
            self.apply_to_verb(verb, device, qpn)
        } else {
            Ok(())
        }
    }

    #[cold]
    fn apply_to_verb(&self, verb: Verb, device: &str, qpn: Option<Qpn>) -> Result<(), VerbsError> {
        let verdict = self
            .faults
            .triggers
            .on_verb(self.host.now(), verb, device, qpn);
        if let Some(ending) = verdict.end {
            ending.execute();
        }
        if !verdict.slow.is_zero() {
            if self.host.is_simulated() {
                let ns = u64::try_from(verdict.slow.as_nanos()).unwrap_or(u64::MAX);
                self.host.move_to(self.host.now().plus_ns(ns));
            } else {
                // The rule asks for a call that lasts, and the caller holds no lock.
                thread::sleep(verdict.slow);
            }
        }
        match verdict.fail {
            None => Ok(()),
            Some((errno, rule)) => Err(VerbsError::Injected {
                errno: errno.code(),
                rule,
            }),
        }
    }

    /// Checks that another object does not exceed a limit that a rule has lowered.
    ///
    /// # Errors
    /// [`VerbsError::NoMemory`] if the device has as many objects already.
    pub(crate) fn check_count(&self, hca: &Hca, limit: Limit) -> Result<(), VerbsError> {
        match self.faults.triggers.limit(&hca.config.name, limit) {
            Some(most) if self.count_of(hca, limit) >= most => {
                self.refuse_by_limit(hca, limit);
                Err(VerbsError::NoMemory(limit.name()))
            }
            _ => Ok(()),
        }
    }

    /// Checks a size against a limit that a rule has lowered.
    ///
    /// # Errors
    /// [`VerbsError::InvalidArgument`] if it is above the limit.
    pub(crate) fn check_size(
        &self,
        hca: &Hca,
        limit: Limit,
        size: u64,
        what: &'static str,
    ) -> Result<(), VerbsError> {
        match self.faults.triggers.limit(&hca.config.name, limit) {
            Some(most) if size > most => {
                self.refuse_by_limit(hca, limit);
                Err(VerbsError::InvalidArgument(what))
            }
            _ => Ok(()),
        }
    }

    /// Checks the sizes of a queue pair against limits that rules have lowered.
    ///
    /// # Errors
    /// As [`Nic::check_size`].
    pub(crate) fn check_queue_sizes(&self, hca: &Hca, cap: &QpCap) -> Result<(), VerbsError> {
        for (limit, size, what) in [
            (Limit::MaxQpWr, cap.max_send_wr, "cap.max_send_wr"),
            (Limit::MaxQpWr, cap.max_recv_wr, "cap.max_recv_wr"),
            (Limit::MaxSge, cap.max_send_sge, "cap.max_send_sge"),
            (Limit::MaxSge, cap.max_recv_sge, "cap.max_recv_sge"),
        ] {
            self.check_size(hca, limit, size.into(), what)?;
        }
        Ok(())
    }

    /// Checks the registration of `len` bytes against limits that rules have lowered: the number of
    /// regions, their size, and locked memory.
    ///
    /// # Errors
    /// [`VerbsError::NoMemory`] or [`VerbsError::InvalidArgument`].
    pub(crate) fn check_registration(&self, hca: &Hca, len: usize) -> Result<(), VerbsError> {
        let len = len as u64;
        self.check_count(hca, Limit::MaxMr)?;
        self.check_size(hca, Limit::MaxMrSize, len, "length")?;
        let Some(most) = self.faults.triggers.limit(&hca.config.name, Limit::Memlock) else {
            return Ok(());
        };
        let pages = |len: u64| len.div_ceil(PAGE).saturating_mul(PAGE);
        let mem = self.tables.regions().read(self.host.now());
        let locked = mem.regions_by_key().map(|(_, region)| pages(region.len));
        if locked.fold(pages(len), u64::saturating_add) > most {
            self.refuse_by_limit(hca, Limit::Memlock);
            return Err(VerbsError::NoMemory("memlock"));
        }
        Ok(())
    }

    #[cold]
    fn refuse_by_limit(&self, hca: &Hca, limit: Limit) {
        self.faults
            .triggers
            .note_limit(self.host.now(), &hca.config.name, limit);
    }

    /// Returns the number of objects of a device that a limit counts.
    fn count_of(&self, hca: &Hca, limit: Limit) -> u64 {
        match limit {
            Limit::MaxQp => {
                let qps = self.tables.qps.read();
                let all = qps.iter();
                all.filter(|qp| std::ptr::eq(qp.hca(), hca)).count() as u64
            }
            Limit::MaxMr => {
                let domains = self.tables.inventory().domains_of(hca);
                let mem = self.tables.regions().read(self.host.now());
                let regions = mem.regions_by_key();
                regions
                    .filter(|(_, region)| domains.contains(&region.pd.0))
                    .count() as u64
            }
            Limit::MaxPd => self.tables.inventory().domains_of(hca).len() as u64,
            Limit::MaxCq => self.tables.inventory().count(hca, "cq "),
            Limit::MaxSrq => self.tables.inventory().count(hca, "srq "),
            _ => 0,
        }
    }

    /// Applies the rules for completions to the pending ones of a QP, of which the first `reserved`
    /// have space. Returns true if they stay pending for now, also because an ACK would get lost
    /// with the process.
    #[cold]
    pub(super) fn hold_completions(
        &self,
        inner: &QpInner,
        core: &mut QpCore,
        reserved: usize,
    ) -> bool {
        let now = self.host.now();
        let mut held = core.held.take();
        let considered = held.as_ref().map_or(0, |held| held.considered);
        let new = core
            .qp
            .pending_completions()
            .get(considered..)
            .unwrap_or(&[]);
        if !new.is_empty() && self.faults.triggers.await_any(HookPoint::Completion) {
            let verdict = self
                .faults
                .triggers
                .on_completions(now, &inner.hca().config.name, new);
            if let Some(index) = verdict.overrun {
                let full = new[index].to;
                inner.overrun(full);
            }
            if let Some((index, status)) = verdict.fail {
                core.qp.fail_completion(now, considered + index, status);
            }
            if verdict.hold_ns > 0 && inner.has_cqs() {
                let begun = held.get_or_insert_default();
                if begun.until == Time::default() || begun.awaits_ack {
                    begun.until = now.plus_ns(verdict.hold_ns);
                    begun.awaits_ack = false;
                }
                begun.burst = begun.burst.or(verdict.burst);
            }
        }
        let waiting = core.qp.completions_waiting();
        let is_ruled = held.as_ref().is_some_and(|held| {
            let is_burst = held.burst.is_some_and(|count| waiting >= count as usize);
            !held.awaits_ack && held.until > now && !is_burst
        });
        if waiting == 0 || !is_ruled && !core.tx.has_unsafe_ack {
            return false;
        }
        let mut held = held.unwrap_or_default();
        if !is_ruled {
            // The thread that finds space for the ACK ends the wait before.
            held.awaits_ack = true;
            held.until = now.plus_ns(UNSAFE_ACK_NS);
        }
        held.considered = waiting;
        held.reserved = reserved.min(waiting);
        core.held = Some(held);
        true
    }

    /// Records the requests that have found no receive, because a rule withholds them.
    #[cold]
    pub(super) fn note_withheld(&self, inner: &QpInner, core: &mut QpCore) {
        let count = core.qp.take_withheld();
        let device = &inner.hca().config.name;
        self.faults
            .triggers
            .note_withheld(self.host.now(), device, inner.qp_num(), count);
    }

    /// Installs the rules that apply at present.
    pub(super) fn replace_triggers(&self, rules: Vec<crate::faults::OpenRule>) {
        let withheld = self.faults.triggers.await_any(HookPoint::Received);
        self.faults.triggers.replace(rules);
        if withheld {
            // A QP whose rule has ended gets its receives back. A packet that comes meanwhile finds
            // the new rules, because they were installed before the QP was locked.
            let qps: Vec<_> = self.tables.qps.read().iter().cloned().collect();
            for qp in qps {
                self.faults.withhold_receives(&qp, &mut qp.lock());
            }
        }
    }
}

fn is_request(packet: &Packet<'_>) -> bool {
    let operation = packet.bth().opcode.operation();
    operation.is_some_and(rocade_wire::Operation::is_request)
}
