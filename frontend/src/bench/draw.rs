//! Unpredictable questions about the table `ticket`: conditions drawn from its rows.

use carousel_engine::Type;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::rows::{Conditions, Rows};
use crate::ticket::{COLUMNS, KEY};

/// Most rows that the answer of a selective SELECT has.
pub const MOST_ROWS: usize = 100;

/// What SELECTs ask for; the key comes first, so that answers can be told apart.
pub const SELECT_LIST: [usize; 8] = [0, 1, 2, 24, 25, 11, 12, 13];

/// The column that a tenth of the table is told by.
pub const DATE_OUT: usize = 13;

/// The column that is summed.
pub const FARE: usize = 20;

/// Sets of columns that questions are asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mix {
    /// Every column outside the key that all systems compare alike.
    All,
    /// Strings.
    Strings,
    /// Numbers, dates and times.
    Numbers,
    /// Columns of at most a thousand values.
    FewValues,
    /// Columns of more than a thousand values.
    ManyValues,
}

impl Mix {
    /// Every set.
    pub const EACH: [Mix; 5] = [Mix::All, Mix::Strings, Mix::Numbers, Mix::FewValues, Mix::ManyValues];

    /// What it is called.
    pub fn name(self) -> &'static str {
        match self {
            Mix::All => "all columns",
            Mix::Strings => "strings",
            Mix::Numbers => "numbers and dates",
            Mix::FewValues => "at most 1,000 values",
            Mix::ManyValues => "over 1,000 values",
        }
    }

    /// Whether the rows have columns enough of it for the most equalities that a SELECT may have.
    pub fn is_in(self, rows: &Rows) -> bool {
        self.columns(rows).len() >= MOST_EQUALITIES
    }

    fn columns(self, rows: &Rows) -> Vec<usize> {
        (0..COLUMNS.len()).filter(|column| self.has(*column, rows)).collect()
    }

    fn has(self, column: usize, rows: &Rows) -> bool {
        if !can_be_asked_for(column) {
            return false;
        }
        match self {
            Mix::All => true,
            Mix::Strings => COLUMNS[column].1.is_string(),
            Mix::Numbers => !COLUMNS[column].1.is_string() && COLUMNS[column].1 != Type::Bool,
            Mix::FewValues => rows.distinct(column) <= 1000,
            Mix::ManyValues => rows.distinct(column) > 1000,
        }
    }
}

/// Whether a column is outside the key, and its values can be written as constants that every system compares alike. (A
/// constant like 18.1 is not equal to a real.)
pub fn can_be_asked_for(column: usize) -> bool {
    let (name, ty, _) = &COLUMNS[column];
    !KEY.contains(name) && !matches!(ty, Type::Float4 | Type::Float8 | Type::Bytea | Type::Uuid)
}

const MOST_EQUALITIES: usize = 5;

/// A selective SELECT.
#[derive(Clone, Debug)]
pub struct Select {
    /// What it asks.
    pub conditions: Conditions,
    /// The rows that qualify.
    pub rows: Vec<u32>,
}

/// Selective SELECTs with 2 to 5 equalities over columns of the mix, three in five with a range over one more, every
/// constant from the rows; each finds from 1 to `most` rows.
pub fn selects(rows: &Rows, mix: Mix, count: usize, seed: u64, most: usize) -> Vec<Select> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let columns = mix.columns(rows);
    let mut selects = Vec::with_capacity(count);
    while selects.len() < count {
        let row = random.random_range(0..rows.len());
        let wanted = random.random_range(2..=MOST_EQUALITIES);
        let mut conditions = Conditions::default();
        while conditions.equal.len() < wanted {
            let column = columns[random.random_range(0..columns.len())];
            if let Some(id) = rows.id(column, row)
                && conditions.equal.iter().all(|(other, _)| *other != column)
            {
                conditions.equal.push((column, id));
            }
        }
        if random.random_range(0..10) < 6 {
            let column = columns[random.random_range(0..columns.len())];
            let other = random.random_range(0..rows.len());
            if let (Some(a), Some(b)) = (rows.id(column, row), rows.id(column, other))
                && conditions.equal.iter().all(|(other, _)| *other != column)
            {
                conditions.between.push((column, a.min(b), a.max(b)));
            }
        }
        // Not every draw is selective: nearly everybody has no pet.
        let Some(found) = rows.select(&conditions, most) else { continue };
        selects.push(Select { conditions, rows: found });
    }
    selects
}

/// Ranges of departure dates, each with about a tenth of the days.
pub fn tenths(rows: &Rows, count: usize, seed: u64) -> Vec<Conditions> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let days = rows.distinct(DATE_OUT) as u32;
    (0..count)
        .map(|_| {
            let first = random.random_range(0..days - days / 10);
            Conditions { equal: Vec::new(), between: vec![(DATE_OUT, first, first + days / 10)] }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_have_answers_and_are_selective() {
        let rows = Rows::new(1, 12_000);
        let first = selects(&rows, Mix::All, 200, 5, MOST_ROWS);
        for Select { conditions, rows: found } in &first {
            assert!((1..=MOST_ROWS).contains(&found.len()) && (2..=5).contains(&conditions.equal.len()));
            assert!(conditions.equal.iter().all(|(column, _)| can_be_asked_for(*column)));
        }
        let ranges = first.iter().filter(|select| !select.conditions.between.is_empty()).count();
        assert!((60..160).contains(&ranges), "{ranges} of 200 with a range");
        let again = selects(&rows, Mix::All, 200, 5, MOST_ROWS);
        assert!(first.iter().zip(&again).all(|(a, b)| a.rows == b.rows));
        let other = selects(&rows, Mix::All, 200, 6, MOST_ROWS);
        assert!(first.iter().zip(&other).any(|(a, b)| a.rows != b.rows));
    }
}
