//! Golden traces: what routers say to one another and to application processes, as text. The consensus is replaced by
//! a list of batches that every router learns when the scenario says so.

use std::{collections::BTreeMap, fmt::Write, sync::Arc};

use carousel_engine::{
    Ts,
    position::{KeyRange, Position},
};

use super::{
    core::{Core, Effect, Input, Limits, delivery},
    mseq::{Batch, Command, Learned, MSeq},
    testing,
};
use crate::{
    config::{Config, Configuration, Membership},
    message::{Incarnation, Message, MessageId, ProcessId},
    wire::{Delivery, Watermarks, Wire},
};

const R1: ProcessId = ProcessId::router(1);
const R2: ProcessId = ProcessId::router(2);
const S1: ProcessId = ProcessId::storage(1);
const S2: ProcessId = ProcessId::storage(2);
const S3: ProcessId = ProcessId::storage(3);
const S9: ProcessId = ProcessId::storage(9);
const DIRECTORY: u64 = 7;
const C1: ProcessId = ProcessId::client(1);
const C2: ProcessId = ProcessId::client(2);

struct Router {
    core: Core,
    mseq: MSeq,
    learned: usize,
    proposed: Option<(u64, Batch)>,
}

struct Scenario {
    config: Config,
    log: Vec<Batch>,
    routers: BTreeMap<ProcessId, Router>,
    /// The logs have been cut up to here.
    purged: Option<Ts>,
    leaderships: u64,
    trace: String,
}

/// The m-seq that scenarios begin with: all storage processes are in their first lives.
fn beginning(config: &Config) -> MSeq {
    let mut mseq = MSeq::new(config.clone());
    mseq.learn(&Batch(
        config.storage_processes().map(|process| Command::Join(process, 1, DIRECTORY)).collect(),
    ));
    mseq
}

fn name(id: MessageId) -> String {
    match id.is_ordered() {
        true => format!("{}.{}#{}", id.submitter, id.incarnation, id.sequence),
        false => format!("{}.{}read#{}", id.submitter, id.incarnation, id.sequence - (1 << 63)),
    }
}

impl Scenario {
    fn new(config: Config, limits: Limits) -> Self {
        let mseq = beginning(&config);
        let router = |id| {
            let core = Core::new(id, mseq.clone(), limits.clone());
            (id, Router { core, mseq: mseq.clone(), learned: 0, proposed: None })
        };
        let routers = [R1, R2].into_iter().map(router).collect();
        Scenario { config, log: Vec::new(), routers, purged: None, leaderships: 0, trace: String::new() }
    }

    fn note(&mut self, text: &str) {
        writeln!(self.trace, "-- {text}").expect("text");
    }

    /// Primary ranges by letters.
    fn ranges(&self, ranges: &[KeyRange]) -> String {
        let letter = |range| self.config.primary_ranges().position(|r| r == range).expect("a primary range");
        ranges.iter().map(|range| char::from(b'a' + letter(*range) as u8)).collect()
    }

    fn show(&self, wire: &Wire) -> String {
        match wire {
            Wire::Route(messages) => {
                let names: Vec<_> = messages.iter().map(|message| name(message.id)).collect();
                format!("route {}", names.join(" "))
            }
            Wire::Read { messages, seen } => {
                let names: Vec<_> = messages.iter().map(|message| name(message.id)).collect();
                format!("read {} seen={seen}", names.join(" "))
            }
            Wire::ReadsLost(reads) => {
                let names: Vec<_> = reads.iter().map(|id| name(*id)).collect();
                format!("lost {}", names.join(" "))
            }
            Wire::Subscribe { incarnation, after, .. } => {
                let after = after.map_or("nothing".into(), |after| after.to_string());
                format!("subscribe incarnation={incarnation} after={after}")
            }
            Wire::State { ts, catalog, clients, .. } => {
                let catalog = if catalog.is_some() { " with catalog" } else { "" };
                let clients: Vec<ProcessId> = clients.iter().map(|(client, _)| *client).collect();
                format!("state ts={ts}{catalog} clients={clients:?}")
            }
            Wire::LogLost { last, .. } => format!("the log ends at {last}"),
            Wire::Deliver { deliveries, frontier, incarnation, .. } => {
                let mut text = format!("deliver to incarnation {incarnation}");
                for delivery in deliveries {
                    let ranges = self.ranges(&delivery.ranges);
                    write!(text, " {}={}[{ranges}]", delivery.ts, name(delivery.message.id)).expect("text");
                }
                format!("{text} frontier={frontier}")
            }
            Wire::Ordered { incarnation, sequence, ts } => {
                format!("ordered incarnation={incarnation} up to #{sequence} ts={ts}")
            }
            Wire::Resend { incarnation, expected } => {
                format!("resend incarnation={incarnation} from #{expected}")
            }
            Wire::NotLeader { leader: Some(leader) } => format!("not leader, {leader} is"),
            Wire::NotLeader { leader: None } => "not leader, nobody is".into(),
            Wire::Confirm(watermarks) => format!("confirm durable={}", watermarks.durable),
            Wire::SubscribeRefused { purged, .. } => format!("refused, the log begins after {purged}"),
            Wire::Outlived { incarnation, newest, .. } => {
                format!("incarnation={incarnation} has not the directory of {newest}")
            }
            other => format!("{other:?}"),
        }
    }

