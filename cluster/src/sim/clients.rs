//! Client processes of the simulated cluster: [`crate::client::core`] with users who ask what [`super::statement`] can
//! say, and check every answer against [`super::replay`].

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use carousel_engine::{SqlError, SqlState, TableSchema, Ts, Value, aggregate::Group, position::KeyRange};

use super::{
    payloads::Stages,
    replay::{Outcome, foreseen},
    statement::{Filter, Statement, number_of, schema},
    stores::rows_of,
    supers,
    world::{Item, Phase, World},
};
use crate::{
    client::{
        Failure, Inquiry, Part, Request, View,
        core::{Core, CoreOptions, Effect, Event},
        staged_ranges,
    },
    config::{Config, Configuration, Membership},
    message::{Body, Ddl, Incarnation, ProcessId, ProcessKind, ReadIsolation, StagedPayload},
    routers::change::RouterChange,
    super_process::Watch,
    wire::Wire,
};

/// Statements of one client that are under way.
const UNDER_WAY: usize = 6;
const LEASE_MS: u32 = 3_000;

/// What a user waits for.
#[derive(Debug)]
struct Question {
    what: What,
    asked_us: u64,
    /// The newest `Ts` that this client has been told of before.
    seen: Ts,
    rows: Vec<(i64, i32)>,
    groups: Vec<Group>,
}

#[derive(Clone, Debug)]
pub(super) enum What {
    Statement {
        number: usize,
        table: Arc<TableSchema>,
        isolation: ReadIsolation,
        read_ts: Option<Ts>,
        /// The rows of an INSERT, if they have been staged.
        staged: Option<Arc<StagedPayload>>,
    },
    Ddl,
    Pin,
    Checkpoint,
    Suspicion,
    /// Another change of the members or of the ring.
    Configuration,
}

impl What {
    fn number(&self) -> Option<usize> {
        match self {
            What::Statement { number, .. } => Some(*number),
            _ => None,
        }
    }
}

/// A client process's life.
pub(super) struct ClientHost {
    core: Core,
    questions: BTreeMap<u64, Question>,
    submissions: u64,
    pins: BTreeSet<Ts>,
    seen: Ts,
    /// Requests for other routers that have not been answered.
    changes: BTreeSet<u64>,
    /// INSERTs whose rows are being staged.
    pub(super) stages: Stages,
    /// What a super process watches.
    pub(super) watch: Option<Watch>,
}

impl ClientHost {
    /// What the process sees.
    pub(super) fn view(&self) -> View {
        self.core.view()
    }

    /// The config that it knows.
    pub(super) fn config(&self) -> Arc<Config> {
        self.core.view().config
    }

    /// Whether a suspicion is under way.
    pub(super) fn waits_for_suspicion(&self) -> bool {
        self.questions.values().any(|question| matches!(question.what, What::Suspicion))
    }

    /// Whether another change of the members or of the ring is under way.
    pub(super) fn waits_for_change(&self) -> bool {
        self.questions.values().any(|question| matches!(question.what, What::Configuration))
    }

    /// Whether a checkpoint is under way.
    pub(super) fn waits_for_checkpoint(&self) -> bool {
        self.questions.values().any(|question| matches!(question.what, What::Checkpoint))
    }

    /// Whether nobody waits for anything.
    pub(super) fn is_idle(&self) -> bool {
        self.questions.is_empty() && self.changes.is_empty() && self.stages.len() == 0
    }

    /// What is waited for.
    pub(super) fn unfinished(&self) -> String {
        let list: Vec<String> =
            self.questions.iter().map(|(n, question)| format!("{n}: {:?}", question.what)).collect();
        let waits = self.core.waits_for().join("; ");
        let (changes, stages) = (self.changes.len(), self.stages.len());
        let list = list.join(", ");
        format!(
            "{list}, {changes} changes of the routers, {stages} INSERTs that are staged, waits for {waits}"
        )
    }
}

