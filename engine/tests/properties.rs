//! Properties that hold for all values: evaluation over batches agrees with the reference, aggregation does not depend
//! on order or partition, the order of values is total, text forms read back.

use std::sync::Arc;

use arrow::{
    array::{Array, RecordBatch},
    datatypes::{Field, Schema},
};
use carousel_engine::{
    Type, Value,
    aggregate::{AggregateCall, AggregateFunction, AggregateState, Direction, GroupTable, Spread},
    array::{BatchRow, ColumnBuilder, arrow_cell_to_value, values_to_array},
    expr::{
        CastKind, CompareOp, EvalContext, Expr, Function, check_depth, columns, eval, fold, qualifies,
        shift_columns, vector,
    },
    numeric::Numeric,
    text::{format_value, parse_value},
    value::{Interval, compare},
};
use proptest::prelude::*;

fn column_types() -> Vec<Type> {
    vec![
        Type::Int4,
        Type::Int4,
        Type::Int8,
        Type::Float8,
        Type::Text,
        Type::Bool,
        Type::Numeric(Some((6, 2))),
        Type::Date,
        Type::Char(3),
        Type::Int2,
        Type::Float4,
        Type::Numeric(None),
    ]
}

/// A value of a type, from a small set in which extremes and equal values are frequent.
fn value(ty: &Type) -> BoxedStrategy<Value> {
    let some = match ty {
        Type::Bool => any::<bool>().prop_map(Value::Bool).boxed(),
        Type::Int2 => prop_oneof![-3i16..4, Just(i16::MAX), Just(i16::MIN)].prop_map(Value::Int2).boxed(),
        Type::Int4 => {
            prop_oneof![-3i32..4, Just(i32::MAX), Just(i32::MIN), any::<i32>()].prop_map(Value::Int4).boxed()
        }
        Type::Int8 => {
            prop_oneof![-3i64..4, Just(i64::MAX), Just(i64::MIN), any::<i64>()].prop_map(Value::Int8).boxed()
        }
        Type::Float4 => prop_oneof![any::<f32>(), Just(0.0), Just(-0.0), Just(f32::NAN), Just(1.5)]
            .prop_map(Value::Float4)
            .boxed(),
        Type::Float8 => prop_oneof![
            any::<f64>(),
            Just(0.0),
            Just(-0.0),
            Just(f64::NAN),
            Just(-f64::NAN),
            Just(f64::INFINITY),
            Just(1e308),
            Just(1.5)
        ]
        .prop_map(Value::Float8)
        .boxed(),
        Type::Numeric(Some((_, scale))) => {
            let scale = u32::from(*scale);
            // Whole columns without NaN should be frequent.
            prop_oneof![
                60 => (-9999i64..9999).prop_map(move |n| Value::Numeric(Numeric::new(n, scale))),
                1 => Just(Value::Numeric(Numeric::NaN))
            ]
            .boxed()
        }
        Type::Numeric(None) => prop_oneof![
            (any::<i128>(), 0u32..40).prop_map(|(n, scale)| Value::Numeric(Numeric::new(n, scale))),
            (-20i128..20, 0u32..3).prop_map(|(n, scale)| Value::Numeric(Numeric::new(n, scale))),
            Just(Value::Numeric(Numeric::NaN))
        ]
        .boxed(),
        Type::Text | Type::Varchar(_) => {
            prop_oneof!["[ab%_\\\\ é]{0,4}", Just("a".to_owned())].prop_map(Value::text).boxed()
        }
        Type::Char(n) => {
            let n = *n as usize;
            proptest::string::string_regex(&format!("[ab\t]{{0,{n}}}"))
                .expect("a valid expression")
                .prop_map(move |text| Value::text(format!("{text:n$}")))
                .boxed()
        }
        Type::Bytea => {
            prop::collection::vec(any::<u8>(), 0..5).prop_map(|bytes| Value::Bytea(bytes.into())).boxed()
        }
        Type::Date => prop_oneof![-800_000i32..800_000, Just(i32::MAX), Just(i32::MIN), Just(0)]
            .prop_map(Value::Date)
            .boxed(),
        Type::Time => (0i64..86_400_000_000).prop_map(Value::Time).boxed(),
        Type::Timestamp => {
            (-80_000_000_000_000_000i64..80_000_000_000_000_000).prop_map(Value::Timestamp).boxed()
        }
        Type::TimestampTz => {
            (-80_000_000_000_000_000i64..80_000_000_000_000_000).prop_map(Value::TimestampTz).boxed()
        }
        Type::Interval => (-200_000i32..200_000, any::<i32>(), any::<i32>())
            .prop_map(|(months, days, micros)| {
                Value::Interval(Interval { months, days, microseconds: i64::from(micros) * 977 })
            })
            .boxed(),
        Type::Uuid => any::<[u8; 16]>().prop_map(Value::Uuid).boxed(),
    };
    prop_oneof![8 => some, 1 => Just(Value::Null)].boxed()
}

