//! What goes wrong, and when it ends.

use std::collections::BTreeMap;

use carousel_engine::position::KeyRange;

use super::{
    supers,
    world::{Item, Life, Phase, World},
};
use crate::{
    config::{Change, ConfigError, Configuration, Membership},
    message::{Incarnation, ProcessId, ProcessKind},
    network::answers_unasked,
    routers::change::RouterChange,
};

/// Routers at a time.
const MOST_ROUTERS: usize = 5;
/// How long a disk is full: long enough that others are told so.
pub(super) const FULL_DISK_US: u64 = 12_000_000;
/// A standby that nobody runs.
const NOBODY: ProcessId = ProcessId::storage(90);

/// All lives that a process can have in a run, unless it is given up with what it alone has.
pub(super) const ALL_LIVES: Incarnation = Incarnation::MAX - 1;

/// A disturbance that ends by itself.
#[derive(Clone, Debug)]
pub(super) enum Disturbance {
    /// These directions are blocked, or slow.
    Ways(Vec<(ProcessId, ProcessId)>),
    /// Messages are said again.
    Strays,
    /// Disks are slow.
    Disks,
    /// The disk of a storage process takes no checkpoints.
    FullDisk,
}

impl World {
    /// Something goes wrong.
    pub(super) fn fault(&mut self) -> Result<(), String> {
        if self.phase != Phase::Turmoil {
            return Ok(());
        }
        let before = self.hash.digest();
        self.disturb()?;
        // Who is down already cannot crash, and so on.
        self.report.faults += u64::from(self.hash.digest() != before);
        Ok(())
    }

    fn disturb(&mut self) -> Result<(), String> {
        let all = self.processes();
        let any = self.random.pick(&all);
        match self.random.below(100) {
            0..14 => self.crash_one(ProcessKind::Router),
            14..28 => self.crash_one(ProcessKind::Storage),
            28..30 => self.lose_directory(),
            30..32 => self.crash_one(ProcessKind::Client),
            32 => self.lose_client_directory(),
            33..36 => {
                let others = [ProcessKind::Client, ProcessKind::Super];
                for process in all.into_iter().filter(|process| !others.contains(&process.kind)) {
                    self.crash_and_restart(process);
                }
            }
            36..46 => {
                let until_us = self.now_us + self.random.within(20_000..3_000_000);
                if let Some((process, life)) = any.and_then(|any| Some((any, self.lives.get_mut(&any)?))) {
                    life.paused_until_us = life.paused_until_us.max(until_us);
                    self.note([10, until_us], || format!("{process} pauses until {}", until_us / 1_000));
                }
            }
            46..62 => self.partition(),
            62..72 => {
                let peer = self.random.pick(&all);
                if let (Some(from), Some(to)) = (any, peer) {
                    self.note([11, 0], || format!("the connection of {from} and {to} is made again"));
                    let ways = vec![(from, to), (to, from)];
                    ways.iter().for_each(|(from, to)| self.network.block(*from, *to, self.now_us));
                    let after_us = self.random.within(1_000..400_000);
                    self.schedule(after_us, Item::EndOf(Disturbance::Ways(ways)));
                }
            }
            72..78 => {
                let peer = self.random.pick(&all);
                if let (Some(from), Some(to)) = (any, peer) {
                    let slow_us = self.random.within(5_000..400_000);
                    self.note([12, slow_us], || format!("{from} -> {to} is slow"));
                    self.network.slow(from, to, slow_us);
                    self.end_later(Disturbance::Ways(vec![(from, to)]));
                }
            }
            78..84 => {
                let jump_us = self.random.within(100_000..8_000_000);
                if let Some((process, life)) = any.and_then(|any| Some((any, self.lives.get_mut(&any)?))) {
                    life.ahead_us += jump_us;
                    self.note([13, jump_us], || format!("the clock of {process} jumps"));
                }
            }
            84 => {
                self.full_disk = self.random.pick(&self.of_kind(ProcessKind::Storage));
                let full = self.full_disk;
                self.note([12, 1], || format!("a full disk: {full:?}"));
                self.schedule(FULL_DISK_US, Item::EndOf(Disturbance::FullDisk));
            }
            85..88 => {
                self.disk_us = self.random.within(5_000..300_000);
                self.note([12, self.disk_us], || "disks are slow".into());
                self.end_later(Disturbance::Disks);
            }
            88..94 => {
                self.strays = true;
                self.note([12, 0], || "messages are said again".into());
                self.end_later(Disturbance::Strays);
            }
            _ => return self.reconfigure(),
        }
        Ok(())
    }

