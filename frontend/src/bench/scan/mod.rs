//! The engine alone: how many operations share a scan over the Ticket table, and what it costs.

mod engine;
mod questions;

use std::{
    hint::black_box,
    time::{Duration, Instant},
};

use carousel_engine::aggregate::AggregateFunction;
use clap::Args;
use engine::{Engine, Load, Outcome, median};
use questions::Question;

use super::{
    draw::{MOST_ROWS, Mix},
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

    /// Update every row so often at the end, to see how much memory the rows take then
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=1000))]
    update_each: u32,

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

        let selects = self.selects(&rows, Mix::All, 1, MOST_ROWS);
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
            // At equal selectivity, so that they can be compared.
            let selects = self.selects(&rows, mix, 3, 1);
            engine.check(&rows, &selects[..selects.len().min(CHECKED)]).map_err(Failure::job)?;
            let what = format!("SELECTs of one row over {}", mix.name());
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
        // A shard holds fares as codes of 32 bits and flight numbers as codes of 16.
        let share = (self.rows / u64::from(threads)) as usize;
        for (what, time) in [
            ("a loop that adds up as many numbers of 32 bits", plain_sum::<u32>(share, threads)),
            ("a loop that adds up as many numbers of 16 bits", plain_sum::<u16>(share, threads)),
        ] {
            let per_second = thousands((1.0 / time.as_secs_f64().max(1e-9)) as u64);
            report.row(vec![what.into(), "1".into(), per_second, milliseconds(time), "-".into()]);
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
        if self.update_each > 0 {
            eprintln!("updating every row {} times", self.update_each);
            let often = self.update_each as usize;
            let numbers: Vec<usize> = (0..rows.len() * often).collect();
            for some in numbers.chunks(1 << 16) {
                let other = |number: usize| number.wrapping_mul(0x9e37_79b9) % rows.len();
                let updates: Vec<Question> = some
                    .iter()
                    .map(|number| questions::update(&rows, number % rows.len(), other(*number)))
                    .collect();
                engine.apply(&updates, 4096);
            }
            let updated = engine.memory();
            engine.collect_garbage();
            report.fact(
                &format!("bytes a row after {often} updates of every row"),
                format!(
                    "{:.1}, and {:.1} when all garbage is collected",
                    updated as f64 / self.rows as f64,
                    engine.memory() as f64 / self.rows as f64
                ),
            );
        }
        report.remark(
            "Each operation rides past every shard; the slower shard counts. p50 is from submission to the end.",
        );
        report.remark(format!(
            "The first {CHECKED} answers of each set of SELECTs agreed with an evaluator that shares nothing with the \
             engine."
        ));
        report.publish(&self.report)
    }

    fn selects(&self, rows: &Rows, mix: Mix, seed: u64, most: usize) -> Vec<Question> {
        questions::selects(rows, mix, self.questions as usize, self.seed + seed, most)
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

/// How long a plain loop takes to add up numbers, as many threads at the same time as there are shards, each with
/// numbers of its own: the median of the slowest thread.
fn plain_sum<T: Copy + Default + Into<u64> + Send>(numbers: usize, threads: u32) -> Duration {
    const ROUNDS: usize = 501;
    let medians: Vec<Duration> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|_| {
                scope.spawn(move || {
                    // Written one by one, so that they have memory of their own.
                    let numbers: Vec<T> = (0..numbers).map(|_| black_box(T::default())).collect();
                    let times: Vec<Duration> = (0..ROUNDS)
                        .map(|_| {
                            let started = Instant::now();
                            let sum: u64 = black_box(&numbers).iter().map(|number| (*number).into()).sum();
                            black_box(sum);
                            started.elapsed()
                        })
                        .collect();
                    median(&times)
                })
            })
            .collect();
        workers.into_iter().map(|worker| worker.join().expect("a sum does not panic")).collect()
    });
    medians.into_iter().max().unwrap_or_default()
}
