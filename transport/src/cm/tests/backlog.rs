//! Requests that end while they wait for a program: their entries become free, and a program hears
//! only of those that it has seen.

use super::*;

/// Places that the first requests of one address may use.
const PLACES: u32 = 192;

fn at(count: u32) -> usize {
    usize::try_from(count).unwrap()
}

/// Sends requests that no program fetches: more than it has entries.
fn crowd(count: u32) -> (Pair, Vec<CommId>) {
    let mut pair = Pair::new();
    let asks = (0..count)
        .map(|qpn| pair.a.connect(pair.now, to_b(), LIFE, req(0x100 + qpn)))
        .collect();
    pair.exchange();
    assert_eq!(pair.b.len(), at(count));
    assert!(pair.b.holds_requests());
    (pair, asks)
}

impl Pair {
    /// Delivers all messages at once and in order.
    fn exchange(&mut self) {
        loop {
            if let Some(transmit) = self.a.poll_transmit() {
                self.b.handle_mad(self.now, back(to_b()), &transmit.mad[..]);
            } else if let Some(transmit) = self.b.poll_transmit() {
                self.a.handle_mad(self.now, to_b(), &transmit.mad[..]);
            } else {
                return;
            }
        }
    }

    /// Lets clients give up, which tells the server.
    fn give_up(&mut self, asks: &[CommId]) {
        for id in asks {
            self.a.destroy(self.now, *id);
        }
        self.exchange();
    }

    /// Fetches all events of the server. Returns the requests, and those whose peer has gone.
    fn fetch(&mut self) -> (Vec<CommId>, Vec<CommId>) {
        let (mut asked, mut gone) = (Vec::new(), Vec::new());
        while let Some(event) = self.b.poll_event() {
            match event {
                CmEvent::Request { id, req, .. } => {
                    self.b.taken(id);
                    asked.push(req.local_id);
                }
                CmEvent::Rejected { id, .. } => {
                    gone.push(id);
                    self.b.destroy(self.now, id);
                }
                other => panic!("{other:?}"),
            }
        }
        (asked, gone)
    }
}

#[test]
fn a_program_never_hears_of_a_held_request_that_ended() {
    let (mut pair, asks) = crowd(250);
    pair.give_up(&asks[200..]);
    assert_eq!(pair.b.len(), 200, "nothing is left of them");
    assert!(pair.b.holds_requests(), "eight are still held");
    let (asked, gone) = pair.fetch();
    assert_eq!(asked, asks[..200]);
    assert_eq!(gone, []);
    assert!(!pair.b.holds_requests());
}

/// The requests have been repeated meanwhile, so they are held with priority.
#[test]
fn a_repeated_request_may_end_too() {
    let (mut pair, asks) = crowd(PLACES + 8);
    pair.pass(REQ_INTERVAL);
    pair.exchange();
    pair.give_up(&asks[at(PLACES)..]);
    assert_eq!(pair.b.len(), at(PLACES));
    assert!(!pair.b.holds_requests());
    assert_eq!(pair.fetch().0.len(), at(PLACES));
}

/// The program is told of both, the request and its end, and has to release the ID.
#[test]
fn an_offered_request_that_ends_gives_its_entry_to_a_held_one() {
    let (mut pair, asks) = crowd(250);
    pair.give_up(&asks[..40]);
    let (asked, gone) = pair.fetch();
    assert_eq!(asked, asks, "also those that have ended meanwhile");
    assert_eq!(gone.len(), 40);
    assert_eq!(pair.b.len(), 210);
    assert!(!pair.b.holds_requests());
    // What has ended counts no more: the backlog has all its entries again.
    pair.give_up(&asks[40..]);
    assert_eq!(pair.fetch().1.len(), 210);
    assert!(pair.b.is_empty());
    let more: Vec<_> = (0..PLACES)
        .map(|qpn| pair.a.connect(pair.now, to_b(), LIFE, req(0x1000 + qpn)))
        .collect();
    pair.exchange();
    assert!(!pair.b.holds_requests());
    assert_eq!(pair.fetch().0, more);
}

/// Held requests end with their listener. Their peers repeat them, and are refused.
#[test]
fn a_listener_that_goes_leaves_no_held_requests() {
    let (mut pair, asks) = crowd(250);
    pair.b.unlisten(SERVICE);
    assert_eq!(pair.b.len(), at(PLACES));
    assert!(!pair.b.holds_requests());
    assert_eq!(pair.fetch().0, asks[..at(PLACES)]);
    pair.pass(REQ_INTERVAL);
    pair.exchange();
    let mut refused = Vec::new();
    while let Some(event) = pair.a.poll_event() {
        let CmEvent::Rejected { id, rej } = event else {
            panic!("{event:?}");
        };
        assert_eq!(rej.reason, RejReason::InvalidServiceId);
        refused.push(id);
    }
    assert_eq!(refused, asks[at(PLACES)..]);
}
