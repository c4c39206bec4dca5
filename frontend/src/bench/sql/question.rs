//! The statements that every system is asked, with the right answers, and which client asks which of them.
//!
//! The answers come from [`Rows`], which shares nothing with Carousel or the baselines.

use std::{
    pin::Pin,
    time::{Duration, Instant},
};

use clap::ValueEnum;
use tokio::time::{Sleep, sleep_until};

use crate::{
    bench::{
        draw::{self, DATE_OUT, FARE, SELECT_LIST},
        measured::{Turn, patience},
        rows::{Conditions, Rows},
    },
    ticket::{COLUMNS, TABLE},
};

/// Of so many statements of the mixed load, one is an aggregate.
const ONE_AGGREGATE_IN: usize = 20;

/// What the clients ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Mix {
    /// Selective SELECTs
    Selective,
    /// The same, and one statement in twenty is count(*) and sum over a tenth of the table
    Mixed,
}

/// A statement with its parameters and the right answer.
#[derive(Clone, Debug)]
pub struct Question {
    /// With parameters `$1`, `$2`, …
    pub sql: String,
    /// The parameters as text.
    pub parameters: Vec<String>,
    /// The same question as DataFusion reads it: every constant has the type of its column, so that no column needs a
    /// cast.
    pub datafusion_sql: String,
    /// The rows of the answer, see [`line()`], sorted.
    pub answer: Vec<String>,
}

/// A row of an answer: its fields as text.
pub fn line<F: AsRef<str>>(fields: impl IntoIterator<Item = F>) -> String {
    let mut line = String::new();
    for field in fields {
        line.push_str(field.as_ref());
        line.push('|');
    }
    line
}

/// All questions of a run.
pub struct Questions {
    all: Vec<Question>,
    /// Questions before this one are selective SELECTs, the others aggregates.
    selects: usize,
}

impl Questions {
    /// Draws `count` selective SELECTs, and aggregates if the mix has any.
    pub fn draw(rows: &Rows, mix: Mix, count: usize, seed: u64) -> Questions {
        let mut all: Vec<Question> = draw::selects(rows, draw::Mix::All, count, seed, draw::MOST_ROWS)
            .into_iter()
            .map(|select| {
                let answer = select
                    .rows
                    .iter()
                    .map(|row| line(SELECT_LIST.iter().map(|column| rows.text(*column, *row as usize))));
                let list: Vec<&str> = SELECT_LIST.iter().map(|column| COLUMNS[*column].0).collect();
                question(rows, &list.join(", "), &select.conditions, answer.collect())
            })
            .collect();
        if mix == Mix::Mixed {
            let days = Days::new(rows);
            all.extend(draw::tenths(rows, count.div_ceil(ONE_AGGREGATE_IN), seed + 1).iter().map(|tenth| {
                let (_, first, last) = tenth.between[0];
                question(rows, "count(*), sum(fare)", tenth, vec![days.answer(first, last)])
            }));
        }
        Questions { all, selects: count }
    }

    /// All of them.
    pub fn all(&self) -> &[Question] {
        &self.all
    }

    /// The places of some for a check: so many SELECTs, and a tenth as many aggregates if there are any.
    pub fn sample(&self, count: usize) -> Vec<usize> {
        (0..self.selects).take(count).chain((self.selects..self.all.len()).take(count / 10)).collect()
    }

    /// What each of `clients` clients asks; aggregates only if the mix has any.
    pub fn deal(&self, clients: usize, mix: Mix) -> Vec<Hand> {
        // So many that a single client is not lucky, and so few that thousands can prepare theirs.
        let each = (1024 / clients).clamp(4, 64).min(self.selects);
        let aggregates = self.all.len() - self.selects;
        (0..clients)
            .map(|client| Hand {
                selects: (0..each).map(|index| (client * each + index) % self.selects).collect(),
                aggregate: (mix == Mix::Mixed).then(|| self.selects + client % aggregates),
                client,
            })
            .collect()
    }
}

/// The questions of one client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hand {
    selects: Vec<usize>,
    aggregate: Option<usize>,
    client: usize,
}

impl Hand {
    /// Places in [`Questions::all`]; these are to be prepared.
    pub fn questions(&self) -> impl Iterator<Item = usize> {
        self.selects.iter().chain(&self.aggregate).copied()
    }

    /// The steps after which the client asks the same again.
    pub fn cycle(&self) -> std::ops::Range<usize> {
        let turns = if self.aggregate.is_some() { ONE_AGGREGATE_IN } else { 1 };
        0..turns * self.selects.len()
    }

    /// What the client asks as its `step`-th statement: a place in [`Hand::questions`].
    pub fn pick(&self, step: usize) -> usize {
        // Clients do not ask their aggregates all at the same time.
        let turn = (step + self.client).is_multiple_of(ONE_AGGREGATE_IN);
        if turn && self.aggregate.is_some() { self.selects.len() } else { step % self.selects.len() }
    }

    /// What the client asks in a turn.
    pub fn ask(&self, started: Instant, duration: Duration) -> Asking<'_> {
        let deadline = started + duration;
        let over = Box::pin(sleep_until((deadline + patience(duration)).into()));
        Asking { hand: self, deadline, over, step: 0, begun: Some(started), turn: Turn::default() }
    }
}

/// A client that asks one statement after the other until a deadline.
pub struct Asking<'h> {
    hand: &'h Hand,
    deadline: Instant,
    over: Pin<Box<Sleep>>,
    step: usize,
    begun: Option<Instant>,
    /// What it has done so far.
    pub turn: Turn,
}

