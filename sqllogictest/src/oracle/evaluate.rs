//! The naive evaluator: a table is a list of rows, and a statement looks at one after the other.

use std::{cmp::Ordering, collections::BTreeSet};

use super::{
    statement::{
        Aggregate, Arithmetic, Comparison, Expr, OnConflict, Predicate, Projection, Schema, Statement,
    },
    value::{DIVISION_BY_ZERO, DUPLICATE_KEY, Datum, Decimal, NOT_NULL, OUT_OF_RANGE, State, TWICE, Type},
};

type Row = Vec<Datum>;

/// What a statement must give.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// Rows; in this order when `ordered`.
    Rows {
        /// The rows.
        rows: Vec<Row>,
        /// Whether their order is part of the answer.
        ordered: bool,
    },
    /// The number of rows in the command tag.
    Count(usize),
    /// A failure with one of these SQLSTATEs (which of several rows' errors is met first is nobody's business), and
    /// no effect.
    Fails(BTreeSet<State>),
}

/// A table and its rows.
#[derive(Clone, Debug)]
pub struct Table {
    /// Its definition.
    pub schema: Schema,
    /// Its rows, in no particular order.
    pub rows: Vec<Row>,
}

/// What an expression may refer to.
struct Scope<'a> {
    schema: &'a Schema,
    row: &'a Row,
    excluded: Option<&'a Row>,
}

impl Table {
    /// Runs a statement.
    pub fn execute(&mut self, statement: &Statement) -> Outcome {
        let mut errors = BTreeSet::new();
        let mut rows = self.rows.clone();
        let outcome = match statement {
            Statement::Truncate => {
                rows.clear();
                Outcome::Count(0)
            }
            Statement::Join(join) => join.evaluate(self, &mut errors),
            Statement::Select(projection, filter) => {
                let matching = self.matching(filter, &mut errors);
                let matching: Vec<&Row> = matching.into_iter().map(|index| &self.rows[index]).collect();
                self.project(projection, &matching, &mut errors)
            }
            Statement::Delete(filter, returning) => {
                let gone = self.matching(filter, &mut errors);
                let old: Vec<Row> = gone.iter().map(|index| self.rows[*index].clone()).collect();
                for index in gone.iter().rev() {
                    rows.remove(*index);
                }
                self.returned(&old, returning, &mut errors)
            }
            Statement::Update(assignments, filter, returning) => {
                let mut changed = Vec::new();
                for index in self.matching(filter, &mut errors) {
                    let scope = Scope { schema: &self.schema, row: &self.rows[index], excluded: None };
                    let mut new = self.rows[index].clone();
                    for (column, value) in assignments {
                        let value = match value {
                            Some(expr) => scope.expr(expr),
                            None => Ok(self.schema.columns[*column].default.clone()),
                        };
                        self.assign(&mut new, *column, value, &mut errors);
                    }
                    self.check_not_null(&new, &mut errors);
                    rows[index] = new.clone();
                    changed.push(new);
                }
                self.returned(&changed, returning, &mut errors)
            }
            Statement::Insert(columns, values, conflict, returning) => {
                let mut changed = Vec::new();
                let mut touched = BTreeSet::new();
                for value in values {
                    let mut new: Row = self.schema.columns.iter().map(|c| c.default.clone()).collect();
                    for (column, value) in columns.iter().zip(value) {
                        if let Some(value) = value {
                            self.assign(&mut new, *column, Ok(value.clone()), &mut errors);
                        }
                    }
                    self.check_not_null(&new, &mut errors);
                    let existing = rows.iter().position(|row| self.same_key(row, &new));
                    match (existing, conflict) {
                        (None, _) => {
                            touched.insert(rows.len());
                            rows.push(new.clone());
                            changed.push(new);
                        }
                        (Some(_), None) => {
                            errors.insert(DUPLICATE_KEY);
                        }
                        (Some(_), Some(OnConflict::Nothing)) => {}
                        (Some(index), Some(OnConflict::Update(assignments, filter))) => {
                            if touched.contains(&index) {
                                errors.insert(TWICE);
                                continue;
                            }
                            let old = rows[index].clone();
                            let scope = Scope { schema: &self.schema, row: &old, excluded: Some(&new) };
                            match filter.as_ref().map_or(Ok(Some(true)), |f| scope.predicate(f)) {
                                Ok(Some(true)) => {}
                                Ok(_) => continue,
                                Err(state) => {
                                    errors.insert(state);
                                    continue;
                                }
                            }
                            let mut updated = old.clone();
                            for (column, value) in assignments {
                                self.assign(&mut updated, *column, scope.expr(value), &mut errors);
                            }
                            self.check_not_null(&updated, &mut errors);
                            touched.insert(index);
                            rows[index] = updated.clone();
                            changed.push(updated);
                        }
                    }
                }
                self.returned(&changed, returning, &mut errors)
            }
        };
        if !errors.is_empty() {
            return Outcome::Fails(errors);
        }
        self.rows = rows;
        outcome
    }

