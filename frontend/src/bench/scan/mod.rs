//! The engine alone: how many operations share a scan over the Ticket table, and what it costs, beside DataFusion and
//! DuckDB in process, which are asked the same.

mod engine;
mod questions;

use std::{
    hint::black_box,
    path::PathBuf,
    time::{Duration, Instant},
};

use carousel_engine::aggregate::AggregateFunction;
use clap::Args;
use engine::{Engine, Load, Outcome};
use questions::Question;

use super::{
    chart,
    draw::{MOST_ROWS, Mix},
    measured::{Kind, Measured, Turn, best_rate, cancelled},
    report::{OutputArgs, Report, median, number, ratio},
    rows::Rows,
    sql::{self, Questions, System},
    targets::Targets,
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
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_values_t = [1, 16, 64, 256, 1024, 4096], value_parser = clap::value_parser!(u32).range(1..=100_000))]
    riding: Vec<u32>,

    /// Seconds of each round
    #[arg(long, value_name = "S", default_value = "2", value_parser = seconds)]
    seconds: Duration,

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
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(0..=1000))]
    update_each: u32,

    /// Clients of DataFusion and DuckDB; one measurement for each number
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_values_t = [1, 64], value_parser = clap::value_parser!(u32).range(1..=50_000))]
    baseline_clients: Vec<u32>,

    /// Do not measure DataFusion and DuckDB
    #[arg(long, conflicts_with = "baseline_clients")]
    no_baselines: bool,

    /// The Python that has DuckDB's package
    #[arg(long, value_name = "FILE", default_value = "python3")]
    python: PathBuf,

    #[command(flatten)]
    output: OutputArgs,
}

/// Questions whose answers are checked.
const CHECKED: usize = 500;
/// The same of each baseline.
const CHECKED_OF_BASELINES: usize = 100;
/// The system that is measured.
const ENGINE: &str = "Carousel";
// What is asked.
const SELECTIVE: &str = "selective SELECTs";
const MIXED: &str = "with aggregates";
const BESIDE_UPDATES: &str = "beside updates";
const UPDATES: &str = "updates of single rows";
/// Sums over all rows: the function's column, and the width of its numbers as a shard holds them.
const SUMS: [(&str, &str, u32); 2] =
    [("sum(fare) of all rows", "fare", 32), ("sum(flight_number) of all rows", "flight_number", 16)];

impl ScanArgs {
    pub(super) async fn run(self) -> Result<(), Failure> {
        self.output.create()?;
        tokio::task::spawn_blocking(move || Bench::new(self).run())
            .await
            .map_err(|error| Failure::job(format!("the benchmark failed: {error}")))?
    }
}

/// One line of the report.
struct Found {
    what: String,
    measured: Measured,
    /// Updates executed in a second beside what is asked.
    updates_per_second: Option<f64>,
}

/// A run: what is measured, and what was found so far.
struct Bench {
    args: ScanArgs,
    threads: u32,
    rows: Rows,
    engine: Engine,
    report: Report,
    found: Vec<Found>,
    /// Bytes that a row takes when it is loaded, and after the updates of every row.
    bytes_a_row: [Option<f64>; 2],
}

impl Bench {
    /// Makes the rows and loads them.
    fn new(args: ScanArgs) -> Bench {
        let threads = args.threads.unwrap_or_else(crate::cli::cores);
        eprintln!("making {} rows", thousands(args.rows));
        let rows = Rows::new(args.seed, args.rows);
        let schema = questions::schema();
        let mut engine = Engine::new(&schema, threads);
        let loading = engine.load(&schema, &rows.batches);
        let mut report = Report::new(
            "The engine alone: operations that share a scan over ticket",
            &[
                "what is asked",
                "system",
                "riding",
                "operations/s",
                "p50",
                "p90",
                "p99",
                "updates/s",
                "rate to best baseline",
            ],
        );
        report.fact("rows", thousands(args.rows));
        report.fact("scan threads", threads);
        report.fact(
            SELECTIVE,
            format!(
                "{} different ones, 2 to 5 equalities on random columns, three in five with a range, 1 to {MOST_ROWS} rows",
                thousands(args.questions.into())
            ),
        );
        report.fact(MIXED, "the same, but one in twenty is count(*) and sum(fare) over a tenth of the table");
        report.fact(BESIDE_UPDATES, "the selective SELECTs, and updates of single rows that ride along");
        report.fact("rounds", format!("{} of {} s each; medians", args.rounds, args.seconds.as_secs_f64()));
        report.fact("loading", format!("{} rows/s", number(args.rows as f64 / loading.as_secs_f64(), 0)));
        let mut bench =
            Bench { args, threads, rows, engine, report, found: Vec::new(), bytes_a_row: [None; 2] };
        let loaded = bench.a_row(bench.engine.memory());
        bench.bytes_a_row[0] = Some(loaded);
        bench.report.fact("bytes a row", format!("{loaded:.1}"));
        let mut largest = bench.engine.memory_by_part();
        largest.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
        let share = |(name, bytes): &(String, usize)| format!("{name} {:.1}", bench.a_row(*bytes));
        let shares: Vec<String> = largest.iter().take(12).map(share).collect();
        bench.report.fact("of these", shares.join(", "));
        bench
    }

