//! Dispatches packets from any link to the QPs: parses them, checks them and handles them.
//!
//! A link delivers packets in runs. For each packet it tells whether the ICRC is right, and whether
//! a QP accepts packets from this link. Consecutive packets of one QP are handled under one lock.

use crate::sync::MutexGuard;
use rocade_transport::{PacketMeta, Time, TransmitTrigger};
use rocade_wire::{FastPathPacket, ICRC_LEN, Packet, Qpn};

use super::Nic;
use super::cx::Cx;
use crate::faults::HookPoint;
use crate::link::Inbound;
use crate::link::packet_hooks::Ingress;
use crate::memory::MemGuard;
use crate::state::{QpCore, QpInner, QpTable, TxState};
use crate::trace;

/// The source of packets.
pub(super) trait Origin {
    /// Returns true if the ICRC is right. `sealed` returns the bytes that the ICRC covers, and the
    /// ICRC.
    //= ICRC-11
    fn is_intact<'p>(&mut self, sealed: impl FnOnce() -> (&'p [u8], [u8; ICRC_LEN])) -> bool;

    /// Returns true if a QP accepts packets from this source.
    fn is_accepted(&self, tx: &mut TxState) -> bool;

    /// The source of a packet that was checked, for packets that are delayed.
    fn ingress(&self) -> Ingress;
}

/// The outcome for a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Disposition {
    /// Its QP has handled it.
    Delivered,
    /// The packet is malformed.
    Malformed,
    /// The ICRC is wrong.
    BadIcrc,
    /// There is no such QP.
    UnknownQp(Qpn),
    /// The QP does not accept packets from this link.
    WrongLink,
    /// Its XRC target is owned by another process, or has to be handed over for this packet.
    OwnedElsewhere,
}

/// The time at which the outputs of a QP are flushed after its packets.
pub(super) enum Flush<'v> {
    /// With the next packet for another QP, or at the end of the batch.
    Now,
    /// Later, with those of all QPs on this list.
    Later(&'v mut Vec<Qpn>),
}

/// The locked QP that handles the current packets.
struct Locked<'a> {
    inner: &'a QpInner,
    core: MutexGuard<'a, QpCore>,
    /// A rule may withhold receives from the packets.
    may_withhold: bool,
}

impl Locked<'_> {
    /// The slow path, for any packet.
    fn handle(&mut self, now: Time, meta: &PacketMeta, packet: &Packet<'_>, mem: &MemGuard<'_>) {
        self.core.qp.handle_packet(now, meta, packet, mem);
        self.inner.note_violations(&mut self.core);
    }
}

/// Hands packets to QPs. Lock order: QP table, regions, QP, CQ.
pub(super) struct Dispatch<'e> {
    pub(super) engine: &'e Nic,
    /// Captures or fault rules are active.
    hooked: bool,
    /// Packets are traced.
    traced: bool,
    qps: &'e QpTable,
    cx: Cx<'e>,
    current: Option<Locked<'e>>,
    flush: Flush<'e>,
    /// Number of packets that QPs have handled, and of their bytes.
    pub(super) packets: u64,
    pub(super) bytes: usize,
    /// The packets and bytes that were counted for their QPs.
    noted: (u64, usize),
}

impl<'e> Dispatch<'e> {
    pub(super) fn new(engine: &'e Nic, qps: &'e QpTable, cx: Cx<'e>, flush: Flush<'e>) -> Self {
        Self {
            engine,
            hooked: engine.links.hooks.is_active(),
            traced: trace::is_on(),
            qps,
            cx,
            current: None,
            flush,
            packets: 0,
            bytes: 0,
            noted: (0, 0),
        }
    }

