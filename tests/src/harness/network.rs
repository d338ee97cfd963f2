//! The network of a rig.

use std::{
    ffi::OsString,
    io::Read,
    path::PathBuf,
    process::{Child, Command, Stdio},
};

/// A network namespace in which programs run.
#[derive(Debug)]
pub struct Network {
    /// The command line that runs the command appended to it inside the namespace.
    prefix: Vec<OsString>,
    /// The process that keeps a namespace created by [`isolated`](Self::isolated) alive.
    holder: Option<Child>,
}

/// The shell script of the holder process. It ends when its standard input is closed, so that the
/// holder does not outlive this process.
const HOLD: &str = "ip link set lo up && echo ready && exec cat";

impl Network {
    /// Creates a namespace with only a loopback interface, as root or in a user namespace.
    ///
    /// If neither is allowed, the result stands for the namespace of this process, with its
    /// loopback interface.
    #[must_use]
    pub fn isolated() -> Self {
        let attempts: [(&[&str], &[&str]); 2] = [
            (&["--net"], &["--net"]),
            (
                &["--user", "--map-root-user", "--net"],
                &["--user", "--net", "--preserve-credentials"],
            ),
        ];
        for (unshare, enter) in attempts {
            if let Some(network) = Self::hold(unshare, enter) {
                return network;
            }
        }
        Self {
            prefix: Vec::new(),
            holder: None,
        }
    }

    /// Returns the namespace that `ip netns` created under that name.
    #[must_use]
    pub fn named(name: &str) -> Self {
        let path = PathBuf::from("/run/netns").join(name);
        let mut net = OsString::from("--net=");
        net.push(path);
        Self {
            prefix: vec!["nsenter".into(), net, "--".into()],
            holder: None,
        }
    }

    /// Returns true if it is separate from the network of this process.
    #[must_use]
    pub fn is_isolated(&self) -> bool {
        !self.prefix.is_empty()
    }

    /// The id of a process in the namespace, which lives as long as `self`.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.holder.as_ref().map(Child::id)
    }

    /// Returns a command that runs in the namespace. The spawned process becomes the program by
    /// `exec`, so that there is no parent in between.
    #[must_use]
    pub fn command(&self, words: &[OsString]) -> Command {
        let mut all = self.prefix.iter().chain(words);
        let mut command = Command::new(all.next().map_or_else(OsString::new, OsString::clone));
        command.args(all);
        command
    }

    fn hold(unshare: &[&str], enter: &[&str]) -> Option<Self> {
        let mut holder = Command::new("unshare")
            .args(unshare)
            .args(["--", "sh", "-c", HOLD])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .ok()?;
        let mut answer = [0; 5];
        let ready = holder
            .stdout
            .as_mut()
            .is_some_and(|out| out.read_exact(&mut answer).is_ok());
        let mut network = Self {
            prefix: vec!["nsenter".into()],
            holder: None,
        };
        network.prefix.push("--target".into());
        network.prefix.push(holder.id().to_string().into());
        network.prefix.extend(enter.iter().map(OsString::from));
        network.prefix.push("--".into());
        network.holder = Some(holder);
        ready.then_some(network)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        if let Some(holder) = &mut self.holder {
            let _ = holder.kill();
            let _ = holder.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_of_its_own_has_loopback_only() {
        let network = Network::isolated();
        if !network.is_isolated() {
            crate::skip!("cannot make a network namespace");
        }
        let output = network
            .command(&["cat".into(), "/proc/net/dev".into()])
            .output()
            .unwrap();
        let devices = String::from_utf8(output.stdout).unwrap();
        assert_eq!(
            devices.lines().filter(|line| line.contains(':')).count(),
            1,
            "{devices}"
        );
        assert!(devices.contains("lo:"), "{devices}");
    }
}
