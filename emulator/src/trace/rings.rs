//! The way of rings to their tracer: each process sends its own to a socket in a directory.

use std::fs::File;
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use super::ring::{Ring, RingReader};
use crate::fdpass;

/// The name of the socket.
const SOCKET: &str = "rings";
/// The length of a message, which is the process ID in the order of the processor.
const LEN: usize = 4;

/// Makes a ring, and sends it to the tracer that listens in a directory.
///
/// # Errors
/// Those of making the ring, and of connect(2) and sendmsg(2).
pub(super) fn create(dir: &Path) -> io::Result<Ring> {
    let (ring, file) = Ring::create()?;
    let path = dir.join(SOCKET);
    let tracer = UnixStream::connect(&path).map_err(|error| {
        let text = format!(
            "failed to connect to the tracer at {}: {error}",
            path.display()
        );
        io::Error::new(error.kind(), text)
    })?;
    let message = std::process::id().to_ne_bytes();
    fdpass::send(tracer.as_fd(), &message, &[file.as_fd()])?;
    Ok(ring)
}

/// The socket of a tracer, to which traced processes send their rings.
#[derive(Debug)]
pub struct RingListener {
    socket: UnixListener,
    /// Connections whose message has not come.
    connections: Vec<UnixStream>,
}

impl RingListener {
    /// Listens in a directory, which only this user may use.
    ///
    /// # Errors
    /// Those of bind(2), such as a path that is too long.
    pub fn bind(dir: &Path) -> io::Result<Self> {
        let socket = UnixListener::bind(dir.join(SOCKET))?;
        socket.set_nonblocking(true)?;
        let connections = Vec::new();
        Ok(Self {
            socket,
            connections,
        })
    }

    /// Returns the rings that have come, each with the ID of its process. Without descriptors, they
    /// come later.
    pub fn take(&mut self) -> Vec<(u32, RingReader)> {
        while let Ok((connection, _)) = self.socket.accept() {
            self.connections.push(connection);
        }
        let mut rings = Vec::new();
        self.connections
            .retain(|connection| match receive(connection) {
                Ok(ring) => {
                    rings.push(ring);
                    false
                }
                // Others have ended before they sent a ring.
                Err(error) => error.kind() == io::ErrorKind::WouldBlock,
            });
        rings
    }
}

fn receive(connection: &UnixStream) -> io::Result<(u32, RingReader)> {
    let mut message = [0; LEN];
    let (len, fds) = fdpass::receive(connection.as_fd(), &mut message)?;
    let file = fds.into_iter().next().filter(|_| len == LEN);
    let file = file.ok_or(io::ErrorKind::InvalidData)?;
    let ring = RingReader::open(File::from(file))?;
    Ok((u32::from_ne_bytes(message), ring))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_of_processes_that_have_ended_come_too() {
        let dir = tempfile::tempdir().expect("a directory");
        assert!(create(dir.path()).is_err(), "nobody listens");
        let mut listener = RingListener::bind(dir.path()).expect("a socket");
        assert!(listener.take().is_empty());
        let early = UnixStream::connect(dir.path().join(SOCKET)).expect("connected");
        for _ in 0..3 {
            create(dir.path()).expect("a ring");
        }
        let rings = listener.take();
        let own = |(pid, _): &(u32, RingReader)| *pid == std::process::id();
        assert!(rings.len() == 3 && rings.iter().all(own), "{rings:?}");
        drop(early);
        assert!(listener.take().is_empty());
        assert!(listener.connections.is_empty());
    }
}
