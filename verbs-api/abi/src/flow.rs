//! Flow steering specifications. All packet fields are in network byte order.

use core::ffi::c_uint;

use crate::layout::mirror;

mirror! {
    /// Fields of an Ethernet header.
    pub struct ibv_flow_eth_filter {
        dst_mac: [u8; 6],
        src_mac: [u8; 6],
        ether_type: u16,
        vlan_tag: u16,
    }

    /// Specification that matches the Ethernet header.
    pub struct ibv_flow_spec_eth {
        r#type: c_uint,
        size: u16,
        val: ibv_flow_eth_filter,
        mask: ibv_flow_eth_filter,
    }

    /// Addresses of an IPv4 header.
    pub struct ibv_flow_ipv4_filter {
        src_ip: u32,
        dst_ip: u32,
    }

    /// Specification that matches the IPv4 header.
    pub struct ibv_flow_spec_ipv4 {
        r#type: c_uint,
        size: u16,
        val: ibv_flow_ipv4_filter,
        mask: ibv_flow_ipv4_filter,
    }

    /// Fields of an IPv4 header.
    pub struct ibv_flow_ipv4_ext_filter {
        src_ip: u32,
        dst_ip: u32,
        proto: u8,
        tos: u8,
        ttl: u8,
        flags: u8,
    }

    /// Specification that matches more fields of the IPv4 header.
    pub struct ibv_flow_spec_ipv4_ext {
        r#type: c_uint,
        size: u16,
        val: ibv_flow_ipv4_ext_filter,
        mask: ibv_flow_ipv4_ext_filter,
    }

    /// Fields of an IPv6 header.
    pub struct ibv_flow_ipv6_filter {
        src_ip: [u8; 16],
        dst_ip: [u8; 16],
        flow_label: u32,
        next_hdr: u8,
        traffic_class: u8,
        hop_limit: u8,
    }

    /// Specification that matches the IPv6 header.
    pub struct ibv_flow_spec_ipv6 {
        r#type: c_uint,
        size: u16,
        val: ibv_flow_ipv6_filter,
        mask: ibv_flow_ipv6_filter,
    }

    /// Fields of a TCP or UDP header.
    pub struct ibv_flow_tcp_udp_filter {
        dst_port: u16,
        src_port: u16,
    }

    /// Specification that matches the TCP or UDP header.
    pub struct ibv_flow_spec_tcp_udp {
        r#type: c_uint,
        size: u16,
        val: ibv_flow_tcp_udp_filter,
        mask: ibv_flow_tcp_udp_filter,
    }

    /// Action that sets the flow tag of matching packets.
    pub struct ibv_flow_spec_action_tag {
        r#type: c_uint,
        size: u16,
        tag_id: u32,
    }

    /// Action that drops matching packets.
    pub struct ibv_flow_spec_action_drop {
        r#type: c_uint,
        size: u16,
    }
}
