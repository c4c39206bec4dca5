//! Routers of the simulated cluster: [`crate::router::core`] over the model of the consensus and a simulated disk.

use std::collections::{BTreeMap, VecDeque};

use super::{
    consensus::{Member, Members, Message, Node, Output, Stored, Write},
    world::{Item, World},
};
use crate::{
    message::{ProcessId, ProcessKind},
    raft::Event,
    router::{
        core::{Core, Effect, Input, Limits, delivery},
        mseq::{Learned, MSeq},
    },
    routers::{
        Routers,
        change::{Decision, RouterChange, decide, upkeep},
    },
    wire::Wire,
};

/// A router's disk: what is written survives a crash once it is synced, and perhaps earlier.
#[derive(Debug)]
pub(super) struct RouterDisk {
    stored: Stored,
    /// Writes that are not synced, with the end of the log after each.
    pending: VecDeque<(Write, u64)>,
    /// The end of the log that is synced.
    end: u64,
    written: u64,
    synced: u64,
    last_us: u64,
}

/// A router's life.
pub(super) struct RouterHost {
    core: Core,
    consensus: Node,
    /// Makes its leaderships unlike those of any other life.
    salt: u64,
    /// Requests for other routers, by who asks and the asker's number, with the asker's incarnation.
    requests: BTreeMap<(ProcessId, u64), (u64, RouterChange)>,
    /// Messages that wait for the disk: how many writes must be synced.
    held: VecDeque<(u64, Member, Message)>,
    learned_us: u64,
    leadership_us: u64,
}

/// Small, so that proposals and deliveries are split and old messages come from the log.
fn limits() -> Limits {
    Limits {
        proposal_messages: 6,
        deliver_messages: 5,
        window_bytes: 16_000,
        waiting: 16,
        ..Limits::default()
    }
}

impl World {
    pub(super) fn start_router(&mut self, id: ProcessId) {
        let config = &self.config;
        let first: Vec<Member> = (1..=self.first_routers).collect();
        // One that was added knows nobody before it is taught.
        let members = if first.contains(&id.number) { Members::first(first) } else { Members::default() };
        let mut mseq = MSeq::new(config.as_ref().clone());
        mseq.learn_routers(Routers::first(self.first_routers));
        let disk = self.router_disks.entry(id).or_insert_with(|| RouterDisk {
            stored: Stored::new(mseq, members),
            pending: VecDeque::new(),
            end: 0,
            written: 0,
            synced: 0,
            last_us: 0,
        });
        let stored = disk.stored.clone();
        let consensus = Node::new(id.number, stored, &mut self.random);
        let core = Core::new(id, consensus.first().clone(), limits());
        let salt = self.random.bits();
        let (held, now_us) = (VecDeque::new(), self.now_us);
        let requests = BTreeMap::new();
        let host =
            RouterHost { core, consensus, salt, requests, held, learned_us: now_us, leadership_us: now_us };
        self.routers.insert(id, host);
    }

    /// What was not synced is lost, but for the first few writes.
    pub(super) fn crash_router(&mut self, id: ProcessId) {
        self.routers.remove(&id);
        let Some(disk) = self.router_disks.get_mut(&id) else { return };
        let survive = self.random.below(disk.pending.len() as u64 + 1) as usize;
        for (index, (write, _)) in std::mem::take(&mut disk.pending).into_iter().enumerate() {
            match write {
                write if index < survive => disk.stored.apply(write),
                // Torn: some records of the last write.
                Write::Append(after, mut entries) if index == survive => {
                    entries.truncate(self.random.below(entries.len() as u64 + 1) as usize);
                    disk.stored.apply(Write::Append(after, entries));
                }
                _ => break,
            }
        }
        disk.end = disk.stored.end();
        disk.written = 0;
        disk.synced = 0;
    }

