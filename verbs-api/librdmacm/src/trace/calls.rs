//! The exported functions, with a record of each call.
//!
//! A row of the table is the ABI, the rule by which a call has failed, the function, and its
//! signature. Without a trace each function calls the real one at once.

use std::ffi::{c_char, c_int, c_uint, c_void};

use libc::{
    epoll_event, fd_set, iovec, msghdr, nfds_t, off_t, pollfd, sockaddr, socklen_t, timeval,
};
use rocade_abi::{
    ibv_context, ibv_ece, ibv_pd, ibv_qp_attr, ibv_qp_init_attr, ibv_qp_init_attr_ex,
    ibv_srq_init_attr, ibv_srq_init_attr_ex, rdma_addrinfo, rdma_cm_event, rdma_cm_id,
    rdma_cm_join_mc_attr_ex, rdma_conn_param, rdma_event_channel,
};

use super::sink::{begin, end, is_on};
use super::table::traced;
use crate::rsocket::FdSet;

traced! {
    "C-unwind" Negative crate::rsocket::accept::raccept[fd, (address, len)]
        => raccept(
        fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int;
    "C" Negative crate::rsocket::rbind[fd, (addr, len)]
        => rbind(
        fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int;
    "C" Frees crate::rsocket::rclose => rclose(fd: c_int) -> c_int;
    "C" Negative crate::rsocket::rconnect[fd, (addr, len)]
        => rconnect(
        fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int;
    "C" Negative crate::connect::rdma_accept => rdma_accept(
        id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int;
    "C" Frees crate::event::rdma_ack_cm_event => rdma_ack_cm_event(
        event: *mut rdma_cm_event) -> c_int;
    "C" Negative crate::connect::rdma_bind_addr => rdma_bind_addr(
        id: *mut rdma_cm_id, addr: *mut sockaddr) -> c_int;
    "C" Negative crate::connect::rdma_connect => rdma_connect(
        id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int;
    "C" Negative crate::ep::rdma_create_ep => rdma_create_ep(
        id: *mut *mut rdma_cm_id, info: *mut rdma_addrinfo, pd: *mut ibv_pd,
        attr: *mut ibv_qp_init_attr) -> c_int;
    "C" Negative crate::id::rdma_create_event_channel => rdma_create_event_channel(
        ) -> *mut rdma_event_channel;
    "C" Negative crate::id::rdma_create_id => rdma_create_id(
        channel: *mut rdma_event_channel, id: *mut *mut rdma_cm_id, context: *mut c_void,
        ps: c_uint) -> c_int;
    "C" Negative crate::qp::rdma_create_qp => rdma_create_qp(
        id: *mut rdma_cm_id, pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> c_int;
    "C" Negative crate::qp::rdma_create_qp_ex => rdma_create_qp_ex(
        id: *mut rdma_cm_id, attr: *mut ibv_qp_init_attr_ex) -> c_int;
    "C" Negative crate::srq::rdma_create_srq => rdma_create_srq(
        id: *mut rdma_cm_id, pd: *mut ibv_pd, attr: *mut ibv_srq_init_attr) -> c_int;
    "C" Negative crate::srq::rdma_create_srq_ex => rdma_create_srq_ex(
        id: *mut rdma_cm_id, attr: *mut ibv_srq_init_attr_ex) -> c_int;
    "C" Frees crate::ep::rdma_destroy_ep => rdma_destroy_ep(id: *mut rdma_cm_id);
    "C" Frees crate::id::rdma_destroy_event_channel => rdma_destroy_event_channel(
        channel: *mut rdma_event_channel);
    "C" Frees crate::id::rdma_destroy_id => rdma_destroy_id(id: *mut rdma_cm_id) -> c_int;
    "C" Frees crate::qp::rdma_destroy_qp => rdma_destroy_qp(id: *mut rdma_cm_id);
    "C" Frees crate::srq::rdma_destroy_srq => rdma_destroy_srq(id: *mut rdma_cm_id);
    "C" Negative crate::connect::rdma_disconnect => rdma_disconnect(id: *mut rdma_cm_id) -> c_int;
    "C" Negative crate::connect::rdma_establish => rdma_establish(id: *mut rdma_cm_id) -> c_int;
    "C" Frees crate::devices::rdma_free_devices => rdma_free_devices(list: *mut *mut ibv_context);
    "C" Frees crate::addrinfo::rdma_freeaddrinfo => rdma_freeaddrinfo(res: *mut rdma_addrinfo);
    "C-unwind" Negative crate::event::rdma_get_cm_event => rdma_get_cm_event(
        channel: *mut rdma_event_channel, event: *mut *mut rdma_cm_event) -> c_int;
    "C" Negative crate::devices::rdma_get_devices => rdma_get_devices(
        num_devices: *mut c_int) -> *mut *mut ibv_context;
    "C" Negative crate::id::rdma_get_dst_port => rdma_get_dst_port(id: *mut rdma_cm_id) -> u16;
    "C" Negative crate::id::rdma_get_remote_ece => rdma_get_remote_ece(
        id: *mut rdma_cm_id, options: *mut ibv_ece) -> c_int;
    "C" Negative crate::ep::rdma_get_request => rdma_get_request(
        listen: *mut rdma_cm_id, id: *mut *mut rdma_cm_id) -> c_int;
    "C" Negative crate::id::rdma_get_src_port => rdma_get_src_port(id: *mut rdma_cm_id) -> u16;
    "C" Negative crate::addrinfo::rdma_getaddrinfo => rdma_getaddrinfo(
        node: *const c_char, service: *const c_char, hints: *const rdma_addrinfo,
        res: *mut *mut rdma_addrinfo) -> c_int;
    "C" Negative crate::connect::rdma_init_qp_attr => rdma_init_qp_attr(
        id: *mut rdma_cm_id, attr: *mut ibv_qp_attr, mask: *mut c_int) -> c_int;
    "C" Negative crate::multicast::rdma_join_multicast => rdma_join_multicast(
        id: *mut rdma_cm_id, addr: *mut sockaddr, context: *mut c_void) -> c_int;
    "C" Negative crate::multicast::rdma_join_multicast_ex => rdma_join_multicast_ex(
        id: *mut rdma_cm_id, attr: *mut rdma_cm_join_mc_attr_ex, context: *mut c_void) -> c_int;
    "C" Negative crate::multicast::rdma_leave_multicast => rdma_leave_multicast(
        id: *mut rdma_cm_id, addr: *mut sockaddr) -> c_int;
    "C" Negative crate::connect::rdma_listen => rdma_listen(
        id: *mut rdma_cm_id, backlog: c_int) -> c_int;
    "C" Negative crate::id::rdma_migrate_id => rdma_migrate_id(
        id: *mut rdma_cm_id, channel: *mut rdma_event_channel) -> c_int;
    "C" Negative crate::connect::rdma_notify => rdma_notify(
        id: *mut rdma_cm_id, event: c_uint) -> c_int;
    "C" Negative crate::addrinfo::rdma_query_addrinfo => rdma_query_addrinfo(
        id: *mut rdma_cm_id, info: *mut *mut rdma_addrinfo) -> c_int;
    "C" Negative crate::connect::rdma_reject[id, (data, len)]
        => rdma_reject(
        id: *mut rdma_cm_id, data: *const c_void, len: u8) -> c_int;
    "C" Negative crate::connect::rdma_reject_ece[id, (data, len)]
        => rdma_reject_ece(
        id: *mut rdma_cm_id, data: *const c_void, len: u8) -> c_int;
    "C" Negative crate::connect::rdma_resolve_addr => rdma_resolve_addr(
        id: *mut rdma_cm_id, src: *mut sockaddr, dst: *mut sockaddr, timeout_ms: c_int) -> c_int;
    "C" Negative crate::addrinfo::rdma_resolve_addrinfo => rdma_resolve_addrinfo(
        id: *mut rdma_cm_id, node: *const c_char, service: *const c_char,
        hints: *const rdma_addrinfo) -> c_int;
    "C" Negative crate::connect::rdma_resolve_route => rdma_resolve_route(
        id: *mut rdma_cm_id, timeout_ms: c_int) -> c_int;
    "C" Negative crate::id::rdma_set_local_ece => rdma_set_local_ece(
        id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int;
    "C" Negative crate::id::rdma_set_option[id, level, name, (value, len)]
        => rdma_set_option(
        id: *mut rdma_cm_id, level: c_int, name: c_int, value: *mut c_void, len: usize) -> c_int;
    "C" Negative crate::event::rdma_write_cm_event => rdma_write_cm_event(
        id: *mut rdma_cm_id, kind: c_uint, status: c_int, argument: u64) -> c_int;
    "C" Negative crate::rsocket::epoll::repoll_create => repoll_create(flags: c_int) -> c_int;
    "C" Negative crate::rsocket::epoll::repoll_ctl => repoll_ctl(
        set: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int;
    "C" Negative crate::rsocket::epoll::repoll_wait[set, (events, most), limit]
        => repoll_wait(
        set: c_int, events: *mut epoll_event, most: c_int, limit: c_int) -> c_int;
    "C" Negative crate::rsocket::rfcntl => rfcntl(
        fd: c_int, command: c_int, argument: usize) -> c_int;
    "C" Negative crate::rsocket::rgetpeername[fd, (address, len)]
        => rgetpeername(
        fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int;
    "C" Negative crate::rsocket::rgetsockname[fd, (address, len)]
        => rgetsockname(
        fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int;
    "C" Negative crate::rsocket::rgetsockopt[fd, level, name, (value, len)]
        => rgetsockopt(
        fd: c_int, level: c_int, name: c_int, value: *mut c_void, len: *mut socklen_t) -> c_int;
    "C" Negative crate::rsocket::riomap => riomap(
        fd: c_int, start: *mut c_void, len: usize, prot: c_int, flags: c_int, offset: off_t
    ) -> off_t;
    "C" Negative crate::rsocket::riounmap => riounmap(
        fd: c_int, start: *mut c_void, len: usize) -> c_int;
    "C" Negative crate::rsocket::riowrite[fd, (from, len), offset, flags]
        => riowrite(
        fd: c_int, from: *const c_void, len: usize, offset: off_t, flags: c_int) -> isize;
    "C" Negative crate::rsocket::rlisten => rlisten(fd: c_int, backlog: c_int) -> c_int;
    "C" Negative crate::rsocket::rpoll[(fds, count), limit]
        => rpoll(
        fds: *mut pollfd, count: nfds_t, limit: c_int) -> c_int;
    "C" Negative crate::rsocket::rread[fd, (to, len)]
        => rread(fd: c_int, to: *mut c_void, len: usize) -> isize;
    "C" Negative crate::rsocket::rreadv[fd, (iov, count)]
        => rreadv(
        fd: c_int, iov: *const iovec, count: c_int) -> isize;
    "C" Negative crate::rsocket::rrecv[fd, (to, len), flags]
        => rrecv(
        fd: c_int, to: *mut c_void, len: usize, flags: c_int) -> isize;
    "C" Negative crate::rsocket::rrecvfrom[fd, (to, len), flags, (address, addr_len)]
        => rrecvfrom(
        fd: c_int, to: *mut c_void, len: usize, flags: c_int, address: *mut sockaddr,
        addr_len: *mut socklen_t) -> isize;
    "C" Negative crate::rsocket::rrecvmsg => rrecvmsg(
        fd: c_int, msg: *mut msghdr, flags: c_int) -> isize;
    "C" Negative crate::rsocket::rselect[
        count, read.cast::<FdSet>(), write.cast::<FdSet>(), except.cast::<FdSet>(), limit]
        => rselect(
        count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set,
        limit: *mut timeval) -> c_int;
    "C" Negative crate::rsocket::rsend[fd, (from, len), flags]
        => rsend(
        fd: c_int, from: *const c_void, len: usize, flags: c_int) -> isize;
    "C" Negative crate::rsocket::rsendmsg => rsendmsg(
        fd: c_int, msg: *const msghdr, flags: c_int) -> isize;
    "C" Negative crate::rsocket::rsendto[fd, (from, len), flags, (addr, addr_len)]
        => rsendto(
        fd: c_int, from: *const c_void, len: usize, flags: c_int, addr: *const sockaddr,
        addr_len: socklen_t) -> isize;
    "C" Negative crate::rsocket::rsetsockopt[fd, level, name, (value, len)]
        => rsetsockopt(
        fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> c_int;
    "C" Negative crate::rsocket::rshutdown => rshutdown(fd: c_int, how: c_int) -> c_int;
    "C" Negative crate::rsocket::rsocket => rsocket(
        domain: c_int, kind: c_int, protocol: c_int) -> c_int;
    "C" Negative crate::rsocket::rwrite[fd, (from, len)]
        => rwrite(
        fd: c_int, from: *const c_void, len: usize) -> isize;
    "C" Negative crate::rsocket::rwritev[fd, (iov, count)]
        => rwritev(
        fd: c_int, iov: *const iovec, count: c_int) -> isize;
}
