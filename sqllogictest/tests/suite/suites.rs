//! The `.slt` files, in both shapes.

use std::path::Path;

use carousel_sqllogictest::suite;
use futures::StreamExt;

use crate::server::{FULL, SMALL, Server, Shape};

/// Files that run at the same time; each has tables of its own.
const FILES_AT_A_TIME: usize = 4;
/// Runs when the others have ended: what it does to the ring lets snapshots that they keep become too old.
const LAST: &str = "carousel_cluster.slt";

async fn run(shape: Shape) {
    let server = Server::start(shape).await;
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("suites");
    let files = suite::files(&folder).expect("the folder of suites can be read");
    assert!(files.len() > 30, "only {} suites found in {}", files.len(), folder.display());
    let labels = ["carousel".to_owned()];
    let (last, together): (Vec<_>, Vec<_>) = files.iter().partition(|file| file.ends_with(LAST));
    let mut outcomes: Vec<_> = futures::stream::iter(together)
        .map(|file| suite::run_file(&server.url, file, &labels))
        .buffered(FILES_AT_A_TIME)
        .collect()
        .await;
    for file in last {
        outcomes.push(suite::run_file(&server.url, file, &labels).await);
    }
    let failures: Vec<String> = outcomes.iter().flat_map(|outcome| outcome.failures.clone()).collect();
    assert!(failures.is_empty(), "{} records failed:\n\n{}", failures.len(), failures.join("\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn one_router_and_two_storage_processes() {
    run(SMALL).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn three_routers_and_four_storage_processes_with_two_replicas() {
    run(FULL).await;
}
