//! The whole stack: many clients with prepared statements over real connections, beside DataFusion, DuckDB and
//! PostgreSQL with the same rows.
//!
//! Carousel runs in a process of its own, as a user would run it; this process is the clients. Whatever it takes of the
//! machine counts against Carousel (and PostgreSQL), so [`load`] does little for each statement and the report tells how
//! much of a core that was.

mod load;
mod question;
mod server;
mod systems;

use std::{path::PathBuf, time::Duration};

use clap::{Args, ValueEnum};
use tokio::runtime::Handle;

use self::server::ServerProcess;
pub use self::{
    question::{Hand, Mix, Question, Questions, line},
    systems::{System, measure},
};
use super::{
    baselines::Postgres,
    chart,
    draw::{MOST_ROWS, can_be_asked_for},
    measured::{Kind, Measured, best_rate, cancelled},
    report::{OutputArgs, Report, ratio},
    rows::Rows,
    targets::Targets,
};
use crate::{
    cli::{
        Failure, machine_memory, open_files,
        progress::{Progress, Unit, thousands},
    },
    load::{TicketArgs, connect, create_ticket, load_ticket},
    ticket::{COLUMNS, MAX_ROWS, TABLE},
};

/// Selective SELECTs whose answers are checked.
const CHECKED: usize = 200;
/// Connections of PostgreSQL's and Carousel's besides the clients'.
const SPARE_CONNECTIONS: u32 = 16;

/// Names of what is to reach something.
const CAROUSEL: &str = "Carousel";
const SNAPSHOT: &str = "Carousel (snapshot reads)";

/// Options of `carousel bench sql`.
#[derive(Args, Clone, Debug)]
pub struct SqlArgs {
    /// Rows of the table
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1000..=MAX_ROWS))]
    rows: u64,

    /// What the clients ask
    #[arg(long, value_enum, default_value_t = Mix::Selective)]
    mix: Mix,

    /// How many clients ask at the same time; one measurement for each number
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_values_t = [1, 16, 64, 256, 1024, 4096], value_parser = clap::value_parser!(u32).range(1..=50_000))]
    clients: Vec<u32>,

    /// Most clients of DataFusion, DuckDB and PostgreSQL [default: as many as Carousel has]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=50_000))]
    baseline_clients: Option<u32>,

    /// Seconds that each system is asked for in each round
    #[arg(long, value_name = "S", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: u64,

    /// Rounds, in which the systems take turns; what is reported is the median
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,

    /// Different statements
    #[arg(long, value_name = "N", default_value_t = 16_384, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    questions: u32,

    /// Threads that the clients share
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    client_threads: u32,

    /// Systems to measure [default: all that are installed]
    #[arg(long, value_enum, value_name = "SYSTEM,…", value_delimiter = ',')]
    systems: Vec<Which>,

    /// Measure this running Carousel; without it, one is started on a temporary directory
    #[arg(long, value_name = "URL")]
    url: Option<String>,

    /// Further options of the Carousel that is started, such as --start-option=--storage=4
    #[arg(long, value_name = "OPTION", conflicts_with = "url", allow_hyphen_values = true)]
    start_option: Vec<String>,

    /// PostgreSQL to compare with; without it, one is started in a temporary directory if it is installed. It must have
    /// no table `ticket` and no schema `indexed`
    #[arg(long, value_name = "URL")]
    postgres: Option<String>,

    /// The Python that has DuckDB's package
    #[arg(long, value_name = "FILE", default_value = "python3")]
    python: PathBuf,

    /// Seed of rows and statements
    #[arg(long, value_name = "S", default_value_t = 0)]
    seed: u64,

    #[command(flatten)]
    output: OutputArgs,
}

/// What can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Which {
    /// Carousel, every read with its own place in the order of writes
    Carousel,
    /// Carousel, with snapshot reads
    Snapshot,
    /// DataFusion in this process
    Datafusion,
    /// DuckDB in a process of its own, asked by threads
    Duckdb,
    /// PostgreSQL without an index on what is asked for
    Postgres,
    /// PostgreSQL with an index on every column that is asked for
    Indexed,
}

