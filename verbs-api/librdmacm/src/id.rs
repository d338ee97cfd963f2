//! IDs and event channels.

use std::{
    cell::UnsafeCell,
    collections::VecDeque,
    ffi::{c_int, c_uint, c_void},
    net::Ipv6Addr,
    ptr,
    sync::atomic::Ordering,
};

use libc::{sockaddr, sockaddr_storage};
use parking_lot::{Condvar, Mutex};
use rocade_abi::{
    AF_IB, IBV_QPT_RC, IBV_QPT_UD, ibv_ece, ibv_gid, ibv_qp_init_attr, ibv_sa_path_rec,
    rdma_cm_event, rdma_cm_id, rdma_event_channel, rocade_cm_channel, rocade_cm_id,
    rocade_cm_route, sockaddr_ib,
};

use crate::{
    addrinfo::Resolved,
    devices,
    engine::{self, ops},
    event,
    ffi::{Errno, int_call, ptr_call, void_call},
    multicast::Group,
};

/// `enum rdma_port_space`.
pub(crate) const PS_IPOIB: c_uint = 0x0002;
pub(crate) const PS_TCP: c_uint = 0x0106;
pub(crate) const PS_UDP: c_uint = 0x0111;
pub(crate) const PS_IB: c_uint = 0x013f;

/// P_Key of all connections.
const PKEY: u16 = 0xffff;
/// The selector "exactly" of a path record.
const EXACTLY: u8 = 2;
/// 10 Gbit/s, as a rate code of a path record.
const RATE: u8 = 3;

/// An event channel. The program has a pointer to the first member.
#[repr(C)]
pub(crate) struct ChannelObject {
    c: UnsafeCell<rdma_event_channel>,
    raw: rocade_cm_channel,
}

/// Destroyed channels, whose memory is kept for threads that are about to use the pointer.
struct Ended(VecDeque<Box<ChannelObject>>);

// SAFETY: the C part is accessed only through raw pointers, and the rest is atomics.
unsafe impl Send for Ended {}

impl Ended {
    /// The number of channels that are kept: more than a program destroys while one of its threads
    /// is between reading the pointer and using it.
    const MOST: usize = 64;
}

static ENDED: Mutex<Ended> = Mutex::new(Ended(VecDeque::new()));

impl ChannelObject {
    pub(crate) fn create() -> Result<*mut rdma_event_channel, Errno> {
        let object = Box::new(Self {
            c: UnsafeCell::new(rdma_event_channel { fd: -1 }),
            raw: rocade_cm_channel::default(),
        });
        let fd = object.c.get().cast();
        // SAFETY: the box does not move. The descriptor is the only member of the C part.
        Errno::check(unsafe { (ops()?.channel_new)(&raw const object.raw, fd) })?;
        Ok(Box::into_raw(object).cast())
    }

    /// # Safety
    /// `channel` must be NULL or come from [`Self::create`]. It must be alive, or destroyed so
    /// recently that its memory is kept.
    pub(crate) unsafe fn raw(
        channel: *mut rdma_event_channel,
    ) -> Result<*const rocade_cm_channel, Errno> {
        // SAFETY: the C part is the first member of a `Self`, which outlives its channel.
        let object = unsafe { channel.cast::<Self>().as_ref() };
        object
            .map(|object| &raw const object.raw)
            .ok_or(Errno::INVAL)
    }

    /// # Safety
    /// As for [`Self::raw`]. The channel is not used afterwards.
    pub(crate) unsafe fn end(channel: *mut rdma_event_channel) -> Result<(), Errno> {
        // SAFETY: same contract.
        let raw = unsafe { Self::raw(channel) }?;
        // SAFETY: the channel is alive, and not used afterwards.
        unsafe { (ops()?.channel_free)(raw) };
        // SAFETY: it came from `Box::into_raw`.
        let object = unsafe { Box::from_raw(channel.cast::<Self>()) };
        // SAFETY: the object is alive, and the program does not read it any more.
        unsafe { (*object.c.get()).fd = -1 };
        // The lock is held briefly. In a forked child it may be held for ever, and the leaked
        // memory does not matter.
        if let Some(mut ended) = ENDED.try_lock() {
            ended.0.push_back(object);
            if ended.0.len() > Ended::MOST
                && let Some(oldest) = ended.0.pop_front()
                && oldest.raw.waiting_calls.load(Ordering::SeqCst) > 0
            {
                // A thread that sleeps may wake at any time, and looks at it then.
                Box::leak(oldest);
            }
        } else {
            Box::leak(object);
        }
        Ok(())
    }
}

