//! The devices of this node: their health, and what a container gets with them.
//!
//! All resources offer the same devices, because a device is a right to use Rocade and not a thing
//! that one container takes from another.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use tokio::sync::watch;

use crate::api::{
    AllocateRequest, AllocateResponse, CdiDevice, ContainerAllocateResponse,
    ContainerPreferredAllocationRequest, ContainerPreferredAllocationResponse, Device, DeviceSpec,
    HEALTHY, ListAndWatchResponse, Mount, PreferredAllocationRequest, PreferredAllocationResponse,
    UNHEALTHY,
};
use crate::cdi::{Devices, Edits, KIND};
use crate::cli::PoolArgs;
use crate::health;
use crate::log;

/// The beginning of all names of devices. Numbers follow.
const PREFIX: &str = "nic-";
/// The CDI device that has everything, for specs without a device for each number.
const ALL: &str = "all";

/// A reason why a request of the kubelet fails.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The request makes no sense.
    Invalid(String),
    /// A device is unhealthy.
    Unhealthy(String),
}

/// A CDI device.
#[derive(Debug, PartialEq, Eq)]
struct Grant {
    /// The name without its kind.
    name: String,
    edits: Edits,
}

/// The state of one device: what a container gets, or the cause why it gets nothing.
type State = Result<Arc<Grant>, Arc<str>>;

/// The state of all devices at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Inventory {
    states: Vec<State>,
}

impl Inventory {
    /// Returns the list of devices for the kubelet.
    pub(crate) fn list(&self) -> ListAndWatchResponse {
        let states = self.states.iter().enumerate();
        let devices = states.map(|(number, state)| Device {
            id: format!("{PREFIX}{number}"),
            health: if state.is_ok() { HEALTHY } else { UNHEALTHY }.to_owned(),
        });
        ListAndWatchResponse {
            devices: devices.collect(),
        }
    }

    fn health(&self) -> impl Iterator<Item = Option<&str>> {
        self.states
            .iter()
            .map(|state| state.as_ref().err().map(|cause| &**cause))
    }

    /// Describes devices whose health is not that of `before`, one line for neighbours.
    fn changes_from(&self, before: &Self) -> Vec<String> {
        let mut changes: Vec<(usize, usize, Option<&str>)> = Vec::new();
        let old = before.health().map(Some).chain(std::iter::repeat(None));
        for (number, (new, old)) in self.health().zip(old).enumerate() {
            // A new plugin is quiet about healthy devices.
            if old == Some(new) || (old.is_none() && new.is_none()) {
                continue;
            }
            match changes.last_mut() {
                Some((_, last, cause)) if *last + 1 == number && *cause == new => *last = number,
                _ => changes.push((number, number, new)),
            }
        }
        let described = changes.into_iter().map(|(first, last, cause)| {
            let (names, verb) = match first == last {
                true => (format!("{PREFIX}{first}"), "is"),
                false => (format!("{PREFIX}{first} to {PREFIX}{last}"), "are"),
            };
            match cause {
                Some(cause) => format!("{names} {verb} unhealthy: {cause}"),
                None => format!("{names} {verb} healthy again"),
            }
        });
        described.collect()
    }
}

/// The devices of this node.
#[derive(Debug)]
pub(crate) struct Pool {
    count: usize,
    args: PoolArgs,
    latest: watch::Sender<Inventory>,
}

impl Pool {
    /// Creates the devices, and looks at them for the first time.
    pub(crate) fn new(count: u16, args: PoolArgs) -> Self {
        let pool = Self {
            count: count.into(),
            args,
            latest: watch::Sender::default(),
        };
        pool.inspect();
        pool
    }

    /// Returns a receiver that is woken by each change of health.
    pub(crate) fn subscribe(&self) -> watch::Receiver<Inventory> {
        self.latest.subscribe()
    }

    /// Looks at everything that containers get, logs and announces changes. May wait for the
    /// broker.
    pub(crate) fn inspect(&self) -> Inventory {
        let inventory = self.look();
        self.latest.send_if_modified(|latest| {
            let is_change = !latest.health().eq(inventory.health());
            for change in inventory.changes_from(latest) {
                log(&change);
            }
            *latest = inventory.clone();
            is_change
        });
        inventory
    }

    fn look(&self) -> Inventory {
        let devices = Devices::read(&self.args.cdi_dirs);
        let of = |name: &str| -> State {
            let edits = devices
                .get(name)
                .ok_or_else(|| self.missing(name, &devices))?;
            health::check(edits, self.args.require_broker)?;
            Ok(Arc::new(Grant {
                name: name.to_owned(),
                edits: edits.clone(),
            }))
        };
        let names = (0..self.count).map(|number| number.to_string());
        let has_each = || names.clone().all(|name| devices.get(&name).is_some());
        let states = match &self.args.cdi_device {
            None if has_each() => names.map(|name| of(&name)).collect(),
            chosen => vec![of(chosen.as_deref().unwrap_or(ALL)); self.count],
        };
        Inventory { states }
    }

    fn missing(&self, name: &str, devices: &Devices) -> String {
        let dirs = self
            .args
            .cdi_dirs
            .iter()
            .map(|dir| dir.display().to_string());
        let dirs: Vec<String> = dirs.collect();
        let problems = devices.problems();
        let separator = if problems.is_empty() { "" } else { " (" };
        let end = if problems.is_empty() { "" } else { ")" };
        format!(
            "no CDI spec in {} declares {KIND}={name}{separator}{problems}{end}. Write one: rocade \
             cdi generate",
            dirs.join(" or ")
        )
    }