impl SqlArgs {
    pub(super) async fn run(self) -> Result<(), Failure> {
        tokio::task::spawn_blocking(move || Bench::new(self)?.run())
            .await
            .map_err(|error| Failure::job(format!("the benchmark failed: {error}")))?
    }

    /// Connections that a server must allow: clients stay connected while the others have their turn.
    fn connections(&self) -> u32 {
        2 * self.clients.iter().max().copied().unwrap_or(1) + SPARE_CONNECTIONS
    }

    /// Whether to measure a system, and whether it was asked for by name.
    fn wants(&self, which: Which) -> (bool, bool) {
        let named = self.systems.contains(&which);
        (named || self.systems.is_empty(), named)
    }
}

/// A run: what is measured, and the report as far as it is.
struct Bench {
    args: SqlArgs,
    runtime: Handle,
    report: Report,
    questions: Questions,
    systems: Vec<System>,
    // They live as long as they are measured.
    _server: Option<ServerProcess>,
    _postgres: Option<Postgres>,
}

impl Bench {
    /// Makes rows and questions, starts the systems and fills them.
    fn new(args: SqlArgs) -> Result<Bench, Failure> {
        args.output.create()?;
        let most = args.clients.iter().max().copied().unwrap_or(1);
        open_files::allow(args.connections(), &format!("--clients {most}"))?;
        let title = match args.mix {
            Mix::Selective => "Selective SELECTs over ticket, whole stack",
            Mix::Mixed => "SELECTs over ticket, one in twenty an aggregate over a tenth of it, whole stack",
        };
        let columns = [
            "system",
            "clients",
            "statements/s",
            "p50",
            "p90",
            "p99",
            "p99/p50",
            "statements",
            "cancelled",
            "rate to best without indexes",
            "rate to PostgreSQL with indexes",
        ];
        eprintln!("making {} rows and {} statements", thousands(args.rows), thousands(args.questions.into()));
        let rows = Rows::new(args.seed, args.rows);
        let questions = Questions::draw(&rows, args.mix, args.questions as usize, args.seed + 1);
        let mut bench = Bench {
            runtime: Handle::current(),
            report: Report::new(title, &columns),
            questions,
            systems: Vec::new(),
            _server: None,
            _postgres: None,
            args,
        };
        bench.report.fact("rows", thousands(bench.args.rows));
        bench.report.fact(
            "statements",
            format!(
                "{} different ones, 2 to 5 equalities on random columns, three in five with a range, 1 to {MOST_ROWS} \
                 rows; prepared",
                thousands(bench.args.questions.into())
            ),
        );
        let rounds = format!("{} of {} s for each system, in turn", bench.args.rounds, bench.args.seconds);
        bench.report.fact("rounds", rounds);
        bench.add_carousel()?;
        bench.add_postgres()?;
        bench.add_duckdb(&rows)?;
        bench.add_datafusion(rows)?;
        if bench.systems.is_empty() {
            return Err(Failure::setup("there is nothing to measure"));
        }
        Ok(bench)
    }

    fn load(&self, config: &tokio_postgres::Config, partitioned: bool) -> Result<(), Failure> {
        self.runtime.block_on(async {
            let client = connect(config).await?;
            create_ticket(&client, partitioned).await?;
            let ticket = TicketArgs { rows: self.args.rows, seed: self.args.seed };
            let progress = Progress::new(format!("loading {TABLE}"), Unit::Rows, Some(self.args.rows));
            load_ticket(&client, &ticket, progress).await
        })
    }

