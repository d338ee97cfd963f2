//! Rules that model a network.

use super::tests::{ENDS, faults, packet};
use super::*;
use rocade_wire::Operation;

/// Returns an RC packet that is `ip_bytes` bytes long with IPv4 and UDP.
fn of_size(ip_bytes: usize) -> Vec<u8> {
    let mut bytes = packet(Operation::WriteMiddle, 0x11, 7);
    bytes.resize(ip_bytes - 28, 0);
    bytes
}

#[test]
fn packets_above_a_size_are_lost() {
    let mut faults = faults("drop size=1501..");
    let mut lost = |size| {
        let bytes = of_size(size);
        let effect = faults.decide(Time::ZERO, PacketDirection::Tx, ENDS, &bytes);
        effect.copies == 0
    };
    assert_eq!([1_100, 1_500, 1_504].map(&mut lost), [false, false, true]);
}

#[test]
fn a_partition_is_for_both_directions_and_a_mute_end_still_receives() {
    let bytes = of_size(100);
    let lost = |text: &str| {
        let mut faults = faults(text);
        [PacketDirection::Tx, PacketDirection::Rx]
            .map(|direction| faults.decide(Time::ZERO, direction, ENDS, &bytes).copies == 0)
    };
    assert_eq!(lost("partition"), [true, true]);
    assert_eq!(lost("partition ip=192.0.2.2"), [true, true]);
    assert_eq!(lost("partition ip=192.0.2.9"), [false, false]);
    assert_eq!(lost("mute"), [true, false]);
}

/// With 1e-5 wrong bits, 8 % of the packets of 1 KB and 0.8 % of those of 100 bytes have one.
#[test]
fn long_packets_are_damaged_more_often() {
    let damaged = |size, text: &str| {
        let (mut faults, bytes) = (faults(text), of_size(size));
        let mut decide = || faults.decide(Time::ZERO, PacketDirection::Tx, ENDS, &bytes);
        (0..100_000).filter(|_| decide().corrupt.is_some()).count()
    };
    assert!((7_500..8_100).contains(&damaged(1_024, "corrupt ber=1e-5 seed=1")));
    assert!((700..900).contains(&damaged(100, "corrupt ber=1e-5 seed=1")));
    assert_eq!(damaged(1_024, "corrupt ber=1e-15 seed=1"), 0);
}

/// Packets of one path stay in order, those of different paths do not.
#[test]
fn paths_reorder_packets_but_not_their_own() {
    let (mut faults, bytes) = (faults("spray paths=3 by=10us seed=5"), of_size(100));
    let arrivals: Vec<_> = (0..300)
        .map(|packet| {
            let now = Time::from_ns(packet * 1_000);
            let effect = faults.decide(now, PacketDirection::Tx, ENDS, &bytes);
            (effect.delay_ns, now.plus_ns(effect.delay_ns))
        })
        .collect();
    let mut delays: Vec<_> = arrivals.iter().map(|(delay_ns, _)| *delay_ns).collect();
    assert!(!arrivals.is_sorted_by_key(|(_, arrival)| *arrival));
    delays.sort_unstable();
    delays.dedup();
    assert_eq!(delays, [1, 10_000, 20_000]);
}

#[test]
fn a_link_delays_marks_and_loses_as_its_queue_fills() {
    let text = "link rate=1mbit latency=1ms queue=3000 mark=1000..2000";
    let (mut faults, bytes) = (faults(text), of_size(962));
    let notes: Vec<_> = (0..4)
        .map(|_| {
            let effect = faults.decide(Time::ZERO, PacketDirection::Tx, ENDS, &bytes);
            (effect.copies, effect.delay_ns, effect.ecn)
        })
        .collect();
    // 1000 bytes on the wire take 8 ms.
    assert_eq!(
        notes,
        [
            (1, 9_000_000, false),
            (1, 17_000_000, notes[1].2),
            (1, 25_000_000, true),
            (0, 0, false)
        ]
    );
    let hits: Vec<_> = faults.rules().map(|(_, hits)| hits).collect();
    assert_eq!(hits, [4]);
}

#[test]
fn one_link_after_the_other_adds_up() {
    let text = "link latency=1ms; link latency=2ms; drop nth=2";
    let (mut faults, bytes) = (faults(text), of_size(100));
    let first = faults.decide(Time::ZERO, PacketDirection::Tx, ENDS, &bytes);
    assert_eq!((first.copies, first.delay_ns), (1, 3_000_000));
    let second = faults.decide(Time::ZERO, PacketDirection::Tx, ENDS, &bytes);
    assert_eq!(second.copies, 0);
}
