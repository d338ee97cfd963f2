//! Rocade's engine as the device under test.

use std::{
    cell::RefCell,
    net::IpAddr,
    os::fd::RawFd,
    rc::Rc,
    sync::atomic::{AtomicU64, Ordering},
};

use rocade_conformance::peer::{
    Buffer, Completion, DC_KEY, Event, MaskedWork, Peer, PeerManager, PeerQp, QKEY, QpSpec,
    RIG_SRQN, ReceivesFrom, Region, RegionSpec, Rights, State, Status, Unable, WindowBind, Work,
    WorkOp,
};
use rocade_emulator::{
    AccessFlags, AddressVector, Ah, Bind, Block, BrokerMode, Connection, Context, Cq, Datagram,
    DctInitAttr, Engine, EngineConfig, Gid, ImmOrInv, Layout, Lkey, MaskedOp, Mr, Mw, Operands, Pd,
    Qkey, Qp, QpAttr, QpAttrMask, QpCap, QpInitAttr, QpState, QpType, Qpn, Remap, Rkey, SendFlags,
    SendOp, SendWr, Sge, Srq, SrqInitAttr, Srqn, ToDct, VerbsError, WindowKind, Xrcd, XrcdInitAttr,
    transition_rule,
};
use rocade_wire::{Feth, Placement, Selectivity, Service};

use crate::manager::RocadeManager;

/// An engine in this process, without a broker process.
pub(crate) struct RocadePeer {
    engine: Engine,
    address: IpAddr,
}

impl RocadePeer {
    pub(crate) fn new(address: IpAddr) -> Self {
        let spec = format!("dev={address}");
        let config = EngineConfig::from_specs(&[spec], BrokerMode::Embedded).unwrap();
        Self {
            engine: Engine::new(config).unwrap(),
            address,
        }
    }
}

impl Peer for RocadePeer {
    fn name(&self) -> &'static str {
        "rocade"
    }

    fn address(&self) -> IpAddr {
        self.address
    }

    fn open(&self, spec: &QpSpec) -> Result<Box<dyn PeerQp>, Unable> {
        Ok(Box::new(
            RocadeQp::open(&self.engine, spec).map_err(unable)?,
        ))
    }

    fn manager(&self) -> Result<Box<dyn PeerManager>, Unable> {
        Ok(Box::new(
            RocadeManager::new(&self.engine, self.address).map_err(unable)?,
        ))
    }
}

/// Returns the operands of a masked atomic.
fn operands(op: &WorkOp) -> Option<Operands> {
    let WorkOp::Masked { op, .. } = *op else {
        return None;
    };
    Some(Operands::Masked(match op {
        MaskedWork::CmpSwap {
            swap,
            compare,
            swap_mask,
            compare_mask,
        } => MaskedOp::CmpSwap {
            compare,
            compare_mask,
            swap,
            swap_mask,
        },
        MaskedWork::FetchAdd { add, boundary } => MaskedOp::FetchAdd { add, boundary },
    }))
}

pub(crate) fn unable(error: VerbsError) -> Unable {
    Unable(error.to_string())
}

fn connection(spec: &QpSpec) -> Connection {
    Connection {
        path_mtu: spec.pmtu,
        rq_psn: spec.rq_psn,
        sq_psn: spec.sq_psn,
        max_rd_atomic: spec.max_rd_atomic,
        max_dest_rd_atomic: spec.max_dest_rd_atomic,
        min_rnr_timer: spec.min_rnr_timer.code(),
        timeout: spec.ack_timeout.code(),
        retry_cnt: spec.retry_cnt,
        rnr_retry: spec.rnr_retry,
        ..Connection::to(Gid::from_ip(spec.rig_addr), spec.rig_qpn)
    }
}

/// Returns the rights of a region.
fn access_to(spec: RegionSpec) -> AccessFlags {
    let mut access = access(spec.rights);
    access.set(AccessFlags::LOCAL_WRITE, !spec.read_only);
    access.set(AccessFlags::MW_BIND, spec.bindable);
    access
}

fn access(rights: Rights) -> AccessFlags {
    let mut flags = AccessFlags::LOCAL_WRITE;
    flags.set(AccessFlags::REMOTE_WRITE, rights.write);
    flags.set(AccessFlags::REMOTE_READ, rights.read);
    flags.set(AccessFlags::REMOTE_ATOMIC, rights.atomic);
    flags.set(AccessFlags::FLUSH_GLOBAL, rights.flush);
    flags
}

