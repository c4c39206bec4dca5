//! Messages for tests.

use std::sync::Arc;

use carousel_engine::{
    TableId,
    operation::{Operation, OperationKind, Read, ReadOutput},
    position::KeyRange,
};

use crate::{
    config::Configuration,
    message::{Body, Data, Incarnation, Message, MessageId, ProcessId},
};

fn data(id: MessageId, ranges: Vec<KeyRange>, kind: OperationKind, replica_offset: u32) -> Message {
    let operation = Arc::new(Operation { table: TableId(1), context: Default::default(), kind });
    let data = Data { replica_offset, ..Data::new(operation) };
    Message { id, tables: Default::default(), ranges: ranges.into(), body: Body::Data(data) }
}

/// A write of the whole ring.
pub(crate) fn truncate_table(submitter: ProcessId, incarnation: Incarnation, sequence: u64) -> Message {
    write(submitter, incarnation, sequence, KeyRange::FULL)
}

/// A write of a range.
pub(crate) fn write(
    submitter: ProcessId,
    incarnation: Incarnation,
    sequence: u64,
    range: KeyRange,
) -> Message {
    data(MessageId { submitter, incarnation, sequence }, vec![range], OperationKind::Truncate, 0)
}

/// A write of the whole ring, of about so many bytes, that nobody must open.
pub(crate) fn large_write(submitter: ProcessId, sequence: u64, bytes: usize) -> Message {
    let mut message = truncate_table(submitter, 1, sequence);
    if let Body::Data(data) = &mut message.body {
        let carried = postcard::to_stdvec(&(true, vec![7_u8; bytes])).expect("bytes");
        data.operation = postcard::from_bytes(&carried).expect("a parcel");
    }
    message
}

/// A read of the whole ring.
pub(crate) fn read(submitter: ProcessId, incarnation: Incarnation, sequence: u64, offset: u32) -> Message {
    read_ranges(submitter, incarnation, sequence, vec![KeyRange::FULL], offset)
}

/// A read of some ranges.
pub(crate) fn read_ranges(
    submitter: ProcessId,
    incarnation: Incarnation,
    sequence: u64,
    ranges: Vec<KeyRange>,
    offset: u32,
) -> Message {
    let read = Read { predicate: Vec::new(), output: ReadOutput::Rows { projection: Vec::new(), top: None } };
    data(MessageId { submitter, incarnation, sequence }, ranges, OperationKind::Read(read), offset)
}

/// A configuration message.
pub(crate) fn configuration(
    submitter: ProcessId,
    incarnation: Incarnation,
    sequence: u64,
    configuration: Configuration,
) -> Message {
    let id = MessageId { submitter, incarnation, sequence };
    Message {
        id,
        tables: Default::default(),
        ranges: Default::default(),
        body: Body::Configuration(configuration),
    }
}
