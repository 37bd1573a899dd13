//! `punctual serve` processes: configured by a file, started, signalled, killed, started again, ended with this
//! process.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use parking_lot::Mutex;
use serde::Deserialize;
use tokio::time::{Instant, sleep};

use super::{Keeper, Program, free_port};

/// How long it may take until it serves.
const READY_TIMEOUT: Duration = Duration::from_secs(30);

/// How long after its start to wait until it has reached Redis. Redis may be unreachable; the instance serves
/// nevertheless.
const REDIS_CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// Number of log lines that are kept as evidence.
const MAX_LOG_LINES: usize = 20;

/// An instance, running or not. Dropping it ends it.
#[derive(Debug)]
pub struct Instance {
    /// Its number, from 0.
    pub number: usize,
    /// The address of its API.
    pub api: SocketAddr,
    keeper: Keeper,
    log: Mutex<Log>,
}

/// The parsed part of its log.
#[derive(Clone, Debug, Default)]
pub struct Log {
    read: u64,
    /// The id of its last start.
    id: Option<String>,
    /// Whether the last start has reached Redis.
    linked: bool,
    /// The first lines at ERROR that are not about dead occurrences, and lines that are not JSON.
    pub errors: Vec<String>,
    /// The number of such lines.
    pub error_count: u64,
}

/// The relevant members of a log line.
#[derive(Deserialize)]
struct Line {
    level: String,
    message: Option<String>,
    instance: Option<String>,
}

impl Instance {
    /// Writes the configuration, given the address of the API; starts nothing yet. The instance logs JSON.
    ///
    /// # Errors
    /// If there is no folder, no port, or no configuration.
    pub fn new(
        program: &Program,
        number: usize,
        configure: impl FnOnce(SocketAddr) -> anyhow::Result<String>,
    ) -> anyhow::Result<Instance> {
        let api = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()?));
        let text = configure(api)?;
        let keeper = Keeper::new(|dir| {
            let file = dir.join("punctual.toml");
            std::fs::write(&file, text)?;
            Ok(vec![program.file().into(), "serve".into(), "--config".into(), file.into_os_string()])
        });
        let keeper = keeper.context("cannot start an instance")?;
        Ok(Instance { number, api, keeper, log: Mutex::default() })
    }

    /// Starts it; returns when it serves and has reached Redis, or Redis is unreachable. Ends a former process first.
    ///
    /// # Errors
    /// If it ends at once, or does not serve in time.
    pub async fn start(&self) -> anyhow::Result<()> {
        self.signal("KILL")?;
        self.end(READY_TIMEOUT).await?;
        self.read_log();
        self.log.lock().begin();
        self.keeper.start()?;
        let begun = Instant::now();
        loop {
            let (serves, linked) = {
                let log = self.log.lock();
                (log.id.is_some(), log.linked)
            };
            if serves && (linked || begun.elapsed() > REDIS_CONNECT_LIMIT) {
                return Ok(());
            }
            if let Some(code) = self.keeper.ended()? {
                bail!("instance {} ended at its start with code {code}: {}", self.number, self.log_tail());
            }
            if !serves && begun.elapsed() > READY_TIMEOUT {
                bail!("instance {} does not serve within {READY_TIMEOUT:?}: {}", self.number, self.log_tail());
            }
            sleep(Duration::from_millis(20)).await;
            self.read_log();
        }
    }

    /// The id of its last start, once it serves.
    pub fn id(&self) -> Option<String> {
        self.log.lock().id.clone()
    }

    /// Sends a signal, by name.
    ///
    /// # Errors
    /// If its keeper is gone.
    pub fn signal(&self, name: &str) -> io::Result<()> {
        self.keeper.signal(name)
    }

    /// The exit code, if it has ended.
    ///
    /// # Errors
    /// If its keeper is gone.
    pub fn ended(&self) -> io::Result<Option<i32>> {
        self.keeper.ended()
    }

    /// Waits for its end; `None` if it still runs after `limit`, or was not running.
    ///
    /// # Errors
    /// If its keeper is gone.
    pub async fn end(&self, limit: Duration) -> io::Result<Option<i32>> {
        let begun = Instant::now();
        loop {
            match self.keeper.ended()? {
                None if self.pid().is_some() && begun.elapsed() < limit => sleep(Duration::from_millis(2)).await,
                ended => return Ok(ended),
            }
        }
    }

    /// Its process id, while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.keeper.pid()
    }

    /// The parsed log so far.
    pub fn log(&self) -> Log {
        self.read_log();
        self.log.lock().clone()
    }

    /// Its log file.
    pub fn log_file(&self) -> PathBuf {
        self.keeper.log()
    }

    fn read_log(&self) {
        let mut log = self.log.lock();
        if let Err(error) = log.read_on(&self.keeper.log()) {
            tracing::debug!(%error, "no log yet");
        }
    }

    /// The end of its log.
    pub fn log_tail(&self) -> String {
        let text = std::fs::read(self.keeper.log()).unwrap_or_default();
        let lines: Vec<String> = String::from_utf8_lossy(&text).lines().rev().take(5).map(str::to_owned).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join(" | ")
    }
}

impl Log {
    /// Resets the state for another start.
    fn begin(&mut self) {
        (self.id, self.linked) = (None, false);
    }

    /// Parses the complete lines that were added.
    fn read_on(&mut self, file: &std::path::Path) -> io::Result<()> {
        let mut file = File::open(file)?;
        file.seek(SeekFrom::Start(self.read))?;
        let mut added = Vec::new();
        file.read_to_end(&mut added)?;
        let whole = added.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        self.read += whole as u64;
        added[..whole].split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).for_each(|line| self.take(line));
        Ok(())
    }

    fn take(&mut self, line: &[u8]) {
        let parsed = serde_json::from_slice::<Line>(line);
        let message = parsed.as_ref().ok().and_then(|line| line.message.as_deref()).unwrap_or_default();
        match &parsed {
            Ok(line) if message == "serving" => self.id.clone_from(&line.instance),
            Ok(_) if message == "connected to redis" => self.linked = true,
            // Dead occurrences are checked elsewhere. Any line that is not JSON comes from a runtime that ended.
            Ok(line) if line.level != "ERROR" || message.contains("dead") => {}
            _ => {
                self.error_count += 1;
                if self.errors.len() < MAX_LOG_LINES {
                    self.errors.push(String::from_utf8_lossy(line).chars().take(1000).collect());
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_read_from_where_it_ended_and_only_faults_become_evidence() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("log");
        let mut log = Log::default();
        assert!(log.read_on(&file).is_err());
        let mut text = concat!(
            r#"{"level":"INFO","message":"serving","instance":"abc"}"#,
            "\n",
            r#"{"level":"INFO","message":"connected to redis"}"#,
            "\n",
            r#"{"level":"ERROR","message":"occurrences are dead"}"#,
            "\n",
            r#"{"level":"WARN","message":"x"}"#,
            "\n",
            r#"{"level":"ERROR","message":"a part of punc"#,
        )
        .to_owned();
        std::fs::write(&file, &text).unwrap();
        log.read_on(&file).unwrap();
        assert_eq!((log.id.as_deref(), log.linked, log.error_count), (Some("abc"), true, 0));
        text += "tual\"}\nthread panicked\n";
        std::fs::write(&file, &text).unwrap();
        log.read_on(&file).unwrap();
        log.read_on(&file).unwrap();
        assert_eq!(log.error_count, 2);
        assert!(log.errors[0].contains("a part of punctual") && log.errors[1] == "thread panicked", "{:?}", log.errors);
    }
}
