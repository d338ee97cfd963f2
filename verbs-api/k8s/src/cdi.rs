//! CDI specs of this node: the devices of kind [`KIND`], and what each of them adds to a container.
//!
//! Only static specs in JSON are read, as `rocade cdi generate` writes them. Specs of other kinds
//! and files of other formats are none of this plugin's business.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::Deserialize;

/// The kind of Rocade's CDI devices.
pub(crate) const KIND: &str = "rocade.dev/nic";

/// The changes of a container that a device needs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Edits {
    /// Variables, as `NAME=VALUE`.
    pub(crate) env: Vec<String>,
    /// Mounts.
    pub(crate) mounts: Vec<Mount>,
    /// Device files.
    pub(crate) device_nodes: Vec<DeviceNode>,
    /// Programs that the runtime executes.
    hooks: Vec<Ignored>,
}

/// A file or directory of the host in the container.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Mount {
    /// The path on the host.
    pub(crate) host_path: PathBuf,
    /// The path in the container.
    pub(crate) container_path: PathBuf,
    /// Options of mount(8), such as `ro`.
    #[serde(default)]
    pub(crate) options: Vec<String>,
}

/// A device file of the host in the container.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct DeviceNode {
    /// The path in the container.
    pub(crate) path: PathBuf,
    /// The path on the host, unless it is the same.
    #[serde(default)]
    pub(crate) host_path: Option<PathBuf>,
    /// Letters of `rwm`.
    #[serde(default)]
    pub(crate) permissions: Option<String>,
}

/// An object whose members do not matter.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
struct Ignored {}

impl Edits {
    /// Returns true if a container needs more than variables, mounts and device files.
    pub(crate) fn has_hooks(&self) -> bool {
        !self.hooks.is_empty()
    }

    /// Returns the last value of a variable.
    pub(crate) fn variable(&self, name: &str) -> Option<&str> {
        let pairs = self.env.iter().rev();
        let mut pairs = pairs.filter_map(|pair| pair.split_once('='));
        pairs.find_map(|(found, value)| (found == name).then_some(value))
    }

    /// Returns the path on the host of a path in the container. `None` if no mount contains it.
    pub(crate) fn on_host(&self, path: &Path) -> Option<PathBuf> {
        // A later mount covers an earlier one.
        self.mounts.iter().rev().find_map(|mount| {
            let below = path.strip_prefix(&mount.container_path).ok()?;
            Some(match below.as_os_str().is_empty() {
                true => mount.host_path.clone(),
                false => mount.host_path.join(below),
            })
        })
    }

    fn extended(&self, more: &Self) -> Self {
        let mut all = self.clone();
        all.env.extend_from_slice(&more.env);
        all.mounts.extend_from_slice(&more.mounts);
        all.device_nodes.extend_from_slice(&more.device_nodes);
        all.hooks.extend_from_slice(&more.hooks);
        all
    }
}

