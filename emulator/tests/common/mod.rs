//! Two HCAs in one process, each with its own address, connected by one RC queue pair each.

#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "shared by several test programs, none of which uses all of it; a failure may panic, sizes are small"
)]

pub mod datagrams;

use std::time::{Duration, Instant};

use rocade_emulator::{
    AccessFlags, BrokerMode, CompChannel, Completion, Connection, Context, Cq, Engine,
    EngineConfig, Gid, Mr, Pd, Psn, Qp, QpCap, QpInitAttr, QpType, Qpn, SendFlags, SendOp, SendWr,
    Sge,
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

/// The local ACK timeout of connected sides, at least 0.27 s. On a busy machine a peer may not be
/// scheduled for longer than usual timeouts, and seven of those are over soon.
pub const TIMEOUT: u8 = 16;

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
        let memory: &'static [std::sync::atomic::AtomicU8] = Vec::leak(
            (0..memory_len)
                .map(|_| std::sync::atomic::AtomicU8::new(0))
                .collect::<Vec<_>>(),
        );
        Self::on_memory(engine, device, memory)
    }

    pub fn on_memory(
        engine: Engine,
        device: &str,
        memory: &'static [std::sync::atomic::AtomicU8],
    ) -> Self {
        let context = engine.open_device(device).unwrap();
        let pd = context.alloc_pd().unwrap();
        let channel = context.create_comp_channel().unwrap();
        let cq = context.create_cq(1024, Some(&channel), 0, 7).unwrap();
        let mr = register(&pd, memory);
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
                srq: None,
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

    /// The connection attributes of this side in tests: the initial PSN of a QP is its number.
    pub fn connection(&self, peer_qpn: u32, peer_gid: Gid) -> Connection {
        Connection {
            rq_psn: Psn::new(peer_qpn),
            sq_psn: Psn::new(self.qp.qp_num().get()),
            max_rd_atomic: 4,
            max_dest_rd_atomic: 4,
            min_rnr_timer: 1,
            timeout: TIMEOUT,
            ..Connection::to(peer_gid, Qpn::new(peer_qpn))
        }
    }

    pub fn to_rts(&self, peer_qpn: u32, peer_gid: Gid) {
        let connection = self.connection(peer_qpn, peer_gid);
        self.qp.connect(ALL_ACCESS, &connection).unwrap();
    }

    pub fn to_rts_with_timeout(&self, peer_qpn: u32, peer_gid: Gid, timeout: u8) {
        let connection = Connection {
            timeout,
            ..self.connection(peer_qpn, peer_gid)
        };
        self.qp.connect(ALL_ACCESS, &connection).unwrap();
    }

    pub fn to_rtr(&self, peer_qpn: u32, peer_gid: Gid) {
        self.qp.to_init(ALL_ACCESS).unwrap();
        let connection = self.connection(peer_qpn, peer_gid);
        self.qp.to_rtr(&connection).unwrap();
    }

    pub fn send(&self, wr_id: u64, op: SendOp, sges: &[Sge]) {
        let wr = SendWr {
            wr_id,
            op,
            flags: SendFlags::SIGNALED,
            sges,
        };
        self.qp.post_sends(|queue| queue.push(&wr)).unwrap();
    }

    /// Polls until there is a completion.
    pub fn completion(&self) -> Completion {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            if let Some(completion) = self.cq.poll_one() {
                return completion;
            }
            assert!(
                Instant::now() < deadline,
                "no completion in 60 s: {:?}",
                self.qp.counters()
            );
        }
    }
}

/// Registers memory with all rights, also for windows.
pub fn register(pd: &Pd, memory: &'static [std::sync::atomic::AtomicU8]) -> Mr {
    register_with(pd, memory, ALL_ACCESS | AccessFlags::MW_BIND)
}

pub fn register_with(
    pd: &Pd,
    memory: &'static [std::sync::atomic::AtomicU8],
    access: AccessFlags,
) -> Mr {
    let addr = memory.as_ptr() as u64;
    // SAFETY: leaked memory, accessed through atomics only.
    unsafe { pd.reg_mr(addr, memory.len(), addr, access) }.unwrap()
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
