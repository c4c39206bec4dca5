//! The configs that are still needed (paper, section 5.6): a sequence of distinct config objects, each checkpointing
//! the routing state that the m-seq had led to at a `Ts`. They are dropped when no message that relies on them can be
//! asked for any more.

use std::{collections::VecDeque, sync::Arc};

use carousel_engine::Ts;
use serde::{Deserialize, Serialize};

use super::Config;

/// See the module's head.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct History {
    /// Each with the `Ts` of the message that led to it, ascending; it routes the messages behind that.
    configs: VecDeque<(Ts, Arc<Config>)>,
}

impl History {
    /// Begins behind `ts` with a config.
    pub fn new(ts: Ts, config: Arc<Config>) -> History {
        History { configs: VecDeque::from([(ts, config)]) }
    }

    /// The config that the last message has led to.
    pub fn last(&self) -> &Arc<Config> {
        &self.configs.back().expect("there is always a config").1
    }

    /// The config that routes the message behind `ts`, or the oldest one when that has been dropped.
    pub fn behind(&self, ts: Ts) -> &Arc<Config> {
        let after = self.configs.partition_point(|(from, _)| *from <= ts);
        &self.configs[after.saturating_sub(1)].1
    }

    /// The message at `ts` has led to another config.
    ///
    /// # Panics
    /// When a message behind `ts` has already done so.
    pub fn push(&mut self, ts: Ts, config: Arc<Config>) {
        let last = self.configs.back().expect("there is always a config").0;
        assert!(ts >= last, "a config from {ts} on after one from {last} on");
        if ts == last {
            self.configs.pop_back();
        }
        self.configs.push_back((ts, config));
    }

    /// Drops the configs that only messages up to `ts` rely on.
    pub fn forget(&mut self, ts: Ts) {
        while self.configs.get(1).is_some_and(|(from, _)| *from <= ts) {
            self.configs.pop_front();
        }
    }

    /// How many configs are kept.
    #[expect(clippy::len_without_is_empty, reason = "there is always a config")]
    pub fn len(&self) -> usize {
        self.configs.len()
    }
}
