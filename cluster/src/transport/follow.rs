//! Who is dialled: the processes that the description names, those that have joined with an address since (the config says
//! so), and of the routers those that there are now.
//!
//! Lists of routers come from the routers themselves. A process that has a connection to fewer than half of the routers
//! it knows asks everybody it knows, one after the other, who the routers are: it may have been away while they were
//! replaced, or be a router that has been removed and that nobody talks to any more.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use tokio::{
    task::{AbortHandle, JoinSet},
    time::{MissedTickBehavior, interval, timeout},
};

use super::{
    Shared,
    dial::{DialError, Dialler, ask_routers},
    hello::dials,
};
use crate::{
    message::{ProcessId, ProcessKind},
    routers::Routers,
};

/// How often a process that lacks connections asks somebody.
const LOOK: Duration = Duration::from_secs(1);
/// How long an answer is waited for.
const ANSWER: Duration = Duration::from_secs(1);
/// How long a router that has been removed is still talked to, so that it hears of it.
const LINGER: Duration = Duration::from_secs(2);

/// By who is dialled: where, and the tasks that do it.
type Dialled = BTreeMap<ProcessId, (String, Vec<AbortHandle>)>;

impl Shared {
    /// Where those listen who are part of the cluster.
    pub(super) fn addresses(&self, routers: &Routers) -> BTreeMap<ProcessId, String> {
        let resolved = routers.resolved(&self.members);
        let listed = resolved.entries().iter().map(|entry| (ProcessId::router(entry.number), &entry.address));
        // Before the cluster is known, those of the description are among the routers, whatever somebody says.
        let counts =
            |process: ProcessId| process.kind != ProcessKind::Router || routers.edition().cluster.is_none();
        let others = self.members.iter().filter(|(process, _)| counts(**process));
        let described = others.map(|(process, address)| (*process, address));
        let config = self.network.configs().borrow().clone();
        let joined = config.iter().flat_map(|config| config.addresses()).map(|(process, at)| (*process, at));
        // What the description says of a process that it names is what this one goes by.
        let all = joined.chain(described).chain(listed).filter(|(_, address)| !address.is_empty());
        all.map(|(process, address)| (process, address.clone())).collect()
    }

    /// What the cluster consists of.
    pub(super) fn describe(&self) -> String {
        let routers = self.network.known_routers().borrow().clone();
        match routers.edition().cluster {
            None => self.description.clone(),
            Some(_) => format!("{}{}", self.description, routers.resolved(&self.members).to_toml()),
        }
    }

    fn dial(self: &Arc<Self>, remote: ProcessId, address: &str) -> Vec<AbortHandle> {
        let locals =
            self.locals.iter().filter(|local| dials(**local, remote) && !self.locals.contains(&remote));
        let dialler = |local: &ProcessId| {
            let address = address.to_owned();
            let dialler = Dialler { shared: self.clone(), local: *local, remote, address };
            self.spawn(dialler.run())
        };
        locals.map(dialler).collect()
    }

    /// Whether a process here reaches so few routers that it may know the wrong ones.
    fn is_cut_off(&self, routers: &Routers) -> bool {
        let voters: Vec<ProcessId> = routers.voters().collect();
        self.locals.iter().any(|local| {
            let reached =
                voters.iter().filter(|router| *router == local || self.network.reaches(*local, **router));
            2 * reached.count() <= voters.len()
        })
    }

    /// Asks whoever listens at an address who the routers are. An error says why this router must not go on.
    async fn ask(&self, process: ProcessId, address: &str) -> Result<(), String> {
        match timeout(ANSWER, ask_routers(self, process, address)).await {
            Ok(Ok(routers)) => self.hear(process, routers),
            Ok(Err(DialError::Forgetful(reason))) => return Err(reason),
            // Those who dial it say so.
            Ok(Err(error)) => tracing::debug!(%address, %error, "it does not tell who the routers are"),
            Err(_) => tracing::debug!(%address, "it does not tell who the routers are"),
        }
        Ok(())
    }

    /// Somebody tells who the routers are. Before it is known which cluster this is, only routers are taken at their word: the
    /// others may belong to an earlier one that has not ended. A router here does without their word, as it comes to know by
    /// its log; others may find a router by it.
    fn hear(&self, process: ProcessId, routers: Routers) {
        if self.edition().cluster.is_some() || process.kind == ProcessKind::Router {
            self.network.learn_routers(&Arc::new(routers));
        } else if self.locals.iter().all(|local| local.kind != ProcessKind::Router) {
            self.network.learn_routers(&Arc::new(routers.into_hearsay()));
        }
    }

