//! Flow steering: the rules that select the frames of a raw packet QP.

use std::{ffi::c_int, sync::Arc};

use rocade_abi::{
    IBV_FLOW_ATTR_ALL_DEFAULT, IBV_FLOW_ATTR_FLAGS_DONT_TRAP, IBV_FLOW_ATTR_FLAGS_EGRESS,
    IBV_FLOW_ATTR_MC_DEFAULT, IBV_FLOW_ATTR_NORMAL, IBV_FLOW_ATTR_SNIFFER,
    IBV_FLOW_SPEC_ACTION_COUNT, IBV_FLOW_SPEC_ACTION_DROP, IBV_FLOW_SPEC_ACTION_HANDLE,
    IBV_FLOW_SPEC_ACTION_TAG, IBV_FLOW_SPEC_ESP, IBV_FLOW_SPEC_ETH, IBV_FLOW_SPEC_GRE,
    IBV_FLOW_SPEC_INNER, IBV_FLOW_SPEC_IPV4, IBV_FLOW_SPEC_IPV4_EXT, IBV_FLOW_SPEC_IPV6,
    IBV_FLOW_SPEC_MPLS, IBV_FLOW_SPEC_TCP, IBV_FLOW_SPEC_UDP, IBV_FLOW_SPEC_VXLAN_TUNNEL, ibv_flow,
    ibv_flow_attr, ibv_flow_eth_filter, ibv_flow_ipv4_ext_filter, ibv_flow_ipv4_filter,
    ibv_flow_ipv6_filter, ibv_flow_spec_action_drop, ibv_flow_spec_action_tag, ibv_flow_spec_eth,
    ibv_flow_spec_ipv4, ibv_flow_spec_ipv4_ext, ibv_flow_spec_ipv6, ibv_flow_spec_tcp_udp,
    ibv_flow_tcp_udp_filter, ibv_qp,
};
use rocade_emulator::{
    EthFields, Flow, FlowAttr, FlowKind, FlowSpec, Ipv4Fields, Ipv6Fields, MAX_FLOW_SPECS, Masked,
    PortFields,
};

use crate::{
    args::{AnyBytes, Buffer, Handle, In, Last, any_bytes},
    context::ContextObject,
    diagnostics::Reason,
    ffi::{Errno, int_verb, ptr_verb},
    handle::{CHandle, objects},
};

/// A flow steering rule.
type FlowObject = CHandle<ibv_flow, FlowState>;

objects! {
    ibv_flow: ibv_flow, FlowState;
}

/// The Rust state of an `ibv_flow`.
pub(crate) struct FlowState {
    flow: Flow,
    _context: Arc<ContextObject>,
}

/// The valid flags. The lowest bit is obsolete and has no effect.
const KNOWN_FLAGS: u32 = 1 | IBV_FLOW_ATTR_FLAGS_DONT_TRAP | IBV_FLOW_ATTR_FLAGS_EGRESS;

/// Context op `ibv_create_flow`.
pub(crate) extern "C" fn create_flow(
    qp: Handle<'_, ibv_qp>,
    attr: In<'_, ibv_flow_attr>,
) -> *mut ibv_flow {
    ptr_verb(|| {
        let qp = qp.get()?.inner();
        let plan = flow_attr(attr)?;
        let flow = qp.qp().create_flow(plan).map_err(|error| {
            let errno = Errno::from(error);
            errno.of_qp(qp.qp(), ":")
        })?;
        let context = Arc::clone(qp.context());
        FlowObject::create(|_| {
            let c = ibv_flow {
                comp_mask: 0,
                context: context.as_c(),
                handle: 0,
            };
            Ok((
                c,
                FlowState {
                    flow,
                    _context: context,
                },
            ))
        })
    })
}

/// Context op `ibv_destroy_flow`.
pub(crate) extern "C" fn destroy_flow(flow: Last<'_, ibv_flow>) -> c_int {
    int_verb(|| flow.destroy(|state| Ok(state.flow.destroy()?)))
}

