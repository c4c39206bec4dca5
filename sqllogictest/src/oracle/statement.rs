//! Generated statements and their SQL text.

use super::{
    join::Join,
    value::{Datum, Type},
};

/// A column.
#[derive(Clone, Debug)]
pub struct Column {
    /// Its name.
    pub name: String,
    /// Its type.
    pub ty: Type,
    /// `NOT NULL`, or part of the primary key.
    pub not_null: bool,
    /// `DEFAULT`, already of the column's type.
    pub default: Datum,
}

/// A table.
#[derive(Clone, Debug)]
pub struct Schema {
    /// Its name.
    pub name: String,
    /// Its columns.
    pub columns: Vec<Column>,
    /// Columns of the primary key; none for a table without.
    pub key: Vec<usize>,
    /// What follows the column list, such as a partitioning clause.
    pub suffix: String,
}

impl Schema {
    /// The `CREATE TABLE` statement.
    pub fn sql(&self) -> String {
        let mut parts: Vec<String> = Vec::new();
        for column in &self.columns {
            let mut part = format!("{} {}", column.name, column.ty.declaration());
            if column.not_null {
                part += " NOT NULL";
            }
            if !column.default.is_null() {
                part += &format!(" DEFAULT {}", column.default.literal());
            }
            parts.push(part);
        }
        if !self.key.is_empty() {
            parts.push(format!("PRIMARY KEY ({})", self.names(&self.key)));
        }
        format!("CREATE TABLE {} ({}){}", self.name, parts.join(", "), self.suffix)
    }

    /// Names of some columns, with commas.
    pub fn names(&self, columns: &[usize]) -> String {
        columns.iter().map(|c| self.columns[*c].name.as_str()).collect::<Vec<_>>().join(", ")
    }
}

/// Arithmetic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Arithmetic {
    Add,
    Subtract,
    Multiply,
    Divide,
    Remainder,
}

/// Comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

/// An expression over a row.
#[derive(Clone, Debug)]
pub enum Expr {
    /// A constant of the type.
    Literal(Datum, Type),
    /// A column of the row; of the existing row in `ON CONFLICT DO UPDATE`.
    Column(usize),
    /// A column of the row that was to be inserted.
    Excluded(usize),
    /// Arithmetic on numbers, or a date and a number of days.
    Arithmetic(Arithmetic, Box<Expr>, Box<Expr>),
    /// `||`
    Concat(Box<Expr>, Box<Expr>),
    /// `upper`
    Upper(Box<Expr>),
    /// `length`
    Length(Box<Expr>),
    /// `coalesce` of two
    Coalesce(Box<Expr>, Box<Expr>),
    /// `CASE WHEN … THEN … ELSE … END`
    Case(Box<Predicate>, Box<Expr>, Box<Expr>),
    /// A predicate as a value.
    Truth(Box<Predicate>),
}

/// A three-valued predicate.
#[derive(Clone, Debug)]
pub enum Predicate {
    /// A comparison.
    Compare(Comparison, Expr, Expr),
    /// `[NOT] BETWEEN`
    Between(Expr, Expr, Expr, bool),
    /// `[NOT] IN`
    In(Expr, Vec<Expr>, bool),
    /// `[NOT] LIKE | ILIKE` with a pattern; the flags are "not" and "case-insensitive".
    Like(Expr, String, bool, bool),
    /// `IS [NOT] NULL`
    IsNull(Expr, bool),
    /// `IS [NOT] DISTINCT FROM`
    IsDistinct(Expr, Expr, bool),
    /// A boolean column.
    Column(usize),
    /// `NOT`
    Not(Box<Predicate>),
    /// `AND`
    And(Vec<Predicate>),
    /// `OR`
    Or(Vec<Predicate>),
}

/// An aggregate.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub enum Aggregate {
    CountStar,
    Count(Expr),
    CountDistinct(Expr),
    Sum(Expr),
    Min(Expr),
    Max(Expr),
    BoolAnd(Expr),
    BoolOr(Expr),
}

