//! The receive side of UD.

use rocade_wire::ip::{Datagram, GRH_LEN};
use rocade_wire::{Operation, Packet, Qkey, ROCE_UDP_PORT};

use crate::completion::{CompleteTo, Completion, ImmOrInv, WcFlags, WcOpcode, WcStatus};
use crate::counters::DropReason;
use crate::cx::Cx;
use crate::failure::{Failure, ReceiveBuffers};
use crate::memory::Memory;
use crate::outputs::Fatal;
use crate::peer::PacketMeta;
use crate::queue::{RecvSource, RecvWqe};

/// Receives datagrams from any sender with the right Q_Key.
#[derive(Debug)]
pub(crate) struct Datagrams {
    receives: RecvSource,
    /// A receive that was taken for a message that did not fit. The next message uses it.
    spare: Option<RecvWqe>,
    qkey: Qkey,
}

impl Datagrams {
    pub(crate) const fn new(receives: RecvSource) -> Self {
        Self {
            receives,
            spare: None,
            qkey: Qkey::new(0),
        }
    }

    pub(crate) const fn set_qkey(&mut self, qkey: Qkey) {
        self.qkey = qkey;
    }

    /// Returns the number of incomplete receives.
    pub(crate) fn queued(&self) -> usize {
        self.receives.len() + usize::from(self.spare.is_some())
    }

    /// Returns the source of receives.
    pub(crate) const fn receives(&self) -> &RecvSource {
        &self.receives
    }

    pub(crate) const fn receives_mut(&mut self) -> &mut RecvSource {
        &mut self.receives
    }

    /// Delivers a packet, or drops it. The sender is not notified.
    pub(crate) fn handle<H: Memory>(
        &mut self,
        cx: &mut Cx<'_, H>,
        meta: &PacketMeta,
        packet: &Packet<'_>,
    ) -> Result<(), Fatal> {
        let (headers, payload) = (packet.headers(), packet.payload());
        let counters = &mut cx.out.counters;
        let Some(deth) = headers.deth else {
            //= OPC-36
            counters.drop_packet(DropReason::Reserved);
            return Ok(());
        };
        //= UD-01
        let known = matches!(
            headers.bth.opcode.operation(),
            Some(Operation::SendOnly | Operation::SendOnlyImm)
        );
        if !known {
            counters.drop_packet(DropReason::Reserved);
            return Ok(());
        }
        //= UD-05
        if deth.qkey != self.qkey {
            counters.drop_packet(DropReason::BadQkey);
            return Ok(());
        }
        let len = payload.len();
        if len > cx.peer.pmtu_bytes() as usize || len == 0 && headers.bth.pad_count != 0 {
            counters.drop_packet(DropReason::Malformed);
            return Ok(());
        }
        let Some(wqe) = self.spare.take().or_else(|| self.receives.take()) else {
            //= UD-09
            counters.drop_packet(DropReason::NoReceive);
            return Ok(());
        };
        let total = GRH_LEN + len;
        if wqe.data.len() < total as u64 {
            //= GRH-06
            //= UD-10
            //= GRH-06
            counters.drop_packet(DropReason::TooLong);
            self.spare = Some(wqe);
            return Ok(());
        }
        //= UD-08
        let placed = wqe
            .scatter(cx.memory(), 0, &grh(meta, packet))
            .and_then(|()| {
                if payload.is_empty() {
                    return Ok(());
                }
                wqe.scatter(cx.memory(), GRH_LEN_U32, payload)
            });
        let (to, wr_id) = (CompleteTo::RecvCq, wqe.wr_id);
        if placed.is_err() {
            //= RC-RSP-12
            let completion = cx.completion(to, wr_id, WcStatus::LocProtErr, WcOpcode::Recv);
            cx.out.completions.push_back(completion);
            let buffers = ReceiveBuffers::of(&wqe, cx.who);
            cx.out.events.explain(|| Failure::Receive(buffers));
            return Err(Fatal);
        }
        cx.out.counters.traffic().rx_packets += 1;
        cx.out.counters.traffic().rx_messages += 1;
        let imm = headers
            .imm
            .map_or(ImmOrInv::None, |imm| ImmOrInv::Imm(imm.0));
        //= UD-14
        let completion = Completion {
            byte_len: u32::try_from(total).unwrap_or(u32::MAX),
            src_qp: deth.src_qp,
            imm_or_inv: imm,
            wc_flags: imm.flags() | WcFlags::GRH,
            sl: if meta.source.is_ipv4() { 0xa } else { 0x9 },
            solicited: headers.bth.solicited,
            ..cx.completion(to, wr_id, WcStatus::Success, WcOpcode::Recv)
        };
        cx.out.completions.push_back(completion);
        Ok(())
    }

    /// Completes all receives with `WR_FLUSH_ERR`.
    pub(crate) fn flush<H>(&mut self, cx: &mut Cx<'_, H>) {
        while let Some(wqe) = self.spare.take().or_else(|| self.receives.take_own()) {
            let (to, status) = (CompleteTo::RecvCq, WcStatus::WrFlushErr);
            let completion = cx.completion(to, wqe.wr_id, status, WcOpcode::Recv);
            cx.out.completions.push_back(completion);
        }
    }

    /// Drops everything without completions.
    pub(crate) fn reset(&mut self) {
        if let Some(wqe) = self.spare.take() {
            self.receives.forget(wqe.srqn);
        }
        self.receives.reset();
        self.qkey = Qkey::new(0);
    }
}

const GRH_LEN_U32: u32 = 40;
const _: () = assert!(GRH_LEN_U32 as usize == GRH_LEN);

/// Returns the bytes in front of the data: the network header of the packet.
fn grh(meta: &PacketMeta, packet: &Packet<'_>) -> [u8; GRH_LEN] {
    Datagram {
        src: meta.source,
        dst: meta.destination,
        ip_id: 0,
        dont_fragment: true,
        flow_label: 0,
        tos: meta.traffic_class,
        ttl: meta.hop_limit,
        src_port: ROCE_UDP_PORT,
        dst_port: ROCE_UDP_PORT,
        udp_checksum: 0,
        udp_payload: packet.as_bytes(),
    }
    .grh()
}
