//! The traces of fault rules: counts with times and objects, comments in captures, and the same
//! report for the same seed.

#[path = "common/simulated.rs"]
mod simulated;

use std::fs;
use std::path::Path;

use rocade_verbs::{
    AccessFlags, Config, ConnectOptions, DeviceList, FaultReport, Result, SendRequest, WcStatus,
};
use simulated::{MINUTE, connect, pair, status, write};

const KB: usize = 1 << 10;

/// Writes 256 KB in a simulation with this rule. Returns the bytes of the capture, the report, and
/// true if the data has arrived.
fn captured(rule: &str) -> Result<(Vec<u8>, FaultReport, bool)> {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let name: String = rule.chars().filter(char::is_ascii_alphanumeric).collect();
    let file = dir.join(format!("fault-report-{name}.pcapng"));
    let _ = fs::remove_file(&file);
    let config = Config::simulated(3).with_faults(rule)?;
    let list = DeviceList::new(config.with_capture(&file))?;
    let (a, b) = connect(&list)?;
    let has_arrived = write(&a, &b, 256 * KB).is_ok();
    let report = list.fault_report();
    drop((a, b, list));
    let bytes = fs::read(&file).expect("the capture was written");
    Ok((bytes, report, has_arrived))
}

fn count(bytes: &[u8], text: &str) -> u64 {
    let found = bytes.windows(text.len());
    found.filter(|window| *window == text.as_bytes()).count() as u64
}

/// Each packet that a rule affects has a comment, as often as the rule was applied.
#[test]
fn each_affected_packet_has_a_comment() -> Result<()> {
    for (rule, comments, arrives) in [
        ("drop opcode=REQUEST size=300.. nth=3", &["lost"][..], true),
        ("dup opcode=REQUEST nth=3", &["doubled"], true),
        ("corrupt ber=0.00001", &["damaged"], true),
        ("ecn opcode=REQUEST every=5", &["marked"], true),
        ("link rate=1gbit queue=1M", &["in a queue"], true),
        (
            "link rate=1gbit queue=64K mark=16K..48K opcode=REQUEST",
            &["in a queue", "marked", "lost, the queue is full"],
            true,
        ),
        (
            "spray paths=2 by=3us opcode=REQUEST nth=1..100",
            &["by a path"],
            true,
        ),
        ("mute", &["lost"], false),
        ("partition", &["lost"], false),
        ("qp-error after=65536 nth=1", &["its QP fails"], false),
    ] {
        let (bytes, report, has_arrived) = captured(rule)?;
        let [reported] = &*report.rules else {
            panic!("one rule, and not {report:?}");
        };
        assert!(reported.hits > 0, "{report:?}");
        let with_rule = |comment: &&str| count(&bytes, &format!("{comment} ({})", reported.text));
        let found: Vec<_> = comments.iter().map(with_rule).collect();
        assert!(found.iter().all(|count| *count > 0), "{rule}: {found:?}");
        assert_eq!(
            found.iter().sum::<u64>(),
            reported.hits,
            "{rule}: {found:?}"
        );
        assert_eq!(has_arrived, arrives, "{rule}");
    }
    Ok(())
}

#[test]
fn a_rule_has_the_times_and_the_objects_of_its_applications() -> Result<()> {
    let (a, b, list) = pair(
        1,
        "drop opcode=REQUEST nth=2..4; rnr for=5ms; fail verb=resize_cq errno=EIO",
    )?;
    write(&a, &b, 64 * KB)?;
    let sges = [a.memory.sge(..8)?];
    b.qp.post_recv(1, &[b.memory.sge(..8)?])?;
    a.qp.post_send(&SendRequest::send(&sges))?;
    a.cq.wait(MINUTE)?;
    let report = list.fault_report();
    let [drop, rnr, never] = &*report.rules else {
        panic!("three rules, and not {report:?}");
    };
    assert_eq!((drop.hits, drop.other_hits), (3, 0));
    assert!(drop.first_ns.is_some() && drop.first_ns <= drop.last_ns);
    let [(object, 3)] = &*drop.objects else {
        panic!("one QP receives what was lost: {drop:?}");
    };
    let number = format!("{:#08x}", b.qp.qp_num().get());
    assert_eq!(object.to_string(), format!("packet to QP {number}"));
    // One for each RNR NAK.
    assert!(rnr.hits > 0, "{report:?}");
    assert_eq!(rnr.hits, a.qp.counters().rnr_naks_received);
    assert_eq!(rnr.objects[0].0.to_string(), format!("QP {number}"));
    assert!(rnr.last_ns < Some(6_000_000), "{rnr:?}");
    assert_eq!(
        (never.hits, never.first_ns, never.objects.len()),
        (0, None, 0)
    );
    let text = report.to_string();
    assert_eq!(text.lines().count(), 4, "{text}");
    let last = text.lines().last().unwrap_or_default();
    let words: Vec<_> = last.split_whitespace().collect();
    assert_eq!(
        words,
        ["0", "-", "-", "fail", "verb=resize_cq", "errno=EIO", "-"]
    );
    Ok(())
}