/// A batch with the columns of [`column_types`].
fn batch() -> impl Strategy<Value = RecordBatch> {
    let row: Vec<BoxedStrategy<Value>> = column_types().iter().map(value).collect();
    prop::collection::vec(row, 0..12).prop_map(|rows| {
        let types = column_types();
        let fields: Vec<Field> =
            types.iter().enumerate().map(|(i, ty)| Field::new(format!("c{i}"), ty.arrow(), true)).collect();
        let arrays = types
            .iter()
            .enumerate()
            .map(|(i, ty)| {
                let cells: Vec<Value> = rows.iter().map(|row| row[i].clone()).collect();
                values_to_array(&cells, ty).expect("values fit their columns")
            })
            .collect();
        RecordBatch::try_new(Arc::new(Schema::new(fields)), arrays).expect("columns fit the schema")
    })
}

fn operator() -> impl Strategy<Value = CompareOp> {
    prop_oneof![
        Just(CompareOp::Eq),
        Just(CompareOp::Ne),
        Just(CompareOp::Lt),
        Just(CompareOp::Le),
        Just(CompareOp::Gt),
        Just(CompareOp::Ge)
    ]
}

const DECIMAL: Type = Type::Numeric(Some((6, 2)));

/// An expression of a type, or one that is as good as one where a type is asked for without its modifiers.
fn operand_of(ty: Type, depth: u32) -> BoxedStrategy<Expr> {
    if ty != Type::Numeric(None) {
        return expression(ty, depth);
    }
    let whole = prop::sample::select(vec![Type::Int2, Type::Int4, Type::Int8]);
    let cast = whole.prop_flat_map(move |ty| expression(ty, depth.min(1))).prop_map(|expr| Expr::Cast {
        expr: Box::new(expr),
        to: Type::Numeric(None),
        kind: CastKind::Implicit,
    });
    prop_oneof![2 => expression(ty, depth), 3 => expression(DECIMAL, depth.min(1)), 1 => cast].boxed()
}

