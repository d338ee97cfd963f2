//! The text of rules for verbs, completions, queue pairs, limits, events and the process.

use proptest::prelude::*;

use super::*;

/// Rules that are printed as they are written.
const RULES: [&str; 24] = [
    "fail verb=reg_mr errno=ENOMEM nth=3",
    "fail verb=any errno=EIO dev=rocade0 p=0.25 seed=7",
    "fail verb=post_send,post_recv errno=ENOMEM qpn=0x11 nth=2..5",
    "fail verb=resolve_addr errno=ENODEV at=2s for=500ms",
    "slow verb=create_qp by=5ms",
    "kill verb=modify_qp nth=3..",
    "stop verb=post_send qpn=0x2",
    "complete status=RETRY_EXC_ERR opcode=RDMA_WRITE,SEND nth=2",
    "complete status=WR_FLUSH_ERR dev=rocade0",
    "overrun nth=9",
    "late by=5ms opcode=RECV",
    "burst count=8 by=1ms",
    "shuffle by=100us seed=3",
    "qp-error after=65536 qpn=0x11",
    "rnr at=1s for=100ms every=2s times=3",
    "limit max_qp=4 memlock=65536",
    "limit max_mr=1 dev=rocade0 at=2s",
    "event type=PORT_ERR dev=rocade0 port=1 at=2s",
    "event type=QP_LAST_WQE_REACHED qpn=0x3",
    "kill at=2s",
    "stop p=0.5 at=500ms",
    "kill opcode=SEND nth=3",
    "stop dir=rx psn=5",
    "kill",
];

#[test]
fn rules_are_printed_as_they_are_read() {
    for text in RULES {
        let rule = FaultRule::parse(text).expect(text);
        assert_eq!(rule.to_string(), text);
    }
    for (text, printed) in [
        (
            "fail verb=ibv_reg_mr errno=ENOMEM",
            "fail verb=reg_mr errno=ENOMEM",
        ),
        (
            "fail errno=EIO verb=rdma_connect",
            "fail verb=connect errno=EIO",
        ),
        (
            "complete opcode=IBV_WC_SEND status=IBV_WC_REM_OP_ERR",
            "complete status=REM_OP_ERR opcode=SEND",
        ),
        ("event type=IBV_EVENT_GID_CHANGE", "event type=GID_CHANGE"),
        ("qp-error after=64K", "qp-error after=65536"),
        ("limit memlock=1M", "limit memlock=1048576"),
    ] {
        let rule = FaultRule::parse(text).expect(text);
        assert_eq!(rule.to_string(), printed);
    }
}

#[test]
fn the_first_word_and_the_keys_choose_the_kind() {
    let kind = |text: &str| FaultRule::parse(text).expect(text);
    assert!(matches!(kind("kill at=2s"), FaultRule::Process(_)));
    assert!(matches!(kind("kill verb=post_send"), FaultRule::Verb(_)));
    assert!(matches!(kind("kill opcode=SEND"), FaultRule::Packet(_)));
}

#[test]
fn mistakes_are_named() {
    for (text, parts) in [
        ("fail verb=reg_mr", ["fail verb=reg_mr", "errno=ENOMEM"]),
        ("fail errno=EIO", ["fail errno=EIO", "verb=any"]),
        (
            "fail verb=reg_mrs errno=EIO",
            ["`verb=reg_mrs`", "did you mean reg_mr?"],
        ),
        (
            "fail verb=reg_mr errno=ENOMEN",
            ["`errno=ENOMEN`", "did you mean ENOMEM?"],
        ),
        ("fail verb=reg_mr by=5ms", ["`by=5ms`", "no key by"]),
        ("slow verb=reg_mr", ["slow verb=reg_mr", "by=5ms"]),
        ("slow verb=reg_mr by=5", ["`by=5`", "5ms"]),
        ("complete nth=2", ["complete nth=2", "status=RETRY_EXC_ERR"]),
        (
            "complete status=SUCCESS",
            ["`status=SUCCESS`", "WR_FLUSH_ERR"],
        ),
        (
            "complete status=REM_OP_ERR opcode=WRITE",
            ["`opcode=WRITE`", "RDMA_WRITE"],
        ),
        ("burst by=1ms", ["burst by=1ms", "count=8"]),
        ("burst count=1 by=1ms", ["`count=1`", "2 to"]),
        ("late", ["`late`", "duration is missing"]),
        ("overrun by=1ms", ["`by=1ms`", "no key by"]),
        (
            "late by=1ms seed=3",
            ["late by=1ms seed=3", "without a probability"],
        ),
        ("qp-error after=x", ["`after=x`", "64K"]),
        ("rnr nth=3", ["`nth=3`", "no key nth"]),
        ("limit", ["`limit`", "max_qp=.."]),
        ("limit max_qps=3", ["`max_qps=3`", "did you mean max_qp?"]),
        ("limit max_qp=many", ["`max_qp=many`", "a number"]),
        ("event at=2s", ["event at=2s", "type=PORT_ERR"]),
        ("event type=PORT_DOWN", ["`type=PORT_DOWN`", "PORT_ERR"]),
        (
            "event type=PORT_ERR qpn=3",
            ["event type=PORT_ERR qpn=3", "no qpn="],
        ),
        (
            "event type=QP_FATAL port=1",
            ["event type=QP_FATAL port=1", "no port="],
        ),
        (
            "kill verb=post_send errno=EIO",
            ["`errno=EIO`", "no key errno"],
        ),
    ] {
        let error = FaultRule::parse(text).expect_err(text).to_string();
        assert!(
            parts.iter().all(|part| error.contains(part)),
            "{text}: {error}"
        );
    }
}

proptest! {
    /// Parsing never panics, and what it accepts is printed in the same meaning.
    #[test]
    fn any_words_are_a_rule_or_an_error(
        words in prop::collection::vec(
            "(fail|slow|kill|late|burst|complete|limit|event|rnr|verb=any|errno=EIO|\
             by=[0-9]{1,3}ms|count=[0-9]|status=REM_OP_ERR|max_qp=[0-9]|type=PORT_ERR|at=1s|nth=[0-9]..|p=[01]|\
             seed=1|qpn=[0-9])",
            0..6,
        ),
    ) {
        let text = words.join(" ");
        if let Ok(rule) = FaultRule::parse(&text) {
            let printed = rule.to_string();
            prop_assert_eq!(FaultRule::parse(&printed).expect(&printed), rule);
        }
    }
}
