use proptest::prelude::*;

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
        slot: Slot::new(slot),
    })
}

fn request() -> impl Strategy<Value = (Request, usize)> {
    prop_oneof![
        (any::<u8>(), "[a-zA-Zä ]{0,16}").prop_map(|(slot, name)| {
            let resume = (slot != 0).then_some(Slot::new(slot));
            (Request::Hello { resume, name }, usize::from(slot != 0))
        }),
        local().prop_map(|local| (Request::Open { local }, 0)),
        (local(), any::<u8>(), 1..=MAX_FDS)
            .prop_map(|(local, first, fds)| (Request::Restore { local, first }, fds)),
        Just((Request::Status, 0)),
        Just((Request::Stop, 0)),
        Just((Request::Share, 1)),
        Just((Request::Will, 1)),
        ends().prop_map(|ends| (Request::Channel(ends), 0)),
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
            slot: Slot::new(slot),
            pid,
            connected,
            name,
        },
    );
    let lists = (
        proptest::collection::vec(address, 0..4),
        proptest::collection::vec(slot, 0..4),
    );
    (
        any::<u32>(),
        "[0-9.]{0,9}",
        0u64..1 << 50,
        any::<u64>(),
        lists,
    )
        .prop_map(
            |(pid, version, uptime, gsi_datagrams, (addresses, slots))| BrokerStatus {
                pid,
                version,
                uptime: Duration::from_millis(uptime),
                gsi_datagrams,
                addresses,
                slots,
            },
        )
}

fn response() -> impl Strategy<Value = (Response, usize)> {
    prop_oneof![
        (1u8..=255, any::<u32>(), 0usize..=1).prop_map(|(slot, broker_pid, fds)| {
            (
                Response::Welcome {
                    slot: Slot::new(slot),
                    broker_pid,
                },
                fds,
            )
        }),
        (local(), 0u8..=255, 1usize..=MAX_FDS).prop_filter_map(
            "too many",
            |(local, first, fds)| {
                let total = u16::from(first) + u16::try_from(fds).ok()?;
                (total <= 256).then_some((
                    Response::Sockets {
                        local,
                        first,
                        total,
                    },
                    fds,
                ))
            }
        ),
        Just((Response::Accepted, 0)),
        status().prop_map(|status| (Response::Status(status), 0)),
        (any::<u32>(), any::<u16>()).prop_map(|(broker_pid, clients)| (
            Response::Stopping {
                broker_pid,
                clients
            },
            0
        )),
        ends().prop_map(|ends| (Response::Channel(ends), CHANNEL_FDS)),
        ends().prop_map(|ends| (Response::Offer(ends), CHANNEL_FDS)),
        Just((Response::NoChannel, 0)),
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
        kind in prop_oneof![0u16..9, 100u16..110, Just(199)],
        body in proptest::collection::vec(any::<u8>(), 0..200),
        fds in 0usize..4,
    ) {
        let mut w = Writer::new(kind);
        w.bytes.extend(&body);
        let bytes = w.finish();
        if let Ok(request) = Request::decode(&bytes, fds) {
            prop_assert_eq!(request.encode(), bytes.clone());
        }
        // Texts and addresses have one encoding each, so this holds for responses too.
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
    assert_eq!(bytes, [b'R', b'C', b'D', b'B', 3, 0, 4, 0, 12, 0, 0, 0]);
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
fn descriptors_must_come_with_the_messages_that_need_them() {
    let local = LocalAddr::from(IpAddr::from([127, 0, 0, 1]));
    let restore = Request::Restore { local, first: 0 }.encode();
    for fds in [0, MAX_FDS + 1] {
        assert_eq!(
            Request::decode(&restore, fds),
            Err(ProtocolError::Descriptors)
        );
    }
    let hello = Request::Hello {
        resume: Some(Slot::new(3)),
        name: String::new(),
    }
    .encode();
    assert_eq!(Request::decode(&hello, 0), Err(ProtocolError::Descriptors));
    assert_eq!(
        Request::decode(&Request::Stop.encode(), 1),
        Err(ProtocolError::Descriptors)
    );
}

#[test]
fn the_longest_status_fits() {
    let address = AddressStatus {
        local: LocalAddr::from(IpAddr::from([127, 0, 0, 1])),
        sockets: 256,
        users: 255,
    };
    let slot = SlotStatus {
        slot: Slot::new(1),
        pid: 1,
        connected: true,
        name: "x".repeat(99),
    };
    let status = BrokerStatus {
        pid: 1,
        version: "v".repeat(99),
        uptime: Duration::MAX,
        gsi_datagrams: 0,
        addresses: vec![address; MAX_ADDRESSES + 1],
        slots: vec![slot; 255],
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
