//! Operations that no planner makes: expressions of wrong types and over columns that are not there, rows in another
//! layout, ranges that are not held. A shard may refuse them; it must not panic, and goes on with the others.

use std::sync::Arc;

use carousel_engine::{
    Shard, TableId, TableSchema, Ts, Type, Value,
    aggregate::{AggregateCall, AggregateFunction, Direction},
    expr::{CastKind, CompareOp, Expr, Function},
    operation::{
        Decision, Delete, Effect, Insert, InsertRows, OnConflict, Operation, OperationKind, OrderedOperation,
        PayloadId, Read, ReadOutput, RowBatch, SortKey, Top, Update,
    },
    position::KeyRange,
    shard::{Options, Progress},
};

use crate::{
    generate::{Generator, Random, random_schema},
    number_from_environment,
    oracle::{World, batch_of, context},
};

struct Nonsense<'a> {
    random: &'a mut Random,
    world: &'a World,
}

impl Nonsense<'_> {
    fn ty(&mut self) -> Type {
        if self.random.one_in(8) { Type::Interval } else { self.random.ty() }
    }

    fn column(&mut self) -> Expr {
        let columns = &self.world.schema.columns;
        let index = self.random.below(2 * columns.len() + 2);
        let ty = match columns.get(index % columns.len()) {
            Some(column) if !self.random.one_in(6) => column.ty.clone(),
            _ => self.ty(),
        };
        Expr::column(index, ty)
    }

    fn literal(&mut self) -> Expr {
        let ty = self.ty();
        let of = if self.random.one_in(6) { self.random.ty() } else { ty.clone() };
        let value = if ty == Type::Interval { Value::Null } else { self.random.nullable(&of) };
        Expr::literal(value, ty)
    }

    fn exprs(&mut self, most: usize, depth: usize) -> Vec<Expr> {
        (0..self.random.below(most + 1)).map(|_| self.expr(depth)).collect()
    }

    fn boxed(&mut self, depth: usize) -> Box<Expr> {
        Box::new(self.expr(depth))
    }

    fn expr(&mut self, depth: usize) -> Expr {
        if depth == 0 {
            return if self.random.one_in(2) { self.column() } else { self.literal() };
        }
        let depth = depth - 1;
        let negated = self.random.one_in(2);
        match self.random.below(14) {
            0 => self.column(),
            1 => self.literal(),
            2 => Expr::Parameter { index: 1, ty: self.ty() },
            3 => {
                let function = *self.random.pick(&[
                    Function::Add,
                    Function::Subtract,
                    Function::Multiply,
                    Function::Divide,
                    Function::Modulo,
                    Function::Concat,
                    Function::Lower,
                    Function::Length,
                    Function::Abs,
                ]);
                Expr::Call { function, args: self.exprs(3, depth), ty: self.ty() }
            }
            4 => Expr::Cast { expr: self.boxed(depth), to: self.ty(), kind: CastKind::Explicit },
            5 => {
                let op = *self.random.pick(&[CompareOp::Eq, CompareOp::Lt, CompareOp::Ge, CompareOp::Ne]);
                Expr::Compare { op, left: self.boxed(depth), right: self.boxed(depth) }
            }
            6 => Expr::And(self.exprs(3, depth)),
            7 => Expr::Or(self.exprs(3, depth)),
            8 => Expr::Not(self.boxed(depth)),
            9 => Expr::IsTruth { expr: self.boxed(depth), truth: Some(true), negated },
            10 => Expr::InList { expr: self.boxed(depth), list: self.exprs(3, depth), negated },
            11 => Expr::Like {
                expr: self.boxed(depth),
                pattern: self.boxed(depth),
                escape: None,
                case_insensitive: negated,
                negated,
            },
            12 => Expr::Case {
                branches: vec![(self.expr(depth), self.expr(depth))],
                otherwise: None,
                ty: self.ty(),
            },
            _ => Expr::Coalesce { args: self.exprs(3, depth), ty: self.ty() },
        }
    }

    /// Conditions are mostly boolean and their columns mostly right, so that some of them are evaluated.
    fn predicate(&mut self) -> Vec<Expr> {
        let mut predicate = Vec::new();
        for _ in 0..self.random.below(3) {
            let expr = self.expr(2);
            if expr.ty() == Type::Bool || self.random.one_in(10) {
                predicate.push(expr);
            }
        }
        predicate
    }

    fn top(&mut self) -> Option<Top> {
        let keys = (0..self.random.below(3)).map(|_| SortKey {
            column: self.random.below(4),
            descending: self.random.one_in(2),
            nulls_first: self.random.one_in(2),
        });
        let keys = keys.collect();
        self.random.one_in(2).then(|| Top { keys, limit: self.random.next() >> self.random.below(64) })
    }

    fn aggregate(&mut self) -> AggregateCall {
        use AggregateFunction::*;
        let functions = [Count, Sum, Avg, Min, Max, BoolAnd, BoolOr, BitAnd, BitXor, StringAgg];
        AggregateCall {
            function: *self.random.pick(&functions),
            argument: (!self.random.one_in(4)).then(|| self.expr(1)),
            distinct: self.random.one_in(3),
            filter: self.random.one_in(4).then(|| self.expr(1)),
            further: self.exprs(2, 1),
            order: (0..self.random.below(3)).map(|_| Direction::default()).collect(),
        }
    }

    fn assignments(&mut self) -> Vec<(usize, Expr)> {
        let width = self.world.schema.columns.len();
        (0..self.random.below(3)).map(|_| (self.random.below(width + 2), self.expr(1))).collect()
    }

    fn insert(&mut self) -> Insert {
        let mut generator =
            Generator { random: &mut *self.random, schema: &self.world.schema, next_row_id: 0 };
        let mut insert = generator.insert(self.world);
        if let InsertRows::Inline(batch) = &mut insert.rows {
            match self.random.below(6) {
                0 => batch.positions.truncate(self.random.below(2)),
                1 => batch.ordinals.clear(),
                2 => batch.rows = batch_of(&self.other_schema(), &[]),
                3 => batch.positions.iter_mut().for_each(|position| *position = 7),
                _ => {}
            }
        }
        if self.random.one_in(2) {
            let (assignments, predicate) = (self.assignments(), self.predicate());
            insert.on_conflict = OnConflict::Update { assignments, predicate };
        }
        if self.random.one_in(2) {
            insert.returning = Some(self.exprs(2, 1));
        }
        if self.random.one_in(8) {
            insert.rows = InsertRows::Staged(PayloadId { process: 1, incarnation: 1, sequence: 1 });
        }
        insert
    }

    fn other_schema(&mut self) -> TableSchema {
        random_schema(self.random, 1)
    }

    fn kind(&mut self) -> OperationKind {
        let returning = self.random.one_in(2).then(|| self.exprs(2, 1));
        match self.random.below(10) {
            0..=2 => OperationKind::Insert(self.insert()),
            3 => OperationKind::Update(Update {
                predicate: self.predicate(),
                assignments: self.assignments(),
                returning,
            }),
            4 => OperationKind::Delete(Delete { predicate: self.predicate(), returning }),
            5 if self.random.one_in(6) => OperationKind::Truncate,
            5 if self.random.one_in(6) => OperationKind::CreateTable(Arc::new(self.other_schema())),
            6 | 7 => OperationKind::Read(Read {
                predicate: self.predicate(),
                output: ReadOutput::Groups {
                    group_by: self.exprs(2, 1),
                    aggregates: (0..self.random.below(3)).map(|_| self.aggregate()).collect(),
                    top: self.top(),
                },
            }),
            8 => OperationKind::Read(Read { predicate: self.predicate(), output: ReadOutput::ContentHash }),
            _ => OperationKind::Read(Read {
                predicate: self.predicate(),
                output: ReadOutput::Rows { projection: self.exprs(3, 2), top: self.top() },
            }),
        }
    }

    fn ranges(&mut self) -> Vec<KeyRange> {
        match self.random.below(8) {
            0 => Vec::new(),
            1 => vec![KeyRange::new(1, 2)],
            2 => self.world.ranges.iter().chain(&self.world.ranges).copied().collect(),
            _ => self.world.ranges.clone(),
        }
    }
}

