//! INSERT, UPDATE, DELETE and TRUNCATE.

use std::{collections::BTreeSet, ops::ControlFlow, sync::Arc};

use carousel_engine::{
    SqlError, SqlState, TableSchema, Type, Value,
    error::Result,
    expr::{CastContext, CastKind, Expr, cast_allowed},
    operation::OnConflict,
    schema::Column,
};
use sqlparser::ast::{self, Spanned, visit_expressions};

use crate::{
    above::{AbovePlan, Pipeline},
    expression::{self, Clause, Resolver, Term, literal},
    names::{self, Relation, Scope, at, fold},
    parse::{parse_expression, position_of},
    plan::{DeletePlan, InsertPlan, InsertSelectPlan, OutputColumn, Plan, Planned, UpdatePlan},
    rewrite::conjuncts,
    select::{Item, Planner},
    types::plain_name,
    values::lists,
};

type Output = Option<Vec<OutputColumn>>;

fn unsupported<T>(what: &str) -> Result<T> {
    Err(SqlError::unsupported(what))
}

impl Planner<'_> {
    pub(crate) fn insert(&mut self, insert: &ast::Insert) -> Result<(Plan, Output)> {
        let ast::Insert {
            insert_token: _,
            optimizer_hints: _,
            or,
            ignore,
            into: _,
            table,
            table_alias,
            columns,
            overwrite,
            source,
            assignments,
            partitioned,
            after_columns,
            has_table_keyword,
            on,
            returning,
            output,
            replace_into,
            priority,
            insert_alias,
            settings,
            format_clause,
            multi_table_insert_type,
            multi_table_into_clauses,
            multi_table_when_clauses,
            multi_table_else_clause,
        } = insert;
        let foreign = or.is_some()
            || *ignore
            || *overwrite
            || !assignments.is_empty()
            || partitioned.is_some()
            || !after_columns.is_empty()
            || *has_table_keyword
            || output.is_some()
            || *replace_into
            || priority.is_some()
            || insert_alias.is_some()
            || settings.is_some()
            || format_clause.is_some()
            || multi_table_insert_type.is_some()
            || !multi_table_into_clauses.is_empty()
            || !multi_table_when_clauses.is_empty()
            || multi_table_else_clause.is_some();
        if foreign {
            return unsupported("a clause of another database's INSERT");
        }
        let ast::TableObject::TableName(name) = table else { return unsupported("INSERT into a query") };
        let table = self.table(name)?;
        let alias =
            table_alias.as_ref().map(|ast::TableAliasWithoutColumns { explicit: _, alias }| fold(alias));
        let mut target = Relation::new(&table, None)?;
        if let Some(alias) = alias {
            target.name = alias;
            target.is_table_name = false;
        }
        let targets = target_columns(&table, columns)?;
        let selected = match source.as_deref() {
            Some(query) if !is_values(query) => Some(self.insert_source(query, &table, &targets, columns)?),
            _ => None,
        };
        let lists: Vec<&[ast::Expr]> = match source.as_deref() {
            _ if selected.is_some() => Vec::new(),
            None => vec![&[]],
            Some(query) => self.insert_lists(query)?,
        };
        let is_default_values = source.is_none();
        let defaults = (0..table.visible_columns().len()).map(|c| self.default_of(&table, c));
        let defaults = defaults.collect::<Result<Vec<Expr>>>()?;
        let mut rows = Vec::with_capacity(lists.len().max(1));
        if let Some((_, values)) = &selected {
            let mut row = defaults.clone();
            for (value, target) in values.iter().zip(&targets) {
                row[*target] = value.clone();
            }
            rows.push(row);
        }
        for list in lists {
            if let Some(extra) = list.get(targets.len()) {
                return Err(at(
                    SqlError::new(SqlState::SYNTAX_ERROR, "INSERT has more expressions than target columns"),
                    position_of(extra.span()),
                ));
            }
            if let Some(extra) = columns.get(list.len()).filter(|_| !is_default_values) {
                return Err(at(
                    SqlError::new(SqlState::SYNTAX_ERROR, "INSERT has more target columns than expressions"),
                    position_of(extra.span()),
                ));
            }
            let mut row = defaults.clone();
            let scope = Scope::empty();
            for (expr, target) in list.iter().zip(&targets) {
                if is_default(expr) {
                    continue;
                }
                let column = &table.columns[*target];
                let resolved = self.resolve(&scope, Clause::Values, |r| {
                    let term = r.term(expr)?;
                    r.assign(term, &column.ty, &column.name)
                });
                row[*target] = resolved.map_err(|error| names::explain_hidden(error, &table))?;
            }
            rows.push(row);
        }
        let on_conflict = match on {
            None => OnConflict::Fail,
            Some(ast::OnInsert::OnConflict(on_conflict)) => self.on_conflict(&table, &target, on_conflict)?,
            Some(ast::OnInsert::DuplicateKeyUpdate(_)) => return unsupported("ON DUPLICATE KEY UPDATE"),
            Some(_) => return unsupported("this form of ON in INSERT"),
        };
        let scope = Scope::of(vec![target]);
        let (returning, above, output) = self.returning(&scope, returning.as_deref(), true)?;
        let session_values = self.shared.session_values.clone();
        let insert = InsertPlan { table, rows, on_conflict, returning, above, session_values };
        let plan = match selected {
            Some((source, _)) => Plan::InsertSelect(Box::new(InsertSelectPlan { source, insert })),
            None => Plan::Insert(Box::new(insert)),
        };
        Ok((plan, output))
    }

    /// The rows of INSERT's VALUES.
    fn insert_lists<'q>(&mut self, query: &'q ast::Query) -> Result<Vec<&'q [ast::Expr]>> {
        match query.body.as_ref() {
            ast::SetExpr::Values(values) => lists(values, self.source),
            ast::SetExpr::Query(inner) => self.insert_lists(inner),
            _ => Err(SqlError::internal("a query that is no VALUES")),
        }
    }

    /// INSERT's query, and the values of the target columns over its columns.
    fn insert_source(
        &mut self,
        query: &ast::Query,
        table: &TableSchema,
        targets: &[usize],
        columns: &[ast::ObjectName],
    ) -> Result<(Arc<Planned>, Vec<Expr>)> {
        let items = select_list(query);
        // A parameter that is selected as it is, is of the column's type, unless what is read before says otherwise.
        let selected = items.iter().flat_map(|items| items.iter()).zip(targets);
        let selected = selected.filter_map(|(item, target)| {
            Some((value_of(item).and_then(expression::parameter_number)?, *target))
        });
        let selected: Vec<(usize, usize)> = selected.collect();
        if !selected.is_empty() {
            let before = read_before(query);
            for (index, target) in selected {
                if !before.contains(&index) {
                    self.shared.infer_parameter(index, &table.columns[target].ty);
                }
            }
        }
        let (plan, output) = self.any_query(query)?;
        if output.len() > targets.len() {
            let extra =
                items.and_then(|items| items.get(targets.len())).and_then(|item| position_of(item.span()));
            return Err(at(
                SqlError::new(SqlState::SYNTAX_ERROR, "INSERT has more expressions than target columns"),
                extra,
            ));
        }
        if let Some(extra) = columns.get(output.len()) {
            return Err(at(
                SqlError::new(SqlState::SYNTAX_ERROR, "INSERT has more target columns than expressions"),
                position_of(extra.span()),
            ));
        }
        let scope = Scope::empty();
        let mut values = Vec::with_capacity(output.len());
        for (index, (column, target)) in output.iter().zip(targets).enumerate() {
            let Column { name, ty, .. } = &table.columns[*target];
            let value = Expr::column(index, column.ty.clone());
            let item = items.and_then(|items| items.get(index));
            // A quoted literal or NULL is of whatever type is wanted.
            let literal = item.is_some_and(is_untyped) && cast_allowed(&column.ty, ty).is_some();
            values.push(if literal && column.ty != *ty {
                Expr::Cast { expr: Box::new(value), to: ty.clone(), kind: CastKind::Assignment }
            } else {
                let position = item.and_then(|item| position_of(item.span()));
                self.resolve(&scope, Clause::Values, |r| r.assign(Term::known(value, position), ty, name))?
            });
        }
        let source =
            Planned { plan, parameter_types: Vec::new(), output: Some(output), tables: self.tables.clone() };
        Ok((Arc::new(source), values))
    }

    /// The default of a column, of the column's type.
    pub(crate) fn default_of(&mut self, table: &TableSchema, column: usize) -> Result<Expr> {
        let Column { name, ty, not_null: _, default } = &table.columns[column];
        match default {
            None => Ok(literal(Value::Null, ty.clone())),
            Some(text) => self.default_expression(text, ty, name).map_err(|e| e.without_position()),
        }
    }

    /// DEFAULT's text as an expression of the column's type.
    pub(crate) fn default_expression(&mut self, text: &str, ty: &Type, column: &str) -> Result<Expr> {
        let (source, expression) = parse_expression(text)?;
        let (scope, mut aggregates) = (Scope::empty(), Vec::new());
        let mut resolver =
            Resolver::new(&source, &scope, self.settings, &mut self.shared, &mut aggregates, Clause::Default);
        let term = resolver.term(&expression)?;
        resolver.assign(term, ty, column)
    }

    fn on_conflict(
        &mut self,
        table: &Arc<TableSchema>,
        target: &Relation,
        on_conflict: &ast::OnConflict,
    ) -> Result<OnConflict> {
        let ast::OnConflict { conflict_target, action } = on_conflict;
        match conflict_target {
            None => {}
            Some(ast::ConflictTarget::Columns(columns)) => {
                let mut named = Vec::new();
                for ident in columns {
                    let name = fold(ident);
                    let column = table.column(&name).ok_or_else(|| {
                        let message = format!("column \"{name}\" does not exist");
                        let mut error = SqlError::new(SqlState::UNDEFINED_COLUMN, message);
                        error.hint = names::similar_columns(&name, &[target]);
                        at(error, self.source.operator_before(ident.span, "("))
                    })?;
                    if !named.contains(&column) {
                        named.push(column);
                    }
                }
                let mut key = table.primary_key.clone();
                named.sort_unstable();
                key.sort_unstable();
                if key.is_empty() || named != key {
                    return Err(SqlError::new(
                        SqlState::INVALID_COLUMN_REFERENCE,
                        "there is no unique or exclusion constraint matching the ON CONFLICT specification",
                    ));
                }
            }
            Some(ast::ConflictTarget::OnConstraint(name)) => {
                let parts = names::parts(name)?;
                let known = matches!(parts.as_slice(), [one] if *one == table.primary_key_name);
                if !known || table.primary_key.is_empty() {
                    return Err(SqlError::new(
                        SqlState::UNDEFINED_OBJECT,
                        format!(
                            "constraint \"{}\" for table \"{}\" does not exist",
                            parts.join("."),
                            table.name
                        ),
                    ));
                }
            }
        }
        let update = match action {
            ast::OnConflictAction::DoNothing if table.primary_key.is_empty() => return Ok(OnConflict::Fail),
            ast::OnConflictAction::DoNothing => return Ok(OnConflict::Nothing),
            ast::OnConflictAction::DoUpdate(update) => update,
        };
        if conflict_target.is_none() {
            return Err(SqlError::new(
                SqlState::SYNTAX_ERROR,
                "ON CONFLICT DO UPDATE requires inference specification or constraint name",
            )
            .with_hint("For example, ON CONFLICT (column_name)."));
        }
        let ast::DoUpdate { assignments, selection } = update;
        let mut excluded = Relation::new(table, None)?;
        excluded.name = "excluded".into();
        excluded.is_table_name = false;
        let scope = Scope::of(vec![target.clone(), excluded.shifted(table.columns.len())]);
        let assignments = self.assignments(table, &scope, assignments)?;
        let predicate = match selection {
            None => Vec::new(),
            Some(condition) => {
                conjuncts(self.resolve(&scope, Clause::Where, |r| r.boolean(condition, "WHERE"))?)
            }
        };
        Ok(OnConflict::Update { assignments, predicate })
    }

    /// The assignments of SET, each to the column's type.
    fn assignments(
        &mut self,
        table: &Arc<TableSchema>,
        scope: &Scope,
        assignments: &[ast::Assignment],
    ) -> Result<Vec<(usize, Expr)>> {
        let mut assigned: Vec<(usize, Expr)> = Vec::new();
        for ast::Assignment { target, value } in assignments {
            let pairs: Vec<(&ast::ObjectName, &ast::Expr)> = match (target, value) {
                (ast::AssignmentTarget::ColumnName(name), value) => vec![(name, value)],
                (ast::AssignmentTarget::Tuple(names), ast::Expr::Tuple(values)) => {
                    if names.len() != values.len() {
                        return Err(at(
                            SqlError::new(
                                SqlState::SYNTAX_ERROR,
                                "number of columns does not match number of values",
                            ),
                            self.source.operator_before(value.span(), "("),
                        ));
                    }
                    names.iter().zip(values).collect()
                }
                (ast::AssignmentTarget::Tuple(names), ast::Expr::Nested(value)) if names.len() == 1 => {
                    vec![(&names[0], value)]
                }
                (ast::AssignmentTarget::Tuple(_), ast::Expr::Subquery(_)) => {
                    return unsupported("a subquery");
                }
                (ast::AssignmentTarget::Tuple(_), value) => {
                    return Err(at(
                        SqlError::unsupported(
                            "a multiple-column assignment from anything but a list of expressions",
                        ),
                        position_of(value.span()),
                    ));
                }
            };
            for (name, value) in pairs {
                let index = target_column(table, name)?;
                let column = &table.columns[index];
                let position = position_of(name.span());
                if assigned.iter().any(|(i, _)| *i == index) {
                    return Err(SqlError::new(
                        SqlState::SYNTAX_ERROR,
                        format!("multiple assignments to same column \"{}\"", column.name),
                    ));
                }
                if table.primary_key.contains(&index) {
                    let what = format!("an update of the primary key column \"{}\"", column.name);
                    return Err(at(SqlError::unsupported(what), position));
                }
                if table.partitioning.columns().contains(&index) {
                    let what = format!("an update of the partitioning column \"{}\"", column.name);
                    return Err(at(SqlError::unsupported(what), position));
                }
                let expr = if is_default(value) {
                    let default = self.default_of(table, index)?;
                    if expression::is_volatile(&default, &self.shared.session_values) {
                        return Err(at(expression::random_for_each_row(), position_of(value.span())));
                    }
                    default
                } else {
                    self.resolve(scope, Clause::Update, |r| {
                        let term = r.term(value)?;
                        r.assign(term, &column.ty, &column.name)
                    })?
                };
                assigned.push((index, expr));
            }
        }
        Ok(assigned)
    }

    /// RETURNING: its expressions, what runs above, and the output columns.
    fn returning(
        &mut self,
        scope: &Scope,
        returning: Option<&[ast::SelectItem]>,
        ordinal: bool,
    ) -> Result<(Option<Vec<Expr>>, Arc<Pipeline>, Output)> {
        let Some(list) = returning else { return Ok((None, Pipeline::new(AbovePlan::nothing()), None)) };
        let items = self.items(scope, list, Clause::Returning, &mut Vec::new())?;
        let columns: Vec<OutputColumn> = items.iter().map(Item::column).collect();
        let exprs: Vec<Expr> = items.into_iter().map(|i| i.expr).collect();
        Ok((Some(exprs), Pipeline::new(AbovePlan::returning(&columns, ordinal)), Some(columns)))
    }

    pub(crate) fn update(&mut self, update: &ast::Update) -> Result<(Plan, Output)> {
        let ast::Update {
            update_token: _,
            optimizer_hints: _,
            table,
            assignments,
            from,
            selection,
            returning,
            output,
            or,
            order_by,
            limit,
        } = update;
        if from.is_some() {
            return unsupported("UPDATE … FROM");
        }
        if output.is_some() || or.is_some() || !order_by.is_empty() || limit.is_some() {
            return unsupported("a clause of another database's UPDATE");
        }
        let (table, scope) = self.relation(table)?;
        let assignments = self.assignments(&table, &scope, assignments)?;
        let predicate = self.predicate(&scope, selection.as_ref())?;
        let (returning, above, output) = self.returning(&scope, returning.as_deref(), false)?;
        let session_values = self.shared.session_values.clone();
        let plan = UpdatePlan { table, predicate, assignments, returning, above, session_values };
        Ok((Plan::Update(Box::new(plan)), output))
    }

    pub(crate) fn delete(&mut self, delete: &ast::Delete) -> Result<(Plan, Output)> {
        let ast::Delete {
            delete_token: _,
            optimizer_hints: _,
            tables,
            from,
            using,
            selection,
            returning,
            output,
            order_by,
            limit,
        } = delete;
        if using.is_some() {
            return unsupported("DELETE … USING");
        }
        if !tables.is_empty() || output.is_some() || !order_by.is_empty() || limit.is_some() {
            return unsupported("a clause of another database's DELETE");
        }
        let (ast::FromTable::WithFromKeyword(from) | ast::FromTable::WithoutKeyword(from)) = from;
        let [from] = from.as_slice() else { return unsupported("DELETE from several tables") };
        let (table, scope) = self.relation(from)?;
        let predicate = self.predicate(&scope, selection.as_ref())?;
        let (returning, above, output) = self.returning(&scope, returning.as_deref(), false)?;
        let session_values = self.shared.session_values.clone();
        let plan = DeletePlan { table, predicate, returning, above, session_values };
        Ok((Plan::Delete(Box::new(plan)), output))
    }

    pub(crate) fn truncate(&mut self, truncate: &ast::Truncate) -> Result<Plan> {
        // Nothing depends on a table and no column has a sequence: CASCADE and RESTART IDENTITY change nothing.
        let ast::Truncate {
            table_names,
            partitions,
            table: _,
            if_exists,
            identity: _,
            cascade: _,
            on_cluster,
        } = truncate;
        if partitions.is_some() || *if_exists || on_cluster.is_some() {
            return unsupported("a clause of another database's TRUNCATE");
        }
        let mut tables: Vec<Arc<TableSchema>> = Vec::new();
        for ast::TruncateTableTarget { name, only: _, has_asterisk: _ } in table_names {
            let table = self.table(name).map_err(|e| e.without_position())?;
            if tables.iter().all(|before| before.id != table.id) {
                tables.push(table);
            }
        }
        match tables.as_slice() {
            [table] => Ok(Plan::Truncate(table.clone())),
            _ => unsupported("TRUNCATE of several tables"),
        }
    }
}

