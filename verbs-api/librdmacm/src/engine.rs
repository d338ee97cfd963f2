//! Access to the engine in `libibverbs.so.1`: its private table, and the verbs that the connection
//! manager calls.

use std::{
    ffi::{CStr, c_int, c_uint, c_void},
    io::{self, Write as _},
    sync::OnceLock,
    time::Duration,
};

use libc::pollfd;

use rocade_abi::{
    ROCADE_CM_VERSION, ibv_ah, ibv_ah_attr, ibv_comp_channel, ibv_context, ibv_cq, ibv_device,
    ibv_device_attr, ibv_gid, ibv_mr, ibv_pd, ibv_qp, ibv_qp_attr, ibv_qp_init_attr, ibv_srq,
    rocade_cm_ops,
};

use crate::ffi::Errno;
use crate::library::{self, function};

macro_rules! verbs {
    ($( $name:ident: fn($($arg:ty),*) -> $result:ty; )+) => {
        /// Functions of `libibverbs.so.1`.
        #[derive(Clone, Copy)]
        pub(crate) struct Verbs {
            $( pub(crate) $name: unsafe extern "C" fn($($arg),*) -> $result, )+
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
        }
    };
}

verbs! {
    ibv_get_device_list: fn(*mut c_int) -> *mut *mut ibv_device;
    ibv_free_device_list: fn(*mut *mut ibv_device) -> ();
    ibv_get_device_index: fn(*mut ibv_device) -> c_int;
    ibv_open_device: fn(*mut ibv_device) -> *mut ibv_context;
    ibv_query_device: fn(*mut ibv_context, *mut ibv_device_attr) -> c_int;
    ibv_alloc_pd: fn(*mut ibv_context) -> *mut ibv_pd;
    ibv_create_comp_channel: fn(*mut ibv_context) -> *mut ibv_comp_channel;
    ibv_destroy_comp_channel: fn(*mut ibv_comp_channel) -> c_int;
    ibv_create_cq: fn(*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int) -> *mut ibv_cq;
    ibv_destroy_cq: fn(*mut ibv_cq) -> c_int;
    ibv_resize_cq: fn(*mut ibv_cq, c_int) -> c_int;
    ibv_create_qp: fn(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp;
    ibv_modify_qp: fn(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int;
    ibv_destroy_qp: fn(*mut ibv_qp) -> c_int;
    ibv_attach_mcast: fn(*mut ibv_qp, *const ibv_gid, u16) -> c_int;
    ibv_detach_mcast: fn(*mut ibv_qp, *const ibv_gid, u16) -> c_int;
    ibv_destroy_srq: fn(*mut ibv_srq) -> c_int;
    ibv_reg_mr: fn(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr;
    ibv_dereg_mr: fn(*mut ibv_mr) -> c_int;
    ibv_get_cq_event: fn(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int;
    ibv_ack_cq_events: fn(*mut ibv_cq, c_uint) -> ();
    ibv_create_ah: fn(*mut ibv_pd, *mut ibv_ah_attr) -> *mut ibv_ah;
    ibv_destroy_ah: fn(*mut ibv_ah) -> c_int;
    ibv_query_gid: fn(*mut ibv_context, u8, c_int, *mut ibv_gid) -> c_int;
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
        let mut info: libc::Dl_info = std::mem::zeroed();
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
    // SAFETY: a function without arguments.
    Ok(unsafe { (ops()?.generation)() })
}