#[derive(Debug, Deserialize)]
struct Kind {
    kind: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Spec {
    devices: Vec<Device>,
    #[serde(default)]
    container_edits: Edits,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Device {
    name: String,
    #[serde(default)]
    container_edits: Edits,
}

/// The devices of all specs.
#[derive(Debug, Default)]
pub(crate) struct Devices {
    by_name: BTreeMap<String, Edits>,
    /// Files that cannot be read, with the reasons.
    problems: Vec<String>,
}

impl Devices {
    /// Reads the specs of these directories, which need not exist.
    pub(crate) fn read(dirs: &[PathBuf]) -> Self {
        let mut devices = Self::default();
        for dir in dirs {
            match files_of(dir) {
                Ok(files) => devices.add_dir(&files),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => {
                    let problem = format!("failed to read {}: {error}", dir.display());
                    devices.problems.push(problem);
                }
            }
        }
        devices
    }

    /// Returns the changes for a device.
    pub(crate) fn get(&self, name: &str) -> Option<&Edits> {
        self.by_name.get(name)
    }

    /// Returns the reason why some device may be missing, or an empty text.
    pub(crate) fn problems(&self) -> String {
        self.problems.join(", ")
    }

    /// Adds the specs of one directory, whose devices replace those of earlier ones.
    fn add_dir(&mut self, files: &[PathBuf]) {
        let mut of_dir: BTreeMap<String, Edits> = BTreeMap::new();
        for file in files {
            let spec = match read_spec(file) {
                Ok(Some(spec)) => spec,
                Ok(None) => continue,
                Err(reason) => {
                    let problem = format!("failed to read {}: {reason}", file.display());
                    self.problems.push(problem);
                    continue;
                }
            };
            for device in spec.devices {
                let edits = spec.container_edits.extended(&device.container_edits);
                if of_dir.insert(device.name.clone(), edits).is_some() {
                    self.problems.push(format!(
                        "{} declares {KIND}={}, as another file of its directory does",
                        file.display(),
                        device.name
                    ));
                }
            }
        }
        self.by_name.extend(of_dir);
    }
}

/// Returns the specs in a directory, in the order of their names.
fn files_of(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path
            .extension()
            .is_some_and(|extension| extension == "json")
        {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// Returns the spec in a file, or `None` if it is of another kind or was just removed.
fn read_spec(file: &Path) -> Result<Option<Spec>, String> {
    let text = match fs::read_to_string(file) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.to_string()),
    };
    let invalid = |error: serde_json::Error| format!("it is no CDI spec: {error}");
    let Kind { kind } = serde_json::from_str(&text).map_err(invalid)?;
    if kind != KIND {
        return Ok(None);
    }
    serde_json::from_str(&text).map(Some).map_err(invalid)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn write(dir: &Path, name: &str, spec: &Value) {
        fs::create_dir_all(dir).unwrap();
        fs::write(dir.join(name), spec.to_string()).unwrap();
    }

    fn spec(devices: &[(&str, &str)]) -> Value {
        let devices: Vec<Value> = devices
            .iter()
            .map(|(name, value)| {
                json!({ "name": name, "containerEdits": { "env": [format!("WHICH={value}")] } })
            })
            .collect();
        json!({
            "cdiVersion": "1.1.0",
            "kind": KIND,
            "devices": devices,
            "containerEdits": {
                "env": ["LD_LIBRARY_PATH=/opt/rocade/lib/rocade"],
                "mounts": [{
                    "hostPath": "/srv/rocade",
                    "containerPath": "/opt/rocade",
                    "options": ["ro", "nosuid", "bind"],
                }],
            },
        })
    }

    #[test]
    fn a_device_has_the_edits_of_its_spec_and_its_own() {
        let dir = tempfile::tempdir().unwrap();
        write(
            dir.path(),
            "rocade.json",
            &spec(&[("0", "a"), ("all", "b")]),
        );
        let devices = Devices::read(&[dir.path().to_owned(), "/no/such".into()]);
        let edits = devices.get("all").unwrap();
        assert_eq!(edits.env.len(), 2);
        assert_eq!(edits.variable("WHICH"), Some("b"));
        assert_eq!(edits.mounts[0].options, ["ro", "nosuid", "bind"]);
        assert!(devices.get("1").is_none() && devices.problems().is_empty());
        assert!(!edits.has_hooks());
        let below = edits.on_host(Path::new("/opt/rocade/lib/x.so"));
        assert_eq!(below, Some("/srv/rocade/lib/x.so".into()));
        let itself = edits.on_host(Path::new("/opt/rocade"));
        assert_eq!(itself, Some("/srv/rocade".into()));
        assert_eq!(edits.on_host(Path::new("/opt/rocade2")), None);
    }

    #[test]
    fn a_later_directory_wins() {
        let dir = tempfile::tempdir().unwrap();
        let (etc, run) = (dir.path().join("etc"), dir.path().join("run"));
        write(&etc, "a.json", &spec(&[("0", "etc"), ("1", "etc")]));
        write(&run, "b.json", &spec(&[("0", "run")]));
        let devices = Devices::read(&[etc, run]);
        let which = |name| devices.get(name).unwrap().variable("WHICH");
        assert_eq!((which("0"), which("1")), (Some("run"), Some("etc")));
        assert_eq!(devices.problems(), "");
    }

    #[test]
    fn broken_files_and_two_declarations_are_reported() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path();
        write(path, "a.json", &spec(&[("0", "a")]));
        write(path, "b.json", &spec(&[("0", "b")]));
        write(
            path,
            "gpu.json",
            &json!({ "kind": "example.com/gpu", "devices": 7 }),
        );
        fs::write(path.join("broken.json"), "{").unwrap();
        fs::write(path.join("notes.txt"), "{").unwrap();
        let problems = Devices::read(&[path.to_owned()]).problems();
        assert!(
            problems.contains("b.json declares rocade.dev/nic=0"),
            "{problems}"
        );
        assert!(
            problems.contains("broken.json: it is no CDI spec"),
            "{problems}"
        );
        assert!(
            !problems.contains("gpu") && !problems.contains("notes"),
            "{problems}"
        );
    }

    #[test]
    fn hooks_are_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let mut with_hook = spec(&[("all", "a")]);
        with_hook["containerEdits"]["hooks"] =
            json!([{ "hookName": "createContainer", "path": "/bin/true", "args": ["true"] }]);
        write(dir.path(), "rocade.json", &with_hook);
        let devices = Devices::read(&[dir.path().to_owned()]);
        assert!(devices.get("all").unwrap().has_hooks(), "{devices:?}");
    }
}
