//! Which router an application process talks to (Crescando/RB paper, section 5.4: "choose some router believed to be
//! correct"). Pure: time comes in as milliseconds.
//!
//! A process subscribes at one router at a time. When that is not the leader or cannot be reached, it goes on to the
//! next, subscribes there after what it has received, and submits again what is not known to be ordered. A leader
//! without news says nothing; so after a silence the process subscribes again where it is, for the router may have been
//! restarted, and goes on to the next when it gets no answer. Only the subscription's own stream breaks the silence: a
//! router that was restarted meanwhile confirms messages, but knows nothing of the subscription.

use carousel_engine::Ts;

use crate::{
    message::ProcessId,
    planted::{Bug, planted},
    routers::{Edition, Routers},
};

/// When a stream brings nothing for this long, the subscription is renewed.
const SILENCE_MS: u64 = 1_000;
/// A router that does not answer a subscription for this long is given up.
const NO_ANSWER_MS: u64 = 500;
/// After a router was asked in vain, the next one is asked: an election takes several times as long.
const IN_VAIN_MS: u64 = 100;
/// Hints that are followed between two ticks: two routers that name one another must not keep us busy.
const HINTS_PER_TICK: u32 = 3;

/// What a process says that stops because it has more than the routers, see [`crate::wire::Wire::LogLost`].
pub fn log_lost(last: Ts, frontier: Ts) -> String {
    format!(
        "the routers' log ends at {last}, which is older than the data here, at {frontier}: the routers have lost \
         messages that had been acknowledged; restore the routers' logs"
    )
}

/// The choice of a router.
#[derive(Debug)]
pub struct RouterLink {
    /// Those that vote, and perhaps one that has been removed and is still in use.
    routers: Vec<ProcessId>,
    edition: Edition,
    /// The current router has been removed: whoever leaves it forgets it.
    leaving: bool,
    current: usize,
    /// The current router has answered the subscription.
    open: bool,
    /// The current router has answered a subscription, and nothing speaks against it since.
    leads: bool,
    /// A subscription has to be sent to the current router.
    asking: bool,
    since_ms: u64,
    /// The current router has said that it does not lead, or is not there.
    in_vain: bool,
    hints: u32,
    now_ms: u64,
}

impl RouterLink {
    /// A link that begins with the first router.
    pub fn new(routers: Vec<ProcessId>) -> RouterLink {
        assert!(!routers.is_empty(), "a cluster has a router");
        RouterLink {
            routers,
            edition: Edition::default(),
            leaving: false,
            current: 0,
            open: false,
            leads: false,
            asking: true,
            since_ms: 0,
            in_vain: false,
            hints: 0,
            now_ms: 0,
        }
    }

    /// Other routers than before. One that has been removed stays in use until it says that it does not lead, or falls
    /// silent: it may lead until another does.
    pub fn learn(&mut self, routers: &Routers) {
        let voters: Vec<ProcessId> = routers.voters().collect();
        if !self.edition.yields_to(routers.edition()) || voters.is_empty() {
            return;
        }
        let current = self.router();
        self.edition = routers.edition();
        self.routers = voters;
        let place = self.routers.iter().position(|router| *router == current);
        self.leaving = place.is_none();
        self.current = place.unwrap_or_else(|| {
            self.routers.push(current);
            self.routers.len() - 1
        });
    }

    /// The router in use.
    pub fn router(&self) -> ProcessId {
        self.routers[self.current]
    }

    /// Whether the router in use has accepted the subscription, so that its deliveries count.
    pub fn is_open(&self, from: ProcessId) -> bool {
        self.open && from == self.router()
    }

    /// Whether a router may still answer a subscription.
    pub fn awaits(&self, from: ProcessId) -> bool {
        !self.open && !self.asking && from == self.router()
    }

    /// The router that leads, as far as is known here. While a subscription is renewed because there is no news, that is
    /// still the one in use.
    pub fn leader(&self) -> Option<ProcessId> {
        let forgets = planted(Bug::LeaderForgotten) && !self.open;
        (self.leads && !forgets).then(|| self.router())
    }

