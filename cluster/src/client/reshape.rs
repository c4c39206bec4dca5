//! Changes of the ring on behalf of users and super processes (paper, sections 6.4 and 6.5).

use std::time::Duration;

use carousel_engine::{
    SqlError, SqlState, Ts,
    position::{KeyRange, Position, normalise},
};
use tokio::sync::oneshot;

use super::{Client, Command, Failure, Part, Request};
use crate::{
    config::{Change, Config, ConfigError, Configuration, Keyspace, Membership},
    message::{Body, Incarnation, ProcessId},
};

/// How a change is planned: whether rows may be lost by it, as nobody who is alive has them.
type Plan = fn(&Config, Change) -> Result<Keyspace, ConfigError>;

/// How often a change is planned again because the config has changed meanwhile.
const ATTEMPTS: usize = 16;
/// How long storage processes have to cut segments before a change.
const PATIENCE: Duration = Duration::from_secs(30);

/// The ranges whose rows are lost by a message.
fn lost((ts, keyspace): (Ts, Keyspace)) -> (Ts, Vec<KeyRange>) {
    let ranges = keyspace.losses().flat_map(|(_, ranges)| ranges.iter().copied());
    (ts, normalise(ranges.collect()))
}

impl Client {
    /// Orders a message that names no table and no key, and waits for its end.
    ///
    /// # Errors
    /// Why it had no effect.
    pub async fn order(&self, body: Body) -> Result<Ts, SqlError> {
        let request = Request { tables: Default::default(), ranges: Default::default(), body };
        match self.submit(request).await?.finish().await {
            Ok(Part::Done { ts, .. }) => Ok(ts),
            Err(Failure::Sql(error)) => Err(error),
            other => Err(SqlError::internal(format!("such a message was answered by {other:?}"))),
        }
    }

    /// Orders a membership message.
    ///
    /// # Errors
    /// Why it had no effect.
    pub(crate) async fn configure(&self, membership: Membership) -> Result<Ts, SqlError> {
        self.order(Body::Configuration(Configuration::Membership(membership))).await
    }

    /// Changes the ring by the best keyspace message for a change (paper, section 6.5). When the config changes before
    /// the message is ordered, the change is planned again. Rows move on afterwards.
    ///
    /// # Errors
    /// When the change is impossible, or the config never holds still.
    pub async fn reshape(&self, change: Change) -> Result<Ts, SqlError> {
        self.reshape_by(|_| Ok(change)).await
    }

    /// As [`Client::reshape`]; what change it is depends on the config.
    ///
    /// # Errors
    /// As [`Client::reshape`], and when there is no change any more.
    pub(crate) async fn reshape_by(
        &self,
        change: impl Fn(&Config) -> Result<Change, SqlError>,
    ) -> Result<Ts, SqlError> {
        self.reshape_as(Config::plan, change).await.map(|(ts, _)| ts)
    }

    /// The same, planned in some way; also returns the message.
    async fn reshape_as(
        &self,
        plan: Plan,
        change: impl Fn(&Config) -> Result<Change, SqlError>,
    ) -> Result<(Ts, Keyspace), SqlError> {
        let mut attempt = 0;
        loop {
            attempt += 1;
            let config = self.config();
            let keyspace = plan(&config, change(&config)?)?;
            let planned = keyspace.version;
            self.precut(planned, config.cuts(&keyspace)).await;
            match self.order(Body::Configuration(Configuration::Keyspace(keyspace.clone()))).await {
                // This client has followed the m-seq to its own message: it knows the config that was in force.
                Err(_) if self.config().version() != planned && attempt < ATTEMPTS => {}
                outcome => return outcome.map(|ts| (ts, keyspace)),
            }
        }
    }

    /// Lets storage processes cut segments where a change planned against a config is about to cut ranges: everything waits
    /// for the change itself. One that does not answer is not waited for long.
    async fn precut(&self, version: u64, at: Vec<Position>) {
        let (done, is_done) = oneshot::channel();
        if at.is_empty() || self.command(Command::Precut { at, done }).is_err() {
            return;
        }
        tokio::select! {
            _ = is_done => {}
            // Planned again, or somebody has failed.
            _ = self.config_when(|config| config.version() != version) => {}
            () = tokio::time::sleep(PATIENCE) => tracing::info!("segments are not cut ahead of the change"),
        }
    }

    /// Gives a standby a place on the ring: this one, or the lowest one, or a new process where one can be started; at an
    /// identifier, or in the middle of the widest primary range. Returns it and the `Ts` of the change.
    ///
    /// # Errors
    /// When there is no standby, or the change is impossible.
    pub async fn expand(
        &self,
        process: Option<ProcessId>,
        identifier: Option<Position>,
    ) -> Result<(ProcessId, Ts), SqlError> {
        let expand = |config: &Config, process| Change::Expand {
            process,
            identifier: identifier.unwrap_or_else(|| config.widest_gap()),
        };
        let process = self.standby(process, Config::plan, expand).await?;
        let change = |config: &Config| Ok(expand(config, process));
        Ok((process, self.reshape_by(change).await?))
    }

    /// Lets a standby take the place of a process; see [`Client::expand`] for which.
    ///
    /// # Errors
    /// As [`Client::expand`].
    pub async fn replace(
        &self,
        process: ProcessId,
        by: Option<ProcessId>,
    ) -> Result<(ProcessId, Ts), SqlError> {
        let by = self.standby(by, Config::plan, |_, by| Change::Replace { process, by }).await?;
        Ok((by, self.reshape(Change::Replace { process, by }).await?))
    }

