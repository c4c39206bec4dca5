//! Selective SELECTs over the Ticket table, beside DataFusion.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use arrow::array::RecordBatch;
use clap::Args;
use futures::future::try_join_all;
use tokio_postgres::{Client, Config, SimpleQueryMessage};

use super::{
    baselines::DataFusion,
    report::{Latencies, Report, ReportArgs, milliseconds, ratio},
    target::TargetArgs,
    workload::{Key, Question, questions},
};
use crate::{
    cli::{
        Failure,
        progress::{Progress, Unit, thousands},
    },
    load::{TicketArgs, connect, create_ticket, load_ticket, reason},
    ticket::{MAX_ROWS, TABLE, block_of, blocks, record_batch},
};

/// Options of `carousel bench select`.
#[derive(Args, Debug)]
pub struct SelectArgs {
    /// Rows of the table
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..=MAX_ROWS))]
    rows: u64,

    /// How many clients ask at the same time; one measurement for each number
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_values_t = [1, 64], value_parser = clap::value_parser!(u32).range(1..=10_000))]
    clients: Vec<u32>,

    /// Seconds that each system is asked for in each round
    #[arg(long, value_name = "S", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: u64,

    /// Rounds, in which the systems take turns
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,

    /// Different questions
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    questions: u32,

    /// Seed of rows and questions
    #[arg(long, value_name = "S", default_value_t = 0)]
    seed: u64,

    #[command(flatten)]
    target: TargetArgs,

    #[command(flatten)]
    report: ReportArgs,
}

/// What a system did for so many clients.
#[derive(Default)]
struct Measured {
    latencies: Latencies,
    /// Without planning, where that is known.
    running: Latencies,
    seconds: f64,
}

impl Measured {
    fn rate(&self) -> f64 {
        if self.seconds > 0.0 { self.latencies.count() as f64 / self.seconds } else { 0.0 }
    }
}

impl SelectArgs {
    pub(super) async fn run(self) -> Result<(), Failure> {
        let target = self.target.open().await?;
        let client = connect(&target.config).await?;
        create_ticket(&client, true).await?;
        let ticket = TicketArgs { rows: self.rows, seed: self.seed };
        load_ticket(&client, &ticket, Progress::new(format!("loading {TABLE}"), Unit::Rows, Some(self.rows)))
            .await?;
        let batches: Vec<RecordBatch> = (0..blocks(self.rows))
            .map(|number| record_batch(&block_of(self.seed, number, self.rows)))
            .collect();
        eprintln!("drawing {} questions", self.questions);
        let questions = Arc::new(questions(&batches, self.questions as usize, self.seed));
        let partitions = crate::cli::cores() as usize;
        let datafusion = Arc::new(DataFusion::new(batches, partitions)?);
        self.check(&client, &datafusion, &questions).await?;
        let mut report = Report::new(
            "Selective SELECTs over ticket: 2 to 5 equalities on random columns",
            &[
                "system",
                "clients",
                "p50",
                "p90",
                "p99",
                "queries/s",
                "queries",
                "p50 relative to Carousel",
                "Carousel's queries/s relative to it",
            ],
        );
        report.fact("rows", thousands(self.rows));
        report.fact(
            "questions",
            format!("{} different ones, 1 to {} rows each", self.questions, super::workload::MOST_ROWS),
        );
        report.fact("rounds", format!("{} of {} s for each system, in turn", self.rounds, self.seconds));
        report.fact("Carousel", format!("{}, over the wire, simple protocol", target.description));
        report.fact("DataFusion", format!("55, in this process, MemTable with {partitions} partitions"));
        for clients in &self.clients {
            self.measure(*clients, &target.config, &datafusion, &questions, &mut report).await?;
        }
        report.remark("Every question was first asked once of both systems, and the answers agreed with a row-by-row evaluator.");
        report.remark("\"DataFusion, plans made beforehand\" leaves out parsing and planning; Carousel's times always have them.");
        report.publish(&self.report)?;
        drop(client);
        target.close().await
    }

    async fn check(
        &self,
        client: &Client,
        datafusion: &DataFusion,
        questions: &[Question],
    ) -> Result<(), Failure> {
        for question in questions {
            let carousel = ask(client, &question.sql).await?;
            if carousel != question.answer {
                return Err(Failure::job(format!(
                    "Carousel answers {carousel:?} instead of {:?} to {}",
                    question.answer, question.sql
                )));
            }
            let baseline = datafusion.ask(&question.datafusion_sql).await?;
            if baseline != question.answer {
                return Err(Failure::job(format!(
                    "DataFusion answers {baseline:?} instead of {:?} to {}",
                    question.answer, question.datafusion_sql
                )));
            }
        }
        Ok(())
    }

