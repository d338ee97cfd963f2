//! Connections that the connection manager makes and ends.

use std::net::SocketAddr;
use std::time::Duration;

use super::board::{Board, End, Notes, other};
use super::objects::Objects;
use super::plan::{self, Ending};
use super::program::Program;
use super::waiting::{end_process, unless_ended};
use crate::broker::simulated::brokers;
use crate::cm::{CmChannel, CmEvent, CmEventKind, CmId, CmParam, ConnParam, PortSpace, RejReason};
use crate::sync::turn;
use crate::{QpState, QpType};

/// The port of the first connection.
const PORT: u16 = 7000;
/// Time in which an address has to be resolved.
const LIMIT: Duration = Duration::from_secs(2);
/// The cookie of all IDs.
const COOKIE: u64 = 5;

/// An end of a connection of the connection manager.
pub(super) struct Manager {
    channel: CmChannel,
    id: CmId,
    _listener: Option<CmId>,
}

/// Makes the connection of an end. Returns `None` if there is none, because it was rejected or the
/// process of the peer was killed.
pub(super) fn connect(program: &Program, objects: &Objects, end: End) -> Option<Manager> {
    let channel = CmChannel::new(&program.engine).expect("a channel");
    if end.1 == 0 {
        request(program, objects, end, channel)
    } else {
        accept(program, objects, end, channel)
    }
}

/// Requests the connection of the first end.
fn request(program: &Program, objects: &Objects, end: End, channel: CmChannel) -> Option<Manager> {
    let board = &program.board;
    let plan = &board.plan.connections[end.0];
    let is_there = || board.notes().listening.contains(&other(end));
    turn::until(None, || is_there() || board.is_dead(other(end)));
    let id = CmId::new(&channel, PortSpace::Tcp, QpType::Rc, COOKIE).expect("an ID");
    let to = address_of(board, other(end));
    unless_ended(board, end, id.resolve_addr(None, to, LIMIT), "a query")?;
    expect(board, end, &channel, CmEventKind::AddrResolved)?;
    unless_ended(board, end, id.resolve_route(), "a query")?;
    expect(board, end, &channel, CmEventKind::RouteResolved)?;
    objects.bring_by(board, end, &id, QpState::Init)?;
    unless_ended(board, end, id.connect(&param(objects, end)), "a request")?;
    let wanted = match plan.ending {
        Ending::Reject => CmEventKind::Rejected,
        _ => CmEventKind::ConnectResponse,
    };
    let event = expect(board, end, &channel, wanted)?;
    if wanted == CmEventKind::Rejected {
        board.mark("a request is rejected");
        return None;
    }
    check_data(board, end, &event);
    objects.bring_by(board, end, &id, QpState::Rtr)?;
    objects.bring_by(board, end, &id, QpState::Rts)?;
    unless_ended(board, end, id.establish(), "a reply")?;
    board.mark("a connection is accepted");
    Some(Manager {
        channel,
        id,
        _listener: None,
    })
}

/// Listens, and accepts or rejects the request of the peer.
fn accept(program: &Program, objects: &Objects, end: End, channel: CmChannel) -> Option<Manager> {
    let board = &program.board;
    let plan = &board.plan.connections[end.0];
    let listener = CmId::new(&channel, PortSpace::Tcp, QpType::Rc, COOKIE).expect("an ID");
    unless_ended(board, end, listener.bind(address_of(board, end)), "a port")?;
    unless_ended(board, end, listener.listen(4), "a port")?;
    board.notes().listening.insert(end);
    // A peer that was killed may not have requested anything, and no one is told.
    board.notes().waiting.insert(end);
    let event = expect(board, end, &channel, CmEventKind::ConnectRequest)?;
    board.notes().waiting.remove(&end);
    check_data(board, end, &event);
    let id = event.new_id.expect("an ID");
    if plan.ending == Ending::Reject {
        // The peer may have ended the request.
        let _ = id.reject(RejReason::Consumer, &[]);
        return None;
    }
    for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
        objects.bring_by(board, end, &id, state)?;
    }
    let accepted = id.accept(COOKIE, &param(objects, end));
    unless_ended(board, end, accepted, "an answer")?;
    expect(board, end, &channel, CmEventKind::Established)?;
    Some(Manager {
        channel,
        id,
        _listener: Some(listener),
    })
}

