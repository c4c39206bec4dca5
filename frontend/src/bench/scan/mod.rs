//! The engine alone: how many operations share a scan over the Ticket table, and what it costs.

mod engine;
mod questions;

use std::time::Duration;

use carousel_engine::aggregate::AggregateFunction;
use clap::Args;
use engine::{Engine, Load, Outcome, median};
use questions::Question;

use super::{
    draw::Mix,
    report::{Report, ReportArgs, milliseconds},
    rows::Rows,
};
use crate::{
    cli::{Failure, progress::thousands},
    ticket::MAX_ROWS,
};

/// Options of `carousel bench scan`.
#[derive(Args, Debug)]
pub struct ScanArgs {
    /// Rows of the table
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..=MAX_ROWS))]
    rows: u64,

    /// Scan threads, each with its own shard [default: one for each core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: Option<u32>,

    /// How many operations ride at the same time; one measurement for each number
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_values_t = [1, 64, 1024, 4096], value_parser = clap::value_parser!(u32).range(1..=100_000))]
    riding: Vec<u32>,

    /// Seconds of each round
    #[arg(long, value_name = "S", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: u64,

    /// Rounds of each measurement; what is reported is the median
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,

    /// Different questions
    #[arg(long, value_name = "N", default_value_t = 8192, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    questions: u32,

    /// Updates of single rows for each second, where updates ride along
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..))]
    updates: u32,

    /// Seed of rows and questions
    #[arg(long, value_name = "S", default_value_t = 0)]
    seed: u64,

    #[command(flatten)]
    report: ReportArgs,
}

/// Questions whose answers are checked.
const CHECKED: usize = 500;

impl ScanArgs {
    pub(super) async fn run(self) -> Result<(), Failure> {
        tokio::task::spawn_blocking(move || self.measure())
            .await
            .map_err(|error| Failure::job(format!("the benchmark failed: {error}")))?
    }

    fn measure(self) -> Result<(), Failure> {
        let threads = self.threads.unwrap_or_else(crate::cli::cores);
        eprintln!("making {} rows", thousands(self.rows));
        let rows = Rows::new(self.seed, self.rows);
        let schema = questions::schema();
        let mut engine = Engine::new(&schema, threads);
        let loading = engine.load(&schema, &rows.batches);
        let loaded_bytes = engine.memory();
        let parts = engine.memory_by_part();
        let mut report = Report::new(
            "The engine alone: operations that share a scan over ticket",
            &["what rides", "riding", "reads/s", "p50", "updates/s"],
        );
        report.fact("rows", thousands(self.rows));
        report.fact("scan threads", threads);
        report.fact("rounds", format!("{} of {} s each, the median is shown", self.rounds, self.seconds));
        report.fact(
            "loading",
            format!("{} rows/s", thousands((self.rows as f64 / loading.as_secs_f64()) as u64)),
        );
        report.fact("bytes a row", format!("{:.1}", loaded_bytes as f64 / self.rows as f64));
        let mut largest = parts;
        largest.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
        let shares: Vec<String> = largest
            .iter()
            .take(12)
            .map(|(name, bytes)| format!("{name} {:.1}", *bytes as f64 / self.rows as f64))
            .collect();
        report.fact("of these", shares.join(", "));

        let selects = questions::selects(&rows, Mix::All, self.questions as usize, self.seed + 1);
        engine.check(&rows, &selects[..selects.len().min(CHECKED)]).map_err(Failure::job)?;
        for riding in &self.riding {
            self.row(&mut report, &mut engine, "selective SELECTs", *riding, &selects, &[]);
        }
        let aggregates = questions::aggregates(&rows, self.questions.div_ceil(20) as usize, self.seed + 2);
        let mixed: Vec<Question> = selects
            .iter()
            .enumerate()
            .map(|(index, select)| if index % 20 == 0 { &aggregates[index / 20] } else { select })
            .cloned()
            .collect();
        for riding in &self.riding {
            let what = "the same, one in twenty an aggregate over a tenth of the table";
            self.row(&mut report, &mut engine, what, *riding, &mixed, &[]);
        }
        for mix in Mix::EACH {
            let selects = questions::selects(&rows, mix, self.questions as usize, self.seed + 3);
            engine.check(&rows, &selects[..selects.len().min(CHECKED)]).map_err(Failure::job)?;
            let what = format!("SELECTs over {}", mix.name());
            self.row(&mut report, &mut engine, &what, 1024, &selects, &[]);
        }
        for (what, function, column) in [
            ("count(*) of all rows", AggregateFunction::Count, None),
            ("sum(fare) of all rows", AggregateFunction::Sum, Some("fare")),
            ("sum(flight_number) of all rows", AggregateFunction::Sum, Some("flight_number")),
        ] {
            let operation = questions::aggregate_of(function, column);
            let question = [Question { operation, rows: Vec::new() }];
            self.row(&mut report, &mut engine, what, 1, &question, &[]);
        }
        let updates = questions::updates(&rows, 200_000, self.seed + 4);
        for riding in &self.riding {
            self.row(&mut report, &mut engine, "SELECTs and updates", *riding, &selects, &updates);
        }
        self.row(&mut report, &mut engine, "updates", 4096, &updates, &[]);
        let updated = engine.memory();
        engine.collect_garbage();
        report.fact(
            "bytes a row after the updates",
            format!(
                "{:.1}, and {:.1} when all garbage is collected",
                updated as f64 / self.rows as f64,
                engine.memory() as f64 / self.rows as f64
            ),
        );
        report.remark(
            "Each operation rides past every shard; the slower shard counts. p50 is from submission to the end.",
        );
        report.remark(format!(
            "The first {CHECKED} answers of each set of SELECTs agreed with an evaluator that shares nothing with the \
             engine."
        ));
        report.publish(&self.report)
    }

    fn row(
        &self,
        report: &mut Report,
        engine: &mut Engine,
        what: &str,
        riding: u32,
        reads: &[Question],
        updates: &[Question],
    ) {
        eprintln!("{what}, {riding} riding");
        let load = Load {
            reads,
            riding: riding as usize,
            updates,
            updates_per_second: f64::from(self.updates),
            duration: Duration::from_secs(self.seconds),
        };
        let mut outcomes: Vec<Outcome> = (0..self.rounds).map(|_| engine.run(&load)).collect();
        outcomes.sort_by(|a, b| a.per_second.total_cmp(&b.per_second));
        let middle = &outcomes[outcomes.len() / 2];
        report.row(vec![
            what.to_owned(),
            thousands(u64::from(riding)),
            thousands(middle.per_second as u64),
            milliseconds(median(&middle.latencies)),
            if updates.is_empty() { "-".to_owned() } else { thousands(middle.updates_per_second as u64) },
        ]);
    }
}
