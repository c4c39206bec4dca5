//! What processes tell about themselves in numbers, by the `metrics` facade: whoever runs the process chooses where the
//! numbers go. In the cores there is none of it; shells count what passes through them.

use std::time::{Duration, Instant};

use metrics::{
    Counter, Gauge, Histogram, counter, describe_counter, describe_gauge, describe_histogram, gauge,
    histogram,
};

use crate::{
    message::ProcessId,
    network::Lane,
    router::mseq::{Learned, MSeq},
    storage::Progress,
};

/// What only grows, and what it counts.
const COUNTERS: [(&str, &str); 12] = [
    ("carousel_router_ordered_messages_total", "Messages that the router has learned to be ordered"),
    ("carousel_router_entries_total", "Entries of the log that the router has learned"),
    ("carousel_router_duplicate_messages_total", "Messages in those entries that had been ordered before"),
    ("carousel_router_leaderships_total", "How often the router has begun to lead"),
    ("carousel_storage_failed_checkpoints_total", "Checkpoints that could not be written"),
    ("carousel_storage_checkpoints_total", "Checkpoints that have become durable"),
    ("carousel_storage_moved_bytes_total", "Bytes of rows that other storage processes have sent"),
    ("carousel_scan_revolutions_total", "Revolutions of the shared scan"),
    ("carousel_transport_sent_bytes_total", "Bytes sent to the peer on the lane"),
    ("carousel_transport_received_bytes_total", "Bytes received from the peer on the lane"),
    ("carousel_transport_sent_messages_total", "Messages sent to the peer on the lane"),
    ("carousel_transport_received_messages_total", "Messages received from the peer on the lane"),
];

/// What goes up and down.
const GAUGES: [(&str, &str); 13] = [
    ("carousel_mseq_ts", "Ts of the last message that the router has learned to be ordered"),
    ("carousel_router_leading", "Whether the router leads"),
    ("carousel_router_streams", "Processes to which the router delivers"),
    ("carousel_storage_delivered_ts", "Ts up to which deliveries have been given to the scan threads"),
    ("carousel_storage_executed_ts", "Ts up to which everything has been executed"),
    ("carousel_storage_durable_ts", "Ts of the last durable checkpoint that others may count on"),
    ("carousel_storage_memory_bytes", "Bytes that count against the memory limit"),
    ("carousel_storage_logged_bytes", "Bytes of messages since the last checkpoint"),
    ("carousel_storage_staged_bytes", "Bytes of staged rows since the last checkpoint"),
    ("carousel_storage_pending_operations", "Deliveries that wait for their turn"),
    ("carousel_scan_riders", "Operations that ride the shared scan"),
    ("carousel_scan_segments", "Segments that have rows: many small ones make revolutions long"),
    ("carousel_transport_untaken_bytes", "Bytes sent to the peer on the lane that it has not taken yet"),
];

/// How long things take, in seconds: their names end in `_seconds`. Whoever takes the numbers chooses the buckets.
const HISTOGRAMS: [(&str, &str); 3] = [
    ("carousel_router_log_sync_seconds", "Seconds to write and sync what was appended to the log together"),
    (
        "carousel_process_step_seconds",
        "Seconds that the router or storage process took for an input: what it did, and what held it up",
    ),
    ("carousel_scan_revolution_seconds", "Seconds of a revolution, from when an operation rode"),
];

/// Says what all these numbers mean, to whoever takes them.
pub fn describe() {
    for (name, meaning) in HISTOGRAMS {
        describe_histogram!(name, meaning);
    }
    for (name, meaning) in COUNTERS {
        describe_counter!(name, meaning);
    }
    for (name, meaning) in GAUGES {
        describe_gauge!(name, meaning);
    }
}

/// How long a process takes over its inputs, one by one: it does nothing else meanwhile.
pub(crate) struct StepMeter(Histogram);

impl StepMeter {
    pub(crate) fn new(id: ProcessId) -> StepMeter {
        StepMeter(histogram!("carousel_process_step_seconds", "process" => id.to_string()))
    }

    /// It takes an input; what is returned is called when it is done with that.
    pub(crate) fn begin(&self) -> impl FnOnce() {
        let began = Instant::now();
        move || self.0.record(began.elapsed().as_secs_f64())
    }
}

