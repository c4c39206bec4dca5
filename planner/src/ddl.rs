//! CREATE TABLE and DROP TABLE.

use std::{ops::ControlFlow, sync::Arc};

use carousel_cluster::message::Ddl;
use carousel_engine::{
    SqlError, SqlState, TableId, TableSchema, Ts, Type, Value,
    error::Result,
    expr::{EvalContext, Expr, eval_const},
    schema::{Column, Partitioning, ROW_ID},
    text::{format_value, parse_value},
    value::compare,
};
use sqlparser::ast::{self, Spanned, visit_expressions_mut};

use crate::{
    dml::check_default,
    expression::{Clause, Resolver, is_of_session, quoted},
    names::{self, Scope, at, fold},
    parse::{Source, parse_expression, position_of},
    plan::DdlPlan,
    select::Planner,
    types,
};

/// PostgreSQL's limit.
const MAX_COLUMNS: usize = 1600;
/// Names of columns that every table of PostgreSQL has.
const SYSTEM_COLUMNS: &[&str] = &["tableoid", "ctid", "xmin", "xmax", "cmin", "cmax"];

/// Writes quoted dates and times out in full, with their time zone: a default of this type, those within it that have a type
/// of their own, and those that were read, at these places, as what is beside them. As in PostgreSQL, they are what they are when
/// the table is made.
fn fix_literals(
    expr: &mut ast::Expr,
    ty: &Type,
    read: &[(Option<u32>, Type)],
    context: &EvalContext,
) -> Result<()> {
    fix_literal(expr, Some(ty), context)?;
    let fixed = visit_expressions_mut(expr, |expr| {
        let fixed = match expr {
            ast::Expr::Value(value) => {
                let place = position_of(value.span);
                let found = read.iter().find(|(at, _)| at.is_some() && *at == place);
                fix_value(&mut value.value, found.map(|(_, ty)| ty), context)
            }
            ast::Expr::TypedString(typed) => {
                fix_value(&mut typed.value.value, types::resolve(&typed.data_type).ok().as_ref(), context)
            }
            ast::Expr::Cast { expr, data_type, .. } => {
                fix_literal(expr, types::resolve(data_type).ok().as_ref(), context)
            }
            _ => Ok(()),
        };
        fixed.map_or_else(ControlFlow::Break, ControlFlow::Continue)
    });
    match fixed {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(error) => Err(error),
    }
}

/// The same of a literal that is read as of this type.
fn fix_literal(expr: &mut ast::Expr, ty: Option<&Type>, context: &EvalContext) -> Result<()> {
    match expr {
        ast::Expr::Value(value) => fix_value(&mut value.value, ty, context),
        ast::Expr::Nested(expr) | ast::Expr::Collate { expr, .. } => fix_literal(expr, ty, context),
        _ => Ok(()),
    }
}

fn fix_value(value: &mut ast::Value, ty: Option<&Type>, context: &EvalContext) -> Result<()> {
    let (Some(ty), Some(text)) = (ty.filter(|ty| is_of_session(ty)), quoted(value)) else { return Ok(()) };
    // Displacements of some zones can be written and not be read.
    let utc = EvalContext { time_zone: "UTC".into(), ..context.clone() };
    let fixed = format_value(&parse_value(text, ty, context)?, ty, &utc);
    *value = ast::Value::SingleQuotedString(fixed);
    Ok(())
}

/// Writes literals with quotes in them in a form that is read again as it is.
fn fix_quotes(expr: &mut ast::Expr) {
    let _ = visit_expressions_mut(expr, |expr| {
        let value = match expr {
            ast::Expr::Value(value) => &mut value.value,
            ast::Expr::TypedString(typed) => &mut typed.value.value,
            _ => return ControlFlow::<()>::Continue(()),
        };
        if let Some(text) = quoted(value)
            && text.contains(['\'', '\\'])
        {
            *value = ast::Value::EscapedStringLiteral(text.to_owned());
        }
        ControlFlow::Continue(())
    });
}

