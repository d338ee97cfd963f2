//! Affiliated asynchronous events of a queue pair.

/// What a [`crate::Qp`] reports besides completions (AEV-*).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QpEvent {
    /// The first valid request arrived while the QP was in RTR (RC-STA-07).
    CommEst,
    /// The send queue has drained after a move to SQD (RC-STA-06).
    SqDrained,
    /// The responder saw an invalid request that no receive WQE can report (RC-ERR-C).
    ReqErr,
    /// The responder saw an access violation that no receive WQE can report (RC-ERR-C).
    AccessErr,
    /// The QP is in ERR, and takes no more receives from its shared receive queue: the completions of those it
    /// has taken are out (RC-STA-08).
    LastWqeReached,
    /// The alternate path has become the primary one (RC-APM-06).
    PathMig,
    /// The peer asks for a migration to the alternate path, and its packets do not fit it (RC-APM-07).
    PathMigErr,
    /// A completion could not be reported: the QP is in ERR (RC-STA-10).
    Fatal,
    /// Somebody used a wrong key for a DC target that was armed (DCK-04).
    DctKeyViolation,
}
