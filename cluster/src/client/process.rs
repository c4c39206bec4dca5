//! The client process's shell: a task around the pure core.

use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use carousel_engine::{SqlError, SqlState, aggregate::Group, array::size_of_cells};
use hashbrown::HashMap;
use tokio::sync::{mpsc, watch};

use super::{
    Answers, Client, Command, Failure, HandedOut, Part, Place, View,
    admission::Admission,
    core::{Core, CoreOptions, Effect, Event},
    parts::{self, Waiting},
    precuts::Precuts,
    readback::ReadBack,
    routers::Inquirer,
    stage::{StageCommand, Staged},
    staging::Staging,
};
use crate::{
    config::Config,
    data_dir::write_number,
    message::{Incarnation, ProcessId},
    network::{Endpoint, Network, Sender},
    outbox::Outbox,
    wire::Wire,
};

/// How often time passes for the core.
const TICK: Duration = Duration::from_millis(100);
/// How often it is asked which storage processes cannot be reached.
const LOOK: Duration = Duration::from_secs(1);
/// Messages of one client that are not answered in full.
const WINDOW: usize = 8192;
/// Bytes of rows and groups that all answers together may have waiting for whoever reads them. Each is held up long before, but
/// there can be very many of them.
const RESULT_BUFFER: u64 = if cfg!(test) { 1 << 20 } else { 1 << 30 };
/// Events that are handled before their messages are sent.
const BATCH: usize = 1024;

/// What a client process needs to know.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// Identity; of kind client or super.
    pub id: ProcessId,
    /// Greater than that of all earlier lives.
    pub incarnation: Incarnation,
    /// Where they are counted.
    pub lives: Lives,
    /// All routers.
    pub routers: Vec<ProcessId>,
    /// The config at the beginning; routers tell newer ones.
    pub config: Arc<Config>,
}

/// The file in which the starts of a client process are counted.
#[derive(Clone, Debug)]
pub struct Lives {
    /// Which file.
    pub starts: PathBuf,
    /// Incarnations from one start to the next.
    pub apart: u64,
}

impl Lives {
    /// The next start is to be behind an incarnation.
    fn count_on(&self, incarnation: Incarnation) {
        if let Err(error) = write_number(&self.starts, incarnation / self.apart) {
            tracing::error!(%error, "cannot count the starts of a client process on");
        }
    }
}

impl Client {
    /// Starts a client process. It ends when the last handle on it is dropped.
    pub fn start(options: ClientOptions, network: &Network) -> Client {
        let endpoint = network.join(options.id);
        let (process, unreachable) = Process::new(&options, network, endpoint.sender());
        let (commands, received) = mpsc::unbounded_channel();
        let (admission, waiting) = (process.admission.clone(), process.waiting.clone());
        let viewed = process.view.subscribe();
        tokio::spawn(process.run(endpoint, received, unreachable));
        Client::new(options, network.clone(), WINDOW, admission, waiting, commands, viewed)
    }
}

struct Process {
    core: Core,
    network: Network,
    /// Who waits for a reply of the lead router, by the number of the inquiry.
    inquirers: HashMap<u64, Inquirer>,
    precuts: Precuts,
    outbox: Outbox,
    view: watch::Sender<View>,
    submissions: HashMap<u64, (Answers, Place)>,
    staging: Staging<Staged>,
    read_back: ReadBack,
    incarnation: Incarnation,
    lives: Lives,
    admission: Arc<Admission>,
    waiting: Waiting,
    /// Where the parts of answers went that have come as a whole and have not been read.
    unread: Vec<parts::Writer<HandedOut>>,
}

impl Process {
    /// The process, and where it hears which others cannot be reached.
    fn new(
        options: &ClientOptions,
        network: &Network,
        sender: Sender,
    ) -> (Process, mpsc::UnboundedReceiver<ProcessId>) {
        let core = Core::new(CoreOptions {
            id: options.id,
            incarnation: options.incarnation,
            // A life in a copy of the directory from before the last start has the number of another one.
            directory: rand::random(),
            routers: options.routers.clone(),
            config: options.config.clone(),
        });
        let (outbox, unreachable) = Outbox::new(sender);
        let process = Process {
            network: network.clone(),
            inquirers: HashMap::new(),
            precuts: Precuts::default(),
            outbox,
            view: watch::Sender::new(core.view()),
            core,
            submissions: HashMap::new(),
            staging: Staging::new(),
            read_back: ReadBack::default(),
            incarnation: options.incarnation,
            lives: options.lives.clone(),
            admission: Arc::default(),
            waiting: Waiting::default(),
            unread: Vec::new(),
        };
        (process, unreachable)
    }

