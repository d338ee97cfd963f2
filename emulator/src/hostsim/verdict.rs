//! The verdict on the completions of an end. The code under test does not know it.

use std::sync::atomic::Ordering;

use super::board::{Board, End, other};
use super::exchange::{ADD, Exchange, MARK, READ, SEND, TO_KEEPER, bytes_of, source_of};
use super::memory::{ADDED, GOT, MARKED, READ_LEN, place_in_turn, written_at};
use super::services::MARKS;
use crate::{Completion, ImmOrInv, WcOpcode, WcStatus};

/// Kind of a request, from the ID of its completion.
#[derive(Clone, Copy, Debug)]
pub(super) enum Request {
    /// The message with this number, or the byte of a stream.
    Message(u32),
    /// The message with this number to the keeper of the peer's target.
    ToKeeper(u32),
    Other,
}

impl Exchange {
    /// Takes a completion.
    pub(super) fn take(&self, completion: &Completion) {
        let id = completion.wr_id;
        let number = u32::try_from(id & (SEND - 1)).unwrap_or(u32::MAX);
        if completion.status != WcStatus::Success {
            let failed = match id {
                _ if id & SEND != 0 => Request::Message(number),
                _ if id & TO_KEEPER != 0 => Request::ToKeeper(number),
                _ => Request::Other,
            };
            return self.take_failure(completion.status, failed);
        }
        if id & SEND != 0 {
            self.take_acknowledgement(number);
        } else if id & TO_KEEPER != 0 {
            self.under_way.fetch_sub(1, Ordering::Relaxed);
            self.take_acknowledgement_of_keeper(number);
        } else if id & (ADD | READ | MARK) != 0 {
            self.under_way.fetch_sub(1, Ordering::Relaxed);
            if id & MARK == 0 {
                self.take_other(id & ADD != 0, number);
            }
        } else if let Err(text) = self.take_message(completion) {
            self.board.complain(format!("{:?}: {text}", self.end));
        }
    }

    fn take_acknowledgement(&self, number: u32) {
        if self.board.is_dead(other(self.end)) && self.traits.is_reliable {
            let (udp, answers) = (self.board.plan.udp, self.plan.answers);
            if udp && answers && number >= 8 {
                self.board
                    .mark("a killed process acknowledges a message that it may answer");
            }
            let mark = if udp {
                "a killed process acknowledges over UDP"
            } else {
                "a killed process acknowledges in shared memory"
            };
            self.board.mark(mark);
            self.board.mark(self.traits.outlived);
        }
        let text = format!("{:?} sees the acknowledgement of {number}", self.end);
        self.board.note(text);
        let mut notes = self.board.notes();
        let flow = notes.flows.entry(self.end).or_default();
        let expected = flow.acknowledged;
        flow.acknowledged = number + 1;
        let is_signaled = |number| self.plan.is_signaled(self.end.1, number);
        let mut before = expected..number;
        if number < expected || before.any(is_signaled) {
            let text = format!("{:?}: completion {number} after {expected}", self.end);
            notes.complaints.push(text);
        }
    }

    fn take_acknowledgement_of_keeper(&self, number: u32) {
        let mut notes = self.board.notes();
        let flow = notes.keepers.get_mut(&other(self.end));
        let flow = flow.expect("a message to it");
        let expected = std::mem::replace(&mut flow.acknowledged, number + 1);
        if number != expected {
            let text = format!("{:?}: {number} to the keeper after {expected}", self.end);
            notes.complaints.push(text);
        }
    }

    /// Takes the result of an atomic or a READ.
    fn take_other(&self, is_add: bool, number: u32) {
        let side = &self.objects.side;
        let is_right = if is_add {
            let got = side.bytes(ADDED + place_in_turn(number.into(), 16, 8), 8);
            got == u64::from(number).to_ne_bytes()
        } else {
            side.bytes(GOT, READ_LEN) == source_of(other(self.end))
        };
        if !is_right {
            let text = format!("{:?}: result {number} of an atomic or READ", self.end);
            self.board.complain(text);
        }
    }

