//! redis-server for tests, and a plain synchronous connection to it.

use super::server::Server;

/// A redis-server of the test's own.
pub(crate) struct RedisServer {
    /// The process.
    pub(crate) server: Server,
}

impl RedisServer {
    /// Starts one without persistence, with more arguments if given (`["--cluster-enabled", "yes"]`).
    pub(crate) fn start(more: &[&str]) -> RedisServer {
        let more: Vec<String> = more.iter().map(|&argument| argument.to_owned()).collect();
        let server = Server::start("redis-server", |port, dir| {
            let mut arguments: Vec<String> =
                ["--bind", "127.0.0.1", "--save", "", "--port"].iter().map(|&a| a.to_owned()).collect();
            arguments.extend([port.to_string(), "--dir".to_owned(), dir.display().to_string()]);
            arguments.extend(more.iter().cloned());
            arguments
        });
        RedisServer { server }
    }

    /// Starts one in cluster mode that holds all slots.
    pub(crate) fn start_cluster() -> RedisServer {
        let redis = RedisServer::start(&["--cluster-enabled", "yes"]);
        let mut connection = redis.connect();
        ::redis::cmd("CLUSTER").arg("ADDSLOTSRANGE").arg(0).arg(16383).exec(&mut connection).expect("all slots");
        loop {
            let info: String = ::redis::cmd("CLUSTER").arg("INFO").query(&mut connection).expect("cluster info");
            if info.contains("cluster_state:ok") {
                return redis;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }

    /// `redis://127.0.0.1:<port>`.
    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.server.port)
    }

    /// A connection of the test's own.
    pub(crate) fn connect(&self) -> ::redis::Connection {
        ::redis::Client::open(self.url()).and_then(|client| client.get_connection()).expect("a connection")
    }
}
