//! SELECT, VALUES and TABLE over one table or none.

use std::sync::Arc;

use carousel_cluster::catalog::Catalog;
use carousel_engine::{
    SqlError, SqlState, TableId, TableSchema, Ts, Type, Value,
    aggregate::AggregateCall,
    error::Result,
    expr::{ArgType, CastKind, Expr, columns, walk},
    operation::{ReadOutput, SortKey},
};
use sqlparser::ast::{self, Spanned};

use crate::{
    above::{AbovePlan, Pipeline},
    expression::{AGGREGATES, Clause, Resolver, Shared, TermKind, WINDOWS, literal},
    literals::written_number,
    names::{self, Scope, ScopeColumn, at, fold},
    parse::{Source as Text, position_of},
    plan::{OutputColumn, QueryPlan, Source},
    rewrite::{conjuncts, rewrite},
    settings::Settings,
    titles::title,
    types::plain_name,
};

/// The most columns that a select list has in PostgreSQL.
const MAX_ITEMS: usize = 1664;

/// 54011 for a select list that is too wide.
pub(crate) fn check_width(entries: usize) -> Result<()> {
    if entries <= MAX_ITEMS {
        return Ok(());
    }
    let message = format!("target lists can have at most {MAX_ITEMS} entries");
    Err(SqlError::new(SqlState(*b"54011"), message))
}

/// Plans the parts of one statement.
pub(crate) struct Planner<'a> {
    pub(crate) source: &'a Text,
    pub(crate) catalog: &'a Catalog,
    pub(crate) settings: &'a Settings,
    pub(crate) shared: Shared,
    /// The tables that the statement names.
    pub(crate) tables: Vec<(TableId, Ts)>,
}

/// An item of a select list or of RETURNING.
#[derive(Clone, Debug)]
pub(crate) struct Item {
    pub(crate) name: String,
    pub(crate) expr: Expr,
    pub(crate) origin: Option<(TableId, usize)>,
    /// Columns it refers to outside of aggregates.
    pub(crate) references: Vec<(usize, Option<u32>)>,
    pub(crate) position: Option<u32>,
    /// The literal without a type that it is.
    pub(crate) unknown: Option<TermKind>,
}

impl Item {
    pub(crate) fn column(&self) -> OutputColumn {
        OutputColumn { name: self.name.clone(), ty: self.expr.ty(), origin: self.origin }
    }
}

/// A resolved expression with the columns it refers to outside of aggregates.
pub(crate) struct Resolved {
    pub(crate) expr: Expr,
    pub(crate) references: Vec<(usize, Option<u32>)>,
}

/// What may stand behind a name in FROM, and a function's arguments: an alias, and WITH ORDINALITY of a function. Error: 0A000 for
/// anything else.
pub(crate) fn check_factor(relation: &ast::TableFactor) -> Result<()> {
    let ast::TableFactor::Table {
        name: _,
        alias: _,
        args,
        with_hints,
        version,
        with_ordinality,
        partitions,
        json_path,
        sample,
        index_hints,
    } = relation
    else {
        return Ok(());
    };
    let foreign = !with_hints.is_empty()
        || version.is_some()
        || *with_ordinality && args.is_none()
        || !partitions.is_empty()
        || json_path.is_some()
        || !index_hints.is_empty();
    let what = match foreign {
        _ if sample.is_some() => "TABLESAMPLE",
        true => "this clause of a table in FROM",
        false => return Ok(()),
    };
    Err(at(SqlError::unsupported(what), position_of(relation.span())))
}

pub(crate) fn unsupported<T>(what: &str) -> Result<T> {
    Err(SqlError::unsupported(what))
}

impl<'a> Planner<'a> {
    /// A table by name, noted as one that the statement names.
    pub(crate) fn table(&mut self, name: &ast::ObjectName) -> Result<Arc<TableSchema>> {
        let table = names::table(self.catalog, name)?.clone();
        self.note(&table);
        Ok(table)
    }

    pub(crate) fn note(&mut self, table: &TableSchema) {
        let named = (table.id, table.version);
        if !self.tables.contains(&named) {
            self.tables.push(named);
        }
    }

