//! A server process for one test: starts on a free port, takes signals, stops with the test.

use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use punctual_lab::servers;
use punctual_lab::testing::block_on;

use super::patient;

/// A running server. It is killed when this value is dropped or the test process dies.
pub(crate) struct Server {
    inner: servers::Server,
    /// The port it listens on, on 127.0.0.1.
    pub(crate) port: u16,
}

impl Server {
    /// Starts a program; `arguments` gets the free port and the server's own folder. Returns when the port accepts
    /// connections.
    pub(crate) fn start(program: &'static str, arguments: impl Fn(u16, &Path) -> Vec<String> + Sync) -> Server {
        let listens = |port| TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok();
        let command = |port, dir: &Path| {
            let command = [program.to_owned()].into_iter().chain(arguments(port, dir));
            Ok(command.collect::<Vec<String>>())
        };
        Server::of(async || servers::Server::start(program, listens, command).await)
    }

    /// Wraps a server that the lab starts.
    pub(crate) fn of(start: impl AsyncFnOnce() -> anyhow::Result<servers::Server> + Send) -> Server {
        block_on(start).unwrap_or_else(|error| panic!("{error:#}")).into()
    }

    /// The lab's view of this server.
    pub(crate) fn inner(&self) -> &servers::Server {
        &self.inner
    }

    /// Starts it again on the same port with the same folder; returns when it is ready.
    pub(crate) fn restart(&mut self) {
        let started = block_on(async || {
            self.inner.kill().await?;
            self.inner.revive().await
        });
        started.unwrap_or_else(|error| panic!("{error:#}"));
    }

    /// Stops it with SIGTERM; kills it after 60 s.
    pub(crate) fn shut_down(&mut self) {
        self.signal("TERM");
        patient(Duration::from_secs(60), || self.inner.ended().expect("its end is reported").is_some());
        self.kill();
    }

    /// Kills it with SIGKILL.
    pub(crate) fn kill(&mut self) {
        block_on(async || self.inner.kill().await).expect("it can be killed");
    }

    /// Sends a signal by name: `STOP`, `CONT`, `TERM`.
    pub(crate) fn signal(&self, signal: &str) {
        self.inner.signal(signal).expect("it can be signalled");
    }

    /// File of its output.
    pub(crate) fn log(&self) -> PathBuf {
        self.inner.log()
    }
}

impl From<servers::Server> for Server {
    fn from(inner: servers::Server) -> Server {
        Server { port: inner.port, inner }
    }
}

/// Sends a signal by name to a process.
pub(crate) fn signal_pid(pid: u32, signal: &str) {
    let status = Command::new("kill").args([format!("-{signal}"), pid.to_string()]).status().expect("kill runs");
    assert!(status.success(), "kill -{signal} {pid}");
}

/// A port that is free now.
pub(crate) fn free_port() -> u16 {
    servers::free_port().expect("a free port")
}
