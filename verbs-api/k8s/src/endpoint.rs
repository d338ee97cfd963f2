//! One resource: its socket, and its registration at the kubelet.
//!
//! When the kubelet starts, it removes all sockets of plugins and makes its own anew, so both are
//! compared with what they were. That needs no order of events, and none may be lost.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::api::{KUBELET_SOCKET, RegisterRequest, VERSION};
use crate::error::PluginError;
use crate::file_id::FileId;
use crate::kubelet::{RegisterError, register};
use crate::log;
use crate::pool::Pool;
use crate::server::{OPTIONS, Serving};

/// Longest path of a Unix socket, without the terminating zero and the suffix of the first name.
const LONGEST_PATH: usize = 107 - ".new.4194304".len();

/// The state of a resource after a look at its sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// The kubelet has the resource.
    Registered,
    /// There is no kubelet. Its start changes the directory.
    Waiting,
    /// The kubelet has not answered, so another attempt is necessary.
    Retry,
}

/// A resource of the plugin.
#[derive(Debug)]
pub(crate) struct Endpoint {
    resource: String,
    path: PathBuf,
    kubelet: PathBuf,
    serving: Option<Serving>,
    /// The socket of the kubelet that has the resource.
    registered: Option<FileId>,
    /// The last message, which is not repeated.
    said: String,
}

impl Endpoint {
    /// Creates the endpoint of a resource in the directory of the kubelet. Touches no file.
    ///
    /// # Errors
    /// [`PluginError`] if the path of its socket is too long.
    pub(crate) fn new(resource: &str, dir: &Path) -> Result<Self, PluginError> {
        let name = format!("{}.sock", resource.replace('/', "_"));
        let path = dir.join(name);
        if path.as_os_str().len() > LONGEST_PATH {
            return Err(PluginError::new(format!(
                "{} is too long for a Unix socket, by {} bytes",
                path.display(),
                path.as_os_str().len() - LONGEST_PATH
            ))
            .advise("choose a shorter --resource, or a shorter --kubelet-dir"));
        }
        Ok(Self {
            resource: resource.to_owned(),
            kubelet: dir.join(KUBELET_SOCKET),
            path,
            serving: None,
            registered: None,
            said: String::new(),
        })
    }

    /// Serves the resource and registers it, as far as that is not so already. Without a kubelet it
    /// makes no socket, which could be in the way of somebody who removes the directory.
    ///
    /// # Errors
    /// [`PluginError`] if another plugin has the socket, the directory cannot be used, or the
    /// kubelet refuses the resource.
    pub(crate) async fn reconcile(&mut self, pool: &Arc<Pool>) -> Result<Progress, PluginError> {
        let Some(kubelet) = self.identity(&self.kubelet)? else {
            self.registered = None;
            let (resource, socket) = (&self.resource, self.kubelet.display());
            let text = format!("{resource} waits for the kubelet, which has no socket {socket}");
            self.say(text);
            return Ok(Progress::Waiting);
        };
        self.serve(pool).await?;
        if self.registered == Some(kubelet) {
            return Ok(Progress::Registered);
        }
        let endpoint = self.path.file_name().unwrap_or_default();
        let request = RegisterRequest {
            version: VERSION.to_owned(),
            endpoint: endpoint.to_string_lossy().into_owned(),
            resource_name: self.resource.clone(),
            options: Some(OPTIONS),
        };
        match register(&self.kubelet, request).await {
            Ok(()) => {
                self.registered = Some(kubelet);
                self.say(String::new());
                log(&format!("{} is registered at the kubelet", self.resource));
                Ok(Progress::Registered)
            }
            Err(error @ RegisterError::NoAnswer(_)) => {
                self.registered = None;
                let text = format!("{} is not registered, and will be: {error}", self.resource);
                self.say(text);
                Ok(Progress::Retry)
            }
            // The kubelet starts just now. It removes sockets before it listens, so this one was
            // removed after it was looked at.
            Err(RegisterError::Refused(_)) if !self.is_serving()? => Ok(Progress::Retry),
            Err(error @ RegisterError::Refused(_)) => Err(PluginError::new(format!(
                "failed to register {}: {error}",
                self.resource
            ))
            .advise("the kubelet's log has details: journalctl -u kubelet")),
        }
    }

    /// Returns true if the kubelet finds the socket of this plugin.
    fn is_serving(&self) -> Result<bool, PluginError> {
        let found = self.identity(&self.path)?;
        let serving = self.serving.as_ref();
        Ok(found.is_some_and(|id| serving.is_some_and(|serving| serving.has(id))))
    }

    /// Begins to serve, unless the socket is there.
    async fn serve(&mut self, pool: &Arc<Pool>) -> Result<(), PluginError> {
        let found = self.identity(&self.path)?;
        match (&self.serving, found) {
            (Some(serving), Some(id)) if serving.has(id) => return Ok(()),
            (Some(_), Some(_)) => {
                let path = self.path.display();
                return Err(
                    PluginError::new(format!("another plugin has replaced {path}"))
                        .advise("run one plugin for each resource of a node"),
                );
            }
            (Some(_), None) => log(&format!(
                "the kubelet has removed the socket of {}, which comes back",
                self.resource
            )),
            (None, _) => {}
        }
        if let Some(serving) = self.serving.take() {
            serving.end().await;
        }
        self.registered = None;
        let serving = Serving::begin(&self.path, pool);
        self.serving = Some(serving.map_err(|error| self.unusable(&self.path, &error))?);
        Ok(())
    }

    /// Ends the service, and removes its socket.
    pub(crate) async fn end(self) {
        if let Some(serving) = self.serving {
            serving.end().await;
        }
    }

    fn identity(&self, path: &Path) -> Result<Option<FileId>, PluginError> {
        FileId::of(path).map_err(|error| self.unusable(path, &error))
    }

    fn unusable(&self, path: &Path, error: &io::Error) -> PluginError {
        let advice = match error.kind() {
            io::ErrorKind::PermissionDenied => "run the plugin as root of the node",
            io::ErrorKind::ReadOnlyFilesystem => "mount the directory without readOnly",
            _ => "--kubelet-dir names the directory of the kubelet's socket",
        };
        PluginError::new(format!("failed to use {}: {error}", path.display())).advise(advice)
    }

    /// Logs a message, unless it is the last one.
    fn say(&mut self, text: String) {
        if self.said != text {
            if !text.is_empty() {
                log(&text);
            }
            self.said = text;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_resource_has_a_socket_of_its_own() {
        let dir = Path::new("/var/lib/kubelet/device-plugins");
        let endpoint = Endpoint::new("rocade.dev/nic", dir).unwrap();
        assert_eq!(endpoint.path, dir.join("rocade.dev_nic.sock"));
        let error = Endpoint::new(&format!("a.b/{}", "x".repeat(63)), dir).expect_err("too long");
        assert!(error.to_string().contains("--resource"), "{error}");
    }
}
