//! ALTER CLUSTER. The statement ends when the ring has changed; rows move on afterwards, as `carousel.migrations` shows. A
//! contraction takes two steps, and waits for the rows of the first. What is about routers ends when a majority of them
//! has agreed, and the new one votes.

use carousel_engine::{SqlError, SqlState};
use carousel_planner::AlterCluster;

use super::{Result, Session, transaction::State};

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
        let contracts = matches!(alter, AlterCluster::Contract(_));
        let (client, alter) = (self.client.clone(), alter.clone());
        let changed = async {
            match alter {
                AlterCluster::Expand { process, identifier } => {
                    client.expand(process, identifier).await.map(drop)
                }
                AlterCluster::Contract(process) => client.contract(process).await.map(drop),
                AlterCluster::Replace { process, by } => client.replace(process, by).await.map(drop),
                AlterCluster::Rebalance { process, identifier } => {
                    client.rebalance(process, identifier).await.map(drop)
                }
                AlterCluster::Remove(process) => client.remove(process).await.map(drop),
                AlterCluster::AddRouter { .. } if client.is_embedded() => {
                    Err(SqlError::unsupported("adding a router to a cluster in one process").with_hint(
                        "Clusters of separate processes take further routers; see `carousel router --help`.",
                    ))
                }
                AlterCluster::AddRouter { router, address } => {
                    let number = router.map(|router| router.number);
                    client.add_router(number, &address).await.map(drop)
                }
                AlterCluster::RemoveRouter(router) => client.remove_router(router).await,
            }
        };
        // It cannot be taken back.
        self.in_doubt = true;
        let changed = self.connection.interrupts.guard(changed).await?;
        self.in_doubt = false;
        changed?;
        let config = self.client.config();
        let live = config.storage_processes().filter(|process| !config.is_suspected(*process)).count();
        let wanted = config.replication() as usize;
        if contracts && live < wanted {
            let message = format!("each row has {live} of the {wanted} copies that it should have");
            self.warning(SqlState::SUCCESS, &message);
        }
        Ok(())
    }
}
