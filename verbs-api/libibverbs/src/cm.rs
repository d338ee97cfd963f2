//! The connection manager functions that `librdmacm.so.1` calls in this library, next to the
//! engine. Each has the name of the public function, because diagnostics print it.

use std::{
    ffi::{c_int, c_void},
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6},
    ptr, slice,
    time::Duration,
};

use libc::{pollfd, sockaddr_in, sockaddr_in6, sockaddr_storage};
use rocade_abi::{
    AF_IB, ROCADE_CM_PRIVATE_LEN, ROCADE_CM_VERSION, ibv_ah_attr, ibv_context, ibv_cq, ibv_ece,
    ibv_path_data, ibv_qp_attr, rdma_conn_param, rocade_cm_channel, rocade_cm_event, rocade_cm_id,
    rocade_cm_ops, rocade_cm_route, sockaddr_ib,
};
use rocade_emulator::{
    AddressVector, Gid, Pkey, QpCap, QpState, QpType, Qpn,
    cm::{
        CmAddr, CmEvent, CmEventKind, CmId, CmParam, ConnParam, Ece, IbAddr, PathHint, PortSpace,
        RejReason, ServiceId,
    },
};

use crate::{
    args::{
        Address, Buffer, Handle, In, InOut, Last, Out, Sockaddr,
        slot::{self, combined},
        zeroed,
    },
    cm_channel::{self, rdma_create_event_channel, rdma_destroy_event_channel, rdma_get_cm_event},
    ffi::{self, Errno, int_data_verb, int_verb, neg_verb},
    handle::{CHandle, objects},
    process,
    qp_attr::{address_to_c, attr_to_c},
    trace::{remote, sink},
};

type IdObject = CHandle<rocade_cm_id, CmId>;

objects! {
    rocade_cm_id: rocade_cm_id, CmId;
}

/// The option levels `RDMA_OPTION_ID` and `RDMA_OPTION_IB`.
const LEVEL_ID: c_int = 0;
const LEVEL_IB: c_int = 1;
/// `RDMA_OPTION_IB_PATH`.
const OPTION_PATH: c_int = 1;
/// `ibv_path_data.flags` of a path for CM messages and data, in both directions.
const PATH_FLAGS: u32 = 1 | 1 << 1 | 1 << 3 | 1 << 5;
/// The options `RDMA_OPTION_ID_*`.
const OPTION_TOS: c_int = 0;
const OPTION_REUSEADDR: c_int = 1;
const OPTION_AFONLY: c_int = 2;
const OPTION_ACK_TIMEOUT: c_int = 3;

static OPS: rocade_cm_ops = rocade_cm_ops {
    version: ROCADE_CM_VERSION,
    generation,
    is_removed: slot::of_1(is_removed),
    settle_thread,
    trace_is_on,
    trace_begin: remote::trace_begin,
    trace_end: remote::trace_end,
    poll,
    req_notify_to_poll: slot::of_1(req_notify_to_poll),
    channel_new: slot::of_2(rdma_create_event_channel),
    channel_free: slot::of_1(rdma_destroy_event_channel),
    channel_get_event: slot::of_2_unwind(rdma_get_cm_event),
    id_new: slot::of_5(rdma_create_id),
    id_destroy: slot::of_1(rdma_destroy_id),
    id_free: slot::of_1(id_free),
    id_bind: slot::of_2(rdma_bind_addr),
    id_resolve_addr: slot::of_4(rdma_resolve_addr),
    id_resolve_route: slot::of_1(rdma_resolve_route),
    id_listen: slot::of_2(rdma_listen),
    id_connect: slot::of_2(rdma_connect),
    id_establish: slot::of_1(rdma_establish),
    id_accept: slot::of_3(rdma_accept),
    id_reject: c_reject,
    id_disconnect: slot::of_1(rdma_disconnect),
    id_notify: slot::of_1(rdma_notify),
    id_write_event: slot::of_4(rdma_write_cm_event),
    id_qp_attr: slot::of_3(rdma_init_qp_attr),
    id_set_option: c_set_option,
    id_set_ece: slot::of_2(rdma_set_local_ece),
    id_remote_ece: slot::of_2(rdma_get_remote_ece),
    id_migrate: slot::of_3(rdma_migrate_id),
    id_join: slot::of_3(rdma_join_multicast),
    id_leave: slot::of_2(rdma_leave_multicast),
    id_route: slot::of_2(rdma_route),
};

