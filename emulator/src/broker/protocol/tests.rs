use proptest::prelude::*;

use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use rocade_wire::mad::ServiceId;

use super::codec::MAX_ADDRESSES;
use super::*;

fn local() -> impl Strategy<Value = LocalAddr> {
    (any::<IpAddr>(), any::<bool>(), any::<u32>()).prop_map(|(ip, link_local, scope_id)| {
        let ip = match ip {
            IpAddr::V6(ip) if link_local => {
                let [_, _, rest @ ..] = ip.octets();
                let mut octets = [0; 16];
                octets[..2].copy_from_slice(&[0xFE, 0x80]);
                octets[2..].copy_from_slice(&rest);
                Ipv6Addr::from(octets).into()
            }
            ip => ip,
        };
        LocalAddr::new(ip, scope_id)
    })
}

fn ends() -> impl Strategy<Value = Ends> {
    (local(), local(), 1u8..=255).prop_map(|(local, peer, slot)| Ends {
        local,
        peer,
        slot: ProcessSlot::new(slot),
    })
}

fn binding() -> impl Strategy<Value = Binding> {
    (any::<u64>(), local(), 0..4, any::<bool>(), any::<bool>()).prop_map(
        |(service, local, kind, reuse, listens)| Binding {
            service: ServiceId::new(service),
            to: match kind {
                0 => BoundTo::Ip(local.ip()),
                1 => BoundTo::AnyV4,
                2 => BoundTo::AnyV6,
                _ => BoundTo::Any,
            },
            reuse,
            listens,
        },
    )
}

fn key() -> impl Strategy<Value = ForwardKey> {
    any::<[u8; 16]>().prop_map(ForwardKey::from_bytes)
}

fn domain() -> impl Strategy<Value = DomainKey> {
    any::<[u64; 3]>().prop_map(|[guid, device, inode]| DomainKey {
        guid,
        device,
        inode,
    })
}

fn qpn() -> impl Strategy<Value = Qpn> {
    (0u32..1 << 24).prop_map(Qpn::new)
}

fn target_call() -> impl Strategy<Value = TargetCall> {
    prop_oneof![
        Just(TargetCall::New),
        Just(TargetCall::Open),
        Just(TargetCall::Close),
        Just(TargetCall::Want),
        any::<u8>().prop_map(TargetCall::Event),
    ]
}

fn target_event() -> impl Strategy<Value = TargetEvent> {
    prop_oneof![
        Just(TargetEvent::Wanted),
        Just(TargetEvent::Gone),
        Just(TargetEvent::Failed),
        any::<u8>().prop_map(TargetEvent::Event),
    ]
}

fn texts() -> impl Strategy<Value = Vec<String>> {
    proptest::collection::vec("[a-z= ]{0,40}", 0..4)
}

fn numbered() -> impl Strategy<Value = NumberedRule> {
    (any::<u32>(), "[a-z= ]{0,40}").prop_map(|(id, text)| NumberedRule { id, text })
}

fn fault_update() -> impl Strategy<Value = FaultUpdate> {
    let which = prop_oneof![
        any::<u8>().prop_map(WhichRule::Own),
        "[a-z= ]{0,40}".prop_map(WhichRule::Text),
    ];
    let rule = (any::<u32>(), which).prop_map(|(id, which)| RuleForClient { id, which });
    (any::<u32>(), proptest::collection::vec(rule, 0..4))
        .prop_map(|(generation, rules)| FaultUpdate { generation, rules })
}

fn faulty_process() -> impl Strategy<Value = FaultyProcess> {
    let rule = (numbered(), any::<bool>(), any::<u64>())
        .prop_map(|(rule, own, hits)| RuleInProcess { rule, own, hits });
    let rules = proptest::collection::vec(rule, 0..4);
    (
        any::<u8>(),
        any::<u32>(),
        "[a-z]{0,15}",
        any::<bool>(),
        rules,
    )
        .prop_map(|(slot, pid, name, is_up_to_date, rules)| FaultyProcess {
            slot: ProcessSlot::new(slot),
            pid,
            name,
            is_up_to_date,
            rules,
        })
}

