//! Scan threads: each drives one shard, and sleeps when there is nothing to do.

use std::{
    collections::VecDeque,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc as std_mpsc,
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use bytes::Bytes;
use carousel_engine::{
    Few, TableId, Ts,
    encoding::Encoding,
    given_up::GivenUp,
    operation::{Decision, Effect, OrderedOperation, RowBatch},
    pack::Packing,
    position::{KeyRange, Position},
    recut::Recut,
    shard::{Progress, Shard},
    statistics::TableStatistics,
    unpack::Unpacking,
};
use core_affinity::CoreId;
use parking_lot::Mutex;
use tokio::sync::mpsc;

use super::handover::{Channels, Heard, Work, drive};
use crate::{metering::ScanMeter, priority};

/// What a scan thread is told. How much can wait is bounded by the operations that may run, and by the window of rows
/// that are received.
#[derive(Clone, Debug)]
pub enum ShardCommand {
    /// An operation.
    Submit(OrderedOperation),
    /// How an undecided write ended.
    Decide(Ts, Decision),
    /// Rows of a staged payload, and whether they are the last.
    Supply(Ts, Arc<RowBatch>, bool),
    /// A read may send so many more batches.
    Allow(Ts, u32),
    /// A read need not go on.
    Cancel(Ts),
    /// The key ranges change.
    Recut(Recut),
    /// A block of rows of a range that is being received, and when they begin.
    Install { table: TableId, range: KeyRange, block: Bytes, begin: Ts },
    /// What is the content hash of all that has been received of a range? It is answered as a read at this `Ts` is.
    Compare { ts: Ts, table: TableId, range: KeyRange },
    /// Segments are to be cut before a change of the key ranges.
    Precut(Vec<Position>),
    /// What has been received of a range is of no use.
    Clear(KeyRange),
    /// Versions that ended before this can be collected.
    Horizon(Ts),
}

/// Effects of one shard, in order.
pub(crate) type ShardEffects = (usize, Vec<Effect>);

/// What a scan thread hears.
#[derive(Debug)]
pub(crate) enum Told {
    /// From the process's task.
    Commands(Vec<ShardCommand>),
    /// A block has been unpacked.
    Unpacked,
    /// A block has been packed; nothing when whoever was to do it has failed.
    Packed(Option<Box<Packing>>),
    /// A column has been encoded; nothing when whoever was to do it has failed.
    Encoded(Option<Box<Encoding>>),
}

/// A scan thread.
pub(crate) struct ScanThread {
    commands: Option<mpsc::UnboundedSender<Told>>,
    memory: Arc<AtomicU64>,
    statistics: Arc<Mutex<Vec<TableStatistics>>>,
    given_up: GivenUp,
    thread: Option<JoinHandle<()>>,
}

impl ScanThread {
    /// Starts the thread of a shard, of a lower priority than routers and network, bound to a core if there is one, and beside
    /// it those that pack and unpack blocks, and one that encodes columns.
    pub(crate) fn start(
        name: String,
        index: usize,
        mut shard: Shard,
        results: mpsc::Sender<ShardEffects>,
        core: Option<CoreId>,
    ) -> std::io::Result<ScanThread> {
        // Its senders have different priorities: the standard library's channel is of no use (see [`priority`]).
        let (commands, received) = mpsc::unbounded_channel();
        let unpacker = Unpacker::start(&name, commands.downgrade())?;
        shard.pack_elsewhere(start_packer(&name, commands.downgrade())?);
        shard.encode_elsewhere(start_encoder(&name, commands.downgrade())?);
        let given_up = shard.given_up();
        let memory = Arc::new(AtomicU64::new(shard.memory() as u64));
        let reported = memory.clone();
        let statistics = Arc::new(Mutex::new(shard.statistics()));
        let mut counted =
            Counted { at: shard.memory() as u64, when: Instant::now(), statistics: statistics.clone() };
        let mut meter = ScanMeter::new(&name);
        let thread = std::thread::Builder::new().name(name).spawn(move || {
            priority::lower(priority::SCAN);
            if let Some(core) = core.filter(|core| !core_affinity::set_for_current(*core)) {
                tracing::warn!("a scan thread cannot be bound to core {}", core.id);
            }
            let mut channels = ToTask { index, commands: received, results };
            let mut scan = Scan { unpacker: Some(unpacker), ..Scan::new(shard) };
            drive(&mut scan, &mut channels, |scan| {
                reported.store(scan.memory(), Ordering::Relaxed);
                counted.count(scan);
                meter.report(scan.shard.revolutions(), scan.shard.riding(), || scan.shard.segments());
            });
        })?;
        Ok(ScanThread { commands: Some(commands), memory, statistics, given_up, thread: Some(thread) })
    }

    /// Tells the thread. A thread that has ended by a panic ends the process through its result channel.
    pub(crate) fn tell(&self, together: Vec<ShardCommand>) {
        if let Some(commands) = &self.commands {
            for command in &together {
                // It is in the middle of a visit, which may take long.
                if let ShardCommand::Cancel(ts) = command {
                    self.given_up.give_up(*ts);
                }
            }
            let _ = commands.send(Told::Commands(together));
        }
    }

    /// Bytes that the shard's rows take.
    pub(crate) fn memory(&self) -> u64 {
        self.memory.load(Ordering::Relaxed)
    }

    /// What is known of the shard's tables.
    pub(crate) fn statistics(&self) -> Vec<TableStatistics> {
        self.statistics.lock().clone()
    }

    /// Whether the thread has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }
}

impl Drop for ScanThread {
    fn drop(&mut self) {
        // The thread ends when nobody can tell it anything. It is not waited for here: the last step may take a while.
        self.commands = None;
        self.thread = None;
    }
}

/// A thread of low priority that unpacks blocks, so that a scan thread has little to do to take them.
#[derive(Debug)]
struct Unpacker {
    blocks: std_mpsc::Sender<Arc<Packed>>,
    thread: JoinHandle<()>,
}

/// A block that is unpacked elsewhere, until the shard takes it.
type Packed = Mutex<Option<Unpacking>>;

impl Unpacker {
    /// It tells the scan thread when it is done with a block, and ends with that.
    fn start(name: &str, scan: mpsc::WeakUnboundedSender<Told>) -> std::io::Result<Unpacker> {
        let (blocks, thread) =
            beside(format!("{name} unpack"), priority::BULK, scan, |block: Arc<Packed>| {
                while block.lock().as_mut().is_some_and(|it| it.unpack_some() == Progress::Busy) {}
                Told::Unpacked
            })?;
        Ok(Unpacker { blocks, thread })
    }
}

/// Starts a thread of low priority that packs blocks and gives them back to the scan thread, with which it ends.
fn start_packer(
    name: &str,
    scan: mpsc::WeakUnboundedSender<Told>,
) -> std::io::Result<std_mpsc::Sender<Box<Packing>>> {
    let pack = |mut packing: Box<Packing>| {
        while packing.pack_some() == Progress::Busy {}
        packing
    };
    let (blocks, _) = beside(format!("{name} pack"), priority::BULK, scan, move |packing| {
        Told::Packed(catch_unwind(AssertUnwindSafe(|| pack(packing))).ok())
    })?;
    Ok(blocks)
}

/// Starts a thread that encodes columns and gives them back to the scan thread, with which it ends. It comes before what is
/// copied in bulk: garbage goes no faster than it does.
fn start_encoder(
    name: &str,
    scan: mpsc::WeakUnboundedSender<Told>,
) -> std::io::Result<std_mpsc::Sender<Box<Encoding>>> {
    let encode = |mut encoding: Box<Encoding>| {
        encoding.encode();
        encoding
    };
    let (columns, _) = beside(format!("{name} encode"), priority::ENCODE, scan, move |encoding| {
        Told::Encoded(catch_unwind(AssertUnwindSafe(|| encode(encoding))).ok())
    })?;
    Ok(columns)
}

/// Starts a thread that does something to what it is sent, one after the other, and tells the scan thread so, which alone sends.
fn beside<T: Send + 'static>(
    name: String,
    nice: i32,
    scan: mpsc::WeakUnboundedSender<Told>,
    work: impl Fn(T) -> Told + Send + 'static,
) -> std::io::Result<(std_mpsc::Sender<T>, JoinHandle<()>)> {
    let (sender, received) = std_mpsc::channel();
    let thread = std::thread::Builder::new().name(name).spawn(move || {
        priority::lower(nice);
        for next in received {
            let told = work(next);
            if let Some(scan) = scan.upgrade() {
                let _ = scan.send(told);
            }
        }
    })?;
    Ok((sender, thread))
}