/// Registered memory. Fields are dropped in order, so that the registration ends before the memory
/// is freed.
struct Memory {
    mr: Mr,
    words: Box<[AtomicU64]>,
    len: usize,
}

impl Memory {
    fn new(pd: &Pd, spec: RegionSpec) -> Result<Self, VerbsError> {
        let access = access_to(spec);
        let words: Box<[AtomicU64]> = (0..spec.len.div_ceil(8))
            .map(|_| AtomicU64::new(0))
            .collect();
        let addr = words.as_ptr() as u64;
        // SAFETY: The memory outlives the registration (`Drop`), and is accessed by atomics only.
        let mr = unsafe { pd.reg_mr(addr, spec.len, addr, access) }?;
        Ok(Self {
            mr,
            words,
            len: spec.len,
        })
    }

    fn byte(&self, at: usize) -> u8 {
        self.words[at / 8].load(Ordering::Acquire).to_ne_bytes()[at % 8]
    }

    fn set_byte(&self, at: usize, value: u8) {
        let word = &self.words[at / 8];
        let mut bytes = word.load(Ordering::Acquire).to_ne_bytes();
        bytes[at % 8] = value;
        word.store(u64::from_ne_bytes(bytes), Ordering::Release);
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // An error means that the case has already deregistered it.
        let _ended = self.mr.destroy();
    }
}

/// The capacity of each queue pair.
const CAP: QpCap = QpCap {
    max_send_wr: 64,
    max_recv_wr: 64,
    max_send_sge: 1,
    max_recv_sge: 1,
    max_inline_data: 0,
};

struct RocadeQp {
    qp: Qp,
    srq: Option<Srq>,
    _xrcd: Option<Xrcd>,
    cq: Cq,
    context: Context,
    pd: Pd,
    /// The windows of all queue pairs of the protection domain.
    windows: Rc<RefCell<Vec<Mw>>>,
    keys: RefCell<Vec<Mr>>,
    regions: Rc<Vec<Memory>>,
    groups: RefCell<Vec<IpAddr>>,
    /// The destination of datagrams and of a DC initiator's requests.
    rig: Option<(Ah, Qpn)>,
    spec: QpSpec,
}

impl Drop for RocadeQp {
    fn drop(&mut self) {
        for group in self.groups.take() {
            // A group that was joined twice is left at the first time.
            let _left = self.qp.detach_mcast(Gid::from_ip(group));
        }
        // An error means that the case has already destroyed it.
        let _ended = self.qp.destroy();
    }
}

