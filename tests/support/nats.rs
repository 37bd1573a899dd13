//! nats-server with JetStream for tests.

use super::server::Server;

/// A nats-server of the test's own, with JetStream in its own folder.
pub(crate) struct NatsServer {
    /// The process.
    pub(crate) server: Server,
}

impl NatsServer {
    /// Starts one; `config` is appended to its configuration file.
    pub(crate) fn start(config: &str) -> NatsServer {
        let server = Server::start("nats-server", |port, dir| {
            let file = dir.join("nats.conf");
            let text = format!(
                "host: 127.0.0.1\nport: {port}\njetstream {{ store_dir: \"{}\" }}\n{config}\n",
                dir.join("data").display()
            );
            std::fs::write(&file, text).expect("a configuration file");
            vec!["--config".to_owned(), file.display().to_string()]
        });
        NatsServer { server }
    }

    /// `nats://127.0.0.1:<port>`.
    pub(crate) fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.server.port)
    }
}
