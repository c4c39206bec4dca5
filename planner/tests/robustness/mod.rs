//! Nothing that a client writes makes the planner panic or exhausts the stack.

use std::path::Path;

use carousel_engine::Type;
use carousel_planner::{Plan, bind::evaluate_arguments, parse};
use proptest::prelude::*;

use crate::support::{Counter, catalog, outcome, settings};

/// Tokens out of which statements are made.
const TOKENS: &[&str] = &[
    "SELECT",
    "FROM",
    "WHERE",
    "GROUP",
    "BY",
    "HAVING",
    "ORDER",
    "LIMIT",
    "OFFSET",
    "INSERT",
    "INTO",
    "VALUES",
    "UPDATE",
    "SET",
    "DELETE",
    "COPY",
    "TO",
    "STDIN",
    "STDOUT",
    "CREATE",
    "TABLE",
    "DROP",
    "PRIMARY",
    "KEY",
    "PARTITION",
    "RANGE",
    "HASH",
    "SPLIT",
    "AT",
    "DEFAULT",
    "NULL",
    "NOT",
    "AND",
    "OR",
    "IN",
    "LIKE",
    "BETWEEN",
    "IS",
    "CASE",
    "WHEN",
    "THEN",
    "ELSE",
    "END",
    "CAST",
    "AS",
    "DISTINCT",
    "RETURNING",
    "ON",
    "CONFLICT",
    "DO",
    "NOTHING",
    "EXPLAIN",
    "PREPARE",
    "EXECUTE",
    "SHOW",
    "BEGIN",
    "TRUNCATE",
    "WITH",
    "(",
    ")",
    ",",
    ";",
    ".",
    "*",
    "=",
    "<>",
    "<",
    ">=",
    "+",
    "-",
    "/",
    "%",
    "||",
    "::",
    "~",
    "[",
    "]",
    ":",
    "$1",
    "$2",
    "$0",
    "$99999",
    "1",
    "0",
    "-1",
    "2147483648",
    "99999999999999999999",
    "1.5",
    "1e400",
    "'x'",
    "'2013-01-01'",
    "''",
    "'",
    "\"",
    "\"x\"",
    "E'\\n'",
    "$$",
    "--",
    "/*",
    "*/",
    "\\",
    "\u{0}",
    "é",
    "count",
    "sum",
    "max",
    "upper",
    "now",
    "coalesce",
    "random",
    "kinds",
    "airlines",
    "pairs",
    "id",
    "flag",
    "small",
    "price",
    "fixed",
    "born",
    "seen",
    "token",
    "carrier",
    "name",
    "a",
    "b",
    "integer",
    "text",
    "numeric",
    "varchar",
    "timestamptz",
    "interval",
    "excluded",
];

fn schema() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/statements/schema.sql");
    std::fs::read_to_string(path).expect("a file of the repository")
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn token_soup_never_panics(tokens in prop::collection::vec(prop::sample::select(TOKENS), 0..24)) {
        let text = tokens.join(" ");
        let catalog = catalog(&schema());
        if parse(&text).is_ok_and(|statements| statements.len() == 1) {
            outcome(&catalog, &text);
        }
    }

    #[test]
    fn damaged_statements_never_panic(
        statement in prop::sample::select(include_str!("../statements/statements.txt").lines().collect::<Vec<_>>()),
        cut in 0.0..1.0f64,
        token in prop::sample::select(TOKENS),
    ) {
        let at = (statement.len() as f64 * cut) as usize;
        prop_assume!(statement.is_char_boundary(at));
        let text = format!("{} {token} {}", &statement[..at], &statement[at..]);
        let catalog = catalog(&schema());
        if parse(&text).is_ok_and(|statements| statements.len() == 1) {
            outcome(&catalog, &text);
        }
    }

    #[test]
    fn errors_point_into_the_text(text in "[ -~é\n]{0,60}") {
        if let Err(error) = parse(&text) {
            let position = error.position.expect("a syntax error has a position") as usize;
            prop_assert!((1..=text.chars().count() + 1).contains(&position), "{position} in {text:?}");
        }
    }
}

#[test]
fn deep_statements_are_refused_with_54001() {
    let catalog = catalog(&schema());
    let deep = 200_000;
    let statements = [
        format!("SELECT {}1{}", "(".repeat(deep), ")".repeat(deep)),
        format!("SELECT {} true", "NOT ".repeat(deep)),
        format!("SELECT 1{}", " + 1".repeat(deep)),
        format!("SELECT {}1{}", "abs(".repeat(deep), ")".repeat(deep)),
        format!("SELECT {}1{}", "CASE WHEN true THEN ".repeat(deep), " END".repeat(deep)),
        format!("SELECT * FROM kinds WHERE id = 1{}", " OR id = 2".repeat(deep)),
        format!("SELECT 1{}", " + 1".repeat(2_000)),
        format!("SELECT {}1{}", "(".repeat(400), ")".repeat(400)),
        format!("EXPLAIN {} SELECT 1", "EXPLAIN ".repeat(deep)),
        format!("SELECT 1, 1{}", " UNION ALL SELECT 1, 1".repeat(deep)),
        format!("SELECT 1, 1{}", " UNION SELECT 1, 1".repeat(9_900)),
    ];
    for sql in statements {
        let found = outcome(&catalog, &sql);
        let refused = found[0].starts_with("error 54001") || found[0].starts_with("error 0A000");
        assert!(refused, "{} led to {found:?}", &sql[..60.min(sql.len())]);
    }
}

