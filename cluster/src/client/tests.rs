//! The client process against routers and storage processes that say what the test wants.

use std::{collections::BTreeSet, sync::Arc};

use arrow::{
    array::{ArrayRef, Int64Array},
    record_batch::RecordBatch,
};
use carousel_engine::{
    Few, SqlError, SqlState, TableId, Ts, aggregate::Group, operation::PayloadId, position::KeyRange,
    statistics::TableStatistics,
};

use super::{
    Failure, OperationState, Part, Request,
    core::{Core, CoreOptions, Effect, Event},
};
use crate::{
    catalog::Catalog,
    config::{Change, Config, Configuration, Membership},
    message::{
        Body, Ddl, Incarnation, Message, MessageId, ProcessId, ReadIsolation, StagedPart, StagedPayload,
    },
    router::testing,
    wire::{Answer, AnswerPart, Delivery, Wire},
};

const C1: ProcessId = ProcessId::client(1);
const R1: ProcessId = ProcessId::router(1);

/// One client process, by default with one router.
struct Scene {
    core: Core,
    config: Arc<Config>,
    now_ms: u64,
    submissions: u64,
}

impl Scene {
    fn new() -> Scene {
        Scene::with(Config::evenly(2, 1).expect("a ring"))
    }

    fn with(config: Config) -> Scene {
        let config = Arc::new(config);
        let options =
            CoreOptions { id: C1, incarnation: 1, directory: 1, routers: vec![R1], config: config.clone() };
        Scene { core: Core::new(options), config, now_ms: 0, submissions: 0 }
    }

    /// A client with an open subscription after `ts`.
    fn subscribed(ts: u64) -> Scene {
        let mut scene = Scene::new();
        assert_eq!(scene.subscription(), Some(None));
        scene.state(ts, true);
        scene.core.take_effects();
        scene
    }

    fn receive(&mut self, from: ProcessId, wire: Wire) {
        self.core.handle(Event::Received { from, wire });
    }

    fn state(&mut self, ts: u64, with_catalog: bool) {
        self.state_under(1, ts, with_catalog);
    }

    fn state_under(&mut self, leadership: u64, ts: u64, with_catalog: bool) {
        let catalog = with_catalog.then(|| Arc::new(Catalog::default()));
        let (config, clients) = (self.config.clone(), [(C1, None)].into());
        let (incarnation, ts, present) = (1, Ts(ts), None);
        self.receive(R1, Wire::State { incarnation, ts, config, clients, catalog, present, leadership });
    }

    fn deliver(&mut self, after: u64, frontier: u64) {
        let (after, frontier) = (Ts(after), Ts(frontier));
        self.receive(R1, Wire::Deliver { incarnation: 1, after, deliveries: Vec::new(), frontier });
    }

    fn ordered(&mut self, sequence: u64) {
        self.receive(R1, Wire::Ordered { incarnation: 1, sequence, ts: Ts(sequence) });
    }

    fn submit(&mut self, body: Body) -> u64 {
        self.submit_as(body, ReadIsolation::Sequential)
    }

    fn submit_as(&mut self, body: Body, isolation: ReadIsolation) -> u64 {
        self.submissions += 1;
        let ranges = match &body {
            Body::Data(_) => vec![KeyRange::FULL],
            _ => Vec::new(),
        };
        let request = Request { tables: Default::default(), ranges: ranges.into(), body };
        self.core.handle(Event::Submit { submission: self.submissions, request, isolation });
        self.submissions
    }

    fn pass(&mut self, milliseconds: u64) {
        self.now_ms += milliseconds;
        self.core.handle(Event::Tick(self.now_ms));
    }

    /// What the client subscribes after now, if it does.
    fn subscription(&mut self) -> Option<Option<Ts>> {
        self.core.take_effects().into_iter().find_map(|effect| match effect {
            Effect::Send(R1, Wire::Subscribe { after, .. }) => Some(after),
            _ => None,
        })
    }

    /// Sequence numbers of the messages that the client routes now.
    fn routed(&mut self) -> Vec<u64> {
        let routed = self.core.take_effects().into_iter().filter_map(|effect| match effect {
            Effect::Send(R1, Wire::Route(messages)) => Some(messages),
            _ => None,
        });
        routed.flatten().map(|message| message.id.sequence).collect()
    }

    /// Snapshot reads that the client sends now, with what it says to have seen.
    fn reads(&mut self) -> Vec<(MessageId, Ts)> {
        let reads = self.core.take_effects().into_iter().filter_map(|effect| match effect {
            Effect::Send(R1, Wire::Read { messages, seen }) => Some((messages, seen)),
            _ => None,
        });
        let ids = |(messages, seen): (Vec<Arc<Message>>, Ts)| {
            messages.into_iter().map(move |message| (message.id, seen)).collect::<Vec<_>>()
        };
        reads.flat_map(ids).collect()
    }

    /// Basic reads that the client sends now, with what it says to have seen.
    fn basic_reads(&mut self) -> Vec<(MessageId, Ts)> {
        let reads = self.core.take_effects().into_iter().filter_map(|effect| match effect {
            Effect::Send(_, Wire::BasicRead { reads, seen, .. }) => Some((reads, seen)),
            _ => None,
        });
        let ids = |(reads, seen): (Vec<(Arc<Message>, _)>, Ts)| {
            reads.into_iter().map(move |(message, _)| (message.id, seen)).collect::<Vec<_>>()
        };
        reads.flat_map(ids).collect()
    }

    /// A storage process answers for its half of the ring.
    fn answer(&mut self, from: ProcessId, id: MessageId, ts: u64) {
        let outcomes = self.config.held(from).into_iter().map(|range| (range, Ok(1))).collect();
        let answer = Answer { id, ts: Ts(ts), part: AnswerPart::Done { outcomes, more: false } };
        self.receive(from, Wire::Answers(vec![answer]));
    }

    /// Whom the client tells such a thing now.
    fn told(&mut self, is_it: impl Fn(&Wire) -> bool) -> Vec<ProcessId> {
        let told = self.core.take_effects().into_iter().filter_map(|effect| match effect {
            Effect::Send(process, wire) if is_it(&wire) => Some(process),
            _ => None,
        });
        told.collect()
    }

    /// What submissions hear now.
    fn parts(&mut self) -> Vec<(u64, Result<Part, Failure>)> {
        let parts = self.core.take_effects().into_iter().filter_map(|effect| match effect {
            Effect::Rows(submission, _, batch) => Some((submission, Ok(Part::Rows(batch)))),
            Effect::Part(submission, part) => Some((submission, part)),
            _ => None,
        });
        parts.collect()
    }
}

fn write() -> Body {
    testing::truncate_table(C1, 1, 1).body
}

#[test]
fn writes_are_refused_while_the_routers_have_no_room() {
    let write = || testing::write(C1, 1, 1, KeyRange::FULL).body;
    let refused = |scene: &mut Scene, submission: u64| {
        scene.core.take_effects().into_iter().any(|effect| {
            matches!(effect, Effect::Part(found, Err(Failure::Sql(error)))
                if found == submission && error.code == SqlState::DISK_FULL)
        })
    };
    let mut scene = Scene::subscribed(3);
    // Another router's word means nothing.
    scene.receive(ProcessId::router(2), Wire::Room { has_room: false });
    scene.submit(write());
    assert_eq!(scene.routed(), [1]);
    scene.receive(R1, Wire::Room { has_room: false });
    let late = scene.submit(write());
    assert!(refused(&mut scene, late));
    scene.submit(testing::read(C1, 1, 1, 0).body);
    scene.submit(Body::Checkpoint);
    assert_eq!(scene.routed(), [2, 3]);
    scene.receive(R1, Wire::Room { has_room: true });
    scene.submit(write());
    assert_eq!(scene.routed(), [4]);
    // The next leader has to say so itself. The same one need not say it again because it is subscribed to again, as happens
    // when there is nothing to tell.
    for (leadership, is_refused) in [(2, false), (2, true)] {
        scene.receive(R1, Wire::Room { has_room: false });
        let late = scene.submit(write());
        assert!(refused(&mut scene, late));
        scene.receive(R1, Wire::Lost);
        scene.subscription();
        scene.state_under(leadership, 3, false);
        let late = scene.submit(write());
        assert_eq!(refused(&mut scene, late), is_refused);
    }
    // That there is room again may have been lost.
    scene.pass(3_999);
    let late = scene.submit(write());
    assert!(refused(&mut scene, late));
    scene.pass(1);
    let late = scene.submit(write());
    assert!(!refused(&mut scene, late));
}

#[test]
fn rows_that_were_staged_for_a_write_that_is_refused_are_abandoned() {
    let mut scene = Scene::subscribed(3);
    scene.receive(R1, Wire::Room { has_room: false });
    let holders: Vec<ProcessId> = [1, 2].map(ProcessId::storage).into();
    let part = StagedPart { range: KeyRange::FULL, holders: holders.clone(), checksums: Vec::new() };
    let id = PayloadId { process: 1, incarnation: 1, sequence: 1 };
    let staged = StagedPayload { id, config_version: 0, latest: Ts(100), parts: vec![part] };
    let mut body = testing::write(C1, 1, 1, KeyRange::FULL).body;
    if let Body::Data(data) = &mut body {
        data.staged = Some(Box::new(staged));
    }
    let abandoned =
        |scene: &mut Scene| scene.told(|wire| matches!(wire, Wire::Abandon(abandoned) if *abandoned == id));
    scene.submit(body.clone());
    assert_eq!(abandoned(&mut scene), holders);
    // One that turns out to be planned against another ring: not all of these need have it.
    scene.receive(R1, Wire::Room { has_room: true });
    scene.submit(body);
    assert_eq!(scene.routed(), [1]);
    let stale = Answer {
        id: MessageId { submitter: C1, incarnation: 1, sequence: 1 },
        ts: Ts(4),
        part: AnswerPart::Stale,
    };
    scene.receive(holders[0], Wire::Answers(vec![stale]));
    assert_eq!(abandoned(&mut scene), holders);
}