    fn run(mut self) -> Result<(), Failure> {
        let selects = self.selects(Mix::All, 1, MOST_ROWS)?;
        self.each_riding(SELECTIVE, &selects, &[]);
        let every_twentieth = selects.len().div_ceil(20);
        let aggregates = questions::aggregates(&self.rows, every_twentieth, self.args.seed + 2);
        let mixed: Vec<Question> = selects
            .iter()
            .enumerate()
            .map(|(index, select)| if index % 20 == 0 { &aggregates[index / 20] } else { select })
            .cloned()
            .collect();
        self.each_riding(MIXED, &mixed, &[]);
        if !self.args.no_baselines {
            self.baselines()?;
        }
        for mix in Mix::EACH {
            if !mix.is_in(&self.rows) {
                self.report.fact(&of_mix(mix), "not measured: too few columns of so few rows".to_owned());
                continue;
            }
            // At equal selectivity, so that they can be compared.
            let selects = self.selects(mix, 3, 1)?;
            self.ride(&of_mix(mix), 1024, &selects, &[]);
        }
        self.aggregates_of_all_rows();
        let updates = questions::updates(&self.rows, 200_000, self.args.seed + 4);
        self.each_riding(BESIDE_UPDATES, &selects, &updates);
        self.ride(UPDATES, 4096, &updates, &[]);
        self.memory("bytes a row after these updates");
        if self.args.update_each > 0 {
            self.update_each();
        }
        self.publish()
    }

    /// Bytes of all rows by the row.
    fn a_row(&self, bytes: usize) -> f64 {
        bytes as f64 / self.args.rows as f64
    }

    /// Reports the bytes that a row takes, now and when all garbage is collected; gives the former.
    fn memory(&mut self, name: &str) -> f64 {
        let before = self.a_row(self.engine.memory());
        self.engine.collect_garbage();
        let after = self.a_row(self.engine.memory());
        self.report.fact(name, format!("{before:.1}, and {after:.1} when all garbage is collected"));
        before
    }

    /// Selective SELECTs; the engine's answers to the first of them are right.
    fn selects(&mut self, mix: Mix, seed: u64, most: usize) -> Result<Vec<Question>, Failure> {
        let (count, seed) = (self.args.questions as usize, self.args.seed + seed);
        let selects = questions::selects(&self.rows, mix, count, seed, most);
        self.engine.check(&self.rows, &selects[..count.min(CHECKED)]).map_err(Failure::job)?;
        Ok(selects)
    }

    fn each_riding(&mut self, what: &str, reads: &[Question], updates: &[Question]) {
        for riding in self.args.riding.clone() {
            self.ride(what, riding, reads, updates);
        }
    }

    /// Measures the engine.
    fn ride(&mut self, what: &str, riding: u32, reads: &[Question], updates: &[Question]) {
        eprintln!("{what}, {riding} riding");
        let load = Load {
            reads,
            riding: riding as usize,
            updates,
            updates_per_second: f64::from(self.args.updates),
            duration: self.args.seconds,
        };
        let outcomes: Vec<Outcome> = (0..self.args.rounds).map(|_| self.engine.run(&load)).collect();
        let updated: Vec<f64> = outcomes.iter().map(|outcome| outcome.updates_per_second).collect();
        let turns: Vec<Turn> = outcomes.into_iter().map(|outcome| outcome.turn).collect();
        self.found.push(Found {
            what: what.to_owned(),
            measured: Measured::new(ENGINE, Kind::Carousel, riding, &turns),
            updates_per_second: (!updates.is_empty()).then(|| median(&updated)),
        });
    }

