//! The test that the README of this crate shows.

use rocade_verbs::{AccessFlags, Config, SendRequest};
use std::time::Duration;

#[test]
fn a_lost_write_is_repeated() -> Result<(), Box<dyn std::error::Error>> {
    let config = Config::simulated(1).with_faults("drop opcode=RDMA_WRITE_ONLY nth=1")?;
    let (a, b) = config.pair()?; // two hosts, connected
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
    let (source, target) = (a.register(64, access)?, b.register(64, access)?);

    source.write(0, b"over RoCEv2")?;
    let bytes = [source.sge(..11)?];
    a.qp.post_send(&SendRequest::write(&bytes, target.remote()))?;
    a.cq.wait(Duration::from_secs(60))?; // of virtual time
    assert_eq!(target.to_vec(..11)?, b"over RoCEv2");
    assert_eq!(a.qp.counters().retransmitted_packets, 1);
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
