//! From any link to the QPs: the one way that packets are read, checked and handed over.
//!
//! A link brings packets in runs, and says of each what nobody else knows: whether its ICRC is right, and
//! whether a QP listens to it. Consecutive packets of one QP are handled under one lock.

use parking_lot::MutexGuard;
use rocade_transport::{Cause, PacketMeta, Time};
use rocade_wire::{ICRC_LEN, Packet, Qpn};

use super::EngineInner;
use crate::cells::{Driver, QpCore, QpInner, QpTable, TxState};
use crate::link::Inbound;
use crate::link::tap::Via;
use crate::memory::MemGuard;

/// Where a packet comes from.
pub(super) trait Origin {
    /// Is the ICRC right? `sealed` tells what it covers, and the ICRC.
    //= ICRC-11
    fn is_intact<'p>(&mut self, sealed: impl FnOnce() -> (&'p [u8], [u8; ICRC_LEN])) -> bool;

    /// Does a QP listen to packets from there?
    fn is_heard(&self, tx: &mut TxState) -> bool;

    /// The same for a packet that has been checked, to be kept.
    fn via(&self) -> Via;
}

/// What has become of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Its QP has it.
    Taken,
    /// It is no packet.
    Malformed,
    /// It is damaged.
    BadIcrc,
    /// There is no such QP.
    UnknownQp(Qpn),
    /// The QP does not listen there.
    WrongLink,
    /// It is a target that is in another process now, or has to go there for this packet.
    Elsewhere,
}

/// A QP that is being handed packets.
struct Locked<'a> {
    inner: &'a QpInner,
    core: MutexGuard<'a, QpCore>,
}

impl Locked<'_> {
    /// The general way, for any packet.
    fn handle(&mut self, now: Time, meta: &PacketMeta, packet: &Packet<'_>, mem: &MemGuard<'_>) {
        self.core.qp.handle_packet(now, meta, packet, mem);
        self.inner.note_violations(&mut self.core);
    }
}

/// Hands packets to QPs. Lock order: QP table, regions, QP, CQ.
pub(super) struct Dispatch<'e> {
    pub(super) engine: &'e EngineInner,
    /// Packets are captured, or something happens to them.
    tapped: bool,
    qps: &'e QpTable,
    mem: &'e MemGuard<'e>,
    pub(super) now: Time,
    driver: Driver,
    current: Option<Locked<'e>>,
    /// Packets that QPs have got, and their bytes.
    pub(super) packets: u64,
    pub(super) bytes: usize,
}

impl<'e> Dispatch<'e> {
    pub(super) fn new(
        engine: &'e EngineInner,
        qps: &'e QpTable,
        mem: &'e MemGuard<'e>,
        now: Time,
        driver: Driver,
    ) -> Self {
        Self {
            engine,
            tapped: engine.tap.is_on(),
            qps,
            mem,
            now,
            driver,
            current: None,
            packets: 0,
            bytes: 0,
        }
    }

