//! Responses: queued in PSN order, coalesced, turned into packets.

use rocade_wire::{
    Aeth, AtomicAckEth, CreditCode, Msn, NakCode, Operation, OperationKind, Psn, Rkey, Syndrome,
};

use super::Responder;
use crate::completion::WcStatus;
use crate::cx::Cx;
use crate::failure::{Failure, RefusedRequest};
use crate::masked::{self, WideOperand};
use crate::memory::{AccessError, Accessor, Extent, Memory, PdTag, RemoteAccess};
use crate::outputs::{Fatal, Outputs};
use crate::peer::Peer;
use crate::transmit::{ACK_LEN, Head, Source, TxBuffer};

/// Most responses that wait for transmission. More would mean that duplicates arrive faster than
/// they can be answered.
pub(super) const MAX_QUEUED_REPLAYS: usize = 512;

/// A response to send.
#[derive(Clone, Copy, Debug)]
pub(super) enum Response {
    /// Positive acknowledgement up to and including `psn`.
    Ack { psn: Psn, msn: Msn },
    /// A congestion notification.
    Cnp,
    /// A NAK of any kind.
    Nak {
        psn: Psn,
        msn: Msn,
        syndrome: Syndrome,
    },
    /// The rest of a READ: `left` bytes from `va`. The next packet has `psn`.
    Read {
        psn: Psn,
        /// Protection domain of the key.
        pd: PdTag,
        rkey: Rkey,
        va: u64,
        left: u32,
        first: bool,
        msn: Msn,
        replay: bool,
    },
    /// The result of an atomic.
    Atomic {
        psn: Psn,
        original: u64,
        msn: Msn,
        replay: bool,
    },
    /// The result of a masked atomic on more than 8 bytes.
    Wide {
        psn: Psn,
        log_size: u8,
        original: WideOperand,
        msn: Msn,
        replay: bool,
    },
}

impl Response {
    pub(super) const fn is_new_resource(&self) -> bool {
        matches!(
            self,
            Self::Read { replay: false, .. }
                | Self::Atomic { replay: false, .. }
                | Self::Wide { replay: false, .. }
        )
    }

    /// Creates the response to an atomic. An ATOMIC WRITE and a FLUSH are answered like a READ of
    /// length 0.
    //= ETH-12 ETH-13
    pub(super) const fn of_atomic(
        psn: Psn,
        operation: Operation,
        original: u64,
        msn: Msn,
        replay: bool,
    ) -> Self {
        match operation.kind() {
            OperationKind::AtomicWrite | OperationKind::Flush => Self::Read {
                psn,
                pd: PdTag(0),
                rkey: Rkey::new(0),
                va: 0,
                left: 0,
                first: true,
                msn,
                replay,
            },
            OperationKind::Atomic
            | OperationKind::MaskedAtomic
            // They have no saved result.
            | OperationKind::Send
            | OperationKind::Write
            | OperationKind::Read
            | OperationKind::Disconnect
            | OperationKind::ReadResponse
            | OperationKind::Acknowledge
            | OperationKind::AtomicResponse
            | OperationKind::Cnp => Self::Atomic {
                psn,
                original,
                msn,
                replay,
            },
        }
    }

    /// Returns PSN and MSN of a positive ACK.
    pub(super) const fn as_ack(&self) -> Option<(Psn, Msn)> {
        let Self::Ack { psn, msn } = *self else {
            return None;
        };
        Some((psn, msn))
    }

    /// Returns the PSN after the last packet of a READ response.
    pub(super) const fn read_end(&self, peer: &Peer) -> Option<Psn> {
        let Self::Read { psn, left, .. } = *self else {
            return None;
        };
        Some(psn.add(peer.packets(left)))
    }
}

impl Responder {
    /// Schedules an ACK. It replaces a queued one, because one ACK covers all before it.
    //= RC-PSN-07
    pub(super) fn schedule_ack(&mut self, psn: Psn) {
        let msn = self.msn;
        if let Some(Response::Ack {
            psn: queued,
            msn: queued_msn,
        }) = self.queue.back_mut()
        {
            if psn.diff(*queued) > 0 {
                *queued = psn;
            }
            *queued_msn = msn;
        } else {
            self.queue.push_back(Response::Ack { psn, msn });
        }
    }

    /// Schedules an ACK of all that was received, because the last one was lost with the path that
    /// it had to take. After a NAK the peer repeats its request.
    pub(crate) fn repeat_ack(&mut self) {
        if !self.nak_outstanding {
            self.schedule_ack(self.epsn.sub(1));
        }
    }

