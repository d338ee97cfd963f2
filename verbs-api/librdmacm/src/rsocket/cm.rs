//! Connection manager IDs of sockets. Their events arrive on one channel, which the service thread
//! reads.

use std::{
    ffi::{c_int, c_uint, c_void},
    net::SocketAddr,
    ptr,
};

use rocade_abi::{
    ibv_context, ibv_pd, ibv_sa_path_rec, rdma_cm_id, rdma_conn_param, rdma_event_channel,
};

use super::{address, options::path_data};
use crate::{
    connect::{
        rdma_accept, rdma_bind_addr, rdma_connect, rdma_disconnect, rdma_listen, rdma_reject,
        rdma_resolve_addr, rdma_resolve_route,
    },
    ffi::Errno,
    id::{self, qp_type_of, rdma_set_option},
};

/// The level of ID options, and their names.
const LEVEL_ID: c_int = 0;
pub(super) const OPTION_TOS: c_int = 0;
pub(super) const OPTION_REUSEADDR: c_int = 1;
pub(super) const OPTION_AFONLY: c_int = 2;

/// The retry count that stands for "without limit".
const RETRIES: u8 = 7;

/// The ID of a socket.
pub(super) struct Id(*mut rdma_cm_id);

// SAFETY: an object of this library, which any thread may use.
unsafe impl Send for Id {}

fn done(code: c_int) -> Result<(), Errno> {
    if code == 0 {
        Ok(())
    } else {
        Err(Errno::last())
    }
}

impl Id {
    /// Creates an ID on a channel. With NULL it gets its own channel, and its calls wait for their
    /// events.
    pub(super) fn new(
        channel: *mut rdma_event_channel,
        token: usize,
        ps: c_uint,
    ) -> Result<Self, Errno> {
        let qp_type = qp_type_of(ps).ok_or(Errno::INVAL)?;
        let made = id::create(channel, ptr::without_provenance_mut(token), ps, qp_type)?;
        Ok(Self(made))
    }

    /// Takes ownership of the ID of a connection request.
    pub(super) const fn of_request(id: *mut rdma_cm_id) -> Self {
        Self(id)
    }

    pub(super) const fn as_ptr(&self) -> *mut rdma_cm_id {
        self.0
    }

    /// Assigns the ID's further events to the socket with this token.
    pub(super) fn set_token(&self, token: usize) {
        let context: *mut c_void = ptr::without_provenance_mut(token);
        // SAFETY: the ID lives as long as `self`. Only the thread that calls this function reads
        // events.
        unsafe { (*self.0).context = context };
    }

    pub(super) fn device(&self) -> Result<*mut ibv_context, Errno> {
        // SAFETY: alive as long as `self`.
        let device = unsafe { (*self.0).verbs };
        if device.is_null() {
            return Err(Errno::NODEV);
        }
        Ok(device)
    }

    pub(super) fn pd(&self) -> Result<*mut ibv_pd, Errno> {
        // SAFETY: alive as long as `self`.
        let pd = unsafe { (*self.0).pd };
        if pd.is_null() {
            return Err(Errno::NODEV);
        }
        Ok(pd)
    }

    /// Returns the local address, or `None` before the ID is bound.
    pub(super) fn local(&self) -> Option<SocketAddr> {
        // SAFETY: alive as long as `self`.
        address::from_storage(unsafe { &(*self.0).route.addr.src_storage })
    }

    pub(super) fn peer(&self) -> Option<SocketAddr> {
        // SAFETY: alive as long as `self`.
        address::from_storage(unsafe { &(*self.0).route.addr.dst_storage })
    }

    /// Returns the path, once it is resolved.
    pub(super) fn route(&self) -> Option<ibv_sa_path_rec> {
        // SAFETY: the ID lives as long as `self`, and the path is part of the ID.
        unsafe {
            let route = &(*self.0).route;
            (route.num_paths > 0).then(|| *route.path_rec)
        }
    }

    /// Returns the path in the format of `RDMA_ROUTE`, or an empty vector if it is not resolved.
    pub(super) fn path(&self) -> Vec<u8> {
        self.route().as_ref().map_or_else(Vec::new, path_data)
    }

    pub(super) fn set_option(&self, name: c_int, value: &[u8]) -> Result<(), Errno> {
        let pointer = value.as_ptr().cast_mut().cast::<c_void>();
        // SAFETY: alive, and a value of that length, which is only read.
        done(unsafe { rdma_set_option(self.0, LEVEL_ID, name, pointer, value.len()) })
    }

    pub(super) fn bind(&self, addr: SocketAddr) -> Result<(), Errno> {
        let mut storage = address::to_storage(addr);
        // SAFETY: alive, and an address.
        done(unsafe { rdma_bind_addr(self.0, (&raw mut storage).cast()) })
    }

    pub(super) fn resolve_addr(
        &self,
        source: Option<SocketAddr>,
        destination: SocketAddr,
    ) -> Result<(), Errno> {
        let mut destination = address::to_storage(destination);
        let mut source = source.map(address::to_storage);
        let source = source.as_mut().map_or(ptr::null_mut(), ptr::from_mut);
        let destination = (&raw mut destination).cast();
        // SAFETY: alive, and addresses.
        done(unsafe { rdma_resolve_addr(self.0, source.cast(), destination, 2000) })
    }

    pub(super) fn resolve_route(&self) -> Result<(), Errno> {
        // SAFETY: the ID is alive.
        done(unsafe { rdma_resolve_route(self.0, 2000) })
    }

    pub(super) fn listen(&self, backlog: c_int) -> Result<(), Errno> {
        // SAFETY: the ID is alive.
        done(unsafe { rdma_listen(self.0, backlog) })
    }

    fn param(private: &[u8]) -> Result<rdma_conn_param, Errno> {
        Ok(rdma_conn_param {
            private_data: private.as_ptr().cast(),
            private_data_len: u8::try_from(private.len()).map_err(|_| Errno::INVAL)?,
            responder_resources: 0,
            initiator_depth: 0,
            flow_control: 1,
            retry_count: RETRIES,
            rnr_retry_count: RETRIES,
            srq: 0,
            qp_num: 0,
        })
    }

    pub(super) fn connect(&self, private: &[u8]) -> Result<(), Errno> {
        let mut param = Self::param(private)?;
        // SAFETY: the ID is alive, and the private data outlive the call.
        done(unsafe { rdma_connect(self.0, &raw mut param) })
    }

    pub(super) fn accept(&self, private: &[u8]) -> Result<(), Errno> {
        let mut param = Self::param(private)?;
        // SAFETY: the ID is alive, and the private data outlive the call.
        done(unsafe { rdma_accept(self.0, &raw mut param) })
    }

    pub(super) fn reject(&self) {
        // SAFETY: the ID is alive, and there are no private data.
        let _ = unsafe { rdma_reject(self.0, ptr::null(), 0) };
    }

    pub(super) fn disconnect(&self) {
        // SAFETY: the ID is alive.
        let _ = unsafe { rdma_disconnect(self.0) };
    }
}

impl Drop for Id {
    fn drop(&mut self) {
        // SAFETY: `self` owns the ID, whose events are acknowledged before the drop.
        let _ = unsafe { id::destroy(self.0) };
    }
}
