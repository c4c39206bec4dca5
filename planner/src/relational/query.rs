//! Queries of this path: SELECT, set operations, VALUES and common table expressions.

use std::sync::Arc;

use carousel_engine::{
    SqlError, SqlState, Type,
    aggregate::{AggregateCall, AggregateFunction},
    error::Result,
    expr::{CastKind, CompareOp, Expr, columns, walk},
    operation::SortKey,
};
use sqlparser::ast::{self, Spanned};

use super::{
    Cte, Query,
    function::has_native_equality,
    node::{Call, Field, Kind, Node, check_size},
    repeatable::share,
    subquery::has_subquery,
    window::{self, Bound, Frame, OrderKey, Units, WindowCall, WindowFunction},
};
use crate::{
    expression::{Clause, Resolver, SUBQUERIES, Term, TermKind, WINDOWS, literal},
    names::{Scope, at, fold, parts},
    parse::position_of,
    plan::OutputColumn,
    rewrite::{conjuncts, rewrite},
    select::{Item, Planner, Resolved, Shape, check_clauses, distinct_on, expand, regroup, unsupported},
};

/// Most groupings of one GROUP BY, as in PostgreSQL.
const MAX_GROUPING_SETS: usize = 4096;

/// Translates an expression over the names of a query into one over a tree's columns.
pub(crate) type Translation<'t> = &'t dyn Fn(&Expr) -> Result<Expr>;

/// Whether an element of GROUP BY stands for several groupings.
pub(crate) fn is_grouping_set(expr: &ast::Expr) -> bool {
    matches!(expr, ast::Expr::GroupingSets(_) | ast::Expr::Cube(_) | ast::Expr::Rollup(_))
}

