//! Bugs that tests plant, to see that the simulator finds them, and the run of real routers under turmoil. Outside of
//! this crate's unit tests no bug is planted and [`planted`] is a constant.

/// A bug, named by what is forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bug {
    /// A storage process that has confirmed nothing does not hold on to the log.
    SkippedConfirmation,
    /// Two messages of a delivery change places.
    ReorderedWindow,
    /// A suspicion does not change the destination sets.
    StaleConfig,
    /// A router says that it has what is not on its disk.
    LostFsync,
    /// A vote that comes twice counts as that of another range, too.
    VoteCountedTwice,
    /// What undecided writes have done is shown at once.
    ReadBeforeDecision,
    /// Versions that a pin or a running read needs are collected.
    VersionCollectedTooEarly,
    /// A message that is submitted again to another leader is ordered again.
    DuplicateSuppressionLost,
    /// A checkpoint says that it contains one message more than it does.
    CheckpointTooFar,
    /// A frontier is ahead of the deliveries it speaks of.
    FrontierAhead,
    /// Votes are forgotten before every holder is durable past the write.
    VotesForgottenTooEarly,
    /// A router leads before it has learned what earlier leaders agreed on.
    LeaderBeforeItsLog,
    /// A process answers and writes in ranges that it has not received yet.
    AheadOfTheCopy,
    /// Receivers get the rows of the present instead of those before the keyspace message.
    CopyOfThePresent,
    /// A storage process says that it has received something before that is durable.
    ReceivedTooEarly,
    /// A super process takes its router for deposed while its own subscription is renewed, and gives everybody a new
    /// chance.
    LeaderForgotten,
    /// Staged rows are inserted under another config than that by which they were placed.
    StagedForAnotherConfig,
    /// A router takes a process that has lost its directory for the one that it was.
    LostDirectoryTrusted,
    /// A client that meets a storage process for the first time does not hear that answers may have been lost before.
    FirstMeetingUntold,
    /// A router that leads no more, and does not know it, grants leases.
    LeaseOfTheDeposed,
}

#[cfg(not(test))]
pub(crate) const fn planted(_: Bug) -> bool {
    false
}

#[cfg(test)]
thread_local! {
    static PLANTED: std::cell::Cell<Option<Bug>> = const { std::cell::Cell::new(None) };
}

#[cfg(test)]
pub(crate) fn planted(bug: Bug) -> bool {
    PLANTED.get() == Some(bug)
}

/// Plants a bug in what this thread runs from now on, or none.
#[cfg(test)]
pub(crate) fn plant(bug: Option<Bug>) {
    PLANTED.set(bug);
}