#[test]
fn nonsense_is_refused_and_does_not_panic() {
    let from = number_from_environment("SEED", 0);
    for seed in from..from + number_from_environment("NONSENSE_SEEDS", 600) {
        let random = &mut Random::new(seed, 0);
        let schema = Arc::new(random_schema(random, 1));
        let ranges = vec![KeyRange::new(0, u64::MAX / 2), KeyRange::new(u64::MAX / 2 + 1, u64::MAX)];
        let world = World { schema: schema.clone(), ranges };
        let rows = Generator { random, schema: &schema, next_row_id: 0 }.distinct_rows(&world, 20);
        let options = Options { segment_rows: 8, batch_rows: 3, ..Options::default() };
        let mut shard = Shard::new(0, 1, world.ranges.clone(), options);
        shard.restore_table(schema.clone());
        shard.restore(schema.id, &batch_of(&schema, &rows), Ts::ZERO).expect("rows in the layout");
        let mut executed = 0;
        let operations = 30;
        let mut step = |shard: &mut Shard, effects: &mut Vec<Effect>| {
            while shard.step(effects) == Progress::Busy {}
            executed += effects.iter().filter(|effect| matches!(effect, Effect::Executed { .. })).count();
            effects.clear();
        };
        let mut effects = Vec::new();
        for number in 1..=operations {
            let ts = Ts(10 * number);
            let mut nonsense = Nonsense { random, world: &world };
            let kind = nonsense.kind();
            let ranges = nonsense.ranges();
            let table = if random.one_in(10) { TableId(9) } else { schema.id };
            let is_staged = matches!(&kind, OperationKind::Insert(insert)
                if matches!(insert.rows, InsertRows::Staged(_)));
            let undecided = random.one_in(4);
            shard.submit(OrderedOperation {
                read_ts: Ts(random.next() % (ts.0 + 20)),
                undecided,
                window: random.one_in(3).then(|| random.below(3) as u32),
                blocks: random.one_in(4),
                bulk: random.one_in(4),
                ..OrderedOperation::new(ts, Arc::new(Operation { table, context: context(), kind }), ranges)
            });
            if random.one_in(2) {
                step(&mut shard, &mut effects);
            }
            if is_staged {
                let rows = Generator { random, schema: &schema, next_row_id: 0 }.insert(&world).rows;
                let InsertRows::Inline(rows) = rows else { panic!("rows travel inline") };
                let rows = if random.one_in(4) { RowBatch::empty() } else { rows };
                shard.supply(ts, Arc::new(rows), true, &mut effects);
            }
            // About this one, others, and those that are not there.
            shard.decide(Ts(random.next() % (ts.0 + 20)), Decision::Abort, &mut effects);
            shard.allow(Ts(random.next() % (ts.0 + 20)), random.below(3) as u32, &mut effects);
            shard.collect_garbage(Ts(random.next() % ts.0));
            if random.one_in(4) {
                shard.cancel(Ts(random.next() % (ts.0 + 20)), &mut effects);
            }
            if undecided {
                shard.decide(ts, Decision::Commit, &mut effects);
            }
            step(&mut shard, &mut effects);
            for earlier in 1..=number {
                shard.allow(Ts(10 * earlier), 100, &mut effects);
            }
            step(&mut shard, &mut effects);
        }
        assert!(shard.is_idle(), "seed {seed}: something waits for ever");
        assert_eq!(executed, operations as usize, "seed {seed}: every operation is executed once");
    }
}
