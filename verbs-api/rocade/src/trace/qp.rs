//! The work requests of a queue pair, tied to their packets and completions.

use std::collections::VecDeque;

use rocade_wire::Operation;

use super::event::{Request, Timing};
use super::names::{self, Answer};

/// The most requests of a QP to remember. Without signals, or if a program never polls, the oldest
/// are forgotten.
const MAX_REQUESTS: usize = 1 << 16;
/// `IBV_SEND_SIGNALED`.
const SIGNALED: u32 = 2;

/// A request that has ended.
pub(super) type Finished = (Request, Timing);

/// A posted send and its packets.
#[derive(Debug, Clone)]
pub(super) struct Send {
    pub(super) request: Request,
    pub(super) timing: Timing,
    first_psn: Option<u32>,
    last_psn: Option<u32>,
    first_sent_ns: u64,
    /// Time of sending its newest packet.
    pub(super) sent_ns: u64,
    /// Time of receiving the answer.
    pub(super) acked_ns: Option<u64>,
    /// Time and PSN of a NAK or RNR NAK after which it was not sent again.
    refused: Option<(u64, u32)>,
}

impl Send {
    /// Returns when its answer was received, also if that has refused it.
    fn answered_ns(&self) -> Option<u64> {
        let refused = self.refused.map(|(time_ns, _)| time_ns);
        self.acked_ns.or(refused)
    }

    /// Returns the PSN of the last packet of those that its answer is about.
    fn answered_psn(&self) -> Option<u32> {
        match (self.request.opcode, self.refused) {
            // A READ is one packet, although its responses use more PSNs.
            (Some(4), _) => self.first_psn,
            (_, Some((_, psn))) if self.acked_ns.is_none() => Some(psn),
            _ => self.last_psn,
        }
    }

    /// Ends the request with a completion that is polled now.
    fn finish(self, time_ns: u64) -> Finished {
        let mut timing = self.timing;
        timing.total = time_ns.saturating_sub(timing.posted_ns);
        match self.answered_ns() {
            Some(answered_ns) => timing.poll = time_ns.saturating_sub(answered_ns),
            None if self.sent_ns != 0 => timing.answer = time_ns.saturating_sub(self.sent_ns),
            None => {}
        }
        (self.request, timing)
    }
}

/// A request that is received and not complete.
#[derive(Debug, Clone, Copy)]
struct Arrival {
    psn: u32,
    time_ns: u64,
}

/// The state of a QP.
#[derive(Debug, Clone, Default)]
pub(super) struct Qp {
    pub(super) sends: VecDeque<Send>,
    pub(super) receives: VecDeque<(u64, Request)>,
    /// All receives posted so far.
    pub(super) receives_posted: u64,
    pub(super) send_cq: u64,
    pub(super) recv_cq: u64,
    pub(super) remote_qpn: u32,
    /// The folded address of the peer.
    pub(super) remote: u64,
    /// The peer answers no request (UC, UD).
    pub(super) has_no_answers: bool,
    /// All sends are signaled, whatever their flags (`sq_sig_all`).
    pub(super) signals_all: bool,
    mtu: u32,
    /// The connections of a DC initiator, which sends datagrams to connect, then other packets,
    /// whose PSNs begin anew.
    connects: Connects,
    /// The first unused PSN.
    next_psn: Option<u32>,
    acked_psn: Option<u32>,
    /// The received messages that take a receive, and are not polled.
    arrivals: VecDeque<Arrival>,
    last_arrival: Option<u32>,
    /// The time of an RNR NAK after which nothing was sent.
    rnr_since: Option<u64>,
    nak: bool,
    /// The last packet that was sent again.
    repeated: Option<u32>,
    /// RNR NAKs received in a row, without another answer.
    pub(super) rnr_naks: u32,
    /// Retransmissions in a row, without any answer.
    pub(super) unanswered: u32,
    /// Expiries of the retransmission timer in a row, without any answer.
    timeouts: u32,
    /// RNR NAKs sent in a row.
    rnr_naks_sent: u32,
}

