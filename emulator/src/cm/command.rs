//! The operations of applications on their connections.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, OnceLock};

use rocade_transport::cm::{CmError, CmRoute, private_data, refusal};
use rocade_transport::{QpAttr, QpAttrMask, QpState, QpType, Time};
use rocade_wire::mad::{
    CommId, IpCmHeader, RejReason, Rep, Req, ServiceId, SidrRep, SidrReq, SidrStatus,
};
use rocade_wire::{Gid, Pkey, Psn, Qpn};

use super::CmAddresses;
use super::address::{CmAddr, PathHint};
use super::event::{CmChannel, CmEventKind, CmParam, ConnParam, QueuedEvent, UdParam};
use super::host::CmCore;
use super::id::{IdCore, IdKey, IdState, MAX_CM_RETRIES, PortSpace, RESPONSE_TIMEOUT, UDP_QKEY};
use super::resolve::{hca_with, stands_for_all, unspecified, with_port};
use crate::engine::Nic;
use crate::error::VerbsError;
use crate::faults::Verb;
use crate::gsi::port_range;
use crate::gsi::services::{Binding, BoundTo, Conflict, port_of};
use crate::hca::Hca;

/// Maximum number of pending requests, and the default backlog.
//= LRC-15
const MAX_BACKLOG: usize = 1_024;

/// One end of a connection, or a listener (`rdma_cm_id`). Dropping it destroys it.
#[derive(Debug)]
#[doc(alias = "rdma_cm_id")]
pub struct CmId {
    pub(super) engine: Arc<Nic>,
    pub(super) key: IdKey,
}

impl Drop for CmId {
    fn drop(&mut self) {
        self.destroy();
    }
}

impl From<CmError> for VerbsError {
    fn from(_: CmError) -> Self {
        Self::InvalidArgument("the state of the connection does not allow this")
    }
}

pub(super) fn wrong_state<T>() -> Result<T, VerbsError> {
    Err(VerbsError::InvalidArgument(
        "the state of the ID does not allow this",
    ))
}

fn check_private(data: &[u8], most: usize) -> Result<(), VerbsError> {
    if data.len() > most {
        return Err(VerbsError::InvalidArgument("private_data_len"));
    }
    Ok(())
}

impl CmId {
    pub(super) fn of(engine: &Arc<Nic>, key: IdKey) -> Self {
        Self {
            engine: Arc::clone(engine),
            key,
        }
    }

    /// Makes an ID. `cookie` identifies it in its events.
    ///
    /// # Errors
    /// Those of joining the broker.
    #[doc(alias = "rdma_create_id")]
    pub fn new(
        channel: &CmChannel,
        port_space: PortSpace,
        qp_type: QpType,
        cookie: u64,
    ) -> Result<Self, VerbsError> {
        channel.engine.intercept(Verb::CreateId, "", None)?;
        let mut id = IdCore::new(Arc::clone(&channel.inner), port_space, qp_type);
        id.rq_psn = Psn::new(channel.engine.host.random_word());
        id.cookie = Some(cookie);
        let key = with_cm(&channel.engine, |core, _| core.add(id))?;
        Ok(Self::of(&channel.engine, key))
    }

    /// Applies the fault rules to a call for this ID. The caller holds no lock.
    ///
    /// # Errors
    /// [`VerbsError::Injected`]. `ENXIO` if the device of the ID was removed.
    pub(super) fn enter(&self, verb: Verb) -> Result<(), VerbsError> {
        let device = self.with_id(|id| match id.state {
            IdState::Removed => Err(id.removed()),
            _ => Ok(id.hca.as_ref().map(|hca| hca.config.name.clone())),
        });
        let device = match device {
            Err(error @ VerbsError::Io(_)) => return Err(error),
            device => device.ok().flatten().unwrap_or_default(),
        };
        self.engine.intercept(verb, &device, None)
    }

    fn with<R>(
        &self,
        f: impl FnOnce(&mut CmCore, IdKey, Time) -> Result<R, VerbsError>,
    ) -> Result<R, VerbsError> {
        let key = self.key;
        with_cm(&self.engine, |core, now| f(core, key, now))?
    }

    /// Changes an ID without sending anything to a peer.
    pub(super) fn with_id<R>(
        &self,
        f: impl FnOnce(&mut IdCore) -> Result<R, VerbsError>,
    ) -> Result<R, VerbsError> {
        self.engine.cm.inspect(|core| f(core.id(self.key)?))
    }