    /// Copies the payloads of the next packets to their places. `packets` begins with the next one,
    /// and their ICRCs are right.
    #[cold]
    pub(super) fn place_ahead<'p>(
        &mut self,
        meta: &PacketMeta,
        mut packets: impl Iterator<Item = FastPathPacket<'p>>,
        is_accepted: impl FnOnce(&mut TxState) -> bool,
    ) {
        if self.engine.links.hooks.is_active() {
            return;
        }
        let Some(first) = packets.next() else {
            return;
        };
        let now = self.cx.now;
        let Some(locked) = self.switch_to(first.bth().dest_qp) else {
            return;
        };
        if !is_accepted(&mut locked.core.tx) {
            return;
        }
        let mut placements = Vec::new();
        let packets = std::iter::once(first).chain(packets);
        let place = |placement| placements.push(placement);
        locked.core.qp.placements(now, meta, packets, place);
        self.cx.mem.place_ahead(&placements);
    }

    /// Handles one packet.
    #[inline(always)]
    pub(super) fn packet<'p>(
        &mut self,
        meta: &PacketMeta,
        packet: impl Inbound<'p>,
        origin: &mut impl Origin,
    ) -> Disposition {
        if self.traced
            && let Some(bytes) = packet
                .first_bytes()
                .filter(|bytes| !trace::is_middle(bytes[0]))
        {
            trace::received(&bytes, meta.destination, packet.len());
        }
        if self.hooked {
            return self.hooked_packet(meta, packet, origin);
        }
        self.deliver(meta, packet, origin)
    }

    /// Like [`Self::packet`], after traces, captures and fault rules.
    #[inline(always)]
    pub(super) fn deliver<'p>(
        &mut self,
        meta: &PacketMeta,
        packet: impl Inbound<'p>,
        origin: &mut impl Origin,
    ) -> Disposition {
        let Some(fast) = packet.fast_path() else {
            return self.any_packet(meta, packet, origin);
        };
        if !origin.is_intact(|| (fast.covered(), fast.icrc_bytes())) {
            return Disposition::BadIcrc;
        }
        let Cx { now, mem, .. } = self.cx;
        let dest = fast.bth().dest_qp;
        let locked = match self.lock_receiver(dest, origin) {
            Ok(locked) => locked,
            Err(disposition) => return disposition,
        };
        let taken = locked.core.qp.handle_fast(now, meta, &fast, mem);
        if !taken {
            // Not the expected packet: take the slow path.
            let Ok(packet) = packet.whole() else {
                return Disposition::Malformed;
            };
            locked.handle(now, meta, &packet, mem);
        }
        self.packets += 1;
        self.bytes += packet.len();
        Disposition::Delivered
    }

    /// Handles a packet that needs the slow path.
    fn any_packet<'p>(
        &mut self,
        meta: &PacketMeta,
        bytes: impl Inbound<'p>,
        origin: &mut impl Origin,
    ) -> Disposition {
        let Ok(packet) = bytes.whole() else {
            return Disposition::Malformed;
        };
        if !origin.is_intact(|| (packet.covered(), packet.icrc_bytes())) {
            return Disposition::BadIcrc;
        }
        let Cx { now, mem, .. } = self.cx;
        let dest = packet.bth().dest_qp;
        let locked = match self.lock_receiver(dest, origin) {
            Ok(locked) => locked,
            Err(disposition) => return disposition,
        };
        locked.handle(now, meta, &packet, mem);
        if locked.inner.ownership().is_some() && locked.core.qp.take_misrouted() {
            // Packets behind it wait too.
            locked.core.tx.set_rx_paused(true);
            return Disposition::OwnedElsewhere;
        }
        self.packets += 1;
        self.bytes += bytes.len();
        Disposition::Delivered
    }

    /// Hands a packet with a right ICRC to several QPs. The outcome at one does not affect the
    /// others. `is_own` tells whether its source is an address of this device.
    //= MC-08
    #[cold]
    pub(super) fn deliver_to_members<'p>(
        &mut self,
        meta: &PacketMeta,
        bytes: impl Inbound<'p>,
        members: &[Qpn],
        is_own: bool,
    ) {
        let Ok(packet) = bytes.whole() else {
            return;
        };
        let Cx { now, mem, .. } = self.cx;
        for &member in members {
            if let Some(locked) = self.switch_to(member) {
                //= MC-07
                let deth = packet.headers().deth;
                let by_itself = is_own && deth.is_some_and(|deth| deth.src_qp == member);
                if by_itself && locked.core.tx.rejects_own() {
                    continue;
                }
                locked.handle(now, meta, &packet, mem);
                locked.core.qp.note_received(1, bytes.len());
            }
        }
        self.packets += 1;
        self.bytes += bytes.len();
        self.noted.0 += 1;
        self.noted.1 += bytes.len();
    }

    /// Locks the QP of the next packet, if it accepts packets from this source.
    #[inline]
    fn lock_receiver(
        &mut self,
        dest: Qpn,
        origin: &mut impl Origin,
    ) -> Result<&mut Locked<'e>, Disposition> {
        let locked = self.switch_to(dest);
        let locked = locked.ok_or(Disposition::UnknownQp(dest))?;
        if origin.is_accepted(&mut locked.core.tx) {
            Ok(locked)
        } else if locked.core.tx.is_rx_paused() {
            Err(Disposition::OwnedElsewhere)
        } else {
            Err(Disposition::WrongLink)
        }
    }

    /// Locks the QP of the next packet.
    #[inline(always)]
    fn switch_to(&mut self, dest: Qpn) -> Option<&mut Locked<'e>> {
        let stays = |locked: &Locked<'_>| locked.inner.qp_num() == dest;
        if !self.current.as_ref().is_some_and(stays) {
            self.lock_qp(dest);
        }
        self.current.as_mut()
    }

    /// Unlocks the QP of the last packet, and locks another one.
    fn lock_qp(&mut self, dest: Qpn) {
        self.flush_locked();
        self.current = self.qps.get(dest).map(|inner| Locked {
            inner,
            core: inner.lock(),
            may_withhold: false,
        });
        if self.engine.faults.triggers.await_any(HookPoint::Received)
            && let Some(locked) = &mut self.current
        {
            locked.may_withhold = true;
            self.engine
                .faults
                .withhold_receives(locked.inner, &mut locked.core);
        }
        if let Some(Locked { inner, .. }) = &self.current
            && let Some(ownership) = inner.ownership()
        {
            ownership.mark_incomplete();
        }
    }

    /// Unlocks the QP of the last packet, after its outputs were flushed or it was put on the list.
    pub(super) fn flush_locked(&mut self) {
        let Some(locked) = self.current.take() else {
            return;
        };
        let (inner, mut core) = (locked.inner, locked.core);
        let (packets, bytes) = self.noted;
        core.qp
            .note_received(self.packets - packets, self.bytes - bytes);
        self.noted = (self.packets, self.bytes);
        if locked.may_withhold {
            self.engine.note_withheld(inner, &mut core);
        }
        match &mut self.flush {
            Flush::Now => {
                let trigger = trigger_of(&core);
                self.engine
                    .flush_outputs(inner, &mut core, trigger, self.cx);
            }
            Flush::Later(qps) => {
                let qpn = inner.qp_num();
                if !qps.contains(&qpn) {
                    qps.push(qpn);
                }
            }
        }
    }

    /// Returns true if the last packet of an unreliable QP has completed a receive. The sender does
    /// not know and would not retransmit a message without a receive, so the application should get
    /// the chance to post some.
    pub(super) fn uses_up_receives(&self) -> bool {
        self.current()
            .is_some_and(|(_, core)| !core.qp.is_reliable() && core.qp.completions_waiting() > 0)
    }

    /// The QP of the last packet, unless it was unlocked.
    pub(super) fn current(&self) -> Option<(&'e QpInner, &QpCore)> {
        let current = self.current.as_ref();
        current.map(|locked| (locked.inner, &*locked.core))
    }
}

/// Returns the transmit trigger of a QP that has just received.
pub(super) fn trigger_of(core: &QpCore) -> TransmitTrigger {
    if core.qp.receives_message() {
        TransmitTrigger::ReceivedPart
    } else {
        TransmitTrigger::Received
    }
}
