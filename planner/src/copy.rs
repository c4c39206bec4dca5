//! COPY: its options, and rows for COPY FROM.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef};
use carousel_engine::{
    SqlError, SqlState, TableSchema, Value,
    array::{repeat_value, values_to_array},
    error::Result,
    expr::{EvalContext, Expr},
    operation::{OnConflict, RowBatch},
};
use sqlparser::ast;

use crate::{
    above::Above,
    bind::{Binder, Request, complete_rows, insert_request},
    dml::target_columns,
    names::fold,
    parse::{Ast, CopyOption, CopySource, CopyStatement, CopyValue},
    plan::{OutputColumn, Plan, SessionValue},
    select::Planner,
    settings::{IdSource, Settings},
};

/// COPY … FROM STDIN.
#[derive(Clone, Debug)]
pub struct CopyIn {
    /// The table.
    pub table: Arc<TableSchema>,
    /// Indices of the columns that the data has, in the data's order.
    pub columns: Vec<usize>,
    /// How the data is written.
    pub options: CopyOptions,
    /// Defaults of the other visible columns, of the column's type.
    pub(crate) defaults: Vec<(usize, Expr)>,
    /// Session values that the defaults refer to.
    pub(crate) session_values: Vec<SessionValue>,
}

/// COPY … TO STDOUT.
#[derive(Clone, Debug)]
pub struct CopyOut {
    /// What to write; its output columns are those of the planned statement.
    pub query: Plan,
    /// How to write it.
    pub options: CopyOptions,
}

/// The formats of COPY.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyFormat {
    /// text
    Text,
    /// csv
    Csv,
}

/// Whether there is a header line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyHeader {
    /// No header line.
    None,
    /// Written; skipped when read.
    Present,
    /// Must name the columns when read.
    Match,
}

/// The columns that an option of COPY is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CopyColumns {
    /// Every column (`*`).
    All,
    /// Those with these places in the data, counted from 0.
    Some(Vec<usize>),
}

impl CopyColumns {
    /// Whether the column at this place is meant.
    pub fn contains(&self, place: usize) -> bool {
        match self {
            CopyColumns::All => true,
            CopyColumns::Some(places) => places.contains(&place),
        }
    }
}

/// Options of COPY, complete and checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyOptions {
    /// FORMAT
    pub format: CopyFormat,
    /// DELIMITER
    pub delimiter: u8,
    /// NULL
    pub null: String,
    /// HEADER
    pub header: CopyHeader,
    /// QUOTE (csv)
    pub quote: u8,
    /// ESCAPE (csv)
    pub escape: u8,
    /// FORCE_QUOTE (csv, TO)
    pub force_quote: CopyColumns,
    /// FORCE_NOT_NULL (csv, FROM)
    pub force_not_null: CopyColumns,
    /// FORCE_NULL (csv, FROM)
    pub force_null: CopyColumns,
}

/// A row of a COPY that cannot be stored.
#[derive(Clone, Debug)]
pub struct BadRow {
    /// Which row of the batch, counted from 0.
    pub row: usize,
    /// Why.
    pub error: SqlError,
}

impl CopyIn {
    /// Completes parsed columns to rows that can be inserted: adds defaults and hidden row identifiers, checks NOT NULL
    /// and computes ring positions.
    ///
    /// `columns` are in the data's order, of the Arrow types of the table's columns, with lengths and ranges already
    /// checked. `first_ordinal` is the number of rows of the statement before this batch.
    pub fn rows(
        &self,
        columns: Vec<ArrayRef>,
        first_ordinal: u64,
        settings: &Settings,
        ids: &mut dyn IdSource,
    ) -> Result<RowBatch, BadRow> {
        let whole = |error| BadRow { row: 0, error };
        if columns.len() != self.columns.len() {
            return Err(whole(SqlError::internal("COPY got another number of columns")));
        }
        let row_count = columns.first().map_or(0, |c| c.len());
        let mut arrays: Vec<Option<ArrayRef>> = vec![None; self.table.visible_columns().len()];
        for (target, array) in self.columns.iter().zip(columns) {
            arrays[*target] = Some(array);
        }
        let mut binder = Binder::new(&[], settings, ids, &self.session_values);
        for (target, default) in &self.defaults {
            let ty = &self.table.columns[*target].ty;
            let array = if binder.is_volatile(default) {
                let values = (0..row_count).map(|_| binder.constant(default)).collect::<Result<Vec<Value>>>();
                values.and_then(|values| values_to_array(&values, ty))
            } else {
                binder.constant(default).and_then(|value| repeat_value(&value, ty, row_count))
            };
            arrays[*target] = Some(array.map_err(whole)?);
        }
        let arrays: Option<Vec<ArrayRef>> = arrays.into_iter().collect();
        let arrays = arrays.ok_or_else(|| whole(SqlError::internal("COPY left a column without a value")))?;
        complete_rows(&self.table, arrays, row_count, first_ordinal, &settings.eval_context(), ids)
    }

