//! Raw packet queue pairs: whole Ethernet frames, flow steering and segmentation offload.

use rocade_emulator::{
    QpAttr, QpAttrMask, QpCap, QpInitAttr, QpState, QpType, SendFlags, SendOp, SendWr, Sge, Tso,
};

use crate::completion::{Completion, CompletionQueue};
use crate::device::{PORT, ProtectionDomain};
use crate::error::{Result, VerbsError};
use crate::events::ObjectId;
use crate::flow::{Flow, FlowAttr};
use crate::slots::check_wr_id;

/// A queue pair that sends and receives whole Ethernet frames on the network interface of its
/// device. It needs the capability `CAP_NET_RAW`.
///
/// It receives the frames that match its [flows](Self::flow), and none without a flow.
///
/// ```no_run
/// use rocade_verbs::flow::FlowAttr;
/// use rocade_verbs::{Config, DeviceList};
///
/// let list = DeviceList::new(Config::from_specs(&["dev=eth0"])?)?;
/// let domain = list.open("dev")?.protection_domain()?;
/// let cq = domain.context().completion_queue(64)?;
/// let frames = domain.raw_queue_pair(&cq, &cq)?;
/// // Every frame that the interface receives, until the flow is dropped.
/// let _all = frames.flow(FlowAttr::sniffer())?;
/// # Ok::<(), rocade_verbs::Error>(())
/// ```
#[derive(Debug)]
#[doc(alias = "IBV_QPT_RAW_PACKET")]
pub struct RawQueuePair {
    qp: rocade_emulator::Qp,
    id: ObjectId,
}

impl RawQueuePair {
    pub(crate) fn new(
        pd: &ProtectionDomain,
        sends: &CompletionQueue,
        receives: &CompletionQueue,
    ) -> Result<Self, VerbsError> {
        let id = ObjectId::next();
        let qp = pd.raw().create_qp(QpInitAttr {
            send_cq: sends.raw().clone(),
            recv_cq: receives.raw().clone(),
            srq: None,
            cap: QpCap {
                max_send_wr: 64,
                max_recv_wr: 64,
                max_send_sge: 4,
                max_recv_sge: 4,
                max_inline_data: 256,
            },
            qp_type: QpType::RawPacket,
            sq_sig_all: false,
            cookie: id.cookie(),
        })?;
        let port = QpAttr {
            port_num: PORT,
            ..QpAttr::default()
        };
        for (state, more) in [
            (QpState::Init, QpAttrMask::PORT),
            (QpState::Rtr, QpAttrMask::empty()),
            (QpState::Rts, QpAttrMask::empty()),
        ] {
            let attr = QpAttr {
                qp_state: state.code(),
                ..port
            };
            qp.modify(&attr, QpAttrMask::STATE | more)?;
        }
        Ok(Self { qp, id })
    }

    /// Returns its identifier in [events](crate::Context::poll_event).
    #[must_use]
    pub const fn id(&self) -> ObjectId {
        self.id
    }

    /// Sends the frame in `sges`, which starts with the Ethernet header. If `checksums` is true,
    /// the device fills in the IPv4, TCP and UDP checksums.
    ///
    /// # Errors
    /// [`VerbsError`] if the queue is full, or if there are too many
    /// entries.
    pub fn send(&self, wr_id: u64, sges: &[Sge], checksums: bool) -> Result<(), VerbsError> {
        check_wr_id(wr_id)?;
        Ok(self
            .qp
            .post_sends(|queue| queue.push(&request(wr_id, sges, checksums)))?)
    }

    /// Sends the bytes of `sges` with TCP segmentation offload (TSO), `mss` bytes per frame. The
    /// last frame may be shorter.
    ///
    /// `headers` are the Ethernet, IP and TCP headers. The device puts them in front of each frame
    /// and updates lengths, sequence numbers, flags and checksums.
    ///
    /// # Errors
    /// [`VerbsError`] if the queue is full, if `mss` is 0, or if the headers
    /// are too long.
    #[doc(alias = "ibv_wr_send_tso")]
    pub fn send_segments(
        &self,
        wr_id: u64,
        (headers, mss): (&[u8], u16),
        sges: &[Sge],
    ) -> Result<(), VerbsError> {
        check_wr_id(wr_id)?;
        let tso = Tso {
            header: headers,
            mss,
        };
        let request = request(wr_id, sges, false);
        Ok(self
            .qp
            .post_sends(|queue| queue.push_tso(&request, tso, None))?)
    }

    /// Posts a receive for one frame.
    ///
    /// # Errors
    /// [`VerbsError`] if the queue is full, or if there are too many
    /// entries.
    #[doc(alias = "ibv_post_recv")]
    pub fn post_recv(&self, wr_id: u64, sges: &[Sge]) -> Result<(), VerbsError> {
        check_wr_id(wr_id)?;
        Ok(self.qp.recv_queue().push(wr_id, sges)?)
    }

    /// Steers the matching frames to this queue pair until the returned flow is dropped.
    ///
    /// # Errors
    /// [`VerbsError`] if the device does not support the specification.
    #[doc(alias = "ibv_create_flow")]
    pub fn flow(&self, attr: FlowAttr) -> Result<Flow, VerbsError> {
        Flow::new(&self.qp, attr)
    }

    /// Returns true if the completion belongs to this queue pair. Several queue pairs can share a
    /// completion queue.
    #[must_use]
    pub fn owns(&self, completion: &Completion) -> bool {
        completion.qp_num == self.qp.qp_num()
    }
}

fn request(wr_id: u64, sges: &[Sge], checksums: bool) -> SendWr<'_> {
    let mut flags = SendFlags::SIGNALED;
    flags.set(SendFlags::IP_CSUM, checksums);
    SendWr {
        wr_id,
        op: SendOp::Send { imm: None },
        flags,
        sges,
    }
}

impl ProtectionDomain {
    /// Creates a queue pair for frames on the interface of the device's first port. It holds up to
    /// 64 outstanding sends and receives of up to 4 scatter/gather entries.
    ///
    /// # Errors
    /// [`VerbsError`] with
    /// [`VerbsErrorKind::NotPermitted`](crate::VerbsErrorKind::NotPermitted) without
    /// `CAP_NET_RAW`.
    pub fn raw_queue_pair(
        &self,
        sends: &CompletionQueue,
        receives: &CompletionQueue,
    ) -> Result<RawQueuePair, VerbsError> {
        RawQueuePair::new(self, sends, receives)
    }
}
