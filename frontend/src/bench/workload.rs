//! Unpredictable questions: selective SELECTs with equalities on random columns, and what the right answers are.
//!
//! The answers come from an evaluator that shares nothing with Carousel or DataFusion: it looks at every row in turn.

use std::collections::BTreeSet;

use arrow::{
    array::{Array, ArrayRef, AsArray, RecordBatch},
    datatypes::{
        ArrowPrimitiveType, DataType, Date32Type, Decimal128Type, Int16Type, Int32Type, Int64Type,
        Time64MicrosecondType, TimestampMicrosecondType,
    },
    util::display::{ArrayFormatter, FormatOptions},
};
use carousel_engine::Type;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::ticket::{COLUMNS, KEY, TABLE};

/// Most rows that an answer has.
pub const MOST_ROWS: usize = 100;

/// What the questions ask for; the key comes first, so that answers can be told apart.
const SELECT_LIST: &str = "rloc, passenger, segment, surname, given_name, origin, destination, date_out";

/// A row's key.
pub type Key = (String, i16, i16);

/// A question with its answer.
#[derive(Clone, Debug)]
pub struct Question {
    /// As PostgreSQL and Carousel read it.
    pub sql: String,
    /// As DataFusion reads it: every constant has the type of its column, so that no column needs a cast.
    pub datafusion_sql: String,
    /// Keys of the rows that qualify.
    pub answer: BTreeSet<Key>,
}

/// A value that a column must have.
struct Equality {
    column: usize,
    /// The value, alone in an array of the column's type.
    value: ArrayRef,
}

/// Draws questions from rows: every question has a row that answers it, and at most [`MOST_ROWS`] of them.
///
/// # Panics
/// When there are no rows.
pub fn questions(batches: &[RecordBatch], count: usize, seed: u64) -> Vec<Question> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let candidates: Vec<usize> = (0..COLUMNS.len()).filter(|column| can_be_asked_for(*column)).collect();
    let mut questions = Vec::with_capacity(count);
    while questions.len() < count {
        let batch = &batches[random.random_range(0..batches.len())];
        let row = random.random_range(0..batch.num_rows());
        let wanted = random.random_range(2..=5);
        let mut equalities: Vec<Equality> = Vec::with_capacity(wanted);
        while equalities.len() < wanted {
            let column = candidates[random.random_range(0..candidates.len())];
            let array = batch.column(column);
            if array.is_valid(row) && equalities.iter().all(|other| other.column != column) {
                equalities.push(Equality { column, value: array.slice(row, 1) });
            }
        }
        let Some(answer) = answer(batches, &equalities) else {
            // Not selective: nearly everybody has no pet.
            continue;
        };
        let predicate = |literal: fn(&Equality) -> String| {
            equalities
                .iter()
                .map(|e| format!("{} = {}", COLUMNS[e.column].0, literal(e)))
                .collect::<Vec<_>>()
                .join(" AND ")
        };
        questions.push(Question {
            sql: format!("SELECT {SELECT_LIST} FROM {TABLE} WHERE {}", predicate(Equality::postgresql)),
            datafusion_sql: format!(
                "SELECT {SELECT_LIST} FROM {TABLE} WHERE {}",
                predicate(Equality::datafusion)
            ),
            answer,
        });
    }
    questions
}

/// Columns outside the key whose values can be written as constants that every system compares alike. (A constant
/// like 18.1 is not equal to a real.)
fn can_be_asked_for(column: usize) -> bool {
    let (name, ty, _) = &COLUMNS[column];
    !KEY.contains(name) && !matches!(ty, Type::Float4 | Type::Float8 | Type::Bytea | Type::Uuid)
}

impl Equality {
    fn text(&self) -> String {
        let options = FormatOptions::new()
            .with_timestamp_format(Some("%Y-%m-%d %H:%M:%S%.f"))
            .with_timestamp_tz_format(Some("%Y-%m-%d %H:%M:%S%.f%:z"));
        ArrayFormatter::try_new(&self.value, &options)
            .expect("columns that can be asked for can be printed")
            .value(0)
            .to_string()
    }

