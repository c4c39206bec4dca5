//! The server over real connections, in front of an embedded cluster.

mod bad_input;
mod copy;
mod protocol;
mod relational;
mod session;
mod support;
mod values;
mod writes;
