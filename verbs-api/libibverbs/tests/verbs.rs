//! The library as a C program uses it: errno conventions, life cycles, and data between two QPs of
//! one device.
#![cfg(target_os = "linux")]

#[allow(dead_code, reason = "each test program uses a part of it")]
mod library;

use std::{
    ffi::{CStr, c_int},
    mem, ptr,
    time::{Duration, Instant},
};

use library::{Device, errno, extended, init_attr, library};
use rocade_abi::*;

/// Polls `cq` until a completion arrives.
fn wait_for_completion(device: &Device, cq: *mut ibv_cq) -> ibv_wc {
    // SAFETY: an open context.
    let poll = unsafe { (*device.context).ops.poll_cq }.expect("op is set");
    // SAFETY: zero is a value for all members.
    let mut wc: ibv_wc = unsafe { mem::zeroed() };
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        // SAFETY: a live CQ and room for one completion.
        match unsafe { poll(cq, 1, &raw mut wc) } {
            0 => assert!(Instant::now() < deadline, "no completion"),
            1 => return wc,
            other => panic!("poll_cq returned {other}"),
        }
    }
}

fn send_wr(opcode: u32, wr_id: u64, sge: &mut ibv_sge) -> ibv_send_wr {
    // SAFETY: zero is a value for all members.
    let mut wr: ibv_send_wr = unsafe { mem::zeroed() };
    wr.wr_id = wr_id;
    wr.opcode = opcode;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.sg_list = sge;
    wr.num_sge = 1;
    wr
}

fn post_send(device: &Device, qp: *mut ibv_qp, wr: &mut ibv_send_wr) -> (c_int, *mut ibv_send_wr) {
    // SAFETY: an open context.
    let post = unsafe { (*device.context).ops.post_send }.expect("op is set");
    let mut bad = ptr::null_mut();
    // SAFETY: a live QP and a valid chain.
    let status = unsafe { post(qp, wr, &raw mut bad) };
    (status, bad)
}

fn post_recv(device: &Device, qp: *mut ibv_qp, wr_id: u64, sge: &mut ibv_sge) {
    // SAFETY: an open context.
    let post = unsafe { (*device.context).ops.post_recv }.expect("op is set");
    let mut wr = ibv_recv_wr {
        wr_id,
        next: ptr::null_mut(),
        sg_list: sge,
        num_sge: 1,
    };
    let mut bad = ptr::null_mut();
    // SAFETY: a live QP and a valid chain.
    assert_eq!(unsafe { post(qp, &raw mut wr, &raw mut bad) }, 0);
}

/// Two connected queue pairs with one CQ and one buffer.
struct Pair {
    device: Device,
    cq: *mut ibv_cq,
    a: *mut ibv_qp,
    b: *mut ibv_qp,
    mr: *mut ibv_mr,
    /// Registered memory. The device may write it at any time, so no reference to it is created.
    buffer: *mut [u8],
}

impl Pair {
    fn new() -> Self {
        let device = Device::open();
        let cq = device.create_cq(16, ptr::null_mut());
        let (a, b) = (device.create_qp(cq), device.create_qp(cq));
        Self::connected(device, cq, a, b)
    }

    fn connected(device: Device, cq: *mut ibv_cq, a: *mut ibv_qp, b: *mut ibv_qp) -> Self {
        let buffer = Box::into_raw(vec![0; 8192].into_boxed_slice());
        let mr = device.register(buffer);
        // SAFETY: live QPs.
        let (a_num, b_num) = unsafe { ((*a).qp_num, (*b).qp_num) };
        device.connect(a, b_num);
        device.connect(b, a_num);
        Self {
            device,
            cq,
            a,
            b,
            mr,
            buffer,
        }
    }

    fn sge(&self, offset: usize, length: u32) -> ibv_sge {
        let addr = self
            .buffer
            .cast::<u8>()
            .wrapping_add(offset)
            .expose_provenance() as u64;
        // SAFETY: a live region.
        let lkey = unsafe { (*self.mr).lkey };
        ibv_sge { addr, length, lkey }
    }