impl Planner<'_> {
    /// A query, possibly within others that it may refer to.
    pub(crate) fn relational_query(
        &mut self,
        query: &ast::Query,
        outer: Option<Arc<Scope>>,
    ) -> Result<Query> {
        self.relational_query_of(query, outer, Clause::SelectList)
    }

    /// A query that may refer to the columns of another one.
    pub(crate) fn nested_query(&mut self, query: &ast::Query, outer: Arc<Scope>) -> Result<Query> {
        self.one_deeper(|planner| planner.relational_query(query, Some(outer)))
    }

    /// Plans what is inside another query.
    pub(super) fn one_deeper<T>(&mut self, plan: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if let Some(relational) = &mut self.shared.relational {
            relational.depth += 1;
        }
        let planned = plan(self);
        if let Some(relational) = &mut self.shared.relational {
            relational.depth -= 1;
        }
        planned
    }

    fn relational_query_of(
        &mut self,
        query: &ast::Query,
        outer: Option<Arc<Scope>>,
        clause: Clause,
    ) -> Result<Query> {
        stacker::maybe_grow(256 << 10, 4 << 20, || self.relational_query_inner(query, outer, clause))
    }

    fn relational_query_inner(
        &mut self,
        query: &ast::Query,
        outer: Option<Arc<Scope>>,
        clause: Clause,
    ) -> Result<Query> {
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
        if !locks.is_empty() {
            return unsupported("FOR UPDATE and FOR SHARE");
        }
        if for_clause.is_some() || settings.is_some() || format_clause.is_some() || !pipe_operators.is_empty()
        {
            return unsupported("a clause of another database's SELECT");
        }
        let known = self.shared.relational.as_ref().map_or(0, |r| r.ctes.len());
        if let Some(with) = with {
            self.with(with, &outer)?;
        }
        let limits = self.limits(limit_clause.as_ref(), fetch.as_ref())?;
        for count in limits.0.iter().chain(limits.1.iter()) {
            if has_subquery(count) {
                return unsupported("a subquery in LIMIT or OFFSET");
            }
        }
        let planned = match body.as_ref() {
            ast::SetExpr::Select(select) => {
                self.relational_select(select, clause, order_by.as_ref(), limits, outer)?
            }
            body => {
                let of_set = matches!(body, ast::SetExpr::SetOperation { .. });
                let planned = self.set_expression(body, &outer, clause)?;
                self.sort_outputs(planned, order_by.as_ref(), limits, of_set)?
            }
        };
        if let Some(relational) = &mut self.shared.relational {
            relational.ctes.truncate(known);
        }
        check_size(&planned.node)?;
        Ok(planned)
    }

    fn with(&mut self, with: &ast::With, outer: &Option<Arc<Scope>>) -> Result<()> {
        let ast::With { with_token: _, recursive, cte_tables } = with;
        let mut names: Vec<String> = Vec::new();
        for ast::Cte { alias, query, from, materialized: _, closing_paren_token: _ } in cte_tables {
            let name = fold(&alias.name);
            if names.contains(&name) {
                let message = format!("WITH query name \"{name}\" specified more than once");
                return Err(at(SqlError::new(SqlState(*b"42712"), message), position_of(alias.name.span)));
            }
            if from.is_some() {
                return unsupported("FROM in WITH");
            }
            if *recursive && mentions(query, &name) {
                let error = SqlError::unsupported("WITH RECURSIVE of a query that refers to itself");
                return Err(at(error, position_of(alias.name.span)));
            }
            let later = cte_tables.iter().skip(names.len() + 1).map(|cte| fold(&cte.alias.name));
            let mut planned =
                self.relational_query(query, outer.clone()).map_err(|error| forward(error, later))?;
            if alias.columns.len() > planned.columns.len() {
                let message = format!(
                    "WITH query \"{name}\" has {} columns available but {} columns specified",
                    planned.columns.len(),
                    alias.columns.len()
                );
                let error = SqlError::new(SqlState::INVALID_COLUMN_REFERENCE, message);
                return Err(at(error, position_of(alias.name.span)));
            }
            for (column, renamed) in planned.columns.iter_mut().zip(&alias.columns) {
                column.name = fold(&renamed.name);
            }
            names.push(name.clone());
            if let Some(relational) = &mut self.shared.relational {
                let depth = relational.depth;
                let once = share(&mut planned.node).err();
                relational.ctes.push(Cte { name, query: planned, depth, once, is_used: false });
            }
        }
        Ok(())
    }

    /// What stands between the WITH and the ORDER BY of a query.
    fn set_expression(
        &mut self,
        body: &ast::SetExpr,
        outer: &Option<Arc<Scope>>,
        clause: Clause,
    ) -> Result<Query> {
        match body {
            ast::SetExpr::Select(select) => {
                self.relational_select(select, clause, None, (None, None), outer.clone())
            }
            ast::SetExpr::Query(query) => self.relational_query_of(query, outer.clone(), clause),
            ast::SetExpr::Values(values) => {
                let (rows, items) = self.values_rows(values)?;
                if rows.iter().flatten().any(has_subquery) {
                    return unsupported("a subquery in VALUES");
                }
                let fields = items.iter().map(|i| Field::new(&i.name, i.expr.ty())).collect();
                let columns: Vec<OutputColumn> = items.iter().map(Item::column).collect();
                let unknown = vec![None; columns.len()];
                Ok(Query { node: Node { kind: Kind::Rows(rows), fields }, columns, unknown })
            }
            ast::SetExpr::Table(table) => {
                let ast::Table { table_name, schema_name } = table.as_ref();
                let idents = schema_name.iter().chain(table_name).map(ast::Ident::new);
                let table = self.table(&ast::ObjectName::from(idents.collect::<Vec<_>>()))?;
                let items = expand(&Scope::table(&table, None)?, None);
                let columns: Vec<OutputColumn> = items.iter().map(Item::column).collect();
                let unknown = vec![None; columns.len()];
                Ok(Query { node: Node::scan(&table), columns, unknown })
            }
            ast::SetExpr::SetOperation { left, op, set_quantifier, right } => {
                self.set_operation(left, op, set_quantifier, right, outer)
            }
            ast::SetExpr::Insert(_)
            | ast::SetExpr::Update(_)
            | ast::SetExpr::Delete(_)
            | ast::SetExpr::Merge(_) => unsupported("a data-modifying statement inside a query"),
        }
    }

    fn set_operation(
        &mut self,
        left: &ast::SetExpr,
        op: &ast::SetOperator,
        quantifier: &ast::SetQuantifier,
        right: &ast::SetExpr,
        outer: &Option<Arc<Scope>>,
    ) -> Result<Query> {
        let all = match quantifier {
            ast::SetQuantifier::All => true,
            ast::SetQuantifier::Distinct | ast::SetQuantifier::None => false,
            _ => return unsupported("BY NAME in a set operation"),
        };
        let name = match op {
            ast::SetOperator::Union => "UNION",
            ast::SetOperator::Intersect => "INTERSECT",
            ast::SetOperator::Except => "EXCEPT",
            ast::SetOperator::Minus => return unsupported("MINUS"),
        };
        let mine =
            stacker::maybe_grow(256 << 10, 4 << 20, || self.set_expression(left, outer, Clause::Operand))?;
        let theirs =
            stacker::maybe_grow(256 << 10, 4 << 20, || self.set_expression(right, outer, Clause::Operand))?;
        if mine.columns.len() != theirs.columns.len() {
            let message = format!("each {name} query must have the same number of columns");
            let position = first_item(right).or(position_of(right.span()));
            return Err(at(SqlError::new(SqlState::SYNTAX_ERROR, message), position));
        }
        let (mut left_exprs, mut right_exprs) = (Vec::new(), Vec::new());
        let mut columns = Vec::new();
        for index in 0..mine.columns.len() {
            let l = mine.term(index, item_position(left, index));
            let r = theirs.term(index, item_position(right, index));
            let (ty, l, r) = self.resolve(&Scope::empty(), Clause::SelectList, |resolver| {
                let ty = resolver.common_type(name, &[l.arg_type(), r.arg_type()], [&l, &r].into_iter())?;
                Ok((ty.clone(), resolver.of_type(l, &ty)?, resolver.of_type(r, &ty)?))
            })?;
            left_exprs.push(l);
            right_exprs.push(r);
            columns.push(OutputColumn { name: mine.columns[index].name.clone(), ty, origin: None });
        }
        let names = || columns.iter().map(|c| c.name.clone());
        let left = mine.node.project_if_needed(left_exprs, names());
        let right = theirs.node.project_if_needed(right_exprs, names());
        let node = combine(op, all, left, right)?;
        let unknown = vec![None; columns.len()];
        Ok(Query { node, columns, unknown })
    }

    /// ORDER BY and LIMIT behind a query whose columns are all that they may refer to.
    fn sort_outputs(
        &mut self,
        query: Query,
        order_by: Option<&ast::OrderBy>,
        (limit, offset): (Option<Expr>, Option<Expr>),
        of_set: bool,
    ) -> Result<Query> {
        let items: Vec<Item> = query
            .columns
            .iter()
            .enumerate()
            .map(|(index, column)| Item {
                name: column.name.clone(),
                expr: Expr::column(index, column.ty.clone()),
                origin: None,
                references: Vec::new(),
                position: None,
                unknown: None,
            })
            .collect();
        let mut shape = Shape::default();
        let scope = Scope::of(vec![query.relation(String::new())]);
        let (keys, hidden) = self.order_by(&scope, order_by, &items, &mut shape)?;
        if !hidden.is_empty() {
            let what = if of_set { "UNION/INTERSECT/EXCEPT" } else { "VALUES" };
            let error =
                SqlError::new(SqlState::FEATURE_NOT_SUPPORTED, format!("invalid {what} ORDER BY clause"))
                    .with_detail("Only result column names can be used, not expressions or functions.")
                    .with_hint(
                        "Add the expression/function to every SELECT, or move the UNION into a FROM clause.",
                    );
            let position = order_by.and_then(|o| match &o.kind {
                ast::OrderByKind::Expressions(exprs) => {
                    exprs.first().and_then(|e| position_of(e.expr.span()))
                }
                ast::OrderByKind::All(_) => None,
            });
            return Err(at(error, position));
        }
        Ok(Query { node: query.node.sort(keys, limit, offset), ..query })
    }

    fn relational_select(
        &mut self,
        select: &ast::Select,
        clause: Clause,
        order_by: Option<&ast::OrderBy>,
        (limit, offset): (Option<Expr>, Option<Expr>),
        outer: Option<Arc<Scope>>,
    ) -> Result<Query> {
        let is_distinct = check_clauses(select)?;
        let ast::Select { projection, from, selection, group_by, having, named_window, .. } = select;
        let (node, mut scope) = self.from(from, &outer)?;
        scope.outer = outer;
        let of_outer = self.name_windows(named_window)?;

        let mut aggregates = Vec::new();
        let items = self.items(&scope, projection, clause, &mut aggregates)?;
        let predicate = self.predicate(&scope, selection.as_ref())?;
        let sets = self.grouping_sets(&scope, group_by, &items)?;
        let having = self.having(&scope, having.as_ref(), &mut aggregates)?;
        let mut shape =
            Shape { distinct: is_distinct, distinct_on: distinct_on(select), aggregates, ..Shape::default() };
        let (sort, hidden) = self.order_by(&scope, order_by, &items, &mut shape)?;
        let distinct_columns = std::mem::take(&mut shape.distinct_columns);
        let aggregates = shape.aggregates;
        if let Some(relational) = &mut self.shared.relational {
            relational.named_windows = of_outer;
        }

        let unknown: Vec<Option<TermKind>> = items.iter().map(|i| i.unknown.clone()).collect();
        let columns: Vec<OutputColumn> = items.iter().map(Item::column).collect();
        let mut outputs: Vec<Resolved> =
            items.into_iter().map(|i| Resolved { expr: i.expr, references: i.references }).collect();
        outputs.extend(hidden);

        let identity = |expr: &Expr| Ok(expr.clone());
        let mut node = self.filter(node, predicate, &identity)?;
        let grouped = sets.is_some() || having.is_some() || !aggregates.is_empty();
        let mut exprs: Vec<Expr>;
        if grouped {
            let mut sets = sets.unwrap_or_else(|| Groupings {
                keys: Vec::new(),
                named: Vec::new(),
                sets: vec![Vec::new()],
            });
            add_dependent_columns(&scope, &mut sets, having.iter().chain(&outputs));
            (node, exprs) = self.group(node, &scope, &sets, aggregates, having.as_ref(), &outputs)?;
        } else {
            exprs = outputs.iter().map(|o| o.expr.clone()).collect();
            node = self.windows_and_subqueries(node, &mut exprs, &identity)?;
        }
        let names: Vec<String> = columns
            .iter()
            .map(|c| c.name.clone())
            .chain(std::iter::repeat("sort key".to_owned()))
            .take(exprs.len())
            .collect();
        let visible = columns.len();
        let wide = exprs.len() > visible;
        node = node.project(std::mem::take(&mut exprs), names);
        if is_distinct {
            node = node.distinct();
        }
        if !distinct_columns.is_empty() {
            node = first_of_each(node, &distinct_columns, &sort);
        }
        node = node.sort(sort, limit, offset);
        if wide {
            node = node.select(0..visible);
        }
        Ok(Query { node, columns, unknown })
    }

    /// Groups, HAVING and window functions; gives the outputs over the tree.
    fn group(
        &mut self,
        node: Node,
        scope: &Scope,
        sets: &Groupings,
        mut aggregates: Vec<AggregateCall>,
        having: Option<&Resolved>,
        outputs: &[Resolved],
    ) -> Result<(Node, Vec<Expr>)> {
        let identity = |expr: &Expr| Ok(expr.clone());
        let mut keys = sets.keys.clone();
        let mut node = self.attach(node, &mut keys, &identity)?;
        for call in &mut aggregates {
            let mut parts: Vec<Expr> =
                call.argument.iter().chain(&call.filter).chain(&call.further).cloned().collect();
            node = self.attach(node, &mut parts, &identity)?;
            let mut parts = parts.into_iter();
            call.argument = call.argument.as_ref().and_then(|_| parts.next());
            call.filter = call.filter.as_ref().and_then(|_| parts.next());
            call.further = parts.collect();
        }
        let calls: Vec<Call> = aggregates.into_iter().map(Call::Aggregate).collect();
        let mut node = sets.apply(node, keys, calls)?;
        let translate = |expr: &Expr| {
            let references = outputs.iter().chain(having).flat_map(|r| r.references.clone()).collect();
            regroup(&Resolved { expr: expr.clone(), references }, &sets.keys, scope)
        };
        if let Some(having) = having {
            let predicate = conjuncts(regroup(having, &sets.keys, scope)?);
            node = self.filter(node, predicate, &translate)?;
        }
        let mut exprs =
            outputs.iter().map(|o| regroup(o, &sets.keys, scope)).collect::<Result<Vec<Expr>>>()?;
        // Of a key that is the same in all rows, as in PostgreSQL, only the output that it names is NULL in groupings without it.
        for (place, (key, named)) in sets.keys.iter().zip(&sets.named).enumerate() {
            if let Some(named) = named {
                exprs[*named] = Expr::column(place, key.ty());
            }
        }
        node = self.windows_and_subqueries(node, &mut exprs, &translate)?;
        Ok((node, exprs))
    }

    /// Computes the window functions that stand in expressions, and joins the subqueries that do.
    fn windows_and_subqueries(
        &mut self,
        node: Node,
        exprs: &mut [Expr],
        translate: Translation<'_>,
    ) -> Result<Node> {
        let mut used: Vec<usize> = Vec::new();
        let mut asked = self.operands(exprs);
        // Those of operands are asked for with the subquery.
        let mut first = 0;
        while first < asked.len() {
            let further = self.operands(&asked[first..]);
            first = asked.len();
            asked.extend(further);
        }
        for expr in exprs.iter().chain(&asked) {
            walk(expr, &mut |part| {
                if let Expr::Column { index, .. } = part
                    && (WINDOWS..SUBQUERIES).contains(index)
                    && !used.contains(&(index - WINDOWS))
                {
                    used.push(index - WINDOWS);
                }
            });
        }
        if used.is_empty() {
            return self.attach(node, exprs, translate);
        }
        let mut calls: Vec<WindowCall> = {
            let all = self.shared.relational.as_ref().map_or(&[][..], |r| &r.windows);
            used.iter().filter_map(|place| all.get(*place).cloned()).collect()
        };
        let mut node = node;
        for call in &mut calls {
            for expr in call.exprs_mut() {
                let mut one = [translate(expr)?];
                node = self.attach(node, &mut one, translate)?;
                let [one] = one;
                *expr = one;
            }
        }
        let width = node.width();
        let node = node.window(calls);
        let columns: Vec<Expr> = (0..used.len()).map(|place| node.column(width + place)).collect();
        let computed = |expr: &Expr| {
            rewrite(expr, &mut |part| {
                Ok(match part {
                    Expr::Column { index, .. } if (WINDOWS..SUBQUERIES).contains(index) => {
                        let place = used.iter().position(|u| *u == index - WINDOWS);
                        place.map(|place| columns[place].clone())
                    }
                    _ => None,
                })
            })
        };
        for expr in exprs.iter_mut() {
            *expr = computed(expr)?;
        }
        self.attach(node, exprs, &|expr| computed(&translate(expr)?))
    }

    /// Windows of the WINDOW clause, which only its own query sees. Returns those of the outer one.
    fn name_windows(
        &mut self,
        windows: &[ast::NamedWindowDefinition],
    ) -> Result<Vec<(String, ast::WindowSpec)>> {
        let Some(relational) = &mut self.shared.relational else {
            return Err(SqlError::internal("a relational query outside of a relational statement"));
        };
        let of_outer = std::mem::take(&mut relational.named_windows);
        for ast::NamedWindowDefinition(ident, definition) in windows {
            let name = fold(ident);
            let spec = match definition {
                ast::NamedWindowExpr::WindowSpec(spec) => spec.clone(),
                ast::NamedWindowExpr::NamedWindow(_) => {
                    return unsupported("a window that is another's name");
                }
            };
            let is_known = |name: &str| relational.named_windows.iter().any(|(known, _)| known == name);
            if is_known(&name) {
                let message = format!("window \"{name}\" is already defined");
                return Err(at(SqlError::new(SqlState(*b"42P20"), message), position_of(ident.span)));
            }
            // One may refer only to those before it, so never to itself.
            if let Some(base) = spec.window_name.as_ref().filter(|base| !is_known(&fold(base))) {
                return Err(window::unknown(base));
            }
            relational.named_windows.push((name, spec));
        }
        Ok(of_outer)
    }

    /// GROUP BY; `None` without one.
    fn grouping_sets(
        &mut self,
        scope: &Scope,
        group_by: &ast::GroupByExpr,
        items: &[Item],
    ) -> Result<Option<Groupings>> {
        let plain = |keys: Vec<Expr>| {
            let all = (0..keys.len()).collect();
            Groupings { keys, named: Vec::new(), sets: vec![all] }
        };
        let (elements, modifiers) = match group_by {
            ast::GroupByExpr::Expressions(elements, modifiers) => (elements, modifiers),
            ast::GroupByExpr::All(_) => return unsupported("GROUP BY ALL"),
        };
        if modifiers.is_empty() && !elements.iter().any(is_grouping_set) {
            return Ok(self.group_by(scope, group_by, items)?.map(plain));
        }
        if !modifiers.is_empty() {
            return unsupported("WITH ROLLUP and WITH CUBE");
        }
        // Several elements: every combination of their sets.
        let mut all = Groupings { keys: Vec::new(), named: Vec::new(), sets: vec![Vec::new()] };
        for element in elements {
            let mut sets: Vec<Vec<&ast::Expr>> = Vec::new();
            match element {
                ast::Expr::GroupingSets(lists) => sets.extend(lists.iter().map(|l| l.iter().collect())),
                ast::Expr::Rollup(lists) => {
                    for length in (0..=lists.len()).rev() {
                        sets.push(lists[..length].iter().flatten().collect());
                    }
                }
                ast::Expr::Cube(lists) => {
                    if lists.len() > 12 {
                        return Err(SqlError::new(SqlState(*b"54011"), "CUBE is limited to 12 elements"));
                    }
                    for mask in (0..1usize << lists.len()).rev() {
                        let chosen = lists.iter().enumerate();
                        let chosen = chosen.filter(|(i, _)| mask & (1 << (lists.len() - 1 - i)) != 0);
                        sets.push(chosen.flat_map(|(_, list)| list).collect());
                    }
                }
                expr => sets.push(vec![expr]),
            }
            let mut combined = Vec::new();
            for before in &all.sets {
                for set in &sets {
                    let mut places = before.clone();
                    for expr in set {
                        // `()` is the set without any expression.
                        if matches!(expr, ast::Expr::Tuple(members) if members.is_empty()) {
                            continue;
                        }
                        let one = ast::GroupByExpr::Expressions(vec![(*expr).clone()], Vec::new());
                        let meant = self.output_reference(scope, expr, items, "GROUP BY", true)?;
                        for key in self.group_by(scope, &one, items)?.into_iter().flatten() {
                            let equal = || items.iter().position(|item| item.expr == key);
                            let named = meant.or_else(equal).filter(|_| columns(&key).is_empty());
                            let mut known = all.keys.iter().zip(&all.named);
                            let place = known.position(|(expr, output)| *expr == key && *output == named);
                            let place = place.unwrap_or_else(|| {
                                all.keys.push(key);
                                all.named.push(named);
                                all.keys.len() - 1
                            });
                            if !places.contains(&place) {
                                places.push(place);
                            }
                        }
                    }
                    combined.push(places);
                }
            }
            if combined.len() > MAX_GROUPING_SETS {
                let message = format!("too many grouping sets present (maximum {MAX_GROUPING_SETS})");
                return Err(SqlError::new(SqlState::TOO_COMPLEX, message));
            }
            all.sets = combined;
        }
        Ok(Some(all))
    }
}