impl Manager {
    /// Ends the connection as the plan says: both ends are told. One that has failed does not wait
    /// for the other, which may not know.
    pub(super) fn disconnect(self, board: &Board, end: End) {
        let begins = match board.plan.connections[end.0].ending {
            Ending::Disconnect(first) => first == end.1 || board.has_failed(end),
            Ending::DisconnectBoth | Ending::Reject => true,
        };
        // The broker may have ended it in the name of a peer that was killed.
        let disconnect = || {
            let result = self.id.disconnect();
            unless_ended(board, end, result, "an end");
        };
        if begins {
            disconnect();
        }
        if expect(board, end, &self.channel, CmEventKind::Disconnected).is_some() {
            board.mark("a connection is disconnected");
        }
        if !begins {
            disconnect();
        }
    }
}

/// Waits for an event. Returns `None` if the connection has ended instead, because the process of
/// the peer was killed.
fn expect(board: &Board, end: End, channel: &CmChannel, kind: CmEventKind) -> Option<CmEvent> {
    board.notes().managing.insert(end);
    let event = channel.get_event().expect("an event");
    board.notes().managing.remove(&end);
    board.note(format!("{end:?} is told of {:?}", event.kind));
    if event.kind == kind {
        if kind == CmEventKind::Disconnected && board.is_dead(other(end)) {
            board.mark("a connection ends with the process of the peer");
        }
        return Some(event);
    }
    let ends = matches!(
        event.kind,
        CmEventKind::Rejected
            | CmEventKind::Unreachable
            | CmEventKind::ConnectError
            | CmEventKind::Disconnected
    );
    // A rejection was lost, and its sender is gone when the request is repeated.
    let is_lost = (event.kind, kind) == (CmEventKind::Unreachable, CmEventKind::Rejected)
        && board.plan.loss > 0
        && board.has_left(other(end));
    if board.is_ending(end) {
        end_process();
    }
    if !is_lost && (!ends || !board.is_ending(other(end))) {
        let (got, status) = (event.kind, event.status);
        board.complain(format!("{end:?}: {got:?} ({status}) instead of {kind:?}"));
    }
    board.mark("a process is killed while its peer connects");
    None
}

fn check_data(board: &Board, end: End, event: &CmEvent) {
    let data = match &event.param {
        CmParam::Conn(param) => param.private_data.get(..2),
        _ => None,
    };
    if data != Some(&data_of(other(end))[..]) {
        board.complain(format!("{end:?}: private data {data:?}"));
    }
}

fn data_of((connection, end): End) -> [u8; 2] {
    [connection, end].map(|byte| u8::try_from(byte).unwrap_or(0))
}

fn param(objects: &Objects, end: End) -> ConnParam {
    ConnParam {
        private_data: data_of(end).to_vec(),
        responder_resources: 4,
        initiator_depth: 4,
        retry_count: 7,
        rnr_retry_count: 7,
        qp_num: objects.side.qp.qp_num(),
        ..ConnParam::default()
    }
}

fn address_of(board: &Board, end: End) -> SocketAddr {
    let address = plan::address_of(board.process_of(end));
    let port = PORT + u16::try_from(end.0).unwrap_or(0);
    SocketAddr::new(brokers::address_of(address).ip(), port)
}

/// Returns true if an end waits for an event of the connection manager while the process of its
/// peer is dead. Requests are repeated for a minute.
fn is_left(board: &Board, notes: &Notes, end: End) -> bool {
    let is_dead = notes.dead.contains(&board.process_of(other(end)));
    is_dead && notes.managing.contains(&end)
}

/// Returns true if an end may wait for an event of the connection manager for longer than a thread
/// gets no processor: a message got lost, which is repeated after nine seconds. Or the program of
/// the peer does not look for the end of the connection, which is announced for a minute.
pub(super) fn may_wait_long(board: &Board, notes: &Notes, end: End) -> bool {
    let has_failed = |end| {
        notes
            .flows
            .get(&end)
            .is_some_and(|flow| flow.failed.is_some())
    };
    let is_unheard = board.plan.loss > 0 || has_failed(end);
    is_left(board, notes, end) || is_unheard && notes.managing.contains(&end)
}

/// Returns true if an end waits for an event of the connection manager that may not come: nothing
/// tells of the death of a process and its broker.
pub(super) fn may_wait(board: &Board, notes: &Notes, end: End) -> bool {
    is_left(board, notes, end) && notes.was_without_broker()
}