    async fn run(
        mut self,
        mut endpoint: Endpoint,
        mut commands: mpsc::UnboundedReceiver<Command>,
        mut unreachable: mpsc::UnboundedReceiver<ProcessId>,
    ) {
        let started = Instant::now();
        let mut known = self.network.known_routers();
        known.mark_changed();
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut looks = tokio::time::interval(LOOK);
        looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut batch = Vec::with_capacity(BATCH);
        loop {
            tokio::select! {
                received = endpoint.recv() => match received {
                    Some((from, wire)) => self.received(from, wire),
                    None => break,
                },
                count = commands.recv_many(&mut batch, BATCH) => {
                    if count == 0 {
                        let leave = Wire::Leave { incarnation: self.incarnation };
                        let _ = endpoint.sender().try_send(self.core.router(), leave);
                        break;
                    }
                    for command in batch.drain(..) {
                        self.command(command);
                    }
                }
                Ok(()) = known.changed() => {
                    let routers = known.borrow_and_update().clone();
                    self.core.handle(Event::Routers(routers));
                }
                Some(process) = unreachable.recv() => {
                    self.staging.unreachable(process);
                    self.read_back.lost(process);
                    self.precuts.lost(process);
                    self.core.handle(Event::Unreachable(process));
                }
                _ = ticks.tick() => {
                    let now_ms = started.elapsed().as_millis() as u64;
                    self.core.handle(Event::Tick(now_ms));
                    self.admission.tick();
                    self.unread.retain(|parts| parts.waiting() > 0 && parts.has_reader());
                    self.forget_inquiries();
                    self.send_all(|this| this.staging.tick(now_ms));
                    self.send_all(|this| this.read_back.tick(now_ms, this.core.config()));
                    for (done, outcome) in self.staging.give_up() {
                        done.tell(outcome);
                    }
                    for process in self.precuts.awaited() {
                        // Whether it is still there.
                        self.outbox.send(process, Wire::Hello);
                    }
                }
                _ = looks.tick() => self.look(),
            }
            if let Some(reason) = self.apply() {
                self.stop(reason);
                break;
            }
        }
    }

    /// Tells why there will be no answers any more, to those who wait and to those who come later.
    fn stop(&self, reason: SqlError) {
        tracing::error!(error = %reason, detail = reason.detail, "the client process stops");
        self.view.send_modify(|view| view.stopped = Some(reason));
    }

    /// Says something to storage processes that cannot be reached, though they could be: whoever has nothing to say to them would
    /// not know.
    fn look(&mut self) {
        let (config, id) = (self.core.config().clone(), self.outbox.id());
        let known = config.storage_processes().chain(config.standbys());
        for process in known.filter(|process| !self.network.reaches(id, *process)) {
            self.outbox.send(process, Wire::Hello);
        }
    }

    fn received(&mut self, from: ProcessId, wire: Wire) {
        if matches!(wire, Wire::Lost) || self.core.is_new_life(from, &wire) {
            for wire in self.staging.met(from) {
                self.outbox.send(from, wire);
            }
            self.read_back.lost(from);
            self.precuts.lost(from);
        }
        self.staging.heard(from);
        match wire {
            Wire::Staged { payload, range, chunk, outcome } => {
                if let Some((done, outcome)) = self.staging.receipt(from, (payload, range, chunk), outcome) {
                    done.tell(outcome);
                }
            }
            Wire::StagedRows { payload, range, chunk, rows } => {
                self.send_all(|this| this.read_back.answered(from, (payload, range, chunk), rows));
            }
            Wire::HasPrecut { request } => self.precuts.has_cut(from, request),
            Wire::Routers(routers) => self.network.learn_routers(&routers),
            wire => self.core.handle(Event::Received { from, wire }),
        }
    }

