//! The order in which locks are taken.

/// Declares the ranks from the one that is taken first to the one that is taken last, each with the
/// type that names it in a lock's type.
macro_rules! ranks {
    ($($(#[$attribute:meta])+ $name:ident,)+) => {
        /// A place in the order of locks. A thread waits for a lock only while every lock that it
        /// holds has a lower rank.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub(crate) enum Rank {
            $($(#[$attribute])+ $name,)+
        }

        $(
            $(#[$attribute])+
            #[derive(Debug)]
            pub(crate) enum $name {}

            $(#[$attribute])+
            impl Ranked for $name {
                const RANK: Rank = Rank::$name;
            }
        )+
    };
}

/// The rank of a lock, as a type.
pub(crate) trait Ranked {
    const RANK: Rank;
}

ranks! {
    /// Starts of processes, in unit tests.
    #[cfg(test)]
    Starts,
    /// Estimates of the thread that spins for an event. Others do not wait for it, and it receives
    /// meanwhile.
    Spin,
    /// XRC domains that files name.
    Domains,
    /// Opening and closing of shared XRC targets.
    TargetOpening,
    /// Acquisition of shared XRC targets from other processes.
    TargetAcquiring,
    /// Opening of a local endpoint.
    EndpointOpening,
    /// The connection to the broker and the queue pair numbers it gave.
    Attachment,
    /// The client of the broker: one question at a time.
    BrokerClient,
    /// Installation of fault rules.
    FaultRefresh,
    /// The start of the background thread.
    Background,
    /// Multicast groups that the process has joined.
    JoinedGroups,
    /// The connection manager.
    Cm,
    /// The descriptor of a channel, whose members change.
    EventLoop,
    /// The list of links to other processes, for reading while packets are received.
    PeerLinks,
    /// The receiving side of one ring. When a queue pair has moved to shared memory, what its peer
    /// sent to the socket before is received first.
    RingReceive,
    /// The list of local endpoints, for reading while packets are received.
    Endpoints,
    /// The ports of raw packets, for reading while frames are received.
    RawPorts,
    /// The receiving side of one socket, or of a raw port.
    SocketReceive,
    /// The socket that a raw port receives from.
    RawSocket,
    /// One memory region, which may be changing.
    Region,
    /// The table of queue pairs, for reading on the data path.
    Qps,
    /// The table of regions, for reading on the data path.
    Regions,
    /// One queue pair.
    Qp,
    /// Counts of a queue pair's requests that release or await others.
    TaskCount,
    /// The open handles of a shared XRC target.
    OpenHandles,
    /// The outgoing frames of a raw packet queue pair.
    RawOutgoing,
    /// One shared receive queue.
    Srq,
    /// Received messages that the queues of a shared receive queue have not returned to it.
    SrqPending,
    /// One completion queue.
    Cq,
    /// The events of one channel.
    Events,
    /// The routes of an address handle.
    HandleRoutes,
    /// The known routes.
    Routes,
    /// The opening of a socket to send from.
    SendSocket,
    /// The plan of all fault rules, the rules that wait for an occasion, or those of packets.
    FaultRules,
    /// The flows of a raw port.
    RawFlows,
    /// The files of the counters, or the page of statistics.
    CounterFiles,
    /// The file of a capture.
    CaptureFile,
    /// A memory window or indirect keys, for one access or change.
    Window,
    /// All others. No lock is taken under them.
    Leaf,
}
