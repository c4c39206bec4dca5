//! Changing who the routers are, and what else only the lead router is asked. Not by messages of the m-seq: it is asked
//! again and again until it answers, for it may not lead any more, or may itself be the one to go.

use std::{collections::BTreeMap, sync::Arc};

use carousel_engine::SqlError;
use tokio::sync::oneshot;

use super::{Client, Command};
use crate::{
    message::{Incarnation, ProcessId},
    routers::{
        Routers,
        change::{DUPLICATE_OBJECT, RouterChange},
    },
    wire::Wire,
};

/// A request that was not answered for so long is sent again.
const ASK_AGAIN_MS: u64 = 500;

/// What the lead router is asked.
#[derive(Clone, Debug)]
pub(crate) enum Inquiry {
    /// Other routers, please.
    Change(RouterChange),
    /// Can this process be reached?
    Look(ProcessId),
}

/// What it answers.
#[derive(Debug)]
pub(crate) enum Reply {
    /// The routers are as they should be: the number of the one that it is about.
    Changed(u32),
    /// Whether it reaches the process.
    Reaches(bool),
}

/// Where the answer goes.
pub(crate) type Inquirer = oneshot::Sender<Result<Reply, SqlError>>;

/// Inquiries that have not been answered. Pure.
#[derive(Debug, Default)]
pub(super) struct Inquiries {
    count: u64,
    /// With when it was sent last.
    open: BTreeMap<u64, (Inquiry, Option<u64>)>,
}

impl Inquiries {
    /// A further one; returns its number.
    pub(super) fn ask(&mut self, inquiry: Inquiry) -> u64 {
        self.count += 1;
        self.open.insert(self.count, (inquiry, None));
        self.count
    }

    /// The request has been answered, or nobody waits for it any more.
    pub(super) fn end(&mut self, request: u64) {
        self.open.remove(&request);
    }

    /// The router in use is another, or another life of it: it has heard nothing yet.
    pub(super) fn forget_sent(&mut self) {
        self.open.values_mut().for_each(|(_, sent)| *sent = None);
    }

    /// What is to be sent now.
    pub(super) fn due(&mut self, incarnation: Incarnation, now_ms: u64) -> Vec<Wire> {
        let due =
            self.open.iter_mut().filter(|(_, (_, sent))| sent.is_none_or(|at| now_ms >= at + ASK_AGAIN_MS));
        due.map(|(request, (inquiry, sent))| {
            *sent = Some(now_ms);
            let request = *request;
            match inquiry.clone() {
                Inquiry::Change(change) => Wire::ChangeRouters { incarnation, request, change },
                Inquiry::Look(process) => Wire::Look { incarnation, request, process },
            }
        })
        .collect()
    }
}

impl Client {
    /// Who the routers are, as far as this process knows.
    pub fn routers(&self) -> Routers {
        self.shared.network.known_routers_with_addresses()
    }

    /// Who the routers are, as soon as it is as wanted.
    ///
    /// # Errors
    /// 57P01 when the client process has been stopped.
    pub async fn routers_when(&self, wanted: impl Fn(&Routers) -> bool) -> Result<Arc<Routers>, SqlError> {
        let mut routers = self.shared.network.known_routers();
        let routers = routers.wait_for(|routers| wanted(routers)).await.map_err(|_| self.stopped())?;
        Ok(routers.clone())
    }

    /// Makes the router at `address` (host:port) one of the routers: it gets the log, and votes as soon as it has caught
    /// up. Waits for that, hence also for the router to be started; whoever gives up leaves a router that will vote as
    /// soon as it runs, until it is removed. To ask again for what is so already is no error.
    ///
    /// Without a `number`, the router gets the next one that is free.
    ///
    /// # Errors
    /// 22023 when that is no address or number; 42710 when another process has the number or address, or had the number;
    /// 57P01 when the client process has been stopped.
    pub async fn add_router(&self, number: Option<u32>, address: &str) -> Result<ProcessId, SqlError> {
        if let Some(other) = self.shared.network.listens_at(address) {
            let reason = format!("{other} listens at '{address}'");
            return Err(SqlError::new(DUPLICATE_OBJECT, reason));
        }
        self.change_routers(RouterChange::Add { number, address: address.to_owned() }).await
    }

    /// Removes a router, whether it is alive or not, and waits until those that stay have agreed on it. A router that is
    /// alive stops. To remove it again is no error.
    ///
    /// # Errors
    /// 42704 when there was never such a router; 55000 when it is the last one, or when too few of the others are alive
    /// to go on without it; 57P01 when the client process has been stopped.
    pub async fn remove_router(&self, router: ProcessId) -> Result<(), SqlError> {
        self.change_routers(RouterChange::Remove { number: router.number }).await.map(drop)
    }

    async fn change_routers(&self, change: RouterChange) -> Result<ProcessId, SqlError> {
        match self.ask_routers(Inquiry::Change(change)).await? {
            Reply::Changed(number) => Ok(ProcessId::router(number)),
            Reply::Reaches(_) => Err(SqlError::internal("another question was answered")),
        }
    }

    /// Whether the lead router reaches a process.
    ///
    /// # Errors
    /// 57P01 when the client process has been stopped.
    pub(super) async fn is_reached_by_routers(&self, process: ProcessId) -> Result<bool, SqlError> {
        match self.ask_routers(Inquiry::Look(process)).await? {
            Reply::Reaches(reaches) => Ok(reaches),
            Reply::Changed(_) => Err(SqlError::internal("another question was answered")),
        }
    }

    async fn ask_routers(&self, inquiry: Inquiry) -> Result<Reply, SqlError> {
        let (done, answer) = oneshot::channel();
        self.command(Command::AskRouters { inquiry, done })?;
        answer.await.unwrap_or_else(|_| Err(self.stopped()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_sent_until_it_is_answered() {
        let mut changes = Inquiries::default();
        let number = changes.ask(Inquiry::Change(RouterChange::Remove { number: 2 }));
        let mut sent = |now_ms| changes.due(1, now_ms).len();
        assert_eq!((sent(0), sent(ASK_AGAIN_MS - 1), sent(ASK_AGAIN_MS)), (1, 0, 1));
        changes.forget_sent();
        assert_eq!(changes.due(1, ASK_AGAIN_MS).len(), 1, "another router has not heard of it");
        changes.end(number);
        assert!(changes.due(1, 10 * ASK_AGAIN_MS).is_empty());
    }
}
