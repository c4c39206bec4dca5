//! What is measured, each behind the same interface.

use std::{
    net::{SocketAddr, ToSocketAddrs},
    path::Path,
    time::Duration,
};

use arrow::array::RecordBatch;
use datafusion::DATAFUSION_VERSION;
use tokio_postgres::{Config, config::Host};

use super::{
    load::{self, Address, Clients},
    question::{Hand, Question, Questions},
};
use crate::{
    bench::{
        baselines::{DataFusion, DuckDb},
        measured::{Kind, Measured, Turn},
        report::Report,
    },
    cli::{Failure, progress::thousands},
    load::{connect, reason},
};

/// A system under test.
pub struct System {
    /// Its name in the report.
    pub name: String,
    /// What it is compared as.
    pub kind: Kind,
    /// It is not asked by more clients than these.
    pub most_clients: u32,
    access: Access,
}

enum Access {
    Wire { address: Address, clients: Option<Clients>, threads: usize },
    DataFusion(DataFusion),
    DuckDb(DuckDb),
}

impl System {
    /// A server that speaks the Postgres protocol, for `threads` threads of clients.
    ///
    /// # Errors
    /// When its address cannot be made out.
    pub fn wire(
        name: &str,
        kind: Kind,
        config: &Config,
        options: &str,
        threads: usize,
    ) -> Result<System, Failure> {
        let text = |value: Option<&str>| value.unwrap_or("carousel").to_owned();
        let mut startup = vec![
            ("user".to_owned(), text(config.get_user())),
            ("database".to_owned(), text(config.get_dbname())),
        ];
        if !options.is_empty() {
            startup.push(("options".to_owned(), options.to_owned()));
        }
        let address = Address { system: name.to_owned(), socket: socket(config)?, startup };
        let access = Access::Wire { address, clients: None, threads };
        Ok(System { name: name.to_owned(), kind, most_clients: u32::MAX, access })
    }

    /// DataFusion in this process; the report says which.
    ///
    /// # Errors
    /// DataFusion's.
    pub fn datafusion(batches: Vec<RecordBatch>, report: &mut Report) -> Result<System, Failure> {
        let partitions = crate::cli::cores() as usize;
        let text = format!(
            "{DATAFUSION_VERSION}, in process, MemTable with {partitions} partitions, plans made beforehand"
        );
        report.fact("DataFusion", text);
        let access = Access::DataFusion(DataFusion::new(batches, partitions)?);
        let name = format!("DataFusion {DATAFUSION_VERSION}");
        Ok(System { name, kind: Kind::Scanning, most_clients: u32::MAX, access })
    }

    /// DuckDB, if this Python has it; the report says which, or why it is not measured.
    ///
    /// # Errors
    /// DuckDB's, or that it is missing although it is `required`.
    pub fn duckdb(
        python: &Path,
        batches: &[RecordBatch],
        questions: &Questions,
        required: bool,
        report: &mut Report,
    ) -> Result<Option<System>, Failure> {
        match DuckDb::find(python) {
            Err(reason) if required => return Err(Failure::setup(format!("DuckDB: {reason}"))),
            Err(reason) => {
                report.fact("DuckDB", format!("not measured: {reason}"));
                return Ok(None);
            }
            Ok(()) => {}
        }
        let cores = crate::cli::cores();
        let duckdb = DuckDb::start(python, batches, questions, cores)?;
        let text = format!(
            "{}, in memory, {cores} threads, a cursor for each client, asked by its Python package in process, \
             statements prepared",
            duckdb.version
        );
        report.fact("DuckDB", text);
        let name = format!("DuckDB {}", duckdb.version);
        let access = Access::DuckDb(duckdb);
        Ok(Some(System { name, kind: Kind::Scanning, most_clients: u32::MAX, access }))
    }

    /// Compares the answers to questions with the right ones. `places` are those of the questions.
    ///
    /// # Errors
    /// The first answer that is wrong.
    pub fn check(&mut self, questions: &Questions, places: &[usize]) -> Result<(), Failure> {
        let asked: Vec<&Question> = places.iter().map(|place| &questions.all()[*place]).collect();
        let answers = match &mut self.access {
            Access::Wire { address, .. } => load::answers(address, &asked)?,
            Access::DataFusion(datafusion) => {
                let runtime = tokio::runtime::Handle::current();
                let answers = asked.iter().map(|question| runtime.block_on(datafusion.answer(question)));
                answers.collect::<Result<_, _>>()?
            }
            Access::DuckDb(duckdb) => {
                places.iter().map(|place| duckdb.answer(*place)).collect::<Result<_, _>>()?
            }
        };
        for (question, answer) in asked.iter().zip(answers) {
            if answer != question.answer {
                return Err(Failure::job(format!(
                    "{} answers {answer:?} instead of {:?} to {} with {:?}",
                    self.name, question.answer, question.sql, question.parameters
                )));
            }
        }
        Ok(())
    }

