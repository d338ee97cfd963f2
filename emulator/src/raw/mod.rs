//! Raw packets: the packet sockets of a device's network interface, and the flows from there to
//! queue pairs.

mod flow;
mod frame;
mod ports;
mod rss;
mod socket;

use std::io;
use std::sync::Arc;

use crate::sync::{Mutex, RwLock, rank};
use rocade_transport::FrameOrder;
use rocade_wire::Qpn;

use crate::error::VerbsError;
use crate::hca::Hca;

pub use flow::{
    EthFields, FlowAttr, FlowKind, FlowSpec, Ipv4Fields, Ipv6Fields, MAX_FLOW_SPECS, Masked,
    PortFields,
};
pub(crate) use flow::{FlowDirection, FlowId, Target};
pub(crate) use frame::Layout;
pub(crate) use ports::{RawPorts, Sent};
pub(crate) use rss::RssTable;
pub use rss::{RSS_FIELDS, RSS_KEY_LEN};
pub(crate) use socket::PacketSocket;

use flow::FlowTable;
use socket::{FrameBuffer, Interface, Membership};

/// Bytes that a frame has in addition to the MTU: an Ethernet header with a tag.
const LINK_HEADER: u32 = 18;

/// A device's access to the frames of its interface.
#[derive(Debug)]
pub(crate) struct RawPort {
    pub(crate) hca: Arc<Hca>,
    interface: Interface,
    sends: PacketSocket,
    /// Exists while there are flows.
    receives: RwLock<Option<Arc<PacketSocket>>, rank::RawSocket>,
    table: RwLock<FlowTable, rank::RawFlows>,
    /// Locked by the thread that receives.
    pub(crate) rx: Mutex<FrameBuffers, rank::SocketReceive>,
}

/// Buffers for receiving.
#[derive(Debug, Default)]
pub(crate) struct FrameBuffers {
    buffer: FrameBuffer,
    segments: Vec<u8>,
    ends: Vec<usize>,
}

impl RawPort {
    /// Opens the packet socket for sending.
    ///
    /// # Errors
    /// [`VerbsError::NotPermitted`] without `CAP_NET_RAW`, [`VerbsError::NotSupported`] if the
    /// device has no Ethernet interface.
    //= QPC-02
    pub(crate) fn open(hca: &Arc<Hca>) -> Result<Self, VerbsError> {
        if hca.config.port.ifindex == 0 {
            return Err(VerbsError::NotSupported(
                "raw packets of a device without network interface",
            ));
        }
        let sends = PacketSocket::open(hca.config.port.ifindex, false);
        let sends = sends.map_err(|error| match error.kind() {
            io::ErrorKind::PermissionDenied => VerbsError::NotPermitted(
                "raw packet queue pairs, without CAP_NET_RAW in the network namespace",
            ),
            _ => error.into(),
        })?;
        let interface = sends.interface()?.ok_or(VerbsError::NotSupported(
            "raw packets of an interface that has no Ethernet frames",
        ))?;
        Ok(Self {
            hca: Arc::clone(hca),
            interface,
            sends,
            receives: RwLock::default(),
            table: RwLock::default(),
            rx: Mutex::default(),
        })
    }

    /// Returns the length of the longest frame for the link. The interface itself makes the final
    /// check.
    pub(crate) fn max_frame_len(&self) -> usize {
        usize::try_from(self.hca.config.port.netdev_mtu.saturating_add(LINK_HEADER)).unwrap_or(0)
    }

    /// Sends a frame, see [`PacketSocket::send`].
    pub(crate) fn send(&self, frame: &[u8]) -> io::Result<()> {
        self.sends.send(frame)
    }

    /// Returns the receive socket, while there are flows.
    pub(crate) fn receiver(&self) -> Option<Arc<PacketSocket>> {
        self.receives.read().clone()
    }

    /// Adds a flow to a QP.
    ///
    /// # Errors
    /// [`VerbsError::InvalidArgument`] for invalid attributes, [`VerbsError::Io`] without free
    /// descriptors.
    pub(crate) fn add_flow(&self, qpn: Qpn, attr: FlowAttr) -> Result<FlowId, VerbsError> {
        attr.check()?;
        let mut receives = self.receives.write();
        let socket = match &mut *receives {
            Some(socket) => socket,
            none => none.insert(Arc::new(PacketSocket::open(
                self.hca.config.port.ifindex,
                true,
            )?)),
        };
        if let Some(membership) = self.membership(&attr)
            && let Err(error) = socket.set_membership(membership, true)
        {
            // The flow misses frames that the interface filters out.
            tracing::warn!(%error, ?membership, "failed to enable reception of these frames on the interface");
        }
        Ok(self.table.write().add(qpn, attr))
    }

    /// Removes a flow. Returns false if it was removed before.
    pub(crate) fn remove_flow(&self, id: FlowId) -> bool {
        let mut receives = self.receives.write();
        let mut table = self.table.write();
        let Some(attr) = table.remove(id) else {
            return false;
        };
        if table.is_empty() {
            *receives = None;
        } else if let (Some(socket), Some(membership)) = (&*receives, self.membership(&attr)) {
            let _ = socket.set_membership(membership, false);
        }
        true
    }

    /// Returns the flows of a QP.
    pub(crate) fn flows_of(&self, qpn: Qpn) -> Vec<FlowId> {
        self.table.read().of_qp(qpn)
    }

