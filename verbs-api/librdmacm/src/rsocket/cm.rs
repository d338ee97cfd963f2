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
    args::{Address, Buffer, Handle, New, View, member},
    connect::{
        rdma_accept, rdma_bind_addr, rdma_connect, rdma_disconnect, rdma_listen, rdma_reject,
        rdma_resolve_addr, rdma_resolve_route,
    },
    ffi::Errno,
    id::{self, IdObject, qp_type_of, set_option},
};

/// The level of ID options, and their names.
const LEVEL_ID: c_int = 0;
pub(super) const OPTION_TOS: c_int = 0;
pub(super) const OPTION_REUSEADDR: c_int = 1;
pub(super) const OPTION_AFONLY: c_int = 2;

/// The retry count that stands for "without limit".
const RETRIES: u8 = 7;

/// The ID of a socket.
pub(super) struct Id(New<rdma_cm_id>);

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
        channel: Handle<'_, rdma_event_channel>,
        token: usize,
        ps: c_uint,
    ) -> Result<Self, Errno> {
        let qp_type = qp_type_of(ps).ok_or(Errno::INVAL)?;
        let made = id::create(channel, ptr::without_provenance_mut(token), ps, qp_type)?;
        Ok(Self(made))
    }

    /// Takes ownership of the ID of a connection request.
    pub(super) const fn of_request(id: New<rdma_cm_id>) -> Self {
        Self(id)
    }

    pub(super) const fn as_ptr(&self) -> *mut rdma_cm_id {
        self.handle().as_ptr()
    }

    /// Returns a handle for calls.
    pub(super) const fn handle(&self) -> Handle<'_, rdma_cm_id> {
        self.0.handle()
    }

    /// Returns the object.
    ///
    /// # Errors
    /// `ENODEV` in a forked child.
    pub(super) fn object(&self) -> Result<&IdObject, Errno> {
        self.handle().get()
    }

    /// Assigns the ID's further events to the socket with this token.
    pub(super) fn set_token(&self, token: usize) {
        let context: *mut c_void = ptr::without_provenance_mut(token);
        // Only the thread that calls this function reads events.
        if let Ok(object) = self.object() {
            object.set_member(member!(rdma_cm_id, context), context);
        }
    }

    pub(super) fn device(&self) -> Result<Handle<'_, ibv_context>, Errno> {
        self.object()?.verbs().some().ok_or(Errno::NODEV)
    }

    pub(super) fn pd(&self) -> Result<Handle<'_, ibv_pd>, Errno> {
        self.object()?.pd().some().ok_or(Errno::NODEV)
    }

    /// Returns the local address, or `None` before the ID is bound.
    pub(super) fn local(&self) -> Option<SocketAddr> {
        let object = self.object().ok()?;
        address::from_storage(&object.member(member!(rdma_cm_id, route.addr.src_storage)))
    }

    pub(super) fn peer(&self) -> Option<SocketAddr> {
        let object = self.object().ok()?;
        address::from_storage(&object.member(member!(rdma_cm_id, route.addr.dst_storage)))
    }

    /// Returns the path, once it is resolved.
    pub(super) fn route(&self) -> Option<ibv_sa_path_rec> {
        self.object().ok()?.shown_path()
    }

    /// Returns the path in the format of `RDMA_ROUTE`, or an empty vector if it is not resolved.
    pub(super) fn path(&self) -> Vec<u8> {
        self.route().as_ref().map_or_else(Vec::new, path_data)
    }

    pub(super) fn set_option(&self, name: c_int, value: &[u8]) -> Result<(), Errno> {
        set_option(self.object()?, (LEVEL_ID, name), Buffer::of(value))
    }

    pub(super) fn bind(&self, addr: SocketAddr) -> Result<(), Errno> {
        let storage = address::to_storage(addr);
        done(rdma_bind_addr(self.handle(), Address::of(&storage)))
    }

    pub(super) fn resolve_addr(
        &self,
        source: Option<SocketAddr>,
        destination: SocketAddr,
    ) -> Result<(), Errno> {
        let destination = address::to_storage(destination);
        let source = source.map(address::to_storage);
        let source = source.as_ref().map_or(Address::NULL, Address::of);
        let destination = Address::of(&destination);
        done(rdma_resolve_addr(self.handle(), source, destination, 2000))
    }

    pub(super) fn resolve_route(&self) -> Result<(), Errno> {
        done(rdma_resolve_route(self.handle(), 2000))
    }

    pub(super) fn listen(&self, backlog: c_int) -> Result<(), Errno> {
        done(rdma_listen(self.handle(), backlog))
    }

    fn param(private: &[u8]) -> Result<View<'_, rdma_conn_param>, Errno> {
        let param = rdma_conn_param {
            private_data: ptr::null(),
            private_data_len: 0,
            responder_resources: 0,
            initiator_depth: 0,
            flow_control: 1,
            retry_count: RETRIES,
            rnr_retry_count: RETRIES,
            srq: 0,
            qp_num: 0,
        };
        View::with_private(param, private)
    }

    pub(super) fn connect(&self, private: &[u8]) -> Result<(), Errno> {
        done(rdma_connect(self.handle(), Self::param(private)?.as_in()))
    }

    pub(super) fn accept(&self, private: &[u8]) -> Result<(), Errno> {
        done(rdma_accept(self.handle(), Self::param(private)?.as_in()))
    }

    pub(super) fn reject(&self) {
        let _ = rdma_reject(self.handle(), Buffer::NONE);
    }

    pub(super) fn disconnect(&self) {
        let _ = rdma_disconnect(self.handle());
    }
}

impl Drop for Id {
    fn drop(&mut self) {
        // The events of the ID are acknowledged before the drop.
        let _ = id::destroy(self.0.take());
    }
}