fn request() -> impl Strategy<Value = (Request, usize)> {
    prop_oneof![
        (any::<u8>(), "[a-zA-Zä ]{0,16}", texts()).prop_map(|(slot, name, faults)| {
            let resume = (slot != 0).then_some(ProcessSlot::new(slot));
            let hello = Request::Hello {
                resume,
                name,
                faults,
            };
            (hello, usize::from(slot != 0))
        }),
        "[a-z= ]{0,40}".prop_map(|text| (Request::AddFault(text), 0)),
        any::<u32>().prop_map(|id| (Request::ClearFaults(Some(id).filter(|id| *id > 0)), 0)),
        Just((Request::Faults, 0)),
        any::<u8>().prop_map(|slot| (Request::FaultsFrom(slot), 0)),
        (local(), any::<u8>()).prop_map(|(local, first)| (Request::Open { local, first }, 0)),
        (local(), key(), any::<u8>(), 1..=MAX_FDS)
            .prop_map(|(local, key, first, fds)| (Request::Restore { local, key, first }, fds)),
        Just((Request::Status, 0)),
        Just((Request::Stop, 0)),
        Just((Request::RegisterWake, 1)),
        Just((Request::Resumed, 0)),
        Just((Request::AckJournal, 1)),
        (binding(), any::<bool>())
            .prop_map(|(binding, any_port)| (Request::Bind { binding, any_port }, 0)),
        binding().prop_map(|binding| (Request::Listen(binding), 0)),
        binding().prop_map(|binding| (Request::Release(binding), 0)),
        ends().prop_map(|ends| (Request::ShmLink(ends), 0)),
        (domain(), any::<[bool; 3]>()).prop_map(|(key, [create, exclusive, resumes])| {
            let opening = DomainOpening {
                key,
                create,
                exclusive,
                resumes,
            };
            (Request::OpenDomain(opening), usize::from(resumes))
        }),
        domain().prop_map(|key| (Request::CloseDomain(key), 0)),
        (domain(), qpn(), target_call())
            .prop_map(|(key, qpn, call)| (Request::Target(key, qpn, call), 0)),
    ]
}

fn status() -> impl Strategy<Value = BrokerStatus> {
    let address =
        (local(), any::<u16>(), any::<u16>()).prop_map(|(local, sockets, users)| AddressStatus {
            local,
            sockets,
            users,
        });
    let slot = (any::<u8>(), any::<u32>(), any::<bool>(), "[a-z]{0,15}").prop_map(
        |(slot, pid, connected, name)| SlotStatus {
            slot: ProcessSlot::new(slot),
            pid,
            connected,
            name,
        },
    );
    let service = (any::<u64>(), any::<u8>()).prop_map(|(service, slot)| ServiceStatus {
        service: ServiceId::new(service),
        slot: ProcessSlot::new(slot),
    });
    let lists = (
        proptest::collection::vec(address, 0..4),
        proptest::collection::vec(slot, 0..4),
        proptest::collection::vec(service, 0..4),
    );
    (
        any::<u32>(),
        "[0-9.]{0,9}",
        0u64..1 << 50,
        any::<u64>(),
        lists,
    )
        .prop_map(
            |(pid, version, uptime, gsi_datagrams, (addresses, slots, services))| BrokerStatus {
                pid,
                version,
                uptime: Duration::from_millis(uptime),
                gsi_datagrams,
                addresses,
                slots,
                services,
            },
        )
}

