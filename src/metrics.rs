//! All metrics of punctual. Every module calls this one; it calls none.
//!
//! Code in a hot loop gets [`LaneMetrics`] or [`SinkMetrics`] once and keeps it, so that counting is one atomic
//! addition. Labels are names of lanes, sinks and doors, and words of fixed lists; never task ids.

mod doors;
mod labels;
mod register;

use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

use self::doors::DoorFamilies;
pub use self::doors::DoorMetrics;
pub use self::labels::LATENESS_BUCKETS;
use self::labels::{
    ActionLabel, CallBuckets, CallLabel, CopyLabel, LaneLabel, LatenessBuckets, PublishedLabel, ReasonLabel,
    RedirectLabel, RequestLabel, ResultLabel, SinkLabel, VerbLabel,
};

/// Reasons of death. They start at zero, so that the first death of each reason counts as an increase.
const DEAD_REASONS: [&str; 5] = ["rejected", "retries", "destination", "poison", "too late"];

/// Results of timeline calls that deserve an alert from the first one on. They start at zero as well.
const ALARMING_RESULTS: [&str; 3] = ["refused", "broken", "unconfirmed"];

/// Kinds of redirects. They start at zero.
const REDIRECT_KINDS: [&str; 2] = ["moved", "moving"];

/// HTTP statuses that deserve an alert from the first one on. They start at zero with a route's first request.
const FAILURE_CODES: [u16; 2] = [500, 503];

/// Reasons for passing over an occurrence: the catch-up of its task.
const PASSED_OVER_POLICIES: [&str; 3] = ["once", "all", "none"];

/// All metrics of one instance and their registry.
pub struct Metrics {
    registry: Registry,
    puts: Family<ResultLabel, Counter>,
    cancels: Family<ResultLabel, Counter>,
    requeues: Family<ResultLabel, Counter>,
    discards: Family<ResultLabel, Counter>,
    actions: Family<ActionLabel, Counter>,
    claims: Family<LaneLabel, Counter>,
    claimed: Family<LaneLabel, Counter>,
    served: Family<LaneLabel, Gauge>,
    shards_owned: Family<LaneLabel, Gauge>,
    claims_empty: Family<LaneLabel, Counter>,
    lateness: Family<LaneLabel, Histogram, LatenessBuckets>,
    passed_over: Family<ReasonLabel, Counter>,
    dead: Family<ReasonLabel, Counter>,
    dead_copies: Family<CopyLabel, Counter>,
    claims_lost: Family<LaneLabel, Counter>,
    leases_reaped: Family<LaneLabel, Counter>,
    occurrences_reaped: Family<LaneLabel, Counter>,
    stranded: Family<LaneLabel, Counter>,
    unreadable: Family<LaneLabel, Gauge>,
    removed: Family<LaneLabel, Counter>,
    pending: Family<LaneLabel, Gauge>,
    overdue: Family<LaneLabel, Gauge>,
    paused: Family<LaneLabel, Gauge>,
    lane_paused: Family<LaneLabel, Gauge>,
    in_flight: Family<LaneLabel, Gauge>,
    oldest_due: Family<LaneLabel, Gauge<f64, AtomicU64>>,
    published: Family<PublishedLabel, Counter>,
    retries: Family<SinkLabel, Counter>,
    publish_seconds: Family<SinkLabel, Histogram, CallBuckets>,
    breaker: Family<SinkLabel, Gauge>,
    failing_destinations: Family<SinkLabel, Gauge>,
    calls: Family<CallLabel, Counter>,
    call_seconds: Family<VerbLabel, Histogram, CallBuckets>,
    requests: Family<RequestLabel, Counter>,
    doors: DoorFamilies,
    /// Dead occurrences that were dropped because of the cap or their age.
    pub dead_dropped: Counter,
    /// Dead occurrences at the moment, over all shards.
    pub dead_kept: Gauge,
    /// Lanes with tasks that are not configured here.
    pub lanes_unserved: Gauge,
    /// Instances on this timeline, with this one.
    pub instances: Gauge,
    /// 1 while any shard of the timeline is reachable, else 0.
    pub timeline_up: Gauge,
    /// Shards that are not reachable.
    pub shards_away: Gauge,
    redirects: Family<RedirectLabel, Counter>,
    /// Times that a shard in a cluster had lost its tasks.
    pub shards_emptied: Counter,
    /// Steps of the timeline's clock by a second or more.
    pub clock_steps: Counter,
    /// Times that the timeline was lost: its layout was gone from Redis.
    pub timeline_lost: Counter,
    /// The clock of this machine minus the clock of Redis, in seconds.
    pub clock_difference: Gauge<f64, AtomicU64>,
}