    /// Whether a subscription is to be sent now; if so, it is taken as sent.
    pub fn must_subscribe(&mut self) -> bool {
        std::mem::take(&mut self.asking)
    }

    /// A router has accepted a subscription. False when it is not the one in use, or has said since that it does not lead, which
    /// travels faster, or could not be reached.
    pub fn accepted(&mut self, from: ProcessId) -> bool {
        let current = from == self.router() && !self.in_vain;
        if current {
            self.open = true;
            self.leads = true;
            self.since_ms = self.now_ms;
        }
        current
    }

    /// A router has refused the subscription as it was: ask it for another.
    pub fn ask_again(&mut self, from: ProcessId) {
        if from == self.router() {
            self.go_to(self.current);
        }
    }

    /// The subscription's stream has brought something.
    pub fn heard(&mut self, from: ProcessId) {
        if from == self.router() && self.open {
            self.since_ms = self.now_ms;
        }
    }

    /// A router says that it is not the leader.
    pub fn not_leader(&mut self, from: ProcessId, leader: Option<ProcessId>) {
        if from != self.router() {
            return;
        }
        self.open = false;
        self.leads = false;
        match leader.and_then(|leader| self.routers.iter().position(|router| *router == leader)) {
            Some(leader) if leader != self.current && self.hints < HINTS_PER_TICK => {
                self.hints += 1;
                self.go_to(leader);
            }
            // It will never lead again.
            _ if self.leaving => self.go_to(0),
            // There is no leader at the moment. Time will choose.
            _ => self.in_vain = true,
        }
    }

    /// Nothing can be sent to a router.
    pub fn unreachable(&mut self, router: ProcessId) {
        if router != self.router() {
            return;
        }
        self.leads = false;
        if self.hints < HINTS_PER_TICK {
            self.hints += 1;
            self.go_to((self.current + 1) % self.routers.len());
        } else {
            (self.open, self.in_vain) = (false, true);
        }
    }

    /// Time passes. Who does not `listen` at the moment, having enough to do, learns nothing from the silence.
    pub fn tick(&mut self, now_ms: u64, listens: bool) {
        self.now_ms = now_ms;
        self.hints = 0;
        if !listens {
            self.since_ms = now_ms;
        } else if self.open && now_ms >= self.since_ms + SILENCE_MS {
            self.go_to(self.current);
        } else if !self.open && now_ms >= self.since_ms + if self.in_vain { IN_VAIN_MS } else { NO_ANSWER_MS }
        {
            self.go_to((self.current + 1) % self.routers.len());
        }
    }