/// How long a small change of a shard's memory goes uncounted.
const COUNTED_AGAIN: Duration = Duration::from_secs(1);

/// What the process knows of a shard's tables.
struct Counted {
    /// How much memory they took then, and when that was.
    at: u64,
    when: Instant,
    statistics: Arc<Mutex<Vec<TableStatistics>>>,
}

impl Counted {
    /// Counts again when a sixteenth of the memory has come or gone, or less some time ago: that may be all of a small table.
    fn count(&mut self, scan: &Scan) {
        let now = scan.memory();
        let has_changed = now.abs_diff(self.at) * 16 > self.at;
        if has_changed || now != self.at && self.when.elapsed() >= COUNTED_AGAIN {
            (self.at, self.when) = (now, Instant::now());
            *self.statistics.lock() = scan.shard.statistics();
        }
    }
}

/// A shard, what it is to take of blocks that have been received, and what is to be done about its garbage.
#[derive(Debug)]
pub(crate) struct Scan {
    shard: Shard,
    /// Who unpacks blocks, if it is not the shard.
    unpacker: Option<Unpacker>,
    /// Dealt with one by one when there is time: nobody waits for one of them.
    received: VecDeque<Received>,
    /// When the rows begin which the shard has not taken wholly, and of which range they are.
    taking: Option<(Ts, KeyRange)>,
    horizon: Ts,
    garbage: bool,
}

