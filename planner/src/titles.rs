//! Names of output columns without an alias, as PostgreSQL chooses them.

use sqlparser::ast::{self, Expr, SelectItem, SetExpr};

use crate::{names::fold, types};

/// How good a name is: a cast takes its operand's name only when that is a proper one.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Strength {
    None,
    Weak,
    Proper,
}

/// The name of an output column that is this expression.
pub(crate) fn title(expr: &Expr) -> String {
    match find(expr) {
        (_, Strength::None) => "?column?".into(),
        (name, _) => name,
    }
}

/// The first output column of a query.
fn first_item(body: &SetExpr) -> Option<&SelectItem> {
    match body {
        SetExpr::Select(select) => select.projection.first(),
        SetExpr::Query(query) => first_item(&query.body),
        SetExpr::SetOperation { left, .. } => first_item(left),
        _ => None,
    }
}

fn find(expr: &Expr) -> (String, Strength) {
    let proper = |name: &str| (name.to_owned(), Strength::Proper);
    match expr {
        Expr::Identifier(ident) => (fold(ident), Strength::Proper),
        Expr::CompoundIdentifier(idents) => (idents.last().map(fold).unwrap_or_default(), Strength::Proper),
        Expr::Nested(inner) | Expr::Collate { expr: inner, .. } => find(inner),
        Expr::Function(function) => match function.name.0.last() {
            Some(ast::ObjectNamePart::Identifier(ident)) => (fold(ident), Strength::Proper),
            _ => (String::new(), Strength::None),
        },
        Expr::Cast { expr: inner, data_type, .. } => match find(inner) {
            found @ (_, Strength::Proper) => found,
            found => match types::resolve(data_type) {
                Ok(ty) => (types::internal_name(&ty).to_owned(), Strength::Weak),
                Err(_) => found,
            },
        },
        Expr::TypedString(typed) => match types::resolve(&typed.data_type) {
            Ok(ty) => (types::internal_name(&ty).to_owned(), Strength::Weak),
            Err(_) => (String::new(), Strength::None),
        },
        Expr::Interval(_) => ("interval".into(), Strength::Weak),
        Expr::Case { else_result, .. } => match else_result.as_deref().map(find) {
            Some(found @ (_, Strength::Proper)) => found,
            _ => ("case".into(), Strength::Weak),
        },
        Expr::Extract { .. } => proper("extract"),
        Expr::Ceil { .. } => proper("ceil"),
        Expr::Floor { .. } => proper("floor"),
        Expr::Position { .. } => proper("position"),
        Expr::Substring { shorthand, .. } => proper(if *shorthand { "substr" } else { "substring" }),
        Expr::Overlay { .. } => proper("overlay"),
        Expr::AtTimeZone { .. } => proper("timezone"),
        Expr::Trim { trim_where, .. } => proper(match trim_where {
            Some(ast::TrimWhereField::Leading) => "ltrim",
            Some(ast::TrimWhereField::Trailing) => "rtrim",
            _ => "btrim",
        }),
        Expr::Exists { negated: false, .. } => proper("exists"),
        Expr::Subquery(query) => match first_item(&query.body) {
            Some(SelectItem::UnnamedExpr(expr)) => find(expr),
            Some(SelectItem::ExprWithAlias { alias, .. }) => (fold(alias), Strength::Proper),
            _ => (String::new(), Strength::None),
        },
        Expr::Array(_) => proper("array"),
        Expr::Tuple(_) => proper("row"),
        _ => (String::new(), Strength::None),
    }
}
