//! Affiliated asynchronous events of a queue pair.

/// An asynchronous event of a [`crate::Qp`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QpEvent {
    /// The first valid request arrived while the QP was in RTR.
    CommEst,
    /// The send queue has drained after a move to SQD.
    SqDrained,
    /// The responder saw an invalid request that no receive WQE can report.
    ReqErr,
    /// The responder saw an access violation that no receive WQE can report.
    AccessErr,
    /// The QP is in ERR and takes no more receives from its shared receive queue. Those that it has
    /// taken are completed.
    LastWqeReached,
    /// The alternate path has become the primary one.
    PathMig,
    /// The peer requests migration to the alternate path, but its packets do not match that path.
    PathMigErr,
    /// A completion could not be reported: the QP is in ERR.
    Fatal,
    /// A packet had a wrong access key for a DC target whose event was armed.
    DctKeyViolation,
}