/// Returns the function table for `librdmacm.so.1`.
pub(crate) extern "C" fn rocade_cm() -> *const rocade_cm_ops {
    &raw const OPS
}

extern "C" fn trace_is_on() -> bool {
    sink::is_on()
}

extern "C" fn settle_thread() {
    rocade_emulator::settle_thread();
}

/// # Safety
/// `fds` must have `count` entries, or none if that is 0.
unsafe extern "C" fn poll(fds: *mut pollfd, count: usize, limit_ns: i64) -> c_int {
    neg_verb(|| {
        let fds = if count == 0 {
            &mut []
        } else {
            // SAFETY: by contract as many entries.
            unsafe { slice::from_raw_parts_mut(fds, count) }
        };
        let limit = u64::try_from(limit_ns).ok().map(Duration::from_nanos);
        Ok(
            match process::host()?.engine().poll_descriptors(fds, limit) {
                Ok(ready) => c_int::try_from(ready).unwrap_or(c_int::MAX),
                Err(error) => -error.raw_os_error().unwrap_or(libc::EIO),
            },
        )
    })
}

extern "C" fn req_notify_to_poll(cq: Handle<'_, ibv_cq>) -> c_int {
    int_data_verb(|| {
        let object = cq.get()?;
        Ok(object.inner().cq().arm(false)?)
    })
}

extern "C" fn is_removed(context: Handle<'_, ibv_context>) -> bool {
    let context = context.get();
    context.is_ok_and(|context| context.context().check_present().is_err())
}

extern "C" fn generation() -> u32 {
    process::generation().number()
}

fn id(id: Handle<'_, rocade_cm_id>) -> Result<&CmId, Errno> {
    Ok(id.get()?.inner())
}

/// Converts an address from C.
fn address(addr: Address<'_>) -> Result<CmAddr, Errno> {
    match addr.read()? {
        Sockaddr::V4(v4) => {
            let ip = Ipv4Addr::from_bits(u32::from_be(v4.sin_addr.s_addr));
            Ok(CmAddr::Ip(
                SocketAddrV4::new(ip, u16::from_be(v4.sin_port)).into(),
            ))
        }
        Sockaddr::V6(v6) => {
            let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
            let port = u16::from_be(v6.sin6_port);
            let v6 = SocketAddrV6::new(ip, port, v6.sin6_flowinfo, v6.sin6_scope_id);
            Ok(CmAddr::Ip(v6.into()))
        }
        Sockaddr::Ib(ib) => Ok(CmAddr::Ib(IbAddr {
            gid: Gid::new(ib.sib_addr),
            service_id: ServiceId::new(u64::from_be(ib.sib_sid)),
            service_mask: u64::from_be(ib.sib_sid_mask),
        })),
        Sockaddr::Other => Err(Errno(libc::EAFNOSUPPORT)),
    }
}

/// Converts an address to C.
fn storage(addr: Option<SocketAddr>) -> sockaddr_storage {
    let address = match addr {
        Some(SocketAddr::V4(v4)) => {
            let mut c: sockaddr_in = zeroed();
            c.sin_family = u16::try_from(libc::AF_INET).unwrap_or(0);
            c.sin_port = v4.port().to_be();
            c.sin_addr.s_addr = v4.ip().to_bits().to_be();
            Sockaddr::V4(c)
        }
        Some(SocketAddr::V6(v6)) => {
            let mut c: sockaddr_in6 = zeroed();
            c.sin6_family = u16::try_from(libc::AF_INET6).unwrap_or(0);
            c.sin6_port = v6.port().to_be();
            c.sin6_addr.s6_addr = v6.ip().octets();
            c.sin6_scope_id = v6.scope_id();
            Sockaddr::V6(c)
        }
        None => Sockaddr::Other,
    };
    address.to_storage().unwrap_or_else(zeroed)
}

/// Converts an address to a C `sockaddr_ib`.
fn ib_storage(addr: Option<SocketAddr>, service: ServiceId) -> sockaddr_storage {
    let Some(addr) = addr else {
        return storage(None);
    };
    let ib = sockaddr_ib {
        sib_family: u16::try_from(AF_IB).unwrap_or(0),
        sib_pkey: Pkey::DEFAULT.get().to_be(),
        sib_flowinfo: 0,
        sib_addr: gid_octets(addr),
        sib_sid: service.get().to_be(),
        sib_sid_mask: u64::MAX,
        sib_scope_id: 0,
    };
    Sockaddr::Ib(ib).to_storage().unwrap_or_else(zeroed)
}

