//! What the m-seq means, found out by replaying it naively: one message after the other, rows in a vector of versions,
//! arithmetic in Rust. It shares no code with the engine, the storage process or the votes.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use carousel_engine::{
    SqlState, Ts, Value,
    position::KeyRange,
    schema::{Partitioning, TableId},
};

use super::statement::{Change, Conflict, Filter, Statement, number_of};
use crate::{
    config::{Config, Configuration},
    message::{Body, Data, Ddl, Incarnation, Message, MessageId, ProcessId},
    router::mseq::Routed,
    wire::Delivery,
};

/// A row in `[begin, end)`.
#[derive(Debug)]
struct Version {
    key: i64,
    n: i32,
    begin: Ts,
    end: Ts,
}

#[derive(Debug)]
struct Table {
    id: TableId,
    name: String,
    partitioning: Partitioning,
    dropped: Ts,
    versions: Vec<Version>,
}

/// How a message ends, as a function of the m-seq.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Outcome {
    /// A write changed rows; with those that RETURNING asks for.
    Written(u64, Vec<(i64, i32)>),
    /// A write failed in one of these ways.
    Failed(BTreeSet<&'static str>),
    /// It was planned against another catalog, or its rows were staged for another config or too early.
    Stale,
    /// A range it touches had no live holder.
    Unavailable,
    /// A range it touches lost all its holders before anybody knew how it had voted.
    VoteLost,
    /// Its submitter was fenced.
    Fenced,
    /// It is no write.
    None,
}

/// See the module's head.
#[derive(Debug)]
pub(super) struct Replay {
    first: Arc<Config>,
    order: Vec<Routed>,
    outcomes: Vec<Outcome>,
    /// Writes of which a vote was lost, and what had been ordered when that was found.
    aborted: BTreeMap<Ts, Ts>,
    tables: Vec<Table>,
    config: Arc<Config>,
    /// All configs that have been in force, and since when.
    configs: Vec<(Ts, Arc<Config>)>,
    /// Ranges that have been without a live holder.
    dead: BTreeSet<KeyRange>,
    /// Messages that have changed the config.
    reconfigurations: u64,
    /// Those by which rows were lost that nobody had any more.
    losses: u64,
    submitters: BTreeMap<ProcessId, (Incarnation, u64)>,
}

impl Replay {
    pub(super) fn new(config: Arc<Config>) -> Replay {
        Replay {
            first: config.clone(),
            order: Vec::new(),
            outcomes: Vec::new(),
            aborted: BTreeMap::new(),
            tables: Default::default(),
            configs: vec![(Ts::ZERO, config.clone())],
            config,
            dead: BTreeSet::new(),
            reconfigurations: 0,
            losses: 0,
            submitters: BTreeMap::new(),
        }
    }

    /// `Ts` of the last message that any router has learned.
    pub(super) fn ts(&self) -> Ts {
        Ts(self.order.len() as u64)
    }

    pub(super) fn config(&self) -> &Arc<Config> {
        &self.config
    }

    /// The configs that were in force at a `Ts` or later.
    pub(super) fn configs_since(&self, ts: Ts) -> &[(Ts, Arc<Config>)] {
        let later = self.configs.partition_point(|(since, _)| *since <= ts);
        &self.configs[later - 1..]
    }

    /// Whether one of the ranges has been without a live holder.
    pub(super) fn was_dead(&self, ranges: &[KeyRange]) -> bool {
        self.dead.iter().any(|dead| ranges.iter().any(|range| range.overlaps(dead)))
    }

    /// Messages that have changed the config.
    pub(super) fn reconfigurations(&self) -> u64 {
        self.reconfigurations
    }

    /// Those by which rows were lost that nobody had any more.
    pub(super) fn losses(&self) -> u64 {
        self.losses
    }

    /// Whether what this life of a client submits has no effect.
    pub(super) fn is_fenced(&self, submitter: ProcessId, incarnation: Incarnation) -> bool {
        self.config.is_fenced(MessageId { submitter, incarnation, sequence: 0 })
    }

