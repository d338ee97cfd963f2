//! Queries of the device, its port and its tables.

use std::ffi::{c_int, c_uint};

use rocade_abi::{
    IBV_DEVICE_ATOMIC_WRITE, IBV_DEVICE_FLUSH_GLOBAL, IBV_GID_TYPE_ROCE_V1, IBV_GID_TYPE_ROCE_V2,
    IBV_LINK_LAYER_ETHERNET, IBV_ODP_SUPPORT, IBV_ODP_SUPPORT_ATOMIC, IBV_ODP_SUPPORT_ATOMIC_WRITE,
    IBV_ODP_SUPPORT_FLUSH, IBV_ODP_SUPPORT_IMPLICIT, IBV_ODP_SUPPORT_READ, IBV_ODP_SUPPORT_RECV,
    IBV_ODP_SUPPORT_SEND, IBV_ODP_SUPPORT_SRQ_RECV, IBV_ODP_SUPPORT_WRITE, IBV_PORT_ACTIVE,
    IBV_PORT_CM_SUP, IBV_PORT_DOWN, IBV_PORT_IP_BASED_GIDS, IBV_QPF_GRH_REQUIRED,
    IBV_QPT_RAW_PACKET, IBV_QPT_RC, IBV_RAW_PACKET_CAP_IP_CSUM, IBV_VALUES_MASK_RAW_CLOCK,
    ibv_context, ibv_device_attr, ibv_device_attr_ex, ibv_gid, ibv_gid_entry, ibv_odp_caps,
    ibv_port_attr, ibv_query_device_ex_input, ibv_values_ex,
};
use rocade_emulator::{DeviceAttr, GidEntry, GidKind, MAX_TSO, RSS_FIELDS, limits};

use crate::{
    args::{Handle, In, InOut, Out, Resized, ResizedList, slot::combined, zeroed},
    diagnostics::Reason,
    ffi::{Errno, fill, int_verb, neg_verb, to_int},
    rss,
};

/// The completion vectors of a context.
#[expect(clippy::cast_possible_wrap, reason = "a small constant")]
pub(crate) const NUM_COMP_VECTORS: c_int = limits::COMP_VECTORS as c_int;

/// The size of `ibv_port_attr` before `port_cap_flags2`, which the exported `ibv_query_port`
/// writes.
pub(crate) const OLD_PORT_ATTR_LEN: usize = 48;
/// `phys_state`: link up.
const PHYS_LINK_UP: u8 = 5;
/// `phys_state`: down.
const PHYS_DISABLED: u8 = 3;
/// The value of `ibv_query_gid_type` for RoCE v2. Its enumeration differs from the public one: IB
/// and RoCE v1 share the value 0.
const SYSFS_GID_TYPE_ROCE_V2: c_uint = 1;
const SYSFS_GID_TYPE_ROCE_V1: c_uint = 0;

