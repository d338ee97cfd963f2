//! Socket options.

use std::{ffi::c_int, mem::size_of, sync::atomic::Ordering, time::Duration};

use rocade_rsockets::{SEND_LOW_WATER, scale, unscale};

use super::{
    cm::{OPTION_AFONLY, OPTION_REUSEADDR, OPTION_TOS},
    datagram::DatagramSocket,
    stream::{Phase, StreamSocket},
    sys,
};
use crate::{
    args::{Answer, Buffer, gid_bytes},
    ffi::Errno,
};

/// The level of the rsocket options, and their names.
pub(super) const SOL_RDMA: c_int = 0x10000;
const RDMA_SQSIZE: c_int = 0;
const RDMA_RQSIZE: c_int = 1;
const RDMA_INLINE: c_int = 2;
const RDMA_IOMAPSIZE: c_int = 3;
const RDMA_ROUTE: c_int = 4;

/// The maximum buffer size in bytes.
const MAX_BUFFER: u32 = 1 << 30;
/// The length of `ibv_path_data`: flags, and a path record.
const PATH_DATA_LEN: usize = 72;

/// The options that the program has set.
#[derive(Clone)]
pub(super) struct Options {
    pub(super) send_slots: u16,
    pub(super) recv_slots: u16,
    pub(super) inline: u16,
    pub(super) iomaps: u16,
    pub(super) send_buffer: u32,
    pub(super) recv_buffer: u32,
    pub(super) reuse_addr: bool,
    pub(super) tos: Option<u8>,
    pub(super) v6_only: Option<bool>,
    pub(super) recv_timeout: Option<Duration>,
    pub(super) send_timeout: Option<Duration>,
    linger: Option<c_int>,
    no_delay: bool,
    keep_alive: bool,
    oob_inline: bool,
    keep_idle: c_int,
    route: Vec<u8>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            send_slots: 384,
            recv_slots: 384,
            inline: 64,
            iomaps: 0,
            send_buffer: 1 << 17,
            recv_buffer: 1 << 17,
            reuse_addr: false,
            tos: None,
            v6_only: None,
            recv_timeout: None,
            send_timeout: None,
            linger: None,
            no_delay: false,
            keep_alive: false,
            oob_inline: false,
            keep_idle: 7200,
            route: Vec::new(),
        }
    }
}

impl Options {
    /// Returns true if closing waits for the peer.
    pub(super) fn lingers(&self) -> bool {
        self.linger != Some(0)
    }

    /// Returns twice the given size, as Linux does.
    fn buffer(asked: c_int) -> u32 {
        let asked = u32::try_from(asked).unwrap_or(0).min(MAX_BUFFER / 2);
        (asked * 2).max(2 * SEND_LOW_WATER)
    }

    /// Sets an option of the level `SOL_RDMA`, for sockets of both kinds that are not connected
    /// yet.
    pub(super) fn set_rdma(&mut self, name: c_int, value: &[u8]) -> Result<(), Errno> {
        let slots = || Ok(u16::try_from(int(value)?.clamp(1, 0xfffe)).unwrap_or(1));
        match name {
            RDMA_SQSIZE => self.send_slots = slots()?,
            RDMA_RQSIZE => self.recv_slots = slots()?,
            RDMA_INLINE => self.inline = u16::try_from(int(value)?.clamp(0, 0xfffe)).unwrap_or(0),
            RDMA_IOMAPSIZE => {
                let entries = u16::try_from(int(value)?.clamp(0, 0xffff)).unwrap_or(0);
                self.iomaps = unscale(scale(entries));
            }
            RDMA_ROUTE => value.clone_into(&mut self.route),
            _ => return Err(Errno(libc::ENOPROTOOPT)),
        }
        Ok(())
    }

    /// Returns an option of the level `SOL_RDMA`.
    pub(super) fn rdma(&self, name: c_int) -> Result<Vec<u8>, Errno> {
        Ok(match name {
            RDMA_SQSIZE => bytes(self.send_slots.into()),
            RDMA_RQSIZE => bytes(self.recv_slots.into()),
            RDMA_INLINE => bytes(self.inline.into()),
            RDMA_IOMAPSIZE => bytes(self.iomaps.into()),
            RDMA_ROUTE => self.route.clone(),
            _ => return Err(Errno(libc::ENOPROTOOPT)),
        })
    }