    fn put(&self, offset: usize, bytes: &[u8]) {
        for (index, byte) in (offset..).zip(bytes) {
            assert!(index < self.buffer.len());
            // SAFETY: inside the buffer. The device does not access these bytes now.
            unsafe { self.buffer.cast::<u8>().add(index).write_volatile(*byte) };
        }
    }

    fn bytes(&self, offset: usize, len: usize) -> Vec<u8> {
        assert!(offset + len <= self.buffer.len());
        // SAFETY: inside the buffer. The device does not access these bytes now.
        let byte = |index| unsafe { self.buffer.cast::<u8>().add(index).read_volatile() };
        (offset..offset + len).map(byte).collect()
    }

    fn rkey(&self) -> u32 {
        // SAFETY: a live region.
        unsafe { (*self.mr).rkey }
    }

    fn close(self) {
        let lib = self.device.lib;
        // SAFETY: all are alive and not used afterwards. In this order no object is in use.
        unsafe {
            assert_eq!((lib.ibv_destroy_qp)(self.a), 0);
            assert_eq!((lib.ibv_destroy_qp)(self.b), 0);
            assert_eq!((lib.ibv_destroy_cq)(self.cq), 0);
            assert_eq!((lib.ibv_dereg_mr)(self.mr), 0);
            drop(Box::from_raw(self.buffer));
        }
        self.device.close();
    }
}

#[test]
fn device_and_port_identify_themselves() {
    let device = Device::open();
    let lib = device.lib;
    // SAFETY: zero is a value for all members of both structures.
    let (mut attr, mut port): (ibv_device_attr, ibv_port_attr) = unsafe { mem::zeroed() };
    port.port_cap_flags2 = 0xabcd;
    // SAFETY: an open context and writable structures.
    unsafe {
        assert_eq!((lib.ibv_query_device)(device.context, &raw mut attr), 0);
        assert_eq!((lib.ibv_query_port)(device.context, 1, &raw mut port), 0);
        assert_eq!(
            (lib.ibv_query_port)(device.context, 2, &raw mut port),
            libc::EINVAL
        );
    }
    assert_eq!(
        (attr.vendor_id, attr.vendor_part_id, attr.hw_ver),
        (0x526f, 1, 1)
    );
    assert!(attr.node_guid != 0 && attr.max_qp > 0 && attr.phys_port_cnt == 1);
    assert_eq!(
        (port.state, port.link_layer),
        (IBV_PORT_ACTIVE, IBV_LINK_LAYER_ETHERNET)
    );
    assert_eq!(
        port.port_cap_flags2, 0xabcd,
        "the exported function writes 48 bytes only"
    );

    // SAFETY: an open context.
    let slots = unsafe { extended(device.context) };
    let query_port = slots.query_port.expect("op is set");
    // SAFETY: an open context and a writable structure of that size.
    let status = unsafe { query_port(device.context, 1, &raw mut port, 52) };
    assert_eq!(status, 0);
    assert_eq!(port.port_cap_flags2, 0);
    device.close();
}

//= ERN-03 ERN-04 type=test
#[test]
fn tables_end_where_they_say() {
    let device = Device::open();
    let lib = device.lib;
    let mut gid = ibv_gid { raw: [0; 16] };
    let mut pkey = 0;
    // SAFETY: an open context and writable targets.
    unsafe {
        assert_eq!((lib.ibv_query_gid)(device.context, 1, 0, &raw mut gid), 0);
        assert_eq!((lib.ibv_query_gid)(device.context, 1, 99, &raw mut gid), -1);
        assert_eq!(errno(), libc::EINVAL);
        assert_eq!((lib.ibv_query_pkey)(device.context, 1, 0, &raw mut pkey), 0);
        assert_eq!(
            (lib.ibv_query_pkey)(device.context, 1, 1, &raw mut pkey),
            -1
        );
    }
    assert_eq!(pkey, 0xffff);
    device.close();
}

