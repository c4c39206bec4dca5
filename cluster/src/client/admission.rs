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
use crate::message::{Body, ProcessId};

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

/// The storage process with the least room of those that a write goes to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tightest {
    pub(crate) process: ProcessId,
    /// Bytes that its rows take.
    pub(crate) used: u64,
    /// What they may take.
    pub(crate) limit: u64,
}

impl Tightest {
    /// Which of them that is; none when they have no limits.
    pub(crate) fn of(processes: impl Iterator<Item = Tightest>) -> Option<Tightest> {
        processes.min_by_key(|process| i128::from(process.limit) - i128::from(process.used))
    }
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

    /// Makes room for more, where even the fullest process could take it under the lowest limit, or at least the one of those
    /// concerned with the least room can.
    pub(crate) fn grow(
        &mut self,
        bytes: u64,
        memory: Memory,
        tightest: impl FnOnce() -> Option<Tightest>,
    ) -> Result<(), SqlError> {
        let mut state = self.admission.state.lock();
        let under_way: u64 = state.running + state.ended.iter().sum::<u64>();
        let exceeds = |used: u64, limit: u64| used.saturating_add(under_way).saturating_add(bytes) > limit;
        if bytes > 0
            && memory.limit.is_some_and(|limit| exceeds(memory.used, limit))
            && let Some(Tightest { process, used, limit }) = tightest()
            && exceeds(used, limit)
        {
            let detail = format!(
                "Storage process {process} uses {used} bytes of its limit of {limit}, and statements under way may add \
                 {under_way}; this one may add {bytes}."
            );
            return Err(SqlError::new(SqlState::OUT_OF_MEMORY, "out of memory")
                .with_detail(detail)
                .with_hint("Delete rows or raise the memory limit."));
        }
        // Estimates know no bounds.
        let bytes = bytes.min(u64::MAX - under_way);
        state.running += bytes;
        self.bytes += bytes;
        Ok(())
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

    /// The room of a payload, whose rows will be those of another.
    pub(crate) fn take_staged(&self, payload: PayloadId) -> Option<Admitted> {
        self.state.lock().staged.remove(&payload).map(|staged| staged.admitted)
    }

    /// No INSERT will name a payload.
    pub(crate) fn forget_staged(&self, payload: PayloadId) {
        let staged = self.state.lock().staged.remove(&payload);
        // What is given back takes the lock itself.
        drop(staged);
    }

    /// The room for a message at those it goes to, if there is any: of its rows, or that of its payload, which was admitted as it
    /// was staged; of the rows that an UPDATE may find, of those that it or a DELETE may return, and of long strings on the way,
    /// `expected` by statistics; and
    /// of what an INSERT returns, which is about what it inserts, and what is computed.
    ///
    /// # Errors
    /// 53200.
    pub(crate) fn admit(
        self: &Arc<Self>,
        body: &Body,
        memory: Memory,
        tightest: impl FnOnce() -> Option<Tightest>,
        expected: impl FnOnce() -> u64,
    ) -> Result<Admitted, SqlError> {
        let mut admitted = Admitted::nothing(self);
        let Body::Data(data) = body else { return Ok(admitted) };
        match &data.operation.open()?.kind {
            OperationKind::Insert(insert) => match &insert.rows {
                InsertRows::Inline(rows) => {
                    let bytes = bytes_of(rows);
                    let returned = returned_bytes(insert, bytes, rows.positions.len() as u64);
                    admitted.grow(bytes.saturating_add(returned), memory, tightest)?;
                }
                InsertRows::Staged(payload) => {
                    let staged = self.state.lock().staged.remove(payload);
                    if let Some(staged) = staged {
                        admitted = staged.admitted;
                        let returned = returned_bytes(insert, admitted.bytes, staged.rows);
                        admitted.grow(returned, memory, tightest)?;
                    }
                }
            },
            OperationKind::Update(_) => admitted.grow(expected().max(ROW_BYTES), memory, tightest)?,
            OperationKind::Delete(_) | OperationKind::Read(_) => {
                admitted.grow(expected(), memory, tightest)?
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

    fn tightest() -> Option<Tightest> {
        Some(Tightest { process: ProcessId::storage(1), used: 100, limit: 1000 })
    }

    fn room(admission: &Arc<Admission>, bytes: u64) -> Result<Admitted, SqlState> {
        let mut admitted = Admitted::nothing(admission);
        admitted.grow(bytes, MEMORY, tightest).map(|()| admitted).map_err(|error| error.code)
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
        let unlimited = Memory { used: 0, limit: None };
        assert!(Admitted::nothing(&admission).grow(1 << 40, unlimited, || None).is_ok());
    }

    #[test]
    fn only_those_count_that_a_write_goes_to() {
        let admission = Arc::new(Admission::default());
        let process =
            |number: u32, used, limit| Tightest { process: ProcessId::storage(number), used, limit };
        let (large, small, over) = (process(1, 5_000, 10_000), process(2, 10, 1_000), process(3, 90, 80));
        // Of what one uses and what another may use there is nothing to tell.
        let memory = Memory { used: 5_000, limit: Some(80) };
        let grow = |bytes, processes: &[Tightest]| {
            let tightest = || Tightest::of(processes.iter().copied());
            let grown = Admitted::nothing(&admission).grow(bytes, memory, tightest);
            (0..=REPORTED_AFTER).for_each(|_| admission.tick());
            grown.map_err(|error| error.detail.clone().unwrap_or_default())
        };
        assert_eq!(grow(900, &[large, small]), Ok(()));
        let detail = grow(991, &[large, small]).expect_err("too many");
        assert!(detail.starts_with("Storage process s2 uses 10 bytes of its limit of 1000,"), "{detail}");
        assert_eq!(grow(5_000, &[large]), Ok(()));
        let detail = grow(1, &[large, over, small]).expect_err("one has too much already");
        assert!(detail.starts_with("Storage process s3 uses 90 bytes of its limit of 80,"), "{detail}");
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
            let outcome = admission.admit(&body, MEMORY, tightest, || 0).map(|admitted| admitted.bytes);
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
