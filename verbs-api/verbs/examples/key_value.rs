//! A key-value store on Tokio: clients store by messages, and READ the values from the memory of
//! the server, whose program takes no part in that.
//!
//! ```sh
//! cargo run --release --package rocade-verbs --example key_value
//! ```

#[path = "runtime/on_tokio.rs"]
mod on_tokio;
#[path = "runtime/mod.rs"]
pub(crate) mod runtime;

use std::net::SocketAddr;
use std::sync::Arc;

use rocade_verbs::{
    AccessFlags, CompletionQueue, Config, ConnectRequest, Connection, DeviceList, Error, Listener,
    MemoryRegion, PeerOptions, ProtectionDomain, RemoteMemory, Result, Route,
};
use runtime::Runtime;

/// A slot of the table: a version, a key, a value and the version again, all of 8 bytes.
const SLOT: usize = 32;
const SLOTS: usize = 1024;

/// Returns the offset of the slot of a key. Keys of one slot replace each other.
fn slot_of(key: u64) -> usize {
    let hash = key.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (hash >> 54) as usize % SLOTS * SLOT
}

/// Accepts `clients` connections, and serves each in a task of its own.
pub(crate) async fn serve(
    pd: ProtectionDomain,
    listener: Listener,
    clients: usize,
    runtime: impl Runtime,
) -> Result<()> {
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ;
    let table = Arc::new(pd.register(SLOTS * SLOT, access)?);
    for _ in 0..clients {
        let request = listener.request().await?;
        let (own, pd, table) = (runtime.clone(), pd.clone(), Arc::clone(&table));
        runtime.spawn(async move {
            if let Err(error) = store(request, &pd, &table, own).await {
                eprintln!("server: {error}");
            }
        });
    }
    Ok(())
}

/// Stores the pairs that a client sends, until an empty message.
async fn store(
    request: ConnectRequest,
    pd: &ProtectionDomain,
    table: &Arc<MemoryRegion>,
    runtime: impl Runtime,
) -> Result<()> {
    let cq = pd.context().completion_queue(16)?;
    runtime.drive(&cq)?;
    let qp = pd.queue_pair(&cq).build()?;
    let inbox = Arc::new(pd.register(16, AccessFlags::LOCAL_WRITE)?);
    let mut received = qp.recv(&inbox);
    // The reply of the connection manager tells where the table is.
    let options = PeerOptions::with_data(table.remote().to_bytes());
    let connection = request.accept_async(qp, &options).await?;
    while received.await?.byte_len == 16 {
        let (key, value) = (inbox.load_u64(0)?, inbox.load_u64(8)?);
        let at = slot_of(key);
        // Readers see two different versions until the slot is complete.
        let version = table.load_u64(at)? + 1;
        table.store_u64(at, version)?;
        table.store_u64(at + 8, key)?;
        table.store_u64(at + 16, value)?;
        table.store_u64(at + 24, version)?;
        received = connection.recv(&inbox);
        connection.send_inline(b"stored").await?;
    }
    Ok(connection.disconnect_event().await?)
}

/// A client of the store.
pub(crate) struct Client {
    connection: Connection,
    memory: Arc<MemoryRegion>,
    table: RemoteMemory,
    /// Completions of the queue pair arrive here.
    _cq: CompletionQueue,
}

impl Client {
    pub(crate) async fn connect(route: Route, runtime: impl Runtime) -> Result<Self> {
        let pd = route.context().protection_domain()?;
        let cq = pd.context().completion_queue(16)?;
        runtime.drive(&cq)?;
        let qp = pd.queue_pair(&cq).build()?;
        let memory = Arc::new(pd.register(2 * SLOT, AccessFlags::LOCAL_WRITE)?);
        let connection = route.connect_async(qp, &PeerOptions::default()).await?;
        let table = connection.private_data().first_chunk();
        let table = table.ok_or(Error::Malformed("reply: no table"))?;
        Ok(Self {
            table: RemoteMemory::from_bytes(table),
            connection,
            memory,
            _cq: cq,
        })
    }

    /// Stores a value.
    pub(crate) async fn put(&self, key: u64, value: u64) -> Result<()> {
        let answer = self.connection.recv(self.memory.slice(SLOT..)?);
        self.memory.store_u64(0, key)?;
        self.memory.store_u64(8, value)?;
        self.connection.send(self.memory.slice(..16)?).await?;
        answer.await?;
        Ok(())
    }

    /// Reads a value from the table. The server's program does not run for it.
    pub(crate) async fn get(&self, key: u64) -> Result<Option<u64>> {
        let slot = self.memory.slice(..SLOT)?;
        loop {
            let from = self.table.at(slot_of(key) as u64);
            self.connection.read(&slot, from).await?;
            let word = |index: usize| self.memory.load_u64(index * 8);
            if word(0)? == word(3)? {
                let is_there = word(0)? > 0 && word(1)? == key;
                return Ok(is_there.then_some(word(2)?));
            }
        }
    }

    pub(crate) async fn close(self) -> Result<()> {
        self.connection.send_inline(b"").await?;
        Ok(self.connection.disconnect_async().await?)
    }
}

async fn client(list: DeviceList, server: SocketAddr, number: u64) -> Result<()> {
    let client = Client::connect(Route::to(&list, server)?, on_tokio::Tokio).await?;
    client.put(number, number * number).await?;
    let value = client.get(number).await?;
    println!("client {number}: {number} -> {value:?}");
    client.close().await
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    const CLIENTS: usize = 4;
    let list = DeviceList::new(Config::from_specs(&["a=127.0.0.94"])?)?;
    let listener = Listener::bind(&list, ([127, 0, 0, 94], 0).into())?;
    let address = listener.local_addr()?;
    let pd = list.open("a")?.protection_domain()?;
    let clients: Vec<_> = (1..=CLIENTS as u64)
        .map(|number| tokio::spawn(client(list.clone(), address, number)))
        .collect();
    serve(pd, listener, CLIENTS, on_tokio::Tokio).await?;
    for client in clients {
        client.await.map_err(std::io::Error::from)??;
    }
    Ok(())
}
