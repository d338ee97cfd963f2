//! A socket at which programs of the same user read the process's objects on its devices.
//!
//! Processes in a sysfs view have it (docs/view.md). Its name is in the abstract namespace, which
//! belongs to the network namespace, as devices do: `rocade/resources/UID/PID-CHANCE`. A client
//! that connects gets one byte and, with it, a memfd that holds the report. Then the connection is
//! closed. So an answer never waits for the client.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd, RawFd};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

use crate::failure::named;
use crate::fdpass;
use crate::random;
use crate::sys;

/// Number of clients that are answered before the thread handles packets again.
const AT_ONCE: usize = 16;

/// The listening socket.
#[derive(Debug)]
pub(super) struct ResourceSocket {
    listener: UnixListener,
}

impl ResourceSocket {
    pub(super) fn open() -> io::Result<Self> {
        let (uid, pid) = (sys::effective_uid(), std::process::id());
        // A process of another PID namespace may have the same number.
        let chance = u32::from_ne_bytes(random::bytes());
        let name = format!("rocade/resources/{uid}/{pid}-{chance:08x}");
        let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?)?;
        listener
            .set_nonblocking(true)
            .map_err(named("failed to make a socket non-blocking (ioctl)"))?;
        Ok(Self { listener })
    }

    pub(super) fn fd(&self) -> RawFd {
        self.listener.as_raw_fd()
    }

    /// Answers the pending clients.
    pub(super) fn answer(&self, report: impl FnOnce() -> String) {
        let mut askers = Vec::new();
        while askers.len() < AT_ONCE
            && let Ok((asker, _)) = self.listener.accept()
        {
            askers.push(asker);
        }
        let own = sys::effective_uid();
        askers.retain(|asker| fdpass::peer(asker.as_fd()).is_ok_and(|peer| peer.uid == own));
        if askers.is_empty() {
            return;
        }
        let told = in_memory(&report()).and_then(|file| {
            let mut askers = askers.iter();
            askers.try_for_each(|asker: &UnixStream| {
                fdpass::send(asker.as_fd(), b"R", &[file.as_fd()])
            })
        });
        if let Err(error) = told {
            tracing::debug!(%error, "failed to report resources: `rdma resource` does not show them");
        }
    }
}

fn in_memory(text: &str) -> io::Result<OwnedFd> {
    let mut file = File::from(sys::memory_file(c"rocade-resources")?);
    file.write_all(text.as_bytes())?;
    Ok(file.into())
}