    fn input(&mut self, at: ProcessId, input: Input) {
        let router = self.routers.get_mut(&at).expect("a router");
        for effect in router.core.handle(input) {
            self.effect(at, effect);
        }
    }

    fn effect(&mut self, at: ProcessId, effect: Effect) {
        match effect {
            Effect::Propose { proposal, batch } => {
                let names = batch.0.iter().map(|command| match command {
                    Command::Message(message) => name(message.id),
                    Command::Join(process, incarnation, _) => format!("join {process}.{incarnation}"),
                    Command::Leave(client, incarnation) => format!("leave {client}.{incarnation}"),
                    Command::Truncate(ts) => format!("truncate {ts}"),
                });
                let names: Vec<_> = names.collect();
                writeln!(self.trace, "{at} proposes {}", names.join(", ")).expect("text");
                self.routers.get_mut(&at).expect("a router").proposed = Some((proposal, batch));
            }
            Effect::Send { to, wire } => {
                let text = self.show(&wire);
                writeln!(self.trace, "{at} -> {to} {text}").expect("text");
            }
            Effect::Stream { to, stream, wires } => {
                for wire in wires {
                    let text = self.show(&wire);
                    writeln!(self.trace, "{at} -> {to} {text}").expect("text");
                }
                self.input(at, Input::Sent { to, stream });
            }
            Effect::Read { to, stream, after } => {
                writeln!(self.trace, "{at} reads its log after {after} for {to}").expect("text");
                if let Some(purged) = self.purged.filter(|purged| after < *purged) {
                    return self.input(at, Input::Purged { to, stream, purged });
                }
                let (deliveries, through) = self.read(at, to, after);
                self.input(at, Input::Read { to, stream, deliveries, through });
            }
            Effect::Close { to, .. } => writeln!(self.trace, "{at} closes the stream of {to}").expect("text"),
            Effect::Truncate(ts) => writeln!(self.trace, "{at} lets go of its log up to {ts}").expect("text"),
            Effect::ChangeRouters { change, .. } => {
                writeln!(self.trace, "{at} is to {change:?}").expect("text")
            }
            Effect::Look { process, .. } => writeln!(self.trace, "{at} looks for {process}").expect("text"),
        }
    }

    fn read(&self, at: ProcessId, to: ProcessId, after: Ts) -> (Vec<Delivery>, Ts) {
        let mut mseq = beginning(&self.config);
        let mut deliveries = Vec::new();
        for batch in &self.log[..self.routers[&at].learned] {
            for learned in mseq.learn(batch) {
                if let Learned::Message(routed) = learned
                    && routed.ts > after
                {
                    deliveries.extend(delivery(&routed, to));
                }
            }
        }
        (deliveries, mseq.ts())
    }

    /// A process sends something to a router.
    fn send(&mut self, from: ProcessId, to: ProcessId, wire: Wire) {
        let text = self.show(&wire);
        writeln!(self.trace, "{from} -> {to} {text}").expect("text");
        self.input(to, Input::Received { from, wire });
    }

    /// A storage process asks for a lease, when a quorum followed the router at `led_ms`.
    fn ask_lease(&mut self, from: ProcessId, to: ProcessId, asked_ms: u64, now_ms: u64, led_ms: Option<u64>) {
        self.ask_lease_as(1, from, to, asked_ms, now_ms, led_ms);
    }

