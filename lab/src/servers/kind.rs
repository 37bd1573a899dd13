//! The kinds of servers: their names, and whether they can be started here.

use secrecy::SecretString;

use super::{
    KEEPS_EVERYTHING, KafkaOptions, RabbitOptions, Server, is_there, start_kafka, start_nats, start_rabbitmq,
    start_redis,
};

/// What a server is started for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// To be killed and started again: Redis persists every write before it replies, Kafka starts fast.
    Attack,
    /// To be measured: Redis persists nothing, Kafka runs fast.
    Measure,
}

/// A kind of sink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Redis Streams.
    Redis,
    /// Kafka.
    Kafka,
    /// RabbitMQ.
    RabbitMq,
    /// NATS JetStream.
    Nats,
}

/// Something that is needed is missing or unsuitable.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{detail}")]
pub struct Missing {
    detail: String,
    /// What to do about it.
    pub hint: String,
}

impl Missing {
    /// What is missing, and what to do about it.
    #[must_use]
    pub fn new(detail: &str, hint: &str) -> Missing {
        Missing { detail: detail.to_owned(), hint: hint.to_owned() }
    }
}

impl Kind {
    /// Its name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Kind::Redis => "redis",
            Kind::Kafka => "kafka",
            Kind::RabbitMq => "rabbitmq",
            Kind::Nats => "nats",
        }
    }

    /// The scheme of its plain URLs, and its usual port.
    pub fn scheme(self) -> (&'static str, u16) {
        match self {
            Kind::Redis => ("redis", 6379),
            Kind::Kafka => ("kafka", 9092),
            Kind::RabbitMq => ("amqp", 5672),
            Kind::Nats => ("nats", 4222),
        }
    }

    /// The URL of a server that was started here.
    pub fn own_url(self, port: u16) -> SecretString {
        format!("{}://127.0.0.1:{port}", self.scheme().0).into()
    }
}

/// Starts a server.
///
/// # Errors
/// If it does not start.
pub async fn start(kind: Kind, purpose: Purpose) -> anyhow::Result<Server> {
    match kind {
        Kind::Redis if purpose == Purpose::Attack => start_redis(KEEPS_EVERYTHING).await,
        Kind::Redis => start_redis(&[]).await,
        Kind::RabbitMq => start_rabbitmq(&RabbitOptions::default()).await,
        Kind::Nats => start_nats("").await,
        Kind::Kafka => {
            start_kafka(&KafkaOptions { is_quick: purpose == Purpose::Attack, ..KafkaOptions::default() }).await
        }
    }
}

/// Whether a server of this kind can be started here.
pub fn installed(kind: Kind) -> Result<(), Missing> {
    let no = |program: &str, hint: &str| Err(Missing::new(&format!("no {program} is installed here"), hint));
    match kind {
        Kind::Redis if !is_there("redis-server") => {
            no("redis-server", "install one (Debian: redis-server), or name one of yours by its URL")
        }
        Kind::RabbitMq if !is_there("rabbitmq-server") || !is_there("epmd") => {
            no("rabbitmq-server", "install one (Debian: rabbitmq-server), or name one of yours: `--sink amqp://host`")
        }
        Kind::Nats if !is_there("nats-server") => {
            no("nats-server", "install one (Debian: nats-server), or name one of yours: `--sink nats://host`")
        }
        Kind::Kafka if !super::have_kafka() => no(
            "Kafka",
            "it needs `java` (17 or newer) and Kafka's jars: the folder that PUNCTUAL_KAFKA names, that of KAFKA_HOME, or \
             what `make setup` fetches; or name one of yours: `--sink kafka://host`",
        ),
        _ => Ok(()),
    }
}