/// Rows of a range that others have sent.
#[derive(Debug)]
struct Received {
    table: TableId,
    range: KeyRange,
    what: What,
}

#[derive(Debug)]
enum What {
    /// A block of them; they begin then.
    Block(Arc<Packed>, Ts),
    /// All that come have come: their content hash is asked for, by a question with this `Ts`.
    All(Ts),
}

impl Scan {
    /// Begins with a shard as it was recovered.
    pub(crate) fn new(shard: Shard) -> Scan {
        let received = VecDeque::new();
        Scan { shard, unpacker: None, received, taking: None, horizon: Ts::ZERO, garbage: false }
    }

    /// Takes a command.
    pub(crate) fn tell(&mut self, command: ShardCommand, effects: &mut Vec<Effect>) {
        match command {
            ShardCommand::Submit(operation) => {
                // Only what is executed late names ranges of which some is missing.
                let names =
                    |received: &Received| operation.ranges.iter().any(|r| r.overlaps(&received.range));
                if self.received.iter().any(names) {
                    self.take_all(effects);
                }
                self.shard.submit(operation);
            }
            ShardCommand::Decide(ts, decision) => self.shard.decide(ts, decision, effects),
            ShardCommand::Supply(ts, rows, last) => self.shard.supply(ts, rows, last, effects),
            ShardCommand::Allow(ts, batches) => self.shard.allow(ts, batches, effects),
            ShardCommand::Cancel(ts) => self.shard.cancel(ts, effects),
            ShardCommand::Recut(recut) => {
                self.take_all(effects);
                self.shard.recut(recut);
                // What is not held any more may be older than the horizon.
                self.garbage = true;
            }
            ShardCommand::Install { table, range, block, begin } => {
                match self.shard.to_unpack(table, begin, block) {
                    Ok(unpacking) => {
                        let packed = Arc::new(Mutex::new(Some(unpacking)));
                        if let Some(unpacker) = &self.unpacker {
                            let _ = unpacker.blocks.send(packed.clone());
                        }
                        self.received.push_back(Received { table, range, what: What::Block(packed, begin) });
                    }
                    // The content hash will show that they are missing.
                    Err(error) => {
                        tracing::warn!(%range, %error, "received rows cannot be taken");
                        effects.push(Effect::Took { ts: begin });
                    }
                }
            }
            ShardCommand::Compare { ts, table, range } => {
                self.received.push_back(Received { table, range, what: What::All(ts) });
            }
            ShardCommand::Precut(at) => self.shard.precut(at),
            ShardCommand::Clear(range) => {
                self.take_all(effects);
                self.shard.clear(range);
            }
            ShardCommand::Horizon(ts) => {
                self.horizon = ts;
                self.garbage = true;
            }
        }
    }

    /// Does some of the work that there is.
    pub(crate) fn step(&mut self, effects: &mut Vec<Effect>) -> Progress {
        let scanning = self.shard.step(effects);
        self.garbage |= self.shard.is_joining();
        if self.can_take() && self.shard.take_time() {
            self.take_some(effects);
        }
        // It may have to wait for who packs blocks, who tells when there is something to do.
        let can_collect = self.garbage && !self.shard.is_working_off() && self.taking.is_none();
        if can_collect {
            self.garbage = self.shard.collect_garbage(self.horizon) == Progress::Busy;
        }
        if can_collect && self.garbage || self.can_take() { Progress::Busy } else { scanning }
    }

