//! Golden traces of the paper's reconfigurations: the ring before and after, the instruction lists, and how they bear
//! a further failure.

use std::fmt::Write;

use super::*;
use crate::router::testing::configuration;

const CLIENT: ProcessId = ProcessId::client(1);

/// The part of a larger keyspace that the paper's figures show, and its surroundings.
const RING: [(Position, char); 8] =
    [(0, 'w'), (10, 'x'), (20, 'a'), (30, 'b'), (40, 'c'), (50, 'd'), (60, 'y'), (70, 'z')];

struct Scenario {
    config: Config,
    trace: String,
    ts: u64,
}

fn process(name: char) -> ProcessId {
    ProcessId::storage(u32::from(name) - u32::from('a') + 1)
}

fn name(process: ProcessId) -> char {
    char::from(b'a' + (process.number - 1) as u8)
}

/// As the paper writes them: half-open, and one that wraps around as one.
fn ranges(ranges: &[KeyRange]) -> String {
    let mut ranges = ranges.to_vec();
    let end =
        ranges.last().filter(|range| range.last == u64::MAX && ranges[0].first == 0 && ranges.len() > 1);
    if let Some(end) = end.copied() {
        let wrapped = ranges.remove(0);
        ranges.pop();
        ranges.push(KeyRange { first: end.first, last: wrapped.last });
    }
    let one = |range: &KeyRange| format!("[{}, {})", range.first, range.last.wrapping_add(1));
    format!("{{{}}}", ranges.iter().map(one).collect::<Vec<_>>().join(", "))
}

impl Scenario {
    fn new(title: &str, replication: u32) -> Scenario {
        let ring = RING.map(|(identifier, name)| (identifier, process(name)));
        let config = Config::new(ring, replication).expect("a valid ring");
        let mut scenario = Scenario { config, trace: String::new(), ts: 0 };
        scenario.note(&format!("{title} Replication factor {replication}."));
        scenario
    }

    fn note(&mut self, text: &str) {
        writeln!(self.trace, "{text}").expect("text");
    }

    fn apply(&mut self, configuration_: Configuration) {
        self.ts += 1;
        let message = configuration(CLIENT, 1, self.ts, configuration_);
        let next = self.config.apply(&message, Ts(self.ts)).expect("a possible request");
        self.config = next.expect("it changes the config");
    }

    fn join(&mut self, name: char) {
        let joins = Membership::Join { process: process(name), incarnation: 1, address: None };
        self.apply(Configuration::Membership(joins));
    }

    fn suspect(&mut self, name: char) {
        let suspicion = Membership::Suspect { process: process(name), incarnation: 1 };
        self.apply(Configuration::Membership(suspicion));
        self.note(&format!("ts={} suspect {name}", self.ts));
    }

    fn ring(&mut self) {
        self.note(&format!("config version {}\n  id  process  partition", self.config.version()));
        for (identifier, process) in self.config.ring().collect::<Vec<_>>() {
            let partition = carousel_engine::position::normalise(self.config.held(process));
            let state = match (self.config.is_suspected(process), self.config.is_busy(process)) {
                (true, _) => "  suspected",
                (false, true) => "  busy",
                (false, false) => "",
            };
            let partition = ranges(&partition);
            self.note(format!("{identifier:>4}  {}        {partition:<14}{state}", name(process)).trim_end());
        }
    }

    fn instructions(&self, instructions: &[Instruction]) -> Vec<String> {
        let line = |instruction: &Instruction| match instruction {
            Instruction::Copy { from, to, ranges: copied } => {
                format!("⟨copy, {}, {}, {}⟩", name(*from), name(*to), ranges(copied))
            }
            Instruction::Lose { process, ranges: lost } => {
                format!("⟨lose, {}, {}⟩", name(*process), ranges(lost))
            }
            Instruction::Delete { process, ranges: deleted } => {
                format!("⟨delete, {}, {}⟩", name(*process), ranges(deleted))
            }
        };
        instructions.iter().map(line).collect()
    }

