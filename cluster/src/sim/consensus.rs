//! A model of Raft (Ongaro and Ousterhout) that gives the events of [`crate::raft`]: terms, votes, a log with quorums,
//! followers that lag, snapshots that are installed, members that change by joint consensus. Pure: messages, ticks and
//! the progress of the disk in; messages, writes and events out.
//!
//! What must be on disk before a message may leave is written before it in the list of outputs; whoever runs the model
//! holds such messages back until then. A leader's appends may leave before its own disk has them.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use carousel_engine::Ts;

use super::random::Random;
use crate::{
    planted::{Bug, planted},
    raft::Event,
    router::mseq::{Batch, Learned, MSeq, Routed},
    routers::{
        RouterEntry, Routers,
        change::{Standing, Step},
    },
};

/// A leader shows that it lives this often.
const HEARTBEAT_MS: u64 = 50;
/// A follower that hears nothing for so long stands for election.
const ELECTION_MS: std::ops::Range<u64> = 150..300;
/// Who has answered within this time is live.
const LIVE_MS: u64 = 1_000;
/// Who lacks no more entries than this is near the end of the log.
const NEAR: u64 = 16;
/// Entries in one append.
const ENTRIES: usize = 8;

/// A router's number.
pub(super) type Member = u32;

/// Who votes and who only learns.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Members {
    /// Two sets while a change is under way, each of which has to agree.
    voters: Vec<BTreeSet<Member>>,
    /// All of them, with their addresses.
    addresses: BTreeMap<Member, String>,
    /// The number of the cluster.
    cluster: Option<u64>,
}

impl Members {
    /// The first ones.
    pub(super) fn first(members: Vec<Member>) -> Members {
        let addresses = members.iter().map(|member| (*member, String::new())).collect();
        Members { voters: vec![members.into_iter().collect()], addresses, cluster: None }
    }

    fn votes(&self, member: Member) -> bool {
        self.voters.iter().any(|set| set.contains(&member))
    }

    fn is_quorum(&self, members: &BTreeSet<Member>) -> bool {
        self.voters.iter().all(|set| 2 * set.intersection(members).count() > set.len())
    }

    /// What a quorum has reached, by what each has.
    fn reached<T: Copy + Ord>(&self, of: impl Fn(&Member) -> T) -> Option<T> {
        let reached = self.voters.iter().map(|set| {
            let mut of_set: Vec<T> = set.iter().map(&of).collect();
            of_set.sort_unstable_by(|a, b| b.cmp(a));
            of_set[set.len() / 2]
        });
        reached.min()
    }

    fn entries(&self) -> Vec<RouterEntry> {
        let entry = |(number, address): (&Member, &String)| RouterEntry {
            number: *number,
            address: address.clone(),
            votes: self.votes(*number),
        };
        self.addresses.iter().map(entry).collect()
    }

    /// The members after a step in a term; a change of who votes takes another one, [`Step::Finish`].
    fn after(&self, step: &Step, term: u64) -> Members {
        let mut next = self.clone();
        let last = next.voters.last().cloned().unwrap_or_default();
        match step {
            // Another leader would draw another one.
            Step::Found => next.cluster = Some(term),
            Step::Teach(router, address) => drop(next.addresses.insert(*router, address.clone())),
            Step::Forget(router) => drop(next.addresses.remove(router)),
            Step::Vote(router) => {
                let mut more = last;
                more.insert(*router);
                next.voters.push(more);
            }
            Step::Remove(router) => {
                let mut fewer = last;
                fewer.remove(router);
                next.voters.push(fewer);
            }
            Step::Finish(voters) => {
                next.addresses.retain(|member, _| voters.contains(member) || !self.votes(*member));
                next.voters = vec![voters.clone()];
            }
            Step::HandOver(_) => {}
        }
        next
    }
}

/// An entry of the log.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    term: u64,
    batch: Arc<Batch>,
    /// From here on these are the members, whether it is agreed on or not.
    members: Option<Members>,
}

/// What the log begins behind.
#[derive(Clone, Debug)]
pub(super) struct Snapshot {
    index: u64,
    term: u64,
    mseq: MSeq,
    members: Members,
}

/// What a router keeps on its disk.
#[derive(Clone, Debug)]
pub(super) struct Stored {
    term: u64,
    voted: Option<Member>,
    snapshot: Snapshot,
    log: Vec<Entry>,
}

