//! An RC QP that receives arbitrary packets and commands.
//!
//! The input is a program: each byte that selects a command is followed by its operands. Packets
//! are mostly valid and near the current PSNs, so that they pass the first checks. There must be no
//! panic, no write without access rights, and no unbounded output. Every work request completes
//! exactly once, in posting order.

use std::net::{IpAddr, Ipv4Addr};

use crate::program::Source;
use rocade_transport::testing::{Region, Setup, TestMemory, context};
use rocade_transport::{
    AccessFlags, AckPlacement, PacketMeta, PostError, Qp, QpAttr, QpAttrMask, QpState, SendFlags,
    SendOp, SendWr, Sge, Time, TxBuffer,
};
use rocade_wire::{
    Aeth, AtomicAckEth, AtomicEth, Bth, ExtHeaders, FastPathPacket, Feth, Gid, Headers, Ieth,
    ImmDt, Lkey, Msn, Opcode, Packet, Pkey, Psn, Qpn, Reth, Rkey, Syndrome,
};

const OWN: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
const PEER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));
const REGION_LEN: u32 = 6000;
const PMTU: usize = 256;
/// The limit of packets that one call of `drain` may produce. It covers a window of requests, and
/// all READ responses that a batch of requests can ask for.
const MAX_PACKETS: usize = 8192;

/// Runs one input.
pub fn run(input: &[u8]) {
    let mut source = Source(input);
    let mut run = Run::new(&mut source);
    while !source.0.is_empty() {
        run.command(&mut source);
    }
    run.end();
}

struct Run {
    setup: Setup,
    qp: Qp,
    mem: TestMemory,
    now: Time,
    good: Region,
    read_only: Region,
    foreign: Region,
    gone: Region,
    /// The PSN of the peer's next new request.
    peer_psn: Psn,
    sends: Queue,
    receives: Queue,
    tx: TxBuffer,
}

/// The work requests of one queue, whose ids count from 0.
#[derive(Default)]
struct Queue {
    posted: u64,
    completed: u64,
}

impl Queue {
    fn complete(&mut self, wr_id: u64) {
        assert_eq!(
            wr_id, self.completed,
            "completions in posting order, one per request"
        );
        self.completed += 1;
        assert!(self.completed <= self.posted);
    }

    fn forget(&mut self) {
        self.completed = self.posted;
    }
}

impl Run {
    fn new(source: &mut Source<'_>) -> Self {
        let mut setup = Setup::new(0x11, OWN, 0x22, PEER);
        setup.attr.path_mtu = 1;
        setup.attr.sq_psn = source.number();
        setup.attr.rq_psn = source.number();
        setup.attr.max_rd_atomic = source.byte() % 4;
        setup.attr.max_dest_rd_atomic = source.byte() % 4;
        setup.attr.retry_cnt = source.byte() % 8;
        setup.attr.rnr_retry = source.byte() % 8;
        setup.config.cap.max_send_wr = 8;
        setup.config.cap.max_recv_wr = 8;
        let states = [
            QpState::Rts,
            QpState::Rtr,
            QpState::Sqd,
            QpState::Err,
            QpState::Init,
        ];
        let state = states[usize::from(source.byte()) % states.len()];
        let mem = TestMemory::new();
        let all = AccessFlags::LOCAL_WRITE
            | AccessFlags::REMOTE_WRITE
            | AccessFlags::REMOTE_READ
            | AccessFlags::REMOTE_ATOMIC;
        let mut run = Self {
            qp: setup.build(state),
            good: mem.register(REGION_LEN, all),
            read_only: mem.register(REGION_LEN, AccessFlags::REMOTE_READ),
            foreign: mem.register_foreign(REGION_LEN, all),
            gone: mem.register(REGION_LEN, all),
            mem,
            now: Time::ZERO,
            peer_psn: Psn::new(setup.attr.rq_psn),
            setup,
            sends: Queue::default(),
            receives: Queue::default(),
            tx: TxBuffer::new(65_000, 64),
        };
        run.mem.deregister(&run.gone);
        if run.setup.attr.retry_cnt % 2 == 1 {
            // Full payloads are deferred, as in the engine.
            run.tx.defer_longer_than(PMTU - 1);
        }
        run
    }

