//! Raft's calls between routers of one operating system process: straight to the other's handle. A transport over
//! sockets replaces [`Factory`] and nothing else.

use std::{collections::HashMap, sync::Arc};

use bytes::Bytes;
use futures::StreamExt;
use openraft::{
    OptionalSend, RaftNetworkFactory, RaftNetworkV2,
    base::{BoxFuture, BoxStream},
    errors::{NetworkError, RPCError, ReplicationClosed, StreamingError, Unreachable},
    network::RPCOption,
    raft::{
        AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, StreamAppendResult, VoteRequest,
        VoteResponse,
    },
};
use parking_lot::RwLock;

use super::{RouterRaft, Snapshot, TypeConfig, Vote};

#[derive(Default)]
struct Routers {
    lives: u64,
    reachable: HashMap<u64, (u64, RouterRaft)>,
}

/// The routers that can be reached.
#[derive(Clone, Default)]
pub(crate) struct Registry(Arc<RwLock<Routers>>);

impl Registry {
    /// Makes a router reachable; returns the number of this life of it.
    pub(super) fn insert(&self, id: u64, raft: RouterRaft) -> u64 {
        let mut routers = self.0.write();
        routers.lives += 1;
        let life = routers.lives;
        routers.reachable.insert(id, (life, raft));
        life
    }

    /// Makes a router unreachable.
    pub(crate) fn remove(&self, id: u64) {
        self.0.write().reachable.remove(&id);
    }

    /// Makes a life of a router unreachable.
    pub(super) fn remove_life(&self, id: u64, life: u64) {
        let mut routers = self.0.write();
        if routers.reachable.get(&id).is_some_and(|(found, _)| *found == life) {
            routers.reachable.remove(&id);
        }
    }

    fn get(&self, id: u64) -> Result<RouterRaft, Unreachable<TypeConfig>> {
        let raft = self.0.read().reachable.get(&id).map(|(_, raft)| raft.clone());
        raft.ok_or_else(|| Unreachable::from_string(format!("router {id} is not there")))
    }
}

/// Makes connections to other routers.
pub(super) struct Factory {
    registry: Registry,
}

impl Factory {
    pub(super) fn new(registry: Registry) -> Self {
        Factory { registry }
    }
}

impl RaftNetworkFactory<TypeConfig> for Factory {
    type Network = Connection;

    async fn new_client(&mut self, target: u64, _node: &openraft::EmptyNode) -> Connection {
        Connection { registry: self.registry.clone(), target }
    }
}

/// A connection to another router.
pub(super) struct Connection {
    registry: Registry,
    target: u64,
}

/// The other router did not answer, or answered that it is stopping.
fn failed(error: impl std::fmt::Display) -> RPCError<TypeConfig> {
    RPCError::Network(NetworkError::from_string(error))
}

impl Connection {
    fn target(&self) -> Result<RouterRaft, Unreachable<TypeConfig>> {
        self.registry.get(self.target)
    }
}

/// Waits for an answer as long as openraft allows.
async fn answer<T, E: std::fmt::Display>(
    option: &RPCOption,
    call: impl Future<Output = Result<T, E>>,
) -> Result<T, RPCError<TypeConfig>> {
    match tokio::time::timeout(option.hard_ttl(), call).await {
        Ok(answer) => answer.map_err(failed),
        Err(elapsed) => Err(failed(elapsed)),
    }
}

impl RaftNetworkV2<TypeConfig> for Connection {
    type SnapshotData = Bytes;

    async fn append_entries(
        &mut self,
        rpc: AppendEntriesRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<TypeConfig>, RPCError<TypeConfig>> {
        answer(&option, self.target()?.append_entries(rpc)).await
    }

    fn stream_append<'s, S>(
        &'s mut self,
        input: S,
        _option: RPCOption,
    ) -> BoxFuture<
        's,
        Result<
            BoxStream<'s, Result<StreamAppendResult<TypeConfig>, RPCError<TypeConfig>>>,
            RPCError<TypeConfig>,
        >,
    >
    where
        S: futures::Stream<Item = AppendEntriesRequest<TypeConfig>> + OptionalSend + Unpin + 'static,
    {
        Box::pin(async move {
            let raft = self.target()?;
            let answers = raft.stream_append(input).map(|answer| answer.map_err(failed));
            let answers: BoxStream<'s, _> = Box::pin(answers);
            Ok(answers)
        })
    }

    async fn vote(
        &mut self,
        rpc: VoteRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<VoteResponse<TypeConfig>, RPCError<TypeConfig>> {
        answer(&option, self.target()?.vote(rpc)).await
    }

    async fn pre_vote(
        &mut self,
        rpc: VoteRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<VoteResponse<TypeConfig>, RPCError<TypeConfig>> {
        answer(&option, self.target()?.pre_vote(rpc)).await
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote,
        snapshot: Snapshot,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        _option: RPCOption,
    ) -> Result<SnapshotResponse<TypeConfig>, StreamingError<TypeConfig>> {
        let raft = self.target()?;
        tokio::select! {
            closed = cancel => Err(StreamingError::Closed(closed)),
            answer = raft.install_full_snapshot(vote, snapshot) => {
                answer.map_err(|error| NetworkError::from_string(error).into())
            }
        }
    }
}
