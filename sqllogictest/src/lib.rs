//! Carousel's SQL behaviour as files: the runner of the `.slt` suites, the recorder that takes their answers from
//!
//! Nothing here knows Carousel: everything speaks the Postgres protocol to an URL, so that every suite and the

pub mod oracle;
pub mod record;
pub mod session;
pub mod suite;
