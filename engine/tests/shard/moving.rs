//! Changes of the key ranges in a history. What is received comes from the shard itself: it holds the range no more and
//! again from the same `Ts` on, so that the oracle knows what has to arrive.

use std::sync::Arc;

use carousel_engine::{
    Shard, TableId, TableSchema, Ts,
    block::extent,
    install::Rows,
    operation::{Effect, Operation, OperationKind, OrderedOperation, Read, ReadOutput},
    position::KeyRange,
    recut::Recut,
    shard::{Options, Progress},
};

use crate::{
    Step,
    generate::Random,
    hash_of,
    oracle::{World, context},
    read_all,
    sharing::Scan,
};

/// The ring, cut at random.
pub fn random_ranges(random: &mut Random) -> Vec<KeyRange> {
    let mut cuts: Vec<u64> = (0..random.below(4)).map(|_| random.next()).collect();
    cuts.sort_unstable();
    cuts.dedup();
    let mut ranges = Vec::new();
    let mut first = 0;
    for cut in cuts {
        ranges.push(KeyRange::new(first, cut));
        first = cut + 1;
    }
    ranges.push(KeyRange::new(first, u64::MAX));
    ranges
}

/// A change of the ranges.
pub struct Move {
    pub recut: Recut,
}

impl Move {
    pub fn new(ts: Ts, held: &[KeyRange], random: &mut Random) -> Move {
        let mut received = Vec::new();
        if random.one_in(2) {
            // A range, or a part of it.
            let range = *random.pick(held);
            let middle = range.first + (range.last - range.first) / 3;
            received.push(match random.below(3) {
                0 => range,
                1 => KeyRange::new(range.first, middle),
                _ => KeyRange::new(middle, range.last),
            });
        }
        Move { recut: Recut { ts, held: held.to_vec(), received: received.clone(), cuts: received } }
    }
}

/// A change that is being made in one shard.
pub struct Moving {
    recut: Recut,
    schema: Arc<TableSchema>,
    /// Ranges that are to be received.
    left: Vec<KeyRange>,
    /// `Ts` of the next operation of its own.
    next: Ts,
    /// How often the sender may still fail.
    failures: usize,
    state: State,
}

enum State {
    Recutting,
    Reading { ts: Ts, range: KeyRange, window: u32, unread: u32 },
    Done,
}

impl Moving {
    /// Whether a step can be submitted: what changes before it has been done.
    pub fn is_done(moving: &mut Option<Moving>, step: &Step, shard: &mut Shard) -> bool {
        let Some(Move { recut }) = &step.change else { return true };
        match moving {
            Some(moving) if moving.recut.ts == recut.ts => matches!(moving.state, State::Done),
            _ => {
                shard.recut(recut.clone());
                *moving = Some(Moving {
                    recut: recut.clone(),
                    schema: step.world.schema.clone(),
                    left: recut.received.clone(),
                    next: Ts(recut.ts.0 + 1),
                    failures: 10,
                    state: State::Recutting,
                });
                false
            }
        }
    }

    /// Takes what came out of the shard for it; gives back the rest.
    pub fn go_on(&mut self, shard: &mut Shard, effects: Vec<Effect>, random: &mut Random) -> Vec<Effect> {
        let mut others = Vec::new();
        let mut own = effects;
        while !own.is_empty() || random.one_in(2) {
            let mut further = Vec::new();
            for effect in own {
                match (&mut self.state, effect) {
                    (State::Recutting, Effect::Executed { ts, .. }) if ts == self.recut.ts => {
                        self.read_next(shard, random);
                    }
                    (State::Reading { ts: own, range, window, unread }, Effect::Block { ts, block, .. })
                        if ts == *own =>
                    {
                        *unread += 1;
                        assert!(*unread <= *window, "rows come when they are asked for");
                        let begin = Ts(self.recut.ts.0 - 1);
                        // Somebody else may have begun with it, and its keys may be entered later.
                        let table = self.schema.id;
                        let mut unpacking = shard.to_unpack(table, begin, block).expect("a table");
                        while random.one_in(2) {
                            unpacking.unpack_some();
                        }
                        shard.install_unpacked(table, *range, begin, unpacking);
                    }
                    (State::Reading { ts: own, .. }, Effect::Executed { ts, .. }) if ts == *own => {
                        self.read_next(shard, random);
                    }
                    // Of the blocks that are being received.
                    (_, Effect::ContentHash { ts, .. }) if ts > self.recut.ts && ts < self.next => {}
                    // One that was ended.
                    (_, Effect::Executed { ts, .. }) if ts > self.recut.ts && ts < self.next => {}
                    (_, other) => others.push(other),
                }
            }
            if random.one_in(2) {
                shard.install_some().expect("rows of the range");
            }
            match &mut self.state {
                State::Reading { ts, range, .. } if self.failures > 0 && random.one_in(20) => {
                    self.failures -= 1;
                    // The sender has failed: from the beginning.
                    shard.cancel(*ts, &mut further);
                    shard.clear(*range);
                    self.left.push(*range);
                    self.read_next(shard, random);
                }
                State::Reading { ts, unread, .. } if *unread > 0 && random.one_in(3) => {
                    let batches = 1 + random.below(*unread as usize) as u32;
                    *unread -= batches;
                    shard.allow(*ts, batches, &mut further);
                }
                _ => {}
            }
            own = further;
        }
        others
    }