    pub(super) fn outcome(&self, ts: Ts) -> Option<&Outcome> {
        self.outcomes.get((ts.0 as usize).checked_sub(1)?)
    }

    pub(super) fn message(&self, ts: Ts) -> Option<&Arc<Message>> {
        self.order.get((ts.0 as usize).checked_sub(1)?).map(|routed| &routed.message)
    }

    /// Whether a message was to be delivered to a process.
    pub(super) fn is_destination(&self, process: ProcessId, ts: Ts) -> bool {
        let routed = self.order.get((ts.0 as usize).wrapping_sub(1));
        routed
            .is_some_and(|routed| routed.destinations.iter().any(|(destination, _)| *destination == process))
    }

    /// A router has learned a message: all routers learn the same ones, without gaps, each once, those of a submitter
    /// in the order of their numbers.
    pub(super) fn learn(&mut self, routed: &Routed, statements: &[Statement]) -> Result<(), String> {
        let at = routed.ts.0 as usize - 1;
        if let Some(known) = self.order.get(at) {
            return match known.message.id == routed.message.id && known.destinations == routed.destinations {
                true => Ok(()),
                false => Err(format!("total order: at {} both {known:?} and {routed:?}", routed.ts)),
            };
        }
        if at != self.order.len() {
            return Err(format!("the m-seq goes on with {} after {}", routed.ts, self.ts()));
        }
        let MessageId { submitter, incarnation, sequence } = routed.message.id;
        let last = self.submitters.get(&submitter).copied().unwrap_or((incarnation, 0));
        let expected = if last.0 == incarnation { last.1 + 1 } else { 1 };
        if incarnation < last.0 || sequence != expected {
            let id = routed.message.id;
            return Err(format!("{} is {id:?}, after number {} of life {}", routed.ts, last.1, last.0));
        }
        self.submitters.insert(submitter, (incarnation, sequence));
        if let Body::Data(_) = &routed.message.body
            && self.config.destset(&routed.message)[..] != routed.destinations[..]
        {
            let wanted = self.config.destset(&routed.message);
            return Err(format!("{} goes to {:?} instead of {wanted:?}", routed.ts, routed.destinations));
        }
        let outcome = self.apply(routed.ts, &routed.message, statements);
        self.order.push(routed.clone());
        self.outcomes.push(outcome);
        Ok(())
    }

    /// Those who are left have found that a vote about a write is lost: it has no effect, and what follows is to be
    /// understood anew.
    pub(super) fn abort(&mut self, ts: Ts, statements: &[Statement]) -> Result<(), String> {
        if self.aborted.contains_key(&ts) {
            return Ok(());
        }
        self.aborted.insert(ts, self.ts());
        let anew = Replay { aborted: std::mem::take(&mut self.aborted), ..Replay::new(self.first.clone()) };
        let Replay { order, .. } = std::mem::replace(self, anew);
        order.iter().try_for_each(|routed| self.learn(routed, statements))
    }

    /// Whether a vote about a write before `ts` was lost.
    pub(super) fn has_lost_vote_before(&self, ts: Ts) -> bool {
        self.aborted.range(..ts).next().is_some()
    }

    /// Whether that was found when what is at `ts` had been ordered, so that some ranges may have answered it before.
    pub(super) fn has_lost_vote_since(&self, ts: Ts) -> bool {
        self.aborted.range(..ts).any(|(_, found)| *found >= ts)
    }

    fn apply(&mut self, ts: Ts, message: &Message, statements: &[Statement]) -> Outcome {
        if self.config.is_fenced(message.id) {
            return Outcome::Fenced;
        }
        match &message.body {
            Body::Data(data) => match number_of(message).and_then(|number| statements.get(number)) {
                Some(statement) if !statement.is_read() => self.write(ts, message, data, statement),
                _ => Outcome::None,
            },
            Body::Ddl(ddl) => {
                self.define(ts, ddl);
                Outcome::None
            }
            Body::Configuration(configuration) => {
                if let Ok(Some(config)) = self.config.apply(message, ts) {
                    let lost: BTreeSet<KeyRange> =
                        self.config.losses(message).into_iter().map(|loss| loss.range).collect();
                    self.losses += u64::from(!lost.is_empty());
                    lost.iter().for_each(|range| self.lose(ts, &[*range]));
                    self.dead.extend(lost);
                    self.config = Arc::new(config);
                    self.configs.push((ts, self.config.clone()));
                    self.reconfigurations += 1;
                    let is_dead = |range: &KeyRange| self.config.without_holder(&[*range]).is_some();
                    self.dead.extend(self.config.primary_ranges().filter(is_dead));
                    if let Configuration::Keyspace(keyspace) = configuration {
                        keyspace.losses().for_each(|(_, ranges)| self.lose(ts, ranges));
                        self.losses += u64::from(keyspace.losses().next().is_some());
                    }
                }
                Outcome::None
            }
            Body::Pin { .. } | Body::Checkpoint => Outcome::None,
        }
    }

