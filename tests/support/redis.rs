//! redis-server for tests, and a plain synchronous connection to it.

use std::sync::Arc;
use std::time::Duration;

use punctual_lab::servers::{move_redis_slot, redis_options, start_redis_node};
use punctual_lab::testing::block_on;

use super::certificates::Certificates;
use super::server::Server;

/// A redis-server for one test.
pub(crate) struct RedisServer {
    /// The process.
    pub(crate) server: Server,
}

impl RedisServer {
    /// Starts a server without persistence, with more arguments (`["--requirepass", "secret"]`).
    pub(crate) fn start(more: &[&str]) -> RedisServer {
        RedisServer { server: Server::start("redis-server", |port, dir| redis_options(port, dir, more)) }
    }

    /// Starts a server in cluster mode without slots.
    pub(crate) fn start_node(more: &[&str]) -> RedisServer {
        RedisServer { server: Server::of(async || start_redis_node(more, &[]).await) }
    }

    /// Starts a server in cluster mode that has all slots.
    pub(crate) fn start_cluster() -> RedisServer {
        let redis = RedisServer::start_node(&[]);
        redis.add_slots(0..16384);
        redis.until_cluster_info("cluster_state:ok");
        redis
    }

    /// Starts a cluster of two masters: the first has the slots below `boundary`, the second the others.
    pub(crate) fn start_masters(boundary: u16) -> [RedisServer; 2] {
        let masters = [RedisServer::start_node(&[]), RedisServer::start_node(&[])];
        masters[0].add_slots(0..boundary);
        masters[1].add_slots(boundary..16384);
        // Nodes accept each other's gossip only if their epochs differ.
        (1..).zip(&masters).for_each(|(epoch, master)| master.cluster(&["SET-CONFIG-EPOCH", &format!("{epoch}")]));
        let bus: Vec<String> =
            ::redis::cmd("CONFIG").arg("GET").arg("cluster-port").query(&mut masters[1].connect()).expect("its port");
        masters[0].cluster(&["MEET", "127.0.0.1", &masters[1].server.port.to_string(), &bus[1]]);
        for master in &masters {
            master.until_cluster_info("cluster_known_nodes:2");
            master.until_cluster_info("cluster_state:ok");
        }
        masters
    }

    /// Moves a slot with its keys to another node of its cluster.
    pub(crate) fn move_slot(&self, slot: u16, to: &RedisServer) {
        let moved =
            block_on(async || move_redis_slot(slot, self.server.inner(), to.server.inner(), Duration::ZERO).await);
        moved.unwrap_or_else(|error| panic!("{error:#}"));
    }

    /// Assigns slots that no node has.
    pub(crate) fn add_slots(&self, slots: std::ops::Range<u16>) {
        let slots: Vec<String> = slots.map(|slot| slot.to_string()).collect();
        let arguments: Vec<&str> = ["ADDSLOTS"].into_iter().chain(slots.iter().map(String::as_str)).collect();
        if arguments.len() > 1 {
            self.cluster(&arguments);
        }
    }

    /// The slot of a key.
    pub(crate) fn slot(&self, key: &str) -> u16 {
        ::redis::cmd("CLUSTER").arg("KEYSLOT").arg(key).query(&mut self.connect()).expect("a slot")
    }

    /// Its node id in the cluster.
    pub(crate) fn node_id(&self) -> String {
        ::redis::cmd("CLUSTER").arg("MYID").query(&mut self.connect()).expect("its id")
    }

    /// Runs a CLUSTER command.
    pub(crate) fn cluster(&self, arguments: &[&str]) {
        ::redis::cmd("CLUSTER").arg(arguments).exec(&mut self.connect()).expect("the CLUSTER command succeeds");
    }

    /// Waits until `CLUSTER INFO` has this line.
    pub(crate) fn until_cluster_info(&self, line: &str) {
        let mut connection = self.connect();
        let reported = super::patient(Duration::from_secs(60), || {
            let info: String = ::redis::cmd("CLUSTER").arg("INFO").query(&mut connection).expect("cluster info");
            info.contains(line)
        });
        assert!(reported, "no `{line}`");
    }

    /// Sets `maxmemory` to this many bytes above (or below) the current use.
    pub(crate) fn limit_memory(&self, more: i64) {
        let mut connection = self.connect();
        let info: String = ::redis::cmd("INFO").arg("memory").query(&mut connection).expect("memory info");
        let used = info.lines().find_map(|line| line.strip_prefix("used_memory:")).expect("used memory");
        let limit = used.trim().parse::<i64>().expect("a number") + more;
        ::redis::cmd("CONFIG").arg("SET").arg("maxmemory").arg(limit).exec(&mut connection).expect("a limit");
    }