    fn command(&mut self, source: &mut Source<'_>) {
        match source.byte() % 16 {
            0 | 1 => self.post_send(source),
            2 => self.post_recv(source),
            3 => self.modify(source),
            4 => self.time_passes(source),
            5 => self.raw_packet(source),
            6 => {
                self.transmit_once(AckPlacement::Defer);
                return;
            }
            // Without flushing the outputs: a batch.
            7 | 8 => return self.packet(source),
            _ => self.packet(source),
        }
        self.drain();
    }

    fn region(&self, source: &mut Source<'_>) -> Region {
        match source.byte() {
            0..=0xdf => self.good,
            0xe0..=0xe7 => self.read_only,
            0xe8..=0xef => self.foreign,
            0xf0..=0xf7 => self.gone,
            _ => Region {
                lkey: Lkey::new(source.word()),
                rkey: Rkey::new(source.word()),
                ..self.good
            },
        }
    }

    fn sges(&self, source: &mut Source<'_>) -> Vec<Sge> {
        let count = match source.byte() {
            byte @ 0..=0xef => byte % 4,
            _ => 9,
        };
        (0..count)
            .map(|_| {
                let region = self.region(source);
                let offset = u64::from(source.word() % (REGION_LEN + 8));
                let len = match source.byte() {
                    0xff => source.word(),
                    byte => u32::from(byte) * 8 % (REGION_LEN - 4000),
                };
                region.part(offset / 2, len)
            })
            .collect()
    }

    fn va(source: &mut Source<'_>, region: &Region) -> u64 {
        match source.byte() {
            0xff => u64::from_le_bytes(source.array()),
            byte => region.addr + u64::from(byte) * 8,
        }
    }

    fn post_send(&mut self, source: &mut Source<'_>) {
        let region = self.region(source);
        let (va, rkey) = (Self::va(source, &region), region.rkey);
        let kind = source.byte();
        let imm = (kind & 8 != 0).then_some([kind; 4]);
        let op = match kind % 6 {
            0 | 1 => SendOp::Send { imm },
            2 => SendOp::Write { va, rkey, imm },
            3 => SendOp::Read { va, rkey },
            4 => SendOp::FetchAdd { va, rkey, add: 1 },
            _ => SendOp::CmpSwap {
                va,
                rkey,
                compare: 0,
                swap: 1,
            },
        };
        let sges = self.sges(source);
        let flags = SendFlags::from_bits_truncate(source.byte().into());
        let wr = SendWr {
            wr_id: self.sends.posted,
            op,
            flags,
            sges: &sges,
        };
        let inline = [7; 300];
        let inline = (kind & 0xc0 == 0xc0).then(|| &inline[..usize::from(source.byte())]);
        match self.qp.post_send(self.now, &wr, inline) {
            Ok(()) => self.sends.posted += 1,
            Err(PostError::InvalidState) => assert!(matches!(
                self.qp.state(),
                QpState::Reset | QpState::Init | QpState::Rtr
            )),
            Err(_) => {}
        }
    }

    fn post_recv(&mut self, source: &mut Source<'_>) {
        let sges = self.sges(source);
        if self
            .qp
            .post_recv(self.now, self.receives.posted, &sges)
            .is_ok()
        {
            self.receives.posted += 1;
        }
    }

    fn modify(&mut self, source: &mut Source<'_>) {
        let next = QpState::ALL[usize::from(source.byte()) % QpState::ALL.len()];
        let attr = QpAttr {
            qp_state: next.code(),
            ..self.setup.attr
        };
        let path = Setup::PATH_TO_RTS.iter().find(|(state, _)| *state == next);
        let valid = path.map_or(QpAttrMask::STATE, |(_, mask)| *mask);
        let (attr, mask) = match source.byte() {
            0..=0xbf => (attr, valid),
            0xc0..=0xdf => (attr, QpAttrMask::STATE),
            _ => (
                wild_attr(source),
                QpAttrMask::from_bits_retain(source.word()),
            ),
        };
        let before = (self.qp.state(), self.qp.query());
        if self
            .qp
            .modify(self.now, &attr, mask, &context(OWN))
            .is_err()
        {
            assert_eq!(
                (self.qp.state(), self.qp.query()),
                before,
                "a failed modify changes nothing"
            );
            return;
        }
        if self.qp.state() == QpState::Reset {
            self.sends.forget();
            self.receives.forget();
        }
        if mask.contains(QpAttrMask::RQ_PSN) {
            self.peer_psn = Psn::new(attr.rq_psn);
        }
    }