/// How long the disk of a router takes.
pub(crate) struct LogMeter(Histogram);

impl LogMeter {
    pub(crate) fn new(id: ProcessId) -> LogMeter {
        LogMeter(histogram!("carousel_router_log_sync_seconds", "process" => id.to_string()))
    }

    /// Numbers that nobody takes.
    #[cfg(test)]
    pub(crate) fn noop() -> LogMeter {
        LogMeter(Histogram::noop())
    }

    /// What was appended together has been written and synced.
    pub(crate) fn synced(&self, time: Duration) {
        self.0.record(time.as_secs_f64());
    }
}

/// A router's numbers.
pub(crate) struct RouterMeter {
    ordered: Counter,
    entries: Counter,
    duplicates: Counter,
    ts: Gauge,
    leading: Gauge,
    leaderships: Counter,
    streams: Gauge,
}

impl RouterMeter {
    pub(crate) fn new(id: ProcessId) -> RouterMeter {
        let process = || id.to_string();
        RouterMeter {
            ordered: counter!("carousel_router_ordered_messages_total", "process" => process()),
            entries: counter!("carousel_router_entries_total", "process" => process()),
            duplicates: counter!("carousel_router_duplicate_messages_total", "process" => process()),
            ts: gauge!("carousel_mseq_ts", "process" => process()),
            leading: gauge!("carousel_router_leading", "process" => process()),
            leaderships: counter!("carousel_router_leaderships_total", "process" => process()),
            streams: gauge!("carousel_router_streams", "process" => process()),
        }
    }

    /// The m-seq has grown, by an entry of the log.
    pub(crate) fn learned(&self, mseq: &MSeq, learned: &[Learned]) {
        let count =
            |wanted: fn(&Learned) -> bool| learned.iter().filter(|learned| wanted(learned)).count() as u64;
        self.entries.increment(1);
        self.ordered.increment(count(|learned| matches!(learned, Learned::Message(_))));
        self.duplicates.increment(count(|learned| matches!(learned, Learned::Duplicate(_))));
        self.knows(mseq);
    }

    /// The m-seq as it is known, which may have come as a whole.
    pub(crate) fn knows(&self, mseq: &MSeq) {
        self.ts.set(mseq.ts().0 as f64);
    }

    pub(crate) fn leads(&self) {
        self.leaderships.increment(1);
        self.leading.set(1.0);
    }

    pub(crate) fn follows(&self) {
        self.leading.set(0.0);
    }

    pub(crate) fn streams(&self, streams: usize) {
        self.streams.set(streams as f64);
    }
}

/// What one life of a process counts from 0, for a counter that goes on from one life in this operating system process to the next.
struct Total {
    counter: Counter,
    last: u64,
}

impl Total {
    fn of(counter: Counter) -> Total {
        Total { counter, last: 0 }
    }

    fn reach(&mut self, count: u64) {
        self.counter.increment(count - std::mem::replace(&mut self.last, count).min(count));
    }
}

/// A storage process's numbers.
pub(crate) struct StorageMeter {
    delivered: Gauge,
    executed: Gauge,
    durable: Gauge,
    memory: Gauge,
    logged: Gauge,
    staged: Gauge,
    pending: Gauge,
    failed_checkpoints: Total,
    checkpoints: Counter,
    moved: Counter,
    last_durable: Option<u64>,
}

impl StorageMeter {
    pub(crate) fn new(id: ProcessId) -> StorageMeter {
        let process = || id.to_string();
        StorageMeter {
            delivered: gauge!("carousel_storage_delivered_ts", "process" => process()),
            executed: gauge!("carousel_storage_executed_ts", "process" => process()),
            durable: gauge!("carousel_storage_durable_ts", "process" => process()),
            memory: gauge!("carousel_storage_memory_bytes", "process" => process()),
            logged: gauge!("carousel_storage_logged_bytes", "process" => process()),
            staged: gauge!("carousel_storage_staged_bytes", "process" => process()),
            pending: gauge!("carousel_storage_pending_operations", "process" => process()),
            failed_checkpoints: Total::of(
                counter!("carousel_storage_failed_checkpoints_total", "process" => process()),
            ),
            checkpoints: counter!("carousel_storage_checkpoints_total", "process" => process()),
            moved: counter!("carousel_storage_moved_bytes_total", "process" => process()),
            last_durable: None,
        }
    }