    fn ask_lease_as(
        &mut self,
        incarnation: Incarnation,
        from: ProcessId,
        to: ProcessId,
        asked_ms: u64,
        now_ms: u64,
        led_ms: Option<u64>,
    ) {
        let text = self.show(&Wire::AskLease { incarnation, asked_ms });
        writeln!(self.trace, "{from} -> {to} {text}").expect("text");
        self.input(to, Input::AskLease { from, incarnation, asked_ms, now_ms, led_ms });
    }

    /// A router's proposal is agreed on; only the given routers learn it now.
    fn agree(&mut self, proposer: ProcessId, learners: &[ProcessId]) {
        let (proposal, batch) =
            self.routers.get_mut(&proposer).and_then(|r| r.proposed.take()).expect("a proposal");
        self.log.push(batch);
        writeln!(self.trace, "[agreed: entry {}]", self.log.len()).expect("text");
        learners.iter().for_each(|router| self.learn(*router));
        if learners.contains(&proposer) {
            self.input(proposer, Input::Proposed { proposal, accepted: true });
        }
    }

    /// A router learns all that was agreed on.
    fn learn(&mut self, at: ProcessId) {
        loop {
            let router = self.routers.get_mut(&at).expect("a router");
            let Some(batch) = self.log.get(router.learned) else { return };
            router.learned += 1;
            let learned = router.mseq.learn(batch);
            let mseq = router.mseq.clone();
            self.input(at, Input::Learned { mseq, learned });
        }
    }

    /// A router ends and begins anew with an empty memory; what was agreed on is still in its log.
    fn crash(&mut self, at: ProcessId) {
        writeln!(self.trace, "[{at} crashes]").expect("text");
        let mseq = beginning(&self.config);
        let core = Core::new(at, mseq.clone(), Limits::default());
        self.routers.insert(at, Router { core, mseq, learned: 0, proposed: None });
    }

    fn leads(&mut self, at: ProcessId) {
        writeln!(self.trace, "[{at} leads]").expect("text");
        self.leaderships += 1;
        self.input(at, Input::Leader(self.leaderships));
    }

    fn subscribe(&mut self, from: ProcessId, to: ProcessId, incarnation: Incarnation, after: u64) {
        let after = Some(Ts(after));
        self.send(from, to, Wire::Subscribe { incarnation, directory: DIRECTORY, after });
    }

    /// A client that has nothing subscribes.
    fn begin(&mut self, client: ProcessId, to: ProcessId) {
        self.send(client, to, Wire::Subscribe { incarnation: 1, directory: DIRECTORY, after: None });
    }
}

fn route(messages: impl IntoIterator<Item = Message>) -> Wire {
    Wire::Route(messages.into_iter().map(Arc::new).collect())
}

fn write_at(client: ProcessId, sequence: u64, position: Position) -> Message {
    testing::write(client, 1, sequence, KeyRange::point(position))
}

fn three_storage() -> Config {
    let third = u64::MAX / 3;
    Config::new([(0, S1), (third, S2), (2 * third, S3)], 2).expect("a valid ring")
}

#[test]
fn a_write_goes_to_two_of_three_storage_processes() {
    let mut scenario = Scenario::new(three_storage(), Limits::default());
    scenario.leads(R1);
    scenario.subscribe(S1, R1, 1, 0);
    scenario.subscribe(S2, R1, 1, 0);
    scenario.subscribe(S3, R1, 1, 0);
    scenario.begin(C1, R1);
    scenario.agree(R1, &[R1, R2]);
    scenario.note("a write of range a, held by s1 and s2");
    scenario.send(C1, R1, route([write_at(C1, 1, 7)]));
    scenario.note(
        "while it is being agreed on, more comes and is gathered: a write and a read of the whole ring",
    );
    scenario.send(C1, R1, route([testing::truncate_table(C1, 1, 2), testing::read(C1, 1, 3, 0)]));
    scenario.send(C2, R1, route([write_at(C2, 1, u64::MAX)]));
    scenario.agree(R1, &[R1, R2]);
    scenario.agree(R1, &[R1, R2]);
    scenario.note("all storage processes are durable: the log can go");
    for storage in [S1, S2, S3] {
        let watermarks = Watermarks { durable: Ts(3), ..Watermarks::default() };
        scenario.send(storage, R1, Wire::Confirm(watermarks));
    }
    scenario.agree(R1, &[R1, R2]);
    insta::assert_snapshot!(scenario.trace);
}