/// Checks that a default can be stored: 42804 in the words of CREATE TABLE.
pub(crate) fn check_default(column: &str, ty: &Type, from: &Type) -> Result<()> {
    match cast_allowed(from, ty) {
        Some(CastContext::Implicit | CastContext::Assignment) => Ok(()),
        _ if from == ty => Ok(()),
        _ => Err(SqlError::new(
            SqlState::DATATYPE_MISMATCH,
            format!(
                "column \"{column}\" is of type {} but default expression is of type {}",
                plain_name(ty),
                plain_name(from)
            ),
        )
        .with_hint("You will need to rewrite or cast the expression.")),
    }
}

/// Whether INSERT's query is VALUES alone, which may hold DEFAULT.
fn is_values(query: &ast::Query) -> bool {
    let plain = query.with.is_none()
        && query.order_by.is_none()
        && query.limit_clause.is_none()
        && query.fetch.is_none()
        && query.locks.is_empty();
    plain
        && match query.body.as_ref() {
            ast::SetExpr::Values(_) => true,
            ast::SetExpr::Query(inner) => is_values(inner),
            _ => false,
        }
}

/// The items of a query's select list, when each is one column.
fn select_list(query: &ast::Query) -> Option<&[ast::SelectItem]> {
    let ast::SetExpr::Select(select) = query.body.as_ref() else { return None };
    let one = |item: &ast::SelectItem| {
        matches!(item, ast::SelectItem::UnnamedExpr(_) | ast::SelectItem::ExprWithAlias { .. })
    };
    select.projection.iter().all(one).then_some(select.projection.as_slice())
}

