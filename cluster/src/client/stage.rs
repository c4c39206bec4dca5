//! Staging: the rows of a large INSERT go to their storage processes before the message that names them (DESIGN,
//! decision 12).

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use arrow::array::UInt64Array;
use bytes::Bytes;
use carousel_engine::{
    Few, SqlError, SqlState, Ts,
    operation::{PayloadId, RowBatch},
    position::KeyRange,
};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::{
    Client, Command,
    admission::{self, Admitted},
    core::no_room,
    readback::Reader,
};
use crate::{
    config::Config,
    message::{ProcessId, StagedPart, StagedPayload},
    payload::{ChunkKey, rows_of},
    wire::StageChunk,
};

/// A payload that is staged must be ordered within this many messages.
const LIFE_OF_A_PAYLOAD: u64 = 50_000_000;

/// Chunks that may be on their way at a time.
const CHUNKS_IN_FLIGHT: usize = 16;

/// What the chunks of all stagers that are on their way may take, in KiB: while disks are slow, rows wait where they come from.
pub(super) const STAGED_KIB: usize = 256 << 10;

/// Who waits for a chunk's receipts.
#[derive(Debug)]
pub(crate) struct Staged(oneshot::Sender<Result<(), SqlError>>);

impl Staged {
    /// All holders have it, or it has come to nothing.
    pub(super) fn tell(self, outcome: Result<(), SqlError>) {
        // The stager may have been dropped.
        let _ = self.0.send(outcome);
    }
}

/// A chunk's rows with the room that they take. It is given back with the last reference to them: what waits in a queue for a
/// slow link has it also when nobody waits for the receipts any more.
struct Roomed {
    rows: Bytes,
    _room: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for Roomed {
    fn as_ref(&self) -> &[u8] {
        &self.rows
    }
}

/// What a stager tells the client process.
#[derive(Debug)]
pub(crate) enum StageCommand {
    /// Send this chunk to these processes; tell `done` when all of them have it on disk.
    Chunk { chunk: StageChunk, holders: Vec<ProcessId>, done: Staged },
    /// Get a chunk from one of those who have it.
    Read { chunk: ChunkKey, checksum: u32, holders: Vec<ProcessId>, reader: Reader },
    /// The payload will not be ordered.
    Abandon { payload: PayloadId, holders: Vec<ProcessId> },
}

/// Stages the rows of one INSERT. Dropped before it is told that this has been [`submitted`](Stager::submitted), it removes what
/// was staged.
#[derive(Debug)]
pub struct Stager {
    client: Client,
    id: PayloadId,
    config: Arc<Config>,
    latest: Ts,
    parts: BTreeMap<KeyRange, StagedPart>,
    in_flight: VecDeque<oneshot::Receiver<Result<(), SqlError>>>,
    /// The memory that its rows will take.
    admitted: Admitted,
    rows: u64,
    submitted: bool,
}

impl Stager {
    pub(super) fn new(client: Client, id: PayloadId) -> Stager {
        let config = client.config();
        let latest = Ts(client.frontier().0 + LIFE_OF_A_PAYLOAD);
        let admitted = Admitted::nothing(client.admission());
        Stager {
            client,
            id,
            config,
            latest,
            parts: BTreeMap::new(),
            in_flight: VecDeque::new(),
            admitted,
            rows: 0,
            submitted: false,
        }
    }

    /// The payload's identity, for `InsertRows::Staged`.
    pub fn id(&self) -> PayloadId {
        self.id
    }

    /// Sends rows to every process that will hold them; waits while too many chunks are on their way. Call it with
    /// batches of a few thousand rows. An error is the payload's end: drop the stager.
    ///
    /// # Errors
    /// 53200 when the storage processes report too little memory, 53100 when a disk is full or those of the routers' logs
    /// nearly are, 54000 when so much has been ordered since the first ones that the rows are not kept any more, 57P01 when the
    /// client process has been stopped.
    pub async fn push(&mut self, batch: &RowBatch) -> Result<(), SqlError> {
        if !self.client.has_room() {
            return Err(no_room());
        }
        // They may go to anybody.
        let tightest = || self.client.tightest(&[KeyRange::FULL]);
        self.admitted.grow(admission::bytes_of(batch), self.client.memory(), tightest)?;
        self.send(batch).await
    }