    fn time_passes(&mut self, source: &mut Source<'_>) {
        self.now = match (source.byte() % 4, self.qp.next_timeout()) {
            (0, _) => self.now.plus_ns(source.word().into()),
            (_, Some(time)) => self.now.max(time),
            (_, None) => self.now,
        };
        self.qp.handle_timeout(self.now);
    }

    fn raw_packet(&mut self, source: &mut Source<'_>) {
        let len = usize::from(source.byte()).min(source.0.len());
        let (bytes, rest) = source.0.split_at(len);
        source.0 = rest;
        self.deliver(bytes, PEER);
    }

    fn packet(&mut self, source: &mut Source<'_>) {
        let opcode = match source.byte() {
            0xf0..=0xff => Opcode::new(source.byte()),
            byte => Opcode::new(byte % 0x18),
        };
        let is_response = opcode
            .operation()
            .is_some_and(|operation| operation.is_response());
        let mut bth = Bth::new(opcode, Qpn::new(0x11), Psn::new(0));
        let flags = source.byte();
        bth.ack_req = flags & 1 != 0;
        bth.solicited = flags & 2 != 0;
        bth.migreq = flags & 4 != 0;
        bth.pkey = if flags >= 0xfe {
            Pkey::new(flags.into())
        } else {
            Pkey::DEFAULT
        };
        bth.psn = if is_response {
            Psn::new(self.setup.attr.sq_psn)
                .add(source.number())
                .add(u32::from(source.byte()))
        } else {
            self.peer_psn.add(source.number())
        };
        let mut headers = Headers::new(bth);
        self.extend(source, &mut headers);
        let len = match source.byte() {
            byte @ 0..=0x1f => usize::from(byte),
            0x20..=0x8f => 0,
            0x90..=0xdf => PMTU,
            0xe0..=0xef => PMTU + 1,
            byte => usize::from(byte),
        };
        headers.bth.pad_count = [0, 3, 2, 1][len % 4];
        if flags & 0xf8 == 0xf8 {
            headers.bth.pad_count = source.byte() % 4;
        }
        let mut bytes = vec![0; headers.len()];
        headers.emit(&mut bytes).expect("the buffer is long enough");
        bytes.resize(
            bytes.len() + len + usize::from(headers.bth.pad_count) + 4,
            source.byte(),
        );
        if !is_response && bth.psn == self.peer_psn {
            // The peer continues, whether or not this packet was accepted.
            let len = headers.reth.map_or(0, |reth| reth.dma_len);
            let read = opcode.get() == 0x0c && len <= REGION_LEN;
            let psns = if read { len.div_ceil(256).max(1) } else { 1 };
            if flags & 0x10 == 0 {
                self.peer_psn = self.peer_psn.add(psns);
            }
        }
        let from = if flags == 0xf7 { OWN } else { PEER };
        self.deliver(&bytes, from);
    }

    fn extend(&self, source: &mut Source<'_>, headers: &mut Headers) {
        let ext = headers.bth.opcode.ext().unwrap_or(ExtHeaders::empty());
        let region = self.region(source);
        let (va, rkey) = (Self::va(source, &region), region.rkey);
        if ext.contains(ExtHeaders::RETH) {
            let dma_len = match source.byte() {
                0xff => source.word(),
                byte @ 0..=0x7f => u32::from(byte % 64),
                byte => u32::from(byte & 0x7f) * 64,
            };
            headers.reth = Some(Reth { va, rkey, dma_len });
        }
        if ext.contains(ExtHeaders::ATOMIC_ETH) {
            let (swap_add, compare) = (source.byte().into(), source.byte().into());
            headers.atomic = Some(AtomicEth {
                va,
                rkey,
                swap_add,
                compare,
            });
        }
        if ext.contains(ExtHeaders::AETH) {
            let syndrome = match source.byte() {
                0..=0x7f => 0x1f,
                byte => byte & 0x7f,
            };
            let syndrome = Syndrome::from_code(syndrome);
            headers.aeth = Some(Aeth {
                syndrome,
                msn: Msn::new(source.byte().into()),
            });
        }
        headers.atomic_ack = ext
            .contains(ExtHeaders::ATOMIC_ACK_ETH)
            .then(|| AtomicAckEth {
                original: source.byte().into(),
            });
        headers.imm = ext
            .contains(ExtHeaders::IMM_DT)
            .then_some(ImmDt([1, 2, 3, 4]));
        headers.ieth = ext.contains(ExtHeaders::IETH).then_some(Ieth(rkey));
        headers.feth = ext.contains(ExtHeaders::FETH).then(Feth::default);
        headers.deth = ext.contains(ExtHeaders::DETH).then(Default::default);
        headers.rdeth = ext.contains(ExtHeaders::RDETH).then(Default::default);
        headers.xrceth = ext.contains(ExtHeaders::XRCETH).then(Default::default);
        headers.dceth = ext.contains(ExtHeaders::DCETH).then(Default::default);
        headers.dcreth = ext.contains(ExtHeaders::DCRETH).then(Default::default);
    }

