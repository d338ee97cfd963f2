//! Shared parts of the UC, UD, XRC and DC targets: operands from an input that is a program, and
//! packets made of them.

use rocade_transport::testing::{Region, TestMemory};
use rocade_transport::{AccessFlags, PdTag, SendFlags, SendOp, SendWr, Sge};
use rocade_wire::{
    Aeth, AtomicAckEth, AtomicEth, Bth, ExtHeaders, Feth, Headers, Ieth, ImmDt, Lkey, Msn, Opcode,
    Pkey, Psn, Qpn, Reth, Rkey, Service, Syndrome,
};

/// The bytes of each region.
pub(crate) const REGION_LEN: u32 = 6000;
const ALL: AccessFlags = AccessFlags::LOCAL_WRITE
    .union(AccessFlags::REMOTE_WRITE)
    .union(AccessFlags::REMOTE_READ)
    .union(AccessFlags::REMOTE_ATOMIC);

/// The rest of the input, followed by zeros.
pub(crate) struct Source<'a>(pub(crate) &'a [u8]);

impl Source<'_> {
    pub(crate) fn byte(&mut self) -> u8 {
        self.array::<1>()[0]
    }

    pub(crate) fn word(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }

    pub(crate) fn array<const N: usize>(&mut self) -> [u8; N] {
        let (taken, rest) = self.0.split_at(self.0.len().min(N));
        self.0 = rest;
        let mut array = [0; N];
        array[..taken.len()].copy_from_slice(taken);
        array
    }

    /// Returns a small number, or one around the limits of 24 and 32 bits.
    pub(crate) fn number(&mut self) -> u32 {
        match self.byte() {
            small @ 0..=0xdf => u32::from(small % 8),
            0xe0..=0xef => self.word(),
            byte => 0u32.wrapping_sub(u32::from(byte & 7)),
        }
    }
}

/// The regions of one side: one that peers may use, and three that they may not write.
#[derive(Clone, Copy)]
pub(crate) struct Regions {
    pub(crate) good: Region,
    read_only: Region,
    foreign: Region,
    gone: Region,
}

impl Regions {
    /// Registers the regions. The good one is in this protection domain.
    pub(crate) fn new(mem: &TestMemory, domain: PdTag) -> Self {
        let is_own = domain == TestMemory::PD;
        let (own, other) = (
            mem.register(REGION_LEN, ALL),
            mem.register_foreign(REGION_LEN, ALL),
        );
        let gone = mem.register(REGION_LEN, ALL);
        mem.deregister(&gone);
        Self {
            good: if is_own { own } else { other },
            read_only: mem.register(REGION_LEN, AccessFlags::REMOTE_READ),
            foreign: if is_own { other } else { own },
            gone,
        }
    }

    fn pick(&self, source: &mut Source<'_>) -> Region {
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

    pub(crate) fn sges(&self, source: &mut Source<'_>) -> Vec<Sge> {
        let count = match source.byte() {
            byte @ 0..=0xef => byte % 4,
            _ => 9,
        };
        let sge = |_| {
            let region = self.pick(source);
            let offset = u64::from(source.word() % (REGION_LEN + 8));
            let len = u32::from(source.byte()) * 8 % (REGION_LEN - 4000);
            region.part(offset / 2, len)
        };
        (0..count).map(sge).collect()
    }

    /// # Panics
    /// If a peer has written without access rights.
    pub(crate) fn assert_untouched(&self, mem: &TestMemory) {
        for region in [self.read_only, self.foreign, self.gone] {
            let bytes = mem.all(&region);
            assert!(
                bytes.iter().all(|byte| *byte == 0),
                "a write without access rights"
            );
        }
    }
}

/// Returns a send work request to a peer with these regions.
pub(crate) fn send_wr<'a>(
    source: &mut Source<'_>,
    wr_id: u64,
    remote: &Regions,
    sges: &'a [Sge],
) -> SendWr<'a> {
    let region = remote.pick(source);
    let (va, rkey) = (va(source, &region), region.rkey);
    let kind = source.byte();
    let imm = (kind & 8 != 0).then_some([kind; 4]);
    let op = match kind % 8 {
        0..=2 => SendOp::Send { imm },
        3 | 4 => SendOp::Write { va, rkey, imm },
        5 => SendOp::Read { va, rkey },
        6 => SendOp::FetchAdd { va, rkey, add: 1 },
        _ => SendOp::Invalidate { rkey },
    };
    SendWr {
        wr_id,
        op,
        flags: SendFlags::from_bits_truncate(source.byte().into()) | SendFlags::SIGNALED,
        sges,
    }
}