    pub(super) fn schedule_nak(&mut self, psn: Psn, syndrome: Syndrome, out: &mut Outputs) {
        match syndrome {
            Syndrome::Nak(NakCode::PsnSequence) => out.counters.rare().seq_naks_sent += 1,
            Syndrome::RnrNak(_) => {
                out.counters.rare().rnr_naks_sent += 1;
                // A requester that received a NAK retries without an announcement of credits.
                self.announced_zero = false;
            }
            Syndrome::Nak(_) | Syndrome::Ack(_) | Syndrome::Reserved(_) => {
                out.counters.rare().fatal_naks_sent += 1;
            }
        }
        //= RC-RSP-21
        self.nak_outstanding = true;
        self.queue.push_back(Response::Nak {
            psn,
            msn: self.msn,
            syndrome,
        });
    }

    /// Schedules a congestion notification: packets of the peer were marked.
    pub(crate) fn queue_cnp(&mut self) {
        self.queue.push_back(Response::Cnp);
    }

    pub(super) fn schedule(&mut self, response: Response) {
        self.queue.push_back(response);
    }

    /// Returns the PSN of the positive ACK if that is the only queued response.
    pub(crate) fn lone_ack(&self) -> Option<Psn> {
        self.pending_ack()
            .filter(|_| self.queue.len() == 1)
            .map(|(psn, _)| psn)
    }

    /// Returns the positive ACK if that is the next response.
    pub(crate) fn pending_ack(&self) -> Option<(Psn, Msn)> {
        self.queue.front().and_then(Response::as_ack)
    }

    /// Returns the positive ACK that remains of the responses when they are discarded. Only
    /// congestion notifications, which the peer does not await, may be before it.
    pub(super) fn ack_to_keep(&self) -> Option<(Psn, Msn)> {
        let is_notification = |response: &&Response| matches!(response, Response::Cnp);
        let mut others = self.queue.iter().skip_while(is_notification);
        others.next().and_then(Response::as_ack)
    }

    /// Returns the last positive ACK among the responses.
    pub(crate) fn newest_ack(&self) -> Option<(Psn, Msn)> {
        self.queue.iter().rev().find_map(Response::as_ack)
    }

    /// Removes the ACK of [`Responder::lone_ack`] from the queue, and returns its packet.
    pub(crate) fn take_lone_ack(
        &mut self,
        peer: &Peer,
        out: &mut Outputs,
    ) -> Option<[u8; ACK_LEN]> {
        let (psn, msn) = self.pending_ack().filter(|_| self.queue.len() == 1)?;
        let credits = self.receives.credits();
        let head = ack_head(peer, psn, msn, Syndrome::Ack(credits));
        let packet = head.alone()?;
        self.note_credits_sent(credits);
        out.counters.traffic().acks_sent += 1;
        out.counters.traffic().tx_packets += 1;
        self.queue.pop_front();
        Some(packet)
    }

    /// Notes the credits of an ACK that was sent.
    #[inline]
    const fn note_credits_sent(&mut self, credits: CreditCode) {
        self.announced_zero = credits.code() == 0;
        self.has_unsent_credits = false;
    }

    /// Returns true if the next response is that of a READ.
    pub(crate) fn is_reading(&self) -> bool {
        matches!(self.queue.front(), Some(Response::Read { .. }))
    }