    fn aggregates_of_all_rows(&mut self) {
        let question = |function, column| {
            [Question { operation: questions::aggregate_of(function, column), rows: Vec::new() }]
        };
        self.ride("count(*) of all rows", 1, &question(AggregateFunction::Count, None), &[]);
        let share = (self.args.rows / u64::from(self.threads)) as usize;
        for (what, column, bits) in SUMS {
            self.ride(what, 1, &question(AggregateFunction::Sum, Some(column)), &[]);
            let sum = if bits == 32 { plain_sum::<u32> } else { plain_sum::<u16> };
            let turns: Vec<Turn> =
                (0..self.args.rounds).map(|_| sum(share, self.threads, self.args.seconds)).collect();
            let name = format!("a plain loop over as many numbers of {bits} bits");
            let measured = Measured::new(&name, Kind::Scanning, 1, &turns);
            self.found.push(Found { what: what.to_owned(), measured, updates_per_second: None });
        }
    }

    /// Asks DataFusion and DuckDB what the engine is asked.
    fn baselines(&mut self) -> Result<(), Failure> {
        let Bench { args, rows, report, found, .. } = self;
        let questions = Questions::draw(rows, sql::Mix::Mixed, args.questions as usize, args.seed + 1);
        let mut systems = vec![System::datafusion(rows.batches.clone(), report)?];
        systems.extend(System::duckdb(&args.python, &rows.batches, &questions, false, report)?);
        let sample = questions.sample(CHECKED_OF_BASELINES);
        for system in &mut systems {
            eprintln!("{}: checking {} answers", system.name, sample.len());
            system.check(&questions, &sample)?;
        }
        for (what, mix) in [(SELECTIVE, sql::Mix::Selective), (MIXED, sql::Mix::Mixed)] {
            for clients in &args.baseline_clients {
                let hands = questions.deal(*clients as usize, mix);
                let all = sql::measure(&mut systems, &questions, &hands, args.rounds, args.seconds, report)?;
                found.extend(all.into_iter().map(|measured| Found {
                    what: what.to_owned(),
                    measured,
                    updates_per_second: None,
                }));
            }
        }
        Ok(())
    }

    fn update_each(&mut self) {
        let (often, rows) = (self.args.update_each as usize, self.rows.len());
        eprintln!("updating every row {often} times");
        let numbers: Vec<usize> = (0..rows * often).collect();
        for some in numbers.chunks(1 << 16) {
            let other = |number: usize| number.wrapping_mul(0x9e37_79b9) % rows;
            let updates: Vec<Question> = some
                .iter()
                .map(|number| questions::update(&self.rows, number % rows, other(*number)))
                .collect();
            self.engine.apply(&updates, 4096);
        }
        self.bytes_a_row[1] = Some(self.memory(&format!("bytes a row after {often} updates of every row")));
    }

    fn publish(mut self) -> Result<(), Failure> {
        for Found { what, measured, updates_per_second } in &self.found {
            let mut fields = vec![what.clone(), measured.system.clone()];
            fields.extend(measured.fields());
            fields.push(updates_per_second.map_or("-".to_owned(), |updates| number(updates, 0)));
            fields.push(ratio(measured.per_second, self.baseline(what).unwrap_or(0.0)));
            self.report.row(fields);
        }
        self.report.remark(
            "Each operation of the engine rides past every shard; the slower shard counts. Its time is from submission to \
             the end. Baselines have as many clients as there are operations riding.",
        );
        self.report.remark(format!(
            "The first {CHECKED} answers of each set of SELECTs, and {CHECKED_OF_BASELINES} of each baseline, agreed with \
             an evaluator that shares nothing with any of them."
        ));
        self.report.remark(cancelled(self.args.seconds));
        let output = &self.args.output;
        self.report.publish(&output.report("scan"))?;
        self.targets().publish(&output.report("scan-targets"))?;
        let title = format!("{} rows, operations that ride at the same time", thousands(self.args.rows));
        let lines: Vec<Measured> = self
            .found
            .iter()
            .filter(|found| [SELECTIVE, MIXED, BESIDE_UPDATES].contains(&&found.what[..]))
            .map(|Found { what, measured, .. }| {
                let mut line = measured.clone();
                line.system.push_str(&format!(": {what}"));
                line
            })
            .collect();
        output.write("scan.svg", || chart::throughput_and_p99(&title, "riding", &lines))
    }

    fn of(&self, what: &str) -> impl Iterator<Item = &Measured> {
        self.found.iter().filter(move |found| found.what == what).map(|found| &found.measured)
    }

    /// What the engine did.
    fn engine(&self, what: &str, riding: u32) -> Option<&Measured> {
        self.of(what).find(|measured| measured.kind == Kind::Carousel && measured.clients == riding)
    }

