//! The thread that owns a storage process's payload store: its disk must not hold up the process's task.

use std::{collections::VecDeque, sync::Arc, thread::JoinHandle};

use bytes::Bytes;
use carousel_engine::{
    SqlError, SqlState, Ts,
    operation::{PayloadId, RowBatch},
};
use parking_lot::{Condvar, Mutex};
use tokio::sync::mpsc::UnboundedSender;

use crate::{
    message::{Incarnation, ProcessId},
    payload::{ChunkKey, Files, PayloadStore},
    storage::core::ChunkWanted,
    wire::{StageChunk, Wire},
};

/// Chunks that share the syncs of directories.
const GROUP: usize = 64;

/// Of chunks that are left out as they have been given up.
const GIVEN_UP: SqlState = SqlState::QUERY_CANCELED;

/// Whether a chunk has been given up before the disk had come to it.
pub(crate) fn is_given_up(error: &SqlError) -> bool {
    error.code == GIVEN_UP
}

/// What the thread is told.
#[derive(Debug)]
pub(crate) enum PayloadCommand {
    /// A client's chunk.
    Stage(ProcessId, StageChunk),
    /// A message that names the payload has been delivered.
    Keep(PayloadId),
    /// Rows for a message that has been delivered.
    Load(ChunkWanted),
    /// Another storage process lacks a chunk.
    Fetch { from: ProcessId, chunk: ChunkKey },
    /// A chunk that another storage process has sent.
    Adopt { wanted: ChunkWanted, rows: Bytes },
    /// No replica needs it any more.
    Remove(PayloadId),
    /// Its submitter has given it up.
    Abandon(PayloadId),
    /// A life of a client process has been heard of: what earlier ones have staged and not submitted will not be ordered.
    Outlived(u32, Incarnation),
    /// Everything up to here has been delivered.
    Expire(Ts),
}

/// What the thread answers.
#[derive(Debug)]
pub(crate) enum PayloadEvent {
    /// To be sent.
    Send(ProcessId, Wire),
    /// A chunk.
    Loaded { ts: Ts, chunk: usize, rows: RowBatch },
    /// A chunk is not here, or damaged: some other holder must send it.
    Missing(ChunkWanted),
    /// A chunk cannot be read now, and why; it may be here. `None` when it is another process that wants it.
    Unreadable(Option<ChunkWanted>, String),
}

/// Where the thread is told what to do; it ends when this is dropped.
pub(crate) struct Payloads {
    queue: Arc<Queue>,
    events: UnboundedSender<PayloadEvent>,
}

#[derive(Default)]
struct Queue {
    waiting: Mutex<Waiting>,
    arrived: Condvar,
}

#[derive(Default)]
struct Waiting {
    commands: VecDeque<PayloadCommand>,
    /// No more will come.
    ended: bool,
    /// Nobody does it any more.
    abandoned: bool,
}

impl Waiting {
    /// Takes out the chunks of a payload that has been given up, which the disk has not come to: it may be slow, or hang, and
    /// who has given up tries again.
    fn leave_out(&mut self, given_up: PayloadId) -> Vec<PayloadEvent> {
        let mut left_out = Vec::new();
        self.commands.retain(|command| match command {
            PayloadCommand::Stage(from, StageChunk { payload, range, chunk, .. }) if *payload == given_up => {
                let outcome = Err(SqlError::new(GIVEN_UP, "the rows have been given up"));
                let staged = Wire::Staged { payload: *payload, range: *range, chunk: *chunk, outcome };
                left_out.push(PayloadEvent::Send(*from, staged));
                false
            }
            _ => true,
        });
        left_out
    }
}

impl Payloads {
    /// Tells the thread to do something. An error when it has ended, as it has panicked.
    pub(crate) fn tell(&self, command: PayloadCommand) -> Result<(), &'static str> {
        let mut waiting = self.queue.waiting.lock();
        if waiting.abandoned {
            return Err("the payload store has ended");
        }
        let left_out = match &command {
            PayloadCommand::Abandon(payload) => waiting.leave_out(*payload),
            _ => Vec::new(),
        };
        waiting.commands.push_back(command);
        drop(waiting);
        self.queue.arrived.notify_one();
        // Without a receiver the process is ending.
        left_out.into_iter().for_each(|event| drop(self.events.send(event)));
        Ok(())
    }
}

impl Drop for Payloads {
    fn drop(&mut self) {
        self.queue.waiting.lock().ended = true;
        self.queue.arrived.notify_one();
    }
}

