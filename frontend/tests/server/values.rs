//! Values of every type, in text and in binary.

use std::error::Error;

use bytes::BytesMut;
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, to_sql_checked};

use crate::support::{Server, rows};

/// A value's binary form, as it is.
#[derive(Clone, Debug, PartialEq)]
struct Binary(Vec<u8>);

impl<'a> FromSql<'a> for Binary {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        Ok(Binary(raw.to_vec()))
    }

    fn accepts(_: &Type) -> bool {
        true
    }
}

impl ToSql for Binary {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        out.extend_from_slice(&self.0);
        Ok(IsNull::No)
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    to_sql_checked!();
}

const TYPES: &[(&str, u32, &[&str])] = &[
    ("boolean", 16, &["t", "f"]),
    ("smallint", 21, &["-32768", "0", "32767"]),
    ("integer", 23, &["-2147483648", "2147483647"]),
    ("bigint", 20, &["-9223372036854775808", "9223372036854775807"]),
    ("real", 700, &["1.5", "-Infinity", "NaN", "1e-10"]),
    ("double precision", 701, &["0.1", "1e+300", "-0", "Infinity"]),
    ("numeric", 1700, &["0", "-0.00001", "12345678901234567890123456789012345678901234567890.123", "NaN"]),
    ("numeric(12,3)", 1700, &["-123456789.012", "10000.000", "0.100", "NaN"]),
    ("text", 25, &["", "some 'text'\n\tütf"]),
    ("varchar(5)", 1043, &["abc"]),
    ("char(5)", 1042, &["abc  "]),
    ("date", 1082, &["2024-02-29", "1999-12-31", "0044-03-15 BC", "infinity"]),
    ("time", 1083, &["23:59:59.999999", "00:00:00"]),
    ("timestamp", 1114, &["2024-02-29 12:34:56.789", "1969-07-20 20:17:40", "-infinity"]),
    ("timestamptz", 1184, &["2024-07-01 00:00:00+00", "infinity"]),
    ("uuid", 2950, &["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"]),
    ("bytea", 17, &["\\x", "\\x00ff5c"]),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_type_survives_both_forms() {
    let server = Server::start().await;
    let client = server.connect().await;
    for (n, (ty, oid, values)) in TYPES.iter().enumerate() {
        client.batch_execute(&format!("create table t{n} (i int primary key, v {ty})")).await.unwrap();
        for (i, value) in values.iter().enumerate() {
            let quoted = value.replace('\'', "''");
            client.batch_execute(&format!("insert into t{n} values ({i}, '{quoted}')")).await.unwrap();
        }
        // Text to binary, binary to binary, binary to text.
        let read = format!("select i, v from t{n} where i < 100 order by i");
        let statement = client.prepare(&read).await.unwrap();
        assert_eq!(statement.columns()[1].type_().oid(), *oid, "{ty}");
        let binary = client.query(&statement, &[]).await.unwrap();
        assert_eq!(binary.len(), values.len());
        let write = client.prepare(&format!("insert into t{n} values ($1, $2)")).await.unwrap();
        for row in &binary {
            let (i, value): (i32, Binary) = (row.get(0), row.get(1));
            client.execute(&write, &[&(i + 100), &value]).await.unwrap();
        }
        client.execute(&write, &[&1000i32, &None::<Binary>]).await.unwrap();
        let text = rows(&client, &format!("select v from t{n} where i between 100 and 999 order by i")).await;
        let text: Vec<&str> = text.iter().map(|row| row[0].as_deref().unwrap()).collect();
        assert_eq!(text, *values, "{ty}");
        assert_eq!(rows(&client, &format!("select v from t{n} where i = 1000")).await, [[None]]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn binary_forms_are_postgresqls() {
    let server = Server::start().await;
    let client = server.connect().await;
    let row = client
        .query_one(
            "select true, 258::int2, 1.5::float8, '2000-01-02'::date, '2000-01-01 00:00:01'::timestamp, \
             12.5::numeric, interval '1 month 2 days 3 seconds'",
            &[],
        )
        .await
        .unwrap();
    let expected: [&[u8]; 7] = [
        &[1],
        &[1, 2],
        &[0x3f, 0xf8, 0, 0, 0, 0, 0, 0],
        &[0, 0, 0, 1],
        &[0, 0, 0, 0, 0, 0x0f, 0x42, 0x40],
        &[0, 2, 0, 0, 0, 0, 0, 1, 0, 12, 0x13, 0x88],
        &[0, 0, 0, 0, 0, 0x2d, 0xc6, 0xc0, 0, 0, 0, 2, 0, 0, 0, 1],
    ];
    for (i, expected) in expected.into_iter().enumerate() {
        assert_eq!(row.get::<_, Binary>(i).0, expected, "column {i}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_binary_parameters_are_errors() {
    let server = Server::start().await;
    let client = server.connect().await;
    for (sql, bytes, code) in [
        ("select $1::int", &[1u8, 2][..], "08P01"),
        ("select $1::numeric", &[0, 1, 0, 0, 0, 0, 0, 0, 0xff, 0xff], "22P03"),
        ("select $1::text", &[0xff], "22021"),
        ("select $1::uuid", &[0; 15], "08P01"),
        ("select $1::uuid", &[0; 17], "22P03"),
        ("select $1::numeric", &[0, 2, 0, 0, 0, 0, 0, 0, 0, 1], "08P01"),
    ] {
        let error = client.query(sql, &[&Binary(bytes.to_vec())]).await.unwrap_err();
        assert_eq!(crate::support::code(error), code, "{sql}");
    }
}

/// Blanks at the end of a parameter that is declared as `character` count for nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_parameter_may_be_of_type_character() {
    let server = Server::start().await;
    let client = server.connect().await;
    client.batch_execute("create table t (id int primary key, x char(5), v text)").await.unwrap();
    client.batch_execute("insert into t values (1, 'a', 'a'), (2, 'b', 'b')").await.unwrap();
    for sql in ["select id from t where x = $1", "select id from t where v = $1"] {
        let statement = client.prepare_typed(sql, &[Type::BPCHAR]).await.unwrap();
        assert_eq!(statement.params(), [Type::BPCHAR]);
        let found = client.query(&statement, &[&"a  "]).await.unwrap();
        assert_eq!(found.iter().map(|row| row.get::<_, i32>(0)).collect::<Vec<_>>(), [1], "{sql}");
    }
    let statement = client.prepare_typed("select octet_length($1)", &[Type::BPCHAR]).await.unwrap();
    assert_eq!(client.query_one(&statement, &[&"a  "]).await.unwrap().get::<_, i32>(0), 3);
}
