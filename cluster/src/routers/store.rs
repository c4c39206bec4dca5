//! The newest list of routers that a process has heard of, in its data directory: whoever is started again may find none
//! of the routers that the description names.

use std::{io, path::Path, sync::Arc};

use tokio::task::AbortHandle;

use super::Routers;
use crate::{
    embedded::StartError,
    network::Network,
    wal::{read_file, replace_file},
};

const FILE: &str = "known-routers";

/// What an earlier start has heard.
pub(crate) fn load(directory: &Path) -> Result<Option<Routers>, StartError> {
    let path = directory.join(FILE);
    let content = match read_file(&path) {
        Ok(content) => content,
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            return Err(StartError::Damaged { path, reason: error.to_string() });
        }
        Err(source) => return Err(StartError::DataDir { path, source }),
    };
    let routers = content.map(|content| postcard::from_bytes(&content)).transpose();
    routers.map_err(|error| StartError::Damaged { path, reason: error.to_string() })
}

/// Writes down what the processes here hear, until it is dropped.
pub(crate) struct Keeper(AbortHandle);

impl Drop for Keeper {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Begins to write down what the processes here hear.
pub(crate) fn keep(directory: &Path, network: &Network) -> Keeper {
    let path = directory.join(FILE);
    let mut known = network.known_routers();
    let keeping = async move {
        while known.changed().await.is_ok() {
            let routers: Arc<Routers> = known.borrow_and_update().clone();
            let path = path.clone();
            let write = move || {
                let content = postcard::to_stdvec(&*routers).map_err(io::Error::other)?;
                replace_file(&path, &content)
            };
            let written = tokio::task::spawn_blocking(write).await;
            if let Ok(Err(error)) = written {
                // What is lost can be heard again, as long as a router that is known is there.
                tracing::warn!(%error, "cannot write down who the routers are");
            }
        }
    };
    Keeper(tokio::spawn(keeping).abort_handle())
}
