//! A model of Raft (Ongaro and Ousterhout) that gives the events of [`crate::raft`]: terms, votes, a log with quorums,
//! followers that lag, snapshots that are installed. Pure: messages, ticks and the progress of the disk in; messages,
//! writes and events out.
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
};

/// A leader shows that it lives this often.
const HEARTBEAT_MS: u64 = 50;
/// A follower that hears nothing for so long stands for election.
const ELECTION_MS: std::ops::Range<u64> = 150..300;
/// Entries in one append.
const ENTRIES: usize = 8;

/// A router's number.
pub(super) type Member = u32;

/// An entry of the log.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    term: u64,
    batch: Arc<Batch>,
}

/// What a router keeps on its disk.
#[derive(Clone, Debug)]
pub(super) struct Stored {
    term: u64,
    voted: Option<Member>,
    /// The m-seq after the entry at this index and term: the log begins behind it.
    snapshot: (u64, u64, MSeq),
    log: Vec<Entry>,
}

/// A write to the disk; they are done in order.
#[derive(Clone, Debug)]
pub(super) enum Write {
    Vote(u64, Option<Member>),
    /// Replaces the log behind an index.
    Append(u64, Vec<Entry>),
    /// A snapshot; with false, the log is dropped as well.
    Snapshot((u64, u64, MSeq), bool),
}

impl Write {
    /// The end of the log behind it, if it changes that.
    pub(super) fn end(&self) -> Option<u64> {
        match self {
            Write::Append(after, entries) => Some(after + entries.len() as u64),
            Write::Snapshot((index, ..), false) => Some(*index),
            Write::Snapshot(_, true) | Write::Vote(..) => None,
        }
    }
}

impl Stored {
    /// An empty disk.
    pub(super) fn new(mseq: MSeq) -> Stored {
        Stored { term: 0, voted: None, snapshot: (0, 0, mseq), log: Vec::new() }
    }

    /// Index of the last entry.
    pub(super) fn end(&self) -> u64 {
        self.snapshot.0 + self.log.len() as u64
    }

