//! UD of the safe API in a simulated network: replies, Q_Keys and shared receive queues.
#![expect(clippy::unwrap_used, reason = "in a test")]

mod common;

use std::time::Duration;

use rocade_verbs::{
    AccessFlags, AddressOptions, CompletionQueue, Config, DatagramQueuePair, DeviceList, GRH_LEN,
    MemoryRegion, ProtectionDomain, RegionError, SendRequest, UdAddress,
};

use common::errno;

/// A minute of virtual time.
const MINUTE: Duration = Duration::from_secs(60);

struct Node {
    pd: ProtectionDomain,
    sends: CompletionQueue,
    receives: CompletionQueue,
    memory: MemoryRegion,
    qp: DatagramQueuePair,
}

impl Node {
    fn new(list: &DeviceList, name: &str) -> Self {
        let pd = list.open(name).unwrap().protection_domain().unwrap();
        let sends = pd.context().completion_queue(16).unwrap();
        let receives = pd.context().completion_queue(16).unwrap();
        let builder = pd.datagram_queue_pair_builder(&sends, 7);
        Self {
            qp: builder.recv_cq(&receives).depth(4, 4).build().unwrap(),
            memory: pd.register(4096, AccessFlags::LOCAL_WRITE).unwrap(),
            pd,
            sends,
            receives,
        }
    }

    fn send(&self, text: &[u8], to: &UdAddress) {
        let address = self.pd.address(to.gid).unwrap();
        let request = SendRequest::send_inline(text);
        self.qp.post_send(&request, &address, to).unwrap();
        self.sends.wait(MINUTE).unwrap();
    }

    fn post_recv(&self) {
        let sges = [self.memory.sge(1000..1200).unwrap()];
        self.qp.post_recv(1, &sges).unwrap();
    }
}

fn nodes() -> (Node, Node) {
    let list = DeviceList::new(Config::simulated(9)).unwrap();
    (Node::new(&list, "a"), Node::new(&list, "b"))
}

/// A receiver can reply with the address handle made from a message.
//= GRH-05 type=test
#[test]
fn a_message_is_answered() {
    let (a, b) = nodes();
    a.post_recv();
    b.post_recv();
    a.send(b"who is there?", &b.qp.address());
    let received = b.receives.wait(MINUTE).unwrap();
    let (address, to) =
        b.pd.address_of_sender(&received, (&b.memory, 1000), 7)
            .unwrap();
    assert_eq!((address.gid(), to), (a.qp.address().gid, a.qp.address()));
    let answer = SendRequest::send_inline(b"me");
    b.qp.post_send(&answer, &address, &to).unwrap();
    let sent = b.sends.wait(MINUTE).unwrap();
    let heard = a.receives.wait(MINUTE).unwrap();
    assert_eq!(heard.src_qp, b.qp.address().qp_num);
    assert_eq!(
        a.memory.to_vec(1000 + GRH_LEN..1000 + GRH_LEN + 2).unwrap(),
        b"me"
    );

    // Rejects a send completion, an offset without a header, another device's message and a range
    // beyond the end.
    let find = |by: &Node, of, at| by.pd.address_of_sender(of, (&b.memory, at), 7);
    assert_eq!(errno(find(&b, &sent, 1000)), libc::EINVAL);
    assert_eq!(errno(find(&b, &received, 0)), libc::EPROTONOSUPPORT);
    assert_eq!(errno(find(&a, &received, 1000)), libc::EINVAL);
    let beyond = find(&b, &received, 4096 - GRH_LEN + 1);
    assert!(matches!(beyond, Err(RegionError::OutOfRange(_))));
}

/// The network header of messages carries the options of the address handle.
//= QPC-05 ENC-08 type=test
#[test]
fn messages_travel_as_they_are_told() {
    let (a, b) = nodes();
    let told = AddressOptions {
        gid_index: Some(0),
        traffic_class: 0x48,
        hop_limit: 9,
        flow_label: 0,
    };
    let to = b.qp.address();
    let address = a.pd.address_with(to.gid, &told).unwrap();
    assert_eq!(address.options(), told);
    b.post_recv();
    let request = SendRequest::send_inline(b"?");
    a.qp.post_send(&request, &address, &to).unwrap();
    let received = b.receives.wait(MINUTE).unwrap();
    let (back, _) =
        b.pd.address_of_sender(&received, (&b.memory, 1000), 7)
            .unwrap();
    assert_eq!(back.options().traffic_class, 0x48);
    let nowhere = AddressOptions {
        gid_index: Some(200),
        ..told
    };
    assert_eq!(errno(a.pd.address_with(to.gid, &nowhere)), libc::EINVAL);
}

//= UD-05 QPT-18 type=test
#[test]
fn a_queue_pair_changes_its_key() {
    let (a, mut b) = nodes();
    let before = b.qp.address();
    b.qp.set_qkey(8).unwrap();
    assert_eq!(b.qp.address(), UdAddress { qkey: 8, ..before });
    b.post_recv();
    a.send(b"the old key", &before);
    a.send(b"new", &b.qp.address());
    let received = b.receives.wait(MINUTE).unwrap();
    assert_eq!(received.byte_len as usize, GRH_LEN + 3);
    assert_eq!(b.pd.context().port().unwrap().qkey_viol_cntr, 1);
}

/// Messages to several queue pairs consume receives of one shared receive queue.
//= QPC-03 PST-08 type=test
#[test]
fn datagrams_take_shared_receives() {
    let (a, b) = nodes();
    let receives = b.pd.shared_receive_queue(4, 1).unwrap();
    let build = || {
        let builder = b.pd.datagram_queue_pair_builder(&b.sends, 7);
        let builder = builder.recv_cq(&b.receives).shared_receives(&receives);
        builder.build().unwrap()
    };
    let both = [build(), build()];
    let sges = [b.memory.sge(..200).unwrap()];
    assert_eq!(errno(both[0].post_recv(1, &sges)), libc::EINVAL);
    for (n, qp) in (5..).zip(&both) {
        receives.post_recv(n, &sges).unwrap();
        a.send(b"for one of them", &qp.address());
        let received = b.receives.wait(MINUTE).unwrap();
        assert_eq!((received.wr_id, qp.owns(&received)), (n, true));
    }
    assert_ne!(both[0].id(), both[1].id());
}
