//! `punctual-lab verify`: attacks running instances from outside, and judges what they published.
//!
//! It knows nothing of punctual's own code but how servers are started: tasks go in over HTTP, instances are processes, what they published is read
//! back by the servers' own client libraries, and what must have been published follows from the answers alone.

pub mod absence;
pub mod absent;
pub mod account;
mod address;
mod attack;
pub mod campaign;
mod configuration;
mod crew;
mod eye;
mod ground;
mod metrics;
mod plan;
mod proxy;
pub mod report;
mod samples;

pub use metrics::Lateness;
pub use samples::Row;

pub use crate::servers::{Kind, Missing};

/// Where a campaign publishes to, and where it is read back from.
#[derive(Clone, Debug)]
pub struct Place {
    /// What it is.
    pub kind: Kind,
    /// Its address, as a sink's URL, without a proxy in between. May hold a password.
    pub url: secrecy::SecretString,
    /// Topics, queues, subjects or streams that nobody else uses; made before the first task is put.
    pub destinations: Vec<String>,
    /// Whether the time it stamps messages with is the timeline's: only of servers that were started here is that known.
    pub same_clock: bool,
}

/// Where tasks wait.
#[derive(Clone, Debug)]
pub struct TimelinePlace {
    /// The address of Redis, without a proxy in between. May hold a password.
    pub url: secrecy::SecretString,
    /// The campaign's own.
    pub namespace: String,
    /// Parts of the timeline.
    pub shards: u16,
    /// The lanes that every instance serves, `default` first.
    pub lanes: Vec<String>,
}

impl TimelinePlace {
    /// What a key of a shard is called in Redis.
    fn key(&self, shard: u16, name: &str) -> String {
        format!("punctual:{{{}:{shard}}}:{name}", self.namespace)
    }
}

/// A fault that was carried out.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Fault {
    /// Which one, in one word of a fixed few: `kill`, `stop`, `sink_cut`, ...
    pub kind: &'static str,
    /// The instance, from 0; none where it met a server.
    pub instance: Option<usize>,
    /// When it began, in the timeline's ms.
    pub from: i64,
    /// When it had ended: what was broken worked again.
    pub until: i64,
    /// Whether a claim was held by whom it met.
    pub held: bool,
}

impl Fault {
    /// In ms.
    fn lasted(&self) -> i64 {
        self.until - self.from
    }
}
