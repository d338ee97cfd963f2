//! `rocade cdi`: a specification of the Container Device Interface (CDI), by which podman, docker,
//! containerd and CRI-O put Rocade into containers whose images know nothing of it.
//!
//! ```text
//! PREFIX/lib/rocade    at /usr/local/lib/rocade    the drop-in libraries, read-only
//! PREFIX/bin/rocade    at /usr/local/bin/rocade    the command, which is also the broker
//! --runtime-dir DIR    at /tmp/rocade-UID          for containers that share a broker
//! ```
//!
//! The library finds the command, which it starts as the broker, by its own path, and the directory
//! is the default one. So programs need `LD_LIBRARY_PATH` only, and `rocade run` sets that where an
//! engine adds no variables of a specification (`podman exec`).

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Subcommand, ValueHint};
use serde::Serialize;

use crate::error::CliError;
use crate::libdir::{self, LIBRARIES, NOTICE_LIBRARY, PRELOAD_LIBRARY, names};
use crate::output;

/// The oldest version of the interface with all that the specification uses (names that begin with
/// a digit). Readers of later versions accept it, and older ones refuse what they do not know.
const VERSION: &str = "0.5.0";
/// The vendor and class of the devices.
const KIND: &str = "rocade.dev/nic";
/// The directory below which containers see Rocade. Its `bin` is in the search path of images.
const INSIDE: &str = "/usr/local";
/// The default runtime directory, less the user.
const RUNTIME_DIR: &str = "/tmp/rocade-";
/// The longest list of devices.
const MOST_DEVICES: i64 = 1024;

const CDI_AFTER: &str = "\
Examples:
  sudo rocade cdi generate --output /etc/cdi/rocade.json
  podman run --rm --device rocade.dev/nic=all IMAGE ib_write_bw";

const GENERATE_AFTER: &str = "\
Examples:
  rocade cdi generate                                       print it
  sudo rocade cdi generate -o /etc/cdi/rocade.json          where container engines look
  rocade cdi generate --runtime-dir ~/rocade-run -o F       with a directory of brokers that all
                                                            containers share
  rocade cdi generate --library-path /opt/ucx/lib -o F      for an image with that LD_LIBRARY_PATH

The devices are rocade.dev/nic=all and rocade.dev/nic=0, =1, ..., which do the same: a container
has an RDMA device for each of its network interfaces. The numbers are for schedulers that count.
The image needs glibc of the version that Rocade was built for, or a later one.
Write the file again when Rocade has moved.";

/// The subcommands of `rocade cdi`.
#[derive(Debug, Subcommand)]
#[command(after_help = CDI_AFTER)]
pub(crate) enum CdiCommand {
    /// Write the specification, which mounts this installation into containers
    #[command(after_help = GENERATE_AFTER)]
    Generate(GenerateArgs),
}

/// The options of `rocade cdi generate`.
#[derive(Debug, Args)]
pub(crate) struct GenerateArgs {
    /// The file to write, such as /etc/cdi/rocade.json [default: standard output]
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    output: Option<PathBuf>,

    /// A directory of this machine, in which containers share the broker's socket and locks. It is
    /// created if necessary, and must belong to the user of the containers' programs
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    runtime_dir: Option<PathBuf>,

    /// The user of the programs, as containers see it, for --runtime-dir
    #[arg(long, value_name = "UID", default_value_t = 0)]
    user: u32,

    /// The number of devices with numbers
    #[arg(long, value_name = "COUNT", default_value_t = 8, value_parser = clap::value_parser!(u16).range(0..=MOST_DEVICES))]
    count: u16,

    /// The directories of the image's own LD_LIBRARY_PATH, which this specification replaces
    #[arg(long, value_name = "DIR[:DIR..]")]
    library_path: Option<String>,
}

/// A specification.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Spec {
    cdi_version: &'static str,
    kind: &'static str,
    devices: Vec<Device>,
    /// For each container with one of the devices.
    container_edits: Edits,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Device {
    name: String,
    container_edits: Edits,
}