#[test]
fn a_seed_repeats_the_report_with_all_times_and_objects() -> Result<()> {
    let run = |seed| -> Result<(FaultReport, String)> {
        let rules = "chaos:9,only=lossy-1pct+bit-errors+congestion+rnr-storm+reordering-paths,within=1ms,count=8; \
                     spray paths=3 by=2us p=10%; late by=20us p=50%; shuffle by=10us";
        let (a, b, list) = pair(seed, rules)?;
        for _ in 0..20 {
            write(&a, &b, 100 * KB)?;
        }
        let report = list.fault_report();
        let text = report.to_string();
        Ok((report, text))
    };
    let (first, other) = (run(7)?, run(8)?);
    assert!(first.0.occurrences.len() > 100, "{}", first.1);
    assert_eq!(run(7)?, first);
    assert_ne!(other.1, first.1);
    Ok(())
}

/// Two NICs over sockets: times differ, but rules and objects come in the same order.
#[test]
fn over_real_links_order_and_kind_repeat() -> Result<()> {
    let rules = "drop opcode=WRITE_MIDDLE nth=2; fail verb=reg_mr errno=ENOMEM nth=3; \
                 dup opcode=SEND_ONLY nth=1..2; complete status=REM_ACCESS_ERR opcode=SEND nth=3";
    let run = || -> Result<Vec<(usize, String)>> {
        let specs = ["a=127.0.91.1", "b=127.0.91.2"];
        let list = DeviceList::new(Config::from_specs(&specs)?.with_faults(rules)?)?;
        let open = |name: &str| {
            let pd = list.open(name)?.protection_domain()?;
            let cq = pd.context().completion_queue(64)?;
            let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
            let memory = pd.register(64 * KB, access)?;
            let qp = pd.queue_pair(&cq).build()?;
            Ok::<_, rocade_verbs::Error>((pd, cq, memory, qp))
        };
        let ((pd, cq, from, a), (_, _, to, b)) = (open("a")?, open("b")?);
        let (a_end, b_end) = (a.endpoint(), b.endpoint());
        let a = a.connect(b_end, &ConnectOptions::default())?;
        let b = b.connect(a_end, &ConnectOptions::default())?;
        assert!(pd.register(64, AccessFlags::LOCAL_WRITE).is_err());
        let sges = [from.sge(..)?];
        a.post_send(&SendRequest::write(&sges, to.remote()))?;
        cq.wait(MINUTE)?;
        let mut results = Vec::new();
        for _ in 0..3 {
            b.post_recv(1, &[to.sge(..8)?])?;
            let sges = [from.sge(..8)?];
            a.post_send(&SendRequest::send(&sges))?;
            results.push(cq.wait(MINUTE));
        }
        let last = results.pop().expect("three results");
        assert!(results.iter().all(Result::is_ok), "{results:?}");
        assert_eq!(status(last), WcStatus::RemoteAccessError);
        let kind = |subject: String| subject.split(" 0x").next().unwrap_or_default().to_owned();
        let occurrences = list.fault_report().occurrences.into_iter();
        Ok(occurrences
            .map(|one| (one.rule, kind(one.subject.to_string())))
            .collect())
    };
    let first = run()?;
    let rules: Vec<_> = first.iter().map(|(rule, _)| *rule).collect();
    assert_eq!(rules, [1, 0, 2, 2, 3]);
    assert_eq!(run()?, first);
    Ok(())
}