#[test]
fn rows_that_have_been_handed_out_have_been_seen() {
    let s1 = ProcessId::storage(1);
    let mut scene = Scene::subscribed(0);
    let submission = scene.submit(testing::read(C1, 1, 0, 0).body);
    assert_eq!(scene.routed(), [1]);
    let id = MessageId { submitter: C1, incarnation: 1, sequence: 1 };
    rows(&mut scene, s1, id, 7, 200_000);
    assert!(matches!(&scene.parts()[..], [(_, Ok(Part::Rows(_)))]), "it is too long to be held back");
    scene.core.handle(Event::Cancel { submission });
    scene.submit_as(testing::read(C1, 1, 0, 0).body, ReadIsolation::Basic);
    let seen: Vec<Ts> = scene.basic_reads().into_iter().map(|(_, seen)| seen).collect();
    assert!(!seen.is_empty() && seen.iter().all(|seen| *seen == Ts(7)), "{seen:?}");
}

/// What a statement was planned by, whoever made it: who does not know that catalog yet would take the statement for a stale one.
#[test]
fn reads_wait_for_the_catalog_that_they_were_planned_by() {
    let mut scene = Scene::subscribed(0);
    let ddl = Body::Ddl(Ddl::DropTables { names: vec!["t".into()], if_exists: true });
    let id = MessageId { submitter: ProcessId::client(2), incarnation: 1, sequence: 1 };
    let message = Arc::new(Message { id, tables: Few::default(), ranges: Few::default(), body: ddl });
    let delivery = Delivery { ts: Ts(9), message, ranges: Few::default(), config_version: 1 };
    let deliver =
        Wire::Deliver { incarnation: 1, after: Ts::ZERO, deliveries: vec![delivery], frontier: Ts(9) };
    scene.receive(R1, deliver);
    scene.submit_as(testing::read(C1, 1, 0, 0).body, ReadIsolation::Basic);
    scene.submit_as(testing::read(C1, 1, 0, 0).body, ReadIsolation::Snapshot);
    let effects = scene.core.take_effects();
    let seen = effects.iter().filter_map(|effect| match effect {
        Effect::Send(_, Wire::Read { seen, .. } | Wire::BasicRead { seen, .. }) => Some(*seen),
        _ => None,
    });
    let seen: Vec<Ts> = seen.collect();
    assert!(seen.len() > 1 && seen.iter().all(|seen| *seen == Ts(9)), "{seen:?}");
}

#[test]
fn long_messages_travel_apart() {
    let mut scene = Scene::subscribed(3);
    // Sixteen bytes each.
    let ranges: Few<KeyRange> = (0..1 << 18).map(|n| KeyRange::point(2 * n)).collect();
    let body = testing::read(C1, 1, 1, 0).body;
    for submission in 1..=6 {
        let request = Request { tables: Few::default(), ranges: ranges.clone(), body: body.clone() };
        let isolation = ReadIsolation::Sequential;
        scene.core.handle(Event::Submit { submission, request, isolation });
    }
    let routes = scene.core.take_effects().into_iter().filter_map(|effect| match effect {
        Effect::Send(R1, Wire::Route(messages)) => Some(messages.len()),
        _ => None,
    });
    assert_eq!(routes.collect::<Vec<_>>(), [4, 2]);
}

#[test]
fn what_takes_long_to_be_ordered_is_sent_again_less_and_less_often() {
    let mut scene = Scene::subscribed(3);
    let body = testing::read(C1, 1, 1, 0).body;
    scene.submit(body.clone());
    let mut sent_ms = Vec::new();
    let mut passes = |scene: &mut Scene, seconds: u64| {
        for _ in 0..seconds * 10 {
            if !scene.routed().is_empty() {
                sent_ms.push(scene.now_ms);
            }
            scene.pass(100);
            scene.deliver(3, 3);
        }
        std::mem::take(&mut sent_ms)
    };
    assert_eq!(passes(&mut scene, 50), [0, 2_100, 6_100, 14_100, 30_100, 46_100]);
    scene.ordered(1);
    scene.submit(body);
    assert_eq!(passes(&mut scene, 5), [50_000, 52_100], "another one is the oldest");
}

/// Nor what takes long to arrive, while the leader has nothing to say and is asked again and again.
#[test]
fn what_the_same_leader_has_been_sent_is_not_sent_to_it_again_with_each_subscription() {
    let mut scene = Scene::subscribed(3);
    scene.submit(testing::read(C1, 1, 1, 0).body);
    let mut sent_ms = Vec::new();
    let mut subscriptions = 0;
    for _ in 0..200 {
        let (mut sent, mut asks) = (false, false);
        for effect in scene.core.take_effects() {
            sent |= matches!(effect, Effect::Send(R1, Wire::Route(_)));
            asks |= matches!(effect, Effect::Send(R1, Wire::Subscribe { .. }));
        }
        if sent {
            sent_ms.push(scene.now_ms);
        }
        if asks {
            subscriptions += 1;
            scene.state(3, false);
        }
        scene.pass(100);
    }
    assert_eq!(sent_ms, [0, 2_100, 6_100, 14_100]);
    assert!(subscriptions > 10, "{subscriptions}");
    let again = |scene: &mut Scene| {
        scene.core.take_effects();
        scene.state(3, false);
        scene.routed()
    };
    scene.receive(R1, Wire::NotLeader { leader: None });
    scene.pass(200);
    assert_eq!(again(&mut scene), [1], "it may have thrown it away");
    scene.receive(R1, Wire::Lost);
    assert_eq!(again(&mut scene), [1], "it may not have come");
    scene.pass(1_000);
    assert_eq!(again(&mut scene), [0; 0]);
    scene.pass(1_000);
    scene.core.take_effects();
    scene.state_under(2, 3, false);
    assert_eq!(scene.routed(), [1], "it may not know it");
}

#[test]
fn a_client_that_is_refused_begins_anew() {
    let mut scene = Scene::subscribed(0);
    let change = scene.submit(Body::Ddl(Ddl::DropTables { names: vec!["t".into()], if_exists: true }));
    assert_eq!(scene.routed(), [1]);
    // The router was restarted, and its log cut past what the client has.
    scene.pass(1_000);
    assert_eq!(scene.subscription(), Some(Some(Ts(0))));
    scene.receive(R1, Wire::SubscribeRefused { incarnation: 1, purged: Ts(5), removed: false });
    let parts = scene.parts();
    assert!(
        matches!(&parts[..], [(submission, Err(Failure::Sql(error)))]
            if *submission == change && error.code == SqlState::OUTCOME_UNKNOWN),
        "{parts:?}"
    );
    scene.pass(500);
    assert_eq!(scene.subscription(), Some(None), "the same question would get the same answer");
    // The state that came before the refusal, which travels on another lane, opens nothing.
    scene.state(0, false);
    scene.deliver(0, 3);
    assert_eq!(scene.routed(), [0; 0]);
    scene.state(7, true);
    assert_eq!(scene.core.view().frontier, Ts(7));
    assert_eq!(scene.routed(), [1]);
    scene.deliver(7, 8);
    assert_eq!(scene.core.view().frontier, Ts(8));
}

/// Two subscriptions may be on their way for long, and be answered one behind the other.
#[test]
fn an_answer_to_the_first_subscription_does_not_hide_what_has_come_of_a_change() {
    let mut scene = Scene::subscribed(0);
    let ddl = Ddl::DropTables { names: vec!["t".into()], if_exists: true };
    let change = scene.submit(Body::Ddl(ddl.clone()));
    assert_eq!(scene.routed(), [1]);
    scene.receive(R1, Wire::Lost);
    assert_eq!(scene.subscription(), Some(Some(Ts(0))));
    // There is nobody here who has asked for a catalog since.
    scene.state(9, true);
    assert_eq!(scene.core.view().frontier, Ts(0));
    scene.state(0, false);
    let id = MessageId { submitter: C1, incarnation: 1, sequence: 1 };
    let message =
        Arc::new(Message { id, tables: Few::default(), ranges: Few::default(), body: Body::Ddl(ddl) });
    let delivery = Delivery { ts: Ts(5), message, ranges: Few::default(), config_version: 1 };
    let (after, frontier) = (Ts(0), Ts(9));
    scene.receive(R1, Wire::Deliver { incarnation: 1, after, deliveries: vec![delivery], frontier });
    let parts = scene.parts();
    assert!(matches!(parts[..], [(ended, Ok(Part::Ddl { .. }))] if ended == change), "{parts:?}");
    // When nothing is open, it may as well go on from there.
    scene.state(12, true);
    assert_eq!(scene.core.view().frontier, Ts(12));
}

#[test]
fn only_its_own_stream_tells_a_client_that_it_is_subscribed() {
    let mut scene = Scene::subscribed(0);
    for sequence in 1..=20 {
        // A router that has been restarted orders what it is sent, but it has not heard of the subscription.
        scene.submit(write());
        scene.ordered(sequence);
        scene.pass(100);
        if let Some(after) = scene.subscription() {
            assert_eq!(after, Some(Ts(0)));
            return;
        }
    }
    panic!("it does not subscribe again");
}