    /// The request that inserts rows: all or none of them.
    pub fn request(&self, rows: RowBatch) -> Result<Request> {
        // No expression is left that could depend on the session.
        let context = EvalContext::default();
        Ok(insert_request(&self.table, rows, OnConflict::Fail, None, Above::nothing(), context))
    }
}

fn error(code: SqlState, message: impl Into<String>) -> SqlError {
    SqlError::new(code, message)
}

impl Planner<'_> {
    pub(crate) fn copy(&mut self, copy: &CopyStatement) -> Result<(Plan, Option<Vec<OutputColumn>>)> {
        let CopyStatement { source, to, options } = copy;
        match source {
            CopySource::Query(statement) => {
                let Ast::Sql(ast::Statement::Query(query)) = statement.tree.root() else {
                    return Err(SqlError::unsupported("COPY of anything but a SELECT or VALUES"));
                };
                let (query, columns) = self.any_query(query)?;
                let names: Vec<String> = columns.iter().map(|c| c.name.clone()).collect();
                let options = resolve_options(options, *to, &names, None)?;
                Ok((Plan::CopyOut(Box::new(CopyOut { query, options })), Some(columns)))
            }
            CopySource::Table { name, columns } => {
                let table = self.table(name).map_err(|e| e.without_position())?;
                let names: Vec<ast::ObjectName> =
                    columns.iter().map(|c| ast::ObjectName::from(vec![c.clone()])).collect();
                let columns = target_columns(&table, &names).map_err(|e| e.without_position())?;
                let names: Vec<String> = columns.iter().map(|c| table.columns[*c].name.clone()).collect();
                let options = resolve_options(options, *to, &names, Some(&table))?;
                if *to {
                    let (query, output) = self.table_query(&table, &columns)?;
                    let query = Plan::Query(Box::new(query));
                    return Ok((Plan::CopyOut(Box::new(CopyOut { query, options })), Some(output)));
                }
                let mut defaults = Vec::new();
                for column in (0..table.visible_columns().len()).filter(|c| !columns.contains(c)) {
                    defaults.push((column, self.default_of(&table, column)?));
                }
                let session_values = self.shared.session_values.clone();
                let plan = CopyIn { table, columns, options, defaults, session_values };
                Ok((Plan::CopyIn(Box::new(plan)), None))
            }
        }
    }
}

/// A string option of one byte.
fn one_byte(text: &str, what: &str) -> Result<u8> {
    match text.as_bytes() {
        [byte] => Ok(*byte),
        _ => Err(error(
            SqlState::FEATURE_NOT_SUPPORTED,
            format!("COPY {what} must be a single one-byte character"),
        )),
    }
}

fn boolean(option: &CopyOption) -> Result<bool> {
    match &option.value {
        CopyValue::None => Ok(true),
        CopyValue::Text(text) => match text.to_lowercase().as_str() {
            "true" | "on" | "1" => Ok(true),
            "false" | "off" | "0" => Ok(false),
            _ => Err(error(SqlState::SYNTAX_ERROR, format!("{} requires a Boolean value", option.name))),
        },
        _ => Err(error(SqlState::SYNTAX_ERROR, format!("{} requires a Boolean value", option.name))),
    }
}

fn text(option: &CopyOption) -> Result<&str> {
    match &option.value {
        CopyValue::Text(text) => Ok(text),
        _ => Err(error(SqlState::SYNTAX_ERROR, format!("{} requires a parameter", option.name))),
    }
}

fn header(option: &CopyOption, to: bool) -> Result<CopyHeader> {
    if let CopyValue::Text(text) = &option.value
        && text.eq_ignore_ascii_case("match")
    {
        return if to {
            Err(error(SqlState::FEATURE_NOT_SUPPORTED, "cannot use \"match\" with HEADER in COPY TO"))
        } else {
            Ok(CopyHeader::Match)
        };
    }
    match boolean(option) {
        Ok(true) => Ok(CopyHeader::Present),
        Ok(false) => Ok(CopyHeader::None),
        Err(_) => Err(error(SqlState::SYNTAX_ERROR, "header requires a Boolean value or \"match\"")),
    }
}

/// The places of the columns that an option names.
fn places(option: &CopyOption, names: &[String], table: Option<&TableSchema>) -> Result<CopyColumns> {
    let columns = match &option.value {
        CopyValue::Star if option.name == "force_quote" => return Ok(CopyColumns::All),
        CopyValue::Columns(columns) => columns,
        _ => {
            return Err(error(
                SqlState::INVALID_PARAMETER_VALUE,
                format!("argument to option \"{}\" must be a list of column names", option.name),
            )
            .at(option.position));
        }
    };
    let mut places = Vec::with_capacity(columns.len());
    for ident in columns {
        let name = fold(ident);
        match names.iter().position(|n| *n == name) {
            Some(place) => places.push(place),
            None => {
                return Err(match table {
                    Some(table) if table.column(&name).is_none() => error(
                        SqlState::UNDEFINED_COLUMN,
                        format!("column \"{name}\" of relation \"{}\" does not exist", table.name),
                    ),
                    _ => error(
                        SqlState::INVALID_COLUMN_REFERENCE,
                        format!("{} column \"{name}\" not referenced by COPY", option.name.to_uppercase()),
                    ),
                });
            }
        }
    }
    Ok(CopyColumns::Some(places))
}