impl Asking<'_> {
    /// What to ask now, see [`Hand::pick`], unless it is too late; the statement before has ended. The first one was due
    /// when the turn began: a client that does not come to ask waits as well.
    pub fn next(&mut self) -> Option<usize> {
        let now = Instant::now();
        let waited = self.begun.take();
        if self.step > 0 {
            self.turn.latencies.extend(waited.map(|begun| now - begun));
        }
        if now >= self.deadline {
            self.turn.cancelled.extend(waited.filter(|_| self.step == 0).map(|begun| now - begun));
            return None;
        }
        self.begun = waited.filter(|_| self.step == 0).or(Some(now));
        self.step += 1;
        Some(self.hand.pick(self.step - 1))
    }

    /// Waits for an answer; `None` when the turn is over before, and nobody waits for it any more.
    pub async fn wait<T>(&mut self, answer: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            answer = answer => Some(answer),
            () = &mut self.over => {
                self.turn.cancelled.extend(self.begun.take().map(|begun| begun.elapsed()));
                None
            }
        }
    }
}

fn question(rows: &Rows, list: &str, conditions: &Conditions, mut answer: Vec<String>) -> Question {
    let (mut parameters, mut prepared, mut datafusion) = (Vec::new(), Vec::new(), Vec::new());
    let mut parameter = |column: usize, id: u32| {
        let text = rows.text(column, rows.row_with(column, id));
        let (name, ty, _) = &COLUMNS[column];
        let literal = format!("arrow_cast('{}', '{}')", text.replace('\'', "''"), ty.arrow());
        parameters.push(text);
        (*name, format!("${}", parameters.len()), literal)
    };
    for (column, id) in &conditions.equal {
        let (name, placeholder, literal) = parameter(*column, *id);
        prepared.push(format!("{name} = {placeholder}"));
        datafusion.push(format!("{name} = {literal}"));
    }
    for (column, low, high) in &conditions.between {
        let (name, low_placeholder, low_literal) = parameter(*column, *low);
        let (_, high_placeholder, high_literal) = parameter(*column, *high);
        prepared.push(format!("{name} BETWEEN {low_placeholder} AND {high_placeholder}"));
        datafusion.push(format!("{name} BETWEEN {low_literal} AND {high_literal}"));
    }
    answer.sort_unstable();
    let sql = |conjuncts: &[String]| format!("SELECT {list} FROM {TABLE} WHERE {}", conjuncts.join(" AND "));
    Question { sql: sql(&prepared), datafusion_sql: sql(&datafusion), parameters, answer }
}

/// Rows and fares up to each departure date.
struct Days {
    /// Rows, and sum of cents, of the days before each.
    before: Vec<(u64, i64)>,
}

impl Days {
    fn new(rows: &Rows) -> Days {
        let mut days = vec![(0, 0); rows.distinct(DATE_OUT)];
        for row in 0..rows.len() {
            if let Some(day) = rows.id(DATE_OUT, row) {
                let day = &mut days[day as usize];
                day.0 += 1;
                day.1 += cents(&rows.text(FARE, row));
            }
        }
        let mut before = vec![(0, 0)];
        let (mut count, mut sum) = (0, 0);
        for day in days {
            count += day.0;
            sum += day.1;
            before.push((count, sum));
        }
        Days { before }
    }

    fn answer(&self, first: u32, last: u32) -> String {
        let (before, through) = (self.before[first as usize], self.before[last as usize + 1]);
        let cents = through.1 - before.1;
        line([(through.0 - before.0).to_string(), format!("{}.{:02}", cents / 100, cents % 100)])
    }
}

/// The cents of an amount like `12.34`.
fn cents(amount: &str) -> i64 {
    amount.replace('.', "").parse().expect("an amount with two decimal places")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_client_has_questions_of_its_own() {
        let rows = Rows::new(1, 6_000);
        let questions = Questions::draw(&rows, Mix::Mixed, 400, 2);
        assert_eq!(questions.all().len(), 420);
        let hands = questions.deal(5, Mix::Mixed);
        let mut dealt: Vec<usize> = hands.iter().flat_map(Hand::questions).collect();
        dealt.sort_unstable();
        dealt.dedup();
        assert_eq!(dealt.len(), 5 * 65);
        for hand in &hands {
            let all: Vec<usize> = hand.questions().collect();
            let asked: Vec<usize> = (0..400).map(|step| all[hand.pick(step)]).collect();
            assert_eq!(asked.iter().filter(|question| **question >= 400).count(), 20);
        }
        let selective = Questions::draw(&rows, Mix::Selective, 400, 2);
        assert_eq!(selective.deal(4096, Mix::Selective).len(), 4096);
        let hand = &questions.deal(1, Mix::Selective)[0];
        assert_eq!((hand.questions().count(), hand.pick(64), hand.pick(65)), (64, 0, 1));
    }

    #[test]
    fn answers_are_right() {
        let rows = Rows::new(1, 6_000);
        let questions = Questions::draw(&rows, Mix::Mixed, 40, 2);
        let select = &questions.all()[0];
        assert!(select.sql.contains("$2") && !select.answer.is_empty());
        assert_eq!(select.sql.matches('$').count(), select.parameters.len());
        let aggregate = &questions.all()[40];
        let (mut count, mut sum) = (0, 0);
        for row in 0..rows.len() {
            // Dates in this form are ordered as text is.
            let day = rows.text(DATE_OUT, row);
            if aggregate.parameters[0] <= day && day <= aggregate.parameters[1] {
                count += 1;
                sum += cents(&rows.text(FARE, row));
            }
        }
        assert_eq!(aggregate.answer, [line([count.to_string(), format!("{}.{:02}", sum / 100, sum % 100)])]);
    }
}
