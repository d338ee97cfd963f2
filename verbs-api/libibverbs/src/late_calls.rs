//! Objects that were destroyed before a waiting call reached them.
//!
//! Programs destroy a completion channel, or close a device, while another thread is about to wait
//! for its next event. Such a late call must not access freed memory. It looks its object up here
//! by address. The memory of a destroyed object is kept, so that no new object gets the same
//! address. The late call then sleeps, as in read(2) from a descriptor that another thread closes.
//! If the descriptor was non-blocking, the call fails with `EBADF`.

use std::{
    collections::{HashMap, VecDeque},
    os::fd::RawFd,
    sync::{Arc, Weak},
};

use crate::ffi::Errno;

/// The most destroyed objects to remember. A call that is later than 64 destroys is not expected.
const MAX_CLOSED: usize = 64;

/// The objects of one kind, by the addresses that the program has.
#[derive(Debug)]
pub(crate) struct LiveObjects<T> {
    live: HashMap<usize, Weak<T>>,
    closed: VecDeque<ClosedObject>,
}

struct ClosedObject {
    address: usize,
    /// True if the descriptor was non-blocking.
    nonblocking: bool,
    /// The object's memory, kept so that its address is not reused.
    memory: Option<Box<dyn Send>>,
}

impl std::fmt::Debug for ClosedObject {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClosedObject")
            .field("address", &self.address)
            .field("nonblocking", &self.nonblocking)
            .finish_non_exhaustive()
    }
}

impl<T> Default for LiveObjects<T> {
    fn default() -> Self {
        Self {
            live: HashMap::new(),
            closed: VecDeque::new(),
        }
    }
}

impl<T> LiveObjects<T> {
    /// Adds a new object.
    pub(crate) fn begin(&mut self, address: usize, object: &Arc<T>) {
        self.closed.retain(|closed| closed.address != address);
        self.live.insert(address, Arc::downgrade(object));
    }

    /// Marks an object as destroyed. Calls that already found the object keep using it.
    pub(crate) fn end(&mut self, address: usize, nonblocking: bool) {
        self.live.remove(&address);
        self.closed.push_back(ClosedObject {
            address,
            nonblocking,
            memory: None,
        });
        if self.closed.len() > MAX_CLOSED {
            self.closed.pop_front();
        }
    }

    /// Keeps the memory of a destroyed object.
    pub(crate) fn keep(&mut self, address: usize, memory: impl Send + 'static) {
        let mut newest_first = self.closed.iter_mut().rev();
        if let Some(closed) = newest_first.find(|closed| closed.address == address) {
            closed.memory = Some(Box::new(memory));
        }
    }

    /// Returns an object that a call has found earlier, unless it was destroyed since. Its address
    /// may belong to another object by now.
    ///
    /// # Errors
    /// `EBADF` if it was destroyed lately and was non-blocking.
    pub(crate) fn again(&self, address: usize, found: &Weak<T>) -> Result<Option<Arc<T>>, Errno> {
        match self.live.get(&address) {
            Some(live) if live.ptr_eq(found) => Ok(found.upgrade()),
            Some(_) => Ok(None),
            None => self
                .find(address, || Err(Errno::NODEV))
                .or_else(|error| match error {
                    Errno::NODEV => Ok(None),
                    error => Err(error),
                }),
        }
    }

    /// Finds the object of a call. Returns `None` if it was destroyed, so that the call sleeps
    /// until a signal. `or` finds an object that is not listed.
    ///
    /// # Errors
    /// `EBADF` if the object was destroyed and was non-blocking, and any error of `or`.
    pub(crate) fn find(
        &self,
        address: usize,
        or: impl FnOnce() -> Result<Arc<T>, Errno>,
    ) -> Result<Option<Arc<T>>, Errno> {
        if let Some(object) = self.live.get(&address).and_then(Weak::upgrade) {
            return Ok(Some(object));
        }
        match self.closed.iter().find(|closed| closed.address == address) {
            Some(closed) if closed.nonblocking => Err(Errno(libc::EBADF)),
            Some(_) => Ok(None),
            None => or().map(Some),
        }
    }
}

/// Returns true if reading the descriptor does not wait.
pub(crate) fn is_nonblocking(fd: RawFd) -> bool {
    // SAFETY: no pointers.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    flags >= 0 && flags & libc::O_NONBLOCK != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unknown() -> Result<Arc<u8>, Errno> {
        Err(Errno::NODEV)
    }

    #[test]
    fn what_has_ended_is_known_for_a_while() {
        let mut objects = LiveObjects::default();
        let object = Arc::new(7u8);
        objects.begin(1, &object);
        assert_eq!(objects.find(1, unknown), Ok(Some(Arc::clone(&object))));
        assert_eq!(objects.find(2, unknown), Err(Errno::NODEV));
        let kept = Arc::new(());
        objects.end(1, false);
        objects.keep(1, Arc::clone(&kept));
        assert_eq!(objects.find(1, unknown), Ok(None));
        for address in 2..2 + MAX_CLOSED {
            assert_eq!(Arc::strong_count(&kept), 2, "{address}");
            objects.begin(address, &object);
            objects.end(address, true);
            assert_eq!(objects.find(address, unknown), Err(Errno(libc::EBADF)));
        }
        assert_eq!(Arc::strong_count(&kept), 1);
        assert_eq!(objects.find(1, unknown), Err(Errno::NODEV));
    }

    /// A call that began before the destroy may sleep for ever, and wake up at any time.
    #[test]
    fn a_call_in_progress_learns_of_the_destroy_however_late() {
        let mut objects = LiveObjects::default();
        let [object, other] = [7u8, 8].map(Arc::new);
        let found = Arc::downgrade(&object);
        objects.begin(1, &object);
        assert_eq!(objects.again(1, &found), Ok(Some(Arc::clone(&object))));
        objects.end(1, true);
        assert_eq!(objects.again(1, &found), Err(Errno(libc::EBADF)));
        objects.begin(1, &object);
        objects.end(1, false);
        assert_eq!(objects.again(1, &found), Ok(None));
        for address in 2..3 + MAX_CLOSED {
            objects.begin(address, &other);
            objects.end(address, true);
        }
        assert_eq!(objects.again(1, &found), Ok(None));
        objects.begin(1, &other);
        assert_eq!(objects.again(1, &found), Ok(None));
    }
}