    fn read_next(&mut self, shard: &mut Shard, random: &mut Random) {
        let Some(range) = self.left.pop() else {
            self.state = State::Done;
            return;
        };
        let ts = self.next;
        self.next = Ts(ts.0 + 1);
        let output = match random.one_in(2) {
            true => ReadOutput::Rows { projection: Vec::new(), top: None },
            false => ReadOutput::ContentHash,
        };
        let kind = OperationKind::Read(Read { predicate: Vec::new(), output });
        let operation = Arc::new(Operation { table: self.schema.id, context: context(), kind });
        // The prefix that a read at the change's `Ts` sees: nothing comes between them.
        let read_ts = Ts(self.recut.ts.0 - 1);
        let window = 1 + random.below(3) as u32;
        shard.submit(OrderedOperation {
            read_ts,
            window: Some(window),
            blocks: true,
            bulk: true,
            ..OrderedOperation::new(ts, operation, vec![range])
        });
        self.state = State::Reading { ts, range, window, unread: 0 };
    }
}

fn rows_of(world: &World, range: KeyRange, block: &[u8]) -> Rows {
    Rows { table: world.schema.id, range, until: None, begin: Ts(1), block: block.to_vec().into() }
}

/// All rows of these shards, sent as blocks to as many shards as may be, are there. Damaged blocks do no harm.
pub fn check_blocks(world: &World, senders: &mut [Shard], ts: Ts, expected: &[u128], random: &mut Random) {
    let count = 1 + random.below(3) as u32;
    let receiver = |index| {
        let mut shard = Shard::new(index, count, world.ranges.clone(), Options::default());
        shard.restore_table(world.schema.clone());
        shard
    };
    let mut receivers: Vec<Shard> = (0..count).map(receiver).collect();
    let mut told = vec![0u128; world.ranges.len()];
    let add = |sums: &mut Vec<u128>, hashes: Vec<u128>| {
        sums.iter_mut().zip(hashes).for_each(|(sum, hash)| *sum = sum.wrapping_add(hash));
    };
    for sender in senders {
        let effects = read_all(sender, world, ts, true);
        add(&mut told, hash_of(world, effects.clone()));
        let extents = effects.iter().filter_map(|effect| match effect {
            Effect::Block { block, .. } => Some(extent(block).expect("a block")),
            _ => None,
        });
        let known = extents.map(|extent| (extent.rows, extent.follow)).collect::<Vec<_>>();
        assert!(known.windows(2).all(|pair| pair[0].1 == pair[1].0 + pair[1].1), "what follows: {known:?}");
        assert!(known.last().is_none_or(|(_, follow)| *follow == 0), "what follows: {known:?}");
        for effect in effects {
            let Effect::Block { range, block, .. } = effect else { continue };
            let mut block = block.to_vec();
            for receiver in &mut receivers {
                let Rows { table, begin, block, .. } = rows_of(world, range, &block);
                let unpacking = receiver.to_unpack(table, begin, block).expect("a table");
                receiver.install_unpacked(table, range, begin, unpacking);
            }
            let at = random.below(block.len());
            block[at] ^= 1 << random.below(8);
            let _ = extent(&block);
            // It may well be a block of other rows.
            let mut damaged = receiver(0);
            if damaged.install(rows_of(world, range, &block)).is_ok() {
                read_all(&mut damaged, world, Ts(2), false);
                read_all(&mut damaged, world, Ts(3), true);
            }
        }
    }
    let (mut found, mut received) = (vec![0u128; world.ranges.len()], vec![0u128; world.ranges.len()]);
    for receiver in &mut receivers {
        add(
            &mut received,
            world.ranges.iter().map(|range| receiver.received(world.schema.id, *range)).collect(),
        );
        add(&mut found, hash_of(world, read_all(receiver, world, Ts(2), false)));
    }
    assert_eq!(found, expected, "what was sent as blocks");
    assert_eq!(received, expected, "what was summed up of it");
    assert_eq!(told, expected, "what was told of it");
}