/// A literal or parameter that is selected as it is.
fn value_of(item: &ast::SelectItem) -> Option<&ast::Value> {
    match item {
        ast::SelectItem::UnnamedExpr(ast::Expr::Value(value))
        | ast::SelectItem::ExprWithAlias { expr: ast::Expr::Value(value), .. } => Some(&value.value),
        _ => None,
    }
}

/// The parameters in WITH and FROM.
fn read_before(query: &ast::Query) -> BTreeSet<usize> {
    let mut read = BTreeSet::new();
    let mut note = |expr: &ast::Expr| {
        if let ast::Expr::Value(value) = expr {
            read.extend(expression::parameter_number(&value.value));
        }
        ControlFlow::<()>::Continue(())
    };
    let _ = visit_expressions(&query.with, &mut note);
    if let ast::SetExpr::Select(select) = query.body.as_ref() {
        let _ = visit_expressions(&select.from, &mut note);
    }
    read
}

/// A quoted literal or NULL.
fn is_untyped(item: &ast::SelectItem) -> bool {
    value_of(item)
        .is_some_and(|value| matches!(value, ast::Value::Null) || expression::quoted(value).is_some())
}

fn is_default(expr: &ast::Expr) -> bool {
    matches!(expr, ast::Expr::Identifier(ident) if ident.quote_style.is_none() && ident.value.eq_ignore_ascii_case("default"))
}