#[test]
fn null_objects_are_einval() {
    let lib = library();
    // SAFETY: NULL is under test.
    unsafe {
        assert_eq!((lib.ibv_dealloc_pd)(ptr::null_mut()), libc::EINVAL);
        assert_eq!((lib.ibv_destroy_qp)(ptr::null_mut()), libc::EINVAL);
        assert_eq!((lib.ibv_close_device)(ptr::null_mut()), libc::EINVAL);
        assert!((lib.ibv_alloc_pd)(ptr::null_mut()).is_null());
        assert_eq!(errno(), libc::EINVAL);
        assert!((lib.ibv_create_qp)(ptr::null_mut(), ptr::null_mut()).is_null());
        assert!((lib.ibv_get_device_name)(ptr::null_mut()).is_null());
    }
}

#[test]
fn objects_in_use_are_ebusy() {
    let device = Device::open();
    let lib = device.lib;
    // SAFETY: an open context.
    let channel = unsafe { (lib.ibv_create_comp_channel)(device.context) };
    let cq = device.create_cq(4, channel);
    let qp = device.create_qp(cq);
    // SAFETY: all are alive. Busy objects stay alive.
    unsafe {
        assert_eq!((lib.ibv_destroy_comp_channel)(channel), libc::EBUSY);
        assert_eq!((lib.ibv_destroy_cq)(cq), libc::EBUSY);
        assert_eq!((lib.ibv_dealloc_pd)(device.pd), libc::EBUSY);
        assert_eq!((lib.ibv_destroy_qp)(qp), 0);
        assert_eq!((lib.ibv_destroy_cq)(cq), 0);
        assert_eq!((lib.ibv_destroy_comp_channel)(channel), 0);
    }
    device.close();
}

//= ERN-01 ERN-02 type=test
#[test]
fn bad_arguments_are_refused_at_creation() {
    let device = Device::open();
    let lib = device.lib;
    let null = ptr::null_mut();
    // SAFETY: an open context. The arguments are under test.
    unsafe {
        assert!((lib.ibv_create_cq)(device.context, 0, null, ptr::null_mut(), 0).is_null());
        assert_eq!(errno(), libc::EINVAL);
        assert!((lib.ibv_create_cq)(device.context, 1, null, ptr::null_mut(), 7).is_null());
        assert_eq!(errno(), libc::EINVAL);
        let unmapped = ptr::without_provenance_mut(4096);
        assert!((lib.ibv_reg_mr)(device.pd, unmapped, 64, 0).is_null());
        assert_eq!(errno(), libc::EFAULT);
    }
    let cq = device.create_cq(1, ptr::null_mut());
    let mut init = init_attr(cq);
    init.recv_cq = ptr::null_mut();
    // SAFETY: a live domain. The attributes are under test.
    assert!(unsafe { (lib.ibv_create_qp)(device.pd, &raw mut init) }.is_null());
    assert_eq!(errno(), libc::EINVAL);
    let mut init = init_attr(cq);
    init.qp_type = 77;
    // SAFETY: as above.
    assert!(unsafe { (lib.ibv_create_qp)(device.pd, &raw mut init) }.is_null());
    assert_eq!(errno(), libc::EINVAL);
    // SAFETY: alive and not used afterwards.
    assert_eq!(unsafe { (lib.ibv_destroy_cq)(cq) }, 0);
    device.close();
}

//= WCO-03 ERN-01 type=test
#[test]
fn send_with_immediate_arrives() {
    let pair = Pair::new();
    pair.put(0, b"data");
    let mut receive = pair.sge(4096, 64);
    post_recv(&pair.device, pair.b, 7, &mut receive);
    let mut sge = pair.sge(0, 4);
    let mut wr = send_wr(IBV_WR_SEND_WITH_IMM, 8, &mut sge);
    wr.imm_data = 0x0102_0304u32.to_be();
    assert_eq!(post_send(&pair.device, pair.a, &mut wr).0, 0);

    let completions = [
        wait_for_completion(&pair.device, pair.cq),
        wait_for_completion(&pair.device, pair.cq),
    ];
    let received = completions
        .iter()
        .find(|wc| wc.wr_id == 7)
        .expect("receive completion");
    assert_eq!(
        (received.status, received.opcode),
        (IBV_WC_SUCCESS, IBV_WC_RECV)
    );
    assert_eq!((received.byte_len, received.wc_flags), (4, IBV_WC_WITH_IMM));
    assert_eq!(received.imm_data, 0x0102_0304u32.to_be());
    let sent = completions
        .iter()
        .find(|wc| wc.wr_id == 8)
        .expect("send completion");
    assert_eq!((sent.status, sent.opcode), (IBV_WC_SUCCESS, IBV_WC_SEND));
    assert_eq!(pair.bytes(4096, 4), b"data");
    pair.close();
}