fn device_attr(attr: &DeviceAttr) -> ibv_device_attr {
    let mut c: ibv_device_attr = zeroed();
    fill(&mut c.fw_ver, attr.fw_ver);
    c.node_guid = attr.node_guid.get().to_be();
    c.sys_image_guid = attr.sys_image_guid.get().to_be();
    c.max_mr_size = attr.max_mr_size;
    c.page_size_cap = attr.page_size_cap;
    c.vendor_id = attr.vendor_id;
    c.vendor_part_id = attr.vendor_part_id;
    c.hw_ver = attr.hw_ver;
    c.max_qp = to_int(attr.max_qp);
    c.max_qp_wr = to_int(attr.max_qp_wr);
    c.device_cap_flags = attr.device_cap_flags;
    c.max_sge = to_int(attr.max_sge);
    c.max_sge_rd = to_int(attr.max_sge_rd);
    c.max_srq = to_int(attr.max_srq);
    c.max_srq_wr = to_int(attr.max_srq_wr);
    c.max_srq_sge = to_int(attr.max_srq_sge);
    c.max_cq = to_int(attr.max_cq);
    c.max_cqe = to_int(attr.max_cqe);
    c.max_mr = to_int(attr.max_mr);
    c.max_mw = to_int(attr.max_mw);
    c.max_pd = to_int(attr.max_pd);
    c.max_ah = to_int(limits::MAX_AH);
    c.max_mcast_grp = to_int(limits::MAX_MCAST_GROUPS);
    c.max_mcast_qp_attach = to_int(limits::MAX_MCAST_QP_ATTACH);
    c.max_total_mcast_qp_attach = to_int(limits::MAX_MCAST_GROUPS * limits::MAX_MCAST_QP_ATTACH);
    c.max_qp_rd_atom = to_int(attr.max_qp_rd_atom);
    c.max_res_rd_atom = to_int(attr.max_res_rd_atom);
    c.max_qp_init_rd_atom = to_int(attr.max_qp_init_rd_atom);
    c.atomic_cap = attr.atomic_cap;
    c.max_pkeys = attr.max_pkeys;
    c.local_ca_ack_delay = attr.local_ca_ack_delay;
    c.phys_port_cnt = attr.phys_port_cnt;
    c
}

/// `ibv_query_device`.
pub(crate) extern "C" fn ibv_query_device(
    context: Handle<'_, ibv_context>,
    attr: Out<'_, ibv_device_attr>,
) -> c_int {
    int_verb(|| {
        let context = context.get()?.context();
        context.check_present()?;
        attr.write(device_attr(&context.device_attr()))
    })
}

/// Returns the on-demand paging capabilities. Rocade accesses memory through the page tables of the
/// process, so every access faults in its pages or fails.
//= ODP-01
pub(crate) fn odp_caps() -> ibv_odp_caps {
    let mut caps: ibv_odp_caps = zeroed();
    caps.general_caps = IBV_ODP_SUPPORT | IBV_ODP_SUPPORT_IMPLICIT;
    caps.per_transport_caps.rc_odp_caps = IBV_ODP_SUPPORT_SEND
        | IBV_ODP_SUPPORT_RECV
        | IBV_ODP_SUPPORT_WRITE
        | IBV_ODP_SUPPORT_READ
        | IBV_ODP_SUPPORT_ATOMIC
        | IBV_ODP_SUPPORT_SRQ_RECV
        | IBV_ODP_SUPPORT_FLUSH
        | IBV_ODP_SUPPORT_ATOMIC_WRITE;
    let messages = IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_SRQ_RECV;
    caps.per_transport_caps.uc_odp_caps = messages | IBV_ODP_SUPPORT_WRITE;
    caps.per_transport_caps.ud_odp_caps = messages;
    caps
}

/// Returns the on-demand paging capabilities of DC, which has neither FLUSH nor ATOMIC WRITE.
pub(crate) fn dc_odp_caps() -> u32 {
    odp_caps().per_transport_caps.rc_odp_caps
        & !(IBV_ODP_SUPPORT_FLUSH | IBV_ODP_SUPPORT_ATOMIC_WRITE)
}

