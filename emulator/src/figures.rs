//! The figures of who drives, how much at a time, and who waits how long, in one place, with what has to hold between them.
//!
//! Times are in nanoseconds. Those at which what a QP holds back leaves are the transport's
//! ([`HOLD_NS`], [`WAIT_NS`]).

use rocade_transport::{ANSWER_NS, HOLD_NS, MIN_ACK_TIMEOUT_NS, WAIT_NS};

// The thread that polls.

/// How long a poller is patient before it lets others have its CPU, and the acknowledgements go that wait for the
/// application's answer.
pub(crate) const PATIENCE_NS: u64 = 15_000;
/// A poll in vain looks at the clock once in so many times.
pub(crate) const CLOCK_TURN: u64 = 4;
/// A poll in vain this long ago goes on: the thread that woke up may have interrupted it.
pub(crate) const FRESH_NS: u64 = 3_000;

/// A yield that takes so long shows that the processors are taken: then pollers sleep.
pub(crate) const TAKEN_NS: u64 = 100_000;
/// For so long at first, before a yield shows again whether they are; doubles each time that they are: 3.2 s.
pub(crate) const TAKEN_FOR_NS: u64 = 100_000_000;
pub(crate) const MAX_TAKEN_DOUBLINGS: u32 = 5;
/// And no longer where the system has had idle processors for so long, each time it was asked.
pub(crate) const FREE_NS: u64 = 10_000_000;
/// How often pollers ask the system for that: less often than they sleep.
pub(crate) const FREE_TURN_NS: u64 = 1_000_000;
/// How long a poller is patient before it sleeps then.
pub(crate) const CROWDED_PATIENCE_NS: u64 = 1_000;
/// How long a poller sleeps at most, at first; doubles each time that nothing has come: 1 ms.
pub(crate) const FIRST_SLEEP_NS: u64 = 125_000;
pub(crate) const SLEEP_DOUBLINGS: u32 = 3;
/// The same where packets of the process wait for room.
pub(crate) const ROOM_SLEEP_NS: u64 = 100_000;
/// Sleeps in a row that end at once and for nothing, before the poller yields instead.
pub(crate) const HOLLOW_SLEEPS: u32 = 3;

/// What a poll of shared memory counts that finds something, where one in vain counts 1.
pub(crate) const BUSY_POLL: u64 = 8;
/// With shared memory in use the sockets have their turn after so many polls of it: every few
/// microseconds.
pub(crate) const POLLED_SOCKET_TURN: u64 = 64;

/// How long a CQ that is to shrink waits at most for posts to leave that found no way yet. Asking the broker for one takes
/// less than a millisecond where the machine is idle.
pub(crate) const LEAVE_NS: u64 = 500_000_000;

/// Queue pairs that one turn wakes at most, where each wakes the next: others want their turn, too.
pub(crate) const MAX_CHAIN: usize = 256;

// The thread that waits for an event of the connection manager.

/// How long it looks after the sockets itself.
pub(crate) const ATTEND_NS: u64 = 2_000_000;
/// Awakenings by packets that bring it no event, before it leaves them to the background thread.
pub(crate) const ATTEND_VAIN: u32 = 4;

// The background thread: whether it steps back for the application.

/// How long the thread steps back at first; doubles each time that was right.
pub(crate) const STEP_BACK_NS: u64 = 10_000;
/// Doublings at most while the application is seen polling each time: 1.3 ms.
pub(crate) const STEP_BACK_DOUBLINGS: u32 = 7;
/// The same where it has polled, but perhaps does not get the processor all the time: 320 µs.
pub(crate) const STEP_BACK_DOUBLINGS_UNSEEN: u32 = 5;
/// Awakenings for which the application is not waited for, after it was in vain: at first, and at
/// most.
pub(crate) const FIRST_DOUBT: u32 = 16;
pub(crate) const MAX_DOUBT: u32 = 4_096;
/// How often in a row the application may be waited for that sends, but does not poll.
pub(crate) const MAX_SENDING: u32 = 16;

// The background thread: how long it looks for the next packets.

/// Without packets.
pub(crate) const LINGER_NS: u64 = 40_000;
/// After so long with packets all the time, everything else has its turn.
pub(crate) const TURN_NS: u64 = 400_000;
/// With shared memory in use the sockets have their turn after so many looks.
pub(crate) const SOCKET_TURN: u32 = 32;
/// After looking in vain so often, it is left alone 2^n times.
pub(crate) const VAIN_DOUBLINGS: u32 = 10;
/// An idle system counts as idle for so long, a busy one as busy.
pub(crate) const IDLE_NS: u64 = 1_000_000;
pub(crate) const BUSY_NS: u64 = 100_000;

// The background thread: one turn.

/// How often to receive from the channels before it is the turn of sockets and timers.
pub(crate) const SHARED_ROUNDS: usize = 64;
/// The same for a socket: looks in vain count too.
pub(crate) const SOCKET_ROUNDS: usize = 128;
/// So many packets at a time are taken for a stream.
pub(crate) const STREAM_PACKETS: u64 = 8;
/// How often to look for the next packets of a stream before sleeping: for some 5 µs.
pub(crate) const STREAM_LOOKS: u32 = 200;
/// The same for a socket, at which it takes longer to look: for some 10 µs.
pub(crate) const STREAM_SOCKET_LOOKS: u32 = 40;
/// How often to look for packets where the system does not let the thread wait for them.
pub(crate) const BLIND_NS: u64 = 1_000_000;

