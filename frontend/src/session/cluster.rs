//! ALTER CLUSTER. The statement ends when the ring has changed; rows move on afterwards, as `carousel.migrations` shows. A
//! contraction takes two steps, and waits for the rows of the first. What is about routers ends when a majority of them
//! has agreed, and the new one votes.

use std::{collections::BTreeMap, pin::pin, time::Duration};

use carousel_cluster::{
    client::room::{bytes_of_a_copy, bytes_to_hold},
    config::Config,
    message::ProcessId,
};
use carousel_engine::{
    SqlError, SqlState,
    position::{KeyRange, normalise},
};
use carousel_planner::AlterCluster;
use tokio::time::timeout;

use super::{Result, Session, transaction::State};
use crate::protocol::backend::Severity;

/// What has not come for so long is said to be waited for: a router that joins, and rows that somebody has who is not there.
const TELLS: Duration = Duration::from_secs(3);

/// The ranges whose rows are lost by most changes.
fn nothing<T>(_: T) -> Vec<KeyRange> {
    Vec::new()
}

/// Who may not take what it is to hold, if rows are spread evenly: the process, what that takes, and its limit.
fn overfull(
    config: &Config,
    of_a_copy: u64,
    limit: impl Fn(ProcessId) -> Option<u64>,
) -> Vec<(ProcessId, u64, u64)> {
    let wanted = |process| bytes_to_hold(config, process, of_a_copy);
    let found = config.live_storage().filter_map(|process| Some((process, wanted(process), limit(process)?)));
    found.filter(|(_, wanted, limit)| wanted > limit).collect()
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
        let moves_rows = !matches!(
            alter,
            AlterCluster::Remove(_) | AlterCluster::AddRouter { .. } | AlterCluster::RemoveRouter(_)
        );
        let awaited = match alter {
            AlterCluster::AddRouter { address, .. } => Some((
                format!("waiting for a router to join at '{address}'"),
                "Start it with `carousel router --join`, or cancel this and remove the router that carousel.routers \
                 shows at the address.",
            )),
            AlterCluster::RemoveRouter(router) => Some((
                format!("waiting for the routers to agree that {router} is removed"),
                "The lead router takes changes one by one.",
            )),
            _ => None,
        };
        let (client, alter) = (self.client.clone(), alter.clone());
        let of_a_copy = bytes_of_a_copy(&client.config(), &client.heard());
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
        // A request to cancel that has come before says nothing of what has not begun.
        self.connection.interrupts.check().await?;
        // It cannot be taken back.
        self.in_doubt = true;
        let mut changed = pin!(changed);
        let in_time = self.connection.interrupts.guard(timeout(TELLS, &mut changed)).await?;
        let changed = match in_time {
            Ok(changed) => changed,
            Err(_) => {
                let notice = match (self.client.leader(), awaited) {
                    (Some(_), awaited) => awaited,
                    (None, awaited) => {
                        let awaited = awaited.map(|(awaited, _)| awaited);
                        let awaited =
                            awaited.unwrap_or_else(|| "waiting for the change to be ordered".into());
                        let hint = "More than half of the routers that vote have to reach each other.";
                        Some((format!("{awaited}, but no router leads"), hint))
                    }
                };
                if let Some((message, hint)) = notice {
                    let notice = SqlError::new(SqlState::SUCCESS, message).with_hint(hint);
                    self.notice(Severity::Notice, &notice);
                }
                if moves_rows {
                    self.tell_awaited_rows();
                }
                self.connection.flush().await?;
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
        if !moves_rows {
            return Ok(());
        }
        self.tell_awaited_rows();
        let (heard, share) = (self.client.heard(), self.client.memory_share());
        let limit = |process| share.or_else(|| heard.get(&process)?.limit);
        for (process, wanted, limit) in overfull(&config, of_a_copy, limit) {
            let message = format!(
                "the rows that {process} is to hold may take about {wanted} bytes, and its limit is {limit}: writes to \
                 it will be refused"
            );
            self.warning(SqlState::SUCCESS, &message);
        }
        Ok(())
    }

    /// Says which rows cannot move before somebody is back.
    fn tell_awaited_rows(&mut self) {
        let mut awaited: BTreeMap<Vec<ProcessId>, Vec<KeyRange>> = BTreeMap::new();
        for (range, holders) in self.client.out_of_reach() {
            awaited.entry(holders).or_default().push(range);
        }
        for (holders, ranges) in awaited {
            let shown = |all: Vec<String>, between: &str| all.join(between);
            let ranges = shown(normalise(ranges).iter().map(ToString::to_string).collect(), " and ");
            let holders = shown(holders.iter().map(ToString::to_string).collect(), " or ");
            let message = format!(
                "the rows of range {ranges} wait for {holders}: nobody else who can be reached has them"
            );
            let hint = format!(
                "Start {holders} again. If what they have is lost for good, ALTER CLUSTER REPLACE, or CONTRACT BY, each of them \
                 WITH DATA LOSS gives the rows up."
            );
            self.notice(Severity::Warning, &SqlError::new(SqlState::SUCCESS, message).with_hint(hint));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_too_little_room_is_named() {
        let config = Config::evenly(4, 2).expect("a ring");
        let small = ProcessId::storage(3);
        let limit =
            |process| (process != ProcessId::storage(1)).then_some(if process == small { 499 } else { 501 });
        assert_eq!(overfull(&config, 1_000, limit), [(small, 500, 499)]);
        assert_eq!(overfull(&config, 990, limit), []);
    }
}