/// The metrics of one lane. Cheap to clone.
#[derive(Clone, Debug)]
pub struct LaneMetrics {
    /// Claims that took occurrences.
    pub claims: Counter,
    /// Claims that found nothing.
    pub claims_empty: Counter,
    /// Shards whose tasks this instance claims first.
    pub shards_owned: Gauge,
    /// Claimed occurrences.
    pub claimed: Counter,
    /// 1 if this instance serves the lane, 0 if the lane only has tasks.
    pub served: Gauge,
    /// Seconds from due to the sink's answer, on the timeline's clock; for accepted occurrences.
    pub lateness: Histogram,
    /// Claims of this instance whose lease expired before it settled them.
    pub claims_lost: Counter,
    /// Expired claims, of any instance, whose occurrences this instance returned to the lane.
    pub leases_reaped: Counter,
    /// Occurrences of these claims, which wait again.
    pub occurrences_reaped: Counter,
    /// Occurrences that were claimed without a lease. Always 0 unless punctual has a bug.
    pub stranded: Counter,
    /// Waiting occurrences whose record no instance has been able to parse, as this instance's last claims saw them.
    pub unreadable: Gauge,
    /// Entries of a lane without a record, which a claim deleted. Always 0 unless punctual has a bug.
    pub removed: Counter,
    /// Copies of dead messages that the dead-letter destination accepted.
    pub dead_copied: Counter,
    /// Dead messages that were recorded without an accepted copy.
    pub dead_not_copied: Counter,
    /// Waiting occurrences at the last glance.
    pub pending: Gauge,
    /// Waiting occurrences that were due 1 s ago or earlier, at the last glance.
    pub overdue: Gauge,
    /// Paused tasks at the last glance.
    pub paused: Gauge,
    /// 1 while the lane is paused, else 0.
    pub lane_paused: Gauge,
    /// Occurrences in flight at the last glance, of all instances.
    pub in_flight: Gauge,
    /// Age of the oldest due occurrence without a verdict at the last glance, in seconds; 0 if there is none.
    pub oldest_due: Gauge<f64, AtomicU64>,
}

/// The metrics of one sink. Cheap to clone.
#[derive(Clone, Debug)]
pub struct SinkMetrics {
    /// Messages that the sink accepted.
    pub accepted: Counter,
    /// Messages that the broker dropped, because it has one with this key.
    pub duplicate: Counter,
    /// Messages with an unknown outcome, or that may be accepted later.
    pub retry: Counter,
    /// Messages that can never be accepted.
    pub rejected: Counter,
    /// Publishes of an occurrence after the first one of its claim.
    pub retries: Counter,
    /// Seconds from handing a message over to the sink's answer or the end of the wait for it.
    pub publish_seconds: Histogram,
    /// 0 closed (the sink answers), 1 half-open (one trial), 2 open (the sink is unavailable).
    pub breaker: Gauge,
    /// Number of destinations at which messages fail, on this instance.
    pub failing_destinations: Gauge,
}

impl Metrics {
    /// Registers all metrics, at zero. `punctual_build_info` shows `version` and the instance id `instance`.
    #[must_use]
    pub fn new(version: &str, instance: &str) -> Metrics {
        let mut metrics = Metrics {
            registry: Registry::with_prefix("punctual"),
            puts: Family::default(),
            cancels: Family::default(),
            requeues: Family::default(),
            discards: Family::default(),
            actions: Family::default(),
            claims: Family::default(),
            claimed: Family::default(),
            served: Family::default(),
            shards_owned: Family::default(),
            claims_empty: Family::default(),
            lateness: Family::new_with_constructor(LatenessBuckets),
            passed_over: Family::default(),
            dead: Family::default(),
            dead_copies: Family::default(),
            claims_lost: Family::default(),
            leases_reaped: Family::default(),
            occurrences_reaped: Family::default(),
            stranded: Family::default(),
            unreadable: Family::default(),
            removed: Family::default(),
            pending: Family::default(),
            overdue: Family::default(),
            paused: Family::default(),
            lane_paused: Family::default(),
            in_flight: Family::default(),
            oldest_due: Family::default(),
            published: Family::default(),
            retries: Family::default(),
            publish_seconds: Family::new_with_constructor(CallBuckets),
            breaker: Family::default(),
            failing_destinations: Family::default(),
            calls: Family::default(),
            call_seconds: Family::new_with_constructor(CallBuckets),
            requests: Family::default(),
            doors: DoorFamilies::default(),
            dead_dropped: Counter::default(),
            dead_kept: Gauge::default(),
            lanes_unserved: Gauge::default(),
            instances: Gauge::default(),
            timeline_up: Gauge::default(),
            clock_steps: Counter::default(),
            shards_away: Gauge::default(),
            redirects: Family::default(),
            shards_emptied: Counter::default(),
            timeline_lost: Counter::default(),
            clock_difference: Gauge::default(),
        };
        metrics.register_tasks();
        metrics.register_lanes();
        metrics.doors.register(&mut metrics.registry);
        metrics.register_outside();
        // `instance` is the label that Prometheus itself gives to a target.
        let build = vec![("version".to_owned(), version.to_owned()), ("instance_id".to_owned(), instance.to_owned())];
        metrics.registry.register("build", "Version and instance id", Info::new(build));
        for kind in REDIRECT_KINDS {
            metrics.redirects.get_or_create(&RedirectLabel { kind }).inc_by(0);
        }
        metrics
    }

