//! The engine alone: one shard on each core, driven as a storage process drives its scan threads.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use arrow::{
    array::{AsArray, RecordBatch},
    datatypes::Int16Type,
};
use carousel_engine::{
    Shard, TableSchema, Ts,
    operation::{
        Effect, Insert, InsertRows, OnConflict, Operation, OperationKind, OrderedOperation, RowBatch,
    },
    position::KeyRange,
    shard::{Options, Progress},
};

use super::questions::{Question, TABLE_ID, operation_of};
use crate::bench::{measured::Turn, rows::Rows};

/// How often a storage process lets its shards collect superseded versions.
const HORIZON_EVERY: Duration = Duration::from_millis(5);

/// The shards of a process, and the `Ts` of the last operation.
pub struct Engine {
    shards: Vec<Shard>,
    ts: u64,
}

/// What operations are to be run, and how.
#[derive(Clone, Copy)]
pub struct Load<'a> {
    /// Operations, over and over again.
    pub reads: &'a [Question],
    /// Operations that ride at the same time.
    pub riding: usize,
    /// Updates, over and over again.
    pub updates: &'a [Question],
    /// Updates for each second; they come on top of what rides.
    pub updates_per_second: f64,
    /// For how long.
    pub duration: Duration,
}

/// What became of them.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Reads executed by the slower shard, each from submission to the end of execution.
    pub turn: Turn,
    /// Updates executed in a second, by the slower shard.
    pub updates_per_second: f64,
}

impl Engine {
    /// One shard for each thread, with the table but without rows.
    pub fn new(schema: &TableSchema, threads: u32) -> Engine {
        let shards = (0..threads)
            .map(|index| {
                let mut shard = Shard::new(index, threads, vec![KeyRange::FULL], Options::default());
                shard.restore_table(Arc::new(schema.clone()));
                shard
            })
            .collect();
        Engine { shards, ts: 1 }
    }

    /// Inserts batches; returns how long it took.
    pub fn load(&mut self, schema: &TableSchema, batches: &[RecordBatch]) -> Duration {
        let operations: Vec<OrderedOperation> = batches
            .iter()
            .map(|rows| {
                self.ts += 1;
                let positions = schema.partitioning.positions(&schema.columns, rows);
                let ordinals = (0..rows.num_rows() as u64).collect();
                let rows = InsertRows::Inline(RowBatch { rows: rows.clone(), positions, ordinals });
                let insert = Insert { rows, on_conflict: OnConflict::Fail, returning: None };
                ordered(self.ts, operation_of(OperationKind::Insert(insert)))
            })
            .collect();
        let started = Instant::now();
        self.each(|shard| {
            for operation in &operations {
                shard.submit(operation.clone());
                let mut effects = Vec::new();
                while shard.step(&mut effects) == Progress::Busy {}
            }
        });
        let duration = started.elapsed();
        self.collect_garbage();
        duration
    }

    /// Lets every shard collect all that nobody can see any more.
    pub fn collect_garbage(&mut self) {
        let horizon = Ts(self.ts + 1);
        self.each(|shard| while shard.collect_garbage(horizon) == Progress::Busy {});
    }

    /// Bytes that the rows take.
    pub fn memory(&self) -> usize {
        self.shards.iter().map(Shard::memory).sum()
    }

    /// Bytes by part: columns by name, then versions and keys.
    pub fn memory_by_part(&self) -> Vec<(String, usize)> {
        let mut parts: Vec<(String, usize)> = Vec::new();
        for shard in &self.shards {
            for (index, (name, bytes)) in shard.memory_by_part(TABLE_ID).into_iter().enumerate() {
                match parts.get_mut(index) {
                    Some(part) => part.1 += bytes,
                    None => parts.push((name, bytes)),
                }
            }
        }
        parts
    }

