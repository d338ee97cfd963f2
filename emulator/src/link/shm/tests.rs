use std::net::IpAddr;

use super::*;

/// Returns both ends of a link in one process.
/// Announces the sleep of the process at this end.
fn announce_at(end: &ShmLink) -> bool {
    announce_sleep(
        std::iter::once(end),
        PeerLink::announce,
        PeerLink::has_unread,
    )
}

fn pair() -> (ShmLink, ShmLink) {
    let (a, b, ..) = pair_and_wakes();
    (a, b)
}

/// Returns both ends of a link, and the eventfds that wake the first and the second process.
fn pair_and_wakes() -> (ShmLink, ShmLink, OwnedFd, OwnedFd) {
    let memory = create().unwrap();
    let (line_a, line_b) = UnixStream::pair().unwrap();
    let (wake_a, wake_b) = (wake_fd().unwrap(), wake_fd().unwrap());
    let wakes = (wake_a.try_clone().unwrap(), wake_b.try_clone().unwrap());
    let (ip_a, ip_b) = (IpAddr::from([127, 0, 0, 1]), IpAddr::from([127, 0, 0, 2]));
    let a = PeerLinkOffer {
        local: ip_a.into(),
        peer: ip_b.into(),
        slot: ProcessSlot::new(2),
        asked: true,
        memory: memory.try_clone().unwrap(),
        liveness_socket: line_a.into(),
        wake: wake_b,
    };
    let b = PeerLinkOffer {
        local: ip_b.into(),
        peer: ip_a.into(),
        slot: ProcessSlot::new(1),
        asked: false,
        memory,
        liveness_socket: line_b.into(),
        wake: wake_a,
    };
    let (a, b) = (ShmLink::new(a).unwrap(), ShmLink::new(b).unwrap());
    (a, b, wakes.0, wakes.1)
}

/// Sends a batch, in two fragments.
fn send(shm_link: &ShmLink, batch: &[u8], segment_len: usize) -> SendOutcome {
    let (head, tail) = batch.split_at(batch.len() / 2);
    let fragments = [Fragment::Bytes(head), Fragment::Bytes(tail)];
    shm_link.send(fragments.into_iter(), sending(batch, segment_len))
}

fn sending(batch: &[u8], segment_len: usize) -> Sending {
    Sending {
        len: batch.len(),
        segment_len,
        traffic_class: 0x62,
        hop_limit: 9,
        after_udp: false,
        wait: true,
        unpublished: false,
    }
}

fn send_after_udp(shm_link: &ShmLink, batch: &[u8], segment_len: usize) -> SendOutcome {
    let fragments = std::iter::once(Fragment::Bytes(batch));
    let sending = Sending {
        after_udp: true,
        ..sending(batch, segment_len)
    };
    shm_link.send(fragments, sending)
}

/// Receives with one call. Returns batches as lists of segments.
fn receive(shm_link: &ShmLink, max: usize) -> Vec<Vec<Vec<u8>>> {
    let mut batches = Vec::new();
    shm_link.receiver().receive(max, true, |batch| {
        assert_eq!(batch.header(), (0x62, 9));
        let mut segments = Vec::new();
        for segment in batch.segments() {
            let bytes = segment.in_place();
            let mut head = [0; HEAD_LEN];
            let head = segment.copy_head(&mut head);
            assert_eq!(head, &bytes[..bytes.len().min(HEAD_LEN)]);
            let first: Option<[u8; 4]> = segment.copy_first();
            assert_eq!(first.as_ref(), bytes.first_chunk());
            segments.push(bytes.to_vec());
        }
        batches.push(segments);
        ControlFlow::Continue(())
    });
    batches
}

#[test]
fn runs_arrive_in_order_and_cut_as_sent() {
    let (a, b) = pair();
    assert!(!b.has_packets());
    assert_eq!(send(&a, b"abcdefgh", 3), SendOutcome::Sent);
    assert_eq!(send(&a, &[7; 100], 100), SendOutcome::Sent);
    assert_eq!(send(&b, b"back", 64), SendOutcome::Sent);
    assert!(b.has_packets());
    assert_eq!(
        receive(&b, 10),
        [
            vec![b"abc".to_vec(), b"def".to_vec(), b"gh".to_vec()],
            vec![vec![7; 100]]
        ]
    );
    assert!(!b.has_packets());
    assert_eq!(receive(&a, 10), [[b"back"]]);
}

