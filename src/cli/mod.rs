//! The command line: one file per command. Data goes to stdout, everything else to stderr.
//!
//! Exit codes: 0 done, 1 the asked thing failed, 2 usage or configuration; `check` has more.

mod batch;
mod bench;
mod check;
mod client;
mod config;
mod dead;
mod demo;
mod feed;
mod out;
mod parts;
mod preview;
pub mod serve;
mod shell;
mod target;
mod task;
mod verify;
mod watch;

use std::ffi::OsString;
use std::fmt::Display;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

use crate::config::{ConfigError, Sources};
use out::{say, tell};

/// Publishes messages on time: tasks wait in Redis, due ones are published under one idempotency key.
#[derive(Parser)]
#[command(
    name = "punctual",
    version,
    arg_required_else_help = true,
    disable_help_subcommand = true,
    after_help = "Exit codes: 0 done, 1 what was asked for failed, 2 usage or configuration."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Take tasks in over HTTP and publish them when they are due
    Serve(SourceArguments),
    /// See it work: put tasks, watch their messages appear, and count whether each came once and on time
    Demo(demo::DemoArguments),
    /// Put, show or cancel a task of a running instance
    #[command(subcommand)]
    Task(task::TaskCommand),
    /// List, show, requeue or discard what an instance does not try again by itself
    #[command(subcommand)]
    Dead(dead::DeadCommand),
    /// Show when a schedule would be due, without an instance
    Preview(Box<preview::PreviewArguments>),
    /// Look whether an instance would start, and reach all that its configuration names; writes nothing
    Check(check::CheckArguments),
    /// Show every option: its value, and where it was said
    Config(config::ConfigArguments),
    /// Attack instances while they publish, and judge whether anything was lost, early, or other than promised
    Verify(verify::VerifyArguments),
    /// Measure instances, each figure beside what their parts can do by themselves
    #[command(subcommand)]
    Bench(bench::BenchCommand),
    /// Print what a shell completes this command by
    Completions(shell::CompletionsArguments),
    /// Print the manual page, for `man -l -`
    Man,
}

/// What the configuration is read from; everything else stands there.
#[derive(Args)]
struct SourceArguments {
    /// Where tasks wait: redis://[user:password@]host:port[/db], rediss://, redis+sentinel://, or `memory:`
    #[arg(long, value_name = "URL")]
    redis: Option<String>,
    /// Where messages go: kafka://, amqp://, nats://, redis://, stdout: or memory:
    #[arg(long, value_name = "URL")]
    sink: Option<String>,
    /// Where the API listens
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
    /// Keeps installations apart on one Redis or broker
    #[arg(long, value_name = "NAME")]
    namespace: Option<String>,
    /// Configuration file; without it punctual.toml, if there is one
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    config: Option<PathBuf>,
    /// Refuse a Redis that evicts, keeps nothing through a restart, or cannot write to its disk
    #[arg(long)]
    strict: bool,
}

/// Why a command did not do what it was asked.
#[derive(Debug)]
struct Failure {
    error: anyhow::Error,
    hint: Option<String>,
    code: u8,
}

impl Failure {
    /// What was asked for could not be done.
    fn failed(error: impl Into<anyhow::Error>) -> Failure {
        Failure { error: error.into(), hint: None, code: 1 }
    }

    /// The command line or the configuration is wrong.
    fn usage(error: impl Into<anyhow::Error>) -> Failure {
        Failure { error: error.into(), hint: None, code: 2 }
    }

    fn hint(self, hint: impl Display) -> Failure {
        Failure { hint: Some(hint.to_string()), ..self }
    }

    /// Tells it on stderr.
    fn tell(&self) {
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

/// Does what the arguments (the first is the program's name) say.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    punctual_sinks::tls::install_provider();
    let cli = match Cli::try_parse_from(arguments) {
        Ok(cli) => cli,
        // Help and version are no errors, and go to stdout; clap knows.
        Err(error) => {
            let printed = error.print().is_ok();
            return ExitCode::from(if error.use_stderr() || !printed { 2 } else { 0 });
        }
    };
    let done = match cli.command {
        Command::Serve(arguments) => arguments.sources().map_err(Failure::from).and_then(serve::run),
        Command::Demo(arguments) => demo::run(&arguments),
        Command::Task(command) => task::run(command),
        Command::Dead(command) => dead::run(command),
        Command::Preview(arguments) => preview::run(&arguments),
        Command::Check(arguments) => check::run(arguments),
        Command::Config(arguments) => config::run(arguments),
        Command::Verify(arguments) => verify::run(&arguments),
        Command::Bench(command) => bench::run(&command),
        Command::Completions(arguments) => shell::completions(&arguments),
        Command::Man => shell::man(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            failure.tell();
            ExitCode::from(failure.code)
        }
    }
}

impl SourceArguments {
    fn sources(self) -> Result<Sources, ConfigError> {
        let mut sources = Sources::gather(self.config.as_deref())?;
        let flags = [
            ("--redis", "redis.url", self.redis),
            ("--sink", "sinks.default.url", self.sink),
            ("--listen", "http.listen", self.listen),
            ("--namespace", "timeline.namespace", self.namespace),
            ("--strict", "redis.strict", self.strict.then(|| "true".to_owned())),
        ];
        sources.flags.extend(flags.into_iter().filter_map(|(flag, path, value)| Some((flag, path, value?))));
        Ok(sources)
    }
}