/// Whoever reads a prefix before a change names the ranges of then, and garbage collection does not join them.
#[test]
fn ranges_that_are_joined_can_be_read_as_they_were() {
    let halves = [KeyRange::new(0, u64::MAX / 2), KeyRange::new(u64::MAX / 2 + 1, u64::MAX)];
    let mut scan = Scan::with(1_000, Options::default());
    let recut = |ts: u64, held: &[KeyRange]| Recut { ts: Ts(ts), held: held.to_vec(), ..Recut::default() };
    let mut effects = Vec::new();
    for (ts, held) in [(10, &halves[..]), (20, &[KeyRange::FULL][..])] {
        scan.shard.recut(recut(ts, held));
        while scan.shard.step(&mut effects) == Progress::Busy {}
    }
    let rows = |shard: &mut Shard, ts: u64, read_ts: u64, ranges: &[KeyRange]| {
        while shard.collect_garbage(Ts(read_ts)) == Progress::Busy {}
        let kind = OperationKind::Read(Read { predicate: Vec::new(), output: ReadOutput::ContentHash });
        let operation = Arc::new(Operation { table: TableId(1), context: context(), kind });
        let (ts, read_ts, ranges) = (Ts(ts), Ts(read_ts), ranges.to_vec());
        let (undecided, window, blocks, bulk) = (false, None, false, false);
        shard.submit(OrderedOperation {
            read_ts,
            undecided,
            window,
            blocks,
            bulk,
            ..OrderedOperation::new(ts, operation, ranges)
        });
        let mut effects = Vec::new();
        while shard.step(&mut effects) == Progress::Busy {}
        let outcomes = effects.into_iter().find_map(|effect| match effect {
            Effect::Executed { outcomes, .. } => Some(outcomes),
            _ => None,
        });
        outcomes.is_some_and(|outcomes| outcomes.iter().all(|(_, outcome)| outcome.is_ok()))
    };
    assert!(rows(&mut scan.shard, 21, 15, &halves), "as of a checkpoint that waited");
    assert!(rows(&mut scan.shard, 22, 22, &[KeyRange::FULL]));
    assert!(!rows(&mut scan.shard, 23, 23, &halves), "they are one range now");
}

/// What has come of a copy may be compared when the copy begins anew.
#[test]
fn rows_are_forgotten_while_their_hash_is_made() {
    let mut scan = Scan::with(1_000, Options { block_cells: 4, ..Options::default() });
    let kind = OperationKind::Read(Read { predicate: Vec::new(), output: ReadOutput::ContentHash });
    let ts = scan.submit_with(kind, None);
    let mut effects = Vec::new();
    assert_eq!(scan.shard.step(&mut effects), Progress::Busy, "it has found more than it hashes at a time");
    scan.shard.clear(KeyRange::FULL);
    while scan.shard.step(&mut effects) == Progress::Busy {}
    assert!(
        effects.iter().any(|effect| matches!(effect, Effect::Executed { ts: ended, .. } if *ended == ts))
    );
}

/// What nobody waits for does not hold up those who ride at every segment, and gets on all the same.
#[test]
fn some_is_hashed_once_in_a_revolution() {
    let mut scan = Scan::with(1_000, Options { block_cells: 1, segment_rows: 100, ..Options::default() });
    let read = |output| OperationKind::Read(Read { predicate: Vec::new(), output });
    let hashed = scan.submit_with(read(ReadOutput::ContentHash), None);
    let mut effects = Vec::new();
    while !scan.shard.is_working_off() {
        scan.shard.step(&mut effects);
    }
    let is_hashed = |effects: &[Effect]| {
        effects.iter().any(|effect| matches!(effect, Effect::Executed { ts, .. } if *ts == hashed))
    };
    // A column of a segment at a time, three of ten, and there is always somebody who rides past all of these.
    let mut visits = 0;
    while !is_hashed(&effects) {
        scan.submit_with(read(ReadOutput::Rows { projection: Vec::new(), top: None }), None);
        scan.shard.step(&mut effects);
        visits += 1;
    }
    assert!((290..=310).contains(&visits), "{visits}");
}

/// It gets on though somebody reads all the while, and what is read is all there.
#[test]
fn segments_are_cut_before_the_ranges_are() {
    let mut scan = Scan::with(1_000, Options { segment_rows: 100, ..Options::default() });
    let read = |scan: &mut Scan| {
        let output = ReadOutput::Rows { projection: Vec::new(), top: None };
        scan.submit_with(OperationKind::Read(Read { predicate: Vec::new(), output }), None)
    };
    let visits = |scan: &mut Scan| {
        let before = scan.shard.visits();
        read(scan);
        while scan.shard.step(&mut Vec::new()) == Progress::Busy {}
        scan.shard.visits() - before
    };
    assert_eq!(visits(&mut scan), 10);
    scan.shard.precut(vec![u64::MAX / 2, u64::MAX / 2]);
    let mut effects = Vec::new();
    let mut reads = Vec::new();
    while !effects.iter().any(|effect| matches!(effect, Effect::Precut)) {
        reads.push(read(&mut scan));
        scan.shard.step(&mut effects);
        assert!(reads.len() < 10_000, "it does not get on");
    }
    while scan.shard.step(&mut effects) == Progress::Busy {}
    for ts in reads {
        let found = effects.iter().find_map(|effect| match effect {
            Effect::Executed { ts: executed, outcomes } if *executed == ts => outcomes[0].1.clone().ok(),
            _ => None,
        });
        assert_eq!(found, Some(1_000));
    }
    assert_eq!(visits(&mut scan), 20);
}