#[test]
fn a_full_ring_takes_nothing_and_has_room_again_later() {
    let (a, b) = pair();
    let mut sent = 0usize;
    // Wraps around several times.
    for round in 0..5 {
        while send(
            &a,
            &vec![u8::try_from(sent % 251).unwrap(); 60_000 - round],
            4096,
        ) == SendOutcome::Sent
        {
            sent += 1;
        }
        assert!(sent > 0);
        let received = receive(&b, usize::MAX);
        assert!(received.len() > 10);
        for batch in &received {
            assert!(batch.iter().flatten().all(|byte| *byte == batch[0][0]));
        }
        assert!(!b.has_packets());
    }
}

#[test]
fn a_call_receives_no_more_than_asked() {
    let (a, b) = pair();
    for n in 0..5u8 {
        assert_eq!(send(&a, &[n; 20], 20), SendOutcome::Sent);
    }
    assert_eq!(receive(&b, 2).len(), 2);
    assert_eq!(receive(&b, 9).len(), 3);
}

#[test]
fn what_came_over_udp_is_received_first() {
    let (a, b) = pair();
    assert_eq!(send(&a, b"1", 1), SendOutcome::Sent);
    assert_eq!(send_after_udp(&a, b"2", 1), SendOutcome::Sent);
    assert_eq!(send(&a, b"3", 1), SendOutcome::Sent);
    let count = |udp_received| {
        let mut count = 0;
        b.receiver().receive(9, udp_received, |_| {
            count += 1;
            ControlFlow::Continue(())
        });
        count
    };
    assert!(!b.receiver().is_after_udp());
    assert_eq!(count(true), 1, "that was long before the second batch");
    assert!(b.receiver().is_after_udp());
    assert_eq!(count(false), 0);
    assert_eq!(count(true), 2);
    assert!(!b.receiver().is_after_udp());
}

#[test]
fn runs_that_are_too_long_are_not_sent() {
    let (a, b) = pair();
    assert_eq!(send(&a, &vec![0; MAX_BATCH + 1], 4096), SendOutcome::Ended);
    assert_eq!(send(&a, &vec![0; MAX_BATCH], 4096), SendOutcome::Sent);
    assert_eq!(receive(&b, 9).len(), 1);
}

#[test]
fn a_peer_that_damages_the_memory_is_ignored() {
    for damage in [
        &[0u8; 8][..],
        &[0xff; 8],
        &[1, 0, 0, 0, 0, 0, 0, 0],
        // A batch that ends after the published bytes.
        &[200, 0, 0, 0, 8, 0, 0, 0],
        // An unknown flag.
        &[4, 0, 0, 0, 4, 0, 2, 0],
    ] {
        let (a, b) = pair();
        assert_eq!(send(&a, b"some", 4), SendOutcome::Sent);
        a.memory.write(RingDirection::First, 0, damage);
        assert_eq!(receive(&b, 9).len(), 0);
        assert!(b.has_ended());
        assert!(!b.has_packets());
        assert_eq!(send(&b, b"x", 1), SendOutcome::Ended);
        assert!(a.has_hung_up(), "the peer notices");
    }
}

#[test]
fn the_end_of_the_peer_is_detected_and_its_last_packets_are_read() {
    let (a, b) = pair();
    assert!(!a.has_hung_up());
    assert_eq!(send(&b, b"last", 4), SendOutcome::Sent);
    drop(b);
    assert!(a.has_hung_up());
    assert!(a.has_packets());
    assert_eq!(receive(&a, 9), [[b"last"]]);
    a.end();
    assert_eq!(send(&a, b"x", 1), SendOutcome::Ended);
}

/// Returns true if an eventfd was written since the last call.
fn was_woken(wake: &OwnedFd) -> bool {
    let mut set = crate::sys::PollSet::default();
    let entry = set.add(std::os::fd::AsRawFd::as_raw_fd(wake));
    set.wait(Some(std::time::Duration::ZERO)).unwrap();
    let woken = set.is_ready(entry);
    crate::sys::eventfd_clear(wake.as_fd());
    woken
}

#[test]
fn a_producer_that_waits_for_room_is_woken_when_there_is_some() {
    let (a, b, wake_a, _) = pair_and_wakes();
    let long = vec![7; 60_000];
    while send(&a, &long, 4096) == SendOutcome::Sent {}
    assert!(!was_woken(&wake_a));
    assert_eq!(receive(&b, 1).len(), 1);
    assert!(was_woken(&wake_a), "there is space for the next batch");
    assert_eq!(send(&a, &long, 4096), SendOutcome::Sent);
    assert_eq!(receive(&b, 1).len(), 1);
    assert!(!was_woken(&wake_a), "no process waits");
}