    fn same_key(&self, a: &Row, b: &Row) -> bool {
        let key = &self.schema.key;
        !key.is_empty() && key.iter().all(|c| a[*c].compare(&b[*c]) == Some(Ordering::Equal))
    }

    fn assign(
        &self,
        row: &mut Row,
        column: usize,
        value: Result<Datum, State>,
        errors: &mut BTreeSet<State>,
    ) {
        match value.and_then(|value| value.assigned(self.schema.columns[column].ty)) {
            Ok(value) => row[column] = value,
            Err(state) => {
                errors.insert(state);
            }
        }
    }

    fn check_not_null(&self, row: &Row, errors: &mut BTreeSet<State>) {
        if self.schema.columns.iter().zip(row).any(|(column, value)| column.not_null && value.is_null()) {
            errors.insert(NOT_NULL);
        }
    }

    /// Indexes of the rows for which every conjunct is true.
    pub fn matching(&self, filter: &[Predicate], errors: &mut BTreeSet<State>) -> Vec<usize> {
        let mut matching = Vec::new();
        'rows: for (index, row) in self.rows.iter().enumerate() {
            let scope = Scope { schema: &self.schema, row, excluded: None };
            for conjunct in filter {
                match scope.predicate(conjunct) {
                    Ok(Some(true)) => {}
                    Ok(_) => continue 'rows,
                    Err(state) => {
                        errors.insert(state);
                        continue 'rows;
                    }
                }
            }
            matching.push(index);
        }
        matching
    }

    fn returned(&self, rows: &[Row], returning: &Option<Vec<Expr>>, errors: &mut BTreeSet<State>) -> Outcome {
        match returning {
            None => Outcome::Count(rows.len()),
            Some(exprs) => Outcome::Rows {
                rows: rows.iter().filter_map(|row| self.computed(row, exprs, errors)).collect(),
                ordered: false,
            },
        }
    }

    fn computed(&self, row: &Row, exprs: &[Expr], errors: &mut BTreeSet<State>) -> Option<Row> {
        let scope = Scope { schema: &self.schema, row, excluded: None };
        match exprs.iter().map(|e| scope.expr(e)).collect() {
            Ok(row) => Some(row),
            Err(state) => {
                errors.insert(state);
                None
            }
        }
    }

    fn project(&self, projection: &Projection, matching: &[&Row], errors: &mut BTreeSet<State>) -> Outcome {
        match projection {
            Projection::Rows { exprs, distinct, order, limit } => {
                let mut rows: Vec<Row> =
                    matching.iter().filter_map(|row| self.computed(row, exprs, errors)).collect();
                if *distinct {
                    rows.sort_by(sort_rows);
                    rows.dedup_by(|a, b| sort_rows(a, b).is_eq());
                }
                let Some(descending) = order else { return Outcome::Rows { rows, ordered: false } };
                rows.sort_by(|a, b| {
                    a.iter().zip(b).zip(descending).fold(Ordering::Equal, |so_far, ((a, b), descending)| {
                        let next = a.sort_order(b);
                        so_far.then(if *descending { next.reverse() } else { next })
                    })
                });
                if let Some((limit, offset)) = limit {
                    rows = rows.into_iter().skip(*offset).take(*limit).collect();
                }
                Outcome::Rows { rows, ordered: true }
            }
            Projection::Groups { by, aggregates, having } => {
                let mut groups: Vec<(Row, Vec<&Row>)> = Vec::new();
                if by.is_empty() {
                    groups.push((Vec::new(), matching.to_vec()));
                } else {
                    for row in matching {
                        let key: Row = by.iter().map(|c| row[*c].clone()).collect();
                        match groups.iter_mut().find(|(k, _)| sort_rows(k, &key).is_eq()) {
                            Some((_, members)) => members.push(row),
                            None => groups.push((key, vec![row])),
                        }
                    }
                }
                let mut rows = Vec::new();
                for (mut key, members) in groups {
                    for aggregate in aggregates {
                        match self.aggregate(aggregate, &members) {
                            Ok(value) => key.push(value),
                            Err(state) => {
                                errors.insert(state);
                            }
                        }
                    }
                    if having.is_none_or(|least| members.len() as i64 >= least) {
                        rows.push(key);
                    }
                }
                Outcome::Rows { rows, ordered: false }
            }
        }
    }

    fn aggregate(&self, aggregate: &Aggregate, members: &[&Row]) -> Result<Datum, State> {
        let (Aggregate::Count(expr)
        | Aggregate::CountDistinct(expr)
        | Aggregate::Sum(expr)
        | Aggregate::Min(expr)
        | Aggregate::Max(expr)
        | Aggregate::BoolAnd(expr)
        | Aggregate::BoolOr(expr)) = aggregate
        else {
            return Ok(Datum::Int(members.len() as i64));
        };
        let mut values = Vec::new();
        for row in members {
            let value = Scope { schema: &self.schema, row, excluded: None }.expr(expr)?;
            if !value.is_null() {
                values.push(value);
            }
        }
        let wide = expr.ty(&self.schema) == Type::Int8;
        Ok(match aggregate {
            Aggregate::Count(_) => Datum::Int(values.len() as i64),
            Aggregate::CountDistinct(_) => {
                values.sort_by(Datum::sort_order);
                values.dedup_by(|a, b| a.sort_order(b).is_eq());
                Datum::Int(values.len() as i64)
            }
            Aggregate::Min(_) => values.into_iter().min_by(Datum::sort_order).unwrap_or(Datum::Null),
            Aggregate::Max(_) => values.into_iter().max_by(Datum::sort_order).unwrap_or(Datum::Null),
            Aggregate::Sum(_) => match values.first() {
                None => Datum::Null,
                Some(Datum::Int(_)) if !wide => Datum::Int(values.iter().map(int).sum()),
                Some(_) => {
                    let zero = Decimal { unscaled: 0, scale: 0 };
                    let sum = values.iter().filter_map(Datum::decimal).fold(zero, |sum, value| {
                        let (a, b, scale) = sum.aligned(value);
                        Decimal { unscaled: a + b, scale }
                    });
                    Datum::Numeric(sum)
                }
            },
            Aggregate::BoolAnd(_) | Aggregate::BoolOr(_) if values.is_empty() => Datum::Null,
            Aggregate::BoolAnd(_) => Datum::Bool(values.iter().all(|v| matches!(v, Datum::Bool(true)))),
            Aggregate::BoolOr(_) => Datum::Bool(values.iter().any(|v| matches!(v, Datum::Bool(true)))),
            Aggregate::CountStar => unreachable!("returned above"),
        })
    }
}