#[test]
fn what_is_not_known_to_be_ordered_is_sent_again() {
    let mut scene = Scene::subscribed(0);
    scene.submit(write());
    scene.submit(write());
    assert_eq!(scene.routed(), [1, 2]);
    scene.ordered(1);
    // The word that the second was ordered is lost; the stream goes on, for there are other clients.
    let mut again = Vec::new();
    for ts in 1..=40 {
        scene.pass(100);
        scene.deliver(ts - 1, ts);
        again.extend(scene.routed());
    }
    assert_eq!(again, [2]);
}

#[test]
fn snapshot_reads_that_are_lost_are_sent_again_under_another_identity() {
    let (s1, s2) = (ProcessId::storage(1), ProcessId::storage(2));
    let mut scene = Scene::subscribed(0);
    let read = scene.submit_as(testing::read(C1, 1, 0, 0).body, ReadIsolation::Snapshot);
    let [(first, Ts(0))] = scene.reads()[..] else { panic!("one read is sent") };
    assert!(!first.is_ordered());
    scene.answer(s1, first, 5);
    scene.receive(R1, Wire::ReadsLost(vec![first]));
    assert_eq!(scene.reads(), [], "what is missing needs time to come back");
    scene.pass(100);
    let [(second, Ts(5))] = scene.reads()[..] else { panic!("it is sent again, and must not go backwards") };
    assert_ne!(first, second);
    // An answer to the first would mix two states.
    scene.answer(s2, first, 5);
    assert!(scene.parts().is_empty());
    // Another leader does not know what was sent to the one before it.
    scene.state_under(2, 6, false);
    scene.pass(100);
    let [(third, Ts(5))] = scene.reads()[..] else { panic!("it is sent again") };
    assert!(third != first && third != second);
    scene.answer(s1, third, 7);
    scene.answer(s2, third, 7);
    let parts = scene.parts();
    assert!(
        matches!(parts[..], [(submission, Ok(Part::Done { ts: Ts(7), rows: 2 }))] if submission == read),
        "{parts:?}"
    );
    // The same leader again: nothing is lost.
    scene.submit_as(testing::read(C1, 1, 0, 0).body, ReadIsolation::Snapshot);
    assert_eq!(scene.reads().len(), 1);
    scene.state_under(2, 7, false);
    scene.pass(100);
    assert_eq!(scene.reads(), []);
}

#[test]
fn basic_reads_go_straight_to_their_destinations() {
    let (s1, s2) = (ProcessId::storage(1), ProcessId::storage(2));
    let mut scene = Scene::subscribed(0);
    let read = scene.submit_as(testing::read(C1, 1, 0, 0).body, ReadIsolation::Basic);
    let [(first, Ts(0)), (same, Ts(0))] = scene.basic_reads()[..] else { panic!("each half is asked") };
    assert!(first == same && !first.is_ordered());
    scene.answer(s1, first, 5);
    // The other has no lease, or another config; what the first has answered is not mixed with a later answer.
    scene.receive(s2, Wire::ReadsLost(vec![first]));
    assert_eq!(scene.basic_reads(), [], "what is missing needs time to come back");
    // Another leader makes no difference.
    scene.state_under(2, 6, false);
    scene.pass(100);
    let [(second, Ts(5)), (_, Ts(5))] = scene.basic_reads()[..] else { panic!("both are asked again") };
    assert_ne!(first, second);
    scene.answer(s1, second, 5);
    scene.answer(s2, second, 7);
    let parts = scene.parts();
    assert!(
        matches!(parts[..], [(submission, Ok(Part::Done { rows: 2, .. }))] if submission == read),
        "{parts:?}"
    );
    // A write is none, whatever the session says.
    scene.submit_as(testing::write(C1, 1, 0, KeyRange::FULL).body, ReadIsolation::Basic);
    assert_eq!(scene.routed().len(), 1);
}

impl Scene {
    /// A configuration message is delivered at `ts`.
    fn configure(&mut self, submitter: ProcessId, sequence: u64, ts: u64, configuration: Configuration) {
        let message = Arc::new(testing::configuration(submitter, 1, sequence, configuration));
        let config_version = self.config.version();
        let delivery = Delivery { ts: Ts(ts), message, ranges: Default::default(), config_version };
        let (after, frontier) = (Ts(ts - 1), Ts(ts));
        self.receive(R1, Wire::Deliver { incarnation: 1, after, deliveries: vec![delivery], frontier });
    }

    /// A submission has ended, and nobody knows what came of it.
    fn check_unknown(&mut self, submission: u64) {
        let is_unknown = |(ended, part): &(u64, Result<Part, Failure>)| {
            let is_unknown = |error: &SqlError| error.code == SqlState::OUTCOME_UNKNOWN;
            *ended == submission && matches!(part, Err(Failure::Sql(error)) if is_unknown(error))
        };
        let parts = self.parts();
        assert!(parts.iter().any(is_unknown), "{parts:?}");
    }
}

fn suspect(process: ProcessId) -> Configuration {
    Configuration::Membership(Membership::Suspect { process, incarnation: 1 })
}

/// With what it alone has.
fn give_up(process: ProcessId) -> Configuration {
    Configuration::Membership(Membership::Suspect { process, incarnation: Incarnation::MAX })
}

#[test]
fn reads_are_asked_again_when_a_process_is_suspected() {
    let (s1, s2, s3) = (ProcessId::storage(1), ProcessId::storage(2), ProcessId::storage(3));
    let mut scene = Scene::with(Config::evenly(3, 2).expect("a ring"));
    scene.state(0, true);
    let read = scene.submit(testing::read(C1, 1, 0, 0).body);
    let change = scene.submit(write());
    assert_eq!(scene.routed(), [1, 2]);
    scene.configure(ProcessId::client(2), 1, 1, suspect(s2));
    assert_eq!(scene.core.view().config.version(), 2);
    assert_eq!(scene.routed(), [3], "the read; other holders answer the write");
    let id = |sequence| MessageId { submitter: C1, incarnation: 1, sequence };
    for process in [s1, s3] {
        scene.answer(process, id(1), 2);
    }
    assert!(scene.parts().is_empty(), "the first question is forgotten");
    for process in [s1, s3] {
        scene.answer(process, id(2), 3);
        scene.answer(process, id(3), 4);
    }
    let ended: Vec<u64> = scene.parts().into_iter().map(|(submission, _)| submission).collect();
    assert_eq!(ended, [change, read]);
}

#[test]
fn what_no_live_process_holds_is_an_error() {
    let s2 = ProcessId::storage(2);
    let mut scene = Scene::subscribed(0);
    let states = |scene: &mut Scene| -> Vec<(u64, SqlState)> {
        let parts = scene.parts().into_iter();
        let states = parts.map(|(submission, part)| match part {
            Err(Failure::Sql(error)) => (submission, error.code),
            other => panic!("{other:?}"),
        });
        states.collect()
    };
    let read = scene.submit(testing::read(C1, 1, 0, 0).body);
    let change = scene.submit(write());
    scene.routed();
    scene.configure(ProcessId::client(2), 1, 1, give_up(s2));
    assert_eq!(states(&mut scene), [(read, SqlState::UNAVAILABLE), (change, SqlState::OUTCOME_UNKNOWN)]);
    let late = scene.submit(write());
    assert_eq!(states(&mut scene), [(late, SqlState::UNAVAILABLE)]);
}

#[test]
fn a_configuration_message_ends_with_its_outcome() {
    let mut scene = Scene::subscribed(0);
    let submission = scene.submit(Body::Configuration(suspect(ProcessId::storage(7))));
    scene.configure(C1, 1, 1, suspect(ProcessId::storage(7)));
    let parts = scene.parts();
    assert!(
        matches!(&parts[..], [(ended, Err(Failure::Sql(error)))]
            if *ended == submission && error.message == "s7 is not part of the system"),
        "{parts:?}"
    );
    let submission = scene.submit_as(testing::read(C1, 1, 0, 0).body, ReadIsolation::Basic);
    assert!(scene.basic_reads().iter().all(|(_, seen)| *seen == Ts(1)), "it does not see what was before");
    scene.core.handle(Event::Cancel { submission });
    let submission = scene.submit(Body::Configuration(suspect(C1)));
    scene.configure(C1, 2, 2, suspect(C1));
    let parts = scene.parts();
    assert!(matches!(&parts[..], [(ended, Ok(Part::Done { .. }))] if *ended == submission), "{parts:?}");
    // It has suspected itself.
    let submission = scene.submit(write());
    let parts = scene.parts();
    assert!(matches!(&parts[..], [(ended, Err(_))] if *ended == submission), "{parts:?}");
}

#[test]
fn a_read_that_an_earlier_life_of_a_storage_process_owes_is_asked_again() {
    let s1 = ProcessId::storage(1);
    let mut scene = Scene::subscribed(0);
    scene.receive(s1, memory(3, 0));
    scene.submit_as(testing::read(C1, 1, 0, 0).body, ReadIsolation::Snapshot);
    assert_eq!(scene.reads().len(), 1);
    scene.receive(s1, memory(3, 0));
    assert_eq!(scene.reads(), []);
    // Its announcement has not come.
    scene.receive(s1, memory(4, 0));
    assert_eq!(scene.reads().len(), 1);
}