#[test]
fn inline_data_is_taken_at_once() {
    let pair = Pair::new();
    let mut text = *b"inline";
    let mut receive = pair.sge(4096, 64);
    post_recv(&pair.device, pair.b, 1, &mut receive);
    let addr = text.as_mut_ptr().expose_provenance() as u64;
    let mut sge = ibv_sge {
        addr,
        length: 6,
        lkey: 0,
    };
    let mut wr = send_wr(IBV_WR_SEND, 2, &mut sge);
    wr.send_flags |= IBV_SEND_INLINE;
    assert_eq!(post_send(&pair.device, pair.a, &mut wr).0, 0);
    text.fill(b'x');
    for _ in 0..2 {
        assert_eq!(
            wait_for_completion(&pair.device, pair.cq).status,
            IBV_WC_SUCCESS
        );
    }
    assert_eq!(pair.bytes(4096, 6), b"inline");

    sge.length = 65;
    let mut wr = send_wr(IBV_WR_SEND, 3, &mut sge);
    wr.send_flags |= IBV_SEND_INLINE;
    let expected = &raw mut wr;
    assert_eq!(
        post_send(&pair.device, pair.a, &mut wr),
        (libc::EINVAL, expected)
    );
    pair.close();
}

//= RC-WQE-13 type=test
#[test]
fn bad_wr_is_the_first_that_was_refused() {
    let pair = Pair::new();
    let mut sge = pair.sge(0, 4);
    let mut second = send_wr(99, 2, &mut sge);
    let mut first = send_wr(IBV_WR_RDMA_WRITE, 1, &mut sge.clone());
    let remote_addr = pair.sge(4096, 0).addr;
    first.wr.rdma = ibv_send_wr_rdma {
        remote_addr,
        rkey: pair.rkey(),
    };
    first.sg_list = &raw mut sge;
    first.next = &raw mut second;
    let expected = &raw mut second;
    assert_eq!(
        post_send(&pair.device, pair.a, &mut first),
        (libc::EINVAL, expected)
    );
    let wc = wait_for_completion(&pair.device, pair.cq);
    assert_eq!(
        (wc.wr_id, wc.status, wc.opcode),
        (1, IBV_WC_SUCCESS, IBV_WC_RDMA_WRITE)
    );
    pair.close();
}