#[test]
fn a_producer_that_does_not_wait_is_not_woken() {
    let (a, b, wake_a, _) = pair_and_wakes();
    let batch = vec![7; 60_000];
    let no_wait = Sending {
        wait: false,
        ..sending(&batch, 4096)
    };
    while a.send(std::iter::once(Fragment::Bytes(&batch)), no_wait) == SendOutcome::Sent {}
    assert_eq!(receive(&b, 1).len(), 1);
    assert!(!was_woken(&wake_a));
}

#[test]
fn a_consumer_that_sleeps_is_woken_once_and_one_that_is_awake_is_not() {
    let (a, b, _, wake_b) = pair_and_wakes();
    assert_eq!(send(&a, b"one", 3), SendOutcome::Sent);
    assert!(!was_woken(&wake_b));
    let goes_to_sleep = || announce_at(&b);
    assert!(!goes_to_sleep(), "a batch is there");
    assert!(!b.wake_up());
    assert_eq!(receive(&b, 9).len(), 1);
    assert!(goes_to_sleep());
    assert_eq!(send(&a, b"two", 3), SendOutcome::Sent);
    assert!(was_woken(&wake_b));
    assert_eq!(send(&a, b"three", 5), SendOutcome::Sent);
    assert!(!was_woken(&wake_b), "it is woken already");
    assert!(b.wake_up());
}

#[test]
fn an_unpublished_run_is_seen_with_the_next_one_or_on_request() {
    let (a, b, _, wake_b) = pair_and_wakes();
    let unpublished = |batch: &[u8]| {
        let sending = Sending {
            unpublished: true,
            ..sending(batch, batch.len())
        };
        a.send(std::iter::once(Fragment::Bytes(batch)), sending)
    };
    assert!(announce_at(&b));
    assert_eq!(unpublished(b"ack"), SendOutcome::Sent);
    assert!(!b.has_packets() && !was_woken(&wake_b));
    a.publish_unpublished();
    assert!(was_woken(&wake_b));
    assert_eq!(receive(&b, 9), [[b"ack"]]);
    assert_eq!(unpublished(b"ack"), SendOutcome::Sent);
    assert_eq!(send(&a, b"end", 3), SendOutcome::Sent);
    assert_eq!(receive(&b, 9), [[b"ack"], [b"end"]]);
}

/// The peer frees only the space of published records. A ring full of unpublished ones would stay
/// full.
#[test]
fn a_full_ring_publishes_what_is_in_it() {
    let (a, b) = pair();
    let batch = vec![7; 60_000];
    let unpublished = Sending {
        unpublished: true,
        ..sending(&batch, 4096)
    };
    let mut sent = 0;
    while a.send(std::iter::once(Fragment::Bytes(&batch)), unpublished) == SendOutcome::Sent {
        assert!(!b.has_packets());
        sent += 1;
    }
    assert!(b.has_packets());
    assert_eq!(receive(&b, usize::MAX).len(), sent);
    assert_eq!(send(&a, &batch, 4096), SendOutcome::Sent);
}

/// The longest batch that fits into the published bytes is received, one byte more is not.
#[test]
fn the_length_of_a_record_is_checked_to_the_byte() {
    for (len, fits) in [(120u16, true), (121, false), (u16::MAX, false)] {
        let (a, b) = pair();
        assert_eq!(send(&a, &[7; 120], 120), SendOutcome::Sent);
        a.memory.write(RingDirection::First, 0, &len.to_le_bytes());
        assert_eq!(receive(&b, 9).len(), usize::from(fits), "{len}");
        assert_eq!(b.has_ended(), !fits, "{len}");
    }
}

/// A published position beyond the ring length ends the link, too.
#[test]
fn a_record_longer_than_what_was_written_is_not_received() {
    let (a, b) = pair();
    // There are two records, and the first one has a length that reaches beyond both.
    assert_eq!(send(&a, &[7; 100], 100), SendOutcome::Sent);
    assert_eq!(send(&a, &[8; 100], 100), SendOutcome::Sent);
    a.memory
        .write(RingDirection::First, 0, &249u16.to_le_bytes());
    assert_eq!(receive(&b, 9).len(), 0);
    assert!(b.has_ended());
}