/// GROUP BY: keys, and which of them each grouping uses.
pub(crate) struct Groupings {
    keys: Vec<Expr>,
    /// Of the first keys, which output each names if it is the same in all rows.
    named: Vec<Option<usize>>,
    sets: Vec<Vec<usize>>,
}

impl Groupings {
    /// The groups: all keys, NULL where a grouping does not use one, and results.
    fn apply(&self, mut node: Node, keys: Vec<Expr>, calls: Vec<Call>) -> Result<Node> {
        if self.sets.len() > 1 {
            share(&mut node)?;
        }
        let mut all: Option<Node> = None;
        for set in &self.sets {
            let used: Vec<Expr> = set.iter().map(|place| keys[*place].clone()).collect();
            let groups = node.clone().aggregate(used, calls.clone())?;
            let is_identity = set.iter().copied().eq(0..keys.len());
            let groups = if is_identity {
                groups
            } else {
                let mut exprs = Vec::new();
                let mut names = Vec::new();
                for (place, key) in keys.iter().enumerate() {
                    exprs.push(match set.iter().position(|p| *p == place) {
                        Some(column) => groups.column(column),
                        None => literal(carousel_engine::Value::Null, key.ty()),
                    });
                    names.push("key".to_owned());
                }
                for column in set.len()..groups.width() {
                    exprs.push(groups.column(column));
                    names.push(groups.fields[column].name.clone());
                }
                groups.project(exprs, names)
            };
            all = Some(match all {
                None => groups,
                Some(before) => before.union(groups),
            });
        }
        all.ok_or_else(|| SqlError::internal("GROUP BY without a grouping"))
    }
}