/// The connections of a DC initiator.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Connects {
    /// Another QP, or no packet so far.
    #[default]
    Never,
    /// The last packet was to connect.
    Now,
    /// The last packet was of a connection.
    Before,
}

/// Returns true if the event of this number in a row is told. A message without a receive is
/// refused a hundred times a second.
const fn is_told(number: u32) -> bool {
    number <= 4 || number.is_power_of_two()
}

/// Returns the number of an event in a row, if it is not the first.
fn counted(number: u32) -> String {
    match number {
        0 | 1 => String::new(),
        number => format!(" ({number} in a row)"),
    }
}

/// Returns how far PSN `a` is behind `b`, negative if it is before.
fn behind(a: u32, b: u32) -> i32 {
    let distance = a.wrapping_sub(b) & 0xff_ffff;
    let distance = i32::try_from(distance).unwrap_or(0);
    if distance < 1 << 23 {
        distance
    } else {
        distance - (1 << 24)
    }
}

impl Qp {
    pub(super) fn set_mtu(&mut self, code: u32) {
        self.mtu = 128u32.checked_shl(code).unwrap_or(0);
    }

    pub(super) fn post_send(&mut self, time_ns: u64, request: Request) {
        let timing = Timing {
            posted_ns: time_ns,
            ..Timing::default()
        };
        self.sends.push_back(Send {
            request,
            timing,
            first_psn: None,
            last_psn: None,
            first_sent_ns: 0,
            sent_ns: 0,
            acked_ns: None,
            refused: None,
        });
        if self.sends.len() > MAX_REQUESTS {
            self.sends.pop_front();
        }
    }

    pub(super) fn post_receive(&mut self, time_ns: u64, request: Request) {
        self.receives_posted += 1;
        self.receives.push_back((time_ns, request));
        if self.receives.len() > MAX_REQUESTS {
            self.receives.pop_front();
        }
    }

    /// Forgets the last requests of a post that has failed.
    pub(super) fn withdraw(&mut self, is_send: bool, count: usize) {
        if is_send {
            self.sends.truncate(self.sends.len().saturating_sub(count));
        } else {
            let rest = self.receives.len().saturating_sub(count);
            self.receives_posted -= (self.receives.len() - rest) as u64;
            self.receives.truncate(rest);
        }
    }

    /// The packets that are sent and not acknowledged.
    pub(super) fn window(&self) -> u32 {
        match (self.next_psn, self.acked_psn) {
            (Some(next), Some(acked)) => {
                u32::try_from(behind(next, acked).saturating_sub(1)).unwrap_or(0)
            }
            _ => 0,
        }
    }

    /// Notes a request packet of a DC initiator. Returns false if it only connects, and so belongs
    /// to no work request.
    pub(super) fn is_of_request(&mut self, is_datagram: bool) -> bool {
        if is_datagram {
            // The datagrams of another QP are its requests.
            self.connects = match self.connects {
                Connects::Never => return true,
                _ => Connects::Now,
            };
            return false;
        }
        if self.connects != Connects::Before {
            self.connects = Connects::Before;
            (self.next_psn, self.acked_psn) = (None, None);
            let unacked = self.sends.iter_mut().filter(|send| send.acked_ns.is_none());
            unacked.for_each(|send| (send.first_psn, send.last_psn) = (None, None));
        }
        true
    }