fn int(value: &Datum) -> i64 {
    match value {
        Datum::Int(value) => *value,
        other => panic!("generated {other:?} where a whole number belongs"),
    }
}

#[allow(clippy::ptr_arg)] // as sort_by wants it
fn sort_rows(a: &Row, b: &Row) -> Ordering {
    a.iter().zip(b).fold(Ordering::Equal, |so_far, (a, b)| so_far.then_with(|| a.sort_order(b)))
}

impl Expr {
    /// The type of the result.
    pub fn ty(&self, schema: &Schema) -> Type {
        match self {
            Expr::Literal(_, ty) => *ty,
            Expr::Column(column) | Expr::Excluded(column) => schema.columns[*column].ty,
            Expr::Arithmetic(op, left, right) => match (left.ty(schema), right.ty(schema)) {
                (Type::Date, Type::Date) if *op == Arithmetic::Subtract => Type::Int4,
                (Type::Date, _) | (_, Type::Date) => Type::Date,
                (Type::Numeric, _) | (_, Type::Numeric) => Type::Numeric,
                (Type::Int8, _) | (_, Type::Int8) => Type::Int8,
                (Type::Int4, _) | (_, Type::Int4) => Type::Int4,
                _ => Type::Int2,
            },
            Expr::Concat(..) | Expr::Upper(_) => Type::Text,
            Expr::Length(_) => Type::Int4,
            Expr::Coalesce(left, right) | Expr::Case(_, left, right) => {
                match (left.ty(schema), right.ty(schema)) {
                    (Type::Varchar, Type::Text) => Type::Text,
                    (Type::Int2, wider)
                    | (Type::Int4, wider @ (Type::Int8 | Type::Numeric))
                    | (Type::Int8, wider @ Type::Numeric) => wider,
                    (left, _) => left,
                }
            }
            Expr::Truth(_) => Type::Bool,
        }
    }
}

