//! Tuning constants: polling, batch sizes and waiting times in one place, with the relations that
//! must hold between them.
//!
//! Times are in nanoseconds. The transport defines the longest delays of ACKs and posts
//! ([`DELAYED_ACK_NS`], [`BATCH_DELAY_NS`]).

use rocade_transport::{BATCH_DELAY_NS, DELAYED_ACK_NS, MIN_ACK_TIMEOUT_NS, RESPONSE_WINDOW_NS};

// Polling threads.

/// Time without packets after which a poller yields its CPU, and after which delayed ACKs are sent
/// without waiting for the application's response.
pub(crate) const IDLE_POLL_NS: u64 = 15_000;
/// Time without completions after which a thread counts as idle, although its polls receive packets
/// of other threads that poll.
pub(crate) const OWN_WORK_NS: u64 = 1_000_000;
/// Interval of empty polls that read the clock.
pub(crate) const CLOCK_READ_INTERVAL: u64 = 4;
/// Age of the last empty poll up to which the application counts as polling. The thread that checks
/// may have interrupted it.
pub(crate) const FRESH_NS: u64 = 3_000;

/// Duration of a yield that shows that all processors are busy. Pollers then sleep.
pub(crate) const CONTENDED_YIELD_NS: u64 = 100_000;
/// Initial time until another yield checks again whether the processors are busy. It doubles each
/// time that they are, up to 3.2 s.
pub(crate) const CONTENDED_FOR_NS: u64 = 100_000_000;
pub(crate) const MAX_CONTENDED_DOUBLINGS: u32 = 5;
/// Time for which the system must have idle processors, at each check, before pollers yield again.
pub(crate) const UNCONTENDED_NS: u64 = 10_000_000;
/// Interval of these checks. Pollers sleep more often.
pub(crate) const IDLE_CHECK_NS: u64 = 1_000_000;
/// Time without packets after which a poller sleeps on busy processors.
pub(crate) const CONTENDED_IDLE_POLL_NS: u64 = 1_000;
/// Initial limit of a poller's sleep. It doubles after each sleep without packets, up to 1 ms.
pub(crate) const FIRST_SLEEP_NS: u64 = 125_000;
pub(crate) const SLEEP_DOUBLINGS: u32 = 3;
/// Limit of a poller's sleep while packets of the process wait for room.
pub(crate) const ROOM_SLEEP_NS: u64 = 100_000;
/// Sleeps in a row that end at once without packets, after which the poller yields instead.
pub(crate) const MAX_SPURIOUS_WAKES: u32 = 3;

/// Weight of a poll of shared memory that finds packets. An empty poll has weight 1.
pub(crate) const BUSY_POLL: u64 = 8;
/// Sum of these weights after which sockets are polled too: every few microseconds.
pub(crate) const POLLED_SOCKET_INTERVAL: u64 = 64;

/// Longest wait for blocked posts when a CQ shrinks. A route request to the broker takes less than
/// a millisecond on an idle machine.
pub(crate) const POST_FLUSH_NS: u64 = 500_000_000;

/// Most queue pairs processed at a time if each wakes the next, so that others get their turn.
pub(crate) const MAX_CHAIN: usize = 256;

// Threads that wait for an event.

/// Time for which a waiting thread leaves the packets to the others, after one of them has polled,
/// or after it was woken in vain.
pub(crate) const OTHERS_POLL_NS: u64 = 10_000_000;
/// Time after a wait for an event in a verb for which the program is expected to wait in verbs. A
/// program that turns to poll(2) gets its events up to 1.3 ms late for as long.
pub(crate) const EXPECTED_WAIT_NS: u64 = 10_000_000;
/// Number of sleeps in a row in which others have polled and not slept. A thread that waits for
/// descriptors then leaves the packets to them.
pub(crate) const OTHERS_POLL_SIGHTS: u32 = 4;

// Programs that wait in an event loop of their own.

/// Most receive rounds in a call, so that one peer does not keep the program in it.
pub(crate) const LOOP_ROUNDS: usize = 16;
/// Calls in a row without an event, after which other threads receive for some time. Long messages,
/// or those of other threads, would wake the program for each packet.
pub(crate) const MAX_EMPTY_WAKES: usize = 4;

// Threads that wait for an event of the connection manager.

/// Time for which the thread polls the sockets itself.
pub(crate) const CM_POLL_NS: u64 = 2_000_000;
/// Wakeups by packets without an event, after which the thread leaves the sockets to the background
/// thread.
pub(crate) const CM_EMPTY_POLLS: u32 = 4;

// The background thread: yielding to the application's polling threads.