    fn postgresql(&self) -> String {
        let text = self.text();
        match &COLUMNS[self.column].1 {
            Type::Bool | Type::Int2 | Type::Int4 | Type::Int8 | Type::Numeric(_) => text,
            _ => format!("'{}'", text.replace('\'', "''")),
        }
    }

    fn datafusion(&self) -> String {
        let ty = &COLUMNS[self.column].1;
        match ty {
            Type::Bool => self.text(),
            _ if ty.is_string() => self.postgresql(),
            _ => format!("arrow_cast('{}', '{}')", self.text(), ty.arrow()),
        }
    }
}

/// The keys of the rows that qualify, or `None` when they are too many.
fn answer(batches: &[RecordBatch], equalities: &[Equality]) -> Option<BTreeSet<Key>> {
    let mut keys = BTreeSet::new();
    for batch in batches {
        let mut rows: Vec<usize> = (0..batch.num_rows()).collect();
        for equality in equalities {
            keep_equal(batch.column(equality.column), &equality.value, &mut rows);
        }
        if keys.len() + rows.len() > MOST_ROWS {
            return None;
        }
        keys.extend(rows.into_iter().map(|row| key(batch, row)));
    }
    Some(keys)
}

/// The key of a row of the table.
pub fn key(batch: &RecordBatch, row: usize) -> Key {
    (
        batch.column(0).as_string::<i32>().value(row).to_owned(),
        batch.column(1).as_primitive::<Int16Type>().value(row),
        batch.column(2).as_primitive::<Int16Type>().value(row),
    )
}

fn keep_equal(array: &ArrayRef, value: &ArrayRef, rows: &mut Vec<usize>) {
    fn primitive<T: ArrowPrimitiveType>(array: &ArrayRef, value: &ArrayRef, rows: &mut Vec<usize>) {
        let (array, value) = (array.as_primitive::<T>(), value.as_primitive::<T>().value(0));
        rows.retain(|row| array.is_valid(*row) && array.value(*row) == value);
    }
    match array.data_type() {
        DataType::Boolean => {
            let (array, value) = (array.as_boolean(), value.as_boolean().value(0));
            rows.retain(|row| array.is_valid(*row) && array.value(*row) == value);
        }
        DataType::Utf8 => {
            let (array, value) = (array.as_string::<i32>(), value.as_string::<i32>().value(0));
            rows.retain(|row| array.is_valid(*row) && array.value(*row) == value);
        }
        DataType::Int16 => primitive::<Int16Type>(array, value, rows),
        DataType::Int32 => primitive::<Int32Type>(array, value, rows),
        DataType::Int64 => primitive::<Int64Type>(array, value, rows),
        DataType::Decimal128(..) => primitive::<Decimal128Type>(array, value, rows),
        DataType::Date32 => primitive::<Date32Type>(array, value, rows),
        DataType::Time64(_) => primitive::<Time64MicrosecondType>(array, value, rows),
        DataType::Timestamp(..) => primitive::<TimestampMicrosecondType>(array, value, rows),
        other => unreachable!("no question asks for a {other}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ticket::{block, record_batch};

    #[test]
    fn questions_have_answers_and_are_selective() {
        let batches: Vec<RecordBatch> = (0..3).map(|number| record_batch(&block(1, number))).collect();
        let first = questions(&batches, 40, 5);
        for question in &first {
            assert!((1..=MOST_ROWS).contains(&question.answer.len()), "{}", question.sql);
            assert!((1..=4).contains(&question.sql.matches(" AND ").count()), "{}", question.sql);
            assert!(!question.sql.contains("rloc ="), "{}", question.sql);
        }
        let again = questions(&batches, 40, 5);
        assert!(first.iter().zip(&again).all(|(a, b)| a.sql == b.sql && a.answer == b.answer));
        assert_ne!(first[0].sql, questions(&batches, 1, 6)[0].sql);
    }

    #[test]
    fn datafusion_gives_the_same_answers() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let batches: Vec<RecordBatch> = (0..2).map(|number| record_batch(&block(2, number))).collect();
            let questions = questions(&batches, 60, 1);
            let baseline = super::super::baselines::DataFusion::new(batches, 2).unwrap();
            for question in &questions {
                let answer = baseline.ask(&question.datafusion_sql).await.unwrap();
                assert_eq!(answer, question.answer, "{}", question.datafusion_sql);
            }
        });
    }
}
