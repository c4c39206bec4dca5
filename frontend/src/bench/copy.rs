//! COPY of ticket rows, beside PostgreSQL.

use std::time::Instant;

use bytes::Bytes;
use clap::Args;
use futures::{SinkExt, StreamExt, stream};
use tokio_postgres::{Client, Config, SimpleQueryMessage};

use super::{
    baselines::Postgres,
    report::{Report, ReportArgs, median, ratio},
    target::TargetArgs,
};
use crate::{
    cli::{Failure, progress::thousands},
    load::{connect, reason},
    ticket::{COLUMNS, CsvStream, MAX_ROWS, TABLE, create_table},
};

/// Rows that are read back and compared after each run.
const SAMPLE_ROWS: usize = 20;

/// Options of `carousel bench copy`.
#[derive(Args, Debug)]
pub struct CopyArgs {
    /// Rows to copy
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..=MAX_ROWS))]
    rows: u64,

    /// Runs of each system, in turn
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    runs: u32,

    /// Seed of the rows
    #[arg(long, value_name = "S", default_value_t = 0)]
    seed: u64,

    /// PostgreSQL to compare with; without it, one is started in a temporary directory if it is installed. Its table
    /// `ticket` must not exist
    #[arg(long, value_name = "URL")]
    postgres: Option<String>,

    /// Measure Carousel alone
    #[arg(long, conflicts_with = "postgres")]
    no_postgres: bool,

    #[command(flatten)]
    target: TargetArgs,

    #[command(flatten)]
    report: ReportArgs,
}

struct System {
    name: String,
    config: Config,
    partitioned: bool,
    seconds: Vec<f64>,
}

impl CopyArgs {
    pub(super) async fn run(self) -> Result<(), Failure> {
        // Generated beforehand: what is measured is loading.
        let input = generate(self.seed, self.rows).await;
        let bytes: usize = input.iter().map(Bytes::len).sum();
        let target = self.target.open().await?;
        let postgres = self.postgres().await?;
        let mut systems = vec![System {
            name: "Carousel".to_owned(),
            config: target.config.clone(),
            partitioned: true,
            seconds: vec![],
        }];
        if let Some(postgres) = &postgres {
            let name = postgres.version().await?;
            systems.push(System {
                name,
                config: postgres.config.clone(),
                partitioned: false,
                seconds: vec![],
            });
        }
        for run in 1..=self.runs {
            for system in &mut systems {
                let seconds = system.measure(&input, self.rows).await?;
                tracing::info!(system.name, run, seconds, "copied");
                eprintln!("{}, run {run} of {}: {seconds:.2} s", system.name, self.runs);
                system.seconds.push(seconds);
            }
        }
        let mut report = Report::new(
            "COPY ticket FROM STDIN (FORMAT csv)",
            &[
                "system",
                "median rows/s",
                "median s",
                "fastest s",
                "slowest s",
                "Carousel's rate relative to it",
            ],
        );
        report.fact("rows", thousands(self.rows));
        report.fact("bytes of csv", thousands(bytes as u64));
        report.fact("runs of each, in turn", self.runs);
        report.fact("clients", 1);
        report.fact("Carousel", &target.description);
        if postgres.is_none() {
            report.fact("PostgreSQL", "not measured");
        }
        let carousel = median(&systems[0].seconds);
        for system in &systems {
            let middle = median(&system.seconds);
            report.row(vec![
                system.name.clone(),
                thousands((self.rows as f64 / middle) as u64),
                format!("{middle:.2}"),
                format!("{:.2}", system.seconds.iter().copied().fold(f64::INFINITY, f64::min)),
                format!("{:.2}", system.seconds.iter().copied().fold(0.0, f64::max)),
                ratio(middle, carousel),
            ]);
        }
        report.remark(format!(
            "After each run, the number of rows and {SAMPLE_ROWS} whole rows were read back and compared with the csv."
        ));
        report.publish(&self.report)?;
        target.close().await
    }

