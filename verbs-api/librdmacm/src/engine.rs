//! Access to the engine in `libibverbs.so.1`: its private table, and the verbs that the connection
//! manager calls.

use std::{
    ffi::{CStr, c_int, c_uint, c_void},
    io::{self, Write as _},
    ptr,
    sync::OnceLock,
    time::Duration,
};

use libc::{pollfd, sockaddr};

use rocade_abi::{
    ROCADE_CM_VERSION, ibv_ah, ibv_ah_attr, ibv_comp_channel, ibv_context, ibv_cq, ibv_device,
    ibv_device_attr, ibv_ece, ibv_gid, ibv_mr, ibv_pd, ibv_qp, ibv_qp_attr, ibv_qp_init_attr,
    ibv_srq, rdma_conn_param, rocade_cm_channel, rocade_cm_id, rocade_cm_ops, rocade_cm_route,
};

use crate::args::{Address, Buffer, FromC, Handle, In, InOut, IntoC, Last, List, New, Out, zeroed};
use crate::ffi::Errno;
use crate::library::{self, function};

/// Declares functions of `libibverbs.so.1`, each parameter with the type that C declares.
macro_rules! verbs {
    ($( $name:ident: fn($($arg:ident: $typed:ty => $raw:ty),*) -> $made:ty => $result:ty; )+) => {
        /// Functions of `libibverbs.so.1`.
        #[derive(Clone, Copy)]
        pub(crate) struct Verbs {
            $( $name: unsafe extern "C" fn($($raw),*) -> $result, )+
        }

        impl Verbs {
            /// # Safety
            /// `library` must be a handle of Rocade's `libibverbs.so.1`.
            unsafe fn find(library: *mut c_void) -> Option<Self> {
                Some(Self {
                    $( $name: {
                        // The name is terminated.
                        let name = concat!(stringify!($name), "\0").as_ptr().cast();
                        // SAFETY: by contract a library, whose function of that name has this type.
                        unsafe { function(library, name) }?
                    }, )+
                })
            }

            $(
                /// Calls the verb of this name.
                pub(crate) fn $name(&self, $($arg: $typed),*) -> $made {
                    // SAFETY: each argument is as its type promises, which is what the verb
                    // demands. The result is that of the verb.
                    unsafe { FromC::from_c((self.$name)($(IntoC::into_c($arg)),*)) }
                }
            )+
        }
    };
}