/// A write to the disk; they are done in order.
#[derive(Clone, Debug)]
pub(super) enum Write {
    Vote(u64, Option<Member>),
    /// Replaces the log behind an index.
    Append(u64, Vec<Entry>),
    /// A snapshot; with false, the log is dropped as well.
    Snapshot(Box<Snapshot>, bool),
}

impl Write {
    /// The end of the log behind it, if it changes that.
    pub(super) fn end(&self) -> Option<u64> {
        match self {
            Write::Append(after, entries) => Some(after + entries.len() as u64),
            Write::Snapshot(snapshot, false) => Some(snapshot.index),
            Write::Snapshot(_, true) | Write::Vote(..) => None,
        }
    }
}

impl Stored {
    /// An empty disk.
    pub(super) fn new(mseq: MSeq, members: Members) -> Stored {
        let snapshot = Snapshot { index: 0, term: 0, mseq, members };
        Stored { term: 0, voted: None, snapshot, log: Vec::new() }
    }

    /// Index of the last entry.
    pub(super) fn end(&self) -> u64 {
        self.snapshot.index + self.log.len() as u64
    }

    /// The members at the end of the log, and the index from which they are.
    fn members(&self) -> (&Members, u64) {
        let changes = self.log.iter().enumerate().rev();
        let mut changes = changes.filter_map(|(at, entry)| Some((entry.members.as_ref()?, at)));
        match changes.next() {
            Some((members, at)) => (members, self.snapshot.index + at as u64 + 1),
            None => (&self.snapshot.members, self.snapshot.index),
        }
    }

    /// A write has reached the disk.
    pub(super) fn apply(&mut self, write: Write) {
        match write {
            Write::Vote(term, voted) => (self.term, self.voted) = (term, voted),
            Write::Append(after, entries) => {
                self.log.truncate((after - self.snapshot.index) as usize);
                self.log.extend(entries);
            }
            Write::Snapshot(snapshot, keep) => {
                match keep {
                    true => drop(self.log.drain(..(snapshot.index - self.snapshot.index) as usize)),
                    false => self.log.clear(),
                }
                self.snapshot = *snapshot;
            }
        }
    }
}

/// What routers' consensus says to one another. It may be lost, repeated and reordered.
#[derive(Clone, Debug)]
pub(super) enum Message {
    AskVote {
        term: u64,
        last: (u64, u64),
    },
    Vote {
        term: u64,
    },
    Append {
        term: u64,
        after: (u64, u64),
        entries: Vec<Entry>,
        commit: u64,
        /// When it was sent, by the leader's clock.
        at_ms: u64,
    },
    /// The follower has the leader's log up to `index`, or (refused) should be sent it from behind `index`.
    Appended {
        term: u64,
        accepted: bool,
        index: u64,
        /// When what it answers was sent.
        at_ms: u64,
    },
    Install {
        term: u64,
        snapshot: Snapshot,
        at_ms: u64,
    },
    /// The leader wants the receiver to lead.
    HandOver {
        term: u64,
    },
}

impl Message {
    /// In a line.
    pub(super) fn brief(&self) -> String {
        match self {
            Message::Append { term, after, entries, commit, .. } => {
                format!("append term={term} after={after:?} entries={} commit={commit}", entries.len())
            }
            Message::Install { term, snapshot, .. } => {
                format!("install term={term} index={}", snapshot.index)
            }
            other => format!("{other:?}"),
        }
    }
}

/// What is to be done, in order.
#[derive(Debug)]
pub(super) enum Output {
    /// Send; with true only once the writes before it are on disk.
    Send(Member, Message, bool),
    Write(Write),
    /// Tell the router what the state machine has learned, from an entry of this term.
    Learned(u64, Event),
    /// Tell the router who leads.
    Leadership(Event),
    /// A proposal was learned, or failed.
    Proposed(u64, bool),
}

#[derive(Debug)]
enum Role {
    Follower(Option<Member>),
    Candidate(BTreeSet<Member>),
    Leader {
        next: BTreeMap<Member, u64>,
        matched: BTreeMap<Member, u64>,
        heard_ms: BTreeMap<Member, u64>,
        /// When the last of what each has answered was sent: then it followed.
        followed_ms: BTreeMap<Member, u64>,
        heartbeat_ms: u64,
    },
}

