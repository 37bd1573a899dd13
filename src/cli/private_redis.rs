//! A redis-server of the demo's own: on a free port, in a folder of its own, gone with the demo whatever ends that.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Ends the server and removes its folder once nobody holds the other end of its stdin, which the kernel closes even
/// when the demo is killed.
const KEEPER: &str = r#"
dir=$1; shift
redis-server "$@" >"$dir/output.log" 2>&1 &
server=$!
cat >/dev/null
kill "$server" 2>/dev/null
wait "$server"
rm -rf -- "$dir"
"#;

/// How often to try another port, since somebody may take a free one in between.
const PORTS: usize = 3;

/// A running redis-server; dropping it ends it.
pub(super) struct PrivateRedis {
    keeper: Child,
    pub(super) port: u16,
}

impl PrivateRedis {
    /// Whether one can be started at all.
    pub(super) fn is_there() -> bool {
        std::env::var_os("PATH")
            .is_some_and(|path| std::env::split_paths(&path).any(|dir| dir.join("redis-server").is_file()))
    }

    /// Starts one that keeps nothing on disk; returns when it answers.
    pub(super) fn start() -> io::Result<PrivateRedis> {
        let mut tried = PrivateRedis::try_start();
        for _ in 1..PORTS {
            if tried.is_err() {
                tried = PrivateRedis::try_start();
            }
        }
        tried
    }

    fn try_start() -> io::Result<PrivateRedis> {
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        let dir = new_folder()?;
        let mut command = Command::new("sh");
        command.args(["-c", KEEPER, "sh"]).arg(&dir);
        command.args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--save", "", "--appendonly", "no", "--dir"]);
        // A group of its own: a Ctrl-C in the terminal is for the demo, which still needs it to end in order.
        command.arg(&dir).process_group(0).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let server = PrivateRedis { keeper: command.spawn()?, port };
        server.wait_until_it_answers()?;
        Ok(server)
    }

    fn wait_until_it_answers(&self) -> io::Result<()> {
        let mut last = io::Error::from(io::ErrorKind::TimedOut);
        for _ in 0..500 {
            match self.ping() {
                Ok(()) => return Ok(()),
                Err(error) => last = error,
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Err(last)
    }

    fn ping(&self) -> io::Result<()> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port))?;
        stream.set_read_timeout(Some(Duration::from_secs(1)))?;
        stream.write_all(b"PING\r\n")?;
        let mut answer = [0; 7];
        stream.read_exact(&mut answer)?;
        if &answer == b"+PONG\r\n" { Ok(()) } else { Err(io::Error::other("something else listens there")) }
    }
}

impl Drop for PrivateRedis {
    fn drop(&mut self) {
        drop(self.keeper.stdin.take());
        if let Err(error) = self.keeper.wait() {
            tracing::warn!(%error, "the private redis-server was not waited for");
        }
    }
}

/// A new folder that only its owner may look into.
fn new_folder() -> io::Result<PathBuf> {
    let dir = std::env::temp_dir().join(format!("punctual-demo-{:016x}", rand::random::<u64>()));
    std::fs::DirBuilder::new().mode(0o700).create(&dir)?;
    Ok(dir)
}
