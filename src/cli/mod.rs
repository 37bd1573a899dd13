//! The command line, with one file per command. Data goes to stdout, everything else to stderr.
//!
//! Exit codes: 0 done, 1 the operation failed, 2 usage or configuration; `check` has more.

mod api_caller;
mod batch;
mod check;
mod client;
mod config;
mod confirm;
mod dead;
mod demo;
mod descriptors;
mod fault;
mod feed;
mod lane;
pub mod out;
mod own_redis;
mod parts;
mod preview;
pub mod program;
mod schedule_arguments;
pub mod serve;
pub mod shell;
mod status;
mod target;
mod task;
mod task_bulk;
mod task_count;
mod task_export;
mod task_list;
mod task_moves;
mod watch;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::anyhow;
use clap::{Args, CommandFactory, Parser, Subcommand};

use crate::config::{ConfigError, Sources};
use out::{say, tell};
use program::Failure;
use shell::PageTexts;

/// Publishes messages on time: tasks wait in Redis, due ones are published under one idempotency key.
#[derive(Parser)]
#[command(
    name = "punctual",
    version,
    arg_required_else_help = true,
    disable_help_subcommand = true,
    after_help = "Exit codes: 0 done, 1 the operation failed, 2 usage or configuration."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const SERVE_EXAMPLES: &str = "Examples:
  punctual serve --redis redis://127.0.0.1:6379 --sink nats://127.0.0.1:4222
  PUNCTUAL__HTTP__LISTEN=0.0.0.0:7171 punctual serve --config punctual.toml";

const STATUS_EXAMPLES: &str = "Examples:
  punctual status --watch
  punctual status --url https://punctual.internal:7171 --token-file token";

const CONFIG_EXAMPLES: &str = "Examples:
  punctual config
  punctual config --config punctual.toml --json";

const COMPLETIONS_EXAMPLES: &str = "Examples:
  punctual completions bash > /etc/bash_completion.d/punctual";

#[derive(Subcommand)]
enum Command {
    /// Accept tasks over HTTP and publish them when they are due
    #[command(after_help = SERVE_EXAMPLES)]
    Serve(SourceArguments),
    /// See it work: put tasks, watch their messages appear, and check that each came once and on time
    Demo(demo::DemoArguments),
    /// Put, show, list, count, pause, resume, trigger, skip, cancel or export tasks of a running instance
    #[command(subcommand)]
    Task(task::TaskCommand),
    /// Pause or resume a lane of a running instance
    #[command(subcommand)]
    Lane(lane::LaneCommand),
    /// List, show, requeue or discard dead occurrences
    #[command(subcommand)]
    Dead(dead::DeadCommand),
    /// Show lanes, sinks and what is wrong with them at a running instance
    #[command(after_help = STATUS_EXAMPLES)]
    Status(status::StatusArguments),
    /// Show when a schedule would be due, without an instance
    #[command(after_help = preview::EXAMPLES)]
    Preview(Box<preview::PreviewArguments>),
    /// Check that an instance would start and reach everything in its configuration; writes nothing
    Check(check::CheckArguments),
    /// Show every option with its value and where it was set
    #[command(after_help = CONFIG_EXAMPLES)]
    Config(config::ConfigArguments),
    /// Print the completion script for a shell
    #[command(after_help = COMPLETIONS_EXAMPLES)]
    Completions(shell::CompletionsArguments),
    /// Print the manual page, for `man -l -`
    Man,
}

/// The text of the manual page around the commands.
const PAGE: PageTexts = PageTexts {
    description: "punctual accepts tasks over HTTP. A task is a message and its schedule: once, at an interval, or by \
         cron. punctual keeps tasks in Redis and publishes each message to Kafka, RabbitMQ, NATS JetStream or Redis \
         Streams when it is due, under one idempotency key. Data goes to stdout, everything else to stderr.",
    exit_status: &[
        "0: done.",
        "1: the operation failed.",
        "2: the command line or the configuration is wrong.",
        "3, 4, 5, only of punctual check: a server cannot be reached; a login was refused; a certificate is not trusted.",
    ],
    environment: &[
        "PUNCTUAL__SECTION__KEY sets an option of the configuration: PUNCTUAL__CLAIM__LEASE=20s is lease in [claim]. A dash in \
         a name is an underscore there.",
        "PUNCTUAL_URL is the API that punctual task, lane, dead and status call, PUNCTUAL_TOKEN a token of that \
         instance, PUNCTUAL_CA_FILE a file with the authorities to trust.",
    ],
    files: &[
        "punctual.toml in the working directory is read where --config names no other file. punctual config shows every option.",
    ],
};

/// Where the configuration comes from, and flags for the most common options.
#[derive(Args)]
struct SourceArguments {
    /// Where tasks wait: redis://[user:password@]host:port[/db], rediss://, redis+sentinel://, redis+cluster://, or
    /// `memory:`
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
    /// Configuration file; the default is punctual.toml, if it exists
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    config: Option<PathBuf>,
    /// Refuse a Redis that evicts, loses data at a restart, or cannot write to its disk
    #[arg(long)]
    strict: bool,
}

/// Runs the command line; the first argument is the program's name.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    if let Some(command @ ("verify" | "bench")) = arguments.get(1).and_then(|command| command.to_str()) {
        let failure = Failure::usage(anyhow!("`punctual {command}` is a command of another program"));
        return program::end(Err(
            failure.hint(format!("`punctual-lab {command}`; it is built and installed beside `punctual`"))
        ));
    }
    program::run(arguments, |cli: Cli| match cli.command {
        Command::Serve(arguments) => arguments.sources().map_err(Failure::from).and_then(serve::run),
        Command::Demo(arguments) => demo::run(&arguments),
        Command::Task(command) => task::run(command),
        Command::Lane(command) => lane::run(&command),
        Command::Dead(command) => dead::run(command),
        Command::Status(arguments) => status::run(&arguments),
        Command::Preview(arguments) => preview::run(&arguments),
        Command::Check(arguments) => check::run(arguments),
        Command::Config(arguments) => config::run(arguments),
        Command::Completions(arguments) => arguments.print(&mut Cli::command(), "punctual"),
        Command::Man => shell::man(Cli::command(), &PAGE),
    })
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

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    /// The arguments of a command of a shell: words, also in single quotes, up to a `>`. Variables before it are left out.
    fn arguments(command: &str) -> Vec<String> {
        let mut words = vec![String::new()];
        let mut is_quoted = false;
        for letter in command.trim().chars() {
            match letter {
                '\'' => is_quoted = !is_quoted,
                ' ' if !is_quoted => words.push(String::new()),
                letter => words.last_mut().expect("there is one").push(letter),
            }
        }
        words.into_iter().skip_while(|word| word != "punctual").take_while(|word| word != ">").collect()
    }

    fn check_examples(command: &clap::Command, count: &mut usize) {
        let after = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        let examples = after.lines().skip_while(|line| !line.starts_with("Examples:")).skip(1);
        for line in examples.take_while(|line| line.starts_with("  ")) {
            for command in line.split(" | ") {
                let parsed = Cli::try_parse_from(arguments(command));
                assert!(parsed.is_ok(), "{line}: {}", parsed.err().map(|error| error.to_string()).unwrap_or_default());
                *count += 1;
            }
        }
        command.get_subcommands().for_each(|command| check_examples(command, count));
    }

    #[test]
    fn the_examples_of_the_help_are_accepted() {
        let mut count = 0;
        check_examples(&Cli::command(), &mut count);
        assert!(count >= 30, "{count} examples");
    }
}
