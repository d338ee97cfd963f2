//! Completions of a CQ in order, and its arming (CQ-02…07).

use std::collections::VecDeque;

use rocade_transport::{Completion, WcStatus};

/// What the next completion event waits for (CQ-05).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Armed {
    No,
    Solicited,
    Next,
}

/// What adding a completion leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Added {
    /// Nothing.
    Quiet,
    /// A completion event is due.
    Event,
    /// There was no room: the completion is lost (CQ-02).
    Overflow,
}

#[derive(Debug)]
pub(super) struct CqRing {
    entries: VecDeque<Entry>,
    /// Number of the next completion.
    next: u64,
    /// Room promised to completions that are about to come.
    reserved: usize,
    capacity: usize,
    armed: Armed,
    /// A completion was lost: there will be no others (CQ-02).
    overrun: bool,
}

#[derive(Debug)]
struct Entry {
    number: u64,
    completion: Completion,
}

impl CqRing {
    pub(super) const fn new(capacity: usize) -> Self {
        Self {
            entries: VecDeque::new(),
            next: 0,
            reserved: 0,
            capacity,
            armed: Armed::No,
            overrun: false,
        }
    }

    pub(super) const fn capacity(&self) -> usize {
        self.capacity
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// All completions added before this one were taken, or dropped. They are numbered from 0.
    pub(super) fn oldest(&self) -> u64 {
        self.entries.front().map_or(self.next, |entry| entry.number)
    }

    /// Number of the next completion that is added.
    pub(super) const fn next(&self) -> u64 {
        self.next
    }

    /// Has a completion been lost?
    pub(super) const fn is_overrun(&self) -> bool {
        self.overrun
    }

    fn room(&self) -> usize {
        if self.overrun {
            return 0;
        }
        let taken = self.entries.len() + self.reserved;
        self.capacity.saturating_sub(taken)
    }

    /// Promises room to `count` completions that are about to come, or to fewer where there is no
    /// more: then the rest will be lost.
    pub(super) fn reserve(&mut self, count: usize) -> usize {
        let granted = count.min(self.room());
        self.reserved += granted;
        self.overrun |= granted < count;
        granted
    }

    /// Adds a completion that room was reserved for.
    pub(super) fn add_reserved(&mut self, completion: Completion) -> Added {
        self.reserved -= 1;
        self.put(completion)
    }

    /// Adds a completion, if there is room.
    //= CQ-02
    pub(super) fn add(&mut self, completion: Completion) -> Added {
        if self.room() == 0 {
            self.overrun = true;
            return Added::Overflow;
        }
        self.put(completion)
    }

    /// An event is due when the CQ is armed for the completion; arming is one shot.
    //= CQ-06
    fn put(&mut self, completion: Completion) -> Added {
        let solicited = completion.status != WcStatus::Success
            || (completion.solicited && !completion.is_send());
        self.entries.push_back(Entry {
            number: self.next,
            completion,
        });
        self.next += 1;
        match self.armed {
            Armed::Next => {}
            Armed::Solicited if solicited => {}
            Armed::Solicited | Armed::No => return Added::Quiet,
        }
        self.armed = Armed::No;
        Added::Event
    }

    pub(super) fn take(&mut self) -> Option<Completion> {
        self.entries.pop_front().map(|entry| entry.completion)
    }

    /// Arms; entries already there cause no event (CQ-07), NEXT is never downgraded (CQ-05).
    pub(super) fn arm(&mut self, solicited_only: bool) {
        self.armed = match (self.armed, solicited_only) {
            (_, false) | (Armed::Next, true) => Armed::Next,
            (_, true) => Armed::Solicited,
        };
    }

    /// Changes the size; false where the entries would not fit (CQ-04).
    pub(super) fn resize(&mut self, capacity: usize) -> bool {
        if capacity < self.entries.len() + self.reserved {
            return false;
        }
        self.capacity = capacity;
        true
    }

    /// Drops the entries that `keep` refuses (RC-STA-04, CQ-13).
    pub(super) fn retain(&mut self, keep: impl Fn(&Completion) -> bool) {
        self.entries.retain(|entry| keep(&entry.completion));
    }
}

#[cfg(test)]
pub(super) fn test_completion(wr_id: u64, solicited: bool, status: WcStatus) -> Completion {
    use rocade_transport::{CompleteTo, ImmOrInv, WcFlags, WcOpcode};
    use rocade_wire::Qpn;
    Completion {
        wr_id,
        status,
        opcode: WcOpcode::Recv,
        byte_len: 0,
        qp_num: Qpn::new(2),
        src_qp: Qpn::new(0),
        imm_or_inv: ImmOrInv::None,
        wc_flags: WcFlags::empty(),
        vendor_err: 0,
        to: CompleteTo::RecvCq,
        solicited,
        slots: 1,
        timestamp_ns: 0,
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use rocade_transport::CompleteTo;

    use super::*;

    fn plain(wr_id: u64) -> Completion {
        test_completion(wr_id, false, WcStatus::Success)
    }

    //= CQ-03 type=test
    #[test]
    fn order_and_overflow() {
        let mut ring = CqRing::new(2);
        assert_eq!(ring.add(plain(1)), Added::Quiet);
        assert_eq!(ring.add(plain(2)), Added::Quiet);
        assert!(!ring.is_overrun());
        assert_eq!(ring.add(plain(3)), Added::Overflow);
        assert!(ring.is_overrun());
        assert_eq!(ring.take().map(|c| c.wr_id), Some(1));
        //= CQ-02 type=test
        assert_eq!(ring.add(plain(4)), Added::Overflow, "an error is for good");
        assert_eq!(ring.take().map(|c| c.wr_id), Some(2));
        assert!(ring.take().is_none());
    }

    #[test]
    fn completions_are_numbered_whatever_becomes_of_them() {
        let mut ring = CqRing::new(4);
        assert_eq!(ring.oldest(), 0);
        for wr_id in 0..4 {
            assert_eq!(ring.add(plain(wr_id)), Added::Quiet);
        }
        assert_eq!(ring.oldest(), 0);
        ring.retain(|completion| completion.wr_id != 1);
        ring.take();
        assert_eq!(ring.oldest(), 2);
        ring.retain(|completion| completion.wr_id == 3);
        assert_eq!(ring.oldest(), 3);
        ring.take();
        assert_eq!(ring.oldest(), 4);
    }

    //= RC-ERR-G type=test
    #[test]
    fn reserved_room_is_kept() {
        let mut ring = CqRing::new(2);
        assert_eq!(ring.reserve(1), 1);
        assert_eq!(ring.add(plain(1)), Added::Quiet);
        assert_eq!(ring.reserve(2), 0);
        assert!(ring.is_overrun());
        assert_eq!(ring.add(plain(2)), Added::Overflow);
        assert!(!ring.resize(1));
        assert_eq!(ring.add_reserved(plain(3)), Added::Quiet);
        assert_eq!(ring.take().map(|c| c.wr_id), Some(1));
        assert_eq!(ring.take().map(|c| c.wr_id), Some(3));
    }

    //= CQ-05 type=test
    //= CQ-06 type=test
    //= CQ-07 type=test
    #[test]
    fn arming() {
        let solicited = test_completion(0, true, WcStatus::Success);
        let failed = test_completion(0, false, WcStatus::WrFlushErr);
        let sent = Completion {
            to: CompleteTo::SendCq,
            ..solicited
        };
        let mut ring = CqRing::new(64);
        ring.add(plain(0));
        ring.arm(true);
        assert_eq!(ring.add(plain(0)), Added::Quiet, "not solicited");
        assert_eq!(
            ring.add(sent),
            Added::Quiet,
            "solicited counts on receives only"
        );
        assert_eq!(ring.add(solicited), Added::Event);
        assert_eq!(ring.add(solicited), Added::Quiet, "one shot");
        ring.arm(true);
        assert_eq!(ring.add(failed), Added::Event, "errors count as solicited");
        ring.arm(false);
        ring.arm(true);
        assert_eq!(ring.add(plain(0)), Added::Event, "NEXT is not downgraded");
    }

    //= CQ-04 type=test
    #[test]
    fn resizing_keeps_entries() {
        let mut ring = CqRing::new(4);
        ring.add(plain(1));
        ring.add(plain(2));
        assert!(!ring.resize(1));
        assert!(ring.resize(2));
        assert_eq!(ring.add(plain(3)), Added::Overflow);
        assert_eq!(ring.take().map(|c| c.wr_id), Some(1));
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::{Arc, Condvar, Mutex};

    use super::*;

    /// An event queue reduced to what matters: is an event there?
    struct Events {
        waiting: Mutex<bool>,
        arrived: Condvar,
    }

    /// The consumer's protocol (CQ-07): poll, arm, poll again, sleep. Whatever the interleaving with
    /// a producer, no completion stays unseen while the consumer sleeps.
    #[test]
    fn loom_no_completion_is_missed() {
        loom::model(|| {
            let ring = Arc::new(Mutex::new(CqRing::new(4)));
            let events = Arc::new(Events {
                waiting: Mutex::new(false),
                arrived: Condvar::new(),
            });
            let producer = {
                let (ring, events) = (Arc::clone(&ring), Arc::clone(&events));
                loom::thread::spawn(move || {
                    let completion = test_completion(1, false, WcStatus::Success);
                    let added = ring.lock().unwrap().add(completion);
                    if added == Added::Event {
                        *events.waiting.lock().unwrap() = true;
                        events.arrived.notify_one();
                    }
                })
            };
            let poll = || ring.lock().unwrap().take();
            let mut seen = poll();
            if seen.is_none() {
                ring.lock().unwrap().arm(false);
                seen = poll();
            }
            if seen.is_none() {
                let mut waiting = events.waiting.lock().unwrap();
                while !*waiting {
                    waiting = events.arrived.wait(waiting).unwrap();
                }
                drop(waiting);
                seen = poll();
            }
            assert_eq!(seen.map(|c| c.wr_id), Some(1));
            producer.join().unwrap();
        });
    }
}
