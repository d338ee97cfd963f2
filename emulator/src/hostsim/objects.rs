//! The verbs objects of an end, and how the service of its connection uses them.

use std::sync::Arc;
use std::time::Duration;

use super::board::{Board, End, Endpoint, other};
use super::keeper;
use super::memory::{Memory, place_in_turn};
use super::plan::Connection;
use super::pool::Pool;
use super::program::Program;
use super::services::Service;
use super::stream;
use super::waiting::unless_ended;
use crate::cm::CmId;
use crate::engine::common::{ALL_ACCESS, Side, register_with};
use crate::sync::turn;
use crate::{
    AccessFlags, AddressVector, Ah, Bind, Block, Cq, Datagram, DctInitAttr, Gid, Layout, Mr, Mtu,
    Mw, Operands, Pd, Qkey, Qp, QpAttr, QpAttrMask, QpCap, QpInitAttr, QpState, Qpn, Remap, Rkey,
    SendFlags, SendOp, SendPoster, SendWr, Sge, Srq, SrqInitAttr, Srqn, ToDct, VerbsError,
    WindowKind, Xrcd, transition_rule,
};

/// The key of datagrams.
const QKEY: u32 = 0x1234;
/// The access key of DC targets.
const KEY: u64 = 0xfeed_0001;
/// The RNR timer of receivers: 2.56 ms, because one may get no processor for long.
const RNR_TIMER: u8 = 16;
/// Number of blocks of an indirect key.
const BLOCKS: u32 = 3;
/// The rights of the peer. Windows have those without flushes.
const ACCESS: AccessFlags = ALL_ACCESS.union(AccessFlags::FLUSH_GLOBAL);

/// The objects of an end.
pub(super) struct Objects {
    pub(super) side: Side,
    service: Service,
    /// The queue pair that receives, if another one sends.
    target: Option<Qp>,
    /// The shared queue that only this end uses.
    srq: Option<Srq>,
    pool: Option<Arc<Pool>>,
    /// The address of the peer, for datagrams and DC.
    address: Option<Ah>,
    /// Number of receives, and the length of each.
    receives: (u32, usize),
    _domain: Option<Xrcd>,
    memory: Memory,
}

impl Objects {
    /// Makes the objects of an end.
    pub(super) fn new(program: &Program, end: End) -> Self {
        let plan = &program.board.plan.connections[end.0];
        let traits = plan.service.traits();
        let memory = Memory::new();
        let pool = program.pool.clone().filter(|_| plan.pools);
        let (srq, target, domain, side) = create(program, end, pool.as_deref(), &memory);
        let all = plan.messages[1 - end.1];
        let receives = match plan.service {
            Service::Stream => stream::RECEIVES,
            _ if traits.is_reliable => plan.depth,
            _ => all,
        };
        Self {
            side,
            service: plan.service,
            target,
            srq,
            pool,
            address: None,
            receives: (receives.max(1), plan.len + traits.header),
            _domain: domain,
            memory,
        }
    }

    /// Returns what the peer has to know.
    pub(super) fn endpoint(&self) -> Endpoint {
        let side = &self.side;
        let receiver = self.target.as_ref().unwrap_or(&side.qp);
        Endpoint {
            sender: side.qp.qp_num(),
            receiver: receiver.qp_num(),
            srqn: Srqn::new(self.srq.as_ref().map_or(0, Srq::number)),
            gid: side.gid(),
            addr: side.mr.addr(),
            rkey: side.mr.rkey(),
        }
    }