    /// Notes a request packet that the QP sends. Returns the cause if it was sent before.
    pub(super) fn sent(&mut self, time_ns: u64, psn: u32, operation: Operation) -> Option<String> {
        let is_new = self.next_psn.is_none_or(|next| behind(psn, next) >= 0);
        if !is_new {
            return self.sent_again(time_ns, psn);
        }
        self.repeated = None;
        self.next_psn = Some(psn.wrapping_add(1) & 0xff_ffff);
        if self.acked_psn.is_none() {
            self.acked_psn = Some(psn.wrapping_sub(1) & 0xff_ffff);
        }
        let begins = operation.is_first() || operation.is_only();
        let unsent = |send: &&mut Send| {
            send.first_psn.is_none() && send.request.opcode.is_some_and(names::has_packets)
        };
        if begins {
            let mtu = self.mtu;
            if let Some(send) = self.sends.iter_mut().find(unsent) {
                send.first_psn = Some(psn);
                send.first_sent_ns = time_ns;
                send.sent_ns = time_ns;
                send.timing.queue = time_ns.saturating_sub(send.timing.posted_ns);
                let packets = match operation {
                    Operation::ReadRequest if mtu > 0 => send.request.len.div_ceil(mtu).max(1),
                    _ => 1,
                };
                let last = psn.wrapping_add(packets - 1) & 0xff_ffff;
                if operation.is_only() {
                    send.last_psn = Some(last);
                    self.next_psn = Some(last.wrapping_add(1) & 0xff_ffff);
                }
            }
        } else if let Some(send) = self
            .sends
            .iter_mut()
            .rev()
            .find(|send| send.first_psn.is_some())
        {
            send.last_psn = Some(psn);
            send.sent_ns = time_ns;
            send.timing.send = time_ns.saturating_sub(send.first_sent_ns);
        }
        None
    }

    fn sent_again(&mut self, time_ns: u64, psn: u32) -> Option<String> {
        let is_begin = self.repeated.is_none_or(|last| behind(psn, last) <= 0);
        self.repeated = Some(psn);
        let rnr = self.rnr_since.take();
        let is_nak = std::mem::take(&mut self.nak);
        let mut waited = 0;
        for send in &mut self.sends {
            let (Some(first), None) = (send.first_psn, send.acked_ns) else {
                continue;
            };
            let after = send.last_psn.is_none_or(|last| behind(last, psn) >= 0);
            if !is_begin || !after {
                continue;
            }
            let since = rnr.unwrap_or(send.sent_ns);
            let wait = time_ns.saturating_sub(since);
            if rnr.is_some() {
                send.timing.rnr += wait;
            } else {
                send.timing.retransmission += wait;
                send.timing.retransmissions += 1;
            }
            send.sent_ns = time_ns;
            (send.refused, send.timing.wire) = (None, None);
            if behind(psn, first) >= 0 {
                waited = wait;
            }
        }
        if !is_begin || rnr.is_some() && !is_told(self.rnr_naks) {
            return None;
        }
        let waited = names::duration(waited);
        Some(match (rnr, is_nak) {
            (Some(_), _) => format!("sent again {waited} after the RNR NAK"),
            (None, true) => format!("sent again after the NAK ({waited})"),
            (None, false) => {
                self.unanswered += 1;
                format!("sent again: no answer for {waited}")
            }
        })
    }

    /// Notes that the retransmission timer has expired. Returns words about it.
    pub(super) fn timed_out(&mut self, time_ns: u64) -> String {
        self.timeouts += 1;
        let sent = |send: &&Send| send.first_psn.is_some() && send.acked_ns.is_none();
        let oldest = self.sends.iter().find(sent);
        let what = match (self.acked_psn, oldest) {
            (Some(acked), Some(oldest)) => {
                let psn = acked.wrapping_add(1) & 0xff_ffff;
                let waited = names::duration(time_ns.saturating_sub(oldest.sent_ns));
                format!("no answer to PSN {psn:#x} for {waited}")
            }
            _ => "no answer".to_owned(),
        };
        format!("timeout: {what}{}", counted(self.timeouts))
    }

