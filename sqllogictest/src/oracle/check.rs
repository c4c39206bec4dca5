//! Sends generated statements to a server and compares its answers with the evaluator's.

use bytes::{BufMut, BytesMut};
use tokio_postgres::{
    Client, SimpleQueryMessage,
    types::{Format, FromSql, IsNull, ToSql, Type},
};

use super::{
    evaluate::{Outcome, Table},
    generate::Generator,
    statement::Writer,
};

type BoxError = Box<dyn std::error::Error + Sync + Send>;

/// A parameter sent as text, whatever its type.
#[derive(Debug)]
struct TextParameter(Option<String>);

impl ToSql for TextParameter {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, BoxError> {
        let Some(text) = &self.0 else { return Ok(IsNull::Yes) };
        out.put_slice(text.as_bytes());
        Ok(IsNull::No)
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    fn encode_format(&self, _: &Type) -> Format {
        Format::Text
    }

    tokio_postgres::types::to_sql_checked!();
}

/// A value received in binary form, turned into the text of its type.
struct BinaryText(String);

impl<'a> FromSql<'a> for BinaryText {
    fn from_sql(ty: &Type, raw: &'a [u8]) -> Result<Self, BoxError> {
        Ok(BinaryText(match *ty {
            Type::INT2 => i16::from_be_bytes(raw.try_into()?).to_string(),
            Type::INT4 => i32::from_be_bytes(raw.try_into()?).to_string(),
            Type::INT8 => i64::from_be_bytes(raw.try_into()?).to_string(),
            Type::BOOL => if raw == [1] { "t" } else { "f" }.to_owned(),
            Type::TEXT | Type::VARCHAR => std::str::from_utf8(raw)?.to_owned(),
            // Days since 2000-01-01.
            Type::DATE => {
                let days = i64::from(i32::from_be_bytes(raw.try_into()?)) + 10_957;
                super::value::Datum::Date(days).text().unwrap_or_default()
            }
            Type::NUMERIC => numeric_text(raw)?,
            _ => return Err(format!("unexpected result type {ty}").into()),
        }))
    }

    fn accepts(_: &Type) -> bool {
        true
    }
}

/// PostgreSQL's binary numeric: digit count, weight, sign, scale, then digits to base 10000.
fn numeric_text(raw: &[u8]) -> Result<String, BoxError> {
    let words: Vec<i16> = raw.chunks_exact(2).map(|word| i16::from_be_bytes([word[0], word[1]])).collect();
    let [count, weight, sign, scale, digits @ ..] = words.as_slice() else {
        return Err("a numeric shorter than its header".into());
    };
    if digits.len() != *count as usize {
        return Err("a numeric with the wrong number of digits".into());
    }
    let digit = |position: i32| {
        usize::try_from(position).ok().and_then(|at| digits.get(at)).copied().unwrap_or_default()
    };
    let weight = i32::from(*weight);
    let mut whole: String = (0..=weight).map(|at| format!("{:04}", digit(at))).collect();
    whole = whole.trim_start_matches('0').to_owned();
    if whole.is_empty() {
        whole.push('0');
    }
    let mut fraction: String =
        (0..i32::from(*scale)).step_by(4).map(|at| format!("{:04}", digit(weight + 1 + at / 4))).collect();
    fraction.truncate(*scale as usize);
    let sign = if *sign == 0x4000 { "-" } else { "" };
    Ok(if fraction.is_empty() { format!("{sign}{whole}") } else { format!("{sign}{whole}.{fraction}") })
}

/// What a server said.
#[derive(Debug)]
enum Answer {
    Rows(Vec<Vec<Option<String>>>),
    Count(u64),
    Failed(String),
}

async fn ask(client: &Client, sql: &str, parameters: Option<Vec<Option<String>>>) -> Result<Answer, String> {
    let answer = match parameters {
        None => simple(client, sql).await,
        Some(parameters) => extended(client, sql, parameters).await,
    };
    match answer {
        Ok(answer) => Ok(answer),
        Err(error) => match error.as_db_error() {
            Some(error) => Ok(Answer::Failed(error.code().code().to_owned())),
            None => Err(format!("{error:?}")),
        },
    }
}

async fn simple(client: &Client, sql: &str) -> Result<Answer, tokio_postgres::Error> {
    let mut rows = None;
    let mut count = 0;
    for message in client.simple_query(sql).await? {
        match message {
            SimpleQueryMessage::RowDescription(_) => rows = Some(Vec::new()),
            SimpleQueryMessage::Row(row) => rows
                .get_or_insert_default()
                .push((0..row.len()).map(|i| row.get(i).map(str::to_owned)).collect()),
            SimpleQueryMessage::CommandComplete(n) => count = n,
            _ => {}
        }
    }
    Ok(rows.map_or(Answer::Count(count), Answer::Rows))
}

async fn extended(
    client: &Client,
    sql: &str,
    parameters: Vec<Option<String>>,
) -> Result<Answer, tokio_postgres::Error> {
    let statement = client.prepare(sql).await?;
    let parameters: Vec<TextParameter> = parameters.into_iter().map(TextParameter).collect();
    let parameters: Vec<&(dyn ToSql + Sync)> = parameters.iter().map(|p| p as _).collect();
    if statement.columns().is_empty() {
        return Ok(Answer::Count(client.execute(&statement, &parameters).await?));
    }
    let mut rows = Vec::new();
    for row in client.query(&statement, &parameters).await? {
        let cells = (0..row.len())
            .map(|i| Ok(row.try_get::<_, Option<BinaryText>>(i)?.map(|text| text.0)))
            .collect::<Result<Vec<_>, tokio_postgres::Error>>()?;
        rows.push(cells);
    }
    Ok(Answer::Rows(rows))
}

/// Whether the answer is one that the outcome allows.
fn agrees(outcome: &Outcome, answer: &Answer) -> bool {
    match (outcome, answer) {
        (Outcome::Fails(states), Answer::Failed(state)) => states.contains(state.as_str()),
        (Outcome::Count(expected), Answer::Count(count)) => *expected as u64 == *count,
        (Outcome::Rows { rows, ordered }, Answer::Rows(found)) => {
            let mut expected: Vec<Vec<Option<String>>> =
                rows.iter().map(|row| row.iter().map(|value| value.text()).collect()).collect();
            let mut found = found.clone();
            if !ordered {
                expected.sort_unstable();
                found.sort_unstable();
            }
            expected == found
        }
        _ => false,
    }
}

/// How sequences are generated.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Statements after the table's creation.
    pub statements: usize,
    /// Whether tables may have Carousel's partitioning clause.
    pub partitioning: bool,
}

