//! A link of another kind, under queue pairs.

use std::net::IpAddr;
use std::sync::Arc;

use rocade_transport::SendOp;

use super::super::link_sides;
use crate::link::LocalAddr;
use crate::link::peer_link::{AnyPeerLink, Ends};
use crate::link::pipe::PipeLink;
use crate::steering::ProcessSlot;

/// Messages of all lengths, WRITEs and READs arrive by it, in both directions. There is no other
/// way: with `LinkMode::Shm` nothing goes over UDP.
#[test]
fn queue_pairs_use_whatever_link_there_is() {
    let addresses = ["127.4.0.71", "127.4.0.72"];
    let (a, b) = link_sides::unconnected_with(addresses, LEN);
    let nic = &a.engine.inner;
    let [local, peer] = addresses.map(|ip| LocalAddr::from(ip.parse::<IpAddr>().expect("an IP")));
    let slot = ProcessSlot::EMBEDDED;
    let wake = &nic.scheduler.peer_wake_fd;
    let pipe = PipeLink::pair(Ends { local, peer, slot }, wake);
    let pipe = pipe.map(|end| Arc::new(AnyPeerLink::Pipe(end)));
    nic.add_own_peer_link(local, peer, slot, &pipe);
    a.to_rts(b.qp.qp_num().get(), b.gid());
    b.to_rts(a.qp.qp_num().get(), a.gid());
    link_sides::use_shm(&a);
    assert_eq!(
        nic.links.peer_links.read().len(),
        2,
        "no other link was made"
    );

    for (from, to) in [(&a, &b), (&b, &a)] {
        for (index, len) in [1, 8, 4096, 60_000].into_iter().enumerate() {
            let byte = u8::try_from(index + 1).expect("few");
            from.fill(0, &vec![byte; len]);
            to.qp
                .recv_queue()
                .push(7, &[to.sge(0, LEN)])
                .expect("space");
            from.send(1, SendOp::Send { imm: None }, &[from.sge(0, len)]);
            assert_eq!(to.completion().byte_len as usize, len);
            assert_eq!(from.completion().wr_id, 1);
            assert_eq!(to.bytes(0, len), vec![byte; len]);
        }
        let at = to.addr(0);
        let rkey = to.mr.rkey();
        from.send(2, SendOp::Read { va: at, rkey }, &[from.sge(0, LEN)]);
        assert_eq!(from.completion().wr_id, 2);
        assert_eq!(from.bytes(0, LEN), to.bytes(0, LEN));
    }
}

/// Bytes of a side's memory.
const LEN: usize = 65_536;
