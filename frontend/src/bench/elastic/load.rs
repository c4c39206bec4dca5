//! Statements that arrive at a rate while the ring changes, whether those before them are answered or not.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::task::JoinSet;
use tokio_postgres::{Client, Config, SimpleQueryMessage};

use crate::{
    bench::{
        draw::{self, MOST_ROWS, Mix, SELECT_LIST},
        report::Latencies,
        rows::{Conditions, Rows},
    },
    cli::Failure,
    load::{connect, reason},
    ticket::{COLUMNS, TABLE},
};

/// Questions are drawn from the first rows of the table.
const DRAWN_FROM: u64 = 200_000;
/// Different questions.
const QUESTIONS: usize = 512;

/// How much arrives.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// SELECTs a second.
    pub reads: u32,
    /// UPDATEs a second.
    pub writes: u32,
    /// Connections of each kind.
    pub clients: u32,
    /// What the questions are drawn by.
    pub seed: u64,
}

/// What a statement is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Statement {
    /// A selective SELECT.
    Read,
    /// An UPDATE with the conditions of one.
    Write,
}

impl Statement {
    /// For the report.
    pub fn name(self) -> &'static str {
        match self {
            Statement::Read => "SELECT",
            Statement::Write => "UPDATE",
        }
    }
}

/// A statement that has ended.
#[derive(Clone, Debug)]
pub struct Ended {
    /// What it was.
    pub statement: Statement,
    /// When it was due.
    pub due: Duration,
    /// How long its client waited from then on.
    pub took: Duration,
    /// Why it failed, if it did.
    pub failure: Option<String>,
}

/// What clients have seen; times are since the load began.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// All statements.
    pub ended: Vec<Ended>,
    /// How many rows the UPDATEs changed that succeeded.
    pub updated: i64,
}

impl Seen {
    /// How long statements took that were due at certain times.
    pub fn latencies(&self, statement: Statement, wanted: impl Fn(Duration) -> bool) -> Latencies {
        let mut latencies = Latencies::default();
        let ended = self.ended.iter().filter(|ended| ended.statement == statement && wanted(ended.due));
        latencies.extend(ended.map(|ended| ended.took));
        latencies
    }

    /// How many statements there were.
    pub fn count(&self) -> usize {
        self.ended.len()
    }

    /// Why statements failed.
    pub fn failures(&self) -> Vec<&str> {
        self.ended.iter().filter_map(|ended| ended.failure.as_deref()).collect()
    }

    /// How many UPDATEs failed.
    pub fn failed_writes(&self) -> usize {
        let writes = self.ended.iter().filter(|ended| ended.statement == Statement::Write);
        writes.filter(|ended| ended.failure.is_some()).count()
    }
}

/// A load that goes on until it is stopped.
pub struct Load {
    begin: Instant,
    stopping: Arc<AtomicBool>,
    clients: JoinSet<Result<Seen, Failure>>,
}

impl Load {
    /// Connects the clients and begins.
    ///
    /// # Errors
    /// When the server refuses them.
    pub async fn start(config: &Config, plan: Plan, rows: u64) -> Result<Load, Failure> {
        let conditions = tokio::task::spawn_blocking(move || {
            let rows = Rows::new(plan.seed, rows.min(DRAWN_FROM));
            let selects = draw::selects(&rows, Mix::All, QUESTIONS, plan.seed, MOST_ROWS);
            selects.iter().map(|select| text(&rows, &select.conditions)).collect::<Vec<_>>()
        });
        let conditions = Arc::new(conditions.await.map_err(Failure::job)?);
        let mut connections = Vec::new();
        for _ in 0..plan.clients {
            for statement in [Statement::Read, Statement::Write] {
                connections.push((statement, connect(config).await?));
            }
        }
        let (begin, stopping) = (Instant::now(), Arc::new(AtomicBool::new(false)));
        let mut clients = JoinSet::new();
        for (index, (statement, client)) in connections.into_iter().enumerate() {
            let rate = match statement {
                Statement::Read => plan.reads,
                Statement::Write => plan.writes,
            };
            let pace = Duration::from_secs_f64(f64::from(plan.clients) / f64::from(rate));
            let share = pace.mul_f64(index as f64 / f64::from(2 * plan.clients));
            let arrivals = Arrivals { begin, first: share, pace };
            let asking = ask(client, statement, conditions.clone(), index, arrivals, stopping.clone());
            clients.spawn(asking);
        }
        Ok(Load { begin, stopping, clients })
    }