impl World {
    pub(super) fn start_client(&mut self, id: ProcessId) {
        let incarnation: Incarnation = self.incarnation(id);
        let routers = self.of_kind(ProcessKind::Router);
        let config = self.first_config();
        let mut core =
            Core::new(CoreOptions { id, incarnation, directory: self.lives[&id].directory, routers, config });
        let effects = core.take_effects();
        let host = ClientHost {
            core,
            questions: BTreeMap::new(),
            submissions: 0,
            pins: BTreeSet::new(),
            seen: Ts::ZERO,
            changes: BTreeSet::new(),
            stages: Stages::new(),
            watch: (id.kind == ProcessKind::Super).then(|| supers::watch(id)),
        };
        self.clients.insert(id, host);
        // Nothing can be answered yet.
        for effect in effects {
            if let Effect::Send(to, wire) = effect {
                self.send(id, to, wire);
            }
        }
        if id.kind == ProcessKind::Client {
            self.schedule(10_000, Item::Submit(id));
        }
    }

    pub(super) fn client_received(
        &mut self,
        id: ProcessId,
        from: ProcessId,
        wire: Wire,
    ) -> Result<(), String> {
        let Some(host) = self.clients.get_mut(&id) else { return Ok(()) };
        let deliveries = match &wire {
            Wire::Deliver { deliveries, .. } => Some(deliveries.clone()),
            _ => None,
        };
        if matches!(wire, Wire::Staged { .. }) {
            return self.staged(id, from, wire);
        }
        let before = host.core.view().frontier;
        host.core.handle(Event::Received { from, wire });
        let after = host.core.view().frontier;
        if let Some(deliveries) = deliveries.filter(|_| after > before) {
            self.replay.delivered(id, before, after, &deliveries)?;
        }
        self.client_effects(id)
    }

    pub(super) fn client_event(&mut self, id: ProcessId, event: Event) -> Result<(), String> {
        if let Some(host) = self.clients.get_mut(&id) {
            host.core.handle(event);
        }
        self.client_effects(id)
    }

    pub(super) fn client_tick(&mut self, id: ProcessId, now_ms: u64) -> Result<(), String> {
        self.client_event(id, Event::Tick(now_ms))?;
        self.super_looks(id, now_ms)?;
        self.tick_stages(id, now_ms);
        let Some(host) = self.clients.get_mut(&id) else { return Ok(()) };
        let storage: Vec<ProcessId> = host.core.view().config.storage_processes().collect();
        let pins: Vec<Ts> = host.pins.iter().copied().collect();
        for ts in pins {
            // Pins are given up sooner or later.
            let release = self.random.one_in(15);
            if release && let Some(host) = self.clients.get_mut(&id) {
                host.pins.remove(&ts);
            }
            for process in &storage {
                let wire = if release { Wire::ReleasePin(ts) } else { Wire::RenewPin(ts) };
                self.send(id, *process, wire);
            }
        }
        Ok(())
    }

    /// A user asks something.
    pub(super) fn submit(&mut self, id: ProcessId) -> Result<(), String> {
        let pause_us = self.random.within(2_000..50_000);
        self.schedule(pause_us, Item::Submit(id));
        let Some(host) = self.clients.get(&id) else { return Ok(()) };
        // Also when the faults have ended: clients may have waited for somebody all the time.
        let may_ask = matches!(self.phase, Phase::Turmoil | Phase::Drain);
        if self.operations == 0 || host.questions.len() + host.stages.len() >= UNDER_WAY || !may_ask {
            return Ok(());
        }
        self.operations -= 1;
        let catalog = host.core.view().catalog;
        let pins: Vec<Ts> = host.pins.iter().copied().collect();
        let tables: Vec<Arc<TableSchema>> = catalog.tables().cloned().collect();
        let Some(table) = tables.get(self.random.below(tables.len().max(1) as u64) as usize).cloned() else {
            return self.define(id, "a", true);
        };
        match self.random.below(100) {
            0..3 => self.define(id, "b", catalog.table("b").is_none()),
            3..7 => self.ask(id, What::Pin, Body::Pin { lease_ms: LEASE_MS }, ReadIsolation::Sequential),
            7..12 => self.ask(id, What::Checkpoint, Body::Checkpoint, ReadIsolation::Sequential),
            12..14 if self.random.one_in(2) && !self.clients[&id].questions.is_empty() => self.cancel(id),
            _ => {
                let statement = Statement::random(&mut self.random);
                if matches!(statement, Statement::Insert { .. }) && self.stages_next() {
                    return self.stage(id, statement, table);
                }
                let is_read = statement.is_read();
                let read_ts = self.random.pick(&pins).filter(|_| is_read && self.random.one_in(2));
                let isolation = match is_read && read_ts.is_none() {
                    true => match self.random.below(4) {
                        0 => ReadIsolation::Basic,
                        1 => ReadIsolation::Sequential,
                        _ => ReadIsolation::Snapshot,
                    },
                    false => ReadIsolation::Sequential,
                };
                self.ask_statement(id, statement, table, isolation, read_ts)
            }
        }
    }