    /// Connects the queue pairs, and posts the first receives. Returns false if the target has
    /// ended with its creator.
    pub(super) fn connect(&mut self, board: &Board, end: End, peer: &Endpoint) -> bool {
        let plan = &board.plan.connections[end.0];
        let to = address_of(peer.gid);
        let mut receiver = peer.gid;
        if self.service == Service::Group {
            patiently(board, || self.side.qp.attach_mcast(group_of(end)));
            receiver = group_of(other(end));
        }
        if matches!(self.service, Service::Ud | Service::Group | Service::Dc) {
            let to = address_of(receiver);
            self.address = Some(patiently(board, || self.side.pd.create_ah(&to)));
        }
        let attr = |next: QpState, dest: Qpn| QpAttr {
            qp_state: next.code(),
            qp_access_flags: ACCESS,
            port_num: 1,
            qkey: QKEY,
            path_mtu: Mtu::Mtu1024.code().into(),
            dest_qp_num: dest.get(),
            rq_psn: peer.sender.get(),
            sq_psn: self.side.qp.qp_num().get(),
            timeout: plan.timeout,
            retry_cnt: 7,
            rnr_retry: 7,
            max_rd_atomic: 4,
            max_dest_rd_atomic: 4,
            min_rnr_timer: RNR_TIMER,
            ah_attr: to,
            ..QpAttr::default()
        };
        let modify = |qp: &Qp, next: QpState, dest: Qpn| {
            let rule = transition_rule(qp.qp_type(), qp.state(), next);
            let required = rule.map_or(QpAttrMask::empty(), |rule| rule.required);
            qp.modify(&attr(next, dest), QpAttrMask::STATE | required)
        };
        let bring = |qp: &Qp, next: QpState, dest: Qpn| {
            patiently(board, || modify(qp, next, dest));
        };
        // A target connects to the queue pair that sends, and has no RTS.
        if let Some(target) = &self.target {
            let has_ended = || target.state() == QpState::Err && board.is_keeper_dead(end);
            for next in [QpState::Init, QpState::Rtr] {
                patiently(board, || match modify(target, next, peer.sender) {
                    Err(_) if has_ended() => Ok(()),
                    result => result,
                });
            }
            if has_ended() {
                board.mark("a target ends with its creator before it is connected");
                return false;
            }
        }
        bring(&self.side.qp, QpState::Init, peer.receiver);
        self.post_first_receives();
        bring(&self.side.qp, QpState::Rtr, peer.receiver);
        bring(&self.side.qp, QpState::Rts, peer.receiver);
        true
    }

    /// Changes the state of the queue pair as the connection manager says. Returns `None` if the
    /// connection has ended.
    pub(super) fn bring_by(&self, board: &Board, end: End, id: &CmId, next: QpState) -> Option<()> {
        let plan = &board.plan.connections[end.0];
        let attr = id.qp_attr(next);
        let (attr, mask) = unless_ended(board, end, attr, "a peer")?;
        let attr = QpAttr {
            qp_access_flags: ACCESS,
            min_rnr_timer: RNR_TIMER,
            timeout: plan.timeout,
            ..attr
        };
        patiently(board, || self.side.qp.modify(&attr, mask));
        if next == QpState::Init {
            self.post_first_receives();
        }
        Some(())
    }

    fn post_first_receives(&self) {
        if self.pool.is_none() {
            (0..self.receives.0).for_each(|number| self.post_receive(number.into()));
        }
    }

    /// Posts a receive into its place.
    pub(super) fn post_receive(&self, number: u64) {
        if let Some(pool) = &self.pool {
            return pool.post(number);
        }
        let sges = [self.side.sge(self.place_of(number), self.receives.1)];
        let posted = match &self.srq {
            Some(srq) => srq.recv_queue().push(number, &sges),
            None => self.side.qp.recv_queue().push(number, &sges),
        };
        posted.expect("space");
    }

    fn place_of(&self, number: u64) -> usize {
        place_in_turn(number, self.receives.0, self.receives.1)
    }

    /// Returns the content of a receive that is complete. `next` is the number of receives that
    /// were complete before. The number of the receive must be `next`, unless others take receives
    /// from the queue.
    pub(super) fn received(&self, number: u64, next: u32) -> Result<Vec<u8>, String> {
        if let Some(pool) = &self.pool {
            return Ok(pool.bytes(number));
        }
        if number != u64::from(next) {
            return Err(format!("receive {number} completes instead of {next}"));
        }
        Ok(self.memory.bytes(self.place_of(number), self.receives.1))
    }

    /// Returns the number of the receive that replaces one that is complete.
    pub(super) fn next_receive(&self, number: u64) -> u64 {
        match &self.pool {
            Some(_) => number,
            None => number + u64::from(self.receives.0),
        }
    }

    /// Posts the bind of a new window to the memory of the end, or the mapping of an indirect key.
    pub(super) fn open_memory(&self, wr_id: u64, is_indirect: bool) -> Opened {
        if is_indirect {
            self.map_indirect(wr_id)
        } else {
            self.bind_window(wr_id)
        }
    }

