//! RabbitMQ for tests: a node of the test's own, and a client that reads back what its queues hold.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use futures_util::StreamExt;
use lapin::message::Delivery;
use lapin::options::{BasicCancelOptions, BasicConsumeOptions, BasicNackOptions, QueueDeclareOptions};
use lapin::types::FieldTable;
use lapin::{Channel, ConnectionProperties};
use serde_json::{Value, json};

use super::patient;
use super::server::{Server, free_port};

/// The name of the node. Each has a port mapper of its own, so that all can bear the same.
const NODE: &str = "test@localhost";

/// A RabbitMQ node of the test's own, with everything it writes in its own folder; no plugins.
///
/// Its port mapper is a process of its own, too: the one that Erlang would start by itself stays behind for ever.
pub(crate) struct RabbitServer {
    /// The process.
    pub(crate) server: Server,
    mapper: Server,
}

impl RabbitServer {
    /// Starts one; `config` is appended to its configuration file. It has the virtual hosts and users that are given,
    /// beside `/` and `guest`; each user has its password and may do everything in every virtual host.
    pub(crate) fn start(config: &str, vhosts: &[&str], users: &[(&str, &str)]) -> RabbitServer {
        let mapper = Server::start("epmd", |port, _| {
            ["-port", &port.to_string(), "-address", "127.0.0.1"].map(str::to_owned).to_vec()
        });
        let distribution = free_port();
        let definitions = definitions(vhosts, users).to_string();
        let server = Server::start("env", |port, dir| {
            let file = |name: &str, text: &str| {
                let path = dir.join(name);
                std::fs::write(&path, text).expect("a configuration file");
                path.display().to_string()
            };
            let definitions = file("definitions.json", &definitions);
            let plugins = file("plugins", "[].\n");
            let config = file(
                "rabbitmq.conf",
                &format!("listeners.tcp.default = 127.0.0.1:{port}\nload_definitions = {definitions}\n{config}\n"),
            );
            let mut command = environment(dir, mapper.port);
            let folder = |name: &str| dir.join(name).display().to_string();
            command.extend(
                [
                    ("RABBITMQ_NODE_PORT", port.to_string()),
                    ("RABBITMQ_DIST_PORT", distribution.to_string()),
                    ("RABBITMQ_CONFIG_FILE", config),
                    ("RABBITMQ_CONFIG_FILES", folder("no-more-files")),
                    ("RABBITMQ_ENABLED_PLUGINS_FILE", plugins),
                    ("RABBITMQ_MNESIA_BASE", folder("data")),
                    ("RABBITMQ_LOG_BASE", folder("log")),
                    // Else its script stays in between, and would be killed in the place of the node.
                    ("RUNNING_UNDER_SYSTEMD", "true".to_owned()),
                    (
                        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS",
                        "+S 1:1 -kernel inet_dist_use_interface {127,0,0,1}".to_owned(),
                    ),
                ]
                .map(|(name, value)| format!("{name}={value}")),
            );
            command.push(program("rabbitmq-server"));
            command
        });
        RabbitServer { server, mapper }
    }

    /// `amqp://127.0.0.1:<port>/<virtual host>`; the virtual host as it stands in a URL, empty for `/`.
    pub(crate) fn url(&self, vhost: &str) -> String {
        format!("amqp://127.0.0.1:{}/{vhost}", self.server.port)
    }

    /// Declares durable queues.
    pub(crate) fn declare_queues(&self, vhost: &str, names: &[&str]) {
        self.with_channel(vhost, async |channel: Channel| {
            for name in names {
                let options = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
                channel.queue_declare((*name).into(), options, FieldTable::default()).await.expect("a queue");
            }
        });
    }

