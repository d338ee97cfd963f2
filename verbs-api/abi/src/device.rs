//! Devices, ports and their attributes.

use core::ffi::{c_char, c_int, c_uint, c_void};

use crate::layout::mirror;

/// Unused function pointers of [`_ibv_device_ops`].
pub type DeviceDummyFn = Option<unsafe extern "C" fn()>;

mirror! {
    /// A global identifier, 16 bytes in network byte order.
    pub union ibv_gid {
        raw: [u8; 16],
        global: ibv_gid_global,
    }
    also {
        "global.subnet_prefix": u64 = global.subnet_prefix,
        "global.interface_id": u64 = global.interface_id,
    }

    /// One entry of the GID table, as `ibv_query_gid_ex` returns it.
    pub struct ibv_gid_entry {
        gid: ibv_gid,
        gid_index: u32,
        port_num: u32,
        gid_type: u32,
        ndev_ifindex: u32,
    }

    /// Obsolete function table at the start of a device.
    pub struct _ibv_device_ops {
        _dummy1: DeviceDummyFn,
        _dummy2: DeviceDummyFn,
    }

    /// A device in the list of `ibv_get_device_list`.
    pub struct ibv_device {
        _ops: _ibv_device_ops,
        node_type: c_int,
        transport_type: c_int,
        name: [c_char; 64],
        dev_name: [c_char; 64],
        dev_path: [c_char; 256],
        ibdev_path: [c_char; 256],
    }

    /// Attributes and limits of a device.
    pub struct ibv_device_attr {
        fw_ver: [c_char; 64],
        /// In network byte order.
        node_guid: u64,
        /// In network byte order.
        sys_image_guid: u64,
        max_mr_size: u64,
        page_size_cap: u64,
        vendor_id: u32,
        vendor_part_id: u32,
        hw_ver: u32,
        max_qp: c_int,
        max_qp_wr: c_int,
        device_cap_flags: c_uint,
        max_sge: c_int,
        max_sge_rd: c_int,
        max_cq: c_int,
        max_cqe: c_int,
        max_mr: c_int,
        max_pd: c_int,
        max_qp_rd_atom: c_int,
        max_ee_rd_atom: c_int,
        max_res_rd_atom: c_int,
        max_qp_init_rd_atom: c_int,
        max_ee_init_rd_atom: c_int,
        atomic_cap: c_uint,
        max_ee: c_int,
        max_rdd: c_int,
        max_mw: c_int,
        max_raw_ipv6_qp: c_int,
        max_raw_ethy_qp: c_int,
        max_mcast_grp: c_int,
        max_mcast_qp_attach: c_int,
        max_total_mcast_qp_attach: c_int,
        max_ah: c_int,
        max_fmr: c_int,
        max_map_per_fmr: c_int,
        max_srq: c_int,
        max_srq_wr: c_int,
        max_srq_sge: c_int,
        max_pkeys: u16,
        local_ca_ack_delay: u8,
        phys_port_cnt: u8,
    }

    /// Input of `ibv_query_device_ex`.
    pub struct ibv_query_device_ex_input {
        comp_mask: u32,
    }

    /// On-demand paging capabilities.
    pub struct ibv_odp_caps {
        general_caps: u64,
        per_transport_caps: ibv_odp_transport_caps,
    }
    also {
        "per_transport_caps.rc_odp_caps": u32 = per_transport_caps.rc_odp_caps,
        "per_transport_caps.uc_odp_caps": u32 = per_transport_caps.uc_odp_caps,
        "per_transport_caps.ud_odp_caps": u32 = per_transport_caps.ud_odp_caps,
    }

    /// TCP segmentation offload capabilities.
    pub struct ibv_tso_caps {
        max_tso: u32,
        supported_qpts: u32,
    }

    /// Receive side scaling capabilities.
    pub struct ibv_rss_caps {
        supported_qpts: u32,
        max_rwq_indirection_tables: u32,
        max_rwq_indirection_table_size: u32,
        rx_hash_fields_mask: u64,
        rx_hash_function: u8,
    }

    /// Packet pacing capabilities, rates in kbit/s.
    pub struct ibv_packet_pacing_caps {
        qp_rate_limit_min: u32,
        qp_rate_limit_max: u32,
        supported_qpts: u32,
    }

    /// Tag matching capabilities.
    pub struct ibv_tm_caps {
        max_rndv_hdr_size: u32,
        max_num_tags: u32,
        flags: u32,
        max_ops: u32,
        max_sge: u32,
    }

    /// CQ moderation capabilities.
    pub struct ibv_cq_moderation_caps {
        max_cq_count: u16,
        max_cq_period: u16,
    }

    /// PCI atomic capabilities.
    pub struct ibv_pci_atomic_caps {
        fetch_add: u16,
        swap: u16,
        compare_swap: u16,
    }

    /// Extended attributes of a device.
    pub struct ibv_device_attr_ex {
        orig_attr: ibv_device_attr,
        comp_mask: u32,
        odp_caps: ibv_odp_caps,
        completion_timestamp_mask: u64,
        /// In kHz.
        hca_core_clock: u64,
        device_cap_flags_ex: u64,
        tso_caps: ibv_tso_caps,
        rss_caps: ibv_rss_caps,
        max_wq_type_rq: u32,
        packet_pacing_caps: ibv_packet_pacing_caps,
        raw_packet_caps: u32,
        tm_caps: ibv_tm_caps,
        cq_mod_caps: ibv_cq_moderation_caps,
        max_dm_size: u64,
        pci_atomic_caps: ibv_pci_atomic_caps,
        xrc_odp_caps: u32,
        phys_port_cnt_ex: u32,
    }

    /// Attributes of a port.
    pub struct ibv_port_attr {
        state: c_uint,
        max_mtu: c_uint,
        active_mtu: c_uint,
        gid_tbl_len: c_int,
        port_cap_flags: u32,
        max_msg_sz: u32,
        bad_pkey_cntr: u32,
        qkey_viol_cntr: u32,
        pkey_tbl_len: u16,
        lid: u16,
        sm_lid: u16,
        lmc: u8,
        max_vl_num: u8,
        sm_sl: u8,
        subnet_timeout: u8,
        init_type_reply: u8,
        active_width: u8,
        active_speed: u8,
        phys_state: u8,
        link_layer: u8,
        flags: u8,
        port_cap_flags2: u16,
    }

    /// An asynchronous event.
    pub struct ibv_async_event {
        element: ibv_async_element,
        event_type: c_uint,
    }
    also {
        "element.cq": *mut c_void = element.cq,
        "element.qp": *mut c_void = element.qp,
        "element.srq": *mut c_void = element.srq,
        "element.wq": *mut c_void = element.wq,
        "element.port_num": c_int = element.port_num,
    }
}

/// The two halves of a [`ibv_gid`], each in network byte order.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct ibv_gid_global {
    /// Bytes 0 to 7.
    pub subnet_prefix: u64,
    /// Bytes 8 to 15.
    pub interface_id: u64,
}

/// Per-transport part of [`ibv_odp_caps`], bits `IBV_ODP_SUPPORT_*`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct ibv_odp_transport_caps {
    /// RC.
    pub rc_odp_caps: u32,
    /// UC.
    pub uc_odp_caps: u32,
    /// UD.
    pub ud_odp_caps: u32,
}

/// The object of an asynchronous event. The event type selects the member.
#[repr(C)]
#[derive(Clone, Copy)]
pub union ibv_async_element {
    /// Completion queue.
    pub cq: *mut crate::ibv_cq,
    /// Queue pair.
    pub qp: *mut crate::ibv_qp,
    /// Shared receive queue.
    pub srq: *mut crate::ibv_srq,
    /// Work queue.
    pub wq: *mut crate::ibv_wq,
    /// Port number, from 1.
    pub port_num: c_int,
}

impl core::fmt::Debug for ibv_async_element {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("ibv_async_element")
    }
}