    fn ask_statement(
        &mut self,
        id: ProcessId,
        statement: Statement,
        table: Arc<TableSchema>,
        isolation: ReadIsolation,
        read_ts: Option<Ts>,
    ) -> Result<(), String> {
        let number = self.statements.len();
        let body = statement.body(number, &table, read_ts);
        self.statements.push(statement);
        self.ask(id, What::Statement { number, table, isolation, read_ts, staged: None }, body, isolation)
    }

    fn define(&mut self, id: ProcessId, name: &str, create: bool) -> Result<(), String> {
        let ddl = match create {
            true => Ddl::CreateTable { schema: Arc::new(schema(name, name == "b")), if_not_exists: true },
            false => Ddl::DropTables { names: vec![name.into()], if_exists: true },
        };
        self.ask(id, What::Ddl, Body::Ddl(ddl), ReadIsolation::Sequential)
    }

    /// A client asks for a change of the members or of the ring.
    pub(super) fn configure(&mut self, configuration: Configuration) -> Result<(), String> {
        let Some(id) = self.some_client() else { return Ok(()) };
        self.ask_configuration(id, configuration)
    }

    /// A process asks for a change of the members or of the ring.
    pub(super) fn ask_configuration(&mut self, id: ProcessId, change: Configuration) -> Result<(), String> {
        let what = match &change {
            Configuration::Membership(Membership::Suspect { .. }) => What::Suspicion,
            _ => What::Configuration,
        };
        self.ask(id, what, Body::Configuration(change), ReadIsolation::Sequential)
    }

    /// One of the clients that live.
    pub(super) fn some_client(&mut self) -> Option<ProcessId> {
        let clients: Vec<ProcessId> =
            self.clients.keys().copied().filter(|id| id.kind == ProcessKind::Client).collect();
        self.random.pick(&clients)
    }

    /// A client asks for other routers.
    pub(super) fn ask_for_routers(&mut self, change: RouterChange) -> Result<(), String> {
        let Some(id) = self.some_client() else { return Ok(()) };
        if let Some(host) = self.clients.get_mut(&id) {
            host.changes.insert(host.core.ask_routers(Inquiry::Change(change)));
        }
        self.client_effects(id)
    }

    /// A last checkpoint, so that replicas compare their contents; false when nobody can order it.
    pub(super) fn submit_last_checkpoint(&mut self) -> bool {
        let is_free = |id: &ProcessId| {
            id.kind == ProcessKind::Client && !self.replay.is_fenced(*id, self.lives[id].number)
        };
        let Some(id) = self.clients.keys().copied().find(is_free) else { return false };
        self.ask(id, What::Checkpoint, Body::Checkpoint, ReadIsolation::Sequential).is_ok()
    }

