//! A Parquet file: every value is written as PostgreSQL's text of its type and sent as COPY text, in which a row is
//! always one line, so that the line a server complains about is the row of the file.

use std::{fs::File, path::PathBuf};

use arrow::{
    array::{Array, ArrayRef, AsArray, RecordBatch},
    datatypes::{DataType, Float32Type, Float64Type, SchemaRef},
    util::display::{ArrayFormatter, FormatOptions},
};
use bytes::Bytes;
use clap::Args;
use futures::stream;
use parquet::arrow::arrow_reader::{ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder};
use tokio_postgres::error::SqlState;

use super::{
    connection::{ConnectArgs, reason},
    copy::{Chunk, copy, explain_file, quote_identifier},
};
use crate::cli::{
    Failure,
    progress::{Progress, Unit, summary},
};

/// Rows decoded at once.
const BATCH_ROWS: usize = 4096;

/// Options of `carousel load parquet`.
#[derive(Args, Debug)]
pub struct ParquetArgs {
    /// The file
    file: PathBuf,

    /// The table, by its exact name; it has a column of the same name for each of the file's
    #[arg(long, value_name = "TABLE")]
    table: String,

    #[command(flatten)]
    connect: ConnectArgs,
}

impl ParquetArgs {
    pub(super) async fn run(self) -> Result<(), Failure> {
        let name = self.file.display().to_string();
        let file =
            File::open(&self.file).map_err(|error| Failure::setup(format!("cannot read {name}: {error}")))?;
        let builder = ParquetRecordBatchReaderBuilder::try_new(file).map_err(|error| {
            Failure::setup(format!("{name} is not a Parquet file that can be read: {error}"))
        })?;
        let rows = u64::try_from(builder.metadata().file_metadata().num_rows()).unwrap_or(0);
        let schema = builder.schema().clone();
        let reader = builder
            .with_batch_size(BATCH_ROWS)
            .build()
            .map_err(|error| Failure::setup(format!("cannot read {name}: {error}")))?;
        let client = self.connect.connect().await?;
        let types = self.column_types(&client, &name, &schema).await?;
        let columns: Vec<String> =
            schema.fields().iter().map(|field| quote_identifier(field.name())).collect();
        let statement = format!("COPY {} ({}) FROM STDIN", quote_identifier(&self.table), columns.join(", "));
        let mut progress = Progress::new(format!("loading {}", self.table), Unit::Rows, Some(rows));
        let chunks = stream::try_unfold((reader, types, name.clone()), |(reader, types, name)| async move {
            // Decompressing and formatting take a while: not on a thread that drives the connection.
            tokio::task::spawn_blocking(move || next_chunk(reader, types, name))
                .await
                .map_err(|error| Failure::job(format!("reading the file failed: {error}")))?
        });
        let explain = |error: &tokio_postgres::Error| explain_file(&name, error, "row");
        let loaded = copy(&client, &statement, chunks, |rows| progress.advance(rows), explain).await?;
        let elapsed = progress.finish();
        eprintln!("{}: {}", self.table, summary(loaded, elapsed));
        Ok(())
    }

    /// How the values of each of the file's columns are written, from the types of the table's columns.
    async fn column_types(
        &self,
        client: &tokio_postgres::Client,
        file: &str,
        schema: &SchemaRef,
    ) -> Result<Vec<Form>, Failure> {
        let query = format!("SELECT * FROM {}", quote_identifier(&self.table));
        let described = client.prepare(&query).await.map_err(|error| {
            if error.code() == Some(&SqlState::UNDEFINED_TABLE) {
                Failure::job(format!("there is no table \"{}\"; create it first", self.table))
            } else {
                Failure::job(format!("cannot load {}: {}", self.table, reason(&error)))
            }
        })?;
        schema
            .fields()
            .iter()
            .map(|field| {
                let column = described.columns().iter().find(|column| column.name() == field.name());
                let Some(column) = column else {
                    return Err(Failure::job(format!(
                        "{file} has a column \"{}\", table \"{}\" has not",
                        field.name(),
                        self.table
                    )));
                };
                Form::new(field.data_type(), column.type_().name()).ok_or_else(|| {
                    Failure::job(format!(
                        "{file}: column \"{}\" has the type {}, which cannot be loaded",
                        field.name(),
                        field.data_type()
                    ))
                })
            })
            .collect()
    }
}

type State = (ParquetRecordBatchReader, Vec<Form>, String);

fn next_chunk(
    mut reader: ParquetRecordBatchReader,
    forms: Vec<Form>,
    name: String,
) -> Result<Option<(Chunk, State)>, Failure> {
    let Some(batch) = reader.next() else {
        return Ok(None);
    };
    let text = batch.map_err(|error| error.to_string()).and_then(|batch| {
        let mut text = Vec::new();
        write_rows(&batch, &forms, &mut text)?;
        Ok((text, batch.num_rows() as u64))
    });
    let (text, rows) = text.map_err(|error| Failure::job(format!("cannot read {name}: {error}")))?;
    Ok(Some((Chunk { bytes: Bytes::from(text), progress: rows }, (reader, forms, name))))
}

