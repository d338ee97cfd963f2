//! A stand-in for the kubelet: the service of registration on a real socket, and the calls that
//! the kubelet makes to plugins. It follows the kubelet in what a plugin can notice: it removes all
//! sockets when it starts, and connects to a plugin before it accepts the registration.

use std::convert::Infallible;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use std::{fs, io};

use http::uri::PathAndQuery;
use prost::Message;
use tokio::net::UnixListener;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::body::Body;
use tonic::server::UnaryService;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Response, Status, Streaming};
use tonic_prost::ProstCodec;

use crate::api::{
    self, AllocateRequest, AllocateResponse, DeviceIds, DevicePluginOptions, Empty,
    ListAndWatchResponse, PreferredAllocationRequest, PreferredAllocationResponse, RegisterRequest,
};

/// Ample time for everything that a plugin does, on a busy machine.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// Waits for something that has to happen.
pub(crate) async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    let result = tokio::time::timeout(LIMIT, future).await;
    result.unwrap_or_else(|_| panic!("{what} has not happened within {LIMIT:?}"))
}

/// A kubelet that runs.
pub(crate) struct Kubelet {
    dir: PathBuf,
    requests: mpsc::UnboundedReceiver<RegisterRequest>,
    server: JoinHandle<()>,
}

impl Kubelet {
    /// Starts a kubelet as systemd does: with an empty directory of plugins.
    pub(crate) fn start(dir: &Path) -> Self {
        for entry in fs::read_dir(dir).unwrap() {
            match fs::remove_file(entry.unwrap().path()) {
                // The plugin has renamed it meanwhile.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                removed => removed.unwrap(),
            }
        }
        Self::begin(dir, Behaviour::Accepts)
    }

    /// Starts a kubelet that refuses each plugin for a reason.
    pub(crate) fn refusing(dir: &Path, reason: &'static str) -> Self {
        Self::begin(dir, Behaviour::Refuses(reason))
    }

    /// Starts a kubelet that removes the socket of the first plugin while it registers, as one
    /// seems to do that starts meanwhile.
    pub(crate) fn cleaning_late(dir: &Path) -> Self {
        Self::begin(dir, Behaviour::CleansLate(Arc::default()))
    }

    fn begin(dir: &Path, behaviour: Behaviour) -> Self {
        let (sender, requests) = mpsc::unbounded_channel();
        let listener = UnixListener::bind(dir.join(api::KUBELET_SOCKET)).unwrap();
        let service = Registration {
            dir: dir.to_owned(),
            behaviour,
            sender,
        };
        let incoming = UnixListenerStream::new(listener);
        let server = Server::builder().serve_with_incoming(service, incoming);
        Self {
            dir: dir.to_owned(),
            requests,
            server: tokio::spawn(async move { server.await.unwrap() }),
        }
    }

    /// Waits for the next registration.
    pub(crate) async fn registration(&mut self) -> RegisterRequest {
        let request = within("a registration", self.requests.recv()).await;
        request.expect("the kubelet runs")
    }

    /// Connects to a plugin that has registered.
    pub(crate) async fn connect(&self, request: &RegisterRequest) -> PluginClient {
        let client = PluginClient::connect(&self.dir.join(&request.endpoint)).await;
        client.expect("the plugin listens")
    }

    /// Ends the kubelet, whose socket stays behind.
    pub(crate) async fn kill(self) {
        self.server.abort();
        self.server.await.expect_err("aborted");
    }
}

/// The way in which a kubelet treats plugins.
#[derive(Clone)]
enum Behaviour {
    Accepts,
    Refuses(&'static str),
    /// Removes a socket, until the value is true.
    CleansLate(Arc<AtomicBool>),
}

/// The service `v1beta1.Registration`.
#[derive(Clone)]
struct Registration {
    dir: PathBuf,
    behaviour: Behaviour,
    sender: mpsc::UnboundedSender<RegisterRequest>,
}

type Answer<T, E> = Pin<Box<dyn Future<Output = Result<T, E>> + Send>>;

impl tower_service::Service<http::Request<Body>> for Registration {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Answer<Self::Response, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        assert_eq!(request.uri().path(), api::REGISTER);
        let service = self.clone();
        let codec: ProstCodec<Empty, RegisterRequest> = ProstCodec::default();
        Box::pin(async move {
            Ok(tonic::server::Grpc::new(codec)
                .unary(service, request)
                .await)
        })
    }
}

impl UnaryService<RegisterRequest> for Registration {
    type Response = Empty;
    type Future = Answer<Response<Empty>, Status>;

