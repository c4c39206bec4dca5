//! Arrow IPC stream form of batches, for messages and payloads.
//!
//! ```text
//!   stream   = schema, batch, …, end
//!   each     = ff ff ff ff, length of the metadata, metadata (a flat buffer), body; all in multiples of 8 bytes
//!   end      = ff ff ff ff, 0
//! ```
//!
//! Arrow's own stream reader allocates what a length says before it looks whether there is so much, and panics at types
//! that do not exist. So the messages are taken apart here, and every number in them is checked against what is there
//! before Arrow makes arrays of it.

use std::{collections::HashMap, sync::Arc};

use arrow::{
    buffer::Buffer,
    datatypes::{DataType, Field, IntervalUnit, Schema, SchemaRef, TimeUnit},
    error::ArrowError,
    ipc::{self, MessageHeader, reader::RecordBatchDecoder, writer::StreamWriter},
    record_batch::RecordBatch,
};

/// What every message begins with.
const CONTINUATION: [u8; 4] = [0xff; 4];

/// Encodes batches of one schema as an Arrow IPC stream; at least one batch is needed.
pub fn encode(batches: &[RecordBatch]) -> Result<Vec<u8>, ArrowError> {
    let Some(first) = batches.first() else {
        return Err(ArrowError::InvalidArgumentError("no batch to encode".into()));
    };
    let mut writer = StreamWriter::try_new(Vec::new(), &first.schema())?;
    for batch in batches {
        writer.write(batch)?;
    }
    writer.finish()?;
    writer.into_inner()
}

/// Decodes what [`encode`] has made of batches whose columns are of the engine's types. Damaged input is an error, never
/// a panic, and takes no more memory than a few times its own length.
pub fn decode(bytes: &[u8]) -> Result<Vec<RecordBatch>, ArrowError> {
    let mut rest = bytes;
    let Some((message, body)) = next(&mut rest)? else { return Err(damaged("it has no schema")) };
    let schema = message.header_as_schema().ok_or_else(|| damaged("it does not begin with a schema"))?;
    if !body.is_empty() {
        return Err(damaged("its schema has a body"));
    }
    let schema = read_schema(schema, bytes.len() - rest.len())?;
    let mut batches = Vec::new();
    while let Some((message, body)) = next(&mut rest)? {
        let (MessageHeader::RecordBatch, Some(batch)) =
            (message.header_type(), message.header_as_record_batch())
        else {
            return Err(damaged("behind its schema there is something else than batches"));
        };
        check_batch(&batch, &schema, body.len())?;
        // A copy, aligned as Arrow wants it and of this batch only.
        let body = Buffer::from(body);
        let dictionaries = HashMap::new();
        let version = message.version();
        let decoder = RecordBatchDecoder::try_new(&body, batch, schema.clone(), &dictionaries, &version)?;
        batches.push(decoder.read_record_batch()?);
    }
    if rest.is_empty() { Ok(batches) } else { Err(damaged("there is something behind its end")) }
}

fn damaged(what: &str) -> ArrowError {
    ArrowError::IpcError(format!("a damaged stream: {what}"))
}

/// The next message with its body; `None` at the end.
fn next<'a>(rest: &mut &'a [u8]) -> Result<Option<(ipc::Message<'a>, &'a [u8])>, ArrowError> {
    let mut take = |length: usize| match rest.split_at_checked(length) {
        Some((taken, behind)) => {
            *rest = behind;
            Ok(taken)
        }
        None => Err(damaged("it is shorter than it says")),
    };
    if take(4)? != CONTINUATION {
        return Err(damaged("a message does not begin as it should"));
    }
    let length = take(4)?.try_into().map(u32::from_le_bytes).unwrap_or_default();
    if length == 0 {
        return Ok(None);
    }
    let metadata = take(length as usize)?;
    let message =
        ipc::root_as_message(metadata).map_err(|error| damaged(&format!("its metadata: {error}")))?;
    let body = usize::try_from(message.bodyLength()).map_err(|_| damaged("a body has a negative length"))?;
    Ok(Some((message, take(body)?)))
}

/// The schema in a message whose metadata have this length.
fn read_schema(schema: ipc::Schema<'_>, metadata: usize) -> Result<SchemaRef, ArrowError> {
    if schema.endianness() != ipc::Endianness::Little {
        return Err(damaged("it is not little-endian"));
    }
    let fields = schema.fields().ok_or_else(|| damaged("its schema has no fields"))?;
    // Several may be said to be at the same place.
    let names = fields.iter().map(|field| field.name().unwrap_or_default().len()).sum::<usize>();
    if fields.len().max(names) > metadata {
        return Err(damaged("its schema has more columns than there is room for"));
    }
    let fields = fields.iter().map(|field| match read_type(&field) {
        Some(ty) if field.dictionary().is_none() => {
            Ok(Field::new(field.name().unwrap_or_default(), ty, field.nullable()))
        }
        _ => Err(damaged("a column is of a type that the engine does not have")),
    });
    Ok(Arc::new(Schema::new(fields.collect::<Result<Vec<Field>, ArrowError>>()?)))
}

