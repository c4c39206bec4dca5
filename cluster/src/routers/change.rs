//! Changes of who the routers are: what the lead router does about them, as pure functions.
//!
//! A router is added as a learner, gets the log (or a snapshot and the rest), and votes as soon as it is near the end;
//! all learners are routers on their way to vote, so that a new leader goes on where an earlier one was interrupted.
//! One router changes at a time, by openraft's joint consensus. Requests may be repeated: what they ask for is a state.

use std::collections::BTreeSet;

use carousel_engine::{SqlError, SqlState};
use serde::{Deserialize, Serialize};

use super::Routers;
use crate::{description::check_address, message::ProcessId};

/// Routers have numbers up to this.
pub const MOST_ROUTERS: u32 = 1 << 16;

pub(crate) const DUPLICATE_OBJECT: SqlState = SqlState(*b"42710");
const NOT_IN_PREREQUISITE_STATE: SqlState = SqlState(*b"55000");

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RouterChange {
    /// A router at this address (host:port) is to be one of the routers.
    Add {
        /// Its number; the next one that is free, when it is not said.
        number: Option<u32>,
        /// Where others reach it.
        address: String,
    },
    /// The router of this number is to be none of the routers.
    Remove {
        /// Its number.
        number: u32,
    },
}

/// Why a change is impossible.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RefusedChange {
    #[error("the router's address '{0}' {1}")]
    Address(String, &'static str),
    #[error("routers have numbers from 1 to {MOST_ROUTERS}")]
    Number,
    #[error("the next number would be more than {MOST_ROUTERS}")]
    NoNextNumber,
    #[error("router {0} exists already, at {1}")]
    Taken(ProcessId, String),
    #[error("{0}")]
    Removed(String),
    #[error("the address '{1}' is that of router {0}")]
    AddressTaken(ProcessId, String),
    #[error("router {0} does not exist")]
    Unknown(ProcessId),
    #[error("{0} is the last router")]
    Last(ProcessId),
    #[error("without {router} the routers would have no quorum: of {rest} only {live} answer")]
    NoQuorum { router: ProcessId, rest: usize, live: usize },
    #[error(
        "without {router} the routers would have to wait: of {rest} only {near} have caught up with the log"
    )]
    Behind { router: ProcessId, rest: usize, near: usize },
}

impl RefusedChange {
    pub(crate) fn removed(router: ProcessId) -> RefusedChange {
        RefusedChange::Removed(super::removed(router))
    }
}

impl From<RefusedChange> for SqlError {
    fn from(refused: RefusedChange) -> SqlError {
        let (state, hint) = match &refused {
            RefusedChange::Address(..) | RefusedChange::Number => (SqlState::INVALID_PARAMETER_VALUE, None),
            RefusedChange::NoNextNumber => {
                (NOT_IN_PREREQUISITE_STATE, Some("Say which number it is to have: ADD ROUTER rN AT …"))
            }
            RefusedChange::Taken(..) | RefusedChange::Removed(_) | RefusedChange::AddressTaken(..) => {
                (DUPLICATE_OBJECT, None)
            }
            RefusedChange::Unknown(_) => (SqlState::UNDEFINED_OBJECT, None),
            RefusedChange::Last(_) => (NOT_IN_PREREQUISITE_STATE, Some("Add another router first.")),
            RefusedChange::NoQuorum { .. } => (
                NOT_IN_PREREQUISITE_STATE,
                Some("Remove the routers that do not answer first, or wait until they do."),
            ),
            RefusedChange::Behind { .. } => {
                (NOT_IN_PREREQUISITE_STATE, Some("Wait until the others have caught up."))
            }
        };
        let error = SqlError::new(state, refused.to_string());
        match hint {
            Some(hint) => error.with_hint(hint),
            None => error,
        }
    }
}

