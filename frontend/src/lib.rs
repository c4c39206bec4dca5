//! The front end: PostgreSQL's wire protocol, sessions, and COPY, and what the `carousel` binary does.

pub mod cli;
pub mod load;
pub mod ticket;
