//! The built library, used like by a C program.

use std::{
    ffi::{CString, c_char, c_int, c_uint, c_void},
    mem, ptr,
    sync::OnceLock,
};

use rocade_abi::{
    IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_ATOMIC, IBV_ACCESS_REMOTE_READ,
    IBV_ACCESS_REMOTE_WRITE, IBV_MTU_1024, IBV_QP_ACCESS_FLAGS, IBV_QP_AV, IBV_QP_DEST_QPN,
    IBV_QP_MAX_DEST_RD_ATOMIC, IBV_QP_MAX_QP_RD_ATOMIC, IBV_QP_MIN_RNR_TIMER, IBV_QP_PATH_MTU,
    IBV_QP_PKEY_INDEX, IBV_QP_PORT, IBV_QP_RETRY_CNT, IBV_QP_RNR_RETRY, IBV_QP_RQ_PSN,
    IBV_QP_SQ_PSN, IBV_QP_STATE, IBV_QP_TIMEOUT, IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS,
    IBV_QPT_RC, VERBS_ABI_IS_EXTENDED, ibv_async_event, ibv_comp_channel, ibv_context, ibv_cq,
    ibv_device, ibv_device_attr, ibv_ece, ibv_gid, ibv_mr, ibv_pd, ibv_port_attr, ibv_qp,
    ibv_qp_attr, ibv_qp_cap, ibv_qp_ex, ibv_qp_init_attr, ibv_srq, ibv_srq_init_attr,
    verbs_context,
};

/// Declares the exported functions that the tests call. They are looked up with their version, like
/// by the loader.
macro_rules! functions {
    ($( $name:ident @ $version:literal: fn($($arg:ty),* $(,)?) $(-> $ret:ty)?; )+) => {
        /// Entry points of the library.
        #[derive(Debug)]
        pub(crate) struct Library {
            $( pub(crate) $name: unsafe extern "C" fn($($arg),*) $(-> $ret)?, )+
        }

        impl Library {
            fn load(handle: *mut c_void) -> Self {
                // SAFETY: the types are those of the C header.
                unsafe { Self {
                    $( $name: mem::transmute::<
                        *mut c_void,
                        unsafe extern "C" fn($($arg),*) $(-> $ret)?,
                    >(symbol(handle, stringify!($name), $version)), )+
                } }
            }
        }
    };
}

