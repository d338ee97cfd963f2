//! The end of sessions, and packets that arrive later.

use super::sessions::{packet, start_packet};
use super::*;
use crate::{PacketMeta, Time};
use rocade_wire::Packet;

fn dropped(fabric: &Fabric, id: NodeId, reason: DropReason) -> u64 {
    fabric.node(id).qp.counters().dropped(reason)
}

/// Returns the first packet of a session with the number 100, whose PSN is 5: a WRITE of 8 bytes.
fn first_write(fabric: &Fabric, dci: NodeId, dct: NodeId, to: &Region) -> Headers {
    start_packet(fabric, dci, dct, 100, 5, |headers| {
        headers.reth = Some(Reth {
            va: to.addr,
            rkey: to.rkey,
            dma_len: 8,
        });
    })
}

/// Returns the DISCONNECT of that session.
fn disconnect(first: &Headers, psn: u32) -> Vec<u8> {
    let mut end = *first;
    end.bth.opcode = Opcode::of(Service::Dc, Operation::Disconnect).unwrap();
    end.bth.psn = Psn::new(psn);
    end.reth = None;
    if let Some(eth) = &mut end.dceth {
        eth.start = false;
    }
    packet(&end, &[])
}

fn sessions(fabric: &Fabric, dct: NodeId) -> usize {
    fabric.node(dct).qp.target_status().unwrap().sessions
}

/// Checks that a DISCONNECT that is older than the last packet has no effect. The right one is
/// acknowledged as often as it arrives.
//= DCW-12 DCW-14 type=test
#[test]
fn a_session_ends_once_and_its_end_is_acknowledged_each_time() {
    let (mut fabric, dci, dcts) = star(1);
    let dct = dcts[0];
    let b = region(&fabric, dct, 64);
    let ip = fabric.node(dci).ip;
    let first = first_write(&fabric, dci, dct, &b);
    fabric.inject(ip, dct, &packet(&first, &[9; 8]));
    fabric.clear_trace();
    fabric.inject(ip, dct, &disconnect(&first, 4));
    assert_eq!(sessions(&fabric, dct), 1, "the session continues");
    assert!(fabric.trace().is_empty());
    for _ in 0..3 {
        fabric.clear_trace();
        fabric.inject(ip, dct, &disconnect(&first, 6));
        assert_eq!(sessions(&fabric, dct), 0);
        let [answer] = fabric.trace() else {
            panic!("{:?}", fabric.trace())
        };
        assert!(
            answer.contains("DC ACKNOWLEDGE") && answer.contains("psn=0x000006"),
            "{answer}"
        );
    }
}

/// Checks that a session executes no further request after one was refused.
//= DC-09 DC-13 type=test
#[test]
fn a_session_that_has_failed_executes_nothing() {
    let (mut fabric, dci, dcts) = star(1);
    let dct = dcts[0];
    let b = region(&fabric, dct, 64);
    let ip = fabric.node(dci).ip;
    let mut request = first_write(&fabric, dci, dct, &b);
    let wrong = |headers: &mut Headers| headers.reth.as_mut().unwrap().va += 60;
    wrong(&mut request);
    fabric.inject(ip, dct, &packet(&request, &[9; 8]));
    let good = first_write(&fabric, dci, dct, &b);
    for psn in 5..=7 {
        let mut again = good;
        again.bth.psn = Psn::new(psn);
        fabric.inject(ip, dct, &packet(&again, &[9; 8]));
    }
    assert_eq!(dropped(&fabric, dct, DropReason::State), 3);
    assert_eq!(fabric.node(dct).mem.all(&b), [0; 64]);
    assert_eq!(sessions(&fabric, dct), 0);
}

/// Checks that the answers to a flood of packets without a session are bounded.
//= DCW-09 type=test
#[test]
fn answers_outside_of_sessions_are_bounded() {
    let (mut fabric, dci, dcts) = star(1);
    let dct = dcts[0];
    let b = region(&fabric, dct, 64);
    let mut lost = first_write(&fabric, dci, dct, &b);
    if let Some(eth) = &mut lost.dceth {
        eth.start = false;
    }
    fabric.clear_trace();
    handle_all(&mut fabric, dct, &vec![packet(&lost, &[9; 8]); 1000]);
    fabric.drain(dct);
    assert_eq!(count(&fabric, "NO_SESSION"), 64);
    assert_eq!(dropped(&fabric, dct, DropReason::NoSession), 1000);
}

/// Delivers packets of the first host in one batch: no answer is sent in between.
fn handle_all(fabric: &mut Fabric, dct: NodeId, packets: &[Vec<u8>]) {
    let meta = PacketMeta {
        source: IpAddr::from([10, 0, 0, 1]),
        destination: fabric.node(dct).ip,
        traffic_class: 0,
        hop_limit: 64,
    };
    let now = fabric.now();
    let node = fabric.node_mut(dct);
    for bytes in packets {
        let packet = Packet::parse(bytes).expect("a packet");
        node.qp.handle_packet(now, &meta, &packet, &node.mem);
    }
}

