//! IDs and event channels.

use std::{
    cell::UnsafeCell,
    collections::VecDeque,
    ffi::{c_int, c_uint, c_void},
    net::Ipv6Addr,
    ptr,
    sync::atomic::Ordering,
};

use libc::sockaddr_storage;
use parking_lot::{Condvar, Mutex};
use rocade_abi::{
    AF_IB, IBV_QPT_RC, IBV_QPT_UD, ibv_comp_channel, ibv_context, ibv_cq, ibv_ece, ibv_gid, ibv_pd,
    ibv_qp, ibv_qp_init_attr, ibv_sa_path_rec, ibv_srq, rdma_cm_event, rdma_cm_id,
    rdma_event_channel, rdma_ib_addr, rocade_cm_channel, rocade_cm_route, sockaddr_ib,
};

use crate::{
    addrinfo::Resolved,
    args::{
        Address, Buffer, CObject, Handle, In, Last, Member, New, Out, Sockaddr, member, zeroed,
    },
    devices,
    engine::{self, EngineId, ops},
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
    pub(crate) fn create() -> Result<New<rdma_event_channel>, Errno> {
        let object = Box::new(Self {
            c: UnsafeCell::new(rdma_event_channel { fd: -1 }),
            raw: rocade_cm_channel::default(),
        });
        let fd = object.c.get().cast();
        // SAFETY: the box does not move. The descriptor is the only member of the C part.
        Errno::check(unsafe { (ops()?.channel_new)(&raw const object.raw, fd) })?;
        // SAFETY: a new object, whose first member is the C part.
        Ok(unsafe { New::of(Box::into_raw(object).cast()) })
    }

    /// Returns the descriptor.
    pub(crate) const fn fd(&self) -> c_int {
        // SAFETY: the C part is alive, and its descriptor changes at the end of the channel only.
        unsafe { (*self.c.get()).fd }
    }

    /// Returns the engine's channel.
    pub(crate) const fn raw(&self) -> Handle<'_, rocade_cm_channel> {
        // SAFETY: a member of this object. All of its members are atomics.
        unsafe { Handle::new(ptr::from_ref(&self.raw).cast_mut()) }
    }

    /// Destroys a channel. Its memory is kept for a while.
    ///
    /// # Errors
    /// `EINVAL` for NULL.
    pub(crate) fn end(channel: Last<'_, rdma_event_channel>) -> Result<(), Errno> {
        let raw = channel.handle().get()?.raw().as_ptr();
        // SAFETY: the channel is alive, and not used afterwards.
        unsafe { (ops()?.channel_free)(raw) };
        // SAFETY: it came from `Box::into_raw`.
        let object = unsafe { Box::from_raw(channel.as_ptr().cast::<Self>()) };
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

// SAFETY: programs have pointers to this type from `ChannelObject::create` only. The C part is the
// first member. A late call finds the memory of an ended channel, which is kept.
unsafe impl CObject for rdma_event_channel {
    type Object = ChannelObject;

    fn check(_: &ChannelObject) -> Result<(), Errno> {
        // The engine tells inherited ones apart.
        Ok(())
    }
}

/// A connection manager ID. The program has a pointer to its C part, and reads and writes it.
#[repr(C)]
pub(crate) struct IdObject {
    pub(crate) c: UnsafeCell<rdma_cm_id>,
    pub(crate) raw: EngineId,
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
    /// Creates an ID for an object of the engine, which `make` creates from the cookie.
    pub(crate) fn create(
        make: impl FnOnce(u64) -> Result<EngineId, Errno>,
        channel: *mut rdma_event_channel,
        context: *mut c_void,
        (ps, qp_type): (c_uint, c_uint),
    ) -> Result<New<rdma_cm_id>, Errno> {
        let generation = engine::generation()?;
        let mut place = Box::<Self>::new_uninit();
        let address = place.as_mut_ptr();
        let raw = make(address.expose_provenance() as u64)?;
        let mut c: rdma_cm_id = zeroed();
        c.channel = channel;
        c.context = context;
        c.ps = ps;
        c.qp_type = qp_type;
        place.write(Self {
            c: UnsafeCell::new(c),
            raw,
            generation,
            state: Mutex::default(),
            completed: Mutex::new(0),
            all_completed: Condvar::new(),
            path: UnsafeCell::new(zeroed()),
        });
        // SAFETY: a new object, whose first member is the C part.
        Ok(unsafe { New::of(Box::into_raw(place).cast()) })
    }

    /// Reads a member of the C part.
    pub(crate) fn member<T: Copy>(&self, member: Member<rdma_cm_id, T>) -> T {
        // SAFETY: the C part is alive. The program does not write the member during a call for
        // this ID.
        unsafe { member.of(self.c.get()).read() }
    }

    /// Writes a member of the C part.
    pub(crate) fn set_member<T: Copy>(&self, member: Member<rdma_cm_id, T>, value: T) {
        // SAFETY: the C part is alive. A program must not use the member during a call for this
        // ID.
        unsafe { member.of(self.c.get()).write(value) };
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
        let mut route: rocade_cm_route = zeroed();
        self.raw.route(Out::of(&mut route))?;
        let device = devices::at(route.device)?;
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
        if route.src.ss_family != 0 {
            self.set_member(member!(rdma_cm_id, route.addr.src_storage), route.src);
        }
        if route.dst.ss_family != 0 {
            self.set_member(member!(rdma_cm_id, route.addr.dst_storage), route.dst);
        }
        if let Some(device) = device {
            self.set_member(member!(rdma_cm_id, verbs), device.verbs.as_ptr());
            self.set_member(member!(rdma_cm_id, port_num), route.port_num);
            if self.pd().is_null() {
                self.set_member(member!(rdma_cm_id, pd), device.pd.as_ptr());
            }
            let ib = rdma_ib_addr {
                sgid: ibv_gid { raw: route.sgid },
                dgid: ibv_gid { raw: route.dgid },
                pkey: PKEY.to_be(),
            };
            self.set_member(member!(rdma_cm_id, route.addr.addr), ib);
        }
        // SAFETY: the path is alive, and accessed through pointers only.
        unsafe { self.path.get().write(path) };
        Ok(())
    }

    /// Shows the path in the C part, once it is resolved.
    pub(crate) fn show_path(&self) {
        self.set_member(member!(rdma_cm_id, route.path_rec), self.path.get());
        self.set_member(member!(rdma_cm_id, route.num_paths), 1);
    }

    /// Returns the path, once it is shown.
    pub(crate) fn shown_path(&self) -> Option<ibv_sa_path_rec> {
        let is_shown = self.member(member!(rdma_cm_id, route.num_paths)) > 0;
        // SAFETY: the path is alive, and accessed through pointers only.
        is_shown.then(|| unsafe { self.path.get().read() })
    }

    /// Waits in synchronous mode for the event of a call, and returns its result.
    //= LRC-02
    pub(crate) fn complete(&self) -> Result<(), Errno> {
        if !self.state.lock().sync {
            return Ok(());
        }
        self.forget_event();
        let (made, event) = self.next_event()?;
        self.set_member(member!(rdma_cm_id, event), made);
        match event.status {
            0 => Ok(()),
            _ if event.event == event::REJECTED => Err(Errno(libc::ECONNREFUSED)),
            status => Err(Errno(status.abs())),
        }
    }

    /// Waits for an event on the channel of the ID. Returns it with a copy.
    ///
    /// # Errors
    /// Those of `rdma_get_cm_event`.
    pub(crate) fn next_event(&self) -> Result<(*mut rdma_cm_event, rdma_cm_event), Errno> {
        let channel = self.member(member!(rdma_cm_id, channel));
        // SAFETY: the channel lives as long as the ID is on it.
        let channel = unsafe { Handle::new(channel) };
        let mut made = ptr::null_mut();
        if event::rdma_get_cm_event(channel, Out::of(&mut made)) != 0 {
            return Err(Errno::last());
        }
        // SAFETY: an event was written, and is not acknowledged yet.
        Ok((made, unsafe { made.read() }))
    }

    /// Acknowledges the event that the C part points to.
    pub(crate) fn forget_event(&self) {
        let event = self.member(member!(rdma_cm_id, event));
        if !event.is_null() {
            self.set_member(member!(rdma_cm_id, event), ptr::null_mut());
            // SAFETY: a live event that is not used afterwards.
            event::rdma_ack_cm_event(unsafe { Last::new(event) });
        }
    }
}

// SAFETY: programs have pointers to this type from `IdObject::create` only. The C part is the first
// member.
unsafe impl CObject for rdma_cm_id {
    type Object = IdObject;

    fn check(object: &IdObject) -> Result<(), Errno> {
        if object.generation == engine::generation()? {
            Ok(())
        } else {
            // The ID belongs to the parent of this process.
            Err(Errno::NODEV)
        }
    }
}

/// Defines accessors for the objects that an ID has, and the end of those that it owns.
macro_rules! objects_of_ids {
    ($($member:ident $(ends with $end:ident)?: $object:ty;)+) => {
        impl IdObject {
            $(
                /// Returns the ID's object, or NULL.
                pub(crate) fn $member(&self) -> Handle<'_, $object> {
                    let object = self.member(member!(rdma_cm_id, $member));
                    // SAFETY: NULL, or an object that lives as long as the ID has it.
                    unsafe { Handle::new(object) }
                }
                $(
                    /// Calls `destroy` with the ID's object, if it has one, and forgets the object.
                    ///
                    /// # Errors
                    /// That of `destroy`. The ID then keeps the object.
                    pub(crate) fn $end(
                        &self,
                        destroy: impl FnOnce(Last<'_, $object>) -> Result<(), Errno>,
                    ) -> Result<(), Errno> {
                        let object = self.member(member!(rdma_cm_id, $member));
                        if !object.is_null() {
                            // SAFETY: that of the ID, which forgets it.
                            destroy(unsafe { Last::new(object) })?;
                            self.set_member(member!(rdma_cm_id, $member), ptr::null_mut());
                        }
                        Ok(())
                    }
                )?
            )+
        }
    };
}

objects_of_ids! {
    verbs: ibv_context;
    pd: ibv_pd;
    qp ends with end_qp: ibv_qp;
    srq ends with end_srq: ibv_srq;
    recv_cq ends with end_recv_cq: ibv_cq;
    recv_cq_channel ends with end_recv_cq_channel: ibv_comp_channel;
    send_cq ends with end_send_cq: ibv_cq;
    send_cq_channel ends with end_send_cq_channel: ibv_comp_channel;
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

/// The channel of an ID.
enum Channel<'a> {
    /// The program's channel.
    Given(Handle<'a, rdma_event_channel>),
    /// A new channel, because the program gave none.
    Own(New<rdma_event_channel>),
}

impl<'a> Channel<'a> {
    fn new(given: Handle<'a, rdma_event_channel>) -> Result<Self, Errno> {
        match given.some() {
            Some(given) => Ok(Self::Given(given)),
            None => ChannelObject::create().map(Self::Own),
        }
    }

    const fn handle(&self) -> Handle<'_, rdma_event_channel> {
        match self {
            Self::Given(channel) => *channel,
            Self::Own(channel) => channel.handle(),
        }
    }

    const fn is_own(&self) -> bool {
        matches!(self, Self::Own(_))
    }

    /// Destroys a new channel.
    fn end(self) -> Result<(), Errno> {
        match self {
            Self::Given(_) => Ok(()),
            Self::Own(channel) => ChannelObject::end(channel.into_last()),
        }
    }
}

/// Creates an ID. An ID without a channel gets its own one.
pub(crate) fn create(
    channel: Handle<'_, rdma_event_channel>,
    context: *mut c_void,
    ps: c_uint,
    qp_type: c_uint,
) -> Result<New<rdma_cm_id>, Errno> {
    let channel = Channel::new(channel)?;
    let live = channel.handle();
    //= LRC-22
    let connects = match qp_type_of(ps) {
        Some(of_ps) if ps != PS_IB => of_ps,
        _ => qp_type,
    };
    let made = live.get().and_then(|object| {
        let make = |cookie| EngineId::create(object.raw(), (ps, connects), cookie);
        IdObject::create(make, live.as_ptr(), context, (ps, qp_type))
    });
    let id = match made {
        Ok(id) => id,
        Err(error) => {
            channel.end()?;
            return Err(error);
        }
    };
    id.get()?.state.lock().sync = channel.is_own();
    Ok(id)
}

/// Destroys an ID. Leaves an inherited one alone.
///
/// # Errors
/// `EINVAL` for NULL.
pub(crate) fn destroy(id: Last<'_, rdma_cm_id>) -> Result<(), Errno> {
    let object = match id.handle().get() {
        Ok(object) => object,
        // The ID belongs to the parent of this process.
        Err(Errno::NODEV) => return Ok(()),
        Err(error) => return Err(error),
    };
    let reported = object.raw.end()?;
    object.forget_event();
    object.wait_for(reported);
    let sync = object.state.lock().sync;
    let channel = object.member(member!(rdma_cm_id, channel));
    // SAFETY: it came from `Box::into_raw`, and this is its last use.
    drop(unsafe { Box::from_raw(id.as_ptr().cast::<IdObject>()) });
    if sync {
        // SAFETY: the ID's own channel.
        ChannelObject::end(unsafe { Last::new(channel) })?;
    }
    Ok(())
}

/// `rdma_create_event_channel`.
pub(crate) extern "C" fn rdma_create_event_channel() -> *mut rdma_event_channel {
    ptr_call(|| Ok(ChannelObject::create()?.into_c()))
}

/// `rdma_destroy_event_channel`.
pub(crate) extern "C" fn rdma_destroy_event_channel(channel: Last<'_, rdma_event_channel>) {
    void_call(|| ChannelObject::end(channel));
}

/// `rdma_create_id`.
//= LRC-02
pub(crate) extern "C" fn rdma_create_id(
    channel: Handle<'_, rdma_event_channel>,
    id: Out<'_, *mut rdma_cm_id>,
    context: *mut c_void,
    ps: c_uint,
) -> c_int {
    int_call(|| {
        if id.is_null() {
            return Err(Errno::INVAL);
        }
        let qp_type = qp_type_of(ps).ok_or(Errno::INVAL)?;
        id.write(create(channel, context, ps, qp_type)?.into_c())
    })
}

/// `rdma_destroy_id`.
pub(crate) extern "C" fn rdma_destroy_id(id: Last<'_, rdma_cm_id>) -> c_int {
    int_call(|| destroy(id))
}

/// `rdma_migrate_id`.
//= LRC-12
pub(crate) extern "C" fn rdma_migrate_id(
    id: Handle<'_, rdma_cm_id>,
    channel: Handle<'_, rdma_event_channel>,
) -> c_int {
    int_call(|| migrate(id.get()?, channel))
}

/// Moves an ID to a channel, or with NULL to a new one of its own.
///
/// # Errors
/// `EINVAL` for NULL if the ID has its own channel already, and the errno of the engine.
pub(crate) fn migrate(
    object: &IdObject,
    channel: Handle<'_, rdma_event_channel>,
) -> Result<(), Errno> {
    let was_sync = object.state.lock().sync;
    if was_sync && channel.is_null() {
        return Err(Errno::INVAL);
    }
    let channel = Channel::new(channel)?;
    let live = channel.handle();
    let mut reported = 0;
    let moved = object
        .raw
        .migrate(live.get()?.raw(), Out::of(&mut reported));
    if let Err(error) = moved {
        channel.end()?;
        return Err(error);
    }
    let old = object.member(member!(rdma_cm_id, channel));
    if was_sync {
        object.forget_event();
    }
    object.wait_for(reported);
    object.set_member(member!(rdma_cm_id, channel), live.as_ptr());
    object.state.lock().sync = channel.is_own();
    if was_sync {
        // SAFETY: the ID's own channel, which is not used any more.
        ChannelObject::end(unsafe { Last::new(old) })?;
    }
    Ok(())
}

fn port(storage: &sockaddr_storage) -> u16 {
    match Address::of(storage).read() {
        Ok(Sockaddr::V4(v4)) => v4.sin_port,
        Ok(Sockaddr::V6(v6)) => v6.sin6_port,
        Ok(Sockaddr::Ib(ib)) => {
            let [.., high, low] = u64::from_be(ib.sib_sid).to_be_bytes();
            u16::from_ne_bytes([high, low])
        }
        Ok(Sockaddr::Other) | Err(_) => 0,
    }
}

/// Returns the port of an address of an ID, or 0 for NULL. Also for an ID of the parent process.
fn port_of(id: Handle<'_, rdma_cm_id>, address: Member<rdma_cm_id, sockaddr_storage>) -> u16 {
    id.member(address).as_ref().map_or(0, port)
}

/// `rdma_get_src_port`: returns the port in network byte order.
//= LRC-17
pub(crate) extern "C" fn rdma_get_src_port(id: Handle<'_, rdma_cm_id>) -> u16 {
    port_of(id, member!(rdma_cm_id, route.addr.src_storage))
}

/// `rdma_get_dst_port`: returns the port in network byte order.
//= LRC-17
pub(crate) extern "C" fn rdma_get_dst_port(id: Handle<'_, rdma_cm_id>) -> u16 {
    port_of(id, member!(rdma_cm_id, route.addr.dst_storage))
}

/// `rdma_set_option`.
//= LRC-14
pub(crate) fn rdma_set_option(
    id: Handle<'_, rdma_cm_id>,
    level: c_int,
    name: c_int,
    value: Buffer<'_>,
) -> c_int {
    int_call(|| set_option(id.get()?, (level, name), value))
}

/// Sets an option of an ID.
///
/// # Errors
/// `EINVAL` for NULL, and the errno of the engine.
pub(crate) fn set_option(
    object: &IdObject,
    option: (c_int, c_int),
    value: Buffer<'_>,
) -> Result<(), Errno> {
    if value.is_null() {
        return Err(Errno::INVAL);
    }
    object.raw.set_option(option, value)
}

/// `rdma_set_local_ece`: sets the vendor options for the peer, for programs that create the queue
/// pair themselves.
pub(crate) extern "C" fn rdma_set_local_ece(
    id: Handle<'_, rdma_cm_id>,
    ece: In<'_, ibv_ece>,
) -> c_int {
    /// The first value that is too large for a vendor ID of 24 bits.
    const MOST: u32 = 1 << 24;
    int_call(|| {
        let object = id.get()?;
        let given = ece.read()?;
        let is_wrong = given.vendor_id == 0 || given.vendor_id >= MOST || given.comp_mask != 0;
        if is_wrong || !object.qp().is_null() {
            return Err(Errno::INVAL);
        }
        object.raw.set_ece(ece)
    })
}

/// `rdma_get_remote_ece`: returns the vendor options of the peer, for programs that create the
/// queue pair themselves.
pub(crate) extern "C" fn rdma_get_remote_ece(
    id: Handle<'_, rdma_cm_id>,
    ece: Out<'_, ibv_ece>,
) -> c_int {
    int_call(|| {
        let object = id.get()?;
        if ece.is_null() || !object.qp().is_null() {
            return Err(Errno::INVAL);
        }
        object.raw.remote_ece(ece)
    })
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

/// Copies an address. Returns `None` for another family.
///
/// # Errors
/// `EINVAL` for NULL.
pub(crate) fn copy_address(addr: Address<'_>) -> Result<Option<sockaddr_storage>, Errno> {
    Ok(addr.read()?.to_storage())
}
