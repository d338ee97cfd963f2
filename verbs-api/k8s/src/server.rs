//! The gRPC service that the kubelet calls, on the plugin's socket.

use std::convert::Infallible;
use std::future::{Future, ready};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use std::{fs, io};

use http::Response as HttpResponse;
use prost::Message;
use tokio::net::UnixListener;
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinHandle, spawn_blocking};
use tokio_stream::wrappers::{ReceiverStream, UnixListenerStream};
use tonic::body::Body;
use tonic::server::{Grpc, ServerStreamingService, UnaryService};
use tonic::transport::Server;
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;
use tower_service::Service;

use crate::api::{
    self, AllocateRequest, AllocateResponse, DeviceIds, DevicePluginOptions, Empty,
    ListAndWatchResponse, PreferredAllocationRequest,
};
use crate::file_id::FileId;
use crate::pool::{Pool, Refusal};

/// Time in which the kubelet's calls end after a stop.
const STOP_LIMIT: Duration = Duration::from_secs(2);

/// The methods of this plugin.
pub(crate) const OPTIONS: DevicePluginOptions = DevicePluginOptions {
    pre_start_required: false,
    get_preferred_allocation_available: true,
};

/// A socket of the plugin with its service.
#[derive(Debug)]
pub(crate) struct Serving {
    path: PathBuf,
    id: FileId,
    stop: watch::Sender<bool>,
    task: JoinHandle<Result<(), tonic::transport::Error>>,
}

impl Serving {
    /// Begins to serve the devices at a path. Replaces a file that is there, such as the socket of
    /// a plugin that was killed.
    ///
    /// # Errors
    /// The error of the file system.
    pub(crate) fn begin(path: &Path, pool: &Arc<Pool>) -> io::Result<Self> {
        // The kubelet never sees a socket on which nothing listens.
        let new = path.with_extension(format!("new.{}", std::process::id()));
        // It is normally absent.
        let _ = fs::remove_file(&new);
        let listener = UnixListener::bind(&new)?;
        let renamed = fs::rename(&new, path).and_then(|()| FileId::of(path));
        let id = renamed.inspect_err(|_| {
            // The error of the rename is reported, not that of the removal.
            let _ = fs::remove_file(&new);
        })?;
        let id = id.ok_or(io::ErrorKind::NotFound)?;
        let (stop, stopped) = watch::channel(false);
        let service = DevicePlugin {
            pool: Arc::clone(pool),
            stopped: stopped.clone(),
        };
        let server = Server::builder().serve_with_incoming_shutdown(
            service,
            UnixListenerStream::new(listener),
            until(stopped),
        );
        Ok(Self {
            path: path.to_owned(),
            id,
            stop,
            task: tokio::spawn(server),
        })
    }

    /// Returns true if this is the socket's file.
    pub(crate) fn has(&self, id: FileId) -> bool {
        self.id.is_same_file(id)
    }

    /// Ends the service and its streams. Removes the socket, unless another one has its place.
    pub(crate) async fn end(self) {
        if FileId::of(&self.path).is_ok_and(|id| id.is_some_and(|id| self.has(id))) {
            // The kubelet removes it as well.
            let _ = fs::remove_file(&self.path);
        }
        self.stop.send_replace(true);
        let abort = self.task.abort_handle();
        if tokio::time::timeout(STOP_LIMIT, self.task).await.is_err() {
            abort.abort();
        }
    }
}

/// Waits for the stop of a service.
async fn until(mut stopped: watch::Receiver<bool>) {
    // The sender is dropped after it has sent.
    let _ = stopped.wait_for(|stopped| *stopped).await;
}

/// The service `v1beta1.DevicePlugin`.
#[derive(Clone, Debug)]
struct DevicePlugin {
    pool: Arc<Pool>,
    stopped: watch::Receiver<bool>,
}

type Answer = Pin<Box<dyn Future<Output = Result<HttpResponse<Body>, Infallible>> + Send>>;

