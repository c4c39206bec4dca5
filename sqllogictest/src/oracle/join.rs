//! Joins of a generated table with itself, evaluated by looking at every pair of rows.

use std::collections::BTreeSet;

use super::{
    evaluate::{Outcome, Table},
    statement::{Predicate, Writer},
    value::{Datum, State},
};

/// Which rows and pairs of rows are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum JoinKind {
    Inner,
    Left,
    Right,
    Full,
    /// `WHERE EXISTS`
    Exists,
    /// `WHERE NOT EXISTS`
    NotExists,
    /// `WHERE … IN`, of the first column of `on`
    In,
    /// `WHERE … NOT IN`
    NotIn,
}

impl JoinKind {
    /// All of them.
    pub const ALL: [JoinKind; 8] = [
        JoinKind::Inner,
        JoinKind::Left,
        JoinKind::Right,
        JoinKind::Full,
        JoinKind::Exists,
        JoinKind::NotExists,
        JoinKind::In,
        JoinKind::NotIn,
    ];
}

/// A join of the table with itself.
#[derive(Clone, Debug)]
pub struct Join {
    /// Its kind.
    pub kind: JoinKind,
    /// Columns that are equal in partners; not empty.
    pub on: Vec<usize>,
    /// A column that is less on the left side.
    pub less: Option<usize>,
    /// Which rows are on the left side.
    pub left: Vec<Predicate>,
    /// Which rows are on the right side.
    pub right: Vec<Predicate>,
}

impl Join {
    /// Its text.
    pub fn sql(&self, writer: &mut Writer<'_>) -> String {
        let schema = writer.schema();
        let name = |column: &usize| schema.columns[*column].name.clone();
        let mut on: Vec<String> = self.on.iter().map(|c| format!("l.{0} = r.{0}", name(c))).collect();
        on.extend(self.less.iter().map(|c| format!("l.{0} < r.{0}", name(c))));
        let on = on.join(" AND ");
        let first = name(&self.on[0]);
        let table = &schema.name;
        let left = format!("(SELECT * FROM {table}{}) AS l", writer.filter(&self.left));
        let right = format!("(SELECT * FROM {table}{}) AS r", writer.filter(&self.right));
        let join = |kind: &str| format!("SELECT l.*, r.* FROM {left} {kind} JOIN {right} ON {on}");
        match self.kind {
            JoinKind::Inner => join("INNER"),
            JoinKind::Left => join("LEFT"),
            JoinKind::Right => join("RIGHT"),
            JoinKind::Full => join("FULL"),
            JoinKind::Exists => {
                format!("SELECT l.* FROM {left} WHERE EXISTS (SELECT 1 FROM {right} WHERE {on})")
            }
            JoinKind::NotExists => {
                format!("SELECT l.* FROM {left} WHERE NOT EXISTS (SELECT 1 FROM {right} WHERE {on})")
            }
            JoinKind::In => {
                format!("SELECT l.* FROM {left} WHERE l.{first} IN (SELECT r.{first} FROM {right})")
            }
            JoinKind::NotIn => {
                format!("SELECT l.* FROM {left} WHERE l.{first} NOT IN (SELECT r.{first} FROM {right})")
            }
        }
    }

    /// What it must give.
    pub fn evaluate(&self, table: &Table, errors: &mut BTreeSet<State>) -> Outcome {
        let side = |filter: &[Predicate], errors: &mut BTreeSet<State>| -> Vec<Vec<Datum>> {
            table.matching(filter, errors).into_iter().map(|row| table.rows[row].clone()).collect()
        };
        let left = side(&self.left, errors);
        let right = side(&self.right, errors);
        let partners = |l: &Vec<Datum>, r: &Vec<Datum>| {
            self.on.iter().all(|c| l[*c].compare(&r[*c]).is_some_and(|o| o.is_eq()))
                && self.less.is_none_or(|c| l[c].compare(&r[c]).is_some_and(|o| o.is_lt()))
        };
        let nothing = vec![Datum::Null; table.schema.columns.len()];
        let both = |l: &[Datum], r: &[Datum]| l.iter().chain(r).cloned().collect::<Vec<Datum>>();
        let mut rows = Vec::new();
        for l in &left {
            let found: Vec<&Vec<Datum>> = right.iter().filter(|r| partners(l, r)).collect();
            let first = self.on[0];
            let member = || right.iter().any(|r| l[first].compare(&r[first]).is_some_and(|o| o.is_eq()));
            let open =
                || !right.is_empty() && (l[first].is_null() || right.iter().any(|r| r[first].is_null()));
            match self.kind {
                JoinKind::Exists => rows.extend((!found.is_empty()).then(|| l.clone())),
                JoinKind::NotExists => rows.extend(found.is_empty().then(|| l.clone())),
                JoinKind::In => rows.extend(member().then(|| l.clone())),
                JoinKind::NotIn => rows.extend((!member() && !open()).then(|| l.clone())),
                JoinKind::Left | JoinKind::Full if found.is_empty() => rows.push(both(l, &nothing)),
                _ => rows.extend(found.into_iter().map(|r| both(l, r))),
            }
        }
        if matches!(self.kind, JoinKind::Right | JoinKind::Full) {
            let lonely = right.iter().filter(|r| !left.iter().any(|l| partners(l, r)));
            rows.extend(lonely.map(|r| both(&nothing, r)));
        }
        Outcome::Rows { rows, ordered: false }
    }
}
