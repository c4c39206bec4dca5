use std::sync::Arc;

use arrow::{
    array::{ArrayRef, Int64Array, StringArray},
    record_batch::{RecordBatch, RecordBatchOptions},
};
use carousel_engine::{SqlState, Value};
use proptest::prelude::*;

use super::*;
use crate::router::testing::{read, write};

fn there_and_back(wire: &Wire) -> Wire {
    let bytes = postcard::to_stdvec(wire).expect("it can be serialised");
    let (back, rest) = postcard::take_from_bytes(&bytes).expect("it can be read");
    assert!(rest.is_empty());
    back
}

fn batch() -> RecordBatch {
    let keys: ArrayRef = Arc::new(Int64Array::from(vec![Some(1), None, Some(3)]));
    let names: ArrayRef = Arc::new(StringArray::from(vec![Some("a"), Some(""), None]));
    RecordBatch::try_from_iter_with_nullable([("k", keys, true), ("n", names, true)])
        .expect("columns that fit")
}

fn answer(part: AnswerPart) -> Wire {
    let id = MessageId { submitter: ProcessId::client(1), incarnation: 2, sequence: 3 };
    Wire::Answers(vec![Answer { id, ts: Ts(4), part }])
}

/// One of each kind that carries more than numbers.
fn examples() -> Vec<Wire> {
    let message = Arc::new(write(ProcessId::client(1), 2, 3, KeyRange::FULL));
    let payload = PayloadId { process: 1, incarnation: 2, sequence: 3 };
    let without_columns = RecordBatch::try_new_with_options(
        Arc::new(arrow::datatypes::Schema::empty()),
        Vec::new(),
        &RecordBatchOptions::new().with_row_count(Some(5)),
    );
    let error = SqlError::new(SqlState::UNIQUE_VIOLATION, "twice").with_detail("Key (k)=(1) already exists.");
    let config = Arc::new(Config::evenly(4, 2).expect("a ring"));
    vec![
        Wire::Route(vec![message.clone(), Arc::new(read(ProcessId::client(1), 2, 4, 1))]),
        Wire::Deliver {
            incarnation: 1,
            after: Ts(7),
            deliveries: vec![Delivery {
                ts: Ts(8),
                message: message.clone(),
                ranges: [KeyRange::FULL].into(),
                config_version: 3,
            }],
            frontier: Ts(9),
        },
        Wire::Outlived { incarnation: 1, newest: 3, goes_on: false },
        Wire::State {
            incarnation: 1,
            ts: Ts(2),
            config: config.clone(),
            clients: [(ProcessId::client(1), None), (ProcessId::client(2), Some(message.id))].into(),
            catalog: Some(Arc::new(Catalog::default())),
            present: Some((Ts(9), config)),
            leadership: u64::MAX,
        },
        answer(AnswerPart::Rows { range: KeyRange::FULL, batch: batch() }),
        answer(AnswerPart::Rows { range: KeyRange::FULL, batch: without_columns.expect("five rows") }),
        answer(AnswerPart::Kept([KeyRange::FULL].into())),
        answer(AnswerPart::Fetched { range: KeyRange::FULL, batch: batch() }),
        answer(AnswerPart::Returned(KeyRange::FULL)),
        Wire::Fetch { id: message.id, ranges: vec![KeyRange::FULL] },
        Wire::Gone { id: message.id, ranges: vec![KeyRange::FULL] },
        answer(AnswerPart::Groups(vec![Group {
            key: vec![Value::Null, Value::Int8(-1)],
            states: Vec::new(),
        }])),
        answer(AnswerPart::Done {
            outcomes: [(KeyRange::FULL, Err(error.clone())), (KeyRange::FULL, Ok(7))].into(),
            more: true,
        }),
        Wire::Staged { payload, range: KeyRange::FULL, chunk: 1, outcome: Err(error) },
        Wire::Stage(StageChunk {
            payload,
            range: KeyRange::FULL,
            chunk: 0,
            rows: Bytes::from_static(b"rows"),
            checksum: 1,
            latest: Ts(9),
        }),
        staged_rows(Some(Bytes::from_static(b"x"))),
        staged_rows(None),
        Wire::Durable { ts: Ts(1), hashes: vec![(TableId(1), KeyRange::FULL, u128::MAX)], reply: true },
        Wire::Lost,
        Wire::Loading(Loading { incarnation: 3, progress: u64::MAX }),
    ]
}

#[test]
fn what_is_sent_is_what_arrives() {
    for wire in examples() {
        assert_eq!(format!("{:?}", there_and_back(&wire)), format!("{wire:?}"));
    }
}

fn staged_rows(rows: Option<Bytes>) -> Wire {
    let payload = PayloadId { process: 1, incarnation: 2, sequence: 3 };
    Wire::StagedRows { payload, range: KeyRange::FULL, chunk: 1, rows }
}

/// Large bytes are not copied, and the parts are what the message is as a whole.
#[test]
fn a_message_in_parts_is_the_message() {
    let chunks: [Bytes; 3] = [1 << 20, 10, 700_000].map(|bytes| vec![7; bytes].into());
    let wires = chunks.clone().map(|chunk| staged_rows(Some(chunk)));
    let (parts, rest) = form::append_in_parts(&wires, b"before".to_vec()).expect("it can be serialised");
    assert_eq!([parts[1].as_ptr(), parts[3].as_ptr()], [chunks[0].as_ptr(), chunks[2].as_ptr()]);
    let mut whole = b"before".to_vec();
    whole.extend(postcard::to_stdvec(&wires).expect("it can be serialised"));
    assert_eq!([parts.concat(), rest].concat(), whole);
}

/// Neither are they when they arrive; what is small does not keep the message.
#[test]
fn large_bytes_of_a_message_are_parts_of_it() {
    let chunks: [Bytes; 3] = [1 << 20, 10, 700_000].map(|bytes| vec![7; bytes].into());
    let sent = chunks.clone().map(|chunk| staged_rows(Some(chunk)));
    let message = Bytes::from(postcard::to_stdvec(&sent).expect("it can be serialised"));
    let wires: [Wire; 3] = form::take_whole(message.clone()).expect("it is what it was");
    let taken = wires.map(|wire| match wire {
        Wire::StagedRows { rows: Some(rows), .. } => rows,
        other => panic!("{other:?}"),
    });
    assert_eq!(taken, chunks);
    let is_part = |chunk: &Bytes| message.as_ptr_range().contains(&chunk.as_ptr());
    assert_eq!([is_part(&taken[0]), is_part(&taken[1]), is_part(&taken[2])], [true, false, true]);

    let more = Bytes::from([&message[..], &[0]].concat());
    assert!(form::take_whole::<[Wire; 3]>(more).is_err());
    assert!(form::take_whole::<[Wire; 3]>(message.slice(..message.len() - 1)).is_err());
}

proptest! {
    /// Whoever has got past the handshake may still send nonsense: it is an error, not a panic.
    #[test]
    fn damaged_bytes_are_an_error(example in 0_usize..13, at in any::<prop::sample::Index>(), flip in 1_u8..) {
        let mut bytes = postcard::to_stdvec(&examples()[example]).expect("it can be serialised");
        let at = at.index(bytes.len());
        bytes[at] ^= flip;
        let _ = postcard::take_from_bytes::<Wire>(&bytes);
        let _ = postcard::take_from_bytes::<Wire>(&bytes[..at]);
    }
}