fn response() -> impl Strategy<Value = (Response, usize)> {
    prop_oneof![
        fault_update().prop_map(|update| (Response::FaultUpdate(update), 0)),
        any::<u32>().prop_map(|id| (Response::FaultAdded(id), 0)),
        any::<u16>().prop_map(|count| (Response::FaultsCleared(count), 0)),
        proptest::collection::vec(numbered(), 0..4)
            .prop_map(|rules| (Response::FaultRules(rules), 0)),
        proptest::option::of(faulty_process()).prop_map(|of| (Response::FaultsOf(of), 0)),
        (1u8..=255, any::<u32>(), any::<bool>(), 0usize..=1).prop_map(
            |(slot, broker_pid, limits_too_low, fds)| {
                let slot = ProcessSlot::new(slot);
                let leased = Response::Leased {
                    slot,
                    broker_pid,
                    limits_too_low,
                };
                (leased, fds)
            }
        ),
        (local(), key(), 0u8..=255, 1usize..MAX_FDS).prop_filter_map(
            "too many",
            |(local, key, first, sockets)| {
                let total = u16::from(first) + u16::try_from(sockets).ok()?;
                let address_lock = usize::from(first == 0);
                (total <= 256).then_some((
                    Response::Sockets {
                        local,
                        key,
                        first,
                        total,
                    },
                    sockets + address_lock,
                ))
            }
        ),
        Just((Response::Lock, 1)),
        binding().prop_map(|binding| (Response::Bound(binding), 0)),
        Just((Response::PortTaken(Conflict::Here), 0)),
        Just((Response::PortTaken(Conflict::Everywhere), 0)),
        Just((Response::Accepted, 0)),
        status().prop_map(|status| (Response::Status(status), 0)),
        (any::<u32>(), any::<u16>()).prop_map(|(broker_pid, clients)| (
            Response::Stopping {
                broker_pid,
                clients
            },
            0
        )),
        ends().prop_map(|ends| (Response::ShmLink(ends), CHANNEL_FDS)),
        ends().prop_map(|ends| (Response::Offer(ends), CHANNEL_FDS)),
        Just((Response::NoShmLink, 0)),
        Just((Response::Domain, 1)),
        any::<bool>().prop_map(|exists| (Response::NoDomain { exists }, 0)),
        any::<bool>().prop_map(|is_gone| (Response::Target { is_gone }, 0)),
        Just((Response::NoTarget, 0)),
        (qpn(), target_event()).prop_map(|(qpn, update)| (Response::TargetEvent(qpn, update), 0)),
        (any::<u16>(), ".{0,40}").prop_map(|(code, text)| {
            (
                Response::Error {
                    code: RefusalCode::from_code(code),
                    text,
                },
                0,
            )
        }),
    ]
}

proptest! {
    #[test]
    fn requests_survive((request, fds) in request()) {
        prop_assert_eq!(Request::decode(&request.encode(), fds), Ok(request));
    }

    #[test]
    fn responses_survive((response, fds) in response()) {
        prop_assert_eq!(Response::decode(&response.encode(), fds), Ok(response));
    }

    #[test]
    fn garbage_is_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200), fds in 0usize..3) {
        prop_assert!(Request::decode(&bytes, fds).is_err());
        prop_assert!(Response::decode(&bytes, fds).is_err());
    }

    #[test]
    fn garbage_behind_a_good_header_does_no_harm(
        kind in prop_oneof![0u16..33, 100u16..135, Just(199)],
        body in proptest::collection::vec(any::<u8>(), 0..200),
        fds in 0usize..4,
    ) {
        let mut w = Writer::new(kind);
        w.bytes.extend(&body);
        let bytes = w.finish();
        if let Ok(request) = Request::decode(&bytes, fds) {
            prop_assert_eq!(request.encode(), bytes.clone());
        }
        // Texts and addresses have a unique encoding, so this holds for responses too.
        if let Ok(response) = Response::decode(&bytes, fds) {
            prop_assert_eq!(response.encode(), bytes);
        }
    }

    #[test]
    fn a_message_with_any_byte_missing_or_added_is_refused(
        (request, fds) in request(),
        cut in any::<prop::sample::Index>(),
    ) {
        let bytes = request.encode();
        prop_assert!(Request::decode(&bytes[..cut.index(bytes.len())], fds).is_err());
        let longer = [&bytes[..], &[0]].concat();
        prop_assert_eq!(Request::decode(&longer, fds), Err(ProtocolError::Length));
    }
}

#[test]
fn the_header_is_as_documented() {
    let bytes = Request::Status.encode();
    assert_eq!(bytes, [b'R', b'C', b'D', b'B', 8, 0, 4, 0, 12, 0, 0, 0]);
}

#[test]
fn other_versions_are_told_apart_from_garbage() {
    let mut bytes = Request::Status.encode();
    bytes[4] = 9;
    assert_eq!(Request::decode(&bytes, 0), Err(ProtocolError::Version(9)));
    bytes[0] = 0;
    assert_eq!(Request::decode(&bytes, 0), Err(ProtocolError::Magic));
}

