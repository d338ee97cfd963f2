//! The conformance suite against Rocade: every case passes, except for those that
//! `conformance/expectations/rocade.toml` lists.
//!
//! `ROCADE_CONFORMANCE=RC-RSP,RC-DUP-01` selects cases by name prefix. `ROCADE_CONFORMANCE_LIST=1`
//! prints the selected cases without running them. `ROCADE_CONFORMANCE_JSON=DIR` writes a report
//! per area into that directory.

#![expect(
    clippy::unwrap_used,
    reason = "a test helper reports errors by panicking"
)]

mod manager;
mod peer;
mod verbs;

use std::{
    env, fs, io,
    net::{IpAddr, Ipv4Addr},
    path::Path,
};

use rocade_conformance::{
    Bench, Expectations, Report, Rig, Selection, Timing, run,
    suite::{self, Area},
};

use peer::RocadePeer;

const EXPECTATIONS: &str = include_str!("../../../conformance/expectations/rocade.toml");

fn expectations() -> Expectations {
    Expectations::parse(EXPECTATIONS, &suite::all()).unwrap()
}

fn selection() -> Selection {
    Selection::parse(&env::var("ROCADE_CONFORMANCE").unwrap_or_default())
}

fn rig(network: u8, host: u8) -> io::Result<Rig> {
    let address = |number| IpAddr::from(Ipv4Addr::new(127, 3, network, host + number));
    Rig::bind(address(1), address(2), Some(address(3)))
}

/// Returns a rig on addresses that no other test uses, and Rocade as its peer.
fn rig_and_peer(area: &Area) -> (Rig, RocadePeer) {
    let index = suite::AREAS
        .iter()
        .position(|a| a.name == area.name)
        .unwrap();
    let host = u8::try_from(8 * index).unwrap();
    // Another run of these tests may use the same addresses at the same time.
    let [first, ..] = std::process::id().to_le_bytes();
    let mut networks = (0..16).map(|attempt| first.wrapping_add(attempt));
    networks
        .find_map(|network| match rig(network, host) {
            Ok(rig) => {
                let peer = Ipv4Addr::new(127, 3, network, host + 2);
                Some((rig, RocadePeer::new(peer.into())))
            }
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => None,
            Err(error) => panic!("no rig: {error}"),
        })
        .expect("a free address")
}

/// Runs the cases of an area, and checks that their number is `cases`.
fn check(name: &str, cases: usize) {
    let area = suite::AREAS.iter().find(|area| area.name == name).unwrap();
    let selection = selection();
    if env::var_os("ROCADE_CONFORMANCE_LIST").is_some() {
        for case in area.cases.iter().filter(|case| selection.matches(case)) {
            println!("{:<9} {:<6} {}", area.name, case.level, case.name());
        }
        rocade_tests::skip!("the cases of {name} are only listed");
    }
    let (rig, peer) = rig_and_peer(area);
    let bench = Bench::new(rig, &peer, Timing::default());
    let report = run(&bench, area.cases, &selection, &expectations());
    println!("{report}");
    write_json(name, &report);
    assert_eq!(report.unexpected().count(), 0, "see the report above");
    if selection == Selection::default() {
        assert_eq!(report.run_count(), cases, "cases that were run");
    }
}

fn write_json(area: &str, report: &Report) {
    if let Some(directory) = env::var_os("ROCADE_CONFORMANCE_JSON") {
        let file = Path::new(&directory).join(format!("{area}.json"));
        fs::write(file, report.to_json().unwrap()).unwrap();
    }
}

macro_rules! areas {
    ($($area:ident $cases:literal)*) => {
        $(
            #[test]
            fn $area() {
                check(stringify!($area), $cases);
            }
        )*

        #[test]
        fn every_area_has_a_test() {
            let areas: Vec<_> = suite::AREAS.iter().map(|area| (area.name, area.cases.len())).collect();
            assert_eq!(areas, [$((stringify!($area), $cases)),*]);
        }
    };
}

// The numbers make sure that no case gets lost. A new case must be added to them.
areas! {
    packets 23
    sequence 12
    messages 16
    acknowledge 9
    errors 35
    duplicates 9
    resources 20
    requester 21
    failures 15
    retry 23
    windows 14
    shared 17
    unreliable 16
    manager 23
    initiator 10
    flush 15
    extended 25
    dynamic 18
    dynamic_initiator 13
    migration 7
    multicast 13
    hostile_packets 29
    hostile_ranges 32
    hostile_rights 40
    hostile_errors 17
    hostile_responses 37
    hostile_application 36
    posting 24
    window_domains 21
    draining 17
    send_errors 11
}
