//! UC and UD over a bad network, in virtual time. See `rocade_tests::sim::unreliable`.

use rocade_tests::sim::unreliable::{Plan, Report};
use rocade_tests::sim::{are_few, each_seed};
use rocade_transport::QpType;

const COUNT: u64 = 60;

fn run(qp_type: QpType) -> Report {
    let mut sum = Report::default();
    let plan = |seed| Plan::swarm(seed, qp_type, 100);
    each_seed(COUNT, plan, Plan::run, |report| {
        sum.sent += report.sent;
        sum.received += report.received;
        sum.written += report.written;
        sum.refused += report.refused;
        sum.windows += report.windows;
        sum.flushed += report.flushed;
    });
    println!("{qp_type:?}: {sum:?}");
    sum
}

//= UC-01 UC-02 type=test
//= UC-03 UC-05 type=test
//= UC-06 UC-08 type=test
#[test]
fn uc_messages_arrive_whole_or_not_at_all() {
    let report = run(QpType::Uc);
    if are_few(COUNT) {
        return;
    }
    assert!(
        report.received > report.sent / 4 && report.flushed > 100,
        "{report:?}"
    );
    assert!(
        report.written > report.received / 8 && report.refused > 100 && report.windows > 100,
        "{report:?}"
    );
}

//= UD-09 type=test
//= UD-12 type=test
#[test]
fn datagrams_arrive_as_they_were_sent() {
    let report = run(QpType::Ud);
    assert!(
        are_few(COUNT) || (report.received > report.sent / 4 && report.flushed > 100),
        "{report:?}"
    );
}