    /// The addresses and the device of the ID.
    #[must_use]
    pub fn addresses(&self) -> CmAddresses {
        let addresses = self.with_id(|id| {
            Ok(CmAddresses {
                local: id.src,
                peer: id.dst,
                device: id.hca.as_ref().map(|hca| hca.config.name.clone()),
                services: id.ib_services(),
            })
        });
        addresses.unwrap_or_default()
    }

    /// Returns true if this is a GID of the device that the ID is bound to.
    #[must_use]
    pub fn has_gid(&self, gid: Gid) -> bool {
        let is_own = self.with_id(|id| {
            let hca = id.hca.as_ref();
            Ok(hca.is_some_and(|hca| hca.has_address(gid.to_ip())))
        });
        is_own.unwrap_or(false)
    }

    /// Returns the address vector of the path to the peer.
    ///
    /// # Errors
    /// [`VerbsError::InvalidArgument`] if the ID was destroyed or has no peer yet, because its
    /// address is not resolved.
    pub fn address_vector(&self) -> Result<rocade_transport::AddressVector, VerbsError> {
        self.with_id(|id| id.address())
    }

    /// The number of the port that it is bound to, from 1. While it is not bound, that of the first
    /// port.
    ///
    /// # Errors
    /// [`VerbsError::InvalidArgument`] if the ID was destroyed.
    pub fn port_num(&self) -> Result<u8, VerbsError> {
        self.with_id(|id| Ok(id.port_num()))
    }

    /// The path MTU.
    ///
    /// # Errors
    /// [`VerbsError::InvalidArgument`] if the ID was destroyed.
    pub fn mtu(&self) -> Result<rocade_wire::Mtu, VerbsError> {
        self.with_id(|id| Ok(id.mtu()))
    }

    /// Code of the packet life time of the path.
    ///
    /// # Errors
    /// [`VerbsError::InvalidArgument`] if the ID was destroyed.
    pub fn packet_life_time(&self) -> Result<u8, VerbsError> {
        self.with_id(|id| Ok(id.packet_life().code()))
    }

    /// Binds to an address and a port. Port 0 means any port, and an unspecified address all
    /// addresses.
    ///
    /// # Errors
    /// [`VerbsError::NoDevice`] if no device has the address. `EADDRINUSE` if the port is in use.
    /// `EADDRNOTAVAIL` if it is, and one of both bindings is for all addresses.
    //= LRC-16
    #[doc(alias = "rdma_bind_addr")]
    pub fn bind(&self, addr: impl Into<CmAddr>) -> Result<(), VerbsError> {
        self.enter(Verb::BindAddr)?;
        let given = addr.into();
        let addr = given.socket();
        let hca = self.prepare_local(addr.ip())?;
        let (port_space, reuse, af_only) = self.with_id(|id| {
            if id.state != IdState::Idle {
                return wrong_state();
            }
            Ok((given.port_space(id.port_space)?, id.reuse, id.af_only))
        })?;
        if (1..1024).contains(&addr.port()) && !may_use_low_ports() {
            return Err(VerbsError::Io(io::Error::from_raw_os_error(libc::EACCES)));
        }
        let to = match addr.ip() {
            ip if !stands_for_all(&self.engine.host, ip) => BoundTo::Ip(ip),
            IpAddr::V4(_) => BoundTo::AnyV4,
            IpAddr::V6(_) if af_only => BoundTo::AnyV6,
            IpAddr::V6(_) => BoundTo::Any,
        };
        let wanted = Binding {
            service: port_space.service(addr.port()),
            to,
            reuse,
            listens: false,
        };
        let binding = self.reserve(wanted, addr.port() == 0)?;
        self.with_id(|id| {
            id.state = IdState::AddrBound;
            id.src = Some(with_port(addr, port_of(binding.service)));
            id.hca = hca;
            id.binding = Some(binding);
            id.ib = given.is_ib().then(|| ServiceId::new(0));
            Ok(())
        })
    }

    /// Opens the socket of a local address, or those of all.
    fn prepare_local(&self, ip: IpAddr) -> Result<Option<Arc<Hca>>, VerbsError> {
        if stands_for_all(&self.engine.host, ip) {
            return Ok(None);
        }
        let hca = hca_with(&self.engine.host, ip).ok_or(VerbsError::NoDevice)?;
        self.engine.endpoint_for(hca.local_addr(ip))?;
        Ok(Some(hca))
    }

