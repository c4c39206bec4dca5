//! Arrow IPC stream form of batches, for messages and payloads.

use arrow::{
    error::ArrowError,
    ipc::{reader::StreamReader, writer::StreamWriter},
    record_batch::RecordBatch,
};

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

/// Decodes an Arrow IPC stream. Damaged input is an error, never a panic.
pub fn decode(bytes: &[u8]) -> Result<Vec<RecordBatch>, ArrowError> {
    let read = || StreamReader::try_new(std::io::Cursor::new(bytes), None)?.collect();
    // Arrow's reader panics at types that do not exist. Nothing of what it had begun is left.
    let read = std::panic::catch_unwind(read);
    read.unwrap_or_else(|_| Err(ArrowError::IpcError("a damaged stream made the reader panic".into())))
}
