//! The newest list of routers that a process has heard of, in its data directory: whoever is started again may find none
//! of the routers that the description names.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use parking_lot::Mutex;
use tokio::{sync::watch, task::AbortHandle};

use super::{Edition, Routers};
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

/// Writes down what the processes here hear, until it is dropped or closed.
pub(crate) struct Keeper {
    task: AbortHandle,
    known: watch::Receiver<Arc<Routers>>,
    file: Arc<Mutex<File>>,
}

struct File {
    path: PathBuf,
    /// What was written last.
    written: Option<Edition>,
    closed: bool,
}

impl File {
    fn write(&mut self, routers: &Routers) -> io::Result<()> {
        // Of which cluster it is has to be known.
        let edition = routers.edition();
        if self.closed || edition.cluster.is_none() || self.written == Some(edition) {
            return Ok(());
        }
        replace_file(&self.path, &postcard::to_stdvec(routers).map_err(io::Error::other)?)?;
        self.written = Some(edition);
        Ok(())
    }
}

impl Keeper {
    /// Writes down what is known now, and ends: the directory may have another life's files from then on, or be gone.
    pub(crate) async fn close(&self) {
        let (file, routers) = (self.file.clone(), self.known.borrow().clone());
        let close = move || {
            let mut file = file.lock();
            tell(file.write(&routers));
            file.closed = true;
        };
        // Only a panic could end it before.
        let _ = tokio::task::spawn_blocking(close).await;
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn tell(written: io::Result<()>) {
    if let Err(error) = written {
        // What is lost can be heard again, as long as a router that is known is there.
        tracing::warn!(%error, "cannot write down who the routers are");
    }
}

/// Begins to write down what the processes here hear.
pub(crate) fn keep(directory: &Path, network: &Network) -> Keeper {
    let file = File { path: directory.join(FILE), written: None, closed: false };
    let (file, known) = (Arc::new(Mutex::new(file)), network.known_routers());
    let (writing, mut changes) = (file.clone(), known.clone());
    let keeping = async move {
        while changes.changed().await.is_ok() {
            let routers: Arc<Routers> = changes.borrow_and_update().clone();
            let file = writing.clone();
            let _ = tokio::task::spawn_blocking(move || tell(file.lock().write(&routers))).await;
        }
    };
    Keeper { task: tokio::spawn(keeping).abort_handle(), known, file }
}

/// As [`Keeper::close`], where there is one.
pub(crate) async fn close(keeper: Option<&Keeper>) {
    if let Some(keeper) = keeper {
        keeper.close().await;
    }
}
