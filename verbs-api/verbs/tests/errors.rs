//! The error types of single functions.

mod common;

use std::time::Duration;

use common::errno;
use rocade_verbs::{
    AccessFlags, BlockOnError, BuildError, Config, ConnectError, DeviceList, Endpoint, Error,
    ExchangeError, Listener, MalformedError, NotSimulated, OpenError, PairError, PeerOptions,
    RangeError, Result, Route, RouteError, SendRequest, VerbsErrorKind, WaitError, WordError,
    simulated_pair,
};

const SHORT: Duration = Duration::from_millis(1);

/// Each function says what can happen there, and `?` converts that to the type of the whole crate.
#[test]
fn the_whole_type_has_the_cause_of_each_small_one() {
    let (a, _b) = simulated_pair(1).unwrap();
    let memory = a.register(16, AccessFlags::LOCAL_WRITE).unwrap();
    let outside = RangeError {
        offset: 10,
        len: 7,
        region_len: 16,
    };
    assert_eq!(memory.to_vec(10..17), Err(outside));
    assert_eq!(memory.load_u64(3), Err(WordError::Misaligned { offset: 3 }));
    let whole = |of: fn(&rocade_verbs::MemoryRegion) -> Result<()>| of(&memory).unwrap_err();
    assert_eq!(
        whole(|memory| Ok(memory.write(10, &[0; 7])?)),
        Error::OutOfRange(outside)
    );
    let eight = RangeError { len: 8, ..outside };
    assert_eq!(
        whole(|memory| Ok(memory.store_u64(10, 0)?)),
        Error::OutOfRange(eight)
    );
    let context = a.domain.context();
    assert_eq!(
        a.domain.queue_pair(&a.cq).gid_index(9).build().unwrap_err(),
        BuildError::NoGid(9)
    );
    let no_entries = context.completion_queue(0).unwrap_err();
    assert_eq!(no_entries.kind(), VerbsErrorKind::InvalidArgument);
    assert_eq!(errno(Err::<(), _>(no_entries)), 22);
    assert_eq!(a.cq.wait(SHORT), Err(WaitError::TimedOut));
    let nested = a.simulation().block_on(async {
        let inner = a.simulation().block_on(async {});
        inner.map_err(Error::from)
    });
    assert_eq!(nested, Ok(Err(Error::Running)));
    let stalled = a.simulation().block_on(std::future::pending::<()>());
    assert_eq!(stalled, Err(BlockOnError::Stalled));
}

/// A network without a simulation, and devices that do not exist.
#[test]
fn what_a_configuration_lacks_is_named() {
    let real = || Config::from_specs(&["a=127.0.0.98"]).unwrap();
    assert_eq!(real().pair().unwrap_err(), PairError::NotSimulated);
    let list = DeviceList::new(real()).unwrap();
    assert_eq!(list.simulation().unwrap_err(), NotSimulated);
    let missing = list.open("b").unwrap_err();
    assert_eq!(missing, OpenError::NoDevice("b".to_owned()));
    assert_eq!(
        Error::from(missing).to_string(),
        "there is no device named b"
    );
    assert_eq!(
        Config::from_specs(&["a"]).unwrap_err(),
        Config::from_specs(&["a"]).unwrap_err()
    );
    let broken = Config::simulated(1).with_faults("drop?").unwrap_err();
    assert!(matches!(Error::from(broken), Error::Fault(_)));
    let empty = Config::simulated(1).with_pkeys(&[]).unwrap_err();
    assert_eq!(empty, MalformedError("P_Key table: it has no entries"));
    let ends = Endpoint::from_bytes(&[0; Endpoint::ENCODED_LEN]).unwrap_err();
    assert_eq!(ends.to_string(), "malformed endpoint: MTU");
    let own = simulated_pair(1).unwrap().0.qp.peer();
    let cut = own.exchange(&[0_u8; 3][..], Vec::new()).unwrap_err();
    let ExchangeError::Io(error) = &cut else {
        panic!("{cut}");
    };
    assert_eq!(error.kind(), std::io::ErrorKind::UnexpectedEof);
}

