//! ALTER CLUSTER. The statement ends when the ring has changed; rows move on afterwards, as `carousel.migrations` shows.

use carousel_cluster::config::Change;
use carousel_engine::{SqlError, SqlState};
use carousel_planner::AlterCluster;

use super::{Result, Session, execute::outcome_unknown, transaction::State};
use crate::connection::Failed;

impl Session<'_> {
    /// Changes the ring.
    ///
    /// # Errors
    /// 25001 in a transaction block, 42704, 42710 or 55000 when the change is impossible.
    pub(super) async fn alter_cluster(&mut self, alter: &AlterCluster) -> Result<()> {
        if self.transaction.state() != State::Idle {
            let message = "ALTER CLUSTER cannot run inside a transaction block";
            return Err(SqlError::new(SqlState::ACTIVE_TRANSACTION, message).into());
        }
        let (client, alter) = (self.client.clone(), alter.clone());
        let changed = async {
            match alter {
                AlterCluster::Expand { process, identifier } => {
                    client.expand(process, identifier).await.map(|(_, ts)| ts)
                }
                AlterCluster::Contract(process) => client.reshape(Change::Contract { process }).await,
                AlterCluster::Replace { process, by } => client.replace(process, by).await.map(|(_, ts)| ts),
                AlterCluster::Rebalance { process, identifier } => {
                    client.rebalance(process, identifier).await
                }
                AlterCluster::Remove(process) => client.remove(process).await,
                AlterCluster::AddRouter { .. } | AlterCluster::RemoveRouter(_) => {
                    Err(SqlError::unsupported("changing the routers of a running cluster"))
                }
            }
        };
        match self.connection.interrupts.guard(changed).await {
            // It cannot be taken back.
            Err(Failed::Statement(stopped)) => Err(outcome_unknown(*stopped).into()),
            outcome => Ok(outcome?.map(drop)?),
        }
    }
}