    /// Resolves with a resolver for a clause without aggregates.
    pub(crate) fn resolve<T>(
        &mut self,
        scope: &Scope,
        clause: Clause,
        work: impl FnOnce(&mut Resolver<'_>) -> Result<T>,
    ) -> Result<T> {
        let mut aggregates = Vec::new();
        work(&mut Resolver::new(self.source, scope, self.settings, &mut self.shared, &mut aggregates, clause))
    }

    /// WHERE as a conjunction.
    pub(crate) fn predicate(&mut self, scope: &Scope, condition: Option<&ast::Expr>) -> Result<Vec<Expr>> {
        let Some(condition) = condition else { return Ok(Vec::new()) };
        let condition = self.resolve(scope, Clause::Where, |r| r.boolean(condition, "WHERE"))?;
        Ok(conjuncts(condition))
    }

    /// HAVING, with the aggregates that it adds to those of the query.
    pub(crate) fn having(
        &mut self,
        scope: &Scope,
        condition: Option<&ast::Expr>,
        aggregates: &mut Vec<AggregateCall>,
    ) -> Result<Option<Resolved>> {
        let Some(condition) = condition else { return Ok(None) };
        let mut resolver =
            Resolver::new(self.source, scope, self.settings, &mut self.shared, aggregates, Clause::Having);
        let expr = resolver.boolean(condition, "HAVING")?;
        Ok(Some(Resolved { expr, references: std::mem::take(&mut resolver.references) }))
    }

    /// A query with its output columns.
    pub(crate) fn query(&mut self, query: &ast::Query) -> Result<(QueryPlan, Vec<OutputColumn>)> {
        let ast::Query {
            with,
            body,
            order_by,
            limit_clause,
            fetch,
            locks,
            for_clause,
            settings,
            format_clause,
            pipe_operators,
        } = query;
        if let Some(with) = with {
            return Err(at(
                SqlError::unsupported("WITH (a common table expression)"),
                position_of(with.span()),
            ));
        }
        if !locks.is_empty() {
            return unsupported("FOR UPDATE and FOR SHARE");
        }
        if for_clause.is_some() || settings.is_some() || format_clause.is_some() || !pipe_operators.is_empty()
        {
            return unsupported("a clause of another database's SELECT");
        }
        let limits = self.limits(limit_clause.as_ref(), fetch.as_ref())?;
        match body.as_ref() {
            ast::SetExpr::Select(select) => self.select(select, order_by.as_ref(), limits),
            ast::SetExpr::Values(values) => self.values(values, order_by.as_ref(), limits),
            ast::SetExpr::Table(table) => {
                let ast::Table { table_name, schema_name } = table.as_ref();
                let idents = schema_name.iter().chain(table_name).map(ast::Ident::new);
                let name = ast::ObjectName::from(idents.collect::<Vec<_>>());
                let table = self.table(&name)?;
                let scope = Scope::table(&table, None)?;
                let items = expand(&scope, None);
                self.lower(&table, Vec::new(), &scope, items, Shape::default(), order_by.as_ref(), limits)
            }
            ast::SetExpr::Query(inner) => {
                if order_by.is_some() || limits.0.is_some() || limits.1.is_some() {
                    return unsupported("ORDER BY or LIMIT on a parenthesised query");
                }
                self.query(inner)
            }
            ast::SetExpr::SetOperation { op, .. } => unsupported(&op.to_string()),
            ast::SetExpr::Insert(_)
            | ast::SetExpr::Update(_)
            | ast::SetExpr::Delete(_)
            | ast::SetExpr::Merge(_) => unsupported("a data-modifying statement inside a query"),
        }
    }

    /// LIMIT and OFFSET.
    pub(crate) fn limits(
        &mut self,
        clause: Option<&ast::LimitClause>,
        fetch: Option<&ast::Fetch>,
    ) -> Result<(Option<Expr>, Option<Expr>)> {
        let (mut limit, offset) = match clause {
            None => (None, None),
            Some(ast::LimitClause::LimitOffset { limit, offset, limit_by }) => {
                if !limit_by.is_empty() {
                    return unsupported("LIMIT BY");
                }
                (limit.as_ref(), offset.as_ref().map(|ast::Offset { value, rows: _ }| value))
            }
            Some(ast::LimitClause::OffsetCommaLimit { .. }) => return unsupported("LIMIT #,#"),
        };
        let one = ast::Expr::value(ast::Value::Number("1".into(), false));
        if let Some(ast::Fetch { with_ties, percent, quantity }) = fetch {
            if *with_ties {
                return unsupported("FETCH FIRST … WITH TIES");
            }
            if *percent {
                return unsupported("FETCH FIRST … PERCENT");
            }
            limit = Some(quantity.as_ref().unwrap_or(&one));
        }
        let limit = limit.map(|e| self.count(e, "LIMIT")).transpose()?;
        let offset = offset.map(|e| self.count(e, "OFFSET")).transpose()?;
        Ok((limit, offset))
    }

    fn count(&mut self, expr: &ast::Expr, clause: &str) -> Result<Expr> {
        let scope = Scope::empty();
        let term = self.resolve(&scope, Clause::Limit, |r| {
            let term = r.term(expr)?;
            Ok(match term.arg_type() {
                ArgType::Unknown => Ok(r.coerce(term, &Type::Int8)?),
                ArgType::Known(_) => Err((r.settle(term.clone())?, term.position)),
            })
        });
        let term = term.map_err(|e| match e.code {
            SqlState::UNDEFINED_COLUMN => {
                let mut e = e.with_message(format!("argument of {clause} must not contain variables"));
                (e.code, e.hint) = (SqlState::INVALID_COLUMN_REFERENCE, None);
                e
            }
            _ => e,
        })?;
        match term {
            Ok(expr) => Ok(expr),
            Err((expr, position)) => match expr.ty() {
                Type::Int8 => Ok(expr),
                ty if ty.is_number() => {
                    Ok(Expr::Cast { expr: Box::new(expr), to: Type::Int8, kind: CastKind::Assignment })
                }
                ty => Err(at(
                    SqlError::new(
                        SqlState::DATATYPE_MISMATCH,
                        format!("argument of {clause} must be type bigint, not type {}", plain_name(&ty)),
                    ),
                    position,
                )),
            },
        }
    }

    /// The table of FROM, with its alias.
    pub(crate) fn relation(&mut self, from: &ast::TableWithJoins) -> Result<(Arc<TableSchema>, Scope)> {
        let ast::TableWithJoins { relation, joins } = from;
        if !joins.is_empty() {
            return unsupported("JOIN");
        }
        self.table_factor(relation)
    }

    /// A table in FROM, with its alias.
    pub(crate) fn table_factor(&mut self, relation: &ast::TableFactor) -> Result<(Arc<TableSchema>, Scope)> {
        let position = position_of(relation.span());
        check_factor(relation)?;
        let what = match relation {
            ast::TableFactor::Table { args: Some(_), .. } => "a function in FROM",
            ast::TableFactor::Table { name, alias, .. } => {
                let table = self.table(name)?;
                let scope = Scope::table(&table, alias.as_ref())?;
                return Ok((table, scope));
            }
            ast::TableFactor::Derived { .. } => "a subquery in FROM",
            ast::TableFactor::Function { .. }
            | ast::TableFactor::TableFunction { .. }
            | ast::TableFactor::UNNEST { .. } => "a function in FROM",
            ast::TableFactor::NestedJoin { .. } => "JOIN",
            _ => "this form of FROM",
        };
        Err(at(SqlError::unsupported(what), position))
    }

    /// The items of a select list.
    pub(crate) fn items(
        &mut self,
        scope: &Scope,
        list: &[ast::SelectItem],
        clause: Clause,
        aggregates: &mut Vec<AggregateCall>,
    ) -> Result<Vec<Item>> {
        let mut items = Vec::new();
        for item in list {
            check_width(items.len())?;
            let (expr, alias) = match item {
                ast::SelectItem::UnnamedExpr(expr) => (expr, None),
                ast::SelectItem::ExprWithAlias { expr, alias } => (expr, Some(alias)),
                ast::SelectItem::ExprWithAliases { .. } => {
                    return unsupported("several aliases of one expression");
                }
                ast::SelectItem::Wildcard(options) => {
                    let position = wildcard(options)?;
                    if scope.relations.is_empty() {
                        return Err(at(
                            SqlError::new(
                                SqlState::SYNTAX_ERROR,
                                "SELECT * with no tables specified is not valid",
                            ),
                            position,
                        ));
                    }
                    items.extend(expand(scope, position));
                    continue;
                }
                ast::SelectItem::QualifiedWildcard(kind, options) => {
                    wildcard(options)?;
                    let ast::SelectItemQualifiedWildcardKind::ObjectName(name) = kind else {
                        return unsupported("expansion of a composite value");
                    };
                    let parts = names::parts(name)?;
                    let position = position_of(name.span());
                    let relation =
                        scope.relation(&parts).ok_or_else(|| scope.missing_relation(&parts, position))?;
                    let one = Scope::of(vec![relation.clone()]);
                    items.extend(expand(&one, position));
                    continue;
                }
            };
            let mut resolver =
                Resolver::new(self.source, scope, self.settings, &mut self.shared, aggregates, clause);
            let term = resolver.term(expr)?;
            let position = term.position;
            let unknown = match &term.kind {
                TermKind::Known(_) => None,
                TermKind::Parameter(_) if clause != Clause::Operand => None,
                kind => Some(kind.clone()),
            };
            let typed = match &unknown {
                // Whoever gives it a type reads another column.
                Some(TermKind::Parameter(_)) => literal(Value::Null, Type::Text),
                _ => resolver.settle(term)?,
            };
            let references = std::mem::take(&mut resolver.references);
            let name = alias.map_or_else(|| title(expr), fold);
            let origin = origin(scope, &typed);
            items.push(Item { name, expr: typed, origin, references, position, unknown });
        }
        check_width(items.len())?;
        Ok(items)
    }

    fn select(
        &mut self,
        select: &ast::Select,
        order_by: Option<&ast::OrderBy>,
        limits: (Option<Expr>, Option<Expr>),
    ) -> Result<(QueryPlan, Vec<OutputColumn>)> {
        let distinct = check_clauses(select)?;
        let distinct_on = distinct_on(select);
        let ast::Select { projection, from, selection, group_by, having, .. } = select;
        let (table, scope) = match from.as_slice() {
            [] => (None, Scope::empty()),
            [one] => {
                let (table, scope) = self.relation(one)?;
                (Some(table), scope)
            }
            _ => return unsupported("more than one table in FROM"),
        };
        let mut aggregates = Vec::new();
        let items = self.items(&scope, projection, Clause::SelectList, &mut aggregates)?;
        let predicate = self.predicate(&scope, selection.as_ref())?;
        let keys = self.group_by(&scope, group_by, &items)?;
        let grouped = keys.is_some();
        let having = self.having(&scope, having.as_ref(), &mut aggregates)?;
        let grouped = grouped || having.is_some();
        let distinct_columns = Vec::new();
        let shape = Shape {
            distinct,
            distinct_on,
            distinct_columns,
            grouped,
            keys: keys.unwrap_or_default(),
            having,
            aggregates,
        };
        let table = table.as_ref();
        match table {
            Some(table) => self.lower(table, predicate, &scope, items, shape, order_by, limits),
            None => self.lower_without_table(predicate, &scope, items, shape, order_by, limits),
        }
    }

    /// The grouping expressions; `None` without GROUP BY.
    pub(crate) fn group_by(
        &mut self,
        scope: &Scope,
        group_by: &ast::GroupByExpr,
        items: &[Item],
    ) -> Result<Option<Vec<Expr>>> {
        let expressions = match group_by {
            ast::GroupByExpr::All(_) => return unsupported("GROUP BY ALL"),
            ast::GroupByExpr::Expressions(expressions, modifiers) => {
                if !modifiers.is_empty() {
                    return unsupported("ROLLUP, CUBE and GROUPING SETS");
                }
                expressions
            }
        };
        if expressions.is_empty() {
            return Ok(None);
        }
        let mut keys: Vec<Expr> = Vec::new();
        for expression in expressions {
            let expr = match self.output_reference(scope, expression, items, "GROUP BY", true)? {
                Some(index) => {
                    let item = &items[index];
                    let mut aggregate = false;
                    walk(&item.expr, &mut |e| {
                        aggregate |=
                            matches!(e, Expr::Column { index, .. } if (AGGREGATES..WINDOWS).contains(index));
                    });
                    if aggregate {
                        return Err(at(
                            SqlError::new(
                                SqlState::GROUPING_ERROR,
                                "aggregate functions are not allowed in GROUP BY",
                            ),
                            item.position,
                        ));
                    }
                    item.expr.clone()
                }
                None => self.resolve(scope, Clause::GroupBy, |r| r.expression(expression))?,
            };
            if !keys.contains(&expr) {
                keys.push(expr);
            }
        }
        Ok(Some(keys))
    }

    /// The output column that an expression of GROUP BY or ORDER BY means by number or name. GROUP BY prefers input
    /// columns of that name, ORDER BY output columns.
    pub(crate) fn output_reference(
        &self,
        scope: &Scope,
        expression: &ast::Expr,
        items: &[Item],
        clause: &str,
        input_first: bool,
    ) -> Result<Option<usize>> {
        let mut expression = expression;
        while let ast::Expr::Nested(inner) = expression {
            expression = inner;
        }
        let position = position_of(expression.span());
        if let Some(number) = written_number(expression) {
            let position = match number.starts_with('-') {
                true => self.source.operator_before(expression.span(), "-"),
                false => position,
            };
            let Ok(place) = number.parse::<i32>() else { return Err(at(non_integer(clause), position)) };
            let index = usize::try_from(place).ok().filter(|place| (1..=items.len()).contains(place));
            return match index {
                Some(place) => Ok(Some(place - 1)),
                None => Err(at(
                    SqlError::new(
                        SqlState::INVALID_COLUMN_REFERENCE,
                        format!("{clause} position {place} is not in select list"),
                    ),
                    position,
                )),
            };
        }
        match expression {
            ast::Expr::Value(value) => match &value.value {
                ast::Value::Placeholder(_) => Ok(None),
                _ => Err(at(non_integer(clause), position)),
            },
            ast::Expr::Identifier(ident) => {
                let name = fold(ident);
                if input_first && scope.visible().iter().any(|c| c.name == name) {
                    return Ok(None);
                }
                let mut found: Option<usize> = None;
                for (index, item) in items.iter().enumerate().filter(|(_, item)| item.name == name) {
                    match found {
                        Some(before) if items[before].expr != item.expr => {
                            return Err(at(
                                SqlError::new(
                                    SqlState::AMBIGUOUS_COLUMN,
                                    format!("{clause} \"{name}\" is ambiguous"),
                                ),
                                position,
                            ));
                        }
                        Some(_) => {}
                        None => found = Some(index),
                    }
                }
                Ok(found)
            }
            _ => Ok(None),
        }
    }

    /// The query that reads some columns of a table.
    pub(crate) fn table_query(
        &mut self,
        table: &Arc<TableSchema>,
        columns: &[usize],
    ) -> Result<(QueryPlan, Vec<OutputColumn>)> {
        let scope = Scope::table(table, None)?;
        let all = expand(&scope, None);
        let items = columns.iter().map(|column| all[*column].clone()).collect();
        self.lower(table, Vec::new(), &scope, items, Shape::default(), None, (None, None))
    }

    /// Lowers a query over one table.
    #[allow(clippy::too_many_arguments)] // the clauses of one statement
    fn lower(
        &mut self,
        table: &Arc<TableSchema>,
        predicate: Vec<Expr>,
        scope: &Scope,
        items: Vec<Item>,
        mut shape: Shape,
        order_by: Option<&ast::OrderBy>,
        (limit, offset): (Option<Expr>, Option<Expr>),
    ) -> Result<(QueryPlan, Vec<OutputColumn>)> {
        let (sort, hidden) = self.order_by(scope, order_by, &items, &mut shape)?;
        let columns: Vec<OutputColumn> = items.iter().map(Item::column).collect();
        let Shape {
            mut distinct,
            distinct_on: _,
            distinct_columns: distinct_on,
            grouped,
            mut keys,
            having,
            aggregates,
        } = shape;
        let grouped = grouped || !aggregates.is_empty();
        let visible = items.len();
        let mut outputs: Vec<Resolved> =
            items.into_iter().map(|i| Resolved { expr: i.expr, references: i.references }).collect();
        outputs.extend(hidden);
        let (output, input, columns_above, filter);
        if grouped {
            add_dependent_columns(table, &mut keys, having.iter().chain(&outputs));
            let regroup = |resolved: &Resolved| regroup(resolved, &keys, scope);
            columns_above = outputs.iter().map(regroup).collect::<Result<Vec<_>>>()?;
            filter = match &having {
                Some(having) => conjuncts(regroup(having)?),
                None => Vec::new(),
            };
            input = group_types(&keys, &aggregates);
            output = ReadOutput::Groups { group_by: keys, aggregates: aggregates.clone(), top: None };
        } else if distinct && visible > 0 {
            // Duplicates are removed where the data is: each distinct row is a group.
            for resolved in &outputs {
                if !keys.contains(&resolved.expr) {
                    keys.push(resolved.expr.clone());
                }
            }
            columns_above = outputs.iter().map(|o| regroup(o, &keys, scope)).collect::<Result<Vec<_>>>()?;
            input = group_types(&keys, &[]);
            output = ReadOutput::Groups { group_by: keys, aggregates: Vec::new(), top: None };
            filter = Vec::new();
            distinct = false;
        } else {
            let projection: Vec<Expr> = outputs.into_iter().map(|o| o.expr).collect();
            input = projection.iter().map(Expr::ty).collect();
            columns_above =
                projection.iter().enumerate().map(|(index, e)| Expr::column(index, e.ty())).collect();
            output = ReadOutput::Rows { projection, top: None };
            filter = Vec::new();
        }
        let groups = match &output {
            ReadOutput::Groups { group_by, aggregates, .. } => Some((group_by.len(), aggregates.clone())),
            _ => None,
        };
        let above = Pipeline::new(AbovePlan {
            input,
            groups,
            filter,
            columns: columns_above,
            output: columns.iter().map(|c| (c.name.clone(), c.ty.clone())).collect(),
            distinct,
            distinct_on,
            sort,
            limit,
            offset,
            ordinal: false,
        });
        let source = Source::Table { table: table.clone(), predicate, output };
        let session_values = self.shared.session_values.clone();
        Ok((QueryPlan { source, above, session_values }, columns))
    }

    /// Lowers a query without FROM: one row, computed when the plan is bound.
    fn lower_without_table(
        &mut self,
        predicate: Vec<Expr>,
        scope: &Scope,
        items: Vec<Item>,
        mut shape: Shape,
        order_by: Option<&ast::OrderBy>,
        limits: (Option<Expr>, Option<Expr>),
    ) -> Result<(QueryPlan, Vec<OutputColumn>)> {
        let (sort, hidden) = self.order_by(scope, order_by, &items, &mut shape)?;
        if shape.grouped || !shape.aggregates.is_empty() {
            let Shape { distinct, distinct_on: _, distinct_columns, grouped: _, keys, having, aggregates } =
                shape;
            let columns: Vec<OutputColumn> = items.iter().map(Item::column).collect();
            let outputs =
                items.into_iter().map(|i| Resolved { expr: i.expr, references: i.references }).chain(hidden);
            let above = Pipeline::new(AbovePlan {
                input: group_types(&keys, &aggregates),
                filter: match &having {
                    Some(having) => conjuncts(regroup(having, &keys, scope)?),
                    None => Vec::new(),
                },
                columns: outputs.map(|o| regroup(&o, &keys, scope)).collect::<Result<Vec<_>>>()?,
                groups: Some((keys.len(), aggregates)),
                output: columns.iter().map(|c| (c.name.clone(), c.ty.clone())).collect(),
                distinct,
                distinct_on: distinct_columns,
                sort,
                limit: limits.0,
                offset: limits.1,
                ordinal: false,
            });
            let source = Source::Rows { rows: vec![Vec::new()], predicate, group_by: Some(keys) };
            let session_values = self.shared.session_values.clone();
            return Ok((QueryPlan { source, above, session_values }, columns));
        }
        let columns: Vec<OutputColumn> = items.iter().map(Item::column).collect();
        let row: Vec<Expr> =
            items.into_iter().map(|i| i.expr).chain(hidden.into_iter().map(|h| h.expr)).collect();
        Ok(self.rows(vec![row], predicate, columns, sort, limits))
    }

    pub(crate) fn rows(
        &mut self,
        rows: Vec<Vec<Expr>>,
        predicate: Vec<Expr>,
        columns: Vec<OutputColumn>,
        sort: Vec<SortKey>,
        (limit, offset): (Option<Expr>, Option<Expr>),
    ) -> (QueryPlan, Vec<OutputColumn>) {
        let mut input: Vec<Type> = rows.first().map(|r| r.iter().map(Expr::ty).collect()).unwrap_or_default();
        for (ty, column) in input.iter_mut().zip(&columns) {
            *ty = column.ty.clone();
        }
        let above = Pipeline::new(AbovePlan {
            columns: input.iter().enumerate().map(|(i, ty)| Expr::column(i, ty.clone())).collect(),
            input,
            groups: None,
            filter: Vec::new(),
            output: columns.iter().map(|c| (c.name.clone(), c.ty.clone())).collect(),
            distinct: false,
            distinct_on: Vec::new(),
            sort,
            limit,
            offset,
            ordinal: false,
        });
        let source = Source::Rows { rows, predicate, group_by: None };
        (QueryPlan { source, above, session_values: self.shared.session_values.clone() }, columns)
    }
}

/// What a SELECT does with its rows.
#[derive(Default)]
pub(crate) struct Shape {
    pub(crate) distinct: bool,
    /// What DISTINCT ON says, and the outputs that it means.
    pub(crate) distinct_on: Vec<ast::Expr>,
    pub(crate) distinct_columns: Vec<usize>,
    pub(crate) grouped: bool,
    pub(crate) keys: Vec<Expr>,
    pub(crate) having: Option<Resolved>,
    pub(crate) aggregates: Vec<AggregateCall>,
}

/// Refuses clauses that PostgreSQL or Carousel does not have; gives whether there is a DISTINCT.
pub(crate) fn check_clauses(select: &ast::Select) -> Result<bool> {
    check_foreign_clauses(select)?;
    match &select.distinct {
        None | Some(ast::Distinct::All) => Ok(false),
        Some(ast::Distinct::Distinct) => Ok(true),
        // A matter of the order.
        Some(ast::Distinct::On(_)) => Ok(false),
    }
}

/// The expressions of DISTINCT ON.
pub(crate) fn distinct_on(select: &ast::Select) -> Vec<ast::Expr> {
    match &select.distinct {
        Some(ast::Distinct::On(expressions)) => expressions.clone(),
        _ => Vec::new(),
    }
}

fn check_foreign_clauses(select: &ast::Select) -> Result<()> {
    let ast::Select {
        select_token: _,
        optimizer_hints: _,
        distinct: _,
        select_modifiers,
        top,
        top_before_distinct: _,
        projection: _,
        exclude,
        into,
        from: _,
        lateral_views,
        prewhere,
        selection: _,
        connect_by,
        group_by: _,
        cluster_by,
        distribute_by,
        sort_by,
        having: _,
        named_window: _,
        qualify,
        window_before_qualify: _,
        value_table_mode,
        flavor,
    } = select;
    if into.is_some() {
        return unsupported("SELECT INTO");
    }
    let foreign = select_modifiers.is_some()
        || top.is_some()
        || exclude.is_some()
        || !lateral_views.is_empty()
        || prewhere.is_some()
        || !connect_by.is_empty()
        || !cluster_by.is_empty()
        || !distribute_by.is_empty()
        || !sort_by.is_empty()
        || qualify.is_some()
        || value_table_mode.is_some()
        || *flavor != ast::SelectFlavor::Standard;
    if foreign {
        return unsupported("a clause of another database's SELECT");
    }
    Ok(())
}

/// A constant where a position may stand.
fn non_integer(clause: &str) -> SqlError {
    SqlError::new(SqlState::SYNTAX_ERROR, format!("non-integer constant in {clause}"))
}

/// Input types of what runs above groups: keys, then results of aggregates.
fn group_types(keys: &[Expr], aggregates: &[AggregateCall]) -> Vec<Type> {
    let results = aggregates.iter().map(|a| {
        let argument = a.argument.as_ref().map(Expr::ty);
        carousel_engine::aggregate::result_type(a.function, argument.as_ref()).unwrap_or(Type::Int8)
    });
    keys.iter().map(Expr::ty).chain(results).collect()
}

/// Columns of a table whose whole primary key is among the grouping keys depend on them, so they may be used like keys.
fn add_dependent_columns<'r>(
    table: &TableSchema,
    keys: &mut Vec<Expr>,
    used: impl Iterator<Item = &'r Resolved>,
) {
    let is_key = |keys: &[Expr], column: usize| {
        keys.iter().any(|k| matches!(k, Expr::Column { index, .. } if *index == column))
    };
    if table.primary_key.is_empty() || !table.primary_key.iter().all(|column| is_key(keys, *column)) {
        return;
    }
    for resolved in used {
        for (index, _) in &resolved.references {
            if !is_key(keys, *index) {
                keys.push(Expr::column(*index, table.columns[*index].ty.clone()));
            }
        }
    }
}

