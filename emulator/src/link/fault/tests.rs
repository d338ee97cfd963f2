use proptest::prelude::*;
use rocade_transport::Time;
use rocade_wire::{Opcode, Operation, Service};

use super::*;

/// Source and destination of the packets.
pub(super) const ENDS: Ends = (
    std::net::IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1)),
    std::net::IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 2)),
);

/// Returns an RC packet. Its AETH, if it has one, is an ACK.
pub(super) fn packet(operation: Operation, qpn: u32, psn: u32) -> Vec<u8> {
    let opcode = Opcode::of(Service::Rc, operation).expect("RC has it");
    let mut bytes = vec![0; 64];
    bytes[0] = opcode.get();
    bytes[2..4].copy_from_slice(&[0xff, 0xff]);
    bytes[4..8].copy_from_slice(&qpn.to_be_bytes());
    bytes[8..12].copy_from_slice(&psn.to_be_bytes());
    bytes
}

pub(super) fn faults(text: &str) -> Faults {
    Faults::new(&Rule::parse_list(text).expect("rules"))
}

/// Returns which of the first ten packets are lost.
fn lost(text: &str, operation: Operation) -> Vec<usize> {
    let mut faults = faults(text);
    let bytes = packet(operation, 0x11, 7);
    let lost = |_: &usize| {
        faults
            .decide(Time::ZERO, PacketDirection::Tx, ENDS, &bytes)
            .copies
            == 0
    };
    (1..=10).filter(lost).collect()
}

#[test]
fn the_third_is_the_third() {
    let response = Operation::ReadResponseMiddle;
    assert_eq!(lost("drop opcode=READ_RESPONSE nth=3", response), [3]);
    assert_eq!(
        lost("drop opcode=READ_RESPONSE nth=3..5", response),
        [3, 4, 5]
    );
    assert_eq!(lost("drop nth=9..", response), [9, 10]);
    assert_eq!(lost("drop every=4", response), [4, 8]);
    assert_eq!(lost("drop every=2 nth=3..7", response), [4, 6]);
    assert_eq!(lost("drop opcode=READ_REQUEST", response), [0; 0]);
    assert_eq!(lost("drop nth=2; drop nth=4", response), [2, 4]);
}

#[test]
fn packets_are_told_apart() {
    let read = packet(Operation::ReadRequest, 0x11, 0x00ff_fffe);
    let hit = |rule: &str, direction, bytes: &[u8]| {
        !faults(rule)
            .decide(Time::ZERO, direction, ENDS, bytes)
            .is_none()
    };
    for (rule, expected) in [
        ("drop opcode=RDMA_READ_REQUEST", true),
        ("drop opcode=read_request", true),
        ("drop opcode=READ", true),
        ("drop opcode=REQUEST", true),
        ("drop opcode=RESPONSE", false),
        ("drop opcode=SEND,READ", true),
        ("drop qpn=0x11", true),
        ("drop qpn=17", true),
        ("drop qpn=18", false),
        ("drop ip=192.0.2.1", true),
        ("drop ip=192.0.2.2", true),
        ("drop ip=192.0.2.3", false),
        ("drop psn=0xfffffe", true),
        ("drop psn=0xfffff0..5", true),
        ("drop psn=0..5", false),
        ("drop dir=rx", false),
        ("drop dir=both", true),
    ] {
        assert_eq!(hit(rule, PacketDirection::Tx, &read), expected, "{rule}");
    }
    assert!(hit("drop dir=rx", PacketDirection::Rx, &read));
    let mut ack = packet(Operation::Acknowledge, 1, 1);
    assert!(hit("drop opcode=ACK", PacketDirection::Tx, &ack));
    assert!(!hit("drop opcode=NAK", PacketDirection::Tx, &ack));
    ack[12] = 0x60;
    assert!(hit("drop opcode=NAK", PacketDirection::Tx, &ack));
    assert!(hit("drop opcode=ACKNOWLEDGE", PacketDirection::Tx, &ack));
    ack[12] = 0x20;
    assert!(hit("drop opcode=RNR_NAK", PacketDirection::Tx, &ack));
    assert!(
        !hit("drop", PacketDirection::Tx, &[0; 5]),
        "that is no packet"
    );
}

