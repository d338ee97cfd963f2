//! Fault rules that are added and removed while processes run.

use rocade_emulator::broker::{
    self, BrokerConfig, BrokerError, FaultList, FaultyProcess, MAX_RULE_LEN, RefusalCode,
};
use rocade_emulator::faults::{FaultRule, MAX_RULES};
use rocade_emulator::{AsyncEventKind, BrokerMode, Engine, EngineConfig, LinkMode, SendOp};

use crate::common::Side;
use crate::node::*;
use crate::processes::{broker_config, wait_until};

fn rule(text: &str) -> FaultRule {
    FaultRule::parse(text).unwrap()
}

fn list(config: &BrokerConfig) -> FaultList {
    broker::faults(config).unwrap()
}

/// Waits until all processes have installed the rules.
fn settle(config: &BrokerConfig) -> FaultList {
    wait_until(|| list(config).processes.iter().all(|p| p.is_up_to_date));
    list(config)
}

/// Returns the ID, the origin and the hits of each rule of a process.
fn seen(process: &FaultyProcess) -> Vec<(u32, bool, u64)> {
    let rules = process.rules.iter();
    rules.map(|of| (of.rule.id, of.own, of.hits)).collect()
}

fn of_pid(list: &FaultList, pid: u32) -> Vec<(u32, bool, u64)> {
    let process = list.processes.iter().find(|process| process.pid == pid);
    seen(process.expect("a process of the broker"))
}

fn exchange(side: &Side, node: &mut Node, wr_id: u64) {
    node.ask(&format!("recv 0 {wr_id} 0 8"));
    side.send(wr_id, SendOp::Send { imm: None }, &[side.sge(0, 8)]);
    assert_eq!(node.ask("poll 0"), format!("{wr_id} Success 8"));
    assert_success(side, wr_id);
}

#[test]
fn rules_come_and_go_while_processes_run() {
    for link in [LinkMode::Auto, LinkMode::Udp] {
        let site = Site::new();
        let config = broker_config(site.dir.path());
        let side = Side::on(site.engine(link), MEMORY);
        let name = if link == LinkMode::Udp { "udp" } else { "auto" };
        let mut node = site.node_at(site.address, name);
        node.connect(&side, 0);
        exchange(&side, &mut node, 1);
        assert!(side.qp.counters().retransmitted_packets == 0);
        let nothing = list(&config);
        assert!(nothing.rules.is_empty() && nothing.processes.iter().all(|p| p.is_up_to_date));

        let first = broker::add_fault(&config, &rule("drop opcode=SEND nth=2")).unwrap();
        let second = broker::add_fault(&config, &rule("dup opcode=ACK")).unwrap();
        assert_ne!(first, second);
        let (own, other) = (std::process::id(), node.child.id());
        let there = settle(&config);
        assert_eq!(there.rules[0].text, "drop opcode=SEND nth=2");
        assert_eq!(of_pid(&there, own), [(first, false, 0), (second, false, 0)]);
        // The second message is lost, and retransmitted.
        for wr_id in 2..4 {
            exchange(&side, &mut node, wr_id);
        }
        assert!(side.qp.counters().retransmitted_packets > 0);
        let there = list(&config);
        assert_eq!(of_pid(&there, own), [(first, false, 1), (second, false, 0)]);
        let [(_, _, lost), (_, _, doubled)] = of_pid(&there, other)[..] else {
            panic!("{there:?}")
        };
        assert_eq!(lost, 0, "the process sends no SEND");
        assert!(doubled >= 2, "{doubled}");

        assert_eq!(broker::clear_faults(&config, Some(first)).unwrap(), 1);
        let there = settle(&config);
        let [(left, _, still)] = of_pid(&there, other)[..] else {
            panic!("{there:?}")
        };
        assert_eq!(left, second);
        assert!(still >= doubled, "counting goes on");
        assert_eq!(broker::clear_faults(&config, Some(first)).unwrap(), 0);
        assert_eq!(broker::clear_faults(&config, None).unwrap(), 1);
        settle(&config);
        let before = side.qp.counters().retransmitted_packets;
        exchange(&side, &mut node, 9);
        assert_eq!(side.qp.counters().retransmitted_packets, before);
        assert!(list(&config).rules.is_empty());
    }
}

/// Rules of all kinds come and go, and their times count from then on.
#[test]
fn rules_for_verbs_and_events_come_while_a_process_runs() {
    let site = Site::new();
    let config = broker_config(site.dir.path());
    let side = Side::on(site.engine(LinkMode::Auto), MEMORY);
    let own = std::process::id();
    let fails = broker::add_fault(&config, &rule("fail verb=alloc_pd errno=EAGAIN nth=2")).unwrap();
    let event = rule("event type=SM_CHANGE every=1ms times=3");
    let event = broker::add_fault(&config, &event).unwrap();
    settle(&config);
    let errors = [0; 3].map(|_| side.context.alloc_pd().err().map(|error| error.errno()));
    assert_eq!(errors, [None, Some(11), None]);
    for _ in 0..3 {
        let raised = side.context.next_async_event().unwrap();
        assert_eq!(raised.kind, AsyncEventKind::SmChange);
    }
    let counts = [(fails, false, 1), (event, false, 3)];
    wait_until(|| of_pid(&list(&config), own) == counts);
    assert_eq!(broker::clear_faults(&config, None).unwrap(), 2);
    settle(&config);
    side.context.alloc_pd().unwrap();
    side.context.alloc_pd().unwrap();
}