    /// As [`push`](Stager::push), of rows that there is room for.
    async fn send(&mut self, batch: &RowBatch) -> Result<(), SqlError> {
        self.check_life()?;
        self.rows += batch.positions.len() as u64;
        let config = self.config.clone();
        for range in config.overlapping(&[KeyRange::FULL]) {
            let Some(part) = rows_within(batch, &range)? else { continue };
            let holders = config.live_holders(range);
            if holders.is_empty() {
                let message = format!("no live storage process holds key range {range}");
                return Err(SqlError::new(SqlState::UNAVAILABLE, message));
            }
            let staged = self.parts.entry(range).or_insert_with(|| StagedPart {
                range,
                holders: holders.clone(),
                checksums: Vec::new(),
            });
            // Whoever has room waits for nobody who wants some: it is given back by the client process and its links.
            let kib = admission::bytes_of(&part).div_ceil(1 << 10).clamp(1, STAGED_KIB as u64) as u32;
            let room = self.client.shared.staging.clone().acquire_many_owned(kib).await;
            let room = room.map_err(|_| self.client.stopped())?;
            let mut chunk = chunk_of(self.id, range, staged.checksums.len() as u32, &part, self.latest)?;
            chunk.rows = Bytes::from_owner(Roomed { rows: chunk.rows, _room: room });
            staged.checksums.push(chunk.checksum);
            let (done, receipt) = oneshot::channel();
            let done = Staged(done);
            self.client.command(Command::Stage(StageCommand::Chunk { chunk, holders, done }))?;
            self.in_flight.push_back(receipt);
            while self.in_flight.len() >= CHUNKS_IN_FLIGHT {
                self.receipt().await?;
            }
        }
        Ok(())
    }

    /// Waits until every chunk is on the disks of all its holders. The result goes into the INSERT that names this
    /// payload, whose key ranges are [`staged_ranges`]; when that has been submitted, say so ([`Stager::submitted`]). If it
    /// turns out to be stale, stage again.
    ///
    /// # Errors
    /// As [`Stager::push`].
    pub async fn finish(&mut self) -> Result<StagedPayload, SqlError> {
        while !self.in_flight.is_empty() {
            self.receipt().await?;
        }
        self.check_life()?;
        let admission = self.client.admission().clone();
        let admitted = std::mem::replace(&mut self.admitted, Admitted::nothing(&admission));
        admission.keep_staged(self.id, admitted, self.rows);
        Ok(StagedPayload {
            id: self.id,
            config_version: self.config.version(),
            latest: self.latest,
            parts: self.parts.values().cloned().collect(),
        })
    }

    /// Whether the ring has changed since these rows were staged: a message that names them would have no effect.
    pub fn is_outdated(&self) -> bool {
        self.client.config().version() != self.config.version()
    }

    /// Stages the rows of a [finished](Stager::finish) payload again as a payload of its own, for the ring as it is now. They come
    /// from those who hold them; afterwards this payload is of no use any more, and goes with its stager.
    ///
    /// # Errors
    /// As [`Stager::push`], and 40001 when nobody in the ring has some of the rows any more.
    pub async fn again(&mut self) -> Result<(StagedPayload, Stager), SqlError> {
        let mut next = self.client.stage();
        if let Some(admitted) = self.client.admission().take_staged(self.id) {
            next.admitted = admitted;
        }
        for part in self.parts.values() {
            for (number, checksum) in (0..).zip(&part.checksums) {
                let (reader, read) = oneshot::channel();
                let chunk = (self.id, part.range, number);
                let (checksum, holders) = (*checksum, part.holders.clone());
                self.client.command(Command::Stage(StageCommand::Read {
                    chunk,
                    checksum,
                    holders,
                    reader,
                }))?;
                let rows = read.await.map_err(|_| self.client.stopped())?;
                let rows = rows.and_then(|rows| rows_of(&rows, checksum));
                let rows = rows.ok_or_else(|| {
                    let message =
                        "could not serialize access: rows that were sent are gone with those who held them";
                    SqlError::new(SqlState::SERIALIZATION_FAILURE, message)
                })?;
                next.send(&rows).await?;
            }
        }
        let payload = next.finish().await?;
        Ok((payload, next))
    }

    /// What was staged belongs to an INSERT that [`Client::submit`] has taken.
    pub fn submitted(mut self) {
        self.submitted = true;
    }

    /// What was staged first may have been forgotten. Said again, the statement would take as long.
    fn check_life(&self) -> Result<(), SqlError> {
        if self.client.frontier() < self.latest {
            return Ok(());
        }
        let error = SqlError::new(SqlState::LIMIT_EXCEEDED, "the rows have taken too long to be sent");
        Err(error.with_hint("Send them in several statements."))
    }