/// A typed expression over the columns.
fn expression(ty: Type, depth: u32) -> BoxedStrategy<Expr> {
    let literal_type = ty.clone();
    let literal = value(&ty).prop_map(move |value| Expr::literal(value, literal_type.clone()));
    let same: Vec<Expr> = column_types()
        .into_iter()
        .enumerate()
        .filter(|(_, column)| *column == ty)
        .map(|(index, column)| Expr::column(index, column))
        .collect();
    let leaf = if same.is_empty() {
        literal.boxed()
    } else {
        prop_oneof![1 => literal, 3 => prop::sample::select(same)].boxed()
    };
    if depth == 0 {
        return leaf;
    }
    let boolean = move || expression(Type::Bool, depth - 1);
    let own = ty.clone();
    let inner = move || operand_of(own.clone(), depth - 1);
    let result = ty.clone();
    let case = (boolean(), inner(), inner()).prop_map(move |(condition, yes, no)| Expr::Case {
        branches: vec![(condition, yes)],
        otherwise: Some(Box::new(no)),
        ty: result.clone(),
    });
    let result = ty.clone();
    let coalesce =
        (inner(), inner()).prop_map(move |(a, b)| Expr::Coalesce { args: vec![a, b], ty: result.clone() });
    match ty {
        Type::Bool => {
            let operand = prop::sample::select(column_types());
            let comparison = (operand.clone(), operator()).prop_flat_map(move |(ty, op)| {
                (operand_of(ty.clone(), depth - 1), operand_of(ty, depth - 1)).prop_map(
                    move |(left, right)| Expr::Compare { op, left: Box::new(left), right: Box::new(right) },
                )
            });
            let distinct = (operand.clone(), any::<bool>()).prop_flat_map(move |(ty, negated)| {
                (expression(ty.clone(), depth - 1), expression(ty, depth - 1)).prop_map(
                    move |(left, right)| Expr::IsDistinct {
                        left: Box::new(left),
                        right: Box::new(right),
                        negated,
                    },
                )
            });
            let null = (operand.clone(), any::<bool>()).prop_flat_map(move |(ty, negated)| {
                expression(ty, depth - 1).prop_map(move |expr| Expr::IsNull { expr: Box::new(expr), negated })
            });
            let list = (operand, any::<bool>()).prop_flat_map(move |(ty, negated)| {
                let member = value(&ty).prop_map({
                    let ty = ty.clone();
                    move |value| Expr::literal(value, ty.clone())
                });
                (expression(ty, depth - 1), prop::collection::vec(member, 1..4))
                    .prop_map(move |(expr, list)| Expr::InList { expr: Box::new(expr), list, negated })
            });
            let like =
                (expression(Type::Text, depth - 1), expression(Type::Text, 0), any::<bool>(), any::<bool>())
                    .prop_map(|(expr, pattern, case_insensitive, negated)| Expr::Like {
                        expr: Box::new(expr),
                        pattern: Box::new(pattern),
                        escape: Some('\\'),
                        case_insensitive,
                        negated,
                    });
            let truth = (boolean(), prop::option::of(any::<bool>()), any::<bool>())
                .prop_map(|(expr, truth, negated)| Expr::IsTruth { expr: Box::new(expr), truth, negated });
            prop_oneof![
                leaf,
                comparison,
                prop::collection::vec(boolean(), 1..4).prop_map(Expr::And),
                prop::collection::vec(boolean(), 1..4).prop_map(Expr::Or),
                boolean().prop_map(|expr| Expr::Not(Box::new(expr))),
                distinct,
                null,
                list,
                like,
                truth,
                case,
                coalesce,
            ]
            .boxed()
        }
        Type::Int2 | Type::Int4 | Type::Int8 | Type::Float8 | Type::Float4 | Type::Numeric(None) => {
            let functions = if matches!(ty, Type::Float8 | Type::Float4) {
                vec![Function::Add, Function::Subtract, Function::Multiply, Function::Divide]
            } else {
                vec![
                    Function::Add,
                    Function::Subtract,
                    Function::Multiply,
                    Function::Divide,
                    Function::Modulo,
                ]
            };
            let result = ty.clone();
            let argument = || operand_of(ty.clone(), depth - 1);
            let call = (prop::sample::select(functions), argument(), argument()).prop_map(
                move |(function, a, b)| Expr::Call { function, args: vec![a, b], ty: result.clone() },
            );
            prop_oneof![1 => leaf, 3 => call, 1 => case, 1 => coalesce].boxed()
        }
        Type::Text => {
            let call = (inner(), inner()).prop_map(|(a, b)| Expr::Call {
                function: Function::Concat,
                args: vec![a, b],
                ty: Type::Text,
            });
            prop_oneof![leaf, call, case, coalesce].boxed()
        }
        DECIMAL => {
            let cast = operand_of(Type::Numeric(None), depth - 1).prop_map(|expr| Expr::Cast {
                expr: Box::new(expr),
                to: DECIMAL,
                kind: CastKind::Explicit,
            });
            prop_oneof![leaf, cast, case, coalesce].boxed()
        }
        _ => prop_oneof![leaf, case, coalesce].boxed(),
    }
}

fn any_expression() -> impl Strategy<Value = Expr> {
    prop::sample::select(column_types()).prop_flat_map(|ty| expression(ty, 3))
}

fn reference(
    expr: &Expr,
    batch: &RecordBatch,
    context: &EvalContext,
) -> Result<Vec<Value>, carousel_engine::SqlError> {
    (0..batch.num_rows()).map(|row| eval(expr, &BatchRow::new(batch, row), context)).collect()
}

