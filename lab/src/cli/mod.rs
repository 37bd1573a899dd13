//! The command line of `punctual-lab`: one file per command, and what they share.
//!
//! Exit codes: 0 done, 1 the operation failed, 2 usage or something is missing.

mod bench;
mod verify;

use std::ffi::OsString;
use std::fmt::Display;
use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::anyhow;
use clap::{CommandFactory, Parser, Subcommand};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use punctual::cli::out::{say, tell};
use punctual::cli::program::{self, Failure, Signals};
use punctual::cli::shell::{self, CompletionsArguments, PageTexts};
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use crate::servers::{Kind, Missing, Program};

/// Client libraries log every lost connection; here they are lost on purpose.
const LOGS: &str = "warn,lapin=off,rdkafka=off,librdkafka=off";

/// Attacks and measures instances of punctual from outside.
#[derive(Parser)]
#[command(
    name = "punctual-lab",
    version,
    arg_required_else_help = true,
    disable_help_subcommand = true,
    after_help = "Exit codes: 0 done, 1 what was asked for failed, 2 usage, or something is missing."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    /// The `punctual` to start, of the same version; without it the one beside this program, else that of PATH
    #[arg(long, value_name = "FILE", global = true, value_hint = clap::ValueHint::FilePath)]
    punctual: Option<PathBuf>,
}

#[derive(Subcommand)]
enum Command {
    /// Attack instances while they publish, and check that no message was lost, early, or other than promised
    Verify(verify::VerifyArguments),
    /// Measure instances, and beside that what the sink and Redis can do alone
    #[command(subcommand)]
    Bench(bench::BenchCommand),
    /// Print the completion script for a shell
    Completions(CompletionsArguments),
    /// Print the manual page, for `man -l -`
    Man,
}

/// The text of the manual page around the commands.
const PAGE: PageTexts = PageTexts {
    description: "punctual-lab starts servers and instances of punctual, attacks or measures them from outside, and ends them. Data \
         goes to stdout, everything else to stderr.",
    exit_status: &[
        "0: done.",
        "1: a law was broken, or what was asked for failed.",
        "2: the command line is wrong, or something that is needed is missing.",
    ],
    environment: &[
        "PUNCTUAL_KAFKA is a folder with the jars of Kafka, KAFKA_HOME one with an installed Kafka.",
        "PUNCTUAL_CACHE is the folder where make setup keeps the jars of Kafka, by default ~/.cache/punctual.",
    ],
    files: &[],
};

/// Runs the command line; the first argument is the program's name.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    program::run(arguments, |cli: Cli| match cli.command {
        Command::Verify(arguments) => verify::run(&arguments, find(cli.punctual)?),
        Command::Bench(command) => bench::run(&command, find(cli.punctual)?),
        Command::Completions(arguments) => arguments.print(&mut Cli::command(), "punctual-lab"),
        Command::Man => shell::man(Cli::command(), &PAGE),
    })
}

/// The program to start instances from.
fn find(named: Option<PathBuf>) -> Result<Program, Failure> {
    Program::find(named).map_err(missing)
}

/// The failure for something that is missing, with its hint.
fn missing(missing: Missing) -> Failure {
    Failure::usage(anyhow!("{missing}")).hint(missing.hint)
}

/// The failure for any error.
fn failure(error: anyhow::Error) -> Failure {
    match error.downcast::<Missing>() {
        Ok(found) => missing(found),
        Err(error) => Failure::failed(error),
    }
}

/// Runs a future. The first signal asks it to stop and prints `text`; the second one ends it at once and prints
/// `left`, what is left behind.
async fn run_until_signal<T>(
    doing: impl Future<Output = anyhow::Result<T>>,
    stop: &CancellationToken,
    text: &str,
    left: Option<String>,
) -> Result<T, Failure> {
    let mut signals = Signals::listen()?;
    let mut doing = std::pin::pin!(doing);
    let signal = tokio::select! {
        done = doing.as_mut() => return done.map_err(failure),
        signal = signals.next() => signal,
    };
    tell(&format!("{signal}: {text}\n"));
    stop.cancel();
    tokio::select! {
        done = doing => done.map_err(failure),
        signal = signals.next() => {
            let failure = Failure::failed(anyhow!("{signal} received again: ended at once"));
            Err(match left {
                Some(left) => failure.hint(left),
                None => failure,
            })
        }
    }
}

/// What a command leaves on the user's servers if it is ended at once; `redis` and `sink` say which of them are the
/// user's.
fn left(name: &str, redis: bool, sink: bool) -> Option<String> {
    let (keys, destinations) = (format!("keys `punctual:{{{name}*`"), format!("streams, topics or queues `{name}*`"));
    match (redis, sink) {
        (false, false) => None,
        (true, false) => Some(format!("what it made is left in your Redis: {keys}")),
        (false, true) => Some(format!("what it made is left in your sink: {destinations}")),
        (true, true) => Some(format!("what it made is left in your servers: {keys}; {destinations}")),
    }
}

/// Prints a report.
fn show(report: &(impl Serialize + Display), json: bool) -> Result<(), Failure> {
    if !json {
        return say(&report.to_string());
    }
    let text = serde_json::to_string(report).map_err(Failure::failed)?;
    say(&format!("{text}\n"))
}

/// The kind of sink that `--sink` names, and its URL if it is one.
fn kind(sink: &str, action: &str) -> Result<(Kind, Option<String>), Failure> {
    let kinds = [Kind::Redis, Kind::Kafka, Kind::RabbitMq, Kind::Nats];
    if let Some(kind) = kinds.into_iter().find(|kind| kind.name() == sink) {
        return Ok((kind, None));
    }
    let scheme = sink.split_once("://").map_or("", |(scheme, _)| scheme);
    let kind = match scheme.split('+').next().unwrap_or_default() {
        "redis" | "rediss" => Kind::Redis,
        "kafka" => Kind::Kafka,
        "amqp" | "amqps" => Kind::RabbitMq,
        "nats" | "tls" => Kind::Nats,
        // The URL may contain a password.
        _ => {
            return Err(Failure::usage(anyhow!("`--sink` names nothing that can be {action}"))
                .hint("redis, kafka, rabbitmq, nats, or a URL: redis://, kafka://, amqp://, nats://"));
        }
    };
    Ok((kind, Some(sink.to_owned())))
}

/// A progress bar in thousandths; hidden if stderr is no terminal.
fn bar() -> ProgressBar {
    let target = match io::stderr().is_terminal() {
        true => ProgressDrawTarget::stderr(),
        false => ProgressDrawTarget::hidden(),
    };
    let style = ProgressStyle::with_template("{bar:30} {percent:>3} %  {msg}");
    let bar = ProgressBar::with_draw_target(Some(1000), target);
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}