    /// Rows that nobody has any more are gone.
    fn lose(&mut self, ts: Ts, ranges: &[KeyRange]) {
        for Table { partitioning, versions, .. } in &mut self.tables {
            for version in versions.iter_mut().filter(|version| version.end == Ts::INFINITY) {
                let position = partitioning.position(&[Value::Int8(version.key)]);
                if ranges.iter().any(|range| range.contains(position)) {
                    version.end = ts;
                }
            }
        }
    }

    fn define(&mut self, ts: Ts, ddl: &Ddl) {
        match ddl {
            Ddl::CreateTable { schema, .. } => {
                let (id, name, partitioning) =
                    (TableId(ts.0), schema.name.clone(), schema.partitioning.clone());
                if self.tables.iter().all(|table| table.name != name || table.dropped != Ts::INFINITY) {
                    let (dropped, versions) = (Ts::INFINITY, Vec::new());
                    self.tables.push(Table { id, name, partitioning, dropped, versions });
                }
            }
            Ddl::DropTables { names, .. } => {
                for table in self.tables.iter_mut().filter(|table| table.dropped == Ts::INFINITY) {
                    if names.contains(&table.name) {
                        table.dropped = ts;
                    }
                }
            }
        }
    }

    /// Whether the tables that a message names are there for what sees everything before `ts`.
    pub(super) fn is_current(&self, message: &Message, ts: Ts) -> bool {
        message.tables.iter().all(|(id, _)| {
            self.tables.iter().any(|table| table.id == *id && Ts(id.0) < ts && ts <= table.dropped)
        })
    }

    fn write(&mut self, ts: Ts, message: &Message, data: &Data, statement: &Statement) -> Outcome {
        let in_time = data
            .staged
            .as_ref()
            .is_none_or(|staged| staged.config_version == self.config.version() && ts <= staged.latest);
        if !in_time || !self.is_current(message, ts) {
            return Outcome::Stale;
        }
        if self.config.without_holder(&message.ranges).is_some() {
            return Outcome::Unavailable;
        }
        if self.aborted.contains_key(&ts) {
            return Outcome::VoteLost;
        }
        let Ok(operation) = data.operation.open() else { return Outcome::Stale };
        let Some(table) = self.tables.iter_mut().find(|table| table.id == operation.table) else {
            return Outcome::Stale;
        };
        let mut failures = BTreeSet::new();
        // Versions that end, and those that begin.
        let (mut ended, mut begun) = (Vec::new(), Vec::new());
        let mut rows = 0;
        let live = |version: &&(usize, &Version)| version.1.end == Ts::INFINITY;
        let numbered: Vec<(usize, &Version)> = table.versions.iter().enumerate().collect();
        match statement {
            Statement::Insert { rows: inserted, conflict } => {
                for (key, n) in inserted {
                    let old = numbered.iter().filter(live).find(|(_, version)| version.key == *key);
                    match (old, conflict) {
                        (None, _) => begun.push((*key, *n)),
                        (Some(_), Conflict::Nothing) => continue,
                        (Some(_), Conflict::Fail) => drop(failures.insert("23505")),
                        (Some((index, version)), Conflict::Add) => match version.n.checked_add(*n) {
                            Some(sum) => {
                                ended.push(*index);
                                begun.push((*key, sum));
                            }
                            None => drop(failures.insert("22003")),
                        },
                    }
                    rows += 1;
                }
            }
            Statement::Update { filter, change, .. } => {
                for (index, version) in numbered.iter().filter(live) {
                    if filter.holds(version.key, version.n) {
                        match changed(version.n, *change) {
                            Ok(n) => {
                                ended.push(*index);
                                begun.push((version.key, n));
                            }
                            Err(code) => drop(failures.insert(code)),
                        }
                        rows += 1;
                    }
                }
            }
            Statement::Delete { filter } => {
                for (index, version) in numbered.iter().filter(live) {
                    if filter.holds(version.key, version.n) {
                        ended.push(*index);
                        rows += 1;
                    }
                }
            }
            // TRUNCATE counts nothing.
            Statement::Truncate => ended.extend(numbered.iter().filter(live).map(|(index, _)| *index)),
            Statement::Rows(_) | Statement::Total(_) => {}
        }
        if !failures.is_empty() {
            return Outcome::Failed(failures);
        }
        ended.into_iter().for_each(|index| table.versions[index].end = ts);
        let returned = match statement {
            Statement::Update { returning: true, .. } => begun.clone(),
            _ => Vec::new(),
        };
        let end = Ts::INFINITY;
        table.versions.extend(begun.into_iter().map(|(key, n)| Version { key, n, begin: ts, end }));
        Outcome::Written(rows, returned)
    }

