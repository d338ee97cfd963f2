//! The view of Rocade's devices in the file system.
//!
//! Much RDMA software reads `/dev/infiniband` and `/sys/class/infiniband` before its first verb. A
//! driver would create these files. [`tree`] defines them as data, and there are two ways to show
//! them only to a program and its children:
//!
//! * [`namespace`]: mounts in the program's own mount namespace, either as root or in a user
//!   namespace.
//! * [`staging_dir`]: a staging directory with the same files, for systems without namespaces. The
//!   preload library redirects the program's file functions to it.
//!
//! [`programs`] serves programs that send netlink requests. [`Replacement`] serves programs that
//! load a library from another place than Rocade's directory.
//!
//! docs/view.md describes the view.

pub mod host;
mod libraries;
pub mod namespace;
pub mod programs;
pub mod staging_dir;
mod sys;
pub mod tree;

pub use host::{HostFiles, Locality};
pub use libraries::Replacement;
pub use namespace::Contents;
pub use programs::Programs;
pub use tree::{CharDevices, Node, Tree, TreeEntry};

/// The environment variable with the staging directory for the preload library.
pub const ENV_STAGE: &str = "ROCADE_VIEW_STAGE";
/// The environment variable with the directory of the devices whose counters the engine updates.
pub const ENV_COUNTERS: &str = "ROCADE_VIEW_COUNTERS";
/// The environment variable with the number of the first device's `uverbsN` and `umadN`, unless it
/// is 0.
pub const ENV_FIRST_NUMBER: &str = "ROCADE_VIEW_FIRST";

/// The directory of the devices: `/sys/devices/rocade/hca/NAME`.
pub const HCA_DIR: &str = "/sys/devices/rocade/hca";
/// The character device behind `/dev/infiniband/*`. Every user can open it. A write of commands
/// fails at once with `ENOSPC`, and an `ioctl` with `ENOTTY`.
pub const CHAR_DEVICE: &str = "/dev/full";
