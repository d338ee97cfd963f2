//! One thread serves many connections whose requests arrive in one shared receive queue.
//!
//! ```sh
//! cargo run --package rocade-verbs --example shared_receives
//! ```
//! Client and server run in this process, each on a NIC with its own address.

use std::time::Duration;

use rocade_verbs::{
    AccessFlags, Config, ConnectOptions, DeviceList, QueuePair, Result, SendRequest,
};

const CONNECTIONS: u32 = 8;
const MESSAGES: u32 = 50;
/// The size of a receive buffer in bytes. All connections share `BUFFERS` of them.
const ROOM: usize = 64;
const BUFFERS: u32 = 16;
const PATIENCE: Duration = Duration::from_secs(60);

fn main() -> Result<()> {
    let specs = ["client=127.0.0.91", "server=127.0.0.92"];
    let list = DeviceList::new(Config::from_specs(&specs)?)?;
    let client = list.open("client")?.protection_domain()?;
    let server = list.open("server")?.protection_domain()?;
    let client_cq = client.context().completion_queue(256)?;
    let server_cq = server.context().completion_queue(256)?;
    let memory = server.register(BUFFERS as usize * ROOM, AccessFlags::LOCAL_WRITE)?;

    let receives = server.shared_receive_queue(BUFFERS, 1)?;
    let place = |wr_id| usize::try_from(wr_id).expect("the index of a buffer") * ROOM;
    let buffer = |wr_id| memory.sge(place(wr_id)..place(wr_id) + ROOM);
    for wr_id in 0..BUFFERS.into() {
        receives.post_recv(wr_id, &[buffer(wr_id)?])?;
    }

    let connect = || -> Result<(QueuePair, QueuePair)> {
        let here = client.queue_pair(&client_cq).build()?;
        let there = server.queue_pair(&server_cq).shared_receives(&receives);
        let there = there.build()?;
        let (here_end, there_end) = (here.endpoint(), there.endpoint());
        let options = ConnectOptions::default();
        Ok((
            here.connect(there_end, &options)?,
            there.connect(here_end, &options)?,
        ))
    };
    let connections: Vec<_> = (0..CONNECTIONS).map(|_| connect()).collect::<Result<_>>()?;

    let mut served = vec![0; connections.len()];
    for number in 0..MESSAGES {
        for (qp, _) in &connections {
            qp.post_send(&SendRequest::send_inline(&number.to_be_bytes()))?;
        }
        for _ in &connections {
            let request = server_cq.wait(PATIENCE)?;
            let mut bytes = [0; 4];
            memory.read(place(request.wr_id), &mut bytes)?;
            assert_eq!(u32::from_be_bytes(bytes), number);
            let from = connections.iter().position(|(_, qp)| qp.owns(&request));
            served[from.expect("one of the connections")] += 1;
            // Posts the buffer again for the next message of any connection.
            receives.post_recv(request.wr_id, &[buffer(request.wr_id)?])?;
        }
        client_cq.wait_for(connections.len(), PATIENCE)?;
    }
    assert!(served.iter().all(|count| *count == MESSAGES));
    println!("{CONNECTIONS} connections, {MESSAGES} requests each, {BUFFERS} buffers for all");
    Ok(())
}