#[test]
fn reads_avoid_who_lags_while_somebody_does_not() {
    let mut scene = Scene::with(Config::evenly(2, 2).expect("a ring"));
    scene.state(0, true);
    let storage = [1, 2].map(ProcessId::storage);
    let says = |scene: &mut Scene, process, lags| {
        let mut memory = memory(1, 0);
        if let Wire::Memory { lags: told, .. } = &mut memory {
            *told = lags;
        }
        scene.receive(process, memory);
    };
    let asked = |scene: &mut Scene| -> BTreeSet<ProcessId> {
        for _ in 0..8 {
            scene.submit(testing::read(C1, 1, 0, 0).body);
        }
        let routes = scene.core.take_effects().into_iter().filter_map(|effect| match effect {
            Effect::Send(R1, Wire::Route(messages)) => Some(messages),
            _ => None,
        });
        let config = scene.config.clone();
        let asked = routes.flatten().flat_map(|message| config.destset(&message));
        asked.map(|(process, _)| process).collect()
    };
    assert_eq!(asked(&mut scene), storage.into());
    says(&mut scene, storage[0], true);
    assert_eq!(asked(&mut scene), [storage[1]].into());
    says(&mut scene, storage[1], true);
    assert!(!asked(&mut scene).is_empty());
    says(&mut scene, storage[0], false);
    assert_eq!(asked(&mut scene), [storage[0]].into());
    // Who cannot be reached answers nothing.
    says(&mut scene, storage[1], false);
    says(&mut scene, storage[0], true);
    scene.core.handle(Event::Unreachable(storage[1]));
    assert_eq!(asked(&mut scene), [storage[0]].into());
    // Nor does it have much to say when it is back, before it has said how far it is.
    says(&mut scene, storage[0], false);
    scene.receive(storage[1], Wire::Restarted { incarnation: 2, passed: None });
    assert_eq!(asked(&mut scene), [storage[0]].into());
    says(&mut scene, storage[1], false);
    assert_eq!(asked(&mut scene), storage.into());
}

#[test]
fn a_read_that_a_life_owes_of_which_the_client_never_heard_is_asked_again() {
    let s1 = ProcessId::storage(1);
    let mut scene = Scene::subscribed(0);
    scene.submit_as(testing::read(C1, 1, 0, 0).body, ReadIsolation::Snapshot);
    assert_eq!(scene.reads().len(), 1);
    // The life that was to answer has ended; the next one says that it lives before it has subscribed.
    scene.receive(s1, memory(2, 0));
    assert_eq!(scene.reads(), [], "it may be the life that was to answer");
    scene.receive(s1, Wire::Restarted { incarnation: 2, passed: None });
    assert_eq!(scene.reads().len(), 1);
    scene.receive(s1, Wire::Restarted { incarnation: 2, passed: None });
    assert_eq!(scene.reads(), [], "once is enough");
}

#[test]
fn what_a_process_answers_again_after_a_restart_counts_once() {
    let (s1, s2) = (ProcessId::storage(1), ProcessId::storage(2));
    let mut scene = Scene::subscribed(0);
    let read = scene.submit(testing::read(C1, 1, 0, 0).body);
    assert_eq!(scene.routed(), [1]);
    let id = MessageId { submitter: C1, incarnation: 1, sequence: 1 };
    let say = |scene: &mut Scene, from, part| {
        scene.receive(from, Wire::Answers(vec![Answer { id, ts: Ts(1), part }]));
    };
    let rows = |scene: &mut Scene, from| {
        let column = Arc::new(Int64Array::from(vec![1]));
        let batch = RecordBatch::try_from_iter([("k", column as _)]).expect("a column");
        say(scene, from, AnswerPart::Rows { range: scene.config.held(from)[0], batch });
        say(scene, from, AnswerPart::Groups(vec![Group { key: Vec::new(), states: Vec::new() }]));
        scene.answer(from, id, 1);
    };
    rows(&mut scene, s1);
    scene.deliver(0, 1);
    // It has executed the message again, after the checkpoint from which it went on.
    scene.receive(s1, Wire::Restarted { incarnation: 2, passed: None });
    rows(&mut scene, s1);
    rows(&mut scene, s2);
    let parts = scene.parts();
    let batches = parts.iter().filter(|(_, part)| matches!(part, Ok(Part::Rows(_)))).count();
    assert_eq!(batches, 2, "{parts:?}");
    assert!(
        matches!(&parts[2..], [(_, Ok(Part::Groups(groups))), (ended, Ok(Part::Done { rows: 2, .. }))]
            if groups.len() == 2 && *ended == read),
        "{parts:?}"
    );
}

#[test]
fn a_write_whose_answer_is_lost_with_all_who_executed_it_ends_with_an_unknown_outcome() {
    let (s1, s2) = (ProcessId::storage(1), ProcessId::storage(2));
    let id = |sequence| MessageId { submitter: C1, incarnation: 1, sequence };
    let restarted = |sequence| Wire::Restarted { incarnation: 2, passed: Some(id(sequence)) };
    let mut scene = Scene::with(Config::evenly(2, 2).expect("a ring"));
    scene.state(0, true);
    let first = scene.submit(write());
    scene.submit(Body::Pin { lease_ms: 1_000 });
    let last = scene.submit(write());
    assert_eq!(scene.routed(), [1, 2, 3]);
    scene.receive(R1, Wire::Ordered { incarnation: 1, sequence: 2, ts: Ts(2) });
    scene.deliver(0, 2);
    // Its checkpoint has the first write and the pin, and the answers have ended with it.
    scene.receive(s1, restarted(2));
    assert!(scene.parts().is_empty(), "another process answers");
    scene.receive(s2, restarted(2));
    let effects = scene.core.take_effects();
    let unknown = effects.iter().any(|effect| {
        matches!(effect, Effect::Part(submission, Err(Failure::Sql(error)))
            if *submission == first && error.code == SqlState::OUTCOME_UNKNOWN)
    });
    let again = effects.iter().any(|effect| {
        matches!(effect, Effect::Send(R1, Wire::Route(messages))
            if matches!(messages[..], [ref pin] if pin.id == id(4) && matches!(pin.body, Body::Pin { .. })))
    });
    assert!(unknown && again, "{effects:?}");
    // The other write is executed again.
    scene.answer(s1, id(3), 3);
    let parts = scene.parts();
    assert!(matches!(parts[..], [(ended, Ok(Part::Done { .. }))] if ended == last), "{parts:?}");
}

#[test]
fn a_write_is_not_awaited_from_who_had_left_when_it_was_ordered() {
    let (s1, s2, s3) = (ProcessId::storage(1), ProcessId::storage(2), ProcessId::storage(3));
    let mut scene = Scene::with(Config::evenly(3, 3).expect("a ring"));
    scene.state(0, true);
    scene.submit(write());
    let last = scene.submit(write());
    let keyspace = scene.config.plan(Change::Contract { process: s3 }).expect("possible");
    scene.configure(ProcessId::client(2), 1, 1, Configuration::Keyspace(keyspace));
    // The first one was ordered behind the change, so the second one was, too.
    for (sequence, ts) in [(1, 7), (2, 9)] {
        scene.receive(R1, Wire::Ordered { incarnation: 1, sequence, ts: Ts(ts) });
    }
    scene.deliver(1, 9);
    for process in [s1, s2] {
        assert!(scene.parts().is_empty(), "{process} may answer");
        let passed = Some(MessageId { submitter: C1, incarnation: 1, sequence: 2 });
        scene.receive(process, Wire::Restarted { incarnation: 2, passed });
    }
    scene.check_unknown(last);
}

/// Of a subscription one hears what has come of all changes, but not when they were ordered.
#[test]
fn a_write_is_awaited_from_who_may_have_left_after_it_was_ordered() {
    let s3 = ProcessId::storage(3);
    let mut scene = Scene::with(Config::evenly(3, 1).expect("a ring"));
    scene.state(0, true);
    scene.submit(write());
    let last = scene.submit(write());
    scene.receive(R1, Wire::Ordered { incarnation: 1, sequence: 1, ts: Ts(7) });
    scene.deliver(0, 7);
    let keyspace = scene.config.plan(Change::Contract { process: s3 }).expect("possible");
    let message = testing::configuration(ProcessId::client(2), 1, 1, Configuration::Keyspace(keyspace));
    let contracted = scene.config.apply(&message, Ts(15)).expect("possible").expect("another config");
    scene.config = Arc::new(contracted);
    scene.state(20, false);
    scene.receive(R1, Wire::Ordered { incarnation: 1, sequence: 2, ts: Ts(8) });
    assert!(scene.parts().is_empty(), "{s3} may answer");
    let passed = Some(MessageId { submitter: C1, incarnation: 1, sequence: 2 });
    scene.receive(s3, Wire::Restarted { incarnation: 2, passed });
    let early = scene.parts();
    assert!(early.iter().all(|(ended, _)| *ended != last), "others may have held it for a while");
    scene.deliver(7, 20);
    scene.pass(600);
    scene.check_unknown(last);
}

/// It was ordered together with a later message, and before a change that the later one came behind.
#[test]
fn a_write_is_not_awaited_from_who_says_that_nothing_will_come() {
    let (s1, s2) = (ProcessId::storage(1), ProcessId::storage(2));
    let id = |sequence| MessageId { submitter: C1, incarnation: 1, sequence };
    let mut scene = Scene::with(Config::evenly(2, 1).expect("a ring"));
    scene.state(0, true);
    let first = scene.submit(write());
    scene.submit(write());
    let keyspace = scene.config.plan(Change::Contract { process: s1 }).expect("possible");
    scene.configure(ProcessId::client(2), 1, 1, Configuration::Keyspace(keyspace));
    scene.receive(R1, Wire::Ordered { incarnation: 1, sequence: 2, ts: Ts(9) });
    scene.deliver(1, 9);
    scene.receive(s1, Wire::Restarted { incarnation: 2, passed: Some(id(2)) });
    assert!(scene.parts().is_empty(), "{s2} may hold everything already");
    scene.pass(1_000);
    let asked = |effect: &Effect| {
        matches!(effect, Effect::Send(process, Wire::AskAnswers(messages))
            if *process == s2 && *messages == [(id(1), Ts(9)), (id(2), Ts(9))])
    };
    assert!(scene.core.take_effects().iter().any(asked));
    scene.receive(s2, Wire::NoAnswers(vec![id(1)]));
    scene.check_unknown(first);
    assert!(scene.parts().is_empty(), "the second one may still be answered");
}