    fn add_carousel(&mut self) -> Result<(), Failure> {
        let wanted = [
            (Which::Carousel, CAROUSEL, "-c carousel.read_isolation=sequential"),
            (Which::Snapshot, SNAPSHOT, "-c carousel.read_isolation=snapshot"),
        ];
        if wanted.iter().all(|(which, ..)| !self.args.wants(*which).0) {
            return Ok(());
        }
        let config = match &self.args.url {
            Some(url) => {
                self.report.fact("Carousel", url);
                url.parse()
                    .map_err(|error| Failure::setup(format!("'{url}' is not a connection string: {error}")))?
            }
            None => {
                let connections = self.args.connections();
                let mut options = vec![format!("--max-connections={connections}")];
                options.extend_from_slice(&self.args.start_option);
                let server = ServerProcess::start(&options)?;
                eprintln!("Carousel is process {}", server.id());
                let more = match &self.args.start_option[..] {
                    [] => " (durability = disk, sequential reads)".to_owned(),
                    more => format!(" and {}", more.join(" ")),
                };
                let text = format!("a process of its own, carousel start with its defaults{more}");
                self.report.fact("Carousel", text);
                self._server.insert(server).config.clone()
            }
        };
        self.load(&config, true)?;
        for (which, name, options) in wanted {
            if self.args.wants(which).0 {
                let threads = self.args.client_threads as usize;
                self.systems.push(System::wire(name, Kind::Carousel, &config, options, threads)?);
            }
        }
        Ok(())
    }

    fn add_postgres(&mut self) -> Result<(), Failure> {
        let (plain, indexed) = (self.args.wants(Which::Postgres), self.args.wants(Which::Indexed));
        if !plain.0 && !indexed.0 {
            return Ok(());
        }
        let settings = [
            format!("max_connections={}", self.args.connections()),
            // A quarter of the memory, as its documentation recommends; its default is 128 MB.
            format!("shared_buffers={}kB", machine_memory().unwrap_or(1 << 30) / 4 / 1024),
        ];
        let postgres = match (&self.args.postgres, Postgres::find()) {
            (Some(url), _) => Postgres::given(url)?,
            (None, Some(programs)) => self.runtime.block_on(Postgres::start(&programs, &settings))?,
            (None, None) if plain.1 || indexed.1 => {
                return Err(Failure::setup("PostgreSQL is not installed here and --postgres is not given"));
            }
            (None, None) => {
                self.report.fact("PostgreSQL", "not measured: it is not installed");
                return Ok(());
            }
        };
        let version = self.runtime.block_on(postgres.version())?;
        let text = match &self.args.postgres {
            Some(url) => format!("{version}, {url}"),
            None => format!("{version}, defaults and {}", settings.join(", ")),
        };
        self.report.fact("PostgreSQL", text);
        self.load(&postgres.config, false)?;
        let columns = (0..COLUMNS.len()).filter(|column| can_be_asked_for(*column));
        let columns: Vec<&str> = columns.map(|column| COLUMNS[column].0).collect();
        if indexed.0 {
            eprintln!("PostgreSQL: making {} indexes", columns.len());
            self.runtime.block_on(systems::index(&postgres.config, &columns))?;
        }
        let threads = self.args.client_threads as usize;
        for (wanted, name, kind, schema) in [
            (plain.0, version.clone(), Kind::Scanning, "public"),
            (indexed.0, format!("{version} ({} indexes)", columns.len()), Kind::Indexed, "indexed"),
        ] {
            if wanted {
                // A statement ends soon after its client has left.
                let options = format!(
                    "-c search_path={schema} -c timezone=UTC -c client_connection_check_interval=200"
                );
                let system = System::wire(&name, kind, &postgres.config, &options, threads)?;
                self.systems.push(system);
            }
        }
        self._postgres = Some(postgres);
        Ok(())
    }

    fn add_duckdb(&mut self, rows: &Rows) -> Result<(), Failure> {
        let (wanted, named) = self.args.wants(Which::Duckdb);
        if !wanted {
            return Ok(());
        }
        let Bench { args, questions, report, .. } = self;
        self.systems.extend(System::duckdb(&args.python, &rows.batches, questions, named, report)?);
        Ok(())
    }

    fn add_datafusion(&mut self, rows: Rows) -> Result<(), Failure> {
        if self.args.wants(Which::Datafusion).0 {
            self.systems.push(System::datafusion(rows.batches, &mut self.report)?);
        }
        Ok(())
    }

    fn run(mut self) -> Result<(), Failure> {
        let sample = self.questions.sample(CHECKED);
        for system in &mut self.systems {
            eprintln!("{}: checking {} answers", system.name, sample.len());
            system.check(&self.questions, &sample)?;
        }
        if let Some(most) = self.args.baseline_clients {
            let baselines = self.systems.iter_mut().filter(|system| system.kind != Kind::Carousel);
            baselines.for_each(|system| system.most_clients = most);
        }
        eprintln!("measuring");
        let mut measured = Vec::new();
        for clients in self.args.clients.clone() {
            measured.extend(self.measure(clients)?);
        }
        self.fill_report(&measured);
        self.publish(&measured)
    }

