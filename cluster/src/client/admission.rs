//! Memory for writes: admitted before they are ordered (DESIGN, decision 2).
//!
//! What storage processes report is a little late. So a write counts from when it is admitted until some time after its
//! end, when the reports tell of it, and writes that race for the last bytes cannot all have them.

use std::{collections::HashMap, sync::Arc};

use carousel_engine::{
    SqlError, SqlState,
    array::size_of_cells,
    operation::{Insert, InsertRows, OperationKind, PayloadId, RowBatch},
    statistics::{ROW_BYTES, computed_bytes},
};
use parking_lot::Mutex;

use super::Memory;
use crate::message::Body;

/// Ticks after its end for which a write still counts: storage processes report once in a tick.
const REPORTED_AFTER: usize = 4;

/// The writes on their way through one client process.
#[derive(Debug, Default)]
pub(crate) struct Admission {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Bytes that writes on their way may add.
    running: u64,
    /// Bytes of those that have ended, in the present tick and those before.
    ended: [u64; REPORTED_AFTER],
    /// Payloads that are staged, until an INSERT names them or they are given up.
    staged: HashMap<PayloadId, Staged>,
}

/// A payload that is staged.
#[derive(Debug)]
struct Staged {
    admitted: Admitted,
    rows: u64,
}

/// Room for a write that was admitted.
#[derive(Debug)]
pub(crate) struct Admitted {
    admission: Arc<Admission>,
    bytes: u64,
}

impl Drop for Admitted {
    fn drop(&mut self) {
        let mut state = self.admission.state.lock();
        state.running -= self.bytes;
        state.ended[0] += self.bytes;
    }
}

impl Admitted {
    /// Room for nothing.
    pub(crate) fn nothing(admission: &Arc<Admission>) -> Admitted {
        Admitted { admission: admission.clone(), bytes: 0 }
    }

    /// Makes room for more.
    pub(crate) fn grow(&mut self, bytes: u64, memory: Memory) -> Result<(), SqlError> {
        let mut state = self.admission.state.lock();
        let under_way: u64 = state.running + state.ended.iter().sum::<u64>();
        match memory.limit {
            Some(limit) if bytes > 0 && memory.used.saturating_add(under_way).saturating_add(bytes) > limit => {
                Err(SqlError::new(SqlState::OUT_OF_MEMORY, "out of memory")
                    .with_detail(format!(
                        "A storage process uses {} bytes of its limit of {limit}, and statements under way may add \
                         {under_way}; this one may add {bytes}.",
                        memory.used
                    ))
                    .with_hint("Delete rows or raise the memory limit."))
            }
            _ => {
                // Estimates know no bounds.
                let bytes = bytes.min(u64::MAX - under_way);
                state.running += bytes;
                self.bytes += bytes;
                Ok(())
            }
        }
    }
}

impl Admission {
    /// Time has passed: storage processes have reported what ended long ago.
    pub(crate) fn tick(&self) {
        let mut state = self.state.lock();
        state.ended.rotate_right(1);
        state.ended[0] = 0;
    }

    /// Keeps the room of a payload of so many rows for the INSERT that will name it.
    pub(crate) fn keep_staged(&self, payload: PayloadId, admitted: Admitted, rows: u64) {
        let replaced = {
            let mut state = self.state.lock();
            state.staged.insert(payload, Staged { admitted, rows })
        };
        debug_assert!(replaced.is_none(), "a payload is staged once");
    }

    /// No INSERT will name a payload.
    pub(crate) fn forget_staged(&self, payload: PayloadId) {
        let staged = self.state.lock().staged.remove(&payload);
        // What is given back takes the lock itself.
        drop(staged);
    }

    /// The room for a message, if there is any: of its rows, or that of its payload, which was admitted as it was staged;
    /// of the rows that an UPDATE may find and of those that it or a DELETE may return, `expected` by statistics; and of what an
    /// INSERT returns, which is about what it inserts, and what is computed.
    ///
    /// # Errors
    /// 53200.
    pub(crate) fn admit(
        self: &Arc<Self>,
        body: &Body,
        memory: Memory,
        expected: impl FnOnce() -> u64,
    ) -> Result<Admitted, SqlError> {
        let mut admitted = Admitted::nothing(self);
        let Body::Data(data) = body else { return Ok(admitted) };
        match &data.operation.open()?.kind {
            OperationKind::Insert(insert) => match &insert.rows {
                InsertRows::Inline(rows) => {
                    let bytes = bytes_of(rows);
                    let returned = returned_bytes(insert, bytes, rows.positions.len() as u64);
                    admitted.grow(bytes.saturating_add(returned), memory)?;
                }
                InsertRows::Staged(payload) => {
                    let staged = self.state.lock().staged.remove(payload);
                    if let Some(staged) = staged {
                        admitted = staged.admitted;
                        admitted.grow(returned_bytes(insert, admitted.bytes, staged.rows), memory)?;
                    }
                }
            },
            OperationKind::Update(_) => admitted.grow(expected().max(ROW_BYTES), memory)?,
            OperationKind::Delete(delete) if delete.returning.is_some() => {
                admitted.grow(expected(), memory)?
            }
            _ => {}
        }
        Ok(admitted)
    }
}