    fn call(&mut self, request: Request<RegisterRequest>) -> Self::Future {
        let service = self.clone();
        Box::pin(async move {
            let request = request.into_inner();
            let socket = service.dir.join(&request.endpoint);
            match &service.behaviour {
                // As errors of programs in Go are.
                Behaviour::Refuses(reason) => return Err(Status::unknown(*reason)),
                Behaviour::CleansLate(done) if !done.swap(true, Ordering::Relaxed) => {
                    fs::remove_file(&socket).unwrap();
                }
                Behaviour::CleansLate(_) | Behaviour::Accepts => {}
            }
            let connected = PluginClient::connect(&socket).await;
            connected.map_err(|error| Status::unknown(error.to_string()))?;
            service.sender.send(request).expect("the test runs");
            Ok(Response::new(Empty {}))
        })
    }
}

/// A connection to a plugin.
pub(crate) struct PluginClient {
    grpc: tonic::client::Grpc<Channel>,
}

impl PluginClient {
    async fn connect(socket: &Path) -> Result<Self, io::Error> {
        let endpoint = Endpoint::from_shared(format!("unix:{}", socket.display()));
        let channel = endpoint.map_err(io::Error::other)?.connect().await;
        Ok(Self {
            grpc: tonic::client::Grpc::new(channel.map_err(io::Error::other)?),
        })
    }

    async fn call<M, R>(&mut self, method: &'static str, message: M) -> Result<R, Status>
    where
        M: Message + 'static,
        R: Message + Default + 'static,
    {
        let codec: ProstCodec<M, R> = ProstCodec::default();
        let method = PathAndQuery::from_static(method);
        let call = async {
            self.grpc.ready().await.expect("the connection lasts");
            self.grpc.unary(Request::new(message), method, codec).await
        };
        within("an answer of the plugin", call)
            .await
            .map(Response::into_inner)
    }

    /// Calls GetDevicePluginOptions.
    pub(crate) async fn options(&mut self) -> Result<DevicePluginOptions, Status> {
        self.call(api::OPTIONS, Empty {}).await
    }

    /// Calls Allocate for the containers of a pod.
    pub(crate) async fn allocate(
        &mut self,
        containers: &[&[&str]],
    ) -> Result<AllocateResponse, Status> {
        let request = AllocateRequest {
            container_requests: containers.iter().map(|ids| device_ids(ids)).collect(),
        };
        self.call(api::ALLOCATE, request).await
    }

    /// Calls GetPreferredAllocation.
    pub(crate) async fn prefer(
        &mut self,
        request: PreferredAllocationRequest,
    ) -> Result<PreferredAllocationResponse, Status> {
        self.call(api::PREFERRED, request).await
    }

    /// Calls PreStartContainer.
    pub(crate) async fn pre_start(&mut self, ids: &[&str]) -> Result<Empty, Status> {
        self.call(api::PRE_START, device_ids(ids)).await
    }

    /// Calls a method that no version has.
    pub(crate) async fn unknown_method(&mut self) -> Result<Empty, Status> {
        self.call("/v1beta1.DevicePlugin/Reset", Empty {}).await
    }

    /// Calls ListAndWatch.
    pub(crate) async fn list_and_watch(&mut self) -> Lists {
        let codec: ProstCodec<Empty, ListAndWatchResponse> = ProstCodec::default();
        let method = PathAndQuery::from_static(api::LIST_AND_WATCH);
        let request = Request::new(Empty {});
        let call = async {
            self.grpc.ready().await.expect("the connection lasts");
            self.grpc.server_streaming(request, method, codec).await
        };
        let lists = within("a stream of lists", call)
            .await
            .unwrap()
            .into_inner();
        Lists { lists }
    }
}

fn device_ids(ids: &[&str]) -> DeviceIds {
    DeviceIds {
        devices_ids: ids.iter().map(|id| (*id).to_owned()).collect(),
    }
}

/// The lists of devices that a plugin sends.
pub(crate) struct Lists {
    lists: Streaming<ListAndWatchResponse>,
}

impl Lists {
    /// Waits for the next list. Returns each device with its health.
    pub(crate) async fn next(&mut self) -> Vec<(String, String)> {
        let list = within("a list of devices", self.lists.message()).await;
        let list = list.unwrap().expect("the plugin runs");
        let devices = list.devices.into_iter();
        devices.map(|device| (device.id, device.health)).collect()
    }

    /// Waits for a list with this number of devices that have this health.
    pub(crate) async fn until(&mut self, health: &str, count: usize) {
        loop {
            let list = self.next().await;
            if list.iter().filter(|(_, found)| found == health).count() == count {
                return;
            }
        }
    }

    /// Waits for the end of the stream.
    pub(crate) async fn end(mut self) {
        let end = async { while let Ok(Some(_)) = self.lists.message().await {} };
        within("the end of the stream", end).await;
    }
}
