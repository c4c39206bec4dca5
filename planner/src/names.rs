//! Names: identifiers, tables, and the columns that an expression may refer to.

use std::sync::Arc;

use carousel_cluster::catalog::Catalog;
use carousel_engine::{SqlError, SqlState, TableId, TableSchema, Type, error::Result};
use sqlparser::ast::{self, Ident, ObjectName, ObjectNamePart, Spanned};

use crate::{
    parse::position_of,
    relational::{SystemView, system_view},
};

/// The schema that every table is in.
const SCHEMA: &str = "public";
/// PostgreSQL cuts identifiers to this many bytes.
const MAX_IDENTIFIER: usize = 63;

/// An identifier as PostgreSQL folds it: lower case unless quoted, but for letters outside of ASCII, cut to 63 bytes.
pub(crate) fn fold(ident: &Ident) -> String {
    let mut name =
        if ident.quote_style.is_some() { ident.value.clone() } else { ident.value.to_ascii_lowercase() };
    let mut end = name.len().min(MAX_IDENTIFIER);
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    name.truncate(end);
    name
}

/// The parts of a name, folded.
pub(crate) fn parts(name: &ObjectName) -> Result<Vec<String>> {
    name.0
        .iter()
        .map(|part| match part {
            ObjectNamePart::Identifier(ident) => Ok(fold(ident)),
            ObjectNamePart::Function(_) => Err(SqlError::unsupported(format!("the name {name}"))),
        })
        .collect()
}

/// Adds a position if there is one.
pub(crate) fn at(error: SqlError, position: Option<u32>) -> SqlError {
    match position {
        Some(position) if error.position.is_none() => error.at(position),
        _ => error,
    }
}

/// A table's name with its schema checked. `Err` holds the name to complain about.
pub(crate) fn table_name(name: &ObjectName) -> Result<Result<String, String>> {
    let parts = parts(name)?;
    match parts.as_slice() {
        [table] => Ok(Ok(table.clone())),
        [schema, table] if schema == SCHEMA => Ok(Ok(table.clone())),
        [schema, table] => Ok(Err(format!("{schema}.{table}"))),
        [_, schema, table] if schema == SCHEMA => Ok(Ok(table.clone())),
        _ => Ok(Err(parts.join("."))),
    }
}

/// The table with this name; 42P01 at the name, and 42809 for a system view's.
pub(crate) fn table<'a>(catalog: &'a Catalog, name: &ObjectName) -> Result<&'a Arc<TableSchema>> {
    if let Some(view) = system_view(name).filter(|view| SystemView::named(view).is_ok()) {
        let error = SqlError::new(SqlState(*b"42809"), format!("\"{view}\" is not a table"));
        let error = error.with_hint("A system view is read by SELECT, and cannot be written.");
        return Err(at(error, position_of(name.span())));
    }
    let missing = match table_name(name)? {
        Ok(known) => match catalog.table(&known) {
            Some(table) => return Ok(table),
            None => parts(name)?.join("."),
        },
        Err(missing) => missing,
    };
    Err(at(
        SqlError::new(SqlState::UNDEFINED_TABLE, format!("relation \"{missing}\" does not exist")),
        position_of(name.span()),
    ))
}

/// A column that expressions may refer to.
#[derive(Clone, Debug)]
pub(crate) struct ScopeColumn {
    pub(crate) name: String,
    /// Index in the input row.
    pub(crate) index: usize,
    pub(crate) ty: Type,
    /// The table's column that it is, unchanged.
    pub(crate) origin: Option<(TableId, usize)>,
}

/// What stands in FROM under a name: a table, or anything that has been given an alias.
#[derive(Clone, Debug)]
pub(crate) struct Relation {
    /// Its name or alias.
    pub(crate) name: String,
    /// Whether `name` is the table's own, so that `public.name` means it, too.
    pub(crate) is_table_name: bool,
    /// Its definition, when it is a table.
    pub(crate) table: Option<Arc<TableSchema>>,
    /// The visible columns (an alias may rename them).
    pub(crate) columns: Vec<ScopeColumn>,
}

impl Relation {
    /// A table under its alias, if it has one.
    pub(crate) fn new(table: &Arc<TableSchema>, alias: Option<&ast::TableAlias>) -> Result<Relation> {
        let columns = table.visible_columns().iter().enumerate().map(|(index, column)| ScopeColumn {
            name: column.name.clone(),
            index,
            ty: column.ty.clone(),
            origin: Some((table.id, index)),
        });
        let relation = Relation {
            name: table.name.clone(),
            is_table_name: alias.is_none(),
            table: Some(table.clone()),
            columns: columns.collect(),
        };
        match alias {
            None => Ok(relation),
            Some(alias) => relation.renamed(alias),
        }
    }