/// A connection manager ID. The program has a pointer to its C part, and reads and writes it.
#[repr(C)]
pub(crate) struct IdObject {
    pub(crate) c: UnsafeCell<rdma_cm_id>,
    pub(crate) raw: *mut rocade_cm_id,
    generation: u32,
    pub(crate) state: Mutex<IdState>,
    /// The number of acknowledged events.
    completed: Mutex<u64>,
    all_completed: Condvar,
    path: UnsafeCell<ibv_sa_path_rec>,
}

// SAFETY: the C part and the path are accessed only through raw pointers, as the program does. The
// other members are behind locks or never change.
unsafe impl Sync for IdObject {}

/// The members of an ID that `struct rdma_cm_id` does not have.
#[derive(Default)]
pub(crate) struct IdState {
    /// Synchronous mode: the ID has its own channel, and its calls wait for their events.
    pub(crate) sync: bool,
    pub(crate) initiator_depth: u8,
    pub(crate) responder_resources: u8,
    /// Connection setup failed on this side. The program gets no further event about the end of the
    /// connection.
    pub(crate) connect_error: bool,
    /// The prefix of the private data of the next connection, from `rdma_getaddrinfo`.
    pub(crate) connect: Vec<u8>,
    /// The attributes for queue pairs of a listener's connection requests.
    pub(crate) qp_init_attr: Option<ibv_qp_init_attr>,
    /// Multicast groups that the ID has joined or is joining.
    pub(crate) groups: Vec<Group>,
    /// The addresses of `rdma_resolve_addrinfo`, until the program takes them.
    pub(crate) resolved: Option<Resolved>,
}

// SAFETY: the pointers in the attributes are to objects of libibverbs, which any thread may use.
unsafe impl Send for IdState {}

impl IdObject {
    /// # Safety
    /// `id` must be NULL, or come from [`Self::create`] and be alive during `'a`.
    pub(crate) unsafe fn borrow<'a>(id: *mut rdma_cm_id) -> Result<&'a Self, Errno> {
        // SAFETY: the C part is the first member of a live `Self`.
        let object = unsafe { id.cast::<Self>().as_ref() }.ok_or(Errno::INVAL)?;
        if object.generation == engine::generation()? {
            Ok(object)
        } else {
            // The ID belongs to the parent of this process.
            Err(Errno::NODEV)
        }
    }

    /// Creates an ID for an object of the engine, which `make` creates from the cookie.
    pub(crate) fn create(
        make: impl FnOnce(u64) -> Result<*mut rocade_cm_id, Errno>,
        channel: *mut rdma_event_channel,
        context: *mut c_void,
        (ps, qp_type): (c_uint, c_uint),
    ) -> Result<*mut rdma_cm_id, Errno> {
        let generation = engine::generation()?;
        let mut place = Box::<Self>::new_uninit();
        let address = place.as_mut_ptr();
        let raw = make(address.expose_provenance() as u64)?;
        // SAFETY: all zeroes are a valid, empty `rdma_cm_id`.
        let mut c: rdma_cm_id = unsafe { std::mem::zeroed() };
        c.channel = channel;
        c.context = context;
        c.ps = ps;
        c.qp_type = qp_type;
        // SAFETY: all zeroes are a valid structure.
        let path = unsafe { std::mem::zeroed() };
        place.write(Self {
            c: UnsafeCell::new(c),
            raw,
            generation,
            state: Mutex::default(),
            completed: Mutex::new(0),
            all_completed: Condvar::new(),
            path: UnsafeCell::new(path),
        });
        Ok(Box::into_raw(place).cast())
    }

    /// Returns the pointer that the program uses.
    pub(crate) const fn as_c(&self) -> *mut rdma_cm_id {
        self.c.get()
    }