/// Rewrites an expression over the table's columns and aggregates into one over keys and results of aggregates: 42803
/// for a column that is neither.
pub(crate) fn regroup(resolved: &Resolved, keys: &[Expr], scope: &Scope) -> Result<Expr> {
    rewrite(&resolved.expr, &mut |expr| {
        if !columns(expr).is_empty()
            && let Some(index) = keys.iter().position(|key| key == expr)
        {
            return Ok(Some(Expr::column(index, expr.ty())));
        }
        match expr {
            // Windows, subqueries and columns of outer queries are for those who put them there.
            Expr::Column { index, .. } if *index >= WINDOWS => Ok(Some(expr.clone())),
            Expr::Column { index, ty } if *index >= AGGREGATES => {
                Ok(Some(Expr::column(keys.len() + index - AGGREGATES, ty.clone())))
            }
            Expr::Column { index, .. } => {
                let position = resolved.references.iter().find(|(i, _)| i == index).and_then(|(_, p)| *p);
                Err(at(
                    SqlError::new(
                        SqlState::GROUPING_ERROR,
                        format!(
                            "column \"{}\" must appear in the GROUP BY clause or be used in an aggregate function",
                            scope.describe(*index)
                        ),
                    ),
                    position,
                ))
            }
            _ => Ok(None),
        }
    })
}

