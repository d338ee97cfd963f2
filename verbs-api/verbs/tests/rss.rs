//! RSS of the safe API, on the loopback interface.

use std::collections::BTreeMap;
use std::time::Duration;

use rocade_verbs::flow::{FlowAttr, FlowSpec, Masked, PortFields};
use rocade_verbs::{
    AccessFlags, Completion, Config, DeviceList, RssHash, WaitError, WcStatus, WqState,
};

/// A time limit that is long enough for any machine.
const LONG: Duration = Duration::from_secs(20);
const DATA: usize = 14 + 20 + 8;
const TO_PORT: u16 = 7301;

/// Returns a UDP frame to a nonexistent host. The payload is the source port.
fn frame(from_port: u16) -> Vec<u8> {
    let mut bytes = vec![0; 12];
    bytes.extend([8, 0, 0x45, 0, 0, 30, 0, 7, 0, 0, 64, 17, 0, 0]);
    bytes.extend([198, 51, 100, 1, 198, 51, 100, 2]);
    for word in [from_port, TO_PORT, 10, 0, from_port] {
        bytes.extend(word.to_be_bytes());
    }
    bytes
}

fn to_port() -> FlowAttr {
    let fields = |dst_port| PortFields {
        dst_port,
        ..PortFields::default()
    };
    let spec = FlowSpec::Udp(Masked::new(fields(TO_PORT), fields(0xffff)));
    FlowAttr::matching(vec![spec])
}

/// Every frame arrives once, and all frames of one connection reach the same queue.
//= QPC-02 type=test
#[test]
fn frames_of_a_connection_stay_together() {
    let config = Config::from_specs(&["dev=127.6.0.1"]).unwrap();
    let list = DeviceList::new(config).unwrap();
    let pd = list.open("dev").unwrap().protection_domain().unwrap();
    let receives = pd.context().completion_queue(64).unwrap();
    let sends = pd.context().completion_queue(64).unwrap();
    let first = match pd.work_queue(&receives, 32, 1) {
        // Without the privilege, creating a work queue fails with EPERM.
        Err(error) => return assert_eq!(error.errno(), libc::EPERM),
        first => first.unwrap(),
    };
    let second = pd.work_queue(&receives, 32, 1).unwrap();
    let all = RssHash::default();
    let three = [&first, &second, &first];
    let refused = pd.rss_queue_pair(&three, &all);
    assert!(refused.is_err(), "not a power of two");
    let rss = pd.rss_queue_pair(&[&first, &second], &all).unwrap();
    let _flow = rss.flow(to_port()).unwrap();

    let memory = pd.register(64 << 10, AccessFlags::LOCAL_WRITE).unwrap();
    for (queue, half) in [(&first, 0), (&second, 16)] {
        for n in half..half + 16 {
            let sges = [memory.sge(2048 * n..2048 * (n + 1)).unwrap()];
            queue.post_recv(n as u64, &sges).unwrap();
        }
    }
    let sender = pd.raw_queue_pair(&sends, &sends).unwrap();
    let out = pd.register(2048, AccessFlags::empty()).unwrap();
    let mut queues = BTreeMap::new();
    for round in 0..2 {
        for from in 1000..1008_u16 {
            let frame = frame(from);
            out.write(0, &frame).unwrap();
            let sges = [out.sge(..frame.len()).unwrap()];
            sender.send(1, &sges, true).unwrap();
            sends.wait(LONG).unwrap();
            let received = receives.wait(LONG).unwrap();
            assert!(first.owns(&received) || second.owns(&received));
            let place = 2048 * usize::try_from(received.wr_id).unwrap();
            let data = memory.to_vec(place + DATA..place + DATA + 2).unwrap();
            assert_eq!(data, from.to_be_bytes());
            let queue = *queues.entry(from).or_insert(received.qp_num);
            assert_eq!(queue, received.qp_num, "round {round}, from {from}");
        }
    }
    let is_first = |number: &&_| **number == first.number();
    let count = queues.values().filter(is_first).count();
    assert!((1..8).contains(&count), "{queues:?}");

    // A queue in state ERR flushes its receives, and works again after RESET.
    assert_eq!(first.state(), WqState::Rdy);
    first.set_state(WqState::Err).unwrap();
    let flushed = receives.wait(LONG).unwrap_err();
    assert!(matches!(
        flushed,
        WaitError::Completion(Completion {
            status: WcStatus::Flushed,
            ..
        })
    ));
    assert!(first.set_state(WqState::Rdy).is_err());
    first.set_state(WqState::Reset).unwrap();
    first.set_state(WqState::Rdy).unwrap();
    // The queue pair keeps its work queues alive.
    drop((first, second));
    drop(pd);
    assert!(rss.flow(to_port()).is_ok());
}
