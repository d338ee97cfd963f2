//! Descriptions of devices and ports, and the statistics of an engine.

use std::time::Duration;

use rocade_emulator as emulator;
use rocade_wire::{Gid, Guid, Mtu};

/// The name and location of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceInfo {
    /// The name, such as `rocade0`.
    pub name: String,
    /// The node GUID.
    pub guid: Guid,
    /// The position in the list of devices, from 0 on.
    pub index: u32,
    /// The network interface behind its first port, if known.
    pub ifname: Option<String>,
    /// The index of that interface, 0 if unknown.
    pub ifindex: u32,
}

impl DeviceInfo {
    pub(crate) fn of(info: emulator::DeviceInfo) -> Self {
        Self {
            name: info.name,
            guid: info.guid,
            index: info.index,
            ifname: info.ifname,
            ifindex: info.ifindex,
        }
    }
}

/// The identity and the limits of a device, with the names of `ibv_device_attr`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
#[doc(alias = "ibv_device_attr")]
#[doc(alias = "ibv_device_attr_ex")]
pub struct DeviceAttr {
    /// The version of the firmware: Rocade's own version.
    pub fw_ver: &'static str,
    /// The node GUID.
    pub node_guid: Guid,
    /// The GUID of the system that the device is part of.
    pub sys_image_guid: Guid,
    /// The longest memory region in bytes.
    pub max_mr_size: u64,
    /// The page sizes that the device supports: bit n for 2^n bytes.
    pub page_size_cap: u64,
    /// The 24-bit OUI that the IEEE assigned to the vendor.
    pub vendor_id: u32,
    /// The vendor's number of the device.
    pub vendor_part_id: u32,
    /// The version of the hardware.
    pub hw_ver: u32,
    /// The number of queue pairs.
    pub max_qp: u32,
    /// The number of outstanding requests of a send or receive queue.
    pub max_qp_wr: u32,
    /// The `IBV_DEVICE_*` flags.
    pub device_cap_flags: u32,
    /// The number of scatter/gather entries of a request.
    pub max_sge: u32,
    /// The number of scatter/gather entries of an RDMA READ.
    pub max_sge_rd: u32,
    /// The number of shared receive queues.
    pub max_srq: u32,
    /// The number of receives of a shared receive queue.
    pub max_srq_wr: u32,
    /// The number of scatter/gather entries of a shared receive.
    pub max_srq_sge: u32,
    /// The number of completion queues.
    pub max_cq: u32,
    /// The number of entries of a completion queue.
    pub max_cqe: u32,
    /// The number of memory regions.
    pub max_mr: u32,
    /// The number of protection domains.
    pub max_pd: u32,
    /// The number of RDMA READs and atomics that a queue pair accepts at a time.
    pub max_qp_rd_atom: u32,
    /// The number of RDMA READs and atomics that the device accepts at a time.
    pub max_res_rd_atom: u32,
    /// The number of RDMA READs and atomics that a queue pair has outstanding at a time.
    pub max_qp_init_rd_atom: u32,
    /// Set if atomics of peers are atomic with respect to those of the processor.
    pub atomics_are_global: bool,
    /// The number of entries of the P_Key table.
    pub max_pkeys: u16,
    /// The longest time that the device takes to acknowledge a request.
    pub local_ca_ack_delay: Duration,
    /// The number of ports.
    pub phys_port_cnt: u8,
    /// The valid bits of a completion's time stamp.
    pub completion_timestamp_mask: u64,
    /// The number of memory windows.
    pub max_mw: u32,
    /// The size of the device memory in bytes.
    pub max_dm_size: u64,
}

impl DeviceAttr {
    pub(crate) const fn of(attr: &emulator::DeviceAttr) -> Self {
        /// The value of `atomic_cap` for atomics that the processor takes part in.
        const GLOBAL: u32 = 2;
        Self {
            fw_ver: attr.fw_ver,
            node_guid: attr.node_guid,
            sys_image_guid: attr.sys_image_guid,
            max_mr_size: attr.max_mr_size,
            page_size_cap: attr.page_size_cap,
            vendor_id: attr.vendor_id,
            vendor_part_id: attr.vendor_part_id,
            hw_ver: attr.hw_ver,
            max_qp: attr.max_qp,
            max_qp_wr: attr.max_qp_wr,
            device_cap_flags: attr.device_cap_flags,
            max_sge: attr.max_sge,
            max_sge_rd: attr.max_sge_rd,
            max_srq: attr.max_srq,
            max_srq_wr: attr.max_srq_wr,
            max_srq_sge: attr.max_srq_sge,
            max_cq: attr.max_cq,
            max_cqe: attr.max_cqe,
            max_mr: attr.max_mr,
            max_pd: attr.max_pd,
            max_qp_rd_atom: attr.max_qp_rd_atom,
            max_res_rd_atom: attr.max_res_rd_atom,
            max_qp_init_rd_atom: attr.max_qp_init_rd_atom,
            atomics_are_global: attr.atomic_cap == GLOBAL,
            max_pkeys: attr.max_pkeys,
            // The code is the exponent of 4.096 µs, at most 31.
            local_ca_ack_delay: Duration::from_nanos(4096 << (attr.local_ca_ack_delay & 31)),
            phys_port_cnt: attr.phys_port_cnt,
            completion_timestamp_mask: attr.completion_timestamp_mask,
            max_mw: attr.max_mw,
            max_dm_size: attr.max_dm_size,
        }
    }
}