    /// Asks everybody at once. An error says why this router must not go on.
    pub(super) async fn ask_all(self: &Arc<Self>) -> Result<(), String> {
        if let Some(reason) = self.lives.forgetful() {
            return Err(reason);
        }
        let routers = self.network.known_routers().borrow().clone();
        let mut asking = JoinSet::new();
        for (process, address) in self.addresses(&routers) {
            if !self.locals.contains(&process) {
                let shared = self.clone();
                asking.spawn(async move { shared.ask(process, &address).await });
            }
        }
        while let Some(asked) = asking.join_next().await {
            asked.unwrap_or(Ok(()))?;
        }
        Ok(())
    }

    /// Talks no more to the lives of routers that lack what they had confirmed, and returns which these are; when they are
    /// connected again, they hear why.
    fn disown(&self) -> Vec<ProcessId> {
        let disowned = self.network.take_disowned();
        for (router, index) in &disowned {
            let reason = self.lives.disown(*router, *index);
            reason.into_iter().for_each(|reason| tracing::error!("{reason}"));
            self.sessions.lock().end(|remote| remote == *router);
        }
        disowned.into_keys().collect()
    }

    /// Ends what there is with those who have been removed.
    fn part_with(self: &Arc<Self>, tasks: Vec<AbortHandle>) {
        let shared = self.clone();
        self.spawn(async move {
            tokio::time::sleep(LINGER).await;
            tasks.iter().for_each(AbortHandle::abort);
            let routers = shared.network.known_routers().borrow().clone();
            shared.sessions.lock().end(|remote| routers.is_removed(remote));
        });
    }
}

/// Keeps to the newest list of routers and the newest config, for ever.
pub(super) async fn follow(shared: Arc<Shared>) {
    let mut known = shared.network.known_routers();
    let mut configs = shared.network.configs();
    let mut disowned = shared.network.disowned();
    let mut dialled = Dialled::new();
    // Those who are still dialled, though they are not part of the cluster any more.
    let mut leaving: BTreeMap<ProcessId, Vec<AbortHandle>> = BTreeMap::new();
    let mut looks = interval(LOOK);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut asked = 0;
    loop {
        disowned.mark_unchanged();
        for router in shared.disown() {
            let tasks = dialled.remove(&router).map(|(_, tasks)| tasks);
            tasks.iter().flatten().for_each(AbortHandle::abort);
        }
        let routers = known.borrow_and_update().clone();
        configs.mark_unchanged();
        let wanted = shared.addresses(&routers);
        let left = dialled.extract_if(.., |process, (address, _)| wanted.get(process) != Some(address));
        let (moved, gone): (Vec<_>, Vec<_>) = left.partition(|(process, _)| wanted.contains_key(process));
        shared.part_with(gone.iter().flat_map(|(_, (_, tasks))| tasks).cloned().collect());
        leaving.extend(gone.into_iter().map(|(process, (_, tasks))| (process, tasks)));
        // Two that dial the same would end each other's sessions.
        moved.iter().flat_map(|(_, (_, tasks))| tasks).for_each(AbortHandle::abort);
        let back = leaving.extract_if(.., |process, _| wanted.contains_key(process));
        back.flat_map(|(_, tasks)| tasks).for_each(|task| task.abort());
        leaving.retain(|_, tasks| !tasks.iter().all(AbortHandle::is_finished));
        for (process, address) in &wanted {
            dialled.entry(*process).or_insert_with(|| (address.clone(), shared.dial(*process, address)));
        }
        loop {
            tokio::select! {
                changed = known.changed() => match changed {
                    Ok(()) => break,
                    Err(_) => return,
                },
                changed = configs.changed() => match changed {
                    Ok(()) => break,
                    Err(_) => return,
                },
                changed = disowned.changed() => match changed {
                    Ok(()) => break,
                    Err(_) => return,
                },
                _ = looks.tick() => {}
            }
            if shared.is_cut_off(&routers) {
                let others = wanted.iter().filter(|(process, _)| !shared.locals.contains(process));
                let others: Vec<(&ProcessId, &String)> = others.collect();
                asked += 1;
                if let Some((process, address)) = others.get(asked % others.len().max(1))
                    && let Err(reason) = shared.ask(**process, address).await
                {
                    tracing::error!("{reason}");
                }
            }
        }
    }
}