    pub(super) fn ask(
        &mut self,
        id: ProcessId,
        what: What,
        body: Body,
        isolation: ReadIsolation,
    ) -> Result<(), String> {
        let touched = self.ranges(&what);
        let Some(host) = self.clients.get_mut(&id) else { return Ok(()) };
        host.submissions += 1;
        let submission = host.submissions;
        let (tables, ranges) = match &what {
            What::Statement { table, .. } => (vec![(table.id, table.version)], touched),
            _ => (Vec::new(), Vec::new()),
        };
        let seen = host.seen;
        let asked_us = self.now_us;
        let question = Question { what: what.clone(), asked_us, seen, rows: Vec::new(), groups: Vec::new() };
        host.questions.insert(submission, question);
        // What is staged has been counted.
        let is_staged = matches!(&what, What::Statement { staged: Some(_), .. });
        self.report.operations += u64::from(id.kind == ProcessKind::Client && !is_staged);
        let request = Request { tables: tables.into(), ranges: ranges.into(), body };
        let line = match (&what, what.number().map(|number| &self.statements[number])) {
            _ if !self.options.trace => String::new(),
            (What::Statement { table, isolation, read_ts, .. }, Some(statement)) => {
                let pin = read_ts.map(|ts| format!(", pinned at {ts}")).unwrap_or_default();
                format!("{id} asks {submission}: {statement:?} of {}, {isolation:?}{pin}", table.name)
            }
            _ => format!("{id} asks {submission}: {what:?}"),
        };
        self.note([8, submission], || line);
        self.client_event(id, Event::Submit { submission, request, isolation })
    }

    /// The ranges that it touches.
    fn ranges(&self, what: &What) -> Vec<KeyRange> {
        match what {
            What::Statement { staged: Some(payload), .. } => staged_ranges(payload).to_vec(),
            What::Statement { number, table, .. } => self.statements[*number].ranges(table),
            _ => vec![KeyRange::FULL],
        }
    }

    fn cancel(&mut self, id: ProcessId) -> Result<(), String> {
        self.report.operations += 1;
        let waiting: Vec<u64> = self.clients[&id].questions.keys().copied().collect();
        let Some(submission) = self.random.pick(&waiting) else { return Ok(()) };
        if let Some(host) = self.clients.get_mut(&id) {
            host.questions.remove(&submission);
        }
        self.client_event(id, Event::Cancel { submission })
    }

    fn client_effects(&mut self, id: ProcessId) -> Result<(), String> {
        loop {
            let Some(host) = self.clients.get_mut(&id) else { return Ok(()) };
            let effects = host.core.take_effects();
            if effects.is_empty() {
                return Ok(());
            }
            for effect in effects {
                match effect {
                    Effect::Send(to, wire) => self.send(id, to, wire),
                    Effect::Part(submission, part) => self.part(id, submission, part)?,
                    Effect::Rows(submission, from, batch) => {
                        self.part(id, submission, Ok(Part::Rows(batch)))?;
                        if let (Some(from), Some(host)) = (from, self.clients.get_mut(&id)) {
                            host.core.handle(Event::Took { submission, from, batches: 1 });
                        }
                    }
                    Effect::ViewChanged => self.restage(id)?,
                    Effect::Release(_) => {}
                    Effect::RoutersAnswered(request, outcome) => {
                        self.report.router_changes += u64::from(outcome.is_ok());
                        if let Some(host) = self.clients.get_mut(&id) {
                            host.changes.remove(&request);
                        }
                    }
                    Effect::CountOn(newest) if self.lives[&id].directory > 0 => {
                        self.crash_and_restart(id);
                        self.count_on(id, newest);
                        return Ok(());
                    }
                    Effect::CountOn(newest) => return Err(format!("{id} has not lost life {newest}")),
                    Effect::Stop(error) => return Err(format!("{id} stops: {error}")),
                }
            }
        }
    }