    /// The relation under an alias.
    pub(crate) fn renamed(mut self, alias: &ast::TableAlias) -> Result<Relation> {
        let ast::TableAlias { explicit: _, name: alias, columns: renamed, at } = alias;
        if at.is_some() {
            return Err(SqlError::unsupported("AT in a table alias"));
        }
        self.name = fold(alias);
        if renamed.len() > self.columns.len() {
            return Err(SqlError::new(
                SqlState::INVALID_COLUMN_REFERENCE,
                format!(
                    "table \"{}\" has {} columns available but {} columns specified",
                    self.name,
                    self.columns.len(),
                    renamed.len()
                ),
            ));
        }
        for (column, ast::TableAliasColumnDef { name, data_type }) in self.columns.iter_mut().zip(renamed) {
            if data_type.is_some() {
                return Err(SqlError::unsupported("a column definition list for a table"));
            }
            column.name = fold(name);
        }
        Ok(self)
    }

    /// The relation with its columns further behind in the input row.
    pub(crate) fn shifted(mut self, offset: usize) -> Relation {
        self.columns.iter_mut().for_each(|column| column.index += offset);
        self
    }
}

/// A column that was found.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    /// Index in the input row.
    pub(crate) index: usize,
    pub(crate) ty: Type,
}

/// What expressions may refer to.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scope {
    pub(crate) relations: Vec<Relation>,
    /// The columns that need no qualifier, in the order of `*`, where they are not just those of the relations: after
    /// JOIN … USING.
    pub(crate) unqualified: Option<Vec<ScopeColumn>>,
    /// Around a subquery: what the query that it stands in may refer to.
    pub(crate) outer: Option<Arc<Scope>>,
}

/// The number of a column of the query `level` levels further out.
pub(crate) const fn outer_column(level: usize, index: usize) -> usize {
    (level << 32) | index
}

/// How many levels further out a column is, and its index there.
pub(crate) const fn outer_level(index: usize) -> (usize, usize) {
    (index >> 32, index & ((1 << 32) - 1))
}

impl Scope {
    /// No tables.
    pub(crate) fn empty() -> Scope {
        Scope::default()
    }

    /// One table.
    pub(crate) fn table(table: &Arc<TableSchema>, alias: Option<&ast::TableAlias>) -> Result<Scope> {
        Ok(Scope::of(vec![Relation::new(table, alias)?]))
    }

    /// These relations, whose columns have their places in the input row.
    pub(crate) fn of(relations: Vec<Relation>) -> Scope {
        Scope { relations, unqualified: None, outer: None }
    }

    /// The columns that need no qualifier, in the order of `*`.
    pub(crate) fn visible(&self) -> Vec<&ScopeColumn> {
        match &self.unqualified {
            Some(columns) => columns.iter().collect(),
            None => self.relations.iter().flat_map(|r| &r.columns).collect(),
        }
    }

    /// The table that a qualifier names; `None` when there is none of that name.
    pub(crate) fn relation(&self, qualifier: &[String]) -> Option<&Relation> {
        self.relations.iter().find(|r| match qualifier {
            [name] => *name == r.name,
            [schema, name] | [_, schema, name] => schema == SCHEMA && r.is_table_name && *name == r.name,
            _ => false,
        })
    }

    /// The error for a qualifier that names no table: 42P01.
    pub(crate) fn missing_relation(&self, qualifier: &[String], position: Option<u32>) -> SqlError {
        let name = qualifier.join(".");
        let aliased = self.relations.iter().find(|r| {
            !r.is_table_name
                && r.table.as_ref().is_some_and(|t| qualifier.last() == Some(&t.name) && r.name != t.name)
        });
        let error = match aliased {
            Some(relation) => SqlError::new(
                SqlState::UNDEFINED_TABLE,
                format!("invalid reference to FROM-clause entry for table \"{name}\""),
            )
            .with_hint(format!("Perhaps you meant to reference the table alias \"{}\".", relation.name)),
            None => SqlError::new(
                SqlState::UNDEFINED_TABLE,
                format!("missing FROM-clause entry for table \"{name}\""),
            ),
        };
        at(error, position)
    }

    /// Finds `column` or `table.column`, here or further out. Errors: 42703, 42702, 42P01.
    pub(crate) fn column(&self, idents: &[Ident]) -> Result<Found> {
        // A table that has no such column hides those of the same name further out.
        let goes_on = if idents.len() > 1 { SqlState::UNDEFINED_TABLE } else { SqlState::UNDEFINED_COLUMN };
        let missing = match self.column_here(idents) {
            Err(error) if error.code == goes_on => error,
            found => return found,
        };
        let mut scope = self;
        for level in 1.. {
            let Some(outer) = &scope.outer else { break };
            match outer.column_here(idents) {
                Ok(Found { index, ty }) => return Ok(Found { index: outer_column(level, index), ty }),
                Err(error) if error.code == goes_on => {}
                Err(error) => return Err(error),
            }
            scope = outer;
        }
        Err(missing)
    }

