//! The metrics of doors.

use std::sync::atomic::AtomicU64;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

use super::Metrics;
use super::labels::{DoorCodeLabel, DoorLabel, DoorResultLabel};

/// Results of messages that are watched from the first one on. They start at zero.
const RESULTS: [&str; 2] = ["created", "rejected"];

/// The metrics of all doors.
#[derive(Default)]
pub(super) struct DoorFamilies {
    messages: Family<DoorResultLabel, Counter>,
    rejected: Family<DoorCodeLabel, Counter>,
    unidentified: Family<DoorLabel, Counter>,
    headers_dropped: Family<DoorLabel, Counter>,
    status: Family<DoorLabel, Gauge>,
    lag: Family<DoorLabel, Gauge<f64, AtomicU64>>,
}

/// The metrics of one door. Cheap to clone.
#[derive(Clone, Debug)]
pub struct DoorMetrics {
    door: String,
    messages: Family<DoorResultLabel, Counter>,
    rejected: Family<DoorCodeLabel, Counter>,
    /// Messages that would become a task with another id or due if they were read again.
    pub unidentified: Counter,
    /// Headers that were left out: they are no text, and the sink of the lane is of another kind than the door.
    pub headers_dropped: Counter,
    /// 0 it goes on, 1 it waits for the timeline, the destination for rejected messages or a task in flight, 2 its source is
    /// unavailable.
    pub status: Gauge,
    /// Seconds from the last message of a batch to its reading.
    pub lag: Gauge<f64, AtomicU64>,
}

impl DoorMetrics {
    /// Counts a message by result: `created`, `replaced`, `unchanged`, `cancelled`, `cancel_in_flight`, `cancel_unknown`,
    /// `superseded`, `too_late`, `loop`, `rejected`.
    pub fn message(&self, result: &'static str) {
        self.messages.get_or_create(&DoorResultLabel { door: self.door.clone(), result }).inc();
    }

    /// Counts a rejected message by code.
    pub fn rejected(&self, code: &'static str) {
        self.rejected.get_or_create(&DoorCodeLabel { door: self.door.clone(), code }).inc();
    }
}

impl DoorFamilies {
    pub(super) fn register(&self, r: &mut Registry) {
        r.register("door_messages", "Messages that a door has read, by result", self.messages.clone());
        r.register("door_rejected", "Messages that a door has rejected, by code", self.rejected.clone());
        let unidentified = "Messages that would become a task with another id or due if they were read again";
        r.register("door_unidentified", unidentified, self.unidentified.clone());
        let dropped =
            "Headers that were left out: they are no text, and the sink of the lane is of another kind than the door";
        r.register("door_headers_dropped", dropped, self.headers_dropped.clone());
        let status = "0 the door goes on, 1 it waits for the timeline, for `rejected` or for a task in flight, 2 its source is unavailable";
        r.register("door_status", status, self.status.clone());
        let lag = "Time from the last message that a door has read to the reading";
        r.register_with_unit("door_lag", lag, Unit::Seconds, self.lag.clone());
    }
}

impl Metrics {
    /// The metrics of a door, by its name in the configuration.
    #[must_use]
    pub fn door(&self, door: &str) -> DoorMetrics {
        let (families, label) = (&self.doors, DoorLabel { door: door.to_owned() });
        for result in RESULTS {
            families.messages.get_or_create(&DoorResultLabel { door: door.to_owned(), result }).inc_by(0);
        }
        DoorMetrics {
            door: door.to_owned(),
            messages: families.messages.clone(),
            rejected: families.rejected.clone(),
            unidentified: families.unidentified.get_or_create_owned(&label),
            headers_dropped: families.headers_dropped.get_or_create_owned(&label),
            status: families.status.get_or_create_owned(&label),
            lag: families.lag.get_or_create_owned(&label),
        }
    }
}