/// Returns the GID of an address, or 0 for a wildcard address.
fn gid_octets(addr: SocketAddr) -> [u8; 16] {
    if addr.ip().is_unspecified() {
        return [0; 16];
    }
    Gid::from_ip(addr.ip()).octets()
}

fn conn_param(param: In<'_, rdma_conn_param>) -> Result<ConnParam, Errno> {
    let param = param.read()?;
    let private_data = param.private().to_vec();
    Ok(ConnParam {
        private_data,
        responder_resources: param.responder_resources,
        initiator_depth: param.initiator_depth,
        flow_control: param.flow_control != 0,
        retry_count: param.retry_count,
        rnr_retry_count: param.rnr_retry_count,
        srq: param.srq != 0,
        qp_num: Qpn::new(param.qp_num),
    })
}

pub(crate) fn event_to_c(event: CmEvent) -> Result<rocade_cm_event, Errno> {
    let mut c = rocade_cm_event {
        kind: event.kind.code(),
        status: event.status,
        cookie: event.cookie,
        new_id: ptr::null_mut(),
        is_ud: false,
        private_data_len: 0,
        responder_resources: 0,
        initiator_depth: 0,
        flow_control: 0,
        retry_count: 0,
        rnr_retry_count: 0,
        srq: 0,
        qp_num: 0,
        qkey: 0,
        argument: 0,
        ah_attr: no_address(),
        private_data: [0; ROCADE_CM_PRIVATE_LEN],
    };
    let mut private = |data: &[u8]| {
        let len = data.len().min(ROCADE_CM_PRIVATE_LEN);
        c.private_data[..len].copy_from_slice(&data[..len]);
        c.private_data_len = u8::try_from(len).unwrap_or(u8::MAX);
    };
    match &event.param {
        CmParam::None => {}
        CmParam::User(argument) => c.argument = *argument,
        CmParam::Conn(param) => {
            private(&param.private_data);
            c.responder_resources = param.responder_resources;
            c.initiator_depth = param.initiator_depth;
            c.flow_control = param.flow_control.into();
            c.retry_count = param.retry_count;
            c.rnr_retry_count = param.rnr_retry_count;
            c.srq = param.srq.into();
            c.qp_num = param.qp_num.get();
        }
        CmParam::Ud(param) => {
            private(&param.private_data);
            c.is_ud = true;
            c.qp_num = param.qp_num.get();
            c.qkey = param.qkey.get();
            c.ah_attr = address_to_c(&param.address);
        }
    }
    if let Some(new) = event.new_id {
        c.new_id = new_id(new)?;
    }
    Ok(c)
}

fn no_address() -> ibv_ah_attr {
    address_to_c(&AddressVector::default())
}

fn new_id(id: CmId) -> Result<*mut rocade_cm_id, Errno> {
    IdObject::create(|_| Ok((rocade_cm_id { _opaque: [] }, id)))
}

extern "C" fn rdma_create_id(
    channel: Handle<'_, rocade_cm_channel>,
    port_space: u32,
    qp_type: u32,
    cookie: u64,
    id: Out<'_, *mut rocade_cm_id>,
) -> c_int {
    int_verb(|| {
        let channel = cm_channel::borrow(channel)?;
        let port_space = PortSpace::from_code(port_space).ok_or(Errno::INVAL)?;
        let mut types = QpType::ALL.into_iter();
        let qp_type = types
            .find(|kind| kind.code() == qp_type)
            .ok_or(Errno::INVAL)?;
        let object = new_id(CmId::new(channel, port_space, qp_type, cookie)?)?;
        id.write(object)
    })
}