#[test]
fn what_is_wrong_is_named() {
    for (text, parts) in [
        ("lose nth=3", ["`lose`", "there is no action lose"]),
        ("drap", ["`drap`", "did you mean drop?"]),
        ("drop nht=3", ["`nht=3`", "did you mean nth?"]),
        ("drop nth=0", ["`nth=0`", "from 1"]),
        ("drop nth=5..3", ["`nth=5..3`", "position"]),
        (
            "drop opcode=READ_RESPONS",
            ["`opcode=READ_RESPONS`", "did you mean READ_RESPONSE?"],
        ),
        ("drop opcode=", ["`opcode=`", "no opcode"]),
        (
            "drop opcode=READ_RE",
            ["`opcode=READ_RE`", "no opcode READ_RE"],
        ),
        ("drop qpn=0x1000000", ["`qpn=0x1000000`", "below 2^24"]),
        ("drop psn=x", ["`psn=x`", "PSN"]),
        ("drop p=2", ["`p=2`", "probability"]),
        ("drop p=nan", ["`p=nan`", "probability"]),
        ("drop every=0", ["`every=0`", "from 1"]),
        ("drop seed=1", ["`drop seed=1`", "without a probability"]),
        ("drop by=3", ["`by=3`", "takes no by="]),
        ("drop dir=up", ["`dir=up`", "tx (default), rx, both"]),
        ("mute dir=rx", ["`dir=rx`", "own direction"]),
        ("drop size=5..3", ["`size=5..3`", "IP packet"]),
        ("drop rate=1gbit", ["`rate=1gbit`", "rate= with link"]),
        ("link", ["`link`", "no property"]),
        ("link rate=10", ["`rate=10`", "10gbit"]),
        (
            "link queue=1K latency=1us",
            ["queue=1K", "without a data rate"],
        ),
        (
            "link rate=1mbit mark=1K..2M",
            ["mark=1K..2M", "end of the queue"],
        ),
        ("link rate=1mbit pmax=1%", ["pmax=1%", "without mark="]),
        ("link rate=1mbit queue=65M", ["`queue=65M`", "64M"]),
        ("spray paths=1", ["`paths=1`", "2 to 256"]),
        ("spray paths=4", ["`spray paths=4`", "duration is missing"]),
        ("corrupt ber=2", ["`ber=2`", "1e-15"]),
        ("delay", ["`delay`", "duration is missing"]),
        ("delay by=5", ["`by=5`", "5ms"]),
        ("delay by=61s", ["`by=61s`", "60s"]),
        ("delay by=99999999999999999999s", ["60s", "not a duration"]),
        ("reorder by=0", ["`by=0`", "1 to 1000"]),
        ("drop nth", ["`nth`", "KEY=VALUE"]),
        ("drop nth=1 nth=2", ["`nth=2`", "twice"]),
    ] {
        let error = Rule::parse_list(text).expect_err(text).to_string();
        assert!(
            parts.iter().all(|part| error.contains(part)),
            "{text}: {error}"
        );
    }
    assert_eq!(Rule::parse_list(" ;# nothing\n;").expect("no rule"), []);
}

#[test]
fn effects_add_up() {
    let bytes = packet(Operation::SendOnly, 1, 1);
    let effect = |text: &str| faults(text).decide(Time::ZERO, PacketDirection::Tx, ENDS, &bytes);
    assert!(effect("drop nth=2").is_none());
    assert_eq!(effect("dup").copies, 2);
    assert_eq!(effect("dup; drop; dup").copies, 0);
    assert_eq!(effect("delay by=2ms; delay by=500us").delay_ns, 2_500_000);
    let late = effect("reorder by=3; delay by=1ms; ecn");
    assert_eq!(
        (late.overtaken_by, late.wait_ns(), late.ecn),
        (3, 2_000_000, true)
    );
    assert_eq!(
        late.note,
        "overtaken (reorder by=3); late (delay by=1ms); marked (ecn)"
    );

    let number = effect("corrupt").corrupt.expect("it is damaged");
    let mut damaged = bytes.clone();
    corrupt(&mut damaged, number);
    let flipped: u32 = bytes
        .iter()
        .zip(&damaged)
        .map(|(a, b)| (a ^ b).count_ones())
        .sum();
    assert_eq!(flipped, 1);
    assert_eq!(
        bytes[..12],
        damaged[..12],
        "the BTH has bits that no ICRC covers"
    );
}

