//! Failures, and the events and errors that applications get.

use super::*;

/// Requests a connection to `b`, and returns the request at `b`.
fn asked(a: &Node, b: &Node, id: &CmId, port: u16) -> CmId {
    a.routed(id, 1, addr(b.ip, port));
    id.connect(&param(Qpn::new(0x100), &[])).unwrap();
    b.expect(Kind::ConnectRequest, 1).new_id.unwrap()
}

/// The kernel rejects the request if the application's accept fails, so that the peer does not
/// wait.
//= LRC-10 type=test
#[test]
fn an_application_that_cannot_accept_rejects() {
    let (a, b) = (Node::new("127.1.9.70"), Node::new("127.1.9.71"));
    let _listener = b.listener(7480, 1);
    let id = a.id(1);
    let request = asked(&a, &b, &id, 7480);
    let too_long = param(Qpn::new(0x200), &[7; 197]);
    let refused = request.accept(2, &too_long).unwrap_err();
    assert_eq!(refused.errno(), libc::EINVAL);
    let event = a.expect(Kind::Rejected, 1);
    assert_eq!(event.status, i32::from(RejReason::Consumer.code()));
    assert!(request.accept(2, &param(Qpn::new(0x200), &[])).is_err());

    let service = b.datagram_id(1);
    service.bind(addr(b.ip, 7481)).unwrap();
    service.listen(1).unwrap();
    let id = a.datagram_id(1);
    let request = asked(&a, &b, &id, 7481);
    let too_long = param(Qpn::new(0x200), &[7; 137]);
    assert_eq!(
        request.accept(2, &too_long).unwrap_err().errno(),
        libc::EINVAL
    );
    // Reason code "rejected by the service provider".
    assert_eq!(a.expect(Kind::Unreachable, 1).status, 2);
}

/// A source address that was bound explicitly needs a route too.
//= EVT-01 type=test
#[test]
fn a_bound_source_needs_a_route_too() {
    let a = Node::new("127.1.9.72");
    let id = a.id(1);
    id.bind(addr(a.ip, 0)).unwrap();
    id.resolve_addr(None, addr("192.0.2.1", 7), LIMIT).unwrap();
    let event = a.expect(Kind::AddrError, 1);
    assert!(event.status < 0, "{event:?}");
    assert!(id.resolve_route().is_err());
    // The same in one call, and without events.
    let id = a.id(2);
    let source = Some(CmAddr::from(addr(a.ip, 0)));
    id.resolve_addr(source, addr("192.0.2.1", 7), LIMIT)
        .unwrap();
    a.expect(Kind::AddrError, 2);
    assert!(!id.resolve(None, addr("192.0.2.1", 7)).unwrap());
    // Another destination is reachable.
    assert!(id.resolve(None, addr("127.0.0.9", 7)).unwrap());
}

/// Like libfabric 2, which resolves the address of an endpoint made from a passive one again before
/// `rdma_connect`.
#[test]
fn an_address_is_resolved_again() {
    let (a, b) = (Node::new("127.1.9.73"), Node::new("127.1.9.74"));
    let _listener = b.listener(7482, 1);
    let id = a.id(1);
    let source = addr(a.ip, 7483);
    id.bind(source).unwrap();
    for _ in 0..2 {
        id.resolve_addr(Some(source.into()), addr(b.ip, 7482), LIMIT)
            .unwrap();
        a.expect(Kind::AddrResolved, 1);
    }
    // The last result counts.
    id.resolve_addr(None, addr("192.0.2.1", 7), LIMIT).unwrap();
    a.expect(Kind::AddrError, 1);
    assert!(id.resolve_route().is_err());
    id.resolve_addr(None, addr(b.ip, 7482), LIMIT).unwrap();
    a.expect(Kind::AddrResolved, 1);
    id.resolve_route().unwrap();
    a.expect(Kind::RouteResolved, 1);
    assert!(id.resolve_addr(None, addr(b.ip, 7482), LIMIT).is_err());
    id.connect(&param(Qpn::new(0x100), &[])).unwrap();
    let request = b.expect(Kind::ConnectRequest, 1).new_id.unwrap();
    assert_eq!(request.addresses().peer, Some(source));
}

/// None of the owners of a shared port may listen, and a listener's port cannot be shared.
//= CMA-13 type=test
//= LRC-14 type=test
#[test]
fn a_listener_does_not_share_its_port() {
    let a = Node::new("127.1.9.75");
    for (ip, refused) in [(a.ip, libc::EADDRINUSE), ("0.0.0.0", libc::EADDRNOTAVAIL)] {
        let bound = || {
            let id = a.id(1);
            id.set_reuse(true).unwrap();
            id.bind(addr(ip, 7484)).map(|()| id)
        };
        let (first, second) = (bound().unwrap(), bound().unwrap());
        for id in [&first, &second, &first] {
            assert_eq!(id.listen(1).unwrap_err().errno(), refused);
        }
        drop(first);
        second.listen(1).unwrap();
        assert_eq!(bound().unwrap_err().errno(), refused);
    }
}
