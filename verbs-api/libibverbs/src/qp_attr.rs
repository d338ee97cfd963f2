//! Conversion of QP attributes.

use rocade_abi::{
    IBV_QP_ACCESS_FLAGS, ibv_ah_attr, ibv_gid, ibv_global_route, ibv_qp_attr, ibv_qp_cap,
};
use rocade_emulator::{AccessFlags, AddressVector, Gid, QpAttr, QpCap};

use crate::{diagnostics::Reason, ffi::Errno};

/// Converts a GID from C.
pub(crate) const fn gid_from_c(gid: ibv_gid) -> Gid {
    // SAFETY: the union is 16 bytes, all of which are a value for the array.
    Gid::new(unsafe { gid.raw })
}

/// Converts queue sizes from C.
pub(crate) const fn cap_from_c(cap: &ibv_qp_cap) -> QpCap {
    QpCap {
        max_send_wr: cap.max_send_wr,
        max_recv_wr: cap.max_recv_wr,
        max_send_sge: cap.max_send_sge,
        max_recv_sge: cap.max_recv_sge,
        max_inline_data: cap.max_inline_data,
    }
}

/// Converts queue sizes to C.
pub(crate) const fn cap_to_c(cap: &QpCap) -> ibv_qp_cap {
    ibv_qp_cap {
        max_send_wr: cap.max_send_wr,
        max_recv_wr: cap.max_recv_wr,
        max_send_sge: cap.max_send_sge,
        max_recv_sge: cap.max_recv_sge,
        max_inline_data: cap.max_inline_data,
    }
}

/// Converts an address vector from C.
pub(crate) const fn address_from_c(ah: &ibv_ah_attr) -> AddressVector {
    AddressVector {
        dgid: gid_from_c(ah.grh.dgid),
        sgid_index: ah.grh.sgid_index,
        flow_label: ah.grh.flow_label,
        hop_limit: ah.grh.hop_limit,
        traffic_class: ah.grh.traffic_class,
        is_global: ah.is_global != 0,
        sl: ah.sl,
        dlid: ah.dlid,
        src_path_bits: ah.src_path_bits,
        static_rate: ah.static_rate,
        port_num: ah.port_num,
    }
}

pub(crate) const fn address_to_c(av: &AddressVector) -> ibv_ah_attr {
    ibv_ah_attr {
        grh: ibv_global_route {
            dgid: ibv_gid {
                raw: av.dgid.octets(),
            },
            flow_label: av.flow_label,
            sgid_index: av.sgid_index,
            hop_limit: av.hop_limit,
            traffic_class: av.traffic_class,
        },
        dlid: av.dlid,
        sl: av.sl,
        src_path_bits: av.src_path_bits,
        static_rate: av.static_rate,
        is_global: av.is_global as u8,
        port_num: av.port_num,
    }
}

/// Converts attributes from C. Only those that `mask` names are meaningful.
///
/// # Errors
/// `EINVAL` for unknown access rights. The emulator checks all other values.
pub(crate) fn attr_from_c(attr: &ibv_qp_attr, mask: u32) -> Result<QpAttr, Errno> {
    let qp_access_flags = if mask & IBV_QP_ACCESS_FLAGS == 0 {
        AccessFlags::empty()
    } else {
        AccessFlags::from_bits(attr.qp_access_flags).ok_or_else(|| {
            let what = format!(
                "qp_access_flags {:#x} has unknown rights",
                attr.qp_access_flags
            );
            Errno::INVAL.because(Reason::new(what, ""))
        })?
    };
    Ok(QpAttr {
        qp_state: attr.qp_state,
        cur_qp_state: attr.cur_qp_state,
        path_mtu: attr.path_mtu,
        path_mig_state: attr.path_mig_state,
        qkey: attr.qkey,
        rq_psn: attr.rq_psn,
        sq_psn: attr.sq_psn,
        dest_qp_num: attr.dest_qp_num,
        qp_access_flags,
        cap: cap_from_c(&attr.cap),
        ah_attr: address_from_c(&attr.ah_attr),
        alt_ah_attr: address_from_c(&attr.alt_ah_attr),
        pkey_index: attr.pkey_index,
        alt_pkey_index: attr.alt_pkey_index,
        en_sqd_async_notify: attr.en_sqd_async_notify != 0,
        sq_draining: attr.sq_draining != 0,
        max_rd_atomic: attr.max_rd_atomic,
        max_dest_rd_atomic: attr.max_dest_rd_atomic,
        min_rnr_timer: attr.min_rnr_timer,
        port_num: attr.port_num,
        timeout: attr.timeout,
        retry_cnt: attr.retry_cnt,
        rnr_retry: attr.rnr_retry,
        alt_port_num: attr.alt_port_num,
        alt_timeout: attr.alt_timeout,
        rate_limit: attr.rate_limit,
        dc_key: 0,
    })
}

/// Converts attributes to C.
pub(crate) fn attr_to_c(attr: &QpAttr, cap: &QpCap) -> ibv_qp_attr {
    ibv_qp_attr {
        qp_state: attr.qp_state,
        cur_qp_state: attr.cur_qp_state,
        path_mtu: attr.path_mtu,
        path_mig_state: attr.path_mig_state,
        qkey: attr.qkey,
        rq_psn: attr.rq_psn,
        sq_psn: attr.sq_psn,
        dest_qp_num: attr.dest_qp_num,
        qp_access_flags: attr.qp_access_flags.bits(),
        cap: cap_to_c(cap),
        ah_attr: address_to_c(&attr.ah_attr),
        alt_ah_attr: address_to_c(&attr.alt_ah_attr),
        pkey_index: attr.pkey_index,
        alt_pkey_index: attr.alt_pkey_index,
        en_sqd_async_notify: u8::from(attr.en_sqd_async_notify),
        sq_draining: u8::from(attr.sq_draining),
        max_rd_atomic: attr.max_rd_atomic,
        max_dest_rd_atomic: attr.max_dest_rd_atomic,
        min_rnr_timer: attr.min_rnr_timer,
        port_num: attr.port_num,
        timeout: attr.timeout,
        retry_cnt: attr.retry_cnt,
        rnr_retry: attr.rnr_retry,
        alt_port_num: attr.alt_port_num,
        alt_timeout: attr.alt_timeout,
        rate_limit: attr.rate_limit,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_survive_the_round_trip() {
        let attr = QpAttr {
            qp_state: 3,
            path_mtu: 5,
            rq_psn: 0x00ab_cdef,
            dest_qp_num: 0x0012_3456,
            qp_access_flags: AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ,
            ah_attr: AddressVector {
                dgid: Gid::new([7; 16]),
                sgid_index: 2,
                hop_limit: 64,
                traffic_class: 0x20,
                is_global: true,
                port_num: 1,
                ..AddressVector::default()
            },
            en_sqd_async_notify: true,
            timeout: 14,
            rnr_retry: 7,
            rate_limit: 9,
            ..QpAttr::default()
        };
        let cap = QpCap {
            max_send_wr: 4,
            max_inline_data: 64,
            ..QpCap::default()
        };
        let c = attr_to_c(&attr, &cap);
        assert_eq!(attr_from_c(&c, u32::MAX), Ok(QpAttr { cap, ..attr }));
    }

    #[test]
    fn unknown_rights_are_invalid_only_when_they_count() {
        let mut c = attr_to_c(&QpAttr::default(), &QpCap::default());
        c.qp_access_flags = 1 << 15;
        assert_eq!(attr_from_c(&c, IBV_QP_ACCESS_FLAGS), Err(Errno::INVAL));
        assert!(attr_from_c(&c, 0).is_ok());
    }
}