    /// Reserves a port in this process and on the host.
    fn reserve(&self, wanted: Binding, any_port: bool) -> Result<Binding, VerbsError> {
        self.engine.attached_slot()?;
        let granted = self.engine.presence.reserve_on_host(wanted, any_port)?;
        let here = self.with(|core, key, _| {
            let binding = match granted {
                Some(binding) => core.services.bind(key, binding).then_some(binding),
                None if any_port => {
                    let (first, last) = port_range();
                    let start = self.engine.host.random_below(usize::from(last - first) + 1);
                    core.services.bind_any(key, wanted, (first, last), start)
                }
                None => core.services.bind(key, wanted).then_some(wanted),
            };
            Ok(binding.ok_or_else(|| core.services.conflict(&wanted)))
        })?;
        if here.is_err()
            && let Some(granted) = granted
        {
            self.engine.presence.release_on_host(granted);
        }
        here.map_err(in_use)
    }

    pub(super) fn find_route(&self) -> Result<(), VerbsError> {
        self.with_id(|id| {
            if id.state != IdState::AddrResolved {
                return wrong_state();
            }
            id.state = IdState::RouteResolved;
            Ok(())
        })
    }

    /// Sets the path that the application has resolved itself. The result is an event, as with
    /// [`CmId::resolve_route`].
    ///
    /// # Errors
    /// [`VerbsError::InvalidArgument`] if the address is not resolved.
    //= LRC-14
    #[doc(alias = "RDMA_OPTION_IB_PATH")]
    pub fn set_path(&self, hint: PathHint) -> Result<(), VerbsError> {
        self.resolve_route()?;
        self.with_id(|id| {
            id.tos = hint.traffic_class;
            id.hint = Some(hint);
            Ok(())
        })
    }

    /// Listens for requests. At most `backlog` requests are pending. A backlog of 0 or less means
    /// the maximum.
    ///
    /// # Errors
    /// `EADDRINUSE` or `EADDRNOTAVAIL` if there is another listener. Those of [`CmId::bind`].
    //= LRC-15
    #[doc(alias = "rdma_listen")]
    pub fn listen(&self, backlog: i32) -> Result<(), VerbsError> {
        self.enter(Verb::Listen)?;
        if self.with_id(|id| Ok(id.state))? == IdState::Idle {
            let any = unspecified(IdKey::ANY_IP);
            self.bind(SocketAddr::new(any, 0))?;
        }
        let binding = self.with_id(|id| match (id.state, id.binding) {
            (IdState::AddrBound, Some(binding)) => Ok(binding),
            _ => wrong_state(),
        })?;
        self.engine.open_all(binding.to)?;
        let backlog = usize::try_from(backlog).unwrap_or(0);
        let backlog = match backlog {
            0 => MAX_BACKLOG,
            some => some.min(MAX_BACKLOG),
        };
        self.with(|core, key, _| {
            if !core.services.listen(key, binding) {
                return Err(in_use(core.services.listen_conflict(key, &binding)));
            }
            let id = core.id(key)?;
            id.state = IdState::Listen;
            id.backlog = backlog;
            id.binding = Some(Binding {
                listens: true,
                reuse: false,
                ..binding
            });
            core.cm.listen(binding.service);
            Ok(())
        })?;
        if let Err(conflict) = self.engine.presence.listen_on_host(binding)? {
            self.with(|core, key, _| {
                core.stop_listening(key, binding);
                Ok(())
            })?;
            return Err(in_use(conflict));
        }
        Ok(())
    }