impl RocadeQp {
    fn open(engine: &Engine, spec: &QpSpec) -> Result<Self, VerbsError> {
        // Each QP has its own context, because asynchronous events are per context.
        let context = engine.open_device("dev")?;
        set_nonblocking(context.async_fd());
        let pd = context.alloc_pd()?;
        let foreign_pd = context.alloc_pd()?;
        let regions = spec
            .regions
            .iter()
            .map(|region| Memory::new(if region.foreign_pd { &foreign_pd } else { &pd }, *region))
            .collect::<Result<Vec<_>, _>>()?;
        let cq = context.create_cq(spec.cq_depth, None, 0, 0)?;
        let qp_type = match spec.service {
            Service::Uc => QpType::Uc,
            Service::Ud => QpType::Ud,
            Service::Xrc => QpType::XrcSend,
            Service::Dc => QpType::DcInitiator,
            _ => QpType::Rc,
        };
        let rig = if spec.service == Service::Ud || spec.initiates {
            Some((pd.create_ah(&connection(spec).address())?, spec.rig_qpn))
        } else {
            None
        };
        let own_qp = |srq: Option<&Srq>| {
            pd.create_qp(QpInitAttr {
                send_cq: cq.clone(),
                recv_cq: cq.clone(),
                srq: srq.cloned(),
                cap: CAP,
                qp_type,
                sq_sig_all: false,
                cookie: 0,
            })
        };
        let of_queue = SrqInitAttr {
            max_wr: 64,
            max_sge: 1,
            cookie: 0,
        };
        let (qp, srq, xrcd) = match spec.receives_from {
            _ if spec.service == Service::Dc && spec.initiates => (own_qp(None)?, None, None),
            _ if spec.service == Service::Dc => {
                let srq = foreign_pd.create_srq(of_queue)?;
                let init = DctInitAttr {
                    cq: cq.clone(),
                    srq: srq.clone(),
                    key: DC_KEY,
                    cookie: 0,
                    has_dct_events: false,
                };
                (pd.create_dct(init)?, Some(srq), None)
            }
            ReceivesFrom::Own => (own_qp(None)?, None, None),
            ReceivesFrom::Shared => {
                let srq = foreign_pd.create_srq(of_queue)?;
                (own_qp(Some(&srq))?, Some(srq), None)
            }
            ReceivesFrom::Xrc => {
                let xrcd = context.open_xrcd(XrcdInitAttr::default())?;
                let srq = xrcd.create_srq(&foreign_pd, &cq, of_queue)?;
                (xrcd.create_target(0)?, Some(srq), Some(xrcd))
            }
        };
        let this = Self {
            qp,
            srq,
            _xrcd: xrcd,
            cq,
            context,
            pd,
            windows: Rc::default(),
            keys: RefCell::default(),
            regions: Rc::new(regions),
            groups: RefCell::default(),
            rig,
            spec: spec.clone(),
        };
        if spec.service == Service::Dc {
            this.set_up_dynamic(spec)?;
            for (id, buffer) in (0..).zip(&spec.receives) {
                this.receive(id, *buffer)?;
            }
            return Ok(this);
        }
        this.to_init()?;
        for (id, buffer) in (0..).zip(&spec.receives) {
            this.receive(id, *buffer)?;
        }
        this.to_last_state()?;
        Ok(this)
    }

    fn to_init(&self) -> Result<(), VerbsError> {
        if self.spec.service == Service::Ud {
            self.to_init_as_ud()
        } else {
            self.qp.to_init(access(self.spec.rights))
        }
    }

    /// Moves a queue pair in INIT to the state of the specification.
    fn to_last_state(&self) -> Result<(), VerbsError> {
        let connection = connection(&self.spec);
        if self.spec.state != State::Init {
            self.qp.to_rtr(&connection)?;
        }
        if self.spec.state == State::Rts {
            self.qp.to_rts(&connection)?;
        }
        Ok(())
    }

    /// Creates another queue pair with the protection domain, memory and windows of this one.
    fn open_sibling(&self, rig_qpn: Qpn) -> Result<Self, VerbsError> {
        let spec = QpSpec {
            rig_qpn,
            ..self.spec.clone()
        };
        let cq = self.context.create_cq(spec.cq_depth, None, 0, 0)?;
        let qp = self.pd.create_qp(QpInitAttr {
            send_cq: cq.clone(),
            recv_cq: cq.clone(),
            srq: None,
            cap: CAP,
            qp_type: self.qp.qp_type(),
            sq_sig_all: false,
            cookie: 0,
        })?;
        let this = Self {
            qp,
            srq: None,
            _xrcd: None,
            cq,
            context: self.context.clone(),
            pd: self.pd.clone(),
            windows: Rc::clone(&self.windows),
            keys: RefCell::default(),
            regions: Rc::clone(&self.regions),
            groups: RefCell::default(),
            rig: None,
            spec,
        };
        this.to_init()?;
        this.to_last_state()?;
        Ok(this)
    }

    fn new_window(&self, kind: WindowKind) -> Result<Rkey, VerbsError> {
        let window = self.pd.alloc_mw(kind)?;
        let rkey = window.rkey();
        self.windows.borrow_mut().push(window);
        Ok(rkey)
    }

    fn bind(&self, bind: &WindowBind) -> Bind {
        let mr = &self.regions[bind.region].mr;
        let mut access = access(bind.rights).difference(AccessFlags::LOCAL_WRITE);
        access.set(AccessFlags::ZERO_BASED, bind.zero_based);
        Bind {
            rkey: bind.rkey,
            lkey: mr.lkey(),
            va: mr.iova().wrapping_add(bind.offset as u64),
            len: bind.len as u64,
            access,
        }
    }