    /// Whether somebody else unpacks blocks. What makes that one panic has the shard's thread do it and panic, too.
    fn has_unpacker(&self) -> bool {
        self.unpacker.as_ref().is_some_and(|unpacker| !unpacker.thread.is_finished())
    }

    /// Whether something that has been received is there and is not being unpacked.
    fn can_take(&self) -> bool {
        let is_unpacked = |block: &Packed| {
            block.try_lock().is_some_and(|block| block.as_ref().is_none_or(Unpacking::is_unpacked))
        };
        self.taking.is_some()
            || self.received.front().is_some_and(|received| match &received.what {
                What::Block(block, _) => !self.has_unpacker() || is_unpacked(block),
                What::All(_) => true,
            })
    }

    fn is_taking(&self) -> bool {
        self.taking.is_some() || !self.received.is_empty()
    }

    /// Goes on with the block that was taken last, or begins with the next: whoever calls knows that it is unpacked, or cannot
    /// wait for that.
    fn take_some(&mut self, effects: &mut Vec<Effect>) {
        if let Some((ts, range)) = self.taking {
            match self.shard.install_some() {
                Ok(Progress::Busy) => return,
                Ok(Progress::Idle) => {}
                // The content hash will show that they are missing.
                Err(error) => tracing::warn!(%range, %error, "received rows cannot be taken"),
            }
            effects.push(Effect::Took { ts });
            self.taking = None;
            return;
        }
        let Some(Received { table, range, what }) = self.received.pop_front() else { return };
        match what {
            What::Block(block, begin) => {
                let unpacking = block.lock().take();
                if let Some(unpacking) = unpacking {
                    self.taking = Some((begin, range));
                    self.shard.install_unpacked(table, range, begin, unpacking);
                }
            }
            What::All(ts) => {
                let hash = self.shard.received(table, range);
                effects.push(Effect::ContentHash { ts, range, hash });
                effects.push(Effect::Executed { ts, outcomes: Few::default() });
            }
        }
    }

    fn take_all(&mut self, effects: &mut Vec<Effect>) {
        while self.is_taking() {
            self.take_some(effects);
        }
    }

    /// Bytes that the shard's rows take.
    pub(crate) fn memory(&self) -> u64 {
        self.shard.memory() as u64
    }
}

impl Work for Scan {
    type Command = Told;
    type Effect = Effect;

    fn tell(&mut self, told: Told, effects: &mut Vec<Effect>) {
        match told {
            Told::Commands(together) => {
                together.into_iter().for_each(|command| Scan::tell(self, command, effects));
            }
            Told::Unpacked => {}
            Told::Packed(packing) => {
                self.shard.packed(*packing.expect("whoever packs blocks has not failed"), effects);
            }
            Told::Encoded(encoding) => {
                self.shard.encoded(*encoding.expect("whoever encodes columns has not failed"));
                // It may have been waited for.
                self.garbage = true;
            }
        }
    }

    fn step(&mut self, effects: &mut Vec<Effect>) -> Progress {
        Scan::step(self, effects)
    }
}

/// The channels to the process's task, for the shard of this index.
struct ToTask {
    index: usize,
    commands: mpsc::UnboundedReceiver<Told>,
    results: mpsc::Sender<ShardEffects>,
}

impl Channels<Told, Effect> for ToTask {
    fn next(&mut self, wait: bool) -> Heard<Told> {
        if wait {
            return self.commands.blocking_recv().map_or(Heard::End, Heard::Command);
        }
        match self.commands.try_recv() {
            Ok(command) => Heard::Command(command),
            Err(mpsc::error::TryRecvError::Empty) => Heard::Nothing,
            Err(mpsc::error::TryRecvError::Disconnected) => Heard::End,
        }
    }

    fn give(&self, effects: Vec<Effect>) -> bool {
        self.results.blocking_send((self.index, effects)).is_ok()
    }
}

/// The cores for `threads` scan threads, from the one numbered `first`; `None` when there are not so many.
pub(crate) fn cores(first: usize, threads: usize) -> Option<Vec<CoreId>> {
    let cores = core_affinity::get_core_ids()?;
    Some(cores.get(first..first.checked_add(threads)?)?.to_vec())
}

