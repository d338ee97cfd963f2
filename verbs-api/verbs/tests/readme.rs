//! The test that the README shows.

use rocade_verbs::{AccessFlags, Config, ConnectOptions, DeviceList, SendRequest};
use std::time::Duration;

#[test]
fn the_third_response_is_lost() -> Result<(), Box<dyn std::error::Error>> {
    let config = Config::simulated(42).with_faults("drop opcode=READ_RESPONSE nth=3")?;
    let hcas = DeviceList::new(config)?;
    let a = hcas.open("a")?.protection_domain()?;
    let b = hcas.open("b")?.protection_domain()?;
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ;
    let (here, there) = (a.register(8192, access)?, b.register(8192, access)?);
    let a_cq = a.context().completion_queue(16)?;
    let b_cq = b.context().completion_queue(16)?;
    let (a_qp, b_qp) = (a.queue_pair(&a_cq).build()?, b.queue_pair(&b_cq).build()?);
    let (a_end, b_end) = (a_qp.endpoint(), b_qp.endpoint());
    let a_qp = a_qp.connect(b_end, &ConnectOptions::default())?;
    let _b_qp = b_qp.connect(a_end, &ConnectOptions::default())?;

    there.write(0, &[7; 8192])?;
    a_qp.post_send(&SendRequest::read(&[here.sge(..)?], there.remote()))?;
    a_cq.wait(Duration::from_secs(60))?; // of virtual time
    assert_eq!(here.to_vec(0, 8192)?, [7; 8192]);
    assert_eq!(a_qp.counters().retransmitted_packets, 1); // the request, for the rest
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