/// Checks options as PostgreSQL's `ProcessCopyOptions` does and fills in defaults.
fn resolve_options(
    given: &[CopyOption],
    to: bool,
    names: &[String],
    table: Option<&TableSchema>,
) -> Result<CopyOptions> {
    let find = |name: &str| given.iter().find(|o| o.name == name);
    for (index, option) in given.iter().enumerate() {
        const KNOWN: &[&str] = &[
            "format",
            "freeze",
            "delimiter",
            "null",
            "header",
            "quote",
            "escape",
            "force_quote",
            "force_not_null",
            "force_null",
            "encoding",
        ];
        if !KNOWN.contains(&option.name.as_str()) {
            return Err(error(SqlState::SYNTAX_ERROR, format!("option \"{}\" not recognized", option.name))
                .at(option.position));
        }
        if given[..index].iter().any(|o| o.name == option.name) {
            return Err(error(SqlState::SYNTAX_ERROR, "conflicting or redundant options").at(option.position));
        }
    }
    let format = match find("format") {
        None => CopyFormat::Text,
        Some(option) => match text(option)? {
            "text" => CopyFormat::Text,
            "csv" => CopyFormat::Csv,
            "binary" => return Err(SqlError::unsupported("COPY with format binary")),
            other => {
                return Err(error(
                    SqlState::INVALID_PARAMETER_VALUE,
                    format!("COPY format \"{other}\" not recognized"),
                )
                .at(option.position));
            }
        },
    };
    if let Some(option) = find("freeze")
        && boolean(option)?
    {
        return Err(SqlError::unsupported("COPY with FREEZE"));
    }
    if let Some(option) = find("encoding") {
        let encoding = text(option)?.to_lowercase().replace(['-', '_'], "");
        if !matches!(encoding.as_str(), "utf8" | "unicode") {
            return Err(SqlError::unsupported(format!("COPY with encoding {}", text(option)?)));
        }
    }
    let csv = format == CopyFormat::Csv;
    let invalid = |message: String| error(SqlState::INVALID_PARAMETER_VALUE, message);
    let delimiter = match find("delimiter") {
        None if csv => b',',
        None => b'\t',
        Some(option) => one_byte(text(option)?, "delimiter")?,
    };
    if matches!(delimiter, b'\n' | b'\r') {
        return Err(invalid("COPY delimiter cannot be newline or carriage return".into()));
    }
    let null = match find("null") {
        None if csv => String::new(),
        None => "\\N".into(),
        Some(option) => text(option)?.to_owned(),
    };
    if null.contains(['\n', '\r']) {
        return Err(invalid("COPY null representation cannot use newline or carriage return".into()));
    }
    if !csv
        && (delimiter.is_ascii_lowercase() || delimiter.is_ascii_digit() || matches!(delimiter, b'\\' | b'.'))
    {
        return Err(invalid(format!("COPY delimiter cannot be \"{}\"", char::from(delimiter))));
    }
    let header = find("header").map_or(Ok(CopyHeader::None), |option| header(option, to))?;
    let csv_only = |name: &str, what: &str| match find(name) {
        Some(_) if !csv => {
            Err(error(SqlState::FEATURE_NOT_SUPPORTED, format!("COPY {what} available only in CSV mode")))
        }
        option => Ok(option),
    };
    let quote = match csv_only("quote", "quote")? {
        None => b'"',
        Some(option) => one_byte(text(option)?, "quote")?,
    };
    if csv && delimiter == quote {
        return Err(invalid("COPY delimiter and quote must be different".into()));
    }
    let escape = match csv_only("escape", "escape")? {
        None => quote,
        Some(option) => one_byte(text(option)?, "escape")?,
    };
    let columns = |name: &str, what: &str, only_to: bool| match csv_only(name, what)? {
        None => Ok(CopyColumns::Some(Vec::new())),
        Some(_) if only_to != to => Err(error(
            SqlState::FEATURE_NOT_SUPPORTED,
            format!("COPY {what} only available using COPY {}", if only_to { "TO" } else { "FROM" }),
        )),
        Some(option) => places(option, names, table),
    };
    let force_quote = columns("force_quote", "force quote", true)?;
    let force_not_null = columns("force_not_null", "force not null", false)?;
    let force_null = columns("force_null", "force null", false)?;
    if null.as_bytes().contains(&delimiter) {
        return Err(error(
            SqlState::FEATURE_NOT_SUPPORTED,
            "COPY delimiter must not appear in the NULL specification",
        ));
    }
    if csv && null.as_bytes().contains(&quote) {
        return Err(error(
            SqlState::FEATURE_NOT_SUPPORTED,
            "CSV quote character must not appear in the NULL specification",
        ));
    }
    Ok(CopyOptions {
        format,
        delimiter,
        null,
        header,
        quote,
        escape,
        force_quote,
        force_not_null,
        force_null,
    })
}