/// Context op `query_device_ex`: writes as many bytes as the caller's structure has.
pub(crate) fn query_device_ex(
    context: Handle<'_, ibv_context>,
    input: In<'_, ibv_query_device_ex_input>,
    attr: Resized<'_, ibv_device_attr_ex>,
) -> c_int {
    int_verb(|| {
        // The capabilities are the same in a forked child.
        let object = context.share_inherited()?;
        let context = object.context();
        context.check_present()?;
        if let Some(input) = input.optional()
            && input.comp_mask != 0
        {
            return Err(Errno::INVAL);
        }
        if attr.len() < size_of::<ibv_device_attr>() {
            return Err(Errno::INVAL);
        }
        let source = context.device_attr();
        let mut c: ibv_device_attr_ex = zeroed();
        c.orig_attr = device_attr(&source);
        c.completion_timestamp_mask = source.completion_timestamp_mask;
        c.hca_core_clock = source.hca_core_clock_khz;
        // The largest values of these 16-bit members.
        c.cq_mod_caps.max_cq_count = u16::MAX;
        c.cq_mod_caps.max_cq_period = u16::MAX;
        c.max_dm_size = source.max_dm_size;
        c.phys_port_cnt_ex = u32::from(source.phys_port_cnt);
        c.device_cap_flags_ex = u64::from(source.device_cap_flags);
        if !object.device().info().like.reports_odp_and_offloads() {
            return attr.write(&c);
        }
        c.odp_caps = odp_caps();
        c.xrc_odp_caps = c.odp_caps.per_transport_caps.rc_odp_caps;
        c.tso_caps.max_tso = MAX_TSO;
        c.tso_caps.supported_qpts = 1 << IBV_QPT_RAW_PACKET;
        c.rss_caps.supported_qpts = 1 << IBV_QPT_RAW_PACKET;
        c.rss_caps.max_rwq_indirection_tables = limits::MAX_QP;
        c.rss_caps.max_rwq_indirection_table_size = 1 << rss::MAX_LOG_TABLE;
        c.rss_caps.rx_hash_fields_mask = u64::from(RSS_FIELDS);
        c.rss_caps.rx_hash_function = rss::TOEPLITZ;
        c.max_wq_type_rq = limits::MAX_QP;
        c.raw_packet_caps = IBV_RAW_PACKET_CAP_IP_CSUM;
        // RC only, from 1 kbit/s.
        c.packet_pacing_caps.qp_rate_limit_min = 1;
        c.packet_pacing_caps.qp_rate_limit_max = u32::MAX;
        c.packet_pacing_caps.supported_qpts = 1 << IBV_QPT_RC;
        c.device_cap_flags_ex |= IBV_DEVICE_FLUSH_GLOBAL | IBV_DEVICE_ATOMIC_WRITE;
        attr.write(&c)
    })
}

fn query_port(
    context: Handle<'_, ibv_context>,
    port_num: u8,
    attr: Resized<'_, ibv_port_attr>,
) -> Result<(), Errno> {
    let context = context.get()?.context();
    let source = context.port_attr(port_num)?;
    let mut c: ibv_port_attr = zeroed();
    (c.state, c.phys_state) = if source.active {
        (IBV_PORT_ACTIVE, PHYS_LINK_UP)
    } else {
        (IBV_PORT_DOWN, PHYS_DISABLED)
    };
    c.max_mtu = u32::from(source.max_mtu.code());
    c.active_mtu = u32::from(source.active_mtu.code());
    c.gid_tbl_len = to_int(source.gid_tbl_len);
    c.port_cap_flags = IBV_PORT_CM_SUP | IBV_PORT_IP_BASED_GIDS;
    c.max_msg_sz = source.max_msg_sz;
    //= BTH-06 UD-05
    c.bad_pkey_cntr = source.bad_pkey_cntr;
    c.qkey_viol_cntr = source.qkey_viol_cntr;
    c.pkey_tbl_len = source.pkey_tbl_len;
    c.max_vl_num = 1;
    c.active_width = source.active_width();
    c.active_speed = source.active_speed();
    c.link_layer = IBV_LINK_LAYER_ETHERNET;
    c.flags = IBV_QPF_GRH_REQUIRED;
    attr.write(&c)
}

/// Context op `query_port`.
pub(crate) fn query_port_slot(
    context: Handle<'_, ibv_context>,
    port_num: u8,
    attr: Resized<'_, ibv_port_attr>,
) -> c_int {
    int_verb(|| query_port(context, port_num, attr))
}

