//! Address resolution: `rdma_getaddrinfo` and `rdma_freeaddrinfo`.

use std::{
    ffi::{CStr, c_int, c_void},
    net::Ipv6Addr,
    ptr,
};

use libc::addrinfo;
use rocade_abi::{AF_IB, IBV_QPT_RC, IBV_QPT_UD, rdma_addrinfo, rdma_cm_id, sockaddr_ib};

use crate::{
    args::{
        Buffer, FromC, Handle, In, Last, New, Out, Sockaddr, Text, View, bytes_of, for_c, zeroed,
    },
    event,
    ffi::{Errno, int_call, set_errno, void_call},
    id::{PS_TCP, PS_UDP, ib_address},
};

/// Asks for the address of the passive (listening) side.
pub(crate) const RAI_PASSIVE: c_int = 1;
const RAI_NUMERICHOST: c_int = 2;
const RAI_FAMILY: c_int = 8;
/// Asks the subnet administrator.
const RAI_SA: c_int = 16;

/// Copies bytes into memory that free(3) releases. Returns NULL for none.
fn copy(from: Buffer<'_>) -> *mut c_void {
    match from.to_vec() {
        none if none.is_empty() => ptr::null_mut(),
        bytes => for_c(&bytes).cast(),
    }
}

/// `rdma_getaddrinfo`: returns 0, an `EAI_*` code, or -1 with errno set.
//= LRC-13
pub(crate) extern "C" fn rdma_getaddrinfo(
    node: Text<'_>,
    service: Text<'_>,
    hints: In<'_, rdma_addrinfo>,
    res: Out<'_, *mut rdma_addrinfo>,
) -> c_int {
    let hints = hints.optional();
    if res.is_null() || (node.get().is_none() && service.get().is_none() && hints.is_none()) {
        set_errno(libc::EINVAL);
        return -1;
    }
    let mut info: rdma_addrinfo = zeroed();
    let rai = &mut info;
    let code = if node.get().is_none() && service.get().is_none() {
        from_hints(rai, hints.as_ref());
        0
    } else {
        look_up(rai, node, service, hints.as_ref())
    };
    if code != 0 {
        return code;
    }
    if let Some(hints) = &hints
        && rai.ai_src_len == 0
        && hints.ai_src_len > 0
    {
        set_src(rai, hints.src_bytes());
    }
    let made = for_c(&[info]);
    if made.is_null() {
        set_errno(libc::ENOMEM);
        return -1;
    }
    // Not NULL.
    let _ = res.write(made);
    0
}

/// Addresses that `rdma_resolve_addrinfo` has found.
pub(crate) struct Resolved(New<rdma_addrinfo>);

impl Drop for Resolved {
    fn drop(&mut self) {
        rdma_freeaddrinfo(self.0.take());
    }
}