    /// Moves a DC target to RTR, or an initiator to RTS.
    fn set_up_dynamic(&self, spec: &QpSpec) -> Result<(), VerbsError> {
        let states = [QpState::Init, QpState::Rtr, QpState::Rts];
        let count = if spec.initiates { 3 } else { 2 };
        for &next in &states[..count] {
            let rule = transition_rule(self.qp.qp_type(), self.qp.state(), next);
            let required = rule.map_or(QpAttrMask::empty(), |rule| rule.required);
            let attr = QpAttr {
                qp_state: next.code(),
                port_num: 1,
                qp_access_flags: access(spec.rights),
                path_mtu: spec.pmtu.code().into(),
                min_rnr_timer: spec.min_rnr_timer.code(),
                max_dest_rd_atomic: spec.max_dest_rd_atomic,
                max_rd_atomic: spec.max_rd_atomic,
                sq_psn: spec.sq_psn.get(),
                timeout: spec.ack_timeout.code(),
                retry_cnt: spec.retry_cnt,
                rnr_retry: spec.rnr_retry,
                ah_attr: connection(spec).address(),
                ..QpAttr::default()
            };
            self.qp.modify(&attr, QpAttrMask::STATE | required)?;
        }
        Ok(())
    }

    fn to_init_as_ud(&self) -> Result<(), VerbsError> {
        let attr = QpAttr {
            qp_state: QpState::Init.code(),
            port_num: 1,
            qkey: QKEY,
            ..QpAttr::default()
        };
        let mask = QpAttrMask::STATE | QpAttrMask::PKEY_INDEX | QpAttrMask::PORT | QpAttrMask::QKEY;
        self.qp.modify(&attr, mask)
    }

    fn receive(&self, id: u64, buffer: Buffer) -> Result<(), VerbsError> {
        let sges = [self.sge(buffer)];
        match &self.srq {
            Some(srq) => srq.recv_queue().push(id, &sges),
            None => self.qp.recv_queue().push(id, &sges),
        }
    }

    fn sge(&self, buffer: Buffer) -> Sge {
        let mr = &self.regions[buffer.region].mr;
        let lkey = mr.lkey().get();
        Sge {
            // Some cases use addresses outside of the region.
            addr: mr.addr().wrapping_add(buffer.offset as u64),
            len: buffer.len,
            lkey: Lkey::new(if buffer.bad_key {
                lkey ^ 0x00ff_0001
            } else {
                lkey
            }),
        }
    }
}

impl PeerQp for RocadeQp {
    fn qpn(&self) -> Qpn {
        self.qp.qp_num()
    }

    fn srqn(&self) -> u32 {
        self.srq.as_ref().map_or(0, Srq::number)
    }

    fn region(&self, index: usize) -> Region {
        let memory = &self.regions[index];
        Region {
            va: memory.mr.iova(),
            rkey: memory.mr.rkey(),
            len: memory.len,
        }
    }

    fn read_memory(&self, region: usize, offset: usize, len: usize) -> Vec<u8> {
        let memory = &self.regions[region];
        (offset..offset + len).map(|at| memory.byte(at)).collect()
    }

    fn write_memory(&self, region: usize, offset: usize, data: &[u8]) {
        let memory = &self.regions[region];
        for (at, byte) in (offset..).zip(data) {
            memory.set_byte(at, *byte);
        }
    }

    fn deregister(&self, region: usize) -> Result<(), Unable> {
        self.regions[region].mr.destroy().map_err(unable)
    }

    fn window(&self) -> Result<Rkey, Unable> {
        self.new_window(WindowKind::Type2).map_err(unable)
    }

    fn type_1_window(&self) -> Result<Rkey, Unable> {
        self.new_window(WindowKind::Type1).map_err(unable)
    }

    fn bind_type_1(&self, id: u64, bind: &WindowBind) -> Result<Rkey, Unable> {
        let windows = self.windows.borrow();
        let window = windows.iter().find(|window| window.rkey() == bind.rkey);
        let window = window.ok_or_else(|| Unable("no such window".to_owned()))?;
        let flags = SendFlags::SIGNALED;
        let bound = self.qp.bind_mw(window, id, flags, self.bind(bind));
        bound.map_err(unable)
    }

    fn sibling(&self, rig_qpn: Qpn) -> Result<Box<dyn PeerQp>, Unable> {
        Ok(Box::new(self.open_sibling(rig_qpn).map_err(unable)?))
    }