/// The column that a statement stores into: 42703 in PostgreSQL's words.
fn target_column(table: &TableSchema, name: &ast::ObjectName) -> Result<usize> {
    let parts = names::parts(name)?;
    let column = parts.first().map(String::as_str).unwrap_or_default();
    let missing = || {
        at(
            SqlError::new(
                SqlState::UNDEFINED_COLUMN,
                format!("column \"{column}\" of relation \"{}\" does not exist", table.name),
            ),
            position_of(name.span()),
        )
    };
    match (table.column(column), parts.len()) {
        (Some(index), 1) => Ok(index),
        (Some(_), _) => Err(at(SqlError::unsupported("a field of a column"), position_of(name.span()))),
        (None, _) => Err(missing()),
    }
}

/// The columns that INSERT fills, in the order of its values; all visible ones when none are named.
pub(crate) fn target_columns(table: &TableSchema, columns: &[ast::ObjectName]) -> Result<Vec<usize>> {
    if columns.is_empty() {
        return Ok((0..table.visible_columns().len()).collect());
    }
    let mut targets = Vec::with_capacity(columns.len());
    for name in columns {
        let index = target_column(table, name)?;
        if targets.contains(&index) {
            return Err(at(
                SqlError::new(
                    SqlState::DUPLICATE_COLUMN,
                    format!("column \"{}\" specified more than once", table.columns[index].name),
                ),
                position_of(name.span()),
            ));
        }
        targets.push(index);
    }
    Ok(targets)
}