/// `rdma_resolve_addrinfo`: resolves a name during the call, as `rdma_getaddrinfo` does, and queues
/// the event of its end.
///
/// EBUSY while the program has not taken the addresses of an earlier call. EOPNOTSUPP for names of
/// a subnet administrator, which Ethernet does not have. ENOENT if the name has no address.
pub(crate) extern "C" fn rdma_resolve_addrinfo(
    id: Handle<'_, rdma_cm_id>,
    node: Text<'_>,
    service: Text<'_>,
    hints: In<'_, rdma_addrinfo>,
) -> c_int {
    int_call(|| {
        let object = id.get()?;
        let flags = hints.optional().map_or(0, |hints| hints.ai_flags);
        if flags & RAI_SA != 0 {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        if object.state.lock().resolved.is_some() {
            return Err(Errno(libc::EBUSY));
        }
        let mut found = ptr::null_mut();
        match rdma_getaddrinfo(node, service, hints, Out::of(&mut found)) {
            0 => {}
            -1 | libc::EAI_SYSTEM => return Err(Errno::last()),
            libc::EAI_MEMORY => return Err(Errno(libc::ENOMEM)),
            libc::EAI_AGAIN => return Err(Errno(libc::EAGAIN)),
            _ => return Err(Errno(libc::ENOENT)),
        }
        // SAFETY: the list of `rdma_getaddrinfo`, which only this value has.
        let found = Resolved(unsafe { New::of(found) });
        // Another thread may have been faster.
        {
            let mut state = object.state.lock();
            if state.resolved.is_some() {
                return Err(Errno(libc::EBUSY));
            }
            state.resolved = Some(found);
        }
        let written = object.raw.write_event(event::ADDRINFO_RESOLVED, 0, 0);
        if written.is_err() {
            object.state.lock().resolved = None;
        }
        written?;
        object.complete()
    })
}

/// `rdma_query_addrinfo`: gives the addresses of `rdma_resolve_addrinfo` to the program, which
/// frees them. ENOENT if there are none.
pub(crate) extern "C" fn rdma_query_addrinfo(
    id: Handle<'_, rdma_cm_id>,
    info: Out<'_, *mut rdma_addrinfo>,
) -> c_int {
    int_call(|| {
        let object = id.get()?;
        if info.is_null() {
            return Err(Errno::INVAL);
        }
        let resolved = object.state.lock().resolved.take();
        let mut resolved = resolved.ok_or(Errno(libc::ENOENT))?;
        info.write(resolved.0.take().as_ptr())
    })
}

fn from_hints(rai: &mut rdma_addrinfo, hints: Option<&View<'_, rdma_addrinfo>>) {
    let Some(hints) = hints else { return };
    rai.ai_flags = hints.ai_flags;
    rai.ai_family = hints.ai_family;
    rai.ai_qp_type = hints.ai_qp_type;
    rai.ai_port_space = hints.ai_port_space;
    if hints.ai_dst_len > 0 {
        set_dst(rai, hints.dst_bytes());
    }
}

fn set_src(rai: &mut rdma_addrinfo, addr: Buffer<'_>) {
    rai.ai_src_addr = copy(addr).cast();
    let len = u32::try_from(addr.len()).unwrap_or(0);
    rai.ai_src_len = if rai.ai_src_addr.is_null() { 0 } else { len };
}

fn set_dst(rai: &mut rdma_addrinfo, addr: Buffer<'_>) {
    rai.ai_dst_addr = copy(addr).cast();
    let len = u32::try_from(addr.len()).unwrap_or(0);
    rai.ai_dst_len = if rai.ai_dst_addr.is_null() { 0 } else { len };
}

/// Returns true if the hints ask for `AF_IB` addresses. A GID looks like an IPv6 address, and is
/// looked up like one.
const fn wants_gids(hints: &rdma_addrinfo) -> bool {
    hints.ai_flags & RAI_FAMILY != 0 && hints.ai_family == AF_IB
}

/// Converts the hints to those of getaddrinfo(3).
fn plain_hints(hints: Option<&rdma_addrinfo>) -> addrinfo {
    let mut plain: addrinfo = zeroed();
    plain.ai_socktype = libc::SOCK_STREAM;
    let Some(hints) = hints else { return plain };
    if hints.ai_flags & RAI_PASSIVE != 0 {
        plain.ai_flags |= libc::AI_PASSIVE;
    }
    if hints.ai_flags & RAI_NUMERICHOST != 0 {
        plain.ai_flags |= libc::AI_NUMERICHOST;
    }
    if wants_gids(hints) {
        plain.ai_family = libc::AF_INET6;
        plain.ai_flags |= libc::AI_V4MAPPED;
    } else if hints.ai_flags & RAI_FAMILY != 0 {
        plain.ai_family = hints.ai_family;
    }
    let is = |value: c_int, code: u32| u32::try_from(value) == Ok(code);
    if is(hints.ai_port_space, PS_UDP) || is(hints.ai_qp_type, IBV_QPT_UD) {
        plain.ai_socktype = libc::SOCK_DGRAM;
    }
    plain
}

fn look_up(
    rai: &mut rdma_addrinfo,
    node: Text<'_>,
    service: Text<'_>,
    hints: Option<&View<'_, rdma_addrinfo>>,
) -> c_int {
    let hints = hints.map(|hints| &**hints);
    match Found::of(node, service, &plain_hints(hints)) {
        Ok(found) => {
            if let Some((first, addr, name)) = found.first() {
                take(rai, &first, (addr, name), hints);
            }
            0
        }
        Err(code) => code,
    }
}

/// The answer of getaddrinfo(3).
struct Found(*mut addrinfo);

impl Found {
    /// Looks up an address.
    ///
    /// # Errors
    /// An `EAI_*` code.
    fn of(node: Text<'_>, service: Text<'_>, hints: &addrinfo) -> Result<Self, c_int> {
        let mut found = ptr::null_mut();
        // SAFETY: the names are NULL or terminated strings, and `found` is writable. The hints name
        // nothing.
        let code =
            unsafe { libc::getaddrinfo(node.as_ptr(), service.as_ptr(), hints, &raw mut found) };
        match code {
            0 => Ok(Self(found)),
            code => Err(code),
        }
    }

    /// Returns the first entry, its address and its name.
    fn first(&self) -> Option<(addrinfo, Buffer<'_>, Text<'_>)> {
        // SAFETY: an answer has at least one entry, which lives until it is freed, with an address
        // of the length that it says and a name that is NULL or a terminated string.
        unsafe {
            let first = *self.0.as_ref()?;
            let addr = FromC::from_c((first.ai_addr, first.ai_addrlen));
            Some((first, addr, Text::new(first.ai_canonname)))
        }
    }
}

impl Drop for Found {
    fn drop(&mut self) {
        // SAFETY: from getaddrinfo(3), and not used any more.
        unsafe { libc::freeaddrinfo(self.0) };
    }
}

fn take(
    rai: &mut rdma_addrinfo,
    first: &addrinfo,
    (addr, name): (Buffer<'_>, Text<'_>),
    hints: Option<&rdma_addrinfo>,
) {
    let code = |code: u32| c_int::try_from(code).unwrap_or(0);
    let is_passive = hints.is_some_and(|hints| hints.ai_flags & RAI_PASSIVE != 0);
    rai.ai_flags = hints.map_or(0, |hints| hints.ai_flags);
    rai.ai_family = first.ai_family;
    let (qp_type, port_space) = if first.ai_socktype == libc::SOCK_DGRAM {
        (code(IBV_QPT_UD), code(PS_UDP))
    } else {
        (code(IBV_QPT_RC), code(PS_TCP))
    };
    let given = |value: Option<c_int>| value.filter(|value| *value != 0);
    rai.ai_qp_type = given(hints.map(|hints| hints.ai_qp_type)).unwrap_or(qp_type);
    rai.ai_port_space = given(hints.map(|hints| hints.ai_port_space)).unwrap_or(port_space);
    let own = as_gid(addr, hints, rai.ai_port_space);
    let addr = match &own {
        Some(ib) => {
            rai.ai_family = AF_IB;
            Buffer::of(bytes_of(ib))
        }
        None => addr,
    };
    let name = name.get().map(CStr::to_bytes_with_nul);
    let name = copy(name.map_or(Buffer::NONE, Buffer::of)).cast();
    if is_passive {
        set_src(rai, addr);
        rai.ai_src_canonname = name;
    } else {
        set_dst(rai, addr);
        rai.ai_dst_canonname = name;
    }
}

/// Converts the address to a `sockaddr_ib` if the hints ask for `AF_IB`.
fn as_gid(
    addr: Buffer<'_>,
    hints: Option<&rdma_addrinfo>,
    port_space: c_int,
) -> Option<sockaddr_ib> {
    match addr.sockaddr() {
        Some(Sockaddr::V6(v6)) if hints.is_some_and(wants_gids) => {
            let gid = Ipv6Addr::from(v6.sin6_addr.s6_addr);
            Some(ib_address(gid, u16::from_be(v6.sin6_port), port_space))
        }
        _ => None,
    }
}

/// `rdma_freeaddrinfo`.
pub(crate) extern "C" fn rdma_freeaddrinfo(res: Last<'_, rdma_addrinfo>) {
    void_call(|| {
        let mut next = res.as_ptr();
        // SAFETY: by contract a list from `rdma_getaddrinfo`.
        while let Some(info) = unsafe { next.as_ref() } {
            let this = next;
            let parts = [
                info.ai_route,
                info.ai_src_addr.cast(),
                info.ai_dst_addr.cast(),
                info.ai_src_canonname.cast(),
                info.ai_dst_canonname.cast(),
                info.ai_connect,
                this.cast(),
            ];
            next = info.ai_next;
            for part in parts {
                // SAFETY: NULL, or allocated by calloc(3), and not used any more.
                unsafe { libc::free(part) };
            }
        }
        Ok(())
    });
}
