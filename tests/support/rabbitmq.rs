//! RabbitMQ for tests: a node for one test, and a client that reads its queues.

use std::net::TcpStream;
use std::time::Duration;

use futures_util::StreamExt;
use lapin::message::Delivery;
use lapin::options::{
    BasicCancelOptions, BasicConsumeOptions, BasicGetOptions, BasicNackOptions, ExchangeDeclareOptions,
    QueueBindOptions, QueueDeclareOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Channel, ConnectionProperties, ExchangeKind};
use punctual_lab::servers::{RabbitOptions, rabbitmqctl, start_rabbitmq};
use punctual_lab::testing::block_on;
use tokio::time::timeout;

use super::patient;
use super::server::{Server, free_port};

/// A RabbitMQ node for one test that writes only to its own folder.
pub(crate) struct RabbitServer {
    /// The process.
    pub(crate) server: Server,
}

impl RabbitServer {
    /// Starts a node; `config` is appended to its configuration file. It has these virtual hosts and users beside `/`
    /// and `guest`. Each user has a password and all rights in every virtual host.
    pub(crate) fn start(config: &str, vhosts: &[&str], users: &[(&str, &str)]) -> RabbitServer {
        RabbitServer::start_with(&RabbitOptions { config, vhosts, users, plugins: &[] })
    }

    /// Like [`start`](Self::start), with all options.
    pub(crate) fn start_with(options: &RabbitOptions<'_>) -> RabbitServer {
        RabbitServer { server: Server::of(async || start_rabbitmq(options).await) }
    }

    /// Starts a node with its management plugin; returns the plugin's port, too.
    pub(crate) fn start_managed() -> (RabbitServer, u16) {
        let port = free_port();
        let config = format!("management.tcp.ip = 127.0.0.1\nmanagement.tcp.port = {port}\n");
        let options = RabbitOptions { config: &config, plugins: &["rabbitmq_management"], ..RabbitOptions::default() };
        let server = RabbitServer::start_with(&options);
        // The plugin listens a moment later than the broker.
        assert!(patient(Duration::from_secs(30), || TcpStream::connect(("127.0.0.1", port)).is_ok()), "no HTTP API");
        (server, port)
    }

    /// `amqp://127.0.0.1:<port>/<virtual host>`; the virtual host is URL-encoded, and empty for `/`.
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

    /// Declares a durable queue with arguments, such as a maximum length.
    pub(crate) fn declare_queue(&self, vhost: &str, name: &str, arguments: &[(&str, AMQPValue)]) {
        self.with_channel(vhost, async |channel: Channel| {
            let mut table = FieldTable::default();
            for (name, value) in arguments {
                table.insert((*name).into(), value.clone());
            }
            let options = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
            channel.queue_declare(name.into(), options, table).await.expect("a queue");
        });
    }

    /// Declares a durable exchange, and binds a queue to it with the key `#`.
    pub(crate) fn bind(&self, vhost: &str, exchange: &str, kind: ExchangeKind, queue: &str) {
        self.with_channel(vhost, async |channel: Channel| {
            let options = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
            let declared = channel.exchange_declare(exchange.into(), kind, options, FieldTable::default());
            declared.await.expect("an exchange");
            let (options, table) = (QueueBindOptions::default(), FieldTable::default());
            let bound = channel.queue_bind(queue.into(), exchange.into(), "#".into(), options, table);
            bound.await.expect("a binding");
        });
    }

    /// Takes the first message out of a queue and returns its key; `None` if the queue is empty.
    pub(crate) fn take(&self, vhost: &str, name: &str) -> Option<String> {
        self.with_channel(vhost, async |channel: Channel| {
            let message = channel.basic_get(name.into(), BasicGetOptions { no_ack: true }).await.expect("an answer")?;
            message.properties.message_id().as_ref().map(ToString::to_string)
        })
    }

    /// Number of messages in a queue.
    pub(crate) fn count(&self, vhost: &str, name: &str) -> usize {
        self.with_channel(vhost, async |channel: Channel| count(&channel, name).await)
    }

    /// All messages of a queue, in order; they stay in the queue.
    pub(crate) fn queue(&self, vhost: &str, name: &str) -> Vec<Delivery> {
        self.with_channel(vhost, async |channel: Channel| {
            let count_before = count(&channel, name).await;
            let options = BasicConsumeOptions::default();
            let consumer = channel.basic_consume(name.into(), "reader".into(), options, FieldTable::default());
            let mut consumer = consumer.await.expect("a consumer");
            let deliveries = consumer.by_ref().take(count_before);
            let deliveries: Vec<Delivery> = deliveries.map(|delivery| delivery.expect("a message")).collect().await;
            // Otherwise the node would deliver the returned messages to this consumer again.
            channel.basic_cancel("reader".into(), BasicCancelOptions::default()).await.expect("it reads no more");
            let back = BasicNackOptions { multiple: true, requeue: true };
            channel.basic_nack(0, back).await.expect("they are given back");
            // The next reader finds them all.
            while count(&channel, name).await < count_before {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            deliveries
        })
    }

    /// Runs `act` on a channel of a new connection, for 30 s at most. Works inside a runtime, too.
    pub(crate) fn with_channel<T: Send>(&self, vhost: &str, act: impl AsyncFnOnce(Channel) -> T + Send) -> T {
        let url = self.url(if vhost.is_empty() { "%2f" } else { vhost });
        let limited = async move || {
            let connection = lapin::Connection::connect(&url, ConnectionProperties::default()).await;
            let connection = connection.expect("a connection to RabbitMQ");
            let result = act(connection.create_channel().await.expect("a channel")).await;
            // `act` may have closed the channel.
            connection.close(200, "done".into()).await.ok();
            result
        };
        block_on(async || timeout(Duration::from_secs(30), limited()).await.expect("within 30 s"))
    }

    /// Runs `rabbitmqctl` for this node.
    pub(crate) fn control(&self, arguments: &[&str]) {
        let mut command = rabbitmqctl(self.server.inner()).expect("its environment");
        command.args(arguments);
        // A node accepts connections a moment before it reports that it has started.
        let mut last = None;
        patient(Duration::from_secs(30), || {
            let output = last.insert(command.output().expect("rabbitmqctl runs"));
            !String::from_utf8_lossy(&output.stderr).contains("requires the 'rabbit' app")
        });
        assert!(last.as_ref().is_some_and(|output| output.status.success()), "rabbitmqctl {arguments:?}: {last:?}");
    }
}

async fn count(channel: &Channel, queue: &str) -> usize {
    let passive = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
    let queue = channel.queue_declare(queue.into(), passive, FieldTable::default()).await;
    queue.expect("there is this queue").message_count() as usize
}
