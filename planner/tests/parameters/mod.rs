//! Parameters: their types, and plans that are bound again and again.

use carousel_cluster::message::{Body, Data};
use carousel_engine::{SqlState, Type, Value, operation::OperationKind, position::KeyRange};
use carousel_planner::{Execution, Plan, bind, parse, plan};

use crate::support::{Counter, NOW, bind_one, catalog, plan_one, settings};

const SCHEMA: &str = include_str!("../statements/schema.sql");

#[test]
fn parameters_take_their_types_from_where_they_stand() {
    let catalog = catalog(SCHEMA);
    let numeric = Type::Numeric(None);
    let cases: Vec<(&str, Vec<Type>)> = vec![
        ("SELECT id FROM kinds WHERE small = $1 AND $2 < price", vec![Type::Int2, numeric.clone()]),
        (
            "SELECT id FROM kinds WHERE code = $1 AND born BETWEEN $2 AND $3",
            vec![Type::Text, Type::Date, Type::Date],
        ),
        ("SELECT id FROM kinds WHERE whole IN ($1, 5, $2)", vec![Type::Int4, Type::Int4]),
        (
            "SELECT id FROM kinds WHERE words LIKE $1 LIMIT $2 OFFSET $3",
            vec![Type::Text, Type::Int8, Type::Int8],
        ),
        (
            "INSERT INTO kinds (id, price, code) VALUES ($1, $2, $3)",
            vec![Type::Int8, numeric, Type::Varchar(None)],
        ),
        ("UPDATE kinds SET seen = $2 WHERE token = $1", vec![Type::Uuid, Type::TimestampTz]),
        ("SELECT $1::date, $2 + 1, $1", vec![Type::Date, Type::Int4]),
        ("SELECT coalesce($1, 2.5), upper($2)", vec![Type::Numeric(None), Type::Text]),
        (
            "SELECT id FROM kinds WHERE words LIKE $1 ESCAPE $2 AND id = $3",
            vec![Type::Text, Type::Text, Type::Int8],
        ),
        (
            "SELECT 1 UNION ALL SELECT $1 UNION ALL (SELECT $2 LIMIT $3)",
            vec![Type::Int4, Type::Int4, Type::Int8],
        ),
        ("SELECT $1, 1.5 EXCEPT SELECT id, $2 FROM kinds", vec![Type::Int8, Type::Numeric(None)]),
        ("SELECT $1 UNION SELECT $2", vec![Type::Text, Type::Text]),
        ("(SELECT $1) ORDER BY 1", vec![Type::Text]),
        ("SELECT $1", vec![Type::Text]),
    ];
    for (sql, types) in cases {
        assert_eq!(plan_one(&catalog, sql).expect(sql).parameter_types, types, "{sql}");
    }
}

#[test]
fn declared_types_win() {
    let statements = parse("SELECT $1 + $2").expect("it parses");
    let declared = [Some(Type::Int8), None];
    let planned = plan(&statements[0], &catalog(""), &settings(), &declared).expect("it can be planned");
    assert_eq!(planned.parameter_types, [Type::Int8, Type::Int8]);
    assert_eq!(planned.output.expect("a column")[0].ty, Type::Int8);
}

#[test]
fn a_parameter_that_is_not_used_has_no_type() {
    let error = plan_one(&catalog(""), "SELECT $2 + 1").expect_err("$1 is unknown");
    assert_eq!(error.code, SqlState::INDETERMINATE_TYPE);
    assert_eq!(error.message, "could not determine data type of parameter $1");
}

#[test]
fn a_bound_key_goes_to_one_position() {
    let catalog = catalog(SCHEMA);
    let planned =
        plan_one(&catalog, "SELECT name FROM airlines WHERE carrier = $1").expect("it can be planned");
    let ranges = |value: Value| {
        let execution =
            bind(&planned.plan, &[value], &settings(), &mut Counter::default()).expect("it binds");
        let Execution::Request(request) = execution else { panic!("a table is read by a message") };
        request.ranges
    };
    let table = catalog.table("airlines").expect("it is in the schema");
    for carrier in ["UA", "ZZ"] {
        let position = table.partitioning.position(&[Value::text(carrier)]);
        assert_eq!(ranges(Value::text(carrier)), [KeyRange::point(position)]);
    }
    assert_eq!(ranges(Value::Null), []);
}

#[test]
fn session_values_are_those_of_each_binding() {
    let catalog = catalog("CREATE TABLE t (u uuid DEFAULT gen_random_uuid(), at timestamptz DEFAULT now())");
    let (_, execution) =
        bind_one(&catalog, "INSERT INTO t VALUES (DEFAULT), (DEFAULT)", &[]).expect("it binds");
    let Execution::Request(request) = execution else { panic!("rows are inserted by a message") };
    let Body::Data(Data { operation, fallible, .. }) = &request.body else { panic!("an insert is data") };
    assert!(!fallible, "without a key nothing can fail");
    let OperationKind::Insert(insert) = &operation.open().expect("it is open").kind else {
        panic!("an insert")
    };
    let carousel_engine::operation::InsertRows::Inline(rows) = &insert.rows else {
        panic!("two rows are few")
    };
    let cell = |row, column: usize, ty: &Type| {
        carousel_engine::array::arrow_cell_to_value(rows.rows.column(column), row, ty)
    };
    assert_ne!(cell(0, 0, &Type::Uuid), cell(1, 0, &Type::Uuid), "a default is evaluated for each row");
    assert_eq!(cell(1, 1, &Type::TimestampTz), Value::TimestampTz(NOW));
    assert_ne!(cell(0, 2, &Type::Int8), cell(1, 2, &Type::Int8), "rows without a key are told apart");
}

/// Wherever it is named: a default is the same on any other day.
#[test]
fn a_default_is_of_the_day_on_which_it_was_given() {
    let schema = "CREATE TABLE t (
        a timestamp DEFAULT greatest(timestamp '2000-01-01', '10:00 today'),
        b timestamp DEFAULT greatest(timestamp '2000-01-01', 'today 10:00'),
        c date DEFAULT greatest(date '2000-01-01', '(today)'))";
    let catalog = catalog(schema);
    let table = catalog.table("t").expect("it is in the schema");
    for column in &table.columns[..3] {
        let default = format!("{:?}", column.default);
        assert!(default.contains("2013-07-04") && !default.contains("today"), "{default}");
    }
}

#[test]
fn arguments_of_execute_are_of_the_parameters_types() {
    let planned =
        plan_one(&catalog(""), "EXECUTE p (1 + 1, '2013-01-01', now())").expect("it can be planned");
    let Plan::Execute { name, arguments } = planned.plan else { panic!("EXECUTE") };
    assert_eq!(name, "p");
    let evaluate = |types: &[Type]| {
        carousel_planner::bind::evaluate_arguments(&arguments, types, &settings(), &mut Counter::default())
    };
    let found = evaluate(&[Type::Int8, Type::Date, Type::TimestampTz]).expect("they can be stored");
    assert_eq!(found, [Value::Int8(2), Value::Date(15_706), Value::TimestampTz(NOW)]);
    let error = evaluate(&[Type::Bool, Type::Date, Type::TimestampTz]).expect_err("an integer is no boolean");
    assert_eq!(error.message, "parameter $1 of type integer cannot be coerced to the expected type boolean");
}
