//! Models of threads that change the watcher.

use super::*;

/// In every interleaving there is one watcher at most.
#[test]
fn loom_packets_have_one_watcher_at_a_time() {
    loom::model(|| {
        let sleepers = loom::sync::Arc::new(Sleepers::default());
        let background = {
            let sleepers = loom::sync::Arc::clone(&sleepers);
            loom::thread::spawn(move || sleepers.watch_in_background())
        };
        let first = sleepers.begin().expect("a descriptor");
        let second = sleepers.begin().expect("a descriptor");
        let first_watches = first.watches();
        assert!(sleepers.end(first));
        let in_background = background.join().unwrap();
        assert!(!second.watches());
        assert!(first_watches || in_background);
        assert!(!sleepers.is_woken(&second));
        assert!(sleepers.end(second));
        let third = sleepers.begin().expect("a descriptor");
        assert_eq!(third.watches(), !sleepers.is_watched_in_background());
        assert!(sleepers.end(third));
    });
}

/// In every interleaving, an event loop that begins to watch either displaces the background
/// thread, which is woken, or keeps it from watching.
#[test]
fn loom_an_event_loop_and_the_background_thread_do_not_both_watch() {
    loom::model(|| {
        let sleepers = loom::sync::Arc::new(Sleepers::default());
        let background = {
            let sleepers = loom::sync::Arc::clone(&sleepers);
            loom::thread::spawn(move || sleepers.watch_in_background())
        };
        let is_woken = sleepers.begin_loop();
        let in_background = background.join().unwrap();
        assert_eq!(in_background, is_woken);
        assert!(!sleepers.is_watched_in_background());
        sleepers.end_loop();
        assert!(sleepers.watch_in_background());
    });
}

/// In every interleaving, a thread that follows a leaving watcher is woken to watch.
#[test]
fn loom_a_follower_notices_that_the_watcher_leaves() {
    loom::model(|| {
        let sleepers = loom::sync::Arc::new(Sleepers::default());
        let Some(Place::Watcher(watcher, _)) = sleepers.begin_watch_or_follow() else {
            panic!("the first thread does not watch");
        };
        let other = {
            let sleepers = loom::sync::Arc::clone(&sleepers);
            loom::thread::spawn(move || sleepers.begin_watch_or_follow())
        };
        assert!(sleepers.end(watcher));
        sleepers.hand_over();
        match other.join().unwrap().expect("a descriptor") {
            Place::Watcher(sleeper, _) => assert!(sleepers.end(sleeper)),
            Place::Follower(follower) => {
                assert!(sleepers.end_following(follower), "there is no watcher");
            }
        }
    });
}

/// In every interleaving, a watcher that was displaced wakes the background thread after it has
/// withdrawn its announcement. That thread may already rely on an announcement of its own.
#[test]
fn loom_a_displaced_watcher_withdraws_no_announcement_unnoticed() {
    loom::model(|| {
        let sleepers = loom::sync::Arc::new(Sleepers::default());
        let announced = loom::sync::Arc::new(AtomicUsize::new(0));
        let stopped = sleepers.begin().expect("a descriptor");
        announced.store(1, Ordering::SeqCst);
        let background = {
            let (sleepers, announced) = (sleepers.clone(), announced.clone());
            loom::thread::spawn(move || {
                sleepers.displace();
                let watches = sleepers.watch_in_background();
                announced.store(1, Ordering::SeqCst);
                watches
            })
        };
        announced.store(0, Ordering::SeqCst);
        let may_be_silent = sleepers.end(stopped);
        let watches = background.join().unwrap();
        assert!(watches, "nobody else watches");
        let is_announced = announced.load(Ordering::SeqCst) == 1;
        assert!(is_announced || !may_be_silent, "nobody wakes the thread");
    });
}
