//! The hand-over between a process's task and a scan thread: commands one way, effects the other.
//!
//! The task never waits for the thread: commands are bounded by the operations that may run. The thread waits for the
//! task, when there is nothing to do and when the task has effects enough; so neither can wait for the other.

use carousel_engine::shard::Progress;

/// What a thread does: [`super::scan::Scan`].
pub(crate) trait Work {
    /// What it is told.
    type Command;
    /// What it answers.
    type Effect;

    /// Takes a command.
    fn tell(&mut self, command: Self::Command, effects: &mut Vec<Self::Effect>);

    /// Does some of the work that there is.
    fn step(&mut self, effects: &mut Vec<Self::Effect>) -> Progress;
}

/// What the thread hears from the task.
pub(crate) enum Heard<C> {
    Command(C),
    Nothing,
    /// Nothing ever again.
    End,
}

/// The thread's side of the channels.
pub(crate) trait Channels<C, E> {
    /// The next command; with `wait`, never [`Heard::Nothing`].
    fn next(&mut self, wait: bool) -> Heard<C>;

    /// Hands effects over, waiting for room. Returns whether anybody takes them.
    fn give(&self, effects: Vec<E>) -> bool;
}

/// Works until nobody can tell anything or takes effects any more. Without work it waits; `stepped` is called after every
/// step.
pub(crate) fn drive<W: Work>(
    work: &mut W,
    channels: &mut impl Channels<W::Command, W::Effect>,
    mut stepped: impl FnMut(&W),
) {
    let mut progress = Progress::Idle;
    loop {
        let mut effects = Vec::new();
        let mut wait = progress == Progress::Idle;
        loop {
            match channels.next(wait) {
                Heard::Command(command) => work.tell(command, &mut effects),
                Heard::Nothing => break,
                Heard::End => return,
            }
            wait = false;
        }
        progress = work.step(&mut effects);
        stepped(work);
        // Waiting here, when the process's task has much to do, is what bounds the effects on their way.
        if !effects.is_empty() && !channels.give(effects) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    //! Under every schedule that shuttle tries: nothing is lost, the order is kept, nobody waits for ever (which shuttle
    //! reports as a deadlock), and an idle thread takes no step.

    use std::{
        cell::Cell,
        collections::VecDeque,
        sync::{
            Arc,
            atomic::{AtomicUsize, Ordering},
        },
    };

    use shuttle::{
        sync::mpsc::{self, Receiver, Sender, SyncSender, TryRecvError},
        thread,
    };

    use super::*;

    const ITERATIONS: usize = 2_000;

    /// Every command is a task that takes some steps and answers at its end.
    #[derive(Default)]
    struct Tasks(VecDeque<(u32, u32)>);

    impl Work for Tasks {
        type Command = u32;
        type Effect = u32;

        fn tell(&mut self, command: u32, _: &mut Vec<u32>) {
            self.0.push_back((command, command % 3));
        }

        fn step(&mut self, effects: &mut Vec<u32>) -> Progress {
            if let Some((task, left)) = self.0.pop_front() {
                match left {
                    0 => effects.push(task),
                    _ => self.0.push_front((task, left - 1)),
                }
            }
            if self.0.is_empty() { Progress::Idle } else { Progress::Busy }
        }
    }

    struct Ends(Receiver<u32>, SyncSender<Vec<u32>>);

    impl Channels<u32, u32> for Ends {
        fn next(&mut self, wait: bool) -> Heard<u32> {
            if wait {
                return self.0.recv().map_or(Heard::End, Heard::Command);
            }
            match self.0.try_recv() {
                Ok(command) => Heard::Command(command),
                Err(TryRecvError::Empty) => Heard::Nothing,
                Err(TryRecvError::Disconnected) => Heard::End,
            }
        }

        fn give(&self, effects: Vec<u32>) -> bool {
            self.1.send(effects).is_ok()
        }
    }

    struct Thread {
        commands: Sender<u32>,
        effects: Receiver<Vec<u32>>,
        steps: Arc<AtomicUsize>,
        thread: thread::JoinHandle<()>,
    }

    fn start() -> Thread {
        let (commands, received) = mpsc::channel();
        let (results, effects) = mpsc::sync_channel(1);
        let steps = Arc::new(AtomicUsize::new(0));
        let counted = steps.clone();
        let thread = thread::spawn(move || {
            let taken = Cell::new(0);
            drive(&mut Tasks::default(), &mut Ends(received, results), |_| taken.set(taken.get() + 1));
            counted.store(taken.get(), Ordering::Relaxed);
        });
        Thread { commands, effects, steps, thread }
    }

    #[test]
    fn every_command_is_answered_in_order_and_answers_may_lead_to_commands() {
        let scenario = || {
            let Thread { commands, effects, steps, thread } = start();
            for command in 1..=3 {
                commands.send(command).expect("the thread runs");
            }
            let mut answered = Vec::new();
            while answered.len() < 6 {
                for effect in effects.recv().expect("the thread runs") {
                    answered.push(effect);
                    if effect <= 3 {
                        commands.send(effect + 10).expect("the thread runs");
                    }
                }
            }
            assert_eq!(answered, [1, 2, 3, 11, 12, 13]);
            drop(commands);
            thread.join().expect("it ends without a panic");
            let work: u32 = [1, 2, 3, 11, 12, 13].iter().map(|command| command % 3 + 1).sum();
            assert!(steps.load(Ordering::Relaxed) <= work as usize, "a thread without work steps");
        };
        shuttle::check_random(scenario, ITERATIONS);
        shuttle::check_pct(scenario, ITERATIONS, 3);
    }

    #[test]
    fn a_thread_ends_with_whoever_takes_its_effects() {
        let scenario = || {
            let Thread { commands, effects, thread, .. } = start();
            for command in 1..=4 {
                // It may have ended already, when the first effects were not taken.
                let _ = commands.send(command);
                if command == 2 {
                    let _ = effects.recv();
                }
            }
            drop(effects);
            drop(commands);
            thread.join().expect("it ends without a panic");
        };
        shuttle::check_random(scenario, ITERATIONS);
    }
}