    fn go_to(&mut self, router: usize) {
        self.leads &= router == self.current;
        self.current = router;
        if std::mem::take(&mut self.leaving) {
            // It stands last; whoever has its place now has not answered.
            self.leads = false;
            self.routers.pop();
            self.current %= self.routers.len();
        }
        self.open = false;
        self.asking = true;
        self.in_vain = false;
        self.since_ms = self.now_ms;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routers::RouterEntry;

    fn routers() -> Vec<ProcessId> {
        (1..=3).map(ProcessId::router).collect()
    }

    #[test]
    fn it_follows_hints_and_ends_up_at_the_leader() {
        let mut link = RouterLink::new(routers());
        assert!(link.must_subscribe());
        link.not_leader(ProcessId::router(1), Some(ProcessId::router(3)));
        assert_eq!(link.router(), ProcessId::router(3));
        assert!(link.must_subscribe() && !link.must_subscribe());
        assert!(!link.is_open(ProcessId::router(3)));
        assert!(link.accepted(ProcessId::router(3)));
        assert!(link.is_open(ProcessId::router(3)) && !link.is_open(ProcessId::router(1)));
        link.not_leader(ProcessId::router(1), Some(ProcessId::router(2)));
        assert!(link.is_open(ProcessId::router(3)), "what another router says does not matter");
    }

    /// It answers the subscription that it has had before, more slowly.
    #[test]
    fn what_a_router_says_behind_that_it_does_not_lead_opens_nothing() {
        let mut link = RouterLink::new(vec![ProcessId::router(1)]);
        assert!(link.must_subscribe());
        link.not_leader(ProcessId::router(1), None);
        assert!(!link.accepted(ProcessId::router(1)) && link.leader().is_none());
        link.tick(IN_VAIN_MS, true);
        assert!(link.must_subscribe() && link.accepted(ProcessId::router(1)));
    }

    #[test]
    fn added_routers_are_followed_and_removed_ones_are_left() {
        let list = |version: u64, numbers: &[u32]| {
            let entry = |number: &u32| RouterEntry { number: *number, address: String::new(), votes: true };
            Routers::first(3).changed(version, None, numbers.iter().map(entry).collect())
        };
        let mut link = RouterLink::new(routers());
        link.must_subscribe();
        link.accepted(ProcessId::router(1));
        link.learn(&list(5, &[2, 3, 4]));
        assert!(link.is_open(ProcessId::router(1)), "it may lead until another does");
        link.not_leader(ProcessId::router(1), Some(ProcessId::router(4)));
        assert_eq!(link.router(), ProcessId::router(4));
        link.learn(&list(4, &[1, 2]));
        link.accepted(ProcessId::router(4));
        link.learn(&list(7, &[2, 3, 4, 5]));
        assert!(
            link.is_open(ProcessId::router(4)),
            "an older list counts for nothing, a newer one keeps the router"
        );
        for next in [5, 2, 3, 4] {
            link.unreachable(link.router());
            link.tick(0, true);
            assert_eq!(link.router(), ProcessId::router(next));
        }
        link.learn(&list(8, &[5]));
        link.unreachable(ProcessId::router(4));
        assert_eq!(link.router(), ProcessId::router(5), "the only one that is left");
    }

    #[test]
    fn routers_that_name_one_another_do_not_keep_it_busy() {
        let mut link = RouterLink::new(routers());
        let mut moves = 0;
        for _ in 0..100 {
            let (from, to) = if link.router() == ProcessId::router(1) { (1, 2) } else { (2, 1) };
            link.not_leader(ProcessId::router(from), Some(ProcessId::router(to)));
            moves += u32::from(link.must_subscribe());
        }
        assert!(moves <= HINTS_PER_TICK + 1);
    }

    #[test]
    fn silence_and_absence_lead_on() {
        let mut link = RouterLink::new(routers());
        link.must_subscribe();
        link.unreachable(ProcessId::router(1));
        assert_eq!(link.router(), ProcessId::router(2));
        link.accepted(ProcessId::router(2));
        link.tick(SILENCE_MS - 1, true);
        link.heard(ProcessId::router(2));
        link.tick(SILENCE_MS + 1, true);
        assert_eq!(link.router(), ProcessId::router(2));
        link.must_subscribe();
        link.tick(3 * SILENCE_MS, true);
        assert_eq!(link.router(), ProcessId::router(2), "the leader may have nothing to say");
        assert!(link.must_subscribe());
        assert!(!link.is_open(ProcessId::router(2)) && link.leader() == Some(ProcessId::router(2)));
        link.tick(4 * SILENCE_MS, false);
        assert!(!link.must_subscribe(), "it has not listened");
        link.tick(4 * SILENCE_MS + NO_ANSWER_MS, true);
        assert_eq!(link.router(), ProcessId::router(3), "a subscription that is not answered is given up");
        assert_eq!(link.leader(), None);
        link.accepted(ProcessId::router(3));
        assert_eq!(link.leader(), Some(ProcessId::router(3)));
        link.not_leader(ProcessId::router(3), None);
        assert_eq!(link.leader(), None);
        link.accepted(ProcessId::router(3));
        link.unreachable(ProcessId::router(3));
        assert_eq!(link.leader(), None);
    }

    #[test]
    fn without_a_leader_all_are_asked_in_turn() {
        let mut link = RouterLink::new(routers());
        for (turn, asked) in [1, 2, 3, 1].into_iter().enumerate() {
            assert_eq!(link.router(), ProcessId::router(asked));
            link.not_leader(link.router(), None);
            link.tick((turn as u64 + 1) * IN_VAIN_MS - 1, true);
            assert_eq!(link.router(), ProcessId::router(asked), "it has just been asked");
            link.tick((turn as u64 + 1) * IN_VAIN_MS, true);
        }
    }
}
