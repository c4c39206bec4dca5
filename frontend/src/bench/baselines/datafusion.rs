//! DataFusion over the same rows in memory.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use arrow::{
    array::RecordBatch,
    util::display::{ArrayFormatter, FormatOptions},
};
use datafusion::{
    datasource::MemTable,
    execution::TaskContext,
    physical_plan::{ExecutionPlan, collect, execution_plan::reset_plan_states},
    prelude::{SessionConfig, SessionContext},
};
use tokio::task::JoinSet;

use crate::{
    bench::{
        measured::Turn,
        sql::{Hand, Question, Questions, line},
    },
    cli::Failure,
    ticket::{TABLE, arrow_schema},
};

/// A session with the Ticket table.
pub struct DataFusion {
    context: SessionContext,
    /// Plans by the place of their question: they are made beforehand, as statements are prepared elsewhere.
    plans: HashMap<usize, Prepared>,
}

#[derive(Clone)]
struct Prepared {
    plan: Arc<dyn ExecutionPlan>,
    task: Arc<TaskContext>,
    rows: usize,
}

fn failed(error: datafusion::error::DataFusionError) -> Failure {
    Failure::job(format!("DataFusion: {error}"))
}

impl DataFusion {
    /// The rows, spread evenly over `partitions` partitions, which are scanned in parallel.
    ///
    /// # Errors
    /// When DataFusion refuses them.
    pub fn new(batches: Vec<RecordBatch>, partitions: usize) -> Result<DataFusion, Failure> {
        let config = SessionConfig::new().with_target_partitions(partitions);
        let context = SessionContext::new_with_config(config);
        let mut spread = vec![Vec::new(); partitions];
        for (index, batch) in batches.into_iter().enumerate() {
            spread[index % partitions].push(batch);
        }
        let table = MemTable::try_new(arrow_schema(), spread).map_err(failed)?;
        context.register_table(TABLE, Arc::new(table)).map_err(failed)?;
        Ok(DataFusion { context, plans: HashMap::new() })
    }

    /// The answer to a question, see [`line()`], sorted.
    ///
    /// # Errors
    /// DataFusion's.
    pub async fn answer(&self, question: &Question) -> Result<Vec<String>, Failure> {
        let frame = self.context.sql(&question.datafusion_sql).await.map_err(failed)?;
        let mut answer = Vec::new();
        for batch in frame.collect().await.map_err(failed)? {
            let options = FormatOptions::new();
            let columns = batch
                .columns()
                .iter()
                .map(|column| ArrayFormatter::try_new(column, &options))
                .collect::<Result<Vec<_>, _>>()
                .map_err(|error| Failure::job(format!("DataFusion: {error}")))?;
            answer.extend(
                (0..batch.num_rows())
                    .map(|row| line(columns.iter().map(|column| column.value(row).to_string()))),
            );
        }
        answer.sort_unstable();
        Ok(answer)
    }

    /// Lets clients ask for a while, each in a task of its own.
    ///
    /// # Errors
    /// DataFusion's, or a wrong number of rows.
    pub async fn turn(
        &mut self,
        questions: &Questions,
        hands: &[Hand],
        duration: Duration,
    ) -> Result<Turn, Failure> {
        for place in hands.iter().flat_map(Hand::questions) {
            self.prepare(place, &questions.all()[place]).await?;
        }
        let started = Instant::now();
        let mut clients = JoinSet::new();
        for hand in hands {
            let hand = hand.clone();
            let prepared: Vec<Prepared> = hand.questions().map(|place| self.plans[&place].clone()).collect();
            clients.spawn(async move { ask(started, duration, &hand, &prepared).await });
        }
        let mut turn = Turn::default();
        while let Some(ended) = clients.join_next().await {
            turn.add(ended.map_err(|error| Failure::job(format!("a client failed: {error}")))??);
        }
        turn.elapsed = started.elapsed();
        Ok(turn)
    }

    async fn prepare(&mut self, place: usize, question: &Question) -> Result<(), Failure> {
        if self.plans.contains_key(&place) {
            return Ok(());
        }
        let frame = self.context.sql(&question.datafusion_sql).await.map_err(failed)?;
        let task = Arc::new(frame.task_ctx());
        let plan = frame.create_physical_plan().await.map_err(failed)?;
        self.plans.insert(place, Prepared { plan, task, rows: question.answer.len() });
        Ok(())
    }
}

async fn ask(
    started: Instant,
    duration: Duration,
    hand: &Hand,
    prepared: &[Prepared],
) -> Result<Turn, Failure> {
    let mut asking = hand.ask(started, duration);
    while let Some(place) = asking.next() {
        let Prepared { plan, task, rows } = &prepared[place];
        // Some operators keep what they saw in an earlier run.
        let plan = reset_plan_states(plan.clone()).map_err(failed)?;
        let Some(batches) = asking.wait(collect(plan, task.clone())).await else { break };
        let found: usize = batches.map_err(failed)?.iter().map(RecordBatch::num_rows).sum();
        if found != *rows {
            return Err(Failure::job(format!("DataFusion: {found} rows instead of {rows}")));
        }
    }
    Ok(asking.turn)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::{
        rows::Rows,
        sql::{Mix, Questions},
    };

    #[test]
    fn datafusion_gives_the_right_answers() {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let rows = Rows::new(2, 6_000);
            let questions = Questions::draw(&rows, Mix::Mixed, 60, 1);
            let mut baseline = DataFusion::new(rows.batches, 2).unwrap();
            for question in questions.all() {
                let answer = baseline.answer(question).await.unwrap();
                assert_eq!(answer, question.answer, "{}", question.datafusion_sql);
            }
            let turn =
                baseline.turn(&questions, &questions.deal(3, Mix::Mixed), Duration::ZERO).await.unwrap();
            assert!(turn.latencies.is_empty());
        });
    }
}