    async fn postgres(&self) -> Result<Option<Postgres>, Failure> {
        if self.no_postgres {
            return Ok(None);
        }
        match (&self.postgres, Postgres::find()) {
            (Some(url), _) => Postgres::given(url).map(Some),
            (None, Some(programs)) => Postgres::start(&programs, &[]).await.map(Some),
            (None, None) => {
                eprintln!(
                    "PostgreSQL is not installed here and --postgres is not given: Carousel is measured alone"
                );
                Ok(None)
            }
        }
    }
}

async fn generate(seed: u64, rows: u64) -> Vec<Bytes> {
    let mut stream = CsvStream::new(seed, rows, crate::cli::cores() as usize);
    let mut input = Vec::new();
    while let Some((csv, _)) = stream.next().await {
        input.push(Bytes::from(csv));
    }
    input
}

fn failed(system: &str) -> impl Fn(tokio_postgres::Error) -> Failure {
    move |error| Failure::job(format!("{system}: {}", reason(&error)))
}

impl System {
    /// Creates the table, copies, checks and drops it; gives the seconds that COPY took.
    async fn measure(&self, input: &[Bytes], rows: u64) -> Result<f64, Failure> {
        let failed = failed(&self.name);
        let client = connect(&self.config).await?;
        client.batch_execute("SET TimeZone = 'UTC'").await.map_err(&failed)?;
        client.batch_execute(&create_table(self.partitioned)).await.map_err(&failed)?;
        let started = Instant::now();
        let sink = client
            .copy_in::<_, Bytes>(&format!("COPY {TABLE} FROM STDIN (FORMAT csv)"))
            .await
            .map_err(&failed)?;
        let mut sink = std::pin::pin!(sink);
        let mut chunks = stream::iter(input.iter().cloned());
        while let Some(chunk) = chunks.next().await {
            if sink.send(chunk).await.is_err() {
                // The reason is told by `finish`.
                break;
            }
        }
        let loaded = sink.finish().await.map_err(&failed)?;
        let seconds = started.elapsed().as_secs_f64();
        if loaded != rows {
            return Err(Failure::job(format!("{} loaded {loaded} rows of {rows}", self.name)));
        }
        check(&self.name, &client, input, rows).await?;
        client.batch_execute(&format!("DROP TABLE {TABLE}")).await.map_err(&failed)?;
        Ok(seconds)
    }
}

async fn query(system: &str, client: &Client, sql: &str) -> Result<Vec<Vec<Option<String>>>, Failure> {
    let messages = client.simple_query(sql).await.map_err(failed(system))?;
    let rows = messages.iter().filter_map(|message| match message {
        SimpleQueryMessage::Row(row) => {
            Some((0..row.len()).map(|column| row.get(column).map(str::to_owned)).collect())
        }
        _ => None,
    });
    Ok(rows.collect())
}

/// Reads rows back by their key and compares them with the csv, field by field.
async fn check(system: &str, client: &Client, input: &[Bytes], rows: u64) -> Result<(), Failure> {
    let count = query(system, client, &format!("SELECT count(*) FROM {TABLE}")).await?;
    if count != [[Some(rows.to_string())]] {
        return Err(Failure::job(format!("{system} holds {count:?} rows, not {rows}")));
    }
    for sample in 0..SAMPLE_ROWS {
        let block = std::str::from_utf8(&input[sample * 7919 % input.len()])
            .map_err(|error| Failure::job(format!("the csv is not UTF-8: {error}")))?;
        let lines: Vec<&str> = block.lines().collect();
        // No generated field has a comma in it.
        let expected: Vec<Option<String>> = lines[sample * 104_729 % lines.len()]
            .split(',')
            .map(|field| (!field.is_empty()).then(|| field.to_owned()))
            .collect();
        let [Some(rloc), Some(passenger), Some(segment)] = &expected[..3] else {
            return Err(Failure::job("a generated row has no key"));
        };
        let names = COLUMNS.map(|column| column.0).join(", ");
        let found = query(
            system,
            client,
            &format!("SELECT {names} FROM {TABLE} WHERE rloc = '{rloc}' AND passenger = {passenger} AND segment = {segment}"),
        )
        .await?;
        if found != [expected.clone()] {
            return Err(Failure::job(format!("{system} answers {found:?} where the csv has {expected:?}")));
        }
    }
    Ok(())
}