/// One router's share in the consensus.
#[derive(Debug)]
pub(super) struct Node {
    id: Member,
    /// At the end of the log, and from which index on.
    members: (Members, u64),
    stored: Stored,
    /// Up to here the log is on disk.
    synced: u64,
    commit: u64,
    applied: Snapshot,
    /// The m-seq after some entries, from the snapshot on.
    marks: VecDeque<Snapshot>,
    /// The messages behind the snapshot, as they were learned.
    history: VecDeque<Routed>,
    role: Role,
    proposals: BTreeMap<u64, (u64, u64)>,
    deadline_ms: u64,
    now_ms: u64,
    outputs: Vec<Output>,
}

impl Node {
    /// Goes on from what is on disk.
    pub(super) fn new(id: Member, stored: Stored, random: &mut Random) -> Node {
        let first = stored.snapshot.clone();
        let (members, since) = stored.members();
        Node {
            id,
            members: (members.clone(), since),
            synced: stored.end(),
            commit: first.index,
            applied: first.clone(),
            marks: VecDeque::from([first]),
            history: VecDeque::new(),
            role: Role::Follower(None),
            proposals: BTreeMap::new(),
            deadline_ms: random.within(ELECTION_MS),
            now_ms: 0,
            outputs: Vec::new(),
            stored,
        }
    }

    /// The m-seq at the beginning of the log.
    pub(super) fn first(&self) -> &MSeq {
        &self.stored.snapshot.mseq
    }

    /// Who the routers are, as far as it has learned.
    pub(super) fn routers(&self) -> &Arc<Routers> {
        self.applied.mseq.routers()
    }

    /// How things stand; nothing when it does not lead, or has not yet agreed on anything in its term.
    pub(super) fn standing(&self) -> Option<Standing> {
        let Role::Leader { matched, heard_ms, .. } = &self.role else { return None };
        if self.term_at(self.commit) != Some(self.stored.term) {
            return None;
        }
        let last = self.last().0;
        let near = matched.iter().filter(|(_, index)| **index + NEAR >= last).map(|(member, _)| *member);
        let live = heard_ms.iter().filter(|(_, at)| **at + LIVE_MS > self.now_ms).map(|(member, _)| *member);
        Some(Standing {
            routers: self.routers().as_ref().clone(),
            leader: self.id,
            unfinished: match &self.applied.members.voters[..] {
                [_, .., last] => Some(last.clone()),
                _ => None,
            },
            changing: self.members.1 > self.applied.index,
            near: near.chain([self.id]).collect(),
            live: live.chain([self.id]).collect(),
        })
    }

    /// Takes a step of a change of the members, if it leads and has come to the end of the last one.
    pub(super) fn change(&mut self, step: &Step) {
        let Some(standing) = self.standing() else { return };
        if let Step::HandOver(to) = step {
            return self.send(*to, Message::HandOver { term: self.stored.term }, false);
        }
        if !standing.changing {
            let (last, term) = (self.last().0, self.stored.term);
            let members = Some(self.members.0.after(step, term));
            self.write(Write::Append(last, vec![Entry { term, batch: Arc::default(), members }]));
            self.append_to_all(false);
        }
    }

    /// What was learned behind `after`, at most `count` messages; an error when the log begins later.
    pub(super) fn read(&self, after: Ts, count: usize) -> Result<(Vec<Routed>, Ts), Ts> {
        let first = self.stored.snapshot.mseq.ts();
        if after < first {
            return Err(first);
        }
        let routed: Vec<Routed> =
            self.history.iter().skip((after.0 - first.0) as usize).take(count).cloned().collect();
        let through = routed.last().map_or(after, |routed| routed.ts);
        Ok((routed, through))
    }

    /// Whether it leads, in which term.
    pub(super) fn leads(&self) -> Option<u64> {
        matches!(self.role, Role::Leader { .. }).then_some(self.stored.term)
    }

    pub(super) fn take_outputs(&mut self) -> Vec<Output> {
        std::mem::take(&mut self.outputs)
    }

    fn write(&mut self, write: Write) {
        self.stored.apply(write.clone());
        let (members, since) = self.stored.members();
        if since != self.members.1 || !matches!(write, Write::Vote(..)) {
            self.members = (members.clone(), since);
        }
        self.outputs.push(Output::Write(write));
    }

    fn last(&self) -> (u64, u64) {
        let index = self.stored.end();
        (index, self.term_at(index).unwrap_or(0))
    }

    fn term_at(&self, index: u64) -> Option<u64> {
        let first = &self.stored.snapshot;
        match index.checked_sub(first.index)? {
            0 => Some(first.term),
            n => self.stored.log.get(n as usize - 1).map(|entry| entry.term),
        }
    }