    /// Measures all systems that so many clients can ask.
    fn measure(&mut self, clients: u32) -> Result<Vec<Measured>, Failure> {
        let Bench { args, questions, systems, report, .. } = self;
        let hands = questions.deal(clients as usize, args.mix);
        measure(systems, questions, &hands, args.rounds, Duration::from_secs(args.seconds), report)
    }

    fn fill_report(&mut self, measured: &[Measured]) {
        let [scanning, indexed] =
            [Kind::Scanning, Kind::Indexed].map(|kind| best_rate(measured, kind).unwrap_or(0.0));
        for point in measured {
            let mut fields = vec![point.system.clone()];
            fields.extend(point.fields());
            fields.push(ratio(point.p99.as_secs_f64(), point.p50.as_secs_f64()));
            fields.extend([point.statements, point.cancelled].map(|count| thousands(count as u64)));
            fields.extend([scanning, indexed].map(|best| ratio(point.per_second, best)));
            self.report.row(fields);
        }
        self.report.remark(format!(
            "Before, every system gave the right answers to the first {CHECKED} statements, as an evaluator tells that \
             shares nothing with any of them; during the measurement the number of rows of every answer was checked."
        ));
        self.report.remark(
            "The last two columns divide a rate by the best one of DataFusion, DuckDB and PostgreSQL without indexes, and \
             of PostgreSQL with them, at whatever number of clients.",
        );
        self.report.remark(cancelled(Duration::from_secs(self.args.seconds)));
        let of_carousel = measured.iter().filter(|point| point.kind == Kind::Carousel);
        self.report.remark(format!(
            "While they asked Carousel, the clients took up to {:.0} % of a core of the same machine.",
            of_carousel.map(|point| point.clients_share).fold(0.0, f64::max) * 100.0
        ));
    }

    /// What is to be reached on two cores with selective SELECTs.
    fn targets(&self, measured: &[Measured]) -> Targets {
        let of = |which: &dyn Fn(&Measured) -> bool, clients: u32| {
            measured.iter().find(|point| which(point) && point.clients == clients)
        };
        let many = of(&|point| point.system == CAROUSEL, 1024);
        let times =
            |kind: Kind| Some(many?.per_second / best_rate(measured, kind).filter(|rate| *rate > 0.0)?);
        let alone = of(&|point| point.system == SNAPSHOT, 1);
        let indexed = of(&|point| point.kind == Kind::Indexed, 1);
        let mut targets = Targets::new("Whole stack: what is to be reached");
        let rate = "1,024 clients: times the rate of the best";
        targets.at_least(format!("{rate} without indexes"), times(Kind::Scanning), 100.0);
        targets.at_least(format!("{rate} PostgreSQL with indexes"), times(Kind::Indexed), 10.0);
        let spread = many.map(|point| point.p99.as_secs_f64() / point.p50.as_secs_f64());
        targets.at_most("1,024 clients: times p50 that p99 is", spread, 3.0);
        let beside =
            alone.zip(indexed).map(|(ours, theirs)| ours.p50.as_secs_f64() / theirs.p50.as_secs_f64());
        let what = "one client with snapshot reads: times the p50 of PostgreSQL with indexes";
        targets.at_most(what, beside, 2.0);
        targets
    }

    fn publish(&self, measured: &[Measured]) -> Result<(), Failure> {
        self.report.publish(&self.args.output.report("sql"))?;
        if self.args.mix == Mix::Selective {
            self.targets(measured).publish(&self.args.output.report("sql-targets"))?;
        }
        let title = format!(
            "{} rows, {}",
            thousands(self.args.rows),
            match self.args.mix {
                Mix::Selective => "selective SELECTs",
                Mix::Mixed => "selective SELECTs, one statement in twenty an aggregate over a tenth",
            }
        );
        self.args.output.write("sql.svg", || chart::throughput_and_p99(&title, "clients", measured))
    }
}
