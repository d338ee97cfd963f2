//! `rocade k8s device-plugin`: keeps the resources registered, and looks at the devices.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::spawn_blocking;
use tokio::time::{MissedTickBehavior, interval, sleep};

use crate::cli::PluginArgs;
use crate::endpoint::{Endpoint, Progress};
use crate::error::PluginError;
use crate::log;
use crate::pool::Pool;
use crate::watch::DirWatch;

/// Time before another attempt to reach a kubelet that has a socket and does not answer.
const RETRY: Duration = Duration::from_secs(1);

/// Runs the plugin until a signal ends it.
///
/// # Errors
/// [`PluginError`] if the plugin cannot go on.
pub(crate) fn run(args: &PluginArgs) -> Result<(), PluginError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| PluginError::new(format!("failed to start: {error}")))?;
    let result = runtime.block_on(serve(args));
    // A look at a broker that does not answer may still be under way.
    runtime.shutdown_background();
    result
}

async fn serve(args: &PluginArgs) -> Result<(), PluginError> {
    let dir = &args.kubelet_dir;
    let mut signals = Signals::new()?;
    // A resource may be given twice.
    let names: BTreeSet<&String> = args.resources.iter().collect();
    let endpoints = names.into_iter().map(|name| Endpoint::new(name, dir));
    let mut endpoints: Vec<Endpoint> = endpoints.collect::<Result<_, _>>()?;
    let mut watch = DirWatch::new(dir).map_err(|error| unusable(dir, &error))?;
    let pool = Arc::new(Pool::new(args.count, args.pool.clone()));
    let result = tokio::select! {
        result = keep_registered(&mut endpoints, &pool, &mut watch) => result,
        () = inspect_again(&pool, args.health_interval) => Ok(()),
        name = signals.next() => {
            log(&format!("{name}: the plugin ends"));
            Ok(())
        }
    };
    for endpoint in endpoints {
        endpoint.end().await;
    }
    result
}

/// Looks at the sockets after each change of their directory.
async fn keep_registered(
    endpoints: &mut [Endpoint],
    pool: &Arc<Pool>,
    watch: &mut DirWatch,
) -> Result<(), PluginError> {
    loop {
        let mut is_complete = true;
        for endpoint in &mut *endpoints {
            is_complete &= endpoint.reconcile(pool).await? != Progress::Retry;
        }
        let again = async {
            match is_complete {
                true => std::future::pending().await,
                false => sleep(RETRY).await,
            }
        };
        tokio::select! {
            changed = watch.changed() => changed.map_err(|error| {
                PluginError::new(error.to_string()).advise("start the plugin again")
            })?,
            () = again => {}
        }
    }
}

/// Looks at the devices again and again. Never returns.
async fn inspect_again(pool: &Arc<Pool>, every: Duration) {
    let mut ticks = interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let pool = Arc::clone(pool);
        if let Err(error) = spawn_blocking(move || pool.inspect()).await {
            log(&format!(
                "failed to look at the devices, trying again: {error}"
            ));
        }
    }
}

/// The signals that end the plugin.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Catches them from now on, before there is a socket to remove.
    fn new() -> Result<Self, PluginError> {
        let failed = |error| PluginError::new(format!("failed to catch signals: {error}"));
        Ok(Self {
            terminate: signal(SignalKind::terminate()).map_err(failed)?,
            interrupt: signal(SignalKind::interrupt()).map_err(failed)?,
        })
    }

    /// Waits for a signal. Returns its name.
    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

fn unusable(dir: &Path, error: &io::Error) -> PluginError {
    PluginError::new(format!("failed to watch {}: {error}", dir.display())).advise(
        "the plugin runs on a node of Kubernetes, and --kubelet-dir names the directory of the \
         kubelet's socket. In a container, mount the node's directory there",
    )
}