/// What a `SELECT` computes.
#[derive(Clone, Debug)]
pub enum Projection {
    /// Expressions of each row.
    Rows {
        /// The select list.
        exprs: Vec<Expr>,
        /// `DISTINCT`
        distinct: bool,
        /// `ORDER BY` all positions of the select list, `true` for descending.
        order: Option<Vec<bool>>,
        /// `LIMIT` and `OFFSET`, of an ordered answer.
        limit: Option<(usize, usize)>,
    },
    /// Aggregates by group; without group columns there is one group.
    Groups {
        /// `GROUP BY` columns, which the select list begins with.
        by: Vec<usize>,
        /// Aggregates.
        aggregates: Vec<Aggregate>,
        /// `HAVING count(*) >= n`
        having: Option<i64>,
    },
}

/// What to do about a row whose key exists.
#[derive(Clone, Debug)]
pub enum OnConflict {
    /// `DO NOTHING`
    Nothing,
    /// `DO UPDATE SET … WHERE …`
    Update(Vec<(usize, Expr)>, Option<Predicate>),
}

/// A statement.
#[derive(Clone, Debug)]
pub enum Statement {
    /// `SELECT`
    Select(Projection, Vec<Predicate>),
    /// `SELECT` of the table joined with itself
    Join(Join),
    /// `INSERT`: columns, rows (`None` is `DEFAULT`), conflict clause, `RETURNING`.
    Insert(Vec<usize>, Vec<Vec<Option<Datum>>>, Option<OnConflict>, Option<Vec<Expr>>),
    /// `UPDATE`: assignments (`None` is `DEFAULT`), predicate, `RETURNING`.
    Update(Vec<(usize, Option<Expr>)>, Vec<Predicate>, Option<Vec<Expr>>),
    /// `DELETE`: predicate, `RETURNING`.
    Delete(Vec<Predicate>, Option<Vec<Expr>>),
    /// `TRUNCATE`
    Truncate,
}

impl Statement {
    /// Whether it only reads.
    pub fn is_read(&self) -> bool {
        matches!(self, Statement::Select(..) | Statement::Join(_))
    }
}

/// Writes statements as SQL, with literals, or with parameters where the parameter's type is clear from a column.
pub struct Writer<'a> {
    schema: &'a Schema,
    /// Texts of the parameters so far; `None` writes literals only.
    parameters: Option<Vec<Option<String>>>,
}

impl<'a> Writer<'a> {
    /// A writer of statements on `schema`, with parameters when `parameterised`.
    pub fn new(schema: &'a Schema, parameterised: bool) -> Writer<'a> {
        Writer { schema, parameters: parameterised.then(Vec::new) }
    }

    /// The table.
    pub fn schema(&self) -> &'a Schema {
        self.schema
    }

    /// The statement's text and its parameters.
    pub fn write(mut self, statement: &Statement) -> (String, Vec<Option<String>>) {
        let sql = self.statement(statement);
        (sql, self.parameters.unwrap_or_default())
    }

    fn constant(&mut self, value: &Datum) -> String {
        match &mut self.parameters {
            Some(parameters) => {
                parameters.push(value.text());
                format!("${}", parameters.len())
            }
            None => value.literal(),
        }
    }

    /// An operand of a comparison with a column: the only literals that become parameters besides inserted values.
    fn operand(&mut self, expr: &Expr) -> String {
        match expr {
            Expr::Literal(value, _) => self.constant(value),
            other => self.expr(other),
        }
    }