#[test]
fn completion_events_carry_cq_and_context() {
    let device = Device::open();
    let lib = device.lib;
    let mut marker = 0u32;
    // SAFETY: an open context and a channel just made.
    let (channel, cq) = unsafe {
        let channel = (lib.ibv_create_comp_channel)(device.context);
        let context = (&raw mut marker).cast();
        (
            channel,
            (lib.ibv_create_cq)(device.context, 8, context, channel, 0),
        )
    };
    let (a, b) = (device.create_qp(cq), device.create_qp(cq));
    let pair = Pair::connected(device, cq, a, b);
    // SAFETY: an open context and a live CQ.
    unsafe {
        let arm = (*pair.device.context).ops.req_notify_cq.expect("op is set");
        assert_eq!(arm(cq, 0), 0);
    }
    let mut sge = pair.sge(0, 8);
    let mut wr = send_wr(IBV_WR_RDMA_READ, 5, &mut sge);
    wr.wr.rdma = ibv_send_wr_rdma {
        remote_addr: pair.sge(4096, 0).addr,
        rkey: pair.rkey(),
    };
    assert_eq!(post_send(&pair.device, a, &mut wr).0, 0);

    let (mut event_cq, mut context) = (ptr::null_mut(), ptr::null_mut());
    // SAFETY: a live channel and writable targets.
    let got = unsafe { (lib.ibv_get_cq_event)(channel, &raw mut event_cq, &raw mut context) };
    assert_eq!((got, event_cq), (0, cq));
    assert_eq!(context, (&raw mut marker).cast());
    // SAFETY: a live CQ.
    unsafe { (lib.ibv_ack_cq_events)(cq, 1) };
    let wc = wait_for_completion(&pair.device, cq);
    assert_eq!((wc.wr_id, wc.opcode, wc.byte_len), (5, IBV_WC_RDMA_READ, 8));

    // SAFETY: the descriptor is the channel's.
    let nonblocking = unsafe {
        let flags = libc::fcntl((*channel).fd, libc::F_GETFL);
        libc::fcntl((*channel).fd, libc::F_SETFL, flags | libc::O_NONBLOCK)
    };
    assert_eq!(nonblocking, 0);
    // SAFETY: a live channel and writable targets.
    let got = unsafe { (lib.ibv_get_cq_event)(channel, &raw mut event_cq, &raw mut context) };
    assert_eq!((got, errno()), (-1, libc::EAGAIN));
    // The pair destroys the CQ, and only then the channel can be destroyed.
    pair.close();
    // SAFETY: alive and not used afterwards. It needs no context.
    assert_eq!(unsafe { (lib.ibv_destroy_comp_channel)(channel) }, 0);
}

//= CQX-01 CQX-02 type=test
#[test]
fn extended_cq_reads_one_completion_at_a_time() {
    let device = Device::open();
    // SAFETY: an open context.
    let slots = unsafe { extended(device.context) };
    let create = slots.create_cq_ex.expect("op is set");
    // SAFETY: zero is a value for all members.
    let mut attr: ibv_cq_init_attr_ex = unsafe { mem::zeroed() };
    attr.cqe = 8;
    attr.wc_flags = 1 << 20;
    // SAFETY: an open context.
    assert!(unsafe { create(device.context, &raw mut attr) }.is_null());
    assert_eq!(errno(), libc::EOPNOTSUPP);
    attr.wc_flags = IBV_WC_STANDARD_FLAGS | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP;
    // SAFETY: an open context.
    let cq_ex = unsafe { create(device.context, &raw mut attr) };
    assert!(!cq_ex.is_null());
    let cq: *mut ibv_cq = cq_ex.cast();
    let (a, b) = (device.create_qp(cq), device.create_qp(cq));
    let pair = Pair::connected(device, cq, a, b);

    // SAFETY: a live extended CQ.
    let functions = unsafe { *cq_ex };
    let start = functions.start_poll.expect("op is set");
    let mut poll_attr = ibv_poll_cq_attr { comp_mask: 0 };
    // SAFETY: a live CQ.
    assert_eq!(unsafe { start(cq_ex, &raw mut poll_attr) }, libc::ENOENT);
    poll_attr.comp_mask = 1;
    // SAFETY: a live CQ.
    assert_eq!(unsafe { start(cq_ex, &raw mut poll_attr) }, libc::EINVAL);
    poll_attr.comp_mask = 0;

    let mut sge = pair.sge(0, 16);
    let remote = ibv_send_wr_rdma {
        remote_addr: pair.sge(4096, 0).addr,
        rkey: pair.rkey(),
    };
    let mut second = send_wr(IBV_WR_RDMA_READ, 22, &mut sge);
    second.wr.rdma = remote;
    let mut first = send_wr(IBV_WR_RDMA_READ, 11, &mut sge);
    first.sg_list = &raw mut sge;
    first.wr.rdma = remote;
    first.next = &raw mut second;
    assert_eq!(post_send(&pair.device, a, &mut first).0, 0);

    let deadline = Instant::now() + Duration::from_secs(20);
    let mut seen = Vec::new();
    while seen.len() < 2 {
        assert!(Instant::now() < deadline, "only {seen:?}");
        // SAFETY: a live CQ. The readers are called only between start and end.
        unsafe {
            if start(cq_ex, &raw mut poll_attr) != 0 {
                continue;
            }
            loop {
                let opcode = functions.read_opcode.expect("op is set")(cq_ex);
                let len = functions.read_byte_len.expect("op is set")(cq_ex);
                let qp_num = functions.read_qp_num.expect("op is set")(cq_ex);
                assert!(functions.read_completion_ts.expect("op is set")(cq_ex) > 0);
                assert_eq!((opcode, len, qp_num), (IBV_WC_RDMA_READ, 16, (*a).qp_num));
                seen.push(((*cq_ex).wr_id, (*cq_ex).status));
                if functions.next_poll.expect("op is set")(cq_ex) != 0 {
                    break;
                }
            }
            functions.end_poll.expect("op is set")(cq_ex);
        }
    }
    assert_eq!(seen, [(11, IBV_WC_SUCCESS), (22, IBV_WC_SUCCESS)]);
    pair.close();
}

