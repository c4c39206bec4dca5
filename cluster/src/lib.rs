//! The distribution layer: E-Cast orders and routes messages, Rubberband places and replicates the data
//! (Crescando/RB paper, sections 5 and 6).
//!
//! The crate carries typed messages and never sees SQL text. Routers, application processes and the config module are
//! deterministic state machines; threads, channels, disks and timers live in small shells around them.

pub mod catalog;
pub mod checkpoint;
pub mod client;
mod clock;
pub mod config;
mod data_dir;
pub mod description;
mod direct;
pub mod embedded;
mod founder;
mod link;
pub mod member;
pub mod message;
pub mod metering;
pub mod network;
mod outbox;
pub mod parcel;
mod patience;
pub mod payload;
mod planted;
pub mod priority;
mod raft;
mod removal;
pub mod router;
pub mod routers;
pub mod sim;
pub mod storage;
pub mod super_process;
pub mod transport;
pub mod wal;
pub mod wire;
