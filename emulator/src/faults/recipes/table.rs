//! The recipes.
//!
//! Each has the behaviour of hardware that it imitates, and the fault in programs that it finds. A
//! recipe for a peer is given to the peer's process, because rules apply where they are.

use super::{Parameter, Recipe};

const fn parameter(
    name: &'static str,
    default: Option<&'static str>,
    meaning: &'static str,
) -> Parameter {
    Parameter {
        name,
        default,
        meaning,
    }
}

/// A parameter with a default.
const fn with(name: &'static str, default: &'static str, meaning: &'static str) -> Parameter {
    parameter(name, Some(default), meaning)
}

/// `at=`, `for=`, `every=` and `times=` without defaults.
const AT: Parameter = parameter("at", None, "time of the beginning (0s)");
const FOR: Parameter = parameter("for", None, "duration (no end)");
const EVERY: Parameter = parameter("every", None, "time until it begins again (once)");
const TIMES: Parameter = parameter("times", None, "number of beginnings, with every=");
const DEV: Parameter = parameter("dev", None, "name of the device (all)");
const QPN: Parameter = parameter("qpn", None, "number of the QP (all)");
const PORT: Parameter = parameter("port", None, "number of the port (all)");
const SEED: Parameter = parameter("seed", None, "seed of the probability");
const NTH: &str = "position, or first and last one, e.g. 3..5";

