//! The services of connections: a table of what each has and promises.

use crate::QpType;

/// The service of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Service {
    Rc,
    /// RC, connected by the connection manager.
    Cm,
    /// The protocol of rsockets on such a connection.
    Stream,
    Uc,
    Ud,
    /// UD, to a multicast group of each end.
    Group,
    Xrc,
    Dc,
}

/// Operations beside SENDs, as bits of [`super::plan::Connection::mix`].
pub(super) const WRITES: u32 = 1;
pub(super) const ATOMICS: u32 = 2;
pub(super) const READS: u32 = 4;
/// Atomic writes, each before its message, and a flush of them.
pub(super) const MARKS: u32 = 8;

/// The properties of a service.
#[derive(Clone, Copy, Debug)]
pub(super) struct Traits {
    /// The type of the queue pair that sends.
    pub(super) sender: QpType,
    /// Each message arrives once and in order, or its sender sees a failure.
    pub(super) is_reliable: bool,
    /// Messages arrive in order.
    pub(super) is_ordered: bool,
    /// The operations beside SENDs that it has.
    pub(super) mix: u32,
    /// Length of the longest message.
    pub(super) longest: usize,
    /// Number of bytes before a message in its buffer.
    pub(super) header: usize,
    /// The queue pair that sends also receives, so that windows can be bound to it.
    pub(super) has_windows: bool,
    /// The connection manager connects it.
    pub(super) is_managed: bool,
    /// Receives may come from the queue that the ends of a process share.
    pub(super) may_pool: bool,
    /// The mark of a message that has arrived.
    pub(super) arrived: &'static str,
    /// The mark of a message that was acknowledged by a process that was killed.
    pub(super) outlived: &'static str,
}

/// The traits that most services have.
const RELIABLE: Traits = Traits {
    sender: QpType::Rc,
    is_reliable: true,
    is_ordered: true,
    mix: WRITES | ATOMICS | READS | MARKS,
    longest: usize::MAX,
    header: 0,
    has_windows: true,
    is_managed: false,
    may_pool: true,
    arrived: "a message arrives over RC",
    outlived: "a killed process acknowledges over RC",
};

const UNCONNECTED: Traits = Traits {
    sender: QpType::Ud,
    is_reliable: false,
    is_ordered: false,
    mix: 0,
    longest: 1024,
    header: 40,
    has_windows: false,
    is_managed: false,
    may_pool: true,
    arrived: "a message arrives over UD",
    outlived: "a killed process acknowledges over UD",
};

impl Service {
    /// Services as often as they are drawn.
    pub(super) const DRAWN: [Self; 13] = [
        Self::Rc,
        Self::Rc,
        Self::Rc,
        Self::Rc,
        Self::Cm,
        Self::Cm,
        Self::Stream,
        Self::Uc,
        Self::Ud,
        Self::Group,
        Self::Xrc,
        Self::Xrc,
        Self::Dc,
    ];

    /// Returns the properties.
    pub(super) const fn traits(self) -> Traits {
        match self {
            Self::Rc => RELIABLE,
            Self::Cm => Traits {
                is_managed: true,
                arrived: "a message arrives over a connection of the CM",
                outlived: "a killed process acknowledges over a connection of the CM",
                ..RELIABLE
            },
            Self::Stream => Traits {
                is_managed: true,
                mix: 0,
                has_windows: false,
                may_pool: false,
                arrived: "bytes arrive over a stream",
                outlived: "a killed process acknowledges bytes of a stream",
                ..RELIABLE
            },
            Self::Uc => Traits {
                sender: QpType::Uc,
                is_reliable: false,
                has_windows: false,
                mix: WRITES,
                arrived: "a message arrives over UC",
                outlived: "a killed process acknowledges over UC",
                ..RELIABLE
            },
            Self::Ud => UNCONNECTED,
            Self::Group => Traits {
                arrived: "a message arrives at a multicast group",
                may_pool: false,
                ..UNCONNECTED
            },
            Self::Xrc => Traits {
                sender: QpType::XrcSend,
                has_windows: false,
                may_pool: false,
                arrived: "a message arrives over XRC",
                outlived: "a killed process acknowledges over XRC",
                ..RELIABLE
            },
            Self::Dc => Traits {
                sender: QpType::DcInitiator,
                mix: WRITES | ATOMICS | READS,
                has_windows: false,
                arrived: "a message arrives over DC",
                outlived: "a killed process acknowledges over DC",
                ..RELIABLE
            },
        }
    }
}
