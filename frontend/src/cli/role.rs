//! `carousel router`, `storage` and `frontend`: one process of a cluster.

use std::{
    net::SocketAddr,
    pin::pin,
    process, thread,
    time::{Duration, Instant},
};

use carousel_cluster::{client::Client, member::Member, message::Body, priority};

use super::{
    failure::{Failure, print},
    member::{MemberSettings, Role, remember},
    memory::{Tidying, reserve},
    observe::serve_metrics,
    open_files,
    start::StopSignals,
};
use crate::{FrontEnd, Handle, Options};

/// How often memory that is free is given back to the operating system.
const TIDY: Duration = Duration::from_secs(1);
/// A front end that has waited for so long for the cluster says so.
const TELLS: Duration = Duration::from_secs(3);
/// When there is a lead router, how long a front end waits for a storage process before it lets users in: it may be for them to
/// say that rows are lost.
const GOES_ON: Duration = Duration::from_secs(30);
/// How long it waits for storage processes that it has not met when the others answer.
const MEETS: Duration = Duration::from_secs(1);

/// Runs one process until Ctrl-C or SIGTERM; a second one ends it at once.
///
/// # Errors
/// A setup failure when it cannot start, a job's when it has to stop itself.
pub async fn run(role: Role, cores: u32) -> Result<(), Failure> {
    let mut signals = StopSignals::new()?;
    let settings = tokio::select! {
        settings = role.resolve(cores) => settings?,
        // A router may have to wait until it is added.
        () = signals.next() => return Ok(()),
    };
    if let Some(address) = settings.metrics_listen {
        serve_metrics(address)?;
    }
    let (member, front_end) = tokio::select! {
        started = start(&settings) => started?,
        // Whatever has been started ends like in a crash, which loses nothing; a checkpoint that is being read is not waited for.
        () = signals.next() => process::exit(0),
    };
    let _tidying = Tidying::start(TIDY);
    tell(&member, front_end.as_ref().map(Handle::local_addr))?;
    let served = tokio::select! {
        reason = member.failure() => Err(Failure::job(reason)),
        () = signals.next() => Ok(()),
    };
    tokio::spawn(async move {
        signals.next().await;
        eprintln!("carousel: stopped at once");
        process::exit(1);
    });
    if let Some(front_end) = front_end {
        front_end.stop().await;
    }
    member.stop().await;
    served
}

/// Waits until the cluster answers, and says so when that takes long.
async fn wait_for_cluster(client: &Client) -> Result<(), Failure> {
    let mut pin = pin!(client.order(Body::Pin { lease_ms: 0 }));
    let pinned = match tokio::time::timeout(TELLS, &mut pin).await {
        Ok(pinned) => pinned,
        Err(_) => {
            tracing::warn!(
                "waiting for an answer of the cluster: it has no lead router, storage processes are starting, or it \
                 refuses this process, as other lines say"
            );
            tokio::select! {
                pinned = pin => pinned,
                () = led(client, GOES_ON) => {
                    tracing::warn!(
                        "no storage process answers: statements wait for those that have the rows, as their logs say, but the \
                         cluster can be changed"
                    );
                    return Ok(());
                }
            }
        }
    };
    pinned.map_err(Failure::setup)?;
    match tokio::time::timeout(MEETS, client.meets_all()).await {
        Ok(met) => met.map_err(Failure::setup),
        // One that is dead, and not suspected yet.
        Err(_) => Ok(()),
    }
}

/// Waits until there has been a lead router for so long.
async fn led(client: &Client, long: Duration) {
    let mut since = None;
    loop {
        match client.leader() {
            None => since = None,
            Some(_) if since.get_or_insert_with(Instant::now).elapsed() >= long => return,
            Some(_) => {}
        }
        tokio::time::sleep(TELLS / 10).await;
    }
}

async fn start(settings: &MemberSettings) -> Result<(Member, Option<Handle>), Failure> {
    if let Some(bytes) = settings.memory_reserve {
        take_memory(bytes).await?;
    }
    open_files::allow_most();
    let member = Member::start(settings.member.clone()).await.map_err(Failure::setup)?;
    remember(&settings.member)?;
    let (Some(listen), Some(client)) = (settings.listen, member.client()) else { return Ok((member, None)) };
    open_files::allow(settings.max_connections, &format!("--max-connections {}", settings.max_connections))?;
    let mut options = Options::new(listen);
    options.max_connections = settings.max_connections as usize;
    options.limit_memory(settings.max_sql_memory);
    // Whoever connects finds the tables that are there: the catalog comes with the first answer.
    wait_for_cluster(&client).await?;
    let front_end = FrontEnd::start(options, client).await.map_err(Failure::setup)?;
    Ok((member, Some(front_end)))
}

/// Takes memory in a thread that nobody has to wait for: it may be much.
async fn take_memory(bytes: u64) -> Result<(), Failure> {
    let refused = |error| Failure::setup(format!("--memory-reserve: {bytes} bytes cannot be taken: {error}"));
    let (done, taken) = tokio::sync::oneshot::channel();
    // Whoever stops this process meanwhile does not hear of it.
    let take = move || {
        // Other processes may serve beside this one, which comes before them no more than its scans will.
        priority::lower(priority::SCAN);
        drop(done.send(reserve(bytes)));
    };
    thread::Builder::new().name("memory".into()).spawn(take).map_err(refused)?;
    taken.await.map_err(|_| Failure::setup("--memory-reserve: taking memory has failed"))?.map_err(refused)
}

/// Tells on standard output that the process runs, and where.
fn tell(member: &Member, sql: Option<SocketAddr>) -> Result<(), Failure> {
    let text = match (sql, member.address()) {
        (Some(sql), _) => format!(
            "Carousel {} is listening on {sql}\nConnect with: psql -h {} -p {}\n",
            member.id(),
            sql.ip(),
            sql.port()
        ),
        (None, Some(address)) => format!("Carousel {} is listening on {address}\n", member.id()),
        (None, None) => format!("Carousel {} is running\n", member.id()),
    };
    print(&text)
}