#[test]
fn duplicates_are_suppressed_after_a_change_of_the_leader() {
    let mut scenario = Scenario::new(three_storage(), Limits::default());
    scenario.leads(R1);
    scenario.subscribe(S1, R1, 1, 0);
    scenario.send(C1, R1, route([write_at(C1, 1, 7), write_at(C1, 2, 7)]));
    scenario.note("r1 is cut off: what it proposed is agreed on, but only r2 learns it");
    scenario.agree(R1, &[R2]);
    scenario.input(R1, Input::Follower(Some(R2)));
    scenario.leads(R2);
    scenario.subscribe(S1, R2, 1, 0);
    scenario.note("c1 has no answer and sends again, with a new message");
    scenario.send(C1, R2, route([write_at(C1, 1, 7), write_at(C1, 2, 7), write_at(C1, 3, 7)]));
    scenario.agree(R2, &[R2]);
    scenario.note("r1 is back and learns; asked again, it names the leader");
    scenario.learn(R1);
    scenario.send(C1, R1, route([write_at(C1, 4, 7)]));
    insta::assert_snapshot!(scenario.trace);
}

#[test]
fn a_proposal_of_an_earlier_leadership_is_learned_in_the_next() {
    let mut scenario = Scenario::new(three_storage(), Limits::default());
    scenario.leads(R1);
    scenario.begin(C1, R1);
    scenario.agree(R1, &[R1]);
    scenario.send(C1, R1, route((1..=3).map(|sequence| write_at(C1, sequence, 7))));
    scenario.note("r1 is deposed, and leads again before anybody has learned what it proposed");
    let (_, proposed) = scenario.routers.get_mut(&R1).and_then(|r| r.proposed.take()).expect("a proposal");
    scenario.input(R1, Input::Follower(None));
    scenario.leads(R1);
    scenario.note(
        "c1 sends its window again: only the beginning has come when all of it turns out to be ordered",
    );
    scenario.send(C1, R1, route([write_at(C1, 1, 7)]));
    scenario.log.push(proposed);
    scenario.learn(R1);
    scenario.agree(R1, &[R1]);
    scenario.note("so c1 goes on behind that");
    scenario.send(C1, R1, route([write_at(C1, 4, 7)]));
    scenario.agree(R1, &[R1]);
    insta::assert_snapshot!(scenario.trace);
}

#[test]
fn a_leader_crashes_with_messages_in_every_state() {
    let mut scenario = Scenario::new(three_storage(), Limits::default());
    scenario.leads(R1);
    scenario.subscribe(S1, R1, 1, 0);
    scenario.subscribe(S2, R1, 1, 0);
    scenario.note("#1 is delivered, and c1 knows that it is ordered");
    scenario.send(C1, R1, route([write_at(C1, 1, 7)]));
    scenario.agree(R1, &[R1, R2]);
    scenario.note("#2 is agreed on, but r1 does not learn it any more; #3 waits in r1; #4 does not reach it");
    scenario.send(C1, R1, route([write_at(C1, 2, 7)]));
    scenario.send(C1, R1, route([write_at(C1, 3, 7)]));
    scenario.agree(R1, &[R2]);
    scenario.crash(R1);
    scenario.leads(R2);
    scenario.note("s1 has received #1, and the delivery to s2 was lost");
    scenario.subscribe(S1, R2, 1, 1);
    scenario.subscribe(S2, R2, 1, 0);
    scenario.note("c1 sends what it does not know to be ordered");
    scenario.send(C1, R2, route((2..=4).map(|sequence| write_at(C1, sequence, 7))));
    scenario.note("r2 crashes before its proposal is agreed on; r1 has learned what was");
    scenario.crash(R2);
    scenario.learn(R1);
    scenario.leads(R1);
    scenario.subscribe(S1, R1, 1, 2);
    scenario.subscribe(S2, R1, 1, 2);
    scenario.send(C1, R1, route((2..=4).map(|sequence| write_at(C1, sequence, 7))));
    scenario.agree(R1, &[R1]);
    insta::assert_snapshot!(scenario.trace);
}