    pub(super) fn router_input(&mut self, id: ProcessId, input: Input) -> Result<(), String> {
        let heard = match &input {
            Input::Received { wire: Wire::Routers(routers), .. } => Some(routers.clone()),
            Input::Learned { mseq, .. } | Input::Installed(mseq) => Some(mseq.routers().clone()),
            _ => None,
        };
        let input = match input {
            Input::Received { from, wire: Wire::AskLease { incarnation, asked_ms } } => {
                let led_ms = self.routers.get(&id).and_then(|host| host.consensus.led_ms());
                Input::AskLease { from, incarnation, asked_ms, now_ms: self.clock_ms(id), led_ms }
            }
            input => input,
        };
        self.router_handles(id, input)?;
        if let Some(routers) = heard {
            self.hear_routers(id, &routers);
        }
        Ok(())
    }

    fn router_handles(&mut self, id: ProcessId, input: Input) -> Result<(), String> {
        let Some(host) = self.routers.get_mut(&id) else { return Ok(()) };
        if let Input::Leader(leadership) = &input {
            let earlier = self.agreed.range(..leadership.wrapping_sub(host.salt));
            if let Some((term, agreed)) = earlier.last()
                && *agreed > host.core.ts()
            {
                let ts = host.core.ts();
                return Err(format!(
                    "{id} leads and has learned what is before {ts}, but leader {term} had agreed on {agreed}"
                ));
            }
        }
        let effects = host.core.handle(input);
        for effect in effects {
            match effect {
                Effect::Propose { proposal, batch } => {
                    let Some(host) = self.routers.get_mut(&id) else { return Ok(()) };
                    if !host.consensus.propose(proposal, batch) {
                        let delay_us = self.delay_us();
                        let input = Input::Proposed { proposal, accepted: false };
                        self.schedule(delay_us, Item::Router { to: id, input });
                    }
                }
                Effect::Send { to, wire } => self.send(id, to, wire),
                Effect::Stream { to, stream, wires } => {
                    let up = self.is_up(to) && !self.network.are_apart(id, to);
                    for wire in wires {
                        self.send(id, to, wire);
                    }
                    let delay_us = self.delay_us();
                    let input = match up {
                        true => Input::Sent { to, stream },
                        false => Input::Unreachable { to, stream },
                    };
                    self.schedule(delay_us, Item::Router { to: id, input });
                }
                Effect::Read { to, stream, after } => {
                    let count = self.random.within(1..40) as usize;
                    let delay_us = self.delay_us();
                    let Some(host) = self.routers.get_mut(&id) else { return Ok(()) };
                    let input = match host.consensus.read(after, count) {
                        Ok((routed, through)) => {
                            let deliveries =
                                routed.iter().filter_map(|routed| delivery(routed, to)).collect();
                            Input::Read { to, stream, deliveries, through }
                        }
                        Err(purged) => Input::Purged { to, stream, purged },
                    };
                    self.schedule(delay_us, Item::Router { to: id, input });
                }
                // Nobody asks.
                Effect::Close { .. } | Effect::Look { .. } => {}
                Effect::ChangeRouters { from, incarnation, request, change } => {
                    if let Some(host) = self.routers.get_mut(&id) {
                        host.requests.insert((from, request), (incarnation, change));
                    }
                }
                Effect::Truncate(ts) => {
                    if let Some(host) = self.routers.get_mut(&id) {
                        host.consensus.truncate(ts);
                    }
                }
            }
        }
        self.consensus_outputs(id)
    }

    pub(super) fn tick_consensus(&mut self, id: ProcessId) -> Result<(), String> {
        let now_ms = self.clock_ms(id);
        if let Some(host) = self.routers.get_mut(&id) {
            host.consensus.tick(now_ms, &mut self.random);
        }
        self.change_routers(id);
        // Nobody talks to it any more: it asks around.
        if self.is_removed(id) && self.random.one_in(40) {
            self.crash(id);
            self.lives.entry(id).or_default().gone = true;
        }
        self.consensus_outputs(id)
    }

