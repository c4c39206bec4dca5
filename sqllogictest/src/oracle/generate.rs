//! Draws tables and statements from a seed.
//!
//! Values come from small pools, so that predicates match, keys collide and arithmetic overflows often. An expression
//! that can fail stands in a predicate only alone: PostgreSQL does not say in which order conjuncts are evaluated.

use rand::{RngExt, SeedableRng, seq::IndexedRandom};
use rand_chacha::ChaCha8Rng;

use super::{
    join::{Join, JoinKind},
    statement::{
        Aggregate, Arithmetic, Column, Comparison, Expr, OnConflict, Predicate, Projection, Schema, Statement,
    },
    value::{Datum, Decimal, SCALE, Type},
};

const TYPES: &[Type] =
    &[Type::Int2, Type::Int4, Type::Int8, Type::Text, Type::Varchar, Type::Bool, Type::Numeric, Type::Date];

/// Types that a primary key may have.
const KEY_TYPES: &[Type] =
    &[Type::Int4, Type::Int4, Type::Int8, Type::Text, Type::Varchar, Type::Date, Type::Numeric, Type::Int2];

const TEXTS: &[&str] = &["", "a", "b", "ab", "abc", "ABC", "a b", "B", "b%c", "it's", "zebra", "  x"];
const PATTERNS: &[&str] = &["a%", "%b%", "_", "%", "", "ab", "%c", "a_c", "A%", "%'%", "z_%a"];
const COMPARISONS: &[Comparison] = &[
    Comparison::Equal,
    Comparison::Equal,
    Comparison::NotEqual,
    Comparison::Less,
    Comparison::LessOrEqual,
    Comparison::Greater,
    Comparison::GreaterOrEqual,
];

/// A source of tables and statements.
pub struct Generator {
    random: ChaCha8Rng,
}

impl Generator {
    /// The generator of this seed.
    pub fn new(seed: u64) -> Generator {
        Generator { random: ChaCha8Rng::seed_from_u64(seed) }
    }

    /// True in `percent` of 100 cases.
    pub fn chance(&mut self, percent: u32) -> bool {
        self.random.random_ratio(percent, 100)
    }

    fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        from.choose(&mut self.random).expect("nothing to choose from")
    }

    fn number(&mut self, low: i64, high: i64) -> i64 {
        self.random.random_range(low..=high)
    }

    /// A table; `partitioning` allows Carousel's clause.
    pub fn schema(&mut self, name: &str, partitioning: bool) -> Schema {
        let keys = *self.pick(&[0, 1, 1, 1, 2]);
        let others = self.number(2, 6) as usize;
        let mut columns = Vec::new();
        for index in 0..keys + others {
            let ty = *self.pick(if index < keys { KEY_TYPES } else { TYPES });
            let default = if index >= keys && self.chance(30) { self.value(ty) } else { Datum::Null };
            columns.push(Column {
                name: format!("c{index}"),
                ty,
                not_null: index < keys || self.chance(20),
                default,
            });
        }
        let suffix = match partitioning && keys > 0 && self.chance(50) {
            true => format!(" PARTITION BY HASH (c{})", self.number(0, keys as i64 - 1)),
            false => String::new(),
        };
        Schema { name: name.to_owned(), columns, key: (0..keys).collect(), suffix }
    }

    /// A value other than NULL that fits a column of the type.
    fn value(&mut self, ty: Type) -> Datum {
        let extreme = self.chance(6);
        match ty {
            Type::Int2 if extreme => Datum::Int(*self.pick(&[32767, -32768])),
            Type::Int4 if extreme => Datum::Int(*self.pick(&[2147483647, -2147483647])),
            Type::Int8 if extreme => Datum::Int(*self.pick(&[i64::MAX, -i64::MAX, 4_000_000_000])),
            Type::Int2 | Type::Int4 | Type::Int8 => Datum::Int(self.number(-3, 20)),
            Type::Text | Type::Varchar => Datum::Text((*self.pick(TEXTS)).to_owned()),
            Type::Bool => Datum::Bool(self.chance(50)),
            Type::Numeric if extreme => {
                Datum::Numeric(Decimal { unscaled: *self.pick(&[99_999_999, -99_999_999]), scale: SCALE })
            }
            Type::Numeric => {
                let unscaled = i128::from(self.number(-8, 20)) * 25;
                Datum::Numeric(Decimal { unscaled, scale: SCALE })
            }
            Type::Date => Datum::Date(*self.pick(&[0, 365]) + 18_250 + self.number(0, 25)),
        }
    }

    /// A constant of an expression of the type, sometimes NULL.
    fn literal(&mut self, ty: Type) -> Expr {
        let value = if self.chance(7) { Datum::Null } else { self.value(ty) };
        // A whole number without a cast is an integer, and a bigint when it is large.
        let ty = match (&value, ty) {
            (Datum::Int(value), _) => match i32::try_from(*value) {
                Ok(_) => Type::Int4,
                Err(_) => Type::Int8,
            },
            _ => ty,
        };
        Expr::Literal(value, ty)
    }

    fn columns_where(&self, schema: &Schema, wanted: impl Fn(Type) -> bool) -> Vec<usize> {
        (0..schema.columns.len()).filter(|c| wanted(schema.columns[*c].ty)).collect()
    }

    /// An expression whose value can be assigned to a column of the type. Only a `risky` one may fail.
    fn expr(&mut self, schema: &Schema, ty: Type, depth: u32, risky: bool) -> Expr {
        let number = ty.is_integer() || ty == Type::Numeric;
        let same = self.columns_where(schema, |t| match number {
            true => (t.is_integer() && (ty != Type::Numeric || risky)) || t == ty,
            false => t == ty || (ty.is_string() && t.is_string()),
        });
        if depth == 0 || same.is_empty() || self.chance(25) {
            return match same.is_empty() || self.chance(30) {
                true => self.literal(ty),
                false => Expr::Column(*self.pick(&same)),
            };
        }
        let column = Box::new(Expr::Column(*self.pick(&same)));
        match self.number(0, 5) {
            0 => Expr::Coalesce(column, Box::new(self.expr(schema, ty, depth - 1, risky))),
            1 => {
                let when = Box::new(self.predicate(schema, 1));
                Expr::Case(when, column, Box::new(self.expr(schema, ty, depth - 1, risky)))
            }
            _ if number && risky => {
                let right = Box::new(self.expr(schema, ty, depth - 1, true));
                let integers = column.ty(schema).is_integer() && right.ty(schema).is_integer();
                let op = *self.pick(match integers {
                    true => &[
                        Arithmetic::Add,
                        Arithmetic::Subtract,
                        Arithmetic::Multiply,
                        Arithmetic::Divide,
                        Arithmetic::Remainder,
                    ],
                    false => &[Arithmetic::Add, Arithmetic::Subtract, Arithmetic::Multiply],
                });
                Expr::Arithmetic(op, column, right)
            }
            _ if number => *column,
            _ if ty.is_string() && self.chance(50) => Expr::Upper(column),
            _ if ty.is_string() => Expr::Concat(column, Box::new(self.literal(Type::Text))),
            _ if ty == Type::Bool => Expr::Truth(Box::new(self.predicate(schema, 1))),
            _ if ty == Type::Date => {
                let op = *self.pick(&[Arithmetic::Add, Arithmetic::Subtract]);
                let days = Expr::Literal(Datum::Int(self.number(0, 40)), Type::Int4);
                Expr::Arithmetic(op, column, Box::new(days))
            }
            _ => *column,
        }
    }

    /// A predicate that cannot fail.
    fn predicate(&mut self, schema: &Schema, depth: u32) -> Predicate {
        if depth > 0 && self.chance(18) {
            return match self.number(0, 2) {
                0 => Predicate::Not(Box::new(self.predicate(schema, depth - 1))),
                1 => {
                    Predicate::And(vec![self.predicate(schema, depth - 1), self.predicate(schema, depth - 1)])
                }
                _ => {
                    Predicate::Or((0..self.number(2, 3)).map(|_| self.predicate(schema, depth - 1)).collect())
                }
            };
        }
        let index = self.number(0, schema.columns.len() as i64 - 1) as usize;
        let ty = schema.columns[index].ty;
        let left = match ty {
            _ if depth == 0 || !self.chance(10) => Expr::Column(index),
            Type::Text | Type::Varchar if self.chance(50) => Expr::Upper(Box::new(Expr::Column(index))),
            Type::Date => {
                let days = Expr::Literal(Datum::Int(self.number(-30, 30)), Type::Int4);
                Expr::Arithmetic(Arithmetic::Add, Box::new(Expr::Column(index)), Box::new(days))
            }
            Type::Bool => Expr::Column(index),
            ty => Expr::Coalesce(Box::new(Expr::Column(index)), Box::new(Expr::Literal(self.value(ty), ty))),
        };
        let negated = self.chance(30);
        match self.number(0, 11) {
            0 => Predicate::IsNull(left, negated),
            1 => Predicate::IsDistinct(left, self.literal(ty), negated),
            2 | 3 => Predicate::Between(left, self.literal(ty), self.literal(ty), negated),
            4 | 5 => {
                let list = (0..self.number(1, 5)).map(|_| self.literal(ty)).collect();
                Predicate::In(left, list, negated)
            }
            6 | 7 if ty.is_string() => {
                let pattern = (*self.pick(PATTERNS)).to_owned();
                Predicate::Like(left, pattern, negated, self.chance(30))
            }
            6 if ty == Type::Bool => Predicate::Column(index),
            8 => {
                let others = self.columns_where(schema, |t| {
                    t == ty || (t.is_string() && ty.is_string()) || (t.is_integer() && ty.is_integer())
                });
                Predicate::Compare(*self.pick(COMPARISONS), left, Expr::Column(*self.pick(&others)))
            }
            _ => Predicate::Compare(*self.pick(COMPARISONS), left, self.literal(ty)),
        }
    }

    /// A conjunction; when `risky`, now and then a single predicate that may fail.
    fn filter(&mut self, schema: &Schema, risky: bool) -> Vec<Predicate> {
        let numbers = self.columns_where(schema, Type::is_integer);
        if risky && !numbers.is_empty() && self.chance(7) {
            let left = self.expr(schema, Type::Int4, 2, true);
            let right = Expr::Literal(Datum::Int(self.number(0, 10)), Type::Int4);
            return vec![Predicate::Compare(*self.pick(COMPARISONS), left, right)];
        }
        if !schema.key.is_empty() && self.chance(15) {
            // A whole key: the statement goes to one partition.
            let equalities = schema.key.iter().map(|c| {
                let ty = schema.columns[*c].ty;
                Predicate::Compare(Comparison::Equal, Expr::Column(*c), Expr::Literal(self.value(ty), ty))
            });
            return equalities.collect();
        }
        (0..*self.pick(&[0, 1, 1, 2, 2, 3, 4])).map(|_| self.predicate(schema, 2)).collect()
    }

    fn exprs(&mut self, schema: &Schema) -> Vec<Expr> {
        if self.chance(40) {
            return (0..schema.columns.len()).map(Expr::Column).collect();
        }
        (0..self.number(1, 4))
            .map(|_| {
                let index = self.number(0, schema.columns.len() as i64 - 1) as usize;
                let risky = self.chance(30);
                match self.chance(60) {
                    true => Expr::Column(index),
                    false => self.expr(schema, schema.columns[index].ty, 2, risky),
                }
            })
            // The type of a constant alone is not what is tested here.
            .map(|expr| if matches!(expr, Expr::Literal(..)) { Expr::Column(0) } else { expr })
            .collect()
    }

    fn returning(&mut self, schema: &Schema) -> Option<Vec<Expr>> {
        self.chance(40).then(|| self.exprs(schema))
    }

    fn aggregate(&mut self, schema: &Schema) -> Aggregate {
        let index = self.number(0, schema.columns.len() as i64 - 1) as usize;
        let column = Expr::Column(index);
        let ty = schema.columns[index].ty;
        match (self.number(0, 5), ty) {
            (0, _) => Aggregate::CountStar,
            (1, _) => Aggregate::Count(column),
            (2, _) => Aggregate::CountDistinct(column),
            (3, Type::Bool) => Aggregate::BoolAnd(column),
            (_, Type::Bool) => Aggregate::BoolOr(column),
            (3, ty) if ty.is_integer() || ty == Type::Numeric => Aggregate::Sum(column),
            (4, ty) if ty.is_integer() => Aggregate::Sum(self.expr(schema, ty, 1, true)),
            (5, _) => Aggregate::Min(column),
            _ => Aggregate::Max(column),
        }
    }

    fn projection(&mut self, schema: &Schema) -> Projection {
        if self.chance(35) {
            let by: Vec<usize> =
                (0..schema.columns.len()).filter(|_| self.random.random_ratio(1, 4)).collect();
            let aggregates = (0..self.number(1, 3)).map(|_| self.aggregate(schema)).collect();
            let having = (!by.is_empty() && self.chance(30)).then(|| self.number(1, 3));
            return Projection::Groups { by, aggregates, having };
        }
        let order = self.chance(40);
        // Which rows of a limited answer are computed is nobody's business: nothing there may fail.
        let exprs = match order {
            true => (0..schema.columns.len()).map(Expr::Column).collect(),
            false => self.exprs(schema),
        };
        let limit =
            (order && self.chance(60)).then(|| (self.number(1, 10) as usize, self.number(0, 4) as usize));
        let order = order.then(|| exprs.iter().map(|_| self.chance(40)).collect());
        Projection::Rows { exprs, distinct: self.chance(20), order, limit }
    }

    fn insert(&mut self, schema: &Schema) -> Statement {
        let columns: Vec<usize> = (0..schema.columns.len())
            .filter(|c| schema.key.contains(c) && !self.chance(1) || self.chance(85))
            .collect();
        let columns = if columns.is_empty() { vec![0] } else { columns };
        let rows = (0..*self.pick(&[1, 1, 2, 3, 5, 8]))
            .map(|_| {
                let row = columns.iter().map(|c| match self.number(0, 99) {
                    0..5 => None,
                    5..12 if !schema.columns[*c].not_null || self.chance(8) => Some(Datum::Null),
                    _ => Some(self.value(schema.columns[*c].ty)),
                });
                row.collect()
            })
            .collect();
        let conflict = (!schema.key.is_empty() && self.chance(55)).then(|| {
            let settable = self.settable(schema);
            if settable.is_empty() || self.chance(40) {
                return OnConflict::Nothing;
            }
            let assignments = settable
                .into_iter()
                .map(|column| {
                    let ty = schema.columns[column].ty;
                    let value = match self.chance(50) {
                        true => Expr::Excluded(column),
                        false => match self.expr(schema, ty, 2, true) {
                            Expr::Arithmetic(op, left, _) if ty.is_integer() => {
                                Expr::Arithmetic(op, left, Box::new(Expr::Excluded(column)))
                            }
                            other => other,
                        },
                    };
                    let value = self.without_numeric_division(schema, value);
                    (column, value)
                })
                .collect();
            let filter = self.chance(25).then(|| self.predicate(schema, 1));
            OnConflict::Update(assignments, filter)
        });
        Statement::Insert(columns, rows, conflict, self.returning(schema))
    }

    /// Replacing an operand may have made a division one of numerics, whose scale the evaluator does not know.
    fn without_numeric_division(&mut self, schema: &Schema, expr: Expr) -> Expr {
        match expr {
            Expr::Arithmetic(Arithmetic::Divide | Arithmetic::Remainder, left, right)
                if left.ty(schema) == Type::Numeric || right.ty(schema) == Type::Numeric =>
            {
                Expr::Arithmetic(Arithmetic::Add, left, right)
            }
            other => other,
        }
    }

    /// One to three columns outside the key.
    fn settable(&mut self, schema: &Schema) -> Vec<usize> {
        let mut free: Vec<usize> = (0..schema.columns.len()).filter(|c| !schema.key.contains(c)).collect();
        let wanted = self.number(1, 3) as usize;
        while free.len() > wanted {
            let gone = self.number(0, free.len() as i64 - 1) as usize;
            free.remove(gone);
        }
        free
    }

    /// The table joined with itself.
    fn join(&mut self, schema: &Schema) -> Statement {
        let kind = *self.pick(&JoinKind::ALL);
        let column =
            |generator: &mut Generator| generator.number(0, schema.columns.len() as i64 - 1) as usize;
        let mut on = vec![column(self)];
        if self.chance(30) {
            on.push(column(self));
        }
        // PostgreSQL has full joins by equality only.
        let less = (kind != JoinKind::Full && self.chance(30)).then(|| column(self));
        let (left, right) = (self.filter(schema, false), self.filter(schema, false));
        Statement::Join(Join { kind, on, less, left, right })
    }

    /// A statement.
    pub fn statement(&mut self, schema: &Schema) -> Statement {
        match self.number(0, 99) {
            0..32 => self.insert(schema),
            32..50 => {
                let assignments = self
                    .settable(schema)
                    .into_iter()
                    .map(|column| {
                        let value = match self.chance(5) {
                            true => None,
                            false => Some(self.expr(schema, schema.columns[column].ty, 2, true)),
                        };
                        (column, value)
                    })
                    .collect();
                Statement::Update(assignments, self.filter(schema, true), self.returning(schema))
            }
            50..58 => {
                let mut filter = self.filter(schema, true);
                while filter.is_empty() {
                    filter = self.filter(schema, true);
                }
                Statement::Delete(filter, self.returning(schema))
            }
            58 => Statement::Truncate,
            59..70 => self.join(schema),
            _ => {
                let projection = self.projection(schema);
                // PostgreSQL may find the first or the least row by an index, and never look at the others.
                let all_rows = match &projection {
                    Projection::Rows { limit, .. } => limit.is_none(),
                    Projection::Groups { aggregates, .. } => {
                        !aggregates.iter().any(|a| matches!(a, Aggregate::Min(_) | Aggregate::Max(_)))
                    }
                };
                Statement::Select(projection, self.filter(schema, all_rows))
            }
        }
    }
}
