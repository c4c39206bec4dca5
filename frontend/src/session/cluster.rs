//! ALTER CLUSTER. The statement ends when the ring has changed; rows move on afterwards, as `carousel.migrations` shows. A
//! contraction takes two steps, and waits for the rows of the first. What is about routers ends when a majority of them
//! has agreed, and the new one votes.

use std::{pin::pin, time::Duration};

use carousel_cluster::client::Client;
use carousel_engine::{SqlError, SqlState, position::KeyRange};
use carousel_planner::AlterCluster;
use tokio::time::timeout;

use super::{Result, Session, transaction::State};
use crate::protocol::backend::Severity;

/// A router that has not joined for so long is said to be waited for.
const TELLS: Duration = Duration::from_secs(3);

/// The ranges whose rows are lost by most changes.
fn nothing<T>(_: T) -> Vec<KeyRange> {
    Vec::new()
}

/// What the rows on all storage processes of the ring take together, as far as they have told.
fn used_bytes(client: &Client) -> u64 {
    let heard = client.heard();
    client.config().storage_processes().filter_map(|process| Some(heard.get(&process)?.used)).sum()
}

/// What they may take on those that are not suspected; `None` where there is no limit, or it is not known.
fn limit_bytes(client: &Client) -> Option<u64> {
    let (config, heard, share) = (client.config(), client.heard(), client.memory_share());
    config.live_storage().map(|process| share.or_else(|| heard.get(&process)?.limit)).sum()
}

impl Session<'_> {
    /// Changes the ring, or the routers.
    ///
    /// # Errors
    /// 25001 in a transaction block, 42704, 42710 or 55000 when the change is impossible.
    pub(super) async fn alter_cluster(&mut self, alter: &AlterCluster) -> Result<()> {
        if self.transaction.state() != State::Idle {
            let message = "ALTER CLUSTER cannot run inside a transaction block";
            return Err(SqlError::new(SqlState::ACTIVE_TRANSACTION, message).into());
        }
        let contracts = matches!(alter, AlterCluster::Contract { .. });
        let awaited = match alter {
            AlterCluster::AddRouter { address, .. } => {
                Some(format!("waiting for a router to join at '{address}'"))
            }
            _ => None,
        };
        let (client, alter) = (self.client.clone(), alter.clone());
        let used = used_bytes(&client);
        let changed = async {
            match alter {
                AlterCluster::Expand { process, identifier } => {
                    client.expand(process, identifier).await.map(nothing)
                }
                AlterCluster::Contract { process, accepts_loss: true } => {
                    client.contract_with_loss(process).await.map(|(_, lost)| lost)
                }
                AlterCluster::Contract { process, accepts_loss: false } => {
                    client.contract(process).await.map(nothing)
                }
                AlterCluster::Replace { process, by, accepts_loss: true } => {
                    client.replace_with_loss(process, by).await.map(|(_, lost)| lost)
                }
                AlterCluster::Replace { process, by, accepts_loss: false } => {
                    client.replace(process, by).await.map(nothing)
                }
                AlterCluster::Rebalance { process, identifier } => {
                    client.rebalance(process, identifier).await.map(nothing)
                }
                AlterCluster::Remove(process) => client.remove(process).await.map(nothing),
                AlterCluster::AddRouter { .. } if client.is_embedded() => {
                    Err(SqlError::unsupported("adding a router to a cluster in one process").with_hint(
                        "Clusters of separate processes take further routers; see `carousel router --help`.",
                    ))
                }
                AlterCluster::AddRouter { router, address } => {
                    let number = router.map(|router| router.number);
                    client.add_router(number, &address).await.map(nothing)
                }
                AlterCluster::RemoveRouter(router) => client.remove_router(router).await.map(nothing),
            }
        };
        // It cannot be taken back.
        self.in_doubt = true;
        let mut changed = pin!(changed);
        let in_time = self.connection.interrupts.guard(timeout(TELLS, &mut changed)).await?;
        let changed = match in_time {
            Ok(changed) => changed,
            Err(_) => {
                if let Some(awaited) = awaited {
                    let notice = SqlError::new(SqlState::SUCCESS, awaited).with_hint(
                        "Start it with `carousel router --join`, or cancel this and remove the router that \
                         carousel.routers shows at the address.",
                    );
                    self.notice(Severity::Notice, &notice);
                    self.connection.flush().await?;
                }
                self.connection.interrupts.guard(changed).await?
            }
        };
        self.in_doubt = false;
        let lost = changed?;
        if !lost.is_empty() {
            let ranges: Vec<String> = lost.iter().map(ToString::to_string).collect();
            let message = format!("the rows of range {} are lost", ranges.join(" and "));
            self.warning(SqlState::SUCCESS, &message);
        }
        let config = self.client.config();
        let live = config.live_storage().count();
        let wanted = config.replication() as usize;
        if contracts && live < wanted {
            let message = format!("each row has {live} of the {wanted} copies that it should have");
            self.warning(SqlState::SUCCESS, &message);
        }
        if let Some(limit) = limit_bytes(&self.client).filter(|limit| contracts && used > *limit) {
            let message = format!(
                "the rows took {used} bytes, and the storage processes that are left may take {limit}: \
                 they will refuse writes"
            );
            self.warning(SqlState::SUCCESS, &message);
        }
        Ok(())
    }
}
