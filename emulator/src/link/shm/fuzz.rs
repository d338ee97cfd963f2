//! Fuzz target: a shared-memory link whose peer writes arbitrary data.

use std::net::IpAddr;
use std::ops::ControlFlow;
use std::os::fd::AsFd as _;

use super::memory::RingDirection;
use super::{
    Fragment, HEAD_LEN, Inbound as _, PeerBatch as _, PeerLink as _, PeerReceiver as _,
    RECORD_HEADER, RING_LEN, SendOutcome, Sending, ShmLink, wake_fd,
};
use crate::steering::ProcessSlot;

/// Most bytes of the batches that are sent. Longer ones only take more time.
const MAX_SENT: u16 = 4096;

/// Executes `input` on a link, three bytes per step: sends, receives, and damages the memory that
/// the sender may write. Data received without damage must equal the data sent, in order. Nothing
/// may panic, and a receiver that has detected damage must receive nothing more.
///
/// # Panics
/// If the link breaks one of these rules.
pub fn records(input: &[u8]) {
    let wake = wake_fd().expect("an eventfd");
    let ip = IpAddr::from([127, 0, 0, 1]);
    let ends = ShmLink::own(ip.into(), ip.into(), ProcessSlot::new(1), wake.as_fd());
    let [a, b] = ends.expect("memory");
    let (mut sent, mut received) = (0u8, 0u8);
    let mut damaged = false;
    for step in input.as_chunks::<3>().0 {
        let [what, ref operand @ ..] = *step;
        let operand = u16::from_le_bytes(*operand);
        match what % 8 {
            0..=2 => {
                let batch = vec![sent; usize::from(operand % MAX_SENT) + 1];
                if send(&a, &batch, what) == SendOutcome::Sent {
                    sent = sent.wrapping_add(1);
                }
            }
            3 => a.publish_unpublished(),
            4 => {
                let at = u64::from(operand) * RECORD_HEADER as u64 % RING_LEN as u64;
                a.memory
                    .write(RingDirection::First, at, &[what, what >> 3, what, 1]);
                damaged = true;
            }
            5 => {
                let control = a.memory.control(RingDirection::First);
                control.damage(what >> 3, u64::from(operand) << (what >> 5));
                damaged = true;
            }
            6 => {
                let mut receiver = b.receiver();
                receiver.read_unpublished();
            }
            _ => receive(&b, usize::from(operand), |byte| {
                assert!(damaged || byte == received, "{byte} instead of {received}");
                received = received.wrapping_add(1);
            }),
        }
        if b.has_ended() {
            assert!(damaged, "nothing was damaged");
            receive(&b, usize::MAX, |_| panic!("the link has ended"));
        }
    }
}

fn send(end: &ShmLink, batch: &[u8], what: u8) -> SendOutcome {
    let sending = Sending {
        len: batch.len(),
        segment_len: usize::from(what) + 1,
        traffic_class: 0,
        hop_limit: 1,
        after_udp: what & 0x10 != 0,
        wait: what & 0x20 != 0,
        unpublished: what & 0x40 != 0,
    };
    end.send(std::iter::once(Fragment::Bytes(batch)), sending)
}

/// Receives up to `max` batches, parses their segments and passes the first byte of each batch to
/// `first_byte`.
fn receive(end: &ShmLink, max: usize, mut first_byte: impl FnMut(u8)) {
    end.receiver().receive(max, true, |batch| {
        for (index, segment) in batch.segments().enumerate() {
            let mut head = [0; HEAD_LEN];
            let head = segment.copy_head(&mut head);
            if index == 0 {
                first_byte(head[0]);
            }
            let _ = (segment.fast_path(), segment.whole());
            assert_eq!(segment.copied().len(), segment.in_place().len());
        }
        ControlFlow::Continue(())
    });
}