extern "C" fn rdma_destroy_id(c: Handle<'_, rocade_cm_id>) -> u64 {
    let mut reported = 0;
    int_verb(|| {
        match id(c) {
            Ok(id) => reported = id.destroy(),
            // Inherited from the parent process: left alone.
            Err(Errno::NODEV) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    });
    reported
}

extern "C" fn id_free(id: Last<'_, rocade_cm_id>) {
    int_verb(|| id.destroy(|_| Ok(())));
}

extern "C" fn rdma_bind_addr(c: Handle<'_, rocade_cm_id>, addr: Address<'_>) -> c_int {
    int_verb(|| {
        let id = id(c)?;
        Ok(id.bind(address(addr)?)?)
    })
}

extern "C" fn rdma_resolve_addr(
    c: Handle<'_, rocade_cm_id>,
    src: Address<'_>,
    dst: Address<'_>,
    timeout_ms: c_int,
) -> c_int {
    /// Longer than any program runs.
    const EVER: Duration = Duration::from_secs(1 << 32);
    int_verb(|| {
        let id = id(c)?;
        let timeout = u64::try_from(timeout_ms).map_or(EVER, Duration::from_millis);
        let src = match src.some() {
            Some(src) => Some(address(src)?),
            None => None,
        };
        Ok(id.resolve_addr(src, address(dst)?, timeout)?)
    })
}

extern "C" fn rdma_resolve_route(c: Handle<'_, rocade_cm_id>) -> c_int {
    int_verb(|| Ok(id(c)?.resolve_route()?))
}

extern "C" fn rdma_listen(c: Handle<'_, rocade_cm_id>, backlog: c_int) -> c_int {
    int_verb(|| Ok(id(c)?.listen(backlog)?))
}

extern "C" fn rdma_connect(c: Handle<'_, rocade_cm_id>, param: In<'_, rdma_conn_param>) -> c_int {
    int_verb(|| {
        let id = id(c)?;
        Ok(id.connect(&conn_param(param)?)?)
    })
}

extern "C" fn rdma_establish(c: Handle<'_, rocade_cm_id>) -> c_int {
    int_verb(|| Ok(id(c)?.establish()?))
}

extern "C" fn rdma_accept(
    c: Handle<'_, rocade_cm_id>,
    cookie: u64,
    param: In<'_, rdma_conn_param>,
) -> c_int {
    int_verb(|| {
        let id = id(c)?;
        Ok(id.accept(cookie, &conn_param(param)?)?)
    })
}

combined! {
    fn c_reject(c: *mut rocade_cm_id, reason: u16, data: *const c_void, len: u8) -> c_int
        = rdma_reject [c, reason, (data, len)];
    fn c_set_option(
        c: *mut rocade_cm_id, level: c_int, option: c_int, value: *const c_void, len: usize
    ) -> c_int = rdma_set_option [c, level, option, (value, len)];
}

fn rdma_reject(c: Handle<'_, rocade_cm_id>, reason: u16, data: Buffer<'_>) -> c_int {
    int_verb(|| {
        let id = id(c)?;
        Ok(id.reject(RejReason::from_code(reason), &data.to_vec())?)
    })
}

extern "C" fn rdma_disconnect(c: Handle<'_, rocade_cm_id>) -> c_int {
    int_verb(|| Ok(id(c)?.disconnect()?))
}

extern "C" fn rdma_notify(c: Handle<'_, rocade_cm_id>) -> c_int {
    int_verb(|| Ok(id(c)?.notify_established()?))
}

extern "C" fn rdma_write_cm_event(
    c: Handle<'_, rocade_cm_id>,
    kind: u32,
    status: c_int,
    argument: u64,
) -> c_int {
    int_verb(|| {
        let kinds = [CmEventKind::User, CmEventKind::AddrinfoResolved];
        let kind = kinds.into_iter().find(|known| known.code() == kind);
        let kind = kind.ok_or(Errno::INVAL)?;
        Ok(id(c)?.write_event(kind, status, argument)?)
    })
}

extern "C" fn rdma_init_qp_attr(
    c: Handle<'_, rocade_cm_id>,
    attr: InOut<'_, ibv_qp_attr>,
    mask: Out<'_, c_int>,
) -> c_int {
    int_verb(|| {
        let id = id(c)?;
        let wanted = attr.read()?.qp_state;
        let state = [QpState::Init, QpState::Rtr, QpState::Rts]
            .into_iter()
            .find(|state| state.code() == wanted)
            .ok_or(Errno::INVAL)?;
        let (found, bits) = id.qp_attr(state)?;
        attr.write(attr_to_c(&found, &QpCap::default()))?;
        mask.write(bits.bits().cast_signed())
    })
}

fn rdma_set_option(
    c: Handle<'_, rocade_cm_id>,
    level: c_int,
    option: c_int,
    value: Buffer<'_>,
) -> c_int {
    int_verb(|| {
        let id = id(c)?;
        match (level, option) {
            (LEVEL_ID, _) => {}
            (LEVEL_IB, OPTION_PATH) => return Ok(id.set_path(path(value)?)?),
            _ => return Err(Errno(libc::ENOSYS)),
        }
        let byte = || match value.len() {
            1 => value.get::<u8>(0).ok_or(Errno::INVAL),
            _ => Err(Errno::INVAL),
        };
        let flag = || match value.len() {
            4 => value
                .get::<c_int>(0)
                .map(|flag| flag != 0)
                .ok_or(Errno::INVAL),
            _ => Err(Errno::INVAL),
        };
        match option {
            OPTION_TOS => id.set_tos(byte()?)?,
            OPTION_REUSEADDR => id.set_reuse(flag()?)?,
            OPTION_AFONLY => id.set_af_only(flag()?)?,
            OPTION_ACK_TIMEOUT => id.set_ack_timeout(byte()?)?,
            _ => return Err(Errno(libc::ENOSYS)),
        }
        Ok(())
    })
}

/// Returns the first path whose flags say that it serves CM messages and data in both directions.
//= LRC-14
fn path(value: Buffer<'_>) -> Result<PathHint, Errno> {
    let size = size_of::<ibv_path_data>();
    if value.is_null() || value.len() == 0 || !value.len().is_multiple_of(size) {
        return Err(Errno::INVAL);
    }
    let paths = (0..).map_while(|index| value.get::<ibv_path_data>(index));
    let mut paths = paths.filter(|path| path.flags == PATH_FLAGS);
    let path = paths.next().ok_or(Errno::INVAL)?;
    let [first, second, third, hop_limit] = path.flowlabel_hoplimit.to_ne_bytes();
    Ok(PathHint {
        traffic_class: path.tclass,
        flow_label: u32::from_be_bytes([0, first, second, third]) & 0xf_ffff,
        hop_limit,
    })
}

extern "C" fn rdma_set_local_ece(c: Handle<'_, rocade_cm_id>, ece: In<'_, ibv_ece>) -> c_int {
    int_verb(|| {
        let id = id(c)?;
        let given = ece.read()?;
        Ok(id.set_local_ece(Ece {
            vendor_id: given.vendor_id,
            options: given.options,
        })?)
    })
}

extern "C" fn rdma_get_remote_ece(c: Handle<'_, rocade_cm_id>, ece: Out<'_, ibv_ece>) -> c_int {
    int_verb(|| {
        let found = id(c)?.remote_ece()?;
        let value = ibv_ece {
            vendor_id: found.vendor_id,
            options: found.options,
            comp_mask: 0,
        };
        ece.write(value)
    })
}

extern "C" fn rdma_migrate_id(
    c: Handle<'_, rocade_cm_id>,
    channel: Handle<'_, rocade_cm_channel>,
    reported: Out<'_, u64>,
) -> c_int {
    int_verb(|| {
        let id = id(c)?;
        let channel = cm_channel::borrow(channel)?;
        let count = id.migrate(channel)?;
        reported.write(count)
    })
}

extern "C" fn rdma_join_multicast(
    c: Handle<'_, rocade_cm_id>,
    group: Address<'_>,
    token: u64,
) -> c_int {
    int_verb(|| {
        let id = id(c)?;
        let group = address(group).map_err(|_| Errno::INVAL)?;
        Ok(id.join(group, token)?)
    })
}

extern "C" fn rdma_leave_multicast(c: Handle<'_, rocade_cm_id>, token: u64) -> c_int {
    int_verb(|| Ok(id(c)?.leave(token)?))
}

extern "C" fn rdma_route(c: Handle<'_, rocade_cm_id>, route: Out<'_, rocade_cm_route>) -> c_int {
    int_verb(|| {
        let id = id(c)?;
        let addresses = id.addresses();
        let devices = process::host()?.devices();
        let device = addresses.device.as_ref().and_then(|name| {
            let mut devices = devices.iter();
            devices.position(|device| device.info().name == *name)
        });
        let gid = |addr: Option<SocketAddr>| addr.map_or([0; 16], gid_octets);
        let [src, dst] = match addresses.services {
            None => [addresses.local, addresses.peer].map(storage),
            Some([own, peers]) => [
                ib_storage(addresses.local, own),
                ib_storage(addresses.peer, peers),
            ],
        };
        let address_vector = id.address_vector().unwrap_or_default();
        let value = rocade_cm_route {
            src,
            dst,
            device: device.map_or(-1, ffi::to_int),
            port_num: id.port_num()?,
            mtu: id.mtu()?.code(),
            traffic_class: address_vector.traffic_class,
            hop_limit: address_vector.hop_limit,
            packet_life_time: id.packet_life_time()?,
            flow_label: address_vector.flow_label,
            sgid: gid(addresses.local),
            dgid: gid(addresses.peer),
        };
        route.write(value)
    })
}
