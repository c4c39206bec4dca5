//! Random values, schemas and operations.

use carousel_engine::{
    TableId, TableSchema, Ts, Type, Value,
    aggregate::{AggregateCall, AggregateFunction},
    expr::{CastKind, CompareOp, Expr, Function},
    numeric::Numeric,
    operation::{
        Delete, Insert, InsertRows, OnConflict, OperationKind, Read, ReadOutput, RowBatch, SortKey, Top,
        Update,
    },
    schema::{Column, Partitioning, ROW_ID},
    value::compare_as,
};

use crate::oracle::{Row, World, batch_of};

/// A small deterministic generator (SplitMix64).
pub struct Random {
    state: u64,
    /// Numbers are mostly small; every other one is below this, if it is not zero.
    pub spread: usize,
}

impl Random {
    pub fn new(seed: u64, spread: usize) -> Random {
        Random { state: seed, spread }
    }

    pub fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len())]
    }

    pub fn ty(&mut self) -> Type {
        self.pick(&[
            Type::Bool,
            Type::Int2,
            Type::Int4,
            Type::Int8,
            Type::Float8,
            Type::Numeric(Some((10, 2))),
            Type::Numeric(Some((30, 3))),
            Type::Numeric(None),
            Type::Text,
            Type::Text,
            Type::Varchar(Some(8)),
            Type::Char(4),
            Type::Date,
            Type::Timestamp,
            Type::Uuid,
            Type::Bytea,
        ])
        .clone()
    }

    fn rare_overflow(&self) -> usize {
        // With many rows, hardly any write would succeed otherwise.
        if self.spread > 0 { 10_000 } else { 10 }
    }

    pub fn value(&mut self, ty: &Type) -> Value {
        let n = match self.spread > 0 && self.one_in(2) {
            true => self.below(self.spread) as i64,
            false => self.below(7) as i64 - 2,
        };
        match ty {
            Type::Bool => Value::Bool(n > 0),
            Type::Int2 => Value::Int2(n as i16),
            Type::Int4 => {
                Value::Int4((n * if self.one_in(self.rare_overflow()) { 100_000 } else { 1 }) as i32)
            }
            Type::Int8 => Value::Int8(n.wrapping_mul(if self.one_in(10) { i64::MAX / 4 } else { 1 })),
            Type::Float8 => {
                Value::Float8(*self.pick(&[0.0, -0.0, 1.5, -1.5, f64::NAN, f64::INFINITY, 1e300, 0.1]))
            }
            Type::Numeric(_) if self.one_in(12) => Value::Numeric(Numeric::NaN),
            Type::Numeric(Some((30, _))) => Value::Numeric(Numeric::new(i128::from(n) * 10i128.pow(25), 3)),
            Type::Numeric(Some((_, scale))) => Value::Numeric(Numeric::new(n * 50, u32::from(*scale))),
            Type::Numeric(None) => Value::Numeric(Numeric::new(n * 100, self.below(4) as u32)),
            Type::Char(_) => Value::text(*self.pick(&["a   ", "b   ", "    ", "ab  ", "abcd", "é   "])),
            Type::Date => Value::Date(n as i32 * 365 % 100_000),
            Type::Timestamp => Value::Timestamp(n * 60_000_000),
            Type::Uuid => Value::Uuid([n as u8; 16]),
            Type::Bytea => Value::Bytea(vec![n as u8; self.below(3)].into()),
            Type::Text if n > 4 => Value::text(format!("v{n}")),
            _ => Value::text(*self.pick(&["", "a", "ab", "abc", "b", "ba", "é", "a\u{1}", "a "])),
        }
    }

    pub fn nullable(&mut self, ty: &Type) -> Value {
        if self.one_in(5) { Value::Null } else { self.value(ty) }
    }
}

pub fn column(name: &str, ty: Type, not_null: bool) -> Column {
    Column { name: name.into(), ty, not_null, default: None }
}