/// Who was away while the log was cut off does not know under which of two configs it was ordered.
#[test]
fn a_checkpoint_is_asked_for_again_when_nobody_will_say_that_it_was_executed() {
    let (s1, s2) = (ProcessId::storage(1), ProcessId::storage(2));
    let id = MessageId { submitter: C1, incarnation: 1, sequence: 1 };
    let mut scene = Scene::with(Config::evenly(2, 2).expect("a ring"));
    scene.state(0, true);
    scene.submit(Body::Checkpoint);
    scene.receive(R1, Wire::Ordered { incarnation: 1, sequence: 1, ts: Ts(9) });
    scene.deliver(0, 9);
    scene.receive(s1, Wire::Restarted { incarnation: 2, passed: Some(id) });
    scene.routed();
    scene.pass(600);
    let asked = |effect: &Effect| {
        matches!(effect, Effect::Send(process, Wire::AskAnswers(messages))
            if *process == s2 && *messages == [(id, Ts(9))])
    };
    assert!(scene.core.take_effects().iter().any(asked), "the other may have executed it");
    scene.receive(s2, Wire::NoAnswers(vec![id]));
    assert_eq!(scene.routed(), [2]);
}

#[test]
fn who_has_answered_does_not_answer_for_more() {
    let (s1, s2, s3) = (ProcessId::storage(1), ProcessId::storage(2), ProcessId::storage(3));
    let id = MessageId { submitter: C1, incarnation: 1, sequence: 1 };
    let mut scene = Scene::with(Config::evenly(3, 2).expect("a ring"));
    scene.state(0, true);
    let write = scene.submit(write());
    // What is held by both the second and the third in the config of the client is not held by the third any more.
    let kept: Vec<KeyRange> = scene
        .config
        .held(s3)
        .into_iter()
        .filter(|range| scene.config.holders(*range).contains(&s1))
        .collect();
    let outcomes = kept.iter().map(|range| (*range, Ok(1))).collect();
    let answer = Answer { id, ts: Ts(5), part: AnswerPart::Done { outcomes, more: false } };
    scene.receive(s3, Wire::Answers(vec![answer]));
    assert!(scene.parts().is_empty(), "the others answer");
    scene.receive(s2, Wire::Restarted { incarnation: 2, passed: Some(id) });
    assert!(scene.parts().is_empty(), "somebody else may hold it by a config that the client does not know");
    scene.deliver(0, 5);
    scene.pass(1_000);
    let parts = scene.parts();
    assert!(
        matches!(&parts[..], [(ended, Err(Failure::Sql(error)))]
            if *ended == write && error.code == SqlState::OUTCOME_UNKNOWN),
        "{parts:?}"
    );
}

