//! The device plugin as a process, against a stand-in for the kubelet.
#![expect(clippy::unwrap_used, reason = "in a test")]

#[allow(dead_code, reason = "the plugin uses the rest")]
#[path = "../src/api.rs"]
mod api;
mod kubelet;

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Instant;
use std::{fs, thread};

use serde_json::{Value, json};
use tokio::sync::mpsc;

use api::{
    ContainerAllocateResponse, ContainerPreferredAllocationRequest, HEALTHY,
    PreferredAllocationRequest, UNHEALTHY,
};
use kubelet::{Kubelet, LIMIT, within};
use rustix::process::{Pid, Signal, kill_process};

/// A node: the directory of the kubelet, the libraries, and a CDI spec.
struct Node {
    dir: tempfile::TempDir,
}

impl Node {
    /// Creates a node whose spec declares these CDI devices.
    fn with(devices: &[&str]) -> Self {
        let node = Self {
            dir: tempfile::tempdir().unwrap(),
        };
        for dir in ["plugins", "cdi", "lib"] {
            fs::create_dir(node.path(dir)).unwrap();
        }
        fs::write(node.library(), "").unwrap();
        let devices: Vec<Value> = devices
            .iter()
            .map(|name| json!({ "name": name, "containerEdits": {} }))
            .collect();
        let mount = json!({
            "hostPath": node.path("lib"),
            "containerPath": "/opt/rocade/lib",
            "options": ["ro", "nosuid", "nodev", "bind"],
        });
        let edits = json!({ "env": ["LD_LIBRARY_PATH=/opt/rocade/lib"], "mounts": [mount] });
        let spec = json!({
            "cdiVersion": "1.1.0",
            "kind": "rocade.dev/nic",
            "devices": devices,
            "containerEdits": edits,
        });
        fs::write(node.path("cdi/rocade.json"), spec.to_string()).unwrap();
        node
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn library(&self) -> PathBuf {
        self.path("lib/libibverbs.so.1")
    }

    fn plugins(&self) -> PathBuf {
        self.path("plugins")
    }

    fn kubelet(&self) -> Kubelet {
        Kubelet::start(&self.plugins())
    }

    fn plugin(&self, args: &[&str]) -> Plugin {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rocade-k8s"));
        command.args([
            "device-plugin",
            "--health-interval",
            "0.02",
            "--kubelet-dir",
        ]);
        command
            .arg(self.plugins())
            .arg("--cdi-dir")
            .arg(self.path("cdi"));
        Plugin::start(command.args(args))
    }
}

/// A plugin that runs.
struct Plugin {
    child: Child,
    lines: mpsc::UnboundedReceiver<String>,
    log: String,
}

impl Plugin {
    fn start(command: &mut Command) -> Self {
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let (sender, lines) = mpsc::unbounded_channel();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        thread::spawn(move || {
            for line in stderr.lines() {
                if sender.send(line.unwrap()).is_err() {
                    return;
                }
            }
        });
        let log = String::new();
        Self { child, lines, log }
    }