fn unsupported<T>(what: impl std::fmt::Display) -> Result<T> {
    Err(SqlError::unsupported(what))
}

/// DROP TABLE.
pub(crate) fn drop_tables(names: &[ast::ObjectName], if_exists: bool) -> Result<DdlPlan> {
    let mut tables = Vec::with_capacity(names.len());
    for name in names {
        // A name in another schema is a table that does not exist; the catalog says so.
        let (Ok(name) | Err(name)) = names::table_name(name)?;
        if !tables.contains(&name) {
            tables.push(name);
        }
    }
    Ok(DdlPlan { ddl: Ddl::DropTables { names: tables, if_exists } })
}

/// The primary key as written.
struct PrimaryKey {
    name: Option<String>,
    columns: Vec<(String, Option<u32>)>,
}

impl Planner<'_> {
    pub(crate) fn create_table(
        &mut self,
        create: &ast::CreateTable,
        split_at: Option<&[ast::Expr]>,
    ) -> Result<DdlPlan> {
        let (columns, constraints, partition_by) = clauses(create)?;
        let name = table_name(&create.name)?;
        let mut primary_key: Option<PrimaryKey> = None;
        let mut defined: Vec<Column> = Vec::with_capacity(columns.len() + 1);
        for column in columns {
            let column = self.column(&name, column, &mut primary_key)?;
            if defined.iter().any(|c| c.name == column.name) {
                return Err(SqlError::new(
                    SqlState::DUPLICATE_COLUMN,
                    format!("column \"{}\" specified more than once", column.name),
                ));
            }
            defined.push(column);
        }
        if defined.len() > MAX_COLUMNS {
            return Err(SqlError::new(
                SqlState(*b"54011"),
                format!("tables can have at most {MAX_COLUMNS} columns"),
            ));
        }
        for constraint in constraints {
            table_constraint(self.source, &name, constraint, &mut primary_key)?;
        }
        let (key, key_name) = resolve_primary_key(&name, primary_key, &mut defined)?;
        let partitioning = match partition_by {
            Some(expr) => Some(self.partitioning(expr, split_at, &defined)?),
            None if split_at.is_some() => return unsupported("SPLIT AT without PARTITION BY RANGE"),
            None => None,
        };
        if let Some(partitioning) = &partitioning
            && !key.is_empty()
            && let Some(outside) = partitioning.columns().iter().find(|c| !key.contains(c))
        {
            return Err(SqlError::unsupported("a primary key without all partitioning columns").with_detail(
                format!(
                    "PRIMARY KEY constraint on table \"{name}\" lacks column \"{}\" which is part of the partition key.",
                    defined[*outside].name
                ),
            ));
        }
        if key.is_empty() {
            defined.push(Column { name: ROW_ID.into(), ty: Type::Int8, not_null: true, default: None });
        }
        let partitioning = partitioning.unwrap_or_else(|| Partitioning::Hash {
            columns: if key.is_empty() { vec![defined.len() - 1] } else { key.clone() },
        });
        let schema = TableSchema {
            id: TableId(0),
            version: Ts::ZERO,
            name,
            columns: defined,
            primary_key: key,
            primary_key_name: key_name,
            partitioning,
        };
        let ddl = Ddl::CreateTable { schema: Arc::new(schema), if_not_exists: create.if_not_exists };
        Ok(DdlPlan { ddl })
    }

    fn column(
        &mut self,
        table: &str,
        column: &ast::ColumnDef,
        primary_key: &mut Option<PrimaryKey>,
    ) -> Result<Column> {
        let ast::ColumnDef { name: ident, data_type, options } = column;
        let position = position_of(ident.span);
        let name = fold(ident);
        if SYSTEM_COLUMNS.contains(&name.as_str()) {
            return Err(SqlError::new(
                SqlState::DUPLICATE_COLUMN,
                format!("column name \"{name}\" conflicts with a system column name"),
            ));
        }
        if name == ROW_ID {
            return unsupported(format!("a column named \"{ROW_ID}\""));
        }
        let ty = types::resolve(data_type).map_err(|e| at(e, self.source.next_position(position)))?;
        if ty == Type::Interval {
            return unsupported("a column of type interval");
        }
        if ty == Type::Char(0) {
            // Columns keep no blanks at the end, which those of this type would have.
            return unsupported("a column of type bpchar without a length");
        }
        let mut nullable: Option<bool> = None;
        let mut default = None;
        for ast::ColumnOptionDef { name: constraint, option } in options {
            let declared = match option {
                ast::ColumnOption::Null => Some(true),
                ast::ColumnOption::NotNull => Some(false),
                ast::ColumnOption::Default(expr) => {
                    if default.is_some() {
                        return Err(at(
                            SqlError::new(
                                SqlState::SYNTAX_ERROR,
                                format!(
                                    "multiple default values specified for column \"{name}\" of table \"{table}\""
                                ),
                            ),
                            self.source.operator_before(expr.span(), "default"),
                        ));
                    }
                    default = Some(self.default_text(&name, &ty, expr)?);
                    None
                }
                ast::ColumnOption::PrimaryKey(key) => {
                    let constraint = constraint.as_ref().or(key.name.as_ref());
                    check_primary_key(key)?;
                    let position = self.source.operator_after(ident.span, "primary");
                    set_primary_key(
                        table,
                        primary_key,
                        PrimaryKey { name: constraint.map(fold), columns: vec![(name.clone(), position)] },
                        position,
                    )?;
                    Some(false)
                }
                ast::ColumnOption::Collation(collation) => {
                    let collation = collation.to_string();
                    if !matches!(collation.trim_matches('"'), "C" | "POSIX" | "default") {
                        return unsupported(format!("COLLATE {collation}"));
                    }
                    None
                }
                other => return unsupported(option_name(other)),
            };
            if let Some(declared) = declared {
                if nullable.is_some_and(|before| before != declared) {
                    return Err(at(
                        SqlError::new(
                            SqlState::SYNTAX_ERROR,
                            format!(
                                "conflicting NULL/NOT NULL declarations for column \"{name}\" of table \"{table}\""
                            ),
                        ),
                        self.source.operator_after(ident.span, "not"),
                    ));
                }
                nullable = Some(declared);
            }
        }
        Ok(Column { name, ty, not_null: nullable == Some(false), default })
    }

    /// The text of a DEFAULT, checked to be one that can be stored.
    fn default_text(&mut self, column: &str, ty: &Type, expr: &ast::Expr) -> Result<String> {
        let (scope, mut aggregates) = (Scope::empty(), Vec::new());
        let known = self.shared.session_values.len();
        // Those of the text of another default are elsewhere.
        self.shared.read_in_session.clear();
        let mut resolver = Resolver::new(
            self.source,
            &scope,
            self.settings,
            &mut self.shared,
            &mut aggregates,
            Clause::Default,
        );
        let term = resolver.term(expr)?;
        if let carousel_engine::expr::ArgType::Known(from) = term.arg_type() {
            check_default(column, ty, &from)?;
        }
        let meant = format!("{:?}", resolver.assign(term, ty, column)?);
        let read = std::mem::take(&mut self.shared.read_in_session);
        // It is kept as text, and must mean the same when it is read again: elsewhere, and some other day.
        let mut expr = expr.clone();
        fix_quotes(&mut expr);
        self.shared.session_values.truncate(known);
        if format!("{:?}", self.read_default(&expr.to_string(), ty, column)?) != meant {
            return unsupported(format!("the default {expr}"));
        }
        fix_literals(&mut expr, ty, &read, &self.settings.eval_context())?;
        let text = expr.to_string();
        self.read_default(&text, ty, column)?;
        Ok(text)
    }

    fn read_default(&mut self, text: &str, ty: &Type, column: &str) -> Result<Expr> {
        parse_expression(text).map_err(|_| SqlError::unsupported(format!("the default {text}")))?;
        self.default_expression(text, ty, column).map_err(|error| error.without_position())
    }

    /// `PARTITION BY HASH (…)` or `RANGE (…)`.
    fn partitioning(
        &mut self,
        expr: &ast::Expr,
        split_at: Option<&[ast::Expr]>,
        columns: &[Column],
    ) -> Result<Partitioning> {
        let ast::Expr::Function(function) = expr else { return unsupported("this form of PARTITION BY") };
        let method = function.name.to_string().to_lowercase();
        let ast::FunctionArguments::List(ast::FunctionArgumentList {
            duplicate_treatment: None,
            args,
            clauses,
        }) = &function.args
        else {
            return unsupported("this form of PARTITION BY");
        };
        if !clauses.is_empty() {
            return unsupported("this form of PARTITION BY");
        }
        let mut indices = Vec::with_capacity(args.len());
        for argument in args {
            let ident = match argument {
                ast::FunctionArg::Unnamed(ast::FunctionArgExpr::Expr(ast::Expr::Identifier(ident))) => ident,
                _ => return unsupported("PARTITION BY of an expression"),
            };
            let name = fold(ident);
            let index = columns.iter().position(|c| c.name == name).ok_or_else(|| {
                at(
                    SqlError::new(
                        SqlState::UNDEFINED_COLUMN,
                        format!("column \"{name}\" named in partition key does not exist"),
                    ),
                    position_of(ident.span),
                )
            })?;
            if indices.contains(&index) {
                return Err(SqlError::new(
                    SqlState::DUPLICATE_COLUMN,
                    format!("column \"{name}\" appears twice in the partition key"),
                ));
            }
            indices.push(index);
        }
        match (method.as_str(), indices.as_slice()) {
            (_, []) => unsupported("PARTITION BY without a column"),
            ("hash", _) if split_at.is_some() => unsupported("SPLIT AT with PARTITION BY HASH"),
            ("hash", _) => Ok(Partitioning::Hash { columns: indices }),
            ("range", [column]) => {
                let splits = self.split_points(split_at.unwrap_or_default(), &columns[*column])?;
                Ok(Partitioning::Range { column: *column, splits })
            }
            ("range", _) => unsupported("PARTITION BY RANGE of several columns"),
            _ => unsupported(format!("PARTITION BY {}", method.to_uppercase())),
        }
    }

    fn split_points(&mut self, points: &[ast::Expr], column: &Column) -> Result<Vec<Value>> {
        let scope = Scope::empty();
        let context = self.settings.eval_context();
        let mut splits: Vec<Value> = Vec::with_capacity(points.len());
        for point in points {
            let position = position_of(point.span());
            let expr = self.resolve(&scope, Clause::Partition, |r| {
                let term = r.term(point)?;
                r.assign(term, &column.ty, &column.name)
            })?;
            let value = eval_const(&expr, &context).map_err(|e| at(e, position))?;
            let ascends = splits.last().is_none_or(|last| compare(last, &value).is_lt());
            if value.is_null() || !ascends {
                return Err(at(
                    SqlError::new(
                        SqlState::INVALID_PARAMETER_VALUE,
                        "split points must be in ascending order and not null",
                    ),
                    position,
                ));
            }
            splits.push(value);
        }
        Ok(splits)
    }
}