    #[inline]
    pub(crate) fn has_responses(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Returns true if there is space for one more replay.
    pub(super) fn may_replay(&self) -> bool {
        self.queue.len() < MAX_QUEUED_REPLAYS
    }

    /// Appends response packets to `tx` while they fit. A READ whose memory has become inaccessible
    /// is NAKed, and the error is fatal.
    pub(crate) fn poll_transmit<H: Memory>(
        &mut self,
        cx: &mut Cx<'_, H>,
        tx: &mut TxBuffer,
    ) -> Result<(), Fatal> {
        if self.queue.is_empty() {
            return Ok(());
        }
        //= RC-CRD-01
        let credits = self.receives.credits();
        //= RC-RSP-25
        while let Some(response) = self.queue.front().copied() {
            let done = match response {
                Response::Ack { psn, msn } => {
                    let syndrome = Syndrome::Ack(credits);
                    let sent = push_ack(cx.peer, psn, msn, syndrome, tx);
                    if sent {
                        self.note_credits_sent(credits);
                    }
                    cx.out.counters.traffic().acks_sent += u64::from(sent);
                    sent
                }
                Response::Nak { psn, msn, syndrome } => push_ack(cx.peer, psn, msn, syndrome, tx),
                Response::Cnp => {
                    let sent = push_without_payload(&cx.peer.cnp(), tx);
                    cx.out.counters.rare().cnps_sent += u64::from(sent);
                    sent
                }
                Response::Atomic {
                    psn, original, msn, ..
                } => push_atomic_ack(cx.peer, (psn, msn, credits), original, tx),
                Response::Wide {
                    psn,
                    log_size,
                    original,
                    msn,
                    ..
                } => push_wide_ack(cx.peer, (psn, msn, credits), (log_size, &original), tx),
                Response::Read { .. } => match push_read(cx, response, credits, tx) {
                    ReadPush::Full => false,
                    ReadPush::Done => true,
                    ReadPush::More { rest, packets } => {
                        cx.out.counters.traffic().tx_packets += packets;
                        self.queue[0] = rest;
                        continue;
                    }
                    ReadPush::Failed { replay: true } => {
                        //= RC-DUP-06
                        self.queue.pop_front();
                        continue;
                    }
                    ReadPush::Failed { replay: false } => {
                        let Response::Read { psn, .. } = response else {
                            return Err(Fatal);
                        };
                        return Err(self.fail_read(psn, cx.out));
                    }
                },
            };
            if !done {
                return Ok(());
            }
            cx.out.counters.traffic().tx_packets += 1;
            self.queue.pop_front();
        }
        Ok(())
    }

    /// Fails the READ whose response `psn`, which counted as sent, could not be read from memory.
    /// `has_failed` is true if the QP is already in ERR.
    pub(crate) fn fail_response(
        &mut self,
        psn: Psn,
        (replay, has_failed): (bool, bool),
        out: &mut Outputs,
    ) -> Result<(), Fatal> {
        if !replay && has_failed && self.nak_outstanding {
            // The event was raised. The NAK of the earlier packet replaces that of the later one.
            return Err(self.refuse_read(psn, out));
        }
        if !replay {
            return Err(self.fail_read(psn, out));
        }
        //= RC-DUP-06
        // The rest of that READ is dropped, too.
        if let Some(&Response::Read {
            psn: next,
            first: false,
            replay: true,
            ..
        }) = self.queue.front()
            && next.diff(psn) > 0
        {
            self.queue.pop_front();
        }
        Ok(())
    }

    /// Refuses a READ and raises the event for it.
    fn fail_read(&mut self, psn: Psn, out: &mut Outputs) -> Fatal {
        //= RC-ERR-C
        out.events.push(crate::event::QpEvent::AccessErr);
        out.op_counters.fail_response();
        let qpn = out.qp_num;
        out.events.explain(|| {
            Failure::Request(RefusedRequest {
                nak: NakCode::RemoteAccess,
                status: WcStatus::RemAccessErr,
                operation: Some(Operation::ReadRequest),
                target: None,
                payload_len: 0,
                path_mtu: 0,
                rights: self.attr.access,
                resources: (0, self.attr.max_dest_rd_atomic),
                receive: None,
                who: Accessor { pd: PdTag(0), qpn },
            })
        });
        self.refuse_read(psn, out)
    }

    /// Schedules the NAK in place of all other responses. It has the PSN of the response that it
    /// replaces.
    fn refuse_read(&mut self, psn: Psn, out: &mut Outputs) -> Fatal {
        self.queue.clear();
        self.schedule_nak(psn, Syndrome::Nak(NakCode::RemoteAccess), out);
        Fatal
    }
}

fn aeth_head(
    peer: &Peer,
    operation: Operation,
    psn: Psn,
    payload_len: usize,
    aeth: Option<Aeth>,
) -> Head {
    //= RC-ACK-07
    let mut head = peer.head(operation, psn, payload_len);
    if let Some(aeth) = aeth {
        head.push(&aeth.to_bytes());
    }
    head
}

pub(crate) fn push_without_payload(head: &Head, tx: &mut TxBuffer) -> bool {
    tx.fits(head.segment_len(0)) && tx.push(head, 0, |_| Ok::<(), ()>(())).is_ok()
}

fn ack_head(peer: &Peer, psn: Psn, msn: Msn, syndrome: Syndrome) -> Head {
    let aeth = Some(Aeth { syndrome, msn });
    aeth_head(peer, Operation::Acknowledge, psn, 0, aeth)
}

pub(crate) fn push_ack(
    peer: &Peer,
    psn: Psn,
    msn: Msn,
    syndrome: Syndrome,
    tx: &mut TxBuffer,
) -> bool {
    if peer.session.is_some() {
        return push_without_payload(&ack_head(peer, psn, msn, syndrome), tx);
    }
    let bth = peer.bth(Operation::Acknowledge, psn, 0);
    let aeth = Aeth { syndrome, msn }.to_bytes();
    let nothing = |_: &mut [u8]| Ok::<(), ()>(());
    tx.fits(ACK_LEN) && tx.push_parts((&bth, &aeth), 0, nothing).is_ok()
}

fn push_atomic_ack(
    peer: &Peer,
    (psn, msn, credits): (Psn, Msn, CreditCode),
    original: u64,
    tx: &mut TxBuffer,
) -> bool {
    let aeth = Some(Aeth {
        syndrome: Syndrome::Ack(credits),
        msn,
    });
    let mut head = aeth_head(peer, Operation::AtomicAcknowledge, psn, 0, aeth);
    head.push(&AtomicAckEth { original }.to_bytes());
    push_without_payload(&head, tx)
}

//= XAW-06
fn push_wide_ack(
    peer: &Peer,
    (psn, msn, credits): (Psn, Msn, CreditCode),
    (log_size, original): (u8, &WideOperand),
    tx: &mut TxBuffer,
) -> bool {
    let aeth = Aeth {
        syndrome: Syndrome::Ack(credits),
        msn,
    };
    let operation = Operation::WideAtomicAcknowledge;
    let len = masked::wire_len(log_size);
    let mut head = aeth_head(peer, operation, psn, len, Some(aeth));
    if let Some(opcode) = peer.framing.extension_opcode(operation) {
        head.bth.opcode = opcode;
    }
    let put = |payload: &mut [u8]| {
        masked::put_words(original, log_size, payload);
        Ok::<(), ()>(())
    };
    tx.fits(head.segment_len(len)) && tx.push(&head, len, put).is_ok()
}

enum ReadPush {
    /// The buffer is full.
    Full,
    /// The last packet was appended.
    Done,
    /// So many packets were appended, and this response remains.
    More { rest: Response, packets: u64 },
    /// The memory access failed.
    Failed { replay: bool },
}

fn push_read<H: Memory>(
    cx: &mut Cx<'_, H>,
    response: Response,
    credits: CreditCode,
    tx: &mut TxBuffer,
) -> ReadPush {
    let Response::Read {
        psn,
        pd,
        rkey,
        va,
        left,
        first,
        msn,
        replay,
    } = response
    else {
        return ReadPush::Done;
    };
    cx.who.pd = pd;
    let payload_len = left.min(cx.peer.pmtu_bytes());
    let last = payload_len == left;
    let operation = match (first, last) {
        (true, true) => Operation::ReadResponseOnly,
        (true, false) => Operation::ReadResponseFirst,
        (false, true) => Operation::ReadResponseLast,
        (false, false) => Operation::ReadResponseMiddle,
    };
    //= RC-ACK-04
    let aeth = (first || last).then_some(Aeth {
        syndrome: Syndrome::Ack(credits),
        msn,
    });
    let head = aeth_head(cx.peer, operation, psn, payload_len as usize, aeth);
    if !tx.fits(head.segment_len(payload_len as usize)) {
        return ReadPush::Full;
    }
    let source = Source::Remote {
        rkey,
        va,
        len: payload_len,
        replay,
    };
    // After the middle packets follows a last packet, which carries an AETH and may be shorter.
    let middles = if first || last {
        1
    } else {
        (left - 1) / payload_len
    };
    let pushed = push_read_data(cx, &head, source, middles, tx);
    if let (Ok(packets), false) = (&pushed, replay) {
        cx.out
            .op_counters
            .note_response(packets * payload_len, last);
    }
    match (pushed, last) {
        (Err(_), _) => ReadPush::Failed { replay },
        (Ok(_), true) => ReadPush::Done,
        (Ok(packets), false) => ReadPush::More {
            rest: Response::Read {
                psn: psn.add(packets),
                pd,
                rkey,
                va: va.wrapping_add(u64::from(packets * payload_len)),
                left: left - packets * payload_len,
                first: false,
                msn,
                replay,
            },
            packets: u64::from(packets),
        },
    }
}

/// Appends at most `most` READ responses with the same head and consecutive payloads in memory.
/// Returns how many.
///
/// There is space for the first.
#[inline]
fn push_read_data<H: Memory>(
    cx: &Cx<'_, H>,
    head: &Head,
    first: Source,
    most: u32,
    tx: &mut TxBuffer,
) -> Result<u32, AccessError> {
    let Source::Remote { rkey, va, len, .. } = first else {
        return Err(AccessError::BadKey);
    };
    if tx.defers(len as usize) {
        let packets = if most == 1 {
            1
        } else {
            let space = tx.space(head.segment_len(len as usize));
            u32::try_from(space).unwrap_or(u32::MAX).clamp(1, most)
        };
        let total = u64::from(packets * len);
        let access = RemoteAccess::Read;
        if cx.host.check_remote(cx.who, rkey, va, total, access)? == Extent::One {
            match packets {
                1 => tx.push_deferred(head, first),
                _ => tx.push_deferred_batch(head, first, packets, |_, _| {}),
            }
            return Ok(packets);
        }
    }
    tx.push(head, len as usize, |payload| {
        if payload.is_empty() {
            Ok(())
        } else {
            cx.host.read_remote(cx.who, rkey, va, payload)
        }
    })
    .map(|()| 1)
}