    fn statement(&mut self, statement: &Statement) -> String {
        let table = &self.schema.name;
        match statement {
            Statement::Truncate => format!("TRUNCATE {table}"),
            Statement::Join(join) => join.sql(self),
            Statement::Select(projection, filter) => {
                let (list, tail) = self.projection(projection);
                format!("SELECT {list} FROM {table}{}{tail}", self.filter(filter))
            }
            Statement::Delete(filter, returning) => {
                format!("DELETE FROM {table}{}{}", self.filter(filter), self.returning(returning))
            }
            Statement::Update(assignments, filter, returning) => {
                let sets: Vec<String> = assignments
                    .iter()
                    .map(|(column, value)| {
                        let value = value.as_ref().map_or("DEFAULT".to_owned(), |value| self.expr(value));
                        format!("{} = {value}", self.schema.columns[*column].name)
                    })
                    .collect();
                let filter = self.filter(filter);
                format!("UPDATE {table} SET {}{filter}{}", sets.join(", "), self.returning(returning))
            }
            Statement::Insert(columns, rows, conflict, returning) => {
                let rows: Vec<String> = rows
                    .iter()
                    .map(|row| {
                        let values: Vec<String> = row
                            .iter()
                            .map(|value| value.as_ref().map_or("DEFAULT".to_owned(), |v| self.constant(v)))
                            .collect();
                        format!("({})", values.join(", "))
                    })
                    .collect();
                let conflict = conflict.as_ref().map_or(String::new(), |conflict| self.conflict(conflict));
                let names = self.schema.names(columns);
                let returning = self.returning(returning);
                format!("INSERT INTO {table} ({names}) VALUES {}{conflict}{returning}", rows.join(", "))
            }
        }
    }

    fn conflict(&mut self, conflict: &OnConflict) -> String {
        let target = self.schema.names(&self.schema.key);
        match conflict {
            OnConflict::Nothing => format!(" ON CONFLICT ({target}) DO NOTHING"),
            OnConflict::Update(assignments, filter) => {
                let sets: Vec<String> = assignments
                    .iter()
                    .map(|(column, value)| {
                        format!("{} = {}", self.schema.columns[*column].name, self.expr(value))
                    })
                    .collect();
                let filter = self.filter(filter.as_slice());
                format!(" ON CONFLICT ({target}) DO UPDATE SET {}{filter}", sets.join(", "))
            }
        }
    }

    fn returning(&mut self, returning: &Option<Vec<Expr>>) -> String {
        returning.as_ref().map_or(String::new(), |exprs| {
            let exprs: Vec<String> = exprs.iter().map(|e| self.expr(e)).collect();
            format!(" RETURNING {}", exprs.join(", "))
        })
    }

    /// WHERE, if there is a conjunct.
    pub fn filter(&mut self, conjuncts: &[Predicate]) -> String {
        let conjuncts: Vec<String> = conjuncts.iter().map(|c| self.predicate(c)).collect();
        match conjuncts.is_empty() {
            true => String::new(),
            false => format!(" WHERE {}", conjuncts.join(" AND ")),
        }
    }

    fn projection(&mut self, projection: &Projection) -> (String, String) {
        match projection {
            Projection::Rows { exprs, distinct, order, limit } => {
                let list: Vec<String> = exprs.iter().map(|e| self.expr(e)).collect();
                let mut tail = String::new();
                if let Some(descending) = order {
                    let positions: Vec<String> = descending
                        .iter()
                        .enumerate()
                        .map(|(i, descending)| format!("{}{}", i + 1, if *descending { " DESC" } else { "" }))
                        .collect();
                    tail += &format!(" ORDER BY {}", positions.join(", "));
                    if let Some((limit, offset)) = limit {
                        tail += &format!(" LIMIT {limit} OFFSET {offset}");
                    }
                }
                (format!("{}{}", if *distinct { "DISTINCT " } else { "" }, list.join(", ")), tail)
            }
            Projection::Groups { by, aggregates, having } => {
                let mut list: Vec<String> = by.iter().map(|c| self.schema.columns[*c].name.clone()).collect();
                list.extend(aggregates.iter().map(|a| self.aggregate(a)));
                let mut tail = String::new();
                if !by.is_empty() {
                    tail += &format!(" GROUP BY {}", self.schema.names(by));
                }
                if let Some(least) = having {
                    tail += &format!(" HAVING count(*) >= {least}");
                }
                (list.join(", "), tail)
            }
        }
    }

    fn aggregate(&mut self, aggregate: &Aggregate) -> String {
        match aggregate {
            Aggregate::CountStar => "count(*)".to_owned(),
            Aggregate::Count(e) => format!("count({})", self.expr(e)),
            Aggregate::CountDistinct(e) => format!("count(DISTINCT {})", self.expr(e)),
            Aggregate::Sum(e) => format!("sum({})", self.expr(e)),
            Aggregate::Min(e) => format!("min({})", self.expr(e)),
            Aggregate::Max(e) => format!("max({})", self.expr(e)),
            Aggregate::BoolAnd(e) => format!("bool_and({})", self.expr(e)),
            Aggregate::BoolOr(e) => format!("bool_or({})", self.expr(e)),
        }
    }

