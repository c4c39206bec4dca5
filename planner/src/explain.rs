//! EXPLAIN: the message, its destination set, and what runs above the scan.

use carousel_cluster::message::{Body, Data, Ddl, ProcessId};
use carousel_engine::{
    TableSchema, Value,
    error::Result,
    expr::{EvalContext, Expr},
    indexable,
    operation::{InsertRows, OnConflict, OperationKind, ReadOutput},
    position::KeyRange,
    schema::Column,
};

use crate::{
    above::Above,
    bind::{Execution, Request, bind},
    display::Printer,
    plan::{Plan, Source},
    relational::explain_relational,
    settings::{IdSource, Settings},
};

/// How many key ranges are written out.
const MAX_RANGES: usize = 4;

/// Describes the bound plan, one line an element, for the column `QUERY PLAN`.
///
/// `destinations` gives the destination set of a message over some key ranges; the flag says whether it writes.
pub fn explain(
    plan: &Plan,
    parameters: &[Value],
    settings: &Settings,
    ids: &mut dyn IdSource,
    destinations: &dyn Fn(&[KeyRange], bool) -> Vec<ProcessId>,
) -> Result<Vec<String>> {
    let plan = match plan {
        Plan::Explain(inner) => inner,
        plan => plan,
    };
    let execution = bind(plan, parameters, settings, ids)?;
    let mut lines = Lines { lines: Vec::new(), depth: 0 };
    let context = settings.eval_context();
    match execution {
        Execution::Rows(batches) => {
            let rows: usize = batches.iter().map(|b| b.num_rows()).sum();
            lines.node("Result");
            lines.detail(format!("Rows: {rows}, computed without a message"));
        }
        Execution::Relational(relational) => {
            let (plan, reads) = explain_relational(&relational)?;
            lines.lines.extend(plan);
            for (table, read) in reads {
                let mut of_read = Lines { lines: Vec::new(), depth: 0 };
                message(&mut of_read, (&read.body, &read.ranges), Some(&table), &context, destinations);
                lines.lines.extend(of_read.lines);
            }
        }
        Execution::Request(request) => {
            let request = *request;
            let table = table_of(plan);
            above(&mut lines, &request.above, table, &request, &context);
            message(&mut lines, (&request.body, &request.ranges), table, &context, destinations);
        }
    }
    Ok(lines.lines)
}

/// A tree in the form of PostgreSQL's.
struct Lines {
    lines: Vec<String>,
    depth: usize,
}

impl Lines {
    /// A node below the last one.
    fn node(&mut self, text: impl Into<String>) {
        let text: String = text.into();
        let line = match self.depth {
            0 => text,
            depth => format!("{}->  {text}", " ".repeat(depth * 6 - 4)),
        };
        self.lines.push(line);
        self.depth += 1;
    }

    /// A property of the last node.
    fn detail(&mut self, text: impl AsRef<str>) {
        let indent = (self.depth - 1) * 6 + 2;
        self.lines.push(format!("{}{}", " ".repeat(indent), text.as_ref()));
    }
}

fn table_of(plan: &Plan) -> Option<&TableSchema> {
    match plan {
        Plan::Query(query) => source_table(&query.source),
        Plan::CopyOut(copy) => table_of(&copy.query),
        Plan::Insert(insert) => Some(&insert.table),
        Plan::Update(update) => Some(&update.table),
        Plan::Delete(delete) => Some(&delete.table),
        Plan::Truncate(table) => Some(table),
        _ => None,
    }
}

fn source_table(source: &Source) -> Option<&TableSchema> {
    match source {
        Source::Table { table, .. } => Some(table),
        Source::Rows { .. } => None,
    }
}

fn column_names(table: Option<&TableSchema>) -> Vec<String> {
    table.map(|t| t.columns.iter().map(|c| c.name.clone()).collect()).unwrap_or_default()
}