/// All recipes, by name.
pub(super) const RECIPES: &[Recipe] = &[
    Recipe {
        name: "bit-errors",
        hardware: "A dirty optic or a bad cable flips bits. The receiver drops such a packet by \
                   its ICRC, and long packets are hit more often.",
        finds: "Timeouts that only suit small messages, and programs that take a slow link for a \
                dead one.",
        parameters: &[
            with("ber", "1e-7", "bit error rate"),
            AT,
            FOR,
            EVERY,
            TIMES,
            SEED,
        ],
        rules: &["corrupt [ber] [seed] [at] [for] [every] [times]"],
        ends_process: false,
    },
    Recipe {
        name: "cable-pull",
        hardware: "A cable is pulled: IBV_EVENT_PORT_ERR, the port is down, and RC retries until \
                   they are exhausted or the cable is back.",
        finds: "Programs that do not read asynchronous events, and failover that never runs.",
        parameters: &[with("at", "2s", "time of the beginning"), FOR, DEV, PORT],
        rules: &["port-down [dev] [port] [at] [for]"],
        ends_process: false,
    },
    Recipe {
        name: "congestion",
        hardware: "A switch whose queue grows marks packets (ECN CE), and the receiver sends \
                   CNPs.",
        finds: "Measurements and schedulers that expect a constant data rate.",
        parameters: &[
            with("p", "10%", "probability of a mark"),
            AT,
            FOR,
            EVERY,
            TIMES,
            SEED,
        ],
        rules: &["ecn [p] [seed] [at] [for] [every] [times]"],
        ends_process: false,
    },
    Recipe {
        name: "connect-timeout",
        hardware: "ARP or the route to the peer fails for a moment, so the connection manager \
                   reports RDMA_CM_EVENT_ADDR_ERROR or the call ETIMEDOUT.",
        finds: "Programs that try to connect only once, or leak the rdma_cm_id of a failed try.",
        parameters: &[with("nth", "1", NTH), AT, FOR, EVERY, TIMES],
        rules: &["fail verb=resolve_addr errno=ETIMEDOUT [nth] [at] [for] [every] [times]"],
        ends_process: false,
    },
    Recipe {
        name: "cq-overrun",
        hardware: "More completions than a CQ has entries: the HCA stops the CQ, raises \
                   IBV_EVENT_CQ_ERR, and its QPs go to ERR.",
        finds: "Programs that size a CQ too small, or do not read asynchronous events.",
        parameters: &[
            with("nth", "100", "the completion"),
            DEV,
            QPN,
            AT,
            FOR,
            EVERY,
            TIMES,
        ],
        rules: &["overrun [dev] [qpn] [nth] [at] [for] [every] [times]"],
        ends_process: false,
    },
    Recipe {
        name: "gid-change",
        hardware: "The address of the interface changes (DHCP, failover): IBV_EVENT_GID_CHANGE, and \
                   the entry of the GID table is another one.",
        finds: "GIDs and GID indexes that are read only once.",
        parameters: &[
            with("to", "192.0.2.9", "the new address"),
            with("index", "0", "index of the GID"),
            with("at", "2s", "time of the beginning"),
            FOR,
            DEV,
            PORT,
        ],
        rules: &["gid-change [index] [to] [dev] [port] [at] [for]"],
        ends_process: false,
    },
    Recipe {
        name: "half-open",
        hardware: "A peer whose way back is broken, by one fibre of two or a wrong filter: it \
                   receives everything, and no answer arrives.",
        finds: "Heartbeats that only test sending, and two nodes that disagree about who is \
                alive.",
        parameters: &[with("at", "1s", "time of the beginning"), FOR, EVERY, TIMES],
        rules: &["mute [at] [for] [every] [times]"],
        ends_process: false,
    },
    Recipe {
        name: "incast",
        hardware: "Many senders share one link of a switch. Its queue fills, packets wait, and \
                   what does not fit is lost.",
        finds: "Collective operations and storage clients whose timeouts expire under load.",
        parameters: &[
            with("rate", "1gbit", "data rate of the link"),
            with("queue", "64K", "length of its queue in bytes"),
            with("latency", "50us", "time on the link"),
            AT,
            FOR,
            EVERY,
            TIMES,
        ],
        rules: &["link [rate] [latency] [queue] [at] [for] [every] [times]"],
        ends_process: false,
    },
    Recipe {
        name: "jitter",
        hardware: "Interrupt moderation and a busy host report completions late, and those of \
                   different QPs in another order.",
        finds: "Programs that expect an order between QPs, or a completion before an answer.",
        parameters: &[
            with("by", "200us", "longest delay"),
            DEV,
            QPN,
            AT,
            FOR,
            EVERY,
            TIMES,
        ],
        rules: &["shuffle [by] [dev] [qpn] [at] [for] [every] [times]"],
        ends_process: false,
    },
    Recipe {
        name: "lossy-1pct",
        hardware: "RoCE without priority flow control (PFC) loses packets under load. Go-back-N \
                   makes one loss cost many packets.",
        finds: "Timeouts that are too short, and retry_cnt = 0.",
        parameters: &[
            with("p", "1%", "probability of a loss"),
            AT,
            FOR,
            EVERY,
            TIMES,
            SEED,
        ],
        rules: &["drop [p] [seed] [at] [for] [every] [times]"],
        ends_process: false,
    },
    Recipe {
        name: "memlock",
        hardware: "The kernel pins at most RLIMIT_MEMLOCK, so ibv_reg_mr returns ENOMEM in a \
                   container with the usual limit.",
        finds: "Programs that do not check ibv_reg_mr, or do not name the limit in their error.",
        parameters: &[
            with("limit", "64K", "bytes of registered pages"),
            DEV,
            AT,
            FOR,
            EVERY,
            TIMES,
        ],
        rules: &["limit memlock={limit} [dev] [at] [for] [every] [times]"],
        ends_process: false,
    },
    Recipe {
        name: "mtu-blackhole",
        hardware: "A switch with a smaller MTU than the ports drops long packets without a \
                   message, so connecting works and large messages do not.",
        finds: "Programs that take a connection for a proof that data pass.",
        parameters: &[
            with("size", "1501", "shortest IP packet that is lost, in bytes"),
            AT,
            FOR,
            EVERY,
            TIMES,
        ],
        rules: &["drop size={size}.. [at] [for] [every] [times]"],
        ends_process: false,
    },
    Recipe {
        name: "nic-reset",
        hardware: "Firmware resets or the device is unplugged: IBV_EVENT_DEVICE_FATAL, calls fail \
                   with EIO, and the device comes back as a new one.",
        finds: "Programs that keep the old context, wait for completions of a dead device, or \
                cannot destroy its objects.",
        parameters: &[
            with("at", "2s", "time of the beginning"),
            with("for", "1s", "time until the device is back"),
            EVERY,
            TIMES,
            DEV,
        ],
        rules: &["device-remove [dev] [at] [for] [every] [times]"],
        ends_process: false,
    },
    Recipe {
        name: "out-of-mr",
        hardware: "The table of memory keys is full, so ibv_reg_mr returns ENOMEM.",
        finds: "Registration caches that never evict, and errors that surface as a crash later.",
        parameters: &[
            with("max", "8", "number of memory regions"),
            DEV,
            AT,
            FOR,
            EVERY,
            TIMES,
        ],
        rules: &["limit max_mr={max} [dev] [at] [for] [every] [times]"],
        ends_process: false,
    },
    Recipe {
        name: "out-of-qp",
        hardware: "The HCA has no further QP, so ibv_create_qp returns ENOMEM.",
        finds: "Servers that stop to listen after one failed accept, or leak QPs when they \
                reconnect.",
        parameters: &[
            with("max", "4", "number of QPs"),
            DEV,
            AT,
            FOR,
            EVERY,
            TIMES,
        ],
        rules: &["limit max_qp={max} [dev] [at] [for] [every] [times]"],
        ends_process: false,
    },
    Recipe {
        name: "peer-crash",
        hardware: "A process dies without a farewell (SIGKILL, out of memory). Its peer learns \
                   it from a rejected packet or from exhausted retries.",
        finds: "Programs that wait for a peer without a limit.",
        parameters: &[with("at", "2s", "time of the end")],
        rules: &["kill [at]"],
        ends_process: true,
    },
    Recipe {
        name: "peer-hang",
        hardware: "A process stands still (SIGSTOP, a debugger, swapping). A hardware NIC goes \
                   on to acknowledge for it, but no message is answered.",
        finds: "Requests without a time limit.",
        parameters: &[with("at", "2s", "time of the stop")],
        rules: &["stop [at]"],
        ends_process: true,
    },
    Recipe {
        name: "port-flap",
        hardware: "A bad transceiver: the port goes down and up again and again \
                   (IBV_EVENT_PORT_ERR, IBV_EVENT_PORT_ACTIVE).",
        finds: "Failover that reacts to each event, and recovery that is not finished when the \
                next failure comes.",
        parameters: &[
            with("at", "2s", "time of the beginning"),
            with("for", "500ms", "duration"),
            with("every", "5s", "time until it begins again"),
            with("times", "3", "number of beginnings"),
            DEV,
            PORT,
        ],
        rules: &["port-down [dev] [port] [at] [for] [every] [times]"],
        ends_process: false,
    },
    Recipe {
        name: "qp-error-mid-transfer",
        hardware: "A QP goes to ERR between two packets of a message. Its requests are flushed, \
                   and the peer has the beginning of the data.",
        finds: "Recovery that forgets flushed requests, repeats what has arrived, or hands out \
                half a buffer.",
        parameters: &[
            with("after", "64K", "bytes that the QP sends before"),
            with(
                "nth",
                "1",
                "position among the failures, e.g. 1..3 for three",
            ),
            DEV,
            QPN,
            AT,
            FOR,
            EVERY,
            TIMES,
        ],
        rules: &["qp-error [after] [dev] [qpn] [nth] [at] [for] [every] [times]"],
        ends_process: false,
    },
    Recipe {
        name: "reordering-paths",
        hardware: "Adaptive routing sprays packets over paths of different length. A NIC without \
                   out-of-order support takes that for losses.",
        finds: "Programs that poll the last byte of a WRITE and expect those before it.",
        parameters: &[
            with("paths", "4", "number of paths"),
            with("by", "20us", "additional delay of each"),
            AT,
            FOR,
            EVERY,
            TIMES,
            SEED,
        ],
        rules: &["spray [paths] [by] [seed] [at] [for] [every] [times]"],
        ends_process: false,
    },
    Recipe {
        name: "retries-exhausted",
        hardware: "The peer or the path is gone for longer than timeout and retry_cnt allow: \
                   IBV_WC_RETRY_EXC_ERR, and the QP goes to ERR.",
        finds: "Recovery that does not reset or replace the QP, and memory that is used again \
                before all requests are flushed.",
        parameters: &[
            with("nth", "100", "the completion"),
            DEV,
            QPN,
            AT,
            FOR,
            EVERY,
            TIMES,
        ],
        rules: &["complete status=RETRY_EXC_ERR [dev] [qpn] [nth] [at] [for] [every] [times]"],
        ends_process: false,
    },
    Recipe {
        name: "rnr-storm",
        hardware: "A receiver posts receives too late, again and again. Each message costs an \
                   RNR NAK and a wait of min_rnr_timer.",
        finds: "rnr_retry below 7 without a way to go on, and flow control by hope.",
        parameters: &[
            with("for", "200ms", "duration"),
            with("every", "1s", "time until it begins again"),
            with("times", "5", "number of beginnings"),
            DEV,
            QPN,
            AT,
        ],
        rules: &["rnr [dev] [qpn] [at] [for] [every] [times]"],
        ends_process: false,
    },
    Recipe {
        name: "send-queue-full",
        hardware: "ibv_post_send returns ENOMEM because the send queue is full, which depends on \
                   when completions are polled.",
        finds: "Programs that lose the request, or poll only after a successful post.",
        parameters: &[
            with("p", "1%", "probability of a failure"),
            DEV,
            AT,
            FOR,
            EVERY,
            TIMES,
            SEED,
        ],
        rules: &["fail verb=post_send errno=ENOMEM [p] [seed] [dev] [at] [for] [every] [times]"],
        ends_process: false,
    },
    Recipe {
        name: "slow-peer",
        hardware: "An overloaded host answers late: ACKs and READ responses wait.",
        finds: "Windows that are too small, and timeouts near the round-trip time.",
        parameters: &[
            with("by", "20ms", "delay of each response"),
            AT,
            FOR,
            EVERY,
            TIMES,
        ],
        rules: &["delay [by] opcode=RESPONSE [at] [for] [every] [times]"],
        ends_process: false,
    },
    Recipe {
        name: "switch-reboot",
        hardware: "A switch on the way restarts: no packet passes, while the ports of both hosts \
                   stay up.",
        finds: "Programs that only trust port events, and QPs whose retries end before the \
                network is back.",
        parameters: &[
            with("at", "1s", "time of the beginning"),
            with("for", "10s", "duration"),
            EVERY,
            TIMES,
        ],
        rules: &["partition [at] [for] [every] [times]"],
        ends_process: false,
    },
];