    /// Asks each question alone; the keys of the rows that come back are those that were expected.
    ///
    /// # Errors
    /// Describes the first answer that is wrong.
    pub fn check(&mut self, rows: &Rows, questions: &[Question]) -> Result<(), String> {
        for (index, question) in questions.iter().enumerate() {
            self.ts += 1;
            let ordered = ordered(self.ts, question.operation.clone());
            let mut found = Vec::new();
            for shard in &mut self.shards {
                shard.submit(ordered.clone());
                let mut effects = Vec::new();
                while shard.step(&mut effects) == Progress::Busy {}
                for effect in effects {
                    match effect {
                        Effect::Rows { batch, .. } => {
                            found.extend((0..batch.num_rows()).map(|row| key(&batch, row)))
                        }
                        Effect::Executed { outcomes, .. } => {
                            if let Some((_, Err(error))) =
                                outcomes.into_iter().find(|(_, outcome)| outcome.is_err())
                            {
                                return Err(format!("question {index} fails: {error}"));
                            }
                        }
                        _ => {}
                    }
                }
            }
            let mut expected: Vec<_> = question
                .rows
                .iter()
                .map(|row| {
                    key(
                        &rows.batches[*row as usize / crate::ticket::BLOCK_ROWS],
                        *row as usize % crate::ticket::BLOCK_ROWS,
                    )
                })
                .collect();
            found.sort_unstable();
            expected.sort_unstable();
            if found != expected {
                return Err(format!(
                    "question {index} finds {found:?} instead of {expected:?}: {:?}",
                    question.operation
                ));
            }
        }
        Ok(())
    }

    /// Runs a load on all shards at the same time.
    pub fn run(&mut self, load: &Load) -> Outcome {
        let (first, shards) = (self.ts + 1, self.shards.len());
        let made = Mutex::new(Made { waiting: VecDeque::new(), next: first, reads: 0, updates: 0 });
        let sequence = Sequence { load, started: Instant::now(), made };
        let results: Vec<(u64, Outcome)> = std::thread::scope(|scope| {
            let drive = |shard| drive(shard, first, &sequence, shards);
            let threads: Vec<_> =
                self.shards.iter_mut().map(|shard| scope.spawn(move || drive(shard))).collect();
            threads.into_iter().map(|thread| thread.join().expect("a shard does not panic")).collect()
        });
        self.ts = results.iter().map(|(ts, _)| *ts).max().unwrap_or(self.ts);
        results
            .into_iter()
            .map(|(_, outcome)| outcome)
            .reduce(|a, b| {
                let updates_per_second = a.updates_per_second.min(b.updates_per_second);
                let slower = if a.turn.per_second() < b.turn.per_second() { a } else { b };
                Outcome { updates_per_second, ..slower }
            })
            .unwrap_or_default()
    }

    /// Executes operations once each, so many of them riding at the same time; superseded versions are collected on the
    /// way.
    pub fn apply(&mut self, operations: &[Question], riding: usize) {
        let first = self.ts + 1;
        self.ts += operations.len() as u64;
        self.each(|shard| {
            let (mut waiting, mut ts) = (operations.iter(), first);
            let (mut executed, mut effects) = (0, Vec::new());
            while executed < operations.len() {
                let free = riding.saturating_sub((ts - first) as usize - executed);
                for question in waiting.by_ref().take(free) {
                    shard.submit(ordered(ts, question.operation.clone()));
                    ts += 1;
                }
                shard.step(&mut effects);
                let is_end = |effect: &Effect| matches!(effect, Effect::Executed { .. });
                executed += effects.drain(..).filter(is_end).count();
                shard.collect_garbage(Ts(ts));
            }
        });
    }

    fn each(&mut self, f: impl Fn(&mut Shard) + Sync) {
        std::thread::scope(|scope| {
            for shard in &mut self.shards {
                scope.spawn(|| f(shard));
            }
        });
    }
}

fn ordered(ts: u64, operation: Arc<Operation>) -> OrderedOperation {
    OrderedOperation::new(Ts(ts), operation, vec![KeyRange::FULL])
}

