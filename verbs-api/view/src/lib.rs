//! What programs see of Rocade's devices in the file system.
//!
//! Much RDMA software looks into `/dev/infiniband` and `/sys/class/infiniband` before it calls the
//! first verb. A driver would have made these files; [`tree`] says what they are, as data, and there
//! are two ways to show them to a program and its children, and to nobody else:
//!
//! * [`namespace`]: mounts in a mount namespace of the program's own, as root or by way of a user
//!   namespace;
//! * [`stage`]: a directory with the same files, to which the preload library leads the program's
//!   file functions, where the system allows no namespace.
//!
//! [`programs`] gives answers to programs that ask by netlink.
//!
//! docs/view.md tells the whole story.

pub mod host;
pub mod namespace;
pub mod programs;
pub mod stage;
mod sys;
pub mod tree;

pub use host::{HostFiles, Locality};
pub use programs::Programs;
pub use tree::{CharDevices, Entry, Node, Tree};

/// Variable with the directory that the preload library leads to.
pub const ENV_STAGE: &str = "ROCADE_VIEW_STAGE";
/// Variable with the directory of the devices whose counters the engine keeps up to date.
pub const ENV_COUNTERS: &str = "ROCADE_VIEW_COUNTERS";
/// Variable with the number of the first device's `uverbsN` and `umadN`, where that is not 0.
pub const ENV_FIRST_NUMBER: &str = "ROCADE_VIEW_FIRST";

/// Where the devices are: `/sys/devices/rocade/hca/NAME`.
pub const HCA_DIR: &str = "/sys/devices/rocade/hca";
/// The character device behind `/dev/infiniband/*`: it can be opened by anybody, a write of commands
/// fails at once, with `ENOSPC`, and so does an `ioctl`, with `ENOTTY`.
pub const CHAR_DEVICE: &str = "/dev/full";