    fn bind_window(&self, wr_id: u64) -> Opened {
        let side = &self.side;
        let window = side.pd.alloc_mw(WindowKind::Type2).expect("a window");
        let rkey = window.rkey().with_next_tag();
        let bind = Bind {
            rkey,
            lkey: side.mr.lkey(),
            va: side.mr.addr(),
            len: self.memory.0.len() as u64,
            access: ALL_ACCESS,
        };
        let wr = signaled(wr_id, SendOp::Bind(bind));
        let posted = side.qp.post_sends(|queue| queue.push(&wr));
        posted.expect("space");
        Opened::Window {
            _kept: window,
            rkey,
        }
    }

    /// Maps an indirect key to the same addresses, by several blocks.
    fn map_indirect(&self, wr_id: u64) -> Opened {
        let (side, base) = (&self.side, self.side.mr.addr());
        let key = side.pd.create_indirect(BLOCKS, ALL_ACCESS);
        let key = key.expect("an indirect key");
        let len = self.memory.0.len() as u64 / u64::from(BLOCKS);
        let blocks = (0..u64::from(BLOCKS)).map(|number| Block {
            lkey: side.mr.lkey(),
            addr: base + number * len,
            len,
            stride: 0,
        });
        let layout = Layout::list(blocks).expect("memory of the end");
        let operands = key.change(Some(ALL_ACCESS), Remap::To { base, layout }, true);
        let operands = operands.expect("it has room");
        let wr = signaled(wr_id, SendOp::Fill);
        let posted = side.qp.post_sends(|queue| queue.push_with(&wr, operands));
        posted.expect("space");
        Opened::Indirect(key)
    }

    /// Posts a send work request, with at most one element of data. Inline data may be overwritten
    /// after it. Only connected services have operations with operands.
    pub(super) fn post(
        &self,
        peer: &Endpoint,
        (wr_id, flags): (u64, SendFlags),
        (op, operands): (SendOp, Option<Operands>),
        sge: Option<Sge>,
    ) {
        let is_inline = flags.contains(SendFlags::INLINE);
        let inline = sge.filter(|_| is_inline).map(|sge| {
            let at = usize::try_from(sge.addr - self.side.mr.addr()).unwrap_or(0);
            self.memory.bytes(at, sge.len as usize)
        });
        let inline = inline.as_deref();
        let sge = sge.filter(|_| !is_inline);
        let wr = SendWr {
            wr_id,
            op,
            flags,
            sges: sge.as_slice(),
        };
        let address = || self.address.as_ref().expect("it is connected");
        let push = |queue: &mut SendPoster<'_>| match (operands.clone(), inline) {
            (Some(operands), _) => queue.push_with(&wr, operands),
            (None, Some(data)) => queue.push_inline(&wr, data),
            (None, None) => queue.push(&wr),
        };
        let posted = self.side.qp.post_sends(|queue| match self.service {
            Service::Rc | Service::Cm | Service::Stream | Service::Uc => push(queue),
            Service::Xrc => {
                let pushed = push(queue);
                queue.set_remote_srqn(peer.srqn);
                pushed
            }
            Service::Ud | Service::Group => {
                let is_unicast = self.service == Service::Ud;
                let to = Datagram {
                    ah: address(),
                    dest_qp: if is_unicast {
                        peer.receiver
                    } else {
                        Qpn::MULTICAST
                    },
                    qkey: Qkey::new(QKEY),
                };
                queue.push_datagram(&wr, to, inline)
            }
            Service::Dc => {
                let to = ToDct {
                    ah: address(),
                    dct: peer.receiver,
                    key: KEY,
                    stream: 0,
                };
                match operands.clone() {
                    Some(operands) => queue.push_dynamic_with(&wr, to, operands),
                    None => queue.push_dynamic(&wr, to, inline),
                }
            }
        });
        posted.expect("space");
    }
}

const fn signaled(wr_id: u64, op: SendOp) -> SendWr<'static> {
    SendWr {
        wr_id,
        op,
        flags: SendFlags::SIGNALED,
        sges: &[],
    }
}

/// A key by which the peer accesses the memory of an end.
#[derive(Debug)]
pub(super) enum Opened {
    Window { _kept: Mw, rkey: Rkey },
    Indirect(Mr),
}

impl Opened {
    pub(super) fn rkey(&self) -> Rkey {
        match self {
            Self::Window { rkey, .. } => *rkey,
            Self::Indirect(key) => key.rkey(),
        }
    }
}