    /// Notes a response. Returns its words if it is no good news.
    pub(super) fn answered(
        &mut self,
        time_ns: u64,
        psn: u32,
        operation: Operation,
        aeth: u32,
    ) -> Option<String> {
        (self.unanswered, self.timeouts) = (0, 0);
        let answer = match operation {
            Operation::Acknowledge => names::answer(aeth),
            _ => Answer::Ack,
        };
        let acked = match answer {
            Answer::Ack => psn,
            _ => psn.wrapping_sub(1) & 0xff_ffff,
        };
        if self
            .acked_psn
            .is_none_or(|before| behind(acked, before) > 0)
        {
            self.acked_psn = Some(acked);
        }
        for send in &mut self.sends {
            let Some(first) = send.first_psn else { break };
            let is_read = send.request.opcode == Some(4);
            let is_done = if is_read {
                let ends = matches!(
                    operation,
                    Operation::ReadResponseLast | Operation::ReadResponseOnly
                );
                ends && behind(psn, first) >= 0 || behind(acked, send.last_psn.unwrap_or(first)) > 0
            } else {
                send.last_psn.is_some_and(|last| behind(acked, last) >= 0)
            };
            if is_done && send.acked_ns.is_none() {
                send.acked_ns = Some(time_ns);
                send.timing.answer = time_ns.saturating_sub(send.sent_ns);
            }
        }
        if answer != Answer::Ack
            && let Some(send) = self.with_psn(psn).filter(|send| send.acked_ns.is_none())
        {
            send.refused = Some((time_ns, psn));
            send.timing.answer = time_ns.saturating_sub(send.sent_ns);
        }
        match answer {
            Answer::Ack => {
                self.rnr_naks = 0;
                None
            }
            Answer::RnrNak => {
                self.rnr_since = Some(time_ns);
                self.rnr_naks += 1;
                if let Some(send) = self.with_psn(psn) {
                    send.timing.rnr_naks += 1;
                }
                let count = self.rnr_naks;
                let words = format!("RNR NAK: the peer has no receive for it{}", counted(count));
                is_told(count).then_some(words)
            }
            Answer::Nak(name) => {
                self.nak = true;
                Some(format!("NAK: {name}"))
            }
        }
    }

    fn with_psn(&mut self, psn: u32) -> Option<&mut Send> {
        let mut sends = self.sends.iter_mut();
        sends.find(|send| {
            let first = send.first_psn.is_some_and(|first| behind(psn, first) >= 0);
            first && send.last_psn.is_none_or(|last| behind(last, psn) >= 0)
        })
    }

    /// Returns the newest request that the answer of `time_ns` completes or refuses: the PSN of its
    /// last packet, and the time from that to the answer.
    pub(super) fn just_answered(&self, time_ns: u64) -> Option<(u32, u64)> {
        let mut all = self.sends.iter().rev();
        let newest = all.find(|send| send.answered_ns() == Some(time_ns))?;
        Some((newest.answered_psn()?, newest.timing.answer))
    }

    /// Sets the times under way, to the peer and back, of all requests that the answer of `time_ns`
    /// completes or refuses.
    pub(super) fn set_wire(&mut self, time_ns: u64, (to, from): (u64, u64)) {
        for send in &mut self.sends {
            if send.answered_ns() == Some(time_ns) {
                let from = from.min(send.timing.answer);
                let to = to.min(send.timing.answer - from);
                send.timing.wire = Some((to, from));
            }
        }
    }

    /// Notes a request of the peer that takes a receive.
    pub(super) fn arrived(&mut self, time_ns: u64, psn: u32) {
        if self.last_arrival.is_none_or(|last| behind(psn, last) > 0) {
            self.last_arrival = Some(psn);
            self.arrivals.push_back(Arrival { psn, time_ns });
            if self.arrivals.len() > MAX_REQUESTS {
                self.arrivals.pop_front();
            }
        }
    }

