//! The key-value store of the examples in a simulated network: the same program, in virtual time.
#![expect(clippy::unwrap_used, reason = "in a test")]

#[path = "../examples/key_value.rs"]
#[expect(dead_code, reason = "its main function")]
mod key_value;

use std::future::Future;
use std::net::SocketAddr;
use std::time::Duration;

use rocade_verbs::{CompletionQueue, Config, DeviceList, Listener, Result, Route, Simulation};

const LIMIT: Duration = Duration::from_secs(600);

/// The examples on a simulated network, whose executor delivers completions by itself.
#[derive(Clone)]
struct Virtual(Simulation);

impl key_value::runtime::Runtime for Virtual {
    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let _detached = self.0.spawn(task);
    }

    fn drive(&self, _: &CompletionQueue) -> Result<()> {
        Ok(())
    }
}

fn network(seed: u64, rules: &str) -> (DeviceList, Listener, SocketAddr) {
    let config = Config::simulated(seed).with_faults(rules).unwrap();
    let list = DeviceList::new(config).unwrap();
    let listener = Listener::bind(&list, "10.0.0.2:0".parse().unwrap()).unwrap();
    let address = listener.local_addr().unwrap();
    (list, listener, address)
}

fn route(list: &DeviceList, to: SocketAddr) -> Route {
    Route::from(list, "10.0.0.1:0".parse().unwrap(), to).unwrap()
}

fn values(seed: u64, rules: &str) -> Duration {
    let (list, listener, address) = network(seed, rules);
    let simulation = list.simulation().unwrap();
    let pd = list.open("b").unwrap().protection_domain().unwrap();
    let runtime = Virtual(simulation.clone());
    let begin = simulation.now();
    let clients = async {
        let one = key_value::Client::connect(route(&list, address), runtime.clone())
            .await
            .unwrap();
        let two = key_value::Client::connect(route(&list, address), runtime.clone())
            .await
            .unwrap();
        assert_eq!(two.get(7).await.unwrap(), None);
        for value in 0..20 {
            one.put(7, value).await.unwrap();
            two.put(8, value + 100).await.unwrap();
            assert_eq!(two.get(7).await.unwrap(), Some(value));
            assert_eq!(one.get(8).await.unwrap(), Some(value + 100));
        }
        one.close().await.unwrap();
        two.close().await.unwrap();
    };
    let server = simulation.spawn(key_value::serve(pd, listener, 2, runtime.clone()));
    let all = async {
        clients.await;
        server.await.unwrap();
    };
    let in_time = simulation.timeout(LIMIT, all);
    simulation.block_on(in_time).unwrap().unwrap();
    simulation.now() - begin
}

#[test]
fn a_key_value_store_runs_in_virtual_time() {
    let quick = values(1, "");
    assert!(quick < Duration::from_secs(1), "{quick:?}");
    let lossy = "drop p=3%; reorder by=2 p=3%";
    assert_eq!(values(2, lossy), values(2, lossy));
}
