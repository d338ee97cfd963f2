//! Notices changes of a directory by inotify.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::thread;

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::io::Errno;
use tokio::sync::mpsc;

/// Bytes for events. The longest has a name of 255 bytes.
const BUFFER: usize = 4096;

/// A directory whose files are watched.
#[derive(Debug)]
pub(crate) struct DirWatch {
    /// A channel with an item after changes, which stands for all that were not noticed yet.
    changes: mpsc::Receiver<io::Result<()>>,
}

impl DirWatch {
    /// Watches files that are made, removed and renamed in a directory from now on. A thread reads
    /// the events, until the directory is removed or the process ends.
    ///
    /// # Errors
    /// The error of the system, for example if the directory does not exist.
    pub(crate) fn new(path: &Path) -> io::Result<Self> {
        let inotify = inotify::init(CreateFlags::CLOEXEC)?;
        let files = WatchFlags::CREATE | WatchFlags::DELETE | WatchFlags::MOVE;
        let dir = WatchFlags::DELETE_SELF | WatchFlags::MOVE_SELF | WatchFlags::ONLYDIR;
        inotify::add_watch(&inotify, path, files | dir)?;
        let removed = format!("{} was removed or renamed", path.display());
        let (sender, changes) = mpsc::channel(1);
        let thread = thread::Builder::new().name("inotify".to_owned());
        thread.spawn(move || {
            let error = read(&inotify, &sender).unwrap_or_else(|| io::Error::other(removed));
            // The plugin may have ended.
            let _ = sender.blocking_send(Err(error));
        })?;
        Ok(Self { changes })
    }

    /// Waits for changes, and takes all of them.
    ///
    /// # Errors
    /// The error of the system, or one that says that the directory itself was removed.
    pub(crate) async fn changed(&mut self) -> io::Result<()> {
        let change = self.changes.recv().await;
        change.unwrap_or_else(|| Err(io::Error::other("the watch of the directory has ended")))
    }
}

/// Reads events, until there is an error, or `None` if the directory was removed.
fn read(inotify: &OwnedFd, sender: &mpsc::Sender<io::Result<()>>) -> Option<io::Error> {
    let mut buffer = [MaybeUninit::uninit(); BUFFER];
    let mut events = inotify::Reader::new(inotify, &mut buffer);
    loop {
        let event = match events.next() {
            Ok(event) => event,
            Err(Errno::INTR) => continue,
            Err(error) => return Some(error.into()),
        };
        let gone = ReadFlags::DELETE_SELF | ReadFlags::MOVE_SELF | ReadFlags::UNMOUNT;
        if event.events().intersects(gone) {
            return None;
        }
        // A full channel has an item for this change already.
        let _ = sender.try_send(Ok(()));
    }
}
