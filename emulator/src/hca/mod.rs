//! The emulated HCA as applications see it: identity, limits, port and tables.

mod carrier;
mod displaced;
mod hidden;
mod likeness;
mod overrides;
mod port;
mod publish;
mod speed;
mod traffic;

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use rocade_transport::QpLimits;
use rocade_wire::{Gid, Guid, Mtu, Pkey};

use crate::config::{DeviceConfig, DeviceIdentity, Likeness};
use crate::limits;
use crate::link::LocalAddr;
use crate::statistics::{self, PortSample};

use overrides::PkeyTable;
pub(crate) use port::Port;
pub(crate) use publish::Publisher;
pub(crate) use traffic::Traffic;

/// The name and location of a device.
#[derive(Clone, Debug)]
pub struct DeviceInfo {
    /// The name, e.g. `rocade0`.
    pub name: String,
    /// Node GUID.
    pub guid: Guid,
    /// Position in the list of devices.
    pub index: u32,
    /// The network interface behind its first port, if known.
    pub ifname: Option<String>,
    /// The index of that interface, 0 if unknown.
    pub ifindex: u32,
    /// The kind of device that it imitates.
    pub like: Likeness,
    /// Vendor and part that it reports.
    pub identity: DeviceIdentity,
}

/// The attributes that `ibv_query_device` reports, with the names of `ibv_device_attr`.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "field for field ibv_device_attr")]
#[doc(alias = "ibv_device_attr")]
pub struct DeviceAttr {
    pub fw_ver: &'static str,
    pub node_guid: Guid,
    pub sys_image_guid: Guid,
    pub max_mr_size: u64,
    pub page_size_cap: u64,
    pub vendor_id: u32,
    pub vendor_part_id: u32,
    pub hw_ver: u32,
    pub max_qp: u32,
    pub max_qp_wr: u32,
    pub device_cap_flags: u32,
    pub max_sge: u32,
    pub max_sge_rd: u32,
    pub max_srq: u32,
    pub max_srq_wr: u32,
    pub max_srq_sge: u32,
    pub max_cq: u32,
    pub max_cqe: u32,
    pub max_mr: u32,
    pub max_pd: u32,
    pub max_qp_rd_atom: u32,
    pub max_res_rd_atom: u32,
    pub max_qp_init_rd_atom: u32,
    /// 2: atomic with respect to the CPU too.
    pub atomic_cap: u32,
    pub max_pkeys: u16,
    /// Exponent of 4.096 µs.
    pub local_ca_ack_delay: u8,
    pub phys_port_cnt: u8,
    /// Mask of the completion timestamp's valid bits.
    pub completion_timestamp_mask: u64,
    /// Ticks per millisecond of the completion timestamp: it counts nanoseconds.
    pub hca_core_clock_khz: u64,
    /// Memory windows.
    pub max_mw: u32,
    /// Device memory in bytes.
    pub max_dm_size: u64,
}

/// The attributes that `ibv_query_port` reports.
#[derive(Clone, Debug)]
#[doc(alias = "ibv_port_attr")]
pub struct PortAttr {
    /// The network interface of the port is up.
    pub active: bool,
    /// Speed in Gbit/s.
    pub gbit: u32,
    /// The device gives the code QDR to a lane of 10 Gbit/s instead of FDR10.
    pub(crate) has_qdr: bool,
    /// The largest MTU that fits the interface.
    pub active_mtu: Mtu,
    /// Largest MTU of the device.
    pub max_mtu: Mtu,
    /// Entries of the GID table.
    pub gid_tbl_len: u32,
    /// Longest message in bytes.
    pub max_msg_sz: u32,
    /// Entries of the P_Key table.
    pub pkey_tbl_len: u16,
    /// Packets for queue pairs of the port with a wrong P_Key, since the process opened its
    /// devices.
    pub bad_pkey_cntr: u32,
    /// Datagrams with a wrong Q_Key, since the process opened its devices.
    pub qkey_viol_cntr: u32,
}

/// An entry of the GID table. A GID of 0 marks an empty entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GidEntry {
    /// The GID.
    pub gid: Gid,
    /// The protocol that the device reports for it.
    pub kind: GidKind,
    /// Its index.
    pub index: u32,
    /// Index of the interface that has the address.
    pub ifindex: u32,
}

/// The protocol of a GID, as devices report it. Packets are always RoCE v2.
//= ENC-13
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "ibv_gid_type")]
pub enum GidKind {
    /// RoCE v1, which devices like mlx5 report besides.
    RoceV1,
    /// RoCE v2.
    RoceV2,
}

impl GidKind {
    /// Returns the name in sysfs.
    const fn name(self) -> &'static str {
        match self {
            Self::RoceV1 => "IB/RoCE v1",
            Self::RoceV2 => "RoCE v2",
        }
    }
}

