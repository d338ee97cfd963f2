//! The test that the README of this crate shows.

use rocade_verbs::{AccessFlags, Config, ConnectOptions, DeviceList, SendRequest};
use std::time::Duration;

#[test]
fn a_lost_write_is_repeated() -> Result<(), Box<dyn std::error::Error>> {
    let config = Config::simulated(1).with_faults("drop opcode=RDMA_WRITE_ONLY nth=1")?;
    let hosts = DeviceList::new(config)?;
    let a = hosts.open("a")?.protection_domain()?;
    let b = hosts.open("b")?.protection_domain()?;
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
    let (source, target) = (a.register(64, access)?, b.register(64, access)?);

    // Each end connects to the endpoint of the other, which any byte stream can carry.
    let a_cq = a.context().completion_queue(16)?;
    let b_cq = b.context().completion_queue(16)?;
    let (a_qp, b_qp) = (a.queue_pair(&a_cq).build()?, b.queue_pair(&b_cq).build()?);
    let (a_end, b_end) = (a_qp.endpoint(), b_qp.endpoint());
    let a_qp = a_qp.connect(b_end, &ConnectOptions::default())?;
    let _b_qp = b_qp.connect(a_end, &ConnectOptions::default())?;

    source.write(0, b"over RoCEv2")?;
    a_qp.post_send(&SendRequest::write(&[source.sge(..11)?], target.remote()))?;
    a_cq.wait(Duration::from_secs(60))?; // of virtual time
    assert_eq!(target.to_vec(0, 11)?, b"over RoCEv2");
    assert_eq!(a_qp.counters().retransmitted_packets, 1);
    Ok(())
}

#[test]
fn the_readme_shows_this_file() {
    let readme = include_str!("../README.md");
    let (_, shown) = include_str!("crate_readme.rs")
        .split_once("\n\n")
        .expect("a first line and an empty one");
    let (shown, _) = shown
        .split_once("\n#[test]\nfn the_readme")
        .expect("this test in the file");
    let block = format!("```rust\n{}\n```\n", shown.trim_end());
    assert!(readme.contains(&block), "copy it into the README:\n{block}");
}
