//! The service thread, which handles connection events and reads the UDP sockets of datagram
//! sockets.

use std::{
    cell::Cell,
    ffi::{c_int, c_uint, c_void},
    os::fd::{AsRawFd, OwnedFd},
    ptr,
    sync::{Arc, Weak},
};

use parking_lot::Mutex;
use rocade_abi::{rdma_cm_event, rdma_cm_id, rdma_event_channel};
use rocade_rsockets::ConnData;

use super::{cm::Id, datagram::DatagramSocket, process::Process, sys};
use crate::{
    args::{Handle, Last, New, Out, member},
    engine,
    event::{self, rdma_get_cm_event},
    ffi::Errno,
    id::ChannelObject,
};

/// The content of an event. The event itself is acknowledged already, because destroying its ID
/// waits for the acknowledgement.
pub(super) struct CmNotification {
    pub(super) kind: c_uint,
    pub(super) status: c_int,
    pub(super) id: *mut rdma_cm_id,
    token: usize,
    /// The new ID of a connection request.
    pub(super) new_id: Cell<Option<Id>>,
    pub(super) private: [u8; ConnData::LEN],
}

/// The service thread, and the descriptors that it watches.
pub(super) struct Service {
    channel: New<rdma_event_channel>,
    wake: OwnedFd,
    datagrams: Mutex<Vec<Weak<DatagramSocket>>>,
}

impl Service {
    /// Starts the thread, which runs until the process ends.
    pub(super) fn start(process: &'static Process) -> Result<Arc<Self>, Errno> {
        let channel = ChannelObject::create()?;
        sys::set_nonblocking(channel.get()?.fd(), true)?;
        let service = Arc::new(Self {
            channel,
            wake: sys::eventfd()?,
            datagrams: Mutex::default(),
        });
        let own = Arc::clone(&service);
        sys::without_signals(|| {
            let thread = std::thread::Builder::new()
                .name("rocade-rsockets".to_owned())
                .spawn(move || own.run(process));
            thread.map(|_| ()).map_err(|_| Errno(libc::EAGAIN))
        })?;
        Ok(service)
    }

    /// Returns the channel of all IDs.
    pub(super) const fn channel(&self) -> Handle<'_, rdma_event_channel> {
        self.channel.handle()
    }

    /// Adds a datagram socket, whose UDP socket the thread reads from now on.
    pub(super) fn watch(&self, socket: &Arc<DatagramSocket>) {
        self.datagrams.lock().push(Arc::downgrade(socket));
        sys::set_event(&self.wake);
    }

    fn run(&self, process: &'static Process) {
        engine::settle_thread();
        loop {
            let sockets: Vec<Arc<DatagramSocket>> = {
                let mut all = self.datagrams.lock();
                all.retain(|socket| socket.strong_count() > 0);
                all.iter().filter_map(Weak::upgrade).collect()
            };
            let channel = self.channel().get().map_or(-1, ChannelObject::fd);
            let mut fds = vec![sys::readable(self.wake.as_raw_fd()), sys::readable(channel)];
            fds.extend(sockets.iter().map(|socket| sys::readable(socket.udp_fd())));
            // `sockets` keeps a descriptor open that is closed during this poll.
            let _ = sys::poll(&mut fds, None);
            if fds[0].revents != 0 {
                sys::clear_event(&self.wake);
            }
            if fds[1].revents != 0 {
                while let Some(notification) = self.next() {
                    if let Some(socket) = process.weak(notification.token).upgrade() {
                        socket.handle_event(process, &notification);
                    }
                }
            }
            for (fd, socket) in fds[2..].iter().zip(&sockets) {
                if fd.revents != 0 {
                    socket.read_udp();
                }
            }
        }
    }

    /// Wakes the thread, so that it drops a closed socket.
    pub(super) fn wake(&self) {
        sys::set_event(&self.wake);
    }

    fn next(&self) -> Option<CmNotification> {
        let mut told: *mut rdma_cm_event = ptr::null_mut();
        if rdma_get_cm_event(self.channel(), Out::of(&mut told)) != 0 {
            return None;
        }
        // SAFETY: an event was written, which is not used afterwards.
        let told = unsafe { Last::new(told) };
        event::consume(told, |event, private, new_id| {
            let about = if new_id.is_some() {
                event.listen_id
            } else {
                event.id
            };
            // SAFETY: the ID lives until its event is acknowledged.
            let about = unsafe { Handle::new(about) };
            let token = about.member(member!(rdma_cm_id, context));
            let mut data = [0; ConnData::LEN];
            private.copy_to(&mut data);
            CmNotification {
                kind: event.event,
                status: event.status,
                id: about.as_ptr(),
                token: token.map_or(0, <*mut c_void>::addr),
                new_id: Cell::new(new_id.map(Id::of_request)),
                private: data,
            }
        })
    }
}
