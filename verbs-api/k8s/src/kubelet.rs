//! The registration at the kubelet.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use http::uri::PathAndQuery;
use tonic::transport::Endpoint;
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;

use crate::api::{Empty, REGISTER, RegisterRequest};

/// Time in which the kubelet accepts a connection.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// Time for a registration. The kubelet connects to the plugin meanwhile, for up to ten seconds.
const LIMIT: Duration = Duration::from_secs(15);

/// A reason why a registration failed.
#[derive(Debug)]
pub(crate) enum RegisterError {
    /// The kubelet does not answer (yet).
    NoAnswer(String),
    /// The kubelet refuses the plugin.
    Refused(String),
}

impl fmt::Display for RegisterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoAnswer(text) => write!(f, "the kubelet does not answer: {text}"),
            Self::Refused(text) => write!(f, "the kubelet refuses the plugin: {text}"),
        }
    }
}

/// Registers a plugin that serves already.
///
/// # Errors
/// [`RegisterError`], of which only a missing answer is worth another attempt.
pub(crate) async fn register(socket: &Path, request: RegisterRequest) -> Result<(), RegisterError> {
    let no_answer = |error: tonic::transport::Error| RegisterError::NoAnswer(causes(&error));
    let endpoint =
        Endpoint::from_shared(format!("unix:{}", socket.display())).map_err(no_answer)?;
    let endpoint = endpoint.connect_timeout(CONNECT_LIMIT).timeout(LIMIT);
    let mut client = tonic::client::Grpc::new(endpoint.connect().await.map_err(no_answer)?);
    client.ready().await.map_err(no_answer)?;
    let method = PathAndQuery::from_static(REGISTER);
    let codec: ProstCodec<RegisterRequest, Empty> = ProstCodec::default();
    let answer = client.unary(Request::new(request), method, codec).await;
    answer.map(drop).map_err(|status| classify(&status))
}

fn classify(status: &Status) -> RegisterError {
    // A status that the kubelet has sent has no source.
    let source = std::error::Error::source(status);
    let is_local = matches!(
        status.code(),
        Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled
    );
    match source {
        Some(source) => RegisterError::NoAnswer(causes(source)),
        None if is_local => RegisterError::NoAnswer(status.message().to_owned()),
        None => RegisterError::Refused(status.message().to_owned()),
    }
}

/// Returns an error with its sources, because the first one often says nothing.
fn causes(error: &dyn std::error::Error) -> String {
    let mut texts: Vec<String> = Vec::new();
    for error in std::iter::successors(Some(error), |error| error.source()) {
        let text = error.to_string();
        if !texts.last().is_some_and(|last| last.contains(&text)) {
            texts.push(text);
        }
    }
    texts.join(": ")
}
