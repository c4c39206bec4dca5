//! The front end: PostgreSQL's wire protocol, sessions, and COPY, and what the `carousel` binary does.
//!
//! The only crate that knows the protocol. [`FrontEnd::start`] listens and serves. Each connection has two tasks: one
//! cuts what the client sends into messages (`protocol::frames`), the other is the session, which runs statements one
//! after the other (`session`).

pub mod bench;
pub mod cli;
pub mod load;
pub mod ticket;

mod connection;
mod copy;
mod metering;
mod pg_catalog;
mod protocol;
mod server;
mod session;
mod settings;

pub use server::{FrontEnd, Handle, Options, StartError};
