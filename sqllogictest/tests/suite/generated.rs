//! Generated statements against the row-by-row evaluator, on the whole stack.

use carousel_sqllogictest::{
    oracle::check::{Options, run_sequence},
    session::connect,
};
use futures::StreamExt;

use crate::server::{FULL, Server};

/// Sequences that run at the same time, each on a table and a connection of its own.
const SEQUENCES_AT_A_TIME: usize = 4;

fn setting(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name} is not a number: {text}")),
        Err(_) => default,
    }
}

/// `CAROUSEL_SEQUENCES` and `CAROUSEL_SEED` run others than the default ones.
#[tokio::test(flavor = "multi_thread")]
async fn every_answer_is_the_evaluators() {
    let server = Server::start(FULL).await;
    let url = server.url.as_str();
    let first = setting("CAROUSEL_SEED", 0);
    let seeds = first..first + setting("CAROUSEL_SEQUENCES", 60);
    let options = Options { statements: 60, partitioning: true };
    let failures: Vec<String> = futures::stream::iter(seeds)
        .map(|seed| async move {
            let (client, _) = connect(url).await.map_err(|e| e.to_string())?;
            run_sequence(&client, seed, options).await
        })
        .buffered(SEQUENCES_AT_A_TIME)
        .filter_map(|outcome| async { outcome.err() })
        .collect()
        .await;
    assert!(failures.is_empty(), "{} sequences failed:\n\n{}", failures.len(), failures.join("\n\n"));
}