/// Changes of a container.
#[derive(Clone, Debug, Default, Serialize)]
struct Edits {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    env: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    mounts: Vec<Mount>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Mount {
    host_path: String,
    container_path: String,
    options: Vec<&'static str>,
}

/// Runs a subcommand of `rocade cdi`.
pub(crate) fn dispatch(command: &CdiCommand) -> Result<ExitCode, CliError> {
    let CdiCommand::Generate(args) = command;
    let libraries = libdir::find()?;
    let others = [PRELOAD_LIBRARY, NOTICE_LIBRARY].map(libdir::own_library);
    let exe = std::env::current_exe().map_err(|error| {
        CliError::new(format!(
            "failed to find the executable of this command: {error}"
        ))
    })?;
    let runtime_dir = args.runtime_dir.as_deref().map(shared_directory);
    let runtime_dir = runtime_dir.transpose()?;
    let mut mounts = mounts(&exe, &libraries, others.into_iter().flatten())?;
    if let Some(dir) = &runtime_dir {
        mounts.push(mount(dir, format!("{RUNTIME_DIR}{}", args.user), "rw")?);
    }
    let spec = spec(args, mounts);
    let text = serde_json::to_string_pretty(&spec)
        .map_err(|error| CliError::new(format!("failed to write the specification: {error}")))?;
    match &args.output {
        None => output::line(text)?,
        Some(file) => {
            write(file, &text)?;
            output::line(format_args!(
                "written: {}\npodman run --device {KIND}=all IMAGE ibv_devinfo",
                file.display()
            ))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the specification with these mounts.
fn spec(args: &GenerateArgs, mounts: Vec<Mount>) -> Spec {
    let mut path = format!("LD_LIBRARY_PATH={INSIDE}/lib/rocade");
    if let Some(own) = args.library_path.as_deref().filter(|own| !own.is_empty()) {
        path.push(':');
        path.push_str(own);
    }
    // A device without changes would not be valid, so each sets the variable.
    let device = |name: String| Device {
        name,
        container_edits: Edits {
            env: vec![path.clone()],
            mounts: Vec::new(),
        },
    };
    let numbers = (0..args.count).map(|number| number.to_string());
    Spec {
        cdi_version: VERSION,
        kind: KIND,
        devices: std::iter::once("all".to_owned())
            .chain(numbers)
            .map(device)
            .collect(),
        container_edits: Edits {
            env: Vec::new(),
            mounts,
        },
    }
}

/// Returns the mounts of the command and its libraries. An installation is one directory, so that
/// containers have its next version, too. In a build directory, each file has a mount under the
/// name that programs load.
fn mounts(
    exe: &Path,
    libraries: &Path,
    others: impl Iterator<Item = PathBuf>,
) -> Result<Vec<Mount>, CliError> {
    let inside = |name: &str| format!("{INSIDE}/lib/rocade/{name}");
    let mut mounts = vec![mount(exe, format!("{INSIDE}/bin/rocade"), "ro")?];
    let first = libraries.join(format!("{}.so.1", LIBRARIES[0]));
    let is_link = fs::symlink_metadata(&first).is_ok_and(|found| found.is_symlink());
    if !is_link {
        mounts.push(mount(libraries, format!("{INSIDE}/lib/rocade"), "ro")?);
        return Ok(mounts);
    }
    for name in LIBRARIES.into_iter().flat_map(names) {
        let link = libraries.join(&name);
        let file = fs::canonicalize(&link)
            .map_err(|error| CliError::new(format!("{}: {error}", link.display())))?;
        mounts.push(mount(&file, inside(&name), "ro")?);
    }
    for file in others {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        mounts.push(mount(&file, inside(&name), "ro")?);
    }
    Ok(mounts)
}

fn mount(host: &Path, container_path: String, access: &'static str) -> Result<Mount, CliError> {
    let host_path = host.to_str().ok_or_else(|| {
        CliError::new(format!(
            "{}: a specification has paths in UTF-8 only",
            host.display()
        ))
    })?;
    Ok(Mount {
        host_path: host_path.to_owned(),
        container_path,
        options: vec![access, "nosuid", "nodev", "bind"],
    })
}

/// Returns the absolute path of the directory that containers share. Creates it, for its owner
/// only, because no engine creates what a specification mounts.
fn shared_directory(dir: &Path) -> Result<PathBuf, CliError> {
    let failed = |error: io::Error| {
        CliError::new(format!("--runtime-dir {}: {error}", dir.display()))
            .hint("choose a directory that you can write to: --runtime-dir ~/rocade-run")
    };
    let path = std::path::absolute(dir).map_err(failed)?;
    let created = DirBuilder::new().recursive(true).mode(0o700).create(&path);
    created.map_err(failed)?;
    let mode = fs::metadata(&path).map_err(failed)?.permissions().mode();
    if mode & 0o022 != 0 {
        return Err(CliError::new(format!(
            "--runtime-dir {}: others can write to it, so no broker will use it",
            path.display()
        ))
        .hint(format!("chmod 700 {}", path.display())));
    }
    Ok(path)
}

/// Replaces the file in one step, because an engine may read it at any time.
fn write(file: &Path, text: &str) -> Result<(), CliError> {
    let failed = |error: io::Error| {
        CliError::new(format!("{}: {error}", file.display()))
            .hint("container engines read /etc/cdi and /var/run/cdi, which only root can write to")
    };
    let file = std::path::absolute(file).map_err(failed)?;
    let dir = file.parent().unwrap_or_else(|| Path::new("/"));
    fs::create_dir_all(dir).map_err(failed)?;
    // Engines read files with the endings .json and .yaml only.
    let new = dir.join(format!(".rocade-cdi.{}", std::process::id()));
    let written = fs::write(&new, format!("{text}\n")).and_then(|()| fs::rename(&new, &file));
    written.map_err(failed).inspect_err(|_| {
        // The first error is reported, not that of the removal.
        let _ = fs::remove_file(&new);
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::os::unix::fs::symlink;

    use super::*;

    fn args(count: u16) -> GenerateArgs {
        GenerateArgs {
            output: None,
            runtime_dir: None,
            user: 0,
            count,
            library_path: None,
        }
    }

    /// Returns true for a name of a device: letters and digits, with `_-.:` between them.
    fn is_name(name: &str) -> bool {
        let is_end = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
        let is_inner = |c: char| c.is_ascii_alphanumeric() || "_-.:".contains(c);
        is_end(name.chars().next()) && is_end(name.chars().last()) && name.chars().all(is_inner)
    }

    #[test]
    fn the_specification_follows_the_rules_of_the_interface() {
        let exe = mount(Path::new("/x/rocade"), "/usr/local/bin/rocade".into(), "ro").unwrap();
        let spec = serde_json::to_value(spec(&args(3), vec![exe])).unwrap();
        let (vendor, class) = spec["kind"].as_str().unwrap().split_once('/').unwrap();
        assert!(vendor.split('.').all(is_name) && is_name(class));
        assert!(vendor.starts_with(|c: char| c.is_ascii_alphabetic()));
        // A name that begins with a digit needs this version, as a mount without a type does not.
        assert_eq!(spec["cdiVersion"], "0.5.0");

        let keys = |value: &serde_json::Value| -> BTreeSet<String> {
            value.as_object().unwrap().keys().cloned().collect()
        };
        let known = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let top: BTreeSet<String> = known(&["cdiVersion", "kind", "devices", "containerEdits"]);
        assert_eq!(keys(&spec), top);
        let devices = spec["devices"].as_array().unwrap();
        let names: Vec<_> = devices
            .iter()
            .map(|d| d["name"].as_str().unwrap())
            .collect();
        assert_eq!(names, ["all", "0", "1", "2"]);
        for device in devices {
            assert_eq!(keys(device), known(&["name", "containerEdits"]));
            assert!(is_name(device["name"].as_str().unwrap()));
            // An empty one would not be valid.
            let env = device["containerEdits"]["env"].as_array().unwrap();
            assert_eq!(env, &["LD_LIBRARY_PATH=/usr/local/lib/rocade"]);
        }
        let mounts = spec["containerEdits"]["mounts"].as_array().unwrap();
        assert_eq!(
            keys(&mounts[0]),
            known(&["hostPath", "containerPath", "options"])
        );
        for end in ["hostPath", "containerPath"] {
            assert!(mounts[0][end].as_str().unwrap().starts_with('/'));
        }
        assert_eq!(mounts[0]["options"][0], "ro");
    }

    #[test]
    fn the_search_path_of_the_image_stays() {
        let args = GenerateArgs {
            library_path: Some("/opt/a:/opt/b".into()),
            ..args(0)
        };
        let spec = spec(&args, Vec::new());
        let [all] = &spec.devices[..] else {
            panic!("{spec:?}")
        };
        let path = "LD_LIBRARY_PATH=/usr/local/lib/rocade:/opt/a:/opt/b";
        assert_eq!(all.container_edits.env, [path]);
    }

    #[test]
    fn an_installation_is_one_mount_and_a_build_one_for_each_file() {
        let dir = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(dir.path()).unwrap();
        let (exe, installed, links) = (
            root.join("rocade"),
            root.join("lib/rocade"),
            root.join("rocade-libs"),
        );
        fs::create_dir_all(&installed).unwrap();
        fs::create_dir_all(&links).unwrap();
        for library in LIBRARIES {
            let built = root.join(format!("{library}.so"));
            fs::write(&built, library).unwrap();
            let [versioned, unversioned] = names(library);
            fs::write(installed.join(&versioned), library).unwrap();
            symlink(&versioned, installed.join(&unversioned)).unwrap();
            for name in [versioned, unversioned] {
                symlink(&built, links.join(name)).unwrap();
            }
        }
        let paths = |libraries: &Path| -> Vec<(String, String)> {
            let other = root.join(PRELOAD_LIBRARY);
            let mounts = mounts(&exe, libraries, std::iter::once(other)).unwrap();
            let pair = |mount: Mount| (mount.host_path, mount.container_path);
            mounts.into_iter().map(pair).collect()
        };
        let at = |path: &Path, inside: &str| {
            let host = path.to_str().unwrap().to_owned();
            (host, format!("/usr/local/{inside}"))
        };
        let command = at(&exe, "bin/rocade");
        assert_eq!(
            paths(&installed),
            [command.clone(), at(&installed, "lib/rocade")]
        );
        let built = paths(&links);
        assert_eq!(built.len(), 1 + 2 * LIBRARIES.len() + 1);
        for expected in [
            command,
            at(&root.join("libibverbs.so"), "lib/rocade/libibverbs.so.1"),
            at(&root.join("libmlx5.so"), "lib/rocade/libmlx5.so"),
            at(
                &root.join(PRELOAD_LIBRARY),
                "lib/rocade/librocade_preload.so",
            ),
        ] {
            assert!(built.contains(&expected), "{expected:?} in {built:?}");
        }
    }

    #[test]
    fn a_shared_directory_is_created_for_its_owner_alone() {
        let dir = tempfile::tempdir().unwrap();
        let shared = dir.path().join("a/b");
        assert_eq!(shared_directory(&shared).unwrap(), shared);
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode();
        assert_eq!(mode(&shared) & 0o777, 0o700);
        fs::set_permissions(&shared, fs::Permissions::from_mode(0o777)).unwrap();
        let error = shared_directory(&shared).unwrap_err().to_string();
        assert!(
            error.contains("others can write") && error.contains("chmod 700"),
            "{error}"
        );
    }
}