verbs! {
    ibv_get_device_list: fn(count: Out<'_, c_int> => *mut c_int) -> Result<DeviceList, Errno> => *mut *mut ibv_device;
    ibv_get_device_index: fn(device: Handle<'_, ibv_device> => *mut ibv_device) -> c_int => c_int;
    ibv_open_device: fn(device: Handle<'_, ibv_device> => *mut ibv_device) -> Result<New<ibv_context>, Errno> => *mut ibv_context;
    ibv_query_device: fn(
        context: Handle<'_, ibv_context> => *mut ibv_context,
        attr: Out<'_, ibv_device_attr> => *mut ibv_device_attr) -> c_int => c_int;
    ibv_alloc_pd: fn(context: Handle<'_, ibv_context> => *mut ibv_context) -> Result<New<ibv_pd>, Errno> => *mut ibv_pd;
    ibv_create_comp_channel: fn(
        context: Handle<'_, ibv_context> => *mut ibv_context) -> Result<New<ibv_comp_channel>, Errno> => *mut ibv_comp_channel;
    ibv_destroy_comp_channel: fn(
        channel: Last<'_, ibv_comp_channel> => *mut ibv_comp_channel) -> c_int => c_int;
    ibv_create_cq: fn(
        context: Handle<'_, ibv_context> => *mut ibv_context, entries: c_int => c_int,
        cq_context: *mut c_void => *mut c_void,
        channel: Handle<'_, ibv_comp_channel> => *mut ibv_comp_channel, vector: c_int => c_int
    ) -> Result<New<ibv_cq>, Errno> => *mut ibv_cq;
    ibv_destroy_cq: fn(cq: Last<'_, ibv_cq> => *mut ibv_cq) -> c_int => c_int;
    ibv_resize_cq: fn(cq: Handle<'_, ibv_cq> => *mut ibv_cq, entries: c_int => c_int) -> c_int => c_int;
    ibv_create_qp: fn(
        pd: Handle<'_, ibv_pd> => *mut ibv_pd,
        attr: InOut<'_, ibv_qp_init_attr> => *mut ibv_qp_init_attr) -> Result<New<ibv_qp>, Errno> => *mut ibv_qp;
    ibv_modify_qp: fn(
        qp: Handle<'_, ibv_qp> => *mut ibv_qp, attr: In<'_, ibv_qp_attr> => *mut ibv_qp_attr,
        mask: c_int => c_int) -> c_int => c_int;
    ibv_destroy_qp: fn(qp: Last<'_, ibv_qp> => *mut ibv_qp) -> c_int => c_int;
    ibv_attach_mcast: fn(
        qp: Handle<'_, ibv_qp> => *mut ibv_qp, gid: In<'_, ibv_gid> => *const ibv_gid,
        lid: u16 => u16) -> c_int => c_int;
    ibv_detach_mcast: fn(
        qp: Handle<'_, ibv_qp> => *mut ibv_qp, gid: In<'_, ibv_gid> => *const ibv_gid,
        lid: u16 => u16) -> c_int => c_int;
    ibv_destroy_srq: fn(srq: Last<'_, ibv_srq> => *mut ibv_srq) -> c_int => c_int;
    ibv_dereg_mr: fn(mr: Last<'_, ibv_mr> => *mut ibv_mr) -> c_int => c_int;
    ibv_get_cq_event: fn(
        channel: Handle<'_, ibv_comp_channel> => *mut ibv_comp_channel,
        cq: Out<'_, *mut ibv_cq> => *mut *mut ibv_cq,
        context: Out<'_, *mut c_void> => *mut *mut c_void) -> c_int => c_int;
    ibv_ack_cq_events: fn(cq: Handle<'_, ibv_cq> => *mut ibv_cq, count: c_uint => c_uint) -> () => ();
    ibv_create_ah: fn(
        pd: Handle<'_, ibv_pd> => *mut ibv_pd, attr: In<'_, ibv_ah_attr> => *mut ibv_ah_attr
    ) -> Result<New<ibv_ah>, Errno> => *mut ibv_ah;
    ibv_destroy_ah: fn(ah: Last<'_, ibv_ah> => *mut ibv_ah) -> c_int => c_int;
    ibv_query_gid: fn(
        context: Handle<'_, ibv_context> => *mut ibv_context, port: u8 => u8, index: c_int => c_int,
        gid: Out<'_, ibv_gid> => *mut ibv_gid) -> c_int => c_int;
    ibv_free_device_list: fn(list: DeviceList => *mut *mut ibv_device) -> () => ();
    ibv_reg_mr: fn(
        pd: Handle<'_, ibv_pd> => *mut ibv_pd, start: Lent => *mut c_void, len: usize => usize,
        access: c_int => c_int) -> Result<New<ibv_mr>, Errno> => *mut ibv_mr;
}

/// The list of `ibv_get_device_list`, for its end.
pub(crate) struct DeviceList(*mut *mut ibv_device);

impl DeviceList {
    /// Returns the devices, whose number the call has written.
    pub(crate) fn devices(
        &self,
        count: c_int,
    ) -> impl Iterator<Item = Handle<'static, ibv_device>> {
        // SAFETY: the list ends with NULL, and has devices until then, which are never freed.
        let list: List<'static, *mut ibv_device> = unsafe { List::new(self.0, count) };
        list.handles()
    }
}

impl FromC<*mut *mut ibv_device> for Result<DeviceList, Errno> {
    unsafe fn from_c(list: *mut *mut ibv_device) -> Self {
        Errno::made(list).map(DeviceList)
    }
}

impl IntoC<*mut *mut ibv_device> for DeviceList {
    fn into_c(self) -> *mut *mut ibv_device {
        self.0
    }
}

/// The start of memory that a region may use until it is deregistered. Peers may change it as long
/// as the region exists, as far as its rights allow.
pub(crate) struct Lent(*mut c_void);

impl Lent {
    /// Returns the address, which work requests may name.
    pub(crate) fn expose(&self) -> usize {
        self.0.expose_provenance()
    }
}

impl FromC<*mut c_void> for Lent {
    unsafe fn from_c(start: *mut c_void) -> Self {
        Self(start)
    }
}

impl IntoC<*mut c_void> for Lent {
    fn into_c(self) -> *mut c_void {
        self.0
    }
}

/// An ID of the engine.
#[repr(transparent)]
pub(crate) struct EngineId(*mut rocade_cm_id);

/// Declares functions of the private table for an ID, each parameter with the type that C declares.
macro_rules! id_calls {
    ($( $name:ident = $op:ident($($arg:ident: $typed:ty => $raw:ty),*); )+) => {
        impl EngineId {
            $(
                /// Calls the function of the table.
                ///
                /// # Errors
                /// As for [`ops`], and the errno of the call.
                pub(crate) fn $name(&self, $($arg: $typed),*) -> Result<(), Errno> {
                    let call: unsafe extern "C" fn(*mut rocade_cm_id, $($raw),*) -> c_int =
                        ops()?.$op;
                    // SAFETY: a live ID. Each argument is as its type promises.
                    Errno::check(unsafe { call(self.0, $(IntoC::into_c($arg)),*) })
                }
            )+
        }
    };
}

id_calls! {
    bind = id_bind(addr: Address<'_> => *const sockaddr);
    resolve_addr = id_resolve_addr(
        src: Address<'_> => *const sockaddr, dst: Address<'_> => *const sockaddr,
        timeout_ms: c_int => c_int);
    resolve_route = id_resolve_route();
    listen = id_listen(backlog: c_int => c_int);
    connect = id_connect(param: In<'_, rdma_conn_param> => *const rdma_conn_param);
    establish = id_establish();
    accept = id_accept(
        cookie: u64 => u64, param: In<'_, rdma_conn_param> => *const rdma_conn_param);
    disconnect = id_disconnect();
    notify = id_notify();
    write_event = id_write_event(
        kind: c_uint => u32, status: c_int => c_int, argument: u64 => u64);
    qp_attr = id_qp_attr(
        attr: InOut<'_, ibv_qp_attr> => *mut ibv_qp_attr, mask: Out<'_, c_int> => *mut c_int);
    set_ece = id_set_ece(ece: In<'_, ibv_ece> => *const ibv_ece);
    remote_ece = id_remote_ece(ece: Out<'_, ibv_ece> => *mut ibv_ece);
    migrate = id_migrate(
        channel: Handle<'_, rocade_cm_channel> => *const rocade_cm_channel,
        reported: Out<'_, u64> => *mut u64);
    join = id_join(group: Address<'_> => *const sockaddr, token: u64 => u64);
    leave = id_leave(token: u64 => u64);
    route = id_route(route: Out<'_, rocade_cm_route> => *mut rocade_cm_route);
}

impl EngineId {
    /// Takes an ID of the engine.
    ///
    /// # Safety
    /// `id` must be alive, and belong to no other object.
    pub(crate) const unsafe fn new(id: *mut rocade_cm_id) -> Self {
        Self(id)
    }

    /// Creates an ID.
    ///
    /// # Errors
    /// As for [`ops`], and the errno of the call.
    pub(crate) fn create(
        channel: Handle<'_, rocade_cm_channel>,
        (ps, qp_type): (c_uint, c_uint),
        cookie: u64,
    ) -> Result<Self, Errno> {
        let mut id = ptr::null_mut();
        // SAFETY: a live channel, and room for the answer.
        let code = unsafe { (ops()?.id_new)(channel.as_ptr(), ps, qp_type, cookie, &raw mut id) };
        Errno::check(code)?;
        Ok(Self(id))
    }

    /// Rejects a request with private data.
    ///
    /// # Errors
    /// As for [`ops`], and the errno of the call.
    pub(crate) fn reject(&self, reason: u16, data: Buffer<'_>) -> Result<(), Errno> {
        let len = u8::try_from(data.len()).map_err(|_| Errno::INVAL)?;
        // SAFETY: a live ID, and private data of that length.
        Errno::check(unsafe { (ops()?.id_reject)(self.0, reason, data.as_ptr(), len) })
    }

    /// Sets an option.
    ///
    /// # Errors
    /// As for [`ops`], and the errno of the call.
    pub(crate) fn set_option(
        &self,
        (level, name): (c_int, c_int),
        value: Buffer<'_>,
    ) -> Result<(), Errno> {
        let (place, len) = (value.as_ptr(), value.len());
        // SAFETY: a live ID, and a value of that length.
        Errno::check(unsafe { (ops()?.id_set_option)(self.0, level, name, place, len) })
    }

    /// Ends the ID. Returns how many events were delivered.
    ///
    /// # Errors
    /// As for [`ops`].
    pub(crate) fn end(&self) -> Result<u64, Errno> {
        // SAFETY: a live ID, which is still there afterwards.
        Ok(unsafe { (ops()?.id_destroy)(self.0) })
    }
}

impl Drop for EngineId {
    fn drop(&mut self) {
        if let Ok(ops) = ops() {
            // SAFETY: this value owns the ID.
            unsafe { (ops.id_free)(self.0) };
        }
    }
}

/// The functions found in `libibverbs.so.1`.
struct Library {
    ops: &'static rocade_cm_ops,
    verbs: Verbs,
}

static LIBRARY: OnceLock<Option<Library>> = OnceLock::new();

/// Looks up the private table and the verbs.
fn open() -> Option<Library> {
    let library = library::find();
    if library.is_null() {
        return None;
    }
    // SAFETY: a handle of dlopen(3). Only Rocade's library has a function of this name, and it has
    // this type.
    let found: Option<extern "C" fn() -> *const rocade_cm_ops> =
        unsafe { function(library, c"rocade_cm".as_ptr()) };
    let Some(ops) = found else {
        warn_of(library);
        return None;
    };
    // SAFETY: the table is a static of the library, which is never unloaded.
    let ops = unsafe { ops().as_ref() }?;
    if ops.version != ROCADE_CM_VERSION {
        return None;
    }
    // SAFETY: a library that has the private table is Rocade's.
    let verbs = unsafe { Verbs::find(library) }?;
    Some(Library { ops, verbs })
}

/// Tells the user that the program has loaded another `libibverbs.so.1`, a handle of dlopen(3).
fn warn_of(library: *mut c_void) {
    // SAFETY: a handle, a terminated name, and room for the answer, for which zeroes are valid.
    let info = unsafe {
        let mut info: libc::Dl_info = zeroed();
        let verb = libc::dlsym(library, c"ibv_get_device_list".as_ptr());
        libc::dladdr(verb, &raw mut info);
        info
    };
    let file = if info.dli_fname.is_null() {
        "another libibverbs.so.1".into()
    } else {
        // SAFETY: the name of a loaded library, a terminated string.
        unsafe { CStr::from_ptr(info.dli_fname) }.to_string_lossy()
    };
    // A standard error that cannot be written is no reason to fail.
    let _ = writeln!(
        io::stderr(),
        "rocade: warning: the program has loaded {file} and not Rocade's library, so librdmacm \
         finds no devices\n  put Rocade's first: rocade run -- env \
         LD_PRELOAD=$(rocade libdir)/libibverbs.so.1 CMD..."
    );
}

fn library() -> Result<&'static Library, Errno> {
    let library = LIBRARY.get_or_init(open).as_ref();
    library.ok_or(Errno(libc::EOPNOTSUPP))
}

/// Returns the private table.
///
/// # Errors
/// `EOPNOTSUPP` if the program uses a `libibverbs.so.1` other than Rocade's.
pub(crate) fn ops() -> Result<&'static rocade_cm_ops, Errno> {
    Ok(library()?.ops)
}

/// Returns the verbs.
///
/// # Errors
/// As for [`ops`].
pub(crate) fn verbs() -> Result<&'static Verbs, Errno> {
    Ok(&library()?.verbs)
}

/// Gives the calling thread, which serves the whole program, the processors and the priority of the
/// program.
pub(crate) fn settle_thread() {
    if let Ok(ops) = ops() {
        (ops.settle_thread)();
    }
}

/// Waits like ppoll(2), and receives packets meanwhile. Returns the number of ready descriptors. No
/// cancellation point.
///
/// # Errors
/// As for [`ops`], and `EINTR`.
pub(crate) fn poll(fds: &mut [pollfd], limit: Option<Duration>) -> Result<usize, Errno> {
    let limit = limit.map_or(-1, |limit| {
        i64::try_from(limit.as_nanos()).unwrap_or(i64::MAX)
    });
    // SAFETY: as many entries.
    let ready = unsafe { (ops()?.poll)(fds.as_mut_ptr(), fds.len(), limit) };
    usize::try_from(ready).map_err(|_| Errno(-ready))
}

/// Returns the fork generation, which counts the forks of the process.
///
/// # Errors
/// As for [`ops`].
pub(crate) fn generation() -> Result<u32, Errno> {
    Ok((ops()?.generation)())
}