/// How things stand, as the lead router sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Standing {
    /// The routers, with the addresses that the description has for the first ones.
    pub(crate) routers: Routers,
    /// The lead router itself.
    pub(crate) leader: u32,
    /// A change of the voters was begun and not finished: who shall vote in the end.
    pub(crate) unfinished: Option<BTreeSet<u32>>,
    /// A change is not agreed on yet.
    pub(crate) changing: bool,
    /// Who has answered lately, the leader included.
    pub(crate) live: BTreeSet<u32>,
    /// Who has nearly all of the log.
    pub(crate) near: BTreeSet<u32>,
}

impl Standing {
    fn voters(&self) -> BTreeSet<u32> {
        self.routers.voters().map(|router| router.number).collect()
    }

    fn live_of(&self, voters: &BTreeSet<u32>) -> usize {
        voters.intersection(&self.live).count()
    }

    fn near_of(&self, voters: &BTreeSet<u32>) -> usize {
        voters.intersection(&self.live).filter(|voter| self.near.contains(voter)).count()
    }
}

/// One step of the consensus.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// The cluster gets its number.
    Found,
    /// It gets the log.
    Teach(u32, String),
    /// It votes from now on.
    Vote(u32),
    /// It votes no longer, and gets nothing.
    Remove(u32),
    /// It never voted, and gets nothing any more.
    Forget(u32),
    /// These, and nobody else, vote: the end of a change that was interrupted.
    Finish(BTreeSet<u32>),
    /// Somebody else shall lead.
    HandOver(u32),
}

/// What comes of a request at the moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// It is so: the router.
    Done(u32),
    /// It cannot be.
    Refused(RefusedChange),
    /// This brings it nearer.
    Step(Step),
    /// Time will bring it.
    Wait,
}

/// What the lead router does without being asked.
pub(crate) fn upkeep(standing: &Standing) -> Option<Step> {
    if standing.changing {
        return None;
    }
    if let Some(voters) = &standing.unfinished {
        return Some(Step::Finish(voters.clone()));
    }
    if standing.routers.edition().cluster.is_none() {
        return Some(Step::Found);
    }
    let voters = standing.voters();
    let learners = standing.routers.entries().iter().filter(|entry| !entry.votes).map(|entry| entry.number);
    let is_ready = |learner: &u32| standing.near.contains(learner) && standing.live.contains(learner);
    learners.filter(is_ready).find_map(|learner| {
        let mut more = voters.clone();
        more.insert(learner);
        (2 * standing.live_of(&more) > more.len()).then_some(Step::Vote(learner))
    })
}

/// What comes of a request.
pub(crate) fn decide(change: &RouterChange, standing: &Standing) -> Decision {
    let decided = match change {
        RouterChange::Add { number, address } => add(*number, address, standing),
        RouterChange::Remove { number } => remove(*number, standing),
    };
    match decided.unwrap_or_else(Decision::Refused) {
        // One change at a time.
        Decision::Step(_) if standing.changing || standing.unfinished.is_some() => Decision::Wait,
        decision => decision,
    }
}

fn add(number: Option<u32>, address: &str, standing: &Standing) -> Result<Decision, RefusedChange> {
    if let Err(reason) = check_address(address) {
        return Err(RefusedChange::Address(address.to_owned(), reason));
    }
    if number.is_some_and(|number| !(1..=MOST_ROUTERS).contains(&number)) {
        return Err(RefusedChange::Number);
    }
    let routers = &standing.routers;
    if let Some(known) = routers.entries().iter().find(|entry| entry.address == address) {
        if number.is_some_and(|number| number != known.number) {
            return Err(RefusedChange::AddressTaken(ProcessId::router(known.number), address.to_owned()));
        }
        return Ok(if known.votes { Decision::Done(known.number) } else { Decision::Wait });
    }
    let number = number.unwrap_or_else(|| routers.next_number());
    let router = ProcessId::router(number);
    if let Some(known) = routers.entry(number) {
        return Err(RefusedChange::Taken(router, known.address.clone()));
    }
    if routers.is_removed(router) {
        return Err(RefusedChange::removed(router));
    }
    if number > MOST_ROUTERS {
        return Err(RefusedChange::NoNextNumber);
    }
    Ok(Decision::Step(Step::Teach(number, address.to_owned())))
}

