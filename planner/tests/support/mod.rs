//! A catalog to plan against, and outcomes as text.

use carousel_cluster::{
    catalog::Catalog,
    message::{Body, ProcessId},
};
use carousel_engine::{
    SqlError, Ts, Type, Value, array::arrow_cell_to_value, error::Result, position::KeyRange,
    text::format_value,
};
use carousel_planner::{Execution, IdSource, Planned, Settings, bind, parse, plan};

/// Identifiers that count up from 1.
#[derive(Default)]
pub struct Counter(pub u64);

impl IdSource for Counter {
    fn row_id(&mut self) -> i64 {
        self.0 += 1;
        self.0 as i64
    }

    fn uuid(&mut self) -> [u8; 16] {
        self.0 += 1;
        u128::from(self.0).to_be_bytes()
    }

    fn random(&mut self) -> f64 {
        0.25
    }
}

/// 2013-07-04 12:00:00 UTC.
pub const NOW: i64 = 1_372_939_200_000_000;

pub fn settings() -> Settings {
    Settings {
        time_zone: "UTC".into(),
        user: "alice".into(),
        database: "carousel".into(),
        transaction_timestamp: NOW,
        statement_timestamp: NOW + 1,
        backend_pid: 4711,
        ..Settings::default()
    }
}

/// A catalog with the tables that these statements create.
pub fn catalog(schema: &str) -> Catalog {
    let mut catalog = Catalog::default();
    for statement in parse(schema).expect("the schema parses") {
        let planned = plan(&statement, &catalog, &settings(), &[]).expect("the schema can be planned");
        let execution = bind(&planned.plan, &[], &settings(), &mut Counter::default()).expect("and bound");
        let Execution::Request(request) = execution else { panic!("a table is made by a message") };
        let Body::Ddl(ddl) = request.body else { panic!("by a DDL message") };
        let ts = Ts(catalog.version().0 + 1);
        catalog.apply(ts, &ddl).expect("tables have different names");
    }
    catalog
}

/// Plans one statement.
pub fn plan_one(catalog: &Catalog, sql: &str) -> Result<Planned> {
    let statements = parse(sql)?;
    plan(&statements[0], catalog, &settings(), &[])
}

/// Plans and binds one statement.
pub fn bind_one(catalog: &Catalog, sql: &str, parameters: &[Value]) -> Result<(Planned, Execution)> {
    let planned = plan_one(catalog, sql)?;
    let execution = bind(&planned.plan, parameters, &settings(), &mut Counter::default())?;
    Ok((planned, execution))
}

/// The lines of EXPLAIN, over a ring of four equal parts on four storage processes with one further copy each.
pub fn explain(catalog: &Catalog, sql: &str, parameters: &[Value]) -> String {
    let lines = plan_one(catalog, sql).and_then(|planned| {
        let destinations = |ranges: &[KeyRange], writes: bool| {
            let mut processes = Vec::new();
            for part in 0..4u32 {
                let first = u64::from(part) << 62;
                let held = KeyRange::new(first, first + (u64::MAX >> 2));
                if ranges.iter().any(|r| r.overlaps(&held)) {
                    processes.push(ProcessId::storage(part + 1));
                    if writes {
                        processes.push(ProcessId::storage((part + 1) % 4 + 1));
                    }
                }
            }
            processes.sort_unstable();
            processes.dedup();
            processes
        };
        carousel_planner::explain(
            &planned.plan,
            parameters,
            &settings(),
            &mut Counter::default(),
            &destinations,
        )
    });
    lines.map_or_else(|e| error_lines(&e).join("\n"), |lines| lines.join("\n"))
}

/// An error as lines of text.
pub fn error_lines(error: &SqlError) -> Vec<String> {
    let position = error.position.map_or("-".to_owned(), |p| p.to_string());
    let mut lines = vec![format!("error {} at {position}: {}", error.code.as_str(), error.message)];
    lines.extend(error.detail.iter().map(|d| format!("detail: {d}")));
    lines.extend(error.hint.iter().map(|h| format!("hint: {h}")));
    lines
}

fn type_name(ty: &Type) -> String {
    match ty {
        Type::Bool => "bool".into(),
        Type::Int2 => "int2".into(),
        Type::Int4 => "int4".into(),
        Type::Int8 => "int8".into(),
        Type::Float4 => "float4".into(),
        Type::Float8 => "float8".into(),
        Type::Varchar(_) => "varchar".into(),
        Type::Char(_) => "bpchar".into(),
        Type::Time => "time".into(),
        Type::Timestamp => "timestamp".into(),
        Type::TimestampTz => "timestamptz".into(),
        other => other.without_modifiers().to_string(),
    }
}

/// What a statement leads to, as lines of text: an error, its output columns, and rows when no message is needed.
pub fn outcome(catalog: &Catalog, sql: &str) -> Vec<String> {
    let run = || -> Result<Vec<String>> {
        let planned = plan_one(catalog, sql)?;
        let mut lines = Vec::new();
        if let Some(columns) = &planned.output {
            let columns: Vec<String> =
                columns.iter().map(|c| format!("{} {}", c.name, type_name(&c.ty))).collect();
            lines.push(format!("columns: {}", columns.join(", ")));
        }
        if planned.plan.is_bindable() {
            let parameters = vec![Value::Null; planned.parameter_types.len()];
            let execution = bind(&planned.plan, &parameters, &settings(), &mut Counter::default())?;
            if let (Execution::Rows(batches), Some(columns)) = (execution, &planned.output) {
                let context = settings().eval_context();
                for batch in &batches {
                    for row in 0..batch.num_rows() {
                        let cells = batch.columns().iter().zip(columns).map(|(array, column)| {
                            match arrow_cell_to_value(array, row, &column.ty) {
                                Value::Null => "NULL".to_owned(),
                                value => format_value(&value, &column.ty, &context),
                            }
                        });
                        lines.push(format!("row: {}", cells.collect::<Vec<_>>().join("|")));
                    }
                }
            }
        }
        if lines.is_empty() {
            lines.push("done".into());
        }
        Ok(lines)
    };
    run().unwrap_or_else(|error| error_lines(&error))
}