/// Repeats a call that may have to wait. After the death of a broker its address may be refused,
/// because the kernel takes some real time to close the sockets that the broker had sent. The next
/// broker waits for a second of virtual time, which passes sooner.
fn patiently<T>(board: &Board, mut call: impl FnMut() -> Result<T, VerbsError>) -> T {
    let mut attempts = 0;
    loop {
        let text = match call() {
            Ok(value) => return value,
            Err(error) => error.to_string(),
        };
        attempts += 1;
        let had_none = board.notes().was_without_broker();
        let is_in_use = text.contains("is taken by process");
        assert!(had_none && is_in_use && attempts < 1_000, "refused: {text}");
        board.mark("an address is refused after the end of a broker");
        turn::sleep(Duration::from_millis(10));
    }
}

/// Returns the multicast group of an end. No other process of this machine uses it.
fn group_of((connection, end): End) -> Gid {
    let [.., high, low] = std::process::id().to_be_bytes();
    let number = u8::try_from(2 * connection + end).unwrap_or(0);
    Gid::from_ip([239, high, low, number].into())
}

fn address_of(dgid: Gid) -> AddressVector {
    AddressVector {
        dgid,
        is_global: true,
        port_num: 1,
        hop_limit: 64,
        ..AddressVector::default()
    }
}

/// The objects that depend on the service: a shared queue, a target, an XRC domain, and the rest.
type Created = (Option<Srq>, Option<Qp>, Option<Xrcd>, Side);

fn create(program: &Program, end: End, pool: Option<&Pool>, memory: &Memory) -> Created {
    let plan = &program.board.plan.connections[end.0];
    let context = program.context.clone();
    // The target of DC writes messages to memory of its own domain.
    let shared_pd = pool.filter(|_| plan.service == Service::Dc);
    let pd = shared_pd.map_or_else(
        || context.alloc_pd().expect("a domain"),
        |pool| pool.pd.clone(),
    );
    let channel = context.create_comp_channel().expect("a channel");
    let cq = context.create_cq(1024, Some(&channel), 0, 7).expect("a CQ");
    let access = ACCESS | AccessFlags::MW_BIND;
    let mr = register_with(&pd, memory.0, access);
    let init = SrqInitAttr {
        max_wr: 64,
        max_sge: 1,
        cookie: 3,
    };
    let (srq, target, domain) = match plan.service {
        Service::Rc
        | Service::Cm
        | Service::Stream
        | Service::Uc
        | Service::Ud
        | Service::Group => (None, None, None),
        Service::Xrc => {
            let (domain, target) = keeper::target_of(program, end);
            let srq = domain.create_srq(&pd, &cq, init).expect("a shared queue");
            (Some(srq), Some(target), Some(domain))
        }
        Service::Dc => {
            let own = || pd.create_srq(init).expect("a shared queue");
            let srq = pool.map_or_else(own, |pool| pool.srq.clone());
            let target = create_dct(&pd, &cq, &srq);
            (Some(srq), Some(target), None)
        }
    };
    let of_sender = pool.filter(|_| target.is_none());
    let qp = create_sender(plan, &pd, &cq, of_sender.map(|pool| &pool.srq));
    let side = Side {
        engine: program.engine.clone(),
        context,
        pd,
        channel,
        cq,
        qp,
        mr,
        memory: memory.0,
    };
    (srq, target, domain, side)
}

fn create_dct(pd: &Pd, cq: &Cq, srq: &Srq) -> Qp {
    let init = DctInitAttr {
        cq: cq.clone(),
        srq: srq.clone(),
        key: KEY,
        cookie: 6,
        has_dct_events: true,
    };
    pd.create_dct(init).expect("a target")
}

fn create_sender(plan: &Connection, pd: &Pd, cq: &Cq, srq: Option<&Srq>) -> Qp {
    let init = QpInitAttr {
        send_cq: cq.clone(),
        recv_cq: cq.clone(),
        srq: srq.cloned(),
        cap: QpCap {
            max_send_wr: 128,
            max_recv_wr: 128,
            max_send_sge: 4,
            max_recv_sge: 4,
            max_inline_data: 64,
        },
        qp_type: plan.service.traits().sender,
        sq_sig_all: false,
        cookie: 9,
    };
    pd.create_qp(init).expect("a queue pair")
}
