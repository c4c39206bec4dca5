//! What a command tells: texts on standard output, and how it ends, in one line for the user and an exit code.

use std::io::Write;

/// Why a command did not do its job.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// It could not begin: an unusable option, a taken port, an unusable directory. Exit code 2.
    #[error("{0}")]
    Setup(String),
    /// It began and failed. Exit code 1.
    #[error("{0}")]
    Job(String),
}

impl Failure {
    /// A command that cannot begin.
    pub fn setup(message: impl std::fmt::Display) -> Failure {
        Failure::Setup(one_line(&message.to_string()))
    }

    /// A job that failed.
    pub fn job(message: impl std::fmt::Display) -> Failure {
        Failure::Job(one_line(&message.to_string()))
    }

    /// The exit code.
    pub fn exit_code(&self) -> u8 {
        match self {
            Failure::Setup(_) => 2,
            Failure::Job(_) => 1,
        }
    }
}

/// Writes a text to standard output, all of it and at once.
///
/// # Errors
/// A job's failure when nobody takes it.
pub fn print(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(|error| Failure::job(format!("cannot write to standard output: {error}")))
}

/// A text on one line: what scripts and people read is never torn apart.
pub fn one_line(text: &str) -> String {
    text.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_single_lines() {
        let failure = Failure::setup("cannot\n  do \n\n this");
        assert_eq!(failure.to_string(), "cannot do this");
        assert_eq!((failure.exit_code(), Failure::job("x").exit_code()), (2, 1));
    }
}
