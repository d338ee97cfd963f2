//! Events in the traced processes, as the printer, the summary and the timeline need it.

use rocade_emulator::trace::Record;

use super::names;

/// A queue pair of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct QpId {
    pub(super) pid: u32,
    pub(super) qpn: u32,
}

/// The time and the thread of an event. The thread is 0 for what belongs to none.
#[derive(Debug, Clone, Copy)]
pub(super) struct At {
    pub(super) pid: u32,
    pub(super) thread: u32,
    pub(super) time_ns: u64,
}

/// A work request, as posted.
#[derive(Debug, Clone)]
pub(super) struct Request {
    pub(super) wr_id: u64,
    /// `None` for a receive.
    pub(super) opcode: Option<u32>,
    pub(super) len: u32,
    pub(super) flags: u32,
    pub(super) text: String,
}

impl Request {
    /// Reads a posted send.
    pub(super) fn send(record: &Record) -> Self {
        let opcode = record.low(0);
        let (flags, sges, len) = (record.high(1), record.low(1), record.high(3));
        let wr_id = record.field(2);
        let mut text = format!(
            "{{wr_id={wr_id:#x}, {}, {len} bytes",
            names::operation(opcode)
        );
        if names::has_immediate(opcode) {
            text += &format!(", imm={:#x}", u32::from_be(record.low(3)));
        }
        if sges > 0 {
            let (addr, lkey) = (record.field(4), record.high(5));
            let way = if names::takes_data(opcode) {
                "to"
            } else {
                "from"
            };
            text += &format!(", {way} {addr:#x} lkey={lkey:#x}");
        }
        if sges > 1 {
            text += &format!(" (+{} SGEs)", sges - 1);
        }
        let (remote, rkey) = (record.field(6), record.low(5));
        match (remote, rkey) {
            (0, 0) => {}
            (remote, 0) => text += &format!(", to {remote:#x}"),
            (remote, rkey) => text += &format!(", at {remote:#x} rkey={rkey:#x}"),
        }
        text += &record.text;
        text += &names::send_flags(flags);
        text.push('}');
        Self {
            wr_id,
            opcode: Some(opcode),
            len,
            flags,
            text,
        }
    }

    /// Reads a posted receive.
    pub(super) fn receive(record: &Record) -> Self {
        let (wr_id, addr, lkey) = (record.field(2), record.field(4), record.high(5));
        let (sges, len) = (record.low(0), record.low(3));
        let mut text = format!("{{wr_id={wr_id:#x}, {len} bytes");
        if sges > 0 {
            text += &format!(", at {addr:#x} lkey={lkey:#x}");
        }
        if sges > 1 {
            text += &format!(" (+{} SGEs)", sges - 1);
        }
        text.push('}');
        Self {
            wr_id,
            opcode: None,
            len,
            flags: 0,
            text,
        }
    }
}

/// Durations of the parts of a work request, in nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Timing {
    pub(super) posted_ns: u64,
    /// From post to completion seen.
    pub(super) total: u64,
    /// From post to the first packet.
    pub(super) queue: u64,
    /// From the first to the last packet of the request.
    pub(super) send: u64,
    /// Waits after RNR NAKs, and their number.
    pub(super) rnr: u64,
    pub(super) rnr_naks: u32,
    /// Waits before other retransmissions, and their number.
    pub(super) retransmission: u64,
    pub(super) retransmissions: u32,
    /// From the last packet sent to the answer.
    pub(super) answer: u64,
    /// The parts of `answer` in which the packet, and then its answer, were under way, if the peer
    /// is traced.
    pub(super) wire: Option<(u64, u64)>,
    /// From the answer, or the arrived message, to the poll.
    pub(super) poll: u64,
}

/// A polled completion.
#[derive(Debug, Clone)]
pub(super) struct Completion {
    pub(super) qp: QpId,
    pub(super) cq: u64,
    pub(super) wr_id: u64,
    pub(super) status: u32,
    pub(super) opcode: u32,
    pub(super) byte_len: u32,
    pub(super) vendor_err: u32,
    pub(super) empty_polls: u32,
    pub(super) is_experimental: bool,
    /// The sends of the QP that are posted and not complete.
    pub(super) in_flight: usize,
    /// The unsignaled sends before its own, which have ended with it.
    pub(super) unsignaled: Vec<(Request, Timing)>,
    /// The request, if its post was seen.
    pub(super) request: Option<(Request, Timing)>,
}