    /// `redis://127.0.0.1:<port>`.
    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.server.port)
    }

    /// A connection for the test.
    pub(crate) fn connect(&self) -> ::redis::Connection {
        ::redis::Client::open(self.url()).and_then(|client| client.get_connection()).expect("a connection")
    }
}

/// An entry of a stream, as Redis stores it.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    /// When Redis stored it, by its own clock, in milliseconds since 1970.
    pub(crate) stored_ms: i64,
    /// The fields in their order.
    pub(crate) fields: Vec<(String, Vec<u8>)>,
}

impl Entry {
    /// A field's bytes.
    pub(crate) fn field(&self, name: &str) -> Option<&[u8]> {
        self.fields.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_slice())
    }

    /// A field that is text.
    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        self.field(name).map(|bytes| std::str::from_utf8(bytes).expect("a field of text"))
    }
}

impl RedisServer {
    /// Every entry of a stream, in order, read page by page with `XRANGE`; empty if there is no such stream.
    pub(crate) fn stream(&self, name: &str) -> Vec<Entry> {
        let mut connection = self.connect();
        let (mut entries, mut from) = (Vec::new(), "-".to_owned());
        loop {
            let mut range = ::redis::cmd("XRANGE");
            range.arg(name).arg(&from).arg("+").arg("COUNT").arg(2000);
            let page: Vec<(String, Vec<Vec<u8>>)> = range.query(&mut connection).expect("XRANGE answers");
            let Some((last, _)) = page.last() else { return entries };
            from = format!("({last}");
            entries.extend(page.into_iter().map(|(id, fields)| {
                let ms = id.split('-').next().and_then(|ms| ms.parse().ok());
                let pairs = fields.chunks_exact(2);
                let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("a name of text");
                let fields = pairs.map(|pair| (text(&pair[0]), pair[1].clone())).collect();
                Entry { stored_ms: ms.expect("an id with its time"), fields }
            }));
        }
    }
}

/// A redis-server that accepts only TLS and the user `punctual` with a password.
pub(crate) struct SecureRedis {
    /// The process.
    pub(crate) server: Server,
    certificates: Arc<Certificates>,
    password: String,
}

impl SecureRedis {
    /// Starts a server without persistence.
    pub(crate) fn start(certificates: &Arc<Certificates>, password: &str) -> SecureRedis {
        SecureRedis::start_with(certificates, password, &[])
    }

    /// The same, with more arguments.
    pub(crate) fn start_with(certificates: &Arc<Certificates>, password: &str, more: &[&str]) -> SecureRedis {
        let server = Server::start("redis-server", |port, dir| {
            let file = |path: std::path::PathBuf| path.display().to_string();
            let secret = format!(">{password}");
            let options = ["--bind", "127.0.0.1", "--save", "", "--port", "0", "--tls-auth-clients", "no"];
            let user = ["--user", "punctual", "on", &secret, "~*", "&*", "+@all", "--user", "default", "off"];
            let mut arguments: Vec<String> = options.into_iter().chain(user).map(str::to_owned).collect();
            for (option, value) in [
                ("--tls-port", port.to_string()),
                ("--tls-cert-file", file(certificates.certificate_file())),
                ("--tls-key-file", file(certificates.key_file())),
                ("--tls-ca-cert-file", file(certificates.ca_file())),
                ("--dir", dir.display().to_string()),
            ] {
                arguments.extend([option.to_owned(), value]);
            }
            arguments.extend(more.iter().map(|argument| (*argument).to_owned()));
            arguments
        });
        SecureRedis { server, certificates: Arc::clone(certificates), password: password.to_owned() }
    }

    /// `rediss://punctual:<password>@127.0.0.1:<port>`.
    pub(crate) fn url(&self) -> String {
        self.url_with(&self.password)
    }

    /// The same with another password.
    pub(crate) fn url_with(&self, password: &str) -> String {
        format!("rediss://punctual:{password}@127.0.0.1:{}", self.server.port)
    }

    /// A connection for the test.
    pub(crate) fn connect(&self) -> ::redis::Connection {
        let root_cert = Some(std::fs::read(self.certificates.ca_file()).expect("a certificate"));
        let certificates = ::redis::TlsCertificates { client_tls: None, root_cert };
        let client = ::redis::Client::build_with_tls(self.url(), certificates).expect("a client");
        client.get_connection().expect("a connection")
    }
}
