//! A redis-server for tests.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::path::Path;
use std::time::Duration;

use super::Server;

/// Options to persist every write before the reply.
pub const KEEPS_EVERYTHING: &[&str] = &["--appendonly", "yes", "--appendfsync", "always"];

/// Starts one without persistence, unless `options` say otherwise; returns when it has loaded its data.
///
/// # Errors
/// If it cannot be started.
pub async fn start_redis(options: &[&str]) -> anyhow::Result<Server> {
    start_redis_in(&[], options).await
}

/// The same with these variables in its environment.
pub(super) async fn start_redis_in(environment: &[String], options: &[&str]) -> anyhow::Result<Server> {
    let program = match environment {
        [] => vec!["redis-server".to_owned()],
        some => [&["env".to_owned()], some, &["redis-server".to_owned()]].concat(),
    };
    let command = |port, dir: &Path| Ok([program.clone(), redis_options(port, dir, options)].concat());
    Server::start("redis-server", answers, command).await
}

/// All options of a server, including additional ones (`["--requirepass", "secret"]`).
#[must_use]
pub fn redis_options(port: u16, dir: &Path, options: &[&str]) -> Vec<String> {
    let (port, dir) = (port.to_string(), dir.display().to_string());
    let usual = ["--bind", "127.0.0.1", "--port", &port, "--save", "", "--dir", &dir];
    usual.iter().chain(options).map(|&word| word.to_owned()).collect()
}

/// Whether it replies and has finished loading.
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