    /// Hands over one packet. A QP that is left for another one is drained, or where there is a list put on
    /// it.
    #[inline(always)]
    pub(super) fn packet<'p>(
        &mut self,
        meta: &PacketMeta,
        packet: impl Inbound<'p>,
        origin: &mut impl Origin,
        later: Option<&mut Vec<Qpn>>,
    ) -> Verdict {
        if self.tapped {
            return self.tapped_packet(meta, packet, origin, later);
        }
        self.hand_over(meta, packet, origin, later)
    }

    /// Likewise, when nothing can happen to it any more.
    #[inline(always)]
    pub(super) fn hand_over<'p>(
        &mut self,
        meta: &PacketMeta,
        packet: impl Inbound<'p>,
        origin: &mut impl Origin,
        later: Option<&mut Vec<Qpn>>,
    ) -> Verdict {
        let Some(short) = packet.short() else {
            return self.any_packet(meta, packet, origin, later);
        };
        if !origin.is_intact(|| (short.covered(), short.icrc_bytes())) {
            return Verdict::BadIcrc;
        }
        let (now, mem) = (self.now, self.mem);
        let dest = short.bth().dest_qp;
        let locked = match self.listener(dest, origin, later) {
            Ok(locked) => locked,
            Err(verdict) => return verdict,
        };
        let taken = locked.core.qp.handle_short(now, meta, &short, mem);
        if !taken {
            // Not what was expected next: that is for the general way.
            let Ok(packet) = packet.whole() else {
                return Verdict::Malformed;
            };
            locked.handle(now, meta, &packet, mem);
        }
        self.packets += 1;
        self.bytes += packet.len();
        Verdict::Taken
    }

    /// One that has to be read as a whole.
    fn any_packet<'p>(
        &mut self,
        meta: &PacketMeta,
        bytes: impl Inbound<'p>,
        origin: &mut impl Origin,
        later: Option<&mut Vec<Qpn>>,
    ) -> Verdict {
        let Ok(packet) = bytes.whole() else {
            return Verdict::Malformed;
        };
        if !origin.is_intact(|| (packet.covered(), packet.icrc_bytes())) {
            return Verdict::BadIcrc;
        }
        let (now, mem) = (self.now, self.mem);
        let dest = packet.bth().dest_qp;
        let locked = match self.listener(dest, origin, later) {
            Ok(locked) => locked,
            Err(verdict) => return verdict,
        };
        locked.handle(now, meta, &packet, mem);
        if locked.inner.travel().is_some() && locked.core.qp.take_stray() {
            // What comes behind it waits too.
            locked.core.tx.set_deaf(true);
            return Verdict::Elsewhere;
        }
        self.packets += 1;
        self.bytes += bytes.len();
        Verdict::Taken
    }

    /// Hands one that is intact to several QPs: what becomes of it at one does not matter to the others.
    /// `is_own` tells whether it has been sent from an address of theirs.
    //= MC-08
    #[cold]
    pub(super) fn hand_to<'p>(
        &mut self,
        meta: &PacketMeta,
        bytes: impl Inbound<'p>,
        (members, is_own): (&[Qpn], bool),
        mut later: Option<&mut Vec<Qpn>>,
    ) {
        let Ok(packet) = bytes.whole() else {
            return;
        };
        let (now, mem) = (self.now, self.mem);
        for &member in members {
            if let Some(locked) = self.switch_to(member, later.as_deref_mut()) {
                //= MC-07
                let deth = packet.headers().deth;
                let by_itself = is_own && deth.is_some_and(|deth| deth.src_qp == member);
                if by_itself && locked.core.tx.hears_only_others() {
                    continue;
                }
                locked.handle(now, meta, &packet, mem);
            }
        }
        self.packets += 1;
        self.bytes += bytes.len();
    }

    /// The QP of the next packet, locked, where it listens to where that comes from.
    #[inline]
    fn listener(
        &mut self,
        dest: Qpn,
        origin: &mut impl Origin,
        later: Option<&mut Vec<Qpn>>,
    ) -> Result<&mut Locked<'e>, Verdict> {
        let locked = self.switch_to(dest, later);
        let locked = locked.ok_or(Verdict::UnknownQp(dest))?;
        if origin.is_heard(&mut locked.core.tx) {
            Ok(locked)
        } else if locked.core.tx.is_deaf() {
            Err(Verdict::Elsewhere)
        } else {
            Err(Verdict::WrongLink)
        }
    }

    /// The QP of the next packet, locked.
    #[inline(always)]
    fn switch_to(&mut self, dest: Qpn, later: Option<&mut Vec<Qpn>>) -> Option<&mut Locked<'e>> {
        let stays = |locked: &Locked<'_>| locked.inner.qp_num() == dest;
        if !self.current.as_ref().is_some_and(stays) {
            self.turn_to(dest, later);
        }
        self.current.as_mut()
    }

    /// Lets go of the QP that had the last packet, and locks another one.
    fn turn_to(&mut self, dest: Qpn, later: Option<&mut Vec<Qpn>>) {
        self.let_go(later);
        self.current = self.qps.get(dest).map(|inner| Locked {
            inner,
            core: inner.lock(),
        });
        if let Some(Locked { inner, .. }) = &self.current
            && let Some(travel) = inner.travel()
        {
            travel.begin();
        }
    }

    /// Lets go of the QP that had the last packet.
    pub(super) fn let_go(&mut self, later: Option<&mut Vec<Qpn>>) {
        let Some(Locked { inner, mut core }) = self.current.take() else {
            return;
        };
        match later {
            None => {
                let cause = cause_of(&core);
                let Self { engine, mem, .. } = self;
                engine.drain(inner, &mut core, mem, cause, self.now, self.driver);
            }
            Some(later) => {
                let qpn = inner.qp_num();
                if !later.contains(&qpn) {
                    later.push(qpn);
                }
            }
        }
    }

    /// Has the last packet used up a receive, which its sender cannot know? Nobody would send the message again
    /// for which there is none: the application may want to post some.
    pub(super) fn uses_up_receives(&self) -> bool {
        self.current()
            .is_some_and(|(_, core)| !core.qp.is_reliable() && core.qp.completions_waiting() > 0)
    }

    /// The QP that had the last packet, unless it was let go.
    pub(super) fn current(&self) -> Option<(&'e QpInner, &QpCore)> {
        let current = self.current.as_ref();
        current.map(|locked| (locked.inner, &*locked.core))
    }
}

/// What a QP has just received.
pub(super) fn cause_of(core: &QpCore) -> Cause {
    if core.qp.receives_message() {
        Cause::ReceivedPart
    } else {
        Cause::Received
    }
}