    /// Takes a message. It has to be one that the peer has posted, with all its bytes, and not one
    /// that came before.
    fn take_message(&self, completion: &Completion) -> Result<(), String> {
        let (from, len) = (other(self.end), self.plan.len);
        let flow = self.flows().1;
        let receive = self.objects.received(completion.wr_id, flow.received)?;
        let (number, bytes) = match completion.imm_or_inv {
            ImmOrInv::Imm(imm) if completion.opcode == WcOpcode::RecvRdmaWithImm => {
                let number = u32::from_be_bytes(imm);
                let at = written_at(number, len);
                (number, self.objects.side.bytes(at, len))
            }
            _ => {
                let (header, bytes) = receive.split_at(self.traits.header);
                if completion.byte_len as usize != header.len() + len {
                    return Err(format!("a message of {} bytes", completion.byte_len));
                }
                let number = bytes
                    .first_chunk()
                    .map_or(0, |bytes| u32::from_be_bytes(*bytes));
                (number, bytes[..len].to_vec())
            }
        };
        if number >= flow.posted || bytes != bytes_of(from, number, len) {
            return Err(format!("message {number} is not what was sent"));
        }
        if self.has(MARKS) {
            let bytes = self.objects.side.bytes(MARKED, 8);
            let mark = bytes
                .first_chunk()
                .map_or(0, |bytes| u64::from_be_bytes(*bytes));
            if mark < u64::from(number) + 1 || mark > u64::from(flow.posted) {
                return Err(format!("message {number} comes with the mark {mark}"));
            }
        }
        let is_next = number == flow.received || !self.traits.is_reliable;
        let process = self.board.process_of(self.end);
        let may_overtake = self.board.notes().halted.contains(&process);
        let is_later = flow.seen >> number == 0 || !self.traits.is_ordered || may_overtake;
        if !is_next || !is_later || flow.seen >> number & 1 != 0 {
            let seen = flow.seen;
            return Err(format!("message {number} comes after {seen:b}"));
        }
        if self.board.is_dead(from) {
            self.board.mark("a message of a killed process arrives");
        }
        self.board.mark(self.traits.arrived);
        let host_of = |end| self.board.plan.host_of(self.board.process_of(end));
        if host_of(from) != host_of(self.end) {
            self.board.mark("a message arrives from another host");
        }
        self.board
            .note(format!("{:?} receives message {number}", self.end));
        {
            let mut notes = self.board.notes();
            let flow = notes.flows.entry(from).or_default();
            flow.received += 1;
            flow.seen |= 1 << number;
        }
        let next = self.objects.next_receive(completion.wr_id);
        self.objects.post_receive(next);
        Ok(())
    }

    fn take_failure(&self, status: WcStatus, failed: Request) {
        let text = format!("{:?} sees {status:?} of {failed:?}", self.end);
        self.board.note(text);
        judge_failure(&self.board, self.end, status, failed);
    }
}

/// Judges a failure, and notes it. Only the first one is judged, because the others come from it.
pub(super) fn judge_failure(board: &Board, end: End, status: WcStatus, failed: Request) {
    if !board.has_failed(end) {
        judge_first_failure(board, end, status, failed);
    }
    board.notes().flows.entry(end).or_default().failed = Some(status);
}

fn judge_first_failure(board: &Board, end: End, status: WcStatus, failed: Request) {
    let (plan, peer) = (&board.plan.connections[end.0], other(end));
    // A lost acknowledgement of a process that was killed does not come again.
    let own_flow = || board.notes().flows.get(&end).copied().unwrap_or_default();
    let keeper_flow = || board.notes().keepers.get(&peer).copied();
    let is_lost = match failed {
        Request::Message(number) => number < own_flow().received,
        Request::ToKeeper(number) => keeper_flow().is_some_and(|flow| number < flow.received),
        Request::Other => false,
    };
    let is_long_stopped = |process| board.notes().stopped.contains(&process);
    let keeper = board.keeper_of(peer);
    let was_stopped = board.was_stopped(peer) || keeper.is_some_and(is_long_stopped);
    // So does one that both a process and its broker were to send.
    let had_none = board.notes().was_without_broker();
    if is_lost && board.plan.loss == 0 && !had_none && !was_stopped {
        board.complain(format!(
            "{end:?}: {failed:?} failed ({status:?}), but its receiver has seen it"
        ));
    }
    // A peer that has all messages does not wait for READs of its memory. The keeper waits for
    // both ends.
    let needs_peer = match failed {
        Request::Message(_) => board.plan.loss > 0,
        Request::ToKeeper(_) => false,
        Request::Other => true,
    };
    let is_peer_dead = board.is_dead(peer);
    // The target ends with a process that dies in the middle of a message. Packets to one whose
    // creator was killed get lost until a broker knows of it.
    let is_keeper_dead = board.is_keeper_dead(peer);
    let has_no_way = is_keeper_dead && (had_none || plan.keeper_receives);
    // One that has failed takes no messages any more.
    let may_fail = is_peer_dead
        || board.has_left(peer) && needs_peer
        || has_no_way
        || was_stopped
        || board.has_failed(peer);
    if was_stopped && !is_peer_dead {
        board.mark("a sender gives up a peer that is stopped");
    }
    if plan.keeper_receives && is_keeper_dead && !is_peer_dead {
        board.mark("a sender sees the end of the keeper of a target");
    }
    if !may_fail || !plan.service.traits().is_reliable {
        board.complain(format!("{end:?}: {failed:?} failed ({status:?})"));
    }
    board.mark("a sender sees the end of its peer");
}