    /// Sets a buffer size, for sockets of both kinds. Returns `false` for other options.
    pub(super) fn set_buffer(&mut self, name: c_int, value: &[u8]) -> Result<bool, Errno> {
        match name {
            libc::SO_RCVBUF => self.recv_buffer = Self::buffer(int(value)?),
            libc::SO_SNDBUF => self.send_buffer = Self::buffer(int(value)?),
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn set_socket(&mut self, name: c_int, value: &[u8]) -> Result<(), Errno> {
        if self.set_buffer(name, value)? {
            return Ok(());
        }
        match name {
            libc::SO_REUSEADDR => self.reuse_addr = int(value)? != 0,
            libc::SO_KEEPALIVE => self.keep_alive = int(value)? != 0,
            libc::SO_OOBINLINE => self.oob_inline = int(value)? != 0,
            libc::SO_LINGER => {
                let seconds = int(value.get(4..).ok_or(Errno::INVAL)?)?;
                self.linger = (int(value)? != 0).then_some(seconds);
            }
            libc::SO_RCVTIMEO => self.recv_timeout = timeout(value)?,
            libc::SO_SNDTIMEO => self.send_timeout = timeout(value)?,
            // These options are accepted and have no effect.
            libc::SO_REUSEPORT | libc::SO_PRIORITY | libc::SO_BUSY_POLL | libc::SO_RCVLOWAT => {}
            libc::SO_DONTROUTE | libc::SO_BROADCAST | libc::SO_DEBUG | libc::SO_MARK => {}
            _ => return Err(Errno(libc::ENOPROTOOPT)),
        }
        Ok(())
    }

    fn set_tcp(&mut self, name: c_int, value: &[u8]) -> Result<(), Errno> {
        match name {
            libc::TCP_NODELAY => self.no_delay = int(value)? != 0,
            libc::TCP_KEEPIDLE if int(value)? > 0 => self.keep_idle = int(value)?,
            libc::TCP_KEEPIDLE => return Err(Errno::INVAL),
            // These options are accepted and have no effect.
            libc::TCP_KEEPCNT | libc::TCP_KEEPINTVL | libc::TCP_MAXSEG | libc::TCP_CONGESTION => {}
            libc::TCP_CORK | libc::TCP_QUICKACK | libc::TCP_USER_TIMEOUT => {}
            libc::TCP_DEFER_ACCEPT | libc::TCP_SYNCNT | libc::TCP_LINGER2 => {}
            _ => return Err(Errno(libc::ENOPROTOOPT)),
        }
        Ok(())
    }

    fn socket(&self, name: c_int) -> Result<Vec<u8>, Errno> {
        let size = |size: u32| bytes(c_int::try_from(size).unwrap_or(c_int::MAX));
        Ok(match name {
            libc::SO_REUSEADDR => bytes(self.reuse_addr.into()),
            libc::SO_KEEPALIVE => bytes(self.keep_alive.into()),
            libc::SO_OOBINLINE => bytes(self.oob_inline.into()),
            libc::SO_RCVBUF => size(self.recv_buffer),
            libc::SO_SNDBUF => size(self.send_buffer),
            libc::SO_TYPE => bytes(libc::SOCK_STREAM),
            libc::SO_PROTOCOL => bytes(libc::IPPROTO_TCP),
            libc::SO_LINGER => {
                let linger = [c_int::from(self.linger.is_some()), self.linger.unwrap_or(0)];
                linger.map(c_int::to_ne_bytes).concat()
            }
            libc::SO_RCVTIMEO => timeval(self.recv_timeout),
            libc::SO_SNDTIMEO => timeval(self.send_timeout),
            libc::SO_BROADCAST | libc::SO_REUSEPORT | libc::SO_PRIORITY => bytes(0),
            _ => return Err(Errno(libc::ENOPROTOOPT)),
        })
    }

    fn tcp(&self, name: c_int) -> Result<Vec<u8>, Errno> {
        Ok(match name {
            libc::TCP_NODELAY => bytes(self.no_delay.into()),
            libc::TCP_KEEPIDLE => bytes(self.keep_idle),
            libc::TCP_KEEPCNT | libc::TCP_KEEPINTVL => bytes(1),
            libc::TCP_MAXSEG => bytes(2048),
            libc::TCP_CONGESTION => b"rocade\0".to_vec(),
            libc::TCP_CORK | libc::TCP_QUICKACK | libc::TCP_USER_TIMEOUT => bytes(0),
            _ => return Err(Errno(libc::ENOPROTOOPT)),
        })
    }
}

/// Reads an `int`.
fn int(value: &[u8]) -> Result<c_int, Errno> {
    let bytes = value.first_chunk().ok_or(Errno::INVAL)?;
    Ok(c_int::from_ne_bytes(*bytes))
}

fn bytes(value: c_int) -> Vec<u8> {
    value.to_ne_bytes().to_vec()
}

/// Reads a `struct timeval`. Zero means no time limit.
fn timeout(value: &[u8]) -> Result<Option<Duration>, Errno> {
    let number = |at: usize| {
        let part = value.get(at..).and_then(|part| part.first_chunk());
        part.map(|part| i64::from_ne_bytes(*part))
            .ok_or(Errno::INVAL)
    };
    let (seconds, micros) = (number(0)?, number(8)?);
    let micros = u32::try_from(micros)
        .ok()
        .filter(|micros| *micros < 1_000_000);
    let micros = micros.ok_or(Errno(libc::EDOM))?;
    let seconds = u64::try_from(seconds).unwrap_or(0);
    let limit = Duration::new(seconds, micros * 1000);
    Ok((!limit.is_zero()).then_some(limit))
}

fn timeval(limit: Option<Duration>) -> Vec<u8> {
    let limit = limit.unwrap_or_default();
    let seconds = i64::try_from(limit.as_secs()).unwrap_or(i64::MAX);
    [seconds, limit.subsec_micros().into()]
        .map(i64::to_ne_bytes)
        .concat()
}

/// Returns a copy of the value of an option.
///
/// # Errors
/// `EFAULT` for NULL.
pub(super) fn value(value: Buffer<'_>) -> Result<Vec<u8>, Errno> {
    if value.is_null() && value.len() > 0 {
        return Err(Errno(libc::EFAULT));
    }
    Ok(value.to_vec())
}

/// Writes the value of an option, truncated to the given capacity.
///
/// # Errors
/// `EFAULT` for NULL.
pub(super) fn give(found: &[u8], to: Answer<'_>) -> Result<(), Errno> {
    let fits = to.write(found)?;
    to.set_len(fits);
    Ok(())
}

impl StreamSocket {
    pub(super) fn set_option(&self, level: c_int, name: c_int, value: &[u8]) -> Result<(), Errno> {
        let mut state = self.state.lock();
        let state = &mut *state;
        let id_option = |option, value: &[u8]| match &state.id {
            Some(id) => id.set_option(option, value),
            None => Ok(()),
        };
        match level {
            libc::SOL_SOCKET => {
                if name == libc::SO_REUSEADDR {
                    // On a bound ID this has no effect, and is not an error.
                    let _ = id_option(OPTION_REUSEADDR, value);
                }
                state.options.set_socket(name, value)
            }
            libc::IPPROTO_TCP => state.options.set_tcp(name, value),
            libc::IPPROTO_IP if name == libc::IP_TOS => {
                let tos = *value.first().ok_or(Errno::INVAL)?;
                id_option(OPTION_TOS, &[tos])?;
                state.options.tos = Some(tos);
                Ok(())
            }
            libc::IPPROTO_IPV6 if name == libc::IPV6_V6ONLY => {
                let only = int(value)? != 0;
                id_option(OPTION_AFONLY, &c_int::from(only).to_ne_bytes())?;
                state.options.v6_only = Some(only);
                Ok(())
            }
            SOL_RDMA
                if !matches!(
                    state.phase,
                    Phase::New | Phase::Failed | Phase::Listening(_)
                ) =>
            {
                Err(Errno::INVAL)
            }
            SOL_RDMA => state.options.set_rdma(name, value),
            _ => Err(Errno(libc::ENOPROTOOPT)),
        }
    }

    pub(super) fn option(&self, level: c_int, name: c_int) -> Result<Vec<u8>, Errno> {
        let mut state = self.state.lock();
        match (level, name) {
            (libc::SOL_SOCKET, libc::SO_ERROR) => {
                state.turn();
                Ok(bytes(state.take_error()))
            }
            (libc::SOL_SOCKET, libc::SO_ACCEPTCONN) => {
                Ok(bytes(matches!(state.phase, Phase::Listening(_)).into()))
            }
            (libc::SOL_SOCKET, libc::SO_DOMAIN) => Ok(bytes(self.domain)),
            (libc::SOL_SOCKET, _) => state.options.socket(name),
            (libc::IPPROTO_TCP, libc::TCP_INFO) => {
                const ESTABLISHED: u8 = 1;
                const CLOSE: u8 = 7;
                let mut info = vec![0; size_of::<libc::tcp_info>()];
                info[0] = match state.phase {
                    Phase::Connected => ESTABLISHED,
                    _ => CLOSE,
                };
                Ok(info)
            }
            (libc::IPPROTO_TCP, _) => state.options.tcp(name),
            (libc::IPPROTO_IP, libc::IP_TOS) => Ok(bytes(state.options.tos.unwrap_or(0).into())),
            (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) => {
                Ok(bytes(state.options.v6_only.unwrap_or(false).into()))
            }
            (SOL_RDMA, RDMA_ROUTE) if state.options.route.is_empty() => {
                Ok(state.id.as_ref().map_or_else(Vec::new, super::cm::Id::path))
            }
            (SOL_RDMA, _) => state.options.rdma(name),
            _ => Err(Errno(libc::ENOPROTOOPT)),
        }
    }

    /// `F_GETFL` and `F_SETFL`.
    pub(super) fn flags(&self) -> c_int {
        let nonblocking = self.nonblocking.load(Ordering::Relaxed);
        libc::O_RDWR | if nonblocking { libc::O_NONBLOCK } else { 0 }
    }

    pub(super) fn set_flags(&self, flags: c_int) {
        let nonblocking = flags & libc::O_NONBLOCK != 0;
        self.nonblocking.store(nonblocking, Ordering::Relaxed);
    }
}

impl DatagramSocket {
    pub(super) fn set_option(&self, level: c_int, name: c_int, value: &[u8]) -> Result<(), Errno> {
        let mut state = self.state.lock();
        let options = &mut state.options;
        match (level, name) {
            (SOL_RDMA, _) => return options.set_rdma(name, value),
            (libc::SOL_SOCKET, libc::SO_RCVTIMEO) => options.recv_timeout = timeout(value)?,
            (libc::SOL_SOCKET, libc::SO_SNDTIMEO) => options.send_timeout = timeout(value)?,
            (libc::SOL_SOCKET, _) => {
                options.set_buffer(name, value)?;
            }
            _ => {}
        }
        sys::set_option(self.udp(), (level, name), value)
    }
}

/// Returns the `ibv_path_data` of a path: flags, and a path record of the subnet administrator in
/// network byte order.
pub(super) fn path_data(path: &rocade_abi::ibv_sa_path_rec) -> Vec<u8> {
    const EXACTLY: u8 = 2 << 6;
    let mut bytes = vec![0; PATH_DATA_LEN];
    bytes[..4].copy_from_slice(&u32::from(path.preference).to_ne_bytes());
    let record = &mut bytes[8..];
    // The record starts with service ID, GIDs and LIDs.
    record[8..24].copy_from_slice(&gid_bytes(&path.dgid));
    record[24..40].copy_from_slice(&gid_bytes(&path.sgid));
    record[40..42].copy_from_slice(&path.dlid.to_ne_bytes());
    record[42..44].copy_from_slice(&path.slid.to_ne_bytes());
    let flow = u32::from_be(path.flow_label) << 8 | u32::from(path.hop_limit);
    record[44..48].copy_from_slice(&flow.to_be_bytes());
    record[48] = path.traffic_class;
    record[49] = 0x81;
    record[50..52].copy_from_slice(&path.pkey.to_ne_bytes());
    record[52..54].copy_from_slice(&u16::from(path.sl).to_be_bytes());
    record[54] = path.mtu | EXACTLY;
    record[55] = path.rate | EXACTLY;
    record[56] = path.packet_life_time | EXACTLY;
    bytes
}