/// Each level would keep all tokens of those inside it.
#[test]
fn statements_that_hold_others_do_not_stand_in_one_another() {
    let catalog = catalog(&schema());
    let levels = 8_000;
    for sql in [
        format!("{}SELECT 1", "EXPLAIN ".repeat(levels)),
        format!("{}SELECT 1", "PREPARE a AS ".repeat(levels)),
        format!("{}SELECT 1{}", "COPY (".repeat(levels), ") TO STDOUT".repeat(levels)),
    ] {
        let found = outcome(&catalog, &sql);
        assert!(found[0].starts_with("error 42601"), "{} led to {found:?}", &sql[..40]);
    }
}

/// Whoever drops it last may have little stack.
#[test]
fn a_deep_argument_of_execute_can_be_dropped_behind_its_statement() {
    for operators in [" !".repeat(39_000), " + 1".repeat(19_000)] {
        let text = format!("EXECUTE p (1{operators})");
        let statements = parse(&text).expect("it is parsed");
        let catalog = catalog("");
        let planned =
            carousel_planner::plan(&statements[0], &catalog, &settings(), &[]).expect("it is planned");
        drop(statements);
        let evaluate = move || {
            let Plan::Execute { arguments, .. } = &planned.plan else { panic!("EXECUTE") };
            evaluate_arguments(arguments, &[Type::Int8], &settings(), &mut Counter::default()).map(drop)
        };
        let thread = std::thread::Builder::new().stack_size(1 << 20).spawn(evaluate).expect("a thread");
        let evaluated = thread.join().expect("it is dropped");
        assert!(evaluated.is_err(), "{evaluated:?}");
    }
}

#[test]
fn wide_select_lists_are_refused() {
    let catalog = catalog(&schema());
    let list = |entries: usize| vec!["1"; entries].join(", ");
    let wide = |entries| outcome(&catalog, &format!("SELECT {}", list(entries)));
    assert!(!wide(1_664)[0].starts_with("error"));
    let stars = vec!["*"; 1_664].join(", ");
    for refused in [
        wide(1_665),
        outcome(&catalog, &format!("VALUES ({})", list(1_665))),
        outcome(&catalog, &format!("SELECT {stars} FROM kinds")),
    ] {
        assert!(refused[0].starts_with("error 54011"), "{refused:?}");
    }
}

/// What the parser does not recognise it tries in several ways, each time with all that is nested in it.
#[test]
fn nested_calls_take_no_longer_than_others() {
    let catalog = catalog(&schema());
    let nested = |open: &str, inner: &str, close: &str| {
        outcome(&catalog, &format!("SELECT {}{inner}{}", open.repeat(60), close.repeat(60)))
    };
    for (open, close) in
        [("replace(", ", 'a', 'b')"), ("md5(", ")"), ("coalesce(", ", NULL)"), ("greatest('b', ", ")")]
    {
        let planned = nested(open, "'a'", close);
        assert!(!planned[0].starts_with("error"), "{open} {planned:?}");
    }
    for open in ["md5(", "overlay(", "ceil(", "cast(", "substring(", "position(", "row(", "((select * from"] {
        let refused = nested(open, "1 ,,", ")");
        let expected = ["error 42601", "error 54001"];
        assert!(expected.iter().any(|error| refused[0].starts_with(error)), "{open} {refused:?}");
    }
    for open in ["((SELECT * FROM ", "(((SELECT 1 FROM a, ", "nullif("] {
        let refused = outcome(&catalog, &format!("SELECT * FROM {}", open.repeat(26)));
        assert!(refused[0].starts_with("error"), "{open} {refused:?}");
    }
    // What is needed in several places.
    for (open, close) in [("nullif(", ", 2)"), ("CASE ", " WHEN 1 THEN 1 WHEN 2 THEN 2 END")] {
        let refused = nested(open, "1", close);
        assert!(refused[0].starts_with("error 54001"), "{open} {refused:?}");
    }
    let between = nested("(", "TRUE", " BETWEEN FALSE AND TRUE)");
    assert!(between[0].starts_with("error 54001"), "{between:?}");
    assert!(!outcome(&catalog, "SELECT nullif(nullif(nullif(1, 2), 3), 4)")[0].starts_with("error"));
    let unions = format!("SELECT * FROM {}(SELECT 1){} AS t", "(".repeat(20), " UNION SELECT 2)".repeat(20));
    assert!(!outcome(&catalog, &unions)[0].starts_with("error"));
    // Mistakes that are not nested deeply are told as what they are.
    let refused = outcome(&catalog, "SELECT md5(overlay(ceil(cast(substring('a' 1,,)))))");
    assert!(refused[0].starts_with("error 42601"), "{refused:?}");
}

#[test]
fn long_statements_are_planned() {
    let catalog = catalog(&schema());
    let alternatives = format!("SELECT id FROM kinds WHERE id = 1{}", " OR id = 2".repeat(4_000));
    assert_eq!(outcome(&catalog, &alternatives), ["columns: id int8"]);
    let list = format!("SELECT id FROM kinds WHERE id IN (1{})", ", 2".repeat(50_000));
    assert_eq!(outcome(&catalog, &list), ["columns: id int8"]);
    let rows = format!("INSERT INTO airlines VALUES ('a', 'b'){}", ", ('c', 'd')".repeat(20_000));
    assert_eq!(outcome(&catalog, &rows), ["done"]);
    let text = format!("SELECT id FROM kinds WHERE words = code{}", " || 'x'".repeat(4_000));
    assert_eq!(outcome(&catalog, &text), ["columns: id int8"]);
    let sum = format!("SELECT 1{}", " + 1".repeat(200));
    assert_eq!(outcome(&catalog, &sum)[1], "row: 201");
}