    fn command(&mut self, command: Command) {
        match command {
            Command::Submit { request, isolation, answers, place } => {
                let submission = answers.submission;
                self.submissions.insert(submission, (answers, place));
                self.core.handle(Event::Submit { submission, request, isolation });
            }
            Command::Took { submission, from, batches } => {
                self.core.handle(Event::Took { submission, from, batches });
            }
            Command::Cancel { submission } => self.core.handle(Event::Cancel { submission }),
            Command::Stage(StageCommand::Chunk { chunk, holders, done }) => {
                match self.staging.send(chunk, holders, self.core.config(), done) {
                    Ok(wires) => wires.into_iter().for_each(|(to, wire)| self.outbox.send(to, wire)),
                    Err(done) => done.tell(Ok(())),
                }
            }
            Command::Stage(StageCommand::Read { chunk, checksum, holders, reader }) => {
                self.send_all(|this| {
                    this.read_back.ask(chunk, checksum, holders, this.core.config(), reader)
                });
            }
            Command::Stage(StageCommand::Abandon { payload, holders }) => {
                self.staging.abandon(payload);
                for holder in holders {
                    self.send(holder, Wire::Abandon(payload));
                }
            }
            Command::AskRouters { inquiry, done } => {
                let request = self.core.ask_routers(inquiry);
                self.inquirers.insert(request, done);
            }
            Command::Precut { at, done } => {
                let request = self.precuts.begin(self.core.config().live_storage(), done);
                self.tell_storage(|| Wire::Precut { request, at: at.clone() });
            }
            Command::RenewPin(ts) => self.tell_storage(|| Wire::RenewPin(ts)),
            Command::Operations(answer) => {
                // Whoever asked may have gone away.
                let _ = answer.send(self.core.operations());
            }
            Command::ReleasePin(ts) => self.tell_storage(|| Wire::ReleasePin(ts)),
        }
    }

    /// Forgets the inquiries that nobody waits for a reply to any more.
    fn forget_inquiries(&mut self) {
        self.inquirers.retain(|request, done| {
            if done.is_closed() {
                self.core.forget_inquiry(*request);
            }
            !done.is_closed()
        });
        self.precuts.tidy();
    }

    fn send(&mut self, to: ProcessId, wire: Wire) {
        if let Wire::Abandon(payload) = &wire {
            self.staging.note_abandoned(to, *payload);
        }
        self.outbox.send(to, wire);
    }

    fn send_all<W: IntoIterator<Item = (ProcessId, Wire)>>(&mut self, wires: impl FnOnce(&mut Self) -> W) {
        for (to, wire) in wires(self) {
            self.outbox.send(to, wire);
        }
    }

    fn tell_storage(&mut self, wire: impl Fn() -> Wire) {
        for process in self.core.config().clone().storage_processes() {
            self.outbox.send(process, wire());
        }
    }

    /// Does what is to be done; returns why the process must stop, if it must.
    fn apply(&mut self) -> Option<SqlError> {
        for effect in self.core.take_effects() {
            match effect {
                Effect::Send(to, wire) => self.send(to, wire),
                Effect::Rows(submission, from, batch) => {
                    self.hand_out(submission, from, Ok(Part::Rows(batch)));
                }
                Effect::Part(submission, part) => self.hand_out(submission, None, part),
                Effect::Release(submission) => self.release(submission),
                Effect::ViewChanged => {
                    let view = self.core.view();
                    if view.config.version() != self.view.borrow().config.version() {
                        for done in self.staging.reconfigured(&view.config) {
                            done.tell(Ok(()));
                        }
                    }
                    if !Arc::ptr_eq(&view.config, &self.view.borrow().config) {
                        self.network.learn(&view.config);
                    }
                    self.view.send_replace(view);
                }
                Effect::RoutersAnswered(request, reply) => {
                    if let Some(done) = self.inquirers.remove(&request) {
                        // Whoever asked may have gone away.
                        let _ = done.send(reply);
                    }
                }
                Effect::CountOn(incarnation) => self.lives.count_on(incarnation),
                Effect::Stop(reason) => return Some(reason),
            }
        }
        None
    }

    fn hand_out(&mut self, submission: u64, from: Option<ProcessId>, part: Result<Part, Failure>) {
        let bytes = match &part {
            Ok(Part::Rows(batch)) => size_of_cells(batch),
            Ok(Part::Groups(groups)) => groups.iter().map(Group::heap_size).sum::<usize>() as u64,
            _ => 0,
        };
        if let Some((answers, _)) = self.submissions.get(&submission) {
            answers.parts.send((from, part), bytes);
        }
        // Otherwise the submission has been dropped, and its cancellation is on its way.
        if bytes > 0 && self.waiting.bytes() > RESULT_BUFFER {
            self.end_slowest();
        }
    }