/// Checks the messages of a session whose index was reused for another session. If their
/// completions are lost, they are not acknowledged, and the other session is not affected.
//= RC-ERR-G DCW-09 type=test
#[test]
fn completions_are_counted_for_the_session_that_they_are_of() {
    let (mut fabric, dci, dcts) = star(1);
    let dct = dcts[0];
    let b = region(&fabric, dct, 64);
    for wr_id in 1..=2 {
        fabric.recv(dct, wr_id, &[b.sge()]);
    }
    let send = |fabric: &Fabric, session| {
        let headers = start_packet(fabric, dci, dct, session, 5, |headers| {
            headers.bth.opcode = Opcode::of(Service::Dc, Operation::SendOnly).unwrap();
            headers.reth = None;
        });
        packet(&headers, &[9; 8])
    };
    let packets = [send(&fabric, 100), send(&fabric, 101)];
    handle_all(&mut fabric, dct, &packets);
    let qp = &mut fabric.node_mut(dct).qp;
    assert_eq!(qp.poll_completion().map(|it| it.wr_id), Some(1));
    qp.set_fatal(Time::from_ns(2), 0);
    fabric.clear_trace();
    fabric.drain(dct);
    assert_eq!(count(&fabric, "DC ACKNOWLEDGE"), 0, "{:?}", fabric.trace());
}

/// Checks that a peer that did not answer is probed again, because another device may have its
/// address.
//= RXE-115 DCW-18 type=test
#[test]
fn a_peer_that_failed_is_asked_again_who_it_is() {
    let (mut fabric, dci, dcts) = star(1);
    let (a, b) = (region(&fabric, dci, 64), region(&fabric, dcts[0], 64));
    let to = fabric.to(dci, dcts[0], KEY);
    fabric.post(dci, to, 1, write(&b, 0), &[a.part(0, 8)]);
    fabric.run_for(MS);
    fabric.node_mut(dcts[0]).is_dead = true;
    fabric.post(dci, to, 2, write(&b, 0), &[a.part(0, 8)]);
    fabric.run();
    let ok = WcStatus::Success;
    let expected = [(1, ok), (2, WcStatus::RetryExcErr)];
    assert_eq!(statuses(&fabric.take_completions(dci)), expected);
    recover(&mut fabric, dci);
    fabric.clear_trace();
    fabric.post(dci, to, 3, write(&b, 0), &[a.part(0, 8)]);
    fabric.run();
    assert_eq!(
        statuses(&fabric.take_completions(dci)),
        [(3, WcStatus::RetryExcErr)]
    );
    let is_question = |line: &alloc::string::String| line.starts_with("UD SEND_ONLY");
    assert!(
        fabric.trace().iter().all(is_question),
        "{:?}",
        fabric.trace()
    );
}

/// Checks that a session without traffic for a minute is remembered while completions of its
/// messages wait to be handed out. Otherwise its initiator's repetition would begin another
/// session, and the message would be received twice.
//= DCW-14 DCW-15 RC-ACK-20 type=test
#[test]
fn a_session_with_unreported_messages_is_remembered() {
    let (mut fabric, dci, dcts) = star(1);
    let dct = dcts[0];
    let b = region(&fabric, dct, 64);
    for wr_id in 1..=4 {
        fabric.recv(dct, wr_id, &[b.sge()]);
    }
    let send = |channel, ack_req| {
        let headers = start_packet(&fabric, dci, dct, 100, 5, |headers| {
            headers.bth.opcode = Opcode::of(Service::Dc, Operation::SendOnly).unwrap();
            headers.bth.ack_req = ack_req;
            headers.reth = None;
            if let Some(eth) = &mut headers.dceth {
                eth.stream_channel = channel;
            }
        });
        packet(&headers, &[9; 8])
    };
    // The initiator asks for an ACK with its repetition only, so that the target has nothing to
    // send.
    let (first, again) = (send(0, false), send(0, true));
    let (other, third) = (send(1, true), send(2, true));
    // The completion is not taken. After a minute, another session begins.
    handle_all(&mut fabric, dct, &[first]);
    fabric.run_for(SESSION_MEMORY_NS + MS);
    handle_all(&mut fabric, dct, &[other]);
    fabric.clear_trace();
    fabric.drain(dct);
    assert_eq!(fabric.take_completions(dct).len(), 2);
    handle_all(&mut fabric, dct, &[again]);
    fabric.drain(dct);
    assert_eq!(fabric.take_completions(dct).len(), 0, "received twice");
    assert!(
        count(&fabric, "DC ACKNOWLEDGE") >= 2,
        "{:?}",
        fabric.trace()
    );
    // With all completions handed out, it is forgotten after another minute.
    fabric.run_for(SESSION_MEMORY_NS + MS);
    handle_all(&mut fabric, dct, &[third]);
    assert_eq!(sessions(&fabric, dct), 1);
}