    /// All messages of a queue, in its order; they stay there.
    pub(crate) fn queue(&self, vhost: &str, name: &str) -> Vec<Delivery> {
        self.with_channel(vhost, async |channel: Channel| {
            let passive = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
            let count = || async {
                let queue = channel.queue_declare(name.into(), passive, FieldTable::default()).await;
                queue.expect("there is this queue").message_count() as usize
            };
            let count_before = count().await;
            let options = BasicConsumeOptions::default();
            let consumer = channel.basic_consume(name.into(), "reader".into(), options, FieldTable::default());
            let mut consumer = consumer.await.expect("a consumer");
            let deliveries = consumer.by_ref().take(count_before);
            let deliveries: Vec<Delivery> = deliveries.map(|delivery| delivery.expect("a message")).collect().await;
            // Else it would be given again what it gives back.
            channel.basic_cancel("reader".into(), BasicCancelOptions::default()).await.expect("it reads no more");
            let back = BasicNackOptions { multiple: true, requeue: true };
            channel.basic_nack(0, back).await.expect("they are given back");
            // The next reader finds them all.
            while count().await < count_before {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            deliveries
        })
    }

    /// Does something on a channel of a connection of its own, which takes 30 s at most. Works inside of a runtime, too.
    pub(crate) fn with_channel<T: Send>(&self, vhost: &str, act: impl AsyncFnOnce(Channel) -> T + Send) -> T {
        let url = self.url(if vhost.is_empty() { "%2f" } else { vhost });
        apart(async move || {
            let connection = lapin::Connection::connect(&url, ConnectionProperties::default()).await;
            let connection = connection.expect("a connection to RabbitMQ");
            let result = act(connection.create_channel().await.expect("a channel")).await;
            // Done is done: the channel may have been closed by whoever had it.
            connection.close(200, "done".into()).await.ok();
            result
        })
    }

    /// Asks the node to do something, by its `rabbitmqctl`.
    pub(crate) fn control(&self, arguments: &[&str]) {
        let log = self.server.log();
        let mut environment = environment(log.parent().expect("a folder"), self.mapper.port);
        let own = free_port();
        environment.extend(["MIN", "MAX"].map(|end| format!("RABBITMQ_CTL_DIST_PORT_{end}={own}")));
        let mut command = Command::new("env");
        command.args(environment).arg(program("rabbitmqctl")).args(arguments);
        // A node takes connections a moment before it says that it has started.
        let mut last = None;
        patient(Duration::from_secs(30), || {
            let output = last.insert(command.output().expect("rabbitmqctl runs"));
            !String::from_utf8_lossy(&output.stderr).contains("requires the 'rabbit' app")
        });
        assert!(last.as_ref().is_some_and(|output| output.status.success()), "rabbitmqctl {arguments:?}: {last:?}");
    }
}

/// What the node and its tools are told, as arguments of `env`.
fn environment(dir: &Path, mapper: u16) -> Vec<String> {
    [
        // The cookie lies there.
        ("HOME", dir.display().to_string()),
        ("RABBITMQ_NODENAME", NODE.to_owned()),
        ("RABBITMQ_CONF_ENV_FILE", "/dev/null".to_owned()),
        ("ERL_EPMD_PORT", mapper.to_string()),
        ("ERL_EPMD_ADDRESS", "127.0.0.1".to_owned()),
        ("ERL_ZFLAGS", "-start_epmd false".to_owned()),
    ]
    .map(|(name, value)| format!("{name}={value}"))
    .to_vec()
}

/// What Debian puts on the path insists on one of two users.
fn program(name: &str) -> String {
    let path = PathBuf::from("/usr/lib/rabbitmq/bin").join(name);
    if path.is_file() { path.display().to_string() } else { name.to_owned() }
}

fn definitions(vhosts: &[&str], users: &[(&str, &str)]) -> Value {
    let vhosts: Vec<&str> = ["/"].iter().chain(vhosts).copied().collect();
    let users: Vec<(&str, &str)> = [("guest", "guest")].iter().chain(users).copied().collect();
    let permissions = users.iter().flat_map(|(user, _)| {
        vhosts
            .iter()
            .map(move |vhost| json!({"user": user, "vhost": vhost, "configure": ".*", "write": ".*", "read": ".*"}))
    });
    json!({
        "vhosts": vhosts.iter().map(|name| json!({"name": name})).collect::<Vec<_>>(),
        "users": users.iter().map(|(name, password)| json!({"name": name, "password": password, "tags": ""})).collect::<Vec<_>>(),
        "permissions": permissions.collect::<Vec<_>>(),
    })
}

/// Runs something asynchronous on a thread of its own, whether or not this one is part of a runtime.
fn apart<T: Send>(act: impl AsyncFnOnce() -> T + Send) -> T {
    let run = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async { tokio::time::timeout(Duration::from_secs(30), act()).await.expect("within 30 s") })
    };
    std::thread::scope(|scope| scope.spawn(run).join()).unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
