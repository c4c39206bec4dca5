//! Generated statements, checked against a naive evaluator.
//!
//! [`generate`] draws a table and a sequence of statements from a seed, [`evaluate`] says row by row what PostgreSQL
//! must answer, [`check`] sends the statements to a server and compares. The evaluator shares no code with Carousel, and
//! is itself checked against PostgreSQL by running the same sequences there (`carousel-sqllogictest --generate`).

// A handful of statements live at a time: their size does not matter, and boxes would hide their shape.
#![allow(clippy::large_enum_variant)]

pub mod check;
pub mod evaluate;
pub mod generate;
pub mod join;
pub mod statement;
pub mod value;