    /// A write has reached the disk.
    pub(super) fn apply(&mut self, write: Write) {
        match write {
            Write::Vote(term, voted) => (self.term, self.voted) = (term, voted),
            Write::Append(after, entries) => {
                self.log.truncate((after - self.snapshot.0) as usize);
                self.log.extend(entries);
            }
            Write::Snapshot(snapshot, keep) => {
                match keep {
                    true => drop(self.log.drain(..(snapshot.0 - self.snapshot.0) as usize)),
                    false => self.log.clear(),
                }
                self.snapshot = snapshot;
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
    },
    /// The follower has the leader's log up to `index`, or (refused) should be sent it from behind `index`.
    Appended {
        term: u64,
        accepted: bool,
        index: u64,
    },
    Install {
        term: u64,
        snapshot: (u64, u64, MSeq),
    },
}

impl Message {
    /// In a line.
    pub(super) fn brief(&self) -> String {
        match self {
            Message::Append { term, after, entries, commit } => {
                format!("append term={term} after={after:?} entries={} commit={commit}", entries.len())
            }
            Message::Install { term, snapshot: (index, ..) } => format!("install term={term} index={index}"),
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
    Leader { next: BTreeMap<Member, u64>, matched: BTreeMap<Member, u64>, heartbeat_ms: u64 },
}

/// One router's share in the consensus.
#[derive(Debug)]
pub(super) struct Node {
    id: Member,
    members: Vec<Member>,
    stored: Stored,
    /// Up to here the log is on disk.
    synced: u64,
    commit: u64,
    applied: (u64, MSeq),
    /// The m-seq after some entries, from the snapshot on.
    marks: VecDeque<(u64, u64, MSeq)>,
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
    pub(super) fn new(id: Member, members: Vec<Member>, stored: Stored, random: &mut Random) -> Node {
        let (index, term, mseq) = stored.snapshot.clone();
        Node {
            id,
            members,
            synced: stored.end(),
            commit: index,
            applied: (index, mseq.clone()),
            marks: VecDeque::from([(index, term, mseq)]),
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
        &self.stored.snapshot.2
    }

    /// What was learned behind `after`, at most `count` messages; an error when the log begins later.
    pub(super) fn read(&self, after: Ts, count: usize) -> Result<(Vec<Routed>, Ts), Ts> {
        let first = self.stored.snapshot.2.ts();
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
        self.outputs.push(Output::Write(write));
    }

    fn last(&self) -> (u64, u64) {
        let index = self.stored.end();
        (index, self.term_at(index).unwrap_or(0))
    }

    fn term_at(&self, index: u64) -> Option<u64> {
        let (first, term, _) = &self.stored.snapshot;
        match index.checked_sub(*first)? {
            0 => Some(*term),
            n => self.stored.log.get(n as usize - 1).map(|entry| entry.term),
        }
    }

    fn send(&mut self, to: Member, message: Message, after_writes: bool) {
        self.outputs.push(Output::Send(to, message, after_writes));
    }

    fn others(&self) -> Vec<Member> {
        self.members.iter().copied().filter(|member| *member != self.id).collect()
    }

    fn is_quorum(&self, count: usize) -> bool {
        2 * count > self.members.len()
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
            self.stand();
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
        if !self.is_quorum(votes.len()) {
            return;
        }
        let last = self.last().0;
        let next = self.others().into_iter().map(|other| (other, last + 1)).collect();
        self.role = Role::Leader { next, matched: BTreeMap::new(), heartbeat_ms: self.now_ms + HEARTBEAT_MS };
        let term = self.stored.term;
        if planted(Bug::LeaderBeforeItsLog) {
            self.outputs.push(Output::Leadership(Event::Leader(term)));
        }
        // Once it has learned a batch of its own term, it has learned all that earlier leaders agreed on.
        let entry = Entry { term, batch: Arc::new(Batch::default()) };
        self.write(Write::Append(last, vec![entry]));
        self.append_to_all(false);
    }

    /// Proposes a batch; false when this router does not lead.
    pub(super) fn propose(&mut self, proposal: u64, batch: Batch) -> bool {
        if self.leads().is_none() {
            return false;
        }
        let (last, term) = (self.last().0, self.stored.term);
        self.proposals.insert(last + 1, (term, proposal));
        self.write(Write::Append(last, vec![Entry { term, batch: Arc::new(batch) }]));
        self.append_to_all(false);
        true
    }

    fn append_to_all(&mut self, heartbeat: bool) {
        for other in self.others() {
            self.append(other, heartbeat);
        }
    }

    fn append(&mut self, to: Member, heartbeat: bool) {
        let (last, commit, term) = (self.last().0, self.commit, self.stored.term);
        let Role::Leader { next, .. } = &mut self.role else { return };
        let Some(next) = next.get_mut(&to) else { return };
        let first = self.stored.snapshot.0;
        if *next <= first {
            let snapshot = self.stored.snapshot.clone();
            *next = first + 1;
            return self.send(to, Message::Install { term, snapshot }, false);
        }
        let after = *next - 1;
        let skip = (after - first) as usize;
        let entries: Vec<Entry> = self.stored.log.iter().skip(skip).take(ENTRIES).cloned().collect();
        if entries.is_empty() && !heartbeat {
            return;
        }
        *next = (after + entries.len() as u64 + 1).min(last + 1);
        let after = (after, self.term_at(after).unwrap_or(0));
        self.send(to, Message::Append { term, after, entries, commit }, false);
    }

    /// The disk has everything that was written up to the log's `index`.
    pub(super) fn synced(&mut self, index: u64, random: &mut Random) {
        self.synced = index.min(self.last().0);
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
            | Message::Install { term, .. } => *term,
        };
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
            Message::Append { after, entries, commit, .. } => {
                if !current {
                    let refusal = Message::Appended { term: self.stored.term, accepted: false, index: 0 };
                    return self.send(from, refusal, false);
                }
                self.follow(term, Some(from), random);
                self.deadline_ms = self.now_ms + random.within(ELECTION_MS);
                self.take(from, after, entries, commit, random);
            }
            Message::Appended { accepted, index, .. } if current => {
                self.acknowledged(from, accepted, index, random);
            }
            Message::Appended { .. } => {}
            Message::Install { snapshot, .. } => {
                if !current {
                    return;
                }
                self.follow(term, Some(from), random);
                self.deadline_ms = self.now_ms + random.within(ELECTION_MS);
                let (index, of_term) = (snapshot.0, snapshot.1);
                if index > self.commit {
                    let mseq = snapshot.2.clone();
                    self.commit = index;
                    self.synced = index;
                    self.applied = (index, mseq.clone());
                    self.marks = VecDeque::from([snapshot.clone()]);
                    self.history.clear();
                    self.write(Write::Snapshot(snapshot, false));
                    self.outputs.push(Output::Learned(of_term, Event::Installed(mseq)));
                }
                let term = self.stored.term;
                self.send(from, Message::Appended { term, accepted: true, index }, true);
            }
        }
    }

    /// Takes entries of the leader's log.
    fn take(
        &mut self,
        from: Member,
        after: (u64, u64),
        entries: Vec<Entry>,
        commit: u64,
        random: &mut Random,
    ) {
        let term = self.stored.term;
        let first = self.stored.snapshot.0;
        let (mut index, last) = (after.0, self.last().0);
        if index > last || (index > first && self.term_at(index) != Some(after.1)) {
            let index = (index - 1).min(last).max(self.commit);
            return self.send(from, Message::Appended { term, accepted: false, index }, false);
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
        self.send(from, Message::Appended { term, accepted: true, index: end }, on_disk);
    }

    fn acknowledged(&mut self, from: Member, accepted: bool, index: u64, random: &mut Random) {
        let last = self.last().0;
        let Role::Leader { next, matched, .. } = &mut self.role else { return };
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
        let mut indices: Vec<u64> = matched.values().copied().chain([self.synced]).collect();
        indices.resize(self.members.len(), 0);
        indices.sort_unstable_by(|a, b| b.cmp(a));
        let agreed = indices[self.members.len() / 2];
        if agreed > self.commit && self.term_at(agreed) == Some(self.stored.term) {
            self.commit = agreed;
            self.apply(random);
            self.append_to_all(true);
        }
    }

    fn apply(&mut self, random: &mut Random) {
        while self.applied.0 < self.commit {
            let index = self.applied.0 + 1;
            let entry = self.stored.log[(index - self.stored.snapshot.0) as usize - 1].clone();
            let learned = self.applied.1.learn(&entry.batch);
            self.applied.0 = index;
            self.history.extend(learned.iter().filter_map(|learned| match learned {
                Learned::Message(routed) => Some(routed.clone()),
                _ => None,
            }));
            if random.one_in(3) {
                self.marks.push_back((index, entry.term, self.applied.1.clone()));
            }
            if !learned.is_empty() {
                let mseq = self.applied.1.clone();
                self.outputs.push(Output::Learned(entry.term, Event::Learned { mseq, learned }));
            }
            let own = self.leads() == Some(entry.term);
            if own && entry.batch.0.is_empty() {
                self.outputs.push(Output::Leadership(Event::Leader(entry.term)));
            }
            if let Some((term, proposal)) = self.proposals.remove(&index) {
                self.outputs.push(Output::Proposed(proposal, term == entry.term));
            }
        }
    }

    /// The log up to `ts` is not needed any more.
    pub(super) fn truncate(&mut self, ts: Ts) {
        let Some(mark) = self.marks.iter().skip(1).rev().find(|(_, _, mseq)| mseq.ts() <= ts).cloned() else {
            return;
        };
        self.marks.retain(|(index, ..)| *index >= mark.0);
        let purged = (mark.2.ts().0 - self.stored.snapshot.2.ts().0) as usize;
        self.history.drain(..purged);
        self.write(Write::Snapshot(mark, true));
    }
}