/// What the columns that come up from the scan are called.
fn input_names(request: &Request, table: Option<&TableSchema>, context: &EvalContext) -> Vec<String> {
    let names = column_names(table);
    let printer = Printer { names: &names, context };
    let Body::Data(data) = &request.body else { return Vec::new() };
    let returning = |returning: &Option<Vec<Expr>>| {
        returning.iter().flatten().map(|e| printer.expr(e)).collect::<Vec<String>>()
    };
    let Ok(operation) = data.operation.open() else { return Vec::new() };
    match &operation.kind {
        OperationKind::Read(read) => match &read.output {
            ReadOutput::Rows { projection, .. } => projection.iter().map(|e| printer.expr(e)).collect(),
            ReadOutput::Groups { group_by, aggregates, .. } => group_by
                .iter()
                .map(|e| printer.expr(e))
                .chain(aggregates.iter().map(|a| printer.aggregate(a)))
                .collect(),
            ReadOutput::ContentHash => Vec::new(),
        },
        OperationKind::Insert(insert) => {
            std::iter::once("ordinal".to_owned()).chain(returning(&insert.returning)).collect()
        }
        OperationKind::Update(update) => returning(&update.returning),
        OperationKind::Delete(delete) => returning(&delete.returning),
        _ => Vec::new(),
    }
}

fn above(
    lines: &mut Lines,
    above: &Above,
    table: Option<&TableSchema>,
    request: &Request,
    context: &EvalContext,
) {
    let names = input_names(request, table, context);
    let printer = Printer { names: &names, context };
    let plan = above.plan();
    match above.limit_and_offset() {
        (None, 0) => {}
        (limit, offset) => {
            lines.node("Limit");
            if let Some(limit) = limit {
                lines.detail(format!("Rows: {limit}"));
            }
            if offset > 0 {
                lines.detail(format!("Offset: {offset}"));
            }
        }
    }
    if !plan.sort.is_empty() {
        lines.node("Sort");
        lines.detail(format!("Sort Key: {}", printer.sort(&plan.sort, &plan.columns)));
    }
    if plan.distinct {
        lines.node("Unique");
    }
    if plan.groups.is_some() {
        lines.node("Merge Groups");
        lines.detail(format!("Output: {}", printer.list(&plan.columns)));
        if !plan.filter.is_empty() {
            lines.detail(format!("Filter: {}", conjunction(&printer, &plan.filter)));
        }
    }
}

fn conjunction(printer: &Printer<'_>, predicate: &[Expr]) -> String {
    match predicate {
        [only] => printer.expr(only),
        many => many.iter().map(|e| format!("({})", printer.expr(e))).collect::<Vec<_>>().join(" AND "),
    }
}

fn predicate_details(lines: &mut Lines, printer: &Printer<'_>, columns: &[Column], predicate: &[Expr]) {
    let (indexable, residual) = indexable(predicate, columns);
    if !indexable.is_empty() {
        lines.detail(format!("Index Conjuncts: {}", conjunction(printer, &indexable)));
    }
    if !residual.is_empty() {
        lines.detail(format!("Residual Conjuncts: {}", conjunction(printer, &residual)));
    }
}

fn message(
    lines: &mut Lines,
    (body, ranges): (&Body, &[KeyRange]),
    table: Option<&TableSchema>,
    context: &EvalContext,
    destinations: &dyn Fn(&[KeyRange], bool) -> Vec<ProcessId>,
) {
    let names = column_names(table);
    let printer = Printer { names: &names, context };
    let on = table.map_or_else(String::new, |t| format!(" on {}", t.name));
    let mut vote = None;
    let mut writes = true;
    match body {
        Body::Data(Data { operation, fallible, .. }) => {
            vote = Some(*fallible);
            if let Ok(operation) = operation.open() {
                let columns = table.map_or(&[][..], |table| &table.columns);
                operation_details(lines, &printer, columns, &operation.kind, &on);
            }
            writes = operation.is_write();
        }
        Body::Ddl(Ddl::CreateTable { schema, .. }) => lines.node(format!("Create Table {}", schema.name)),
        Body::Ddl(Ddl::DropTables { names, .. }) => lines.node(format!("Drop Table {}", names.join(", "))),
        Body::Pin { .. } => lines.node("Pin"),
        Body::Checkpoint => lines.node("Checkpoint"),
        Body::Configuration(_) => lines.node("Configuration"),
    }
    lines.detail(format!("Key Ranges: {}", ranges_text(ranges)));
    let processes: Vec<String> = destinations(ranges, writes).iter().map(ToString::to_string).collect();
    let none = processes.is_empty() || ranges.is_empty();
    lines.detail(format!("Destination Set: {}", if none { "none".into() } else { processes.join(", ") }));
    if let (true, Some(fallible)) = (writes, vote) {
        let text = if fallible { "yes, it can fail while it runs" } else { "no, it cannot fail" };
        lines.detail(format!("Vote: {text}"));
    }
}