#[test]
fn what_never_changes_is_understood_in_all_versions() {
    let error = Response::Error {
        code: RefusalCode::Version,
        text: "no".to_owned(),
    };
    let stopping = Response::Stopping {
        broker_pid: 7,
        clients: 1,
    };
    for version in [0, 1, 2, 3, u16::MAX] {
        let in_it = |message| with_version(message, version);
        let stop = in_it(Request::Stop.encode());
        assert_eq!(version_of(&stop), Some(version));
        assert_eq!(Request::decode(&stop, 0), Ok(Request::Stop));
        for response in [&error, &stopping] {
            let message = in_it(response.encode());
            assert_eq!(Response::decode(&message, 0).as_ref(), Ok(response));
        }
        let status = in_it(Request::Status.encode());
        let expected = Err(ProtocolError::Version(version));
        assert_eq!(Request::decode(&status, 0), expected);
    }
    // The encoding of version 2.
    let stop = [b'R', b'C', b'D', b'B', 2, 0, 5, 0, 12, 0, 0, 0];
    assert_eq!(with_version(Request::Stop.encode(), 2), stop);
    let stopping = [
        b'R', b'C', b'D', b'B', 2, 0, 105, 0, 18, 0, 0, 0, 7, 0, 0, 0, 1, 0,
    ];
    assert!(Response::decode(&stopping, 0).is_ok());
}

#[test]
fn descriptors_must_come_with_the_messages_that_need_them() {
    let local = LocalAddr::from(IpAddr::from([127, 0, 0, 1]));
    let key = ForwardKey::from_bytes([1; 16]);
    let restore = Request::Restore {
        local,
        key,
        first: 0,
    }
    .encode();
    for fds in [0, MAX_FDS + 1] {
        assert_eq!(
            Request::decode(&restore, fds),
            Err(ProtocolError::Descriptors)
        );
    }
    let hello = Request::Hello {
        resume: Some(ProcessSlot::new(3)),
        name: String::new(),
        faults: Vec::new(),
    }
    .encode();
    assert_eq!(Request::decode(&hello, 0), Err(ProtocolError::Descriptors));
    assert_eq!(
        Request::decode(&Request::Stop.encode(), 1),
        Err(ProtocolError::Descriptors)
    );
    // The address lock is not a socket.
    let sockets = Response::Sockets {
        local,
        key,
        first: 0,
        total: 1,
    }
    .encode();
    assert!(Response::decode(&sockets, 1).is_err());
    assert!(Response::decode(&sockets, 2).is_ok());
    assert!(Response::decode(&sockets, 3).is_err());
}

#[test]
fn the_longest_status_fits() {
    let address = AddressStatus {
        local: LocalAddr::from(IpAddr::from([127, 0, 0, 1])),
        sockets: 256,
        users: 255,
    };
    let slot = SlotStatus {
        slot: ProcessSlot::new(1),
        pid: 1,
        connected: true,
        name: "x".repeat(99),
    };
    let service = ServiceStatus {
        service: ServiceId::new(1),
        slot: ProcessSlot::new(1),
    };
    let status = BrokerStatus {
        pid: 1,
        version: "v".repeat(99),
        uptime: Duration::MAX,
        gsi_datagrams: 0,
        addresses: vec![address; MAX_ADDRESSES + 1],
        slots: vec![slot; 255],
        services: vec![service; 257],
    };
    let bytes = Response::Status(status).encode();
    assert!(bytes.len() <= MAX_LEN, "{}", bytes.len());
    let Ok(Response::Status(status)) = Response::decode(&bytes, 0) else {
        panic!()
    };
    assert_eq!(
        (status.addresses.len(), status.slots.len()),
        (MAX_ADDRESSES, 255)
    );
    assert_eq!(status.slots[0].name.len(), MAX_NAME_LEN);
}

#[test]
fn the_most_rules_fit() {
    let text = "x".repeat(MAX_RULE_LEN + 9);
    let rule = RuleInProcess {
        rule: NumberedRule { id: 1, text },
        own: true,
        hits: u64::MAX,
    };
    let process = FaultyProcess {
        slot: ProcessSlot::new(1),
        pid: 1,
        name: "x".repeat(99),
        is_up_to_date: true,
        rules: vec![rule; 99],
    };
    let bytes = Response::FaultsOf(Some(process)).encode();
    assert!(bytes.len() <= MAX_LEN, "{}", bytes.len());
    let Ok(Response::FaultsOf(Some(process))) = Response::decode(&bytes, 0) else {
        panic!()
    };
    assert_eq!(process.rules.len(), crate::link::fault::MAX_RULES);
    assert_eq!(process.rules[63].rule.text.len(), MAX_RULE_LEN);
}