    /// Returns the frames that the interface must additionally accept for a flow.
    fn membership(&self, attr: &FlowAttr) -> Option<Membership> {
        if self.interface.is_loopback {
            return None;
        }
        match (attr.kind, attr.address()) {
            (FlowKind::AllDefault | FlowKind::Sniffer, _) => Some(Membership::All),
            (FlowKind::McDefault, _) => Some(Membership::AllGroups),
            (FlowKind::Normal, None) => None,
            (FlowKind::Normal, Some(mac)) if mac == self.interface.mac => None,
            (FlowKind::Normal, Some(mac)) if mac[0] & 1 != 0 => Some(Membership::Group(mac)),
            (FlowKind::Normal, Some(mac)) => Some(Membership::Address(mac)),
        }
    }

    /// Receives once from the kernel, and calls `each` with each frame and its targets. Returns
    /// false if there was none.
    pub(crate) fn receive(
        &self,
        socket: &PacketSocket,
        rx: &mut FrameBuffers,
        mut each: impl FnMut(&[u8], &Layout, &[Target]),
    ) -> bool {
        let arrived = match socket.receive(&mut rx.buffer) {
            Ok(Some(arrived)) => arrived,
            Ok(None) => return false,
            Err(error) => {
                // The interface is down.
                tracing::debug!(%error, "failed to receive frames");
                return false;
            }
        };
        let bytes = rx.buffer.frame(&arrived);
        if arrived.is_outgoing && self.interface.is_loopback {
            // The loopback interface delivers the frame again as incoming.
            return true;
        }
        let to_itself = bytes.starts_with(&self.interface.mac);
        let direction = if arrived.is_outgoing && !to_itself {
            FlowDirection::Out
        } else {
            FlowDirection::In
        };
        let mut deliver = |frame: &[u8]| {
            if let Some(layout) = Layout::of(frame) {
                let targets = self.table.read().targets(frame, &layout, direction);
                each(frame, &layout, &targets);
            }
        };
        let header_len = arrived.segment_len.and_then(|_| frame::header_len(bytes));
        if let (Some(segment_len), Some(header_len)) = (arrived.segment_len, header_len) {
            rx.segments.clear();
            rx.ends.clear();
            let (out, ends) = (&mut rx.segments, &mut rx.ends);
            frame::segment(bytes, header_len, segment_len, out, ends);
            let mut start = 0;
            for end in ends {
                deliver(&out[start..*end]);
                start = *end;
            }
        } else {
            deliver(bytes);
        }
        true
    }
}

/// Returns true for TCP or UDP over IPv4 with two valid checksums.
fn has_right_checksums(frame: &[u8], layout: &Layout) -> bool {
    frame::has_right_checksums(frame, layout)
}

/// The frames of one send request.
#[derive(Debug, Default)]
pub(crate) struct Outgoing {
    /// The frame as the transport built it.
    pub(crate) request: Vec<u8>,
    segments: Vec<u8>,
    ends: Vec<usize>,
    /// Number of frames sent.
    sent: usize,
}

impl Outgoing {
    /// Drops the frames that were not sent.
    pub(crate) fn clear(&mut self) {
        self.ends.clear();
        self.sent = 0;
    }

    /// Builds the frames of the request.
    pub(crate) fn prepare(&mut self, order: FrameOrder) {
        self.clear();
        match order.segments {
            Some((header_len, mss)) => {
                self.segments.clear();
                let (out, ends) = (&mut self.segments, &mut self.ends);
                frame::segment(&self.request, header_len, mss, out, ends);
            }
            None => {
                if order.checksums {
                    frame::fill_checksums(&mut self.request);
                }
                std::mem::swap(&mut self.segments, &mut self.request);
                self.ends.push(self.segments.len());
            }
        }
    }

    /// Returns the next frame to send.
    pub(crate) fn next(&self) -> Option<&[u8]> {
        let end = *self.ends.get(self.sent)?;
        let start = match self.sent {
            0 => 0,
            sent => *self.ends.get(sent - 1)?,
        };
        self.segments.get(start..end)
    }

    /// Marks the next frame as sent.
    pub(crate) const fn mark_sent(&mut self) {
        self.sent += 1;
    }

    /// Returns the number of frames.
    pub(crate) const fn count(&self) -> u64 {
        self.ends.len() as u64
    }
}

/// The raw packet state of a queue pair.
#[derive(Debug)]
pub(crate) struct RawState {
    pub(crate) port: Arc<RawPort>,
    /// Only locked while the queue pair is locked.
    pub(crate) outgoing: Mutex<Outgoing, rank::RawOutgoing>,
    /// Set if other queues receive the frames (RSS).
    rss_table: Option<Box<RssTable>>,
}

impl RawState {
    /// Creates the state of a queue pair that distributes its frames to other queues.
    pub(crate) fn with_rss(port: Arc<RawPort>, rss_table: RssTable) -> Self {
        Self {
            rss_table: Some(Box::new(rss_table)),
            ..Self::new(port)
        }
    }

    /// Returns the queue that receives a frame, if it is another one.
    pub(crate) fn queue_of(&self, frame: &[u8]) -> Option<Qpn> {
        self.rss_table.as_ref()?.queue_of(frame)
    }

    pub(crate) fn new(port: Arc<RawPort>) -> Self {
        let outgoing = Mutex::default();
        Self {
            port,
            outgoing,
            rss_table: None,
        }
    }

    /// Returns true if there are unsent frames for which the interface had no room.
    pub(crate) fn waits_for_space(&self) -> bool {
        self.outgoing.lock().next().is_some()
    }
}
