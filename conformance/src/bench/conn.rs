//! A connection of a case, and the events at the peer's end.

use std::{
    net::IpAddr,
    time::{Duration, Instant},
};

use rocade_wire::{Mtu, Opcode, Operation, Psn, Qpn, Rkey, Service};

use super::{Bench, Link, skip};
use crate::{
    PacketBuilder, Peer, PeerQp, QpSpec,
    case::{CaseError, CaseResult, equal, fail},
    peer::{Buffer, Completion, Event, Region, Rights, State, Status, WindowBind, Work},
    rig::Received,
};

/// Returns the packet of an RC operation, with only a BTH.
pub(super) fn rc_packet(operation: Operation, dest_qp: Qpn, psn: Psn) -> PacketBuilder {
    // RC has every operation that the suite sends. CNP would become a reserved opcode.
    let opcode = Opcode::of(Service::Rc, operation).unwrap_or_else(|| Opcode::new(0x1f));
    PacketBuilder::new(opcode, dest_qp, psn)
}

/// A connection between the rig and a queue pair of the peer.
///
/// Packets are numbered from 0 in each direction. [`Conn::psn`] and [`Conn::peer_psn`] convert
/// these numbers to PSNs.
pub struct Conn<'b> {
    bench: &'b Bench<'b>,
    link: Link,
}

impl std::fmt::Debug for Conn<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Conn")
            .field("rig_qpn", &self.link.rig_qpn)
            .field("peer_qpn", &self.link.qp.qpn())
            .finish_non_exhaustive()
    }
}

impl<'b> Conn<'b> {
    pub(super) const fn new(bench: &'b Bench<'b>, link: Link) -> Self {
        Self { bench, link }
    }

