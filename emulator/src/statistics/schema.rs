//! The tables of all values. A line has name, unit, help and source of one.

use rocade_transport::DropReason;

use super::Unit::{Bytes, Events, Messages, Objects, Packets};
use super::{Kind, Metric, PortSample, ProcessSample, QpSample};

/// Makes a table. A line begins with `count`, `gauge` or, for a reason of dropped packets, `drops`.
macro_rules! table {
    (
        $(#[$attribute:meta])+
        $name:ident of $sample:ty as $one:ident:
        $($kind:ident $metric:ident $($unit:ident $help:literal)? = $value:expr;)+
    ) => {
        $(#[$attribute])+
        pub const $name: &[Metric<$sample>] = &[
            $(metric!($kind $metric $($unit $help)?, |$one: &$sample| $value)),+
        ];
    };
}

/// Makes an entry of a table.
macro_rules! metric {
    (count $name:ident $unit:ident $help:literal, $get:expr) => {
        metric!(@ stringify!($name), None, Kind::Counter, $unit, $help, $get)
    };
    (gauge $name:ident $unit:ident $help:literal, $get:expr) => {
        metric!(@ stringify!($name), None, Kind::Gauge, $unit, $help, $get)
    };
    (drops $reason:ident, $get:expr) => {
        metric!(@ "dropped_pkts", Some(stringify!($reason)), Kind::Counter, Packets,
            "Packets dropped", $get)
    };
    (@ $name:expr, $reason:expr, $kind:expr, $unit:expr, $help:expr, $get:expr) => {
        Metric {
            name: $name,
            reason: $reason,
            kind: $kind,
            unit: $unit,
            help: $help,
            get: $get,
        }
    };
}

table! {
    /// The values of a queue pair. Those of a device begin with their sums.
    QP of QpSample as qp:
    count sent_pkts Packets "Packets sent" = qp.counters.tx_packets;
    count rcvd_pkts Packets "Packets received" = qp.counters.arrived_packets;
    count sent_bytes Bytes "Bytes sent, from BTH to ICRC" = qp.counters.tx_bytes;
    count rcvd_bytes Bytes "Bytes received, from BTH to ICRC" = qp.counters.rx_bytes;
    count sent_msgs Messages "Send work requests that succeeded" = qp.counters.tx_messages;
    count rcvd_msgs Messages "Messages and requests received" = qp.counters.rx_messages;
    count acks_sent Packets "ACKs sent" = qp.counters.acks_sent;
    count fast_path_pkts Packets "Packets handled on the fast path" = qp.counters.fast_path_packets;
    count retrans_pkts Packets "Packets sent again" = qp.counters.retransmitted_packets;
    count local_ack_timeout_err Events "Expiries of the ACK timer" = qp.counters.timeouts;
    count retry_exceeded_err Messages "Requests that used up all retries" = qp.counters.retry_exceeded;
    count packet_seq_err Packets "Sequence NAKs received" = qp.counters.seq_naks_received;
    count out_of_sequence Packets "Packets received behind a gap" = out_of_sequence(qp);
    count rnr_nak_retry_err Packets "RNR NAKs received" = qp.counters.rnr_naks_received;
    count send_rnr_err Packets "RNR NAKs sent for lack of a receive" = qp.counters.rnr_naks_sent;
    count duplicate_request Packets "Duplicate requests received" = qp.counters.duplicate_requests;
    count fatal_naks_sent Packets "NAKs sent that end the connection" = qp.counters.fatal_naks_sent;
    count np_ecn_marked_roce_packets Packets "ECN marks received" = qp.counters.marked_packets;
    count np_cnp_sent Packets "Congestion notifications sent" = qp.counters.cnps_sent;
    count rp_cnp_handled Packets "Congestion notifications received" = qp.counters.cnps_received;
    gauge send_queue Messages "Send work requests that are not complete" = qp.send_queue as u64;
    gauge recv_queue Messages "Receive work requests that are not complete" = qp.recv_queue as u64;
    gauge comp_queue Events "Completions in its CQs that are not polled" = qp.comp_queue as u64;
    gauge in_flight_bytes Bytes "Bytes in flight, 512 or more a packet (RC, XRC)" = qp.flight.0;
    gauge window_bytes Bytes "Bytes that may be in flight, while some are" = qp.flight.1;
    drops state = qp.counters.dropped(DropReason::State);
    drops wrong_service = qp.counters.dropped(DropReason::WrongService);
    drops wrong_address = qp.counters.dropped(DropReason::WrongAddress);
    drops bad_pkey = qp.counters.dropped(DropReason::BadPkey);
    drops bad_qkey = qp.counters.dropped(DropReason::BadQkey);
    drops out_of_sequence = qp.counters.dropped(DropReason::OutOfSequence);
    drops duplicate = qp.counters.dropped(DropReason::Duplicate);
    drops future_response = qp.counters.dropped(DropReason::FutureResponse);
    drops ghost_response = qp.counters.dropped(DropReason::GhostResponse);
    drops reserved = qp.counters.dropped(DropReason::Reserved);
    drops malformed = qp.counters.dropped(DropReason::Malformed);
    drops no_receive = qp.counters.dropped(DropReason::NoReceive);
    drops too_long = qp.counters.dropped(DropReason::TooLong);
    drops access = qp.counters.dropped(DropReason::Access);
    drops bad_dc_key = qp.counters.dropped(DropReason::BadDcKey);
    drops no_session = qp.counters.dropped(DropReason::NoSession);
}

table! {
    /// The values of a device beside the sums of its queue pairs.
    PORT of PortSample as port:
    count shared_memory_pkts Packets "Packets sent through shared memory" = port.tx_shared;
    count rcvd_shared_memory_pkts Packets "Packets received through shared memory" = port.rx_shared;
    count rx_icrc_encapsulated Packets "Packets with a wrong ICRC" = port.bad_icrc;
    count malformed_pkts Packets "Datagrams that are no packets" = port.malformed;
    count bad_pkey_cntr Packets "Packets with a wrong P_Key" = port.violations.pkey.into();
    count qkey_viol_cntr Packets "Datagrams with a wrong Q_Key" = port.violations.qkey.into();
}

table! {
    /// The values of a process beside those of its devices.
    PROCESS of ProcessSample as process:
    gauge qps Objects "Queue pairs" = process.qps as u64;
    gauge memory_regions Objects "Registered memory regions" = process.regions as u64;
    gauge registered_bytes Bytes "Registered memory" = process.memory_bytes;
    count send_errors Events "Sends that the system refused" = process.counters.tx_errors;
    count forwarded_pkts Packets "Packets for other processes" = process.counters.forwarded;
    drops unknown_qp = process.counters.rx_unknown_qp;
    drops wrong_link = process.counters.rx_wrong_link;
    drops refused_peer = process.counters.rx_refused;
    drops forged = process.counters.rx_forged;
    drops bad_icrc = process.counters.rx_bad_icrc;
    drops not_rocev2 = process.counters.rx_malformed;
}

/// Returns the packets behind a gap, those that caused a NAK and those after them.
const fn out_of_sequence(qp: &QpSample) -> u64 {
    qp.counters.seq_naks_sent + qp.counters.dropped(DropReason::OutOfSequence)
}
