//! The program as its users see it: exit codes, errors on stderr, data on stdout, signals, the demo, the README.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]

mod access;
mod batch;
mod check;
mod config;
mod dead;
mod demo;
mod errors;
mod export;
mod logs;
mod preview;
mod readme;
mod serve;
mod shell;
mod status;
mod steering;
mod task;
mod usage;

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::support::server::Server;

/// The program under test.
const PUNCTUAL: &str = env!("CARGO_BIN_EXE_punctual");

/// The result of a run.
struct Run {
    code: Option<i32>,
    out: String,
    err: String,
}

/// The program, with only those variables that it needs to run.
fn punctual(arguments: &[&str]) -> Command {
    let mut command = Command::new(PUNCTUAL);
    command.args(arguments).env_clear().env("PATH", std::env::var_os("PATH").unwrap());
    command.current_dir(std::env::temp_dir()).stdin(Stdio::null());
    command
}

/// Runs the program to its end.
fn run(arguments: &[&str]) -> Run {
    read(punctual(arguments).output().unwrap())
}

/// Runs the program to its end with `input` on its stdin.
fn run_with(arguments: &[&str], input: &str) -> Run {
    let mut child =
        punctual(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    read(child.wait_with_output().unwrap())
}

fn read(output: Output) -> Run {
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Run { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

/// `punctual serve` with its timeline in memory and messages on stdout; ready once its port answers.
fn serve(more: &[&str]) -> Server {
    let more: Vec<String> = more.iter().map(|&argument| argument.to_owned()).collect();
    Server::start(PUNCTUAL, |port, _| {
        let listen = format!("127.0.0.1:{port}");
        let mut arguments: Vec<String> =
            ["serve", "--redis", "memory:", "--sink", "stdout:", "--listen", &listen].map(str::to_owned).to_vec();
        arguments.extend(more.iter().cloned());
        arguments
    })
}

fn url(server: &Server) -> String {
    format!("http://127.0.0.1:{}", server.port)
}

fn log(server: &Server) -> String {
    std::fs::read_to_string(server.log()).unwrap()
}

/// Waits until the file contains the text; panics with its content otherwise.
fn wait_for(file: &Path, text: &str) -> String {
    for _ in 0..1000 {
        let held = std::fs::read_to_string(file).unwrap_or_default();
        if held.contains(text) {
            return held;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    panic!("no `{text}` in:\n{}", std::fs::read_to_string(file).unwrap_or_default());
}