    /// Waits for a line of the log with this text. Returns the line.
    async fn says(&mut self, text: &str) -> String {
        let end = Instant::now() + LIMIT;
        loop {
            let line = tokio::time::timeout_at(end.into(), self.lines.recv()).await;
            let Ok(Some(line)) = line else {
                panic!("the plugin has not said {text:?}, but: {}", self.log)
            };
            self.log += &line;
            self.log.push('\n');
            if line.contains(text) {
                return line;
            }
        }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits for the end of the plugin. Returns its status and all of its log.
    async fn ends(mut self) -> (ExitStatus, String) {
        // Its end closes standard error.
        let rest = async {
            while let Some(line) = self.lines.recv().await {
                self.log += &line;
                self.log.push('\n');
            }
        };
        within("the end of the plugin", rest).await;
        (self.child.wait().unwrap(), std::mem::take(&mut self.log))
    }
}

impl Drop for Plugin {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn cdi_names(container: &ContainerAllocateResponse) -> Vec<&str> {
    let devices = container.cdi_devices.iter();
    devices.map(|device| &*device.name).collect()
}

/// Returns the names of files in a directory, sorted.
fn files(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[tokio::test]
async fn registers_lists_and_allocates() {
    let node = Node::with(&["0", "1", "2", "all"]);
    let mut kubelet = node.kubelet();
    let mut plugin = node.plugin(&["--count", "3"]);
    let request = kubelet.registration().await;
    assert_eq!(request.version, "v1beta1");
    assert_eq!(request.resource_name, "rocade.dev/nic");
    assert_eq!(request.endpoint, "rocade.dev_nic.sock");
    plugin.says("rocade.dev/nic is registered").await;

    let mut client = kubelet.connect(&request).await;
    assert_eq!(client.options().await.unwrap(), request.options.unwrap());
    let mut lists = client.list_and_watch().await;
    let healthy = |id: &str| (id.to_owned(), HEALTHY.to_owned());
    assert_eq!(lists.next().await, ["nic-0", "nic-1", "nic-2"].map(healthy));

    let pod = client
        .allocate(&[&["nic-2"], &["nic-0", "nic-1"]])
        .await
        .unwrap();
    let names: Vec<_> = pod.container_responses.iter().map(cdi_names).collect();
    let both = vec!["rocade.dev/nic=0", "rocade.dev/nic=1"];
    assert_eq!(names, [vec!["rocade.dev/nic=2"], both]);
    assert!(
        pod.container_responses[0].mounts.is_empty(),
        "the runtime reads the spec"
    );
    client.pre_start(&["nic-2"]).await.unwrap();

    let choice = ContainerPreferredAllocationRequest {
        available_device_ids: ["nic-2", "nic-1"].map(str::to_owned).into(),
        must_include_device_ids: Vec::new(),
        allocation_size: 1,
    };
    let container_requests = vec![choice];
    let request = PreferredAllocationRequest { container_requests };
    let preferred = client.prefer(request).await.unwrap();
    assert_eq!(preferred.container_responses[0].device_ids, ["nic-1"]);

    let refused = client
        .allocate(&[&["nic-3"]])
        .await
        .expect_err("no such device");
    assert_eq!(refused.code(), tonic::Code::InvalidArgument);
    assert!(
        refused.message().contains("nic-3 is not a device"),
        "{refused}"
    );
    let refused = client.unknown_method().await.expect_err("no such method");
    assert_eq!(refused.code(), tonic::Code::Unimplemented);
}

#[tokio::test]
async fn existing_manifests_find_their_resources() {
    let node = Node::with(&["all"]);
    let mut kubelet = node.kubelet();
    let names = ["rdma/ib", "rdma/hca_shared_devices_a"];
    let _plugin = node.plugin(&["--resource", names[0], "--resource", names[1]]);
    let mut requests = [kubelet.registration().await, kubelet.registration().await];
    requests.sort_by_key(|request| std::cmp::Reverse(request.resource_name.clone()));
    for (request, name) in requests.iter().zip(names) {
        assert_eq!(request.resource_name, name);
        let mut client = kubelet.connect(request).await;
        let pod = client.allocate(&[&["nic-0"]]).await.unwrap();
        assert_eq!(
            cdi_names(&pod.container_responses[0]),
            ["rocade.dev/nic=all"]
        );
    }
}

#[tokio::test]
async fn kubelets_without_cdi_get_mounts_and_variables() {
    let node = Node::with(&["all"]);
    let mut kubelet = node.kubelet();
    let _plugin = node.plugin(&["--no-cdi"]);
    let request = kubelet.registration().await;
    let mut client = kubelet.connect(&request).await;
    let pod = client.allocate(&[&["nic-0", "nic-1"]]).await.unwrap();
    let container = &pod.container_responses[0];
    assert!(cdi_names(container).is_empty());
    assert_eq!(container.envs["LD_LIBRARY_PATH"], "/opt/rocade/lib");
    let [mount] = &container.mounts[..] else {
        panic!("{container:?}")
    };
    assert_eq!(Path::new(&mount.host_path), node.path("lib"));
    assert_eq!(mount.container_path, "/opt/rocade/lib");
    assert!(mount.read_only);
}

#[tokio::test]
async fn each_start_of_the_kubelet_is_a_registration() {
    let node = Node::with(&["all"]);
    // The plugin may be there first.
    let mut plugin = node.plugin(&["--count", "2"]);
    plugin.says("waits for the kubelet").await;
    for round in 0..3 {
        // Each kubelet removes the socket of the plugin, and that of the kubelet before it.
        let mut kubelet = node.kubelet();
        let request = kubelet.registration().await;
        plugin.says("is registered").await;
        let mut client = kubelet.connect(&request).await;
        let mut lists = client.list_and_watch().await;
        assert_eq!(lists.next().await.len(), 2, "round {round}");
        client.allocate(&[&["nic-1"]]).await.unwrap();
        kubelet.kill().await;
    }
}

#[tokio::test]
async fn a_removed_socket_comes_back() {
    let node = Node::with(&["all"]);
    let mut kubelet = node.kubelet();
    let mut plugin = node.plugin(&[]);
    let first = kubelet.registration().await;
    let mut client = kubelet.connect(&first).await;
    let lists = client.list_and_watch().await;
    fs::remove_file(node.plugins().join(&first.endpoint)).unwrap();
    plugin
        .says("has removed the socket of rocade.dev/nic")
        .await;
    lists.end().await;
    let again = kubelet.registration().await;
    assert_eq!(again, first);
    kubelet.connect(&again).await.options().await.unwrap();
}

#[tokio::test]
async fn devices_become_unhealthy_with_a_cause_and_healthy_again() {
    let node = Node::with(&["all"]);
    let mut kubelet = node.kubelet();
    let mut plugin = node.plugin(&["--count", "4"]);
    let request = kubelet.registration().await;
    let mut client = kubelet.connect(&request).await;
    let mut lists = client.list_and_watch().await;
    lists.until(HEALTHY, 4).await;

    fs::remove_file(node.library()).unwrap();
    lists.until(UNHEALTHY, 4).await;
    let line = plugin.says("nic-0 to nic-3 are unhealthy").await;
    assert!(line.contains(&*node.library().to_string_lossy()), "{line}");
    let refused = client
        .allocate(&[&["nic-1"]])
        .await
        .expect_err("no library");
    assert_eq!(refused.code(), tonic::Code::FailedPrecondition);
    assert!(refused.message().contains("libibverbs.so.1"), "{refused}");

    fs::write(node.library(), "").unwrap();
    lists.until(HEALTHY, 4).await;
    plugin.says("nic-0 to nic-3 are healthy again").await;
    client.allocate(&[&["nic-1"]]).await.unwrap();
}

#[tokio::test]
async fn two_hundred_pods_get_a_device_each() {
    const PODS: usize = 200;
    let node = Node::with(&["all"]);
    let mut kubelet = node.kubelet();
    let _plugin = node.plugin(&["--count", &PODS.to_string()]);
    let request = kubelet.registration().await;
    let mut client = kubelet.connect(&request).await;
    let mut free = client.list_and_watch().await.next().await;
    assert_eq!(free.len(), PODS);
    for pod in 0..PODS {
        let choice = ContainerPreferredAllocationRequest {
            available_device_ids: free.iter().map(|(id, _)| id.clone()).collect(),
            must_include_device_ids: Vec::new(),
            allocation_size: 1,
        };
        let container_requests = vec![choice];
        let wanted = PreferredAllocationRequest { container_requests };
        let preferred = client.prefer(wanted).await.unwrap();
        let [id] = &preferred.container_responses[0].device_ids[..] else {
            panic!("pod {pod}: {preferred:?}")
        };
        let answer = client.allocate(&[&[id]]).await.unwrap();
        let names = cdi_names(&answer.container_responses[0]);
        assert_eq!(names, ["rocade.dev/nic=all"], "pod {pod}");
        free.retain(|(free, _)| free != id);
    }
    assert!(free.is_empty(), "{free:?}");
}

#[tokio::test]
async fn signals_end_the_plugin_and_remove_its_sockets() {
    for signal in [Signal::TERM, Signal::INT] {
        let node = Node::with(&["all"]);
        let mut kubelet = node.kubelet();
        let plugin = node.plugin(&["--resource", "rdma/ib", "--resource", "rocade.dev/nic"]);
        let request = kubelet.registration().await;
        kubelet.registration().await;
        let mut client = kubelet.connect(&request).await;
        let lists = client.list_and_watch().await;
        let sockets = ["kubelet.sock", "rdma_ib.sock", "rocade.dev_nic.sock"];
        assert_eq!(files(&node.plugins()), sockets);
        plugin.signal(signal);
        let (status, log) = plugin.ends().await;
        assert!(status.success(), "{status}: {log}");
        lists.end().await;
        assert_eq!(files(&node.plugins()), ["kubelet.sock"]);
    }
}

#[tokio::test]
async fn a_refusal_of_the_kubelet_ends_the_plugin() {
    let node = Node::with(&["all"]);
    let _kubelet = Kubelet::refusing(&node.plugins(), "unsupported API version");
    let (status, log) = node.plugin(&[]).ends().await;
    assert_eq!(status.code(), Some(1), "{log}");
    for part in [
        "rocade.dev/nic",
        "unsupported API version",
        "journalctl -u kubelet",
    ] {
        assert!(log.contains(part), "{part} is not in {log}");
    }
    assert_eq!(files(&node.plugins()), ["kubelet.sock"]);
}

#[tokio::test]
async fn a_socket_without_a_kubelet_is_tried_again() {
    let node = Node::with(&["all"]);
    // As a kubelet that was killed leaves it.
    let socket = node.plugins().join(api::KUBELET_SOCKET);
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    let mut plugin = node.plugin(&[]);
    plugin
        .says("is not registered, and will be: the kubelet does not answer")
        .await;
    let mut kubelet = node.kubelet();
    assert_eq!(kubelet.registration().await.resource_name, "rocade.dev/nic");
}

#[tokio::test]
async fn a_kubelet_that_starts_meanwhile_is_no_refusal() {
    let node = Node::with(&["all"]);
    let mut kubelet = Kubelet::cleaning_late(&node.plugins());
    let _plugin = node.plugin(&[]);
    let request = kubelet.registration().await;
    let mut client = kubelet.connect(&request).await;
    client.allocate(&[&["nic-0"]]).await.unwrap();
}

#[tokio::test]
async fn a_plugin_of_a_killed_process_is_replaced_but_not_a_living_one() {
    let node = Node::with(&["all"]);
    let mut kubelet = node.kubelet();
    let killed = node.plugin(&[]);
    kubelet.registration().await;
    killed.signal(Signal::KILL);
    killed.ends().await;
    let second = node.plugin(&[]);
    kubelet.registration().await;
    let mut third = node.plugin(&[]);
    let request = kubelet.registration().await;
    let (status, log) = second.ends().await;
    assert_eq!(status.code(), Some(1), "{log}");
    assert!(log.contains("another plugin has replaced"), "{log}");
    third.says("is registered").await;
    kubelet
        .connect(&request)
        .await
        .allocate(&[&["nic-0"]])
        .await
        .unwrap();
}

#[tokio::test]
async fn errors_say_what_to_do() {
    let node = Node::with(&["all"]);
    let absent = node.path("no-such-dir");
    let absent = absent.to_string_lossy();
    let mut command = Command::new(env!("CARGO_BIN_EXE_rocade-k8s"));
    let command = command.args(["device-plugin", "--kubelet-dir", &absent]);
    let (status, log) = Plugin::start(command).ends().await;
    assert_eq!(status.code(), Some(1), "{log}");
    assert!(
        log.contains(&*absent) && log.contains("a node of Kubernetes"),
        "{log}"
    );

    let (status, log) = node.plugin(&["--resource", "nic"]).ends().await;
    assert_eq!(status.code(), Some(2), "{log}");
    assert!(
        log.contains("a domain and a name, such as rocade.dev/nic"),
        "{log}"
    );

    // The directory of a kubelet that is removed, as by `kubeadm reset`.
    let mut plugin = node.plugin(&[]);
    plugin.says("waits for the kubelet").await;
    fs::remove_dir(node.plugins()).expect("without a kubelet the plugin makes no file");
    let (status, log) = plugin.ends().await;
    assert_eq!(status.code(), Some(1), "{log}");
    assert!(log.contains("was removed or renamed"), "{log}");
}
