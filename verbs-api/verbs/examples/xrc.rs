//! XRC: one connection serves two processes.
//!
//! ```sh
//! cargo build --workspace                # the processes share an address through the broker
//! cargo run --package rocade-verbs --example xrc
//! ```
//! A file identifies the XRC domain, and each process that opens the domain with this file shares
//! it. This process creates the target. It starts a second process, which opens the same domain and
//! creates its own shared receive queue. Each message names its queue, so it reaches the right
//! process over the same connection.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Error};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use rocade_verbs::{
    AccessFlags, CompletionQueue, ConnectOptions, DeviceList, MemoryRegion, Qpn, Result,
    SendRequest, SharedReceiveQueue, XrcDomain,
};

const PATIENCE: Duration = Duration::from_secs(60);

/// The objects of each process: a shared receive queue of the domain with a posted receive, and its
/// completion queue.
struct Member {
    domain: XrcDomain,
    cq: CompletionQueue,
    memory: MemoryRegion,
    queue: SharedReceiveQueue,
}

impl Member {
    fn join(list: &DeviceList, file: &Path) -> Result<Self> {
        let pd = list.open_first()?.protection_domain()?;
        let domain = pd.context().shared_xrc_domain(&File::open(file)?)?;
        let cq = pd.context().completion_queue(4)?;
        let queue = domain.shared_receive_queue(&pd, &cq, 4, 1)?;
        let memory = pd.register(64, AccessFlags::LOCAL_WRITE)?;
        queue.post_recv(1, &[memory.sge(..)?])?;
        Ok(Self {
            domain,
            cq,
            memory,
            queue,
        })
    }

    /// Waits for a message and returns its text.
    fn hear(&self) -> Result<String> {
        let len = self.cq.wait(PATIENCE)?.byte_len as usize;
        let text = self.memory.to_vec(..len)?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }
}

/// Runs the second process. It keeps `target` alive with a handle of its own.
fn other(file: &Path, target: u32) -> Result<()> {
    let member = Member::join(&DeviceList::from_env()?, file)?;
    let _target = member.domain.open_target(Qpn::new(target))?;
    println!("{}", member.queue.number());
    println!("the other process hears {:?}", member.hear()?);
    Ok(())
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [file, target] = &arguments[..] {
        return other(Path::new(file), target.parse().unwrap_or(0));
    }
    let file = std::env::temp_dir().join(format!("rocade-xrc-{}", std::process::id()));
    File::create(&file)?;
    let list = DeviceList::from_env()?;
    let member = Member::join(&list, &file)?;
    let target = member.domain.target(AccessFlags::empty())?;
    let pd = list.open_first()?.protection_domain()?;
    let sent = pd.context().completion_queue(4)?;
    let initiator = pd.queue_pair(&sent).xrc_initiator().build()?;
    let (target_end, initiator_end) = (target.endpoint(), initiator.endpoint());
    let _target = target.connect(initiator_end, &ConnectOptions::default())?;
    let initiator = initiator.connect(target_end, &ConnectOptions::default())?;

    let mut child = Command::new(std::env::current_exe()?)
        .arg(&file)
        .arg(target_end.qp_num.get().to_string())
        .stdout(Stdio::piped())
        .spawn()?;
    let output = child
        .stdout
        .take()
        .ok_or_else(|| Error::other("no output"))?;
    let mut lines = BufReader::new(output).lines();
    let number = lines.next().transpose()?.unwrap_or_default();
    let theirs: u32 = number.parse().map_err(Error::other)?;

    for (queue, text) in [(member.queue.number(), "for me"), (theirs, "for you")] {
        initiator.post_send(&SendRequest::send_inline(text.as_bytes()).to_queue(queue))?;
        sent.wait(PATIENCE)?;
    }
    println!("this process received {:?}", member.hear()?);
    for line in lines {
        println!("{}", line?);
    }
    std::fs::remove_file(&file)?;
    assert!(child.wait()?.success());
    Ok(())
}