impl Scope<'_> {
    fn expr(&self, expr: &Expr) -> Result<Datum, State> {
        Ok(match expr {
            Expr::Literal(value, _) => value.clone(),
            Expr::Column(column) => self.row[*column].clone(),
            Expr::Excluded(column) => {
                self.excluded.expect("generated EXCLUDED outside ON CONFLICT")[*column].clone()
            }
            Expr::Arithmetic(op, left, right) => {
                let (left, right) = (self.expr(left)?, self.expr(right)?);
                arithmetic(*op, left, right, expr.ty(self.schema))?
            }
            Expr::Concat(left, right) => match (self.expr(left)?, self.expr(right)?) {
                (Datum::Null, _) | (_, Datum::Null) => Datum::Null,
                (left, right) => {
                    Datum::Text(left.text().unwrap_or_default() + &right.text().unwrap_or_default())
                }
            },
            Expr::Upper(inner) => match self.expr(inner)? {
                Datum::Text(text) => Datum::Text(text.to_ascii_uppercase()),
                _ => Datum::Null,
            },
            Expr::Length(inner) => match self.expr(inner)? {
                Datum::Text(text) => Datum::Int(text.chars().count() as i64),
                _ => Datum::Null,
            },
            Expr::Coalesce(left, right) => match self.expr(left)? {
                Datum::Null => self.expr(right)?,
                value => value,
            },
            Expr::Case(when, then, otherwise) => match self.predicate(when)? {
                Some(true) => self.expr(then)?,
                _ => self.expr(otherwise)?,
            },
            Expr::Truth(predicate) => self.predicate(predicate)?.map_or(Datum::Null, Datum::Bool),
        })
    }

    fn compare(&self, op: Comparison, left: &Datum, right: &Datum) -> Option<bool> {
        left.compare(right).map(|ordering| match op {
            Comparison::Equal => ordering.is_eq(),
            Comparison::NotEqual => ordering.is_ne(),
            Comparison::Less => ordering.is_lt(),
            Comparison::LessOrEqual => ordering.is_le(),
            Comparison::Greater => ordering.is_gt(),
            Comparison::GreaterOrEqual => ordering.is_ge(),
        })
    }

    fn predicate(&self, predicate: &Predicate) -> Result<Option<bool>, State> {
        Ok(match predicate {
            Predicate::Compare(op, left, right) => self.compare(*op, &self.expr(left)?, &self.expr(right)?),
            Predicate::Between(value, low, high, negated) => {
                let (value, low, high) = (self.expr(value)?, self.expr(low)?, self.expr(high)?);
                let above = self.compare(Comparison::GreaterOrEqual, &value, &low);
                let below = self.compare(Comparison::LessOrEqual, &value, &high);
                negate(and(above, below), *negated)
            }
            Predicate::In(value, list, negated) => {
                let value = self.expr(value)?;
                let mut found = Some(false);
                for member in list {
                    found = or(found, self.compare(Comparison::Equal, &value, &self.expr(member)?));
                }
                negate(found, *negated)
            }
            Predicate::Like(value, pattern, negated, insensitive) => match self.expr(value)? {
                Datum::Text(text) if *insensitive => {
                    let matches = like(
                        &text.to_ascii_lowercase().chars().collect::<Vec<_>>(),
                        &pattern.to_ascii_lowercase().chars().collect::<Vec<_>>(),
                    );
                    Some(matches != *negated)
                }
                Datum::Text(text) => {
                    let text: Vec<char> = text.chars().collect();
                    Some(like(&text, &pattern.chars().collect::<Vec<_>>()) != *negated)
                }
                _ => None,
            },
            Predicate::IsNull(value, negated) => Some(self.expr(value)?.is_null() != *negated),
            Predicate::IsDistinct(left, right, negated) => {
                Some(self.expr(left)?.sort_order(&self.expr(right)?).is_ne() != *negated)
            }
            Predicate::Column(column) => match self.row[*column] {
                Datum::Bool(value) => Some(value),
                _ => None,
            },
            Predicate::Not(inner) => negate(self.predicate(inner)?, true),
            Predicate::And(parts) => {
                let mut result = Some(true);
                for part in parts {
                    result = and(result, self.predicate(part)?);
                }
                result
            }
            Predicate::Or(parts) => {
                let mut result = Some(false);
                for part in parts {
                    result = or(result, self.predicate(part)?);
                }
                result
            }
        })
    }
}