    /// Counts puts by result, in the words of the API: `created`, `replaced`, `unchanged`, `in_flight`, ...
    pub fn put(&self, result: &'static str, tasks: u64) {
        self.puts.get_or_create(&ResultLabel { result }).inc_by(tasks);
    }

    /// Counts a cancel by result: `cancelled`, `in_flight`, `unknown`, `changed`.
    pub fn cancel(&self, result: &'static str) {
        self.cancels.get_or_create(&ResultLabel { result }).inc();
    }

    /// Counts requeues by result: `requeued`, `in_flight`, `unknown`, `unserved` (the lane is not configured),
    /// `unreadable`.
    pub fn requeue(&self, result: &'static str, occurrences: u64) {
        self.requeues.get_or_create(&ResultLabel { result }).inc_by(occurrences);
    }

    /// Counts discards by result: `discarded`, `unknown`.
    pub fn discard(&self, result: &'static str, occurrences: u64) {
        self.discards.get_or_create(&ResultLabel { result }).inc_by(occurrences);
    }

    /// Counts a request that pauses, resumes, triggers or skips, by action and result.
    pub fn action(&self, action: &'static str, result: &'static str) {
        self.actions(action, result, 1);
    }

    /// Counts the tasks of a bulk request, by action and result. A `count` of 0 has no effect.
    pub fn actions(&self, action: &'static str, result: &'static str, count: u64) {
        if count > 0 {
            self.actions.get_or_create(&ActionLabel { action, result }).inc_by(count);
        }
    }

    /// The metrics of a lane that is configured or was found in the timeline: a bounded list.
    #[must_use]
    pub fn lane(&self, lane: &str) -> LaneMetrics {
        let label = LaneLabel { lane: lane.to_owned() };
        DEAD_REASONS.iter().for_each(|reason| self.dead(lane, reason, 0));
        PASSED_OVER_POLICIES.iter().for_each(|reason| self.passed_over(lane, reason, 0));
        let copies = |result| self.dead_copies.get_or_create_owned(&CopyLabel { lane: lane.to_owned(), result });
        LaneMetrics {
            claims: self.claims.get_or_create_owned(&label),
            claimed: self.claimed.get_or_create_owned(&label),
            served: self.served.get_or_create_owned(&label),
            shards_owned: self.shards_owned.get_or_create_owned(&label),
            claims_empty: self.claims_empty.get_or_create_owned(&label),
            lateness: self.lateness.get_or_create_owned(&label),
            claims_lost: self.claims_lost.get_or_create_owned(&label),
            leases_reaped: self.leases_reaped.get_or_create_owned(&label),
            occurrences_reaped: self.occurrences_reaped.get_or_create_owned(&label),
            stranded: self.stranded.get_or_create_owned(&label),
            unreadable: self.unreadable.get_or_create_owned(&label),
            removed: self.removed.get_or_create_owned(&label),
            dead_copied: copies("accepted"),
            dead_not_copied: copies("failed"),
            pending: self.pending.get_or_create_owned(&label),
            overdue: self.overdue.get_or_create_owned(&label),
            paused: self.paused.get_or_create_owned(&label),
            lane_paused: self.lane_paused.get_or_create_owned(&label),
            in_flight: self.in_flight.get_or_create_owned(&label),
            oldest_due: self.oldest_due.get_or_create_owned(&label),
        }
    }

    /// Removes the gauges of a lane that is not known any more.
    pub fn forget_lane(&self, lane: &str) {
        let label = LaneLabel { lane: lane.to_owned() };
        self.served.remove(&label);
        self.shards_owned.remove(&label);
        self.pending.remove(&label);
        self.overdue.remove(&label);
        self.paused.remove(&label);
        self.lane_paused.remove(&label);
        self.in_flight.remove(&label);
        self.oldest_due.remove(&label);
        self.unreadable.remove(&label);
    }

    /// Counts passed-over occurrences of a lane, by catch-up: `once`, `all`, `none`.
    pub fn passed_over(&self, lane: &str, reason: &'static str, occurrences: u64) {
        self.passed_over.get_or_create(&ReasonLabel { lane: lane.to_owned(), reason }).inc_by(occurrences);
    }