fn unknown(what: String, errno: Errno) -> Errno {
    errno.because(Reason::new(what, ""))
}

fn flow_attr(attr: In<'_, ibv_flow_attr>) -> Result<FlowAttr, Errno> {
    let head = attr.read()?;
    if head.comp_mask != 0 || head.port != 1 {
        let what = format!("comp_mask is {:#x}, port {}", head.comp_mask, head.port);
        return Err(unknown(what, Errno::INVAL));
    }
    if head.flags & !KNOWN_FLAGS != 0 {
        return Err(unknown(
            format!("flags are {:#x}", head.flags),
            Errno::INVAL,
        ));
    }
    if head.flags & IBV_FLOW_ATTR_FLAGS_EGRESS != 0 {
        let what = "egress flows are not supported".to_owned();
        return Err(unknown(what, Errno::OPNOTSUPP));
    }
    let kind = match head.r#type {
        IBV_FLOW_ATTR_NORMAL => FlowKind::Normal,
        IBV_FLOW_ATTR_ALL_DEFAULT => FlowKind::AllDefault,
        IBV_FLOW_ATTR_MC_DEFAULT => FlowKind::McDefault,
        IBV_FLOW_ATTR_SNIFFER => FlowKind::Sniffer,
        other => return Err(unknown(format!("type is {other}"), Errno::INVAL)),
    };
    let count = usize::from(head.num_of_specs);
    if count > MAX_FLOW_SPECS {
        let what = format!("num_of_specs is {count}, the limit is {MAX_FLOW_SPECS}");
        return Err(unknown(what, Errno::INVAL));
    }
    let mut specs = Vec::with_capacity(count);
    // SAFETY: the specifications begin after the attributes.
    let mut next: *const u8 = unsafe { attr.as_ptr().add(1) }.cast();
    for _ in 0..count {
        // SAFETY: by contract there is one more, which begins with a type and a size.
        let head = unsafe { next.cast::<ibv_flow_spec_action_drop>().read_unaligned() };
        // SAFETY: it is as long as it says.
        let spec = unsafe { Buffer::new(next.cast(), head.size.into()) };
        specs.push(flow_spec(head.r#type, spec)?);
        // SAFETY: the next specification follows this one.
        next = unsafe { next.add(head.size.into()) };
    }
    Ok(FlowAttr {
        kind,
        priority: head.priority,
        dont_trap: head.flags & IBV_FLOW_ATTR_FLAGS_DONT_TRAP != 0,
        specs,
    })
}

any_bytes! {
    ibv_flow_spec_action_drop,
    ibv_flow_spec_action_tag,
    ibv_flow_spec_eth,
    ibv_flow_spec_ipv4,
    ibv_flow_spec_ipv4_ext,
    ibv_flow_spec_ipv6,
    ibv_flow_spec_tcp_udp,
}

/// Reads a specification of type `T`.
fn take<T: AnyBytes>(spec: Buffer<'_>) -> Result<T, Errno> {
    let size = spec.len();
    let known = size_of::<T>();
    spec.get(0).filter(|_| size == known).ok_or_else(|| {
        let what = format!("a specification has size {size} instead of {known}");
        unknown(what, Errno::INVAL)
    })
}

/// Reads a specification.
fn flow_spec(kind: u32, spec: Buffer<'_>) -> Result<FlowSpec, Errno> {
    Ok(match kind {
        IBV_FLOW_SPEC_ETH => {
            let ibv_flow_spec_eth { val, mask, .. } = take(spec)?;
            let (val, mask) = (eth(val), eth(mask));
            FlowSpec::Eth(Masked { val, mask })
        }
        IBV_FLOW_SPEC_IPV4 => {
            let ibv_flow_spec_ipv4 { val, mask, .. } = take(spec)?;
            let (val, mask) = (ipv4(val), ipv4(mask));
            FlowSpec::Ipv4(Masked { val, mask })
        }
        IBV_FLOW_SPEC_IPV4_EXT => {
            let ibv_flow_spec_ipv4_ext { val, mask, .. } = take(spec)?;
            let (val, mask) = (ipv4_ext(val), ipv4_ext(mask));
            FlowSpec::Ipv4(Masked { val, mask })
        }
        IBV_FLOW_SPEC_IPV6 => {
            let ibv_flow_spec_ipv6 { val, mask, .. } = take(spec)?;
            let (val, mask) = (ipv6(val), ipv6(mask));
            FlowSpec::Ipv6(Masked { val, mask })
        }
        IBV_FLOW_SPEC_TCP | IBV_FLOW_SPEC_UDP => {
            let ibv_flow_spec_tcp_udp { val, mask, .. } = take(spec)?;
            let (val, mask) = (ports(val), ports(mask));
            if kind == IBV_FLOW_SPEC_TCP {
                FlowSpec::Tcp(Masked { val, mask })
            } else {
                FlowSpec::Udp(Masked { val, mask })
            }
        }
        IBV_FLOW_SPEC_ACTION_TAG => {
            let tag: ibv_flow_spec_action_tag = take(spec)?;
            FlowSpec::Tag(tag.tag_id)
        }
        IBV_FLOW_SPEC_ACTION_DROP => {
            let _: ibv_flow_spec_action_drop = take(spec)?;
            FlowSpec::Drop
        }
        other => {
            let is_known = matches!(
                other & !IBV_FLOW_SPEC_INNER,
                IBV_FLOW_SPEC_ETH
                    | IBV_FLOW_SPEC_IPV4
                    | IBV_FLOW_SPEC_IPV4_EXT
                    | IBV_FLOW_SPEC_IPV6
                    | IBV_FLOW_SPEC_TCP
                    | IBV_FLOW_SPEC_UDP
                    | IBV_FLOW_SPEC_ESP
                    | IBV_FLOW_SPEC_VXLAN_TUNNEL
                    | IBV_FLOW_SPEC_GRE
                    | IBV_FLOW_SPEC_MPLS
                    | IBV_FLOW_SPEC_ACTION_HANDLE
                    | IBV_FLOW_SPEC_ACTION_COUNT
            );
            let errno = if is_known {
                Errno::OPNOTSUPP
            } else {
                Errno::INVAL
            };
            let what = format!("specifications of type {other:#x} are not supported");
            return Err(unknown(what, errno));
        }
    })
}

const fn eth(filter: ibv_flow_eth_filter) -> EthFields {
    EthFields {
        dst_mac: filter.dst_mac,
        src_mac: filter.src_mac,
        ether_type: filter.ether_type.to_ne_bytes(),
        vlan_tag: filter.vlan_tag.to_ne_bytes(),
    }
}

fn ipv4(filter: ibv_flow_ipv4_filter) -> Ipv4Fields {
    Ipv4Fields {
        src_ip: filter.src_ip.to_ne_bytes(),
        dst_ip: filter.dst_ip.to_ne_bytes(),
        ..Ipv4Fields::default()
    }
}

const fn ipv4_ext(filter: ibv_flow_ipv4_ext_filter) -> Ipv4Fields {
    Ipv4Fields {
        src_ip: filter.src_ip.to_ne_bytes(),
        dst_ip: filter.dst_ip.to_ne_bytes(),
        proto: filter.proto,
        tos: filter.tos,
        ttl: filter.ttl,
        flags: filter.flags,
    }
}

const fn ipv6(filter: ibv_flow_ipv6_filter) -> Ipv6Fields {
    Ipv6Fields {
        src_ip: filter.src_ip,
        dst_ip: filter.dst_ip,
        flow_label: filter.flow_label.to_ne_bytes(),
        next_hdr: filter.next_hdr,
        traffic_class: filter.traffic_class,
        hop_limit: filter.hop_limit,
    }
}

const fn ports(filter: ibv_flow_tcp_udp_filter) -> PortFields {
    PortFields {
        dst_port: filter.dst_port.to_ne_bytes(),
        src_port: filter.src_port.to_ne_bytes(),
    }
}