#[test]
fn a_suspected_client_that_subscribes_again_is_told() {
    let mut scenario = Scenario::new(three_storage(), Limits::default());
    scenario.leads(R1);
    scenario.begin(C1, R1);
    scenario.agree(R1, &[R1]);
    let suspicion = Configuration::Membership(Membership::Suspect { process: C1, incarnation: 1 });
    scenario.send(C2, R1, route([testing::configuration(C2, 1, 1, suspicion)]));
    scenario.agree(R1, &[R1]);
    scenario.trace.clear();
    scenario.begin(C1, R1);
    assert!(scenario.trace.contains("r1 -> c1 state ts=1"), "{}", scenario.trace);
}

#[test]
fn a_storage_process_is_suspected_falsely() {
    let mut scenario = Scenario::new(three_storage(), Limits::default());
    scenario.leads(R1);
    [S1, S2, S3].into_iter().for_each(|storage| scenario.subscribe(storage, R1, 1, 0));
    scenario.note("s2 lives, but c2 suspects it: it hears of that, and of nothing that is ordered behind it");
    let membership = Membership::Suspect { process: S2, incarnation: 1 };
    let suspicion = testing::configuration(C2, 1, 1, Configuration::Membership(membership));
    scenario.send(C2, R1, route([suspicion]));
    scenario.agree(R1, &[R1]);
    scenario.note("its ranges have one live holder each; reads and writes go there");
    scenario.send(
        C1,
        R1,
        route([write_at(C1, 1, 7), testing::read(C1, 1, 2, 0), testing::read(C1, 1, 3, 1)]),
    );
    scenario.agree(R1, &[R1]);
    scenario.note("the log need not wait for it");
    for storage in [S1, S3] {
        let watermarks = Watermarks { durable: Ts(3), ..Watermarks::default() };
        scenario.send(storage, R1, Wire::Confirm(watermarks));
    }
    scenario.note("when it subscribes again, there is nothing for it");
    scenario.subscribe(S2, R1, 1, 0);
    insta::assert_snapshot!(scenario.trace);
}

#[test]
fn a_gap_is_not_learned() {
    let mut scenario = Scenario::new(three_storage(), Limits::default());
    scenario.leads(R1);
    scenario.send(C1, R1, route([write_at(C1, 1, 7)]));
    scenario.note("#2 is lost on the way");
    scenario.send(C1, R1, route([write_at(C1, 3, 7), write_at(C1, 4, 7)]));
    scenario.send(C1, R1, route([write_at(C1, 2, 7), write_at(C1, 3, 7), write_at(C1, 4, 7)]));
    scenario.agree(R1, &[R1]);
    scenario.agree(R1, &[R1]);
    scenario.note("a new incarnation begins with 1, and the old one is over");
    scenario.send(C1, R1, route([testing::write(C1, 2, 1, KeyRange::point(7))]));
    scenario.send(C1, R1, route([write_at(C1, 5, 7)]));
    scenario.agree(R1, &[R1]);
    insta::assert_snapshot!(scenario.trace);
}

#[test]
fn a_restarted_storage_process_continues_its_stream() {
    // A window of one message: older ones come from the log.
    let limits = Limits { window_bytes: 1, ..Limits::default() };
    let mut scenario = Scenario::new(three_storage(), limits);
    scenario.leads(R1);
    scenario.subscribe(S1, R1, 1, 0);
    scenario.send(C1, R1, route((1..=4).map(|sequence| write_at(C1, sequence, 7))));
    scenario.agree(R1, &[R1]);
    scenario.note("s1 restarts from a checkpoint at 2");
    scenario.subscribe(S1, R1, 2, 2);
    scenario.agree(R1, &[R1]);
    scenario.note("a late subscription of its earlier life has no effect");
    scenario.subscribe(S1, R1, 1, 4);
    scenario.send(C1, R1, route([write_at(C1, 5, 7)]));
    scenario.agree(R1, &[R1]);
    scenario.note("s3 does not hold range a: only the frontier moves");
    scenario.subscribe(S3, R1, 1, 4);
    insta::assert_snapshot!(scenario.trace);
}