    /// What the leader does about who the routers are, see [`crate::raft`].
    fn change_routers(&mut self, id: ProcessId) {
        let Some(host) = self.routers.get_mut(&id) else { return };
        let Some(standing) = host.consensus.standing() else { return host.requests.clear() };
        let mut next = upkeep(&standing);
        let mut answers = Vec::new();
        host.requests.retain(|(from, request), (incarnation, change)| {
            let outcome = match decide(change, &standing) {
                Decision::Done(number) => Ok(number),
                Decision::Refused(refused) => Err(refused.into()),
                Decision::Step(step) => {
                    next.get_or_insert(step);
                    return true;
                }
                Decision::Wait => return true,
            };
            // Whoever hears that it is so also sees it.
            answers.push((*from, Wire::Routers(host.consensus.routers().clone())));
            let changed = Wire::RoutersChanged { incarnation: *incarnation, request: *request, outcome };
            answers.push((*from, changed));
            false
        });
        if let Some(step) = next {
            host.consensus.change(&step);
            self.note([7, 0], || format!("{id} changes the routers: {step:?}"));
        }
        for (to, wire) in answers {
            self.send(id, to, wire);
        }
    }

    /// A router hears who the routers are.
    pub(super) fn hear_routers(&mut self, id: ProcessId, routers: &Routers) {
        if routers.is_removed(id) {
            self.note([8, 0], || format!("{id} has been removed"));
            self.crash(id);
            if let Some(life) = self.lives.get_mut(&id) {
                life.gone = true;
            }
        }
    }

    /// A process that does not reach the routers it knows asks whom it does reach, see [`crate::transport`].
    pub(super) fn ask_around(&mut self, process: ProcessId) {
        let known = self.routers.values().map(|host| host.consensus.routers());
        let Some(routers) = known.max_by_key(|routers| routers.version()).cloned() else { return };
        let reached = routers.voters().find(|router| self.is_up(*router));
        if let Some(router) = reached.filter(|_| process.kind != ProcessKind::Router) {
            self.send(router, process, Wire::Routers(routers));
        }
    }

    /// Whether any router has learned that this one was removed: who starts asks the others.
    pub(super) fn is_removed(&self, id: ProcessId) -> bool {
        self.routers.values().any(|host| host.consensus.routers().is_removed(id))
    }

    pub(super) fn receive_consensus(&mut self, from: u32, to: u32, message: Message) -> Result<(), String> {
        let id = ProcessId::router(to);
        self.note([u64::from(from), u64::from(to)], || format!("r{from} => r{to} {}", message.brief()));
        if let Some(host) = self.routers.get_mut(&id) {
            host.consensus.receive(from, message, &mut self.random);
        }
        self.consensus_outputs(id)
    }

    fn consensus_outputs(&mut self, id: ProcessId) -> Result<(), String> {
        loop {
            let Some(host) = self.routers.get_mut(&id) else { return Ok(()) };
            let outputs = host.consensus.take_outputs();
            if outputs.is_empty() {
                return Ok(());
            }
            for output in outputs {
                self.consensus_output(id, output)?;
            }
        }
    }