    /// Requests a connection, or the peer's datagram service. The result is an event.
    ///
    /// # Errors
    /// [`VerbsError::InvalidArgument`] if the route is not resolved, or the private data is too
    /// long.
    #[doc(alias = "rdma_connect")]
    pub fn connect(&self, param: &ConnParam) -> Result<(), VerbsError> {
        self.enter(Verb::Connect)?;
        self.with(|core, key, now| {
            let id = core.id(key)?;
            if id.state != IdState::RouteResolved {
                return wrong_state();
            }
            let (Some(src), Some(dst)) = (id.src, id.dst) else {
                return wrong_state();
            };
            let route = CmRoute {
                local: src.ip(),
                remote: dst.ip(),
            };
            //= CMA-02
            let header = IpCmHeader {
                src_port: src.port(),
                src: src.ip(),
                dst: dst.ip(),
            };
            let header = header.to_bytes();
            // With native InfiniBand addresses, the path contains the source address.
            let header = if id.ib.is_some() { &[] } else { &header[..] };
            let data = |room: usize| {
                check_private(&param.private_data, room - header.len())?;
                Ok::<_, VerbsError>([header, &param.private_data].concat())
            };
            let of_port = id.port_space.service(dst.port());
            let service = id.ib.unwrap_or(of_port);
            let conn = if id.is_datagram() {
                let req = SidrReq {
                    request_id: CommId::new(0),
                    pkey: Pkey::DEFAULT,
                    service_id: service,
                    private_data: private_data(&data(SidrReq::PRIVATE_LEN)?),
                };
                let interval = RESPONSE_TIMEOUT.as_ns();
                core.cm
                    .request_service(now, route, interval, MAX_CM_RETRIES, req)
            } else {
                let life = id.packet_life();
                let req = id.request(
                    route,
                    service,
                    param,
                    private_data(&data(Req::PRIVATE_LEN)?),
                );
                core.cm.connect(now, route, life, req)
            };
            let id = core.id(key)?;
            id.conn = Some(conn);
            id.state = IdState::Connect;
            id.local_qpn = param.qp_num;
            id.srq = param.srq;
            id.retry_count = param.retry_count.min(7);
            core.by_conn.insert(conn, key);
            Ok(())
        })
    }

    /// Completes the connection after [`CmEventKind::ConnectResponse`]: the queue pair is ready,
    /// and the peer is told.
    ///
    /// # Errors
    /// [`VerbsError::InvalidArgument`] if no peer has accepted.
    //= LRC-24
    #[doc(alias = "rdma_establish")]
    pub fn establish(&self) -> Result<(), VerbsError> {
        self.with(|core, key, now| {
            let conn = core
                .id(key)?
                .conn
                .ok_or(VerbsError::InvalidArgument("no connection"))?;
            Ok(core.cm.ready(now, conn, &[])?)
        })
    }

    /// Accepts a request. `cookie` identifies the ID in its events from here on. After an error the
    /// peer gets a rejection, as from the kernel.
    ///
    /// # Errors
    /// [`VerbsError::InvalidArgument`] if there is no request (any more), or the private data is
    /// too long.
    #[doc(alias = "rdma_accept")]
    pub fn accept(&self, cookie: u64, param: &ConnParam) -> Result<(), VerbsError> {
        self.enter(Verb::Accept)?;
        self.with(|core, key, now| {
            let id = core.id(key)?;
            let conn = id.conn.ok_or(VerbsError::InvalidArgument("no request"))?;
            if id.state != IdState::Connect {
                return wrong_state();
            }
            let is_datagram = id.is_datagram();
            let accepted = Self::answer(core, (key, conn), now, param);
            if accepted.is_err() && is_datagram {
                let refused = refusal(SidrStatus::Rejected);
                let _ = core.cm.reply_service(now, conn, refused);
            } else if accepted.is_err() {
                let _ = core.cm.reject(now, conn, RejReason::Consumer, &[], &[]);
            }
            accepted?;
            let id = core.id(key)?;
            id.local_qpn = param.qp_num;
            if let Some(peer) = &mut id.peer {
                peer.responder_resources = param.responder_resources;
                peer.initiator_depth = param.initiator_depth;
            }
            id.cookie = Some(cookie);
            Ok(())
        })
    }

    /// Sends the response that accepts a request.
    fn answer(
        core: &mut CmCore,
        (key, conn): (IdKey, CommId),
        now: Time,
        param: &ConnParam,
    ) -> Result<(), VerbsError> {
        let id = core.id(key)?;
        if id.is_datagram() {
            check_private(&param.private_data, SidrRep::PRIVATE_LEN)?;
            let rep = SidrRep {
                qpn: param.qp_num,
                qkey: id.qkey.unwrap_or(UDP_QKEY),
                ece: id.local_ece,
                private_data: private_data(&param.private_data),
                ..refusal(SidrStatus::Success)
            };
            core.cm.reply_service(now, conn, rep)?;
        } else {
            check_private(&param.private_data, Rep::PRIVATE_LEN)?;
            let rep = id.reply(param);
            core.cm.reply(now, conn, rep)?;
        }
        Ok(())
    }