/// The clauses of CREATE TABLE that Carousel has; every other one is an error that names it.
fn clauses(
    create: &ast::CreateTable,
) -> Result<(&[ast::ColumnDef], &[ast::TableConstraint], Option<&ast::Expr>)> {
    let ast::CreateTable {
        or_replace,
        temporary,
        external,
        dynamic,
        global,
        if_not_exists: _,
        transient,
        volatile,
        iceberg,
        snapshot,
        name: _,
        columns,
        constraints,
        hive_distribution,
        hive_formats,
        table_options,
        file_format,
        location,
        query,
        without_rowid,
        like,
        clone,
        version,
        comment,
        on_commit,
        on_cluster,
        primary_key,
        order_by,
        partition_by,
        cluster_by,
        clustered_by,
        inherits,
        partition_of,
        for_values,
        strict,
        copy_grants,
        enable_schema_evolution,
        change_tracking,
        data_retention_time_in_days,
        max_data_extension_time_in_days,
        default_ddl_collation,
        with_aggregation_policy,
        with_row_access_policy,
        with_storage_lifecycle_policy,
        with_tags,
        external_volume,
        base_location,
        catalog,
        catalog_sync,
        storage_serialization_policy,
        target_lag,
        warehouse,
        refresh_mode,
        initialize,
        require_user,
        diststyle,
        distkey,
        sortkey,
        backup,
    } = create;
    let postgres = [
        (*temporary || global.is_some(), "TEMPORARY"),
        (query.is_some(), "AS"),
        (like.is_some(), "LIKE"),
        (inherits.is_some(), "INHERITS"),
        (partition_of.is_some() || for_values.is_some(), "PARTITION OF"),
        (on_commit.is_some(), "ON COMMIT"),
        (!matches!(table_options, ast::CreateTableOptions::None), "WITH (storage parameters) and TABLESPACE"),
    ];
    for (is_there, clause) in postgres {
        if is_there {
            return unsupported(format!("{clause} in CREATE TABLE"));
        }
    }
    let plain_hive = hive_formats.as_ref().is_none_or(
        |ast::HiveFormat { row_format, serde_properties, storage, location }| {
            row_format.is_none() && serde_properties.is_none() && storage.is_none() && location.is_none()
        },
    );
    let foreign = *or_replace
        || *external
        || *dynamic
        || *transient
        || *volatile
        || *iceberg
        || *snapshot
        || !matches!(hive_distribution, ast::HiveDistributionStyle::NONE)
        || !plain_hive
        || file_format.is_some()
        || location.is_some()
        || *without_rowid
        || clone.is_some()
        || version.is_some()
        || comment.is_some()
        || on_cluster.is_some()
        || primary_key.is_some()
        || order_by.is_some()
        || cluster_by.is_some()
        || clustered_by.is_some()
        || *strict
        || *copy_grants
        || enable_schema_evolution.is_some()
        || change_tracking.is_some()
        || data_retention_time_in_days.is_some()
        || max_data_extension_time_in_days.is_some()
        || default_ddl_collation.is_some()
        || with_aggregation_policy.is_some()
        || with_row_access_policy.is_some()
        || with_storage_lifecycle_policy.is_some()
        || with_tags.is_some()
        || external_volume.is_some()
        || base_location.is_some()
        || catalog.is_some()
        || catalog_sync.is_some()
        || storage_serialization_policy.is_some()
        || target_lag.is_some()
        || warehouse.is_some()
        || refresh_mode.is_some()
        || initialize.is_some()
        || *require_user
        || diststyle.is_some()
        || distkey.is_some()
        || sortkey.is_some()
        || backup.is_some();
    if foreign {
        return unsupported("a clause of another database's CREATE TABLE");
    }
    Ok((columns, constraints, partition_by.as_deref()))
}