/// Routes and listeners of one opened device share it.
#[test]
fn connections_use_the_device_that_the_program_has_opened() {
    const LONG: Duration = Duration::from_secs(60);
    let list = DeviceList::new(Config::simulated(5)).unwrap();
    let (a, b) = (list.open("a").unwrap(), list.open("b").unwrap());
    let any = "0.0.0.0:0".parse().unwrap();
    let listener = Listener::on(&b, any).unwrap();
    let address = listener.local_addr().unwrap();
    assert_eq!(address.ip().to_string(), "10.0.0.2");
    assert_eq!(
        errno(Listener::on(&a, address)),
        22,
        "an address of b is none of a"
    );
    // Queues and domains from before the connection serve it, because the device is the same.
    let side = |context: &rocade_verbs::Context| {
        (
            context.protection_domain().unwrap(),
            context.completion_queue(8).unwrap(),
        )
    };
    let ((a_pd, a_cq), (b_pd, b_cq)) = (side(&a), side(&b));
    let inbox = b_pd.register(8, AccessFlags::LOCAL_WRITE).unwrap();
    let simulation = list.simulation().unwrap();
    let run = async {
        let route = Route::on(&a, address).unwrap();
        assert_eq!(route.context().device().name, "a");
        let qp = a_pd.queue_pair(&a_cq).build().unwrap();
        let options = PeerOptions::default();
        let mut asks = std::pin::pin!(route.connect_async(qp, &options));
        let accepts = async {
            let request = listener.request().await.unwrap();
            let cq = request.context().completion_queue(1).unwrap();
            // Objects of two openings of a device do not go together.
            b_pd.queue_pair(&cq).build().unwrap();
            let qp = b_pd.queue_pair(&b_cq).build().unwrap();
            qp.post_recv(1, &[(&inbox).into()]).unwrap();
            request.accept_async(qp, &options).await.unwrap()
        };
        let mut accepts = std::pin::pin!(accepts);
        let (mut asked, mut accepted) = (None, None);
        std::future::poll_fn(|cx| {
            use std::future::Future as _;
            use std::task::Poll;
            if asked.is_none()
                && let Poll::Ready(done) = asks.as_mut().poll(cx)
            {
                asked = Some(done.unwrap());
            }
            if accepted.is_none()
                && let Poll::Ready(done) = accepts.as_mut().poll(cx)
            {
                accepted = Some(done);
            }
            if asked.is_some() && accepted.is_some() {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
        .await;
        let (asked, _accepted) = (asked.unwrap(), accepted.unwrap());
        asked.post_send(&SendRequest::send_inline(b"x")).unwrap();
        assert_eq!(b_cq.next().await.unwrap().byte_len, 1);
    };
    simulation.block_on(run).unwrap();
    let nowhere = "[2001:db8::1]:1".parse().unwrap();
    assert_eq!(
        Route::on(&a, nowhere).unwrap_err(),
        RouteError::Unreachable,
        "the device has no IPv6 address"
    );
    let closed = Route::on(&a, "10.0.0.2:9".parse().unwrap()).unwrap();
    let qp = a_pd.queue_pair(&a_cq).build().unwrap();
    let refused = closed.connect(qp, &PeerOptions::default(), LONG);
    assert!(matches!(refused, Err(ConnectError::Rejected { .. })));
}

/// No text of an error repeats what its `source` says, so that a report of the chain has no part
/// twice.
#[test]
fn a_chain_of_errors_says_nothing_twice() {
    let (a, _b) = simulated_pair(2).unwrap();
    let list = DeviceList::new(Config::simulated(1)).unwrap();
    let port_in_use = Listener::bind(&list, "10.0.0.1:7".parse().unwrap()).unwrap();
    let errors: Vec<Box<dyn std::error::Error>> = vec![
        Listener::bind(&list, port_in_use.local_addr().unwrap())
            .unwrap_err()
            .into(),
        a.cq.wait(SHORT).unwrap_err().into(),
        Config::from_specs(&["x=no-such-interface"])
            .unwrap_err()
            .into(),
        Config::simulated(1)
            .with_faults("drop?")
            .unwrap_err()
            .into(),
        a.qp.peer()
            .exchange(&[0_u8; 3][..], Vec::new())
            .unwrap_err()
            .into(),
    ];
    for error in errors {
        let mut above = error.to_string();
        let mut source = error.source();
        while let Some(inner) = source {
            assert!(!above.contains(&inner.to_string()), "{above}: {inner}");
            above = inner.to_string();
            source = inner.source();
        }
        assert!(!above.is_empty());
    }
}
