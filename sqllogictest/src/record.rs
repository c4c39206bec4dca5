//! Recording a suite: a script of SQL statements in, an `.slt` file with the server's answers out.
//!
//! In the script a statement ends with a `;` at the end of a line. A line that begins with `--` between statements is
//! kept as a comment, a blank line separates groups, and a line that begins with `\` is a directive: `\rowsort` for the
//! next query, anything else (`\connection name`, `\skipif label`) is copied without its backslash.

use std::collections::HashMap;

use crate::{
    session::{ServerError, Session},
    suite::SEPARATOR,
};

/// Commands whose tag counts rows, so that the count belongs to the answer.
const COUNTED: &[&str] = &["insert", "update", "delete"];

/// Runs `script` against the server at `url` and returns the text of the suite.
pub async fn record(url: &str, script: &str) -> Result<String, ServerError> {
    let mut out = String::new();
    let mut sessions: HashMap<String, Session> = HashMap::new();
    let mut connection = String::new();
    let mut rowsort = false;
    let mut statement = String::new();
    for line in script.lines() {
        if statement.is_empty() {
            if line.trim().is_empty() {
                continue;
            }
            if let Some(comment) = line.strip_prefix("--") {
                out += &format!("#{comment}\n");
                continue;
            }
            if let Some(directive) = line.strip_prefix('\\') {
                match directive.split_once(' ') {
                    None if directive == "rowsort" => rowsort = true,
                    Some(("connection", name)) => {
                        connection = name.to_owned();
                        out += &format!("{directive}\n");
                    }
                    _ => out += &format!("{directive}\n"),
                }
                continue;
            }
        } else {
            statement.push('\n');
        }
        statement += line.trim_end();
        let Some(sql) = statement.strip_suffix(';') else { continue };
        // The crate's `connection` directive holds for one record.
        let name = std::mem::take(&mut connection);
        if !sessions.contains_key(&name) {
            sessions.insert(name.clone(), Session::connect(url).await?);
        }
        let session = sessions.get_mut(&name).expect("inserted above");
        out += &one_record(session, sql, std::mem::take(&mut rowsort)).await;
        statement.clear();
    }
    Ok(out)
}

/// The record of one statement, with its answer.
async fn one_record(session: &mut Session, sql: &str, rowsort: bool) -> String {
    match session.execute(sql).await {
        Err(error) => format!("statement error\n{sql}\n----\n{error}\n\n\n"),
        Ok(answer) if answer.types.is_empty() => {
            let verb = sql.split_whitespace().next().unwrap_or_default().to_ascii_lowercase();
            match COUNTED.contains(&verb.as_str()) {
                true => format!("statement count {}\n{sql}\n\n", answer.count),
                false => format!("statement ok\n{sql}\n\n"),
            }
        }
        Ok(answer) => {
            let types: String = answer.types.iter().map(|ty| ty.0).collect();
            let mut rows = answer.rows;
            let sort = match rowsort {
                true => {
                    rows.sort_unstable();
                    " rowsort"
                }
                false => "",
            };
            let mut text = format!("query {types}{sort}\n{sql}\n----\n");
            for row in rows {
                text += row.join(SEPARATOR).trim_end();
                text.push('\n');
            }
            text.push('\n');
            text
        }
    }
}
