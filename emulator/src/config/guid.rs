//! Node GUIDs: equal in every process of a host, and different between hosts and devices.

use std::net::IpAddr;

use rocade_wire::Guid;

/// Identity of this host and network namespace, which makes their GUIDs unique.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostIdentity(String);

impl HostIdentity {
    /// Returns the identity of this host: its machine ID and name, and the network namespace.
    #[must_use]
    pub fn this_host() -> Self {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let netns = std::fs::read_link("/proc/self/ns/net").unwrap_or_default();
        Self(format!(
            "{}/{}/{}",
            read("/etc/machine-id").trim(),
            read("/proc/sys/kernel/hostname").trim(),
            netns.display()
        ))
    }

    /// Returns a given identity, for tests that need the same GUIDs everywhere.
    #[must_use]
    pub fn fixed(identity: &str) -> Self {
        Self(identity.to_owned())
    }

    /// Returns the GUID of the device `name` whose first address is `addr`. It consists of the
    /// bytes 52:6f ("Ro", a locally administered prefix) and 48 bits of a hash. Never zero.
    #[must_use]
    pub fn device_guid(&self, name: &str, addr: IpAddr) -> Guid {
        let mut hash = Fnv1a::new();
        hash.update(self.0.as_bytes());
        hash.update(&[0]);
        hash.update(name.as_bytes());
        hash.update(&[0]);
        hash.update(addr.to_string().as_bytes());
        Guid::new(0x526f << 48 | hash.finish48())
    }
}

/// The 64-bit FNV-1a hash: small, and the same in every build (std's hashers guarantee neither).
struct Fnv1a(u64);

impl Fnv1a {
    fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    fn update(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }

    /// Returns the hash folded to 48 bits, as the authors of FNV recommend.
    fn finish48(&self) -> u64 {
        (self.0 >> 48) ^ (self.0 & 0xffff_ffff_ffff)
    }
}