    fn indirect(&self, segments: &[Buffer], rights: Rights) -> Result<Rkey, Unable> {
        let entries = u32::try_from(segments.len()).map_err(|_| Unable("too many".to_owned()))?;
        let rights = access(rights).difference(AccessFlags::FLUSH_GLOBAL);
        let key = self.pd.create_indirect(entries, rights).map_err(unable)?;
        let blocks = segments.iter().map(|segment| {
            let sge = self.sge(*segment);
            Block {
                lkey: sge.lkey,
                addr: sge.addr,
                len: sge.len.into(),
                stride: 0,
            }
        });
        let layout = Layout::list(blocks).map_err(|error| Unable(format!("{error:?}")))?;
        let remap = Remap::To { base: 0, layout };
        let change = key.change(Some(rights), remap, false).map_err(unable)?;
        let fill = SendWr {
            wr_id: 0,
            op: SendOp::Fill,
            flags: SendFlags::SIGNALED,
            sges: &[],
        };
        let posted = self.qp.post_sends(|queue| queue.push_with(&fill, change));
        posted.map_err(unable)?;
        let done = self.poll_completion();
        if done.is_none_or(|done| done.status != Status::Success) {
            return Err(Unable(format!("the key was not filled: {done:?}")));
        }
        let rkey = key.rkey();
        self.keys.borrow_mut().push(key);
        Ok(rkey)
    }

    fn rearm(&self, to: IpAddr) -> Result<(), Unable> {
        let attr = QpAttr {
            alt_ah_attr: AddressVector {
                dgid: Gid::from_ip(to),
                hop_limit: 64,
                is_global: true,
                port_num: 1,
                ..AddressVector::default()
            },
            alt_port_num: 1,
            alt_timeout: 0,
            path_mig_state: 1,
            ..QpAttr::default()
        };
        let mask = QpAttrMask::ALT_PATH | QpAttrMask::PATH_MIG_STATE;
        self.qp.modify(&attr, mask).map_err(unable)
    }

    fn join(&self, group: IpAddr) -> Result<(), Unable> {
        self.groups.borrow_mut().push(group);
        self.qp.attach_mcast(Gid::from_ip(group)).map_err(unable)
    }

    fn leave(&self, group: IpAddr) -> Result<(), Unable> {
        self.groups.borrow_mut().retain(|joined| *joined != group);
        self.qp.detach_mcast(Gid::from_ip(group)).map_err(unable)
    }

    fn limit(&self, limit: u32) -> Result<(), Unable> {
        let srq = self.srq.as_ref().ok_or(VerbsError::InvalidArgument("srq"));
        let armed = srq.and_then(|srq| srq.modify(None, Some(limit)));
        armed.map_err(unable)
    }

    fn reset(&self) -> Result<(), Unable> {
        let attr = QpAttr {
            qp_state: QpState::Reset.code(),
            ..QpAttr::default()
        };
        let reset = self.qp.modify(&attr, QpAttrMask::STATE);
        let reset = reset.and_then(|()| self.to_init());
        let reset = reset.and_then(|()| self.to_last_state());
        reset.map_err(unable)
    }

    fn drain(&self, notify: bool) -> Result<(), Unable> {
        let attr = QpAttr {
            qp_state: QpState::Sqd.code(),
            en_sqd_async_notify: true,
            ..QpAttr::default()
        };
        let mut mask = QpAttrMask::STATE;
        mask.set(QpAttrMask::EN_SQD_ASYNC_NOTIFY, notify);
        self.qp.modify(&attr, mask).map_err(unable)
    }

    fn resume(&self) -> Result<(), Unable> {
        let attr = QpAttr {
            qp_state: QpState::Rts.code(),
            ..QpAttr::default()
        };
        self.qp.modify(&attr, QpAttrMask::STATE).map_err(unable)
    }

    fn destroy(&self) -> Result<(), Unable> {
        self.qp.destroy().map_err(unable)
    }

    fn post_recv(&self, id: u64, buffer: Buffer) -> Result<(), Unable> {
        self.receive(id, buffer).map_err(unable)
    }