/// Columns of a table whose whole primary key is among the grouping keys depend on them, so they may be used like keys.
fn add_dependent_columns<'r>(
    scope: &Scope,
    groupings: &mut Groupings,
    used: impl Iterator<Item = &'r Resolved>,
) {
    let [set] = groupings.sets.as_mut_slice() else { return };
    let keys = &mut groupings.keys;
    let is_key = |keys: &[Expr], column: usize| {
        keys.iter().any(|k| matches!(k, Expr::Column { index, .. } if *index == column))
    };
    let mut dependent = Vec::new();
    for relation in &scope.relations {
        let Some(table) = &relation.table else { continue };
        let key_is_grouped =
            |column: &usize| relation.columns.get(*column).is_some_and(|c| is_key(keys, c.index));
        if !table.primary_key.is_empty() && table.primary_key.iter().all(key_is_grouped) {
            dependent.extend(relation.columns.iter().map(|c| (c.index, c.ty.clone())));
        }
    }
    for resolved in used {
        for (index, _) in &resolved.references {
            if let Some((_, ty)) = dependent.iter().find(|(column, _)| column == index)
                && !is_key(keys, *index)
            {
                keys.push(Expr::column(*index, ty.clone()));
                set.push(keys.len() - 1);
            }
        }
    }
}