    fn consensus_output(&mut self, id: ProcessId, output: Output) -> Result<(), String> {
        let delay_us = self.delay_us();
        let late_us = if self.random.one_in(6) { self.random.below(150_000) } else { 0 };
        let disk_us = self.random.within(50..1_500) + self.disk_us;
        let (Some(host), Some(disk)) = (self.routers.get_mut(&id), self.router_disks.get_mut(&id)) else {
            return Ok(());
        };
        match output {
            Output::Send(to, message, after_writes) => {
                if after_writes && disk.synced < disk.written {
                    host.held.push_back((disk.written, to, message));
                } else {
                    self.send_consensus(id.number, to, message);
                }
            }
            Output::Write(write) => {
                if let Write::Append(after, _) = &write {
                    // What was to be written behind it is replaced.
                    disk.pending.iter_mut().for_each(|(_, end)| *end = (*end).min(*after));
                    disk.end = disk.end.min(*after);
                }
                disk.written += 1;
                let before = disk.pending.back().map_or(disk.end, |(_, end)| *end);
                let end = write.end().unwrap_or(before);
                disk.pending.push_back((write, end));
                disk.last_us = (disk.last_us + 1).max(self.now_us + disk_us);
                let at_us = disk.last_us;
                self.schedule_at(at_us, Item::RouterDisk(id));
            }
            Output::Learned(term, event) => {
                host.learned_us = (host.learned_us + 1).max(self.now_us + delay_us);
                let at_us = host.learned_us;
                if let Event::Learned { mseq, .. } = &event {
                    let agreed = self.agreed.entry(term).or_default();
                    *agreed = mseq.ts().max(*agreed);
                }
                let input = self.learned(id, event)?;
                self.schedule_at(at_us, Item::Router { to: id, input });
            }
            Output::Leadership(event) => {
                // It is seen by another task than what is learned, and perhaps later.
                let earliest_us = match &event {
                    Event::Leader(_) => host.learned_us + 1,
                    _ => self.now_us + late_us,
                };
                host.leadership_us = (host.leadership_us + 1).max(earliest_us);
                let (at_us, salt) = (host.leadership_us, host.salt);
                let input = match event {
                    Event::Leader(term) => Input::Leader(salt.wrapping_add(term)),
                    Event::Follower(leader) => Input::Follower(leader),
                    other => return Err(format!("{id} hears {other:?} of its leadership")),
                };
                self.note([6, 0], || format!("{id} hears {input:?}"));
                self.schedule_at(at_us, Item::Router { to: id, input });
            }
            Output::Proposed(proposal, accepted) => {
                let at_us = host.learned_us + 1 + delay_us;
                let input = Input::Proposed { proposal, accepted };
                self.schedule_at(at_us, Item::Router { to: id, input });
            }
        }
        Ok(())
    }

    /// What a router learns is what all routers learn.
    fn learned(&mut self, id: ProcessId, event: Event) -> Result<Input, String> {
        match event {
            Event::Learned { mseq, learned } => {
                for learned in &learned {
                    if let Learned::Message(routed) = learned {
                        self.replay.learn(routed, &self.statements).map_err(|e| format!("{id}: {e}"))?;
                    }
                }
                Ok(Input::Learned { mseq, learned })
            }
            Event::Installed(mseq) if mseq.ts() <= self.replay.ts() => Ok(Input::Installed(mseq)),
            other => Err(format!("{id} learns {other:?}, but the m-seq ends at {}", self.replay.ts())),
        }
    }

    /// The oldest write that was not synced is on the disk now.
    pub(super) fn router_wrote(&mut self, id: ProcessId) -> Result<(), String> {
        let (Some(host), Some(disk)) = (self.routers.get_mut(&id), self.router_disks.get_mut(&id)) else {
            return Ok(());
        };
        let Some((write, end)) = disk.pending.pop_front() else { return Ok(()) };
        disk.stored.apply(write);
        disk.end = end;
        disk.synced += 1;
        let mut ready = Vec::new();
        while host.held.front().is_some_and(|(writes, ..)| *writes <= disk.synced) {
            ready.extend(host.held.pop_front());
        }
        host.consensus.synced(end, &mut self.random);
        for (_, to, message) in ready {
            self.send_consensus(id.number, to, message);
        }
        self.consensus_outputs(id)
    }

    /// The consensus puts up with loss, repetition and reordering.
    fn send_consensus(&mut self, from: Member, to: Member, message: Message) {
        // What a crash at this moment would leave.
        let end = self.router_disks.get(&ProcessId::router(from)).map_or(0, |disk| disk.stored.end());
        if let Message::Appended { accepted: true, index, .. } = &message
            && *index > end
        {
            self.wrong = Some(format!("r{from} says that it has entry {index}, its disk ends at {end}"));
        }
        let blocked = self.network.is_blocked(ProcessId::router(from), ProcessId::router(to));
        if blocked || self.random.one_in(100) {
            return;
        }
        for _ in 0..if self.random.one_in(50) { 2 } else { 1 } {
            let delay_us = self.delay_us();
            let message = message.clone();
            self.schedule(delay_us, Item::Consensus { from, to, message });
        }
    }
}