    /// Disconnects the clients, if it is something to connect to: the next ones are others.
    fn disconnect(&mut self) {
        if let Access::Wire { clients, .. } = &mut self.access
            && let Some(clients) = clients.take()
        {
            clients.leave();
        }
    }

    /// Lets clients ask for a while, always the same until [`System::disconnect`].
    ///
    /// # Errors
    /// The system's, or a wrong number of rows.
    fn turn(&mut self, questions: &Questions, hands: &[Hand], duration: Duration) -> Result<Turn, Failure> {
        match &mut self.access {
            Access::Wire { address, clients, threads } => {
                let mut connected = match clients.take() {
                    Some(connected) => connected,
                    None => Clients::connect(address, questions, hands.to_vec(), *threads)?,
                };
                let turn = connected.turn(duration);
                match &turn {
                    Ok(turn) if turn.cancelled.is_empty() => *clients = Some(connected),
                    // Their connections are still in the middle of an answer.
                    _ => connected.leave(),
                }
                turn
            }
            Access::DataFusion(datafusion) => {
                let runtime = tokio::runtime::Handle::current();
                runtime.block_on(datafusion.turn(questions, hands, duration))
            }
            Access::DuckDb(duckdb) => duckdb.turn(hands, duration),
        }
    }
}

/// Lets the systems take turns, in each of so many rounds. A baseline that fails is left out, and one that does not get
/// half of its statements done is not asked by as many clients again; the report says so.
///
/// # Errors
/// Carousel's.
pub fn measure(
    systems: &mut [System],
    questions: &Questions,
    hands: &[Hand],
    rounds: u32,
    duration: Duration,
    report: &mut Report,
) -> Result<Vec<Measured>, Failure> {
    let clients = hands.len() as u32;
    let mut turns: Vec<Vec<Turn>> = vec![Vec::new(); systems.len()];
    for round in 1..=rounds {
        for (system, turns) in systems.iter_mut().zip(&mut turns) {
            if clients > system.most_clients {
                continue;
            }
            let turn = system.turn(questions, hands, duration);
            let asked = format!("{} with {} client(s)", system.name, thousands(clients.into()));
            let reason = match turn {
                Err(failure) if system.kind == Kind::Carousel => return Err(failure),
                Err(failure) => {
                    turns.clear();
                    failure.to_string()
                }
                Ok(turn) => {
                    eprintln!("{asked}, round {round}: {:.1} statements/s", turn.per_second());
                    let is_done = turn.latencies.len() >= turn.cancelled.len();
                    turns.push(turn);
                    if is_done || system.kind == Kind::Carousel {
                        continue;
                    }
                    "less than half of the statements were done in time".to_owned()
                }
            };
            eprintln!("{asked}, round {round}: {reason}");
            report.remark(format!("{asked}: {reason}; it is not asked by so many again, nor by more."));
            system.most_clients = clients - 1;
        }
    }
    systems.iter_mut().for_each(System::disconnect);
    let with_turns = systems.iter().zip(&turns).filter(|(_, turns)| !turns.is_empty());
    Ok(with_turns.map(|(system, turns)| Measured::new(&system.name, system.kind, clients, turns)).collect())
}

fn socket(config: &Config) -> Result<SocketAddr, Failure> {
    let port = config.get_ports().first().copied().unwrap_or(5432);
    let Some(Host::Tcp(host)) = config.get_hosts().first() else {
        return Err(Failure::setup("a server to measure must have a host name or an IP address"));
    };
    let mut found = (&host[..], port)
        .to_socket_addrs()
        .map_err(|error| Failure::setup(format!("{host}:{port}: {error}")))?;
    found.next().ok_or_else(|| Failure::setup(format!("{host} has no address")))
}

/// Copies `ticket` in a PostgreSQL to the schema `indexed`, with an index on each of these columns.
///
/// # Errors
/// PostgreSQL's.
pub async fn index(config: &Config, columns: &[&str]) -> Result<(), Failure> {
    let client = connect(config).await?;
    let mut statements = vec![
        "SET maintenance_work_mem = '512MB'".to_owned(),
        "CREATE SCHEMA indexed".to_owned(),
        "CREATE TABLE indexed.ticket (LIKE public.ticket INCLUDING ALL)".to_owned(),
        "INSERT INTO indexed.ticket SELECT * FROM public.ticket".to_owned(),
    ];
    statements.extend(columns.iter().map(|column| format!("CREATE INDEX ON indexed.ticket ({column})")));
    statements.extend(["VACUUM ANALYZE public.ticket", "VACUUM ANALYZE indexed.ticket"].map(str::to_owned));
    for statement in statements {
        let failed = |error| Failure::job(format!("PostgreSQL: {}: {statement}", reason(&error)));
        client.batch_execute(&statement).await.map_err(failed)?;
    }
    Ok(())
}