    /// The members change: the living or the dead are suspected, standbys join and part.
    pub(super) fn reconfigure(&mut self) -> Result<(), String> {
        let storage = self.of_kind(ProcessKind::Storage);
        let clients = self.of_kind(ProcessKind::Client);
        let (process, is_standby) = (NOBODY, self.has_nobody());
        let joins = Membership::Join { process, incarnation: self.now_us, address: None };
        let change = match self.random.below(10) {
            0..6 => match self.random.pick(&storage) {
                Some(process) if self.may_suspect(process) || self.random.one_in(8) => {
                    // Some come back.
                    let gone = self.options.reshapes == 0 || self.random.one_in(2);
                    let incarnation = match gone {
                        true if self.reckless => Incarnation::MAX,
                        true => ALL_LIVES,
                        false => self.incarnation(process),
                    };
                    Membership::Suspect { process, incarnation }
                }
                _ => joins,
            },
            6 => match self.random.pick(&clients) {
                Some(process) => {
                    let after_us = self.random.within(100_000..2_000_000);
                    self.schedule(after_us, Item::Replaced(process));
                    Membership::Suspect { process, incarnation: self.incarnation(process) }
                }
                None => joins,
            },
            _ if is_standby => Membership::Part { process },
            _ => joins,
        };
        self.note([14, 0], || format!("reconfiguration: {change:?}"));
        self.configure(Configuration::Membership(change))
    }

    /// Whether others may wait for somebody whom nobody runs.
    pub(super) fn has_nobody(&self) -> bool {
        self.replay.config().standbys().any(|standby| standby == NOBODY)
    }

    /// What a super process does: it hears nothing from it.
    pub(super) fn suspect_nobody(&mut self) -> Result<(), String> {
        let suspicion = Membership::Suspect { process: NOBODY, incarnation: u64::MAX };
        self.configure(Configuration::Membership(suspicion))
    }

    /// The ring changes.
    pub(super) fn reshape(&mut self) -> Result<(), String> {
        let config = self.replay.config().clone();
        let ring: Vec<ProcessId> = config.storage_processes().collect();
        let standbys: Vec<ProcessId> = config.standbys().filter(|standby| self.is_up(*standby)).collect();
        let identifier = self.random.bits();
        // Who has given a process up with its rows lets somebody take its place.
        let gone = || ring.iter().copied().filter(|process| config.is_suspected(*process)).collect();
        let dead = config.without_holder(&[KeyRange::FULL]).map_or_else(Vec::new, |_| gone());
        let (Some(process), standby) =
            (self.random.pick(if dead.is_empty() { &ring } else { &dead }), self.random.pick(&standbys))
        else {
            return Ok(());
        };
        let kind = if dead.is_empty() { self.random.below(4) } else { self.random.within(2..4) };
        let change = match (kind, standby) {
            (0 | 1, Some(process)) => Change::Expand { process, identifier },
            (2, Some(by)) => Change::Replace { process, by },
            (3, _) if ring.len() > 2 => Change::Contract { process },
            _ => Change::Rebalance { process, identifier },
        };
        let planned = match config.plan(change) {
            Err(ConfigError::NoHolder { .. }) => config.plan_with_loss(change),
            planned => planned,
        };
        let Ok(keyspace) = planned else { return Ok(()) };
        self.note([17, 0], || format!("{change}"));
        if self.random.one_in(2)
            && let Some(client) = self.some_client()
        {
            self.precut(client, &config, &keyspace);
        }
        self.configure(Configuration::Keyspace(keyspace))
    }

    /// A client asks for one router more or less.
    pub(super) fn change_routers_somehow(&mut self) -> Result<(), String> {
        if self.phase != Phase::Turmoil {
            return Ok(());
        }
        let all = self.of_kind(ProcessKind::Router);
        let left: Vec<ProcessId> = all.iter().copied().filter(|router| !self.lives[router].gone).collect();
        let more = left.len() < 2 || left.len() < MOST_ROUTERS && self.random.one_in(2);
        let change = match self.random.pick(&left).filter(|_| !more) {
            Some(router) => RouterChange::Remove { number: router.number },
            None => {
                let number = all.last().map_or(0, |router| router.number) + 1;
                if self.has_supers() {
                    self.lives.insert(ProcessId::super_process(number), Life::default());
                }
                self.lives.insert(ProcessId::router(number), Life::default());
                self.start(ProcessId::router(number));
                RouterChange::Add { number: Some(number), address: format!("h:{number}") }
            }
        };
        self.note([17, 0], || format!("routers: {change:?}"));
        self.ask_for_routers(change)
    }

