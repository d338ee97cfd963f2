//! A broker that a service manager has started: the socket that the manager passes to it, and the
//! notices that the manager waits for. The protocol is that of systemd (sd_listen_fds(3),
//! sd_notify(3)), which other managers speak, too.

#![deny(clippy::disallowed_methods)]

use std::env;
use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use socket2::{Socket, Type};

use super::sys;

/// The socket to which notices go.
const ENV_NOTIFY: &str = "NOTIFY_SOCKET";
/// The process that the descriptors are for.
const ENV_PID: &str = "LISTEN_PID";
/// The number of descriptors.
const ENV_COUNT: &str = "LISTEN_FDS";

/// Returns true for a variable by which a service manager addresses one process. A broker that a
/// service starts on demand must not speak in the name of that service.
pub(super) fn is_of_manager(name: &OsStr) -> bool {
    let name = name.as_bytes();
    name == ENV_NOTIFY.as_bytes()
        || [&b"LISTEN_"[..], b"WATCHDOG_"]
            .iter()
            .any(|kind| name.starts_with(kind))
}

/// Takes the socket that a service manager listens at for this process, if there is one.
///
/// # Errors
/// A text that names the mistake in the settings of the service manager. Then it has passed another
/// number of descriptors than one, or something else than a socket for a broker.
pub(super) fn passed_listener() -> io::Result<Option<Socket>> {
    let number = |name: &str| env::var(name).ok()?.parse::<u32>().ok();
    let count = number(ENV_COUNT).unwrap_or(0);
    if number(ENV_PID) != Some(std::process::id()) || count == 0 {
        return Ok(None);
    }
    let wrong = |what: &str| io::Error::new(io::ErrorKind::InvalidInput, what);
    if count > 1 {
        return Err(wrong("the service manager has passed more than one socket"));
    }
    let Some(fd) = sys::take_passed_descriptor()? else {
        return Ok(None);
    };
    let listener = Socket::from(fd);
    let is_fit = listener.r#type()? == Type::SEQPACKET && listener.is_listener()?;
    if !is_fit {
        return Err(wrong(
            "the service manager has passed something else than a listening socket of type \
             SOCK_SEQPACKET (ListenSequentialPacket=)",
        ));
    }
    listener.set_nonblocking(true)?;
    Ok(Some(listener))
}

/// Sends a notice to the service manager, if one waits for it.
pub(super) fn notify(state: &str) {
    let Some(path) = env::var_os(ENV_NOTIFY) else {
        return;
    };
    let address = match path.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(&path),
    };
    let sent = address.and_then(|address| {
        let socket = UnixDatagram::unbound()?;
        socket.send_to_addr(state.as_bytes(), &address)
    });
    if let Err(error) = sent {
        tracing::warn!(%error, state, "failed to notify the service manager");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_for_one_process_are_told_from_others() {
        for name in ["NOTIFY_SOCKET", "LISTEN_FDS", "LISTEN_PID", "WATCHDOG_USEC"] {
            assert!(is_of_manager(name.as_ref()), "{name}");
        }
        for name in ["NOTIFY", "PATH", "INVOCATION_ID"] {
            assert!(!is_of_manager(name.as_ref()), "{name}");
        }
    }

    #[test]
    fn a_process_that_was_passed_nothing_listens_by_itself() {
        // The variables, if any, are for another process.
        assert!(passed_listener().unwrap().is_none());
    }
}