    fn send(&mut self, to: Member, message: Message, after_writes: bool) {
        self.outputs.push(Output::Send(to, message, after_writes));
    }

    fn others(&self) -> Vec<Member> {
        self.members.0.addresses.keys().copied().filter(|member| *member != self.id).collect()
    }

    /// Time passes.
    pub(super) fn tick(&mut self, now_ms: u64, random: &mut Random) {
        self.now_ms = now_ms;
        if let Role::Leader { heartbeat_ms, .. } = &mut self.role {
            if now_ms >= *heartbeat_ms {
                *heartbeat_ms = now_ms + HEARTBEAT_MS;
                self.append_to_all(true);
            }
        } else if now_ms >= self.deadline_ms {
            self.deadline_ms = now_ms + random.within(ELECTION_MS);
            if self.members.0.votes(self.id) {
                self.stand();
            }
        }
    }

    fn stand(&mut self) {
        self.write(Write::Vote(self.stored.term + 1, Some(self.id)));
        if !matches!(self.role, Role::Follower(None)) {
            self.outputs.push(Output::Leadership(Event::Follower(None)));
        }
        self.role = Role::Candidate([self.id].into());
        let (term, last) = (self.stored.term, self.last());
        for other in self.others() {
            self.send(other, Message::AskVote { term, last }, true);
        }
        self.elected();
    }

    fn elected(&mut self) {
        let Role::Candidate(votes) = &self.role else { return };
        if !self.members.0.is_quorum(votes) {
            return;
        }
        let last = self.last().0;
        let next = self.others().into_iter().map(|other| (other, last + 1)).collect();
        self.role = Role::Leader {
            next,
            matched: BTreeMap::new(),
            heard_ms: BTreeMap::new(),
            followed_ms: BTreeMap::new(),
            heartbeat_ms: self.now_ms + HEARTBEAT_MS,
        };
        let term = self.stored.term;
        if planted(Bug::LeaderBeforeItsLog) {
            self.outputs.push(Output::Leadership(Event::Leader(term)));
        }
        // Once it has learned a batch of its own term, it has learned all that earlier leaders agreed on.
        let entry = Entry { term, batch: Arc::default(), members: None };
        self.write(Write::Append(last, vec![entry]));
        self.append_to_all(false);
    }

    /// When a quorum is known to have followed this router for the last time, if it leads.
    pub(super) fn led_ms(&self) -> Option<u64> {
        let Role::Leader { followed_ms, .. } = &self.role else { return None };
        let followed = |member: &Member| match *member == self.id {
            true => Some(self.now_ms),
            false => followed_ms.get(member).copied(),
        };
        self.members.0.reached(followed).flatten()
    }

    /// Proposes a batch; false when this router does not lead.
    pub(super) fn propose(&mut self, proposal: u64, batch: Batch) -> bool {
        if self.leads().is_none() {
            return false;
        }
        let (last, term) = (self.last().0, self.stored.term);
        self.proposals.insert(last + 1, (term, proposal));
        self.write(Write::Append(last, vec![Entry { term, batch: Arc::new(batch), members: None }]));
        self.append_to_all(false);
        true
    }

    fn append_to_all(&mut self, heartbeat: bool) {
        for other in self.others() {
            self.append(other, heartbeat);
        }
    }

    fn append(&mut self, to: Member, heartbeat: bool) {
        let (last, commit, term, synced) = (self.last().0, self.commit, self.stored.term, self.synced);
        let at_ms = self.now_ms;
        let Role::Leader { next, .. } = &mut self.role else { return };
        let next = next.entry(to).or_insert(last + 1);
        let first = self.stored.snapshot.index;
        if *next <= first {
            let snapshot = self.stored.snapshot.clone();
            *next = first + 1;
            return self.send(to, Message::Install { term, snapshot, at_ms }, false);
        }
        let after = *next - 1;
        let skip = (after - first) as usize;
        let entries = (*next..).zip(self.stored.log.iter().skip(skip).take(ENTRIES));
        // As in the log store: others hear of members only when they are on disk here.
        let may_go = |(index, entry): &(u64, &Entry)| entry.members.is_none() || *index <= synced;
        let entries: Vec<Entry> = entries.take_while(may_go).map(|(_, entry)| entry.clone()).collect();
        if entries.is_empty() && !heartbeat {
            return;
        }
        *next = (after + entries.len() as u64 + 1).min(last + 1);
        let after = (after, self.term_at(after).unwrap_or(0));
        self.send(to, Message::Append { term, after, entries, commit, at_ms }, false);
    }