    fn part(&mut self, id: ProcessId, submission: u64, part: Result<Part, Failure>) -> Result<(), String> {
        let Some(host) = self.clients.get_mut(&id) else { return Ok(()) };
        let Some(question) = host.questions.get_mut(&submission) else { return Ok(()) };
        match part {
            Ok(Part::Rows(batch)) => {
                question.rows.extend(rows_of(&batch));
                return Ok(());
            }
            Ok(Part::Groups(groups)) => {
                question.groups.extend(groups);
                return Ok(());
            }
            _ => {}
        }
        let Some(question) = host.questions.remove(&submission) else { return Ok(()) };
        if let Ok(Part::Done { ts, .. } | Part::Ddl { ts, .. }) = &part {
            host.seen = host.seen.max(*ts);
            if matches!(question.what, What::Pin) {
                host.pins.insert(*ts);
            }
        }
        self.note([9, submission], || format!("{id} is answered {submission}: {part:?}"));
        self.report.answers += 1;
        let last = matches!(question.what, What::Checkpoint);
        if let (true, Ok(Part::Done { ts, .. })) = (last, &part) {
            self.report.last_checkpoint = Some((*ts).max(self.report.last_checkpoint.unwrap_or_default()));
        }
        self.check(id, question, &part).map_err(|wrong| format!("{id}, submission {submission}: {wrong}"))
    }

    /// Whether an answer is what the replay says.
    fn check(&self, id: ProcessId, question: Question, part: &Result<Part, Failure>) -> Result<(), String> {
        let statement = question.what.number().map(|number| &self.statements[number]);
        match part {
            Ok(Part::Done { ts, .. } | Part::Ddl { ts, .. }) if *ts > self.replay.ts() => {
                Err(format!("answered at {ts}, but the m-seq ends at {}", self.replay.ts()))
            }
            Ok(Part::Done { ts, rows }) => match statement {
                Some(statement) if statement.is_read() => self.check_read(id, question, statement, *ts),
                Some(_)
                    if self.replay.message(*ts).and_then(|message| number_of(message))
                        != question.what.number() =>
                {
                    Err(format!("answered at {ts}, where something else was ordered"))
                }
                Some(statement) => match self.replay.outcome(*ts) {
                    Some(Outcome::Written(count, returned)) => {
                        let (mut returned, mut given) = (returned.clone(), question.rows);
                        returned.sort_unstable();
                        given.sort_unstable();
                        // Some ranges may have answered before a vote was lost that the others know to be.
                        let may_differ = self.replay.has_lost_vote_since(*ts);
                        match may_differ || count == rows && returned == given {
                            true => Ok(()),
                            false => Err(format!(
                                "{statement:?} at {ts}: {rows} rows {given:?} instead of {count} {returned:?}"
                            )),
                        }
                    }
                    other => Err(format!("{statement:?} at {ts} wrote, but {other:?}")),
                },
                None => Ok(()),
            },
            Ok(_) => Ok(()),
            Err(Failure::Stale { ts }) => match self.replay.message(*ts) {
                _ if statement.is_none() => Err(format!("stale at {ts}")),
                Some(_) if statement.is_some_and(|statement| !statement.is_read()) => {
                    match self.replay.outcome(*ts) {
                        Some(Outcome::Stale) => Ok(()),
                        other => Err(format!("stale at {ts}, but {other:?}")),
                    }
                }
                _ => Ok(()),
            },
            Err(Failure::Sql(error)) => self
                .check_error(id, &question, statement, error)
                .map_err(|wrong| format!("{wrong}: {} {:?}", error.code.as_str(), error.message)),
        }
    }

    fn check_read(
        &self,
        id: ProcessId,
        question: Question,
        statement: &Statement,
        ts: Ts,
    ) -> Result<(), String> {
        let What::Statement { table, isolation, read_ts, .. } = &question.what else { return Ok(()) };
        if *isolation == ReadIsolation::Basic && read_ts.is_none() {
            // Each part of the answer has a `Ts` of its own.
            let newest = self.clients.get(&id).map_or(ts, |host| host.core.seen());
            return match statement {
                Statement::Total(filter) => self.check_basic_total(&question, filter, table, newest),
                _ => self.check_basic(&question, statement, table, newest),
            };
        }
        // A snapshot sees the message at its Ts, too.
        let before = match (read_ts, isolation) {
            (Some(pin), _) => *pin,
            (None, ReadIsolation::Snapshot) => Ts(ts.0 + 1),
            (None, ReadIsolation::Sequential | ReadIsolation::Basic) => ts,
        };
        if read_ts.is_none() && ts < question.seen {
            return Err(format!("{statement:?} goes back to {ts}, after {}", question.seen));
        }
        let (wanted, given) = match statement {
            Statement::Rows(filter) => {
                let mut given = question.rows;
                given.sort_unstable();
                (self.replay.rows(table.id, filter, before), given)
            }
            Statement::Total(filter) => {
                let rows = self.replay.rows(table.id, filter, before);
                let sum: i64 = rows.iter().map(|(_, n)| i64::from(*n)).sum();
                (vec![(rows.len() as i64, sum as i32)], vec![total(question.groups)?])
            }
            _ => return Ok(()),
        };
        match wanted == given {
            true => Ok(()),
            false => Err(format!(
                "{statement:?} of {} before {before} ({isolation:?}, pin {read_ts:?}, answered at {ts}): {given:?} \
                 instead of {wanted:?}",
                table.name
            )),
        }
    }