#[test]
fn a_storage_process_that_has_lost_its_directory_is_told() {
    let mut scenario = Scenario::new(three_storage(), Limits::default());
    scenario.leads(R1);
    scenario.subscribe(S1, R1, 3, 0);
    scenario.note("the next leader knows, too");
    scenario.agree(R1, &[R1, R2]);
    scenario.leads(R2);
    scenario.note(
        "s1 has lost its directory; also when it has been started again so often that its count has passed",
    );
    let subscribe = |incarnation| Wire::Subscribe { incarnation, directory: 9, after: Some(Ts::ZERO) };
    for incarnation in [1, 3] {
        scenario.send(S1, R2, subscribe(incarnation));
    }
    scenario.send(S1, R2, subscribe(4));
    scenario.agree(R2, &[R2]);
    scenario.note("nor can it ask for a place before it counts on");
    let join = |incarnation| {
        let join = Membership::Join { process: S1, incarnation, address: None };
        testing::configuration(S1, incarnation, 1, Configuration::Membership(join))
    };
    scenario.send(S1, R2, route([join(2)]));
    scenario.note("it joins without data");
    scenario.send(S1, R2, route([join(5)]));
    scenario.agree(R2, &[R2]);
    scenario.send(S1, R2, Wire::Subscribe { incarnation: 5, directory: 9, after: None });
    scenario.agree(R2, &[R2]);
    scenario.note("the next life goes on from there");
    scenario.send(S1, R2, subscribe(6));
    scenario.agree(R2, &[R2]);
    insta::assert_snapshot!(scenario.trace);
}

#[test]
fn a_subscriber_that_is_ahead_shows_a_deposed_leader_or_a_lost_log() {
    let mut scenario = Scenario::new(three_storage(), Limits::default());
    scenario.leads(R1);
    scenario.send(C1, R1, route([write_at(C1, 1, 7)]));
    scenario.agree(R1, &[R1, R2]);
    scenario.note("r2 has been elected, but r1 does not know: it cannot get anything agreed on");
    scenario.leads(R2);
    scenario.send(C1, R2, route([write_at(C1, 2, 7)]));
    scenario.agree(R2, &[R2]);
    scenario.subscribe(S1, R1, 1, 2);
    scenario.input(R1, Input::Follower(Some(R2)));
    scenario.note("r2 has all that was ever agreed on: what s2 has more has been lost");
    scenario.subscribe(S2, R2, 1, 9);
    scenario.subscribe(S1, R2, 1, 2);
    scenario.agree(R2, &[R2]);
    scenario.note("a subscription that came after a proposal was made is not judged by it");
    scenario.send(C1, R2, route([write_at(C1, 3, 7)]));
    scenario.subscribe(S3, R2, 1, 4);
    scenario.send(C1, R2, route([write_at(C1, 4, 7)]));
    scenario.agree(R2, &[R2]);
    scenario.agree(R2, &[R2]);
    insta::assert_snapshot!(scenario.trace);
}

#[test]
fn snapshot_reads_ride_on_the_streams() {
    let mut scenario = Scenario::new(three_storage(), Limits::default());
    let read = |count| {
        let mut read = testing::read(C1, 1, 0, 0);
        read.id = MessageId::unordered(C1, 1, count);
        Arc::new(read)
    };
    scenario.leads(R1);
    scenario.subscribe(S1, R1, 1, 0);
    scenario.subscribe(S2, R1, 1, 0);
    scenario.send(C1, R1, route([write_at(C1, 1, 7)]));
    scenario.agree(R1, &[R1, R2]);
    scenario.note("s3 has no stream: a read of the whole ring that needs it cannot be answered");
    scenario.send(C1, R1, Wire::Read { messages: vec![read(1)], seen: Ts(1) });
    scenario.subscribe(S3, R1, 1, 0);
    scenario.note("a read gets the Ts of the last message without consensus; a write that is on its way comes behind it");
    scenario.send(C1, R1, route([write_at(C1, 2, 7)]));
    scenario.send(C1, R1, Wire::Read { messages: vec![read(2), read(3)], seen: Ts(1) });
    scenario.agree(R1, &[R1, R2]);
    scenario.note("r1 does not know yet that r2 has led: it would show c1 an earlier state than c1 has seen");
    scenario.send(C1, R1, Wire::Read { messages: vec![read(4)], seen: Ts(9) });
    insta::assert_snapshot!(scenario.trace);
}