    /// Another storage process has sent so many bytes of rows.
    pub(crate) fn moved(&self, bytes: usize) {
        self.moved.increment(bytes as u64);
    }

    pub(crate) fn progress(&mut self, progress: &Progress, pending: usize) {
        let marks = progress.watermarks;
        self.delivered.set(marks.delivered.0 as f64);
        self.executed.set(marks.executed.0 as f64);
        self.durable.set(marks.durable.0 as f64);
        self.memory.set(marks.memory as f64);
        self.logged.set(progress.logged as f64);
        self.staged.set(progress.staged as f64);
        self.pending.set(pending as f64);
        self.failed_checkpoints.reach(progress.failed_checkpoints);
        // The first is what was recovered.
        if self.last_durable.replace(marks.durable.0).is_some_and(|last| marks.durable.0 > last) {
            self.checkpoints.increment(1);
        }
    }
}

/// The numbers of one scan thread.
pub(crate) struct ScanMeter {
    revolutions: Total,
    reported: Option<u64>,
    seconds: Histogram,
    /// When the revolution has begun that is under way, or the first operation has come aboard.
    began: Option<Instant>,
    riders: Gauge,
    segments: Gauge,
}

impl ScanMeter {
    /// The thread's name tells whose it is.
    pub(crate) fn new(thread: &str) -> ScanMeter {
        let thread = || thread.to_owned();
        ScanMeter {
            revolutions: Total::of(counter!("carousel_scan_revolutions_total", "thread" => thread())),
            reported: None,
            seconds: histogram!("carousel_scan_revolution_seconds", "thread" => thread()),
            began: None,
            riders: gauge!("carousel_scan_riders", "thread" => thread()),
            segments: gauge!("carousel_scan_segments", "thread" => thread()),
        }
    }

    /// The segments are counted once in a revolution.
    pub(crate) fn report(&mut self, revolutions: u64, riders: usize, segments: impl FnOnce() -> usize) {
        if self.reported.replace(revolutions) != Some(revolutions) {
            self.segments.set(segments() as f64);
            if let Some(began) = self.began.take() {
                self.seconds.record(began.elapsed().as_secs_f64());
            }
        }
        match riders {
            0 => self.began = None,
            _ => drop(self.began.get_or_insert_with(Instant::now)),
        }
        self.revolutions.reach(revolutions);
        self.riders.set(riders as f64);
    }
}

/// The numbers of a lane between two processes.
pub(crate) struct LaneMeter {
    sent: Counter,
    received: Counter,
    sent_messages: Counter,
    received_messages: Counter,
    untaken: Gauge,
}

impl LaneMeter {
    pub(crate) fn new(local: ProcessId, remote: ProcessId, lane: Lane) -> LaneMeter {
        let lane = match lane {
            Lane::Control => "control",
            Lane::Data => "data",
        };
        let labels =
            || [("process", local.to_string()), ("peer", remote.to_string()), ("lane", lane.to_owned())];
        LaneMeter {
            sent: counter!("carousel_transport_sent_bytes_total", &labels()),
            received: counter!("carousel_transport_received_bytes_total", &labels()),
            sent_messages: counter!("carousel_transport_sent_messages_total", &labels()),
            received_messages: counter!("carousel_transport_received_messages_total", &labels()),
            untaken: gauge!("carousel_transport_untaken_bytes", &labels()),
        }
    }

    pub(crate) fn sent(&self, messages: usize, bytes: usize, untaken: usize) {
        self.sent_messages.increment(messages as u64);
        self.sent.increment(bytes as u64);
        self.untaken.set(untaken as f64);
    }

    pub(crate) fn received(&self, bytes: usize) {
        self.received.increment(bytes as u64);
    }

    pub(crate) fn took(&self) {
        self.received_messages.increment(1);
    }

    pub(crate) fn untaken(&self, untaken: usize) {
        self.untaken.set(untaken as f64);
    }
}