/// The state and the sizes of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
#[doc(alias = "ibv_port_attr")]
pub struct PortAttr {
    /// Set if the network interface of the port is up.
    pub active: bool,
    /// The largest MTU that fits the interface.
    pub active_mtu: Mtu,
    /// The largest MTU of the device.
    pub max_mtu: Mtu,
    /// The number of entries of the GID table.
    pub gid_tbl_len: u32,
    /// The longest message in bytes.
    pub max_msg_sz: u32,
    /// The number of entries of the P_Key table.
    pub pkey_tbl_len: u16,
    /// The number of packets with a wrong P_Key for queue pairs of the port, since the process
    /// opened its devices.
    pub bad_pkey_cntr: u32,
    /// The number of datagrams with a wrong Q_Key, since the process opened its devices.
    pub qkey_viol_cntr: u32,
}

impl PortAttr {
    pub(crate) const fn of(attr: &emulator::PortAttr) -> Self {
        Self {
            active: attr.active,
            active_mtu: attr.active_mtu,
            max_mtu: attr.max_mtu,
            gid_tbl_len: attr.gid_tbl_len,
            max_msg_sz: attr.max_msg_sz,
            pkey_tbl_len: attr.pkey_tbl_len,
            bad_pkey_cntr: attr.bad_pkey_cntr,
            qkey_viol_cntr: attr.qkey_viol_cntr,
        }
    }
}

/// An entry of the GID table. A GID of 0 marks an empty entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
#[doc(alias = "ibv_gid_entry")]
pub struct GidEntry {
    /// The GID. Packets from it are RoCE v2, also where a device like mlx5 reports RoCE v1.
    pub gid: Gid,
    /// Its index.
    pub index: u32,
    /// The index of the network interface that has the address.
    pub ifindex: u32,
}

impl GidEntry {
    pub(crate) fn all(entries: &[emulator::GidEntry]) -> Vec<Self> {
        let entries = entries.iter().map(|entry| Self {
            gid: entry.gid,
            index: entry.index,
            ifindex: entry.ifindex,
        });
        entries.collect()
    }
}

/// The packet statistics of a [device list](crate::DeviceList), since its creation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct EngineCounters {
    /// Packets sent.
    pub tx_packets: u64,
    /// Sends that the system refused for a reason other than a full buffer.
    pub tx_errors: u64,
    /// Packets delivered to a queue pair.
    pub rx_packets: u64,
    /// Datagrams that are not RoCEv2 packets.
    pub rx_malformed: u64,
    /// Packets with a wrong ICRC.
    pub rx_bad_icrc: u64,
    /// Packets for a queue pair that does not exist.
    pub rx_unknown_qp: u64,
    /// Packets that did not come over the shared-memory link that the peer uses.
    pub rx_wrong_link: u64,
    /// Packets from a source that is not among the allowed peers.
    pub rx_refused: u64,
    /// Datagrams with a forged header of forwarded packets.
    pub rx_forged: u64,
    /// Packets forwarded to the right process.
    pub forwarded: u64,
    /// Packets sent over shared memory, also counted in `tx_packets`.
    pub tx_shared: u64,
    /// Packets received over shared memory, also counted in `rx_packets`.
    pub rx_shared: u64,
}

impl EngineCounters {
    pub(crate) const fn of(counters: &emulator::EngineCounters) -> Self {
        Self {
            tx_packets: counters.tx_packets,
            tx_errors: counters.tx_errors,
            rx_packets: counters.rx_packets,
            rx_malformed: counters.rx_malformed,
            rx_bad_icrc: counters.rx_bad_icrc,
            rx_unknown_qp: counters.rx_unknown_qp,
            rx_wrong_link: counters.rx_wrong_link,
            rx_refused: counters.rx_refused,
            rx_forged: counters.rx_forged,
            forwarded: counters.forwarded,
            tx_shared: counters.tx_shared,
            rx_shared: counters.rx_shared,
        }
    }
}
