//! Starting further storage processes in this operating system process.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    sync::Arc,
};

use carousel_engine::{SqlError, SqlState};
use tokio::{
    sync::{mpsc, oneshot, watch},
    task::AbortHandle,
};

use crate::{
    client::Client,
    config::Config,
    embedded::{EmbeddedOptions, StartError, start_storage},
    message::ProcessId,
    network::Network,
    storage::StorageHandle,
};

/// Where a new storage process is asked for; the answer is the process, as a standby.
pub(crate) type Founding = mpsc::Sender<oneshot::Sender<Result<ProcessId, SqlError>>>;

/// Starts storage processes of an embedded cluster.
#[derive(Clone)]
pub(crate) struct Founder {
    pub(crate) options: EmbeddedOptions,
    pub(crate) config: Config,
    pub(crate) network: Network,
    pub(crate) client: Client,
    pub(crate) storage: Arc<watch::Sender<BTreeMap<u32, StorageHandle>>>,
}

impl Founder {
    /// Answers whoever asks the network for storage processes, until it is aborted.
    pub(crate) fn serve(self) -> AbortHandle {
        let (questions, mut asked) = mpsc::channel::<oneshot::Sender<_>>(16);
        self.network.set_founder(questions);
        let serving = async move {
            while let Some(answer) = asked.recv().await {
                // Whoever has gone away leaves a standby behind.
                let _ = answer.send(self.found().await);
            }
        };
        tokio::spawn(serving).abort_handle()
    }

    /// Starts a further storage process and waits until it is part of the system.
    pub(crate) async fn found(&self) -> Result<ProcessId, SqlError> {
        let failed = |error: StartError| SqlError::new(SqlState::UNAVAILABLE, error.to_string());
        let number = storage_numbers(&self.options).map_err(failed)?.last().map_or(1, |last| last + 1);
        let started = start_storage(&self.options, &self.config, &self.network, number, None);
        let storage = started.await.map_err(failed)?;
        let mut progress = storage.progress();
        self.storage.send_modify(|all| drop(all.insert(number, storage)));
        let process = ProcessId::storage(number);
        tokio::select! {
            // It may have been given a place at once, for somebody else.
            config = self.client.config_when(|config| config.contains(process)) => {
                config.map(|_| process)
            }
            Ok(stopped) = progress.wait_for(|progress| progress.stopped.is_some()) => {
                let reason = stopped.stopped.clone().unwrap_or_default();
                Err(SqlError::new(SqlState::UNAVAILABLE, format!("{process} has stopped: {reason}")))
            }
        }
    }
}

/// The storage processes of the first config, and those that have been added.
pub(crate) fn storage_numbers(options: &EmbeddedOptions) -> Result<BTreeSet<u32>, StartError> {
    let mut numbers: BTreeSet<u32> = (1..=options.storage).collect();
    let path = options.data_dir.join("storage");
    match fs::read_dir(&path) {
        Ok(entries) => {
            for entry in entries {
                let entry = entry.map_err(|source| StartError::DataDir { path: path.clone(), source })?;
                let name = entry.file_name();
                numbers.extend(name.to_str().and_then(|name| name.strip_prefix('s')?.parse::<u32>().ok()));
            }
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(source) => return Err(StartError::DataDir { path, source }),
    }
    Ok(numbers)
}