#[test]
fn a_suspected_client_finds_that_when_it_subscribes() {
    let mut scene = Scene::subscribed(0);
    let change = scene.submit(write());
    let read = scene.submit_as(testing::read(C1, 1, 0, 0).body, ReadIsolation::Snapshot);
    let [(lost, _)] = scene.reads()[..] else { panic!("one read is sent") };
    scene.receive(R1, Wire::ReadsLost(vec![lost]));
    let suspicion = testing::configuration(ProcessId::client(2), 1, 1, suspect(C1));
    let config = scene.config.apply(&suspicion, Ts(1)).expect("possible").expect("it changes something");
    scene.config = Arc::new(config);
    scene.state_under(2, 0, false);
    let ended: Vec<u64> = scene
        .parts()
        .into_iter()
        .map(|(submission, part)| match part {
            Err(Failure::Sql(_)) => submission,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(ended, [change, read], "neither what is open nor what waits to be sent again is left behind");
}

#[test]
fn a_refusal_that_comes_late_means_nothing() {
    let mut scene = Scene::subscribed(7);
    let change = scene.submit(Body::Ddl(Ddl::DropTables { names: vec!["t".into()], if_exists: true }));
    scene.receive(R1, Wire::SubscribeRefused { incarnation: 1, purged: Ts(5), removed: false });
    assert!(scene.parts().is_empty(), "submission {change} is not given up");
}

#[test]
fn reads_that_a_broken_session_with_the_leader_has_lost_are_sent_again() {
    let r2 = ProcessId::router(2);
    let config = Arc::new(Config::evenly(2, 1).expect("a ring"));
    let options =
        CoreOptions { id: C1, incarnation: 1, directory: 1, routers: vec![R1, r2], config: config.clone() };
    let mut scene = Scene { core: Core::new(options), config, now_ms: 0, submissions: 0 };
    scene.state(0, true);
    scene.submit_as(testing::read(C1, 1, 0, 0).body, ReadIsolation::Snapshot);
    assert_eq!(scene.reads().len(), 1);
    scene.core.handle(Event::Unreachable(R1));
    scene.receive(R1, Wire::Lost);
    // The other router knows that the first one leads, and has led all the while.
    scene.receive(r2, Wire::NotLeader { leader: Some(R1) });
    scene.state(0, false);
    scene.pass(100);
    assert_eq!(scene.reads().len(), 1);
}

#[test]
fn an_old_state_does_not_take_back_what_was_delivered() {
    let mut scene = Scene::with(Config::evenly(3, 2).expect("a ring"));
    scene.state(0, true);
    scene.configure(ProcessId::client(2), 1, 1, suspect(ProcessId::storage(2)));
    // The answer to a subscription after 0 that was sent twice; what follows it has been delivered.
    scene.state(0, false);
    scene.configure(ProcessId::client(2), 1, 1, suspect(ProcessId::storage(2)));
    assert!(scene.core.view().config.is_suspected(ProcessId::storage(2)));
}

#[test]
fn a_pin_needs_a_process_that_lives() {
    let mut scene = Scene::with(Config::evenly(1, 1).expect("a ring"));
    scene.state(0, true);
    let first = scene.submit(Body::Pin { lease_ms: 1_000 });
    scene.configure(ProcessId::client(2), 1, 1, give_up(ProcessId::storage(1)));
    let second = scene.submit(Body::Checkpoint);
    let ended: Vec<u64> = scene
        .parts()
        .into_iter()
        .map(|(submission, part)| match part {
            Err(Failure::Sql(error)) if error.code == SqlState::UNAVAILABLE => submission,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(ended, [first, second]);
}

#[test]
fn what_may_be_lost_on_the_way_is_asked_again_or_ends_with_an_unknown_outcome() {
    let s1 = ProcessId::storage(1);
    let mut scene = Scene::subscribed(0);
    let written = scene.submit(write());
    assert_eq!(scene.routed(), [1]);
    scene.submit_as(testing::read(C1, 1, 0, 0).body, ReadIsolation::Snapshot);
    assert_eq!(scene.reads().len(), 1);
    // The reads alone: what is ordered reaches the storage process all the same.
    scene.receive(s1, Wire::ReadsMissed);
    assert_eq!(scene.reads().len(), 1);
    // Between the client and its router.
    scene.receive(R1, Wire::Lost);
    assert_eq!(scene.subscription(), Some(Some(Ts(0))));
    scene.state(0, false);
    assert_eq!(scene.routed(), [1]);
    scene.pass(100);
    assert_eq!(scene.reads().len(), 1);
    // Between the client and a storage process, whose answers may have been lost. It is asked what it has answered in vain.
    scene.receive(s1, Wire::Lost);
    let effects = scene.core.take_effects();
    let looks = |effect: &Effect| matches!(effect, Effect::Send(to, Wire::Hello) if *to == s1);
    let reads = |effect: &Effect| matches!(effect, Effect::Send(R1, Wire::Read { messages, .. }) if messages.len() == 1);
    assert!(effects.iter().any(looks) && effects.iter().any(reads), "{effects:?}");
    scene.receive(R1, Wire::Ordered { incarnation: 1, sequence: 1, ts: Ts(3) });
    scene.deliver(0, 3);
    scene.pass(1_000);
    let written_as = MessageId { submitter: C1, incarnation: 1, sequence: 1 };
    let asked = |effect: &Effect| {
        matches!(effect, Effect::Send(process, Wire::AskAnswers(messages))
            if *process == s1 && *messages == [(written_as, Ts(3))])
    };
    assert!(scene.core.take_effects().iter().any(asked));
    scene.receive(s1, Wire::NoAnswers(vec![written_as]));
    scene.check_unknown(written);
}

#[test]
fn a_client_stops_when_the_routers_have_lost_what_it_has_seen() {
    let mut scene = Scene::subscribed(7);
    scene.receive(R1, Wire::LogLost { incarnation: 2, last: Ts(3) });
    assert!(scene.core.take_effects().is_empty(), "that was said to another life");
    scene.receive(R1, Wire::LogLost { incarnation: 1, last: Ts(3) });
    let effects = scene.core.take_effects();
    let [Effect::Stop(error)] = &effects[..] else { panic!("{effects:?}") };
    assert_eq!(error.code, SqlState::DATA_CORRUPTED);
    assert!(error.detail.as_ref().is_some_and(|detail| detail.contains("log ends at 3")), "{error:?}");
}

/// Who receives rows is asked for them as soon as it has them, and may answer a client that has not heard of that.
#[test]
fn anybody_may_owe_a_read_whose_place_is_not_known() {
    let (s1, s2) = (ProcessId::storage(1), ProcessId::storage(2));
    // Of rows that only the first has.
    let submitted = |isolation| {
        let mut scene = Scene::subscribed(0);
        let ranges = scene.config.held(s1).into();
        let request = Request { tables: Default::default(), ranges, body: testing::read(C1, 1, 0, 0).body };
        scene.core.handle(Event::Submit { submission: 1, request, isolation });
        scene
    };
    let mut scene = submitted(ReadIsolation::Snapshot);
    let [(first, _)] = scene.reads()[..] else { panic!("it is sent") };
    scene.receive(s2, Wire::Lost);
    // Once, as others may say the same at the same time.
    scene.receive(s2, Wire::ReadsMissed);
    assert!(scene.reads().is_empty());
    scene.pass(100);
    let [(again, _)] = scene.reads()[..] else { panic!("it is sent again") };
    assert_ne!(first, again);
    // One that has no place on the ring, as it has just begun to stand by, makes nobody else lose anything.
    scene.receive(ProcessId::storage(9), Wire::Lost);
    let [(at_once, _)] = scene.reads()[..] else { panic!("it is sent again") };
    assert_ne!(again, at_once);
    let again = at_once;
    // By then the client knows the config of that time.
    rows(&mut scene, s1, again, 3, 10);
    scene.receive(s2, Wire::Lost);
    scene.pass(100);
    let [(again, _)] = scene.reads()[..] else { panic!("it is sent again") };
    scene.deliver(0, 3);
    rows(&mut scene, s1, again, 3, 10);
    scene.receive(s2, Wire::Lost);
    scene.pass(100);
    assert!(scene.reads().is_empty());
    scene.receive(s1, Wire::Lost);
    assert_eq!(scene.reads().len(), 1);
    // A basic read has been sent to those that owe it.
    let mut scene = submitted(ReadIsolation::Basic);
    let is_sent = |wire: &Wire| matches!(wire, Wire::BasicRead { .. });
    assert_eq!(scene.told(is_sent), [s1]);
    scene.receive(s2, Wire::Lost);
    assert_eq!(scene.told(is_sent), []);
}

/// Rows of a storage process's half of the ring.
fn rows(scene: &mut Scene, from: ProcessId, id: MessageId, ts: u64, count: usize) {
    let column: ArrayRef = Arc::new(Int64Array::from(vec![1; count]));
    let batch = RecordBatch::try_from_iter([("n", column)]).expect("a batch");
    let part = AnswerPart::Rows { range: scene.config.held(from)[0], batch };
    scene.receive(from, Wire::Answers(vec![Answer { id, ts: Ts(ts), part }]));
}

#[test]
fn a_read_whose_rows_nobody_has_seen_is_repeated_when_a_process_is_lost() {
    let (s1, s2, s3) = (ProcessId::storage(1), ProcessId::storage(2), ProcessId::storage(3));
    let id = |sequence| MessageId { submitter: C1, incarnation: 1, sequence };
    let mut scene = Scene::with(Config::evenly(3, 2).expect("a ring"));
    scene.state(0, true);
    let read = scene.submit(testing::read(C1, 1, 0, 0).body);
    assert_eq!(scene.routed(), [1]);
    rows(&mut scene, s1, id(1), 1, 10);
    rows(&mut scene, s2, id(1), 1, 10);
    assert!(scene.parts().is_empty(), "the answer is not complete");
    scene.configure(ProcessId::client(2), 1, 1, suspect(s2));
    assert_eq!(scene.routed(), [2]);
    for process in [s1, s3] {
        rows(&mut scene, process, id(2), 3, 10);
        scene.answer(process, id(2), 3);
    }
    let parts = scene.parts();
    let counts: Vec<usize> = parts
        .iter()
        .map(|(submission, part)| match part {
            Ok(Part::Rows(batch)) if *submission == read => batch.num_rows(),
            Ok(Part::Done { .. }) if *submission == read => 0,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(counts, [10, 10, 0], "only the second answer, as a whole");
}

#[test]
fn a_read_that_is_too_long_to_be_held_back_fails_when_a_process_is_lost() {
    let s2 = ProcessId::storage(2);
    let mut scene = Scene::with(Config::evenly(3, 2).expect("a ring"));
    scene.state(0, true);
    let read = scene.submit(testing::read(C1, 1, 0, 0).body);
    let id = MessageId { submitter: C1, incarnation: 1, sequence: 1 };
    rows(&mut scene, s2, id, 1, 1 << 20);
    let parts = scene.parts();
    assert!(matches!(parts[..], [(submission, Ok(Part::Rows(_)))] if submission == read), "{}", parts.len());
    scene.configure(ProcessId::client(2), 1, 1, suspect(s2));
    let parts = scene.parts();
    assert!(
        matches!(&parts[..], [(submission, Err(Failure::Sql(error)))]
            if *submission == read && error.code == SqlState::SERIALIZATION_FAILURE),
        "{parts:?}"
    );
}

/// A process that was restarted behind a checkpoint has no pin from before it.
#[test]
fn a_read_goes_to_another_replica_when_one_lacks_what_it_sees() {
    let mut scene = Scene::with(Config::evenly(3, 2).expect("a ring"));
    scene.state(0, true);
    let pinned_read = || {
        let mut body = testing::read(C1, 1, 0, 0).body;
        if let Body::Data(data) = &mut body {
            data.read_ts = Some(Ts(3));
        }
        body
    };
    let read = scene.submit(pinned_read());
    let mut lacking = BTreeSet::new();
    // Any two of the three have everything. When two lack it, there is no other for what both hold.
    for sequence in 1..=3 {
        let routed = scene.core.take_effects().into_iter().find_map(|effect| match effect {
            Effect::Send(R1, Wire::Route(messages)) => messages.first().cloned(),
            _ => None,
        });
        let message = routed.expect("it is asked");
        assert_eq!(message.id.sequence, sequence);
        let asked: Vec<ProcessId> = scene.config.destset(&message).into_iter().map(|(s, _)| s).collect();
        let again = asked.iter().find(|process| lacking.contains(*process)).copied();
        assert_eq!(again.is_some(), sequence == 3, "{asked:?} {lacking:?}");
        let process = again.unwrap_or(asked[0]);
        lacking.insert(process);
        let too_old = Answer { id: message.id, ts: Ts(sequence + 3), part: AnswerPart::TooOld };
        scene.receive(process, Wire::Answers(vec![too_old]));
    }
    let parts = scene.parts();
    assert!(
        matches!(&parts[..], [(ended, Err(Failure::Sql(error)))]
            if *ended == read && error.code == SqlState::SERIALIZATION_FAILURE),
        "{parts:?}"
    );
    // Who had answered everything before it was restarted lacks nothing.
    let id = MessageId { submitter: C1, incarnation: 1, sequence: 4 };
    let read = scene.submit(pinned_read());
    assert_eq!(scene.routed(), [id.sequence]);
    let [first, second] = [1, 2].map(ProcessId::storage);
    scene.deliver(0, 8);
    scene.answer(first, id, 8);
    scene.receive(first, Wire::Answers(vec![Answer { id, ts: Ts(8), part: AnswerPart::TooOld }]));
    assert_eq!((scene.routed(), scene.parts().len()), (Vec::new(), 0));
    scene.answer(second, id, 8);
    let parts = scene.parts();
    assert!(matches!(&parts[..], [(ended, Ok(Part::Done { .. }))] if *ended == read), "{parts:?}");
    // Who is asked under a config of which this client has not heard may be none of those that it knows of.
    scene.submit(pinned_read());
    assert_eq!(scene.routed(), [5]);
    let id = MessageId { submitter: C1, incarnation: 1, sequence: 5 };
    let unknown = ProcessId::storage(9);
    scene.receive(unknown, Wire::Answers(vec![Answer { id, ts: Ts(10), part: AnswerPart::TooOld }]));
    assert_eq!(scene.routed(), [6]);
}

/// The others have sent as much as they may, and wait for some of it to be taken.
#[test]
fn who_answers_a_read_that_has_failed_is_told_so() {
    let (s1, s2, s3) = (ProcessId::storage(1), ProcessId::storage(2), ProcessId::storage(3));
    let id = MessageId { submitter: C1, incarnation: 1, sequence: 1 };
    let told =
        |scene: &mut Scene| scene.told(|wire| matches!(wire, Wire::Cancel(cancelled) if *cancelled == id));
    // A user gives the read up, or an outcome of it is an error, when others than at first hold what it asks for.
    for cancels in [true, false] {
        let mut scene = Scene::with(Config::evenly(3, 1).expect("a ring"));
        scene.state(0, true);
        let read = scene.submit(testing::read(C1, 1, 0, 0).body);
        scene.core.take_effects();
        rows(&mut scene, s2, id, 1, 1 << 20);
        let keyspace = scene.config.plan(Change::Contract { process: s3 }).expect("possible");
        let first = scene.config.clone();
        scene.configure(ProcessId::client(2), 1, 2, Configuration::Keyspace(keyspace));
        assert_eq!(told(&mut scene), []);
        if cancels {
            scene.core.handle(Event::Cancel { submission: read });
            assert_eq!(told(&mut scene), [s1, s2, s3]);
        } else {
            let failed = Err(SqlError::new(SqlState::DIVISION_BY_ZERO, "division by zero"));
            let part = AnswerPart::Done { outcomes: [(first.held(s1)[0], failed)].into(), more: false };
            scene.receive(s1, Wire::Answers(vec![Answer { id, ts: Ts(1), part }]));
            assert_eq!(told(&mut scene), [s1, s2, s3]);
        }
    }
}

#[test]
fn what_is_open_is_told_with_those_it_waits_for() {
    let (s1, s2) = (ProcessId::storage(1), ProcessId::storage(2));
    let mut scene = Scene::subscribed(0);
    scene.submit(write());
    scene.pass(40);
    scene.submit(write());
    scene.submit(Body::Pin { lease_ms: 1 });
    scene.pass(2);
    let write = |sequence| MessageId { submitter: C1, incarnation: 1, sequence };
    scene.ordered(1);
    scene.answer(s1, write(1), 1);
    let open = scene.core.operations();
    let told: Vec<_> = open
        .iter()
        .map(|open| (open.id, open.kind, open.state, open.waits_for.clone(), open.age_ms))
        .collect();
    assert_eq!(
        told,
        [
            (write(1), "TRUNCATE TABLE", OperationState::Ordered, vec![s2], 42),
            (write(2), "TRUNCATE TABLE", OperationState::Submitted, vec![s1, s2], 2),
            (write(3), "pin", OperationState::Submitted, vec![], 2),
        ]
    );
    scene.answer(s2, write(1), 1);
    assert_eq!(scene.core.operations().len(), 2);
    // What its user has given up may still come to pass.
    scene.core.handle(Event::Cancel { submission: 2 });
    scene.pass(5);
    let told: Vec<_> =
        scene.core.operations().iter().map(|open| (open.id, open.state, open.age_ms)).collect();
    let (abandoned, submitted) = (OperationState::Abandoned, OperationState::Submitted);
    assert_eq!(told, [(write(2), abandoned, 7), (write(3), submitted, 7)]);
    scene.ordered(2);
    assert_eq!(scene.core.operations().len(), 1);
}

/// Whoever alone has rows may be down for long. Each time that the read is ordered again it is in the routers' log again, and
/// whoever else has some of its rows scans them again.
#[test]
fn a_read_that_needs_somebody_absent_is_asked_again_when_that_one_is_back() {
    let (s1, s2) = (ProcessId::storage(1), ProcessId::storage(2));
    let mut scene = Scene::subscribed(0);
    scene.receive(s1, memory(1, 0));
    scene.receive(s2, memory(1, 0));
    scene.submit(testing::read(C1, 1, 0, 0).body);
    assert_eq!(scene.routed(), [1]);
    scene.core.handle(Event::Unreachable(s2));
    let effects = scene.core.take_effects();
    let called_off = MessageId { submitter: C1, incarnation: 1, sequence: 1 };
    let calls_off = |effect: &Effect| matches!(effect, Effect::Send(to, Wire::Cancel(id)) if *to == s1 && *id == called_off);
    let routes = |effect: &Effect| matches!(effect, Effect::Send(R1, Wire::Route(_)));
    assert!(effects.iter().any(calls_off) && effects.iter().any(routes), "{effects:?}");
    for _ in 0..5 {
        scene.pass(100);
        scene.core.handle(Event::Unreachable(s2));
        let effects = scene.core.take_effects();
        let looks = |effect: &Effect| matches!(effect, Effect::Send(to, Wire::Hello) if *to == s2);
        assert!(effects.iter().any(looks) && !effects.iter().any(routes), "{effects:?}");
    }
    // It may have answered in vain, or begins another life.
    for incarnation in [1, 2] {
        scene.core.handle(Event::Unreachable(s2));
        scene.core.take_effects();
        scene.receive(s2, memory(incarnation, 0));
        assert_eq!(scene.routed().len(), 1);
    }
    scene.core.handle(Event::Unreachable(s2));
    scene.core.take_effects();
    scene.receive(s2, Wire::Lost);
    assert_eq!(scene.routed().len(), 1);
}

#[test]
fn groups_that_take_too_much_memory_end_their_read() {
    let (s1, s2) = (ProcessId::storage(1), ProcessId::storage(2));
    let mut scene = Scene::subscribed(0);
    let submission = scene.submit(testing::read(C1, 1, 0, 0).body);
    let id = MessageId { submitter: C1, incarnation: 1, sequence: 1 };
    let key = vec![carousel_engine::Value::Text("k".repeat(300_000).into())];
    let groups = |scene: &mut Scene, from| {
        let part = AnswerPart::Groups(vec![Group { key: key.clone(), states: Vec::new() }]);
        scene.receive(from, Wire::Answers(vec![Answer { id, ts: Ts(1), part }]));
    };
    [s1, s2, s1].into_iter().for_each(|from| groups(&mut scene, from));
    assert!(scene.parts().is_empty());
    groups(&mut scene, s2);
    let effects = scene.core.take_effects();
    let called_off = effects.iter().filter_map(|effect| match effect {
        Effect::Send(to, Wire::Cancel(cancelled)) if *cancelled == id => Some(to),
        _ => None,
    });
    assert_eq!(called_off.collect::<Vec<_>>(), [&s1, &s2]);
    let is_error = |effect: &Effect| {
        matches!(effect, Effect::Part(ended, Err(Failure::Sql(error)))
        if *ended == submission && error.code == SqlState::OUT_OF_MEMORY)
    };
    assert!(effects.iter().any(is_error), "{effects:?}");
}

#[test]
fn groups_of_all_reads_together_are_bounded() {
    let (s1, s2) = (ProcessId::storage(1), ProcessId::storage(2));
    let mut scene = Scene::subscribed(0);
    let reads = [1, 2, 3].map(|_| scene.submit(testing::read(C1, 1, 0, 0).body));
    let key = vec![carousel_engine::Value::Text("k".repeat(600_000).into())];
    let groups = |scene: &mut Scene, sequence| {
        let part = AnswerPart::Groups(vec![Group { key: key.clone(), states: Vec::new() }]);
        let id = MessageId { submitter: C1, incarnation: 1, sequence };
        scene.receive(s1, Wire::Answers(vec![Answer { id, ts: Ts(1), part }]));
        id
    };
    let first = groups(&mut scene, 1);
    assert!(scene.parts().is_empty());
    groups(&mut scene, 2);
    let parts = scene.parts();
    assert!(
        matches!(&parts[..], [(ended, Err(Failure::Sql(error)))]
            if *ended == reads[1] && error.code == SqlState::OUT_OF_MEMORY),
        "{parts:?}"
    );
    // What has been handed out counts no more.
    [s1, s2].into_iter().for_each(|from| scene.answer(from, first, 1));
    assert!(matches!(&scene.parts()[..], [(_, Ok(Part::Groups(_))), (_, Ok(Part::Done { .. }))]));
    groups(&mut scene, 3);
    assert!(scene.parts().is_empty());
}

#[test]
fn a_read_that_several_owe_is_asked_again_once_when_they_are_back() {
    let all = [1, 2, 3].map(ProcessId::storage);
    let mut scene = Scene::with(Config::evenly(3, 1).expect("a ring"));
    scene.state(0, true);
    all.into_iter().for_each(|process| scene.receive(process, memory(1, 0)));
    scene.submit(testing::read(C1, 1, 0, 0).body);
    assert_eq!(scene.routed(), [1]);
    all.into_iter().for_each(|process| scene.core.handle(Event::Unreachable(process)));
    scene.core.take_effects();
    scene.receive(all[0], memory(1, 0));
    assert_eq!(scene.routed().len(), 1);
}

/// It reads as of a time at which those who hold the range now have not had it.
#[test]
fn a_read_that_nobody_owes_an_answer_ends() {
    let (s1, s2, s3) = (ProcessId::storage(1), ProcessId::storage(2), ProcessId::storage(3));
    let mut scene = Scene::with(Config::evenly(2, 1).expect("a ring"));
    scene.state(0, true);
    let mut read = testing::read(C1, 1, 0, 0).body;
    if let Body::Data(data) = &mut read {
        data.read_ts = Some(Ts(1));
    }
    let submission = scene.submit(read);
    assert_eq!(scene.routed(), [1]);
    let id = MessageId { submitter: C1, incarnation: 1, sequence: 1 };
    rows(&mut scene, s1, id, 7, 200_000);
    assert!(matches!(&scene.parts()[..], [(_, Ok(Part::Rows(_)))]), "it is too long to be held back");
    scene.answer(s1, id, 7);
    let join = Configuration::Membership(Membership::Join { process: s3, incarnation: 1, address: None });
    scene.configure(s3, 1, 1, join);
    let replace = Change::Replace { process: s2, by: s3 };
    let keyspace = scene.core.view().config.plan(replace).expect("a possible change");
    scene.configure(ProcessId::client(2), 1, 2, Configuration::Keyspace(keyspace));
    scene.receive(R1, Wire::Ordered { incarnation: 1, sequence: 1, ts: Ts(7) });
    scene.deliver(2, 8);
    scene.pass(1_000);
    let ended = scene.parts();
    assert!(
        matches!(&ended[..], [(ended, Err(Failure::Sql(error)))]
            if *ended == submission && error.code == SqlState::SERIALIZATION_FAILURE),
        "{ended:?}"
    );
}

/// What a process answered before this client and it had ever been connected has gone nowhere, and nothing tells so later.
#[test]
fn a_read_is_asked_again_when_somebody_of_whom_nothing_was_heard_is_there() {
    let s2 = ProcessId::storage(2);
    let mut scene = Scene::subscribed(0);
    scene.core.handle(Event::Unreachable(s2));
    scene.submit(testing::read(C1, 1, 0, 0).body);
    assert_eq!(scene.routed(), [1]);
    scene.receive(s2, memory(1, 0));
    assert_eq!(scene.routed(), [2]);
}

/// What a process says of its memory in its heartbeats.
fn memory(incarnation: Incarnation, used: u64) -> Wire {
    let (limit, receiving) = (Some(1 << 30), Vec::new());
    let (logged, checkpointing, lags) = (0, false, false);
    Wire::Memory {
        reached: Ts::ZERO,
        durable: Ts::ZERO,
        incarnation,
        used,
        limit,
        receiving,
        logged,
        staged: 0,
        checkpointing,
        lags,
        disk: Default::default(),
        unreached: Vec::new(),
    }
}

#[test]
fn what_a_process_has_said_before_it_is_suspected_counts_no_more() {
    let (s1, s2) = (ProcessId::storage(1), ProcessId::storage(2));
    let mut scene = Scene::with(Config::evenly(2, 2).expect("a ring"));
    scene.state(0, true);
    let rows =
        |rows| TableStatistics { table: TableId(1), rows, versions: rows, bytes: rows, distinct: Vec::new() };
    for (process, used) in [(s1, 10), (s2, 20)] {
        scene.receive(process, memory(1, used));
        scene.receive(process, Wire::Statistics(vec![rows(used)]));
    }
    let told = |scene: &Scene| {
        let view = scene.core.view();
        (view.memory.used, view.statistics[&TableId(1)].rows)
    };
    assert_eq!(told(&scene), (20, 20));
    // Who has fewer rows than before no longer hides what another one has.
    scene.receive(s2, Wire::Statistics(vec![rows(5)]));
    assert_eq!(told(&scene), (20, 10));
    scene.receive(s2, Wire::Statistics(vec![rows(20)]));
    scene.configure(ProcessId::client(2), 1, 1, suspect(s2));
    assert_eq!(told(&scene), (10, 10));
}

/// Nobody will hear from it again.
#[test]
fn a_write_is_not_awaited_from_who_has_been_removed() {
    let s2 = ProcessId::storage(2);
    let mut scene = Scene::with(Config::evenly(2, 1).expect("a ring"));
    scene.state(0, true);
    let change = scene.submit(write());
    scene.receive(R1, Wire::Ordered { incarnation: 1, sequence: 1, ts: Ts(1) });
    scene.answer(ProcessId::storage(1), MessageId { submitter: C1, incarnation: 1, sequence: 1 }, 1);
    scene.deliver(0, 1);
    let other = ProcessId::client(2);
    let keyspace = scene.core.view().config.plan(Change::Contract { process: s2 }).expect("possible");
    scene.configure(other, 1, 2, Configuration::Keyspace(keyspace));
    let s1 = ProcessId::storage(1);
    scene.configure(s1, 1, 3, Configuration::Received { keyspace: Ts(2), process: s1 });
    assert!(scene.parts().is_empty(), "{s2} may answer");
    let part = Membership::Part { process: s2 };
    scene.configure(other, 2, 4, Configuration::Membership(part));
    assert!(!scene.core.view().config.contains(s2));
    scene.pass(1_000);
    scene.check_unknown(change);
}

/// What a process says of a write whose rows it has kept.
fn keeps(scene: &mut Scene, from: ProcessId, id: MessageId) {
    let ranges = scene.config.held(from);
    let part = AnswerPart::Kept(ranges.into_iter().collect());
    scene.receive(from, Wire::Answers(vec![Answer { id, ts: Ts(1), part }]));
    scene.answer(from, id, 1);
}

/// What the client asks for now, and of whom, and whom it tells that it asks for nothing more.
fn fetched(scene: &mut Scene) -> (Vec<(u32, Vec<KeyRange>)>, Vec<u32>) {
    let (mut fetched, mut cancelled) = (Vec::new(), Vec::new());
    for effect in scene.core.take_effects() {
        match effect {
            Effect::Send(to, Wire::Fetch { ranges, .. }) => fetched.push((to.number, ranges)),
            Effect::Send(to, Wire::Cancel(_)) => cancelled.push(to.number),
            _ => {}
        }
    }
    (fetched, cancelled)
}

#[test]
fn rows_that_are_kept_are_fetched_from_whose_answer_counts_or_else_from_another() {
    let (s1, s2, s3) = (ProcessId::storage(1), ProcessId::storage(2), ProcessId::storage(3));
    let mut scene = Scene::with(Config::evenly(3, 2).expect("a ring"));
    scene.state(0, true);
    let write = scene.submit(testing::truncate_table(C1, 1, 1).body);
    let id = MessageId { submitter: C1, incarnation: 1, sequence: 1 };
    let of = |scene: &Scene, process| scene.config.held(process);
    let both = |scene: &Scene, a, b| {
        let of_b = of(scene, b);
        of(scene, a).into_iter().filter(|range| of_b.contains(range)).collect::<Vec<_>>()
    };
    scene.core.take_effects();
    keeps(&mut scene, s1, id);
    assert_eq!(fetched(&mut scene), (vec![], vec![]), "it is not known whether it has taken effect");
    keeps(&mut scene, s2, id);
    let rest: Vec<KeyRange> =
        of(&scene, s2).into_iter().filter(|range| !of(&scene, s1).contains(range)).collect();
    assert_eq!(fetched(&mut scene), (vec![(1, of(&scene, s1)), (2, rest.clone())], vec![]));
    assert!(scene.parts().is_empty());

    // It cannot be reached: one has some of what it had, and the other has not answered yet.
    scene.core.handle(Event::Unreachable(s1));
    let of_s1_and_s2 = both(&scene, s1, s2);
    let of_s1_and_s3 = both(&scene, s1, s3);
    assert_eq!(fetched(&mut scene), (vec![], vec![]));
    keeps(&mut scene, s3, id);
    assert_eq!(fetched(&mut scene), (vec![(2, of_s1_and_s2.clone()), (3, of_s1_and_s3.clone())], vec![]));
    scene.receive(s1, Wire::Gone { id, ranges: of(&scene, s1) });
    assert_eq!(fetched(&mut scene), (vec![], vec![]));

    let say = |scene: &mut Scene, from, part| {
        scene.receive(from, Wire::Answers(vec![Answer { id, ts: Ts(1), part }]));
    };
    let column: ArrayRef = Arc::new(Int64Array::from(vec![1; 10]));
    let batch = RecordBatch::try_from_iter([("n", column)]).expect("a batch");
    for (from, ranges) in [(s2, &rest), (s2, &of_s1_and_s2), (s3, &of_s1_and_s3)] {
        for range in ranges.iter().copied() {
            say(&mut scene, from, AnswerPart::Fetched { range, batch: batch.clone() });
            let parts = scene.parts();
            assert!(matches!(&parts[..], [(of, Ok(Part::Rows(_)))] if *of == write), "{parts:?}");
            say(&mut scene, from, AnswerPart::Returned(range));
        }
    }
    let (mut cancelled, mut done) = (Vec::new(), false);
    for effect in scene.core.take_effects() {
        match effect {
            Effect::Send(to, Wire::Cancel(_)) => cancelled.push(to.number),
            Effect::Part(of, Ok(Part::Done { rows: 3, .. })) => done = of == write,
            _ => {}
        }
    }
    assert!(done && cancelled == [3], "what else that one has: {cancelled:?}");
}

#[test]
fn a_write_whose_rows_are_lost_has_an_unknown_outcome_and_says_what_is_known() {
    let s1 = ProcessId::storage(1);
    let mut scene = Scene::with(Config::evenly(1, 1).expect("a ring"));
    scene.state(0, true);
    let write = scene.submit(testing::truncate_table(C1, 1, 1).body);
    let id = MessageId { submitter: C1, incarnation: 1, sequence: 1 };
    scene.core.take_effects();
    keeps(&mut scene, s1, id);
    let column: ArrayRef = Arc::new(Int64Array::from(vec![1; 10]));
    let batch = RecordBatch::try_from_iter([("n", column)]).expect("a batch");
    let fetched_rows = AnswerPart::Fetched { range: KeyRange::FULL, batch };
    scene.receive(s1, Wire::Answers(vec![Answer { id, ts: Ts(1), part: fetched_rows }]));
    assert!(matches!(scene.parts()[..], [(of, Ok(Part::Rows(_)))] if of == write));
    scene.core.handle(Event::Unreachable(s1));
    let parts = scene.parts();
    assert!(
        matches!(&parts[..], [(of, Err(Failure::Sql(error)))]
            if *of == write && error.code == SqlState::OUTCOME_UNKNOWN && error.message.contains("took effect")),
        "{parts:?}"
    );
    // Another life executes it once more.
    keeps(&mut scene, s1, id);
    assert_eq!(fetched(&mut scene), (vec![], vec![1]));
}

#[test]
fn rows_that_one_has_kept_and_another_sends_at_once_are_not_lost_with_the_first() {
    let (s1, s2, s3) = (ProcessId::storage(1), ProcessId::storage(2), ProcessId::storage(3));
    let mut scene = Scene::with(Config::evenly(3, 2).expect("a ring"));
    scene.state(0, true);
    let write = scene.submit(testing::truncate_table(C1, 1, 1).body);
    let id = MessageId { submitter: C1, incarnation: 1, sequence: 1 };
    scene.core.take_effects();
    let column: ArrayRef = Arc::new(Int64Array::from(vec![1; 10]));
    let batch = RecordBatch::try_from_iter([("n", column)]).expect("a batch");
    let sends = |scene: &mut Scene, from| {
        for range in scene.config.held(from) {
            let part = AnswerPart::Rows { range, batch: batch.clone() };
            scene.receive(from, Wire::Answers(vec![Answer { id, ts: Ts(1), part }]));
        }
        scene.answer(from, id, 1);
    };
    keeps(&mut scene, s1, id);
    sends(&mut scene, s2);
    let shown = |scene: &mut Scene| {
        let parts = scene.parts();
        assert!(parts.iter().all(|(of, _)| *of == write));
        let rows = parts.iter().filter(|(_, part)| matches!(part, Ok(Part::Rows(_)))).count();
        let done = parts.iter().filter(|(_, part)| matches!(part, Ok(Part::Done { rows: 3, .. }))).count();
        (rows, done)
    };
    assert_eq!(shown(&mut scene), (2, 0), "all that it holds, also where the first has answered");
    scene.core.handle(Event::Unreachable(s1));
    sends(&mut scene, s3);
    assert_eq!(shown(&mut scene), (1, 1), "what the first alone had answered for");
}