fn va(source: &mut Source<'_>, region: &Region) -> u64 {
    match source.byte() {
        0xff => u64::from_le_bytes(source.array()),
        byte => region.addr + u64::from(byte) * 8,
    }
}

/// Returns a packet of this service, mostly well formed. `edit` fills in the headers of the
/// service.
pub(crate) fn packet(
    source: &mut Source<'_>,
    service: Service,
    (to, psn): (Qpn, &mut u32),
    regions: &Regions,
    edit: impl FnOnce(&mut Source<'_>, &mut Headers),
) -> Vec<u8> {
    let opcode = match source.byte() {
        0xf0..=0xff => Opcode::new(source.byte()),
        byte => Opcode::new(service.base() | byte & 0x1f),
    };
    let flags = source.byte();
    let mut bth = Bth::new(opcode, to, Psn::new(*psn));
    bth.ack_req = flags & 1 != 0;
    bth.solicited = flags & 2 != 0;
    bth.migreq = flags & 4 != 0;
    if flags >= 0xfe {
        bth.pkey = Pkey::new(flags.into());
    }
    if flags & 0x18 == 0x18 {
        bth.psn = bth.psn.add(source.number());
    }
    *psn = bth.psn.next().get();
    let mut headers = Headers::new(bth);
    extend(source, &mut headers, regions);
    edit(source, &mut headers);
    let len = match source.byte() {
        byte @ 0..=0x1f => usize::from(byte),
        0x20..=0x5f => 0,
        0x60..=0xdf => 256,
        0xe0..=0xef => 257,
        byte => usize::from(byte),
    };
    headers.bth.pad_count = Bth::pad_for(len);
    let mut bytes = vec![0; headers.len()];
    if headers.emit(&mut bytes).is_err() {
        return Vec::new();
    }
    let pad = usize::from(headers.bth.pad_count);
    bytes.resize(bytes.len() + len + pad + 4, source.byte());
    bytes
}

fn extend(source: &mut Source<'_>, headers: &mut Headers, regions: &Regions) {
    let ext = headers.bth.opcode.ext().unwrap_or(ExtHeaders::empty());
    let region = regions.pick(source);
    let (va, rkey) = (va(source, &region), region.rkey);
    let has = |header| ext.contains(header);
    headers.reth = has(ExtHeaders::RETH).then(|| {
        let dma_len = match source.byte() {
            0xff => source.word(),
            byte @ 0..=0x7f => u32::from(byte % 64),
            byte => u32::from(byte & 0x7f) * 64,
        };
        Reth { va, rkey, dma_len }
    });
    headers.atomic = has(ExtHeaders::ATOMIC_ETH).then(|| AtomicEth {
        va,
        rkey,
        swap_add: source.byte().into(),
        compare: source.byte().into(),
    });
    headers.aeth = has(ExtHeaders::AETH).then(|| {
        let code = match source.byte() {
            0..=0x7f => 0x1f,
            byte => byte & 0x7f,
        };
        Aeth {
            syndrome: Syndrome::from_code(code),
            msn: Msn::new(source.byte().into()),
        }
    });
    headers.atomic_ack = has(ExtHeaders::ATOMIC_ACK_ETH).then(|| AtomicAckEth {
        original: source.byte().into(),
    });
    headers.imm = has(ExtHeaders::IMM_DT).then_some(ImmDt([1, 2, 3, 4]));
    headers.ieth = has(ExtHeaders::IETH).then_some(Ieth(rkey));
    headers.feth = has(ExtHeaders::FETH).then(Feth::default);
    headers.deth = has(ExtHeaders::DETH).then(Default::default);
    headers.rdeth = has(ExtHeaders::RDETH).then(Default::default);
    headers.xrceth = has(ExtHeaders::XRCETH).then(Default::default);
    headers.dceth = has(ExtHeaders::DCETH).then(Default::default);
    headers.dcreth = has(ExtHeaders::DCRETH).then(Default::default);
}