pub fn random_schema(random: &mut Random, id: u64) -> TableSchema {
    let mut columns = vec![column("k", random.ty(), true), column("l", random.ty(), true)];
    for index in 0..2 + random.below(4) {
        let ty = random.ty();
        columns.push(column(&format!("c{index}"), ty, random.one_in(4)));
    }
    columns.push(column("i", Type::Int4, false));
    columns.push(column("s", Type::Int2, false));
    let mut primary_key = match random.below(4) {
        0 => vec![],
        1 => vec![1, 0],
        _ => vec![0],
    };
    if primary_key.is_empty() {
        columns.push(column(ROW_ID, Type::Int8, true));
    }
    let partitioned = if primary_key.is_empty() {
        vec![if random.one_in(2) { columns.len() - 1 } else { 2 }]
    } else if random.one_in(3) {
        vec![primary_key[0]]
    } else {
        primary_key.clone()
    };
    let partitioning = if random.one_in(3) && partitioned.len() == 1 {
        let ty = &columns[partitioned[0]].ty;
        let mut splits: Vec<Value> = (0..random.below(3)).map(|_| random.value(ty)).collect();
        splits.sort_by(|a, b| compare_as(a, b, ty));
        splits.dedup_by(|a, b| compare_as(a, b, ty).is_eq());
        Partitioning::Range { column: partitioned[0], splits }
    } else {
        Partitioning::Hash { columns: partitioned }
    };
    primary_key.dedup();
    TableSchema {
        id: TableId(id),
        version: Ts(id),
        name: "t".into(),
        columns,
        primary_key,
        primary_key_name: "t_pkey".into(),
        partitioning,
    }
}

/// Whether equal values of the type look alike.
fn has_one_form(ty: &Type) -> bool {
    !matches!(ty, Type::Numeric(None) | Type::Float8)
}

pub struct Generator<'a> {
    pub random: &'a mut Random,
    pub schema: &'a TableSchema,
    pub next_row_id: i64,
}