fn and(a: Option<bool>, b: Option<bool>) -> Option<bool> {
    match (a, b) {
        (Some(false), _) | (_, Some(false)) => Some(false),
        (Some(true), Some(true)) => Some(true),
        _ => None,
    }
}

fn or(a: Option<bool>, b: Option<bool>) -> Option<bool> {
    negate(and(negate(a, true), negate(b, true)), true)
}

fn negate(value: Option<bool>, negated: bool) -> Option<bool> {
    value.map(|value| value != negated)
}

/// Whether `text` matches a pattern of `%` and `_`; generated patterns hold no escapes.
fn like(text: &[char], pattern: &[char]) -> bool {
    match (pattern.split_first(), text.split_first()) {
        (None, None) => true,
        (Some(('%', rest)), _) => (0..=text.len()).any(|skipped| like(&text[skipped..], rest)),
        (Some(('_', rest)), Some((_, text))) => like(text, rest),
        (Some((wanted, rest)), Some((found, text))) => wanted == found && like(text, rest),
        _ => false,
    }
}

fn arithmetic(op: Arithmetic, left: Datum, right: Datum, ty: Type) -> Result<Datum, State> {
    if left.is_null() || right.is_null() {
        return Ok(Datum::Null);
    }
    match (&left, &right, ty) {
        (Datum::Date(a), Datum::Date(b), _) => return Ok(Datum::Int(a - b)),
        (Datum::Date(a), Datum::Int(b), _) => {
            return Ok(Datum::Date(if op == Arithmetic::Add { a + b } else { a - b }));
        }
        _ => {}
    }
    let numbers = (left.decimal().zip(right.decimal())).expect("generated arithmetic on numbers only");
    if ty == Type::Numeric {
        let (a, b, scale) = numbers.0.aligned(numbers.1);
        return Ok(Datum::Numeric(match op {
            Arithmetic::Add => Decimal { unscaled: a + b, scale },
            Arithmetic::Subtract => Decimal { unscaled: a - b, scale },
            Arithmetic::Multiply => Decimal {
                unscaled: numbers.0.unscaled * numbers.1.unscaled,
                scale: numbers.0.scale + numbers.1.scale,
            },
            Arithmetic::Divide | Arithmetic::Remainder => panic!("generated a division of numerics"),
        }));
    }
    let (a, b) = (numbers.0.unscaled, numbers.1.unscaled);
    let result = match op {
        Arithmetic::Add => a + b,
        Arithmetic::Subtract => a - b,
        Arithmetic::Multiply => a * b,
        Arithmetic::Divide | Arithmetic::Remainder if b == 0 => return Err(DIVISION_BY_ZERO),
        Arithmetic::Divide => a / b,
        Arithmetic::Remainder => a % b,
    };
    let fits = match ty {
        Type::Int2 => i16::try_from(result).is_ok(),
        Type::Int4 => i32::try_from(result).is_ok(),
        _ => i64::try_from(result).is_ok(),
    };
    match i64::try_from(result) {
        Ok(result) if fits => Ok(Datum::Int(result)),
        _ => Err(OUT_OF_RANGE),
    }
}
