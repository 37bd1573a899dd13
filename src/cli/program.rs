//! What `punctual` and `punctual-lab` share: parsing the command line, reporting failures, signals.

use std::ffi::OsString;
use std::fmt::Display;
use std::process::ExitCode;

use anyhow::Context;
use clap::Parser;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::out::tell;
use crate::config::ConfigError;

/// Why a command failed.
#[derive(Debug)]
pub struct Failure {
    error: anyhow::Error,
    hint: Option<String>,
    code: u8,
    is_about_task: bool,
}

impl Failure {
    /// The operation failed: exit code 1.
    pub fn failed(error: impl Into<anyhow::Error>) -> Failure {
        Failure { error: error.into(), hint: None, code: 1, is_about_task: false }
    }

    /// The command line or the configuration is wrong: exit code 2.
    pub fn usage(error: impl Into<anyhow::Error>) -> Failure {
        Failure { error: error.into(), hint: None, code: 2, is_about_task: false }
    }

    /// The same failure with another exit code.
    pub(super) fn code(self, code: u8) -> Failure {
        Failure { code, ..self }
    }

    /// The same failure, which begins with where it happened.
    #[must_use]
    pub(super) fn context(self, place: String) -> Failure {
        Failure { error: self.error.context(place), ..self }
    }

    /// The same failure with a hint.
    #[must_use]
    pub fn hint(self, hint: impl Display) -> Failure {
        Failure { hint: Some(hint.to_string()), ..self }
    }

    /// The same failure, which concerns this task alone.
    #[must_use]
    pub(super) fn about_task(self) -> Failure {
        Failure { is_about_task: true, ..self }
    }

    /// Whether it concerns one task alone, so that the same may be tried with others.
    pub(super) fn is_about_task(&self) -> bool {
        self.is_about_task
    }

    /// Prints it to stderr.
    pub(super) fn tell(&self) {
        let mut text = format!("error: {:#}\n", self.error);
        if let Some(hint) = &self.hint {
            text.push_str(&format!("hint: {hint}\n"));
        }
        tell(&text);
    }
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Failure {
        Failure::usage(error)
    }
}

/// Parses the arguments (the first is the program's name) and runs the command.
pub fn run<C: Parser>(
    arguments: impl IntoIterator<Item = OsString>,
    carry_out: impl FnOnce(C) -> Result<(), Failure>,
) -> ExitCode {
    punctual_sinks::tls::install_provider();
    let command = match C::try_parse_from(arguments) {
        Ok(command) => command,
        // Help and version are not errors and go to stdout; clap decides.
        Err(error) => {
            let printed = error.print().is_ok();
            return ExitCode::from(if error.use_stderr() || !printed { 2 } else { 0 });
        }
    };
    end(carry_out(command))
}

/// Prints a failure and returns the exit code.
pub(super) fn end(done: Result<(), Failure>) -> ExitCode {
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            failure.tell();
            ExitCode::from(failure.code)
        }
    }
}

/// The runtime for commands.
///
/// # Errors
/// If the system cannot start its threads.
pub fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    let built = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    built.context("cannot start the runtime").map_err(Failure::failed)
}

/// The signals that ask a process to end.
#[derive(Debug)]
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    /// From now on these signals no longer end the process by themselves.
    ///
    /// # Errors
    /// If the system refuses the handler.
    pub fn listen() -> Result<Signals, Failure> {
        let listen = |kind| signal(kind).context("cannot listen for signals").map_err(Failure::failed);
        Ok(Signals { interrupt: listen(SignalKind::interrupt())?, terminate: listen(SignalKind::terminate())? })
    }

    /// Waits for the next signal; returns `SIGINT` or `SIGTERM`.
    pub async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.interrupt.recv() => "SIGINT",
            _ = self.terminate.recv() => "SIGTERM",
        }
    }
}
