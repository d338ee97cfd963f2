//! Two HCAs in one process, each with its own address, connected by one RC queue pair each.

#![allow(
    dead_code,
    unreachable_pub,
    reason = "shared by several test programs, none of which uses all of it"
)]

use std::time::{Duration, Instant};

use rocade_emulator::{
    AccessFlags, AddressVector, BrokerMode, CompChannel, Completion, Context, Cq, Engine,
    EngineConfig, Gid, Mr, Pd, Qp, QpAttr, QpAttrMask, QpCap, QpInitAttr, QpState, QpType,
    SendFlags, SendOp, SendWr, Sge,
};

/// One side of a connection, with registered memory.
pub struct Side {
    pub engine: Engine,
    pub context: Context,
    pub pd: Pd,
    pub channel: CompChannel,
    pub cq: Cq,
    pub qp: Qp,
    pub mr: Mr,
    pub memory: &'static [std::sync::atomic::AtomicU8],
}

pub const ALL_ACCESS: AccessFlags = AccessFlags::LOCAL_WRITE
    .union(AccessFlags::REMOTE_WRITE)
    .union(AccessFlags::REMOTE_READ)
    .union(AccessFlags::REMOTE_ATOMIC);

pub fn engine(address: &str) -> Engine {
    let spec = format!("dev={address}");
    let config = EngineConfig::from_specs(&[spec], BrokerMode::Embedded).unwrap();
    Engine::new(config).unwrap()
}

impl Side {
    pub fn new(address: &str, memory_len: usize) -> Self {
        Self::on(engine(address), memory_len)
    }

    pub fn on(engine: Engine, memory_len: usize) -> Self {
        Self::on_device(engine, "dev", memory_len)
    }

    pub fn on_device(engine: Engine, device: &str, memory_len: usize) -> Self {
        let context = engine.open_device(device).unwrap();
        let pd = context.alloc_pd().unwrap();
        let channel = context.create_comp_channel().unwrap();
        let cq = context.create_cq(1024, Some(&channel), 0, 7).unwrap();
        let memory: &'static [std::sync::atomic::AtomicU8] = Vec::leak(
            (0..memory_len)
                .map(|_| std::sync::atomic::AtomicU8::new(0))
                .collect::<Vec<_>>(),
        );
        let addr = memory.as_ptr() as u64;
        // SAFETY: leaked memory, accessed through atomics only.
        let mr = unsafe { pd.reg_mr(addr, memory_len, addr, ALL_ACCESS) }.unwrap();
        let cap = QpCap {
            max_send_wr: 128,
            max_recv_wr: 128,
            max_send_sge: 4,
            max_recv_sge: 4,
            max_inline_data: 256,
        };
        let qp = pd
            .create_qp(QpInitAttr {
                send_cq: cq.clone(),
                recv_cq: cq.clone(),
                cap,
                qp_type: QpType::Rc,
                sq_sig_all: false,
                cookie: 9,
            })
            .unwrap();
        Self {
            engine,
            context,
            pd,
            channel,
            cq,
            qp,
            mr,
            memory,
        }
    }

    pub fn gid(&self) -> Gid {
        self.context.gid_entries()[0].gid
    }

    pub fn addr(&self, offset: usize) -> u64 {
        self.mr.addr() + offset as u64
    }

    pub fn sge(&self, offset: usize, len: usize) -> Sge {
        Sge {
            addr: self.addr(offset),
            len: len as u32,
            lkey: self.mr.lkey(),
        }
    }

    pub fn fill(&self, offset: usize, data: &[u8]) {
        for (cell, byte) in self.memory[offset..].iter().zip(data) {
            cell.store(*byte, std::sync::atomic::Ordering::Relaxed);
        }
    }

    pub fn bytes(&self, offset: usize, len: usize) -> Vec<u8> {
        self.memory[offset..offset + len]
            .iter()
            .map(|cell| cell.load(std::sync::atomic::Ordering::Relaxed))
            .collect()
    }

    pub fn to_rts(&self, peer_qpn: u32, peer_gid: Gid) {
        self.to_rts_with_timeout(peer_qpn, peer_gid, 14);
    }

    pub fn to_rts_with_timeout(&self, peer_qpn: u32, peer_gid: Gid, timeout: u8) {
        self.to_rtr(peer_qpn, peer_gid);
        let attr = QpAttr {
            qp_state: QpState::Rts.code(),
            timeout,
            retry_cnt: 7,
            rnr_retry: 7,
            sq_psn: self.qp.qp_num().get(),
            max_rd_atomic: 4,
            ..QpAttr::default()
        };
        let mask = QpAttrMask::STATE
            | QpAttrMask::TIMEOUT
            | QpAttrMask::RETRY_CNT
            | QpAttrMask::RNR_RETRY
            | QpAttrMask::SQ_PSN
            | QpAttrMask::MAX_QP_RD_ATOMIC;
        self.qp.modify(&attr, mask).unwrap();
    }

    pub fn to_rtr(&self, peer_qpn: u32, peer_gid: Gid) {
        let attr = QpAttr {
            qp_state: QpState::Init.code(),
            port_num: 1,
            qp_access_flags: ALL_ACCESS,
            ..QpAttr::default()
        };
        let mask = QpAttrMask::STATE
            | QpAttrMask::PKEY_INDEX
            | QpAttrMask::PORT
            | QpAttrMask::ACCESS_FLAGS;
        self.qp.modify(&attr, mask).unwrap();
        let attr = QpAttr {
            qp_state: QpState::Rtr.code(),
            path_mtu: 3,
            dest_qp_num: peer_qpn,
            rq_psn: peer_qpn,
            max_dest_rd_atomic: 4,
            min_rnr_timer: 1,
            ah_attr: AddressVector {
                dgid: peer_gid,
                is_global: true,
                port_num: 1,
                ..AddressVector::default()
            },
            ..QpAttr::default()
        };
        let mask = QpAttrMask::STATE
            | QpAttrMask::AV
            | QpAttrMask::PATH_MTU
            | QpAttrMask::DEST_QPN
            | QpAttrMask::RQ_PSN
            | QpAttrMask::MAX_DEST_RD_ATOMIC
            | QpAttrMask::MIN_RNR_TIMER;
        self.qp.modify(&attr, mask).unwrap();
    }

    pub fn send(&self, wr_id: u64, op: SendOp, sges: &[Sge]) {
        let wr = SendWr {
            wr_id,
            op,
            flags: SendFlags::SIGNALED,
            sges,
        };
        self.qp.send_queue().push(&wr).unwrap();
    }

    /// Polls until a completion is there.
    pub fn completion(&self) -> Completion {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            if let Some(completion) = self.cq.poll_one() {
                return completion;
            }
            assert!(
                Instant::now() < deadline,
                "no completion in 20 s: {:?}",
                self.qp.counters()
            );
        }
    }
}

/// Two connected sides.
pub fn pair(a: &str, b: &str, memory_len: usize) -> (Side, Side) {
    let (a, b) = (Side::new(a, memory_len), Side::new(b, memory_len));
    connect(&a, &b);
    (a, b)
}

pub fn connect(a: &Side, b: &Side) {
    a.to_rts(b.qp.qp_num().get(), b.gid());
    b.to_rts(a.qp.qp_num().get(), a.gid());
}

pub fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len)
        .map(|i| ((i * 7 + i / 251 + seed) % 256) as u8)
        .collect()
}
