//! The labels of the metrics, and the buckets of the histograms.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::MetricConstructor;
use prometheus_client::metrics::histogram::Histogram;

/// Upper bounds of the lateness buckets, in seconds. They start at 0.5 ms because the budget is p50 <= 1.2 ms and p99
/// <= 3 ms, and end at 10 minutes because an unavailable sink makes its tasks that late.
pub const LATENESS_BUCKETS: [f64; 22] = [
    0.0005, 0.001, 0.0015, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0,
    60.0, 120.0, 300.0, 600.0,
];

/// Upper bounds of the buckets for calls of the timeline and for publishes, in seconds.
const CALL_BUCKETS: [f64; 12] = [0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0];

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct LaneLabel {
    pub(super) lane: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct SinkLabel {
    pub(super) sink: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct ResultLabel {
    pub(super) result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct ActionLabel {
    pub(super) action: &'static str,
    pub(super) result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct ReasonLabel {
    pub(super) lane: String,
    pub(super) reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct CopyLabel {
    pub(super) lane: String,
    pub(super) result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct PublishedLabel {
    pub(super) sink: String,
    pub(super) outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct RedirectLabel {
    pub(super) kind: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct VerbLabel {
    pub(super) verb: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct CallLabel {
    pub(super) verb: &'static str,
    pub(super) result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct DoorLabel {
    pub(super) door: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct DoorResultLabel {
    pub(super) door: String,
    pub(super) result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct DoorCodeLabel {
    pub(super) door: String,
    pub(super) code: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct RequestLabel {
    pub(super) route: &'static str,
    pub(super) status: u16,
}

/// Creates the lateness histogram of a lane.
#[derive(Clone, Debug)]
pub(super) struct LatenessBuckets;

impl MetricConstructor<Histogram> for LatenessBuckets {
    fn new_metric(&self) -> Histogram {
        Histogram::new(LATENESS_BUCKETS)
    }
}

/// Creates a histogram for calls of Redis or a sink.
#[derive(Clone, Debug)]
pub(super) struct CallBuckets;

impl MetricConstructor<Histogram> for CallBuckets {
    fn new_metric(&self) -> Histogram {
        Histogram::new(CALL_BUCKETS)
    }
}