impl Query {
    /// An output column as an operand of a set operation.
    fn term(&self, index: usize, position: Option<u32>) -> Term {
        match &self.unknown[index] {
            Some(kind) => Term { kind: kind.clone(), position },
            None => Term::known(self.node.column(index), position),
        }
    }
}

impl Resolver<'_> {
    /// A term as exactly this type, in its Arrow form.
    fn of_type(&mut self, term: Term, ty: &Type) -> Result<Expr> {
        let expr = self.convert(term, ty)?;
        if expr.ty() == *ty {
            return Ok(expr);
        }
        Ok(Expr::Cast { expr: Box::new(expr), to: ty.clone(), kind: CastKind::Implicit })
    }
}

/// Explains a missing table that is the name of a later common table expression.
fn forward(error: SqlError, mut later: impl Iterator<Item = String>) -> SqlError {
    let missing = |name: &String| error.message == format!("relation \"{name}\" does not exist");
    match later.find(missing) {
        Some(name) if error.detail.is_none() => error
            .with_detail(format!(
                "There is a WITH item named \"{name}\", but it cannot be referenced from this part of the query."
            ))
            .with_hint("Use WITH RECURSIVE, or re-order the WITH items to remove forward references."),
        _ => error,
    }
}

/// Whether a query names a table.
fn mentions(query: &ast::Query, name: &str) -> bool {
    let mut found = false;
    let _ = ast::visit_relations(query, |relation| {
        found |= parts(relation).is_ok_and(|parts| matches!(parts.as_slice(), [only] if only == name));
        std::ops::ControlFlow::<()>::Continue(())
    });
    found
}