    /// Every primary range is as it was at some moment, not before the client's last answer, nor behind what it
    /// has seen since; of the config that the read was routed by.
    fn check_basic(
        &self,
        question: &Question,
        statement: &Statement,
        table: &TableSchema,
        newest: Ts,
    ) -> Result<(), String> {
        let Statement::Rows(filter) = statement else { return Ok(()) };
        let position = |key: i64| table.partitioning.position(&[Value::Int8(key)]);
        let was_so = |range: KeyRange| {
            let within = |rows: Vec<(i64, i32)>| {
                let mut rows: Vec<_> =
                    rows.into_iter().filter(|row| range.contains(position(row.0))).collect();
                rows.sort_unstable();
                rows
            };
            let given = within(question.rows.clone());
            let mut moments = (question.seen.0..=newest.0).rev().map(|ts| Ts(ts + 1));
            moments.any(|before| within(self.replay.rows(table.id, filter, before)) == given)
        };
        let mut configs = self.replay.configs_since(question.seen).iter();
        match configs.any(|(_, config)| config.overlapping(&[KeyRange::FULL]).into_iter().all(was_so)) {
            true => Ok(()),
            false => Err(format!(
                "{statement:?} of {}, basic, after {}: {:?} was never so",
                table.name, question.seen, question.rows
            )),
        }
    }

    /// A total is the sum of totals of the primary ranges, each at some moment not before the client's last answer.
    fn check_basic_total(
        &self,
        question: &Question,
        filter: &Filter,
        table: &TableSchema,
        newest: Ts,
    ) -> Result<(), String> {
        let given = total(question.groups.clone())?;
        let moments: Vec<Vec<(i64, i32)>> =
            (question.seen.0..=newest.0).map(|ts| self.replay.rows(table.id, filter, Ts(ts + 1))).collect();
        let was_so = |config: &Config| {
            let mut sums: BTreeSet<(i64, i32)> = [(0, 0)].into();
            for range in config.overlapping(&[KeyRange::FULL]) {
                let within = |(key, _): &&(i64, i32)| {
                    range.contains(table.partitioning.position(&[Value::Int8(*key)]))
                };
                let part = |rows: &Vec<(i64, i32)>| {
                    let rows = rows.iter().filter(within);
                    rows.fold((0, 0i32), |(count, sum), (_, n)| (count + 1, sum.wrapping_add(*n)))
                };
                let parts: BTreeSet<(i64, i32)> = moments.iter().map(part).collect();
                let add = |a: &(i64, i32)| {
                    let a = *a;
                    parts.iter().map(move |b| (a.0 + b.0, a.1.wrapping_add(b.1))).collect::<Vec<_>>()
                };
                sums = sums.iter().flat_map(add).collect();
            }
            sums.contains(&given)
        };
        match self.replay.configs_since(question.seen).iter().any(|(_, config)| was_so(config)) {
            true => Ok(()),
            false => Err(format!(
                "the total of {filter:?} of {}, basic, after {}: {given:?} was never so",
                table.name, question.seen
            )),
        }
    }