fn operation_details(
    lines: &mut Lines,
    printer: &Printer<'_>,
    columns: &[Column],
    kind: &OperationKind,
    on: &str,
) {
    let returning = |lines: &mut Lines, exprs: &Option<Vec<Expr>>| {
        if let Some(exprs) = exprs {
            lines.detail(format!("Returning: {}", printer.list(exprs)));
        }
    };
    let assignments = |assignments: &[(usize, Expr)]| {
        let texts = assignments.iter().map(|(column, expr)| {
            let name = printer.names.get(*column).cloned().unwrap_or_default();
            format!("{name} = {}", printer.expr(expr))
        });
        texts.collect::<Vec<_>>().join(", ")
    };
    match kind {
        OperationKind::Read(read) => {
            lines.node(format!("Message: Read{on}"));
            match &read.output {
                ReadOutput::Rows { projection, top } => {
                    lines.detail(format!("Output: {}", printer.list(projection)));
                    if let Some(top) = top {
                        lines.detail(format!("Top: {}", top.limit));
                    }
                }
                ReadOutput::Groups { group_by, aggregates, top } => {
                    if !group_by.is_empty() {
                        lines.detail(format!("Group Key: {}", printer.list(group_by)));
                    }
                    if !aggregates.is_empty() {
                        let texts: Vec<String> = aggregates.iter().map(|a| printer.aggregate(a)).collect();
                        lines.detail(format!("Partial Aggregates: {}", texts.join(", ")));
                    }
                    if let Some(top) = top {
                        lines.detail(format!("Top: {}", top.limit));
                    }
                }
                ReadOutput::ContentHash => lines.detail("Output: content hash"),
            }
            predicate_details(lines, printer, columns, &read.predicate);
        }
        OperationKind::Insert(insert) => {
            lines.node(format!("Message: Insert{on}"));
            match &insert.rows {
                InsertRows::Inline(rows) => lines.detail(format!("Rows: {}", rows.ordinals.len())),
                InsertRows::Staged(_) => lines.detail("Rows: staged"),
            }
            match &insert.on_conflict {
                OnConflict::Fail => {}
                OnConflict::Nothing => lines.detail("Conflict Resolution: NOTHING"),
                OnConflict::Update { assignments: set, predicate } => {
                    lines.detail("Conflict Resolution: UPDATE");
                    let excluded = printer.names.iter().map(|n| format!("excluded.{n}"));
                    let both: Vec<String> = printer.names.iter().cloned().chain(excluded).collect();
                    let printer = Printer { names: &both, context: printer.context };
                    let texts = set.iter().map(|(column, expr)| {
                        format!("{} = {}", both.get(*column).cloned().unwrap_or_default(), printer.expr(expr))
                    });
                    lines.detail(format!("Assignments: {}", texts.collect::<Vec<_>>().join(", ")));
                    if !predicate.is_empty() {
                        lines.detail(format!("Conflict Filter: {}", conjunction(&printer, predicate)));
                    }
                }
            }
            returning(lines, &insert.returning);
        }
        OperationKind::Update(update) => {
            lines.node(format!("Message: Update{on}"));
            lines.detail(format!("Assignments: {}", assignments(&update.assignments)));
            predicate_details(lines, printer, columns, &update.predicate);
            returning(lines, &update.returning);
        }
        OperationKind::Delete(delete) => {
            lines.node(format!("Message: Delete{on}"));
            predicate_details(lines, printer, columns, &delete.predicate);
            returning(lines, &delete.returning);
        }
        OperationKind::Truncate => lines.node(format!("Message: Truncate{on}")),
        OperationKind::CreateTable(schema) => lines.node(format!("Message: Create Table {}", schema.name)),
        OperationKind::DropTable => lines.node(format!("Message: Drop Table{on}")),
    }
}

fn ranges_text(ranges: &[KeyRange]) -> String {
    match ranges {
        [] => "none: no row can qualify".into(),
        [only] if *only == KeyRange::FULL => "the whole ring".into(),
        few if few.len() <= MAX_RANGES => few.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
        many => format!("{} and {} more", ranges_text(&many[..MAX_RANGES - 1]), many.len() - MAX_RANGES + 1),
    }
}
