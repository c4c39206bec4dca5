//! Whole-stack tests: a cluster and its front end in this process, and clients that know nothing but the Postgres
//! protocol.

mod acceptance;
mod generated;
mod kills;
mod server;
mod suites;
