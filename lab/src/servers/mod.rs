//! Servers and instances for tests: on free ports, in folders of their own, killed and started again as needed, ended
//! with this process.

mod instance;
mod kafka;
mod keeper;
mod kind;
mod nats;
mod program;
mod rabbitmq;
mod redis;
mod redis_cluster;
mod remove;

use std::collections::BTreeSet;
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep};

pub use instance::Instance;
pub use kafka::{KafkaOptions, have_kafka, start_kafka};
pub use keeper::Keeper;
pub use kind::{Kind, Missing};
pub use kind::{Purpose, installed, start};
pub use nats::start_nats;
pub use program::Program;
pub use rabbitmq::{RabbitOptions, rabbitmqctl, start_rabbitmq};
pub use redis::{KEEPS_EVERYTHING, redis_options, start_redis};
pub use redis_cluster::{move_redis_slot, start_redis_cluster, start_redis_node};
pub use remove::remove;

/// How many ports to try, because another program may take a free one in between.
const START_ATTEMPTS: usize = 3;

/// How long a server may take until it answers, or until it has ended.
const READY_TIMEOUT: Duration = Duration::from_secs(180);

/// The range of ports: below the kernel's ephemeral ports. An outgoing connection could otherwise take the port of a
/// server that is being restarted, or connect to itself.
const PORT_RANGE: RangeInclusive<u16> = 10_240..=32_000;

/// A running server. Dropping it ends it and removes its folder.
#[derive(Debug)]
pub struct Server {
    keeper: Keeper,
    /// A helper process that it needs.
    _beside: Option<Keeper>,
    name: &'static str,
    /// Its port on 127.0.0.1.
    pub port: u16,
    ready: fn(u16) -> bool,
}

impl Server {
    /// Starts a server; `prepare` returns its command line, given port and folder. Returns when it answers.
    ///
    /// # Errors
    /// If it ends at once or does not answer in time.
    pub async fn start<A: AsRef<std::ffi::OsStr>>(
        name: &'static str,
        ready: fn(u16) -> bool,
        prepare: impl Fn(u16, &Path) -> io::Result<Vec<A>>,
    ) -> anyhow::Result<Server> {
        let mut tried = Server::try_start(name, ready, &prepare).await;
        for _ in 1..START_ATTEMPTS {
            if tried.is_err() {
                tried = Server::try_start(name, ready, &prepare).await;
            }
        }
        tried
    }

    async fn try_start<A: AsRef<std::ffi::OsStr>>(
        name: &'static str,
        ready: fn(u16) -> bool,
        prepare: impl Fn(u16, &Path) -> io::Result<Vec<A>>,
    ) -> anyhow::Result<Server> {
        let port = free_port()?;
        let keeper = Keeper::new(|dir| prepare(port, dir)).with_context(|| format!("cannot start a {name}"))?;
        let server = Server { keeper, _beside: None, name, port, ready };
        server.revive().await?;
        Ok(server)
    }

    /// Its process id, while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.keeper.pid()
    }

    /// Starts it, or starts it again with its data after its end; returns when it answers.
    ///
    /// # Errors
    /// If it ends at once or does not answer in time.
    pub async fn revive(&self) -> anyhow::Result<()> {
        self.keeper.start().with_context(|| format!("cannot start the {}", self.name))?;
        let begun = Instant::now();
        loop {
            let (port, ready) = (self.port, self.ready);
            if tokio::task::spawn_blocking(move || ready(port)).await? {
                return Ok(());
            }
            if let Some(code) = self.keeper.ended()? {
                bail!("the {} ended at its start with code {code}: {}", self.name, self.log_tail());
            }
            if begun.elapsed() > READY_TIMEOUT {
                bail!("the {} does not answer within {READY_TIMEOUT:?}: {}", self.name, self.log_tail());
            }
            sleep(Duration::from_millis(10)).await;
        }
    }

    /// Kills it; returns when it has ended.
    ///
    /// # Errors
    /// If it does not end in time.
    pub async fn kill(&self) -> anyhow::Result<()> {
        self.keeper.signal("KILL")?;
        self.await_end().await.map(drop)
    }

    /// Returns when it has ended, with its exit code unless an earlier call has returned it.
    ///
    /// # Errors
    /// If it does not end in time.
    async fn await_end(&self) -> anyhow::Result<Option<i32>> {
        let begun = Instant::now();
        while self.keeper.pid().is_some() {
            if let Some(code) = self.keeper.ended()? {
                return Ok(Some(code));
            }
            if begun.elapsed() > READY_TIMEOUT {
                bail!("the {} does not end", self.name);
            }
            sleep(Duration::from_millis(2)).await;
        }
        Ok(None)
    }

    /// The exit code, if it has ended by itself or by a signal and this was not returned before.
    ///
    /// # Errors
    /// If its keeper is gone.
    pub fn ended(&self) -> io::Result<Option<i32>> {
        self.keeper.ended()
    }

    /// The file with its output.
    #[must_use]
    pub fn log(&self) -> PathBuf {
        self.keeper.log()
    }

    /// Sends a signal, by name.
    ///
    /// # Errors
    /// If its keeper is gone.
    pub fn signal(&self, name: &str) -> anyhow::Result<()> {
        Ok(self.keeper.signal(name)?)
    }

    /// The end of its output.
    fn log_tail(&self) -> String {
        let text = std::fs::read(self.keeper.log()).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().rev().take(5).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join(" | ")
    }
}

/// The first program of this name in PATH.
pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(name)).find(|file| file.is_file())
}

/// Whether a program can be found.
pub fn is_there(program: &str) -> bool {
    find_program(program).is_some()
}

/// A free port on 127.0.0.1 outside of the kernel's ephemeral range. Each is returned once in this process.
///
/// # Errors
/// If none is found.
pub fn free_port() -> io::Result<u16> {
    static TAKEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());
    let mut last = io::Error::from(io::ErrorKind::AddrInUse);
    for _ in 0..1000 {
        let port = rand::random_range(PORT_RANGE);
        if !TAKEN.lock().insert(port) {
            continue;
        }
        match TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
            Ok(_) => return Ok(port),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Whether a server listens there.
fn listens(port: u16) -> bool {
    std::net::TcpStream::connect_timeout(&(Ipv4Addr::LOCALHOST, port).into(), Duration::from_secs(1)).is_ok()
}

/// Writes a file; returns its path.
fn write(dir: &Path, name: &str, text: &str) -> io::Result<String> {
    let path = dir.join(name);
    std::fs::write(&path, text)?;
    Ok(path.display().to_string())
}