fn first_item(body: &ast::SetExpr) -> Option<u32> {
    item_position(body, 0)
}

/// Where an output column of a query is written.
fn item_position(body: &ast::SetExpr, index: usize) -> Option<u32> {
    match body {
        ast::SetExpr::Select(select) => match select.projection.get(index)? {
            ast::SelectItem::UnnamedExpr(expr) | ast::SelectItem::ExprWithAlias { expr, .. } => {
                position_of(expr.span())
            }
            item => position_of(item.span()),
        },
        ast::SetExpr::Query(query) => item_position(&query.body, index),
        ast::SetExpr::SetOperation { left, .. } => item_position(left, index),
        ast::SetExpr::Values(values) => {
            values.rows.first()?.content.get(index).and_then(|e| position_of(e.span()))
        }
        _ => None,
    }
}

/// A set operation over inputs of the same types.
fn combine(op: &ast::SetOperator, all: bool, left: Node, right: Node) -> Result<Node> {
    if *op == ast::SetOperator::Union {
        return Ok(match all {
            true => left.union(right),
            false => left.with_duplicates().union(right.with_duplicates()).distinct(),
        });
    }
    // The n-th of equal rows on one side meets the n-th of them on the other.
    let width = left.width();
    let names: Vec<String> = left.fields.iter().map(|field| field.name.clone()).collect();
    let (left, right) = if all { (numbered(left), numbered(right)) } else { (left, right) };
    let keys = left.width();
    let flag = |node: Node, is_left: bool| {
        let truth = literal(carousel_engine::Value::Bool(is_left), Type::Bool);
        node.extend(vec![(truth, "is left")])
    };
    let both = flag(left, true).union(flag(right, false));
    let is_left = both.column(keys);
    let present = |filter: Expr| {
        let count = AggregateCall::new(AggregateFunction::Count, None);
        Call::Aggregate(AggregateCall { filter: Some(filter), ..count })
    };
    let columns: Vec<Expr> = (0..keys).map(|c| both.column(c)).collect();
    let mut calls = vec![present(is_left.clone()), present(Expr::Not(Box::new(is_left)))];
    // What is said of an EXCEPT's columns may tell equal values apart, so it is no condition on the rows that are taken away.
    // It does not get below the groups where it is said of an aggregate.
    let mut outputs: Vec<usize> = (0..width).collect();
    if *op == ast::SetOperator::Except {
        for output in &mut outputs {
            let column = both.column(*output);
            if !has_native_equality(&column.ty()) {
                *output = keys + calls.len();
                calls.push(Call::Single(column));
            }
        }
    }
    let groups = both.aggregate(columns, calls)?;
    let compare = |column: Expr, op: CompareOp| Expr::Compare {
        op,
        left: Box::new(column),
        right: Box::new(literal(carousel_engine::Value::Int8(0), Type::Int8)),
    };
    let right_op = if *op == ast::SetOperator::Intersect { CompareOp::Gt } else { CompareOp::Eq };
    let predicate =
        vec![compare(groups.column(keys), CompareOp::Gt), compare(groups.column(keys + 1), right_op)];
    let outputs = outputs.into_iter().map(|c| groups.column(c)).collect();
    Ok(groups.filter(predicate).project(outputs, names))
}

