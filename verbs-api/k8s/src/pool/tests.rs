use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};

use super::*;
use crate::api::DeviceIds;

/// A node with Rocade in a directory, and a CDI spec beside it.
struct Node {
    dir: tempfile::TempDir,
}

impl Node {
    /// Creates a node whose spec has these devices. Each mounts a directory of its own name.
    fn with(devices: &[&str]) -> Self {
        let node = Self {
            dir: tempfile::tempdir().unwrap(),
        };
        fs::create_dir(node.path("cdi")).unwrap();
        let devices: Vec<Value> = devices
            .iter()
            .map(|name| {
                fs::create_dir(node.path(name)).unwrap();
                let mount = json!({
                    "hostPath": node.path(name),
                    "containerPath": format!("/r/{name}"),
                    "options": ["ro"],
                });
                json!({ "name": name, "containerEdits": { "mounts": [mount] } })
            })
            .collect();
        let edits = json!({ "env": ["A=1", "B=2=3"], "deviceNodes": [{ "path": "/dev/null" }] });
        let spec = json!({ "kind": KIND, "devices": devices, "containerEdits": edits });
        fs::write(node.path("cdi/rocade.json"), spec.to_string()).unwrap();
        node
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn pool(&self, count: u16) -> Pool {
        self.pool_with(count, |_| {})
    }

    fn pool_with(&self, count: u16, change: impl FnOnce(&mut PoolArgs)) -> Pool {
        let mut args = PoolArgs {
            cdi_dirs: vec![self.path("cdi")],
            cdi_device: None,
            no_cdi: false,
            require_broker: false,
        };
        change(&mut args);
        Pool::new(count, args)
    }
}

fn allocate(pool: &Pool, ids: &[&str]) -> Result<ContainerAllocateResponse, Refusal> {
    let devices_ids = ids.iter().map(|id| (*id).to_owned()).collect();
    let request = AllocateRequest {
        container_requests: vec![DeviceIds { devices_ids }],
    };
    let mut response = pool.allocate(&request)?;
    assert_eq!(response.container_responses.len(), 1);
    Ok(response.container_responses.remove(0))
}

fn granted(pool: &Pool, ids: &[&str]) -> Vec<String> {
    let devices = allocate(pool, ids).unwrap().cdi_devices;
    devices.into_iter().map(|device| device.name).collect()
}

fn health(pool: &Pool) -> Vec<String> {
    let devices = pool.inspect().list().devices;
    devices.into_iter().map(|device| device.health).collect()
}

#[test]
fn containers_get_the_devices_of_their_numbers_or_all() {
    let node = Node::with(&["0", "1", "all"]);
    let pool = node.pool(2);
    assert_eq!(granted(&pool, &["nic-1"]), ["rocade.dev/nic=1"]);
    let both = ["rocade.dev/nic=1", "rocade.dev/nic=0"];
    assert_eq!(granted(&pool, &["nic-1", "nic-0"]), both);
    // One number has no device, so no pod depends on its luck.
    let pool = node.pool(3);
    assert_eq!(granted(&pool, &["nic-0"]), ["rocade.dev/nic=all"]);
    assert_eq!(granted(&pool, &["nic-0", "nic-2"]), ["rocade.dev/nic=all"]);
    let pool = node.pool_with(3, |args| args.cdi_device = Some("1".to_owned()));
    assert_eq!(granted(&pool, &["nic-2", "nic-0"]), ["rocade.dev/nic=1"]);
}

#[test]
fn each_container_of_a_pod_has_an_answer() {
    let node = Node::with(&["0", "1"]);
    let of = |ids: &[&str]| DeviceIds {
        devices_ids: ids.iter().map(|id| (*id).to_owned()).collect(),
    };
    let request = AllocateRequest {
        container_requests: vec![of(&["nic-1"]), of(&[]), of(&["nic-0"])],
    };
    let answers = node.pool(2).allocate(&request).unwrap().container_responses;
    let counts: Vec<usize> = answers.iter().map(|a| a.cdi_devices.len()).collect();
    assert_eq!(counts, [1, 0, 1]);
}

#[test]
fn without_cdi_containers_get_what_the_spec_says() {
    let node = Node::with(&["0", "1"]);
    let pool = node.pool_with(2, |args| args.no_cdi = true);
    let answer = allocate(&pool, &["nic-0", "nic-1"]).unwrap();
    let envs: Vec<_> = answer
        .envs
        .iter()
        .map(|(name, value)| (&**name, &**value))
        .collect();
    assert_eq!(envs, [("A", "1"), ("B", "2=3")]);
    let paths: Vec<&str> = answer
        .mounts
        .iter()
        .map(|mount| &*mount.container_path)
        .collect();
    assert_eq!(paths, ["/r/0", "/r/1"]);
    assert_eq!(answer.mounts[1].host_path, node.path("1").to_string_lossy());
    assert!(answer.mounts[0].read_only);
    let null = DeviceSpec {
        container_path: "/dev/null".to_owned(),
        host_path: "/dev/null".to_owned(),
        permissions: "rw".to_owned(),
    };
    assert_eq!((answer.devices, answer.cdi_devices), (vec![null], vec![]));
}

#[test]
fn devices_fail_one_by_one_and_recover() {
    let node = Node::with(&["0", "1", "2"]);
    let pool = node.pool(3);
    let mut changes = pool.subscribe();
    assert_eq!(health(&pool), [HEALTHY; 3]);
    assert!(!changes.has_changed().unwrap(), "nothing has changed");

    fs::remove_dir(node.path("1")).unwrap();
    let refusal = allocate(&pool, &["nic-1"]).expect_err("its mount is missing");
    let Refusal::Unhealthy(cause) = refusal else {
        panic!("{refusal:?}")
    };
    assert!(
        cause.starts_with("nic-1 is unhealthy: ") && cause.contains("mount"),
        "{cause}"
    );
    assert!(
        changes.has_changed().unwrap(),
        "the allocation has found it"
    );
    let list = changes.borrow_and_update().list();
    let devices = list
        .devices
        .iter()
        .map(|device| (&*device.id, &*device.health));
    let expected = [("nic-0", HEALTHY), ("nic-1", UNHEALTHY), ("nic-2", HEALTHY)];
    assert_eq!(devices.collect::<Vec<_>>(), expected);
    assert_eq!(
        granted(&pool, &["nic-2"]).len(),
        1,
        "others are not affected"
    );

    fs::create_dir(node.path("1")).unwrap();
    assert_eq!(health(&pool), [HEALTHY; 3]);
    assert!(changes.has_changed().unwrap());
}

#[test]
fn a_missing_spec_is_a_cause_with_advice() {
    let node = Node::with(&["0"]);
    fs::write(node.path("cdi/rocade.json"), "{ no JSON").unwrap();
    let pool = node.pool(2);
    assert_eq!(health(&pool), [UNHEALTHY; 2]);
    let Err(Refusal::Unhealthy(cause)) = allocate(&pool, &["nic-0"]) else {
        panic!("allocated")
    };
    for part in [
        "rocade.dev/nic=all",
        "it is no CDI spec",
        "rocade cdi generate",
    ] {
        assert!(cause.contains(part), "{part} is not in {cause}");
    }
}

#[test]
fn changes_are_described_together() {
    let fine = || {
        Ok(Arc::new(Grant {
            name: "0".to_owned(),
            edits: Edits::default(),
        }))
    };
    let of = |states: &str| Inventory {
        states: states
            .chars()
            .map(|c| match c {
                '.' => fine(),
                c => Err(format!("cause {c}").into()),
            })
            .collect(),
    };
    let described = |old, new| of(new).changes_from(&of(old));
    assert!(described("", "....").is_empty());
    assert!(described("a.", "a.").is_empty());
    assert_eq!(
        described("", "aa"),
        ["nic-0 to nic-1 are unhealthy: cause a"]
    );
    let changes = [
        "nic-0 to nic-1 are healthy again",
        "nic-3 is unhealthy: cause b",
        "nic-4 is unhealthy: cause a",
    ];
    assert_eq!(described("aa...", "...ba"), changes);
}

#[test]
fn unknown_devices_are_refused() {
    let node = Node::with(&["all"]);
    let pool = node.pool(4);
    for id in ["nic-4", "nic-01", "nic-", "nic--1", "gpu-0", "nic-+1"] {
        let Err(Refusal::Invalid(text)) = allocate(&pool, &[id]) else {
            panic!("{id} was allocated")
        };
        assert!(
            text.contains(id) && text.contains("nic-0 to nic-3"),
            "{text}"
        );
    }
}

#[test]
fn the_lowest_numbers_are_preferred() {
    let node = Node::with(&["all"]);
    let pool = node.pool(20);
    let prefer = |available: &[&str], must: &[&str], size| {
        let owned = |ids: &[&str]| ids.iter().map(|id| (*id).to_owned()).collect();
        let request = PreferredAllocationRequest {
            container_requests: vec![ContainerPreferredAllocationRequest {
                available_device_ids: owned(available),
                must_include_device_ids: owned(must),
                allocation_size: size,
            }],
        };
        let response = pool.prefer(&request)?;
        Ok(response.container_responses[0].device_ids.clone())
    };
    let available = ["nic-10", "nic-9", "nic-2", "nic-3"];
    assert_eq!(prefer(&available, &[], 2).unwrap(), ["nic-2", "nic-3"]);
    assert_eq!(
        prefer(&available, &["nic-10"], 2).unwrap(),
        ["nic-2", "nic-10"]
    );
    assert_eq!(prefer(&available, &["nic-9"], 1).unwrap(), ["nic-9"]);
    for (must, size) in [(&[][..], 5), (&["nic-2", "nic-3"], 1), (&["nic-77"], 1)] {
        let refused: Result<_, Refusal> = prefer(&available, must, size);
        assert!(refused.is_err(), "{must:?} {size}: {refused:?}");
    }
}
