//! The service thread, which handles connection events and reads the UDP sockets of datagram
//! sockets.

use std::{
    cell::Cell,
    ffi::{c_int, c_uint},
    os::fd::{AsRawFd, OwnedFd},
    ptr,
    sync::{Arc, Weak},
};

use parking_lot::Mutex;
use rocade_abi::{rdma_cm_event, rdma_cm_id, rdma_event_channel};
use rocade_rsockets::ConnData;

use super::{cm::Id, datagram::DatagramSocket, process::Process, sys};
use crate::{
    args::{Handle, Last, Out},
    engine,
    event::{self, rdma_ack_cm_event, rdma_get_cm_event},
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
    channel: *mut rdma_event_channel,
    wake: OwnedFd,
    datagrams: Mutex<Vec<Weak<DatagramSocket>>>,
}

// SAFETY: a channel of this library, which any thread may use.
unsafe impl Send for Service {}
// SAFETY: a channel of this library, which any thread may use.
unsafe impl Sync for Service {}

impl Service {
    /// Starts the thread, which runs until the process ends.
    pub(super) fn start(process: &'static Process) -> Result<Arc<Self>, Errno> {
        let channel = ChannelObject::create()?;
        sys::set_nonblocking(channel.get()?.fd(), true)?;
        let service = Arc::new(Self {
            channel: channel.into_c(),
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
        // SAFETY: never destroyed.
        unsafe { Handle::new(self.channel) }
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
        // SAFETY: an event was written, and its ID lives until it is acknowledged.
        let notification = unsafe {
            let param = (*told).param.conn;
            let is_request = (*told).event == event::CONNECT_REQUEST;
            let about = if is_request {
                (*told).listen_id
            } else {
                (*told).id
            };
            let mut private = [0; ConnData::LEN];
            if !param.private_data.is_null() {
                let len = usize::from(param.private_data_len).min(private.len());
                ptr::copy_nonoverlapping(param.private_data.cast(), private.as_mut_ptr(), len);
            }
            CmNotification {
                kind: (*told).event,
                status: (*told).status,
                id: about,
                token: (*about).context.addr(),
                new_id: Cell::new(is_request.then(|| Id::of_request((*told).id))),
                private,
            }
        };
        // SAFETY: it is not used afterwards.
        rdma_ack_cm_event(unsafe { Last::new(told) });
        Some(notification)
    }
}