    /// Moves a process to an identifier, or into the middle of the widest primary range.
    ///
    /// # Errors
    /// When the change is impossible.
    pub async fn rebalance(&self, process: ProcessId, identifier: Option<Position>) -> Result<Ts, SqlError> {
        let change = |config: &Config| {
            let identifier = identifier.map_or_else(|| config.best_place(process), Ok)?;
            Ok(Change::Rebalance { process, identifier })
        };
        self.reshape_by(change).await
    }

    /// Lets a process leave the ring, in two steps if it is alive and has rows to leave to others: see
    /// [`Config::end_of_primary`]. Waits for the rows of the first.
    ///
    /// # Errors
    /// When the change is impossible.
    pub async fn contract(&self, process: ProcessId) -> Result<Ts, SqlError> {
        let step = |config: &Config| {
            config.plan(Change::Contract { process })?;
            Ok(match config.end_of_primary(process) {
                Some(identifier) => Change::Rebalance { process, identifier },
                None => Change::Contract { process },
            })
        };
        let mut has_moved = false;
        loop {
            let outcome = self.reshape_as(Config::plan, step).await;
            match outcome {
                Ok((ts, Keyspace { change: Change::Contract { .. }, .. })) => return Ok(ts),
                Ok((ts, _)) => {
                    has_moved = true;
                    self.config_when(|config| !config.migrations().contains_key(&ts)).await?;
                }
                Err(error) if has_moved => {
                    return Err(error.with_detail(format!(
                        "{process} stands at the end of its range now, and stays on the ring until it is said again."
                    )));
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Lets a standby take the place of a process of which nothing is to be hoped any more: ranges that nobody else has are
    /// empty from then on. Returns these, and the `Ts` of the change.
    ///
    /// # Errors
    /// As [`Client::replace`], and when the process is connected and others have not what it has.
    pub async fn replace_with_loss(
        &self,
        process: ProcessId,
        by: Option<ProcessId>,
    ) -> Result<(Ts, Vec<KeyRange>), SqlError> {
        self.give_up(process).await?;
        let by = self.standby(by, Config::plan_with_loss, |_, by| Change::Replace { process, by }).await?;
        let change = |_: &Config| Ok(Change::Replace { process, by });
        self.reshape_as(Config::plan_with_loss, change).await.map(lost)
    }

    /// Lets such a process leave the ring.
    ///
    /// # Errors
    /// As [`Client::replace_with_loss`].
    pub async fn contract_with_loss(&self, process: ProcessId) -> Result<(Ts, Vec<KeyRange>), SqlError> {
        self.give_up(process).await?;
        let change = |_: &Config| Ok(Change::Contract { process });
        self.reshape_as(Config::plan_with_loss, change).await.map(lost)
    }

    /// Declares all lives of a process as failed that there can ever be, if it has what nobody else has.
    async fn give_up(&self, process: ProcessId) -> Result<(), SqlError> {
        let config = self.config();
        if config.is_suspected(process) || config.solely_held(process).is_none() {
            return Ok(());
        }
        if self.shared.network.reaches(self.id(), process) {
            let message = format!("{process} is connected: its rows need not be lost");
            return Err(SqlError::new(SqlState(*b"55000"), message).with_hint("Leave WITH DATA LOSS out."));
        }
        self.configure(Membership::Suspect { process, incarnation: Incarnation::MAX }).await?;
        // How it voted about what others have executed only they know now: it must survive them.
        self.order(Body::Checkpoint).await.map(drop)
    }

    /// Lets a standby leave the system.
    ///
    /// # Errors
    /// When it is none.
    pub async fn remove(&self, process: ProcessId) -> Result<Ts, SqlError> {
        self.configure(Membership::Part { process }).await
    }

    /// The config once everything that keyspace messages have asked for has been received.
    ///
    /// # Errors
    /// 57P01 when the client process has been stopped.
    pub async fn settled(&self) -> Result<(), SqlError> {
        self.config_when(|config| config.migrations().is_empty()).await.map(|_| ())
    }

    /// Whether the whole cluster runs in this operating system process.
    pub fn is_embedded(&self) -> bool {
        self.shared.network.founder().is_some()
    }

    /// The standby that is wanted; or else the lowest one that the change is possible with, or the lowest one, with which it tells
    /// why it is not; or a new one. A later life of one on the ring that is suspected only fits there.
    async fn standby(
        &self,
        wanted: Option<ProcessId>,
        plan: Plan,
        change: impl Fn(&Config, ProcessId) -> Change,
    ) -> Result<ProcessId, SqlError> {
        if let Some(standby) = wanted {
            return Ok(standby);
        }
        let config = self.config();
        let fits = |standby: &ProcessId| plan(&config, change(&config, *standby)).is_ok();
        let other = || config.standbys().find(|standby| !config.is_active(*standby));
        if let Some(standby) = config.standbys().find(fits).or_else(other) {
            return Ok(standby);
        }
        let none = || {
            SqlError::new(SqlState(*b"55000"), "there is no standby storage process")
                .with_hint("Start one with `carousel storage --join`.")
        };
        let founder = self.shared.network.founder().ok_or_else(none)?;
        // Who is started stays: not for a change that is impossible with anybody.
        let (with_another, another) = config.with_another_standby();
        plan(&with_another, change(&with_another, another))?;
        let (answer, founded) = oneshot::channel();
        founder.send(answer).await.map_err(|_| self.stopped())?;
        founded.await.map_err(|_| self.stopped())?
    }
}