fn remove(number: u32, standing: &Standing) -> Result<Decision, RefusedChange> {
    let router = ProcessId::router(number);
    let Some(entry) = standing.routers.entry(number) else {
        return match standing.routers.is_removed(router) {
            true => Ok(Decision::Done(number)),
            false => Err(RefusedChange::Unknown(router)),
        };
    };
    if !entry.votes {
        return Ok(Decision::Step(Step::Forget(number)));
    }
    let mut rest = standing.voters();
    rest.remove(&number);
    if rest.is_empty() {
        return Err(RefusedChange::Last(router));
    }
    let live = standing.live_of(&rest);
    if 2 * live <= rest.len() {
        return Err(RefusedChange::NoQuorum { router, rest: rest.len(), live });
    }
    // Nothing would be agreed on until they have caught up; where that is so already, it is no reason to keep the router.
    let (near, voters) = (standing.near_of(&rest), standing.voters());
    if 2 * near <= rest.len() && 2 * standing.near_of(&voters) > voters.len() {
        return Err(RefusedChange::Behind { router, rest: rest.len(), near });
    }
    Ok(Decision::Step(match number == standing.leader {
        true => match rest.intersection(&standing.live).find(|other| standing.near.contains(other)) {
            Some(other) => Step::HandOver(*other),
            None => Step::Remove(number),
        },
        false => Step::Remove(number),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routers::RouterEntry;

    const NUMBER: Option<u64> = Some(11);

    /// Routers 1 to 3 at h:1 to h:3, of which 1 leads and all are alive.
    fn three() -> Standing {
        let first = (1..=3).map(|number| (ProcessId::router(number), format!("h:{number}"))).collect();
        let first = Routers::first(3).resolved(&first);
        Standing {
            routers: first.changed(1, NUMBER, first.entries().to_vec()),
            leader: 1,
            live: [1, 2, 3].into(),
            near: [1, 2, 3].into(),
            ..Standing::default()
        }
    }

    fn with_learner() -> Standing {
        let mut standing = three();
        let mut entries = standing.routers.entries().to_vec();
        entries.push(RouterEntry { number: 4, address: "h:4".into(), votes: false });
        standing.routers = standing.routers.changed(7, NUMBER, entries);
        standing
    }

    fn add(number: Option<u32>, address: &str) -> RouterChange {
        RouterChange::Add { number, address: address.into() }
    }

    fn refused(change: RouterChange, standing: &Standing) -> (String, String) {
        match decide(&change, standing) {
            Decision::Refused(refused) => {
                let error = SqlError::from(refused);
                (error.code.as_str().to_owned(), error.into_report().message)
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_router_learns_before_it_votes_and_only_then_the_request_is_done() {
        let mut standing = three();
        let step = Decision::Step(Step::Teach(4, "h:4".into()));
        assert_eq!(decide(&add(None, "h:4"), &standing), step);
        assert_eq!(decide(&add(Some(4), "h:4"), &standing), step);
        standing = with_learner();
        assert_eq!(decide(&add(None, "h:4"), &standing), Decision::Wait);
        assert_eq!(upkeep(&standing), None, "it has not caught up");
        standing.near.insert(4);
        assert_eq!(upkeep(&standing), None, "it does not answer");
        standing.live.insert(4);
        assert_eq!(upkeep(&standing), Some(Step::Vote(4)));
        standing.live = [1, 4].into();
        assert_eq!(upkeep(&standing), None, "two of four are no quorum");
        let entries = standing.routers.entries().iter().cloned();
        let voting = entries.map(|entry| RouterEntry { votes: true, ..entry }).collect();
        standing.routers = standing.routers.changed(8, NUMBER, voting);
        assert_eq!(decide(&add(None, "h:4"), &standing), Decision::Done(4));
        assert_eq!(decide(&add(None, "h:2"), &standing), Decision::Done(2));
    }

    #[test]
    fn a_cluster_gets_its_number_first() {
        let mut standing = with_learner();
        standing.live.insert(4);
        standing.near.insert(4);
        assert_eq!(upkeep(&standing), Some(Step::Vote(4)));
        standing.routers = Routers::first(3).changed(7, None, standing.routers.entries().to_vec());
        assert_eq!(upkeep(&standing), Some(Step::Found));
        standing.changing = true;
        assert_eq!(upkeep(&standing), None);
    }

    #[test]
    fn what_was_interrupted_is_finished_first() {
        let mut standing = with_learner();
        standing.unfinished = Some([1, 2, 3].into());
        assert_eq!(upkeep(&standing), Some(Step::Finish([1, 2, 3].into())));
        assert_eq!(decide(&RouterChange::Remove { number: 2 }, &standing), Decision::Wait);
        standing.changing = true;
        assert_eq!(upkeep(&standing), None);
    }

    #[test]
    fn the_dead_and_learners_can_be_removed_and_the_leader_hands_over_first() {
        let mut standing = with_learner();
        standing.live = [1, 3].into();
        standing.near = [1, 3].into();
        let remove = |number| RouterChange::Remove { number };
        assert_eq!(decide(&remove(2), &standing), Decision::Step(Step::Remove(2)));
        assert_eq!(decide(&remove(4), &standing), Decision::Step(Step::Forget(4)));
        standing.live.insert(2);
        standing.near.insert(2);
        assert_eq!(decide(&remove(1), &standing), Decision::Step(Step::HandOver(2)));
        standing.near = [1].into();
        assert_eq!(decide(&remove(1), &standing), Decision::Step(Step::Remove(1)));
        let rest = standing.routers.entries()[2..].to_vec();
        standing.routers = standing.routers.changed(9, NUMBER, rest);
        assert_eq!(decide(&remove(1), &standing), Decision::Done(1), "it is not there any more");
    }

    #[test]
    fn the_impossible_is_refused() {
        let standing = with_learner();
        let remove = |number| RouterChange::Remove { number };
        for (change, state, part) in [
            (add(None, "h"), "22023", "HOST:PORT"),
            (add(None, ":1"), "22023", "HOST:PORT"),
            (add(None, "h:0"), "22023", "HOST:PORT"),
            (add(None, "0.0.0.0:1"), "22023", "none at which others"),
            (add(Some(0), "h:9"), "22023", "from 1 to"),
            (add(Some(2), "h:9"), "42710", "r2 exists already, at h:2"),
            (add(Some(9), "h:2"), "42710", "is that of router r2"),
            (remove(9), "42704", "r9 does not exist"),
        ] {
            let (code, message) = refused(change, &standing);
            assert!(code == state && message.contains(part), "{code} {message}");
        }
        let mut standing = three();
        standing.live = [1, 2].into();
        let (code, message) = refused(remove(2), &standing);
        assert!(code == "55000" && message.contains("of 2 only 1 answer"), "{code} {message}");
        standing.live.insert(3);
        standing.near = [1, 2].into();
        let (code, message) = refused(remove(2), &standing);
        assert!(code == "55000" && message.contains("of 2 only 1 have caught up"), "{code} {message}");
        assert_eq!(decide(&remove(3), &standing), Decision::Step(Step::Remove(3)));
        let first = standing.routers.entries()[..1].to_vec();
        standing.routers = standing.routers.changed(3, NUMBER, first);
        let (code, message) = refused(remove(1), &standing);
        assert!(code == "55000" && message.contains("r1 is the last router"), "{code} {message}");
        let (code, message) = refused(add(Some(2), "h:9"), &standing);
        assert!(code == "42710" && message.contains("r2 has been removed"), "{code} {message}");
    }
}