/// All attributes of a device that is not opened.
#[derive(Clone, Debug)]
pub struct DeviceFacts {
    /// Name and location.
    pub info: DeviceInfo,
    /// Identity and limits.
    pub attr: DeviceAttr,
    /// Its ports in the order of their numbers, from 1.
    pub ports: Vec<PortFacts>,
    /// The P_Key table of each port.
    pub pkeys: Vec<Pkey>,
}

/// All attributes of a port.
#[derive(Clone, Debug)]
pub struct PortFacts {
    /// State and sizes.
    pub attr: PortAttr,
    /// The GID table.
    pub gids: Vec<GidEntry>,
    /// The network interface behind it, if known.
    pub ifname: Option<String>,
}

impl DeviceFacts {
    /// The attributes of the devices of a configuration, in its order.
    #[must_use]
    pub fn of(devices: &[DeviceConfig]) -> Vec<Self> {
        (0u32..)
            .zip(devices)
            .map(|(index, device)| Hca::new(device.clone(), index).facts())
            .collect()
    }
}

/// One HCA.
#[derive(Debug)]
pub(crate) struct Hca {
    pub(crate) config: DeviceConfig,
    pub(crate) index: u32,
    pub(crate) traffic: Traffic,
    /// The sums of [`statistics::QP`] over the queue pairs that were destroyed.
    ended_qps: [AtomicU64; statistics::QP.len()],
    pkeys: PkeyTable,
    port: Port,
    second: Option<Port>,
    /// A fault rule has removed the device.
    removed: AtomicBool,
    /// Device memory in use, in bytes.
    dm_used: AtomicUsize,
    /// Number of completion counters.
    counters: AtomicU32,
}

impl Hca {
    pub(crate) fn new(config: DeviceConfig, index: u32) -> Self {
        Self {
            port: Port::new(1, config.port.clone(), config.like),
            second: config
                .second_port
                .clone()
                .map(|port| Port::new(2, port, config.like)),
            pkeys: PkeyTable::new(config.pkeys.clone()),
            config,
            index,
            traffic: Traffic::default(),
            ended_qps: [const { AtomicU64::new(0) }; statistics::QP.len()],
            removed: AtomicBool::new(false),
            dm_used: AtomicUsize::new(0),
            counters: AtomicU32::new(0),
        }
    }

    /// Its ports in the order of their numbers.
    pub(crate) fn ports(&self) -> impl Iterator<Item = &Port> {
        std::iter::once(&self.port).chain(&self.second)
    }

    /// The port with this number.
    pub(crate) fn port(&self, number: u8) -> Option<&Port> {
        self.ports().find(|port| port.number == number)
    }

    /// The port that has an address, or had it. The first port if none does.
    pub(crate) fn port_with(&self, ip: IpAddr) -> &Port {
        let has = |port: &&Port| port.index_of(ip).is_some();
        let had = |port: &&Port| port.config.addrs.contains(&ip);
        let found = self.ports().find(has).or_else(|| self.ports().find(had));
        found.unwrap_or(&self.port)
    }

    fn port_count(&self) -> u8 {
        1 + u8::from(self.second.is_some())
    }

    /// Returns true if a network interface of the device is known.
    pub(crate) fn has_interface(&self) -> bool {
        self.ports().any(Port::has_interface)
    }