    fn expr(&mut self, expr: &Expr) -> String {
        match expr {
            Expr::Literal(value @ Datum::Date(_), _) => format!("DATE {}", value.literal()),
            Expr::Literal(Datum::Null, ty) => format!("NULL::{}", ty.declaration()),
            Expr::Literal(value, _) => value.literal(),
            Expr::Column(column) => format!("{}.{}", self.schema.name, self.schema.columns[*column].name),
            Expr::Excluded(column) => format!("EXCLUDED.{}", self.schema.columns[*column].name),
            Expr::Arithmetic(op, left, right) => {
                let op = match op {
                    Arithmetic::Add => "+",
                    Arithmetic::Subtract => "-",
                    Arithmetic::Multiply => "*",
                    Arithmetic::Divide => "/",
                    Arithmetic::Remainder => "%",
                };
                format!("({} {op} {})", self.expr(left), self.expr(right))
            }
            Expr::Concat(left, right) => format!("({} || {})", self.expr(left), self.expr(right)),
            Expr::Upper(inner) => format!("upper({})", self.expr(inner)),
            Expr::Length(inner) => format!("length({})", self.expr(inner)),
            Expr::Coalesce(left, right) => format!("coalesce({}, {})", self.expr(left), self.expr(right)),
            Expr::Case(when, then, otherwise) => {
                let when = self.predicate(when);
                format!("CASE WHEN {when} THEN {} ELSE {} END", self.expr(then), self.expr(otherwise))
            }
            Expr::Truth(predicate) => format!("({})", self.predicate(predicate)),
        }
    }

    fn predicate(&mut self, predicate: &Predicate) -> String {
        let not = |negated: &bool| if *negated { "NOT " } else { "" };
        match predicate {
            Predicate::Compare(op, left, right) => {
                let op = match op {
                    Comparison::Equal => "=",
                    Comparison::NotEqual => "<>",
                    Comparison::Less => "<",
                    Comparison::LessOrEqual => "<=",
                    Comparison::Greater => ">",
                    Comparison::GreaterOrEqual => ">=",
                };
                format!("{} {op} {}", self.expr(left), self.operand(right))
            }
            Predicate::Between(value, low, high, negated) => {
                let value = self.expr(value);
                format!("{value} {}BETWEEN {} AND {}", not(negated), self.operand(low), self.operand(high))
            }
            Predicate::In(value, list, negated) => {
                let value = self.expr(value);
                let list: Vec<String> = list.iter().map(|e| self.operand(e)).collect();
                format!("{value} {}IN ({})", not(negated), list.join(", "))
            }
            Predicate::Like(value, pattern, negated, insensitive) => {
                let value = self.expr(value);
                let like = if *insensitive { "ILIKE" } else { "LIKE" };
                let pattern = self.constant(&Datum::Text(pattern.clone()));
                format!("{value} {}{like} {pattern}", not(negated))
            }
            Predicate::IsNull(value, negated) => format!("{} IS {}NULL", self.expr(value), not(negated)),
            Predicate::IsDistinct(left, right, negated) => {
                let left = self.expr(left);
                format!("{left} IS {}DISTINCT FROM {}", not(negated), self.operand(right))
            }
            Predicate::Column(column) => {
                format!("{}.{}", self.schema.name, self.schema.columns[*column].name)
            }
            Predicate::Not(inner) => format!("NOT ({})", self.predicate(inner)),
            Predicate::And(parts) => self.joined(parts, " AND "),
            Predicate::Or(parts) => self.joined(parts, " OR "),
        }
    }

    fn joined(&mut self, parts: &[Predicate], with: &str) -> String {
        let parts: Vec<String> = parts.iter().map(|p| self.predicate(p)).collect();
        format!("({})", parts.join(with))
    }
}
