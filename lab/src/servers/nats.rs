//! A nats-server for tests, with JetStream.

use super::{Server, listens, write};

/// Starts one; `config` is appended to its configuration file. Returns when it answers.
///
/// # Errors
/// If it cannot be started.
pub async fn start_nats(config: &str) -> anyhow::Result<Server> {
    Server::start("nats-server", listens, |port, dir| {
        let data = dir.join("data");
        let text =
            format!("host: 127.0.0.1\nport: {port}\njetstream {{ store_dir: \"{}\" }}\n{config}\n", data.display());
        Ok(vec!["nats-server".to_owned(), "--config".to_owned(), write(dir, "nats.conf", &text)?])
    })
    .await
}