    /// Takes device memory. Returns false if less is left.
    pub(crate) fn take_dm(&self, len: usize) -> bool {
        let take = |used: usize| {
            let used = used.checked_add(len)?;
            (used <= limits::MAX_DM_SIZE).then_some(used)
        };
        self.dm_used
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, take)
            .is_ok()
    }

    pub(crate) fn give_dm_back(&self, len: usize) {
        self.dm_used.fetch_sub(len, Ordering::AcqRel);
    }

    /// Takes a place for a completion counter. Returns false if there is none.
    pub(crate) fn take_counter(&self) -> bool {
        let take = |used: u32| (used < limits::MAX_COMP_COUNTERS).then_some(used + 1);
        self.counters
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, take)
            .is_ok()
    }

    pub(crate) fn give_counter_back(&self) {
        self.counters.fetch_sub(1, Ordering::AcqRel);
    }

    /// Keeps the counters of a queue pair that ends.
    pub(crate) fn keep_counters(&self, values: &[u64]) {
        let metrics = statistics::QP.iter().zip(&self.ended_qps).zip(values);
        for ((metric, sum), value) in metrics {
            if metric.is_counter() {
                sum.fetch_add(*value, Ordering::Relaxed);
            }
        }
    }

    /// Returns the sums over the queue pairs that were destroyed.
    pub(crate) fn kept_counters(&self) -> Vec<u64> {
        let sums = self.ended_qps.iter();
        sums.map(|sum| sum.load(Ordering::Relaxed)).collect()
    }

    /// Returns the values of the device that belong to no queue pair.
    pub(crate) fn port_sample(&self) -> PortSample {
        let totals = self.traffic.totals();
        let (bad_icrc, malformed) = self.traffic.refused();
        PortSample {
            tx_shared: totals.tx_shared,
            rx_shared: totals.rx_shared,
            bad_icrc,
            malformed,
            violations: self.port.violations(),
        }
    }

    /// The kind of device that it imitates.
    pub(crate) const fn like(&self) -> Likeness {
        self.config.like
    }

    pub(crate) fn info(&self) -> DeviceInfo {
        DeviceInfo {
            name: self.config.name.clone(),
            guid: self.config.guid,
            index: self.index,
            ifname: self.config.port.ifname.clone(),
            ifindex: self.config.port.ifindex,
            like: self.config.like,
            identity: self.config.identity,
        }
    }

    pub(crate) fn facts(&self) -> DeviceFacts {
        DeviceFacts {
            info: self.info(),
            attr: self.device_attr(),
            ports: self
                .ports()
                .map(|port| PortFacts {
                    attr: self.port_attr(port),
                    gids: port.gids().to_vec(),
                    ifname: port.config.ifname.clone(),
                })
                .collect(),
            pkeys: self.pkeys(),
        }
    }

    /// Returns true if it is an address of the device.
    pub(crate) fn has_address(&self, ip: IpAddr) -> bool {
        self.ports().any(|port| port.index_of(ip).is_some())
    }

    /// Returns true if the interfaces of all its ports were removed.
    pub(crate) fn is_gone(&self) -> bool {
        self.ports().all(Port::is_gone)
    }

    fn pkey_table_len(&self) -> u16 {
        u16::try_from(self.config.pkeys.len()).unwrap_or(u16::MAX)
    }

    /// The link address of a local IP address of this device.
    pub(crate) fn local_addr(&self, ip: IpAddr) -> LocalAddr {
        LocalAddr::new(ip, self.port_with(ip).config.ifindex)
    }

    pub(crate) fn port_attr(&self, port: &Port) -> PortAttr {
        let violations = port.violations();
        PortAttr {
            active: port.is_running(),
            gbit: port.gbit(),
            has_qdr: self.config.like.calls_10g_qdr(),
            active_mtu: port.active_mtu(),
            max_mtu: Mtu::Mtu4096,
            gid_tbl_len: u32::try_from(port.gids().len()).unwrap_or(u32::MAX),
            max_msg_sz: self.config.like.max_msg_sz(),
            pkey_tbl_len: self.pkey_table_len(),
            bad_pkey_cntr: violations.pkey,
            qkey_viol_cntr: violations.qkey,
        }
    }

    pub(crate) fn qp_limits(&self) -> QpLimits {
        QpLimits {
            max_qp_init_rd_atom: self.config.like.max_rd_atom(),
            max_qp_rd_atom: self.config.like.max_rd_atom(),
            port_count: self.port_count(),
            pkey_table_len: self.pkey_table_len(),
        }
    }

    pub(crate) fn device_attr(&self) -> DeviceAttr {
        let rd_atom = u32::from(limits::MAX_RD_ATOM);
        let mut attr = DeviceAttr {
            fw_ver: env!("CARGO_PKG_VERSION"),
            node_guid: self.config.guid,
            sys_image_guid: self.config.guid,
            max_mr_size: u64::MAX,
            page_size_cap: 0xffff_f000,
            vendor_id: self.config.identity.vendor_id,
            vendor_part_id: self.config.identity.part_id,
            hw_ver: 1,
            max_qp: limits::MAX_QP,
            max_qp_wr: limits::MAX_QP_WR,
            device_cap_flags: limits::DEVICE_CAP_FLAGS,
            max_sge: limits::MAX_SGE,
            max_sge_rd: limits::MAX_SGE,
            max_srq: limits::MAX_SRQ,
            max_srq_wr: limits::MAX_SRQ_WR,
            max_srq_sge: limits::MAX_SGE,
            max_cq: limits::MAX_CQ,
            max_cqe: limits::MAX_CQE,
            max_mr: limits::MAX_MR,
            max_pd: limits::MAX_PD,
            max_qp_rd_atom: rd_atom,
            max_res_rd_atom: rd_atom * limits::MAX_QP,
            max_qp_init_rd_atom: rd_atom,
            atomic_cap: 2,
            max_pkeys: self.pkey_table_len(),
            local_ca_ack_delay: self.config.like.ack_delay(),
            phys_port_cnt: self.port_count(),
            completion_timestamp_mask: u64::MAX,
            hca_core_clock_khz: 1_000_000,
            max_mw: limits::MAX_MW,
            max_dm_size: limits::MAX_DM_SIZE as u64,
        };
        likeness::report(self.config.like, &mut attr);
        attr
    }
}
