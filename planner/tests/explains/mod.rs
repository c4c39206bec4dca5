//! Plans as EXPLAIN shows them.

use crate::support::{catalog, explain};

#[test]
fn plans_are_shown() {
    let catalog = catalog(include_str!("../statements/schema.sql"));
    let mut text = String::new();
    for sql in include_str!("statements.txt").lines() {
        text.push_str(&format!("{sql}\n{}\n\n", explain(&catalog, sql, &[])));
    }
    insta::assert_snapshot!("explains", text);
}