/// The Arrow types that [`Type::arrow`](crate::Type::arrow) gives, and no others.
fn read_type(field: &ipc::Field<'_>) -> Option<DataType> {
    Some(match field.type_type() {
        ipc::Type::Bool => DataType::Boolean,
        ipc::Type::Int => match (field.type_as_int()?.bitWidth(), field.type_as_int()?.is_signed()) {
            (16, true) => DataType::Int16,
            (32, true) => DataType::Int32,
            (64, true) => DataType::Int64,
            _ => return None,
        },
        ipc::Type::FloatingPoint => match field.type_as_floating_point()?.precision() {
            ipc::Precision::SINGLE => DataType::Float32,
            ipc::Precision::DOUBLE => DataType::Float64,
            _ => return None,
        },
        ipc::Type::Decimal if field.type_as_decimal()?.bitWidth() == 128 => {
            let decimal = field.type_as_decimal()?;
            let precision = u8::try_from(decimal.precision()).ok().filter(|p| (1..=38).contains(p))?;
            let scale = i8::try_from(decimal.scale()).ok().filter(|s| s.unsigned_abs() <= 38)?;
            DataType::Decimal128(precision, scale)
        }
        ipc::Type::Utf8 => DataType::Utf8,
        ipc::Type::Binary => DataType::Binary,
        ipc::Type::FixedSizeBinary if field.type_as_fixed_size_binary()?.byteWidth() == 16 => {
            DataType::FixedSizeBinary(16)
        }
        ipc::Type::Date if field.type_as_date()?.unit() == ipc::DateUnit::DAY => DataType::Date32,
        ipc::Type::Time => match (field.type_as_time()?.bitWidth(), field.type_as_time()?.unit()) {
            (64, ipc::TimeUnit::MICROSECOND) => DataType::Time64(TimeUnit::Microsecond),
            _ => return None,
        },
        ipc::Type::Timestamp => {
            let timestamp = field.type_as_timestamp()?;
            match (timestamp.unit(), timestamp.timezone()) {
                (ipc::TimeUnit::MICROSECOND, None) => DataType::Timestamp(TimeUnit::Microsecond, None),
                (ipc::TimeUnit::MICROSECOND, Some("UTC")) => {
                    DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()))
                }
                _ => return None,
            }
        }
        ipc::Type::Interval => match field.type_as_interval()?.unit() {
            ipc::IntervalUnit::MONTH_DAY_NANO => DataType::Interval(IntervalUnit::MonthDayNano),
            _ => return None,
        },
        _ => return None,
    })
}

/// Checks the numbers of a batch against its schema and the length of its body.
fn check_batch(batch: &ipc::RecordBatch<'_>, schema: &Schema, body: usize) -> Result<(), ArrowError> {
    if batch.compression().is_some() || batch.variadicBufferCounts().is_some_and(|counts| !counts.is_empty())
    {
        return Err(damaged("a batch is in a form that is never written"));
    }
    let (nodes, buffers) = match (batch.nodes(), batch.buffers()) {
        (Some(nodes), Some(buffers)) => (nodes, buffers),
        _ => return Err(damaged("a batch without columns or buffers")),
    };
    let needed: usize = schema.fields().iter().map(|field| 1 + parts(field.data_type()).len()).sum();
    if nodes.len() != schema.fields().len() || buffers.len() != needed {
        return Err(damaged("a batch has not the columns of its schema"));
    }
    // A row takes a bit of every column at least; without columns, a batch counts rows that are counted elsewhere as well.
    let most = if nodes.is_empty() { u64::from(u32::MAX) } else { body as u64 * 8 };
    if u64::try_from(batch.length()).ok().is_none_or(|rows| rows > most) {
        return Err(damaged("a batch has more rows than there is room for"));
    }
    if nodes
        .iter()
        .any(|node| node.length() != batch.length() || !(0..=node.length()).contains(&node.null_count()))
    {
        return Err(damaged("a column has another number of rows than its batch"));
    }
    // Who copies them, because they are not aligned or are said to be at the same place, must not need more room than they do.
    let lengths = buffers.iter().map(|buffer| u64::try_from(buffer.length()).unwrap_or(u64::MAX));
    if lengths.fold(0, u64::saturating_add) > body as u64 {
        return Err(damaged("the columns of a batch are longer than it"));
    }
    let mut buffers = buffers.iter();
    for (field, node) in schema.fields().iter().zip(nodes) {
        let values = parts(field.data_type()).iter().copied();
        let validity = Part { element: 1, bits: u64::from(node.null_count() > 0) };
        for (part, buffer) in std::iter::once(validity).chain(values).zip(&mut buffers) {
            if !part.fits(buffer, body as u64, node.length() as u64) {
                return Err(damaged("a column is outside of its batch"));
            }
        }
    }
    Ok(())
}

/// One of the buffers of a column.
#[derive(Clone, Copy)]
struct Part {
    /// Bytes of one element.
    element: u64,
    /// Bits that a row takes at least.
    bits: u64,
}

impl Part {
    /// Whether it is inside of a body of this length, and enough for so many rows.
    fn fits(self, buffer: &ipc::Buffer, body: u64, rows: u64) -> bool {
        let (Ok(start), Ok(length)) = (u64::try_from(buffer.offset()), u64::try_from(buffer.length())) else {
            return false;
        };
        let needed = rows.checked_mul(self.bits).map(|bits| bits.div_ceil(8));
        start.is_multiple_of(8)
            && length.is_multiple_of(self.element)
            && start.checked_add(length).is_some_and(|end| end <= body)
            && needed.is_some_and(|needed| needed <= length)
    }
}

/// The buffers of a column behind its validity: offsets where there are some, and values.
fn parts(ty: &DataType) -> &'static [Part] {
    match ty {
        DataType::Boolean => &[Part { element: 1, bits: 1 }],
        DataType::Utf8 | DataType::Binary => &[Part { element: 4, bits: 32 }, Part { element: 1, bits: 0 }],
        ty => match ty.primitive_width() {
            Some(2) => &[Part { element: 2, bits: 16 }],
            Some(4) => &[Part { element: 4, bits: 32 }],
            Some(8) => &[Part { element: 8, bits: 64 }],
            // Identifiers among them.
            _ => &[Part { element: 16, bits: 128 }],
        },
    }
}