/// Every column that `*` stands for.
pub(crate) fn expand(scope: &Scope, position: Option<u32>) -> Vec<Item> {
    let item = |column: &ScopeColumn| Item {
        name: column.name.clone(),
        expr: Expr::column(column.index, column.ty.clone()),
        origin: column.origin,
        references: vec![(column.index, position)],
        position,
        unknown: None,
    };
    scope.visible().into_iter().map(item).collect()
}

fn origin(scope: &Scope, expr: &Expr) -> Option<(TableId, usize)> {
    let Expr::Column { index, .. } = expr else { return None };
    let columns = || scope.relations.iter().flat_map(|r| &r.columns);
    columns().find(|column| column.index == *index).and_then(|column| column.origin)
}

fn wildcard(options: &ast::WildcardAdditionalOptions) -> Result<Option<u32>> {
    let ast::WildcardAdditionalOptions {
        wildcard_token,
        opt_ilike,
        opt_exclude,
        opt_except,
        opt_replace,
        opt_rename,
        opt_alias,
    } = options;
    let foreign = opt_ilike.is_some()
        || opt_exclude.is_some()
        || opt_except.is_some()
        || opt_replace.is_some()
        || opt_rename.is_some()
        || opt_alias.is_some();
    if foreign {
        return unsupported("an option of *");
    }
    Ok(position_of(wildcard_token.0.span))
}