/// A process that starts later installs the rules before its first packet.
#[test]
fn rules_apply_to_later_processes() {
    let site = Site::new();
    let config = broker_config(site.dir.path());
    assert!(matches!(
        broker::add_fault(&config, &rule("drop")),
        Err(BrokerError::NotRunning)
    ));
    let side = Side::on(site.engine(LinkMode::Auto), MEMORY);
    let id = broker::add_fault(&config, &rule("drop opcode=ACK nth=1")).unwrap();
    let mut node = site.node();
    node.connect(&side, 0);
    exchange(&side, &mut node, 1);
    assert_eq!(of_pid(&settle(&config), node.child.id()), [(id, false, 1)]);
}

fn engine_with(site: &Site, faults: &str) -> Engine {
    let broker = BrokerMode::Auto(broker_config(site.dir.path()));
    let specs = [format!("dev={}", site.address)];
    let config = EngineConfig::from_specs(&specs, broker).unwrap();
    Engine::new(EngineConfig {
        faults: FaultRule::parse_list(faults).unwrap(),
        ..config
    })
    .unwrap()
}

/// Rules given to a process at its start are in the list, and can be removed like the others. The
/// next broker also knows these, but not the added ones, which the processes remove.
#[test]
fn rules_that_a_process_was_started_with() {
    let site = Site::new();
    let config = broker_config(site.dir.path());
    let side = Side::on(
        engine_with(&site, "drop opcode=SEND nth=1; ecn; dup nth=7"),
        MEMORY,
    );
    let mut node = site.node();
    node.connect(&side, 0);
    exchange(&side, &mut node, 1);
    let there = settle(&config);
    let own = std::process::id();
    let [(drop, true, 1), (ecn, true, marked), (dup, true, 0)] = of_pid(&there, own)[..] else {
        panic!("{there:?}")
    };
    assert!(marked >= 2);
    assert!(of_pid(&there, node.child.id()).is_empty());
    assert_eq!(broker::clear_faults(&config, Some(ecn)).unwrap(), 1);
    let added = broker::add_fault(&config, &rule("delay by=1us nth=1000")).unwrap();
    let there = settle(&config);
    assert_eq!(
        of_pid(&there, own),
        [(drop, true, 1), (dup, true, 0), (added, false, 0)]
    );

    broker::stop(&config).unwrap();
    wait_until(|| broker::faults(&config).is_ok_and(|list| list.processes.len() == 2));
    let there = settle(&config);
    assert!(there.rules.is_empty());
    let [(first, true, 1), (_, true, 0)] = of_pid(&there, own)[..] else {
        panic!("{there:?}")
    };
    let rules: Vec<_> = there.processes.iter().flat_map(|p| &p.rules).collect();
    let of_first = rules.iter().find(|of| of.rule.id == first).unwrap();
    assert_eq!(of_first.rule.text, "drop opcode=SEND nth=1");
    assert!(of_pid(&there, node.child.id()).is_empty());
    assert_eq!(broker::clear_faults(&config, None).unwrap(), 2);
    assert!(of_pid(&settle(&config), own).is_empty());
    exchange(&side, &mut node, 2);
}

/// A stopped process gets the rules when it continues, and other processes need not wait for it.
#[test]
fn a_process_that_is_stopped_is_behind() {
    let site = Site::new();
    let config = broker_config(site.dir.path());
    let side = Side::on(site.engine(LinkMode::Auto), MEMORY);
    let mut node = site.node();
    node.connect(&side, 0);
    let stopped = node.stop();
    for _ in 0..3 {
        broker::add_fault(&config, &rule("drop opcode=NAK")).unwrap();
    }
    let up_to_date = |pid: u32| {
        let list = list(&config);
        let mut processes = list.processes.iter();
        processes.any(|process| process.pid == pid && process.is_up_to_date)
    };
    wait_until(|| up_to_date(std::process::id()));
    assert!(!up_to_date(node.child.id()));
    drop(stopped);
    assert_eq!(of_pid(&settle(&config), node.child.id()).len(), 3);
    exchange(&side, &mut node, 1);
}

/// An update may arrive while another one is being read.
#[test]
fn no_change_is_missed() {
    let site = Site::new();
    let config = broker_config(site.dir.path());
    let _side = Side::on(site.engine(LinkMode::Auto), MEMORY);
    for _ in 0..100 {
        for _ in 0..5 {
            broker::add_fault(&config, &rule("drop opcode=CNP")).unwrap();
        }
        let there = settle(&config);
        assert_eq!(of_pid(&there, std::process::id()).len(), 5);
        assert_eq!(broker::clear_faults(&config, None).unwrap(), 5);
        settle(&config);
    }
}

#[test]
fn too_many_rules_are_refused() {
    let site = Site::new();
    let config = broker_config(site.dir.path());
    let _side = Side::on(engine_with(&site, "ecn; ecn"), MEMORY);
    let long = |count: usize| {
        let names = vec!["ACK"; count].join(",");
        rule(&format!("drop opcode={names}"))
    };
    let refused = |added: Result<u32, BrokerError>| match added {
        Err(BrokerError::Refused { code, text }) => {
            assert_eq!(code, RefusalCode::Limit, "{text}");
        }
        other => panic!("{other:?}"),
    };
    refused(broker::add_fault(&config, &long(MAX_RULE_LEN / 4)));
    for _ in 2..MAX_RULES {
        broker::add_fault(&config, &long(90)).unwrap();
    }
    refused(broker::add_fault(&config, &rule("ecn")));
    let there = settle(&config);
    assert_eq!(of_pid(&there, std::process::id()).len(), MAX_RULES);
    assert_eq!(broker::clear_faults(&config, None).unwrap(), 64);
}