    /// Returns what the containers of a pod get. Looks at the devices before, because the kubelet
    /// expects an error rather than a container without its devices.
    ///
    /// # Errors
    /// [`Refusal`] if a device does not exist, or is unhealthy.
    pub(crate) fn allocate(&self, request: &AllocateRequest) -> Result<AllocateResponse, Refusal> {
        let inventory = self.inspect();
        let mut containers = Vec::new();
        for container in &request.container_requests {
            let mut grants: Vec<Arc<Grant>> = Vec::new();
            for id in &container.devices_ids {
                let state = self
                    .number(id)
                    .and_then(|number| inventory.states.get(number));
                let state = state.ok_or_else(|| self.unknown(id))?;
                let unhealthy = |cause| Refusal::Unhealthy(format!("{id} is unhealthy: {cause}"));
                let grant = state.as_ref().map_err(unhealthy)?;
                if !grants.contains(grant) {
                    grants.push(Arc::clone(grant));
                }
            }
            containers.push(match self.args.no_cdi {
                false => names(&grants),
                true => contents(&grants),
            });
        }
        Ok(AllocateResponse {
            container_responses: containers,
        })
    }

    /// Returns the devices that containers of a pod should get: those that they have to, and the
    /// lowest numbers, so that the same pods get the same devices.
    ///
    /// # Errors
    /// [`Refusal`] if there are not so many devices to choose from.
    pub(crate) fn prefer(
        &self,
        request: &PreferredAllocationRequest,
    ) -> Result<PreferredAllocationResponse, Refusal> {
        let containers = request.container_requests.iter();
        let containers = containers.map(|container| self.prefer_one(container));
        Ok(PreferredAllocationResponse {
            container_responses: containers.collect::<Result<_, _>>()?,
        })
    }

    fn prefer_one(
        &self,
        request: &ContainerPreferredAllocationRequest,
    ) -> Result<ContainerPreferredAllocationResponse, Refusal> {
        let numbers = |ids: &[String]| -> Result<BTreeSet<usize>, Refusal> {
            let numbers = ids.iter();
            let numbers = numbers.map(|id| self.number(id).ok_or_else(|| self.unknown(id)));
            numbers.collect()
        };
        let size = usize::try_from(request.allocation_size).unwrap_or(0);
        let mut chosen = numbers(&request.must_include_device_ids)?;
        let others = &numbers(&request.available_device_ids)? - &chosen;
        let missing = size.checked_sub(chosen.len());
        let missing = missing.filter(|missing| *missing <= others.len());
        let missing = missing.ok_or_else(|| {
            Refusal::Invalid(format!(
                "{size} devices cannot be chosen from {} that must be among them, and {} others",
                chosen.len(),
                others.len()
            ))
        })?;
        chosen.extend(others.into_iter().take(missing));
        let ids = chosen.into_iter().map(|number| format!("{PREFIX}{number}"));
        Ok(ContainerPreferredAllocationResponse {
            device_ids: ids.collect(),
        })
    }

    /// Returns the number of a device, or `None` for a name that no device has.
    fn number(&self, id: &str) -> Option<usize> {
        let number: usize = id.strip_prefix(PREFIX)?.parse().ok()?;
        (number < self.count && id == format!("{PREFIX}{number}")).then_some(number)
    }

    fn unknown(&self, id: &str) -> Refusal {
        let last = self.count - 1;
        Refusal::Invalid(format!(
            "{id} is not a device of this plugin, which has {PREFIX}0 to {PREFIX}{last}"
        ))
    }
}

/// Returns the answer for runtimes that read CDI specs.
fn names(grants: &[Arc<Grant>]) -> ContainerAllocateResponse {
    let names = grants.iter().map(|grant| CdiDevice {
        name: format!("{KIND}={}", grant.name),
    });
    ContainerAllocateResponse {
        cdi_devices: names.collect(),
        ..ContainerAllocateResponse::default()
    }
}

/// Returns the answer for kubelets and runtimes without CDI. They have no hooks.
fn contents(grants: &[Arc<Grant>]) -> ContainerAllocateResponse {
    let mut response = ContainerAllocateResponse::default();
    let text = |path: &Path| path.to_string_lossy().into_owned();
    for edits in grants.iter().map(|grant| &grant.edits) {
        if edits.has_hooks() {
            log("warning: --no-cdi leaves out the hooks of the CDI spec");
        }
        let pairs = edits.env.iter().filter_map(|pair| pair.split_once('='));
        let pairs = pairs.map(|(name, value)| (name.to_owned(), value.to_owned()));
        response.envs.extend(pairs);
        for mount in &edits.mounts {
            let mount = Mount {
                container_path: text(&mount.container_path),
                host_path: text(&mount.host_path),
                read_only: mount.options.iter().any(|option| option == "ro"),
            };
            if !response.mounts.contains(&mount) {
                response.mounts.push(mount);
            }
        }
        for node in &edits.device_nodes {
            let device = DeviceSpec {
                container_path: text(&node.path),
                host_path: text(node.host_path.as_ref().unwrap_or(&node.path)),
                permissions: node.permissions.clone().unwrap_or_else(|| "rw".to_owned()),
            };
            if !response.devices.contains(&device) {
                response.devices.push(device);
            }
        }
    }
    response
}

#[cfg(test)]
mod tests;