impl Queue {
    /// What is to be done next: one thing, or chunks that came together. It waits for that, or returns nothing. An error when all
    /// is done and no more will come.
    fn next(&self, waits: bool) -> Result<Option<Work>, Ended> {
        let mut waiting = self.waiting.lock();
        let first = loop {
            match waiting.commands.pop_front() {
                Some(command) => break command,
                None if waiting.ended => return Err(Ended),
                None if !waits => return Ok(None),
                None => self.arrived.wait(&mut waiting),
            }
        };
        let mut others = Vec::new();
        while matches!(first, PayloadCommand::Stage(..)) && others.len() + 1 < GROUP {
            match waiting.commands.pop_front() {
                Some(PayloadCommand::Stage(from, chunk)) => others.push((from, chunk)),
                Some(other) => {
                    waiting.commands.push_front(other);
                    break;
                }
                None => break,
            }
        }
        Ok(Some((first, others)))
    }
}

/// A command, and chunks that came behind if it is one itself.
type Work = (PayloadCommand, Vec<(ProcessId, StageChunk)>);

/// Nobody tells the thread anything any more.
struct Ended;

/// Starts the thread.
pub(crate) fn start(
    name: String,
    store: PayloadStore,
    events: UnboundedSender<PayloadEvent>,
) -> std::io::Result<(Payloads, JoinHandle<()>)> {
    let payloads = Payloads { queue: Arc::default(), events: events.clone() };
    let queue = payloads.queue.clone();
    let thread = std::thread::Builder::new().name(name).spawn(move || run(store, &queue, &events))?;
    Ok((payloads, thread))
}

/// Says so when the thread ends, however it does.
struct Ends<'q>(&'q Queue);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.waiting.lock().abandoned = true;
    }
}

fn run(mut store: PayloadStore, queue: &Queue, events: &UnboundedSender<PayloadEvent>) {
    let _ends = Ends(queue);
    loop {
        // What nobody needs goes between what somebody waits for.
        let removes = store.remove_some();
        let (command, mut others) = match queue.next(!removes) {
            Ok(Some(work)) => work,
            Ok(None) => continue,
            Err(Ended) => return,
        };
        let answers = match command {
            PayloadCommand::Stage(from, chunk) => {
                others.insert(0, (from, chunk));
                stage(&mut store, others)
            }
            command => obey(&mut store, command),
        };
        for event in answers {
            if events.send(event).is_err() {
                return;
            }
        }
    }
}

/// Puts chunks that came together on the disk.
fn stage<F: Files>(store: &mut PayloadStore<F>, group: Vec<(ProcessId, StageChunk)>) -> Vec<PayloadEvent> {
    let (clients, chunks): (Vec<ProcessId>, Vec<StageChunk>) = group.into_iter().unzip();
    let outcomes = store.stage(&chunks);
    let receipts = clients.into_iter().zip(chunks).zip(outcomes);
    receipts
        .map(|((client, StageChunk { payload, range, chunk, .. }), outcome)| {
            PayloadEvent::Send(client, Wire::Staged { payload, range, chunk, outcome })
        })
        .collect()
}

/// Does what the store is told.
pub(crate) fn obey<F: Files>(store: &mut PayloadStore<F>, command: PayloadCommand) -> Vec<PayloadEvent> {
    match command {
        PayloadCommand::Stage(from, chunk) => return stage(store, vec![(from, chunk)]),
        PayloadCommand::Keep(payload) => store.mark_ordered(payload),
        PayloadCommand::Load(wanted) => return vec![load(store, wanted)],
        PayloadCommand::Adopt { wanted, rows } => return vec![adopt(store, wanted, rows)],
        PayloadCommand::Fetch { from, chunk: (payload, range, chunk) } => {
            return vec![match store.chunk((payload, range, chunk)) {
                Ok(rows) => PayloadEvent::Send(from, Wire::StagedRows { payload, range, chunk, rows }),
                // It is asked again.
                Err(error) => PayloadEvent::Unreadable(None, error.to_string()),
            }];
        }
        PayloadCommand::Remove(payload) => store.remove(payload),
        PayloadCommand::Abandon(payload) => store.abandon(payload),
        PayloadCommand::Outlived(client, incarnation) => store.outlive(u64::from(client), incarnation),
        PayloadCommand::Expire(frontier) => store.expire(frontier),
    }
    Vec::new()
}

fn load<F: Files>(store: &PayloadStore<F>, wanted: ChunkWanted) -> PayloadEvent {
    match store.rows(&wanted.payload, &wanted.payload.parts[wanted.part], wanted.number) {
        Ok(Some(rows)) => PayloadEvent::Loaded { ts: wanted.ts, chunk: wanted.chunk, rows },
        Ok(None) => PayloadEvent::Missing(wanted),
        Err(error) => PayloadEvent::Unreadable(Some(wanted), error.to_string()),
    }
}

fn adopt<F: Files>(store: &mut PayloadStore<F>, wanted: ChunkWanted, rows: Bytes) -> PayloadEvent {
    let part = &wanted.payload.parts[wanted.part];
    match store.adopt(&wanted.payload, part, wanted.number, rows) {
        Some(rows) => PayloadEvent::Loaded { ts: wanted.ts, chunk: wanted.chunk, rows },
        None => PayloadEvent::Missing(wanted),
    }
}

