//! The network a rig lives in.

use std::{
    ffi::OsString,
    io::Read,
    path::PathBuf,
    process::{Child, Command, Stdio},
};

/// A network namespace to run programs in.
#[derive(Debug)]
pub struct Network {
    /// The command line that runs the command behind it inside.
    prefix: Vec<OsString>,
    /// The process that keeps a namespace of our own alive.
    holder: Option<Child>,
}

/// What the holder runs. It lives until its standard input is closed, that is, no longer than this process.
const HOLD: &str = "ip link set lo up && echo ready && exec cat";

impl Network {
    /// A namespace with nothing but loopback, made as root or by way of a user namespace.
    ///
    /// Where neither is allowed, it is the namespace of this process, with its loopback.
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

    /// A namespace by its name, as `ip netns` made it.
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

    /// Whether it is separate from the network of this process.
    #[must_use]
    pub fn is_isolated(&self) -> bool {
        !self.prefix.is_empty()
    }

    /// A process inside that lives as long as this.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.holder.as_ref().map(Child::id)
    }

    /// A command inside; the process that it becomes is the program itself (no parent in between).
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