#[test]
fn rules_that_stay_go_on_counting() {
    let bytes = packet(Operation::SendOnly, 1, 1);
    let mut faults = faults("drop nth=3; dup nth=1");
    for _ in 0..2 {
        faults.decide(Time::ZERO, PacketDirection::Tx, ENDS, &bytes);
    }
    faults.replace(&Rule::parse_list("ecn; drop nth=3").expect("rules"));
    assert_eq!(
        faults
            .decide(Time::ZERO, PacketDirection::Tx, ENDS, &bytes)
            .copies,
        0
    );
    let hits: Vec<_> = faults
        .rules()
        .map(|(rule, hits)| (rule.to_string(), hits))
        .collect();
    assert_eq!(hits, [("ecn".to_owned(), 1), ("drop nth=3".to_owned(), 1)]);
    faults.replace(&[]);
    assert!(faults.is_empty());
    faults.add(&vec![Rule::parse("drop").expect("a rule"); 100]);
    assert_eq!(faults.rules().count(), MAX_RULES);
}

#[test]
fn delayed_packets_are_released_in_order() {
    let at = |ns| Time::from_ns(ns);
    let mut delay_queue = DelayQueue::default();
    for (due, overtaken_by, item) in [(30, 0, 'c'), (10, 0, 'a'), (10, 0, 'b'), (90, 2, 'r')] {
        delay_queue.hold(at(due), overtaken_by, item).expect("room");
    }
    assert_eq!(delay_queue.next_due(), Some(at(10)));
    assert_eq!(delay_queue.take(at(9)), None);
    assert_eq!(
        [
            delay_queue.take(at(10)),
            delay_queue.take(at(10)),
            delay_queue.take(at(10))
        ],
        [Some('a'), Some('b'), None]
    );
    delay_queue.pass();
    assert_eq!(delay_queue.take(at(10)), None);
    delay_queue.pass();
    assert_eq!(delay_queue.take(at(10)), Some('r'), "two have passed");
    delay_queue.pass();
    assert_eq!(
        delay_queue.take(at(10)),
        None,
        "for others only time counts"
    );
    assert_eq!(delay_queue.take(at(30)), Some('c'));
    for _ in 0..16_384 {
        delay_queue.hold(at(1), 0, 'l').expect("room");
    }
    assert_eq!(delay_queue.hold(at(1), 0, 'x'), Err('x'));
}

/// Returns the text of actions with parameters.
fn parameters() -> impl Strategy<Value = String> {
    let link = (
        1..4_000_u64,
        "kbit|mbit",
        1..9_999_u64,
        1..99_u64,
        1..1_000_u32,
    );
    let link = link.prop_map(|(rate, unit, ns, queue, p)| {
        let half = queue * 512;
        format!(
            "link rate={rate}{unit} latency={ns}ns jitter={queue}us queue={queue}K \
             mark={half}..{queue}K pmax={}",
            f64::from(p) / 1e3
        )
    });
    prop_oneof![
        link,
        (1..9_999_u64).prop_map(|ns| format!("link latency={ns}us")),
        (2..=256_u32, 1..9_999_u64)
            .prop_map(|(paths, ns)| format!("spray paths={paths} by={ns}ns")),
        (1..=9_999_u32, 4..15_u32).prop_map(|(a, b)| format!("corrupt ber={a}e-{}", b + 4)),
    ]
}