    fn post_send(&self, work: &Work) -> Result<(), Unable> {
        let op = match work.op {
            WorkOp::Send { imm } => SendOp::Send { imm },
            WorkOp::SendInv { rkey } => SendOp::SendInv { rkey },
            WorkOp::Invalidate { rkey } => SendOp::Invalidate { rkey },
            WorkOp::Bind(bind) => SendOp::Bind(self.bind(&bind)),
            WorkOp::Write { va, rkey, imm } => SendOp::Write { va, rkey, imm },
            WorkOp::Read { va, rkey } => SendOp::Read { va, rkey },
            WorkOp::CmpSwap {
                va,
                rkey,
                compare,
                swap,
            } => SendOp::CmpSwap {
                va,
                rkey,
                compare,
                swap,
            },
            WorkOp::FetchAdd { va, rkey, add } => SendOp::FetchAdd { va, rkey, add },
            WorkOp::Masked {
                va, rkey, log_size, ..
            } => SendOp::Masked { va, rkey, log_size },
            WorkOp::Flush { va, rkey, len } => SendOp::Flush {
                va,
                rkey,
                len,
                feth: Feth::new(Placement::GLOBAL_VISIBILITY, Selectivity::Range),
            },
            WorkOp::AtomicWrite { va, rkey } => SendOp::AtomicWrite { va, rkey },
        };
        let sges = [self.sge(work.buffer)];
        let mut flags = SendFlags::empty();
        flags.set(SendFlags::SIGNALED, work.signaled);
        flags.set(SendFlags::SOLICITED, work.solicited);
        flags.set(SendFlags::FENCE, work.fence);
        let wr = SendWr {
            wr_id: work.id,
            op,
            flags,
            sges: &sges[usize::from(matches!(work.op, WorkOp::Flush { .. }))..],
        };
        // Read before the send queue is locked, because the lock blocks queries.
        let qp_type = self.qp.qp_type();
        let posted = self
            .qp
            .post_sends(|queue| match (&self.rig, operands(&work.op)) {
                (Some((ah, rig_qpn)), operands) if qp_type == QpType::DcInitiator => {
                    let to = ToDct {
                        ah,
                        dct: work.target.unwrap_or(*rig_qpn),
                        key: DC_KEY,
                        stream: 0,
                    };
                    match operands {
                        Some(operands) => queue.push_dynamic_with(&wr, to, operands),
                        None => queue.push_dynamic(&wr, to, None),
                    }
                }
                (None, Some(operands)) => queue.push_with(&wr, operands),
                (None, None) => queue.push(&wr).inspect(|()| {
                    if qp_type == QpType::XrcSend {
                        queue.set_remote_srqn(Srqn::new(RIG_SRQN));
                    }
                }),
                (Some((ah, dest_qp)), _) => {
                    let to = Datagram {
                        ah,
                        dest_qp: *dest_qp,
                        qkey: Qkey::new(QKEY),
                    };
                    queue.push_datagram(&wr, to, None)
                }
            });
        posted.map_err(unable)
    }

    fn poll_completion(&self) -> Option<Completion> {
        let completion = self.cq.poll_one()?;
        Some(Completion {
            id: completion.wr_id,
            status: Status::from_code(completion.status.code()),
            receive: !completion.is_send(),
            byte_len: completion.byte_len,
            imm: match completion.imm_or_inv {
                ImmOrInv::Imm(imm) => Some(imm),
                _ => None,
            },
            invalidated: match completion.imm_or_inv {
                ImmOrInv::Inv(rkey) => Some(rkey),
                _ => None,
            },
        })
    }

    fn poll_event(&self) -> Option<Event> {
        match self.context.next_async_event() {
            Ok(event) => {
                self.context.ack_async_event(&event);
                Some(Event::from_code(event.kind.code()))
            }
            Err(VerbsError::WouldBlock) => None,
            Err(error) => panic!("no asynchronous events: {error}"),
        }
    }

    fn state(&self) -> State {
        State::from_code(self.qp.state().code())
    }

    fn to_error(&self) -> Result<(), Unable> {
        let attr = QpAttr {
            qp_state: QpState::Err.code(),
            ..QpAttr::default()
        };
        self.qp.modify(&attr, QpAttrMask::STATE).map_err(unable)
    }
}

fn set_nonblocking(fd: RawFd) {
    // SAFETY: The call takes no pointers, and the descriptor is that of an open context.
    let result = unsafe { libc::fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK) };
    assert_eq!(result, 0);
}