    /// The disk has everything that was written up to the log's `index`.
    pub(super) fn synced(&mut self, index: u64, random: &mut Random) {
        self.synced = index.min(self.last().0);
        self.append_to_all(false);
        self.advance(random);
    }

    fn follow(&mut self, term: u64, leader: Option<Member>, random: &mut Random) {
        if term > self.stored.term {
            self.write(Write::Vote(term, None));
        } else if matches!(&self.role, Role::Follower(known) if *known == leader || leader.is_none()) {
            return;
        }
        // What was proposed may be learned all the same: whoever proposed it hears of it at once, or when it is known.
        if matches!(self.role, Role::Leader { .. }) && random.one_in(2) {
            for (_, (_, proposal)) in std::mem::take(&mut self.proposals) {
                self.outputs.push(Output::Proposed(proposal, false));
            }
        }
        self.role = Role::Follower(leader);
        let leader = leader.map(crate::message::ProcessId::router);
        self.outputs.push(Output::Leadership(Event::Follower(leader)));
    }

    /// Another router's consensus has sent something.
    pub(super) fn receive(&mut self, from: Member, message: Message, random: &mut Random) {
        let term = match &message {
            Message::AskVote { term, .. }
            | Message::Vote { term }
            | Message::Append { term, .. }
            | Message::Appended { term, .. }
            | Message::Install { term, .. }
            | Message::HandOver { term } => *term,
        };
        // Nobody talks to those who have been removed.
        if self.routers().is_removed(crate::message::ProcessId::router(from)) {
            return;
        }
        if term > self.stored.term {
            self.follow(term, None, random);
        }
        let current = term == self.stored.term;
        match message {
            Message::AskVote { last, .. } => {
                let (index, own) = self.last();
                let free = self.stored.voted.is_none_or(|voted| voted == from);
                if current && free && (last.1, last.0) >= (own, index) {
                    self.write(Write::Vote(term, Some(from)));
                    self.deadline_ms = self.now_ms + random.within(ELECTION_MS);
                    self.send(from, Message::Vote { term }, true);
                }
            }
            Message::Vote { .. } => {
                if let Role::Candidate(votes) = &mut self.role
                    && current
                {
                    votes.insert(from);
                    self.elected();
                }
            }
            Message::Append { after, entries, commit, at_ms, .. } => {
                if !current {
                    let term = self.stored.term;
                    let refusal = Message::Appended { term, accepted: false, index: 0, at_ms };
                    return self.send(from, refusal, false);
                }
                self.follow(term, Some(from), random);
                self.deadline_ms = self.now_ms + random.within(ELECTION_MS);
                self.take(from, after, entries, (commit, at_ms), random);
            }
            Message::Appended { accepted, index, at_ms, .. } if current => {
                self.acknowledged(from, accepted, index, at_ms, random);
            }
            Message::Appended { .. } => {}
            Message::Install { snapshot, at_ms, .. } => {
                if !current {
                    return;
                }
                self.follow(term, Some(from), random);
                self.deadline_ms = self.now_ms + random.within(ELECTION_MS);
                let (index, of_term) = (snapshot.index, snapshot.term);
                if index > self.commit {
                    let mseq = snapshot.mseq.clone();
                    self.commit = index;
                    self.synced = index;
                    self.applied = snapshot.clone();
                    self.marks = VecDeque::from([snapshot.clone()]);
                    self.history.clear();
                    self.write(Write::Snapshot(Box::new(snapshot), false));
                    self.outputs.push(Output::Learned(of_term, Event::Installed(mseq)));
                }
                let term = self.stored.term;
                self.send(from, Message::Appended { term, accepted: true, index, at_ms }, true);
            }
            Message::HandOver { .. } => {
                if current && self.members.0.votes(self.id) && !matches!(self.role, Role::Leader { .. }) {
                    self.stand();
                }
            }
        }
    }