    /// Notes an answer that this QP sends as the responder. Returns its words if it is bad news.
    pub(super) fn answers(&mut self, psn: u32, aeth: u32) -> Option<String> {
        match names::answer(aeth) {
            Answer::Ack => {
                self.rnr_naks_sent = 0;
                None
            }
            Answer::RnrNak => {
                self.refused(psn);
                self.rnr_naks_sent += 1;
                let count = self.rnr_naks_sent;
                let words = format!("RNR NAK sent: no receive is posted{}", counted(count));
                is_told(count).then_some(words)
            }
            Answer::Nak(name) => {
                self.refused(psn);
                Some(format!("NAK sent: {name}"))
            }
        }
    }

    /// Notes a NAK that this QP sends as the responder.
    fn refused(&mut self, psn: u32) {
        while let Some(last) = self.arrivals.back().filter(|one| behind(one.psn, psn) >= 0) {
            let before = last.psn.wrapping_sub(1) & 0xff_ffff;
            self.last_arrival = Some(before);
            self.arrivals.pop_back();
        }
    }

    /// Returns when the oldest message has arrived that is not polled, and how many there are.
    pub(super) fn unpolled_arrivals(&self) -> Option<(u64, usize)> {
        let oldest = self.arrivals.front()?;
        Some((oldest.time_ns, self.arrivals.len()))
    }

    /// Returns the sends without an answer, or not sent yet if no answer comes.
    pub(super) fn pending(&self) -> impl Iterator<Item = &Send> + Clone {
        self.sends.iter().filter(|send| {
            let waits = !self.has_no_answers || send.sent_ns == 0;
            waits && send.acked_ns.is_none()
        })
    }

    /// Returns the oldest send with a completion that is not polled.
    pub(super) fn unpolled_send(&self) -> Option<&Send> {
        let mut answered = self.sends.iter().filter(|send| send.acked_ns.is_some());
        answered.find(|send| self.is_signaled(send))
    }

    fn is_signaled(&self, send: &Send) -> bool {
        self.signals_all || send.request.flags & SIGNALED != 0
    }

    /// Takes the receive of a completion.
    pub(super) fn complete_receive(&mut self, time_ns: u64, wr_id: u64) -> Option<Finished> {
        let arrival = self.arrivals.pop_front();
        let mut all = self.receives.iter();
        let index = all.position(|(_, one)| one.wr_id == wr_id)?;
        let (posted_ns, request) = self.receives.remove(index)?;
        let timing = Timing {
            posted_ns,
            total: time_ns.saturating_sub(posted_ns),
            poll: arrival.map_or(0, |one| time_ns.saturating_sub(one.time_ns)),
            ..Timing::default()
        };
        Some((request, timing))
    }

    /// Takes the send of a completion, and all sends before it. Returns it behind the unsignaled
    /// ones that have ended with it.
    pub(super) fn complete_send(
        &mut self,
        time_ns: u64,
        wr_id: u64,
        is_success: bool,
    ) -> Option<(Vec<Finished>, Finished)> {
        let index = self.place_of(wr_id, is_success)?;
        let mut taken: Vec<Send> = self.sends.drain(..=index).collect();
        let send = taken.pop()?;
        // Before a failure, only those with an answer are known to have succeeded.
        let has_ended = |send: &Send| is_success || send.acked_ns.is_some();
        taken.retain(|send| !self.is_signaled(send) && has_ended(send));
        let before = taken.into_iter().map(|one| one.finish(time_ns)).collect();
        Some((before, send.finish(time_ns)))
    }

    /// Returns the place of the send of a completion. Many programs give all sends the same ID, of
    /// which an unsignaled one has a completion only if it fails.
    fn place_of(&self, wr_id: u64, is_success: bool) -> Option<usize> {
        let place = |is_it: &dyn Fn(&Send) -> bool| {
            let mut all = self.sends.iter();
            all.position(|send| send.request.wr_id == wr_id && is_it(send))
        };
        let expected = place(&|send| match is_success {
            true => self.is_signaled(send),
            false => send.acked_ns.is_none(),
        });
        expected.or_else(|| place(&|_| true))
    }
}