    /// Whether the suspicion of a storage process is not likely to be refused: super processes do not ask for others.
    fn may_suspect(&self, process: ProcessId) -> bool {
        self.reckless || self.replay.config().solely_held(process).is_none() && !self.lacks_directory()
    }

    /// A client that was suspected is started again.
    pub(super) fn replace(&mut self, client: ProcessId) {
        if self.replay.is_fenced(client, self.incarnation(client)) {
            self.crash_and_restart(client);
        }
    }

    fn end_later(&mut self, disturbance: Disturbance) {
        let after_us = self.random.within(20_000..3_500_000);
        self.schedule(after_us, Item::EndOf(disturbance));
    }

    fn crash_one(&mut self, kind: ProcessKind) {
        let of_kind = self.of_kind(kind);
        if let Some(process) = self.random.pick(&of_kind) {
            self.crash_and_restart(process);
        }
    }

    /// A storage process that is not the only holder of anything loses its directory. Until it joins again all count on what it
    /// had: there must be nobody who suspects another meanwhile.
    fn lose_directory(&mut self) {
        let storage = self.of_kind(ProcessKind::Storage);
        let process = self.random.pick(&storage).filter(|_| !self.has_supers());
        if let Some(process) = process.filter(|process| self.may_suspect(*process)) {
            self.crash_and_restart(process);
            self.lose_disk(process);
        }
    }

    /// A client loses its directory, and counts its lives anew.
    fn lose_client_directory(&mut self) {
        let clients = self.of_kind(ProcessKind::Client);
        if let Some(client) = self.random.pick(&clients) {
            self.crash_and_restart(client);
            self.forget_lives(client);
        }
    }

    pub(super) fn crash_and_restart(&mut self, process: ProcessId) {
        self.crash(process);
        let after_us = match self.random.one_in(3) {
            true => self.random.within(10_000..100_000),
            false => self.random.within(100_000..3_000_000),
        };
        self.schedule(after_us, Item::Restart(process));
    }

    /// Some processes cannot reach the others, in both directions or in one.
    fn partition(&mut self) {
        let mut sides: BTreeMap<ProcessId, bool> = BTreeMap::new();
        // Routers come first; a super process runs where its router does.
        for process in self.processes() {
            let side = match process.kind {
                ProcessKind::Super => sides[&supers::beside(process)],
                _ => self.random.one_in(3),
            };
            sides.insert(process, side);
        }
        let asymmetric = self.random.one_in(3);
        let mut ways = Vec::new();
        for (from, left) in &sides {
            for (to, right) in &sides {
                if *left && !*right || *right && !*left && !asymmetric {
                    ways.push((*from, *to));
                }
            }
        }
        let cut: Vec<ProcessId> =
            sides.iter().filter(|(_, cut)| **cut).map(|(process, _)| *process).collect();
        self.note([15, cut.len() as u64], || {
            format!("{cut:?} cannot reach the others{}", if asymmetric { ", but hear them" } else { "" })
        });
        for (from, to) in &ways {
            self.network.block(*from, *to, self.now_us);
        }
        self.end_later(Disturbance::Ways(ways));
    }

    /// A disturbance ends.
    pub(super) fn end(&mut self, disturbance: &Disturbance) {
        match disturbance {
            Disturbance::Ways(ways) => {
                for (from, to) in ways {
                    self.network.unblock(*from, *to);
                    self.network.slow(*from, *to, 0);
                }
                self.meet(None);
            }
            Disturbance::Strays => self.strays = false,
            Disturbance::Disks => self.disk_us = 0,
            Disturbance::FullDisk => self.full_disk = None,
        }
    }

    /// Processes that have no session, or only these two, meet, and hear of what may have been lost before they hear anything
    /// else.
    pub(super) fn meet(&mut self, only: Option<(ProcessId, ProcessId)>) {
        for ((a, b), again) in self.network.meet(only) {
            for (process, peer) in [(a, b), (b, a)] {
                if again || answers_unasked(peer, process) {
                    self.schedule(1, Item::Lost { process, peer });
                }
            }
        }
    }

    /// All faults end.
    pub(super) fn heal(&mut self) {
        self.network.heal();
        self.meet(None);
        self.strays = false;
        self.disk_us = 0;
        self.full_disk = None;
        self.end_pauses();
        for process in self.processes() {
            if process.kind == ProcessKind::Client
                && self.replay.is_fenced(process, self.incarnation(process))
            {
                self.crash(process);
            }
            self.start(process);
        }
    }
}