    /// Takes entries of the leader's log.
    fn take(
        &mut self,
        from: Member,
        after: (u64, u64),
        entries: Vec<Entry>,
        (commit, at_ms): (u64, u64),
        random: &mut Random,
    ) {
        let term = self.stored.term;
        let first = self.stored.snapshot.index;
        let (mut index, last) = (after.0, self.last().0);
        if index > last || (index > first && self.term_at(index) != Some(after.1)) {
            let index = (index - 1).min(last).max(self.commit);
            return self.send(from, Message::Appended { term, accepted: false, index, at_ms }, false);
        }
        let mut entries = VecDeque::from(entries);
        // What is here already stays.
        while let Some(entry) = entries.front()
            && (index < first || self.term_at(index + 1) == Some(entry.term))
        {
            entries.pop_front();
            index += 1;
        }
        let end = index + entries.len() as u64;
        if !entries.is_empty() {
            assert!(index >= self.commit, "an entry that was agreed on would be replaced");
            self.synced = self.synced.min(index);
            let lost = self.proposals.split_off(&(index + 1));
            self.outputs.extend(lost.into_values().map(|(_, proposal)| Output::Proposed(proposal, false)));
            self.write(Write::Append(index, entries.into()));
        }
        self.commit = self.commit.max(commit.min(end));
        self.apply(random);
        let on_disk = !planted(Bug::LostFsync);
        self.send(from, Message::Appended { term, accepted: true, index: end, at_ms }, on_disk);
    }

    fn acknowledged(&mut self, from: Member, accepted: bool, index: u64, at_ms: u64, random: &mut Random) {
        let last = self.last().0;
        let now_ms = self.now_ms;
        let Role::Leader { next, matched, heard_ms, followed_ms, .. } = &mut self.role else { return };
        heard_ms.insert(from, now_ms);
        let followed_ms = followed_ms.entry(from).or_default();
        *followed_ms = at_ms.max(*followed_ms);
        let known = matched.get(&from).copied().unwrap_or(0);
        match accepted {
            true => {
                matched.insert(from, known.max(index));
                let next = next.entry(from).or_insert(index + 1);
                *next = (*next).max(index + 1);
            }
            false => drop(next.insert(from, index.max(known) + 1)),
        }
        let behind = next.get(&from).is_some_and(|next| *next <= last);
        self.advance(random);
        if behind || !accepted {
            self.append(from, false);
        }
    }

    /// What a quorum has on disk is agreed on.
    fn advance(&mut self, random: &mut Random) {
        let Role::Leader { matched, .. } = &self.role else { return };
        let index = |member: &Member| match *member == self.id {
            true => self.synced,
            false => matched.get(member).copied().unwrap_or(0),
        };
        let agreed = self.members.0.reached(index).unwrap_or(0);
        if agreed > self.commit && self.term_at(agreed) == Some(self.stored.term) {
            self.commit = agreed;
            self.apply(random);
            self.append_to_all(true);
        }
    }

    fn apply(&mut self, random: &mut Random) {
        while self.applied.index < self.commit {
            let index = self.applied.index + 1;
            let entry = self.stored.log[(index - self.stored.snapshot.index) as usize - 1].clone();
            let mut learned = self.applied.mseq.learn(&entry.batch);
            self.applied.index = index;
            self.applied.term = entry.term;
            if let Some(members) = &entry.members {
                let routers = self.routers().changed(index, members.cluster, members.entries());
                learned.push(self.applied.mseq.learn_routers(routers));
                self.applied.members = members.clone();
            }
            self.history.extend(learned.iter().filter_map(|learned| match learned {
                Learned::Message(routed) => Some(routed.clone()),
                _ => None,
            }));
            if random.one_in(3) {
                self.marks.push_back(self.applied.clone());
            }
            if !learned.is_empty() {
                let mseq = self.applied.mseq.clone();
                self.outputs.push(Output::Learned(entry.term, Event::Learned { mseq, learned }));
            }
            let own = self.leads() == Some(entry.term);
            if own && entry.batch.0.is_empty() && entry.members.is_none() {
                self.outputs.push(Output::Leadership(Event::Leader(entry.term)));
            }
            if let Some((term, proposal)) = self.proposals.remove(&index) {
                self.outputs.push(Output::Proposed(proposal, term == entry.term));
            }
        }
        if self.leads().is_some() && !self.applied.members.votes(self.id) && !self.members.0.votes(self.id) {
            self.role = Role::Follower(None);
            self.outputs.push(Output::Leadership(Event::Follower(None)));
        }
    }

    /// The log up to `ts` is not needed any more.
    pub(super) fn truncate(&mut self, ts: Ts) {
        let Some(mark) = self.marks.iter().skip(1).rev().find(|mark| mark.mseq.ts() <= ts).cloned() else {
            return;
        };
        self.marks.retain(|other| other.index >= mark.index);
        let purged = (mark.mseq.ts().0 - self.stored.snapshot.mseq.ts().0) as usize;
        self.history.drain(..purged);
        self.write(Write::Snapshot(Box::new(mark), true));
    }
}