combined! {
    pub(crate) fn c_query_port(
        context: *mut ibv_context, port_num: u8, attr: *mut ibv_port_attr, len: usize
    ) -> c_int = query_port_slot [context, port_num, (attr, len)];
    pub(crate) fn c_query_device_ex(
        context: *mut ibv_context, input: *const ibv_query_device_ex_input,
        attr: *mut ibv_device_attr_ex, len: usize
    ) -> c_int = query_device_ex [context, input, (attr, len)];
}

/// `ibv_query_port` as a function, for callers whose structure ends before `port_cap_flags2`.
pub(crate) fn ibv_query_port(
    context: Handle<'_, ibv_context>,
    port_num: u8,
    attr: Resized<'_, ibv_port_attr>,
) -> c_int {
    int_verb(|| query_port(context, port_num, attr))
}

/// `ibv_query_port_speed`: the bandwidth of a port in units of 100 Mbit/s.
pub(crate) extern "C" fn ibv_query_port_speed(
    context: Handle<'_, ibv_context>,
    port_num: c_uint,
    speed: Out<'_, u64>,
) -> c_int {
    int_verb(|| {
        let context = context.get()?.context();
        let port = context.port_attr(u8::try_from(port_num).map_err(|_| Errno::INVAL)?)?;
        speed.write(u64::from(port.gbit) * 10)
    })
}

/// Returns the error for a GID index beyond the table.
fn beyond(index: usize, len: usize) -> Errno {
    let what = format!("GID index {index} is beyond the table, which has {len} entries");
    Errno::INVAL.because(Reason::new(what, "`rocade devices` lists them"))
}

/// `ibv_query_gid`.
//= ERN-03
pub(crate) extern "C" fn ibv_query_gid(
    context: Handle<'_, ibv_context>,
    port_num: u8,
    index: c_int,
    gid: Out<'_, ibv_gid>,
) -> c_int {
    neg_verb(|| {
        let context = context.get()?.context();
        let entries = context.gid_entries_of(port_num)?;
        let index = usize::try_from(index).map_err(|_| Errno::INVAL)?;
        let entry = entries
            .get(index)
            .ok_or_else(|| beyond(index, entries.len()))?;
        gid.write(ibv_gid {
            raw: entry.gid.octets(),
        })?;
        Ok(0)
    })
}

/// `ibv_query_gid_type` of the private version node.
pub(crate) extern "C" fn ibv_query_gid_type(
    context: Handle<'_, ibv_context>,
    port_num: u8,
    index: c_uint,
    gid_type: Out<'_, c_uint>,
) -> c_int {
    neg_verb(|| {
        let context = context.get()?.context();
        let entries = context.gid_entries_of(port_num)?;
        let index = usize::try_from(index).map_err(|_| Errno::INVAL)?;
        let entry = entries
            .get(index)
            .ok_or_else(|| beyond(index, entries.len()))?;
        let kind = match entry.kind {
            GidKind::RoceV1 => SYSFS_GID_TYPE_ROCE_V1,
            GidKind::RoceV2 => SYSFS_GID_TYPE_ROCE_V2,
        };
        gid_type.write(kind)?;
        Ok(0)
    })
}

fn gid_entry(port: u8, entry: &GidEntry) -> ibv_gid_entry {
    ibv_gid_entry {
        gid: ibv_gid {
            raw: entry.gid.octets(),
        },
        gid_index: entry.index,
        port_num: port.into(),
        gid_type: match entry.kind {
            GidKind::RoceV1 => IBV_GID_TYPE_ROCE_V1,
            GidKind::RoceV2 => IBV_GID_TYPE_ROCE_V2,
        },
        ndev_ifindex: entry.ifindex,
    }
}