    /// Returns the cookie of the ID's events.
    pub(crate) fn cookie(&self) -> u64 {
        ptr::from_ref(self).expose_provenance() as u64
    }

    /// Counts an acknowledged event.
    pub(crate) fn complete_one(&self) {
        let mut completed = self.completed.lock();
        *completed += 1;
        // Notifies under the lock, because the waiting thread frees this object.
        self.all_completed.notify_all();
    }

    /// Waits until `reported` events are acknowledged.
    //= EVT-07
    pub(crate) fn wait_for(&self, reported: u64) {
        let mut completed = self.completed.lock();
        while *completed < reported {
            self.all_completed.wait(&mut completed);
        }
    }

    /// Waits until `done` returns true, which acknowledgements of events can change.
    pub(crate) fn wait_until(&self, mut done: impl FnMut() -> bool) {
        let mut completed = self.completed.lock();
        while !done() {
            self.all_completed.wait(&mut completed);
        }
    }

    /// Copies addresses, device and path of the engine's ID to the C part.
    pub(crate) fn query(&self) -> Result<(), Errno> {
        // SAFETY: all zeroes are a valid structure.
        let mut route: rocade_cm_route = unsafe { std::mem::zeroed() };
        // SAFETY: a live ID, and room for the answer.
        Errno::check(unsafe { (ops()?.id_route)(self.raw, &raw mut route) })?;
        let device = devices::at(route.device)?;
        let c = self.as_c();
        let path = ibv_sa_path_rec {
            dgid: ibv_gid { raw: route.dgid },
            sgid: ibv_gid { raw: route.sgid },
            dlid: 0,
            slid: 0,
            raw_traffic: 0,
            flow_label: route.flow_label.to_be(),
            hop_limit: route.hop_limit,
            traffic_class: route.traffic_class,
            reversible: 1 << 24,
            numb_path: 1,
            pkey: PKEY,
            sl: 0,
            mtu_selector: EXACTLY,
            mtu: route.mtu,
            rate_selector: EXACTLY,
            rate: RATE,
            packet_life_time_selector: EXACTLY,
            packet_life_time: route.packet_life_time,
            preference: 0,
        };
        // SAFETY: the C part is alive. A program must not change it during a call for this ID.
        unsafe {
            if route.src.ss_family != 0 {
                (*c).route.addr.src_storage = route.src;
            }
            if route.dst.ss_family != 0 {
                (*c).route.addr.dst_storage = route.dst;
            }
            if let Some(device) = device {
                (*c).verbs = device.verbs;
                (*c).port_num = route.port_num;
                if (*c).pd.is_null() {
                    (*c).pd = device.pd;
                }
                (*c).route.addr.addr.sgid = ibv_gid { raw: route.sgid };
                (*c).route.addr.addr.dgid = ibv_gid { raw: route.dgid };
                (*c).route.addr.addr.pkey = PKEY.to_be();
            }
            self.path.get().write(path);
        }
        Ok(())
    }

    /// Shows the path in the C part, once it is resolved.
    pub(crate) fn show_path(&self) {
        let c = self.as_c();
        // SAFETY: as in `query`.
        unsafe {
            (*c).route.path_rec = self.path.get();
            (*c).route.num_paths = 1;
        }
    }

    /// Waits in synchronous mode for the event of a call, and returns its result.
    //= LRC-02
    pub(crate) fn complete(&self) -> Result<(), Errno> {
        if !self.state.lock().sync {
            return Ok(());
        }
        self.forget_event();
        let c = self.as_c();
        // SAFETY: the C part is alive. In this mode only the library writes the two members.
        let (channel, place) = unsafe { ((*c).channel, &raw mut (*c).event) };
        // SAFETY: a live channel, and room for the event.
        if unsafe { event::rdma_get_cm_event(channel, place) } != 0 {
            return Err(Errno::last());
        }
        // SAFETY: an event was written.
        let event: rdma_cm_event = unsafe { place.read().read() };
        match event.status {
            0 => Ok(()),
            _ if event.event == event::REJECTED => Err(Errno(libc::ECONNREFUSED)),
            status => Err(Errno(status.abs())),
        }
    }

