//! The laboratory as it is used: both programs as processes, real servers, reports read as JSON. Table of contents:
//!
//! - `bench`  every bench, small: whether its figures are there, never how good they are
//! - `cli`    help, completions, the manual page; which `punctual` is started
//! - `verify` a short campaign for each sink, and how it ends

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]

mod bench;
mod cli;
mod verify;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use punctual_lab::servers::{self, Server};
use punctual_lab::testing::block_on;

/// The program under test; it starts the `punctual` beside itself, which is built with it.
fn lab(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_punctual-lab"));
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// A Redis of the user's own.
fn start_redis() -> Server {
    block_on(async || servers::start_redis(&[]).await).unwrap()
}

fn url(redis: &Server) -> String {
    format!("redis://127.0.0.1:{}", redis.port)
}

/// The keys in it.
fn keys(redis: &Server) -> Vec<String> {
    let mut connection = redis::Client::open(url(redis)).unwrap().get_connection().unwrap();
    redis::cmd("KEYS").arg("*").query(&mut connection).unwrap()
}

/// What is in a folder.
fn left_in(dir: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect()
}

/// Asks a process to end, as Ctrl-C does.
fn interrupt(pid: u32) {
    let status = Command::new("kill").args(["-INT", &pid.to_string()]).status().unwrap();
    assert!(status.success(), "{pid}");
}
