//! `punctual-lab verify`: attacks running instances from outside, and checks what they published.
//!
//! It uses no code of punctual. Tasks are put over HTTP and by messages to a door, instances are processes, messages
//! are read back with the brokers' own client libraries, and the promises follow from the answers alone.

pub mod absence;
pub mod absent;
pub mod account;
mod address;
mod attack;
pub mod campaign;
mod cluster;
mod configuration;
mod ground;
mod instances;
mod key_reader;
mod metrics;
mod plan;
mod proxy;
pub mod report;
mod samples;
mod timeline_servers;

pub use metrics::Lateness;
pub use samples::Row;

pub use crate::servers::{Kind, Missing};

/// Where a campaign publishes to and reads back from.
#[derive(Clone, Debug)]
pub struct Place {
    /// The kind of sink.
    pub kind: Kind,
    /// Its address without a proxy, as a sink's URL. May contain a password.
    pub url: secrecy::SecretString,
    /// Topics, queues, subjects or streams of the campaign; created before the first task is put.
    pub destinations: Vec<String>,
    /// Where instances read messages that ask for tasks, if they have a door.
    pub door: Option<Door>,
    /// Whether it stamps messages with the timeline's time; this is known only for servers that were started here.
    pub same_clock: bool,
}

/// The door of every instance, on the broker of the sink.
#[derive(Clone, Debug)]
pub struct Door {
    /// The topic, queue, stream, or subject with its stream that users send to; created before the first task is put.
    pub source: String,
    /// The destination for rejected messages; created with the destinations.
    pub rejected: String,
}

/// The name of the consumer or the group that reads the source, where it needs one.
const DOOR_CONSUMER: &str = "punctual";

impl Place {
    /// Everything that the campaign reads.
    fn read(&self) -> Vec<String> {
        self.destinations.iter().chain(self.door.as_ref().map(|door| &door.rejected)).cloned().collect()
    }

    /// The option `from` of the door, and its option `rejected`.
    fn door_options(&self) -> Option<(String, &str)> {
        let Door { source, rejected } = self.door.as_ref()?;
        let from = match self.kind {
            Kind::Redis | Kind::Nats => format!("{source}/{DOOR_CONSUMER}"),
            Kind::Kafka | Kind::RabbitMq => source.clone(),
        };
        Some((from, rejected))
    }
}

/// Where tasks wait.
#[derive(Clone, Debug)]
pub struct TimelinePlace {
    /// The addresses of its servers without a proxy: one Redis, or the nodes of a cluster. May contain passwords.
    pub urls: Vec<secrecy::SecretString>,
    /// The namespace of the campaign.
    pub namespace: String,
    /// Number of shards.
    pub shards: u16,
    /// The lanes that every instance serves, `default` first.
    pub lanes: Vec<String>,
}

impl TimelinePlace {
    /// The name of a key of a shard in Redis.
    fn key(&self, shard: u16, name: &str) -> String {
        format!("punctual:{{{}:{shard}}}:{name}", self.namespace)
    }
}

/// An executed fault.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Fault {
    /// Its kind: `kill`, `stop`, `sink_cut`, ...
    pub kind: &'static str,
    /// The instance, from 0; `None` if its target is a server.
    pub instance: Option<usize>,
    /// When it began, in the timeline's ms.
    pub from: i64,
    /// When everything worked again.
    pub until: i64,
    /// Whether its target held a claim.
    pub held: bool,
}

impl Fault {
    /// Its duration in ms.
    fn lasted(&self) -> i64 {
        self.until - self.from
    }
}
