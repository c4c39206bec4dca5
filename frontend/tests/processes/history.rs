//! What clients were told, checked by a replay of the m-seq: `carousel.last_ts` says where in it each statement was.

use std::{collections::BTreeMap, sync::Mutex};

use tokio_postgres::{Client, SimpleQueryMessage};

/// A write of a value to a register; each register has one writer, whose values grow.
#[derive(Clone, Copy, Debug)]
struct Write {
    register: usize,
    value: i64,
    /// Where in the m-seq; `None` when the writer does not know whether it took effect.
    ts: Option<u64>,
}

/// What clients were told.
#[derive(Default)]
pub(super) struct History {
    writes: Mutex<Vec<Write>>,
    /// Values of all registers, and the `Ts` they were read at.
    reads: Mutex<Vec<(u64, Vec<i64>)>>,
}

/// Where in the m-seq the session's last statement was, or what it read.
pub(super) async fn last_ts(client: &Client) -> u64 {
    let answer = client.simple_query("SHOW carousel.last_ts").await.expect("a session knows");
    let row = answer.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0),
        _ => None,
    });
    row.and_then(|ts| ts.parse().ok()).unwrap_or_else(|| panic!("no Ts: {row:?}"))
}

impl History {
    pub(super) fn wrote(&self, register: usize, value: i64, ts: Option<u64>) {
        self.writes.lock().unwrap().push(Write { register, value, ts });
    }

    pub(super) fn read(&self, ts: u64, values: Vec<i64>) {
        self.reads.lock().unwrap().push((ts, values));
    }

    /// Replays the m-seq: every read shows each register as the writes up to its `Ts` left it. A write of unknown outcome
    /// lies between the known ones of its writer, if it has a place at all; the first read that shows it settles that.
    ///
    /// # Panics
    /// When a read shows anything else.
    pub(super) fn check(self) {
        let (mut writes, mut reads) = (self.writes.into_inner().unwrap(), self.reads.into_inner().unwrap());
        writes.sort_by_key(|write| (write.register, write.value));
        reads.sort();
        let mut places = BTreeMap::new();
        for write in &writes {
            if let Some(ts) = write.ts {
                let other = places.insert(ts, *write);
                assert!(other.is_none(), "{write:?} and {other:?} have one place");
            }
        }
        let registers = reads.first().map_or(0, |(_, values)| values.len());
        let mut shown = vec![0; registers];
        for (ts, values) in &reads {
            for (register, value) in values.iter().enumerate() {
                let own = || writes.iter().filter(|write| write.register == register);
                let last =
                    own().filter(|write| write.ts.is_some_and(|at| at <= *ts)).map(|write| write.value);
                let last = last.max().unwrap_or(0);
                let next = own().filter(|write| write.ts.is_some_and(|at| at > *ts)).map(|write| write.value);
                let next = next.min().unwrap_or(i64::MAX);
                assert!(last < next, "the writes of {register} are not in the order of their submission");
                let unknown = own().any(|write| {
                    write.ts.is_none() && write.value == *value && last < *value && *value < next
                });
                assert!(
                    *value == last || unknown,
                    "register {register} at {ts}: {value}, and {last} was written last, {next} next"
                );
                assert!(
                    *value >= shown[register],
                    "register {register} at {ts}: {value} after a greater one"
                );
                shown[register] = *value;
            }
        }
    }
}