    fn check_error(
        &self,
        id: ProcessId,
        question: &Question,
        statement: Option<&Statement>,
        error: &SqlError,
    ) -> Result<(), String> {
        let code = error.code;
        let ranges = self.ranges(&question.what);
        let is_lost = self.replay.was_dead(&ranges) || self.replay.is_fenced(id, self.incarnation(id));
        if is_lost && (code == SqlState::UNAVAILABLE || code == SqlState::OUTCOME_UNKNOWN) {
            return Ok(());
        }
        let lost_us = self.lives[&id].lost_us;
        if lost_us.is_some_and(|lost_us| lost_us >= question.asked_us) && code == SqlState::OUTCOME_UNKNOWN {
            return Ok(());
        }
        match (&question.what, statement) {
            // Rows had been handed out when their sender was lost, or a pin was.
            (What::Statement { .. }, Some(statement)) if statement.is_read() => {
                match code == SqlState::SERIALIZATION_FAILURE {
                    true => Ok(()),
                    false => Err(format!("{statement:?} fails")),
                }
            }
            (What::Statement { number, .. }, Some(statement)) => {
                // Where it was ordered is not said with an error.
                let found = (1..=self.replay.ts().0).rev().map(Ts).find(|ts| {
                    self.replay.message(*ts).and_then(|message| number_of(message)) == Some(*number)
                });
                let outcome = found.and_then(|ts| self.replay.outcome(ts));
                match outcome {
                    Some(outcome) if foreseen(outcome, code) => Ok(()),
                    Some(Outcome::VoteLost) if code == SqlState::OUTCOME_UNKNOWN => Ok(()),
                    // Rows had been handed out, or were nowhere else, when their sender was lost.
                    Some(Outcome::Written(_, returned))
                        if code == SqlState::OUTCOME_UNKNOWN
                            && error.message.starts_with("the statement took effect, but")
                            && !returned.is_empty() =>
                    {
                        Ok(())
                    }
                    _ if code == SqlState::OUTCOME_UNKNOWN
                        && self.answer_may_be_lost(&ranges, found, question.asked_us) =>
                    {
                        Ok(())
                    }
                    outcome => Err(format!("{statement:?} fails, but {outcome:?}")),
                }
            }
            (What::Ddl, _) if code == SqlState::OUTCOME_UNKNOWN => Ok(()),
            // What was planned has meanwhile become impossible.
            (What::Suspicion | What::Configuration, _) => Ok(()),
            (what, _) => Err(format!("{what:?} fails")),
        }
    }
}

impl World {
    /// Whether all who can have answered for some range about what was ordered at a `Ts` have ended since it was asked, have
    /// begun anew or are suspected, so that nobody may know.
    fn answer_may_be_lost(&self, ranges: &[KeyRange], ts: Option<Ts>, since_us: u64) -> bool {
        let now = self.replay.config();
        let (_, config) = &self.replay.configs_since(ts.unwrap_or(self.replay.ts()))[0];
        let has_ended = |process: ProcessId| {
            let life = &self.lives[&process];
            let is_anew = now.incarnation(process) != config.incarnation(process);
            // Who was suspected then has not executed it, wherever that process has found a place since.
            let was_suspected = config.is_suspected(process);
            was_suspected || now.is_suspected(process) || is_anew || !life.up || life.started_us >= since_us
        };
        config.overlapping(ranges).into_iter().any(|range| config.holders(range).into_iter().all(has_ended))
    }
}

/// `count(*)` and `sum(n)` of the merged groups.
fn total(groups: Vec<Group>) -> Result<(i64, i32), String> {
    let mut groups = groups.into_iter();
    let mut merged = groups.next().ok_or("no group at all")?.states;
    for group in groups {
        for (state, other) in merged.iter_mut().zip(group.states) {
            state.merge(other).map_err(|error| error.into_report().message)?;
        }
    }
    let values: Vec<Value> = merged
        .iter()
        .map(|state| state.finish())
        .collect::<Result<_, _>>()
        .map_err(|error| error.into_report().message)?;
    match (&values[0], &values[1]) {
        (Value::Int8(count), Value::Null) => Ok((*count, 0)),
        (Value::Int8(count), Value::Int8(sum)) => Ok((*count, *sum as i32)),
        other => Err(format!("groups of {other:?}")),
    }
}