fn all_types() -> Vec<Type> {
    let mut types = column_types();
    types.extend([Type::Bytea, Type::Time, Type::Timestamp, Type::TimestampTz, Type::Interval, Type::Uuid]);
    types
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    #[test]
    fn batches_evaluate_as_rows_do(expr in any_expression(), batch in batch()) {
        let context = EvalContext::default();
        let expected = reference(&expr, &batch, &context);
        let got = vector::evaluate(&expr, &batch, &context).map(|array| {
            (0..array.len()).map(|row| arrow_cell_to_value(&array, row, &expr.ty())).collect::<Vec<_>>()
        });
        prop_assert_eq!(expected, got);
    }

    #[test]
    fn what_cannot_fail_does_not(expr in any_expression(), batch in batch()) {
        let context = EvalContext::default();
        if !carousel_engine::expr::can_fail(&expr) {
            prop_assert!(reference(&expr, &batch, &context).is_ok());
        }
    }

    #[test]
    fn batches_filter_as_rows_do(
        predicate in prop::collection::vec(expression(Type::Bool, 2), 0..4), batch in batch(),
    ) {
        let context = EvalContext::default();
        let expected: Result<Vec<bool>, _> = (0..batch.num_rows())
            .map(|row| qualifies(&predicate, &BatchRow::new(&batch, row), &context))
            .collect();
        let got = vector::filter(&predicate, &batch, &context).map(|selected| selected.iter().collect::<Vec<_>>());
        prop_assert_eq!(expected, got);
    }

    #[test]
    fn folding_changes_no_answer(expr in any_expression(), batch in batch()) {
        let context = EvalContext::default();
        if let (Ok(folded), Ok(expected)) = (fold(&expr, &context), reference(&expr, &batch, &context)) {
            prop_assert_eq!(Ok(expected), reference(&folded, &batch, &context));
            prop_assert_eq!(folded.ty().arrow(), expr.ty().arrow());
        }
    }

    #[test]
    fn shifting_moves_every_column(expr in any_expression()) {
        let before: Vec<usize> = columns(&expr).into_iter().map(|index| index + 5).collect();
        let after: Vec<usize> = columns(&shift_columns(expr, 5)).into_iter().collect();
        prop_assert_eq!(before, after);
    }

    #[test]
    fn order_is_total(
        (a, b, c) in prop::sample::select(all_types()).prop_flat_map(|ty| (value(&ty), value(&ty), value(&ty))),
    ) {
        use std::hash::BuildHasher;
        prop_assert_eq!(compare(&a, &b), compare(&b, &a).reverse());
        if compare(&a, &b).is_le() && compare(&b, &c).is_le() {
            prop_assert!(compare(&a, &c).is_le());
        }
        let hasher = std::hash::BuildHasherDefault::<std::collections::hash_map::DefaultHasher>::default();
        if a == b {
            prop_assert_eq!(hasher.hash_one(&a), hasher.hash_one(&b));
        }
    }

    #[test]
    fn text_and_arrays_read_back(
        (ty, value) in prop::sample::select(all_types())
            .prop_flat_map(|ty| (Just(ty.clone()), value(&ty)))
    ) {
        let array = values_to_array(std::slice::from_ref(&value), &ty).expect("the value is of the type");
        prop_assert_eq!(&arrow_cell_to_value(&array, 0, &ty), &value);
        if value.is_null() {
            return Ok(());
        }
        for zone in ["UTC", "America/St_Johns", "<+05>-05"] {
            let context = EvalContext { time_zone: zone.into(), now: 0 };
            // An hour that the clock repeats has two instants; PostgreSQL prints the offset for that reason.
            let text = format_value(&value, &ty, &context);
            prop_assert_eq!(parse_value(&text, &ty, &context), Ok(value.clone()), "{}", text);
            let mut builder = ColumnBuilder::new(&ty);
            prop_assert_eq!(builder.append_text(&text, &context), Ok(()));
            prop_assert_eq!(&arrow_cell_to_value(&builder.finish(), 0, &ty), &value);
        }
    }

    #[test]
    fn order_and_partition_do_not_change_aggregates(
        (ty, values) in prop::sample::select(all_types()).prop_flat_map(|ty| {
            (Just(ty.clone()), prop::collection::vec(value(&ty), 0..20))
        }),
        function in prop::sample::select(vec![
            AggregateFunction::Count, AggregateFunction::Sum, AggregateFunction::Avg, AggregateFunction::Min,
            AggregateFunction::Max, AggregateFunction::BoolAnd, AggregateFunction::BoolOr,
            AggregateFunction::BitAnd, AggregateFunction::BitOr, AggregateFunction::BitXor,
            AggregateFunction::Spread(Spread { deviation: true, sample: true }),
            AggregateFunction::Spread(Spread { deviation: true, sample: false }),
            AggregateFunction::Spread(Spread { deviation: false, sample: true }),
            AggregateFunction::Spread(Spread { deviation: false, sample: false }),
        ]),
        distinct in any::<bool>(),
        cut in 0usize..20,
    ) {
        let argument = Some(Expr::column(0, ty.clone()));
        let call = AggregateCall { distinct, ..AggregateCall::new(function, argument) };
        prop_assume!(call.result_type().is_ok());
        let state = |values: &[Value]| {
            let mut state = AggregateState::new(&call);
            values.iter().try_for_each(|value| state.update(value)).map(|()| state)
        };
        let whole = state(&values)?.finish();
        let mut reversed = values.clone();
        reversed.reverse();
        let cut = cut.min(values.len());
        let mut merged = state(&reversed[..cut])?;
        merged.merge(state(&reversed[cut..])?).expect("states of one aggregate");
        let show = |result: Result<Value, carousel_engine::SqlError>| result.map(|value| format_value(&value, &ty, &EvalContext::default()));
        prop_assert_eq!(show(whole.clone()), show(merged.finish()));
        let array = values_to_array(&values, &ty).expect("the values are of the type");
        let mut columnar = AggregateState::new(&call);
        columnar.update_array(&array, 0..values.len())?;
        prop_assert_eq!(show(whole), show(columnar.finish()));
        let bytes = postcard::to_stdvec(&merged).expect("states can be sent");
        prop_assert_eq!(postcard::from_bytes::<AggregateState>(&bytes).expect("and read"), merged);
    }

    #[test]
    fn groups_merge_to_the_same(
        batch in batch(), cut in 0usize..12, key in 0usize..12, distinct in any::<bool>(),
        descending in any::<bool>(), nulls_first in any::<bool>(),
    ) {
        let direction = Direction { descending, nulls_first };
        // A DISTINCT call is ordered by its arguments alone.
        let order = if distinct { 4 } else { 0 };
        let context = EvalContext::default();
        let group_by = vec![Expr::column(key, column_types()[key].clone()), Expr::column(5, Type::Bool)];
        let calls = vec![
            AggregateCall {
                filter: Some(Expr::column(5, Type::Bool)),
                ..AggregateCall::new(AggregateFunction::Count, None)
            },
            AggregateCall::new(AggregateFunction::Sum, Some(Expr::column(0, Type::Int4))),
            AggregateCall::new(AggregateFunction::Max, Some(Expr::column(4, Type::Text))),
            AggregateCall {
                distinct,
                further: vec![
                    Expr::literal(Value::text(","), Type::Text),
                    Expr::column(order, column_types()[order].clone()),
                    Expr::column(order + 4, column_types()[order + 4].clone()),
                ][..if distinct { 2 } else { 3 }].to_vec(),
                order: vec![direction; if distinct { 1 } else { 2 }],
                ..AggregateCall::new(AggregateFunction::StringAgg, Some(Expr::column(4, Type::Text)))
            },
        ];
        let table = |batch: &RecordBatch| {
            let mut table = GroupTable::for_read(&group_by, &calls);
            table.update(batch, &group_by, &context).map(|()| table)
        };
        let whole = table(&batch)?;
        let cut = cut.min(batch.num_rows());
        let mut merged = table(&batch.slice(cut, batch.num_rows() - cut))?;
        merged.merge(table(&batch.slice(0, cut))?.into_groups())?;
        let sorted = |table: &GroupTable| table.finish().map(|mut groups| { groups.sort(); groups });
        prop_assert_eq!(sorted(&whole), sorted(&merged));
        let mut keys: Vec<Vec<Value>> = whole.into_groups().into_iter().map(|group| group.key).collect();
        let count = keys.len();
        keys.sort();
        keys.dedup();
        prop_assert_eq!(count, keys.len());
    }
}

#[test]
fn deepest_allowed_expression_fits_a_small_stack() {
    let mut expr = Expr::column(0, Type::Bool);
    for _ in 1..carousel_engine::expr::MAX_DEPTH {
        expr = Expr::Not(Box::new(expr));
    }
    assert_eq!(check_depth(&expr), Ok(()));
    let evaluated = std::thread::Builder::new()
        .stack_size(2 << 20)
        .spawn(move || {
            let context = EvalContext::default();
            let folded = fold(&expr, &context).expect("nothing to fold");
            let value = eval(&folded, &vec![Value::Bool(true)], &context);
            let too_deep = Expr::Not(Box::new(expr));
            (value, check_depth(&too_deep).map_err(|error| error.code))
        })
        .expect("a thread")
        .join()
        .expect("no overflow");
    assert_eq!(evaluated.0, Ok(Value::Bool(false)));
    assert_eq!(evaluated.1, Err(carousel_engine::SqlState::TOO_COMPLEX));
}