impl Completion {
    /// Returns the name of the verb that polled it.
    pub(super) const fn verb(&self) -> &'static str {
        if self.is_experimental {
            "ibv_exp_poll_cq"
        } else {
            "ibv_poll_cq"
        }
    }
}

/// A packet that matters: it was refused, repeated or lost.
#[derive(Debug, Clone)]
pub(super) struct Incident {
    pub(super) qp: QpId,
    pub(super) text: String,
}

/// One packet.
#[derive(Debug, Clone)]
pub(super) struct PacketSeen {
    pub(super) qp: QpId,
    pub(super) remote_qpn: u32,
    pub(super) received: bool,
    pub(super) opcode: u32,
    pub(super) psn: u32,
    pub(super) len: u32,
    /// The number of the arrow from its sender, if both ends are traced.
    pub(super) flow: Option<u64>,
    /// The requests of the QP that are posted and not complete.
    pub(super) in_flight: usize,
    /// Packets that are sent and not acknowledged.
    pub(super) window: u32,
}

/// A call that has returned.
#[derive(Debug, Clone)]
pub(super) struct Call {
    pub(super) begin_ns: u64,
    pub(super) end_ns: u64,
    /// The calls of the thread that it is within.
    pub(super) depth: usize,
    pub(super) name: String,
    pub(super) arguments: String,
    pub(super) failed: bool,
    pub(super) errno: u32,
    pub(super) result: String,
}

impl Call {
    /// Returns how long it took, in nanoseconds.
    pub(super) fn took(&self) -> u64 {
        self.end_ns.saturating_sub(self.begin_ns)
    }
}

/// Kind of an event, with its facts.
#[derive(Debug, Clone)]
pub(super) enum What {
    Process(String),
    Call(Call),
    Post {
        call: Call,
        qpn: u32,
        requests: Vec<Request>,
    },
    Completion(Completion),
    Incident(Incident),
    Packet(PacketSeen),
    /// Polls that found nothing.
    EmptyPolls(u64),
}

/// An event and its time.
#[derive(Debug, Clone)]
pub(super) struct Event {
    pub(super) at: At,
    pub(super) what: What,
}

#[cfg(test)]
mod tests {
    use rocade_emulator::trace::{Kind, MAX_FIELDS};

    use super::*;

    /// Returns the text of a request of 8 bytes at 0x1000, for 0x2000 of the peer.
    fn text_of(opcode: u64) -> String {
        let mut fields = [0; MAX_FIELDS];
        let posted = [
            0x11 << 32 | opcode,
            2 << 32 | 1,
            5,
            8 << 32,
            0x1000,
            0xa << 32 | 0xb,
            0x2000,
        ];
        fields[..posted.len()].copy_from_slice(&posted);
        let text = String::new();
        let record = Record {
            kind: Kind::PostSend,
            time_ns: 1,
            thread: 1,
            fields,
            text,
        };
        Request::send(&record).text
    }

    #[test]
    fn the_local_buffer_of_a_request_is_its_source_or_its_destination() {
        let expected = "{wr_id=0x5, RDMA_WRITE, 8 bytes, from 0x1000 lkey=0xa, at 0x2000 rkey=0xb, \
                        SIGNALED}";
        assert_eq!(text_of(0), expected);
        let to = expected.replace("from", "to");
        assert_eq!(text_of(4), to.replace("WRITE", "READ"));
        for (opcode, name) in [
            (5, "ATOMIC_CMP_AND_SWP"),
            (6, "ATOMIC_FETCH_AND_ADD"),
            (0x63, "EXT_MASKED_ATOMIC_CMP_AND_SWP"),
            (0x64, "EXT_MASKED_ATOMIC_FETCH_AND_ADD"),
        ] {
            assert_eq!(text_of(opcode), to.replace("RDMA_WRITE", name));
        }
        // An atomic WRITE sends what the buffer has.
        let write = expected.replace("RDMA_WRITE", "ATOMIC_WRITE");
        assert_eq!(text_of(15), write);
    }
}