//= WRX-06 WRX-07 type=test
#[test]
fn a_batch_of_the_wr_interface_is_posted_whole_or_not_at_all() {
    let device = Device::open();
    // SAFETY: an open context.
    let slots = unsafe { extended(device.context) };
    let create = slots.create_qp_ex.expect("op is set");
    let cq = device.create_cq(16, ptr::null_mut());
    // SAFETY: zero is a value for all members.
    let mut init: ibv_qp_init_attr_ex = unsafe { mem::zeroed() };
    let short = init_attr(cq);
    init.send_cq = cq;
    init.recv_cq = cq;
    init.cap = short.cap;
    init.qp_type = short.qp_type;
    init.pd = device.pd;
    init.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    init.send_ops_flags = IBV_QP_EX_WITH_TSO;
    // SAFETY: an open context and live objects.
    assert!(unsafe { create(device.context, &raw mut init) }.is_null());
    assert_eq!(errno(), libc::EOPNOTSUPP);
    init.send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;
    // SAFETY: as above.
    let a = unsafe { create(device.context, &raw mut init) };
    assert!(!a.is_null(), "errno {}", errno());
    let b = device.create_qp(cq);
    // SAFETY: live QPs.
    let (ex, plain) = unsafe {
        (
            (device.lib.ibv_qp_to_qp_ex)(a),
            (device.lib.ibv_qp_to_qp_ex)(b),
        )
    };
    assert!(ptr::eq(ex.cast(), a) && plain.is_null());
    let pair = Pair::connected(device, cq, a, b);
    pair.put(4096, &5u64.to_ne_bytes());
    let (source, target) = (pair.sge(0, 8), pair.sge(4096, 8));
    let rkey = pair.rkey();

    // SAFETY: a live extended QP. Builders are called only between start and complete.
    unsafe {
        let f = *ex;
        let (start, complete) = (f.wr_start.expect("op is set"), f.wr_complete.expect("slot"));
        let set_sge = f.wr_set_sge.expect("op is set");

        // More data than fits inline: the whole batch is refused.
        start(ex);
        (*ex).wr_id = 1;
        (*ex).wr_flags = IBV_SEND_SIGNALED;
        f.wr_atomic_fetch_add.expect("op is set")(ex, rkey, target.addr, 100);
        set_sge(ex, source.lkey, source.addr, 8);
        (*ex).wr_id = 2;
        f.wr_rdma_write.expect("op is set")(ex, rkey, target.addr);
        f.wr_set_inline_data.expect("op is set")(ex, ptr::from_mut(&mut [0u8; 65]).cast(), 65);
        assert_eq!(complete(ex), libc::EINVAL);

        // An aborted batch leaves nothing behind.
        start(ex);
        f.wr_atomic_fetch_add.expect("op is set")(ex, rkey, target.addr, 1000);
        set_sge(ex, source.lkey, source.addr, 8);
        f.wr_abort.expect("op is set")(ex);

        start(ex);
        (*ex).wr_id = 3;
        f.wr_atomic_fetch_add.expect("op is set")(ex, rkey, target.addr, 2);
        set_sge(ex, source.lkey, source.addr, 8);
        (*ex).wr_id = 4;
        f.wr_rdma_write.expect("op is set")(ex, rkey, target.addr + 8);
        let mut text = *b"inline";
        f.wr_set_inline_data.expect("op is set")(ex, text.as_mut_ptr().cast(), 6);
        text.fill(0);
        assert_eq!(complete(ex), 0);
    }
    let first = wait_for_completion(&pair.device, cq);
    assert_eq!(
        (first.wr_id, first.status, first.opcode),
        (3, 0, IBV_WC_FETCH_ADD)
    );
    let second = wait_for_completion(&pair.device, cq);
    assert_eq!(
        (second.wr_id, second.status, second.opcode),
        (4, 0, IBV_WC_RDMA_WRITE)
    );
    assert_eq!(pair.bytes(0, 8), 5u64.to_ne_bytes(), "the value before");
    assert_eq!(pair.bytes(4096, 8), 7u64.to_ne_bytes());
    assert_eq!(pair.bytes(4104, 6), b"inline");
    pair.close();
}

