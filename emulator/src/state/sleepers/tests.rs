//! Tests of the watcher, of followers and of pollers that sleep.

use std::time::Duration;

use super::*;

fn is_woken(sleeper: &Sleeper) -> bool {
    let mut set = sys::PollSet::default();
    let fd = set.add(sleeper.wake_fd());
    set.wait_uncancelled(Some(Duration::ZERO))
        .expect("descriptors");
    set.is_ready(fd)
}

#[test]
fn one_thread_watches_and_the_next_one_takes_over() {
    let sleepers = Sleepers::default();
    let first = sleepers.begin().unwrap();
    let second = sleepers.begin().unwrap();
    assert!(first.watches() && !second.watches());
    assert!(!sleepers.watch_in_background(), "a poller watches");
    assert!(!is_woken(&second));
    assert!(sleepers.end(first));
    assert!(!is_woken(&second), "the first one goes on to receive");
    let third = sleepers.begin().unwrap();
    assert!(third.watches(), "a thread that comes back watches");
    assert!(sleepers.end(third));
    assert!(sleepers.end(second));
    assert!(!sleepers.has_any());

    assert!(sleepers.watch_in_background());
    let third = sleepers.begin().unwrap();
    assert!(!third.watches());
    assert!(
        !is_woken(&third),
        "a descriptor is used again, but not its news"
    );
    sleepers.leave_background();
    sleepers.wake();
    assert!(is_woken(&third));
    sleepers.wake();
    assert!(sleepers.end(third));
    let fourth = sleepers.begin().unwrap();
    assert!(fourth.watches() && !is_woken(&fourth));
    assert!(sleepers.end(fourth));
}

#[test]
fn completions_wake_the_pollers_of_their_queue() {
    let sleepers = Sleepers::default();
    let one = sleepers.begin_poll(1, false).unwrap();
    assert!(!one.watches(), "it leaves the packets to others");
    let [two, any] = [2, 0].map(|cq| sleepers.begin_poll(cq, true).unwrap());
    assert!(two.watches() && !any.watches());
    sleepers.wake_pollers_of(1);
    assert!(is_woken(&one) && !is_woken(&two) && is_woken(&any));
    sleepers.wake_pollers_of(3);
    assert!(!is_woken(&two));
    sleepers.wake();
    assert!(is_woken(&two));
    for sleeper in [one, two, any] {
        assert!(sleepers.end(sleeper));
    }
}

#[test]
fn completions_wake_no_thread_that_waits_for_an_event() {
    let sleepers = Sleepers::default();
    assert!(sleepers.watch_in_background());
    let (waiter, from_background) = sleepers.begin_watch().unwrap();
    assert!(waiter.watches() && from_background);
    assert!(sleepers.begin_watch().is_none(), "one is enough");
    let poller = sleepers.begin().unwrap();
    assert!(!poller.watches());
    sleepers.wake();
    assert!(is_woken(&poller) && !is_woken(&waiter));
    assert!(sleepers.end(poller));
    assert!(!sleepers.has_any() && sleepers.has_watching_poller());
    sleepers.wake_all();
    assert!(is_woken(&waiter));
    assert!(sleepers.end(waiter));
    let (waiter, from_background) = sleepers.begin_watch().unwrap();
    assert!(!from_background && !is_woken(&waiter));
    assert!(sleepers.end(waiter));
}

#[test]
fn an_event_loop_watches_while_no_thread_does() {
    let sleepers = Sleepers::default();
    assert!(sleepers.watch_in_background());
    assert!(sleepers.begin_loop(), "the background thread has watched");
    assert!(!sleepers.begin_loop());
    assert!(sleepers.is_watched_by_program() && !sleepers.watch_in_background());
    let (waiter, from_background) = sleepers.begin_watch().unwrap();
    assert!(waiter.watches() && !from_background);
    assert!(!sleepers.begin_loop());
    assert!(sleepers.begin_watch().is_none());
    assert!(sleepers.end(waiter));
    assert!(sleepers.has_loop() && !sleepers.watch_in_background());
    let poller = sleepers.begin().unwrap();
    assert!(poller.watches());
    sleepers.end_loop();
    assert!(sleepers.is_watched_by_program());
    assert!(sleepers.end(poller));
    assert!(!sleepers.is_watched_by_program());
    assert!(!sleepers.begin_loop());
    sleepers.displace();
    assert!(!sleepers.has_loop() && sleepers.watch_in_background());
}

#[test]
fn a_watcher_that_leaves_hands_over_to_one_follower() {
    fn follow(sleepers: &Sleepers) -> Follower {
        match sleepers.begin_watch_or_follow().unwrap() {
            Place::Follower(follower) => follower,
            Place::Watcher(..) => panic!("there are two watchers"),
        }
    }
    let sleepers = Sleepers::default();
    let Some(Place::Watcher(watcher, false)) = sleepers.begin_watch_or_follow() else {
        panic!("the first thread does not watch");
    };
    let followers = [(); 3].map(|()| follow(&sleepers));
    sleepers.hand_over();
    sleepers.wake_all();
    let woken = |follower: &Follower| {
        let mut set = sys::PollSet::default();
        let fd = set.add(follower.wake_fd());
        set.wait_uncancelled(Some(Duration::ZERO)).unwrap();
        set.is_ready(fd)
    };
    assert!(!followers.iter().any(woken), "there is a watcher");
    assert!(sleepers.end(watcher));
    sleepers.hand_over();
    assert_eq!(
        followers.iter().filter(|follower| woken(follower)).count(),
        1
    );
    let told = followers.map(|follower| sleepers.end_following(follower));
    assert_eq!(told.iter().filter(|told| **told).count(), 1);
    assert!(!sleepers.has_follower());
    let Some(Place::Watcher(watcher, false)) = sleepers.begin_watch_or_follow() else {
        panic!("the next thread does not watch");
    };
    assert!(
        !is_woken(&watcher),
        "a descriptor is used again, but not its news"
    );
    assert!(sleepers.end(watcher));
}

#[test]
fn a_displaced_watcher_is_replaced_and_told() {
    let sleepers = Sleepers::default();
    let stopped = sleepers.begin().unwrap();
    let other = sleepers.begin().unwrap();
    sleepers.displace();
    assert!(!sleepers.has_any() && !sleepers.has_watching_poller());
    assert!(sleepers.watch_in_background());
    // Completions wake both all the same.
    sleepers.wake();
    assert!(is_woken(&stopped) && is_woken(&other));
    assert!(sleepers.end(other), "it never watched");
    assert!(!sleepers.end(stopped), "it watches no more");
    assert!(sleepers.is_watched_in_background());
    let next = sleepers.begin().unwrap();
    assert!(!next.watches() && sleepers.has_any());
    assert!(sleepers.end(next));
}