fn table_name(name: &ast::ObjectName) -> Result<String> {
    match names::table_name(name)? {
        Ok(name) => Ok(name),
        Err(qualified) => {
            let schema = qualified.rsplit_once('.').map_or("", |(schema, _)| schema);
            Err(at(
                SqlError::new(SqlState::UNDEFINED_SCHEMA, format!("schema \"{schema}\" does not exist")),
                position_of(name.span()),
            ))
        }
    }
}

/// What an option of a column is called in errors.
fn option_name(option: &ast::ColumnOption) -> String {
    match option {
        ast::ColumnOption::Unique(_) => "a UNIQUE constraint".into(),
        ast::ColumnOption::ForeignKey(_) => "REFERENCES (a foreign key)".into(),
        ast::ColumnOption::Check(_) => "a CHECK constraint".into(),
        ast::ColumnOption::Generated { .. } => "GENERATED".into(),
        other => format!("the column option {other}"),
    }
}

fn check_primary_key(key: &ast::PrimaryKeyConstraint) -> Result<()> {
    let ast::PrimaryKeyConstraint {
        name: _,
        index_name,
        index_type,
        columns: _,
        index_options,
        characteristics,
    } = key;
    if characteristics.is_some() {
        return unsupported("DEFERRABLE and other characteristics of a constraint");
    }
    if index_name.is_some() || index_type.is_some() || !index_options.is_empty() {
        return unsupported("index options of a PRIMARY KEY");
    }
    Ok(())
}