#[cfg(test)]
mod tests {
    use std::{
        collections::{BTreeMap, BTreeSet},
        io,
    };

    use carousel_engine::position::KeyRange;

    use super::*;
    use crate::{
        message::{StagedPart, StagedPayload},
        payload::Header,
    };

    /// A disk that takes nothing.
    struct Full;

    impl Files for Full {
        fn list(&self, _: &dyn Fn()) -> io::Result<BTreeMap<PayloadId, Vec<Header>>> {
            Ok(BTreeMap::new())
        }

        fn read(&self, _: ChunkKey) -> io::Result<Option<Bytes>> {
            Err(io::Error::other("it is broken"))
        }

        fn write(&mut self, _: ChunkKey, _: &[&[u8]]) -> io::Result<()> {
            Err(io::ErrorKind::StorageFull.into())
        }

        fn sync(&mut self, _: &BTreeSet<PayloadId>) -> io::Result<()> {
            Ok(())
        }

        fn remove_some(&mut self, _: PayloadId) -> io::Result<bool> {
            Ok(false)
        }
    }

    #[test]
    fn rows_that_came_are_used_though_the_disk_is_full() {
        let id = PayloadId { process: 1, incarnation: 1, sequence: 1 };
        let rows = Bytes::from(postcard::to_stdvec(&RowBatch::empty()).expect("it can be written"));
        let (range, holders) = (KeyRange::FULL, vec![ProcessId::storage(1)]);
        let part = StagedPart { range, holders, checksums: vec![crc32fast::hash(&rows)] };
        let payload = StagedPayload { id, config_version: 0, latest: Ts(100), parts: vec![part] };
        let wanted = ChunkWanted { ts: Ts(7), payload: Arc::new(payload), chunk: 0, part: 0, number: 0 };
        let mut store = PayloadStore::over(Full, &|| ()).expect("it has no files");
        let mut told = |command| obey(&mut store, command).pop().expect("an answer");
        let rows_of_another = Bytes::from_static(b"others");
        let adopt = |rows| PayloadCommand::Adopt { wanted: wanted.clone(), rows };
        assert!(matches!(told(adopt(rows_of_another)), PayloadEvent::Missing(_)));
        assert!(matches!(told(adopt(rows)), PayloadEvent::Loaded { .. }));
        // What cannot be read is not missing, to nobody.
        assert!(matches!(told(PayloadCommand::Load(wanted)), PayloadEvent::Unreadable(Some(_), _)));
        let fetch = PayloadCommand::Fetch { from: ProcessId::storage(2), chunk: (id, range, 0) };
        assert!(matches!(told(fetch), PayloadEvent::Unreadable(None, _)));
    }

    #[test]
    fn chunks_that_are_given_up_before_the_disk_has_come_to_them_are_left_out() {
        let payload = |sequence| PayloadId { process: 1, incarnation: 1, sequence };
        let (range, client) = (KeyRange::new(0, 9), ProcessId::client(1));
        let stage = |sequence, chunk| {
            let rows = Bytes::from_static(b"rows");
            let (payload, latest) = (payload(sequence), Ts(100));
            let chunk = StageChunk { payload, range, chunk, checksum: crc32fast::hash(&rows), rows, latest };
            PayloadCommand::Stage(client, chunk)
        };
        let (events, mut told) = tokio::sync::mpsc::unbounded_channel();
        // The disk hangs: nobody takes anything.
        let payloads = Payloads { queue: Arc::default(), events };
        for _ in 0..3 {
            for command in [stage(1, 0), stage(1, 1), stage(2, 0), PayloadCommand::Abandon(payload(1))] {
                assert_eq!(payloads.tell(command), Ok(()));
            }
        }
        for _ in 0..3 {
            for number in [0, 1] {
                match told.try_recv() {
                    Ok(PayloadEvent::Send(to, Wire::Staged { payload: of, chunk, outcome: Err(_), .. })) => {
                        assert_eq!((to, of, chunk), (client, payload(1), number));
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
        let mut left = 0;
        while payloads.queue.waiting.lock().commands.front().is_some() {
            let Ok(Some((first, others))) = payloads.queue.next(true) else { panic!("there is more") };
            match first {
                PayloadCommand::Stage(_, chunk) => {
                    let all = others.iter().map(|(_, chunk)| chunk).chain([&chunk]);
                    left += all.inspect(|chunk| assert_eq!(chunk.payload, payload(2))).count();
                }
                PayloadCommand::Abandon(given_up) => assert_eq!(given_up, payload(1)),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(left, 3);
        let queue = payloads.queue.clone();
        assert!(matches!(queue.next(false), Ok(None)));
        drop(payloads);
        assert!(queue.next(true).is_err());
    }
}