    fn column_here(&self, idents: &[Ident]) -> Result<Found> {
        let names: Vec<String> = idents.iter().map(fold).collect();
        let position = idents.first().and_then(|i| position_of(i.span));
        let Some((name, qualifier)) = names.split_last() else {
            return Err(SqlError::internal("a column reference without a name"));
        };
        let (candidates, relations): (Vec<&ScopeColumn>, Vec<&Relation>) = if qualifier.is_empty() {
            (self.visible(), self.relations.iter().collect())
        } else {
            match self.relation(qualifier) {
                Some(relation) => (relation.columns.iter().collect(), vec![relation]),
                None => return Err(self.missing_relation(qualifier, position)),
            }
        };
        let mut found: Vec<&ScopeColumn> = candidates.into_iter().filter(|c| c.name == *name).collect();
        match found.len() {
            1 => {
                let column = found.swap_remove(0);
                Ok(Found { index: column.index, ty: column.ty.clone() })
            }
            0 if qualifier.is_empty() && self.relations.iter().any(|r| r.name == *name) => {
                Err(at(SqlError::unsupported(format!("a reference to the whole row \"{name}\"")), position))
            }
            0 => {
                let message = if qualifier.is_empty() {
                    format!("column \"{name}\" does not exist")
                } else {
                    format!("column {}.{name} does not exist", qualifier.join("."))
                };
                let mut error = SqlError::new(SqlState::UNDEFINED_COLUMN, message);
                error.hint = similar_columns(name, &relations);
                Err(at(error, position))
            }
            _ => Err(at(
                SqlError::new(
                    SqlState::AMBIGUOUS_COLUMN,
                    format!("column reference \"{name}\" is ambiguous"),
                ),
                position,
            )),
        }
    }

    /// The name of an input column as PostgreSQL writes it in errors: `table.column`.
    pub(crate) fn describe(&self, index: usize) -> String {
        for relation in &self.relations {
            if let Some(column) = relation.columns.iter().find(|c| c.index == index) {
                return format!("{}.{}", relation.name, column.name);
            }
        }
        let merged = self.unqualified.iter().flatten().find(|c| c.index == index);
        merged.map_or_else(|| format!("column {index}"), |c| c.name.clone())
    }
}

/// Adds PostgreSQL's HINT to the error for a column (42703) that the table which is written has, but that cannot be
/// referred to.
pub(crate) fn explain_hidden(mut error: SqlError, table: &TableSchema) -> SqlError {
    let missing =
        error.message.strip_prefix("column \"").and_then(|rest| rest.strip_suffix("\" does not exist"));
    if let (SqlState::UNDEFINED_COLUMN, Some(name), None) = (error.code, missing, &error.hint)
        && table.visible_columns().iter().any(|column| column.name == name)
    {
        error.hint = Some(format!(
            "There is a column named \"{name}\" in table \"{}\", but it cannot be referenced from this part of the query.",
            table.name
        ));
    }
    error
}

/// PostgreSQL's HINT for a misspelt column: those at the smallest edit distance, if there are at most two.
pub(crate) fn similar_columns(name: &str, relations: &[&Relation]) -> Option<String> {
    const FARTHEST: usize = 3;
    let mut best = FARTHEST + 1;
    let mut found: Vec<String> = Vec::new();
    for relation in relations {
        for ScopeColumn { name: column, .. } in &relation.columns {
            let distance = edit_distance(name, column);
            if distance > name.len() / 2 || distance > best {
                continue;
            }
            if distance < best {
                best = distance;
                found.clear();
            }
            if best <= FARTHEST {
                found.push(format!("\"{}.{column}\"", relation.name));
            }
        }
    }
    match found.as_slice() {
        [one] => Some(format!("Perhaps you meant to reference the column {one}.")),
        [one, two] => Some(format!("Perhaps you meant to reference the column {one} or the column {two}.")),
        _ => None,
    }
}

/// Levenshtein distance in characters.
fn edit_distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let substituted = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edit_distances() {
        for (a, b, distance) in
            [("", "abc", 3), ("nope", "nope", 0), ("naem", "name", 2), ("carier", "carrier", 1)]
        {
            assert_eq!(edit_distance(a, b), distance, "{a} {b}");
        }
    }
}
