//! The rows of the tables in the schema `carousel`: what this front end's client process knows of the cluster.

use carousel_cluster::{
    catalog::Catalog,
    client::{Client, OpenOperation, OperationState},
    config::{Config, Instruction},
    message::{ProcessId, ReadIsolation},
    routers::RouterEntry,
    storage::migration::Arrived,
};
use carousel_engine::{TableId, Value, error::Result, numeric::Numeric, position::Position};
use carousel_planner::relational::SystemView;

/// The rows of a view.
///
/// # Errors
/// 57P01 when the client process has been stopped.
pub(super) async fn rows(view: SystemView, client: &Client) -> Result<Vec<Vec<Value>>> {
    Ok(match view {
        SystemView::Routers => routers(client),
        SystemView::Storage => storage(client),
        SystemView::Ring => ring(&client.config()),
        SystemView::Migrations => migrations(client),
        SystemView::Operations => {
            let catalog = client.catalog();
            client.operations().await?.iter().map(|open| operation(open, &catalog)).collect()
        }
    })
}

fn operation(open: &OpenOperation, catalog: &Catalog) -> Vec<Value> {
    let isolation = open.isolation.map(|isolation| match isolation {
        ReadIsolation::Sequential => "sequential",
        ReadIsolation::Snapshot => "snapshot",
        ReadIsolation::Basic => "basic",
    });
    let state = match open.state {
        OperationState::Submitted => "submitted",
        OperationState::Ordered => "ordered",
        OperationState::Reading => "reading",
        OperationState::Abandoned => "abandoned",
    };
    // A table may have been dropped since.
    let table = |id: &TableId| catalog.table_by_id(*id).map(|table| table.name.clone());
    let tables: Vec<String> = open.tables.iter().filter_map(table).collect();
    let waits_for: Vec<String> = open.waits_for.iter().map(ToString::to_string).collect();
    vec![
        text(open.id.submitter),
        if open.id.is_ordered() { count(open.id.sequence) } else { Value::Null },
        text(open.kind),
        text(tables.join(", ")),
        isolation.map_or(Value::Null, text),
        open.read_ts.map_or(Value::Null, |ts| count(ts.0)),
        text(state),
        text(waits_for.join(", ")),
        count(open.age_ms),
    ]
}

fn text(text: impl ToString) -> Value {
    Value::Text(text.to_string().into())
}

fn names(processes: impl IntoIterator<Item = ProcessId>) -> Value {
    let names: Vec<String> = processes.into_iter().map(|process| process.to_string()).collect();
    text(names.join(", "))
}

fn count(number: u64) -> Value {
    Value::Int8(i64::try_from(number).unwrap_or(i64::MAX))
}

fn position(position: Position) -> Value {
    Value::Numeric(Numeric::from(i128::from(position)))
}

fn routers(client: &Client) -> Vec<Vec<Value>> {
    let (leader, routers) = (client.leader(), client.routers());
    let row = |entry: &RouterEntry| {
        let router = ProcessId::router(entry.number);
        // Those within this process listen nowhere.
        let address = if entry.address.is_empty() { Value::Null } else { text(&entry.address) };
        vec![text(router), address, Value::Bool(entry.votes), Value::Bool(leader == Some(router))]
    };
    routers.entries().iter().map(row).collect()
}

fn storage(client: &Client) -> Vec<Vec<Value>> {
    let (config, heard, share) = (client.config(), client.heard(), client.memory_share());
    let mut processes: Vec<ProcessId> = config.storage_processes().chain(config.standbys()).collect();
    processes.sort_unstable();
    processes.dedup();
    let row = |process: ProcessId| {
        let state = match process {
            _ if config.is_suspected(process) => "suspected",
            _ if config.is_active(process) => "active",
            _ => "standby",
        };
        // What a life said that is over tells nothing of the next.
        let heard = heard.get(&process).filter(|_| state != "suspected");
        let known = |value: Option<u64>| value.map_or(Value::Null, count);
        vec![
            text(process),
            text(state),
            Value::Bool(client.reaches(process)),
            Value::Bool(config.is_busy(process)),
            heard.map_or(Value::Null, |heard| Value::Bool(heard.lags)),
            heard
                .filter(|_| client.reaches(process))
                .map_or(Value::Null, |heard| names(heard.unreached.iter().copied())),
            known(heard.map(|heard| heard.incarnation)),
            known(heard.map(|heard| heard.used)),
            known(heard.and_then(|heard| share.filter(|_| config.is_active(process)).or(heard.limit))),
        ]
    };
    processes.into_iter().map(row).collect()
}

fn ring(config: &Config) -> Vec<Vec<Value>> {
    let row = |(identifier, process): (Position, ProcessId)| {
        // The last one goes on from 0.
        let ranges = config.primary_ranges().filter(|range| range.contains(identifier));
        let next = config.ring().map(|(next, _)| next).find(|next| *next > identifier);
        let next = next.or_else(|| config.ring().map(|(next, _)| next).next()).unwrap_or(identifier);
        let holders = ranges.flat_map(|range| config.live_holders(range));
        vec![position(identifier), text(process), position(next.wrapping_sub(1)), names(holders)]
    };
    config.ring().map(row).collect()
}

fn migrations(client: &Client) -> Vec<Vec<Value>> {
    let (config, heard) = (client.config(), client.heard());
    let mut rows = Vec::new();
    for (keyspace, migration) in config.migrations() {
        let copies = migration.copies.iter().filter_map(|instruction| match instruction {
            Instruction::Copy { from, to, ranges } => Some((Some(from), to, &ranges[..])),
            Instruction::Delete { .. } | Instruction::Lose { .. } => None,
        });
        // Nobody sends what is lost, but until its receiver has said that it begins without, others wait for that.
        let lost = migration
            .transfers
            .iter()
            .filter(|transfer| transfer.senders.is_empty() && !transfer.lost.is_empty());
        let lost = lost.map(|transfer| (None, &transfer.to, std::slice::from_ref(&transfer.range)));
        for (from, to, ranges) in copies.chain(lost) {
            for range in ranges {
                let receiving = heard.get(to).map(|heard| &heard.receiving[..]).unwrap_or_default();
                let parts = || {
                    receiving
                        .iter()
                        .filter(|(part, _)| part.keyspace == *keyspace && part.range.overlaps(range))
                };
                let state = match heard.get(to) {
                    _ if parts().any(|(_, arrived)| !arrived.whole) => "receiving",
                    _ if parts().next().is_some() => "writing",
                    // It has only to be ordered that it has.
                    Some(heard) if heard.reached >= *keyspace => "received",
                    // It has not come to the message, or is not there.
                    _ => "waiting",
                };
                // The numbers are the processes' word, and not known before and after.
                let sum = |of: fn(&Arrived) -> u64| match parts().next() {
                    Some(_) => {
                        count(parts().fold(0, |all: u64, (_, arrived)| all.saturating_add(of(arrived))))
                    }
                    None => Value::Null,
                };
                rows.push(vec![
                    count(keyspace.0),
                    text(migration.change),
                    from.map_or(Value::Null, text),
                    text(to),
                    position(range.first),
                    position(range.last),
                    sum(|arrived| u64::from(arrived.chunks)),
                    sum(|arrived| arrived.rows),
                    sum(|arrived| arrived.follow),
                    text(state),
                ]);
            }
        }
    }
    rows
}
