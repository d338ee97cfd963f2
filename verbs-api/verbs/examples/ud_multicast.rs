//! UD multicast: one member of a group sends a message to all members.
//!
//! ```sh
//! cargo run --package rocade-verbs --example ud_multicast
//! ```
//! Usually the members would be processes on different machines. Here they are three devices of one
//! process.

use std::time::Duration;

use rocade_verbs::{
    AccessFlags, CompletionQueue, Config, DatagramQueuePair, DeviceList, GRH_LEN, Gid,
    MemoryRegion, ProtectionDomain, Result, SendRequest, UdAddress,
};

const QKEY: u32 = 0x5eed;
const PATIENCE: Duration = Duration::from_secs(60);

struct Member {
    pd: ProtectionDomain,
    cq: CompletionQueue,
    memory: MemoryRegion,
    qp: DatagramQueuePair,
}

impl Member {
    fn join(list: &DeviceList, device: &str, group: Gid) -> Result<Self> {
        let pd = list.open(device)?.protection_domain()?;
        let cq = pd.context().completion_queue(16)?;
        let memory = pd.register(1024, AccessFlags::LOCAL_WRITE)?;
        let qp = pd.datagram_queue_pair(&cq, QKEY)?;
        qp.attach(group)?;
        qp.post_recv(1, &[memory.sge(..)?])?;
        Ok(Self { pd, cq, memory, qp })
    }

    fn listen(&self) -> Result<String> {
        let mut received = self.cq.wait(PATIENCE)?;
        while received.is_send {
            received = self.cq.wait(PATIENCE)?;
        }
        let len = usize::try_from(received.byte_len).unwrap_or(0) - GRH_LEN;
        let text = self.memory.to_vec(GRH_LEN..GRH_LEN + len)?;
        Ok(format!(
            "{:?} from {:?}",
            String::from_utf8_lossy(&text),
            received.src_qp
        ))
    }
}

fn main() -> Result<()> {
    let specs = ["a=127.0.0.86", "b=127.0.0.87", "c=127.0.0.88"];
    let list = DeviceList::new(Config::from_specs(&specs)?)?;
    let group = Gid::from_ip([239, 0, 0, 86].into());
    let members = ["a", "b", "c"].map(|device| Member::join(&list, device, group));
    let [a, b, c] = members;
    let (a, b, c) = (a?, b?, c?);

    let speaker = a.pd.datagram_queue_pair(&a.cq, QKEY)?;
    let address = a.pd.address(group)?;
    let group_address = UdAddress::group(group, QKEY);
    speaker.post_send(
        &SendRequest::send_inline(b"hello, all"),
        &address,
        &group_address,
    )?;

    for member in [&a, &b, &c] {
        println!(
            "{:?} received {}",
            member.qp.address().gid,
            member.listen()?
        );
    }
    Ok(())
}