    /// Returns the device under test.
    pub(crate) fn peer(&self) -> &'b dyn Peer {
        self.bench.peer()
    }

    pub(crate) const fn rig_qpn(&self) -> Qpn {
        self.link.rig_qpn
    }

    /// Returns the PSN of the rig's request packet `index`. Packets with negative numbers are
    /// duplicates from the start.
    #[must_use]
    pub fn psn(&self, index: i32) -> Psn {
        offset(self.link.spec.rq_psn, index)
    }

    /// Returns the PSN of the peer's request packet `index`.
    #[must_use]
    pub fn peer_psn(&self, index: i32) -> Psn {
        offset(self.link.spec.sq_psn, index)
    }

    /// Returns the path MTU in bytes.
    #[must_use]
    pub fn pmtu(&self) -> usize {
        let pmtu: Mtu = self.link.spec.pmtu;
        // The path MTU is at most 4096.
        usize::try_from(pmtu.bytes()).unwrap_or(0)
    }

    /// Returns the transport service of the connection.
    #[must_use]
    pub const fn service(&self) -> Service {
        self.link.spec.of_service()
    }

    /// Returns the peer's queue pair.
    #[must_use]
    pub fn qp(&self) -> &dyn PeerQp {
        &*self.link.qp
    }

    /// Returns the peer's first region.
    #[must_use]
    pub fn region(&self) -> Region {
        self.link.qp.region(0)
    }

    /// Fails unless the peer's first region contains `expected` at `offset`.
    ///
    /// # Errors
    /// The bytes differ.
    pub fn expect_memory(&self, offset: usize, expected: &[u8]) -> CaseResult {
        let actual = self.link.qp.read_memory(0, offset, expected.len());
        match actual.iter().zip(expected).position(|(a, e)| a != e) {
            None => Ok(()),
            Some(at) => fail(format!(
                "memory at {}: {:#04x} instead of {:#04x}",
                offset + at,
                actual[at],
                expected[at]
            )),
        }
    }

    /// Sends a packet.
    ///
    /// # Errors
    /// As for [`crate::Rig::send`].
    pub fn send(&self, packet: &PacketBuilder) -> CaseResult {
        self.bench.rig().send(packet)
    }

    /// Returns the next packet that the peer sends on this connection.
    ///
    /// # Errors
    /// No packet arrives in time.
    pub fn receive(&self) -> CaseResult<Received> {
        let deadline = self.bench.patience();
        match self.bench.rig().receive(self.link.rig_qpn, deadline)? {
            Some(packet) => Ok(packet),
            None => fail("no packet from the peer"),
        }
    }

    /// Returns the next packet of this connection if it arrives within a millisecond.
    ///
    /// # Errors
    /// As for [`crate::Rig::receive`].
    pub fn poll_receive(&self) -> CaseResult<Option<Received>> {
        if self.bench.time_is_up() {
            return fail("the case takes too long");
        }
        let deadline = Instant::now() + Duration::from_millis(1);
        self.bench.rig().receive(self.link.rig_qpn, deadline)
    }

    /// Waits until the peer has processed everything sent, and fails if a packet of this connection
    /// is left.
    ///
    /// # Errors
    /// There is a packet.
    pub fn expect_silence(&self) -> CaseResult {
        self.bench.settle()?;
        match self
            .bench
            .rig()
            .receive(self.link.rig_qpn, Instant::now())?
        {
            None => Ok(()),
            Some(packet) => fail(format!("an unexpected {}", packet.headers)),
        }
    }

    /// Writes a line into the transcript.
    pub fn note(&self, text: &str) {
        self.bench.rig().note(text.to_owned());
    }

    /// Posts a receive at the peer.
    ///
    /// # Errors
    /// Skips the case if the peer cannot.
    pub fn post_recv(&self, id: u64, buffer: Buffer) -> CaseResult {
        self.note(&format!("peer posts receive {id} of {} bytes", buffer.len));
        self.link.qp.post_recv(id, buffer).map_err(skip)
    }

    /// Posts a send work request at the peer.
    ///
    /// # Errors
    /// Skips the case if the peer cannot.
    pub fn post_send(&self, work: &Work) -> CaseResult {
        self.note(&format!(
            "peer posts {} {:?}, {} bytes",
            work.id, work.op, work.buffer.len
        ));
        self.link.qp.post_send(work).map_err(skip)
    }

    /// Allocates a memory window of the peer, and returns its key.
    ///
    /// # Errors
    /// Skips the case if the peer cannot.
    pub fn window(&self) -> CaseResult<Rkey> {
        let rkey = self.link.qp.window().map_err(skip)?;
        self.note(&format!("peer has a memory window, key {rkey}"));
        Ok(rkey)
    }

    /// Allocates a type 1 memory window of the peer, and returns its key.
    ///
    /// # Errors
    /// Skips the case if the peer cannot.
    pub fn type_1_window(&self) -> CaseResult<Rkey> {
        let rkey = self.link.qp.type_1_window().map_err(skip)?;
        self.note(&format!("peer has a memory window of type 1, key {rkey}"));
        Ok(rkey)
    }

    /// Posts a bind of a type 1 memory window at the peer, and returns the new key.
    ///
    /// # Errors
    /// Skips the case if the peer cannot.
    pub fn bind_type_1(&self, id: u64, bind: &WindowBind) -> CaseResult<Rkey> {
        let rkey = self.link.qp.bind_type_1(id, bind).map_err(skip)?;
        self.note(&format!("peer posts {id} {bind:?}, new key {rkey}"));
        Ok(rkey)
    }

    /// Connects another queue pair with the protection domain, the memory and the attributes of
    /// this one. It must be dropped first.
    ///
    /// # Errors
    /// Skips the case if the peer cannot.
    pub fn sibling(&self) -> CaseResult<Self> {
        let rig = self.bench.rig();
        let spec = QpSpec {
            rig_qpn: rig.new_qpn(),
            ..self.link.spec.clone()
        };
        rig.expect(spec.rig_qpn, spec.of_service());
        let qp = self.link.qp.sibling(spec.rig_qpn).map_err(skip)?;
        let qpn = qp.qpn();
        self.note(&format!(
            "peer has another queue pair, {qpn}, beside {}",
            self.qp().qpn()
        ));
        let rig_qpn = spec.rig_qpn;
        Ok(Self::new(self.bench, Link { qp, rig_qpn, spec }))
    }

    /// Creates an indirect key of the peer.
    ///
    /// # Errors
    /// Skips the case if the peer cannot.
    pub fn indirect(&self, segments: &[Buffer], rights: Rights) -> CaseResult<Rkey> {
        let rkey = self.link.qp.indirect(segments, rights).map_err(skip)?;
        self.note(&format!(
            "peer has an indirect key, {rkey}, of {segments:?}"
        ));
        Ok(rkey)
    }

    /// Loads the path to the rig's other address as the peer's alternate path, and sets the
    /// migration state to REARM.
    ///
    /// # Errors
    /// Skips the case if the peer cannot, or if the rig has only one address.
    pub fn rearm(&self) -> CaseResult {
        let to =
            self.bench.rig().third_host().ok_or_else(|| {
                CaseError::Skipped("the rig has only one address here".to_owned())
            })?;
        self.note(&format!("peer rearms, with the path to {to}"));
        self.link.qp.rearm(to).map_err(skip)
    }

    /// Attaches the peer's queue pair to a multicast group.
    ///
    /// # Errors
    /// Skips the case if the peer cannot.
    pub fn join(&self, group: IpAddr) -> CaseResult {
        self.note(&format!("peer joins {group}"));
        self.link.qp.join(group).map_err(skip)
    }

    /// Detaches the peer's queue pair from a multicast group.
    ///
    /// # Errors
    /// Skips the case if the peer cannot.
    pub fn leave(&self, group: IpAddr) -> CaseResult {
        self.note(&format!("peer leaves {group}"));
        self.link.qp.leave(group).map_err(skip)
    }

    /// Arms the limit of the peer's shared receive queue.
    ///
    /// # Errors
    /// Skips the case if the peer cannot.
    pub fn limit(&self, limit: u32) -> CaseResult {
        self.note(&format!(
            "peer arms the limit of its shared queue at {limit}"
        ));
        self.link.qp.limit(limit).map_err(skip)
    }

    /// Resets the peer's queue pair, and brings it to RTS with the same attributes.
    ///
    /// # Errors
    /// Skips the case if the peer cannot.
    pub fn reset(&self) -> CaseResult {
        self.note("peer resets the queue pair, and moves it to RTS");
        self.link.qp.reset().map_err(skip)
    }

    /// Moves the peer's queue pair to SQD, and asks for the event SQ_DRAINED or not.
    ///
    /// # Errors
    /// Skips the case if the peer cannot.
    pub fn drain(&self, notify: bool) -> CaseResult {
        self.note("peer moves the queue pair to SQD");
        self.link.qp.drain(notify).map_err(skip)
    }

    /// Moves the peer's queue pair from SQD or SQE to RTS.
    ///
    /// # Errors
    /// Skips the case if the peer cannot.
    pub fn resume(&self) -> CaseResult {
        self.note("peer moves the queue pair back to RTS");
        self.link.qp.resume().map_err(skip)
    }

    /// Destroys the peer's queue pair, but not its other resources.
    ///
    /// # Errors
    /// Skips the case if the peer cannot.
    pub fn destroy(&self) -> CaseResult {
        self.note("peer destroys the queue pair");
        self.link.qp.destroy().map_err(skip)
    }

    /// Deregisters a region of the peer.
    ///
    /// # Errors
    /// Skips the case if the peer cannot.
    pub fn deregister(&self, region: usize) -> CaseResult {
        self.note(&format!("peer deregisters region {region}"));
        self.link.qp.deregister(region).map_err(skip)
    }

    /// Moves the peer's queue pair to ERR.
    ///
    /// # Errors
    /// Skips the case if the peer cannot.
    pub fn to_error(&self) -> CaseResult {
        self.note("peer moves the queue pair to ERR");
        self.link.qp.to_error().map_err(skip)
    }

    /// Returns the next completion at the peer.
    ///
    /// # Errors
    /// No completion arrives in time.
    pub fn completion(&self) -> CaseResult<Completion> {
        let completion = self.wait("no completion at the peer", |qp| qp.poll_completion())?;
        self.note(&format!("peer completes {completion:?}"));
        Ok(completion)
    }

    /// Fails unless the next completion at the peer has this ID and status.
    ///
    /// # Errors
    /// Another completion, or none.
    pub fn expect_completion(&self, id: u64, status: Status) -> CaseResult<Completion> {
        let completion = self.completion()?;
        equal(
            (completion.id, completion.status),
            (id, status),
            "completion",
        )?;
        Ok(completion)
    }

    /// Fails unless the next completion has this identifier and one of these statuses.
    ///
    /// # Errors
    /// Another completion, or none.
    pub fn expect_completion_of(&self, id: u64, statuses: &[Status]) -> CaseResult<Completion> {
        let completion = self.completion()?;
        equal(completion.id, id, "completion")?;
        if statuses.contains(&completion.status) {
            return Ok(completion);
        }
        fail(format!(
            "status: {:?} instead of one of {statuses:?}",
            completion.status
        ))
    }

    /// Waits until the peer has processed everything sent, and fails if it has a completion.
    ///
    /// # Errors
    /// There is a completion.
    pub fn expect_no_completion(&self) -> CaseResult {
        self.bench.settle()?;
        match self.link.qp.poll_completion() {
            None => Ok(()),
            Some(completion) => fail(format!("an unexpected {completion:?}")),
        }
    }

    /// Fails unless this is the next asynchronous event of the queue pair.
    ///
    /// # Errors
    /// Another event, or none.
    pub fn expect_event(&self, expected: Event) -> CaseResult {
        let event = self.wait("no asynchronous event at the peer", |qp| qp.poll_event())?;
        equal(event, expected, "asynchronous event")
    }

    /// Fails unless this is one of the events, and there is only one like it. Skips the case if
    /// there is no event, but `all` completions.
    ///
    /// # Errors
    /// Other events, or none.
    pub(crate) fn expect_event_of(&self, expected: Event, all: u64) -> CaseResult {
        self.bench.settle()?;
        let events = std::iter::from_fn(|| self.link.qp.poll_event());
        let events: Vec<_> = events.collect();
        if events.is_empty() {
            let completions = std::iter::from_fn(|| self.link.qp.poll_completion());
            if completions.count() as u64 == all {
                let why = "the completion queue has more entries than were asked for";
                return Err(CaseError::Skipped(why.to_owned()));
            }
            return fail("completions were lost without an event");
        }
        let count = events.iter().filter(|event| **event == expected).count();
        equal(count, 1, &format!("{expected:?} in {events:?}"))
    }

    /// Waits until the peer has processed everything sent, and fails if the queue pair has an
    /// asynchronous event.
    ///
    /// # Errors
    /// There is an event.
    pub fn expect_no_event(&self) -> CaseResult {
        self.bench.settle()?;
        match self.link.qp.poll_event() {
            None => Ok(()),
            Some(event) => fail(format!("an unexpected event {event:?}")),
        }
    }

    /// Waits until the queue pair is in this state.
    ///
    /// # Errors
    /// The queue pair does not reach the state in time.
    pub fn expect_state(&self, state: State) -> CaseResult {
        self.wait(&format!("the queue pair is not in {state:?}"), |qp| {
            (qp.state() == state).then_some(())
        })
    }

    fn wait<T>(&self, otherwise: &str, poll: impl Fn(&dyn PeerQp) -> Option<T>) -> CaseResult<T> {
        let deadline = self.bench.patience();
        loop {
            if let Some(value) = poll(self.qp()) {
                return Ok(value);
            }
            if Instant::now() >= deadline {
                return fail(otherwise);
            }
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}

fn offset(first: Psn, index: i32) -> Psn {
    if index < 0 {
        first.sub(index.unsigned_abs())
    } else {
        first.add(index.unsigned_abs())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_wrap_both_ways() {
        let first = Psn::new(0x00ff_fffe);
        assert_eq!(offset(first, 3), Psn::new(1));
        assert_eq!(offset(Psn::new(1), -3), first);
    }
}