#[cfg(test)]
mod tests {
    use arrow::{
        array::{ArrayRef, Int64Array},
        record_batch::RecordBatch,
    };
    use carousel_engine::{
        Type,
        operation::{Operation, OperationKind, Read, ReadOutput},
        schema::{Column, Partitioning, TableSchema},
        shard::Options,
    };

    use super::*;

    const TABLE: TableId = TableId(1);

    fn shard(held: Vec<KeyRange>) -> Shard {
        shard_with(held, Options { segment_rows: 100, ..Options::default() })
    }

    fn shard_with(held: Vec<KeyRange>, options: Options) -> Shard {
        let schema = TableSchema {
            id: TABLE,
            version: Ts(1),
            name: "t".into(),
            columns: vec![Column { name: "k".into(), ty: Type::Int8, not_null: true, default: None }],
            primary_key: vec![0],
            primary_key_name: "t_pkey".into(),
            partitioning: Partitioning::Range { column: 0, splits: Vec::new() },
        };
        let mut shard = Shard::new(0, 1, held, options);
        shard.restore_table(schema.into());
        shard
    }

    fn read(ts: u64, range: KeyRange, blocks: bool) -> ShardCommand {
        let kind = OperationKind::Read(Read {
            predicate: Vec::new(),
            output: ReadOutput::Rows { projection: Vec::new(), top: None },
        });
        let operation = Arc::new(Operation { table: TABLE, context: Default::default(), kind });
        let ordered = OrderedOperation::new(Ts(ts), operation, vec![range]);
        ShardCommand::Submit(OrderedOperation { blocks, bulk: blocks, ..ordered })
    }

    const LOW: KeyRange = KeyRange { first: 0, last: u64::MAX / 2 };
    const HIGH: KeyRange = KeyRange { first: u64::MAX / 2 + 1, last: u64::MAX };

    /// A shard with a thousand rows.
    fn sender() -> Shard {
        filled(shard(vec![LOW, HIGH]), 1_000)
    }

    fn filled(mut sender: Shard, rows: i64) -> Shard {
        let keys: ArrayRef = Arc::new(Int64Array::from_iter_values(0..rows));
        let rows = RecordBatch::try_from_iter([("k", keys)]).expect("the column fits");
        sender.restore(TABLE, &rows, Ts::ZERO).expect("rows of the table");
        sender
    }

    /// Commands with blocks of a thousand rows, for a shard that is to receive them.
    fn receiving(mut receiver: Scan) -> (Vec<ShardCommand>, Scan) {
        let mut sender = Scan::new(sender());
        let mut effects = Vec::new();
        sender.tell(read(1, HIGH, true), &mut effects);
        while sender.step(&mut effects) == Progress::Busy {}
        let recut = Recut { ts: Ts(2), held: vec![LOW, HIGH], received: vec![HIGH], cuts: vec![HIGH] };
        receiver.tell(ShardCommand::Recut(recut), &mut effects);
        while receiver.step(&mut effects) == Progress::Busy {}
        let install = |effect: Effect| match effect {
            Effect::Block { block, .. } => {
                Some(ShardCommand::Install { table: TABLE, range: HIGH, block, begin: Ts(1) })
            }
            _ => None,
        };
        let blocks: Vec<ShardCommand> = effects.into_iter().filter_map(install).collect();
        assert!(blocks.len() > 5, "{}", blocks.len());
        (blocks, receiver)
    }

    fn took(effects: &[Effect]) -> usize {
        effects.iter().filter(|effect| matches!(effect, Effect::Took { .. })).count()
    }

    fn found(effects: &[Effect], of: u64) -> Option<u64> {
        effects.iter().find_map(|effect| match effect {
            Effect::Executed { ts, outcomes } if *ts == Ts(of) => outcomes[0].1.clone().ok(),
            _ => None,
        })
    }

    /// Who reads something else does not wait for blocks that have come; who reads what they have does.
    #[test]
    fn received_blocks_are_taken_some_at_a_time() {
        let (blocks, mut receiver) = receiving(Scan::new(shard(vec![LOW])));
        let count = blocks.len();
        let mut effects = Vec::new();
        blocks.into_iter().for_each(|block| receiver.tell(block, &mut effects));
        receiver.tell(read(3, LOW, false), &mut effects);
        receiver.step(&mut effects);
        assert_eq!((found(&effects, 3), took(&effects)), (Some(0), 0));
        receiver.tell(read(4, HIGH, false), &mut effects);
        while receiver.step(&mut effects) == Progress::Busy {}
        assert_eq!((found(&effects, 4), took(&effects)), (Some(1_000), count));
    }

