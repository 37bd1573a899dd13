//! The lab as users run it: both programs as processes, real servers, reports read as JSON. Contents:
//!
//! - `bench`  every bench, small: all figures are present
//! - `cli`    help, completions, the manual page; which `punctual` the lab starts
//! - `verify` a short campaign per sink, and interrupted campaigns

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]

mod bench;
mod cli;
mod verify;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use punctual_lab::servers::{self, Server};
use punctual_lab::testing::block_on;

/// The program under test. It starts the `punctual` beside it, which the same build makes.
fn lab(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_punctual-lab"));
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// A Redis that belongs to the user.
fn start_redis() -> Server {
    block_on(async || servers::start_redis(&[]).await).unwrap()
}

fn url(redis: &Server) -> String {
    format!("redis://127.0.0.1:{}", redis.port)
}

/// Keys in this Redis.
fn keys(redis: &Server) -> Vec<String> {
    let mut connection = redis::Client::open(url(redis)).unwrap().get_connection().unwrap();
    redis::cmd("KEYS").arg("*").query(&mut connection).unwrap()
}

/// Entries of a folder.
fn left_in(dir: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect()
}

/// Sends SIGINT to a process, as Ctrl-C does.
fn interrupt(pid: u32) {
    let status = Command::new("kill").args(["-INT", &pid.to_string()]).status().unwrap();
    assert!(status.success(), "{pid}");
}
