//! Read one: the fewest processes that together hold what a read touches (paper, sections 6.2 and 6.3).
//!
//! On the circle of partitions, the process at index `i` holds the arc of the `f` partitions that end at `i`.
//! Covering the touched partitions with the fewest arcs is greedy once it is known where some arc begins: from the
//! first partition not yet covered, take the arc that reaches farthest. Some arc covers the partition chosen as
//! anchor, and begins at one of the `f` partitions up to it, so those beginnings are tried. The replica offset picks
//! the anchor, and at every step the preferred arc among those that keep the number minimal; so a point read with
//! offset `o` goes to replica `o mod f`, and large reads spread evenly.
//!
//! Not every holder will do. Suspected ones and ones that hold the partition only since a later `Ts` than the read's
//! are left out. Of the others, those that are not busy with partial live migration are preferred, then those that
//! have the partition already, then those that receive the least of it: who is about to leave the ring leaves a
//! single position to somebody who has all the rest, and whom the client cannot reach last. Each partition is answered by a holder of its best class, and
//! each class is covered by itself. Where a process may answer for some partitions of its arc and not for others, an
//! arc is a run of partitions for which it may; the cover is then valid, and the smallest one made of such runs.

use super::placement::Placement;

/// How well a holder can answer for a partition; the smaller the better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Class {
    /// At once.
    Idle,
    /// It is busy with partial live migration, but has the partition.
    Busy,
    /// It is still receiving something of the partition: the logarithm of how many positions.
    Receiving(u32),
    /// It may not be there.
    Avoided,
}

/// Chooses a holder for each of the partitions (ascending, distinct), given how well each replica of a partition can
/// answer, if it can. Returns for each partition with a holder that can, the replica, in no particular order.
pub(super) fn cover(
    placement: &Placement,
    partitions: &[usize],
    offset: usize,
    class: impl Fn(usize, usize) -> Option<Class>,
) -> Vec<(usize, usize)> {
    let reach = placement.reach();
    let best = |partition: usize| (0..reach).filter_map(|replica| class(partition, replica)).min();
    if let [partition] = partitions {
        let Some(best) = best(*partition) else { return Vec::new() };
        let mut replicas = (0..reach).map(|r| (offset + r) % reach);
        let replica = replicas.find(|replica| class(*partition, *replica) == Some(best));
        return replica.map(|replica| (*partition, replica)).into_iter().collect();
    }
    let mut answering = Vec::with_capacity(partitions.len());
    let classes: Vec<Option<Class>> = partitions.iter().map(|partition| best(*partition)).collect();
    let mut wanted: Vec<Class> = classes.iter().flatten().copied().collect();
    wanted.sort_unstable();
    wanted.dedup();
    for wanted in wanted {
        let of_class = partitions.iter().zip(&classes).filter(|(_, class)| **class == Some(wanted));
        let of_class: Vec<usize> = of_class.map(|(partition, _)| *partition).collect();
        let may = |partition: usize, replica: usize| class(partition, replica) == Some(wanted);
        answering.extend(smallest(placement, &of_class, offset, may));
    }
    answering
}

/// The smallest cover of partitions each of which some replica may answer for.
fn smallest(
    placement: &Placement,
    partitions: &[usize],
    offset: usize,
    may: impl Fn(usize, usize) -> bool,
) -> Vec<(usize, usize)> {
    let (size, reach) = (placement.nodes().len(), placement.reach());
    let anchor = offset % partitions.len();
    let mut best: Option<Vec<Run>> = None;
    let mut around = Vec::with_capacity(partitions.len());
    for back in 0..partitions.len().min(reach) {
        let first = (anchor + partitions.len() - back) % partitions.len();
        if (partitions[anchor] + size - partitions[first]) % size >= reach {
            break;
        }
        let rotated: Vec<usize> = partitions[first..].iter().chain(&partitions[..first]).copied().collect();
        let arcs = arcs(&rotated, size, reach, offset, &may);
        if best.as_ref().is_none_or(|best| arcs.len() < best.len()) {
            best = Some(arcs);
            around = rotated;
        }
        if best.as_ref().is_some_and(|best| best.len() == partitions.len().div_ceil(reach)) {
            break;
        }
    }
    let mut answering = Vec::with_capacity(partitions.len());
    for arc in best.into_iter().flatten() {
        let first = around[arc.from];
        for partition in &around[arc.from..arc.to] {
            answering.push((*partition, arc.replica - (partition + size - first) % size));
        }
    }
    answering
}

/// A process that answers for some successive ones of the partitions.
struct Run {
    /// The first of them …
    from: usize,
    /// … and the one behind the last.
    to: usize,
    /// Which replica of the first one it is.
    replica: usize,
}

/// Covers partitions, given in the order of the circle, with the fewest arcs if one begins at the first.
fn arcs(
    around: &[usize],
    size: usize,
    reach: usize,
    offset: usize,
    may: impl Fn(usize, usize) -> bool,
) -> Vec<Run> {
    // Where the arc ends that begins at a partition, for each replica that may answer for it.
    let mut ends: Vec<Option<usize>> = vec![None; around.len() * reach];
    // How many arcs the partitions from the i-th on need. Fewer partitions never need more, so the farthest arc is best.
    let mut needed = vec![0; around.len() + 1];
    for i in (0..around.len()).rev() {
        let step = around.get(i + 1).map_or(reach, |next| (next + size - around[i]) % size);
        let mut farthest = None;
        for replica in (0..reach).filter(|replica| may(around[i], *replica)) {
            let onward = replica.checked_sub(step).and_then(|replica| ends[(i + 1) * reach + replica]);
            let end = onward.or(Some(i + 1));
            ends[i * reach + replica] = end;
            farthest = farthest.max(end);
        }
        needed[i] = 1 + needed[farthest.expect("some replica may answer for each of the partitions")];
    }
    let mut arcs = Vec::new();
    let mut from = 0;
    while from < around.len() {
        let (replica, to) = (0..reach)
            .map(|r| (offset + r) % reach)
            .find_map(|r| {
                ends[from * reach + r].filter(|end| 1 + needed[*end] == needed[from]).map(|end| (r, end))
            })
            .expect("the farthest arc keeps the number minimal");
        arcs.push(Run { from, to, replica });
        from = to;
    }
    arcs
}
