//! Unpacking blocks: what is done to a block of rows before a shard takes it ([`crate::install`]), and for which nobody needs
//! the shard. So anybody can do it who has time, some at a time, and the shard goes on where it was left.

use std::{ops::Range, sync::Arc};

use bytes::Bytes;

use crate::{
    block::Reading,
    content_hash::Sums,
    error::{Result, SqlError},
    operation::Ts,
    position::{KeyRange, Position},
    recut::NO_PIECE,
    schema::TableSchema,
    segment::Segment,
    shard::{Options, Progress},
    table::{Table, key_hashes, shard_of},
};

/// A block that is being unpacked for a shard.
#[derive(Debug)]
pub struct Unpacking {
    schema: Arc<TableSchema>,
    /// The shard, of so many.
    shard: (u32, u32),
    begin: Ts,
    /// What is asked for besides the rows and their positions.
    pub(crate) wants: Wants,
    options: Options,
    stage: Stage,
}

/// What may be asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wants {
    /// The content hash.
    pub(crate) content: bool,
    /// The hashes of the keys.
    pub(crate) keys: bool,
}

#[derive(Debug)]
enum Stage {
    /// Nothing has been read.
    Packed(Bytes),
    Read(Reading),
    Derive(Box<Deriving>),
    Unpacked(Box<Unpacked>),
    Failed(SqlError),
    /// Somebody does some of the work, or has panicked at it, or it has been taken.
    Away,
}

/// Rows, and what follows from them, as far as it is known.
#[derive(Debug)]
struct Deriving {
    rows: Unpacked,
    sums: Sums,
}

/// A block that has been unpacked.
#[derive(Debug)]
pub(crate) struct Unpacked {
    /// All of its rows.
    pub(crate) segment: Segment,
    /// Those that belong to the shard.
    pub(crate) own: Vec<u32>,
    /// Where these lie,
    pub(crate) positions: Vec<Position>,
    /// and in which range all of them do, if there are some.
    pub(crate) within: Option<KeyRange>,
    /// The hashes of their keys, if they are asked for.
    pub(crate) keys: Vec<u64>,
    /// Their content hash, if it is asked for.
    pub(crate) content: u128,
    /// How many more rows of the shard may be about to come.
    pub(crate) follow: usize,
}

impl Unpacking {
    /// Begins with a block of rows of a table, of which this shard, of so many, wants its own.
    pub(crate) fn new(
        block: Bytes,
        schema: Arc<TableSchema>,
        shard: (u32, u32),
        begin: Ts,
        wants: Wants,
        options: Options,
    ) -> Unpacking {
        Unpacking { schema, shard, begin, wants, options, stage: Stage::Packed(block) }
    }

    /// Does some of the work. Idle when nothing is left.
    ///
    /// # Panics
    /// When that has made another thread panic.
    pub fn unpack_some(&mut self) -> Progress {
        match std::mem::replace(&mut self.stage, Stage::Away) {
            stage @ (Stage::Unpacked(_) | Stage::Failed(_)) => self.stage = stage,
            stage => self.stage = self.next(stage).unwrap_or_else(Stage::Failed),
        }
        if self.is_unpacked() { Progress::Idle } else { Progress::Busy }
    }

    /// Whether nothing is left to do.
    pub fn is_unpacked(&self) -> bool {
        matches!(self.stage, Stage::Unpacked(_) | Stage::Failed(_))
    }

    /// What has been unpacked, when nothing is left.
    ///
    /// # Errors
    /// When the block cannot be read or has rows of another table.
    pub(crate) fn take(&mut self, schema: &TableSchema) -> Result<Box<Unpacked>> {
        while self.unpack_some() == Progress::Busy {}
        match std::mem::replace(&mut self.stage, Stage::Away) {
            Stage::Unpacked(unpacked) if *self.schema == *schema => Ok(unpacked),
            Stage::Failed(error) => Err(error),
            _ => Err(SqlError::internal("rows of a table that has changed")),
        }
    }

    fn next(&self, stage: Stage) -> Result<Stage> {
        Ok(match stage {
            Stage::Packed(block) => {
                let reading = Reading::new(block)?;
                let (shard, shards) = reading.shard();
                match (shard, shards) != self.shard && shards == self.shard.1 {
                    true => Stage::Unpacked(Box::new(Unpacked::new(Segment::new(NO_PIECE, &[]), Vec::new()))),
                    false => Stage::Read(reading),
                }
            }
            Stage::Read(mut reading) => match reading.next(&self.schema.columns)? {
                true => Stage::Read(reading),
                false => Stage::Derive(Box::new(self.deriving(&mut reading))),
            },
            Stage::Derive(mut deriving) => match self.derive_some(&mut deriving) {
                true => Stage::Derive(deriving),
                false => {
                    let Deriving { mut rows, sums } = *deriving;
                    rows.content = if self.wants.content { sums.finish() } else { 0 };
                    Stage::Unpacked(Box::new(rows))
                }
            },
            done @ (Stage::Unpacked(_) | Stage::Failed(_)) => done,
            // It is not what has been sent that is at fault.
            Stage::Away => panic!("whoever unpacks blocks has not failed"),
        })
    }

    /// Begins with what has been read.
    fn deriving(&self, reading: &mut Reading) -> Deriving {
        let (schema, (index, shards)) = (&self.schema, self.shard);
        let ((_, of), rows) = (reading.shard(), reading.rows());
        let segment = Segment::of(NO_PIECE, reading.take_columns(), rows, self.begin);
        let own: Vec<u32> = match of == shards || shards == 1 {
            true => (0..rows as u32).collect(),
            false => {
                let identity = Table::identity(schema);
                let mut key = Vec::new();
                let mut is_own = |row: u32| {
                    segment.write_identity(&schema.columns, &identity, row, &mut key);
                    shard_of(Table::hash(&key), shards) == index
                };
                (0..rows as u32).filter(|row| is_own(*row)).collect()
            }
        };
        let sums = Sums::new(if self.wants.content { &own } else { &[] });
        let follow = reading.follow().min(u32::MAX as usize) * own.len() / rows.max(1);
        Deriving { rows: Unpacked { follow, ..Unpacked::new(segment, own) }, sums }
    }

    /// Adds something that follows from the rows. Returns whether something was left.
    fn derive_some(&self, Deriving { rows, sums }: &mut Deriving) -> bool {
        let schema = &self.schema;
        let Unpacked { segment, own, positions, within, keys, .. } = rows;
        let some = |done: usize| -> Range<usize> {
            done..own.len().min(done.saturating_add(self.options.keys_together.max(1)))
        };
        if positions.len() < own.len() {
            let next = segment.positions(schema, &own[some(positions.len())]);
            let ends = next.iter().min().zip(next.iter().max());
            if let Some((first, last)) = ends.map(|(first, last)| (*first, *last)) {
                let next = KeyRange { first, last };
                *within = Some(within.map_or(next, |before| before.hull(next)));
            }
            positions.extend(next);
            return true;
        }
        if self.wants.keys && keys.len() < own.len() {
            keys.extend(key_hashes(schema, segment, &own[some(keys.len())]));
            return true;
        }
        let is_left = self.wants.content && sums.columns() < segment.columns.len();
        if is_left {
            sums.add(&segment.columns, &schema.columns, own, self.options.cells_hashed_together());
        }
        is_left
    }
}

impl Unpacked {
    fn new(segment: Segment, own: Vec<u32>) -> Unpacked {
        Unpacked {
            segment,
            own,
            positions: Vec::new(),
            within: None,
            keys: Vec::new(),
            content: 0,
            follow: 0,
        }
    }
}