    /// The rows of a table that what sees everything before `ts` sees, in the order of their keys.
    pub(super) fn rows(&self, table: TableId, filter: &Filter, ts: Ts) -> Vec<(i64, i32)> {
        let versions = self.tables.iter().filter(|known| known.id == table).flat_map(|table| &table.versions);
        let seen = versions.filter(|version| version.begin < ts && ts <= version.end);
        let mut rows: Vec<(i64, i32)> = seen
            .filter(|version| filter.holds(version.key, version.n))
            .map(|version| (version.key, version.n))
            .collect();
        rows.sort_unstable();
        rows
    }

    /// A process has been given deliveries that continue what it had up to `after`: they are its share of the m-seq, no
    /// less and no more.
    pub(super) fn delivered(
        &self,
        to: ProcessId,
        after: Ts,
        frontier: Ts,
        deliveries: &[Delivery],
    ) -> Result<(), String> {
        if frontier > self.ts() {
            return Err(format!("{to} has frontier {frontier}, but the m-seq ends at {}", self.ts()));
        }
        let new = |delivery: &&Delivery| delivery.ts > after && delivery.message.id.is_ordered();
        let mut given = deliveries.iter().filter(new);
        for routed in &self.order[after.0.min(frontier.0) as usize..frontier.0 as usize] {
            let Ok(index) = routed.destinations.binary_search_by_key(&to, |(process, _)| *process) else {
                continue;
            };
            let ranges = &routed.destinations[index].1;
            match given.next() {
                Some(delivery)
                    if delivery.ts == routed.ts
                        && delivery.message.id == routed.message.id
                        && delivery.ranges == *ranges => {}
                other => {
                    let other = other.map(|delivery| (delivery.ts, delivery.message.id));
                    return Err(format!("{to} gets {other:?} instead of {} up to {frontier}", routed.ts));
                }
            }
        }
        match given.next() {
            Some(delivery) => Err(format!("{to} gets {}, of which it is no destination", delivery.ts)),
            None => Ok(()),
        }
    }
}

fn changed(n: i32, change: Change) -> Result<i32, &'static str> {
    match change {
        Change::Set(value) => Ok(value),
        Change::Add(value) => n.checked_add(value).ok_or("22003"),
        Change::DivideBy(value) => {
            let divisor = n.checked_sub(value).ok_or("22003")?;
            1000i32.checked_div(divisor).ok_or("22012")
        }
    }
}

/// Whether an error is one of those that the replay foresees.
pub(super) fn foreseen(outcome: &Outcome, code: SqlState) -> bool {
    match outcome {
        Outcome::Failed(codes) => codes.contains(code.as_str()),
        Outcome::Unavailable => code == SqlState::UNAVAILABLE,
        _ => false,
    }
}