    fn solutions(&mut self, change: Change) {
        let solutions = self.config.solutions(change).expect("a possible change");
        for (number, solution) in (1..).zip(solutions) {
            let groups = solution.rank.failed.iter().zip((1..=solution.rank.failed.len()).rev());
            let groups: Vec<String> =
                groups.map(|(count, failed)| format!("{count} with {failed} failed")).collect();
            self.note(&format!(
                "solution {number}: groups {}; {} busy",
                groups.join(", "),
                solution.rank.busy
            ));
            let copies = solution.instructions.iter().filter(|i| matches!(i, Instruction::Copy { .. }));
            let copies: Vec<Instruction> = copies.cloned().collect();
            for line in self.instructions(&copies) {
                self.note(&format!("  {line}"));
            }
        }
    }

    fn change(&mut self, change: Change, text: &str) {
        let keyspace = self.config.plan(change).expect("a possible change");
        let lines = self.instructions(&keyspace.instructions);
        self.apply(Configuration::Keyspace(keyspace));
        self.note(&format!("ts={} {text}", self.ts));
        for line in lines {
            self.note(&format!("  {line}"));
        }
    }

    fn received(&mut self, keyspace: u64, name: char) {
        self.apply(Configuration::Received { keyspace: Ts(keyspace), process: process(name) });
        self.note(&format!("ts={} {name} has received what ts={keyspace} instructed, durably", self.ts));
    }
}

#[test]
fn figure_6_keyspace_expansion() {
    let mut scenario = Scenario::new("Figure 6: e expands the keyspace at 35.", 3);
    scenario.join('e');
    scenario.ring();
    scenario.note("\nWho can send to e:");
    let change = Change::Expand { process: process('e'), identifier: 35 };
    scenario.solutions(change);
    scenario.note("");
    scenario.change(change, "expand e at 35");
    scenario.ring();
    scenario.note("");
    scenario.received(2, 'e');
    scenario.ring();
    insta::assert_snapshot!(scenario.trace);
}

#[test]
fn figure_7_choice_of_solution() {
    let mut scenario = Scenario::new("Figure 7: as figure 6, but d has failed before.", 3);
    scenario.join('e');
    scenario.suspect('d');
    scenario.note("\nIf c sends and fails, e has failed too, and with d the whole group e, c, d. If b sends and fails, one");
    scenario.note("process is left in each group:");
    let change = Change::Expand { process: process('e'), identifier: 35 };
    scenario.solutions(change);
    scenario.note("");
    scenario.change(change, "expand e at 35");
    scenario.ring();
    insta::assert_snapshot!(scenario.trace);
}

#[test]
fn contraction_makes_several_receive() {
    let mut scenario = Scenario::new("Contraction: c leaves the ring.", 3);
    let change = Change::Contract { process: process('c') };
    let count = scenario.config.solutions(change).expect("possible").len();
    scenario.note(&format!("{count} minimal solutions\n"));
    scenario.change(change, "contract c");
    scenario.ring();
    insta::assert_snapshot!(scenario.trace);
}

#[test]
fn replacement_of_a_failed_process() {
    let mut scenario = Scenario::new("Replacement: e takes the place of c, which has failed.", 3);
    scenario.join('e');
    scenario.suspect('c');
    scenario.note("");
    let change = Change::Replace { process: process('c'), by: process('e') };
    scenario.change(change, "replace c by e");
    scenario.ring();
    insta::assert_snapshot!(scenario.trace);
}

#[test]
fn rebalancing_moves_an_identifier() {
    let mut scenario = Scenario::new("Rebalancing: b moves from 30 to 35.", 3);
    scenario.change(Change::Rebalance { process: process('b'), identifier: 35 }, "rebalance b to 35");
    scenario.ring();
    insta::assert_snapshot!(scenario.trace);
}