/// An estimate of the bytes of what is returned of so many rows with so many bytes.
fn returned_bytes(insert: &Insert, bytes: u64, rows: u64) -> u64 {
    let Some(returning) = &insert.returning else { return 0 };
    let computed = computed_bytes(returning, bytes / rows.max(1));
    bytes.saturating_add(computed.saturating_mul(rows))
}

/// An estimate of the bytes that rows will take.
pub(crate) fn bytes_of(rows: &RowBatch) -> u64 {
    size_of_cells(&rows.rows) + rows.positions.len() as u64 * ROW_BYTES
}

#[cfg(test)]
mod tests {
    use carousel_engine::{
        TableId, Type, Value,
        expr::{Expr, Function},
        operation::{OnConflict, Operation},
    };

    use super::*;
    use crate::message::Data;

    const MEMORY: Memory = Memory { used: 100, limit: Some(1000) };

    fn room(admission: &Arc<Admission>, bytes: u64) -> Result<Admitted, SqlState> {
        let mut admitted = Admitted::nothing(admission);
        admitted.grow(bytes, MEMORY).map(|()| admitted).map_err(|error| error.code)
    }

    #[test]
    fn writes_count_until_the_reports_tell_of_them() {
        let admission = Arc::new(Admission::default());
        let first = room(&admission, 500).expect("there is room");
        assert_eq!(room(&admission, 500).err(), Some(SqlState::OUT_OF_MEMORY));
        drop(first);
        for _ in 0..REPORTED_AFTER {
            assert!(room(&admission, 500).is_err(), "it has ended, but has not been reported");
            admission.tick();
        }
        assert!(room(&admission, 900).is_ok());
        assert!(Admitted::nothing(&admission).grow(1 << 40, Memory { used: 0, limit: None }).is_ok());
    }

    #[test]
    fn what_an_insert_returns_needs_room_too() {
        let admission = Arc::new(Admission::default());
        let id = PayloadId { process: 1, incarnation: 1, sequence: 1 };
        let text = |text: &str| Expr::literal(Value::text(text), Type::Text);
        let times = Expr::literal(Value::Int4(1_000), Type::Int4);
        let repeated =
            Expr::Call { function: Function::Repeat, args: vec![text("x"), times], ty: Type::Text };
        let admit = |returning: Option<Vec<Expr>>| {
            admission.keep_staged(id, room(&admission, 300).expect("there is room"), 2);
            let (rows, on_conflict) = (InsertRows::Staged(id), OnConflict::Nothing);
            let kind = OperationKind::Insert(Insert { rows, on_conflict, returning });
            let operation = Operation { table: TableId(1), context: Default::default(), kind };
            let body = Body::Data(Data::new(Arc::new(operation)));
            let outcome = admission.admit(&body, MEMORY, || 0).map(|admitted| admitted.bytes);
            (0..=REPORTED_AFTER).for_each(|_| admission.tick());
            outcome.map_err(|error| error.code)
        };
        assert_eq!(admit(None), Ok(300));
        assert_eq!(admit(Some(vec![Expr::column(0, Type::Text)])), Ok(600));
        assert_eq!(admit(Some(vec![repeated])), Err(SqlState::OUT_OF_MEMORY));
    }

    #[test]
    fn a_payload_keeps_its_room_until_it_is_inserted_or_forgotten() {
        let admission = Arc::new(Admission::default());
        let id = PayloadId { process: 1, incarnation: 1, sequence: 1 };
        admission.keep_staged(id, room(&admission, 900).expect("there is room"), 1);
        (0..=REPORTED_AFTER).for_each(|_| admission.tick());
        assert!(room(&admission, 1).is_err());
        admission.forget_staged(id);
        (0..=REPORTED_AFTER).for_each(|_| admission.tick());
        assert!(room(&admission, 900).is_ok());
    }
}