#[test]
fn a_suspicion_waits_until_leases_have_run_out() {
    let mut scenario = Scenario::new(three_storage(), Limits::default());
    // With what they alone have.
    let suspect = |sequence, process| {
        let membership = Membership::Suspect { process, incarnation: u64::MAX };
        testing::configuration(C1, 1, sequence, Configuration::Membership(membership))
    };
    scenario.input(R1, Input::Tick(1_000));
    scenario.leads(R1);
    scenario.subscribe(S1, R1, 1, 0);
    scenario.subscribe(S2, R1, 1, 0);
    scenario.note("s3 has no stream and gets no lease");
    scenario.ask_lease(S3, R1, 7, 1_000, Some(1_000));
    scenario.input(R1, Input::Tick(5_000));
    scenario.note("nor does anybody while r1 does not know whether it still leads");
    scenario.ask_lease(S2, R1, 75, 5_000, None);
    scenario.ask_lease(S2, R1, 76, 5_000, Some(4_600));
    scenario.ask_lease(S2, R1, 77, 5_000, Some(4_601));
    scenario.note("nobody can have a lease of s3's: its suspicion is ordered at once");
    scenario.send(C1, R1, route([suspect(1, S3)]));
    scenario.agree(R1, &[R1, R2]);
    scenario.note("s2 has a lease: its suspicion waits, and what its submitter sends later waits behind it");
    scenario.input(R1, Input::Tick(5_400));
    scenario.send(C1, R1, route([suspect(2, S2), write_at(C1, 3, 7)]));
    scenario.send(C1, R1, route([write_at(C1, 3, 7), write_at(C1, 4, 7)]));
    scenario.ask_lease(S2, R1, 88, 5_400, Some(5_400));
    scenario.note("s1 is none of this");
    scenario.ask_lease(S1, R1, 99, 5_400, Some(5_400));
    scenario.input(R1, Input::Tick(5_999));
    scenario.note("the lease has run out");
    scenario.input(R1, Input::Tick(6_000));
    scenario.note("the suspicion is on its way, and the config does not know it yet: still no lease for s2");
    scenario.ask_lease(S2, R1, 89, 6_000, Some(6_000));
    scenario.agree(R1, &[R1, R2]);
    scenario.note("r2 leads now and does not know which leases r1 has granted");
    scenario.input(R2, Input::Tick(100));
    scenario.leads(R2);
    scenario.send(
        C2,
        R2,
        route([testing::configuration(
            C2,
            1,
            1,
            Configuration::Membership(Membership::Suspect { process: S1, incarnation: 1 }),
        )]),
    );
    scenario.input(R2, Input::Tick(1_099));
    scenario.note("now they have run out");
    scenario.input(R2, Input::Tick(1_100));
    scenario.agree(R2, &[R2]);
    insta::assert_snapshot!(scenario.trace);
}

#[test]
fn a_suspicion_waits_for_leases_of_lives_that_its_submitter_has_not_heard_of() {
    let mut scenario = Scenario::new(three_storage(), Limits::default());
    scenario.input(R1, Input::Tick(1_000));
    scenario.leads(R1);
    // With its data, so that the config knows an earlier life.
    scenario.subscribe(S1, R1, 5, 0);
    scenario.agree(R1, &[R1]);
    scenario.input(R1, Input::Tick(5_000));
    scenario.ask_lease_as(5, S1, R1, 77, 5_000, Some(5_000));
    assert!(scenario.trace.contains("Lease { incarnation: 5, asked_ms: 77 }"), "{}", scenario.trace);
    let membership = Membership::Suspect { process: S1, incarnation: 4 };
    scenario.send(C1, R1, route([testing::configuration(C1, 1, 1, Configuration::Membership(membership))]));
    scenario.ask_lease_as(5, S1, R1, 78, 5_500, Some(5_500));
    assert!(
        !scenario.trace.contains("r1 -> s1 Lease { incarnation: 5, asked_ms: 78 }"),
        "{}",
        scenario.trace
    );
    scenario.input(R1, Input::Tick(5_999));
    assert!(scenario.routers[&R1].proposed.is_none(), "{}", scenario.trace);
    scenario.input(R1, Input::Tick(6_000));
    assert!(scenario.routers[&R1].proposed.is_some(), "{}", scenario.trace);
}

