//! Changes of the ring on behalf of users and super processes (paper, sections 6.4 and 6.5).

use std::{sync::Arc, time::Duration};

use carousel_engine::{
    SqlError, SqlState, Ts,
    position::{KeyRange, Position, normalise},
};
use tokio::sync::oneshot;

use super::{Client, Command, Failure, Part, Request, View};
use crate::{
    config::{Change, Config, ConfigError, Configuration, Keyspace, Loss, Membership},
    message::{Body, Incarnation, ProcessId},
    routers::change::DUPLICATE_OBJECT,
    storage::migration::{Arrived, PartId},
};

/// How a change is planned: whether rows may be lost by it, as nobody who is alive has them.
type Plan = fn(&Config, Change) -> Result<Keyspace, ConfigError>;

/// The config in which a process is given up, and what is lost with it.
type GivenUp = (Arc<Config>, Vec<KeyRange>);

/// 55006: whoever is to change is in the middle of another change.
const IN_USE: SqlState = SqlState(*b"55006");
/// How often a change is planned again because the config has changed meanwhile.
const ATTEMPTS: usize = 16;
/// How long storage processes have to cut segments before a change.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long a process has to be out of reach before it is given up: longer than it takes to connect.
const ABSENCE: Duration = Duration::from_secs(3);
/// How often it is looked for meanwhile.
const LOOKS: u32 = 30;

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
                // Where it is not known what came of it, a further change could be one too many.
                Err(error)
                    if error.code != SqlState::OUTCOME_UNKNOWN
                        && self.config().version() != planned
                        && attempt < ATTEMPTS => {}
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

    /// Gives a standby a place on the ring: this one, or the lowest one that is there, or a new process where one can be started;
    /// at an identifier, or in the middle of the widest primary range. Returns it and the `Ts` of the change.
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
        self.with_standby(process, expand).await
    }

    /// A change with this standby, or with one that is chosen.
    async fn with_standby(
        &self,
        wanted: Option<ProcessId>,
        change: impl Fn(&Config, ProcessId) -> Change,
    ) -> Result<(ProcessId, Ts), SqlError> {
        loop {
            let chosen = self.standby(&self.config(), wanted, Config::plan, &change).await?;
            match self.reshape_by(|config: &Config| Ok(change(config, chosen))).await {
                Err(error) if wanted.is_none() && self.is_taken(chosen, &error) => {}
                outcome => return Ok((chosen, outcome?)),
            }
        }
    }

    /// Whether a change that nobody named a standby for failed as another change has taken the one that was chosen.
    fn is_taken(&self, standby: ProcessId, error: &SqlError) -> bool {
        error.code == DUPLICATE_OBJECT && self.config().is_active(standby)
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
        self.with_standby(by, |_, by| Change::Replace { process, by }).await
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
    /// [`Config::end_of_primary`]. Waits for the rows of the first, whoever has asked for that.
    ///
    /// # Errors
    /// When the change is impossible.
    pub async fn contract(&self, process: ProcessId) -> Result<Ts, SqlError> {
        let moves = |config: &Config| {
            let is_of_it = |change: &Change| matches!(change, Change::Rebalance { process: moved, .. } if *moved == process);
            config.moves_rows_by_contractions()
                && config.is_active(process)
                && !config.is_suspected(process)
                && config.migrations().values().any(|migration| is_of_it(&migration.change))
        };
        let step = |config: &Config| {
            let end = config.end_of_primary(process);
            // Ranges that it has just left would have nobody who has all their rows.
            if end.is_none() && moves(config) {
                return Err(SqlError::new(IN_USE, format!("{process} is moving")));
            }
            config.plan(Change::Contract { process })?;
            Ok(match end {
                Some(identifier) => Change::Rebalance { process, identifier },
                None => Change::Contract { process },
            })
        };
        let mut moved = None;
        loop {
            let error = match self.reshape_as(Config::plan, step).await {
                Ok((ts, Keyspace { change: Change::Contract { .. }, .. })) => return Ok(ts),
                Ok((ts, _)) => {
                    moved = Some(ts);
                    continue;
                }
                Err(error) if error.code == IN_USE => match self.config_when(|config| !moves(config)).await {
                    Ok(_) => continue,
                    Err(error) => error,
                },
                Err(error) => error,
            };
            return match moved {
                None => Err(error),
                // It has died meanwhile, and a super process has done it.
                Some(ts) if !self.config().is_active(process) => Ok(ts),
                // It may have left.
                Some(_) if error.code == SqlState::OUTCOME_UNKNOWN => Err(error),
                Some(_) => Err(error.with_detail(format!(
                    "{process} stands at the end of its range now, and stays on the ring until it is said again."
                ))),
            };
        }
    }

    /// Lets a standby take the place of a process of which nothing is to be hoped any more: ranges that nobody else has are
    /// empty from then on. Returns what is lost, and the `Ts` of the change.
    ///
    /// # Errors
    /// As [`Client::replace`], and when the process is there and others have not what it has.
    pub async fn replace_with_loss(
        &self,
        process: ProcessId,
        by: Option<ProcessId>,
    ) -> Result<(Ts, Vec<KeyRange>), SqlError> {
        let given_up = self.given_up(process)?;
        if given_up.is_some() && !self.config().is_active(process) {
            let message = format!("{process} has left the ring, but is to send what it alone has");
            let hint = format!("ALTER CLUSTER CONTRACT BY {process} WITH DATA LOSS gives that up.");
            return Err(SqlError::new(SqlState(*b"55000"), message).with_hint(hint));
        }
        let (mut config, _) = given_up.unwrap_or_else(|| (self.config(), Vec::new()));
        let replace = |_: &Config, by| Change::Replace { process, by };
        let is_done =
            |config: &Config| !config.is_active(process) && by.is_none_or(|by| config.is_active(by));
        let mut lost = None;
        loop {
            let outcome = match self.standby(&config, by, Config::plan_with_loss, replace).await {
                Ok(chosen) => {
                    let change = replace(&config, chosen);
                    match self.change_with_loss(process, change, is_done, &mut lost).await {
                        // The process has been given up, and healing has used the standby for another one.
                        Err(error) if by.is_none() && self.is_taken(chosen, &error) => {
                            config = self.config();
                            continue;
                        }
                        outcome => outcome,
                    }
                }
                Err(error) => Err(error),
            };
            return match (outcome, lost) {
                // A super process has done it meanwhile.
                (Err(_), Some(lost)) if is_done(&self.config()) => Ok(lost),
                (outcome, lost) => outcome.map_err(|error| with_loss(error, process, lost.as_ref())),
            };
        }
    }

    /// Lets such a process leave the ring; or if it has left, without having sent what it alone has, the system.
    ///
    /// # Errors
    /// As [`Client::replace_with_loss`].
    pub async fn contract_with_loss(&self, process: ProcessId) -> Result<(Ts, Vec<KeyRange>), SqlError> {
        let change = Change::Contract { process };
        let given_up = self.given_up(process)?;
        match given_up {
            Some((_, lost)) if !self.config().is_active(process) => Ok((self.give_up(process).await?, lost)),
            None if self.config().plan(change).is_ok() => Ok((self.contract(process).await?, Vec::new())),
            _ => {
                let mut lost = None;
                let is_done = |config: &Config| !config.is_active(process);
                let outcome = self.change_with_loss(process, change, is_done, &mut lost).await;
                outcome.map_err(|error| with_loss(error, process, lost.as_ref()))
            }
        }
    }

    /// What would be if a process were given up; nothing, unless it has what nobody else has.
    fn given_up(&self, process: ProcessId) -> Result<Option<GivenUp>, SqlError> {
        let config = self.config();
        if config.is_suspected(process) || config.solely_held(process).is_none() {
            return Ok(None);
        }
        if config.has_received_nothing(process) && config.is_receiving(process) {
            let message =
                format!("{process} has nothing yet of what others are to send to it: it need not be lost");
            let hint = format!("Start {process} again, with an empty data directory if its own is gone.");
            return Err(SqlError::new(SqlState(*b"55000"), message).with_hint(hint));
        }
        let next = config.suspect(process, Incarnation::MAX, Ts::ZERO)?;
        let next = next.map_or_else(|| config.clone(), Arc::new);
        let dies = |range: &KeyRange| {
            next.without_holder(&[*range]).is_some() && config.without_holder(&[*range]).is_none()
        };
        let lost = config.primary_ranges().filter(dies);
        let received = config.losses_with(process, Incarnation::MAX).into_iter().map(|loss| loss.range);
        let lost = normalise(lost.chain(received).collect());
        Ok(Some((next, lost)))
    }

    /// Gives a process up, if it has what nobody else has and has not been given up, and makes a change. Nothing is given up for
    /// one that is impossible. What has been given up is in `lost` from then on, and when.
    async fn change_with_loss(
        &self,
        process: ProcessId,
        change: Change,
        is_done: impl Fn(&Config) -> bool,
        lost: &mut Option<(Ts, Vec<KeyRange>)>,
    ) -> Result<(Ts, Vec<KeyRange>), SqlError> {
        let given_up = if lost.is_none() { self.given_up(process)? } else { None };
        match given_up {
            Some((config, ranges)) => {
                config.plan_with_loss(change)?;
                *lost = Some((self.give_up(process).await?, ranges));
            }
            None => drop(self.config().plan_with_loss(change)?),
        }
        let mut ranges = lost.as_ref().map_or_else(Vec::new, |(_, ranges)| ranges.clone());
        match (self.reshape_as(Config::plan_with_loss, |_| Ok(change)).await, lost) {
            (Ok((ts, keyspace)), _) => {
                ranges.extend(keyspace.losses().flat_map(|(_, ranges)| ranges.iter().copied()));
                Ok((ts, normalise(ranges)))
            }
            // A super process has done it meanwhile, as for whoever is suspected.
            (Err(_), Some((ts, _))) if is_done(&self.config()) => Ok((*ts, ranges)),
            (Err(error), _) => Err(error),
        }
    }

    /// Gives up a process that is not there. How it voted about what others have executed only they know now: it must survive them.
    async fn give_up(&self, process: ProcessId) -> Result<Ts, SqlError> {
        self.make_sure_of_absence(process).await?;
        let ts = self.configure(Membership::Suspect { process, incarnation: Incarnation::MAX }).await?;
        match tokio::time::timeout(PATIENCE, self.checkpoint_of_all()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%process, %error, "no checkpoint behind the loss of its rows"),
            Err(_) => tracing::warn!(%process, "no checkpoint behind the loss of its rows yet"),
        }
        Ok(ts)
    }

    /// Everybody who is there and holds something has a durable checkpoint of the present.
    async fn checkpoint_of_all(&self) -> Result<(), SqlError> {
        let live = |config: &Config| -> Vec<ProcessId> { config.live_storage().collect() };
        if live(&self.config()).is_empty() {
            return Ok(());
        }
        let ts = self.order(Body::Checkpoint).await?;
        let is_durable = |view: &View| {
            let is_there = |process: &ProcessId| self.shared.network.reaches(self.id(), *process);
            let is_durable =
                |process: &ProcessId| view.heard.get(process).is_some_and(|heard| heard.durable >= ts);
            live(&view.config).iter().filter(|process| is_there(process)).all(is_durable)
        };
        self.shared.view.clone().wait_for(is_durable).await.map(drop).map_err(|_| self.stopped())
    }

    /// A process is not there, nor starting, as far as can be seen in a while; and who was to receive what it alone has still
    /// lacks it.
    async fn make_sure_of_absence(&self, process: ProcessId) -> Result<(), SqlError> {
        // However far it has come: who loads says so to whoever wants to connect, which all want several times in a while.
        let loadings =
            |view: &View, of: &ProcessId| view.heartbeats.get(of).map_or(0, |heartbeat| heartbeat.loadings);
        let before = self.view().clone();
        let is_starting = |of: &ProcessId| loadings(&self.view(), of) != loadings(&before, of);
        let end = tokio::time::Instant::now() + ABSENCE;
        loop {
            let is_there = self.shared.network.reaches(self.id(), process);
            if is_there || is_starting(&process) {
                let state = if is_there { "connected" } else { "starting" };
                let message = format!("{process} is {state}: its rows need not be lost");
                let error = SqlError::new(SqlState(*b"55000"), message);
                let hint = "Leave WITH DATA LOSS out. If it has lost them, as its log says, stop it, and what starts it again.";
                return Err(error.with_hint(hint));
            }
            if tokio::time::Instant::now() >= end {
                // What keeps this process from it need not keep others.
                if self.is_reached_by_routers(process).await? {
                    let message = format!(
                        "the lead router reaches {process}, though it cannot be reached from here: its rows need not be lost"
                    );
                    let hint = "Say it again in some seconds if it has just ended; carousel.storage of other front ends says who \
                                is reachable there.";
                    return Err(SqlError::new(SqlState(*b"55000"), message).with_hint(hint));
                }
                return self.make_sure_of_losses(process, &is_starting);
            }
            tokio::time::sleep(ABSENCE / LOOKS).await;
        }
    }

    /// Who was to receive what a process alone has, and can be asked, has not received it; and nobody who is there fails with it.
    fn make_sure_of_losses(
        &self,
        process: ProcessId,
        is_starting: &impl Fn(&ProcessId) -> bool,
    ) -> Result<(), SqlError> {
        let (config, heard) = (self.config(), self.heard());
        let may_tell = |receiver| self.shared.network.reaches(self.id(), receiver) || is_starting(&receiver);
        let losses = config.losses_with(process, Incarnation::MAX);
        // Who receives it from others that lack it cannot be further than they.
        let sent: Vec<&Loss> = losses.iter().filter(|loss| config.sends_alone(process, loss)).collect();
        // Somebody has nothing of what a message moves to it before it has all of it.
        let lacks = |loss: &Loss| {
            let Some(heard) = heard.get(&loss.process) else { return false };
            let is_open = |other: &&Loss| {
                let part = PartId { keyspace: other.keyspace, range: other.range };
                let is_it = |(received, arrived): &(PartId, Arrived)| *received == part && !arrived.whole;
                (other.process, other.keyspace) == (loss.process, loss.keyspace)
                    && heard.receiving.iter().any(is_it)
            };
            heard.reached < loss.keyspace || sent.iter().any(is_open)
        };
        let refused = |message: String, hint: &str| {
            Err(SqlError::new(SqlState(*b"55000"), message).with_hint(hint.to_string()))
        };
        if let Some(Loss { process: receiver, range, .. }) =
            sent.iter().find(|loss| may_tell(loss.process) && !lacks(loss))
        {
            let message = format!("{receiver} may have all of range {range} that {process} was to send");
            return refused(
                message,
                "Wait until carousel.migrations says that it receives, or has received it.",
            );
        }
        let next = config.suspect(process, Incarnation::MAX, Ts::ZERO)?;
        let fails = |other: &ProcessId| {
            *other != process && next.as_ref().is_some_and(|next| next.is_suspected(*other))
        };
        let mut failing = config.live_storage().filter(fails);
        match failing.find(|other| may_tell(*other)) {
            None => Ok(()),
            Some(other) => {
                let message =
                    format!("{other} waits for {process} to send what others have, and would fail with it");
                refused(message, "Stop it before, if what it alone has may be lost, too.")
            }
        }
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

    /// The first of these that is there. One that has just joined is being connected to.
    async fn first_there(&self, processes: &[ProcessId]) -> Option<ProcessId> {
        let is_there = |process: &ProcessId| self.shared.network.reaches(self.id(), *process);
        for _ in 0..LOOKS {
            match processes.iter().copied().find(is_there) {
                None if !processes.is_empty() => tokio::time::sleep(ABSENCE / LOOKS).await,
                found => return found,
            }
        }
        None
    }

    /// The standby that is wanted; or else the lowest one that is there and with which the change of a config is possible; or, where
    /// it is possible with none, the lowest one, with which it tells why it is not; or a new one. A later life of one on the ring
    /// that is suspected only fits there.
    async fn standby(
        &self,
        config: &Config,
        wanted: Option<ProcessId>,
        plan: Plan,
        change: impl Fn(&Config, ProcessId) -> Change,
    ) -> Result<ProcessId, SqlError> {
        if let Some(standby) = wanted {
            return Ok(standby);
        }
        let fits = |standby: &ProcessId| plan(config, change(config, *standby)).is_ok();
        let fitting: Vec<ProcessId> = config.standbys().filter(fits).collect();
        if let Some(standby) = self.first_there(&fitting).await {
            return Ok(standby);
        }
        if fitting.is_empty() {
            // What is impossible with anybody is no matter of standbys.
            let (with_another, another) = config.with_another_standby();
            plan(&with_another, change(&with_another, another))?;
            if let Some(standby) = config.standbys().find(|standby| !config.is_active(*standby)) {
                return Ok(standby);
            }
        }
        let none = || {
            let fitting: Vec<String> = fitting.iter().map(ToString::to_string).collect();
            let (message, hint) = match fitting.is_empty() {
                true => (
                    "there is no standby storage process".into(),
                    "Start one with `carousel storage --join`.",
                ),
                // One that does not run would be waited for by whoever needs what it is to hold.
                false => (
                    format!("no standby storage process can be reached: not {}", fitting.join(" nor ")),
                    "Start one, or name the one that is to be waited for.",
                ),
            };
            SqlError::new(SqlState(*b"55000"), message).with_hint(hint)
        };
        let founder = self.shared.network.founder().ok_or_else(none)?;
        let (answer, founded) = oneshot::channel();
        founder.send(answer).await.map_err(|_| self.stopped())?;
        founded.await.map_err(|_| self.stopped())?
    }
}

/// What has been given up is lost, whatever has come of the change.
fn with_loss(error: SqlError, process: ProcessId, lost: Option<&(Ts, Vec<KeyRange>)>) -> SqlError {
    let Some((_, ranges)) = lost else { return error };
    let ranges: Vec<String> = ranges.iter().map(ToString::to_string).collect();
    let (ranges, before) = (ranges.join(" and "), error.detail.clone().unwrap_or_default());
    let detail = format!("{before} {process} has been given up: the rows of range {ranges} are lost.");
    error.with_detail(detail.trim_start())
}
