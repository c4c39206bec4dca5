//! COPY FROM STDIN and COPY TO STDOUT in PostgreSQL's text and csv formats.
//!
//! [`split`] cuts a stream of bytes into rows of fields, [`input`] makes Arrow columns of them, [`output`] writes rows.

pub mod input;
pub mod output;
pub mod split;