    /// Nothing more comes of a submission.
    fn release(&mut self, submission: u64) {
        let Some((answers, _)) = self.submissions.remove(&submission) else { return };
        if !answers.changes && answers.parts.waiting() > 0 {
            answers.parts.end();
            self.unread.push(answers.parts);
        }
    }

    /// Ends the read of whose answer most waits to be read. What a write returns was admitted before it was ordered; it has taken
    /// effect, and no error may say otherwise.
    fn end_slowest(&mut self) {
        let reads = self.submissions.iter().filter(|(_, (answers, _))| !answers.changes);
        let open = reads.map(|(submission, (answers, _))| (Some(*submission), &answers.parts));
        let all = open.chain(self.unread.iter().map(|parts| (None, parts)));
        let Some((submission, parts)) = all.max_by_key(|(_, parts)| parts.waiting()) else { return };
        if parts.waiting() == 0 {
            return;
        }
        let error = SqlError::new(SqlState::OUT_OF_MEMORY, "out of memory")
            .with_detail(format!(
                "The rows of all results that were not read yet exceed {RESULT_BUFFER} bytes, and most of them are this \
                 statement's."
            ))
            .with_hint("Read the result faster, or ask for fewer rows.");
        parts.end_with((None, Err(Failure::Sql(error))));
        if let Some(submission) = submission {
            self.core.handle(Event::Cancel { submission });
        }
    }
}

#[cfg(test)]
mod tests {
    use arrow::{
        array::{ArrayRef, Int64Array},
        record_batch::RecordBatch,
    };
    use tokio::sync::Semaphore;

    use super::*;

    #[tokio::test]
    async fn the_read_of_which_most_waits_makes_room() {
        let (network, id) = (Network::new(), ProcessId::client(1));
        let options = ClientOptions {
            id,
            incarnation: 1,
            lives: Lives { starts: PathBuf::new(), apart: 1 },
            routers: vec![ProcessId::router(1)],
            config: Arc::new(Config::evenly(1, 1).expect("a ring")),
        };
        let (mut process, _unreachable) = Process::new(&options, &network, network.join(id).sender());
        let window = Arc::new(Semaphore::new(3));
        let mut begin = |submission| {
            let (sender, reader) = parts::parts(process.waiting.clone());
            let place = window.clone().try_acquire_owned().expect("there is room");
            let nothing = super::super::Admitted::nothing(&process.admission);
            let answers = Answers { submission, parts: sender, changes: false };
            process.submissions.insert(submission, (answers, (place, nothing)));
            reader
        };
        let (mut small, mut large, mut whole) = (begin(1), begin(2), begin(3));
        let rows = |bytes: u64| {
            let column: ArrayRef = Arc::new(Int64Array::from(vec![1; bytes as usize / 8]));
            Ok(Part::Rows(RecordBatch::try_from_iter([("n", column)]).expect("a batch")))
        };
        process.hand_out(1, None, rows(96));
        process.hand_out(2, None, rows(RESULT_BUFFER - 96));
        assert_eq!(
            (small.waiting(), large.waiting()),
            (96, RESULT_BUFFER - 96),
            "there is room for all of it"
        );
        process.hand_out(1, None, rows(8));
        let Some((_, Err(Failure::Sql(error)))) = large.recv().await else { panic!("it has not failed") };
        assert_eq!(error.code, SqlState::OUT_OF_MEMORY);
        assert!(matches!(small.recv().await, Some((_, Ok(Part::Rows(_))))));
        process.hand_out(2, None, rows(1_000));
        assert_eq!((large.waiting(), small.waiting(), process.waiting.bytes()), (0, 8, 8));
        // An answer that has come as a whole waits like any other.
        process.hand_out(3, None, rows(RESULT_BUFFER - 104));
        process.release(3);
        assert_eq!(whole.waiting(), RESULT_BUFFER - 104);
        process.hand_out(1, None, rows(104));
        assert!(matches!(whole.recv().await, Some((_, Err(Failure::Sql(_))))));
        assert!(whole.recv().await.is_none());
        assert_eq!((small.waiting(), process.waiting.bytes()), (112, 112));
    }
}