/// Runs the sequence of `seed` on a table of its own. An error describes the first answer that is not the
/// evaluator's, with the writes that led to it.
pub async fn run_sequence(client: &Client, seed: u64, options: Options) -> Result<(), String> {
    let mut generator = Generator::new(seed);
    let schema = generator.schema(&format!("generated_{seed}"), options.partitioning);
    let everything = format!("SELECT * FROM {}", schema.name);
    let mut table = Table { schema, rows: Vec::new() };
    let mut script = vec![format!("DROP TABLE IF EXISTS {}", table.schema.name), table.schema.sql()];
    for sql in &script {
        if let Answer::Failed(state) = ask(client, sql, None).await? {
            return Err(format!("seed {seed}: {sql}; failed with {state}"));
        }
    }
    for number in 0..options.statements {
        let statement = generator.statement(&table.schema);
        let parameterised = generator.chance(40);
        let (sql, parameters) = Writer::new(&table.schema, parameterised).write(&statement);
        let answer = ask(client, &sql, parameterised.then(|| parameters.clone())).await;
        let outcome = table.execute(&statement);
        let mut failure = match &answer {
            Ok(answer) if agrees(&outcome, answer) => None,
            Ok(answer) => Some(format!("expected {outcome:?}\nfound {answer:?}")),
            Err(error) => Some(format!("expected {outcome:?}\nfound a broken connection: {error}")),
        };
        if failure.is_none() && !statement.is_read() && generator.chance(50) {
            let rows = Outcome::Rows { rows: table.rows.clone(), ordered: false };
            let found = ask(client, &everything, None).await?;
            if !agrees(&rows, &found) {
                failure = Some(format!("afterwards expected {rows:?}\nfound {found:?}"));
            }
        }
        if let Some(failure) = failure {
            return Err(format!(
                "seed {seed}, statement {number}: {sql}; parameters {parameters:?}\n{failure}\nafter:\n{};",
                script.join(";\n")
            ));
        }
        if !statement.is_read() && !matches!(outcome, Outcome::Fails(_)) {
            script.push(Writer::new(&table.schema, false).write(&statement).0);
        }
    }
    match ask(client, &format!("DROP TABLE {}", table.schema.name), None).await? {
        Answer::Failed(state) => Err(format!("seed {seed}: DROP TABLE failed with {state}")),
        _ => Ok(()),
    }
}