fn any_rule() -> impl Strategy<Value = Rule> {
    let action = prop_oneof![
        Just(Action::Drop),
        Just(Action::Duplicate),
        Just(Action::Corrupt { ber: None }),
        Just(Action::Ecn),
        (1..60_000_000_000_u64).prop_map(|ns| Action::Delay { ns }),
        (1..=1000_u32).prop_map(|packets| Action::Reorder { packets }),
        Just(Action::Partition),
        Just(Action::Mute),
        parameters().prop_map(|text| *Rule::parse(&text).expect(&text).action()),
    ];
    let names = prop::sample::subsequence(
        vec![
            "SEND",
            "READ_RESPONSE",
            "NAK",
            "REQUEST",
            "RDMA_WRITE_ONLY",
            "ACK",
        ],
        0..4,
    );
    let direction = prop_oneof![
        Just(None),
        Just(Some(PacketDirection::Tx)),
        Just(Some(PacketDirection::Rx))
    ];
    let psn = (0..1_u32 << 24, 0..1_u32 << 24);
    let chance = (1..=1_000_000_u32, prop::option::of(any::<u64>()));
    (
        (action, direction, names, prop::option::of(0..1_u32 << 24)),
        (
            prop::option::of(psn),
            prop::option::of((0..5_000_u64, prop_oneof![Just(u64::MAX), 0..5_000_u64])),
            prop::option::of((1..20_u64, prop_oneof![Just(u64::MAX), 0..20_u64])),
            prop::option::of(1..20_u64),
            prop::option::of(chance),
        ),
    )
        .prop_map(
            |((action, direction, names, qpn), (psn, size, nth, every, chance))| Rule {
                action,
                direction: match action {
                    Action::Partition => None,
                    Action::Mute => Some(PacketDirection::Tx),
                    _ => direction,
                },
                opcodes: names.into_iter().map(str::to_owned).collect(),
                qpn: qpn.map(rocade_wire::Qpn::new),
                ip: qpn.map(|ip| std::net::Ipv4Addr::from(ip).into()),
                psn: psn.map(|(a, b)| (rocade_wire::Psn::new(a), rocade_wire::Psn::new(b))),
                size: size.map(|(first, more)| (first, first.saturating_add(more))),
                nth: nth.map(|(first, more)| (first, first.saturating_add(more))),
                every,
                per_million: chance.map(|(p, _)| p),
                seed: chance.and_then(|(_, seed)| seed),
            },
        )
}

proptest! {
    /// Parsing the printed form of a rule returns the rule.
    #[test]
    fn printing_and_reading_are_inverse(rule in any_rule()) {
        let text = rule.to_string();
        prop_assert_eq!(Rule::parse(&text).expect(&text), rule);
    }

    /// Parsing never panics.
    #[test]
    fn any_text_is_a_rule_or_an_error(text in "(drop|delay|reorder|p|by|nth|seed|=|[0-9.x%é ]){0,12}") {
        let _ = Rule::parse_list(&text);
    }

    /// Equal rules and packets have equal effects, and rules only hit packets that they
    /// match.
    #[test]
    fn the_same_happens_again(
        rules in prop::collection::vec(any_rule(), 0..4),
        packets in prop::collection::vec((0..20_usize, 0..4_u32, 0..6_u32, any::<bool>()), 0..40),
    ) {
        let mut first = Faults::new(&rules);
        let mut second = Faults::new(&rules);
        let mut effects = 0;
        for (operation, qpn, psn, tx) in packets {
            let operation = Operation::ALL[operation % Operation::ALL.len()];
            if Opcode::of(Service::Rc, operation).is_none() {
                continue;
            }
            let bytes = packet(operation, qpn, psn);
            let direction = if tx { PacketDirection::Tx } else { PacketDirection::Rx };
            let effect = first.decide(Time::ZERO, direction, ENDS, &bytes);
            prop_assert_eq!(&effect, &second.decide(Time::ZERO, direction, ENDS, &bytes));
            effects += u64::from(!effect.is_none());
            let read = Packet::parse(&bytes).expect("a packet");
            for rule in &rules {
                let fits = rule.fits(direction, ENDS, &read);
                let named = effect.note.contains(&format!("({})", rule));
                let twins = rules.iter().filter(|twin| *twin == rule).count();
                prop_assert!(fits || !named || twins > 1, "{} by {}", effect.note, rule);
            }
        }
        let hits: u64 = first.rules().map(|(_, hits)| hits).sum();
        prop_assert!(hits >= effects);
    }
}

#[test]
fn chance_is_as_likely_as_it_says() {
    let bytes = packet(Operation::SendOnly, 1, 1);
    let count = |text: &str| {
        let mut faults = faults(text);
        let is_lost = |_: &u32| {
            faults
                .decide(Time::ZERO, PacketDirection::Tx, ENDS, &bytes)
                .copies
                == 0
        };
        (0..100_000).filter(is_lost).count()
    };
    assert!((9_700..10_300).contains(&count("drop p=0.1 seed=3")));
    assert!((9_700..10_300).contains(&count("drop p=10% seed=4")));
    assert_ne!(count("drop p=10% seed=3"), count("drop p=10% seed=4"));
    assert_eq!(count("drop p=1"), 100_000);
}