/// Initial time for which the background thread yields. It doubles each time that the application
/// polled.
pub(crate) const BACKOFF_NS: u64 = 10_000;
/// Most doublings while the application is seen polling each time: 1.3 ms.
pub(crate) const BACKOFF_DOUBLINGS: u32 = 7;
/// Most doublings if the application has polled but may lack CPU time: 320 µs.
pub(crate) const BACKOFF_DOUBLINGS_UNSEEN: u32 = 5;
/// Time for which the background thread yields while a poller waits for the packets.
pub(crate) const WATCHED_BACKOFF_NS: u64 = 640_000;
/// Time without any poll of the application after which the thread receives, even if another one
/// waits for the packets. A thread that is stopped, or gets no processor, does not poll.
pub(crate) const MAX_UNREAD_NS: u64 = 600_000;
/// Time without any poll after which a poller that waits for packets is displaced even if there are
/// none. A sleeping poller polls sooner, if it runs.
pub(crate) const DISPLACED_NS: u64 = 4_000_000;
/// Time after which a thread that holds the receive lock of a link counts as stopped. A thread that
/// only waits for its turn of the processor usually runs again sooner.
pub(crate) const STALLED_NS: u64 = 16_000_000;
/// Wakeups without yielding, after the background thread yielded and the application did not poll:
/// initial and largest number.
pub(crate) const FIRST_IMMEDIATE_WAKES: u32 = 16;
pub(crate) const MAX_IMMEDIATE_WAKES: u32 = 4_096;
/// Most times in a row that the thread yields to an application that sends without polling.
pub(crate) const MAX_SENDING_ONLY: u32 = 16;

// The background thread: polling for the next packets.

/// Time without packets after which it stops polling.
pub(crate) const SPIN_NS: u64 = 40_000;
/// Time with packets after which everything else gets a turn.
pub(crate) const MAX_SPIN_NS: u64 = 400_000;
/// Interval of polls at which sockets are polled too, while shared memory is in use.
pub(crate) const SOCKET_POLL_INTERVAL: u32 = 32;
/// Largest n for which the thread skips polling 2^n times, after n empty attempts.
pub(crate) const EMPTY_SPIN_DOUBLINGS: u32 = 10;
/// Time for which the result of a load check is valid. The check takes about a microsecond, as much
/// as half of a switch between threads.
pub(crate) const LOAD_CHECK_NS: u64 = 1_000_000;

// The background thread: one turn.

/// Most receive rounds from shared-memory links before sockets and timers get a turn.
pub(crate) const SHARED_ROUNDS: usize = 64;
/// Most receive rounds from a socket, empty ones included.
pub(crate) const SOCKET_ROUNDS: usize = 128;
/// Packets at a time that count as a stream.
pub(crate) const STREAM_PACKETS: u64 = 8;
/// Polls for the next packets of a stream before sleeping: about 5 µs.
pub(crate) const STREAM_SPINS: u32 = 200;
/// Polls of a socket for the next packets of a stream, each of which takes longer: about 10 µs.
pub(crate) const STREAM_SOCKET_SPINS: u32 = 40;
/// Polling interval if the system does not allow the thread to wait for packets.
pub(crate) const FALLBACK_POLL_NS: u64 = 1_000_000;

// One receive call.

/// Most batches from a socket, so that ACKs are not delayed too long.
pub(crate) const MAX_BATCHES: usize = 12;
/// Bytes from which a batch is part of a stream, unless its packets are shorter than
/// [`BULK_SEGMENT`]. After a batch of small messages the application has to post new receives. An
/// equally fast peer would otherwise use up all posted receives, and then wait for the RNR timer.
pub(crate) const LONG_BATCH: usize = 4_096;
pub(crate) const BULK_SEGMENT: usize = 512;
/// Time to poll for the rest of a message before its first part is acknowledged.
pub(crate) const MORE_NS: u64 = 12_000;
/// Most batches from a shared-memory link, so that one peer cannot monopolise a poller.
pub(crate) const MAX_SHM_BATCHES: usize = 16;
/// Bytes for a QP from a shared-memory link after which its outputs are flushed, even within a
/// call. The peer can then send on while the rest is received.
pub(crate) const FLUSH_BYTES: usize = 64 << 10;
/// Most receive rounds for unpublished records of a peer, enough for a nearly full ring.
pub(crate) const UNPUBLISHED_ROUNDS: usize = 64;
/// Most receive rounds from a socket before a batch that must follow its UDP packets, more than the
/// buffer holds.
pub(crate) const MAX_UDP_BEFORE: usize = 1 << 14;

// One send call.