impl Service<http::Request<Body>> for DevicePlugin {
    type Response = HttpResponse<Body>;
    type Error = Infallible;
    type Future = Answer;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Answer {
        let plugin = self.clone();
        Box::pin(async move { Ok(plugin.answer(request).await) })
    }
}

impl DevicePlugin {
    async fn answer(self, request: http::Request<Body>) -> HttpResponse<Body> {
        let pool = self.pool;
        match request.uri().path() {
            api::OPTIONS => unary(request, |Empty {}| ready(Ok(OPTIONS))).await,
            api::PRE_START => unary(request, |DeviceIds { .. }| ready(Ok(Empty {}))).await,
            api::PREFERRED => {
                let choose = move |wanted: PreferredAllocationRequest| {
                    ready(pool.prefer(&wanted).map_err(Status::from))
                };
                unary(request, choose).await
            }
            api::ALLOCATE => {
                let allocate = move |wanted| allocate(Arc::clone(&pool), wanted);
                unary(request, allocate).await
            }
            api::LIST_AND_WATCH => {
                let lists = Lists {
                    pool,
                    stopped: self.stopped,
                };
                Grpc::new(ProstCodec::default())
                    .server_streaming(lists, request)
                    .await
            }
            other => {
                Status::unimplemented(format!("{other} is not a method of v1beta1")).into_http()
            }
        }
    }
}

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Invalid(text) => Self::invalid_argument(text),
            Refusal::Unhealthy(text) => Self::failed_precondition(text),
        }
    }
}

/// Allocates on another thread, because the broker may be slow, and other calls go on meanwhile.
async fn allocate(pool: Arc<Pool>, wanted: AllocateRequest) -> Result<AllocateResponse, Status> {
    let allocated = spawn_blocking(move || pool.allocate(&wanted)).await;
    let allocated = allocated.map_err(|error| Status::internal(error.to_string()))?;
    allocated.map_err(Status::from)
}

/// Answers a call with one message.
async fn unary<M, R, F>(
    request: http::Request<Body>,
    method: impl FnMut(M) -> F + Send,
) -> HttpResponse<Body>
where
    M: Message + Default + 'static,
    R: Message + 'static,
    F: Future<Output = Result<R, Status>> + Send + 'static,
{
    let codec: ProstCodec<R, M> = ProstCodec::default();
    Grpc::new(codec).unary(Unary(method), request).await
}

/// A method with one request and one response.
struct Unary<T>(T);

impl<T, M, R, F> UnaryService<M> for Unary<T>
where
    T: FnMut(M) -> F,
    F: Future<Output = Result<R, Status>> + Send + 'static,
{
    type Response = R;
    type Future = Pin<Box<dyn Future<Output = Result<Response<R>, Status>> + Send>>;

    fn call(&mut self, request: Request<M>) -> Self::Future {
        let answer = (self.0)(request.into_inner());
        Box::pin(async move { answer.await.map(Response::new) })
    }
}

/// The method that sends all devices, and again after each change.
struct Lists {
    pool: Arc<Pool>,
    stopped: watch::Receiver<bool>,
}

impl ServerStreamingService<Empty> for Lists {
    type Response = ListAndWatchResponse;
    type ResponseStream = ReceiverStream<Result<ListAndWatchResponse, Status>>;
    type Future = std::future::Ready<Result<Response<Self::ResponseStream>, Status>>;

    fn call(&mut self, _: Request<Empty>) -> Self::Future {
        let (sender, receiver) = mpsc::channel(1);
        let mut latest = self.pool.subscribe();
        let stopped = until(self.stopped.clone());
        tokio::spawn(async move {
            let send_all = async {
                loop {
                    let list = latest.borrow_and_update().list();
                    if sender.send(Ok(list)).await.is_err() || latest.changed().await.is_err() {
                        return;
                    }
                }
            };
            tokio::select! {
                () = send_all => {}
                () = stopped => {}
                () = sender.closed() => {}
            }
        });
        ready(Ok(Response::new(ReceiverStream::new(receiver))))
    }
}