fn key(batch: &RecordBatch, row: usize) -> (String, i16, i16) {
    (
        batch.column(0).as_string::<i32>().value(row).to_owned(),
        batch.column(1).as_primitive::<Int16Type>().value(row),
        batch.column(2).as_primitive::<Int16Type>().value(row),
    )
}

/// The operations of a run in their order, from which each shard takes one after the other: as in a process, they are
/// the same ones for all shards.
struct Sequence<'a> {
    load: &'a Load<'a>,
    started: Instant,
    made: Mutex<Made>,
}

/// What some shard has come to.
struct Made {
    /// Operations that not all shards have taken, whether they are reads, and how many shards are to come.
    waiting: VecDeque<(OrderedOperation, bool, usize)>,
    /// The `Ts` of the next one.
    next: u64,
    reads: usize,
    updates: usize,
}

impl Sequence<'_> {
    /// The operation at `ts`, unless it is a read and none is wanted.
    fn take(&self, ts: u64, wants_read: bool, shards: usize) -> Option<(OrderedOperation, bool)> {
        let mut guard = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        let made = &mut *guard;
        if ts == made.next {
            let due = self.started.elapsed().as_secs_f64() * self.load.updates_per_second;
            let (question, is_read) = if !self.load.updates.is_empty() && (made.updates as f64) < due {
                made.updates += 1;
                (&self.load.updates[(made.updates - 1) % self.load.updates.len()], false)
            } else if wants_read && !self.load.reads.is_empty() {
                made.reads += 1;
                (&self.load.reads[(made.reads - 1) % self.load.reads.len()], true)
            } else {
                return None;
            };
            made.waiting.push_back((ordered(ts, question.operation.clone()), is_read, shards));
            made.next += 1;
        }
        let at = made.waiting.len() - (made.next - ts) as usize;
        let (operation, is_read, to_come) = &mut made.waiting[at];
        if *is_read && !wants_read {
            return None;
        }
        *to_come -= 1;
        let taken = (operation.clone(), *is_read);
        while made.waiting.front().is_some_and(|(_, _, to_come)| *to_come == 0) {
            made.waiting.pop_front();
        }
        Some(taken)
    }
}

/// One scan thread under load.
fn drive(shard: &mut Shard, first: u64, sequence: &Sequence, shards: usize) -> (u64, Outcome) {
    let load = sequence.load;
    let mut outcome = Outcome::default();
    let mut ts = first;
    let mut in_flight: Vec<(bool, Instant)> = Vec::new();
    let (mut reading, mut updated) = (0, 0u64);
    let mut effects = Vec::new();
    let started = Instant::now();
    let (mut horizon, mut horizon_at, mut garbage) = (Ts(first), started, false);
    loop {
        let now = Instant::now();
        if now - started >= load.duration {
            break;
        }
        while let Some((operation, is_read)) = sequence.take(ts, reading < load.riding, shards) {
            reading += usize::from(is_read);
            in_flight.push((is_read, now));
            shard.submit(operation);
            ts += 1;
        }
        if now - horizon_at >= HORIZON_EVERY {
            (horizon, horizon_at, garbage) = (Ts(ts), now, true);
        }
        shard.step(&mut effects);
        garbage = garbage && shard.collect_garbage(horizon) == Progress::Busy;
        let now = Instant::now();
        for effect in effects.drain(..) {
            let Effect::Executed { ts, .. } = effect else { continue };
            match in_flight[(ts.0 - first) as usize] {
                (true, submitted) => {
                    reading -= 1;
                    outcome.turn.latencies.push(now - submitted);
                }
                _ => updated += 1,
            }
        }
    }
    outcome.turn.elapsed = started.elapsed();
    outcome.updates_per_second = updated as f64 / outcome.turn.elapsed.as_secs_f64();
    while shard.step(&mut effects) == Progress::Busy {}
    (ts, outcome)
}