    async fn receipt(&mut self) -> Result<(), SqlError> {
        match self.in_flight.pop_front() {
            Some(receipt) => receipt.await.unwrap_or_else(|_| Err(self.client.stopped())),
            None => Ok(()),
        }
    }
}

impl Drop for Stager {
    fn drop(&mut self) {
        if !self.submitted {
            self.client.admission().forget_staged(self.id);
            let holders: BTreeSet<ProcessId> =
                self.parts.values().flat_map(|part| part.holders.clone()).collect();
            let holders = holders.into_iter().collect();
            // A stopped client process has nobody to tell; the payload expires.
            let _ = self.client.command(Command::Stage(StageCommand::Abandon { payload: self.id, holders }));
        }
    }
}

/// The key ranges of the INSERT that names a staged payload.
pub fn staged_ranges(payload: &StagedPayload) -> Few<KeyRange> {
    payload.parts.iter().map(|part| part.range).collect()
}

/// Rows as a chunk of a payload's part, by its number there.
pub(crate) fn chunk_of(
    payload: PayloadId,
    range: KeyRange,
    chunk: u32,
    rows: &RowBatch,
    latest: Ts,
) -> Result<StageChunk, SqlError> {
    let rows = postcard::to_stdvec(rows)
        .map_err(|e| SqlError::internal(format!("cannot serialise rows to be staged: {e}")))?;
    let checksum = crc32fast::hash(&rows);
    Ok(StageChunk { payload, range, chunk, rows: Bytes::from(rows), checksum, latest })
}

/// The rows of a batch whose positions lie in the range, in their order; `None` when there is none.
pub(crate) fn rows_within(batch: &RowBatch, range: &KeyRange) -> Result<Option<RowBatch>, SqlError> {
    let indices: Vec<u64> =
        (0..).zip(&batch.positions).filter(|(_, p)| range.contains(**p)).map(|(i, _)| i).collect();
    if indices.is_empty() {
        return Ok(None);
    }
    if indices.len() == batch.positions.len() {
        return Ok(Some(batch.clone()));
    }
    let positions = indices.iter().map(|i| batch.positions[*i as usize]).collect();
    let ordinals = indices.iter().map(|i| batch.ordinals[*i as usize]).collect();
    let rows = arrow::compute::take_record_batch(&batch.rows, &UInt64Array::from(indices))
        .map_err(|e| SqlError::internal(format!("cannot split rows by key range: {e}")))?;
    Ok(Some(RowBatch { rows, positions, ordinals }))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use arrow::{
        array::{Int64Array, RecordBatch},
        datatypes::{DataType, Field, Schema},
    };

    use super::*;
    use crate::{
        client::{ClientOptions, Lives},
        network::Network,
        wire::Wire,
    };

    fn client(network: &Network) -> Client {
        let options = ClientOptions {
            id: ProcessId::client(1),
            incarnation: 1,
            lives: Lives { starts: PathBuf::new(), apart: 1 },
            routers: vec![ProcessId::router(1)],
            config: Arc::new(Config::evenly(1, 1).expect("a ring")),
        };
        Client::start(options, network)
    }

    #[tokio::test]
    async fn what_waits_for_a_slow_link_keeps_its_room_when_it_is_given_up() {
        let network = Network::new();
        let mut holder = network.join(ProcessId::storage(1));
        let client = client(&network);
        let schema = Arc::new(Schema::new(vec![Field::new("a", DataType::Int64, false)]));
        let rows = RecordBatch::try_new(schema, vec![Arc::new(Int64Array::from(vec![7]))]).expect("a row");
        let batch = RowBatch { rows, positions: vec![1], ordinals: vec![0] };
        let free = || client.shared.staging.available_permits();
        let mut stager = client.stage();
        stager.push(&batch).await.expect("there is room");
        drop(stager);
        let mut chunk = None;
        loop {
            match holder.recv().await.expect("a message") {
                (_, Wire::Stage(staged)) => chunk = Some(staged),
                (_, Wire::Abandon(_)) => break,
                _ => {}
            }
        }
        assert!(free() < STAGED_KIB);
        let chunk = chunk.expect("it was sent before");
        let positions = rows_of(&chunk.rows, chunk.checksum).map(|rows| rows.positions);
        assert_eq!(positions, Some(vec![1]));
        drop(chunk);
        assert_eq!(free(), STAGED_KIB);
    }

    #[tokio::test]
    async fn rows_that_outlive_what_they_began_with_are_refused_at_once() {
        let client = client(&Network::new());
        let mut stager = client.stage();
        stager.push(&RowBatch::empty()).await.expect("there is time");
        stager.latest = client.frontier();
        for refused in [stager.push(&RowBatch::empty()).await, stager.finish().await.map(drop)] {
            assert_eq!(refused.expect_err("it is too late").code, SqlState::LIMIT_EXCEEDED);
        }
    }
}