    /// Acknowledges the event that the C part points to.
    pub(crate) fn forget_event(&self) {
        let c = self.as_c();
        // SAFETY: the C part is alive.
        let event = unsafe { (*c).event };
        if !event.is_null() {
            // SAFETY: as above.
            unsafe { (*c).event = ptr::null_mut() };
            // SAFETY: a live event that is not used afterwards.
            unsafe { event::rdma_ack_cm_event(event) };
        }
    }
}

/// Returns the type of the queue pairs of a port space.
//= LRC-22
pub(crate) const fn qp_type_of(ps: c_uint) -> Option<c_uint> {
    match ps {
        PS_TCP | PS_IB => Some(IBV_QPT_RC),
        PS_UDP | PS_IPOIB => Some(IBV_QPT_UD),
        _ => None,
    }
}

/// Creates an ID. An ID without a channel gets its own one.
pub(crate) fn create(
    channel: *mut rdma_event_channel,
    context: *mut c_void,
    ps: c_uint,
    qp_type: c_uint,
) -> Result<*mut rdma_cm_id, Errno> {
    let sync = channel.is_null();
    let channel = if sync {
        ChannelObject::create()?
    } else {
        channel
    };
    // SAFETY: by contract, or made just now.
    let raw_channel = unsafe { ChannelObject::raw(channel) }?;
    //= LRC-22
    let connects = match qp_type_of(ps) {
        Some(of_ps) if ps != PS_IB => of_ps,
        _ => qp_type,
    };
    let make = |cookie| {
        let mut raw = ptr::null_mut();
        let new = ops()?.id_new;
        // SAFETY: a live channel, and room for the answer.
        Errno::check(unsafe { new(raw_channel, ps, connects, cookie, &raw mut raw) })?;
        Ok(raw)
    };
    let made = IdObject::create(make, channel, context, (ps, qp_type));
    let id = match made {
        Ok(id) => id,
        Err(error) => {
            if sync {
                // SAFETY: created above, and not returned to the program.
                unsafe { ChannelObject::end(channel) }?;
            }
            return Err(error);
        }
    };
    // SAFETY: created just now.
    unsafe { IdObject::borrow(id) }?.state.lock().sync = sync;
    Ok(id)
}

/// Destroys an ID.
///
/// # Safety
/// `id` must be alive, and is not used afterwards.
pub(crate) unsafe fn destroy(id: *mut rdma_cm_id) -> Result<(), Errno> {
    // SAFETY: by contract.
    let object = match unsafe { IdObject::borrow(id) } {
        Ok(object) => object,
        // The ID belongs to the parent of this process.
        Err(Errno::NODEV) => return Ok(()),
        Err(error) => return Err(error),
    };
    // SAFETY: a live ID.
    let reported = unsafe { (ops()?.id_destroy)(object.raw) };
    object.forget_event();
    object.wait_for(reported);
    let sync = object.state.lock().sync;
    // SAFETY: a live ID that is not used afterwards.
    unsafe { (ops()?.id_free)(object.raw) };
    if sync {
        // SAFETY: the C part is alive, and the channel belongs to the ID.
        unsafe { ChannelObject::end((*object.as_c()).channel) }?;
    }
    // SAFETY: it came from `Box::into_raw`, and this is its last use.
    drop(unsafe { Box::from_raw(id.cast::<IdObject>()) });
    Ok(())
}

/// `rdma_create_event_channel`.
pub(crate) extern "C" fn rdma_create_event_channel() -> *mut rdma_event_channel {
    ptr_call(ChannelObject::create)
}

/// `rdma_destroy_event_channel`.
pub(crate) unsafe extern "C" fn rdma_destroy_event_channel(channel: *mut rdma_event_channel) {
    // SAFETY: by contract a live channel that is not used afterwards.
    void_call(|| unsafe { ChannelObject::end(channel) });
}