    /// The time since the load began.
    pub fn now(&self) -> Duration {
        self.begin.elapsed()
    }

    /// Stops, waits for what is under way, and tells what was seen.
    ///
    /// # Errors
    /// When a client failed in another way than by an error of the server.
    pub async fn stop(mut self) -> Result<Seen, Failure> {
        self.stopping.store(true, Ordering::Relaxed);
        let mut all = Seen::default();
        while let Some(client) = self.clients.join_next().await {
            let seen = client.map_err(Failure::job)??;
            all.ended.extend(seen.ended);
            all.updated += seen.updated;
        }
        all.ended.sort_by_key(|ended| ended.due);
        Ok(all)
    }
}

/// When a client's statements are due.
struct Arrivals {
    begin: Instant,
    first: Duration,
    pace: Duration,
}

async fn ask(
    client: Client,
    statement: Statement,
    conditions: Arc<Vec<String>>,
    number: usize,
    arrivals: Arrivals,
    stopping: Arc<AtomicBool>,
) -> Result<Seen, Failure> {
    let list: Vec<&str> = SELECT_LIST.iter().map(|column| COLUMNS[*column].0).collect();
    let list = list.join(", ");
    let mut seen = Seen::default();
    for step in 0.. {
        let due = arrivals.first + arrivals.pace * step;
        tokio::time::sleep_until((arrivals.begin + due).into()).await;
        if stopping.load(Ordering::Relaxed) {
            break;
        }
        let condition = &conditions[(number + step as usize * 7) % conditions.len()];
        let sql = match statement {
            Statement::Read => format!("SELECT {list} FROM {TABLE} WHERE {condition}"),
            Statement::Write => format!("UPDATE {TABLE} SET fare = fare + 0.01 WHERE {condition}"),
        };
        let answer = client.simple_query(&sql).await;
        let took = arrivals.begin.elapsed() - due;
        let failure = match answer {
            Ok(messages) => {
                if statement == Statement::Write {
                    seen.updated += changed(&messages);
                }
                None
            }
            Err(error) if error.as_db_error().is_some() => Some(reason(&error)),
            Err(error) => return Err(Failure::job(reason(&error))),
        };
        seen.ended.push(Ended { statement, due, took, failure });
    }
    Ok(seen)
}

/// How many rows a statement changed.
fn changed(messages: &[SimpleQueryMessage]) -> i64 {
    let rows = messages.iter().map(|message| match message {
        SimpleQueryMessage::CommandComplete(rows) => i64::try_from(*rows).unwrap_or(i64::MAX),
        _ => 0,
    });
    rows.sum()
}

/// Conditions as SQL; the types of the constants are those of the columns.
fn text(rows: &Rows, conditions: &Conditions) -> String {
    let constant = |column: usize, id: u32| {
        let text = rows.text(column, rows.row_with(column, id));
        format!("'{}'", text.replace('\'', "''"))
    };
    let mut conjuncts = Vec::new();
    for (column, id) in &conditions.equal {
        conjuncts.push(format!("{} = {}", COLUMNS[*column].0, constant(*column, *id)));
    }
    for (column, low, high) in &conditions.between {
        let (low, high) = (constant(*column, *low), constant(*column, *high));
        conjuncts.push(format!("{} BETWEEN {low} AND {high}", COLUMNS[*column].0));
    }
    conjuncts.join(" AND ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_are_told_apart_by_when_they_were_due() {
        let ended = |statement, due, took, failure: Option<&str>| Ended {
            statement,
            due: Duration::from_secs(due),
            took: Duration::from_millis(took),
            failure: failure.map(str::to_owned),
        };
        let seen = Seen {
            ended: vec![
                ended(Statement::Read, 1, 5, None),
                ended(Statement::Write, 2, 6, Some("no")),
                ended(Statement::Read, 3, 7, None),
            ],
            updated: 0,
        };
        let late = |at: Duration| at >= Duration::from_secs(2);
        assert_eq!(seen.latencies(Statement::Read, late).percentile(50), Duration::from_millis(7));
        assert_eq!((seen.count(), seen.failures(), seen.failed_writes()), (3, vec!["no"], 1));
    }

    #[test]
    fn conditions_are_sql() {
        let rows = Rows::new(1, 6_000);
        for select in draw::selects(&rows, Mix::All, 50, 5, MOST_ROWS) {
            let sql = format!("SELECT 1 FROM t WHERE {}", text(&rows, &select.conditions));
            carousel_planner::parse(&sql).expect("it is SQL");
        }
    }
}