// One call that receives.

/// Batches from a socket at most, so that acknowledgements do not wait too long.
pub(crate) const MAX_BATCHES: usize = 12;
/// A batch of so many bytes is part of a stream, unless its packets are shorter than [`BULK_SEGMENT`]:
/// after a batch of small messages the application has to post new receives. A peer that is as fast
/// as we are would otherwise use up all that are posted, and then wait for the RNR timer.
pub(crate) const LONG_BATCH: usize = 4_096;
pub(crate) const BULK_SEGMENT: usize = 512;
/// How long to look for the rest of a message before the part of it is acknowledged.
pub(crate) const MORE_NS: u64 = 12_000;
/// Runs from a channel at most, so that one peer cannot hold a poller.
pub(crate) const MAX_RUNS: usize = 16;
/// After so many bytes for a QP out of a channel it is drained, within a call too: its peer goes on sending while we
/// receive the rest.
pub(crate) const DRAIN_BYTES: usize = 64 << 10;
/// How often to receive from a channel for what its peer has promised: a ring that is full, nearly.
pub(crate) const PROMISED_ROUNDS: usize = 64;
/// How often to receive from a socket before a run that comes after what is in it: more than fits.
pub(crate) const MAX_UDP_BEFORE: usize = 1 << 14;

// One call that sends.

/// An acknowledgement waits for so many bytes of an answer at most: a slow peer needs milliseconds for
/// more, and would take it for lost.
pub(crate) const LONG_ANSWER: usize = 128 << 10;
/// A run of so many bytes takes long enough to look at the clock again.
pub(crate) const LONG_RUN: usize = 8_192;
/// How often to try to send what a QP owes that ends, where a ring or a socket is full, and the pause between two tries.
pub(crate) const LAST_TRIES: usize = 20;
pub(crate) const LAST_PAUSE_NS: u64 = 1_000_000;

// The agenda.

/// QPs that may hold acknowledgements at a time: the background thread looks at each of them. In a
/// process with more conversations there is always something else to send.
pub(crate) const MAX_HOLDING: usize = 64;

/// How long the background thread leaves alone what there was no room for: the application may be at it.
pub(crate) const RETRY_NS: u64 = 500_000;

/// The longest that the background thread is blind to packets.
const MAX_BACK_NS: u64 = STEP_BACK_NS << STEP_BACK_DOUBLINGS;

// A poller that was interrupted is not idle, and one that is idle polls at the clock often enough to be seen.
const _: () = assert!(FRESH_NS < PATIENCE_NS);
// The processors are taken by somebody who does not only look and go, and who is there for more than one turn.
const _: () = assert!(2 * PATIENCE_NS < TAKEN_NS && TAKEN_NS < FREE_NS && FREE_NS < TAKEN_FOR_NS);
// A program that polls for other things, too, is not kept from them for long.
const _: () = assert!(CROWDED_PATIENCE_NS < PATIENCE_NS && ROOM_SLEEP_NS <= FIRST_SLEEP_NS);
const _: () = assert!(FIRST_SLEEP_NS << SLEEP_DOUBLINGS <= 1_000_000);
// Polls of a stream go to the sockets as well, but not each of them.
const _: () = assert!(1 < BUSY_POLL && BUSY_POLL < POLLED_SOCKET_TURN);
// The rest of a message is waited for, but not for longer than others wait for the processor.
const _: () = assert!(BULK_SEGMENT < LONG_BATCH && MORE_NS < PATIENCE_NS);
// What is answered at length is acknowledged before the sender's smallest window is spent.
const _: () = assert!(LONG_RUN < DRAIN_BYTES && DRAIN_BYTES < LONG_ANSWER);
// Who steps back gives a poll time to come by; and it is back before long where the poller loses the processor.
const _: () = assert!(FRESH_NS < STEP_BACK_NS && STEP_BACK_DOUBLINGS_UNSEEN < STEP_BACK_DOUBLINGS);
const _: () = assert!(STEP_BACK_NS << STEP_BACK_DOUBLINGS_UNSEEN < MIN_ACK_TIMEOUT_NS);
// While it is blind it wakes up for acknowledgements that are held. Nothing else that it alone can do is as urgent.
const _: () = assert!(MAX_BACK_NS < 2 * WAIT_NS);
// An acknowledgement is still held when the answer comes, and has left long before the peer gives up waiting.
const _: () =
    assert!(PATIENCE_NS < ANSWER_NS && ANSWER_NS < HOLD_NS && 2 * HOLD_NS < MIN_ACK_TIMEOUT_NS);
// Packets keep the thread from its other duties for less than these have to wait.
const _: () = assert!(LINGER_NS < TURN_NS && TURN_NS < RETRY_NS && TURN_NS < MIN_ACK_TIMEOUT_NS);
// What blocks is tried again before a retransmission makes it worse.
const _: () = assert!(RETRY_NS < MIN_ACK_TIMEOUT_NS);
// Trust is lost slowly, and doubt has an end.
const _: () = assert!(FIRST_DOUBT <= MAX_DOUBT && BUSY_NS < IDLE_NS);