/// `rdma_create_id`.
//= LRC-02
pub(crate) unsafe extern "C" fn rdma_create_id(
    channel: *mut rdma_event_channel,
    id: *mut *mut rdma_cm_id,
    context: *mut c_void,
    ps: c_uint,
) -> c_int {
    int_call(|| {
        if id.is_null() {
            return Err(Errno::INVAL);
        }
        let qp_type = qp_type_of(ps).ok_or(Errno::INVAL)?;
        let made = create(channel, context, ps, qp_type)?;
        // SAFETY: by contract writable.
        unsafe { id.write(made) };
        Ok(())
    })
}

/// `rdma_destroy_id`.
pub(crate) unsafe extern "C" fn rdma_destroy_id(id: *mut rdma_cm_id) -> c_int {
    // SAFETY: by contract a live ID that is not used afterwards.
    int_call(|| unsafe { destroy(id) })
}

/// `rdma_migrate_id`.
//= LRC-12
pub(crate) unsafe extern "C" fn rdma_migrate_id(
    id: *mut rdma_cm_id,
    channel: *mut rdma_event_channel,
) -> c_int {
    // SAFETY: by contract a live ID and channel.
    int_call(|| unsafe { migrate(id, channel) })
}

/// # Safety
/// Both pointers must be NULL or alive.
pub(crate) unsafe fn migrate(
    id: *mut rdma_cm_id,
    channel: *mut rdma_event_channel,
) -> Result<(), Errno> {
    // SAFETY: by contract.
    let object = unsafe { IdObject::borrow(id) }?;
    let was_sync = object.state.lock().sync;
    let sync = channel.is_null();
    if was_sync && sync {
        return Err(Errno::INVAL);
    }
    let channel = if sync {
        ChannelObject::create()?
    } else {
        channel
    };
    // SAFETY: alive by contract, or created just now.
    let raw = unsafe { ChannelObject::raw(channel) }?;
    let mut reported = 0;
    // SAFETY: both are alive, and there is room for the answer.
    let moved = Errno::check(unsafe { (ops()?.id_migrate)(object.raw, raw, &raw mut reported) });
    if let Err(error) = moved {
        if sync {
            // SAFETY: created above.
            unsafe { ChannelObject::end(channel) }?;
        }
        return Err(error);
    }
    let c = object.as_c();
    // SAFETY: the C part is alive.
    let old = unsafe { (*c).channel };
    if was_sync {
        object.forget_event();
    }
    object.wait_for(reported);
    // SAFETY: the C part is alive.
    unsafe { (*c).channel = channel };
    object.state.lock().sync = sync;
    if was_sync {
        // SAFETY: the ID's own channel, which is not used any more.
        unsafe { ChannelObject::end(old) }?;
    }
    Ok(())
}

fn port(storage: &sockaddr_storage) -> u16 {
    match c_int::from(storage.ss_family) {
        libc::AF_INET | libc::AF_INET6 => {
            // SAFETY: the port has the same offset in both structures, within the storage.
            unsafe {
                (&raw const *storage)
                    .cast::<libc::sockaddr_in>()
                    .read()
                    .sin_port
            }
        }
        AF_IB => {
            // SAFETY: the family determines the type, and the address is inside the storage.
            let ib = unsafe { (&raw const *storage).cast::<sockaddr_ib>().read() };
            let [.., high, low] = u64::from_be(ib.sib_sid).to_be_bytes();
            u16::from_ne_bytes([high, low])
        }
        _ => 0,
    }
}

/// `rdma_get_src_port`: returns the port in network byte order.
//= LRC-17
pub(crate) unsafe extern "C" fn rdma_get_src_port(id: *mut rdma_cm_id) -> u16 {
    // SAFETY: by contract NULL or a live ID.
    unsafe { id.as_ref() }.map_or(0, |id| port(&id.route.addr.src_storage))
}

/// `rdma_get_dst_port`: returns the port in network byte order.
//= LRC-17
pub(crate) unsafe extern "C" fn rdma_get_dst_port(id: *mut rdma_cm_id) -> u16 {
    // SAFETY: by contract NULL or a live ID.
    unsafe { id.as_ref() }.map_or(0, |id| port(&id.route.addr.dst_storage))
}

