use std::thread;
use std::time::Instant;

use rocade_transport::SendOp;

use super::super::pending::common::{self, Side};
use super::*;

const LIMIT: Duration = Duration::from_secs(60);

fn arm(side: &Side) {
    let sges = [side.sge(0, 8)];
    side.qp.recv_queue().push(7, &sges).expect("room");
    side.cq.arm(false).expect("a channel");
}

fn send(side: &Side) {
    side.send(1, SendOp::Send { imm: None }, &[side.sge(0, 8)]);
}

/// Waits for the event of the channel, like a socket.
fn wait(side: &Side) {
    let mut fds = [pollfd {
        fd: side.channel.fd(),
        events: libc::POLLIN,
        revents: 0,
    }];
    let ready = side.engine.poll_descriptors(&mut fds, Some(LIMIT));
    let ready = ready.expect("no signal");
    assert_eq!((ready, fds[0].revents), (1, libc::POLLIN));
}

fn finish(a: &Side, b: &Side) {
    assert_eq!(a.channel.try_event(), Some(7));
    a.cq.ack_events(1);
    assert_eq!(a.completion().wr_id, 7);
    assert_eq!(b.completion().wr_id, 1);
}

/// The background thread watches for none of these messages.
#[test]
fn a_thread_that_waits_for_descriptors_receives_by_itself() {
    let (a, b) = common::pair("127.4.0.59", "127.4.0.60", 64);
    let sleepers = a.engine.inner().scheduler.service_queue.sleepers();
    let (begin, mut by_itself) = (Instant::now(), 0);
    while by_itself < 20 {
        assert!(begin.elapsed() < LIMIT, "the thread does not watch");
        arm(&a);
        thread::scope(|scope| {
            let waiter = scope.spawn(|| wait(&a));
            while !sleepers.has_waiter() && begin.elapsed() < LIMIT {
                thread::yield_now();
            }
            by_itself += u32::from(sleepers.has_watching_poller());
            send(&b);
            waiter.join().unwrap();
        });
        finish(&a, &b);
    }
    assert!(!sleepers.has_registered());
}

/// Two threads of an engine wait: one watches, the other one follows. Each gets its event, and no
/// thread stays behind.
#[test]
fn two_threads_of_an_engine_wait_and_get_their_events() {
    let (one, far_one) = common::pair("127.4.0.61", "127.4.0.62", 64);
    let other = Side::on(one.engine.clone(), 64);
    let far_other = Side::on(far_one.engine.clone(), 64);
    common::connect(&other, &far_other);
    let sleepers = one.engine.inner().scheduler.service_queue.sleepers();
    let (begin, mut followed) = (Instant::now(), 0);
    for round in 0.. {
        if followed >= 20 {
            break;
        }
        assert!(begin.elapsed() < LIMIT, "no thread follows");
        arm(&one);
        arm(&other);
        thread::scope(|scope| {
            let waiters = [&one, &other].map(|side| scope.spawn(|| wait(side)));
            // After some milliseconds the background thread watches.
            while !sleepers.has_follower()
                && !sleepers.is_watched_in_background()
                && begin.elapsed() < LIMIT
            {
                thread::yield_now();
            }
            followed += u32::from(sleepers.has_follower());
            let mut ends = [&far_one, &far_other].into_iter().zip(waiters);
            if round % 2 == 0 {
                // The first one leaves, and the second one waits for a while.
                let (far, waiter) = ends.next().unwrap();
                send(far);
                waiter.join().unwrap();
            }
            let rest: Vec<_> = ends.collect();
            rest.iter().for_each(|(far, _)| send(far));
            for (_, waiter) in rest {
                waiter.join().unwrap();
            }
        });
        finish(&one, &far_one);
        finish(&other, &far_other);
    }
    assert!(!sleepers.has_follower() && !sleepers.has_registered());
}

/// Descriptors of the caller count like those of ppoll(2), and so does the time.
#[test]
fn other_descriptors_and_the_time_count() {
    let (a, _b) = common::pair("127.4.0.63", "127.4.0.64", 64);
    let event = crate::sys::eventfd().unwrap();
    let fd = std::os::fd::AsRawFd::as_raw_fd(&event);
    let entry = |fd, events| pollfd {
        fd,
        events,
        revents: 0,
    };
    let mut fds = [
        entry(a.channel.fd(), libc::POLLIN),
        entry(NO_FD, libc::POLLIN),
        entry(fd, libc::POLLIN),
    ];
    let begin = Instant::now();
    let short = Duration::from_millis(20);
    assert_eq!(a.engine.poll_descriptors(&mut fds, Some(short)).unwrap(), 0);
    assert!(begin.elapsed() >= short);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| a.engine.poll_descriptors(&mut fds, None).unwrap());
        crate::sys::eventfd_set(std::os::fd::AsFd::as_fd(&event));
        assert_eq!(waiter.join().unwrap(), 1);
    });
    assert_eq!(fds.map(|fd| fd.revents), [0, 0, libc::POLLIN]);
    fds[2] = entry(fd, libc::POLLOUT);
    assert_eq!(a.engine.poll_descriptors(&mut fds, None).unwrap(), 1);
    assert_eq!(fds[2].revents, libc::POLLOUT);
}
