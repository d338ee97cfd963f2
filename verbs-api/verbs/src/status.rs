//! The status of completions.

use std::fmt;

use rocade_transport::WcStatus as RawStatus;

/// Defines the status from name, `ibv_wc_status` name and text.
macro_rules! statuses {
    ($($(#[$doc:meta])* $name:ident = $raw:ident, $alias:literal, $text:literal;)*) => {
        /// The status of a completion. The names say in words what the constants of C abbreviate.
        ///
        /// ```
        /// use rocade_verbs::WcStatus;
        ///
        /// assert_eq!(WcStatus::Flushed.code(), 5); // IBV_WC_WR_FLUSH_ERR
        /// assert_eq!(WcStatus::RetryExceeded.to_string(), "transport retry count exceeded");
        /// ```
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        #[doc(alias = "ibv_wc_status")]
        pub enum WcStatus {
            $($(#[$doc])* #[doc(alias = $alias)] $name,)*
        }

        impl WcStatus {
            /// Returns the `ibv_wc_status` value.
            #[must_use]
            pub const fn code(self) -> u32 {
                match self {
                    $(Self::$name => RawStatus::$raw.code(),)*
                }
            }
        }

        impl From<RawStatus> for WcStatus {
            fn from(raw: RawStatus) -> Self {
                match raw {
                    $(RawStatus::$raw => Self::$name,)*
                }
            }
        }

        impl fmt::Display for WcStatus {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self {
                    $(Self::$name => $text,)*
                })
            }
        }
    };
}

statuses! {
    /// The request has succeeded.
    Success = Success, "IBV_WC_SUCCESS", "success";
    /// A message is longer than the receive, or the entries are longer than a message can be.
    LocalLengthError = LocLenErr, "IBV_WC_LOC_LEN_ERR", "local length error";
    /// The request does not fit the queue pair.
    LocalOperationError = LocQpOpErr, "IBV_WC_LOC_QP_OP_ERR", "local operation error";
    /// An entry names memory that is not registered, or lacks the rights.
    LocalProtectionError = LocProtErr, "IBV_WC_LOC_PROT_ERR", "local protection error";
    /// The queue pair went to the error state before the request was executed.
    Flushed = WrFlushErr, "IBV_WC_WR_FLUSH_ERR", "flushed";
    /// A memory window could not be bound.
    WindowBindError = MwBindErr, "IBV_WC_MW_BIND_ERR", "memory window bind error";
    /// The peer has sent a response that does not fit.
    BadResponse = BadRespErr, "IBV_WC_BAD_RESP_ERR", "bad response";
    /// A write with immediate data met memory that does not allow it.
    LocalAccessError = LocAccessErr, "IBV_WC_LOC_ACCESS_ERR", "local access error";
    /// The peer has refused the request as invalid.
    RemoteInvalidRequest = RemInvReqErr, "IBV_WC_REM_INV_REQ_ERR", "remote invalid request";
    /// The key, the range or the rights of the peer's memory do not fit.
    RemoteAccessError = RemAccessErr, "IBV_WC_REM_ACCESS_ERR", "remote access error";
    /// The peer could not complete the request.
    RemoteOperationError = RemOpErr, "IBV_WC_REM_OP_ERR", "remote operation error";
    /// The peer has not answered, after all retries.
    RetryExceeded = RetryExcErr, "IBV_WC_RETRY_EXC_ERR", "transport retry count exceeded";
    /// The peer has had no receive, after all retries.
    RnrRetryExceeded = RnrRetryExcErr, "IBV_WC_RNR_RETRY_EXC_ERR", "RNR retry count exceeded";
}