/// `rdma_set_option`.
//= LRC-14
pub(crate) unsafe extern "C" fn rdma_set_option(
    id: *mut rdma_cm_id,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: usize,
) -> c_int {
    int_call(|| {
        // SAFETY: by contract a live ID.
        let object = unsafe { IdObject::borrow(id) }?;
        if value.is_null() {
            return Err(Errno::INVAL);
        }
        // SAFETY: a live ID, and a value that is readable for its length.
        Errno::check(unsafe { (ops()?.id_set_option)(object.raw, level, name, value, len) })
    })
}

/// `rdma_set_local_ece`: sets the vendor options for the peer, for programs that create the queue
/// pair themselves.
pub(crate) unsafe extern "C" fn rdma_set_local_ece(
    id: *mut rdma_cm_id,
    ece: *mut ibv_ece,
) -> c_int {
    /// The first value that is too large for a vendor ID of 24 bits.
    const MOST: u32 = 1 << 24;
    int_call(|| {
        // SAFETY: by contract a live ID.
        let object = unsafe { IdObject::borrow(id) }?;
        // SAFETY: by contract NULL or readable.
        let given = unsafe { ece.as_ref() }.ok_or(Errno::INVAL)?;
        let is_wrong = given.vendor_id == 0 || given.vendor_id >= MOST || given.comp_mask != 0;
        // SAFETY: the C part is alive.
        if is_wrong || unsafe { !(*id).qp.is_null() } {
            return Err(Errno::INVAL);
        }
        // SAFETY: a live ID.
        Errno::check(unsafe { (ops()?.id_set_ece)(object.raw, ece) })
    })
}

/// `rdma_get_remote_ece`: returns the vendor options of the peer, for programs that create the
/// queue pair themselves.
pub(crate) unsafe extern "C" fn rdma_get_remote_ece(
    id: *mut rdma_cm_id,
    ece: *mut ibv_ece,
) -> c_int {
    int_call(|| {
        // SAFETY: by contract a live ID.
        let object = unsafe { IdObject::borrow(id) }?;
        // SAFETY: the C part is alive.
        if ece.is_null() || unsafe { !(*id).qp.is_null() } {
            return Err(Errno::INVAL);
        }
        // SAFETY: a live ID, and room for the answer.
        Errno::check(unsafe { (ops()?.id_remote_ece)(object.raw, ece) })
    })
}

/// Returns the length of an address of a family.
pub(crate) fn address_len(family: c_int) -> Option<usize> {
    match family {
        libc::AF_INET => Some(size_of::<libc::sockaddr_in>()),
        libc::AF_INET6 => Some(size_of::<libc::sockaddr_in6>()),
        AF_IB => Some(size_of::<sockaddr_ib>()),
        _ => None,
    }
}

/// Returns the `sockaddr_ib` of a GID and a port of a port space. If the port or the port space is
/// 0, the connection manager chooses these bits of the service ID.
pub(crate) fn ib_address(gid: Ipv6Addr, port: u16, port_space: c_int) -> sockaddr_ib {
    let space = u64::try_from(port_space).unwrap_or(0);
    let mask = |is_given: bool, bits: u64| if is_given { bits } else { 0 };
    sockaddr_ib {
        sib_family: u16::try_from(AF_IB).unwrap_or(0),
        sib_pkey: u16::MAX,
        sib_flowinfo: 0,
        sib_addr: gid.octets(),
        sib_sid: (space << 16 | u64::from(port)).to_be(),
        sib_sid_mask: (mask(space != 0, !0xffff) | mask(port != 0, 0xffff)).to_be(),
        sib_scope_id: 0,
    }
}

/// Copies an address.
///
/// # Safety
/// `addr` must have the length of its family.
pub(crate) unsafe fn copy_address(addr: *const sockaddr) -> Option<sockaddr_storage> {
    // SAFETY: all zeroes are a valid address.
    let mut storage: sockaddr_storage = unsafe { std::mem::zeroed() };
    // SAFETY: by contract.
    let family = unsafe { addr.cast::<u16>().read_unaligned() };
    let len = address_len(family.into())?;
    // SAFETY: both have this length.
    unsafe { ptr::copy_nonoverlapping(addr.cast::<u8>(), (&raw mut storage).cast(), len) };
    Some(storage)
}
