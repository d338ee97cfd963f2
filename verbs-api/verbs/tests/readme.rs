//! The test that the README shows.

use rocade_verbs::{AccessFlags, Config, SendRequest};
use std::time::Duration;

#[test]
fn the_third_response_is_lost() -> Result<(), Box<dyn std::error::Error>> {
    let config = Config::simulated(42).with_faults("drop opcode=READ_RESPONSE nth=3")?;
    let (a, b) = config.pair()?; // two hosts, connected
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ;
    let (here, there) = (a.register(8192, access)?, b.register(8192, access)?);

    there.write(0, &[7; 8192])?;
    a.qp.post_send(&SendRequest::read(&[here.sge(..)?], there.remote()))?;
    a.cq.wait(Duration::from_secs(60))?; // of virtual time
    assert_eq!(here.to_vec(..)?, [7; 8192]);
    assert_eq!(a.qp.counters().retransmitted_packets, 1); // the request, for the rest
    Ok(())
}

#[test]
fn the_readme_shows_this_file() {
    let readme = include_str!("../../../README.md");
    let (_, shown) = include_str!("readme.rs")
        .split_once("\n\n")
        .expect("a first line and an empty one");
    let (shown, _) = shown
        .split_once("\n#[test]\nfn the_readme")
        .expect("this test in the file");
    assert!(
        readme.contains(shown.trim_end()),
        "copy it into the README:\n{shown}"
    );
}
