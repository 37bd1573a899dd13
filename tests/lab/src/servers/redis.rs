//! A redis-server of our own.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::time::Duration;

use super::Server;

/// What a redis-server keeps on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keeps {
    /// Nothing.
    Nothing,
    /// Every write before it is answered.
    Everything,
}

/// Starts one; returns when it answers.
///
/// # Errors
/// When it cannot be started.
pub async fn start_redis(keeps: Keeps) -> anyhow::Result<Server> {
    Server::start("redis-server", answers, move |port, dir| {
        let port = port.to_string();
        let kept = if keeps == Keeps::Everything { "yes" } else { "no" };
        let options = ["--bind", "127.0.0.1", "--port", &port, "--save", "", "--appendonly", kept];
        let mut command: Vec<String> = std::iter::once("redis-server").chain(options).map(str::to_owned).collect();
        let more = ["--appendfsync", "always", "--maxmemory-policy", "noeviction", "--dir"];
        command.extend(more.map(str::to_owned));
        command.push(dir.display().to_string());
        Ok(command)
    })
    .await
}

/// Whether it answers, and not that it is still loading.
fn answers(port: u16) -> bool {
    let ping = || {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        stream.set_read_timeout(Some(Duration::from_secs(1)))?;
        stream.write_all(b"PING\r\n")?;
        let mut answer = [0; 7];
        stream.read_exact(&mut answer)?;
        Ok::<_, std::io::Error>(answer)
    };
    ping().is_ok_and(|answer| &answer == b"+PONG\r\n")
}