#[test]
fn who_joins_again_waits_until_leases_of_earlier_lives_have_run_out() {
    let mut scenario = Scenario::new(three_storage(), Limits::default());
    let join = |process, incarnation| {
        let membership = Membership::Join { process, incarnation, address: None };
        testing::configuration(process, incarnation, 1, Configuration::Membership(membership))
    };
    scenario.input(R1, Input::Tick(1_000));
    scenario.leads(R1);
    scenario.subscribe(S2, R1, 1, 0);
    scenario.subscribe(S1, R1, 1, 0);
    scenario.input(R1, Input::Tick(5_000));
    scenario.ask_lease(S1, R1, 77, 5_000, Some(5_000));
    scenario.note("s1 has lost its directory and begins elsewhere, and whoever has it may live");
    scenario.send(S1, R1, Wire::Subscribe { incarnation: 2, directory: 9, after: None });
    scenario.agree(R1, &[R1]);
    scenario.send(S1, R1, route([join(S1, 2)]));
    scenario.note("its earlier life has had its last lease");
    scenario.ask_lease(S1, R1, 90, 5_100, Some(5_100));
    assert!(
        !scenario.trace.contains("r1 -> s1 Lease { incarnation: 1, asked_ms: 90 }"),
        "{}",
        scenario.trace
    );
    scenario.input(R1, Input::Tick(5_999));
    scenario.note("that has run out");
    scenario.input(R1, Input::Tick(6_000));
    scenario.agree(R1, &[R1]);
    scenario.note("who has not been there before need not wait");
    scenario.input(R1, Input::Tick(6_100));
    scenario.send(S9, R1, route([join(S9, 1)]));
    insta::assert_snapshot!(scenario.trace);
}

#[test]
fn whose_lives_end_with_a_message_is_asked_when_all_before_it_that_may_change_the_config_is_ordered() {
    let mut scenario = Scenario::new(three_storage(), Limits::default());
    let membership = |from, sequence, membership| {
        testing::configuration(from, 1, sequence, Configuration::Membership(membership))
    };
    let joins = |process| membership(process, 1, Membership::Join { process, incarnation: 1, address: None });
    let suspects = |from, sequence, process| {
        membership(from, sequence, Membership::Suspect { process, incarnation: Incarnation::MAX })
    };
    scenario.input(R1, Input::Tick(1_000));
    scenario.leads(R1);
    scenario.subscribe(S2, R1, 1, 0);
    scenario.input(R1, Input::Tick(5_000));
    scenario.ask_lease(S2, R1, 77, 5_000, Some(5_000));
    scenario.note("who joins for the first time waits for nothing");
    for process in [S9, ProcessId::storage(8)] {
        scenario.send(process, R1, route([joins(process)]));
    }
    scenario.note("they may change what a suspicion does, be there leases or not");
    scenario.send(S1, R1, route([suspects(S1, 1, S3)]));
    scenario.send(S9, R1, route([suspects(S9, 2, S2)]));
    scenario.agree(R1, &[R1]);
    scenario.note("and so may a suspicion");
    scenario.agree(R1, &[R1]);
    scenario.agree(R1, &[R1]);
    scenario.note("that of s2 waits for its lease");
    scenario.input(R1, Input::Tick(5_999));
    scenario.input(R1, Input::Tick(6_000));
    insta::assert_snapshot!(scenario.trace);
}

#[test]
fn a_client_begins_with_the_state_or_misses_nothing() {
    // A window of one message: older ones come from the log.
    let limits = Limits { window_bytes: 1, ..Limits::default() };
    let mut scenario = Scenario::new(three_storage(), limits);
    scenario.note("before there is a leader, requests wait");
    scenario.begin(C1, R1);
    scenario.leads(R1);
    scenario.agree(R1, &[R1, R2]);
    scenario.send(C1, R1, route([write_at(C1, 1, 7)]));
    scenario.agree(R1, &[R1, R2]);
    scenario.note("c2 is new: it gets the state as of 1");
    scenario.begin(C2, R1);
    scenario.agree(R1, &[R1, R2]);
    scenario.note("r1 steps down; c1 continues from where it began, c2 has seen nothing and begins anew");
    scenario.input(R1, Input::Follower(Some(R2)));
    scenario.leads(R2);
    scenario.subscribe(C1, R2, 1, 0);
    scenario.begin(C2, R2);
    scenario.note("the log is cut past what c1 has: it must begin anew, although it once began at 0");
    scenario.send(C2, R2, route([write_at(C2, 1, 7)]));
    scenario.agree(R2, &[R2]);
    scenario.purged = Some(Ts(1));
    scenario.subscribe(C1, R2, 1, 0);
    scenario.begin(C1, R2);
    insta::assert_snapshot!(scenario.trace);
}