    /// Rejects a request, or the peer's acceptance.
    ///
    /// # Errors
    /// [`VerbsError::InvalidArgument`] if there is nothing to reject, or the private data is too
    /// long.
    //= LRC-19
    #[doc(alias = "rdma_reject")]
    pub fn reject(&self, reason: RejReason, data: &[u8]) -> Result<(), VerbsError> {
        self.enter(Verb::Reject)?;
        self.with(|core, key, now| {
            let id = core.id(key)?;
            let conn = id.conn.ok_or(VerbsError::InvalidArgument("no request"))?;
            if id.is_datagram() {
                check_private(data, SidrRep::PRIVATE_LEN)?;
                let rep = SidrRep {
                    private_data: private_data(data),
                    ..refusal(SidrStatus::Rejected)
                };
                return Ok(core.cm.reply_service(now, conn, rep)?);
            }
            check_private(data, rocade_wire::mad::Rej::PRIVATE_LEN)?;
            Ok(core.cm.reject(now, conn, reason, &[], data)?)
        })
    }

    /// Disconnects, or answers the peer's DREQ.
    ///
    /// # Errors
    /// [`VerbsError::InvalidArgument`] if there is no connection.
    //= LRC-20
    //= EVT-03
    #[doc(alias = "rdma_disconnect")]
    pub fn disconnect(&self) -> Result<(), VerbsError> {
        self.enter(Verb::Disconnect)?;
        self.with(|core, key, now| {
            let id = core.id(key)?;
            let conn = id
                .conn
                .ok_or(VerbsError::InvalidArgument("no connection"))?;
            let began = core.cm.disconnect(now, conn, &[]);
            // In any other state the connection has ended already, or is ending.
            if began.is_err() {
                let _ = core.cm.reply_to_disconnect(now, conn, &[]);
            }
            Ok(())
        })
    }

    /// Joins a multicast group. The result is an event whose private data is the 8 bytes of
    /// `token`. The caller has to attach the queue pair.
    ///
    /// # Errors
    /// [`VerbsError::InvalidArgument`] unless the ID is of datagrams, and has an address of the
    /// group's IP version.
    //= CMA-14
    //= CMA-15
    #[doc(alias = "rdma_join_multicast")]
    pub fn join(&self, group: impl Into<CmAddr>, token: u64) -> Result<(), VerbsError> {
        self.enter(Verb::JoinMulticast)?;
        let group = group.into().socket().ip();
        self.with(|core, key, _| {
            let id = core.id(key)?;
            let may = matches!(id.state, IdState::AddrBound | IdState::AddrResolved);
            if !may || !id.is_datagram() {
                return wrong_state();
            }
            let fits = id.src.is_some_and(|src| src.is_ipv4() == group.is_ipv4());
            if !group.is_multicast() || !fits {
                return Err(VerbsError::InvalidArgument("multicast address"));
            }
            let address = id.group_address(group)?;
            let param = UdParam {
                private_data: token.to_ne_bytes().to_vec(),
                address,
                qp_num: Qpn::MULTICAST,
                qkey: id.qkey.unwrap_or(UDP_QKEY),
            };
            core.queue_event(key, CmEventKind::MulticastJoin, 0, CmParam::Ud(param));
            Ok(())
        })
    }

    /// Leaves a group, and drops its unread join event.
    ///
    /// # Errors
    /// [`VerbsError::InvalidArgument`] if the ID was destroyed.
    #[doc(alias = "rdma_leave_multicast")]
    pub fn leave(&self, token: u64) -> Result<(), VerbsError> {
        self.with(|core, key, _| {
            let id = core.id(key)?;
            let of_this = |event: &QueuedEvent| match &event.param {
                CmParam::Ud(ud) if event.kind == CmEventKind::MulticastJoin => {
                    event.id == key && ud.private_data == token.to_ne_bytes()
                }
                _ => false,
            };
            id.channel.events.extract(of_this);
            Ok(())
        })
    }