    async fn measure(
        &self,
        clients: u32,
        config: &Config,
        datafusion: &Arc<DataFusion>,
        questions: &Arc<Vec<Question>>,
        report: &mut Report,
    ) -> Result<(), Failure> {
        let mut connections = Vec::with_capacity(clients as usize);
        for _ in 0..clients {
            connections.push(Arc::new(connect(config).await?));
        }
        let (mut carousel, mut baseline) = (Measured::default(), Measured::default());
        for round in 1..=self.rounds {
            eprintln!("{clients} clients, round {round} of {}", self.rounds);
            let connections = &connections;
            self.turn(clients, questions, &mut carousel, |client, question| {
                let connection = connections[client].clone();
                async move {
                    let started = Instant::now();
                    let answer = count(&connection, &question.sql).await?;
                    Ok((started.elapsed(), None, answer))
                }
            })
            .await?;
            self.turn(clients, questions, &mut baseline, |_, question| {
                let datafusion = datafusion.clone();
                async move {
                    let (planned, ran, answer) = datafusion.time(&question.datafusion_sql).await?;
                    Ok((planned + ran, Some(ran), answer))
                }
            })
            .await?;
        }
        let own = (carousel.latencies.percentile(50).as_secs_f64(), carousel.rate());
        let mut row = |name: &str, latencies: &mut Latencies, rate: Option<f64>| {
            report.row(vec![
                name.to_owned(),
                clients.to_string(),
                milliseconds(latencies.percentile(50)),
                milliseconds(latencies.percentile(90)),
                milliseconds(latencies.percentile(99)),
                rate.map_or("-".to_owned(), |rate| format!("{rate:.1}")),
                latencies.count().to_string(),
                ratio(latencies.percentile(50).as_secs_f64(), own.0),
                rate.map_or("-".to_owned(), |rate| ratio(own.1, rate)),
            ]);
        };
        let (carousel_rate, baseline_rate) = (carousel.rate(), baseline.rate());
        row("Carousel", &mut carousel.latencies, Some(carousel_rate));
        row("DataFusion", &mut baseline.latencies, Some(baseline_rate));
        row("DataFusion, plans made beforehand", &mut baseline.running, None);
        Ok(())
    }

    /// Lets clients ask one question after the other until the time is over; checks the number of rows of each answer.
    async fn turn<F>(
        &self,
        clients: u32,
        questions: &Arc<Vec<Question>>,
        measured: &mut Measured,
        ask: impl Fn(usize, Question) -> F,
    ) -> Result<(), Failure>
    where
        F: Future<Output = Result<(Duration, Option<Duration>, usize), Failure>> + Send + 'static,
    {
        let started = Instant::now();
        let deadline = started + Duration::from_secs(self.seconds);
        let next = AtomicUsize::new(0);
        let all = (0..clients as usize).map(|client| {
            let (next, ask) = (&next, &ask);
            async move {
                let mut samples = Vec::new();
                while Instant::now() < deadline {
                    let question = &questions[next.fetch_add(1, Ordering::Relaxed) % questions.len()];
                    // In a task of its own, so that all cores take part.
                    let (total, running, rows) = tokio::spawn(ask(client, question.clone()))
                        .await
                        .map_err(|error| Failure::job(format!("a client failed: {error}")))??;
                    if rows != question.answer.len() {
                        return Err(Failure::job(format!(
                            "{rows} rows instead of {} for {}",
                            question.answer.len(),
                            question.sql
                        )));
                    }
                    samples.push((total, running));
                }
                Ok(samples)
            }
        });
        for samples in try_join_all(all).await? {
            measured.latencies.extend(samples.iter().map(|sample| sample.0));
            measured.running.extend(samples.iter().filter_map(|sample| sample.1));
        }
        measured.seconds += started.elapsed().as_secs_f64();
        Ok(())
    }
}

fn failed(sql: &str) -> impl Fn(tokio_postgres::Error) -> Failure {
    move |error| Failure::job(format!("Carousel: {}: {sql}", reason(&error)))
}

async fn count(client: &Client, sql: &str) -> Result<usize, Failure> {
    let messages = client.simple_query(sql).await.map_err(failed(sql))?;
    Ok(messages.iter().filter(|message| matches!(message, SimpleQueryMessage::Row(_))).count())
}

async fn ask(client: &Client, sql: &str) -> Result<BTreeSet<Key>, Failure> {
    let messages = client.simple_query(sql).await.map_err(failed(sql))?;
    messages
        .iter()
        .filter_map(|message| match message {
            SimpleQueryMessage::Row(row) => Some(row),
            _ => None,
        })
        .map(|row| {
            let field = |index: usize| row.get(index).unwrap_or_default();
            let number = |index: usize| {
                field(index)
                    .parse::<i16>()
                    .map_err(|error| Failure::job(format!("{}: {error}", field(index))))
            };
            Ok((field(0).to_owned(), number(1)?, number(2)?))
        })
        .collect()
}