/// How the values of a column are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// As Arrow prints them, which is also how PostgreSQL reads them.
    Plain,
    /// `Infinity` and `NaN` have names of their own.
    Float,
    /// `\x` and hexadecimal digits.
    Bytea,
    /// Hexadecimal digits: 16 bytes that a uuid column takes.
    Uuid,
}

impl Form {
    /// The form for a file's type in a column of a table's type; `None` when there is none.
    fn new(file: &DataType, table: &str) -> Option<Form> {
        match file {
            DataType::Dictionary(_, values) => match Form::new(values, table)? {
                Form::Plain => Some(Form::Plain),
                // Their values are not reached through the keys here.
                _ => None,
            },
            DataType::Float32 | DataType::Float64 => Some(Form::Float),
            DataType::FixedSizeBinary(16) if table == "uuid" => Some(Form::Uuid),
            DataType::Binary
            | DataType::LargeBinary
            | DataType::BinaryView
            | DataType::FixedSizeBinary(_) => Some(Form::Bytea),
            DataType::Null
            | DataType::Boolean
            | DataType::Int8
            | DataType::Int16
            | DataType::Int32
            | DataType::Int64
            | DataType::UInt8
            | DataType::UInt16
            | DataType::UInt32
            | DataType::UInt64
            | DataType::Float16
            | DataType::Decimal32(..)
            | DataType::Decimal64(..)
            | DataType::Decimal128(..)
            | DataType::Decimal256(..)
            | DataType::Utf8
            | DataType::LargeUtf8
            | DataType::Utf8View
            | DataType::Date32
            | DataType::Date64
            | DataType::Time32(_)
            | DataType::Time64(_)
            | DataType::Timestamp(..) => Some(Form::Plain),
            _ => None,
        }
    }
}

