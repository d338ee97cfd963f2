use super::{AckTimeout, CreditCode, Mtu, RnrTimer};

#[test]
//= MTU-01 type=test
fn mtu_codes() {
    for code in 0..=u8::MAX {
        match Mtu::from_code(code) {
            Some(mtu) => {
                assert_eq!(mtu.code(), code);
                assert_eq!(mtu.bytes(), 1 << (code + 7));
            }
            None => assert!(!(1..=5).contains(&code)),
        }
    }
}

#[test]
//= MTU-02 type=test
fn mtu_of_an_interface() {
    let cases = [
        (0, None),
        (351, None),
        (352, Some(Mtu::Mtu256)),
        (1280, Some(Mtu::Mtu1024)),
        (1500, Some(Mtu::Mtu1024)),
        (2143, Some(Mtu::Mtu1024)),
        (2144, Some(Mtu::Mtu2048)),
        (4191, Some(Mtu::Mtu2048)),
        (4192, Some(Mtu::Mtu4096)),
        (4200, Some(Mtu::Mtu4096)),
        (9000, Some(Mtu::Mtu4096)),
        (65536, Some(Mtu::Mtu4096)),
        (u32::MAX, Some(Mtu::Mtu4096)),
    ];
    for (netdev_mtu, expected) in cases {
        assert_eq!(
            Mtu::largest_for_netdev(netdev_mtu),
            expected,
            "{netdev_mtu}"
        );
    }
}

#[test]
//= RNR-00 type=test
//= RNR-01 type=test
//= RNR-02 type=test
//= RNR-03 type=test
//= RNR-04 type=test
fn rnr_timers() {
    // From 10 µs on, the codes double every second step.
    for code in 0..=u8::MAX {
        let Some(timer) = RnrTimer::new(code) else {
            assert!(code >= 32);
            continue;
        };
        assert_eq!(timer.code(), code);
        let us = match code {
            0 => 655_360,
            1 => 10,
            _ if code.is_multiple_of(2) => 20 << ((code - 2) / 2),
            _ => 30 << ((code - 3) / 2),
        };
        assert_eq!(timer.as_ns(), us * 1_000, "code {code}");
    }
    let longest = (0..32)
        .filter_map(RnrTimer::new)
        .max_by_key(|timer| timer.as_ns());
    assert_eq!(longest, RnrTimer::new(0));
}

#[test]
fn ack_timeouts() {
    for code in 0..=u8::MAX {
        match AckTimeout::new(code) {
            Some(timeout) => {
                assert_eq!(timeout.code(), code);
                let expected = (code != 0).then(|| 4_096 * 2u64.pow(u32::from(code)));
                assert_eq!(timeout.as_ns(), expected);
            }
            None => assert!(code >= 32),
        }
    }
}

#[test]
//= AETH-20 type=test
//= AETH-21 type=test
fn credit_codes() {
    // From 2 credits on, the codes double every second step.
    for code in 0..=u8::MAX {
        let Some(credit_code) = CreditCode::new(code) else {
            assert!(code >= 32);
            continue;
        };
        assert_eq!(credit_code.code(), code);
        let credits = match code {
            0 | 1 => Some(u32::from(code)),
            31 => None,
            _ if code.is_multiple_of(2) => Some(2 << ((code - 2) / 2)),
            _ => Some(3 << ((code - 3) / 2)),
        };
        assert_eq!(credit_code.credits(), credits, "code {code}");
    }
}

#[test]
//= AETH-11 type=test
//= AETH-20 type=test
fn credits_round_down() {
    for credits in 0..70_000 {
        let code = CreditCode::from_credits(credits);
        let given = code.credits().unwrap();
        assert!(given <= credits);
        let next = CreditCode::new(code.code() + 1).and_then(CreditCode::credits);
        assert!(
            next.is_none_or(|next| next > credits),
            "{credits} credits, code {}",
            code.code()
        );
    }
    assert_eq!(CreditCode::from_credits(u32::MAX).code(), 30);
    assert_eq!(CreditCode::INVALID.credits(), None);
}