functions! {
    ibv_get_device_list @ "IBVERBS_1.1": fn(*mut c_int) -> *mut *mut ibv_device;
    ibv_free_device_list @ "IBVERBS_1.1": fn(*mut *mut ibv_device);
    ibv_get_device_name @ "IBVERBS_1.1": fn(*mut ibv_device) -> *const c_char;
    ibv_open_device @ "IBVERBS_1.1": fn(*mut ibv_device) -> *mut ibv_context;
    ibv_close_device @ "IBVERBS_1.1": fn(*mut ibv_context) -> c_int;
    ibv_query_device @ "IBVERBS_1.1": fn(*mut ibv_context, *mut ibv_device_attr) -> c_int;
    ibv_query_port @ "IBVERBS_1.1": fn(*mut ibv_context, u8, *mut ibv_port_attr) -> c_int;
    ibv_query_gid @ "IBVERBS_1.1": fn(*mut ibv_context, u8, c_int, *mut ibv_gid) -> c_int;
    ibv_query_pkey @ "IBVERBS_1.1": fn(*mut ibv_context, u8, c_int, *mut u16) -> c_int;
    ibv_alloc_pd @ "IBVERBS_1.1": fn(*mut ibv_context) -> *mut ibv_pd;
    ibv_dealloc_pd @ "IBVERBS_1.1": fn(*mut ibv_pd) -> c_int;
    ibv_reg_mr @ "IBVERBS_1.1": fn(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr;
    ibv_dereg_mr @ "IBVERBS_1.1": fn(*mut ibv_mr) -> c_int;
    ibv_create_comp_channel @ "IBVERBS_1.0": fn(*mut ibv_context) -> *mut ibv_comp_channel;
    ibv_destroy_comp_channel @ "IBVERBS_1.0": fn(*mut ibv_comp_channel) -> c_int;
    ibv_get_cq_event @ "IBVERBS_1.1":
        fn(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int;
    ibv_ack_cq_events @ "IBVERBS_1.1": fn(*mut ibv_cq, c_uint);
    ibv_create_cq @ "IBVERBS_1.1":
        fn(*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int) -> *mut ibv_cq;
    ibv_resize_cq @ "IBVERBS_1.1": fn(*mut ibv_cq, c_int) -> c_int;
    ibv_destroy_cq @ "IBVERBS_1.1": fn(*mut ibv_cq) -> c_int;
    ibv_create_qp @ "IBVERBS_1.1": fn(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp;
    ibv_modify_qp @ "IBVERBS_1.1": fn(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int;
    ibv_query_qp @ "IBVERBS_1.1":
        fn(*mut ibv_qp, *mut ibv_qp_attr, c_int, *mut ibv_qp_init_attr) -> c_int;
    ibv_destroy_qp @ "IBVERBS_1.1": fn(*mut ibv_qp) -> c_int;
    ibv_create_ah @ "IBVERBS_1.1": fn(*mut ibv_pd, *mut rocade_abi::ibv_ah_attr) -> *mut rocade_abi::ibv_ah;
    ibv_create_srq @ "IBVERBS_1.1": fn(*mut ibv_pd, *mut ibv_srq_init_attr) -> *mut ibv_srq;
    ibv_query_ece @ "IBVERBS_1.10": fn(*mut ibv_qp, *mut ibv_ece) -> c_int;
    ibv_qp_to_qp_ex @ "IBVERBS_1.6": fn(*mut ibv_qp) -> *mut ibv_qp_ex;
    ibv_get_async_event @ "IBVERBS_1.1": fn(*mut ibv_context, *mut ibv_async_event) -> c_int;
}

fn symbol(handle: *mut c_void, name: &str, version: &str) -> *mut c_void {
    let c_name = CString::new(name).expect("no NUL in a symbol");
    let c_version = CString::new(version).expect("no NUL in a version");
    // SAFETY: an open library and terminated strings.
    let found = unsafe { libc::dlvsym(handle, c_name.as_ptr(), c_version.as_ptr()) };
    assert!(!found.is_null(), "{name}@{version} is not there");
    found
}

/// Returns the library, built and loaded once. The process uses an address of its own and no
/// broker, so that test programs may run in parallel.
pub(crate) fn library() -> &'static Library {
    static LIBRARY: OnceLock<Library> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        use_address(std::process::id());
        let path = rocade_symbols::verify::built_library("ibverbs");
        let c_path = CString::new(path.to_str().expect("UTF-8 path")).expect("no NUL in a path");
        // SAFETY: a terminated string. The library's initializers have no requirements.
        let handle = unsafe { libc::dlopen(c_path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        assert!(!handle.is_null(), "{} does not load", path.display());
        Library::load(handle)
    })
}

/// Makes the library use a loopback address chosen by `number`.
pub(crate) fn use_address(number: u32) {
    let [_, high, middle, low] = (number.wrapping_mul(3) | 1).to_be_bytes();
    let address = format!("127.{}.{middle}.{low}", high | 0x80);
    // SAFETY: called before the library reads its environment, and by one thread.
    unsafe { std::env::set_var("ROCADE_IP", address) };
    // SAFETY: as above.
    unsafe { std::env::set_var("ROCADE_BROKER", "embedded") };
}

pub(crate) fn errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// Returns the extended context around `context`, found like by the header's inline functions.
///
/// # Safety
/// `context` must be open.
pub(crate) unsafe fn extended(context: *mut ibv_context) -> verbs_context {
    // SAFETY: an open context.
    assert_eq!(unsafe { (*context).abi_compat }, VERBS_ABI_IS_EXTENDED);
    // SAFETY: the container rule of the ABI.
    unsafe {
        *context
            .byte_sub(mem::offset_of!(verbs_context, context))
            .cast::<verbs_context>()
    }
}

/// An open device with a protection domain.
pub(crate) struct Device {
    pub(crate) lib: &'static Library,
    pub(crate) context: *mut ibv_context,
    pub(crate) pd: *mut ibv_pd,
}

impl Device {
    /// Opens the first device.
    pub(crate) fn open() -> Self {
        let lib = library();
        let mut count = -1;
        // SAFETY: a writable count.
        let list = unsafe { (lib.ibv_get_device_list)(&raw mut count) };
        assert!(
            !list.is_null() && count == 1,
            "{count} devices, errno {}",
            errno()
        );
        // SAFETY: the list has one entry and the terminator.
        let (device, end) = unsafe { (*list, *list.add(1)) };
        assert!(end.is_null());
        // SAFETY: from the list.
        let context = unsafe { (lib.ibv_open_device)(device) };
        assert!(!context.is_null(), "errno {}", errno());
        // SAFETY: from `ibv_get_device_list`. An open device may outlive the list.
        unsafe { (lib.ibv_free_device_list)(list) };
        // SAFETY: an open context.
        let pd = unsafe { (lib.ibv_alloc_pd)(context) };
        assert!(!pd.is_null());
        Self { lib, context, pd }
    }

    /// Deallocates the domain and closes the context.
    pub(crate) fn close(self) {
        // SAFETY: both are alive and not used afterwards.
        unsafe {
            assert_eq!((self.lib.ibv_dealloc_pd)(self.pd), 0);
            assert_eq!((self.lib.ibv_close_device)(self.context), 0);
        }
    }

    pub(crate) fn create_cq(&self, cqe: c_int, channel: *mut ibv_comp_channel) -> *mut ibv_cq {
        // SAFETY: an open context and a live channel or NULL.
        let cq =
            unsafe { (self.lib.ibv_create_cq)(self.context, cqe, ptr::null_mut(), channel, 0) };
        assert!(!cq.is_null(), "errno {}", errno());
        cq
    }

    pub(crate) fn create_qp(&self, cq: *mut ibv_cq) -> *mut ibv_qp {
        let mut init = init_attr(cq);
        // SAFETY: a live domain and a live CQ.
        let qp = unsafe { (self.lib.ibv_create_qp)(self.pd, &raw mut init) };
        assert!(!qp.is_null(), "errno {}", errno());
        qp
    }

    /// Registers `buffer` with all access rights.
    pub(crate) fn register(&self, buffer: *mut [u8]) -> *mut ibv_mr {
        let access = IBV_ACCESS_LOCAL_WRITE
            | IBV_ACCESS_REMOTE_WRITE
            | IBV_ACCESS_REMOTE_READ
            | IBV_ACCESS_REMOTE_ATOMIC;
        let addr = buffer.cast();
        let access = access.cast_signed();
        // SAFETY: a live domain. The tests keep the buffer while the MR exists.
        let mr = unsafe { (self.lib.ibv_reg_mr)(self.pd, addr, buffer.len(), access) };
        assert!(!mr.is_null(), "errno {}", errno());
        mr
    }

    /// Brings `qp` to RTS, connected to QP number `peer` at the device's own GID.
    pub(crate) fn connect(&self, qp: *mut ibv_qp, peer: u32) {
        // SAFETY: zero is a value for all members.
        let mut attr: ibv_qp_attr = unsafe { mem::zeroed() };
        attr.qp_state = IBV_QPS_INIT;
        attr.port_num = 1;
        attr.qp_access_flags =
            IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
        let mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
        self.modify(qp, &mut attr, mask);

        attr.qp_state = IBV_QPS_RTR;
        attr.path_mtu = IBV_MTU_1024;
        attr.dest_qp_num = peer;
        attr.rq_psn = 0x123;
        attr.max_dest_rd_atomic = 4;
        attr.min_rnr_timer = 12;
        attr.ah_attr.is_global = 1;
        attr.ah_attr.port_num = 1;
        attr.ah_attr.grh.hop_limit = 64;
        // SAFETY: an open context and a writable GID.
        let found =
            unsafe { (self.lib.ibv_query_gid)(self.context, 1, 0, &raw mut attr.ah_attr.grh.dgid) };
        assert_eq!(found, 0);
        let mask = IBV_QP_STATE
            | IBV_QP_AV
            | IBV_QP_PATH_MTU
            | IBV_QP_DEST_QPN
            | IBV_QP_RQ_PSN
            | IBV_QP_MAX_DEST_RD_ATOMIC
            | IBV_QP_MIN_RNR_TIMER;
        self.modify(qp, &mut attr, mask);

        attr.qp_state = IBV_QPS_RTS;
        attr.sq_psn = 0x123;
        // Half a second, because on a busy machine a thread may be delayed.
        attr.timeout = 17;
        attr.retry_cnt = 7;
        attr.rnr_retry = 7;
        attr.max_rd_atomic = 4;
        let mask = IBV_QP_STATE
            | IBV_QP_TIMEOUT
            | IBV_QP_RETRY_CNT
            | IBV_QP_RNR_RETRY
            | IBV_QP_SQ_PSN
            | IBV_QP_MAX_QP_RD_ATOMIC;
        self.modify(qp, &mut attr, mask);
    }

    fn modify(&self, qp: *mut ibv_qp, attr: &mut ibv_qp_attr, mask: u32) {
        // SAFETY: a live QP.
        let status = unsafe { (self.lib.ibv_modify_qp)(qp, attr, mask.cast_signed()) };
        assert_eq!(status, 0, "to state {}", attr.qp_state);
        // SAFETY: a live QP, in which `ibv_modify_qp` stores the state.
        assert_eq!(unsafe { (*qp).state }, attr.qp_state);
    }
}

/// Returns attributes of a small RC QP.
pub(crate) fn init_attr(cq: *mut ibv_cq) -> ibv_qp_init_attr {
    ibv_qp_init_attr {
        qp_context: ptr::null_mut(),
        send_cq: cq,
        recv_cq: cq,
        srq: ptr::null_mut(),
        cap: ibv_qp_cap {
            max_send_wr: 8,
            max_recv_wr: 8,
            max_send_sge: 2,
            max_recv_sge: 2,
            max_inline_data: 64,
        },
        qp_type: IBV_QPT_RC,
        sq_sig_all: 0,
    }
}
