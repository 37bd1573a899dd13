//! A redis-server of the demo's own, gone with it whatever ends it.

use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

/// Runs a program until the other end of its stdin is closed, which the kernel does even when we are killed.
const KEEPER: &str = r#"
dir=$1; shift
"$@" </dev/null >"$dir/output.log" 2>&1 & server=$!
read -r _
kill -KILL "$server"
wait
rm -rf -- "$dir"
"#;

/// How long it may take until it takes connections.
const READY_TIMEOUT: Duration = Duration::from_secs(10);

/// How often its log is looked at until then.
const READY_PAUSE: Duration = Duration::from_millis(10);

/// A running redis-server that keeps nothing on disk. Dropping it ends it.
#[derive(Debug)]
pub(super) struct OwnRedis {
    keeper: Child,
    /// Where it listens, on 127.0.0.1.
    pub(super) port: u16,
    dir: TempDir,
}

impl OwnRedis {
    /// Whether there is a redis-server to start.
    pub(super) fn is_installed() -> bool {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path).any(|dir| dir.join("redis-server").is_file())
    }

    /// Starts one; returns when it takes connections.
    ///
    /// # Errors
    /// When it does not, with the end of its log.
    pub(super) async fn start() -> anyhow::Result<OwnRedis> {
        let redis = OwnRedis::spawn().context("cannot start a redis-server")?;
        let begun = Instant::now();
        loop {
            let log = std::fs::read_to_string(redis.dir.path().join("output.log")).unwrap_or_default();
            // Not asked over its port, where somebody else may answer.
            if log.contains("eady to accept connections") {
                return Ok(redis);
            }
            if begun.elapsed() > READY_TIMEOUT {
                bail!("it takes no connections: {}", log.lines().last().unwrap_or("it says nothing"));
            }
            sleep(READY_PAUSE).await;
        }
    }

    fn spawn() -> io::Result<OwnRedis> {
        let dir = tempfile::Builder::new().prefix("punctual-demo-").tempdir()?;
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        let mut command = Command::new("sh");
        command.args(["-c", KEEPER, "sh"]).arg(dir.path()).args(["redis-server", "--bind", "127.0.0.1", "--port"]);
        command.arg(port.to_string()).args(["--save", "", "--appendonly", "no", "--dir"]).arg(dir.path());
        // A group of its own: a Ctrl-C in the terminal is for us, who still need it to end in order.
        command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        Ok(OwnRedis { keeper: command.spawn()?, port, dir })
    }
}

impl Drop for OwnRedis {
    fn drop(&mut self) {
        drop(self.keeper.stdin.take());
        if let Err(error) = self.keeper.wait() {
            tracing::warn!(%error, "the redis-server of the demo was not waited for");
        }
    }
}