/// Appends rows in the text format of COPY.
fn write_rows(batch: &RecordBatch, forms: &[Form], out: &mut Vec<u8>) -> Result<(), String> {
    let options = FormatOptions::new()
        .with_date_format(Some("%Y-%m-%d"))
        .with_datetime_format(Some("%Y-%m-%d"))
        .with_time_format(Some("%H:%M:%S%.6f"))
        .with_timestamp_format(Some("%Y-%m-%d %H:%M:%S%.6f"))
        .with_timestamp_tz_format(Some("%Y-%m-%d %H:%M:%S%.6f%:z"));
    let columns: Vec<(&ArrayRef, Form, ArrayFormatter<'_>)> = batch
        .columns()
        .iter()
        .zip(forms)
        .map(|(array, form)| {
            Ok((array, *form, ArrayFormatter::try_new(array, &options).map_err(|e| e.to_string())?))
        })
        .collect::<Result<_, String>>()?;
    let mut value = String::new();
    for row in 0..batch.num_rows() {
        for (index, (array, form, formatter)) in columns.iter().enumerate() {
            if index > 0 {
                out.push(b'\t');
            }
            if array.is_null(row) || matches!(array.data_type(), DataType::Null) {
                out.extend_from_slice(b"\\N");
                continue;
            }
            value.clear();
            match form {
                Form::Plain | Form::Bytea | Form::Uuid => {
                    if *form == Form::Bytea {
                        value.push_str("\\x");
                    }
                    formatter.value(row).write(&mut value).map_err(|error| error.to_string())?;
                }
                Form::Float => match array.data_type() {
                    DataType::Float32 => {
                        write_float(array.as_primitive::<Float32Type>().value(row), &mut value)
                    }
                    _ => write_float(array.as_primitive::<Float64Type>().value(row), &mut value),
                },
            }
            write_escaped(&value, out);
        }
        out.push(b'\n');
    }
    Ok(())
}

fn write_float<T: std::fmt::Display + Copy + Into<f64>>(number: T, out: &mut String) {
    let wide: f64 = number.into();
    if wide.is_nan() {
        out.push_str("NaN");
    } else if wide.is_infinite() {
        out.push_str(if wide > 0.0 { "Infinity" } else { "-Infinity" });
    } else {
        // The shortest digits that give the same number back in its own width.
        out.push_str(&format!("{number}"));
    }
}

fn write_escaped(value: &str, out: &mut Vec<u8>) {
    for byte in value.bytes() {
        match byte {
            b'\\' => out.extend_from_slice(b"\\\\"),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            other => out.push(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::{
        array::{
            BinaryArray, BooleanArray, Date32Array, Decimal128Array, DictionaryArray, FixedSizeBinaryArray,
            Float32Array, Float64Array, Int32Array, NullArray, StringArray, TimestampMicrosecondArray,
            TimestampNanosecondArray, types::Int8Type,
        },
        compute::cast,
    };
    use parquet::{
        arrow::ArrowWriter,
        basic::{Compression, GzipLevel, ZstdLevel},
        file::properties::WriterProperties,
    };

    use super::*;

    fn lines(arrays: Vec<(ArrayRef, &str)>) -> Vec<String> {
        let forms: Vec<Form> =
            arrays.iter().map(|(a, table)| Form::new(a.data_type(), table).unwrap()).collect();
        let batch = RecordBatch::try_from_iter(
            arrays.into_iter().enumerate().map(|(i, (array, _))| (format!("c{i}"), array)),
        )
        .unwrap();
        let mut text = Vec::new();
        write_rows(&batch, &forms, &mut text).unwrap();
        String::from_utf8(text).unwrap().lines().map(str::to_owned).collect()
    }

    #[test]
    fn values_are_written_as_postgresql_reads_them() {
        let moment = 1_700_000_000_123_456_i64;
        let rows = lines(vec![
            (Arc::new(BooleanArray::from(vec![Some(true), None])), "bool"),
            (Arc::new(Int32Array::from(vec![Some(-5), None])), "int4"),
            (Arc::new(Float32Array::from(vec![Some(0.1), None])), "float4"),
            (Arc::new(Float64Array::from(vec![Some(f64::NEG_INFINITY), Some(f64::NAN)])), "float8"),
            (
                Arc::new(
                    Decimal128Array::from(vec![Some(-12345), None]).with_precision_and_scale(10, 2).unwrap(),
                ),
                "numeric",
            ),
            (Arc::new(StringArray::from(vec![Some("a\tb\\c\nd"), Some("")])), "text"),
            (Arc::new(Date32Array::from(vec![Some(20_454), None])), "date"),
            (Arc::new(TimestampMicrosecondArray::from(vec![Some(moment), None])), "timestamp"),
            (
                Arc::new(
                    TimestampNanosecondArray::from(vec![Some(moment * 1000), None]).with_timezone("UTC"),
                ),
                "timestamptz",
            ),
            (Arc::new(BinaryArray::from(vec![Some(&b"\x00\xff"[..]), None])), "bytea"),
            (
                Arc::new(FixedSizeBinaryArray::try_from_iter([[7_u8; 16], [8; 16]].into_iter()).unwrap()),
                "uuid",
            ),
            (Arc::new(DictionaryArray::<Int8Type>::from_iter([Some("x"), None])), "text"),
            (Arc::new(NullArray::new(2)), "text"),
        ]);
        assert_eq!(
            rows[0],
            "true\t-5\t0.1\t-Infinity\t-123.45\ta\\tb\\\\c\\nd\t2026-01-01\t2023-11-14 22:13:20.123456\t\
             2023-11-14 22:13:20.123456+00:00\t\\\\x00ff\t07070707070707070707070707070707\tx\t\\N"
        );
        assert_eq!(
            rows[1],
            "\\N\t\\N\t\\N\tNaN\t\\N\t\t\\N\t\\N\t\\N\t\\N\t08080808080808080808080808080808\t\\N\t\\N"
        );
    }

    #[test]
    fn nested_types_are_refused() {
        let list = DataType::new_list(DataType::Int32, true);
        assert_eq!(Form::new(&list, "text"), None);
        assert_eq!(Form::new(&DataType::Binary, "bytea"), Some(Form::Bytea));
    }

    #[test]
    fn compressed_files_are_read() {
        let array: ArrayRef = cast(&Int32Array::from_iter_values(0..10_000), &DataType::Utf8).unwrap();
        let batch = RecordBatch::try_from_iter([("number", array)]).unwrap();
        for compression in [
            Compression::UNCOMPRESSED,
            Compression::SNAPPY,
            Compression::ZSTD(ZstdLevel::default()),
            Compression::GZIP(GzipLevel::default()),
        ] {
            let file = tempfile::tempfile().unwrap();
            let properties = WriterProperties::builder().set_compression(compression).build();
            let mut writer =
                ArrowWriter::try_new(file.try_clone().unwrap(), batch.schema(), Some(properties)).unwrap();
            writer.write(&batch).unwrap();
            writer.close().unwrap();
            let builder = ParquetRecordBatchReaderBuilder::try_new(file).unwrap();
            let mut state =
                (builder.with_batch_size(BATCH_ROWS).build().unwrap(), vec![Form::Plain], String::new());
            let mut text = Vec::new();
            while let Some((chunk, next)) = next_chunk(state.0, state.1, state.2).unwrap() {
                text.extend_from_slice(&chunk.bytes);
                state = next;
                if chunk.progress < BATCH_ROWS as u64 {
                    break;
                }
            }
            let expected: String = (0..10_000).map(|n| format!("{n}\n")).collect();
            assert_eq!(String::from_utf8(text).unwrap(), expected, "{compression}");
        }
    }
}