    fn deliver(&mut self, bytes: &[u8], source: IpAddr) {
        let Ok(packet) = Packet::parse(bytes) else {
            return;
        };
        let meta = PacketMeta {
            source,
            destination: OWN,
            traffic_class: 0,
            hop_limit: 64,
        };
        let fast = FastPathPacket::parse(bytes);
        let taken = fast.is_some_and(|fast| self.qp.handle_fast(self.now, &meta, &fast, &self.mem));
        if !taken {
            self.qp.handle_packet(self.now, &meta, &packet, &self.mem);
        }
    }

    /// Checks that every transmitted packet is well formed. Returns the number of packets.
    fn transmit_once(&mut self, acks: AckPlacement) -> usize {
        self.tx.clear();
        self.qp
            .poll_transmit(self.now, &self.mem, acks, &mut self.tx);
        for segment in self.tx.bytes().chunks(self.tx.segment_len().max(1)) {
            let packet = Packet::parse(segment).expect("a transmitted packet parses");
            assert!(packet.payload().len() <= PMTU);
            assert!(packet.headers().agrees_with_opcode());
        }
        self.tx.segments()
    }

    fn drain(&mut self) {
        let mut packets = 0;
        loop {
            let count = self.transmit_once(AckPlacement::First);
            packets += count;
            assert!(packets <= MAX_PACKETS, "endless output");
            if count == 0 {
                break;
            }
        }
        while let Some(completion) = self.qp.poll_completion() {
            let queue = if completion.is_send() {
                &mut self.sends
            } else {
                &mut self.receives
            };
            queue.complete(completion.wr_id);
            self.qp
                .free_wqes(completion.is_send(), completion.freed_wqes);
        }
        let mut events = 0;
        while self.qp.poll_event().is_some() {
            events += 1;
            assert!(events <= 64, "endless events");
        }
        assert_eq!(
            self.sends.posted - self.sends.completed,
            self.qp.send_queue_len() as u64
        );
        assert_eq!(
            self.receives.posted - self.receives.completed,
            self.qp.recv_queue_len() as u64
        );
    }

    /// Checks that the flush completes everything, and that protected memory is unchanged.
    fn end(mut self) {
        self.drain();
        let to_error = QpAttr {
            qp_state: QpState::Err.code(),
            ..self.setup.attr
        };
        if self
            .qp
            .modify(self.now, &to_error, QpAttrMask::STATE, &context(OWN))
            .is_ok()
        {
            self.drain();
            assert_eq!(self.sends.completed, self.sends.posted);
            assert_eq!(self.receives.completed, self.receives.posted);
            assert_eq!(self.qp.next_timeout(), None);
        }
        for region in [self.read_only, self.foreign, self.gone] {
            assert!(
                self.mem.all(&region).iter().all(|byte| *byte == 0),
                "a write without access rights"
            );
        }
    }
}

fn wild_attr(source: &mut Source<'_>) -> QpAttr {
    QpAttr {
        qp_state: source.number(),
        cur_qp_state: source.number(),
        path_mtu: source.number(),
        rq_psn: source.word(),
        sq_psn: source.word(),
        dest_qp_num: source.word(),
        qp_access_flags: AccessFlags::from_bits_retain(source.number()),
        ah_attr: rocade_transport::AddressVector {
            dgid: Gid::from_ip(PEER),
            is_global: true,
            port_num: source.byte() % 3,
            ..Default::default()
        },
        pkey_index: source.byte().into(),
        en_sqd_async_notify: source.byte().is_multiple_of(2),
        max_rd_atomic: source.byte(),
        max_dest_rd_atomic: source.byte(),
        min_rnr_timer: source.byte(),
        port_num: source.byte() % 3,
        timeout: source.byte(),
        retry_cnt: source.byte(),
        rnr_retry: source.byte(),
        ..QpAttr::default()
    }
}