    /// Counts dead occurrences of a lane, by reason: `rejected`, `retries`, `destination`, `poison`, `too late`.
    pub fn dead(&self, lane: &str, reason: &'static str, occurrences: u64) {
        self.dead.get_or_create(&ReasonLabel { lane: lane.to_owned(), reason }).inc_by(occurrences);
    }

    /// The metrics of a sink, by its name in the configuration.
    #[must_use]
    pub fn sink(&self, sink: &str) -> SinkMetrics {
        let label = SinkLabel { sink: sink.to_owned() };
        let published =
            |outcome| self.published.get_or_create_owned(&PublishedLabel { sink: sink.to_owned(), outcome });
        SinkMetrics {
            accepted: published("accepted"),
            duplicate: published("duplicate"),
            retry: published("retry"),
            rejected: published("rejected"),
            retries: self.retries.get_or_create_owned(&label),
            publish_seconds: self.publish_seconds.get_or_create_owned(&label),
            breaker: self.breaker.get_or_create_owned(&label),
            failing_destinations: self.failing_destinations.get_or_create_owned(&label),
        }
    }

    /// Registers the verbs of the timeline.
    pub fn timeline_verbs(&self, verbs: impl IntoIterator<Item = &'static str>) {
        for (verb, result) in verbs.into_iter().flat_map(|verb| ALARMING_RESULTS.map(|result| (verb, result))) {
            self.calls.get_or_create(&CallLabel { verb, result }).inc_by(0);
        }
    }

    /// Counts a call of the timeline: its verb, `ok` or the kind of error, and its duration.
    pub fn timeline_call(&self, verb: &'static str, result: &'static str, seconds: f64) {
        self.calls.get_or_create(&CallLabel { verb, result }).inc();
        self.call_seconds.get_or_create(&VerbLabel { verb }).observe(seconds);
    }

    /// Counts a call that a node of a cluster refused because of its slot: it has `moved` to another node, or is `moving`
    /// there.
    pub fn redirect(&self, kind: &'static str) {
        self.redirects.get_or_create(&RedirectLabel { kind }).inc();
    }

    /// Counts an HTTP request by route (the pattern, never the path) and status.
    pub fn request(&self, route: &'static str, status: u16) {
        for status in FAILURE_CODES {
            self.requests.get_or_create(&RequestLabel { route, status }).inc_by(0);
        }
        self.requests.get_or_create(&RequestLabel { route, status }).inc();
    }

    /// All metrics in the OpenMetrics text format.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a String does not fail. If it did, a part would be better than nothing.
        if encode(&mut text, &self.registry).is_err() {
            text.push_str("# EOF\n");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_appear_in_the_metrics_text_under_their_names() {
        let metrics = Metrics::new("1.2.3", "i1");
        metrics.put("created", 1);
        metrics.cancel("in_flight");
        metrics.dead("default", "too late", 2);
        metrics.timeline_verbs(["settle"]);
        metrics.timeline_call("claim", "ok", 0.0004);
        metrics.request("/v1/tasks/{id}", 201);
        let (lane, sink) = (metrics.lane("default"), metrics.sink("orders"));
        lane.lateness.observe(0.0007);
        lane.pending.set(3);
        sink.accepted.inc_by(5);
        sink.breaker.set(2);
        let text = metrics.text();
        for line in [
            "punctual_puts_total{result=\"created\"} 1",
            "punctual_cancels_total{result=\"in_flight\"} 1",
            "punctual_dead_total{lane=\"default\",reason=\"too late\"} 2",
            "punctual_timeline_calls_total{verb=\"claim\",result=\"ok\"} 1",
            "punctual_timeline_calls_total{verb=\"settle\",result=\"broken\"} 0",
            "punctual_http_requests_total{route=\"/v1/tasks/{id}\",status=\"201\"} 1",
            "punctual_http_requests_total{route=\"/v1/tasks/{id}\",status=\"500\"} 0",
            "punctual_lateness_seconds_bucket{le=\"0.0005\",lane=\"default\"} 0",
            "punctual_lateness_seconds_bucket{le=\"0.001\",lane=\"default\"} 1",
            "punctual_pending{lane=\"default\"} 3",
            "punctual_published_total{sink=\"orders\",outcome=\"accepted\"} 5",
            "punctual_published_total{sink=\"orders\",outcome=\"rejected\"} 0",
            "punctual_breaker{sink=\"orders\"} 2",
            "punctual_stranded_total{lane=\"default\"} 0",
            "punctual_build_info{version=\"1.2.3\",instance_id=\"i1\"} 1",
        ] {
            assert!(text.lines().any(|found| found == line), "no line `{line}` in\n{text}");
        }
        assert!(text.ends_with("# EOF\n"));
    }
}