/// The first row, in an order, of each combination of values of some columns.
fn first_of_each(node: Node, columns: &[usize], sort: &[SortKey]) -> Node {
    let width = node.width();
    let order = sort.iter().map(|key| OrderKey {
        expr: node.column(key.column),
        descending: key.descending,
        nulls_first: key.nulls_first,
    });
    let number = row_number(columns.iter().map(|c| node.column(*c)).collect(), order.collect());
    let numbered = node.window(vec![number]);
    let first = Expr::Compare {
        op: CompareOp::Eq,
        left: Box::new(numbered.column(width)),
        right: Box::new(literal(carousel_engine::Value::Int8(1), Type::Int8)),
    };
    numbered.filter(vec![first]).select(0..width)
}

/// `row_number()` over a window.
pub(crate) fn row_number(partition: Vec<Expr>, order: Vec<OrderKey>) -> WindowCall {
    WindowCall {
        function: WindowFunction::RowNumber,
        partition,
        order,
        frame: Frame { units: Units::Range, start: Bound::UnboundedPreceding, end: Bound::CurrentRow },
        ty: Type::Int8,
    }
}

/// Rows with their number among those that are equal to them.
fn numbered(node: Node) -> Node {
    let partition = (0..node.width()).map(|c| node.column(c)).collect();
    node.window(vec![row_number(partition, Vec::new())])
}
