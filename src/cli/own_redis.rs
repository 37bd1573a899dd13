//! A redis-server for the demo, which ends with it in any case.

use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::bail;
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

/// Runs a program until it ends or stdin is closed, which the kernel does even when this process is killed.
const KEEPER: &str = r#"
dir=$1; shift
exec 3<&0
"$@" </dev/null 3<&- >"$dir/output.log" 2>&1 & server=$!
(read -r _ <&3; kill -KILL "$server") & reader=$!
wait "$server"
if [ "$?" -eq 137 ]; then rm -rf -- "$dir"; else kill "$reader"; fi
"#;

/// Number of attempts, because another program may take the port in between.
const MAX_TRIES: usize = 3;

/// How long it may take until it accepts connections.
const READY_TIMEOUT: Duration = Duration::from_secs(60);

/// How often its log is checked until then.
const READY_PAUSE: Duration = Duration::from_millis(10);

/// A running redis-server without persistence. Dropping it ends it.
#[derive(Debug)]
pub(super) struct OwnRedis {
    keeper: Child,
    /// Its port on 127.0.0.1.
    pub(super) port: u16,
    dir: TempDir,
}

impl OwnRedis {
    /// Whether redis-server is installed.
    pub(super) fn is_installed() -> bool {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path).any(|dir| dir.join("redis-server").is_file())
    }

    /// Starts one; returns when it accepts connections.
    ///
    /// # Errors
    /// If it does not, with the end of its log.
    pub(super) async fn start() -> anyhow::Result<OwnRedis> {
        for _ in 1..MAX_TRIES {
            if let Ok(redis) = OwnRedis::try_start().await {
                return Ok(redis);
            }
        }
        OwnRedis::try_start().await
    }

    async fn try_start() -> anyhow::Result<OwnRedis> {
        let mut redis = OwnRedis::spawn()?;
        let begun = Instant::now();
        loop {
            // Read from its log, because another program may answer on its port.
            if redis.log().contains("eady to accept connections") {
                return Ok(redis);
            }
            if redis.keeper.try_wait()?.is_some() || begun.elapsed() > READY_TIMEOUT {
                let log = redis.log();
                bail!("it takes no connections: {}", log.lines().last().unwrap_or("its log is empty"));
            }
            sleep(READY_PAUSE).await;
        }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("output.log")).unwrap_or_default()
    }

    fn spawn() -> io::Result<OwnRedis> {
        let dir = tempfile::Builder::new().prefix("punctual-demo-").tempdir()?;
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        let mut command = Command::new("sh");
        command.args(["-c", KEEPER, "sh"]).arg(dir.path()).args(["redis-server", "--bind", "127.0.0.1", "--port"]);
        command.arg(port.to_string()).args(["--save", "", "--appendonly", "no", "--dir"]).arg(dir.path());
        // A process group of its own: Ctrl-C in the terminal is for this process, which needs Redis to end in order.
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