    /// Completes the connection because the queue pair has received a packet of its peer.
    ///
    /// # Errors
    /// [`VerbsError::InvalidArgument`] if there is no connection.
    //= EVT-08
    #[doc(alias = "rdma_notify")]
    pub fn notify_established(&self) -> Result<(), VerbsError> {
        self.with(|core, key, now| {
            let conn = core
                .id(key)?
                .conn
                .ok_or(VerbsError::InvalidArgument("no connection"))?;
            if core.cm.established(now, conn).is_ok() {
                core.queue_event(key, CmEventKind::Established, 0, CmParam::None);
            }
            Ok(())
        })
    }

    /// Queues an event on the channel of the ID, for the application itself.
    ///
    /// # Errors
    /// [`VerbsError::InvalidArgument`] for a kind that only the connection manager writes, for a
    /// request that was not accepted yet, and if the ID was destroyed.
    #[doc(alias = "rdma_write_cm_event")]
    pub fn write_event(
        &self,
        kind: CmEventKind,
        status: i32,
        argument: u64,
    ) -> Result<(), VerbsError> {
        let param = match kind {
            CmEventKind::User => CmParam::User(argument),
            CmEventKind::AddrinfoResolved => CmParam::None,
            _ => return Err(VerbsError::InvalidArgument("kind of event")),
        };
        self.with(|core, key, _| {
            if core.id(key)?.cookie.is_none() {
                return Err(VerbsError::InvalidArgument("request that is not accepted"));
            }
            core.queue_event(key, kind, status, param);
            Ok(())
        })
    }

    /// Returns the attributes that the queue pair needs to reach a state.
    ///
    /// # Errors
    /// [`VerbsError::InvalidArgument`] if the peer is not known yet.
    #[doc(alias = "rdma_init_qp_attr")]
    pub fn qp_attr(&self, state: QpState) -> Result<(QpAttr, QpAttrMask), VerbsError> {
        self.with_id(|id| id.qp_attr(state))
    }

    /// Moves its events, including unread ones, to another channel. Returns the number of events
    /// that the application has got.
    ///
    /// # Errors
    /// [`VerbsError::InvalidArgument`] if the ID was destroyed.
    //= LRC-12
    #[doc(alias = "rdma_migrate_id")]
    pub fn migrate(&self, channel: &CmChannel) -> Result<u64, VerbsError> {
        let engine = &self.engine;
        self.with(|core, key, _| {
            let id = core.id(key)?;
            let inner = std::mem::replace(&mut id.channel, Arc::clone(&channel.inner));
            let reported = id.reported;
            let old = CmChannel {
                engine: Arc::clone(engine),
                inner,
            };
            old.moves(key, channel);
            Ok(reported)
        })
    }

    /// Destroys the ID and its unread events. Returns the number of events that the application has
    /// got. The application has to wait until they are acknowledged.
    //= EVT-07
    #[doc(alias = "rdma_destroy_id")]
    pub fn destroy(&self) -> u64 {
        let ended = self.with(|core, key, now| Ok(core.end(key, now)));
        let Ok((reported, binding)) = ended else {
            return 0;
        };
        if let Some(binding) = binding {
            self.engine.presence.release_on_host(binding);
        }
        reported
    }
}

impl IdKey {
    /// The address of an ID that is bound implicitly.
    const ANY_IP: IpAddr = IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED);
}

fn in_use(conflict: Conflict) -> VerbsError {
    VerbsError::Io(io::Error::from_raw_os_error(conflict.errno()))
}

/// Runs `f` on the connection manager of a process that is attached to its addresses.
pub(super) fn with_cm<R>(
    engine: &Arc<Nic>,
    f: impl FnOnce(&mut CmCore, Time) -> R,
) -> Result<R, VerbsError> {
    let slot = engine.attached_slot()?;
    Ok(engine.cm.run(&**engine, slot, f))
}

/// Returns a port for an active side. Other applications need not know it.
pub(super) fn ephemeral_port(engine: &Nic) -> u16 {
    /// The range when the process first read it: reading it takes longer than everything else here.
    static RANGE: OnceLock<(u16, u16)> = OnceLock::new();
    let (first, last) = *RANGE.get_or_init(port_range);
    let offset = engine.host.random_below(usize::from(last - first) + 1);
    first + u16::try_from(offset).unwrap_or(0)
}

/// Returns true if this process may use ports below 1024.
//= CMA-13
fn may_use_low_ports() -> bool {
    crate::sys::effective_uid() == 0
}
