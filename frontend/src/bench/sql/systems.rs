//! What is measured, each behind the same interface.

use std::{
    net::{SocketAddr, ToSocketAddrs},
    time::Duration,
};

use tokio_postgres::{Config, config::Host};

use super::{
    load::{self, Address, Clients},
    question::{Hand, Question, Questions},
};
use crate::{
    bench::{
        baselines::{DataFusion, DuckDb},
        measured::Turn,
    },
    cli::Failure,
    load::{connect, reason},
};

/// A system under test.
pub struct System {
    /// Its name in the report.
    pub name: String,
    /// What kind of thing it is, for the ratios.
    pub kind: Kind,
    /// No more clients than this are let loose on it.
    pub most_clients: u32,
    access: Access,
}

/// What a system is compared as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Carousel.
    Carousel,
    /// It looks at every row.
    Scanning,
    /// It has an index on every column that is asked for.
    Indexed,
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

    /// DataFusion in this process.
    pub fn datafusion(name: &str, datafusion: DataFusion) -> System {
        let access = Access::DataFusion(datafusion);
        System { name: name.to_owned(), kind: Kind::Scanning, most_clients: u32::MAX, access }
    }

    /// DuckDB.
    pub fn duckdb(name: &str, duckdb: DuckDb) -> System {
        let access = Access::DuckDb(duckdb);
        System { name: name.to_owned(), kind: Kind::Scanning, most_clients: u32::MAX, access }
    }

    /// The same, for no more clients than these.
    pub fn with_most_clients(self, most_clients: u32) -> System {
        System { most_clients, ..self }
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

    /// Connects clients, if it is something to connect to.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn connect(&mut self, questions: &Questions, hands: &[Hand]) -> Result<(), Failure> {
        if let Access::Wire { address, clients, threads } = &mut self.access {
            // Those of the last measurement leave first.
            *clients = None;
            *clients = Some(Clients::connect(address, questions, hands.to_vec(), *threads)?);
        }
        Ok(())
    }

    /// Disconnects the clients.
    pub fn disconnect(&mut self) {
        if let Access::Wire { clients, .. } = &mut self.access {
            *clients = None;
        }
    }

    /// Lets clients ask for a while.
    ///
    /// # Errors
    /// The system's, or a wrong number of rows.
    ///
    /// # Panics
    /// When it is connected to, and clients have not been connected.
    pub fn turn(
        &mut self,
        questions: &Questions,
        hands: &[Hand],
        duration: Duration,
    ) -> Result<Turn, Failure> {
        match &mut self.access {
            Access::Wire { clients, .. } => {
                clients.as_mut().expect("clients are connected first").turn(duration)
            }
            Access::DataFusion(datafusion) => {
                let runtime = tokio::runtime::Handle::current();
                runtime.block_on(datafusion.turn(questions, hands, duration))
            }
            Access::DuckDb(duckdb) => duckdb.turn(hands, duration),
        }
    }
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