//= QPC-04 type=test
#[test]
fn modify_refuses_unknown_bits_and_query_shows_the_rest() {
    let device = Device::open();
    let lib = device.lib;
    let cq = device.create_cq(4, ptr::null_mut());
    let qp = device.create_qp(cq);
    // SAFETY: zero is a value for all members of both structures.
    let (mut attr, mut init): (ibv_qp_attr, ibv_qp_init_attr) = unsafe { mem::zeroed() };
    attr.qp_state = IBV_QPS_INIT;
    // SAFETY: a live QP and writable structures.
    unsafe {
        assert_eq!(
            (lib.ibv_modify_qp)(qp, &raw mut attr, 1 << 30),
            libc::EINVAL
        );
        let mask = IBV_QP_STATE.cast_signed();
        assert_eq!((lib.ibv_modify_qp)(qp, &raw mut attr, mask), libc::EINVAL);
        assert_eq!(
            (lib.ibv_query_qp)(qp, &raw mut attr, mask, &raw mut init),
            0
        );
    }
    assert_eq!(attr.qp_state, IBV_QPS_RESET);
    assert_eq!((init.send_cq, init.qp_type), (cq, IBV_QPT_RC));
    assert!(init.cap.max_send_wr >= 8 && init.cap.max_inline_data >= 64);
    // SAFETY: alive and not used afterwards.
    unsafe {
        assert_eq!((lib.ibv_destroy_qp)(qp), 0);
        assert_eq!((lib.ibv_destroy_cq)(cq), 0);
    }
    device.close();
}

#[test]
fn a_parent_domain_keeps_its_domain_busy() {
    let device = Device::open();
    let lib = device.lib;
    // SAFETY: an open context.
    let slots = unsafe { extended(device.context) };
    let mut td_attr = ibv_td_init_attr { comp_mask: 0 };
    // SAFETY: an open context and live objects.
    unsafe {
        let td = slots.alloc_td.expect("op is set")(device.context, &raw mut td_attr);
        assert!(!td.is_null());
        let mut attr: ibv_parent_domain_init_attr = mem::zeroed();
        attr.pd = device.pd;
        attr.td = td;
        let alloc = slots.alloc_parent_domain.expect("op is set");
        let parent = alloc(device.context, &raw mut attr);
        assert!(!parent.is_null());
        assert_eq!((lib.ibv_dealloc_pd)(device.pd), libc::EBUSY);
        assert_eq!((lib.ibv_dealloc_pd)(parent), 0);
        assert_eq!(slots.dealloc_td.expect("op is set")(td), 0);
    }
    device.close();
}

#[test]
fn the_name_follows_the_device() {
    let device = Device::open();
    // SAFETY: an open context, whose device lives as long as the process.
    let name =
        unsafe { CStr::from_ptr((device.lib.ibv_get_device_name)((*device.context).device)) };
    assert_eq!(name, c"rocade0");
    device.close();
}