/// `ibv_query_gid_ex`: fails with `ENODATA` for an empty entry of the table.
//= ERN-02
pub(crate) fn ibv_query_gid_ex(
    context: Handle<'_, ibv_context>,
    port_num: u32,
    gid_index: u32,
    entry: Resized<'_, ibv_gid_entry>,
    flags: u32,
) -> c_int {
    int_verb(|| {
        let context = context.get()?.context();
        if flags != 0 {
            return Err(Errno::OPNOTSUPP);
        }
        let port = u8::try_from(port_num).map_err(|_| Errno::INVAL)?;
        let index = usize::try_from(gid_index).map_err(|_| Errno::INVAL)?;
        let entries = context.gid_entries_of(port)?;
        let found = entries
            .get(index)
            .ok_or_else(|| beyond(index, entries.len()))?;
        if found.gid.is_zero() {
            return Err(Errno::NODATA);
        }
        entry.write(&gid_entry(port, found))
    })
}

/// `ibv_query_gid_table`: returns the number of entries written, or a negative errno. Fails with
/// `EINVAL` if `entries` has no space for all of them.
pub(crate) fn ibv_query_gid_table(
    context: Handle<'_, ibv_context>,
    entries: ResizedList<'_, ibv_gid_entry>,
    flags: u32,
) -> isize {
    let mut written = 0;
    let status = int_verb(|| {
        let context = context.get()?.context();
        if flags != 0 {
            return Err(Errno::OPNOTSUPP);
        }
        let ports = (1..=context.device_attr().phys_port_cnt)
            .map(|port| Ok((port, context.gid_entries_of(port)?)))
            .collect::<Result<Vec<_>, Errno>>()?;
        let all = ports
            .iter()
            .flat_map(|(port, entries)| entries.iter().map(move |entry| (*port, entry)));
        let valid = all.filter(|(_, entry)| !entry.gid.is_zero());
        let max = entries.count();
        if max == 0 || entries.entry_len() == 0 || valid.clone().count() > max {
            return Err(Errno::INVAL);
        }
        for (port, entry) in valid {
            entries.at(written).write(&gid_entry(port, entry))?;
            written += 1;
        }
        Ok(())
    });
    match status {
        0 => isize::try_from(written).unwrap_or(isize::MAX),
        code => -isize::try_from(code).unwrap_or(isize::MAX),
    }
}

/// Context op `query_rt_values`: returns the clock of completion timestamps, with all ticks in
/// `tv_nsec`. Clears the bits of `comp_mask` that it does not support.
pub(crate) extern "C" fn query_rt_values(
    context: Handle<'_, ibv_context>,
    values: InOut<'_, ibv_values_ex>,
) -> c_int {
    int_verb(|| {
        let context = context.get()?.context();
        let mut answer = *values.read()?;
        answer.comp_mask &= IBV_VALUES_MASK_RAW_CLOCK;
        if answer.comp_mask != 0 {
            let ticks = context.clock_ns() & context.device_attr().completion_timestamp_mask;
            answer.raw_clock.tv_sec = 0;
            answer.raw_clock.tv_nsec = ticks.cast_signed();
        }
        values.write(answer)
    })
}

/// `ibv_query_pkey`: network byte order.
//= ERN-04
pub(crate) extern "C" fn ibv_query_pkey(
    context: Handle<'_, ibv_context>,
    port_num: u8,
    index: c_int,
    pkey: Out<'_, u16>,
) -> c_int {
    neg_verb(|| {
        let context = context.get()?.context();
        context.port_attr(port_num)?;
        let value = context.pkey(u16::try_from(index).map_err(|_| Errno::INVAL)?)?;
        pkey.write(value.to_be())?;
        Ok(0)
    })
}

/// `ibv_get_pkey_index`: `pkey` in network byte order.
//= ERN-04
pub(crate) extern "C" fn ibv_get_pkey_index(
    context: Handle<'_, ibv_context>,
    port_num: u8,
    pkey: u16,
) -> c_int {
    neg_verb(|| {
        let context = context.get()?.context();
        let table = 0..context.port_attr(port_num)?.pkey_tbl_len;
        let wanted = u16::from_be(pkey);
        let mut found = table.filter(|index| context.pkey(*index).is_ok_and(|key| key == wanted));
        found.next().map(c_int::from).ok_or(Errno::INVAL)
    })
}