impl Generator<'_> {
    pub fn row(&mut self) -> Row {
        let mut row: Row = Vec::new();
        for column in &self.schema.columns {
            row.push(if column.name == ROW_ID {
                self.next_row_id += 1;
                Value::Int8(self.next_row_id)
            } else if column.not_null {
                self.random.value(&column.ty)
            } else {
                self.random.nullable(&column.ty)
            });
        }
        row
    }

    /// Rows with different keys.
    pub fn distinct_rows(&mut self, world: &World, count: usize) -> Vec<Row> {
        let mut rows: Vec<Row> = Vec::new();
        for _ in 0..count {
            let row = self.row();
            if self.schema.primary_key.is_empty() || !rows.iter().any(|other| world.same_key(other, &row)) {
                rows.push(row);
            }
        }
        rows
    }

    pub fn column_expr(&self, index: usize) -> Expr {
        Expr::column(index, self.schema.columns[index].ty.clone())
    }

    pub fn visible(&mut self) -> usize {
        self.random.below(self.schema.visible_columns().len())
    }

    pub fn conjunct(&mut self) -> Expr {
        let index = self.visible();
        let ty = self.schema.columns[index].ty.clone();
        let column = self.column_expr(index);
        let literal = |generator: &mut Self| Expr::literal(generator.random.nullable(&ty), ty.clone());
        match self.random.below(13) {
            12 => {
                // BETWEEN.
                let mut bound =
                    |op| Expr::Compare { op, left: Box::new(column.clone()), right: Box::new(literal(self)) };
                Expr::And(vec![bound(CompareOp::Ge), bound(CompareOp::Le)])
            }
            0 => Expr::IsNull { expr: Box::new(column), negated: self.random.one_in(2) },
            1 => {
                let list = (0..1 + self.random.below(4)).map(|_| literal(self)).collect();
                Expr::InList { expr: Box::new(column), list, negated: false }
            }
            2 => Expr::Or(vec![self.conjunct(), self.conjunct()]),
            3 => Expr::Not(Box::new(self.conjunct())),
            4 if ty == Type::Text => Expr::Like {
                expr: Box::new(column),
                pattern: Box::new(Expr::literal(
                    Value::text(*self.random.pick(&["a%", "%", "ab%"])),
                    Type::Text,
                )),
                escape: Some('\\'),
                case_insensitive: false,
                negated: false,
            },
            5 if ty == Type::Bool => column,
            6 => {
                // Two columns of one type.
                let others: Vec<usize> =
                    (0..self.schema.columns.len()).filter(|i| self.schema.columns[*i].ty == ty).collect();
                let other = *self.random.pick(&others);
                Expr::Compare {
                    op: CompareOp::Le,
                    left: Box::new(column),
                    right: Box::new(self.column_expr(other)),
                }
            }
            7 if self.random.one_in(2) => {
                // May fail.
                let narrowed = self.narrowed(0);
                Expr::Compare {
                    op: CompareOp::Gt,
                    left: Box::new(narrowed),
                    right: Box::new(Expr::literal(Value::Int2(0), Type::Int2)),
                }
            }
            8 if self.random.one_in(2) => {
                let left = Box::new(self.arithmetic().unwrap_or_else(|| self.column_expr(index)));
                let ty = left.ty();
                let right = Box::new(Expr::literal(self.random.nullable(&ty), ty));
                Expr::Compare { op: CompareOp::Gt, left, right }
            }
            _ => {
                let op = *self.random.pick(&[
                    CompareOp::Eq,
                    CompareOp::Eq,
                    CompareOp::Ne,
                    CompareOp::Lt,
                    CompareOp::Le,
                    CompareOp::Gt,
                    CompareOp::Ge,
                ]);
                let (left, right) = (Box::new(column), Box::new(literal(self)));
                match self.random.one_in(4) {
                    true => Expr::Compare { op, left: right, right: left },
                    false => Expr::Compare { op, left, right },
                }
            }
        }
    }

    /// `i::smallint`, which fails for large numbers.
    pub fn narrowed(&self, offset: usize) -> Expr {
        let index = self.schema.column("i").expect("every schema has it");
        Expr::Cast {
            expr: Box::new(Expr::column(offset + index, Type::Int4)),
            to: Type::Int2,
            kind: CastKind::Explicit,
        }
    }

    pub fn key_equality(&mut self) -> Vec<Expr> {
        let key = self.schema.primary_key.clone();
        key.into_iter()
            .map(|index| {
                let ty = self.schema.columns[index].ty.clone();
                let column = Box::new(self.column_expr(index));
                if self.random.one_in(3) {
                    let list = (0..3).map(|_| Expr::literal(self.random.nullable(&ty), ty.clone())).collect();
                    Expr::InList { expr: column, list, negated: false }
                } else {
                    let right = Box::new(Expr::literal(self.random.value(&ty), ty));
                    Expr::Compare { op: CompareOp::Eq, left: column, right }
                }
            })
            .collect()
    }

    pub fn predicate(&mut self) -> Vec<Expr> {
        let mut predicate: Vec<Expr> = (0..self.random.below(4)).map(|_| self.conjunct()).collect();
        if self.random.one_in(3) {
            let at = self.random.below(predicate.len() + 1);
            let key = self.key_equality();
            predicate.splice(at..at, key);
        }
        predicate
    }

    pub fn exprs(&mut self) -> Vec<Expr> {
        let mut exprs: Vec<Expr> = (0..1 + self.random.below(3))
            .map(|_| {
                let index = self.visible();
                self.column_expr(index)
            })
            .collect();
        if self.random.one_in(6) {
            exprs.push(self.narrowed(0));
        }
        exprs
    }

    pub fn returning(&mut self) -> Option<Vec<Expr>> {
        self.random.one_in(2).then(|| self.exprs())
    }

    /// Assignments to columns that may be assigned. With `excluded`, values may come from the row to be inserted.
    pub fn assignments(&mut self, excluded: bool) -> Vec<(usize, Expr)> {
        let width = self.schema.columns.len();
        let free: Vec<usize> = (0..self.schema.visible_columns().len())
            .filter(|index| {
                !self.schema.primary_key.contains(index)
                    && !self.schema.partitioning.columns().contains(index)
            })
            .collect();
        let mut targets: Vec<usize> =
            (0..1 + self.random.below(2)).map(|_| *self.random.pick(&free)).collect();
        targets.sort_unstable();
        targets.dedup();
        targets
            .into_iter()
            .map(|target| {
                let ty = self.schema.columns[target].ty.clone();
                if ty == Type::Int2 && self.random.one_in(3) {
                    let offset = if excluded && self.random.one_in(2) { width } else { 0 };
                    return (target, self.narrowed(offset));
                }
                let same: Vec<usize> = (0..width).filter(|i| self.schema.columns[*i].ty == ty).collect();
                let expr = match self.random.below(4) {
                    0 => {
                        let source = *self.random.pick(&same);
                        self.column_expr(source)
                    }
                    1 if excluded => Expr::column(width + *self.random.pick(&same), ty),
                    _ if self.random.one_in(8) => Expr::literal(Value::Null, ty),
                    _ => Expr::literal(self.random.value(&ty), ty),
                };
                (target, expr)
            })
            .collect()
    }

    /// An operation, some of them reads with a predicate that another read has, or wholly the same.
    pub fn operation(&mut self, world: &World, asked: &[Read]) -> OperationKind {
        match self.new_operation(world) {
            OperationKind::Read(mut read) if !asked.is_empty() && self.random.one_in(2) => {
                let other = self.random.pick(&asked[asked.len().saturating_sub(6)..]);
                read.predicate.clone_from(&other.predicate);
                if self.random.one_in(2) {
                    read.output = other.output.clone();
                }
                OperationKind::Read(read)
            }
            operation => operation,
        }
    }

    fn new_operation(&mut self, world: &World) -> OperationKind {
        match self.random.below(18) {
            0..=4 => OperationKind::Insert(self.insert(world)),
            5..=7 => OperationKind::Update(Update {
                predicate: self.predicate(),
                assignments: self.assignments(false),
                returning: self.returning(),
            }),
            8..=9 => {
                OperationKind::Delete(Delete { predicate: self.predicate(), returning: self.returning() })
            }
            10 if self.random.one_in(4) => OperationKind::Truncate,
            12 => OperationKind::Read(self.groups()),
            11 => OperationKind::Read(Read { predicate: self.predicate(), output: ReadOutput::ContentHash }),
            _ => {
                let projection = self.exprs();
                let top = self.random.one_in(3).then(|| self.top(projection.len()));
                OperationKind::Read(Read {
                    predicate: self.predicate(),
                    output: ReadOutput::Rows { projection, top },
                })
            }
        }
    }

    /// A read of groups whose key has one form for each value.
    pub fn groups(&mut self) -> Read {
        let keys: Vec<usize> = (0..self.schema.visible_columns().len())
            .filter(|index| has_one_form(&self.schema.columns[*index].ty))
            .collect();
        let group_by: Vec<Expr> = (0..self.random.below(4))
            .map(|_| {
                let key = *self.random.pick(&keys);
                let column = self.column_expr(key);
                match self.random.one_in(6) {
                    true => Expr::IsNull { expr: Box::new(column), negated: self.random.one_in(2) },
                    false => column,
                }
            })
            .collect();
        let aggregates = self.aggregates(&group_by);
        let top = match aggregates.is_empty() && self.random.one_in(2) {
            true => Some(self.top(group_by.len())),
            false => None,
        };
        Read { predicate: self.predicate(), output: ReadOutput::Groups { group_by, aggregates, top } }
    }

    /// Arithmetic with columns of decimals, if there are any.
    fn arithmetic(&mut self) -> Option<Expr> {
        let is_decimal = |index: &usize| matches!(self.schema.columns[*index].ty, Type::Numeric(Some(_)));
        let decimals: Vec<usize> = (0..self.schema.columns.len()).filter(is_decimal).collect();
        if decimals.is_empty() {
            return None;
        }
        let first = *self.random.pick(&decimals);
        let mut expr = self.column_expr(first);
        for _ in 0..1 + self.random.below(2) {
            let function = *self.random.pick(&[Function::Add, Function::Subtract, Function::Multiply]);
            let other = match self.random.one_in(2) {
                true => {
                    let other = *self.random.pick(&decimals);
                    self.column_expr(other)
                }
                false => {
                    let number = Numeric::new(self.random.below(30) as i64 - 15, self.random.below(4) as u32);
                    Expr::literal(Value::Numeric(number), Type::Numeric(None))
                }
            };
            let args = if self.random.one_in(2) { vec![expr, other] } else { vec![other, expr] };
            expr = Expr::Call { function, args, ty: Type::Numeric(None) };
        }
        Some(expr)
    }

    /// An order of so many columns, or any, and a limit.
    fn top(&mut self, columns: usize) -> Top {
        let keys = if columns == 0 { 0 } else { self.random.below(3) };
        let keys = (0..keys).map(|_| SortKey {
            column: self.random.below(columns),
            descending: self.random.one_in(2),
            nulls_first: self.random.one_in(2),
        });
        let keys = keys.collect();
        let most = if self.random.one_in(2) { 4 } else { 40 };
        Top { keys, limit: self.random.next() % most }
    }

    fn aggregates(&mut self, group_by: &[Expr]) -> Vec<AggregateCall> {
        if !group_by.is_empty() && self.random.one_in(3) {
            return Vec::new();
        }
        let mut aggregates = vec![AggregateCall::new(AggregateFunction::Count, None)];
        for _ in 0..self.random.below(4) {
            let function = *self.random.pick(&[
                AggregateFunction::Count,
                AggregateFunction::Sum,
                AggregateFunction::Sum,
                AggregateFunction::Avg,
                AggregateFunction::Min,
                AggregateFunction::Max,
            ]);
            let fits = |ty: &Type| match function {
                AggregateFunction::Sum | AggregateFunction::Avg => {
                    has_one_form(ty) && matches!(ty, Type::Int2 | Type::Int4 | Type::Int8 | Type::Numeric(_))
                }
                AggregateFunction::Count => has_one_form(ty),
                _ => has_one_form(ty) && !matches!(ty, Type::Bool | Type::Uuid | Type::Bytea),
            };
            let visible = self.schema.visible_columns();
            let fitting: Vec<usize> = (0..visible.len()).filter(|index| fits(&visible[*index].ty)).collect();
            let argument = *self.random.pick(&fitting);
            let is_number = !matches!(function, AggregateFunction::Count);
            let computed = if is_number && self.random.one_in(4) { self.arithmetic() } else { None };
            let argument = computed.unwrap_or_else(|| self.column_expr(argument));
            let mut call = AggregateCall::new(function, Some(argument));
            call.distinct = self.random.one_in(4);
            if self.random.one_in(5) {
                let asked = self.visible();
                let expr = Box::new(self.column_expr(asked));
                call.filter = Some(Expr::IsNull { expr, negated: self.random.one_in(2) });
            }
            aggregates.push(call);
        }
        aggregates
    }

    pub fn insert(&mut self, world: &World) -> Insert {
        let count = if self.random.one_in(4) { 12 } else { 1 + self.random.below(3) };
        let rows: Vec<Row> = (0..count).map(|_| self.row()).collect();
        let positions = rows
            .iter()
            .map(|row| {
                let columns = world.schema.partitioning.columns();
                let key: Vec<Value> = columns.iter().map(|column| row[*column].clone()).collect();
                world.schema.partitioning.position(&key)
            })
            .collect();
        let rows = batch_of(self.schema, &rows);
        let ordinals = (0..rows.num_rows() as u64).collect();
        let on_conflict = match self.random.below(3) {
            0 => OnConflict::Fail,
            1 => OnConflict::Nothing,
            _ => OnConflict::Update { assignments: self.assignments(true), predicate: self.predicate() },
        };
        Insert {
            rows: InsertRows::Inline(RowBatch { rows, positions, ordinals }),
            on_conflict,
            returning: self.returning(),
        }
    }
}