fn set_primary_key(
    table: &str,
    primary_key: &mut Option<PrimaryKey>,
    key: PrimaryKey,
    position: Option<u32>,
) -> Result<()> {
    if primary_key.is_some() {
        return Err(at(
            SqlError::new(
                SqlState::INVALID_TABLE_DEFINITION,
                format!("multiple primary keys for table \"{table}\" are not allowed"),
            ),
            position,
        ));
    }
    *primary_key = Some(key);
    Ok(())
}

fn table_constraint(
    source: &Source,
    table: &str,
    constraint: &ast::TableConstraint,
    primary_key: &mut Option<PrimaryKey>,
) -> Result<()> {
    let key = match constraint {
        ast::TableConstraint::PrimaryKey(key) => key,
        ast::TableConstraint::Unique(_) => return unsupported("a UNIQUE constraint"),
        ast::TableConstraint::ForeignKey(_) => return unsupported("FOREIGN KEY"),
        ast::TableConstraint::Check(_) => return unsupported("a CHECK constraint"),
        ast::TableConstraint::Index(_)
        | ast::TableConstraint::FulltextOrSpatial(_)
        | ast::TableConstraint::PrimaryKeyUsingIndex(_)
        | ast::TableConstraint::UniqueUsingIndex(_) => return unsupported("an index in CREATE TABLE"),
    };
    check_primary_key(key)?;
    let mut columns = Vec::with_capacity(key.columns.len());
    for ast::IndexColumn { column, operator_class } in &key.columns {
        let ast::OrderByExpr { expr, options: ast::OrderByOptions { asc, nulls_first }, with_fill } = column;
        let plain = operator_class.is_none() && asc.is_none() && nulls_first.is_none() && with_fill.is_none();
        match expr {
            ast::Expr::Identifier(ident) if plain => {
                columns.push((fold(ident), source.operator_before(ident.span, "primary")));
            }
            _ => return unsupported("this form of PRIMARY KEY"),
        }
    }
    let position = columns.first().and_then(|(_, p)| *p);
    set_primary_key(table, primary_key, PrimaryKey { name: key.name.as_ref().map(fold), columns }, position)
}

/// The key's columns by index, which become NOT NULL, and the constraint's name.
fn resolve_primary_key(
    table: &str,
    primary_key: Option<PrimaryKey>,
    columns: &mut [Column],
) -> Result<(Vec<usize>, String)> {
    let default_name = format!("{table}_pkey");
    let Some(PrimaryKey { name, columns: named }) = primary_key else {
        return Ok((Vec::new(), default_name));
    };
    let mut key = Vec::with_capacity(named.len());
    for (column, position) in named {
        let index = columns.iter().position(|c| c.name == column).ok_or_else(|| {
            at(
                SqlError::new(
                    SqlState::UNDEFINED_COLUMN,
                    format!("column \"{column}\" named in key does not exist"),
                ),
                position,
            )
        })?;
        if key.contains(&index) {
            return Err(at(
                SqlError::new(
                    SqlState::DUPLICATE_COLUMN,
                    format!("column \"{column}\" appears twice in primary key constraint"),
                ),
                position,
            ));
        }
        columns[index].not_null = true;
        key.push(index);
    }
    Ok((key, name.unwrap_or(default_name)))
}