    /// The shard's thread is woken when one has been unpacked, and does itself what it cannot wait for.
    #[test]
    fn another_thread_unpacks_blocks() {
        let mut contents = Vec::new();
        for waits in [true, false] {
            let (scan, mut woken) = mpsc::unbounded_channel();
            let unpacker = Unpacker::start("test", scan.downgrade()).expect("a thread");
            let receiver = Scan { unpacker: Some(unpacker), ..Scan::new(shard(vec![LOW])) };
            let (blocks, mut receiver) = receiving(receiver);
            let count = blocks.len();
            let mut effects = Vec::new();
            blocks.into_iter().for_each(|block| receiver.tell(block, &mut effects));
            if waits {
                for _ in 0..count {
                    woken.blocking_recv().expect("the thread lives");
                    while receiver.step(&mut effects) == Progress::Busy {}
                }
                assert_eq!(took(&effects), count);
            }
            receiver.tell(read(4, HIGH, false), &mut effects);
            while receiver.step(&mut effects) == Progress::Busy {}
            assert_eq!((found(&effects, 4), took(&effects)), (Some(1_000), count));
            let content = receiver.shard.received(TABLE, HIGH);
            contents.push(content);
        }
        assert!(contents[0] != 0 && contents[0] == contents[1], "{contents:x?}");
    }

    /// They are the same, and the read ends when they have come back.
    #[test]
    fn another_thread_packs_blocks() {
        let blocks = |effects: &[Effect]| -> Vec<Bytes> {
            let block = |effect: &Effect| match effect {
                Effect::Block { block, .. } => Some(block.clone()),
                _ => None,
            };
            effects.iter().filter_map(block).collect()
        };
        let mut alone = Scan::new(sender());
        let mut expected = Vec::new();
        alone.tell(read(1, HIGH, true), &mut expected);
        while alone.step(&mut expected) == Progress::Busy {}
        let (scan, mut heard) = mpsc::unbounded_channel();
        let mut sender = sender();
        sender.pack_elsewhere(start_packer("test", scan.downgrade()).expect("a thread"));
        let mut sender = Scan::new(sender);
        let mut effects = Vec::new();
        sender.tell(read(1, HIGH, true), &mut effects);
        while found(&effects, 1).is_none() {
            while sender.step(&mut effects) == Progress::Busy {}
            if found(&effects, 1).is_none() {
                sender.tell(ShardCommand::Horizon(Ts(1)), &mut effects);
                let progress = sender.step(&mut effects);
                assert_eq!(progress, Progress::Idle, "garbage waits, and the thread sleeps");
                Work::tell(&mut sender, heard.blocking_recv().expect("the thread lives"), &mut effects);
            }
        }
        assert!(blocks(&effects).len() > 5);
        assert_eq!(blocks(&effects), blocks(&expected));
    }

    /// The scan thread sleeps while one has a column, and goes on when that comes back.
    #[tokio::test]
    async fn another_thread_encodes_columns() {
        let (scan, mut heard) = mpsc::unbounded_channel();
        let options = Options { segment_rows: 10_000, compact_cells: 1, ..Options::default() };
        let mut shard = filled(shard_with(vec![LOW, HIGH], options), 3_000);
        shard.encode_elsewhere(start_encoder("test", scan.downgrade()).expect("a thread"));
        let mut shard = Scan::new(shard);
        let before = shard.memory();
        let mut effects = Vec::new();
        shard.tell(ShardCommand::Horizon(Ts(1)), &mut effects);
        while shard.step(&mut effects) == Progress::Busy {}
        let told = tokio::time::timeout(Duration::from_secs(60), heard.recv());
        let told = told.await.expect("it encodes a column").expect("the thread lives");
        Work::tell(&mut shard, told, &mut effects);
        while shard.step(&mut effects) == Progress::Busy {}
        assert!(shard.memory() < before, "{} of {before} bytes", shard.memory());
        shard.tell(read(2, HIGH, false), &mut effects);
        while shard.step(&mut effects) == Progress::Busy {}
        assert_eq!(found(&effects, 2), Some(3_000));
    }

    /// Nobody waits for ever for a block that is lost.
    #[test]
    #[should_panic(expected = "whoever packs blocks has not failed")]
    fn a_shard_does_not_outlive_who_packs_its_blocks() {
        Work::tell(&mut Scan::new(sender()), Told::Packed(None), &mut Vec::new());
    }
}