/// Most bytes of a response that may precede its delayed ACK. A slow peer needs milliseconds for
/// more, and would take its message for lost.
pub(crate) const LONG_RESPONSE: usize = 128 << 10;
/// Length of a batch that takes long enough to read the clock again.
pub(crate) const LONG_TX_BATCH: usize = 8_192;
/// Attempts to send the pending ACKs of a QP that is destroyed while a ring or socket is full, and
/// the pause between them.
pub(crate) const CLOSE_ATTEMPTS: usize = 20;
pub(crate) const CLOSE_PAUSE_NS: u64 = 1_000_000;

// The work queue.

/// Most QPs with delayed ACKs at a time, because the background thread checks each of them. A
/// process with more active QPs always has other packets to send.
pub(crate) const MAX_DELAYED_ACK_QPS: usize = 64;

/// Time for which the background thread leaves blocked sends to the application.
pub(crate) const RETRY_NS: u64 = 500_000;

/// Longest time for which the background thread ignores packets.
const MAX_BACKOFF_NS: u64 = BACKOFF_NS << BACKOFF_DOUBLINGS;

// A poller that was interrupted is not idle, and an idle poller reads the clock often enough to be
// seen.
const _: () = assert!(FRESH_NS < IDLE_POLL_NS);
// Processors count as busy only if another thread uses them for longer than a short poll, and for
// more than one turn.
const _: () = assert!(
    2 * IDLE_POLL_NS < CONTENDED_YIELD_NS
        && CONTENDED_YIELD_NS < UNCONTENDED_NS
        && UNCONTENDED_NS < CONTENDED_FOR_NS
);
// A program that also polls for other things is not delayed for long.
const _: () = assert!(CONTENDED_IDLE_POLL_NS < IDLE_POLL_NS && ROOM_SLEEP_NS <= FIRST_SLEEP_NS);
const _: () = assert!(FIRST_SLEEP_NS << SLEEP_DOUBLINGS <= 1_000_000);
// Polls of a stream reach the sockets as well, but not each of them.
const _: () = assert!(1 < BUSY_POLL && BUSY_POLL < POLLED_SOCKET_INTERVAL);
// The wait for the rest of a message is shorter than the wait of other threads for the processor.
const _: () = assert!(BULK_SEGMENT < LONG_BATCH && MORE_NS < IDLE_POLL_NS);
// A long response is preceded by an ACK before the sender's smallest window is used up.
const _: () = assert!(LONG_TX_BATCH < FLUSH_BYTES && FLUSH_BYTES < LONG_RESPONSE);
// The background thread yields long enough for a poll, and resumes soon if the poller loses the
// processor.
const _: () = assert!(FRESH_NS < BACKOFF_NS && BACKOFF_DOUBLINGS_UNSEEN < BACKOFF_DOUBLINGS);
const _: () = assert!(BACKOFF_NS << BACKOFF_DOUBLINGS_UNSEEN < MIN_ACK_TIMEOUT_NS);
// An application that has not polled for two looks of the thread, about 1 ms, is helped.
const _: () = assert!(
    MAX_UNREAD_NS <= WATCHED_BACKOFF_NS
        && WATCHED_BACKOFF_NS <= MAX_BACKOFF_NS
        && BACKOFF_NS << BACKOFF_DOUBLINGS_UNSEEN < MAX_UNREAD_NS
);
// A poller that sleeps and runs has polled by then.
const _: () = assert!(2 * (FIRST_SLEEP_NS << SLEEP_DOUBLINGS) < DISPLACED_NS);
// No peer gives up sooner: seven retries of the usual 67 ms, or of the shortest timeouts.
const _: () = assert!(DISPLACED_NS < STALLED_NS && STALLED_NS < 67_000_000);
// While it ignores packets, it wakes up for delayed ACKs, the most urgent of its own tasks.
const _: () = assert!(MAX_BACKOFF_NS < 2 * BATCH_DELAY_NS);
// A delayed ACK still waits when the response arrives, and is sent long before the peer's timeout.
const _: () = assert!(
    IDLE_POLL_NS < RESPONSE_WINDOW_NS
        && RESPONSE_WINDOW_NS < DELAYED_ACK_NS
        && 2 * DELAYED_ACK_NS < MIN_ACK_TIMEOUT_NS
);
// Packets keep the thread from its other tasks for less time than these may wait.
const _: () =
    assert!(SPIN_NS < MAX_SPIN_NS && MAX_SPIN_NS < RETRY_NS && MAX_SPIN_NS < MIN_ACK_TIMEOUT_NS);
// Blocked sends are retried before a retransmission makes it worse.
const _: () = assert!(RETRY_NS < MIN_ACK_TIMEOUT_NS);
// The backoff grows slowly and is limited.
const _: () = assert!(FIRST_IMMEDIATE_WAKES <= MAX_IMMEDIATE_WAKES);