    /// The rate of the best baseline.
    fn baseline(&self, what: &str) -> Option<f64> {
        best_rate(self.of(what), Kind::Scanning)
    }

    /// What is to be reached on two cores. What is wanted over a million rows is scaled to the rows of larger tables.
    fn targets(&self) -> Targets {
        let mut targets = Targets::new("The engine alone: what is to be reached");
        let millions = (self.args.rows as f64 / 1e6).max(1.0);
        let rate = |what: &str, riding| Some(self.engine(what, riding)?.per_second);
        for (riding, wanted) in [(1024, 80_000.0), (4096, 150_000.0)] {
            let what = format!("reads a second, {} riding", thousands(riding.into()));
            targets.at_least(what, rate(SELECTIVE, riding), wanted / millions);
        }
        let p50 = |measured: &Measured| measured.p50.as_secs_f64() * 1e3;
        for (riding, wanted) in [(64, 4.0), (4096, 27.0)] {
            let what = format!("ms of a revolution (p50 of a read), {} riding", thousands(riding.into()));
            targets.at_most(what, self.engine(SELECTIVE, riding).map(p50), wanted * millions);
        }
        let baselines = self.of(SELECTIVE).filter(|one| one.kind == Kind::Scanning && one.clients == 1);
        let best = baselines.map(p50).reduce(f64::min);
        let alone = self.engine(SELECTIVE, 1).map(p50).zip(best);
        targets.at_most(
            "one SELECT alone: its p50 to that of the best of DataFusion and DuckDB in process",
            alone.map(|(ours, theirs)| ours / theirs),
            0.1,
        );
        let mixes = || Mix::EACH.iter().filter_map(|mix| rate(&of_mix(*mix), 1024));
        let spread = mixes().reduce(f64::max).zip(mixes().reduce(f64::min)).map(|(most, least)| most / least);
        targets.at_most("rate of the fastest mix of columns to that of the slowest", spread, 2.0);
        for riding in &self.args.riding {
            let [riding_text, updates] = [*riding, self.args.updates].map(|number| thousands(number.into()));
            let kept = rate(BESIDE_UPDATES, *riding).zip(rate(SELECTIVE, *riding));
            targets.at_least(
                format!("share of reads kept beside {updates} updates a second, {riding_text} riding"),
                kept.map(|(beside, alone)| beside / alone),
                0.8,
            );
        }
        targets.at_least("updates a second alone", rate(UPDATES, 4096), 50_000.0);
        for (what, ..) in SUMS {
            let bandwidth = rate(what, 1).zip(self.baseline(what)).map(|(ours, theirs)| ours / theirs);
            targets.at_least(format!("{what}: memory bandwidth to a plain loop's"), bandwidth, 0.8);
        }
        let [loaded, updated] = self.bytes_a_row;
        targets.at_most("bytes a row", loaded, 200.0);
        let updated = updated.filter(|_| self.args.update_each == 10);
        targets.at_most("bytes a row after 10 updates of every row", updated, 400.0);
        targets
    }
}

fn of_mix(mix: Mix) -> String {
    format!("SELECTs of one row over {}", mix.name())
}

/// A time in seconds, which may have decimal places.
fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    seconds.filter(|time| !time.is_zero()).ok_or_else(|| "not a number of seconds above 0".to_owned())
}

/// Lets threads add up numbers in a plain loop for a while, as many at the same time as there are shards, each with
/// numbers of its own: what the slowest did.
fn plain_sum<T: Copy + Default + Into<u64> + Send>(numbers: usize, threads: u32, duration: Duration) -> Turn {
    let add_up = move || {
        // Written one by one, so that they have memory of their own.
        let numbers: Vec<T> = (0..numbers).map(|_| black_box(T::default())).collect();
        let (mut turn, started) = (Turn::default(), Instant::now());
        while turn.elapsed < duration {
            let sum: u64 = black_box(&numbers).iter().map(|number| (*number).into()).sum();
            black_box(sum);
            let elapsed = started.elapsed();
            turn.latencies.push(elapsed - turn.elapsed);
            turn.elapsed = elapsed;
        }
        turn
    };
    let turns: Vec<Turn> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(add_up)).collect();
        workers.into_iter().map(|worker| worker.join().expect("a sum does not panic")).collect()
    });
    turns.into_iter().min_by(|a, b| a.per_second().total_cmp(&b.per_second())).unwrap_or_default()
}
