//! Rules that model a network, in virtual time: links with a queue, paths, wrong bits, and peers
//! that are out of reach.

#[path = "common/simulated.rs"]
mod simulated;

use rocade_verbs::{Result, WcStatus};
use simulated::{pair, status, write};

const MB: usize = 1 << 20;

/// 1 MB in packets of 1024 bytes has 82 bytes of headers and gaps per packet, so it takes 9.06 ms,
/// and the ACKs share the link.
#[test]
fn a_link_has_the_bandwidth_and_the_latency_of_its_rule() -> Result<()> {
    let (a, b, _list) = pair(1, "")?;
    let undisturbed = write(&a, &b, MB)?;
    assert!(undisturbed < 1_000_000, "{undisturbed} ns");

    let (a, b, _list) = pair(1, "link rate=1gbit queue=4M latency=100us")?;
    let shaped = write(&a, &b, MB)?;
    assert!((9_060_000..10_300_000).contains(&shaped), "{shaped} ns");
    // The request and the ACK, each with the latency of both the link and the simulated network.
    let small = write(&a, &b, 8)?;
    assert!((200_000..220_000).contains(&small), "{small} ns");
    assert_eq!(a.qp.counters().retransmitted_packets, 0);
    Ok(())
}

#[test]
fn jitter_lets_latency_vary_and_a_seed_repeats_it() -> Result<()> {
    let times = |seed| -> Result<Vec<u64>> {
        let (a, b, _list) = pair(seed, "link latency=10us jitter=90us")?;
        (0..50).map(|_| write(&a, &b, 8)).collect()
    };
    let first = times(3)?;
    // Twice the 5 µs of the simulated network come on top.
    assert!(first.iter().all(|ns| (29_000..215_000).contains(ns)));
    let (least, most) = (first.iter().min(), first.iter().max());
    assert!(most.copied() > least.map(|least| least + 90_000));
    assert_eq!(first, times(3)?);
    assert_ne!(first, times(4)?);
    Ok(())
}

/// Go-back-N retransmits what the queue has lost, and all data arrives.
#[test]
fn a_short_queue_loses_packets_and_marks_others() -> Result<()> {
    let (a, b, _list) = pair(5, "link rate=1gbit queue=64K mark=16K..48K opcode=REQUEST")?;
    write(&a, &b, MB)?;
    assert!(b.qp.counters().marked_packets > 0);
    assert!(a.qp.counters().retransmitted_packets > 0);
    assert_eq!(a.qp.counters().marked_packets, 0, "ACKs find no queue");
    Ok(())
}

/// RC demands order, so packets that another path overtakes are NAKed (IBTA 9.7.5.2.8).
#[test]
fn paths_of_different_length_reorder_packets() -> Result<()> {
    let (a, b, _list) = pair(6, "spray paths=2 by=3us opcode=REQUEST nth=1..400")?;
    write(&a, &b, MB)?;
    assert!(b.qp.counters().seq_naks_sent > 0);
    Ok(())
}

#[test]
fn wrong_bits_cost_packets_and_no_data() -> Result<()> {
    let (a, b, list) = pair(7, "corrupt ber=1e-6")?;
    write(&a, &b, 4 * MB)?;
    // 4096 packets of 8.9 kbit: some 36 have a wrong bit.
    let damaged = list.engine_counters().rx_bad_icrc;
    assert!((15..120).contains(&damaged), "{damaged}");
    assert!(a.qp.counters().retransmitted_packets > 0);
    Ok(())
}

/// Packets of the path MTU are lost and smaller ones are not, so the connection works until the
/// first long message.
#[test]
fn an_mtu_black_hole_swallows_long_packets_only() -> Result<()> {
    let (a, b, _list) = pair(8, "drop size=1001..")?;
    write(&a, &b, 900)?;
    let failed = status(write(&a, &b, 5_000));
    assert_eq!(failed, WcStatus::RetryExceeded);
    Ok(())
}

/// The peer receives the data, but its answers never arrive.
#[test]
fn a_mute_peer_receives_and_never_answers() -> Result<()> {
    let (a, b, _list) = pair(9, "mute opcode=RESPONSE")?;
    let failed = status(write(&a, &b, 900));
    assert_eq!(failed, WcStatus::RetryExceeded);
    assert_eq!(b.memory.to_vec(..900)?, [7; 900]);
    Ok(())
}

#[test]
fn a_partition_separates_the_ends() -> Result<()> {
    let (a, b, _list) = pair(10, "partition ip=10.0.0.2")?;
    assert_eq!(status(write(&a, &b, 900)), WcStatus::RetryExceeded);
    assert_eq!(b.memory.to_vec(..900)?, [0; 900]);
    Ok(())
}
