//! What CREATE TABLE makes, and what it refuses.

use carousel_engine::{
    Value,
    schema::{Partitioning, ROW_ID},
};

use crate::support::{catalog, outcome};

#[test]
fn a_table_is_partitioned_by_its_key_or_as_it_says() {
    let catalog = catalog(
        "CREATE TABLE keyed (a integer, b text, PRIMARY KEY (b, a));
         CREATE TABLE plain (a integer);
         CREATE TABLE hashed (a integer, b integer, c integer, CONSTRAINT k PRIMARY KEY (a, b)) PARTITION BY HASH (b);
         CREATE TABLE ranged (a integer, d date) PARTITION BY RANGE (d) SPLIT AT ('2013-01-01', date '2014-01-01');
         CREATE TABLE whole (a integer PRIMARY KEY) PARTITION BY RANGE (a);",
    );
    let table = |name: &str| catalog.table(name).expect("it was created").clone();
    assert_eq!(table("keyed").partitioning, Partitioning::Hash { columns: vec![1, 0] });
    assert!(table("keyed").columns.iter().all(|c| c.not_null));
    assert_eq!(table("keyed").primary_key_name, "keyed_pkey");
    assert_eq!(table("plain").columns[1].name, ROW_ID);
    assert_eq!(table("plain").partitioning, Partitioning::Hash { columns: vec![1] });
    assert_eq!(table("hashed").partitioning, Partitioning::Hash { columns: vec![1] });
    assert_eq!(table("hashed").primary_key_name, "k");
    let splits = vec![Value::Date(15_706), Value::Date(16_071)];
    assert_eq!(table("ranged").partitioning, Partitioning::Range { column: 1, splits });
    assert_eq!(table("ranged").row_id(), Some(2));
    assert_eq!(table("whole").partitioning, Partitioning::Range { column: 0, splits: Vec::new() });
}

#[test]
fn what_is_not_supported_is_refused_by_name() {
    let catalog = catalog("CREATE TABLE t (a integer PRIMARY KEY, b integer)");
    let cases = [
        ("CREATE TABLE u (a integer UNIQUE)", "a UNIQUE constraint"),
        ("CREATE TABLE u (a integer, UNIQUE (a))", "a UNIQUE constraint"),
        ("CREATE TABLE u (a integer REFERENCES t)", "REFERENCES (a foreign key)"),
        ("CREATE TABLE u (a integer, FOREIGN KEY (a) REFERENCES t (a))", "FOREIGN KEY"),
        ("CREATE TABLE u (a integer CHECK (a > 0))", "a CHECK constraint"),
        ("CREATE TABLE u (a integer GENERATED ALWAYS AS IDENTITY)", "GENERATED"),
        ("CREATE TABLE u (a serial)", "type serial"),
        ("CREATE TABLE u (a interval)", "a column of type interval"),
        ("CREATE TABLE u (a json)", "type json"),
        ("CREATE TABLE u (a integer[])", "type integer[]"),
        ("CREATE TEMP TABLE u (a integer)", "TEMPORARY in CREATE TABLE"),
        ("CREATE UNLOGGED TABLE u (a integer)", "CREATE UNLOGGED TABLE"),
        ("CREATE TABLE u (a integer) INHERITS (t)", "INHERITS in CREATE TABLE"),
        ("CREATE TABLE u (LIKE t)", "LIKE in CREATE TABLE"),
        ("CREATE TABLE u AS SELECT 1", "AS in CREATE TABLE"),
        ("CREATE TABLE u (a integer) PARTITION BY LIST (a)", "PARTITION BY LIST"),
        (
            "CREATE TABLE u (a integer, b integer) PARTITION BY RANGE (a, b)",
            "PARTITION BY RANGE of several columns",
        ),
        ("CREATE TABLE u (a integer) SPLIT AT (1)", "SPLIT AT without PARTITION BY RANGE"),
        ("CREATE TABLE u (a integer) PARTITION BY HASH (a) SPLIT AT (1)", "SPLIT AT with PARTITION BY HASH"),
        (
            "CREATE TABLE u (a integer PRIMARY KEY, b integer) PARTITION BY HASH (b)",
            "a primary key without all partitioning columns",
        ),
        ("CREATE INDEX i ON t (a)", "CREATE INDEX"),
        ("CREATE VIEW v AS SELECT 1", "CREATE VIEW"),
        ("ALTER TABLE t ADD COLUMN c integer", "ALTER TABLE"),
        ("DROP VIEW v", "DROP VIEW"),
        ("UPDATE t SET a = 2", "an update of the primary key column \"a\""),
        ("UPDATE t SET b = 1 FROM t AS u", "UPDATE … FROM"),
        ("DELETE FROM t USING t AS u", "DELETE … USING"),
        ("UPDATE t SET b = 1 WHERE a IN (SELECT 1)", "a subquery"),
        ("DELETE FROM t WHERE EXISTS (SELECT 1)", "a subquery"),
        (
            "WITH RECURSIVE u AS (SELECT 1 UNION SELECT * FROM u) SELECT * FROM u",
            "WITH RECURSIVE of a query that refers to itself",
        ),
        (
            "SELECT sum(a) OVER (ORDER BY a RANGE 1 PRECEDING) FROM t",
            "RANGE with an offset in a window's frame",
        ),
        ("SELECT grouping(a) FROM t GROUP BY a", "function grouping"),
        ("SELECT a FROM t FOR UPDATE", "FOR UPDATE and FOR SHARE"),
        ("SELECT a FROM t FETCH FIRST 1 ROW WITH TIES", "FETCH FIRST … WITH TIES"),
        ("SELECT random() FROM t", "a random value for each row of a table"),
        ("SELECT sha256('a')", "function sha256"),
        ("SELECT a FROM t TABLESAMPLE SYSTEM (1)", "TABLESAMPLE"),
        ("EXPLAIN ANALYZE SELECT 1", "EXPLAIN ANALYZE"),
        ("COPY t FROM '/etc/passwd'", "COPY to or from a file of the server"),
        ("COPY t FROM PROGRAM 'x'", "COPY to or from a program"),
        ("COPY t FROM STDIN (FORMAT binary)", "COPY with format binary"),
        ("LISTEN x", "LISTEN"),
        ("VACUUM", "VACUUM"),
    ];
    let mut wrong = String::new();
    for (sql, what) in cases {
        let found = outcome(&catalog, sql).remove(0);
        let (code, message) = found.split_once(": ").unwrap_or((&found, ""));
        if !code.starts_with("error 0A000") || message != format!("{what} is not supported") {
            wrong.push_str(&format!("{sql}\n    {found}\n"));
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn make_interval_takes_arguments_by_name() {
    let catalog = catalog("");
    for (sql, works) in [
        ("SELECT make_interval(days => 10, hours => 3)", true),
        ("SELECT make_interval(1, weeks => 3, secs => 0.5)", true),
        ("SELECT make_interval(1, years => 3)", false),
        ("SELECT make_interval(fortnights => 1)", false),
    ] {
        let found = outcome(&catalog, sql).remove(0);
        assert_eq!(!found.starts_with("error"), works, "{sql}: {found}");
    }
}
