//! The echo server of the examples in a simulated network: the same program, in virtual time.
#![expect(clippy::unwrap_used, reason = "in a test")]

#[path = "../examples/echo.rs"]
#[expect(dead_code, reason = "its main function")]
mod echo;

use std::future::Future;
use std::net::SocketAddr;
use std::time::Duration;

use rocade_verbs::{CompletionQueue, Config, DeviceList, Listener, Result, Route, Simulation};

const LIMIT: Duration = Duration::from_secs(600);

/// The examples on a simulated network, whose executor delivers completions by itself.
#[derive(Clone)]
struct Virtual(Simulation);

impl echo::runtime::Runtime for Virtual {
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

/// Returns the virtual time that the clients took, and the packets of both hosts as text.
fn echoes(seed: u64, rules: &str) -> (Duration, String) {
    const CLIENTS: usize = 3;
    let (list, listener, address) = network(seed, rules);
    let simulation = list.simulation().unwrap();
    let runtime = Virtual(simulation.clone());
    let begin = simulation.now();
    let clients: Vec<_> = (0..CLIENTS)
        .map(|number| {
            let (route, runtime) = (route(&list, address), runtime.clone());
            simulation.spawn(async move {
                let text = format!("client {number}");
                let answers = echo::ask(route, &[&text, "again"], runtime).await;
                assert_eq!(answers.unwrap(), [&text, "again"]);
            })
        })
        .collect();
    let all = async {
        echo::serve(listener, CLIENTS, runtime).await.unwrap();
        for client in clients {
            client.await;
        }
    };
    let in_time = simulation.timeout(LIMIT, all);
    simulation.block_on(in_time).unwrap().unwrap();
    let packets = format!("{:?}", list.engine_counters());
    (simulation.now() - begin, packets)
}

#[test]
fn an_echo_server_runs_in_virtual_time() {
    let (took, _) = echoes(1, "");
    assert!(took < Duration::from_secs(1), "{took:?}");
    // Lost messages of the connection manager are sent again after a second or longer.
    let lossy = "drop nth=1; drop p=5%; dup p=3%";
    let (slow, packets) = echoes(3, lossy);
    assert_eq!(echoes(3, lossy), (slow, packets));
    assert!(slow > took, "{slow:?} {took:?}");
}
